//! A key's block: its cells, and the other facts about its key.

use super::home::{Home, KeyAt, Table};
use super::layout::{BlockAt, PHASE, TableAt, key_word};
use crate::algorithm::Sealed;
use crate::algorithm::bucket::Bucket;
use crate::algorithm::cells::Cells;
use crate::algorithm::counter::{Counter, Frame, Past};
use crate::algorithm::grants::Grants;
use crate::algorithm::jobs::Jobs;
use crate::algorithm::leases::Leases;
use crate::algorithm::log::{Log, Window};
use crate::algorithm::meter::Meter;
use crate::algorithm::slices::Slices;
use crate::atomic::*;
use crate::damage::nonsense;
use crate::decision::LOOK_AGAIN;
use crate::hash::Hash;
use crate::policy::Shape;
use crate::state::files::arena::VisibleWords;
use crate::time::{Tick, from_ticks, monotonic_ns, uptime};
use std::time::Duration;

/// A key's head and its ring.
pub(crate) type Block<'a> = (&'a Head, &'a [AtomicU64]);

/// The head of a key's block.
pub(crate) type Head = [AtomicU64; 32];

const _: () = assert!(key_word::RING == 32);

/// The word `STUCK` has the time in milliseconds above these bits, which is never further ahead than [`STUCK_MOST`]; below it some bits
/// of the life, and the binary logarithm of the number of slots.
const STUCK_LIFE: u32 = 20;
const STUCK_RING: u32 = 6;
const STUCK_RINGS: u64 = (1 << STUCK_RING) - 1;
const STUCK_LIVES: u64 = ((1 << STUCK_LIFE) - 1) & !STUCK_RINGS;
const STUCK_MOST: u64 = 10_000;

/// The words of a key's block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockCells<'h> {
    pub(in crate::state) home: &'h Home,
    pub(in crate::state) at: BlockAt,
}

impl Home {
    #[inline(always)]
    pub fn block(&self, at: BlockAt) -> BlockCells<'_> {
        BlockCells { home: self, at }
    }
}

impl<'h> BlockCells<'h> {
    #[inline(always)]
    pub(in crate::state) fn word(self, word: u64) -> &'h AtomicU64 {
        self.home.arena.word(self.at + word)
    }

    /// The head of the block.
    #[inline(always)]
    pub fn head(self) -> &'h Head {
        self.home.arena.array(self.at.offset())
    }

    /// The block: its head, and its ring.
    #[inline(always)]
    pub fn parts(self, table: &Table) -> Block<'h> {
        let words = self.words(table);
        words.split_first_chunk().unwrap_or_else(|| nonsense(format_args!("no ring at {}", self.at)))
    }

    /// The block as one slice.
    #[inline(always)]
    pub fn words(self, table: &Table) -> &'h [AtomicU64] {
        // (A key keeps its ring when its policy changes. Of other cells, all have one size.)
        let ring = if table.is_log { self.ring() } else { table.ring };
        if ring < table.first_ring {
            nonsense(format_args!("a ring of {ring} words at {}", self.at));
        }
        self.home.arena.words(self.at.offset(), key_word::RING + ring)
    }

    /// The number of words of its ring. 0: it has none, or was never used.
    #[inline(always)]
    pub fn ring(self) -> u64 {
        ring_in(self.head())
    }

    /// Notes that its ring cannot grow to so many slots, for so many milliseconds of this life. (A word that is lost, or that belongs
    /// to another life by now, costs one more attempt.)
    pub(in crate::state) fn set_stuck(self, life: u64, ring: u64, for_ms: u64) {
        let until = monotonic_ms() + for_ms.min(STUCK_MOST);
        let of = ((life << STUCK_RING) & STUCK_LIVES) | u64::from(ring.ilog2());
        self.word(key_word::STUCK).store(until << STUCK_LIFE | of, Relaxed);
    }

    /// Returns whether its ring cannot grow to so many slots for now, in this life of its cells.
    pub(in crate::state) fn is_stuck(self, life: u64, ring: u64) -> bool {
        let word = self.word(key_word::STUCK).load(Relaxed);
        // Another life may have left it, or a reboot.
        let left = (word >> STUCK_LIFE).wrapping_sub(monotonic_ms());
        let is_of = (word ^ (life << STUCK_RING)) & STUCK_LIVES == 0;
        is_of && (1..=STUCK_MOST).contains(&left) && u64::from(ring.ilog2()) >= word & STUCK_RINGS
    }

    /// Returns whether it was never used.
    pub(in crate::state) fn is_new(self) -> bool {
        table_in(self.head()).offset() == 0
    }

    /// Makes it a block of a table, with the ring that it has.
    pub(in crate::state) fn set_table(self, table: &Table) {
        // A new block without a size is one for a new key.
        let ring = match self.ring() {
            0 if !self.is_stub() => table.first_ring,
            ring => ring,
        };
        self.word(key_word::TABLE).store(ring << key_word::SIZE | table.at.offset(), Release);
    }

    /// The hash of its key.
    #[inline(always)]
    pub fn hash(self) -> Hash {
        hash_in(self.head())
    }

    /// The gate of its key: until when it is closed.
    pub fn gate(self) -> Tick {
        self.word(key_word::GATE).load(Acquire) & !key_word::IS_AWAITED
    }

    /// Closes the gate of its key until then, or longer.
    pub(in crate::state) fn close_gate(self, until: Tick) {
        let close = |word: u64| Some(word & key_word::IS_AWAITED | (word & !key_word::IS_AWAITED).max(until));
        let _ = self.word(key_word::GATE).fetch_update(AcqRel, Acquire, close);
    }

    /// Opens it.
    pub(in crate::state) fn open_gate(self) {
        self.word(key_word::GATE).fetch_and(key_word::IS_AWAITED, AcqRel);
    }

    /// Notes for all callers that somebody waits for its key. (It may get lost if the block is written elsewhere at this moment.
    /// So each line notes it again when it looks.)
    pub fn await_key(self) {
        let word = self.word(key_word::GATE);
        // `Heads::show` had a fence: either this load sees that another has removed the mark, or that one sees the head.
        if word.load(Acquire) & key_word::IS_AWAITED == 0 {
            word.fetch_or(key_word::IS_AWAITED, AcqRel);
        }
    }

    /// Removes that note, unless it turns out that somebody waits, who may have found the note there.
    pub fn await_key_no_more(self, is_awaited: impl Fn() -> bool) {
        let word = self.word(key_word::GATE);
        if word.load(Acquire) & key_word::IS_AWAITED != 0 {
            word.fetch_and(!key_word::IS_AWAITED, AcqRel);
            // `Heads::show` had the other fence: either this look sees the head, or `await_key` sees that the mark is gone.
            fence(SeqCst);
            if is_awaited() {
                word.fetch_or(key_word::IS_AWAITED, AcqRel);
            }
        }
    }

    /// Returns whether it has no cells: see `keyed.rs`.
    pub(in crate::state) fn is_stub(self) -> bool {
        self.word(key_word::IS_STUB).load(Acquire) != 0
    }

    /// The table that applies to its key, in the index of this table. For the holder of the structure lock.
    pub(in crate::state) fn table(self, table: &Table) -> Table {
        match table_in(self.head()) {
            at if at == table.at => *table,
            at => self.home.table_at(at),
        }
    }

    /// The readable key. Long ones are cut and end in an ellipsis.
    pub(in crate::state) fn text(self) -> String {
        let words: [u64; key_word::TEXT_WORDS as usize] = self.home.get(self.at + key_word::TEXT);
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let end = 2 + usize::from(bytes[0]).min(bytes.len() - 2);
        let text = String::from_utf8_lossy(&bytes[2..end]).into_owned();
        if bytes[1] != 0 { text + "…" } else { text }
    }

    /// The cells, whatever their life. For the holder of the structure lock.
    pub fn cells(self, table: &'h Table) -> Cells<'h> {
        let life = self.word(key_word::LIFE).load(Acquire);
        self.home.cells(table, KeyAt { at: self.at, life, table: table.at })
    }

    /// The job durations of its key, if its starts are spaced by them.
    #[inline(always)]
    pub fn jobs(self, table: &Table) -> Option<Jobs<'h>> {
        if !table.is_adaptive {
            return None;
        }
        let Shape::EvenlySpaced(spacing) = &table.policy.0 else { return None };
        let ring = spacing
            .is_adaptive
            .then(|| self.home.arena.words(self.at + key_word::RING + table.ring, spacing.jobs()))?;
        let (ended, spacing) = (self.word(key_word::JOBS), self.word(key_word::SPACING));
        Some(Jobs { ended, spacing, ring })
    }

    /// See [`TableCells::own_of`](super::table::TableCells::own_of).
    pub fn adapt(self, table: &mut Table) {
        if let Shape::EvenlySpaced(spacing) = &mut table.policy.0
            && spacing.is_adaptive
            && let apart @ 1.. = self.word(key_word::SPACING).load(Acquire)
        {
            *spacing = spacing.apart(apart - 1);
            table.windows = *table.policy.all_windows();
        }
    }

    /// Returns whether the key can be forgotten without any effect.
    pub(in crate::state) fn is_idle(self, table: &Table) -> bool {
        let now = self.home.clock.now();
        self.cells(table).is_idle(table.policy.longest(), now, uptime) && !self.is_gated(table, now.floor)
    }

    /// Returns whether starts of the key are blocked: by its own gate; or by the limit's gate, if forgetting the key
    /// would lose its backoff, which only the next start resets.
    pub(in crate::state) fn is_gated(self, table: &Table, now: Tick) -> bool {
        let has_level = matches!(table.policy.0, Shape::Rate(..)) && self.word(key_word::BACKOFF).load(Acquire) != 0;
        let limit = || self.home.limit(self.home.of(table).limit());
        self.gate() > now || has_level && limit().gate().load(Acquire) > now
    }

    /// Publishes a block that was closed and rewritten, with the result of [`Cells::write`].
    pub(in crate::state) fn publish(self, table: &Table, base: u64) -> KeyAt {
        let life = if table.is_sliced {
            base
        } else {
            self.word(key_word::BASE).store(base, Release);
            self.home.new_number()
        };
        self.word(key_word::LIFE).store(life, Release);
        KeyAt { at: self.at, life, table: table.at }
    }
}

impl Home {
    /// Returns whether a block still has the life in which it was found.
    #[inline(always)]
    pub fn is_alive(&self, key: KeyAt) -> bool {
        self.block(key.at).word(key_word::LIFE).load(Acquire) == key.life
    }

    /// How windows aligned to 1970 are divided.
    #[inline(always)]
    pub(in crate::state) fn frame(&self, window: Window, is_smooth: bool) -> Frame {
        let phase = self.arena.word(PHASE).load(Relaxed);
        Frame { limit: window.limit, length: window.length, is_smooth, phase }
    }

    /// The cells of a key, whatever its algorithm.
    pub fn cells<'h>(&'h self, table: &'h Table, key: KeyAt) -> Cells<'h> {
        let block = self.block(key.at).parts(table);
        match &table.policy.0 {
            Shape::Bucket(bucket) => Cells::Meter(meter(table, block, key.life, bucket)),
            Shape::Counter { window, is_smooth } => {
                Cells::Counter(self.counter(table, block, key.life, *window, *is_smooth))
            }
            Shape::Concurrency { .. } => Cells::Leases(self.leases(table, key)),
            _ if self.is_granted(table.policy) => Cells::Grants(grants(block, key.life)),
            _ if table.is_log => Cells::Log(self.log(table, block, key.life, self.origins(block.0))),
            _ => Cells::Slices(slices(table, block, key.life)),
        }
    }

    /// The tickets of the starts that a log took over. Decisions do not need them.
    fn origins(&self, head: &Head) -> &[AtomicU64] {
        match head[key_word::ORIGINS as usize].load(Relaxed) {
            0 => &[],
            at => self.arena.words(at, ring_in(head)),
        }
    }

    #[inline(always)]
    pub fn log<'h>(&self, table: &Table, (head, ring): Block<'h>, number: u64, origins: &'h [AtomicU64]) -> Log<'h> {
        let word = |at: u64| &head[at as usize];
        Log {
            head: word(key_word::HOT),
            cleared: word(key_word::CLEARED),
            own: word(key_word::OWN),
            logged: word(key_word::LOGGED),
            ring,
            whole: table.ring,
            largest: table.largest,
            origins,
            peak: word(key_word::PEAK),
            left_out: [word(key_word::LEFT_OUT), word(key_word::UNTIL)],
            life: word(key_word::LIFE),
            number,
            base: word(key_word::BASE).load(Acquire),
            born: table.born,
        }
    }

    #[inline(always)]
    pub fn counter<'h>(
        &self,
        table: &Table,
        (head, _): Block<'h>,
        number: u64,
        window: Window,
        is_smooth: bool,
    ) -> Counter<'h> {
        let word = |at: u64| &head[at as usize];
        Counter {
            ring: &head[key_word::HOT as usize..][..2],
            life: word(key_word::LIFE),
            number,
            base: word(key_word::BASE),
            era: word(key_word::OWN),
            logged: word(key_word::LOGGED),
            born: table.born,
            frame: self.frame(window, is_smooth),
            past: Past { begun: word(key_word::BEGUN), until: word(key_word::UNTIL), units: word(key_word::EARLIER) },
        }
    }

    /// The cells of an unused key. Only to be read.
    pub fn untouched<'t>(&self, table: &'t Table) -> Cells<'t> {
        match &table.policy.0 {
            Shape::Bucket(bucket) => Cells::Meter(Meter::untouched(bucket, table.born)),
            Shape::Counter { window, is_smooth } => {
                Cells::Counter(Counter::untouched(table.born, self.frame(*window, *is_smooth)))
            }
            Shape::Concurrency { .. } => Cells::Leases(Leases::untouched()),
            _ if table.policy.is_counted() => Cells::Slices(Slices::untouched(table.born)),
            _ => Cells::Log(Log::untouched(table.born)),
        }
    }

    /// How long a start of a concurrency limit would have to wait at a gate, and for its units: exactly, if that is known.
    pub fn wait_for_units(&self, table: &Table, leases: &Leases, weight: u64, gate: Tick) -> Result<Duration, Sealed> {
        let now = self.clock.now();
        if gate > now.floor {
            return Ok(from_ticks(gate - now.floor));
        }
        let room_at = leases.room_at(weight, table.capacity, table.policy.cooldown(), now)?;
        Ok(room_at.map_or(LOOK_AGAIN, |at| from_ticks(at.saturating_sub(now.floor))))
    }

    /// The leases of a key of a concurrency limit.
    #[inline(always)]
    pub fn leases(&self, table: &Table, key: KeyAt) -> Leases<'_> {
        let (words, slots) = self.block(key.at).parts(table);
        let word = |at: u64| &words[at as usize];
        Leases {
            taken: word(key_word::HOT),
            returned: word(key_word::HOT + 1),
            bell: word(key_word::HOT + 2),
            sleepers: word(key_word::HOT + 3),
            base: word(key_word::BASE),
            slots,
            life: word(key_word::LIFE),
            number: key.life,
        }
    }
}

#[inline(always)]
pub(in crate::state) fn slices<'h>(table: &Table, (head, ring): Block<'h>, base: u64) -> Slices<'h> {
    let word = |at: u64| &head[at as usize];
    Slices {
        head: word(key_word::HOT),
        life: word(key_word::LIFE),
        base,
        ring,
        era: word(key_word::OWN),
        logged: word(key_word::LOGGED),
        written: word(key_word::WRITTEN),
        born: table.born,
    }
}

#[inline(always)]
pub(in crate::state) fn grants<'h>((head, words): Block<'h>, number: u64) -> Grants<'h> {
    Grants { words, life: &head[key_word::LIFE as usize], number }
}

#[inline(always)]
pub(in crate::state) fn meter<'h>(table: &Table, (head, _): Block<'h>, number: u64, bucket: &'h Bucket) -> Meter<'h> {
    let word = |at: u64| &head[at as usize];
    Meter {
        word: word(key_word::HOT),
        base: word(key_word::BASE),
        life: word(key_word::LIFE),
        number,
        era: word(key_word::OWN),
        logged: word(key_word::LOGGED),
        last: word(key_word::LAST),
        returned: word(key_word::GIVEN_BACK),
        carried: word(key_word::CARRIED),
        born: table.born,
        bucket,
    }
}

/// The table that applies to a key.
#[inline(always)]
pub(in crate::state) fn table_in(head: &Head) -> TableAt {
    TableAt::new(head[key_word::TABLE as usize].load(Acquire) & key_word::PLACE)
}

/// The head of a block, its life, and the block as one slice, without unwinding, if it is one of this table. `None` also
/// beyond the part of the store that this process knows. The life is read first, so the table is that of this life or of a later
/// one.
#[inline(always)]
pub(super) fn try_words<'h>(
    seen: VisibleWords<'h>,
    at: BlockAt,
    table: &Table,
) -> Option<(&'h Head, u64, &'h [AtomicU64])> {
    let words = seen.from(at.offset())?;
    let (head, rest) = words.split_first_chunk()?;
    let life = head[key_word::LIFE as usize].load(Acquire);
    // With this table, what is left is the size of the ring; with another, it is larger than any.
    let ring = (head[key_word::TABLE as usize].load(Acquire) ^ table.at.offset()).rotate_right(key_word::SIZE);
    let is_its = ring >= table.first_ring && ring <= rest.len() as u64;
    // SAFETY: there are as many words.
    is_its.then(|| (head, life, unsafe { words.get_unchecked(..(key_word::RING + ring) as usize) }))
}

/// The number of words of a block's ring.
#[inline(always)]
pub(in crate::state) fn ring_in(head: &Head) -> u64 {
    head[key_word::TABLE as usize].load(Acquire) >> key_word::SIZE
}

fn monotonic_ms() -> u64 {
    monotonic_ns() / 1_000_000
}

/// The gate of a key, with its mark.
#[inline(always)]
pub(in crate::state) fn gate_in(head: &Head) -> Tick {
    head[key_word::GATE as usize].load(Acquire)
}

/// The hash of a block's key.
#[inline(always)]
pub(in crate::state) fn hash_in(head: &Head) -> Hash {
    Hash([0, 1].map(|i| head[(key_word::HASH + i) as usize].load(Acquire)))
}
