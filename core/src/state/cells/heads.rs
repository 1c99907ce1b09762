//! Where a lane has the heads of its lines. A store of one process has none: there, nobody waits elsewhere.
//!
//! A limit that tenants share has its own, in a store of one process, too: its tenants wait in lines of their own.

use super::home::Home;
use super::layout::{At, FREE_TENANTS, HEADS, LimitAt, limit_word};
use super::locked::Locked;
use crate::algorithm::heads::Heads;
use crate::algorithm::shares::{SLOT_WORDS, Shares};
use crate::atomic::*;
use crate::error::Result;
use crate::hash::Hash;
use crate::state::files::arena::HEADER_WORDS;

/// The number of lines that can be shown at the same time. Others take what is free.
const ENTRIES: u64 = 2_048;

/// The same for the lines of a limit's tenants.
const TENANTS_LINES: u64 = 512;

/// For how many tenants a limit knows at the same time what they have had.
const TENANTS: u64 = 1_024;

/// The words of a shared limit: its virtual time; the bell of its lines, and who sleeps there; tenants; heads.
const NOW: usize = 0;
const BELL: usize = 1;
const SLEEPERS: usize = 2;
const SLOTS: u64 = 8;
const LINES: u64 = SLOTS + TENANTS * SLOT_WORDS;
pub(in crate::state) const WORDS: u64 = LINES + Heads::words_of_tenants(TENANTS_LINES);

/// The tenants of a limit, as its waiters see them.
#[derive(Clone, Copy)]
pub(crate) struct Tenants<'a> {
    /// The heads of their lines.
    pub heads: Heads<'a>,
    /// What those sleep at that wait for time, and their number.
    pub bell: &'a AtomicU64,
    pub sleepers: &'a AtomicU64,
}

impl Locked<'_> {
    /// Gives a new limit the words that its tenants need: those of a limit that was forgotten, or new ones.
    pub(in crate::state) fn start_tenants(&self, limit: LimitAt) -> Result<()> {
        let used = self.take_free::<()>(FREE_TENANTS);
        if let Some(used) = used {
            self.arena.words(used.offset(), WORDS).iter().for_each(|word| word.store(0, Release));
        }
        let at = used.map_or_else(|| self.allocate(WORDS), Ok)?;
        self.arena.word(limit + limit_word::TENANTS).store(at.offset(), Release);
        Ok(())
    }
}

impl Locked<'_> {
    /// Keeps the words of a limit that is forgotten for another one. (A line of its that is late shows a waiter in the other
    /// limit's table. That costs order, or 50 ms, as any wrong word there.)
    pub(in crate::state) fn end_tenants(&self, limit: LimitAt) {
        // Whoever dies after this leaves the words unused.
        let at = self.arena.word(limit + limit_word::TENANTS).swap(0, AcqRel);
        if at >= HEADER_WORDS && self.arena.get(at, WORDS).is_some() {
            self.set_free(FREE_TENANTS, At::<()>::new(at));
        }
    }
}

impl Home {
    /// The tenants of a limit, in which a start takes at most `capacity` units. `None` if it is not shared.
    pub fn tenants(&self, limit: LimitAt, capacity: u64) -> Option<Tenants<'_>> {
        let at = self.arena.word(limit + limit_word::TENANTS).load(Acquire);
        let words = self.arena.get(at, WORDS).filter(|_| at >= HEADER_WORDS)?;
        let (slots, lines) = (&words[SLOTS as usize..LINES as usize], &words[LINES as usize..]);
        let shares = Shares::new(&words[NOW], slots, capacity);
        let heads = Heads::of_tenants(lines, shares);
        Some(Tenants { heads, bell: &words[BELL], sleepers: &words[SLEEPERS] })
    }

    /// Frees what dead processes have left in all tables.
    pub(in crate::state) fn sweep_heads(&self, is_gone: impl Fn(u64) -> bool) {
        self.heads().sweep(&is_gone);
        let shared = self.limits().filter_map(|limit| self.tenants(limit, 1));
        shared.for_each(|tenants| tenants.heads.sweep(&is_gone));
    }

    /// Forgets the lines of all limits' tenants: in a forked child they are the parent's.
    pub(in crate::state) fn forget_lines_of_tenants(&self) {
        for limit in self.limits() {
            let at = self.arena.word(limit + limit_word::TENANTS).load(Acquire);
            let lines = self.arena.get(at, WORDS).filter(|_| at >= HEADER_WORDS).map(|words| &words[LINES as usize..]);
            lines.into_iter().flatten().for_each(|word| word.store(0, Relaxed));
        }
    }

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
