//! A composite waits only in the line of its slowest child: what that leaves to others, and that no caller starves.

use crate::common::limits::*;
use crate::common::{Child, Dir};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;
use workglow_limit::custom::{Custom, CustomLimiter, End, Verdict};
use workglow_limit::embed::{Joined, Line, Waiter};
use workglow_limit::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Returns whether a start of this weight succeeds now.
fn starts(limiter: &dyn Limiter, weight: u64) -> bool {
    matches!(limiter.attempt("", weight).unwrap(), Attempt::Admitted(_))
}

/// Presents a place until it starts, calling `between` before each attempt. Returns how long that took.
fn started(clock: &ManualClock, limiter: &dyn Limiter, mut place: RawPermit, mut between: impl FnMut()) -> Duration {
    let began = clock.now();
    for _ in 0..1_000 {
        between();
        match limiter.present(&place).unwrap() {
            Presented::Started(_) => return clock.now() - began,
            Presented::Wait { place: next, after } => {
                place = next;
                clock.advance(after);
            }
        }
    }
    panic!("it starves")
}

#[test]
fn a_waiter_for_a_slow_limit_leaves_a_fast_one_to_its_users() {
    let (clock, store) = clocked();
    let (slow, fast) = (rate(&store, "slow", 1, 10 * MINUTE), rate(&store, "fast", 100, ms(1_000)));
    let limiter = Arc::new(CompositeLimiter::new([slow.clone(), fast.clone()]));
    assert!(starts(&*limiter, 1));
    let mut line = Line::new(limiter.clone());
    assert!(matches!(line.join(Waiter::new("", 1)).unwrap(), Joined::Waiting(_)));
    let (_place, after) = place(&*limiter, 1);
    assert!(after >= 10 * MINUTE);
    clock.advance(ms(1_000));
    let mut count = 0;
    for _ in 0..1_000 {
        line.advance(&mut Vec::new());
        count += u64::from(starts(&*fast, 1));
        clock.advance(ms(10));
    }
    assert_eq!(count, 1_000);
}

#[test]
fn the_turn_at_the_slowest_child_is_kept_while_another_is_full() {
    let (clock, store) = clocked();
    let (slow, fast) = (rate(&store, "slow", 1, 10 * MINUTE), rate(&store, "fast", 100, ms(1_000)));
    let limiter = CompositeLimiter::new([slow.clone(), fast.clone()]);
    assert!(starts(&limiter, 1));
    let (place, after) = place(&limiter, 1);
    clock.advance(after);
    assert!(starts(&*fast, 100));
    let waited = started(&clock, &limiter, place, || {
        assert!(!starts(&*slow, 1), "the turn is the waiter's");
        while starts(&*fast, 1) {}
    });
    assert_eq!(waited, ms(1_000), "as soon as there is capacity");
}

#[test]
fn a_heavy_start_succeeds_among_light_ones() {
    let (clock, store) = clocked();
    let (slow, fast) = (rate(&store, "slow", 20, 10_000 * ms(1)), rate(&store, "fast", 10, ms(1_000)));
    let limiter = CompositeLimiter::new([slow, fast.clone()]);
    assert!(starts(&*fast, 10));
    let (place, _) = place(&limiter, 10);
    let waited = started(&clock, &limiter, place, || while starts(&*fast, 1) {});
    assert!(waited <= ms(3_000), "{waited:?}");
}

/// At every check, so many callers have places at the limit that it is full for the next half second.
fn crowd(limiter: &dyn Limiter) {
    while place(limiter, 1).1 < ms(500) {}
}

#[test]
fn turns_come_while_others_constantly_wait_for_the_fast_limit() {
    let (clock, store) = clocked();
    let (slow, fast) = (rate(&store, "slow", 1, MINUTE), rate(&store, "fast", 10, ms(1_000)));
    let limiter = Arc::new(CompositeLimiter::new([slow, fast.clone()]));
    crowd(&*fast);
    let mut line = Line::new(limiter.clone());
    for _ in 0..3 {
        assert!(matches!(line.join(Waiter::new("", 1)).unwrap(), Joined::Waiting(_)));
    }
    let (mut over, mut times) = (Vec::new(), Vec::new());
    while let Some(after) = line.advance(&mut over) {
        times.resize(over.len(), clock.now());
        clock.advance(after);
        crowd(&*fast);
        assert!(clock.now() < 10 * MINUTE, "they starve: {times:?}");
    }
    times.resize(over.len(), clock.now());
    assert_eq!(times.len(), 3);
    for (n, time) in times.iter().enumerate() {
        assert!(*time < n as u32 * MINUTE + ms(5_000), "{times:?}");
    }
}

#[test]
fn a_gate_and_a_lower_limit_at_another_child_come_first() {
    let (clock, store) = clocked();
    let (slow, fast) = (rate(&store, "slow", 1, ms(2_000)), rate(&store, "fast", 5, ms(1_000)));
    let limiter = CompositeLimiter::new([slow.clone(), fast.clone()]);
    assert!(starts(&limiter, 1));
    let (gated, after) = place(&limiter, 1);
    clock.advance(after);
    fast.pause(ms(700), "").unwrap();
    assert_eq!(started(&clock, &limiter, gated, || ()), ms(700));
    let (lowered, after) = place(&limiter, 1);
    clock.advance(after);
    assert!(starts(&*fast, 1));
    rate(&store, "fast", 1, ms(1_000)).open().unwrap();
    assert_eq!(started(&clock, &limiter, lowered, || ()), ms(1_000));
}

#[test]
fn a_waiter_killed_while_waiting_takes_nothing_from_the_fast_limit() {
    let dir = Dir::new("slowest-killed");
    let open = |name, max, window| rate(&Store::new(&dir.url()).unwrap(), name, max, window);
    let children = || [open("slow", 1, 10 * MINUTE), open("fast", 100, MINUTE)];
    let [slow, fast] = children();
    assert!(starts(&*slow, 1));
    Child::run(|| {
        let limiter = CompositeLimiter::new(children());
        assert!(place(&limiter, 1).1 > MINUTE);
        // Abruptly: nothing is returned.
        // SAFETY: it ends the process.
        unsafe { libc::_exit(0) };
    })
    .join();
    assert_eq!(fast.peek("", 1).unwrap().remaining, 100);
    assert!(slow.peek("", 1).unwrap().retry_after > 15 * MINUTE, "its turn counts, as a start would");
}

/// Fails on request.
struct Failing(Arc<AtomicBool>);

impl Custom for Failing {
    fn name(&self) -> &str {
        "failing"
    }

    fn decide(&self, _: &str, _: u64) -> Result<Verdict> {
        match self.0.load(SeqCst) {
            true => Err(Error::Unsupported { reason: "out of order".into() }),
            false => Ok(Verdict::Admitted(0)),
        }
    }

    fn peek(&self, _: &str, _: u64) -> Result<Verdict> {
        Ok(Verdict::Admitted(0))
    }

    fn end(&self, _: u64, _: End) -> Result<()> {
        Ok(())
    }
}

/// Denies each start, though it might admit one immediately: as where units come back between two looks.
struct Hasty;

impl Custom for Hasty {
    fn name(&self) -> &str {
        "hasty"
    }

    fn decide(&self, _: &str, _: u64) -> Result<Verdict> {
        Ok(Verdict::Denied(Duration::ZERO))
    }

    fn peek(&self, _: &str, _: u64) -> Result<Verdict> {
        Ok(Verdict::Admitted(0))
    }

    fn end(&self, _: u64, _: End) -> Result<()> {
        panic!("nothing was admitted")
    }
}

/// A line takes a wait of zero for a place that was presented too late, and gave the turn back.
#[test]
fn a_child_that_may_admit_immediately_leaves_the_place_valid() {
    let (clock, store) = clocked();
    let slow = rate(&store, "slow", 1, MINUTE);
    let limiter = CompositeLimiter::new([slow.clone(), Arc::new(CustomLimiter::new(Hasty).unwrap()) as Shared]);
    assert!(starts(&*slow, 1));
    let (place, after) = place(&limiter, 1);
    clock.advance(after);
    let presented = limiter.present(&place).unwrap();
    assert!(
        matches!(presented, Presented::Wait { place: same, after } if same == place && !after.is_zero()),
        "{presented:?}"
    );
}

#[test]
fn an_error_in_the_middle_leaves_nothing_claimed_and_keeps_the_turn() {
    let (clock, store) = clocked();
    let (slow, fast, running) = (rate(&store, "slow", 1, MINUTE), rate(&store, "fast", 10, MINUTE), slots(1));
    let fails = Arc::new(AtomicBool::new(false));
    let last: Shared = Arc::new(CustomLimiter::new(Failing(fails.clone())).unwrap());
    let limiter = CompositeLimiter::new([fast.clone(), running.clone(), slow.clone(), last]);
    assert!(starts(&*slow, 1));
    let (place, after) = place(&limiter, 1);
    clock.advance(after);
    fails.store(true, SeqCst);
    for _ in 0..3 {
        assert!(matches!(limiter.present(&place), Err(Error::Unsupported { .. })));
        assert_eq!(fast.peek("", 1).unwrap().remaining, 10);
        assert_eq!(running.peek("", 1).unwrap().remaining, 1);
        assert!(!slow.can_proceed("").unwrap(), "the turn is the waiter's");
    }
    fails.store(false, SeqCst);
    assert!(matches!(limiter.present(&place).unwrap(), Presented::Started(_)));
    assert_eq!((fast.peek("", 1).unwrap().remaining, running.peek("", 1).unwrap().remaining), (9, 0));
}

/// A limit of one unit was once asked for two, and denied them for ever.
#[test]
fn a_limit_is_in_a_composite_once() {
    let (_clock, store) = clocked();
    let [one, again, other] = ["a", "a", "b"].map(|name| rate(&store, name, 1, MINUTE));
    let is_clear = |error: Error| {
        let text = error.to_string();
        assert!(matches!(error, Error::InvalidArgument { parameter: "limiter", .. }) && text.contains("\"a\" twice"));
    };
    is_clear(CompositeLimiter::new([one.clone(), again.clone()]).attempt("", 1).map(drop).unwrap_err());
    let inner: Shared = Arc::new(CompositeLimiter::new([other, again]));
    let composite = CompositeLimiter::new([inner]);
    is_clear(composite.add(one.clone()).unwrap_err());
    assert!(composite.decide("", 1).unwrap().admitted);
    // Another store's limit of that name is another limit.
    let (_clock, store) = clocked();
    composite.add(rate(&store, "a", 1, MINUTE)).unwrap();
}

#[test]
fn composites_are_nested_at_most_32_deep_from_either_end() {
    let is_clear = |error: &Error| {
        matches!(error, Error::InvalidArgument { parameter: "limiter", .. }) && error.to_string().contains("32")
    };
    let (_clock, store) = clocked();
    let mut outer: Shared = rate(&store, "a", 1, MINUTE);
    for _ in 0..32 {
        outer = Arc::new(CompositeLimiter::new([outer]));
    }
    assert!(outer.can_proceed("").unwrap());
    let refused = CompositeLimiter::new([])
        .add(Arc::new(CompositeLimiter::new([outer.clone()])))
        .and_then(|()| CompositeLimiter::new([outer.clone()]).attempt("", 1).map(drop));
    assert!(is_clear(&refused.unwrap_err()));
    assert!(is_clear(&CompositeLimiter::new([]).add(outer.clone()).unwrap_err()));
    for _ in 0..100_000 {
        outer = Arc::new(CompositeLimiter::new([outer]));
    }
    assert!(is_clear(&outer.attempt("", 1).unwrap_err()));
    // From the outside in.
    let first = Arc::new(CompositeLimiter::new([]));
    let mut inner = first.clone();
    let added = (0..100_000).take_while(|_| {
        let next = Arc::new(CompositeLimiter::new([]));
        let is_added = inner.add(next.clone());
        inner = next;
        is_added.inspect_err(|error| assert!(is_clear(error), "{error}")).is_ok()
    });
    assert_eq!(added.count(), 31);
    assert!(first.can_proceed("").unwrap());
}

/// The meanings of a name when the text was written and when it is presented.
#[test]
fn a_text_is_valid_for_any_meaning_of_its_name() {
    let rates = ["1/1m", "1/1m + 5 concurrent", "1/1m + delay 1s", "1/1m + delay 1s + 5 concurrent"];
    let buckets = ["1/1m burst 1", "1/1m burst 1 + 5 concurrent", "1/1m burst 1 + delay 1s"];
    let windows = ["1/1m fixed", "1/1m fixed + 5 concurrent", "1/1m fixed + delay 1s"];
    let queues = ["1/1m queue 5", "1/1m queue 5 + 5 concurrent", "1/1m queue 5 + delay 1s"];
    let all = [&rates[..], &buckets, &windows, &queues];
    for (before, after) in
        all.iter().flat_map(|kind| kind.iter().flat_map(|before| kind.iter().map(move |after| (before, after))))
    {
        for key in ["", "tenant ü"] {
            let (clock, store) = clocked();
            let old = store.limiter("api", before).unwrap();
            assert!(matches!(old.attempt(key, 1).unwrap(), Attempt::Admitted(_)));
            let reserve = |limiter: &dyn Limiter| match limiter.reserve(key, 1, None, None).unwrap() {
                Reserved::Place { place, after } => (place, after),
                Reserved::Denied(after) => panic!("denied for {after:?}"),
            };
            let (place, wait) = reserve(&*old);
            assert_eq!(wait, MINUTE);
            let text = old.to_text(&place).unwrap();
            let new = store.limiter("api", after).unwrap();
            new.open().unwrap();
            let read = new.permit_from_text(&text).unwrap_or_else(|e| panic!("{before} to {after}: {e}"));
            let early = new.present(&read).unwrap();
            assert!(matches!(early, Presented::Wait { after: MINUTE, .. }), "{before} to {after}: {early:?}");
            clock.advance(MINUTE);
            assert!(matches!(new.present(&read).unwrap(), Presented::Started(_)), "{before} to {after}");
            assert!(!new.peek(key, 1).unwrap().admitted);
        }
    }
    // A place at a part that has been removed is replaced by another one.
    let (clock, store) = clocked();
    let old = store.limiter("api", "5/1m + delay 1s").unwrap();
    assert!(starts(&*old, 1));
    let text = old.to_text(&place(&*old, 1).0).unwrap();
    for policies in ["5/1m", "5/1m + 5 concurrent"] {
        let new = store.limiter("api", policies).unwrap();
        new.open().unwrap();
        let place = new.permit_from_text(&text).unwrap();
        clock.advance(ms(1_000));
        started(&clock, &*new, place, || ());
    }
    // A text of another name is not valid for this one.
    let text = |name: &str, policies: &str| {
        let limiter = store.limiter(name, policies).unwrap();
        limiter.to_text(&place(&*limiter, 1).0).unwrap()
    };
    let (plain, both) = (text("a", "5/1m"), text("b", "5/1m + 5 concurrent"));
    for (name, text) in [("b", &plain), ("a", &both)] {
        let error = store.find(name).unwrap().permit_from_text(text).unwrap_err();
        assert!(matches!(error, Error::ForeignPermit { .. } | Error::InvalidArgument { .. }), "{error}");
    }
}
