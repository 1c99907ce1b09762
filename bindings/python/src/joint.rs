//! The key and the weight of a start. A mapping has those of parts of a composite, by their names: see the core's `Charge`.
//! Such a start has a joint key, which goes wherever a plain key goes.

use crate::argument::{self, wrong_type};
use crate::error::raised;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyMapping, PyString};
use std::ops::Deref;
use workglow_limit::embed::plain_key;
use workglow_limit::{Charge, Error, JointKey, Limiter};

type Given<'a, 'py> = &'a Bound<'py, PyAny>;

/// A key as a program gives it.
pub enum Key<'a, 'py> {
    /// A text. `None` means no key.
    Plain(Option<&'a str>),
    /// The keys of some parts.
    Parts(&'a Bound<'py, PyMapping>),
}

/// A weight as a program gives it.
pub enum Weight<'a, 'py> {
    /// A number.
    Plain(u64),
    /// The weights of some parts.
    Parts(&'a Bound<'py, PyMapping>),
}

/// The units that a start used in the end.
pub enum Actual {
    Plain(u64),
    /// Of some parts, by their names.
    Parts(Vec<(String, u64)>),
}

/// Reads a key.
#[inline]
pub fn key<'a, 'py>(value: Given<'a, 'py>) -> PyResult<Key<'a, 'py>> {
    if !value.is_none()
        && !value.is_instance_of::<PyString>()
        && let Ok(parts) = value.cast()
    {
        return Ok(Key::Parts(parts));
    }
    argument::key(value).map(Key::Plain)
}

/// Reads a weight.
#[inline]
pub fn weight<'a, 'py>(value: Given<'a, 'py>) -> PyResult<Weight<'a, 'py>> {
    match parts(value) {
        Some(parts) => Ok(Weight::Parts(parts)),
        None => argument::weight(value).map(Weight::Plain),
    }
}

/// Reads the weight of a peek, which may be 0.
pub fn weight_to_peek<'a, 'py>(value: Given<'a, 'py>) -> PyResult<Weight<'a, 'py>> {
    match parts(value) {
        Some(parts) => Ok(Weight::Parts(parts)),
        None => argument::weight_to_peek(value).map(Weight::Plain),
    }
}

/// Reads the units that a start used.
pub fn actual(value: Given<'_, '_>) -> PyResult<Actual> {
    let Some(parts) = parts(value) else { return argument::actual(value).map(Actual::Plain) };
    let used = items("actual", parts)?.into_iter().map(|(part, units)| {
        let units = argument::units_of(&part, "actual", 0, &units)?;
        Ok((part, units))
    });
    used.collect::<PyResult<_>>().map(Actual::Parts)
}

/// Returns the value as the mapping of parts that it may be instead of a number.
#[inline]
fn parts<'a, 'py>(value: Given<'a, 'py>) -> Option<&'a Bound<'py, PyMapping>> {
    if value.is_instance_of::<PyInt>() { None } else { value.cast().ok() }
}

/// Returns whether an argument is a mapping of parts.
pub fn is_of_parts(value: Given<'_, '_>) -> bool {
    value.cast::<PyMapping>().is_ok()
}

/// The key of a start, as the core gets it.
pub enum StartKey<'a> {
    Plain(&'a str),
    Joint(JointKey),
}

impl Deref for StartKey<'_> {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        match self {
            StartKey::Plain(key) => key,
            StartKey::Joint(key) => key,
        }
    }
}

/// Returns the key and the weight of a start of this limiter. Parts without a key or a weight of their own get those of the
/// start: no key and weight 1, if these are mappings.
#[inline(always)]
pub fn start<'a>(limiter: &dyn Limiter, key: Key<'a, '_>, weight: Weight<'_, '_>) -> PyResult<(StartKey<'a>, u64)> {
    match (key, weight) {
        (Key::Plain(key), Weight::Plain(weight)) => Ok((StartKey::Plain(key.unwrap_or_default()), weight)),
        (key, weight) => joint(limiter, &key, &weight).map(|(key, weight)| (StartKey::Joint(key), weight)),
    }
}

#[cold]
fn joint(limiter: &dyn Limiter, key: &Key<'_, '_>, weight: &Weight<'_, '_>) -> PyResult<(JointKey, u64)> {
    let (own_key, keys) = match key {
        Key::Plain(key) => (key.unwrap_or_default(), Vec::new()),
        Key::Parts(parts) => ("", items("key", parts)?),
    };
    let (own_weight, weights) = match weight {
        Weight::Plain(weight) => (*weight, Vec::new()),
        Weight::Parts(parts) => (1, items("weight", parts)?),
    };
    let mut charges = Vec::with_capacity(weights.len() + keys.len());
    for (part, units) in &weights {
        charges.push(Charge::of(part).weight(argument::units_of(part, "weight", 1, units)?));
    }
    for (part, key) in &keys {
        let key = argument::key_of(part, key)?;
        match charges.iter_mut().find(|charge| charge.part == part) {
            Some(charge) => *charge = charge.key(key),
            None => charges.push(Charge::of(part).key(key)),
        }
    }
    Ok((limiter.joint(own_key, &charges).map_err(raised)?, own_weight))
}

/// Returns the parts of a mapping, and what it has for each of them.
fn items<'py>(parameter: &str, parts: &Bound<'py, PyMapping>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
    let named = parts.items()?.into_iter().map(|item| {
        let (part, value): (Bound<PyAny>, Bound<PyAny>) = item.extract()?;
        match part.extract() {
            Ok(name) => Ok((name, value)),
            Err(_) => Err(wrong_type(parameter, &part, "the name of a part as a str")),
        }
    });
    named.collect()
}

/// Returns the key whose waiters a start with this key may wake when it ends. A joint start may wake any.
pub fn waiters_of(key: &str) -> Option<&str> {
    Some(key).filter(|key| plain_key(key).as_ptr() == key.as_ptr())
}

/// Refuses a key or a weight next to a place, which has its own.
pub fn refuse(key: &Key<'_, '_>, weight: &Weight<'_, '_>, expected: &str) -> PyResult<()> {
    let (parameter, value) = match (key, weight) {
        (Key::Plain(None), Weight::Plain(1)) => return Ok(()),
        (Key::Plain(Some(key)), _) => ("key", format!("{key:?}")),
        (Key::Parts(parts), _) => ("key", argument::quote(parts)),
        (_, Weight::Plain(weight)) => ("weight", weight.to_string()),
        (_, Weight::Parts(parts)) => ("weight", argument::quote(parts)),
    };
    Err(raised(Error::InvalidArgument { parameter, value, expected: expected.to_owned() }))
}
