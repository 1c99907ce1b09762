//! The interface between limiters, lines and bindings. No other code uses it.

use super::begun::Waiting;
use super::line::{Ahead, Asker, Claim, First, LineTurn, Seats, Shown, Terms};
use super::{Attempt, Limiter, Presented, Reserved, foreign, unknown_part, unsupported};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::hooks::{Event, Hooks};
use crate::permit::RawPermit;
use crate::policy;
use crate::server::crew::{Crew, WAITING};
use crate::state::counts::DENIED;
use crate::state::{KeyEnds, Limit, Session, Wake, Woken};
use crate::stats::Stats;
use crate::time::ManualClock;
use crate::waiting::MayWait;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// The data that every limiter has.
#[derive(Debug)]
pub struct Base {
    /// The limiter's number, by which it recognises its own permits.
    pub id: u64,
    pub name: Arc<str>,
    /// The hooks of this limiter itself.
    pub hooks: Hooks,
    /// The lines of this process's threads.
    pub seats: Seats,
    /// The calls of this process that wait for a thread.
    pub(super) begun: PerProcess<Waiting>,
}

impl Base {
    pub fn new(name: Arc<str>) -> Base {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Base {
            id: NEXT.fetch_add(1, Relaxed),
            name,
            hooks: Hooks::default(),
            seats: Seats::new(),
            begun: PerProcess::new(),
        }
    }

    /// Checks that this limiter issued the permit.
    pub fn own(&self, permit: &RawPermit) -> Result<()> {
        if permit.of(self.id).is_some() { Ok(()) } else { foreign(&self.name) }
    }
}

/// The terms of a reservation.
#[derive(Debug, Clone, Copy)]
pub struct When {
    /// The place is ready no sooner than after this delay.
    pub delay: Duration,
    /// The place is ready no later than this; `None`: no limit.
    pub max_wait: Option<Duration>,
    /// How late the place may be used; `None`: the default.
    pub grace: Option<Duration>,
    /// Whether a waiter of a line asks, whose wait or denial is counted when it ends.
    pub is_waiter: bool,
}

/// What a joint start charges a part: its name, key and weight.
pub(super) type OwnedCharge = (String, Option<String>, Option<u64>);

/// The name of a limiter without places in errors.
pub(super) const NO_PLACES: &str = "a limit that is not timed: it has no places, and its permits belong to one process";

/// What is behind a limiter: its limits and stores, their hooks, clock and maintenance.
#[doc(hidden)]
pub trait Behind: Send + Sync {
    /// Returns the data that every limiter has.
    fn base(&self) -> &Base;

    /// Returns the limit in a store behind this limiter, if there is one.
    #[inline(always)]
    fn limit(&self) -> Option<&Limit> {
        None
    }

    /// Returns whether it is a limit that tenants share.
    fn is_shared(&self) -> bool {
        self.limit().is_some_and(Limit::is_shared)
    }

    /// Lists the limits behind this limiter and its children, each by its store's address and its name.
    fn list_limits(&self, all: &mut Vec<(usize, Arc<str>)>) {
        let limit = self.limit().map(|limit| (Arc::as_ptr(limit.store()).addr(), limit.name().clone()));
        all.extend(limit);
    }

    /// Returns whether it, a limit that it consists of, or one of its stores has hooks.
    #[inline(always)]
    fn has_hooks(&self) -> bool {
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

    /// Returns the error of its calls, if one of the stores behind it is closed.
    fn closed_store(&self) -> Option<Error> {
        let store = self.limit()?.store();
        store.is_closed().then(|| store.closed())
    }

    /// Lets a waiter know when one of the stores behind it is closed, until the result is dropped.
    fn wake_at_close(&self, wake: Wake) -> Woken {
        let mut stores = Vec::new();
        self.stores(&mut stores);
        Woken::new(stores, wake)
    }

    /// Notifies its hooks of an event of the limit with that name, if it is this limit or a part of it. Returns whether
    /// it is.
    fn notify(&self, event: &Event) -> bool {
        let is_own = event.limit == self.base().name;
        if is_own {
            self.base().hooks.call(event);
            self.limit().into_iter().for_each(|limit| limit.store().hooks.call(event));
        }
        is_own
    }

    /// Returns the clock that a test controls, if the limiter uses one.
    fn manual_clock(&self) -> Option<ManualClock> {
        self.limit()?.store().options.clock.clone()
    }

    /// Returns whether it is a user-defined limiter, or contains one.
    fn has_custom(&self) -> bool {
        false
    }

    /// Returns the threads that wait for its server, if it has one: they can make its calls. (A user-defined limiter may
    /// have to be asked in the thread of its own run time.)
    fn crew(&self) -> Option<Arc<Crew>> {
        let mut stores = Vec::new();
        self.stores(&mut stores);
        let crew = stores.iter().find_map(|store| store.server()).map(|server| server.crew().clone());
        crew.filter(|_| !self.has_custom())
    }

    /// Returns the threads that wait for its stores: its server's, or those of its first store.
    fn chores(&self) -> Arc<Crew> {
        let mut stores = Vec::new();
        self.stores(&mut stores);
        let own = || stores.first().map_or_else(|| Crew::new(WAITING), |store| store.chores.clone());
        self.crew().unwrap_or_else(own)
    }

    /// Returns whether there is maintenance which decisions left because they [must not wait](crate::embed::MayWait).
    #[inline]
    fn is_due(&self) -> bool {
        self.limit().is_some_and(|limit| limit.store().is_due())
    }

    /// Does that maintenance: see `Store::look_after`.
    fn look_after(&self) {
        self.limit().into_iter().for_each(|limit| limit.store().look_after());
    }
}

/// The work of the public calls, without hooks: see `events.rs`.
#[doc(hidden)]
pub trait Quiet: Behind {
    /// [`Limiter::attempt`](super::Limiter::attempt).
    fn quiet_attempt(&self, key: &str, weight: u64) -> Result<Attempt>;

    /// [`Limiter::decide`](super::Limiter::decide).
    fn quiet_decide(&self, key: &str, weight: u64) -> Result<Decision>;

    /// As `quiet_decide`, by what all processes have taken up to now: units that a server has granted to this one do not
    /// show that.
    fn decide_for_all(&self, key: &str, weight: u64) -> Result<Decision> {
        self.quiet_decide(key, weight)
    }

    /// [`Limiter::peek`](super::Limiter::peek).
    fn quiet_peek(&self, key: &str, weight: u64) -> Result<Decision>;

    /// As `quiet_peek`, for a line that polls. The result may be less exact where an exact one takes a request to a
    /// server.
    fn peek_again(&self, key: &str, weight: u64) -> Result<Decision> {
        self.quiet_peek(key, weight)
    }

    /// [`Limiter::forecast`](super::Limiter::forecast), for so many units. By default what a peek says: when one can start,
    /// and whether all are free.
    fn quiet_forecast(&self, key: &str, units: u64) -> Result<Option<Duration>> {
        let seen = self.quiet_peek(key, units.min(1))?;
        Ok((units <= 1 || units <= seen.remaining).then_some(seen.retry_after))
    }

    /// [`Limiter::pause`](super::Limiter::pause).
    fn quiet_pause(&self, key: &str, pause: Duration) -> Result<()> {
        policy::check_key(key)?;
        let pause = |limit: &Limit| limit.close_gate(key, limit.home()?.clock.tick_in("duration", pause)?);
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

    /// [`Limiter::arrived`](super::Limiter::arrived). Returns whether the permit has thereby ended.
    fn arrive(&self, permit: &RawPermit) -> Result<bool> {
        self.base().own(permit).map(|()| false)
    }
}

/// What a line asks of the limiter that its callers wait for. Nothing is counted before the outcome is known.
#[doc(hidden)]
pub trait Awaited: Quiet {
    /// Does for a key what its first start would wait for: opens the limit, and makes or restores the key's state. Starts nothing.
    fn prepare(&self, _key: &str) -> Result<()> {
        Ok(())
    }

    /// Checks the key and weight of a waiter that joins others.
    fn check_waiter(&self, key: &str, weight: u64) -> Result<()> {
        self.peek_again(key, weight).map(drop)
    }

    /// Starts now, or takes a place if there is one.
    fn claim(&self, key: &str, weight: u64, terms: Terms) -> Result<Claim>;

    /// Starts with a place: as `present`, without its counting.
    fn start(&self, place: &RawPermit) -> Result<Presented>;

    /// Looks when a line's place is ready: sooner than when it was taken, if starts before it have given back the rest of their grace.
    /// For a joint start, it also takes the places that it will need elsewhere at that moment. `None`: it need not be asked.
    fn look_ahead(&self, _place: &RawPermit) -> Result<Option<Ahead>> {
        Ok(None)
    }

    /// Counts a wait that ended in a start.
    fn waited(&self, key: &str, _permit: &RawPermit, wait: Duration) {
        self.limit().into_iter().for_each(|limit| limit.count_wait(key, wait));
    }

    /// Changes the number of this process's waiting callers.
    fn waits_more(&self, by: i64) {
        self.limit().into_iter().for_each(|limit| limit.waits_more(by));
    }

    /// Counts a wait that ended without a start. The caller's time is over, so this waits for nothing: what is not counted at
    /// once is not counted.
    fn sent_away(&self, key: &str, weight: u64) {
        let count = |limit: &Limit| {
            limit.with_key(key, |found| {
                found.decided(DENIED, weight);
                Ok(())
            })
        };
        let _ = self.limit().map(|limit| MayWait::Never.during(|| count(limit)));
    }

    /// Returns the shortest time in which this many units can start, the first of them immediately.
    fn soonest(&self, _key: &str, _units: u64) -> Duration {
        Duration::ZERO
    }

    /// Returns the units that are free, of those that only completions free. `None` if a start takes no such units in
    /// addition to its place.
    fn slots(&self, _key: &str, _weight: u64) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns how long a gate stays closed for this key.
    fn closed(&self, _key: &str) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    /// Returns what the lines of this process have of a key on a server. `None`: none keeps who waits.
    fn ends_on_server(&self, _key: &str) -> Option<&KeyEnds> {
        None
    }

    /// Reads the bell of a key, which every completion rings. Read it before a claim; `None`: there is no bell.
    fn read_bell(&self, _key: &str) -> Option<u64> {
        None
    }

    /// Sleeps until the bell changes and one of these calls comes, at most for `nap`. It may wake early.
    fn sleep_on_bell(&self, _key: &str, _seen: u64, nap: Duration, _calls: u32) {
        std::thread::sleep(nap);
    }

    /// Shows a line's first waiter to the lines of all processes, and returns where it is among them. `None`: they do not
    /// form one line.
    fn line_up(&self, _key: &str, _first: First, _shown: &Cell<Shown>) -> Result<Option<LineTurn>> {
        Ok(None)
    }

    /// Returns a number that grows with what is handed out of a key, by whomever, and whether it is the number of units.
    /// `None`: that is not known.
    fn position(&self, _key: &str, _weight: u64) -> Option<(u64, bool)> {
        None
    }

    /// Takes a waiter back that a server was told of with a [claim](Awaited::claim).
    fn leave_line(&self, _key: &str, _waiter: Asker) -> Result<()> {
        Ok(())
    }

    /// Shows another first waiter, or none, of a line that [was shown](Awaited::line_up).
    fn show_next(&self, _first: Option<First>, _shown: &Cell<Shown>) {}

    /// Where tenants share the limit: returns which of these lines, by where they are shown, comes before the others, and
    /// whether it has the turn.
    fn next_line(&self, _is_among: &dyn Fn(usize) -> bool) -> Option<(usize, bool)> {
        None
    }

    /// Where tenants share the limit: returns how far ahead of the others a tenant is. The least one is next.
    fn lead(&self, _key: &str) -> u64 {
        0
    }

    /// Takes back what a tenant was charged for a place of its line that nobody will use.
    fn take_back_charge(&self, _shown: &Cell<Shown>, _place: &RawPermit) {}

    /// Returns whether the units of a place count from when it is taken. Then nothing that is asked for later starts before
    /// it, unless units are returned.
    fn counts_places(&self) -> bool {
        false
    }

    /// Returns how often this process has returned units to the limit's server. A waiter may start sooner since.
    fn returned(&self) -> u64 {
        0
    }

    /// Returns the units of a key that a server has promised for later, because it has some sooner: the next claim asks for
    /// them.
    fn return_promises(&self, _key: &str) {}

    /// Returns whether this place is too late to use, so that it has to be exchanged.
    fn is_late(&self, _place: &RawPermit) -> bool {
        false
    }

    /// Returns whether a start may be possible at any time though a place is held, because a job ends at another
    /// alternative.
    fn may_start_elsewhere(&self) -> bool {
        false
    }

    /// Returns whether a caller is denied immediately if too many wait already.
    fn has_bounded_queue(&self) -> bool {
        false
    }
}

/// What composites and alternatives ask of their children.
#[doc(hidden)]
pub trait Nested: Quiet {
    /// Returns whether a start would be admitted now.
    fn admits(&self, key: &str, weight: u64) -> Result<bool> {
        Ok(self.quiet_peek(key, weight)?.admitted)
    }

    /// Returns whether ending this permit has no effect any more.
    fn is_over(&self, _permit: &RawPermit) -> bool {
        false
    }

    /// Returns whether its parts were charged weights of their own, so that no one number says what all have used.
    fn is_settled_by_parts(&self, _permit: &RawPermit) -> bool {
        false
    }

    /// Checks the units of parts before [`Limiter::settle_parts`](super::Limiter::settle_parts) ends the permit with them.
    fn check_used(&self, _permit: &RawPermit, actual: &[(&str, u64)]) -> Result<()> {
        actual.first().map_or(Ok(()), |(part, _)| Err(unknown_part(&self.base().name, part, &[])))
    }

    /// Returns whether it is, or contains, a limiter of alternatives.
    fn chooses(&self) -> bool {
        false
    }

    /// Returns the alternative that [`CompositePermit::chosen`](crate::permit::CompositePermit::chosen) leads to from here.
    fn chosen_inside(&self, _chosen: u64) -> Option<(usize, Arc<dyn Limiter>)> {
        None
    }

    /// Returns whether a start may have to wait for the end of another.
    fn waits_for_ends(&self) -> bool {
        false
    }

    /// Reads a permit from a text that was written when the limit was called `name`. For composites, whose names may
    /// have stood for one limit.
    fn permit_of_name(&self, _text: &str, _name: &str) -> Result<RawPermit> {
        unsupported("a text", "this kind of limiter")
    }

    /// Returns the key of a permit that was read from a text, if it is still known in full.
    fn key_of(&self, _permit: &RawPermit) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns whether it is, or contains, the limiter of several others with that number. These check this before they take
    /// a child.
    fn contains(&self, _group: u64) -> bool {
        false
    }

    /// Returns the key of a start itself, and its charges by the names of parts: the reverse of `joint`.
    fn describe(&self, key: &str) -> Result<(String, Vec<OwnedCharge>)> {
        Ok((key.to_owned(), Vec::new()))
    }

    /// Returns the key and the weight that a start charges the limit with this name, if it is this limiter or a part of it.
    fn charge_at(&self, limit: &str, (key, weight): (&str, u64)) -> Option<(String, u64)> {
        (*self.base().name == *limit).then(|| (key.to_owned(), weight))
    }

    /// Returns how many composites and alternatives are nested here, this one included.
    fn depth(&self) -> usize {
        0
    }

    /// Records that it is now nested in this many of them.
    fn lower(&self, _above: usize) {}
}

/// The crate-private part of every limiter. It seals the public traits: no type outside the crate can implement it. (A
/// user-defined limiter implements [`Custom`](crate::custom::Custom).)
#[doc(hidden)]
pub trait Internal: Awaited + Nested {}

impl<L: Awaited + Nested + ?Sized> Internal for L {}
