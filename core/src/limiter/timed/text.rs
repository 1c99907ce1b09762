//! A permit or place of a timed limit as a text, with which it leaves its process.

use super::{LANE, Timed, only_grace};
use crate::error::{Error, Result};
use crate::permit::{RawPermit, unreadable};
use crate::store::Hash;
use crate::time;

impl Timed {
    pub(super) fn do_to_text(&self, permit: &RawPermit) -> Result<String> {
        let permit = self.own(permit)?;
        if self.limit.table()?.policy.is_counted() {
            let reason =
                "a permit of this limit cannot leave its process: its units are only counted, so it could start twice";
            return Err(Error::Unsupported { reason: reason.into() });
        }
        let RawPermit { key: weight, a: ticket, b: stamp, ready, reserved: [h0, h1, grace], .. } = permit;
        let home = self.limit.home()?;
        let Hash([name, _]) = home.hash(b'n', self.limit.name());
        let limit = name << 32 | home.instance & 0xffff_ffff;
        Ok(format!(
            "wgl1.{limit:016x}.{h0:016x}{h1:016x}.{ticket:x}.{stamp:x}.{ready:x}.{weight:x}.{:x}",
            only_grace(grace)
        ))
    }

    pub(super) fn do_permit_from_text(&self, text: &str) -> Result<RawPermit> {
        let [limit, h0, h1, ticket, stamp, ready, weight, grace] = parse(text).ok_or_else(|| unreadable(text))?;
        let home = self.limit.home()?;
        let Hash([name, _]) = home.hash(b'n', self.limit.name());
        if limit >> 32 != name & 0xffff_ffff {
            return Err(Error::ForeignPermit { limit: self.limit.name().to_string() });
        }
        let reserved = [h0, h1, grace | (home.instance & 0xffff) << LANE];
        let place = RawPermit { limiter: self.id, key: weight, a: ticket, b: stamp, ready, reserved };
        // Of an earlier boot, whose times mean nothing here: whoever presents it gets a fresh place.
        let is_void = limit & 0xffff_ffff != home.instance & 0xffff_ffff;
        Ok(if is_void { RawPermit { a: u64::MAX, b: 0, ready: 0, ..place } } else { place })
    }
}

/// The eight numbers of a permit's text.
fn parse(text: &str) -> Option<[u64; 8]> {
    let parts: Vec<&str> = text.strip_prefix("wgl1.")?.split('.').collect();
    let &[limit, key, ticket, stamp, ready, weight, grace] = parts.as_slice() else { return None };
    let number = |digits: &str| {
        let is_number = digits.len() <= 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        is_number.then(|| u64::from_str_radix(digits, 16).ok())?
    };
    let (h0, h1) = key.split_at_checked(16)?;
    let (weight, grace) = (number(weight)?, number(grace)?);
    let is_possible = weight > 0 && grace <= time::LONGEST;
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
