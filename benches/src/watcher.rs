//! One who watches the samples of all nodes over HTTP, and how late each of them is.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use gangline_fleet::fleet::Fleet;

/// How often the thread looks whether it is to end while nothing comes.
const LOOK: Duration = Duration::from_millis(500);

/// A thread that reads the stream of nodes.
pub struct Watcher {
    shared: Arc<Shared>,
    /// How often it was told that it lost events.
    thread: JoinHandle<anyhow::Result<usize>>,
}

#[derive(Default)]
struct Shared {
    ended: AtomicBool,
    delays: Mutex<Vec<Duration>>,
}

impl Watcher {
    /// # Errors
    /// The fleet has no API.
    pub fn start(fleet: &Fleet) -> anyhow::Result<Watcher> {
        let address = fleet.url().trim_start_matches("http://").to_owned();
        let (token, shared) = (fleet.api()?.token, Arc::<Shared>::default());
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || watch(&address, &token, &theirs));
        Ok(Watcher { shared, thread })
    }

    /// How late the samples were that have come since this was asked last: from the moment at which a
    /// sample says that it was taken, in whole milliseconds, until it was read here.
    pub fn take(&self) -> Vec<Duration> {
        std::mem::take(&mut self.shared.delays.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends it. Returns how often it was told that it lost events.
    ///
    /// # Errors
    /// The stream could not be read.
    pub fn stop(self) -> anyhow::Result<usize> {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("a watcher panicked"))?
    }
}

fn watch(address: &str, token: &str, shared: &Shared) -> anyhow::Result<usize> {
    const TIME: &[u8] = b"\"time\":\"";
    const STAMP: usize = "2026-11-22T12:34:56.789Z".len();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LOOK))?;
    write!(
        stream,
        "GET /api/v1/nodes/stream HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
    )?;
    let mut buffer = vec![0; 1 << 20];
    let (mut held, mut lost) = (0, 0);
    while !shared.ended.load(Ordering::Relaxed) {
        let count = match stream.read(&mut buffer[held..]) {
            Ok(0) => anyhow::bail!("the stream has ended"),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        };
        let now = wall();
        let text = &buffer[..held + count];
        let (mut at, mut delays) = (0, Vec::new());
        while let Some(found) = text.get(at..).and_then(|rest| find(rest, TIME)) {
            let from = at + found + TIME.len();
            let Some(stamp) = text.get(from..from + STAMP) else { break };
            delays.push(since(stamp, now).context("a time that is none")?);
            at = from;
        }
        shared.delays.lock().unwrap_or_else(PoisonError::into_inner).append(&mut delays);
        lost += usize::from(find(text, b"event: dropped").is_some());
        let keep = (TIME.len() + STAMP).min(text.len() - at);
        let from = text.len() - keep;
        buffer.copy_within(from..from + keep, 0);
        held = keep;
    }
    Ok(lost)
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// From an RFC 3339 time of this hour to `now`.
fn since(stamp: &[u8], now: Duration) -> Option<Duration> {
    const HOUR_US: u64 = 3_600_000_000;
    let number = |range: std::ops::Range<usize>| {
        std::str::from_utf8(stamp.get(range)?).ok()?.parse::<u64>().ok()
    };
    let of_hour = (number(14..16)? * 60 + number(17..19)?) * 1_000_000 + number(20..23)? * 1000;
    let now = now.as_micros() as u64 % HOUR_US;
    Some(Duration::from_micros((now + HOUR_US - of_hour) % HOUR_US))
}

/// Now, since 1970.
pub fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
