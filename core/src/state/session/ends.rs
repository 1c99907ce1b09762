//! Bells for the keys of a server, where starts end that it counts.
//!
//! A key's block in this process is no place for them: without leases of this process it is idle, and serves another key whenever
//! that is asked for. So a line of one of some dozen keys found a bell that seemed to ring at each look.

use crate::atomic::*;
use crate::hash::Hash;

/// How many there are. Keys with the same one wake each other's lines in vain.
const BELLS: usize = 256;

/// What the lines of some keys have.
#[derive(Debug)]
pub(crate) struct KeyEnds {
    /// It changes when a start of one of these keys has ended in this process.
    pub bell: AtomicU64,
    /// The threads that sleep there.
    pub sleepers: AtomicU64,
    /// How long the last waiter that started had at most one other before it, in ticks.
    pub stayed: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Ends(Box<[KeyEnds]>);

impl Ends {
    pub fn new() -> Ends {
        let end = |_| KeyEnds { bell: AtomicU64::new(0), sleepers: AtomicU64::new(0), stayed: AtomicU64::new(0) };
        Ends((0..BELLS).map(end).collect())
    }

    /// That of a key of a limit.
    pub fn of(&self, limit: Hash, key: Hash) -> &KeyEnds {
        &self.0[(limit.0[0] ^ key.0[0]) as usize % BELLS]
    }
}
