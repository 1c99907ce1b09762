//! A search through everything that three processes can do with the heads of their lines, step by step, while one dies at any
//! step and one is stopped at any step. The words are those of `heads.rs` and `shares.rs`. What a process does with them is
//! repeated here, in fewer words: see `limiter/line/shown.rs` of the core.
//!
//! In each state:
//!
//! * *Order.* Whoever finds itself first is first among all that are shown and run, by what has really happened: the tenant that
//!   has had the least by its share, and of its waiters the one that asked first.
//! * *No lost turn.* When all sleep while a unit is free for somebody who runs, somebody died or was stopped. Then one look for
//!   each death, and three for each stop, are enough; again as many if who looked has died.
//! * *Fairness.* While both tenants wait, what they have had differs by at most one start each, by their shares; and one more for
//!   each process that died before it charged a start.
//! * *Nothing stays.* When nobody waits, the entries of those who live are free.
//!
//! Not in the model: steps of one word (the models in `heads_models.rs` are about these), priorities, weights and a full table. Two
//! tenants are searched with a death or with a stop, not with both, and unequal shares with neither.

#[path = "all_states.rs"]
mod all_states;
#[path = "heads_world.rs"]
mod world;

use world::*;

fn search(s: &Setting) -> (usize, Option<(Wrong, Vec<Action>)>) {
    all_states::visit(World::new(s), |world| world.actions(s), |world, action| world.act(action, s))
}

fn one_line() -> Setting {
    let waiters = [(0, 1), (0, 1), (0, 1)];
    Setting { fault: Fault::Sound, waiters, shares: [1, 1], is_shared: false, units: 1, deaths: 1, stops: 1 }
}

fn two_tenants(shares: [u32; 2]) -> Setting {
    Setting { waiters: [(0, 2), (1, 1), (0, 1)], shares, is_shared: true, ..one_line() }
}

/// Visits all reachable states. Returns how many there are.
fn holds(s: &Setting) {
    let (states, way) = search(s);
    println!("{states} states");
    assert!(way.is_none(), "{way:?}");
}

fn is_needed(s: &Setting, fault: Fault, expected: Wrong) {
    let (states, found) = search(&Setting { fault, ..*s });
    let (wrong, way) = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
    println!("{fault:?}, after {states} states: {way:?}");
    assert_eq!(wrong, expected, "{fault:?}");
}

#[test]
fn one_line_of_three_processes_keeps_its_order_and_loses_no_turn() {
    holds(&one_line());
    holds(&Setting { units: 2, stops: 0, ..one_line() });
}

#[test]
fn two_tenants_of_three_processes_have_their_shares_and_lose_no_turn() {
    let alive = |shares| Setting { deaths: 0, stops: 0, ..two_tenants(shares) };
    holds(&alive([1, 1]));
    holds(&alive([1, 3]));
    let fewer = Setting { waiters: [(0, 1), (1, 1), (0, 1)], ..two_tenants([1, 1]) };
    holds(&Setting { deaths: 0, ..fewer });
    holds(&Setting { stops: 0, ..fewer });
}

#[test]
fn each_rule_is_needed() {
    let alive = Setting { units: 2, deaths: 0, stops: 0, ..one_line() };
    for fault in [Fault::LooksFirst, Fault::EndsSilently, Fault::StartsSilently] {
        is_needed(&alive, fault, Wrong::LostTurn);
    }
    is_needed(&alive, Fault::NeverLeaves, Wrong::Left);
    is_needed(&Setting { deaths: 0, ..one_line() }, Fault::NeverSkips, Wrong::LostTurn);
    is_needed(&Setting { stops: 0, ..one_line() }, Fault::NeverRemoves, Wrong::LostTurn);
    is_needed(&Setting { deaths: 0, ..one_line() }, Fault::StaysSkipped, Wrong::Order);
    is_needed(&Setting { deaths: 0, stops: 0, ..two_tenants([1, 1]) }, Fault::NeverCharges, Wrong::Order);
    let more = Setting { waiters: [(0, 2), (1, 2), (0, 1)], deaths: 0, stops: 0, ..two_tenants([1, 3]) };
    is_needed(&more, Fault::IgnoresShares, Wrong::Unfair);
}
