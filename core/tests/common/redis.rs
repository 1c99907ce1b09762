//! A Redis server for a single test.

use super::Dir;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const DATABASES: u64 = 10_000;

/// It listens on a socket in its own directory, and ends with this value.
pub struct RedisServer {
    process: Child,
    directory: Dir,
}

impl RedisServer {
    pub fn start(name: &str) -> RedisServer {
        let directory = Dir::in_memory(name);
        RedisServer { process: Self::run(&directory), directory }
    }

    /// Kills it, which loses its data, and starts it again.
    pub fn start_again(&mut self) {
        self.end();
        std::fs::create_dir_all(&self.directory.0).unwrap();
        self.process = Self::run(&self.directory);
    }

    fn end(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }

    fn run(directory: &Dir) -> Child {
        let socket = directory.file("s");
        let _ = std::fs::remove_file(&socket);
        // The shell ends the server when this process ends, in whatever way.
        let process = Command::new("sh")
            .args(["-c", r#"redis-server "$@" & cat; kill -9 $!; rm -rf "$0""#])
            .arg(&directory.0)
            .args(["--databases", &DATABASES.to_string()])
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&directory.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let began = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "the server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        process
    }

    /// One of its many databases, unused.
    pub fn new_database(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Relaxed);
        assert!(number < DATABASES);
        format!("{}?db={number}", self.url())
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.file("s")
    }

    /// The process id of the server.
    pub fn pid(&self) -> i32 {
        let info = self.info("server");
        let line = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        line.unwrap().trim().parse().unwrap()
    }

    /// A section of the output of `INFO`.
    pub fn info(&self, section: &str) -> String {
        let mut stream = UnixStream::connect(self.directory.file("s")).unwrap();
        write!(stream, "INFO {section}\r\nQUIT\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The answer of a command, if it is one line.
    pub fn command(&self, command: &str) -> String {
        self.ask(&[command])
    }

    /// The answer of a command in a database.
    pub fn command_in(&self, database: &str, command: &str) -> String {
        let number = database.rsplit_once("db=").map_or("0", |(_, number)| number);
        self.ask(&[&format!("SELECT {number}"), command])
    }

    /// The answer of the last of these commands, if all answers are one line.
    fn ask(&self, commands: &[&str]) -> String {
        let mut stream = UnixStream::connect(self.directory.file("s")).unwrap();
        let mut answer = Vec::new();
        for command in commands {
            writeln!(stream, "{command}\r").unwrap();
            answer.clear();
            let mut byte = [0];
            while !answer.ends_with(b"\r\n") {
                stream.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
        }
        String::from_utf8(answer).unwrap().trim_end().to_owned()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.end();
    }
}
