//! The requests of a limit to its server.

use super::{Key, Limit};
use crate::algorithm::grants::{Grants, Lengths, Reply, Wish};
use crate::algorithm::log::View;
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::hash::{Hash, SERVER_SECRET, hasher};
use crate::os::{sleep_on, wake_all};
use crate::server::denials::Denial;
use crate::server::witness::Word;
use crate::server::{Call, Engine, number, version};
use crate::state::cells::home::{AtOnce, Blocked, Home, Table};
use crate::state::files::grant_lane::GrantLane;
use crate::state::names::registry::new_owner;
use crate::time::{Tick, from_ticks, uptime};
use crate::waiting::MayWait;
use crate::{fault, policy};
use std::time::Instant;

/// For how long after a return another one is expected, in ticks.
const RETURNS: Tick = 600_000_000;

/// An answer: its first numbers, and the others.
struct Told<const N: usize> {
    first: [i64; N],
    others: Vec<i64>,
    /// Whether the server's clock was set forward since the previous answer, as far as this process can tell.
    was_set: bool,
}

/// The right to ask for grants of a key. When it is dropped, other callers may ask.
struct AskGuard<'a>(Grants<'a>);

impl Drop for AskGuard<'_> {
    fn drop(&mut self) {
        wake_all(self.0.end());
    }
}

impl Limit {
    /// Returns whether a server decides.
    #[inline(always)]
    pub fn is_served(&self) -> bool {
        self.store.server().is_some()
    }

    fn server(&self) -> &dyn Engine {
        &**self.store.server().expect("the caller has checked")
    }

    /// Runs an operation of the server on a key, by the policy that this process knows. The answer begins with the
    /// server's time.
    pub fn ask<const N: usize>(&self, found: &Key, op: &'static str, arguments: &[i64]) -> Result<[i64; N], Blocked> {
        self.ask_of(found.home(), found.table, Some(found.hash), op, arguments)
    }

    /// Runs an operation on a key that need not be here, or on the whole limit.
    pub fn ask_of<const N: usize>(
        &self,
        home: &Home,
        table: &Table,
        key: Option<Hash>,
        op: &'static str,
        arguments: &[i64],
    ) -> Result<[i64; N], Blocked> {
        self.ask_all(home, table, key, op, arguments).and_then(|(first, others)| match others.is_empty() {
            true => Ok(first),
            false => Err(self.no_answer(op, &others)),
        })
    }

    fn no_answer(&self, op: &'static str, answer: &[i64]) -> Blocked {
        let doing = format!("asking {} to {op}", self.store.url());
        Error::store(doing, format_args!("unexpected answer {answer:?}")).into()
    }

    /// Runs an operation whose answer may be longer.
    pub fn ask_all<const N: usize>(
        &self,
        home: &Home,
        table: &Table,
        key: Option<Hash>,
        op: &'static str,
        arguments: &[i64],
    ) -> Result<([i64; N], Vec<i64>), Blocked> {
        self.ask_with(home, table, key, op, arguments).map(|told| (told.first, told.others))
    }

    fn ask_with<const N: usize>(
        &self,
        home: &Home,
        table: &Table,
        key: Option<Hash>,
        op: &'static str,
        arguments: &[i64],
    ) -> Result<Told<N>, Blocked> {
        let now = home.clock.is_manual().then(|| home.clock.now().floor);
        let phase = home.phase_on_server();
        let place = self.store.places.of(&self.name);
        let made = if fault::planted("epoch ignored") { 0 } else { self.store.made(&place) };
        let word: Option<Word> = if now.is_some() { None } else { self.witness.lock().word() };
        let call = Call { op, limit: &place, key, made, policy: &table.policy, word, now, phase, arguments };
        let patience = MayWait::part_for_server(self.store.options.timeout)?;
        self.counts()?.asked();
        let asked = uptime();
        let answer = self.server().call(&call, patience);
        // Whatever else is done with a key may have freed units.
        if !["decide", "view", "grant"].contains(&op) {
            self.store.denials.forget(&self.name, key);
        }
        let (clock, answer) = answer?.ok_or(Blocked::Stale)?;
        let was_set = now.is_none() && self.witness.lock().saw(clock, (asked, uptime() + 1), word);
        let Some((first, others)) = answer.split_first_chunk::<N>() else {
            return Err(self.no_answer(op, &answer));
        };
        home.clock.follow(first.first().map_or(0, |now| *now as Tick));
        Ok(Told { first: *first, others: others.to_vec(), was_set })
    }

    /// When the server is asked for a start, for [`Limit::remember_denial`].
    pub fn before_denial(&self) -> (u64, Tick) {
        (self.store.denials.before(&self.name), uptime())
    }

    /// Remembers that the server denied a start of this weight.
    pub fn remember_denial(&self, found: &Key, weight: u64, (before, asked): (u64, Tick), view: &View, is_seen: bool) {
        let at = |tick: Tick| asked + tick.saturating_sub(view.now);
        let empty = (is_seen && view.remaining == 0).then(|| at(view.empty));
        let denial = Denial { table: found.table.at.offset(), weight, asked, ready: at(view.ready), empty };
        self.store.denials.remember(&self.name, found.hash, denial, before);
    }

    /// The view of a key of which it is known that the server would deny a start of this weight now. With `is_seen`, only if
    /// all of it is known.
    pub fn known_denial(&self, found: &Key, weight: u64, is_seen: bool) -> Option<View> {
        let (now, uptime) = found.home().clock.now_and_uptime();
        let (now, uptime) = (now.floor, uptime as Tick);
        let known = self.store.denials.find(&self.name, found.hash, (found.table.at.offset(), weight), uptime)?;
        let at = |tick: Tick| now + tick.saturating_sub(uptime);
        let empty = if is_seen { known.empty? } else { known.ready };
        Some(View { now, ready: at(known.ready), remaining: 0, empty: at(empty) })
    }

    /// The grants of a key, in the shared lane if there is one.
    pub fn grants_of<'k>(&self, found: &Key<'k>) -> Grants<'k> {
        let Some(lane) = &found.home().grant_lane else { return found.grants() };
        let hash = || {
            let Hash([a, b]) = found.hash;
            let (server, version) = (self.server().place(), version(&found.table.policy));
            // One address may lead to several servers, as `localhost` does in containers. Each made the limit at another time.
            let place = self.store.places.of(&self.name);
            let made = self.store.made(&place);
            Hash::of(&hasher(SERVER_SECRET, b'g'), &format!("{server}\n{made}\n{place}\n{version}\n{a}\n{b}"))
        };
        lane.find(found.own_grants(), hash)
    }

    /// Asks for units that can be started without the server. One caller at a time asks. The others wait for that
    /// answer and get `false`; a caller that returns checks again. `began`: since when the caller has waited.
    pub fn ask_for_grants(&self, found: &Key, wish: Wish, lengths: Lengths, began: Instant) -> Result<bool, Blocked> {
        let timeout = self.store.options.timeout;
        let patience = MayWait::part_for_server(timeout.saturating_sub(began.elapsed()))?;
        if patience.is_zero() {
            let (doing, waited_ms) = (format!("asking {}", self.store.url()), timeout.as_millis() as u64);
            return Err(Error::StoreTimeout { doing, reason: "the server did not answer".into(), waited_ms }.into());
        }
        let (grants, lane) = (self.grants_of(found), &found.home().grant_lane);
        let process = lane.as_ref().and_then(|lane| lane.process().ok()).unwrap_or(0);
        let asking = match grants.begin(process) {
            Ok(()) => AskGuard(grants),
            Err(asker) => {
                let Some(lane) = lane.as_ref().filter(|_| ![0, process].contains(&asker.process())) else {
                    sleep_on(asker.word, asker.seen, patience);
                    return Ok(false);
                };
                if !(lane.is_gone(&asker) && grants.take_over(&asker, process)) {
                    if grants.is_given_up(&asker) {
                        lane.leave_if_it_is_gone(found.own_grants());
                        return Ok(true);
                    }
                    let (slept, most) = (Instant::now(), GrantLane::PATIENCE.max(from_ticks(4 * grants.trip())));
                    sleep_on(asker.word, asker.seen, patience.min(most));
                    if slept.elapsed() >= most {
                        grants.give_up(&asker);
                    }
                    return Ok(false);
                }
                AskGuard(grants)
            }
        };
        let question = grants.question(wish, lengths, uptime());
        let length = if fault::planted("stamped at its beginning") { 0 } else { lengths.grant };
        let numbers = [
            grants.owner(new_owner)?,
            question.seq,
            question.want,
            question.least,
            question.future,
            question.most,
            length,
        ];
        let arguments: Vec<i64> = numbers.iter().chain(question.reports.as_flattened()).map(|n| number(*n)).collect();
        let asked = uptime();
        let Told { first, others: granted, was_set } =
            self.ask_with(found.home(), found.table, Some(found.hash), "grant", &arguments)?;
        let now = uptime() + 1;
        let reply = Reply::read(first, &granted).ok_or_else(|| self.no_answer("grant", &granted))?;
        asking.0.accept(&question, &reply, (asked, now), lengths, was_set);
        Ok(true)
    }

    /// Units of a key were returned to the server, or to its grants here: what is known of later ones is outdated.
    pub fn has_returned(&self, found: &Key) {
        if found.table.at_once == AtOnce::Grants {
            self.grants_of(found).freed();
        }
        self.returned_at.store(uptime(), Relaxed);
        // After that: who sees it asks anew.
        self.returned.fetch_add(1, AcqRel);
    }

    /// How often it did; 0 if no more returns are to be expected.
    pub fn returned(&self) -> u64 {
        let returned = self.returned.load(Acquire);
        let is_recent = || uptime() <= self.returned_at.load(Relaxed).saturating_add(RETURNS);
        if returned > 0 && is_recent() { returned } else { 0 }
    }

    /// Checks the weight of a start by the policy that applies on the server, which this process may not know.
    pub fn check_weight_on_server(&self, table: &Table, key: Hash, weight: u64) -> Result<(), Blocked> {
        let checked = policy::check_weight(&self.name, weight, table.capacity);
        if checked.is_err() && weight > 0 {
            let patience = MayWait::part_for_server(self.store.options.timeout)?;
            if !self.server().is_held(&self.store.places.of(&self.name), Some(key), &table.policy, patience)? {
                return Err(Blocked::Stale);
            }
        }
        Ok(checked?)
    }

    /// Runs an operation on the policy of a key, or of the whole limit.
    fn on_server<const N: usize>(&self, key: &str, op: &'static str, argument: impl Fn(&Home) -> i64) -> Result<()> {
        match key {
            "" => {
                self.look("", |home, table, _, _| self.ask_of::<N>(home, table, None, op, &[argument(home)]).map(drop))?
            }
            key => self.with_key(key, |found| self.ask::<N>(found, op, &[argument(found.home())]).map(drop))?,
        }
        if self.home()?.has_grants {
            let patience = MayWait::part_for_server(self.store.options.timeout)?;
            let [out, said] = self.server().out(&self.store.places.of(&self.name), patience)?;
            self.store.wait_for_grants(if op == "pause" { out } else { said });
        }
        Ok(())
    }

    pub(super) fn close_gate_on_server(&self, key: &str, until: Tick) -> Result<()> {
        self.on_server::<2>(key, "pause", |home| number(until.saturating_sub(home.clock.now().floor)))
    }

    pub(super) fn forget_on_server(&self, key: &str) -> Result<()> {
        self.on_server::<1>(key, "clear", |_| 0)
    }
}
