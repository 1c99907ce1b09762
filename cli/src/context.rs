//! What every command is given: the store, and how to answer.

use crate::failure::Failure;
use crate::json::Keys;
use serde_json::Value;
use std::cell::RefCell;
use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use workglow_limit::{Observer, Snapshot, Store, StoreOptions};

/// How a command ended that did what it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Done,
    /// `peek`: a start would be denied.
    Denied,
    /// `verify` and `doctor`: something is not in order.
    Found,
    /// The user said no.
    Declined,
    /// Ended by Ctrl-C.
    Interrupted,
}

/// A look at a store, without this process.
pub fn look(observer: &mut Observer) -> workglow_limit::Result<Snapshot> {
    let mut seen = observer.look()?;
    seen.processes.retain(|process| process.pid != std::process::id());
    Ok(seen)
}

/// What all commands have in common.
pub struct Context {
    url: Option<String>,
    /// Is the answer to be JSON?
    pub json: bool,
    /// May the texts of keys be shown?
    pub keys: Keys,
    /// May standard output be coloured?
    pub color: bool,
    out: RefCell<BufWriter<Stdout>>,
}

impl Context {
    pub fn new(url: Option<String>, json: bool, keys: Keys) -> Context {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let color = !json && !no_color && !is_dumb && io::stdout().is_terminal();
        Context { url, json, keys, color, out: RefCell::new(BufWriter::new(io::stdout())) }
    }

    /// The store's address, as it was given.
    pub fn url(&self) -> Result<&str, Failure> {
        let url = self.url.as_deref().filter(|url| !url.is_empty()).ok_or_else(|| {
            Failure::usage("no store is named")
                .hint("say which: --store sqlite:PATH, or the environment variable WORKGLOW_LIMIT_STORE")
        })?;
        if matches!(url, "memory:" | "memory://") {
            return Err(Failure::usage("a memory: store is seen by its own process only")
                .hint("name a store that processes share: sqlite:PATH, redis://HOST or postgres://HOST/DATABASE"));
        }
        Ok(url)
    }

    /// The store, opened. It is never made: one that is not there is an error.
    pub fn store(&self) -> Result<Store, Failure> {
        self.opened(false)
    }

    /// The store, opened, and made if there is none.
    pub fn new_store(&self) -> Result<Store, Failure> {
        self.opened(true)
    }

    fn opened(&self, create: bool) -> Result<Store, Failure> {
        let store = self.unopened(create)?;
        // A server is asked by the first question only.
        let opened = store.open().and_then(|()| store.names());
        opened.map(|_| store).map_err(|error| Failure::of_store(error, self.url.as_deref().unwrap_or_default()))
    }

    /// The store, of which nothing is known yet but its address.
    pub fn unopened(&self, create: bool) -> Result<Store, Failure> {
        let mut options = StoreOptions::default();
        options.create = create;
        // Nothing starts here, so nothing is to be granted.
        options.grants = false;
        let url = self.url()?;
        Store::with_options(url, options).map_err(|error| Failure::of_store(error, url))
    }

    /// Prints a line (or several) of text.
    pub fn print(&self, text: impl Display) -> Result<(), Failure> {
        Ok(writeln!(self.out.borrow_mut(), "{text}")?)
    }

    /// Prints one line of JSON, flushed, for programs that read line by line.
    pub fn print_json(&self, value: &Value) -> Result<(), Failure> {
        self.print(value)?;
        self.flush()
    }

    /// Brings what was printed to where it goes. The end of a command does that by itself.
    pub fn flush(&self) -> Result<(), Failure> {
        Ok(self.out.borrow_mut().flush()?)
    }
}
