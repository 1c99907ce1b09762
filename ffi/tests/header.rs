//! `include/workglow_limit.h` is made from the sources, and committed. `UPDATE_HEADER=1` writes it anew.

use std::path::Path;

#[test]
fn the_header_is_what_the_sources_say() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    // In the order in which one reads them.
    let sources = "status clock store limiter rate local shared custom calls permit waiter stats";
    let sources = sources.split(' ').map(|file| format!("{file}.rs")).map(|file| here.join("src").join(file));
    let bindings = sources.fold(cbindgen::Builder::new().with_config(config), |b, file| b.with_src(file));
    let mut made = Vec::new();
    bindings.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();

    let header = here.join("../include/workglow_limit.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::create_dir_all(header.parent().unwrap()).unwrap();
        std::fs::write(&header, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&header).unwrap();
    assert!(
        committed == made,
        "include/workglow_limit.h is out of date: UPDATE_HEADER=1 cargo test -p workglow-limit-ffi"
    );
}
