//! What is counted.

use std::time::Duration;

/// Counts of a limit, or of one key of it: of all processes that share it, since the store was made on this boot of the
/// machine. Looking counts nothing.
///
/// A process tells what it counted once a second while it decides, when somebody asks, at [`Store::flush`](crate::Store::flush)
/// and when it drops its store; what it counted after that, and then died, is not known. The counts of a key are forgotten
/// with the key: when it is idle and its room is needed, and when the whole limit is cleared or declared as another kind. Of
/// one process, 4,096 keys are counted one by one at a time, those beyond only with the whole limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Starts that were admitted, at once or after a wait, or recorded. A place counts when it starts.
    pub admitted: u64,
    /// Attempts that were denied, and waiters whose time was up.
    pub denied: u64,
    /// The units that these asked for.
    pub units_wanted: u64,
    /// Those that were granted: the weights of the starts, whatever they were settled with.
    pub units_granted: u64,
    /// Starts that had to wait for a place, and places that were reserved and not ready at once.
    pub waited: u64,
    /// How long they waited, together: a waiter from its first step to its start, a place as long as was said.
    pub wait_time: Duration,
    /// Permits and places that were cancelled while they counted.
    pub cancelled: u64,
    /// Decisions that the store failed, whatever was answered instead. Only of the whole limit.
    pub store_errors: u64,
    /// How often another policy came to hold. Only of the whole limit.
    pub policy_changes: u64,
}
