//! Limiters written in JavaScript. Each is asked through one function of its own (`lib/custom.ts`), which takes and returns
//! numbers. Tokens and thrown values stay on its side.

use crate::layout::Question;
use napi::bindgen_prelude::Function;
use napi::{Env, JsValue, Status, sys};
use std::ptr;
use std::thread::{self, ThreadId};
use std::time::Duration;
use workglow_limit::Error;
use workglow_limit::custom::{Custom, End, Verdict};

type AskFunction<'env> = Function<'env, (i32, String, f64), f64>;

/// A limiter written in JavaScript.
pub struct Script {
    name: String,
    env: sys::napi_env,
    /// A weak reference to the function. The limiter's JavaScript half keeps the function alive, so that an object and a
    /// limiter that refer to each other can still be collected.
    ask: sys::napi_ref,
    /// The only thread on which the function can be called.
    thread: ThreadId,
}

// SAFETY: the environment and the reference are used by `ask` and `drop` only, which check the thread they run on.
unsafe impl Send for Script {}
// SAFETY: as above.
unsafe impl Sync for Script {}

impl Script {
    /// Makes a limiter that asks this function.
    pub fn new(env: &Env, name: String, ask: &AskFunction<'_>) -> napi::Result<Script> {
        let mut reference = ptr::null_mut();
        // SAFETY: the environment and the function are alive for the duration of this call. 0: a weak one.
        let status = unsafe { sys::napi_create_reference(env.raw(), ask.raw(), 0, &mut reference) };
        match Status::from(status) {
            Status::Ok => Ok(Script { name, env: env.raw(), ask: reference, thread: thread::current().id() }),
            other => Err(napi::Error::new(other, "making a limiter of a JavaScript object")),
        }
    }

    /// Asks the function.
    fn ask(&self, question: Question, key: &str, number: f64) -> Result<f64, Error> {
        if thread::current().id() != self.thread {
            return Err(self.failed("it was asked on a thread other than its own"));
        }
        match self.call(question, key, number) {
            Some(answer) if answer.is_nan() => Err(self.failed("it threw")),
            Some(answer) => Ok(answer),
            None => Err(self.failed("it could not be asked")),
        }
    }

    fn call(&self, question: Question, key: &str, number: f64) -> Option<f64> {
        let env = self.env;
        let (mut function, mut this, mut answer) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut arguments = [ptr::null_mut(); 3];
        let mut number_out = f64::NAN;
        // SAFETY: on the thread of the environment, which is alive, as JavaScript called the limiter; every
        // out-pointer is to a local, and the text's length is in bytes. `run` stops at the first call that fails.
        unsafe {
            let run = |status: sys::napi_status| (status == sys::Status::napi_ok).then_some(());
            run(sys::napi_get_reference_value(env, self.ask, &mut function))?;
            if function.is_null() {
                return None;
            }
            run(sys::napi_get_undefined(env, &mut this))?;
            run(sys::napi_create_int32(env, question as i32, &mut arguments[0]))?;
            run(sys::napi_create_string_utf8(env, key.as_ptr().cast(), key.len() as isize, &mut arguments[1]))?;
            run(sys::napi_create_double(env, number, &mut arguments[2]))?;
            if run(sys::napi_call_function(env, this, function, 3, arguments.as_ptr(), &mut answer)).is_none() {
                // The function catches what it can. It fails here at the end of its thread, for example; `None` reports that.
                let mut exception = ptr::null_mut();
                sys::napi_get_and_clear_last_exception(env, &mut exception);
                return None;
            }
            run(sys::napi_get_value_double(env, answer, &mut number_out))?;
        }
        Some(number_out)
    }

    #[cold]
    fn failed(&self, cause: &str) -> Error {
        Error::Custom { limit: self.name.clone(), cause: cause.to_owned().into() }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // On another thread the reference is leaked: it is weak, so that costs a few bytes.
        if thread::current().id() == self.thread {
            // SAFETY: the reference of `new`, deleted once, on its own thread.
            unsafe { sys::napi_delete_reference(self.env, self.ask) };
        }
    }
}

/// Converts an answer. Zero or more: the number of the start. Negative: denied, with the wait in µs as `-answer - 1`.
fn verdict(answer: f64) -> Verdict {
    if answer >= 0.0 {
        Verdict::Admitted(answer as u64)
    } else {
        Verdict::Denied(Duration::from_micros((-answer - 1.0) as u64))
    }
}

impl Custom for Script {
    fn name(&self) -> &str {
        &self.name
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Verdict, Error> {
        self.ask(Question::Decide, key, weight as f64).map(verdict)
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Verdict, Error> {
        self.ask(Question::Peek, key, weight as f64).map(verdict)
    }

    fn end(&self, start: u64, end: End) -> Result<(), Error> {
        // The actual weight is passed as text, because there is only one number.
        match end {
            End::Completed => self.ask(Question::Complete, "", start as f64),
            End::Cancelled => self.ask(Question::Cancel, "", start as f64),
            End::Settled(actual) => self.ask(Question::Settle, &actual.to_string(), start as f64),
        }
        .map(drop)
    }

    fn pause(&self, key: &str, pause: Duration) -> Result<(), Error> {
        self.ask(Question::Pause, key, pause.as_nanos() as f64 / 1e6).map(drop)
    }

    fn clear(&self, key: &str) -> Result<(), Error> {
        self.ask(Question::Clear, key, 0.0).map(drop)
    }

    fn record_job_start(&self, key: &str) -> Result<(), Error> {
        self.ask(Question::RecordJobStart, key, 0.0).map(drop)
    }

    fn record_job_completion(&self, key: &str) -> Result<(), Error> {
        self.ask(Question::RecordJobCompletion, key, 0.0).map(drop)
    }
}
