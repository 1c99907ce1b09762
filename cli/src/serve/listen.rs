//! The address on which the server listens.

use crate::failure::Failure;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// An address to listen on.
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Place {
    pub fn parse(text: &str) -> Result<Place, Failure> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(Failure::usage("listen is unix: without a path: expected unix:PATH")),
                path => Ok(Place::Unix(path.into())),
            };
        }
        let own = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        own.as_deref().unwrap_or(text).parse().map(Place::Tcp).map_err(|_| {
            Failure::usage(format!(
                "listen is {text:?}: expected an address with a port, such as 127.0.0.1:9464, [::1]:9464 or 0.0.0.0:9464, or unix:PATH"
            ))
        })
    }

    /// Returns whether only this machine can reach the address.
    pub fn is_own(&self) -> bool {
        match self {
            Place::Tcp(address) => is_loopback(address.ip()),
            Place::Unix(_) => true,
        }
    }

    pub fn ip(&self) -> IpAddr {
        match self {
            Place::Tcp(address) => address.ip(),
            Place::Unix(_) => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Binds the address. Connections are accepted after [`Listener::start`].
    pub fn bind(self) -> Result<Listener, Failure> {
        match self {
            Place::Tcp(address) => {
                let bound = std::net::TcpListener::bind(address).and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    Ok(Listener::Tcp(listener.local_addr()?, listener))
                });
                bound.map_err(|error| unbound(&address.to_string(), &error))
            }
            Place::Unix(path) => {
                let bound = bind_unix(&path).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
                match bound {
                    Ok(listener) => Ok(Listener::Unix(Socket(path), listener)),
                    Err(error) => Err(unbound(&format!("unix:{}", path.display()), &error)),
                }
            }
        }
    }
}

/// Returns whether this is a loopback address. `::ffff:127.0.0.1` is one, too.
pub fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn unbound(listen: &str, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => "another program uses this address; stop it, or choose another port with --listen",
        io::ErrorKind::PermissionDenied => {
            "this user may not use it (ports below 1024 usually need root); choose another with --listen"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; it may belong to another machine, or to a NAT in front of this one"
        }
        _ => "choose another address with --listen",
    };
    Failure::system(format!("listen is {listen}: {error}")).hint(hint)
}

/// Binds a socket for this user only. The socket of a killed server is replaced.
fn bind_unix(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    use std::os::unix::net::{UnixListener, UnixStream};
    let is_left = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if is_left {
        std::fs::remove_file(path)?;
    }
    // SAFETY: `umask` cannot fail. No other thread creates files yet.
    let umask = unsafe { libc::umask(0o177) };
    let bound = UnixListener::bind(path);
    // SAFETY: as above.
    unsafe { libc::umask(umask) };
    bound
}

/// A socket whose file is removed when the server ends.
#[derive(Debug)]
pub struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[derive(Debug)]
pub enum Listener {
    Tcp(SocketAddr, std::net::TcpListener),
    Unix(Socket, std::os::unix::net::UnixListener),
}

impl Listener {
    /// The URL on this machine.
    pub fn url(&self) -> String {
        match self {
            Listener::Tcp(address, _) => match address.ip() {
                ip if ip.is_unspecified() => {
                    format!("http://{}/", SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())))
                }
                _ => format!("http://{address}/"),
            },
            Listener::Unix(Socket(path), _) => format!("unix:{}:/", path.display()),
        }
    }

    /// Starts to accept connections. Needs a Tokio runtime.
    pub fn start(self) -> io::Result<Started> {
        Ok(match self {
            Listener::Tcp(_, listener) => Started::Tcp(tokio::net::TcpListener::from_std(listener)?),
            Listener::Unix(socket, listener) => Started::Unix(socket, tokio::net::UnixListener::from_std(listener)?),
        })
    }
}

pub trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

pub enum Started {
    Tcp(tokio::net::TcpListener),
    Unix(#[expect(dead_code, reason = "removes its file")] Socket, tokio::net::UnixListener),
}

/// The longest time for which written data may stay unacknowledged.
const UNREAD: Duration = Duration::from_secs(20);

impl Started {
    /// The next connection, and the name of its client.
    pub async fn accept(&self) -> io::Result<(Box<dyn Stream>, String)> {
        match self {
            Started::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                end_unread(stream.as_raw_fd());
                Ok((Box::new(stream), peer.ip().to_canonical().to_string()))
            }
            Started::Unix(_, listener) => {
                let (stream, _) = listener.accept().await?;
                let user = stream.peer_cred().map_or("a local user".to_owned(), |peer| format!("user {}", peer.uid()));
                Ok((Box::new(stream), user))
            }
        }
    }
}

/// Makes the kernel close a connection whose client does not read.
fn end_unread(stream: RawFd) {
    let ms = UNREAD.as_millis() as libc::c_uint;
    let size = size_of_val(&ms) as libc::socklen_t;
    // SAFETY: an open socket, and a value of that size. On failure, such a connection only stays open longer.
    unsafe { libc::setsockopt(stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, (&raw const ms).cast(), size) };
}
