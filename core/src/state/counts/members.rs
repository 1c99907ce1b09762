//! The users of a lane, for observers: its processes, and how many callers wait in each. Decisions do not depend on
//! this.
//!
//! Both tables are bounded. If there are more processes or waits than fit, some are not shown. The entry of a process
//! that has ended is ignored, and freed when the next process arrives.

use crate::atomic::*;
use crate::snapshot::ProcessSnapshot;
use crate::state::cells::home::Home;
use crate::state::cells::layout::{LimitAt, MEMBERS, WAITERS};
use crate::state::files::arena::HEADER_WORDS;
use crate::time::from_ticks;

/// The number of processes that are listed.
const PROCESSES: u64 = 256;
/// A process's member number, process id and arrival time, and as much of its program's name as fits.
const PROCESS_WORDS: u64 = 8;
const NAME: u64 = 3;

/// The number of entries of limits on which callers of a process wait, and the number of positions in which an entry
/// may be.
const WAITS: u64 = 1_024;
const WAIT_WORDS: u64 = 2;
const PROBES: u64 = 16;

/// The name of an entry: the limit below this bit, the process above it. (No lane has that many words or processes.)
const MEMBER: u32 = 29;

/// The number of callers takes 32 bits. The bits above hold the process that wrote it.
const TAG: u32 = 32;

/// The tables of a lane's users.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Members<'h>(&'h Home);

impl Home {
    pub fn members(&self) -> Members<'_> {
        Members(self)
    }
}

impl<'h> Members<'h> {
    /// Allocates both tables, in a new lane.
    pub(in crate::state) fn start(self) {
        for (word, words) in [(MEMBERS, PROCESSES * PROCESS_WORDS), (WAITERS, WAITS * WAIT_WORDS)] {
            let at = self.0.arena.allocate(words).expect("a new lane has space");
            self.0.arena.word(word).store(at, Release);
        }
    }

    /// A table, if it is in its place.
    fn entries_at(self, word: u64, words: u64) -> &'h [AtomicU64] {
        let at = self.0.arena.word(word).load(Acquire);
        self.0.arena.get(at, words).filter(|_| at >= HEADER_WORDS).unwrap_or(&[])
    }

    fn entries(self) -> impl Iterator<Item = &'h [AtomicU64]> {
        self.entries_at(MEMBERS, PROCESSES * PROCESS_WORDS).chunks_exact(PROCESS_WORDS as usize)
    }

    fn waits(self) -> &'h [AtomicU64] {
        self.entries_at(WAITERS, WAITS * WAIT_WORDS)
    }

    /// Lists a new process, and frees the entries of processes that have ended. Only for the holder of the structure
    /// lock.
    pub(in crate::state) fn enter(self, number: u64, is_gone: impl Fn(u64) -> bool) {
        for entry in self.waits().chunks_exact(WAIT_WORDS as usize) {
            let name = entry[0].load(Acquire);
            if name != 0 && is_gone(name >> MEMBER) {
                entry[0].store(0, Release);
            }
        }
        let is_free = |entry: &&[AtomicU64]| match entry[0].load(Acquire) {
            0 => true,
            other => is_gone(other),
        };
        let Some(entry) = self.entries().find(is_free) else { return };
        // A reader accepts an entry if its number is the same before and after.
        entry[0].store(0, Release);
        entry[1].store(std::process::id().into(), Release);
        entry[2].store(self.0.clock.now().floor, Release);
        let mut name = program().into_bytes();
        name.resize(8 * (PROCESS_WORDS - NAME) as usize, 0);
        for (word, bytes) in entry[NAME as usize..].iter().zip(name.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().expect("eight bytes")), Release);
        }
        entry[0].store(number, Release);
    }

    /// The processes that use the lane.
    pub fn processes(self) -> Vec<ProcessSnapshot> {
        self.numbered().map(|(_, process)| process).collect()
    }

    /// The same, with the number that each has there.
    pub fn numbered(self) -> impl Iterator<Item = (u64, ProcessSnapshot)> {
        let now = self.0.clock.now().floor;
        let read = move |entry: &'h [AtomicU64]| {
            let number = entry[0].load(Acquire);
            let [pid, since] = [1, 2].map(|i: usize| entry[i].load(Acquire));
            let words = entry[NAME as usize..].iter();
            let name: Vec<u8> =
                words.flat_map(|word| word.load(Acquire).to_le_bytes()).take_while(|b| *b != 0).collect();
            let is_there = number != 0 && !self.0.is_dead(number) && entry[0].load(Acquire) == number;
            let process = || ProcessSnapshot {
                pid: pid as u32,
                program: String::from_utf8_lossy(&name).into_owned(),
                since: from_ticks(now.saturating_sub(since)),
            };
            is_there.then(|| (number, process()))
        };
        self.entries().filter_map(read)
    }

    /// Changes the number of callers of this process that wait for a limit.
    pub fn waits_more(self, limit: LimitAt, member: u64, by: i64) {
        let name = member << MEMBER | limit.offset();
        let Some(entry) = self.entry_of(name) else { return };
        let tag = member << TAG;
        let more = |word: u64| {
            // Leftovers of another process do not count.
            let count = if word >> TAG == tag >> TAG { word as u32 } else { 0 };
            let by = i32::try_from(by).unwrap_or(0);
            tag | u64::from(count.saturating_add_signed(by))
        };
        let before = entry[1].fetch_update(AcqRel, Acquire, |word| Some(more(word)));
        // A caller that arrives at this moment may not be shown.
        if before.is_ok_and(|word| more(word) == tag) && entry[1].compare_exchange(tag, 0, AcqRel, Acquire).is_ok() {
            entry[0].store(0, Release);
        }
    }

    /// The entry with this name, which is created if there is space. Only its own process searches for it, and frees it
    /// when no caller waits.
    fn entry_of(self, name: u64) -> Option<&'h [AtomicU64]> {
        let all = self.waits();
        let first = name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let entry = |probe: u64| {
            let at = ((first + probe) % WAITS * WAIT_WORDS) as usize;
            all.get(at..at + WAIT_WORDS as usize)
        };
        let found = (0..PROBES).filter_map(entry).find(|entry| entry[0].load(Acquire) == name);
        // Two threads of a process may create two. Both count.
        found.or_else(|| {
            let is_made = |entry: &&[AtomicU64]| {
                entry[0].load(Relaxed) == 0 && entry[0].compare_exchange(0, name, AcqRel, Acquire).is_ok()
            };
            (0..PROBES).filter_map(entry).find(is_made)
        })
    }

    /// The number of waiting callers of each limit, in living processes.
    pub fn waiting(self) -> std::collections::HashMap<LimitAt, u64> {
        let mut all = std::collections::HashMap::new();
        self.each_waiting(|limit, _, count| *all.entry(limit).or_insert(0) += count);
        all
    }

    /// Shows the number of callers that wait for a limit in a process, by the process's number.
    pub fn each_waiting(self, mut see: impl FnMut(LimitAt, u64, u64)) {
        let mut is_dead = std::collections::HashMap::new();
        for entry in self.waits().chunks_exact(WAIT_WORDS as usize) {
            let (name, word) = (entry[0].load(Acquire), entry[1].load(Acquire));
            let (limit, member) = (LimitAt::new(name & ((1 << MEMBER) - 1)), name >> MEMBER);
            let is_its = name != 0 && word >> TAG == member & u64::from(u32::MAX) && word as u32 != 0;
            if is_its && !*is_dead.entry(member).or_insert_with(|| self.0.is_dead(member)) {
                see(limit, member, u64::from(word as u32));
            }
        }
    }
}

/// The name of this program: for a script, the script's name rather than its interpreter's.
fn program() -> String {
    let arguments = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let mut words = arguments.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let last =
        |word: &[u8]| String::from_utf8_lossy(word.rsplit(|byte| *byte == b'/').next().unwrap_or(word)).into_owned();
    let mut name = last(words.next().unwrap_or(b"?"));
    if name.starts_with("python") || name.starts_with("node") {
        let script = words.find(|word| !word.starts_with(b"-")).map(last);
        name = script.map_or(name.clone(), |script| format!("{name} {script}"));
    }
    let mut end = name.len().min(8 * (PROCESS_WORDS - NAME) as usize);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}
