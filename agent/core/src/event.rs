//! The only inputs of the core.

use std::collections::BTreeMap;

use gangline_common::ids::{Epoch, GangId, Generation, MemberKey};

use super::assignment::{DesiredSet, GangOrder, MemberRow, Refusal, Seen};

/// Something that happened; the core learns of nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// What the ledger holds: the first event, exactly once.
    Restored(Durable),
    /// A complete desired state from the coordinator.
    Desired(DesiredSet),
    /// The supervisor says what became of a member.
    MemberChanged { key: MemberKey, change: MemberChange },
    /// Ray or an entrypoint of a gang whose head is here changed; its content is opaque.
    GangChanged { gang: GangId, epoch: Epoch },
    /// The coordinator holds every byte of the member's logs.
    LogsComplete(MemberKey),
    /// The member's files are removed, in answer to `Effect::Release`.
    Released(MemberKey),
    /// The member's files could not be removed; the core asks again later.
    ReleaseFailed(MemberKey),
    /// The agent ends and takes its members with it.
    Shutdown,
    /// The newest heartbeat that the coordinator acknowledged was sent at this time of the boot
    /// clock, in the session that began at `session_ms`.
    Contact { session_ms: u64, boot_ms: u64 },
    /// The desired state that comes next was said in the session that began at this time of the boot
    /// clock.
    Session { began_ms: u64 },
    /// About once a second: repeats what was not answered.
    Tick,
}

/// News of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// Its main process runs.
    Running { pid: u32 },
    /// Its processes are being ended.
    Stopping,
    /// No process of it is left.
    Ended,
    /// Nothing of it was started.
    Refused(Refusal),
}

/// The part of the core that outlives a restart: what the ledger stores and gives back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Durable {
    /// Generation of the newest accepted desired state.
    pub held: Generation,
    pub desired: BTreeMap<GangId, GangOrder>,
    /// Highest epoch per gang, also of gangs that are no longer listed.
    pub seen: BTreeMap<GangId, Seen>,
    /// Members that were started or refused, and not yet released.
    pub members: BTreeMap<MemberKey, MemberRow>,
}
