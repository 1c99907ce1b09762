//! The Postgres protocol (version 3) on a shared connection. `postgres-protocol` writes and parses the messages.
//!
//! Decisions are made in *groups*. While one is on the way, the next ones are collected, and then sent as one statement. So a
//! transaction, with its wait for the server's disk, serves all callers that wait. A group waits for its locks in the order
//! of limits and keys, like all groups, so groups do not deadlock. It is one statement, not several in one transaction,
//! because a machine that was paused between two of them would hold the locks for as long.
//!
//! If a group fails, nothing of it has happened. Then each decision is made on its own, and one that fails is the only one. If it
//! waited too long for a lock, it is made limit by limit: each of its decisions alone could wait as long again.

use super::value::{Value, int};
use crate::server::pipe::Wire;
use bytes::{Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::{DataRowBody, ErrorFields, Message};
use postgres_protocol::message::frontend;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// The longest accepted message of a server.
const MAX_BYTES: usize = 16 << 20;

/// The most decisions of a group: it holds its locks for some ms. A group of that many does not wait for an earlier one.
const MAX_TOGETHER: usize = 64;

/// The code of a wait for a lock that was too long.
pub(super) const LOCKED: &str = "55P03";

/// The reason why there is no answer.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// The server did not answer in time.
    Timeout(String),
    /// The connection was lost, or could not be established.
    Lost(String),
    /// An error reported by the server: a five-character code, and a message.
    Refused { code: String, message: String },
    /// The answer makes no sense, or requires something unsupported.
    Nonsense(String),
}

impl Failure {
    pub fn has_code(&self, codes: &[&str]) -> bool {
        matches!(self, Failure::Refused { code, .. } if codes.contains(&code.as_str()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Timeout(reason) | Failure::Lost(reason) | Failure::Nonsense(reason) => reason.fmt(f),
            Failure::Refused { code, message } => write!(f, "{message} ({code})"),
        }
    }
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

pub(super) type WireResult<T> = Result<T, Failure>;

/// A row of an answer: bytes, or null.
pub(super) type Cells = Vec<Option<Bytes>>;

/// What a caller asks for.
#[derive(Debug)]
pub(super) enum Request {
    /// A call of a function that returns one value, which may be made together with others.
    Decision {
        function: &'static str,
        values: Vec<Value>,
        /// The limit and the key, or all keys. Locks are taken in this order.
        place: (String, Option<[u8; 16]>),
    },
    /// A statement, and its parameters.
    Statement(Cow<'static, str>, Vec<Value>),
    /// Several statements without parameters, in one transaction.
    Script(Cow<'static, str>),
}

/// What has come, what was asked for, and what waits for a group.
#[derive(Default)]
pub(super) struct Messages {
    came: BytesMut,
    /// The transactions on the way, in their order.
    sent: VecDeque<Sent>,
    /// Decisions that wait until the group on the way has ended.
    waiting: VecDeque<(u64, Arc<Request>)>,
    answered: VecDeque<(u64, WireResult<Vec<Cells>>)>,
}

/// A transaction on the way.
struct Sent {
    is_group: bool,
    /// `None`: nobody waits for it any more.
    members: Vec<(u64, Option<Arc<Request>>)>,
    rows: Vec<Cells>,
    failure: Option<Failure>,
}

impl Wire for Messages {
    type Request<'r> = &'r Arc<Request>;
    type Answer = WireResult<Vec<Cells>>;

    fn ask(&mut self, number: u64, request: &Arc<Request>, out: &mut Vec<u8>) {
        match **request {
            Request::Decision { .. } => {
                self.waiting.push_back((number, request.clone()));
                self.send_groups(out);
            }
            _ => self.send(vec![(number, request.clone())], false, out),
        }
    }

    fn withdraw(&mut self, number: u64) -> bool {
        let waiting = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != number);
        let members = self.sent.iter_mut().flat_map(|sent| &mut sent.members);
        members.filter(|(member, _)| *member == number).for_each(|(_, request)| *request = None);
        self.waiting.len() < waiting
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.came.extend_from_slice(bytes);
    }

    fn next(&mut self, out: &mut Vec<u8>) -> io::Result<Option<(u64, WireResult<Vec<Cells>>)>> {
        loop {
            if let Some(answered) = self.answered.pop_front() {
                return Ok(Some(answered));
            }
            let Some(message) = self.message()? else { return Ok(None) };
            match (message, self.sent.front_mut()) {
                (Message::DataRow(body), Some(sent)) => sent.rows.push(cells(&body)?),
                (Message::ErrorResponse(body), sent) => match (refused(body.fields())?, sent) {
                    ((failure, false), Some(sent)) => sent.failure = Some(failure),
                    // It ends the connection.
                    ((failure, _), _) => return Err(io::Error::new(ErrorKind::ConnectionAborted, failure.to_string())),
                },
                (Message::ReadyForQuery(body), Some(_)) if body.status() == b'I' => self.end(out),
                (
                    Message::ParseComplete
                    | Message::BindComplete
                    | Message::CommandComplete(_)
                    | Message::EmptyQueryResponse
                    | Message::RowDescription(_)
                    | Message::NoticeResponse(_)
                    | Message::NotificationResponse(_)
                    | Message::ParameterStatus(_),
                    _,
                ) => {}
                _ => return Err(nonsense()),
            }
        }
    }
}

impl Messages {
    /// Returns the next message, if all of it has come.
    pub fn message(&mut self) -> io::Result<Option<Message>> {
        if let [_, a, b, c, d, ..] = self.came[..]
            && u32::from_be_bytes([a, b, c, d]) as usize > MAX_BYTES
        {
            return Err(nonsense());
        }
        Message::parse(&mut self.came)
    }

    /// Sends the decisions that wait, unless they are few and a group is on the way.
    fn send_groups(&mut self, out: &mut Vec<u8>) {
        let is_on_the_way = |sent: &VecDeque<Sent>| sent.iter().any(|sent| sent.is_group);
        while !self.waiting.is_empty() && (self.waiting.len() >= MAX_TOGETHER || !is_on_the_way(&self.sent)) {
            let mut group: Vec<_> = self.waiting.drain(..self.waiting.len().min(MAX_TOGETHER)).collect();
            group.sort_by(|(_, a), (_, b)| a.place().cmp(&b.place()));
            self.send(group, true, out);
        }
    }

    /// Sends requests as one transaction.
    fn send(&mut self, requests: Vec<(u64, Arc<Request>)>, is_group: bool, out: &mut Vec<u8>) {
        let mut bytes = BytesMut::new();
        match write(&requests, &mut bytes) {
            Ok(()) => {
                out.extend_from_slice(&bytes);
                let members = requests.into_iter().map(|(number, request)| (number, Some(request))).collect();
                self.sent.push_back(Sent { is_group, members, rows: Vec::new(), failure: None });
            }
            Err(error) if requests.len() == 1 => self.answered.push_back((requests[0].0, Err(error.into()))),
            Err(_) => requests.into_iter().for_each(|request| self.send(vec![request], false, out)),
        }
    }

    /// Ends the oldest transaction: all of it was done, or nothing.
    fn end(&mut self, out: &mut Vec<u8>) {
        let Some(Sent { members, rows, failure, .. }) = self.sent.pop_front() else { return };
        match (failure, members.as_slice()) {
            (None, [(number, _)]) => self.answered.push_back((*number, Ok(rows))),
            (Some(failure), [(number, _)]) => self.answered.push_back((*number, Err(failure))),
            (None, _) => {
                let mut of_members: Vec<Vec<Cells>> = vec![Vec::new(); members.len()];
                for mut row in rows {
                    let number = row.pop().flatten().and_then(|number| int(&number));
                    if let Some(rows) = number.and_then(|number| of_members.get_mut(usize::try_from(number).ok()?)) {
                        rows.push(row);
                    }
                }
                let numbers = members.iter().map(|(number, _)| *number);
                self.answered.extend(numbers.zip(of_members.into_iter().map(Ok)));
            }
            (Some(failure), _) => {
                let (mut wanted, mut refused) = (Vec::new(), Vec::new());
                for (number, request) in members {
                    match request {
                        Some(request) => wanted.push((number, request)),
                        None => refused.push(number),
                    }
                }
                let is_locked = failure.has_code(&[LOCKED]);
                type Member = (u64, Arc<Request>);
                let belong = |(_, a): &Member, (_, b): &Member| is_locked && a.limit() == b.limit();
                let parts: Vec<_> = wanted.chunk_by(belong).map(<[_]>::to_vec).collect();
                match parts.as_slice() {
                    [part] if is_locked => refused.extend(part.iter().map(|(number, _)| number)),
                    _ => parts.into_iter().for_each(|part| self.send(part, false, out)),
                }
                self.answered.extend(refused.into_iter().map(|number| (number, Err(failure.clone()))));
            }
        }
        self.send_groups(out);
    }
}

impl Request {
    fn place(&self) -> Option<&(String, Option<[u8; 16]>)> {
        match self {
            Request::Decision { place, .. } => Some(place),
            _ => None,
        }
    }

    fn limit(&self) -> Option<&str> {
        self.place().map(|(limit, _)| limit.as_str())
    }

    fn values(&self) -> &[Value] {
        match self {
            Request::Decision { values, .. } | Request::Statement(_, values) => values,
            Request::Script(_) => &[],
        }
    }
}

/// Writes one unnamed statement, so that any session behind a pooler can serve it. Of several decisions, each row ends with
/// its number.
fn write(requests: &[(u64, Arc<Request>)], out: &mut BytesMut) -> io::Result<()> {
    let mut text = String::new();
    let mut values: Vec<&Value> = Vec::new();
    for (i, (_, request)) in requests.iter().enumerate() {
        let from = values.len() + 1;
        values.extend(request.values());
        match &**request {
            Request::Script(script) => return frontend::query(script, out),
            Request::Statement(statement, _) => text.push_str(statement),
            Request::Decision { function, .. } => {
                let parameters: Vec<String> = (from..=values.len()).map(|n| format!("${n}")).collect();
                let parameters = parameters.join(", ");
                text += if i > 0 { " UNION ALL " } else { "" };
                text += &format!("SELECT workglow_limit.{function}({parameters}), workglow_limit.clock()");
                text += &if requests.len() > 1 { format!(", {i}::bigint") } else { String::new() };
            }
        }
    }
    frontend::parse("", &text, values.iter().map(|value| value.kind), out)?;
    let write = |value: &Value, out: &mut BytesMut| match &value.bytes {
        Some(bytes) => {
            out.extend_from_slice(bytes);
            Ok(IsNull::No)
        }
        None => Ok(IsNull::Yes),
    };
    // Everything in binary format.
    if frontend::bind("", "", [1], values, write, [1], out).is_err() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the statement is too long"));
    }
    frontend::execute("", 0, out)?;
    frontend::sync(out);
    Ok(())
}

fn cells(body: &DataRowBody) -> io::Result<Cells> {
    let bytes = body.buffer_bytes();
    body.ranges().map(|range| Ok(range.map(|range| bytes.slice(range)))).collect()
}

pub(super) fn nonsense() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the server does not speak the Postgres protocol")
}

/// A reported error, and whether it ends the connection.
pub(super) fn refused(mut fields: ErrorFields<'_>) -> io::Result<(Failure, bool)> {
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
    Ok((Failure::Refused { code, message }, is_fatal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(limit: &str, key: Option<u8>) -> Arc<Request> {
        let values = vec![Value::text(limit), Value::int(key.map(i64::from))];
        Arc::new(Request::Decision { function: "decide", values, place: (limit.into(), key.map(|key| [key; 16])) })
    }

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
    }

    fn row(numbers: &[i64]) -> Vec<u8> {
        let cells = numbers.iter().flat_map(|n| [&8_u32.to_be_bytes()[..], &n.to_be_bytes()].concat());
        message(b'D', &(numbers.len() as u16).to_be_bytes().into_iter().chain(cells).collect::<Vec<u8>>())
    }

    fn error(severity: &str, code: &str) -> Vec<u8> {
        message(b'E', format!("V{severity}\0C{code}\0Mwhy\0\0").as_bytes())
    }

    fn ready() -> Vec<u8> {
        message(b'Z', b"I")
    }

    /// The statements that were written.
    fn written(out: &mut Vec<u8>) -> Vec<String> {
        let (mut rest, mut statements) = (std::mem::take(out), Vec::new());
        while !rest.is_empty() {
            let length = u32::from_be_bytes(rest[1..5].try_into().unwrap()) as usize + 1;
            let message: Vec<u8> = rest.drain(..length).collect();
            if message[0] == b'P' {
                let text = &message[6..];
                let end = text.iter().position(|byte| *byte == 0).unwrap();
                statements.push(String::from_utf8(text[..end].to_vec()).unwrap());
            }
        }
        statements
    }

    /// The answers by the first number of each row, or the code.
    fn answers(messages: &mut Messages, came: &[Vec<u8>], out: &mut Vec<u8>) -> Vec<(u64, Result<Vec<i64>, String>)> {
        messages.feed(&came.concat());
        let next = || messages.next(out).unwrap();
        let plain = |answer: WireResult<Vec<Cells>>| match answer {
            Ok(rows) => Ok(rows.iter().map(|row| int(row[0].as_ref().unwrap()).unwrap()).collect()),
            Err(Failure::Refused { code, .. }) => Err(code),
            Err(other) => panic!("{other}"),
        };
        std::iter::from_fn(next).map(|(number, answer)| (number, plain(answer))).collect()
    }

    const ONE: &str = "SELECT workglow_limit.decide($1, $2), workglow_limit.clock()";

    #[test]
    fn decisions_that_wait_are_made_together_in_the_order_of_their_places() {
        let (mut messages, mut out) = (Messages::default(), Vec::new());
        messages.ask(0, &decision("b", Some(1)), &mut out);
        assert_eq!(written(&mut out), [ONE]);
        for (number, limit, key) in [(1, "b", Some(2)), (2, "a", Some(3)), (3, "b", None), (4, "b", Some(1))] {
            messages.ask(number, &decision(limit, key), &mut out);
        }
        assert_eq!(written(&mut out), [""; 0], "while a group is on the way");
        messages.ask(5, &Arc::new(Request::Statement("SELECT 5".into(), Vec::new())), &mut out);
        assert_eq!(written(&mut out), ["SELECT 5"], "which is no decision");
        assert!(messages.withdraw(4) && !messages.withdraw(0));
        assert_eq!(answers(&mut messages, &[row(&[70, 1]), ready()], &mut out), [(0, Ok(vec![70]))]);
        let part = |i: usize| {
            let (a, b) = (2 * i + 1, 2 * i + 2);
            format!("SELECT workglow_limit.decide(${a}, ${b}), workglow_limit.clock(), {i}::bigint")
        };
        assert_eq!(written(&mut out), [[part(0), part(1), part(2)].join(" UNION ALL ")]);
        // Whatever the order of the rows, each caller gets its own: a, all of b, and key 2.
        let rows = [row(&[5]), ready(), row(&[61, 1, 2]), row(&[72, 1, 0]), row(&[63, 1, 1]), ready()];
        let expected = [(5, 5), (2, 72), (3, 63), (1, 61)].map(|(number, answer)| (number, Ok(vec![answer])));
        assert_eq!(answers(&mut messages, &rows, &mut out), expected);
        assert_eq!(written(&mut out), [""; 0]);
    }

    #[test]
    fn of_a_group_that_fails_each_is_made_alone_if_somebody_waits_for_it() {
        let (mut messages, mut out) = (Messages::default(), Vec::new());
        (0..5).for_each(|number| messages.ask(number, &decision("a", Some(number as u8)), &mut out));
        assert_eq!(answers(&mut messages, &[row(&[9, 1]), ready()], &mut out), [(0, Ok(vec![9]))]);
        assert_eq!(written(&mut out).len(), 2, "the first one, and the group");
        assert!(!messages.withdraw(2), "it is on the way");
        // Some rows had come when it failed. They were of a transaction that never was.
        let failed = [row(&[9, 1, 0]), error("ERROR", "40P01"), ready()];
        assert_eq!(answers(&mut messages, &failed, &mut out), [(2, Err("40P01".into()))]);
        assert_eq!(written(&mut out), [ONE; 3]);
        messages.ask(6, &decision("b", None), &mut out);
        assert_eq!(written(&mut out), [ONE], "the next group follows them");
        let alone =
            [row(&[1, 1]), ready(), error("ERROR", "XX001"), ready(), row(&[4, 1]), ready(), row(&[6, 1]), ready()];
        let expected = [(1, Ok(vec![1])), (3, Err("XX001".into())), (4, Ok(vec![4])), (6, Ok(vec![6]))];
        assert_eq!(answers(&mut messages, &alone, &mut out), expected);
    }

    /// Each caller of a locked key once waited for it after the others, and all other limits with them.
    #[test]
    fn a_group_that_waited_for_a_lock_is_made_limit_by_limit() {
        let (mut messages, mut out) = (Messages::default(), Vec::new());
        messages.ask(0, &decision("a", None), &mut out);
        (1..9).for_each(|number| messages.ask(number, &decision("locked", Some(number as u8)), &mut out));
        messages.ask(9, &decision("free", Some(1)), &mut out);
        answers(&mut messages, &[row(&[9, 1]), ready()], &mut out);
        written(&mut out);
        let locked = || [error("ERROR", LOCKED), ready()].concat();
        assert_eq!(answers(&mut messages, &[locked()], &mut out), []);
        assert_eq!(written(&mut out).len(), 2, "a statement for each limit");
        let mut both = answers(&mut messages, &[row(&[7, 1]), ready(), locked()], &mut out);
        assert_eq!(both.remove(0), (9, Ok(vec![7])));
        assert_eq!(both, (1..9).map(|number| (number, Err(LOCKED.to_owned()))).collect::<Vec<_>>());
        assert_eq!(written(&mut out), [""; 0], "their callers ask where nobody else waits");
    }

    #[test]
    fn the_end_of_the_session_is_no_answer() {
        let (mut messages, mut out) = (Messages::default(), Vec::new());
        messages.ask(0, &decision("a", None), &mut out);
        messages.feed(&error("FATAL", "57P01"));
        let error = messages.next(&mut out).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::ConnectionAborted, "why (57P01)".into()));
        messages.feed(b"HTTP/1.1 400 Bad Request\r\n");
        assert_eq!(messages.next(&mut out).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_full_group_waits_for_no_other() {
        let (mut messages, mut out) = (Messages::default(), Vec::new());
        (0..=2 * MAX_TOGETHER as u64 + 1).for_each(|number| messages.ask(number, &decision("a", Some(1)), &mut out));
        assert_eq!(written(&mut out).len(), 3);
        for (from, count) in [(0, 1), (1, MAX_TOGETHER), (1 + MAX_TOGETHER, MAX_TOGETHER)] {
            let rows = (0..count as i64).map(|i| row(&[i, 1, i])).chain([ready()]).collect::<Vec<_>>();
            let expected = (0..count).map(|i| ((from + i) as u64, Ok(vec![i as i64]))).collect::<Vec<_>>();
            assert_eq!(answers(&mut messages, &rows, &mut out), expected);
        }
        assert_eq!(written(&mut out), [ONE], "the last one follows");
    }
}
