//! The bugs that can be planted, one at a time, each with the words that people use for it.

use gangline_agent_core::planted::{self as agent, Planted as InAgent};
use gangline_core::planted::{self as coordinator, Planted as InCoordinator};

use crate::world::DriverBug;

/// A bug in one of the cores, or in the code around one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    Coordinator(InCoordinator),
    Agent(InAgent),
    Driver(DriverBug),
}

/// Every bug, with its name.
pub const BUGS: [(&str, Bug); 14] = [
    ("skip fencing: start below the highest epoch", Bug::Agent(InAgent::LowerEpochAccepted)),
    ("act before commit", Bug::Driver(DriverBug::ActBeforeCommit)),
    ("act before the ledger is written", Bug::Driver(DriverBug::ActBeforeLedger)),
    ("free a GPU before its process is reaped", Bug::Agent(InAgent::EndedBeforeReaped)),
    ("start a member that the ledger does not have", Bug::Agent(InAgent::StartNotStored)),
    ("take absence for a stop", Bug::Agent(InAgent::AbsenceIsStop)),
    ("forget a generation", Bug::Coordinator(InCoordinator::GenerationForgotten)),
    ("start attempt n+1 beside a lost node", Bug::Coordinator(InCoordinator::LostIsStopped)),
    ("drop a Stop too early", Bug::Coordinator(InCoordinator::StopDroppedEarly)),
    ("place on a cordoned node", Bug::Coordinator(InCoordinator::CordonIgnored)),
    ("remember a cordon without storing it", Bug::Coordinator(InCoordinator::CordonNotStored)),
    ("believe a report of an older generation", Bug::Coordinator(InCoordinator::OldReportBelieved)),
    ("forget a cancel during a rollback", Bug::Coordinator(InCoordinator::CancelForgotten)),
    ("measure time limits by the wall clock", Bug::Coordinator(InCoordinator::LimitByWallClock)),
];

impl Bug {
    /// Plants the bug for every core that this thread steps; `None` takes it out.
    pub fn plant(bug: Option<Bug>) {
        coordinator::plant(match bug {
            Some(Bug::Coordinator(bug)) => Some(bug),
            Some(Bug::Agent(_) | Bug::Driver(_)) | None => None,
        });
        agent::plant(match bug {
            Some(Bug::Agent(bug)) => Some(bug),
            Some(Bug::Coordinator(_) | Bug::Driver(_)) | None => None,
        });
    }

    /// What a run's settings need to be told.
    pub fn of_driver(self) -> Option<DriverBug> {
        match self {
            Bug::Driver(bug) => Some(bug),
            Bug::Coordinator(_) | Bug::Agent(_) => None,
        }
    }
}
