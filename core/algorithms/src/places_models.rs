//! Models of open places, for loom and shuttle: see `log_models.rs`.

use super::*;
use crate::atomic::AtomicU64 as Cell;
use crate::models::{Arc, model_all as model, thread};

const NOW: Tick = 5 << COARSE;
const END: Tick = 6 << COARSE;

/// Two copies of a place are presented while another thread takes the next place: one copy starts, with its own era.
#[test]
fn of_two_copies_one_starts() {
    model(|| {
        let slots: Arc<Vec<Cell>> = Arc::new((0..2).map(|_| Cell::new(0)).collect());
        let place = Places { slots: &slots }.open(END, 1, NOW, 0).unwrap();
        let other = slots.clone();
        let other = thread::spawn(move || {
            let places = Places { slots: &other };
            let mine = places.close(place, END);
            let next = places.open(END, 2, NOW, 0);
            (mine, next.map(|next| places.close(next, END)))
        });
        let mine = Places { slots: &slots }.close(place, END);
        let (theirs, next) = other.join().unwrap();
        assert!([(Some(1), None), (None, Some(1))].contains(&(mine, theirs)), "{mine:?} {theirs:?}");
        assert_eq!(next, Some(Some(2)));
    });
}
