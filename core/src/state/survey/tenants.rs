//! The tenants of a limit that they share: those that wait, and those for which a share is kept.

use super::id_of;
use crate::atomic::*;
use crate::hash::Hash;
use crate::policy::Share;
use crate::snapshot::TenantSnapshot;
use crate::state::cells::home::Table;
use crate::state::cells::index::Index;
use crate::state::cells::layout::{At, BlockAt, key_word};
use crate::state::cells::limit::LimitCells;
use crate::state::cells::segment::block;
use crate::time::{Tick, from_ticks};
use std::collections::HashSet;

/// A share that is kept for a tenant.
struct Kept {
    hash: Hash,
    at: BlockAt,
    share: Share,
}

impl LimitCells<'_> {
    /// The tenants that wait, the next one first; then the one that is sought, if a share is kept for it; then at most `most`
    /// others for which one is kept, of so many keys.
    pub(super) fn survey_tenants(
        self,
        table: &Table,
        sought: Option<Hash>,
        (walked, most): (usize, usize),
    ) -> Vec<TenantSnapshot> {
        let Some(tenants) = self.home.tenants(self.at, table.capacity) else { return Vec::new() };
        let index = self.home.index(table);
        // (Lines count time from the boot.)
        let (_, now) = self.home.clock.now_and_uptime();
        let mut all: Vec<TenantSnapshot> = Vec::new();
        let mut seen = HashSet::new();
        for head in tenants.heads.in_order(0) {
            let waits = Some(from_ticks((now as Tick).saturating_sub(head.since())));
            let id = id_of(Hash([head.name, 0]));
            if !seen.insert(head.name) {
                // It waits in several processes.
                let before = all.iter_mut().filter(|tenant| tenant.id == id);
                before.for_each(|tenant| tenant.waits = tenant.waits.max(waits));
                continue;
            }
            let (key, share) = match index.kept_share(head.name) {
                Some(kept) => (self.home.block(kept.at).text(), kept.share),
                None => (format!("#{id}"), 1),
            };
            all.push(TenantSnapshot { key, id, share, waits });
        }
        let others = index.blocks().take(walked).filter_map(|at| index.share_at(at));
        let others = others.filter(|kept| Some(kept.hash) != sought && !seen.contains(&kept.hash.0[0])).take(most);
        let sought = sought.filter(|sought| !seen.contains(&sought.0[0]));
        let sought = sought.and_then(|sought| index.kept_share(sought.0[0]));
        all.extend(sought.into_iter().chain(others).map(|Kept { hash, at, share }| {
            let (key, id) = (self.home.block(at).text(), id_of(hash));
            TenantSnapshot { key, id, share, waits: None }
        }));
        all
    }
}

impl Index<'_, '_> {
    /// The share that is kept for a tenant: found by the half of its hash that its line shows, and that says where it is.
    fn kept_share(self, half: u64) -> Option<Kept> {
        let root = self.root()?;
        let slots = self.home.segment_at(root, root.entry_of(half)).slots();
        let from = half as usize & (slots.len() - 1);
        let mut found = slots[from..].iter().chain(&slots[..from]).map_while(|slot| block(slot.load(Acquire)));
        found.find_map(|at| self.share_at(at).filter(|kept| kept.hash.0[0] == half))
    }

    /// The share that is kept at a block.
    fn share_at(self, at: BlockAt) -> Option<Kept> {
        let block = self.home.block(at);
        let hash = block.checked_hash()?;
        let plan = At::some(block.word(key_word::TABLE).load(Acquire))?;
        // The block may belong to another index by now. A share of 1 is not kept.
        let share = self.home.of(self.table).has_plan(plan).then(|| self.home.table_at(plan).policy.share())?;
        (share > 1).then_some(Kept { hash, at, share })
    }
}
