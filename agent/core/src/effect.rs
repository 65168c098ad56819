//! The only outputs of the core: plain data that the driver carries out without choices.

use std::time::Duration;

use gangline_common::ids::MemberKey;

use super::event::Durable;

/// What one or several steps want done.
///
/// `ledger` is carried out first and must be durable before the first entry of `list` is touched;
/// of several writes only the newest matters. `list` is carried out in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effects {
    pub ledger: Option<Durable>,
    pub list: Vec<Effect>,
}

impl Effects {
    /// Nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ledger.is_none() && self.list.is_empty()
    }
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Start the member's processes.
    Start(MemberKey),
    /// Find the member of an earlier run of the agent again, or what is left of it.
    Adopt(MemberKey),
    /// The assignment of a live member says something new.
    Update(MemberKey),
    /// End the member's processes: politely, then by force after `grace`.
    Stop { key: MemberKey, grace: Duration },
    /// Remove the member's files; answered by `Released` or `ReleaseFailed`.
    Release(MemberKey),
    /// The report differs from the last one.
    ReportChanged,
    /// The coordinator broke the protocol: close the session and keep what is held.
    ProtocolError(String),
    /// An event that should not exist and was ignored.
    Warn(String),
}
