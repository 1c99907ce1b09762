//! A Redis of the bench's own, on a socket in its directory, and the usual script of a sliding window log.

use redis::{Client, Connection, ConnectionLike, Script};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The error of a machine without Redis.
pub const MISSING: &str = "missing: a Redis server. Install it with: apt-get install redis-server";

/// A server that ends when this is dropped.
pub struct RedisServer {
    child: Child,
    socket: PathBuf,
    /// The version that it reports.
    pub version: String,
}

impl RedisServer {
    /// Starts a server without persistence. Returns `None` if the machine has no Redis.
    pub fn start(directory: &Path) -> Option<Self> {
        // The path of a socket has to be short.
        let socket = directory.join("redis.sock");
        let mut command = Command::new("redis-server");
        // SAFETY: between fork and exec there is one system call. It ends the server with this thread, however that ends.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning", "--unixsocket"])
            .arg(&socket)
            .current_dir(directory)
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        let mut server = RedisServer { child, socket, version: String::new() };
        let began = Instant::now();
        let mut connection = loop {
            match connect(&server.socket) {
                Ok(connection) => break connection,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "redis-server: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let info: String = redis::cmd("INFO").arg("server").query(&mut connection).expect("Redis answers");
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        server.version = version.unwrap_or("unknown").trim().into();
        Some(server)
    }

    /// The path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(socket: &Path) -> redis::RedisResult<Connection> {
    let connection = Client::open(format!("unix://{}", socket.display()))?.get_connection()?;
    assert!(connection.is_open());
    Ok(connection)
}

/// The log of one limit, kept by a script on the server: `EVALSHA` on a persistent connection.
pub struct RedisLog {
    connection: Connection,
    script: Script,
    asked: u64,
}

/// The server's time in microseconds is the score. Members have to differ, so they hold the client's pid and a counter.
const SCRIPT: &str = r#"
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", now - ARGV[2])
if redis.call("ZCARD", KEYS[1]) >= tonumber(ARGV[1]) then
    return 0
end
redis.call("ZADD", KEYS[1], now, ARGV[3])
redis.call("PEXPIRE", KEYS[1], math.ceil(ARGV[2] / 1000))
return 1
"#;

impl RedisLog {
    /// Connects to the server.
    pub fn new(socket: &Path) -> Self {
        let mut connection = connect(socket).expect("Redis answers");
        let script = Script::new(SCRIPT);
        script.prepare_invoke().load(&mut connection).expect("Redis takes the script");
        RedisLog { connection, script, asked: 0 }
    }

    /// Records a start if the window has a free unit, and returns whether it did.
    pub fn attempt(&mut self, key: &str, limit: u64, window: Duration) -> bool {
        self.asked += 1;
        let member = format!("{}-{}", std::process::id(), self.asked);
        let mut call = self.script.key(key);
        call.arg(limit).arg(window.as_micros() as u64).arg(member);
        call.invoke::<u8>(&mut self.connection).expect("Redis answers") == 1
    }
}
