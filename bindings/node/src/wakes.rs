//! Wakes the lines of waiters for which a server has answered. The core reports that on any thread; JavaScript advances them on its own.

use napi::Status;
use napi::bindgen_prelude::{External, Function};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi_derive::napi;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The lines of one environment that have to be advanced, by their numbers.
pub struct WakeQueue {
    /// Keeps no environment alive: the waiters' timers do.
    ring: ThreadsafeFunction<(), (), (), Status, false, true>,
    lines: Mutex<Vec<f64>>,
}

impl WakeQueue {
    fn lock(&self) -> MutexGuard<'_, Vec<f64>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, from any thread.
    pub fn add(&self, line: f64) {
        let mut lines = self.lock();
        lines.push(line);
        if lines.len() == 1 {
            drop(lines);
            // It fails only where the environment has ended.
            self.ring.call((), ThreadsafeFunctionCallMode::NonBlocking);
        }
    }
}

/// Makes the wake queue of an environment. `ring` is called when there are lines to wake.
#[napi]
pub fn wake_queue(ring: Function<(), ()>) -> napi::Result<External<Arc<WakeQueue>>> {
    let ring = ring.build_threadsafe_function().callee_handled::<false>().weak::<true>().build()?;
    Ok(External::new(Arc::new(WakeQueue { ring, lines: Mutex::default() })))
}

/// Takes the lines that have to be advanced.
#[napi]
pub fn take_wakes(queue: &External<Arc<WakeQueue>>) -> Vec<f64> {
    mem::take(&mut queue.lock())
}
