//! What JavaScript calls. `bindings/node/lib/web/engine.ts` is the other side.
//!
//! Texts and numbers are passed in the buffers of a store: JavaScript writes a call's texts one after the other into
//! `text`, calls with their lengths, and reads the answer from `numbers`. A call returns 0, or a limit's number; or an error's
//! number, which is negative, and then `text` is its message, `CODE MESSAGE`.
//!
//! A store is what `wgl_new` returned, and lives until `wgl_free`. Only one thread has an instance, so no call meets another.

use crate::Result;
use crate::algorithm::time::{EPOCH_LEAD, Tick};
use crate::limits::{Decision, Limits, MAX_PARTS};
use crate::part::{End, Held};

/// The numbers of a decision, and then those of a start in each part.
const DECISION: usize = 10;
const HELD: usize = 4;

/// A store, and the buffers of its calls.
pub struct Store {
    limits: Limits,
    text: Vec<u8>,
    numbers: [f64; DECISION + HELD * MAX_PARTS],
}

impl Store {
    /// The texts of a call.
    fn texts<const N: usize>(&self, lengths: [usize; N]) -> [String; N] {
        let mut at = 0;
        lengths.map(|length| {
            let text = self.text.get(at..at + length).unwrap_or_default();
            at += length;
            // JavaScript encodes them, so they are UTF-8.
            String::from_utf8_lossy(text).into_owned()
        })
    }

    fn answer(&mut self, answer: Result<usize>) -> i32 {
        match answer {
            Ok(number) => number as i32,
            Err(error) => {
                let text = format!("{} {error}", error.name());
                // Nothing is forgotten here.
                self.text = text.trim_end_matches(", or forget this one first").into();
                error.code()
            }
        }
    }

    fn put(&mut self, decision: &Decision) {
        let Decision {
            admitted,
            retry_after,
            suggested_after,
            remaining,
            limit,
            reset_after,
            denied_by,
            holds,
            is_counted,
            awaits_end,
            held,
        } = decision;
        let times = [*retry_after, *suggested_after, *remaining, *limit, *reset_after, *denied_by as u64];
        let times = times.into_iter().chain([*holds, *is_counted, *awaits_end].map(u64::from));
        self.numbers[0] = f64::from(u8::from(*admitted));
        self.numbers[1..DECISION].iter_mut().zip(times).for_each(|(place, number)| *place = number as f64);
        for (place, held) in self.numbers[DECISION..].as_chunks_mut::<HELD>().0.iter_mut().zip(held) {
            *place = [held.ticket, held.stamp, held.ahead, held.began].map(|number| number as f64);
        }
    }

    fn held(&self) -> Vec<Held> {
        let held = |&[ticket, stamp, ahead, began]: &[f64; HELD]| Held {
            ticket: ticket as u64,
            stamp: stamp as u64,
            ahead: ahead as u64,
            began: began as u64,
        };
        self.numbers[DECISION..].as_chunks().0.iter().map(held).collect()
    }
}

/// Returns the version of this package as a number: 1.2.3 is 1,002,003.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_version() -> u32 {
    const PARTS: [&str; 3] =
        [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    PARTS.iter().fold(0, |number, part| 1_000 * number + part.parse::<u32>().unwrap_or(0))
}

/// Makes a store. `unix_us`: the Unix time at its time 0; `seed`: anything.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_new(unix_us: f64, seed: f64) -> *mut Store {
    let limits = Limits::new(unix_us as i64, seed.to_bits());
    Box::into_raw(Box::new(Store { limits, text: Vec::new(), numbers: [0.0; DECISION + HELD * MAX_PARTS] }))
}

/// Frees a store: its address is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_free(store: Box<Store>) {
    drop(store);
}

/// Makes `text` this long, and returns its address.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_text(store: &mut Store, length: usize) -> *mut u8 {
    store.text.resize(length, 0);
    store.text.as_mut_ptr()
}

/// Returns the length of `text`.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_text_length(store: &Store) -> usize {
    store.text.len()
}

/// Returns the address of `numbers`.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_numbers(store: &mut Store) -> *mut f64 {
    store.numbers.as_mut_ptr()
}

/// Declares a limit, or finds it if there is no policy. Texts: name, policy.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_limit(store: &mut Store, name: usize, policy: usize, from: f64, to: f64) -> i32 {
    let [name, policy] = store.texts([name, policy]);
    let at = store.limits.moment(from, to);
    let limit = store.limits.limit(&name, &policy, at);
    store.answer(limit)
}

/// Decides, or only looks. Text: key.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_decide(
    store: &mut Store,
    limit: usize,
    key: usize,
    weight: f64,
    looks: i32,
    from: f64,
    to: f64,
) -> i32 {
    let [key] = store.texts([key]);
    let at = store.limits.moment(from, to);
    let decided = match looks {
        0 => store.limits.decide(limit, &key, weight as u64, at),
        _ => store.limits.peek(limit, &key, weight as u64, at),
    };
    let answer = decided.map(|decision| {
        store.put(&decision);
        0
    });
    store.answer(answer)
}

/// Ends a start: it was completed (0), cancelled (1), or cost `actual` units (2). `numbers` has the start. Text: key.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_end(
    store: &mut Store,
    limit: usize,
    key: usize,
    weight: f64,
    how: i32,
    actual: f64,
    from: f64,
    to: f64,
) -> i32 {
    let [key] = store.texts([key]);
    let (at, held) = (store.limits.moment(from, to), store.held());
    let end = match how {
        0 => End::Completed,
        1 => End::Cancelled,
        _ => End::Settled(actual as u64),
    };
    let ended = store.limits.end(limit, &key, weight as u64, &held, end, at);
    store.answer(ended.map(|()| 0))
}

/// Lets nobody start for so many µs. Text: key.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_pause(store: &mut Store, limit: usize, key: usize, us: f64, from: f64, to: f64) -> i32 {
    let [key] = store.texts([key]);
    let at = store.limits.moment(from, to);
    let paused = store.limits.pause(limit, &key, us, at);
    store.answer(paused.map(|()| 0))
}

/// Forgets all starts. Text: key.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_clear(store: &mut Store, limit: usize, key: usize) -> i32 {
    let [key] = store.texts([key]);
    let cleared = store.limits.clear(limit, &key);
    store.answer(cleared.map(|()| 0))
}

/// Overrides policies, or lifts what does if there is no policy. Texts: name, policy, key, if there is one.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_override(
    store: &mut Store,
    name: usize,
    policy: usize,
    key: usize,
    has_key: i32,
    from: f64,
    to: f64,
) -> i32 {
    let [name, policy, key] = store.texts([name, policy, key]);
    let (at, key) = (store.limits.moment(from, to), (has_key != 0).then_some(&*key));
    let done = match &*policy {
        "" => store.limits.lift(&name, key, at),
        policy => store.limits.set_override(&name, policy, key, at),
    };
    store.answer(done.map(|()| 0))
}

/// Returns the length of a unit of time in µs, 0 if there is none of this name. Text: the name.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_unit(store: &mut Store, name: usize) -> f64 {
    let [name] = store.texts([name]);
    crate::policy::parse_time(&format!("1 {name}")).map_or(0.0, |time| time.as_micros() as f64)
}

/// Writes the name of a part into `text`.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_part(store: &mut Store, limit: usize, part: usize) {
    let name = store.limits.parts(limit).get(part).map_or("", |part| &part.name);
    store.text = name.as_bytes().to_vec();
}

/// Makes the number of the next start greater than this one, and returns the last one.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_number(store: &mut Store, least: f64) -> f64 {
    store.limits.number_from(least as u64) as f64
}

/// Writes the state of a key into `text`, as words of 64 bits, and returns until when it matters, in µs. Text: key.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_save(store: &mut Store, limit: usize, key: usize, from: f64, to: f64) -> f64 {
    let [key] = store.texts([key]);
    let (words, until) = store.limits.save(limit, &key, store.limits.moment(from, to));
    store.text = words.into_iter().flat_map(u64::to_le_bytes).collect();
    if until == Tick::MAX { f64::INFINITY } else { until.saturating_sub(EPOCH_LEAD) as f64 }
}

/// Restores a key from its state, which follows its name in `text`. `by`: the time when its policy changed, if it has. Returns 1 if this
/// is no state of it: then all its units count as used. Text: key.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_load(store: &mut Store, limit: usize, key: usize, by: f64, from: f64, to: f64) -> i32 {
    let [name] = store.texts([key]);
    let (words, rest) = store.text.get(key..).unwrap_or_default().as_chunks();
    let words: Vec<u64> = words.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let (by, at) = (store.limits.moment(by, by), store.limits.moment(from, to));
    let is_whole = rest.is_empty() && store.limits.load(limit, &name, &words, by).is_some();
    if !is_whole {
        store.limits.lose(limit, &name, at);
    }
    i32::from(!is_whole)
}

/// Forgets a key that can be restored, and its policies. Text: key.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_drop(store: &mut Store, limit: usize, key: usize) {
    let [key] = store.texts([key]);
    store.limits.drop_key(limit, &key);
}

/// Gives a start of a lost key its units back. `numbers` has the start. Text: key.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_hold(store: &mut Store, limit: usize, key: usize, weight: f64) {
    let [key] = store.texts([key]);
    let held = store.held();
    store.limits.hold(limit, &key, weight as u64, &held);
}

/// Writes into `text` the policies above the declared ones: of the limit, or of a key. Text: key.
#[unsafe(no_mangle)]
pub extern "C" fn wgl_overriding(store: &mut Store, limit: usize, key: usize, has_key: i32) {
    let [key] = store.texts([key]);
    store.text = store.limits.overriding(limit, (has_key != 0).then_some(&*key)).into_bytes();
}
