//! GPUs that are held and do nothing: what agents have measured of each gang, and what its project
//! says about that. First a warning, then, where the project says so, a polite stop.
//!
//! Idle time is measured time in which no GPU of the gang was busy: where nothing is measured nobody
//! is idle. Not stored: agents count on, and say their counts again to a coordinator that has just
//! started, which then begins anew and so acts later, never earlier.

use std::collections::BTreeMap;

use gangline_common::ids::{Epoch, MemberId, NodeId};
use gangline_common::time::Timestamp;

use super::Core;
use super::accounts::Reading;
use super::audit::Actor;
use super::effect::Effects;
use super::event::UsageWord;
use super::gang::Gang;
use super::job::{JobState, Outcome};
use super::notices::About;

/// After this long a warning is given, unless the project says otherwise.
pub const WARN_AFTER_MS: u64 = 30 * 60_000;
/// The shortest times that a project may say.
pub const LEAST_MS: u64 = 60_000;

/// What a project says about idle GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdlePolicy {
    /// [`WARN_AFTER_MS`] when absent.
    pub warn_after_ms: Option<u64>,
    /// Its jobs are stopped then; never when absent.
    pub reclaim_after_ms: Option<u64>,
}

/// What is measured of one incarnation of a gang.
#[derive(Debug)]
pub(super) struct Meter {
    epoch: Epoch,
    members: BTreeMap<MemberId, Metered>,
    /// What was measured in all when a GPU was last seen busy.
    busy_at_ms: u64,
    warned: Option<Warned>,
}

/// A warning that was given.
#[derive(Debug, Clone, Copy)]
struct Warned {
    at: Timestamp,
    /// For how long the GPUs were idle then.
    idle_ms: u64,
}

/// An agent that was started again counts from 0.
#[derive(Debug, Clone, Copy, Default)]
struct Metered {
    before: Reading,
    newest: Reading,
}

impl Metered {
    fn all(self) -> Reading {
        self.before.plus(self.newest)
    }
}

impl Meter {
    fn of(epoch: Epoch) -> Meter {
        Meter { epoch, members: BTreeMap::new(), busy_at_ms: 0, warned: None }
    }

    fn all(&self) -> Reading {
        self.members.values().fold(Reading::default(), |all, member| all.plus(member.all()))
    }
}

impl Core {
    /// What is measured of a member so far.
    pub(super) fn reading(&self, gang: &Gang, member: MemberId) -> Reading {
        let meter = self.meters.get(&gang.id).filter(|meter| meter.epoch == gang.epoch);
        let metered = meter.and_then(|meter| meter.members.get(&member));
        metered.map_or_else(Reading::default, |metered| metered.all())
    }

    pub(super) fn on_usage_word(
        &mut self,
        node: &NodeId,
        word: UsageWord,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if !self.is_assigned(node, &word.key) {
            return;
        }
        let epoch = word.key.epoch;
        let meter = self.meters.entry(word.key.gang.clone()).or_insert_with(|| Meter::of(epoch));
        if meter.epoch != epoch {
            *meter = Meter::of(epoch);
        }
        let before = meter.all();
        let is_first = !meter.members.contains_key(&word.key.member);
        let metered = meter.members.entry(word.key.member).or_default();
        let Reading { measured_ms, busy_ms } = metered.newest;
        if word.reading.measured_ms < measured_ms || word.reading.busy_ms < busy_ms {
            metered.before = metered.all();
        }
        metered.newest = word.reading;
        let all = meter.all();
        // What a member had counted before it was first heard of says nothing about now.
        if all.busy_ms > before.busy_ms || is_first {
            meter.busy_at_ms = all.measured_ms;
            meter.warned = None;
        }
        self.judge_idleness(&word, now, out);
    }

    fn judge_idleness(&mut self, word: &UsageWord, now: Timestamp, out: &mut Effects) {
        let Some(meter) = self.meters.get_mut(&word.key.gang) else { return };
        let Some(gang) = self.gangs.get(&word.key.gang) else { return };
        let Some(job) = self.jobs.get(&gang.job) else { return };
        if job.state != JobState::Running {
            // Its start is no idle time.
            meter.busy_at_ms = meter.all().measured_ms;
            return;
        }
        let gpus: u64 = gang.members.values().map(|member| member.gpus.len() as u64).sum();
        let idle_ms = meter.all().measured_ms.saturating_sub(meter.busy_at_ms) / gpus.max(1);
        let policy = self.projects.get(&job.project).map(|record| record.idle).unwrap_or_default();
        let warn_after_ms = policy.warn_after_ms.unwrap_or(WARN_AFTER_MS);
        let job = job.clone();
        let minutes = idle_ms / 60_000;
        let what = format!("its {gpus} GPUs were idle for {minutes} min");
        // Counts of hours may come at once, and those of one member long after another's: what lies
        // between the warning and the end is for people, and begins with the warning.
        let pause_ms = policy.reclaim_after_ms.map(|ms| ms.saturating_sub(warn_after_ms));
        let is_over = |warned: Warned| {
            let after_ms = policy.reclaim_after_ms.zip(pause_ms);
            after_ms.is_some_and(|(reclaim_ms, pause_ms)| {
                let further_ms = idle_ms.saturating_sub(warned.idle_ms);
                idle_ms >= reclaim_ms && now.ms_since(warned.at).min(further_ms) >= pause_ms
            })
        };
        match meter.warned {
            Some(warned) if is_over(warned) => {
                let reason = format!("{what}, and project {} says to reclaim them", job.project);
                let actor = Actor { name: "gangline", from: None };
                self.audit(actor, "job.reclaim", format!("job {}", job.id), &reason, now, out);
                let actor = "gangline".to_owned();
                let outcome = Outcome::Cancelled { actor, reason };
                self.end_attempt(&job.id, outcome, "gangline", now, out);
            }
            None if idle_ms >= warn_after_ms => {
                meter.warned = Some(Warned { at: now, idle_ms });
                let then =
                    pause_ms.map(|ms| format!("; they are reclaimed in {} min", ms / 60_000));
                let reason = format!("{what}{}", then.unwrap_or_default());
                self.tell("job.idle", About::Job(&job), &reason, now, out);
            }
            Some(_) | None => {}
        }
    }
}
