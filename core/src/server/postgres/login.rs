//! Opening a connection: to the first suitable host, with TLS if it is wanted, and the login.

use super::address::{Address, Host, Tls};
use super::wire::{Failure, Messages, Request, WireResult, nonsense, refused};
use crate::server::pipe::{Pipe, Wire};
use crate::server::stream::{Deadline, Stream};
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use std::io::{Read, Write};

/// Connects to the first host that answers and meets the requirements.
pub(super) fn open(address: &Address, deadline: Deadline) -> WireResult<Pipe<Messages>> {
    let mut last = Failure::Nonsense("no host is named".into());
    for (i, host) in address.hosts.iter().enumerate() {
        let part = deadline.shared_by(address.hosts.len() - i).left();
        let this = Deadline::after(address.connect_timeout.map_or(part, |most| most.min(part)));
        match open_host(address, host, this) {
            Ok(connection) => return Ok(connection),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

fn open_host(address: &Address, host: &Host, deadline: Deadline) -> WireResult<Pipe<Messages>> {
    let stream = match host {
        Host::Tcp(name, port) => Stream::tcp(name, *port, deadline)?,
        Host::Unix(path) => Stream::unix(path, deadline)?,
    };
    let mut login = Login { stream, came: Messages::default(), out: BytesMut::with_capacity(1024), deadline };
    if let Host::Tcp(name, _) = host {
        login = login.protected(address, name)?;
    }
    login.log_in(address)?;
    let pipe = Pipe::new(login.stream, login.came)?;
    if address.has_to_write {
        let question = "SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on'";
        let rows = pipe.ask(&Request::Statement(question.into(), Vec::new()).into(), deadline)??;
        if rows.first().and_then(|row| row.first()).is_none_or(|cell| cell.as_deref() != Some(&[0])) {
            return Err(Failure::Lost("the server is read-only".into()));
        }
    }
    Ok(pipe)
}

/// A connection that only this caller uses.
struct Login {
    stream: Stream,
    came: Messages,
    out: BytesMut,
    deadline: Deadline,
}

impl Login {
    /// Adds TLS, if it is required or possible.
    fn protected(mut self, address: &Address, name: &str) -> WireResult<Login> {
        if address.tls == Tls::Disable {
            return Ok(self);
        }
        frontend::ssl_request(&mut self.out);
        self.send()?;
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

    fn log_in(&mut self, address: &Address) -> WireResult<()> {
        let always = [
            ("user", address.user.as_str()),
            ("database", &address.database),
            ("application_name", &address.application),
            ("client_encoding", "UTF8"),
        ];
        let options = address.options.iter().map(|options| ("options", options.as_str()));
        frontend::startup_message(always.into_iter().chain(options), &mut self.out)?;
        self.send()?;
        let password = || {
            let none = || Failure::Nonsense("the server asks for a password, and the address has none".into());
            address.password.as_deref().map(str::as_bytes).ok_or_else(none)
        };
        let mut scram = None;
        loop {
            match self.next()? {
                Message::AuthenticationOk => {}
                Message::AuthenticationCleartextPassword => {
                    frontend::password_message(password()?, &mut self.out)?;
                    self.send()?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(address.user.as_bytes(), password()?, body.salt());
                    frontend::password_message(hash.as_bytes(), &mut self.out)?;
                    self.send()?;
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
                    self.send()?;
                }
                Message::AuthenticationSaslContinue(body) => {
                    let scram = scram.as_mut().ok_or_else(nonsense)?;
                    scram.update(body.data())?;
                    frontend::sasl_response(scram.message(), &mut self.out)?;
                    self.send()?;
                }
                // A server that does not know the password cannot send this.
                Message::AuthenticationSaslFinal(body) => scram.as_mut().ok_or_else(nonsense)?.finish(body.data())?,
                Message::BackendKeyData(_) | Message::ParameterStatus(_) | Message::NoticeResponse(_) => {}
                Message::ReadyForQuery(_) => return Ok(()),
                Message::ErrorResponse(body) => return Err(refused(body.fields())?.0),
                _ => return Err(Failure::Nonsense("the server requires an unsupported authentication method".into())),
            }
        }
    }

    fn send(&mut self) -> WireResult<()> {
        self.stream.until(self.deadline);
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(self.stream.flush()?)
    }

    fn next(&mut self) -> WireResult<Message> {
        loop {
            if let Some(message) = self.came.message()? {
                return Ok(message);
            }
            let mut piece = [0; 4096];
            self.stream.until(self.deadline);
            match self.stream.read(&mut piece)? {
                0 => return Err(Failure::Lost("the server closed the connection".into())),
                length => self.came.feed(&piece[..length]),
            }
        }
    }
}
