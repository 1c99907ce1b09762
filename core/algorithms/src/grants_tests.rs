use super::*;
use crate::random_tests::Random;
use std::collections::HashSet;
use std::sync::Mutex;

struct Key {
    words: Vec<AtomicU64>,
    life: AtomicU64,
}

impl Key {
    fn new() -> Key {
        Key { words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(), life: AtomicU64::new(0) }
    }

    fn grants(&self) -> Grants<'_> {
        Grants { words: &self.words, life: &self.life, number: 0 }
    }
}

const LENGTHS: Lengths = Lengths { grant: 25_000, trust: 500_000, period: 125_000 };

fn reply(now: Tick, grants: &[Grant]) -> Reply {
    Reply { now, epoch: 0, gate: 0, next: now + 1_000, remaining: 0, empty: now, grants: grants.to_vec() }
}

fn grant(ticket: u64, ready: Tick, units: u64) -> Grant {
    Grant { ticket, ready, ends: ready + LENGTHS.grant, stamp: ready + LENGTHS.grant + 1, units }
}

/// Asks, with an immediate reply.
fn refill(key: &Key, now: Tick, grants: &[Grant]) -> Question {
    let question = key.grants().question(Wish::Start(1), LENGTHS, now);
    key.grants().accept(&question, &reply(now, grants), (now, now), LENGTHS, false);
    question
}

/// A site's clock, compared with the server's, which is the true one: fast by some parts per million, with an offset.
#[derive(Clone, Copy)]
struct Site {
    ppm: i64,
    ahead: f64,
}

impl Site {
    fn at(&self, time: f64) -> Tick {
        (time * (1.0 + self.ppm as f64 / 1e6) + self.ahead) as Tick
    }
}

/// Times are true times, in ticks and fractions. No unit starts before its grant is ready, or after its stamp, or after
/// the reply has expired.
#[test]
fn units_start_within_their_grants_at_any_clock_rates_and_delays() {
    let random = &mut Random::seeded(1);
    let mut early_and_late = [0; 2];
    for _ in 0..20_000 {
        let site = Site { ppm: random.pick(&[-1_000, -999, 0, 999, 1_000]), ahead: random.below(1_000_000_000) as f64 };
        let mut moment = |most: u64| random.below(most * 1_000) as f64 / 1_000.0;
        let is_near = moment(2) < 1.0;
        let mut way = || if is_near { 0.0 } else { moment(100_000) };
        let [there, back] = [way(), way()];
        let asked = 1e9 + moment(1_000_000);
        let (decided, answered) = (asked + there, asked + there + back);
        let now = decided as Tick;
        let ready = now + if moment(2) < 1.0 { 0 } else { moment(400_000) as Tick };
        let key = Key::new();
        let question = key.grants().question(Wish::Start(1), LENGTHS, site.at(asked));
        // (The site reads its clock within a tick.)
        let times = (site.at(asked), site.at(answered) + 1);
        key.grants().accept(&question, &reply(now, &[grant(7, ready, u64::MAX)]), times, LENGTHS, false);
        for part in [-1_000.0, -500.0, -30.0, -2.0, -1.0, -0.001, 0.0, 0.999, 1.0, 2.0, 30.0, 500.0, 1_000.0] {
            for bound in [ready, ready + LENGTHS.grant, now + LENGTHS.trust] {
                let time = (bound as f64 + part).max(answered);
                if key.grants().take(1, site.at(time)).is_some() {
                    early_and_late[usize::from(time > bound as f64)] += 1;
                    assert!(time >= ready as f64, "{} early", ready as f64 - time);
                    assert!(
                        time <= (ready + LENGTHS.grant + 1) as f64,
                        "{} late",
                        time - (ready + LENGTHS.grant + 1) as f64
                    );
                    assert!(time <= decided + LENGTHS.trust as f64, "after what was said is certain");
                }
            }
        }
    }
    assert!(early_and_late.iter().all(|n| *n > 100), "{early_and_late:?}");
}

#[test]
fn a_place_starts_once_in_its_time_and_keeps_its_grant() {
    let key = Key::new();
    refill(&key, 1_000, &[grant(1, 101_000, 2)]);
    let grants = key.grants();
    assert_eq!(grants.take(1, 1_000), None);
    assert_eq!(grants.take_place(1, 1_000, 50_000), None, "too late for the caller");
    let place = grants.take_place(1, 1_000, 200_000).unwrap();
    let other = grants.take_place(1, 1_000, 200_000).unwrap();
    assert_eq!(grants.take_place(1, 1_000, 200_000), None);
    assert!(matches!(grants.start(1, place.unit, place.from - 1), PlaceStatus::Early(1)));
    assert!(grants.give_place_back(1, other.unit, 1) && !grants.give_place_back(1, other.unit, 1));
    // Requests in between reuse neither its cell nor the remaining unit.
    refill(&key, 50_000, &[grant(2, 50_000, 1)]);
    assert_eq!(grants.start(1, place.unit, place.from), PlaceStatus::Started);
    assert_eq!(grants.start(1, place.unit, place.from), PlaceStatus::Gone, "a copy of it");
    assert!(grants.take(1, place.from).is_some());
}

/// A waiter once kept what was promised it for later, though units had become free meanwhile.
#[test]
fn promises_are_doubted_and_returned_when_units_have_become_free() {
    let key = Key::new();
    refill(&key, 1_000, &[grant(1, 101_000, 2), grant(2, 201_000, 2)]);
    let grants = key.grants();
    let held = grants.take_place(1, 1_000, 150_000).unwrap();
    assert!(grants.soonest(1, 1_000, true).is_some() && grants.promised(1, 1_000).is_some());
    grants.freed();
    assert!(grants.soonest(1, 1_000, true).is_none() && grants.promised(1, 1_000).is_none());
    assert!(!grants.is_promised(1, 1_000), "a caller that waits wants units");
    grants.return_promises();
    assert_eq!(grants.take_place(1, 1_000, 250_000), None);
    // A promise with a place is kept for it.
    let question = grants.question(Wish::Place(1), LENGTHS, 2_000);
    assert_eq!(question.reports, [[2, grant(2, 201_000, 2).stamp, 0, 0, 0]]);
    grants.accept(&question, &reply(2_000, &[grant(3, 2_000, 1)]), (2_000, 2_000), LENGTHS, false);
    assert!(grants.take(1, 2_001).is_some_and(|taken| taken.ticket == 3));
    assert!(grants.soonest(1, 2_001, true).is_some(), "the answer is believed again");
    assert_eq!(grants.start(1, held.unit, held.from), PlaceStatus::Started);
}

#[test]
fn an_ended_grant_is_reported_until_the_reply_and_its_cell_is_reused() {
    let key = Key::new();
    refill(&key, 1_000, &[grant(1, 1_000, 5), grant(2, 1_000, 1)]);
    let taken = key.grants().take(2, 1_001).unwrap();
    assert_eq!(key.grants().take(1, 1_001).unwrap().ticket, 1);
    assert!(
        key.grants().give_back(1, taken.unit, 2) && key.grants().give_back(1, taken.unit, 2),
        "the second time has no effect"
    );
    assert_eq!(key.grants().take(1, 1_001).unwrap().ticket, 1);
    let late = 1_000 + LENGTHS.grant + 100;
    let question = key.grants().question(Wish::Start(1), LENGTHS, late);
    // Of five units, one and one stay; the first taking was given back.
    assert_eq!(question.reports, [[1, 26_001, 2, 1, 0], [2, 26_001, 0, 0, 0]]);
    assert_eq!(question.most, CELLS as u64);
    let again = key.grants().question(Wish::Start(1), LENGTHS, late + 1);
    assert_eq!((again.seq, &again.reports), (question.seq, &question.reports), "there was no reply");
    assert!(!key.grants().give_back(1, taken.unit + 1, 1), "the server handles that now");
    key.grants().accept(&again, &reply(late, &[]), (late, late), LENGTHS, false);
    let next = key.grants().question(Wish::Start(1), LENGTHS, late + 2);
    assert!(next.seq > question.seq && next.reports.is_empty());
}

#[test]
fn another_server_memory_or_a_gate_ends_all_grants() {
    for (epoch, gate) in [(5, 0), (0, 90_000)] {
        let key = Key::new();
        refill(&key, 1_000, &[grant(1, 1_000, 5)]);
        let question = key.grants().question(Wish::Word, LENGTHS, 2_000);
        assert_eq!((question.want, question.future), (0, 0));
        key.grants().accept(&question, &Reply { epoch, gate, ..reply(2_000, &[]) }, (2_000, 2_000), LENGTHS, false);
        assert_eq!(key.grants().take(1, 2_001), None);
        assert!(key.grants().question(Wish::Word, LENGTHS, 2_002).reports.is_empty(), "the server does not know of it");
    }
}

#[test]
fn a_server_that_was_once_far_away_is_asked_again() {
    let (key, window) = (Key::new(), 1_000_000);
    let mut now = 5_000_000;
    let answered_after = |now: Tick, trip: Tick| {
        let question = key.grants().question(Wish::Start(1), LENGTHS, now);
        key.grants().accept(&question, &reply(now, &[]), (now, now + trip), LENGTHS, false);
    };
    assert!(!key.grants().is_far(window, now));
    answered_after(now, 200_000);
    assert!(key.grants().is_far(window, now + 300_000));
    let mut asked = 1;
    while key.grants().is_far(window, now + 1) {
        now += window;
        assert!(!key.grants().is_far(window, now), "it is checked again");
        answered_after(now, 100);
        asked += 1;
    }
    assert_eq!(asked, 3, "the round trip falls by half each time");
}

#[test]
fn nothing_starts_by_a_reply_after_the_clock_was_set_nor_by_those_before() {
    let key = Key::new();
    refill(&key, 1_000_000, &[grant(1, 1_000_000, 5)]);
    let question = key.grants().question(Wish::Word, LENGTHS, 1_000_100);
    let late = reply(1_000_100, &[grant(3, 1_000_100, 5)]);
    key.grants().accept(&question, &late, (1_000_100, 1_000_100), LENGTHS, true);
    assert_eq!(key.grants().take(1, 1_000_101), None);
    assert_eq!(key.grants().soonest(1, 1_000_101, false), None, "the server has to be asked");
    let reports = key.grants().question(Wish::Start(1), LENGTHS, 1_000_200).reports;
    assert_eq!(reports.iter().map(|[ticket, _, stays, ..]| [*ticket, *stays]).collect::<Vec<_>>(), [[1, 0], [3, 0]]);
}

#[test]
fn a_reply_for_an_earlier_life_is_dropped() {
    let key = Key::new();
    let question = key.grants().question(Wish::Start(1), LENGTHS, 1_000);
    key.life.store(1, Relaxed);
    key.grants().accept(&question, &reply(1_000, &[grant(1, 1_000, 5)]), (1_000, 1_000), LENGTHS, false);
    assert_eq!(Grants { number: 1, ..key.grants() }.take(1, 1_001), None);
}

#[test]
fn denials_need_no_request_until_the_reply_is_old() {
    let (key, now) = (Key::new(), 1_000_000);
    refill(&key, now, &[]);
    let until = key.grants().soonest(1, now + 500, false).unwrap();
    assert!((now + 1_000..now + 1_010).contains(&until));
    assert_eq!(key.grants().soonest(1, until, false), None, "then the server is asked");
    // Nothing later was requested, so a waiter asks.
    assert_eq!(key.grants().soonest(1, now + 500, true), None);
    let now = now + 3_000;
    let question = key.grants().question(Wish::Place(1), LENGTHS, now);
    assert!(question.future > 0);
    let far = Reply { next: 10_000_000, ..reply(now, &[]) };
    key.grants().accept(&question, &far, (now, now), LENGTHS, false);
    assert!(key.grants().soonest(1, now + 400_000, true).is_some());
    assert_eq!(key.grants().soonest(1, now + LENGTHS.trust, true), None, "something may have changed since");
}

#[test]
fn requests_match_the_use() {
    let key = Key::new();
    let mut now = 10 * LENGTHS.period;
    assert_eq!(key.grants().question(Wish::Start(3), LENGTHS, now).want, 3);
    // A start every 500 µs is 50 starts in a grant.
    refill(&key, now, &[]);
    for ticket in 1..20 {
        refill(&key, now, &[grant(ticket, now, 50)]);
        for _ in 0..50 {
            assert!(key.grants().take(1, now).is_some());
            now += 500 * u64::from(now % 1_000 != 1);
        }
    }
    let want = key.grants().question(Wish::Start(1), LENGTHS, now).want;
    assert!((45..=60).contains(&want), "{want}");
}

/// Units are handed out once, however many threads take, give back and end grants. (`PLANT=open grants` admits starts
/// that read the grant before it was ended.)
#[test]
fn no_unit_starts_twice() {
    let key = Key::new();
    let started = Mutex::new(HashSet::new());
    let is_over = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        let takers: Vec<_> = (0..3)
            .map(|thread| {
                let (key, started) = (&key, &started);
                scope.spawn(move || {
                    let (mut mine, mut kept) = (Vec::new(), 0u64);
                    while is_over.load(Relaxed) == 0 {
                        let Some(taken) = key.grants().take(1, 1_000) else { continue };
                        // A third of the starts is given back, if possible.
                        if (taken.ticket + thread) % 3 != 0 || !key.grants().give_back(taken.ticket, taken.unit, 1) {
                            kept += 1;
                        }
                        mine.push((taken.ticket, taken.unit));
                    }
                    let mut started = started.lock().unwrap();
                    mine.into_iter().for_each(|taking| assert!(started.insert(taking), "{taking:?} twice"));
                    kept
                })
            })
            .collect();
        let mut stay = 0;
        for ticket in 1.. {
            if ticket > 20_000 && stay > 20_000 {
                break;
            }
            let question = key.grants().question(Wish::Start(1), LENGTHS, 1_000);
            stay += question.reports.iter().map(|report| report[2]).sum::<u64>();
            key.grants().accept(&question, &reply(1_000, &[grant(ticket, 1_000, 8)]), (1_000, 1_000), LENGTHS, false);
            if ticket % 7 == 0 {
                // Their time is over.
                let question = key.grants().question(Wish::Start(1), LENGTHS, 1_000 + LENGTHS.grant);
                stay += question.reports.iter().map(|report| report[2]).sum::<u64>();
                key.grants().accept(&question, &reply(1_000, &[]), (1_000, 1_000), LENGTHS, false);
            }
        }
        let question = key.grants().question(Wish::Start(1), LENGTHS, 1_000 + LENGTHS.grant);
        stay += question.reports.iter().map(|report| report[2]).sum::<u64>();
        is_over.store(1, Relaxed);
        let kept: u64 = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
        assert!(kept <= stay, "{kept} started of {stay} that the server counts");
    });
}

/// A process dies while it accepts the reply of a server that has lost its memory: it has recorded that, but not yet
/// ended the earlier grants.
#[test]
fn a_successor_for_the_dead_starts_nothing_by_grants_of_a_lost_memory() {
    const NOW: Tick = 10_000_000;
    let key = Key::new();
    refill(&key, NOW, &[grant(1, NOW, 5)]);
    assert!(key.grants().take(1, NOW).is_some());
    assert!(key.grants().begin(1).is_ok());
    key.grants().word(Grants::EPOCH).store(NOW, Relaxed);
    let dead = key.grants().begin(2).unwrap_err();
    assert!(dead.process() == 1 && key.grants().take_over(&dead, 2));
    assert!(!key.grants().take_over(&dead, 3), "one takes over");
    let question = key.grants().question(Wish::Start(1), LENGTHS, NOW);
    key.grants().accept(&question, &Reply { epoch: NOW, ..reply(NOW, &[]) }, (NOW, NOW), LENGTHS, false);
    key.grants().end();
    assert_eq!(key.grants().take(1, NOW), None);
    assert!(key.grants().begin(3).is_ok());
}

/// A process dies before it gets a reply, or before it has used the reply: the next one repeats the request.
#[test]
fn a_request_from_before_a_death_is_repeated() {
    const NOW: Tick = 10_000_000;
    let key = Key::new();
    assert!(key.grants().begin(1).is_ok());
    let question = key.grants().question(Wish::Start(1), LENGTHS, NOW);
    let dead = key.grants().begin(2).unwrap_err();
    assert!(key.grants().take_over(&dead, 2));
    assert_eq!(key.grants().question(Wish::Start(1), LENGTHS, NOW + 1).seq, question.seq);
}
