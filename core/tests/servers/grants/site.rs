//! A site: it starts units that it was granted. Its times are relative to its clock.

use super::message::{Answer, Name, Request};
use super::setting::{Fault, Setting};

/// A site's copy of a grant, valid from `from` until just before `until`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    pub name: Name,
    pub epoch: u8,
    pub version: u8,
    pub from: i16,
    pub until: i16,
    pub units: u8,
    pub left: u8,
    pub future: bool,
}

/// A request without an answer, and the clock before it was first sent.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OpenRequest {
    pub at: i16,
    pub request: Request,
}

/// A process that checked a grant, found that it may start, and has not done so yet.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoppedProcess {
    pub name: Name,
    pub age: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Site {
    pub born: u8,
    /// Less than the grain.
    pub clock: i16,
    pub asked: Option<OpenRequest>,
    pub cells: Vec<Cell>,
    pub epoch: u8,
    pub version: u8,
    /// The known rules are valid until then.
    pub trusted: i16,
    pub gate: i16,
    pub stopped: Option<StoppedProcess>,
}

impl Site {
    pub fn new(born: u8) -> Site {
        let (clock, epoch, version, trusted, gate) = Default::default();
        Site { born, clock, asked: None, cells: vec![], epoch, version, trusted, gate, stopped: None }
    }

    /// Returns whether its clock does not matter.
    pub fn is_idle(&self) -> bool {
        self.asked.is_none() && self.cells.is_empty() && self.stopped.is_none()
    }

    pub fn knows_better(&self, cell: &Cell, s: &Setting) -> bool {
        (cell.epoch != self.epoch && !s.is(Fault::EpochIgnored))
            || (cell.version != self.version && !s.is(Fault::VersionIgnored))
    }

    /// Returns whether a unit of the grant may start now. The clock shows 0.
    pub fn may_start(&self, cell: &Cell, s: &Setting) -> bool {
        (cell.left > 0 && cell.from <= 0 && 0 < cell.until)
            && (0 < self.trusted || s.is(Fault::Untrusted))
            && (self.gate <= 0 || s.is(Fault::GateIgnored))
            && !self.knows_better(cell, s)
    }

    pub fn take(&mut self, name: Name, answer: &Answer, s: &Setting) {
        let Some(asked) = &self.asked else { return };
        let (mut before, mut after) = (asked.at, s.up(self.clock));
        if s.is(Fault::SiteRoundsUp) {
            (before, after) = (asked.at + s.grain, 0);
        }
        if s.is(Fault::FromTheAnswer) {
            before = after;
        }
        // A copy of an answer finds no outstanding request.
        if !s.is(Fault::AnswerTakenTwice) {
            self.asked = None;
        }
        (self.epoch, self.version) = (answer.epoch, answer.version);
        self.trusted = before + s.at_least(s.trust());
        self.gate = self.gate.max(if answer.gate > 0 { after + s.at_most(answer.gate) } else { 0 });
        if let Some((ready, units)) = answer.grant {
            let from = after + s.at_most(ready);
            let until = before + s.at_least(ready + s.length);
            let (epoch, version) = (answer.epoch, answer.version);
            self.cells.push(Cell { name, epoch, version, from, until, units, left: units, future: ready > 0 });
        }
    }

    pub fn tick(&mut self, fine: i16, s: &Setting) {
        if self.is_idle() {
            return;
        }
        self.clock += fine;
        let shown = s.down(self.clock);
        self.clock -= shown;
        for cell in &mut self.cells {
            (cell.from, cell.until) = ((cell.from - shown).max(0), (cell.until - shown).max(0));
        }
        self.trusted = (self.trusted - shown).max(0);
        self.gate = (self.gate - shown).max(0);
        if let Some(asked) = &mut self.asked {
            asked.at -= shown;
        }
        // No answer could be trusted any more.
        self.asked.take_if(|asked| asked.at + s.at_least(s.length) <= 0);
        if let Some(stopped) = &mut self.stopped {
            stopped.age += 1;
        }
        self.stopped.take_if(|stopped| stopped.age > s.stops);
    }
}
