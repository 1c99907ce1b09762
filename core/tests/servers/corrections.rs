//! A model of how a limit survives that its server's clock is set, and a search through everything that can happen.
//!
//! The rules are those of `prelude.lua` and `schema.sql`; here the server decides each start, and a request takes no time.
//! A step is *open* until a machine reports it that had asked before: nobody could know of it. What starts in the
//! meantime may be too much, and is not counted. Everything else has to stay within the limit, by the true time,
//! whichever machines stand still, report and vouch. And nothing is denied for much longer than a window and the error of the
//! clocks.
//!
//! Not in the model: replies that take time, clocks that run fast or slow, and grants (see grants.rs: to the server they
//! are starts that count from later).

#[path = "../../algorithms/src/all_states.rs"]
mod all_states;

/// In ticks. Without a reading for that long, a machine does not vouch.
const WINDOW: i8 = 3;
const LIMIT: usize = 1;
const MOST_VOUCHED: i8 = 3;
const MOST_DOUBT: i8 = 1;
const FLOOR_LAG: i8 = 1;

/// A rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Sound,
    /// A report has no effect.
    Unheard,
    /// Starts happen while there is a doubt.
    NoHold,
    /// Whoever vouches ends a doubt, for whatever time.
    VouchedForAll,
    /// A machine that saw the clock set forward vouches for the time before and after.
    VouchesOn,
    /// Corrections of overlapping times are subtracted, whatever else may have happened in that time.
    OverlapsCount,
    /// A doubt that is over leaves the states where they are.
    NotMoved,
    /// They are moved by no more than the time since they were written.
    MovedSinceWritten,
    /// What was written later than the clock shows stays there.
    NotMovedBack,
    /// It goes back by a window more.
    LostBack,
}

/// What must not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    OverTheLimit,
    Silent,
}

/// What may happen.
#[derive(Clone)]
struct Setting {
    fault: Fault,
    /// By how much the clock is set, how often; for how many ticks the first machine may stand still; how many ticks pass.
    step: i8,
    steps: u8,
    still: u8,
    ticks: u8,
}

/// A doubt, or a correction.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Step {
    from: i8,
    to: i8,
    amount: i8,
    /// Since when its reporter vouches for the time before `from`.
    since: i8,
    /// Until when nothing starts; `None`: it is a correction.
    till: Option<i8>,
}

/// The server and the state of a key. Times are relative to the server's clock.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Engine {
    log: Vec<i8>,
    seen: Option<i8>,
    floor: Option<i8>,
    /// The corrections that the state has not been moved by.
    owed: i8,
    steps: Vec<Step>,
}

#[derive(Clone, Copy)]
enum Word {
    Report(Step),
    Vouch(i8, i8),
}

impl Engine {
    fn times(&mut self, f: impl Fn(i8) -> i8) {
        self.log.iter_mut().for_each(|stamp| *stamp = f(*stamp));
        self.seen = self.seen.map(&f);
        self.floor = self.floor.map(&f);
        for step in &mut self.steps {
            (step.from, step.to, step.since) = (f(step.from), f(step.to), f(step.since));
            step.till = step.till.map(&f);
        }
    }

    /// What is left of a doubt.
    fn left(&self, doubt: &Step, fault: Fault) -> i8 {
        let most = doubt.amount.min(doubt.to - doubt.from);
        let (mut left, mut at) = (most, doubt.from);
        for fix in self.steps.iter().filter(|fix| fix.till.is_none() && fix.to > doubt.from) {
            if fix.since <= at || fault == Fault::OverlapsCount && fix.from < doubt.to {
                (left, at) = (left - fix.amount, at.max(fix.to));
                if at >= doubt.to || fault == Fault::OverlapsCount {
                    return left;
                }
            }
        }
        most
    }

    fn hear(&mut self, word: Option<Word>, fault: Fault) {
        let was_set_back = self.floor.is_some_and(|floor| floor > FLOOR_LAG);
        match word {
            _ if was_set_back => {}
            Some(Word::Report(step)) if step.to <= 0 && fault != Fault::Unheard => {
                self.steps.push(Step { till: Some(step.amount.min(MOST_DOUBT)), ..step });
            }
            Some(Word::Vouch(from, to)) if to <= 0 => {
                for i in 0..self.steps.len() {
                    let mut doubt = self.steps[i];
                    let Some(till) = doubt.till else { continue };
                    let before = self.left(&doubt, fault);
                    if from <= doubt.from {
                        doubt.from = doubt.from.max(to.min(doubt.to));
                    }
                    if to >= doubt.to {
                        doubt.to = doubt.to.min(from.max(doubt.from));
                    }
                    if fault == Fault::VouchedForAll {
                        doubt.to = doubt.from;
                    }
                    let after = self.left(&doubt, fault);
                    doubt.till = Some(till - (before.min(MOST_DOUBT) - after.min(MOST_DOUBT)));
                    self.steps[i] = doubt;
                }
            }
            _ => {}
        }
        for i in 0..self.steps.len() {
            let step = self.steps[i];
            let Some(till) = step.till else { continue };
            let amount = self.left(&step, fault);
            if amount <= 0 {
                self.steps[i].amount = 0;
            } else if was_set_back || till <= 0 {
                self.steps[i] = Step { amount, till: None, ..step };
                self.owed += if fault == Fault::NotMoved { 0 } else { amount };
            }
        }
        self.steps.retain(|step| step.amount > 0);
        if was_set_back {
            self.steps.clear();
            self.floor = Some(0);
        }
    }

    /// Returns whether a start is admitted.
    fn decide(&mut self, word: Option<Word>, fault: Fault) -> bool {
        self.hear(word, fault);
        let mut now = self.floor.unwrap_or(0).max(0);
        if let Some(seen) = self.seen {
            let was_set_back = seen > now + FLOOR_LAG;
            let back = match fault {
                Fault::LostBack if was_set_back => now - seen - WINDOW,
                Fault::NotMovedBack => 0,
                _ if was_set_back => now - seen,
                _ => 0,
            };
            if back < 0 || self.owed > 0 {
                // What has started did so by now.
                let on = match fault {
                    Fault::MovedSinceWritten => self.owed.min(now - seen),
                    _ => self.owed,
                };
                self.log.iter_mut().for_each(|stamp| *stamp = (*stamp + back + on).min((*stamp + back).max(now)));
                (self.owed, self.seen) = (0, Some(now));
            }
            now = now.max(self.seen.unwrap_or(now));
        }
        // What counts no more by now may count again after a correction.
        self.log.retain(|stamp| stamp + 3 * WINDOW > now);
        let counted = self.log.iter().filter(|stamp| *stamp + WINDOW > now).count();
        let is_held = self.steps.iter().any(|step| step.till.is_some()) && fault != Fault::NoHold;
        if is_held || counted >= LIMIT {
            return false;
        }
        self.log.push(now);
        // A state that is new owes nothing.
        self.owed = if self.seen.is_some() { self.owed } else { 0 };
        self.seen = Some(now);
        if self.floor.is_none_or(|floor| now - floor > FLOOR_LAG) {
            self.floor = Some(now);
        }
        true
    }
}

/// A machine. Its readings are relative to the server's clock.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Machine {
    /// Since when it vouches, its last reading, and the time since then by its own clock.
    reading: Option<(i8, i8, i8)>,
    report: Option<Step>,
}

impl Machine {
    fn word(&self) -> Option<Word> {
        let vouch = |(since, seen, _)| (since < seen).then_some(Word::Vouch(since, seen));
        self.report.map(Word::Report).or_else(|| self.reading.and_then(vouch))
    }

    fn saw(&mut self, fault: Fault) {
        self.report = None;
        self.reading = Some(match self.reading {
            Some((since, seen, elapsed)) if seen <= 0 => {
                let by = -seen - elapsed;
                self.report = (by > 0).then_some(Step { from: seen, to: 0, amount: by, since, till: None });
                let goes_on = (by <= 0 || fault == Fault::VouchesOn) && elapsed <= MOST_VOUCHED;
                (if goes_on { since } else { 0 }, 0, 0)
            }
            _ => (0, 0, 0),
        });
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    engine: Engine,
    machines: [Machine; 2],
    /// The ages of the starts that are counted, by the true time.
    starts: Vec<i8>,
    /// The age of an open step, and whether each machine has asked before and since.
    open: Option<(i8, [bool; 2], [bool; 2])>,
    asked: [u8; 2],
    /// For how many ticks requests have been denied, and whether one was in this tick.
    denied: (i8, bool),
    steps: u8,
    still: u8,
    ticks: u8,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Tick { still: bool },
    Ask(usize),
    Step(i8),
}

impl World {
    fn new(s: &Setting) -> World {
        let (engine, machines) = Default::default();
        let Setting { steps, still, ticks, .. } = *s;
        World { engine, machines, starts: vec![], open: None, asked: [0; 2], denied: (0, false), steps, still, ticks }
    }

    fn actions(&self, s: &Setting) -> Vec<Action> {
        let mut all: Vec<_> = (0..2).filter(|i| self.asked[*i] < 1).map(Action::Ask).collect();
        if self.ticks > 0 {
            all.push(Action::Tick { still: false });
            all.extend((self.still > 0).then_some(Action::Tick { still: true }));
        }
        // One step at a time, so that it is known which one a machine may know of.
        if self.steps > 0 && self.open.is_none() {
            all.push(Action::Step(s.step));
        }
        all
    }

    fn set(&mut self, by: i8) {
        self.engine.times(|time| (time - by).max(-100));
        for machine in &mut self.machines {
            machine.reading = machine.reading.map(|(since, seen, elapsed)| (since - by, seen - by, elapsed));
            if let Some(report) = &mut machine.report {
                (report.from, report.to, report.since) = (report.from - by, report.to - by, report.since - by);
            }
        }
    }

    /// Returns what is wrong afterwards.
    fn act(&mut self, action: Action, s: &Setting) -> Option<Wrong> {
        match action {
            Action::Tick { still } => {
                (self.ticks, self.still) = (self.ticks - 1, self.still - u8::from(still));
                self.denied = if self.denied.1 { (self.denied.0 + 1, false) } else { (0, false) };
                self.asked = [0; 2];
                self.set(1);
                for (i, machine) in self.machines.iter_mut().enumerate() {
                    let passed = i8::from(!(still && i == 0));
                    machine.reading = machine.reading.map(|(since, seen, elapsed)| (since, seen, elapsed + passed));
                }
                self.starts.iter_mut().for_each(|age| *age += 1);
                self.starts.retain(|age| *age < WINDOW);
                // After a window, nothing counts that started before the step.
                self.open = self.open.map(|(age, a, b)| (age + 1, a, b)).filter(|(age, ..)| *age < WINDOW);
            }
            Action::Step(by) => {
                self.steps -= 1;
                self.set(by);
                let knew = [0, 1].map(|i| self.machines[i].reading.is_some());
                self.open = (by > 0).then_some((0, knew, [false; 2]));
            }
            Action::Ask(i) => {
                self.asked[i] += 1;
                // It reports what it saw with its previous request since the step.
                if self.open.is_some_and(|(_, knew, since)| knew[i] && since[i]) {
                    self.open = None;
                }
                let word = self.machines[i].word();
                let is_admitted = self.engine.decide(word, s.fault);
                self.machines[i].saw(s.fault);
                if let Some((_, _, since)) = &mut self.open {
                    since[i] = true;
                } else if is_admitted {
                    self.starts.push(0);
                }
                // A doubt, and time that must not run backwards, may come on top.
                let step = if s.step > 0 { s.step } else { WINDOW.min(-s.step) };
                let error = step * s.steps as i8 + s.still as i8 + MOST_DOUBT + 2 * FLOOR_LAG;
                self.denied = if is_admitted { (0, false) } else { (self.denied.0, true) };
                return match () {
                    () if self.starts.len() > LIMIT => Some(Wrong::OverTheLimit),
                    () if self.denied.0 > WINDOW + error => Some(Wrong::Silent),
                    () => None,
                };
            }
        }
        None
    }
}

fn search(s: &Setting) -> (usize, Option<(Wrong, Vec<Action>)>) {
    all_states::visit(World::new(s), |world| world.actions(s), |world, action| world.act(action, s))
}

fn forward() -> Setting {
    Setting { fault: Fault::Sound, step: 2, steps: 1, still: 2, ticks: 6 }
}

fn back() -> Setting {
    Setting { step: -3, steps: 2, still: 0, ticks: 8, ..forward() }
}

fn holds(s: &Setting) {
    let (states, way) = search(s);
    println!("{states} states with steps of {}", s.step);
    assert!(way.is_none(), "{way:?}");
}

fn is_needed(s: &Setting, fault: Fault, expected: Wrong) {
    let (states, found) = search(&Setting { fault, ..s.clone() });
    let (wrong, way) = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
    println!("{fault:?}, after {states} states: {way:?}");
    assert_eq!(wrong, expected);
}

#[test]
fn a_step_forward_that_was_reported_admits_no_more_than_the_limit() {
    for step in [1, 2, 5] {
        holds(&Setting { step, ..forward() });
    }
    for fault in
        [Fault::Unheard, Fault::NoHold, Fault::VouchedForAll, Fault::VouchesOn, Fault::OverlapsCount, Fault::NotMoved]
    {
        is_needed(&forward(), fault, Wrong::OverTheLimit);
    }
    is_needed(&Setting { step: 5, ..forward() }, Fault::MovedSinceWritten, Wrong::OverTheLimit);
}

#[test]
fn a_step_back_admits_no_more_than_the_limit_and_delays_nothing() {
    for step in [-1, -2, -3, -7] {
        holds(&Setting { step, ..back() });
    }
    is_needed(&Setting { step: -7, ..back() }, Fault::LostBack, Wrong::OverTheLimit);
    is_needed(&Setting { step: -20, steps: 1, ticks: 12, ..back() }, Fault::NotMovedBack, Wrong::Silent);
}

#[test]
fn machines_that_stand_still_admit_no_more_than_the_limit() {
    holds(&Setting { steps: 0, still: 3, ticks: 7, ..forward() });
}
