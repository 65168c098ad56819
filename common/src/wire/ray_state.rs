//! What a gang's own Ray says of itself, as its head's agent hands it on: JSON in the body of an
//! answer. Only what is shown is in it; environments of Ray's workers are not.
//!
//! Both ends skip fields that they do not know and take absent ones of an entry for empty.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A list of one subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RayList<T> {
    /// How many there are of the wanted state, shown or not.
    pub total: u64,
    pub entries: Vec<T>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeEntry {
    pub node_id: String,
    /// `head` or a rank; absent when it is no member of the gang.
    pub member: Option<String>,
    pub address: String,
    pub state: String,
    pub state_message: Option<String>,
    pub resources: BTreeMap<String, f64>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ActorEntry {
    pub actor_id: String,
    pub class: String,
    pub name: Option<String>,
    pub state: String,
    pub node_id: Option<String>,
    pub member: Option<String>,
    pub pid: Option<u32>,
    pub restarts: u64,
    pub death_cause: Option<String>,
    pub placement_group_id: Option<String>,
    pub resources: BTreeMap<String, f64>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PlacementGroupEntry {
    pub placement_group_id: String,
    pub name: Option<String>,
    pub state: String,
    /// Ray's word for how far the scheduling has come, such as `INFEASIBLE`.
    pub scheduling: Option<String>,
    pub bundles: Vec<BundleEntry>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BundleEntry {
    pub index: u32,
    pub resources: BTreeMap<String, f64>,
    pub node_id: Option<String>,
    pub member: Option<String>,
}
