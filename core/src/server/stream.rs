//! A connection to a server.
//!
//! Its reads and writes end at a deadline, even in the middle of an answer. A signal does not end them earlier. Once the
//! connection is shared (`pipe.rs`), they do not wait at all.
//!
//! A process may fork at any time, because there is no runtime, and no descriptor in addition to the socket. A forked
//! child may drop its parent's connection, because dropping it sends nothing.

use crate::fork::without_signals;
#[cfg(any(feature = "postgres", feature = "tls"))]
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
#[cfg(any(feature = "postgres", feature = "tls"))]
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest timeout of a system call. Zero would mean no timeout.
const MIN: Duration = Duration::from_millis(1);

/// The end of a call's time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    pub fn after(patience: Duration) -> Deadline {
        // Some timeouts are longer than any clock.
        Deadline(Instant::now() + patience.min(Duration::from_secs(86_400 * 366)))
    }

    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// The end of the first of several attempts, which leaves the others their share of the time: it may be in vain.
    pub fn shared_by(self, attempts: usize) -> Deadline {
        Deadline::after(self.left() / attempts as u32)
    }
}

/// The error of a server that does not answer in time.
pub(super) fn silent(server: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("{server} did not answer"))
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Ends all waiting: reads and writes fail if they would block. Returns the socket's number.
    fn never_wait(&self) -> io::Result<RawFd> {
        match self {
            Socket::Tcp(socket) => socket.set_nonblocking(true).map(|()| socket.as_raw_fd()),
            Socket::Unix(socket) => socket.set_nonblocking(true).map(|()| socket.as_raw_fd()),
        }
    }

    /// Sets the timeout of reads and writes.
    fn wait_for(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout.max(MIN));
        match self {
            Socket::Tcp(socket) => socket.set_read_timeout(timeout).and_then(|()| socket.set_write_timeout(timeout)),
            Socket::Unix(socket) => socket.set_read_timeout(timeout).and_then(|()| socket.set_write_timeout(timeout)),
        }
    }
}

/// A socket whose reads and writes wait until a deadline.
pub(super) struct Timed {
    socket: Socket,
    /// The server's address.
    peer: String,
    /// `None`: they do not wait.
    deadline: Option<Deadline>,
    /// The present timeout of its reads and writes.
    timeout: Duration,
}

impl Timed {
    fn new(socket: Socket, peer: String, deadline: Deadline) -> Timed {
        Timed { socket, peer, deadline: Some(deadline), timeout: Duration::MAX }
    }

    /// Reads or writes. Setting the system's timeout costs two system calls, so it stays as it is while it is about
    /// right.
    fn in_time<R>(&mut self, mut call: impl FnMut(&mut Socket) -> io::Result<R>) -> io::Result<R> {
        let Some(deadline) = self.deadline else { return call(&mut self.socket) };
        loop {
            let left = deadline.left();
            if left == Duration::ZERO {
                return Err(silent(&self.peer));
            }
            if self.timeout > left + MIN || self.timeout < left / 2 {
                self.socket.wait_for(left)?;
                self.timeout = left;
            }
            match call(&mut self.socket) {
                // The system restarts no call that has a timeout after a signal.
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                answer => return answer,
            }
        }
    }
}

impl Read for Timed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.in_time(|socket| match socket {
            Socket::Tcp(socket) => socket.read(to),
            Socket::Unix(socket) => socket.read(to),
        })
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.in_time(|socket| match socket {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket) => socket.write(bytes),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) enum Stream {
    Plain(Timed),
    #[cfg(any(feature = "postgres", feature = "tls"))]
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

impl Stream {
    /// Connects to the first address of a host that answers.
    pub fn tcp(name: &str, port: u16, deadline: Deadline) -> io::Result<Stream> {
        let mut last = io::Error::other(format!("{name} has no address"));
        let addresses = resolved(name, port, deadline)?;
        for (i, address) in addresses.iter().enumerate() {
            let this = deadline.shared_by(addresses.len() - i);
            match TcpStream::connect_timeout(address, this.left().max(MIN)) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    let peer = format!("{name}:{port}");
                    return Ok(Stream::Plain(Timed::new(Socket::Tcp(socket), peer, deadline)));
                }
                Err(e) if e.kind() == ErrorKind::TimedOut => last = silent(format_args!("{name}:{port}")),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects to a socket in the file system. This blocks only if the server's queue is full, but then for ever,
    /// unless a write timeout is set before.
    pub fn unix(path: &Path, deadline: Deadline) -> io::Result<Stream> {
        // SAFETY: an all-zero address is valid.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let name = path.as_os_str().as_bytes();
        // The last byte stays 0.
        if name.len() >= address.sun_path.len() {
            let what = format!("{} is too long for a socket", path.display());
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        address.sun_path.iter_mut().zip(name).for_each(|(to, byte)| *to = *byte as libc::c_char);
        // SAFETY: plain call.
        let number = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is a new socket with no other owner.
        let socket = unsafe { UnixStream::from_raw_fd(number) };
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        let mut timed = Timed::new(Socket::Unix(socket), path.display().to_string(), deadline);
        let connected = timed.in_time(|_| {
            // SAFETY: the address outlives the call, and has the given length.
            match unsafe { libc::connect(number, (&raw const address).cast(), length) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
        connected.map_err(|e| match e.kind() {
            ErrorKind::TimedOut => e,
            kind => io::Error::new(kind, format!("{}: {e}", path.display())),
        })?;
        Ok(Stream::Plain(timed))
    }

    fn socket(&mut self) -> &mut Timed {
        match self {
            Stream::Plain(socket) => socket,
            #[cfg(any(feature = "postgres", feature = "tls"))]
            Stream::Tls(stream) => &mut stream.sock,
        }
    }

    /// Sets the deadline of the following reads and writes.
    #[cfg(feature = "postgres")]
    pub fn until(&mut self, deadline: Deadline) {
        self.socket().deadline = Some(deadline);
    }

    /// The server's address.
    pub fn peer(&self) -> &str {
        match self {
            Stream::Plain(socket) => &socket.peer,
            #[cfg(any(feature = "postgres", feature = "tls"))]
            Stream::Tls(stream) => &stream.sock.peer,
        }
    }

    /// Lets reads and writes wait no longer, and returns the socket to wait for.
    pub fn share(&mut self) -> io::Result<RawFd> {
        let socket = self.socket();
        socket.deadline = None;
        socket.socket.never_wait()
    }

    /// Wraps it in TLS.
    #[cfg(any(feature = "postgres", feature = "tls"))]
    pub fn protected(self, config: Arc<ClientConfig>, name: &str) -> io::Result<Stream> {
        let Stream::Plain(socket) = self else { return Ok(self) };
        let refuse = |cause: &dyn std::fmt::Display| {
            io::Error::new(ErrorKind::InvalidInput, format!("no TLS with {name}: {cause}"))
        };
        let server = ServerName::try_from(name.to_owned()).map_err(|e| refuse(&e))?;
        let connection = ClientConnection::new(config, server).map_err(|e| refuse(&e))?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Stream::Tls(Box::new(stream)))
    }
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(to),
            #[cfg(any(feature = "postgres", feature = "tls"))]
            Stream::Tls(stream) => stream.read(to),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            #[cfg(any(feature = "postgres", feature = "tls"))]
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            #[cfg(any(feature = "postgres", feature = "tls"))]
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// The trusted certificate authorities: those of a file, or of the system.
#[cfg(any(feature = "postgres", feature = "tls"))]
pub(super) fn roots(file: Option<&str>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(file) = file else {
        // Some certificates of a system may be unreadable; the others suffice.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    for certificate in CertificateDer::pem_file_iter(file).map_err(|e| format!("{file}: {e}"))? {
        let added = certificate.map_err(|e| e.to_string()).map(|certificate| roots.add(certificate));
        added.and_then(|added| added.map_err(|e| e.to_string())).map_err(|e| format!("{file}: {e}"))?;
    }
    if roots.is_empty() { Err(format!("{file}: it has no certificates")) } else { Ok(roots) }
}

/// The addresses of a name. The system's lookup has no timeout, so a thread does it, and is abandoned if it takes too
/// long.
fn resolved(name: &str, port: u16, deadline: Deadline) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(vec![(ip, port).into()]);
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let asked = name.to_owned();
    let thread = std::thread::Builder::new().name("workglow-limit".into());
    without_signals(|| {
        thread.spawn(move || {
            let found = (asked.as_str(), port).to_socket_addrs().map(Vec::from_iter);
            let _ = sender.send(found);
        })
    })?;
    let found = receiver.recv_timeout(deadline.left().max(MIN));
    let found = found.map_err(|_| silent(format_args!("the name server for {name}")))?;
    found.map_err(|e| io::Error::other(format!("{name}: {e}")))
}
