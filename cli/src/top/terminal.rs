//! The terminal, which is as it was before whatever ends the program.

use crate::failure::Failure;
use ratatui::DefaultTerminal;
use ratatui::Frame;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::{emulate_default_handler, register, unregister};
use std::io;
use std::time::Duration;

/// Shows what was there before, and the cursor.
const BACK: &[u8] = b"\x1b[?1049l\x1b[?25h";

/// It is restored when this is dropped, by a hook before the message of a panic, and by signals that end the program.
pub struct Screen {
    terminal: DefaultTerminal,
    handlers: Vec<SigId>,
}

/// How the terminal is set.
fn settings() -> io::Result<libc::termios> {
    // SAFETY: a zeroed `termios` is a valid place for the answer.
    let mut found: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is a valid place.
    match unsafe { libc::tcgetattr(libc::STDOUT_FILENO, &mut found) } {
        0 => Ok(found),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets a signal end the program at once, whatever it waits for, with the terminal as it is now.
fn end_by(signal: i32, before: libc::termios) -> io::Result<SigId> {
    let end = move || {
        // SAFETY: both may be called in a handler, on values that live as long as it.
        unsafe {
            libc::tcsetattr(libc::STDOUT_FILENO, libc::TCSANOW, &before);
            libc::write(libc::STDOUT_FILENO, BACK.as_ptr().cast(), BACK.len());
        }
        let _ = emulate_default_handler(signal);
    };
    // SAFETY: it calls only what may be called in a handler.
    unsafe { register(signal, end) }
}

impl Screen {
    pub fn open() -> Result<Screen, Failure> {
        let failed = |error| Failure::system(format!("this terminal cannot be drawn on: {error}"));
        let before = settings().map_err(failed)?;
        // Before the terminal is changed, so that none of them ends the program while it is.
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

    /// Waits until a key is pressed, for so long at most. Is the terminal still there? (A read from one that is gone
    /// would return nothing, again and again.)
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
