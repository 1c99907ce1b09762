//! Measures memory.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use workglow_limit::{Attempt, Store};

/// The most keys of an index of 128 before it grows: the measured memory includes no spare capacity.
const KEYS: u64 = 95;

/// The lane: the file in which the processes of a store decide.
pub struct Lane(std::fs::File);

impl Lane {
    /// Returns the lane of the store at a path, or `None` if there is none.
    pub fn open(database: &Path) -> Option<Self> {
        std::fs::File::open(PathBuf::from(format!("{}-lane", database.display()))).ok().map(Lane)
    }

    /// Returns the bytes in use: word 11 of the header is the offset of the next block, in words.
    pub fn used(&self) -> u64 {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, 11 * 8).expect("the lane has a header");
        u64::from_le_bytes(word) * 8
    }

    /// Returns the bytes of one key of a limit in a new store, with its share of the index. Each key has a start of
    /// this weight, because a key without state is forgotten.
    pub fn bytes_of_keys(directory: &Path, policy: &str, weight: u64) -> u64 {
        let path = directory.join(format!("{}.db", policy.replace('/', "-")));
        let store = Store::new(&format!("sqlite:{}", path.display())).expect("a store");
        let limiter = store.limiter("keys", policy).expect("a limiter");
        limiter.open().expect("the store opens");
        let lane = Lane::open(&path).expect("the store has a lane");
        let before = lane.used();
        for key in 0..KEYS {
            let attempt = limiter.attempt(&format!("tenant-{key}"), weight).expect("a decision");
            assert!(matches!(attempt, Attempt::Admitted(_)));
        }
        (lane.used() - before) / KEYS
    }
}

/// Returns the bytes of the heap in use.
pub fn heap_bytes() -> u64 {
    // SAFETY: the call has no conditions.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}
