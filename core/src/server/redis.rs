//! Redis, and other servers with its protocol: connections, and the scripts in `redis/`.
//!
//! ```text
//! wgl:names          a set: all declared names
//! wgl:{NAME}         a hash: the declarations under a name (policy, composite, override), its version, and what applies to
//!                    all keys; for a key with its own policy, by the key's hash, its version (k:HASH), its text (t:HASH)
//!                    and since when it applies (s:HASH); of each policy that was ever stored, its numbers (n:VERSION)
//! wgl:{NAME}:F:HASH  the state of a key by a family of limiters: l, b, w or c (log, bucket, window, leases)
//! wgl:{NAME}:l:HASH:s  a hash: the last grants of the key's sites
//! wgl:{NAME}:c:HASH:w  a hash: who waits for leases of the key
//! wgl:{NAME}:keys    the keys that have a state (except of leases), and until when
//! wgl:{NAME}:waiting those of them whose states an earlier policy has left
//! wgl:{NAME}:holders the keys that have leases, and until when
//! ```
//!
//! Braces in a name are written as `%7B` and `%7D`, so that a cluster keeps all of a limit in one place.

mod address;
mod adopt;
mod examine;
mod link;
mod losses;
mod survey;
mod wire;

use super::crew::{Crew, SIDE_BY_SIDE};
use super::survey::{Found, Question};
use super::witness::Word;
use super::{Call, EPOCH, Engine, Family, Finding, Noted, Row, RowChange, Terms, version};
use crate::address::without_password;
use crate::error::{Error, Result};
use crate::fault;
use crate::hash::Hash;
use crate::policy::Policy;
use crate::time::{Tick, from_ticks};
use link::{Links, Node, info_of};
use redis::{Cmd, FromRedisValue, RedisError, RedisResult, Script, ServerErrorKind};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The set of all declared names. (In a cluster it is on the node where a limit of such a name would be; no limit has
/// this name.)
const NAMES: &str = "wgl:names";

/// A key that exists as long as the server has not been wiped: see [`may_be_wiped`].
const MARK: &str = "wgl:mark";

/// A server that speaks the Redis protocol.
pub(crate) struct Redis {
    links: Links,
    /// Without the password.
    url: String,
    /// The time whose writes it loses at most, if that is known.
    loses: Option<Tick>,
    scripts: [Script; 4],
    note: Script,
    forget: Script,
    lost: Script,
    survey: Script,
    crew: Arc<Crew>,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The script of a family, after the common prelude.
macro_rules! script {
    ($($name:literal),+) => {
        Script::new(concat!(include_str!("redis/prelude.lua"), $(include_str!(concat!("redis/", $name, ".lua"))),+))
    };
}

impl Redis {
    /// A server at an address. It does not connect yet. `Err`: what is wrong with the address.
    pub fn new(url: &str) -> Result<Redis, String> {
        let (address, loses) = losses::take_from(url)?;
        let links = Links::new(&address)?;
        let scripts = [script!("log"), script!("counted", "bucket"), script!("counted", "window"), script!("leases")];
        let note = Script::new(include_str!("redis/note.lua"));
        let forget = Script::new(include_str!("redis/forget.lua"));
        let lost = Script::new(include_str!("redis/lost.lua"));
        let survey = Script::new(include_str!("redis/survey.lua"));
        Ok(Redis {
            links,
            url: without_password(url),
            loses,
            scripts,
            note,
            forget,
            lost,
            survey,
            crew: Crew::new(SIDE_BY_SIDE),
        })
    }

    /// Runs a function with a connection to the server of a limit.
    fn with<R>(&self, limit: &str, patience: Duration, ask: impl Fn(&mut Node) -> RedisResult<R>) -> Result<R> {
        let began = Instant::now();
        self.links.with(limit, patience, ask).map_err(|error| self.explain(&error, began.elapsed()))
    }

    fn explain(&self, error: &RedisError, waited: Duration) -> Error {
        let doing = format!("asking {}", self.url);
        match error.is_timeout() {
            true => Error::StoreTimeout { doing, reason: error.to_string(), waited_ms: waited.as_millis() as u64 },
            false => Error::store(doing, error),
        }
    }

    fn query<T: FromRedisValue>(&self, limit: &str, command: &Cmd, patience: Duration) -> Result<T> {
        self.with(limit, patience, |node| node.query(command))
    }

    /// Runs a limit's script, which the server may not have cached yet.
    fn run<T: FromRedisValue>(
        &self,
        limit: &str,
        script: &Script,
        keys: &[String],
        arguments: impl Fn(&mut Node) -> RedisResult<Vec<String>>,
        patience: Duration,
    ) -> Result<T> {
        self.with(limit, patience, |node| {
            let mut by_hash = redis::cmd("EVALSHA");
            by_hash.arg(script.get_hash()).arg(keys.len()).arg(keys).arg(arguments(node)?);
            match node.query(&by_hash) {
                Err(e) if e.kind() == ServerErrorKind::NoScript.into() => {
                    script.load(&mut node.connection)?;
                    node.query(&by_hash)
                }
                answer => answer,
            }
        })
    }
}

/// The run of the server from which a limit has come, as far as that was asked; 0: unknown.
type Origin = Option<u64>;

/// How long a reader of declarations works to complete another process's change.
const FOR_OTHERS: Duration = Duration::from_millis(20);

impl Redis {
    /// The script of a call, the name of its family's states, and its arguments on a run of the server.
    fn script_of(&self, call: &Call) -> (&Script, String, impl Fn(&Node, Origin) -> Vec<String> + use<>) {
        let Terms { family, version, numbers } = Terms::of(call.policy, call.phase);
        let script = match family {
            Family::Log => &self.scripts[0],
            Family::Bucket => &self.scripts[1],
            Family::Window => &self.scripts[2],
            Family::Leases => &self.scripts[3],
        };
        let states = format!("{}:{}:", key_of(call.limit), family.letter());
        let (op, made, now) = (call.op, call.made, call.now);
        let word = match call.word {
            Some(Word::Report { since, from, to, by }) => format!(" r {from} {to} {by} {since}"),
            Some(Word::Vouch { from, to }) => format!(" v {from} {to}"),
            None => String::new(),
        };
        let numbers: Vec<String> =
            [numbers.len() as i64].iter().chain(&numbers).chain(call.arguments).map(i64::to_string).collect();
        let loses = self.loses.map_or_else(|| "-".to_owned(), |time| time.to_string());
        let arguments = move |node: &Node, from: Origin| {
            let from = match from {
                Some(run) => run.to_string(),
                None if node.is_cluster => "?".into(),
                None => "0".into(),
            };
            let run = if now.is_some() { String::new() } else { format!("{} {made} {from} {loses}{word}", node.run) };
            let time = text_of(now);
            let first = [op.to_owned(), version.to_string(), run, time];
            first.into_iter().chain(numbers.iter().cloned()).collect()
        };
        (script, states, arguments)
    }

    /// Returns the run of the server from which a limit has come, if that is a node of its cluster that had this run
    /// and has lost nothing; otherwise 0.
    fn came_from(&self, limit: &str, run: u64, patience: Duration) -> Result<Origin> {
        let began = Instant::now();
        let is_proven = self.links.is_there(limit, run, patience).map_err(|e| self.explain(&e, began.elapsed()))?;
        Ok(Some(if is_proven { run } else { 0 }))
    }

    /// Rewrites states before a failed request is repeated.
    fn adopt_first(&self, name: &str, now: Option<Tick>, began: Instant, patience: Duration) -> Result<()> {
        let left = patience.saturating_sub(began.elapsed());
        if left > Duration::ZERO && self.adopt(name, now, left)? {
            return Ok(());
        }
        Err(super::is_moving_keys(name, &self.url, began))
    }

    /// The declarations, and whether states wait to be rewritten.
    fn read_row(&self, name: &str, key: Option<Hash>, patience: Duration) -> Result<(Row, bool)> {
        let mut fields = ["policy", "composite", "override", "made", "waiting"].map(str::to_owned).to_vec();
        fields.extend(key.map(|hash| format!("t:{hash}")));
        let command = redis::cmd("HMGET").arg(key_of(name)).arg(&fields).to_owned();
        let mut values: Vec<Option<String>> = self.query(name, &command, patience)?;
        let mut value = |at: usize| values.get_mut(at).and_then(Option::take);
        let (made, waits) = (value(3).and_then(|tick| tick.parse().ok()), value(4).is_some());
        Ok((Row { policy: value(0), composite: value(1), overriding: value(2), made, key: value(5) }, waits))
    }
}

/// Returns whether a limit may have been here that no present caller knows. False if the mark of the first caller is
/// there, or if nothing was ever removed since the server was started. (Losses from before its start must be known
/// elsewhere.)
fn may_be_wiped(node: &mut Node) -> RedisResult<bool> {
    if fault::planted("epoch ignored") {
        return Ok(false);
    }
    match node.query(redis::cmd("EXISTS").arg(MARK)) {
        Ok(true) => return Ok(false),
        Ok(false) => {}
        // In a cluster the mark is on one node only, and shows nothing of the others.
        Err(e) if e.redirect_node().is_some() => {}
        Err(e) => return Err(e),
    }
    let info: String = node.query(redis::cmd("INFO").arg("all"))?;
    let is_wiped = info.contains("cmdstat_flush") || info_of(&info, "evicted_keys:") != Some("0");
    match node.query::<()>(redis::cmd("SET").arg(MARK).arg("1")) {
        Err(e) if e.redirect_node().is_none() => Err(e),
        _ => Ok(is_wiped),
    }
}

fn time((seconds, us): (u64, u64)) -> Tick {
    (seconds * 1_000_000 + us).saturating_sub(EPOCH)
}

/// The key of the declarations under a name, and the prefix of its keys' states.
fn key_of(name: &str) -> String {
    format!("wgl:{{{}}}", name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D"))
}

fn list_of(name: &str) -> String {
    key_of(name) + ":keys"
}

/// The list of the keys that have a state of a family. (Leases are complete under any policy, so they never wait to be
/// rewritten.)
fn list_of_states(name: &str, family: Family) -> String {
    if family == Family::Leases { key_of(name) + ":holders" } else { list_of(name) }
}

/// A time that a test sets.
fn text_of(now: Option<Tick>) -> String {
    now.map_or_else(String::new, |now| now.to_string())
}

fn waiting_of(name: &str) -> String {
    key_of(name) + ":waiting"
}

impl Engine for Redis {
    fn place(&self) -> String {
        self.links.first.place()
    }

    fn crew(&self) -> &Arc<Crew> {
        &self.crew
    }

    fn disconnect(&self) {
        self.links.disconnect();
    }

    fn call(&self, call: &Call, patience: Duration) -> Result<Option<(Tick, Vec<i64>)>> {
        let began = Instant::now();
        let (script, states, arguments) = self.script_of(call);
        let mut keys = vec![key_of(call.limit)];
        if let Some(hash) = call.key {
            keys.extend([format!("{states}{hash}"), list_of_states(call.limit, Family::of(call.policy))]);
            keys.extend((call.op == "grant").then(|| format!("{}:s", keys[1])));
            let has_line = Family::of(call.policy) == Family::Leases && ["acquire", "view", "leave"].contains(&call.op);
            keys.extend(has_line.then(|| format!("{}:w", keys[1])));
        }
        let mut from = None;
        loop {
            let left = patience.saturating_sub(began.elapsed());
            let answer: Vec<i64> = self.run(call.limit, script, &keys, |node| Ok(arguments(node, from)), left)?;
            match answer.split_first() {
                Some((clock @ 0.., answer)) => return Ok(Some((*clock as Tick, answer.to_vec()))),
                Some((-1, _)) => return Ok(None),
                Some((-2, _)) => self.adopt_first(call.limit, call.now, began, patience)?,
                Some((-3, [run])) if from.is_none() => from = self.came_from(call.limit, *run as u64, left)?,
                _ => {
                    return Err(Error::store(
                        format!("asking {}", self.url),
                        format_args!("a script returned {answer:?}"),
                    ));
                }
            }
        }
    }

    fn is_held(&self, limit: &str, key: Option<Hash>, policy: &Policy, patience: Duration) -> Result<bool> {
        let mut fields = vec!["version".to_owned()];
        fields.extend(key.map(|hash| format!("k:{hash}")));
        let command = redis::cmd("HMGET").arg(key_of(limit)).arg(&fields).to_owned();
        let found: Vec<Option<u64>> = self.query(limit, &command, patience)?;
        Ok(found.into_iter().flatten().next_back() == Some(version(policy)))
    }

    fn time(&self, patience: Duration) -> Result<Tick> {
        self.query("", &redis::cmd("TIME"), patience).map(time)
    }

    fn out(&self, limit: &str, patience: Duration) -> Result<[Duration; 2]> {
        let until: [Option<Tick>; 2] =
            self.query(limit, redis::cmd("HMGET").arg(key_of(limit)).arg(&["out", "said"]), patience)?;
        let [Some(out), Some(said)] = until else { return Ok([Duration::ZERO; 2]) };
        let now = self.time(patience)?;
        Ok([out.min(said), said].map(|until| from_ticks(until.saturating_sub(now))))
    }

    fn row(&self, name: &str, key: Option<Hash>, patience: Duration) -> Result<Row> {
        let (row, waits) = self.read_row(name, key, patience)?;
        if waits {
            self.adopt(name, None, patience.min(FOR_OTHERS))?;
        }
        Ok(row)
    }

    fn note(&self, name: &str, notes: &[RowChange], now: Option<Tick>, patience: Duration) -> Result<Noted> {
        let (mut set, mut gone) = (Vec::new(), Vec::new());
        let mut put = |field: String, value: Option<String>| match value {
            Some(value) => set.extend([field, value]),
            None => gone.push(field),
        };
        for note in notes {
            let (policy, fields, text) = match note {
                RowChange::Policy(policy, name) => (policy, ["p".to_owned(), "policy".into()], name.as_deref()),
                RowChange::Override(policy, source) => (policy, ["o".to_owned(), "override".into()], source.as_deref()),
                RowChange::Key(hash, key, policy) => {
                    (policy, [format!("k:{hash}"), format!("t:{hash}")], Some(key.as_str()))
                }
                RowChange::Composite(text) => {
                    put("composite".into(), text.clone());
                    continue;
                }
            };
            let [version_of, text_of] = fields;
            let terms = policy.map(|policy| Terms::of(&policy, 0));
            if let Some(terms) = &terms {
                put(format!("n:{}", terms.version), Some(terms.text()));
            }
            put(version_of, terms.map(|terms| terms.version.to_string()));
            put(text_of, policy.map(|policy| text.map_or_else(|| policy.to_string(), |of| format!("{policy}\n{of}"))));
        }
        let is_learned = notes.iter().any(|note| matches!(note, RowChange::Override(_, Some(_))));
        let fields: Vec<String> = set.into_iter().chain(["-".to_owned()]).chain(gone).collect();
        let time = text_of(now);
        let arguments = |node: &mut Node| {
            let (run, is_wiped) = if now.is_some() { (0, false) } else { (node.run, may_be_wiped(node)?) };
            let flags = [is_wiped, is_learned].map(|flag| u8::from(flag).to_string());
            let [is_wiped, is_learned] = flags;
            let first = [run.to_string(), is_wiped, is_learned, time.clone()];
            Ok(first.into_iter().chain(fields.iter().cloned()).collect())
        };
        let (began, keys) = (Instant::now(), [key_of(name), list_of(name), waiting_of(name)]);
        let left = || patience.saturating_sub(began.elapsed());
        let (noted, waits) = loop {
            match self.run::<Vec<i64>>(name, &self.note, &keys, arguments, left())?.as_slice() {
                &[made, waits, earlier] => break (Noted { made: made as Tick, has_earlier: earlier == 1 }, waits == 1),
                _ => self.adopt_first(name, now, began, patience)?,
            }
        };
        self.query::<i64>(NAMES, redis::cmd("SADD").arg(NAMES).arg(name), left())?;
        if waits {
            // The next caller continues with what is left. This caller has further requests.
            match self.adopt(name, now, left() / 2) {
                Err(Error::StoreTimeout { .. }) => {}
                adopted => drop(adopted?),
            }
        }
        Ok(noted)
    }

    fn forget(&self, name: &str, patience: Duration) -> Result<()> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed());
        while self.run::<Vec<i64>>(name, &self.forget, &[key_of(name)], |_| Ok(Vec::new()), left())? != [0] {
            self.adopt_first(name, None, began, patience)?;
        }
        self.query::<i64>(NAMES, redis::cmd("SREM").arg(NAMES).arg(name), left()).map(drop)
    }

    fn names(&self, patience: Duration) -> Result<Vec<String>> {
        self.query(NAMES, redis::cmd("SMEMBERS").arg(NAMES), patience)
    }

    fn survey(&self, questions: &[Question], now: Option<Tick>, patience: Duration) -> Result<Vec<Found>> {
        self.survey_all(questions, now, patience)
    }

    fn examine(&self, patience: Duration) -> Result<Vec<Finding>> {
        self.look(patience)
    }
}
