//! A server on loopback that plays answers, and a run of the program against it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A run of the program that takes longer hangs.
const HANG: Duration = Duration::from_secs(60);

/// What the program asked.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    /// Without the query.
    pub path: String,
    pub query: BTreeMap<String, String>,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Asked {
    /// "GET /api/v1/jobs".
    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// What the server does.
pub enum Play {
    /// An answer with its length.
    Answer { status: u16, headers: Vec<(String, String)>, body: Vec<u8> },
    /// A stream of events that ends without a word, as a lost connection does.
    Events(String),
    /// The same, and then silence until the client goes away.
    EventsThenSilence(String),
    /// The connection is closed without an answer.
    Nothing,
}

/// A JSON answer.
pub fn json(status: u16, body: &Value) -> Play {
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    Play::Answer { status, headers, body: body.to_string().into_bytes() }
}

/// A problem of the API.
pub fn problem(status: u16, code: &str, title: &str) -> Play {
    let body = serde_json::json!({
        "type": format!("/errors/{code}"), "title": title, "status": status, "code": code,
        "detail": "the detail", "hint": "the hint",
    });
    let headers = vec![("content-type".to_owned(), "application/problem+json".to_owned())];
    Play::Answer { status, headers, body: body.to_string().into_bytes() }
}

type Handler = dyn Fn(&Asked, usize) -> Play + Send + Sync;

/// A running server. It goes on until it is dropped or stopped.
pub struct Server {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serve `handler` on a free port; its number counts the requests with the same method and
    /// path from 0.
    pub fn start(handler: impl Fn(&Asked, usize) -> Play + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), handler)
    }

    /// The same on a port of choice.
    pub fn start_at(
        address: SocketAddr,
        handler: impl Fn(&Asked, usize) -> Play + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let stopped = Arc::new(AtomicBool::new(false));
        let handler: Arc<Handler> = Arc::new(handler);
        let (record, stop) = (asked.clone(), stopped.clone());
        let thread = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (record, handler) = (record.clone(), handler.clone());
                std::thread::spawn(move || serve(connection.unwrap(), &record, &*handler));
            }
        });
        Self { address, asked, stopped, thread: Some(thread) }
    }

    /// Every request so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The requests with this method and path.
    pub fn asked_for(&self, line: &str) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| asked.line() == line).collect()
    }

    /// Close the port: from now on connections are refused.
    pub fn stop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = TcpStream::connect(self.address);
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(mut connection: TcpStream, record: &Mutex<Vec<Asked>>, handler: &Handler) {
    let Some(asked) = read_request(&connection) else {
        return;
    };
    let number = {
        let mut record = record.lock().unwrap();
        let number = record.iter().filter(|other| other.line() == asked.line()).count();
        record.push(asked.clone());
        number
    };
    // The client may be gone already, which is a case like any other.
    let _ = play(&mut connection, handler(&asked, number));
}

fn play(connection: &mut TcpStream, play: Play) -> std::io::Result<()> {
    let events = |connection: &mut TcpStream, text: &str| {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        connection.write_all(head.as_bytes())?;
        connection.write_all(text.as_bytes())?;
        connection.flush()
    };
    match play {
        Play::Answer { status, headers, body } => {
            let mut head = format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\n", body.len());
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            connection.write_all(format!("{head}connection: close\r\n\r\n").as_bytes())?;
            connection.write_all(&body)?;
            connection.flush()
        }
        Play::Events(text) => events(connection, &text),
        Play::EventsThenSilence(text) => {
            events(connection, &text)?;
            let mut byte = [0];
            while connection.read(&mut byte)? > 0 {}
            Ok(())
        }
        Play::Nothing => Ok(()),
    }
}

fn read_request(connection: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(key, value)| (key.to_owned(), value.replace("%2C", ","))).collect();
    let body = String::from_utf8(body).unwrap();
    Some(Asked { method, path: path.to_owned(), query, headers, body })
}

/// How a run of the program ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Stdout as one JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// Stderr as one JSON document.
    pub fn json_error(&self) -> Value {
        serde_json::from_str::<Value>(&self.stderr).unwrap()["error"].clone()
    }
}

/// The program with `arguments` for the coordinator at `address`, with nothing of this process's
/// environment.
pub fn command(address: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gangline"));
    command
        .args(arguments)
        .env_clear()
        .env("GANGLINE_CONFIG", "")
        .env("GANGLINE_ADDRESS", address)
        .env("GANGLINE_TOKEN", "gla_test")
        .env("TZ", "UTC")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Run the program against `server` to its end.
pub fn run(server: &Server, arguments: &[&str]) -> Ended {
    finish(command(&format!("http://{}", server.address), arguments).spawn().unwrap())
}

/// Wait for the end of `child`; one that hangs is killed and fails the test.
pub fn finish(mut child: Child) -> Ended {
    let stdout = child.stdout.take().unwrap();
    let stderr = child.stderr.take().unwrap();
    let read_all = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).unwrap();
            String::from_utf8(bytes).unwrap()
        })
    };
    let (stdout, stderr) = (read_all(Box::new(stdout)), read_all(Box::new(stderr)));
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > HANG {
            child.kill().unwrap();
            panic!("hangs; stderr: {}", stderr.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Ended {
        code: status.code().unwrap_or(-1),
        stdout: stdout.join().unwrap(),
        stderr: stderr.join().unwrap(),
    }
}
