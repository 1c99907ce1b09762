//! A limiter's handle on its limit: it finds keys, and searches again when they have moved.
//!
//! `bound` holds where the limit was found, `keep` the steps before a decision is returned, `edits` the rare changes of
//! keys, `restored` the keys that are only in the ledger, `served` the requests to a server. Only limiters call it.

mod bound;
mod edits;
mod keep;
mod key;
mod restored;
mod served;

use crate::address::without_password;
use crate::atomic::*;
use crate::damage::{nonsense, or_damaged};
use crate::decision::Decision;
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::hash::Hash;
use crate::permit::RawPermit;
use crate::policy::{self, NamedPolicy, Policy, Share};
use crate::server::witness::Witness;
use crate::state::cells::home::{Blocked, Home, KeyAt, Table};
use crate::state::cells::locked::Locked;
use crate::state::counts::{Counts, STORE_ERRORS};
use crate::state::ledger::declared::{check_names, part_names};
use crate::state::rare::space::{Need, STEPS, Search};
use crate::state::session::made::Made;
use crate::state::session::options::OnError;
use crate::state::session::{LET_OTHERS, Session};
use crate::time::monotonic_ns;
use crate::waiting::{AsOne, MayWait};
use bound::Busy;
pub(crate) use bound::{Bound, Stuck};
pub(crate) use key::Key;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::time::{Duration, Instant};

/// When a caller may ask again after the store has failed.
pub(crate) const STORE_AGAIN: Duration = Duration::from_secs(1);

/// For this many nanoseconds, a limiter does not search a full store again after it found no idle keys. Otherwise each
/// new key would cause a search.
const IN_VAIN: u64 = 100_000_000;

/// For how long a call waits for a lock that was busy a moment ago.
const PROBE: Duration = Duration::from_millis(1);

/// [`IN_VAIN`] in milliseconds, for a key whose ring cannot grow.
const IN_VAIN_MS: u64 = IN_VAIN / 1_000_000;

/// One limit of one store, as used by one limiter.
#[derive(Debug)]
pub(crate) struct Limit {
    store: Arc<Session>,
    name: Arc<str>,
    /// The policy that this limiter declares. An attached limiter takes the store's, if it has the right kind.
    declares: Option<Policy>,
    /// Its declaration, which may be of several limits. `None` if it is attached.
    made: Option<Arc<Made>>,
    kind: &'static str,
    /// The failures of the store before the limit was found.
    early_errors: AtomicU64,
    /// Until when a full store is not searched again, by the monotonic clock.
    full_until: AtomicU64,
    /// The same where a key needs a larger ring.
    large_until: AtomicU64,
    /// The number of callers of this process that wait here.
    waiting: PerProcess<u64>,
    /// What this process knows of the server's clock.
    witness: PerProcess<Witness>,
    /// How often this process has returned units to the server, and the uptime when it last did.
    returned: AtomicU64,
    returned_at: AtomicU64,
    /// Null until the first use.
    bound: AtomicPtr<Bound>,
}

// SAFETY: the pointees live as long as the limiter, and may be shared.
unsafe impl Send for Limit {}
// SAFETY: as above.
unsafe impl Sync for Limit {}

/// The text of a key that is known only by its hash.
const NO_TEXT: &str = "?";

/// The result for a missing key, which cannot occur where keys are added.
fn added<R>() -> R {
    unreachable!("it was added")
}

/// Counts how often a call starts over. Each step of one process lets others proceed, so the count stays low.
struct Retries<'s> {
    count: u64,
    store: &'s Session,
    first: Option<Instant>,
    /// From the first time on that it starts over, its waits share one deadline.
    one: Option<AsOne>,
}

impl<'s> Retries<'s> {
    fn new(store: &'s Session) -> Retries<'s> {
        Retries { count: 0, store, first: None, one: None }
    }

    /// Lets all waits from here on share one deadline.
    fn wait_as_one(&mut self) {
        self.first.get_or_insert_with(Instant::now);
        self.one.get_or_insert_with(MayWait::as_one);
    }

    fn next(&mut self) -> Result<()> {
        self.count += 1;
        if self.count.is_multiple_of(32) { self.has_time() } else { Ok(()) }
    }

    #[cold]
    fn has_time(&mut self) -> Result<()> {
        if self.first.get_or_insert_with(Instant::now).elapsed() <= self.store.options.timeout {
            return Ok(());
        }
        if self.store.server().is_some() {
            let doing = format!("asking {}", without_password(self.store.url()));
            return Err(Error::store(doing, "it reports that a policy applies that it does not have"));
        }
        nonsense("a repaired key did not stay repaired")
    }
}

impl Limit {
    pub fn declare(store: &Arc<Session>, name: &str, policy: Policy) -> Result<Limit> {
        policy::check_name(name)?;
        store.check_open()?;
        store.check_shared(name, &[policy.into()])?;
        let made = Made::new(&store.undeclared, name, vec![policy.into()]);
        Ok(Self::new(store, made.name.clone(), Some((policy, made)), policy.kind()))
    }

    pub fn attach(store: &Arc<Session>, name: &str, kind: &'static str) -> Result<Limit> {
        policy::check_name(name)?;
        store.check_open()?;
        Ok(Self::new(store, name.into(), None, kind))
    }

    /// The limits of several policies. A single policy without a name of its own gets the name itself.
    pub fn declare_parts(store: &Arc<Session>, name: &str, policies: Vec<NamedPolicy>) -> Result<Vec<Limit>> {
        check_names(name, &policies)?;
        store.check_open()?;
        store.check_shared(name, &policies)?;
        let made = Made::new(&store.undeclared, name, policies);
        let part = |(name, policy): (String, &NamedPolicy)| {
            Self::new(store, name.into(), Some((policy.policy, made.clone())), policy.kind())
        };
        Ok(part_names(name, &made.policies).into_iter().zip(&made.policies).map(part).collect())
    }

    fn new(store: &Arc<Session>, name: Arc<str>, declares: Option<(Policy, Arc<Made>)>, kind: &'static str) -> Limit {
        let (store, (declares, made)) = (store.clone(), declares.unzip());
        let bound = AtomicPtr::new(ptr::null_mut());
        Limit {
            store,
            name,
            declares,
            made,
            kind,
            early_errors: AtomicU64::new(0),
            full_until: AtomicU64::new(0),
            large_until: AtomicU64::new(0),
            waiting: PerProcess::new(),
            witness: PerProcess::new(),
            returned: AtomicU64::new(0),
            returned_at: AtomicU64::new(0),
            bound,
        }
    }

    pub fn kind(&self) -> &'static str {
        self.kind
    }

    pub fn is_concurrency(&self) -> bool {
        matches!(self.kind, "concurrency" | "shared-concurrency")
    }

    /// Returns whether tenants share it: then each key names one, and all of them have the budget of the key "".
    pub fn is_shared(&self) -> bool {
        self.kind.starts_with("shared-")
    }

    /// Returns whether it is certain that no line of its tenants is shown.
    pub fn has_calm_tenants(&self) -> bool {
        self.is_bound().is_some_and(|bound| {
            let tenants = bound.home().tenants(bound.limit, bound.table().capacity);
            tenants.is_some_and(|tenants| !tenants.heads.may_wait(0))
        })
    }

    /// The share that is kept for a tenant.
    pub fn share_of(&self, tenant: &str) -> Result<Share> {
        let has_none = |bound: &Bound| !bound.home().limit(bound.limit).has_plans();
        if tenant.is_empty() || self.reading(|| self.bound().map(has_none))? {
            return Ok(1);
        }
        self.look(tenant, |_, table, _, _| Ok(table.policy.share()))
    }

    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns whether the limit has a kind that can adapt to job durations.
    #[inline(always)]
    pub fn may_adapt(&self) -> bool {
        matches!(self.kind, "evenly-spaced" | "shared-evenly-spaced")
    }

    /// Returns whether its starts may depend on job durations.
    pub fn adapts(&self) -> Result<bool> {
        let may_adapt = |bound: &Bound| bound.latest().is_adaptive || bound.home().limit(bound.limit).has_plans();
        Ok(self.may_adapt() && self.reading(|| self.bound().map(may_adapt))?)
    }

    pub fn store(&self) -> &Arc<Session> {
        &self.store
    }

    /// The answer of a call, or in place of a failure the answer of the store's [`OnError`]: admitted or not. (The
    /// answer is written in its final place, since copying it costs as much as part of a decision.)
    #[inline(always)]
    pub fn or_instead<R>(&self, call: impl FnOnce() -> Result<R>, instead: impl FnOnce(bool) -> R) -> Result<R> {
        let mut answer = call();
        if let Err(error) = &mut answer
            && let Some(is_admitted) = self.instead_of(error)
        {
            answer = Ok(instead(is_admitted));
        }
        answer
    }

    #[cold]
    fn instead_of(&self, error: &mut Error) -> Option<bool> {
        if let (Error::StoreTimeout { .. }, true) = (&*error, MayWait::is_cut()) {
            // Part of the store's timeout is left.
            *error = Error::WouldWait;
            return None;
        }
        self.count_error(error);
        match self.store.on_error(error) {
            OnError::Raise => None,
            OnError::Deny => Some(false),
            OnError::Admit => Some(true),
        }
    }

    /// Makes a call that ends a start, which it may also do after its store was closed. The call may be made twice.
    #[inline(always)]
    pub fn ending<R>(&self, call: impl Fn() -> Result<R>) -> Result<R> {
        match call() {
            Err(Error::StoreClosed { .. }) => self.ending_once(call),
            answer => answer,
        }
    }

    /// The same for a call of several steps, which is made once.
    #[cold]
    #[inline(never)]
    pub fn ending_once<R>(&self, call: impl FnOnce() -> Result<R>) -> Result<R> {
        self.store.ending(call)
    }

    fn count_error(&self, error: &Error) {
        if error.is_store_failure() {
            self.count_failure();
        }
    }

    /// Counts a failure of the store, or the loss of the state that it held for this process.
    pub fn count_failure(&self) {
        // SAFETY: as in `bound`.
        match unsafe { self.bound.load(Acquire).as_ref() } {
            Some(bound) => bound.counts.add(None, STORE_ERRORS, 1),
            None => drop(self.early_errors.fetch_add(1, Relaxed)),
        }
    }

    /// The counts of this process.
    pub fn counts(&self) -> Result<&Counts> {
        self.bound().map(|bound| &*bound.counts)
    }

    /// Counts an event of a key, if the limit can be used.
    pub fn count(&self, hash: Hash, what: usize, n: u64) {
        if let Ok(counts) = self.counts() {
            counts.add((!counts.is_of_no_key(hash)).then_some(hash), what, n);
        }
    }

    /// Counts a start of a key that had to wait.
    pub fn count_wait(&self, key: &str, wait: Duration) {
        if let Ok(bound) = self.bound() {
            bound.counts.waited((!key.is_empty()).then(|| bound.home().hash(b'k', key)), wait);
        }
    }

    /// Counts a place whose owner was late.
    pub fn count_lost_place(&self) {
        self.counts().into_iter().for_each(Counts::lost_place);
    }

    /// Changes the number of waiting callers of this process.
    pub fn waits_more(&self, by: i64) {
        // Not while the limit is found elsewhere: see `bind`.
        let mut waiting = self.waiting.lock();
        *waiting = waiting.saturating_add_signed(by);
        // The waiters of a store that is closed leave, too.
        self.is_bound().or_else(|| self.last_bound()).into_iter().for_each(|bound| bound.waits_more(by));
    }

    /// Where this process was found last: its home and its number there. Known when the store is closed, too.
    pub fn last_membership(&self) -> Option<(&Home, u64)> {
        self.is_bound().or_else(|| self.last_bound()).map(|bound| (bound.home(), bound.member))
    }

    /// The decision while the store fails: admitted, if there is a permit.
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

    /// Ensures that the limit can be used, and returns its home.
    #[inline(always)]
    pub fn home(&self) -> Result<&Home> {
        self.bound().map(Bound::home)
    }

    /// Ensures that the limit can be used, and returns its home and the number of this process there.
    pub fn membership(&self) -> Result<(&Home, u64)> {
        self.bound().map(|bound| (bound.home(), bound.member))
    }

    /// Ensures that the limit can be used, and returns its table.
    #[inline(always)]
    pub fn table(&self) -> Result<Table> {
        self.reading(|| {
            let bound = self.bound()?;
            Ok(*bound.latest())
        })
    }

    /// Ensures that the limit can be used, and returns the table of a key, which may have its own policy.
    pub fn table_of(&self, hash: Hash) -> Result<Table> {
        self.by_table_of(hash, |table| *table)
    }

    /// Applies a function to a key's table.
    #[inline(always)]
    pub fn by_table_of<R>(&self, hash: Hash, f: impl Fn(&Table) -> R) -> Result<R> {
        let answer = self.reading(|| {
            let bound = self.bound()?;
            Ok((!bound.home().limit(bound.limit).has_plans()).then(|| f(bound.latest())))
        })?;
        match answer {
            Some(answer) => Ok(answer),
            None => match self.with_known(hash, |found| Ok(f(found.table)))? {
                Some(answer) => Ok(answer),
                None => self.table().map(|table| f(&table)),
            },
        }
    }

    /// Runs a function with a key, again if the key moved or something had to grow in between.
    #[inline(always)]
    pub fn with_key<R>(&self, key: &str, f: impl Fn(&Key) -> Result<R, Blocked>) -> Result<R> {
        policy::check_key(key)?;
        self.with_key_after(&mut Retries::new(&self.store), key, f)
    }

    #[inline(always)]
    fn with_key_after<R>(&self, turns: &mut Retries, key: &str, f: impl Fn(&Key) -> Result<R, Blocked>) -> Result<R> {
        self.with(turns, |home, table| home.index(table).key(key), added, (|home: &Home| home.hash(b'k', key), key), f)
    }

    /// Called after a key was not found at once, or was stuck.
    #[inline(always)]
    pub fn look_again(&self, key: &str) {
        if key.is_empty() {
            self.is_bound().into_iter().for_each(Bound::look_again);
        }
    }

    /// Runs a function with a key that was not found, or is stuck.
    #[inline(always)]
    pub fn with_key_later<R>(
        &self,
        key: &str,
        weight: u64,
        stuck: Option<Stuck>,
        f: impl Fn(&Key) -> Result<R, Blocked>,
    ) -> Result<R> {
        policy::check_some(weight)?;
        policy::check_key(key)?;
        let mut turns = Retries::new(&self.store);
        if let Some(stuck) = stuck {
            self.reading(|| self.unblock_within(&mut turns, stuck, &|home| home.hash(b'k', key)))?;
        }
        let answer = self.with_key_after(&mut turns, key, f);
        self.look_again(key);
        answer
    }

    /// Runs a function with a key that is known only by its hash.
    pub fn with_hash<R>(&self, hash: Hash, f: impl Fn(&Key) -> Result<R, Blocked>) -> Result<R> {
        let find = |home: &Home, table: &Table| home.index(table).find_or_add(hash, NO_TEXT);
        self.with(&mut Retries::new(&self.store), find, added, (|_: &Home| hash, NO_TEXT), f)
    }

    /// The text of a key that is known by its hash, if it is here in full. Long texts are truncated.
    pub fn key_text(&self, hash: Hash) -> Result<Option<String>> {
        let home = self.home()?;
        if hash == home.hash(b'k', "") {
            return Ok(Some(String::new()));
        }
        let text = self.with_known(hash, |found| Ok(found.home().block(found.key.at).text()))?;
        Ok(text.filter(|text| home.hash(b'k', text) == hash))
    }

    /// Runs a function with a key that may be forgotten. Returns `None` if it is.
    pub fn with_known<R>(&self, hash: Hash, f: impl Fn(&Key) -> Result<R, Blocked>) -> Result<Option<R>> {
        let find = |home: &Home, table: &Table| home.index(table).find(hash)?.ok_or(Blocked::Absent);
        let name = (|_: &Home| hash, NO_TEXT);
        self.with(&mut Retries::new(&self.store), find, || None, name, |key| f(key).map(Some))
    }

    /// `none` makes the result if `find` does not find the key.
    #[inline(always)]
    fn with<R>(
        &self,
        turns: &mut Retries,
        find: impl Fn(&Home, &Table) -> Result<KeyAt, Blocked>,
        none: impl Fn() -> R,
        (hash, text): (impl Fn(&Home) -> Hash, &str),
        f: impl Fn(&Key) -> Result<R, Blocked>,
    ) -> Result<R> {
        self.reading(|| {
            let mut or_before = false;
            loop {
                match self.bound()?.try_with(or_before, &find, &f) {
                    Ok(answer) => return Ok(answer),
                    Err(Stuck { blocked: Blocked::Absent, .. }) => return Ok(none()),
                    Err(Stuck { blocked: Blocked::Outdated, bound, .. }) => {
                        or_before = !self.moves_key(hash(bound.home()))?;
                    }
                    Err(Stuck { blocked: Blocked::Unrestored, bound, .. }) => {
                        self.restore_within(turns, hash(bound.home()), text)?;
                    }
                    Err(stuck) => self.unblock_within(turns, stuck, &hash)?,
                }
                turns.next()?;
            }
        })
    }

    /// Reads a key without adding it. `f` gets the key, if it is there, and the gate that applies to it.
    pub fn look<R>(&self, key: &str, f: impl Fn(&Home, &Table, Option<&Key>, u64) -> Result<R, Blocked>) -> Result<R> {
        policy::check_key(key)?;
        self.reading(|| {
            let (mut turns, mut or_before, mut is_new) = (Retries::new(&self.store), false, false);
            loop {
                turns.next()?;
                let bound = self.bound()?;
                let (home, limit) = (bound.home(), bound.limit);
                let table = bound.table();
                // A new key is not an unused one if starts were lost.
                let new =
                    |own: &Table| if home.of(own).has_lost() { home.index(table).key(key).map(Some) } else { Ok(None) };
                let mut own = None;
                let found = match home.index(table).peek_key(key) {
                    // The key may be in the table that has replaced this one.
                    Ok(None) if home.limit(limit).table_at() != table.at => Err(Blocked::Moved),
                    Ok(None) if !is_new && home.of(table).may_restore() => Err(Blocked::Unrestored),
                    Ok(None) => new(table),
                    Err(Blocked::Sealed) => match home.index(table).plan_of_idle(home.hash(b'k', key)) {
                        Some(plan) => new(own.insert(plan)),
                        None => Err(Blocked::Sealed),
                    },
                    found => found,
                };
                let answer = found.and_then(|found| {
                    let Some(key) = found else {
                        return f(home, own.as_ref().unwrap_or(table), None, home.limit(limit).gate().load(Acquire));
                    };
                    own = home.of(table).own_of(key);
                    bound.check_own(table, own.as_ref(), or_before)?;
                    let table = own.as_ref().unwrap_or(table);
                    let found = bound.key(table, key, home.block(key.at).words(table)).with_gate_alone();
                    f(home, table, Some(&found), found.gate)
                });
                match answer {
                    Ok(answer) => return Ok(answer),
                    Err(Blocked::Outdated) => or_before = !self.moves_key(home.hash(b'k', key))?,
                    Err(Blocked::Unrestored) => {
                        is_new = !self.restore(home.hash(b'k', key), key, home.of(table).has_lost())?;
                    }
                    Err(blocked) => {
                        self.unblock(Stuck { bound, blocked, table: table.at }, &|home| home.hash(b'k', key))?
                    }
                }
            }
        })
    }

    /// Runs code that reads the lane, to which other programs may have written.
    #[inline(always)]
    fn reading<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        or_damaged(|| self.store.lane_path(), f)
    }

    /// As [`Limit::unblock`], with one deadline for all turns of a call.
    #[cold]
    fn unblock_within(&self, turns: &mut Retries, stuck: Stuck, hash: &dyn Fn(&Home) -> Hash) -> Result<()> {
        turns.wait_as_one();
        self.unblock(stuck, hash)
    }

    /// The same for a key that may be only in the ledger.
    #[cold]
    fn restore_within(&self, turns: &mut Retries, hash: Hash, text: &str) -> Result<()> {
        turns.wait_as_one();
        self.restore(hash, text, true).map(drop)
    }

    #[cold]
    fn unblock(&self, Stuck { bound, blocked, table }: Stuck, hash: &dyn Fn(&Home) -> Hash) -> Result<()> {
        let hash = hash(bound.home());
        if bound.home().limit(bound.limit).is_retired() {
            return self.bind_again().map(drop);
        }
        match blocked {
            // The policy may have been replaced in between.
            Blocked::Refused(error) if bound.home().limit(bound.limit).table_at() == table => return Err(error),
            Blocked::Refused(_) => {}
            // A cell that moved is found by searching again.
            Blocked::Moved | Blocked::Absent | Blocked::Outdated | Blocked::Unrestored | Blocked::Refusals => {}
            Blocked::Stale => self.store.follow_server(&self.name, hash, self.declares)?,
            // The next holder of the lock attaches to what is there instead.
            Blocked::Lost => return self.store.with_lock(|_| Ok(())),
            Blocked::Crowded if !self.is_concurrency() => return self.add_places(),
            Blocked::Crowded => return self.with_table(|home, limit, now| home.add_slots(limit, now, table, hash)),
            Blocked::Sealed if bound.home().limit(bound.limit).table_at() == table => {
                let is_mended = self.with_table(|home, _, table| match home.repair_key(table, hash) {
                    // A key on a plan gets its cells.
                    Err(Error::StoreFull { .. }) if home.index(table).plan_of_idle(hash).is_some() => Ok(false),
                    mended => mended.map(|()| true),
                })?;
                return if is_mended { Ok(()) } else { self.make_space(hash) };
            }
            Blocked::Small(weight) if bound.home().limit(bound.limit).table_at() == table => {
                return self.grow_key(hash, weight);
            }
            // A sealed segment may be full, or its table may be in replacement, which is completed first.
            Blocked::Full if bound.home().limit(bound.limit).table_at() == table => return self.make_space(hash),
            Blocked::Sealed | Blocked::Small(_) | Blocked::Full => {}
        }
        bound.follow();
        Ok(())
    }

    /// Gives a key a larger ring, if a start of this weight needs it. That takes microseconds, so a caller that must not
    /// wait does it, too, unless the lock is busy, or there is no space yet. Where there is none, callers of this key learn that without
    /// the lock for a moment. Where others hold the lock for too long, they wait for it once a second.
    fn grow_key(&self, hash: Hash, weight: u64) -> Result<()> {
        let (must_not_wait, bound) = (MayWait::here() == MayWait::Never, self.bound()?);
        let (home, table) = (bound.home(), bound.latest());
        let block = |found: KeyAt| home.block(found.at);
        // (A block of such a key never serves another kind, in which the word means something else.)
        let grows = |found: &KeyAt| home.grows(home.of(table).for_key(*found).policy);
        let found = home.index(table).find(hash).ok().flatten().filter(grows);
        // At least so many slots are needed.
        let wanted =
            |found: KeyAt| home.ring_for(home.of(table).for_key(found).policy, block(found).ring() - 1, weight);
        let full = || Error::StoreFull { reason: "there is no space for more starts of this key in its window".into() };
        // (What is only being rewritten is not full.)
        let is_sealed =
            |found: KeyAt| home.cells(&home.of(table).for_key(found), found).has_to_move(0, home.clock.now());
        if found.is_some_and(|found| block(found).is_stuck(found.life, wanted(found)) && !is_sealed(found)) {
            return Err(full());
        }
        let busy = if MayWait::here() == MayWait::UntilTimeout { Busy::Long } else { Busy::Briefly };
        if !must_not_wait && bound.rests(busy) && !MayWait::outlasts() {
            match MayWait::BrieflyHere.during(|| self.with_table_for(PROBE, |_, _, _| Ok(()))) {
                Err(Error::StoreTimeout { .. }) => {
                    let cause = "its lock was busy a moment ago, and is waited for again within a second";
                    return Err(Error::store(
                        format!("making space for starts of a key in {}", self.store.url()),
                        cause,
                    ));
                }
                probed => probed?,
            }
            bound.rest(busy, Duration::ZERO);
        }
        let at_once = |home: &Locked, _, table: &Table| home.mend_key(table, hash, weight, true);
        let grown = match must_not_wait {
            true => MayWait::BrieflyHere.during(|| self.with_table_for(Duration::ZERO, at_once)),
            false => self.search_and_grow(hash, weight),
        };
        match grown {
            Ok(true) => Ok(()),
            // Another thread may wait and search.
            Ok(false) | Err(Error::StoreTimeout { .. }) if must_not_wait => Err(Error::WouldWait),
            Ok(false) => {
                found.into_iter().for_each(|found| block(found).set_stuck(found.life, wanted(found), IN_VAIN_MS));
                Err(full())
            }
            Err(error) => {
                // (Where a call is cut, part of the caller's time is left.)
                if matches!(error, Error::StoreTimeout { .. }) && !MayWait::is_cut() {
                    bound.rest(busy, STORE_AGAIN);
                }
                Err(error)
            }
        }
    }

    /// The same, after a search for idle keys if there is no space. Returns `false` if there is none after it, either.
    fn search_and_grow(&self, hash: Hash, weight: u64) -> Result<bool> {
        let rests = monotonic_ns() < self.large_until.load(Relaxed);
        let (mut search, mut is_all) = (0..STEPS, rests);
        loop {
            if self.with_table(|home, _, table| home.mend_key(table, hash, weight, false))? {
                return Ok(true);
            }
            if is_all || search.next().is_none() {
                break;
            }
            is_all = self.with_table(|home, _, _| home.search_for_room())?;
            std::thread::sleep(LET_OTHERS);
        }
        if !rests {
            self.large_until.store(monotonic_ns() + IN_VAIN, Relaxed);
        }
        Ok(false)
    }

    /// Makes space for a new key, in steps between which the lock is free.
    fn make_space(&self, hash: Hash) -> Result<()> {
        let (began, patience) = (Instant::now(), MayWait::patience(self.store.options.timeout)?);
        let rests = monotonic_ns() < self.full_until.load(Relaxed);
        let bound = self.bound()?;
        let (home, table) = (bound.home(), bound.latest());
        // Strangers who make keys on a limit that has its share do not keep others from the lock.
        if rests && home.of(table).spare_blocks() == 0 && !home.limit(bound.limit).has_plans() {
            return Err(home.of(table).share_is_full());
        }
        let need = if rests { Need::KeyAtOnce } else { Need::Key };
        let mut search = Search::default();
        loop {
            let space = self.with_table(|home, _, table| home.make_space(table, hash, need))?;
            let found = search.has_found(space);
            if found.is_err() && !rests {
                self.full_until.store(monotonic_ns() + IN_VAIN, Relaxed);
            }
            if found? {
                return Ok(());
            }
            if began.elapsed() > patience {
                return Err(Error::busy("searching a full store for idle keys").after(began));
            }
            std::thread::sleep(LET_OTHERS);
        }
    }
}
