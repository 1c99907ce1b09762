//! A waiter without a line: it takes its place at once, and each step is one check. Tests compare it with a model, call
//! by call.
#![allow(dead_code, reason = "each test binary uses its part")]

use super::now_ns;
use std::time::Duration;
use workglow_limit::embed::{Claim, Step, Terms};
use workglow_limit::{Limiter, Presented, RawPermit, Result};

/// How long to sleep if it is unknown when capacity will be free.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub struct Wait {
    key: Box<str>,
    weight: u64,
    timeout: Option<Duration>,
    began: Option<Duration>,
    place: Option<RawPermit>,
}

/// In whole microseconds, as limits count.
fn now(limiter: &dyn Limiter) -> Duration {
    let now = limiter.manual_clock().map_or_else(|| Duration::from_nanos(now_ns()), |clock| clock.now());
    Duration::from_micros(now.as_micros() as u64)
}

impl Wait {
    pub fn new(key: &str, weight: u64, timeout: Option<Duration>) -> Wait {
        Wait { key: key.into(), weight, timeout, began: None, place: None }
    }

    pub fn for_place(place: RawPermit, timeout: Option<Duration>) -> Wait {
        Wait { place: Some(place), ..Wait::new("", 1, timeout) }
    }

    /// The rest of its timeout.
    fn left(&mut self, limiter: &dyn Limiter) -> Option<Duration> {
        let now = now(limiter);
        let waited = now - *self.began.get_or_insert(now);
        self.timeout.map(|timeout| timeout.saturating_sub(waited))
    }

    pub fn step(&mut self, limiter: &dyn Limiter) -> Result<Step> {
        loop {
            if let Some(place) = self.place {
                match limiter.present(&place)? {
                    Presented::Started(permit) => {
                        self.place = None;
                        return Ok(Step::Admitted(permit));
                    }
                    Presented::Wait { place, after } => {
                        self.place = Some(place);
                        if self.left(limiter).is_some_and(|left| after > left) {
                            self.give_up(limiter)?;
                            return Ok(Step::Expired(after));
                        }
                        if !after.is_zero() {
                            return Ok(Step::Sleep(after));
                        }
                    }
                }
                continue;
            }
            let left = self.left(limiter);
            match limiter.claim(&self.key, self.weight, Terms { most: left, ..Terms::NOW })? {
                Claim::Started(permit) => return Ok(Step::Admitted(permit)),
                Claim::Place { place, after } => {
                    self.place = Some(place);
                    if !after.is_zero() {
                        return Ok(Step::Sleep(after));
                    }
                }
                Claim::Denied { after, is_certain } => {
                    let is_over = left.is_some_and(|left| left.is_zero() || is_certain && after > left);
                    if is_over {
                        return Ok(Step::Expired(after));
                    }
                    let nap = if is_certain { after } else { after.min(LOOK_AGAIN) };
                    return Ok(Step::Sleep(left.map_or(nap, |left| nap.min(left))));
                }
                Claim::Behind { .. } => return Ok(Step::Sleep(left.map_or(LOOK_AGAIN, |left| LOOK_AGAIN.min(left)))),
                Claim::Full { after } => return Ok(Step::Expired(after)),
            }
        }
    }

    pub fn give_up(&mut self, limiter: &dyn Limiter) -> Result<()> {
        self.place.take().map_or(Ok(()), |place| limiter.cancel_place(&place))
    }
}
