//! A limiter's hold on its limit: declared or attached at the first use, then a few loads away.

use super::counts::{Counts, STORE_ERRORS};
use super::damage::{nonsense, or_damaged};
use super::declare::{check_names, part_names};
use super::index::KeyAt;
use super::locked::Locked;
use super::room::Search;
use super::session::Session;
use super::table::{BEHIND, Blocked, Hash, Home, Table, UNKEPT};
use super::{Durability, OnError, Store};
use crate::algorithm::cells::Cells;
use crate::algorithm::jobs::Jobs;
use crate::algorithm::log::{Known, SETTLED, Taken};
use crate::algorithm::{History, Start};
use crate::atomic::*;
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::fault;
use crate::permit::RawPermit;
use crate::policy::{self, Policy, Shape};
use crate::stats::Stats;
use crate::time::{Now, Tick, monotonic_ns};
use crate::waiting::MayWait;
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::time::{Duration, Instant};

/// When to ask again after the store has failed.
pub(crate) const STORE_AGAIN: Duration = Duration::from_secs(1);

/// For so many nanoseconds a limiter does not search a full store again in which it found no idle keys: else each new key
/// would be a search.
const IN_VAIN: u64 = 200_000_000;

/// One limit of one store, as one limiter uses it.
#[derive(Debug)]
pub(crate) struct Limit {
    store: Arc<Session>,
    name: Arc<str>,
    /// What this limiter declares; an attached one takes what the store has, if it is of the right kind.
    declares: Option<Policy>,
    /// The composite that it is declared with.
    part_of: Option<Arc<Composite>>,
    kind: &'static str,
    /// Is every start to be in the ledger before it happens?
    commits: bool,
    /// Failures of the store from before the limit was found.
    early_errors: AtomicU64,
    /// Until when, by the monotonic clock, a full store is not searched again.
    full_until: AtomicU64,
    /// Null until the first use.
    bound: AtomicPtr<Bound>,
}

/// Several limits that are declared together, under a name that stands for all of them.
#[derive(Debug)]
pub(crate) struct Composite {
    name: String,
    policies: Vec<Policy>,
    is_declared: AtomicBool,
}

/// Where a limit was found, and the finding that this one replaced: somebody may still be using it, so they live as long
/// as their limiter.
#[derive(Debug)]
struct Bound {
    home: *const Home,
    limit: u64,
    /// What this is good for: see [`Session::epoch`].
    epoch: u64,
    table: AtomicU64,
    /// Who this process is there, for leases: see [`crate::algorithm::leases`].
    member: u64,
    counts: Arc<Counts>,
    before: *mut Bound,
}

// SAFETY: the pointers lead to what lives as long as the limiter, and may be shared.
unsafe impl Send for Limit {}
// SAFETY: as above.
unsafe impl Sync for Limit {}

impl Bound {
    #[inline(always)]
    fn home(&self) -> &Home {
        // SAFETY: a store keeps its homes for as long as it lives, and the limiter keeps its store.
        unsafe { &*self.home }
    }
}

/// Counts how often a call starts over: what one process does at a time lets others go on, so it does not last.
struct Turns<'s> {
    count: u64,
    store: &'s Session,
    first: Option<Instant>,
}

impl Turns<'_> {
    #[inline(always)]
    fn next(&mut self) -> Result<()> {
        self.count += 1;
        if self.count.is_multiple_of(32) { self.has_time() } else { Ok(()) }
    }

    #[cold]
    fn has_time(&mut self) -> Result<()> {
        if self.first.get_or_insert_with(Instant::now).elapsed() <= self.store.options.timeout {
            return Ok(());
        }
        nonsense("what is mended does not stay so")
    }
}

/// One key of a limit, found.
pub(crate) struct Key<'a> {
    pub home: &'a Home,
    pub table: Table,
    pub key: KeyAt,
    /// What it is known by, wherever it lives.
    pub hash: Hash,
    /// Nobody starts before this: the later of the key's own gate and of the one that binds all keys.
    pub gate: u64,
    /// Who this process is there, for leases: see [`crate::algorithm::leases`].
    pub member: u64,
    pub counts: &'a Counts,
}

impl Key<'_> {
    #[inline(always)]
    pub fn cells(&self) -> Cells<'_> {
        self.home.cells(&self.table, self.key)
    }

    #[inline(always)]
    pub fn jobs(&self) -> Option<Jobs<'_>> {
        self.home.jobs(&self.table, self.key.at)
    }
}

impl Limit {
    pub fn declare(store: &Store, name: &str, policy: Policy) -> Result<Limit> {
        policy::check_name(name)?;
        Ok(Self::new(store, name, Some(policy), policy.kind()))
    }

    pub fn attach(store: &Store, name: &str, kind: &'static str) -> Result<Limit> {
        policy::check_name(name)?;
        Ok(Self::new(store, name, None, kind))
    }

    /// The limits of several policies: of one, a limit of that name.
    pub fn declare_parts(store: &Store, name: &str, policies: Vec<Policy>) -> Result<Vec<Limit>> {
        check_names(name, &policies)?;
        let all = Arc::new(Composite { name: name.to_owned(), policies, is_declared: AtomicBool::new(false) });
        let part = |(name, policy): (String, &Policy)| {
            let mut limit = Self::new(store, &name, Some(*policy), policy.kind());
            limit.part_of = Some(all.clone());
            limit
        };
        Ok(part_names(name, &all.policies).into_iter().zip(&all.policies).map(part).collect())
    }

    fn new(store: &Store, name: &str, declares: Option<Policy>, kind: &'static str) -> Limit {
        let store = store.session().clone();
        let commits = store.options.durability == Durability::Commit;
        let bound = AtomicPtr::new(ptr::null_mut());
        Limit {
            store,
            name: name.into(),
            declares,
            part_of: None,
            kind,
            commits,
            early_errors: AtomicU64::new(0),
            full_until: AtomicU64::new(0),
            bound,
        }
    }

    pub fn kind(&self) -> &'static str {
        self.kind
    }

    pub fn is_concurrency(&self) -> bool {
        self.kind == "concurrency"
    }

    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// May its starts depend on what jobs take?
    pub fn adapts(&self) -> Result<bool> {
        let may_adapt =
            |bound: &Bound| bound.home().table(bound.limit).policy.jobs() > 0 || bound.home().has_plans(bound.limit);
        Ok(self.kind == "evenly-spaced" && self.reading(|_| self.bound().map(may_adapt))?)
    }

    pub fn store(&self) -> &Session {
        &self.store
    }

    /// The answer, or what the store's [`OnError`] says instead of its failure: admitted or not.
    #[inline(always)]
    pub fn or_instead<R>(&self, answer: Result<R>, instead: impl FnOnce(bool) -> R) -> Result<R> {
        match answer {
            Err(error) => {
                self.count_error(&error);
                match self.store.on_error(&error) {
                    OnError::Raise => Err(error),
                    OnError::Deny => Ok(instead(false)),
                    OnError::Admit => Ok(instead(true)),
                }
            }
            answer => answer,
        }
    }

    #[cold]
    fn count_error(&self, error: &Error) {
        if !error.is_of_the_store() {
            return;
        }
        // SAFETY: as in `bound`.
        match unsafe { self.bound.load(Acquire).as_ref() } {
            Some(bound) => bound.counts.add(None, STORE_ERRORS, 1),
            None => drop(self.early_errors.fetch_add(1, Relaxed)),
        }
    }

    /// Where this process counts.
    pub fn counts(&self) -> Result<&Counts> {
        self.bound().map(|bound| &*bound.counts)
    }

    /// Counts something of a key, if the limit can be used.
    pub fn count(&self, hash: Hash, what: usize, n: u64) {
        if let Ok(counts) = self.counts() {
            counts.add(Some(hash), what, n);
        }
    }

    /// What was counted, of a key or with the empty key of all.
    pub fn stats(&self, key: &str) -> Result<Stats> {
        policy::check_key(key)?;
        self.with_table(|home, limit, table| {
            self.store.tell_counts_of(limit, home)?;
            Ok(if key.is_empty() { home.counts(limit) } else { home.counts_of_key(table, key) })
        })
    }

    /// What is known while the store fails: admitted, if there is a permit.
    pub fn undecided(&self, permit: Option<RawPermit>) -> Decision {
        let after = if permit.is_some() { Duration::ZERO } else { STORE_AGAIN };
        Decision {
            permit,
            admitted: permit.is_some(),
            retry_after: after,
            suggested_after: after,
            remaining: 0,
            limit: self.declares.map_or(0, |policy| policy.capacity()),
            reset_after: Duration::ZERO,
            denied_by: permit.is_none().then(|| self.name.clone()),
        }
    }

    /// Makes sure that the limit can be used, and returns where it is.
    #[inline(always)]
    fn bound(&self) -> Result<&Bound> {
        // SAFETY: null, or published by `bind` and freed only by `drop`.
        match unsafe { self.bound.load(Acquire).as_ref() } {
            Some(bound) if bound.epoch == self.store.epoch() => Ok(bound),
            _ => self.store.with_lock(|locked| self.bind(locked)),
        }
    }

    /// Makes sure that the limit can be used, and returns where it lives.
    #[inline(always)]
    pub fn home(&self) -> Result<&Home> {
        self.bound().map(Bound::home)
    }

    /// Makes sure that the limit can be used, and returns where it lives, and who this process is there.
    pub fn membership(&self) -> Result<(&Home, u64)> {
        self.bound().map(|bound| (bound.home(), bound.member))
    }

    /// Makes sure that the limit can be used, and returns its table.
    #[inline(always)]
    pub fn table(&self) -> Result<Table> {
        self.reading(|_| {
            let bound = self.bound()?;
            Ok(bound.home().table(bound.limit))
        })
    }

    /// The same of a key, which may have a policy of its own.
    #[inline(always)]
    pub fn table_of(&self, hash: Hash) -> Result<Table> {
        let limit = self.reading(|_| {
            let bound = self.bound()?;
            Ok((!bound.home().has_plans(bound.limit)).then(|| bound.home().table(bound.limit)))
        })?;
        match limit {
            Some(table) => Ok(table),
            None => match self.with_known(hash, |found| Ok(found.table))? {
                Some(table) => Ok(table),
                None => self.table(),
            },
        }
    }

    /// Does something with a key, again if it moved or something had to grow meanwhile.
    #[inline(always)]
    pub fn with_key<R>(&self, key: &str, f: impl Fn(&Key) -> Result<R, Blocked>) -> Result<R> {
        policy::check_key(key)?;
        let found = self.with(|home, table| home.key(table, key).map(Some), |home| home.hash(b'k', key), f);
        found.map(|answer| answer.expect("a key that is not there is added"))
    }

    /// The same with a key that is known by its hash only.
    pub fn with_hash<R>(&self, hash: Hash, f: impl Fn(&Key) -> Result<R, Blocked>) -> Result<R> {
        let found = self.with(|home, table| home.find_or_add(table, hash, "?").map(Some), |_| hash, f);
        found.map(|answer| answer.expect("a key that is not there is added"))
    }

    /// The text of a key that is known by its hash, if it is still here in full: long ones are cut.
    pub fn key_text(&self, hash: Hash) -> Result<Option<String>> {
        let home = self.home()?;
        if hash == home.hash(b'k', "") {
            return Ok(Some(String::new()));
        }
        let text = self.with_known(hash, |found| Ok(found.home.text_of(found.key.at)))?;
        Ok(text.filter(|text| home.hash(b'k', text) == hash))
    }

    /// The same with a key that may be forgotten: then there is no answer.
    pub fn with_known<R>(&self, hash: Hash, f: impl Fn(&Key) -> Result<R, Blocked>) -> Result<Option<R>> {
        self.with(|home, table| home.find(table, hash), |_| hash, f)
    }

    /// `None`: `find` did not find the key.
    #[inline(always)]
    fn with<R>(
        &self,
        find: impl Fn(&Home, &Table) -> Result<Option<KeyAt>, Blocked>,
        hash: impl Fn(&Home) -> Hash,
        f: impl Fn(&Key) -> Result<R, Blocked>,
    ) -> Result<Option<R>> {
        self.reading(|turns| {
            loop {
                turns.next()?;
                let bound = self.bound()?;
                let (home, limit) = (bound.home(), bound.limit);
                let mut table = home.table_at(bound.table.load(Acquire));
                let at = table.at;
                fault::point("resolved");
                let blocked = match find(home, &table) {
                    Ok(None) => return Ok(None),
                    Ok(Some(key)) => {
                        let gate = home.gate(limit, key.at);
                        if key.table != at {
                            table = home.table_at(key.table);
                        }
                        home.adapt(&mut table, key.at);
                        // Before anything is decided: if the life is the same then, all of this was the key's.
                        let hash = home.hash_at(key.at);
                        let (member, counts) = (bound.member, &*bound.counts);
                        match f(&Key { home, table, key, hash, gate, member, counts }) {
                            Ok(answer) => return Ok(Some(answer)),
                            Err(blocked) => blocked,
                        }
                    }
                    Err(blocked) => blocked,
                };
                self.unblock(bound, at, hash(home), blocked)?;
            }
        })
    }

    /// Looks at a key without adding it: `f` gets its block, if it has one, and the gate that binds it.
    pub fn look<R>(&self, key: &str, f: impl Fn(&Home, &Table, Option<KeyAt>, u64) -> Result<R, Blocked>) -> Result<R> {
        policy::check_key(key)?;
        self.reading(|turns| {
            loop {
                turns.next()?;
                let bound = self.bound()?;
                let (home, limit) = (bound.home(), bound.limit);
                let table = home.table_at(bound.table.load(Acquire));
                let look_at = |found: KeyAt| {
                    let mut own = home.table_of(&table, found);
                    home.adapt(&mut own, found.at);
                    f(home, &own, Some(found), home.gate(limit, found.at))
                };
                let look_at_none = |own: &Table| match home.has_lost(own) {
                    // A new key is not a fresh one here.
                    true => home.key(&table, key).and_then(look_at),
                    false => f(home, own, None, home.limit_gate(limit).load(Acquire)),
                };
                let answer = match home.peek_key(&table, key) {
                    // The key may be in the table that has come in this one's place.
                    Ok(None) if home.table(limit).at != table.at => Err(Blocked::Moved),
                    Ok(None) => look_at_none(&table),
                    Ok(Some(found)) => look_at(found),
                    Err(Blocked::Sealed) => match home.plan_of_idle(&table, home.hash(b'k', key)) {
                        Some(plan) => look_at_none(&plan),
                        None => Err(Blocked::Sealed),
                    },
                    Err(blocked) => Err(blocked),
                };
                match answer {
                    Ok(answer) => return Ok(answer),
                    Err(blocked) => self.unblock(bound, table.at, home.hash(b'k', key), blocked)?,
                }
            }
        })
    }

    /// Does what reads the lane, which others may have written to.
    #[inline(always)]
    fn reading<R>(&self, f: impl FnOnce(&mut Turns) -> Result<R>) -> Result<R> {
        or_damaged(|| self.store.lane_path(), || f(&mut Turns { count: 0, store: &self.store, first: None }))
    }

    /// To be called with every answer before it is given: with its time, and what was taken with it. Looks after what is
    /// due, and lets nobody start with more than may be missing from the ledger.
    #[inline(always)]
    pub fn confirm(&self, key: &Key, now: Now, taken: Option<&Taken>, weight: u64) -> Result<(), Blocked> {
        self.look_after(key.home, now.floor)?;
        match taken {
            Some(taken) if key.table.budget != UNKEPT || self.commits => self.keep(key, now, taken, weight),
            _ => Ok(()),
        }
    }

    /// Sees to it that a start gets into the ledger in time.
    #[inline(always)]
    fn keep(&self, key: &Key, now: Now, taken: &Taken, weight: u64) -> Result<(), Blocked> {
        let budget = self.budget(key);
        if budget < BEHIND {
            let unwritten = key.cells().unwritten(taken.end, now);
            if unwritten > budget || !key.home.is_alive(key.key) {
                return self.wait_for_ledger(key, taken, weight, (budget, now));
            }
            if 2 * unwritten > budget {
                self.store.write_ahead(self.bound()?.limit, key, now);
                return Ok(());
            }
        }
        if budget != UNKEPT && key.home.is_unlisted(key.key.at, now.floor) {
            key.home.list(self.bound()?.limit, key.key.at, key.hash, now.floor);
        }
        Ok(())
    }

    /// How many units of a key may be missing from the ledger.
    #[inline(always)]
    fn budget(&self, key: &Key) -> u64 {
        let commits = self.commits && key.home.is_lane() && !fault::planted("commit later");
        if commits { 0 } else { key.table.budget }
    }

    /// Would a start now have to wait for the ledger, where the caller must not?
    #[inline(always)]
    pub fn would_wait(&self, key: &Key, weight: u64) -> bool {
        (key.table.budget < BEHIND || self.commits) && self.has_spent_budget(key, weight)
    }

    #[cold]
    fn has_spent_budget(&self, key: &Key, weight: u64) -> bool {
        if MayWait::here() != MayWait::Never {
            return false;
        }
        let (unlogged, _) = key.cells().unlogged(key.table.policy.longest(), key.home.clock.now());
        unlogged.iter().map(|start| start.units).sum::<u64>().saturating_add(weight) > self.budget(key)
    }

    /// Looks after what is due once a second.
    #[inline(always)]
    pub fn look_after(&self, home: &Home, now: Tick) -> Result<(), Blocked> {
        if home.is_due(now) { self.look_after_all(home, now) } else { Ok(()) }
    }

    #[cold]
    fn look_after_all(&self, home: &Home, now: Tick) -> Result<(), Blocked> {
        if !home.is_still_there(now) {
            return Err(Blocked::Lost);
        }
        self.store.look_after();
        Ok(())
    }

    /// The job has not started yet: so if the ledger cannot be written it shall not, and nothing was taken.
    #[cold]
    fn wait_for_ledger(&self, key: &Key, taken: &Taken, weight: u64, budget: (u64, Now)) -> Result<(), Blocked> {
        let limit = self.bound()?.limit;
        let written = self.store.wait_for_ledger(limit, key, taken, budget);
        if written.is_err() {
            self.refuse(key, taken, weight)?;
        }
        written
    }

    /// Takes a start back that was taken, if not now then later.
    #[cold]
    pub fn refuse(&self, key: &Key, taken: &Taken, weight: u64) -> Result<()> {
        let (instance, limit) = (key.home.instance, self.bound()?.limit);
        let start = Known { ticket: taken.ticket, stamp: taken.stamp, weight };
        self.store.refuse(Refused { instance, limit, hash: key.hash, start, ahead: taken.ahead });
        Ok(())
    }

    /// Makes room for more open places.
    pub fn add_places(&self) -> Result<()> {
        self.with_table(|home, _, _| home.add_places())
    }

    /// Does something rare to the limit's table, when nobody else does.
    fn with_table<R>(&self, f: impl Fn(&Locked, u64, &Table) -> Result<R>) -> Result<R> {
        self.store.with_lock(|locked| {
            let bound = self.bind(locked)?;
            let limit = bound.limit;
            locked.finish_replacing(limit)?;
            let table = locked.table(limit);
            bound.table.store(table.at, Release);
            let answer = f(locked, limit, &table)?;
            bound.table.store(locked.table(limit).at, Release);
            Ok(answer)
        })
    }

    /// Changes what a key has in its log, if it has any. `false`: the key is not there.
    pub fn rewrite(&self, hash: Hash, edit: impl Fn(&Home, &Table, &mut History)) -> Result<bool> {
        self.with_table(|home, _, table| match home.find(table, hash) {
            Ok(Some(found)) => {
                let own = home.table_of(table, found);
                home.rewrite(table, hash, |history| edit(home, &own, history)).map(|_| true)
            }
            _ => Ok(false),
        })
    }

    /// Takes a start back, while it is there and not settled. Was it?
    pub fn take_back(&self, hash: Hash, start: Known, ahead: u64) -> Result<bool> {
        let was_there = Cell::new(false);
        self.rewrite(hash, |_, table, history| was_there.set(take_back(table, history, start, ahead)))?;
        Ok(was_there.get())
    }

    /// Closes a gate until `until` (0: it stays as it is): of one key, or with the empty key of all.
    pub fn close_gate(&self, key: &str, until: u64) -> Result<()> {
        policy::check_key(key)?;
        if key.is_empty() {
            return self.reading(|_| {
                let mut bound = self.bound()?;
                if bound.home().is_retired(bound.limit) {
                    bound = self.bind_again()?;
                }
                bound.home().limit_gate(bound.limit).fetch_max(until, AcqRel);
                Ok(())
            });
        }
        // Room is made before the lock is taken for good.
        self.with_key(key, |_| Ok(()))?;
        // A block may be another key's by the time that its gate is written, but for the lock.
        self.with_table(|home, _, table| {
            let found = home.find_or_add_locked(table, home.hash(b'k', key), key)?;
            home.key_gate(found.at).fetch_max(until, AcqRel);
            Ok(())
        })
    }

    /// Opens the gates that [`Limit::close_gate`] closed. With the empty key, those of all keys too.
    pub fn open_gates(&self, key: &str) -> Result<()> {
        self.with_table(|home, limit, table| {
            if key.is_empty() {
                home.limit_gate(limit).store(0, Release);
                home.keys(table).for_each(|(_, at)| home.key_gate(at).store(0, Release));
            } else if let Ok(Some(found)) = home.find(table, home.hash(b'k', key)) {
                home.key_gate(found.at).store(0, Release);
            }
            Ok(())
        })
    }

    /// Forgets every start of a rate limit's key and its gate; with the empty key, of all keys.
    pub fn forget(&self, key: &str) -> Result<()> {
        policy::check_key(key)?;
        self.open_gates(key)?;
        self.with_table(|home, limit, table| {
            let hash = home.hash(b'k', key);
            let is_logged = table.budget != UNKEPT || self.commits || home.has_plans(limit);
            if key.is_empty() {
                home.replace(limit, table.policy, true)?;
            } else if let Ok(Some(_)) = home.find(table, hash) {
                let into =
                    home.rewrite(table, hash, |history| *history = History { end: history.end, ..History::default() })?;
                home.forget_habits(into);
            }
            // If this fails, what is forgotten comes back after a reboot.
            if is_logged { self.store.forget_logged(&self.name, (!key.is_empty()).then_some(hash)) } else { Ok(()) }
        })
    }

    #[cold]
    fn unblock(&self, bound: &Bound, table: u64, hash: Hash, blocked: Blocked) -> Result<()> {
        if bound.home().is_retired(bound.limit) {
            return self.bind_again().map(drop);
        }
        match blocked {
            // By a policy that may have been replaced meanwhile.
            Blocked::Refused(error) if bound.home().table(bound.limit).at == table => return Err(error),
            Blocked::Refused(_) => {}
            // A cell that moved is found by looking again.
            Blocked::Moved => {}
            // Whoever has the lock next attaches to what is there instead.
            Blocked::Lost => return self.store.with_lock(|_| Ok(())),
            Blocked::Crowded if !self.is_concurrency() => return self.add_places(),
            Blocked::Crowded => return self.with_table(|home, limit, now| home.add_slots(limit, now, table, hash)),
            Blocked::Sealed if bound.home().table(bound.limit).at == table => {
                return match self.with_table(|home, _, table| home.mend_key(table, hash)) {
                    // A key on a plan that gets cells.
                    Err(Error::StoreFull { .. }) => self.make_room(hash),
                    mended => mended,
                };
            }
            // A sealed segment may be a full one, or one whose table is being replaced: that is finished first.
            Blocked::Full if bound.home().table(bound.limit).at == table => return self.make_room(hash),
            Blocked::Sealed | Blocked::Full => {}
        }
        bound.table.store(bound.home().table(bound.limit).at, Release);
        Ok(())
    }

    /// Makes room for a new key, in steps between which the lock is free.
    fn make_room(&self, hash: Hash) -> Result<()> {
        let (began, patience) = (Instant::now(), self.store.patience(self.store.options.timeout)?);
        let rests = monotonic_ns() < self.full_until.load(Relaxed);
        let mut search = Search::default();
        loop {
            let room = self.with_table(|home, _, table| home.make_room(table, hash, rests))?;
            let found = search.has_found(room, rests);
            if found.is_err() && !rests {
                self.full_until.store(monotonic_ns() + IN_VAIN, Relaxed);
            }
            if found? {
                return Ok(());
            }
            if began.elapsed() > patience {
                let (doing, waited_ms) = ("searching a full store for idle keys".into(), patience.as_millis() as u64);
                return Err(Error::StoreTimeout { doing, waited_ms });
            }
        }
    }

    /// Finds the limit anew: its name is another's by now.
    #[cold]
    fn bind_again(&self) -> Result<&Bound> {
        self.store.with_lock(|locked| self.bind(locked))
    }

    /// Finds the limit, or declares it. For the holder of the structure lock.
    #[cold]
    fn bind(&self, locked: &Locked) -> Result<&Bound> {
        let epoch = self.store.epoch();
        let before = self.bound.load(Acquire);
        let home = self.store.home();
        // SAFETY: as in `bound`.
        let limit = match unsafe { before.as_ref() } {
            Some(bound) if home.is_retired(bound.limit) => self.declare_or_attach(home, locked, true)?,
            // SAFETY: as in `bound`.
            Some(bound) if bound.epoch == epoch => return Ok(unsafe { &*before }),
            // A child forked from a process that used the limit has it already; it shall not declare it anew.
            Some(bound) if ptr::eq(bound.home, home) => bound.limit,
            Some(_) => self.declare_or_attach(home, locked, true)?,
            None => self.declare_or_attach(home, locked, false)?,
        };
        let table = AtomicU64::new(home.table(limit).at);
        let counts = self.store.counts(limit);
        counts.add(None, STORE_ERRORS, self.early_errors.swap(0, Relaxed));
        let member = self.store.member();
        let bound = Box::into_raw(Box::new(Bound { home, limit, epoch, table, member, counts, before }));
        self.bound.store(bound, Release);
        // SAFETY: as in `bound`.
        Ok(unsafe { &*bound })
    }

    /// `again`: it was declared by this limiter already, so what the store has by now holds.
    fn declare_or_attach(&self, home: &Home, locked: &Locked, again: bool) -> Result<u64> {
        let again = again || self.part_of.as_ref().is_some_and(|all| all.is_declared.load(Acquire));
        let theirs = if again || self.declares.is_none() { self.store.declared(&self.name)? } else { None };
        if let (Some(mine), None) = (&self.declares, theirs) {
            match &self.part_of {
                Some(all) => {
                    self.store.declare_all(&[(&all.name, &all.policies)], locked)?;
                    all.is_declared.store(true, Release);
                }
                None => self.store.declare_all(&[(&self.name, std::slice::from_ref(mine))], locked)?,
            }
            return Ok(home.find_limit(&self.name).expect("it was declared"));
        }
        let mismatch = |declared| {
            let (name, requested) = (self.name.to_string(), self.kind);
            Err(Error::KindMismatch { name, declared, requested })
        };
        match theirs {
            Some(theirs) if theirs.declared.kind() != self.kind => mismatch(theirs.declared.kind()),
            Some(theirs) => {
                let limit = self.store.block(&self.name, theirs.current(), locked)?;
                locked.bring_to(limit, theirs.current())?;
                Ok(limit)
            }
            None if self.store.family(&self.name)?.composite.is_some() => mismatch("composite"),
            None => self.store.unknown(&self.name),
        }
    }
}

/// A start that was refused after it was taken, because the ledger could not be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    pub instance: u64,
    pub limit: u64,
    pub hash: Hash,
    pub start: Known,
    pub ahead: u64,
}

/// Which of the starts are this one: where units are only counted, those of its slice, the unlogged first.
pub(crate) fn parts(table: &Table, History { starts, era, .. }: &History, start: Known) -> Vec<usize> {
    let is_part = |s: &Start| match table.policy.is_counted() {
        true => *era == start.ticket && (s.stamp == start.stamp || table.policy.is_bucket()),
        false => s.id == start.ticket && s.stamp == start.stamp && s.units == start.weight && s.state != SETTLED,
    };
    let mut parts: Vec<usize> = (0..starts.len()).filter(|&i| is_part(&starts[i])).collect();
    parts.sort_by_key(|&i| starts[i].is_logged);
    parts
}

/// Takes a start out of a history, if it is there and not settled. `ahead`: see [`Taken::ahead`]. Was it?
pub(crate) fn take_back(table: &Table, history: &mut History, start: Known, ahead: u64) -> bool {
    let parts = parts(table, history, start);
    take_units(table, history, &parts, (start, ahead), start.weight);
    !parts.is_empty()
}

/// Takes so many units from these starts; those that have none left go.
pub(crate) fn take_units(
    table: &Table,
    history: &mut History,
    parts: &[usize],
    (start, ahead): (Known, u64),
    mut units: u64,
) {
    if let (Shape::Bucket(bucket), [_, ..]) = (&table.policy.0, parts) {
        return bucket.take_back(history, start, ahead, units);
    }
    let History { starts, .. } = history;
    for &i in parts {
        let taken = units.min(starts[i].units);
        starts[i].units -= taken;
        units -= taken;
    }
    starts.retain(|start| start.units > 0);
}

impl Drop for Limit {
    fn drop(&mut self) {
        let mut at = *self.bound.get_mut();
        while !at.is_null() {
            // SAFETY: made by `bind`; nobody can be using it any more.
            let bound = unsafe { Box::from_raw(at) };
            at = bound.before;
        }
    }
}
