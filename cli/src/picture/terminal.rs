//! Draws a picture in a terminal, with block characters or in ASCII.

use super::{Panel, Picture, Tone, value};
use crate::context::Context;
use crate::text;
use std::env;

const ROWS: usize = 8;
/// The columns of the axis labels.
const LEFT: usize = 5;
const MIN_WIDTH: usize = 20;
const MAX_WIDTH: usize = 160;
const USUAL_WIDTH: usize = 80;

/// The capabilities of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    width: usize,
    is_ascii: bool,
    has_color: bool,
}

impl Terminal {
    /// Takes the width from the terminal or else from `COLUMNS`. Block characters need a UTF-8 locale.
    pub fn of(context: &Context, is_ascii: bool) -> Terminal {
        let variable = || env::var("COLUMNS").ok()?.parse().ok();
        let width = text::columns().or_else(variable).unwrap_or(USUAL_WIDTH).clamp(MIN_WIDTH, MAX_WIDTH);
        Terminal { width, is_ascii: is_ascii || !is_utf8(), has_color: context.color }
    }

    fn colored(&self, text: &str, code: &str) -> String {
        if self.has_color && !text.trim().is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Returns whether the locale is UTF-8. As in the C library, the first variable that is set decides.
fn is_utf8() -> bool {
    let mut variables = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| env::var(name).ok());
    let locale = variables.find(|value| !value.is_empty());
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// A full cell of a tone, and its colour.
fn look(tone: Tone, is_ascii: bool) -> (char, &'static str) {
    match (tone, is_ascii) {
        (Tone::Started, false) => ('█', "34"),
        (Tone::Denied, false) => ('░', "31"),
        (Tone::Waiting, false) => ('█', "33"),
        (Tone::Used, false) => ('█', "36"),
        (Tone::Started, true) => ('#', "34"),
        (Tone::Denied, true) => ('.', "31"),
        (Tone::Waiting, true) => ('w', "33"),
        (Tone::Used, true) => ('#', "36"),
    }
}

const LIMIT_COLOR: &str = "33";
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The lines of all panels.
pub fn draw(picture: &Picture, terminal: Terminal) -> Vec<String> {
    let mut lines = Vec::new();
    for (panel, marks) in picture.in_columns(terminal.width - LEFT - 3, 4) {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(draw_panel(&panel, &marks, terminal));
    }
    let caption = |last: &Panel| format!("{:>1$}", text::cut(&last.time.caption(), terminal.width), terminal.width);
    lines.extend(picture.panels.last().map(caption));
    lines
}

fn draw_panel(panel: &Panel, marks: &[f64], terminal: Terminal) -> Vec<String> {
    let most = marks.last().copied().unwrap_or(1.0);
    let labels: Vec<String> = marks.iter().map(|mark| value(*mark)).collect();
    let columns = terminal.width - LEFT - 3;
    // If there are fewer bins than columns, a bin is several columns wide.
    let layers: Vec<(Tone, Vec<f64>)> =
        panel.layers.iter().map(|layer| (layer.tone, layer.in_columns(columns, (0.0, 1.0)).values)).collect();
    let row_of = |value: f64| (value / most * ROWS as f64).min(ROWS as f64);
    let limit_row = panel.line.as_ref().map(|(line, _)| (row_of(*line).ceil() as usize).clamp(1, ROWS) - 1);

    let mut lines = vec![heading(panel, terminal)];
    for row in (0..ROWS).rev() {
        // A mark on the upper edge of a row is the label of that row.
        let label = marks.iter().position(|mark| *mark > 0.0 && row_of(*mark).round() as usize == row + 1);
        let label = label.map_or("", |i| &labels[i]);
        let axis = match (terminal.is_ascii, label.is_empty()) {
            (true, _) => '|',
            (false, true) => '│',
            (false, false) => '┤',
        };
        let mut line = format!("{label:>LEFT$} {axis}");
        for column in 0..columns {
            let cell = cell(&layers, column, row, row_of, terminal);
            let cell = match cell {
                None if limit_row == Some(row) => {
                    terminal.colored(if terminal.is_ascii { "-" } else { "┄" }, LIMIT_COLOR)
                }
                None => " ".to_owned(),
                Some((c, color)) => terminal.colored(&c.to_string(), color),
            };
            line.push_str(&cell);
        }
        lines.push(line.trim_end().to_owned());
    }
    lines.extend(times(panel, terminal, columns));
    lines
}

/// The character of a cell: that of the lowest layer that fills half of it. The last layer may fill a part.
fn cell(
    layers: &[(Tone, Vec<f64>)],
    column: usize,
    row: usize,
    row_of: impl Fn(f64) -> f64,
    terminal: Terminal,
) -> Option<(char, &'static str)> {
    let mut sum = 0.0;
    let row = row as f64;
    let total: f64 = layers.iter().map(|(_, values)| values[column]).sum();
    for (tone, values) in layers {
        if values[column] <= 0.0 {
            continue;
        }
        let from = row_of(sum);
        sum += values[column];
        let filled = row_of(sum) - row;
        let (full, color) = look(*tone, terminal.is_ascii);
        let is_last = sum >= total;
        // The smallest value is still visible.
        let is_seen = is_last && row == 0.0 && from < 1.0;
        if filled >= 1.0 {
            if from < row + 0.5 || is_last {
                return Some((full, color));
            }
            continue;
        }
        if terminal.is_ascii || full == '░' {
            if filled >= 0.5 || is_seen {
                return Some((full, color));
            }
        } else if is_last || filled >= 0.5 {
            let eighths = (filled * 8.0).round() as usize;
            if filled > 0.0 && (eighths > 0 || is_seen) {
                return Some((EIGHTHS[eighths.clamp(1, 8)], color));
            }
        }
    }
    None
}

/// The title and the legend.
fn heading(panel: &Panel, terminal: Terminal) -> String {
    let mut line = format!("{} ({})", panel.heading(), panel.unit);
    if panel.layers.len() > 1 {
        for layer in &panel.layers {
            let (full, color) = look(layer.tone, terminal.is_ascii);
            line += &format!("  {} {}", terminal.colored(&full.to_string(), color), layer.name);
        }
    }
    if let Some((_, name)) = &panel.line {
        let sign = if terminal.is_ascii { "--" } else { "┄┄" };
        line += &format!("  {} {name}", terminal.colored(sign, LIMIT_COLOR));
    }
    line
}

/// The time axis.
fn times(panel: &Panel, terminal: Terminal, columns: usize) -> [String; 2] {
    let (corner, rule, tick) = if terminal.is_ascii { ('+', '-', '+') } else { ('└', '─', '┴') };
    let mut axis = vec![rule; columns];
    let mut texts = vec![' '; LEFT + 2 + columns];
    let mut free = 0;
    for (part, text) in panel.time.marks((columns / 12).max(1)) {
        let at = ((part * columns as f64).round() as usize).min(columns - 1);
        axis[at] = tick;
        let begin = (LEFT + 2 + at).saturating_sub(text.chars().count() / 2);
        let begin = begin.min(texts.len().saturating_sub(text.chars().count()));
        if begin < free {
            continue;
        }
        for (i, c) in text.chars().enumerate() {
            texts[begin + i] = c;
        }
        free = begin + text.chars().count() + 1;
    }
    let axis: String = axis.into_iter().collect();
    [format!("{:>LEFT$} {corner}{axis}", "0"), texts.into_iter().collect::<String>().trim_end().to_owned()]
}
