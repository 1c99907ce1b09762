//! Gives the shared library its SONAME. Its number is that of the ABI, which changes when programs must be recompiled. And keeps it
//! loaded after `dlclose`: threads still have its thread-local values and their destructors, and a process has few keys for them.
//!
//! The library that is installed also has symbol versions. `make` links it for them: rustc passes an anonymous version
//! script for a cdylib, which GNU ld combines with no other, and which wins over another in lld.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let os = env::var("CARGO_CFG_TARGET_OS").expect("set by cargo");
    if matches!(os.as_str(), "linux" | "android") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libworkglow_limit.so.0");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
