//! Models of grants, for loom and shuttle: see `log_models.rs`.

use super::*;
use crate::algorithm::models::{Arc, model, thread};
use crate::atomic::AtomicU64 as Cell;

const NOW: Tick = 10_000_000;
const LENGTHS: Lengths = Lengths { grant: 25_000, trust: 500_000, period: 125_000 };
const CLOSED: u64 = u64::MAX;

struct Key {
    words: Vec<Cell>,
    life: Cell,
}

impl Key {
    fn with(units: u64) -> Arc<Key> {
        let key = Arc::new(Key { words: (0..WORDS).map(|_| Cell::new(0)).collect(), life: Cell::new(1) });
        key.refill(1, &[grant(1, units)], NOW);
        key
    }

    fn grants(&self, number: u64) -> Grants<'_> {
        Grants { words: &self.words, life: &self.life, number }
    }

    /// Asks and is answered; how many units stay of what has ended.
    fn refill(&self, number: u64, grants: &[Grant], now: Tick) -> u64 {
        let question = self.grants(number).question(Wish::Start(1), LENGTHS, now);
        let told = Told { now, epoch: 0, gate: 0, next: now + 1, remaining: 0, empty: now, grants: grants.to_vec() };
        self.grants(number).accept(&question, &told, (now, now), LENGTHS);
        question.reports.iter().map(|report| report[2]).sum()
    }
}

fn grant(ticket: u64, units: u64) -> Grant {
    Grant { ticket, ready: NOW, ends: NOW + LENGTHS.grant, stamp: NOW + LENGTHS.grant + 1, units }
}

/// Two starts, and somebody who ends the grant and tells how many units stay: no more have started than that.
#[test]
fn what_is_returned_does_not_start() {
    model(|| {
        let key = Key::with(2);
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let key = key.clone();
                thread::spawn(move || u64::from(key.grants(1).take(1, NOW).is_some()))
            })
            .collect();
        let stay = key.refill(1, &[], NOW + LENGTHS.grant);
        let started: u64 = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
        assert!(started <= stay, "{started} of {stay}");
    });
}

/// A start that is given back while its grant ends and another one comes: no unit is there twice.
#[test]
fn what_is_given_back_late_is_no_other_grants() {
    model(|| {
        let key = Key::with(1);
        let taken = key.grants(1).take(1, NOW).unwrap();
        let other = key.clone();
        let gives = thread::spawn(move || other.grants(1).give_back(taken.ticket, taken.unit, 1));
        let stay = key.refill(1, &[grant(2, 1)], NOW + LENGTHS.grant - 2);
        let was_here = gives.join().unwrap();
        let left: u64 = (0..3).filter(|_| key.grants(1).take(1, NOW).is_some()).count() as u64;
        // One of the new grant; and the first again, if it was given back before that ended, or has not ended.
        let stay = if stay > 0 || was_here { stay } else { 0 };
        assert!(left <= 2 && (left < 2 || was_here), "{left} left, {stay} stay, {was_here}");
    });
}

/// An answer that comes when the words are another key's by now: nobody starts there by what was granted to this one.
#[test]
fn an_answer_that_comes_late_is_no_other_keys() {
    model(|| {
        let key = Arc::new(Key { words: (0..WORDS).map(|_| Cell::new(0)).collect(), life: Cell::new(1) });
        let other = key.clone();
        let question = key.grants(1).question(Wish::Start(1), LENGTHS, NOW);
        let late = thread::spawn(move || {
            let told =
                Told { now: NOW, epoch: 0, gate: 0, next: NOW, remaining: 0, empty: NOW, grants: vec![grant(7, 5)] };
            other.grants(1).accept(&question, &told, (NOW, NOW), LENGTHS);
        });
        key.life.store(CLOSED, Release);
        key.grants(CLOSED).begin_anew();
        key.life.store(2, Release);
        assert_eq!(key.grants(2).take(1, NOW), None);
        late.join().unwrap();
        assert_eq!(key.grants(2).take(1, NOW), None, "units of another key");
    });
}
