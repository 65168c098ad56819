//! When a member stops by itself: its shim's half of the gang's `on_disconnect`. It needs no agent:
//! the agent feeds it the time of its contact with the coordinator, and whether the gang is whole
//! the shim finds out itself, as long as there is no contact.
//!
//! What moves the deadline, and how, is `deadline` in the agent's core.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::core::deadline::Deadline as Times;

/// How long one look may take. The shim does nothing else meanwhile.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// Longest answer of Ray that is read, in bytes: far over that of a gang of thousands.
const MAX_ANSWER: u64 = 16 << 20;

/// What the launch says of it. Times are milliseconds of the boot clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// Time of the policy.
    pub after_ms: u64,
    /// From the polite stop to the forced one.
    pub grace_ms: u64,
    /// The newest contact when the member was started.
    pub contact_ms: u64,
    /// How to see whether the gang is whole; absent where that does not count.
    pub sight: Option<Sight>,
}

/// Where to look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sight {
    /// Beside a rank: the head's GCS answers.
    Gcs { address: SocketAddr },
    /// On the head's node: Ray shows the head and every rank alive.
    Nodes { dashboard_port: u16, token: PathBuf, members: u32, labels: Vec<(String, String)> },
}

impl Sight {
    /// Whether the gang is whole as far as can be seen from here. Blocks for [`LOOK_LIMIT`] at most.
    fn is_whole(&self) -> bool {
        match self {
            Sight::Gcs { address } => TcpStream::connect_timeout(address, LOOK_LIMIT).is_ok(),
            Sight::Nodes { dashboard_port, token, members, labels } => {
                // An answer that is none says nothing, and nothing is not the sight of all.
                ask(*dashboard_port, token)
                    .is_some_and(|answer| alive(&answer, labels) >= *members as usize)
            }
        }
    }
}

/// The deadline, and where to look.
#[derive(Debug)]
pub struct Deadline {
    fence: Fence,
    times: Times,
}

impl Deadline {
    pub fn new(fence: Fence) -> Self {
        let times = Times::new(fence.after_ms, fence.contact_ms, fence.sight.is_some());
        Deadline { times, fence }
    }

    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.fence.grace_ms)
    }

    /// The agent says when there was contact; nothing lies in the future.
    pub fn note_contact(&mut self, contact_ms: u64, now_ms: u64) {
        self.times.note_contact(contact_ms, now_ms);
    }

    /// Looks when it is time to, which may take [`LOOK_LIMIT`]. True when the member is to stop.
    pub fn check(&mut self, clock: impl Fn() -> u64) -> bool {
        self.check_with(&clock, Sight::is_whole)
    }

    fn check_with(&mut self, clock: &dyn Fn() -> u64, look: impl FnOnce(&Sight) -> bool) -> bool {
        let begun = clock();
        if let Some(sight) = &self.fence.sight
            && self.times.look_ms().is_some_and(|look_ms| begun >= look_ms)
        {
            self.times.note_look(begun, look(sight));
        }
        clock() >= self.times.due_ms()
    }

    /// How long nothing needs to be done.
    pub fn pause(&self, now_ms: u64) -> Duration {
        let look = self.times.look_ms().unwrap_or(u64::MAX);
        // The wait of the caller does not count while the machine sleeps.
        let wait = self.times.due_ms().min(look).saturating_sub(now_ms).min(1000);
        Duration::from_millis(wait)
    }
}

/// Asks Ray's dashboard for its nodes. One that answers late has not answered.
fn ask(port: u16, token: &Path) -> Option<Vec<u8>> {
    let until = Instant::now() + LOOK_LIMIT;
    let token = fs::read_to_string(token).ok()?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, LOOK_LIMIT).ok()?;
    let left = || until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
    stream.set_write_timeout(left()).ok()?;
    let request = format!(
        "GET /api/v0/nodes?detail=1&limit=10000 HTTP/1.0\r\nHost: {address}\r\n\
         Authorization: Bearer {}\r\n\r\n",
        token.trim()
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        stream.set_read_timeout(Some(left()?)).ok()?;
        match stream.read(&mut piece).ok()? {
            0 => break,
            count => answer.extend(piece.iter().take(count)),
        }
        if answer.len() as u64 > MAX_ANSWER {
            return None;
        }
    }
    body(&answer).map(<[u8]>::to_vec)
}

/// The body of an answer that says 200.
fn body(answer: &[u8]) -> Option<&[u8]> {
    let status = answer.strip_prefix(b"HTTP/1.")?.get(1..5)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    (status == b" 200").then(|| answer.get(end + 4..))?
}

/// How many of Ray's nodes are alive and have these labels.
fn alive(answer: &[u8], labels: &[(String, String)]) -> usize {
    let Ok(answer) = serde_json::from_slice::<serde_json::Value>(answer) else { return 0 };
    let nodes = answer.pointer("/data/result/result").and_then(serde_json::Value::as_array);
    let is_ours = |node: &&serde_json::Value| {
        let text = |pointer: &str| node.pointer(pointer).and_then(serde_json::Value::as_str);
        let has = |(name, value): &(String, String)| {
            let found = node.get("labels").and_then(|labels| labels.get(name));
            found.and_then(serde_json::Value::as_str) == Some(value)
        };
        text("/state") == Some("ALIVE") && labels.iter().all(has)
    };
    nodes.map_or(0, |nodes| nodes.iter().filter(is_ours).count())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::TcpListener;

    use super::*;

    fn fence(sight: Option<Sight>) -> Deadline {
        Deadline::new(Fence { after_ms: 60_000, grace_ms: 5_000, contact_ms: 1_000_000, sight })
    }

    fn gcs() -> Option<Sight> {
        Some(Sight::Gcs { address: "192.0.2.1:1".parse().unwrap() })
    }

    #[test]
    fn without_contact_it_is_due_and_contact_moves_it() {
        let mut deadline = fence(None);
        assert!(!deadline.check(|| 1_059_999));
        assert!(deadline.check(|| 1_060_000));
        deadline.note_contact(1_030_000, 1_059_999);
        assert!(!deadline.check(|| 1_089_999));
        deadline.note_contact(1_020_000, 1_089_999);
        assert!(deadline.check(|| 1_090_000), "an older contact says nothing");
        deadline.note_contact(u64::MAX, 1_100_000);
        assert!(deadline.check(|| 1_160_000), "nor does one in the future");
    }

    #[test]
    fn a_whole_gang_is_left_alone_without_contact_for_any_time() {
        let mut deadline = fence(gcs());
        let now = Cell::new(1_000_000);
        let mut looks = 0;
        for _ in 0..4 * 3600 {
            now.set(now.get() + 1000);
            let stop = deadline.check_with(&|| now.get(), |_| {
                looks += 1;
                true
            });
            assert!(!stop, "{}", now.get());
        }
        assert!((4 * 3600 / 6..=4 * 3600 / 5).contains(&looks), "{looks} looks");
        let whole_until = now.get();
        let stopped = (0..100).find(|_| {
            now.set(now.get() + 1000);
            deadline.check_with(&|| now.get(), |_| false)
        });
        assert!(stopped.is_some());
        assert!((55_000..=60_000).contains(&(now.get() - whole_until)), "{}", now.get());
    }

    #[test]
    fn contact_that_comes_back_just_in_time_moves_the_end() {
        let mut deadline = fence(gcs());
        for round in 1..50 {
            let now = 1_000_000 + round * 59_000;
            assert!(!deadline.check_with(&|| now, |_| false), "round {round}");
            deadline.note_contact(now, now);
        }
        assert!(deadline.check_with(&|| 1_000_000 + 49 * 59_000 + 60_000, |_| false));
    }

    #[test]
    fn what_was_seen_counts_from_when_it_was_looked_for() {
        let mut deadline = fence(gcs());
        let now = Cell::new(1_010_000);
        let slow = |_: &Sight| {
            now.set(now.get() + 2_000);
            true
        };
        assert!(!deadline.check_with(&|| now.get(), slow));
        assert_eq!(deadline.times.due_ms(), 1_070_000);
    }

    #[test]
    fn waits_are_short_and_never_past_the_end() {
        let deadline = fence(gcs());
        assert_eq!(deadline.pause(1_000_000), Duration::from_secs(1));
        assert_eq!(deadline.pause(1_004_900), Duration::from_millis(100));
        assert_eq!(fence(None).pause(1_059_990), Duration::from_millis(10));
        assert_eq!(fence(None).pause(2_000_000), Duration::ZERO);
    }

    #[test]
    fn a_gcs_is_seen_while_it_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sight = Sight::Gcs { address: listener.local_addr().unwrap() };
        assert!(sight.is_whole());
        drop(listener);
        assert!(!sight.is_whole());
    }

    fn answer(states: &[(&str, &str)]) -> String {
        let node = |(state, epoch): &(&str, &str)| {
            format!(r#"{{"state":"{state}","labels":{{"gang":"g-1","epoch":"{epoch}"}}}}"#)
        };
        let nodes: Vec<String> = states.iter().map(node).collect();
        let body = format!(r#"{{"data":{{"result":{{"result":[{}]}}}}}}"#, nodes.join(","));
        format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    /// A dashboard that gives one answer, and then the request that it got.
    fn dashboard(answer: String) -> (u16, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        (port, task)
    }

    #[test]
    fn the_head_sees_who_is_alive() {
        let directory = tempfile::tempdir().unwrap();
        let token = directory.path().join("token");
        fs::write(&token, "sesame\n").unwrap();
        let whole = |answer: String| {
            let (dashboard_port, task) = dashboard(answer);
            let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            let labels = vec![label("gang", "g-1"), label("epoch", "1.1")];
            let token = token.clone();
            let sight = Sight::Nodes { dashboard_port, token, members: 2, labels };
            let seen = sight.is_whole();
            assert!(task.join().unwrap().contains("Authorization: Bearer sesame\r\n"));
            seen
        };
        assert!(whole(answer(&[("ALIVE", "1.1"), ("ALIVE", "1.1"), ("DEAD", "1.1")])));
        assert!(!whole(answer(&[("ALIVE", "1.1"), ("DEAD", "1.1")])));
        assert!(!whole(answer(&[("ALIVE", "1.1"), ("ALIVE", "1.0")])), "of another epoch");
        let refused = answer(&[("ALIVE", "1.1"), ("ALIVE", "1.1")]).replace("200 OK", "401 No");
        assert!(!whole(refused));
        assert!(!whole("HTTP/1.0 200 OK\r\n\r\n{".to_owned()));
        assert!(!whole("nonsense".to_owned()));
    }
}
