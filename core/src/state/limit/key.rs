//! A key of a limit, found, and the decisions on it.

use super::bound::{Bound, Stuck};
use crate::algorithm::bucket::Bucket;
use crate::algorithm::cells::Cells;
use crate::algorithm::counter::Counter;
use crate::algorithm::grants::Grants;
use crate::algorithm::jobs::Jobs;
use crate::algorithm::log::{Answer, Ask, Log, View, Window};
use crate::algorithm::meter::Meter;
use crate::algorithm::slices::Slices;
use crate::algorithm::{Algorithm, Sealed};
use crate::atomic::*;
use crate::hash::Hash;
use crate::policy::Shape;
use crate::state::cells::block::{Block, BlockCells, Head, grants, meter, ring_in, slices};
use crate::state::cells::heads::Tenants;
use crate::state::cells::home::{AtOnce, Blocked, Found, Home, KeyAt, Table};
use crate::state::cells::layout::{LimitAt, key_word};
use crate::state::counts::Counts;
use crate::time::Now;
use std::time::Duration;

/// How often a processor pauses, after losing a race, before it tries again: for about a microsecond.
const PAUSES: u32 = 32;

/// A key of a limit, found.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(super) bound: &'a Bound,
    pub table: &'a Table,
    pub key: KeyAt,
    /// Its block: head and ring.
    pub(super) words: &'a [AtomicU64],
    /// The hash that identifies the key, independent of its place.
    pub hash: Hash,
    /// Whether it is the key "".
    pub is_empty: bool,
    /// No start happens before this time: the later of the key's own gate and the gate of all keys. Of a key that was found at
    /// once, it may be [marked](Key::may_be_awaited).
    pub gate: u64,
}

impl<'a> Key<'a> {
    #[inline(always)]
    pub fn home(&self) -> &'a Home {
        self.bound.home()
    }

    /// The limit of the key.
    pub fn limit(&self) -> LimitAt {
        self.bound.limit
    }

    /// The tenants of its limit. `None` if it is not shared.
    pub fn tenants(&self) -> Option<Tenants<'a>> {
        self.home().tenants(self.limit(), self.table.capacity)
    }

    /// The number of this process there, for leases: see [`crate::algorithm::leases`].
    pub fn member(&self) -> u64 {
        self.bound.member
    }

    #[inline(always)]
    pub fn counts(&self) -> &'a Counts {
        &self.bound.counts
    }

    /// Returns whether the gate is marked, because somebody may wait for the key. Then a start now is denied, for another reason.
    #[inline(always)]
    pub fn may_be_awaited(&self) -> bool {
        self.gate & key_word::IS_AWAITED != 0
    }

    /// The same key with its gate, whoever waits.
    #[inline(always)]
    pub(super) fn with_gate_alone(self) -> Key<'a> {
        if !self.may_be_awaited() {
            return self;
        }
        // The mark is later than any gate, so it has hidden that of all keys.
        Key { gate: self.bound.gate_of_all().max(self.gate & !key_word::IS_AWAITED), ..self }
    }

    /// Its block.
    pub fn its_block(&self) -> BlockCells<'a> {
        self.home().block(self.key.at)
    }

    /// Pairs the key with the reason why it is stuck.
    #[cold]
    pub fn stuck(self, blocked: Blocked) -> Stuck<'a> {
        Stuck { bound: self.bound, blocked, table: self.table.at }
    }

    #[inline(always)]
    pub fn cells(&self) -> Cells<'_> {
        self.home().cells(self.table, self.key)
    }

    /// The head of its block.
    #[inline(always)]
    pub fn head(&self) -> &'a Head {
        // SAFETY: no block is smaller: see `Bound::key`.
        unsafe { &*self.words.as_ptr().cast() }
    }

    #[inline(always)]
    fn block(&self) -> Block<'a> {
        // SAFETY: as above.
        (self.head(), unsafe { self.words.get_unchecked(key_word::RING as usize..) })
    }

    /// Decides: see [`Algorithm::decide`]. Neither this nor the steps after it unwind, whatever the cells hold. (It
    /// does not go through [`Cells`], so that only the needed words of each algorithm are read.)
    #[inline(always)]
    pub fn decide<const LOOK: bool>(&self, ask: &Ask, view: &mut View) -> Result<Answer, Sealed> {
        match &self.table.policy.0 {
            Shape::Bucket(bucket) => self.bucket(bucket).decide::<LOOK>(ask, || self.now(), view),
            // The kind was checked when the limit was opened, so this is nonsense.
            Shape::Concurrency { .. } => Err(Sealed),
            _ if self.table.is_log => self.log().decide::<LOOK>(ask, || self.now(), view),
            _ => self.decide_in_windows::<LOOK>(ask, view),
        }
    }

    /// Why its cells could not decide on a start of this weight.
    #[cold]
    pub fn why_sealed(&self, weight: u64) -> Blocked {
        let is_small = self.table.is_log && ring_in(self.head()) < self.table.ring;
        if is_small { Blocked::Small(weight) } else { Blocked::Sealed }
    }

    #[inline(always)]
    fn decide_in_windows<const LOOK: bool>(&self, ask: &Ask, view: &mut View) -> Result<Answer, Sealed> {
        match &self.table.policy.0 {
            Shape::Counter { window, is_smooth } => {
                self.counter(*window, *is_smooth).decide::<LOOK>(ask, || self.now(), view)
            }
            _ => self.slices().decide::<LOOK>(ask, || self.now(), view),
        }
    }

    /// Returns whether its log [holds](Log::holds) the limit.
    #[inline(always)]
    pub fn holds_limit(&self) -> bool {
        self.log().holds()
    }

    /// Decides on a start now from a log, if no other thread is faster: see [`AtOnce`].
    #[inline(always)]
    pub fn try_log<const LOOK: bool, const HOLDS: bool>(
        &self,
        weight: u64,
        view: &mut View,
    ) -> Option<Result<Answer, Sealed>> {
        self.log().try_in::<LOOK, HOLDS>(&self.ask(weight), || self.now(), view)
    }

    /// Decides from a log after another thread was faster and has the cells in its processor's cache. Pausing for a
    /// moment costs all threads less than competing for the cells at each start.
    #[inline(always)]
    pub fn by_log<const LOOK: bool>(&self, weight: u64, view: &mut View) -> Result<Answer, Sealed> {
        loop {
            for _ in 0..PAUSES {
                std::hint::spin_loop();
            }
            if let Some(answer) = self.log().try_decide::<LOOK>(&self.ask(weight), || self.now(), view) {
                return answer;
            }
        }
    }

    /// Decides from a bucket.
    #[inline(always)]
    pub fn by_bucket<const LOOK: bool>(&self, weight: u64, view: &mut View) -> Result<Answer, Sealed> {
        let Shape::Bucket(bucket) = &self.table.policy.0 else { return Err(Sealed) };
        self.bucket(bucket).decide::<LOOK>(&self.ask(weight), || self.now(), view)
    }

    /// Decides from windows in which units are counted.
    #[inline(always)]
    pub fn by_windows<const LOOK: bool>(&self, weight: u64, view: &mut View) -> Result<Answer, Sealed> {
        self.decide_in_windows::<LOOK>(&self.ask(weight), view)
    }

    /// The key's state. Nothing changes.
    #[inline(always)]
    pub fn view_at_once(&self, ask: &Ask) -> Result<View, Sealed> {
        match &self.table.policy.0 {
            Shape::Bucket(bucket) => self.bucket(bucket).view(ask, || self.now()),
            Shape::Counter { window, is_smooth } => self.counter(*window, *is_smooth).view(ask, || self.now()),
            Shape::Concurrency { .. } => Err(Sealed),
            _ if self.table.at_once == AtOnce::Grants => Err(Sealed),
            _ if self.table.is_log => self.log().view(ask, || self.now()),
            _ => self.slices().view(ask, || self.now()),
        }
    }

    /// Returns whether a start by a log or bucket would be ready at a past time; false if that cannot be seen. See
    /// [`Clock::early`](crate::time::Clock::early).
    #[inline(always)]
    pub fn is_ready_early(&self, weight: u64) -> bool {
        let (ask, early) = (self.ask(weight), || self.home().clock.early());
        let ready = match &self.table.policy.0 {
            Shape::Bucket(bucket) => self.bucket(bucket).ready_at(&ask, early),
            _ if self.table.is_log => self.log().ready_at(&ask, early),
            _ => return false,
        };
        ready.is_ok_and(|(ready, now)| ready <= now)
    }

    #[inline(always)]
    fn ask(&self, weight: u64) -> Ask<'a> {
        Ask::now(self.table.windows.as_slice(), weight, self.gate)
    }

    #[inline(always)]
    pub(super) fn now(&self) -> Now {
        self.home().clock.now()
    }

    #[inline(always)]
    fn log(&self) -> Log<'a> {
        self.home().log(self.table, self.block(), self.key.life, &[])
    }

    /// The units of it that a server has granted to this process, or to the processes that share them.
    #[inline(always)]
    pub fn grants(&self) -> Grants<'a> {
        let own = self.own_grants();
        match &self.home().grant_lane {
            None => own,
            Some(lane) => lane.of(own),
        }
    }

    #[inline(always)]
    pub(super) fn own_grants(&self) -> Grants<'a> {
        grants(self.block(), self.key.life)
    }

    #[inline(always)]
    fn bucket(&self, bucket: &'a Bucket) -> Meter<'a> {
        meter(self.table, self.block(), self.key.life, bucket)
    }

    #[inline(always)]
    fn counter(&self, window: Window, is_smooth: bool) -> Counter<'a> {
        self.home().counter(self.table, self.block(), self.key.life, window, is_smooth)
    }

    #[inline(always)]
    fn slices(&self) -> Slices<'a> {
        slices(self.table, self.block(), self.key.life)
    }

    /// The level of its backoff.
    #[inline(always)]
    pub fn backoff(&self) -> &AtomicU64 {
        &self.head()[key_word::BACKOFF as usize]
    }

    #[inline(always)]
    pub fn jobs(&self) -> Option<Jobs<'_>> {
        self.home().block(self.key.at).jobs(self.table)
    }

    /// The key, for those who know no limiters.
    pub fn found(&self) -> Found<'a> {
        Found { home: self.home(), limit: self.limit(), table: self.table, key: self.key, hash: self.hash }
    }

    /// Counts a start or a denial of this weight.
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
