//! What must hold after every step, as code; named as in the design's reliability page.

use std::collections::{BTreeMap, BTreeSet};

use gangline_common::ids::{Epoch, GangId, Generation, GpuId, JobId, MemberId, NodeId};

use super::Core;
use super::gang::GangState;
use super::job::{GuestPhase, JobState, Launcher};

/// Every broken invariant of `core`, as a sentence. Empty when all hold.
pub fn violations(core: &Core) -> Vec<String> {
    let mut found = Vec::new();
    one_gang_per_gpu(core, &mut found);
    all_or_nothing(core, &mut found);
    whole_nodes_are_not_shared(core, &mut found);
    ports_are_disjoint(core, &mut found);
    states_agree(core, &mut found);
    guests_agree(core, &mut found);
    indexes_agree(core, &mut found);
    nothing_is_orphaned(core, &mut found);
    secrets_are_there(core, &mut found);
    waiting_is_sound(core, &mut found);
    accounts_are_open(core, &mut found);
    found.extend(core.forgotten_fits());
    found.extend(core.drifted_capacity());
    found
}

/// An account is of a gang that is not gone, and what is left of it is what its shares do not say.
fn accounts_are_open(core: &Core, found: &mut Vec<String>) {
    for account in core.accounts.values() {
        let gang = core.gangs.get(&account.gang).filter(|gang| gang.is_live());
        let Some(gang) = gang.filter(|gang| gang.epoch == account.epoch) else {
            found.push(format!("account: {} {} is gone", account.gang, account.epoch));
            continue;
        };
        for (id, member) in gang.members.iter().filter(|(_, member)| !member.gpus.is_empty()) {
            if account.shares.contains_key(id) == member.holds() {
                found.push(format!("account: {} of {} is {:?}", id, gang.id, member.phase));
            }
        }
    }
}

/// What keeps a job from starting is there, and its clocks go in their states only.
fn waiting_is_sound(core: &Core, found: &mut Vec<String>) {
    for job in core.jobs.values() {
        if job.eligible.is_some() && job.state != JobState::Pending
            || job.running.is_some() != matches!(job.state, JobState::Running | JobState::Held)
            || job.hold.is_some() && !job.is_queued()
        {
            found.push(format!("waiting: {} is {} but {job:?}", job.id, job.state.word()));
        }
        for id in &job.waits_for {
            let other = core.jobs.get(id).filter(|other| !other.state.is_terminal());
            if job.state != JobState::Pending || other.is_none_or(|o| o.sequence >= job.sequence) {
                found.push(format!("waiting: {} waits for {id}", job.id));
            }
        }
    }
    let indexed = core.waited_for.iter().map(|(id, waiting)| (id, waiting.iter().collect()));
    let (indexed, expected) = (indexed.collect::<Vec<_>>(), core.waiting_now());
    if indexed != expected {
        found.push(format!("index: waiting {indexed:?}, expected {expected:?}"));
    }
}

/// A job that has not ended can be started: its secrets have not gone.
fn secrets_are_there(core: &Core, found: &mut Vec<String>) {
    for job in core.live_jobs.iter().filter_map(|id| core.jobs.get(id)) {
        if core.secrets_of(job).is_none() {
            found.push(format!("{} has lost a secret", job.id));
        }
    }
}

/// I1 (the coordinator's half): no GPU is allocated twice.
fn one_gang_per_gpu(core: &Core, found: &mut Vec<String>) {
    let mut holders: BTreeMap<&GpuId, &GangId> = BTreeMap::new();
    for gang in core.gangs.values().filter(|gang| gang.is_live()) {
        for member in gang.members.values().filter(|m| m.holds()) {
            for gpu in &member.gpus {
                if let Some(other) = holders.insert(gpu, &gang.id) {
                    found.push(format!("I1: {gpu} is held by {other} and {}", gang.id));
                }
            }
        }
    }
}

/// I2: a live gang has all its members.
fn all_or_nothing(core: &Core, found: &mut Vec<String>) {
    for gang in core.gangs.values().filter(|gang| gang.is_live()) {
        let Some(job) = core.jobs.get(&gang.job) else {
            found.push(format!("I2: {} has no job", gang.id));
            continue;
        };
        let head = usize::from(job.request.launcher == Launcher::Ray);
        let size = job.request.nnodes..=job.request.nnodes_max;
        if !size.contains(&gang.ranks()) || gang.members.len() != gang.ranks() as usize + head {
            found.push(format!("I2: {} has {} members", gang.id, gang.members.len()));
        }
    }
}

/// A gang that has a node to itself has it to itself.
fn whole_nodes_are_not_shared(core: &Core, found: &mut Vec<String>) {
    let mut on_node: BTreeMap<&NodeId, (BTreeSet<&GangId>, bool)> = BTreeMap::new();
    for gang in core.gangs.values().filter(|gang| gang.is_live()) {
        let ranks = gang.members.iter().filter(|(id, _)| **id != MemberId::Head);
        for (_, member) in ranks.filter(|(_, member)| member.holds()) {
            let (gangs, exclusive) = on_node.entry(&member.node).or_default();
            gangs.insert(&gang.id);
            *exclusive |= member.exclusive;
        }
    }
    for (node, (gangs, exclusive)) in on_node {
        if exclusive && gangs.len() > 1 {
            found.push(format!("exclusive: {node} is shared by {gangs:?}"));
        }
    }
}

/// Port blocks of one network namespace do not overlap.
fn ports_are_disjoint(core: &Core, found: &mut Vec<String>) {
    let mut blocks = BTreeMap::<_, Vec<_>>::new();
    for gang in core.gangs.values().filter(|gang| gang.is_live()) {
        for member in gang.members.values().filter(|m| m.holds()) {
            let inventory = core.nodes.get(&member.node).and_then(|n| n.inventory.as_ref());
            if let Some(inventory) = inventory {
                blocks.entry(inventory.network()).or_default().push(member.ports);
            }
        }
    }
    for taken in blocks.values_mut() {
        taken.sort();
        for pair in taken.windows(2) {
            if let [a, b] = pair
                && a.overlaps(b)
            {
                found.push(format!("ports: {a:?} and {b:?} overlap"));
            }
        }
    }
}

/// A job's state and its gang's agree.
fn states_agree(core: &Core, found: &mut Vec<String>) {
    for job in core.jobs.values().filter(|job| job.cluster.is_none()) {
        let gang = core.gangs.get(&job.gang).map(|gang| gang.state);
        let fits = match job.state {
            JobState::Pending => matches!(gang, None | Some(GangState::Stopped)),
            JobState::Starting => {
                matches!(gang, Some(GangState::Starting | GangState::Ready))
            }
            JobState::Running | JobState::Held => matches!(gang, Some(GangState::Ready)),
            JobState::Stopping => matches!(gang, Some(GangState::Stopping)),
            // A lost node may keep its share after the job has ended.
            JobState::Succeeded | JobState::Failed | JobState::Cancelled | JobState::Timeout => {
                matches!(gang, None | Some(GangState::Stopped | GangState::Stopping))
            }
        };
        if !fits {
            found.push(format!("state: {} is {} and its gang {gang:?}", job.id, job.state.word()));
        }
    }
}

/// A guest's state and its part of the cluster agree, and the parts fit into the cluster.
fn guests_agree(core: &Core, found: &mut Vec<String>) {
    let mut taken: BTreeMap<(&GangId, u32), u32> = BTreeMap::new();
    let mut live: BTreeMap<&GangId, BTreeSet<&JobId>> = BTreeMap::new();
    for job in core.jobs.values().filter(|job| job.cluster.is_some()) {
        let attempt = core.attempts.get(&(job.id.clone(), job.attempts));
        let phase = attempt.and_then(|a| a.guest.as_ref()).map(|guest| guest.phase);
        let fits = match job.state {
            JobState::Pending => matches!(phase, None | Some(GuestPhase::Over)),
            JobState::Starting => {
                matches!(phase, Some(GuestPhase::Preparing | GuestPhase::Running))
            }
            JobState::Running => phase == Some(GuestPhase::Running),
            JobState::Stopping => {
                matches!(phase, Some(GuestPhase::Stopping | GuestPhase::Sweeping))
            }
            JobState::Held => false,
            // A lost node may still have something of it.
            JobState::Succeeded | JobState::Failed | JobState::Cancelled | JobState::Timeout => {
                matches!(phase, None | Some(GuestPhase::Sweeping | GuestPhase::Over))
            }
        };
        if !fits {
            found.push(format!("guest: {} is {} but {phase:?}", job.id, job.state.word()));
        }
        let Some(guest) = attempt.and_then(|a| a.guest.as_ref()).filter(|g| g.is_live()) else {
            continue;
        };
        live.entry(&job.gang).or_default().insert(&job.id);
        let gang = core.gangs.get(&job.gang);
        if gang.is_none_or(|gang| !gang.is_live() || attempt.is_none_or(|a| a.epoch != gang.epoch))
        {
            found.push(format!("guest: {} outlives its cluster", job.id));
        }
        let swept = |rank| {
            guest.phase == GuestPhase::Sweeping && guest.done.contains(&MemberId::Rank(rank))
        };
        for share in guest.shares.iter().filter(|share| !swept(share.rank)) {
            *taken.entry((&job.gang, share.rank)).or_default() += share.gpus;
        }
    }
    for ((gang, rank), gpus) in taken {
        let member = core.gangs.get(gang).and_then(|g| g.members.get(&MemberId::Rank(rank)));
        if member.is_none_or(|member| member.gpus.len() < gpus as usize) {
            found.push(format!("guest: {gpus} GPUs of rank {rank} of {gang} are taken"));
        }
    }
    let indexed: BTreeMap<&GangId, BTreeSet<&JobId>> =
        core.guests.iter().map(|(gang, jobs)| (gang, jobs.iter().collect())).collect();
    if indexed != live {
        found.push(format!("index: guests {indexed:?}, expected {live:?}"));
    }
}

/// Derived indexes equal what they are derived from.
fn indexes_agree(core: &Core, found: &mut Vec<String>) {
    let pending: BTreeSet<&JobId> =
        core.jobs.values().filter(|j| j.state == JobState::Pending).map(|j| &j.id).collect();
    let queued: BTreeSet<&JobId> = core.queue.ids().collect();
    if pending != queued {
        found.push(format!("index: queue {queued:?} but pending {pending:?}"));
    }
    let timed: BTreeSet<&JobId> =
        core.jobs.values().filter(|job| job.is_timed()).map(|job| &job.id).collect();
    if !core.timed_jobs.iter().eq(timed.iter().copied()) {
        found.push(format!("index: timed {:?}, expected {timed:?}", core.timed_jobs));
    }
    let mut writers: BTreeMap<&String, BTreeSet<&JobId>> = BTreeMap::new();
    for job in core.jobs.values() {
        if let Some(directory) = &job.request.checkpoint_directory {
            writers.entry(directory).or_default().insert(&job.id);
        }
    }
    let indexed = core.writers.iter().map(|(directory, jobs)| (directory, jobs.iter().collect()));
    if !writers.into_iter().eq(indexed) {
        found.push(format!("index: writers of checkpoint directories {:?}", core.writers));
    }
    for (listed, state) in
        [(&core.starting_gangs, GangState::Starting), (&core.stopping_gangs, GangState::Stopping)]
    {
        let gangs = core.gangs.values().filter(|gang| gang.state == state);
        let expected: BTreeSet<&GangId> = gangs.map(|gang| &gang.id).collect();
        if !listed.iter().eq(expected.iter().copied()) {
            found.push(format!("index: {state:?} {listed:?}, expected {expected:?}"));
        }
    }
    let mut on_node: BTreeMap<&NodeId, BTreeSet<&GangId>> = BTreeMap::new();
    for gang in core.gangs.values().filter(|gang| gang.is_live()) {
        for member in gang.members.values() {
            on_node.entry(&member.node).or_default().insert(&gang.id);
        }
    }
    for (node, gangs) in &core.on_node {
        let expected = on_node.remove(node).unwrap_or_default();
        if !gangs.iter().eq(expected.iter().copied()) {
            found.push(format!("index: {node} lists {gangs:?}, expected {expected:?}"));
        }
    }
    if !on_node.is_empty() {
        found.push(format!("index: nodes without entry: {on_node:?}"));
    }
}

/// What belongs to a job goes with it.
fn nothing_is_orphaned(core: &Core, found: &mut Vec<String>) {
    let gone = |job: &JobId| !core.jobs.contains_key(job);
    for (job, number) in core.attempts.keys().filter(|(job, _)| gone(job)) {
        found.push(format!("orphan: attempt {number} of {job}"));
    }
    for gang in core.gangs.values().filter(|gang| gone(&gang.job)) {
        found.push(format!("orphan: {} of {}", gang.id, gang.job));
    }
    for record in core.idempotency.values() {
        if JobId::new(record.made.clone()).is_ok_and(|job| gone(&job)) {
            found.push(format!("orphan: a remembered request made {}", record.made));
        }
    }
}

/// What only grows or never changes, compared over time: take one before and one after a step.
#[derive(Debug, Clone, Default)]
pub struct Watermarks {
    epochs: BTreeMap<GangId, Epoch>,
    stopped: BTreeSet<GangId>,
    generations: BTreeMap<NodeId, Generation>,
    terminal: BTreeMap<JobId, JobState>,
    jobs: BTreeSet<JobId>,
}

impl Watermarks {
    pub fn of(core: &Core) -> Self {
        Watermarks {
            epochs: core.gangs.values().map(|g| (g.id.clone(), g.epoch)).collect(),
            stopped: core
                .gangs
                .values()
                .filter(|gang| !gang.is_live())
                .map(|gang| gang.id.clone())
                .collect(),
            generations: core.nodes.values().map(|n| (n.id.clone(), n.generation)).collect(),
            terminal: core
                .jobs
                .values()
                .filter(|job| job.state.is_terminal())
                .map(|job| (job.id.clone(), job.state))
                .collect(),
            jobs: core.jobs.keys().cloned().collect(),
        }
    }

    /// I3, I5, I6 and the growth of generations, from `self` (before) to `after`.
    pub fn violations(&self, after: &Watermarks) -> Vec<String> {
        let mut found = Vec::new();
        for (gang, epoch) in &self.epochs {
            match after.epochs.get(gang) {
                Some(later) if later < epoch => {
                    found.push(format!("I3: the epoch of {gang} went back from {epoch}"));
                }
                None if !self.stopped.contains(gang) => {
                    found.push(format!("I3: {gang} is gone before all of it had ended"));
                }
                // A gang that has stopped may go with its job; its id is never given again.
                Some(_) | None => {}
            }
        }
        for (node, generation) in &self.generations {
            if after.generations.get(node).is_none_or(|later| later < generation) {
                found.push(format!("generation of {node} went back from {generation}"));
            }
        }
        for job in self.jobs.difference(&after.jobs) {
            // An ended job may be deleted.
            if !self.terminal.contains_key(job) {
                found.push(format!("I5: {job} is gone"));
            }
        }
        for (job, state) in &self.terminal {
            if after.jobs.contains(job) && after.terminal.get(job) != Some(state) {
                found.push(format!("I6: {job} left its terminal state {state:?}"));
            }
        }
        found
    }
}
