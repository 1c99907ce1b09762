//! Models of what tenants have had, for loom and shuttle: see `log_models.rs`.

use super::*;
use crate::atomic::AtomicU64 as Cell;
use crate::models::{Arc, model, thread};

struct Cells(Cell, Vec<Cell>);

fn cells(slots: usize) -> Arc<Cells> {
    Arc::new(Cells(Cell::new(0), (0..2 * slots).map(|_| Cell::new(0)).collect()))
}

fn shares(cells: &Cells) -> Shares<'_> {
    Shares::new(&cells.0, &cells.1, 10)
}

/// Two processes start for the same tenant at the same time, for which one of them makes the slot: both starts are charged.
#[test]
fn two_starts_of_a_tenant_are_both_charged() {
    model(|| {
        let cells = cells(2);
        let other = thread::spawn({
            let cells = cells.clone();
            move || shares(&cells).charge(7, 1, 1)
        });
        shares(&cells).charge(7, 1, 1);
        other.join().unwrap();
        let shares = shares(&cells);
        // `V` is the beginning of the first, or of the second.
        assert_eq!(shares.now() + shares.lead(7, shares.now()), 2 << UNIT, "a start was charged to nobody");
    });
}

/// Two tenants start, and a third process looks: `V` does not go back, and a tenant's own start never lessens its lead.
#[test]
fn virtual_time_does_not_go_back() {
    model(|| {
        let cells = cells(4);
        shares(&cells).charge(7, 2, 1);
        let other = thread::spawn({
            let cells = cells.clone();
            move || shares(&cells).charge(7, 1, 1)
        });
        let mine = thread::spawn({
            let cells = cells.clone();
            move || shares(&cells).charge(8, 1, 1)
        });
        let (first, second) = (shares(&cells).now(), shares(&cells).now());
        assert!(first <= second, "V goes back from {first} to {second}");
        other.join().unwrap();
        mine.join().unwrap();
        let shares = shares(&cells);
        let (now, lead) = (shares.now(), |tenant| shares.lead(tenant, shares.now()));
        assert_eq!(now, 2 << UNIT, "the later of the two beginnings");
        assert_eq!(lead(7), 1 << UNIT);
        assert!(lead(8) <= 1 << UNIT);
    });
}

/// A slot whose tenant has no lead passes to another, while a third looks for the first tenant: it finds no lead, nor that of
/// the other for long.
#[test]
fn a_slot_that_passes_on_is_not_taken_for_the_other_tenants() {
    model(|| {
        let cells = cells(1);
        shares(&cells).charge(7, 1, 1);
        cells.0.store(1 << UNIT, Release);
        let other = thread::spawn({
            let cells = cells.clone();
            move || shares(&cells).charge(8, 3, 1)
        });
        let seen = shares(&cells).lead(7, 1 << UNIT);
        assert!(seen == 0 || seen == 3 << UNIT, "{seen}");
        other.join().unwrap();
        let shares = shares(&cells);
        assert_eq!((shares.lead(7, shares.now()), shares.lead(8, shares.now())), (0, 3 << UNIT));
    });
}
