//! The limits of a store: their names, and decisions on starts that take from several of them at once.

use crate::Moment;
use crate::algorithm::time::{EPOCH_LEAD, MAX_TIME, Now, Tick};
use crate::error::{Error, Result};
use crate::part::{End, Held, Key, Part, Seen, State};
use crate::policy::{self, Policy, check_key, is_composite, part_names};
use std::collections::BTreeMap;

/// The most parts of a limit.
pub const MAX_PARTS: usize = 16;

/// Of the words of keys, which other versions of this package may read: to be raised whenever they mean something else. State of
/// another layout counts as used.
const LAYOUT: u64 = 1;

/// The limits of one store.
pub struct Limits {
    phase: u64,
    names: BTreeMap<String, usize>,
    all: Vec<Vec<Part>>,
    /// No two starts and no two keys of a limit have the same number.
    number: u64,
    random: u64,
}

/// What a decision says, times in µs.
#[derive(Debug, Default, Clone)]
pub struct Decision {
    pub admitted: bool,
    pub retry_after: Tick,
    pub suggested_after: Tick,
    pub remaining: u64,
    pub limit: u64,
    pub reset_after: Tick,
    /// The part that denied it.
    pub denied_by: usize,
    /// Whether a start holds units until it ends, so that nobody knows when these are free.
    pub holds: bool,
    /// Whether it is denied until a start ends, so that nobody knows for how long.
    pub awaits_end: bool,
    /// Whether the ends of starts have an effect.
    pub is_counted: bool,
    pub held: Vec<Held>,
}

impl Limits {
    /// Makes a store without limits. `unix_us`: the Unix time at its time 0.
    pub fn new(unix_us: i64, seed: u64) -> Limits {
        let phase = (unix_us as u64).wrapping_sub(EPOCH_LEAD);
        Limits { phase, names: BTreeMap::new(), all: Vec::new(), number: 0, random: seed | 1 }
    }

    /// The time of a call that happens between these times of the store, in µs.
    pub fn moment(&self, from: f64, to: f64) -> Moment {
        let (floor, ceil) = (EPOCH_LEAD + from.floor() as u64, EPOCH_LEAD + to.ceil() as u64);
        Moment { now: Now { floor, ceil: ceil.max(floor) }, phase: self.phase }
    }

    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub fn parts(&self, limit: usize) -> &[Part] {
        self.all.get(limit).map_or(&[], Vec::as_slice)
    }

    /// Declares a limit, or finds it if the text is empty. Returns its number.
    pub fn limit(&mut self, name: &str, text: &str, at: Moment) -> Result<usize> {
        policy::check_name(name)?;
        let known = self.names.get(name).copied();
        if text.is_empty() {
            let names = || self.names.keys().cloned().collect();
            return known.ok_or_else(|| Error::UnknownLimit { name: name.into(), known: names() });
        }
        let policies = policy::parse_all(text)?;
        refuse_shared(policies.iter().map(|part| &part.policy))?;
        if policies.len() > MAX_PARTS {
            let value = format!("{} policies", policies.len());
            return Err(Error::invalid("policy", value, format!("at most {MAX_PARTS}")));
        }
        let names = part_names(name, &policies);
        let Some(limit) = known else {
            let new = names.into_iter().zip(&policies).map(|(name, policy)| Part::new(name, policy.policy));
            self.all.push(new.collect());
            self.names.insert(name.into(), self.all.len() - 1);
            return Ok(self.all.len() - 1);
        };
        let kind = |parts: &[Part]| if let [one] = parts { one.declared.kind() } else { "composite" };
        let is_same = self.all[limit].len() == policies.len()
            && self.all[limit].iter().zip(&names).all(|(part, name)| part.name == *name)
            && self.all[limit].iter().zip(&policies).all(|(part, new)| part.declared.kind() == new.kind());
        if !is_same {
            let requested = if is_composite(&policies) { "composite" } else { policies[0].kind() };
            let declared = kind(&self.all[limit]);
            return Err(Error::KindMismatch { name: name.into(), declared, requested });
        }
        if self.all[limit].iter().zip(&policies).all(|(part, new)| part.declared == new.policy) {
            return Ok(limit);
        }
        let number = self.next();
        for (part, new) in self.all[limit].iter_mut().zip(policies) {
            part.declared = new.policy;
            part.follow(number, at)?;
        }
        Ok(limit)
    }

    fn known(&mut self, name: &str) -> Result<&mut Vec<Part>> {
        match self.names.get(name) {
            Some(&limit) => Ok(&mut self.all[limit]),
            None => Err(Error::UnknownLimit { name: name.into(), known: self.names.keys().cloned().collect() }),
        }
    }

    /// Puts policies above the declared ones, of the limit or of a key: each overrides the part of its kind.
    pub fn set_override(&mut self, name: &str, text: &str, key: Option<&str>, at: Moment) -> Result<()> {
        check_key(key.unwrap_or_default())?;
        let number = self.next();
        let parts = self.known(name)?;
        let policies = policy::parse_policies(text)?;
        refuse_shared(&policies)?;
        for new in &policies {
            let of_kind = parts.iter().filter(|part| part.declared.kind() == new.kind()).count();
            match (&**parts, of_kind) {
                (_, 1) => {}
                ([one], _) => {
                    let (declared, requested) = (one.declared.kind(), new.kind());
                    return Err(Error::KindMismatch { name: name.into(), declared, requested });
                }
                _ => {
                    let expected = format!("a policy of a kind that one part of \"{name}\" has");
                    return Err(Error::invalid("policy", format_args!("\"{new}\""), expected));
                }
            }
        }
        for new in policies {
            let part = parts.iter_mut().find(|part| part.declared.kind() == new.kind()).expect("counted above");
            match key {
                None => part.overriding = Some(new),
                Some(key) => drop(part.plans.insert(key.into(), new)),
            }
            part.follow_some(key, number, at)?;
        }
        Ok(())
    }

    /// Removes what was put above the declared policies, of the limit or of a key.
    pub fn lift(&mut self, name: &str, key: Option<&str>, at: Moment) -> Result<()> {
        check_key(key.unwrap_or_default())?;
        let number = self.next();
        for part in self.known(name)? {
            match key {
                None => part.overriding = None,
                Some(key) => drop(part.plans.remove(key)),
            }
            part.follow_some(key, number, at)?;
        }
        Ok(())
    }

    /// Decides on a start, and records it if there is room in every part.
    pub fn decide(&mut self, limit: usize, key: &str, weight: u64, at: Moment) -> Result<Decision> {
        policy::check_some(weight)?;
        let mut decision = self.peek(limit, key, weight, at)?;
        if !decision.admitted {
            self.all[limit].iter().for_each(|part| part.deny_if(key, weight, at));
            return Ok(decision);
        }
        let number = self.next();
        let mut seen = Vec::new();
        for part in &mut self.all[limit] {
            let policy = part.policy_of(key);
            let (held, view) = part.take(key, weight, number, at)?;
            decision.held.push(held);
            seen.push(Seen { view, policy, backoff: (0, 0), awaits_end: false });
        }
        let after = self.merged(&seen);
        Ok(Decision { admitted: true, retry_after: 0, suggested_after: 0, held: decision.held, ..after })
    }

    /// The decision that a start would get. Nothing changes.
    pub fn peek(&mut self, limit: usize, key: &str, weight: u64, at: Moment) -> Result<Decision> {
        check_key(key)?;
        let seen: Result<Vec<_>> = self.parts(limit).iter().map(|part| part.look(key, weight, at)).collect();
        Ok(self.merged(&seen?))
    }

    /// The strictest of what the parts say, number by number.
    fn merged(&mut self, parts: &[Seen]) -> Decision {
        let mut all = Decision { admitted: true, remaining: u64::MAX, limit: u64::MAX, ..Decision::default() };
        all.holds = parts.iter().any(|seen| seen.policy.is_concurrency());
        all.awaits_end = parts.iter().any(|seen| seen.awaits_end);
        all.is_counted = all.holds || parts.iter().any(|seen| seen.policy.jobs() > 0);
        for (i, seen) in parts.iter().enumerate() {
            let after = |tick: Tick| tick.saturating_sub(seen.view.now);
            let retry = after(seen.view.ready);
            if retry > 0 && (all.admitted || retry > all.retry_after) {
                (all.admitted, all.denied_by) = (false, i);
            }
            all.retry_after = all.retry_after.max(retry);
            let backoff = self.between(seen.backoff);
            all.suggested_after = all.suggested_after.max(retry).max(backoff);
            if seen.view.remaining < all.remaining {
                (all.remaining, all.limit) = (seen.view.remaining, seen.policy.capacity());
            }
            all.reset_after = all.reset_after.max(after(seen.view.empty));
        }
        all
    }

    /// A random number of this range (by xorshift: it only spreads retries).
    fn between(&mut self, (least, most): (u64, u64)) -> u64 {
        if least == most {
            return least;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        least + self.random % (most - least + 1)
    }

    /// Ends a start. `held`: as the decision gave it, one for each part.
    pub fn end(&mut self, limit: usize, key: &str, weight: u64, held: &[Held], end: End, at: Moment) -> Result<()> {
        let number = self.next();
        if let (End::Settled(_), true) = (end, self.parts(limit).iter().all(Part::is_slots)) {
            let reason = "settle is not supported by a concurrency limit: its units become free when the job ends";
            return Err(Error::Unsupported { reason: reason.into() });
        }
        let parts = self.all.get_mut(limit).into_iter().flatten();
        parts.zip(held).try_for_each(|(part, held)| part.end(key, *held, weight, end, number, at))
    }

    /// Makes the number of the next start greater than this one, and returns the last one.
    pub fn number_from(&mut self, least: u64) -> u64 {
        self.number = self.number.max(least);
        self.number
    }

    /// Returns the state of a key as words, and until when it matters; with the key "", also the gates of all keys. Empty: there is
    /// nothing to keep.
    pub fn save(&self, limit: usize, key: &str, at: Moment) -> (Vec<u64>, Tick) {
        let parts = self.parts(limit);
        let gate = |part: &Part| if key.is_empty() { part.gate } else { 0 };
        let until = |part: &Part| gate(part).max(part.keys.get(key).map_or(0, |key| key.matters_until(at)));
        let until = parts.iter().map(until).max().unwrap_or(0);
        if until <= at.now.floor {
            return (Vec::new(), 0);
        }
        let mut words = vec![LAYOUT];
        for part in parts {
            let saved = part.keys.get(key).map_or(Vec::new(), Key::to_words);
            words.extend([gate(part), saved.len() as u64]);
            words.extend(saved);
        }
        (words, until)
    }

    /// Restores a key from these words. If it has another policy now, that has held since `by`. `None`: they are no state of it.
    pub fn load(&mut self, limit: usize, key: &str, words: &[u64], by: Moment) -> Option<()> {
        let (&LAYOUT, mut rest) = words.split_first()? else { return None };
        let number = self.next();
        for part in self.all.get_mut(limit)? {
            let (&[gate, length], words) = rest.split_first_chunk()?;
            let (saved, others) = words.split_at_checked(length as usize)?;
            if !saved.is_empty() {
                let found = Key::from_words(saved).filter(|found| found.kind() == part.declared.kind())?;
                part.add(key, found, by);
                part.follow_key(key, number, by).ok()?;
            }
            (part.gate, rest) = (part.gate.max(gate), others);
        }
        rest.is_empty().then_some(())
    }

    /// The state of a key is lost: whatever it was, it counts as used from now on.
    pub fn lose(&mut self, limit: usize, key: &str, at: Moment) {
        let number = self.next();
        for part in self.all.get_mut(limit).into_iter().flatten() {
            let policy = part.policy_of(key);
            let until = at.now.ceil + policy.longest().max(policy.cooldown());
            part.keys.remove(key);
            let lost = part.key(key, number, at);
            lost.gate = until;
            if key.is_empty() {
                // There may have been a gate of all keys.
                part.gate = part.gate.max(until);
            }
        }
    }

    /// Forgets a key that can be restored, and its policies.
    pub fn drop_key(&mut self, limit: usize, key: &str) {
        for part in self.all.get_mut(limit).into_iter().flatten() {
            part.keys.remove(key);
            part.plans.remove(key);
        }
    }

    /// Adds a start to a key whose state was lost.
    pub fn hold(&mut self, limit: usize, key: &str, weight: u64, held: &[Held]) {
        for (part, held) in self.all.get_mut(limit).into_iter().flatten().zip(held) {
            if let Some(State::Holds(holds)) = part.keys.get_mut(key).map(|key| &mut key.state) {
                holds.restore(held.ticket, weight, held.stamp);
            }
        }
    }

    /// Returns the policies above the declared ones as a text: of the limit, or of a key. Empty: there are none.
    pub fn overriding(&self, limit: usize, key: Option<&str>) -> String {
        let of = |part: &Part| key.map_or(part.overriding, |key| part.plans.get(key).copied());
        let texts: Vec<String> = self.parts(limit).iter().filter_map(of).map(|policy| policy.to_string()).collect();
        texts.join(" + ")
    }

    /// Lets nobody start for this long: of a key, or of all keys if it is empty.
    pub fn pause(&mut self, limit: usize, key: &str, us: f64, at: Moment) -> Result<()> {
        check_key(key)?;
        let until = at.now.ceil + (us as u64).min(MAX_TIME);
        let number = self.next();
        for part in &mut self.all[limit] {
            match key {
                "" => part.gate = part.gate.max(until),
                key => {
                    let found = part.key(key, number, at);
                    found.gate = found.gate.max(until);
                }
            }
        }
        Ok(())
    }

    /// Forgets all starts and opens the gate, of a key, or of all keys if it is empty.
    pub fn clear(&mut self, limit: usize, key: &str) -> Result<()> {
        check_key(key)?;
        let mut end = 0;
        for part in &mut self.all[limit] {
            if key.is_empty() {
                part.gate = 0;
            }
            let cleared = part.keys.extract_if(|some, _| key.is_empty() || **some == *key);
            end = cleared.fold(end, |end, (_, key)| end.max(key.end()));
        }
        // Later keys get greater ones, so permits of cleared starts mean nothing.
        self.number_from(end);
        Ok(())
    }
}

/// Whose turn it is among tenants is decided in the lines of the core, which are not here.
fn refuse_shared<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Result<()> {
    match policies.into_iter().find(|policy| policy.is_shared()) {
        Some(policy) => {
            let reason = format!(
                "\"{policy}\" is not supported here: tenants share limits on \"memory:\" and \"sqlite:\" of the other packages"
            );
            Err(Error::Unsupported { reason })
        }
        None => Ok(()),
    }
}

impl Part {
    /// Records that a start was denied, if this is a part that denied it.
    fn deny_if(&self, key: &str, weight: u64, at: Moment) {
        if self.look(key, weight, at).is_ok_and(|seen| seen.view.ready > seen.view.now) {
            self.deny(key, at);
        }
    }
}
