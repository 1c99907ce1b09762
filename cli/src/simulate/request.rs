//! What is asked of a policy: starts, one after the other.

use crate::failure::Failure;
use std::collections::HashMap;

/// Times are counted in these.
pub const SECOND: u64 = 1_000_000;

/// A wish to start. Times are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The line of the trace, or the number of the request, from 1 on.
    pub line: u64,
    /// Since 1970, or since the trace's own beginning: it is all the same but for windows that are aligned.
    pub at: u64,
    /// Its number among the [`Keys`].
    pub key: u32,
    pub weight: u64,
    /// How long the job runs; `None`: nobody said.
    pub duration: Option<u64>,
}

/// The keys that have been seen.
#[derive(Debug, Default)]
pub struct Keys {
    ids: HashMap<String, u32>,
    /// The text of each, and the line that it was on first.
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

    /// Where the trace names it first.
    pub fn line(&self, id: u32) -> u64 {
        self.texts[id as usize].1
    }

    pub fn len(&self) -> usize {
        self.texts.len()
    }
}

/// Where requests come from, in the order of their times.
pub trait Source {
    /// The next one; `None` at the end.
    fn next(&mut self, keys: &mut Keys) -> Result<Option<Request>, Failure>;
}
