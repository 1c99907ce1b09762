//! A server of a test's own, of each kind that this build knows.

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
    /// One of each kind, the one after the other.
    pub fn each(name: &str) -> impl Iterator<Item = Server> {
        (0..KINDS.len()).map(move |kind| Self::start(kind, name))
    }

    fn start(kind: usize, name: &str) -> Server {
        KINDS[kind](&format!("{name}-{kind}"))
    }

    /// What it is called in addresses.
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

    /// The same for a store each of whose starts the server decides.
    pub fn direct_url(&self) -> String {
        let url = self.url();
        format!("{url}{}grants=never", if url.contains('?') { '&' } else { '?' })
    }

    /// A part of it that nobody has used: there are many.
    pub fn new_database(&self) -> String {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(ref server) => server.new_database(),
            #[cfg(feature = "postgres")]
            Server::Postgres(ref server) => server.new_database(),
        }
    }

    /// Nobody has used any limit.
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

    /// What sends signals to all of its processes. (One that stands still does not say which they are.)
    pub fn signals(&self) -> Box<dyn Fn(i32) + '_> {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(ref server) => {
                let pid = server.pid();
                // SAFETY: plain call; the server is there as long as this.
                Box::new(move |signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0))
            }
            #[cfg(feature = "postgres")]
            Server::Postgres(ref server) => Box::new(|signal| server.signal(signal)),
        }
    }

    /// It has lost what was started, and whoever asks it finds that it may have.
    pub fn lose_starts(&self) {
        match *self {
            #[cfg(feature = "redis")]
            Server::Redis(ref server) => drop(server.command("FLUSHALL")),
            // As a standby that takes over, but has heard of nothing for long.
            #[cfg(feature = "postgres")]
            Server::Postgres(ref server) => drop(server.command(
                // (In this order others lock them, too.)
                "BEGIN; DELETE FROM workglow_limit.logs; DELETE FROM workglow_limit.starts; DELETE FROM workglow_limit.sites; \
                 UPDATE workglow_limit.limits SET run = 'another', booted = NULL; COMMIT",
            )),
        }
    }

    /// Closes the connections that others have to it.
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
                super::wait_until("they have ended", || {
                    server.command(&format!("SELECT count(*) FROM pg_stat_activity WHERE {others}")) == "0"
                });
            }
        }
    }
}

/// How one of each kind is started.
pub const KINDS: &[fn(&str) -> Server] = &[
    #[cfg(feature = "redis")]
    |name| Server::Redis(RedisServer::start(name)),
    #[cfg(feature = "postgres")]
    |name| Server::Postgres(PostgresServer::start(name)),
];

/// Does a server decide at this address?
pub fn is_served(url: &str) -> bool {
    !url.starts_with("memory:") && !url.starts_with("sqlite:")
}
