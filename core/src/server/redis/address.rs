//! Parses the addresses of servers.

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError, RedisResult};

/// `host:port`
pub(super) type HostPort = String;

/// How the first server is found.
pub(super) enum FirstServer {
    /// At this address.
    HostPort(ConnectionInfo),
    /// By asking one of these Sentinels for this name; with the credentials of the server.
    Sentinels(Vec<ConnectionInfo>, String, ConnectionInfo),
}

impl FirstServer {
    /// Parses an address. `Err`: what is wrong with it.
    pub fn of(url: &str) -> Result<FirstServer, String> {
        match url.strip_prefix("redis+sentinel://") {
            Some(rest) => sentinels(rest),
            None => Ok(FirstServer::HostPort(info(url)?)),
        }
    }

    /// The servers and the database.
    pub fn place(&self) -> String {
        match self {
            FirstServer::HostPort(info) => format!("{}/{}", info.addr(), info.redis_settings().db()),
            FirstServer::Sentinels(sentinels, name, info) => {
                let hosts: Vec<String> = sentinels.iter().map(|sentinel| sentinel.addr().to_string()).collect();
                format!("{}/{name}/{}", hosts.join(","), info.redis_settings().db())
            }
        }
    }
}

/// The same credentials at another address. (A node that does not know its own host reports none.)
pub(super) fn at_another(info: &ConnectionInfo, at: &str) -> RedisResult<ConnectionInfo> {
    let wrong = || RedisError::from((ErrorKind::Parse, "no address", at.to_owned()));
    let (host, port) = at.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let host = host.trim_matches(['[', ']']).to_owned();
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls { host: first, insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host: if host.is_empty() { first } else { host }, port, insecure, tls_params }
        }
        ConnectionAddr::Tcp(first, _) => ConnectionAddr::Tcp(if host.is_empty() { first } else { host }, port),
        _ => ConnectionAddr::Tcp(host, port),
    };
    Ok(info.clone().set_addr(addr))
}

/// `[user:password@]host[:port],host[:port]…/NAME[/db]`
fn sentinels(rest: &str) -> Result<FirstServer, String> {
    const FORM: &str = "write redis+sentinel://[user:password@]host:port,host:port/NAME/db";
    let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(login, rest)| (login, rest));
    let (hosts, path) = rest.split_once('/').ok_or_else(|| format!("there is no name of a primary: {FORM}"))?;
    let (name, db) = path.split_once('/').unwrap_or((path, ""));
    if name.is_empty() || name.contains('?') || db.contains('?') {
        return Err(format!("there is no name of a primary: {FORM}"));
    }
    let at = if login.is_empty() { String::new() } else { format!("{login}@") };
    let hosts: Vec<String> =
        hosts.split(',').map(|host| if has_port(host) { host.to_owned() } else { format!("{host}:26379") }).collect();
    let servers = info(&format!("redis://{at}{}/{db}", hosts[0]))?;
    let found = hosts.iter().map(|host| info(&format!("redis://{host}/"))).collect::<Result<_, String>>()?;
    Ok(FirstServer::Sentinels(found, name.to_owned(), servers))
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

/// The connection parameters of an address. With TLS, `ca`, `cert` and `key` name files: the trusted authorities, and
/// this client's certificate.
fn info(url: &str) -> Result<ConnectionInfo, String> {
    check_parameters(url)?;
    #[cfg(feature = "tls")]
    if url.starts_with("rediss://") {
        return through_tls(url);
    }
    url.into_connection_info().map_err(|e| e.to_string())
}

/// Refuses a parameter that has no meaning, such as a misspelt one: the client ignores it.
fn check_parameters(url: &str) -> Result<(), String> {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let known: &[&str] = match place.split_once(':').map_or("", |(scheme, _)| scheme) {
        "rediss" => &["protocol", "ca", "cert", "key"],
        "unix" | "redis+unix" => &["protocol", "db", "user", "pass"],
        _ => &["protocol"],
    };
    let query = query.split('#').next().unwrap_or_default();
    for field in query.split('&').filter(|field| !field.is_empty()) {
        let name = field.split_once('=').map_or(field, |(name, _)| name);
        if !known.contains(&name) {
            return Err(format!("unknown parameter \"{name}\"; known are {}, lane and grants", known.join(", ")));
        }
    }
    Ok(())
}

#[cfg(feature = "tls")]
fn through_tls(url: &str) -> Result<ConnectionInfo, String> {
    // Another part of the program may have installed a provider; then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let file = |name: &str| {
        let field = query.split('&').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        field.map(|path| std::fs::read(path).map_err(|e| format!("{path}: {e}"))).transpose()
    };
    let ours = ["ca=", "cert=", "key="];
    let others: Vec<&str> = query
        .split('&')
        .filter(|field| !field.is_empty() && !ours.iter().any(|name| field.starts_with(name)))
        .collect();
    let place = if others.is_empty() { place.to_owned() } else { format!("{place}?{}", others.join("&")) };
    let client_tls = match (file("cert")?, file("key")?) {
        (Some(client_cert), Some(client_key)) => Some(redis::ClientTlsConfig { client_cert, client_key }),
        (None, None) => None,
        _ => return Err("cert and key belong together".into()),
    };
    let certificates = redis::TlsCertificates { client_tls, root_cert: file("ca")? };
    let info = place.into_connection_info().map_err(|e| e.to_string())?;
    if certificates.client_tls.is_none() && certificates.root_cert.is_none() {
        return Ok(info);
    }
    let client = redis::Client::build_with_tls(info, certificates).map_err(|e| e.to_string())?;
    Ok(client.get_connection_info().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_login_is_no_part_of_the_place_and_the_database_is() {
        let place = |url: &str| FirstServer::of(url).unwrap_or_else(|reason| panic!("{url}: {reason}")).place();
        for (one, same, others) in [
            ("redis://a:x@host", "redis://b:y@host:6379/0", ["redis://a:x@host/1", "redis://a:x@other"]),
            ("unix:///s@a?pass=x", "redis+unix:///s@a?db=0&user=b&pass=y", ["unix:///s@a?db=2", "unix:///t@a"]),
            (
                "redis+sentinel://a:x@h,i/main",
                "redis+sentinel://h:26379,i/main/0",
                ["redis+sentinel://h,i/main/1", "redis+sentinel://h,i/second"],
            ),
        ] {
            assert_eq!(place(one), place(same));
            others.iter().for_each(|other| assert_ne!(place(one), place(other), "{one} {other}"));
        }
    }

    #[test]
    fn an_unknown_parameter_is_refused() {
        for (url, name) in [
            ("redis://host/0?timeout=3", "timeout"),
            ("redis://host/0?protocol=resp3&pool", "pool"),
            ("redis+unix:///run/redis.sock?db=1&password=x", "password"),
            ("rediss://host/?cafile=/a", "cafile"),
        ] {
            let reason = FirstServer::of(url).err().expect("it is refused");
            assert!(reason.contains(&format!("unknown parameter \"{name}\"; known are protocol")), "{url}: {reason}");
        }
        for url in ["redis://host/0?protocol=resp3", "redis://host", "redis+unix:///run/redis.sock?db=1&pass=x&user=y"]
        {
            assert!(FirstServer::of(url).is_ok(), "{url}");
        }
    }
}
