//! What is in use of the limits on a server, for observers. The server answers for many limits at once.

use super::states::{BucketState, WindowState};
use super::{Family, renewed_lease};
use crate::algorithm::grants::Lengths;
use crate::algorithm::leases::NEVER;
use crate::hash::Hash;
use crate::policy::{Policy, Shape};
use crate::time::Tick;

/// What is asked about a limit.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    pub limit: &'a str,
    /// The family of its policy, as far as the caller knows.
    pub family: Family,
    /// The keys to examine in any case. The first one is the key "".
    pub keys: Vec<Hash>,
    /// Where the examination of other keys continues: a previous [`Found::place`], or empty.
    pub place: &'a str,
}

/// A server's answer about a limit.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The texts of the declared policy, and of the operator's policy above it.
    pub policy: Option<String>,
    pub overriding: Option<String>,
    pub now: Tick,
    /// No key starts before this.
    pub gate: Tick,
    /// Up to when starts may have been lost; 0: none.
    pub born: Tick,
    /// The approximate number of keys with a state, without the key "".
    pub keys: u64,
    pub place: String,
    /// The examined keys that have a state.
    pub states: Vec<FoundKey>,
}

/// The state of a key.
#[derive(Debug, Clone)]
pub(crate) struct FoundKey {
    pub hash: Hash,
    /// Of a key with its own policy: the policy, a line feed, and the key.
    pub own: Option<String>,
    pub gate: Tick,
    /// By family, as `survey.lua` explains them.
    pub numbers: Vec<u64>,
}

/// What is in use of a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeyUse {
    /// Of each window the allowed units and the used ones.
    pub units: Vec<(u64, u64)>,
    /// When a unit may start, as far as gates allow it.
    pub ready: Tick,
}

impl KeyUse {
    /// Computes what is in use of a key under a policy. Without numbers, the key has no state. `phase`: the Unix time
    /// of tick 0, in microseconds.
    pub fn of(policy: &Policy, numbers: &[u64], found: &Found, phase: i64) -> KeyUse {
        let (now, born) = (found.now, found.born);
        let number = |i: usize| numbers.get(i).copied().unwrap_or(0);
        match &policy.0 {
            Shape::Bucket(bucket) => {
                let state = match numbers {
                    &[tick, part, a, b, c, d, e] => BucketState::by([a, b, c, d, e], [tick, part]),
                    _ => BucketState::of(bucket, [0, 0]),
                };
                let state = if born > 0 { state.emptied_at(born) } else { state };
                let size = state.size();
                KeyUse { units: vec![(size, size - state.remaining(now))], ready: state.ready() }
            }
            Shape::Counter { window, is_smooth } => {
                // As many as a script knows, and the phase.
                let numbers_of_policy = match numbers {
                    &[_, _, _, limit, length, is_smooth, _] => [limit, length, is_smooth],
                    _ => [window.limit, window.length, u64::from(*is_smooth)],
                };
                let state = WindowState::by(numbers_of_policy, [0, 1, 2].map(number), phase);
                let (limit, used) = (state.limit(), state.limit() - state.remaining(now));
                let found = KeyUse { units: vec![(limit, used)], ready: state.ready(now) };
                found.unless_lost(born, policy.longest(), now)
            }
            Shape::Concurrency { max, lease, cooldown, .. } => {
                let lease = if *lease == NEVER { renewed_lease().as_micros() as Tick } else { *lease };
                // Until then, holders of lost leases register them again.
                let ready = if born > 0 { born.saturating_add(lease).saturating_add(*cooldown) } else { 0 };
                KeyUse { units: vec![(*max, number(0).min(*max))], ready }
            }
            _ => {
                let windows = policy.windows().iter().zip(0..);
                let units = windows.map(|(window, i)| (window.limit, number(2 * i).min(window.limit))).collect();
                let ready = numbers.iter().skip(1).step_by(2).copied().max().unwrap_or(0);
                let shortest = policy.windows().iter().map(|window| window.length).min().unwrap_or(0);
                let trust = Lengths::of(1, shortest, 0).trust;
                KeyUse { units, ready }.unless_lost(born, policy.longest() + trust, now)
            }
        }
    }

    /// Where starts may have been lost, all windows in which they might count are full.
    fn unless_lost(mut self, born: Tick, longest: Tick, now: Tick) -> KeyUse {
        let until = born.saturating_add(longest);
        if born > 0 && until > now {
            self.units.iter_mut().for_each(|(limit, used)| *used = *limit);
            self.ready = self.ready.max(until);
        }
        self
    }

    /// Takes back units that have not started.
    pub fn give_back(&mut self, free: u64) {
        if free > 0 {
            self.units.iter_mut().for_each(|(_, used)| *used = used.saturating_sub(free));
            self.ready = 0;
        }
    }
}
