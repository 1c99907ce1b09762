//! Where cells live: a run of zeroed 64-bit words that can grow and never moves, on the heap or in a mapped file.
//!
//! Addresses are offsets in words, so that every process sees the same ones. Word 0 is in the header, so 0 means "none".

use super::damage::nonsense;
use super::os;
use crate::atomic::*;
use crate::error::{Error, Result};
use std::fs::File;

/// The most that one store can hold, in bytes. This much address space is reserved at once, so that nothing ever moves;
/// memory and disk are used as the store grows.
pub(crate) const MOST_BYTES: u64 = if cfg!(target_pointer_width = "64") { 4 << 30 } else { 512 << 20 };

/// The least that is worth starting with, in bytes of address space.
const LEAST_BYTES: usize = 16 << 20;

/// How a store starts, in bytes.
pub(crate) const FIRST_BYTES: u64 = 256 << 10;

/// Blocks start on their own pair of cache lines: what two threads write must not share one.
const ALIGN_WORDS: u64 = 16;

/// How much of so many words is kept for who holds the structure lock: also in a full store limits are cleared, changed
/// and written down.
fn reserve(allocated: u64) -> u64 {
    (allocated / 16).clamp(4 << 10, 1 << 20)
}

/// The most that a store may take, in bytes.
fn most_bytes() -> u64 {
    // A test does not fill gigabytes.
    #[cfg(feature = "fault-points")]
    if let Some(most) = std::env::var("WGL_TEST_MOST_BYTES").ok().and_then(|text| text.parse().ok()) {
        return most;
    }
    MOST_BYTES
}

/// Words of the header that the arena itself keeps.
pub(crate) const CURSOR: u64 = 11;
pub(crate) const ALLOCATED: u64 = 12;

/// The header's size, in words: one page.
pub(crate) const HEADER_WORDS: u64 = 512;

/// The words of one store.
#[derive(Debug)]
pub(crate) struct Arena {
    map: os::Mapping,
    /// How many words this process can touch. Others may have made more.
    usable: AtomicU64,
}

/// An allocation needs the store to grow first, which takes the structure lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

impl Arena {
    /// An arena on this process's heap.
    pub fn on_heap() -> Result<Arena> {
        let arena = Arena::first(reserve_heap()?)?;
        arena.start();
        Ok(arena)
    }

    /// An arena in a file whose first bytes are allocated already, see [`Arena::allocate_first`].
    pub fn in_file(file: &File) -> Result<Arena> {
        // All of it, whatever this process needs itself: others may make the lane larger.
        let map = os::Mapping::reserve_file(file, MOST_BYTES as usize)
            .map_err(|e| Error::store(format!("reserving {} MiB of address space", MOST_BYTES >> 20), e))?;
        Arena::first(map)
    }

    /// Only the header of a file, mapped.
    pub fn header(map: os::Mapping) -> Arena {
        Arena { map, usable: AtomicU64::new(HEADER_WORDS) }
    }

    /// No list in it has more members than this: each has eight words or more.
    pub fn most(&self) -> u64 {
        self.word(ALLOCATED).load(Acquire).min(MOST_BYTES / 8) / 8
    }

    /// How many words this process uses: so much of a file must be there.
    pub fn usable(&self) -> u64 {
        self.usable.load(Acquire)
    }

    fn first(map: os::Mapping) -> Result<Arena> {
        let arena = Arena { map, usable: AtomicU64::new(0) };
        arena.use_up_to(FIRST_BYTES / 8).map_err(|e| Error::store("mapping a store", e))?;
        Ok(arena)
    }

    /// Makes the first `words` usable in this process. They exist.
    fn use_up_to(&self, words: u64) -> std::io::Result<()> {
        self.map.commit(0, words as usize * 8)?;
        self.usable.fetch_max(words, AcqRel);
        Ok(())
    }

    /// Gives a new file its first bytes.
    pub fn allocate_first(file: &File) -> std::io::Result<()> {
        os::allocate(file, 0, FIRST_BYTES)
    }

    /// Marks a zeroed arena as empty.
    pub fn start(&self) {
        self.word(CURSOR).store(HEADER_WORDS, Release);
        self.word(ALLOCATED).store(FIRST_BYTES / 8, Release);
    }

    #[inline(always)]
    pub fn word(&self, at: u64) -> &AtomicU64 {
        &self.words(at, 1)[0]
    }

    #[inline(always)]
    pub fn words(&self, at: u64, count: u64) -> &[AtomicU64] {
        if at.saturating_add(count) > self.usable.load(Relaxed) {
            self.catch_up(at, count);
        }
        // SAFETY: the range is usable, as just checked, and the mapping lives as long as `self`. The words are only ever
        // used as atomics.
        unsafe { std::slice::from_raw_parts(self.map.base().cast::<AtomicU64>().add(at as usize), count as usize) }
    }

    /// Somebody else has made the store larger.
    #[cold]
    fn catch_up(&self, at: u64, count: u64) {
        let there = self.word(ALLOCATED).load(Acquire).min(self.map.len() as u64 / 8);
        // A part of a file that is not there kills whoever touches it.
        if at > there || count > there - at || self.map.is_there(there as usize * 8 - 1).is_err() {
            nonsense(format_args!("{count} words at {at} of {there}"));
        }
        self.use_up_to(there).expect("the system lets a process use memory that it has mapped");
    }

    /// `count` zeroed words that nobody else has. What is allocated is never given back.
    pub fn allocate(&self, count: u64) -> Result<u64, NoRoom> {
        self.allocate_below(count, |allocated| allocated.saturating_sub(reserve(allocated)))
    }

    /// The same, if need be from the reserve. Only for the holder of the structure lock.
    pub fn allocate_reserved(&self, count: u64) -> Result<u64, NoRoom> {
        self.allocate_below(count, |allocated| allocated)
    }

    /// Would an allocation without the reserve find room now?
    pub fn has_room(&self, count: u64) -> bool {
        let [allocated, used] = [ALLOCATED, CURSOR].map(|word| self.word(word).load(Acquire));
        used + count + ALIGN_WORDS <= allocated.saturating_sub(reserve(allocated))
    }

    /// Would one with it?
    pub fn has_reserve(&self, count: u64) -> bool {
        let [allocated, used] = [ALLOCATED, CURSOR].map(|word| self.word(word).load(Acquire));
        used + count + ALIGN_WORDS <= allocated
    }

    fn allocate_below(&self, count: u64, end: impl Fn(u64) -> u64) -> Result<u64, NoRoom> {
        let count = count.next_multiple_of(ALIGN_WORDS);
        let mut at = self.word(CURSOR).load(Acquire);
        loop {
            if at + count > end(self.word(ALLOCATED).load(Acquire)) {
                return Err(NoRoom);
            }
            match self.word(CURSOR).compare_exchange_weak(at, at + count, AcqRel, Acquire) {
                Ok(_) => return Ok(at),
                Err(now) => at = now,
            }
        }
    }

    /// Makes room for `count` more words. Only for the holder of the structure lock; `file` is the arena's, if it has one.
    pub fn grow(&self, count: u64, file: Option<&File>) -> Result<()> {
        let (allocated, used) = (self.word(ALLOCATED).load(Acquire), self.word(CURSOR).load(Acquire));
        if file.is_some() && !is_size(allocated, used) {
            nonsense(format_args!("a lane of {allocated} words, {used} of them used"));
        }
        let have = self.word(ALLOCATED).load(Acquire) * 8;
        if self.has_room(count + ALIGN_WORDS) {
            return Ok(());
        }
        let need = self.word(CURSOR).load(Acquire) + count + 2 * ALIGN_WORDS;
        // What is reserved is a sixteenth of the whole at most.
        let need = (need + reserve(2 * need)) * 8;
        // By half, at most 16 MiB at a time: room ahead, but no great hole in a small disk.
        let want = need.max(have + (have / 2).min(16 << 20)).next_multiple_of(FIRST_BYTES);
        let most = most_bytes().min(self.map.len() as u64);
        let want = want.min(most);
        if need > want {
            let reason = format!("the store is full: its keys and limits take {} MiB at most", most >> 20);
            return Err(Error::StoreFull { reason });
        }
        match file {
            Some(file) => os::allocate(file, have, want - have),
            None => self.use_up_to(want / 8),
        }
        .map_err(|e| Error::store(format!("growing the store to {} KiB", want >> 10), e))?;
        self.word(ALLOCATED).store(want / 8, Release);
        Ok(())
    }
}

/// Can a store have so many words, and so many of them used?
pub(crate) fn is_size(allocated: u64, used: u64) -> bool {
    (FIRST_BYTES / 8..=MOST_BYTES / 8).contains(&allocated) && (HEADER_WORDS..=allocated).contains(&used)
}

/// Reserves address space: as much as a store can ever use, or less where the process may not have that much.
fn reserve_heap() -> Result<os::Mapping> {
    let mut len = MOST_BYTES as usize;
    loop {
        match os::Mapping::reserve(len) {
            Ok(map) => return Ok(map),
            Err(_) if len > LEAST_BYTES => len /= 2,
            Err(e) => return Err(Error::store(format!("reserving {} MiB of address space", len >> 20), e)),
        }
    }
}
