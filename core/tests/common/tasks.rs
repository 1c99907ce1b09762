//! Futures of starts, without a runtime.

use super::wait_until;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use workglow_limit::{Acquiring, Permit, Result};

/// Futures that are polled by hand, and the numbers of those that were woken, in order.
#[derive(Default)]
pub struct Tasks {
    pub futures: Vec<Option<Acquiring>>,
    woken: Arc<Mutex<Vec<usize>>>,
}

struct Number(usize, Arc<Mutex<Vec<usize>>>);

impl Wake for Number {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().push(self.0);
    }
}

impl Tasks {
    /// Adds a future that has to wait.
    pub fn wait(&mut self, future: Acquiring) {
        self.futures.push(Some(future));
        assert!(self.poll(self.futures.len() - 1).is_pending());
    }

    pub fn poll(&mut self, number: usize) -> Poll<Result<Option<Permit<'static>>>> {
        let waker = Waker::from(Arc::new(Number(number, self.woken.clone())));
        Pin::new(self.futures[number].as_mut().unwrap()).poll(&mut Context::from_waker(&waker))
    }

    pub fn wait_until_woken(&self, count: usize) -> Vec<usize> {
        wait_until("tasks are woken", || self.woken.lock().unwrap().len() >= count);
        self.woken.lock().unwrap().clone()
    }
}

/// The outcome of a poll that ends a future with a start.
pub fn permit(polled: Poll<Result<Option<Permit<'static>>>>) -> Permit<'static> {
    match polled {
        Poll::Ready(Ok(Some(permit))) => permit,
        other => panic!("{other:?}"),
    }
}
