//! The token of whoever holds the structure lock.

use super::index::KeyAt;
use super::table::{Hash, Home, Table};
use crate::error::{Error, Result};
use std::fs::File;
use std::ops::Deref;

/// The right to do something structural in one home. What needs the structure lock is a method of this token.
#[derive(Clone, Copy)]
pub(crate) struct Locked<'a> {
    pub home: &'a Home,
    /// The lane, to make it larger; none on the heap.
    file: Option<&'a File>,
}

impl Deref for Locked<'_> {
    type Target = Home;

    fn deref(&self) -> &Home {
        self.home
    }
}

impl<'a> Locked<'a> {
    /// For a home that nobody else sees yet, or whose structure lock the caller holds as long as this token lives.
    pub(super) fn new(home: &'a Home, file: Option<&'a File>) -> Locked<'a> {
        Locked { home, file }
    }

    /// Makes room for `count` more words, for new keys.
    pub(super) fn grow_for_keys(&self, count: u64) -> Result<()> {
        self.arena.grow(count, self.file)
    }

    /// Makes room for `count` more words, if need be in the reserve.
    pub(super) fn grow(&self, count: u64) -> Result<()> {
        self.grow_for_keys(count).or_else(|full| if self.arena.has_reserve(count) { Ok(()) } else { Err(full) })
    }

    /// The same, some at a time: if more is needed than others are to wait for, the caller has to let go of the lock and come
    /// again.
    pub(super) fn grow_some(&self, count: u64) -> Result<()> {
        match self.arena.grow_some(count, self.file) {
            Ok(false) => Err(Error::StoreTimeout { doing: "making room for another policy".into(), waited_ms: 0 }),
            Ok(true) => Ok(()),
            Err(_) => self.grow(count),
        }
    }

    /// `count` zeroed words that nobody else has.
    pub(super) fn allocate(&self, count: u64) -> Result<u64> {
        loop {
            self.grow(count)?;
            // Somebody else, who needs no lock for it, may have taken the room: make more.
            if let Ok(at) = self.arena.allocate_reserved(count) {
                return Ok(at);
            }
        }
    }

    /// Where a key is, if it is known, after finishing what somebody died in.
    pub(super) fn find_or_mend(&self, table: &Table, hash: Hash) -> Option<KeyAt> {
        let found = match self.find(table, hash) {
            Err(_) => self.mend_key(table, hash).ok().and_then(|()| self.find(table, hash).ok()),
            found => found.ok(),
        };
        found.flatten()
    }
}
