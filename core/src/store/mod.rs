//! The declarations of a store by name: from policies, texts and files.

mod file;
mod named;

use crate::error::Result;
use crate::limiter::{Limiter, limiter_of};
use crate::policy::Policy;
use crate::state::{Limit, Store};
use std::sync::Arc;

impl Store {
    /// The declared names of this store, in order. Declares those of this process's limiters that were not used yet and
    /// whose names the store does not know.
    ///
    /// # Errors
    /// As for [`Store::open`].
    pub fn names(&self) -> Result<Vec<String>> {
        let session = self.session();
        session.report("", session.knowing_all(|| session.all_names()))
    }

    /// A limiter of the policy's kind, declared under a name at its first use.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `name` is 1 to 1,024 bytes.
    pub fn declare(&self, name: &str, policy: Policy) -> Result<Arc<dyn Limiter>> {
        Ok(limiter_of(Limit::declare(self.session(), name, policy)?))
    }
}
