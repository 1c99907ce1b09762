//! What has been seen: the last look, and the last quarter of an hour.
//!
//! One thread looks at the store: every 5 s always, for the series; once a second as long as somebody watches; and when somebody asks and
//! the last look is a second old. So looking costs what time passes, not what is asked, and a look that takes long is followed by a rest
//! of the same length. If the store fails, that is what is told, and the thread looks again.
//!
//! A limit in which something happens takes up to 4 KB of memory here, 180 points of 20 bytes; one in which nothing has happened for
//! a quarter of an hour some hundred bytes.

use super::view::{Lately, Pace, View};
use crate::failure::Failure;
use crate::json;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::{oneshot, watch};
use workglow_limit::{LimitSnapshot, Observer, Snapshot, Store};

/// How far apart the points of the series are.
pub const STEP: Duration = Duration::from_secs(5);
/// How many points there are: a quarter of an hour.
pub const POINTS: usize = 180;
const GROWTH: usize = POINTS / 9;
/// How old a look may be that is told to who asks.
const FRESH: Duration = Duration::from_secs(1);
/// How long who asks waits for a look.
const PATIENCE: Duration = Duration::from_secs(15);

/// What the last look has seen.
#[derive(Clone, Default)]
pub struct News {
    /// Raised by each look.
    pub number: u64,
    looked: Option<Instant>,
    /// What was seen, or why nothing.
    pub seen: Option<Result<Arc<View>, Arc<Trouble>>>,
}

/// Why the store does not answer.
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

#[derive(Default)]
struct Wishes {
    watching: usize,
    is_asked: bool,
    /// Something was changed, so what was seen is old.
    is_old: bool,
    is_looking: bool,
    has_ended: bool,
}

struct Shared {
    wishes: Mutex<Wishes>,
    wake: Condvar,
    news: watch::Sender<News>,
    quarter: Mutex<Quarter>,
}

/// The thread that looks at the store. Clones are the same.
#[derive(Clone)]
pub struct Sampler(Arc<Shared>);

/// Somebody watches, as long as this is there.
pub struct Watching {
    sampler: Sampler,
    pub news: watch::Receiver<News>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.sampler.wishes().watching -= 1;
    }
}

impl Sampler {
    /// Begins to look, with so many keys of each limit. The receiver hears of the thread's end.
    pub fn start(store: &Store, url: &str, keys: usize) -> (Sampler, oneshot::Receiver<()>) {
        let (news, _) = watch::channel(News::default());
        let (wishes, wake, quarter) = Default::default();
        let sampler = Sampler(Arc::new(Shared { wishes, wake, news, quarter }));
        let (end, ended) = oneshot::channel();
        let mut observer = Observer::new(store, keys);
        let (looking, url) = (sampler.clone(), url.to_owned());
        let look = move || {
            let _end = end;
            looking.run(|| observer.look().map_err(|error| Failure::of_store(error, &url).into()));
        };
        std::thread::Builder::new().name("looks".to_owned()).spawn(look).expect("a thread can be started");
        (sampler, ended)
    }

    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.0.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last quarter of an hour. To be held for moments.
    pub fn quarter(&self) -> MutexGuard<'_, Quarter> {
        self.0.quarter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut look: impl FnMut() -> Result<Snapshot, Trouble>) {
        let began = Instant::now();
        let mut tick = 0;
        loop {
            {
                let mut wishes = self.wishes();
                (wishes.is_asked, wishes.is_old, wishes.is_looking) = (false, false, true);
            }
            let looked = Instant::now();
            // Ticks that were missed are no points.
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
            let mut wishes = self.wishes();
            wishes.is_looking = false;
            self.0.news.send_modify(|news| {
                *news = News { number: news.number + 1, looked: Some(looked), seen: Some(seen.map_err(Arc::new)) };
            });
            let rest = looked.elapsed();
            let next_tick = began + STEP * now as u32;
            loop {
                if wishes.has_ended {
                    return;
                }
                let soon = looked + FRESH.max(2 * rest);
                let next = match &*wishes {
                    wishes if wishes.is_old && wishes.is_asked => looked + 2 * rest,
                    wishes if wishes.is_asked || wishes.watching > 0 => soon.min(next_tick.max(looked + 2 * rest)),
                    _ => next_tick.max(looked + 2 * rest),
                };
                let left = next.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                wishes = self.0.wake.wait_timeout(wishes, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Ends looking; not a look that goes on.
    pub fn end(&self) {
        self.wishes().has_ended = true;
        self.0.wake.notify_all();
    }

    /// Something was changed: who asks from now on sees that.
    pub fn expire(&self) {
        self.wishes().is_old = true;
    }

    /// Has the store looked at once a second from now on.
    pub fn watch(&self) -> Watching {
        self.wishes().watching += 1;
        self.0.wake.notify_all();
        Watching { sampler: self.clone(), news: self.0.news.subscribe() }
    }

    /// What there is to see now.
    pub async fn look(&self) -> Result<Arc<View>, Arc<Trouble>> {
        let mut news = self.0.news.subscribe();
        let number = {
            let last = news.borrow_and_update();
            let mut wishes = self.wishes();
            if let (Some(seen), Some(looked)) = (&last.seen, last.looked)
                && looked.elapsed() < FRESH
                && !wishes.is_old
            {
                return seen.clone();
            }
            wishes.is_asked = true;
            // A look that goes on may have begun before what is asked about.
            last.number + u64::from(wishes.is_old && wishes.is_looking)
        };
        self.0.wake.notify_all();
        let newer = tokio::time::timeout(PATIENCE, news.wait_for(|news| news.number > number)).await;
        match newer.ok().and_then(Result::ok).and_then(|news| news.seen.clone()) {
            Some(seen) => seen,
            None => Err(Arc::new(Trouble {
                code: "store_timeout",
                message: format!("the store has not answered for {} s", PATIENCE.as_secs()),
                hint: None,
            })),
        }
    }
}

/// What was seen of a limit at one moment.
struct Point {
    tick: u32,
    /// Of the first window of its shape.
    used: u32,
    /// Since the point before.
    granted: u32,
    denied: u32,
    waiting: u32,
}

/// The windows of a limit, by their length, and what it allows in each: from a tick on.
struct Shape {
    since: u64,
    windows: Vec<(Option<Duration>, u64)>,
}

/// What had been counted in all at a moment.
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

struct Line {
    points: VecDeque<Point>,
    /// What was used of the other windows at a tick, which most limits do not have.
    others: VecDeque<(u32, Box<[u32]>)>,
    shapes: Vec<Shape>,
    /// At the last tick, and at the one before.
    marks: [Mark; 2],
}

/// The last quarter of an hour.
#[derive(Default)]
pub struct Quarter {
    /// The ticks at which the store answered.
    ticks: VecDeque<(u64, SystemTime)>,
    lines: HashMap<String, Line>,
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
        if self.lines.len() > seen.limits.len() {
            let known: HashSet<&str> = seen.limits.iter().map(|limit| limit.name.as_str()).collect();
            self.lines.retain(|name, _| known.contains(name.as_str()));
        }
        for limit in &seen.limits {
            let now = Mark { at: seen.at, granted: limit.stats.units_granted, denied: limit.stats.denied };
            match self.lines.get_mut(&limit.name) {
                Some(line) => line.add(tick, first, now, limit),
                None => {
                    let (points, others, shapes) = Default::default();
                    let mut line = Line { points, others, shapes, marks: [now; 2] };
                    line.add(tick, first, now, limit);
                    self.lines.insert(limit.name.clone(), line);
                }
            }
        }
    }

    /// What happened lately, in the order of the limits.
    fn lately(&self, seen: &Snapshot) -> Vec<Lately> {
        let since = self.last_tick().saturating_sub(2);
        let one = |limit: &LimitSnapshot| {
            let Some(line) = self.lines.get(&limit.name) else { return Lately::default() };
            let [last, before] = line.marks;
            let now = Mark { at: seen.at, granted: limit.stats.units_granted, denied: limit.stats.denied };
            let recent = line.points.iter().rev().take_while(|point| u64::from(point.tick) >= since);
            let shares = recent
                .flat_map(|point| line.used(point))
                .map(|(allowed, used)| f64::from(used) / allowed.max(1) as f64);
            Lately {
                pace: now.pace_since(&before),
                fullest: shares.fold(0.0, f64::max),
                denied: last.pace_since(&before).denied,
            }
        };
        seen.limits.iter().map(one).collect()
    }

    /// The fullest share of each of so many parts of the quarter, in percent, oldest first; `None` where nothing was seen.
    pub fn spark(&self, limit: &str, parts: usize) -> Vec<Option<u8>> {
        let last = self.last_tick();
        let part = |tick: u64| {
            let back = last.saturating_sub(tick) as usize * parts / POINTS;
            parts.checked_sub(back + 1)
        };
        let mut spark = vec![None; parts];
        let ticks = self.ticks.iter().filter_map(|&(tick, _)| part(tick));
        ticks.for_each(|part| spark[part] = Some(0));
        if let Some(line) = self.lines.get(limit) {
            for point in &line.points {
                let Some(part) = part(u64::from(point.tick)) else { continue };
                let full = line.used(point).map(|(allowed, used)| share(used, allowed)).max();
                spark[part] = spark[part].max(full);
            }
        }
        spark
    }

    /// The points of a limit, as columns; `None` if it was not seen.
    pub fn series(&self, limit: &str) -> Option<json::Series> {
        let line = self.lines.get(limit)?;
        let mut windows: Vec<Option<Duration>> = Vec::new();
        for (window, _) in line.shapes.iter().flat_map(|shape| &shape.windows) {
            if !windows.contains(window) {
                windows.push(*window);
            }
        }
        let mut series = json::Series { step: STEP, ..json::Series::default() };
        series.windows =
            windows.into_iter().map(|window| json::SeriesWindow { window, ..Default::default() }).collect();
        let mut points = line.points.iter().peekable();
        for &(tick, at) in &self.ticks {
            let Some(shape) = line.shape(tick) else { continue };
            let point = points.next_if(|point| u64::from(point.tick) == tick);
            series.at.push(at);
            series.granted.push(point.map_or(0, |point| point.granted));
            series.denied.push(point.map_or(0, |point| point.denied));
            series.waiting.push(point.map_or(0, |point| point.waiting));
            for column in &mut series.windows {
                let place = shape.windows.iter().position(|(window, _)| *window == column.window);
                column.limit.push(place.map(|place| shape.windows[place].1));
                column.used.push(place.map(|place| point.map_or(0, |point| line.used_of(point, place))));
            }
        }
        Some(series)
    }
}

/// In percent, rounded up: only nothing is 0.
fn share(used: u32, allowed: u64) -> u8 {
    (u64::from(used) * 100).div_ceil(allowed.max(1)).min(100) as u8
}

impl Line {
    fn add(&mut self, tick: u64, first: u64, now: Mark, seen: &LimitSnapshot) {
        // By length, as the fullest comes first in what is seen.
        let mut usage = seen.usage.clone();
        usage.sort_by_key(|usage| usage.window);
        let windows: Vec<_> = usage.iter().map(|usage| (usage.window, usage.limit)).collect();
        if self.shapes.last().is_none_or(|shape| shape.windows != windows) {
            self.shapes.push(Shape { since: tick, windows });
        }
        // The one that held at the first point stays.
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
            // No more than there will be points.
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

    /// What held at a tick.
    fn shape(&self, tick: u64) -> Option<&Shape> {
        self.shapes.iter().rev().find(|shape| shape.since <= tick)
    }

    /// What was allowed in each window, and used of it.
    fn used(&self, point: &Point) -> impl Iterator<Item = (u64, u32)> {
        let windows = self.shape(u64::from(point.tick)).map_or(&[][..], |shape| &shape.windows);
        windows.iter().enumerate().map(|(i, &(_, limit))| (limit, self.used_of(point, i)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: u64 = 400;

    /// Of 400 ticks of which the fifth from the end saw nothing, the last quarter of an hour is left.
    #[test]
    fn what_is_kept_is_bounded() {
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
        let [busy, idle] = ["busy", "idle"].map(|name| &quarter.lines[name]);
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
        // What is forgotten takes no room.
        store.forget("idle").unwrap();
        quarter.add(TICKS + 1, &observer.look().unwrap());
        assert!(!quarter.lines.contains_key("idle"));
    }
}
