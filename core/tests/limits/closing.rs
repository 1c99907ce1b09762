//! `Store::close`: what is refused after it, what it ends, and what it leaves alone.

use crate::common::limits::{Shared, patient, place};
use crate::common::tasks::Tasks;
use crate::common::{Child, Dir, wait_until, with_database};
use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::thread;
use std::time::Duration;
use workglow_limit::custom::{Custom, CustomLimiter, End, Verdict};
use workglow_limit::embed::{Joined, Line, Outcome, Pool, Turn, Waiter};
use workglow_limit::hooks::{Event, Happening};
use workglow_limit::observe::Observer;
use workglow_limit::*;

/// A policy of each kind, which admits one unit at first.
const KINDS: [&str; 8] = [
    "1/1h",
    "1 concurrent",
    "1 per 1h",
    "1/1h evenly",
    "bucket 1/1h burst 1",
    "leaky 1/1h queue 1",
    "1/1h fixed",
    "1/1h + 1 concurrent",
];

const HOUR: Duration = Duration::from_secs(3_600);

fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter().filter(|text| admin::parse_policies(text).is_ok())
}

fn is_refused<T: Debug>(answer: Result<T>) {
    let error = answer.unwrap_err();
    assert_eq!(error.name(), "store_closed", "{error}");
    assert!(error.to_string().contains("make another store"), "{error}");
}

/// A store of each kind that needs no server.
fn stores(name: &str) -> [(Dir, Store); 2] {
    let dirs = [Dir::new(&format!("{name}-memory")), Dir::new(name)];
    let urls = ["memory:".to_owned(), dirs[1].url()];
    let mut all = dirs.into_iter().zip(urls).map(|(dir, url)| (dir, patient(&url)));
    std::array::from_fn(|_| all.next().unwrap())
}

fn admits(limiter: &Shared) -> bool {
    limiter.decide("", 1).unwrap().admitted
}

/// A hook that counts.
fn counted(limiter: &Shared, happening: Happening) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let there = count.clone();
    limiter.on(happening, Arc::new(move |_: &Event| _ = there.fetch_add(1, Relaxed)));
    count
}

#[test]
fn every_later_call_is_refused() {
    assert!(kinds().count() >= 4, "the texts of policies have changed");
    for (dir, _) in stores("closing-refused") {
        for url in ["memory:".to_owned(), dir.url()] {
            let mut options = StoreOptions::default();
            options.on_error = OnError::Admit;
            let store = Store::with_options(&url, options).unwrap();
            let limiters: Vec<Shared> =
                kinds().enumerate().map(|(i, text)| store.limiter(&format!("l{i}"), text).unwrap()).collect();
            let unused = store.limiter("unused", "1/1h").unwrap();
            let errors: Vec<_> = limiters.iter().map(|limiter| counted(limiter, Happening::StoreError)).collect();
            limiters.iter().for_each(|limiter| assert!(limiter.peek("", 1).unwrap().admitted));
            let place_of = |limiter: &Shared| limiter.has_places().then(|| place(&**limiter, 1).0);
            let places: Vec<_> = limiters.iter().map(place_of).collect();
            let mut observer = Observer::new(&store, 1);
            observer.look().unwrap();
            assert!(!store.is_closed());
            store.close().unwrap();
            assert!(store.is_closed() && store.clone().is_closed());
            for (limiter, place) in limiters.iter().zip(places).chain([(&unused, None)]) {
                is_refused(limiter.attempt("", 1));
                is_refused(limiter.attempt("key", 1));
                is_refused(limiter.decide("", 1));
                is_refused(limiter.peek("", 1));
                is_refused(limiter.try_acquire("", 1));
                is_refused(limiter.acquire("", 1, None));
                is_refused(limiter.open());
                is_refused(limiter.stats(""));
                is_refused(limiter.pause(HOUR, ""));
                is_refused(limiter.clear(""));
                is_refused(limiter.can_proceed(""));
                is_refused(limiter.record_job_start(""));
                if let Some(place) = place {
                    is_refused(limiter.present(&place));
                    is_refused(limiter.reserve("", 1, None, None));
                }
                let mut line = Line::new(limiter.clone());
                match line.join(Waiter::new("", 1)) {
                    Ok(Joined::Done(Outcome::Failed(error))) | Err(error) => is_refused(Err::<(), _>(error)),
                    other => panic!("{other:?}"),
                }
            }
            is_refused(store.open());
            is_refused(store.names());
            is_refused(store.find("l0").map(|limiter| limiter.name().to_owned()));
            is_refused(store.limiter("new", "1/1h").map(drop));
            is_refused(RateLimiter::new(&store, "new", 1, HOUR).map(drop));
            is_refused(ConcurrencyLimiter::attach(&store, "l1").map(drop));
            is_refused(store.override_limit("l0", "2/1h", None));
            is_refused(store.lift("l0", None));
            is_refused(store.forget("l0"));
            is_refused(store.flush());
            is_refused(store.verify(false));
            is_refused(observer.look().map(drop));
            is_refused(observer.history("l0", std::time::SystemTime::now()));
            // It is no failure of the store.
            assert_eq!((store.failures(), errors.iter().map(|count| count.load(Relaxed)).sum::<usize>()), (0, 0));
            store.close().unwrap();
            store.look_after();
            assert!(store.url().starts_with(&url));
        }
    }
}

/// A store that was never open stays so.
#[test]
fn a_store_that_was_never_open_is_closed_without_opening_it() {
    let dir = Dir::new("closing-unopened");
    let store = Store::new(&dir.url()).unwrap();
    let limiter = store.limiter("api", "1/1h").unwrap();
    store.close().unwrap();
    is_refused(limiter.attempt("", 1));
    drop((limiter, store));
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn permits_still_end() {
    for (dir, store) in stores("closing-permits") {
        let other = (store.url() != "memory:").then(|| patient(&dir.url()));
        let jobs = store.limiter("jobs", "1 concurrent").unwrap();
        let [cancelled, settled] = ["cancelled", "settled"].map(|name| store.limiter(name, "5/1h").unwrap());
        let both = store.limiter("both", "9/1h + 2 concurrent").unwrap();
        let cooling = store.limiter("cooling", "9 concurrent cooldown 1h").unwrap();
        let job = jobs.try_acquire("", 1).unwrap().unwrap();
        let one = cancelled.try_acquire("", 5).unwrap().unwrap();
        let two = settled.try_acquire("", 5).unwrap().unwrap();
        let [three, four] = [(); 2].map(|()| both.try_acquire("", 1).unwrap().unwrap());
        let [five, six] = [(); 2].map(|()| cooling.try_acquire("", 2).unwrap().unwrap());
        let (ready, _) = place(&*settled, 1);
        store.close().unwrap();
        assert!(settled.ready_in(&ready).is_some());
        let free = |name: &str| other.as_ref().map(|store| store.find(name).unwrap().peek("", 0).unwrap().remaining);
        assert_eq!(free("jobs"), other.as_ref().map(|_| 0));
        jobs.renew(&job.into_raw()).unwrap();
        one.cancel().unwrap();
        two.settle(2).unwrap();
        settled.cancel_place(&ready).unwrap();
        three.cancel().unwrap();
        // Its slot was once lost: the store that is closed was asked as for a start.
        four.settle(1).unwrap();
        five.settle(1).unwrap();
        six.complete().unwrap();
        let seen = ["cancelled", "settled", "both", "cooling"].map(free);
        assert_eq!(seen, [5, 3, 2, 6].map(|free| other.as_ref().map(|_| free)));
        is_refused(settled.attempt("", 1));
    }
}

/// The units of a job that runs on are not free before it ends, nor before its process ends.
#[test]
fn a_job_keeps_its_units_until_it_ends() {
    let dir = Dir::new("closing-jobs");
    let [store, other] = [(); 2].map(|()| patient(&dir.url()));
    let [jobs, theirs] = [&store, &other].map(|store| store.limiter("jobs", "1 concurrent").unwrap());
    let job = jobs.try_acquire("", 1).unwrap().unwrap();
    store.close().unwrap();
    drop(store);
    let start = || {
        let theirs = patient(&dir.url()).limiter("jobs", "1 concurrent").unwrap();
        assert!(!admits(&theirs));
    };
    Child::run(start).join();
    assert!(!admits(&theirs));
    job.complete().unwrap();
    assert!(admits(&theirs));
}

#[test]
fn waiting_threads_end() {
    for (_dir, store) in stores("closing-threads") {
        for text in ["1/1h", "1 concurrent", "1/1h + 1 concurrent"] {
            let store = match store.url() {
                "memory:" => patient("memory:"),
                url => patient(url),
            };
            let limiter = store.limiter(&text.replace('/', "-"), text).unwrap();
            let began = counted(&limiter, Happening::Throttled);
            let permit = limiter.try_acquire("", 1).unwrap().unwrap();
            let own = limiter.has_places().then(|| place(&*limiter, 1).0);
            let waits: Vec<_> = (0..4)
                .map(|_| {
                    let limiter = limiter.clone();
                    thread::spawn(move || limiter.acquire("", 1, None).map(drop))
                })
                .collect();
            let waits_for_place = own.map(|own| {
                let limiter = limiter.clone();
                thread::spawn(move || embed::acquire(&*limiter, Waiter::with_place(own)).map(drop))
            });
            wait_until("all wait", || began.load(Relaxed) >= 4);
            // Most sleep by now, which no result depends on.
            thread::sleep(Duration::from_millis(20));
            store.close().unwrap();
            waits.into_iter().chain(waits_for_place).for_each(|wait| is_refused(wait.join().unwrap()));
            permit.complete().unwrap();
        }
    }
}

#[test]
fn waits_in_steps_lines_and_pools_end() {
    for (_dir, store) in stores("closing-lines") {
        let limiter = store.limiter("api", "1/1h").unwrap();
        assert!(admits(&limiter));
        let (own, _) = place(&*limiter, 1);
        let mut seat = embed::Seat::new(Waiter::new("", 1));
        assert!(matches!(seat.step(&*limiter).unwrap(), embed::Step::Sleep(_)));
        let woken = Arc::new(AtomicUsize::new(0));
        let rings = woken.clone();
        let mut lines =
            [Line::new(limiter.clone()), Line::with_wake(limiter.clone(), move || _ = rings.fetch_add(1, Relaxed))];
        let mut pool = Pool::new(limiter.clone(), None);
        pool.join(Waiter::new("", 1)).unwrap();
        pool.advance(1, 1, &mut Vec::new());
        for line in &mut lines {
            for key in ["", "other"] {
                assert!(key.is_empty() || limiter.decide(key, 1).is_ok());
                assert!(matches!(line.join(Waiter::new(key, 1)), Ok(Joined::Waiting(_))));
            }
            // A busy machine interrupts a pass, which is then due at once.
            while line.next().unwrap().is_zero() {
                line.advance(&mut Vec::new());
            }
        }
        assert!(matches!(lines[0].join(Waiter::with_place(own)), Ok(Joined::Waiting(_))));
        store.close().unwrap();
        assert_eq!(woken.load(Relaxed), 1);
        is_refused(seat.step(&*limiter));
        for (line, waiters) in lines.iter_mut().zip([3, 2]) {
            assert_eq!(line.next(), Some(Duration::ZERO));
            let mut over = Vec::new();
            while line.advance(&mut over).is_some() {}
            assert_eq!(over.len(), waiters);
            for (_, outcome) in over {
                assert!(matches!(outcome, Outcome::Failed(Error::StoreClosed { .. })), "{outcome:?}");
            }
            assert!(line.is_empty());
        }
        let mut notices = Vec::new();
        assert_eq!(pool.advance(1, 1, &mut notices), None);
        assert!(matches!(notices[..], [(_, Turn::Failed(Error::StoreClosed { .. }))]), "{notices:?}");
        pool.end(notices[0].0);
        assert_eq!(pool.running(), 0);
    }
}

#[test]
fn futures_end() {
    for (_dir, store) in stores("closing-futures") {
        let limiter = store.limiter("jobs", "1 concurrent").unwrap();
        let permit = limiter.try_acquire("", 1).unwrap().unwrap();
        let mut tasks = Tasks::default();
        (0..3).for_each(|_| tasks.wait(limiter.acquire_async("", 1, None)));
        store.close().unwrap();
        tasks.wait_until_woken(3);
        for number in 0..3 {
            match tasks.poll(number) {
                Poll::Ready(answer) => is_refused(answer.map(drop)),
                Poll::Pending => panic!("it was woken too early"),
            }
        }
        let later = {
            let mut tasks = Tasks::default();
            tasks.futures.push(Some(limiter.acquire_async("", 1, None)));
            tasks.poll(0)
        };
        assert!(matches!(later, Poll::Ready(Err(Error::StoreClosed { .. }))), "{later:?}");
        permit.complete().unwrap();
    }
}

/// Before, a power cut after the end of a store could still forget its last starts.
#[test]
fn what_is_unwritten_is_committed() {
    let dir = Dir::new("closing-ledger");
    let store = patient(&dir.url());
    let limiter = store.limiter("api", "1000/1m").unwrap();
    assert!(limiter.attempt("", 7).is_ok());
    store.close().unwrap();
    let units = with_database(&dir, |database| {
        database.query_row("SELECT sum(units) FROM starts WHERE name = 'api'", [], |row| row.get::<_, i64>(0)).unwrap()
    });
    assert_eq!(units, 7);
}

#[test]
fn a_commit_that_fails_is_reported_and_the_store_is_closed_nevertheless() {
    let dir = Dir::new("closing-locked");
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_millis(50);
    let store = patient(&dir.url());
    let limiter = store.limiter("api", "1000/1m").unwrap();
    assert!(limiter.attempt("", 7).is_ok());
    let busy = Store::with_options(&dir.url(), options).unwrap();
    // Opened while nobody has locked it.
    while busy.open().is_err() {}
    with_database(&dir, |database| {
        database.execute_batch("BEGIN EXCLUSIVE").unwrap();
        let error = busy.close().unwrap_err();
        assert_eq!(error.name(), "store_timeout", "{error}");
        database.execute_batch("ROLLBACK").unwrap();
    });
    is_refused(busy.names());
    busy.close().unwrap();
    store.close().unwrap();
}

#[test]
fn other_stores_at_the_address_go_on() {
    for (dir, _) in stores("closing-others") {
        for url in ["memory:".to_owned(), dir.url()] {
            let [one, two] = [(); 2].map(|()| patient(&url));
            let [mine, theirs] = [&one, &two].map(|store| store.limiter("jobs", "1 concurrent").unwrap());
            let permit = theirs.try_acquire("", 1).unwrap().unwrap();
            let waiting = {
                let theirs = theirs.clone();
                thread::spawn(move || theirs.acquire("", 1, None).map(|permit| permit.is_some()))
            };
            mine.peek("", 1).unwrap();
            one.close().unwrap();
            permit.complete().unwrap();
            assert_eq!(waiting.join().unwrap(), Ok(true));
            assert!(admits(&theirs));
            is_refused(mine.peek("", 1));
        }
    }
}

#[test]
fn a_child_closes_its_own_use_only() {
    for (_dir, store) in stores("closing-fork") {
        let limiter = store.limiter("jobs", "5/1h").unwrap();
        let permit = limiter.try_acquire("", 5).unwrap().unwrap().into_raw();
        let close = |uses: bool| {
            let (store, limiter) = (store.clone(), limiter.clone());
            Child::run(move || {
                if uses {
                    assert!(!admits(&limiter));
                }
                store.close().unwrap();
                is_refused(limiter.attempt("", 1));
                is_refused(store.names());
            })
            .join();
        };
        close(true);
        close(false);
        assert!(!admits(&limiter));
        store.close().unwrap();
        // A child of a process that has closed it.
        let (theirs, there) = (limiter.clone(), store.clone());
        Child::run(move || {
            is_refused(theirs.attempt("", 1));
            is_refused(there.names());
            theirs.cancel(&permit).unwrap();
        })
        .join();
    }
}

/// A custom limiter that closes a store when it is asked.
struct Closing(Store);

impl Custom for Closing {
    fn name(&self) -> &str {
        "closing"
    }

    fn decide(&self, _: &str, _: u64) -> Result<Verdict> {
        self.0.close()?;
        Ok(Verdict::Admitted(1))
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Verdict> {
        self.decide(key, weight)
    }

    fn end(&self, _: u64, _: End) -> Result<()> {
        Ok(())
    }
}

#[test]
fn code_of_users_may_close() {
    for (_dir, store) in stores("closing-hooks") {
        let (limiter, closed) = (store.limiter("jobs", "1 concurrent").unwrap(), Arc::new(OnceLock::new()));
        let (there, answer) = (store.clone(), closed.clone());
        limiter.on(Happening::Throttled, Arc::new(move |_: &Event| drop(answer.set(there.close()))));
        let permit = limiter.try_acquire("", 1).unwrap().unwrap();
        is_refused(limiter.acquire("", 1, None));
        assert_eq!(closed.get(), Some(&Ok(())));
        permit.complete().unwrap();
    }
    for (_dir, store) in stores("closing-custom") {
        let limiter = store.limiter("api", "5/1h").unwrap();
        assert!(admits(&limiter));
        let custom: Shared = Arc::new(CustomLimiter::new(Closing(store.clone())).unwrap());
        let both: Shared = Arc::new(CompositeLimiter::new([custom.clone(), limiter.clone()]));
        is_refused(both.attempt("", 1));
        // In a line, too, whose lock this thread has.
        is_refused(both.acquire("", 1, None));
    }
}

#[test]
fn a_composite_fails_by_the_part_whose_store_is_closed() {
    let [closed, open] = [(); 2].map(|()| patient("memory:"));
    let [first, second] = [&open, &closed].map(|store| store.limiter("jobs", "1 concurrent").unwrap());
    let both: Shared = Arc::new(CompositeLimiter::new([first.clone(), second.clone()]));
    let permit = both.try_acquire("", 1).unwrap().unwrap();
    let waiting = {
        let both = both.clone();
        thread::spawn(move || both.acquire("", 1, None).map(drop))
    };
    closed.close().unwrap();
    is_refused(waiting.join().unwrap());
    is_refused(both.peek("", 1));
    permit.complete().unwrap();
    is_refused(both.attempt("", 1));
    // Nothing of the other part is left taken.
    assert!(admits(&first));
}

/// The names of the library's threads in this process.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("workglow")).collect()
}

/// How many descriptors and mappings of this process lead there.
fn uses(place: &Path) -> [usize; 2] {
    let place = place.to_str().unwrap();
    let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    [
        links.filter(|link| link.to_string_lossy().contains(place)).count(),
        maps.lines().filter(|line| line.contains(place)).count(),
    ]
}

#[test]
fn threads_descriptors_and_mappings_go() {
    let dir = Dir::new("closing-gone");
    let store = patient(&dir.url());
    let limiter = store.limiter("jobs", "1 concurrent").unwrap();
    let permit = limiter.try_acquire("", 1).unwrap().unwrap();
    let mut tasks = Tasks::default();
    tasks.wait(limiter.acquire_async("", 1, None));
    // A thread gives itself its name.
    wait_until("the thread runs", || !threads().is_empty());
    assert!(uses(&dir.0)[1] > 0);
    store.close().unwrap();
    tasks.wait_until_woken(1);
    wait_until("no file is open", || uses(&dir.0)[0] == 0);
    drop(tasks);
    permit.complete().unwrap();
    drop((store, limiter));
    // Futures of other tests share the thread.
    wait_until("the threads have ended", || threads().is_empty());
    assert_eq!(uses(&dir.0), [0, 0]);
}
