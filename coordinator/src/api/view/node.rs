//! Views of nodes and of their samples.

use std::collections::BTreeMap;

use gangline_common::ids::MemberId;
use gangline_common::time::{Timestamp, wall_text};
use gangline_common::wire::v1::{CollectorSample, GpuSample, NodeSample, PortSample};
use serde::Serialize;
use utoipa::ToSchema;

use super::super::node_tests::NetworkTestView;
use super::{MemberView, Names, TransitionView, history};
use crate::board::NodeSnapshot;
use crate::core::gang::{Gang, Member};
use crate::core::health::Condition;
use crate::core::node::{Gpu, Lifecycle, Node, Reachability};
use crate::ingest::telemetry::Counts;

/// A node. What its agent has not yet told is null.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeView {
    pub id: String,
    pub name: String,
    /// One word: revoked, lost, suspect, pending, offline, draining, drained, cordoned, unfit, ready, busy,
    /// mixed.
    pub state: &'static str,
    /// reachable, suspect or lost.
    pub reachability: &'static str,
    /// pending, online, draining or offline.
    pub lifecycle: &'static str,
    /// healthy, degraded or unhealthy: the worst condition that counts.
    pub health: &'static str,
    /// Everything that the node says is wrong with it.
    pub conditions: Vec<ConditionView>,
    /// What cannot be seen from inside its container: neither healthy nor sick.
    pub blind: Vec<String>,
    /// What attempts that failed here say against it: such nodes are taken last. Null for nothing.
    pub doubt: Option<DoubtView>,
    pub cordon: Option<CordonView>,
    pub drain: Option<DrainView>,
    pub pool: Option<String>,
    /// Who put it there: `operator`, `join token` or `agent`.
    pub pool_by: Option<&'static str>,
    /// `head`, `worker`.
    pub roles: Vec<&'static str>,
    /// What jobs can ask for: the agent's, and over them those of operators.
    pub labels: BTreeMap<String, String>,
    /// By the agent's configuration.
    pub agent_labels: BTreeMap<String, String>,
    /// By operators.
    pub operator_labels: BTreeMap<String, String>,
    pub address: Option<String>,
    pub gpus: Vec<GpuView>,
    pub gpus_total: Option<usize>,
    pub gpus_in_use: usize,
    /// Those that a job could get now; none on a node that takes no jobs.
    pub gpus_free: usize,
    /// Ids of the jobs with a member here that the caller may see.
    pub jobs: Vec<String>,
    pub cpus: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub agent_version: Option<String>,
    /// Age of the newest word of the agent.
    pub last_word_ms_ago: u64,
    /// Number of the node's desired state, `ERA.N`.
    pub generation: String,
    /// The number that the agent says it holds.
    pub held: Option<String>,
    /// Marks (`GANG:EPOCH:MEMBER`) of members that run there and that the store does not know.
    pub unknown_members: Vec<String>,
    /// Only in the answer about one node.
    #[serde(flatten)]
    #[schema(value_type = NodeDetail)]
    pub detail: Option<NodeDetail>,
}

/// One thing that is wrong with a node.
#[derive(Debug, Serialize, ToSchema)]
pub struct ConditionView {
    pub rule: String,
    /// `node`, `gpu:UUID`, `port:DEVICE/N`, `mount:PATH`, `switch:PCI` or `collector:NAME`.
    pub component: String,
    /// info, warning, degraded, no-new-jobs, drain-after-job or fatal.
    pub level: &'static str,
    pub reason: String,
    pub evidence: String,
    /// What to do: IGNORE_NO_ACTION_REQUIRED, CHECK_USER_APP_AND_GPU, REBOOT_SYSTEM or HARDWARE_INSPECTION.
    pub action: String,
    /// What ends it.
    pub clears: String,
    /// By the node's clock.
    pub since: String,
    /// The rule is on trial: shown and never acted on.
    pub shadow: bool,
    /// An operator has put the node back into use since: it no longer counts.
    pub cleared: bool,
}

impl ConditionView {
    fn of(node: &Node, condition: &Condition) -> Self {
        let counts = node.standing().any(|standing| std::ptr::eq(standing, condition));
        ConditionView {
            rule: condition.rule.clone(),
            component: condition.component.clone(),
            level: condition.level.word(),
            reason: condition.reason.clone(),
            evidence: condition.evidence.clone(),
            action: condition.action.clone(),
            clears: condition.clears.clone(),
            since: wall_text(condition.since_ms),
            shadow: condition.shadow,
            cleared: !counts && !condition.shadow,
        }
    }
}

/// What a node's own page adds.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeDetail {
    pub hostname: Option<String>,
    #[schema(required = false)]
    pub doctor: Vec<DoctorLine>,
    /// Versions of what the agent found: driver, Python, Ray.
    #[schema(required = false)]
    pub versions: BTreeMap<String, String>,
    #[schema(required = false)]
    pub history: Vec<TransitionView>,
    /// When the newest sample was taken, by the node's clock.
    pub sampled: Option<String>,
    pub host: Option<HostView>,
    /// Null before the first sample.
    pub telemetry: Option<TelemetryView>,
    /// More readings of each GPU than a list has.
    #[schema(required = false)]
    pub gpu_details: Vec<GpuDetailView>,
    /// RDMA ports.
    #[schema(required = false)]
    pub ports: Vec<PortView>,
    /// How the agent's collectors fare.
    #[schema(required = false)]
    pub collectors: Vec<CollectorView>,
    /// Members of the jobs that the caller may see.
    #[schema(required = false)]
    pub members: Vec<NodeMemberView>,
    /// What the newest check of the network says of it; null before the first.
    pub network_test: Option<NetworkTestView>,
}

/// What is held against a node. It halves with each day, and with each attempt that ends well.
#[derive(Debug, Serialize, ToSchema)]
pub struct DoubtView {
    /// 1 for one attempt that the node was found to have ended.
    pub points: f64,
    /// The newest thing that was held against it.
    pub why: String,
    /// When, or when it was last looked at; RFC 3339.
    pub at: String,
}

/// Why a node takes no new work.
#[derive(Debug, Serialize, ToSchema)]
pub struct CordonView {
    pub by: String,
    pub why: String,
}

/// Why a node is taken out of use, and when what runs there goes back to the queue.
#[derive(Debug, Serialize, ToSchema)]
pub struct DrainView {
    pub by: String,
    pub why: String,
    /// RFC 3339.
    pub since: String,
    /// RFC 3339; null when what runs there may run to its end.
    pub deadline: Option<String>,
}

/// One finding of the agent's self-examination.
#[derive(Debug, Serialize, ToSchema)]
pub struct DoctorLine {
    pub check: String,
    pub level: String,
    pub text: String,
    pub advice: Option<String>,
}

/// One GPU of a node.
#[derive(Debug, Serialize, ToSchema)]
pub struct GpuView {
    pub uuid: String,
    pub index: u32,
    pub name: String,
    pub memory_bytes: u64,
    /// Allocated, perhaps to a job that the caller may not see.
    pub in_use: bool,
    pub job: Option<String>,
    pub sample: Option<GpuSampleView>,
}

/// Readings of one GPU; one that failed is null.
#[derive(Debug, Serialize, ToSchema)]
pub struct GpuSampleView {
    pub uuid: String,
    pub utilization_pct: Option<f32>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    pub temperature_c: Option<f32>,
    pub power_w: Option<f32>,
    pub power_limit_w: Option<f32>,
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
}

/// More readings of one GPU; one that failed is null. Counters are the driver's and may begin anew.
#[derive(Debug, Serialize, ToSchema)]
pub struct GpuDetailView {
    pub uuid: String,
    /// Fallen off the bus, as the driver says.
    pub lost: bool,
    pub memory_utilization_pct: Option<f32>,
    pub memory_temperature_c: Option<f32>,
    /// Shares of time, 0 to 1.
    pub sm_active: Option<f32>,
    pub tensor_active: Option<f32>,
    pub dram_active: Option<f32>,
    /// Why clocks are low: NVML's bits.
    pub clock_reasons: Option<u64>,
    pub pcie_received_bytes_per_s: Option<u64>,
    pub pcie_sent_bytes_per_s: Option<u64>,
    pub nvlink_received_bytes_per_s: Option<u64>,
    pub nvlink_sent_bytes_per_s: Option<u64>,
    pub nvlinks_down: Option<u32>,
    pub nvlink_errors: Option<u64>,
    pub ecc_corrected: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    pub pcie_replays: Option<u32>,
    pub last_xid: Option<u64>,
    /// Critical errors since the agent began.
    pub xids: u32,
    pub processes: Option<u32>,
    /// Processes of no gang.
    pub foreign_processes: Option<u32>,
}

/// One RDMA port; a reading that failed is null. Counters are the device's and may begin anew.
#[derive(Debug, Serialize, ToSchema)]
pub struct PortView {
    pub device: String,
    pub port: u32,
    /// RoCE, not InfiniBand.
    pub ethernet: Option<bool>,
    /// InfiniBand's number: 1 down, 2 init, 3 armed, 4 active.
    pub state: Option<u8>,
    /// InfiniBand's number: 2 polling, 3 disabled, 5 link up.
    pub physical_state: Option<u8>,
    pub rate_bytes_per_s: Option<u64>,
    pub received_bytes: Option<u64>,
    pub sent_bytes: Option<u64>,
    pub errors: Option<u64>,
    pub link_downed: Option<u64>,
    pub congestion: Option<u64>,
}

/// How one collector of the agent fares.
#[derive(Debug, Serialize, ToSchema)]
pub struct CollectorView {
    pub name: String,
    pub success: bool,
    /// How long its last reading took.
    pub duration_us: u32,
    /// Since the last reading that succeeded; null before the first.
    pub age_ms: Option<u32>,
}

/// Readings of a host; one that failed is null.
#[derive(Debug, Serialize, ToSchema)]
pub struct HostView {
    pub cpu_busy_pct: Option<f32>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    pub load1: Option<f32>,
    pub shm_free_bytes: Option<u64>,
}

/// What became of a node's samples since the coordinator began.
#[derive(Debug, Serialize, ToSchema)]
pub struct TelemetryView {
    pub received: u64,
    /// Not sent, by the agent's own count.
    pub dropped: u64,
    /// Came too soon after the one before, and are in no chart.
    pub hasty: u64,
    /// Carried a time that was not now: shown with the time at which they came.
    pub untimely: u64,
}

/// A member on a node.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeMemberView {
    pub job: String,
    #[serde(flatten)]
    pub member: MemberView,
}

fn host_view(sample: &NodeSample) -> HostView {
    HostView {
        cpu_busy_pct: sample.host.cpu_busy_pct,
        memory_used_bytes: sample.host.memory_used_bytes,
        memory_total_bytes: sample.host.memory_total_bytes,
        load1: sample.host.load1,
        shm_free_bytes: sample.host.shm_free_bytes,
    }
}

impl GpuDetailView {
    fn of(sample: &GpuSample) -> Self {
        GpuDetailView {
            uuid: sample.uuid.to_string(),
            lost: sample.lost,
            memory_utilization_pct: sample.memory_utilization_pct,
            memory_temperature_c: sample.memory_temperature_c,
            sm_active: sample.sm_active,
            tensor_active: sample.tensor_active,
            dram_active: sample.dram_active,
            clock_reasons: sample.clock_reasons,
            pcie_received_bytes_per_s: sample.pcie_received_bytes_per_s,
            pcie_sent_bytes_per_s: sample.pcie_sent_bytes_per_s,
            nvlink_received_bytes_per_s: sample.nvlink_received_bytes_per_s,
            nvlink_sent_bytes_per_s: sample.nvlink_sent_bytes_per_s,
            nvlinks_down: sample.nvlinks_down,
            nvlink_errors: sample.nvlink_errors,
            ecc_corrected: sample.ecc_corrected,
            ecc_uncorrected: sample.ecc_uncorrected,
            pcie_replays: sample.pcie_replays,
            last_xid: sample.last_xid,
            xids: sample.xids,
            processes: sample.processes,
            foreign_processes: sample.foreign_processes,
        }
    }
}

impl PortView {
    fn of(sample: &PortSample) -> Self {
        PortView {
            device: sample.device.clone(),
            port: sample.port,
            ethernet: sample.ethernet,
            state: sample.state,
            physical_state: sample.physical_state,
            rate_bytes_per_s: sample.rate_bytes_per_s,
            received_bytes: sample.received_bytes,
            sent_bytes: sample.sent_bytes,
            errors: sample.errors,
            link_downed: sample.link_downed,
            congestion: sample.congestion,
        }
    }
}

impl CollectorView {
    fn of(sample: &CollectorSample) -> Self {
        CollectorView {
            name: sample.name.clone(),
            success: sample.success,
            duration_us: sample.duration_us,
            age_ms: sample.age_ms,
        }
    }
}

impl GpuSampleView {
    fn of(sample: &GpuSample) -> Self {
        GpuSampleView {
            uuid: sample.uuid.to_string(),
            utilization_pct: sample.utilization_pct,
            memory_used_bytes: sample.memory_used_bytes,
            memory_total_bytes: sample.memory_total_bytes,
            temperature_c: sample.temperature_c,
            power_w: sample.power_w,
            power_limit_w: sample.power_limit_w,
            sm_clock_mhz: sample.sm_clock_mhz,
            memory_clock_mhz: sample.memory_clock_mhz,
        }
    }
}

/// A node together with what the views need beside it.
pub(in crate::api) struct NodeFacts<'a> {
    pub snapshot: &'a NodeSnapshot,
    pub sample: Option<&'a NodeSample>,
    pub counts: Option<Counts>,
    /// Whether the caller may see the job that owns a gang.
    pub sees: &'a dyn Fn(&Gang) -> bool,
    pub now: Timestamp,
}

impl NodeFacts<'_> {
    /// Members here that may have processes.
    fn holding(&self) -> impl Iterator<Item = (&Gang, MemberId, &Member)> {
        self.snapshot.gangs.iter().flat_map(|gang| {
            let here = gang.members_on(&self.snapshot.node.id);
            here.filter(|(_, member)| member.holds()).map(|(id, member)| (&**gang, id, member))
        })
    }

    /// The node's one word, and how many of its GPUs are in use.
    pub fn word(&self) -> (&'static str, usize) {
        let in_use = self.holding().map(|(_, _, member)| member.gpus.len()).sum();
        (self.snapshot.node.word(in_use, self.holding().count()), in_use)
    }

    fn gpu(&self, gpu: &Gpu) -> GpuView {
        let owner = self.holding().find(|(_, _, member)| member.gpus.contains(&gpu.uuid));
        let sample = self.sample.and_then(|s| s.gpus.iter().find(|s| s.uuid == gpu.uuid));
        GpuView {
            uuid: gpu.uuid.to_string(),
            index: gpu.index,
            name: gpu.name.clone(),
            memory_bytes: gpu.memory_bytes,
            in_use: owner.is_some(),
            job: owner.filter(|(gang, ..)| (self.sees)(gang)).map(|(g, ..)| g.job.to_string()),
            sample: sample.map(GpuSampleView::of),
        }
    }

    fn jobs(&self) -> Vec<String> {
        let seen = self.holding().filter(|(gang, ..)| (self.sees)(gang));
        let mut jobs: Vec<String> = seen.map(|(gang, ..)| gang.job.to_string()).collect();
        jobs.sort();
        jobs.dedup();
        jobs
    }

    fn readings<T>(&self, of: impl Fn(&NodeSample) -> Vec<T>) -> Vec<T> {
        self.sample.map(of).unwrap_or_default()
    }

    fn detail(&self, names: &Names) -> NodeDetail {
        let node = &self.snapshot.node;
        let inventory = node.inventory.as_ref();
        let doctor = inventory.map(|i| i.doctor.as_slice()).unwrap_or_default();
        let versions = inventory.map(|i| i.versions.as_slice()).unwrap_or_default();
        NodeDetail {
            hostname: inventory.map(|inventory| inventory.hostname.clone()),
            doctor: doctor
                .iter()
                .map(|(check, level, text, advice)| DoctorLine {
                    check: check.clone(),
                    level: level.clone(),
                    text: text.clone(),
                    advice: advice.clone(),
                })
                .collect(),
            versions: versions.iter().cloned().collect(),
            history: history(&node.history),
            network_test: None,
            sampled: self.sample.map(|sample| wall_text(sample.wall_ms)),
            host: self.sample.map(host_view),
            telemetry: self.counts.map(|counts| TelemetryView {
                received: counts.received,
                dropped: counts.dropped,
                hasty: counts.hasty,
                untimely: counts.untimely,
            }),
            gpu_details: self.readings(|s| s.gpus.iter().map(GpuDetailView::of).collect()),
            ports: self.readings(|sample| sample.ports.iter().map(PortView::of).collect()),
            collectors: self
                .readings(|sample| sample.collectors.iter().map(CollectorView::of).collect()),
            members: self
                .holding()
                .filter(|(gang, ..)| (self.sees)(gang))
                .map(|(gang, id, member)| NodeMemberView {
                    job: gang.job.to_string(),
                    member: MemberView::of(id, member, names),
                })
                .collect(),
        }
    }
}

impl NodeView {
    /// The row of a list.
    pub(in crate::api) fn of(facts: &NodeFacts<'_>) -> Self {
        let node: &Node = &facts.snapshot.node;
        let inventory = node.inventory.as_ref();
        let (state, in_use) = facts.word();
        let roles = inventory.map(|i| [("head", i.head_role), ("worker", i.worker_role)]);
        NodeView {
            id: node.id.to_string(),
            name: node.name.clone(),
            state,
            reachability: reachability_word(node.reachability),
            lifecycle: lifecycle_word(node.lifecycle),
            health: node.health_word(),
            conditions: node.health.conditions.iter().map(|c| ConditionView::of(node, c)).collect(),
            blind: node.health.blind.clone(),
            doubt: node.doubt.as_ref().map(|doubt| DoubtView {
                points: f64::from(doubt.at(facts.now)) / 1000.0,
                why: doubt.why.clone(),
                at: wall_text(doubt.at.wall_ms),
            }),
            cordon: node
                .cordon
                .as_ref()
                .map(|cordon| CordonView { by: cordon.by.clone(), why: cordon.why.clone() }),
            drain: node.drain.as_ref().map(|drain| DrainView {
                by: drain.by.clone(),
                why: drain.why.clone(),
                since: wall_text(drain.since.wall_ms),
                deadline: drain
                    .deadline_ms
                    .map(|ms| wall_text(drain.since.wall_ms.saturating_add(ms))),
            }),
            pool: node.pool().map(str::to_owned),
            pool_by: pool_by(node),
            roles: roles
                .into_iter()
                .flatten()
                .filter_map(|(role, has)| has.then_some(role))
                .collect(),
            labels: owned(node.labels()),
            agent_labels: inventory.map(|i| i.labels.iter().cloned().collect()).unwrap_or_default(),
            operator_labels: node.set_labels.clone(),
            address: inventory.map(|i| i.address.to_string()),
            gpus: inventory
                .map(|i| i.gpus.iter().map(|gpu| facts.gpu(gpu)).collect())
                .unwrap_or_default(),
            gpus_total: inventory.map(|i| i.gpus.len()),
            gpus_in_use: in_use,
            gpus_free: facts.snapshot.gpus().free,
            jobs: facts.jobs(),
            cpus: inventory.map(|i| f64::from(i.cpus_milli) / 1000.0),
            memory_bytes: inventory.map(|i| i.memory_bytes),
            agent_version: inventory.map(|i| i.agent_version.clone()),
            last_word_ms_ago: facts.now.boot_ms.saturating_sub(node.last_word_ms),
            generation: node.generation.to_string(),
            held: node.held.map(|held| held.to_string()),
            unknown_members: node.unknown.iter().map(ToString::to_string).collect(),
            detail: None,
        }
    }

    /// The node's own page.
    pub(in crate::api) fn detailed(facts: &NodeFacts<'_>, names: &Names) -> Self {
        NodeView { detail: Some(facts.detail(names)), ..NodeView::of(facts) }
    }
}

fn owned(labels: BTreeMap<&str, &str>) -> BTreeMap<String, String> {
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Whose word about its pool counts.
fn pool_by(node: &Node) -> Option<&'static str> {
    match (&node.set_pool, &node.bound_pool, &node.inventory) {
        (Some(_), _, _) => Some("operator"),
        (None, Some(_), _) => Some("join token"),
        (None, None, Some(_)) => Some("agent"),
        (None, None, None) => None,
    }
}

fn reachability_word(reachability: Reachability) -> &'static str {
    match reachability {
        Reachability::Reachable => "reachable",
        Reachability::Suspect => "suspect",
        Reachability::Lost => "lost",
    }
}

fn lifecycle_word(lifecycle: Lifecycle) -> &'static str {
    match lifecycle {
        Lifecycle::Pending => "pending",
        Lifecycle::Online => "online",
        Lifecycle::Draining => "draining",
        Lifecycle::Offline => "offline",
    }
}
