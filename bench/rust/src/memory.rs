//! How much memory something takes.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use workglow_limit::{Attempt, Store};

/// So many keys are what an index of 128 takes before it grows: there is no room ahead in what they use.
const KEYS: u64 = 95;

/// The file in which the processes of a store decide.
pub struct Lane(std::fs::File);

impl Lane {
    /// The lane of the store at a path; nothing if there is none.
    pub fn open(database: &Path) -> Option<Self> {
        std::fs::File::open(PathBuf::from(format!("{}-lane", database.display()))).ok().map(Lane)
    }

    /// The bytes that are in use: where its next block will begin, which word 11 of its header has, in words.
    pub fn used(&self) -> u64 {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, 11 * 8).expect("the lane has a header");
        u64::from_le_bytes(word) * 8
    }

    /// How many bytes one key of a limit takes in a new store, with its share of the index. Each has a start of this
    /// weight: a key that is as good as new is forgotten.
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

/// The bytes of the heap that are in use.
pub fn heap_bytes() -> u64 {
    // SAFETY: the call has no conditions.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}
