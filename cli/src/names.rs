//! The limits that a name refers to.

use crate::failure::{Failure, unknown};
use workglow_limit::Store;
use workglow_limit::observe::{LimitSnapshot, Snapshot};

/// The name under which a limit was declared: its own, or its composite's. `names`: all declared ones, in order.
pub fn whole<'l>(limit: &'l str, names: &[String]) -> &'l str {
    let wholes = limit.rmatch_indices('/').map(|(at, _)| &limit[..at]);
    let is_declared = |name: &&str| names.binary_search_by(|known| known.as_str().cmp(name)).is_ok();
    std::iter::once(limit).chain(wholes).find(is_declared).unwrap_or(limit)
}

/// The limits of a name: one limit, or all parts of a composite. The name of a part is valid, too.
pub fn parts<'s>(name: &str, seen: &'s Snapshot, names: &[String]) -> Vec<&'s LimitSnapshot> {
    seen.limits.iter().filter(|limit| limit.name == name || whole(&limit.name, names) == name).collect()
}

/// Returns the names of the store's limits, or an error if `name` is not one of them.
pub fn check(name: &str, store: &Store) -> Result<Vec<String>, Failure> {
    let names = store.names()?;
    if names.iter().any(|known| known == name) {
        return Ok(names);
    }
    match store.find(name) {
        Ok(_) => Ok(names),
        Err(workglow_limit::Error::UnknownLimit { .. }) => Err(unknown(name, &names)),
        Err(error) => Err(error.into()),
    }
}
