//! An endpoint for webhooks that keeps what it is told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::SHORT;

/// In the address and in the key: must not be anywhere else.
pub const CANARY: &str = "canary-2b7e151628aed2a6";

/// An endpoint that refuses until it is well.
#[derive(Clone, Default)]
pub struct Endpoint {
    pub is_well: Arc<AtomicBool>,
    /// Every body that was taken.
    taken: Arc<Mutex<Vec<Value>>>,
}

impl Endpoint {
    /// Its address.
    pub async fn start(&self) -> anyhow::Result<String> {
        let socket = TcpListener::bind("127.0.0.1:0").await?;
        let address = socket.local_addr()?;
        let endpoint = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = socket.accept().await {
                let endpoint = endpoint.clone();
                tokio::spawn(async move {
                    if let Err(error) = endpoint.serve(stream).await {
                        eprintln!("endpoint: {error}");
                    }
                });
            }
        });
        Ok(format!("http://{address}/{CANARY}"))
    }

    /// Requests of one connection, until its end.
    async fn serve(&self, mut stream: TcpStream) -> anyhow::Result<()> {
        let mut read = Vec::new();
        loop {
            let request = loop {
                if let Some(request) = request(&read) {
                    break request;
                }
                if stream.read_buf(&mut read).await? == 0 {
                    return Ok(());
                }
            };
            let (body, length) = request;
            read.drain(..length);
            let status = match self.is_well.load(Ordering::Relaxed) {
                true => {
                    self.lock().push(serde_json::from_slice(&body)?);
                    "200 OK"
                }
                false => "503 Service Unavailable",
            };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await?;
        }
    }

    pub fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Value>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an event; all that have come by then.
    pub async fn until(&self, kind: &str, job: &str) -> anyhow::Result<Vec<Value>> {
        let (end, object) = (Instant::now() + 2 * SHORT, format!("job {job}"));
        loop {
            let taken = self.lock().clone();
            if taken.iter().any(|event| event["kind"] == kind && event["object"] == object) {
                return Ok(taken);
            }
            anyhow::ensure!(Instant::now() < end, "no {kind} of {job} in {taken:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Body and length of the first request, once it is whole.
fn request(read: &[u8]) -> Option<(Vec<u8>, usize)> {
    let head = read.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&read[..head]).to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    let length: usize = length.trim().parse().ok()?;
    Some((read.get(head..head + length)?.to_vec(), head + length))
}
