//! The meaning of each word, and the places of those that belong together.

use std::marker::PhantomData;
use std::ops::Add;

/// The place of words that belong together, as an offset in the arena, in words. A limit's is never taken for a table's:
/// that does not compile. In a word, 0 is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct At<Words>(u64, PhantomData<Words>);

pub(crate) type LimitAt = At<limit_word::Of>;
pub(crate) type LinkAt = At<link_word::Of>;
pub(crate) type TableAt = At<table_word::Of>;
pub(crate) type SegmentAt = At<index_word::Of>;
pub(crate) type DirectoryAt = At<index_word::OfDirectory>;
pub(crate) type BlockAt = At<key_word::Of>;

impl<Words> At<Words> {
    /// The place that a word holds.
    #[inline(always)]
    pub const fn new(word: u64) -> Self {
        At(word, PhantomData)
    }

    /// The same. `None` for 0.
    #[inline(always)]
    pub fn some(word: u64) -> Option<Self> {
        (word != 0).then_some(At::new(word))
    }

    #[inline(always)]
    pub const fn offset(self) -> u64 {
        self.0
    }
}

/// The offset of one of the words.
impl<Words> Add<u64> for At<Words> {
    type Output = u64;

    #[inline(always)]
    fn add(self, word: u64) -> u64 {
        self.0 + word
    }
}

impl<Words> std::fmt::Display for At<Words> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// When the next checkpoint of the ledger is due.
pub(super) const NEXT_CHECKPOINT: u64 = 10;
/// Words of the header that belong to the tables. The lane has the words before them, the arena those in between.
pub(in crate::state) const FIRST_LIMIT: u64 = 13;
pub(in crate::state) const HASH_KEY: u64 = 14;
/// Lists of key blocks to be reused, by the binary logarithm of their ring.
pub(in crate::state) const FREE_KEYS: u64 = 16;
/// The list, among these, of blocks without cells: see `keyed.rs`. (No block with cells has this class.)
pub(in crate::state) const STUBS: u64 = 63;
/// The lists of index segments to be reused, by the logarithm of their capacity; from the 32nd on, those of
/// directories.
pub(in crate::state) const FREE_SEGMENTS: u64 = FREE_KEYS + 64;

/// The list, among these, of the words of forgotten limits that tenants shared. (No segment is so large.)
pub(in crate::state) const FREE_TENANTS: u64 = 31;

/// Counts lives and eras.
pub(super) const NEXT_NUMBER: u64 = FREE_SEGMENTS + 64;

/// Counts the processes that have ever used the lane.
pub(in crate::state) const NEXT_MEMBER: u64 = NEXT_NUMBER + 1;

/// The generation of the policies in the lane: see `follow.rs`.
pub(in crate::state) const POLICIES: u64 = PHASE + 1;

/// The list of changed keys: the place of its ring, the number of entries ever made, and the number of entries read.
pub(in crate::state) const CHANGED: u64 = 160;
pub(in crate::state) const CHANGED_TAIL: u64 = 161;
pub(in crate::state) const CHANGED_DONE: u64 = 162;

/// The Unix time of tick 0 in µs, wrapping, as it was when the store was created.
pub(super) const PHASE: u64 = NEXT_NUMBER + 2;

/// Chains of names, by a name's hash.
pub(super) const NAMES: u64 = 256;
/// The lane has the words from 480 on.
pub(super) const NAME_CHAINS: u64 = 224;

/// Tables of open places, each twice as large as the one before. 0 where none was needed yet.
pub(in crate::state) const PLACES: u64 = CHANGED_DONE + 1;
pub(super) const PLACE_TABLES: u64 = 16;
/// The number of slots of the first table.
pub(super) const FIRST_PLACES: u64 = 256;

/// The limit at which the next sweep for idle keys begins; 0: the first one.
pub(in crate::state) const SWEPT_LIMIT: u64 = PLACES + PLACE_TABLES;

/// The list of limits whose policies are changing, the latest first. The next word is the process that completes the
/// changes, as its member number + 1.
pub(in crate::state) const CHANGES: u64 = SWEPT_LIMIT + 1;
pub(in crate::state) const CHANGER: u64 = SWEPT_LIMIT + 2;
/// The newest generation of policies whose predecessors' starts are all in the ledger.
pub(in crate::state) const SETTLED: u64 = SWEPT_LIMIT + 3;

/// For observers: the processes that use the lane, and how many callers wait. See `members.rs`.
pub(in crate::state) const MEMBERS: u64 = SETTLED + 1;
pub(in crate::state) const WAITERS: u64 = SETTLED + 2;

/// The limits with minutes that the database does not have, in two lists, for even and odd minutes: see `minutes.rs`.
pub(in crate::state) const NEWS: u64 = SETTLED + 3; // two words

/// The lists of blocks of logs that have no space for the origins of their starts. (The lists of `FREE_KEYS` have the others.)
pub(in crate::state) const FREE_BARE: u64 = HEADS + 1; // fourteen words

/// Behind the origins of a log: the first and the last era of starts that were only counted before, and further pairs of
/// words like `LEFT_OUT` and `UNTIL`.
pub(in crate::state) const OLDER_WORDS: u64 = 18;

/// When the process that completes the changes of policies last worked on them, by the boot clock; 0 if none does.
pub(in crate::state) const CHANGER_SEEN: u64 = NEWS + 2;

/// What is known of the keys that are only in the ledger: see `restoring.rs`.
pub(in crate::state) const RESTORING: u64 = CHANGER_SEEN + 1; // seven words

/// The heads of the lines of all processes: see `heads.rs`.
pub(in crate::state) const HEADS: u64 = RESTORING + 7;

pub(in crate::state) mod limit_word {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) enum Of {}

    /// The next limit in the list of all limits.
    pub const NEXT: u64 = 0;
    /// The link of its name. 0 if it has lost it.
    pub const NAME: u64 = 1;
    /// Its number in the database; 0 if it is in none.
    pub const ID: u64 = 2;
    pub const TABLE: u64 = 3;
    pub const GATE: u64 = 4;
    /// The table that the current one has replaced, while keys of it may be left. A flag says whether they are
    /// forgotten.
    pub const REPLACED: u64 = 5;
    pub const FORGETTING: u64 = 1 << 32;
    /// The hash from which on such keys may be left. Before a change, the hash from which on idle keys may be left.
    pub const LEFT_FROM: u64 = 6;
    /// The next limit in the list of limits whose policies are changing.
    pub const NEXT_CHANGE: u64 = 7;
    /// The counters: see `counts`.
    pub const COUNTS: u64 = 20; // nine words
    /// Where the chains of the limit's plans begin. 0 where none was needed yet.
    pub const PLANS: u64 = 32;
    /// The number of starts that waited, by duration, and the number of lost places.
    pub const WAITS: u64 = 33; // nine words
    pub const PLACES_LOST: u64 = 42;
    /// The counts of two minutes: see `minutes.rs`.
    pub const MINUTES: u64 = 43; // twice six words
    /// The table that the limit got when the lane was rebuilt, while keys of it may be only in the ledger; else 0.
    pub const UNRESTORED: u64 = 55;
    /// The words that its keys take: see `share.rs`.
    pub const TAKEN: u64 = 56;
    /// The hash at which the next search for idle keys begins, and the words that this round of searches has counted.
    pub const SEARCHED: u64 = 57;
    pub const COUNTED: u64 = 58;
    /// Where tenants share the limit: what they have had, and the heads of their lines. See `heads.rs`. 0 elsewhere.
    pub const TENANTS: u64 = 59;
    /// The classes of rings that its keys have had, one bit each.
    pub const RINGS: u64 = 60;
    pub const WORDS: u64 = 64;
}

/// A link in a chain of names: a name of a limit, which has it if it names this link. Links are never changed or removed.
pub(in crate::state) mod link_word {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) enum Of {}

    pub const NEXT: u64 = 0;
    pub const LIMIT: u64 = 1;
    pub const HASH: u64 = 2; // two words
    /// The length of the name in bytes, and the bytes.
    pub const LEN: u64 = 4;
    pub const TEXT: u64 = 5;
}

pub(in crate::state) mod table_word {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) enum Of {}

    pub const POLICY: u64 = 0;
    pub const BORN: u64 = 12;
    /// See `index.rs`.
    pub const INDEX: u64 = 13;
    pub const EMPTY_KEY: u64 = 14;
    /// When a ledger was read that may lack units of each key, and how many.
    pub const LOST: u64 = 16; // two words
    /// The first ticket of new keys. No earlier key of this name had a ticket from here on.
    pub const FIRST_TICKET: u64 = 18;
    /// When all keys of the limit were forgotten last. Starts of the ledger up to then do not count.
    pub const CLEARED: u64 = 19;
    /// The limit of a table or plan. No key block has a limit's address in this word.
    pub const OWNER: u64 = 23;
    /// The limit of a limit's table; 0 in a plan.
    pub const LIMIT: u64 = 24;
    /// In a plan, the next plan of its chain.
    pub const NEXT: u64 = 25;
    /// A checksum of the policy's words, which never change.
    pub const SUM: u64 = 26;
    pub const WORDS: u64 = 32;
}

/// A segment of an index. A directory of segments has only `NEXT`, and its entries from `SLOTS` on.
pub(in crate::state) mod index_word {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) enum Of {}

    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) enum OfDirectory {}

    pub const CAPACITY: u64 = 0;
    pub const COUNT: u64 = 1;
    /// Changes each time the same words become another index.
    pub const LIFE: u64 = 2;
    /// Blocks for new keys: how many there are, how many were taken, and one that was handed back.
    pub const FREE: u64 = 3;
    pub const TAKEN: u64 = 4;
    pub const RETURNED: u64 = 5;
    /// The next in a list of free ones.
    pub const NEXT: u64 = 6;
    /// The table for which the segment was made. It contains no keys of earlier tables, and its blocks for new keys
    /// belong to this table.
    pub const TABLE: u64 = 7;
    /// Set in `TAKEN` when no further block may be taken.
    pub const CLOSED: u64 = 1 << 63;
    pub const SLOTS: u64 = 16;
    /// An entry is `tag << TAG | offset`. No key has this tag.
    pub const TAG: u32 = 48;
    pub const NO_KEY: u64 = 0xffff;
    /// Marks a slot to which no key may be added any more. Another segment exists, or will.
    pub const SEALED: u64 = u64::MAX;
    pub const FIRST_CAPACITY: u64 = 16;
    /// More keys than these are spread over several segments, so that rewriting one takes about a millisecond.
    pub const MAX_CAPACITY: u64 = 1_024;
}

pub(in crate::state) mod key_word {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) enum Of {}

    // The first cache line holds words that decisions read and rarely write, the second those that they write.
    pub const HASH: u64 = 0;
    /// The table of the key; in a list of free blocks, the next block. Above it is the number of words of the ring, which
    /// never changes once the block has been used.
    pub const TABLE: u64 = 2;
    pub const NEXT: u64 = 2;
    pub const SIZE: u32 = 32;
    pub const PLACE: u64 = (1 << SIZE) - 1;
    pub const GATE: u64 = 3;
    /// Set in the word of the gate while the lines of all processes may show a waiter for this key. So the gate of a key that is
    /// waited for is in the future, and a decision on a start now learns that without a further load.
    pub const IS_AWAITED: u64 = 1 << 63;
    pub const CLEARED: u64 = 4;
    /// The same word in windows of the clock: see `counter::Past`.
    pub const BEGUN: u64 = 4;
    /// A number that no other life of any block has.
    pub const LIFE: u64 = 5;
    /// The base of this life's stamps.
    pub const BASE: u64 = 6;
    /// The level of the backoff and its duration.
    pub const BACKOFF: u64 = 7;

    pub const HOT: u64 = 8;
    /// In a log or in slices: how many units had been started before those that were written when the life began, and
    /// whether an earlier policy has admitted any of either. The next word: until when. (Of logs, this is the newest of
    /// several such pairs.)
    pub const LEFT_OUT: u64 = 9;
    pub const IS_MIXED: u64 = 1 << 63;
    pub const UNTIL: u64 = 10;
    /// In a log: the largest stamp ever made before, in the representation of words.
    pub const PEAK: u64 = 11;
    /// The same word in slices: the number of units that were written when the life began.
    pub const WRITTEN: u64 = 11;
    /// The same word in windows of the clock, and `UNTIL`: see `counter::Past`.
    pub const EARLIER: u64 = 11;
    /// The same words in a bucket: the latest stamp of any place; the amount taken over; the total ever returned.
    pub const LAST: u64 = 9;
    pub const CARRIED: u64 = 10;
    pub const GIVEN_BACK: u64 = 11;
    /// Until when the key is in the list of changed keys: see `changed.rs`. (Leases use the words from `HOT` up to
    /// here, clock windows the first two.)
    pub const LISTED: u64 = 12;
    /// In a log, its first own ticket; in slices, their era.
    pub const OWN: u64 = 13;
    pub const LOGGED: u64 = 14;
    /// Where the tickets of copied starts are, by which their holders know them. 0 where none was needed yet.
    pub const ORIGINS: u64 = 15;
    /// The same word where starts are only counted: the first era whose starts may still count. Places of an earlier
    /// policy are of an earlier era, and are exchanged; starts are not.
    pub const FIRST_ERA: u64 = 15;

    /// The text of the key: its length, and as many bytes as fit.
    pub const TEXT: u64 = 16;
    pub const TEXT_WORDS: u64 = 6;
    /// 1 if the block has no cells. It then stays 1 for as long as the block exists.
    pub const IS_STUB: u64 = 23;
    /// The spacing of starts and the number of completed jobs, where the spacing adapts.
    pub const SPACING: u64 = 24;
    pub const JOBS: u64 = 25;
    /// The same word in a log whose ring grows: until when there is no space for that, in which life, and for how
    /// many slots.
    pub const STUCK: u64 = 25;
    /// The same words in buckets and windows of the clock: in buckets, the table of the fastest earlier policy; when an
    /// earlier policy ended: the last one in buckets, else the first. 0: there is none.
    pub const FORMER: u64 = 24;
    pub const CHANGED: u64 = 25;
    /// The counters, where there is space: see `counts`.
    pub const COUNTS: [u64; 7] = [22, 26, 27, 28, 29, 30, 31];
    pub const RING: u64 = 32;
}

const _: () = assert!(key_word::IS_STUB == table_word::OWNER);
const _: () = assert!(POLICIES < CHANGED && FREE_BARE + 14 <= NAMES && NAMES + NAME_CHAINS <= 480);
