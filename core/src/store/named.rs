//! Limits by name: from a text, a file, or a few numbers.

use super::Store;
use crate::error::Result;
use crate::limiter::Limiter;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

impl Store {
    /// A limiter of a text such as `100/1m + 5/1s + 5 concurrent`, declared under a name: if there are several policies,
    /// a composite of limits with names of their own, `name/rate`, `name/concurrency`, ….
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) that says where the text is wrong.
    pub fn limiter(&self, name: &str, policies: &str) -> Result<Arc<dyn Limiter>> {
        let _ = (name, policies);
        unimplemented!()
    }

    /// The limiter that is declared under a name: of one kind, or a composite as [`Store::limiter`] declares them.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`](crate::Error::UnknownLimit), which lists the known names; or as for [`Store::open`].
    pub fn find(&self, name: &str) -> Result<Arc<dyn Limiter>> {
        let _ = name;
        unimplemented!()
    }

    /// Declares the limits of a TOML file, all or none, and returns their names.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) that says where the file is wrong; or as for
    /// [`Store::open`].
    pub fn load(&self, file: &Path) -> Result<Vec<String>> {
        let _ = file;
        unimplemented!()
    }

    /// Flow control in one call: at most `rate` starts per period, and `parallelism` of them at the same time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) without either, or as for [`Policy::rate`](crate::Policy::rate) and
    /// [`Policy::concurrency`](crate::Policy::concurrency).
    pub fn flow_control(
        &self,
        name: &str,
        rate: Option<(u64, Duration)>,
        parallelism: Option<u64>,
    ) -> Result<Arc<dyn Limiter>> {
        let _ = (name, rate, parallelism);
        unimplemented!()
    }
}
