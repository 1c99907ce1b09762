//! A limiter's hold on its limit: declared or attached at the first use, then a few loads away.

use super::keys::KeyAt;
use super::table::{Blocked, Hash, Home, Table};
use super::{Inner, NOTICED_BY, Store};
use crate::algorithm::Start;
use crate::algorithm::log::Log;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fault;
use crate::fork;
use crate::policy::{self, Policy};
use std::fs::File;
use std::sync::Arc;

/// One limit of one store, as one limiter uses it.
#[derive(Debug)]
pub(crate) struct Limit {
    store: Arc<Inner>,
    name: Arc<str>,
    /// What this limiter declares; an attached one takes what the store has, if it is of the right kind.
    declares: Option<Policy>,
    kind: &'static str,
    /// The fork generation for which the rest is good; 0: none yet.
    ready: AtomicU64,
    limit: AtomicU64,
    table: AtomicU64,
}

/// One key of a limit, found.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    pub home: &'a Home,
    pub table: Table,
    pub key: KeyAt,
    /// Nobody starts before this: the later of the key's own gate and of the one that binds all keys.
    pub gate: u64,
}

impl Key<'_> {
    pub fn log(&self) -> Log<'_> {
        self.home.log(&self.table, self.key)
    }

    /// What the key is known by, wherever it lives.
    #[inline(always)]
    pub fn hash(&self) -> Hash {
        self.home.hash_at(self.key.at)
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

    fn new(store: &Store, name: &str, declares: Option<Policy>, kind: &'static str) -> Limit {
        Limit {
            store: store.inner().clone(),
            name: name.into(),
            declares,
            kind,
            ready: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            table: AtomicU64::new(0),
        }
    }

    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Makes sure that the limit can be used, and returns where it lives.
    #[inline(always)]
    pub fn home(&self) -> Result<&Home> {
        if self.ready.load(Acquire) != fork::generation() {
            self.prepare()?;
        }
        Ok(self.store.home())
    }

    /// Makes sure that the limit can be used, and returns its table.
    #[inline(always)]
    pub fn table(&self) -> Result<Table> {
        Ok(self.home()?.table_at(self.table.load(Acquire)))
    }

    /// Does something with a key, again if it moved or something had to grow meanwhile.
    #[inline(always)]
    pub fn with_key<R>(&self, key: &str, f: impl Fn(Key) -> Result<R, Blocked>) -> Result<R> {
        policy::check_key(key)?;
        self.with(|home, table| home.key(table, key), |home| home.hash(b'k', key), f)
    }

    /// The same with a key that is known by its hash only.
    pub fn with_hash<R>(&self, hash: Hash, f: impl Fn(Key) -> Result<R, Blocked>) -> Result<R> {
        self.with(|home, table| home.find_or_add(table, hash, "?"), |_| hash, f)
    }

    #[inline(always)]
    fn with<R>(
        &self,
        find: impl Fn(&Home, &Table) -> Result<KeyAt, Blocked>,
        hash: impl Fn(&Home) -> Hash,
        f: impl Fn(Key) -> Result<R, Blocked>,
    ) -> Result<R> {
        loop {
            let home = self.home()?;
            let limit = self.limit.load(Relaxed);
            let table = home.table_at(self.table.load(Acquire));
            fault::point("resolved");
            let blocked = match find(home, &table) {
                Ok(key) => {
                    let gate = home.limit_gate(limit).load(Acquire).max(home.key_gate(key.at).load(Acquire));
                    match f(Key { home, table, key, gate }) {
                        Ok(answer) => return Ok(answer),
                        Err(blocked) => blocked,
                    }
                }
                Err(blocked) => blocked,
            };
            self.unblock(table.at, hash(home), blocked)?;
        }
    }

    /// Looks at a key without adding it: `f` gets its block, if it has one, and the gate that binds it.
    pub fn look<R>(&self, key: &str, f: impl Fn(&Home, &Table, Option<KeyAt>, u64) -> Result<R, Blocked>) -> Result<R> {
        policy::check_key(key)?;
        loop {
            let home = self.home()?;
            let limit = self.limit.load(Relaxed);
            let table = home.table_at(self.table.load(Acquire));
            let answer = match home.peek_key(&table, key) {
                // The key may be in the table that has come in this one's place.
                Ok(None) if home.table(limit).at != table.at => Err(Blocked::Moved),
                Ok(found) => {
                    let gate = home.limit_gate(limit).load(Acquire);
                    let gate = gate.max(found.map_or(0, |found| home.key_gate(found.at).load(Acquire)));
                    f(home, &table, found, gate)
                }
                Err(blocked) => Err(blocked),
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(blocked) => self.unblock(table.at, home.hash(b'k', key), blocked)?,
            }
        }
    }

    /// Does something rare to the limit's table, when nobody else does.
    fn with_table<R>(&self, f: impl Fn(&Home, &Table, Option<&File>) -> Result<R>) -> Result<R> {
        let home = self.home()?;
        let limit = self.limit.load(Relaxed);
        self.store.with_lock(|locked| {
            home.finish_replacing(limit, locked.file())?;
            let table = home.table(limit);
            self.table.store(table.at, Release);
            f(home, &table, locked.file())
        })
    }

    /// Changes what a key has in its log, if it has any. `false`: the key is not there.
    pub fn rewrite(&self, hash: Hash, edit: impl Fn(&mut Vec<Start>)) -> Result<bool> {
        self.with_table(|home, table, file| match home.find(table, hash) {
            Ok(Some(_)) => home.rewrite(table, hash, file, &edit).map(|_| true),
            _ => Ok(false),
        })
    }

    /// Closes a gate until `until` (0: it stays as it is): of one key, or with the empty key of all.
    pub fn close_gate(&self, key: &str, until: u64) -> Result<()> {
        policy::check_key(key)?;
        if key.is_empty() {
            let home = self.home()?;
            home.limit_gate(self.limit.load(Relaxed)).fetch_max(until, AcqRel);
            return Ok(());
        }
        // A block may be another key's by the time that its gate is written, but for the lock.
        self.with_table(|home, table, file| {
            let found = home.find_or_add_locked(table, key, file)?;
            home.key_gate(found.at).fetch_max(until, AcqRel);
            Ok(())
        })
    }

    /// Opens the gates that [`Limit::close_gate`] closed. With the empty key, those of all keys too.
    pub fn open_gates(&self, key: &str) -> Result<()> {
        self.with_table(|home, table, _| {
            if key.is_empty() {
                home.limit_gate(self.limit.load(Relaxed)).store(0, Release);
                home.keys(table).for_each(|at| home.key_gate(at).store(0, Release));
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
        self.with_table(|home, table, file| {
            if key.is_empty() {
                return home.replace(self.limit.load(Relaxed), table.policy, true, file);
            }
            let hash = home.hash(b'k', key);
            match home.find(table, hash) {
                Ok(Some(_)) => home.rewrite(table, hash, file, Vec::clear).map(drop),
                _ => Ok(()),
            }
        })
    }

    #[cold]
    fn unblock(&self, table: u64, hash: Hash, blocked: Blocked) -> Result<()> {
        if let Blocked::Refused(error) = blocked {
            return Err(error);
        }
        let home = self.store.home();
        let limit = self.limit.load(Relaxed);
        // A cell that moved is found by looking again.
        if home.table(limit).at == table && !matches!(blocked, Blocked::Moved) {
            self.store.with_lock(|locked| {
                // Whoever held the lock before may have done it already. A sealed index may be a full one, or one whose
                // table is being replaced: finish that first.
                if home.table(limit).at == table {
                    home.finish_replacing(limit, locked.file())?;
                }
                let table = home.table(limit);
                match blocked {
                    Blocked::Full => home.make_room(&table, locked.file()),
                    _ => home.mend_key(&table, hash, locked.file()),
                }
            })?;
        }
        self.table.store(home.table(limit).at, Release);
        Ok(())
    }

    #[cold]
    fn prepare(&self) -> Result<()> {
        let generation = fork::generation();
        self.store.with_lock(|locked| {
            let home = self.store.home();
            let known = self.limit.load(Relaxed);
            // A child forked from a process that used the limit has it already; it shall not declare it anew.
            let limit = if known != 0 { known } else { self.declare_or_attach(home, locked)? };
            self.limit.store(limit, Relaxed);
            self.table.store(home.table(limit).at, Release);
            self.ready.store(generation, Release);
            Ok(())
        })
    }

    fn declare_or_attach(&self, home: &Home, locked: &super::Locked) -> Result<u64> {
        let before = self.store.policy(&self.name)?;
        if let Some(before) = before
            && before.kind() != self.kind
        {
            let (declared, requested) = (before.kind(), self.kind);
            return Err(Error::KindMismatch { name: self.name.to_string(), declared, requested });
        }
        let policy = match (self.declares, before) {
            (Some(mine), _) => mine,
            (None, Some(theirs)) => theirs,
            (None, None) => {
                return Err(Error::UnknownLimit { name: self.name.to_string(), known: self.store.names()? });
            }
        };
        let limit = match home.find_limit(&self.name) {
            Some(limit) => limit,
            None => {
                // Declared before, yet not in the lane: what it had admitted is not known, so it counts as full.
                let born = if before.is_some() { home.clock.now().ceil + NOTICED_BY } else { 0 };
                home.add_limit(&self.name, policy, born, locked.file())?
            }
        };
        // After the lane: were it first, and this process died in between, the limit would count as full.
        if before != Some(policy) {
            self.store.declare(&self.name, policy)?;
        }
        home.finish_replacing(limit, locked.file())?;
        if home.table(limit).policy != policy {
            home.replace(limit, policy, false, locked.file())?;
        }
        Ok(limit)
    }
}
