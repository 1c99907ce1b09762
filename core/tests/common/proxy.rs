//! A proxy to a server that delays, blocks and breaks connections: a process of its own, with a socket for each site.

use super::server::Server;
use super::{Child, Dir, shared};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// The words of a site's connection: the delay of each message in microseconds, whether it is blocked, how often all
/// connections were broken, how many there were, and how many times something was sent to the server.
const LATE: usize = 0;
const CLOSED: usize = 1;
const BROKEN: usize = 2;
const OPENED: usize = 3;
const SENT: usize = 4;
const WORDS: usize = 5;

pub struct Proxy {
    _process: Child,
    urls: Vec<String>,
    _directory: Dir,
    words: &'static [AtomicU64],
}

impl Proxy {
    /// Starts a proxy with this many sites.
    pub fn start(name: &str, server: &Server, sites: usize) -> Proxy {
        let directory = Dir::in_memory(name);
        let words = shared(sites * WORDS);
        let (sockets, urls): (Vec<_>, _) = (0..sites).map(|site| server.by_way_of(&directory.0, site)).unzip();
        let listeners: Vec<UnixListener> = sockets.iter().map(|socket| UnixListener::bind(socket).unwrap()).collect();
        let server = server.socket();
        let process = Child::run(|| {
            // SAFETY: plain call. The process ends with the test.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            std::thread::scope(|scope| {
                for (site, listener) in listeners.iter().enumerate() {
                    let (words, server) = (&words[site * WORDS..][..WORDS], &server);
                    scope.spawn(move || {
                        for client in listener.incoming() {
                            let (Ok(client), Ok(server)) = (client, UnixStream::connect(server)) else { continue };
                            words[OPENED].fetch_add(1, AcqRel);
                            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                            std::thread::spawn(move || forward(client, server, words, 1));
                            std::thread::spawn(move || forward(back.0, back.1, words, 0));
                        }
                    });
                }
            });
        });
        Proxy { _process: process, urls, _directory: directory, words }
    }

    pub fn url(&self, site: usize) -> String {
        self.urls[site].clone()
    }

    fn word(&self, site: usize, word: usize) -> &AtomicU64 {
        &self.words[site * WORDS + word]
    }

    pub fn delay(&self, site: usize, by: Duration) {
        self.word(site, LATE).store(by.as_micros() as u64, Release);
    }

    /// Blocks or unblocks a site. Data that is sent while it is blocked arrives afterwards.
    pub fn close(&self, site: usize, is_closed: bool) {
        self.word(site, CLOSED).store(u64::from(is_closed), Release);
    }

    /// How many connections there were.
    pub fn opened(&self, site: usize) -> u64 {
        self.word(site, OPENED).load(Acquire)
    }

    /// How many times something was sent to the server.
    pub fn sent(&self, site: usize) -> u64 {
        self.word(site, SENT).load(Acquire)
    }

    /// Breaks all connections. Data in transit is lost.
    pub fn cut(&self, site: usize) {
        self.word(site, BROKEN).fetch_add(1, AcqRel);
    }
}

fn forward(mut from: UnixStream, mut to: UnixStream, words: &'static [AtomicU64], sent: u64) {
    let broken = words[BROKEN].load(Acquire);
    let is_broken = || words[BROKEN].load(Acquire) != broken;
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut buffer = [0; 65_536];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(_) if !is_broken() => continue,
            Err(_) => break,
        };
        words[SENT].fetch_add(sent, AcqRel);
        let due = Instant::now() + Duration::from_micros(words[LATE].load(Acquire));
        while Instant::now() < due || words[CLOSED].load(Acquire) != 0 {
            if is_broken() {
                break;
            }
            std::thread::sleep(
                due.saturating_duration_since(Instant::now())
                    .min(Duration::from_millis(5))
                    .max(Duration::from_micros(100)),
            );
        }
        if is_broken() || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}
