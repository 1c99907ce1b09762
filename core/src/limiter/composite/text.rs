//! The text of a composite's place: the request, and the text of its place at a child.
//!
//! ```text
//! wglc1.WEIGHT.GRACE.KEY(child's text)    numbers in hex, the grace in µs or "-", the key's bytes in hex
//! wglc1.WEIGHT.GRACE.KEY.CHARGE…(…)       CHARGE = PART:WEIGHT:KEY, the part's name in hex, "-" for what is the start's
//! ```
//!
//! There are several of these after one child's turn came and another child denied. The presenting process need not
//! have the same children in the same order: each text names its limit. The name may have stood for a single limit when
//! the text was written, or for other parts. The place is then exchanged if it is not found.

use super::out::{Part, State, Wish};
use super::{Child, CompositeLimiter};
use crate::charges::Charge;
use crate::error::{Error, Result};
use crate::limiter::internal::OwnedCharge;
use crate::limiter::{Limiter, Places, unsupported};
use crate::permit::{RawPermit, unreadable};
use crate::time;
use std::time::Duration;

const PREFIX: &str = "wglc1.";

impl CompositeLimiter {
    pub(super) fn do_to_text(&self, place: &RawPermit) -> Result<String> {
        self.group.own(place)?;
        let found = self.group.found(place).filter(|out| out.state == State::Place);
        let Some((wish, parts)) = found.and_then(|out| Some((out.wish?, out.parts))) else {
            return unsupported("to_text", "a start of a composite: it belongs to one process, as its leases do");
        };
        let mut text = PREFIX.to_owned() + &head(&wish, &self.do_describe(&wish.key)?);
        for part in &parts {
            text += &format!("({})", self.group.all()[part.child].to_text(&part.permit)?);
        }
        Ok(text)
    }

    pub(super) fn do_permit_from_text(&self, text: &str) -> Result<RawPermit> {
        let children = self.group.children()?;
        if !self.has_places() {
            return unsupported("permit_from_text", "a composite without a timed limit: it has no places");
        }
        if let Some((part, wish)) = self.place_from_before(text)? {
            return Ok(self.hand_out_place(wish, vec![part]));
        }
        let Asked { key, weight, grace, charges, places } = parse(text).ok_or_else(|| unreadable(text))?;
        let charges = charges_of(&charges);
        let key = self.do_joint(&key, &charges)?;
        let mut parts: Vec<Part> = Vec::new();
        for text in places {
            let is_free = |i: usize| parts.iter().all(|part| part.child != i);
            let part = match part_of(children, is_free, |child| child.permit_from_text(text))? {
                // Perhaps it belongs to a former part of this composite.
                None => self.former_part(text, is_free)?,
                part => part,
            };
            parts.push(part.ok_or_else(|| Error::ForeignPermit { limit: self.name().to_owned() })?);
        }
        let wish = Wish { key: (*key).into(), weight, grace, children: children.len() };
        Ok(self.hand_out_place(wish, parts))
    }

    /// Reads the place of a text from a time when this name stood for one limit.
    fn place_from_before(&self, text: &str) -> Result<Option<(Part, Wish)>> {
        let children = self.group.children()?;
        let part = part_of(children, |_| true, |child| child.permit_of_name(text, self.name()))?;
        let Some((part, start)) = part.and_then(|part| Some((part, part.permit.timed()?))) else { return Ok(None) };
        let Some(key) = children[part.child].key_of(&part.permit)? else {
            return Err(Error::invalid(
                "place",
                format_args!("\"{text}\""),
                "a place whose full key the store still has",
            ));
        };
        let wish = Wish { key: key.into(), weight: start.weight, grace: None, children: children.len() };
        Ok(Some((part, wish)))
    }

    fn former_part(&self, text: &str, is_free: impl Fn(usize) -> bool) -> Result<Option<Part>> {
        for name in names_of_parts(self.name()) {
            if let Some(part) = part_of(self.group.children()?, &is_free, |child| child.permit_of_name(text, &name))? {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }
}

/// Writes a request without its places.
pub(in crate::limiter) fn head(wish: &Wish, (key, charges): &(String, Vec<OwnedCharge>)) -> String {
    let grace = wish.grace.map_or("-".to_owned(), |grace| format!("{:x}", grace.as_micros()));
    let mut text = format!("{:x}.{grace}.{}", wish.weight, in_hex(key));
    for (part, key, weight) in charges {
        let weight = weight.map_or("-".to_owned(), |weight| format!("{weight:x}"));
        let key = key.as_deref().map_or("-".to_owned(), in_hex);
        text += &format!(".{}:{weight}:{key}", in_hex(part));
    }
    text
}

/// Finds the first child that recognises a permit.
pub(in crate::limiter) fn part_of(
    children: &[Child],
    is_free: impl Fn(usize) -> bool,
    know: impl Fn(&Child) -> Result<RawPermit>,
) -> Result<Option<Part>> {
    for (i, child) in children.iter().enumerate().filter(|(i, child)| child.has_places() && is_free(*i)) {
        match know(child) {
            Ok(permit) => return Ok(Some(Part { child: i, permit })),
            // It belongs to another child, or to another kind of child.
            Err(Error::ForeignPermit { .. } | Error::InvalidArgument { .. } | Error::Unsupported { .. }) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

/// Returns the possible names of the limits of a composite of that name whose places have texts.
pub(in crate::limiter) fn names_of_parts(name: &str) -> impl Iterator<Item = String> {
    const KINDS: [&str; 7] =
        ["rate", "delay", "evenly-spaced", "token-bucket", "leaky-bucket", "fixed-window", "sliding-window-counter"];
    let names = ["", "-2", "-3", "-4"].into_iter().flat_map(|n| KINDS.map(|kind| (kind, n)));
    names.map(move |(kind, n)| format!("{name}/{kind}{n}"))
}

/// The contents of a composite's text.
pub(in crate::limiter) struct Asked<'t> {
    pub key: String,
    pub weight: u64,
    pub grace: Option<Duration>,
    pub charges: Vec<OwnedCharge>,
    /// The texts of its places.
    pub places: Vec<&'t str>,
}

pub(in crate::limiter) fn parse(text: &str) -> Option<Asked<'_>> {
    parse_behind(text.strip_prefix(PREFIX)?)
}

/// Parses what is behind the prefix.
pub(in crate::limiter) fn parse_behind(text: &str) -> Option<Asked<'_>> {
    let (head, rest) = text.split_at(text.find('(')?);
    let fields: Vec<&str> = head.split('.').collect();
    let &[weight, grace, key, ref charges @ ..] = fields.as_slice() else { return None };
    let weight = hex(weight).filter(|weight| *weight > 0)?;
    let grace = match grace {
        "-" => None,
        grace => Some(Duration::from_micros(hex(grace).filter(|grace| *grace <= time::MAX_TIME)?)),
    };
    let charges = charges.iter().map(|charge| charge_of(charge)).collect::<Option<_>>()?;
    Some(Asked { key: string(key)?, weight, grace, charges, places: children(rest)? })
}

/// Returns the charges of a text as those of a call.
pub(in crate::limiter) fn charges_of(charges: &[OwnedCharge]) -> Vec<Charge<'_>> {
    charges.iter().map(|(part, key, weight)| Charge { part, key: key.as_deref(), weight: *weight }).collect()
}

fn charge_of(text: &str) -> Option<OwnedCharge> {
    let fields: Vec<&str> = text.split(':').collect();
    let &[part, weight, key] = fields.as_slice() else { return None };
    let weight = if weight == "-" { None } else { Some(hex(weight).filter(|weight| *weight > 0)?) };
    let key = if key == "-" { None } else { Some(string(key)?) };
    Some((string(part)?, key, weight))
}

pub(in crate::limiter) fn in_hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses a text whose bytes are in hex.
pub(in crate::limiter) fn string(digits: &str) -> Option<String> {
    let bytes = digits.as_bytes().chunks(2).map(|digits| {
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 2)?;
        hex(digits).map(|byte| byte as u8)
    });
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

/// Parses at most 16 hexadecimal digits.
fn hex(digits: &str) -> Option<u64> {
    let is_number = digits.len() <= 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(digits, 16).ok())?
}

/// Splits the parenthesised parts. A composite's text contains parentheses of its own.
fn children(text: &str) -> Option<Vec<&str>> {
    let (mut depth, mut from, mut found) = (0, 0, Vec::new());
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => {
                depth += 1;
                from = if depth == 1 { at + 1 } else { from };
            }
            b')' => {
                depth -= 1;
                if depth == 0 {
                    found.push(&text[from..at]);
                }
            }
            _ => {}
        }
        // Nothing in between.
        if depth < 0 || depth == 0 && byte != b')' {
            return None;
        }
    }
    (depth == 0).then_some(found)
}
