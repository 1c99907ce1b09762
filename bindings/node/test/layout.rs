//! `lib/layout.ts` is generated from `src/layout.rs` and committed. `UPDATE_LAYOUT=1` writes it.

#[path = "../src/layout.rs"]
#[allow(dead_code)]
mod layout;

use layout::{CallBuffer, HERE, LATER, OWN_NAME, Operation, Question, Status, TEXT_BYTES};
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;

/// The fields of the buffer: their names in TypeScript and their offsets, in elements of this size.
macro_rules! fields {
    ($size:literal: $($field:ident),*) => {
        [$((camel_case(stringify!($field)), offset_of!(CallBuffer, $field) / $size)),*]
    };
}

#[test]
fn the_typescript_layout_matches_the_rust_layout() {
    let generated = typescript();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("lib/layout.ts");
    if std::env::var_os("UPDATE_LAYOUT").is_some() {
        std::fs::write(&file, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap();
    assert!(
        committed == generated,
        "bindings/node/lib/layout.ts is out of date: UPDATE_LAYOUT=1 cargo test -p workglow-limit-node"
    );
}

#[test]
fn the_buffer_has_no_padding() {
    let fields = 4 * size_of::<i32>() + 11 * size_of::<f64>() + 9 * size_of::<u64>() + TEXT_BYTES;
    assert_eq!(size_of::<CallBuffer>(), fields);
}

#[test]
fn a_number_and_its_name_convert_both_ways() {
    for &(name, number, _) in Operation::ALL {
        let operation = Operation::from_number(number).unwrap();
        assert_eq!((format!("{operation:?}").as_str(), operation as i32), (name, number));
        assert_eq!(number & (LATER | HERE), 0, "{name} collides with a flag");
    }
    assert_eq!(Operation::from_number(-1), None);
    assert_eq!(Operation::from_number(LATER), None);
}

fn typescript() -> String {
    let mut out =
        "// Generated from src/layout.rs. To change it: UPDATE_LAYOUT=1 cargo test -p workglow-limit-node\n".to_owned();
    let named = |all: &[(&str, i32, &str)]| -> Vec<(String, i32, String)> {
        all.iter().map(|&(name, number, doc)| (lower_first(name), number, doc.trim().to_owned())).collect()
    };
    write_enum(&mut out, Operation::ABOUT, "Op", &named(Operation::ALL));
    write_enum(&mut out, Status::ABOUT, "Status", &named(Status::ALL));
    write_enum(&mut out, Question::ABOUT, "Question", &named(Question::ALL));

    let flag = |name: &str, bits: i32, doc: &str| (name.to_owned(), bits, doc.to_owned());
    let flags = [
        flag("later", LATER, "It must not wait for the store on this thread: the closure returns what is left to do."),
        flag("here", HERE, "It must run on this thread, even if it has to ask a server."),
    ];
    write_enum(&mut out, "Added to an operation.", "Flag", &flags);

    let plain = |fields: &[(String, usize)]| -> Vec<(String, i32, String)> {
        fields.iter().map(|(name, at)| (name.clone(), *at as i32, String::new())).collect()
    };
    let ints = fields!(4: operation, status, text_length, priority, permit);
    write_enum(&mut out, "Indices of 32-bit integers; of the first word of a permit.", "Int", &plain(&ints));
    let numbers = fields!(
        8: weight, time, retry_after, suggested_after, reset_after, remaining, limit, grace, share, waiter, due
    );
    write_enum(&mut out, "Indices of 64-bit floats.", "Num", &plain(&numbers));
    let offsets = fields!(1: large, text);
    write_enum(&mut out, "Offsets in bytes.", "Offset", &plain(&offsets));

    let size = |name: &str, size: usize, doc: &str| (name.to_owned(), size as i32, doc.to_owned());
    let sizes = [
        size("buffer", size_of::<CallBuffer>(), "In bytes."),
        size("text", TEXT_BYTES, "In bytes."),
        size("permit", size_of::<[u64; 8]>() / size_of::<i32>(), "In 32-bit integers."),
    ];
    write_enum(&mut out, "Sizes of the buffer and of parts of it.", "Size", &sizes);
    let lengths = [("ownName".to_owned(), OWN_NAME, "The limiter itself denied.".to_owned())];
    write_enum(&mut out, "Values of `textLength` that are no length.", "TextLength", &lengths);
    out
}

fn write_enum(out: &mut String, about: &str, name: &str, members: &[(String, i32, String)]) {
    writeln!(out, "\n/** {} */\nexport const enum {name} {{", about.trim()).unwrap();
    for (member, number, doc) in members {
        if !doc.is_empty() {
            writeln!(out, "  /** {} */", in_typescript(doc)).unwrap();
        }
        writeln!(out, "  {member} = {number},").unwrap();
    }
    out.push_str("}\n");
}

/// Renames what is in backquotes as TypeScript spells it.
fn in_typescript(doc: &str) -> String {
    let parts = doc.split('`').enumerate();
    let parts = parts.map(|(i, part)| if i % 2 == 0 { part.to_owned() } else { camel_case(&lower_first(part)) });
    parts.collect::<Vec<_>>().join("`")
}

fn lower_first(name: &str) -> String {
    name[..1].to_lowercase() + &name[1..]
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_').map(str::to_owned);
    let first = words.next().unwrap_or_default();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}
