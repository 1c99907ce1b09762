//! Gathers what the ledger lacks of the lane, under the structure lock. It is written without the lock, and marked
//! afterwards.

use super::changed::Changed;
use super::database::Database;
use super::executions::{Execution, Moment};
use super::policies::KnownKey;
use crate::algorithm::Start;
use crate::atomic::*;
use crate::error::Result;
use crate::hash::Hash;
use crate::state::cells::home::{Home, KeyAt, Table, UNKEPT};
use crate::state::cells::layout::{LimitAt, key_word};
use crate::state::cells::locked::Locked;
use crate::state::counts::minutes::News;
use crate::time::Now;
use crate::{fault, os};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How many keys one commit writes, in addition to those for which callers wait. The structure lock is held for a few
/// milliseconds.
pub(in crate::state) const KEYS: u64 = 256;

/// How long the structure lock is held to look for work.
const MOMENT: Duration = Duration::from_millis(2);

/// The starts of a key that are missing from the ledger.
pub(crate) struct Unlogged {
    limit: LimitAt,
    table: Table,
    key: KeyAt,
    hash: Hash,
    text: String,
    starts: Vec<Start>,
    end: u64,
}

/// A key whose policy has changed.
pub(crate) struct ChangedKey {
    /// Its hash, and for how long its starts count now, if it has cells.
    pub counts: Option<([u64; 2], u64)>,
    /// Whether the ledger may lack more of its starts than another boot would take as lost, or its limit was not found.
    pub may_lack: bool,
}

/// The content of one commit.
pub(crate) struct Batch {
    /// The lane that it belongs to.
    instance: u64,
    pub keys: Vec<Unlogged>,
    now: Now,
    moment: Moment,
    /// The counts of minutes.
    pub news: Vec<News>,
    /// How far the batch covers the list of changed keys.
    pub listed_to: u64,
    /// Where a pass through limits continues: the limit and the hash.
    pub next: Option<(usize, u64)>,
    /// See [`Database::keeps_to`].
    keeps_to: i64,
}

/// The current time by the clock of decisions and by those of the ledger.
pub(in crate::state) fn moment(home: &Home) -> (Now, Moment) {
    let (now, uptime) = home.clock.now_and_uptime();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
    (now, Moment { uptime, wall, synced: os::clock_is_synchronised() })
}

impl Locked<'_> {
    /// Gathers the wanted keys and the oldest listed ones, and the counts of completed minutes, or of all.
    pub fn gather(&self, wanted: impl Iterator<Item = Changed>, all_minutes: bool) -> Batch {
        let (listed, listed_to) = self.listed(KEYS);
        let mut all: Vec<Changed> = wanted.chain(listed).collect();
        all.sort_unstable();
        all.dedup();
        let keys = all.into_iter().filter_map(|(limit, hash)| {
            let table = self.limit(limit).table();
            let key = self.find_or_repair(&table, hash)?;
            self.unlogged(limit, self.of(&table).for_key(key), key)
        });
        let mut batch = self.batch(keys.collect(), listed_to);
        batch.news = self.take_news(all_minutes);
        batch
    }

    /// Gathers the keys of limits for a moment, starting at a limit and a hash.
    pub fn gather_from(&self, limits: &[LimitAt], (mut n, mut hash): (usize, u64)) -> Batch {
        let (began, mut all) = (Instant::now(), Vec::new());
        let next = loop {
            let Some(&limit) = limits.get(n) else { break None };
            if all.len() as u64 >= 8 * KEYS || began.elapsed() > MOMENT {
                break Some((n, hash));
            }
            let table = self.limit(limit).table();
            let root = self.index(&table).root().expect("a table in use has an index");
            for at in self.segment_at(root, root.entry_of(hash)).entries().filter(|&at| !self.block(at).is_stub()) {
                let own = self.block(at).table(&table);
                let life = self.block(at).word(key_word::LIFE).load(Acquire);
                if own.budget != UNKEPT {
                    all.extend(self.unlogged(limit, own, KeyAt { at, life, table: own.at }));
                }
            }
            (n, hash) = self.index(&table).next_segment(hash).map_or((n + 1, 0), |next| (n, next));
        };
        Batch { next, ..self.batch(all, 0) }
    }

    /// The limit with this name, unless it has another number: the name has passed to it in between.
    pub fn find_known(&self, name: &str, id: i64) -> Option<LimitAt> {
        self.find_limit(name).filter(|limit| self.limit(*limit).id() == id)
    }

    /// Gathers keys whose policies have changed, and what else the ledger needs of each.
    pub fn gather_keys(&self, keys: &[KnownKey], known: &mut Vec<ChangedKey>) -> Batch {
        let mut all = Vec::new();
        known.clear();
        for KnownKey { id, limit, key, .. } in keys {
            let Some(limit) = self.find_known(limit, *id) else {
                known.push(ChangedKey { counts: None, may_lack: true });
                continue;
            };
            let (table, hash) = (self.limit(limit).table(), self.hash(b'k', key));
            let in_use = self.limit(limit).table_in_use(hash);
            let own = in_use.or_else(|| self.index(&table).plan_of_idle(hash));
            known.push(ChangedKey {
                counts: in_use.map(|own| (hash.0, own.policy.longest())),
                may_lack: own.is_some_and(|own| self.of(&own).has_lost_more()),
            });
            if in_use.is_some() {
                let found = self.find_or_repair(&table, hash);
                all.extend(found.and_then(|key| self.unlogged(limit, self.of(&table).for_key(key), key)));
            }
        }
        self.batch(all, 0)
    }

    fn batch(&self, keys: Vec<Unlogged>, listed_to: u64) -> Batch {
        let (now, moment) = moment(self);
        let (instance, keeps_to) = (self.instance, self.last_unrestored());
        Batch { instance, keys, news: Vec::new(), now, moment, listed_to, next: None, keeps_to }
    }

    fn unlogged(&self, limit: LimitAt, table: Table, key: KeyAt) -> Option<Unlogged> {
        // A start from here on lists the key again. (Memory that is only read need not be written to disk.)
        let listed = self.block(key.at).word(key_word::LISTED);
        if listed.load(Acquire) != 0 {
            listed.store(0, Release);
        }
        let (starts, end) = self.cells(&table, key).unlogged(table.policy.longest(), self.clock.now());
        let (hash, text) = (self.block(key.at).hash(), || self.block(key.at).text());
        (!starts.is_empty()).then(|| Unlogged { limit, table, key, hash, text: text(), starts, end })
    }

    /// Marks the written starts.
    pub fn mark(&self, batch: &Batch) -> Result<()> {
        self.mark_news(&batch.news);
        for Unlogged { limit, key, hash, starts, end, .. } in &batch.keys {
            let table = self.limit(*limit).table();
            match self.find_or_repair(&table, *hash) {
                Some(now) if now == *key => self.block(key.at).word(key_word::LOGGED).store(*end, Release),
                // The key has been rewritten in between.
                Some(_) => {
                    let is_written =
                        |start: &Start| start.id != u64::MAX && starts.iter().any(|written| written.id == start.id);
                    self.rewrite(&table, *hash, |history| {
                        history.starts.iter_mut().for_each(|start| start.is_logged |= is_written(start));
                    })?;
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Writes everything that a limit has and that is not marked as written, in the transaction in progress. Returns what is
/// to be marked when that is committed. For the holder of the structure lock.
pub(super) fn write_limit(
    locked: &Locked,
    database: &mut Database,
    limit: LimitAt,
    written: &mut Vec<Batch>,
) -> Result<()> {
    let mut from = Some((0, 0));
    while let Some(place) = from {
        let mut batch = locked.gather_from(&[limit], place);
        from = batch.next;
        if !batch.keys.is_empty() {
            // With the database's present number: an older copy still counts as one until all is written.
            record(|limit| locked.limit(limit).id(), database, &batch, database.sequence)?;
            // No key is rewritten under the lock, so their marks suffice.
            batch.keys.iter_mut().for_each(|key| (key.starts, key.text) = Default::default());
            written.push(batch);
        }
    }
    Ok(())
}

/// Writes a batch. `id` returns the number of a limit in the database. The commit gets the number `sequence`.
pub(in crate::state) fn record(
    id: impl Fn(LimitAt) -> i64,
    database: &mut Database,
    batch: &Batch,
    sequence: u64,
) -> Result<()> {
    let mut rows = Vec::new();
    for unlogged in &batch.keys {
        for start in &unlogged.starts {
            let started_at = batch.moment.wall - (batch.now.floor as i64 - start.stamp as i64);
            rows.push(Execution {
                limit: id(unlogged.limit),
                key: &unlogged.text,
                key_hash: unlogged.hash.0,
                started_at,
                units: start.units,
                expires_at: started_at + unlogged.table.policy.longest() as i64,
            });
        }
    }
    let minutes: Vec<_> = batch.news.iter().map(|(limit, minute)| (id(*limit), *minute)).collect();
    database.keeps_to = batch.keeps_to;
    if !fault::planted("unwritten ledger") {
        database.record(&rows, &minutes, batch.moment, (batch.instance, sequence))?;
    }
    Ok(())
}
