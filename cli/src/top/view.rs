//! The display of `top`.

use super::model::{Model, Sort, fullness};
use crate::json;
use crate::text::{self, Look};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use workglow_limit::observe::{LimitSnapshot, NEAR};

/// Smaller terminals do not show keys or processes.
const ROWS_FOR_KEYS: u16 = 16;
const COLUMNS_FOR_PROCESSES: u16 = 100;
const PROCESSES: u16 = 36;
const BAR: usize = 10;

pub fn draw(frame: &mut Frame, model: &mut Model) {
    let area = frame.area();
    let has_keys = area.height >= ROWS_FOR_KEYS && model.now.limits.iter().any(|limit| !limit.hot_keys.is_empty());
    let below = if has_keys { Constraint::Fill(2) } else { Constraint::Length(0) };
    let [head, limits, keys, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(3), below, Constraint::Length(1)]).areas(area);
    frame.render_widget(heading(model, area.width), head);
    let has_processes = area.width >= COLUMNS_FOR_PROCESSES && !model.now.processes.is_empty();
    let side = if has_processes { Constraint::Length(PROCESSES) } else { Constraint::Length(0) };
    let [limits, processes] =
        Layout::horizontal([Constraint::Fill(1), side]).spacing(u16::from(has_processes) * 2).areas(limits);
    draw_limits(frame, model, limits);
    if has_processes {
        frame.render_widget(self::processes(model), processes);
    }
    if has_keys {
        draw_keys(frame, model, keys);
    }
    frame.render_widget(footer(model), foot);
}

fn style(look: Look, model: &Model) -> Style {
    let style = Style::new();
    match (model.color, look) {
        (_, Look::Heading) => style.bold(),
        (_, Look::Faint) => style.dim(),
        (true, Look::Good) => style.green(),
        (true, Look::Near) => style.yellow(),
        (true, Look::Bad) => style.red(),
        // Without colours, bold marks what is full or failed.
        (false, Look::Bad) => style.bold(),
        _ => style,
    }
}

fn heading(model: &Model, width: u16) -> Text<'static> {
    let seen = &model.now;
    let mut right = text::several(seen.limits.len() as u64, "limit");
    if !seen.processes.is_empty() {
        right += &format!("  {}", text::several(seen.processes.len() as u64, "process"));
    }
    right += &format!("  {}", text::utc(seen.at).split_off(11));
    let left = text::cut(&text::clean(&seen.url), usize::from(width).saturating_sub(right.len() + 2));
    let gap = usize::from(width).saturating_sub(Line::raw(left.as_str()).width() + right.len());
    let first = Line::from(vec![Span::styled(left, Modifier::BOLD), Span::raw(" ".repeat(gap)), Span::raw(right)]);
    let waiting: u64 = seen.limits.iter().map(|limit| limit.waiting).sum();
    let second = match (&model.failed, model.is_held) {
        (Some(error), _) => Line::styled(text::cut(&text::clean(error), usize::from(width)), style(Look::Bad, model)),
        (None, true) => Line::styled("paused: press space to continue", style(Look::Near, model)),
        (None, false) => {
            let total = model.total();
            Line::raw(format!(
                "{} starts/s admitted, {} starts/s denied, {} waiting",
                pace(total.started),
                pace(total.denied),
                text::count(waiting)
            ))
        }
    };
    Text::from(vec![first, second])
}

/// A rate in few digits.
fn pace(count: f64) -> String {
    match count {
        c if c <= 0.0 => "-".to_owned(),
        c if c < 9.95 => format!("{c:.1}"),
        c if c < 99_999.5 => format!("{c:.0}"),
        c if c < 9_999_500.0 => format!("{:.0}k", c / 1e3),
        c => format!("{:.0}M", c / 1e6),
    }
}

fn bar(limit: &LimitSnapshot) -> String {
    let full = (fullness(limit).min(1_000_000) as usize * BAR).div_ceil(1_000_000);
    "█".repeat(full) + &"░".repeat(BAR - full)
}

fn look_of(limit: &LimitSnapshot) -> Look {
    match fullness(limit) {
        1_000_000.. => Look::Bad,
        share if share as f64 > NEAR * 1e6 => Look::Near,
        _ => Look::Good,
    }
}

fn right(text: impl Into<String>) -> Cell<'static> {
    Cell::from(Text::from(text.into()).right_aligned())
}

fn draw_limits(frame: &mut Frame, model: &mut Model, area: Rect) {
    // The first row is the heading.
    model.rows = usize::from(area.height.saturating_sub(1));
    model.scroll(0);
    let limits = model.limits();
    let shown: Vec<&LimitSnapshot> = limits.iter().skip(model.first).take(model.rows).copied().collect();
    let has_bar = area.width >= 76;
    let has_paces = area.width >= 56;
    let has_window = area.width >= 66;
    let has_state = area.width >= 44;
    let has_waiting = area.width >= 32;
    let widest = |of: &dyn Fn(&LimitSnapshot) -> usize| shown.iter().map(|limit| of(limit)).max().unwrap_or(0) as u16;
    let used =
        |limit: &LimitSnapshot| limit.usage.first().map_or_else(String::new, |u| format!("{}/{}", u.used, u.limit));
    let used_width = widest(&|limit| used(limit).len()).max(4);
    let mut titles: Vec<Cell> = vec!["LIMIT".into()];
    let mut widths = vec![Constraint::Min(8)];
    let mut column = |is_shown: bool, title: &'static str, width: u16| {
        if is_shown {
            titles.push(if matches!(title, "STATE" | "" | "IN") { title.into() } else { right(title) });
            widths.push(Constraint::Length(width));
        }
    };
    column(has_bar, "", BAR as u16);
    column(true, "USED", used_width);
    column(has_window, "IN", 4);
    column(has_paces, "START/s", 7);
    column(has_paces, "DENY/s", 6);
    column(has_waiting, "WAIT", 5);
    column(has_state, "STATE", 14);
    let fixed = |width: &Constraint| if let Constraint::Length(width) = width { width + 1 } else { 0 };
    let name_width = usize::from(area.width.saturating_sub(widths.iter().map(fixed).sum()).max(8));
    let rows = shown.iter().map(|limit| {
        let look = style(look_of(limit), model);
        let (state, state_look) = text::state(limit);
        let mark = if limit.overriding.is_some() { " *" } else { "" };
        let name = text::cut(&text::clean(&limit.name), name_width - mark.len()) + mark;
        let speed = model.pace(limit);
        let mut cells = vec![Cell::from(name)];
        let mut cell = |is_shown: bool, cell: Cell<'static>| {
            if is_shown {
                cells.push(cell);
            }
        };
        let window = limit.usage.first().and_then(|usage| usage.window).map_or_else(String::new, text::window);
        cell(has_bar, Cell::from(bar(limit)).style(look));
        cell(true, right(used(limit)).style(look));
        cell(has_window, Cell::from(window));
        cell(has_paces, right(pace(speed.started)));
        cell(has_paces, right(pace(speed.denied)));
        cell(has_waiting, right(if limit.waiting > 0 { text::count(limit.waiting) } else { "-".to_owned() }));
        cell(has_state, Cell::from(state).style(style(state_look, model)));
        Row::new(cells)
    });
    let table = Table::new(rows.collect::<Vec<_>>(), widths).header(Row::new(titles).style(Style::new().reversed()));
    frame.render_widget(table.column_spacing(1), area);
}

fn draw_keys(frame: &mut Frame, model: &Model, area: Rect) {
    let rows = usize::from(area.height.saturating_sub(1));
    let shown: Vec<_> = model.hot_keys().into_iter().take(rows).collect();
    let has_total = area.width >= 70;
    // An id is 17 columns wide.
    let key = if model.keys == json::Keys::Hidden { 18 } else { 28.min(area.width / 3) };
    let numbers = [11, 7, 6, if has_total { 9 } else { 0 }];
    let of = usize::from(area.width.saturating_sub(key + numbers.iter().sum::<u16>() + 5));
    let titles = ["HOTTEST KEY".into(), "OF".into(), right("USED"), right("START/s"), right("DENY/s"), right("DENIED")];
    let widths = [key].into_iter().map(Constraint::Length).chain([Constraint::Fill(1)]);
    let widths: Vec<Constraint> = widths.chain(numbers.map(Constraint::Length)).collect();
    let rows = shown.into_iter().map(|(limit, found, speed)| {
        let usage = found.usage.first();
        let look =
            usage.map_or(Look::Plain, |usage| text::look_of(usage, usage.used as f64 > NEAR * usage.limit as f64));
        let name = text::clean(&json::key_name(&found.key, &found.id, model.keys));
        Row::new(vec![
            Cell::from(text::cut(&name, usize::from(key))),
            Cell::from(text::cut(&text::clean(&limit.name), of)),
            right(usage.map_or_else(String::new, |u| format!("{}/{}", u.used, u.limit))).style(style(look, model)),
            right(pace(speed.started)),
            right(pace(speed.denied)),
            right(text::count(found.stats.denied)),
        ])
    });
    let table = Table::new(rows.collect::<Vec<_>>(), widths).header(Row::new(titles).style(Style::new().reversed()));
    frame.render_widget(table.column_spacing(1), area);
}

fn processes(model: &Model) -> Table<'static> {
    let rows = model.now.processes.iter().map(|process| {
        let pid = right(process.pid.to_string());
        Row::new(vec![pid, Cell::from(text::clean(&process.program)), right(text::about(process.since))])
    });
    let titles = Row::new(vec![right("PID"), "PROGRAM".into(), right("SINCE")]).style(Style::new().reversed());
    let widths = [Constraint::Length(7), Constraint::Fill(1), Constraint::Length(7)];
    Table::new(rows.collect::<Vec<_>>(), widths).header(titles).column_spacing(1)
}

fn footer(model: &Model) -> Paragraph<'static> {
    let mut spans = vec![Span::raw("sort: ")];
    for (sort, name) in Sort::ALL {
        let (key, rest) = name.split_at(1);
        let chosen = if model.sort == sort { Style::new().reversed() } else { Style::new() };
        spans.push(Span::styled(key, chosen.bold().underlined()));
        spans.push(Span::styled(rest, chosen));
        spans.push(Span::raw(" "));
    }
    spans.push(Span::raw("  "));
    spans.push(Span::styled("space", Style::new().bold()));
    spans.push(Span::raw(" pause  "));
    spans.push(Span::styled("q", Style::new().bold()));
    spans.push(Span::raw(" quit"));
    let (below, all) = (model.first + model.rows, model.now.limits.len());
    if all > model.rows {
        spans.push(Span::raw(format!("   {}-{} of {all}", model.first + 1, below.min(all))));
    }
    Paragraph::new(Line::from(spans))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Keys;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use workglow_limit::Store;
    use workglow_limit::observe::Observer;

    /// `top` refuses a store in memory, but it is enough for drawing.
    fn store() -> Store {
        let store = Store::new("memory:").unwrap();
        let mail = store.limiter("mail", "3/1h").unwrap();
        for key in ["acme", "acme", "acme", "acme", "bob"] {
            mail.decide(key, 1).unwrap();
        }
        store.limiter("idle", "5/1s").unwrap().open().unwrap();
        store.limiter("a\u{1b}[2J", "10 concurrent").unwrap().decide("", 9).unwrap();
        store
    }

    fn drawn(model: &mut Model, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..rows).map(line).collect()
    }

    fn model(store: &Store, keys: Keys) -> (Observer, Model) {
        let mut observer = Observer::new(store, 10);
        let model = Model::new((observer.look().unwrap(), store.names().unwrap()), keys, true);
        (observer, model)
    }

    /// The indexes of the lines that begin with these words.
    fn order(lines: &[String], words: [&str; 3]) -> [usize; 3] {
        words.map(|word| lines.iter().position(|line| line.starts_with(word)).unwrap_or_else(|| panic!("{lines:#?}")))
    }

    #[test]
    fn the_fullest_limit_is_first_and_names_are_escaped() {
        let (_, mut model) = model(&store(), Keys::Hidden);
        let lines = drawn(&mut model, 80, 24);
        let [mail, odd, idle] = order(&lines, ["mail", "a\\u{1b}[2J", "idle"]);
        assert!(mail < odd && odd < idle, "{lines:#?}");
        assert!(lines[mail].contains("██████████  3/3 1h") && lines[mail].contains("next in"), "{lines:#?}");
        assert!(lines[odd].contains("█████████░"), "{lines:#?}");
        model.sort_by(Sort::Name);
        let lines = drawn(&mut model, 80, 24);
        let [odd, idle, mail] = order(&lines, ["a\\u{1b}[2J", "idle", "mail"]);
        assert!(odd < idle && idle < mail, "{lines:#?}");
    }

    #[test]
    fn keys_are_ids_unless_text_is_requested() {
        let store = store();
        let (_, mut hidden) = model(&store, Keys::Hidden);
        let (_, mut shown) = model(&store, Keys::Shown);
        let has = |lines: &[String], text: &str| lines.iter().any(|line| line.starts_with(text));
        let lines = drawn(&mut hidden, 80, 24);
        assert!(!has(&lines, "acme") && has(&lines, "#"), "{lines:#?}");
        assert!(has(&drawn(&mut shown, 80, 24), "acme"));
    }

    #[test]
    fn the_view_fits_any_size_and_scrolls() {
        let (mut observer, mut model) = model(&store(), Keys::Shown);
        for (columns, rows) in [(1, 1), (3, 2), (10, 4), (40, 5), (79, 15), (200, 60)] {
            assert_eq!(drawn(&mut model, columns, rows).len(), usize::from(rows));
        }
        let lines = drawn(&mut model, 20, 5);
        assert_eq!(
            (lines[2].as_str(), lines[3].as_str()),
            ("LIMIT           USED", "mail             3/3"),
            "{lines:#?}"
        );
        let lines = drawn(&mut model, 80, 5);
        assert!(lines[3].starts_with("mail") && lines[4].contains("1-1 of 3"), "{lines:#?}");
        model.scroll(1);
        model.take(observer.look().map(|seen| (seen, Vec::new())));
        assert!(drawn(&mut model, 80, 5)[4].contains("2-2 of 3"));
        model.scroll(isize::MAX);
        assert!(drawn(&mut model, 80, 5)[3].starts_with("idle"));
    }

    #[test]
    fn a_start_of_a_composite_is_counted_once() {
        let store = store();
        let openai = store.limiter("openai", "100/1m + 5 concurrent").unwrap();
        openai.open().unwrap();
        let (mut observer, mut model) = model(&store, Keys::Hidden);
        let mut started = || {
            let mut seen = observer.look().unwrap();
            // A second later, whatever the time is.
            seen.at = model.now.at + std::time::Duration::from_secs(1);
            model.take(Ok((seen, store.names().unwrap())));
            model.total().started
        };
        assert_eq!(started(), 0.0);
        let held: Vec<_> = (0..3).map(|_| openai.try_acquire("", 1).unwrap().unwrap()).collect();
        assert_eq!(started(), 3.0);
        assert!(store.find("mail").unwrap().try_acquire("carol", 2).unwrap().is_some());
        assert_eq!(started(), 1.0);
        drop(held);
    }

    #[test]
    fn a_failed_snapshot_shows_its_error_and_keeps_the_last_one() {
        let (_, mut model) = model(&store(), Keys::Hidden);
        model.take("x".parse::<workglow_limit::Policy>().map(|_| unreachable!()));
        let lines = drawn(&mut model, 80, 24);
        assert!(lines[1].contains("policy is"), "{lines:#?}");
        order(&lines, ["mail", "idle", "a"]);
    }
}
