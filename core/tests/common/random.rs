//! Random numbers for all tests of this crate, including those next to the sources.
#![allow(dead_code, reason = "each test binary uses its part")]

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};

/// The algorithm is fixed, so that a seed always gives the same numbers.
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Different in each run and each process.
    pub fn new() -> Random {
        Random(rand::make_rng())
    }

    /// The same in every run.
    pub fn seeded(seed: u64) -> Random {
        Random(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 0 to `end - 1`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(..end)
    }

    /// 0 to `most`, small numbers as often as large ones.
    pub fn scaled(&mut self, most: u64) -> u64 {
        self.0.random_range(..=most) >> self.0.random_range(..=most.max(1).ilog2())
    }

    /// Returns true in this many cases of a hundred.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.0.random_ratio(percent, 100)
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *from.choose(&mut self.0).unwrap()
    }

    /// A random index, if there is one.
    pub fn index(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| self.0.random_range(..len))
    }
}

/// The seed from `SEED=…`, or another one in each run. It is printed, so that a failed run can be repeated.
pub fn seed() -> u64 {
    let seed = std::env::var("SEED").map_or_else(|_| Random::new().next(), |text| text.parse().unwrap());
    println!("SEED={seed}");
    seed
}
