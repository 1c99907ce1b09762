//! What limiters, lines and bindings ask of each other, and nobody else does.

use super::line::{Claim, Seats, Terms};
use super::{Attempt, Presented, Reserved, foreign, unsupported};
use crate::decision::Decision;
use crate::error::Result;
use crate::hooks::{Event, Hooks};
use crate::permit::RawPermit;
use crate::policy;
use crate::state::counts::DENIED;
use crate::state::{Limit, Session};
use crate::stats::Stats;
use crate::time::ManualClock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// What every limiter has.
#[derive(Debug)]
pub struct Base {
    /// Its number, by which it knows its own permits.
    pub id: u64,
    pub name: Arc<str>,
    /// Those who listen to this limiter itself.
    pub hooks: Hooks,
    /// The lines of this process's threads.
    pub seats: Seats,
}

impl Base {
    pub fn new(name: Arc<str>) -> Base {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Base { id: NEXT.fetch_add(1, Relaxed), name, hooks: Hooks::default(), seats: Seats::new() }
    }

    /// Checks what a permit says about who gave it.
    pub fn own(&self, permit: &RawPermit) -> Result<()> {
        if permit.of(self.id).is_some() { Ok(()) } else { foreign(&self.name) }
    }
}

/// When a place is wanted.
#[derive(Debug, Clone, Copy)]
pub struct When {
    /// No sooner than after this long.
    pub delay: Duration,
    /// And no later; `None`: however late.
    pub max_wait: Option<Duration>,
    /// For how long it is to be good; `None`: as long as is usual.
    pub grace: Option<Duration>,
}

/// Why places have no answer by default.
pub(super) const NO_PLACES: &str =
    "a limit that is no matter of time: it has no places, and its permits belong to one process";

/// The part of every limiter that nobody outside sees, so nobody outside can write one. (A [`Custom`](crate::Custom) can be.)
#[doc(hidden)]
pub trait Inner: Send + Sync {
    /// What it has as all limiters do.
    fn base(&self) -> &Base;

    /// The limit in a store that it is, if it is one.
    #[inline(always)]
    fn limit(&self) -> Option<&Limit> {
        None
    }

    // The work of the public calls, of which hooks hear nothing: see `heard.rs`.

    /// [`Limiter::attempt`](super::Limiter::attempt).
    fn quiet_attempt(&self, key: &str, weight: u64) -> Result<Attempt>;

    /// [`Limiter::decide`](super::Limiter::decide).
    fn quiet_decide(&self, key: &str, weight: u64) -> Result<Decision>;

    /// [`Limiter::peek`](super::Limiter::peek).
    fn quiet_peek(&self, key: &str, weight: u64) -> Result<Decision>;

    /// The same for a line, which looks every now and then: as good as known, where to know more is a request to a server.
    fn peek_again(&self, key: &str, weight: u64) -> Result<Decision> {
        self.quiet_peek(key, weight)
    }

    /// [`Limiter::pause`](super::Limiter::pause).
    fn quiet_pause(&self, key: &str, pause: Duration) -> Result<()> {
        policy::check_key(key)?;
        let pause = |limit: &Limit| limit.close_gate(key, limit.home()?.clock.tick_in("pause", pause)?);
        self.limit().map_or(Ok(()), pause)
    }

    /// [`Limiter::clear`](super::Limiter::clear).
    fn quiet_clear(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        self.limit().map_or(Ok(()), |limit| limit.forget(key))
    }

    /// [`Limiter::stats`](super::Limiter::stats).
    fn quiet_stats(&self, key: &str) -> Result<Stats> {
        self.limit().map_or_else(|| Ok(Stats::default()), |limit| limit.stats(key))
    }

    /// [`Places::reserve_later`](super::Places::reserve_later).
    fn quiet_reserve(&self, _key: &str, _weight: u64, _when: When) -> Result<Reserved> {
        unsupported("reserve", NO_PLACES)
    }

    /// [`Places::present`](super::Places::present).
    fn quiet_present(&self, _place: &RawPermit) -> Result<Presented> {
        unsupported("present", NO_PLACES)
    }

    /// [`Scheduler::record_job_start`](super::Scheduler::record_job_start).
    fn quiet_record_start(&self, key: &str) -> Result<()>;

    /// [`Scheduler::record_job_completion`](super::Scheduler::record_job_completion).
    fn quiet_record_end(&self, key: &str) -> Result<()>;

    /// [`Scheduler::set_next_available_time`](super::Scheduler::set_next_available_time).
    fn quiet_close_gate(&self, key: &str, at: SystemTime) -> Result<()> {
        policy::check_key(key)?;
        let close = |limit: &Limit| limit.close_gate(key, limit.home()?.clock.tick_of(at)?);
        self.limit().map_or(Ok(()), close)
    }

    // For hooks.

    /// Does anybody listen to it, to a limit that it consists of, or to one of its stores?
    #[inline(always)]
    fn is_heard(&self) -> bool {
        self.base().hooks.are_any() || self.limit().is_some_and(|limit| limit.store().hooks.are_any())
    }

    /// Adds the stores behind it, each once.
    fn stores(&self, all: &mut Vec<Arc<Session>>) {
        if let Some(limit) = self.limit()
            && !all.iter().any(|other| Arc::ptr_eq(other, limit.store()))
        {
            all.push(limit.store().clone());
        }
    }

    /// Tells those who listen to it of something that happened to the limit of that name, if it is this one or a part of it.
    fn tell(&self, event: &Event) -> bool {
        let is_own = event.limit == self.base().name;
        if is_own {
            self.base().hooks.call(event);
            self.limit().into_iter().for_each(|limit| limit.store().hooks.call(event));
        }
        is_own
    }

    // For lines. They count nothing before the outcome is known.

    /// Starts now, or takes a place if there is one.
    fn claim(&self, key: &str, weight: u64, terms: Terms) -> Result<Claim>;

    /// Starts with a place: `present`, but for what it counts.
    fn start(&self, place: &RawPermit) -> Result<Presented>;

    /// Counts a wait that ended in a start.
    fn waited(&self, key: &str, _permit: &RawPermit, wait: Duration) {
        self.limit().into_iter().for_each(|limit| limit.count_wait(key, wait));
    }

    /// So many more callers of this process wait, or fewer.
    fn waits_more(&self, by: i64) {
        self.limit().into_iter().for_each(|limit| limit.waits_more(by));
    }

    /// Counts a wait that ended without a start.
    fn sent_away(&self, key: &str, weight: u64) {
        if let Some(limit) = self.limit() {
            let _ = limit.with_key(key, |found| {
                found.decided(DENIED, weight);
                Ok(())
            });
        }
    }

    /// The shortest time in which so many units can start, the first of them at once.
    fn soonest(&self, _key: &str, _units: u64) -> Duration {
        Duration::ZERO
    }

    /// The units that are free of what only completions free, if a start takes any of those beside its place.
    fn slots(&self, _key: &str, _weight: u64) -> Result<Option<u64>> {
        Ok(None)
    }

    /// For how long a gate is closed for this key.
    fn closed(&self, _key: &str) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    /// The clock that tests move, if the limiter lives by one.
    fn manual_clock(&self) -> Option<ManualClock> {
        self.limit()?.store().options.clock.clone()
    }

    /// What the bell of a key shows that every completion rings. To be read before a claim; `None`: there is no bell.
    fn hear(&self, _key: &str) -> Option<u64> {
        None
    }

    /// Sleeps until the bell shows something else, at most for `nap`. It may wake early.
    fn sleep_on_bell(&self, _key: &str, _heard: u64, nap: Duration) {
        std::thread::sleep(nap);
    }

    /// Did this place come too late, so that it has to be exchanged?
    fn is_late(&self, _place: &RawPermit) -> bool {
        false
    }

    /// Is whoever waits denied at once if too many wait already?
    fn has_bounded_queue(&self) -> bool {
        false
    }

    // For composites.

    /// Would a start be admitted now?
    fn has_room(&self, key: &str, weight: u64) -> Result<bool> {
        Ok(self.quiet_peek(key, weight)?.admitted)
    }

    /// Would ending this permit change nothing any more?
    fn is_over(&self, _permit: &RawPermit) -> bool {
        false
    }

    /// The permit of a text from when the limit was called `name`. Composites ask: their names may have stood for one limit.
    fn permit_of_name(&self, _text: &str, _name: &str) -> Result<RawPermit> {
        unsupported("a text", "this kind of limiter")
    }

    /// The key of a permit that was read from a text, if it is still known in full.
    fn key_of(&self, _permit: &RawPermit) -> Result<Option<String>> {
        Ok(None)
    }

    /// Is this the composite with that number, or does it contain it? Composites ask before they take a child.
    fn contains(&self, _composite: u64) -> bool {
        false
    }

    /// Is it a limiter that somebody wrote, or does it contain one?
    fn has_custom(&self) -> bool {
        false
    }

    /// How many composites are nested here, this one included.
    fn depth(&self) -> usize {
        0
    }

    /// It is inside so many composites from now on, one in the other.
    fn lower(&self, _above: usize) {}

    // For whoever may wait.

    /// Is there something to look after, which decisions left because they [must not wait](crate::MayWait)?
    #[inline]
    fn is_due(&self) -> bool {
        self.limit().is_some_and(|limit| limit.store().is_due())
    }

    /// Does that: see `Store::look_after`.
    fn look_after(&self) {
        self.limit().into_iter().for_each(|limit| limit.store().look_after());
    }
}
