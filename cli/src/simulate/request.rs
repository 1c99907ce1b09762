//! The requests of a load.

use crate::failure::Failure;
use std::collections::HashMap;

/// A second in microseconds, the unit of all times here.
pub const SECOND: u64 = 1_000_000;

/// A request for a start. Times are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

/// The keys of a load.
#[derive(Debug, Default)]
pub struct Keys {
    ids: HashMap<String, u32>,
    /// The text of each key, and the first line with it.
    texts: Vec<(String, u64)>,
}

impl Keys {
    pub fn id(&mut self, text: &str, line: u64) -> u32 {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = self.texts.len() as u32;
        self.texts.push((text.to_owned(), line));
        self.ids.insert(text.to_owned(), id);
        id
    }

    pub fn text(&self, id: u32) -> &str {
        &self.texts[id as usize].0
    }

    /// The first line with this key.
    pub fn line(&self, id: u32) -> u64 {
        self.texts[id as usize].1
    }

    pub fn len(&self) -> usize {
        self.texts.len()
    }
}

/// A source of requests, in the order of their times.
pub trait Source {
    /// The next request; `None` at the end.
    fn next(&mut self, keys: &mut Keys) -> Result<Option<Request>, Failure>;
}
