//! A Redis server of a test's own.

use super::Dir;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// It listens on a socket in a directory of its own, and ends with this.
pub struct RedisServer {
    process: Child,
    directory: Dir,
}

impl RedisServer {
    pub fn start(name: &str) -> RedisServer {
        let directory = Dir::in_memory(name);
        RedisServer { process: Self::run(&directory), directory }
    }

    /// Ends it at once, with all that it has, and starts it again.
    pub fn start_again(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = Self::run(&self.directory);
    }

    fn run(directory: &Dir) -> Child {
        let socket = directory.file("s");
        let _ = std::fs::remove_file(&socket);
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&directory.0)
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

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.directory.file("s").display())
    }

    /// What a command answers, if that is one line.
    pub fn command(&self, command: &str) -> String {
        let mut stream = UnixStream::connect(self.directory.file("s")).unwrap();
        writeln!(stream, "{command}\r").unwrap();
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(b"\r\n") {
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        String::from_utf8(answer).unwrap().trim_end().to_owned()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
