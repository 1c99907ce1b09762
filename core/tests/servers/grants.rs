//! A model of grants, the protocol by which machines share a limit, and a search through everything that can happen to
//! it.
//!
//! A server, the *engine*, grants units of a limit. A machine, a *site*, starts them within a short time, without a
//! request for each. `L` is the limit, `W` its window, `g` the length of a grant. The engine keeps a log of its grants:
//! entries with a number of units and a *stamp*, after which none of them can start. An entry counts until its stamp +
//! `W`.
//!
//! # Why no window holds more than `L` starts
//!
//! Take any window that includes its left end but not its right one, and all starts in it. Each belongs to a grant. Let
//! `G` be the grant among these that the engine decided last, and `H` another of them. `H` has a start in the window,
//! so its stamp is not before the beginning of the window. `G` has one too, so `G` was ready before the window ended.
//! Thus less than `W` lies between the stamp of `H` and the time at which `G` was ready: when the engine decided `G`,
//! the entry of `H` counted. It granted no more than `L` less what counted. So the units of all these grants are at
//! most `L`, less those that were returned and never started. The order of grants does not matter, nor whether some of
//! them begin in the future.
//!
//! This needs four facts. Each start happens between the time at which its grant is ready and the stamp (rules 1 to 5).
//! A grant never has more starts than its entry has units (rules 6 to 11). An entry is in the log for as long as it
//! counts, or nothing is granted (rule 16, which needs rule 12). Between two decisions, the engine's clock advances by
//! no more than the elapsed time (rules 18 and 19). Rules 12 to 15 ensure that changes apply when their calls return.
//!
//! # The rules
//!
//! *Time.* Only durations are sent. The site's clock shows `a` before the request is first sent and `b` after the
//! answer has arrived. At some moment in between, the engine's clock showed `now`. `ρ` bounds how much faster or slower
//! a site's clock runs than the engine's. Each clock shows whole ticks, and the time is up to a tick later than shown.
//!
//! 1. The engine takes `now` rounded down. A grant is ready at a tick not before `now`; the answer says `r` = ready −
//!    now.
//! 2. The stamp is at least ready + `g` + 1 tick. The tick covers the possible rounding of `now`. (A log that must be
//!    sorted may have later stamps, never earlier ones.)
//! 3. The site rounds `a` down and `b` up. It may start while its clock, rounded down, is at least `b + ⌈r(1 + ρ)⌉` and
//!    less than `a + ⌊(r + g)(1 − ρ)⌋`. A grant that begins later than about `g/(2ρ)` from now can never be used in
//!    this way. The engine may report its `r` again, in an answer with an `a` and `b` of its own. The bounds from each
//!    answer are valid by themselves.
//! 4. `a` is from before the request was *first* sent, however often it was repeated, since it is unknown which copy
//!    was answered.
//! 5. A start counts at the moment at which the site's clock was read for it. The clock is read within the call that
//!    admits. A process that is stopped afterwards makes the call longer, but not late: the start still lies between
//!    the call's beginning and its end.
//!
//! *Units.* A cell holds a site's units of one grant.
//!
//! 6. A process reads the cell, then the clock, and takes the unit in one step that fails unless the cell still belongs
//!    to the same grant and has a unit left. A number that is never reused distinguishes successive grants in the same
//!    place.
//! 7. Returned units first leave the cell in such a step. Only then is the return sent. A process that read the cell
//!    before fails.
//! 8. A return names the grant and its epoch, and states how many units *stay*: those that may have started or still
//!    may. The entry becomes the smaller of this number and its present one. So a return may be lost, repeated, late or
//!    overtaken. The engine ignores returns for entries that it does not find, or of another epoch. If nothing can
//!    start from the grant any more, the return says so. Then all of its starts happened before the engine receives the
//!    return, so the stamp becomes `now` + 1 tick, if that is earlier.
//! 9. A request has a name: its site and a number that grows. A grant has the name of its request. A restarted site has
//!    a new name (random, and long enough to be unique).
//! 10. The engine keeps each site's last request and its answer, and answers a copy identically, `r` included. It
//!     ignores older requests. If it forgets them, the copy is granted and logged again: units are lost for `W`, but
//!     the limit is not exceeded.
//! 11. A site has one outstanding request, and accepts one answer to it. It drops every other answer. A request without
//!     an answer for `g(1 − ρ)` is given up, and its number is not reused.
//!
//! *Rules.* The rules can change: the policy has a version, the memory an epoch, and a gate forbids starts before its
//! time. Every answer reports the present version and epoch, and in how many ticks the gate opens, `c`.
//!
//! 12. **A site's knowledge is valid for `T`**, which is not less than `g`. The site starts nothing, from any grant,
//!     unless its clock is less than `a + ⌊T(1 − ρ)⌋` for the `a` of its latest answer. A grant that is ready at once
//!     satisfies this automatically. A grant that begins later than `T` needs another answer within the last `T` before
//!     its start; any request brings one.
//! 13. A site whose latest answer has another epoch or version than a grant starts nothing more from that grant, and
//!     returns its units. (If the limit was only raised, the engine may keep the version.)
//! 14. A site whose latest answer has a gate starts nothing before `b + ⌈c(1 + ρ)⌉`. It keeps the latest gate that it
//!     knows. Nothing that the engine grants is ready before the gate.
//! 15. The engine decides by the new rules from the moment of a change. All entries stay and count. The call that
//!     lowered a limit or set a gate returns when the engine's clock shows `T` + 1 tick more than at the change. By
//!     rule 12 no start happens by the old rules after that. So from then on, the last grant of any window with a start
//!     was decided under the new limit.
//!
//! *Memory and clock.*
//!
//! 16. An engine that does not know its past begins its own epoch, with a name that was never used before. Nothing that
//!     it grants is ready before `now` + `T` + 1 tick + `W`, with `now` read after the loss. By rule 12 no start from
//!     an older grant happens later than `T` + 1 tick from there.
//! 17. The other contents of the memory, especially policies and gates, are not restored by this silence. They must be
//!     kept elsewhere, or reported again by the sites before the silence ends. The model assumes that they are kept.
//! 18. The engine keeps the latest time that it has seen, with the state that depends on it. While its clock shows
//!     less, it grants nothing, answers nothing and changes nothing. Continuing with the kept time would not suffice:
//!     the clock may be set right again, and what was granted in between would end too early by that difference. (If it
//!     is behind by more than a second, it moves its state back, and what is set right again is a step forward.)
//! 19. A clock that is set forward shortens all windows by the same amount. Only sites can detect it: two answers to
//!     one site cannot be farther apart than the time from the first one's `a` to the second one's `b`, and `ρ`. A site
//!     that detects it refuses the answer, and the engine moves its state on, unless other sites know better (see
//!     corrections.rs). A step that no site can detect (less than two round trips, or no site that asked before) is not
//!     safe.
//!
//! # The model
//!
//! The search visits all reachable states, without a time limit and in any order of events, with two sites and few
//! units. Messages may be delivered late, repeatedly, in any order or not at all. Each clock's rate is chosen again at
//! each step, from the worst ones only. Starts are measured from outside: more of them within a window than the limit,
//! each with the full time between its check and its end. Each protection is removed in turn ([`Fault`]), and the same
//! search must find the consequence.
//!
//! Not in the model: rule 19, which has a model of its own; an `r` that is reported again; an engine that continues next to its successor; a window
//! that changes; `clear`; a cell in the place of another (rule 6); a site's machine that is restored to an earlier
//! state, or whose clock stops; units that several keys or limits share; starts of several units; whether waiters are
//! served in turn, or at all; and wrong rates of the engine's clock, since it defines `W`. Operators' calls and losses
//! happen while the engine's clock is not behind, and it is set right only while it is. Losses, changes, pauses and
//! steps of the clock are searched one at a time. The random walks combine them.

mod engine;
mod message;
mod search;
mod setting;
mod site;
mod world;

use search::{Sightings, describe, exhaust, walk};
use setting::{Budget, CALM, Fault, PLAIN, Setting};
use world::Wrong::{self, *};

/// Its grants are as long as its windows, so that answers may take long.
fn messages() -> Setting {
    Setting { length: 3, ..PLAIN }
}

fn deaths() -> Setting {
    let budget = Budget { deaths: 1, ..CALM };
    Setting { name: "deaths", limit: 1, length: 3, wants: &[1], budget, ..PLAIN }
}

/// A site's clock may take half as long as the engine's, or half as long again.
fn drift() -> Setting {
    Setting { name: "drift", limit: 1, window: 2, length: 3, fine: 2, drift: 1, wants: &[1], ahead: 1, ..PLAIN }
}

/// The engine's clock changes only every third step.
fn coarse_engine() -> Setting {
    Setting { name: "a coarse clock of the engine", limit: 1, window: 1, length: 1, tick: 3, wants: &[1], ..PLAIN }
}

/// The sites' clocks change only every third step.
fn coarse_sites() -> Setting {
    Setting { name: "coarse clocks of the sites", limit: 1, window: 2, length: 6, grain: 3, wants: &[1], ..PLAIN }
}

fn returns() -> Setting {
    Setting { name: "returns", window: 2, delay: 1, returns: true, stops: 1, wants: &[2], ..PLAIN }
}

fn policies() -> Setting {
    let budget = Budget { changes: 1, ..CALM };
    Setting { name: "policies", window: 2, ahead: 2, delay: 1, wants: &[2], budget, ..PLAIN }
}

fn pauses() -> Setting {
    let budget = Budget { pauses: 1, ..CALM };
    Setting {
        name: "pauses",
        limit: 1,
        window: 2,
        ahead: 3,
        delay: 1,
        pause: 4,
        extra: 1,
        wants: &[1],
        budget,
        ..PLAIN
    }
}

fn memory() -> Setting {
    let budget = Budget { losses: 1, ..CALM };
    Setting {
        name: "memory",
        limit: 1,
        window: 2,
        extra: 1,
        ahead: 3,
        delay: 1,
        returns: true,
        wants: &[1],
        budget,
        ..PLAIN
    }
}

fn clock() -> Setting {
    let budget = Budget { steps: 1, ..CALM };
    Setting { name: "the engine's clock", limit: 1, ahead: 1, step: 3, wants: &[1], budget, ..PLAIN }
}

/// All faults together, and a larger world: too large to visit every state.
fn everything() -> Setting {
    Setting {
        name: "everything",
        sites: 3,
        limit: 3,
        lowered: 1,
        window: 5,
        length: 4,
        tick: 2,
        fine: 4,
        drift: 1,
        grain: 2,
        wants: &[1, 2, 3],
        ahead: 3,
        held: 2,
        requests: 2,
        delay: 4,
        stops: 3,
        returns: true,
        pause: 9,
        step: 3,
        budget: Budget { deaths: 3, losses: 1, changes: 1, pauses: 1, steps: 1 },
        ..PLAIN
    }
}

/// Asserts that nothing is wrong in any state, and that the search has seen what it is for.
fn holds(setting: &Setting, sights: &[&str]) {
    let outcome = exhaust(setting, 1_000_000);
    println!("{}: {} states, {:?}", setting.name, outcome.states, outcome.seen);
    if let Some((wrong, way)) = outcome.wrong {
        panic!("{}: {wrong:?}\n{}", setting.name, describe(setting, &way));
    }
    assert_seen(&outcome.seen, sights);
}

fn assert_seen(seen: &Sightings, sights: &[&str]) {
    sights.iter().for_each(|sight| assert!(seen.get(sight).is_some_and(|n| *n > 0), "no {sight} in {seen:?}"));
}

/// Asserts that without this protection, the same search finds this.
fn is_needed(setting: Setting, fault: Fault, expected: Wrong) {
    let setting = setting.with(fault);
    let outcome = exhaust(&setting, 1_500_000);
    let (wrong, way) = outcome.wrong.unwrap_or_else(|| panic!("{fault:?}: not found in {} states", outcome.states));
    println!("{fault:?}, after {} states:\n{}", outcome.states, describe(&setting, &way));
    assert_eq!(wrong, expected);
}

const FULL: &str = "starts with as many as the limit";

#[test]
fn messages_may_be_late_lost_and_repeated() {
    holds(&messages(), &[FULL, "requests again"]);
    is_needed(messages(), Fault::FromTheAnswer, OverTheLimit);
    is_needed(messages(), Fault::FromTheRepeat, OverTheLimit);
    is_needed(messages(), Fault::StampedAtBeginning, OverTheLimit);
    is_needed(messages(), Fault::AnswerTakenTwice, OverTheLimit);
}

#[test]
fn sites_may_die() {
    holds(&deaths(), &[FULL, "requests again"]);
    is_needed(deaths(), Fault::OldName, OverTheLimit);
}

#[test]
fn clocks_may_run_apart() {
    holds(&drift(), &[FULL, "starts by a future grant"]);
    is_needed(drift(), Fault::DriftIgnored, OverTheLimit);
}

#[test]
fn clocks_may_be_coarse() {
    holds(&coarse_engine(), &[FULL]);
    is_needed(coarse_engine(), Fault::EngineRoundsDown, OverTheLimit);
    holds(&coarse_sites(), &[FULL]);
    is_needed(coarse_sites(), Fault::SiteRoundsUp, OverTheLimit);
}

#[test]
fn units_may_be_returned_and_processes_stopped_before_they_start() {
    holds(&returns(), &[FULL, "returns", "requests again", "starts after a stop"]);
    is_needed(returns(), Fault::RepeatGrantedTwice, GrantedTwice);
    holds(&returns().with(Fault::Forgetful), &[FULL, "returns"]);
    is_needed(returns(), Fault::ReturnAppliedTwice, OverTheLimit);
    is_needed(returns(), Fault::ReturnToAnother, OverTheLimit);
    is_needed(returns(), Fault::ReturnedAndStarted, OverTheLimit);
    is_needed(returns(), Fault::EndedBefore, OverTheLimit);
}

#[test]
fn a_lowered_limit_applies_once_the_change_has_returned() {
    holds(&policies(), &[FULL, "grants after a change", "starts by a future grant"]);
    is_needed(policies(), Fault::ChangeAtOnce, OverTheNewLimit);
    is_needed(policies(), Fault::VersionIgnored, OverTheNewLimit);
    is_needed(policies(), Fault::Untrusted, OverTheNewLimit);
}

#[test]
fn no_start_happens_once_a_pause_has_returned() {
    holds(&pauses(), &[FULL, "starts after a pause", "starts by a future grant"]);
    is_needed(pauses(), Fault::PauseAtOnce, StartedInPause);
    is_needed(pauses(), Fault::GateIgnored, StartedInPause);
    is_needed(pauses(), Fault::Untrusted, StartedInPause);
}

#[test]
fn the_engine_may_lose_its_memory() {
    holds(&memory(), &[FULL, "grants after a loss", "returns", "starts by a future grant"]);
    is_needed(memory(), Fault::NoSilence, OverTheLimit);
    is_needed(memory(), Fault::SilenceOfWindow, OverTheLimit);
    is_needed(memory(), Fault::EpochIgnored, OverTheLimit);
    is_needed(memory(), Fault::Untrusted, OverTheLimit);
}

#[test]
fn the_engines_clock_may_be_set_back_and_right_again() {
    holds(&clock(), &[FULL, "grants after a step"]);
    is_needed(clock(), Fault::NoFloor, OverTheLimit);
    is_needed(clock(), Fault::GrantsWhileBehind, OverTheLimit);
}

const WALKS: u64 = 3_000;
const ACTIONS: usize = 500;

#[test]
fn random_walks_through_larger_worlds_find_no_fault() {
    let (setting, mut seen) = (everything(), Sightings::new());
    for seed in 0..WALKS {
        let outcome = walk(&setting, seed, ACTIONS);
        if let Some((wrong, way)) = outcome.wrong {
            panic!("walk {seed}: {wrong:?}\n{}", describe(&setting, &way));
        }
        outcome.seen.into_iter().for_each(|(sight, n)| *seen.entry(sight).or_default() += n);
    }
    println!("{WALKS} walks: {seen:?}");
    let sights = [FULL, "returns", "requests again", "starts after a stop", "starts by a future grant"];
    assert_seen(&seen, &sights);
    assert_seen(
        &seen,
        &["grants after a loss", "grants after a change", "grants after a step", "starts after a pause"],
    );
}

/// They find the frequent faults. The others need the search.
#[test]
fn random_walks_find_planted_faults() {
    use Fault::*;
    for fault in [StampedAtBeginning, NoSilence, AnswerTakenTwice, ReturnAppliedTwice, ReturnedAndStarted, ChangeAtOnce]
    {
        let setting = everything().with(fault);
        let found = (0..WALKS).find(|seed| walk(&setting, *seed, ACTIONS).wrong.is_some());
        println!("{fault:?}: walk {:?}", found.unwrap_or_else(|| panic!("{fault:?}: not found")));
    }
}
