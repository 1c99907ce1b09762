//! What names mean: the policies of limits, and which limits form a composite.
//!
//! A limit keeps its state when its name comes to mean more or less. In `100/1m` and `100/1m + 5 concurrent`, the rate
//! is the same limit, called `NAME` before and `NAME/rate` after. A part with a name is called `NAME/PART`.

use crate::error::{Error, Result};
pub(crate) use crate::policy::part_names;
use crate::policy::{self, NamedPolicy, Policy};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The policies of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Declared {
    /// The policy that programs declared last.
    pub declared: Policy,
    /// The policy that an operator put above it, or a server's headers.
    pub overriding: Option<Policy>,
    /// What put it there: see [`LEARNED`]. `None`: an operator.
    pub source: Option<Arc<str>>,
}

/// Where policies come from that programs learn: `headers of api.example.com`. Stores keep it with the override, on servers in
/// a second line of its text.
pub(crate) const LEARNED: &str = "headers of ";

impl Declared {
    /// The policy that applies.
    pub fn current(&self) -> Policy {
        self.overriding.unwrap_or(self.declared)
    }

    /// What put the override there.
    pub fn overridden_by(&self) -> Option<String> {
        self.overriding.map(|_| self.source.as_deref().unwrap_or("operator").to_owned())
    }
}

/// The declarations under a name, and under all names that begin with it and a slash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Family {
    /// The policies, if the name means a composite.
    pub composite: Option<Vec<NamedPolicy>>,
    pub limits: BTreeMap<String, Declared>,
}

impl Family {
    /// The limits that the name means: the one with that name, or a composite's parts in order.
    pub fn parts(&self, name: &str) -> Vec<(String, Declared)> {
        let names = self.composite.as_ref().map_or(vec![name.to_owned()], |policies| part_names(name, policies));
        names.into_iter().filter_map(|part| self.limits.get(&part).map(|found| (part, found.clone()))).collect()
    }
}

/// The other name that a limit may have: `NAME` alone, `NAME/KIND` as a part of a composite.
pub(in crate::state) fn other_name(name: &str, kind: &str) -> String {
    let whole = name.strip_suffix(kind).and_then(|whole| whole.strip_suffix('/'));
    whole.map_or_else(|| format!("{name}/{kind}"), str::to_owned)
}

/// Several policies as one text.
pub(crate) fn text_of(policies: &[NamedPolicy]) -> String {
    policies.iter().map(NamedPolicy::to_string).collect::<Vec<_>>().join(" + ")
}

/// The new meaning of a name.
#[derive(Debug)]
pub(crate) struct Change {
    pub name: String,
    /// The policies, if it is a composite.
    pub composite: Option<Vec<NamedPolicy>>,
    pub was_composite: Option<Vec<NamedPolicy>>,
    pub parts: Vec<Part>,
    /// The names of the limits that are no longer parts.
    pub dropped: Vec<String>,
}

/// One limit of a change.
#[derive(Debug)]
pub(crate) struct Part {
    pub name: String,
    /// Its previous name.
    pub from: String,
    pub before: Option<Declared>,
    pub policy: Policy,
}

impl Part {
    pub fn now(&self) -> Declared {
        let overriding = self.before.as_ref().and_then(|before| before.overriding);
        let source = self.before.as_ref().and_then(|before| before.source.clone());
        Declared { declared: self.policy, overriding, source }
    }

    pub fn is_new(&self) -> bool {
        self.before.as_ref() != Some(&self.now())
    }

    /// Whether it has its state from another name.
    pub fn is_renamed(&self) -> bool {
        self.from != self.name
    }
}

impl Change {
    pub fn changes_nothing(&self) -> bool {
        let same = |part: &Part| part.from == part.name && !part.is_new();
        self.composite == self.was_composite && self.dropped.is_empty() && self.parts.iter().all(same)
    }
}

/// An override that an operator, or what a program has learned, sets or removes.
#[derive(Debug)]
pub(crate) struct Overridden {
    pub name: String,
    pub before: Declared,
    /// The key, if it applies only to one.
    pub key: Option<String>,
    pub policy: Option<Policy>,
    /// As in [`Declared`], also where it removes what was learned; `None` for a key.
    pub source: Option<Arc<str>>,
    /// The number of a key's units that may be missing from the ledger under the previous policy.
    pub missing: u64,
}

impl Overridden {
    pub fn now(&self) -> Declared {
        let source = self.policy.and(self.source.clone());
        Declared { declared: self.before.declared, overriding: self.policy, source }
    }
}

/// Checks the names of all limits with these policies.
pub(crate) fn check_names(name: &str, policies: &[NamedPolicy]) -> Result<()> {
    policy::check_name(name)?;
    let parts = part_names(name, policies);
    for (i, part) in parts.iter().enumerate() {
        policy::check_name(part)?;
        if parts[..i].contains(part) {
            let expected = "other names for parts than those that the parts without one have";
            return Err(Error::invalid("policy", format_args!("two parts that are called \"{part}\""), expected));
        }
    }
    Ok(())
}
