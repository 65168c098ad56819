//! What the coordinator asks of one agent, and the answer in pieces, on a stream of their own.
//!
//! See `crate::request` for who may send how much.

use serde::{Deserialize, Serialize};

use super::frame::{Frame, Kind};
use super::v1::framed_one;
use super::{WireError, codec};
use crate::ids::{Epoch, GangId, MemberKey};

/// A question to one agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentRequest {
    /// What a gang's own Ray says of itself; only the agent of its head knows. The answer is the
    /// JSON of `wire::ray_state`.
    RayState(RayStateRequest),
    /// The metrics of the node as Prometheus reads them: text 0.0.4.
    NodeMetrics,
    /// What Ray exports of one member that runs on the node, untouched.
    RayMetrics { key: MemberKey },
    /// The stacks of a member that runs on the node: JSON of `wire::scene::Scene` with no other part.
    Stacks { key: MemberKey },
    /// Everything that a person would ask for of a member that runs on the node: JSON of
    /// `wire::scene::Scene`.
    Scene { key: MemberKey },
    /// The training checkpoints in a directory: JSON of a list of `wire::checkpoint`.
    Checkpoints { directory: String },
    /// Make a simulated GPU of the node fail: a sentence about what was done.
    Inject(Fault),
    /// As `Scene`, and it is left among the member's logs, unless one of that kind is there: of one
    /// that hangs, or of one whose attempt has failed. The answer is as short as that of `Stacks`,
    /// or empty when one was there.
    KeepScene { key: MemberKey, hung: bool },
    /// Leave a text on why an attempt failed beside its logs, in the job's directory, which only nodes
    /// see. The answer is empty.
    WriteReport { directory: String, attempt: u32, text: String },
}

/// What a simulated GPU can be made to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// Raise a critical error.
    Xid { code: u32 },
    /// One of its NVLinks goes down.
    Link,
    /// It is lost: every call on it fails.
    Kill,
    /// All simulated GPUs are well again.
    Heal,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RayStateRequest {
    pub gang: GangId,
    pub epoch: Epoch,
    pub subject: RaySubject,
    /// Only what is in this state, in Ray's own word.
    pub state: Option<String>,
    /// Most entries of the answer.
    pub limit: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RaySubject {
    Nodes,
    Actors,
    PlacementGroups,
}

/// First frame of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AnswerHead {
    /// So many bytes follow in `AnswerPiece` frames, then the stream ends.
    Body { length: u32 },
    /// Nothing follows.
    Failed(RequestFailure),
}

/// Why an agent has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFailure {
    pub reason: FailureReason,
    /// For people.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureReason {
    /// The agent does not know this question: it is older than the coordinator.
    Unknown,
    /// What was asked about is not here, or not yet.
    NotHere,
    /// Who had to be asked did not answer well.
    NoAnswer,
    /// The answer is over the limit.
    TooLarge,
}

/// A part of an answer's body, in order; never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerPiece {
    #[serde(with = "codec::bytes")]
    pub bytes: Vec<u8>,
}

framed_one!(AgentRequest, Request);
framed_one!(AnswerHead, AnswerHead);
framed_one!(AnswerPiece, AnswerPiece);
