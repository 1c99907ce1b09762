//! Asks the linker for what a Node addon needs on each platform.

fn main() {
    napi_build::setup();
}
