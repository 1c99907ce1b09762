//! Every limiter is compared with a model of it: random calls to both, and every answer compared.
//!
//! `CALLS=…` sets the number of calls for each, `SEED=…` repeats the run whose number a failure prints.
//!
//! The calls avoid what a model does not know. A ring remembers as many units as it has slots, and forgotten units
//! count as later than they were: no key ever gets more than fit. Starts that have left every window are forgotten,
//! even if a longer window follows: policies get longer only after that. Where starts are only counted, a permit ends
//! once. The repeated end of a permit is left to `cases`.

mod bucket;
mod calls;
mod cases;
mod child;
mod composite;
mod concurrency;
mod frame;
mod log;
mod null;
mod run;
mod window;

use run::{Run, runs};

/// A test that compares every answer of a kind of limiter with its model's.
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
