//! Gangs: the all-or-nothing set of members, its allocation, and what each member is doing.

use std::collections::BTreeMap;

use gangline_common::ids::{Epoch, GangId, GpuId, JobId, MemberId, NodeId, PortBlock};
use gangline_common::time::Timestamp;

use super::job::Addresses;

/// One incarnation of a gang; the record is overwritten by the next epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang {
    pub id: GangId,
    /// The job that owns it; a standing cluster is one too.
    pub job: JobId,
    pub attempt: u32,
    pub epoch: Epoch,
    pub state: GangState,
    /// Since when the gang is in this state.
    pub since: Timestamp,
    pub members: BTreeMap<MemberId, Member>,
    pub addresses: Addresses,
    /// What its members held is kept for the job's next attempt as they end.
    pub keeps: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GangState {
    Starting,
    Ready,
    Stopping,
    /// Every member has ended and nothing is allocated.
    Stopped,
}

impl GangState {
    pub fn word(self) -> &'static str {
        match self {
            GangState::Starting => "starting",
            GangState::Ready => "ready",
            GangState::Stopping => "stopping",
            GangState::Stopped => "stopped",
        }
    }
}

/// One member: its share of the allocation, and its phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub node: NodeId,
    pub gpus: Vec<GpuId>,
    pub cpus_milli: u32,
    pub memory_bytes: u64,
    /// Whether no other gang may have a rank on its node.
    pub exclusive: bool,
    pub ports: PortBlock,
    pub phase: Phase,
    /// It has ended, and its share is kept for the job's next attempt.
    pub kept: bool,
}

impl Member {
    /// Whether its share is allocated: nobody else may have it.
    pub fn holds(&self) -> bool {
        self.kept || self.phase.holds_resources()
    }
}

/// What is known of a member's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Committed; its agent has said nothing yet.
    Assigned,
    Starting,
    Running {
        pid: u32,
    },
    Stopping,
    /// Evidence that no process is left.
    Ended(End),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub how: EndHow,
    /// A Stop of ours came first.
    pub asked: bool,
    pub last_output: String,
    pub logs_complete: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndHow {
    Exited {
        code: i32,
    },
    Signalled {
        signal: i32,
    },
    Failed {
        reason: String,
    },
    /// Never started, by the agent's own word.
    Refused {
        reason: String,
        busy_port: Option<u16>,
    },
    /// Never started: the check before the start found the node unfit.
    Unfit {
        reason: String,
    },
    /// Its node is gone, and nothing of it can run there any more: nobody has seen its end.
    GivenUp {
        reason: String,
    },
}

impl End {
    /// The end as a sentence fragment: "exited with code 1".
    pub fn sentence(&self) -> String {
        match &self.how {
            EndHow::Exited { code } => format!("exited with code {code}"),
            EndHow::Signalled { signal } => format!("was killed by signal {signal}"),
            EndHow::Failed { reason } | EndHow::GivenUp { reason } => format!("failed: {reason}"),
            EndHow::Refused { reason, .. } | EndHow::Unfit { reason } => {
                format!("was not started: {reason}")
            }
        }
    }

    pub fn is_success(&self) -> bool {
        self.how == EndHow::Exited { code: 0 }
    }
}

impl Phase {
    /// Whether processes of the member may exist: until they do not its share stays allocated.
    pub fn holds_resources(&self) -> bool {
        !matches!(self, Phase::Ended(_))
    }
}

impl Gang {
    /// Its ranks: the number of its nodes.
    pub fn ranks(&self) -> u32 {
        u32::try_from(self.addresses.ranks.len()).unwrap_or(u32::MAX)
    }

    pub fn is_live(&self) -> bool {
        self.state != GangState::Stopped
    }

    /// Members on one node.
    pub fn members_on<'a>(
        &'a self,
        node: &'a NodeId,
    ) -> impl Iterator<Item = (MemberId, &'a Member)> {
        self.members
            .iter()
            .filter(move |(_, member)| member.node == *node)
            .map(|(id, member)| (*id, member))
    }

    /// Whether a member is on the node, and has this GPU if one is named.
    pub fn uses(&self, node: &NodeId, gpu: Option<&GpuId>) -> bool {
        self.members_on(node).any(|(_, member)| gpu.is_none_or(|gpu| member.gpus.contains(gpu)))
    }

    /// The nodes of the gang, each once, in order.
    pub fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.members.values().map(|m| m.node.clone()).collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }
}
