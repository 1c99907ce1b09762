//! Starts `serve`, and sends valid and invalid requests to it.

use super::common::command;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

pub const TOKEN: &str = "a-token-for-changes-0123456789";
pub const READ_TOKEN: &str = "a-token-for-reading-0123456789";

/// The longest time that a test waits for a response.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Server {
    pub child: Child,
    /// The output at the start.
    pub said: Value,
    pub port: u16,
}

impl Server {
    /// Starts a server on a free port, with these arguments and a token for changes.
    pub fn start(store: &str, args: &[&str]) -> Server {
        Self::start_with(store, args, &[("WORKGLOW_LIMIT_TOKEN", TOKEN)])
    }

    pub fn start_with(store: &str, args: &[&str], environment: &[(&str, &str)]) -> Server {
        let listen: &[&str] = if args.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let all = [&["serve", "--json"], listen, args].concat();
        let mut command = command(store, &all);
        command.envs(environment.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| {
            let mut err = String::new();
            let _ = child.stderr.take().unwrap().read_to_string(&mut err);
            panic!("{error}: {line:?} {err}")
        });
        let url = said["listening"].as_str().unwrap();
        let port = url.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap_or(0);
        Server { child, said, port }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends these bytes, and reads the whole response.
    pub fn send(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut stream = self.connect();
        // The server may respond before it has read everything.
        let _ = stream.write_all(request.as_ref());
        Answer::read(&mut BufReader::new(stream))
    }

    /// Sends a GET with these headers in addition to `Host`.
    pub fn get(&self, path: &str, headers: &[&str]) -> Answer {
        self.send(request("GET", path, &self.host(), headers, ""))
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Sends a valid change.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        let bearer = format!("Authorization: Bearer {TOKEN}");
        self.send(request("POST", path, &self.host(), &[&bearer, "Content-Type: application/json"], &body.to_string()))
    }

    /// The private memory of the process, in KiB.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child has not been waited for, so the id is valid.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn request(method: &str, path: &str, host: &str, headers: &[&str], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    headers.iter().for_each(|header| text.push_str(&format!("{header}\r\n")));
    if method == "POST" {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text + "\r\n" + body
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    /// Reads a response. The status is 0 if the server closed the connection without one.
    pub fn read(reader: &mut impl BufRead) -> Answer {
        let (status, headers) = Self::head(reader);
        let mut body = Vec::new();
        if status > 0 {
            let _ = reader.read_to_end(&mut body);
        }
        Answer { status, headers, body: String::from_utf8(body).unwrap() }
    }

    pub fn head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
        let mut line = String::new();
        let _ = reader.read_line(&mut line);
        let status = line.split(' ').nth(1).map_or(0, |status| status.parse().unwrap());
        let mut headers = Vec::new();
        if status == 0 {
            return (status, headers);
        }
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) <= 2 {
                return (status, headers);
            }
            let (name, value) = line.trim_end().split_once(": ").unwrap();
            headers.push((name.to_lowercase(), value.to_owned()));
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn with(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    #[track_caller]
    pub fn json(self, status: u16) -> Value {
        let answer = self.with(status);
        assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
        serde_json::from_str(&answer.body).unwrap()
    }

    /// The code and the message of an error.
    #[track_caller]
    pub fn refusal(self, status: u16) -> (String, String) {
        let error = self.json(status);
        let text = |name: &str| error["error"][name].as_str().unwrap_or_default().to_owned();
        (text("code"), format!("{} {}", text("message"), text("hint")))
    }
}

/// A stream of events.
pub struct Events(BufReader<TcpStream>);

impl Events {
    pub fn open(server: &Server, query: &str, headers: &[&str]) -> Events {
        let mut stream = server.connect();
        let path = format!("/api/events{query}");
        stream.write_all(request("GET", &path, &server.host(), headers, "").as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let (status, headers) = Answer::head(&mut reader);
        assert_eq!(status, 200, "{headers:?}");
        assert!(
            headers.contains(&("content-type".to_owned(), "text/event-stream; charset=utf-8".to_owned())),
            "{headers:?}"
        );
        Events(reader)
    }

    /// The next event; `None` at the end.
    pub fn next(&mut self) -> Option<(String, Value)> {
        let mut name = None;
        loop {
            let mut line = String::new();
            // Sizes of chunks are in between; no line of an event looks like one.
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(found) = line.strip_prefix("event: ") {
                name = Some(found.trim_end().to_owned());
            } else if let (Some(data), Some(name)) = (line.strip_prefix("data: "), &name) {
                return Some((name.clone(), serde_json::from_str(data).unwrap_or(json!(null))));
            }
        }
    }

    /// The next event of this name for which `is` returns true.
    #[track_caller]
    pub fn until(&mut self, name: &str, mut is: impl FnMut(&Value) -> bool) -> Value {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let (found, data) = self.next().expect("the stream continues");
            if found == name && is(&data) {
                return data;
            }
        }
        panic!("waited too long for an event {name}");
    }
}
