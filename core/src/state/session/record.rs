//! Before the first start of a process in a lane: the database learns that starts may be missing (`committed.rs`).

use super::Session;
use crate::error::{Error, Result};
use crate::fault;
use crate::state::cells::locked::Locked;
use crate::state::files::lane;

impl Session {
    /// Called before the first start of this process in a lane. Deletes the lane's record if starts of the process may
    /// happen before they are written.
    pub(in crate::state) fn may_miss_starts(&self, locked: &Locked) -> Result<()> {
        if !locked.is_lane()
            || locked.commits
            || lane::may_miss_starts(&locked.arena)
            || fault::planted("never missing")
        {
            return Ok(());
        }
        let is_last = self.with_database(|database| {
            // Numbered like a commit to the ledger, so that an older copy of the database, which has the record, is noticed.
            let sequence = lane::raise_sequence(&locked.arena, database.sequence);
            let is_last = database.delete_record_of((locked.instance, sequence))?;
            if is_last {
                lane::have_committed(&locked.arena, sequence);
            }
            Ok(is_last)
        })?;
        fault::point("record-deleted");
        if !is_last {
            // The next attempt finds the lane that has replaced this one.
            return Err(Error::busy(format!("using {}", self.url())));
        }
        lane::set_may_miss_starts(&locked.arena);
        Ok(())
    }
}
