//! Operations on one key beside a change of its whole limit: first, during it, or after its process died.
//!
//! Whichever counts as first, the outcome is that of one order or the other. Both orders are tried on another store, one
//! step after the other, and the pair must end like one of them.

use crate::common::limits::patient;
use crate::common::{self, Child, Dir};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Waiter};
use workglow_limit::*;

/// How many other keys make a change take several steps: one that moves keys, or one that forgets whole segments of the
/// index.
const FEW: u64 = 40;
const MANY: u64 = 800;

/// A policy, one with more and one with fewer units, and one whose keys have blocks of another size.
const POLICIES: [[&str; 4]; 5] = [
    ["9/100h", "12/100h", "4/100h", "200/100h"],
    ["9/100h burst 9", "9/100h burst 12", "9/100h burst 4", "9/100h burst 20"],
    ["9/100h fixed", "12/100h fixed", "4/100h fixed", "20/100h fixed"],
    ["9/100h counter", "12/100h counter", "4/100h counter", "20/100h counter"],
    ["9 concurrent", "12 concurrent", "4 concurrent", "200 concurrent"],
];

/// A change of the whole limit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Whole {
    Clear,
    /// By the policy with this index.
    Override(usize),
    Lift,
    /// And its name is another kind's from then on.
    Forget,
}

impl Whole {
    fn others(self) -> u64 {
        if let Whole::Clear | Whole::Forget = self { MANY } else { FEW }
    }
}

const WHOLES: [Whole; 6] =
    [Whole::Clear, Whole::Override(1), Whole::Override(2), Whole::Override(3), Whole::Lift, Whole::Forget];

/// An operation on one key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum One {
    Start,
    Settle(u64),
    Cancel,
    Complete,
    Present,
    CancelPlace,
    Reserve,
    Pause,
    Clear,
    Override,
    Lift,
}

const STARTS: [One; 9] = [
    One::Start,
    One::Settle(0),
    One::Settle(4),
    One::Cancel,
    One::Complete,
    One::Present,
    One::CancelPlace,
    One::Reserve,
    One::Pause,
];

/// What the key was before.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Before {
    Unknown,
    Used,
    Idle,
    /// With a policy of its own.
    Own,
    OwnIdle,
}

const STATES: [Before; 5] = [Before::Unknown, Before::Used, Before::Idle, Before::Own, Before::OwnIdle];

struct Site {
    store: Store,
    limiter: Arc<dyn Limiter>,
    policies: &'static [&'static str; 4],
}

/// A key, and what its users hold.
struct Key {
    text: String,
    start: Option<RawPermit>,
    place: Option<RawPermit>,
}

type Pair = (One, Before);

/// A key's limit, free units, whether it is paused, and the answer of the operation.
type Outcome = (u64, u64, bool, String);

fn name<R>(answer: Result<R>) -> String {
    answer.map_or_else(|error| error.name().to_owned(), |_| "done".to_owned())
}

impl Site {
    fn new(url: &str, policies: &'static [&'static str; 4], whole: Whole) -> Site {
        let store = patient(url);
        let limiter = store.limiter("api", policies[0]).unwrap();
        limiter.open().unwrap();
        if whole == Whole::Lift {
            store.override_text("api", policies[1]).unwrap();
        }
        Site { store, limiter, policies }
    }

    /// Prepares a key: with a start of two units and a place of one, or idle.
    fn key(&self, text: String, before: Before) -> Key {
        let key = Key { text, start: None, place: None };
        if let Before::Own | Before::OwnIdle = before {
            self.store.override_key("api", self.policies[3], &key.text).unwrap();
        }
        match before {
            Before::Unknown | Before::OwnIdle => key,
            Before::Idle => {
                let permit = self.admit(&key.text).unwrap();
                self.limiter.cancel(&permit).unwrap();
                key
            }
            Before::Used | Before::Own => {
                let reserved = self.limiter.reserve(&key.text, 1, None, Some(Duration::from_secs(3_600)));
                let place = match reserved {
                    Ok(Reserved::Place { place, .. }) => Some(place),
                    _ => None,
                };
                Key { start: self.admit(&key.text), place, ..key }
            }
        }
    }

    /// Prepares other keys, and for each pair one of its own.
    fn keys(&self, others: u64, pairs: &[Pair]) -> Vec<Key> {
        for key in 0..others {
            self.admit(&key.to_string());
        }
        pairs.iter().map(|(one, before)| self.key(format!("{one:?} {before:?}"), *before)).collect()
    }

    fn admit(&self, key: &str) -> Option<RawPermit> {
        match self.limiter.attempt(key, 2).unwrap() {
            Attempt::Admitted(permit) => Some(permit),
            Attempt::Denied(_) => None,
        }
    }

    fn change(&self, whole: Whole) {
        match whole {
            Whole::Clear => self.limiter.clear(""),
            Whole::Override(i) => self.store.override_text("api", self.policies[i]),
            Whole::Lift => self.store.lift("api"),
            Whole::Forget => self.store.forget("api").and_then(|()| self.store.limiter("api", "delay 1s")?.open()),
        }
        .unwrap();
    }

    fn change_one(&self, one: One, key: &Key) -> String {
        let (limiter, hour) = (&self.limiter, Duration::from_secs(3_600_000));
        let start = |f: &dyn Fn(&RawPermit) -> Result<()>| key.start.as_ref().map_or(String::new(), |of| name(f(of)));
        let place = |f: &dyn Fn(&RawPermit) -> String| key.place.as_ref().map_or(String::new(), f);
        match one {
            One::Start => match limiter.attempt(&key.text, 1) {
                Ok(Attempt::Denied(_)) => "denied".to_owned(),
                answer => name(answer),
            },
            One::Settle(units) => start(&|permit| limiter.settle(permit, units)),
            One::Cancel => start(&|permit| limiter.cancel(permit)),
            One::Complete => start(&|permit| limiter.complete(permit)),
            One::Present => place(&|place| match limiter.present(place) {
                Ok(Presented::Wait { .. }) => "another place".to_owned(),
                answer => name(answer),
            }),
            One::CancelPlace => place(&|place| name(limiter.cancel_place(place))),
            One::Reserve => name(limiter.reserve(&key.text, 1, None, Some(Duration::from_secs(3_600)))),
            One::Pause => name(limiter.pause(&key.text, hour)),
            One::Clear => name(limiter.clear(&key.text)),
            One::Override => name(self.store.override_key("api", self.policies[2], &key.text)),
            One::Lift => name(self.store.lift_key("api", &key.text)),
        }
    }

    fn operate(&self, pairs: &[Pair], keys: &[Key]) -> Vec<String> {
        pairs.iter().zip(keys).map(|((one, _), key)| self.change_one(*one, key)).collect()
    }

    fn outcomes(&self, keys: &[Key], answers: &[String]) -> Vec<Outcome> {
        assert_eq!(keys.len(), answers.len());
        keys.iter().zip(answers).map(|(key, answer)| self.outcome(key, answer)).collect()
    }

    fn outcome(&self, key: &Key, answer: &str) -> Outcome {
        match self.limiter.peek(&key.text, 1) {
            Ok(found) => {
                let is_paused = found.retry_after > Duration::from_secs(1_000_000);
                (found.limit, found.remaining, is_paused, answer.to_owned())
            }
            Err(error) => (0, 0, false, format!("{answer}, then {}", error.name())),
        }
    }
}

/// In which order the steps of a pair happen.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Change,
    Operate,
}

/// How these pairs end if one step comes after the other.
fn in_turn(policies: &'static [&'static str; 4], whole: Whole, pairs: &[Pair], steps: &[Step]) -> Vec<Outcome> {
    let site = Site::new("memory:", policies, whole);
    let keys = site.keys(0, pairs);
    let mut answers = Vec::new();
    for step in steps {
        match step {
            Step::Change => site.change(whole),
            Step::Operate => answers = site.operate(pairs, &keys),
        }
    }
    site.outcomes(&keys, &answers)
}

/// The orders that end like a change that happened beside the operations, or like one that did not.
const HAPPENED: &[&[Step]] = &[&[Step::Change, Step::Operate], &[Step::Operate, Step::Change]];
const NOT_HAPPENED: &[&[Step]] = &[&[Step::Operate]];

/// Describes the pairs that ended like none of these orders.
fn wrong(orders: &[Vec<Outcome>], pairs: &[Pair], found: &[Outcome]) -> Vec<String> {
    let is_wrong = |i: &usize| orders.iter().all(|order| order[*i] != found[*i]);
    let describe = |i: usize| {
        let expected: Vec<_> = orders.iter().map(|order| &order[i]).collect();
        format!("{:?}: {:?} is none of {expected:?}", pairs[i], found[i])
    };
    (0..pairs.len()).filter(is_wrong).map(describe).collect()
}

/// The pairs that are tried at a time. A change of a key's policy completes the change of its limit, so it is alone.
fn groups(states: &[Before]) -> Vec<Vec<Pair>> {
    let pairs = |one: One| STATES.map(|before| (one, before));
    let alone = |one: One| states.iter().map(move |before| vec![(one, *before)]);
    let mut groups: Vec<_> = [One::Clear, One::Override, One::Lift].into_iter().flat_map(alone).collect();
    groups.push(STARTS.into_iter().flat_map(pairs).collect());
    groups
}

/// The outcomes of these pairs, if the operations come while the lock is free for the first time during the change.
fn beside(site: Site, whole: Whole, pairs: &[Pair]) -> Vec<Outcome> {
    let site = Arc::new(site);
    let keys = Arc::new(site.keys(whole.others(), pairs));
    let answers = Arc::new(Mutex::new(Vec::new()));
    fault::in_small_steps(true);
    let operate = {
        let (site, keys, pairs, answers) = (site.clone(), keys.clone(), pairs.to_vec(), answers.clone());
        move || {
            let mut answers = answers.lock().unwrap();
            if answers.is_empty() {
                answers.extend(site.operate(&pairs, &keys));
                fault::in_small_steps(false);
            }
        }
    };
    if whole != Whole::Forget {
        fault::at("lock-left", operate.clone());
    }
    site.change(whole);
    // The keys of a forgotten limit are left to the next holders of the lock. And a thread that comes late to its second
    // step completes a change without leaving the lock once more.
    operate();
    let answers = answers.lock().unwrap();
    site.outcomes(&keys, &answers)
}

/// Runs a test in a process of its own, where no start waits for the ledger.
fn behind(test: impl FnOnce()) {
    Child::run(|| {
        common::write_behind_up_to(Duration::from_secs(3_600_000));
        test();
    })
    .join();
}

/// A key with a policy of its own kept its starts, if its policy was lifted before `clear` came to it.
#[test]
fn an_operation_beside_a_change_comes_before_or_after_it() {
    behind(|| {
        for policies in &POLICIES {
            for whole in WHOLES {
                for pairs in groups(&STATES) {
                    let orders: Vec<_> = HAPPENED.iter().map(|steps| in_turn(policies, whole, &pairs, steps)).collect();
                    let dir = Dir::in_memory("pairs");
                    for url in ["memory:", &dir.url()] {
                        let found = beside(Site::new(url, policies, whole), whole, &pairs);
                        let wrong = wrong(&orders, &pairs, &found);
                        assert!(wrong.is_empty(), "{url} {} beside {whole:?}: {wrong:#?}", policies[0]);
                    }
                }
            }
        }
    });
}

/// The points at which a process dies in a change, and whether the change has happened then.
fn points(whole: Whole) -> Vec<(&'static str, bool)> {
    let decided = ["decided", "table-written", "key-sealed", "key-written", "followed"].map(|point| (point, true));
    let of_policies: Vec<_> = [("deciding", false)].into_iter().chain(decided).collect();
    // Nothing is decided elsewhere, and cleared keys are not rewritten.
    let of_clear = vec![("table-written", false)];
    let published = ["table-published", "segment-written", "keys-moved"].map(|point| (point, true));
    let first = if whole == Whole::Clear { of_clear } else { of_policies };
    first.into_iter().chain(published).collect()
}

#[test]
fn an_operation_after_a_death_in_a_change_comes_before_or_after_it() {
    behind(|| {
        for policies in [&POLICIES[0], &POLICIES[4]] {
            for whole in [Whole::Clear, Whole::Override(2), Whole::Override(3), Whole::Lift] {
                for (point, has_happened) in points(whole) {
                    for pairs in groups(&[Before::Used, Before::Own]) {
                        after_a_death(policies, whole, (point, has_happened), &pairs);
                    }
                }
            }
        }
    });
}

fn after_a_death(
    policies: &'static [&'static str; 4],
    whole: Whole,
    (point, has_happened): (&'static str, bool),
    pairs: &[Pair],
) {
    let dir = Dir::in_memory("pairs-dying");
    let site = Site::new(&dir.url(), policies, whole);
    let keys = site.keys(whole.others(), pairs);
    let child = Child::run(|| {
        let store = patient(&dir.url());
        let limiter = store.find("api").unwrap();
        let die = || common::raise(libc::SIGKILL);
        match point {
            // Segments are also written to make space, before the change is decided.
            "segment-written" => fault::at("table-published", move || fault::at(point, die)),
            _ => fault::at(point, die),
        }
        Site { store, limiter, policies }.change(whole);
    });
    assert!(child.was_killed(), "{whole:?} does not pass {point}");
    fault::in_small_steps(true);
    let answers = site.operate(pairs, &keys);
    fault::in_small_steps(false);
    let steps = if has_happened { HAPPENED } else { NOT_HAPPENED };
    let orders: Vec<_> = steps.iter().map(|steps| in_turn(policies, whole, pairs, steps)).collect();
    let mut last = Vec::new();
    let is_right = |last: &mut Vec<String>| {
        *last = wrong(&orders, pairs, &site.outcomes(&keys, &answers));
        last.is_empty()
    };
    let began = std::time::Instant::now();
    while !is_right(&mut last) {
        assert!(began.elapsed() < common::PATIENCE, "{} beside {whole:?}, {point}: {last:#?}", policies[0]);
        // Each holder of the lock continues what the dead process left.
        site.limiter.stats("").unwrap();
    }
}

/// A call that read the table of its limit, which another kind had replaced, went on with it, and starts were admitted.
#[test]
fn a_limit_that_lost_its_name_admits_nothing() {
    let dir = Dir::in_memory("ghost");
    for url in ["memory:", &dir.url()] {
        let site = Site::new(url, &POLICIES[0], Whole::Forget);
        let key = site.key("key".to_owned(), Before::Used);
        site.change(Whole::Forget);
        assert_eq!(site.change_one(One::Settle(0), &key), "kind_mismatch");
        assert_eq!(site.change_one(One::Start, &key), "kind_mismatch");
        assert_eq!(name(site.limiter.peek("key", 1)), "kind_mismatch");
    }
}

/// Waiters of a kind that had lost the name once started all the same, at the places that they held.
#[test]
fn waiters_of_a_limit_that_lost_its_name_do_not_start() {
    for text in ["1/1s", "5000/1s", "10/1s burst 1", "1/1s queue 5", "1/1s fixed", "1/1s counter", "1 concurrent"] {
        let other = if text.ends_with("concurrent") { "9/1s" } else { "9 concurrent" };
        for with_key in ["", "key"] {
            let (clock, dir) = (ManualClock::new(), Dir::in_memory("ghosts"));
            for url in ["memory:", &dir.url()] {
                let what = format!("{text}, \"{with_key}\", {url}");
                let mut options = StoreOptions::default();
                options.clock = Some(clock.clone());
                let store = Store::with_options(url, options).unwrap();
                let old = store.limiter("api", text).unwrap();
                let _held: Vec<RawPermit> =
                    std::iter::from_fn(|| old.decide(with_key, 1).unwrap().permit).take(10_000).collect();
                let mut line = Line::new(old);
                let waits = || Waiter::new(with_key, 1).timeout(None);
                for _ in 0..3 {
                    assert!(matches!(line.join(waits()).unwrap(), Joined::Waiting(_)), "{what}");
                }
                store.forget("api").unwrap();
                assert!(store.limiter("api", other).unwrap().decide(with_key, 1).unwrap().admitted, "{what}");
                let mut over = Vec::new();
                for _ in 0..100 {
                    clock.advance(Duration::from_millis(100));
                    line.wake(None);
                    line.advance(&mut over);
                }
                let is_refused =
                    |outcome: &_| matches!(outcome, workglow_limit::embed::Outcome::Failed(Error::KindMismatch { .. }));
                assert!(over.len() == 3 && over.iter().all(|(_, outcome)| is_refused(outcome)), "{what}: {over:?}");
            }
        }
    }
}
