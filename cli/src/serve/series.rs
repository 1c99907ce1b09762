//! The last snapshot, and the series of the last 15 minutes.
//!
//! One thread takes the snapshots: every 5 s for the series; once a second while a stream is open; and on a request, if the last
//! snapshot is a second old. So the cost depends on time, not on the number of requests, and a long snapshot is followed by a pause of the
//! same length. If the store fails, requests get its error, and the thread tries again.
//!
//! A limit in use takes up to 4 KB of memory here, 180 points of 20 bytes; a limit that was idle for 15 minutes takes some hundred bytes.

use super::view::{Lately, Pace, View};
use crate::failure::Failure;
use crate::json;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{oneshot, watch};
use workglow_limit::Store;
use workglow_limit::observe::{LimitSnapshot, Observer, Snapshot};

/// The time between two points of a series.
pub const STEP: Duration = Duration::from_secs(5);
/// The number of points of a series: 15 minutes.
pub const POINTS: usize = 180;
const GROWTH: usize = POINTS / 9;
/// The oldest snapshot that a request may get.
const FRESH: Duration = Duration::from_secs(1);
/// The longest time for which a request waits for a snapshot.
const PATIENCE: Duration = Duration::from_secs(15);

/// The result of the last snapshot.
#[derive(Clone, Default)]
pub struct Sample {
    /// Counts the snapshots.
    pub number: u64,
    looked: Option<Instant>,
    /// The snapshot, or its error. `None` before the first one.
    pub view: Option<Result<Arc<View>, Arc<Trouble>>>,
}

/// The reason why a snapshot failed.
#[derive(Debug)]
pub struct Trouble {
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        Trouble { code: failure.code, message: failure.message, hint: failure.hint }
    }
}

/// The demands of requests on the sampler's thread.
#[derive(Default)]
struct Demand {
    watching: usize,
    is_asked: bool,
    /// A change was made, so the last snapshot is out of date.
    is_old: bool,
    is_looking: bool,
    has_ended: bool,
}

struct Shared {
    demand: Mutex<Demand>,
    wake: Condvar,
    /// Borrowed and modified only after `demand` is locked, by a thread that needs both.
    samples: watch::Sender<Sample>,
    quarter: Mutex<Quarter>,
}

/// The thread that takes snapshots. Clones share it.
#[derive(Clone)]
pub struct Sampler(Arc<Shared>);

/// Keeps the sampler at one snapshot per second while it exists.
pub struct Watching {
    sampler: Sampler,
    pub samples: watch::Receiver<Sample>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.sampler.demand().watching -= 1;
    }
}

impl Sampler {
    /// Starts the thread. Snapshots have up to `keys` keys of each limit. The receiver is notified when the thread ends.
    pub fn start(store: &Store, url: &str, keys: usize) -> (Sampler, oneshot::Receiver<()>) {
        let (samples, _) = watch::channel(Sample::default());
        let (demand, wake, quarter) = Default::default();
        let sampler = Sampler(Arc::new(Shared { demand, wake, samples, quarter }));
        let (end, ended) = oneshot::channel();
        let mut observer = Observer::new(store, keys);
        let (looking, url) = (sampler.clone(), url.to_owned());
        let look = move || {
            let _end = end;
            looking.run(|| observer.look().map_err(|error| Failure::of_store(error, &url).into()));
        };
        std::thread::Builder::new().name("sampler".to_owned()).spawn(look).expect("a thread can be started");
        (sampler, ended)
    }

    fn demand(&self) -> MutexGuard<'_, Demand> {
        self.0.demand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last 15 minutes. The lock must be released soon.
    pub fn quarter(&self) -> MutexGuard<'_, Quarter> {
        self.0.quarter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut look: impl FnMut() -> Result<Snapshot, Trouble>) {
        let began = Instant::now();
        let mut tick = 0;
        loop {
            {
                let mut demand = self.demand();
                (demand.is_asked, demand.is_old, demand.is_looking) = (false, false, true);
            }
            let looked = Instant::now();
            // Missed ticks have no points.
            let now = (began.elapsed().as_micros() / STEP.as_micros()) as u64 + 1;
            let seen = look().map(|seen| {
                let mut quarter = self.quarter();
                if now > tick {
                    quarter.add(now, &seen);
                }
                let lately = quarter.lately(&seen);
                Arc::new(View::new(seen, lately, quarter.last_tick()))
            });
            tick = now;
            let mut demand = self.demand();
            demand.is_looking = false;
            self.0.samples.send_modify(|samples| {
                *samples =
                    Sample { number: samples.number + 1, looked: Some(looked), view: Some(seen.map_err(Arc::new)) };
            });
            let rest = looked.elapsed();
            let next_tick = began + STEP * now as u32;
            loop {
                if demand.has_ended {
                    return;
                }
                let soon = looked + FRESH.max(2 * rest);
                let next = match &*demand {
                    demand if demand.is_old && demand.is_asked => looked + 2 * rest,
                    demand if demand.is_asked || demand.watching > 0 => soon.min(next_tick.max(looked + 2 * rest)),
                    _ => next_tick.max(looked + 2 * rest),
                };
                let left = next.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                demand = self.0.wake.wait_timeout(demand, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Ends the thread after its current snapshot.
    pub fn end(&self) {
        self.demand().has_ended = true;
        self.0.wake.notify_all();
    }

    /// Marks the last snapshot as out of date: later requests get a new one.
    pub fn expire(&self) {
        self.demand().is_old = true;
    }

    /// Asks for one snapshot per second from now on.
    pub fn watch(&self) -> Watching {
        self.demand().watching += 1;
        self.0.wake.notify_all();
        Watching { sampler: self.clone(), samples: self.0.samples.subscribe() }
    }

    /// A snapshot that is at most a second old.
    pub async fn look(&self) -> Result<Arc<View>, Arc<Trouble>> {
        let mut samples = self.0.samples.subscribe();
        let number = {
            let mut demand = self.demand();
            let last = samples.borrow_and_update();
            if let (Some(view), Some(looked)) = (&last.view, last.looked)
                && looked.elapsed() < FRESH
                && !demand.is_old
            {
                return view.clone();
            }
            demand.is_asked = true;
            // A snapshot in progress may have begun before the change.
            last.number + u64::from(demand.is_old && demand.is_looking)
        };
        self.0.wake.notify_all();
        let newer = tokio::time::timeout(PATIENCE, samples.wait_for(|samples| samples.number > number)).await;
        match newer.ok().and_then(Result::ok).and_then(|sample| sample.view.clone()) {
            Some(view) => view,
            None => Err(Arc::new(Trouble {
                code: "store_timeout",
                message: format!("the store has not answered for {} s", PATIENCE.as_secs()),
                hint: None,
            })),
        }
    }
}

/// The values of a limit at one tick.
struct Point {
    tick: u32,
    /// The usage of the first window of its shape.
    used: u32,
    /// The counts since the point before.
    granted: u32,
    denied: u32,
    waiting: u32,
}

/// The windows of a limit from a tick on, sorted by length, and the units allowed in each.
struct Shape {
    since: u64,
    windows: Vec<(Option<Duration>, u64)>,
}

/// The total counts at a time.
#[derive(Clone, Copy)]
struct Mark {
    at: SystemTime,
    granted: u64,
    denied: u64,
}

impl Mark {
    fn pace_since(&self, before: &Mark) -> Pace {
        let seconds = self.at.duration_since(before.at).unwrap_or_default().as_secs_f64();
        if seconds < 0.5 {
            return Pace::default();
        }
        let each = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Pace { granted: each(self.granted, before.granted), denied: each(self.denied, before.denied) }
    }
}

/// The series of one limit.
struct LimitSeries {
    points: VecDeque<Point>,
    /// The usage of the other windows at a tick. Most limits have one window only.
    others: VecDeque<(u32, Box<[u32]>)>,
    shapes: Vec<Shape>,
    /// The counts at the last tick and at the one before.
    marks: [Mark; 2],
}

/// The series of all limits over the last 15 minutes.
#[derive(Default)]
pub struct Quarter {
    /// The ticks with a snapshot.
    ticks: VecDeque<(u64, SystemTime)>,
    limits: HashMap<String, LimitSeries>,
}

fn small(count: u64) -> u32 {
    count.try_into().unwrap_or(u32::MAX)
}

impl Quarter {
    fn last_tick(&self) -> u64 {
        self.ticks.back().map_or(0, |&(tick, _)| tick)
    }

    fn add(&mut self, tick: u64, seen: &Snapshot) {
        let first = (tick + 1).saturating_sub(POINTS as u64);
        while self.ticks.front().is_some_and(|&(old, _)| old < first) {
            self.ticks.pop_front();
        }
        self.ticks.push_back((tick, seen.at));
        if self.limits.len() > seen.limits.len() {
            let known: HashSet<&str> = seen.limits.iter().map(|limit| limit.name.as_str()).collect();
            self.limits.retain(|name, _| known.contains(name.as_str()));
        }
        for limit in &seen.limits {
            let now = Mark { at: seen.at, granted: limit.stats.units_granted, denied: limit.stats.denied };
            match self.limits.get_mut(&limit.name) {
                Some(recorded) => recorded.add(tick, first, now, limit),
                None => {
                    let (points, others, shapes) = Default::default();
                    let mut recorded = LimitSeries { points, others, shapes, marks: [now; 2] };
                    recorded.add(tick, first, now, limit);
                    self.limits.insert(limit.name.clone(), recorded);
                }
            }
        }
    }

    /// The recent values of each limit, in the order of the snapshot.
    fn lately(&self, seen: &Snapshot) -> Vec<Lately> {
        let since = self.last_tick().saturating_sub(2);
        let one = |limit: &LimitSnapshot| {
            let Some(recorded) = self.limits.get(&limit.name) else { return Lately::default() };
            let [last, before] = recorded.marks;
            let now = Mark { at: seen.at, granted: limit.stats.units_granted, denied: limit.stats.denied };
            let recent = recorded.points.iter().rev().take_while(|point| u64::from(point.tick) >= since);
            let shares = recent
                .flat_map(|point| recorded.used(point))
                .map(|(allowed, used)| f64::from(used) / allowed.max(1) as f64);
            Lately {
                pace: now.pace_since(&before),
                fullest: shares.fold(0.0, f64::max),
                denied: last.pace_since(&before).denied,
            }
        };
        seen.limits.iter().map(one).collect()
    }

    /// The highest share in use in each of `parts` parts of the 15 minutes, in percent, oldest first; `None` without data.
    pub fn spark(&self, limit: &str, parts: usize) -> Vec<Option<u8>> {
        let last = self.last_tick();
        let part = |tick: u64| {
            let back = last.saturating_sub(tick) as usize * parts / POINTS;
            parts.checked_sub(back + 1)
        };
        let mut spark = vec![None; parts];
        let ticks = self.ticks.iter().filter_map(|&(tick, _)| part(tick));
        ticks.for_each(|part| spark[part] = Some(0));
        if let Some(recorded) = self.limits.get(limit) {
            for point in &recorded.points {
                let Some(part) = part(u64::from(point.tick)) else { continue };
                let full = recorded.used(point).map(|(allowed, used)| share(used, allowed)).max();
                spark[part] = spark[part].max(full);
            }
        }
        spark
    }

    /// The series of a limit, as columns; `None` if there is no limit of this name.
    pub fn series(&self, limit: &str) -> Option<json::Series> {
        let recorded = self.limits.get(limit)?;
        let mut windows: Vec<Option<Duration>> = Vec::new();
        for (window, _) in recorded.shapes.iter().flat_map(|shape| &shape.windows) {
            if !windows.contains(window) {
                windows.push(*window);
            }
        }
        let mut series = json::Series { step: STEP, ..json::Series::default() };
        series.windows =
            windows.into_iter().map(|window| json::SeriesWindow { window, ..Default::default() }).collect();
        let mut points = recorded.points.iter().peekable();
        for &(tick, at) in &self.ticks {
            let Some(shape) = recorded.shape(tick) else { continue };
            let point = points.next_if(|point| u64::from(point.tick) == tick);
            series.at.push(at);
            series.granted.push(point.map_or(0, |point| point.granted));
            series.denied.push(point.map_or(0, |point| point.denied));
            series.waiting.push(point.map_or(0, |point| point.waiting));
            for column in &mut series.windows {
                let place = shape.windows.iter().position(|(window, _)| *window == column.window);
                column.limit.push(place.map(|place| shape.windows[place].1));
                column.used.push(place.map(|place| point.map_or(0, |point| recorded.used_of(point, place))));
            }
        }
        Some(series)
    }
}

/// The share in use in percent, rounded up, so that only 0 units are 0 %.
fn share(used: u32, allowed: u64) -> u8 {
    (u64::from(used) * 100).div_ceil(allowed.max(1)).min(100) as u8
}

impl LimitSeries {
    fn add(&mut self, tick: u64, first: u64, now: Mark, seen: &LimitSnapshot) {
        // Sorted by length. The snapshot has the fullest window first.
        let mut usage = seen.usage.clone();
        usage.sort_by_key(|usage| usage.window);
        let windows: Vec<_> = usage.iter().map(|usage| (usage.window, usage.limit)).collect();
        if self.shapes.last().is_none_or(|shape| shape.windows != windows) {
            self.shapes.push(Shape { since: tick, windows });
        }
        // The shape of the first point stays.
        while self.shapes.get(1).is_some_and(|shape| shape.since <= first) {
            self.shapes.remove(0);
        }
        while self.points.front().is_some_and(|point| u64::from(point.tick) < first) {
            self.points.pop_front();
        }
        while self.others.front().is_some_and(|&(old, _)| u64::from(old) < first) {
            self.others.pop_front();
        }
        let before = self.marks[0];
        self.marks = [now, before];
        let (granted, denied) = (now.granted.saturating_sub(before.granted), now.denied.saturating_sub(before.denied));
        let is_idle = granted == 0 && denied == 0 && seen.waiting == 0 && usage.iter().all(|usage| usage.used == 0);
        if is_idle {
            if self.points.is_empty() {
                (self.points, self.others) = Default::default();
            }
            return;
        }
        if self.points.len() == self.points.capacity() {
            // In small steps, so that the capacity never exceeds the number of points.
            self.points.reserve_exact(GROWTH);
        }
        self.points.push_back(Point {
            tick: small(tick),
            used: usage.first().map_or(0, |usage| small(usage.used)),
            granted: small(granted),
            denied: small(denied),
            waiting: small(seen.waiting),
        });
        if usage.len() > 1 {
            self.others.push_back((small(tick), usage[1..].iter().map(|usage| small(usage.used)).collect()));
        }
    }

    fn used_of(&self, point: &Point, window: usize) -> u32 {
        if window == 0 {
            return point.used;
        }
        let others = self.others.binary_search_by_key(&point.tick, |&(tick, _)| tick).ok().map(|at| &self.others[at].1);
        others.and_then(|others| others.get(window - 1)).copied().unwrap_or(0)
    }

    /// The shape at a tick.
    fn shape(&self, tick: u64) -> Option<&Shape> {
        self.shapes.iter().rev().find(|shape| shape.since <= tick)
    }

    /// The allowed and the used units of each window.
    fn used(&self, point: &Point) -> impl Iterator<Item = (u64, u32)> {
        let windows = self.shape(u64::from(point.tick)).map_or(&[][..], |shape| &shape.windows);
        windows.iter().enumerate().map(|(i, &(_, limit))| (limit, self.used_of(point, i)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: u64 = 400;

    /// Of 400 ticks, one of them without a snapshot, only the last 15 minutes are kept.
    #[test]
    fn series_are_bounded() {
        let store = Store::new("memory:").unwrap();
        let busy = store.limiter("busy", "1000/1h + 100/1m").unwrap();
        store.limiter("idle", "7/1m").unwrap().open().unwrap();
        let mut observer = Observer::new(&store, 0);
        let mut quarter = Quarter::default();
        for tick in (1..=TICKS).filter(|tick| *tick != TICKS - 5) {
            if tick % 20 == 0 {
                busy.decide("", 2).unwrap();
            }
            quarter.add(tick, &observer.look().unwrap());
        }
        let [busy, idle] = ["busy", "idle"].map(|name| &quarter.limits[name]);
        assert_eq!((busy.points.len(), busy.points.capacity(), busy.others.len()), (POINTS - 1, POINTS, POINTS - 1));
        assert_eq!((idle.points.capacity(), busy.shapes.len()), (0, 1));
        let series = quarter.series("busy").unwrap();
        let windows = series
            .windows
            .iter()
            .map(|column| (column.window.unwrap().as_secs(), column.limit[0], column.used.clone()));
        for (window, limit, used) in windows {
            assert_eq!(limit, Some(if window == 60 { 100 } else { 1000 }));
            assert_eq!((used.len(), used[0], used[POINTS - 2]), (POINTS - 1, Some(22), Some(40)), "{window}");
        }
        assert_eq!((series.granted.len(), series.granted.iter().sum::<u32>()), (POINTS - 1, 18));
        assert_eq!(quarter.series("idle").unwrap().windows[0].used, vec![Some(0); POINTS - 1]);
        assert!(quarter.series("nothing").is_none());
        let spark = quarter.spark("busy", POINTS);
        assert_eq!((spark[POINTS - 6], spark[POINTS - 1], quarter.spark("idle", 60)[59]), (None, Some(40), Some(0)));
        assert_eq!(quarter.spark("busy", 60), [vec![Some(22); 6], quarter.spark("busy", 60)[6..].to_vec()].concat());
        // A removed limit takes no memory.
        store.forget("idle").unwrap();
        quarter.add(TICKS + 1, &observer.look().unwrap());
        assert!(!quarter.limits.contains_key("idle"));
    }

    /// A request that came while a snapshot was published stopped the server for good: each waited for the other's lock.
    #[test]
    fn requests_while_snapshots_are_published_are_answered() {
        let (sampler, _ended) = Sampler::start(&Store::new("memory:").unwrap(), "memory:", 0);
        let (done, all_done) = std::sync::mpsc::channel();
        for _ in 0..2 {
            let (sampler, done) = (sampler.clone(), done.clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                for _ in 0..2_000 {
                    sampler.expire();
                    assert!(runtime.block_on(sampler.look()).is_ok());
                }
                done.send(()).unwrap();
            });
        }
        (0..2).for_each(|_| all_done.recv_timeout(Duration::from_secs(120)).expect("all requests are answered"));
        sampler.end();
    }
}
