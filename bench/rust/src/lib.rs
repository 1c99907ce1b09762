//! Code that the programs of the bench share. Each prints one JSON object per line; `bench/run.py` documents them.

pub mod fleet;
pub mod measure;
pub mod memory;
pub mod most;
pub mod redis_server;
pub mod shared_log;

use serde_json::{Value, json};

/// Prints one line of results.
pub fn print(line: &Value) {
    println!("{line}");
}

/// Prints the versions of the peers that are linked, as the lock file has them.
pub fn print_versions(peers: &[&str]) {
    let lock = include_str!("../Cargo.lock");
    let version = |peer: &&str| {
        let entry = lock.split("[[package]]").find(|entry| entry.contains(&format!("name = \"{peer}\"\n")));
        let version = entry.and_then(|entry| entry.split("version = \"").nth(1)?.split('"').next());
        (peer.to_string(), json!(version.unwrap_or("unknown")))
    };
    print(&json!({ "version": peers.iter().map(version).collect::<serde_json::Map<_, _>>() }));
}

/// The arguments of a program.
pub struct Arguments {
    /// The directory of its files.
    pub directory: std::path::PathBuf,
    /// Only cases whose names contain this are run.
    pub filter: String,
    /// Whether to count the most starts of a window instead of timing decisions.
    pub counts_most: bool,
}

/// `PROGRAM DIRECTORY [CASE-FILTER] [--most]`
pub fn arguments() -> Arguments {
    let (options, words): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let directory = words.first().expect("usage: PROGRAM DIRECTORY [CASE-FILTER] [--most]").into();
    Arguments { directory, filter: words.get(1).cloned().unwrap_or_default(), counts_most: options == ["--most"] }
}
