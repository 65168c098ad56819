//! What happens without agents where machines do not reach each other: shims stop their members, and
//! Ray takes nodes for dead. The deadline is the real one, what it sees is made up.

use std::collections::BTreeMap;

use gangline_agent_core::deadline::Deadline;
use gangline_agent_core::event::Event;
use gangline_common::ids::{Epoch, GangId, MemberId, MemberKey, PortBlock};
use gangline_core::fencing::FENCE_AFTER_MS;
use gangline_core::gang::EndHow;
use gangline_core::job::{Job, Launcher, OnDisconnect};

use crate::agent::{Input, Plan};
use crate::process::{Process, Stage};
use crate::world::{Happening, World};

/// How often Ray's head looks at its nodes, in milliseconds.
const RAY_LOOKS_EVERY_MS: u64 = 5_000;
/// Ray takes a node for dead that it has not seen for this long.
const RAY_DEAD_MS: u64 = 30_000;
/// A raylet ends that has not reached the head for this long.
const GCS_LOST_MS: u64 = 60_000;
/// From the polite stop of a Ray member to the forced one, as agents do it.
const RAY_GRACE_MS: u64 = 5_000;

/// A shim that stops its member by itself.
#[derive(Debug, Clone)]
pub struct Fence {
    deadline: Deadline,
    sight: Option<Sight>,
    grace_ms: u64,
    /// When it looks at its deadline again.
    wakes_ms: u64,
}

/// How a shim sees whether the gang is whole.
#[derive(Debug, Clone)]
enum Sight {
    /// Beside a rank: something answers at the head's address.
    Gcs { node: usize, ports: PortBlock },
    /// On the head's node: Ray shows so many members alive.
    Nodes { members: usize },
}

/// Time of the policy, in milliseconds.
pub fn after_ms(job: &Job) -> Option<u64> {
    match job.request.on_disconnect {
        OnDisconnect::Keep { .. } => None,
        OnDisconnect::Fence => Some(FENCE_AFTER_MS),
        OnDisconnect::StopAfter { ms } => Some(ms),
    }
}

impl World<'_> {
    /// Whether the machines reach each other; their agents' way to the coordinator is another.
    pub fn reach(&self, one: usize, other: usize) -> bool {
        one == other || !(self.nodes[one].link.is_isolated || self.nodes[other].link.is_isolated)
    }

    // ------------------------------------------------------------ contact

    /// The agent learns that a word of that moment of its boot clock was heard: so do the shims.
    pub fn had_contact(&mut self, node: usize, session: u64, boot_ms: u64) {
        let sim = &mut self.nodes[node];
        let now_ms = sim.clock.at(self.now_ms).boot_ms;
        let Some(agent) = &mut sim.agent else { return };
        agent.contact_at = agent.contact_at.max(Some((session, boot_ms)));
        for key in &agent.attached {
            let process = sim.processes.get_mut(key).filter(|process| process.is_alive());
            if let Some(fence) = process.and_then(|process| process.fence.as_mut()) {
                fence.deadline.note_contact(boot_ms, now_ms);
            }
        }
    }

    /// The shim of a member that was found again is told of the contact that there is.
    pub fn tell_shims(&mut self, node: usize) {
        let contact = self.nodes[node].agent.as_ref().and_then(|agent| agent.contact_at);
        if let Some((session, boot_ms)) = contact {
            self.had_contact(node, session, boot_ms);
        }
    }

    /// What the driver tells its core before anything else.
    pub fn contact_input(&self, node: usize) -> Option<Input> {
        let agent = self.nodes[node].agent.as_ref()?;
        let contact = agent.contact_at.filter(|contact| agent.core.contact() != Some(*contact));
        let (session_ms, boot_ms) = contact?;
        Some(Input::Event(Event::Contact { session_ms, boot_ms }))
    }

    // ------------------------------------------------------------ shims

    /// What the launch of a member says of its end.
    pub fn fence_of(&self, node: usize, key: &MemberKey, plan: &Plan) -> Option<Fence> {
        let after_ms = after_ms(&plan.job)?;
        let sim = &self.nodes[node];
        let contact = sim.agent.as_ref().and_then(|agent| agent.contact_at);
        let contact_ms = contact.map_or(0, |(_, boot_ms)| boot_ms);
        let is_fence = plan.job.request.on_disconnect == OnDisconnect::Fence;
        let head = plan.gang.members.get(&MemberId::Head).filter(|_| is_fence);
        let sight = head.and_then(|head| {
            let at = self.nodes.iter().position(|sim| sim.id == head.node)?;
            let members = plan.gang.members.len();
            Some(match at == node || key.member == MemberId::Head {
                true => Sight::Nodes { members },
                false => Sight::Gcs { node: at, ports: head.ports },
            })
        });
        let request = &plan.job.request;
        let grace_ms = match request.launcher {
            Launcher::Command => request.grace_ms,
            Launcher::Ray => request.grace_ms.min(RAY_GRACE_MS),
        };
        let deadline = Deadline::new(after_ms, contact_ms, sight.is_some());
        Some(Fence { deadline, sight, grace_ms, wakes_ms: 0 })
    }

    /// The shim of a member that runs now, or has just looked at its deadline, waits for the next look.
    pub fn shim_waits(&mut self, node: usize, key: &MemberKey) {
        let now_ms = self.now_ms;
        let boot_ms = self.nodes[node].clock.at(now_ms).boot_ms;
        let process = self.nodes[node].processes.get_mut(key);
        let Some(fence) = process.and_then(|process| process.fence.as_mut()) else { return };
        let next_ms = fence.deadline.look_ms().unwrap_or(u64::MAX).min(fence.deadline.due_ms());
        let wait = next_ms.saturating_sub(boot_ms);
        fence.wakes_ms = now_ms + wait;
        let wakes_ms = fence.wakes_ms;
        self.after(wait, Happening::Shim { node, key: key.clone(), wakes_ms });
    }

    pub fn shim_wakes(&mut self, node: usize, key: &MemberKey, wakes_ms: u64) {
        let boot_ms = self.nodes[node].clock.at(self.now_ms).boot_ms;
        let Some(process) = self.nodes[node].processes.get(key) else { return };
        let Some(mut fence) = process.fence.clone().filter(|fence| fence.wakes_ms == wakes_ms)
        else {
            return;
        };
        if process.stage != Stage::Running || process.stopping {
            return;
        }
        if fence.deadline.look_ms().is_some_and(|look_ms| boot_ms >= look_ms) {
            let is_whole = self.sees_all(node, key, &fence);
            fence.deadline.note_look(boot_ms, is_whole);
        }
        let is_over = boot_ms >= fence.deadline.due_ms();
        let grace_ms = fence.grace_ms;
        if let Some(process) = self.nodes[node].processes.get_mut(key) {
            process.fence = Some(fence);
        }
        match is_over {
            true => self.stops_itself(node, key, grace_ms),
            false => self.shim_waits(node, key),
        }
    }

    fn sees_all(&self, node: usize, key: &MemberKey, fence: &Fence) -> bool {
        match &fence.sight {
            None => false,
            // Whoever listens there answers.
            Some(Sight::Gcs { node: head, ports }) => {
                let network = self.nodes[*head].inventory.network();
                let near = self.nodes.iter().enumerate();
                let mut near = near.filter(|(at, sim)| {
                    sim.inventory.network() == network && self.reach(node, *at)
                });
                near.any(|(_, sim)| {
                    sim.processes.values().any(|other| {
                        other.is_head && other.stage == Stage::Running && other.ports == *ports
                    })
                })
            }
            Some(Sight::Nodes { members }) => {
                let head = MemberKey { member: MemberId::Head, ..key.clone() };
                let head = self.nodes[node].processes.get(&head);
                let runs = head.is_some_and(|head| head.stage == Stage::Running);
                let cluster = self.clusters.get(&(key.gang.clone(), key.epoch));
                let alive = cluster.map_or(0, |cluster| cluster.alive().count());
                runs && alive + 1 >= *members
            }
        }
    }

    fn stops_itself(&mut self, node: usize, key: &MemberKey, grace_ms: u64) {
        self.check_fenced(node, key);
        let patience = match self.random.one_in(10) {
            true => grace_ms,
            false => self.random.below(grace_ms + 1),
        };
        let due_ms = self.now_ms + 1 + patience;
        let Some(process) = self.nodes[node].processes.get_mut(key) else { return };
        let looks = process.fence.as_ref().is_some_and(|fence| fence.sight.is_some());
        process.stopping = true;
        process.exit = EndHow::Failed { reason: "it stopped itself".to_owned() };
        process.due_ms = Some(due_ms);
        self.tally.note(match looks {
            true => "member stopped itself: fence",
            false => "member stopped itself: stop_after",
        });
        self.after(1 + patience, Happening::Process { node, key: key.clone(), due_ms });
    }

    /// I10: no outage of the coordinator stops a gang that is whole and may go on.
    fn check_fenced(&mut self, node: usize, key: &MemberKey) {
        let Some(process) = self.nodes[node].processes.get(key) else { return };
        let looks = process.fence.as_ref().is_some_and(|fence| fence.sight.is_some());
        let cluster = self.clusters.get(&(key.gang.clone(), key.epoch));
        let members = self.ray_members().remove(&(key.gang.clone(), key.epoch)).unwrap_or_default();
        let head = members.iter().find(|(member, _)| *member == MemberId::Head);
        let Some((_, head)) = head.copied().filter(|_| looks) else { return };
        let wanted = match process.fence.as_ref().and_then(|fence| fence.sight.as_ref()) {
            Some(Sight::Nodes { members }) => *members,
            Some(Sight::Gcs { .. }) | None => return,
        };
        let whole = members.len() >= wanted
            && members.iter().all(|(member, at)| {
                let seen = cluster.is_some_and(|cluster| cluster.alive().any(|id| id == *member));
                self.reach(head, *at) && (*member == MemberId::Head || seen)
            });
        if whole {
            self.fail(|| format!("I10: {key} stops itself, and its gang is whole"));
        }
    }

    // ------------------------------------------------------------ Ray

    /// Where every process of Ray runs, by incarnation.
    fn ray_members(&self) -> BTreeMap<(GangId, Epoch), Vec<(MemberId, usize)>> {
        let mut members: BTreeMap<_, Vec<(MemberId, usize)>> = BTreeMap::new();
        for (node, sim) in self.nodes.iter().enumerate() {
            let runs = |process: &Process| process.is_ray && process.stage == Stage::Running;
            for (key, _) in sim.processes.iter().filter(|(_, process)| runs(process)) {
                let incarnation = (key.gang.clone(), key.epoch);
                members.entry(incarnation).or_default().push((key.member, node));
            }
        }
        members
    }

    /// Heads look for their nodes, and raylets for their heads.
    pub fn ray_looks(&mut self) {
        let now_ms = self.now_ms;
        if now_ms % RAY_LOOKS_EVERY_MS >= 500 {
            return;
        }
        let mut gone = Vec::new();
        for (incarnation, members) in self.ray_members() {
            let head = members.iter().find(|(member, _)| *member == MemberId::Head);
            let head = head.map(|(_, node)| *node);
            let reached: Vec<bool> = members
                .iter()
                .map(|(_, node)| head.is_some_and(|head| self.reach(head, *node)))
                .collect();
            let cluster = self.clusters.entry(incarnation.clone()).or_default();
            for ((member, node), reaches) in members.into_iter().zip(reached) {
                if member == MemberId::Head {
                    continue;
                }
                let seen_ms = cluster.gcs_ms.entry(member).or_insert(now_ms);
                let ends = match reaches {
                    // It is turned away: dead nodes do not come back.
                    true => cluster.dead.contains(&member),
                    false => now_ms - *seen_ms >= GCS_LOST_MS,
                };
                if reaches {
                    *seen_ms = now_ms;
                    cluster.seen_ms.entry(member).or_insert(now_ms);
                }
                if reaches && !ends {
                    cluster.seen_ms.insert(member, now_ms);
                }
                if ends {
                    let (gang, epoch) = incarnation.clone();
                    gone.push((node, MemberKey { gang, epoch, member }));
                }
            }
            if head.is_some() {
                let silent =
                    cluster.seen_ms.iter().filter(|(_, seen)| now_ms - **seen >= RAY_DEAD_MS);
                let silent: Vec<MemberId> = silent.map(|(member, _)| *member).collect();
                cluster.dead.extend(silent);
            }
        }
        for (node, key) in gone {
            self.tally.note("raylet ended without its head");
            self.crash_process(node, &key, EndHow::Exited { code: 1 });
        }
    }
}
