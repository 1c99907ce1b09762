//! Parses the addresses of servers.

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError, RedisResult};

/// `host:port`
pub(super) type HostPort = String;

#[cfg(feature = "tls")]
pub(super) type Tls = std::sync::Arc<rustls::ClientConfig>;
#[cfg(not(feature = "tls"))]
pub(super) type Tls = std::convert::Infallible;

/// A server: its address, the login, and the protection of connections.
#[derive(Clone)]
pub(super) struct Server {
    pub info: ConnectionInfo,
    pub tls: Option<Tls>,
}

/// How the first server is found.
pub(super) enum FirstServer {
    /// At this address.
    HostPort(Server),
    /// By asking one of these Sentinels for this name; with the credentials of the server.
    Sentinels(Vec<Server>, String, Server),
}

impl FirstServer {
    /// Parses an address. `Err`: what is wrong with it.
    pub fn of(url: &str) -> Result<FirstServer, String> {
        match url.strip_prefix("redis+sentinel://") {
            Some(rest) => sentinels(rest),
            None => Ok(FirstServer::HostPort(Server::of(url)?)),
        }
    }

    /// The host, for display.
    pub fn host(&self) -> String {
        match self {
            FirstServer::HostPort(server) => server.info.addr().to_string(),
            FirstServer::Sentinels(_, name, _) => format!("the primary of \"{name}\""),
        }
    }

    /// The servers and the database.
    pub fn place(&self) -> String {
        match self {
            FirstServer::HostPort(server) => format!("{}/{}", server.info.addr(), server.info.redis_settings().db()),
            FirstServer::Sentinels(sentinels, name, server) => {
                let hosts: Vec<String> = sentinels.iter().map(|sentinel| sentinel.info.addr().to_string()).collect();
                format!("{}/{name}/{}", hosts.join(","), server.info.redis_settings().db())
            }
        }
    }
}

impl Server {
    /// Parses an address. With TLS, `ca`, `cert` and `key` name files: the trusted authorities, and this client's
    /// certificate.
    fn of(url: &str) -> Result<Server, String> {
        check_parameters(url)?;
        let plain = |url: &str| url.into_connection_info().map_err(|e| e.to_string());
        match url.strip_prefix("rediss://") {
            #[cfg(feature = "tls")]
            Some(rest) => {
                let (place, tls) = tls(rest)?;
                Ok(Server { info: plain(&format!("redis://{place}"))?, tls: Some(tls) })
            }
            #[cfg(not(feature = "tls"))]
            Some(_) => Err("this build does not support TLS".into()),
            None => Ok(Server { info: plain(url)?, tls: None }),
        }
    }

    /// The same at another address. (A node that does not know its own host reports none.)
    pub fn at_another(&self, at: &str) -> RedisResult<Server> {
        let wrong = || RedisError::from((ErrorKind::Parse, "no address", at.to_owned()));
        let (host, port) = at.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let host = match (host.trim_matches(['[', ']']), self.info.addr()) {
            ("", ConnectionAddr::Tcp(first, _)) => first.clone(),
            (host, _) => host.to_owned(),
        };
        Ok(Server { info: self.info.clone().set_addr(ConnectionAddr::Tcp(host, port)), tls: self.tls.clone() })
    }

    /// The same with another's login. (Only servers with limits have databases.)
    pub fn with_login_of(&self, other: &Server) -> Server {
        let login = other.info.redis_settings().clone().set_db(0);
        Server { info: self.info.clone().set_redis_settings(login), tls: self.tls.clone() }
    }
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
    let servers = Server::of(&format!("redis://{at}{}/{db}", hosts[0]))?;
    let found = hosts.iter().map(|host| Server::of(&format!("redis://{host}/"))).collect::<Result<_, String>>()?;
    Ok(FirstServer::Sentinels(found, name.to_owned(), servers))
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
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
            return Err(format!(
                "unknown parameter \"{name}\"; known are {}, lane, grants and loses",
                known.join(", ")
            ));
        }
    }
    Ok(())
}

/// An address without its files, and the settings of TLS.
#[cfg(feature = "tls")]
fn tls(url: &str) -> Result<(String, Tls), String> {
    use crate::server::stream::roots;
    use rustls::crypto::{CryptoProvider, ring};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let file = |name: &str| query.split('&').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    let ours = ["ca=", "cert=", "key="];
    let others: Vec<&str> = query
        .split('&')
        .filter(|field| !field.is_empty() && !ours.iter().any(|name| field.starts_with(name)))
        .collect();
    let place = if others.is_empty() { place.to_owned() } else { format!("{place}?{}", others.join("&")) };

    let certificates = |path: &str| {
        let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        all.map_err(|e| format!("{path}: {e}"))
    };
    // Another part of the program may have installed a provider.
    let provider = CryptoProvider::get_default().cloned().unwrap_or_else(|| ring::default_provider().into());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots(file("ca"))?);
    let config = match (file("cert"), file("key")) {
        (Some(cert), Some(key)) => {
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| format!("{key}: {e}"))?;
            config.with_client_auth_cert(certificates(cert)?, secret).map_err(|e| format!("{cert}: {e}"))?
        }
        (None, None) => config.with_no_client_auth(),
        _ => return Err("cert and key belong together".into()),
    };
    Ok((place, config.into()))
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
