//! The audit log as decisions see it: who did what to what, and from where. An entry is part of the
//! transaction of the change that it tells of; the store numbers and chains them.

use std::net::IpAddr;

use gangline_common::time::Timestamp;

use super::Core;
use super::credential::Principal;
use super::effect::{Effects, Write};

/// Longest `detail`, in characters.
const DETAIL_LIMIT: usize = 1024;

/// One act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    pub wall_ms: u64,
    /// User, or `gangline` for the coordinator itself.
    pub actor: String,
    /// Address of the request; absent for what came from no request.
    pub source: Option<IpAddr>,
    /// Such as `job.submit`.
    pub action: String,
    /// Such as `job j-7f3k2`.
    pub object: String,
    /// What changed; never a secret.
    pub detail: String,
}

/// Who acts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Actor<'a> {
    pub name: &'a str,
    pub from: Option<IpAddr>,
}

impl<'a> From<&'a Principal> for Actor<'a> {
    fn from(principal: &'a Principal) -> Self {
        Actor { name: &principal.user, from: principal.from }
    }
}

impl Core {
    /// Adds an entry, in the same transaction as the change that it tells of.
    pub(super) fn audit<'a>(
        &mut self,
        actor: impl Into<Actor<'a>>,
        action: &str,
        object: String,
        detail: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let actor = actor.into();
        let entry = AuditEntry {
            wall_ms: now.wall_ms,
            actor: actor.name.to_owned(),
            source: actor.from,
            action: action.to_owned(),
            object,
            detail: detail.chars().take(DETAIL_LIMIT).collect(),
        };
        self.put(Write::Audit(entry), out);
    }
}
