//! The C library: exports of what the core crate does, and nothing else. `include/workglow_limit.h` is its manual.
//!
//! What C may pass is written in the types. `Option<&T>` is a pointer to a handle or NULL, `Option<Box<T>>` one that
//! is given back, `Option<&mut MaybeUninit<T>>` a place for an answer. So the only pointers left to check by hand are
//! texts, and structures whose size the caller tells (`input.rs`).

// The names are C's.
#![allow(non_camel_case_types)]
// What a caller has to keep to is said once, for all functions, in the header's introduction.
#![allow(clippy::missing_safety_doc)]

mod calls;
mod clock;
mod custom;
mod input;
mod limiter;
mod local;
mod permit;
mod rate;
mod shared;
mod stats;
mod status;
mod store;
