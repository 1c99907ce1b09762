//! Models of grants, for loom and shuttle: see `log_models.rs`.

use super::*;
use crate::atomic::AtomicU64 as Cell;
use crate::models::{Arc, model, thread};

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

    /// Asks and gets a reply; returns how many units of the ended grants stay used.
    fn refill(&self, number: u64, grants: &[Grant], now: Tick) -> u64 {
        let question = self.grants(number).question(Wish::Start(1), LENGTHS, now);
        let reply = Reply { now, epoch: 0, gate: 0, next: now + 1, remaining: 0, empty: now, grants: grants.to_vec() };
        self.grants(number).accept(&question, &reply, (now, now), LENGTHS, false);
        question.reports.iter().map(|report| report[2]).sum()
    }
}

fn grant(ticket: u64, units: u64) -> Grant {
    Grant { ticket, ready: NOW, ends: NOW + LENGTHS.grant, stamp: NOW + LENGTHS.grant + 1, units }
}

/// Two starts, while another thread ends the grant and reports how many units stay used: at most that many have
/// started.
#[test]
fn returned_units_do_not_start() {
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

/// A start is given back while its grant ends and another one comes: no unit exists twice.
#[test]
fn a_late_return_does_not_reach_another_grant() {
    model(|| {
        let key = Key::with(1);
        let taken = key.grants(1).take(1, NOW).unwrap();
        let other = key.clone();
        let gives = thread::spawn(move || other.grants(1).give_back(taken.ticket, taken.unit, 1));
        let stay = key.refill(1, &[grant(2, 1)], NOW + LENGTHS.grant - 2);
        let was_here = gives.join().unwrap();
        let left: u64 = (0..3).filter(|_| key.grants(1).take(1, NOW).is_some()).count() as u64;
        // One of the new grant; and the first again, if it was given back before that grant ended, or the grant has not
        // ended.
        let stay = if stay > 0 || was_here { stay } else { 0 };
        assert!(left <= 2 && (left < 2 || was_here), "{left} left, {stay} stay, {was_here}");
    });
}

/// A reply arrives after the words were reused for another key: no start of that key uses this key's grants.
#[test]
fn a_late_reply_does_not_reach_another_key() {
    model(|| {
        let key = Arc::new(Key { words: (0..WORDS).map(|_| Cell::new(0)).collect(), life: Cell::new(1) });
        let other = key.clone();
        let question = key.grants(1).question(Wish::Start(1), LENGTHS, NOW);
        let late = thread::spawn(move || {
            let reply =
                Reply { now: NOW, epoch: 0, gate: 0, next: NOW, remaining: 0, empty: NOW, grants: vec![grant(7, 5)] };
            other.grants(1).accept(&question, &reply, (NOW, NOW), LENGTHS, false);
        });
        key.life.store(CLOSED, Release);
        key.grants(CLOSED).begin_next_life();
        key.life.store(2, Release);
        assert_eq!(key.grants(2).take(1, NOW), None);
        late.join().unwrap();
        assert_eq!(key.grants(2).take(1, NOW), None, "units of another key");
    });
}

/// The words are reused for another key while a caller that found them before starts: it starts by its own key's grant,
/// or not.
#[test]
fn a_caller_with_reused_words_starts_nothing_of_the_new_key() {
    model(|| {
        let key = Key::with(1);
        let other = key.clone();
        let late = thread::spawn(move || other.grants(1).take(1, NOW).map(|taken| taken.ticket));
        assert!(key.grants(1).begin(2).is_ok());
        assert_eq!(key.grants(1).begin_as_another(|| {}), 3);
        key.refill(3, &[grant(9, 1)], NOW);
        key.grants(3).end();
        assert_ne!(late.join().unwrap(), Some(9), "a unit of another key");
        assert_eq!(key.grants(3).take(1, NOW).map(|taken| taken.ticket), Some(9));
    });
}

/// Two threads find that a process died while it asked: one takes over, and nothing starts by the earlier grants.
#[test]
fn one_thread_takes_over_for_the_dead() {
    model(|| {
        let key = Key::with(1);
        assert!(key.grants(1).begin(1).is_ok());
        let finders: Vec<_> = [2, 3]
            .map(|process| {
                let key = key.clone();
                thread::spawn(move || {
                    let grants = key.grants(1);
                    let Err(dead) = grants.begin(process) else {
                        // The other has ended.
                        grants.end();
                        return false;
                    };
                    let goes_on = dead.process() == 1 && grants.take_over(&dead, process);
                    if goes_on {
                        assert_eq!(grants.take(1, NOW), None);
                        grants.end();
                    }
                    goes_on
                })
            })
            .into();
        let count = finders.into_iter().map(|finder| u64::from(finder.join().unwrap())).sum::<u64>();
        assert_eq!(count, 1, "threads that take over");
        assert!(key.grants(1).begin(4).is_ok());
    });
}
