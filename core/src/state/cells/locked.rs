//! The token of the holder of the structure lock.

use super::home::{Home, KeyAt, Table};
use super::layout::At;
use crate::error::{Error, Result};
use crate::hash::Hash;
use std::fs::File;
use std::ops::Deref;

/// The right to make structural changes in one home. Operations that need the structure lock are methods of this token.
#[derive(Clone, Copy)]
pub(crate) struct Locked<'a> {
    pub home: &'a Home,
    /// The lane's file, for growing it. `None` on the heap.
    file: Option<&'a File>,
}

impl Deref for Locked<'_> {
    type Target = Home;

    fn deref(&self) -> &Home {
        self.home
    }
}

impl<'a> Locked<'a> {
    /// For a home that is not published yet, or whose structure lock the caller holds for as long as this token lives.
    pub(in crate::state) fn new(home: &'a Home, file: Option<&'a File>) -> Locked<'a> {
        Locked { home, file }
    }

    /// Makes space for `count` more words, for new keys.
    pub(in crate::state) fn grow_for_keys(&self, count: u64) -> Result<()> {
        self.arena.grow(count, self.file)
    }

    /// Makes space for `count` more words, from the reserve if necessary.
    pub(in crate::state) fn grow(&self, count: u64) -> Result<()> {
        self.grow_for_keys(count).or_else(|full| if self.arena.has_reserve(count) { Ok(()) } else { Err(full) })
    }

    /// Makes space for `count` more words, whatever the bound.
    pub(in crate::state) fn grow_beyond(&self, count: u64) -> Result<()> {
        self.grow_for_keys(count).or_else(|_| self.arena.grow_beyond(count, self.file))
    }

    /// Makes space a part at a time. If more is needed than others should wait for, it fails; the caller must release
    /// the lock and try again.
    pub(in crate::state) fn grow_some(&self, count: u64) -> Result<()> {
        match self.arena.grow_some(count, self.file) {
            Ok(false) => Err(Error::busy("making space for another policy")),
            Ok(true) => Ok(()),
            Err(_) => self.grow(count),
        }
    }

    /// Allocates `count` zeroed words.
    pub(in crate::state) fn allocate<Words>(&self, count: u64) -> Result<At<Words>> {
        loop {
            self.grow(count)?;
            // Another caller, which needs no lock for it, may have taken the space. Make more.
            if let Ok(at) = self.arena.allocate_reserved(count) {
                return Ok(At::new(at));
            }
        }
    }

    /// The place of a known key, after completing any interrupted rewrite of it.
    pub(in crate::state) fn find_or_repair(&self, table: &Table, hash: Hash) -> Option<KeyAt> {
        let found = match self.index(table).find(hash) {
            Err(_) => self.repair_key(table, hash).ok().and_then(|()| self.index(table).find(hash).ok()),
            found => found.ok(),
        };
        found.flatten()
    }
}
