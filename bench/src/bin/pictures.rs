//! Draws `docs/pictures`: the same requests against each limiter, with a manual clock, so that every run draws the
//! same.
//!
//! `cargo run -p workglow-limit-bench --bin pictures DIRECTORY`

#[path = "pictures/turns.rs"]
mod turns;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::custom::{Custom, CustomLimiter, End, Verdict};
use workglow_limit::{
    Attempt, CompositeLimiter, Limiter, ManualClock, NullLimiter, Presented, RawPermit, Reserved, Result, Store,
    StoreOptions,
};

/// All times are in microseconds.
const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;
const END: u64 = 4 * SECOND;
/// A burst of this many requests at each of these moments ...
const BURST: usize = 25;
const BURSTS: [u64; 2] = [600 * MS, 3_400 * MS];
/// ... and after the first one a request at this interval, up to the end given here.
const EVERY: u64 = 25 * MS;
const UNTIL: u64 = 2_600 * MS;

/// One limiter with these requests.
struct Scene {
    file: &'static str,
    /// The policy as a text, or its replacement.
    policy: &'static str,
    /// The duration of a job, where that matters.
    job: Option<u64>,
    /// Whether requests queue for a place, or leave.
    waits: bool,
    /// The units that may start in a second, or with `is_running` run at once; and the bound, where it is larger.
    limit: Option<u64>,
    bound: Option<u64>,
    is_running: bool,
}

const SCENE: Scene =
    Scene { file: "", policy: "", job: None, waits: false, limit: Some(10), bound: None, is_running: false };

const SCENES: [Scene; 12] = [
    Scene { file: "null", policy: "no limit", limit: None, ..SCENE },
    Scene {
        file: "concurrency",
        policy: "5 concurrent",
        job: Some(500 * MS),
        limit: Some(5),
        is_running: true,
        ..SCENE
    },
    Scene { file: "rate", policy: "10/1s", ..SCENE },
    Scene { file: "delay", policy: "delay 100ms", ..SCENE },
    Scene { file: "evenly-spaced-strictly", policy: "10/1s spaced strictly", ..SCENE },
    Scene { file: "evenly-spaced", policy: "10/1s spaced", job: Some(40 * MS), ..SCENE },
    Scene { file: "token-bucket", policy: "10/1s burst 10", bound: Some(20), ..SCENE },
    Scene { file: "leaky-bucket", policy: "10/1s queue 10", waits: true, ..SCENE },
    Scene { file: "fixed-window", policy: "10/1s fixed", bound: Some(20), ..SCENE },
    Scene { file: "sliding-window-counter", policy: "10/1s counter", bound: Some(20), ..SCENE },
    Scene { file: "composite", policy: "10/1s + 5 concurrent", job: Some(300 * MS), ..SCENE },
    Scene { file: "custom", policy: "10/1s, and your own: open in the first half of each second", ..SCENE },
];

/// A user-defined limiter: closed in the second half of each second.
struct OpenHours(ManualClock);

impl Custom for OpenHours {
    fn name(&self) -> &str {
        "open hours"
    }

    fn decide(&self, _key: &str, _weight: u64) -> Result<Verdict> {
        let since = self.0.now().as_micros() as u64 % SECOND;
        Ok(match since < SECOND / 2 {
            true => Verdict::Admitted(0),
            false => Verdict::Denied(Duration::from_micros(SECOND - since)),
        })
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Verdict> {
        self.decide(key, weight)
    }

    fn end(&self, _start: u64, _end: End) -> Result<()> {
        Ok(())
    }
}

impl Scene {
    fn limiter(&self, store: &Store, clock: &ManualClock) -> Result<Arc<dyn Limiter>> {
        Ok(match self.file {
            "null" => Arc::new(NullLimiter::new()),
            "custom" => Arc::new(CompositeLimiter::new([
                store.limiter(self.file, "10/1s")?,
                Arc::new(CustomLimiter::new(OpenHours(clock.clone()))?),
            ])),
            _ => store.limiter(self.file, self.policy)?,
        })
    }
}

/// The next event. Events of the same moment have this order: units become free before a request.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Complete,
    Present,
    Request,
}

/// The times of starts, of requests that had to wait, and of denied requests.
#[derive(Default)]
struct Run {
    starts: Vec<u64>,
    waiting: Vec<u64>,
    denied: Vec<u64>,
}

fn run(scene: &Scene) -> Result<Run> {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options)?;
    let limiter = scene.limiter(&store, &clock)?;

    let mut run = Run::default();
    // Ordered by time, kind and number.
    let mut events: BTreeMap<(u64, Event, usize), Option<RawPermit>> = BTreeMap::new();
    let bursts = BURSTS.into_iter().flat_map(|at| std::iter::repeat_n(at, BURST));
    let steady = (BURSTS[0] + EVERY..UNTIL).step_by(EVERY as usize);
    for (i, at) in bursts.chain(steady).enumerate() {
        events.insert((at, Event::Request, i), None);
    }
    while let Some(((at, event, i), permit)) = events.pop_first() {
        clock.advance(Duration::from_micros(at).saturating_sub(clock.now()));
        let us = |after: Duration| after.as_micros() as u64;
        let mut started = None;
        match (event, permit) {
            (Event::Complete, Some(permit)) => limiter.complete(&permit)?,
            (Event::Present, Some(place)) => match limiter.present(&place)? {
                Presented::Started(permit) => started = Some(permit),
                Presented::Wait { place, after } => {
                    events.insert((at + us(after), Event::Present, i), Some(place));
                }
            },
            _ if scene.waits => match limiter.reserve("", 1, None, None)? {
                Reserved::Place { place, after } => {
                    if !after.is_zero() {
                        run.waiting.push(at);
                    }
                    events.insert((at + us(after), Event::Present, i), Some(place));
                }
                Reserved::Denied(_) => run.denied.push(at),
            },
            _ => match limiter.attempt("", 1)? {
                Attempt::Admitted(permit) => started = Some(permit),
                Attempt::Denied(_) => run.denied.push(at),
            },
        }
        if let Some(permit) = started {
            run.starts.push(at);
            events.insert((at + scene.job.unwrap_or(0), Event::Complete, i), Some(permit));
        }
    }
    Ok(run)
}

/// Returns how many of these count after each of their beginnings and ends, if each counts for `length`: `(when, how
/// many)`.
fn rolling(starts: &[u64], length: u64) -> Vec<(u64, u64)> {
    let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
    for &start in starts {
        *changes.entry(start).or_default() += 1;
        *changes.entry(start + length).or_default() -= 1;
    }
    let mut count = 0;
    let mut sum = |(at, change)| {
        count += change;
        (at, count as u64)
    };
    changes.into_iter().map(&mut sum).collect()
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 16.0;
/// Above, one brick per request, in columns of 50 ms; below, the number that the last second holds.
const BRICKS_BASE: f64 = 132.0;
const BRICK: f64 = 3.2;
const COLUMN: u64 = 50 * MS;
const COUNT_TOP: f64 = 152.0;
const COUNT_BASE: f64 = 240.0;
const COUNT_MOST: u64 = 22;
const HEIGHT: f64 = 272.0;

/// The panel has its own background, so the colours fit on light and dark pages.
const STYLE: &str = "
  .panel { fill: #ffffff; stroke: #d0d7de }
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .policy { font: 600 15px ui-monospace, monospace }
  .quiet { fill: #59636e }
  .end { text-anchor: end } .middle { text-anchor: middle }
  .grid { stroke: #d0d7de } .base { stroke: #8c959f }
  .window { fill: #bc4c00; fill-opacity: .09 }
  .limit { stroke: #bc4c00; stroke-width: 1.5; stroke-dasharray: 5 4 } .limit-text { fill: #bc4c00 }
  .count { fill: #8c959f; fill-opacity: .25; stroke: #59636e }
  .start { fill: #0969da } .waiting { fill: #bf8700 } .denied { fill: #c4cad1 }
  @media (prefers-color-scheme: dark) {
    .panel { fill: #0d1117; stroke: #3d444d }
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .grid { stroke: #3d444d } .base { stroke: #656c76 }
    .window { fill: #f0883e; fill-opacity: .14 }
    .limit { stroke: #f0883e } .limit-text { fill: #f0883e }
    .count { stroke: #9198a1 }
    .start { fill: #58a6ff } .waiting { fill: #d29922 } .denied { fill: #4a525c }
  }
";

fn x(at: u64) -> f64 {
    LEFT + (WIDTH - LEFT - RIGHT) * at.min(END) as f64 / END as f64
}

fn y(count: u64) -> f64 {
    COUNT_BASE - (COUNT_BASE - COUNT_TOP) * count.min(COUNT_MOST) as f64 / COUNT_MOST as f64
}

/// The elements drawn so far.
struct Drawing(String);

impl Drawing {
    fn put(&mut self, element: std::fmt::Arguments) {
        writeln!(self.0, "{element}").expect("writing to a String cannot fail");
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.put(format_args!(r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{text}</text>"#));
    }

    fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], class: &str) {
        self.put(format_args!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#));
    }

    fn rect(&mut self, [x, y, width, height]: [f64; 4], class: &str) {
        self.put(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" class="{class}"/>"#
        ));
    }
}

fn draw(scene: &Scene, run: &Run) -> String {
    let counts = rolling(&run.starts, if scene.is_running { scene.job.unwrap_or(0) } else { SECOND });
    let peak = counts.iter().map(|&(_, count)| count).max().unwrap_or(0);
    let fullest = counts.iter().find(|&&(_, count)| count == peak).map_or(0, |&(at, _)| at);
    let what = match scene.is_running {
        true => format!("at most {peak} at the same time"),
        false => format!("at most {peak} in any second"),
    };
    let shown = run.starts.iter().filter(|&&at| at < END).count();
    let jobs = scene.job.map(|job| format!("jobs of {} ms · ", job / MS)).unwrap_or_default();

    let mut svg = Drawing(String::new());
    svg.put(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{}: {what}">"#,
        scene.policy
    ));
    svg.put(format_args!("<style>{STYLE}</style>"));
    svg.rect([0.5, 0.5, WIDTH - 1.0, HEIGHT - 1.0], "panel");
    svg.text(16.0, 28.0, "policy", scene.policy);
    svg.text(WIDTH - RIGHT, 28.0, "quiet end", &format!("{jobs}{shown} starts · {what}"));

    if !scene.is_running && scene.limit.is_some() {
        // In a window that ends in the fullest moment, the last start is inside and a start one window older is not.
        let from = run.starts.iter().copied().find(|&start| start + SECOND > fullest).unwrap_or(0);
        svg.rect([x(from), 44.0, x(from + SECOND) - x(from), COUNT_BASE - 44.0], "window");
    }
    for second in 0..=END / SECOND {
        let at = x(second * SECOND);
        svg.line([at, 44.0, at, COUNT_BASE], "grid");
        svg.text(at, COUNT_BASE + 20.0, "quiet middle", &format!("{second} s"));
    }

    // The results of the requests.
    let mut columns: BTreeMap<u64, usize> = BTreeMap::new();
    for (times, class) in [(&run.starts, "start"), (&run.waiting, "waiting"), (&run.denied, "denied")] {
        for &at in times.iter().filter(|&&at| at < END) {
            let height = columns.entry(at / COLUMN).or_default();
            *height += 1;
            let top = BRICKS_BASE - *height as f64 * BRICK;
            svg.rect([x(at / COLUMN * COLUMN) + 0.5, top, x(COLUMN) - x(0) - 1.0, BRICK - 0.8], class);
        }
    }
    svg.line([LEFT, BRICKS_BASE, WIDTH - RIGHT, BRICKS_BASE], "base");
    for (row, (class, name)) in [("start", "starts"), ("waiting", "queued"), ("denied", "denied")].iter().enumerate() {
        let top = BRICKS_BASE - 16.0 - 20.0 * row as f64;
        if *class != "waiting" || scene.waits {
            let top = if *class == "denied" && !scene.waits { top + 20.0 } else { top };
            svg.rect([LEFT - 26.0, top + 2.0, 10.0, 10.0], class);
            svg.text(LEFT - 34.0, top + 11.0, "quiet end", name);
        }
    }

    // The number that counts, moment by moment.
    let mut path = format!("M{:.1},{COUNT_BASE}", x(0));
    let mut before = COUNT_BASE;
    for &(at, count) in counts.iter().filter(|&&(at, _)| at <= END) {
        write!(path, " L{0:.1},{before:.1} L{0:.1},{1:.1}", x(at), y(count)).expect("writing to a String cannot fail");
        before = y(count);
    }
    svg.put(format_args!(r#"<path d="{path} L{0:.1},{before:.1} L{0:.1},{COUNT_BASE} Z" class="count"/>"#, x(END)));
    svg.line([LEFT, COUNT_BASE, WIDTH - RIGHT, COUNT_BASE], "base");
    for (limit, name) in [(scene.limit, "limit"), (scene.bound, "bound")] {
        if let Some(limit) = limit {
            svg.line([LEFT, y(limit), WIDTH - RIGHT, y(limit)], "limit");
            svg.text(LEFT - 10.0, y(limit) + 4.0, "limit-text end", &format!("{name} {limit}"));
        }
    }
    let of = if scene.is_running { "running" } else { "in the last second" };
    svg.text(LEFT - 10.0, COUNT_BASE + 3.0, "quiet end", of);
    if peak > COUNT_MOST {
        svg.text(LEFT - 10.0, COUNT_TOP + 4.0, "quiet end", &format!("up to {peak} ↑"));
    }
    svg.0 + "</svg>\n"
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: pictures DIRECTORY")?;
    std::fs::create_dir_all(&directory)?;
    for scene in &SCENES {
        let svg = draw(scene, &run(scene)?);
        std::fs::write(Path::new(&directory).join(scene.file).with_extension("svg"), svg)?;
    }
    std::fs::write(Path::new(&directory).join("turns.svg"), turns::draw()?)?;
    Ok(())
}
