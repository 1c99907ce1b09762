//! Redis servers for a single test that know each other and therefore listen on ports.

use super::Dir;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// One of these servers. It ends with this value, and with this process.
pub struct Node {
    shell: Child,
    pub directory: Dir,
    pub port: u16,
}

/// An unused port of this machine.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Node {
    /// Starts one with these arguments and its own port, and another port for the cluster bus.
    pub fn start(name: &str, arguments: &[&str]) -> Node {
        Self::start_by(name, "--port", arguments)
    }

    /// Starts one that takes its port from another argument.
    pub fn start_by(name: &str, port_by: &str, arguments: &[&str]) -> Node {
        // Another process may take a free port first.
        for _ in 0..10 {
            let (directory, port, bus) = (Dir::in_memory(name), free_port().to_string(), free_port().to_string());
            // The shell ends the server when this process ends, in whatever way.
            let shell = Command::new("sh")
                .args([
                    "-c",
                    r#"redis-server "$@" >"$0/log" & echo $! >"$0/pid"; cat; kill -9 $! 2>/dev/null; rm -rf "$0""#,
                ])
                .arg(&directory.0)
                .args(arguments)
                .args([port_by, &port, "--cluster-port", &bus, "--bind", "127.0.0.1", "--dir"])
                .arg(&directory.0)
                .args(["--save", "", "--appendonly", "no", "--enable-debug-command", "yes"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server is installed");
            let node = Node { shell, directory, port: port.parse().unwrap() };
            let began = Instant::now();
            let text = |file| std::fs::read_to_string(node.directory.file(file)).unwrap_or_default();
            let is_gone = || !text("log").contains("Ready to accept") || !text("pid").ends_with('\n');
            while TcpStream::connect(("127.0.0.1", node.port)).is_err() || is_gone() {
                if began.elapsed() > Duration::from_secs(20) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            if !is_gone() {
                return node;
            }
        }
        panic!("no server listens");
    }

    /// Starts a Sentinel that watches a primary.
    pub fn start_sentinel(name: &str, primary: u16, quorum: usize) -> Node {
        for _ in 0..10 {
            let (directory, port) = (Dir::in_memory(name), free_port());
            let text = format!(
                "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary} {quorum}\n\
                 sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 4000\n"
            );
            std::fs::write(directory.file("sentinel.conf"), text).unwrap();
            let shell = Command::new("sh")
                .args(["-c", r#"redis-server "$0/sentinel.conf" --sentinel >"$0/log" & echo $! >"$0/pid"; cat; kill -9 $! 2>/dev/null; rm -rf "$0""#])
                .arg(&directory.0)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server is installed");
            let node = Node { shell, directory, port };
            for _ in 0..2_000 {
                // Another program may have taken the port.
                let text = |file| std::fs::read_to_string(node.directory.file(file)).unwrap_or_default();
                let is_ours = text("log").contains("Sentinel ID is") && text("pid").ends_with('\n');
                if is_ours && TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return node;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        panic!("no Sentinel listens");
    }

    pub fn signal(&self, signal: i32) {
        let text = std::fs::read_to_string(self.directory.file("pid")).unwrap();
        let pid: i32 = text.trim().parse().unwrap();
        // SAFETY: the server is a child of a shell that waits for it at its own end, so the number is still its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// The output of `redis-cli`.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let port = self.port.to_string();
        text_of(Command::new("redis-cli").args(["-p", &port]).args(arguments).output().unwrap())
    }
}

/// The output of a program.
pub fn text_of(output: Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
