//! A client of the HTTP API that costs next to nothing: the machine's time is the coordinator's.

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest answer that is read, in bytes.
const LONGEST: usize = 1 << 20;

/// One connection that stays open, and one token.
pub struct Client {
    stream: TcpStream,
    token: String,
    received: Vec<u8>,
}

impl Client {
    /// `address` is host and port, without a scheme.
    pub async fn connect(address: &str, token: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("connecting")?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, token: token.to_owned(), received: Vec::new() })
    }

    /// Sends a request and reads the whole answer: status and body.
    ///
    /// # Errors
    /// The connection fails, or the answer has no Content-Length.
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        media_type: &str,
        body: &str,
    ) -> anyhow::Result<(u16, String)> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: {media_type}\r\ncontent-length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await?;
        self.received.clear();
        let end_of_head = loop {
            self.receive().await?;
            if let Some(at) = self.received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let head = String::from_utf8(self.received.drain(..end_of_head).collect())?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim())
        });
        let length: usize = length.context("an answer without a length")?.parse()?;
        while self.received.len() < length {
            self.receive().await?;
        }
        Ok((status, String::from_utf8(std::mem::take(&mut self.received))?))
    }

    /// Submits a spec; returns the job's id, which is `id` where there is one.
    pub async fn submit(&mut self, spec: &str, id: Option<&str>) -> anyhow::Result<String> {
        let query = id.map(|id| format!("?submission_id={id}")).unwrap_or_default();
        let path = format!("/api/v1/jobs{query}");
        let (status, answer) = self.send("POST", &path, "application/yaml", spec).await?;
        anyhow::ensure!(status == 201, "submit: {status}: {answer}");
        let (_, from_id) = answer.split_once(r#""id":""#).context("no job id")?;
        let (id, _) = from_id.split_once('"').context("no job id")?;
        Ok(id.to_owned())
    }

    /// Stops a job.
    pub async fn stop(&mut self, id: &str) -> anyhow::Result<()> {
        let path = format!("/api/v1/jobs/{id}/stop");
        let (status, answer) = self.send("POST", &path, "application/json", "{}").await?;
        anyhow::ensure!(status == 202, "stop: {status}: {answer}");
        Ok(())
    }

    async fn receive(&mut self) -> anyhow::Result<()> {
        if self.stream.read_buf(&mut self.received).await? == 0 {
            bail!("the coordinator closed the connection");
        }
        anyhow::ensure!(self.received.len() <= LONGEST, "an answer that is too long");
        Ok(())
    }
}
