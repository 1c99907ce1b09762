//! Draws a picture as SVG: one self-contained file, for light and dark pages.

use super::{Panel, Picture, Tone, value};
use crate::failure::Failure;
use std::fmt::Write as _;
use std::path::Path;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const HEIGHT: f64 = 132.0;
/// The title is above a panel, the times are below it.
const ABOVE: f64 = 38.0;
const BELOW: f64 = 24.0;

/// More bins would be thinner than a line.
const MAX_BINS: usize = 240;

/// The colours are distinguishable for colour-blind readers and in print.
const STYLE: &str = "
  .page { fill: #ffffff; stroke: #d0d7de }
  text { font: 12px system-ui, -apple-system, sans-serif; fill: #1f2328 }
  .title { font: 600 16px system-ui, -apple-system, sans-serif }
  .panel { font-weight: 600 }
  .quiet { fill: #59636e }
  .end { text-anchor: end } .middle { text-anchor: middle }
  .grid { stroke: #d0d7de; stroke-opacity: .7 } .base { stroke: #8c959f }
  .limit { stroke: #bc4c00; stroke-width: 1.5; stroke-dasharray: 6 4 } .limit-text { fill: #bc4c00 }
  .started { fill: #0969da } .denied { fill: #b6bdc5 } .waiting { fill: #bf8700 } .used { fill: #57606a; fill-opacity: .55 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d }
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .grid { stroke: #3d444d } .base { stroke: #656c76 }
    .limit { stroke: #f0883e } .limit-text { fill: #f0883e }
    .started { fill: #58a6ff } .denied { fill: #59626c } .waiting { fill: #d29922 } .used { fill: #9198a1 }
  }
";

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Started => "started",
        Tone::Denied => "denied",
        Tone::Waiting => "waiting",
        Tone::Used => "used",
    }
}

/// A text as XML. Characters that XML does not allow are removed.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The SVG so far.
struct Drawing(String);

impl Drawing {
    fn put(&mut self, element: std::fmt::Arguments) {
        writeln!(self.0, "{element}").expect("writing to a String cannot fail");
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.put(format_args!(r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{}</text>"#, escape(text)));
    }

    fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], class: &str) {
        self.put(format_args!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#));
    }
}

/// Writes the picture to a file.
pub fn write(path: &Path, picture: &Picture) -> Result<(), Failure> {
    std::fs::write(path, draw(picture)).map_err(|error| Failure::system(format!("svg {}: {error}", path.display())))
}

/// The whole file.
pub fn draw(picture: &Picture) -> String {
    let top = 48.0 + 18.0 * picture.about.len() as f64;
    let height = top + picture.panels.len() as f64 * (ABOVE + HEIGHT + BELOW) + 18.0;
    let mut svg = Drawing(String::new());
    svg.put(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="title desc">"#
    ));
    svg.put(format_args!(r#"<title id="title">{}</title>"#, escape(&picture.title)));
    svg.put(format_args!(r#"<desc id="desc">{}</desc>"#, escape(&describe(picture))));
    svg.put(format_args!("<style>{STYLE}</style>"));
    let (page_width, page_height) = (WIDTH - 1.0, height - 1.0);
    svg.put(format_args!(r#"<rect x="0.5" y="0.5" width="{page_width}" height="{page_height}" rx="6" class="page"/>"#));
    svg.text(20.0, 30.0, "title", &picture.title);
    for (i, line) in picture.about.iter().enumerate() {
        svg.text(20.0, 50.0 + 18.0 * i as f64, "quiet", line);
    }
    for (i, (panel, marks)) in picture.in_columns(MAX_BINS, 5).iter().enumerate() {
        draw_panel(&mut svg, panel, marks, top + i as f64 * (ABOVE + HEIGHT + BELOW) + ABOVE);
    }
    if let Some(last) = picture.panels.last() {
        svg.text(WIDTH - RIGHT, height - 10.0, "quiet end", &last.time.caption());
    }
    svg.0 + "</svg>\n"
}

/// The description for screen readers.
fn describe(picture: &Picture) -> String {
    let mut text = picture.about.join(". ");
    for panel in &picture.panels {
        let names: Vec<&str> = panel.layers.iter().map(|layer| layer.name).collect();
        let line = panel.line.as_ref().map(|(_, name)| format!(", against the {name}")).unwrap_or_default();
        write!(text, ". {} ({}): {}{line}", panel.heading(), panel.unit, names.join(", "))
            .expect("writing to a String cannot fail");
    }
    text.trim_start_matches(". ").to_owned() + "."
}

fn draw_panel(svg: &mut Drawing, panel: &Panel, marks: &[f64], top: f64) {
    let most = marks.last().copied().unwrap_or(1.0);
    let base = top + HEIGHT;
    let x = |part: f64| LEFT + (WIDTH - LEFT - RIGHT) * part;
    let y = |value: f64| base - HEIGHT * (value / most).min(1.0);

    svg.text(20.0, top - 14.0, "panel", &panel.heading());
    // From right to left: the limit, the legend and the unit.
    let (mut right, row) = (WIDTH - RIGHT, top - 14.0);
    let width = |text: &str| 6.5 * text.chars().count() as f64;
    if let Some((_, name)) = &panel.line {
        svg.text(right, row, "limit-text end", name);
        right -= width(name) + 8.0;
        svg.line([right - 22.0, row - 4.0, right, row - 4.0], "limit");
        right -= 36.0;
    }
    for layer in panel.layers.iter().rev().filter(|_| panel.layers.len() > 1) {
        svg.text(right, row, "quiet end", layer.name);
        right -= width(layer.name) + 16.0;
        let (y, class) = (row - 9.0, class(layer.tone));
        svg.put(format_args!(r#"<rect x="{right:.1}" y="{y:.1}" width="10" height="10" rx="2" class="{class}"/>"#));
        right -= 14.0;
    }
    svg.text(right, row, "quiet end", &panel.unit);

    for mark in marks {
        svg.line([LEFT, y(*mark), WIDTH - RIGHT, y(*mark)], if *mark == 0.0 { "base" } else { "grid" });
        svg.text(LEFT - 8.0, y(*mark) + 4.0, "quiet end", &value(*mark));
    }
    for (part, text) in panel.time.marks(8) {
        svg.line([x(part), base, x(part), base + 4.0], "base");
        // The last label stays inside the picture.
        let anchor = if part > 0.97 { "quiet end" } else { "quiet middle" };
        let at = if part > 0.97 { WIDTH - RIGHT } else { x(part) };
        svg.text(at, base + 18.0, anchor, &text);
    }

    // A step for each bin.
    let bins = panel.layers.iter().map(|layer| layer.values.len()).max().unwrap_or(0);
    let mut below = vec![0.0; bins];
    for layer in &panel.layers {
        let above: Vec<f64> = (0..bins).map(|i| below[i] + layer.values.get(i).copied().unwrap_or(0.0)).collect();
        if let Some(area) = area(&below, &above, x, y) {
            svg.put(format_args!(r#"<path d="{area}" class="{}"/>"#, class(layer.tone)));
        }
        below = above;
    }
    svg.line([LEFT, base, WIDTH - RIGHT, base], "base");
    if let Some((line, _)) = &panel.line {
        svg.line([LEFT, y(*line), WIDTH - RIGHT, y(*line)], "limit");
    }
}

/// The outline of the area between two rows of steps, without empty bins.
fn area(below: &[f64], above: &[f64], x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> Option<String> {
    let bins = above.len();
    let mut path = String::new();
    let mut i = 0;
    while i < bins {
        if above[i] <= below[i] {
            i += 1;
            continue;
        }
        let first = i;
        while i < bins && above[i] > below[i] {
            i += 1;
        }
        let steps = |heights: &[f64], order: &mut dyn Iterator<Item = usize>, path: &mut String, is_back: bool| {
            for at in order {
                let (near, far) = (x(at as f64 / bins as f64), x((at + 1) as f64 / bins as f64));
                let (from, to) = if is_back { (far, near) } else { (near, far) };
                write!(path, "L{from:.1},{0:.1} L{to:.1},{0:.1} ", y(heights[at]))
                    .expect("writing to a String cannot fail");
            }
        };
        let mut run = String::new();
        steps(above, &mut (first..i), &mut run, false);
        steps(below, &mut (first..i).rev(), &mut run, true);
        write!(path, "M{}Z ", run.trim_start_matches('L')).expect("writing to a String cannot fail");
    }
    (!path.is_empty()).then(|| path.trim_end().to_owned())
}
