//! The snapshot of the limits on a server: what is in use, as the server reports it, and the counts of this process.

use super::{KeyReading, LimitMemory, Survey, WALKED, WALKED_OF_ONE, fullness, id_of, shown};
use crate::algorithm::cells::Cells;
use crate::atomic::*;
use crate::decision::LOOK_AGAIN;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::policy::Policy;
use crate::server::Family;
use crate::server::survey::{Found, KeyUse, Question};
use crate::snapshot::{GrantSnapshot, KeySnapshot, LimitSnapshot, Snapshot, WAIT_BOUNDS};
use crate::state::cells::home::Table;
use crate::state::cells::layout::{LimitAt, limit_word};
use crate::state::counts::minutes::this_minute;
use crate::state::ledger::declared::Declared;
use crate::state::names::registry::{TimeLeft, declared_by, of_key_in};
use crate::state::session::Session;
use crate::state::session::places::policy_and_name;
use crate::stats::Stats;
use crate::time::{Tick, from_ticks};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

/// How many of the fullest keys are examined again by the next survey, at least.
const MIN_FULLEST: usize = 8;

/// An observer's memory of a limit on a server.
#[derive(Debug, Default)]
pub(super) struct ServedMemory {
    /// The family of its policy, once that is known.
    family: Option<Family>,
    /// Where the server continues to examine keys.
    place: String,
    /// The fullest keys.
    fullest: Vec<Hash>,
    /// The most units of a key in use, in this minute and the one before: the minute, and the units.
    peaks: [(u64, u64); 2],
}

impl ServedMemory {
    /// Notes the units of a key in use, and returns the most in this minute and the one before.
    fn peak(&mut self, used: u64) -> u64 {
        let now = this_minute();
        if self.peaks[0].0 != now {
            self.peaks = [(now, 0), self.peaks[0]];
        }
        self.peaks[0].1 = self.peaks[0].1.max(used);
        let recent = self.peaks.iter().filter(|(minute, _)| minute + 1 >= now);
        recent.map(|(_, used)| *used).max().unwrap_or(0)
    }
}

/// A limit as this process knows it, and its keys here, busiest first.
struct Here {
    at: LimitAt,
    table: Table,
    keys: Vec<KeyReading>,
}

/// What a snapshot shows of a key.
struct Seen {
    hash: Hash,
    text: Option<String>,
    own: Option<Policy>,
    policy: Policy,
    in_use: KeyUse,
    gate: Tick,
    stats: Stats,
    rank: (u64, u64),
}

impl Seen {
    fn fullness(&self) -> f64 {
        fullness(&self.in_use.units)
    }

    /// When the key can start with weight 1, behind the gate of its limit.
    fn retry_after(&self, gate: Tick, now: Tick) -> Duration {
        let is_full = self.policy.is_concurrency() && self.in_use.units.iter().any(|(limit, used)| used >= limit);
        let after = from_ticks(self.in_use.ready.max(self.gate).max(gate).saturating_sub(now));
        if is_full { after.max(LOOK_AGAIN) } else { after }
    }

    fn show(&self, gate: Tick, now: Tick) -> KeySnapshot {
        KeySnapshot {
            // The server knows only the hashes of most keys.
            key: self.text.clone().unwrap_or_else(|| format!("#{}", id_of(self.hash))),
            id: id_of(self.hash),
            overriding: self.own,
            usage: shown(&self.policy, &self.in_use.units),
            retry_after: self.retry_after(gate, now),
            paused_for: from_ticks(self.gate.saturating_sub(now)),
            stats: self.stats,
        }
    }
}

impl Session {
    /// Takes a survey of the server's limits, with this many keys of each.
    pub(crate) fn survey_server(&self, survey: &mut Survey, keys: usize) -> Result<Snapshot> {
        // This opens the store, and finds the places of the limits that are looked for.
        let only: Vec<&str> = survey.only.as_deref().filter(|_| survey.limits.is_empty()).into_iter().collect();
        self.with_names(&only, |locked| self.flush_counts(locked))?;
        let left = TimeLeft::new(self)?;
        let mut names = self.server().expect("the caller has checked").names(left.now())?;
        // One name for each place.
        names.retain(|name| self.places.of(name) == *name);
        names.iter_mut().for_each(|place| *place = self.places.name_at(place));
        names.retain(|name| survey.shows(name));
        names.sort_unstable();
        let known: HashSet<&str> = names.iter().map(String::as_str).collect();
        survey.limits.retain(|name, _| known.contains(name.as_str()));
        let here = self.find_here(&names, survey);
        let sought = survey.sought.clone();
        let sought = sought.as_deref().map(|key| (self.home().hash(b'k', key), key));
        let found = self.ask_about(&names, &here, survey, (sought, keys), &left)?;
        let mut limits = Vec::with_capacity(names.len());
        for ((name, here), found) in names.into_iter().zip(here).zip(found) {
            let watched = survey.limits.entry(name.clone()).or_default();
            if let Some((declared, found)) = found {
                let name = found.policy.as_deref().and_then(|text| policy_and_name(text).1).map_or(name, str::to_owned);
                limits.push(self.show_served(name, declared, &found, here, watched, (sought, keys))?);
            }
        }
        Ok(Snapshot {
            at: SystemTime::now(),
            url: self.url().to_owned(),
            limits,
            counts_all_processes: false,
            processes: Vec::new(),
            ledger_lag: Duration::ZERO,
            lane_bytes: 0,
            used_bytes: 0,
            max_bytes: 0,
            failures: self.failures(),
        })
    }

    /// The limits that this process has used.
    fn find_here(&self, names: &[String], survey: &mut Survey) -> Vec<Option<Here>> {
        let home = self.home();
        let mut lately: HashMap<LimitAt, Vec<Hash>> = HashMap::new();
        home.listed_lately().into_iter().for_each(|(limit, hash)| lately.entry(limit).or_default().push(hash));
        let most = (WALKED / names.len().max(1)).max(WALKED_OF_ONE);
        let find = |name: &String| {
            let at = home.find_limit(name)?;
            let (table, watched) = (home.limit(at).table(), survey.limits.entry(name.clone()).or_default());
            let mut keys = home.index(&table).read_keys(watched, lately.remove(&at).unwrap_or_default(), most);
            keys.sort_by_key(|seen| Reverse(seen.rank()));
            Some(Here { at, table, keys })
        };
        names.iter().map(find).collect()
    }

    /// Asks the server about these names. `None`: no limit has that name.
    fn ask_about(
        &self,
        names: &[String],
        here: &[Option<Here>],
        survey: &mut Survey,
        (sought, most_shown): (Option<(Hash, &str)>, usize),
        left: &TimeLeft,
    ) -> Result<Vec<Option<(Declared, Found)>>> {
        let (home, server) = (self.home(), self.server().expect("the caller has checked"));
        let now = home.clock.is_manual().then(|| home.clock.now().floor);
        let mut all: Vec<_> = names.iter().map(|_| None).collect();
        let mut waiting: Vec<usize> = (0..names.len()).collect();
        while !waiting.is_empty() {
            if left.now().is_zero() {
                let (doing, reason) = (format!("asking {}", self.url()), "the server did not answer".into());
                let waited_ms = self.options.timeout.as_millis() as u64;
                return Err(Error::StoreTimeout { doing, reason, waited_ms });
            }
            let unknown = ServedMemory::default();
            let places: Vec<String> = names.iter().map(|name| self.places.of(name)).collect();
            let question = |at: &usize| {
                let served = survey.limits.get(&names[*at]).map_or(&unknown, |watched| &watched.served);
                let used = here[*at].iter().flat_map(|here| &here.keys).filter(|seen| seen.total() > 0);
                let used = used.map(|seen| seen.hash).take(most_shown).chain(sought.map(|(hash, _)| hash));
                let keys = std::iter::once(home.hash(b'k', "")).chain(served.fullest.iter().copied()).chain(used);
                let family = served.family.unwrap_or(Family::Log);
                Question { limit: &places[*at], family, keys: keys.collect(), place: &served.place }
            };
            let questions: Vec<Question> = waiting.iter().map(question).collect();
            let answers = server.survey(&questions, now, left.now())?;
            let families: Vec<Family> = questions.iter().map(|question| question.family).collect();
            for ((at, family), answer) in std::mem::take(&mut waiting).into_iter().zip(families).zip(answers) {
                let name = &names[at];
                // Otherwise it is a composite, or was forgotten.
                let Some(declared) = &answer.policy else { continue };
                let declared = declared_by(name, policy_and_name(declared).0, answer.overriding.as_deref())?;
                let served = &mut survey.limits.entry(name.clone()).or_default().served;
                served.family = Some(Family::of(&declared.current()));
                if served.family == Some(family) {
                    served.place.clone_from(&answer.place);
                    all[at] = Some((declared, answer));
                } else {
                    waiting.push(at);
                }
            }
        }
        Ok(all)
    }

    fn show_served(
        &self,
        name: String,
        declared: Declared,
        found: &Found,
        here: Option<Here>,
        watched: &mut LimitMemory,
        (sought, most_shown): (Option<(Hash, &str)>, usize),
    ) -> Result<LimitSnapshot> {
        let (home, policy) = (self.home(), declared.current());
        let empty = home.hash(b'k', "");
        let at = here.as_ref().map(|here| here.at);
        watched.remember(here.as_ref().map_or(&[], |here| &here.keys), most_shown);
        let unused = |hash, policy| {
            let in_use = KeyUse::of(&policy, &[], found, home.phase_on_server());
            Seen { hash, text: None, own: None, policy, in_use, gate: 0, stats: Stats::default(), rank: (0, 0) }
        };
        let mut all: HashMap<Hash, Seen> = HashMap::from([(empty, unused(empty, policy))]);
        for state in &found.states {
            let (own, text) = state.own.as_deref().map_or(Ok((None, "")), |text| of_key_in(&name, text))?;
            let policy = own.unwrap_or(policy);
            let in_use = KeyUse::of(&policy, &state.numbers, found, home.phase_on_server());
            let text = (!text.is_empty()).then(|| text.to_owned());
            all.insert(state.hash, Seen { text, own, in_use, gate: state.gate, ..unused(state.hash, policy) });
        }
        let mut held = 0;
        for (table, key) in here.iter().flat_map(|here| here.keys.iter().map(|key| (&here.table, key))) {
            if key.total() > 0 {
                let is_own = key.table.at != table.at && home.of(table).has_plan(key.table.at);
                let own = is_own.then_some(key.table.policy);
                all.entry(key.hash).or_insert_with(|| Seen { own, ..unused(key.hash, own.unwrap_or(policy)) });
            }
            let Some(seen) = all.get_mut(&key.hash) else { continue };
            (seen.text, seen.stats, seen.rank) = (Some(home.block(key.at.at).text()), key.stats, key.rank());
            if let Cells::Grants(grants) = home.cells(&key.table, key.at) {
                // What was granted to this process and has not started is not in use.
                let free = grants.held();
                held += free;
                seen.in_use.give_back(free);
            }
        }
        if let Some((hash, text)) = sought
            && let Some(seen) = all.get_mut(&hash)
        {
            seen.text = Some(text.to_owned());
        }
        let fuller = |a: &&Seen, b: &&Seen| {
            a.fullness().total_cmp(&b.fullness()).then((a.hash == empty).cmp(&(b.hash == empty)))
        };
        let fullest = all.values().max_by(fuller).expect("the key \"\" is there");
        let (gate, now) = (found.gate, found.now);
        let counts = at.and_then(|at| self.counts_of(at));
        let mut snapshot = LimitSnapshot {
            name,
            kind: policy.kind(),
            declared: declared.declared,
            overriding: declared.overriding,
            overridden_by: declared.overridden_by(),
            usage: shown(&fullest.policy, &fullest.in_use.units),
            fullest: (fullest.hash != empty).then(|| (fullest.show(gate, now).key, id_of(fullest.hash))),
            peak: watched.served.peak(fullest.in_use.units.iter().map(|(_, used)| *used).max().unwrap_or(0)),
            retry_after: fullest.retry_after(gate, now),
            paused_for: from_ticks(gate.saturating_sub(now)),
            waiting: counts.as_ref().map_or(0, |counts| counts.waiting()),
            waits: at.map_or([0; WAIT_BOUNDS.len() + 1], |at| home.get(at + limit_word::WAITS)),
            places_lost: at.map_or(0, |at| home.limit(at).word(limit_word::PLACES_LOST).load(Acquire)),
            stats: at.map_or_else(Stats::default, |at| home.limit(at).counts()),
            keys: found.keys,
            bytes: 0,
            spare_bytes: 0,
            hot_keys: Vec::new(),
            tenants: Vec::new(),
            grants: home
                .is_granted(policy)
                .then(|| GrantSnapshot { held, requests: counts.map_or(0, |counts| counts.requests()) }),
        };
        all.remove(&empty);
        let mut all: Vec<Seen> = all.into_values().collect();
        all.retain(|seen| seen.rank.1 > 0 || seen.fullness() > 0.0 || seen.gate > now || seen.own.is_some());
        all.sort_by(|a, b| b.fullness().total_cmp(&a.fullness()).then(a.hash.cmp(&b.hash)));
        watched.served.fullest = all.iter().map(|seen| seen.hash).take(most_shown.max(MIN_FULLEST)).collect();
        // The busiest first, as far as that is known here.
        all.sort_by_key(|seen| Reverse(seen.rank));
        let is_sought = |seen: &&Seen| sought.is_some_and(|(hash, _)| hash == seen.hash);
        let hot = all.iter().take(most_shown).chain(all.iter().skip(most_shown).filter(is_sought));
        snapshot.hot_keys = hot.map(|seen| seen.show(gate, now)).collect();
        Ok(snapshot)
    }
}
