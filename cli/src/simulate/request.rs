//! The requests of a load.

use crate::failure::Failure;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

/// A second in microseconds, the unit of all times here.
pub const SECOND: u64 = 1_000_000;

/// A request for a start. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The line in the trace, or the number of the request, from 1.
    pub line: u64,
    /// The time since 1970 or since the start of the trace. Only aligned windows depend on the choice.
    pub at: u64,
    /// The index in [`Keys`].
    pub key: u32,
    pub weight: u64,
    /// The duration of the job, if known.
    pub duration: Option<u64>,
    /// What single parts of the policy are charged, in the order of the parts.
    pub charges: Vec<PartCharge>,
}

/// What a part is charged, where this differs from the request's own key and weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartCharge {
    /// The index of the part's name in [`Keys`].
    pub part: u32,
    pub key: Option<u32>,
    pub weight: Option<u64>,
}

/// The keys of a load, and the names of the parts that it charges.
#[derive(Debug, Default)]
pub struct Keys {
    ids: HashMap<Rc<str>, u32>,
    /// The text of each key, and the first line with it.
    texts: Vec<(Rc<str>, u64)>,
    parts: Vec<String>,
}

impl Keys {
    pub fn id(&mut self, text: &str, line: u64) -> u32 {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = self.texts.len() as u32;
        let text: Rc<str> = text.into();
        self.texts.push((text.clone(), line));
        self.ids.insert(text, id);
        id
    }

    pub fn text(&self, id: u32) -> &Rc<str> {
        &self.texts[id as usize].0
    }

    /// The first line with this key.
    pub fn line(&self, id: u32) -> u64 {
        self.texts[id as usize].1
    }

    /// The index of a part's name.
    pub fn part(&mut self, name: &str) -> u32 {
        let at = self.parts.iter().position(|part| part == name).unwrap_or_else(|| {
            self.parts.push(name.to_owned());
            self.parts.len() - 1
        });
        at as u32
    }

    /// The name of a part.
    pub fn part_name(&self, part: u32) -> &str {
        &self.parts[part as usize]
    }
}

/// A map by the numbers of keys, which are dense: they need no hash.
pub type ByKey<V> = HashMap<u32, V, BuildHasherDefault<Number>>;

/// The hash of a number: itself, with its bits spread.
#[derive(Debug, Default)]
pub struct Number(u64);

impl Hasher for Number {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 + u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A source of requests, in the order of their times.
pub trait Source {
    /// The next request; `None` at the end.
    fn next(&mut self, keys: &mut Keys) -> Result<Option<Request>, Failure>;
}
