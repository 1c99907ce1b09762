//! Joint starts: what a start charges each part, by the parts' names.

use super::{CompositeLimiter, by_parts, complete_at, settle_at};
use crate::charges::{Charge, JointKey, Split};
use crate::error::{Error, Result};
use crate::limiter::internal::OwnedCharge;
use crate::limiter::{Limiter, unknown_part};
use crate::permit::RawPermit;
use crate::policy;
use std::sync::Arc;

/// What a part used: its index, and the parts inside it with their units, or its own units.
pub(super) type Used<'a> = (usize, Vec<(&'a str, u64)>, Option<u64>);

/// Returns the name that a limit has as a part of a composite: its own, without the composite's in front.
pub(super) fn name_of(composite: &str, limit: &str) -> Arc<str> {
    limit.strip_prefix(composite).and_then(|rest| rest.strip_prefix('/')).unwrap_or(limit).into()
}

/// Checks names that parts are given. (Limits of different stores may have the same name. As parts they are then known
/// only together, and a charge of one is an error.)
pub(super) fn check_names(before: &[Arc<str>], new: &[&str]) -> Result<()> {
    for (i, name) in new.iter().enumerate() {
        policy::check_name(name)?;
        if new[..i].contains(name) || before.iter().any(|other| **other == **name) {
            return Err(Error::invalid("name", format_args!("\"{name}\" twice"), "another name for each part"));
        }
    }
    Ok(())
}

impl CompositeLimiter {
    /// Returns the index of a part. With `OUTER/INNER`, the rest names a part of that part.
    fn part<'p>(&self, path: &'p str) -> Result<(usize, Option<&'p str>)> {
        let names = self.group.names();
        let unknown = || unknown_part(self.name(), path, names);
        let mut found = names.iter().enumerate().filter(|(_, name)| &***name == path);
        match (found.next(), found.next()) {
            (Some((i, _)), None) => return Ok((i, None)),
            (Some(_), Some(_)) => {
                let expected = "names of their own for parts whose limits have the same one";
                return Err(Error::invalid("part", format_args!("\"{path}\", which two parts are called"), expected));
            }
            (None, _) => {}
        }
        let inner = |(i, name): (usize, &Arc<str>)| {
            let rest = path.strip_prefix(&**name)?.strip_prefix('/')?;
            (self.group.all()[i].depth() > 0).then_some((i, Some(rest)))
        };
        names.iter().enumerate().find_map(inner).ok_or_else(unknown)
    }

    pub(super) fn do_joint(&self, key: &str, charges: &[Charge]) -> Result<JointKey> {
        self.group.children()?;
        policy::check_key(key)?;
        let mut own: Vec<(usize, Option<&str>, Option<u64>)> = Vec::new();
        let mut inner: Vec<(usize, Vec<Charge>)> = Vec::new();
        for charge in charges {
            let named = |expected: &str| format!("{expected} for part \"{}\"", charge.part);
            if charge.weight == Some(0) {
                return Err(Error::invalid("weight", 0, named("a whole number of at least 1")));
            }
            if let Some(long) = charge.key.filter(|key| policy::check_key(key).is_err()) {
                let value = format_args!("{} bytes long", long.len());
                return Err(Error::invalid("key", value, named("at most 1024 bytes of UTF-8")));
            }
            match self.part(charge.part)? {
                (i, None) if own.iter().any(|(other, ..)| *other == i) => {
                    return Err(Error::invalid("part", format_args!("\"{}\" twice", charge.part), "each part once"));
                }
                (i, None) => own.push((i, charge.key, charge.weight)),
                (i, Some(rest)) => {
                    let charge = Charge { part: rest, ..*charge };
                    match inner.iter_mut().find(|(other, _)| *other == i) {
                        Some((_, all)) => all.push(charge),
                        None => inner.push((i, vec![charge])),
                    }
                }
            }
        }
        // A part with charges inside gets a joint key.
        let mut all: Vec<(usize, Option<String>, Option<u64>)> =
            own.into_iter().map(|(i, key, weight)| (i, key.map(str::to_owned), weight)).collect();
        for (i, charges) in inner {
            let at = all.iter().position(|(other, ..)| *other == i).unwrap_or(all.len());
            if at == all.len() {
                all.push((i, None, None));
            }
            let outer = all[at].1.as_deref().unwrap_or(key);
            all[at].1 = Some(self.group.all()[i].joint(outer, &charges)?.to_string());
        }
        if all.is_empty() {
            return JointKey::plain(key);
        }
        // The same charges are the same key.
        all.sort_by_key(|(i, ..)| *i);
        Ok(JointKey::write(key, self.group.base.id, all.into_iter()))
    }

    /// Sorts units by the parts that used them, and checks that the permit's parts can be settled like that.
    pub(super) fn do_check_used<'a>(&self, permit: &RawPermit, actual: &[(&'a str, u64)]) -> Result<Vec<Used<'a>>> {
        let mut used: Vec<Used> = Vec::new();
        for &(path, units) in actual {
            let (i, rest) = self.part(path)?;
            let at = used.iter().position(|(other, ..)| *other == i).unwrap_or(used.len());
            if at == used.len() {
                used.push((i, Vec::new(), None));
            }
            let (_, inner, own) = &mut used[at];
            match rest {
                None if own.is_none() && inner.is_empty() => *own = Some(units),
                Some(rest) if own.is_none() => inner.push((rest, units)),
                _ => return Err(Error::invalid("part", format_args!("\"{path}\" twice"), "each part once")),
            }
        }
        let out = self.group.found(permit).map(|out| out.parts).unwrap_or_default();
        for (i, inner, own) in &used {
            let (child, part) = (&self.group.all()[*i], out.iter().find(|part| part.child == *i));
            match own {
                Some(units) if part.is_some_and(|part| child.is_settled_by_parts(&part.permit)) => by_parts(*units)?,
                Some(_) => {}
                None => part.map_or(Ok(()), |part| child.check_used(&part.permit, inner))?,
            }
        }
        Ok(used)
    }

    pub(super) fn do_settle_parts(&self, permit: &RawPermit, actual: &[(&str, u64)]) -> Result<()> {
        // What is wrong must not end some parts only.
        let used = self.do_check_used(permit, actual)?;
        self.group.end(permit, |state, i, child, part| match used.iter().find(|(other, ..)| *other == i) {
            Some((_, _, Some(units))) => settle_at(child, part, *units),
            Some((_, inner, None)) => child.settle_parts(part, inner),
            None => complete_at(state, child, part),
        })
    }

    /// Returns the key of a start itself, and its charges by name.
    pub(super) fn do_describe(&self, key: &str) -> Result<(String, Vec<OwnedCharge>)> {
        let Split { key, named, .. } = self.group.split(key, 1)?;
        let mut all = Vec::new();
        for named in named {
            let (name, child) = (&self.group.names()[named.part], &self.group.all()[named.part]);
            let (own, inner) = match named.key {
                Some(key) => child.describe(key).map(|(key, inner)| (Some(key), inner))?,
                None => (None, Vec::new()),
            };
            all.push((name.to_string(), own, named.weight));
            all.extend(inner.into_iter().map(|(part, key, weight)| (format!("{name}/{part}"), key, weight)));
        }
        Ok((key.to_owned(), all))
    }
}
