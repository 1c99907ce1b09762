//! The engine. It keeps a log of grants, as a machine keeps one of starts. Its times are in ticks, relative to its
//! clock.

use super::message::{Answer, Name, Request, Return};
use super::setting::{Fault, Setting};

/// Units that count until `stamp` + window. Without a name, none of them can be returned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    pub stamp: i16,
    pub name: Option<Name>,
    pub units: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Engine {
    /// The number of steps since its clock last changed.
    pub phase: i16,
    /// The latest time it has seen, if that is later than its clock; else 0.
    pub floor: i16,
    pub log: Vec<Entry>,
    /// The last request of each site, and its answer.
    pub records: Vec<(Name, Answer)>,
    pub epoch: u8,
    pub version: u8,
    pub limit: u8,
    /// After a loss of memory, nothing is ready before this.
    pub silent: i16,
    pub gate: i16,
}

impl Engine {
    /// The time of its decisions.
    pub fn now(&self, s: &Setting) -> i16 {
        if s.is(Fault::NoFloor) { 0 } else { self.floor }
    }

    fn used(&self, at: i16, s: &Setting) -> u8 {
        self.log.iter().filter(|e| e.stamp + s.window > at).map(|e| e.units).sum()
    }

    /// When units can be granted, and how many.
    fn ready(&self, request: &Request, s: &Setting) -> Option<(i16, u8)> {
        let earliest = self.now(s).max(self.silent).max(self.gate);
        let latest = self.now(s) + if request.waits { s.ahead } else { 0 };
        let expiries = self.log.iter().map(|e| e.stamp + s.window);
        let mut times: Vec<_> = expiries.filter(|t| *t > earliest).chain([earliest]).collect();
        times.sort();
        let room = |at: i16| self.limit.saturating_sub(self.used(at, s)).min(request.want);
        times.into_iter().map(|at| (at, room(at))).find(|(_, units)| *units > 0).filter(|(at, _)| *at <= latest)
    }

    fn take_back(&mut self, back: &Return, s: &Setting) {
        match s.fault {
            Fault::ReturnToAnother => {
                if let Some(entry) = self.log.iter_mut().max_by_key(|e| e.stamp) {
                    entry.units = entry.units.saturating_sub(back.gone);
                }
            }
            _ if back.epoch != self.epoch => {}
            _ => {
                // All starts from it have happened by now.
                let ended = self.now(s) + if s.is(Fault::EndedBefore) { -1 } else { s.engine_error() };
                for entry in self.log.iter_mut().filter(|e| e.name == Some(back.name)) {
                    entry.stamp = entry.stamp.min(ended);
                    let relative = s.is(Fault::ReturnAppliedTwice);
                    let stay = if relative { entry.units.saturating_sub(back.gone) } else { back.stay };
                    entry.units = entry.units.min(stay);
                }
            }
        }
        self.log.retain(|e| e.units > 0);
    }

    pub fn handle(&mut self, name: Name, request: &Request, s: &Setting) -> Option<Answer> {
        if self.floor > 0 && ![Fault::NoFloor, Fault::GrantsWhileBehind].contains(&s.fault) {
            return None;
        }
        let record = self.records.iter().position(|(r, _)| (r.site, r.born) == (name.site, name.born));
        if let Some((last, answer)) = record.map(|i| self.records[i])
            && last.number >= name.number
        {
            if s.is(Fault::ReturnAppliedTwice) {
                request.back.iter().for_each(|back| self.take_back(back, s));
            }
            if last.number > name.number {
                return None;
            }
            if !s.is(Fault::RepeatGrantedTwice) {
                return Some(answer);
            }
        }
        request.back.iter().for_each(|back| self.take_back(back, s));
        let now = self.now(s);
        let grant = self.ready(request, s);
        if let Some((ready, units)) = grant {
            let length = if s.is(Fault::StampedAtBeginning) { 0 } else { s.length + s.engine_error() };
            self.log.push(Entry { stamp: ready + length, name: Some(name), units });
        }
        let grant = grant.map(|(ready, units)| (ready - now, units));
        let answer = Answer { epoch: self.epoch, version: self.version, gate: (self.gate - now).max(0), grant };
        record.map(|i| self.records.swap_remove(i));
        if !s.is(Fault::Forgetful) {
            self.records.push((name, answer));
        }
        Some(answer)
    }

    /// Advances or sets back the clock by this many ticks: all relative times move. Expired times stay expired.
    pub fn shift(&mut self, ticks: i16) {
        self.log.iter_mut().for_each(|e| e.stamp -= ticks);
        self.floor = (self.floor - ticks).max(0);
        for time in [&mut self.silent, &mut self.gate] {
            *time = if *time > 0 { (*time - ticks).max(0) } else { 0 };
        }
    }
}
