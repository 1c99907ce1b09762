//! Which word of a block is what.

/// Words of the header that belong to the tables; the lane has those before, the arena those between.
pub(super) const FIRST_LIMIT: u64 = 13;
pub(super) const HASH_KEY: u64 = 14;

pub(super) mod limit_word {
    pub const NEXT: u64 = 0;
    pub const NAME: u64 = 1;
    pub const TABLE: u64 = 3;
    pub const GATE: u64 = 4;
    /// The policy that a replacement under way leads to.
    pub const NEXT_POLICY: u64 = 5;
    pub const WORDS: u64 = 16;
}

pub(super) mod table_word {
    pub const POLICY: u64 = 0;
    pub const BORN: u64 = 9;
    pub const INDEX: u64 = 10;
    pub const EMPTY_KEY: u64 = 11;
    pub const WORDS: u64 = 16;
}

pub(super) mod index_word {
    pub const CAPACITY: u64 = 0;
    pub const COUNT: u64 = 1;
    pub const SLOTS: u64 = 16;
    /// No key may be added here any more: there is, or will be, another index.
    pub const SEALED: u64 = u64::MAX;
    /// An entry is `tag << TAG | offset`.
    pub const TAG: u32 = 48;
    pub const FIRST_CAPACITY: u64 = 16;
}

pub(super) mod key_word {
    pub const HASH: u64 = 0;
    pub const TABLE: u64 = 2;
    pub const GATE: u64 = 3;
    pub const CLEARED: u64 = 4;
    /// What is written at every admission stands apart from what is only read.
    pub const HOT: u64 = 16;
    pub const RING: u64 = 32;
}

const _: () = assert!(HASH_KEY + 2 <= super::arena::HEADER_WORDS);
