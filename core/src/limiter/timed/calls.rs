//! The interface, whatever a store that fails is to answer instead.

use super::{InStore, known};
use crate::decision::Decision;
use crate::error::Result;
use crate::limiter::{Attempt, Limiter, Presented, Progress, Reserved, Step, Wait, own};
use crate::permit::RawPermit;
use crate::stats::Stats;
use crate::store::STORE_AGAIN;
use crate::store::counts::{CANCELLED, WAIT_TIME};
use crate::time::from_ticks;
use std::time::{Duration, Instant, SystemTime};

impl<T: InStore> Limiter for T {
    fn name(&self) -> &str {
        self.timed().limit.name()
    }

    fn check_permit(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.timed().id, self.name())
    }

    #[inline]
    fn attempt(&self, key: &str, weight: u64) -> Result<Attempt> {
        let instead = |is_admitted| match is_admitted {
            true => Attempt::Admitted(self.timed().uncounted(weight)),
            false => Attempt::Denied(STORE_AGAIN),
        };
        self.timed().limit.or_instead(self.timed().do_attempt(key, weight), instead)
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Decision> {
        let instead = |is_admitted: bool| {
            let permit = is_admitted.then(|| self.timed().uncounted(weight));
            self.timed().limit.undecided(permit)
        };
        self.timed().limit.or_instead(self.timed().do_decide(key, weight), instead)
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Decision> {
        self.timed().limit.or_instead(self.timed().do_peek(key, weight), |is_admitted| {
            let permit = is_admitted.then(|| self.timed().uncounted(weight));
            Decision { permit: None, ..self.timed().limit.undecided(permit) }
        })
    }

    fn step(&self, wait: &mut Wait) -> Result<Step> {
        let weight = wait.weight;
        let stepped = self.timed().do_step(wait);
        let elapsed = wait.started.get_or_insert_with(Instant::now).elapsed();
        let left = wait.timeout.map_or(STORE_AGAIN, |timeout| timeout.saturating_sub(elapsed));
        let step = self.timed().limit.or_instead(stepped, |is_admitted| match is_admitted {
            true => Step::Admitted(self.timed().uncounted(weight)),
            false if left.is_zero() => Step::Expired(STORE_AGAIN),
            false => Step::Sleep(left.min(STORE_AGAIN)),
        })?;
        if let Step::Expired(_) = step {
            self.timed().hand_back(wait)?;
        }
        Ok(step)
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        let cancelled = self.timed().own(permit).and_then(|permit| self.timed().do_cancel(&permit));
        if let Ok(true) = cancelled {
            self.timed().limit.count(known(permit).0, CANCELLED, 1);
        }
        self.timed().limit.or_instead(cancelled.map(drop), |_| ())
    }

    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        let cancelled = self.timed().own(place).and_then(|place| self.timed().do_cancel_place(&place));
        if let Ok(true) = cancelled {
            self.timed().limit.count(known(place).0, CANCELLED, 1);
        }
        self.timed().limit.or_instead(cancelled.map(drop), |_| ())
    }

    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        self.timed()
            .limit
            .or_instead(self.timed().own(permit).and_then(|permit| self.timed().do_settle(&permit, actual)), |_| ())
    }

    fn reserve_later(
        &self,
        key: &str,
        weight: u64,
        delay: Duration,
        max_wait: Option<Duration>,
        grace: Option<Duration>,
    ) -> Result<Reserved> {
        let reserved = self.timed().do_reserve(key, weight, delay, max_wait, grace);
        self.timed().limit.or_instead(reserved, |is_admitted| match is_admitted {
            true => Reserved::Place { place: self.timed().uncounted(weight), after: Duration::ZERO },
            false => Reserved::Denied(STORE_AGAIN),
        })
    }

    fn present(&self, place: &RawPermit) -> Result<Presented> {
        let presented = self.timed().own(place).and_then(|place| self.timed().do_present(&place));
        if let Ok(Presented::Wait { place: fresh, after }) = presented
            && fresh.a != place.a
        {
            // It has to wait once more.
            self.timed().limit.count(known(place).0, WAIT_TIME, after.as_micros() as u64);
        }
        self.timed().limit.or_instead(presented, |is_admitted| match is_admitted {
            true => Presented::Started(self.timed().uncounted(place.key)),
            false => Presented::Wait { place: *place, after: STORE_AGAIN },
        })
    }

    fn record_job_start(&self, key: &str) -> Result<()> {
        self.timed().limit.or_instead(self.timed().do_record_job_start(key), |_| ())
    }

    fn give_up(&self, wait: &mut Wait) -> Result<()> {
        match std::mem::replace(&mut wait.progress, Progress::Nothing) {
            Progress::Place(place) => self.cancel_place(&place),
            _ => Ok(()),
        }
    }

    fn nap(&self, _wait: &Wait, nap: Duration) {
        if let Ok(home) = self.timed().limit.home() {
            home.clock.sleep(nap);
        }
    }

    fn complete(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.timed().id, self.name())?;
        self.timed().limit.or_instead(self.timed().do_complete(permit), |_| ())
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        self.timed().do_to_text(permit)
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        self.timed().do_permit_from_text(text)
    }

    fn record_job_completion(&self, key: &str) -> Result<()> {
        self.timed().limit.or_instead(self.timed().do_record_job_completion(key), |_| ())
    }

    fn open(&self) -> Result<()> {
        self.timed().limit.table().map(drop)
    }

    fn stats(&self, key: &str) -> Result<Stats> {
        self.timed().limit.stats(key)
    }

    fn window(&self) -> Result<Option<Duration>> {
        Ok(Some(from_ticks(self.timed().limit.table()?.policy.shortest())))
    }

    fn has_places(&self) -> bool {
        true
    }

    fn has_bounded_queue(&self) -> bool {
        // Known once it is open; a composite has asked for a place before this.
        self.timed().limit.table().is_ok_and(|table| table.policy.kind() == "leaky-bucket")
    }

    fn renew(&self, permit: &RawPermit) -> Result<()> {
        own(permit, self.timed().id, self.name())
    }

    fn set_next_available_time(&self, key: &str, at: SystemTime) -> Result<()> {
        self.timed().limit.close_gate(key, self.timed().limit.home()?.clock.tick_of(at)?)
    }

    fn pause(&self, key: &str, pause: Duration) -> Result<()> {
        self.timed().limit.close_gate(key, self.timed().limit.home()?.clock.tick_in("pause", pause)?)
    }

    fn clear(&self, key: &str) -> Result<()> {
        self.timed().limit.forget(key)
    }

    fn ready_in(&self, permit: &RawPermit) -> Option<Duration> {
        self.timed().ready(permit).map(|(home, ready)| from_ticks(ready.saturating_sub(home.clock.now().floor)))
    }

    fn span(&self, place: &RawPermit) -> Option<(i64, i64)> {
        let (home, ready) = self.timed().ready(place)?;
        // It may start until it counts. Ticks are far from what 63 bits hold.
        let now = home.clock.now().floor as i64;
        Some((ready as i64 - now, place.b as i64 - now))
    }

    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        self.timed().ready(permit).map(|(home, ready)| home.clock.to_system(ready))
    }

    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        self.timed().ready(permit).map(|(home, ready)| home.clock.to_monotonic_ns(ready))
    }
}
