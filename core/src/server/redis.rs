//! Redis, and what speaks its protocol: connections, and the scripts in `redis/`.
//!
//! ```text
//! wgl:names          a set: all that is declared
//! wgl:{NAME}         a hash: what is declared under a name (policy, composite, override), its version, and what holds for all
//!                    keys; for a key with a policy of its own, by the key's hash, its version (k:HASH) and text (t:HASH)
//! wgl:{NAME}:HASH    the state of a key
//! ```
//!
//! Braces in a name are written as `%7B` and `%7D`, so that a cluster keeps all of a limit in one place.

use super::{Call, EPOCH, Engine, Family, Note, Row, Terms, version};
use crate::error::{Error, Result};
use crate::fork::PerProcess;
use crate::state::Hash;
use crate::time::Tick;
use redis::{Client, Cmd, Connection, FromRedisValue, RedisError, RedisResult, Script, ServerErrorKind};
use std::fmt;
use std::time::{Duration, Instant};

/// How many connections that nobody uses a process keeps.
const MOST_IDLE: usize = 8;

/// The least that a call waits: no time at all would be without end.
const LEAST: Duration = Duration::from_millis(1);

/// Notes fields: names and values, `-`, and the names of those to take away. What holds is what an operator put above the policy.
const NOTE: &str = "
    local i = 1
    while ARGV[i] ~= '-' do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) i = i + 2 end
    for j = i + 1, #ARGV do redis.call('HDEL', KEYS[1], ARGV[j]) end
    local found = redis.call('HMGET', KEYS[1], 'o', 'p')
    local holds = found[1] or found[2]
    if holds then redis.call('HSET', KEYS[1], 'version', holds) else redis.call('HDEL', KEYS[1], 'version') end
    return 0";

/// Nothing is declared any more, of keys either.
const FORGET: &str = "
    for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
        if string.find(field, '^[kt]:') then redis.call('HDEL', KEYS[1], field) end
    end
    redis.call('HDEL', KEYS[1], 'policy', 'p', 'composite', 'override', 'o', 'version')
    return 0";

/// A server that speaks the protocol of Redis.
pub(crate) struct Redis {
    client: Client,
    /// Without passwords.
    url: String,
    idle: PerProcess<Vec<Idle>>,
    scripts: [Script; 4],
    note: Script,
    forget: Script,
}

/// A connection, and how long its reads and writes wait.
struct Idle(Connection, Duration);

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The script of a family, after what all of them begin with.
macro_rules! script {
    ($($name:literal),+) => {
        Script::new(concat!(include_str!("redis/prelude.lua"), $(include_str!(concat!("redis/", $name, ".lua"))),+))
    };
}

impl Redis {
    /// A server at an address. Connects to nothing yet. `Err`: what is wrong with the address.
    pub fn new(url: &str) -> Result<Redis, String> {
        let client = Client::open(url).map_err(|e| e.to_string())?;
        let scripts = [script!("log"), script!("counted", "bucket"), script!("counted", "window"), script!("leases")];
        let (note, forget) = (Script::new(NOTE), Script::new(FORGET));
        Ok(Redis { client, url: without_password(url), idle: PerProcess::new(), scripts, note, forget })
    }

    /// Does something with a connection. One that was idle may have been closed at the other end meanwhile: then it is done once
    /// more, on a new one.
    fn with<R>(&self, patience: Duration, ask: impl Fn(&mut Connection) -> RedisResult<R>) -> Result<R> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed()).max(LEAST);
        loop {
            let kept = self.idle.lock().pop();
            let was_idle = kept.is_some();
            let asked = kept.map_or_else(|| self.client.get_connection_with_timeout(left()).map(new), Ok).and_then(
                |Idle(mut connection, before)| {
                    // To set it costs two system calls.
                    let timeout = if before > left() || before.is_zero() { left() } else { before };
                    if timeout != before {
                        connection.set_read_timeout(Some(timeout))?;
                        connection.set_write_timeout(Some(timeout))?;
                    }
                    Ok((ask(&mut connection)?, Idle(connection, timeout)))
                },
            );
            match asked {
                Ok((answer, connection)) => {
                    let mut idle = self.idle.lock();
                    if idle.len() < MOST_IDLE {
                        idle.push(connection);
                    }
                    return Ok(answer);
                }
                // (A connection on which anything went wrong is not used again.)
                Err(e) if was_idle && e.is_unrecoverable_error() && !e.is_timeout() => {}
                Err(e) => return Err(self.explain(&e, began.elapsed())),
            }
        }
    }

    fn explain(&self, error: &RedisError, waited: Duration) -> Error {
        let doing = format!("asking {}", self.url);
        match error.is_timeout() {
            true => Error::StoreTimeout { doing, waited_ms: waited.as_millis() as u64 },
            false => Error::store(doing, error),
        }
    }

    fn query<T: FromRedisValue>(&self, command: &Cmd, patience: Duration) -> Result<T> {
        self.with(patience, |connection| command.query(connection))
    }

    /// Runs a script, which the server may not have yet.
    fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[String],
        patience: Duration,
    ) -> Result<T> {
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        let by_hash = command("EVALSHA", script.get_hash());
        self.with(patience, |connection| match by_hash.query(connection) {
            Err(e) if e.kind() == ServerErrorKind::NoScript.into() => {
                script.load(connection)?;
                by_hash.query(connection)
            }
            answer => answer,
        })
    }
}

fn new(connection: Connection) -> Idle {
    Idle(connection, Duration::ZERO)
}

/// An address as people may see it.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

/// The key of what is declared under a name, and of its keys' states but for their hash.
fn key_of(name: &str) -> String {
    format!("wgl:{{{}}}", name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D"))
}

fn hex(Hash([a, b]): Hash) -> String {
    format!("{a:016x}{b:016x}")
}

impl Engine for Redis {
    fn call(&self, call: &Call, patience: Duration) -> Result<Option<Vec<i64>>> {
        let Terms { family, version, numbers } = Terms::of(call.policy, call.phase);
        let script = match family {
            Family::Log => &self.scripts[0],
            Family::Bucket => &self.scripts[1],
            Family::Window => &self.scripts[2],
            Family::Leases => &self.scripts[3],
        };
        let limit = key_of(call.limit);
        let key = call.key.map(|hash| format!("{limit}:{}", hex(hash)));
        let keys: Vec<String> = [limit].into_iter().chain(key).collect();
        let time = call.now.map_or_else(String::new, |now| now.to_string());
        let mut arguments =
            vec![call.op.to_owned(), version.to_string(), String::new(), time, numbers.len().to_string()];
        arguments.extend(numbers.iter().chain(call.arguments).map(i64::to_string));
        let answer: Vec<i64> = self.run(script, &keys, &arguments, patience)?;
        match answer.split_first() {
            Some((0, answer)) => Ok(Some(answer.to_vec())),
            Some((-1, _)) => Ok(None),
            _ => Err(Error::store(format!("asking {}", self.url), format_args!("a script answered {answer:?}"))),
        }
    }

    fn time(&self, patience: Duration) -> Result<Tick> {
        let (seconds, us): (u64, u64) = self.query(&redis::cmd("TIME"), patience)?;
        Ok((seconds * 1_000_000 + us).saturating_sub(EPOCH))
    }

    fn row(&self, name: &str, key: Option<Hash>, patience: Duration) -> Result<Row> {
        let mut fields = vec!["policy".to_owned(), "composite".into(), "override".into()];
        fields.extend(key.map(|hash| format!("t:{}", hex(hash))));
        let command = redis::cmd("HMGET").arg(key_of(name)).arg(&fields).to_owned();
        let mut values: Vec<Option<String>> = self.query(&command, patience)?;
        let mut value = |at: usize| values.get_mut(at).and_then(Option::take);
        Ok(Row { policy: value(0), composite: value(1), overriding: value(2), key: value(3) })
    }

    fn note(&self, name: &str, notes: &[Note], patience: Duration) -> Result<()> {
        let (mut set, mut gone) = (Vec::new(), Vec::new());
        let mut put = |field: String, value: Option<String>| match value {
            Some(value) => set.extend([field, value]),
            None => gone.push(field),
        };
        for note in notes {
            let (policy, fields, text) = match note {
                Note::Policy(policy) => (policy, ["p".to_owned(), "policy".into()], None),
                Note::Override(policy) => (policy, ["o".to_owned(), "override".into()], None),
                Note::Key(hash, key, policy) => {
                    (policy, [format!("k:{}", hex(*hash)), format!("t:{}", hex(*hash))], Some(key))
                }
                Note::Composite(text) => {
                    put("composite".into(), text.clone());
                    continue;
                }
            };
            let [version_of, text_of] = fields;
            put(version_of, policy.map(|policy| version(&policy).to_string()));
            put(
                text_of,
                policy.map(|policy| text.map_or_else(|| policy.to_string(), |key| format!("{policy}\n{key}"))),
            );
        }
        let arguments: Vec<String> = set.into_iter().chain(["-".to_owned()]).chain(gone).collect();
        self.run::<i64>(&self.note, &[key_of(name)], &arguments, patience)?;
        self.query::<i64>(redis::cmd("SADD").arg("wgl:names").arg(name), patience).map(drop)
    }

    fn forget(&self, name: &str, patience: Duration) -> Result<()> {
        self.run::<i64>(&self.forget, &[key_of(name)], &[], patience)?;
        self.query::<i64>(redis::cmd("SREM").arg("wgl:names").arg(name), patience).map(drop)
    }

    fn names(&self, patience: Duration) -> Result<Vec<String>> {
        self.query(redis::cmd("SMEMBERS").arg("wgl:names"), patience)
    }
}
