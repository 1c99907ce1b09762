//! A connection that the callers of a process share. Many requests are on the way at the same time.
//!
//! It has no thread. One of the callers that wait, the *reader*, sleeps until something comes, and hands the others
//! their answers.
//!
//! 1. The state has a lock. Nobody blocks while holding it: the socket never blocks.
//! 2. There is at most one reader. It sleeps in `poll`, without the lock. The others sleep until they are unparked.
//! 3. A reader that leaves, with its answer or without, unparks another caller that waits, which becomes the reader.
//! 4. A caller that leaves without its answer leaves its number behind, so that the answer is recognised when it comes,
//!    and dropped.
//! 5. A server that has been silent for a while although it was asked is given up, with its connection: that answer may
//!    never come.

use super::stream::{Deadline, Stream, silent};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a server may be silent before a caller whose time is over gives its connection up.
pub(super) const SILENCE: Duration = Duration::from_secs(1);

/// A protocol: it writes the requests, and finds their answers in what has come.
pub(super) trait Wire: Send {
    type Request<'r>;
    type Answer: Send;

    /// Adds a request, and writes what is to be sent now.
    fn ask(&mut self, number: u64, request: Self::Request<'_>, out: &mut Vec<u8>);

    /// Forgets a request, if it has not been written yet. Returns whether that was so.
    fn withdraw(&mut self, number: u64) -> bool;

    /// Adds bytes that have come.
    fn feed(&mut self, bytes: &[u8]);

    /// Returns the next answer, if all of it has come, and the number of its request. Writes what is to be sent after it.
    ///
    /// # Errors
    /// If the server does not speak this protocol, or ends the connection.
    fn next(&mut self, out: &mut Vec<u8>) -> io::Result<Option<(u64, Self::Answer)>>;
}

/// An open connection.
pub(super) struct Pipe<W: Wire> {
    /// The server's address.
    peer: String,
    /// The socket. It belongs to the stream.
    socket: RawFd,
    state: Mutex<State<W>>,
}

struct State<W: Wire> {
    stream: Stream,
    wire: W,
    /// What is to be sent.
    out: Vec<u8>,
    is_all_sent: bool,
    /// The requests that lack answers, by number; and the number of the next one.
    asked: BTreeMap<u64, Asked>,
    next: u64,
    /// Answers that their callers have not collected, by number.
    answered: HashMap<u64, W::Answer>,
    has_reader: bool,
    /// When something came last.
    heard: Instant,
    /// Why it can no longer be used.
    broken: Option<(ErrorKind, String)>,
}

struct Asked {
    since: Instant,
    /// `None`: the caller has left.
    caller: Option<Thread>,
}

impl<W: Wire> Pipe<W> {
    /// Shares a connection on which nothing is on the way.
    pub fn new(mut stream: Stream, wire: W) -> io::Result<Pipe<W>> {
        let (peer, socket) = (stream.peer().to_owned(), stream.share()?);
        let state = State {
            stream,
            wire,
            out: Vec::new(),
            is_all_sent: true,
            asked: BTreeMap::new(),
            next: 0,
            answered: HashMap::new(),
            has_reader: false,
            heard: Instant::now(),
            broken: None,
        };
        Ok(Pipe { peer, socket, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// `TimedOut`: it did not come in time. Anything else: the connection is lost, or makes no sense. In both cases the
    /// server may have received the request.
    pub fn ask(&self, request: W::Request<'_>, deadline: Deadline) -> io::Result<W::Answer> {
        let mut state = self.lock();
        let number = state.enqueue(request);
        loop {
            state.send();
            if let Some(answer) = state.answered.remove(&number) {
                state.pass_on();
                return Ok(answer);
            }
            if let Some((kind, why)) = &state.broken {
                return Err(io::Error::new(*kind, why.clone()));
            }
            let left = deadline.left();
            if left.is_zero() {
                state.leave(number, &self.peer);
                state.pass_on();
                return Err(silent(&self.peer));
            }
            if state.has_reader {
                drop(state);
                thread::park_timeout(left);
                state = self.lock();
            } else {
                state.has_reader = true;
                let is_all_sent = state.is_all_sent;
                drop(state);
                self.sleep(is_all_sent, left);
                state = self.lock();
                state.has_reader = false;
                state.receive();
            }
        }
    }

    /// Sleeps until something has come or, if not all is sent, more can be sent.
    fn sleep(&self, is_all_sent: bool, most: Duration) {
        let events = libc::POLLIN | if is_all_sent { 0 } else { libc::POLLOUT };
        let mut on = libc::pollfd { fd: self.socket, events, revents: 0 };
        let most =
            libc::timespec { tv_sec: most.as_secs() as _, tv_nsec: libc::c_long::from(most.subsec_nanos() as i32) };
        // SAFETY: both live for the call; the socket is open as long as this connection. A signal or an error only ends
        // the sleep: what happened to the socket shows when it is read.
        unsafe { libc::ppoll(&raw mut on, 1, &raw const most, std::ptr::null()) };
    }

    /// Returns whether it can be used.
    pub fn is_whole(&self) -> bool {
        self.lock().broken.is_none()
    }

    /// Ends its use: its callers fail as if the server had closed it.
    pub fn end(&self, why: &str) {
        self.lock().fail(ErrorKind::ConnectionAborted, why);
    }
}

impl<W: Wire> State<W> {
    fn enqueue(&mut self, request: W::Request<'_>) -> u64 {
        let number = self.next;
        if self.broken.is_none() {
            self.next += 1;
            self.wire.ask(number, request, &mut self.out);
            self.asked.insert(number, Asked { since: Instant::now(), caller: Some(thread::current()) });
        }
        number
    }

    /// Sends what the system takes.
    fn send(&mut self) {
        let mut sent = 0;
        while self.broken.is_none() && sent < self.out.len() {
            match self.stream.write(&self.out[sent..]) {
                Ok(0) => self.fail(ErrorKind::WriteZero, "the connection takes no bytes"),
                Ok(length) => sent += length,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // What has come before the end may say why.
                Err(error) => {
                    self.receive();
                    self.fail(error.kind(), &error.to_string());
                }
            }
        }
        self.out.drain(..sent.min(self.out.len()));
        // TLS keeps what the socket did not take.
        self.is_all_sent = self.stream.flush().is_ok() && self.out.is_empty();
    }

    /// Reads what has come, and hands out the answers.
    fn receive(&mut self) {
        let mut piece = [0; 1 << 14];
        while self.broken.is_none() {
            match self.stream.read(&mut piece) {
                Ok(0) => self.fail(ErrorKind::UnexpectedEof, "the server closed the connection"),
                Ok(length) => {
                    self.heard = Instant::now();
                    self.wire.feed(&piece[..length]);
                    self.hand_out();
                    if length < piece.len() {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.fail(error.kind(), &error.to_string()),
            }
        }
    }

    fn hand_out(&mut self) {
        loop {
            match self.wire.next(&mut self.out) {
                Ok(Some((number, answer))) => {
                    if let Some(caller) = self.asked.remove(&number).and_then(|asked| asked.caller) {
                        self.answered.insert(number, answer);
                        caller.unpark();
                    }
                }
                Ok(None) => return,
                Err(error) => return self.fail(error.kind(), &error.to_string()),
            }
        }
    }

    /// Leaves a request without waiting longer for its answer.
    fn leave(&mut self, number: u64, peer: &str) {
        let oldest = self.asked.values().next().map(|oldest| oldest.since.max(self.heard));
        if self.wire.withdraw(number) {
            self.asked.remove(&number);
        } else if let Some(asked) = self.asked.get_mut(&number) {
            asked.caller = None;
        }
        if oldest.is_some_and(|since| since.elapsed() >= SILENCE) {
            let error = silent(peer);
            self.fail(error.kind(), &error.to_string());
        }
    }

    /// Leaves reading to another caller that waits, if there is one.
    fn pass_on(&self) {
        if !self.has_reader
            && let Some(next) = self.asked.values().find_map(|asked| asked.caller.as_ref())
        {
            next.unpark();
        }
    }

    fn fail(&mut self, kind: ErrorKind, why: &str) {
        if self.broken.is_none() {
            self.broken = Some((kind, why.to_owned()));
            self.out.clear();
            let asked = std::mem::take(&mut self.asked);
            asked.into_values().filter_map(|asked| asked.caller).for_each(|caller| caller.unpark());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::{UnixListener, UnixStream};

    /// Lines, and how many are to come for each request.
    #[derive(Default)]
    struct Lines {
        came: Vec<u8>,
        wanted: VecDeque<(u64, usize)>,
    }

    impl Wire for Lines {
        type Request<'r> = (&'r str, usize);
        type Answer = String;

        fn ask(&mut self, number: u64, (line, wanted): (&str, usize), out: &mut Vec<u8>) {
            out.extend_from_slice(line.as_bytes());
            self.wanted.push_back((number, wanted));
        }

        fn withdraw(&mut self, _: u64) -> bool {
            false
        }

        fn feed(&mut self, bytes: &[u8]) {
            self.came.extend_from_slice(bytes);
        }

        fn next(&mut self, _: &mut Vec<u8>) -> io::Result<Option<(u64, String)>> {
            let ends = || self.came.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
            let Some(&(number, wanted)) = self.wanted.front() else { return Ok(None) };
            let Some(end) = ends().nth(wanted - 1) else { return Ok(None) };
            self.wanted.pop_front();
            Ok(Some((number, String::from_utf8(self.came.drain(..=end).collect()).unwrap())))
        }
    }

    /// A connection, and its other end.
    fn pair() -> (Pipe<Lines>, UnixStream) {
        let name = format!("wgl-pipe-{}-{:?}", std::process::id(), thread::current().id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let stream = Stream::unix(&path, Deadline::after(Duration::from_secs(60))).unwrap();
        std::fs::remove_file(&path).unwrap();
        (Pipe::new(stream, Lines::default()).unwrap(), listener.accept().unwrap().0)
    }

    fn patient() -> Deadline {
        Deadline::after(Duration::from_secs(600))
    }

    /// Were the place of a caller that left forgotten, the next one would take its answer, which may be a start.
    #[test]
    fn an_answer_that_is_late_goes_to_nobody_else() {
        let (pipe, mut server) = loop {
            let (pipe, server) = pair();
            let left = pipe.ask(("first\n", 1), Deadline::after(Duration::from_millis(1)));
            assert_eq!(left.unwrap_err().kind(), ErrorKind::TimedOut);
            // A caller that was stopped for a second has given it up.
            if pipe.is_whole() {
                break (pipe, server);
            }
        };
        thread::scope(|scope| {
            let second = scope.spawn(|| pipe.ask(("second\n", 2), patient()).unwrap());
            let mut asked = BufReader::new(server.try_clone().unwrap()).lines();
            assert_eq!([asked.next(), asked.next()].map(|line| line.unwrap().unwrap()), ["first", "second"]);
            server.write_all(b"late\none\ntwo\n").unwrap();
            assert_eq!(second.join().unwrap(), "one\ntwo\n");
        });
    }

    #[test]
    fn each_caller_gets_its_own_answer() {
        let (pipe, server) = pair();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut to = server.try_clone().unwrap();
                for line in BufReader::new(server).lines() {
                    let _ = to.write_all((line.unwrap() + "\n").as_bytes());
                }
            });
            let pipe = &pipe;
            let callers: Vec<_> = (0..8)
                .map(|caller| {
                    scope.spawn(move || {
                        for i in 0..500 {
                            let line = format!("{caller} {i}\n");
                            assert_eq!(pipe.ask((&line, 1), patient()).unwrap(), line);
                        }
                    })
                })
                .collect();
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            // SAFETY: plain call on a socket that is open. It ends the other side.
            unsafe { libc::shutdown(pipe.socket, libc::SHUT_RDWR) };
            let kind = pipe.ask(("more\n", 1), patient()).unwrap_err().kind();
            assert!([ErrorKind::UnexpectedEof, ErrorKind::BrokenPipe].contains(&kind), "{kind}");
            assert!(!pipe.is_whole());
        });
    }
}
