//! A key's block: its cells, and what else it says of its key.

use super::damage::nonsense;
use super::index::KeyAt;
use super::layout::{PHASE, key_word};
use super::table::{Hash, Home, Table};
use crate::algorithm::cells::Cells;
use crate::algorithm::counter::{Counter, Frame};
use crate::algorithm::jobs::Jobs;
use crate::algorithm::leases::Leases;
use crate::algorithm::log::{Log, Window};
use crate::algorithm::meter::Meter;
use crate::algorithm::slices::Slices;
use crate::atomic::*;
use crate::policy::Shape;
use crate::time::Tick;

/// The head of a key's block.
pub(super) type Head = [AtomicU64; key_word::RING as usize];

impl Home {
    /// The head of a key's block.
    #[inline(always)]
    pub fn head(&self, key: u64) -> &Head {
        self.arena.array(key)
    }

    /// The hash of the key that a block is of.
    #[inline(always)]
    pub fn hash_at(&self, key: u64) -> Hash {
        hash_in(self.head(key))
    }

    /// Nobody starts on this key before this: the later of its own gate and of the one that binds all keys.
    #[inline(always)]
    pub fn gate(&self, limit: u64, head: &Head) -> Tick {
        self.limit_gate(limit).load(Acquire).max(head[key_word::GATE as usize].load(Acquire))
    }

    /// The gate of one key.
    #[inline(always)]
    pub fn key_gate(&self, key: u64) -> &AtomicU64 {
        self.arena.word(key + key_word::GATE)
    }

    /// The level of a key's backoff.
    #[inline(always)]
    pub fn backoff(&self, key: u64) -> &AtomicU64 {
        self.arena.word(key + key_word::BACKOFF)
    }

    /// What jobs took, of a key whose starts are spaced by it.
    #[inline(always)]
    pub fn jobs(&self, table: &Table, key: u64) -> Option<Jobs<'_>> {
        let Shape::EvenlySpaced(spacing) = &table.policy.0 else { return None };
        let ring = spacing.is_adaptive.then(|| self.arena.words(key + key_word::RING + table.ring, spacing.jobs()))?;
        let (ended, spacing) = (self.arena.word(key + key_word::JOBS), self.arena.word(key + key_word::SPACING));
        Some(Jobs { ended, spacing, ring })
    }

    /// The table as it holds for one key, where that is not its limit's: a plan, or starts that are closer to each other than
    /// the policy says.
    #[inline(always)]
    pub fn own_table(&self, table: &Table, key: KeyAt) -> Option<Table> {
        (table.is_adaptive || key.table != table.at).then(|| self.adapted(table, key))
    }

    #[cold]
    fn adapted(&self, table: &Table, key: KeyAt) -> Table {
        let mut own = self.table_of(table, key);
        self.adapt(&mut own, key.at);
        own
    }

    /// See [`Home::own_table`].
    pub fn adapt(&self, table: &mut Table, key: u64) {
        if let Shape::EvenlySpaced(spacing) = &mut table.policy.0
            && spacing.is_adaptive
            && let apart @ 1.. = self.arena.word(key + key_word::SPACING).load(Acquire)
        {
            *spacing = spacing.apart(apart - 1);
        }
    }

    /// Is a block still what it was when it was found?
    #[inline(always)]
    pub fn is_alive(&self, key: KeyAt) -> bool {
        self.arena.word(key.at + key_word::LIFE).load(Acquire) == key.life
    }

    /// How windows are cut that are aligned to 1970.
    #[inline(always)]
    fn frame(&self, window: Window, is_smooth: bool) -> Frame {
        let phase = self.arena.word(PHASE).load(Relaxed);
        Frame { limit: window.limit, length: window.length, is_smooth, phase }
    }

    /// A key's block: its head, and its ring.
    #[inline(always)]
    fn block(&self, table: &Table, at: u64) -> (&Head, &[AtomicU64]) {
        let words = self.arena.words(at, key_word::RING + table.ring);
        words.split_first_chunk().unwrap_or_else(|| nonsense(format_args!("no ring at {at}")))
    }

    /// A key of a limit that is a matter of time.
    #[inline(always)]
    pub fn cells(&self, table: &Table, key: KeyAt) -> Cells<'_> {
        let (words, ring) = self.block(table, key.at);
        let word = |at: u64| &words[at as usize];
        let (head, life, own, logged) =
            (word(key_word::HOT), word(key_word::LIFE), word(key_word::OWN), word(key_word::LOGGED));
        let (number, era, base, carried) = (key.life, own, word(key_word::BASE), word(key_word::CARRIED));
        match table.policy.0 {
            Shape::Bucket(bucket) => {
                let (word, last, returned, born) = (head, &ring[0], &ring[1], table.born);
                return Cells::Meter(Meter {
                    word,
                    base,
                    life,
                    number,
                    era,
                    logged,
                    last,
                    returned,
                    carried,
                    born,
                    bucket,
                });
            }
            Shape::Counter { window, is_smooth } => {
                let frame = self.frame(window, is_smooth);
                let ring = &ring[..2];
                return Cells::Counter(Counter { ring, life, number, base, era, logged, born: table.born, frame });
            }
            Shape::Concurrency { .. } => return Cells::Leases(self.leases(table, key)),
            _ => {}
        }
        if table.policy.is_counted() {
            return Cells::Slices(Slices { head, life, base: key.life, ring, era, logged, born: table.born });
        }
        let origins = word(key_word::ORIGINS).load(Relaxed);
        let origins = if origins == 0 { &[] } else { self.arena.words(origins, table.ring) };
        let cleared = word(key_word::CLEARED);
        let (peak, base) = (word(key_word::PEAK), base.load(Acquire));
        Cells::Log(Log { head, cleared, own, logged, ring, origins, peak, life, number, base, born: table.born })
    }

    /// The cells in a block, whatever their life is. For the holder of the structure lock.
    pub fn cells_at(&self, table: &Table, at: u64) -> Cells<'_> {
        self.cells(table, KeyAt { at, life: self.arena.word(at + key_word::LIFE).load(Acquire), table: table.at })
    }

    /// The cells of a key that nobody has used. Only to look at.
    pub fn untouched(&self, table: &Table) -> Cells<'static> {
        match table.policy.0 {
            Shape::Bucket(bucket) => Cells::Meter(Meter::untouched(bucket, table.born)),
            Shape::Counter { window, is_smooth } => {
                Cells::Counter(Counter::untouched(table.born, self.frame(window, is_smooth)))
            }
            Shape::Concurrency { .. } => Cells::Leases(Leases::untouched()),
            _ if table.policy.is_counted() => Cells::Slices(Slices::untouched(table.born)),
            _ => Cells::Log(Log::untouched(table.born)),
        }
    }

    /// Lets a block that was closed and written live again, with what [`Cells::write`] answered.
    pub(super) fn publish(&self, table: &Table, at: u64, base: u64) -> KeyAt {
        let life = if table.policy.is_sliced() {
            base
        } else {
            self.arena.word(at + key_word::BASE).store(base, Release);
            self.new_number()
        };
        self.arena.word(at + key_word::LIFE).store(life, Release);
        KeyAt { at, life, table: table.at }
    }

    /// Will nobody notice if this key is forgotten?
    pub(super) fn is_idle(&self, table: &Table, at: u64) -> bool {
        let now = self.clock.now();
        self.cells_at(table, at).is_idle(table.policy.longest(), now) && !self.is_gated(table, at, now.floor)
    }

    /// Is the key kept from starting? By its gate; or by that of its limit, if it would lose its backoff, which the next start
    /// resets otherwise.
    pub(super) fn is_gated(&self, table: &Table, at: u64, now: Tick) -> bool {
        let has_level = matches!(table.policy.0, Shape::Rate(..)) && self.backoff(at).load(Acquire) != 0;
        let limit = || self.limit_of(table);
        self.key_gate(at).load(Acquire) > now || has_level && self.limit_gate(limit()).load(Acquire) > now
    }

    /// A key of a concurrency limit.
    #[inline(always)]
    pub fn leases(&self, table: &Table, key: KeyAt) -> Leases<'_> {
        let (words, slots) = self.block(table, key.at);
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

/// The hash of the key that a block is of.
#[inline(always)]
pub(super) fn hash_in(head: &Head) -> Hash {
    Hash([0, 1].map(|i| head[(key_word::HASH + i) as usize].load(Acquire)))
}
