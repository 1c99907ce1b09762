//! The memory of cells: a run of zeroed 64-bit words that can grow and never moves, on the heap or in a mapped file.
//!
//! Addresses are offsets in words, so that all processes share them. Word 0 is in the header, so 0 means "none".
//!
//! A file is mapped as far as it is used, and a little further. When it has grown beyond that, a larger view is mapped
//! in addition. The earlier view stays, because another thread may be reading there. On the heap, two views would be
//! two memories, so all address space is reserved at the start.

use crate::atomic::*;
use crate::damage::{fail, nonsense};
use crate::error::{Error, Result};
use crate::os;
use std::fs::File;
use std::ptr;
use std::sync::atomic::AtomicPtr;

/// The largest size of a store, in bytes.
pub(crate) const MAX_BYTES: u64 = if cfg!(target_pointer_width = "64") { 4 << 30 } else { 512 << 20 };

/// The smallest useful size of a store, in bytes.
pub(crate) const MIN_BYTES: u64 = 1 << 20;

/// The part of its memory limits that a store on the heap takes, where the process may have only so much address space
/// or so much locked memory.
const PART: u64 = 64;

/// The initial size of a store, in bytes.
pub(crate) const FIRST_BYTES: u64 = 256 << 10;

/// The most that a store grows at once, in bytes. Other callers wait while it grows.
const STEP: u64 = 16 << 20;

/// Blocks start on their own pair of cache lines, since words that two threads write must not share one.
const ALIGN_WORDS: u64 = 16;

/// The part of the allocated words that is reserved for the holder of the structure lock. With it, limits of a full
/// store can still be cleared, changed and written to the database.
fn reserve(allocated: u64) -> u64 {
    (allocated / 16).clamp(4 << 10, 1 << 20)
}

/// Words of the header that the arena itself uses.
pub(crate) const CURSOR: u64 = 11;
pub(crate) const ALLOCATED: u64 = 12;

/// The header's size, in words: one page.
pub(crate) const HEADER_WORDS: u64 = 512;

/// The words of one store.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Where the words are. Never older than `usable`: see [`Arena::widen`].
    base: AtomicPtr<u8>,
    /// The number of words that this process can touch. Other processes may have made more.
    usable: AtomicU64,
    /// The largest view. It links to the earlier ones.
    views: AtomicPtr<View>,
    /// The size in bytes up to which this process lets the store grow. Another process may have another bound.
    bound: u64,
}

/// A mapping of a store from its beginning.
#[derive(Debug)]
struct View {
    map: os::Mapping,
    /// The previous view. Views live as long as the arena.
    before: *mut View,
}

// SAFETY: views never change once they are published, and are only freed with the arena.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// The words of a store that were usable at some point.
#[derive(Clone, Copy)]
pub(crate) struct VisibleWords<'a>(&'a [AtomicU64]);

impl<'a> VisibleWords<'a> {
    /// All words from this one on.
    #[inline(always)]
    pub fn from(self, at: u64) -> Option<&'a [AtomicU64]> {
        self.0.get(at as usize..)
    }

    #[inline(always)]
    pub fn get(self, at: u64, count: u64) -> Option<&'a [AtomicU64]> {
        // Checked without a branch for an overflowing sum.
        let usable = self.0.len() as u64;
        if at > usable || count > usable - at {
            return None;
        }
        // SAFETY: as just checked.
        Some(unsafe { self.0.get_unchecked(at as usize..(at + count) as usize) })
    }
}

/// An allocation failed because the store must grow first, which takes the structure lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoSpace;

impl Arena {
    /// An arena on this process's heap, of at most so many bytes.
    pub fn on_heap(bound: u64) -> Result<Arena> {
        let map = reserve_heap(bound)?;
        let bound = bound.min(map.len() as u64);
        let mut arena = Arena::first(map)?;
        arena.set_bound(bound);
        arena.start();
        Ok(arena)
    }

    /// Lets this process make the store grow up to so many bytes. A store that is already larger stays so.
    pub fn set_bound(&mut self, bound: u64) {
        self.bound = bound;
    }

    /// The size in bytes up to which this process lets the store grow.
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// The number of words that were ever allocated.
    pub fn used(&self) -> u64 {
        self.word(CURSOR).load(Acquire)
    }

    /// The number of words that were never allocated, up to the bound, without the reserve.
    pub fn unallocated(&self) -> u64 {
        let [allocated, used] = [ALLOCATED, CURSOR].map(|word| self.word(word).load(Relaxed));
        let end = allocated.max(self.bound / 8);
        (end - reserve(end)).saturating_sub(used)
    }

    /// An arena in a file of which `allocated` words exist: see [`Arena::allocate_first`].
    pub fn in_file(file: &File, allocated: u64) -> Result<Arena> {
        let len = view_of(allocated);
        let mapped = |len| {
            let map = os::Mapping::reserve_file(file, len);
            map.map_err(|e| Error::store(format!("mapping {} KiB of a store", len >> 10), e))
        };
        let map = mapped(len)?;
        match map.larger(len) {
            // Some tools, such as valgrind, cannot map it a second time. Map the maximum at once.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Arena::first(mapped(MAX_BYTES as usize)?),
            _ => Arena::first(map),
        }
    }

    /// Only the mapped header of a file.
    pub fn header(map: os::Mapping) -> Arena {
        Arena::new(map, HEADER_WORDS)
    }

    fn new(map: os::Mapping, usable: u64) -> Arena {
        let base = AtomicPtr::new(map.base());
        let views = AtomicPtr::new(Box::into_raw(Box::new(View { map, before: ptr::null_mut() })));
        Arena { base, usable: AtomicU64::new(usable), views, bound: MAX_BYTES }
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

    /// An upper bound for the length of any list in the arena: each member has eight words or more.
    pub fn most(&self) -> u64 {
        self.word(ALLOCATED).load(Acquire).min(MAX_BYTES / 8) / 8
    }

    /// The number of words that this process uses. The file must have at least as many.
    pub fn usable(&self) -> u64 {
        self.usable.load(Acquire)
    }

    fn first(map: os::Mapping) -> Result<Arena> {
        let arena = Arena::new(map, 0);
        arena.use_up_to(FIRST_BYTES / 8).map_err(|e| Error::store("mapping a store", e))?;
        Ok(arena)
    }

    /// Makes the first `words` words usable in this process. They exist already.
    fn use_up_to(&self, words: u64) -> std::io::Result<()> {
        self.widen(words)?;
        self.view().map.commit(0, words as usize * 8)?;
        self.usable.fetch_max(words, AcqRel);
        Ok(())
    }

    /// Ensures that `words` words are mapped. Threads may do this at the same time, and one of them may be stopped
    /// halfway, so each helps the others. The values that they race for only grow.
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
                // SAFETY: no other thread has seen it.
                drop(unsafe { Box::from_raw(view) });
            }
        }
        // Before `usable` announces more words: a thread that reads `usable` then reads this base or a later one.
        loop {
            let (now, largest) = (self.base.load(Acquire), &self.view().map);
            let is_large = self.all_views().any(|view| view.map.base() == now && view.map.len() >= len);
            if is_large || self.base.compare_exchange(now, largest.base(), AcqRel, Acquire).is_ok() {
                return Ok(());
            }
        }
    }

    /// Allocates the first bytes of a new file.
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
        self.words(at, N as u64).first_chunk().expect("`words` returns the requested number")
    }

    /// The first words of a block that was accessed before.
    ///
    /// # Safety
    /// This arena has returned this many words at this place before.
    #[inline(always)]
    pub unsafe fn words_unchecked(&self, at: u64, count: u64) -> &[AtomicU64] {
        // SAFETY: usable words stay usable, in each view that is at `base` from then on.
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

    /// The words, as far as this process knows the store.
    #[inline(always)]
    pub fn get(&self, at: u64, count: u64) -> Option<&[AtomicU64]> {
        self.seen().get(at, count)
    }

    /// The part of the store that this process knows.
    #[inline(always)]
    pub fn seen(&self) -> VisibleWords<'_> {
        // Acquire: the base that is read next is then at least as new.
        let usable = self.usable.load(Acquire);
        // SAFETY: `base` points to a view, never to 0. Views live as long as `self` and are mapped up to `usable`. The
        // words are only ever used as atomics.
        VisibleWords(unsafe {
            let base = self.base.load(Relaxed).cast::<AtomicU64>();
            std::hint::assert_unchecked(!base.is_null());
            std::slice::from_raw_parts(base, usable as usize)
        })
    }

    /// Maps words that another process has added.
    #[cold]
    fn catch_up(&self, at: u64, count: u64) {
        let there = self.word(ALLOCATED).load(Acquire).min(MAX_BYTES / 8);
        if at > there || count > there - at {
            nonsense(format_args!("{count} words at {at} of {there}"));
        }
        let widened = self.widen(there);
        // Touching a mapped part that the file does not have would kill the process.
        if widened.is_ok() && self.view().map.is_there(there as usize * 8 - 1).is_err() {
            nonsense(format_args!("{there} words, of which the file has fewer"));
        }
        let used = widened.and_then(|()| self.use_up_to(there));
        used.unwrap_or_else(|e| fail(Error::store(format!("mapping {} KiB of a store", there >> 7), e)));
    }

    /// Allocates `count` zeroed words. Allocated words are never returned.
    pub fn allocate(&self, count: u64) -> Result<u64, NoSpace> {
        self.allocate_below(count, |allocated| allocated.saturating_sub(reserve(allocated)))
    }

    /// Allocates words, from the reserve if necessary. Only for the holder of the structure lock.
    pub fn allocate_reserved(&self, count: u64) -> Result<u64, NoSpace> {
        self.allocate_below(count, |allocated| allocated)
    }

    /// Returns whether an allocation that may not use the reserve would succeed now.
    pub fn has_space(&self, count: u64) -> bool {
        let [allocated, used] = [ALLOCATED, CURSOR].map(|word| self.word(word).load(Acquire));
        used.saturating_add(count + ALIGN_WORDS) <= allocated.saturating_sub(reserve(allocated))
    }

    /// Returns whether an allocation that may use the reserve would succeed now.
    pub fn has_reserve(&self, count: u64) -> bool {
        let [allocated, used] = [ALLOCATED, CURSOR].map(|word| self.word(word).load(Acquire));
        used.saturating_add(count + ALIGN_WORDS) <= allocated
    }

    /// The same for an allocation that leaves three quarters of the reserve.
    pub fn has_most_of_reserve(&self, count: u64) -> bool {
        let [allocated, used] = [ALLOCATED, CURSOR].map(|word| self.word(word).load(Acquire));
        used.saturating_add(count + ALIGN_WORDS) <= allocated.saturating_sub(reserve(allocated) / 4 * 3)
    }

    fn allocate_below(&self, count: u64, end: impl Fn(u64) -> u64) -> Result<u64, NoSpace> {
        let count = aligned(count);
        let mut at = self.word(CURSOR).load(Acquire);
        loop {
            if at.saturating_add(count) > end(self.word(ALLOCATED).load(Acquire)) {
                return Err(NoSpace);
            }
            match self.word(CURSOR).compare_exchange_weak(at, at + count, AcqRel, Acquire) {
                Ok(_) => return Ok(at),
                Err(now) => at = now,
            }
        }
    }

    /// Ensures space for `count` more words. Only for the holder of the structure lock; `file` is the arena's, if it
    /// has one.
    pub fn grow(&self, count: u64, file: Option<&File>) -> Result<()> {
        while !self.grow_some(count, file)? {}
        Ok(())
    }

    /// The same, beyond the bound if necessary.
    pub fn grow_beyond(&self, count: u64, file: Option<&File>) -> Result<()> {
        while !self.grow_up_to(MAX_BYTES, count, file)? {}
        Ok(())
    }

    /// Grows by [`STEP`] at most. Returns whether there is enough space then.
    pub fn grow_some(&self, count: u64, file: Option<&File>) -> Result<bool> {
        self.grow_up_to(self.bound, count, file)
    }

    fn grow_up_to(&self, bound: u64, count: u64, file: Option<&File>) -> Result<bool> {
        let (allocated, used) = (self.word(ALLOCATED).load(Acquire), self.word(CURSOR).load(Acquire));
        if file.is_some() && !is_size(allocated, used) {
            nonsense(format_args!("a lane of {allocated} words, {used} of them used"));
        }
        let have = self.word(ALLOCATED).load(Acquire) * 8;
        if self.has_space(count + ALIGN_WORDS) {
            return Ok(true);
        }
        let need = self.word(CURSOR).load(Acquire) + count + 2 * ALIGN_WORDS;
        // The reserve is a sixteenth of the whole at most.
        let need = (need + reserve(2 * need)) * 8;
        // Grow by half: some space in advance, but no large part of a small disk, and none beyond the bound.
        let want = need.max((have + (have / 2).min(STEP)).min(self.bound)).next_multiple_of(FIRST_BYTES);
        let want = want.min(bound);
        if need > want {
            let reason = format!("the store is full: its keys and limits can take {} at most", size(bound));
            return Err(Error::StoreFull { reason });
        }
        let want = want.min(have + STEP);
        match file {
            // First the step that other processes do not see if it fails.
            Some(file) => self.widen(want / 8).and_then(|()| os::allocate(file, have, want - have)),
            None => self.use_up_to(want / 8),
        }
        .map_err(|e| Error::store(format!("growing the store to {} KiB", want >> 10), e))?;
        self.word(ALLOCATED).store(want / 8, Release);
        Ok(want >= need)
    }
}

/// Returns whether a store can have this many words, of which this many are used.
pub(crate) fn is_size(allocated: u64, used: u64) -> bool {
    (FIRST_BYTES / 8..=MAX_BYTES / 8).contains(&allocated) && (HEADER_WORDS..=allocated).contains(&used)
}

/// How much is mapped of a file with this many words: the next power of two, so that all views together are less than
/// four times as large as the file.
fn view_of(words: u64) -> usize {
    (words * 8).next_power_of_two().max(4 * FIRST_BYTES) as usize
}

/// The number of words that an allocation takes.
pub(crate) fn aligned(count: u64) -> u64 {
    count.next_multiple_of(ALIGN_WORDS)
}

/// A number of bytes, for messages.
pub(crate) fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

/// Reserves address space on the heap: as much as the store can ever use, or less if the process is limited to less.
fn reserve_heap(bound: u64) -> Result<os::Mapping> {
    let part = |most: u64| (most / PART).clamp(MIN_BYTES, bound) as usize & !4095;
    let [space, locked] = os::address_space();
    let mut len = part(space.unwrap_or(u64::MAX));
    loop {
        match os::Mapping::reserve(len) {
            Ok(map) => return Ok(map),
            // After `mlockall(MCL_FUTURE)`, every mapping counts as locked, even before its memory is used.
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) && locked.is_some_and(|most| part(most) < len) => {
                len = part(locked.unwrap_or(0));
            }
            Err(_) if len as u64 > MIN_BYTES => len = (len / 2) & !4095,
            Err(e) => return Err(Error::store(format!("reserving {} MiB of address space", len >> 20), e)),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut at = *self.views.get_mut();
        while !at.is_null() {
            // SAFETY: made by `new` or `widen`, and no borrow is left.
            at = unsafe { Box::from_raw(at) }.before;
        }
    }
}
