//! The engine, the sites and the messages between them; everything that can happen to them; and what must not happen.
//!
//! No value counts from a beginning, so that equal situations are equal states whenever they arise: times are relative
//! to a clock, numbers of requests to the site's last one, and starts have ages. So a search can end, and its result
//! holds for an unlimited time.

use super::engine::Engine;
use super::message::{Content, Message, Name, Request, Return};
use super::setting::{Budget, Fault, Setting};
use super::site::{Cell, OpenRequest, Site, StoppedProcess};

/// A start. It lies between these ages, of which the first is the larger one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Start {
    pub looked: i16,
    pub done: i16,
}

/// A call by an operator: in how many ticks it returns, or how many steps ago it has returned.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Never,
    Returns(i16),
    Returned(i16),
}

impl Call {
    fn shift(&mut self, ticks: i16) {
        if let Call::Returns(time) = self {
            *time -= ticks;
        }
    }

    fn tick(&mut self, now: i16, longest: i16) {
        *self = match *self {
            Call::Returned(age) => Call::Returned((age + 1).min(longest)),
            Call::Returns(time) if time <= now => Call::Returned(0),
            other => other,
        };
    }

    /// Returns whether the call returned before, or exactly when, a start of this age was requested.
    fn had_returned(&self, age: i16) -> bool {
        matches!(self, Call::Returned(ago) if age <= *ago)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A step of true time, and the advance of each site's clock during it.
    Step([i16; 3]),
    /// A site, its clock's phase if it was idle, the request, and the grant whose rest it returns.
    Ask {
        site: usize,
        phase: i16,
        want: u8,
        waits: bool,
        back: Option<usize>,
    },
    Repeat(usize),
    GiveUp(usize),
    Arrive(usize),
    Start {
        site: usize,
        cell: usize,
    },
    Look {
        site: usize,
        cell: usize,
    },
    Go(usize),
    Die(usize),
    Lose,
    Change,
    Pause,
    SetBack,
    SetForward,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub engine: Engine,
    pub sites: Vec<Site>,
    pub net: Vec<Message>,
    pub starts: Vec<Start>,
    pub change: Call,
    pub pause: Call,
    /// The number of steps until the gate opens.
    pub gate: i16,
    pub budget: Budget,
}

/// A violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    OverTheLimit,
    OverTheNewLimit,
    StartedInPause,
    GrantedTwice,
}

impl World {
    pub fn new(s: &Setting) -> World {
        let (log, records) = (vec![], vec![]);
        let (epoch, version, limit) = (0, 0, s.limit);
        let engine = Engine { phase: 0, floor: 0, log, records, epoch, version, limit, silent: 0, gate: 0 };
        let sites = (0..s.sites).map(|_| Site::new(0)).collect();
        let (net, starts, budget) = (vec![], vec![], s.budget.clone());
        World { engine, sites, net, starts, change: Call::Never, pause: Call::Never, gate: 0, budget }
    }

    /// The name of a site's last request.
    fn last(&self, site: usize) -> Name {
        Name { site: site as u8, born: self.sites[site].born, number: 0 }
    }

    fn each_name(&mut self, mut f: impl FnMut(&mut Name)) {
        for message in &mut self.net {
            f(&mut message.name);
            if let Content::Request(Request { back: Some(back), .. }) = &mut message.content {
                f(&mut back.name);
            }
        }
        self.engine.log.iter_mut().filter_map(|e| e.name.as_mut()).for_each(&mut f);
        self.engine.records.iter_mut().for_each(|(name, _)| f(name));
        for site in &mut self.sites {
            site.cells.iter_mut().for_each(|cell| f(&mut cell.name));
            site.stopped.iter_mut().for_each(|stopped| f(&mut stopped.name));
            let asked = site.asked.iter_mut().filter_map(|asked| asked.request.back.as_mut());
            asked.for_each(|back| f(&mut back.name));
        }
    }

    /// The same world with the two sites exchanged.
    pub fn mirrored(&self) -> World {
        let mut world = self.clone();
        world.sites.swap(0, 1);
        world.each_name(|name| name.site = 1 - name.site);
        world.net.sort();
        world.engine.log.sort();
        world.engine.records.sort();
        world
    }

    /// All possible next actions.
    pub fn actions(&self, s: &Setting) -> Vec<Action> {
        let mut all = vec![];
        self.steps(s, &mut all);
        all.extend((0..self.net.len()).map(Action::Arrive));
        (0..self.sites.len()).for_each(|site| self.of_site(site, s, &mut all));
        let budget = &self.budget;
        let calm = self.engine.floor == 0;
        for (may, action) in [
            (budget.losses > 0 && calm, Action::Lose),
            (budget.changes > 0 && calm, Action::Change),
            (budget.pauses > 0 && calm, Action::Pause),
            (budget.steps > 0 && calm, Action::SetBack),
            (s.budget.steps > 0 && !calm, Action::SetForward),
        ] {
            if may {
                all.push(action);
            }
        }
        all
    }

    fn steps(&self, s: &Setting, all: &mut Vec<Action>) {
        let mut rates = vec![[s.fine; 3]];
        for i in (0..self.sites.len()).filter(|i| s.drift > 0 && !self.sites[*i].is_idle()) {
            let with = |rate: i16| rates.iter().map(move |r| std::array::from_fn(|j| if i == j { rate } else { r[j] }));
            rates = with(s.fine - s.drift).chain(with(s.fine + s.drift)).collect();
        }
        all.extend(rates.into_iter().map(Action::Step));
    }

    fn of_site(&self, i: usize, s: &Setting, all: &mut Vec<Action>) {
        let site = &self.sites[i];
        for (cell, grant) in site.cells.iter().enumerate().filter(|(_, grant)| site.may_start(grant, s)) {
            all.push(Action::Start { site: i, cell });
            if s.stops > 0 && site.stopped.is_none() && grant.left > 0 {
                all.push(Action::Look { site: i, cell });
            }
        }
        if let Some(stopped) = &site.stopped
            && (site.cells.iter().any(|cell| cell.name == stopped.name && cell.left > 0)
                || s.is(Fault::ReturnedAndStarted))
        {
            all.push(Action::Go(i));
        }
        if self.budget.deaths > 0 {
            all.push(Action::Die(i));
        }
        match site.asked {
            None => self.questions(i, s, all),
            Some(_) => {
                let requests = self.requests(i).filter(|m| m.name == self.last(i)).count();
                if requests == 0 {
                    all.push(Action::Repeat(i));
                }
                if s.requests > 1 {
                    all.push(Action::GiveUp(i));
                }
            }
        }
    }

    fn requests(&self, site: usize) -> impl Iterator<Item = &Message> {
        self.net.iter().filter(move |m| m.name.site == site as u8 && matches!(m.content, Content::Request(_)))
    }

    fn questions(&self, i: usize, s: &Setting, all: &mut Vec<Action>) {
        let site = &self.sites[i];
        if self.requests(i).count() >= s.requests {
            return;
        }
        let backs = (0..if s.returns { site.cells.len() } else { 0 }).map(Some).chain([None]);
        for back in backs {
            let held = site.cells.iter().enumerate().filter(|(j, cell)| cell.until > 0 && back != Some(*j)).count();
            // For no units: only to return some, or to learn the rules.
            let nothing = (held > 0 || back.is_some()).then_some(0);
            let something = s.wants.iter().copied().filter(|_| held < s.held);
            for want in something.chain(nothing) {
                for waits in [false, true].into_iter().take(if s.ahead > 0 && want > 0 { 2 } else { 1 }) {
                    let phases = if site.is_idle() { s.grain } else { 1 };
                    all.extend((0..phases).map(|phase| Action::Ask { site: i, phase, want, waits, back }));
                }
            }
        }
    }

    /// Performs an action, and returns the violation after it, if any.
    pub fn act(&mut self, action: Action, s: &Setting) -> Option<Wrong> {
        let wrong = match action {
            Action::Start { site, cell } => {
                self.sites[site].cells[cell].left -= 1;
                self.started(0, s)
            }
            Action::Go(site) => self.go(site, s),
            Action::Arrive(message) => self.arrive(self.net[message], s),
            _ => {
                self.move_on(action, s);
                None
            }
        };
        self.tidy(s);
        wrong
    }

    fn move_on(&mut self, action: Action, s: &Setting) {
        match action {
            Action::Step(rates) => self.step(rates, s),
            Action::Ask { site, phase, want, waits, back } => self.ask(site, phase, (want, waits, back), s),
            Action::Repeat(site) => self.repeat(site, s),
            Action::GiveUp(site) => self.sites[site].asked = None,
            Action::Look { site, cell } => {
                let name = self.sites[site].cells[cell].name;
                self.sites[site].stopped = Some(StoppedProcess { name, age: 0 });
            }
            Action::Die(site) => self.die(site, s),
            Action::Lose => self.lose(s),
            Action::Change => {
                self.budget.changes -= 1;
                self.engine.version += 1;
                self.engine.limit = s.lowered;
                self.change = self.call(s.is(Fault::ChangeAtOnce), s);
            }
            Action::Pause => {
                self.budget.pauses -= 1;
                self.engine.gate = self.engine.now(s) + s.pause;
                self.gate = self.engine.gate * s.tick - self.engine.phase;
                self.pause = self.call(s.is(Fault::PauseAtOnce), s);
            }
            Action::SetBack => {
                self.budget.steps -= 1;
                self.set(-s.step);
            }
            Action::SetForward => self.set(s.step),
            Action::Start { .. } | Action::Go(_) | Action::Arrive(_) => unreachable!("they are checked"),
        }
    }

    /// When an operator's call returns: once no start can happen by the previous rules.
    fn call(&self, at_once: bool, s: &Setting) -> Call {
        Call::Returns(self.engine.now(s) + if at_once { 0 } else { s.by_old_rules() })
    }

    fn step(&mut self, rates: [i16; 3], s: &Setting) {
        self.engine.phase += 1;
        if self.engine.phase == s.tick {
            self.engine.phase = 0;
            self.set(1);
        }
        let longest = s.window_steps() + s.stops as i16 + 1;
        for call in [&mut self.change, &mut self.pause] {
            call.tick(self.engine.now(s), longest);
        }
        self.gate = (self.gate - 1).max(-longest);
        for (site, rate) in self.sites.iter_mut().zip(rates) {
            site.tick(rate, s);
        }
        self.net.iter_mut().for_each(|m| m.life -= 1);
        self.net.retain(|m| m.life > 0);
        self.starts.iter_mut().for_each(|start| (start.looked, start.done) = (start.looked + 1, start.done + 1));
    }

    /// Advances the engine's clock by this many ticks.
    fn set(&mut self, ticks: i16) {
        self.engine.shift(ticks);
        [&mut self.change, &mut self.pause].into_iter().for_each(|call| call.shift(ticks));
    }

    fn ask(&mut self, i: usize, phase: i16, (want, waits, back): (u8, bool, Option<usize>), s: &Setting) {
        let name = self.last(i);
        self.each_name(|n| {
            if (n.site, n.born) == (name.site, name.born) {
                n.number -= 1;
            }
        });
        let site = &mut self.sites[i];
        site.clock = if site.is_idle() { phase } else { site.clock };
        // First the units leave the cell, so that they cannot start. Then the return is sent.
        let back = back.map(|cell| {
            let cell = site.cells.remove(cell);
            Return { name: cell.name, epoch: cell.epoch, stay: cell.units - cell.left, gone: cell.left }
        });
        let stopped = site.stopped.as_ref().map(|stopped| stopped.name);
        site.cells.retain(|cell| cell.until > 0 || Some(cell.name) == stopped);
        let request = Request { want, waits, back };
        site.asked = Some(OpenRequest { at: 0, request });
        self.net.push(Message { name, content: Content::Request(request), life: s.delay });
    }

    fn repeat(&mut self, i: usize, s: &Setting) {
        let name = self.last(i);
        let asked = self.sites[i].asked.as_mut().expect("something was asked");
        if s.is(Fault::FromTheRepeat) {
            asked.at = 0;
        }
        let content = Content::Request(asked.request);
        self.net.push(Message { name, content, life: s.delay });
    }

    fn arrive(&mut self, message: Message, s: &Setting) -> Option<Wrong> {
        let name = message.name;
        match &message.content {
            Content::Request(request) => {
                let answer = self.engine.handle(name, request, s)?;
                self.net.push(Message { name, content: Content::Answer(answer), life: s.delay });
                let entries = self.engine.log.iter().filter(|e| e.name == Some(name)).count();
                (entries > 1 && !s.is(Fault::Forgetful)).then_some(Wrong::GrantedTwice)
            }
            Content::Answer(answer) => {
                self.sites[name.site as usize].take(name, answer, s);
                None
            }
        }
    }

    fn go(&mut self, i: usize, s: &Setting) -> Option<Wrong> {
        let site = &mut self.sites[i];
        let stopped = site.stopped.take().expect("a process was stopped");
        if let Some(cell) = site.cells.iter_mut().find(|cell| cell.name == stopped.name && cell.left > 0) {
            cell.left -= 1;
        }
        self.started(stopped.age as i16, s)
    }

    fn die(&mut self, i: usize, s: &Setting) {
        self.budget.deaths -= 1;
        let old = self.last(i);
        let same = s.is(Fault::OldName);
        self.sites[i] = Site::new(if same { old.born } else { old.born + 1 });
        if same {
            let records = self.engine.records.iter_mut().filter(|(n, _)| (n.site, n.born) == (old.site, old.born));
            records.for_each(|(name, _)| name.number = 1);
        }
    }

    fn lose(&mut self, s: &Setting) {
        self.budget.losses -= 1;
        let engine = &mut self.engine;
        engine.log.clear();
        engine.records.clear();
        engine.epoch += 1;
        let silence = match s.fault {
            Fault::NoSilence => 0,
            Fault::SilenceOfWindow => s.window,
            _ => s.by_old_rules() + s.window,
        };
        engine.silent = engine.now(s) + silence;
    }

    /// Records a start whose check was this many steps ago. Violations are measured from outside: by the most starts
    /// that lie wholly within one window, from the check until now.
    fn started(&mut self, looked: i16, s: &Setting) -> Option<Wrong> {
        self.starts.push(Start { looked, done: 0 });
        self.starts.sort();
        if self.pause.had_returned(looked) && self.gate > 0 {
            return Some(Wrong::StartedInPause);
        }
        for first in &self.starts {
            let within = |start: &&Start| start.looked <= first.looked && start.done > first.looked - s.window_steps();
            let many = self.starts.iter().filter(within).count() as u8;
            if many > s.limit {
                return Some(Wrong::OverTheLimit);
            }
            let later = self.starts.iter().filter(within).any(|start| self.change.had_returned(start.looked));
            if later && many > s.lowered {
                return Some(Wrong::OverTheNewLimit);
            }
        }
        None
    }

    /// Forgets what can have no effect any more, so that states that differ only in that are equal.
    fn tidy(&mut self, s: &Setting) {
        self.tidy_sites(s);
        self.tidy_net(s);
        self.tidy_engine(s);
        if !s.is(Fault::OldName) {
            (0..self.sites.len()).for_each(|site| self.tidy_names(site));
        }
        let oldest = self.sites.iter().filter_map(|site| site.stopped.as_ref()).map(|stopped| stopped.age as i16).max();
        let oldest = oldest.unwrap_or(0);
        self.starts.retain(|start| start.looked < s.window_steps() + oldest);
        if self.gate + oldest <= 0 {
            (self.pause, self.gate) = (Call::Never, 0);
        }
    }

    fn tidy_sites(&mut self, s: &Setting) {
        for site in &mut self.sites {
            let stopped = site.stopped.as_ref().map(|stopped| stopped.name);
            for i in 0..site.cells.len() {
                if site.knows_better(&site.cells[i], s) {
                    site.cells[i].until = 0;
                }
            }
            let keeps = |cell: &Cell| cell.until > cell.from || s.returns || Some(cell.name) == stopped;
            site.cells.retain(|cell| cell.left > 0 && keeps(cell));
            if let Some(name) = stopped
                && !site.cells.iter().any(|cell| cell.name == name)
                && !s.is(Fault::ReturnedAndStarted)
            {
                site.stopped = None;
            }
            if site.is_idle() {
                *site = Site::new(site.born);
            }
        }
    }

    fn tidy_net(&mut self, s: &Setting) {
        let copies_count = [Fault::RepeatGrantedTwice, Fault::ReturnAppliedTwice].contains(&s.fault);
        let handled_stay = self.budget.losses > 0 || copies_count;
        let (sites, records) = (&self.sites, &self.engine.records);
        let is_answer = |m: &&Message| matches!(m.content, Content::Answer(_));
        let answers: Vec<_> = self.net.iter().filter(is_answer).map(|m| m.name).collect();
        self.net.retain(|m| {
            let site = &sites[m.name.site as usize];
            let awaited = site.born == m.name.born && site.asked.is_some() && m.name.number == 0;
            let handled = || {
                let same = |name: &Name| (name.site, name.born) == (m.name.site, m.name.born);
                records.iter().any(|(name, _)| same(name) && name.number >= m.name.number)
            };
            match m.content {
                Content::Answer(_) => awaited,
                // A copy would fetch the answer again: that is already in transit, and can arrive any number of times.
                Content::Request(_) => handled_stay || !handled() || (awaited && !answers.contains(&m.name)),
            }
        });
        self.net.sort();
        // Of copies, the last counts, because it lives longest.
        self.net.dedup_by(|next, kept| {
            let same = (next.name, next.content) == (kept.name, kept.content);
            if same {
                kept.life = kept.life.max(next.life);
            }
            same
        });
    }

    /// Only the order of numbers matters.
    fn tidy_names(&mut self, site: usize) {
        for born in 0..=self.sites[site].born {
            let is = |name: &Name| (name.site, name.born) == (site as u8, born);
            let mut numbers = vec![];
            if self.sites[site].asked.is_some() && self.sites[site].born == born {
                numbers.push(0);
            }
            self.each_name(|name| numbers.extend(is(name).then_some(name.number)));
            numbers.sort_by_key(|n| -n);
            numbers.dedup();
            let rank = |number| numbers.iter().position(|n| *n == number).expect("it was seen") as i8;
            self.each_name(|name| name.number = if is(name) { -rank(name.number) } else { name.number });
        }
    }

    fn tidy_engine(&mut self, s: &Setting) {
        let now = self.engine.now(s);
        let (sites, net) = (&self.sites, &self.net);
        let returns = |name: &Name| {
            let by = |request: &Request| request.back.is_some_and(|back| back.name == *name);
            net.iter().any(|m| matches!(&m.content, Content::Request(request) if by(request)) || m.name == *name)
                || sites.iter().enumerate().any(|(i, site)| {
                    let awaits = name.number == 0 && (name.site, name.born) == (i as u8, site.born);
                    site.cells.iter().any(|cell| cell.name == *name)
                        || site.asked.as_ref().is_some_and(|asked| awaits || by(&asked.request))
                })
        };
        let engine = &mut self.engine;
        engine.log.retain(|e| e.stamp + s.window > now);
        for entry in &mut engine.log {
            entry.name = entry.name.filter(|name| s.returns && returns(name));
        }
        engine.log.sort();
        engine.log.dedup_by(|next, kept| {
            let same = (next.stamp, next.name) == (kept.stamp, kept.name) && next.name.is_none();
            if same {
                kept.units += next.units;
            }
            same
        });
        engine.records.retain(|(record, _)| {
            let same = |name: &Name| (name.site, name.born) == (record.site, record.born);
            let repeated = sites[record.site as usize].asked.is_some() && record.number == 0;
            let old_name = s.is(Fault::OldName) && record.number >= 0;
            repeated || old_name || net.iter().any(|m| same(&m.name) && m.name.number <= record.number)
        });
        engine.records.sort();
    }
}
