//! A Redis server for a single test.

use super::Dir;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const DATABASES: u64 = 10_000;

/// Sets the clock of a program into which it is loaded: `WGL_CLOCK` names a file with a number of microseconds.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile int64_t *by;
static int64_t added(void) {
    if (!by) by = mmap(0, 8, PROT_READ, MAP_SHARED, open(getenv("WGL_CLOCK"), O_RDONLY), 0);
    return *by;
}
int gettimeofday(struct timeval *tv, void *zone) {
    static int (*next)(struct timeval *, void *);
    if (!next) next = dlsym(RTLD_NEXT, "gettimeofday");
    int error = next(tv, zone);
    int64_t us = tv->tv_sec * 1000000LL + tv->tv_usec + added();
    tv->tv_sec = us / 1000000;
    tv->tv_usec = us % 1000000;
    return error;
}
"#;

/// It listens on a socket in its own directory, and ends with this value.
pub struct RedisServer {
    process: Child,
    directory: Dir,
    /// What was added to its clock, in microseconds, if it can be set.
    clock: Option<&'static AtomicI64>,
    arguments: &'static [&'static str],
}

impl RedisServer {
    pub fn start(name: &str) -> RedisServer {
        let directory = Dir::in_memory(name);
        RedisServer { process: Self::run(&directory, false, &[]), directory, clock: None, arguments: &[] }
    }

    /// The same with these arguments.
    pub fn with_arguments(name: &str, arguments: &'static [&'static str]) -> RedisServer {
        let directory = Dir::in_memory(name);
        RedisServer { process: Self::run(&directory, false, arguments), directory, clock: None, arguments }
    }

    /// The same with a clock that can be set.
    pub fn with_clock(name: &str) -> RedisServer {
        let directory = Dir::in_memory(name);
        std::fs::write(directory.file("clock.c"), CLOCK).unwrap();
        let (library, source) = (directory.file("clock.so"), directory.file("clock.c"));
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).args(["-ldl"]).status();
        assert!(built.expect("a C compiler is installed").success());
        std::fs::write(directory.file("clock"), [0; 8]).unwrap();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(directory.file("clock")).unwrap();
        // SAFETY: a new mapping of eight bytes of a file of that length, never unmapped.
        let clock = unsafe {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let base = libc::mmap(std::ptr::null_mut(), 8, prot, flags, std::os::fd::AsRawFd::as_raw_fd(&file), 0);
            assert_ne!(base, libc::MAP_FAILED);
            &*base.cast::<AtomicI64>()
        };
        RedisServer { process: Self::run(&directory, true, &[]), directory, clock: Some(clock), arguments: &[] }
    }

    /// Makes its clock show this much more, or less, than the time.
    pub fn set_clock(&self, by_us: i64) {
        self.clock.expect("its clock can be set").store(by_us, Relaxed);
    }

    /// Kills it, which loses its data, and starts it again.
    pub fn start_again(&mut self) {
        self.end();
        std::fs::create_dir_all(&self.directory.0).unwrap();
        self.process = Self::run(&self.directory, self.clock.is_some(), self.arguments);
    }

    /// Ends it, changes the files in its directory, and starts it again with them. With `has_to_save`, it first writes all of
    /// its data.
    pub fn restart_with(&mut self, has_to_save: bool, change: impl FnOnce(&Path)) {
        if has_to_save {
            let mut stream = UnixStream::connect(self.socket()).unwrap();
            stream.write_all(b"SHUTDOWN SAVE\r\n").unwrap();
            // It closes the connection.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        std::fs::write(self.directory.file("keep"), "").unwrap();
        self.end();
        std::fs::remove_file(self.directory.file("keep")).unwrap();
        change(&self.directory.0);
        self.process = Self::run(&self.directory, self.clock.is_some(), self.arguments);
        super::wait_until("it has read its files", || self.command("PING") == "+PONG");
    }

    pub fn directory(&self) -> &Path {
        &self.directory.0
    }

    /// Kills it.
    pub fn end(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }

    fn run(directory: &Dir, has_clock: bool, arguments: &[&str]) -> Child {
        let socket = directory.file("s");
        let _ = std::fs::remove_file(&socket);
        let clock = if has_clock { r#"WGL_CLOCK="$0/clock" LD_PRELOAD="$0/clock.so""# } else { "" };
        // The shell ends the server when this process ends, in whatever way.
        let process = Command::new("sh")
            .arg("-c")
            .arg(clock.to_owned() + r#" redis-server "$@" & cat; { kill -9 $!; wait $!; } 2>/dev/null; [ -e "$0/keep" ] || rm -rf "$0""#)
            .arg(&directory.0)
            .args(["--databases", &DATABASES.to_string()])
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&directory.0)
            .args(arguments)
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
