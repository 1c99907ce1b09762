#![cfg(feature = "redis")]
#![allow(missing_docs)]
mod common;
use common::redis::RedisServer;
use std::time::Duration;
use workglow_limit::*;
#[test]
fn z() {
    let server = RedisServer::start("zz");
    let l = |s: &Store| RateLimiter::new(s, "api", 5, Duration::from_secs(2)).unwrap();
    let (a, b) = (l(&Store::new(&server.url()).unwrap()), l(&Store::new(&server.url()).unwrap()));
    let show = |n: &str, d: Decision| println!("{n} {} after {:?} left {} reset {:?}", d.admitted, d.retry_after, d.remaining, d.reset_after);
    for _ in 0..5 { show("a", a.decide("", 1).unwrap()); }
    server.command("FLUSHALL");
    let n = l(&Store::new(&server.url()).unwrap());
    let t = std::time::Instant::now();
    let mut first = false;
    while !first {
        for (x, l) in [("a", &a), ("n", &n)] {
        let d = l.decide("", 1).unwrap();
        first |= d.admitted;
        println!("{:?}", t.elapsed());
        show(x, d);
        }
        std::thread::sleep(Duration::from_millis(150));
    }
    std::thread::sleep(Duration::from_secs(2));
    for _ in 0..5 { show("a", a.decide("", 1).unwrap()); }
    for _ in 0..5 { show("b", b.decide("", 1).unwrap()); }
}
