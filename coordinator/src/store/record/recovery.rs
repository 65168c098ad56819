//! Records of what follows a failure: verdicts, and how the attempts of a job went so far.

use std::sync::Arc;

use gangline_common::ids::NodeId;
use serde::{Deserialize, Serialize};

use super::StopwatchV1;
use crate::core::recovery::{Again, Cause, Recovery, Rest, Verdict};

#[derive(Serialize, Deserialize)]
pub(super) struct RecoveryV1 {
    counted: u32,
    stuck: u32,
    /// The pause before the next attempt, and what of it has passed.
    rest: Option<(u64, StopwatchV1)>,
}

impl From<Recovery> for RecoveryV1 {
    fn from(recovery: Recovery) -> Self {
        let Recovery { counted, stuck, rest } = recovery;
        RecoveryV1 { counted, stuck, rest: rest.map(|rest| (rest.ms, rest.passed.into())) }
    }
}

impl From<RecoveryV1> for Recovery {
    fn from(record: RecoveryV1) -> Self {
        let RecoveryV1 { counted, stuck, rest } = record;
        let rest = rest.map(|(ms, passed)| Rest { passed: passed.into(), ms });
        Recovery { counted, stuck, rest }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct VerdictV1 {
    again: AgainV1,
    category: String,
    sub_code: String,
    node: Option<NodeId>,
    progressed: bool,
    summary: String,
    done: String,
}

#[derive(Serialize, Deserialize)]
enum AgainV1 {
    Never,
    After(CauseV1),
    Always,
}

#[derive(Serialize, Deserialize)]
enum CauseV1 {
    NodeLost,
    Hardware,
    NcclTimeout,
    Preempted,
    Rendezvous,
    Ray,
    Storage,
}

impl From<&Verdict> for VerdictV1 {
    fn from(verdict: &Verdict) -> Self {
        let cause = |cause: Cause| match cause {
            Cause::NodeLost => CauseV1::NodeLost,
            Cause::Hardware => CauseV1::Hardware,
            Cause::NcclTimeout => CauseV1::NcclTimeout,
            Cause::Preempted => CauseV1::Preempted,
            Cause::Rendezvous => CauseV1::Rendezvous,
            Cause::Ray => CauseV1::Ray,
            Cause::Storage => CauseV1::Storage,
        };
        let verdict = verdict.clone();
        VerdictV1 {
            again: match verdict.again {
                Again::Never => AgainV1::Never,
                Again::After(after) => AgainV1::After(cause(after)),
                Again::Always => AgainV1::Always,
            },
            category: verdict.category,
            sub_code: verdict.sub_code,
            node: verdict.node,
            progressed: verdict.progressed,
            summary: verdict.summary,
            done: verdict.done,
        }
    }
}

impl From<VerdictV1> for Arc<Verdict> {
    fn from(record: VerdictV1) -> Self {
        let cause = |cause| match cause {
            CauseV1::NodeLost => Cause::NodeLost,
            CauseV1::Hardware => Cause::Hardware,
            CauseV1::NcclTimeout => Cause::NcclTimeout,
            CauseV1::Preempted => Cause::Preempted,
            CauseV1::Rendezvous => Cause::Rendezvous,
            CauseV1::Ray => Cause::Ray,
            CauseV1::Storage => Cause::Storage,
        };
        Arc::new(Verdict {
            again: match record.again {
                AgainV1::Never => Again::Never,
                AgainV1::After(after) => Again::After(cause(after)),
                AgainV1::Always => Again::Always,
            },
            category: record.category,
            sub_code: record.sub_code,
            node: record.node,
            progressed: record.progressed,
            summary: record.summary,
            done: record.done,
        })
    }
}
