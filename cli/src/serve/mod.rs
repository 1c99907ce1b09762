//! `serve`: metrics, a JSON API and a live page over HTTP.
//!
//! `guard.rs` says who may do what. `series.rs` looks at the store, in a thread of its own; `api.rs` makes answers of what it has seen;
//! `http.rs` is the server, in this thread.

mod api;
mod guard;
mod http;
mod listen;
mod query;
mod series;
mod view;

use crate::context::{Context, Outcome};
use crate::failure::Failure;
use guard::{Guard, Token};
use listen::Place;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use workglow_limit::Onlooker;

pub use view::{Pace, Row, View, fullness};

/// Serve metrics for Prometheus, a JSON API and a live page
///
/// Looking needs no token on this machine's own addresses, unless one is given. Changes always need one: without a file or
/// WORKGLOW_LIMIT_TOKEN, a token is made at the start and printed as a part of the page's address. Tokens are sent as they are, so on
/// another address than this machine's own, put a server with TLS in front.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to listen: an address with a port, or unix:PATH
    #[arg(long, default_value = "127.0.0.1:9464", value_name = "ADDRESS")]
    listen: String,
    /// A file with the token that changes need [env: WORKGLOW_LIMIT_TOKEN has the token itself]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A file with the token that looking needs [env: WORKGLOW_LIMIT_READ_TOKEN has the token itself]
    #[arg(long, value_name = "FILE")]
    read_token_file: Option<PathBuf>,
    /// Refuse all changes
    #[arg(long)]
    read_only: bool,
    /// Listen on an address that others reach, though they need no token to look
    #[arg(long)]
    anyone_may_read: bool,
    /// How many of the busiest keys of each limit are shown, at most
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=Onlooker::MOST_KEYS as i64))]
    keys: u16,
    /// A name by which this server may be asked, besides its address
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
}

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let place = Place::parse(&args.listen)?;
    let read = token(args.read_token_file.as_deref(), "WORKGLOW_LIMIT_READ_TOKEN", "read-token-file")?;
    if !place.is_own() && read.is_none() && !args.anyone_may_read {
        return Err(Failure::usage(format!(
            "listen is {}: others reach that address, and looking needs no token",
            args.listen
        ))
        .hint("give a token with --read-token-file or WORKGLOW_LIMIT_READ_TOKEN, or say --anyone-may-read"));
    }
    let given = token(args.token_file.as_deref(), "WORKGLOW_LIMIT_TOKEN", "token-file")?;
    if let (Some(given), Some(read)) = (&given, &read)
        && given.is(read.text())
    {
        return Err(Failure::usage("the token for changes and the token for looking are the same")
            .hint("give two that differ, or only the one for changes with --read-only"));
    }
    // A token that was made is printed, and travels in the clear: that is for this machine only.
    let is_made = given.is_none() && !args.read_only && place.is_own();
    let write = match given {
        Some(_) if args.read_only => None,
        None if is_made => Some(Token::random()?),
        given => given,
    };
    let guard = Guard::new(place.ip(), &args.allow_host, write, read)?;
    let store = context.store()?;
    // What is the matter is said before anything is printed.
    let listener = place.bind()?;
    tell(context, &listener.url(), store.url(), guard.token().filter(|_| is_made), !guard.takes_changes())?;
    let (sampler, looks) = series::Sampler::start(&store, context.url()?, usize::from(args.keys));
    let api = api::Api::new(store, context.url()?, context.keys, sampler, guard.takes_changes());
    http::serve(listener, guard, api, looks)
}

/// Says where it is.
fn tell(context: &Context, url: &str, store: &str, made: Option<&Token>, is_read_only: bool) -> Result<(), Failure> {
    if context.json {
        let token = made.map(Token::text);
        return context
            .print_json(&json!({ "listening": url, "store": store, "read_only": is_read_only, "token": token }));
    }
    // After a #, browsers keep it to themselves: it is in no request, log or Referer.
    let page = made.map_or(url.to_owned(), |token| format!("{url}#token={}", token.text()));
    let changes = match (made, is_read_only) {
        (Some(_), _) => "Changes need the token in the page's address.",
        (None, false) => "Changes need the token that was given.",
        (None, true) => "Changes are refused.",
    };
    let mut out = std::io::stderr();
    Ok(write!(out, "Store    {store}\nPage     {page}\nMetrics  {url}metrics\n{changes} Ctrl-C ends it.\n")?)
}

/// A token out of a file or else the environment.
fn token(file: Option<&Path>, variable: &str, parameter: &str) -> Result<Option<Token>, Failure> {
    let (text, whence) = match (file, std::env::var(variable)) {
        (Some(file), _) => {
            let whence = format!("{parameter} {}", file.display());
            match std::fs::read_to_string(file) {
                Ok(text) => (text, whence),
                Err(error) => return Err(Failure::usage(format!("{whence}: {error}"))),
            }
        }
        (None, Ok(text)) if !text.is_empty() => (text, variable.to_owned()),
        (None, Err(std::env::VarError::NotUnicode(_))) => {
            return Err(Failure::usage(format!("{variable}: expected visible ASCII characters")));
        }
        (None, _) => return Ok(None),
    };
    Token::parse(&text).map(Some).map_err(|expected| Failure::usage(format!("{whence}: expected {expected}")))
}
