//! The report on a failed attempt: one page for a person who looks into the job's directory. That lies
//! where only nodes see it, so an agent of the gang writes it, beside the logs of the attempt. A job
//! never fails for the want of it.

use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::{JobId, MemberId, NodeId};
use gangline_common::time::wall_text;
use gangline_common::wire::request::AgentRequest;
use gangline_diagnosis::{Diagnosis, Rules, page};

use crate::agents::Agents;
use crate::board::{Board, JobSnapshot};
use crate::core::job::{Attempt, Outcome};

/// Most bytes of the page and the name of its directory: they fit into one question.
pub const BYTES: usize = 3_800;
/// A page that would have less room than this is not written.
pub const LEAST_BYTES: usize = 400;
/// Longest cause on it, in characters.
const SAID_CHARS: usize = 600;
/// Agents that are tried, one after the other, ranks in their order.
const TRIES: usize = 3;
/// What is done about a failure is decided when its cause is known, and may wait for the end of its
/// processes; the page waits for it this long.
const DECISION: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

/// Writes reports; cheap to clone.
#[derive(Clone)]
pub struct Reports {
    pub board: Board,
    pub agents: Agents,
}

impl Reports {
    /// Writes the report on an attempt whose verdict was told.
    /// `nodes`: see [`nodes`]; of before that, for another attempt may have begun since.
    pub async fn write(
        &self,
        job: &JobId,
        number: u32,
        nodes: Vec<NodeId>,
        diagnosis: &Diagnosis,
        rules: &Rules,
    ) {
        let Some(snapshot) = self.decided(job, number).await else { return };
        let Some(directory) = snapshot.job.request.job_directory.clone() else { return };
        let room = BYTES.saturating_sub(directory.len());
        let Some(attempt) = attempt(&snapshot, number).filter(|_| room >= LEAST_BYTES) else {
            return;
        };
        let text = text(&snapshot, attempt, diagnosis, rules, room);
        let mut problem = "none of its nodes is known".to_owned();
        for node in nodes {
            let (directory, text) = (directory.clone(), text.clone());
            let request = AgentRequest::WriteReport { directory, attempt: number, text };
            match self.agents.ask(&node, &request).await {
                Ok(_) => return,
                Err(error) => problem = format!("{node}: {error}"),
            }
        }
        tracing::warn!(%job, attempt = number, problem, "the report was not written");
    }

    /// The job when it is known what was done, or nothing more comes.
    async fn decided(&self, job: &JobId, number: u32) -> Option<Arc<JobSnapshot>> {
        let until = tokio::time::Instant::now() + DECISION;
        loop {
            let snapshot = self.board.job(job)?;
            let verdict = attempt(&snapshot, number).and_then(|found| found.verdict.as_ref());
            let is_decided = verdict.is_some_and(|verdict| !verdict.done.is_empty())
                || snapshot.job.state.is_terminal();
            if is_decided || tokio::time::Instant::now() >= until {
                return Some(Arc::new(snapshot));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn attempt(snapshot: &JobSnapshot, number: u32) -> Option<&Attempt> {
    snapshot.attempts.iter().find(|attempt| attempt.number == number).map(|found| &**found)
}

/// The nodes of the first ranks of an attempt, in their order; none once its gang has gone on.
pub fn nodes(snapshot: &JobSnapshot, number: u32) -> Vec<NodeId> {
    let epoch = attempt(snapshot, number).map(|attempt| attempt.epoch);
    let gang = snapshot.gang.iter().filter(|gang| Some(gang.epoch) == epoch);
    let ranks = gang.flat_map(|gang| &gang.members).filter(|(id, _)| **id != MemberId::Head);
    let mut nodes: Vec<NodeId> = Vec::new();
    for (_, member) in ranks {
        if !nodes.contains(&member.node) && nodes.len() < TRIES {
            nodes.push(member.node.clone());
        }
    }
    nodes
}

/// The page on an attempt, in at most `room` bytes; of [`LEAST_BYTES`] on it says where more is.
pub fn text(
    snapshot: &JobSnapshot,
    attempt: &Attempt,
    diagnosis: &Diagnosis,
    rules: &Rules,
    room: usize,
) -> String {
    let (job, number) = (&snapshot.job.id, attempt.number);
    let ended = attempt.ended.map(|ended| format!(" to {}", wall_text(ended.wall_ms)));
    let clean = |text: &str| -> String { text.chars().filter(|c| !c.is_control()).collect() };
    let said = attempt.outcome.as_ref().map(Outcome::sentence).unwrap_or_default();
    // A cause ends with the last lines of a rank.
    let said: Vec<String> = said.lines().map(|line| clean(line.trim())).collect();
    let done = attempt.verdict.as_ref().map(|verdict| verdict.done.clone()).unwrap_or_default();
    let head = format!(
        "{job} {} attempt {number} failed, {}{}\n{:<11} {}\n",
        clean(&snapshot.job.request.name),
        wall_text(attempt.started.wall_ms),
        ended.unwrap_or_default(),
        "Said",
        said.join(" / ").chars().take(SAID_CHARS).collect::<String>(),
    );
    let foot = format!(
        "{}{:<11} gangline why {job} --attempt {number} · gangline logs {job} --attempt {number} \
         --errors · gangline bundle {job}\n",
        match done.is_empty() {
            true => String::new(),
            false => format!("{:<11} {}\n", "Done", clean(&done)),
        },
        "More",
    );
    let mut text = head + &page(diagnosis, rules, false, &clean);
    if text.len() + foot.len() > room {
        text.truncate(text.floor_char_boundary(room.saturating_sub(foot.len() + 4)));
        text.push_str("...\n");
    }
    text + &foot
}
