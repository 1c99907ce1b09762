//! A connection that speaks the Redis protocol over a blocking socket. `redis` writes and parses the messages. (Its own
//! connections report a signal as a failure, and know no deadline of a whole call.)

use super::address::Server;
use crate::server::stream::{Deadline, Stream};
use redis::{
    ConnectionAddr, ConnectionLike, ErrorKind, Parser, ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult,
    Value,
};
use std::io::Write;

pub(super) struct Connection {
    stream: Stream,
    parser: Parser,
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
        let mut connection = Connection { stream, parser: Parser::new() };
        connection.log_in(server.info.redis_settings())?;
        Ok(connection)
    }

    /// Sets the deadline of the following requests.
    pub fn until(&mut self, deadline: Deadline) {
        self.stream.until(deadline);
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

    fn answer(&mut self) -> RedisResult<Value> {
        loop {
            match self.parser.parse_value(&mut self.stream)? {
                // Not an answer to a request.
                Value::Push { .. } => {}
                answer => return Ok(answer),
            }
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        self.stream.write_all(command)?;
        self.stream.flush()?;
        self.answer()
    }

    fn req_packed_commands(&mut self, commands: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        self.stream.write_all(commands)?;
        self.stream.flush()?;
        let mut answers = (0..offset + count).map(|_| self.answer()).collect::<RedisResult<Vec<Value>>>()?;
        Ok(answers.split_off(offset))
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
