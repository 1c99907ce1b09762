//! Policies with the names that they have as parts of a composite.

use super::Policy;
use crate::error::{Error, Result};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The longest name of a part in a text, in bytes.
const MAX_BYTES: usize = 64;

/// A policy of a text, and the name that it has there, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPolicy {
    /// The part's name: `tokens` in `tokens: 200000/1m`.
    pub name: Option<Arc<str>>,
    /// The policy.
    pub policy: Policy,
}

impl From<Policy> for NamedPolicy {
    fn from(policy: Policy) -> NamedPolicy {
        NamedPolicy { name: None, policy }
    }
}

impl Deref for NamedPolicy {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.policy
    }
}

/// `requests: 100/1m + requests: 5/1s`: each window has the name.
impl fmt::Display for NamedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            None => write!(f, "{}", self.policy),
            Some(name) => write!(f, "{name}: {}", self.policy.to_string().replace(" + ", &format!(" + {name}: "))),
        }
    }
}

/// Whether a limit with these policies is a composite: it has several, or one with a name.
pub(crate) fn is_composite(policies: &[NamedPolicy]) -> bool {
    policies.len() > 1 || policies.iter().any(|policy| policy.name.is_some())
}

/// The names of the limits with these policies.
pub(crate) fn part_names(name: &str, policies: &[NamedPolicy]) -> Vec<String> {
    if !is_composite(policies) {
        return vec![name.to_owned()];
    }
    let part = |(i, policy): (usize, &NamedPolicy)| {
        if let Some(part) = &policy.name {
            return format!("{name}/{part}");
        }
        // Parts with names count too, so that the others keep their names when one gets one.
        let kind = policy.kind();
        match policies[..i].iter().filter(|before| before.kind() == kind).count() {
            0 => format!("{name}/{kind}"),
            before => format!("{name}/{kind}-{}", before + 1),
        }
    };
    policies.iter().enumerate().map(part).collect()
}

/// Splits a text into the name at its beginning, if there is one, and the length up to behind the colon.
pub(super) fn name_at(text: &str) -> Option<(&str, usize)> {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let (name, rest) = text.split_at(text.find(|c| !is_of_name(c))?);
    let colon = rest.trim_start().strip_prefix(':')?;
    Some((name, text.len() - colon.len()))
}

/// Checks the name of a part.
pub(super) fn check_part(name: &str) -> Result<()> {
    if name.starts_with(char::is_alphabetic) && name.len() <= MAX_BYTES {
        return Ok(());
    }
    Err(Error::invalid(
        "name",
        format_args!("\"{name}\""),
        "a letter, and then letters, digits, - and _: at most 64 bytes",
    ))
}
