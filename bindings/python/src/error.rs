//! Core errors as Python exceptions. The classes are defined in `_errors.py`; this file selects one of them.

use crate::argument::shortened;
use crate::custom::exception_of;
use pyo3::prelude::*;
use std::time::Duration;
use workglow_limit::Error;
use workglow_limit::embed::plain_key;

/// Converts a core error to an exception with a `code` and a `number`, or to the exception that a limiter written in Python raised.
pub fn raised(error: Error) -> PyErr {
    if let Some(exception) = exception_of(&error) {
        return exception;
    }
    Python::attach(|py| {
        let exception = || {
            let value = class(py, class_of(&error))?.call1((error.to_string(),))?;
            value.setattr("code", error.name())?;
            value.setattr("number", error.code())?;
            Ok(PyErr::from_value(value))
        };
        exception().unwrap_or_else(|e| e)
    })
}

/// The exception of a waiter whose timeout has passed. The empty key means no key. Of a joint start it has the start's own.
pub fn expired(py: Python<'_>, limiter: &str, key: &str, after: Duration) -> PyErr {
    let exception = || {
        let key = Some(plain_key(key)).filter(|key| !key.is_empty());
        let for_key = key.map_or_else(String::new, |key| format!(" for key {}", shortened(format!("{key:?}"))));
        let seconds = after.as_secs_f64();
        let text = format!("{limiter:?} cannot admit this start{for_key} before the timeout: retry in {seconds} s");
        let value = class(py, "AcquireTimeout")?.call1((text,))?;
        value.setattr("key", key)?;
        value.setattr("retry_after", seconds)?;
        Ok(PyErr::from_value(value))
    };
    exception().unwrap_or_else(|e| e)
}

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("workglow_limit._errors")?.getattr(name)
}

fn class_of(error: &Error) -> &'static str {
    match error {
        Error::InvalidArgument { .. } => "InvalidArgument",
        Error::WeightExceedsCapacity { .. } => "WeightExceedsCapacity",
        Error::InvalidUrl { .. } => "InvalidUrl",
        Error::UnknownLimit { .. } => "UnknownLimit",
        Error::KindMismatch { .. } => "KindMismatch",
        Error::NotAStore { .. } => "NotAStore",
        Error::UnsupportedVersion { .. } => "UnsupportedVersion",
        Error::UnsupportedFileSystem { .. } => "UnsupportedFileSystem",
        Error::Store { .. } => "StoreError",
        Error::StoreTimeout { .. } => "StoreTimeout",
        Error::StoreFull { .. } => "StoreFull",
        Error::Damaged { .. } => "Damaged",
        Error::ForeignPermit { .. } => "ForeignPermit",
        Error::Unsupported { .. } => "Unsupported",
        Error::LeaseLost { .. } => "LeaseLost",
        Error::StoreClosed { .. } => "StoreClosed",
        _ => "LimitError",
    }
}
