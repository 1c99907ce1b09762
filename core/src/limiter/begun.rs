//! Calls that one thread begins and another finishes.

use super::Limiter;
use crate::error::{Error, Result};
use crate::fork;
use crate::state::Unwritten;
use crate::waiting::MayWait;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

type CallOf<R> = Box<dyn Fn(&dyn Limiter) -> Result<R> + Send>;
type UndoOf<R> = Box<dyn Fn(&dyn Limiter, R) + Send>;

/// A call that has to wait for the store: begun by a thread that must not wait, finished by one that may.
///
/// A start that only has to be written first is taken at the beginning. So the next commit has the starts of all calls
/// that began before it, however few threads wait for it. Dropping the call takes its start back.
pub struct Begun<R> {
    limiter: Arc<dyn Limiter>,
    call: CallOf<R>,
    undo: UndoOf<R>,
    /// [`Error::WouldWait`] if the call has to be made again, and after its end.
    answer: Result<R>,
    unwritten: Vec<Unwritten>,
    generation: u64,
}

impl<R> Begun<R> {
    /// Begins a call without waiting. `undo` cancels the start of its answer; the call may be made again after that.
    pub fn new(
        limiter: Arc<dyn Limiter>,
        call: impl Fn(&dyn Limiter) -> Result<R> + Send + 'static,
        undo: impl Fn(&dyn Limiter, R) + Send + 'static,
    ) -> Begun<R> {
        let mut begun = Self::later(limiter, call);
        begun.undo = Box::new(undo);
        // A user-defined limiter may start jobs of its own.
        if !begun.limiter.has_custom() {
            let call = || MayWait::Never.during(|| (begun.call)(&*begun.limiter));
            (begun.answer, begun.unwritten) = Unwritten::collect(call);
        }
        begun
    }

    /// Leaves a whole call to the thread that may wait.
    pub fn later(limiter: Arc<dyn Limiter>, call: impl Fn(&dyn Limiter) -> Result<R> + Send + 'static) -> Begun<R> {
        let (answer, unwritten, generation) = (Err(Error::WouldWait), Vec::new(), fork::generation());
        Begun { limiter, call: Box::new(call), undo: Box::new(|_, _| ()), answer, unwritten, generation }
    }

    /// Returns whether the answer is known, so that [`Begun::finish`] does not wait.
    pub fn is_over(&self) -> bool {
        self.unwritten.is_empty() && !matches!(self.answer, Err(Error::WouldWait))
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// Those of the call.
    pub fn finish(mut self) -> Result<R> {
        let began = Instant::now();
        let answer = mem::replace(&mut self.answer, Err(Error::WouldWait));
        let unwritten = mem::take(&mut self.unwritten);
        let call = || (self.call)(&*self.limiter);
        // The start of a forked child's copy is the parent's.
        if matches!(answer, Err(Error::WouldWait)) || self.generation != fork::generation() {
            return call();
        }
        let failed = unwritten.iter().find_map(|one| Some((one, one.write().err()?)));
        let Some((one, error)) = failed else { return answer };
        take_back(&unwritten, || self.undo(answer));
        match error {
            Error::WouldWait => MayWait::for_the_rest(began, call),
            error => one.fail(error, call),
        }
    }

    fn undo(&self, answer: Result<R>) {
        if let Ok(answer) = answer {
            (self.undo)(&*self.limiter, answer);
        }
    }
}

impl<R> Drop for Begun<R> {
    fn drop(&mut self) {
        let answer = mem::replace(&mut self.answer, Err(Error::WouldWait));
        if answer.is_ok() && self.generation == fork::generation() {
            take_back(&self.unwritten, || self.undo(answer));
        }
    }
}

/// Takes a start back. `cancel` cancels its permit; what that leaves because the store is busy is taken back later.
pub(super) fn take_back(unwritten: &[Unwritten], cancel: impl FnOnce()) {
    MayWait::Briefly.during(cancel);
    unwritten.iter().for_each(Unwritten::refuse);
}

impl<R> std::fmt::Debug for Begun<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Begun call of \"{}\"", self.limiter.name())
    }
}
