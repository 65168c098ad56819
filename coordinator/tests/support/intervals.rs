//! GPU time as a stranger counts it: for every member from the step in which its gang had GPUs to the
//! step in which its end was known. The books of the core must say the same.

use std::collections::BTreeMap;

use gangline_common::ids::{Epoch, GangId, MemberId};
use gangline_common::time::Timestamp;
use gangline_coordinator::core::Core;
use gangline_coordinator::core::accounts::Spent;

#[derive(Default)]
pub struct Intervals {
    members: BTreeMap<(GangId, Epoch), BTreeMap<MemberId, Interval>>,
}

/// What one member holds: GPUs, and times on the boot clock in milliseconds.
#[derive(Debug)]
struct Interval {
    gpus: u64,
    begin: u64,
    end: Option<u64>,
}

impl Intervals {
    /// Looks at a core after a step, and at the lines that the step wrote.
    pub fn look(&mut self, core: &Core, lines: &[Spent], now: Timestamp) {
        for gang in core.gangs() {
            let members = self.members.entry((gang.id.clone(), gang.epoch)).or_default();
            for (id, member) in gang.members.iter().filter(|(_, member)| !member.gpus.is_empty()) {
                let gpus = member.gpus.len() as u64;
                let begin = now.boot_ms;
                let interval = members.entry(*id).or_insert(Interval { gpus, begin, end: None });
                if !member.holds() && interval.end.is_none() {
                    interval.end = Some(now.boot_ms);
                }
            }
        }
        let open = core.spent_so_far(now);
        for spent in lines.iter().chain(&open) {
            let members = &self.members[&(spent.gang.clone(), spent.epoch)];
            let time = |held: &Interval| held.gpus * (held.end.unwrap_or(now.boot_ms) - held.begin);
            let expected: u64 = members.values().map(time).sum();
            assert_eq!(spent.allocated_ms(), expected, "{spent:?} is {members:?}");
            assert_eq!(spent.classes.total_ms(), expected, "{spent:?}");
        }
        for gang in core.gangs().filter(|gang| gang.is_live()) {
            let has_gpus = gang.members.values().any(|member| !member.gpus.is_empty());
            let is_open = open.iter().any(|spent| spent.gang == gang.id);
            assert_eq!(has_gpus, is_open, "an account of {gang:?}");
        }
    }
}
