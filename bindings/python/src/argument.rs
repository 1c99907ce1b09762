//! Arguments from Python. A value of the wrong type is a `TypeError`, a value out of range an `InvalidArgument`. Both name
//! the parameter, the value and the expectation.

use crate::clock::ManualClock;
use crate::error::raised;
use crate::permit::Permit;
use crate::store::Store;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDateTime, PyDelta, PyDeltaAccess, PyFloat, PyInt, PyString};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use workglow_limit::embed::{MAX_SHARE, duration_from_secs};
use workglow_limit::observe::{MetricsFormat, Onlooker};
use workglow_limit::{Durability, Error, OnError};

type Given<'a, 'py> = &'a Bound<'py, PyAny>;

/// A key. `None` means no key.
#[inline]
pub fn key<'a>(value: Given<'a, '_>) -> PyResult<Option<&'a str>> {
    if value.is_none() { Ok(None) } else { text("key", value).map(Some) }
}

/// A text that UTF-8 can encode.
#[inline]
pub fn text<'a>(parameter: &'static str, value: Given<'a, '_>) -> PyResult<&'a str> {
    let Ok(text) = value.cast::<PyString>() else { return Err(wrong_type(parameter, value, "a str")) };
    text.to_str().map_err(|_| invalid(parameter, value, "text that UTF-8 can encode"))
}

/// The address of a store. A path is the path of a SQLite file.
pub fn address(value: Given<'_, '_>) -> PyResult<String> {
    if !value.is_instance_of::<PyString>() && value.hasattr("__fspath__")? {
        return Ok(format!("sqlite:{}", text("url", &value.call_method0("__fspath__")?)?));
    }
    match value.cast::<PyString>() {
        Ok(_) => text("url", value).map(str::to_owned),
        Err(_) => Err(wrong_type("url", value, "a str, or the path of a file as an os.PathLike")),
    }
}

/// The weight of a start.
#[inline]
pub fn weight(value: Given<'_, '_>) -> PyResult<u64> {
    match whole("weight", value)? {
        Whole::Fits(weight) if weight > 0 => Ok(weight),
        _ => Err(invalid("weight", value, "a whole number from 1 to 18446744073709551615")),
    }
}

/// The priority of a waiter.
pub fn priority(value: Given<'_, '_>) -> PyResult<i32> {
    if !value.is_instance_of::<PyBool>()
        && let Ok(priority) = value.extract::<i32>()
    {
        return Ok(priority);
    }
    whole("priority", value)?;
    Err(invalid("priority", value, "a whole number from -2147483648 to 2147483647"))
}

/// The share of a tenant.
pub fn share(value: Given<'_, '_>) -> PyResult<u32> {
    match u32::try_from(whole("share", value)?.clamped()) {
        Ok(share @ 1..=MAX_SHARE) => Ok(share),
        _ => Err(invalid("share", value, &format!("a whole number from 1 to {MAX_SHARE}"))),
    }
}

/// The share of a waiter's tenant. `None` means the one that the store keeps.
pub fn share_or_none(value: Given<'_, '_>) -> PyResult<Option<u32>> {
    if value.is_none() { Ok(None) } else { share(value).map(Some) }
}

/// The weight of a peek. It may be 0.
pub fn weight_to_peek(value: Given<'_, '_>) -> PyResult<u64> {
    units("weight", value)
}

/// The number of starts of a forecast.
pub fn starts(value: Given<'_, '_>) -> PyResult<u64> {
    whole("starts", value).map(|starts| starts.clamped())
}

/// The units that a start used in the end. They may be 0.
pub fn actual(value: Given<'_, '_>) -> PyResult<u64> {
    units("actual", value)
}

fn units(parameter: &'static str, value: Given<'_, '_>) -> PyResult<u64> {
    match whole(parameter, value)? {
        Whole::Fits(units) => Ok(units),
        _ => Err(invalid(parameter, value, "a whole number from 0 to 18446744073709551615")),
    }
}

/// The units of one part of a composite.
pub fn units_of(part: &str, parameter: &'static str, least: u64, value: Given<'_, '_>) -> PyResult<u64> {
    match read_whole(value)? {
        Some(Whole::Fits(units)) if units >= least => Ok(units),
        Some(_) => {
            let expected = format!("a whole number from {least} to 18446744073709551615 for part {part:?}");
            Err(invalid(parameter, value, &expected))
        }
        None => Err(wrong_type(parameter, value, &format!("a whole number for part {part:?}"))),
    }
}

/// The key of one part of a composite. `None` means no key.
pub fn key_of<'a>(part: &str, value: Given<'a, '_>) -> PyResult<&'a str> {
    match value.cast::<PyString>() {
        Ok(_) => text("key", value),
        Err(_) if value.is_none() => Ok(""),
        Err(_) => Err(wrong_type("key", value, &format!("a str or None for part {part:?}"))),
    }
}

/// The answer of decisions when the store fails.
pub fn on_error(value: Given<'_, '_>) -> PyResult<OnError> {
    choice("on_error", value, &ON_ERROR)
}

pub const ON_ERROR: [(&str, OnError); 3] =
    [("raise", OnError::Raise), ("deny", OnError::Deny), ("admit", OnError::Admit)];

/// The loss that a power cut may cause.
pub fn durability(value: Given<'_, '_>) -> PyResult<Durability> {
    choice("durability", value, &DURABILITY)
}

pub const DURABILITY: [(&str, Durability); 2] = [("budget", Durability::Budget), ("commit", Durability::Commit)];

/// Returns the word for a choice.
pub fn word<T: Copy + PartialEq, const N: usize>(words: [(&'static str, T); N], meant: T) -> &'static str {
    words.iter().find(|(_, choice)| *choice == meant).map_or("", |(word, _)| word)
}

/// One of a few words.
pub fn choice<T: Copy>(parameter: &'static str, value: Given<'_, '_>, words: &[(&str, T)]) -> PyResult<T> {
    let given = text(parameter, value)?;
    if let Some((_, meant)) = words.iter().find(|(word, _)| *word == given) {
        return Ok(*meant);
    }
    let quoted: Vec<_> = words.iter().map(|(word, _)| format!("'{word}'")).collect();
    let expected = match &quoted[..] {
        [all @ .., last] => format!("{} or {last}", all.join(", ")),
        [] => String::new(),
    };
    Err(invalid(parameter, value, &expected))
}

/// A whole number.
pub enum Whole {
    /// A number that fits into 64 bits.
    Fits(u64),
    /// A negative number.
    Below,
    /// A number larger than 64 bits.
    Beyond,
}

impl Whole {
    /// Clamps the number to 64 bits, for parameters whose range the core checks. Neither 0 nor `u64::MAX` is in such a
    /// range, so a number that does not fit stays out of range on the same side.
    pub fn clamped(self) -> u64 {
        match self {
            Whole::Fits(number) => number,
            Whole::Below => 0,
            Whole::Beyond => u64::MAX,
        }
    }
}

/// The number of keys to report.
pub fn keys(value: Given<'_, '_>) -> PyResult<usize> {
    match whole("keys", value)? {
        Whole::Fits(number) if number <= Onlooker::MAX_KEYS as u64 => Ok(number as usize),
        _ => Err(invalid("keys", value, &format!("a whole number from 0 to {}", Onlooker::MAX_KEYS))),
    }
}

/// Whether keys are reported by their texts.
pub fn show_keys(value: Given<'_, '_>) -> PyResult<bool> {
    flag("show_keys", value)
}

/// Whether a limit adapts to the durations of its jobs.
pub fn adaptive(value: Given<'_, '_>) -> PyResult<bool> {
    flag("adaptive", value)
}

/// Whether tenants share a limit.
pub fn shared(value: Given<'_, '_>) -> PyResult<bool> {
    flag("shared", value)
}

/// Whether problems are repaired.
pub fn repair(value: Given<'_, '_>) -> PyResult<bool> {
    flag("repair", value)
}

fn flag(parameter: &'static str, value: Given<'_, '_>) -> PyResult<bool> {
    value.extract().map_err(|_| wrong_type(parameter, value, "a bool"))
}

/// A store.
pub fn store<'a, 'py>(value: Given<'a, 'py>) -> PyResult<&'a Bound<'py, Store>> {
    value.cast().map_err(|_| wrong_type("store", value, "a Store"))
}

/// A store. `None` means a limit of this process.
pub fn store_or_none<'a, 'py>(value: Given<'a, 'py>) -> PyResult<Option<&'a Bound<'py, Store>>> {
    if value.is_none() { Ok(None) } else { store(value).map(Some) }
}

/// A clock for tests. `None` means the system's.
pub fn clock<'a, 'py>(value: Given<'a, 'py>) -> PyResult<Option<&'a Bound<'py, ManualClock>>> {
    if value.is_none() {
        return Ok(None);
    }
    value.cast().map(Some).map_err(|_| wrong_type("clock", value, "a ManualClock"))
}

/// The permit of a start.
pub fn permit<'a, 'py>(value: Given<'a, 'py>) -> PyResult<&'a Bound<'py, Permit>> {
    value.cast().map_err(|_| wrong_type("permit", value, "a Permit"))
}

/// A metrics format.
pub fn format(value: Given<'_, '_>) -> PyResult<MetricsFormat> {
    choice("format", value, &[("openmetrics", MetricsFormat::OpenMetrics), ("prometheus", MetricsFormat::Prometheus)])
}

/// An int. A bool is refused, although Python counts it as an int.
#[inline]
pub fn whole(parameter: &'static str, value: Given<'_, '_>) -> PyResult<Whole> {
    read_whole(value)?.ok_or_else(|| wrong_type(parameter, value, "a whole number"))
}

/// As `whole`. `None` is a value of another type.
#[inline]
fn read_whole(value: Given<'_, '_>) -> PyResult<Option<Whole>> {
    if !value.is_instance_of::<PyBool>() {
        match value.extract::<u64>() {
            Ok(number) => return Ok(Some(Whole::Fits(number))),
            Err(e) if e.is_instance_of::<PyOverflowError>(value.py()) => {
                return Ok(Some(if value.lt(0)? { Whole::Below } else { Whole::Beyond }));
            }
            Err(_) => {}
        }
    }
    Ok(None)
}

/// The longest wait, in seconds. `None` means no limit.
pub fn patience(value: Given<'_, '_>) -> PyResult<Option<Duration>> {
    if value.is_none() { Ok(None) } else { timeout(value).map(Some) }
}

/// A timeout, in seconds.
pub fn timeout(value: Given<'_, '_>) -> PyResult<Duration> {
    seconds("timeout", value)
}

/// A number, whole or not. A bool is refused. A number too large for a float becomes infinity.
pub fn number(parameter: &'static str, value: Given<'_, '_>) -> PyResult<f64> {
    match value.extract::<f64>() {
        _ if value.is_instance_of::<PyBool>() => Err(wrong_type(parameter, value, "a number")),
        Err(e) if e.is_instance_of::<PyOverflowError>(value.py()) => Ok(f64::INFINITY),
        number => number.map_err(|_| wrong_type(parameter, value, "a number")),
    }
}

/// A duration: seconds as a number, or a `timedelta`.
pub fn seconds(parameter: &'static str, value: Given<'_, '_>) -> PyResult<Duration> {
    let is_number = value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyInt>();
    let (number, exact) = match if is_number { None } else { value.cast::<PyDelta>().ok() } {
        Some(delta) => {
            let days = f64::from(delta.get_days());
            // Whole seconds are exact enough for the range check.
            (days * 86_400.0 + f64::from(delta.get_seconds()), value.extract::<Duration>().ok())
        }
        None => match number(parameter, value) {
            Ok(number) => (number, None),
            Err(_) => return Err(wrong_type(parameter, value, "seconds as a number, or a timedelta")),
        },
    };
    let checked = duration_from_secs(parameter, number).map_err(|e| quoting(e, &[(parameter, parameter, value)]))?;
    Ok(exact.unwrap_or(checked))
}

/// An instant: an aware `datetime`.
pub fn instant(parameter: &'static str, value: Given<'_, '_>) -> PyResult<SystemTime> {
    if value.cast::<PyDateTime>().is_err() {
        return Err(wrong_type(parameter, value, "an aware datetime"));
    }
    if value.call_method0("utcoffset")?.is_none() {
        let expected = "an aware datetime, with a tzinfo such as timezone.utc";
        return Err(invalid(parameter, value, expected));
    }
    let since = value.sub(UNIX_EPOCH.into_pyobject(value.py())?)?;
    // All instants in the past impose no gate, so instants before the epoch may become the epoch.
    Ok(since.extract::<Duration>().map_or(UNIX_EPOCH, |since| UNIX_EPOCH + since))
}

/// Converts a core error about arguments to an exception that uses Python's parameter names and quotes the values as
/// given. Each argument is (the core's name, Python's name, the value).
pub fn quoting(error: Error, arguments: &[(&str, &'static str, Given<'_, '_>)]) -> PyErr {
    quoting_given(error, arguments.iter().map(|&(core, python, value)| (core, python, Some(value))))
}

/// As `quoting`, for arguments that may be missing.
pub fn quoting_given<'a, 'py: 'a>(
    error: Error,
    arguments: impl IntoIterator<Item = (&'a str, &'static str, Option<Given<'a, 'py>>)>,
) -> PyErr {
    if let Error::InvalidArgument { parameter, ref expected, .. } = error {
        for (core, python, value) in arguments {
            if core == parameter
                && let Some(value) = value
            {
                return invalid(python, value, expected);
            }
        }
    }
    raised(error)
}

/// The exception for a value out of range.
pub fn invalid(parameter: &'static str, value: Given<'_, '_>, expected: &str) -> PyErr {
    raised(Error::InvalidArgument { parameter, value: quote(value), expected: expected.to_owned() })
}

/// The exception for a value of the wrong type.
pub fn wrong_type(parameter: &str, value: Given<'_, '_>, expected: &str) -> PyErr {
    let kind = value.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{parameter} is {}: expected {expected}, not {kind}", quote(value)))
}

/// The value's `repr`, shortened.
pub fn quote(value: Given<'_, '_>) -> String {
    // An int of thousands of digits has no repr.
    shortened(value.repr().map_or_else(|_| "too large to print".to_owned(), |repr| repr.to_string_lossy().into()))
}

/// A text for a message: no longer than 64 characters.
pub fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(64) {
        text.truncate(end);
        text.push('…');
    }
    text
}
