//! The terminal of `top`, restored however the program ends.

use crate::failure::Failure;
use ratatui::DefaultTerminal;
use ratatui::Frame;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, register, unregister};
use std::io;
use std::time::Duration;

/// Leaves the alternate screen and shows the cursor.
const BACK: &[u8] = b"\x1b[?1049l\x1b[?25h";

/// The terminal while `top` draws on it. It is restored by `drop`, by a panic hook, and by signals that end the program.
pub struct Screen {
    terminal: DefaultTerminal,
    handlers: Vec<SigId>,
}

/// The settings of the terminal.
fn settings() -> io::Result<libc::termios> {
    // SAFETY: a zeroed `termios` is valid.
    let mut found: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is a valid pointer.
    match unsafe { libc::tcgetattr(libc::STDOUT_FILENO, &mut found) } {
        0 => Ok(found),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Restores the terminal to these settings on a signal, and lets the signal end the program.
fn end_by(signal: i32, before: libc::termios) -> io::Result<SigId> {
    let end = move || {
        // SAFETY: both are async-signal-safe, and their arguments live as long as the handler.
        unsafe {
            libc::tcsetattr(libc::STDOUT_FILENO, libc::TCSANOW, &before);
            libc::write(libc::STDOUT_FILENO, BACK.as_ptr().cast(), BACK.len());
        }
        let _ = emulate_default_handler(signal);
    };
    // SAFETY: the handler calls only async-signal-safe functions.
    unsafe { register(signal, end) }
}

impl Screen {
    pub fn open() -> Result<Screen, Failure> {
        let failed = |error| Failure::system(format!("this terminal cannot be drawn on: {error}"));
        let before = settings().map_err(failed)?;
        // Registered before the terminal is changed, so that no signal can leave it changed.
        let handlers = [SIGINT, SIGTERM, SIGHUP].into_iter().map(|signal| end_by(signal, before));
        let handlers = handlers.collect::<io::Result<Vec<SigId>>>().map_err(failed)?;
        match ratatui::try_init() {
            Ok(terminal) => Ok(Screen { terminal, handlers }),
            Err(error) => {
                ratatui::restore();
                Err(failed(error))
            }
        }
    }

    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }

    /// Waits for a key. Returns whether the terminal still exists. (Reads from a closed terminal return nothing at once, in a loop.)
    pub fn wait(&self, longest: Duration) -> bool {
        let mut out = libc::pollfd { fd: libc::STDOUT_FILENO, events: libc::POLLIN, revents: 0 };
        let ms = libc::c_int::try_from(longest.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: `out` is one valid entry.
        let ready = unsafe { libc::poll(&mut out, 1, ms) };
        ready <= 0 || out.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) == 0
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
        for handler in self.handlers.drain(..) {
            unregister(handler);
        }
    }
}
