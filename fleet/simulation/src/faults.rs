//! Faults: what breaks, how often, and for how long. Numbers in brackets name the rows of the fault
//! matrix.

use gangline_common::ids::MemberKey;
use gangline_core::gang::EndHow;

use crate::agent;
use crate::coordinator;
use crate::disk::Disk;
use crate::network::{AgentWord, Packet};
use crate::process::Stage;
use crate::random::Random;
use crate::world::{Happening, World};

/// The temper of one history.
#[derive(Debug)]
pub struct Weather {
    /// Mean time between two faults.
    fault_pause_ms: u64,
    pub user_pause_ms: u64,
    pub coordinator_away_until_ms: u64,
    /// The coordinator's machine was started again.
    pub coordinator_rebooted: bool,
    /// It was, at any time.
    pub has_rebooted: bool,
    /// Copies of the store, taken now and then.
    backups: Vec<Disk>,
}

/// Backups that are kept.
const BACKUPS: usize = 2;
/// A year of wall time, in milliseconds.
const YEAR_MS: i64 = 31_536_000_000;

impl Weather {
    pub fn of(random: &mut Random) -> Self {
        Weather {
            fault_pause_ms: *random.pick(&[2_000, 6_000, 15_000, 40_000]).unwrap_or(&6_000),
            user_pause_ms: *random.pick(&[1_500, 4_000, 12_000]).unwrap_or(&4_000),
            coordinator_away_until_ms: 0,
            coordinator_rebooted: false,
            has_rebooted: false,
            backups: Vec::new(),
        }
    }
}

impl World<'_> {
    pub fn fault_strikes(&mut self) {
        let pause = self.weather.fault_pause_ms;
        let wait = self.random.between(pause / 8, 2 * pause);
        self.after(wait, Happening::Fault);
        let node = self.random.below(self.nodes.len() as u64) as usize;
        match self.random.below(100) {
            0..=13 => self.hit_agent(node),
            14..=18 => self.freeze_agent(node),
            19..=22 => self.fill_disk(node),
            23..=32 => self.hit_coordinator(),
            33..=46 => self.cut_link(node),
            47..=49 => self.cut_many(),
            50..=54 => self.slow_link(node),
            55..=60 => self.reboot(node),
            61 => self.power_cut(),
            62..=66 => self.set_a_clock(node),
            67..=76 => self.crash_something(node),
            77..=82 => self.stick_something(node),
            83..=86 => {
                // Whoever starts next finds a port taken (it is let go of afterwards).
                self.nodes[node].strangers += 1;
            }
            87..=91 => self.claim_identity(node),
            92..=94 => self.back_up(),
            95 => self.restore_backup(),
            _ => self.change_hardware(node),
        }
    }

    /// Something is wrong with a node: bounds of time begin anew once it is over.
    pub fn disturbed(&mut self, node: usize) {
        self.nodes[node].fine_since_ms = u64::MAX;
    }

    // ------------------------------------------------------------ agents

    /// F1, F2, F42: the agent is killed, now or at a bad moment.
    fn hit_agent(&mut self, node: usize) {
        let away = match self.random.below(10) {
            0 => self.random.between(60_000, 240_000),
            1 | 2 => self.random.between(5_000, 40_000),
            _ => self.random.between(50, 3_000),
        };
        let hit = match self.random.below(6) {
            0 => agent::Hit::BeforeLedger,
            1 => agent::Hit::AfterLedger,
            2 => agent::Hit::AmidEffects,
            _ => {
                if self.nodes[node].agent.is_some() {
                    self.tally.note("fault: agent killed");
                    self.kill_agent(node, away);
                }
                return;
            }
        };
        if let Some(agent) = &mut self.nodes[node].agent {
            agent.hit = Some(hit);
        }
    }

    /// F13: nothing of the agent moves for a while.
    fn freeze_agent(&mut self, node: usize) {
        if self.nodes[node].agent.is_none() {
            return;
        }
        self.tally.note("fault: agent frozen");
        let ms = self.random.between(500, 120_000);
        self.nodes[node].frozen_until_ms = self.now_ms + ms;
        self.disturbed(node);
        self.after(ms, Happening::GoesOn { node });
    }

    /// F18: the ledger cannot be written; the link lives on.
    fn fill_disk(&mut self, node: usize) {
        if self.nodes[node].agent.is_none() {
            return;
        }
        self.tally.note("fault: disk of an agent full");
        let ms = self.random.between(1_000, 60_000);
        self.nodes[node].full_until_ms = self.now_ms + ms;
        self.disturbed(node);
        self.after(ms, Happening::GoesOn { node });
    }

    /// F40: somebody with a copy of the identity connects.
    fn claim_identity(&mut self, node: usize) {
        self.tally.note("fault: second agent with one identity");
        let session = self.number();
        let instance = self.number();
        self.disturbed(node);
        self.send(Packet::Up { node, session, word: AgentWord::Hello { instance } });
        let wait = self.random.between(100, 3_000);
        // It goes away again; should it have been let in, the other one comes back.
        let bye = Packet::Up { node, session, word: AgentWord::Bye };
        self.after(wait, Happening::Arrives(bye));
    }

    // ------------------------------------------------------------ coordinator

    /// F3 to F6, F17, F19, F44: the coordinator is killed, or its disk fails.
    fn hit_coordinator(&mut self) {
        let away = match self.random.below(12) {
            0 => self.random.between(60_000, 400_000),
            1 | 2 => self.random.between(5_000, 60_000),
            _ => self.random.between(50, 4_000),
        };
        let Some(coordinator) = &mut self.coordinator else { return };
        match self.random.below(4) {
            0 => coordinator.hit = Some(coordinator::Hit::BeforeCommit),
            1 => coordinator.hit = Some(coordinator::Hit::AfterCommit),
            2 if self.settings.reboots && self.random.one_in(2) => {
                self.tally.note("fault: coordinator's machine started again");
                self.kill_coordinator();
                self.clock.reboot(self.now_ms);
                self.weather.coordinator_rebooted = true;
                self.weather.has_rebooted = true;
                self.weather.coordinator_away_until_ms = self.now_ms + away;
            }
            _ => {
                self.tally.note(match away {
                    0..60_000 => "fault: coordinator killed",
                    _ => "fault: coordinator away for minutes",
                });
                self.kill_coordinator();
                self.weather.coordinator_away_until_ms = self.now_ms + away;
            }
        }
    }

    fn back_up(&mut self) {
        let backups = &mut self.weather.backups;
        if backups.len() >= BACKUPS {
            backups.remove(0);
        }
        backups.push(self.disk.clone());
    }

    /// F46: the store is replaced by an older copy, in a new era.
    fn restore_backup(&mut self) {
        if self.weather.backups.is_empty() || !self.settings.reboots {
            return;
        }
        let older = self.weather.backups.remove(0);
        self.tally.note("fault: store restored from an older copy");
        self.kill_coordinator();
        self.checks_after_restore(&older);
        let era = self.disk.era + 1;
        self.disk = Disk { era, ..older };
        self.weather.backups.clear();
        self.weather.coordinator_away_until_ms = self.now_ms + 1_000;
    }

    // ------------------------------------------------------------ network

    /// F8 to F11: a link is cut both ways or one way.
    fn cut_link(&mut self, node: usize) {
        let ms = match self.random.below(8) {
            0 => self.random.between(60_000, 200_000),
            1 | 2 => self.random.between(12_000, 60_000),
            _ => self.random.between(100, 12_000),
        };
        let (up, down) = match self.random.below(4) {
            0 => {
                self.tally.note("fault: link cut towards the coordinator");
                (true, false)
            }
            1 => {
                self.tally.note("fault: link cut towards the agent");
                (false, true)
            }
            _ => {
                self.tally.note("fault: link cut");
                (true, true)
            }
        };
        // Now and then the machine is cut off from the other machines as well, until Ray and its shims
        // have noticed.
        let is_isolated = up && down && self.random.one_in(2);
        self.nodes[node].link.is_isolated |= is_isolated;
        let ms = match is_isolated && self.random.one_in(3) {
            true => self.random.between(100_000, 300_000),
            false => ms,
        };
        self.cut(node, up, down, ms);
    }

    fn cut(&mut self, node: usize, up: bool, down: bool, ms: u64) {
        let link = &mut self.nodes[node].link;
        link.up.is_cut |= up;
        link.down.is_cut |= down;
        link.cut += 1;
        let cut = link.cut;
        self.disturbed(node);
        self.after(ms, Happening::LinkHeals { node, cut });
    }

    /// A switch is gone: half of the fleet is not there.
    fn cut_many(&mut self) {
        self.tally.note("fault: partition of the fleet");
        let ms = self.random.between(2_000, 90_000);
        let parity = self.random.below(2) as usize;
        for node in (0..self.nodes.len()).filter(|node| node % 2 == parity) {
            self.nodes[node].link.is_isolated = true;
            self.cut(node, true, true, ms);
        }
    }

    /// F12: words take long.
    fn slow_link(&mut self, node: usize) {
        self.tally.note("fault: slow link");
        let longest = self.random.between(200, 3_000);
        let link = &mut self.nodes[node].link;
        (link.up.slow_ms, link.down.slow_ms) = (longest, longest);
        link.cut += 1;
        let cut = link.cut;
        self.disturbed(node);
        let ms = self.random.between(5_000, 60_000);
        self.after(ms, Happening::LinkHeals { node, cut });
    }

    // ------------------------------------------------------------ machines

    /// F41: the machine starts again: no process of before is left, the ledger is.
    fn reboot(&mut self, node: usize) {
        self.tally.note("fault: node started again");
        let off = self.random.between(1_000, 90_000);
        self.switch_off(node, off);
    }

    fn switch_off(&mut self, node: usize, off_ms: u64) {
        self.wipe_processes(node);
        self.kill_agent(node, off_ms);
        let number = self.number();
        let now_ms = self.now_ms;
        let sim = &mut self.nodes[node];
        sim.off_until_ms = now_ms + off_ms;
        sim.clock.reboot(now_ms);
        sim.inventory.container_start_ms = number;
    }

    /// F14: everything is without power.
    fn power_cut(&mut self) {
        self.tally.note("fault: power cut");
        for node in 0..self.nodes.len() {
            let off = self.random.between(1_000, 20_000);
            self.switch_off(node, off);
        }
        self.kill_coordinator();
        if self.settings.reboots {
            self.clock.reboot(self.now_ms);
            self.weather.coordinator_rebooted = true;
            self.weather.has_rebooted = true;
        }
        self.weather.coordinator_away_until_ms = self.now_ms + 3_000;
    }

    /// F15: a wall clock is set.
    fn set_a_clock(&mut self, node: usize) {
        let off = match self.random.below(4) {
            0 => YEAR_MS,
            1 => -YEAR_MS,
            _ => self.random.between(0, 172_800_000) as i64 - 86_400_000,
        };
        let of_coordinator = self.random.one_in(2);
        if !self.settings.wall_jumps {
            return;
        }
        self.tally.note("fault: wall clock set");
        match of_coordinator {
            true => self.clock.set_wall_off(off),
            false => self.nodes[node].clock.set_wall_off(off),
        }
    }

    /// The inventory changes: a GPU falls off the bus, or is back.
    fn change_hardware(&mut self, node: usize) {
        self.tally.note("fault: inventory changed");
        let memory = &mut self.nodes[node].inventory.memory_bytes;
        *memory = if *memory == 64 << 30 { 48 << 30 } else { 64 << 30 };
        let Some(session) = self.nodes[node].agent.as_ref().and_then(|agent| agent.session())
        else {
            return;
        };
        self.send(Packet::Up { node, session, word: AgentWord::Inventory });
    }

    // ------------------------------------------------------------ processes

    /// F25, F26: a head, a raylet or a rank dies.
    fn crash_something(&mut self, node: usize) {
        let running = self.nodes[node]
            .processes
            .iter()
            .filter(|(_, process)| process.stage == Stage::Running && !process.stopping);
        let running: Vec<(MemberKey, bool)> =
            running.map(|(key, process)| (key.clone(), process.is_head)).collect();
        let Some((key, is_head)) = self.random.pick(&running).cloned() else { return };
        self.tally.note(match is_head {
            true => "fault: Ray head crashed",
            false => "fault: rank crashed",
        });
        let exit = match self.random.below(3) {
            0 => EndHow::Exited { code: 1 },
            1 => EndHow::Signalled { signal: 9 },
            _ => EndHow::Signalled { signal: 11 },
        };
        self.crash_process(node, &key, exit);
    }

    /// F28, F29: a process cannot be killed for a while, or hides from its parent. Not of one that
    /// stops by itself: that rule counts on a kill.
    fn stick_something(&mut self, node: usize) {
        let alive = self.nodes[node].processes.iter().filter(|(_, process)| process.is_alive());
        let alive = alive.filter(|(_, process)| process.fence.is_none());
        let alive: Vec<MemberKey> = alive.map(|(key, _)| key.clone()).collect();
        let Some(key) = self.random.pick(&alive).cloned() else { return };
        self.tally.note("fault: process cannot be killed");
        let until = self.now_ms + self.random.between(2_000, 90_000);
        if let Some(process) = self.nodes[node].processes.get_mut(&key) {
            process.stuck_until_ms = until;
        }
    }
}
