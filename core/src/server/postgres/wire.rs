//! A connection that speaks the Postgres protocol (version 3) over a blocking socket.
//!
//! `postgres-protocol` writes and parses the messages. The rest, which is here, is small: a call is one write and
//! usually one read.

use super::address::{Address, Host, Tls};
use super::value::Value;
use crate::server::stream::{Deadline, Stream};
use bytes::{Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::IsNull;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::backend::{ErrorFields, Message};
use postgres_protocol::message::frontend;
use std::io::{self, ErrorKind, Read, Write};

/// The longest accepted message of a server.
const LONGEST: usize = 16 << 20;

/// The reason why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server did not answer in time.
    Timeout(String),
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
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::Timeout(error.to_string()),
            ErrorKind::InvalidData | ErrorKind::InvalidInput => Failure::Nonsense(error.to_string()),
            _ => Failure::Lost(error.to_string()),
        }
    }
}

type WireResult<T> = Result<T, Failure>;

/// A row of an answer: bytes, or null.
pub(super) type Cells = Vec<Option<Bytes>>;

pub(super) struct Connection {
    stream: Stream,
    /// Received bytes that have not been parsed.
    came: BytesMut,
    out: BytesMut,
}

impl Connection {
    /// Connects to the first host that answers and meets the requirements.
    pub fn open(address: &Address, deadline: Deadline) -> WireResult<Connection> {
        let mut last = Failure::Nonsense("no host is named".into());
        for (i, host) in address.hosts.iter().enumerate() {
            let part = deadline.shared_by(address.hosts.len() - i).left();
            let this = Deadline::after(address.connect_timeout.map_or(part, |most| most.min(part)));
            match Self::open_host(address, host, this) {
                Ok(connection) => return Ok(connection),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    fn open_host(address: &Address, host: &Host, deadline: Deadline) -> WireResult<Connection> {
        let stream = match host {
            Host::Tcp(name, port) => Stream::tcp(name, *port, deadline)?,
            Host::Unix(path) => Stream::unix(path, deadline)?,
        };
        let (came, out) = (BytesMut::with_capacity(1024), BytesMut::with_capacity(1024));
        let mut connection = Connection { stream, came, out };
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
        self.stream.read_exact(&mut answer)?;
        match answer[0] {
            b'S' => {
                self.stream = self.stream.protected(super::tls::config(address, name)?, name)?;
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
        self.stream.until(deadline);
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(self.stream.flush()?)
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
            self.stream.until(deadline);
            match self.stream.read(&mut piece)? {
                0 => return Err(Failure::Lost("the server closed the connection".into())),
                length => self.came.extend_from_slice(&piece[..length]),
            }
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
