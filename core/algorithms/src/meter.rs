//! Token buckets and leaky buckets: a rate, kept in one word, lock-free, never exceeded.
//!
//! # Shape
//!
//! A bucket is a moment: when it will have recovered from everything that was started (the *theoretical arrival time*
//! of the generic cell rate algorithm). A start of weight `w` moves that moment on by `w` times the period of the rate.
//! Moments are counted in fractions of a microsecond of which a unit costs a whole number ([`Bucket`]), so nothing is
//! ever rounded. They are counted from a `base`, so that they fit into a word.
//!
//! ```text
//!         63                            1     0
//! word    [ when it has recovered − base ][ seal ]
//! base    [ ticks, or 2^shift of them; signed ]    0: the cells are unused; the first caller sets it
//! life    [ which life of these cells this is ]
//! ```
//!
//! # Deciding
//!
//! Let `T` be that moment, `t` the current time, and `p` the cost of a unit:
//!
//! * A *token bucket* may be behind by its size `S = size · p`. A start of weight `w` is ready when `T + w·p − S ≤ t`.
//! * A *leaky bucket* is never behind: a start is ready when `T ≤ t`. A start that has to wait takes its turn, while
//!   with it at most `size` units wait ([`Bucket::queue`]).
//!
//! Then `T` becomes `max(T, stamp) + w·p`, by one compare-and-swap. That is the whole admission: before it nothing was
//! written, after it nothing is left to do. The stamp is the last moment at which the start may happen: now, rounded
//! up, or for a start in the future (a *place*) the end of its grace. A denial writes nothing.
//!
//! # Correctness
//!
//! 1. *Words do not repeat.* Within a life each word is larger than the one before, by a unit at least. So if the word
//!    is still the one that was read, nothing was admitted in between. The compare-and-swap proves it.
//! 2. *Starts keep their distance.* Take any starts of a token bucket. The first was admitted with stamp `s`, and the
//!    last was ready at `r`. When the last was decided, `T` was at least `s` plus the cost of the others, and with its
//!    own cost at most `r + S`. So together they cost at most `S + r − s`: no stretch of time holds more than `size`
//!    plus what the rate gives in that time. Likewise, a start in a leaky bucket is ready only when all earlier starts
//!    have been paid for.
//! 3. *Lives do not mix.* The cells are sealed (a bit of the word) and reused, and `life` is closed in between. The
//!    next life's `base` is chosen so that its words are larger than all that these cells ever held, so a stalled
//!    compare-and-swap fails. A reader of anything of another life sees at the end that `life` has changed.
//! 4. *A life's base does not change.* It is set once where it is 0, and is 0 only in cells that were never written. It
//!    is set before the word is. So a caller that finds base 0 together with a word only has to read again.
//!
//! # Orderings
//!
//! * The word is read with `Acquire` and changed with `AcqRel`. A caller that finds a nonzero word and a zero base sees
//!   the base when it reads again, because the base was set (`AcqRel`) before. A failed compare-and-swap is `Relaxed`:
//!   everything is read again.
//! * `last` is raised (`AcqRel`) before the compare-and-swap that admits the place, which releases it to the caller
//!   that seals.
//! * `logged`, `last`, `returned` and the word of a new life are stored with `Release` while `life` is [`CLOSED`], the
//!   word last of them; then `base`, then `life`. All are read with `Acquire`, and `life` after them. So a reader of
//!   anything new finds it closed, or another life. The seal is in the word itself, which the admission's
//!   compare-and-swap proves.
//!
//! Source: the generic cell rate algorithm of ATM traffic management (ITU-T I.371, virtual scheduling).

use super::bucket::{Bucket, divide, divide_up};
use super::log::{Answer, Ask, CLOSED, SETTLED, STARTED, Stage, StartId, Taken, View, put};
use super::{Algorithm, History, Rest, Sealed, Start, Tries};
use crate::atomic::{AtomicU64, *};
use crate::time::{MAX_TIME, Now, Tick};
use std::hint;

const SEAL: u64 = 1;

/// How often the clock is read until the current microsecond ends. (The clocks of models and tests stand still.)
const SPINS: u32 = if cfg!(model) { 0 } else { 1_000 };

/// The last moment that a word can hold, relative to its base.
const LAST: i128 = (1 << 63) - 1;
/// From here on a life has to end; the rest is for starts that are being admitted now.
const USED: i128 = 1 << 62;
/// Up to here cells can begin another life.
const YOUNG: i128 = 1 << 61;
/// How far behind a rewritten bucket can be, in `n` parts: further than through places, because starts may have been
/// forced.
const DEEPEST: i128 = 1 << 62;

/// In `Taken::ahead`: the bucket had recovered, and this long before the stamp of the place (or before now).
pub const IDLE: u64 = 1 << 47;
/// The most that the total of what was given back can be. From there on it says nothing any more.
const MAX_RETURNED: u64 = (1 << 46) - 1;

/// One key's bucket, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub struct Meter<'a> {
    /// The moment at which it has recovered: see the head of this file.
    pub word: &'a AtomicU64,
    /// The base of a word.
    pub base: &'a AtomicU64,
    /// The number of the cells' current life.
    pub life: &'a AtomicU64,
    /// The number of the intended life. Not [`CLOSED`], except for [`Meter::write`].
    pub number: u64,
    /// The current era. It changes when everything is forgotten.
    pub era: &'a AtomicU64,
    /// The word's moment, as far as the ledger has it; signed.
    pub logged: &'a AtomicU64,
    /// An upper bound of the stamps of all places, in any life.
    pub last: &'a AtomicU64,
    /// The total that was ever given back, in `n` parts; it does not change within a life.
    pub returned: &'a AtomicU64,
    /// Until when it recovers from what it took over from a bucket of another policy: relative to the base, signed,
    /// doubled, plus 1. 0: it took nothing over.
    pub carried: &'a AtomicU64,
    /// The bucket counts as emptied at this moment: 0 in a new one, the moment of the loss where an earlier state was
    /// lost.
    pub born: Tick,
    /// Its rate and size.
    pub bucket: &'a Bucket,
}

/// The values that were read.
struct Seen {
    word: u64,
    /// The moment of its base.
    origin: i128,
    /// When it has recovered.
    recovered: i128,
    now: Now,
}

#[cfg(not(model))]
static UNTOUCHED: AtomicU64 = AtomicU64::new(0);

impl<'a> Meter<'a> {
    /// Returns the bucket of an unused key. For reading only.
    #[cfg(not(model))]
    pub fn untouched(bucket: &'a Bucket, born: Tick) -> Meter<'a> {
        let [word, base, life, era, logged, last, returned, carried] = [&UNTOUCHED; 8];
        Meter { word, base, life, number: 0, era, logged, last, returned, carried, born, bucket }
    }

    /// Checks that these cells still have the intended life. Call this last, before anything that was read is trusted.
    #[inline(always)]
    fn is_alive(&self) -> Result<(), Sealed> {
        if self.life.load(Acquire) == self.number { Ok(()) } else { Err(Sealed) }
    }

    /// Returns when the bucket will have recovered from everything unknown.
    #[inline(always)]
    fn lost(&self) -> i128 {
        if self.born == 0 { 0 } else { self.bucket.ceil(self.born) + self.bucket.cost(self.bucket.size) }
    }

    /// Returns the contents of the cells, sealed or not: the word, the moment of its base, and the word's moment. 0:
    /// the cells are unused.
    #[inline(always)]
    fn read(&self) -> (u64, i128, i128) {
        let mut tries = Tries::default();
        loop {
            let base = self.base.load(Acquire);
            let word = self.word.load(Acquire);
            let origin = self.bucket.origin(base);
            match (base, word >> 1) {
                (0, 0) => return (word, 0, 0),
                // (4) The base was set since.
                (0, _) if tries.again().is_ok() => {}
                (0, moment) => return (word | SEAL, origin, origin + i128::from(moment)),
                (_, moment) => return (word, origin, origin + i128::from(moment)),
            }
        }
    }

    #[inline(always)]
    fn look(&self, clock: impl Fn() -> Now) -> Result<Seen, Sealed> {
        let (word, origin, recovered) = self.read();
        if word & SEAL != 0 {
            return Err(Sealed);
        }
        Ok(Seen { word, origin, recovered: recovered.max(self.lost()), now: clock() })
    }

    /// Sets the base of unused cells.
    #[inline(always)]
    fn begin(&self, clock: impl Fn() -> Now) {
        if self.base.load(Acquire) == 0 {
            // (4) If this fails, another caller has begun, or this is another life.
            let _ = self.base.compare_exchange(0, self.bucket.first_base(clock()), AcqRel, Relaxed);
        }
    }

    /// Returns the earliest moment for a start; any past moment means now.
    #[inline(always)]
    fn ready(&self, seen: &Seen, ask: &Ask) -> Tick {
        // Weight 0 needs no free units.
        let turn = seen.recovered - self.bucket.slack(ask.weight);
        if ask.weight == 0 || turn <= self.bucket.floor(seen.now.floor) {
            return ask.gate;
        }
        self.bucket.tick(turn).max(ask.gate)
    }

    #[inline(always)]
    fn deny(&self, now: Now, ready: Tick) -> Result<Answer, Sealed> {
        self.is_alive()?;
        Ok(Answer { now, ready, taken: None })
    }

    /// Returns until when a leaky bucket's queue is too full for this start to wait in it. `None`: it may wait.
    #[inline]
    fn when_it_may_wait(&self, seen: &Seen, ask: &Ask) -> Option<Tick> {
        let bucket = self.bucket;
        let from = seen.recovered - bucket.queue(ask.weight, ask.grace);
        // At a gate no start has just happened.
        let reached = bucket.floor(seen.now.floor).max(bucket.floor(ask.gate) - bucket.cost(1));
        (bucket.is_leaky && !ask.again && from > reached).then(|| bucket.tick(from))
    }

    /// Performs the admission.
    #[inline(always)]
    fn swap(&self, was: u64, word: u64) -> bool {
        // (1) If the word is unchanged, nothing was admitted since it was read.
        self.word.compare_exchange(was, word, AcqRel, Relaxed).is_ok()
    }

    /// Reads the state, and changes nothing.
    pub fn view(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<View, Sealed> {
        let seen = self.look(clock)?;
        self.is_alive()?;
        Ok(self.view_at(&seen, ask))
    }

    /// Returns the earliest moment for a start, and the time of the reading.
    #[inline(always)]
    pub fn ready_at(&self, ask: &Ask, clock: impl Fn() -> Now) -> Result<(Tick, Tick), Sealed> {
        let seen = self.look(clock)?;
        self.is_alive()?;
        Ok((self.ready(&seen, ask), seen.now.floor))
    }

    #[inline]
    fn view_at(&self, seen: &Seen, ask: &Ask) -> View {
        let now = seen.now.floor;
        let is_open = ask.gate <= now;
        let remaining = if is_open { self.bucket.remaining(seen.recovered, self.bucket.floor(now)) } else { 0 };
        let empty = self.bucket.tick(seen.recovered).max(ask.gate);
        View { now, ready: self.ready(seen, ask), remaining, empty }
    }

    /// Returns whether the bucket has recovered. Another caller may start right after.
    pub fn is_idle(&self, now: Now) -> bool {
        self.read().2.max(self.lost()) <= self.bucket.floor(now.floor) && self.is_alive().is_ok()
    }

    /// Returns whether this place still counts. The holder knows that it was not used.
    pub fn present(&self, place: StartId) -> Result<bool, Sealed> {
        let era = self.era.load(Acquire);
        if self.is_sealed() {
            return Err(Sealed);
        }
        self.is_alive()?;
        Ok(place.ticket == era)
    }

    /// Returns how many units of those handed out up to this mark ([`Taken::end`]) are missing from the ledger, and
    /// would still count.
    #[inline(always)]
    pub fn unwritten(&self, end: u64, now: Now) -> u64 {
        let logged = i128::from(self.logged.load(Acquire) as i64);
        // Rounded up: a later reader of the ledger reads it after now.
        let now = self.bucket.ceil(now.ceil) - self.bucket.origin(self.base.load(Acquire));
        self.bucket.units(i128::from(end) - logged.max(now))
    }

    // ---- for callers that may rewrite these cells ----

    /// Returns what is missing from the ledger, as at most one start, and the value for `logged` when the ledger has
    /// it.
    ///
    /// The stamp of such a start is the moment at which its units begin to come back, which may lie in the future. So
    /// the start alone determines when the bucket will have recovered, to less than a tick, even if earlier starts are
    /// forgotten. If they are present the result is the same: it follows them.
    pub fn unlogged(&self, now: Now) -> (Vec<Start>, u64) {
        let (bucket, (word, origin, recovered)) = (self.bucket, self.read());
        let new = recovered - (origin + i128::from(self.logged.load(Acquire) as i64));
        let behind = recovered - bucket.ceil(now.ceil);
        if new <= 0 || behind <= 0 {
            return (Vec::new(), word >> 1);
        }
        // Whole units are new, except for what was rounded in another life.
        let units = bucket.units(behind).min((new / bucket.cost(1)) as u64).clamp(1, bucket.size);
        let stamp = bucket.tick(recovered - bucket.cost(units));
        (vec![Start { stamp, units, state: STARTED, id: u64::MAX, is_logged: false }], word >> 1)
    }

    /// Ends this life: from here on every call on it returns [`Sealed`]. Sealing again is a no-op, also in a later
    /// life.
    pub fn seal(&self) {
        loop {
            let word = self.word.load(Acquire);
            if word & SEAL != 0 || self.is_alive().is_err() {
                return;
            }
            // (1) An admission compares the whole word: after this, none succeeds.
            if self.word.compare_exchange(word, word | SEAL, AcqRel, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Returns whether it is sealed.
    pub fn is_sealed(&self) -> bool {
        self.word.load(Acquire) & SEAL != 0
    }

    /// Returns whether every caller has to wait until this is written elsewhere: it is sealed, or its word cannot count
    /// further.
    pub fn has_to_move(&self, now: Now) -> bool {
        let (word, origin, _) = self.read();
        let has_begun = self.base.load(Acquire) != 0;
        word & SEAL != 0 || has_begun && is_used_up(self.bucket, word, origin, now)
    }

    /// Returns what a sealed bucket still counts: as many whole units, in the ledger or not, as make it recover as late
    /// as it does or later, and by how much later. `now` is a time after the sealing.
    pub fn history(&self, now: Now) -> History {
        let (bucket, (_, origin, recovered)) = (self.bucket, self.read());
        let from = bucket.floor(now.floor);
        let behind = (recovered - from).max(0);
        let logged = origin + i128::from(self.logged.load(Acquire) as i64);
        let units = bucket.units(behind);
        let unlogged = bucket.units(recovered - logged.max(bucket.ceil(now.ceil)));
        let stamp = (now.floor >> bucket.shift) << bucket.shift;
        let start = |units, is_logged| Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged };
        let mut starts = vec![start(units - unlogged, true), start(unlogged, false)];
        starts.retain(|start| start.units > 0);
        let carried = match self.carried.load(Acquire) as i64 {
            0 => 0,
            word => origin + i128::from(word >> 1),
        };
        let rest = Rest {
            spare: ((bucket.cost(units) - behind) as u64, bucket.p),
            last: self.last.load(Acquire).max(now.ceil),
            returned: self.returned.load(Acquire),
            carried,
            before: None,
            recovered: Some(recovered),
        };
        History { starts, era: self.era.load(Acquire), rest, ..History::default() }
    }

    /// Begins another life that contains these starts, in ascending order. Returns its base, to be stored in `base`
    /// before its number is stored in `life`. `None`: these cells had too many lives.
    ///
    /// Only for a caller that has these cells alone: they are zeroed, or sealed, and [`CLOSED`] before `now` was read.
    pub fn write(&self, history: &History, now: Now) -> Option<u64> {
        debug_assert!(self.number == CLOSED && history.starts.is_sorted_by_key(|start| start.stamp));
        let bucket = self.bucket;
        // (3) The words of the new life are larger than this.
        let highest = self.word.load(Acquire) >> 1;
        if i128::from(highest) > YOUNG {
            return None;
        }
        let (part, whole) = history.rest.spare;
        // The excess belongs to the first starts. A fraction of a unit means the same in any bucket.
        let mut spare = (i128::from(part) * i128::from(bucket.p)).checked_div(i128::from(whole)).unwrap_or(0);
        let mut recovered = 0;
        let mut logged = None;
        for start in history.starts.iter().filter(|start| start.units > 0) {
            if !start.is_logged {
                logged.get_or_insert(recovered - spare);
            }
            let stamp = bucket.ceil(start.stamp);
            recovered = recovered.max(stamp) + bucket.cost(start.units);
            let given = spare.min(recovered - stamp);
            recovered -= given;
            spare -= given;
        }
        let from = bucket.floor(now.floor);
        let recovered = recovered.clamp(from, from + DEEPEST * i128::from(bucket.n));
        let logged = logged.unwrap_or(recovered).min(recovered);
        // The latest base with which the word is larger than all before it. Never 0.
        let base = (recovered - i128::from(highest) - 1).div_euclid(i128::from(bucket.n));
        let base = if base == 0 { -1 } else { base };
        let origin = bucket.origin(base as u64);
        let logged = (logged - origin).max(i128::from(i64::MIN));
        self.logged.store(logged as u64, Release);
        self.last.store(history.rest.last, Release);
        self.returned.store(history.rest.returned, Release);
        // Less what was given back since.
        let carried = history.rest.carried.min(recovered);
        let has_any = carried > from;
        self.carried.store(if has_any { ((carried - origin) as u64) << 1 | 1 } else { 0 }, Release);
        put(self.word, ((recovered - origin) as u64) << 1);
        Some(base as u64)
    }
}

impl Algorithm for Meter<'_> {
    #[inline(always)]
    fn decide<const LOOK: bool>(&self, ask: &Ask, clock: impl Fn() -> Now, view: &mut View) -> Result<Answer, Sealed> {
        debug_assert!((1..=self.bucket.size).contains(&ask.weight));
        let bucket = self.bucket;
        let mut spins = 0;
        self.begin(&clock);
        loop {
            let seen = self.look(&clock)?;
            let now = seen.now;
            if is_used_up(bucket, seen.word, seen.origin, now) {
                return Err(Sealed);
            }
            let mut ready = self.ready(&seen, ask);
            if LOOK {
                *view = self.view_at(&seen, ask);
            }
            let must_wait = ready > now.floor && !ask.force;
            if must_wait && ready <= now.ceil && spins < SPINS {
                // It starts within this microsecond, to which the first start of a burst was rounded up.
                spins += 1;
                hint::spin_loop();
                continue;
            }
            if must_wait {
                let patience = ask.patience.min(MAX_TIME);
                if patience > 0
                    && let Some(queue) = self.when_it_may_wait(&seen, ask)
                {
                    ready = queue.max(ready.saturating_sub(patience));
                    return self.deny(now, ready);
                }
                if ready - now.floor > patience {
                    return self.deny(now, ready);
                }
            }
            let is_place = must_wait || ask.reserve;
            let stamp = if is_place { ready.max(now.ceil).saturating_add(ask.grace) } else { now.ceil };
            let stamped = bucket.ceil(stamp);
            let after = seen.recovered.max(stamped) + bucket.cost(ask.weight);
            let moment = after - seen.origin;
            if moment > LAST {
                // A place too far in the future.
                return self.deny(now, ready);
            }
            // The time until its units begin to come back, and the total that was given back before it.
            let behind = (seen.recovered - stamped).max(0) as u128;
            let behind = if behind == 0 { 0 } else { divide(behind, bucket.n) };
            let mut ahead = behind.saturating_add(self.returned.load(Acquire));
            let era = self.era.load(Acquire);
            self.is_alive()?;
            if is_place {
                // Before any caller can find it in the word.
                self.last.fetch_max(stamp, AcqRel);
                let idle = stamped - seen.recovered.max(bucket.floor(now.floor));
                if idle >= 0 {
                    ahead = IDLE | divide(idle as u128, bucket.n).min(IDLE - 1);
                }
            }
            let end = moment as u64;
            if self.swap(seen.word, end << 1) {
                if LOOK {
                    let left = bucket.remaining(after, bucket.ceil(now.ceil));
                    view.remaining = view.remaining.saturating_sub(ask.weight).min(left);
                    view.empty = view.empty.max(bucket.tick(after));
                }
                let taken = Some(Taken { ticket: era, end, stamp, ahead, stage: Stage::of(is_place) });
                return Ok(Answer { now, ready, taken });
            }
        }
    }
}

impl Bucket {
    /// Takes over the state of another bucket: what that bucket had taken over itself or was started since, and a debt,
    /// the latter up to its size. A bucket that was further behind waited for places, perhaps behind a gate; these are
    /// not taken over.
    pub fn take_over(&self, old: &Bucket, history: &mut History, now: Now) {
        let carried = old.units(history.rest.carried - old.floor(now.floor));
        let mut most = carried.max(old.size) + old.size;
        for start in &mut history.starts {
            start.units = start.units.min(most);
            most -= start.units;
        }
        history.starts.retain(|start| start.units > 0);
        let units = history.starts.iter().map(|start| start.units).sum();
        history.rest.carried = self.floor(now.floor) + self.cost(units);
        history.rest.recovered = None;
    }

    /// Returns whether units come back faster than in another bucket.
    pub fn is_faster(&self, other: &Bucket) -> bool {
        u128::from(self.rate) * u128::from(other.period) > u128::from(other.rate) * u128::from(self.period)
    }

    /// Takes units of a start back, out of a history that contains it. Units that have come back with time may have
    /// been used, and are not taken. `ahead` is [`Taken::ahead`], or less. An earlier bucket may have admitted the start:
    /// then units have come back as fast as the fastest earlier one gives them until it ended.
    ///
    /// The start cost `c`, at `s`, and those after it were admitted until `l`.
    ///
    /// 1. Take one of the later starts, at `t`. The starts from it on cost no more than has been counted since the
    ///    start, less `c`. So without the start the bucket recovers from them `c − (t − s)` earlier than it does now,
    ///    or before.
    /// 2. If it was behind by `b` at `s`, from earlier starts, it recovers another `b` earlier, less what was given
    ///    back of that since.
    /// 3. Hence taking back `c − (l − s − b)` is safe, and is all of the start as long as the bucket is busy.
    /// 4. If nothing was admitted after a place, and nothing was ahead of it, the bucket is what it was before, also
    ///    where the place had moved it on to its stamp ([`IDLE`]). All other places were before that.
    pub fn take_back(&self, history: &mut History, start: StartId, ahead: u64, units: u64) {
        let (before, changed) = match history.rest.before.filter(|_| start.ticket != history.era) {
            Some(before) => (before, history.changed),
            None => (*self, history.rest.last),
        };
        let moved = self.ceil(start.stamp) + self.cost(start.weight);
        let is_last = ahead & IDLE != 0 && history.rest.recovered == Some(moved) && units == start.weight;
        // Where units come back faster than they did, what was given back says less about what was ahead of the start.
        let says_nothing = ahead & IDLE != 0 || self.is_faster(&before) || history.rest.returned == MAX_RETURNED;
        let idle = i128::from(ahead & (IDLE - 1)) * i128::from(self.n);
        let ahead = if says_nothing { 0 } else { ahead };
        let History { starts, rest, .. } = history;
        let held: u64 = starts.iter().map(|start| start.units).sum();
        let (part, whole) = rest.spare;
        let behind =
            self.cost(held) - (i128::from(part) * i128::from(self.p)).checked_div(i128::from(whole)).unwrap_or(0);
        let lead = i128::from(ahead.saturating_sub(rest.returned)) * i128::from(before.n);
        let gone = before.ceil(changed) - before.ceil(start.stamp) - lead;
        let gone = -(-gone * i128::from(self.p)).div_euclid(i128::from(before.p));
        let gone = (gone + self.ceil(rest.last) - self.ceil(changed)).max(0);
        let back = match is_last {
            true => self.cost(units) + idle,
            false => self.cost(units).min(self.cost(start.weight) - gone),
        };
        if is_last {
            rest.last = rest.last.min(self.tick(moved - back) + 1);
        }
        let back = back.clamp(0, behind);
        rest.returned = rest.returned.saturating_add(divide_up(back as u128, self.n)).min(MAX_RETURNED);
        let kept = self.units(behind - back);
        rest.spare = ((self.cost(kept) - (behind - back)) as u64, self.p);
        let mut go = held - kept;
        // First the units that are missing from the ledger.
        for is_logged in [false, true] {
            for start in starts.iter_mut().filter(|start| start.is_logged == is_logged) {
                let units = start.units.min(go);
                start.units -= units;
                go -= units;
            }
        }
        starts.retain(|start| start.units > 0);
    }
}

/// Returns whether a life has reached its end. Its contents then have to be sealed and rewritten.
#[inline(always)]
fn is_used_up(bucket: &Bucket, word: u64, origin: i128, now: Now) -> bool {
    i128::from(word >> 1).max(bucket.ceil(now.ceil) - origin) > USED
}

#[cfg(all(test, model))]
#[path = "meter_models.rs"]
mod models;
#[cfg(all(test, not(model)))]
#[path = "meter_tests.rs"]
mod tests;
