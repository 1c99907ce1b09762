//! At most so many starts in any rolling window, exactly.

use super::{Attempt, Limiter, Presented, Progress, Reserved, Step, Wait, next_id, own};
use crate::algorithm::Start;
use crate::algorithm::log::{Answer, Ask, Known, PLACE, SETTLED, Taken, View, Window};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::permit::{RawPermit, unreadable};
use crate::policy::{self, Policy};
use crate::store::{Blocked, Hash, Home, Key, Limit, OnError, Store, Table, parts, take_units};
use crate::time::{self, Tick, from_ticks};
use std::time::{Duration, Instant, SystemTime};

/// The longest grace of a place, in ticks: 50 ms.
const MOST_GRACE: Tick = 50_000;

/// When to ask again after the store has failed.
const STORE_AGAIN: Duration = Duration::from_secs(1);

/// Above a place's grace, a permit has a part of the instance of its lane.
const LANE: u32 = 48;

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
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `max_executions` is 1 to 1,000,000,000, `window` 1 µs to 366 days, and `name` 1 to
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

    /// The permit of what was taken; `ready` is when its place comes, 0 if it has none.
    #[inline(always)]
    fn permit(&self, found: &Key, taken: Taken, weight: u64, ready: Tick, grace: Tick) -> RawPermit {
        let Hash([h0, h1]) = found.hash;
        let grace = grace | (found.home.instance & 0xffff) << LANE;
        RawPermit { limiter: self.id, key: weight, a: taken.ticket, b: taken.stamp, ready, reserved: [h0, h1, grace] }
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

    /// When a place comes.
    fn ready(&self, permit: &RawPermit) -> Option<(&Home, Tick)> {
        (permit.limiter == self.id && permit.ready != 0).then_some(())?;
        Some((self.limit.home().ok()?, permit.ready))
    }

    /// Asks for a start now or later.
    #[inline(always)]
    fn take(&self, found: &Key, ask: &Ask) -> Result<Answer, Blocked> {
        policy::check_weight(self.name(), ask.weight, found.table.policy.capacity())?;
        let answer = found.cells().claim(ask, || found.home.clock.now())?;
        self.limit.confirm(found, answer.now.floor, answer.taken.as_ref(), ask.weight)?;
        Ok(answer)
    }

    /// Takes a place for a key that was found.
    fn take_place(&self, found: &Key, weight: u64, patience: Tick, grace: Option<Tick>) -> Result<Reserved, Blocked> {
        let windows = windows(&found.table);
        let grace = grace.unwrap_or_else(|| default_grace(windows));
        let ask = Ask { patience, grace, reserve: true, ..Ask::now(windows, weight, found.gate) };
        let answer = self.take(found, &ask)?;
        Ok(match answer.taken {
            Some(taken) => {
                let ready = answer.ready.max(answer.now.floor);
                let place = self.permit(found, taken, weight, ready, grace);
                Reserved::Place { place, after: from_ticks(ready - answer.now.floor) }
            }
            None => Reserved::Denied(from_ticks(answer.ready.saturating_sub(answer.now.floor))),
        })
    }

    /// A permit of this limiter, or nothing of one from a lane that is gone: its times mean nothing here.
    fn own(&self, permit: &RawPermit) -> Result<RawPermit> {
        own(permit, self.id, self.name())?;
        let [h0, h1, grace] = permit.reserved;
        let is_void = grace >> LANE != self.limit.home()?.instance & 0xffff;
        Ok(if is_void {
            let grace = only_grace(grace) | (self.limit.home()?.instance & 0xffff) << LANE;
            RawPermit { a: u64::MAX, b: 0, ready: 0, reserved: [h0, h1, grace], ..*permit }
        } else {
            *permit
        })
    }

    /// The answer, or what the store's [`OnError`] says instead of its failure: admitted or not.
    #[inline(always)]
    fn or_instead<R>(&self, answer: Result<R>, instead: impl FnOnce(bool) -> R) -> Result<R> {
        match answer {
            Err(error) => match self.limit.store().on_error(&error) {
                OnError::Raise => Err(error),
                OnError::Deny => Ok(instead(false)),
                OnError::Admit => Ok(instead(true)),
            },
            answer => answer,
        }
    }

    /// A permit that counts nowhere.
    fn uncounted(&self, weight: u64) -> RawPermit {
        RawPermit { limiter: self.id, key: weight, a: u64::MAX, b: 0, ready: 0, reserved: [0; 3] }
    }

    /// What is known while the store fails.
    fn undecided(&self, admitted: bool) -> Decision {
        let after = if admitted { Duration::ZERO } else { STORE_AGAIN };
        Decision {
            permit: None,
            admitted,
            retry_after: after,
            suggested_after: after,
            remaining: 0,
            limit: self.limit.declares().map_or(0, |policy| policy.capacity()),
            reset_after: Duration::ZERO,
            denied_by: (!admitted).then(|| self.limit.name().clone()),
        }
    }

    /// Has a start left every window by now?
    fn is_over(&self, permit: &RawPermit) -> Result<bool> {
        let table = self.limit.table()?;
        Ok(permit.b.saturating_add(table.policy.longest()) <= self.limit.home()?.clock.now().floor)
    }
}

/// The policy of a rate limit's table.
#[inline(always)]
fn windows(table: &Table) -> &[Window] {
    match &table.policy {
        Policy::Rate(windows) => windows.as_slice(),
        Policy::Concurrency { .. } => unreachable!("the kind was checked when the limit was opened"),
    }
}

/// What a permit says of its start, and the hash of its key.
fn known(permit: &RawPermit) -> (Hash, Known) {
    let [h0, h1, _] = permit.reserved;
    (Hash([h0, h1]), Known { ticket: permit.a, stamp: permit.b, weight: permit.key })
}

fn only_grace(word: u64) -> Tick {
    word & ((1 << LANE) - 1)
}

fn default_grace(windows: &[Window]) -> Tick {
    let shortest = windows.iter().map(|w| w.length).min().unwrap_or(0);
    (shortest / 40).min(MOST_GRACE)
}

/// The calls, whose failures the store's [`OnError`] has not seen yet.
impl RateLimiter {
    #[inline(always)]
    fn do_attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        policy::check_some(weight)?;
        self.limit.with_key(key, |found| {
            let answer = self.take(found, &Ask::now(windows(&found.table), weight, found.gate))?;
            Ok(match answer.taken {
                Some(taken) => Attempt::Admitted(self.permit(found, taken, weight, 0, 0)),
                None => Attempt::Denied(from_ticks(answer.ready.saturating_sub(answer.now.floor))),
            })
        })
    }

    fn do_decide(&self, key: &str, weight: u64) -> Result<Decision> {
        policy::check_some(weight)?;
        self.limit.with_key(key, |found| {
            policy::check_weight(self.name(), weight, found.table.policy.capacity())?;
            let ask = Ask::now(windows(&found.table), weight, found.gate);
            let (answer, view) = found.cells().claim_and_view(&ask, || found.home.clock.now())?;
            self.limit.confirm(found, view.now, answer.taken.as_ref(), weight)?;
            let mut decision = self.decision(&found.table, view, answer.taken.is_some());
            decision.permit = answer.taken.map(|taken| self.permit(found, taken, weight, 0, 0));
            Ok(decision)
        })
    }

    fn do_peek(&self, key: &str, weight: u64) -> Result<Decision> {
        self.limit.look(key, |home, table, key, gate| {
            policy::check_weight(self.name(), weight, table.policy.capacity())?;
            let ask = Ask::now(windows(table), weight, gate);
            let cells = key.map_or_else(|| Home::untouched(table), |key| home.cells(table, key));
            let view = cells.view(&ask, || home.clock.now())?;
            if home.is_due(view.now) && !home.is_still_there(view.now) {
                return Err(Blocked::Lost);
            }
            Ok(self.decision(table, view, view.ready <= view.now))
        })
    }

    fn do_step(&self, wait: &mut Wait) -> Result<Step> {
        policy::check_some(wait.weight)?;
        while let Progress::Place(place) = wait.progress {
            match self.do_present(&self.own(&place)?)? {
                Presented::Started(permit) => {
                    wait.progress = Progress::Nothing;
                    return Ok(Step::Admitted(permit));
                }
                Presented::Wait { place, after } => {
                    wait.progress = Progress::Place(place);
                    let patience = wait.patience(self.limit.home()?.clock.now().floor);
                    if after > from_ticks(patience) {
                        self.give_up(wait)?;
                        return Ok(Step::Expired(after));
                    }
                    if !after.is_zero() {
                        return Ok(Step::Sleep(after));
                    }
                }
            }
        }
        policy::check_key(&wait.key)?;
        let patience = wait.patience(self.limit.home()?.clock.now().floor);
        let (step, progress) = self.limit.with_key(&wait.key, |found| {
            let windows = windows(&found.table);
            let grace = default_grace(windows);
            let ask = Ask { patience, grace, ..Ask::now(windows, wait.weight, found.gate) };
            let answer = self.take(found, &ask)?;
            let nap = from_ticks(answer.ready.saturating_sub(answer.now.floor));
            Ok(match answer.taken {
                None => (Step::Expired(nap), Progress::Nothing),
                Some(taken) if !taken.is_place => {
                    (Step::Admitted(self.permit(found, taken, wait.weight, 0, 0)), Progress::Nothing)
                }
                Some(taken) => {
                    let place = self.permit(found, taken, wait.weight, answer.ready, grace);
                    (Step::Sleep(nap), Progress::Place(place))
                }
            })
        })?;
        wait.progress = progress;
        Ok(step)
    }

    fn do_cancel(&self, permit: &RawPermit) -> Result<()> {
        if self.is_over(permit)? {
            return Ok(());
        }
        let (hash, start) = known(permit);
        self.limit.take_back(hash, start)
    }

    fn do_settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        let (hash, start) = known(permit);
        let (is_over, debt) = (self.is_over(permit)?, actual.saturating_sub(start.weight));
        if is_over && debt == 0 {
            return Ok(());
        }
        if is_over {
            // The key may have been forgotten since.
            self.limit.with_hash(hash, |_| Ok(()))?;
        }
        let edited = self.limit.rewrite(hash, |home, table, history| {
            let parts = parts(table, history, start);
            if parts.is_empty() && !is_over {
                return; // it was ended before
            }
            parts.iter().for_each(|&i| history.starts[i].state = SETTLED);
            take_units(history, &parts, start.weight.saturating_sub(actual));
            // A debt counts from now on, however long ago the start was.
            let (stamp, units) = (home.clock.now().ceil, debt.min(table.policy.capacity()));
            let at = history.starts.partition_point(|start| start.stamp <= stamp);
            if units > 0 {
                let debt = Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged: false };
                history.starts.insert(at, debt);
            }
        });
        edited.map(drop)
    }

    fn do_reserve(
        &self,
        key: &str,
        weight: u64,
        max_wait: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Reserved> {
        policy::check_some(weight)?;
        let patience = max_wait.map_or(u64::MAX, time::patience_ticks);
        let grace = grace.map(|grace| time::grace_ticks("grace", grace)).transpose()?;
        self.limit.with_key(key, |found| self.take_place(found, weight, patience, grace))
    }

    fn do_present(&self, place: &RawPermit) -> Result<Presented> {
        policy::check_some(place.key)?;
        let early = place.ready.saturating_sub(self.limit.home()?.clock.now().floor);
        if early > 0 {
            return Ok(Presented::Wait { place: *place, after: from_ticks(early) });
        }
        let (hash, start) = known(place);
        let has_started = self.limit.with_hash(hash, |found| {
            let now = found.home.clock.now();
            self.limit.confirm(found, now.floor, None, 0)?;
            let is_good = found.gate <= now.floor && now.ceil <= start.stamp;
            Ok(is_good && found.cells().present(start)?)
        })?;
        if has_started {
            return Ok(Presented::Started(*place));
        }
        // Late, used before, or overtaken by a gate, a clear or another policy: a fresh place for it. If it was not used
        // it does not count any longer.
        if !self.is_over(place)? {
            self.limit.rewrite(hash, |_, table, history| {
                let mut parts = parts(table, history, start);
                parts.retain(|&i| table.policy.is_sliced() || history.starts[i].state == PLACE);
                take_units(history, &parts, start.weight);
            })?;
        }
        let grace = Some(only_grace(place.reserved[2]));
        let fresh = self.limit.with_hash(hash, |found| self.take_place(found, start.weight, u64::MAX, grace));
        match fresh? {
            Reserved::Place { place, after } => Ok(Presented::Wait { place, after }),
            Reserved::Denied(after) => {
                Err(Error::Unsupported { reason: format!("a place {after:?} from now is beyond what a log can hold") })
            }
        }
    }

    fn do_record_job_start(&self, key: &str) -> Result<()> {
        self.limit.with_key(key, |found| {
            let ask = Ask { force: true, ..Ask::now(windows(&found.table), 1, 0) };
            self.take(found, &ask).map(drop)
        })
    }
}

impl Limiter for RateLimiter {
    fn name(&self) -> &str {
        self.limit.name()
    }

    #[inline]
    fn attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        let instead = |is_admitted| match is_admitted {
            true => Attempt::Admitted(self.uncounted(weight)),
            false => Attempt::Denied(STORE_AGAIN),
        };
        self.or_instead(self.do_attempt(key, weight), instead)
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Decision> {
        let instead = |is_admitted| Decision {
            permit: if is_admitted { Some(self.uncounted(weight)) } else { None },
            ..self.undecided(is_admitted)
        };
        self.or_instead(self.do_decide(key, weight), instead)
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Decision> {
        self.or_instead(self.do_peek(key, weight), |is_admitted| self.undecided(is_admitted))
    }

    fn step(&self, wait: &mut Wait) -> Result<Step> {
        let weight = wait.weight;
        let stepped = self.do_step(wait);
        let elapsed = wait.started.get_or_insert_with(Instant::now).elapsed();
        let left = wait.timeout.map_or(STORE_AGAIN, |timeout| timeout.saturating_sub(elapsed));
        let step = self.or_instead(stepped, |is_admitted| match is_admitted {
            true => Step::Admitted(self.uncounted(weight)),
            false if left.is_zero() => Step::Expired(STORE_AGAIN),
            false => Step::Sleep(left.min(STORE_AGAIN)),
        })?;
        if let Step::Expired(_) = step {
            self.give_up(wait)?;
        }
        Ok(step)
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.or_instead(self.own(permit).and_then(|permit| self.do_cancel(&permit)), |_| ())
    }

    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        self.or_instead(self.own(permit).and_then(|permit| self.do_settle(&permit, actual)), |_| ())
    }

    fn reserve(&self, key: &str, weight: u64, max_wait: Option<Duration>, grace: Option<Duration>) -> Result<Reserved> {
        self.or_instead(self.do_reserve(key, weight, max_wait, grace), |is_admitted| match is_admitted {
            true => Reserved::Place { place: self.uncounted(weight), after: Duration::ZERO },
            false => Reserved::Denied(STORE_AGAIN),
        })
    }

    fn present(&self, place: &RawPermit) -> Result<Presented> {
        let presented = self.own(place).and_then(|place| self.do_present(&place));
        self.or_instead(presented, |is_admitted| match is_admitted {
            true => Presented::Started(self.uncounted(place.key)),
            false => Presented::Wait { place: *place, after: STORE_AGAIN },
        })
    }

    fn record_job_start(&self, key: &str) -> Result<()> {
        self.or_instead(self.do_record_job_start(key), |_| ())
    }

    fn give_up(&self, wait: &mut Wait) -> Result<()> {
        match std::mem::replace(&mut wait.progress, Progress::Nothing) {
            Progress::Place(place) => self.cancel(&place),
            _ => Ok(()),
        }
    }

    fn nap(&self, _wait: &Wait, nap: Duration) {
        if let Ok(home) = self.limit.home() {
            home.clock.sleep(nap);
        }
    }

    fn complete(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.id, self.name())
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        let permit = self.own(permit)?;
        if self.limit.table()?.policy.is_sliced() {
            let reason = "a permit of a limit above 4,096 cannot leave its process: its units are only counted";
            return Err(Error::Unsupported { reason: reason.into() });
        }
        let RawPermit { key: weight, a: ticket, b: stamp, ready, reserved: [h0, h1, grace], .. } = permit;
        let home = self.limit.home()?;
        let Hash([name, _]) = home.hash(b'n', self.name());
        let limit = name << 32 | home.instance & 0xffff_ffff;
        Ok(format!(
            "wgl1.{limit:016x}.{h0:016x}{h1:016x}.{ticket:x}.{stamp:x}.{ready:x}.{weight:x}.{:x}",
            only_grace(grace)
        ))
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        let [limit, h0, h1, ticket, stamp, ready, weight, grace] = parse(text).ok_or_else(|| unreadable(text))?;
        let home = self.limit.home()?;
        let Hash([name, _]) = home.hash(b'n', self.name());
        if limit >> 32 != name & 0xffff_ffff {
            return Err(Error::ForeignPermit { limit: self.name().to_owned() });
        }
        let reserved = [h0, h1, grace | (home.instance & 0xffff) << LANE];
        let place = RawPermit { limiter: self.id, key: weight, a: ticket, b: stamp, ready, reserved };
        // Of an earlier boot, whose times mean nothing here: whoever presents it gets a fresh place.
        let is_void = limit & 0xffff_ffff != home.instance & 0xffff_ffff;
        Ok(if is_void { RawPermit { a: u64::MAX, b: 0, ready: 0, ..place } } else { place })
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
        self.limit.forget(key)
    }

    fn ready_in(&self, permit: &RawPermit) -> Option<Duration> {
        self.ready(permit).map(|(home, ready)| from_ticks(ready.saturating_sub(home.clock.now().floor)))
    }

    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        self.ready(permit).map(|(home, ready)| home.clock.to_system(ready))
    }

    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        self.ready(permit).map(|(home, ready)| home.clock.to_monotonic_ns(ready))
    }
}

/// The eight numbers of a permit's text.
fn parse(text: &str) -> Option<[u64; 8]> {
    let parts: Vec<&str> = text.strip_prefix("wgl1.")?.split('.').collect();
    let &[limit, key, ticket, stamp, ready, weight, grace] = parts.as_slice() else { return None };
    let number = |digits: &str| {
        let is_number = digits.len() <= 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        is_number.then(|| u64::from_str_radix(digits, 16).ok())?
    };
    let (h0, h1) = key.split_at_checked(16)?;
    let (weight, grace) = (number(weight)?, number(grace)?);
    let is_possible = weight > 0 && grace <= time::LONGEST;
    is_possible.then_some([
        number(limit)?,
        number(h0)?,
        number(h1)?,
        number(ticket)?,
        number(stamp)?,
        number(ready)?,
        weight,
        grace,
    ])
}
