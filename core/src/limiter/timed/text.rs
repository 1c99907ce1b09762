//! The text of a timed limit's permit or place, for use in another process.

use super::Timed;
use crate::algorithm::meter::IDLE;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::limiter::composite::text as composite;
use crate::limiter::foreign;
use crate::permit::{RawPermit, TimedPermit, unreadable};
use crate::state::is_counted_place;
use crate::time;

impl Timed {
    pub(super) fn do_to_text(&self, permit: &RawPermit) -> Result<String> {
        let TimedPermit { weight, ticket, stamp, ready, key: [h0, h1], grace, .. } = self.own(permit)?;
        if self.limit.table_of(Hash([h0, h1]))?.policy.is_counted() && !is_counted_place(ticket) {
            let reason =
                "a start of this limit cannot leave its process: its units are only counted, so it could end twice";
            return Err(Error::Unsupported { reason: reason.into() });
        }
        let home = self.limit.home()?;
        let Hash([name, _]) = home.hash(b'n', self.limit.name());
        let limit = name << 32 | home.instance & 0xffff_ffff;
        Ok(format!("wgl1.{limit:016x}.{h0:016x}{h1:016x}.{ticket:x}.{stamp:x}.{ready:x}.{weight:x}.{grace:x}"))
    }

    pub(super) fn do_permit_from_text(&self, text: &str) -> Result<RawPermit> {
        let name = self.limit.name();
        let Some(composite) = composite::parse(text) else { return self.permit_of_name(text, name) };
        // The text may date from a time when this name stood for several limits, of which this one was a part or the
        // successor.
        let names = || composite::names_of_parts(name);
        let own =
            |part: &String| part.strip_prefix(&**name).is_some_and(|kind| kind[1..].starts_with(self.limit.kind()));
        for name in names().filter(own).chain(names()) {
            for place in &composite.places {
                if let Ok(place) = self.permit_of_name(place, &name) {
                    return Ok(place);
                }
            }
        }
        foreign(name)
    }

    /// Reads the permit or place of a text that was written under that name.
    pub(super) fn permit_of_name(&self, text: &str, name: &str) -> Result<RawPermit> {
        let [limit, h0, h1, ticket, stamp, ready, weight, grace] = parse(text).ok_or_else(|| unreadable(text))?;
        let home = self.limit.home()?;
        let Hash([hash, _]) = home.hash(b'n', name);
        if limit >> 32 != hash & 0xffff_ffff {
            return foreign(self.limit.name());
        }
        let (key, lane) = ([h0, h1], home.instance as u16);
        let place = TimedPermit { weight, ticket, stamp, ready, key, grace, lane };
        // A text of an earlier boot has meaningless times here: presenting it returns a fresh place.
        let is_void = limit & 0xffff_ffff != home.instance & 0xffff_ffff;
        Ok(self.raw(if is_void { place.voided() } else { place }))
    }
}

/// Parses the eight numbers of a permit's text.
fn parse(text: &str) -> Option<[u64; 8]> {
    let parts: Vec<&str> = text.strip_prefix("wgl1.")?.split('.').collect();
    let &[limit, key, ticket, stamp, ready, weight, grace] = parts.as_slice() else { return None };
    let number = |digits: &str| {
        let is_number = digits.len() <= 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        is_number.then(|| u64::from_str_radix(digits, 16).ok())?
    };
    let (h0, h1) = key.split_at_checked(16)?;
    let (weight, grace) = (number(weight)?, number(grace)?);
    let is_possible = weight > 0 && grace & !IDLE <= time::MAX_TIME;
    is_possible.then_some([
        number(limit)?,
        number(h0)?,
        number(h1)?,
        number(ticket)?,
        number(stamp)?,
        number(ready)?,
        weight,
        grace,
    ])
}
