//! What a Redis server loses by a restart or a failover, if its operator knows the longest time whose writes that are
//! (`?loses=TIME`). The scripts count it: `prelude.lua` notices a loss, each family counts it.
//!
//! Without that time, nothing starts after a loss until nothing that may have been lost can count: a whole window.
//!
//! # Why no limit is exceeded
//!
//! A loss is noticed at the first request to another run of the server, at `at`. Say `T` is the time in the address. What
//! the operator promises: all that was lost was written within one time `T`, which ended at `at + T` at the latest.
//! (A server that has ended wrote nothing after `at`. An old primary that is cut off may go on, for less than `T`.) A
//! server's data after a loss are those of one earlier moment: a snapshot, a log without its end, a replica's stream.
//! So a state and the limit's record of losses are of the same moment, and each key knows which losses it counts.
//!
//! 1. *When lost starts began.* The server's own starts began when they were written. Machines start what they were
//!    granted for at most `trust` after they last had an answer. Places that were lost are refused when they are
//!    presented. So lost starts began within `T + trust`, before `by = at + T + trust`.
//! 2. *How many they are.* Until then all windows were kept, so they are at most `limit * (floor((T + trust) / length) +
//!    1)` of each window, and the smallest of these numbers in all. A log counts that number as started at `by`, which is no earlier
//!    than any of them. Where all windows are long, it is the whole limit: it may have been used in that time.
//!    Nothing is subtracted for what is known of the time before, because units that were given back may have been used again.
//! 3. *Nothing starts before `by`.* So starts of the next run and of machines that rely on answers of the last one are never mixed, and
//!    when something does start, the record of the loss is older than `T`. If this run loses its end, too, that
//!    record stays, or nothing had started since. So no loss is forgotten, and one that follows before `by` is the same one.
//! 4. *By which policy.* A change of policy may be lost, and starts by it with it. So nothing starts by a changed policy for `T`
//!    (`changed_at`): what was lost was admitted by the policy that the recovered data have, or that change is kept.
//!    If the policy changes after a loss, before a key has counted that, all its windows count as full.
//! 5. *Buckets, windows of the clock and leases* may be used up in any time. A bucket counts as emptied at `at + T`. The
//!    window in which that is counts as full; in a sliding window counter the next one, too. Leases are treated as without the
//!    parameter: nothing starts until lost ones have ended, and holders register theirs again.
//! 6. *Identities.* Numbers of lost starts, grants, places and leases are not given out again: counters skip more than a server can
//!    give out in that time. Machines end what they were granted when they learn of the loss.
//!
//! Where nothing is lost (`T` is 0), the server continues as if it had not been restarted.
//!
//! Not counted are the units of that time that were not admitted: `record`, and costs above what was taken.

use crate::address::take_parameter;
use crate::policy::parse_time;
use crate::time::Tick;
use std::time::Duration;

/// With `everysec` a write waits for an fsync in progress for up to two seconds.
const EVERY_SECOND: Tick = 2_000_000;

const SECOND: Tick = 1_000_000;

/// No window is longer.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Returns an address without the parameter, and its value.
pub(super) fn take_from(url: &str) -> Result<(String, Option<Tick>), String> {
    let (address, value) = take_parameter(url, "loses");
    let parse = |text: String| match parse_time(&text) {
        Ok(time) if time <= LONGEST => Ok(time.as_micros() as Tick),
        _ => Err(format!(
            "loses is \"{text}\", expected the longest time whose writes the server loses, such as 2s or 0s"
        )),
    };
    Ok((address, value.map(parse).transpose()?))
}

/// Returns the time whose writes a restart loses at most by these settings; `None`: writes of any age.
pub(super) fn by_a_restart(is_appending: bool, fsync: Option<&str>, save: Option<&str>) -> Option<Tick> {
    if is_appending {
        return match fsync {
            Some("always") => Some(0),
            Some("everysec") => Some(EVERY_SECOND),
            // The system writes when it likes.
            _ => None,
        };
    }
    // Pairs of seconds, and the number of writes from which on a snapshot is made after so long.
    let numbers: Vec<u64> = save?.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect();
    let (pairs, _) = numbers.as_chunks();
    let longest = pairs.iter().filter(|[_, writes]| *writes <= 1).map(|[seconds, _]| *seconds).min()?;
    Some(longest.saturating_mul(SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_is_a_time() {
        let taken = |url: &str| take_from(url);
        assert_eq!(taken("redis://h/0"), Ok(("redis://h/0".into(), None)));
        assert_eq!(taken("redis://h/0?loses=2s"), Ok(("redis://h/0".into(), Some(2_000_000))));
        assert_eq!(taken("redis://h?protocol=resp3&loses=0s"), Ok(("redis://h?protocol=resp3".into(), Some(0))));
        for bad in ["1", "", "-1s", "soon", "1s2", "400d"] {
            let reason = take_from(&format!("redis://h?loses={bad}")).unwrap_err();
            assert!(reason.starts_with(&format!("loses is \"{bad}\", expected ")), "{reason}");
        }
    }

    #[test]
    fn a_restart_loses_what_was_not_yet_written() {
        assert_eq!(by_a_restart(true, Some("always"), Some("")), Some(0));
        assert_eq!(by_a_restart(true, Some("everysec"), None), Some(EVERY_SECOND));
        assert_eq!(by_a_restart(true, Some("no"), Some("60 1")), None);
        assert_eq!(by_a_restart(true, None, None), None);
        assert_eq!(by_a_restart(false, Some("always"), Some("3600 1 300 100 60 10000")), Some(3_600 * SECOND));
        assert_eq!(by_a_restart(false, Some("always"), Some("300 100")), None);
        assert_eq!(by_a_restart(false, Some("always"), Some("")), None);
        assert_eq!(by_a_restart(false, Some("always"), None), None);
    }
}
