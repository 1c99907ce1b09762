//! Calls that one thread begins and another finishes.

use super::Limiter;
use super::line::slice;
use crate::error::{Error, Result};
use crate::fork;
use crate::hooks;
use crate::server::crew::Crew;
use crate::state::Unwritten;
use crate::waiting::MayWait;
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

type Ask<R> = Box<dyn Fn(&dyn Limiter) -> Result<R> + Send + Sync>;
type Undo<R> = Box<dyn Fn(&dyn Limiter, R) + Send + Sync>;

/// A call that has to wait for the store: begun by a thread that must not wait, finished by one that may.
///
/// A start that only has to be written first is taken at the beginning. So the next commit has the starts of all calls
/// that began before it, however few threads wait for it. Dropping the call takes its start back.
///
/// A call that needs a server is made at once, by a thread of the library. So all are on the way together, however few
/// threads finish them.
pub struct Begun<R: Send + 'static> {
    call: Arc<Call<R>>,
    generation: u64,
}

struct Call<R> {
    limiter: Arc<dyn Limiter>,
    ask: Ask<R>,
    undo: Undo<R>,
    /// Whether it takes a start, which may be written later.
    takes: bool,
    /// The threads of the server that it needs.
    crew: Option<Arc<Crew>>,
    state: Mutex<State<R>>,
}

enum State<R> {
    /// It has to be made where it may wait.
    Waits,
    /// What it took has to be written, if anything, and hooks have to be called.
    Made(Result<R>, Vec<Unwritten>, hooks::Calls),
    /// It is being finished, or is not wanted any more.
    Over,
}

/// A call of any kind that waits for a thread.
pub(super) trait Waits: Send + Sync {
    /// Makes the call, unless it is being finished. Returns whether it would have to wait longer.
    fn begin(&self) -> bool;
}

impl<R: Send + 'static> Begun<R> {
    /// Begins a call without waiting. `undo` cancels the start of its answer; the call may be made again after that.
    pub fn new(
        limiter: Arc<dyn Limiter>,
        call: impl Fn(&dyn Limiter) -> Result<R> + Send + Sync + 'static,
        undo: impl Fn(&dyn Limiter, R) + Send + Sync + 'static,
    ) -> Begun<R> {
        // A user-defined limiter may start jobs of its own.
        let takes = !limiter.has_custom();
        let begun = Self::of(limiter, takes, call, undo);
        if takes && MayWait::Never.during(|| begun.call.begin()) {
            match begun.call.crew {
                Some(_) => begun.make(),
                None => {
                    let call: Arc<dyn Waits> = begun.call.clone();
                    begun.call.limiter.base().begun.lock().push_back(Arc::downgrade(&call));
                }
            }
        }
        begun
    }

    /// Lets a thread make the call.
    fn make(&self) {
        if let Some(crew) = &self.call.crew {
            let call = self.call.clone();
            crew.send(Box::new(move || _ = call.begin()));
        }
    }

    /// Leaves a whole call to the thread that may wait.
    pub fn later(
        limiter: Arc<dyn Limiter>,
        call: impl Fn(&dyn Limiter) -> Result<R> + Send + Sync + 'static,
    ) -> Begun<R> {
        let begun = Self::of(limiter, false, call, |_, _| ());
        begun.make();
        begun
    }

    fn of(
        limiter: Arc<dyn Limiter>,
        takes: bool,
        ask: impl Fn(&dyn Limiter) -> Result<R> + Send + Sync + 'static,
        undo: impl Fn(&dyn Limiter, R) + Send + Sync + 'static,
    ) -> Begun<R> {
        let (ask, undo, crew) = (Box::new(ask), Box::new(undo), limiter.crew());
        let call = Call { limiter, ask, undo, takes, crew, state: Mutex::new(State::Waits) };
        Begun { call: Arc::new(call), generation: fork::generation() }
    }

    /// Returns whether the answer is known, so that [`Begun::finish`] does not wait.
    pub fn is_over(&self) -> bool {
        // Another thread may be making it.
        let state = self.call.state.try_lock();
        state.is_ok_and(|state| matches!(&*state, State::Made(_, unwritten, _) if unwritten.is_empty()))
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// Those of the call.
    pub fn finish(self) -> Result<R> {
        let (began, call) = (Instant::now(), &*self.call);
        let (answer, unwritten) = match self.take() {
            State::Made(answer, unwritten, calls) => {
                hooks::make(calls);
                (answer, unwritten)
            }
            _ if !call.takes => return call.ask(),
            _ => {
                let made = Unwritten::collect(|| call.ask());
                if MayWait::here() == MayWait::UntilTimeout {
                    call.begin_others();
                }
                made
            }
        };
        let failed = unwritten.iter().find_map(|one| Some((one, one.write().err()?)));
        let Some((one, error)) = failed else { return answer };
        call.take_back(answer, &unwritten);
        match error {
            Error::WouldWait => MayWait::for_the_rest(began, || call.ask()),
            error => one.fail(error, || call.ask()),
        }
    }
}

impl<R: Send + 'static> Begun<R> {
    /// Ends the call in this state. In a forked child the state is its parent's, perhaps with a lock that stays locked.
    fn take(&self) -> State<R> {
        match self.generation == fork::generation() {
            true => mem::replace(&mut *self.call.state(), State::Over),
            false => State::Waits,
        }
    }
}

impl<R: Send + 'static> Drop for Begun<R> {
    fn drop(&mut self) {
        let Some(crew) = &self.call.crew else { return self.call.refuse(self.take()) };
        if self.generation != fork::generation() {
            return;
        }
        // Neither the thread that makes it nor the server is waited for here.
        let call = self.call.clone();
        match self.call.state.try_lock().map(|mut state| mem::replace(&mut *state, State::Over)) {
            Ok(made @ State::Made(..)) => crew.send(Box::new(move || call.refuse(made))),
            Ok(_) => {}
            Err(_) => crew.send(Box::new(move || {
                let made = mem::replace(&mut *call.state(), State::Over);
                call.refuse(made);
            })),
        }
    }
}

impl<R> Call<R> {
    /// Takes back what a call took that nobody finishes.
    fn refuse(&self, state: State<R>) {
        if let State::Made(answer, unwritten, _) = state {
            self.take_back(answer, &unwritten);
        }
    }

    fn take_back(&self, answer: Result<R>, unwritten: &[Unwritten]) {
        if let Ok(answer) = answer {
            take_back(unwritten, || (self.undo)(&*self.limiter, answer));
        }
    }

    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> Result<R> {
        (self.ask)(&*self.limiter)
    }

    /// Makes the other calls of this limiter that wait for a thread, so that they share the next commit. Most of them wait
    /// because space has to be made for their keys. One that has to wait for longer than a moment is left to its thread.
    fn begin_others(&self) {
        let waiting = &self.limiter.base().begun;
        let next = || waiting.lock().pop_front();
        let most = waiting.lock().len();
        for _ in 0..most {
            let begin =
                |call: Arc<dyn Waits>| MayWait::in_slice(Instant::now(), slice(&*self.limiter), || call.begin());
            let Some(call) = next() else { return };
            if call.upgrade().is_some_and(begin) {
                return waiting.lock().push_front(call);
            }
        }
    }
}

impl<R: Send> Waits for Call<R> {
    fn begin(&self) -> bool {
        let mut state = self.state();
        if let State::Waits = *state {
            let ask = || if self.takes { Unwritten::collect(|| self.ask()) } else { (self.ask(), Vec::new()) };
            match hooks::for_another_thread(ask) {
                ((Err(Error::WouldWait), _), _) => return true,
                ((answer, unwritten), calls) => *state = State::Made(answer, unwritten, calls),
            }
        }
        false
    }
}

/// The calls of one limiter that wait for a thread.
pub(super) type Waiting = VecDeque<Weak<dyn Waits>>;

/// Takes a start back. `cancel` cancels its permit; what that leaves because the store is busy is taken back later.
pub(super) fn take_back(unwritten: &[Unwritten], cancel: impl FnOnce()) {
    MayWait::Briefly.during(cancel);
    unwritten.iter().for_each(Unwritten::refuse);
}

impl<R: Send> std::fmt::Debug for Begun<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Begun call of \"{}\"", self.call.limiter.name())
    }
}
