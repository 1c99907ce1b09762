//! A limiter's hold on its limit: declared or attached at the first use, then a few loads away.

use super::table::{Blocked, Home, Table};
use super::{Inner, NOTICED_BY, Store};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::fault;
use crate::fork;
use crate::policy::{self, Policy};
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
    pub at: u64,
    /// Nobody starts before this: the later of the key's own gate and of the one that binds all keys.
    pub gate: u64,
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

    /// Does something with a key, again if the table was replaced or had to grow meanwhile.
    #[inline(always)]
    pub fn with_key<R>(&self, key: &str, f: impl Fn(Key) -> Result<R, Blocked>) -> Result<R> {
        policy::check_key(key)?;
        loop {
            let home = self.home()?;
            let limit = self.limit.load(Relaxed);
            let table = home.table_at(self.table.load(Acquire));
            fault::point("resolved");
            let blocked = match home.key(&table, key) {
                Ok(at) => {
                    let gate = home.limit_gate(limit).load(Acquire).max(home.key_gate(at).load(Acquire));
                    match f(Key { home, table, at, gate }) {
                        Ok(answer) => return Ok(answer),
                        Err(blocked) => blocked,
                    }
                }
                Err(blocked) => blocked,
            };
            self.unblock(table.at, blocked)?;
        }
    }

    /// Looks at a key without adding it: `f` gets its block, if it has one, and the gate that binds it.
    pub fn look<R>(&self, key: &str, f: impl Fn(&Home, &Table, Option<u64>, u64) -> Result<R, Blocked>) -> Result<R> {
        policy::check_key(key)?;
        loop {
            let home = self.home()?;
            let table = home.table_at(self.table.load(Acquire));
            let at = home.peek_key(&table, key);
            if at.is_none() && home.table(self.limit.load(Relaxed)).at != table.at {
                // The key may be in the table that has come in this one's place.
                self.unblock(table.at, Blocked::Sealed)?;
                continue;
            }
            let gate = home.limit_gate(self.limit.load(Relaxed)).load(Acquire);
            let gate = gate.max(at.map_or(0, |at| home.key_gate(at).load(Acquire)));
            match f(home, &table, at, gate) {
                Ok(answer) => return Ok(answer),
                Err(blocked) => self.unblock(table.at, blocked)?,
            }
        }
    }

    /// Closes a gate until `until` (0: it stays as it is): of one key, or with the empty key of all.
    pub fn close_gate(&self, key: &str, until: u64) -> Result<()> {
        self.with_key(key, |found| {
            let gate = if key.is_empty() {
                found.home.limit_gate(self.limit.load(Relaxed))
            } else {
                found.home.key_gate(found.at)
            };
            gate.fetch_max(until, AcqRel);
            found.still_open()
        })
    }

    /// Opens the gates that [`Limit::close_gate`] closed. With the empty key, those of all keys too.
    pub fn open_gates(&self, key: &str) -> Result<()> {
        self.with_key(key, |found| {
            if key.is_empty() {
                found.home.limit_gate(self.limit.load(Relaxed)).store(0, Release);
                for at in found.home.keys(&found.table) {
                    found.home.key_gate(at).store(0, Release);
                    Key { at, ..found }.still_open()?;
                }
            } else {
                found.home.key_gate(found.at).store(0, Release);
            }
            found.still_open()
        })
    }

    #[cold]
    fn unblock(&self, table: u64, blocked: Blocked) -> Result<()> {
        if let Blocked::Refused(error) = blocked {
            return Err(error);
        }
        let home = self.store.home();
        let limit = self.limit.load(Relaxed);
        if home.table(limit).at == table {
            self.store.with_lock(|locked| {
                // Whoever held the lock before may have done it already.
                if home.table(limit).at == table {
                    // A sealed index may be a full one, or one whose table is being replaced: finish that first.
                    home.finish_replacing(limit, locked.file())?;
                    if let Blocked::Full = blocked {
                        home.make_room(&home.table(limit), locked.file())?;
                    }
                }
                Ok(())
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

    /// Puts the same policy in its own place: a new table, without what was cleared and without places in the future.
    pub fn renew(&self) -> Result<()> {
        let home = self.home()?;
        let limit = self.limit.load(Relaxed);
        self.store.with_lock(|locked| home.replace(limit, home.table(limit).policy, locked.file()))?;
        self.table.store(home.table(limit).at, Release);
        Ok(())
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
            home.replace(limit, policy, locked.file())?;
        }
        Ok(limit)
    }
}

impl Key<'_> {
    /// See [`Log::still_open`](crate::algorithm::log::Log::still_open).
    fn still_open(&self) -> Result<(), Blocked> {
        match self.table.policy {
            Policy::Rate(_) => Ok(self.home.log(&self.table, self.at).still_open()?),
            // Only rate limits are ever replaced.
            Policy::Concurrency { .. } => Ok(()),
        }
    }
}
