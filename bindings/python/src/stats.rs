//! Counts of limits and keys.

use pyo3::prelude::*;

/// The counts of a limit or of one key, over all processes that share it.
#[pyclass(frozen, eq, get_all, module = "workglow_limit")]
#[derive(PartialEq)]
pub struct Stats {
    /// Starts that were admitted, at once or after a wait.
    admitted: u64,
    /// Attempts that were denied.
    denied: u64,
    /// The units that were requested.
    units_wanted: u64,
    /// The units that were granted.
    units_granted: u64,
    /// Starts that had to wait for a place.
    waited: u64,
    /// The total time that they waited, in seconds.
    wait_time: f64,
    /// Permits and places that were cancelled.
    cancelled: u64,
    /// Decisions that failed because of the store, whatever on_error answered.
    store_errors: u64,
    /// The number of policy changes.
    policy_changes: u64,
}

impl From<workglow_limit::observe::Stats> for Stats {
    fn from(stats: workglow_limit::observe::Stats) -> Stats {
        Stats {
            admitted: stats.admitted,
            denied: stats.denied,
            units_wanted: stats.units_wanted,
            units_granted: stats.units_granted,
            waited: stats.waited,
            wait_time: stats.wait_time.as_secs_f64(),
            cancelled: stats.cancelled,
            store_errors: stats.store_errors,
            policy_changes: stats.policy_changes,
        }
    }
}

#[pymethods]
impl Stats {
    fn __repr__(&self) -> String {
        let Stats { admitted, denied, units_wanted, units_granted, waited, wait_time, cancelled, .. } = self;
        let Stats { store_errors, policy_changes, .. } = self;
        format!(
            "Stats(admitted={admitted}, denied={denied}, units_wanted={units_wanted}, units_granted={units_granted}, \
             waited={waited}, wait_time={wait_time}, cancelled={cancelled}, store_errors={store_errors}, \
             policy_changes={policy_changes})"
        )
    }
}
