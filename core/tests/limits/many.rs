//! Many limits in one store: each is found under its own name, whatever the other names are.

use workglow_limit::*;

/// More limits than there are chains of names, some of which are renamed.
#[test]
fn each_of_many_limits_is_found_under_its_name() {
    const LIMITS: u64 = 2_000;
    let store = Store::new("memory:").unwrap();
    let name = |i: u64| format!("limit {i}");
    let declare = |i: u64, text: &str| store.limiter(&name(i), text).unwrap();
    for i in 0..LIMITS {
        assert!(declare(i, "2/1h").decide("", 1).unwrap().admitted);
    }
    // A single limit becomes a part of several, and keeps its state under another name.
    for i in (0..LIMITS).step_by(7) {
        assert!(declare(i, "2/1h + 5 concurrent").decide("", 1).unwrap().admitted);
    }
    for i in 0..LIMITS {
        let left = store.find(&name(i)).unwrap().peek("", 1).unwrap().remaining;
        assert_eq!(left, if i % 7 == 0 { 0 } else { 1 }, "limit {i}");
    }
    // And a single limit again, several times.
    for _ in 0..3 {
        for i in (0..LIMITS).step_by(7) {
            assert!(!declare(i, "2/1h").decide("", 1).unwrap().admitted, "limit {i}");
            assert!(!declare(i, "2/1h + 5 concurrent").decide("", 1).unwrap().admitted, "limit {i}");
        }
    }
}
