//! The sources make `include/workglow_limit.h`, which is committed. `UPDATE_HEADER=1` rewrites it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../include/workglow_limit.h")
}

fn header() -> String {
    std::fs::read_to_string(path()).unwrap()
}

/// The header that belongs to the sources.
fn made() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let versions = [
        ("@MAJOR@", env!("CARGO_PKG_VERSION_MAJOR")),
        ("@MINOR@", env!("CARGO_PKG_VERSION_MINOR")),
        ("@PATCH@", env!("CARGO_PKG_VERSION_PATCH")),
    ];
    config.after_includes = config
        .after_includes
        .map(|text| versions.iter().fold(text, |text, (mark, version)| text.replace(mark, version)));
    // In reading order.
    let sources = "status strings clock store limiter rate local shared custom calls permit joint waiter line stats line_snapshot";
    let sources = sources.split(' ').map(|file| here.join("src").join(format!("{file}.rs")));
    let bindings = sources.fold(cbindgen::Builder::new().with_config(config), |b, file| b.with_src(file));
    let mut made = Vec::new();
    bindings.generate().unwrap().write(&mut made);
    // Tags are for the definitions, and for forward declarations in programs.
    let plain =
        |line: &str| if line.starts_with("typedef") { line.to_owned() } else { line.replace("struct wgl_", "wgl_") };
    String::from_utf8(made).unwrap().lines().map(|line| plain(line) + "\n").collect()
}

/// Each function of the header, with the comment above it.
fn functions(header: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut comment = String::new();
    for line in header.lines() {
        if let Some(text) = line.strip_prefix("//") {
            comment += text.trim_start();
            comment.push('\n');
        } else {
            let name = line.split_once('(').map(|(head, _)| head.rsplit([' ', '*']).next().unwrap_or_default());
            if let Some(name) = name.filter(|name| name.starts_with("wgl_") && !line.starts_with([' ', '#', '}'])) {
                found.push((name.to_owned(), std::mem::take(&mut comment)));
            }
            comment.clear();
        }
    }
    found
}

/// The words of a text that begin with a prefix.
fn words<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(move |word| word.starts_with(prefix))
}

#[test]
fn the_header_matches_the_sources() {
    let made = made();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(path(), &made).unwrap();
    }
    assert!(
        header() == made,
        "include/workglow_limit.h is out of date: UPDATE_HEADER=1 cargo test -p workglow-limit-ffi"
    );
}

#[test]
fn every_function_lists_its_errors() {
    let header = header();
    let functions = functions(&header);
    assert!(functions.len() > 60, "{} functions", functions.len());
    for (name, comment) in &functions {
        let errors = comment.lines().find(|line| line.starts_with("Fails ") || line.starts_with("Never fails"));
        let errors = errors.unwrap_or_else(|| panic!("{name} lists no errors"));
        let is_status = header.contains(&format!("\nint {name}("));
        let is_infallible = ["wgl_abi_version", "wgl_version_number", "wgl_line_fd"].contains(&name.as_str());
        assert_eq!(
            errors.starts_with("Fails "),
            is_status && !is_infallible,
            "{name} returns no status, or one: {errors}"
        );
    }
}

#[test]
fn comments_name_what_the_header_has() {
    let header = header();
    let code: String = header
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .fold(String::new(), |all, line| all + line + "\n");
    let known: HashSet<&str> = words(&code, "wgl_").chain(words(&code, "WGL_")).collect();
    for word in words(&header, "wgl_").chain(words(&header, "WGL_")) {
        assert!(known.contains(word) || word == "WGL_0", "a comment names {word}, which the header lacks");
    }
}

#[test]
fn a_reference_to_the_errors_of_another_function_is_not_a_chain() {
    let functions = functions(&header());
    for (name, comment) in &functions {
        // "Fails as wgl_x does": wgl_x lists its errors in full, or is one step away from them.
        let mut at = comment.as_str();
        for step in 0.. {
            assert!(step < 3, "{name}: its errors are too far away");
            let Some(other) = at.split("Fails as ").nth(1).and_then(|rest| rest.split(' ').next()) else { break };
            at = &functions.iter().find(|(name, _)| name == other).unwrap_or_else(|| panic!("{name}: {other}")).1;
        }
    }
}

#[test]
fn every_documented_call_exists_in_c_and_cpp() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(here.join(path)).unwrap();
    let (calls, cpp, functions) =
        (read("../docs/calls.md"), read("../include/workglow_limit.hpp"), functions(&header()));
    let rows: Vec<Vec<&str>> =
        calls.lines().filter(|line| line.starts_with("| `")).map(|row| row.split('`').collect()).collect();
    assert!(rows.len() > 15, "{} rows", rows.len());
    for row in rows {
        let method = row[1].rsplit('.').next().unwrap();
        assert!(cpp.contains(&format!(" {method}(")), "C++ has no {method}");
        assert!(functions.iter().any(|(name, _)| name == row[5]), "C has no {}", row[5]);
    }
}
