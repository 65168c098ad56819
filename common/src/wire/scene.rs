//! What an agent has seen of one member at a moment that matters: JSON, in the body of an answer and
//! in a file beside the member's logs. No secret that the agent knows is in it.
//!
//! Both ends skip fields that they do not know and take absent ones for empty.

use serde::{Deserialize, Serialize};

/// Name of the file among the logs of a member: how it stood when its attempt failed.
pub const SCENE_FILE: &str = "scene";
/// The same: how it stood when the training first hung in that attempt.
pub const HUNG_SCENE_FILE: &str = "scene-hung";
/// Name of the part with the variables of the member's processes, one `NAME=value` a line.
pub const ENVIRONMENT_PART: &str = "environment";
/// Longest scene, in bytes of JSON: less than an answer may have.
pub const MAX_SCENE: usize = 3 << 20;

/// Whether a file among the logs of a member is a scene, and no log.
pub fn is_scene(file: &str) -> bool {
    file == SCENE_FILE || file == HUNG_SCENE_FILE
}

/// One member, and its node around it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Scene {
    pub version: u32,
    pub job: String,
    pub attempt: u32,
    /// Gang, epoch and member, as in `GANGLINE_MARK`.
    pub mark: String,
    pub occasion: Occasion,
    /// When it was taken by the node's clock, RFC 3339.
    pub taken: String,
    pub took_ms: u64,
    pub parts: Vec<Part>,
    /// Of the member's Python processes; of all of its processes when none is Python's.
    pub stacks: Vec<ProcessStack>,
}

/// Why a scene was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occasion {
    /// Somebody asked.
    #[default]
    Asked,
    /// The gang has failed elsewhere and is about to be stopped: the member still ran.
    Stopping,
    /// The member has ended by itself: its processes are gone.
    Ended,
    /// The training goes on no more, and its spec wants to know where it stands.
    Hung,
}

/// One part, taken by itself: a part that fails or is late says so and spoils no other.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    pub name: String,
    pub ok: bool,
    pub took_ms: u64,
    pub text: String,
}

/// Where one process stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStack {
    pub pid: u32,
    /// Its command line, shortened.
    pub title: String,
    /// It runs code of the job: it is none of Ray's own services.
    pub of_job: bool,
    /// `py-spy`, or `kernel`.
    pub source: String,
    pub ok: bool,
    /// As its source prints it, or why there is nothing.
    pub text: String,
}
