//! Who may do what. Every line of this table has a test in `cli/tests/serve.rs`.
//!
//! | what | is refused with | against |
//! | --- | --- | --- |
//! | a path that is not in [`Route::find`] | 404 | – |
//! | another method than its route's | 405, `Allow` | – |
//! | no `Host`, or several | 400 | requests that others understand otherwise |
//! | `Host` (or the address asked for) is no name of this server | 421 | DNS rebinding: a page of `evil.example` that has the browser ask 127.0.0.1 |
//! | `Origin` is another than `Host`'s | 403 | pages of others, in the browser of somebody who may ask |
//! | `Sec-Fetch-Site` is `cross-site` or `same-site`, except for the page itself (a link may lead there) | 403 | the same; another port of this machine is `same-site` |
//! | a change, where there is no token for changes | 403 | – |
//! | a change without the token, or with another | 401 | everybody; a token is in no cookie, so no browser sends it by itself |
//! | a look without one of the tokens, where there is one for looks | 401 | everybody else who reaches the address; not the page and its parts, which say nothing |
//! | a change that is not `application/json` | 415 | forms of other pages, which browsers send without asking |
//! | a change above 16 KiB | 413 | filling the memory |
//! | a change that takes more than 10 s to arrive | 408 | clients that hold connections |
//!
//! The names of this server are `localhost`, the addresses of this machine itself (127.0.0.0/8, `[::1]`), the address that it listens
//! on, and what `--allow-host` says; with any port, because ports are often mapped. Where it listens on all addresses, any address is
//! its name: only names can be made to point elsewhere.

use super::listen::is_loopback;
use crate::failure::Failure;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Method, StatusCode, Uri};
use rand::TryRng;
use rand::rngs::SysRng;
use std::fmt;
use std::net::IpAddr;
use subtle::ConstantTimeEq;

/// What can be asked for.
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
            "/talk.js" => Route::Part(JS, include_str!("page/talk.js")),
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

    fn method(self) -> Method {
        if matches!(self, Route::Change(_)) { Method::POST } else { Method::GET }
    }
}

/// Why a request is not answered as it was meant.
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

    /// It makes no sense.
    pub fn bad(message: impl Into<String>) -> Refusal {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    fn forbidden(message: impl Into<String>) -> Refusal {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }
}

/// A secret that a request shows.
pub struct Token(String);

const LEAST_TOKEN: usize = 16;
const MOST_TOKEN: usize = 1_024;

impl Token {
    /// 256 bits of the system's.
    pub fn random() -> Result<Token, Failure> {
        let mut bytes = [0; 32];
        SysRng.try_fill_bytes(&mut bytes).map_err(|error| Failure::system(format!("making a token: {error}")))?;
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The text of a file or a variable. An error says what was expected, and never the text.
    pub fn parse(text: &str) -> Result<Token, String> {
        let text = text.trim();
        let is_token =
            (LEAST_TOKEN..=MOST_TOKEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_token.then(|| Token(text.to_owned())).ok_or_else(|| {
            format!(
                "{LEAST_TOKEN} to {MOST_TOKEN} visible ASCII characters without spaces, as of: openssl rand -hex 32"
            )
        })
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Takes the same time wherever the two differ.
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

    /// What a request asks for, if it may. (Its body is not looked at.)
    pub fn admit(&self, request: &Parts) -> Result<Route, Refusal> {
        // First, so that nothing at all is told under a name that is not ours.
        let host = self.host(request)?;
        let Some(route) = Route::find(request.uri.path()) else {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "not_found",
                format!("there is no {}", request.uri.path()),
            ));
        };
        if request.method != route.method() {
            let allow = if route.method() == Method::GET { "GET" } else { "POST" };
            let message = format!("{} of {}: expected {}", request.method, request.uri.path(), route.method());
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
            _ => self.may_look(&request.headers)?,
        }
        Ok(route)
    }

    /// The host that was asked for, which is this server.
    fn host(&self, request: &Parts) -> Result<Authority, Refusal> {
        let mut all = request.headers.get_all(HOST).iter();
        let (Some(host), None) = (all.next(), all.next()) else {
            return Err(Refusal::bad("Host: expected one"));
        };
        let host = host
            .to_str()
            .ok()
            .and_then(|host| host.parse::<Authority>().ok())
            .filter(|host| !host.as_str().contains('@'));
        let host = host.ok_or_else(|| Refusal::bad("Host: expected a name and a port"))?;
        for asked in std::iter::once(&host).chain(request.uri.authority()) {
            if !self.is_name(asked.host()) {
                let message = format!("{:?} is no name of this server", asked.host());
                let refusal = Refusal::new(StatusCode::MISDIRECTED_REQUEST, "unknown_host", message);
                let hint = Some("a server that is asked by another name has to be told: --allow-host NAME".to_owned());
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

    fn may_look(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(read) = &self.read else { return Ok(()) };
        let shown = bearer(headers).unwrap_or_default();
        // Both are compared, whatever the first answer is.
        let is_known = read.is(shown) | self.write.as_ref().is_some_and(|write| write.is(shown));
        if is_known { Ok(()) } else { Err(unauthorized("looking needs a token")) }
    }

    fn may_change(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(write) = &self.write else {
            return Err(Refusal::forbidden("this server takes no changes: it is read-only"));
        };
        if !bearer(headers).is_some_and(|shown| write.is(shown)) {
            return Err(unauthorized("a change needs the token for changes"));
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

/// A name as it is compared.
fn plain(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn same_origin(headers: &HeaderMap, host: &Authority) -> Result<(), Refusal> {
    for origin in headers.get_all(ORIGIN) {
        // A server with TLS in front has the same names.
        let is_own = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok()).is_some_and(|origin| {
            matches!(origin.scheme_str(), Some("http" | "https"))
                && origin.authority().is_some_and(|origin| origin.as_str().eq_ignore_ascii_case(host.as_str()))
        });
        if !is_own {
            return Err(Refusal::forbidden("Origin: expected this server's"));
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

/// The token that a request shows.
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
