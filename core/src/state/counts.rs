//! What is counted of a limit and of its keys.
//!
//! A decision counts in memory of its own process, without a lock: what has no key in a stripe that belongs to its thread, what
//! has one in an entry of that key. Once a second, and whenever somebody asks, what was counted since is added to the sums in
//! the limit's and the key's blocks. So a denial writes nothing that another process reads.

use super::index::KeyAt;
use super::layout::{key_word, limit_word};
use super::limit::Key;
use super::locked::Locked;
use super::minutes::{Minute, this_minute};
use super::session::Session;
use super::table::{Hash, Home, Table, UNKEPT};
use crate::atomic::*;
use crate::error::Result;
use crate::fork::PerProcess;
use crate::observe::WAIT_BOUNDS;
use crate::stats::Stats;
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What is counted. Units are counted as what they are beyond one per start, so that a start of weight 1 writes one word.
pub(crate) const ADMITTED: usize = 0;
const MORE_GRANTED: usize = 1;
pub(crate) const DENIED: usize = 2;
const MORE_DENIED: usize = 3;
pub(crate) const WAITED: usize = 4;
/// In µs.
pub(crate) const WAIT_TIME: usize = 5;
pub(crate) const CANCELLED: usize = 6;
/// Those before are counted of each key; this of the limit only, and so is how often its policy changed.
pub(crate) const STORE_ERRORS: usize = 7;
const POLICY_CHANGES: usize = 8;

/// How many classes of waits there are: see [`WAIT_BOUNDS`].
pub(super) const CLASSES: usize = WAIT_BOUNDS.len() + 1;

/// How many are counted of a key, by a process of a limit, and of a limit in all.
pub(super) const OF_A_KEY: usize = 7;
const OF_A_PROCESS: usize = 8;
pub(super) const OF_A_LIMIT: usize = 9;

/// So many threads have a stripe of their own; those beyond share the rest.
const OWN: usize = 24;
const STRIPES: usize = 32;

/// How many keys are counted one by one between two tellings; those beyond only with the whole limit.
const KEYS: usize = 4_096;
/// Where a key is looked for.
const PROBES: usize = 8;

/// How long nothing is counted of a key before its entry is another's. Nobody takes so long between finding it and counting.
const IDLE: Duration = Duration::from_secs(1);

/// How long the end of a store waits for the lock, to tell what was counted last.
const LAST_WORDS: Duration = Duration::from_millis(10);

/// Padded, so that threads do not disturb each other.
type Stripe = CachePadded<[AtomicU64; OF_A_PROCESS]>;

/// The two words of a key's hash, the first of which is 0 where there is none; was nothing counted for a while; the counts.
#[derive(Debug)]
#[repr(transparent)]
struct Entry([AtomicU64; 3 + OF_A_KEY]);

/// How much of what this process counted is in the sums, and when idle entries made room for others.
#[derive(Debug, Default)]
struct Told {
    counts: [u64; OF_A_PROCESS],
    waits: [u64; CLASSES],
    places_lost: u64,
    made_room: Option<Instant>,
}

/// A limit, as a process knows it: in which of the store's homes it is, and where.
type Id = (u64, u64);

/// What this process counted of one limit.
#[derive(Debug)]
pub(crate) struct Counts {
    id: Id,
    /// The hash of the key "". Who uses no keys needs no entry.
    no_key: Hash,
    /// Is it in this list?
    is_changed: AtomicBool,
    changed: Arc<Mutex<Vec<Id>>>,
    stripes: [Stripe; STRIPES],
    /// Starts that had to wait, by how long; and places that came too late. Those who count here have waited, so they share it.
    waits: [AtomicU64; CLASSES],
    places_lost: AtomicU64,
    /// How many wait at this moment.
    waiting: AtomicU64,
    /// How often a server was asked.
    requests: AtomicU64,
    /// Made at the first decision with a key.
    keys: OnceLock<Box<[Entry]>>,
    /// No fewer of them are in use.
    used: AtomicU64,
    /// Only for the holder of the structure lock.
    told: Mutex<Told>,
}

/// The counts of each limit that this process has used. A forked child has counted nothing.
pub(super) type Book = PerProcess<Limits>;

#[derive(Debug, Default)]
pub(super) struct Limits {
    /// Which home they are of.
    home: u64,
    all: HashMap<Id, Arc<Counts>>,
    /// Those in which something was counted since they were told last.
    changed: Arc<Mutex<Vec<Id>>>,
}

impl Limits {
    fn take_changed(&self) -> Vec<Id> {
        std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner))
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
            told: Mutex::default(),
        }
    }

    /// Puts itself into the list of what is to be told. If another thread has the list, the next count does it.
    #[cold]
    fn change(&self) {
        if let Ok(mut changed) = self.changed.try_lock()
            && !self.is_changed.swap(true, AcqRel)
        {
            changed.push(self.id);
        }
    }

    /// Is that the hash of the key ""?
    pub fn is_of_no_key(&self, hash: Hash) -> bool {
        hash == self.no_key
    }

    /// Counts a start or a denial, of so many units.
    #[inline(always)]
    pub fn decided(&self, key: Option<Hash>, what: usize, weight: u64) {
        self.add(key, what, 1);
        if weight > 1 {
            self.add(key, what + 1, weight - 1);
        }
    }

    #[inline(always)]
    pub fn add(&self, key: Option<Hash>, what: usize, n: u64) {
        // (A count that is told by nobody, because it came at the same moment as a telling, is told with the next one.)
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
            // Nobody else writes it.
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

    /// Counts a place whose owner came too late.
    pub fn lost_place(&self) {
        self.places_lost.fetch_add(1, Relaxed);
        if !self.is_changed.load(Relaxed) {
            self.change();
        }
    }

    /// So many more wait, or fewer.
    pub fn waits_more(&self, by: i64) {
        let _ = self.waiting.fetch_update(Relaxed, Relaxed, |waiting| Some(waiting.saturating_add_signed(by)));
    }

    /// Counts a question to a server.
    pub fn asked(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// How many there were of this process.
    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    /// How many of this process wait.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    /// The entry of a key, if there is room for it.
    #[inline]
    fn entry(&self, Hash([h0, h1]): Hash) -> Option<&Entry> {
        let keys = self.keys.get_or_init(no_keys);
        // (No key's hash is 0 but by a chance of one in 2⁶⁴; it would never be told.)
        for probe in 0..PROBES {
            let entry = &keys[((h0 >> 32) as usize + probe) % KEYS];
            let [first, second, is_idle, ..] = &entry.0;
            // 64 bits are enough to tell keys apart that are counted in the same second.
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

    /// Adds what was counted since the last time to the sums. Only for the holder of the structure lock.
    fn tell(&self, home: &Locked, limit: u64) -> Result<()> {
        let table = home.table(limit);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let now: [u64; OF_A_PROCESS] = std::array::from_fn(|what| {
            self.stripes.iter().fold(0, |sum: u64, stripe| sum.wrapping_add(stripe[what].load(Relaxed)))
        });
        let mut new: [u64; OF_A_PROCESS] = std::array::from_fn(|what| now[what].wrapping_sub(told.counts[what]));
        told.counts = now;
        let waits: [u64; CLASSES] = std::array::from_fn(|class| self.waits[class].load(Relaxed));
        let new_waits: [u64; CLASSES] = std::array::from_fn(|class| waits[class].wrapping_sub(told.waits[class]));
        told.waits = waits;
        let lost = self.places_lost.load(Relaxed);
        let new_lost = lost.wrapping_sub(std::mem::replace(&mut told.places_lost, lost));
        let mut peak = if new[ADMITTED] > 0 { home.most_used(&table, self.no_key) } else { 0 };
        let makes_room = told.made_room.is_none_or(|last| last.elapsed() >= IDLE);
        if makes_room {
            told.made_room = Some(Instant::now());
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
                freed += u64::from(makes_room && entry.free());
                continue;
            }
            entry.0[2].store(0, Relaxed);
            counts.iter().zip(&mut new).for_each(|(n, sum)| *sum += n);
            // Of a key that was forgotten meanwhile, only the whole limit knows.
            if let Some(KeyAt { at, .. }) = home.find_or_mend(&table, hash) {
                add(home, key_word::COUNTS.map(|word| at + word), counts);
                if counts[ADMITTED] > 0 {
                    peak = peak.max(home.most_used(&table, hash));
                }
            }
        }
        self.used.fetch_sub(freed, Relaxed);
        add(home, std::array::from_fn::<_, OF_A_PROCESS, _>(|i| limit + limit_word::COUNTS + i as u64), new);
        add(home, std::array::from_fn::<_, CLASSES, _>(|i| limit + limit_word::WAITS + i as u64), new_waits);
        add(home, [limit + limit_word::PLACES_LOST], [new_lost]);
        let units = if table.budget == UNKEPT { new[ADMITTED] + new[MORE_GRANTED] } else { 0 };
        home.note_minute(limit, Minute { units, denied: new[DENIED], waited: new[WAITED], peak, at: this_minute() });
        Ok(())
    }
}

/// Adds to words of a home.
fn add<const N: usize>(home: &Home, words: [u64; N], counts: [u64; N]) {
    for (word, n) in words.into_iter().zip(counts).filter(|(_, n)| *n > 0) {
        home.arena.word(word).fetch_add(n, Relaxed);
    }
}

/// Zeroed memory, of which only what is used is really taken.
fn no_keys() -> Box<[Entry]> {
    let zeroes = vec![[0u64; 3 + OF_A_KEY]; KEYS].into_boxed_slice();
    // SAFETY: an entry is as many atomics, which are laid out like the numbers that they hold.
    unsafe { Box::from_raw(Box::into_raw(zeroes) as *mut [Entry]) }
}

impl Entry {
    /// Whose it is.
    fn hash(&self) -> Option<Hash> {
        let [first, second, ..] = &self.0;
        let hash = [first.load(Acquire), second.load(Acquire)];
        (hash[0] != 0 && hash[1] != 0).then_some(Hash(hash))
    }

    /// Takes what was counted.
    fn take(&self) -> [u64; OF_A_KEY] {
        let [_, _, _, counts @ ..] = &self.0;
        std::array::from_fn(|what| match counts[what].load(Relaxed) {
            0 => 0,
            _ => counts[what].swap(0, Relaxed),
        })
    }

    /// Makes room for another key if nothing was counted the last time either. Did it? (Whoever found the entry before all
    /// that, and counts only now, may count for another key.)
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

/// Which stripes belong to a thread, a bit for each. In a forked child those of the parent's threads stay taken.
static TAKEN: AtomicU64 = AtomicU64::new(0);

const NONE: usize = usize::MAX;

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(NONE) };
    static GIVE_BACK: GiveBack = const { GiveBack };
}

/// Gives a thread's stripe back when the thread ends.
struct GiveBack;

impl Drop for GiveBack {
    fn drop(&mut self) {
        // What else ends with the thread may still count.
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
        // A thread that is ending has nobody who would give it back.
        if free >= OWN || GIVE_BACK.try_with(|_| ()).is_err() {
            break shared();
        }
        // What the stripe's last thread counted is seen.
        match TAKEN.compare_exchange(taken, taken | 1 << free, Acquire, Relaxed) {
            Ok(_) => break free,
            Err(now) => taken = now,
        }
    };
    STRIPE.set(stripe);
    stripe
}

// ---- sums ----

impl Key<'_> {
    /// Counts a start or a denial, of so many units.
    #[inline(always)]
    pub fn decided(&self, what: usize, weight: u64) {
        self.counts().decided((!self.is_empty).then_some(self.hash), what, weight);
    }

    pub fn add(&self, what: usize, n: u64) {
        self.counts().add((!self.is_empty).then_some(self.hash), what, n);
    }

    /// Counts a place that is not ready at once.
    pub fn waited(&self, wait: Duration) {
        self.counts().waited((!self.is_empty).then_some(self.hash), wait);
    }
}

impl Home {
    pub fn policy_changed(&self, limit: u64) {
        self.arena.word(limit + limit_word::COUNTS + POLICY_CHANGES as u64).fetch_add(1, Relaxed);
    }

    /// What was counted of a limit, but for what processes have not told yet.
    pub fn counts(&self, limit: u64) -> Stats {
        stats(self.get(limit + limit_word::COUNTS))
    }

    /// What was counted of the key of a block.
    pub(super) fn stats_at(&self, at: u64) -> Stats {
        let mut counts = [0; OF_A_LIMIT];
        for (count, word) in counts.iter_mut().zip(key_word::COUNTS) {
            *count = self.arena.word(at + word).load(Relaxed);
        }
        stats(counts)
    }

    /// The same of a key.
    pub fn counts_of_key(&self, table: &Table, key: &str) -> Stats {
        // Of a key on a plan also while it has no cells.
        let hash = self.hash(b'k', key);
        let Ok((_, found)) = self.probe(table, self.segment_of(table, hash), hash) else { return Stats::default() };
        self.stats_at(found.at)
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

impl Session {
    /// Where this process counts a limit of the current home. Only for the holder of the structure lock.
    pub(super) fn counts(&self, limit: u64) -> Arc<Counts> {
        let id = (self.home_number(), limit);
        let mut book = self.book.lock();
        if book.home != id.0 {
            book.home = id.0;
            book.all.retain(|other, _| other.0 == id.0);
        }
        let changed = book.changed.clone();
        book.all.entry(id).or_insert_with(|| Arc::new(Counts::new(id, self.home().hash(b'k', ""), changed))).clone()
    }

    /// What this process has counted of a limit of the current home, if it has used it.
    pub(super) fn counts_of(&self, limit: u64) -> Option<Arc<Counts>> {
        self.book.lock().all.get(&(self.home_number(), limit)).cloned()
    }

    /// Adds what this process counted to the sums. Only for the holder of the structure lock.
    pub(super) fn tell_counts(&self, locked: &Locked) -> Result<()> {
        let (number, book) = (self.home_number(), self.book.lock());
        let mut outcome = Ok(());
        for id in book.take_changed() {
            // What was counted in a lane that is gone is gone with it.
            let Some(counts) = book.all.get(&id).filter(|_| id.0 == number) else { continue };
            counts.is_changed.store(false, Release);
            outcome = outcome.and(counts.tell(locked, id.1));
        }
        outcome
    }

    /// The same for one limit.
    pub(super) fn tell_counts_of(&self, limit: u64, locked: &Locked) -> Result<()> {
        self.counts_of(limit).map_or(Ok(()), |counts| counts.tell(locked, limit))
    }

    /// The same, if nobody else is busy. What is not told now is the next time.
    pub fn tell_counts_if_free(&self) {
        let _ = self.with_lock_for(Duration::ZERO, |locked| self.tell_counts(locked));
    }

    /// The same at the end of the store, if there is somebody to tell.
    pub(super) fn tell_last_counts(&self) {
        if self.book.lock().all.is_empty() || !self.home().is_lane() {
            return;
        }
        // A lane that was deleted shall not be made anew for this.
        if self.home().is_still_there(self.home().clock.now().floor) {
            let _ = self.with_lock_for(LAST_WORDS, |locked| self.tell_counts(locked));
        }
    }
}
