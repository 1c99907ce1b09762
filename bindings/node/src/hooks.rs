//! Events for hooks. The core reports them on any thread; JavaScript takes them from a queue on its own.

use crate::{AnyLimiter, text};
use napi::bindgen_prelude::External;
use napi_derive::napi;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use workglow_limit::Store;
use workglow_limit::hooks::{Event, Happening, Hook};

/// The events of one environment for which its hooks have not been called yet.
#[derive(Default)]
pub struct EventQueue {
    is_any: AtomicBool,
    events: Mutex<Vec<(f64, Event)>>,
}

impl EventQueue {
    /// Returns whether there are events.
    pub fn is_any(&self) -> bool {
        self.is_any.load(Relaxed)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Vec<(f64, Event)>) -> R) -> R {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut events);
        self.is_any.store(!events.is_empty(), Relaxed);
        result
    }
}

/// An event, with the number of its hook. `lib/hooks.ts` makes a payload of it.
#[napi(object)]
pub struct QueuedEvent {
    /// The number of the hook.
    pub hook: f64,
    /// The name of the limit.
    pub limit: String,
    /// The key; empty for none.
    pub key: String,
    /// The units.
    pub wanted: f64,
    /// In ms.
    pub wait: f64,
    /// The error, as the text that is thrown.
    pub error: Option<String>,
}

/// Makes the event queue of an environment.
#[napi]
pub fn event_queue() -> External<Arc<EventQueue>> {
    External::new(Arc::default())
}

/// Takes the events that were queued since the last call.
#[napi]
pub fn take_events(queue: &External<Arc<EventQueue>>) -> Vec<QueuedEvent> {
    let queued = |(hook, event): (f64, Event)| QueuedEvent {
        hook,
        limit: event.limit.to_string(),
        key: event.key,
        wanted: event.wanted as f64,
        wait: event.wait.as_micros() as f64 / 1e3,
        error: event.error.as_ref().map(text),
    };
    queue.with(std::mem::take).into_iter().map(queued).collect()
}

/// Returns the event that this word means in JavaScript.
fn happening(word: &str) -> Happening {
    match word {
        "throttled" => Happening::Throttled,
        "unknown_limit" => Happening::UnknownLimit,
        _ => Happening::StoreError,
    }
}

fn hook(queue: &External<Arc<EventQueue>>, hook: f64) -> Hook {
    let queue = Arc::clone(queue);
    Arc::new(move |event: &Event| queue.with(|events| events.push((hook, event.clone()))))
}

/// Listens to a limiter. Returns the number that `unlisten` takes.
#[napi]
pub fn listen(limiter: &External<AnyLimiter>, event: String, queue: &External<Arc<EventQueue>>, number: f64) -> f64 {
    limiter.get().on(happening(&event), hook(queue, number)) as f64
}

/// Stops listening.
#[napi]
pub fn unlisten(limiter: &External<AnyLimiter>, number: f64) {
    limiter.get().off(number as u64);
}

/// Listens to a store. Returns the number that `unlistenToStore` takes.
#[napi]
pub fn listen_to_store(store: &External<Store>, event: String, queue: &External<Arc<EventQueue>>, number: f64) -> f64 {
    store.on(happening(&event), hook(queue, number)) as f64
}

/// Stops listening.
#[napi]
pub fn unlisten_to_store(store: &External<Store>, number: f64) {
    store.off(number as u64);
}
