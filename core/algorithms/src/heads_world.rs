//! Three processes that wait in one line, or in those of two tenants: what they may do in each state, and what must be true after
//! it. See `heads_search.rs`.

use super::super::*;

pub const PROCESSES: usize = 3;
const ENTRIES: u64 = 4;
const WORDS: usize = Heads::words_of_tenants(ENTRIES) as usize;
const SLOTS: usize = 2;
/// A head that has not used its turn at so many looks after the first is skipped.
const IDLE: u8 = 2;

/// A rule that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Sound,
    /// A line looks before it shows its waiter.
    LooksFirst,
    /// A job's end calls nobody.
    EndsSilently,
    /// Who has started calls nobody.
    StartsSilently,
    NeverCharges,
    /// All tenants are charged as if their shares were equal.
    IgnoresShares,
    /// A stopped line is waited for.
    NeverSkips,
    /// A dead line is waited for.
    NeverRemoves,
    /// A line that was skipped and runs again does not show itself.
    StaysSkipped,
    /// A line whose last waiter has started stays.
    NeverLeaves,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    Order,
    LostTurn,
    Unfair,
    Left,
}

#[derive(Clone, Copy)]
pub struct Setting {
    pub fault: Fault,
    /// The tenant of each process, and how many waiters come to it.
    pub waiters: [(usize, u8); PROCESSES],
    pub shares: [u32; 2],
    /// Whether the names are tenants of one limit. If not, all have the same name.
    pub is_shared: bool,
    pub units: u8,
    pub deaths: u8,
    pub stops: u8,
}

/// What a process does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Next {
    Sleep,
    Show,
    Look,
    Claim,
    Charge,
    ShowSuccessor,
    Call,
}

/// When the waiters of a process asked, the first one first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Waiting([Option<u64>; 2]);

impl Waiting {
    fn first(self) -> Option<u64> {
        self.0[0]
    }

    fn push(&mut self, since: u64) {
        *self.0.iter_mut().find(|place| place.is_none()).unwrap() = Some(since);
    }

    fn pop(&mut self) {
        self.0 = [self.0[1], None];
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Process {
    next: Next,
    /// Who will come, and when those asked that have come and not started.
    to_come: u8,
    waiting: Waiting,
    /// Its entry, if it has one, and the tag that it shows, as far as it knows.
    entry: Option<(usize, u64)>,
    running: u8,
    is_called: bool,
    is_dead: bool,
    is_stopped: bool,
    /// Whether its waiter has been shown since it ran last, so that others know of it.
    is_known: bool,
    /// Whether it claims after it saw waiters of both tenants, who have waited since.
    saw_both: bool,
    /// The head that does not use its turn, what had started then, and at how many looks.
    watched: Option<(usize, u64, u8, u8)>,
    by_timer: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    words: [u64; WORDS],
    shared: [u64; 1 + SLOTS * 2],
    processes: [Process; PROCESSES],
    free: u8,
    asked: u64,
    started: u8,
    looks: u8,
    deaths: u8,
    stops: u8,
    /// How often a process died before it charged a start.
    uncharged: u8,
    /// What really happened: the virtual time, the end of each tenant's last start there, and what each has had while both wait.
    time: u32,
    ends: [u32; 2],
    had: [u8; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Come(usize),
    End(usize),
    Step(usize),
    /// All that sleep and wait look, because nothing else happens.
    Timer,
    Die(usize),
    Stop(usize),
    Run(usize),
}

/// Divides all shares of the tests.
const WHOLE: u32 = 6;

impl World {
    pub fn new(s: &Setting) -> World {
        let process = |(_, to_come)| Process {
            next: Next::Sleep,
            to_come,
            waiting: Waiting::default(),
            entry: None,
            running: 0,
            is_called: false,
            is_dead: false,
            is_stopped: false,
            is_known: false,
            saw_both: false,
            watched: None,
            by_timer: false,
        };
        World {
            words: [0; WORDS],
            shared: [0; 1 + SLOTS * 2],
            processes: s.waiters.map(process),
            free: s.units,
            asked: 1,
            started: 0,
            looks: 0,
            deaths: 0,
            stops: 0,
            uncharged: 0,
            time: 0,
            ends: [0; 2],
            had: [0; 2],
        }
    }

    /// Works on the words.
    fn with<R>(&mut self, s: &Setting, f: impl FnOnce(Heads) -> R) -> R {
        let (words, shared) = (self.words.map(AtomicU64::new), self.shared.map(AtomicU64::new));
        let shares = Shares::new(&shared[0], &shared[1..], u64::from(s.units));
        let mut heads = Heads::of_tenants(&words, shares);
        heads.shares = heads.shares.filter(|_| s.is_shared);
        let result = f(heads);
        (self.words, self.shared) = (words.map(AtomicU64::into_inner), shared.map(AtomicU64::into_inner));
        result
    }

    pub fn actions(&self, s: &Setting) -> Vec<Action> {
        let mut all = Vec::new();
        for (i, p) in self.processes.iter().enumerate().filter(|(_, p)| !p.is_dead) {
            if p.is_stopped {
                all.push(Action::Run(i));
                continue;
            }
            if p.next == Next::Sleep {
                // (It does not matter which of two that are alike comes first.)
                let is_alike =
                    |j: &usize| s.waiters[*j] == s.waiters[i] && self.processes[*j].to_come == s.waiters[i].1;
                all.extend((p.to_come > 0 && !(0..i).any(|j| is_alike(&j))).then_some(Action::Come(i)));
                all.extend((p.running > 0).then_some(Action::End(i)));
            }
            if p.next != Next::Sleep || p.is_called {
                all.push(Action::Step(i));
            }
            if p.next != Next::Sleep || p.running > 0 || p.waiting.first().is_some() {
                all.extend((self.deaths < s.deaths).then_some(Action::Die(i)));
                all.extend((self.stops < s.stops).then_some(Action::Stop(i)));
            }
        }
        if self.is_stuck() {
            all.push(Action::Timer);
        }
        all
    }

    fn runs(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|p| !p.is_dead && !p.is_stopped)
    }

    /// Returns whether all that run sleep, though a unit is free for somebody among them.
    fn is_stuck(&self) -> bool {
        let dead: u8 = self.processes.iter().filter(|p| p.is_dead).map(|p| p.running).sum();
        let is_quiet = self.runs().all(|p| p.next == Next::Sleep && !p.is_called);
        is_quiet && self.free + dead > 0 && self.runs().any(|p| p.waiting.first().is_some())
    }

    /// The order of a process's first waiter, by what has really happened.
    fn order(&self, s: &Setting, i: usize) -> (u32, u64) {
        let (p, tenant) = (&self.processes[i], s.waiters[i].0);
        let lead = if s.is_shared { self.ends[tenant].saturating_sub(self.time) } else { 0 };
        (lead, p.waiting.first().unwrap())
    }

    pub fn act(&mut self, action: Action, s: &Setting) -> Option<Wrong> {
        match action {
            Action::Come(i) => {
                let p = &mut self.processes[i];
                p.to_come -= 1;
                p.waiting.push(self.asked);
                self.asked += 1;
                if p.waiting.0[1].is_none() {
                    (p.next, p.is_known) = (if s.fault == Fault::LooksFirst { Next::Look } else { Next::Show }, false);
                }
            }
            Action::End(i) => {
                self.processes[i].running -= 1;
                self.free += 1;
                self.processes[i].next = Next::Call;
            }
            Action::Timer => {
                self.looks += 1;
                for p in
                    self.processes.iter_mut().filter(|p| !p.is_dead && !p.is_stopped && p.waiting.first().is_some())
                {
                    (p.next, p.by_timer) = (Next::Show, true);
                }
            }
            Action::Die(i) => {
                self.deaths += 1;
                let p = &mut self.processes[i];
                self.uncharged += u8::from(p.next == Next::Charge);
                (p.is_dead, p.is_called, p.next, p.to_come) = (true, false, Next::Sleep, 0);
                p.waiting = Waiting::default();
            }
            Action::Stop(i) => {
                self.stops += 1;
                (self.processes[i].is_stopped, self.processes[i].is_known) = (true, false);
            }
            Action::Run(i) => {
                let p = &mut self.processes[i];
                // What was due meanwhile is done now.
                (p.is_stopped, p.is_called) = (false, p.is_called || p.waiting.first().is_some());
            }
            Action::Step(i) => {
                if let Some(wrong) = self.step(i, s) {
                    return Some(wrong);
                }
            }
        }
        self.judge(s)
    }

    fn judge(&mut self, s: &Setting) -> Option<Wrong> {
        // One look finds a dead head, and a few a stopped one. (Whoever looked so far may have died.)
        if self.is_stuck() && self.looks >= self.deaths + (IDLE + 1) * self.stops * (1 + self.deaths) {
            return Some(Wrong::LostTurn);
        }
        if self.both_wait(s) {
            let [a, b] = [0, 1].map(|tenant| u32::from(self.had[tenant]) * WHOLE / s.shares[tenant]);
            let most: u32 = s.shares.iter().map(|share| WHOLE / share).sum();
            let dead = u32::from(self.uncharged) * WHOLE / s.shares.iter().min().unwrap();
            if a.abs_diff(b) > most + dead {
                return Some(Wrong::Unfair);
            }
        } else {
            self.had = [0; 2];
            self.processes.iter_mut().for_each(|p| p.saw_both = false);
        }
        let is_over =
            self.processes.iter().all(|p| p.next == Next::Sleep && p.waiting.first().is_none() && !p.is_stopped);
        let is_left = |i: usize| {
            let owner = 1 + i as u64;
            !self.processes[i].is_dead && self.words.as_chunks::<4>().0.iter().any(|entry| entry[0] == owner)
        };
        (is_over && (0..PROCESSES).any(is_left)).then_some(Wrong::Left)
    }

    /// Returns whether both tenants wait, and all know of it.
    fn both_wait(&self, s: &Setting) -> bool {
        let waits = |tenant| (0..PROCESSES).any(|i| s.waiters[i].0 == tenant && self.is_shown(i));
        s.is_shared && [0, 1].map(waits) == [true; 2]
    }

    /// Returns whether somebody is shown who comes before this process's waiter.
    fn is_passed(&self, s: &Setting, i: usize) -> bool {
        let own = self.order(s, i);
        (0..PROCESSES).any(|j| j != i && self.is_shown(j) && self.order(s, j) < own)
    }

    /// Returns whether all know of the process's waiter.
    fn is_shown(&self, i: usize) -> bool {
        let p = &self.processes[i];
        p.is_known && !p.is_dead && !p.is_stopped && p.waiting.first().is_some() && p.next != Next::ShowSuccessor
    }

    fn step(&mut self, i: usize, s: &Setting) -> Option<Wrong> {
        let (tenant, owner) = (s.waiters[i].0, 1 + i as u64);
        let name = if s.is_shared { 1 + tenant as u64 } else { 1 };
        match self.processes[i].next {
            Next::Sleep if self.processes[i].waiting.first().is_none() => {
                self.processes[i].is_called = false;
                self.processes[i].next = Next::Call;
            }
            of @ (Next::Sleep | Next::Show | Next::ShowSuccessor) => {
                if of == Next::Sleep {
                    (self.processes[i].is_called, self.processes[i].by_timer) = (false, false);
                }
                let (entry, first) = (self.processes[i].entry, self.processes[i].waiting.first());
                let is_skipped_for_good = s.fault == Fault::StaysSkipped;
                let entry = self.with(s, |heads| match first {
                    Some(since) => {
                        let tag = tag(0, since);
                        let kept = entry.filter(|(at, _)| heads.is_of(*at, owner));
                        let Some((at, known)) = kept else {
                            return heads.join(name, owner, tag, 1).map(|at| (at, tag));
                        };
                        if !(heads.shows(at, owner, tag, 1) || is_skipped_for_good && known == tag) {
                            heads.show(at, tag, 1);
                        }
                        Some((at, tag))
                    }
                    None if s.fault == Fault::NeverLeaves => entry,
                    None => {
                        entry.into_iter().for_each(|(at, _)| heads.leave(at, owner));
                        None
                    }
                });
                let p = &mut self.processes[i];
                (p.entry, p.is_known) = (entry, first.is_some());
                p.next = match first {
                    Some(_) if s.fault == Fault::LooksFirst && p.watched.is_none() && !p.by_timer => Next::Sleep,
                    Some(_) => Next::Look,
                    None => Next::Call,
                };
            }
            Next::Look => return self.look(i, name, s),
            Next::Claim => {
                // The units of the dead come back to whoever claims.
                for p in self.processes.iter_mut().filter(|p| p.is_dead) {
                    self.free += std::mem::take(&mut p.running);
                }
                // (Who was shown after it looked may come before it. That is no fault of the shares.)
                let counts = self.processes[i].saw_both && !self.is_passed(s, i);
                let p = &mut self.processes[i];
                p.next = Next::Sleep;
                if self.free > 0 {
                    (self.free, self.started, self.looks) = (self.free - 1, self.started + 1, 0);
                    p.waiting.pop();
                    (p.running, p.next, p.is_known) = (p.running + 1, Next::Charge, false);
                    self.had[tenant] += u8::from(counts);
                }
            }
            Next::Charge => {
                let share = if s.fault == Fault::IgnoresShares { 1 } else { s.shares[tenant] };
                if s.is_shared && s.fault != Fault::NeverCharges {
                    self.with(s, |heads| heads.shares().unwrap().charge(name, 1, share));
                }
                let begins = self.ends[tenant].max(self.time);
                (self.time, self.ends[tenant]) = (begins, begins + WHOLE / share);
                self.processes[i].next = Next::ShowSuccessor;
            }
            Next::Call => {
                let is_silent = match self.processes[i].waiting.first().is_none() && self.processes[i].running > 0 {
                    true => s.fault == Fault::StartsSilently,
                    false => s.fault == Fault::EndsSilently,
                };
                if self.free > 0 && !is_silent {
                    let head = self.with(s, |heads| heads.first(name));
                    self.call(head);
                }
                self.processes[i].next = Next::Sleep;
            }
        }
        None
    }

    fn call(&mut self, head: Option<Head>) {
        if let Some(head) = head {
            let p = &mut self.processes[head.owner as usize - 1];
            p.is_called |= !p.is_dead;
        }
    }

    fn look(&mut self, i: usize, name: u64, s: &Setting) -> Option<Wrong> {
        let mine = self.processes[i].entry.map_or(usize::MAX, |(at, _)| at);
        let survey = self.with(s, |heads| heads.survey(name, mine, 0));
        let is_first = survey.ahead == 0 && mine != usize::MAX;
        let Some(head) = survey.least.filter(|_| !is_first) else {
            (self.processes[i].next, self.processes[i].watched) = (Next::Claim, None);
            if mine == usize::MAX {
                // It looked before it was shown.
                self.processes[i].next = Next::Show;
                return None;
            }
            self.processes[i].saw_both = self.both_wait(s);
            return self.is_passed(s, i).then_some(Wrong::Order);
        };
        let is_dead = self.processes[head.owner as usize - 1].is_dead;
        if is_dead && s.fault != Fault::NeverRemoves {
            self.with(s, |heads| heads.remove(head));
            return None; // It looks again.
        }
        let dead: u8 = self.processes.iter().filter(|p| p.is_dead).map(|p| p.running).sum();
        let p = &mut self.processes[i];
        if self.free + dead == 0 {
            (p.watched, p.next) = (None, Next::Sleep);
            return None;
        }
        let before =
            p.watched.filter(|(at, tag, started, _)| (*at, *tag, *started) == (head.at, head.tag, self.started));
        let idle = before.map_or(0, |(.., idle)| idle + u8::from(p.by_timer));
        p.by_timer = false;
        if idle >= IDLE && s.fault != Fault::NeverSkips {
            p.watched = None;
            self.with(s, |heads| heads.skip(head));
            // Until its line looks again, others may pass it.
            let skipped = &mut self.processes[head.owner as usize - 1];
            skipped.is_known &= !self.words.as_chunks::<4>().0[head.at].ends_with(&[head.tag | SKIPPED, 1]);
            return None;
        }
        (p.watched, p.next) = (Some((head.at, head.tag, self.started, idle.min(IDLE))), Next::Sleep);
        if before.is_none() {
            self.call(Some(head));
        }
        None
    }
}
