//! The terminal, which is as it was before whatever ends the program.

use crate::context::Outcome;
use crate::failure::Failure;
use ratatui::DefaultTerminal;
use ratatui::Frame;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// It is restored when this is dropped, and by a hook before the message of a panic.
pub struct Screen {
    terminal: DefaultTerminal,
    /// The last of the signals that ask for the end; 0: none.
    signal: Arc<AtomicUsize>,
    handlers: Vec<SigId>,
}

impl Screen {
    pub fn open() -> Result<Screen, Failure> {
        let signal = Arc::new(AtomicUsize::new(0));
        // Before the terminal is changed, so that none of them ends the program while it is.
        let register = |number: i32| signal_hook::flag::register_usize(number, signal.clone(), number as usize);
        // (A terminal that has gone ends the program at once: there is nothing to restore, and to wait for a key would never end.)
        let handlers = [SIGINT, SIGTERM].into_iter().map(register).collect::<io::Result<Vec<SigId>>>()?;
        match ratatui::try_init() {
            Ok(terminal) => Ok(Screen { terminal, signal, handlers }),
            Err(error) => {
                ratatui::restore();
                Err(Failure::system(format!("this terminal cannot be drawn on: {error}")))
            }
        }
    }

    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<()> {
        self.terminal.draw(draw).map(drop)
    }

    /// Did a signal ask for the end, or has the terminal gone?
    pub fn signal(&self) -> Option<Outcome> {
        let mut input = libc::pollfd { fd: 0, events: 0, revents: 0 };
        // SAFETY: one descriptor to look at, without waiting.
        let is_gone = unsafe { libc::poll(&mut input, 1, 0) } == 1;
        match self.signal.load(Relaxed) as i32 {
            0 if is_gone => Some(Outcome::Ended(SIGHUP)),
            0 => None,
            SIGINT => Some(Outcome::Interrupted),
            number => Some(Outcome::Ended(number)),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}
