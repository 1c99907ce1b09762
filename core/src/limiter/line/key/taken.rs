//! The waiters of a line whose starts are not in the ledger yet. All starts of a pass are written in one commit.

use super::queue::Waiting;
use super::{KeyLine, Out, Outcome, Pass, Rank};
use crate::limiter::Limiter;
use crate::limiter::begun::take_back;
use crate::permit::RawPermit;
use crate::state::Unwritten;

/// A waiter whose start was taken.
#[derive(Debug)]
pub(super) struct TakenStart {
    pub rank: Rank,
    pub waiting: Waiting,
    pub permit: RawPermit,
    pub unwritten: Vec<Unwritten>,
}

impl KeyLine {
    /// Returns whether starts or places of this line have to be [written](KeyLine::write_taken).
    pub fn has_taken(&self) -> bool {
        !self.taken.is_empty() || self.places.iter().any(|held| !held.unwritten.is_empty())
    }

    /// Writes what was taken, and lets the waiters start. If it cannot be written, they wait again, each in its turn, and
    /// the next request does not share a commit, so that it meets the failure itself.
    pub fn write_taken(&mut self, pass: &Pass, out: &mut Out) {
        if !self.has_taken() {
            return;
        }
        let taken = std::mem::take(&mut self.taken);
        let of_places = self.places.iter_mut().flat_map(|held| std::mem::take(&mut held.unwritten));
        let of_places: Vec<Unwritten> = of_places.collect();
        let all = || taken.iter().flat_map(|taken| &taken.unwritten).chain(&of_places);
        let written = self.ask_alone(pass, |_| all().try_for_each(Unwritten::write));
        self.meets_failure = written.is_err();
        match written {
            Ok(()) => {
                for TakenStart { rank, waiting, permit, .. } in taken {
                    pass.count_wait(&waiting, &permit);
                    out.push((rank, Outcome::Admitted(permit)));
                }
            }
            Err(_) => self.take_back(pass, taken, of_places),
        }
        self.count(pass.limiter);
    }

    fn take_back(&mut self, pass: &Pass, taken: Vec<TakenStart>, of_places: Vec<Unwritten>) {
        of_places.iter().for_each(Unwritten::refuse);
        if !of_places.is_empty() {
            self.give_back_all(pass.limiter);
        }
        for taken in taken {
            taken.give_back(pass.limiter);
            let Waiting { wanted, since, deadline, hold, grace, share, .. } = taken.waiting;
            self.insert(taken.rank, wanted, since, (deadline, hold, grace), share);
        }
        self.ask_at = self.ask_at.min(pass.now());
    }

    /// Takes back the start of a waiter that leaves.
    pub(super) fn give_back_taken(&mut self, limiter: &dyn Limiter, rank: Rank) {
        if let Some(at) = self.taken.iter().position(|taken| taken.rank == rank) {
            self.taken.remove(at).give_back(limiter);
        }
    }
}

impl TakenStart {
    pub(super) fn give_back(&self, limiter: &dyn Limiter) {
        take_back(&self.unwritten, || _ = limiter.cancel(&self.permit));
    }
}
