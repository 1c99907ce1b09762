//! A composite's place as a text: what it was asked for with, and the texts of its places at the children.
//!
//! ```text
//! wglc1.WEIGHT.GRACE.KEY(child's text)(child's text)…    numbers in hex, the grace in µs or "-", the key's bytes in hex
//! ```
//!
//! Whoever presents it needs not have the same children in the same order: each text names its limit. A child that is
//! asked for no place in it gets one when the place is presented, as one whose place came too late does.

use super::CompositeLimiter;
use super::parts::{Out, Part, State, Wish};
use crate::error::{Error, Result};
use crate::limiter::{Limiter, own, unsupported};
use crate::permit::{RawPermit, unreadable};
use crate::policy;
use crate::time;
use std::sync::Arc;
use std::time::Duration;

impl CompositeLimiter {
    pub(super) fn do_to_text(&self, place: &RawPermit) -> Result<String> {
        own(place, self.id, self.name())?;
        let found = match self.out.lock().get(&place.a) {
            Some(Out { parts, state: State::Place, wish: Some(wish) }) => Some((wish.clone(), parts.clone())),
            _ => None,
        };
        let Some((wish, parts)) = found else {
            return unsupported("to_text", "a start of a composite: it belongs to one process, as its leases do");
        };
        let grace = wish.grace.map_or("-".to_owned(), |grace| format!("{:x}", grace.as_micros()));
        let key: String = wish.key.bytes().map(|byte| format!("{byte:02x}")).collect();
        let mut text = format!("wglc1.{:x}.{grace}.{key}", wish.weight);
        for part in &parts {
            if let Some(place) = &part.permit {
                text += &format!("({})", part.child.0.to_text(place)?);
            }
        }
        Ok(text)
    }

    pub(super) fn do_permit_from_text(&self, text: &str) -> Result<RawPermit> {
        if !self.has_places() {
            return unsupported("permit_from_text", "a composite without a limit of starts in time: it has no places");
        }
        let (wish, texts) = parse(text).ok_or_else(|| unreadable(text))?;
        policy::check_key(&wish.key)?;
        let mut parts: Vec<Part> = self.children().iter().map(|child| Part::of(child, None)).collect();
        for text in texts {
            let mut is_foreign = true;
            for part in parts.iter_mut().filter(|part| part.has_place && part.permit.is_none()) {
                match part.child.0.permit_from_text(text) {
                    Ok(place) => {
                        (part.permit, is_foreign) = (Some(place), false);
                        break;
                    }
                    // Another child's, or of another kind of child.
                    Err(Error::ForeignPermit { .. } | Error::InvalidArgument { .. }) => {}
                    Err(e) => return Err(e),
                }
            }
            if is_foreign {
                return Err(Error::ForeignPermit { limit: self.name().to_owned() });
            }
        }
        Ok(self.hand_out(Out { parts, state: State::Place, wish: Some(Arc::new(wish)) }))
    }
}

fn parse(text: &str) -> Option<(Wish, Vec<&str>)> {
    let (head, rest) = text.strip_prefix("wglc1.")?.split_at_checked(text.find('(')?.checked_sub("wglc1.".len())?)?;
    let fields: Vec<&str> = head.split('.').collect();
    let &[weight, grace, key] = fields.as_slice() else { return None };
    let weight = number(weight).filter(|weight| *weight > 0)?;
    let grace = match grace {
        "-" => None,
        grace => Some(Duration::from_micros(number(grace).filter(|grace| *grace <= time::LONGEST)?)),
    };
    let bytes = key.as_bytes().chunks(2).map(|digits| {
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 2)?;
        number(digits).map(|byte| byte as u8)
    });
    let key = String::from_utf8(bytes.collect::<Option<_>>()?).ok()?;
    Some((Wish { key: key.into(), weight, grace }, children(rest)?))
}

/// At most 16 hexadecimal digits.
fn number(digits: &str) -> Option<u64> {
    let is_number = digits.len() <= 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(digits, 16).ok())?
}

/// What stands in parentheses, one after the other. A composite's text has some of its own.
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
