//! Every limiter with a bound, on windows so short that every race happens often, and its bound.

use std::sync::Arc;
use std::time::{Duration, Instant};
use workglow_limit::embed::{Seat, Step, Waiter};
use workglow_limit::*;

pub type Shared = Arc<dyn Limiter>;

pub const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub const WINDOW: Duration = ms(20);
const WINDOW_US: u64 = WINDOW.as_micros() as u64;

/// The bound that no start may exceed, for each key.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// At most this many units in any window of this many microseconds.
    Window(u64, u64),
    /// In any period, at most a rate's yield for its length, in units per microseconds, and this many more; or, if that
    /// is 0, as many as the heaviest start.
    Flow(u64, u64, u64),
    /// At most this many in each of the windows that are aligned to 1970; if it is smooth, no more than the estimate.
    Aligned { limit: u64, us: u64, is_smooth: bool },
    /// At most this many at the same time.
    AtOnce(u64),
}

/// One kind of limiter.
pub struct Case {
    pub name: &'static str,
    policies: &'static [fn() -> Result<Policy>],
    pub bounds: &'static [Bound],
    /// The heaviest requested start.
    pub heaviest: u64,
}

impl Case {
    /// The limiter, as a process opens it.
    pub fn limiter(&self, store: &Store) -> Shared {
        let declare = |(i, policy): (usize, &fn() -> Result<Policy>)| {
            store.declare(&format!("{} {i}", self.name), policy().unwrap()).unwrap()
        };
        let mut all: Vec<_> = self.policies.iter().enumerate().map(declare).collect();
        if all.len() == 1 { all.remove(0) } else { Arc::new(CompositeLimiter::new(all)) }
    }

    pub fn has(&self, f: impl Fn(&Bound) -> bool) -> bool {
        self.bounds.iter().any(f)
    }

    /// Returns whether it also limits what runs at the same time.
    pub fn is_concurrency(&self) -> bool {
        self.has(|bound| matches!(bound, Bound::AtOnce(_)))
    }
}

pub const RATE: Case = Case {
    name: "rate",
    policies: &[|| Policy::rate_in(&[(24, WINDOW), (12, ms(5))])],
    bounds: &[Bound::Window(24, WINDOW_US), Bound::Window(12, 5_000)],
    heaviest: 3,
};
/// Too many for a log: counted in slices.
pub const SLICED: Case = Case {
    name: "sliced rate",
    policies: &[|| Policy::rate(6_000, WINDOW)],
    bounds: &[Bound::Window(6_000, WINDOW_US)],
    heaviest: 500,
};
pub const DELAY: Case =
    Case { name: "delay", policies: &[|| Policy::delay(ms(1))], bounds: &[Bound::Window(1, 1_000)], heaviest: 1 };
pub const STRICT: Case = Case {
    name: "evenly spaced",
    policies: &[|| Policy::evenly_spaced(20, WINDOW, false)],
    bounds: &[Bound::Window(1, 1_000), Bound::Window(20, WINDOW_US)],
    heaviest: 1,
};
pub const ADAPTIVE: Case = Case {
    name: "evenly spaced adaptive",
    policies: &[|| Policy::evenly_spaced(20, WINDOW, true)],
    bounds: &[Bound::Window(20, WINDOW_US)],
    heaviest: 1,
};
pub const TOKENS: Case = Case {
    name: "token bucket",
    policies: &[|| Policy::token_bucket(20, WINDOW, 10)],
    bounds: &[Bound::Flow(20, WINDOW_US, 10)],
    heaviest: 3,
};
pub const LEAKY: Case = Case {
    name: "leaky bucket",
    policies: &[|| Policy::leaky_bucket(20, WINDOW, 10)],
    bounds: &[Bound::Flow(20, WINDOW_US, 0)],
    heaviest: 3,
};
pub const FIXED: Case = Case {
    name: "fixed window",
    policies: &[|| Policy::fixed_window(24, WINDOW)],
    bounds: &[Bound::Aligned { limit: 24, us: WINDOW_US, is_smooth: false }, Bound::Window(48, WINDOW_US)],
    heaviest: 3,
};
pub const COUNTER: Case = Case {
    name: "sliding window counter",
    policies: &[|| Policy::sliding_window_counter(24, WINDOW)],
    bounds: &[Bound::Aligned { limit: 24, us: WINDOW_US, is_smooth: true }, Bound::Window(47, WINDOW_US)],
    heaviest: 3,
};
pub const SLOTS: Case =
    Case { name: "concurrency", policies: &[|| Policy::concurrency(5)], bounds: &[Bound::AtOnce(5)], heaviest: 2 };
pub const COMPOSITE: Case = Case {
    name: "composite",
    policies: &[
        || Policy::rate(24, WINDOW),
        || Policy::token_bucket(24, WINDOW, 12),
        || Policy::fixed_window(24, WINDOW),
        || Policy::concurrency(5),
    ],
    bounds: &[
        Bound::Window(24, WINDOW_US),
        Bound::Flow(24, WINDOW_US, 12),
        Bound::Aligned { limit: 24, us: WINDOW_US, is_smooth: false },
        Bound::AtOnce(5),
    ],
    heaviest: 3,
};

pub const FAMILY: &[Case] = &[RATE, SLICED, DELAY, STRICT, ADAPTIVE, TOKENS, LEAKY, FIXED, COUNTER, SLOTS, COMPOSITE];

/// Waits for a start. The callback receives the result of each step.
pub fn acquire_with(
    limiter: &dyn Limiter,
    (key, weight): (&str, u64),
    timeout: Option<Duration>,
    mut stepping: impl FnMut(Option<&Step>),
) -> Option<RawPermit> {
    let mut seat = Seat::new(Waiter::new(key, weight).timeout(timeout));
    loop {
        stepping(None);
        let step = seat.step(limiter).unwrap();
        stepping(Some(&step));
        match step {
            Step::Admitted(permit) => return Some(permit),
            Step::Sleep(_) => seat.sleep(limiter, Duration::MAX),
            Step::Expired(_) => return None,
        }
    }
}

/// Takes a place and starts with it when its time has come, or returns it. Calls `presenting` before each call that
/// could be the start.
pub fn start_with_a_place(
    limiter: &dyn Limiter,
    (key, weight): (&str, u64),
    patience: Duration,
    mut presenting: impl FnMut(),
) -> Option<RawPermit> {
    let began = Instant::now();
    let Reserved::Place { mut place, mut after } = limiter.reserve(key, weight, Some(patience), None).unwrap() else {
        return None;
    };
    while began.elapsed() < 2 * patience {
        std::thread::sleep(after);
        presenting();
        match limiter.present(&place).unwrap() {
            Presented::Started(permit) => return Some(permit),
            Presented::Wait { place: next, after: then } => (place, after) = (next, then.min(patience)),
        }
    }
    limiter.cancel(&place).unwrap();
    None
}
