//! At most so many starts in any rolling window, exactly.

use super::{Attempt, Limiter, Presented, Progress, Reserved, Step, Wait, next_id, own, unsupported};
use crate::algorithm::log::{Ask, Log, Taken, View, Window};
use crate::decision::Decision;
use crate::error::Result;
use crate::permit::RawPermit;
use crate::policy::{self, Policy};
use crate::store::{Home, Limit, Store, Table};
use crate::time::{Tick, from_ticks};
use std::time::{Duration, SystemTime};

/// The longest grace of a place, in ticks: 50 ms.
const MOST_GRACE: Tick = 50_000;

/// At most `max_executions` units in any rolling window: a sliding log, shared by all who open the same name in the
/// same store. A start at `s` counts until exactly `s + window`.
///
/// ```
/// # use std::time::Duration;
/// # use workglow_limit::{Limiter, RateLimiter, Store};
/// let limiter = RateLimiter::new(&Store::new("memory:")?, "mail", 2, Duration::from_secs(60))?;
/// assert!(limiter.try_acquire("", 1)?.is_some());
/// assert!(limiter.try_acquire("", 1)?.is_some());
/// assert!(limiter.try_acquire("", 1)?.is_none());
/// # Ok::<(), workglow_limit::Error>(())
/// ```
#[derive(Debug)]
pub struct RateLimiter {
    id: u64,
    limit: Limit,
}

impl RateLimiter {
    /// Declares a limit under a name, at the first use, in place of the policy that the name had.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `max_executions` is 1 to 4,096, `window` 1 µs to 366 days, and `name` 1 to
    /// 1,024 bytes.
    pub fn new(store: &Store, name: &str, max_executions: u64, window: Duration) -> Result<Self> {
        Self::with_windows(store, name, &[(max_executions, window)])
    }

    /// The same with several windows, `(max_executions, window)` each: a start needs room in all of them.
    ///
    /// # Errors
    /// As for [`RateLimiter::new`]; one to four windows.
    pub fn with_windows(store: &Store, name: &str, windows: &[(u64, Duration)]) -> Result<Self> {
        let limit = Limit::declare(store, name, Policy::rate_in(windows)?)?;
        Ok(RateLimiter { id: next_id(), limit })
    }

    /// Takes the limit that is declared under a name; at the first use it must be.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `name` is 1 to 1,024 bytes.
    pub fn attach(store: &Store, name: &str) -> Result<Self> {
        let limit = Limit::attach(store, name, "rate")?;
        Ok(RateLimiter { id: next_id(), limit })
    }

    /// Declares or attaches now, instead of at the first decision.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`](crate::Error::UnknownLimit), [`Error::KindMismatch`](crate::Error::KindMismatch), or a store error.
    pub fn open(&self) -> Result<()> {
        self.limit.table().map(drop)
    }

    /// The permit of a start; `ready` is when its place came, 0 if it had none.
    fn permit(&self, key: u64, taken: Taken, ready: Tick) -> RawPermit {
        RawPermit { limiter: self.id, key, a: taken.ticket, b: taken.stamp, ready, reserved: [0; 3] }
    }

    fn decision(&self, table: &Table, view: View, admitted: bool) -> Decision {
        let after = |tick: Tick| from_ticks(tick.saturating_sub(view.now));
        let retry_after = if admitted { Duration::ZERO } else { after(view.ready) };
        Decision {
            permit: None,
            admitted,
            retry_after,
            suggested_after: retry_after,
            remaining: view.remaining,
            limit: table.policy.capacity(),
            reset_after: after(view.empty),
            denied_by: (!admitted).then(|| self.limit.name().clone()),
        }
    }

    /// When a place came.
    fn ready(&self, permit: &RawPermit) -> Option<(&Home, Tick)> {
        (permit.limiter == self.id && permit.ready != 0).then_some(())?;
        Some((self.limit.home().ok()?, permit.ready))
    }
}

/// The policy of a rate limit's table.
#[inline(always)]
fn window(table: &Table) -> Window {
    match table.policy {
        Policy::Rate(windows) => windows.as_slice()[0],
        Policy::Concurrency { .. } => unreachable!("the kind was checked when the limit was opened"),
    }
}

impl Limiter for RateLimiter {
    fn name(&self) -> &str {
        self.limit.name()
    }

    #[inline]
    fn attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        policy::check_some(weight)?;
        self.limit.with_key(key, |found| {
            let windows = [window(&found.table)];
            policy::check_weight(self.name(), weight, windows[0].limit)?;
            let ask = Ask::now(&windows, weight, found.gate);
            let answer = found.home.log(&found.table, found.at).claim(&ask, || found.home.clock.now())?;
            found.home.still_there(answer.now.floor)?;
            Ok(match answer.taken {
                Some(taken) => Attempt::Admitted(self.permit(found.at, taken, 0)),
                None => Attempt::Denied(from_ticks(answer.ready.saturating_sub(answer.now.floor))),
            })
        })
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_some(weight)?;
        self.limit.with_key(key, |found| {
            let windows = [window(&found.table)];
            policy::check_weight(self.name(), weight, windows[0].limit)?;
            let ask = Ask::now(&windows, weight, found.gate);
            let log = found.home.log(&found.table, found.at);
            let (answer, view) = log.claim_and_view(&ask, || found.home.clock.now())?;
            found.home.still_there(view.now)?;
            let mut decision = self.decision(&found.table, view, answer.taken.is_some());
            decision.permit = answer.taken.map(|taken| self.permit(found.at, taken, 0));
            Ok(decision)
        })
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Decision> {
        self.limit.look(key, |home, table, at, gate| {
            let windows = [window(table)];
            policy::check_weight(self.name(), weight, windows[0].limit)?;
            let ask = Ask::now(&windows, weight, gate);
            let log = at.map_or_else(|| Log::untouched(table.born), |at| home.log(table, at));
            let view = log.view(&ask, || home.clock.now())?;
            home.still_there(view.now)?;
            Ok(self.decision(table, view, view.ready <= view.now))
        })
    }

    fn step(&self, wait: &mut Wait) -> Result<Step> {
        policy::check_key(&wait.key)?;
        policy::check_some(wait.weight)?;
        let now = self.limit.home()?.clock.now();
        if let Progress::Place { table, permit } = wait.progress {
            if now.floor < permit.ready {
                return Ok(Step::Sleep(from_ticks(permit.ready - now.floor)));
            }
            wait.progress = Progress::Nothing;
            let is_good = self.limit.with_key(&wait.key, |found| {
                let log = found.home.log(&found.table, found.at);
                log.still_open()?;
                found.home.still_there(now.floor)?;
                let is_same = found.table.at == table && found.at == permit.key && log.counts(permit.a);
                Ok(is_same && found.gate <= now.floor && now.ceil <= permit.b)
            })?;
            if is_good {
                return Ok(Step::Admitted(permit));
            }
            // Late, or overtaken by a gate, a clear or another policy: a fresh place. The old one stays counted.
        }
        let patience = wait.patience(now.floor);
        let (step, progress) = self.limit.with_key(&wait.key, |found| {
            let windows = [window(&found.table)];
            policy::check_weight(self.name(), wait.weight, windows[0].limit)?;
            let grace = (windows[0].length / 40).min(MOST_GRACE);
            let ask = Ask { windows: &windows, weight: wait.weight, gate: found.gate, patience, grace, force: false };
            let answer = found.home.log(&found.table, found.at).claim(&ask, || found.home.clock.now())?;
            found.home.still_there(answer.now.floor)?;
            let nap = from_ticks(answer.ready.saturating_sub(answer.now.floor));
            Ok(match answer.taken {
                None => (Step::Expired(nap), Progress::Nothing),
                Some(taken) if nap.is_zero() => (Step::Admitted(self.permit(found.at, taken, 0)), Progress::Nothing),
                Some(taken) => {
                    let permit = self.permit(found.at, taken, answer.ready);
                    (Step::Sleep(nap), Progress::Place { table: found.table.at, permit })
                }
            })
        })?;
        wait.progress = progress;
        Ok(step)
    }

    fn nap(&self, _wait: &Wait, nap: Duration) {
        if let Ok(home) = self.limit.home() {
            home.clock.sleep(nap);
        }
    }

    fn complete(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn settle(&self, permit: &RawPermit, _actual: u64) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn reserve(&self, _: &str, _: u64, _: Option<Duration>, _: Option<Duration>) -> Result<Reserved> {
        unsupported("reserve", "now")
    }

    fn present(&self, _: &RawPermit) -> Result<Presented> {
        unsupported("present", "now")
    }

    fn to_text(&self, _: &RawPermit) -> Result<String> {
        unsupported("to_text", "now")
    }

    fn from_text(&self, _: &str) -> Result<RawPermit> {
        unsupported("from_text", "now")
    }

    fn record_job_start(&self, key: &str) -> Result<()> {
        self.limit.with_key(key, |found| {
            let windows = [window(&found.table)];
            let ask = Ask { windows: &windows, weight: 1, gate: 0, patience: 0, grace: 0, force: true };
            let clock = &found.home.clock;
            let answer = found.home.log(&found.table, found.at).claim(&ask, || clock.now())?;
            found.home.still_there(answer.now.floor)?;
            Ok(())
        })
    }

    fn record_job_completion(&self, key: &str) -> Result<()> {
        policy::check_key(key)
    }

    fn set_next_available_time(&self, key: &str, at: SystemTime) -> Result<()> {
        self.limit.close_gate(key, self.limit.home()?.clock.tick_of(at)?)
    }

    fn pause(&self, key: &str, pause: Duration) -> Result<()> {
        self.limit.close_gate(key, self.limit.home()?.clock.tick_in("pause", pause)?)
    }

    fn clear(&self, key: &str) -> Result<()> {
        let reaches_beyond = self.limit.with_key(key, |found| {
            let now = found.home.clock.now();
            let clear = |at| {
                let log = found.home.log(&found.table, at);
                log.clear().map(|()| log.reaches_beyond(now))
            };
            if !key.is_empty() {
                return Ok(clear(found.at)?);
            }
            found.home.forget_birth(&found.table);
            let mut any = false;
            for at in found.home.keys(&found.table) {
                any |= clear(at)?;
            }
            Ok(any)
        })?;
        self.limit.open_gates(key)?;
        // Stamps never decrease, so what starts now would count from the last of the places that were taken.
        if reaches_beyond { self.limit.renew() } else { Ok(()) }
    }

    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        self.ready(permit).map(|(home, ready)| home.clock.to_system(ready))
    }

    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        self.ready(permit).map(|(home, ready)| home.clock.to_monotonic_ns(ready))
    }
}
