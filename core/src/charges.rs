//! What one start takes of each part of a composite: its charges.
//!
//! A start of a composite has a key and a weight, and each part is charged with these unless a charge names the part.
//! A [`JointKey`] is such a start's key, with the charges in it. It goes wherever a key goes: into every call, and into
//! lines, hooks and threads that keep keys for later. Only the composite that made it reads it ([`Split`]), and each of
//! its parts gets a plain key.
//!
//! ```text
//! U+10FFFF NUMBER ID ";" KEY CHARGE…      NUMBER: of this process, at random; ID: the composite's, in hex
//! CHARGE = PART "," WEIGHT "," KEY        PART: its index, in hex; WEIGHT: in hex, or "-"
//! KEY    = LENGTH ":" BYTES               LENGTH: in hex, or "-" for none
//! ```
//!
//! The number is secret: a key from outside, such as a user's name, cannot pass for a joint one and so choose what it is
//! charged. It is made once per process, and forked children inherit it with the keys that are in use.

use crate::error::{Error, Result};
use crate::policy;
use std::borrow::Cow;
use std::fmt::{self, Write};
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::OnceLock;

/// What one part of a composite is charged for a start, where this differs from the start's own key and weight.
///
/// See [`Limiter::joint`](crate::Limiter::joint).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge<'a> {
    /// The part's name; a part of a composite that is itself a part is `OUTER/INNER`.
    pub part: &'a str,
    /// The key; `None`: that of the start.
    pub key: Option<&'a str>,
    /// The weight; `None`: that of the start.
    pub weight: Option<u64>,
}

impl<'a> Charge<'a> {
    /// Makes a charge of the part with this name, with the key and the weight of the start.
    pub const fn of(part: &'a str) -> Charge<'a> {
        Charge { part, key: None, weight: None }
    }

    /// Sets the key.
    #[must_use]
    pub const fn key(self, key: &'a str) -> Charge<'a> {
        Charge { key: Some(key), ..self }
    }

    /// Sets the weight.
    #[must_use]
    pub const fn weight(self, weight: u64) -> Charge<'a> {
        Charge { weight: Some(weight), ..self }
    }
}

/// The key of a joint start, which says what each part of a composite is charged. It belongs to this process and to the
/// limiter that made it, and may be used for any number of its calls.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct JointKey(Box<str>);

impl Deref for JointKey {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for JointKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for JointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the number.
        write!(f, "JointKey of {:?}", own_key(&self.0))
    }
}

/// The first character of joint keys.
const MARK: char = '\u{10FFFF}';

/// The first byte of the mark. Few other keys begin with it.
const FIRST: u8 = 0xF4;

/// The mark and the number of this process.
fn mark() -> &'static str {
    static ONCE: OnceLock<String> = OnceLock::new();
    ONCE.get_or_init(|| {
        let random = RandomState::new();
        format!("{MARK}{:016x}{:016x}", random.hash_one(1), random.hash_one(2))
    })
}

/// Returns what follows the mark, if the key is a joint one.
fn behind_mark(key: &str) -> Option<&str> {
    if may_be_joint(key) { key.strip_prefix(mark()) } else { None }
}

/// Returns whether a key may be a joint one: most others do not begin with this byte.
#[inline(always)]
pub(crate) fn may_be_joint(key: &str) -> bool {
    key.as_bytes().first() == Some(&FIRST)
}

/// Returns whether a key is a joint one.
pub(crate) fn is_joint(key: &str) -> bool {
    behind_mark(key).is_some()
}

/// Returns the key of the start itself, for observers: a plain key as it is.
pub fn own_key(key: &str) -> &str {
    behind_mark(key).and_then(|behind| read_key(behind.split_once(';')?.1)?.0).map_or(key, own_key)
}

/// Returns the key of the line for a start. Starts that charge the same keys wait in one line, however much they charge:
/// that of the start's key with its charges, but without weights. A plain key is its own.
pub fn line_key(key: &str) -> Cow<'_, str> {
    match behind_mark(key).and_then(|behind| behind.split_once(';')) {
        None => Cow::Borrowed(key),
        Some((composite, rest)) => without_weights(composite, rest).map_or(Cow::Borrowed(key), Cow::Owned),
    }
}

/// Returns the plain keys that a start may charge at some part.
pub(crate) fn keys_of(key: &str) -> Vec<&str> {
    fn add<'k>(key: &'k str, all: &mut Vec<&'k str>) {
        match behind_mark(key).and_then(|behind| Split::read(behind.split_once(';')?.1, 1)) {
            None => all.push(key),
            Some(Split { key, named, .. }) => {
                all.push(key);
                named.iter().filter_map(|named| named.key).for_each(|key| add(key, all));
            }
        }
    }
    let mut all = Vec::new();
    add(key, &mut all);
    all
}

fn without_weights(composite: &str, rest: &str) -> Option<String> {
    let Split { key, named, .. } = Split::read(rest, 1)?;
    let keys = named.iter().filter_map(|named| Some((named.part, line_key(named.key?).into_owned())));
    let keys: Vec<_> = keys.filter(|(_, own)| own != key).map(|(part, key)| (part, Some(key), None)).collect();
    if keys.is_empty() {
        return Some(key.to_owned());
    }
    let composite = u64::from_str_radix(composite, 16).ok()?;
    Some(JointKey::write(key, composite, keys.into_iter()).0.into())
}

/// One charge, by the part's index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named<'k> {
    pub part: usize,
    pub key: Option<&'k str>,
    pub weight: Option<u64>,
}

/// A start's key, and its charges.
#[derive(Debug, Clone)]
pub(crate) struct Split<'k> {
    pub key: &'k str,
    pub weight: u64,
    /// Empty for a plain key, which allocates nothing.
    pub named: Vec<Named<'k>>,
}

impl<'k> Split<'k> {
    /// Reads the key of a start of the composite with this number.
    #[inline]
    pub fn of(key: &'k str, weight: u64, composite: u64) -> Result<Split<'k>> {
        if !may_be_joint(key) {
            policy::check_key(key)?;
            return Ok(Split { key, weight, named: Vec::new() });
        }
        Self::of_joint(key, weight, composite)
    }

    #[cold]
    fn of_joint(key: &'k str, weight: u64, composite: u64) -> Result<Split<'k>> {
        let Some(behind) = behind_mark(key) else {
            policy::check_key(key)?;
            return Ok(Split { key, weight, named: Vec::new() });
        };
        let foreign = || Error::invalid("key", "the joint key of another limiter", "one of this limiter");
        let (of, rest) = behind.split_once(';').ok_or_else(foreign)?;
        if u64::from_str_radix(of, 16) != Ok(composite) {
            return Err(foreign());
        }
        Self::read(rest, weight).ok_or_else(foreign)
    }

    fn read(rest: &'k str, weight: u64) -> Option<Split<'k>> {
        let (key, mut rest) = read_key(rest)?;
        let mut named = Vec::with_capacity(4);
        while !rest.is_empty() {
            let (part, after) = rest.split_once(',')?;
            let (weight, after) = after.split_once(',')?;
            let weight = if weight == "-" { None } else { Some(u64::from_str_radix(weight, 16).ok()?) };
            let (key, after) = read_key(after)?;
            named.push(Named { part: usize::from_str_radix(part, 16).ok()?, key, weight });
            rest = after;
        }
        Some(Split { key: key?, weight, named })
    }

    /// Returns whether some parts have weights of their own.
    #[inline(always)]
    pub fn has_own_weights(&self) -> bool {
        self.named.iter().any(|named| named.weight.is_some())
    }

    /// Returns what the part with this index is charged. If the start weighs 0, as for a look, so does each charge.
    #[inline(always)]
    pub fn at(&self, part: usize) -> (&'k str, u64) {
        let named = self.named.iter().find(|named| named.part == part);
        named.map_or((self.key, self.weight), |named| {
            let weight = if self.weight == 0 { 0 } else { named.weight.unwrap_or(self.weight) };
            (named.key.unwrap_or(self.key), weight)
        })
    }
}

impl JointKey {
    /// A key without charges.
    pub(crate) fn plain(key: &str) -> Result<JointKey> {
        policy::check_key(key)?;
        Ok(JointKey(key.into()))
    }

    /// Writes the key of a start with these charges.
    pub fn write(
        key: &str,
        composite: u64,
        charges: impl Iterator<Item = (usize, Option<String>, Option<u64>)>,
    ) -> JointKey {
        let mut text = format!("{}{composite:x};", mark());
        write_key(&mut text, Some(key));
        for (part, key, weight) in charges {
            let _ = match weight {
                None => write!(text, "{part:x},-,"),
                Some(weight) => write!(text, "{part:x},{weight:x},"),
            };
            write_key(&mut text, key.as_deref());
        }
        JointKey(text.into())
    }
}

fn write_key(text: &mut String, key: Option<&str>) {
    let _ = match key {
        None => text.write_str("-:"),
        Some(key) => write!(text, "{:x}:{key}", key.len()),
    };
}

fn read_key(text: &str) -> Option<(Option<&str>, &str)> {
    let (length, rest) = text.split_once(':')?;
    if length == "-" {
        return Some((None, rest));
    }
    let (key, rest) = rest.split_at_checked(usize::from_str_radix(length, 16).ok()?)?;
    Some((Some(key), rest))
}
