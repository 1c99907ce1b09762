//! Where a lane has the heads of its lines. A store of one process has none: there, nobody waits elsewhere.

use super::home::Home;
use super::layout::{HEADS, LimitAt};
use crate::algorithm::heads::Heads;
use crate::atomic::*;
use crate::hash::Hash;
use crate::state::files::arena::HEADER_WORDS;

/// The number of lines that can be shown at the same time. Others take what is free.
const ENTRIES: u64 = 2_048;

impl Home {
    /// Allocates the table, in a new lane.
    pub(in crate::state) fn start_heads(&self) {
        let at = self.arena.allocate(Heads::words(ENTRIES)).expect("a new lane has space");
        self.arena.word(HEADS).store(at, Release);
    }

    /// The heads of the lines of all processes. Without entries on the heap, and in a lane that an earlier version made.
    pub fn heads(&self) -> Heads<'_> {
        let at = self.arena.word(HEADS).load(Acquire);
        Heads::new(self.arena.get(at, Heads::words(ENTRIES)).filter(|_| at >= HEADER_WORDS).unwrap_or(&[]))
    }
}

/// The name of a limit's key in the table.
pub(crate) fn name_of(limit: LimitAt, Hash([hash, _]): Hash) -> u64 {
    hash ^ limit.offset().wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
