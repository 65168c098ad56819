//! The coordinator's answers as structs: only what tables show, and nothing is required, so that
//! an older or newer coordinator can be read. The fields have the API's names and meanings; times are RFC 3339.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::durations::short;
use crate::errors::{CliError, code, exit};

/// All states of a job.
pub const STATES: [&str; 9] = [
    "PENDING",
    "STARTING",
    "RUNNING",
    "STOPPING",
    "HELD",
    "SUCCEEDED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
];

/// Whether a job in `state` has ended for good.
pub fn is_terminal(state: &str) -> bool {
    matches!(state, "SUCCEEDED" | "FAILED" | "CANCELLED" | "TIMEOUT")
}

/// The exit code of a command that reports the result of a job in `state`.
pub fn exit_of(state: &str) -> u8 {
    match state {
        "SUCCEEDED" => exit::OK,
        "FAILED" | "TIMEOUT" => exit::JOB_FAILED,
        "CANCELLED" => exit::JOB_CANCELLED,
        _ => exit::JOB_NOT_FINISHED,
    }
}

/// Reads `value` as `T`; null counts as absent.
///
/// # Errors
/// A field that is there has another type.
pub fn read<T: DeserializeOwned>(value: &Value) -> Result<T, CliError> {
    read_series(&without_nulls(value))
}

/// The same for lists of readings, in which a null keeps its place.
///
/// # Errors
/// As [`read`].
pub fn read_series<T: DeserializeOwned>(value: &Value) -> Result<T, CliError> {
    T::deserialize(value).map_err(|error| {
        CliError::new(exit::ERROR, code::BAD_ANSWER, "cannot read the coordinator's answer")
            .why(error.to_string())
            .hint("its version may not fit this one; -o json shows the answer as it is")
    })
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), without_nulls(value)))
            .collect(),
        Value::Array(items) => {
            items.iter().filter(|item| !item.is_null()).map(without_nulls).collect()
        }
        other => other.clone(),
    }
}

/// A page of jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobPage {
    /// Newest first; each as the coordinator sent it.
    pub jobs: Vec<Value>,
    /// Where the next page begins.
    pub next_page_token: Option<String>,
}

/// A job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Job {
    pub id: String,
    pub name: String,
    pub user: String,
    pub project: String,
    pub state: String,
    pub reason: String,
    pub launcher: String,
    pub kind: String,
    pub cluster: Option<String>,
    pub usage: Option<ClusterUsage>,
    pub nnodes: Option<u64>,
    pub nnodes_min: Option<u64>,
    pub nnodes_max: Option<u64>,
    pub gpus_per_node: Option<u64>,
    pub pools: Vec<String>,
    pub priority: Option<u64>,
    pub held: Option<Held>,
    pub waits_for: Vec<String>,
    pub not_before: Option<String>,
    pub max_wait_s: Option<u64>,
    pub timeout_s: Option<u64>,
    pub on_disconnect: Option<String>,
    pub submitted: Option<String>,
    pub started: Option<String>,
    pub ended: Option<String>,
    pub attempts: Option<u64>,
    pub exit_code: Option<i64>,
    pub directory: Option<String>,
    pub checkpoint_directory: Option<String>,
    pub last_checkpoint: Option<Checkpoint>,
    pub saved: Option<Saved>,
    pub progress: Option<Progress>,
    pub stalled: Option<String>,
    pub stalled_how: Option<String>,
    pub stragglers: Vec<Straggler>,
    pub kept_up_until: Option<String>,
    pub nodes: Vec<String>,
    pub driver_node: Option<String>,
    pub submit_command: String,
    pub attempt_list: Vec<Attempt>,
    pub members: Vec<Member>,
    pub history: Vec<Transition>,
}

/// A rank that is slower than the others.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Straggler {
    pub rank: u64,
    pub node: String,
    pub since: String,
    pub text: String,
}

/// Who holds a job back.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Held {
    pub by: String,
    pub why: String,
    pub since: String,
}

/// How far a training is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Progress {
    pub step: u64,
    pub total: Option<u64>,
    pub step_time_s: Option<f64>,
    pub last_step_age_s: Option<u64>,
    pub eta_s: Option<u64>,
}

impl Progress {
    /// `84/240`, or `84`.
    pub fn steps(&self) -> String {
        let total = self.total.map(|total| format!("/{total}")).unwrap_or_default();
        format!("{}{total}", self.step)
    }

    /// The pace, the age of the newest step and the rest of the time, as far as they are known.
    pub fn pace(&self) -> Vec<String> {
        let pace = self.step_time_s.map(|seconds| format!("{} a step", seconds_text(seconds)));
        let age = self.last_step_age_s.map(|age| format!("the last {} ago", short(age)));
        let eta = self.eta_s.filter(|eta| *eta > 0).map(|eta| format!("about {} left", short(eta)));
        [pace, age, eta].into_iter().flatten().collect()
    }
}

/// `44.4 s`, or `2m13s` from two minutes on.
fn seconds_text(seconds: f64) -> String {
    match seconds {
        // The cast saturates.
        120.0.. => short(seconds as u64),
        10.0..120.0 => format!("{seconds:.0} s"),
        _ => format!("{seconds:.2} s"),
    }
}

/// Steps and metrics of a job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobSeries {
    pub attempt: Option<u64>,
    pub progress: Option<Progress>,
    pub names: Vec<String>,
    pub too_many_names: bool,
    pub every: u64,
    pub reset: bool,
    pub steps: Vec<u64>,
    pub attempts: Vec<u64>,
    pub time_ms: Vec<Option<u64>>,
    pub values: std::collections::BTreeMap<String, Vec<Option<f64>>>,
    pub cursor: String,
}

/// A training checkpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    pub name: String,
    pub age_s: u64,
}

/// What there is of training checkpoints, and the room for more.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Saved {
    pub newest: Option<SavedCheckpoint>,
    pub count: u64,
    pub bytes: u64,
    pub free_bytes: u64,
    pub next_bytes: u64,
    pub is_low: bool,
    pub removed: u64,
    pub copied: Option<String>,
    pub copy_problem: Option<String>,
}

/// A training checkpoint that is complete.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SavedCheckpoint {
    pub name: String,
    pub step: Option<u64>,
    pub bytes: u64,
    pub age_s: u64,
}

/// What the jobs on a standing cluster use of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClusterUsage {
    pub gpus: u64,
    pub gpus_free: u64,
    pub jobs: Vec<String>,
    pub waiting: u64,
}

impl Job {
    /// GPUs of the whole gang.
    pub fn gpus(&self) -> Option<u64> {
        self.nnodes?.checked_mul(self.gpus_per_node?)
    }

    /// Its number of nodes; `2..4` while an elastic job has none.
    pub fn nodes_text(&self) -> String {
        if self.nodes.is_empty() && self.nnodes_min != self.nnodes_max {
            return self.wanted_nodes();
        }
        self.nnodes.map_or_else(|| "-".to_owned(), |nodes| nodes.to_string())
    }

    /// The number of nodes that it asks for: `4`, or `2..4`.
    pub fn wanted_nodes(&self) -> String {
        let least = self.nnodes_min.or(self.nnodes);
        match (least, self.nnodes_max) {
            (Some(least), Some(most)) if most > least => format!("{least}..{most}"),
            (Some(nodes), _) => nodes.to_string(),
            (None, _) => "-".to_owned(),
        }
    }

    /// Whether the job has ended for good.
    pub fn is_over(&self) -> bool {
        is_terminal(&self.state)
    }
}

/// One try at running a job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Attempt {
    pub number: u64,
    pub started: Option<String>,
    pub ended: Option<String>,
    pub outcome: Option<String>,
    pub cause: Option<String>,
    pub ray_version: Option<String>,
    pub driver: Option<RayDriver>,
    pub ray_nodes: Vec<RayNode>,
}

/// Where Ray placed its driver.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RayDriver {
    pub node: Option<String>,
    pub member: Option<Loose>,
    pub ray_node_id: Option<String>,
    pub address: Option<String>,
}

/// One node of the gang's Ray cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RayNode {
    pub member: Option<Loose>,
    pub node: Option<String>,
    pub ray_node_id: String,
    pub address: Option<String>,
    pub alive: Option<bool>,
    pub state_message: Option<String>,
}

/// One member of a job's gang.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Member {
    pub job: Option<String>,
    pub member: Option<Loose>,
    pub node: String,
    pub gpus: Vec<String>,
    pub cpus: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub ports: Option<Ports>,
    pub phase: Option<Loose>,
    pub pid: Option<u64>,
    pub end: Option<Loose>,
}

/// A block of ports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Ports {
    pub base: u64,
    pub size: u64,
}

/// One remembered change of state.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Transition {
    pub time: String,
    pub state: String,
    pub actor: String,
    pub text: String,
}

/// All nodes, each as the coordinator sent it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeList {
    /// By name.
    pub nodes: Vec<Value>,
}

/// A node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    pub id: String,
    pub name: String,
    pub state: String,
    pub reachability: String,
    pub lifecycle: String,
    pub cordon: Option<Cordon>,
    pub drain: Option<Drain>,
    pub pool: Option<String>,
    pub pool_by: Option<String>,
    pub labels: std::collections::BTreeMap<String, String>,
    pub agent_labels: std::collections::BTreeMap<String, String>,
    pub operator_labels: std::collections::BTreeMap<String, String>,
    pub roles: Vec<String>,
    pub address: Option<String>,
    pub gpus: Vec<Gpu>,
    pub gpus_total: Option<u64>,
    pub gpus_in_use: Option<u64>,
    pub gpus_free: Option<u64>,
    pub jobs: Vec<String>,
    pub cpus: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub agent_version: Option<String>,
    pub last_word_ms_ago: Option<u64>,
    pub generation: Option<Loose>,
    pub held: Option<Loose>,
    pub unknown_members: Vec<Loose>,
    pub hostname: Option<String>,
    pub doctor: Vec<Finding>,
    pub versions: std::collections::BTreeMap<String, Loose>,
    pub members: Vec<Member>,
    pub history: Vec<Transition>,
    pub host: Option<HostSample>,
    /// Word of its health; absent where nobody judges it.
    pub health: Option<String>,
    pub conditions: Vec<Condition>,
    /// What cannot be seen from inside its container.
    pub blind: Vec<String>,
    pub telemetry: Option<Telemetry>,
    pub gpu_details: Vec<GpuDetail>,
    pub ports: Vec<Port>,
    pub collectors: Vec<Collector>,
    pub network_test: Option<NetworkTest>,
    pub doubt: Option<Doubt>,
}

/// What is held against a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Doubt {
    pub points: f64,
    pub why: String,
    pub at: String,
}

/// What the newest check of the network says of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NetworkTest {
    pub job: String,
    pub at: String,
    pub backend: String,
    pub nodes: u64,
    pub best_bytes_per_s: f64,
    pub latency_us: f64,
    pub median_bytes_per_s: f64,
    pub slow: bool,
}

/// A check of the network.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeTest {
    pub job: String,
    pub state: String,
    pub by: String,
    pub pool: String,
    pub begun: String,
    pub ended: Option<String>,
    pub why: Option<String>,
    pub result: Option<NodeTestResult>,
}

/// What it measured.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeTestResult {
    pub backend: String,
    pub versions: std::collections::BTreeMap<String, String>,
    pub message_bytes: u64,
    pub all_reduce: Rate,
    pub median_bytes_per_s: f64,
    pub slow: Vec<String>,
    pub nodes: Vec<TestedNode>,
    pub pairs: Vec<TestedPair>,
}

/// What a transfer did.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Rate {
    pub bytes_per_s: f64,
    pub latency_us: f64,
}

/// A node by the best that it did.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TestedNode {
    pub name: String,
    #[serde(flatten)]
    pub best: Rate,
    pub slow: bool,
}

/// What two nodes did.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TestedPair {
    pub nodes: Vec<String>,
    #[serde(flatten)]
    pub rate: Rate,
}

/// More readings of one GPU.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GpuDetail {
    pub uuid: String,
    pub lost: bool,
    pub sm_active: Option<f64>,
    pub tensor_active: Option<f64>,
    pub memory_temperature_c: Option<f64>,
    pub nvlinks_down: Option<u64>,
    pub nvlink_errors: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    pub pcie_replays: Option<u64>,
    pub last_xid: Option<u64>,
    pub xids: Option<u64>,
    pub processes: Option<u64>,
    pub foreign_processes: Option<u64>,
}

/// One RDMA port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Port {
    pub device: String,
    pub port: Option<u64>,
    pub ethernet: Option<bool>,
    pub state: Option<u64>,
    pub rate_bytes_per_s: Option<u64>,
    pub received_bytes: Option<u64>,
    pub sent_bytes: Option<u64>,
    pub errors: Option<u64>,
    pub link_downed: Option<u64>,
}

/// How one collector of the agent fares.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Collector {
    pub name: String,
    pub success: bool,
    pub duration_us: Option<u64>,
    pub age_ms: Option<u64>,
}

/// What ails a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    pub rule: String,
    /// The part of the node: a GPU, a port, a file system.
    pub component: String,
    pub level: String,
    pub reason: String,
    pub evidence: Option<Loose>,
    pub since: Option<String>,
    pub action: Option<String>,
    /// What ends it.
    pub clears: Option<String>,
    /// It is only watched: nothing is done about it.
    pub shadow: bool,
    /// An operator has ended it, and the agent still says it.
    pub cleared: bool,
}

/// A health rule on trial.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RuleTrial {
    pub rule: String,
    pub found: u64,
    pub confirmed: u64,
    pub refuted: u64,
    /// Nothing tells whether they were right, or not yet.
    pub untold: u64,
    /// 0 to 1.
    pub precision: Option<f64>,
    /// Of the last day.
    pub findings: Vec<TrialFinding>,
}

/// What a rule on trial has found.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TrialFinding {
    pub node_id: String,
    pub node: Option<String>,
    pub component: String,
    pub since: Option<String>,
    pub outcome: String,
    pub why: Option<String>,
}

/// What became of a node's samples.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Telemetry {
    pub received: u64,
    pub dropped: u64,
    pub hasty: u64,
    pub untimely: u64,
}

/// Readings of a job's GPUs over the last hour.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobMetrics {
    pub attempt: Option<u64>,
    pub step_s: u64,
    pub shared: bool,
    pub members: Vec<NodeSeries>,
}

/// Readings of one node over time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeSeries {
    pub name: String,
    pub member: Option<Loose>,
    pub time_ms: Vec<u64>,
    pub host: std::collections::BTreeMap<String, Vec<Option<f64>>>,
    pub gpus: Vec<GpuSeries>,
}

/// Readings of one GPU over time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GpuSeries {
    pub uuid: String,
    pub series: std::collections::BTreeMap<String, Vec<Option<f64>>>,
}

/// A pool.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pool {
    pub name: String,
    pub description: String,
    pub set_by: Option<String>,
    pub set: Option<String>,
    pub nodes: u64,
    pub nodes_open: u64,
    pub gpus: u64,
    pub gpus_in_use: u64,
    pub gpus_free: u64,
    pub gpu_models: std::collections::BTreeMap<String, u64>,
    pub jobs_waiting: u64,
    pub members: Vec<PoolNode>,
}

/// A node of a pool.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PoolNode {
    pub name: String,
    pub state: String,
    pub pool_by: Option<String>,
    pub gpus_total: Option<u64>,
    pub gpus_in_use: Option<u64>,
    pub labels: std::collections::BTreeMap<String, String>,
}

/// Why a node takes no new work.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cordon {
    pub by: String,
    pub why: String,
}

/// Why a node is taken out of use.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Drain {
    pub by: String,
    pub why: String,
    pub deadline: Option<String>,
}

/// One GPU of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Gpu {
    pub uuid: String,
    pub index: Option<u64>,
    pub name: String,
    pub memory_bytes: Option<u64>,
    pub in_use: Option<bool>,
    pub job: Option<String>,
    pub sample: Option<GpuSample>,
}

/// Newest readings of one GPU.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GpuSample {
    pub uuid: String,
    pub utilization_pct: Option<f64>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    pub temperature_c: Option<f64>,
    pub power_w: Option<f64>,
    pub power_limit_w: Option<f64>,
    pub sm_clock_mhz: Option<f64>,
    pub sm_active: Option<f64>,
    pub tensor_active: Option<f64>,
    pub nvlink_bytes_per_s: Option<f64>,
}

/// Newest readings of one host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HostSample {
    pub cpu_busy_pct: Option<f64>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    pub load1: Option<f64>,
    pub shm_free_bytes: Option<u64>,
    /// Only in a stream of samples, where there is one before.
    pub network_bytes_per_s: Option<f64>,
    pub rdma_bytes_per_s: Option<f64>,
}

/// One finding of the agent's self-examination.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Finding {
    pub check: String,
    pub level: String,
    pub text: String,
    pub advice: Option<String>,
}

/// A value whose type does not matter: it is only shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Loose(Value);

impl std::fmt::Display for Loose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Value::String(text) => f.write_str(text),
            // The end of a member, for example, says itself in words.
            Value::Object(map) => match map.get("text").and_then(Value::as_str) {
                Some(text) => f.write_str(text),
                None => write!(f, "{}", self.0),
            },
            other => write!(f, "{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_may_lack_and_add_fields() {
        let job: Job = read(&json!({
            "id": "j-1", "cluster": null, "nnodes": 2, "gpus_per_node": 8, "new_field": [1],
            "attempt_list": [{"number": 1, "driver": null, "ray_nodes": [null, {"member": 3}]}],
        }))
        .unwrap();
        assert_eq!((job.id.as_str(), job.gpus()), ("j-1", Some(16)));
        let member = job.attempt_list[0].ray_nodes[0].member.clone();
        assert_eq!(member.unwrap().to_string(), "3");
        assert!(read::<Job>(&json!({"id": 7})).is_err());
    }

    #[test]
    fn every_state_has_an_exit_code() {
        let codes: Vec<u8> = STATES.iter().map(|state| exit_of(state)).collect();
        assert_eq!(codes, [101, 101, 101, 101, 101, 0, 100, 103, 100]);
        assert!(STATES.iter().all(|state| is_terminal(state) == (exit_of(state) != 101)));
    }
}
