//! `serve`: metrics, a JSON API and a live page over HTTP.
//!
//! `guard.rs` decides which requests are allowed. `series.rs` takes snapshots of the store in a separate thread, `api.rs` makes responses
//! of them, and `http.rs` is the server in the main thread.

mod api;
mod guard;
mod http;
mod listen;
mod query;
mod series;
mod view;

use crate::context::{Context, Outcome};
use crate::failure::Failure;
use crate::text;
use guard::{Guard, Token};
use listen::Place;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use workglow_limit::observe::Onlooker;

pub use view::{Pace, Row, View, fullness};

/// Serve metrics for Prometheus, a JSON API and a live page
///
/// On a loopback address, reading needs no token unless one is configured. Changes always need a token: without a file or
/// WORKGLOW_LIMIT_TOKEN, one is created at the start and printed as a part of the page's address. Tokens are sent unencrypted: put a
/// server with TLS in front of any other address.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The address to listen on, with a port, or unix:PATH
    #[arg(long, default_value = "127.0.0.1:9464", value_name = "ADDRESS")]
    listen: String,
    /// A file with the token for changes [env: the token itself in WORKGLOW_LIMIT_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A file with the token for reading [env: the token itself in WORKGLOW_LIMIT_READ_TOKEN]
    #[arg(long, value_name = "FILE")]
    read_token_file: Option<PathBuf>,
    /// Refuse all changes
    #[arg(long)]
    read_only: bool,
    /// Allow reading without a token on an address that other machines can reach
    #[arg(long)]
    anyone_may_read: bool,
    /// The most keys to show of each limit, the busiest ones
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=Onlooker::MAX_KEYS as i64))]
    keys: u16,
    /// A host name of this server, in addition to its address
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
}

pub fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let place = Place::parse(&args.listen)?;
    let read = token(args.read_token_file.as_deref(), "WORKGLOW_LIMIT_READ_TOKEN", "read-token-file")?;
    if !place.is_own() && read.is_none() && !args.anyone_may_read {
        return Err(Failure::usage(format!(
            "listen is {}: other machines can reach this address, and reading needs no token",
            args.listen
        ))
        .hint("set a token with --read-token-file or WORKGLOW_LIMIT_READ_TOKEN, or pass --anyone-may-read"));
    }
    let given = token(args.token_file.as_deref(), "WORKGLOW_LIMIT_TOKEN", "token-file")?;
    if let (Some(given), Some(read)) = (&given, &read)
        && given.is(read.text())
    {
        return Err(Failure::usage("the token for changes and the token for reading are the same")
            .hint("use two different tokens, or only the token for reading with --read-only"));
    }
    // A created token is printed and sent unencrypted, so it is used on this machine only.
    let is_made = given.is_none() && !args.read_only && place.is_own();
    let write = match given {
        Some(_) if args.read_only => None,
        None if is_made => Some(Token::random()?),
        given => given,
    };
    let guard = Guard::new(place.ip(), &args.allow_host, write, read)?;
    let store = context.store()?;
    // Errors come before any output.
    let listener = place.bind()?;
    announce(context, &listener.url(), store.url(), guard.token().filter(|_| is_made), !guard.takes_changes())?;
    let (sampler, sampling) = series::Sampler::start(&store, context.url()?, usize::from(args.keys));
    let api = api::Api::new(store, context.url()?, context.keys, sampler, guard.takes_changes());
    http::serve(listener, guard, api, sampling)
}

/// Prints the server's addresses.
fn announce(
    context: &Context,
    url: &str,
    store: &str,
    made: Option<&Token>,
    is_read_only: bool,
) -> Result<(), Failure> {
    if context.json {
        let token = made.map(Token::text);
        return context
            .print_json(&json!({ "listening": url, "store": store, "read_only": is_read_only, "token": token }));
    }
    // Browsers do not send what follows the #: it is in no request, log or Referer.
    let page = made.map_or(url.to_owned(), |token| format!("{url}#token={}", token.text()));
    let changes = match (made, is_read_only) {
        (Some(_), _) => "Changes need the token in the page's address.",
        (None, false) => "Changes need the configured token.",
        (None, true) => "Changes are refused.",
    };
    let store = text::clean(store);
    let mut out = std::io::stderr();
    Ok(write!(out, "Store    {store}\nPage     {page}\nMetrics  {url}metrics\n{changes} Press Ctrl-C to stop.\n")?)
}

/// Reads a token from a file, or else from the environment.
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
