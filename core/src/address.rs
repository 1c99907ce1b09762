//! Store addresses.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// The kinds of stores in this build.
macro_rules! schemes {
    ($($more:literal)?) => {
        concat!("accepted are memory:, sqlite:PATH (sqlite:limits.db, sqlite:/var/lib/app/limits.db)" $(, ", ", $more)?)
    };
}

const SCHEMES: &str = match (cfg!(feature = "redis"), cfg!(feature = "postgres")) {
    (false, false) => schemes!(),
    (true, false) => schemes!("redis://HOST, rediss://HOST, redis+unix://PATH and redis+sentinel://HOST,HOST/NAME"),
    (false, true) => schemes!("postgres://HOST/DATABASE"),
    (true, true) => schemes!(
        "redis://HOST, rediss://HOST, redis+unix://PATH, redis+sentinel://HOST,HOST/NAME and postgres://HOST/DATABASE"
    ),
};

/// The place of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Memory,
    /// An absolute path.
    Sqlite(PathBuf),
    /// A server's address, which its client parses.
    Server(String),
}

/// An address without its password, for display. The password is before the host, or in the query of a socket's
/// address. A malformed address may have it elsewhere: what stands before the last `@`, or as a port, is not shown.
pub(crate) fn without_password(url: &str) -> String {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let is_secret = |field: &&str| field.starts_with("pass=") || field.starts_with("password=");
    let fields = query.split('&').filter(|field| !field.is_empty() && !is_secret(field));
    let shown =
        fields.enumerate().fold(place.to_owned(), |url, (i, field)| url + if i == 0 { "?" } else { "&" } + field);
    let start = scheme_end(&shown);
    match shown.rfind('@') {
        Some(at) if at >= start => format!("{}…{}", &shown[..start], &shown[at..]),
        Some(at) => format!("…{}", &shown[at..]),
        None => without_wrong_port(&shown, start),
    }
}

/// Returns where the scheme and its slashes end; 0 without a scheme.
fn scheme_end(url: &str) -> usize {
    let is_in_scheme = |c: char| c.is_ascii_alphanumeric() || c == '+';
    match url.split_once(':') {
        Some((scheme, rest)) if scheme.chars().all(is_in_scheme) => url.len() - rest.trim_start_matches('/').len(),
        _ => 0,
    }
}

/// `redis://user:secret` lacks its host, so that the password stands where a port would.
fn without_wrong_port(url: &str, start: usize) -> String {
    let (host, path) = url[start..].split_at(url[start..].find(['/', '?']).unwrap_or(url.len() - start));
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok();
    match host.split_once(':') {
        Some((host, port)) if !host.starts_with('[') && !host.contains(',') && !is_port(port) => {
            format!("{}{host}:…{path}", &url[..start])
        }
        _ => url.to_owned(),
    }
}

/// Removes one of our parameters from a server's address.
pub(crate) fn take_parameter(url: &str, name: &str) -> (String, Option<String>) {
    let Some((place, query)) = url.split_once('?') else { return (url.to_owned(), None) };
    let is_it = |field: &&str| field.split_once('=').is_some_and(|(found, _)| found == name);
    let value = query.split('&').find(is_it).and_then(|field| Some(field.split_once('=')?.1.to_owned()));
    let others: Vec<&str> = query.split('&').filter(|field| !is_it(field)).collect();
    (if others.is_empty() { place.to_owned() } else { format!("{place}?{}", others.join("&")) }, value)
}

/// The absolute path of a file. A relative path is resolved against the current directory now, and `~/` is the home
/// directory.
fn file(path: &str) -> std::result::Result<PathBuf, String> {
    if path.is_empty() || path.ends_with('/') || path.contains('\0') || path == "~" {
        return Err("the path of a file is needed".into());
    }
    let home = || std::env::home_dir().filter(|home| home.is_absolute());
    let path = match path.split_once('/') {
        Some(("~", rest)) => home().ok_or("~ is the home directory, but HOME is not an absolute path")?.join(rest),
        Some((other, _)) if other.starts_with('~') => {
            return Err(format!(
                "{other} means a home directory to shells only: write ~/PATH for your own, or its path"
            ));
        }
        _ => path.into(),
    };
    match std::path::absolute(path) {
        Ok(path) => Ok(same_name(&path)),
        Err(e) => Err(format!("the current directory cannot be read: {e}")),
    }
}

/// The absolute path of a server's parameter `lane`.
pub(crate) fn lane(path: &str) -> Result<PathBuf> {
    let expected = |why| format!("the path of a file ({why})");
    file(path).map_err(|why| Error::invalid("lane", format_args!("\"{path}\""), expected(why)))
}

/// Parses an address. `sqlite:rel.db`, `sqlite:~/home.db`, `sqlite:/abs.db` and `sqlite:///abs.db` name files. A
/// relative path is resolved against the current directory now, not at the first use.
pub(crate) fn parse(url: &str) -> Result<Address> {
    // Addresses other than a file's may contain a password.
    let shown = || if url.starts_with("sqlite:") { url.to_owned() } else { without_password(url) };
    let refuse = |reason: String| Err(Error::InvalidUrl { url: shown(), reason });
    let Some((scheme, rest)) = url.split_once(':') else {
        return refuse(format!("there is no scheme; {SCHEMES}"));
    };
    match scheme {
        "memory" if matches!(rest, "" | "//") => Ok(Address::Memory),
        "memory" => refuse("memory: takes no path".into()),
        "sqlite" => {
            let path = match rest.strip_prefix("//") {
                Some(path) if path.starts_with('/') || path.is_empty() => path,
                Some(_) => return refuse("sqlite:// takes no host: write sqlite:PATH or sqlite:///PATH".into()),
                None => rest,
            };
            if path == ":memory:" {
                return refuse("a limit that only this process sees is memory:".into());
            }
            file(path).map(Address::Sqlite).or_else(refuse)
        }
        "redis" | "rediss" | "redis+unix" | "unix" | "redis+sentinel" if cfg!(feature = "redis") => {
            Ok(Address::Server(url.to_owned()))
        }
        "postgres" | "postgresql" if cfg!(feature = "postgres") => Ok(Address::Server(url.to_owned())),
        _ => refuse(format!("unknown scheme \"{}\"; {SCHEMES}", without_password(scheme))),
    }
}

/// The path without symbolic links, as far as it exists. A database has one lane, by whatever path it is reached.
pub(crate) fn same_name(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(Ok(dir)), Some(name)) => dir.join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_spellings_name_the_same_file() {
        let dir = std::env::current_dir().unwrap().canonicalize().unwrap();
        let here = Ok(Address::Sqlite(dir.join("limits.db")));
        assert_eq!(parse("sqlite:limits.db"), here);
        assert_eq!(parse(&format!("sqlite:{}/limits.db", dir.display())), here);
        assert_eq!(parse(&format!("sqlite://{}/limits.db", dir.display())), here);
        assert_eq!(parse("memory:"), Ok(Address::Memory));
    }

    #[test]
    fn a_tilde_means_the_home_directory() {
        let home = std::env::home_dir().unwrap();
        assert_eq!(parse("sqlite:~/none/limits.db"), Ok(Address::Sqlite(home.join("none/limits.db"))));
        assert_eq!(lane("~/none/lane"), Ok(home.join("none/lane")));
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        for (literal, name) in [("sqlite:~limits.db", "~limits.db"), ("sqlite:./~/limits.db", "~/limits.db")] {
            assert_eq!(parse(literal), Ok(Address::Sqlite(here.join(name))));
        }
        assert!(parse("sqlite:~root/limits.db").unwrap_err().to_string().contains("write ~/PATH for your own"));
    }

    #[test]
    fn an_invalid_address_lists_the_valid_ones() {
        for bad in [
            "",
            "limits.db",
            "mysql://x",
            "sqlite:",
            "sqlite://",
            "sqlite:x/",
            "sqlite:~",
            "sqlite://~/x.db",
            "memory:x",
        ] {
            let text = parse(bad).unwrap_err().to_string();
            assert!(text.contains(&format!("\"{bad}\"")), "{text}");
        }
        assert!(parse("mysql://x").unwrap_err().to_string().contains("sqlite:PATH"));
        assert!(parse("sqlite::memory:").unwrap_err().to_string().contains("memory:"));
        assert!(!parse("secret@host:6379").unwrap_err().to_string().contains("secret"));
        assert_eq!(without_password("redis://user:12345678"), "redis://user:…");
        assert_eq!(without_password("redis://host:6379/1"), "redis://host:6379/1");
    }
}
