//! What each limit admits, in which order its waiters start, and what its policies, names and observers do.
//!
//! One program, so that it is linked once; `tests/rust.py` runs each of its modules in a process of its own.

#[path = "../common/mod.rs"]
mod common;

mod alternatives;
mod beside_joint;
mod changes;
mod closing;
mod composites;
mod cooling;
mod counting;
mod ends;
mod forecast;
mod futures;
mod growing;
mod hooks;
mod joint;
mod keyed;
mod late;
mod learned;
mod lines;
mod made;
mod many;
mod moving;
mod named;
mod never_over;
mod observing;
mod others;
mod places;
mod policies;
mod pools;
mod queued;
mod reference;
mod remembering;
mod slowest;
mod snapshots;
mod turns;
mod vectors;
mod waiting;
