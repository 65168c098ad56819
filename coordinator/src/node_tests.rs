//! Checks of the network between nodes: the job that one is, and what came of it, read from the logs of
//! its ranks once it has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_common::ids::{JobId, MemberId, MemberKey, NodeId};
use gangline_spec::{JobSpec, SpecErrors};
use serde::Deserialize;
use serde_json::json;
use tokio::time::MissedTickBehavior;

use crate::board::{Board, JobSnapshot};
use crate::core::event::Event;
use crate::core::job::JobState;
use crate::core::node_test::{Measured, Pair, Rate, Said, TestState};
use crate::driver::DriverHandle;
use crate::ingest::logs::Logs;

/// What the ranks run.
pub const PROGRAM: &str = include_str!("../../packaging/node_test.py");
/// Stands before everything that the program says.
const MARK: &str = "gangline-node-test: ";
/// Chooses an interpreter that has PyTorch, and becomes the program.
const SCRIPT: &str = r#"for python in ${NODE_TEST_PYTHON:-python3 /usr/bin/python3}; do
  if "$python" -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec("torch") is None)'
  then exec "$python" -c "$NODE_TEST_PROGRAM"
  fi
done
echo 'gangline-node-test: {"failed": "no PyTorch"}'
exit 1
"#;
/// What to do about it.
const NO_TORCH: &str = "no PyTorch: on this node neither `python3` nor /usr/bin/python3 (or the one of \
                        --python) can import torch. Install it (Debian: apt install python3-torch; else pip \
                        install torch), or name an interpreter that has it: --python /opt/env/bin/python";
/// Between two looks at the checks that are open.
const PAUSE: Duration = Duration::from_secs(1);
/// What is read of the end of each log, in bytes: the result of 256 nodes has about 200 KiB.
const TAIL: u64 = 512 << 10;
/// Longest reason, in characters.
const WHY: usize = 1000;
/// How long a check waits for its nodes.
const MAX_WAIT: &str = "10m";

/// What is asked of a check.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub pool: String,
    /// Fewest and most nodes.
    pub nnodes: (u32, u32),
    /// Nodes of the pool that are not to take part.
    pub exclude: Vec<String>,
    pub gpus_per_node: u32,
    /// `gloo` or `nccl`.
    pub backend: &'static str,
    /// Absolute path of an interpreter.
    pub python: Option<String>,
    pub timeout_s: u64,
}

/// The spec of the job that is the check.
///
/// # Errors
/// Something wanted is not valid in a spec, such as a pool's name.
pub fn spec(wanted: &Wanted) -> Result<JobSpec, SpecErrors> {
    let nnodes = match wanted.nnodes {
        (least, most) if least == most => json!(least),
        (least, most) => json!(format!("{least}..{most}")),
    };
    let mut env =
        BTreeMap::from([("NODE_TEST_BACKEND", wanted.backend), ("NODE_TEST_PROGRAM", PROGRAM)]);
    env.extend(wanted.python.as_deref().map(|python| ("NODE_TEST_PYTHON", python)));
    let spec = json!({
        "name": "node-test",
        "resources": {
            "nnodes": nnodes,
            "gpus_per_node": wanted.gpus_per_node,
            "pool": wanted.pool,
            "exclude_nodes": wanted.exclude,
        },
        // One that leaves out the bad node would find nothing.
        "retry": { "max": 0 },
        "launcher": { "type": "command" },
        "queue": { "max_wait": MAX_WAIT },
        "timeout": format!("{}s", wanted.timeout_s),
        "env": env,
        "run": SCRIPT,
    });
    gangline_spec::parse_resolved(&spec.to_string())
}

/// Reads the results of checks that are over, for as long as the driver lives.
pub async fn run(driver: DriverHandle, board: Board, logs: Logs) {
    let mut ticks = tokio::time::interval(PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (board, logs) = (board.clone(), logs.clone());
        let found = tokio::task::spawn_blocking(move || over(&board, &logs)).await;
        for (job, state) in found.unwrap_or_default() {
            let state = Box::new(state);
            if driver.tell(Event::NodeTested { job, state }).await.is_err() {
                return;
            }
        }
    }
}

fn over(board: &Board, logs: &Logs) -> Vec<(JobId, TestState)> {
    let tests = board.node_tests();
    let open = tests.iter().filter(|test| test.is_open());
    let over = open.filter_map(|test| {
        let state = match board.job(&test.job) {
            None => TestState::Failed { why: "its job was deleted".to_owned() },
            Some(snapshot) if snapshot.job.state.is_terminal() => result(board, logs, &snapshot),
            Some(_) => return None,
        };
        Some((test.job.clone(), state))
    });
    over.collect()
}

/// What a job that has ended says, or why it says nothing.
fn result(board: &Board, logs: &Logs, snapshot: &JobSnapshot) -> TestState {
    let name = |node: &NodeId| board.node(node.as_str()).map(|found| found.node.name.clone());
    let gang = snapshot.gang.as_deref();
    let ranks = gang.into_iter().flat_map(|gang| &gang.members);
    let (mut nodes, mut result, mut failed) = (Vec::new(), None, None);
    for (member, share) in ranks.filter(|(member, _)| **member != MemberId::Head) {
        let Some(gang) = gang else { continue };
        let node = name(&share.node).unwrap_or_else(|| share.node.to_string());
        let key = MemberKey { gang: gang.id.clone(), epoch: gang.epoch, member: *member };
        for line in last_words(logs, &key) {
            match line {
                Line::Failed { failed: why } if failed.is_none() => {
                    let why = if why == "no PyTorch" { NO_TORCH.to_owned() } else { why };
                    failed = Some(format!("{node}: {why}"));
                }
                Line::Failed { .. } => {}
                Line::Result(said) => result = Some(said),
            }
        }
        nodes.push((share.node.clone(), node));
    }
    let succeeded = snapshot.job.state == JobState::Succeeded;
    let said = result.filter(|_| succeeded).map(|said| Measured::of(said.into(), nodes));
    let why = match said {
        Some(Ok(measured)) => return TestState::Measured(measured),
        Some(Err(why)) => why,
        None if succeeded => "the log of rank 0 has no result".to_owned(),
        None => failed.unwrap_or_else(|| snapshot.job.reason.clone()),
    };
    TestState::Failed { why: why.chars().take(WHY).collect() }
}

/// What the program of one rank said at its end.
fn last_words(logs: &Logs, key: &MemberKey) -> Vec<Line> {
    let files = logs.files(&key.gang, key.epoch);
    let mut own =
        files.iter().filter(|(member, file, _)| *member == key.member && file == "output");
    let length = own.next().map_or(0, |(_, _, length)| *length);
    let from = length.saturating_sub(TAIL);
    // At most TAIL bytes, which is far below every usize.
    let bytes = logs.read(key, "output", from, (length - from) as usize).unwrap_or_else(|error| {
        tracing::warn!(%key, %error, "the log of a check cannot be read");
        Vec::new()
    });
    lines(&String::from_utf8_lossy(&bytes))
}

fn lines(text: &str) -> Vec<Line> {
    let marked = text.lines().filter_map(|line| line.split_once(MARK));
    marked.filter_map(|(_, said)| serde_json::from_str(said).ok()).collect()
}

/// A line of the program.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(untagged)]
enum Line {
    Failed { failed: String },
    Result(Output),
}

#[derive(Debug, Deserialize, PartialEq)]
struct Output {
    backend: String,
    versions: BTreeMap<String, String>,
    message_bytes: u64,
    all_reduce: Speed,
    pairs: Vec<PairSpeed>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Speed {
    bytes_per_s: u64,
    latency_ns: u64,
}

#[derive(Debug, Deserialize, PartialEq)]
struct PairSpeed {
    a: u32,
    b: u32,
    #[serde(flatten)]
    speed: Speed,
}

impl From<Speed> for Rate {
    fn from(Speed { bytes_per_s, latency_ns }: Speed) -> Self {
        Rate { bytes_per_s, latency_ns }
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let pair = |PairSpeed { a, b, speed }| Pair { a, b, rate: speed.into() };
        Said {
            backend: output.backend,
            versions: output.versions.into_iter().collect(),
            message_bytes: output.message_bytes,
            all_reduce: output.all_reduce.into(),
            pairs: output.pairs.into_iter().map(pair).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_of_a_check_is_a_valid_one_of_the_ordinary_kind() {
        let wanted = Wanted {
            pool: "h100-a".to_owned(),
            nnodes: (2, 5),
            exclude: vec!["gpu-7".to_owned()],
            gpus_per_node: 8,
            backend: "nccl",
            python: Some("/opt/env/bin/python".to_owned()),
            timeout_s: 900,
        };
        let read = spec(&wanted).unwrap();
        assert_eq!((read.resources.nnodes, read.resources.most_nodes()), (2, 5));
        assert_eq!(read.resources.exclude_nodes, ["gpu-7"]);
        assert_eq!(read.retry.max, 0, "without the bad node it would find nothing");
        assert_eq!(read.env["NODE_TEST_PROGRAM"].as_deref(), Some(PROGRAM));
        let two = spec(&Wanted { nnodes: (2, 2), python: None, ..wanted }).unwrap();
        assert_eq!((two.resources.nnodes, two.resources.nnodes_max), (2, None));
    }

    #[test]
    fn what_the_program_says_is_found_among_other_lines() {
        let text = "hello\n[rank 0] gangline-node-test: {\"failed\": \"no route\"}\n\
                    gangline-node-test: {broken\n\
                    gangline-node-test: {\"backend\": \"gloo\", \"versions\": {\"torch\": \"1.13\"}, \
                    \"message_bytes\": 4, \"all_reduce\": {\"bytes_per_s\": 7, \"latency_ns\": 8}, \
                    \"pairs\": [{\"a\": 0, \"b\": 1, \"bytes_per_s\": 9, \"latency_ns\": 10}]}\n";
        let found = lines(text);
        assert_eq!(found[0], Line::Failed { failed: "no route".to_owned() });
        let Some(Line::Result(output)) = found.into_iter().nth(1) else { panic!("no result") };
        let said = Said::from(output);
        let rate = Rate { bytes_per_s: 9, latency_ns: 10 };
        assert_eq!(said.pairs, [Pair { a: 0, b: 1, rate }]);
        assert_eq!(said.versions, [("torch".to_owned(), "1.13".to_owned())]);
    }

    #[test]
    fn the_program_and_its_reader_agree_on_the_mark() {
        assert!(PROGRAM.contains(&format!("MARK = \"{MARK}\"")));
        assert!(SCRIPT.contains(MARK));
    }
}
