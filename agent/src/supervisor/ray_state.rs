//! What the Ray clusters whose head runs here say of themselves, for the coordinator's questions.
//!
//! Only what people look at is handed on. Environments of Ray's workers, which Ray also shows, may
//! hold secrets and stay here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gangline_common::ids::{Epoch, GangId, MemberKey};
use gangline_common::wire::ray_state::{
    ActorEntry, BundleEntry, NodeEntry, PlacementGroupEntry, RayList,
};
use gangline_common::wire::request::{FailureReason, RayStateRequest, RaySubject, RequestFailure};
use serde::Serialize;

use super::ray_api::{
    Actor, DeathCause, Listing, Node, PlacementGroup, RayApi, RayApiError, Wanted,
};
use super::ray_jobs::{end_of, member_of};
use super::ray_metrics::RayExports;
use super::spool::Spool;

/// Most entries of one answer.
const MAX_ENTRIES: u32 = 1000;
/// Longest name that is handed on, in characters.
const NAME_CHARS: usize = 200;
/// How much of a cause of death is handed on, in bytes: its end, where Python names the error.
const CAUSE_BYTES: usize = 1 << 10;
/// Most resources of one entry.
const MAX_RESOURCES: usize = 64;

type Incarnation = (GangId, Epoch);

/// The clusters that can be asked; cheap to clone.
#[derive(Clone, Default)]
pub struct RayClusters {
    inner: Arc<Mutex<BTreeMap<Incarnation, Arc<Cluster>>>>,
    /// Metrics of every member, those of ranks as well.
    pub exports: RayExports,
}

struct Cluster {
    key: MemberKey,
    spool: Arc<Spool>,
    api: RayApi,
}

/// A cluster's place among those that can be asked; given up on drop.
pub struct Listed {
    clusters: RayClusters,
    incarnation: Incarnation,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.clusters.lock().remove(&self.incarnation);
    }
}

impl RayClusters {
    pub(super) fn list(&self, key: &MemberKey, spool: Arc<Spool>, api: RayApi) -> Listed {
        let incarnation = (key.gang.clone(), key.epoch);
        let cluster = Arc::new(Cluster { key: key.clone(), spool, api });
        self.lock().insert(incarnation.clone(), cluster);
        Listed { clusters: self.clone(), incarnation }
    }

    /// The answer to one question: JSON of a `RayList`.
    pub async fn answer(&self, request: &RayStateRequest) -> Result<Vec<u8>, RequestFailure> {
        let incarnation = (request.gang.clone(), request.epoch);
        let cluster = self.lock().get(&incarnation).cloned().ok_or_else(|| RequestFailure {
            reason: FailureReason::NotHere,
            text: "no Ray head of this gang runs here".to_owned(),
        })?;
        let wanted = wanted(request)?;
        cluster.check().await?;
        match request.subject {
            RaySubject::Nodes => cluster.nodes(wanted).await,
            RaySubject::Actors => cluster.actors(wanted).await,
            RaySubject::PlacementGroups => cluster.placement_groups(wanted).await,
        }
    }

    // The map is whole after every statement, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Incarnation, Arc<Cluster>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The question as Ray is asked: bounded, and with a state that is a plain word.
fn wanted(request: &RayStateRequest) -> Result<Wanted<'_>, RequestFailure> {
    let plain = |word: &str| {
        let letter = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
        (1..=32).contains(&word.len()) && word.bytes().all(letter)
    };
    let state = request.state.as_deref();
    if state.is_some_and(|state| !plain(state)) {
        let text = "the state is not a word of Ray's".to_owned();
        return Err(RequestFailure { reason: FailureReason::Unknown, text });
    }
    Ok(Wanted { state, limit: request.limit.clamp(1, MAX_ENTRIES) })
}

impl Cluster {
    /// That the one who answers on the dashboard's port is this very head.
    async fn check(&self) -> Result<(), RequestFailure> {
        let version = self.api.version().await.map_err(no_answer)?;
        if self.spool.session_name() == Some(version.session_name) {
            return Ok(());
        }
        let text = "the head's dashboard is not up, or another cluster has its port".to_owned();
        Err(RequestFailure { reason: FailureReason::NotHere, text })
    }

    async fn nodes(&self, wanted: Wanted<'_>) -> Result<Vec<u8>, RequestFailure> {
        let nodes = self.api.list::<Node>("nodes", wanted).await.map_err(no_answer)?;
        encoded(nodes, |node| NodeEntry {
            member: self.member_of(&node),
            node_id: node.node_id,
            address: node.node_ip,
            state: node.state,
            state_message: node.state_message.map(|text| end_of(&text, CAUSE_BYTES)),
            resources: few(node.resources_total),
        })
    }

    async fn actors(&self, wanted: Wanted<'_>) -> Result<Vec<u8>, RequestFailure> {
        let (places, actors) =
            tokio::join!(self.places(), self.api.list::<Actor>("actors", wanted));
        let (places, actors) = (places?, actors.map_err(no_answer)?);
        encoded(actors, |actor| actor_entry(actor, &places))
    }

    async fn placement_groups(&self, wanted: Wanted<'_>) -> Result<Vec<u8>, RequestFailure> {
        let groups = self.api.list::<PlacementGroup>("placement_groups", wanted);
        let (places, groups) = tokio::join!(self.places(), groups);
        let (places, groups) = (places?, groups.map_err(no_answer)?);
        encoded(groups, |group| PlacementGroupEntry {
            placement_group_id: group.placement_group_id,
            name: group.name.as_deref().and_then(named),
            state: group.state,
            scheduling: group.stats.and_then(|stats| stats.scheduling_state),
            bundles: group
                .bundles
                .unwrap_or_default()
                .into_iter()
                .map(|bundle| BundleEntry {
                    index: bundle.bundle_id.bundle_index,
                    resources: few(bundle.unit_resources),
                    member: places.member(bundle.node_id.as_deref()),
                    node_id: bundle.node_id.filter(|id| !id.is_empty()),
                })
                .collect(),
        })
    }

    /// Which member each of Ray's nodes is.
    async fn places(&self) -> Result<Places, RequestFailure> {
        let nodes = self.api.nodes().await.map_err(no_answer)?;
        let place = |node: &Node| Some((node.node_id.clone(), self.member_of(node)?));
        Ok(Places(nodes.iter().filter_map(place).collect()))
    }

    fn member_of(&self, node: &Node) -> Option<String> {
        member_of(node, &self.key).map(|member| member.to_string())
    }
}

/// Members by Ray's ids of their nodes.
#[derive(Default)]
struct Places(BTreeMap<String, String>);

impl Places {
    fn member(&self, node: Option<&str>) -> Option<String> {
        self.0.get(node?).cloned()
    }
}

fn actor_entry(actor: Actor, places: &Places) -> ActorEntry {
    ActorEntry {
        actor_id: actor.actor_id,
        class: named(&actor.class_name).unwrap_or_default(),
        name: actor.name.as_deref().and_then(named),
        state: actor.state,
        member: places.member(actor.node_id.as_deref()),
        node_id: actor.node_id.filter(|id| !id.is_empty()),
        // Ray says 0 of an actor that has no process yet.
        pid: actor.pid.filter(|pid| *pid != 0),
        restarts: actor.num_restarts,
        death_cause: actor.death_cause.as_ref().map(cause),
        placement_group_id: actor.placement_group_id.filter(|id| !id.is_empty()),
        resources: few(actor.required_resources),
    }
}

fn encoded<A, B: Serialize>(
    listing: Listing<A>,
    entry: impl FnMut(A) -> B,
) -> Result<Vec<u8>, RequestFailure> {
    let entries = listing.result.into_iter().map(entry).collect();
    let list = RayList { total: listing.num_filtered, entries };
    serde_json::to_vec(&list).map_err(|error| RequestFailure {
        reason: FailureReason::NoAnswer,
        text: format!("Ray's answer cannot be written: {error}"),
    })
}

/// What went wrong, without addresses and traces: those go to the agent's own log (A48).
fn no_answer(error: RayApiError) -> RequestFailure {
    tracing::info!(%error, "Ray's state API did not answer well");
    let text = match error {
        RayApiError::Unreachable(error) if error.is_timeout() => "no answer in time".to_owned(),
        RayApiError::Unreachable(_) | RayApiError::Client(_) => {
            "the head's dashboard cannot be reached".to_owned()
        }
        RayApiError::Status { status, .. } => format!("the head's dashboard says HTTP {status}"),
        RayApiError::Malformed(_) => "an answer that is not understood".to_owned(),
        RayApiError::TooLong => "an answer that is too long".to_owned(),
    };
    RequestFailure { reason: FailureReason::NoAnswer, text }
}

fn named(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.chars().take(NAME_CHARS).collect())
}

fn few(resources: Option<BTreeMap<String, f64>>) -> BTreeMap<String, f64> {
    resources.unwrap_or_default().into_iter().take(MAX_RESOURCES).collect()
}

/// Why an actor died, in Ray's words; the name of the kind of death when it says no more.
fn cause(death: &DeathCause) -> String {
    let of = |context: &BTreeMap<String, serde_json::Value>| {
        ["error_message", "formatted_exception_string"]
            .iter()
            .find_map(|key| context.get(*key)?.as_str().filter(|text| !text.is_empty()))
            .map(|text| end_of(text, CAUSE_BYTES))
    };
    let said = death.0.values().find_map(|context| of(context.as_ref()?));
    said.or_else(|| death.0.keys().next().cloned()).unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(json: &str) -> String {
        cause(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn the_cause_of_a_death_is_what_ray_says_of_it() {
        let killed =
            r#"{"actor_died_error_context":{"error_message":"killed by `ray.kill`.","pid":1}}"#;
        assert_eq!(death(killed), "killed by `ray.kill`.");
        let raised = r#"{"creation_task_failure_context":{"serialized_exception":"gAWV",
            "formatted_exception_string":"Traceback\nValueError: x"}}"#;
        assert_eq!(death(raised), "Traceback\nValueError: x");
        assert_eq!(death(r#"{"oom_context":{"fail_immediately":true}}"#), "oom_context");
        assert_eq!(death(r#"{"oom_context":null}"#), "oom_context");
        assert_eq!(death("{}"), "unknown");
        let long = format!(r#"{{"x":{{"error_message":"{}"}}}}"#, "é".repeat(4096));
        assert!(death(&long).len() <= CAUSE_BYTES);
    }

    #[test]
    fn a_state_is_a_word_and_the_number_of_entries_is_bounded() {
        let request = |state: Option<&str>, limit| RayStateRequest {
            gang: GangId::new("g-1").unwrap(),
            epoch: Epoch { era: 1, n: 1 },
            subject: RaySubject::Actors,
            state: state.map(str::to_owned),
            limit,
        };
        let limit = |limit| wanted(&request(Some("ALIVE"), limit)).unwrap().limit;
        assert_eq!([limit(0), limit(7), limit(u32::MAX)], [1, 7, 1000]);
        for bad in ["", "alive", "A B", "A&limit=9", "A%20", &"A".repeat(33)] {
            assert!(wanted(&request(Some(bad), 1)).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_gang_that_is_not_here_is_told_so() {
        let request = RayStateRequest {
            gang: GangId::new("g-1").unwrap(),
            epoch: Epoch { era: 1, n: 1 },
            subject: RaySubject::Nodes,
            state: None,
            limit: 1,
        };
        let failure = RayClusters::default().answer(&request).await.unwrap_err();
        assert_eq!(failure.reason, FailureReason::NotHere);
    }

    /// The coordinator reads this text: a field that is renamed is a change of the protocol.
    #[test]
    fn an_answer_is_this_text() {
        let actor = Actor {
            actor_id: "a1".to_owned(),
            class_name: "A".to_owned(),
            state: "DEAD".to_owned(),
            name: Some(String::new()),
            node_id: Some("n1".to_owned()),
            pid: Some(0),
            num_restarts: 2,
            death_cause: None,
            placement_group_id: None,
            required_resources: Some(BTreeMap::from([("CPU".to_owned(), 0.1)])),
        };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let listing = Listing { num_filtered: 5, result: vec![actor] };
        assert_eq!(
            text(encoded(listing, |actor| actor_entry(actor, &Places::default())).unwrap()),
            r#"{"total":5,"entries":[{"actor_id":"a1","class":"A","name":null,"state":"DEAD","node_id":"n1","member":null,"pid":null,"restarts":2,"death_cause":null,"placement_group_id":null,"resources":{"CPU":0.1}}]}"#
        );
        let none = || Listing { num_filtered: 0, result: vec![()] };
        assert_eq!(
            text(encoded(none(), |()| NodeEntry::default()).unwrap()),
            r#"{"total":0,"entries":[{"node_id":"","member":null,"address":"","state":"","state_message":null,"resources":{}}]}"#
        );
        let group = || PlacementGroupEntry {
            bundles: vec![BundleEntry::default()],
            ..PlacementGroupEntry::default()
        };
        assert_eq!(
            text(encoded(none(), |()| group()).unwrap()),
            r#"{"total":0,"entries":[{"placement_group_id":"","name":null,"state":"","scheduling":null,"bundles":[{"index":0,"resources":{},"node_id":null,"member":null}]}]}"#
        );
    }

    #[test]
    fn answers_of_ray_are_read() {
        let actors: Listing<Actor> = serde_json::from_str(
            r#"{"total":3,"num_after_truncation":3,"num_filtered":2,"warnings":null,"result":[
                {"actor_id":"a1","class_name":"A","state":"ALIVE","job_id":"01","name":"","pid":7,
                 "node_id":"n1","num_restarts":"2","death_cause":null,"required_resources":{"CPU":0.1},
                 "placement_group_id":null,"serialized_runtime_env":"{}"},
                {"actor_id":"a2","class_name":"A","state":"PENDING_CREATION","name":null,"pid":0,
                 "node_id":null,"num_restarts":1,"required_resources":null}]}"#,
        )
        .unwrap();
        assert_eq!(actors.num_filtered, 2);
        let restarts: Vec<u64> = actors.result.iter().map(|actor| actor.num_restarts).collect();
        assert_eq!(restarts, [2, 1]);
        let groups: Listing<PlacementGroup> = serde_json::from_str(
            r#"{"total":1,"num_filtered":1,"result":[
                {"placement_group_id":"p1","name":"pgx","state":"PENDING",
                 "bundles":[{"bundle_id":{"placement_group_id":"p1","bundle_index":0},
                             "unit_resources":{"GPU":1.0},"node_id":"","label_selector":{}}],
                 "stats":{"scheduling_state":"INFEASIBLE","scheduling_attempt":1}}]}"#,
        )
        .unwrap();
        let group = groups.result.first().unwrap();
        assert_eq!(group.stats.as_ref().unwrap().scheduling_state.as_deref(), Some("INFEASIBLE"));
    }
}
