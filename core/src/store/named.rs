//! Limits by name, from a text or a few numbers. For files, see `file.rs`.

use crate::error::{Error, Result};
use crate::limiter::{CompositeLimiter, Limiter, limiter_of};
use crate::policy::{self, NamedPolicy, Policy};
use crate::state::{Declared, Limit, Store, text_of};
use std::sync::Arc;
use std::time::Duration;

/// The limiter of these limits: a composite if there are several.
fn limiter_of_all(name: &str, mut limits: Vec<Limit>) -> Arc<dyn Limiter> {
    match limits.len() {
        1 if **limits[0].name() == *name => limiter_of(limits.remove(0)),
        _ => Arc::new(CompositeLimiter::with_name(name, limits.into_iter().map(|limit| (None, limiter_of(limit))))),
    }
}

/// The policies of a text, in the form in which they are read back from the store.
pub(super) fn policies_of(text: &str) -> Result<Vec<NamedPolicy>> {
    policy::parse_all(&text_of(&policy::parse_all(text)?))
}

impl Store {
    /// A limiter for a text such as `100/1m + 5/1s + 5 concurrent`, declared under a name at its first use, in place of
    /// the name's previous declaration. Several policies make a composite of limits with names of their own:
    /// `name/rate`, `name/concurrency`, … (`name/rate-2` for a second one of the kind). A denial names the limit that
    /// denied. In `requests: 500/1m + tokens: 200000/1m`, they are `name/requests` and `name/tokens`, and
    /// [joint starts](Limiter::joint) can charge each differently.
    ///
    /// Calls about the name know it before the first use.
    ///
    /// Admitted starts keep counting when parts are added or removed. If no part stays, it is another kind of limiter,
    /// which needs a [`Store::forget`] first.
    ///
    /// ```
    /// # use workglow_limit::Store;
    /// let store = Store::new("memory:")?;
    /// let limiter = store.limiter("openai", "100/1m + 5 concurrent")?;
    /// assert!(limiter.decide("tenant-7", 5)?.admitted);
    /// let denial = store.find("openai")?.decide("tenant-7", 1)?;
    /// assert_eq!(denial.denied_by.as_deref(), Some("openai/concurrency"));
    /// # Ok::<(), workglow_limit::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the place at which the text is wrong, or unless the names are 1 to 1,024 bytes.
    pub fn limiter(&self, name: &str, policies: &str) -> Result<Arc<dyn Limiter>> {
        Ok(limiter_of_all(name, Limit::declare_parts(self.session(), name, policies_of(policies)?)?))
    }

    /// The limiter that is declared under a name: of one kind, or a composite as declared by [`Store::limiter`]. Opens
    /// the store.
    ///
    /// A name that is not declared yet is declared first, if a limiter has been made under it in this process with this
    /// store (or its clones). All calls by name do so.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`], which lists the known names; or as for [`Store::open`].
    pub fn find(&self, name: &str) -> Result<Arc<dyn Limiter>> {
        policy::check_name(name)?;
        let session = self.session();
        let attach = |(part, found): (String, Declared)| Limit::attach(self.session(), &part, found.declared.kind());
        let find = || {
            session.with_names(&[name], |_| match session.family(name)?.parts(name) {
                parts if parts.is_empty() => session.unknown(name),
                parts => parts.into_iter().map(attach).collect::<Result<Vec<Limit>>>(),
            })
        };
        let limits = session.knowing(name, find);
        let opened =
            limits.and_then(|limits| limits.iter().try_for_each(|limit| limit.table().map(drop)).map(|()| limits));
        session.report(name, opened).map(|limits| limiter_of_all(name, limits))
    }

    /// Flow control in one call: at most `rate` starts per period, and `parallelism` of them at the same time, declared
    /// under a name at the first use as by [`Store::limiter`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without either, or as for [`Policy::rate`] and [`Policy::concurrency`].
    pub fn flow_control(
        &self,
        name: &str,
        rate: Option<(u64, Duration)>,
        parallelism: Option<u64>,
    ) -> Result<Arc<dyn Limiter>> {
        let named = |error| match error {
            Error::InvalidArgument { parameter, value, expected } => {
                let parameter = match parameter {
                    "max_executions" => "rate",
                    "window" => "period",
                    _ => "parallelism",
                };
                Error::InvalidArgument { parameter, value, expected }
            }
            other => other,
        };
        let rate = rate.map(|(max, period)| Policy::rate(max, period)).transpose().map_err(named)?;
        let jobs = parallelism.map(Policy::concurrency).transpose().map_err(named)?;
        let policies: Vec<NamedPolicy> = rate.into_iter().chain(jobs).map(NamedPolicy::from).collect();
        if policies.is_empty() {
            return Err(Error::invalid("rate", "missing, and so is parallelism", "at least one of the two"));
        }
        Ok(limiter_of_all(name, Limit::declare_parts(self.session(), name, policies)?))
    }

    /// Puts an operator's policies above those that programs declare, at once and until they are lifted. In a composite,
    /// each policy applies to the part of its name, or without a name to the first of its kind: all of them or, after an
    /// error, none. Parts without a policy stay as they are.
    ///
    /// With a key they apply to that key only, such as a tenant's plan, above the limit's: later changes of the limit do
    /// not affect them. The key need not have been used yet.
    ///
    /// ```
    /// # use workglow_limit::Store;
    /// let store = Store::new("memory:")?;
    /// let limiter = store.limiter("api", "100/1m")?;
    /// store.override_limit("api", "1000/1m", Some("tenant-7"))?;
    /// assert_eq!(limiter.peek("tenant-7", 1)?.limit, 1_000);
    /// assert_eq!(limiter.peek("tenant-8", 1)?.limit, 100);
    /// # Ok::<(), workglow_limit::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the place at which the text is wrong, for a policy of a kind that no part of a
    /// composite has, or unless the key is 1 to 1,024 bytes; [`Error::UnknownLimit`] for a name that is not declared,
    /// [`Error::KindMismatch`] for another kind of policy, or as for [`Store::open`].
    pub fn override_limit(&self, name: &str, policies: &str, key: Option<&str>) -> Result<()> {
        self.set_override(name, Some(&policies_of(policies)?), key)
    }

    /// Removes the operator's policies of a name, so that the last declared ones apply again; single keys keep theirs.
    /// With a key, removes that key's, so that the limit's apply to it. A no-op if there are none. A tenant's share stays:
    /// [`Store::share`] sets it back to 1.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`] for a name that is not declared, [`Error::InvalidArgument`] unless the key is 1 to 1,024
    /// bytes, or as for [`Store::open`].
    pub fn lift(&self, name: &str, key: Option<&str>) -> Result<()> {
        self.set_override(name, None, key)
    }

    /// Keeps a tenant's share in a limit that tenants share, such as `"500/1m shared"`: at once, in every process, until it is
    /// set again. With a share of 3, a tenant that waits starts three times as often as one that has the default, 1, which
    /// sets it back. In a composite: the share in each shared part. A call's own [share](crate::embed::Waiter::share) stands above it.
    ///
    /// ```
    /// # use workglow_limit::{Limiter, Store};
    /// let store = Store::new("memory:")?;
    /// let limiter = store.limiter("api", "500/1m shared")?;
    /// store.share("api", "acme", 3)?;
    /// assert!(limiter.try_acquire("acme", 1)?.is_some()); // one of the 500
    /// # Ok::<(), workglow_limit::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the share is 1 to 1,000 and the key 1 to 1,024 bytes; [`Error::Unsupported`] for a
    /// limit that is not shared; [`Error::UnknownLimit`] for a name that is not declared, or as for [`Store::open`].
    pub fn share(&self, name: &str, key: &str, share: u32) -> Result<()> {
        policy::check_name(name)?;
        policy::check_share(share.into())?;
        let session = self.session();
        session.report(name, session.knowing(name, || session.set_share(name, key, share)))
    }

    /// Removes the declaration of a name, including operators' policies, so that another kind of limiter can be
    /// declared. Limiters in use continue until then, and afterwards return [`Error::KindMismatch`]. If the same kind
    /// is declared again, it keeps its state.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`] for a name that is not declared, [`Error::Unsupported`] for a part of a composite, or as
    /// for [`Store::open`].
    pub fn forget(&self, name: &str) -> Result<()> {
        policy::check_name(name)?;
        let session = self.session();
        session.report(name, session.knowing(name, || session.undeclare(name)))
    }

    fn set_override(&self, name: &str, policies: Option<&[NamedPolicy]>, key: Option<&str>) -> Result<()> {
        policy::check_name(name)?;
        let session = self.session();
        session.report(name, session.knowing(name, || session.set_override(name, policies, key)))
    }
}
