//! The line of an event loop: all its waiters for one limiter, and one descriptor.

use crate::calls::{WGL_FOREVER, ns};
use crate::input::{self, given, hand_out, invalid, shared};
use crate::limiter::wgl_limiter;
use crate::permit::wgl_permit;
use crate::status::{WGL_DENIED, WGL_OK, WGL_WAITING, guard};
use crate::waiter::{waiter, wgl_waiter_options};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, MayWait, Outcome, WaiterId, fork_generation};
use workglow_limit::{Error, Result};

/// The longest sleep with a manual clock, which sets no descriptor off.
const MANUAL_SLICE: Duration = Duration::from_millis(5);

/// The waiters of an event loop for one limiter, of any number of keys. The loop watches one descriptor and calls
/// wgl_line_advance when it is readable.
///
/// The caller owns it and frees it with wgl_line_free, at any time; what its waiters hold is given back then. It keeps its
/// limiter alive. One thread at a time may use it, but any thread may call wgl_line_wake. A forked child makes lines of its
/// own: in its parent's it can only free, which changes nothing for the parent.
pub struct wgl_line {
    waiters: Mutex<Waiters>,
    bell: Arc<Bell>,
    is_manual: bool,
    generation: u64,
}

struct Waiters {
    line: Line,
    /// Outcomes that were not collected.
    over: VecDeque<(WaiterId, Outcome)>,
}

impl Waiters {
    /// Gives back what was not collected.
    fn give_up(&mut self, outcome: Outcome) {
        if let Outcome::Admitted(permit) = outcome {
            MayWait::BrieflyHere.during(|| self.line.give_up(permit));
        }
    }
}

/// The descriptor: a timer, which other threads set off.
struct Bell {
    timer: OwnedFd,
    news: Mutex<News>,
}

/// What other threads have said since the last advance.
#[derive(Default)]
struct News {
    /// Whether a thread of the library has an answer of a server.
    has_answer: bool,
    keys: Vec<Box<str>>,
    all_keys: bool,
}

impl Bell {
    fn new() -> Result<Bell> {
        // SAFETY: it takes no pointers.
        let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        if timer < 0 {
            let cause = std::io::Error::last_os_error().to_string();
            return Err(Error::Store { doing: "making the descriptor of a line".into(), cause: cause.into() });
        }
        // SAFETY: a new descriptor, which nothing else owns.
        Ok(Bell { timer: unsafe { OwnedFd::from_raw_fd(timer) }, news: Mutex::default() })
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the descriptor readable after this time; `None`: not by itself.
    fn set(&self, after: Option<Duration>) {
        // Zero would stop the timer.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        // 68 years: that is a time everywhere.
        let most = i32::MAX as u64;
        let value =
            libc::timespec { tv_sec: after.as_secs().min(most) as _, tv_nsec: after.subsec_nanos() as libc::c_long };
        let set = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // SAFETY: the descriptor is open, and the time is read only during the call.
        unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const set, ptr::null_mut()) };
    }

    /// Tells the loop something, from any thread.
    fn ring(&self, tell: impl FnOnce(&mut News)) {
        let mut news = self.news();
        tell(&mut news);
        self.set(Some(Duration::ZERO));
    }

    /// Makes the descriptor readable when there is work again. What other threads say in the meantime comes before.
    fn set_next(&self, next: Option<Duration>) {
        let news = self.news();
        let is_told = news.has_answer || news.all_keys || !news.keys.is_empty();
        self.set(if is_told { Some(Duration::ZERO) } else { next });
    }
}

impl wgl_line {
    fn waiters(&self) -> Result<MutexGuard<'_, Waiters>> {
        if self.generation != fork_generation() {
            return Err(invalid("line", "one of the parent of this process", "one that this process made"));
        }
        Ok(self.waiters.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the descriptor, and returns the time until then.
    fn set_next(&self, waiters: &Waiters) -> Option<Duration> {
        let next = match waiters.over.is_empty() {
            true => waiters.line.next().map(|next| if self.is_manual { next.min(MANUAL_SLICE) } else { next }),
            false => Some(Duration::ZERO),
        };
        self.bell.set_next(next);
        next
    }
}

/// Makes an empty line, and its descriptor.
///
/// Fails with WGL_STORE_FAILURE if the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_line_new(
    limiter: Option<NonNull<wgl_limiter>>,
    line: Option<&mut MaybeUninit<Box<wgl_line>>>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let (limiter, out) = (given("limiter", unsafe { shared(limiter) })?, given("line", line)?);
        let limiter = limiter.limiter.clone();
        let bell = Arc::new(Bell::new()?);
        let (is_manual, ringing) = (limiter.manual_clock().is_some(), bell.clone());
        let line = Line::with_wake(limiter, move || ringing.ring(|news| news.has_answer = true));
        let waiters = Mutex::new(Waiters { line, over: VecDeque::new() });
        hand_out(out, wgl_line { waiters, bell, is_manual, generation: fork_generation() });
        Ok(WGL_OK)
    })
}

/// Returns the line's descriptor, for epoll, poll or select. It is readable when wgl_line_advance has work, and stays so
/// until that was called. The line closes it; do not read it.
///
/// Never fails: it returns -1 if `line` is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_line_fd(line: Option<&wgl_line>) -> c_int {
    line.map_or(-1, |line| line.bell.timer.as_raw_fd())
}

/// Joins the line; the timeout starts now. WGL_OK: admitted at once, and `permit` is written. WGL_WAITING: `number` is
/// written, by which wgl_line_advance returns the outcome later; numbers begin with 1 and grow, with gaps. WGL_DENIED:
/// there is no capacity before the timeout, but there may be after `retry_after_ns`. `options` may be NULL. Within a key,
/// waiters start in the order of their priority and then of their requests.
///
/// Fails as wgl_try_acquire does, and with WGL_INVALID_ARGUMENT for options out of range; the waiter has not joined then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_line_join(
    line: Option<NonNull<wgl_line>>,
    key: *const c_char,
    key_len: usize,
    options: *const wgl_waiter_options,
    number: Option<&mut MaybeUninit<u64>>,
    permit: Option<&mut MaybeUninit<wgl_permit>>,
    retry_after_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let line = given("line", unsafe { shared(line) })?;
        let (number, permit) = (given("number", number)?, given("permit", permit)?);
        // SAFETY: as above.
        let ask = unsafe { waiter(input::key(key, key_len)?, options) }?;
        let mut waiters = line.waiters()?;
        let joined = match MayWait::BrieflyHere.during(|| waiters.line.join(ask)) {
            Err(Error::WouldWait) => waiters.line.join(ask),
            joined => joined,
        };
        line.set_next(&waiters);
        Ok(match joined? {
            Joined::Waiting(id) => {
                number.write(id);
                WGL_WAITING
            }
            Joined::Done(outcome) => put(outcome, permit, retry_after_ns)?,
        })
    })
}

/// Writes the outcome of a wait.
fn put(
    outcome: Outcome,
    permit: &mut MaybeUninit<wgl_permit>,
    after_ns: Option<&mut MaybeUninit<u64>>,
) -> Result<c_int> {
    let (status, after) = match outcome {
        Outcome::Admitted(raw) => {
            permit.write(wgl_permit::new(raw));
            (WGL_OK, Duration::ZERO)
        }
        Outcome::Expired(after) => (WGL_DENIED, after),
        Outcome::Failed(error) => return Err(error),
    };
    crate::calls::put_ns(after_ns, after);
    Ok(status)
}

/// Does the work that is due, and returns the next wait that is over. Call it until it returns WGL_WAITING: nothing is over,
/// `number` is 0, and the descriptor is readable after `nap_ns` (WGL_FOREVER: nobody waits), or earlier. Before that
/// `number` is the waiter, and its outcome WGL_OK: `permit` is written, and the start counts from now, so begin its work
/// before the next call; WGL_DENIED: it timed out, and there may be capacity after `nap_ns`; or an error of its own. All
/// outputs but `nap_ns` must be given.
///
/// The call sleeps only where the store is busy: at most 0.1 s at a time. For a limit on a server, threads of the library
/// ask it.
///
/// Fails with `number` 0 for a parameter, and otherwise as wgl_try_acquire does, for that waiter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_line_advance(
    line: Option<NonNull<wgl_line>>,
    number: Option<&mut MaybeUninit<u64>>,
    permit: Option<&mut MaybeUninit<wgl_permit>>,
    nap_ns: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard(|| {
        let number = given("number", number)?;
        number.write(0);
        // SAFETY: the caller's promise.
        let (line, permit) = (given("line", unsafe { shared(line) })?, given("permit", permit)?);
        let mut waiters = line.waiters()?;
        let waiters = &mut *waiters;
        let news = std::mem::take(&mut *line.bell.news());
        match news.all_keys {
            true => waiters.line.wake(None),
            false => news.keys.iter().for_each(|key| waiters.line.wake(Some(key))),
        }
        if waiters.over.is_empty() {
            let mut over = Vec::new();
            MayWait::BrieflyHere.during(|| waiters.line.advance_one(&mut over));
            if over.is_empty() && waiters.line.would_wait() {
                waiters.line.advance_one(&mut over);
            }
            waiters.over.extend(over);
        }
        let ended = waiters.over.pop_front();
        let next = line.set_next(waiters);
        let Some((id, outcome)) = ended else {
            if let Some(nap_ns) = nap_ns {
                nap_ns.write(next.map_or(WGL_FOREVER, ns));
            }
            return Ok(WGL_WAITING);
        };
        number.write(id);
        put(outcome, permit, nap_ns)
    })
}

/// Removes a waiter that stops waiting: its place goes to the next one, or back. A no-op for one whose outcome was returned;
/// an outcome that was not is given back.
///
/// Fails with WGL_INVALID_ARGUMENT in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_line_leave(line: Option<NonNull<wgl_line>>, number: u64) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let line = given("line", unsafe { shared(line) })?;
        let mut waiters = line.waiters()?;
        let waiters = &mut *waiters;
        let at = waiters.over.iter().position(|(id, _)| *id == number);
        match at.and_then(|at| waiters.over.remove(at)) {
            Some((_, outcome)) => waiters.give_up(outcome),
            None => MayWait::BrieflyHere.during(|| waiters.line.leave(number)),
        }
        line.set_next(waiters);
        Ok(WGL_OK)
    })
}

/// Says that a start of this key has ended, so that a waiter for a concurrency limit starts at once. Otherwise it starts up
/// to 16 ms later, as it does when another process has ended one. With `key` NULL it may have been any key; "" is no key.
/// Any thread may call it.
///
/// Fails with WGL_INVALID_ARGUMENT for a key of more than 1,024 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wgl_line_wake(line: Option<NonNull<wgl_line>>, key: *const c_char, key_len: usize) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let line = given("line", unsafe { shared(line) })?;
        // SAFETY: as above.
        let key = unsafe { input::key_or_limit(key, key_len) }?;
        if line.generation == fork_generation() {
            line.bell.ring(|news| match key {
                None => news.all_keys = true,
                Some(key) if news.keys.iter().any(|known| &**known == key) => {}
                Some(key) => news.keys.push(key.into()),
            });
        }
        Ok(WGL_OK)
    })
}

/// Frees a line, and closes its descriptor. What its waiters hold is given back. NULL is a no-op.
///
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_line_free(line: Option<Box<wgl_line>>) {
    guard(|| {
        if let Some(line) = line
            && let Ok(mut waiters) = line.waiters()
        {
            std::mem::take(&mut waiters.over).into_iter().for_each(|(_, outcome)| waiters.give_up(outcome));
        }
        Ok(WGL_OK)
    });
}
