//! The drivers of the models in this folder: loom tries every order of a few threads' steps, shuttle samples orders of
//! more.

#[cfg(loom)]
pub use loom::{sync::Arc, sync::Mutex, thread};
#[cfg(shuttle)]
pub use shuttle::{sync::Arc, sync::Mutex, thread};

#[cfg(loom)]
pub fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(std::env::var("PREEMPTIONS").map_or(2, |n| n.parse().unwrap()));
    model.check(f);
}

/// The same, with no bound on the number of preemptions.
#[cfg(loom)]
pub fn model_all(f: impl Fn() + Sync + Send + 'static) {
    loom::model(f);
}

#[cfg(shuttle)]
pub fn model(f: impl Fn() + Sync + Send + 'static) {
    let tries = std::env::var("TRIES").map_or(20_000, |n| n.parse().unwrap());
    shuttle::check_random(f, tries);
}

#[cfg(shuttle)]
pub use model as model_all;
