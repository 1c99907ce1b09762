//! What a limit asks of its server.

use super::{Key, Limit};
use crate::error::{Error, Result};
use crate::policy;
use crate::server::{Call, Engine, number};
use crate::state::table::{Blocked, Hash, Home, Table};
use crate::time::Tick;
use crate::waiting::MayWait;

impl Limit {
    /// Does a server decide?
    #[inline(always)]
    pub fn is_served(&self) -> bool {
        self.store.server().is_some()
    }

    fn server(&self) -> &dyn Engine {
        &**self.store.server().expect("the caller has looked")
    }

    /// Asks a script about a key, by the policy that this process knows. The answer begins with the server's time.
    pub fn ask<const N: usize>(&self, found: &Key, op: &'static str, arguments: &[i64]) -> Result<[i64; N], Blocked> {
        self.ask_of(found.home(), found.table, Some(found.hash), op, arguments)
    }

    /// The same, of a key that need not be here, or of the whole limit.
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
        Error::store(doing, format_args!("{answer:?} is no answer")).into()
    }

    /// The same, with an answer that may be longer.
    pub fn ask_all<const N: usize>(
        &self,
        home: &Home,
        table: &Table,
        key: Option<Hash>,
        op: &'static str,
        arguments: &[i64],
    ) -> Result<([i64; N], Vec<i64>), Blocked> {
        let now = home.clock.is_manual().then(|| home.clock.now().floor);
        let phase = home.phase_on_server();
        let made = self.store.made(&self.name);
        let call = Call { op, limit: &self.name, key, made, policy: &table.policy, now, phase, arguments };
        let patience = MayWait::part_for_server(self.store.options.timeout)?;
        let answer = self.server().call(&call, patience)?.ok_or(Blocked::Stale)?;
        let Some((first, others)) = answer.split_first_chunk::<N>() else {
            return Err(self.no_answer(op, &answer));
        };
        home.clock.follow(first.first().map_or(0, |now| *now as Tick));
        Ok((*first, others.to_vec()))
    }

    /// Checks what a start weighs by the policy that holds, which need not be the one that this process knows.
    pub fn check_weight_on_server(&self, table: &Table, key: Hash, weight: u64) -> Result<(), Blocked> {
        let checked = policy::check_weight(&self.name, weight, table.capacity);
        if checked.is_err() && weight > 0 {
            let patience = MayWait::part_for_server(self.store.options.timeout)?;
            if !self.server().is_held(&self.name, Some(key), &table.policy, patience)? {
                return Err(Blocked::Stale);
            }
        }
        Ok(checked?)
    }

    /// Does something with the policy of a key, or of the whole limit.
    fn on_server<const N: usize>(&self, key: &str, op: &'static str, argument: impl Fn(&Home) -> i64) -> Result<()> {
        if key.is_empty() {
            return self
                .look("", |home, table, _, _| self.ask_of::<N>(home, table, None, op, &[argument(home)]).map(drop));
        }
        self.with_key(key, |found| self.ask::<N>(found, op, &[argument(found.home())]).map(drop))
    }

    pub(super) fn close_gate_on_server(&self, key: &str, until: Tick) -> Result<()> {
        self.on_server::<2>(key, "pause", |home| number(until.saturating_sub(home.clock.now().floor)))
    }

    pub(super) fn forget_on_server(&self, key: &str) -> Result<()> {
        self.on_server::<1>(key, "clear", |_| 0)
    }
}
