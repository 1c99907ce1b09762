//! What each tenant of a shared limit has had, by its share, so that the next start goes to the one that has had the least:
//! start-time fair queueing. Lock-free.
//!
//! Time is *virtual*: a start of weight `w` takes a tenant with the share `r` the time `w / r`. `V` is when the last start
//! began. `F` of a tenant is when its last start ends; its next one begins then, or at `V` if that is later. How much later
//! than `V` it begins is the tenant's *lead*. Whoever has the least lead is next.
//!
//! # Shape
//!
//! One word for `V`, and slots of two words for the tenants: tenant, `F`. A tenant may be in any of [`WINDOW`] slots from its
//! first one on.
//!
//! # Correctness
//!
//! 1. *This admits nothing*, so no word of it can exceed a limit. A wrong one costs the order of some starts.
//! 2. *A tenant without a lead needs no slot.* What its slot says is what is said of any tenant without one: it begins at
//!    `V`. So a slot whose tenant has no lead may be another's at any time, and no tenant has to be told that nobody waits.
//! 3. *A lead is bounded.* A start begins at `V` at the latest when it is charged, and takes the time of its weight. So a lead
//!    above twice the capacity is not one: it is what a slot said long ago, or another program wrote. It counts as none.
//! 4. *`V` never goes back*, and is at most the beginning of the next start of any tenant that waits in its turn, because
//!    starts are charged in the order of leads. So who comes, or comes back, begins at `V` and takes nothing from anyone.
//! 5. *A death is harmless.* Before the charge, its tenant has had one start more. Between the two words of a charge `V` is
//!    late by one start, until the next one.
//!
//! # Orderings
//!
//! No word tells of another. Two that charge at the same moment, or a slot that passes to another tenant then, cost one
//! start's charge (1).

use crate::atomic::{AtomicU64, *};
use crate::fault;

/// The words of a slot.
pub const SLOT_WORDS: u64 = 2;

/// The number of slots in which a tenant may be.
const WINDOW: usize = 16;

/// The virtual time of one unit at the share 1, in powers of 2. (The heaviest start is 10⁹ units. Times wrap.)
const UNIT: u32 = 20;

/// What the tenants of a limit have had, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub struct Shares<'a> {
    /// `V`.
    now: &'a AtomicU64,
    slots: &'a [[AtomicU64; SLOT_WORDS as usize]],
    /// The longest lead (3).
    most: u64,
}

impl<'a> Shares<'a> {
    /// What is in these words: one, and [`SLOT_WORDS`] for each slot. A start takes at most `capacity` units.
    pub fn new(now: &'a AtomicU64, slots: &'a [AtomicU64], capacity: u64) -> Shares<'a> {
        Shares { now, slots: slots.as_chunks().0, most: capacity.saturating_mul(2 << UNIT) }
    }

    /// `V`, for [`Shares::lead`]: all leads that are compared have to be from the same moment.
    pub fn now(&self) -> u64 {
        self.now.load(Acquire)
    }

    /// How long after `now` the next start of this tenant begins.
    pub fn lead(&self, tenant: u64, now: u64) -> u64 {
        self.slot_of(tenant).map_or(0, |[_, end]| self.lead_of(end.load(Acquire), now))
    }

    fn lead_of(&self, end: u64, now: u64) -> u64 {
        // (3)
        Some(end.wrapping_sub(now)).filter(|lead| *lead <= self.most).unwrap_or(0)
    }

    fn window(&self, tenant: u64) -> impl Iterator<Item = &'a [AtomicU64; 2]> {
        let (slots, count) = (self.slots, self.slots.len());
        let first = if count == 0 { 0 } else { tenant as usize % count };
        (0..WINDOW.min(count)).map(move |i| &slots[(first + i) % count])
    }

    fn slot_of(&self, tenant: u64) -> Option<&'a [AtomicU64; 2]> {
        // (No slot is ever empty again, and a tenant takes the first that it may have. So none is behind an empty one.)
        self.window(tenant)
            .map(|slot| (slot, slot[0].load(Acquire)))
            .take_while(|(_, other)| *other != 0)
            .find(|(_, other)| *other == tenant)
            .map(|(slot, _)| slot)
    }

    /// A slot of this tenant: its own, or one of those whose tenants have the least lead (2).
    fn take_slot(&self, tenant: u64, now: u64) -> Option<&'a [AtomicU64; 2]> {
        loop {
            if let Some(slot) = self.slot_of(tenant) {
                return Some(slot);
            }
            let lead = |[other, end]: &[AtomicU64; 2]| match other.load(Acquire) {
                0 => 0,
                _ => self.lead_of(end.load(Acquire), now),
            };
            let [holder, end] = self.window(tenant).min_by_key(|slot| lead(slot))?;
            let (other, ends) = (holder.load(Acquire), end.load(Acquire));
            if other != tenant && holder.compare_exchange(other, tenant, AcqRel, Relaxed).is_ok() {
                fault::point("tenant-taken");
                // The lead of another tenant is not this one's. (Nor is a charge to this one, which may have come since.)
                if self.lead_of(ends, now) > 0 {
                    let _ = end.compare_exchange(ends, now, AcqRel, Relaxed);
                }
                // (Another start may have taken one before this: then it is that one.)
            }
        }
    }

    /// Charges a start of this weight to a tenant with this share.
    pub fn charge(&self, tenant: u64, weight: u64, share: u32) {
        let now = self.now();
        let Some([_, end]) = self.take_slot(tenant, now) else { return };
        let cost = cost(weight, share);
        let mut begins = now;
        let _ = end.fetch_update(AcqRel, Acquire, |end| {
            begins = now.wrapping_add(self.lead_of(end, now));
            Some(begins.wrapping_add(cost))
        });
        fault::point("tenant-charged");
        // (4): the later of the two. (Where times wrap, what is not far ahead is behind.)
        let later = |now| (self.lead_of(begins, now) > 0).then_some(begins);
        let _ = self.now.fetch_update(AcqRel, Acquire, later);
    }

    /// Takes a charge back, for a start that will not be.
    pub fn take_back(&self, tenant: u64, weight: u64, share: u32) {
        let (now, cost) = (self.now(), cost(weight, share));
        let Some([_, end]) = self.slot_of(tenant) else { return };
        let _ = end.fetch_update(AcqRel, Acquire, |end| {
            let lead = self.lead_of(end, now);
            (lead > 0).then(|| now.wrapping_add(lead.saturating_sub(cost)))
        });
    }
}

/// The virtual time of a start.
fn cost(weight: u64, share: u32) -> u64 {
    (weight << UNIT) / u64::from(share.max(1))
}

#[cfg(all(test, model))]
#[path = "shares_models.rs"]
mod models;

#[cfg(all(test, not(model)))]
mod tests {
    use super::*;

    struct Cells(AtomicU64, Vec<AtomicU64>);

    impl Cells {
        fn new(slots: usize) -> Cells {
            Cells(AtomicU64::new(0), (0..2 * slots).map(|_| AtomicU64::new(0)).collect())
        }

        fn shares(&self) -> Shares<'_> {
            Shares::new(&self.0, &self.1, 10)
        }
    }

    /// Starts so many units for whoever has the least lead, of tenants that always wait. Checks T4 after each start: what two
    /// tenants have had differs by at most one heaviest start each, by their shares.
    fn serve(shares: &Shares, tenants: &[(u64, u32, u64)], starts: usize) -> Vec<u64> {
        let mut had = vec![0; tenants.len()];
        for _ in 0..starts {
            let now = shares.now();
            let next = (0..tenants.len()).min_by_key(|i| (shares.lead(tenants[*i].0, now), *i)).unwrap();
            let (tenant, share, weight) = tenants[next];
            shares.charge(tenant, weight, share);
            had[next] += weight;
            for (i, (_, r, w)) in tenants.iter().enumerate() {
                for (j, (_, q, v)) in tenants.iter().enumerate() {
                    let by_share = |units: u64, share: u32| units as f64 / f64::from(share);
                    let differ = by_share(had[i], *r) - by_share(had[j], *q);
                    assert!(differ <= by_share(*w, *r) + by_share(*v, *q) + 1e-3, "{i} and {j}: {had:?}");
                }
            }
        }
        had
    }

    #[test]
    fn tenants_that_keep_waiting_have_starts_by_their_shares() {
        let cells = Cells::new(64);
        let had = serve(&cells.shares(), &[(7, 1, 1), (8, 3, 1), (9, 2, 1)], 6_000);
        assert_eq!(had, [1_000, 3_000, 2_000]);
        let cells = Cells::new(64);
        serve(&cells.shares(), &[(7, 1, 3), (8, 1, 1), (9, 1_000, 10), (10, 7, 5)], 20_000);
        // Also where times wrap.
        let cells = Cells::new(64);
        cells.0.store(u64::MAX - (1 << 22), Relaxed);
        let had = serve(&cells.shares(), &[(7, 1, 1), (8, 3, 1), (9, 2, 1)], 600);
        assert_eq!(had, [100, 300, 200]);
    }

    #[test]
    fn who_comes_back_from_silence_has_neither_credit_nor_debt() {
        let cells = Cells::new(64);
        let shares = cells.shares();
        shares.charge(9, 10, 1);
        (0..1_000).for_each(|_| shares.charge(7, 1, 1));
        let now = shares.now();
        assert_eq!((shares.lead(9, now), shares.lead(7, now)), (0, 1 << UNIT), "it begins where all are");
        let had = serve(&shares, &[(7, 1, 1), (9, 1, 1)], 100);
        assert_eq!(had, [50, 50]);
    }

    #[test]
    fn a_share_changes_in_between_and_a_charge_is_taken_back() {
        let cells = Cells::new(64);
        let shares = cells.shares();
        serve(&shares, &[(7, 1, 1), (8, 1, 1)], 500);
        assert_eq!(serve(&shares, &[(7, 4, 1), (8, 1, 1)], 500), [400, 100]);
        let now = shares.now();
        let before = [7, 8].map(|tenant| shares.lead(tenant, now));
        shares.charge(8, 5, 1);
        shares.take_back(8, 5, 1);
        let after = [7, 8].map(|tenant| shares.lead(tenant, now));
        assert!(after[1].abs_diff(before[1]) <= 1 << UNIT && after[0] == before[0], "{before:?} {after:?}");
    }

    #[test]
    fn slots_are_used_again_and_any_words_are_no_harm() {
        let cells = Cells::new(WINDOW);
        let shares = cells.shares();
        // Each starts once, and leaves. Whoever has had most lately keeps a slot.
        for tenant in 1..1_000 {
            shares.charge(tenant, 1, 1);
            shares.charge(5_000, 1, 1);
        }
        let now = shares.now();
        assert!(shares.lead(5_000, now) > 0);
        for value in [1, u64::MAX, 1 << 63, 77] {
            cells.0.store(value, Relaxed);
            cells.1.iter().for_each(|word| word.store(value.rotate_left(9), Relaxed));
            assert!(serve(&shares, &[(7, 1, 1), (8, 1, 1)], 100).iter().all(|had| *had > 0));
        }
        let none = Shares::new(&cells.0, &[], 10);
        none.charge(1, 1, 1);
        assert_eq!(none.lead(1, none.now()), 0);
    }
}
