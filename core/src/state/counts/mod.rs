//! The counters of a limit and of its keys.
//!
//! A decision counts in the memory of its own process, without a lock. Counts without a key go to a stripe of the
//! thread, counts with a key to an entry of that key. Once a second, and when an observer asks, the process *flushes*
//! its counts: it adds what is new to the sums in the blocks of the limit and of the key. So a denial writes nothing
//! that another process reads.
//!
//! The wing also has the counts per minute and the processes of a lane. Nothing that decides may depend on it; all wings
//! above may call it, and limiters count here.

pub(super) mod members;
pub(super) mod minutes;

use crate::atomic::*;
use crate::error::Result;
use crate::fork::PerProcess;
use crate::hash::Hash;
use crate::snapshot::WAIT_BOUNDS;
use crate::state::cells::block::BlockCells;
use crate::state::cells::home::{Home, KeyAt, UNKEPT};
use crate::state::cells::index::Index;
use crate::state::cells::layout::{LimitAt, key_word, limit_word};
use crate::state::cells::limit::LimitCells;
use crate::state::cells::locked::Locked;
use crate::stats::Stats;
use crossbeam_utils::CachePadded;
use minutes::{Minute, this_minute};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The counters. Weights are counted as the units beyond one per start, so that a start of weight 1 writes one word.
pub(crate) const ADMITTED: usize = 0;
const MORE_GRANTED: usize = 1;
pub(crate) const DENIED: usize = 2;
const MORE_DENIED: usize = 3;
pub(crate) const WAITED: usize = 4;
/// In µs.
pub(crate) const WAIT_TIME: usize = 5;
pub(crate) const CANCELLED: usize = 6;
/// The counters before this one exist per key. This one, and the number of policy changes, exist only per limit.
pub(crate) const STORE_ERRORS: usize = 7;
const POLICY_CHANGES: usize = 8;

/// The number of classes of waiting times: see [`WAIT_BOUNDS`].
pub(super) const CLASSES: usize = WAIT_BOUNDS.len() + 1;

/// The number of counters per key, per process and limit, and per limit in total.
pub(super) const OF_A_KEY: usize = 7;
const OF_A_PROCESS: usize = 8;
pub(super) const OF_A_LIMIT: usize = 9;

/// The number of threads that have a stripe of their own. Further threads share one.
const OWN: usize = 24;
const STRIPES: usize = 32;

/// The number of keys that are counted individually between two flushes. Further keys count only toward the limit.
const KEYS: usize = 4_096;
/// The number of entries in which a key is searched.
const PROBES: usize = 8;

/// How long an entry must be idle before another key takes it. No thread takes this long between finding an entry and
/// counting in it.
const IDLE: Duration = Duration::from_secs(1);

/// Padded, so that threads do not share cache lines.
type Stripe = CachePadded<[AtomicU64; OF_A_PROCESS]>;

/// The two words of a key's hash, the first of which is 0 in a free entry; whether the entry was idle for a while; the
/// counts.
#[derive(Debug)]
#[repr(transparent)]
struct Entry([AtomicU64; 3 + OF_A_KEY]);

/// How much of this process's counts is in the sums, and when idle entries were last freed.
#[derive(Debug, Default)]
struct FlushState {
    counts: [u64; OF_A_PROCESS],
    waits: [u64; CLASSES],
    places_lost: u64,
    freed_entries: Option<Instant>,
}

/// The identity of a limit within a process: the number of the store's home, and the place in it.
type Id = (u64, LimitAt);

/// The counts of one limit in this process.
#[derive(Debug)]
pub(crate) struct Counts {
    id: Id,
    /// The hash of the key "". Callers that use no keys need no entry.
    no_key: Hash,
    /// Whether the limit is in the list of changed limits.
    is_changed: AtomicBool,
    changed: Arc<Mutex<Vec<Id>>>,
    stripes: [Stripe; STRIPES],
    /// Starts that waited, by waiting time, and lost places. These callers have waited, so sharing a cache line costs
    /// little.
    waits: [AtomicU64; CLASSES],
    places_lost: AtomicU64,
    /// The number of callers that wait now.
    waiting: AtomicU64,
    /// The number of requests to a server.
    requests: AtomicU64,
    /// Allocated at the first decision with a key.
    keys: OnceLock<Box<[Entry]>>,
    /// An upper bound on the number of entries in use.
    used: AtomicU64,
    /// Only for the holder of the structure lock.
    flushed: Mutex<FlushState>,
}

/// The counts of each limit that this process has used. A forked child starts with none.
pub(crate) type Book = PerProcess<Limits>;

#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// The home to which they belong.
    home: u64,
    all: HashMap<Id, Arc<Counts>>,
    /// The limits with counts that are not flushed.
    changed: Arc<Mutex<Vec<Id>>>,
}

impl Limits {
    /// The counts of a limit of this home. `no_key` is the hash of the key "".
    pub fn of(&mut self, id: Id, no_key: impl FnOnce() -> Hash) -> Arc<Counts> {
        if self.home != id.0 {
            self.home = id.0;
            self.all.retain(|other, _| other.0 == id.0);
        }
        let changed = &self.changed;
        self.all.entry(id).or_insert_with(|| Arc::new(Counts::new(id, no_key(), changed.clone()))).clone()
    }

    /// The counts of a limit, if this process has used it.
    pub fn find(&self, id: Id) -> Option<Arc<Counts>> {
        self.all.get(&id).cloned()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Flushes the counts of all limits of a home.
    pub fn flush(&self, home: u64, locked: &Locked) -> Result<()> {
        let changed = std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner));
        let mut outcome = Ok(());
        for id in changed {
            // The counts of a lane that is gone are lost with it.
            let Some(counts) = self.all.get(&id).filter(|_| id.0 == home) else { continue };
            counts.is_changed.store(false, Release);
            outcome = outcome.and(counts.flush(locked, id.1));
        }
        outcome
    }
}

impl Counts {
    fn new(id: Id, no_key: Hash, changed: Arc<Mutex<Vec<Id>>>) -> Counts {
        Counts {
            id,
            no_key,
            is_changed: AtomicBool::new(false),
            changed,
            stripes: Default::default(),
            waits: Default::default(),
            places_lost: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            keys: OnceLock::new(),
            used: AtomicU64::new(0),
            flushed: Mutex::default(),
        }
    }

    /// Adds the limit to the list of changed limits. If another thread holds the list, the next count does it.
    #[cold]
    fn change(&self) {
        if let Ok(mut changed) = self.changed.try_lock()
            && !self.is_changed.swap(true, AcqRel)
        {
            changed.push(self.id);
        }
    }

    /// Returns whether this is the hash of the key "".
    pub fn is_of_no_key(&self, hash: Hash) -> bool {
        hash == self.no_key
    }

    /// Counts a start or a denial of this weight.
    #[inline(always)]
    pub fn decided(&self, key: Option<Hash>, what: usize, weight: u64) {
        self.add(key, what, 1);
        if weight > 1 {
            self.add(key, what + 1, weight - 1);
        }
    }

    #[inline(always)]
    pub fn add(&self, key: Option<Hash>, what: usize, n: u64) {
        // A count that comes at the same moment as a flush may miss it. The next flush includes it.
        if !self.is_changed.load(Relaxed) {
            self.change();
        }
        if let Some(hash) = key
            && let Some(entry) = self.entry(hash)
        {
            entry.0[3 + what].fetch_add(n, Relaxed);
            return;
        }
        let stripe = stripe();
        let word = &self.stripes[stripe][what];
        if stripe < OWN {
            // No other thread writes this word.
            word.store(word.load(Relaxed).wrapping_add(n), Relaxed);
        } else {
            word.fetch_add(n, Relaxed);
        }
    }

    /// Counts a start that had to wait, or a place that is not ready at once.
    pub fn waited(&self, key: Option<Hash>, wait: Duration) {
        self.add(key, WAITED, 1);
        self.add(key, WAIT_TIME, wait.as_micros() as u64);
        let class = WAIT_BOUNDS.partition_point(|bound| *bound < wait);
        self.waits[class].fetch_add(1, Relaxed);
    }

    /// Counts a place that was lost because its owner was late.
    pub fn lost_place(&self) {
        self.places_lost.fetch_add(1, Relaxed);
        if !self.is_changed.load(Relaxed) {
            self.change();
        }
    }

    /// Changes the number of waiting callers.
    pub fn waits_more(&self, by: i64) {
        let _ = self.waiting.fetch_update(Relaxed, Relaxed, |waiting| Some(waiting.saturating_add_signed(by)));
    }

    /// Counts a request to a server.
    pub fn asked(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// The number of requests by this process.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// The number of callers of this process that wait.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    /// The entry of a key, if there is space for it.
    #[inline]
    fn entry(&self, Hash([h0, h1]): Hash) -> Option<&Entry> {
        let keys = self.keys.get_or_init(no_keys);
        // A key's hash is 0 with a chance of one in 2⁶⁴. Its counts would never be flushed.
        for probe in 0..PROBES {
            let entry = &keys[((h0 >> 32) as usize + probe) % KEYS];
            let [first, second, is_idle, ..] = &entry.0;
            // 64 bits are enough to distinguish the keys that are counted in one second.
            let mut theirs = first.load(Acquire);
            if theirs == 0 {
                self.used.fetch_add(1, Relaxed);
                match first.compare_exchange(0, h0, AcqRel, Acquire) {
                    Ok(_) => {
                        is_idle.store(0, Relaxed);
                        second.store(h1, Release);
                        return Some(entry);
                    }
                    Err(now) => theirs = now,
                }
                self.used.fetch_sub(1, Relaxed);
            }
            if theirs == h0 {
                return Some(entry);
            }
        }
        None
    }

    /// Adds the counts since the last flush to the sums. Only for the holder of the structure lock.
    pub(super) fn flush(&self, home: &Locked, limit: LimitAt) -> Result<()> {
        let table = home.limit(limit).table();
        let mut flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        let now: [u64; OF_A_PROCESS] = std::array::from_fn(|what| {
            self.stripes.iter().fold(0, |sum: u64, stripe| sum.wrapping_add(stripe[what].load(Relaxed)))
        });
        let mut new: [u64; OF_A_PROCESS] = std::array::from_fn(|what| now[what].wrapping_sub(flushed.counts[what]));
        flushed.counts = now;
        let waits: [u64; CLASSES] = std::array::from_fn(|class| self.waits[class].load(Relaxed));
        let new_waits: [u64; CLASSES] = std::array::from_fn(|class| waits[class].wrapping_sub(flushed.waits[class]));
        flushed.waits = waits;
        let lost = self.places_lost.load(Relaxed);
        let new_lost = lost.wrapping_sub(std::mem::replace(&mut flushed.places_lost, lost));
        let mut peak = if new[ADMITTED] > 0 { home.index(&table).most_used(self.no_key) } else { 0 };
        let frees_entries = flushed.freed_entries.is_none_or(|last| last.elapsed() >= IDLE);
        if frees_entries {
            flushed.freed_entries = Some(Instant::now());
        }
        let (mut used, mut freed) = (self.used.load(Relaxed), 0);
        for entry in self.keys.get().into_iter().flatten() {
            if used == 0 {
                break;
            }
            let Some(hash) = entry.hash() else { continue };
            used -= 1;
            let counts = entry.take();
            if counts == [0; OF_A_KEY] {
                freed += u64::from(frees_entries && entry.free());
                continue;
            }
            entry.0[2].store(0, Relaxed);
            counts.iter().zip(&mut new).for_each(|(n, sum)| *sum += n);
            // If the key has been forgotten, its counts are only in the limit's sums.
            if let Some(KeyAt { at, .. }) = home.find_or_repair(&table, hash) {
                add(home, key_word::COUNTS.map(|word| at + word), counts);
                if counts[ADMITTED] > 0 {
                    peak = peak.max(home.index(&table).most_used(hash));
                }
            }
        }
        self.used.fetch_sub(freed, Relaxed);
        add(home, std::array::from_fn::<_, OF_A_PROCESS, _>(|i| limit + limit_word::COUNTS + i as u64), new);
        add(home, std::array::from_fn::<_, CLASSES, _>(|i| limit + limit_word::WAITS + i as u64), new_waits);
        add(home, [limit + limit_word::PLACES_LOST], [new_lost]);
        let units = if table.budget == UNKEPT { new[ADMITTED] + new[MORE_GRANTED] } else { 0 };
        home.limit(limit)
            .note_minute(home, Minute { units, denied: new[DENIED], waited: new[WAITED], peak, at: this_minute() });
        Ok(())
    }
}

/// Adds counts to words of a home.
fn add<const N: usize>(home: &Home, words: [u64; N], counts: [u64; N]) {
    for (word, n) in words.into_iter().zip(counts).filter(|(_, n)| *n > 0) {
        home.arena.word(word).fetch_add(n, Relaxed);
    }
}

/// Zeroed memory, of which the system provides only the pages in use.
fn no_keys() -> Box<[Entry]> {
    let zeroes = vec![[0u64; 3 + OF_A_KEY]; KEYS].into_boxed_slice();
    // SAFETY: an entry consists of this many atomics, which have the layout of the numbers that they hold.
    unsafe { Box::from_raw(Box::into_raw(zeroes) as *mut [Entry]) }
}

impl Entry {
    /// The key of the entry.
    fn hash(&self) -> Option<Hash> {
        let [first, second, ..] = &self.0;
        let hash = [first.load(Acquire), second.load(Acquire)];
        (hash[0] != 0 && hash[1] != 0).then_some(Hash(hash))
    }

    /// Takes the counts.
    fn take(&self) -> [u64; OF_A_KEY] {
        let [_, _, _, counts @ ..] = &self.0;
        std::array::from_fn(|what| match counts[what].load(Relaxed) {
            0 => 0,
            _ => counts[what].swap(0, Relaxed),
        })
    }

    /// Frees the entry for another key if it was idle since the last time. Returns whether it did. (A thread that found
    /// the entry before all that, and counts only now, may count for another key.)
    fn free(&self) -> bool {
        let [first, second, is_idle, ..] = &self.0;
        let is_free = is_idle.swap(1, Relaxed) == 1;
        if is_free {
            second.store(0, Release);
            first.store(0, Release);
        }
        is_free
    }
}

// ---- stripes ----

/// The stripes that belong to a thread, one bit each. In a forked child, the stripes of the parent's threads stay
/// taken.
static TAKEN: AtomicU64 = AtomicU64::new(0);

const NONE: usize = usize::MAX;

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(NONE) };
    static GIVE_BACK: GiveBack = const { GiveBack };
}

/// Returns a thread's stripe when the thread ends.
struct GiveBack;

impl Drop for GiveBack {
    fn drop(&mut self) {
        // Other destructors of the thread may still count.
        let stripe = STRIPE.replace(OWN);
        if stripe < OWN {
            TAKEN.fetch_and(!(1 << stripe), Release);
        }
    }
}

/// The stripe of this thread.
#[inline(always)]
fn stripe() -> usize {
    match STRIPE.get() {
        stripe if stripe < STRIPES => stripe,
        _ => take_stripe(),
    }
}

#[cold]
fn take_stripe() -> usize {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let shared = || OWN + NEXT.fetch_add(1, Relaxed) as usize % (STRIPES - OWN);
    let mut taken = TAKEN.load(Relaxed);
    let stripe = loop {
        let free = taken.trailing_ones() as usize;
        // A thread that is ending could not return a stripe.
        if free >= OWN || GIVE_BACK.try_with(|_| ()).is_err() {
            break shared();
        }
        // Acquires, to see the counts of the stripe's previous thread.
        match TAKEN.compare_exchange(taken, taken | 1 << free, Acquire, Relaxed) {
            Ok(_) => break free,
            Err(now) => taken = now,
        }
    };
    STRIPE.set(stripe);
    stripe
}

// ---- sums ----

impl BlockCells<'_> {
    /// The counts of its key.
    pub fn stats(self) -> Stats {
        let mut counts = [0; OF_A_LIMIT];
        for (count, word) in counts.iter_mut().zip(key_word::COUNTS) {
            *count = self.word(word).load(Relaxed);
        }
        stats(counts)
    }
}

impl LimitCells<'_> {
    pub fn policy_changed(self) {
        self.word(limit_word::COUNTS + POLICY_CHANGES as u64).fetch_add(1, Relaxed);
    }

    /// The counts of the limit, without those that processes have not flushed yet.
    pub fn counts(self) -> Stats {
        stats(self.home.get(self.at + limit_word::COUNTS))
    }
}

impl Index<'_, '_> {
    /// The counts of a key.
    pub fn counts(self, key: &str) -> Stats {
        // A key on a plan has counts even without cells.
        let hash = self.home.hash(b'k', key);
        let Ok((_, found)) = self.segment(hash).probe(self.table, hash) else { return Stats::default() };
        self.home.block(found.at).stats()
    }
}

fn stats(counts: [u64; OF_A_LIMIT]) -> Stats {
    let units_granted = counts[ADMITTED] + counts[MORE_GRANTED];
    Stats {
        admitted: counts[ADMITTED],
        denied: counts[DENIED],
        units_wanted: units_granted + counts[DENIED] + counts[MORE_DENIED],
        units_granted,
        waited: counts[WAITED],
        wait_time: Duration::from_micros(counts[WAIT_TIME]),
        cancelled: counts[CANCELLED],
        store_errors: counts[STORE_ERRORS],
        policy_changes: counts[POLICY_CHANGES],
    }
}
