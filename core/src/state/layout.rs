//! Which word of a block is what.

/// When the ledger is to be written next.
pub(super) const NEXT_CHECKPOINT: u64 = 10;
/// Words of the header that belong to the tables; the lane has those before, the arena those between.
pub(super) const FIRST_LIMIT: u64 = 13;
pub(super) const HASH_KEY: u64 = 14;
/// Lists of blocks of keys that are used again, by the binary logarithm of their ring.
pub(super) const FREE_KEYS: u64 = 16;
/// Among them, of those of keys that have no cells: see `keyed.rs`. (No block of cells is of this class.)
pub(super) const STUBS: u64 = 63;
/// The same for segments of an index, by that of their capacity; and from the 32nd on for directories.
pub(super) const FREE_SEGMENTS: u64 = FREE_KEYS + 64;

/// Counts lives and eras.
pub(super) const NEXT_NUMBER: u64 = FREE_SEGMENTS + 64;

/// Counts the processes that have used the lane.
pub(super) const NEXT_MEMBER: u64 = NEXT_NUMBER + 1;

/// Which policies the lane has: see `follow.rs`.
pub(super) const POLICIES: u64 = PHASE + 1;

/// The list of changed keys: where its ring is, how many entries were ever made, and how many of them were read.
pub(super) const CHANGED: u64 = 160;
pub(super) const CHANGED_TAIL: u64 = 161;
pub(super) const CHANGED_DONE: u64 = 162;

/// The Unix time of tick 0 in µs, wrapping, as it was when the store was made.
pub(super) const PHASE: u64 = NEXT_NUMBER + 2;

/// Chains of names, by a name's hash.
pub(super) const NAMES: u64 = 256;
/// (The lane has the words from 480 on.)
pub(super) const NAME_CHAINS: u64 = 224;

/// Tables of open places, each twice as large as the one before; 0: there was no need yet.
pub(super) const PLACES: u64 = CHANGED_DONE + 1;
pub(super) const PLACE_TABLES: u64 = 16;
/// The slots of the first.
pub(super) const FIRST_PLACES: u64 = 256;

/// Where the last sweep for idle keys stopped: in which limit, and at which hash.
pub(super) const SWEPT_LIMIT: u64 = PLACES + PLACE_TABLES;
pub(super) const SWEPT_HASH: u64 = SWEPT_LIMIT + 1;
/// How often sweeps have come round.
pub(super) const SWEPT_ROUNDS: u64 = SWEPT_LIMIT + 2;

/// The limits whose policies are changing: the one that changed last. And the process that sees to that, its number as a member
/// + 1.
pub(super) const CHANGES: u64 = SWEPT_ROUNDS + 1;
pub(super) const CHANGER: u64 = SWEPT_ROUNDS + 2;
/// Up to which generation of policies the ledger has what was started by those before.
pub(super) const SETTLED: u64 = SWEPT_ROUNDS + 3;

/// For people to see: the processes that use the lane, and how many callers wait: see `members.rs`.
pub(super) const MEMBERS: u64 = SETTLED + 1;
pub(super) const WAITERS: u64 = SETTLED + 2;

/// The limits with minutes that the database does not have, even ones and odd ones: see `minutes.rs`.
pub(super) const NEWS: u64 = SETTLED + 3; // two words

pub(super) mod limit_word {
    /// The next in the list of all limits.
    pub const NEXT: u64 = 0;
    pub const NAME: u64 = 1;
    pub const TABLE: u64 = 3;
    pub const GATE: u64 = 4;
    /// The table that the current one has replaced, while there may be keys of it. It may say that they are forgotten.
    pub const REPLACED: u64 = 5;
    pub const FORGETTING: u64 = 1 << 32;
    /// From which hash on there may be.
    pub const BROUGHT: u64 = 6;
    /// The next in the list of limits whose policies are changing.
    pub const NEXT_CHANGE: u64 = 7;
    /// The name that it is about to get.
    pub const NEXT_NAME: u64 = 18; // two words
    /// What was counted: see `counts.rs`.
    pub const COUNTS: u64 = 20; // nine words
    /// Its link in the chain of the name that it was added with.
    pub const LINK: u64 = 29; // two words
    /// Where its name is as a text: how many words there are, how many bytes it has, the bytes.
    pub const TEXT: u64 = 31;
    /// Where the chains of its plans begin; 0: there was no need yet.
    pub const PLANS: u64 = 32;
    /// How many starts had to wait, by how long; and how many places were lost.
    pub const WAITS: u64 = 33; // nine words
    pub const PLACES_LOST: u64 = 42;
    /// What was counted in two minutes: see `minutes.rs`.
    pub const MINUTES: u64 = 43; // twice six words
    pub const WORDS: u64 = 64;
}

/// A link in a chain of names: a limit that may have one of these names. Links are never removed.
pub(super) mod link_word {
    pub const NEXT: u64 = 0;
    pub const LIMIT: u64 = 1;
    pub const WORDS: u64 = 2;
}

pub(super) mod table_word {
    pub const POLICY: u64 = 0;
    pub const BORN: u64 = 12;
    /// See `index.rs`.
    pub const INDEX: u64 = 13;
    pub const EMPTY_KEY: u64 = 14;
    /// When a ledger was read that may have missed so many units of each key.
    pub const LOST: u64 = 16; // two words
    /// The tickets of new keys begin here: no key of this name had them before.
    pub const FIRST_TICKET: u64 = 18;
    /// The limit that it is of. No block of a key has a limit's address there.
    pub const OWNER: u64 = 23;
    /// The same of a limit's table; of a plan 0.
    pub const LIMIT: u64 = 24;
    /// Of a plan, the next in its chain.
    pub const NEXT: u64 = 25;
    /// A checksum of the policy's words, which never change.
    pub const SUM: u64 = 26;
    pub const WORDS: u64 = 32;
}

/// A segment of an index. A directory of segments has no more than `NEXT`, and its entries from `SLOTS` on.
pub(super) mod index_word {
    pub const CAPACITY: u64 = 0;
    pub const COUNT: u64 = 1;
    /// Differs each time the same words are another index.
    pub const LIFE: u64 = 2;
    /// Blocks for new keys: how many there are, how many were taken, and one that was handed back.
    pub const FREE: u64 = 3;
    pub const TAKEN: u64 = 4;
    pub const RETURNED: u64 = 5;
    /// The next in a list of free ones.
    pub const NEXT: u64 = 6;
    /// The table that it was made for. Keys of tables before that are not in it, and its blocks for new keys are that table's.
    pub const TABLE: u64 = 7;
    /// Set in `TAKEN` when no more may be taken.
    pub const CLOSED: u64 = 1 << 63;
    pub const SLOTS: u64 = 16;
    /// An entry is `tag << TAG | offset`, and this tag is no key's.
    pub const TAG: u32 = 48;
    pub const NO_KEY: u64 = 0xffff;
    /// No key may be added here any more: there is, or will be, another segment.
    pub const SEALED: u64 = u64::MAX;
    pub const FIRST_CAPACITY: u64 = 16;
    /// More keys are in several segments, so that writing one anew takes about a millisecond.
    pub const MOST_CAPACITY: u64 = 1_024;
}

pub(super) mod key_word {
    // The first line of the cache is what decisions read and rarely write, the second what they write.
    pub const HASH: u64 = 0;
    /// Whose key it is. The next block, in a list of free ones.
    pub const TABLE: u64 = 2;
    pub const NEXT: u64 = 2;
    pub const GATE: u64 = 3;
    pub const CLEARED: u64 = 4;
    /// A number that no other life of any block has.
    pub const LIFE: u64 = 5;
    /// What the stamps of this life are counted from.
    pub const BASE: u64 = 6;
    /// The level of the backoff and how long it lasts.
    pub const BACKOFF: u64 = 7;

    pub const HOT: u64 = 8;
    /// Of a log, how many units did not fit into it when it was written, which count as long as the oldest that did; and until
    /// when it may have had others.
    pub const LEFT_OUT: u64 = 9;
    pub const UNTIL: u64 = 10;
    /// Of a log, the largest stamp that was ever made earlier, as words have it.
    pub const PEAK: u64 = 11;
    /// The same words of a bucket: no place has a later stamp; what it took over; how much was ever given back.
    pub const LAST: u64 = 9;
    pub const CARRIED: u64 = 10;
    pub const GIVEN_BACK: u64 = 11;
    /// Until when it is in the list of changed keys: see `changed.rs`. (Leases have the words from `HOT` up to here, and windows
    /// of the clock the first two.)
    pub const LISTED: u64 = 12;
    /// Of a log, its first own ticket; of slices, their era.
    pub const OWN: u64 = 13;
    pub const LOGGED: u64 = 14;
    /// Where the tickets are under which copied starts are known; 0: there was no need yet.
    pub const ORIGINS: u64 = 15;

    /// The key as people read it: a length, and as many bytes as there is room for.
    pub const TEXT: u64 = 16;
    pub const TEXT_WORDS: u64 = 6;
    /// Has it no cells? Then 1, and so for as long as the block exists.
    pub const IS_STUB: u64 = 23;
    /// How far starts are apart and how many jobs ended, where that adapts.
    pub const SPACING: u64 = 24;
    pub const JOBS: u64 = 25;
    /// What was counted, where there is room: see `counts.rs`.
    pub const COUNTS: [u64; 7] = [22, 26, 27, 28, 29, 30, 31];
    pub const RING: u64 = 32;
}

const _: () = assert!(key_word::IS_STUB == table_word::OWNER);
const _: () = assert!(POLICIES < CHANGED && NEWS + 2 <= NAMES && NAMES + NAME_CHAINS <= 480);
