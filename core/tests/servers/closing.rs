//! `Store::close` on servers: its connections go, and permits still end.
#![cfg(any(feature = "redis", feature = "postgres"))]

use crate::common::limits::patient;
use crate::common::server::Server;
use crate::common::{Child, wait_until};
use std::fs;
use std::sync::Arc;
use std::thread;
use workglow_limit::*;

fn is_refused<T: std::fmt::Debug>(answer: Result<T>) {
    assert_eq!(answer.unwrap_err().name(), "store_closed");
}

/// The connections of this process that lead to a server of the tests.
fn sockets() -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("workglow")).count()
}

#[test]
fn connections_go_and_permits_still_end() {
    for server in Server::each("closing") {
        let url = server.new_database();
        // In a process of its own, because it counts what all of its process has.
        Child::run(move || closes(&url)).join();
    }
}

fn closes(url: &str) {
    let before = sockets();
    let [store, other] = [(); 2].map(|()| patient(url));
    let [jobs, theirs] = [&store, &other].map(|store| store.limiter("jobs", "2 concurrent").unwrap());
    let [calls, their_calls] = [&store, &other].map(|store| store.limiter("calls", "5/1h burst 5").unwrap());
    let job = jobs.try_acquire("", 1).unwrap().unwrap();
    let call = calls.try_acquire("", 5).unwrap().unwrap();
    let other_job = theirs.try_acquire("", 1).unwrap().unwrap();
    let waits: Vec<_> = [&jobs, &calls]
        .map(Arc::clone)
        .map(|limiter| thread::spawn(move || limiter.acquire("", 1, None).map(drop)))
        .into();
    let most = sockets();
    assert!(most > before);
    store.close().unwrap();
    waits.into_iter().for_each(|wait| is_refused(wait.join().unwrap()));
    is_refused(jobs.attempt("", 1));
    is_refused(calls.peek("", 1));
    is_refused(store.names());
    is_refused(store.find("jobs").map(drop));
    is_refused(store.limiter("new", "5/1h").map(drop));
    // Those of the other store remain.
    let of_the_other = {
        wait_until("the connections are closed", || sockets() < most);
        sockets()
    };
    assert!(theirs.try_acquire("", 1).unwrap().is_none(), "a job that runs keeps its units");
    job.complete().unwrap();
    wait_until("the units are free", || theirs.try_acquire("", 1).unwrap().is_some());
    call.cancel().unwrap();
    wait_until("the units are back", || their_calls.peek("", 4).unwrap().admitted);
    wait_until("the ends of starts leave no connection", || sockets() <= of_the_other);
    other_job.complete().unwrap();
    other.close().unwrap();
    wait_until("all connections are closed", || sockets() == before);
    drop((jobs, theirs, calls, their_calls, store, other));
    wait_until("the threads have ended", || threads() == 0);
}
