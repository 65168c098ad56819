//! A plain client of the coordinator's HTTP API, for tests and the demo.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use reqwest::{Client, Method, Response};
use serde_json::Value;

#[derive(Clone)]
pub struct Api {
    client: Client,
    pub base: String,
    pub token: String,
}

impl Api {
    pub fn new(base: String, token: String) -> anyhow::Result<Api> {
        // A second installation in one process is refused, and changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().timeout(Duration::from_secs(10)).build()?;
        Ok(Api { client, base, token })
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<String>,
    ) -> reqwest::Result<Response> {
        let mut request =
            self.client.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        request.send().await
    }

    /// GET of a JSON document; any status but 2xx is an error with its text.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let response = self.send(Method::GET, path, &[], None).await?;
        let status = response.status();
        let text = response.text().await?;
        if !status.is_success() {
            bail!("GET {path}: {status}: {text}");
        }
        serde_json::from_str(&text).with_context(|| format!("GET {path}: {text}"))
    }

    /// POST; returns status and document.
    pub async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> anyhow::Result<(u16, Value)> {
        let response = self.send(Method::POST, path, headers, Some(body.to_owned())).await?;
        let status = response.status().as_u16();
        let text = response.text().await?;
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// PUT of a JSON text; returns status and document.
    pub async fn put(&self, path: &str, body: &str) -> anyhow::Result<(u16, Value)> {
        let headers = [("content-type", "application/json")];
        let response = self.send(Method::PUT, path, &headers, Some(body.to_owned())).await?;
        let status = response.status().as_u16();
        let text = response.text().await?;
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// Submits a spec; returns the job id.
    pub async fn submit(&self, spec: &str) -> anyhow::Result<String> {
        let headers = [("content-type", "application/yaml")];
        let (status, answer) = self.post("/api/v1/jobs", &headers, spec).await?;
        if status != 201 {
            bail!("submit: {status}: {answer}");
        }
        let id = answer["job"]["id"].as_str().context("no job id")?;
        Ok(id.to_owned())
    }

    pub async fn job(&self, id: &str) -> anyhow::Result<Value> {
        self.get(&format!("/api/v1/jobs/{id}")).await
    }

    pub async fn state(&self, id: &str) -> anyhow::Result<String> {
        let job = self.job(id).await?;
        Ok(job["state"].as_str().context("no state")?.to_owned())
    }

    pub async fn stop(&self, id: &str) -> anyhow::Result<()> {
        let headers = [("content-type", "application/json")];
        let (status, answer) =
            self.post(&format!("/api/v1/jobs/{id}/stop"), &headers, "{}").await?;
        if status != 202 {
            bail!("stop: {status}: {answer}");
        }
        Ok(())
    }

    /// Waits until the job is in one of `states`; a terminal state that is not wanted is an error.
    pub async fn wait_job(
        &self,
        id: &str,
        states: &[&str],
        patience: Duration,
    ) -> anyhow::Result<Value> {
        let until = Instant::now() + patience;
        let mut last = String::new();
        loop {
            // The coordinator may be down on purpose.
            if let Ok(job) = self.job(id).await {
                let state = job["state"].as_str().unwrap_or_default().to_owned();
                if states.contains(&state.as_str()) {
                    return Ok(job);
                }
                last = format!("{state}: {}", job["reason"].as_str().unwrap_or_default());
                if ["SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT"].contains(&state.as_str()) {
                    bail!("{id} ended as {last}, wanted {states:?}");
                }
            }
            if Instant::now() >= until {
                bail!("{id} is still {last} after {patience:?}, wanted {states:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until a node shows this word.
    pub async fn wait_node(
        &self,
        name: &str,
        words: &[&str],
        patience: Duration,
    ) -> anyhow::Result<Value> {
        let until = Instant::now() + patience;
        let mut last = String::new();
        while Instant::now() < until {
            if let Ok(node) = self.get(&format!("/api/v1/nodes/{name}")).await {
                last = node["state"].as_str().unwrap_or_default().to_owned();
                if words.contains(&last.as_str()) {
                    return Ok(node);
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("node {name} is {last:?} after {patience:?}, wanted {words:?}")
    }

    /// A whole log of a job: the default one, or what `query` says.
    pub async fn logs(&self, id: &str, query: &str) -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        loop {
            let offset = bytes.len();
            let path = format!("/api/v1/jobs/{id}/logs?offset={offset}&{query}");
            let response = self.send(Method::GET, path.trim_end_matches('&'), &[], None).await?;
            if !response.status().is_success() {
                bail!("logs: {}: {}", response.status(), response.text().await?);
            }
            let piece = response.bytes().await?;
            if piece.is_empty() {
                return Ok(String::from_utf8(bytes)?);
            }
            bytes.extend_from_slice(&piece);
        }
    }
}
