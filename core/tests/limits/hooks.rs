//! Hooks: who is notified when starts are held up or cannot be decided, and that no one else is.

use crate::common::limits::*;
use crate::common::{Child, Dir};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, MayWait, Outcome, Pool, Seat, Step, Waiter, acquire};
use workglow_limit::hooks::{Event, Happening, Hook};
use workglow_limit::*;

const MINUTE: Duration = Duration::from_secs(60);

/// The received events.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<Event>>>);

impl Listener {
    fn hook(&self) -> Hook {
        let events = self.0.clone();
        Arc::new(move |event: &Event| events.lock().unwrap().push(event.clone()))
    }

    fn at(limiter: &dyn Limiter, happening: Happening) -> Listener {
        let listener = Listener::default();
        limiter.on(happening, listener.hook());
        listener
    }

    fn at_store(store: &Store, happening: Happening) -> Listener {
        let listener = Listener::default();
        store.on(happening, listener.hook());
        listener
    }

    fn taken(&self) -> Vec<Event> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// The limits, keys, units and waits since the last call.
    fn held(&self) -> Vec<(String, String, u64, Duration)> {
        self.taken().into_iter().map(|e| (e.limit.to_string(), e.key, e.wanted, e.wait)).collect()
    }
}

fn held(limit: &str, key: &str, wanted: u64, wait: Duration) -> Vec<(String, String, u64, Duration)> {
    vec![(limit.into(), key.into(), wanted, wait)]
}

#[test]
fn each_denial_is_reported_once_to_the_limiters_and_the_stores_hooks() {
    let (_, store) = clocked();
    let limiter = rate(&store, "mail", 2, MINUTE);
    let (own, all) = (Listener::at(&*limiter, Happening::Throttled), Listener::at_store(&store, Happening::Throttled));
    let other = Listener::at(&*rate(&store, "mail", 2, MINUTE), Happening::Throttled);
    limiter.attempt("k", 2).unwrap();
    limiter.peek("k", 1).unwrap();
    assert!(!limiter.can_proceed("k").unwrap());
    assert_eq!((own.held(), all.held()), (vec![], vec![]));
    for call in [
        |limiter: &dyn Limiter| _ = limiter.attempt("k", 2).unwrap(),
        |limiter: &dyn Limiter| _ = limiter.decide("k", 2).unwrap(),
        |limiter: &dyn Limiter| _ = limiter.reserve("k", 2, Some(ms(1)), None).unwrap(),
    ] {
        call(&*limiter);
        assert_eq!(own.held(), held("mail", "k", 2, MINUTE));
        assert_eq!(all.held(), held("mail", "k", 2, MINUTE));
    }
    assert_eq!(other.held(), vec![]);
}

#[test]
fn a_waiter_is_reported_once_with_its_wait() {
    let (clock, store) = clocked();
    let limiter = rate(&store, "mail", 1, MINUTE);
    let listener = Listener::at(&*limiter, Happening::Throttled);
    let mut line = Line::new(limiter.clone());
    assert!(matches!(line.join(Waiter::new("k", 1)).unwrap(), Joined::Done(Outcome::Admitted(_))));
    assert_eq!(listener.held(), vec![]);
    assert!(matches!(line.join(Waiter::new("k", 1)).unwrap(), Joined::Waiting(_)));
    assert_eq!(listener.held(), held("mail", "k", 1, MINUTE));
    let mut over = Vec::new();
    clock.advance(MINUTE / 2);
    line.advance(&mut over);
    clock.advance(MINUTE / 2);
    line.advance(&mut over);
    assert!(matches!(over[..], [(_, Outcome::Admitted(_))]));
    let mut seat = Seat::new(Waiter::new("k", 1));
    assert!(matches!(seat.step(&*limiter).unwrap(), Step::Sleep(_)));
    assert!(matches!(seat.step(&*limiter).unwrap(), Step::Sleep(_)));
    assert_eq!(listener.held(), held("mail", "k", 1, MINUTE));
    seat.leave(&*limiter);
    let denied = acquire(&*limiter, Waiter::new("k", 1).timeout(Some(ms(1)))).unwrap();
    assert!(matches!(denied, Attempt::Denied(_)));
    assert_eq!(listener.held(), held("mail", "k", 1, MINUTE));
}

#[test]
fn a_nonblocking_call_is_reported_when_it_may_wait() {
    let dir = Dir::new("hooks-later");
    let store = Store::new(&dir.url()).unwrap();
    let limiter = rate(&store, "mail", 1, MINUTE);
    let listener = Listener::at(&*limiter, Happening::Throttled);
    let mut line = Line::new(limiter.clone());
    let joined = MayWait::Never.during(|| line.join(Waiter::new("k", 1)));
    assert_eq!((joined, line.len()), (Err(Error::WouldWait), 0));
    assert!(matches!(line.join(Waiter::new("k", 1)).unwrap(), Joined::Done(Outcome::Admitted(_))));
    assert_eq!(listener.held(), vec![]);
    assert!(matches!(line.join(Waiter::new("k", 1)).unwrap(), Joined::Waiting(_)));
    assert_eq!(listener.held().len(), 1);
}

#[test]
fn a_waiter_in_a_pool_is_reported_once() {
    let (_, store) = clocked();
    let limiter = rate(&store, "mail", 1, MINUTE);
    let listener = Listener::at(&*limiter, Happening::Throttled);
    let mut pool = Pool::new(limiter.clone(), None);
    limiter.attempt("k", 1).unwrap();
    pool.join(Waiter::new("k", 1)).unwrap();
    for _ in 0..2 {
        pool.advance(1, 1, &mut Vec::new());
    }
    assert_eq!(listener.held(), held("mail", "k", 1, MINUTE));
    assert!(pool.join(Waiter::new("k", 2)).is_err());
    assert_eq!(listener.held(), vec![]);
}

#[test]
fn a_composites_denial_is_reported_to_its_hooks_and_the_denying_childs() {
    let (_, store) = clocked();
    let (narrow, slots) = (rate(&store, "narrow", 1, MINUTE), slots(5));
    let inner: Shared = Arc::new(CompositeLimiter::new([narrow.clone()]));
    let both: Shared = Arc::new(CompositeLimiter::new([slots.clone(), inner]));
    let listeners = [&both, &narrow, &slots].map(|limiter| Listener::at(&**limiter, Happening::Throttled));
    let of_store = Listener::at_store(&store, Happening::Throttled);
    both.attempt("", 1).unwrap();
    let calls: [fn(&dyn Limiter); 4] = [
        |limiter| _ = limiter.attempt("", 1).unwrap(),
        |limiter| _ = limiter.decide("", 1).unwrap(),
        |limiter| _ = limiter.reserve("", 1, Some(ms(1)), None).unwrap(),
        |limiter| _ = acquire(limiter, Waiter::new("", 1).timeout(Some(ms(1)))).unwrap(),
    ];
    for call in calls {
        call(&*both);
        let denial = held("narrow", "", 1, MINUTE);
        assert_eq!(listeners.each_ref().map(Listener::held), [denial.clone(), denial.clone(), vec![]]);
        assert_eq!(of_store.held(), denial);
    }
}

#[test]
fn unknown_names_are_reported() {
    let store = Store::new("memory:").unwrap();
    let limiter: Shared = Arc::new(RateLimiter::attach(&store, "unknown").unwrap());
    let of_limiter = Listener::at(&*limiter, Happening::UnknownLimit);
    let of_store = Listener::at_store(&store, Happening::UnknownLimit);
    let calls: [fn(&dyn Limiter) -> Result<()>; 7] = [
        |limiter| limiter.attempt("k", 3).map(drop),
        |limiter| limiter.peek("k", 3).map(drop),
        |limiter| limiter.reserve("k", 3, None, None).map(drop),
        |limiter| acquire(limiter, Waiter::new("k", 3)).map(drop),
        |limiter| Seat::new(Waiter::new("k", 3)).step(limiter).map(drop),
        |limiter| Seat::new(Waiter::new("k", 3)).start_at_once(limiter).map(drop),
        |limiter| limiter.record_job_start("k"),
    ];
    for call in calls {
        let error = call(&*limiter).unwrap_err();
        for listener in [&of_limiter, &of_store] {
            let [event] = &listener.taken()[..] else { panic!("not reported once") };
            assert_eq!((&*event.limit, &*event.key, &event.error), ("unknown", "k", &Some(error.clone())));
        }
    }
    assert!(Line::new(limiter).join(Waiter::new("k", 1)).is_err());
    assert_eq!((of_limiter.taken().len(), of_store.taken().len()), (1, 1));
    let calls: [fn(&Store) -> Result<()>; 3] =
        [|store| store.override_text("gone", "5/1m"), |store| store.lift("gone"), |store| store.find("gone").map(drop)];
    for call in calls {
        let error = call(&store).unwrap_err();
        let [event] = &of_store.taken()[..] else { panic!("not reported once") };
        assert_eq!((&*event.limit, &event.error), ("gone", &Some(error)));
    }
}

#[test]
fn store_failures_are_reported_whatever_is_answered() {
    let dir = Dir::new("hooks-failing");
    std::fs::write(dir.file("file"), "not a directory").unwrap();
    for on_error in [OnError::Raise, OnError::Deny, OnError::Admit] {
        let mut options = StoreOptions::default();
        options.on_error = on_error;
        let store = Store::with_options(&format!("sqlite:{}/limits.db", dir.file("file").display()), options).unwrap();
        let calls = rate(&store, "calls", 1, MINUTE);
        let good = rate(&Store::new("memory:").unwrap(), "good", 9, MINUTE);
        let both: Shared = Arc::new(CompositeLimiter::new([good.clone(), calls.clone()]));
        let listener = Listener::at_store(&store, Happening::StoreError);
        let listeners = [&calls, &both, &good].map(|limiter| Listener::at(&**limiter, Happening::StoreError));
        for (limiter, at) in [(&calls, 0), (&both, 1)] {
            let answer = limiter.decide("k", 1);
            assert_eq!(answer.is_err(), on_error == OnError::Raise);
            for listener in [&listener, &listeners[at]] {
                let [event] = &listener.taken()[..] else { panic!("not reported once") };
                assert_eq!((&*event.limit, &*event.key, event.wanted), (limiter.name(), "k", 1));
                assert_eq!(event.error, answer.as_ref().err().cloned());
            }
            assert_eq!(listeners.each_ref().map(|listener| listener.taken().len()), [0; 3]);
        }
        good.decide("k", 1).unwrap();
        assert!(listener.taken().is_empty());
    }
}

#[test]
fn a_hook_may_use_limiters_and_remove_itself() {
    let (_, store) = clocked();
    let limiter = rate(&store, "mail", 2, MINUTE);
    let listener = Listener::default();
    let (asks, events) = (Arc::downgrade(&limiter), listener.hook());
    limiter.on(
        Happening::Throttled,
        Arc::new(move |event: &Event| {
            events(event);
            if event.wanted == 2 {
                asks.upgrade().unwrap().attempt("", 1).unwrap();
            }
        }),
    );
    limiter.attempt("", 2).unwrap();
    limiter.attempt("", 2).unwrap();
    assert_eq!(listener.held().iter().map(|denial| denial.2).collect::<Vec<_>>(), [2, 1]);
    let (own, of) = (Arc::new(Mutex::new(0)), Arc::downgrade(&limiter));
    let id = own.clone();
    let hook: Hook = Arc::new(move |_: &Event| of.upgrade().unwrap().off(*id.lock().unwrap()));
    let gone = Arc::downgrade(&hook);
    *own.lock().unwrap() = limiter.on(Happening::Throttled, hook);
    limiter.attempt("", 1).unwrap();
    assert!(gone.upgrade().is_none(), "it is still kept");
    limiter.off(*own.lock().unwrap());
}

#[test]
fn a_forked_child_has_the_hooks_even_if_they_were_in_use() {
    let (_, store) = clocked();
    let limiter = rate(&store, "mail", 1, MINUTE);
    limiter.attempt("", 1).unwrap();
    let busy = AtomicBool::new(true);
    /// Ends the other threads, even after a panic.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(false, Relaxed);
        }
    }
    std::thread::scope(|threads| {
        let _end = End(&busy);
        for _ in 0..2 {
            threads.spawn(|| {
                while busy.load(Relaxed) {
                    limiter.off(limiter.on(Happening::Throttled, Arc::new(|_: &Event| {})));
                }
            });
        }
        for _ in 0..50 {
            let listener = Listener::at(&*limiter, Happening::Throttled);
            let child = Child::run(|| {
                limiter.attempt("", 1).unwrap();
                assert_eq!(listener.held().len(), 1);
            });
            child.join();
        }
    });
}
