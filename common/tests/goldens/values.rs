//! The values behind the golden bytes: together they use every variant and every option.

use std::net::{IpAddr, Ipv4Addr};

use gangline_common::ids::{
    Epoch, GangId, Generation, GpuId, JobId, MemberId, MemberKey, PortBlock,
};
use gangline_common::wire::packed::PackedLogChunk;
use gangline_common::wire::request::*;
use gangline_common::wire::tlv::{self, Hello, JoinGrant, JoinRequest, Refuse, Welcome};
use gangline_common::wire::v1::*;

fn gang(text: &str) -> GangId {
    GangId::new(text).expect("a valid gang id")
}

fn job(text: &str) -> JobId {
    JobId::new(text).expect("a valid job id")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("a valid address")
}

fn gpu(text: &str) -> GpuId {
    GpuId(text.into())
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect()
}

const EPOCH: Epoch = Epoch { era: 2, n: 1 };

pub fn key(member: MemberId) -> MemberKey {
    MemberKey { gang: gang("g-7f3k2"), epoch: EPOCH, member }
}

pub fn hello() -> Hello {
    Hello { minor_oldest: 0, minor: 3, build: "0.1.0".into(), instance: "k3x9".into() }
}

pub fn welcome() -> Welcome {
    Welcome { minor: 2, build: "0.1.0".into(), node: "n-4bq7".into(), era: 7, heartbeat_ms: 2000 }
}

pub fn refuse() -> Refuse {
    Refuse { code: tlv::REFUSE_CLONE, text: "already here".into() }
}

pub fn join_request() -> JoinRequest {
    JoinRequest {
        token_id: "k3x9".into(),
        token_secret: vec![0xa5; 4],
        csr: vec![0x30, 0x82, 0x01, 0x00],
        node_name: "gpu-01".into(),
        build: "0.1.0".into(),
    }
}

pub fn join_grant() -> JoinGrant {
    JoinGrant {
        node: "n-4bq7".into(),
        certificate: vec![0x30, 0x82, 0x02],
        ca: vec![0x30, 0x82, 0x03],
    }
}

fn doctor(check: &str, level: DoctorLevel, text: &str, advice: Option<&str>) -> DoctorLine {
    DoctorLine { check: check.into(), level, text: text.into(), advice: advice.map(Into::into) }
}

fn gpu_identity(uuid: &str, index: u32, pci_bus_id: Option<&str>) -> GpuIdentity {
    GpuIdentity {
        uuid: gpu(uuid),
        index,
        name: "NVIDIA H100".into(),
        memory_bytes: 80 << 30,
        pci_bus_id: pci_bus_id.map(Into::into),
    }
}

pub fn inventory_full() -> AgentMessage {
    AgentMessage::Inventory(Box::new(NodeInventory {
        name: "gpu-01".into(),
        hostname: "gpu-01.lab".into(),
        agent_version: "0.1.0".into(),
        roles: vec![NodeRole::Head, NodeRole::Worker],
        pool: Some("h100-a".into()),
        labels: pairs(&[("rack", "r7"), ("zone", "")]),
        address: ip("10.20.0.1"),
        interface: Some("bond0".into()),
        boot_id: "b007-1d".into(),
        network_namespace: 4_026_531_840,
        container_start_ms: 123_456,
        gpus: vec![
            gpu_identity("GPU-aa", 0, Some("00000000:18:00.0")),
            gpu_identity("GPU-bb", 1, None),
        ],
        cpus_milli: 64_000,
        memory_bytes: 1 << 40,
        shm_bytes: 65_536,
        pids_limit: Some(250),
        ports: PortBlock { base: 20_000, size: 8192 },
        versions: pairs(&[("ray", "2.49.0")]),
        doctor: vec![
            doctor("nvml", DoctorLevel::Ok, "2 GPUs", None),
            doctor("shm", DoctorLevel::Warning, "64 KiB", Some("--shm-size")),
            doctor("xid", DoctorLevel::Blind, "no kmsg", None),
            doctor("ray", DoctorLevel::Error, "missing", Some("install ray")),
        ],
    }))
}

pub fn inventory_bare() -> AgentMessage {
    AgentMessage::Inventory(Box::new(NodeInventory {
        name: "cpu".into(),
        hostname: String::new(),
        agent_version: "0.1.0".into(),
        roles: Vec::new(),
        pool: None,
        labels: Vec::new(),
        address: ip("fd00::1"),
        interface: None,
        boot_id: String::new(),
        network_namespace: 0,
        container_start_ms: 0,
        gpus: Vec::new(),
        cpus_milli: 250,
        memory_bytes: 251,
        shm_bytes: 65_535,
        pids_limit: None,
        ports: PortBlock { base: 1024, size: 1 },
        versions: Vec::new(),
        doctor: Vec::new(),
    }))
}

fn ended(
    how: EndedHow,
    asked: bool,
    last_output: &str,
    swept: u32,
    logs_complete: bool,
) -> MemberState {
    MemberState::Ended(Ended { how, asked, last_output: last_output.into(), swept, logs_complete })
}

fn member_states() -> Vec<MemberState> {
    let other = MemberKey {
        gang: gang("g-old"),
        epoch: Epoch { era: 1, n: 9 },
        member: MemberId::Rank(300),
    };
    vec![
        MemberState::Starting,
        MemberState::Running { pid: 70_000 },
        MemberState::Stopping,
        ended(EndedHow::Exited { code: -1 }, false, "Traceback", 0, true),
        ended(EndedHow::Signalled { signal: 9 }, true, "", 12, false),
        ended(EndedHow::Failed { reason: "no shim record".into() }, false, "é", 0, false),
        MemberState::Refused(Refusal::PortBusy { port: 20_001 }),
        MemberState::Refused(Refusal::GpuHeld { gpu: gpu("GPU-aa"), by: other }),
        MemberState::Refused(Refusal::StaleEpoch { highest: Epoch { era: 2, n: 2 } }),
        MemberState::Refused(Refusal::Impossible { reason: "no gpu".into() }),
        MemberState::Refused(Refusal::Unfit { reason: "sick".into() }),
    ]
}

fn driver(node: &str, member: Option<MemberId>, address: Option<&str>) -> Option<RayDriver> {
    Some(RayDriver { ray_node_id: node.into(), member, address: address.map(Into::into) })
}

fn entrypoint_states() -> Vec<EntrypointState> {
    vec![
        EntrypointState::Waiting,
        EntrypointState::Running {
            driver: driver("aa01", Some(MemberId::Head), Some("10.20.0.1")),
        },
        EntrypointState::Running { driver: None },
        EntrypointState::Succeeded { driver: driver("aa02", Some(MemberId::Rank(1)), None) },
        EntrypointState::Failed {
            driver: driver("aa03", None, None),
            exit_code: Some(1),
            error_type: Some("OOM".into()),
            message: "killed".into(),
        },
        EntrypointState::Failed {
            driver: None,
            exit_code: None,
            error_type: None,
            message: String::new(),
        },
    ]
}

fn ray_cluster() -> RayCluster {
    RayCluster {
        ready: true,
        session: "session_1".into(),
        version: "2.49.0".into(),
        nodes: vec![
            RayNode {
                member: MemberId::Head,
                ray_node_id: "aa01".into(),
                address: "10.20.0.1".into(),
                alive: true,
                state_message: String::new(),
            },
            RayNode {
                member: MemberId::Rank(1),
                ray_node_id: "aa02".into(),
                address: "10.20.0.2".into(),
                alive: false,
                state_message: "drained".into(),
            },
        ],
    }
}

fn guest_reports() -> Vec<GuestReport> {
    let report = |operation: &str, state| GuestReport { operation: operation.into(), state };
    vec![
        report("j2-1", GuestState::Prepared),
        report("j3-1", GuestState::Failed { reason: "no room".into() }),
        report("j4-1", GuestState::Swept { log_bytes: Some(300) }),
    ]
}

fn guests() -> Vec<GuestAssignment> {
    let guest = |name: &str, attempt, ranks: &[u32], order| GuestAssignment {
        operation: format!("j-{name}-{attempt}"),
        job: job(&format!("j-{name}")),
        attempt,
        ranks: ranks.to_vec(),
        order,
    };
    let full = GuestJob {
        argv: vec!["x".into()],
        job_name: "a".into(),
        project: "vision".into(),
        nnodes: 1,
        gpus_per_node: 2,
        addresses: vec![ip("10.20.0.2")],
        env: pairs(&[("A", "b")]),
        secret_names: vec!["A".into()],
        workdir: Some("/w".into()),
        code: Some(CodeTree { tree: "blake3:01".into(), shared_root: None, user: "al".into() }),
        job_directory: Some("/s/a".into()),
        checkpoint_directory: None,
        directories: vec!["tb".into()],
        config_files: pairs(&[("c", "d")]),
        grace_ms: 5000,
    };
    let bare = GuestJob {
        argv: Vec::new(),
        job_name: String::new(),
        project: String::new(),
        nnodes: 2,
        gpus_per_node: 0,
        addresses: Vec::new(),
        env: Vec::new(),
        secret_names: Vec::new(),
        workdir: None,
        code: None,
        job_directory: None,
        checkpoint_directory: None,
        directories: Vec::new(),
        config_files: Vec::new(),
        grace_ms: 0,
    };
    vec![
        guest("a", 1, &[1], GuestOrder::Prepare(Box::new(full))),
        guest("b", 1, &[0, 1], GuestOrder::Run(Box::new(bare))),
        guest("c", 2, &[0], GuestOrder::Watch),
        guest("d", 1, &[0], GuestOrder::Stop),
        guest("e", 1, &[1], GuestOrder::Sweep { log_directory: Some("/s/e".into()) }),
    ]
}

fn saved() -> SavedReport {
    SavedReport {
        newest: Some(SavedCheckpoint {
            name: "global_step_20".into(),
            step: Some(20),
            bytes: 70_000,
            age_ms: 300,
        }),
        count: 2,
        bytes: 1 << 30,
        room: RoomReport {
            free_bytes: 300,
            next_bytes: 70_000,
            is_low: true,
            removed: 1,
            last_removed: Some("a".into()),
        },
        copy: Some(CopyReport { newest: Some("b".into()), problem: Some("no room".into()) }),
    }
}

pub fn report() -> AgentMessage {
    let members = [MemberId::Head].into_iter().chain((0..).map(MemberId::Rank));
    AgentMessage::Report(NodeReport {
        held: Generation { era: 2, n: 300 },
        members: members
            .zip(member_states())
            .map(|(member, state)| MemberReport {
                key: key(member),
                state,
                guests: if member == MemberId::Head { guest_reports() } else { Vec::new() },
                checkpoint: (member == MemberId::Rank(0))
                    .then(|| CheckpointReport { name: "global_step_40".into(), age_ms: 70_000 }),
                saved: (member == MemberId::Rank(0)).then(saved),
                usage: (member == MemberId::Rank(0))
                    .then_some(UsageReport { measured_ms: 70_000, busy_ms: 300 }),
            })
            .collect(),
        gangs: vec![
            GangReport {
                gang: gang("g-7f3k2"),
                epoch: EPOCH,
                ray: Some(ray_cluster()),
                entrypoints: (1..)
                    .zip(entrypoint_states())
                    .map(|(n, state)| EntrypointReport { operation: format!("j1-{n}"), state })
                    .collect(),
            },
            GangReport {
                gang: gang("g-two"),
                epoch: Epoch { era: 2, n: 65_536 },
                ray: None,
                entrypoints: Vec::new(),
            },
        ],
    })
}

pub fn heartbeat() -> AgentMessage {
    AgentMessage::Heartbeat(Heartbeat { sequence: 1 << 32, held: Generation { era: 2, n: 300 } })
}

pub fn renew_request() -> AgentMessage {
    AgentMessage::RenewRequest(RenewRequest { csr: vec![0x30, 0x82, 0x00, 0xff] })
}

/// One condition of every level.
pub fn health() -> AgentMessage {
    use HealthLevel::*;
    let condition = |(n, level): (u64, HealthLevel)| Condition {
        rule: format!("r{n}"),
        component: "gpu:a".into(),
        level,
        blocks_start: n == 4,
        shadow: n == 2,
        action: "X".into(),
        reason: "is".into(),
        evidence: "1 of 2".into(),
        clears: "boot".into(),
        since_ms: n,
    };
    let levels = [Info, Warning, Degraded, NoNewJobs, DrainAfterJob, Fatal];
    let conditions = (1..).zip(levels).map(condition).collect();
    AgentMessage::Health(NodeHealth { conditions, blind: vec!["kmsg".into()] })
}

pub fn health_cleared() -> CoordinatorMessage {
    CoordinatorMessage::HealthCleared(HealthCleared {
        conditions: vec![ClearedCondition {
            rule: "r6".into(),
            component: "gpu:a".into(),
            since_ms: 1_760_000_000_123,
        }],
    })
}

pub fn desired_header() -> CoordinatorMessage {
    CoordinatorMessage::DesiredHeader(DesiredHeader {
        generation: Generation { era: 2, n: 301 },
        count: 3,
    })
}

fn desired_gang(n: u32, order: Order) -> CoordinatorMessage {
    CoordinatorMessage::DesiredGang(Box::new(DesiredGang {
        gang: gang("g-7f3k2"),
        epoch: Epoch { era: 2, n },
        order,
    }))
}

pub fn desired_gang_ray() -> CoordinatorMessage {
    let block = |base| PortBlock { base, size: 256 };
    let assignment = Assignment {
        job: job("j-train"),
        attempt: 1,
        job_name: "train".into(),
        project: "vision".into(),
        launcher: Launcher::Ray,
        nnodes: 2,
        gpus_per_node: 8,
        addresses: vec![ip("10.20.0.1"), ip("fd00::2")],
        head_address: ip("10.20.0.1"),
        head_ports: block(20_000),
        members: vec![
            MemberAssignment {
                member: MemberId::Head,
                gpus: Vec::new(),
                cpus_milli: 2000,
                memory_bytes: 4 << 30,
                ports: block(20_000),
            },
            MemberAssignment {
                member: MemberId::Rank(0),
                gpus: vec![gpu("GPU-aa"), gpu("GPU-bb")],
                cpus_milli: 60_000,
                memory_bytes: 512 << 30,
                ports: block(20_256),
            },
        ],
        entrypoints: vec![
            Entrypoint {
                operation: "j-train-1".into(),
                argv: vec![
                    "python".into(),
                    Argument {
                        pieces: vec![
                            Piece::Text("n=".into()),
                            Piece::Variable("GANGLINE_NNODES".into()),
                        ],
                    },
                ],
                driver: MemberId::Head,
            },
            Entrypoint {
                operation: "j-train-1b".into(),
                argv: Vec::new(),
                driver: MemberId::Rank(1),
            },
        ],
        guests: guests(),
        argv: Vec::new(),
        env: pairs(&[("LR", "0.1")]),
        secret_names: vec!["LR".into()],
        workdir: Some("/w".into()),
        code: Some(CodeTree {
            tree: "blake3:00".into(),
            shared_root: Some("/s".into()),
            user: "al".into(),
        }),
        job_directory: Some("/s/j".into()),
        checkpoint_directory: Some("/s/j/c".into()),
        checkpoint_keep: Some(3),
        checkpoint_may_go: true,
        checkpoint_copy: true,
        directories: vec!["wandb".into()],
        config_files: pairs(&[("a.yaml", "x: 1")]),
        grace_ms: 30_000,
        start_timeout_ms: 600_000,
        on_disconnect: OnDisconnect::Fence { after_ms: 60_000 },
        auth_token: Secret("t0ken".into()),
        run_as: Some((1000, 100)),
        log_files: vec!["outputs/**/*.log".into()],
        log_bytes: Some(1 << 30),
    };
    desired_gang(1, Order::Run(Box::new(assignment)))
}

pub fn desired_gang_command() -> CoordinatorMessage {
    let assignment = Assignment {
        job: job("j-cmd"),
        attempt: 0,
        job_name: String::new(),
        project: String::new(),
        launcher: Launcher::Command,
        nnodes: 1,
        gpus_per_node: 0,
        addresses: Vec::new(),
        head_address: Ipv4Addr::LOCALHOST.into(),
        head_ports: PortBlock { base: 65_280, size: 255 },
        members: Vec::new(),
        entrypoints: Vec::new(),
        guests: Vec::new(),
        argv: vec!["/bin/true".into(), "a b".into()],
        env: Vec::new(),
        secret_names: Vec::new(),
        workdir: None,
        code: None,
        job_directory: None,
        checkpoint_directory: None,
        checkpoint_keep: None,
        checkpoint_may_go: false,
        checkpoint_copy: false,
        directories: Vec::new(),
        config_files: Vec::new(),
        grace_ms: 0,
        start_timeout_ms: u64::MAX,
        on_disconnect: OnDisconnect::StopAfter { after_ms: 10_000 },
        auth_token: Secret(String::new()),
        run_as: None,
        log_files: Vec::new(),
        log_bytes: None,
    };
    desired_gang(1, Order::Run(Box::new(assignment)))
}

pub fn desired_gang_stop() -> CoordinatorMessage {
    desired_gang(u32::MAX, Order::Stop { keep_scene: true })
}

pub fn heartbeat_ack() -> CoordinatorMessage {
    CoordinatorMessage::HeartbeatAck(HeartbeatAck { sequence: 250, wall_ms: 1_760_000_000_123 })
}

pub fn log_ack() -> CoordinatorMessage {
    CoordinatorMessage::LogAck(LogAck {
        key: key(MemberId::Head),
        file: "driver.log".into(),
        offset: 251,
    })
}

pub fn renewed() -> CoordinatorMessage {
    CoordinatorMessage::Renewed(Renewed { certificate: vec![0x30, 0x01], ca: vec![0x30, 0x02] })
}

pub fn sample_full() -> NodeSample {
    NodeSample {
        wall_ms: 1_760_000_000_123,
        dropped: 2,
        interval_ms: 1000,
        host: HostSample {
            cpu_busy_pct: Some(12.5),
            memory_used_bytes: Some(1024),
            memory_total_bytes: Some(1 << 40),
            load1: Some(0.75),
            shm_free_bytes: Some(0),
            cpu_pressure_pct: Some(1.5),
            memory_pressure_pct: Some(0.25),
            io_pressure_pct: Some(3.0),
            oom_kills: Some(2),
            pids: Some(250),
            network_received_bytes: Some(251),
            network_sent_bytes: Some(65_536),
            state_free_bytes: Some(1 << 30),
            temp_free_bytes: Some(2 << 30),
            shared_free_bytes: Some(1 << 50),
            clock_offset_ms: Some(-3),
            agent_memory_bytes: Some(9 << 20),
            agent_cpu_pct: Some(0.5),
        },
        gpus: vec![
            GpuSample {
                uuid: gpu("GPU-aa"),
                lost: false,
                utilization_pct: Some(99.5),
                memory_utilization_pct: Some(54.0),
                memory_used_bytes: Some(65_536),
                memory_total_bytes: Some(80 << 30),
                temperature_c: Some(61.0),
                memory_temperature_c: Some(72.0),
                power_w: Some(350.25),
                power_limit_w: Some(700.0),
                energy_mj: Some(123_456_789),
                sm_clock_mhz: Some(1980),
                memory_clock_mhz: Some(2619),
                clock_reasons: Some(64),
                sm_active: Some(0.875),
                tensor_active: Some(0.5),
                dram_active: Some(0.625),
                pcie_received_bytes_per_s: Some(1 << 20),
                pcie_sent_bytes_per_s: Some(2 << 20),
                nvlink_received_bytes_per_s: Some(1 << 33),
                nvlink_sent_bytes_per_s: Some(16 << 30),
                nvlinks_down: Some(1),
                nvlink_errors: Some(17),
                ecc_corrected: Some(5),
                ecc_uncorrected: Some(0),
                pcie_replays: Some(3),
                last_xid: Some(79),
                xids: 2,
                processes: Some(3),
                foreign_processes: Some(1),
            },
            GpuSample { lost: true, ..GpuSample::unread(gpu("GPU-bb")) },
        ],
        ports: vec![
            PortSample {
                device: "mlx5_0".into(),
                port: 1,
                ethernet: Some(false),
                state: Some(4),
                physical_state: Some(5),
                rate_bytes_per_s: Some(50_000_000_000),
                received_bytes: Some(1 << 40),
                sent_bytes: Some(1 << 41),
                errors: Some(7),
                link_downed: Some(1),
                congestion: Some(300),
            },
            PortSample { device: "rxe0".into(), port: 1, ..PortSample::default() },
        ],
        collectors: vec![
            CollectorSample {
                name: "host".into(),
                success: true,
                duration_us: 350,
                age_ms: Some(12),
            },
            CollectorSample {
                name: "rdma".into(),
                success: false,
                duration_us: 15_000_000,
                age_ms: None,
            },
        ],
    }
}

pub fn sample_blind() -> NodeSample {
    NodeSample::default()
}

pub fn log_chunk() -> LogChunk {
    LogChunk {
        key: key(MemberId::Rank(3)),
        file: "rank.out".into(),
        offset: 1 << 20,
        bytes: b"step 1\n\x00\xff".to_vec(),
        read_ms: 1_767_225_600_000,
    }
}

pub fn packed_log_chunk() -> PackedLogChunk {
    PackedLogChunk {
        key: key(MemberId::Rank(3)),
        file: "rank.out".into(),
        offset: 1 << 20,
        length: 9,
        // One frame of Zstandard with one raw block, which any version of it reads.
        packed: b"\x28\xb5\x2f\xfd\x20\x09\x49\x00\x00step 1\n\x00\xff".to_vec(),
        read_ms: 1_767_225_600_000,
    }
}

fn request(subject: RaySubject, state: Option<&str>) -> AgentRequest {
    let (gang, epoch) = (key(MemberId::Head).gang, key(MemberId::Head).epoch);
    let state = state.map(str::to_owned);
    AgentRequest::RayState(RayStateRequest { gang, epoch, subject, state, limit: 1000 })
}

pub fn request_nodes() -> AgentRequest {
    request(RaySubject::Nodes, None)
}

pub fn request_actors() -> AgentRequest {
    request(RaySubject::Actors, Some("ALIVE"))
}

pub fn request_groups() -> AgentRequest {
    request(RaySubject::PlacementGroups, None)
}

pub fn request_node_metrics() -> AgentRequest {
    AgentRequest::NodeMetrics
}

pub fn request_ray_metrics() -> AgentRequest {
    AgentRequest::RayMetrics { key: key(MemberId::Rank(3)) }
}

pub fn request_stacks() -> AgentRequest {
    AgentRequest::Stacks { key: key(MemberId::Rank(3)) }
}

pub fn request_scene() -> AgentRequest {
    AgentRequest::Scene { key: key(MemberId::Head) }
}

pub fn request_checkpoints() -> AgentRequest {
    AgentRequest::Checkpoints { directory: "/s/j/c".into() }
}

pub fn request_inject(fault: Fault) -> AgentRequest {
    AgentRequest::Inject(fault)
}

pub fn request_keep_scene() -> AgentRequest {
    AgentRequest::KeepScene { key: key(MemberId::Rank(3)), hung: true }
}

pub fn request_write_report() -> AgentRequest {
    AgentRequest::WriteReport { directory: "/s/j".into(), attempt: 2, text: "why\n".into() }
}

pub fn answer_body() -> AnswerHead {
    AnswerHead::Body { length: 4 << 20 }
}

pub fn failed(reason: FailureReason, text: &str) -> AnswerHead {
    AnswerHead::Failed(RequestFailure { reason, text: text.to_owned() })
}

pub fn answer_piece() -> AnswerPiece {
    AnswerPiece { bytes: b"{}\x00\xff".to_vec() }
}

pub fn code_request() -> CodeRequest {
    CodeRequest { job: job("j-train"), tree: "blake3:00".into() }
}

pub fn code_part_bytes() -> CodePart {
    CodePart::Bytes { bytes: b"\x00\xff".to_vec() }
}

pub fn code_part_refused() -> CodePart {
    CodePart::Refused { reason: "no".into() }
}
