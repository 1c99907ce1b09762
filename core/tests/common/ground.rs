//! Helpers for tests of every crate: directories, and waiting for a condition.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A directory that is removed with its contents.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Dir {
        Self::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    /// A directory in memory, if the system has a place for that. For tests that are not about the disk and would wait
    /// for it too long.
    pub fn in_memory(name: &str) -> Dir {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::within(memory, &format!("workglow-limit-{name}")) } else { Self::new(name) }
    }

    fn within(place: &Path, name: &str) -> Dir {
        let path = place.join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Dir(path.canonicalize().unwrap())
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.file("limits.db").display())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn wait_until(what: &str, mut f: impl FnMut() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited too long until {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
