//! The atomics that the algorithms use: the machine's, or a model checker's.

#[cfg(loom)]
pub use loom::sync::atomic::AtomicU64;
#[cfg(loom)]
pub use loom::sync::atomic::fence;
#[cfg(loom)]
pub use loom::thread::yield_now;
#[cfg(shuttle)]
pub use shuttle::sync::atomic::AtomicU64;
#[cfg(shuttle)]
pub use shuttle::sync::atomic::fence;
#[cfg(shuttle)]
pub use shuttle::thread::yield_now;
#[cfg(not(model))]
pub use std::sync::atomic::AtomicU64;
pub use std::sync::atomic::Ordering::*;
#[cfg(not(model))]
pub use std::sync::atomic::fence;
#[cfg(not(model))]
pub use std::thread::yield_now;
