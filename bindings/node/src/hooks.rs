//! What hooks are told. The core tells on whatever thread decides; JavaScript takes it from here on its own.

use crate::{AnyLimiter, text};
use napi::bindgen_prelude::External;
use napi_derive::napi;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use workglow_limit::{Event, Happening, Hook, Store};

/// What the hooks of one environment have been told and not been called with.
#[derive(Default)]
pub struct Told {
    is_any: AtomicBool,
    events: Mutex<Vec<(f64, Event)>>,
}

impl Told {
    /// Is there anything?
    pub fn is_any(&self) -> bool {
        self.is_any.load(Relaxed)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Vec<(f64, Event)>) -> R) -> R {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = f(&mut events);
        self.is_any.store(!events.is_empty(), Relaxed);
        answer
    }
}

/// An event, with the number of the hook that it is for. In `lib/hooks.ts` it becomes a payload.
#[napi(object)]
pub struct Telling {
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
    /// What is wrong, as it is thrown.
    pub error: Option<String>,
}

/// Keeps what is told for an environment.
#[napi]
pub fn told() -> External<Arc<Told>> {
    External::new(Arc::default())
}

/// What was told since the last call.
#[napi]
pub fn take_told(told: &External<Arc<Told>>) -> Vec<Telling> {
    let telling = |(hook, event): (f64, Event)| Telling {
        hook,
        limit: event.limit.to_string(),
        key: event.key,
        wanted: event.wanted as f64,
        wait: event.wait.as_micros() as f64 / 1e3,
        error: event.error.as_ref().map(text),
    };
    told.with(std::mem::take).into_iter().map(telling).collect()
}

/// Which event JavaScript means by a word.
fn happening(word: &str) -> Happening {
    match word {
        "throttled" => Happening::Throttled,
        "unknown_limit" => Happening::UnknownLimit,
        _ => Happening::StoreError,
    }
}

fn hook(told: &External<Arc<Told>>, hook: f64) -> Hook {
    let told = Arc::clone(told);
    Arc::new(move |event: &Event| told.with(|events| events.push((hook, event.clone()))))
}

/// Listens to a limiter. Gives the number that ends it.
#[napi]
pub fn listen(limiter: &External<AnyLimiter>, event: String, told: &External<Arc<Told>>, number: f64) -> f64 {
    limiter.get().on(happening(&event), hook(told, number)) as f64
}

/// Ends that.
#[napi]
pub fn unlisten(limiter: &External<AnyLimiter>, number: f64) {
    limiter.get().off(number as u64);
}

/// Listens to a store. Gives the number that ends it.
#[napi]
pub fn listen_to_store(store: &External<Store>, event: String, told: &External<Arc<Told>>, number: f64) -> f64 {
    store.on(happening(&event), hook(told, number)) as f64
}

/// Ends that.
#[napi]
pub fn unlisten_to_store(store: &External<Store>, number: f64) {
    store.off(number as u64);
}
