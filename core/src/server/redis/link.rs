//! Connections: to one server, to the nodes of a cluster, or to the primary of a Sentinel group.
//!
//! A cluster keeps all of a limit on one node, because its keys share a hash tag. A server that is asked for another
//! node's keys names that node (`MOVED`). So one address is enough, and a process knows only the nodes of its limits.

use super::address::{FirstServer, HostPort, Server};
use super::wire::Connection;
use crate::fork::PerProcess;
use crate::server::stream::Deadline;
use redis::{Cmd, ConnectionLike, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How many idle connections to a node a process keeps.
const MOST_IDLE: usize = 8;

/// The shortest timeout of a call. Zero would mean no timeout.
const LEAST: Duration = Duration::from_millis(1);

/// The delay before a request is repeated when a server reports that it will be ready soon.
pub(super) const SOON: Duration = Duration::from_millis(20);

/// A connection in use, and the run of the server at its other end.
pub(super) struct Node {
    pub connection: Connection,
    pub run: u64,
    pub is_cluster: bool,
    /// The keys of the next request are migrating to this node, which accepts it only after ASKING.
    asking: bool,
}

impl Node {
    pub fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        if self.asking {
            redis::cmd("ASKING").exec(&mut self.connection)?;
        }
        command.query(&mut self.connection)
    }

    /// The answer of each command, which may be an error.
    pub fn query_all(&mut self, commands: &[Cmd]) -> RedisResult<Vec<Value>> {
        let mut pipe = redis::pipe();
        for command in commands {
            if self.asking {
                pipe.cmd("ASKING");
            }
            pipe.add_command(command.clone());
        }
        let answers = self.connection.req_packed_commands(&pipe.get_packed_pipeline(), 0, pipe.len())?;
        let answers: Vec<Value> =
            answers.into_iter().skip(self.asking.into()).step_by(1 + usize::from(self.asking)).collect();
        // It is repeated there as a whole.
        let is_elsewhere = |error: &RedisError| {
            matches!(
                error.kind(),
                ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain)
            )
        };
        let errors = answers.iter().filter_map(|answer| match answer {
            Value::ServerError(error) => Some(RedisError::from(error.clone())),
            _ => None,
        });
        match errors.into_iter().find(is_elsewhere) {
            Some(error) => Err(error),
            None => Ok(answers),
        }
    }
}

pub(super) struct Links {
    pub first: FirstServer,
    pools: PerProcess<Pools>,
}

#[derive(Default)]
struct Pools {
    /// The idle connections. `None`: to the first server.
    idle: HashMap<Option<HostPort>, Vec<Node>>,
    /// The node of a limit, if it is not the first one.
    routes: HashMap<String, HostPort>,
}

/// The result of one attempt.
enum Attempt<R> {
    Answer(R),
    Again,
    Failed(RedisError),
}

impl Links {
    /// Links to the server at an address. Does not connect yet. `Err`: what is wrong with the address.
    pub fn new(url: &str) -> Result<Links, String> {
        Ok(Links { first: FirstServer::of(url)?, pools: PerProcess::new() })
    }

    /// Runs a function with a connection to the server of a limit ("": any server). The function runs again if it
    /// certainly had no effect, because the limit is elsewhere; or if an idle connection had been closed at the other
    /// end, or was silent while there may be another server.
    pub fn with<R>(
        &self,
        limit: &str,
        patience: Duration,
        ask: impl Fn(&mut Node) -> RedisResult<R>,
    ) -> RedisResult<R> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed()).max(LEAST);
        // The node of a one-time redirection.
        let mut once: Option<HostPort> = None;
        let mut turns = 0;
        loop {
            match self.ask(limit, &mut once, &left, &ask) {
                Attempt::Answer(answer) => return Ok(answer),
                Attempt::Failed(error) => return Err(error),
                // A cycle of redirections ends after some turns.
                Attempt::Again if turns < 64 && left() > LEAST => turns += 1,
                Attempt::Again => {
                    return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "no server took the request").into());
                }
            }
        }
    }

    fn ask<R>(
        &self,
        limit: &str,
        once: &mut Option<HostPort>,
        left: &dyn Fn() -> Duration,
        ask: &dyn Fn(&mut Node) -> RedisResult<R>,
    ) -> Attempt<R> {
        let is_sent = once.is_some();
        let at = once.take().or_else(|| self.pools.lock().routes.get(limit).cloned());
        let kept = self.pools.lock().idle.get_mut(&at).and_then(Vec::pop);
        let was_idle = kept.is_some();
        let mut node = match kept.map_or_else(|| self.connect(at.as_ref(), left()), Ok) {
            Ok(node) => node,
            Err(error) => return self.unreached(limit, at, error, left()),
        };
        node.asking = is_sent;
        // A server that is silent may have a successor, which needs time, too.
        let may_have_successor = at.is_some() || self.may_find_another();
        let deadline = Deadline::after(left());
        node.connection.until(if was_idle && may_have_successor { deadline.shared_by(2) } else { deadline });
        let answer = ask(&mut node);
        let Err(error) = answer else {
            self.keep(at, node);
            return answer.map_or_else(Attempt::Failed, Attempt::Answer);
        };
        let ErrorKind::Server(kind) = error.kind() else {
            // A connection is not reused after a failure, nor are the node's other idle connections.
            self.pools.lock().idle.remove(&at);
            let may_be_elsewhere = if error.is_timeout() { may_have_successor } else { error.is_unrecoverable_error() };
            return if was_idle && may_be_elsewhere { Attempt::Again } else { Attempt::Failed(error) };
        };
        match (kind, error.redirect_node()) {
            (ServerErrorKind::Moved, Some((to, _))) => {
                self.pools.lock().routes.insert(limit.to_owned(), to.to_owned());
                self.keep(at, node);
                Attempt::Again
            }
            (ServerErrorKind::Ask, Some((to, _))) => {
                *once = Some(to.to_owned());
                self.keep(at, node);
                Attempt::Again
            }
            // Some of its keys are migrating to another node.
            (ServerErrorKind::TryAgain, _) => {
                self.keep(at, node);
                std::thread::sleep(SOON.min(left()));
                Attempt::Again
            }
            // It is no longer the primary; the present one must be found.
            (ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown, _) => {
                self.leave(limit, &at);
                if self.may_find_another() { self.later(error, left()) } else { Attempt::Failed(error) }
            }
            _ => {
                self.keep(at, node);
                Attempt::Failed(error)
            }
        }
    }

    fn keep(&self, at: Option<HostPort>, mut node: Node) {
        node.asking = false;
        let mut pools = self.pools.lock();
        let idle = pools.idle.entry(at).or_default();
        if idle.len() < MOST_IDLE {
            idle.push(node);
        }
    }

    /// Sends no further requests for a limit to this node, until a redirection names it again.
    fn leave(&self, limit: &str, at: &Option<HostPort>) {
        let mut pools = self.pools.lock();
        pools.idle.remove(at);
        pools.routes.remove(limit);
    }

    /// Returns whether another primary can be found through Sentinels or other nodes.
    fn may_find_another(&self) -> bool {
        matches!(self.first, FirstServer::Sentinels(..))
    }

    /// The request may succeed in a moment.
    fn later<R>(&self, error: RedisError, left: Duration) -> Attempt<R> {
        if left <= SOON {
            return Attempt::Failed(error);
        }
        std::thread::sleep(SOON);
        Attempt::Again
    }

    /// A node of a cluster that does not answer may have a successor that the other nodes know.
    fn unreached<R>(&self, limit: &str, at: Option<HostPort>, error: RedisError, left: Duration) -> Attempt<R> {
        self.leave(limit, &at);
        let is_password_wrong = matches!(error.kind(), ErrorKind::AuthenticationFailed);
        match at {
            _ if is_password_wrong => Attempt::Failed(error),
            Some(_) => self.later(error, left),
            None if self.may_find_another() => self.later(error, left),
            None => match self.pools.lock().routes.values().next().cloned() {
                // That node answers, or is forgotten.
                Some(other) => {
                    drop(self.pools.lock().routes.insert(limit.to_owned(), other));
                    Attempt::Again
                }
                None => Attempt::Failed(error),
            },
        }
    }

    /// The node to which requests of a limit are sent; `None`: the first server.
    pub fn node_of(&self, limit: &str) -> Option<HostPort> {
        self.pools.lock().routes.get(limit).cloned()
    }

    /// Sends requests of a limit to another node from now on, if this answer says so.
    pub fn follow(&self, limit: &str, answer: &RedisError) -> bool {
        let is_moved = answer.kind() == ServerErrorKind::Moved.into();
        let to = answer.redirect_node().filter(|_| is_moved).map(|(to, _)| to.to_owned());
        to.is_some_and(|to| self.pools.lock().routes.insert(limit.to_owned(), to.clone()) != Some(to))
    }

    /// Returns whether that run of a server is a primary of the cluster, has been one since its start, and has the
    /// limit. If so, everything that was there has come here.
    pub fn is_there(&self, limit: &str, run: u64, patience: Duration) -> RedisResult<bool> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed()).max(LEAST);
        let (nodes, is_here) = self.with(limit, left(), |node| {
            let nodes: String = node.query(redis::cmd("CLUSTER").arg("NODES"))?;
            Ok((nodes, has_always_been_primary(node)?))
        })?;
        let primaries = nodes.lines().filter_map(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let (at, flags) = (fields.next()?, fields.next()?);
            let is_up = flags.split(',').any(|flag| flag == "master") && !flags.contains("fail");
            is_up.then(|| at.split(['@', ',']).next().unwrap_or_default().to_owned())
        });
        for at in primaries.filter(|_| is_here) {
            // A node that does not answer is not asked twice.
            let Ok(mut node) = self.connect(Some(&at), left()) else { continue };
            let found = node.run == run && has_always_been_primary(&mut node)?;
            self.keep(Some(at), node);
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Connects to the first server or to a node.
    fn connect(&self, at: Option<&HostPort>, timeout: Duration) -> RedisResult<Node> {
        let deadline = Deadline::after(timeout);
        let (server, is_found) = match (&self.first, at) {
            (FirstServer::HostPort(server), Some(at)) | (FirstServer::Sentinels(_, _, server), Some(at)) => {
                (server.at_another(at)?, false)
            }
            (FirstServer::HostPort(server), None) => (server.clone(), false),
            (FirstServer::Sentinels(sentinels, name, server), None) => {
                let at = primary(sentinels, name, server, deadline)?;
                (server.at_another(&at)?, true)
            }
        };
        let may_have_successor = is_found || at.is_some();
        let connection = Connection::open(&server, if may_have_successor { deadline.shared_by(2) } else { deadline })?;
        let mut node = Node { connection, run: 1, is_cluster: false, asking: false };
        let server: String = redis::cmd("INFO").arg("server").query(&mut node.connection)?;
        // The run changes when a server is restarted or replaced; its data may be older then.
        let run = info_of(&server, "run_id:").and_then(|id| u64::from_str_radix(id.get(..13)?, 16).ok());
        node.run = run.unwrap_or(1).max(1);
        node.is_cluster = info_of(&server, "redis_mode:") == Some("cluster");
        if is_found {
            let replication: String = redis::cmd("INFO").arg("replication").query(&mut node.connection)?;
            if info_of(&replication, "role:") != Some("master") {
                return Err(
                    (ServerErrorKind::ReadOnly.into(), "the server that the Sentinels name is not a primary").into()
                );
            }
        }
        Ok(node)
    }
}

/// Returns whether a server has been the primary since its start.
fn has_always_been_primary(node: &mut Node) -> RedisResult<bool> {
    let replication: String = node.query(redis::cmd("INFO").arg("replication"))?;
    let before = info_of(&replication, "master_replid2:");
    Ok(info_of(&replication, "role:") == Some("master") && before.is_some_and(|id| id.bytes().all(|b| b == b'0')))
}

/// A field of the answer of `INFO`.
pub(super) fn info_of<'i>(info: &'i str, field: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.strip_prefix(field)).map(str::trim)
}

/// The address of the primary with that name.
fn primary(sentinels: &[Server], name: &str, login: &Server, deadline: Deadline) -> RedisResult<HostPort> {
    let mut failed = None;
    for (i, sentinel) in sentinels.iter().enumerate() {
        match ask_sentinel(sentinel, name, login, deadline.shared_by(sentinels.len() - i)) {
            Ok(Some((host, port))) => return Ok(format!("{host}:{port}")),
            Ok(None) => {
                let unknown = (ErrorKind::MasterNameNotFoundBySentinel, "no Sentinel knows the name", name.to_owned());
                failed = Some(RedisError::from(unknown));
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.expect("there is a Sentinel"))
}

fn ask_sentinel(
    sentinel: &Server,
    name: &str,
    login: &Server,
    deadline: Deadline,
) -> RedisResult<Option<(String, u16)>> {
    let ask = |server: &Server| {
        let mut connection = Connection::open(server, deadline)?;
        redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(name).query(&mut connection)
    };
    match ask(sentinel) {
        // The Sentinel requires a login; it gets the same one as the servers.
        Err(e) if e.code() == Some("NOAUTH") => ask(&sentinel.with_login_of(login)),
        answer => answer,
    }
}
