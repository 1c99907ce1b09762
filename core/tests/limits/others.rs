//! Units that others have spent of the same budget elsewhere: of several callers that find one difference, one charges it.

use crate::common::Dir;
use crate::common::limits::{clocked, patient};
use std::sync::Barrier;
use std::time::Duration;
use workglow_limit::embed::MayWait;
use workglow_limit::*;

const KINDS: [&str; 6] = ["100/1h", "5000/1h", "100/1h burst 100", "100/1h fixed", "100/1h counter", "100/1h + 90/1h"];

fn left(limiter: &dyn Limiter) -> u64 {
    limiter.peek("", 0).unwrap().remaining
}

#[test]
fn a_difference_that_another_store_has_charged_is_gone() {
    for policy in KINDS {
        let dir = Dir::in_memory("others-told");
        let stores = [0, 1].map(|_| patient(&dir.url()));
        let [here, there] = stores.each_ref().map(|store| store.limiter("api", policy).unwrap());
        let all = left(&*here);
        // Both have looked, and both were told that 30 fewer remain.
        assert_eq!(here.charge_others("", 30, all - 30).unwrap(), 30, "{policy}");
        assert_eq!(there.charge_others("", 30, all - 30).unwrap(), 0, "{policy}");
        assert_eq!(left(&*there), all - 30, "{policy}");
        // Ten more, of which a start in between explains four.
        there.attempt("", 4).unwrap();
        assert_eq!(here.charge_others("", 10, all - 40).unwrap(), 6, "{policy}");
        assert_eq!(there.charge_others("", 10, all - 40).unwrap(), 0, "{policy}");
        assert_eq!(left(&*here), all - 40, "{policy}");
    }
}

#[test]
fn no_caller_of_many_leaves_less() {
    for policy in KINDS {
        let dir = Dir::in_memory("others-many");
        let stores = [0; 4].map(|_| patient(&dir.url()));
        let limiters = stores.each_ref().map(|store| store.limiter("api", policy).unwrap());
        let all = left(&*limiters[0]);
        let at_once = Barrier::new(limiters.len());
        for units in (5..=80).step_by(5) {
            let charge = |limiter: &dyn Limiter| {
                at_once.wait();
                limiter.charge_others("", 5, all - units).unwrap()
            };
            let charged: u64 = std::thread::scope(|scope| {
                let threads: Vec<_> = limiters.iter().map(|limiter| scope.spawn(|| charge(&**limiter))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            // Two that saw each other may both have given it back: then the next one charges it.
            let rest = limiters[0].charge_others("", 5, all - units).unwrap();
            assert_eq!(charged + rest, 5, "{policy} {units}");
            assert_eq!(left(&*limiters[1]), all - units, "{policy} {units}");
        }
    }
}

#[test]
fn nothing_is_charged_where_it_would_not_fit_or_the_caller_must_not_wait() {
    let (clock, store) = clocked();
    let limiter = store.limiter("api", "100/1h").unwrap();
    assert_eq!(limiter.charge_others("", 300, 20).unwrap(), 80);
    assert_eq!(limiter.charge_others("", 300, 20).unwrap(), 0);
    let denied = MayWait::Never.during(|| limiter.charge_others("", 10, 0));
    assert!(matches!(denied, Err(Error::WouldWait)));
    limiter.pause(Duration::from_secs(60), "").unwrap();
    assert_eq!(limiter.charge_others("", 10, 0).unwrap(), 0, "a paused limit");
    clock.advance(Duration::from_secs(60));
    assert_eq!(limiter.charge_others("", 10, 0).unwrap(), 10);
    assert_eq!((left(&*limiter), limiter.stats("").unwrap().denied), (10, 0));
}
