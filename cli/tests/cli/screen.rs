//! `top` on a terminal: a pseudo-terminal of this process, with keys, signals and lost connections.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::json;

use crate::answers::{nodes, running, unexpected};
use crate::server::{Asked, Play, Server, command, json as answer, problem};

/// A screen that shows nothing new for this long hangs.
const HANG: Duration = Duration::from_secs(30);

/// The program on a terminal of 40 lines.
struct OnTerminal {
    child: Child,
    master: File,
    /// Kept open, so that the terminal is there after the program.
    slave: OwnedFd,
    shown: Arc<Mutex<String>>,
}

impl OnTerminal {
    fn start(server: &Server, arguments: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let path = std::path::Path::new(name.to_str().unwrap());
        let slave = File::options().read(true).write(true).open(path).unwrap();
        let size = Winsize { ws_row: 40, ws_col: 140, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        let address = format!("http://{}", server.address);
        let child = command(&address, arguments)
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let master = File::from(master);
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut reader, sink) = (master.try_clone().unwrap(), shown.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends with the terminal.
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                sink.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        OnTerminal { child, master, slave: slave.into(), shown }
    }

    /// Until `text` has been shown since the last time.
    fn until(&self, text: &str) {
        let until = Instant::now() + HANG;
        loop {
            let mut shown = self.shown.lock().unwrap();
            if let Some(at) = shown.find(text) {
                shown.drain(..at + text.len());
                return;
            }
            assert!(Instant::now() < until, "{text:?} is not in {shown:?}");
            drop(shown);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn has_echo(&self) -> bool {
        tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ECHO)
    }

    /// The program ends, and the terminal is as it was.
    fn ends(mut self, code: i32) {
        self.until("\u{1b}[?1049l");
        let until = Instant::now() + HANG;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "it goes on");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(code));
        assert!(self.has_echo(), "the terminal is still raw");
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sample(busy: f64) -> String {
    let event = json!({"node": "n-aaaaa", "name": "gpu-0203", "dropped": 0,
        "host": {"cpu_busy_pct": 5, "rdma_bytes_per_s": 48e9},
        "gpus": [{"uuid": "GPU-0", "utilization_pct": busy}, {"uuid": "GPU-1", "utilization_pct": busy}]});
    format!("event: sample\nid: 1-1\ndata: {event}\n\n")
}

/// The first stream is lost; the second one stays.
fn server() -> Server {
    Server::start(|asked, number| match (asked.line().as_str(), number) {
        ("GET /api/v1/nodes", _) => answer(200, &nodes()),
        ("GET /api/v1/jobs", _) => {
            answer(200, &json!({"jobs": [running()], "next_page_token": null}))
        }
        ("GET /api/v1/nodes/n-aaaaa/samples", _) => answer(200, &json!({"gpus": []})),
        ("GET /api/v1/nodes/stream", 0) => Play::Events(sample(33.0)),
        ("GET /api/v1/nodes/stream", _) => Play::EventsThenSilence(sample(66.0)),
        _ => unexpected(),
    })
}

#[test]
fn top_shows_samples_finds_its_way_back_and_leaves_the_terminal_as_it_was() {
    let server = server();
    let mut top = OnTerminal::start(&server, &["top"]);
    top.until("\u{1b}[?1049h");
    top.until("gpu-0203");
    top.until("j-7f3k2 (alice)");
    // The first connection is lost, and the samples of the next one come.
    top.until("trying");
    // Only what differs is drawn again: two digits.
    top.until("66");
    assert!(!top.has_echo());
    top.press("\r");
    top.until("MODEL");
    top.press("\r");
    top.until("GPU-0");
    top.until("used by");
    top.press("\u{1b}");
    top.until("MODEL");
    top.press("q");
    top.ends(0);
    assert!(server.asked_for("GET /api/v1/nodes/stream").len() >= 2);
}

#[test]
fn an_interrupt_and_a_signal_end_it_as_well() {
    let server = server();
    let mut top = OnTerminal::start(&server, &["top", "--pool", "h100-a"]);
    top.until("pool h100-a");
    // The first picture does not wait for the stream.
    let asked = (0..500).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        server.asked_for("GET /api/v1/nodes/stream").into_iter().next()
    });
    assert_eq!(asked.expect("a stream").query["pool"], "h100-a");
    let lists = server.asked_for("GET /api/v1/nodes");
    let of_pool = |asked: &Asked| asked.query.get("pool").is_some_and(|pool| pool == "h100-a");
    assert!(!lists.is_empty() && lists.iter().all(of_pool), "{lists:?}");
    top.press("\u{3}");
    top.ends(0);
    let top = OnTerminal::start(&server, &["top"]);
    top.until("gpu-0203");
    let pid = Pid::from_child(&top.child);
    kill_process(pid, Signal::TERM).unwrap();
    top.ends(0);
}

#[test]
fn a_refusal_ends_it_with_its_error_on_a_terminal_as_it_was() {
    let server = Server::start(|asked, _| match asked.path.as_str() {
        "/api/v1/nodes" => answer(200, &nodes()),
        "/api/v1/jobs" => answer(200, &json!({"jobs": [], "next_page_token": null})),
        _ => problem(403, "E0304", "Your role does not allow this"),
    });
    let top = OnTerminal::start(&server, &["top"]);
    let shown = top.shown.clone();
    top.ends(4);
    let until = Instant::now() + HANG;
    while !shown.lock().unwrap().contains("Your role does not allow this") {
        assert!(Instant::now() < until, "no word of it");
        std::thread::sleep(Duration::from_millis(5));
    }
}
