//! What this node is: facts of the host, GPUs, versions, and the doctor's lines.
//!
//! The first inventory goes out without the doctor, whose checks may take many seconds; the whole
//! one follows, and another whenever the GPUs change.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::{GpuId, PortBlock};
use gangline_common::wire::v1::{DoctorLevel, DoctorLine, GpuIdentity, NodeInventory, NodeRole};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::collectors::accelerator::{
    self, Accelerator, AcceleratorError, Accelerators, DriverFacts, opened,
};
use crate::collectors::host::{self, HostFacts, Limit, Roots};
use crate::collectors::versions;
use crate::config::Config;
use crate::doctor::{self, Level, Subject};

/// How often the list of GPUs is read again.
const GPU_CHECK: Duration = Duration::from_secs(10);
/// Clock ticks of `/proc` are hundredths of a second for every program, whatever the kernel does.
const MS_PER_TICK: u64 = 10;

/// What the configuration and the route say about this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub name: String,
    pub roles: Vec<NodeRole>,
    pub pool: Option<String>,
    pub labels: Vec<(String, String)>,
    pub address: IpAddr,
    pub interface: Option<String>,
    pub ports: PortBlock,
}

/// What changes from one inventory to the next.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Findings {
    pub gpus: Vec<accelerator::GpuIdentity>,
    pub driver: Option<DriverFacts>,
    pub doctor: Vec<doctor::DoctorLine>,
    /// Versions that are known by files.
    pub nccl: Option<String>,
    pub ofed: Option<String>,
}

/// Puts an inventory together. What cannot be seen and has no way to be absent in it is the value
/// that promises least: no memory, no shared memory, one CPU.
pub fn inventory(standing: &Standing, facts: &HostFacts, findings: &Findings) -> NodeInventory {
    NodeInventory {
        name: standing.name.clone(),
        hostname: facts.hostname.clone().unwrap_or_default(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        roles: standing.roles.clone(),
        pool: standing.pool.clone(),
        labels: standing.labels.clone(),
        address: standing.address,
        interface: standing.interface.clone(),
        boot_id: facts.boot_id.clone().unwrap_or_default(),
        network_namespace: facts.net_namespace.unwrap_or_default(),
        container_start_ms: facts.container_start_ticks.unwrap_or_default() * MS_PER_TICK,
        gpus: findings.gpus.iter().map(gpu_identity).collect(),
        cpus_milli: cpus_milli(facts),
        memory_bytes: facts.memory_bytes.unwrap_or_default(),
        shm_bytes: facts.shm_bytes.unwrap_or_default(),
        pids_limit: match facts.pids_limit {
            Some(Limit::At(count)) => Some(count),
            Some(Limit::Unlimited) | None => None,
        },
        ports: standing.ports,
        versions: versions(facts, findings),
        doctor: findings.doctor.iter().map(doctor_line).collect(),
    }
}

fn cpus_milli(facts: &HostFacts) -> u32 {
    let whole = facts.cpus.unwrap_or(1).saturating_mul(1000);
    // A quota may grant a fraction more than the whole CPUs.
    match (facts.cpu_quota, facts.cpus_in_mask) {
        (Some(quota), mask) => {
            let milli = (quota * 1000.0) as u32;
            mask.map_or(milli, |mask| milli.min(mask.saturating_mul(1000)))
        }
        (None, _) => whole,
    }
}

fn gpu_identity(gpu: &accelerator::GpuIdentity) -> GpuIdentity {
    GpuIdentity {
        uuid: GpuId(gpu.uuid.clone()),
        index: gpu.index,
        name: gpu.name.clone(),
        memory_bytes: gpu.memory_bytes,
        pci_bus_id: gpu.pci_bus_id.clone(),
    }
}

fn doctor_line(line: &doctor::DoctorLine) -> DoctorLine {
    DoctorLine {
        check: line.check.clone(),
        level: match line.level {
            Level::Ok => DoctorLevel::Ok,
            Level::Warning => DoctorLevel::Warning,
            Level::Blind => DoctorLevel::Blind,
            Level::Error => DoctorLevel::Error,
        },
        text: line.text.clone(),
        advice: line.advice.clone(),
    }
}

fn versions(facts: &HostFacts, findings: &Findings) -> Vec<(String, String)> {
    let driver = findings.driver.clone().unwrap_or_default();
    // The doctor is who runs the interpreter; its text begins with the version.
    let found = |check: &str| {
        let line = findings.doctor.iter().find(|line| line.check == check)?;
        let version = line.text.split_ascii_whitespace().next()?.to_owned();
        (line.level == Level::Ok).then_some(version)
    };
    let all = [
        ("kernel", facts.kernel.clone()),
        ("driver", driver.driver),
        ("nvml", driver.library),
        ("cuda", driver.cuda.map(|(major, minor)| format!("{major}.{minor}"))),
        ("nccl", findings.nccl.clone()),
        ("ofed", findings.ofed.clone()),
        ("python", found("Python")),
        ("ray", found("Ray")),
    ];
    all.into_iter().filter_map(|(name, version)| Some((name.to_owned(), version?))).collect()
}

/// Keeps the inventory up to date.
pub struct Surveyor {
    standing: Standing,
    facts: HostFacts,
    accelerators: Accelerators,
    subject: DoctorSubject,
    findings: Findings,
    inventory: watch::Sender<Arc<NodeInventory>>,
    visible: watch::Sender<BTreeSet<GpuId>>,
}

/// What the doctor looks at, owned.
#[derive(Debug, Clone)]
pub struct DoctorSubject {
    pub state_dir: PathBuf,
    pub temp_root: PathBuf,
    pub shared_root: Option<PathBuf>,
    pub python: PathBuf,
    pub ports: PortBlock,
    pub rdma_exclude: BTreeSet<String>,
    pub roots: Roots,
}

impl DoctorSubject {
    pub fn of(config: &Config, python: PathBuf) -> Self {
        DoctorSubject {
            state_dir: config.state_dir.clone(),
            temp_root: config.temp_root.clone(),
            shared_root: config.shared_root.clone(),
            python,
            ports: config.ports,
            rdma_exclude: config.rdma_exclude.clone(),
            roots: Roots { sys: config.sys_root.clone(), ..Roots::default() },
        }
    }

    /// Examines the node; takes seconds.
    pub async fn examine(&self, accelerators: &Accelerators) -> Vec<doctor::DoctorLine> {
        let last = u16::try_from(self.ports.end().saturating_sub(1)).unwrap_or(u16::MAX);
        let subject = Subject {
            accelerator: accelerators.as_ref().as_ref().map(Option::as_deref),
            expected_gpus: None,
            nvidia_visible: variable("NVIDIA_VISIBLE_DEVICES"),
            cuda_visible: variable("CUDA_VISIBLE_DEVICES"),
            rdma_exclude: self.rdma_exclude.clone(),
            roots: self.roots.clone(),
            state_dir: self.state_dir.clone(),
            temp_root: self.temp_root.clone(),
            shared_root: self.shared_root.clone(),
            python: Some(self.python.clone()),
            port_range: (self.ports.base, last),
        };
        doctor::examine(&subject).await
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// What a surveyor keeps up to date.
pub struct Survey {
    pub inventory: watch::Receiver<Arc<NodeInventory>>,
    /// GPUs of the newest inventory.
    pub visible: watch::Receiver<BTreeSet<GpuId>>,
}

impl Surveyor {
    /// Takes the first look, without the doctor.
    pub async fn begin(
        standing: Standing,
        accelerators: Accelerators,
        subject: DoctorSubject,
    ) -> (Self, Survey) {
        let facts = host::facts(&subject.roots);
        let mut findings = Findings {
            nccl: versions::nccl(Path::new("/")),
            ofed: versions::ofed(&subject.roots.sys),
            ..Findings::default()
        };
        if let Some(accelerator) = opened(&accelerators) {
            findings.gpus = gpus(accelerator).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "the GPUs cannot be listed yet");
                Vec::new()
            });
            findings.driver = accelerator.driver().await.ok();
        }
        let first = Arc::new(inventory(&standing, &facts, &findings));
        let (inventory_sender, inventory) = watch::channel(first);
        let (visible_sender, visible) = watch::channel(ids(&findings.gpus));
        let surveyor = Surveyor {
            standing,
            facts,
            accelerators,
            subject,
            findings,
            inventory: inventory_sender,
            visible: visible_sender,
        };
        (surveyor, Survey { inventory, visible })
    }

    /// Lets the doctor look, then looks for changes until it is dropped.
    pub async fn run(mut self) {
        self.findings.doctor = self.subject.examine(&self.accelerators).await;
        self.publish();
        let mut checks = tokio::time::interval(GPU_CHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            checks.tick().await;
            let Some(accelerator) = opened(&self.accelerators) else {
                return std::future::pending().await;
            };
            // A failure is no news about the GPUs; samples tell of it.
            let Ok(gpus) = gpus(accelerator).await else { continue };
            if gpus != self.findings.gpus {
                let (before, after) = (self.findings.gpus.len(), gpus.len());
                tracing::warn!(before, after, "the GPUs of this node have changed");
                self.findings.driver = accelerator.driver().await.ok();
                self.findings.gpus = gpus;
                self.findings.doctor = self.subject.examine(&self.accelerators).await;
                self.publish();
            }
        }
    }

    fn publish(&self) {
        self.visible.send_replace(ids(&self.findings.gpus));
        let newest = inventory(&self.standing, &self.facts, &self.findings);
        self.inventory.send_replace(Arc::new(newest));
    }
}

async fn gpus(
    accelerator: &dyn Accelerator,
) -> Result<Vec<accelerator::GpuIdentity>, AcceleratorError> {
    Ok(accelerator.usable(&accelerator.identity().await?))
}

fn ids(gpus: &[accelerator::GpuIdentity]) -> BTreeSet<GpuId> {
    gpus.iter().map(|gpu| GpuId(gpu.uuid.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> Standing {
        Standing {
            name: "node".into(),
            roles: vec![NodeRole::Worker],
            pool: None,
            labels: vec![],
            address: [10, 0, 0, 1].into(),
            interface: None,
            ports: PortBlock { base: 20000, size: 512 },
        }
    }

    #[test]
    fn what_is_not_known_promises_nothing() {
        let empty = inventory(&standing(), &HostFacts::default(), &Findings::default());
        assert_eq!((empty.cpus_milli, empty.memory_bytes, empty.shm_bytes), (1000, 0, 0));
        assert_eq!((empty.pids_limit, empty.versions.len()), (None, 0));
    }

    #[test]
    fn a_quota_counts_in_thousandths_and_never_over_the_mask() {
        let facts = |quota, mask| HostFacts {
            cpus: Some(2),
            cpu_quota: quota,
            cpus_in_mask: Some(mask),
            ..HostFacts::default()
        };
        assert_eq!(cpus_milli(&facts(None, 2)), 2000);
        assert_eq!(cpus_milli(&facts(Some(2.5), 8)), 2500);
        assert_eq!(cpus_milli(&facts(Some(2.5), 2)), 2000);
        assert_eq!(cpus_milli(&facts(Some(0.5), 2)), 500);
    }

    #[test]
    fn versions_come_from_lines_that_are_ok() {
        let line = |check, level, text| doctor::DoctorLine::new(check, level, text);
        let findings = Findings {
            doctor: vec![
                line("Python", Level::Ok, "3.12.3 at /usr/bin/python3"),
                line("Ray", Level::Error, "cannot be imported"),
            ],
            driver: Some(DriverFacts { cuda: Some((12, 4)), ..DriverFacts::default() }),
            ..Findings::default()
        };
        let versions = versions(&HostFacts::default(), &findings);
        let pair = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(versions, [pair("cuda", "12.4"), pair("python", "3.12.3")]);
    }
}
