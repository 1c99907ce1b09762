//! The Redis protocol on a shared connection. `redis` writes and parses the messages. (Its own connections report a signal
//! as a failure, and know no deadline of a whole call.)

use super::address::Server;
use crate::server::pipe::{Pipe, Wire};
use crate::server::stream::{Deadline, Stream};
use redis::{
    ConnectionAddr, ConnectionLike, ErrorKind, Parser, ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult,
    Value,
};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;

/// What has come, and what was parsed of it.
pub(super) struct Resp {
    parser: Parser,
    came: Vec<u8>,
    /// The requests whose answers are to come, in that order.
    asked: VecDeque<Asked>,
}

/// A request: some commands, each of which has an answer.
struct Asked {
    number: u64,
    commands: usize,
    answers: Vec<Value>,
}

/// Reads what has come.
struct Came<'a> {
    bytes: &'a mut Vec<u8>,
    /// Whether more was wanted.
    ran_out: bool,
}

impl Read for Came<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            self.ran_out = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let length = to.len().min(self.bytes.len());
        to[..length].copy_from_slice(&self.bytes[..length]);
        self.bytes.drain(..length);
        Ok(length)
    }
}

impl Resp {
    fn new() -> Resp {
        Resp { parser: Parser::new(), came: Vec::new(), asked: VecDeque::new() }
    }

    fn next_value(&mut self) -> io::Result<Option<Value>> {
        loop {
            let mut came = Came { bytes: &mut self.came, ran_out: false };
            match self.parser.parse_value(&mut came) {
                // Not an answer to a request.
                Ok(Value::Push { .. }) => {}
                Ok(answer) => return Ok(Some(answer)),
                // The parser keeps what it has read.
                Err(_) if came.ran_out => return Ok(None),
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
            }
        }
    }
}

impl Wire for Resp {
    /// The bytes of some commands, and their number.
    type Request<'r> = (&'r [u8], usize);
    type Answer = Vec<Value>;

    fn ask(&mut self, number: u64, (bytes, commands): (&[u8], usize), out: &mut Vec<u8>) {
        out.extend_from_slice(bytes);
        self.asked.push_back(Asked { number, commands, answers: Vec::with_capacity(commands) });
    }

    fn withdraw(&mut self, _: u64) -> bool {
        false
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.came.extend_from_slice(bytes);
    }

    fn next(&mut self, _: &mut Vec<u8>) -> io::Result<Option<(u64, Vec<Value>)>> {
        while let Some(answer) = self.next_value()? {
            let Some(oldest) = self.asked.front_mut() else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer that nobody has asked for"));
            };
            oldest.answers.push(answer);
            if oldest.answers.len() == oldest.commands {
                return Ok(self.asked.pop_front().map(|Asked { number, answers, .. }| (number, answers)));
            }
        }
        Ok(None)
    }
}

/// A shared connection for one call.
#[derive(Clone)]
pub(super) struct Connection {
    pub pipe: Arc<Pipe<Resp>>,
    pub deadline: Deadline,
}

impl Connection {
    /// Connects and logs in.
    pub fn open(server: &Server, deadline: Deadline) -> RedisResult<Connection> {
        let stream = match server.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = Stream::tcp(host, *port, deadline)?;
                match &server.tls {
                    #[cfg(feature = "tls")]
                    Some(tls) => stream.protected(tls.clone(), host)?,
                    _ => stream,
                }
            }
            ConnectionAddr::Unix(path) => Stream::unix(path, deadline)?,
            other => return Err((ErrorKind::InvalidClientConfig, "no such connection", other.to_string()).into()),
        };
        let pipe = Arc::new(Pipe::new(stream, Resp::new())?);
        let mut connection = Connection { pipe, deadline };
        connection.log_in(server.info.redis_settings())?;
        Ok(connection)
    }

    fn log_in(&mut self, login: &RedisConnectionInfo) -> RedisResult<()> {
        let mut setup = redis::pipe();
        match (login.protocol(), login.password()) {
            (ProtocolVersion::RESP2, Some(password)) => drop(setup.cmd("AUTH").arg(login.username()).arg(password)),
            (ProtocolVersion::RESP2, None) => {}
            (_, Some(password)) => {
                let user = login.username().unwrap_or("default");
                setup.cmd("HELLO").arg(3).arg("AUTH").arg(user).arg(password);
            }
            (_, None) => drop(setup.cmd("HELLO").arg(3)),
        }
        if login.db() != 0 {
            setup.cmd("SELECT").arg(login.db());
        }
        if setup.is_empty() {
            return Ok(());
        }
        for (i, answer) in
            self.req_packed_commands(&setup.get_packed_pipeline(), 0, setup.len())?.into_iter().enumerate()
        {
            let Value::ServerError(error) = answer else { continue };
            let error = RedisError::from(error);
            return Err(match login.password() {
                Some(_) if i == 0 => (ErrorKind::AuthenticationFailed, "the login failed", error.to_string()).into(),
                _ => error,
            });
        }
        Ok(())
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        Ok(self.pipe.ask((command, 1), self.deadline)?.remove(0))
    }

    fn req_packed_commands(&mut self, commands: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        Ok(self.pipe.ask((commands, offset + count), self.deadline)?.split_off(offset))
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_however_they_arrive() {
        let bytes = b"*3\r\n:1\r\n$5\r\nab\r\nc\r\n*1\r\n:-2\r\n>2\r\n+invalidate\r\n_\r\n-NOSCRIPT no\r\n+OK\r\n%1\r\n+k\r\n#t\r\n";
        let read = |pieces: usize| {
            let (mut resp, mut answers) = (Resp::new(), Vec::new());
            for piece in bytes.chunks(pieces) {
                resp.feed(piece);
                while let Some(answer) = resp.next_value().unwrap() {
                    answers.push(answer);
                }
            }
            answers
        };
        let whole = read(bytes.len());
        assert_eq!(whole.len(), 4, "{whole:?}");
        for pieces in 1..bytes.len() {
            assert_eq!(read(pieces), whole, "in pieces of {pieces}");
        }
        let mut resp = Resp::new();
        resp.feed(b"HTTP/1.1 400 Bad Request\r\n");
        assert_eq!(resp.next_value().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
