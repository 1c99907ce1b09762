//! A layer for `tower`: each request of a service waits for a start. (With the feature `tower`.)

use crate::limiter::{Attempt, Limiter};
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower_layer::Layer;
use tower_service::Service;

type BoxError = Box<dyn Error + Send + Sync>;

/// Lets the requests of a service start as a limiter allows, in the order in which they are first polled.
///
/// A start lasts until the service has returned a response (not its body) or an error, or the future is dropped. The
/// service's clone is ready before the wait begins, so a layer with a queue or slots of its own belongs outside of this
/// one.
///
/// ```
/// # use std::time::Duration;
/// # use workglow_limit::{Store, tower::LimitLayer};
/// let openai = Store::new("memory:")?.limiter("openai", "100/1m + 5 concurrent")?;
/// let layer = LimitLayer::new(openai)
///     .timeout(Some(Duration::from_secs(30))) // later it fails with `Denied`
///     .key(|request: &(String, u64)| request.0.clone()); // a limit per tenant
/// # Ok::<(), workglow_limit::Error>(())
/// ```
#[derive(Clone)]
pub struct LimitLayer<K = NoKey> {
    limiter: Arc<dyn Limiter>,
    key: K,
    timeout: Option<Duration>,
}

/// All requests share one limit.
#[derive(Debug, Clone, Copy)]
pub struct NoKey;

/// Says under which key a request starts. Functions from a request to a text do.
pub trait KeyOf<R> {
    /// Returns the key: at most 1,024 bytes; "" is no key.
    fn key_of(&self, request: &R) -> String;
}

impl<R> KeyOf<R> for NoKey {
    fn key_of(&self, _request: &R) -> String {
        String::new()
    }
}

impl<R, F: Fn(&R) -> String> KeyOf<R> for F {
    fn key_of(&self, request: &R) -> String {
        self(request)
    }
}

impl LimitLayer {
    /// Makes a layer whose requests share one limit, and wait as long as it takes.
    pub fn new(limiter: Arc<dyn Limiter>) -> LimitLayer {
        LimitLayer { limiter, key: NoKey, timeout: None }
    }
}

impl<K> LimitLayer<K> {
    /// Sets the key of a request.
    #[must_use]
    pub fn key<R, F: Fn(&R) -> String>(self, key: F) -> LimitLayer<F> {
        LimitLayer { limiter: self.limiter, key, timeout: self.timeout }
    }

    /// Sets the longest wait of a request; `None`: as long as it takes. Zero: it starts at once or fails.
    #[must_use]
    pub fn timeout(self, timeout: Option<Duration>) -> LimitLayer<K> {
        LimitLayer { timeout, ..self }
    }
}

impl<S, K: Clone> Layer<S> for LimitLayer<K> {
    type Service = Limited<S, K>;

    fn layer(&self, inner: S) -> Limited<S, K> {
        Limited { inner, layer: self.clone() }
    }
}

impl<K> fmt::Debug for LimitLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Layer of \"{}\"", self.limiter.name())
    }
}

/// A service behind a limiter: see [`LimitLayer`].
///
/// # Errors
/// The service's; [`Denied`]; or an [`Error`](crate::Error) of the limiter.
#[derive(Debug, Clone)]
pub struct Limited<S, K = NoKey> {
    inner: S,
    layer: LimitLayer<K>,
}

impl<S, K, R> Service<R> for Limited<S, K>
where
    S: Service<R> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    K: KeyOf<R>,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let LimitLayer { limiter, key, timeout } = &self.layer;
        let mut starting = limiter.acquire_async(&key.key_of(&request), 1, *timeout);
        // The one that is ready is called; its clone may not be.
        let clone = self.inner.clone();
        let mut ready = mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let permit = match std::future::poll_fn(|context| starting.poll_attempt(context)).await? {
                Attempt::Admitted(raw) => starting.permit(raw),
                Attempt::Denied(retry_after) => {
                    return Err(Denied { limit: starting.name().to_owned(), retry_after }.into());
                }
            };
            let answer = ready.call(request).await;
            drop(permit);
            answer.map_err(Into::into)
        })
    }
}

/// The error of a request that could not start in time. A server answers with 429, or 503 if the limit is not the
/// client's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The limit's name.
    pub limit: String,
    /// As [`Decision::retry_after`](crate::Decision::retry_after): units would be free after this long.
    pub retry_after: Duration,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denied { limit, retry_after } = self;
        write!(f, "the limit \"{limit}\" has no start within the timeout; there may be one after {retry_after:?}")
    }
}

impl Error for Denied {}
