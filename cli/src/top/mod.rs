//! `top`: a live view of the limits, updated once a second.

mod model;
mod terminal;
mod view;

use crate::context::{Context, Outcome, look};
use crate::failure::Failure;
use model::{Model, Sort};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};
use terminal::Screen;
use workglow_limit::observe::Observer;

/// Show limits, busy keys, denials and waiters live in the terminal
///
/// Keys: u, d, w, s, n sort by usage, denials, waiters, starts, name; arrows, PgUp and PgDn scroll; space pauses the display; q quits.
#[derive(Debug, clap::Args)]
pub struct Args {}

const EVERY: Duration = Duration::from_secs(1);
/// The longest time until a new terminal size is noticed.
const GLANCE: Duration = Duration::from_millis(200);
const AT_ONCE: Duration = Duration::from_millis(5);
const KEYS: usize = 50;

pub fn run(_args: Args, context: &Context) -> Result<Outcome, Failure> {
    if context.json || !io::stdout().is_terminal() {
        return Err(Failure::usage("top needs a terminal")
            .hint("use status --json for a snapshot, or watch for a stream of events"));
    }
    let store = context.store()?;
    let mut observer = Observer::new(&store, KEYS);
    let mut look = || look(&mut observer).and_then(|seen| Ok((seen, store.names()?)));
    let mut model = Model::new(look()?, context.keys, context.color);
    let mut screen = Screen::open()?;
    let mut looked = Instant::now();
    loop {
        screen.draw(|frame| view::draw(frame, &mut model))?;
        let mut next = EVERY.saturating_sub(looked.elapsed());
        while next > Duration::ZERO {
            if !screen.wait(next.min(GLANCE)) {
                return Ok(Outcome::Done);
            }
            let mut is_another = false;
            while event::poll(AT_ONCE)? {
                is_another = true;
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        if let Some(outcome) = press(key, &mut model) {
                            return Ok(outcome);
                        }
                    }
                    // Such as a new size.
                    _ => {}
                }
            }
            if is_another {
                screen.draw(|frame| view::draw(frame, &mut model))?;
            }
            next = EVERY.saturating_sub(looked.elapsed());
        }
        looked = Instant::now();
        if !model.is_held {
            model.take(look());
        }
    }
}

/// Handles a key. Returns an outcome if the key ends the command.
fn press(key: KeyEvent, model: &mut Model) -> Option<Outcome> {
    let page = model.rows.max(1) as isize;
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Some(Outcome::Interrupted),
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Some(Outcome::Done),
        KeyCode::Char('u') => model.sort_by(Sort::Used),
        KeyCode::Char('d') => model.sort_by(Sort::Denied),
        KeyCode::Char('w') => model.sort_by(Sort::Waiting),
        KeyCode::Char('s') => model.sort_by(Sort::Started),
        KeyCode::Char('n') => model.sort_by(Sort::Name),
        KeyCode::Char(' ') => model.is_held = !model.is_held,
        KeyCode::Up | KeyCode::Char('k') => model.scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => model.scroll(1),
        KeyCode::PageUp => model.scroll(-page),
        KeyCode::PageDown => model.scroll(page),
        KeyCode::Home => model.scroll(isize::MIN),
        KeyCode::End => model.scroll(isize::MAX),
        _ => {}
    }
    None
}
