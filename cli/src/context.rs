//! The context of a command: its store and its output.

use crate::failure::Failure;
use crate::json::Keys;
use crate::text;
use serde_json::Value;
use std::cell::RefCell;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use workglow_limit::observe::{Observer, Snapshot};
use workglow_limit::{Durability, Store, StoreOptions};

/// The end of a command that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The command succeeded.
    Done,
    /// `peek`: a start would be denied.
    Denied,
    /// `verify` and `doctor`: there are problems. `simulate`: a policy's bound was exceeded.
    Found,
    /// The user did not confirm.
    Declined,
    /// Ended by Ctrl-C.
    Interrupted,
}

/// Takes a snapshot without this process.
pub fn look(observer: &mut Observer) -> workglow_limit::Result<Snapshot> {
    let mut seen = observer.look()?;
    seen.processes.retain(|process| process.pid != std::process::id());
    Ok(seen)
}

/// The options and the output of a command.
pub struct Context {
    url: Option<String>,
    /// The store's option of this name.
    max_size: Option<u64>,
    /// Whether output is JSON.
    pub json: bool,
    /// The form in which keys are shown.
    pub keys: Keys,
    /// Whether standard output is coloured.
    pub color: bool,
    out: RefCell<BufWriter<Stdout>>,
}

impl Context {
    pub fn new(url: Option<String>, max_size: Option<u64>, json: bool, keys: Keys) -> Context {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let color = !json && !no_color && !is_dumb && io::stdout().is_terminal();
        Context { url, max_size, json, keys, color, out: RefCell::new(BufWriter::new(io::stdout())) }
    }

    /// The store's address as given by the user.
    pub fn url(&self) -> Result<&str, Failure> {
        let url = self.url.as_deref().filter(|url| !url.is_empty()).ok_or_else(|| {
            Failure::usage("no store is named")
                .hint("pass --store sqlite:PATH, or set the environment variable WORKGLOW_LIMIT_STORE")
        })?;
        if matches!(url, "memory:" | "memory://") {
            return Err(Failure::usage("a memory: store is visible only to the process that created it")
                .hint("use a shared store: sqlite:PATH, redis://HOST or postgres://HOST/DATABASE"));
        }
        Ok(url)
    }

    /// Opens the store. A missing store is an error.
    pub fn store(&self) -> Result<Store, Failure> {
        self.opened(false)
    }

    /// Opens the store, and creates it if it is missing.
    pub fn new_store(&self) -> Result<Store, Failure> {
        self.opened(true)
    }

    fn opened(&self, create: bool) -> Result<Store, Failure> {
        let store = self.unopened(create)?;
        // A server is contacted only by the first request.
        let opened = store.open().and_then(|()| store.names());
        opened.map(|_| store).map_err(|error| Failure::of_store(error, self.url.as_deref().unwrap_or_default()))
    }

    /// The store before it is opened.
    pub fn unopened(&self, create: bool) -> Result<Store, Failure> {
        let mut options = StoreOptions::default();
        options.create = create;
        options.max_size = self.max_size;
        // The command starts nothing, so it needs no grants, and leaves no start unwritten.
        options.grants = false;
        options.durability = Durability::Commit;
        let url = self.url()?;
        Store::with_options(url, options).map_err(|error| Failure::of_store(error, url))
    }

    /// Prints text and a newline.
    pub fn print(&self, text: impl Display) -> Result<(), Failure> {
        Ok(writeln!(self.out.borrow_mut(), "{text}")?)
    }

    /// Prints one line of JSON and flushes it, for programs that read line by line.
    pub fn print_json(&self, value: &Value) -> Result<(), Failure> {
        self.print(text::json(value))?;
        self.flush()
    }

    /// Flushes standard output. The end of a command flushes it automatically.
    pub fn flush(&self) -> Result<(), Failure> {
        Ok(self.out.borrow_mut().flush()?)
    }
}
