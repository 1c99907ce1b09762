//! Names get their meaning: a limit with one policy, or a composite of several limits, `NAME/KIND`, that are declared
//! together. The database decides, in one transaction, and the lane follows (`follow.rs`).

use super::follow::{Known, PolicyChange};
use crate::address::Address;
use crate::damage::nonsense;
use crate::error::{Error, Result};
use crate::policy::{self, NamedPolicy, Policy, Share, is_composite};
use crate::server::RowChange;
use crate::state::cells::layout::LimitAt;
use crate::state::cells::locked::Locked;
use crate::state::ledger::declared::{Change, Declared, Family, Overridden, Part, other_name, part_names};
use crate::state::session::{Rare, Session};
use std::collections::BTreeSet;

/// // All of these are for the holder of the structure lock.
impl Session {
    /// The declared names, in order. A composite appears under its own name.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let (mut names, composites) = match &self.address {
            Address::Memory | Address::Server(_) => {
                let rare = self.rare();
                (rare.limits.keys().cloned().collect::<Vec<_>>(), rare.composites.clone().into_iter().collect())
            }
            Address::Sqlite(_) => self.with_database(|database| Ok((database.names()?, database.composites()?)))?,
        };
        for (name, policies) in composites {
            let parts = part_names(&name, &policies);
            names.retain(|name| !parts.contains(name));
            names.push(name);
        }
        names.sort();
        Ok(names)
    }

    /// The policies of one limit.
    pub(in crate::state) fn declared(&self, name: &str) -> Result<Option<Declared>> {
        match &self.address {
            Address::Memory | Address::Server(_) => Ok(self.rare().limits.get(name).cloned()),
            Address::Sqlite(_) => self.with_database(|database| database.policy(name)),
        }
    }

    pub(crate) fn family(&self, name: &str) -> Result<Family> {
        match &self.address {
            Address::Memory | Address::Server(_) => {
                let (rare, below) = (self.rare(), format!("{name}/"));
                let parts = rare.limits.range(below.clone()..).take_while(|(other, _)| other.starts_with(&below));
                let limits = rare.limits.get_key_value(name).into_iter().chain(parts);
                let limits = limits.map(|(name, found)| (name.clone(), found.clone())).collect();
                Ok(Family { composite: rare.composites.get(name).cloned(), limits })
            }
            Address::Sqlite(_) => self.with_database(|database| database.family(name)),
        }
    }

    /// The error for a name that no limit has.
    pub(crate) fn unknown<R>(&self, name: &str) -> Result<R> {
        self.unknown_beside(name, self.names()?)
    }

    /// Declares the meaning of these names, in place of the previous one. Either all are declared or none.
    pub(crate) fn declare_all(&self, all: &[(&str, &[NamedPolicy])], locked: &Locked) -> Result<()> {
        let changes = all.iter().map(|(name, policies)| self.change(name, policies));
        let mut changes = changes.collect::<Result<Vec<Change>>>()?;
        leave_names_that_pass_on(&mut changes);
        let parts = || changes.iter().flat_map(|change| &change.parts);
        if changes.iter().all(Change::changes_nothing) {
            return parts()
                .try_for_each(|part| self.apply_declared(&part.name, part.now().current(), locked).map(drop));
        }
        // Renames come first: the name that a limit leaves may be another's from now on.
        let (renamed, others): (Vec<&Part>, Vec<&Part>) = parts().partition(|part| part.is_renamed());
        let limits = renamed.into_iter().chain(others);
        let limits = limits.map(|part| PolicyChange::Limit(&part.name, Known::As(&part.from), part.now().current()));
        let dropped = changes.iter().flat_map(|change| &change.dropped);
        let lifted = dropped.map(|name| self.keys_of(name)).collect::<Result<Vec<_>>>()?.concat();
        let lifted = lifted.iter().map(|(name, key)| PolicyChange::Key(name, key, None));
        let all: Vec<PolicyChange> = limits.chain(lifted).collect();
        let budget = |policy| locked.budget(policy);
        self.decide(locked, &all, |rare| rare.note(&changes), |database| database.note(&changes, budget))
    }

    /// Declares names for a caller that does not hold the structure lock. Returns when the policies apply to all keys.
    pub(crate) fn declare_now(&self, all: &[(&str, &[NamedPolicy])]) -> Result<()> {
        let parts: Vec<String> = all.iter().flat_map(|(name, policies)| part_names(name, policies)).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).chain(parts.iter().copied()).collect();
        self.with_names(&names, |locked| self.declare_all(all, locked))?;
        self.settle(&parts)
    }

    /// The change that gives a name the meaning of these policies.
    pub(in crate::state) fn change(&self, name: &str, policies: &[NamedPolicy]) -> Result<Change> {
        self.check_shared(name, policies)?;
        let family = self.family(name)?;
        let before = family.parts(name);
        let kind_of = |policies: &[NamedPolicy]| if is_composite(policies) { "composite" } else { policies[0].kind() };
        let mismatch = |name: &str, declared: &'static str, requested: &'static str| {
            Err(Error::KindMismatch { name: name.to_owned(), declared, requested })
        };
        // Parts may come and go, but if none stays, it is another limiter.
        let stays = |(_, found): &(String, Declared)| policies.iter().any(|p| p.kind() == found.declared.kind());
        if !before.is_empty() && !before.iter().any(stays) {
            let one = || before.iter().map(|(_, found)| found.declared.kind()).next().unwrap_or("composite");
            let declared = if family.composite.is_some() { "composite" } else { one() };
            return mismatch(name, declared, kind_of(policies));
        }
        if let (Some(_), [(_, found)], true) = (self.whole(name)?, before.as_slice(), is_composite(policies)) {
            return mismatch(name, found.declared.kind(), "composite");
        }
        let mut parts: Vec<Part> = Vec::new();
        let names = part_names(name, policies);
        for (i, (part, policy)) in names.iter().cloned().zip(policies).enumerate() {
            if part != name && self.family(&part)?.composite.is_some() {
                return mismatch(&part, "composite", policy.kind());
            }
            // One of the parts has the name of the whole if the whole was or is a single limit.
            let is_it = |(other, found): &&(String, Declared)| {
                (*other == name || part == name)
                    && found.declared.kind() == policy.kind()
                    && !parts.iter().any(|taken| taken.from == *other)
            };
            let found = family.limits.get(&part).map(|found| (part.clone(), found.clone()));
            let found = found.or_else(|| before.iter().find(is_it).cloned());
            // A part that gets a name, another one or none is the part that is gone now and had its policy, or its place.
            let likeness = |(at, (other, found)): &(usize, &(String, Declared))| {
                let is_free = !names.contains(other) && !parts.iter().any(|taken| taken.from == *other);
                let is_alike = is_free && found.declared.kind() == policy.kind();
                is_alike.then_some((found.declared == policy.policy, *at == i)).filter(|like| *like != (false, false))
            };
            let alike = || before.iter().enumerate().filter(|one| likeness(one).is_some()).max_by_key(likeness);
            let found = found.or_else(|| alike().map(|(_, found)| found.clone()));
            if let Some((_, found)) = &found
                && found.declared.kind() != policy.kind()
            {
                return mismatch(&part, found.declared.kind(), policy.kind());
            }
            let (from, before) = found.map_or((part.clone(), None), |(from, found)| (from, Some(found)));
            parts.push(Part { name: part, from, before, policy: policy.policy });
        }
        let dropped = before.into_iter().map(|(other, _)| other);
        let dropped = dropped.filter(|other| parts.iter().all(|part| part.from != *other)).collect();
        let composite = is_composite(policies).then(|| policies.to_vec());
        Ok(Change { name: name.to_owned(), composite, was_composite: family.composite, parts, dropped })
    }

    /// The composite of which a limit is a part.
    fn whole<'n>(&self, name: &'n str) -> Result<Option<&'n str>> {
        let Some((whole, _)) = name.rsplit_once('/') else { return Ok(None) };
        let composite = self.family(whole)?.composite;
        Ok(composite.is_some_and(|all| part_names(whole, &all).iter().any(|part| part == name)).then_some(whole))
    }

    /// Applies the previously declared policy of a limit. A lane that has followed the database has the limit; if it
    /// does not, the limit must not silently start again.
    pub(in crate::state) fn apply_declared(&self, name: &str, policy: Policy, locked: &Locked) -> Result<LimitAt> {
        let is_its = |limit: &LimitAt| locked.limit(*limit).table().policy.kind() == policy.kind();
        let limit = match locked.find_limit(name).filter(is_its) {
            Some(limit) if locked.is_lane() && !locked.is_behind() => limit,
            None if locked.is_lane() && !locked.is_behind() => {
                nonsense(format_args!("no {} limit \"{name}\", which is declared", policy.kind()))
            }
            _ if locked.is_lane() => {
                let (id, all) = (self.with_database(|database| database.id(name))?, locked.numbers());
                self.block(name, Known::By(id, &all), policy, locked)?
            }
            _ => self.block(name, Known::As(name), policy, locked)?,
        };
        locked.apply_policy(limit, policy)?;
        Ok(limit)
    }

    /// The place of the limit with this name, which is added if necessary. Every step can be repeated: a process that
    /// dies in between leaves limits without names at worst, and their numbers stay.
    pub(in crate::state) fn block(&self, name: &str, known: Known, policy: Policy, locked: &Locked) -> Result<LimitAt> {
        let kind = policy.kind();
        let is_of_kind = |limit: &LimitAt| locked.limit(*limit).table().policy.kind() == kind;
        let (holder, other) = (locked.find_limit(name), other_name(name, kind));
        let (its, id) = match known {
            Known::By(id, numbers) => {
                let found = locked.find_number(id, name, kind).or_else(|| numbers.get(&id).copied());
                match found.filter(is_of_kind) {
                    Some(limit) => (Some(limit), id),
                    None => (self.renumbered(name, id, [holder, locked.find_limit(&other)], is_of_kind, locked)?, id),
                }
            }
            Known::As(from) => match locked.find_limit(from).filter(is_of_kind) {
                Some(limit) => (Some(limit), 0),
                // The limit keeps its state from its previous name, unless that name is declared.
                None if self.declared(&other)?.is_some() => (None, 0),
                None => (locked.find_limit(&other).filter(is_of_kind), 0),
            },
        };
        match (its, holder) {
            (Some(limit), Some(holder)) if limit == holder => return Ok(limit),
            (_, Some(holder)) => {
                let number = locked.limit(holder).id();
                match number != 0 && self.with_database(|database| database.has_number(number))? {
                    true => locked.take_name(holder),
                    // It was forgotten, and the name belongs to another limit now.
                    false => locked.retire(holder)?,
                }
            }
            _ => {}
        }
        match its {
            Some(limit) => locked.rename(limit, name).map(|()| limit),
            None => locked.add_limit(name, id, policy, 0),
        }
    }

    /// The database has a new number for a limit that the lane has by another one: the name was a composite's in between,
    /// or an older copy of the database did not know the limit. The lane's number is the one under which its starts are
    /// in the ledger, so the database takes that.
    fn renumbered(
        &self,
        name: &str,
        id: i64,
        candidates: [Option<LimitAt>; 2],
        is_of_kind: impl Fn(&LimitAt) -> bool,
        locked: &Locked,
    ) -> Result<Option<LimitAt>> {
        for limit in candidates.into_iter().flatten().filter(is_of_kind) {
            let (number, budget) = (locked.limit(limit).id(), locked.budget(locked.limit(limit).table().policy));
            if number != 0 && self.with_database(|database| database.renumber((name, id), number, budget))? {
                return Ok(Some(limit));
            }
        }
        Ok(None)
    }

    /// Removes the declaration of a name. Its limits keep working for their current users, and keep their state if the
    /// name is declared again, unless it is declared as another kind.
    pub(crate) fn undeclare(&self, name: &str) -> Result<()> {
        self.with_names(&[name], |locked| {
            let family = self.family(name)?;
            let parts = family.parts(name);
            if parts.is_empty() {
                return self.unknown(name);
            }
            if let Some(whole) = self.whole(name)? {
                let reason = format!("limit \"{name}\" is a part of \"{whole}\": forget \"{whole}\" instead");
                return Err(Error::Unsupported { reason });
            }
            let dropped = parts.into_iter().map(|(name, _)| name).collect();
            let (name, parts) = (name.to_owned(), vec![]);
            let changes = [Change { name, composite: None, was_composite: family.composite, parts, dropped }];
            let lifted = changes[0].dropped.iter().map(|name| self.keys_of(name));
            let lifted = lifted.collect::<Result<Vec<_>>>()?.concat();
            let all: Vec<PolicyChange> = lifted.iter().map(|(name, key)| PolicyChange::Key(name, key, None)).collect();
            let budget = |policy| locked.budget(policy);
            self.decide(locked, &all, |rare| rare.note(&changes), |database| database.note(&changes, budget))
        })?;
        self.forget_told(|told| told.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
        self.settle(&[])
    }

    /// Checks that tenants can share these limits here.
    pub(crate) fn check_shared(&self, name: &str, policies: &[NamedPolicy]) -> Result<()> {
        let Some(policy) = policies.iter().find(|policy| policy.is_shared()) else { return Ok(()) };
        if policy.share() > 1 {
            return Err(Error::invalid(
                "policy",
                format_args!("\"{policy}\""),
                "no share: each tenant's is set by `share`",
            ));
        }
        match &self.address {
            Address::Server(_) => Err(Error::Unsupported {
                reason: format!(
                    "limit \"{name}\" is \"{policy}\": tenants share limits in memory: and sqlite: stores, not on servers"
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Keeps the share of a tenant in the limits of this name that tenants share. 1 is the default.
    pub(crate) fn set_share(&self, name: &str, tenant: &str, share: Share) -> Result<()> {
        check_own_key(Some(tenant))?;
        self.with_key_of_names(&[name], Some(tenant), |locked| {
            let parts = self.family(name)?.parts(name);
            if parts.is_empty() {
                return self.unknown(name);
            }
            let of = |(name, before): (String, Declared)| -> Result<Overridden> {
                let policy = (share > 1).then(|| before.current().with_share(share)).transpose()?;
                Ok(Overridden { name, before, key: Some(tenant.to_owned()), policy, source: None, missing: 0 })
            };
            let shared = parts.into_iter().filter(|(_, before)| before.current().is_shared());
            let all = shared.map(of).collect::<Result<Vec<Overridden>>>()?;
            if all.is_empty() {
                let reason = format!("limit \"{name}\" is not shared by tenants, so it has no shares");
                return Err(Error::Unsupported { reason });
            }
            let mut changes_something = false;
            for part in &all {
                changes_something |= self.key_policy(&part.name, tenant)? != part.policy;
            }
            if !changes_something {
                return Ok(());
            }
            let changes: Vec<PolicyChange> = all.iter().map(Overridden::follows).collect();
            self.decide(locked, &changes, |rare| rare.set_overrides(&all), |database| database.set_overrides(&all))
        })?;
        self.settle(&[])
    }

    /// Puts an operator's policies above the declared ones, each above the one of its kind, or removes all overrides.
    /// Either all change or none. With `key`, only that key's override changes.
    pub(crate) fn set_override(&self, name: &str, policies: Option<&[NamedPolicy]>, key: Option<&str>) -> Result<()> {
        check_own_key(key)?;
        self.check_shared(name, policies.unwrap_or_default())?;
        let changed: Vec<String> = self.with_key_of_names(&[name], key, |locked| {
            let parts = self.family(name)?.parts(name);
            if parts.is_empty() {
                return self.unknown(name);
            }
            let put =
                |policy| move |(name, before)| Overridden { name, before, key: None, policy, source: None, missing: 0 };
            let mut all: Vec<Overridden> = match policies {
                // A tenant's share is not an override.
                None => {
                    let lifted = parts.into_iter().filter(|(_, before)| key.is_none() || !before.declared.is_shared());
                    lifted.map(put(None)).collect()
                }
                Some(policies) => overridden(name, parts, policies)?,
            };
            if let Some(part) =
                all.iter().find(|part| part.policy.is_some() && key.is_some() && part.before.declared.is_shared())
            {
                let reason = format!(
                    "limit \"{}\" is shared by tenants: a tenant has no policy of its own in it, but a share (`share`)",
                    part.name
                );
                return Err(Error::Unsupported { reason });
            }
            let mut changes_something = key.is_none();
            for part in &mut all {
                part.key = key.map(str::to_owned);
                let before = key.map_or(Ok(None), |key| self.key_policy(&part.name, key))?;
                part.missing = locked.budget(before.unwrap_or(part.before.current()));
                changes_something |= before != part.policy;
            }
            if !changes_something {
                return Ok(Vec::new());
            }
            let changes: Vec<PolicyChange> = all.iter().map(Overridden::follows).collect();
            self.decide(locked, &changes, |rare| rare.set_overrides(&all), |database| database.set_overrides(&all))?;
            Ok(all.into_iter().map(|part| part.name).collect())
        })?;
        self.settle(&changed.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The keys of a limit with their own policies, as far as only this process knows them.
    fn keys_of(&self, limit: &str) -> Result<Vec<(String, String)>> {
        match &self.address {
            Address::Memory | Address::Server(_) => {
                Ok(self.rare().keys.keys().filter(|(name, _)| name == limit).cloned().collect())
            }
            // A process that follows the database finds them there.
            Address::Sqlite(_) => Ok(Vec::new()),
        }
    }

    /// An operator's policy for one key.
    fn key_policy(&self, limit: &str, key: &str) -> Result<Option<Policy>> {
        match &self.address {
            Address::Memory | Address::Server(_) => {
                Ok(self.rare().keys.get(&(limit.to_owned(), key.to_owned())).copied())
            }
            Address::Sqlite(_) => self.with_database(|database| database.key_policy(limit, key)),
        }
    }
}

/// A limit whose name passes to another one in the same call does not have it in the other's declaration: that one is new.
fn leave_names_that_pass_on(changes: &mut [Change]) {
    let parts = || changes.iter().flat_map(|change| &change.parts).filter(|part| part.from != part.name);
    let left: BTreeSet<String> = parts().map(|part| part.from.clone()).collect();
    let parts = changes.iter_mut().flat_map(|change| &mut change.parts);
    parts.filter(|part| part.from == part.name && left.contains(&part.name)).for_each(|part| part.before = None);
}

/// Checks a key that is to have its own policy.
fn check_own_key(key: Option<&str>) -> Result<()> {
    match key {
        Some("") => Err(Error::invalid("key", "empty", "1 to 1024 bytes of UTF-8, or no key for the limit itself")),
        key => key.map_or(Ok(()), policy::check_key),
    }
}

impl Overridden {
    pub(super) fn follows(&self) -> PolicyChange<'_> {
        match &self.key {
            None => PolicyChange::Limit(&self.name, Known::As(&self.name), self.now().current()),
            Some(key) => PolicyChange::Key(&self.name, key, self.policy),
        }
    }
}

/// The overrides that result from putting these policies above these limits, each above the one of its name, or without one
/// of its kind.
fn overridden(name: &str, mut parts: Vec<(String, Declared)>, policies: &[NamedPolicy]) -> Result<Vec<Overridden>> {
    let kinds: Vec<&'static str> = parts.iter().map(|(_, before)| before.declared.kind()).collect();
    let known: Vec<String> = parts.iter().map(|(part, _)| part.clone()).collect();
    let over = |NamedPolicy { name: part, policy }: &NamedPolicy| {
        let found = match part {
            None => parts.iter().position(|(_, before)| before.declared.kind() == policy.kind()),
            Some(part) => {
                let part = format!("{name}/{part}");
                let found = parts.iter().position(|(other, _)| *other == part);
                let Some(found) = found else {
                    let expected = format!("a name of a part of limit \"{name}\": {}", known.join(", "));
                    return Err(Error::invalid("policy", format_args!("of \"{part}\""), expected));
                };
                let declared = parts[found].1.declared.kind();
                if declared != policy.kind() {
                    return Err(Error::KindMismatch { name: part, declared, requested: policy.kind() });
                }
                Some(found)
            }
        };
        match (found, kinds.as_slice(), policies) {
            (Some(at), ..) => {
                let (name, before) = parts.remove(at);
                Ok(Overridden { name, before, key: None, policy: Some(*policy), source: None, missing: 0 })
            }
            (None, [declared], [_]) => {
                Err(Error::KindMismatch { name: name.to_owned(), declared, requested: policy.kind() })
            }
            (None, ..) => {
                let expected = format!("at most one policy for each part of limit \"{name}\": {}", kinds.join(", "));
                Err(Error::invalid("policy", format_args!("\"{policy}\""), expected))
            }
        }
    };
    policies.iter().map(over).collect()
}

/// The declarations of a memory store.
impl Rare {
    fn note(&mut self, changes: &[Change]) {
        if self.has_outbox {
            self.send(changes);
        }
        for Change { name, parts, dropped, .. } in changes {
            self.composites.remove(name);
            for gone in dropped.iter().chain(parts.iter().map(|part| &part.from)) {
                self.limits.remove(gone);
            }
            self.keys.retain(|(limit, _), _| !dropped.contains(limit));
            for Part { name, from, .. } in parts.iter().filter(|part| part.is_renamed()) {
                let now = |limit| if limit == *from { name.clone() } else { limit };
                let keys = std::mem::take(&mut self.keys).into_iter();
                self.keys = keys.map(|((limit, key), policy)| ((now(limit), key), policy)).collect();
            }
        }
        // A name that one change removes may be another's.
        for Change { name, composite, parts, .. } in changes {
            self.limits.extend(parts.iter().map(|part| (part.name.clone(), part.now())));
            self.composites.extend(composite.clone().map(|policies| (name.clone(), policies)));
        }
    }

    pub(super) fn set_overrides(&mut self, all: &[Overridden]) {
        for part in all {
            match &part.key {
                None => {
                    self.enqueue(&self.places.of(&part.name), RowChange::Override(part.policy, part.source.clone()))
                }
                Some(key) => self.enqueue_key(&part.name, key, part.policy),
            }
            match (&part.key, part.policy) {
                (None, _) => drop(self.limits.insert(part.name.clone(), part.now())),
                (Some(key), Some(policy)) => drop(self.keys.insert((part.name.clone(), key.clone()), policy)),
                (Some(key), None) => drop(self.keys.remove(&(part.name.clone(), key.clone()))),
            }
        }
    }
}
