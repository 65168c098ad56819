//! A node in virtual time: readings go in once a second, conditions come out.

use std::collections::{BTreeMap, BTreeSet};

use gangline_common::ids::GpuId;
use gangline_common::time::Timestamp;
use gangline_health::reading::{
    Agent, Canary, Collector, Counter, Fabric, Gpu, GpuSet, Handle, LocalDisk, Memory, Nvlink,
    Outcome, Pcie, PhysicalState, Port, PortState, Ports, RecoveryAction, SharedRoot, Tasks, Usage,
    Xid,
};
use gangline_health::{Component, Condition, Config, Engine, Level, Reading, Rule, Saved};

pub const MINUTE: u64 = 60;
pub const HOUR: u64 = 3_600;
pub const DAY: u64 = 24 * HOUR;

/// Seconds of the first boot.
pub fn second(second: u64) -> Timestamp {
    Timestamp { boot_ms: second * 1000, wall_ms: 1_700_000_000_000 + second * 1000 }
}

pub fn gpu_id(index: usize) -> GpuId {
    GpuId(format!("GPU-{index}"))
}

pub fn gpu_part(index: usize) -> Component {
    Component::gpu(&gpu_id(index))
}

pub fn port_part(index: usize) -> Component {
    Component::port(&format!("mlx5_{index}"), 1)
}

/// A healthy H100 of a machine with NVSwitch, in use.
pub fn gpu(index: usize) -> Gpu {
    let link = |link| Nvlink { index: link, active: Some(true), crc: Some(0), errors: Some(0) };
    let links: Vec<Nvlink> = (0..18).map(link).collect();
    Gpu {
        handle: Some(Handle::Good),
        ecc_sram_uncorrected: Some(0),
        ecc_dram_uncorrected: Some(0),
        remap_pending: Some(false),
        remap_failure: Some(false),
        remapped_uncorrectable: Some(0),
        recovery_action: Some(RecoveryAction::None),
        clock_event_reasons: Some(0x4),
        temperature_margin_c: Some(25),
        hbm_temperature_c: Some(70),
        pcie: Some(Pcie {
            generation: Some(5),
            max_generation: Some(5),
            width: Some(16),
            max_width: Some(16),
            under_load: Some(true),
        }),
        pcie_replays: Some(0),
        nvlinks: links,
        nvswitch: Some(true),
        fabric: Some(Fabric::Completed(0)),
        persistence: Some(true),
        free: Some(false),
        memory_used_bytes: Some(70 << 30),
        foreign: Some(Vec::new()),
        ..Gpu::new(gpu_id(index))
    }
}

/// A healthy port of 400 Gb/s.
pub fn port(index: usize) -> Port {
    Port {
        device: format!("mlx5_{index}"),
        port: 1,
        expected: Some(true),
        state: Some(PortState::Active),
        physical: Some(PhysicalState::LinkUp),
        rate_gbps: Some(400.0),
        expected_rate_gbps: Some(400.0),
        in_use: Some(true),
        counters: Counter::ALL.iter().map(|counter| (*counter, 0)).collect(),
        ..Port::default()
    }
}

pub fn gpu_set(count: usize) -> GpuSet {
    let all: BTreeSet<GpuId> = (0..count).map(gpu_id).collect();
    GpuSet { registered: all.clone(), present: Some(all), library: Some(Handle::Good) }
}

pub fn ports(count: u32) -> Ports {
    let present = (0..count).map(|index| (format!("mlx5_{index}"), 1)).collect();
    Ports {
        present: Some(present),
        registered: Some(count),
        uverbs: Some(count),
        umad: Some(count),
    }
}

pub fn usage(used: u64, limit: u64) -> Usage {
    Usage { used: Some(used), limit: Some(limit) }
}

pub fn shared_root(canary: Option<Canary>) -> SharedRoot {
    let (bytes, inodes) = (usage(50, 100), usage(10, 100));
    SharedRoot { path: "/shared".to_owned(), canary, bytes, inodes }
}

pub fn local_disk(free: u64, total: u64) -> LocalDisk {
    LocalDisk { path: "/var/lib/gangline".to_owned(), bytes: usage(total - free, total) }
}

pub fn memory(available: u64) -> Memory {
    let pressure_full_avg10 = Some(0.0);
    Memory { available_bytes: Some(available), total_bytes: Some(1000), pressure_full_avg10 }
}

pub fn xid(gpu: usize, code: u32) -> Reading {
    Reading::Xid(Xid { gpu: Some(gpu_id(gpu)), code, text: None, job: None })
}

/// Everything that a healthy node with 8 GPUs and 8 ports reads.
pub fn healthy() -> Vec<Reading> {
    let mut readings = vec![
        Reading::GpuSet(gpu_set(8)),
        Reading::Ports(ports(8)),
        Reading::SharedRoot(shared_root(Some(Canary::Done(12)))),
        Reading::LocalDisk(local_disk(500_000_000_000, 1_000_000_000_000)),
        Reading::Memory(memory(600)),
        Reading::Shm(usage(10, 100)),
        Reading::Pids(usage(900, 30_000)),
        Reading::Descriptors(usage(900, 1_000_000)),
        Reading::Tasks(Tasks { stuck: Some(Vec::new()), zombies: Some(3) }),
        Reading::ClockOffset(-12),
        Reading::Agent(Agent {
            loop_lag_ms: Some(2),
            rss_bytes: Some(20 << 20),
            descriptors: usage(500, 65_536),
        }),
        Reading::Collector(Collector { name: "nvml".to_owned(), outcome: Outcome::Good }),
    ];
    readings.extend((0..8).map(|index| Reading::Gpu(Box::new(gpu(index)))));
    readings.extend((0..8).map(|index| Reading::Port(Box::new(port(index)))));
    readings
}

/// An engine and its clock.
pub struct Node {
    pub engine: Engine,
    pub now: u64,
    pub config: Config,
    /// Where the second boot began, as a second of the first.
    booted: u64,
}

impl Node {
    pub fn new() -> Self {
        Self::with(Config { boot_id: Some("first".to_owned()), ..Config::default() })
    }

    pub fn with(config: Config) -> Self {
        let engine = Engine::new(config.clone(), &Saved::default(), second(1_000));
        Node { engine, now: 1_000, config, booted: 0 }
    }

    pub fn time(&self) -> Timestamp {
        let now = second(self.now);
        Timestamp { boot_ms: now.boot_ms - self.booted * 1000, ..now }
    }

    /// One reading, now.
    pub fn see(&mut self, reading: &Reading) {
        self.engine.observe(reading, self.time());
    }

    /// The same reading once a second for so long.
    pub fn see_for(&mut self, seconds: u64, reading: &Reading) {
        for _ in 0..seconds {
            self.now += 1;
            self.see(reading);
        }
    }

    pub fn gpu_for(&mut self, seconds: u64, gpu: &Gpu) {
        self.see_for(seconds, &Reading::Gpu(Box::new(gpu.clone())));
    }

    pub fn port_for(&mut self, seconds: u64, port: &Port) {
        self.see_for(seconds, &Reading::Port(Box::new(port.clone())));
    }

    /// A second later the counter of the port has grown by so much.
    pub fn grow(&mut self, port: &mut Port, counter: Counter, by: u64) {
        *port.counters.entry(counter).or_default() += by;
        self.port_for(1, port);
    }

    pub fn conditions(&self) -> Vec<Condition> {
        self.engine.conditions(self.time())
    }

    pub fn condition(&self, rule: Rule) -> Option<Condition> {
        self.conditions().into_iter().find(|condition| condition.rule == rule)
    }

    pub fn level(&self, rule: Rule) -> Option<Level> {
        self.condition(rule).map(|condition| condition.level)
    }

    /// Every rule that has a condition, with its level.
    pub fn levels(&self) -> BTreeMap<Rule, Level> {
        self.conditions().iter().map(|condition| (condition.rule, condition.level)).collect()
    }

    /// The agent ends and starts again after so many seconds, with what it wrote down as JSON.
    pub fn restart(&mut self, seconds: u64) {
        let text = serde_json::to_string(&self.engine.saved()).unwrap();
        self.now += seconds;
        let saved: Saved = serde_json::from_str(&text).unwrap();
        self.engine = Engine::new(self.config.clone(), &saved, self.time());
    }

    /// The machine starts again, and the agent with it.
    pub fn reboot(&mut self, seconds: u64, boot_id: &str) {
        let text = serde_json::to_string(&self.engine.saved()).unwrap();
        self.now += seconds;
        self.booted = self.now - 30;
        self.config.boot_id = Some(boot_id.to_owned());
        let saved: Saved = serde_json::from_str(&text).unwrap();
        self.engine = Engine::new(self.config.clone(), &saved, self.time());
    }

    pub fn clear(&mut self, rule: Rule, component: &Component) -> bool {
        let now = self.time();
        self.engine.clear(rule, component, now)
    }
}
