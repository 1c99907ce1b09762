//! Buckets against one that keeps every start, and between threads.

use super::*;
use crate::Algorithm;

/// A bucket that keeps every start, with its stamp. It counts in its own parts where the rate is exact.
struct Plain {
    bucket: Bucket,
    /// Parts per grain of time, and the cost of a unit.
    n: i128,
    p: i128,
    grain: i128,
    starts: Vec<(i128, i128)>,
}

impl Plain {
    fn new(bucket: Bucket) -> Plain {
        let Bucket { rate, period, n, p, shift, .. } = bucket;
        let is_exact = shift == 0 && u128::from(p) * u128::from(rate) == u128::from(period) * u128::from(n);
        let (n, p) = if is_exact { (rate, period) } else { (n, p) };
        Plain { bucket, n: n.into(), p: p.into(), grain: 1 << shift, starts: Vec::new() }
    }

    fn floor(&self, tick: Tick) -> i128 {
        i128::from(tick) / self.grain * self.n
    }

    fn ceil(&self, tick: Tick) -> i128 {
        (i128::from(tick) + self.grain - 1) / self.grain * self.n
    }

    /// Returns the first tick at or after this moment.
    fn tick(&self, moment: i128) -> Tick {
        ((moment.max(0) + self.n - 1) / self.n * self.grain).try_into().unwrap_or(Tick::MAX)
    }

    /// Returns when it has recovered: for all starts from some moment on, when their cost has been refilled since.
    fn recovered(&self) -> i128 {
        let (mut cost, mut recovered) = (0, 0);
        for (stamp, units) in self.starts.iter().rev() {
            cost += units * self.p;
            recovered = recovered.max(stamp + cost);
        }
        recovered
    }

    fn remaining(&self, now: Tick) -> u64 {
        let (behind, size) = ((self.recovered() - self.floor(now)).max(0), i128::from(self.bucket.size));
        let most = if self.bucket.is_leaky {
            if behind == 0 { size } else { 0 }
        } else {
            size - (behind + self.p - 1) / self.p
        };
        most.max(0) as u64
    }

    /// Returns when a start without a wait could be, and when the request would be admitted.
    fn decide(&self, ask: &Ask, now: Tick) -> (Tick, Tick) {
        let (size, weight) = (i128::from(self.bucket.size), i128::from(ask.weight));
        let recovered = self.recovered();
        let slack = if self.bucket.is_leaky { 0 } else { (size - weight) * self.p };
        let turn = self.tick(recovered - slack).max(ask.gate);
        let wait = ask.patience.min(MAX_TIME);
        if turn <= now {
            return (turn, turn);
        }
        // The starts that wait with it, and the graces of those before it.
        let ahead = recovered + weight * self.p + (weight - size) * self.ceil(ask.grace);
        let behind_a_start = ahead - (size + 1) * self.p <= self.floor(now);
        if !self.bucket.is_leaky || behind_a_start || ahead - size * self.p <= self.floor(ask.gate) {
            return (turn, turn.saturating_sub(wait));
        }
        (turn, self.tick(ahead - (size + 1) * self.p).max(turn.saturating_sub(wait)))
    }

    fn add(&mut self, stamp: Tick, units: u64) {
        self.starts.push((self.ceil(stamp), units.into()));
    }

    fn forget(&mut self, now: Tick) {
        if self.recovered() <= self.floor(now) {
            self.starts.clear();
        }
    }
}

/// Asserts that no stretch of time holds more than the size plus the refill in that time; a leaky bucket drips.
pub(crate) fn assert_kept(bucket: Bucket, mut starts: Vec<(Tick, u64)>) {
    starts.sort();
    let Plain { n, p, grain, .. } = Plain::new(bucket);
    let mut recovered = 0;
    for (at, units) in starts {
        let (now, cost) = (i128::from(at) * n, i128::from(units) * p * grain);
        let slack = if bucket.is_leaky { 0 } else { i128::from(bucket.size) * p * grain - cost };
        assert!(recovered <= now + slack, "{bucket:?}: {} too much at {at}", recovered - now - slack);
        recovered = recovered.max(now) + cost;
    }
}

/// 110 buckets and 90 random ones, with 2,000 calls each.
#[test]
fn random_calls_match_a_bucket_that_keeps_every_start() {
    let mut random = Random::seeded(seed());
    let mut all = buckets();
    while all.len() < 200 {
        let (rate, period, size) = (random.scaled(MAX - 1), random.scaled(MAX_TIME - 1), random.scaled(MAX - 1));
        all.push(Bucket::new(1 + rate, 1 + period, 1 + size, random.below(2) == 0));
    }
    let mut total = 0;
    for (round, bucket) in all.into_iter().enumerate() {
        let key = Key::new(bucket);
        let (mut plain, mut happened, mut admitted) = (Plain::new(bucket), Vec::new(), 0);
        let forces = round % 3 == 0;
        let unit = bucket.tick(bucket.cost(1)).min(DAY);
        let longest = bucket.memory().min(DAY);
        for call in 0..2_000 {
            let before = key.now.get();
            let pause = match random.below(10) {
                0 => random.scaled(longest),
                1..4 => random.scaled(unit),
                4 => unit,
                _ => 0,
            };
            let now = before.floor + pause;
            let now = Now { floor: now, ceil: before.ceil.max(now + random.below(2)) };
            key.now.set(now);
            plain.forget(now.floor);
            if random.below(20) == 0 {
                key.rewrite(|_| {});
            }
            let weight = 1 + random.scaled(bucket.size - 1);
            let mut ask = Ask::now(&[], weight, 0);
            if random.below(3) == 0 {
                ask.patience = if random.below(4) == 0 { Tick::MAX } else { random.scaled(3 * longest) };
                ask.grace = random.below(2) * random.scaled(unit);
                ask.reserve = random.below(2) == 0;
            }
            if random.below(10) == 0 {
                ask.gate = now.floor - unit.min(START) + random.scaled(2 * unit);
            }
            if forces && random.below(50) == 0 {
                ask = Ask { force: true, ..Ask::now(&[], 1, 0) };
            }
            let about = || format!("round {round}, call {call}: {ask:?} of {bucket:?} at {now:?}");
            let view = loop {
                match key.meter().view(&ask, || now) {
                    Ok(view) => break view,
                    Err(Sealed) => drop(key.rewrite(|_| {})),
                }
            };
            let (turn, then) = plain.decide(&ask, now.floor);
            let remaining = if ask.gate > now.floor { 0 } else { plain.remaining(now.floor) };
            let empty = plain.tick(plain.recovered()).max(ask.gate);
            // A past moment is only known to be past.
            let known = |tick: Tick| tick.max(now.floor);
            assert_eq!(
                (known(view.ready), known(view.empty), view.remaining),
                (known(turn), known(empty), remaining),
                "{}",
                about()
            );
            let answer = key.claim_with(|a| *a = Ask { windows: a.windows, ..ask }, ask.weight);
            if let Some(taken @ Taken { stamp, .. }) = answer.taken {
                let is_place = taken.is_place();
                admitted += 1;
                assert!(then <= now.floor || ask.force, "admitted: {}", about());
                let waits = ask.reserve || turn > now.floor && !ask.force;
                let at = if ask.force { now.ceil } else { now.ceil.max(turn) };
                assert_eq!((is_place, stamp), (waits, if waits { at + ask.grace } else { at }), "{}", about());
                assert!(ask.force || known(answer.ready) == known(turn), "{}", about());
                plain.add(stamp, ask.weight);
                happened.push((at + random.scaled(stamp - at), ask.weight));
            } else {
                assert!(!ask.force);
                let far =
                    plain.recovered().max(plain.ceil(known(turn).saturating_add(ask.grace))) - plain.floor(now.floor);
                let is_far = far * i128::from(bucket.p) / plain.p + bucket.cost(ask.weight) > USED;
                assert!(then > now.floor || is_far, "denied: {}", about());
                assert!(
                    is_far || [turn, then].contains(&answer.ready),
                    "{} instead of {turn}, {then}: {}",
                    answer.ready,
                    about()
                );
            }
        }
        total += admitted;
        if !forces {
            assert_kept(bucket, happened);
        }
    }
    println!("{total} of 400,000 were admitted");
    assert!((40_000..360_000).contains(&total));
}

/// A retry succeeds at the returned time, and not a tick earlier, whatever its patience.
#[test]
fn random_denials_are_exact() {
    let mut random = Random::seeded(seed());
    for bucket in buckets() {
        let key = Key::new(bucket);
        for _ in 0..200 {
            let weight = 1 + random.scaled(bucket.size - 1);
            let patience = random.below(2) * random.scaled(MAX_TIME);
            let grace = random.below(2) * random.scaled(S);
            let gate = key.now.get().floor + random.below(2) * random.scaled(S);
            let change = |ask: &mut Ask| (ask.patience, ask.grace, ask.gate) = (patience, grace, gate);
            let answer = key.claim_with(change, weight);
            // Patience has ended by the returned turn; only without patience is it the time to retry.
            if answer.taken.is_none() && patience == 0 && answer.ready < START + 1_000 * DAY {
                key.assert_exact(change, weight);
            }
        }
    }
}

/// Threads race on a clock that each of them moves, while the bucket is rewritten.
#[test]
fn threads_never_exceed_a_bucket() {
    for bucket in [
        Bucket::new(1_000, 10 * MS, 500, false),
        Bucket::new(7, 3, 100, false),
        Bucket::new(1_000, 10 * MS, 500, true),
        Bucket::new(999_999_937, S, 5_000, false),
        Bucket::new(1, MAX_TIME, MAX, false),
    ] {
        let (cells, time) = (Cells::default(), AtomicU64::new(START));
        let clock = || at(time.load(SeqCst));
        let starts = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (starts, cells, clock, time) = (&starts, &cells, &clock, &time);
                scope.spawn(move || {
                    let mut random = Random::seeded(thread);
                    let mut mine = Vec::new();
                    for round in 0..40_000 {
                        if random.below(4) == 0 {
                            time.fetch_add(random.scaled(bucket.tick(bucket.cost(20)).min(DAY)), SeqCst);
                        }
                        if thread == 0 && round % 100 == 0 {
                            cells.meter(&bucket, 0).seal();
                            let now = clock();
                            let history = cells.meter(&bucket, 0).history(now);
                            // Cells that had too many lives would be replaced by others.
                            let young = cells.word.load(Relaxed) >> 1 < YOUNG as u64;
                            assert!(young && cells.live(bucket, &history, now));
                        }
                        let weight = 1 + random.scaled((bucket.size / 4).min(2_000));
                        let ask = Ask { patience: random.below(2) * 20 * MS, ..Ask::now(&[], weight, 0) };
                        let meter = cells.meter(&bucket, 0);
                        if meter.number == CLOSED {
                            continue;
                        }
                        if let Ok(Answer { now, ready, taken: Some(_) }) = meter.claim(&ask, clock) {
                            mine.push((now.ceil.max(ready), weight));
                        }
                    }
                    starts.lock().unwrap().extend(mine);
                });
            }
        });
        let starts = starts.into_inner().unwrap();
        assert!(starts.len() > 500, "{} of {bucket:?}", starts.len());
        assert_kept(bucket, starts);
    }
}
