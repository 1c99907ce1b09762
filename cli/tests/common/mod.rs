//! Runs the command, and prepares stores for it.
#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

#[path = "../../../core/tests/common/ground.rs"]
pub mod ground;
#[path = "../../../core/tests/common/postgres.rs"]
pub mod postgres;
#[path = "../../../core/tests/common/redis.rs"]
pub mod redis;

pub use ground::{Dir, wait_until};

use serde_json::Value;
use std::process::{Command, Stdio};
use workglow_limit::Store;

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Checks the exit code.
    #[track_caller]
    pub fn with(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Checks the exit code, and parses the output, which is one line of JSON.
    #[track_caller]
    pub fn json(self, code: i32) -> Value {
        let ran = self.with(code);
        assert_eq!(ran.out.lines().count(), 1, "{ran:?}");
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }

    /// Checks the exit code, and returns the code and the message of the JSON on standard error. There is no other output.
    #[track_caller]
    pub fn json_error(self, code: i32) -> (String, String) {
        let ran = self.with(code);
        assert_eq!(ran.out, "", "{ran:?}");
        let error: Value = serde_json::from_str(&ran.err).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        let text = |name: &str| error["error"][name].as_str().unwrap_or_default().to_owned();
        (text("code"), format!("{} {}", text("message"), text("hint")))
    }

    #[track_caller]
    pub fn says(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.out.contains(part) || self.err.contains(part), "{part}: {self:?}");
        }
    }
}

/// The command with a clean environment and without standard input.
pub fn command(store: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_workglow-limit"));
    command.env_remove("NO_COLOR").env("TERM", "xterm-256color").env("WORKGLOW_LIMIT_STORE", store).args(args);
    command.stdin(Stdio::null());
    command
}

pub fn run(store: &str, args: &[&str]) -> Ran {
    let ran = command(store, args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: ran.status.code(), out: text(ran.stdout), err: text(ran.stderr) }
}

/// A store with three limits. One is a composite; `mail` was used by `acme` (three starts, one denial) and by `bob` (one start).
pub fn used(url: &str) -> Store {
    let store = Store::new(url).unwrap();
    let mail = store.limiter("mail", "3/1h").unwrap();
    for (key, admitted) in [("acme", true), ("acme", true), ("acme", true), ("acme", false), ("bob", true)] {
        assert_eq!(mail.decide(key, 1).unwrap().admitted, admitted);
    }
    store.limiter("openai", "100/1m + 5 concurrent").unwrap().open().unwrap();
    store.limiter("stripe", "20/1s burst 40").unwrap().open().unwrap();
    store.flush().unwrap();
    Store::tell_counts();
    store
}
