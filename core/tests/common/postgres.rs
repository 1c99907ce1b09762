//! A Postgres server for a single test.

use super::Dir;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// It listens on a socket in its own directory, and ends with this value.
pub struct PostgresServer {
    process: Child,
    directory: Dir,
    /// Its settings at the start.
    settings: Vec<String>,
    /// The copy that a standby has: see [`lose_to_standby`](Self::lose_to_standby).
    standby: Option<Dir>,
}

/// The path of a server program. Debian puts only the client programs into the path.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            Some((path.file_name()?.to_str()?.parse().ok()?, path.join("bin").join(name)))
        })
        .filter(|(_, path)| path.exists())
        .collect();
    found.sort();
    found.pop().map_or_else(|| name.into(), |(_, path)| path)
}

fn is_root() -> bool {
    // SAFETY: plain call.
    unsafe { libc::geteuid() == 0 }
}

/// Postgres does not run as root, so a test that runs as root uses another user.
fn command(program_name: &str) -> Command {
    if !is_root() {
        return Command::new(program(program_name));
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--"]).arg(program(program_name));
    command
}

fn own(path: &Path) {
    if is_root() {
        let done = Command::new("chown").args(["-R", "nobody:nogroup"]).arg(path).status();
        assert!(done.is_ok_and(|status| status.success()));
    }
}

/// An unused cluster, of which each server gets a copy, since creating one takes a second. It is kept for later runs.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let version =
            Command::new(program("initdb")).arg("--version").output().expect("postgresql is installed").stdout;
        let version = String::from_utf8_lossy(&version).replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let whose = if is_root() { "nobody" } else { "mine" };
        let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{version}{whose}"));
        if !template.is_dir() {
            let directory = Dir::in_memory("postgres");
            own(&directory.0);
            let made = command("initdb")
                .current_dir("/")
                .args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--pgdata"])
                .arg(directory.file("data"))
                .stdout(Stdio::null())
                .status();
            assert!(made.is_ok_and(|status| status.success()));
            // Completely or not at all.
            let new = template.with_extension(std::process::id().to_string());
            copy(&directory.file("data"), &new);
            if std::fs::rename(&new, &template).is_err() {
                std::fs::remove_dir_all(&new).unwrap();
            }
        }
        template
    })
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().is_ok_and(|status| status.success()));
}

/// The state of a process, by its letter, and its parent.
fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

impl PostgresServer {
    /// For tests that do not depend on durability: it does not wait for its disk.
    pub fn start(name: &str) -> PostgresServer {
        Self::run(name, &["fsync=off"])
    }

    /// A server that keeps its data, however it ends.
    pub fn durable(name: &str) -> PostgresServer {
        Self::run(name, &["fsync=on"])
    }

    /// A server on a port, with a certificate for `localhost` that is signed by `directory/root.crt`.
    pub fn with_tls(name: &str, certificates: &Dir) -> (PostgresServer, u16) {
        let script = r#"
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=root -keyout root.key -out root.crt
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -keyout server.key -out server.csr
            echo subjectAltName=DNS:localhost > names
            openssl x509 -req -in server.csr -CA root.crt -CAkey root.key -CAcreateserial -days 2 -extfile names -out server.crt
            chmod 600 server.key"#;
        let made = Command::new("sh").args(["-e", "-c", script]).current_dir(&certificates.0).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        own(&certificates.0);
        let file = |name: &str| certificates.file(name).display().to_string();
        let on_a_port = |_| {
            // Another program may take it before the server does.
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let settings = [
                "fsync=off".to_owned(),
                "listen_addresses=127.0.0.1".into(),
                format!("port={port}"),
                "ssl=on".into(),
                format!("ssl_cert_file={}", file("server.crt")),
                format!("ssl_key_file={}", file("server.key")),
            ];
            Some((Self::try_to_run(name, &settings.each_ref().map(String::as_str))?, port))
        };
        (0..10).find_map(on_a_port).expect("a free port")
    }

    fn run(name: &str, settings: &[&str]) -> PostgresServer {
        Self::try_to_run(name, settings).expect("it has no port")
    }

    /// `None` if its port is taken.
    fn try_to_run(name: &str, settings: &[&str]) -> Option<PostgresServer> {
        let directory = Dir::in_memory(name);
        copy(template(), &directory.file("data"));
        own(&directory.0);
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        Some(PostgresServer { process: Self::process(&directory, &settings)?, directory, settings, standby: None })
    }

    /// `None` if its port is taken.
    fn process(directory: &Dir, settings: &[String]) -> Option<Child> {
        let server = command("postgres");
        // The shell ends the server when this process ends, in whatever way.
        let mut process = Command::new("sh")
            .args(["-c", r#"directory="$1"; shift; "$@" & cat; kill -QUIT $!; wait $!; rm -rf "$directory""#, "sh"])
            .arg(&directory.0)
            .arg(server.get_program())
            .args(server.get_args())
            .arg("-D")
            .arg(directory.file("data"))
            .arg("-k")
            .arg(&directory.0)
            .args(["-c", "listen_addresses=", "-c", "max_connections=200", "-c", "shared_buffers=32MB"])
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(directory.file("log")).unwrap())
            .spawn()
            .unwrap();
        let began = Instant::now();
        let port = settings.iter().find_map(|setting| setting.strip_prefix("port=")).unwrap_or("5432");
        let answers = || {
            let asked = command("pg_isready").args(["-q", "-p", port, "-h"]).arg(&directory.0).status();
            asked.is_ok_and(|status| status.success())
        };
        while UnixStream::connect(directory.file(&format!(".s.PGSQL.{port}"))).is_err() || !answers() {
            let log = std::fs::read_to_string(directory.file("log"));
            if log.as_ref().is_ok_and(|log| log.contains("could not create any TCP/IP sockets")) {
                drop(process.stdin.take());
                let _ = process.wait();
                return None;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "the server does not listen: {log:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(process)
    }

    /// An unused database of the server.
    pub fn new_database(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("limits_{}", NEXT.fetch_add(1, Relaxed));
        self.command(&format!("CREATE DATABASE {name}"));
        self.url_of("postgres", &name)
    }

    pub fn url(&self) -> String {
        self.url_of("postgres", "postgres")
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.file(".s.PGSQL.5432")
    }

    pub fn url_of(&self, role: &str, database: &str) -> String {
        format!("postgres:///{database}?host={}&user={role}", self.directory.0.display())
    }

    /// The address of a login, with nothing else in it: its database has its name.
    pub fn url_of_login(&self, login: &str) -> String {
        format!("postgres://{login}@{}", self.directory.0.display().to_string().replace('/', "%2F"))
    }

    /// The output of statements: rows in lines, columns separated by `|`.
    pub fn command(&self, statements: &str) -> String {
        self.command_in(&self.url(), statements)
    }

    /// The output of statements in one of its databases.
    pub fn command_in(&self, database: &str, statements: &str) -> String {
        let mut psql = Command::new(program("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-", "-d", database])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        psql.stdin.take().unwrap().write_all(statements.as_bytes()).unwrap();
        let done = psql.wait_with_output().unwrap();
        assert!(done.status.success(), "{statements}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    /// Runs statements in a transaction of another program, which then holds their locks until the returned value is dropped.
    pub fn hold(&self, statements: &str) -> Held {
        let psql = Command::new(program("psql"))
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", "-d", &self.url()])
            .env("PGAPPNAME", "holder")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut held = Held(psql);
        // In one message, so that between messages the locks are held.
        writeln!(held.0.stdin.as_mut().unwrap(), "BEGIN\\; {statements};").unwrap();
        let holds =
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holder' AND state = 'idle in transaction'";
        super::wait_until("the locks are held", || self.command(holds) == "1");
        held
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.file("log")).unwrap()
    }

    /// Removes all limits.
    pub fn forget_all(&self) {
        self.command(include_str!("../../../tests/fleet/forget.sql"));
    }

    /// The main process.
    fn first(&self) -> i32 {
        let file = std::fs::read_to_string(self.directory.file("data").join("postmaster.pid")).unwrap();
        file.lines().next().unwrap().parse().unwrap()
    }

    /// All of its processes.
    fn processes(&self) -> Vec<i32> {
        let first = self.first();
        let is_its = |pid: &i32| *pid == first || state_and_parent(*pid).is_some_and(|(_, parent)| parent == first);
        let all = std::fs::read_dir("/proc").unwrap();
        all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(is_its).collect()
    }

    /// Sends a signal to all of its processes, and returns which they are.
    pub fn signal(&self, signal: i32) -> Vec<i32> {
        let send = |process: &i32, signal| {
            // SAFETY: plain call; these are the server and its children, and the server is our child.
            unsafe { libc::kill(*process, signal) };
        };
        // First the main process stops.
        let first = self.first();
        send(&first, libc::SIGSTOP);
        super::wait_until("the server is stopped", || state_and_parent(first).is_some_and(|(state, _)| state == 'T'));
        let processes = self.processes();
        processes.iter().for_each(|process| send(process, signal));
        processes
    }

    /// Kills it.
    pub fn end(&self) {
        wait_until_gone(&self.signal(libc::SIGKILL));
    }

    /// Ends it like a power cut, except for data that the system has not written, and starts it again.
    pub fn crash(&mut self) {
        self.end();
        self.start_again();
    }

    /// Crashes, and starts as a server that takes over, on another timeline.
    pub fn crash_and_take_over(&mut self) {
        self.end();
        self.take_over();
    }

    fn take_over(&mut self) {
        std::fs::write(self.directory.file("data").join("recovery.signal"), "").unwrap();
        let settings = self.directory.file("data").join("postgresql.auto.conf");
        std::fs::write(settings, "restore_command = 'false'\n").unwrap();
        self.start_again();
        super::wait_until("the server has taken over", || self.command("SELECT pg_is_in_recovery()") == "f");
    }

    /// Loses the server to a standby that has received nothing since the last call of this. (At first there is none.)
    pub fn lose_to_standby(&mut self) {
        if let Some(standby) = self.standby.take() {
            self.end();
            std::fs::remove_dir_all(self.directory.file("data")).unwrap();
            std::fs::rename(standby.file("data"), self.directory.file("data")).unwrap();
            self.take_over();
        }
        let standby = Dir::in_memory(&format!("standby-{}", self.first()));
        own(&standby.0);
        let copied = command("pg_basebackup")
            .current_dir("/")
            .args(["--no-sync", "--checkpoint=fast", "--username=postgres", "--host"])
            .arg(&self.directory.0)
            .arg("--pgdata")
            .arg(standby.file("data"))
            .status();
        assert!(copied.is_ok_and(|status| status.success()));
        self.standby = Some(standby);
    }

    /// Allows a role only one authentication method.
    pub fn only_with(&self, role: &str, method: &str) {
        let file = self.directory.file("data").join("pg_hba.conf");
        std::fs::write(file, format!("local all \"{role}\" {method}\nlocal all all trust\n")).unwrap();
        self.command("SELECT pg_reload_conf()");
    }

    /// Starts it again, after it ended.
    pub fn start_again(&mut self) {
        self.end_shell();
        let _ = std::fs::remove_file(self.directory.file("data").join("postmaster.pid"));
        own(&self.directory.0);
        self.process = Self::process(&self.directory, &self.settings).expect("its port is still free");
    }

    /// The shell may not notice the end of its input, which forked children share.
    fn end_shell(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A transaction of another program. It ends with this value.
pub struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let first = self.first();
        // SAFETY: plain call; it is our child.
        unsafe { libc::kill(first, libc::SIGQUIT) };
        wait_until_gone(&[first]);
        self.end_shell();
    }
}

fn wait_until_gone(processes: &[i32]) {
    let is_gone = |pid: &i32| state_and_parent(*pid).is_none_or(|(state, _)| matches!(state, 'Z' | 'X'));
    super::wait_until("the processes are gone", || processes.iter().all(is_gone));
}

/// A pooler in front of a server: it lends one of a few sessions for each transaction. It listens on a socket in its
/// own directory.
pub struct Pooler {
    process: Child,
    directory: Dir,
}

impl Pooler {
    /// Starts one in front of a server, with this many sessions.
    pub fn start(server: &PostgresServer, sessions: usize) -> Pooler {
        let directory = Dir::in_memory("pooler");
        let settings = format!(
            "[databases]\npostgres = host={} user=postgres\n\
             [pgbouncer]\nlisten_addr =\nlisten_port = 5432\nunix_socket_dir = {}\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = {sessions}\nmax_client_conn = 500\nserver_idle_timeout = 1\n",
            server.directory.0.display(),
            directory.0.display()
        );
        std::fs::write(directory.file("settings"), settings).unwrap();
        own(&directory.0);
        let process = command("pgbouncer")
            .arg("-q")
            .arg(directory.file("settings"))
            .current_dir("/")
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(directory.file("log")).unwrap())
            .spawn()
            .expect("pgbouncer is installed");
        let began = Instant::now();
        while UnixStream::connect(directory.file(".s.PGSQL.5432")).is_err() {
            let log = || std::fs::read_to_string(directory.file("log"));
            assert!(began.elapsed() < Duration::from_secs(60), "the pooler does not listen: {:?}", log());
            std::thread::sleep(Duration::from_millis(5));
        }
        Pooler { process, directory }
    }

    pub fn url(&self) -> String {
        format!("postgres:///postgres?host={}&user=postgres", self.directory.0.display())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
