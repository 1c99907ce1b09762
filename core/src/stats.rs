//! Counts of a limit or key.

use std::time::Duration;

/// Counts of a limit, or of one of its keys. They cover all processes that share the limit, since the store was created
/// in this boot of the machine. Reading them counts nothing.
///
/// A process publishes its counts once a second while it decides, when statistics are requested, at
/// [`Store::flush`](crate::Store::flush) and when it drops its store. If a process dies, the counts that it had not
/// published are lost. The counts of a key are forgotten with the key: when the key is idle and its memory is needed,
/// and when the whole limit is cleared or declared as another kind. A process counts at most 4,096 keys separately at a
/// time; further keys count only towards the whole limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Starts that were admitted, immediately or after a wait, or recorded. A place counts when it starts.
    pub admitted: u64,
    /// Attempts that were denied, and waiters that timed out.
    pub denied: u64,
    /// The units that these requested.
    pub units_wanted: u64,
    /// The units that were granted: the weights of the starts, even if they were settled with another amount.
    pub units_granted: u64,
    /// Starts that had to wait for a place, and reserved places that were not ready immediately.
    pub waited: u64,
    /// The sum of the waits: for a waiter from its first step to its start, for a place the delay that the reservation
    /// returned.
    pub wait_time: Duration,
    /// Permits and places that were cancelled while they counted.
    pub cancelled: u64,
    /// Decisions for which the store failed, even if the failure policy answered instead. Counted for the whole limit
    /// only.
    pub store_errors: u64,
    /// Number of policy changes. Counted for the whole limit only.
    pub policy_changes: u64,
}
