//! Rewrites the states that an earlier policy has left, under the one that applies: see `prelude.lua`.

use super::{Redis, key_of, list_of, waiting_of};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::policy::Policy;
use crate::server::{Call, EPOCH};
use crate::time::{EPOCH_LEAD, Tick};
use redis::{Cmd, Value};
use std::time::{Duration, Instant};

/// The number per round trip.
const BATCH: usize = 64;

impl Redis {
    /// Rewrites them, as far as time permits. Returns whether none are left.
    pub(super) fn adopt(&self, name: &str, now: Option<Tick>, patience: Duration) -> Result<bool> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed());
        while left() > Duration::ZERO {
            let batch = redis::cmd("ZRANGE").arg(waiting_of(name)).arg(0).arg(BATCH - 1).to_owned();
            let hashes: Vec<String> = self.query(name, &batch, left())?;
            let policy = self.policy_of(name, None, left())?;
            let (Some(policy), false) = (policy, hashes.is_empty()) else {
                let keys = [key_of(name), waiting_of(name)];
                return self.run::<Vec<i64>>(name, &self.lost, &keys, |_| Ok(Vec::new()), left()).map(|_| true);
            };
            let hashes: Vec<Hash> = hashes.iter().filter_map(|hash| Hash::parse(hash)).collect();
            let others = self.adopt_batch(name, &hashes, &policy, now, left())?;
            for hash in others {
                // It has its own policy. (Or another one applies by now; then it still waits.)
                if let Some(own) = self.policy_of(name, Some(hash), left())? {
                    self.adopt_batch(name, &[hash], &own, now, left())?;
                }
            }
            if hashes.len() < BATCH && !self.does_wait(name, left())? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn does_wait(&self, name: &str, patience: Duration) -> Result<bool> {
        self.query(name, redis::cmd("HEXISTS").arg(key_of(name)).arg("waiting"), patience)
    }

    /// The policy of a limit, or of one of its keys.
    fn policy_of(&self, name: &str, key: Option<Hash>, patience: Duration) -> Result<Option<Policy>> {
        let (row, _) = self.read_row(name, key, patience)?;
        let text = match key {
            None => row.overriding.or(row.policy),
            Some(_) => row.key,
        };
        // The name or the key is behind it.
        let policy = text.as_deref().and_then(|text| text.split('\n').next());
        policy.filter(|policy| !policy.is_empty()).map(str::parse).transpose()
    }

    /// Rewrites some, and returns the keys to which another policy applies.
    fn adopt_batch(
        &self,
        name: &str,
        hashes: &[Hash],
        policy: &Policy,
        now: Option<Tick>,
        patience: Duration,
    ) -> Result<Vec<Hash>> {
        let limit = key_of(name);
        let phase = if now.is_some() { -(EPOCH_LEAD as i64) } else { EPOCH as i64 };
        let call =
            Call { op: "adopt", limit: name, key: None, made: 0, policy, word: None, now, phase, arguments: &[] };
        let (script, states, arguments) = self.script_of(&call);
        let mut from = None;
        let answers = loop {
            let answers = self.with(name, patience, |node| {
                script.load(&mut node.connection)?;
                let command = |hash: &Hash| {
                    let mut command = redis::cmd("EVALSHA");
                    command.arg(script.get_hash()).arg(4).arg(&limit).arg(format!("{states}{hash}"));
                    command.arg(list_of(name)).arg(waiting_of(name)).arg(arguments(node, from)).to_owned()
                };
                let commands: Vec<Cmd> = hashes.iter().map(command).collect();
                node.query_all(&commands)
            })?;
            let asked = answers.iter().find_map(|answer| match answer {
                Value::Array(numbers) => match numbers.as_slice() {
                    [Value::Int(-3), Value::Int(run)] => Some(*run as u64),
                    _ => None,
                },
                _ => None,
            });
            match asked {
                Some(run) if from.is_none() => from = self.came_from(name, run, patience)?,
                _ => break answers,
            }
        };
        let mut others = Vec::new();
        for (hash, answer) in hashes.iter().zip(answers) {
            match answer {
                Value::Array(numbers) if numbers.first() == Some(&Value::Int(-1)) => others.push(*hash),
                Value::ServerError(error) => {
                    return Err(Error::store(format!("asking {}", self.url), redis::RedisError::from(error)));
                }
                _ => {}
            }
        }
        Ok(others)
    }
}
