//! Addresses: `postgres://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE?NAME=VALUE&…`, with the meaning that Postgres
//! gives them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The place where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    Tcp(String, u16),
    /// A socket.
    Unix(PathBuf),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Tcp(name, port) => write!(f, "{name}:{port}"),
            Host::Unix(path) => path.display().fmt(f),
        }
    }
}

/// The required protection of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tls {
    Disable,
    /// With TLS if the server supports it.
    Prefer,
    /// With TLS, to any server.
    Require,
    /// With TLS, to a server with a certificate from a trusted authority.
    VerifyCa,
    /// As `VerifyCa`, and the certificate must name the server.
    VerifyFull,
}

/// A parsed address.
#[derive(Debug, Clone)]
pub(super) struct Address {
    /// The hosts, of which the first that answers is used. If required, it must be writable.
    pub hosts: Vec<Host>,
    pub user: String,
    pub password: Option<String>,
    pub database: String,
    pub tls: Tls,
    /// A file with the trusted certificates; `None` for those that the system trusts.
    pub roots: Option<String>,
    /// Whether the server must be writable.
    pub has_to_write: bool,
    /// How long to try each host.
    pub connect_timeout: Option<Duration>,
    pub application: String,
    pub options: Option<String>,
}

const PARAMETERS: &str = "host, port, user, password, dbname, sslmode, sslrootcert, connect_timeout, target_session_attrs, application_name and options";

impl Address {
    /// Parses an address. `Err`: what is wrong with it.
    pub fn parse(url: &str) -> Result<Address, String> {
        let rest = url.split_once("://").map(|(_, rest)| rest).ok_or("it needs the form postgres://HOST/DATABASE")?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = place.split_once('/').unwrap_or((place, ""));
        let (who, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = who.split_once(':').map_or((who, None), |(user, password)| (user, Some(password)));
        let mut user = decoded(user)?;
        let mut password = password.map(decoded).transpose()?;
        let mut database = decoded(database)?;
        let mut places = Vec::new();
        for host in hosts.split(',').filter(|_| !hosts.is_empty()) {
            // An IPv6 address is in brackets.
            let (name, port) = match host.rsplit_once(':') {
                Some((name, port)) if !port.contains(']') => (name, port),
                _ => (host, ""),
            };
            let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
            places.push((decoded(name)?, port.to_owned()));
        }
        let (mut tls, mut roots, mut has_to_write, mut connect_timeout) = (None, None, false, None);
        let (mut application, mut options) = ("workglow-limit".to_owned(), None);
        for field in query.split('&').filter(|field| !field.is_empty()) {
            let (name, value) = field.split_once('=').ok_or_else(|| format!("\"{field}\" has no value"))?;
            let value = decoded(value)?;
            let refuse = |expected: &str| Err(format!("{name} is \"{value}\": expected {expected}"));
            match name {
                "host" => places = value.split(',').map(|host| (host.to_owned(), String::new())).collect(),
                "port" => {
                    let ports: Vec<&str> = value.split(',').collect();
                    if places.is_empty() {
                        places.push((String::new(), String::new()));
                    }
                    if ports.len() != 1 && ports.len() != places.len() {
                        return refuse("one port, or one for each host");
                    }
                    for (i, (_, port)) in places.iter_mut().enumerate() {
                        *port = ports[i.min(ports.len() - 1)].to_owned();
                    }
                }
                "user" => user = value,
                "password" => password = Some(value),
                "dbname" => database = value,
                "sslmode" => {
                    tls = Some(match value.as_str() {
                        "disable" => Tls::Disable,
                        "allow" | "prefer" => Tls::Prefer,
                        "require" => Tls::Require,
                        "verify-ca" => Tls::VerifyCa,
                        "verify-full" => Tls::VerifyFull,
                        _ => return refuse("disable, prefer, require, verify-ca or verify-full"),
                    });
                }
                "sslrootcert" => roots = (value != "system").then_some(value),
                "connect_timeout" => match value.parse() {
                    Ok(seconds) => connect_timeout = (seconds > 0).then(|| Duration::from_secs(seconds)),
                    Err(_) => return refuse("seconds"),
                },
                "target_session_attrs" => match value.as_str() {
                    "any" => has_to_write = false,
                    "read-write" | "primary" => has_to_write = true,
                    _ => return refuse("any, read-write or primary"),
                },
                "application_name" => application = value,
                "options" => options = Some(value),
                "loses" => return Err("loses is for Redis: Postgres loses no start that it has admitted".into()),
                _ => return Err(format!("unknown parameter \"{name}\"; known are {PARAMETERS}")),
            }
        }
        if places.is_empty() {
            places.push((String::new(), String::new()));
        }
        let hosts = places.iter().map(|(host, port)| host_of(host, port)).collect::<Result<Vec<_>, _>>()?;
        if user.is_empty() {
            user = std::env::var("USER").ok().filter(|user| !user.is_empty()).ok_or("it names no user")?;
        }
        if database.is_empty() {
            database.clone_from(&user);
        }
        if [&user, &database, &application].into_iter().chain(&options).any(|text| text.contains('\0')) {
            return Err("it contains a NUL".into());
        }
        // Of several hosts, one is the primary and the others follow it.
        has_to_write |= hosts.len() > 1;
        let tls = tls.unwrap_or(Tls::Prefer);
        Ok(Address { hosts, user, password, database, tls, roots, has_to_write, connect_timeout, application, options })
    }

    /// The hosts, as a text.
    pub fn servers(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        hosts.join(",")
    }

    /// The servers and the database. (The schema is always the same.)
    pub fn place(&self) -> String {
        format!("{}/{}", self.servers(), self.database)
    }
}

/// The place where a server listens: a port, or the socket in a directory.
fn host_of(host: &str, port: &str) -> Result<Host, String> {
    let port: u16 = match port {
        "" => 5432,
        port => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("\"{port}\" is not a port"))?,
    };
    let directory = match host {
        // Debian's directory for sockets, and the one of all other systems.
        "" if std::path::Path::new("/run/postgresql").is_dir() => "/run/postgresql",
        "" => "/tmp",
        host if host.starts_with('/') => host,
        host => return Ok(Host::Tcp(host.to_owned(), port)),
    };
    Ok(Host::Unix(format!("{directory}/.s.PGSQL.{port}").into()))
}

/// Decodes the `%XX` of a text.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        bytes.push(match byte {
            b'%' => match (digit(), digit()) {
                (Some(a), Some(b)) => (a * 16 + b) as u8,
                _ => return Err("% must be followed by two hexadecimal digits".into()),
            },
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_parsed() {
        let all = Address::parse("postgresql://me:a%40b@one,two:6000,[::1]:7/limits?connect_timeout=3").unwrap();
        let tcp = |host: &str, port| Host::Tcp(host.into(), port);
        assert_eq!(all.hosts, [tcp("one", 5432), tcp("two", 6000), tcp("::1", 7)]);
        assert_eq!((all.user.as_str(), all.password.as_deref(), all.database.as_str()), ("me", Some("a@b"), "limits"));
        assert!(all.has_to_write && all.connect_timeout == Some(Duration::from_secs(3)));
        let socket = Address::parse("postgres:///limits?host=/run/postgresql&user=me&port=5433").unwrap();
        assert_eq!(socket.hosts, [Host::Unix("/run/postgresql/.s.PGSQL.5433".into())]);
        assert_eq!(Address::parse("postgres://me@one").unwrap().database, "me");
    }

    #[test]
    fn the_login_is_no_part_of_the_place_and_the_database_is() {
        let place = |url: &str| Address::parse(url).unwrap().place();
        for same in ["postgres://alice:x@h", "postgres://bob@h/alice", "postgresql://h:5432?dbname=alice&user=carol"] {
            assert_eq!(place(same), "h:5432/alice");
        }
        assert_eq!(place("postgres://bob@h"), "h:5432/bob");
        assert_eq!(place("postgres:///d?host=/a,b&port=1,2&user=bob"), "/a/.s.PGSQL.1,b:2/d");
    }

    #[test]
    fn an_invalid_address_is_refused_with_its_fault() {
        for (bad, why) in [
            ("postgres:me", "postgres://HOST"),
            ("postgres://me@host:port", "\"port\" is not a port"),
            ("postgres://me@host:0", "\"0\" is not a port"),
            ("postgres://me@host/?sslmode=maybe", "verify-full"),
            ("postgres://me@host/?ssl=true", "known are host"),
            ("postgres://me@host/?host", "no value"),
            ("postgres://m%e@host/", "hexadecimal"),
            ("postgres://me@a,b/?port=1,2,3", "one for each host"),
            ("postgres://me@host/a%00b", "NUL"),
        ] {
            let reason = Address::parse(bad).unwrap_err();
            assert!(reason.contains(why), "{bad}: {reason}");
        }
    }
}
