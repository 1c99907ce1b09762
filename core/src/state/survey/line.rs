//! The line of a limit and key: who has its units, and who waits for them.

use super::id_of;
use crate::algorithm::cells::Cells;
use crate::error::Result;
use crate::hash::Hash;
use crate::snapshot::{HeadSnapshot, HolderSnapshot, LineSnapshot, ProcessSnapshot, WaitingSnapshot};
use crate::state::cells::heads::name_of;
use crate::state::cells::home::Home;
use crate::state::cells::layout::LimitAt;
use crate::state::session::Session;
use crate::time::{Tick, from_ticks};
use std::collections::{BTreeMap, HashMap};

impl Session {
    pub(crate) fn survey_line(&self, name: &str, key: &str) -> Result<LineSnapshot> {
        // It follows what others have declared.
        self.with_lock(|_| Ok(()))?;
        let home = self.home();
        let seen = crate::damage::or_damaged(
            || self.lane_path(),
            || {
                let Some(limit) = home.find_limit(name) else { return Ok(None) };
                let processes: HashMap<u64, ProcessSnapshot> = home.members().numbered().collect();
                let holders = holders(home, (limit, key), &processes);
                let heads = heads(home, (limit, key), &processes);
                let waiting = self.waiting(limit, &processes);
                Ok(Some(LineSnapshot { holders, heads, waiting }))
            },
        )?;
        seen.map_or_else(|| self.unknown(name), Ok)
    }

    fn waiting(&self, limit: LimitAt, processes: &HashMap<u64, ProcessSnapshot>) -> Vec<WaitingSnapshot> {
        let mut all = BTreeMap::new();
        match self.home().is_lane() {
            true => self.home().members().each_waiting(|of, member, callers| {
                if of == limit {
                    *all.entry(member).or_insert(0) += callers;
                }
            }),
            false => {
                let callers = self.counts_of(limit).map_or(0, |counts| counts.waiting());
                all.extend((callers > 0).then_some((0, callers)));
            }
        }
        let shown = |(member, callers)| WaitingSnapshot { process: processes.get(&member).cloned(), callers };
        let mut all: Vec<WaitingSnapshot> = all.into_iter().map(shown).collect();
        all.sort_by_key(|seen| std::cmp::Reverse(seen.callers));
        all
    }
}

/// The key whose cells a start of this key is counted in.
fn counted<'k>(home: &Home, limit: LimitAt, key: &'k str) -> &'k str {
    if home.limit(limit).table().policy.is_shared() { "" } else { key }
}

fn holders(
    home: &Home,
    (limit, key): (LimitAt, &str),
    processes: &HashMap<u64, ProcessSnapshot>,
) -> Vec<HolderSnapshot> {
    let table = home.limit(limit).table();
    let found = home.index(&table).find(home.hash(b'k', counted(home, limit, key)));
    let Ok(Some(at)) = found else { return Vec::new() };
    let own = home.of(&table).for_key(at);
    let Cells::Leases(leases) = home.cells(&own, at) else { return Vec::new() };
    let mut all: BTreeMap<Option<u64>, (u64, u64)> = BTreeMap::new();
    for (owner, weight) in leases.holders() {
        let (starts, units) = all.entry(owner).or_default();
        (*starts, *units) = (*starts + 1, *units + weight);
    }
    let is_alive = |owner: &Option<u64>| owner.is_none_or(|owner| !home.is_dead(owner));
    let all = all.into_iter().filter(|(owner, _)| is_alive(owner));
    let shown = |(owner, (starts, units)): (Option<u64>, _)| HolderSnapshot {
        process: owner.and_then(|owner| processes.get(&owner).cloned()),
        starts,
        units,
        cools_down: owner.is_none(),
    };
    let mut all: Vec<HolderSnapshot> = all.map(shown).collect();
    all.sort_by_key(|seen| std::cmp::Reverse(seen.units));
    all
}

fn heads(home: &Home, (limit, key): (LimitAt, &str), processes: &HashMap<u64, ProcessSnapshot>) -> Vec<HeadSnapshot> {
    let table = home.limit(limit).table();
    let tenants = home.tenants(limit, table.capacity);
    let hash = home.hash(b'k', key);
    let all = match &tenants {
        Some(tenants) => tenants.heads.in_order(0),
        None => home.heads().in_order(name_of(limit, hash)),
    };
    let is_its = |name: u64| tenants.is_none() || key.is_empty() || name == hash.0[0].max(1);
    // (Lines count time from the boot.)
    let (_, now) = home.clock.now_and_uptime();
    let living = all.into_iter().filter(|head| is_its(head.name) && !home.is_dead(head.owner));
    living
        .map(|head| HeadSnapshot {
            process: processes.get(&head.owner).cloned(),
            waits: from_ticks((now as Tick).saturating_sub(head.since())),
            units: head.units,
            priority: head.priority(),
            tenant: tenants.is_some().then(|| id_of(Hash([head.name, 0]))),
            is_passed: head.is_skipped(),
        })
        .collect()
}
