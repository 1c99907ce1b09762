//! Connections: to one server, to the nodes of a cluster, or to the primary of a Sentinel group.
//!
//! A cluster keeps all of a limit on one node, because its keys share a hash tag. A server that is asked for another
//! node's keys names that node (`MOVED`). So one address is enough, and a process knows only the nodes of its limits.

use super::address::{FirstServer, HostPort, Server};
use super::wire::Connection;
use crate::fork::PerProcess;
use crate::server::link::{Link, Unopened};
use crate::server::pipe::SILENCE;
use crate::server::stream::{Deadline, silent};
use crate::waiting::MayWait;
use redis::{Cmd, ConnectionLike, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest timeout of a call. Zero would mean no timeout.
const MIN: Duration = Duration::from_millis(1);

/// The delay before a request is repeated when a server reports that it will be ready soon.
pub(super) const SOON: Duration = Duration::from_millis(20);

/// The connection to a node, and the run of the server at its other end.
pub(super) struct Opened {
    connection: Connection,
    run: u64,
    is_cluster: bool,
}

/// A node for one call.
pub(super) struct Node {
    pub connection: Connection,
    pub run: u64,
    pub is_cluster: bool,
    /// The keys of the next request are migrating to this node, which accepts it only after ASKING.
    asking: bool,
}

impl Node {
    fn of(opened: &Opened, deadline: Deadline) -> Node {
        let connection = Connection { deadline, ..opened.connection.clone() };
        Node { connection, run: opened.run, is_cluster: opened.is_cluster, asking: false }
    }

    pub fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        if !self.asking {
            return command.query(&mut self.connection);
        }
        let [answer] = self.query_all(std::slice::from_ref(command))?.try_into().expect("one answer for each command");
        Ok(T::from_redis_value(answer.extract_error()?)?)
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

type NodeLink = Arc<Link<Opened, RedisError>>;

pub(super) struct Links {
    pub first: Arc<FirstServer>,
    nodes: PerProcess<Nodes>,
}

#[derive(Default)]
struct Nodes {
    /// `None`: the first server.
    links: HashMap<Option<HostPort>, NodeLink>,
    /// The node of a limit, if it is not the first one.
    routes: HashMap<String, HostPort>,
}

/// The result of one attempt.
enum Attempt<R> {
    Answer(R),
    Again,
    /// The same, after a moment.
    Later(RedisError),
    Failed(RedisError),
}

impl Links {
    /// Links to the server at an address. Does not connect yet. `Err`: what is wrong with the address.
    pub fn new(url: &str) -> Result<Links, String> {
        Ok(Links { first: Arc::new(FirstServer::of(url)?), nodes: PerProcess::new() })
    }

    /// Closes the connections. Who still waits for an answer keeps one.
    pub fn disconnect(&self) {
        let nodes = std::mem::take(&mut *self.nodes.lock());
        drop(nodes);
    }

    /// Runs a function with the server of a limit ("": any server). The function runs again
    ///
    /// * if it certainly had no effect, because the limit is elsewhere;
    /// * if a connection that was open before has been lost, or was silent while there may be another server.
    ///
    /// For a caller that waits for a start, it runs until there is a server.
    pub fn with<R>(
        &self,
        limit: &str,
        patience: Duration,
        ask: impl Fn(&mut Node) -> RedisResult<R>,
    ) -> RedisResult<R> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed()).max(MIN);
        // The node of a one-time redirection.
        let mut once: Option<HostPort> = None;
        let mut turns = 0;
        loop {
            match self.ask(limit, &mut once, &left, &ask) {
                Attempt::Answer(answer) => return Ok(answer),
                Attempt::Failed(error) => return Err(error),
                Attempt::Later(error) if left() <= SOON => return Err(error),
                Attempt::Later(_) => std::thread::sleep(SOON),
                // A cycle of redirections ends after some turns.
                Attempt::Again if turns < 64 && left() > MIN => turns += 1,
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
        let at = once.take().or_else(|| self.node_of(limit));
        let link = self.link(&at);
        let (opened, was_open) = match self.open(&link, at.as_ref(), Deadline::after(left())) {
            Ok(opened) => opened,
            Err(error) => return self.unreached(limit, at, error),
        };
        // A server that is silent may have a successor, which needs time, too. (A caller with little time has no reason to
        // take the connection from the others.)
        let deadline = Deadline::after(left());
        let first_part = Some(deadline.shared_by(2))
            .filter(|part| was_open && (at.is_some() || self.may_find_another()) && part.left() >= SILENCE);
        let mut node = Node { asking: is_sent, ..Node::of(&opened, first_part.unwrap_or(deadline)) };
        let error = match ask(&mut node) {
            Ok(answer) => return Attempt::Answer(answer),
            Err(error) => error,
        };
        let pipe = &opened.connection.pipe;
        let ErrorKind::Server(kind) = error.kind() else {
            if !error.is_io_error() {
                return Attempt::Failed(error);
            }
            if first_part.is_some() {
                pipe.end("the server was silent");
            }
            if !pipe.is_whole() {
                link.give_up(&opened);
            }
            return match () {
                () if left() <= MIN => Attempt::Failed(error),
                () if was_open => Attempt::Again,
                () => outlasting(error),
            };
        };
        match (kind, error.redirect_node()) {
            (ServerErrorKind::Moved, Some((to, _))) => {
                self.nodes.lock().routes.insert(limit.to_owned(), to.to_owned());
                Attempt::Again
            }
            (ServerErrorKind::Ask, Some((to, _))) => {
                *once = Some(to.to_owned());
                Attempt::Again
            }
            // Some of its keys are migrating to another node.
            (ServerErrorKind::TryAgain, _) => Attempt::Later(error),
            // It is no longer the primary; the present one must be found.
            (ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown, _) => {
                link.give_up(&opened);
                self.nodes.lock().routes.remove(limit);
                if self.may_find_another() { Attempt::Later(error) } else { Attempt::Failed(error) }
            }
            // It was restarted, and reads its data.
            (ServerErrorKind::BusyLoading, _) => outlasting(error),
            _ => Attempt::Failed(error),
        }
    }

    fn link(&self, at: &Option<HostPort>) -> NodeLink {
        let mut nodes = self.nodes.lock();
        match nodes.links.get(at) {
            Some(link) => link.clone(),
            None => nodes.links.entry(at.clone()).or_default().clone(),
        }
    }

    /// Returns the connection to the first server or to a node, and whether it was open before.
    fn open(&self, link: &NodeLink, at: Option<&HostPort>, deadline: Deadline) -> RedisResult<(Arc<Opened>, bool)> {
        let (first, to) = (self.first.clone(), at.cloned());
        link.get(deadline, move |deadline| connect(&first, to.as_ref(), deadline)).map_err(|failed| match failed {
            Unopened::Failed(error) => error,
            Unopened::TimedOut => silent(at.cloned().unwrap_or_else(|| self.first.host())).into(),
        })
    }

    /// Returns whether another primary can be found through Sentinels or other nodes.
    fn may_find_another(&self) -> bool {
        matches!(*self.first, FirstServer::Sentinels(..))
    }

    /// A node of a cluster that does not answer may have a successor that the other nodes know.
    fn unreached<R>(&self, limit: &str, at: Option<HostPort>, error: RedisError) -> Attempt<R> {
        self.nodes.lock().routes.remove(limit);
        let is_password_wrong = matches!(error.kind(), ErrorKind::AuthenticationFailed);
        match at {
            _ if is_password_wrong => Attempt::Failed(error),
            Some(_) => Attempt::Later(error),
            None if self.may_find_another() => Attempt::Later(error),
            None => {
                let other = self.nodes.lock().routes.values().next().cloned();
                match other {
                    // That node answers, or is forgotten.
                    Some(other) => {
                        drop(self.nodes.lock().routes.insert(limit.to_owned(), other));
                        Attempt::Again
                    }
                    None => outlasting(error),
                }
            }
        }
    }

    /// The node to which requests of a limit are sent; `None`: the first server.
    pub fn node_of(&self, limit: &str) -> Option<HostPort> {
        self.nodes.lock().routes.get(limit).cloned()
    }

    /// Sends requests of a limit to another node from now on, if this answer says so.
    pub fn follow(&self, limit: &str, answer: &RedisError) -> bool {
        let is_moved = answer.kind() == ServerErrorKind::Moved.into();
        let to = answer.redirect_node().filter(|_| is_moved).map(|(to, _)| to.to_owned());
        to.is_some_and(|to| self.nodes.lock().routes.insert(limit.to_owned(), to.clone()) != Some(to))
    }

    /// Returns whether that run of a server is a primary of the cluster, has been one since its start, and has the
    /// limit. If so, everything that was there has come here.
    pub fn is_there(&self, limit: &str, run: u64, patience: Duration) -> RedisResult<bool> {
        let began = Instant::now();
        let left = || patience.saturating_sub(began.elapsed()).max(MIN);
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
            let (deadline, at) = (Deadline::after(left()), Some(at));
            let Ok((opened, _)) = self.open(&self.link(&at), at.as_ref(), deadline) else { continue };
            if opened.run == run && has_always_been_primary(&mut Node::of(&opened, deadline))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A failure that may be short is no answer yet for a caller that waits for a start.
fn outlasting<R>(error: RedisError) -> Attempt<R> {
    if MayWait::outlasts() { Attempt::Later(error) } else { Attempt::Failed(error) }
}

/// Connects to the first server or to a node.
fn connect(first: &FirstServer, at: Option<&HostPort>, deadline: Deadline) -> RedisResult<Opened> {
    let (server, is_found) = match (first, at) {
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
    let deadline = if may_have_successor { deadline.shared_by(2) } else { deadline };
    let mut connection = Connection::open(&server, deadline)?;
    let server: String = redis::cmd("INFO").arg("server").query(&mut connection)?;
    // The run changes when a server is restarted or replaced; its data may be older then.
    let run = info_of(&server, "run_id:").and_then(|id| u64::from_str_radix(id.get(..13)?, 16).ok());
    if is_found {
        let replication: String = redis::cmd("INFO").arg("replication").query(&mut connection)?;
        if info_of(&replication, "role:") != Some("master") {
            return Err(
                (ServerErrorKind::ReadOnly.into(), "the server that the Sentinels name is not a primary").into()
            );
        }
    }
    let is_cluster = info_of(&server, "redis_mode:") == Some("cluster");
    Ok(Opened { connection, run: run.unwrap_or(1).max(1), is_cluster })
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
