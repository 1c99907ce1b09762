//! Starts of a shared limiter, whose permits belong to the task that asked; and the future of a start.

use super::permit::Permit;
use super::waking::{self, Wait};
use super::{Attempt, Limiter, Outcome, Seat, Waiter, acquire};
use crate::error::Result;
use crate::permit::RawPermit;
use crate::waiting::MayWait;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The calls of a shared limiter, as [`Store::limiter`](crate::Store::limiter) returns it. Their permits keep the limiter
/// alive, so they can be moved into threads and tasks.
impl dyn Limiter {
    /// Starts if enough units are free now.
    ///
    /// ```
    /// # use workglow_limit::Store;
    /// let openai = Store::new("memory:")?.limiter("openai", "100/1m")?;
    /// if let Some(permit) = openai.try_acquire("", 1)? {
    ///     std::thread::spawn(move || permit.complete()).join().unwrap()?;
    /// }
    /// # Ok::<(), workglow_limit::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    pub fn try_acquire(self: &Arc<Self>, key: &str, weight: u64) -> Result<Option<Permit<'static>>> {
        Ok(self.owned(key, self.attempt(key, weight)?))
    }

    /// Waits for units, at most for `timeout` (`None`: without limit). Returns `None` if they are not free in time, and
    /// returns it immediately if that is known in advance. It blocks the thread: in a task, use
    /// [`acquire_async`](#method.acquire_async).
    ///
    /// # Errors
    /// As for [`Limiter::attempt`].
    pub fn acquire(
        self: &Arc<Self>,
        key: &str,
        weight: u64,
        timeout: Option<Duration>,
    ) -> Result<Option<Permit<'static>>> {
        Ok(self.owned(key, acquire(&**self, Waiter::new(key, weight).timeout(timeout))?))
    }

    /// Does the same without blocking, in any runtime: see [`Acquiring`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use workglow_limit::{Result, Store};
    /// # async fn call() -> Result<()> {
    /// let openai = Store::new("memory:")?.limiter("openai", "100/1m")?;
    /// if let Some(permit) = openai.acquire_async("", 1, Some(Duration::from_secs(30))).await? {
    ///     // … call the API …
    ///     permit.complete()?; // or drop it
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_async(self: &Arc<Self>, key: &str, weight: u64, timeout: Option<Duration>) -> Acquiring {
        Acquiring { limiter: self.clone(), key: key.into(), weight, timeout, state: State::New }
    }

    fn owned(self: &Arc<Self>, key: &str, attempt: Attempt) -> Option<Permit<'static>> {
        match attempt {
            Attempt::Admitted(raw) => Some(Permit::shared(self.clone(), key.into(), raw, false)),
            Attempt::Denied(_) => None,
        }
    }
}

/// The future of a start: a permit, or `None` if no units are free before the timeout.
///
/// Its first poll asks, and joins the line if it has to wait. It needs no runtime: one thread of the library serves all
/// tasks of the process, and others wait for stores. Within a limiter and key, futures start in the order of their first
/// polls. Dropping the future gives its place to the next one, or back. No poll waits for a store. Hooks of waits are
/// called in those threads: one that waits keeps other tasks waiting, so it must not wait for a start.
///
/// Nor does dropping the permit wait: what would have to is left to a thread. `complete` and the permit's other calls
/// wait, and return errors.
///
/// # Errors
/// As for [`Limiter::attempt`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquiring {
    limiter: Arc<dyn Limiter>,
    key: Box<str>,
    weight: u64,
    timeout: Option<Duration>,
    state: State,
}

enum State {
    New,
    Waits(Arc<Wait>),
    Over,
}

impl Acquiring {
    /// Starts if no other future waits and units are free.
    fn start_at_once(&self) -> Result<Option<RawPermit>> {
        // A composite may answer with a place, which only a line can use.
        if self.limiter.depth() > 0 || waking::is_awaited(&*self.limiter, &self.key) {
            return Ok(None);
        }
        let mut seat = Seat::new(Waiter::new(&self.key, self.weight));
        let started = MayWait::Never.during(|| seat.start_at_once(&*self.limiter))?;
        if self.limiter.is_due() {
            waking::make_elsewhere(&self.limiter, |limiter| limiter.look_after());
        }
        Ok(started)
    }

    pub(crate) fn permit(&self, raw: RawPermit) -> Permit<'static> {
        Permit::shared(self.limiter.clone(), self.key.clone(), raw, true)
    }

    #[cfg(feature = "tower")]
    pub(crate) fn name(&self) -> &str {
        self.limiter.name()
    }

    /// As the future's poll, but a denial has its retry delay.
    pub(crate) fn poll_attempt(&mut self, context: &Context<'_>) -> Poll<Result<Attempt>> {
        let polled = self.advance(context);
        if polled.is_ready() {
            self.state = State::Over;
        }
        polled
    }

    fn advance(&mut self, context: &Context<'_>) -> Poll<Result<Attempt>> {
        match &self.state {
            State::Waits(wait) if wait.is_own() => wait.poll(context.waker()).map(|outcome| match outcome {
                Outcome::Admitted(raw) => Ok(Attempt::Admitted(raw)),
                Outcome::Expired(after) => Ok(Attempt::Denied(after)),
                Outcome::Failed(error) => Err(error),
            }),
            State::Over => panic!("the future of a start was polled after its end"),
            _ => {
                if let Some(raw) = self.start_at_once()? {
                    return Poll::Ready(Ok(Attempt::Admitted(raw)));
                }
                let waker = context.waker();
                self.state = State::Waits(Wait::begin(&self.limiter, &self.key, self.weight, self.timeout, waker)?);
                Poll::Pending
            }
        }
    }
}

impl Future for Acquiring {
    type Output = Result<Option<Permit<'static>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_attempt(context).map_ok(|attempt| match attempt {
            Attempt::Admitted(raw) => Some(self.permit(raw)),
            Attempt::Denied(_) => None,
        })
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        if let State::Waits(wait) = std::mem::replace(&mut self.state, State::Over) {
            wait.leave();
        }
    }
}

impl std::fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Future of a start of \"{}\"", self.limiter.name())
    }
}
