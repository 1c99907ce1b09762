//! What is counted.

use std::time::Duration;

/// Counts of a limit, or of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Starts that were admitted, at once or after a wait.
    pub admitted: u64,
    /// Attempts that were denied.
    pub denied: u64,
    /// The units that were asked for.
    pub units_wanted: u64,
    /// Those that were granted.
    pub units_granted: u64,
    /// Starts that had to wait for a place.
    pub waited: u64,
    /// How long they waited, together.
    pub wait_time: Duration,
    /// Permits and places that were cancelled.
    pub cancelled: u64,
    /// Decisions that the store failed, whatever was answered instead.
    pub store_errors: u64,
    /// How often another policy came to hold.
    pub policy_changes: u64,
}
