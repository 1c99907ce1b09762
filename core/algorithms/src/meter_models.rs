//! Models of buckets, for loom and shuttle: see `log_models.rs`.

use super::*;
use crate::Algorithm;
use crate::atomic::AtomicU64 as Cell;
use crate::models::{Arc, model, thread};

/// The cost of a unit, in ticks.
const P: Tick = 10;
const START: Tick = 100;

struct Cells {
    word: Cell,
    base: Cell,
    life: Cell,
    era: Cell,
    logged: Cell,
    last: Cell,
    returned: Cell,
    carried: Cell,
    time: Cell,
    bucket: Bucket,
}

type Starts = Vec<(Tick, u64)>;

impl Cells {
    fn new(bucket: Bucket) -> Arc<Cells> {
        let [word, base, life, era, logged, last, returned, carried] = std::array::from_fn(|_| Cell::new(0));
        Arc::new(Cells { word, base, life, era, logged, last, returned, carried, time: Cell::new(START), bucket })
    }

    fn token(size: u64) -> Arc<Cells> {
        Cells::new(Bucket::new(1, P, size, false))
    }

    fn meter_in(&self, number: u64) -> Meter<'_> {
        let Cells { word, base, life, era, logged, last, returned, carried, bucket, .. } = self;
        Meter { word, base, life, number, era, logged, last, returned, carried, born: 0, bucket }
    }

    fn meter(&self) -> Meter<'_> {
        self.meter_in(self.life.load(Acquire))
    }

    /// Opens the cells as a caller that finds a key does: cells that are being written are not read.
    fn open(&self) -> Result<Meter<'_>, Sealed> {
        let meter = self.meter();
        if meter.number == CLOSED { Err(Sealed) } else { Ok(meter) }
    }

    fn now(&self) -> Now {
        let tick = self.time.load(Acquire);
        Now { floor: tick, ceil: tick }
    }

    fn pass(&self, time: Tick) {
        self.time.fetch_add(time, AcqRel);
    }

    fn claim_in(&self, meter: &Meter, weight: u64, patience: Tick) -> Result<Answer, Sealed> {
        meter.claim(&Ask { patience, ..Ask::now(&[], weight, 0) }, || self.now())
    }

    fn ask(&self, weight: u64, patience: Tick) -> Result<Answer, Sealed> {
        self.claim_in(&self.open()?, weight, patience)
    }

    /// Returns when it starts, and its weight.
    fn claim(&self, weight: u64, patience: Tick) -> Result<Option<(Tick, u64)>, Sealed> {
        let answer = self.ask(weight, patience)?;
        Ok(answer.taken.map(|_| (answer.now.ceil.max(answer.ready), weight)))
    }

    /// Takes everything that is left, and asserts that no more is left than should be.
    fn take_the_rest(&self, starts: &mut Starts) {
        while let Some(start) = self.claim(1, 0).unwrap() {
            starts.push(start);
        }
        starts.sort();
        let recovered = starts.iter().fold(0, |recovered, (at, weight)| recovered.max(*at) + weight * P);
        let left = (self.now().floor + self.bucket.size * P).saturating_sub(recovered) / P;
        assert_eq!(left, 0, "free units could not be taken: {starts:?}");
    }

    /// Begins another life with this history.
    fn live(&self, history: &History) {
        let number = self.life.swap(CLOSED, AcqRel) + 1;
        let base = self.meter_in(CLOSED).write(history, self.now()).unwrap();
        // A swap, because loom does not know that a store after another thread's compare-and-swap is the later one.
        self.base.swap(base, AcqRel);
        self.life.store(number, Release);
    }

    /// Continues with the contents of `from`.
    fn take_over(&self, from: &Cells, edit: impl Fn(&mut History)) {
        from.meter().seal();
        let mut history = from.meter().history(from.now());
        edit(&mut history);
        self.time.fetch_max(from.time.load(Acquire), AcqRel);
        self.live(&history);
    }
}

/// Asserts that no stretch of time holds more than the size plus the refill in that time; a leaky bucket drips.
fn assert_kept(bucket: Bucket, mut starts: Starts) {
    starts.sort();
    let (mut recovered, cost) = (0, bucket.period / bucket.rate);
    for (at, weight) in &starts {
        let slack = if bucket.is_leaky { 0 } else { (bucket.size - weight) * cost };
        assert!(recovered <= at + slack, "too much by {at}: {starts:?}");
        recovered = recovered.max(*at) + weight * cost;
    }
}

/// Two threads with these weights, `rounds` each, on used or unused cells. This much time passes before each round of
/// the first. Then the rest is taken.
fn race(size: u64, weights: [u64; 2], rounds: u64, pause: Tick, is_used: bool) {
    model(move || {
        let cells = Cells::token(size);
        let mut starts: Starts = Vec::new();
        if is_used {
            starts.extend(cells.claim(1, 0).unwrap());
        }
        let other = cells.clone();
        let other = thread::spawn(move || -> Starts {
            (0..rounds).filter_map(|_| other.claim(weights[1], 0).unwrap()).collect()
        });
        for _ in 0..rounds {
            cells.pass(pause);
            starts.extend(cells.claim(weights[0], 0).unwrap());
        }
        starts.extend(other.join().unwrap());
        cells.take_the_rest(&mut starts);
        assert_kept(cells.bucket, starts);
    });
}

#[test]
fn metered_starts() {
    race(3, [1, 1], 2, 0, true);
}

#[test]
fn metered_starts_of_different_weights() {
    race(5, [2, 3], 2, 0, true);
}

#[test]
fn metered_starts_while_units_come_back() {
    race(2, [1, 2], 2, P, true);
}

#[test]
fn the_first_metered_starts() {
    race(3, [1, 2], 1, 3, false);
}

/// Turns do not overlap, and the number of waiters is bounded.
#[test]
fn metered_waiters_queue() {
    model(|| {
        let cells = Cells::new(Bucket::new(1, P, 2, true));
        let other = cells.clone();
        let other = thread::spawn(move || [other.claim(1, 1_000).unwrap(), other.claim(1, 1_000).unwrap()]);
        let mut starts: Starts = cells.claim(1, 1_000).unwrap().into_iter().collect();
        starts.extend(cells.claim(1, 1_000).unwrap());
        starts.extend(other.join().unwrap().into_iter().flatten());
        assert_eq!(starts.len(), 3, "one starts and two wait: {starts:?}");
        assert_kept(cells.bucket, starts);
    });
}

/// A denial's `ready` is exact: other callers can only make it later, so one tick earlier no units are free.
#[test]
fn a_metered_denial_does_not_exaggerate() {
    model(|| {
        let cells = Cells::token(2);
        let other = cells.clone();
        cells.claim(2, 0).unwrap().unwrap();
        let other = thread::spawn(move || {
            other.pass(P);
            let _ = other.claim(1, 0).unwrap();
        });
        let answer = cells.ask(1, 0).unwrap();
        other.join().unwrap();
        if answer.taken.is_none() {
            cells.time.store(answer.ready - 1, Release);
            assert_eq!(cells.claim(1, 0).unwrap(), None, "admitted before {}", answer.ready);
        }
    });
}

/// A start is in the copy, or was refused.
#[test]
fn no_metered_start_is_lost_in_a_rewrite() {
    model(|| {
        let (cells, copy) = (Cells::token(2), Cells::token(2));
        let other = cells.clone();
        let claimant = thread::spawn(move || other.claim(2, 0).ok().flatten());
        copy.take_over(&cells, |_| {});
        let mut starts: Starts = Vec::new();
        while let Some(start) = copy.claim(1, 0).unwrap() {
            starts.push(start);
        }
        starts.extend(claimant.join().unwrap());
        assert_eq!(starts.iter().map(|start| start.1).sum::<u64>(), 2, "{starts:?}");
    });
}

/// The cells have another life, of the same key: a caller that began in the first life must not act on the third.
#[test]
fn a_metered_start_does_not_survive_a_rewrite() {
    model(|| {
        // A unit costs a tick, so that words could repeat.
        let bucket = Bucket::new(1, 1, 1, false);
        let (cells, copy) = (Cells::new(bucket), Cells::new(bucket));
        let mut starts: Starts = cells.claim(1, 0).unwrap().into_iter().collect();
        cells.pass(1);
        // It sees free units. By the time it claims, a start that only the next lives know has taken them.
        let other = cells.clone();
        let claimant = thread::spawn(move || other.claim(1, 0).ok().flatten());
        copy.take_over(&cells, |_| {});
        starts.extend(copy.claim(1, 0).unwrap());
        cells.take_over(&copy, |_| {});
        starts.extend(cells.claim(1, 0).unwrap());
        starts.extend(claimant.join().unwrap());
        assert_kept(bucket, starts);
    });
}

/// The cells belong to another key by now: a claim in flight does not charge it, even if they were untouched.
fn a_start_in_flight_does_not_reach_the_next_key(is_used: bool) {
    model(move || {
        let cells = Cells::token(1);
        if is_used {
            cells.claim(1, 0).unwrap().unwrap();
            cells.pass(P);
        }
        let other = cells.clone();
        let life = cells.life.load(Acquire);
        let claimant = thread::spawn(move || {
            other.claim_in(&other.meter_in(life), 1, 0).is_ok_and(|answer| answer.taken.is_some())
        });
        cells.meter().seal();
        if cells.meter().is_idle(cells.now()) {
            cells.live(&History::default());
            assert!(!claimant.join().unwrap(), "it started on a forgotten key");
            assert!(cells.claim(1, 0).unwrap().is_some(), "the next key was charged for it");
            assert_eq!(cells.claim(1, 0), Ok(None));
        } else {
            assert!(claimant.join().unwrap());
        }
    });
}

#[test]
fn a_metered_start_in_flight_does_not_reach_the_next_key() {
    a_start_in_flight_does_not_reach_the_next_key(true);
}

#[test]
fn the_first_metered_start_does_not_reach_the_next_key() {
    a_start_in_flight_does_not_reach_the_next_key(false);
}

/// A place is taken back while another is taken behind it, which keeps its time.
#[test]
fn a_metered_place_is_not_given_away_twice() {
    model(|| {
        let bucket = Bucket::new(1, P, 5, true);
        let (cells, copy) = (Cells::new(bucket), Cells::new(bucket));
        let mut starts: Starts = cells.claim(1, 0).unwrap().into_iter().collect();
        let place = cells.ask(1, 1_000).unwrap().taken.unwrap();
        let other = cells.clone();
        let waiter = thread::spawn(move || other.claim(1, 1_000).ok().flatten());
        let start = StartId { ticket: place.ticket, stamp: place.stamp, weight: 1 };
        copy.take_over(&cells, |history| bucket.take_back(history, start, place.ahead, 1));
        starts.extend(copy.claim(1, 1_000).unwrap());
        starts.extend(waiter.join().unwrap());
        assert_kept(bucket, starts);
    });
}
