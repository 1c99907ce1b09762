//! Rounds of random damage to the lane and the database of a store, during and between uses by processes: no process
//! crashes or hangs, and no more starts than the limits allow happen without an error.
//!
//! `SEED=n` repeats the same damage, `ROUNDS=200` makes a long run, `ONLY=lane` selects damage with such a name.
//!
//! Overwriting words *in* the lane may leave a plausible state with other counts: one count cannot be distinguished
//! from another. So such rounds only record the excess. All others must not have any without an error.
#![cfg(feature = "fault-points")]

use crate::common::{Child, Dir, ERRORS_OF_DAMAGE, Random, most_in_any_window, now_ns, number, shared};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use workglow_limit::*;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3_600 * SECOND;

/// The longest permitted call: many times the store's timeout.
const LONGEST_CALL: Duration = Duration::from_secs(20);

/// A limit, a key of it, the weight of a start; and how many units may start in any window of this many ns. 0: at any
/// time.
type Case = (&'static str, &'static str, u64, u64, u64);

const CASES: [Case; 12] = [
    ("40/1h", "key", 1, 40, HOUR),
    ("40/1h", "", 1, 40, HOUR),
    ("30/300ms", "key", 1, 30, 300_000_000),
    ("20/1h + 5/200ms", "key", 1, 20, HOUR),
    ("5000/1h", "key", 400, 5_000, HOUR),
    ("6000/500ms", "key", 900, 6_000, 500_000_000),
    // No round takes a minute.
    ("60/1h burst 20", "key", 2, 21, 60 * SECOND),
    ("40/1h fixed", "key", 1, 80, HOUR),
    ("40/1h counter", "key", 1, 80, HOUR),
    ("3 concurrent", "key", 1, 3, 0),
    ("15/1h + 2 concurrent", "key", 1, 15, HOUR),
    // With a policy of its own.
    ("100/1h", "tenant", 1, 12, HOUR),
];
const OWN: &str = "12/1h";

// ---- what processes do ----

/// The shared records of all processes of a round.
struct Notes {
    /// How many calls have ended.
    steps: &'static [AtomicU64],
    errors: &'static [AtomicU64],
    reported: RefCell<BTreeSet<String>>,
    /// For each case the number of starts, and two words for each.
    starts: Vec<&'static [AtomicU64]>,
}

const MOST_STARTS: u64 = 20_000;

impl Notes {
    fn new() -> Notes {
        Notes {
            steps: shared(1),
            errors: shared(1),
            reported: RefCell::default(),
            starts: CASES.iter().map(|_| shared(1 + 2 * MOST_STARTS as usize)).collect(),
        }
    }

    /// Two units, or two jobs, overlap if their intervals do.
    fn add(&self, case: usize, (a, b): (u64, u64)) {
        let words = self.starts[case];
        let n = words[0].fetch_add(1, AcqRel);
        if n < MOST_STARTS {
            words[1 + 2 * n as usize].store(a, Release);
            words[2 + 2 * n as usize].store(b, Release);
        }
    }

    fn intervals(&self, case: usize) -> Vec<(u64, u64)> {
        let words = self.starts[case];
        let n = words[0].load(Acquire).min(MOST_STARTS) as usize;
        let both = (0..n).map(|n| (words[1 + 2 * n].load(Acquire), words[2 + 2 * n].load(Acquire)));
        both.filter(|(_, b)| *b > 0).collect()
    }

    /// The most units in a window, or at one time.
    fn most(&self, case: usize) -> u64 {
        let (_, _, weight, _, window) = CASES[case];
        let intervals = self.intervals(case);
        if window > 0 {
            let starts: Vec<_> = intervals.into_iter().map(|(a, b)| (a, b, weight)).collect();
            return most_in_any_window(&starts, window);
        }
        let ends = intervals.iter().flat_map(|&(a, b)| [(a, 1i64), (b, -1)]);
        let mut ends: Vec<_> = ends.collect();
        ends.sort_unstable();
        let running = ends.iter().scan(0, |running, (_, n)| {
            *running += n;
            Some(*running)
        });
        running.max().unwrap_or(0) as u64
    }

    /// The cases that exceed their limit.
    fn over(&self) -> Vec<String> {
        let over = CASES.iter().enumerate().filter_map(|(i, (text, key, _, limit, _))| {
            let most = self.most(i);
            (most > *limit).then(|| format!("\"{text}\" of \"{key}\": {most} of {limit}"))
        });
        over.collect()
    }

    /// The answer, or `None` after an error that damage may cause.
    fn expected<T>(&self, answer: Result<T>) -> Option<T> {
        self.steps[0].fetch_add(1, AcqRel);
        if let Err(error) = &answer {
            assert!(ERRORS_OF_DAMAGE.contains(&error.name()), "{error:?}");
            // Another process may have been busy, and have reported the damage.
            let is_reported = !matches!(error, Error::StoreTimeout { .. });
            self.errors[0].fetch_add(u64::from(is_reported), AcqRel);
            if is_reported && self.reported.borrow_mut().insert(error.to_string()) {
                println!("  {error}");
            }
        }
        answer.ok()
    }
}

/// Uses everything of a store for a while.
fn use_for(dir: &Dir, time: Duration, notes: &Notes, mut random: Random) {
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_millis(100);
    let store = Store::with_options(&dir.url(), options).unwrap();
    let open = |text: &str| notes.expected(store.limiter(text, text));
    let own = || {
        // A name is declared by its first use.
        store.limiter("100/1h", "100/1h")?.peek("", 1)?;
        store.override_limit("100/1h", OWN, Some("tenant"))
    };
    notes.expected(own());
    let mut limiters: Vec<Option<Arc<dyn Limiter>>> = CASES.iter().map(|(text, ..)| open(text)).collect();
    let (began, mut slowest) = (now_ns(), Duration::ZERO);
    while now_ns() - began < time.as_nanos() as u64 {
        let case = random.below(CASES.len() as u64) as usize;
        let (text, key, _, _, window) = CASES[case];
        let call = Instant::now();
        let Some(limiter) = &limiters[case] else {
            limiters[case] = open(text);
            continue;
        };
        if key == "tenant" && random.below(8) == 0 {
            notes.expected(own());
            continue;
        }
        let other = random.below(60).to_string();
        match random.below(40) {
            0 => drop(notes.expected(limiter.peek(key, 1))),
            1 => drop(notes.expected(limiter.clear(&other))),
            2 => drop(notes.expected(limiter.stats(key))),
            3 => drop(notes.expected(limiter.pause(Duration::from_millis(1), &other))),
            4 => drop(notes.expected(store.flush())),
            5 => {
                let permit = notes.expected(limiter.decide(&other, 1)).and_then(|decision| decision.permit);
                permit.map(|permit| notes.expected(limiter.cancel(&permit)));
            }
            6 if window > 0 => drop(notes.expected(limiter.reserve(&other, 1, Some(Duration::from_secs(1)), None))),
            7 if random.below(20) == 0 => drop(notes.expected(store.verify(random.below(2) == 0))),
            8..20 => {
                if let Some(Attempt::Admitted(permit)) = notes.expected(limiter.attempt(&other, 1)) {
                    notes.expected(limiter.complete(&permit));
                }
            }
            _ => start(notes, case, &**limiter),
        }
        slowest = slowest.max(call.elapsed());
    }
    assert!(slowest < LONGEST_CALL, "a call took {slowest:?}");
}

/// A counted start of the key whose policy is known.
fn start(notes: &Notes, case: usize, limiter: &dyn Limiter) {
    let (_, key, weight, _, window) = CASES[case];
    let before = now_ns();
    let Some(Attempt::Admitted(permit)) = notes.expected(limiter.attempt(key, weight)) else { return };
    let after = now_ns();
    if window > 0 {
        notes.add(case, (before, after));
        notes.expected(limiter.complete(&permit));
    } else {
        std::thread::sleep(Duration::from_micros(500));
        // It ran at least from the end of one call to the beginning of the other.
        notes.add(case, (after, now_ns()));
        notes.expected(limiter.complete(&permit));
    }
}

// ---- damage ----

/// The damaged file, and the same file of another store.
struct Place {
    file: PathBuf,
    other: PathBuf,
}

fn next_to(path: &Path, suffix: &str) -> PathBuf {
    path.with_file_name(format!("{}.{suffix}", path.file_name().unwrap().to_str().unwrap()))
}

fn opened(path: &Path) -> Option<File> {
    OpenOptions::new().read(true).write(true).open(path).ok()
}

fn words_of(file: &File) -> Vec<u64> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    // It may become shorter during this.
    let _ = file.read_at(&mut bytes, 0);
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

fn put(file: &File, at: u64, word: u64) {
    file.write_all_at(&word.to_le_bytes(), at * 8).unwrap();
}

fn bytes(Place { file: path, .. }: &Place, random: &mut Random) {
    let Some(file) = opened(path) else { return };
    let len = file.metadata().unwrap().len().max(1);
    for _ in 0..1 + random.below(40) {
        // Most of it is empty, and the beginning matters more.
        let within = random.pick(&[len, 65_536, 16_384, 2_048]).min(len);
        let at = random.below(within);
        file.write_all_at(&[random.below(256) as u8], at).unwrap();
    }
}

/// Overwrites some of the used words with misleading values.
fn words(Place { file: path, .. }: &Place, random: &mut Random) {
    let Some(file) = opened(path) else { return };
    let words = words_of(&file);
    let used: Vec<u64> = (0..words.len() as u64).filter(|at| words[*at as usize] != 0).collect();
    for _ in 0..random.pick(&[1, 3, 30, 300]) {
        let at = random.pick(&used);
        let was = words[at as usize];
        let word = match random.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => at,
            3 => random.below(words.len() as u64),
            4 => random.pick(&words),
            5 => was ^ 1 << random.below(64),
            6 => was.wrapping_add(random.below(5)).wrapping_sub(2),
            _ => random.below(u64::MAX) << 11,
        };
        put(&file, at, word);
    }
}

/// Makes offsets point to themselves, to each other, or nowhere.
fn offsets(Place { file: path, .. }: &Place, random: &mut Random) {
    let Some(file) = opened(path) else { return };
    let words = words_of(&file);
    let offset = |word: u64| word & ((1 << 29) - 1);
    // Offsets of blocks. The bits above are a tag, a depth or a number.
    let is_offset = |at: &u64| {
        let to = offset(words[*at as usize]);
        (512..words.len() as u64).contains(&to) && to.is_multiple_of(16)
    };
    let all: Vec<u64> = (0..words.len() as u64).filter(is_offset).collect();
    let early: Vec<u64> = all.iter().copied().filter(|at| *at < 4_096).collect();
    for _ in 0..random.pick(&[1, 2, 8, 50]) {
        let is_early = random.below(2) == 0 && !early.is_empty();
        let at = random.pick(if is_early { &early } else { &all });
        let was = words[at as usize];
        let to = match random.below(6) {
            0 => at & !15,
            1 => offset(words[random.pick(&all) as usize]),
            2 => words.len() as u64 + random.below(1 << 20),
            3 => 0,
            4 => offset(was) + 16 * random.below(8),
            _ => random.below(words.len() as u64 / 16) * 16,
        };
        put(&file, at, was - offset(was) + offset(to));
    }
}

/// Overwrites whole pages: empty, random, or from another place.
fn pages(Place { file: path, .. }: &Place, random: &mut Random) {
    let Some(file) = opened(path) else { return };
    let count = (file.metadata().unwrap().len() / 4_096).max(1);
    for _ in 0..random.pick(&[1, 1, 4, 20]) {
        let mut page = [0; 4_096];
        let used = count.min(random.pick(&[1, 8, 40, count]));
        match random.below(3) {
            0 => {}
            1 => page.fill_with(|| random.below(256) as u8),
            _ => drop(file.read_at(&mut page, random.below(used) * 4_096)),
        }
        file.write_all_at(&page, random.below(used) * 4_096).unwrap();
    }
}

fn cut(Place { file: path, .. }: &Place, random: &mut Random) {
    let Some(file) = opened(path) else { return };
    let len = file.metadata().unwrap().len();
    let any = random.below(len.max(1));
    let to = random.pick(&[0, 1, 100, 4_096, any, len / 2, len.saturating_sub(1)]);
    file.set_len(to.min(len)).unwrap();
}

/// Makes the file longer.
fn extend(Place { file: path, .. }: &Place, random: &mut Random) {
    let Some(file) = opened(path) else { return };
    let len = file.metadata().unwrap().len();
    let more: Vec<u8> = (0..1 + random.below(100_000)).map(|_| random.below(256) as u8).collect();
    file.write_all_at(&more, len).unwrap();
}

/// A hole in place of data: like a truncation, but with the same length.
fn hole(Place { file: path, .. }: &Place, random: &mut Random) {
    let Some(file) = opened(path) else { return };
    let pages = (file.metadata().unwrap().len() as i64 / 4_096).max(1);
    let from = random.below(pages as u64) as i64;
    let len = (1 + random.below(8) as i64).min(pages - from);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain call on an open descriptor. (Some file systems do not support it.)
    unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), mode, from * 4_096, len * 4_096) };
}

/// Removes the file, or replaces it by another store's.
fn other_store(Place { file: path, other }: &Place, random: &mut Random) {
    let aside = next_to(path, "aside");
    let is_there = |path: &Path| std::fs::symlink_metadata(path).is_ok();
    match random.below(2) {
        0 if is_there(path) => std::fs::remove_file(path).unwrap(),
        1 if is_there(other) => drop(std::fs::copy(other, &aside).and_then(|_| std::fs::rename(&aside, path))),
        _ => {}
    }
}

/// Replaces the file by another kind of file.
fn replace(Place { file: path, .. }: &Place, random: &mut Random) {
    let aside = next_to(path, "aside");
    match random.below(5) {
        0 => drop(std::fs::rename(path, &aside).and_then(|()| symlink(&aside, path))),
        1 => drop(std::fs::rename(path, &aside).and_then(|()| symlink("/nowhere/at/all", path))),
        2 => drop(std::fs::rename(path, &aside).and_then(|()| std::fs::create_dir(path))),
        3 => {
            drop(std::fs::rename(path, &aside));
            let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            // SAFETY: a name that ends in NUL.
            unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
        }
        _ => drop(std::fs::rename(path, &aside).and_then(|()| std::fs::write(path, "nothing of ours"))),
    }
}

const HOSTILE: [&str; 24] = [
    "UPDATE limits SET policy = 'nonsense'",
    "UPDATE limits SET policy = printf('%.*c', 3000000, 'x')",
    "UPDATE limits SET policy = '5 concurrent' WHERE kind <> 'composite'",
    "UPDATE limits SET override = '1/0s'",
    "UPDATE limits SET kind = 'other'",
    "UPDATE limits SET generation = 9223372036854775807",
    "UPDATE limits SET generation = -1; UPDATE store SET generation = generation + 1",
    "UPDATE keys SET policy = '99999999999999999999/1h', generation = 99; UPDATE store SET generation = 100",
    "UPDATE store SET generation = -1",
    "UPDATE store SET generation = 9223372036854775807",
    "DELETE FROM store",
    "INSERT INTO store SELECT * FROM store",
    "UPDATE store SET sequence = 9223372036854775807",
    "UPDATE store SET sequence = -1, lane = 'z'",
    "UPDATE store SET secret = '', id = ''",
    "UPDATE store SET pruned_at = 9223372036854775807",
    "DROP TABLE limits",
    "DROP TABLE limits; CREATE VIEW limits AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) SELECT x FROM r",
    "DROP TABLE executions; CREATE TABLE executions (limit_id, key, key_hash, started_at, units, expires_at, synced, uptime, counts_until);
     INSERT INTO executions VALUES (NULL, 1, x'00', 'text', 1e300, NULL, 'a', 'b', 9e18)",
    "CREATE TRIGGER t AFTER UPDATE ON store BEGIN DELETE FROM executions; END",
    "INSERT INTO executions SELECT id, 'key', '0000000000000008000000000000007', 0, 9223372036854775807, 1, 1, 0 FROM limits WHERE name = '40/1h'",
    "INSERT INTO executions SELECT id, 'key', '00000000000000080000000000000074', -9223372036854775807, 9223372036854775807, 0, 1, 0 FROM limits WHERE name = '40/1h'",
    "INSERT INTO executions SELECT limit_id, key, key_hash, started_at, units, expires_at, synced, uptime FROM executions",
    "UPDATE executions SET uptime = -9223372036854775808, expires_at = 9223372036854775807",
];

fn hostile_rows(Place { file: path, .. }: &Place, random: &mut Random) {
    let sql = random.pick(&HOSTILE);
    println!("  {sql}");
    Child::run(|| {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        if let Err(e) = connection.execute_batch(sql) {
            println!("  {e}");
        }
    })
    .join();
}

/// Restores earlier contents, in place or as another file.
fn older(Place { file: path, .. }: &Place, random: &mut Random) {
    let old = next_to(path, "old");
    if random.below(2) == 0 {
        drop(std::fs::rename(old, path));
    } else if let Some(file) = opened(path) {
        // Truncating it, even for a moment, would kill its users.
        file.write_all_at(&std::fs::read(old).unwrap(), 0).unwrap();
    }
}

const DATABASE: &str = "limits.db";
const LANE: &str = "limits.db-lane";

type Damage = (&'static str, &'static str, fn(&Place, &mut Random));

/// The kinds of damage and their files. Overwriting may leave a plausible state.
const DAMAGES: [Damage; 19] = [
    ("overwritten bytes", LANE, bytes),
    ("overwritten words", LANE, words),
    ("overwritten words", LANE, words),
    ("overwritten offsets", LANE, offsets),
    ("overwritten offsets", LANE, offsets),
    ("overwritten pages", LANE, pages),
    ("overwritten by a hole", LANE, hole),
    ("cut", LANE, cut),
    ("extended", LANE, extend),
    ("older", LANE, older),
    ("replaced", LANE, replace),
    ("another store's", LANE, other_store),
    ("overwritten bytes", DATABASE, bytes),
    ("overwritten pages", DATABASE, pages),
    ("cut", DATABASE, cut),
    ("older", DATABASE, older),
    ("replaced", DATABASE, replace),
    ("another store's", DATABASE, other_store),
    ("hostile rows", DATABASE, hostile_rows),
];

// ---- rounds ----

/// Waits for a process, which must succeed. The kernel kills a process that touches a part that was just cut off.
fn join(child: Child, notes: &Notes, was_cut: bool) {
    let status = child.status(&notes.steps[0]);
    let is_cut_off = was_cut && libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS;
    assert!(status == 0 || is_cut_off, "a process failed: {status:#x}");
}

#[test]
fn damage_never_causes_silent_excess() {
    let seed = number("SEED", now_ns() % 1_000_000);
    let only = std::env::var("ONLY").unwrap_or_default();
    let damages: Vec<Damage> =
        DAMAGES.into_iter().filter(|(what, file, _)| format!("{what} {file}").contains(&only)).collect();
    let (mut silent, mut reported) = (0, 0);
    for round in seed..seed + number("ROUNDS", 12) {
        let mut random = Random::seeded(round);
        let (dir, other) = (Dir::in_memory("torments"), Dir::in_memory("torments-other"));
        let (notes, elsewhere) = (Notes::new(), Notes::new());
        let (what, file, damage) = random.pick(&damages);
        let [is_running, is_verified] = [random.below(2) == 0, random.below(3) == 0];
        println!("SEED={round}: {what} {file}, running {is_running}, verified {is_verified}");
        let run = |ms, seed| {
            let random = Random::seeded(round * 100 + seed);
            Child::run(|| use_for(&dir, Duration::from_millis(ms), &notes, random))
        };
        let elsewhere_too = || use_for(&other, Duration::from_millis(20), &elsewhere, Random::seeded(round));
        join(Child::run(elsewhere_too), &elsewhere, false);
        join(run(40, 0), &notes, false);
        for name in [DATABASE, LANE] {
            std::fs::copy(dir.file(name), dir.file(&format!("{name}.old"))).unwrap();
        }
        join(run(40, 1), &notes, false);
        assert_eq!((notes.errors[0].load(Acquire), notes.over()), (0, vec![]), "before anything was done");

        let running: Vec<_> = (0..if is_running { 3 } else { 0 }).map(|i| run(1_300, 2 + i)).collect();
        std::thread::sleep(Duration::from_millis(if is_running { 50 } else { 0 }));
        damage(&Place { file: dir.file(file), other: other.file(file) }, &mut random);
        running.into_iter().for_each(|child| join(child, &notes, what == "cut"));
        let found = shared(1);
        if is_verified {
            let verify = || {
                let problems = notes.expected(Store::new(&dir.url()).unwrap().verify(true));
                problems.iter().flatten().for_each(|problem| println!("  {problem:?}"));
                found[0].store(problems.map_or(0, |all| all.len() as u64), Release);
            };
            join(Child::run(verify), &notes, false);
        }
        let after: Vec<_> = (0..2).map(|i| run(150, 5 + i)).collect();
        after.into_iter().for_each(|child| join(child, &notes, false));

        let is_reported = notes.errors[0].load(Acquire) + found[0].load(Acquire) > 0;
        let over = notes.over();
        println!("  reported {is_reported}, over {over:?}");
        reported += u64::from(is_reported);
        if !over.is_empty() && !is_reported {
            silent += 1;
            let could_be = file == LANE && (what.starts_with("overwritten") || is_running && what == "older");
            assert!(could_be, "{over:?} without an error");
        }
    }
    println!("{reported} rounds with errors, {silent} with more than the limit and no error");
}
