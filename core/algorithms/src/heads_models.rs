//! Models of the heads of lines, for loom and shuttle: see `log_models.rs`.

use super::*;
use crate::atomic::AtomicU64 as Cell;
use crate::models::{Arc, model, thread};

const NAME: u64 = 6;

fn table() -> Arc<Vec<Cell>> {
    Arc::new((0..Heads::words(8)).map(|_| Cell::new(0)).collect())
}

/// A line joins and asks for a unit, while a completer returns one and calls the least head: one of them sees the other.
#[test]
fn a_unit_that_returns_while_a_line_joins_is_seen_or_rung() {
    model(|| {
        let (words, free) = (table(), Arc::new(Cell::new(0)));
        let line = thread::spawn({
            let (words, free) = (words.clone(), free.clone());
            move || {
                let heads = Heads::new(&words);
                heads.join(NAME, 1, tag(0, 5), 1).unwrap();
                free.load(Acquire) == 1
            }
        });
        free.store(1, Release);
        let rung = Heads::new(&words).first(NAME).is_some();
        let seen = line.join().unwrap();
        assert!(seen || rung, "the line sleeps, and nobody rings");
    });
}

/// Two lines join at the same time: each that asks after the other has shown itself sees it, so at most one has the turn.
#[test]
fn of_two_lines_that_join_one_has_the_turn() {
    model(|| {
        let words = table();
        let join = |words: Arc<Vec<Cell>>, owner: u64| {
            move || {
                let heads = Heads::new(&words);
                let at = heads.join(NAME, owner, tag(0, owner), 1).unwrap();
                heads.survey(NAME, at, 0).least.is_some_and(|least| least.at == at)
            }
        };
        let other = thread::spawn(join(words.clone(), 1));
        let mine = join(words.clone(), 2)();
        let other = other.join().unwrap();
        // (The line that was shown first may have looked before the other was there.)
        assert!(other || mine, "nobody has the turn");
        let heads = Heads::new(&words);
        let least = heads.first(NAME).unwrap();
        assert_eq!((least.owner, least.tag), (1, tag(0, 1)));
        assert!(other, "the line that asked first sees nobody before it");
    });
}

/// A line leaves and the reach shrinks, while another joins: it is found.
#[test]
fn a_reach_that_shrinks_covers_a_line_that_joins() {
    model(|| {
        let words = table();
        let heads = Heads::new(&words);
        let first = heads.join(NAME, 1, tag(0, 1), 1).unwrap();
        heads.leave(first, 1);
        let other = thread::spawn({
            let words = words.clone();
            move || Heads::new(&words).join(NAME, 2, tag(0, 2), 1).unwrap()
        });
        heads.first(NAME);
        let at = other.join().unwrap();
        assert_eq!(heads.first(NAME).map(|head| head.at), Some(at), "a line that nobody sees");
    });
}

/// A head is asked or skipped while its line shows the next one: the next one is neither.
#[test]
fn a_mark_does_not_hit_the_next_head() {
    for skips in [false, true] {
        model(move || {
            let words = table();
            let heads = Heads::new(&words);
            let at = heads.join(NAME, 1, tag(0, 1), 1).unwrap();
            let judged = heads.first(NAME).unwrap();
            let line = thread::spawn({
                let words = words.clone();
                move || Heads::new(&words).show(at, tag(0, 3), 1)
            });
            if skips {
                heads.skip(judged)
            } else {
                heads.ask(judged)
            }
            line.join().unwrap();
            assert!(heads.shows(at, 1, tag(0, 3), 1), "a line is marked that runs");
        });
    }
}

/// Two lines find a dead head in their way, while a third joins: nobody removes the entry of a living one, and what is
/// read is of one line.
#[test]
fn a_dead_entry_is_removed_once_and_its_reuse_is_seen_whole() {
    model(|| {
        let words = table();
        let heads = Heads::new(&words);
        heads.join(NAME, 1, tag(0, 1), 11).unwrap();
        let dead = heads.first(NAME).unwrap();
        let other = thread::spawn({
            let words = words.clone();
            move || {
                let heads = Heads::new(&words);
                heads.remove(dead);
                heads.join(NAME, 2, tag(0, 2), 22).unwrap()
            }
        });
        heads.remove(dead);
        let seen = heads.first(NAME);
        let whole = [(1, tag(0, 1), 11), (2, tag(0, 2), 22)];
        assert!(seen.is_none_or(|h| whole.contains(&(h.owner, h.tag, h.units))), "{seen:?} is of two lines");
        let at = other.join().unwrap();
        assert!(heads.is_of(at, 2) && heads.shows(at, 2, tag(0, 2), 22), "a living line lost its entry");
    });
}
