//! The atomics that the algorithms use: the machine's, or a model checker's.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::fence;
#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::AtomicU64;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::fence;
#[cfg(shuttle)]
pub(crate) use shuttle::thread::yield_now;
#[cfg(not(model))]
pub(crate) use std::sync::atomic::AtomicU64;
pub(crate) use std::sync::atomic::Ordering::*;
#[cfg(not(model))]
pub(crate) use std::sync::atomic::fence;
#[cfg(not(model))]
pub(crate) use std::thread::yield_now;
