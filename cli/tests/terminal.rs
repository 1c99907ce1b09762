//! `top`, confirmations and colours on a terminal.

mod common;

use common::{Dir, command, used, wait_until};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Child;
use std::sync::{Arc, Mutex};

/// A pseudo-terminal with a command that runs on it.
struct Terminal {
    ours: File,
    theirs: OwnedFd,
    child: Child,
    seen: Arc<Mutex<String>>,
    before: libc::termios,
}

fn settings(terminal: &OwnedFd) -> libc::termios {
    // SAFETY: a zeroed `termios` is valid.
    let mut found: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: an open terminal and a valid pointer.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut found) }, 0);
    found
}

/// Starts a command on a new terminal of this size. `is_own` makes it the command's controlling terminal.
fn start(url: &str, args: &[&str], (rows, columns): (u16, u16), is_own: bool) -> (File, OwnedFd, Child, libc::termios) {
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: valid pointers and a size; the name and the settings are optional.
    let made = unsafe { libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size) };
    assert_eq!(made, 0);
    // SAFETY: new descriptors without another owner. A child with our end would keep the terminal open.
    let (ours, theirs) = unsafe {
        libc::fcntl(ours, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::fcntl(theirs, libc::F_SETFD, libc::FD_CLOEXEC);
        (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs))
    };
    let before = settings(&theirs);
    let copy = || theirs.try_clone().unwrap();
    let mut command = command(url, args);
    command.stdin(copy()).stdout(copy()).stderr(copy());
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::setsid();
            if is_own {
                libc::ioctl(0, libc::TIOCSCTTY, 0);
            }
            Ok(())
        })
    };
    let child = command.spawn().unwrap();
    (ours, theirs, child, before)
}

impl Terminal {
    fn start(url: &str, args: &[&str], size: (u16, u16)) -> Terminal {
        let (ours, theirs, child, before) = start(url, args, size, true);
        let seen = Arc::new(Mutex::new(String::new()));
        let (mut reader, writer) = (ours.try_clone().unwrap(), seen.clone());
        // The thread ends with the terminal.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                writer.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Terminal { ours, theirs, child, seen, before }
    }

    fn wait_for(&self, text: &str) {
        wait_until(text, || self.seen.lock().unwrap().contains(text));
    }

    fn press(&mut self, keys: &[u8]) {
        self.ours.write_all(keys).unwrap();
    }

    /// Returns the exit code, or 128 plus the signal, and checks that the terminal is restored.
    fn end(mut self) -> i32 {
        let mut code = None;
        wait_until("it ends", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        let after = settings(&self.theirs);
        assert_eq!((after.c_lflag, after.c_iflag), (self.before.c_lflag, self.before.c_iflag));
        let status = code.unwrap();
        status.code().or_else(|| Some(128 + status.signal()?)).unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sequence that leaves the alternate screen.
const BACK: &str = "\x1b[?1049l";

#[test]
fn top_ends_on_q_on_ctrl_c_and_on_signals() {
    let dir = Dir::new("top");
    let _store = used(&dir.url());
    for (how, code) in [("q", 0), ("\x03", 130), ("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let mut top = Terminal::start(&dir.url(), &["top"], (24, 80));
        top.wait_for("openai/concurrency");
        match how {
            "TERM" | "INT" | "HUP" => {
                let signal = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP]["TIH".find(&how[..1]).unwrap()];
                // SAFETY: the child has not been waited for, so the id is still valid.
                unsafe { libc::kill(top.child.id() as i32, signal) };
            }
            key => top.press(key.as_bytes()),
        }
        top.wait_for(BACK);
        assert_eq!(top.end(), code, "{how:?}");
    }
}

#[test]
fn top_ends_when_its_terminal_closes() {
    let dir = Dir::new("gone");
    let _store = used(&dir.url());
    // With and without a signal.
    for is_own in [true, false] {
        let (mut ours, theirs, mut child, _) = start(&dir.url(), &["top"], (24, 80), is_own);
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("stripe") {
            let mut bytes = [0; 4096];
            let read = ours.read(&mut bytes).unwrap();
            seen.extend_from_slice(&bytes[..read]);
        }
        drop((ours, theirs));
        wait_until("it ends", || child.try_wait().unwrap().is_some());
    }
}

#[test]
fn top_draws_in_any_size_and_follows_changes() {
    let dir = Dir::new("sizes");
    let _store = used(&dir.url());
    for size in [(1, 1), (2, 10), (5, 20), (24, 80), (40, 120), (100, 400)] {
        let mut top = Terminal::start(&dir.url(), &["top"], size);
        top.wait_for("\x1b[?1049h");
        let other = libc::winsize { ws_row: 3, ws_col: 30, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: an open terminal and a size.
        assert_eq!(unsafe { libc::ioctl(top.ours.as_raw_fd(), libc::TIOCSWINSZ, &other) }, 0);
        top.press(b"dwsnuq");
        assert_eq!(top.end(), 0, "{size:?}");
    }
}

#[test]
fn only_yes_confirms() {
    let dir = Dir::new("questions");
    let store = used(&dir.url());
    let is_full = || !store.find("mail").unwrap().peek("acme", 1).unwrap().admitted;
    for answer in ["n\n", "\n", "later\n", "\x04"] {
        let mut asked = Terminal::start(&dir.url(), &["clear", "mail"], (24, 80));
        asked.wait_for("mail: forget the past starts of all keys? [y/N]");
        asked.press(answer.as_bytes());
        asked.wait_for("nothing was changed");
        assert_eq!(asked.end(), 6, "{answer:?}");
        assert!(is_full());
    }
    let mut asked = Terminal::start(&dir.url(), &["clear", "mail"], (24, 80));
    asked.wait_for("[y/N]");
    asked.press(b"y\n");
    asked.wait_for("mail: reset");
    assert_eq!(asked.end(), 0);
    assert!(!is_full());
}

#[test]
fn colours_appear_only_on_terminals_without_no_color() {
    let dir = Dir::new("colours");
    let _store = used(&dir.url());
    let mut plain = Terminal::start(&dir.url(), &["status"], (24, 80));
    plain.wait_for("stripe");
    plain.wait_for("\x1b[31m3/3");
    assert!(plain.child.wait().unwrap().success());
    let mut command = command(&dir.url(), &["status"]);
    let ran = command.env("NO_COLOR", "1").output().unwrap();
    assert!(!String::from_utf8(ran.stdout).unwrap().contains('\x1b'));
}
