//! How things stand, or stood, with the members of a job: what their agents kept when it failed, what
//! they see now, and the ends of its logs. The values of secrets are in none of it.

use axum::Json;
use axum::extract::State;
use gangline_common::ids::{MemberId, MemberKey};
use gangline_common::redact::END_BYTES;
use gangline_common::request::RequestError;
use gangline_common::wire::request::{AgentRequest, FailureReason, RequestFailure};
use gangline_common::wire::scene::{
    ENVIRONMENT_PART, HUNG_SCENE_FILE, MAX_SCENE, Occasion, SCENE_FILE, Scene, is_scene,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, HIDDEN, sees_values};
use super::error::{
    AGENT_AWAY, AGENT_SILENT, AGENT_TOO_OLD, ApiError, BAD_PARAMETER, NO_SCENE, NOT_RUNNING,
    Problem, TOO_MANY_QUESTIONS, cleaned, quoted,
};
use super::jobs::find_job;
use super::logs::{Wanted, blocking};
use super::view::{Names, newest_gang};
use super::{App, Params, Selector, Shared};
use crate::agents::AskError;
use crate::board::JobSnapshot;
use crate::core::credential::Principal;
use crate::core::job::Attempt;
use crate::secrets::redactor;

/// Most logs whose ends one answer has, and the most bytes of all of them.
const MAX_LOGS: usize = 256;
const LOGS_BYTES: usize = 4 << 20;

/// Query of what there is of one member.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SceneParams {
    /// A rank or `head`; rank 0 when absent.
    rank: Option<String>,
    /// Number of an attempt; without it the newest.
    attempt: Option<u32>,
    /// The one that was kept when the training first hung in that attempt.
    #[serde(default)]
    #[param(required = false)]
    hung: bool,
}

/// Query of stacks.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StacksParams {
    /// A rank or `head`; rank 0 when absent.
    rank: Option<String>,
}

/// Query of the ends of logs.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExcerptParams {
    /// Number of an attempt; without it the newest.
    attempt: Option<u32>,
}

/// How things stand with one member, taken by the agent of its node.
#[derive(Serialize, ToSchema)]
pub(super) struct SceneView {
    job: String,
    attempt: u32,
    /// `head` or the rank.
    member: String,
    /// Name of the node that the member is on; null when it is not known any more.
    node: Option<String>,
    /// `asked`: just now. `stopping`: the job had failed elsewhere, and the member still ran. `ended`:
    /// the member had ended by itself. `hung`: the training went on no more.
    occasion: &'static str,
    /// By the node's clock.
    taken: String,
    took_ms: u64,
    parts: Vec<PartView>,
    stacks: Vec<StackView>,
}

/// One part of it.
#[derive(Serialize, ToSchema)]
pub(super) struct PartView {
    name: String,
    /// False: the text says why there is nothing, or not all.
    ok: bool,
    took_ms: u64,
    text: String,
}

/// Where one process stands.
#[derive(Serialize, ToSchema)]
pub(super) struct StackView {
    pid: u32,
    title: String,
    /// It runs code of the job: it is none of Ray's own services.
    of_job: bool,
    /// `py-spy` or `kernel`.
    source: String,
    ok: bool,
    text: String,
}

/// The ends of all logs of an attempt.
#[derive(Serialize, ToSchema)]
pub(super) struct ExcerptList {
    job: String,
    attempt: u32,
    logs: Vec<Excerpt>,
    /// There were more than fit.
    truncated: bool,
}

/// The last lines of a log, at most 200.
#[derive(Serialize, ToSchema)]
pub(super) struct Excerpt {
    /// `head` or the rank.
    member: String,
    /// `output`, or `driver-` and an operation of Ray's.
    file: String,
    /// Length of the log.
    total_bytes: u64,
    text: String,
}

/// How things stand with a member: kept when the attempt failed, or else as it is now.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/scene",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"),
        SceneParams),
    responses((status = 200, body = SceneView), (status = 404, response = Problem),
        (status = 409, response = Problem), (status = 501, response = Problem),
        (status = 502, response = Problem), (status = 503, response = Problem)))]
pub(super) async fn get_scene(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<SceneParams>,
) -> Result<Json<SceneView>, ApiError> {
    let snapshot = find_job(&shared.api.board, &principal, Action::ReadJobs, &id)?;
    let wanted = wanted(&snapshot, params.rank.as_deref(), params.attempt)?;
    let (logs, key) = (shared.api.logs.clone(), wanted.key.clone());
    let file = if params.hung { HUNG_SCENE_FILE } else { SCENE_FILE };
    let read = move || logs.read(&key, file, 0, MAX_SCENE);
    let stored = blocking("reading a scene", read).await?;
    if !stored.is_empty() {
        // Not all of it may be there yet.
        let scene = serde_json::from_slice(&stored).map_err(|_| wanted.nothing())?;
        return Ok(Json(wanted.view(&shared, &principal, scene)));
    }
    if !wanted.is_live || params.hung {
        return Err(wanted.nothing());
    }
    let request = AgentRequest::Scene { key: wanted.key.clone() };
    let scene = wanted.ask(&shared, &request).await?;
    Ok(Json(wanted.view(&shared, &principal, scene)))
}

/// Where the processes of a member of a running job stand.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/stacks",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"),
        StacksParams),
    responses((status = 200, body = SceneView), (status = 404, response = Problem),
        (status = 409, response = Problem), (status = 501, response = Problem),
        (status = 502, response = Problem), (status = 503, response = Problem)))]
pub(super) async fn get_stacks(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<StacksParams>,
) -> Result<Json<SceneView>, ApiError> {
    let snapshot = find_job(&shared.api.board, &principal, Action::ReadJobs, &id)?;
    let wanted = wanted(&snapshot, params.rank.as_deref(), None)?;
    if !wanted.is_live {
        let detail = format!("the job is {}: no process of it runs", snapshot.job.state.word());
        let hint = "what was kept of a failed attempt is in its scene (`gangline bundle`)";
        return Err(ApiError::new(NOT_RUNNING, detail).hint(hint));
    }
    let request = AgentRequest::Stacks { key: wanted.key.clone() };
    let scene = wanted.ask(&shared, &request).await?;
    Ok(Json(wanted.view(&shared, &principal, scene)))
}

/// The last lines of every log of an attempt, without the values of the project's secrets.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/excerpts",
    params(("id" = String, Path, description = "Id, name, beginning of an id, or `@last`"),
        ExcerptParams),
    responses((status = 200, body = ExcerptList), (status = 404, response = Problem),
        (status = 409, response = Problem)))]
pub(super) async fn get_excerpts(
    State(shared): App,
    Caller(principal): Caller,
    Selector(id): Selector,
    Params(params): Params<ExcerptParams>,
) -> Result<Json<ExcerptList>, ApiError> {
    let snapshot = find_job(&shared.api.board, &principal, Action::ReadJobs, &id)?;
    let attempt = attempt(&snapshot, params.attempt)?;
    let redactor = redactor(&shared.api.sealer, &shared.api.board, &snapshot)
        .map_err(|error| ApiError::internal("looking for secrets", &error))?;
    let (logs, gang, epoch) = (shared.api.logs.clone(), attempt.gang.clone(), attempt.epoch);
    // On a standing cluster its members' own logs are those of every job.
    let own = attempt.guest.is_some().then(|| snapshot.job.operation(attempt.number));
    let read = move || {
        let mut found = logs.files(&gang, epoch);
        found.retain(|(_, file, _)| match &own {
            _ if is_scene(file) => false,
            Some(operation) => file.strip_prefix("driver-") == Some(operation.as_str()),
            None => true,
        });
        let (mut excerpts, mut bytes) = (Vec::new(), 0);
        let all = found.len();
        for (member, file, total_bytes) in found.into_iter().take(MAX_LOGS) {
            let key = MemberKey { gang: gang.clone(), epoch, member };
            let from = total_bytes.saturating_sub(END_BYTES as u64);
            let end = logs.read(&key, &file, from, END_BYTES)?;
            let text = redactor.last_lines(&end, from == 0);
            bytes += text.len();
            if bytes > LOGS_BYTES {
                break;
            }
            excerpts.push(Excerpt { member: member.to_string(), file, total_bytes, text });
        }
        let truncated = excerpts.len() < all;
        Ok((excerpts, truncated))
    };
    let (logs, truncated) = blocking("reading the ends of logs", read).await?;
    let job = snapshot.job.id.to_string();
    Ok(Json(ExcerptList { job, attempt: attempt.number, logs, truncated }))
}

fn attempt(snapshot: &JobSnapshot, number: Option<u32>) -> Result<&Attempt, ApiError> {
    let found = match number {
        None => snapshot.attempts.last(),
        Some(number) => snapshot.attempts.iter().find(|attempt| attempt.number == number),
    };
    found.map(|attempt| &**attempt).ok_or_else(|| match number {
        None => ApiError::new(NO_SCENE, "the job has not begun yet")
            .hint("`gangline explain` tells why it waits"),
        Some(number) => ApiError::new(BAD_PARAMETER, format!("there is no attempt {number}"))
            .hint(format!("the job has had {}", snapshot.job.attempts)),
    })
}

/// The member that is meant.
struct Member<'a> {
    snapshot: &'a JobSnapshot,
    key: MemberKey,
    attempt: u32,
    /// Its gang is the newest of the job and has not ended.
    is_live: bool,
}

fn wanted<'a>(
    snapshot: &'a JobSnapshot,
    rank: Option<&str>,
    number: Option<u32>,
) -> Result<Member<'a>, ApiError> {
    let job = &snapshot.job;
    if let Some(cluster) = &job.cluster {
        let detail = "a job on a cluster has no members of its own";
        return Err(ApiError::new(BAD_PARAMETER, detail)
            .hint(format!("the ranks are those of the cluster: ask for {cluster}")));
    }
    let member = Wanted::parse(job, rank, number, None)?.member.unwrap_or(MemberId::Rank(0));
    let attempt = attempt(snapshot, number)?;
    let key = MemberKey { gang: attempt.gang.clone(), epoch: attempt.epoch, member };
    let gang = newest_gang(snapshot).filter(|gang| gang.is_live() && gang.epoch == attempt.epoch);
    let is_live = gang.is_some_and(|gang| gang.members.contains_key(&member));
    Ok(Member { snapshot, key, attempt: attempt.number, is_live })
}

impl Member<'_> {
    fn nothing(&self) -> ApiError {
        let (attempt, member) = (self.attempt, self.key.member);
        let detail = format!("nothing was kept of {member} in attempt {attempt}");
        ApiError::new(NO_SCENE, detail)
            .hint("how things stand is kept when an attempt fails, or hangs and its spec wants that; its logs are there all the same")
    }

    /// Name of the node that it is on.
    fn node(&self, shared: &Shared) -> Option<String> {
        let gang = newest_gang(self.snapshot).filter(|gang| gang.epoch == self.key.epoch)?;
        let member = gang.members.get(&self.key.member)?;
        Some(Names::of(&shared.api.board).name(&member.node))
    }

    fn view(&self, shared: &Shared, reader: &Principal, mut scene: Scene) -> SceneView {
        if !sees_values(reader, &self.snapshot.job) {
            hide_values(&mut scene);
        }
        let part = |part: gangline_common::wire::scene::Part| PartView {
            name: part.name,
            ok: part.ok,
            took_ms: part.took_ms,
            text: part.text,
        };
        let stack = |stack: gangline_common::wire::scene::ProcessStack| StackView {
            pid: stack.pid,
            title: stack.title,
            of_job: stack.of_job,
            source: stack.source,
            ok: stack.ok,
            text: stack.text,
        };
        SceneView {
            job: self.snapshot.job.id.to_string(),
            attempt: self.attempt,
            member: self.key.member.to_string(),
            node: self.node(shared),
            occasion: match scene.occasion {
                Occasion::Asked => "asked",
                Occasion::Stopping => "stopping",
                Occasion::Ended => "ended",
                Occasion::Hung => "hung",
            },
            taken: scene.taken,
            took_ms: scene.took_ms,
            parts: scene.parts.into_iter().map(part).collect(),
            stacks: scene.stacks.into_iter().map(stack).collect(),
        }
    }

    async fn ask(&self, shared: &Shared, request: &AgentRequest) -> Result<Scene, ApiError> {
        let gang = newest_gang(self.snapshot);
        let member = gang.and_then(|gang| gang.members.get(&self.key.member));
        let Some(node) = member.map(|member| member.node.clone()) else {
            return Err(self.nothing());
        };
        let name = Names::of(&shared.api.board).name(&node);
        let answer = shared.api.agents.ask(&node, request).await;
        let answer = answer.map_err(|error| problem(error, &name))?;
        serde_json::from_slice(&answer).map_err(|error| {
            tracing::warn!(%node, %error, "an agent's answer is not understood");
            ApiError::new(
                AGENT_SILENT,
                format!("the answer of {} is not understood", quoted(&name)),
            )
        })
    }
}

/// Leaves the names of variables alone.
fn hide_values(scene: &mut Scene) {
    for part in scene.parts.iter_mut().filter(|part| part.name == ENVIRONMENT_PART && part.ok) {
        let name =
            |line: &str| line.split_once('=').map_or_else(String::new, |(n, _)| n.to_owned());
        let lines = part.text.lines().map(|line| format!("{}={HIDDEN}\n", name(line)));
        part.text = lines.collect();
    }
}

/// What a question to the agent of a node came to.
pub(super) fn problem(error: AskError, node: &str) -> ApiError {
    let node = quoted(node);
    let silent = |why: &str| {
        let detail = format!("the agent of {node}: {}", cleaned(why));
        ApiError::new(AGENT_SILENT, detail).hint("ask again").retry_after_s(2)
    };
    match error {
        AskError::NotConnected => {
            ApiError::new(AGENT_AWAY, format!("the agent of {node} is not connected"))
                .hint("the job runs on; ask again when the node is back (`gangline node ls`)")
                .retry_after_s(5)
        }
        AskError::Busy => {
            ApiError::new(TOO_MANY_QUESTIONS, format!("too many questions to {node} are open"))
                .retry_after_s(1)
        }
        AskError::Request(RequestError::Failed(RequestFailure { reason, text })) => match reason {
            FailureReason::Unknown => {
                ApiError::new(AGENT_TOO_OLD, format!("the agent of {node} cannot be asked"))
                    .hint("upgrade it; a running job is not disturbed by that")
            }
            FailureReason::NotHere => {
                ApiError::new(NOT_RUNNING, format!("on {node}: {}", cleaned(&text)))
                    .hint("its processes have not begun, or have ended")
            }
            FailureReason::NoAnswer | FailureReason::TooLarge => silent(&text),
        },
        AskError::Late | AskError::Request(RequestError::Timeout) => silent("no answer in time"),
        AskError::Request(error) => {
            tracing::warn!(node, %error, "a question to an agent failed");
            silent("the question failed")
        }
    }
}

#[cfg(test)]
mod tests {
    use gangline_common::wire::scene::Part;

    use super::*;

    #[test]
    fn a46_others_see_the_names_of_variables_only() {
        let part = |name: &str, text: &str| Part {
            name: name.to_owned(),
            ok: true,
            text: text.to_owned(),
            ..Part::default()
        };
        let parts = vec![part(ENVIRONMENT_PART, "A=b=c\nD=\n"), part("logs", "A=b")];
        let mut scene = Scene { parts, ..Scene::default() };
        hide_values(&mut scene);
        let texts: Vec<&str> = scene.parts.iter().map(|part| part.text.as_str()).collect();
        assert_eq!(texts, ["A=***\nD=***\n", "A=b"]);
    }
}
