//! The thread that drives the lines of all futures of this process.
//!
//! Tasks never touch a line: they leave messages, under a lock that is held for moments, and so never wait for a store
//! or for one another. The thread is started by the first future that has to wait, and ends when none has waited for two
//! seconds. It never waits for a store: a line that has to is taken along by another thread, and comes back by a message.
//! Who has a line decides its waits and wakes their
//! tasks, so tasks of a limiter are woken in the order of their starts.

use super::{Joined, Limiter, Line, Outcome, Waiter, WaiterId};
use crate::error::{Error, Result};
use crate::fork::{PerProcess, generation, without_signals};
use crate::permit::RawPermit;
use crate::server::crew::IDLE;
use crate::waiting::MayWait;
use std::collections::HashMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// The number of a waiter that has none yet. A line's begin at 1.
const JOINING: WaiterId = 0;

/// The delay before a line that its store has kept waiting in vain asks again.
const AGAIN: Duration = Duration::from_millis(1);

/// The longest sleep with a manual clock, which does not wake the thread when it is advanced.
const MANUAL_SLICE: Duration = Duration::from_millis(5);

static INBOX: PerProcess<Inbox> = PerProcess::new();

#[derive(Default)]
struct Inbox {
    messages: Vec<Message>,
    thread: Option<Thread>,
    /// How many futures wait, by limiter and key.
    waiting: HashMap<u64, HashMap<Box<str>, usize>>,
}

enum Message {
    Join(Arc<Wait>),
    Leave(Arc<Wait>),
    /// Units of a key became free.
    Freed(u64, Box<str>),
    /// A limiter's line is back. `None`: a panic has ended it.
    Back(u64, Option<Box<Driven>>),
}

/// The wait of one future.
pub(super) struct Wait {
    limiter: Arc<dyn Limiter>,
    key: Box<str>,
    weight: u64,
    timeout: Option<Duration>,
    asked: Instant,
    generation: u64,
    /// The thread's number for it, once it is in a line; 0 before.
    number: AtomicU64,
    state: Mutex<State>,
}

enum State {
    Waits(Waker),
    Over(Outcome),
    /// The future has the outcome, or was dropped.
    Left,
}

impl Wait {
    fn new(limiter: &Arc<dyn Limiter>, key: &str, weight: u64, timeout: Option<Duration>, waker: &Waker) -> Arc<Wait> {
        Arc::new(Wait {
            limiter: limiter.clone(),
            key: key.into(),
            weight,
            timeout,
            asked: Instant::now(),
            generation: generation(),
            number: AtomicU64::new(JOINING),
            state: Mutex::new(State::Waits(waker.clone())),
        })
    }

    /// Joins the line.
    ///
    /// # Errors
    /// [`Error::Store`] if the thread cannot be started.
    pub fn begin(
        limiter: &Arc<dyn Limiter>,
        key: &str,
        weight: u64,
        timeout: Option<Duration>,
        waker: &Waker,
    ) -> Result<Arc<Wait>> {
        let wait = Wait::new(limiter, key, weight, timeout, waker);
        let mut inbox = INBOX.lock();
        inbox.send(Message::Join(wait.clone()))?;
        *inbox.waiting.entry(limiter.base().id).or_default().entry(key.into()).or_default() += 1;
        Ok(wait)
    }

    /// Returns whether this process began it. (A forked child has no thread that ends its parent's waits.)
    pub fn is_own(&self) -> bool {
        self.generation == generation()
    }

    pub fn poll(&self, waker: &Waker) -> Poll<Outcome> {
        let mut state = self.state();
        match &mut *state {
            State::Waits(known) => {
                known.clone_from(waker);
                Poll::Pending
            }
            _ => match mem::replace(&mut *state, State::Left) {
                State::Over(outcome) => Poll::Ready(outcome),
                _ => Poll::Pending,
            },
        }
    }

    /// Ends the wait: its place goes to the next waiter, or back.
    pub fn leave(self: Arc<Wait>) {
        if !self.is_own() {
            return;
        }
        let left = mem::replace(&mut *self.state(), State::Left);
        match left {
            State::Waits(_) => drop(INBOX.lock().send(Message::Leave(self))),
            State::Over(Outcome::Admitted(permit)) => cancel(&self.limiter, permit, &self.key),
            _ => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the wait with an outcome, and wakes its task.
    fn deliver(&self, outcome: Outcome) {
        let mut state = self.state();
        match (&*state, outcome) {
            (State::Waits(_), outcome) => {
                let before = mem::replace(&mut *state, State::Over(outcome));
                drop(state);
                if let State::Waits(waker) = before {
                    // A waker is code of the runtime, which may poll tasks in it. Its panic has been reported, and other
                    // tasks still have to run.
                    let _ = catch_unwind(AssertUnwindSafe(|| MayWait::outside(|| waker.wake())));
                }
            }
            (_, Outcome::Admitted(permit)) => cancel(&self.limiter, permit, &self.key),
            _ => {}
        }
    }

    /// Notes that it is over.
    fn count_out(&self) {
        let (mut inbox, id) = (INBOX.lock(), self.limiter.base().id);
        let Some(keys) = inbox.waiting.get_mut(&id) else { return };
        if let Some(count) = keys.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                keys.remove(&self.key);
            }
        }
        if keys.is_empty() {
            inbox.waiting.remove(&id);
        }
    }
}

impl Inbox {
    fn send(&mut self, message: Message) -> Result<()> {
        if self.thread.is_none() {
            let thread = thread::Builder::new().name("workglow-wakes".into());
            let started = without_signals(|| thread.spawn(drive));
            let failed = |cause: std::io::Error| Error::Store {
                doing: "starting the thread that wakes futures".into(),
                cause: cause.to_string().into(),
            };
            self.thread = Some(started.map_err(failed)?.thread().clone());
        }
        self.messages.push(message);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
        Ok(())
    }
}

/// Returns whether futures wait for this limiter and key.
pub(super) fn is_awaited(limiter: &dyn Limiter, key: &str) -> bool {
    INBOX.lock().waiting.get(&limiter.base().id).is_some_and(|keys| keys.contains_key(key))
}

/// Reports that a start of this key has ended in this process, to the futures that wait for it.
pub(super) fn freed(limiter: &dyn Limiter, key: &str) {
    let (mut inbox, id) = (INBOX.lock(), limiter.base().id);
    let Some(keys) = inbox.waiting.get(&id) else { return };
    // Of a limiter with parts, others may wait for the same part with other charges.
    if limiter.depth() > 0 || keys.contains_key(key) {
        let _ = inbox.send(Message::Freed(id, key.into()));
    }
}

/// Makes a call of a limiter in a thread that may wait. If none can be started, the caller makes it, and waits briefly.
pub(super) fn make_elsewhere(limiter: &Arc<dyn Limiter>, call: impl FnOnce(&dyn Limiter) + Send + 'static) {
    let (chores, limiter) = (limiter.chores(), limiter.clone());
    chores.send(Box::new(move || call(&*limiter)));
}

/// Gives back a start that nobody wants any more.
fn cancel(limiter: &Arc<dyn Limiter>, permit: RawPermit, key: &str) {
    let key: Box<str> = key.into();
    make_elsewhere(limiter, move |limiter| {
        let _ = limiter.cancel(&permit);
        freed(limiter, &key);
    });
}

/// The line of one limiter, and its waiters.
struct Driven {
    limiter: Arc<dyn Limiter>,
    line: Line,
    waits: HashMap<WaiterId, Arc<Wait>>,
    is_manual: bool,
}

/// Where the line of a limiter is.
enum Place {
    Here(Box<Driven>),
    /// In a thread that waits for its store. These messages have come since.
    Away(Vec<Message>),
}

/// The work of the thread.
fn drive() {
    let mut lines: HashMap<u64, Place> = HashMap::new();
    let mut idle_since = Instant::now();
    loop {
        let messages = mem::take(&mut INBOX.lock().messages);
        for message in messages {
            heed(&mut lines, message);
        }
        let mut nap = Duration::MAX;
        lines.retain(|_, place| {
            let Place::Here(driven) = place else { return true };
            let advanced = MayWait::Never.during(|| driven.work(|driven| driven.advance()));
            if advanced.is_none() || driven.line.would_wait() {
                let Place::Here(driven) = mem::replace(place, Place::Away(Vec::new())) else { return false };
                match advanced {
                    Some(_) => driven.send_away(|driven| {
                        driven.advance();
                    }),
                    None => driven.discard(),
                }
                return advanced.is_some();
            }
            let next = advanced.flatten();
            nap = nap.min(next.unwrap_or(Duration::MAX));
            next.is_some() || !driven.line.is_empty()
        });
        if lines.is_empty() {
            let left = IDLE.saturating_sub(idle_since.elapsed());
            let mut inbox = INBOX.lock();
            if left.is_zero() && inbox.messages.is_empty() {
                // Under the lock: the next message starts another thread.
                inbox.thread = None;
                return;
            }
            nap = if inbox.messages.is_empty() { left } else { Duration::ZERO };
        } else {
            idle_since = Instant::now();
        }
        match nap {
            Duration::ZERO => {}
            Duration::MAX => thread::park(),
            nap => thread::park_timeout(nap),
        }
    }
}

fn heed(lines: &mut HashMap<u64, Place>, message: Message) {
    let id = match &message {
        Message::Join(wait) | Message::Leave(wait) => wait.limiter.base().id,
        Message::Freed(id, _) | Message::Back(id, _) => *id,
    };
    if let Message::Back(_, driven) = message {
        let Some(Place::Away(messages)) = lines.remove(&id) else { return };
        lines.extend(driven.map(|driven| (id, Place::Here(driven))));
        return messages.into_iter().for_each(|message| heed(lines, message));
    }
    let driven = match lines.get_mut(&id) {
        Some(Place::Away(messages)) => return messages.push(message),
        Some(Place::Here(driven)) => driven,
        None => {
            let Message::Join(wait) = &message else { return };
            let new = Place::Here(Box::new(Driven::new(&wait.limiter)));
            let Place::Here(driven) = lines.entry(id).insert_entry(new).into_mut() else { return };
            driven
        }
    };
    let work = |driven: &mut Driven| match &message {
        Message::Join(wait) => driven.join(wait),
        Message::Leave(wait) => {
            driven.leave(wait);
            true
        }
        Message::Freed(_, key) => {
            driven.line.wake(Some(key));
            true
        }
        Message::Back(..) => true,
    };
    let done = MayWait::Never.during(|| driven.work(work));
    if done == Some(true) {
        return;
    }
    let Some(Place::Here(driven)) = lines.remove(&id) else { return };
    match message {
        Message::Join(wait) if done.is_some() => {
            lines.insert(id, Place::Away(Vec::new()));
            driven.send_away(move |driven| {
                if !driven.join(&wait) {
                    end(&wait, Outcome::Failed(Error::WouldWait));
                }
            });
        }
        _ => driven.discard(),
    }
}

impl Driven {
    fn new(limiter: &Arc<dyn Limiter>) -> Driven {
        let thread = thread::current();
        let line = Line::with_wake(limiter.clone(), move || thread.unpark());
        Driven { limiter: limiter.clone(), line, waits: HashMap::new(), is_manual: limiter.manual_clock().is_some() }
    }

    /// Does a part of the work; `None` if it panics, which ends all waits. The line is then [discarded](Driven::discard).
    fn work<R>(&mut self, work: impl FnOnce(&mut Driven) -> R) -> Option<R> {
        let done = catch_unwind(AssertUnwindSafe(|| work(self)));
        if done.is_err() {
            self.waits.drain().for_each(|(_, wait)| end(&wait, panicked(&*wait.limiter)));
        }
        done.ok()
    }

    /// Lets a thread that may wait do it, and bring the line back.
    fn send_away(mut self: Box<Driven>, work: impl FnOnce(&mut Driven) + Send + 'static) {
        let (id, chores) = (self.limiter.base().id, self.limiter.chores());
        chores.send(Box::new(move || {
            let back = |driven| drop(INBOX.lock().send(Message::Back(id, driven)));
            if self.work(work).is_none() {
                // First: giving back may wait, or panic again.
                back(None);
                return self.discard();
            }
            if self.line.would_wait() {
                thread::sleep(AGAIN);
            }
            back(Some(self));
        }));
    }

    /// Gives back what a line holds whose limiter has panicked, in a thread that may wait. It may panic again.
    fn discard(self: Box<Driven>) {
        let chores = self.limiter.chores();
        chores.send(Box::new(|| drop(catch_unwind(AssertUnwindSafe(|| drop(self))))));
    }

    /// Lets a task join. Returns whether that did not have to wait.
    fn join(&mut self, wait: &Arc<Wait>) -> bool {
        let left = wait.timeout.map(|timeout| match self.is_manual {
            true => timeout,
            false => timeout.saturating_sub(wait.asked.elapsed()),
        });
        let ask = Waiter::new(&wait.key, wait.weight).timeout(left);
        // Until it has joined: a panic ends its wait, too.
        self.waits.insert(JOINING, wait.clone());
        let joined = self.line.join(ask);
        self.waits.remove(&JOINING);
        match joined {
            Ok(Joined::Waiting(number)) => {
                wait.number.store(number, Relaxed);
                self.waits.insert(number, wait.clone());
            }
            Ok(Joined::Done(outcome)) => end(wait, outcome),
            Err(Error::WouldWait) => return false,
            Err(error) => end(wait, Outcome::Failed(error)),
        }
        true
    }

    fn leave(&mut self, wait: &Arc<Wait>) {
        let number = wait.number.load(Relaxed);
        // It may be over, and its number another's by now: each line counts from 1.
        if self.waits.get(&number).is_some_and(|known| Arc::ptr_eq(known, wait)) {
            self.waits.remove(&number);
            // Counted out first: giving back may panic.
            wait.count_out();
            self.line.leave(number);
        }
    }

    /// Does the work that is due for one waiter. Returns when there is more.
    fn advance(&mut self) -> Option<Duration> {
        let mut over = Vec::new();
        self.line.advance_one(&mut over);
        for (number, outcome) in over {
            if let Some(wait) = self.waits.remove(&number) {
                end(&wait, outcome);
            }
        }
        let next = self.line.next()?;
        Some(if self.is_manual { next.min(MANUAL_SLICE) } else { next })
    }
}

/// The outcome of the waits for a limiter of users that panics, which has been reported. Nobody knows what its line holds.
fn panicked(limiter: &dyn Limiter) -> Outcome {
    Outcome::Failed(Error::Custom { limit: limiter.name().to_owned(), cause: "it panicked".to_owned().into() })
}

fn end(wait: &Wait, outcome: Outcome) {
    // Counted out first: a task that was woken may ask again at once.
    wait.count_out();
    wait.deliver(outcome);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::custom::{Custom, CustomLimiter, End, Verdict};
    use std::sync::atomic::AtomicBool;

    /// Denies until it is open. Once it is broken, it panics when it is asked for a look, or when a start ends.
    #[derive(Default)]
    struct Door {
        is_open: AtomicBool,
        is_broken: AtomicBool,
    }

    impl Custom for Arc<Door> {
        fn name(&self) -> &str {
            "door"
        }

        fn decide(&self, _: &str, _: u64) -> Result<Verdict> {
            let denied = Verdict::Denied(Duration::from_millis(1));
            Ok(if self.is_open.load(Relaxed) { Verdict::Admitted(1) } else { denied })
        }

        fn peek(&self, key: &str, weight: u64) -> Result<Verdict> {
            assert!(!self.is_broken.load(Relaxed), "a bug of its own");
            self.decide(key, weight)
        }

        fn end(&self, _: u64, _: End) -> Result<()> {
            panic!("a bug of its own")
        }
    }

    /// The waits of as many tasks for a limiter.
    fn waits<const N: usize>(limiter: &Arc<dyn Limiter>) -> [Arc<Wait>; N] {
        std::array::from_fn(|_| Wait::new(limiter, "", 1, None, Waker::noop()))
    }

    fn has_failed(wait: &Wait) -> bool {
        matches!(&*wait.state(), State::Over(Outcome::Failed(Error::Custom { .. })))
    }

    /// A door in whose line the first waiter has been admitted, and nobody knows yet.
    fn admitted() -> (Arc<Door>, HashMap<u64, Place>, [Arc<Wait>; 3]) {
        let door = Arc::new(Door::default());
        let limiter: Arc<dyn Limiter> = Arc::new(CustomLimiter::new(door.clone()).unwrap());
        let (mut lines, all) = (HashMap::new(), waits(&limiter));
        heed(&mut lines, Message::Join(all[0].clone()));
        door.is_open.store(true, Relaxed);
        heed(&mut lines, Message::Freed(limiter.base().id, "".into()));
        heed(&mut lines, Message::Join(all[1].clone()));
        assert!(all.iter().all(|wait| matches!(&*wait.state(), State::Waits(_))));
        (door, lines, all)
    }

    /// It removed the wait that had its number in a new line, and that task waited for ever.
    #[test]
    fn a_late_leave_removes_no_other_wait() {
        let limiter: Arc<dyn Limiter> = Arc::new(CustomLimiter::new(Arc::new(Door::default())).unwrap());
        let [gone, waits] = waits(&limiter);
        let mut lines = HashMap::new();
        heed(&mut lines, Message::Join(gone.clone()));
        lines.clear();
        heed(&mut lines, Message::Join(waits.clone()));
        assert_eq!(gone.number.load(Relaxed), waits.number.load(Relaxed));
        heed(&mut lines, Message::Leave(gone));
        let Some(Place::Here(driven)) = lines.get(&limiter.base().id) else { panic!("its line has ended") };
        assert_eq!((driven.waits.len(), driven.line.len()), (1, 1));
        heed(&mut lines, Message::Leave(waits));
    }

    /// The panic ended the thread, and every future of the process waited for ever.
    #[test]
    fn a_limiter_that_panics_when_a_start_is_given_back_ends_only_its_waits() {
        let (door, mut lines, [gone, other, _]) = admitted();
        door.is_broken.store(true, Relaxed);
        heed(&mut lines, Message::Leave(gone));
        assert!(has_failed(&other));
        assert!(lines.is_empty());
    }

    /// So did the panic of a line that was dropped after another panic.
    #[test]
    fn a_limiter_that_panics_twice_ends_only_its_waits() {
        let (door, mut lines, all) = admitted();
        door.is_broken.store(true, Relaxed);
        heed(&mut lines, Message::Join(all[2].clone()));
        assert!(all.iter().all(|wait| has_failed(wait)));
        assert!(lines.is_empty());
    }
}
