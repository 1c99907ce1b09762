//! Gives the shared library its SONAME. Its number is the ABI's: it changes when a program must be compiled anew.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let os = env::var("CARGO_CFG_TARGET_OS").expect("set by cargo");
    if matches!(os.as_str(), "linux" | "android") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libworkglow_limit.so.0");
    }
}
