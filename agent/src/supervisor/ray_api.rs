//! The part of Ray's HTTP API that is used, as it answers on the head's loopback (Ray 2.60).

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_common::wire::v1::Secret;
use reqwest::{Method, StatusCode};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// A poll that takes longer is worth nothing: the next one may be answered at once.
const POLL_TIMEOUT: Duration = Duration::from_secs(2);
/// A submission waits inside Ray until the head's agent is up.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(20);
/// A list that somebody waits for; Ray collects it when it is asked.
const LIST_TIMEOUT: Duration = Duration::from_secs(6);
/// Largest answer that is read, in bytes.
const MAX_ANSWER: usize = 16 << 20;
/// Ray's own maximum; its default of 100 would hide the nodes of a large gang.
const NODE_LIMIT: u32 = 10_000;
/// How much of an unexpected answer is kept, in characters.
const SHOWN_ANSWER: usize = 600;

/// An answer that is not the expected one.
#[derive(Debug, thiserror::Error)]
pub enum RayApiError {
    #[error("no client for Ray's API: {0}")]
    Client(reqwest::Error),
    #[error("no answer: {0}")]
    Unreachable(reqwest::Error),
    #[error("HTTP {status}: {text}")]
    Status { status: u16, text: String },
    #[error("unreadable answer: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("answer of more than {MAX_ANSWER} bytes")]
    TooLong,
}

impl RayApiError {
    /// The request itself is wrong and fails on every try.
    pub fn is_permanent(&self) -> bool {
        matches!(self, RayApiError::Status { status: 400..=499, .. })
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct Version {
    pub ray_version: String,
    pub session_name: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Node {
    pub node_id: String,
    pub node_ip: String,
    pub state: String,
    pub state_message: Option<String>,
    #[serde(default)]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub resources_total: Option<BTreeMap<String, f64>>,
}

/// An actor as the state API shows it.
#[derive(Debug, Clone, Deserialize)]
pub struct Actor {
    pub actor_id: String,
    pub class_name: String,
    pub state: String,
    pub name: Option<String>,
    pub node_id: Option<String>,
    pub pid: Option<u32>,
    #[serde(default, deserialize_with = "number_or_text")]
    pub num_restarts: u64,
    pub death_cause: Option<DeathCause>,
    pub placement_group_id: Option<String>,
    pub required_resources: Option<BTreeMap<String, f64>>,
}

/// The kind of a death, with what Ray knows of it.
#[derive(Debug, Clone, Deserialize)]
pub struct DeathCause(pub BTreeMap<String, Option<BTreeMap<String, serde_json::Value>>>);

#[derive(Debug, Clone, Deserialize)]
pub struct PlacementGroup {
    pub placement_group_id: String,
    pub name: Option<String>,
    pub state: String,
    pub bundles: Option<Vec<Bundle>>,
    pub stats: Option<SchedulingStats>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Bundle {
    pub bundle_id: BundleId,
    pub unit_resources: Option<BTreeMap<String, f64>>,
    pub node_id: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct BundleId {
    #[serde(default)]
    pub bundle_index: u32,
}

#[derive(Debug, Clone, Deserialize)]
pub struct SchedulingStats {
    pub scheduling_state: Option<String>,
}

/// Ray writes its 64-bit numbers as text.
fn number_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }
    match Either::deserialize(deserializer)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => text.parse().map_err(D::Error::custom),
    }
}

/// What is wanted of a list of the state API.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// A plain word.
    pub state: Option<&'a str>,
    pub limit: u32,
}

#[derive(Deserialize)]
struct StateAnswer<T> {
    data: StateData<T>,
}

#[derive(Deserialize)]
struct StateData<T> {
    result: Listing<T>,
}

/// A list of the state API.
#[derive(Debug, Clone, Deserialize)]
pub struct Listing<T> {
    /// How many fit, shown or not.
    pub num_filtered: u64,
    pub result: Vec<T>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Job {
    pub status: String,
    pub message: Option<String>,
    pub error_type: Option<String>,
    pub driver_info: Option<DriverInfo>,
    pub driver_node_id: Option<String>,
    pub driver_exit_code: Option<i32>,
}

#[derive(Deserialize)]
struct StopAnswer {
    stopped: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub struct DriverInfo {
    pub node_ip_address: Option<String>,
}

/// Body of a submission. Ray refuses keys that it does not know.
#[derive(Debug, Serialize)]
pub struct Submission {
    pub entrypoint: String,
    pub submission_id: String,
    pub runtime_env: RuntimeEnv,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub entrypoint_resources: BTreeMap<String, f64>,
    pub metadata: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
pub struct RuntimeEnv {
    pub env_vars: BTreeMap<String, String>,
}

/// Client of one head's dashboard.
pub struct RayApi {
    client: reqwest::Client,
    base: String,
    token: Secret,
}

impl RayApi {
    pub fn new(dashboard_port: u16, token: Secret) -> Result<Self, RayApiError> {
        // The client wants TLS to be set up although it only ever speaks to loopback. An error
        // means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(RayApiError::Client)?;
        Ok(RayApi { client, base: format!("http://127.0.0.1:{dashboard_port}"), token })
    }

    pub async fn version(&self) -> Result<Version, RayApiError> {
        self.get("/api/version").await
    }

    pub async fn nodes(&self) -> Result<Vec<Node>, RayApiError> {
        let path = format!("/api/v0/nodes?detail=1&limit={NODE_LIMIT}");
        let answer: StateAnswer<Node> = self.get(&path).await?;
        Ok(answer.data.result.result)
    }

    /// A list of the state API: `nodes`, `actors` or `placement_groups`.
    pub async fn list<T: for<'a> Deserialize<'a>>(
        &self,
        subject: &str,
        wanted: Wanted<'_>,
    ) -> Result<Listing<T>, RayApiError> {
        let mut path = format!("/api/v0/{subject}?detail=1&limit={}", wanted.limit);
        if let Some(state) = wanted.state {
            path += &format!("&filter_keys=state&filter_predicates=%3D&filter_values={state}");
        }
        let body = self.send(Method::GET, &path, None, LIST_TIMEOUT).await?;
        let answer: StateAnswer<T> = serde_json::from_slice(&body)?;
        Ok(answer.data.result)
    }

    /// The job, or `None` when Ray definitely does not know it.
    pub async fn job(&self, operation: &str) -> Result<Option<Job>, RayApiError> {
        match self.get(&format!("/api/jobs/{operation}")).await {
            Ok(job) => Ok(Some(job)),
            Err(RayApiError::Status { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Submits a job; one that Ray has under this id already counts as submitted.
    pub async fn submit(&self, submission: &Submission) -> Result<(), RayApiError> {
        let body = serde_json::to_vec(submission)?;
        match self.send(Method::POST, "/api/jobs/", Some(body), SUBMIT_TIMEOUT).await {
            Err(RayApiError::Status { text, .. }) if text.contains("already exists") => Ok(()),
            other => other.map(drop),
        }
    }

    /// Asks Ray to stop a job: SIGTERM, and SIGKILL after the grace that `ray start` was given.
    pub async fn stop(&self, operation: &str) -> Result<bool, RayApiError> {
        let path = format!("/api/jobs/{operation}/stop");
        let body = self.send(Method::POST, &path, None, POLL_TIMEOUT).await?;
        let answer: StopAnswer = serde_json::from_slice(&body)?;
        Ok(answer.stopped)
    }

    async fn get<T: for<'a> Deserialize<'a>>(&self, path: &str) -> Result<T, RayApiError> {
        let body = self.send(Method::GET, path, None, POLL_TIMEOUT).await?;
        Ok(serde_json::from_slice(&body)?)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        timeout: Duration,
    ) -> Result<Vec<u8>, RayApiError> {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.base))
            .bearer_auth(&self.token.0)
            .timeout(timeout);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let mut response = request.send().await.map_err(RayApiError::Unreachable)?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(RayApiError::Unreachable)? {
            if bytes.len() + piece.len() > MAX_ANSWER {
                return Err(RayApiError::TooLong);
            }
            bytes.extend_from_slice(&piece);
        }
        if status == StatusCode::OK {
            return Ok(bytes);
        }
        // Ray ends its traces with the cause, so the end is what is shown.
        let text = String::from_utf8_lossy(&bytes);
        let skipped = text.chars().count().saturating_sub(SHOWN_ANSWER);
        let text = text.chars().skip(skipped).collect();
        Err(RayApiError::Status { status: status.as_u16(), text })
    }
}
