//! Errors of the core as Python exceptions. The classes are Python (`_errors.py`); which one it is, is said here.

use crate::custom::exception_of;
use pyo3::prelude::*;
use std::time::Duration;
use workglow_limit::Error;

/// The exception of an error of the core, with its `code` and `number`; or the one that a limiter written in Python raised.
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

/// The exception of a waiter whose time is up.
pub fn expired(py: Python<'_>, limiter: &str, after: Duration) -> PyErr {
    let exception = || {
        let text = format!("{limiter:?} has no room before the timeout, but may have in {} s", after.as_secs_f64());
        let value = class(py, "AcquireTimeout")?.call1((text,))?;
        value.setattr("retry_after", after.as_secs_f64())?;
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
        _ => "LimitError",
    }
}
