//! Recovery: fills a rebuilt lane from the database.
//!
//! If the ledger has every start (`committed.rs`), that is all. Otherwise, after a reboot, every key of a limit that is
//! written ahead counts its budget as used at that moment, in addition to what the ledger has. So there is never a start
//! too many, and at most a budget too few. The counted budget itself is not in the ledger, and is written before the
//! key's first start, since the next reboot may come while it still counts. A limit that is written behind counts as full
//! until one window after the last moment at which it may have been used.

use super::database::{Database, Identity};
use super::executions::Moment;
use super::gather::{moment, write_limit};
use super::policies::{KeySelection, KnownKey, KnownLimit};
use super::restoring::Past;
use crate::algorithm::log::SETTLED;
use crate::algorithm::{History, Start};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::policy::Policy;
use crate::state::cells::home::BEHIND;
use crate::state::cells::layout::{LimitAt, table_word};
use crate::state::cells::locked::Locked;
use crate::state::cells::table::longest_behind;
use crate::state::files::lane::{self, Creation, WATCH_EVERY};
use crate::state::rare::growing::Adds;
use crate::state::rare::keyed::Origin;
use crate::state::rare::rewrite::units_of;
use crate::time::Tick;
use crate::{fault, os};
use std::collections::BTreeMap;

/// A limit whose lane was lost counts as full for this much longer. By then, processes that still use the lost lane
/// have noticed.
const NOTICED_BY: Tick = 2 * WATCH_EVERY;

/// Fills a rebuilt lane from the database.
pub(in crate::state) fn recover(
    home: &Locked,
    database: &mut Database,
    identity: &Identity,
    made: Creation,
) -> Result<()> {
    let this_boot = os::boot().map_err(|e| Error::store(format!("opening {}", database.path().display()), e))?;
    let boot = this_boot.text();
    // In the boot of the last lane, processes may still be using that lane.
    let is_lost = made == Creation::Missing && this_boot.may_be(&identity.boot);
    let (now, moment) = moment(home);
    // From here on, a process with another lane writes nothing that is not read below.
    let complete_from = database.claim(home.instance, &boot, moment)?.filter(|_| made != Creation::Unknown);
    fault::point("lane-claimed");
    let tick = |uptime: i64| now.ceil.saturating_add_signed(uptime.saturating_sub(moment.uptime));
    // Users of the lost lane no longer write to the ledger, and will have noticed by the end of that time. Until then
    // they start at most a key's budget, since for more they would have to write. So the ledger and a budget that
    // counts from that time on cover everything that they may have started, and never too little.
    let noticed = if is_lost { now.ceil + NOTICED_BY } else { now.ceil };
    let last = complete_from.map_or(noticed, tick);
    // Nothing that counts is missing.
    let has_all = |policy: Policy| last.saturating_add(policy.longest()) <= now.floor;
    let is_booted = made != Creation::Unknown && database.is_rebooted(moment)?;
    let booted = if is_booted && !is_lost { tick(0) } else { 0 };
    let last_used = if complete_from.is_none() && booted > 0 { booted } else { last };
    // The units that count for each key under a policy whose starts may be missing in this number.
    let recovered = |policy: Policy, missing: Option<u64>| {
        let budget = home.budget(policy).max(missing.unwrap_or(0));
        // Of windows that are written behind, it is only known that nothing started between a boot and now.
        match budget < BEHIND && made != Creation::Unknown {
            _ if has_all(policy) => Origin { born: 0, lost: [0, 0] },
            true => Origin { born: 0, lost: [last, budget] },
            false => Origin { born: last_used, lost: [0, 0] },
        }
    };
    let (mut is_missing, mut limits, mut at_once) = (false, BTreeMap::new(), Vec::new());
    let mut kept = Vec::new();
    for KnownLimit { id, name, declared, missing } in database.limits(None)? {
        is_missing |= missing.is_some();
        let policy = declared.current();
        let origin = recovered(policy, missing);
        let limit = home.add_limit(&name, id, policy, origin.born)?;
        if is_lost {
            // Leases are in no ledger.
            let until = if policy.is_concurrency() { noticed } else { last };
            home.limit(limit).gate().store(until, Release);
        }
        let keys = database.keys(KeySelection::Of(id))?;
        // A policy has changed, and the rows from before may count for less long than it needs.
        if missing.is_some() || keys.iter().any(|key| key.missing.is_some()) {
            let longest = keys.iter().filter_map(|key| key.policy).map(|own| own.longest()).max().unwrap_or(0);
            kept.push((id, longest.max(policy.longest())));
        }
        // Nor are units that cool down. Their starts ended before the boot at the latest, or now.
        let cooldown = keys.iter().filter_map(|key| key.policy).chain([policy]).map(|policy| policy.cooldown()).max();
        if let Some(cooldown @ 1..) = cooldown {
            let ended = if is_lost { noticed } else { if booted > 0 { booted } else { now.ceil } };
            home.limit(limit).gate().fetch_max(ended.saturating_add(cooldown), AcqRel);
        }
        let lost @ [stamp, units] = origin.lost;
        if units > 0 {
            let table = home.limit(limit).table();
            home.set(table.at + table_word::LOST, lost);
            // The key existed before the loss was known.
            let is_logged = fault::planted("lost once");
            home.rewrite_with(&table, home.hash(b'k', ""), Adds::Restored(units), |history| {
                history.add_unlogged(Start { stamp, units, state: SETTLED, id: u64::MAX, is_logged });
            })?;
        }
        for KnownKey { key, policy: own, missing, .. } in keys {
            is_missing |= missing.is_some();
            let hash = home.hash(b'k', &key);
            match (own, missing) {
                (Some(own), _) => home.add_key_on_plan(limit, (hash, &key), own, recovered(own, missing))?,
                // The policy was about to be lifted, and may have allowed more starts than the limit's.
                (None, Some(missing)) if !has_all(policy) => {
                    let table = home.limit(limit).table();
                    home.find_or_add_locked(&table, hash, &key, &[])?;
                    let units = missing.saturating_sub(units).min(policy.capacity());
                    home.rewrite_with(&table, hash, Adds::Restored(units), |history| {
                        let start = Start { stamp: last, units, state: SETTLED, id: u64::MAX, is_logged: false };
                        (units > 0).then_some(start).into_iter().for_each(|start| history.add_unlogged(start));
                    })?;
                }
                (None, _) => {}
            }
            at_once.push((limit, id, key));
        }
        at_once.push((limit, id, String::new()));
        limits.insert(id, limit);
    }
    database.keep_all(&kept)?;
    home.set_generation(identity.generation, is_missing);
    // Limits that are written behind count as full anyway, for as long as any of their rows would count. That may save
    // a million rows.
    let over = if complete_from.is_some() { 0 } else { longest_behind() };
    // Nothing has started in the new lane.
    let ahead = last as i64 - now.ceil as i64;
    let from = Moment { uptime: moment.uptime + ahead, wall: moment.wall + ahead, ..moment };
    let has_boot = |database: &mut Database| {
        let sequence = lane::raise_sequence(&home.arena, database.sequence);
        database.set_boot(&boot, moment, (home.instance, sequence), Some(from))?;
        lane::have_committed(&home.arena, sequence);
        Ok(())
    };
    let restore =
        |limit: LimitAt, hash: Hash, text: &str, old: Vec<Start>| restore(home, limit, hash, text, old, (over, booted));
    if database.has_more_than(fault::most_restored_at_once(), &boot, moment, over)? {
        has_boot(database)?;
        let (until, last_row) = database.index_keys()?;
        fault::point("lane-indexed");
        let past = Past { until, last_row, over, booted, noticed };
        home.restore_later(database, past, limits.into_values())?;
        for (limit, id, key) in at_once {
            let (table, hash) = (home.limit(limit).table(), home.hash(b'k', &key));
            let longest = home.index(&table).plan_of_idle(hash).unwrap_or(table).policy.longest();
            let rows = database.rows_of_key(((id, hash), longest), moment.uptime, past)?;
            if !rows.is_empty() {
                restore(limit, hash, &key, home.of(&table).starts_of(&rows))?;
            }
        }
        return Ok(());
    }
    database.end_index_of_keys()?;
    let mut group: Option<(LimitAt, Hash, String)> = None;
    let mut starts = Vec::new();
    database.executions(&boot, moment, over, |row| {
        // Of a limit that was forgotten.
        let Some(&limit) = limits.get(&row.limit) else { return Ok(()) };
        let is_same = group.as_ref().is_some_and(|(of, hash, _)| *of == limit && hash.0 == row.key_hash);
        if !is_same {
            if let Some((limit, hash, text)) = group.take() {
                restore(limit, hash, &text, std::mem::take(&mut starts))?;
            }
            group = Some((limit, Hash(row.key_hash), row.key.to_owned()));
        }
        // A place counts from now on, or from the last moment at which it may be used: it is unknown whether it started.
        let stamp = now.ceil.saturating_add_signed(row.started_at.saturating_sub(moment.wall)).min(noticed);
        if row.units == 0 {
            return Ok(());
        }
        starts.push(Start { stamp, units: row.units, state: SETTLED, id: u64::MAX, is_logged: true });
        Ok(())
    })?;
    if let Some((limit, hash, text)) = group {
        restore(limit, hash, &text, starts)?;
    }
    has_boot(database)
}

/// Writes everything that the lane knows to a database that is an older copy of the original, or that replaced one that
/// is gone, in one transaction and in place of the rows that it has. That includes limits that it does not declare, since
/// they will be declared again. If it fails or dies, nothing is written, and the next call begins again.
pub(in crate::state) fn write_all(home: &Locked, database: &mut Database) -> Result<()> {
    let boot = os::boot().map_err(|e| Error::store(format!("opening {}", database.path().display()), e))?.text();
    // What the lane does not have may be in the copy.
    let limits = || home.numbers().into_iter();
    let is_whole = |limit: LimitAt| !home.of(&home.limit(limit).table()).may_restore();
    let whole: Vec<i64> = limits().filter(|(_, limit)| is_whole(*limit)).map(|(number, _)| number).collect();
    // And it may be in no ledger any more.
    home.close_unrestored();
    limits().try_for_each(|(_, limit)| unmark(home, limit))?;
    let sequence = lane::raise_sequence(&home.arena, database.sequence);
    let mut written = Vec::new();
    database.as_one(|database| {
        database.delete_record()?;
        database.claim(home.instance, &boot, moment(home).1)?;
        adopt_all(home, database)?;
        database.remove_all(&whole)?;
        limits().try_for_each(|(_, limit)| write_limit(home, database, limit, &mut written))?;
        database.set_boot(&boot, moment(home).1, (home.instance, sequence), None)?;
        fault::point("rows-written");
        Ok(())
    })?;
    lane::have_committed(&home.arena, sequence);
    written.iter().try_for_each(|batch| home.mark(batch))
}

/// Makes all limits of the lane known to a copy of the database, under the lane's numbers.
pub(in crate::state) fn adopt_all(home: &Locked, database: &mut Database) -> Result<()> {
    let numbers = home.numbers();
    home.limits().try_for_each(|limit| {
        let (cells, policy) = (home.limit(limit), home.limit(limit).table().policy);
        let Some(name) = cells.name() else { return Ok(()) };
        database.adopt((&name, policy.kind(), cells.id()), |id| numbers.contains_key(&id), home.budget(policy))
    })
}

/// Marks all starts of a limit as missing from the ledger.
fn unmark(home: &Locked, limit: LimitAt) -> Result<()> {
    let table = home.limit(limit).table();
    if table.policy.is_concurrency() {
        return Ok(());
    }
    let keys: Vec<Hash> = home.index(&table).keys().map(|(_, at)| home.block(at).hash()).collect();
    keys.into_iter().try_for_each(|hash| {
        home.rewrite(&table, hash, |history| history.starts.iter_mut().for_each(|start| start.is_logged = false))
            .map(drop)
    })
}

/// Adds a key with these starts. Windows that are not over `over` count as full anyway, for as long as any of these would count. So do
/// they until the boot at which the machine was `booted`: the wall clock is not trusted to fractions of a minute.
fn restore(
    home: &Locked,
    limit: LimitAt,
    hash: Hash,
    text: &str,
    mut old: Vec<Start>,
    (over, booted): (Tick, Tick),
) -> Result<()> {
    let table = home.limit(limit).table();
    let own = home.index(&table).plan_of_idle(hash).unwrap_or(table);
    if own.policy.is_concurrency() || own.budget >= BEHIND && over > 0 {
        return Ok(());
    }
    if own.budget >= BEHIND {
        old.iter_mut().for_each(|start| start.stamp = start.stamp.max(booted));
    }
    let segment = home.index(&table).segment(hash);
    match segment.probe(&table, hash) {
        Ok((slot, stub)) if home.block(stub.at).is_stub() => home.wake_key(&own, (segment, slot), stub.at, hash, &old),
        Ok(_) => {
            let with_old = |history: &mut History| {
                // The ledger does not say by which policy they were admitted.
                history.is_mixed = true;
                history.add_logged(&old);
            };
            home.rewrite_with(&table, hash, Adds::Restored(units_of(&old)), with_old).map(drop)
        }
        // Written once: there may be many.
        Err(_) => home.find_or_add_locked(&table, hash, text, &old).map(drop),
    }
}
