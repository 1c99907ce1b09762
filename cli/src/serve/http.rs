//! The server: one thread, a bounded number of connections, and security headers on every response.

use super::api::{Api, Body};
use super::guard::Guard;
use super::listen::{Listener, Stream};
use crate::context::Outcome;
use crate::failure::Failure;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// The most connections at a time. Further ones wait in the system's queue.
const MAX_CONNECTIONS: usize = 64;
/// The longest time for the head of a request, and the longest idle time of a connection.
const SLOWEST_HEAD: Duration = Duration::from_secs(5);
const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
/// The most threads that wait for the store.
const MAX_WAITING: usize = 4;

/// The headers that restrict browsers to what the page itself does. There are no CORS headers, so other pages cannot read a response.
const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// Serves until a signal ends the process. `sampling` resolves when the sampler's thread ends.
pub fn serve(listener: Listener, guard: Guard, api: Api, sampling: oneshot::Receiver<()>) -> Ended {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_WAITING)
        .build()
        .map_err(cannot)?;
    let api = Rc::new(api);
    let tasks = tokio::task::LocalSet::new();
    let ended = tasks.block_on(&runtime, async {
        let (interrupt, terminate) = (signal(libc::SIGINT).map_err(cannot)?, signal(libc::SIGTERM).map_err(cannot)?);
        // The first task that ends stops the server.
        let (end, mut ends) = mpsc::channel(1);
        spawn(&end, async move { interrupt.readable().await.map(|()| Outcome::Interrupted).map_err(cannot) });
        // SIGTERM is the normal end of a server.
        spawn(&end, async move { terminate.readable().await.map(|()| Outcome::Done).map_err(cannot) });
        spawn(&end, async {
            let _ = sampling.await;
            Err(Failure::system("the thread that reads the store has ended: this is a bug"))
        });
        let accepting = accept(listener, Rc::new(guard), api.clone());
        spawn(&end, async { Err(cannot(accepting.await)) });
        ends.recv().await.expect("a sender is here")
    });
    api.end();
    // Tasks that wait for the store or for a client are dropped.
    drop(tasks);
    runtime.shutdown_background();
    ended
}

fn cannot(error: io::Error) -> Failure {
    Failure::system(format!("the server: {error}"))
}

type Ended = Result<Outcome, Failure>;

fn spawn(end: &mpsc::Sender<Ended>, task: impl Future<Output = Ended> + 'static) {
    let end = end.clone();
    tokio::task::spawn_local(async move { drop(end.send(task.await).await) });
}

/// A socket that becomes readable when the signal arrives.
fn signal(number: libc::c_int) -> io::Result<tokio::net::UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(number, theirs)?;
    tokio::net::UnixStream::from_std(ours)
}

async fn accept(listener: Listener, guard: Rc<Guard>, api: Rc<Api>) -> io::Error {
    let listener = match listener.start() {
        Ok(listener) => listener,
        Err(error) => return error,
    };
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = connections.clone().acquire_owned().await.expect("it is never closed");
        match listener.accept().await {
            Ok((stream, by)) => {
                let (guard, api) = (guard.clone(), api.clone());
                tokio::task::spawn_local(async move {
                    let _place = place;
                    converse(stream, &by, &guard, &api).await;
                });
            }
            // The client has closed the connection, or there are no more descriptors.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn converse(stream: Box<dyn Stream>, by: &str, guard: &Guard, api: &Rc<Api>) {
    let service =
        service_fn(async |request: Request<Incoming>| Ok::<_, Infallible>(answer(request, by, guard, api).await));
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(SLOWEST_HEAD).max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD);
    // Errors of a connection concern its client only.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, by: &str, guard: &Guard, api: &Rc<Api>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let answered = match guard.admit(&parts) {
        Ok(route) => api.answer(route, &parts, body, by).await,
        Err(refusal) => Err(refusal),
    };
    let mut response = answered.unwrap_or_else(|refusal| refusal.into_response());
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
