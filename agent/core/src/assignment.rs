//! What the coordinator orders and what the agent knows of each member.

use std::fmt;
use std::time::Duration;

use gangline_common::ids::{Epoch, GangId, Generation, GpuId, MemberId, MemberKey};
use gangline_common::time::Timestamp;

use super::planted::{Planted, is_planted};

/// A complete desired state of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredSet {
    pub generation: Generation,
    pub gangs: Vec<GangOrder>,
}

/// What one gang shall do on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangOrder {
    pub gang: GangId,
    pub epoch: Epoch,
    pub order: Order,
}

/// Run an incarnation, or stop it and every earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    Run(RunOrder),
    Stop,
}

/// The part of an assignment that is decided on; the rest stays with the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOrder {
    pub members: Vec<MemberOrder>,
    /// Time between the polite request to end and the forced end.
    pub grace: Duration,
    /// Only so long after the last contact may a member start: later, the coordinator may count on
    /// it that none runs here. No limit when absent.
    pub contact_within: Option<Duration>,
    pub digest: Digest,
}

/// SHA-256 of a whole assignment: tells two contents of one generation apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    /// Enough to tell two apart in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "#{a:02x}{b:02x}{c:02x}{d:02x}")
    }
}

/// One member of a gang that runs on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberOrder {
    pub member: MemberId,
    pub gpus: Vec<GpuId>,
}

impl GangOrder {
    pub fn key(&self, member: MemberId) -> MemberKey {
        MemberKey { gang: self.gang.clone(), epoch: self.epoch, member }
    }

    /// True when this order speaks about the member: runs its incarnation, or stops it.
    pub fn covers(&self, key: &MemberKey) -> bool {
        self.gang == key.gang
            && match self.order {
                Order::Run(_) => self.epoch == key.epoch,
                Order::Stop => self.epoch >= key.epoch,
            }
    }

    /// True when the member must end: it is ordered to, or a later incarnation takes its place.
    pub fn ends(&self, key: &MemberKey) -> bool {
        self.gang == key.gang
            && match self.order {
                Order::Run(_) => self.epoch > key.epoch,
                Order::Stop => self.epoch >= key.epoch,
            }
    }
}

/// The newest incarnation of a gang that this node was ever told about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub epoch: Epoch,
    /// It was stopped, or has run and is forgotten: it must never start here (again).
    pub closed: bool,
    /// Newest generation that listed the gang: the oldest ones are forgotten first.
    pub listed: Generation,
}

/// What the core knows of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub gpus: Vec<GpuId>,
    pub grace: Duration,
    pub phase: Phase,
    /// When `Stop` was last asked for; absent when it never was.
    pub stop_sent: Option<Timestamp>,
    pub release: Release,
}

/// Where a member stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Accepted; a GPU or an earlier incarnation must come free first. Nothing was started.
    Waiting,
    /// Started by an earlier run of this agent; its state is not known yet.
    Adopting,
    Starting,
    Running {
        pid: u32,
    },
    Stopping,
    Ended(End),
    Refused(Refusal),
}

/// How far a member that ended is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// A stop of the coordinator came first.
    pub asked: bool,
    /// The agent was told to end and took the member along: how it exited says nothing about it.
    pub taken_along: bool,
    /// Processes had been started; false when the member was called off while it waited.
    pub ran: bool,
    /// The coordinator holds all of its logs.
    pub logs_complete: bool,
}

/// Why a member was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    PortBusy {
        port: u16,
    },
    GpuHeld {
        gpu: GpuId,
        by: MemberKey,
    },
    StaleEpoch {
        highest: Epoch,
    },
    Impossible {
        reason: String,
    },
    /// The check before the start found the node unfit.
    Unfit {
        reason: String,
    },
}

/// Whether the files of a member that is over are being removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    Kept,
    Asked,
    RetryAt(Timestamp),
}

/// A member as the ledger keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRow {
    pub gpus: Vec<GpuId>,
    pub grace: Duration,
    /// Absent when the member was started.
    pub refused: Option<Refusal>,
}

impl Member {
    /// A member that was accepted and waits for its start.
    pub fn waiting(gpus: Vec<GpuId>, grace: Duration) -> Self {
        Member { gpus, grace, phase: Phase::Waiting, stop_sent: None, release: Release::Kept }
    }

    /// A member as it comes back from the ledger.
    pub fn restored(row: MemberRow) -> Self {
        let phase = row.refused.map_or(Phase::Adopting, Phase::Refused);
        Member { phase, ..Member::waiting(row.gpus, row.grace) }
    }

    /// What the ledger keeps; `None` while nothing of the member needs to outlive the agent.
    pub fn row(&self) -> Option<MemberRow> {
        let refused = match &self.phase {
            Phase::Waiting => return None,
            Phase::Ended(end) if !end.ran => return None,
            Phase::Starting if is_planted(Planted::StartNotStored) => return None,
            Phase::Refused(refusal) => Some(refusal.clone()),
            Phase::Adopting
            | Phase::Starting
            | Phase::Running { .. }
            | Phase::Stopping
            | Phase::Ended(_) => None,
        };
        Some(MemberRow { gpus: self.gpus.clone(), grace: self.grace, refused })
    }

    /// Processes of the member exist, or may exist: it holds its GPUs.
    pub fn is_live(&self) -> bool {
        match self.phase {
            Phase::Adopting | Phase::Starting | Phase::Running { .. } | Phase::Stopping => true,
            Phase::Waiting | Phase::Ended(_) | Phase::Refused(_) => false,
        }
    }

    /// Live, and on its way to its end.
    pub fn is_ending(&self) -> bool {
        self.is_live() && (self.stop_sent.is_some() || self.phase == Phase::Stopping)
    }

    /// Nothing is left to wait for: no process, and no log that only this node has.
    pub fn is_settled(&self) -> bool {
        match &self.phase {
            Phase::Ended(end) => end.logs_complete,
            Phase::Refused(_) => true,
            Phase::Waiting
            | Phase::Adopting
            | Phase::Starting
            | Phase::Running { .. }
            | Phase::Stopping => false,
        }
    }
}
