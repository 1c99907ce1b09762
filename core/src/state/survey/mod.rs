//! The snapshot of a home for observers, read as decisions read it, without a lock. (Names and policies come from the
//! database.) Only observers call it.

mod line;
mod served;
mod tenants;

use crate::algorithm::cells::Cells;
use crate::algorithm::log::Ask;
use crate::atomic::*;
use crate::decision::LOOK_AGAIN;
use crate::error::Result;
use crate::hash::Hash;
use crate::policy::{Policy, Shape};
use crate::snapshot::{KeySnapshot, LimitSnapshot, Snapshot, Usage, WAIT_BOUNDS};
use crate::state::cells::block::BlockCells;
use crate::state::cells::home::{Home, KeyAt, Table};
use crate::state::cells::index::Index;
use crate::state::cells::layout::{LimitAt, index_word, key_word, limit_word};
use crate::state::cells::limit::LimitCells;
use crate::state::cells::segment::SegmentCells;
use crate::state::counts::minutes::Minute;
use crate::state::files::arena::ALLOCATED;
use crate::state::ledger::declared::Declared;
use crate::state::ledger::executions::MINUTES_AT_ONCE;
use crate::state::ledger::policies::KnownLimit;
use crate::state::session::Session;
use crate::state::writer::Lead;
use crate::stats::Stats;
use crate::time::{Tick, from_ticks};
use served::ServedMemory;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

/// How many keys one survey reads of all limits together, in addition to recently used ones; and the minimum per limit.
const WALKED: usize = 8_192;
const WALKED_OF_ONE: usize = 16;

/// For each shown key, the usage of this many keys is remembered.
const REMEMBERED: usize = 8;
const MIN_REMEMBERED: usize = 64;

/// Counts that have not been written for this long, in ticks, were left by processes that have ended, or cannot be
/// written.
const LEFT: Tick = 3_000_000;

/// How many limits are read before other writers of the ledger get a turn.
const LIMITS_AT_ONCE: usize = 500;

/// An observer's memory between two surveys.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The home to which it belongs.
    epoch: u64,
    generation: u64,
    policies: Vec<KnownLimit>,
    limits: HashMap<String, LimitMemory>,
    /// A key that is examined in any case.
    pub sought: Option<String>,
    /// The only limit that is shown, or a composite of which only the parts are.
    pub only: Option<String>,
}

impl Survey {
    /// Whether a limit of this name is shown.
    fn shows(&self, name: &str) -> bool {
        let rest = self.only.as_deref().map(|only| name.strip_prefix(only));
        rest.is_none_or(|rest| rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }
}

/// The memory of one limit.
#[derive(Debug, Default)]
struct LimitMemory {
    /// The hash at which the search through keys that were not used recently continues.
    next: u64,
    /// The total usage of the busiest keys.
    totals: HashMap<Hash, u64>,
    /// Of a limit on a server.
    served: ServedMemory,
}

/// A key that was read.
struct KeyReading {
    at: KeyAt,
    table: Table,
    hash: Hash,
    stats: Stats,
    usage: Vec<(u64, u64)>,
    /// Its usage since the last survey.
    news: u64,
}

impl KeyReading {
    fn total(&self) -> u64 {
        self.stats.admitted + self.stats.denied
    }

    fn retry_after(&self, home: &Home, gate: Tick) -> Duration {
        let gate = gate.max(home.block(self.at.at).gate());
        match home.cells(&self.table, self.at) {
            Cells::Leases(leases) => home.wait_for_units(&self.table, &leases, 1, gate).unwrap_or(LOOK_AGAIN),
            cells => {
                let ask = Ask::now(self.table.windows.as_slice(), 1, gate);
                cells
                    .view(&ask, || home.clock.now())
                    .map_or(until(home, gate), |view| from_ticks(view.ready.saturating_sub(view.now)))
            }
        }
    }

    /// By which keys are busier than others.
    fn rank(&self) -> (u64, u64) {
        (self.news, self.total())
    }
}

/// How long a gate stays closed.
fn until(home: &Home, gate: Tick) -> Duration {
    from_ticks(gate.saturating_sub(home.clock.now().floor))
}

/// The largest share of a window that is in use.
fn fullness(usage: &[(u64, u64)]) -> f64 {
    usage.iter().map(|&(limit, used)| used as f64 / limit.max(1) as f64).fold(0.0, f64::max)
}

impl Session {
    /// Takes a survey of the store, with this many keys of each limit.
    pub(crate) fn survey(&self, survey: &mut Survey, keys: usize) -> Result<Snapshot> {
        let now = self.with_lock(|locked| {
            self.flush_counts(locked)?;
            Ok((self.epoch(), locked.generation()))
        })?;
        // Without a database, changes are not counted.
        if (survey.epoch, survey.generation) != now || !self.home().is_lane() {
            let known = self.all_known(survey)?;
            (survey.epoch, survey.generation) = (now.0, known.1);
            let names: HashSet<&str> = known.0.iter().map(|known| known.name.as_str()).collect();
            survey.limits.retain(|name, _| names.contains(name.as_str()));
            survey.policies = known.0;
        }
        let home = self.home();
        let left = home.listed_since().filter(|at| *at + LEFT < home.clock.now().floor);
        if home.is_lane() && left.is_some() {
            // The processes that would write it have ended.
            self.look_after();
        }
        crate::damage::or_damaged(
            || self.lane_path(),
            || {
                let mut lately: HashMap<LimitAt, Vec<Hash>> = HashMap::new();
                home.listed_lately().into_iter().for_each(|(limit, hash)| lately.entry(limit).or_default().push(hash));
                let waiting = home.members().waiting();
                let most = (WALKED / survey.policies.len().max(1)).max(WALKED_OF_ONE);
                let sought = survey.sought.as_deref().map(|key| home.hash(b'k', key));
                let limits = survey.policies.iter().filter_map(|known| {
                    let at = home.find_limit(&known.name)?;
                    let watched = survey.limits.entry(known.name.clone()).or_default();
                    let lately = lately.remove(&at).unwrap_or_default();
                    let mut seen = home.limit(at).survey(known, watched, (lately, sought, most, keys));
                    if let (Some(hash), Some(key)) = (sought, &survey.sought)
                        && let Some(tenant) = seen.tenants.iter_mut().find(|tenant| tenant.id == id_of(hash))
                    {
                        tenant.key.clone_from(key);
                    }
                    seen.waiting = match home.is_lane() {
                        true => waiting.get(&at).copied().unwrap_or(0),
                        false => self.counts_of(at).map_or(0, |counts| counts.waiting()),
                    };
                    Some(seen)
                });
                let now = home.clock.now().floor;
                Ok(Snapshot {
                    at: SystemTime::now(),
                    url: self.url().to_owned(),
                    limits: limits.collect(),
                    counts_all_processes: true,
                    processes: home.members().processes(),
                    ledger_lag: home.listed_since().map_or(Duration::ZERO, |at| from_ticks(now.saturating_sub(at))),
                    lane_bytes: if home.is_lane() { home.arena.usable() * 8 } else { 0 },
                    used_bytes: home.arena.used() * 8,
                    max_bytes: home.arena.bound(),
                    failures: self.failures(),
                })
            },
        )
    }

    /// All limits that are shown, by name, and the generation of their policies. A composite is represented by its parts. No
    /// writer is blocked for long.
    fn all_known(&self, survey: &Survey) -> Result<(Vec<KnownLimit>, u64)> {
        if !self.home().is_lane() {
            let known = |(name, declared): (&String, &Declared)| KnownLimit {
                id: 0,
                name: name.clone(),
                declared: declared.clone(),
                missing: None,
            };
            let is_shown = |(name, _): &(&String, &_)| survey.shows(name);
            return self.with_lock(|_| Ok((self.rare().limits.iter().filter(is_shown).map(known).collect(), 0)));
        }
        let (mut all, mut of) = (Vec::<KnownLimit>::new(), None);
        loop {
            let after = all.last().map_or("", |last| last.name.as_str());
            let read = |lead: &Lead, _: Duration| {
                self.with_ledger(lead, |database| database.limits_after(after, survey.only.as_deref(), LIMITS_AT_ONCE))
            };
            let (some, generation) = self.leading("reading", self.options.timeout, read)?;
            // If a change came in between, the next survey reads everything again.
            let of = *of.get_or_insert(generation);
            let is_last = some.len() < LIMITS_AT_ONCE;
            all.extend(some);
            if is_last {
                return Ok((all, of));
            }
        }
    }

    /// The minutes of a limit between two minutes: those in the database, and the last ones of the home.
    pub(crate) fn minutes(&self, name: &str, began: u64, to: u64) -> Result<Vec<Minute>> {
        // This opens the store.
        self.with_lock(|locked| self.flush_counts(locked))?;
        let home = self.home();
        let (mut all, mut from) = (Vec::new(), if home.is_lane() { began } else { to + 1 });
        while from <= to {
            // No other process writes the ledger during this.
            let last = to.min(from + MINUTES_AT_ONCE - 1);
            let read = |lead: &Lead, _: Duration| self.with_ledger(lead, |database| database.minutes(name, from, last));
            all.extend(self.leading("reading", self.options.timeout, read)?);
            from = last + 1;
        }
        let lane = || self.lane_path();
        let latest = crate::damage::or_damaged(lane, || {
            Ok(home.find_limit(name).map(|limit| home.limit(limit).latest_minutes()))
        })?;
        for new in latest.into_iter().flatten().filter(|minute| (began..=to).contains(&minute.at)) {
            match all.iter_mut().find(|minute: &&mut Minute| minute.at == new.at) {
                Some(minute) => minute.merge(&new),
                None => all.push(new),
            }
        }
        all.sort_by_key(|minute| minute.at);
        Ok(all)
    }
}

impl Index<'_, '_> {
    /// The approximate number of keys in a table's index, without the empty one.
    fn key_count(self) -> u64 {
        let count = |segment: SegmentCells| segment.word(index_word::COUNT).load(Acquire);
        self.segments().map(count).sum::<u64>().saturating_sub(1)
    }

    /// The keys of the next segments, about `most` of them.
    fn next_keys(self, next: &mut u64, most: usize) -> Vec<Hash> {
        let mut all = Vec::new();
        let mut segments = HashSet::new();
        while all.len() < most {
            let Some(root) = self.root() else { break };
            let segment = self.home.segment_at(root, root.entry_of(*next));
            // A full round.
            if !segments.insert(segment.at) {
                break;
            }
            let hashes: Vec<Hash> = segment.entries().filter_map(|at| self.home.block(at).checked_hash()).collect();
            // Otherwise the words may belong to another index by now.
            if self.root() == Some(root) {
                all.extend(hashes);
            }
            *next = self.next_segment(*next).unwrap_or(0);
        }
        all.truncate(most.max(index_word::MAX_CAPACITY as usize));
        all
    }

    /// Reads the keys that were busy, those that were used lately, about `most` others, and the key "".
    fn read_keys(
        self,
        watched: &mut LimitMemory,
        lately: impl IntoIterator<Item = Hash>,
        most: usize,
    ) -> Vec<KeyReading> {
        let is_first = watched.totals.is_empty();
        let mut hashes: Vec<Hash> = watched.totals.keys().copied().chain(lately).collect();
        hashes.extend(self.next_keys(&mut watched.next, most));
        hashes.push(self.home.hash(b'k', ""));
        hashes.sort_unstable();
        hashes.dedup();
        let mut all: Vec<KeyReading> = hashes.into_iter().filter_map(|hash| self.survey_key(hash)).collect();
        for seen in &mut all {
            // The usage before the first survey is not recent, but nothing else is known at that time.
            let before = watched.totals.get(&seen.hash).copied();
            seen.news = seen.total() - before.unwrap_or(if is_first { 0 } else { seen.total() }).min(seen.total());
        }
        all
    }

    fn show_key(self, seen: &KeyReading, gate: Tick) -> KeySnapshot {
        let block = self.home.block(seen.at.at);
        let is_own = seen.table.at != self.table.at && self.home.of(self.table).has_plan(seen.table.at);
        KeySnapshot {
            key: block.text(),
            id: id_of(seen.hash),
            overriding: is_own.then_some(seen.table.policy),
            usage: shown(&seen.table.policy, &seen.usage),
            retry_after: seen.retry_after(self.home, gate),
            paused_for: until(self.home, block.gate()),
            stats: seen.stats,
        }
    }

    fn survey_key(self, hash: Hash) -> Option<KeyReading> {
        let at = self.find(hash).ok()??;
        let own = self.home.of(self.table).for_key(at);
        let stats = self.home.block(at.at).stats();
        let usage = self.home.of(&own).usage(self.home.cells(&own, at));
        // Otherwise it has moved, and the words may have belonged to another key.
        (self.find(hash).ok()?? == at).then_some(KeyReading { at, table: own, hash, stats, usage, news: 0 })
    }
}

impl LimitCells<'_> {
    fn survey(
        self,
        known: &KnownLimit,
        watched: &mut LimitMemory,
        (lately, sought, most, most_shown): (Vec<Hash>, Option<Hash>, usize, usize),
    ) -> LimitSnapshot {
        let home = self.home;
        let (table, empty) = (self.table(), home.hash(b'k', ""));
        let index = home.index(&table);
        let mut all = index.read_keys(watched, lately.into_iter().chain(sought), most);
        let fullest = all.iter().max_by(|a, b| fullness(&a.usage).total_cmp(&fullness(&b.usage)));
        let gate = self.gate().load(Acquire);
        let declared = &known.declared;
        let (usage, retry_after) = match fullest {
            Some(seen) => (shown(&seen.table.policy, &seen.usage), seen.retry_after(home, gate)),
            // The key is being rewritten at this moment.
            None => (shown(&table.policy, &[(table.capacity, 0)]), Duration::ZERO),
        };
        let fullest =
            fullest.filter(|seen| seen.hash != empty).map(|seen| (home.block(seen.at.at).text(), id_of(seen.hash)));
        all.retain(|seen| seen.hash != empty);
        all.sort_by(|a, b| {
            let fuller = fullness(&b.usage).total_cmp(&fullness(&a.usage));
            b.rank().cmp(&a.rank()).then(fuller).then(a.hash.cmp(&b.hash))
        });
        watched.remember(&all, most_shown);
        let tenants = self.survey_tenants(&table, sought, (most, most_shown));
        if table.policy.is_shared() {
            // They have no budgets of their own.
            all.clear();
        }
        let is_closed = |seen: &KeyReading| !until(home, home.block(seen.at.at).gate()).is_zero();
        let is_hot = |seen: &&KeyReading| seen.total() > 0 || seen.table.at != table.at || is_closed(seen);
        let is_sought = |seen: &&KeyReading| Some(seen.hash) == sought;
        let hot = all.iter().take(most_shown).filter(is_hot).chain(all.iter().skip(most_shown).filter(is_sought));
        LimitSnapshot {
            name: known.name.clone(),
            kind: declared.current().kind(),
            declared: declared.declared,
            overriding: declared.overriding,
            overridden_by: declared.overridden_by(),
            usage,
            fullest,
            peak: self.peak(),
            retry_after,
            paused_for: until(home, gate),
            waiting: 0,
            waits: home.get::<{ WAIT_BOUNDS.len() + 1 }>(self.at + limit_word::WAITS),
            places_lost: self.word(limit_word::PLACES_LOST).load(Acquire),
            stats: self.counts(),
            keys: index.key_count(),
            bytes: home.limit_words(self.at) * 8,
            spare_bytes: home.of(&table).spare_blocks() * home.block_words(table.policy) * 8,
            hot_keys: hot.map(|seen| index.show_key(seen, gate)).collect(),
            tenants,
            grants: None,
        }
    }
}

impl BlockCells<'_> {
    /// The hash of its key, if there is a block.
    fn checked_hash(self) -> Option<Hash> {
        let is_inside =
            self.at.offset().saturating_add(key_word::RING) <= self.home.arena.word(ALLOCATED).load(Acquire);
        is_inside.then(|| self.hash())
    }
}

impl LimitMemory {
    /// Remembers the usage of the busiest keys, which come first.
    fn remember(&mut self, all: &[KeyReading], most_shown: usize) {
        let most = (most_shown * REMEMBERED).max(MIN_REMEMBERED);
        self.totals = all.iter().take(most).map(|seen| (seen.hash, seen.total())).collect();
    }
}

/// The usage of each window of a policy, the fullest first.
fn shown(policy: &Policy, usage: &[(u64, u64)]) -> Vec<Usage> {
    let windows = windows_of(policy, usage.len());
    let one = |(&(limit, used), window)| Usage { limit, used, window };
    let mut all: Vec<Usage> = usage.iter().zip(windows).map(one).collect();
    let fullness = |usage: &Usage| usage.used as f64 / usage.limit.max(1) as f64;
    all.sort_by(|a, b| fullness(b).total_cmp(&fullness(a)));
    all
}

/// An identifier for a key whose text is not shown.
fn id_of(Hash([id, _]): Hash) -> String {
    format!("{id:016x}")
}

/// The windows of the units that [`TableCells::usage`](crate::state::cells::table::TableCells::usage) returns.
fn windows_of(policy: &Policy, count: usize) -> Vec<Option<Duration>> {
    match policy.windows() {
        windows if windows.len() == count => windows.iter().map(|window| Some(from_ticks(window.length))).collect(),
        _ => {
            let length = match &policy.0 {
                Shape::Counter { window, .. } => window.length,
                _ => policy.longest(),
            };
            vec![(!policy.is_concurrency()).then(|| from_ticks(length)); count]
        }
    }
}
