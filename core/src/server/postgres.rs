//! Postgres: connections, and the functions in `postgres/`, which belong to the schema `workglow_limit`.
//!
//! A decision is one `SELECT` of one function. It needs no extension, no session and no named statement, so a pooler
//! may be in between. The schema is created when it is found missing: see `schema.sql`.
//!
//! A store has one connection, or two. The first is for decisions, declarations and what only reads: nothing on it waits long. The
//! second is opened when something has to wait: for a lock that other sessions hold, or for a change of all states.
//!
//! In PL/pgSQL, a call costs microseconds, a statement in it two or three, and a writing statement ten. For the cost of
//! a row per start compared with an array in the key's row, see `log.sql`.

mod address;
mod adopt;
mod examine;
mod login;
mod survey;
mod tls;
mod value;
mod wire;

use super::crew::{Crew, SIDE_BY_SIDE};
use super::link::{Link, Unopened};
use super::pipe::{Pipe, SILENCE};
use super::stream::{Deadline, silent};
use super::survey::{Found, Question};
use super::witness::Word;
use super::{Call, EPOCH, Engine, Family, Finding, MAX, Noted, Row, RowChange, Terms, version};
use crate::address::without_password;
use crate::error::{Error, Result};
use crate::fault;
use crate::fork::PerProcess;
use crate::hash::Hash;
use crate::policy::Policy;
use crate::time::{Tick, from_ticks};
use crate::waiting::MayWait;
use address::Address;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use value::{Value, int, ints, text};
use wire::{Cells, Failure, Messages, Request};

/// How long a decision waits for a lock before others have a turn on its connection.
const MAX_LOCKED: Duration = Duration::from_millis(500);

/// For how long decisions of a limit then take the second connection.
const STAYS_ASIDE: Duration = Duration::from_secs(5);

/// How long a caller that waits for a start pauses after a failure: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// The complete SQL for a server.
const SCHEMA: &str = concat!(
    include_str!("postgres/schema.sql"),
    "\n",
    include_str!("postgres/log.sql"),
    "\n",
    include_str!("postgres/log_write.sql"),
    "\n",
    include_str!("postgres/counted.sql"),
    "\n",
    include_str!("postgres/bucket.sql"),
    "\n",
    include_str!("postgres/window.sql"),
    "\n",
    include_str!("postgres/adopt.sql"),
    "\n",
    include_str!("postgres/leases.sql"),
    "\n",
    include_str!("postgres/survey.sql"),
);

/// The SQL that creates the library's schema on a Postgres server, for your own migrations. A program whose role may
/// create schemas does not need it: it creates the schema at first use. Running the SQL again has no effect.
pub fn postgres_schema() -> &'static str {
    SCHEMA
}

/// A Postgres server.
pub(crate) struct Postgres {
    address: Arc<Address>,
    /// Without the password.
    url: String,
    links: PerProcess<Links>,
    crew: Arc<Crew>,
}

/// The connections of a process.
#[derive(Default)]
struct Links {
    quick: Arc<Link<Pipe<Messages>, Failure>>,
    slow: Arc<Link<Pipe<Messages>, Failure>>,
    /// The limits with locks that others hold, and since when.
    locked: HashMap<String, Instant>,
}

/// Which connection a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Quick,
    Slow,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The SQLSTATE codes that have consequences: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
mod code {
    /// The schema, function or table does not exist.
    pub const MISSING: [&str; 3] = ["3F000", "42883", "42P01"];
    pub const NOT_ALLOWED: &str = "42501";
    /// Others wrote at the same time (under a stricter isolation than READ COMMITTED), or there was a deadlock.
    pub const AGAIN: [&str; 2] = ["40001", "40P01"];
    /// Another session had the row locked for too long.
    pub(super) use super::wire::LOCKED;
    /// It is being shut down, has crashed, or is being started.
    pub const RESTARTED: [&str; 3] = ["57P01", "57P02", "57P03"];
    /// The server, the database or the role only reads.
    pub const READ_ONLY: &str = "25006";
}

impl Failure {
    /// Returns whether it may be over in a moment, as while the server is restarted. (A timeout may be that of another caller.)
    fn may_be_short(&self) -> bool {
        match self {
            Failure::Lost(_) | Failure::Timeout(_) => true,
            Failure::Refused { code, .. } => code::RESTARTED.contains(&code.as_str()),
            Failure::Nonsense(_) => false,
        }
    }
}

impl Postgres {
    /// A server at an address. It does not connect yet. `Err`: what is wrong with the address.
    pub fn new(url: &str) -> Result<Postgres, String> {
        Ok(Postgres {
            address: Arc::new(Address::parse(url)?),
            url: without_password(url),
            links: PerProcess::new(),
            crew: Crew::new(SIDE_BY_SIDE),
        })
    }

    /// Runs one statement that only reads.
    fn read(&self, statement: &'static str, values: Vec<Value>, patience: Duration) -> Result<Vec<Cells>> {
        self.run(Line::Quick, Request::Statement(statement.into(), values), patience)
    }

    /// Runs one statement that may take long.
    fn ask(&self, statement: &'static str, values: Vec<Value>, patience: Duration) -> Result<Vec<Cells>> {
        self.run(Line::Slow, Request::Statement(statement.into(), values), patience)
    }

    fn run(&self, line: Line, request: Request, patience: Duration) -> Result<Vec<Cells>> {
        let (began, deadline) = (Instant::now(), Deadline::after(patience));
        self.answer(line, &Arc::new(request), deadline).map_err(|failure| self.explain(failure, began))
    }

    /// Runs what may have to wait for a lock of a limit: on the second connection, and not for longer than its caller. `request`
    /// gets the time for which the server may wait.
    fn ask_locking(&self, limit: &str, request: impl Fn(Value) -> Request, patience: Duration) -> Result<Vec<Cells>> {
        let (began, deadline) = (Instant::now(), Deadline::after(patience));
        loop {
            let line = if self.is_locked(limit) { Line::Slow } else { Line::Quick };
            let request = request(milliseconds(deadline.left().min(MAX_LOCKED)));
            match self.answer(line, &Arc::new(request), deadline) {
                Err(failure) if failure.has_code(&[code::LOCKED]) && !deadline.left().is_zero() => {
                    self.links.lock().locked.insert(limit.to_owned(), Instant::now());
                }
                answer => return answer.map_err(|failure| self.explain(failure, began)),
            }
        }
    }

    /// Returns whether others have held a lock of this limit for long.
    fn is_locked(&self, limit: &str) -> bool {
        let mut links = self.links.lock();
        let is_over = links.locked.get(limit).map(|since| since.elapsed() >= STAYS_ASIDE);
        if is_over == Some(true) {
            links.locked.remove(limit);
        }
        is_over == Some(false)
    }

    /// Asks for something. Creates the schema if it is missing. For a caller that waits for a start it runs until there is a
    /// server.
    fn answer(&self, line: Line, request: &Arc<Request>, deadline: Deadline) -> Result<Vec<Cells>, Failure> {
        let (mut has_created, mut pause) = (false, FIRST_PAUSE);
        loop {
            match self.send(line, request, deadline) {
                Ok(rows) => return Ok(rows),
                Err(failure) if failure.has_code(&code::AGAIN) => {}
                Err(failure) if failure.has_code(&code::MISSING) && !has_created => match self.create(deadline) {
                    Err(failure) if failure.has_code(&code::AGAIN) => {}
                    created => {
                        has_created = true;
                        created?;
                    }
                },
                // A failure that may be short is no answer yet for a caller that waits for a start.
                Err(failure) if MayWait::outlasts() && failure.may_be_short() && deadline.left() > pause => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(MAX_PAUSE);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    fn create(&self, deadline: Deadline) -> Result<(), Failure> {
        let forgetful = || SCHEMA.replace("IS DISTINCT FROM this_run THEN now", "IS DISTINCT FROM this_run THEN 0");
        let schema = if fault::planted("epoch ignored") { forgetful().into() } else { Cow::Borrowed(SCHEMA) };
        match self.send(Line::Slow, &Arc::new(Request::Script(schema)), deadline) {
            Err(Failure::Refused { code, message }) if code == code::NOT_ALLOWED => {
                let message = format!(
                    "what the limits need on the server is missing, and this role may not create it ({message}): run the SQL of \
                     workglow_limit::admin::postgres_schema() as a role that may; its head says what to grant"
                );
                Err(Failure::Refused { code, message })
            }
            answer => answer.map(drop),
        }
    }

    /// Sends a request, and waits for its answer. A connection that was open before may have ended, or its server may not
    /// be the right one any more. In that case it is sent once more, on a new connection to the first suitable host.
    fn send(&self, line: Line, request: &Arc<Request>, deadline: Deadline) -> Result<Vec<Cells>, Failure> {
        let link = {
            let links = self.links.lock();
            if line == Line::Quick { links.quick.clone() } else { links.slow.clone() }
        };
        loop {
            let address = self.address.clone();
            let opened = link.get(deadline, move |deadline| login::open(&address, deadline));
            let (pipe, was_open) = opened.map_err(|failed| match failed {
                Unopened::Failed(failure) => failure,
                Unopened::TimedOut => silent(self.address.servers()).into(),
            })?;
            // If there are other hosts, a silent one leaves time for them. (A caller with little time has no reason to take
            // the connection from the others.)
            let others = self.address.hosts.len() - 1;
            let part =
                Some(deadline.shared_by(others + 2)).filter(|part| was_open && others > 0 && part.left() >= SILENCE);
            let failure = match pipe.ask(request, part.unwrap_or(deadline)) {
                Ok(Err(failure)) if self.address.has_to_write && failure.has_code(&[code::READ_ONLY]) => {
                    pipe.end("the server only reads");
                    failure
                }
                Ok(answer) => return answer,
                Err(error) => {
                    if part.is_some() {
                        pipe.end("the server was silent");
                    }
                    error.into()
                }
            };
            if !pipe.is_whole() {
                link.give_up(&pipe);
            }
            if !was_open || deadline.left().is_zero() {
                return Err(failure);
            }
        }
    }

    fn explain(&self, failure: Failure, began: Instant) -> Error {
        let doing = format!("asking {}", self.url);
        let waited_ms = began.elapsed().as_millis() as u64;
        match failure {
            Failure::Timeout(reason) => Error::StoreTimeout { doing, reason, waited_ms },
            Failure::Refused { code, .. } if code == code::LOCKED => {
                Error::StoreTimeout { doing, reason: "another session held a lock".into(), waited_ms }
            }
            failure => Error::store(doing, failure),
        }
    }

    /// The only row of an answer.
    fn one(&self, mut rows: Vec<Cells>) -> Result<Cells> {
        let row = rows.pop().filter(|_| rows.is_empty());
        row.ok_or_else(|| self.makes_no_sense("not one row"))
    }

    fn makes_no_sense(&self, what: impl fmt::Debug) -> Error {
        Error::store(format!("asking {}", self.url), format_args!("a function returned {what:?}"))
    }
}

/// How long the server may wait for locks, in milliseconds: no longer than the caller.
fn milliseconds(patience: Duration) -> Value {
    Value::int(Some(patience.as_millis().clamp(1, i32::MAX as u128) as i64))
}

fn uuid(Hash([a, b]): Hash) -> [u8; 16] {
    (u128::from(a) << 64 | u128::from(b)).to_be_bytes()
}

fn tick(now: Option<Tick>) -> Value {
    Value::int(now.map(|now| now as i64))
}

impl Engine for Postgres {
    fn place(&self) -> String {
        self.address.place()
    }

    fn crew(&self) -> &Arc<Crew> {
        &self.crew
    }

    fn disconnect(&self) {
        // Who still waits for an answer keeps one.
        let links = std::mem::take(&mut *self.links.lock());
        drop(links);
    }

    fn call(&self, call: &Call, patience: Duration) -> Result<Option<(Tick, Vec<i64>)>> {
        let Terms { family, version, numbers } = Terms::of(call.policy, call.phase);
        let known = match call.word {
            Some(Word::Report { since, from, to, by }) => vec![call.made, 1, from, to, by, since],
            Some(Word::Vouch { from, to }) => vec![call.made, 2, from, to],
            None => vec![call.made],
        };
        let values = |patience: Value| -> Vec<Value> {
            let key = call.key.map(|key| Value::uuid(Some(uuid(key))));
            let numbers = call.key.map(|_| Value::ints(numbers.iter().copied().map(Some)));
            let first = [Value::text(call.op), Value::text(call.limit)].into_iter().chain(key);
            let then = [
                Value::int(Some(version as i64)),
                Value::ints(known.iter().map(|n| Some(*n as i64))),
                tick(call.now),
                patience,
            ];
            let last = numbers.into_iter().chain([Value::ints(call.arguments.iter().copied().map(Some))]);
            first.chain(then).chain(last).collect()
        };
        let function = match family {
            _ if call.key.is_none() => "of_all",
            Family::Log => "decide_log",
            Family::Bucket => "decide_bucket",
            Family::Window => "decide_window",
            Family::Leases => "decide_concurrency",
        };
        let place = || (call.limit.to_owned(), call.key.map(uuid));
        let request = |patience: Value| Request::Decision { function, values: values(patience), place: place() };
        let row = self.one(self.ask_locking(call.limit, request, patience)?)?;
        let answer = row.first().and_then(|cell| ints(cell.as_ref()?));
        let clock = row.get(1).and_then(|cell| int(cell.as_ref()?));
        // Writes of other programs to the tables must not make us compute with impossible numbers.
        let answer = answer.filter(|answer| answer.iter().all(|n| n.unsigned_abs() <= MAX));
        match answer.as_deref().and_then(<[i64]>::split_first) {
            Some((0, answer)) => Ok(clock.map(|clock| (clock as Tick, answer.to_vec()))),
            Some((-1, _)) => Ok(None),
            _ => Err(self.makes_no_sense(row)),
        }
    }

    fn is_held(&self, limit: &str, key: Option<Hash>, policy: &Policy, patience: Duration) -> Result<bool> {
        let statement = "SELECT coalesce(o.version, l.version) FROM workglow_limit.limits l \
                         LEFT JOIN workglow_limit.own o ON o.limit_id = l.id AND o.hash = $2 WHERE l.name = $1";
        let rows = self.read(statement, vec![Value::text(limit), Value::uuid(key.map(uuid))], patience)?;
        let found = rows.first().and_then(|row| int(row.first()?.as_ref()?));
        Ok(found == Some(version(policy) as i64))
    }

    fn time(&self, patience: Duration) -> Result<Tick> {
        let row = self.one(self.read("SELECT workglow_limit.clock()", Vec::new(), patience)?)?;
        let now = row.first().and_then(|cell| int(cell.as_ref()?));
        now.and_then(|now| Tick::try_from(now).ok()).ok_or_else(|| self.makes_no_sense(row))
    }

    fn out(&self, limit: &str, patience: Duration) -> Result<[Duration; 2]> {
        let statement = "SELECT coalesce(max(g.out), 0), coalesce(max(g.said), 0), workglow_limit.clock() FROM workglow_limit.logs g \
                         WHERE g.limit_id = (SELECT id FROM workglow_limit.limits WHERE name = $1) AND g.said > workglow_limit.clock()";
        let row = self.one(self.read(statement, vec![Value::text(limit)], patience)?)?;
        let number = |at: usize| row.get(at).and_then(Option::as_ref).and_then(int);
        let (Some(out), Some(said), Some(now)) = (number(0), number(1), number(2)) else {
            return Err(self.makes_no_sense(row));
        };
        Ok([out.min(said), said].map(|until| from_ticks(u64::try_from(until - now).unwrap_or(0))))
    }

    fn row(&self, name: &str, key: Option<Hash>, patience: Duration) -> Result<Row> {
        let statement = "SELECT l.policy, l.composite, l.overriding, o.policy, nullif(l.made, 0) FROM workglow_limit.limits l \
                         LEFT JOIN workglow_limit.own o ON o.limit_id = l.id AND o.hash = $2 WHERE l.name = $1";
        let rows = self.read(statement, vec![Value::text(name), Value::uuid(key.map(uuid))], patience)?;
        let Some(row) = rows.first() else { return Ok(Row::default()) };
        let cell = |at: usize| row.get(at).and_then(Option::as_ref);
        let [policy, composite, overriding, key] = [0, 1, 2, 3].map(|at| cell(at).and_then(text));
        let made = cell(4).and_then(int).and_then(|made| Tick::try_from(made).ok());
        Ok(Row { policy, composite, overriding, made, key })
    }

    fn note(&self, name: &str, notes: &[RowChange], now: Option<Tick>, patience: Duration) -> Result<Noted> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed());
        let (mut kinds, mut texts, mut hashes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut versions, mut numbers) = (Vec::new(), Vec::new());
        for note in notes {
            let (kind, policy, hash, text) = match note {
                RowChange::Policy(policy, name) => {
                    let of = name.as_ref().map_or_else(String::new, |name| format!("\n{name}"));
                    ("p", *policy, None, policy.map(|policy| format!("{policy}{of}")))
                }
                RowChange::Override(policy, source) => {
                    let by = source.as_ref().map_or_else(String::new, |source| format!("\n{source}"));
                    let kind = if source.is_some() { "l" } else { "o" };
                    (kind, *policy, None, policy.map(|policy| format!("{policy}{by}")))
                }
                RowChange::Key(hash, key, policy) => {
                    ("k", *policy, Some(uuid(*hash)), policy.map(|policy| format!("{policy}\n{key}")))
                }
                RowChange::Composite(text) => ("c", None, None, text.clone()),
            };
            kinds.push(Some(kind));
            texts.push(text);
            let terms = policy.map(|policy| Terms::of(&policy, 0));
            versions.push(terms.as_ref().map(|terms| terms.version as i64));
            numbers.push(terms.map(|terms| terms.text()));
            hashes.push(hash);
        }
        loop {
            let values = |patience| {
                vec![
                    Value::text(name),
                    tick(now),
                    Value::texts(kinds.iter().copied()),
                    Value::texts(texts.iter().map(Option::as_deref)),
                    Value::ints(versions.iter().copied()),
                    Value::texts(numbers.iter().map(Option::as_deref)),
                    Value::uuids(hashes.iter().copied()),
                    patience,
                ]
            };
            let statement = "SELECT workglow_limit.note_changes($1, $2, $3, $4, $5, $6, $7, $8)";
            let request = |patience| Request::Statement(statement.into(), values(patience));
            let rows = self.ask_locking(name, request, left())?;
            let row = self.one(rows)?;
            match row.first().and_then(|cell| ints(cell.as_ref()?)).as_deref() {
                Some([-1]) => self.adopt_first(name, now, began, patience)?,
                Some(&[made, are_behind, earlier]) if made >= 0 => {
                    if are_behind == 1 {
                        // The next change continues with what is left. The caller has further requests.
                        self.adopt(name, now, left() / 2)?;
                    }
                    return Ok(Noted { made: made as Tick, has_earlier: earlier == 1 });
                }
                _ => return Err(self.makes_no_sense(row)),
            }
        }
    }

    fn forget(&self, name: &str, patience: Duration) -> Result<()> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed());
        loop {
            let values = vec![Value::text(name), milliseconds(left())];
            let row = self.one(self.ask("SELECT workglow_limit.forget($1, $2)", values, left())?)?;
            match row.first().and_then(|cell| int(cell.as_ref()?)) {
                Some(0) => return Ok(()),
                Some(-1) => self.adopt_first(name, None, began, patience)?,
                _ => return Err(self.makes_no_sense(row)),
            }
        }
    }

    fn names(&self, patience: Duration) -> Result<Vec<String>> {
        let rows = self.read("SELECT name FROM workglow_limit.limits WHERE is_declared", Vec::new(), patience)?;
        Ok(rows.iter().filter_map(|row| text(row.first()?.as_ref()?)).collect())
    }

    fn survey(&self, questions: &[Question], now: Option<Tick>, patience: Duration) -> Result<Vec<Found>> {
        self.survey_all(questions, now, patience)
    }

    fn examine(&self, patience: Duration) -> Result<Vec<Finding>> {
        self.look(patience)
    }
}
