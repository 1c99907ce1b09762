//! A connection that speaks the Postgres protocol (version 3) over a blocking socket.
//!
//! `postgres-protocol` writes and parses the messages. The rest, which is here, is small: a call is one write and
//! usually one read. In return, every call has a deadline, even in the middle of an answer. There is no runtime, no
//! thread and no descriptor in addition to the socket, so a process may fork at any time. Dropping a connection sends
//! nothing, so a forked child may drop its parent's.

use super::address::{Address, Host, Tls};
use super::value::Value;
use bytes::{Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::IsNull;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::backend::{ErrorFields, Message};
use postgres_protocol::message::frontend;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest accepted message of a server.
const LONGEST: usize = 16 << 20;

/// The shortest timeout of a call. Zero would mean no timeout.
const LEAST: Duration = Duration::from_millis(1);

/// The reason why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    Timeout,
    /// The connection was lost, or could not be established.
    Lost(String),
    /// An error reported by the server: a five-character code, and a message.
    Refused {
        code: String,
        message: String,
        /// Whether the server has closed the connection.
        is_fatal: bool,
    },
    /// The answer makes no sense, or requires something unsupported.
    Nonsense(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::Timeout,
            ErrorKind::InvalidData | ErrorKind::InvalidInput => Failure::Nonsense(error.to_string()),
            _ => Failure::Lost(error.to_string()),
        }
    }
}

type WireResult<T> = Result<T, Failure>;

/// A row of an answer: bytes, or null.
pub(super) type Cells = Vec<Option<Bytes>>;

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<super::tls::Protected>),
}

impl Stream {
    /// Sets the timeout of reads and writes.
    fn wait_for(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout.max(LEAST));
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout)),
            Stream::Tcp(stream) => stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout)),
            Stream::Tls(stream) => {
                stream.sock.set_read_timeout(timeout).and_then(|()| stream.sock.set_write_timeout(timeout))
            }
        }
    }

    fn io<R>(&mut self, reads: impl FnOnce(&mut dyn ReadWrite) -> io::Result<R>) -> io::Result<R> {
        match self {
            Stream::Tcp(stream) => reads(stream),
            Stream::Unix(stream) => reads(stream),
            Stream::Tls(stream) => reads(&mut **stream),
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

pub(super) struct Connection {
    stream: Stream,
    /// The present timeout of its reads and writes.
    timeout: Duration,
    /// Received bytes that have not been parsed.
    came: BytesMut,
    out: BytesMut,
}

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
}

impl Connection {
    /// Connects to the first host that answers and meets the requirements.
    pub fn open(address: &Address, deadline: Deadline) -> WireResult<Connection> {
        let mut last = Failure::Nonsense("no host is named".into());
        for (i, host) in address.hosts.iter().enumerate() {
            // Each remaining host gets a share of the time, so that a silent one does not use all of it.
            let part = deadline.left() / (address.hosts.len() - i) as u32;
            let this = Deadline::after(address.connect_timeout.map_or(part, |most| most.min(part)));
            match Self::open_host(address, host, this) {
                Ok(connection) => return Ok(connection),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    fn open_host(address: &Address, host: &Host, deadline: Deadline) -> WireResult<Connection> {
        let timeout = deadline.left().max(LEAST);
        let stream = match host {
            Host::Tcp(name, port) => Stream::Tcp(tcp(name, *port, deadline)?),
            Host::Unix(path) => Stream::Unix(unix(path, timeout)?),
        };
        stream.wait_for(timeout)?;
        let (came, out) = (BytesMut::with_capacity(1024), BytesMut::with_capacity(1024));
        let mut connection = Connection { stream, timeout, came, out };
        if let Host::Tcp(name, _) = host {
            connection = connection.protected(address, name, deadline)?;
        }
        connection.log_in(address, deadline)?;
        if address.has_to_write {
            let rows = connection.ask(
                "SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on'",
                &[],
                deadline,
            )?;
            if rows.first().and_then(|row| row.first()).is_none_or(|cell| cell.as_deref() != Some(&[0])) {
                return Err(Failure::Lost("the server is read-only".into()));
            }
        }
        Ok(connection)
    }

    /// Adds TLS, if it is required or possible.
    fn protected(mut self, address: &Address, name: &str, deadline: Deadline) -> WireResult<Connection> {
        if address.tls == Tls::Disable {
            return Ok(self);
        }
        frontend::ssl_request(&mut self.out);
        self.send(deadline)?;
        let mut answer = [0];
        in_time(&mut self.stream, &mut self.timeout, deadline, |stream| stream.read(&mut answer))?;
        match answer[0] {
            b'S' => {
                let Stream::Tcp(stream) = self.stream else { unreachable!("only TCP connections use TLS") };
                self.stream = Stream::Tls(Box::new(super::tls::protect(stream, address, name)?));
                Ok(self)
            }
            b'N' if address.tls == Tls::Prefer => Ok(self),
            _ => Err(Failure::Nonsense(format!("{name} offers no TLS"))),
        }
    }

    fn log_in(&mut self, address: &Address, deadline: Deadline) -> WireResult<()> {
        let always = [
            ("user", address.user.as_str()),
            ("database", &address.database),
            ("application_name", &address.application),
            ("client_encoding", "UTF8"),
        ];
        let options = address.options.iter().map(|options| ("options", options.as_str()));
        frontend::startup_message(always.into_iter().chain(options), &mut self.out)?;
        self.send(deadline)?;
        let password = || {
            let none = || Failure::Nonsense("the server asks for a password, and the address has none".into());
            address.password.as_deref().map(str::as_bytes).ok_or_else(none)
        };
        let mut scram = None;
        loop {
            match self.next(deadline)? {
                Message::AuthenticationOk => {}
                Message::AuthenticationCleartextPassword => {
                    frontend::password_message(password()?, &mut self.out)?;
                    self.send(deadline)?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(address.user.as_bytes(), password()?, body.salt());
                    frontend::password_message(hash.as_bytes(), &mut self.out)?;
                    self.send(deadline)?;
                }
                Message::AuthenticationSasl(body) => {
                    if !body.mechanisms().any(|name| Ok(name == sasl::SCRAM_SHA_256))? {
                        return Err(Failure::Nonsense(
                            "the server requires an unsupported authentication method".into(),
                        ));
                    }
                    let begun = sasl::ScramSha256::new(password()?, sasl::ChannelBinding::unsupported());
                    let begun = scram.insert(begun);
                    frontend::sasl_initial_response(sasl::SCRAM_SHA_256, begun.message(), &mut self.out)?;
                    self.send(deadline)?;
                }
                Message::AuthenticationSaslContinue(body) => {
                    let scram = scram.as_mut().ok_or_else(nonsense)?;
                    scram.update(body.data())?;
                    frontend::sasl_response(scram.message(), &mut self.out)?;
                    self.send(deadline)?;
                }
                // A server that does not know the password cannot send this.
                Message::AuthenticationSaslFinal(body) => scram.as_mut().ok_or_else(nonsense)?.finish(body.data())?,
                Message::BackendKeyData(_) | Message::ParameterStatus(_) | Message::NoticeResponse(_) => {}
                Message::ReadyForQuery(_) => return Ok(()),
                Message::ErrorResponse(body) => return Err(refused(body.fields())?),
                _ => return Err(Failure::Nonsense("the server requires an unsupported authentication method".into())),
            }
        }
    }

    /// Runs one unnamed statement in a single packet, so that any session behind a pooler can serve it.
    pub fn ask(&mut self, statement: &str, values: &[Value], deadline: Deadline) -> WireResult<Vec<Cells>> {
        frontend::parse("", statement, values.iter().map(|value| value.kind), &mut self.out)?;
        let write = |value: &Value, out: &mut BytesMut| match &value.bytes {
            Some(bytes) => {
                out.extend_from_slice(bytes);
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        };
        // Everything in binary format.
        if frontend::bind("", "", [1], values, write, [1], &mut self.out).is_err() {
            return Err(Failure::Nonsense("the statement is too long".into()));
        }
        frontend::execute("", 0, &mut self.out)?;
        frontend::sync(&mut self.out);
        self.answer(deadline)
    }

    /// Runs a script, in one transaction.
    pub fn run(&mut self, script: &str, deadline: Deadline) -> WireResult<()> {
        frontend::query(script, &mut self.out)?;
        self.answer(deadline).map(drop)
    }

    fn answer(&mut self, deadline: Deadline) -> WireResult<Vec<Cells>> {
        self.send(deadline)?;
        let (mut rows, mut failure) = (Vec::new(), None);
        loop {
            match self.next(deadline)? {
                Message::DataRow(body) => {
                    let bytes = body.buffer_bytes();
                    let cells = body.ranges().map(|range| Ok(range.map(|range| bytes.slice(range))));
                    rows.push(cells.collect()?);
                }
                Message::ErrorResponse(body) => {
                    let refused = refused(body.fields())?;
                    if matches!(refused, Failure::Refused { is_fatal: true, .. }) {
                        return Err(refused);
                    }
                    failure = Some(refused);
                }
                Message::ReadyForQuery(body) if body.status() == b'I' => return failure.map_or(Ok(rows), Err),
                Message::ParseComplete
                | Message::BindComplete
                | Message::CommandComplete(_)
                | Message::EmptyQueryResponse
                | Message::RowDescription(_)
                | Message::NoticeResponse(_)
                | Message::NotificationResponse(_)
                | Message::ParameterStatus(_) => {}
                _ => return Err(nonsense()),
            }
        }
    }

    fn send(&mut self, deadline: Deadline) -> WireResult<()> {
        let Connection { stream, timeout, out, .. } = self;
        while !out.is_empty() {
            match in_time(stream, timeout, deadline, |stream| stream.write(out))? {
                0 => return Err(Failure::Lost("the connection was closed".into())),
                written => drop(out.split_to(written)),
            }
        }
        in_time(stream, timeout, deadline, |stream| stream.flush())
    }

    fn next(&mut self, deadline: Deadline) -> WireResult<Message> {
        loop {
            if let [_, a, b, c, d, ..] = self.came[..]
                && u32::from_be_bytes([a, b, c, d]) as usize > LONGEST
            {
                return Err(nonsense());
            }
            if let Some(message) = Message::parse(&mut self.came)? {
                return Ok(message);
            }
            let mut piece = [0; 4096];
            match in_time(&mut self.stream, &mut self.timeout, deadline, |stream| stream.read(&mut piece))? {
                0 => return Err(Failure::Lost("the server closed the connection".into())),
                length => self.came.extend_from_slice(&piece[..length]),
            }
        }
    }
}

/// Reads or writes until the deadline. Setting the system's timeout costs two system calls, so it stays as it is while
/// it is about right.
fn in_time<R>(
    stream: &mut Stream,
    timeout: &mut Duration,
    deadline: Deadline,
    mut call: impl FnMut(&mut dyn ReadWrite) -> io::Result<R>,
) -> WireResult<R> {
    loop {
        let left = deadline.left();
        if left == Duration::ZERO {
            return Err(Failure::Timeout);
        }
        if *timeout > left + LEAST || *timeout < left / 2 {
            stream.wait_for(left)?;
            *timeout = left;
        }
        match stream.io(&mut call) {
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            answer => return Ok(answer?),
        }
    }
}

fn nonsense() -> Failure {
    Failure::Nonsense("the server does not speak the Postgres protocol".into())
}

fn refused(mut fields: ErrorFields<'_>) -> WireResult<Failure> {
    let (mut code, mut message, mut is_fatal) = (String::new(), String::new(), false);
    while let Some(field) = fields.next()? {
        let text = String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => code = text,
            b'M' => message = text,
            b'V' => is_fatal = text != "ERROR",
            _ => {}
        }
    }
    Ok(Failure::Refused { code, message, is_fatal })
}

/// Connects to the first address of a host that answers.
fn tcp(name: &str, port: u16, deadline: Deadline) -> WireResult<TcpStream> {
    let mut last = Failure::Lost(format!("{name} has no address"));
    for address in resolved(name, port, deadline)? {
        match TcpStream::connect_timeout(&address, deadline.left().max(LEAST)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

/// Connects to a socket in the file system. This blocks only if the server's queue is full, but then for ever, unless a
/// write timeout is set before.
fn unix(path: &Path, timeout: Duration) -> WireResult<UnixStream> {
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = path.as_os_str().as_bytes();
    // The last byte stays 0.
    if name.len() >= address.sun_path.len() {
        return Err(Failure::Nonsense(format!("{} is too long for a socket", path.display())));
    }
    address.sun_path.iter_mut().zip(name).for_each(|(to, byte)| *to = *byte as libc::c_char);
    // SAFETY: plain call.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: it is a new socket with no other owner.
    let stream = unsafe { UnixStream::from_raw_fd(socket) };
    stream.set_write_timeout(Some(timeout))?;
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address outlives the call, and has the given length.
    again(|| match unsafe { libc::connect(socket, (&raw const address).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    })
    .map_err(|e| match Failure::from(e) {
        Failure::Lost(cause) => Failure::Lost(format!("{}: {cause}", path.display())),
        failure => failure,
    })?;
    Ok(stream)
}

/// Repeats a call that was interrupted by a signal.
fn again(mut call: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            answer => return answer,
        }
    }
}

/// The addresses of a name. The system's lookup has no timeout, so a thread does it, and is abandoned if it takes too
/// long.
fn resolved(name: &str, port: u16, deadline: Deadline) -> WireResult<Vec<SocketAddr>> {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(vec![(ip, port).into()]);
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let asked = name.to_owned();
    std::thread::Builder::new().name("workglow-limit".into()).spawn(move || {
        let found = (asked.as_str(), port).to_socket_addrs().map(Vec::from_iter);
        let _ = sender.send(found);
    })?;
    let found = receiver.recv_timeout(deadline.left().max(LEAST)).map_err(|_| Failure::Timeout)?;
    found.map_err(|e| Failure::Lost(format!("{name}: {e}")))
}
