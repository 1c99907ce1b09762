//! Decides which requests are allowed. Every line of this table has a test in `cli/tests/serve.rs`.
//!
//! | request | refused with | protects against |
//! | --- | --- | --- |
//! | a path that is not in [`Route::find`] | 404 | – |
//! | a method that is not in [`Route::methods`] | 405, `Allow` | – |
//! | no `Host`, or several | 400 | requests that a proxy reads differently |
//! | `Host` (or the authority of the URL) is not a name of this server | 421 | DNS rebinding: a page of `evil.example` makes the browser request 127.0.0.1 |
//! | `Origin` differs from `Host` | 403 | other pages in the browser of a user who has access |
//! | `Sec-Fetch-Site` is `cross-site` or `same-site`, except for the page itself (which links may open) | 403 | the same; another port of this machine is `same-site` |
//! | a change, if no token for changes exists | 403 | – |
//! | a change without the token, or with a wrong one | 401 | all other users; the token is in no cookie, so no browser sends it automatically |
//! | a read without one of the tokens, if a token for reading exists | 401 | other users who can reach the address; the page and its parts are public, because they hold no data |
//! | a change that is not `application/json` | 415 | forms of other pages, which browsers send without a preflight request |
//! | a change above 16 KiB | 413 | exhausted memory |
//! | a change that takes more than 10 s to arrive | 408 | clients that occupy connections |
//!
//! The names of this server are `localhost`, the loopback addresses (127.0.0.0/8, `[::1]`), the address that it listens on, and the names
//! given by `--allow-host`; with any port, because ports are often mapped. If it listens on all addresses, every IP address is one of its
//! names: DNS rebinding needs a host name.

use super::listen::is_loopback;
use crate::failure::Failure;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{StatusCode, Uri};
use rand::TryRng;
use rand::rngs::SysRng;
use std::fmt;
use std::net::IpAddr;
use subtle::ConstantTimeEq;

/// The resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Page,
    Part(&'static str, &'static str),
    Metrics,
    Snapshot,
    Series,
    History,
    Events,
    Change(Change),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Override,
    Lift,
    Pause,
}

impl Route {
    fn find(path: &str) -> Option<Route> {
        const CSS: &str = "text/css; charset=utf-8";
        const JS: &str = "text/javascript; charset=utf-8";
        Some(match path {
            "/" => Route::Page,
            "/page.css" => Route::Part(CSS, include_str!("page/page.css")),
            "/page.js" => Route::Part(JS, include_str!("page/page.js")),
            "/panel.js" => Route::Part(JS, include_str!("page/panel.js")),
            "/draw.js" => Route::Part(JS, include_str!("page/draw.js")),
            "/stream.js" => Route::Part(JS, include_str!("page/stream.js")),
            "/metrics" => Route::Metrics,
            "/api/snapshot" => Route::Snapshot,
            "/api/series" => Route::Series,
            "/api/history" => Route::History,
            "/api/events" => Route::Events,
            "/api/override" => Route::Change(Change::Override),
            "/api/lift" => Route::Change(Change::Lift),
            "/api/pause" => Route::Change(Change::Pause),
            _ => return None,
        })
    }

    /// The methods, as the header `Allow` lists them. Of a response to HEAD, the connection sends the head only.
    fn methods(self) -> &'static str {
        if matches!(self, Route::Change(_)) { "POST" } else { "GET, HEAD" }
    }
}

/// The error response of a request.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
    pub header: Option<(&'static str, &'static str)>,
}

impl Refusal {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { status, code, message: message.into(), hint: None, header: None }
    }

    /// An invalid request.
    pub fn bad(message: impl Into<String>) -> Refusal {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    fn forbidden(message: impl Into<String>) -> Refusal {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }
}

/// A secret that allows requests.
pub struct Token(String);

const MIN_TOKEN: usize = 16;
const MAX_TOKEN: usize = 1_024;

impl Token {
    /// A token of 256 random bits of the system.
    pub fn random() -> Result<Token, Failure> {
        let mut bytes = [0; 32];
        SysRng.try_fill_bytes(&mut bytes).map_err(|error| Failure::system(format!("creating a token: {error}")))?;
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Parses the text of a file or a variable. An error never contains the text.
    pub fn parse(text: &str) -> Result<Token, String> {
        let text = text.trim();
        let is_token =
            (MIN_TOKEN..=MAX_TOKEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_token.then(|| Token(text.to_owned())).ok_or_else(|| {
            format!(
                "{MIN_TOKEN} to {MAX_TOKEN} visible ASCII characters without spaces, such as from: openssl rand -hex 32"
            )
        })
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Compares in constant time.
    pub fn is(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[derive(Debug)]
pub struct Guard {
    listens_on: IpAddr,
    names: Vec<String>,
    write: Option<Token>,
    read: Option<Token>,
}

impl Guard {
    pub fn new(
        listens_on: IpAddr,
        names: &[String],
        write: Option<Token>,
        read: Option<Token>,
    ) -> Result<Guard, Failure> {
        for name in names {
            if name.is_empty() || name.contains([':', '/', '*']) || name.parse::<Authority>().is_err() {
                return Err(Failure::usage(format!(
                    "allow-host is {name:?}: expected a name such as limits.example.com, without a port"
                )));
            }
        }
        let names = names.iter().map(|name| plain(name)).collect();
        Ok(Guard { listens_on, names, write, read })
    }

    /// The token for changes.
    pub fn token(&self) -> Option<&Token> {
        self.write.as_ref()
    }

    pub fn takes_changes(&self) -> bool {
        self.write.is_some()
    }

    /// Returns the route of a request, if it is allowed. Does not read the body.
    pub fn admit(&self, request: &Parts) -> Result<Route, Refusal> {
        // First, so that a foreign name reveals nothing.
        let host = self.host(request)?;
        let Some(route) = Route::find(request.uri.path()) else {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "not_found",
                format!("{} does not exist", request.uri.path()),
            ));
        };
        let allow = route.methods();
        if allow.split(", ").all(|method| request.method != method) {
            let message = format!("{} of {}: expected {allow}", request.method, request.uri.path());
            let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
            return Err(Refusal { header: Some(("allow", allow)), ..refusal });
        }
        same_origin(&request.headers, &host)?;
        if route != Route::Page {
            same_site(&request.headers)?;
        }
        match route {
            Route::Page | Route::Part(..) => {}
            Route::Change(_) => self.may_change(&request.headers)?,
            _ => self.may_read(&request.headers)?,
        }
        Ok(route)
    }

    /// The requested host, if it is this server.
    fn host(&self, request: &Parts) -> Result<Authority, Refusal> {
        let mut all = request.headers.get_all(HOST).iter();
        let (Some(host), None) = (all.next(), all.next()) else {
            return Err(Refusal::bad("Host: expected exactly one"));
        };
        let host = host
            .to_str()
            .ok()
            .and_then(|host| host.parse::<Authority>().ok())
            .filter(|host| !host.as_str().contains('@'));
        let host = host.ok_or_else(|| Refusal::bad("Host: expected a name and a port"))?;
        for asked in std::iter::once(&host).chain(request.uri.authority()) {
            if !self.is_name(asked.host()) {
                let message = format!("{:?} is not a name of this server", asked.host());
                let refusal = Refusal::new(StatusCode::MISDIRECTED_REQUEST, "unknown_host", message);
                let hint = Some("start the server with --allow-host NAME to allow another name".to_owned());
                return Err(Refusal { hint, ..refusal });
            }
        }
        Ok(host)
    }

    fn is_name(&self, host: &str) -> bool {
        let host = plain(host);
        match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(ip) => {
                is_loopback(ip)
                    || self.listens_on.is_unspecified()
                    || ip.to_canonical() == self.listens_on.to_canonical()
            }
            Err(_) => host == "localhost" || self.names.contains(&host),
        }
    }

    fn may_read(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(read) = &self.read else { return Ok(()) };
        let shown = bearer(headers).unwrap_or_default();
        // Both are always compared, so that the time reveals nothing.
        let is_known = read.is(shown) | self.write.as_ref().is_some_and(|write| write.is(shown));
        if is_known { Ok(()) } else { Err(unauthorized("reading needs a token")) }
    }

    fn may_change(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(write) = &self.write else {
            return Err(Refusal::forbidden("this server is read-only"));
        };
        if !bearer(headers).is_some_and(|shown| write.is(shown)) {
            return Err(unauthorized("changes need the token for changes"));
        }
        let mut types = headers.get_all(CONTENT_TYPE).iter();
        let kind =
            types.next().filter(|_| types.next().is_none()).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
            let message = "Content-Type: expected application/json";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
        }
        Ok(())
    }
}

/// A host name in the form in which names are compared.
fn plain(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn same_origin(headers: &HeaderMap, host: &Authority) -> Result<(), Refusal> {
    for origin in headers.get_all(ORIGIN) {
        // HTTPS is allowed for a server with TLS in front.
        let is_own = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok()).is_some_and(|origin| {
            matches!(origin.scheme_str(), Some("http" | "https"))
                && origin.authority().is_some_and(|origin| origin.as_str().eq_ignore_ascii_case(host.as_str()))
        });
        if !is_own {
            return Err(Refusal::forbidden("Origin: expected the origin of this server"));
        }
    }
    Ok(())
}

fn same_site(headers: &HeaderMap) -> Result<(), Refusal> {
    let is_own = |site: &HeaderValue| site == "same-origin" || site == "none";
    match headers.get_all("sec-fetch-site").iter().all(is_own) {
        true => Ok(()),
        false => Err(Refusal::forbidden("Sec-Fetch-Site: expected same-origin or none")),
    }
}

/// The bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let shown = all.next().filter(|_| all.next().is_none())?.to_str().ok()?;
    let (scheme, token) = shown.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn unauthorized(message: &str) -> Refusal {
    let refusal = Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message);
    let hint = Some("send it as Authorization: Bearer TOKEN".to_owned());
    let header = Some(("www-authenticate", "Bearer"));
    Refusal { hint, header, ..refusal }
}
