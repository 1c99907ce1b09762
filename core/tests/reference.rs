//! Every limiter against a model of it: random calls to both, and every answer compared.
//!
//! `CALLS=…` says how many for each, `SEED=…` repeats the one run whose number a failure prints.
//!
//! What a model does not know, the calls leave out. A ring remembers as many units as it has slots, and what it forgets
//! counts as later than it was: no key ever gets more than that. What has left every window is forgotten, also if a longer
//! one comes after: policies get longer only after all that. Where starts are only counted, a permit ends once. And how a
//! permit ends that has ended before is left to `cases`.

mod common;

#[path = "reference/bucket.rs"]
mod bucket;
#[path = "reference/calls.rs"]
mod calls;
#[path = "reference/cases.rs"]
mod cases;
#[path = "reference/child.rs"]
mod child;
#[path = "reference/composite.rs"]
mod composite;
#[path = "reference/concurrency.rs"]
mod concurrency;
#[path = "reference/frame.rs"]
mod frame;
#[path = "reference/log.rs"]
mod log;
#[path = "reference/null.rs"]
mod null;
#[path = "reference/run.rs"]
mod run;
#[path = "reference/window.rs"]
mod window;

use run::{Run, runs};

/// A test that every answer of a kind of limiter is its model's.
macro_rules! every_answer_is_the_models {
    ($($name:ident: $rules:ty;)*) => {
        $(
            #[test]
            fn $name() {
                runs(|seed| Run::<$rules>::all(seed, stringify!($name)));
            }
        )*
    };
}

every_answer_is_the_models! {
    rate: log::Log<{ log::RATE }>;
    rate_with_backoff: log::Log<{ log::BACKOFF }>;
    delay: log::Log<{ log::DELAY }>;
    evenly_spaced: log::Log<{ log::STRICT }>;
    adaptive: log::Log<{ log::ADAPTIVE }>;
    token_bucket: bucket::Bucket<false>;
    leaky_bucket: bucket::Bucket<true>;
    fixed_window: window::Windows<false>;
    sliding_window_counter: window::Windows<true>;
}

#[test]
fn composite() {
    runs(composite::all);
}

#[test]
fn null() {
    runs(null::all);
}
