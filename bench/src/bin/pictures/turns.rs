//! Whose turn is it? A whale with hundreds of jobs beside three tenants, in one line and in a shared limit.

use crate::{Drawing, MS, SECOND, STYLE};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Waiter};
use workglow_limit::{Limiter, ManualClock, Result, Store, StoreOptions};

/// Who asks: how often, when first, at which interval, with which share.
struct Tenant {
    name: &'static str,
    jobs: usize,
    from: u64,
    every: u64,
    share: u32,
}

const TENANTS: [Tenant; 4] = [
    Tenant { name: "whale", jobs: 300, from: 0, every: 0, share: 1 },
    Tenant { name: "acme", jobs: 1, from: 3 * SECOND, every: 0, share: 1 },
    Tenant { name: "birch", jobs: 60, from: 6 * SECOND, every: 0, share: 3 },
    Tenant { name: "cedar", jobs: 12, from: 9 * SECOND, every: 1_500 * MS, share: 1 },
];

/// Ten starts a second.
const POLICY: &str = "10/1s";
const END: u64 = 40 * SECOND;
const STEP: u64 = 10 * MS;

/// A job: when it asked, and when it started.
#[derive(Clone, Copy)]
struct Job {
    asked: u64,
    started: u64,
}

/// Runs the same jobs, either with one line for all of them, or each in its tenant's.
fn run(is_shared: bool) -> Result<[Vec<Job>; TENANTS.len()]> {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options)?;
    let policy = if is_shared { format!("{POLICY} shared") } else { POLICY.to_owned() };
    let limiter: Arc<dyn Limiter> = store.limiter("jobs", &policy)?;
    let mut line = Line::new(limiter);

    let mut jobs: [Vec<Job>; TENANTS.len()] = Default::default();
    // Who asks when, and whose waiter it is.
    let mut asks: Vec<(u64, usize)> = TENANTS
        .iter()
        .enumerate()
        .flat_map(|(i, tenant)| (0..tenant.jobs).map(move |n| (tenant.from + n as u64 * tenant.every, i)))
        .collect();
    asks.sort_unstable();
    let mut asks = asks.into_iter().peekable();
    let mut waiting = HashMap::new();
    for now in (0..END).step_by(STEP as usize) {
        clock.advance(Duration::from_micros(now).saturating_sub(clock.now()));
        while let Some((asked, i)) = asks.next_if(|(at, _)| *at <= now) {
            let Tenant { name, share, .. } = TENANTS[i];
            let waiter = if is_shared { Waiter::new(name, 1).share(share) } else { Waiter::new("", 1) };
            match line.join(waiter)? {
                Joined::Done(_) => jobs[i].push(Job { asked, started: now }),
                Joined::Waiting(id) => _ = waiting.insert(id, (i, asked)),
            }
        }
        let mut over = Vec::new();
        line.advance(&mut over);
        for (id, outcome) in over {
            if let (Some((i, asked)), Outcome::Admitted(_)) = (waiting.remove(&id), outcome) {
                jobs[i].push(Job { asked, started: now });
            }
        }
    }
    Ok(jobs)
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 86.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 74.0;
const ROW: f64 = 40.0;
const PANEL: f64 = 2.0 * 12.0 + 30.0 + ROW * TENANTS.len() as f64;
const HEIGHT: f64 = TOP + 2.0 * PANEL + 18.0;
/// The starts of so long are one bar.
const COLUMN: u64 = SECOND;

fn x(at: u64) -> f64 {
    LEFT + (WIDTH - LEFT - RIGHT) * at.min(END) as f64 / END as f64
}

/// How long the first job of a tenant waited, and the longest that one did.
fn waits(jobs: &[Job]) -> String {
    let of = |job: &Job| (job.started - job.asked) as f64 / SECOND as f64;
    let most = jobs.iter().map(of).fold(0.0, f64::max);
    match jobs {
        [] => String::new(),
        [only] => format!("waited {:.1} s", of(only)),
        [first, ..] => format!("the first waited {:.1} s, the last {most:.1} s", of(first)),
    }
}

/// Draws the picture.
pub fn draw() -> Result<String> {
    let mut svg = Drawing(String::new());
    let about = "300 jobs of a whale beside three tenants, 10 starts a second: in one line, and in a shared limit";
    svg.put(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{about}">"#
    ));
    svg.put(format_args!("<style>{STYLE}</style>"));
    svg.rect([0.5, 0.5, WIDTH - 1.0, HEIGHT - 1.0], "panel");
    svg.text(16.0, 28.0, "policy", "Ten starts a second, and a whale");
    svg.text(16.0, 50.0, "quiet", "A bar: the starts of one second. A line: jobs wait.");
    for (panel, is_shared) in [false, true].into_iter().enumerate() {
        let top = TOP + panel as f64 * PANEL;
        let title = if is_shared { "10/1s shared, birch has share=3" } else { "10/1s, one line for all" };
        svg.text(16.0, top + 10.0, "policy", title);
        let base = top + 22.0 + ROW * TENANTS.len() as f64;
        for second in (0..=END / SECOND).step_by(5) {
            let at = x(second * SECOND);
            svg.line([at, top + 22.0, at, base], "grid");
            svg.text(at, base + 16.0, "quiet middle", &format!("{second} s"));
        }
        for (row, (tenant, jobs)) in TENANTS.iter().zip(run(is_shared)?).enumerate() {
            let base = top + 22.0 + ROW * (row + 1) as f64;
            svg.text(LEFT - 10.0, base - 4.0, "end", tenant.name);
            svg.line([LEFT, base, WIDTH - RIGHT, base], "base");
            for column in 0..END / COLUMN {
                let (from, to) = (column * COLUMN, (column + 1) * COLUMN);
                let starts = jobs.iter().filter(|job| (from..to).contains(&job.started)).count();
                let height = starts as f64 * (ROW - 18.0) / 10.0;
                if starts > 0 {
                    svg.rect([x(from) + 0.5, base - height, x(COLUMN) - x(0) - 1.0, height], "start");
                }
                if jobs.iter().any(|job| job.asked < to && job.started > to) {
                    svg.rect([x(from), base - 1.0, x(COLUMN) - x(0), 2.0], "waiting");
                }
            }
            svg.text(WIDTH - RIGHT, base - ROW + 14.0, "quiet end", &waits(&jobs));
        }
    }
    Ok(svg.0 + "</svg>\n")
}
