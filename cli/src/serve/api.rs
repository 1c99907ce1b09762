//! The responses: snapshots as JSON, metrics or a stream of events; and changes.

use super::guard::{Change, Refusal, Route};
use super::query::Query;
use super::series::{POINTS, STEP, Sample, Sampler, Trouble};
use super::view::{Sort, View};
use crate::commands::change::duration;
use crate::failure::Failure;
use crate::json::{self, Keys};
use crate::{names, text};
use bytes::Bytes;
use http_body_util::channel::Sender;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Channel, Full, Limited};
use hyper::body::{Frame, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use workglow_limit::Store;
use workglow_limit::admin::{NamedPolicy, parse_parts};
use workglow_limit::observe::{MetricsFormat, Minute, Observer};

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The most bytes of a change's body.
const MAX_BODY: usize = 16 * 1024;
/// The longest time for a body to arrive.
const SLOWEST_BODY: Duration = Duration::from_secs(10);
/// The most streams of events.
const MAX_STREAMS: usize = 32;
/// The interval of keep-alive comments in an idle stream.
const ALIVE: Duration = Duration::from_secs(5);
/// The most limits of a response.
const MAX_LIMITS: u64 = 1_000;
/// The most limits of an event.
const MAX_ROWS: u64 = 200;
/// The number of points of a sparkline.
const SPARK: usize = 60;
const MONTH: Duration = Duration::from_secs(31 * 24 * 60 * 60);

/// A cached history: when it was read, its request (name, since, step) and its minutes.
type CachedHistory = (Instant, (String, u64, u64), Arc<Vec<Minute>>);

/// Makes the responses.
pub struct Api {
    store: Store,
    url: String,
    keys: Keys,
    takes_changes: bool,
    sampler: Sampler,
    streams: Arc<Semaphore>,
    /// Recently read histories. The lock is held while one is read, so that only one thread reads at a time.
    histories: Arc<Mutex<VecDeque<CachedHistory>>>,
}

impl Api {
    pub fn new(store: Store, url: &str, keys: Keys, sampler: Sampler, takes_changes: bool) -> Api {
        let (streams, histories) = (Arc::new(Semaphore::new(MAX_STREAMS)), Arc::default());
        Api { store, url: url.to_owned(), keys, takes_changes, sampler, streams, histories }
    }

    /// Stops the sampler.
    pub fn end(&self) {
        self.sampler.end();
    }

    /// The response to an allowed request. `by` is the client.
    pub async fn answer(
        self: &Rc<Self>,
        route: Route,
        parts: &Parts,
        body: Incoming,
        by: &str,
    ) -> Result<Response<Body>, Refusal> {
        let query = |known: &[&str]| Query::parse(parts.uri.query(), known);
        match route {
            Route::Page => Ok(of("text/html; charset=utf-8", include_str!("page/index.html"))),
            Route::Part(kind, text) => Ok(of(kind, text)),
            Route::Metrics => self.metrics(parts).await,
            Route::Snapshot => self.snapshot(&query(&["search", "sort", "offset", "limit"])?).await,
            Route::Series => self.series(&query(&["limit"])?).await,
            Route::History => self.history(&query(&["limit", "since", "step"])?).await,
            Route::Events => self.events(&query(&["search", "sort", "offset", "limit", "detail"])?),
            Route::Change(change) => {
                query(&[])?;
                self.change(change, body, by).await
            }
        }
    }

    async fn metrics(&self, parts: &Parts) -> Result<Response<Body>, Refusal> {
        let view = self.sampler.look().await.map_err(|trouble| Refusal::from(&*trouble))?;
        let accept = parts.headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let format = match accept.contains("application/openmetrics-text") {
            true => MetricsFormat::OpenMetrics,
            false => MetricsFormat::Prometheus,
        };
        let show_keys = self.keys == Keys::Shown;
        let text = tokio::task::spawn_blocking(move || view.metrics(format, show_keys)).await.map_err(|_| broken())?;
        Ok(of(format.content_type(), text))
    }

    async fn snapshot(&self, query: &Query) -> Result<Response<Body>, Refusal> {
        let page = Page::parse(query, MAX_LIMITS)?;
        let view = self.sampler.look().await.map_err(|trouble| Refusal::from(&*trouble))?;
        let (found, rows) = page.of(&view);
        Ok(of_json(&json::page_of(&view, found, page.offset, &rows, self.keys)))
    }

    async fn series(&self, query: &Query) -> Result<Response<Body>, Refusal> {
        let name = query.required("limit")?;
        // Right after the start, this waits for the first point.
        let view = self.sampler.look().await;
        let series = self.sampler.quarter().series(name);
        match (series, view) {
            (Some(series), _) => Ok(of_json(&json::series(name, &series))),
            (None, Err(trouble)) => Err(Refusal::from(&*trouble)),
            (None, Ok(view)) => Err(unknown(name, &view)),
        }
    }

    async fn history(&self, query: &Query) -> Result<Response<Body>, Refusal> {
        let name = query.required("limit")?.to_owned();
        let now = SystemTime::now();
        let latest = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let since = query.number("since", latest.saturating_sub(MONTH.as_secs()), 0, u64::MAX)?;
        let step = query.number("step", 3_600, 60, 86_400)?;
        if step % 60 != 0 {
            return Err(Refusal::bad(format!("step is {step}: expected whole minutes, in seconds")));
        }
        // Rounded to whole steps, so that repeated requests find the cached history.
        let since = since.max(latest.saturating_sub(MONTH.as_secs())) / step * step;
        let (store, histories, url) = (self.store.clone(), self.histories.clone(), self.url.clone());
        let asked = (name.clone(), since, step);
        let read = tokio::task::spawn_blocking(move || {
            read_history(&store, &histories, asked).map_err(|error| Failure::of_store(error, &url))
        });
        let minutes = read.await.map_err(|_| broken())??;
        if minutes.is_empty() {
            let view = self.sampler.look().await.map_err(|trouble| Refusal::from(&*trouble))?;
            view.row(&name).ok_or_else(|| unknown(&name, &view))?;
        }
        Ok(of_json(&json::history(&name, Duration::from_secs(step), &minutes)))
    }

    async fn change(&self, change: Change, body: Incoming, by: &str) -> Result<Response<Body>, Refusal> {
        let order = Order::parse(change, &read(body).await?)?;
        let (store, url) = (self.store.clone(), self.url.clone());
        let (described, by) = (order.describe(self.keys), by.to_owned());
        let changed = tokio::task::spawn_blocking(move || {
            let done = order.carry_out(&store, &url)?;
            // The log shows who made the change.
            let at = text::utc(SystemTime::now());
            eprintln!("{at} {by}: {described}");
            Ok::<Value, Failure>(done)
        });
        let done = changed.await.map_err(|_| broken())?;
        // Also after an error, because a part of the change may have been made.
        self.sampler.expire();
        Ok(of_json(&done?))
    }

    fn events(self: &Rc<Self>, query: &Query) -> Result<Response<Body>, Refusal> {
        let page = Page::parse(query, MAX_ROWS)?;
        let detail = query.text("detail").map(str::to_owned);
        let Ok(stream) = self.streams.clone().try_acquire_owned() else {
            let message = format!("{MAX_STREAMS} event streams are open, which is the maximum");
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", message));
        };
        let (sender, body) = Channel::new(1);
        let api = self.clone();
        tokio::task::spawn_local(async move {
            let _stream = stream;
            // Ends when the client closes the connection.
            api.send_events(sender, &page, detail.as_deref()).await;
        });
        Ok(respond(StatusCode::OK, "text/event-stream; charset=utf-8", BodyExt::boxed_unsync(body)))
    }

    async fn send_events(&self, mut sender: Sender<Bytes>, page: &Page, detail: Option<&str>) -> Option<()> {
        let mut watching = self.sampler.watch();
        let hello = json::hello(self.takes_changes, self.keys, POINTS as u32 * STEP);
        send(&mut sender, event("hello", &hello)).await?;
        let (mut sent, mut shown): (u64, Vec<String>) = (0, Vec::new());
        loop {
            let sample: Sample = watching.samples.borrow_and_update().clone();
            match &sample.view {
                Some(Ok(view)) => {
                    let (found, rows) = page.of(view);
                    // Sparklines change only with a tick.
                    let names: Vec<String> = rows.iter().map(|(limit, _)| limit.name.clone()).collect();
                    let sparks = (sent != view.tick || names.iter().any(|name| !shown.contains(name))).then(|| {
                        let quarter = self.sampler.quarter();
                        names.iter().map(|name| (name.clone(), quarter.spark(name, SPARK))).collect::<Vec<_>>()
                    });
                    (sent, shown) = (view.tick, names);
                    let seen = json::look(
                        view,
                        found,
                        page.offset,
                        &rows,
                        sparks,
                        detail.map(|name| view.row(name)),
                        self.keys,
                    );
                    send(&mut sender, event("look", &seen)).await?;
                }
                Some(Err(trouble)) => {
                    let error = json::error(trouble.code, &trouble.message, trouble.hint.as_deref());
                    send(&mut sender, event("trouble", &error)).await?;
                }
                None => {}
            }
            loop {
                match timeout(ALIVE, watching.samples.changed()).await {
                    Ok(changed) => break changed.ok()?,
                    Err(_) => send(&mut sender, ": still here\n\n".to_owned()).await?,
                }
            }
        }
    }
}

async fn send(sender: &mut Sender<Bytes>, text: String) -> Option<()> {
    sender.send(Frame::data(Bytes::from(text))).await.ok()
}

/// An event of a stream, with its JSON on one line.
fn event(name: &str, data: &Value) -> String {
    let mut text = String::with_capacity(1024);
    let _ = write!(text, "event: {name}\ndata: {data}\n\n");
    text
}

/// The requested list of limits.
struct Page {
    search: String,
    sort: Sort,
    offset: usize,
    limit: usize,
}

impl Page {
    fn parse(query: &Query, most: u64) -> Result<Page, Refusal> {
        let sort = query.text("sort").unwrap_or(Sort::NAMES[0]);
        let Some(sort) = Sort::parse(sort) else {
            return Err(Refusal::bad(format!("sort is {sort:?}: expected {}", Sort::NAMES.join(", "))));
        };
        Ok(Page {
            search: query.text("search").unwrap_or_default().to_owned(),
            sort,
            offset: query.number("offset", 0, 0, u64::from(u32::MAX))? as usize,
            limit: query.number("limit", 100, 0, most)? as usize,
        })
    }

    fn of<'v>(&self, view: &'v View) -> (usize, Vec<super::view::Row<'v>>) {
        view.page(&self.search, self.sort, self.offset..self.offset + self.limit)
    }
}

/// The history in steps of the requested length. A history read within the last seconds is reused.
fn read_history(
    store: &Store,
    histories: &Mutex<VecDeque<CachedHistory>>,
    asked: (String, u64, u64),
) -> workglow_limit::Result<Arc<Vec<Minute>>> {
    const RECENT: Duration = Duration::from_secs(5);
    /// The most steps in the cache. A month has 745 hours, or 44,640 minutes.
    const MAX: usize = 50_000;
    let mut histories = histories.lock().unwrap_or_else(PoisonError::into_inner);
    histories.retain(|(read, ..)| read.elapsed() < RECENT);
    if let Some((_, _, minutes)) = histories.iter().find(|(_, of, _)| *of == asked) {
        return Ok(minutes.clone());
    }
    let (name, since, step) = &asked;
    let mut all: Vec<Minute> = Vec::new();
    for minute in Observer::new(store, 0).history(name, UNIX_EPOCH + Duration::from_secs(*since))? {
        let at = minute.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / step * step;
        let at = UNIX_EPOCH + Duration::from_secs(at);
        match all.last_mut().filter(|last| last.at == at) {
            Some(last) => {
                last.units += minute.units;
                last.denied += minute.denied;
                last.waited += minute.waited;
                last.peak = last.peak.max(minute.peak);
            }
            None => {
                let mut first = minute;
                first.at = at;
                all.push(first);
            }
        }
    }
    let all = Arc::new(all);
    histories.push_back((Instant::now(), asked, all.clone()));
    while histories.iter().map(|(_, _, minutes)| minutes.len()).sum::<usize>() > MAX {
        histories.pop_front();
    }
    Ok(all)
}

async fn read(body: Incoming) -> Result<Bytes, Refusal> {
    let read = timeout(SLOWEST_BODY, Limited::new(body, MAX_BODY).collect()).await;
    let read =
        read.map_err(|_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "slow", "the body did not arrive within 10 s"))?;
    match read {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            let message = format!("the body is larger than {MAX_BODY} bytes");
            Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message))
        }
        Err(error) => Err(Refusal::bad(format!("the body: {error}"))),
    }
}

/// A requested change.
struct Order {
    change: Change,
    limit: String,
    key: Option<String>,
    /// The policy, or the duration.
    argument: String,
}

impl Order {
    fn parse(change: Change, body: &[u8]) -> Result<Order, Refusal> {
        let value =
            serde_json::from_slice(body).map_err(|error| Refusal::bad(format!("the body is not JSON: {error}")))?;
        let Value::Object(mut fields) = value else {
            return Err(Refusal::bad("the body: expected a JSON object"));
        };
        let argument = match change {
            Change::Override => Some("policy"),
            Change::Pause => Some("duration"),
            Change::Lift => None,
        };
        let order = Order {
            change,
            limit: take(&mut fields, "limit")?.ok_or_else(|| Refusal::bad("limit: missing"))?,
            key: take(&mut fields, "key")?,
            argument: match argument {
                Some(name) => take(&mut fields, name)?.ok_or_else(|| Refusal::bad(format!("{name}: missing")))?,
                None => String::new(),
            },
        };
        if let Some((unknown, _)) = fields.iter().next() {
            let known: Vec<&str> = ["limit", "key"].into_iter().chain(argument).collect();
            return Err(Refusal::bad(format!("{unknown:?}: expected {}", known.join(", "))));
        }
        if order.key.as_deref() == Some("") {
            return Err(Refusal::bad("key is \"\": expected 1 to 1,024 bytes, or none for the whole limit"));
        }
        Ok(order)
    }

    fn carry_out(&self, store: &Store, url: &str) -> Result<Value, Failure> {
        let of_store = |error| Failure::of_store(error, url);
        let (name, key) = (self.limit.as_str(), self.key.as_deref());
        names::check(name, store)?;
        let more = match self.change {
            Change::Override => {
                let policies = parse_parts(&self.argument)?;
                store.override_limit(name, &self.argument, key).map_err(of_store)?;
                let policy = policies.iter().map(NamedPolicy::to_string).collect::<Vec<_>>().join(" + ");
                serde_json::json!({ "policy": policy })
            }
            Change::Lift => {
                store.lift(name, key).map_err(of_store)?;
                Value::Null
            }
            Change::Pause => {
                let duration = duration("duration", &self.argument)?;
                let limiter = store.find(name).map_err(of_store)?;
                limiter.pause(duration, key.unwrap_or("")).map_err(of_store)?;
                serde_json::json!({ "duration": json::seconds(duration) })
            }
        };
        let done = match self.change {
            Change::Override => "override",
            Change::Lift => "lift",
            Change::Pause => "pause",
        };
        Ok(json::change(done, name, key, more))
    }

    /// The change as a line of the log. Keys are in it only if they are shown.
    fn describe(&self, keys: Keys) -> String {
        let done = match self.change {
            Change::Override => "override",
            Change::Lift => "lift",
            Change::Pause => "pause",
        };
        let key = match (&self.key, keys) {
            (None, _) => String::new(),
            (Some(key), Keys::Shown) => format!(", key {}", text::clean(key)),
            (Some(_), Keys::Hidden) => ", one key".to_owned(),
        };
        format!("{done} {}{key} {}", text::clean(&self.limit), text::clean(&self.argument)).trim_end().to_owned()
    }
}

/// Takes a string from the fields of a body. `null` counts as missing.
fn take(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, Refusal> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(Refusal::bad(format!("{name} is {other}: expected a string"))),
    }
}

fn unknown(name: &str, view: &View) -> Refusal {
    let known: Vec<String> = view.seen.limits.iter().map(|limit| limit.name.clone()).collect();
    crate::failure::unknown(name, &known).into()
}

/// The error of a task that panicked.
fn broken() -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the server failed: this is a bug")
}

impl From<&Trouble> for Refusal {
    fn from(trouble: &Trouble) -> Refusal {
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, trouble.code, trouble.message.clone());
        Refusal { hint: trouble.hint.clone(), ..refusal }
    }
}

impl Refusal {
    pub fn into_response(self) -> Response<Body> {
        let error = json::error(self.code, &self.message, self.hint.as_deref());
        let mut response =
            respond(self.status, "application/json", Full::from(error.to_string() + "\n").boxed_unsync());
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

fn respond(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn of(kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    respond(StatusCode::OK, kind, Full::from(body.into()).boxed_unsync())
}

fn of_json(value: &Value) -> Response<Body> {
    of("application/json", value.to_string() + "\n")
}
