//! Where the processes of a gang stand when its training hangs: asked of the agents of all members,
//! which keep the scene with the logs; and who of them is not where the others are.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::{MemberId, MemberKey, NodeId};
use gangline_common::wire::request::AgentRequest;
use gangline_common::wire::scene::Scene;
use gangline_diagnosis::stacks::{Groups, Process, sentence};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::agents::{Agents, AskError};
use crate::board::Board;
use crate::core::gang::Gang;

/// Members of one gang that are asked at a time; other questions of people find room beside them.
const AT_ONCE: usize = 8;
/// All of them together, and the wait for their turn: what waits for it, such as a restart, waits no longer.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// Before an agent that has too many questions is asked again.
const BUSY: Duration = Duration::from_millis(250);
/// Most processes of one member that are compared.
const PROCESSES: usize = 64;
/// Longest of what is said, in characters.
const SAID: usize = 600;

/// A process, as it is named.
struct Place {
    member: MemberId,
    node: Arc<str>,
    pid: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.member {
            MemberId::Head => write!(f, "the head")?,
            MemberId::Rank(rank) => write!(f, "rank {rank}")?,
        }
        write!(f, " on {} (pid {})", self.node, self.pid)
    }
}

/// Asks every member for its stacks, by a request that is answered with them, and says in words what was
/// seen. Never fails: who did not answer by then is counted.
pub(super) async fn capture(
    agents: &Agents,
    board: &Board,
    gang: &Gang,
    request: fn(MemberKey) -> AgentRequest,
    until: Instant,
) -> String {
    // Of what has ended the agent has kept what there is.
    let mut waiting = gang.members.iter().filter(|(_, member)| member.phase.holds_resources());
    let mut asking: JoinSet<(Place, Result<Scene, String>)> = JoinSet::new();
    let (mut groups, mut own) = (Groups::default(), Groups::default());
    let (mut silent, mut why) = (0_usize, None);
    loop {
        while asking.len() < AT_ONCE
            && let Some((id, member)) = waiting.next()
        {
            let key = MemberKey { gang: gang.id.clone(), epoch: gang.epoch, member: *id };
            let (agents, node) = (agents.clone(), member.node.clone());
            let found = board.node(node.as_str());
            let name = found.map_or_else(|| node.to_string(), |found| found.node.name.clone());
            let place = Place { member: *id, node: name.into(), pid: 0 };
            asking.spawn(async move {
                let asked =
                    tokio::time::timeout_at(until, one(&agents, &node, &request(key))).await;
                (place, asked.unwrap_or_else(|_| Err("no answer in time".to_owned())))
            });
        }
        let (place, scene) = match asking.join_next().await {
            Some(Ok(answer)) => answer,
            // A panic in one answer is a defect of that answer alone.
            Some(Err(_)) => {
                silent += 1;
                continue;
            }
            None => break,
        };
        match scene {
            Ok(scene) => {
                for stack in scene.stacks.iter().take(PROCESSES) {
                    let owner =
                        Place { member: place.member, node: place.node.clone(), pid: stack.pid };
                    let process = Process { owner, title: &stack.title, text: &stack.text };
                    if stack.of_job { own.add(process) } else { groups.add(process) }
                }
            }
            Err(error) => {
                silent += 1;
                why.get_or_insert_with(|| format!("{}: {error}", place.node));
            }
        }
    }
    // Services of Ray and wrappers wait as well; they count where there is nothing else.
    let seen = sentence(&own.finish()).or_else(|| sentence(&groups.finish()));
    let mut said = match seen {
        Some(seen) => format!("stacks: {seen}"),
        None => "no stacks".to_owned(),
    };
    if silent > 0 {
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        said.push_str(&format!("; {silent} members were not seen{why}"));
    }
    said.chars().filter(|c| !c.is_control()).take(SAID).collect()
}

/// Has every member's scene kept, of a gang that has failed and is kept up. Who does not answer keeps
/// it when the gang ends.
pub(super) async fn keep(agents: &Agents, gang: &Gang) {
    let until = Instant::now() + LIMIT;
    let mut waiting = gang.members.iter().filter(|(_, member)| member.phase.holds_resources());
    let mut asking = JoinSet::new();
    loop {
        while asking.len() < AT_ONCE
            && let Some((id, member)) = waiting.next()
        {
            let key = MemberKey { gang: gang.id.clone(), epoch: gang.epoch, member: *id };
            let (agents, node) = (agents.clone(), member.node.clone());
            asking.spawn(async move {
                let request = AgentRequest::KeepScene { key: key.clone(), hung: false };
                match tokio::time::timeout_at(until, one(&agents, &node, &request)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => tracing::warn!(%key, error, "its scene is not kept yet"),
                    Err(_) => tracing::warn!(%key, "its scene was not kept in time"),
                }
            });
        }
        if asking.join_next().await.is_none() {
            return;
        }
    }
}

async fn one(agents: &Agents, node: &NodeId, request: &AgentRequest) -> Result<Scene, String> {
    loop {
        match agents.ask(node, request).await {
            Ok(answer) => {
                return serde_json::from_slice(&answer)
                    .map_err(|_| "its answer is not understood".to_owned());
            }
            // Whoever waits for this has set a limit.
            Err(AskError::Busy) => tokio::time::sleep(BUSY).await,
            Err(error) => return Err(error.to_string()),
        }
    }
}
