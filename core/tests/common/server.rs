//! A server for a single test, of each kind in this build.
#![cfg_attr(not(any(feature = "redis", feature = "postgres")), allow(unused_variables, reason = "there is no kind"))]

#[cfg(feature = "postgres")]
use super::postgres::PostgresServer;
#[cfg(feature = "redis")]
use super::redis::RedisServer;
use std::path::{Path, PathBuf};

pub enum Server {
    #[cfg(feature = "redis")]
    Redis(RedisServer),
    #[cfg(feature = "postgres")]
    Postgres(PostgresServer),
}

impl Server {
    /// One server of each kind, one after the other.
    pub fn each(name: &str) -> impl Iterator<Item = Server> {
        (0..KINDS.len()).map(move |kind| Self::start(kind, name))
    }

    fn start(kind: usize, name: &str) -> Server {
        KINDS[kind](&format!("{name}-{kind}"))
    }

    /// The same, with clocks that can be set.
    pub fn each_with_clock(name: &str) -> impl Iterator<Item = Server> {
        let kinds: &[fn(&str) -> Server] = &[
            #[cfg(feature = "redis")]
            |name| Server::Redis(RedisServer::with_clock(name)),
            #[cfg(feature = "postgres")]
            |name| Server::Postgres(PostgresServer::start(name)),
        ];
        kinds.iter().enumerate().map(move |(kind, start)| start(&format!("{name}-{kind}")))
    }

    /// Makes its clock show this much more, or less, than the time. (On Postgres, the library's schema must be there.)
    pub fn set_clock(&self, by_us: i64) {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(ref server) => server.set_clock(by_us),
            #[cfg(feature = "postgres")]
            Server::Postgres(ref server) => {
                let time = "date_part('epoch', clock_timestamp() - '2024-01-01T00:00:00Z'::timestamptz) * 1000000";
                drop(server.command(&format!(
                    "CREATE OR REPLACE FUNCTION workglow_limit.clock() RETURNS bigint LANGUAGE sql VOLATILE AS \
                     'SELECT ({})::bigint + {by_us}'",
                    time.replace('\'', "''")
                )));
            }
        }
    }

    /// The scheme in its addresses.
    pub fn kind(&self) -> &'static str {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(_) => "redis",
            #[cfg(feature = "postgres")]
            Server::Postgres(_) => "postgres",
        }
    }

    #[cfg(feature = "postgres")]
    pub fn postgres(&mut self) -> &mut PostgresServer {
        match self {
            Server::Postgres(server) => server,
            #[cfg(feature = "redis")]
            Server::Redis(_) => panic!("another kind"),
        }
    }

    pub fn url(&self) -> String {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(ref server) => server.url(),
            #[cfg(feature = "postgres")]
            Server::Postgres(ref server) => server.url(),
        }
    }

    /// The address for a store whose starts are all decided by the server.
    pub fn direct_url(&self) -> String {
        let url = self.url();
        format!("{url}{}grants=never", if url.contains('?') { '&' } else { '?' })
    }

    /// How many connections the first process opens that uses it.
    pub fn connections(&self) -> u64 {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(_) => 1,
            // One for decisions, and one on which the schema is created.
            #[cfg(feature = "postgres")]
            Server::Postgres(_) => 2,
        }
    }

    /// An unused part of the server; there are many.
    pub fn new_database(&self) -> String {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(ref server) => server.new_database(),
            #[cfg(feature = "postgres")]
            Server::Postgres(ref server) => server.new_database(),
        }
    }

    /// Removes all limits.
    pub fn forget_all(&self) {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(ref server) => assert_eq!(server.command("FLUSHALL"), "+OK"),
            #[cfg(feature = "postgres")]
            Server::Postgres(ref server) => server.forget_all(),
        }
    }

    pub fn socket(&self) -> PathBuf {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(ref server) => server.socket(),
            #[cfg(feature = "postgres")]
            Server::Postgres(ref server) => server.socket(),
        }
    }

    /// A socket in a directory, and the address of a server that listens there.
    pub fn by_way_of(&self, directory: &Path, number: usize) -> (PathBuf, String) {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(_) => {
                let socket = directory.join(number.to_string());
                let url = format!("redis+unix://{}", socket.display());
                (socket, url)
            }
            #[cfg(feature = "postgres")]
            Server::Postgres(_) => {
                let port = 6_000 + number;
                let place = format!("host={}&port={port}&user=postgres", directory.display());
                (directory.join(format!(".s.PGSQL.{port}")), format!("postgres:///postgres?{place}"))
            }
        }
    }

    /// Returns a function that sends signals to all processes of the server. (A stopped server does not report which
    /// they are.)
    pub fn signals(&self) -> Box<dyn Fn(i32) + '_> {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(ref server) => {
                let pid = server.pid();
                // SAFETY: plain call; the server lives as long as this.
                Box::new(move |signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0))
            }
            #[cfg(feature = "postgres")]
            Server::Postgres(ref server) => Box::new(|signal| drop(server.signal(signal))),
        }
    }

    /// Makes the server lose its starts, in a way that callers can detect.
    pub fn lose_starts(&self) {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(ref server) => drop(server.command("FLUSHALL")),
            // Like a standby that takes over without having received anything for long.
            #[cfg(feature = "postgres")]
            Server::Postgres(ref server) => drop(server.command(
                // In the lock order of the library.
                "BEGIN; DELETE FROM workglow_limit.logs; DELETE FROM workglow_limit.starts; DELETE FROM workglow_limit.sites; \
                 UPDATE workglow_limit.limits SET run = 'another', booted = NULL; COMMIT",
            )),
        }
    }

    /// Closes the connections of other clients.
    pub fn close_connections(&self) {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(ref server) => assert!(server.command("CLIENT KILL TYPE normal SKIPME yes").starts_with(':')),
            #[cfg(feature = "postgres")]
            Server::Postgres(ref server) => {
                let others = "application_name = 'workglow-limit'";
                let ended =
                    server.command(&format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"));
                assert!(ended.contains('t'), "{ended}");
                super::wait_until("the connections have ended", || {
                    server.command(&format!("SELECT count(*) FROM pg_stat_activity WHERE {others}")) == "0"
                });
            }
        }
    }
}

/// The constructors of each kind.
pub const KINDS: &[fn(&str) -> Server] = &[
    #[cfg(feature = "redis")]
    |name| Server::Redis(RedisServer::start(name)),
    #[cfg(feature = "postgres")]
    |name| Server::Postgres(PostgresServer::start(name)),
];

/// Returns whether a server decides at this address.
pub fn is_served(url: &str) -> bool {
    !url.starts_with("memory:") && !url.starts_with("sqlite:")
}
