//! Where cells live: a run of zeroed 64-bit words that can grow and never moves, on the heap or in a mapped file.
//!
//! Addresses are offsets in words, so that every process sees the same ones. Word 0 is in the header, so 0 means "none".
//!
//! A file is mapped as far as it is used, and a little further: when it has grown beyond that, a larger view of it is mapped
//! beside the one before, which stays, because somebody may be reading there. On the heap two views would be two memories:
//! there address space is reserved at once.

use super::damage::{fail, nonsense};
use super::os;
use crate::atomic::*;
use crate::error::{Error, Result};
use std::fs::File;
use std::ptr;
use std::sync::atomic::AtomicPtr;

/// The most that one store can hold, in bytes.
pub(crate) const MOST_BYTES: u64 = if cfg!(target_pointer_width = "64") { 4 << 30 } else { 512 << 20 };

/// The least that is worth starting with, in bytes of address space.
const LEAST_BYTES: usize = 1 << 20;

/// Where a process may only have so much address space, or lock so much memory, a store on its heap takes this part of it.
const PART: u64 = 64;

/// How a store starts, in bytes.
pub(crate) const FIRST_BYTES: u64 = 256 << 10;

/// By how much a store grows at once, in bytes: others wait for as long as that takes.
const STEP: u64 = 16 << 20;

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
    /// Where the words are. Never behind `usable`: see [`Arena::widen`].
    base: AtomicPtr<u8>,
    /// How many words this process can touch. Others may have made more.
    usable: AtomicU64,
    /// The largest view, and those before.
    views: AtomicPtr<View>,
}

/// A mapping of a store from its beginning.
#[derive(Debug)]
struct View {
    map: os::Mapping,
    /// The one before. Views live as long as the arena.
    before: *mut View,
}

// SAFETY: views never change once they are published, and are only freed with the arena.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// The words of a store that were usable at some time.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a>(&'a [AtomicU64]);

impl<'a> Seen<'a> {
    #[inline(always)]
    pub fn get(self, at: u64, count: u64) -> Option<&'a [AtomicU64]> {
        // (Without a branch for a sum that is too large.)
        let usable = self.0.len() as u64;
        if at > usable || count > usable - at {
            return None;
        }
        // SAFETY: as just checked.
        Some(unsafe { self.0.get_unchecked(at as usize..(at + count) as usize) })
    }
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

    /// An arena in a file of which so many words are allocated, see [`Arena::allocate_first`].
    pub fn in_file(file: &File, allocated: u64) -> Result<Arena> {
        let len = view_of(allocated);
        let mapped = |len| {
            let map = os::Mapping::reserve_file(file, len);
            map.map_err(|e| Error::store(format!("mapping {} KiB of a store", len >> 10), e))
        };
        let map = mapped(len)?;
        match map.larger(len) {
            // Tools such as valgrind do not map it a second time: so at once as much as a store can ever use.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Arena::first(mapped(MOST_BYTES as usize)?),
            _ => Arena::first(map),
        }
    }

    /// Only the header of a file, mapped.
    pub fn header(map: os::Mapping) -> Arena {
        Arena::new(map, HEADER_WORDS)
    }

    fn new(map: os::Mapping, usable: u64) -> Arena {
        let base = AtomicPtr::new(map.base());
        let views = AtomicPtr::new(Box::into_raw(Box::new(View { map, before: ptr::null_mut() })));
        Arena { base, usable: AtomicU64::new(usable), views }
    }

    fn view(&self) -> &View {
        // SAFETY: never null, and freed only with the arena.
        unsafe { &*self.views.load(Acquire) }
    }

    /// The views, the largest first.
    fn all_views(&self) -> impl Iterator<Item = &View> {
        // SAFETY: as above.
        std::iter::successors(Some(self.view()), |view| unsafe { view.before.as_ref() })
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
        let arena = Arena::new(map, 0);
        arena.use_up_to(FIRST_BYTES / 8).map_err(|e| Error::store("mapping a store", e))?;
        Ok(arena)
    }

    /// Makes the first `words` usable in this process. They exist.
    fn use_up_to(&self, words: u64) -> std::io::Result<()> {
        self.widen(words)?;
        self.view().map.commit(0, words as usize * 8)?;
        self.usable.fetch_max(words, AcqRel);
        Ok(())
    }

    /// Sees to it that so many words are in view. Threads may do so at the same time, and one of them may be stopped in it, so
    /// each helps the others; what they race for only grows.
    fn widen(&self, words: u64) -> std::io::Result<()> {
        let len = words as usize * 8;
        loop {
            let largest = self.views.load(Acquire);
            // SAFETY: as in `view`.
            let map = unsafe { &(*largest).map };
            if map.len() >= len {
                break;
            }
            let view = Box::into_raw(Box::new(View { map: map.larger(view_of(words))?, before: largest }));
            if self.views.compare_exchange(largest, view, AcqRel, Acquire).is_err() {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(view) });
            }
        }
        // Before `usable` says that there is more: whoever reads that reads this base or a later one.
        loop {
            let (now, largest) = (self.base.load(Acquire), &self.view().map);
            let is_large = self.all_views().any(|view| view.map.base() == now && view.map.len() >= len);
            if is_large || self.base.compare_exchange(now, largest.base(), AcqRel, Acquire).is_ok() {
                return Ok(());
            }
        }
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

    /// The first words of a block.
    #[inline(always)]
    pub fn array<const N: usize>(&self, at: u64) -> &[AtomicU64; N] {
        self.words(at, N as u64).first_chunk().expect("so many were asked for")
    }

    /// The same of words that were there once.
    ///
    /// # Safety
    /// This arena has answered so many words at this place before.
    #[inline(always)]
    pub unsafe fn words_unchecked(&self, at: u64, count: u64) -> &[AtomicU64] {
        // SAFETY: what was usable stays so, in each view that is at `base` from then on.
        unsafe {
            let base = self.base.load(Acquire).cast::<AtomicU64>();
            std::slice::from_raw_parts(base.add(at as usize), count as usize)
        }
    }

    #[inline(always)]
    pub fn words(&self, at: u64, count: u64) -> &[AtomicU64] {
        loop {
            match self.get(at, count) {
                Some(words) => return words,
                None => self.catch_up(at, count),
            }
        }
    }

    /// The same, as far as this process knows already that the store reaches.
    #[inline(always)]
    pub fn get(&self, at: u64, count: u64) -> Option<&[AtomicU64]> {
        self.seen().get(at, count)
    }

    /// What this process knows already of the store.
    #[inline(always)]
    pub fn seen(&self) -> Seen<'_> {
        // Acquire: so the base that is read next is at least as new.
        let usable = self.usable.load(Acquire);
        // SAFETY: views, which are not at 0, live as long as `self`, and are mapped as far as is usable. The words are only ever
        // used as atomics.
        Seen(unsafe {
            let base = self.base.load(Relaxed).cast::<AtomicU64>();
            std::hint::assert_unchecked(!base.is_null());
            std::slice::from_raw_parts(base, usable as usize)
        })
    }

    /// Somebody else has made the store larger.
    #[cold]
    fn catch_up(&self, at: u64, count: u64) {
        let there = self.word(ALLOCATED).load(Acquire).min(MOST_BYTES / 8);
        if at > there || count > there - at {
            nonsense(format_args!("{count} words at {at} of {there}"));
        }
        let widened = self.widen(there);
        // A part of a file that is not there kills whoever touches it.
        if widened.is_ok() && self.view().map.is_there(there as usize * 8 - 1).is_err() {
            nonsense(format_args!("{there} words, of which the file has fewer"));
        }
        let used = widened.and_then(|()| self.use_up_to(there));
        used.unwrap_or_else(|e| fail(Error::store(format!("mapping {} KiB of a store", there >> 7), e)));
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
        used.saturating_add(count + ALIGN_WORDS) <= allocated.saturating_sub(reserve(allocated))
    }

    /// Would one with it?
    pub fn has_reserve(&self, count: u64) -> bool {
        let [allocated, used] = [ALLOCATED, CURSOR].map(|word| self.word(word).load(Acquire));
        used.saturating_add(count + ALIGN_WORDS) <= allocated
    }

    fn allocate_below(&self, count: u64, end: impl Fn(u64) -> u64) -> Result<u64, NoRoom> {
        let count = count.next_multiple_of(ALIGN_WORDS);
        let mut at = self.word(CURSOR).load(Acquire);
        loop {
            if at.saturating_add(count) > end(self.word(ALLOCATED).load(Acquire)) {
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
        while !self.grow_some(count, file)? {}
        Ok(())
    }

    /// The same, by [`STEP`] at most: is there room?
    pub fn grow_some(&self, count: u64, file: Option<&File>) -> Result<bool> {
        let (allocated, used) = (self.word(ALLOCATED).load(Acquire), self.word(CURSOR).load(Acquire));
        if file.is_some() && !is_size(allocated, used) {
            nonsense(format_args!("a lane of {allocated} words, {used} of them used"));
        }
        let have = self.word(ALLOCATED).load(Acquire) * 8;
        if self.has_room(count + ALIGN_WORDS) {
            return Ok(true);
        }
        let need = self.word(CURSOR).load(Acquire) + count + 2 * ALIGN_WORDS;
        // What is reserved is a sixteenth of the whole at most.
        let need = (need + reserve(2 * need)) * 8;
        // By half: room ahead, but no great hole in a small disk.
        let want = need.max(have + (have / 2).min(STEP)).next_multiple_of(FIRST_BYTES);
        let most = if file.is_some() { MOST_BYTES } else { self.view().map.len() as u64 }.min(most_bytes());
        let want = want.min(most);
        if need > want {
            let reason = format!("the store is full: its keys and limits take {} MiB at most", most >> 20);
            return Err(Error::StoreFull { reason });
        }
        let want = want.min(have + STEP);
        match file {
            // First what others do not see, if it fails.
            Some(file) => self.widen(want / 8).and_then(|()| os::allocate(file, have, want - have)),
            None => self.use_up_to(want / 8),
        }
        .map_err(|e| Error::store(format!("growing the store to {} KiB", want >> 10), e))?;
        self.word(ALLOCATED).store(want / 8, Release);
        Ok(want >= need)
    }
}

/// Can a store have so many words, and so many of them used?
pub(crate) fn is_size(allocated: u64, used: u64) -> bool {
    (FIRST_BYTES / 8..=MOST_BYTES / 8).contains(&allocated) && (HEADER_WORDS..=allocated).contains(&used)
}

/// How much is mapped of a file of so many words: the next power of two, so that all views together are less than four
/// times as large as the file.
fn view_of(words: u64) -> usize {
    (words * 8).next_power_of_two().max(4 * FIRST_BYTES) as usize
}

/// Reserves address space on the heap: as much as a store can ever use, or less where the process may not have that much.
fn reserve_heap() -> Result<os::Mapping> {
    let part = |most: u64| (most / PART).clamp(LEAST_BYTES as u64, MOST_BYTES) as usize & !4095;
    let [space, locked] = os::address_space();
    let mut len = part(space.unwrap_or(u64::MAX));
    loop {
        match os::Mapping::reserve(len) {
            Ok(map) => return Ok(map),
            // After `mlockall(MCL_FUTURE)` all that is mapped counts as locked, also before it is memory.
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) && locked.is_some_and(|most| part(most) < len) => {
                len = part(locked.unwrap_or(0));
            }
            Err(_) if len > LEAST_BYTES => len /= 2,
            Err(e) => return Err(Error::store(format!("reserving {} MiB of address space", len >> 20), e)),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut at = *self.views.get_mut();
        while !at.is_null() {
            // SAFETY: made by `new` or `widen`; nobody borrows from it any more.
            at = unsafe { Box::from_raw(at) }.before;
        }
    }
}
