//! Strategies that generate messages, every field of them, for the round-trip properties.

use std::net::IpAddr;

use gangline_common::ids::{
    Epoch, GangId, Generation, GpuId, JobId, MemberId, MemberKey, PortBlock,
};
use gangline_common::wire::request::*;
use gangline_common::wire::v1::*;
use proptest::array;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

const NAME: &str = "[A-Za-z0-9_-]{1,64}";

fn text() -> impl Strategy<Value = String> {
    // Any characters, of any length in bytes.
    vec(any::<char>(), 0..20).prop_map(String::from_iter)
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..4)
}

fn pairs() -> impl Strategy<Value = Vec<(String, String)>> {
    vec((text(), text()), 0..4)
}

fn blob() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..300)
}

/// Every float that is equal to itself.
fn float() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("NaN is not equal to itself", |x| !x.is_nan())
}

fn gang() -> impl Strategy<Value = GangId> {
    NAME.prop_map(|text| GangId::new(text).expect("a valid name"))
}

fn gpu() -> impl Strategy<Value = GpuId> {
    text().prop_map(GpuId)
}

fn epoch() -> impl Strategy<Value = Epoch> {
    (any::<u32>(), any::<u32>()).prop_map(|(era, n)| Epoch { era, n })
}

fn generation() -> impl Strategy<Value = Generation> {
    (any::<u32>(), any::<u64>()).prop_map(|(era, n)| Generation { era, n })
}

fn member() -> impl Strategy<Value = MemberId> {
    prop_oneof![Just(MemberId::Head), any::<u32>().prop_map(MemberId::Rank)]
}

fn key() -> impl Strategy<Value = MemberKey> {
    (gang(), epoch(), member()).prop_map(|(gang, epoch, member)| MemberKey { gang, epoch, member })
}

fn ports() -> impl Strategy<Value = PortBlock> {
    any::<(u16, u16)>().prop_map(|(base, size)| PortBlock { base, size })
}

fn role() -> impl Strategy<Value = NodeRole> {
    prop_oneof![Just(NodeRole::Head), Just(NodeRole::Worker)]
}

fn doctor_line() -> impl Strategy<Value = DoctorLine> {
    let level = prop_oneof![
        Just(DoctorLevel::Ok),
        Just(DoctorLevel::Warning),
        Just(DoctorLevel::Blind),
        Just(DoctorLevel::Error),
    ];
    (text(), level, text(), of(text())).prop_map(|(check, level, text, advice)| DoctorLine {
        check,
        level,
        text,
        advice,
    })
}

fn gpu_identity() -> impl Strategy<Value = GpuIdentity> {
    (gpu(), any::<u32>(), text(), any::<u64>(), of(text())).prop_map(
        |(uuid, index, name, memory_bytes, pci_bus_id)| GpuIdentity {
            uuid,
            index,
            name,
            memory_bytes,
            pci_bus_id,
        },
    )
}

fn inventory() -> impl Strategy<Value = NodeInventory> {
    let who = (text(), text(), text(), vec(role(), 0..3), of(text()), pairs());
    let place = (any::<IpAddr>(), of(text()), text(), any::<u64>(), any::<u64>());
    let holds = (vec(gpu_identity(), 0..4), any::<u32>(), any::<[u64; 2]>(), of(any::<u64>()));
    let rest = (ports(), pairs(), vec(doctor_line(), 0..4));
    (who, place, holds, rest).prop_map(|(who, place, holds, rest)| {
        let (name, hostname, agent_version, roles, pool, labels) = who;
        let (address, interface, boot_id, network_namespace, container_start_ms) = place;
        let (gpus, cpus_milli, [memory_bytes, shm_bytes], pids_limit) = holds;
        let (ports, versions, doctor) = rest;
        NodeInventory {
            name,
            hostname,
            agent_version,
            roles,
            pool,
            labels,
            address,
            interface,
            boot_id,
            network_namespace,
            container_start_ms,
            gpus,
            cpus_milli,
            memory_bytes,
            shm_bytes,
            pids_limit,
            ports,
            versions,
            doctor,
        }
    })
}

fn ended() -> impl Strategy<Value = Ended> {
    let how = prop_oneof![
        any::<i32>().prop_map(|code| EndedHow::Exited { code }),
        any::<i32>().prop_map(|signal| EndedHow::Signalled { signal }),
        text().prop_map(|reason| EndedHow::Failed { reason }),
    ];
    (how, any::<bool>(), text(), any::<u32>(), any::<bool>()).prop_map(
        |(how, asked, last_output, swept, logs_complete)| Ended {
            how,
            asked,
            last_output,
            swept,
            logs_complete,
        },
    )
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        any::<u16>().prop_map(|port| Refusal::PortBusy { port }),
        (gpu(), key()).prop_map(|(gpu, by)| Refusal::GpuHeld { gpu, by }),
        epoch().prop_map(|highest| Refusal::StaleEpoch { highest }),
        text().prop_map(|reason| Refusal::Impossible { reason }),
        text().prop_map(|reason| Refusal::Unfit { reason }),
    ]
}

fn member_report() -> impl Strategy<Value = MemberReport> {
    let state = prop_oneof![
        Just(MemberState::Starting),
        any::<u32>().prop_map(|pid| MemberState::Running { pid }),
        Just(MemberState::Stopping),
        ended().prop_map(MemberState::Ended),
        refusal().prop_map(MemberState::Refused),
    ];
    let checkpoint =
        (text(), any::<u64>()).prop_map(|(name, age_ms)| CheckpointReport { name, age_ms });
    let newest = (text(), of(any::<u64>()), any::<u64>(), any::<u64>())
        .prop_map(|(name, step, bytes, age_ms)| SavedCheckpoint { name, step, bytes, age_ms });
    let room = (any::<u64>(), any::<u64>(), any::<bool>(), any::<u32>(), of(text())).prop_map(
        |(free_bytes, next_bytes, is_low, removed, last_removed)| RoomReport {
            free_bytes,
            next_bytes,
            is_low,
            removed,
            last_removed,
        },
    );
    let copy =
        (of(text()), of(text())).prop_map(|(newest, problem)| CopyReport { newest, problem });
    let saved = (of(newest), any::<u32>(), any::<u64>(), room, of(copy)).prop_map(
        |(newest, count, bytes, room, copy)| SavedReport { newest, count, bytes, room, copy },
    );
    let usage = (any::<u64>(), any::<u64>())
        .prop_map(|(measured_ms, busy_ms)| UsageReport { measured_ms, busy_ms });
    (key(), state, vec(guest_report(), 0..3), of(checkpoint), of(saved), of(usage)).prop_map(
        |(key, state, guests, checkpoint, saved, usage)| MemberReport {
            key,
            state,
            guests,
            checkpoint,
            saved,
            usage,
        },
    )
}

fn guest_report() -> impl Strategy<Value = GuestReport> {
    let state = prop_oneof![
        Just(GuestState::Prepared),
        text().prop_map(|reason| GuestState::Failed { reason }),
        of(any::<u64>()).prop_map(|log_bytes| GuestState::Swept { log_bytes }),
    ];
    (text(), state).prop_map(|(operation, state)| GuestReport { operation, state })
}

fn ray_cluster() -> impl Strategy<Value = RayCluster> {
    let node = (member(), text(), text(), any::<bool>(), text()).prop_map(
        |(member, ray_node_id, address, alive, state_message)| RayNode {
            member,
            ray_node_id,
            address,
            alive,
            state_message,
        },
    );
    (any::<bool>(), text(), text(), vec(node, 0..4))
        .prop_map(|(ready, session, version, nodes)| RayCluster { ready, session, version, nodes })
}

fn ray_driver() -> impl Strategy<Value = RayDriver> {
    (text(), of(member()), of(text())).prop_map(|(ray_node_id, member, address)| RayDriver {
        ray_node_id,
        member,
        address,
    })
}

fn entrypoint_report() -> impl Strategy<Value = EntrypointReport> {
    let failed = (of(ray_driver()), of(any::<i32>()), of(text()), text()).prop_map(
        |(driver, exit_code, error_type, message)| EntrypointState::Failed {
            driver,
            exit_code,
            error_type,
            message,
        },
    );
    let state = prop_oneof![
        Just(EntrypointState::Waiting),
        of(ray_driver()).prop_map(|driver| EntrypointState::Running { driver }),
        of(ray_driver()).prop_map(|driver| EntrypointState::Succeeded { driver }),
        failed,
    ];
    (text(), state).prop_map(|(operation, state)| EntrypointReport { operation, state })
}

fn report() -> impl Strategy<Value = NodeReport> {
    let gang = (gang(), epoch(), of(ray_cluster()), vec(entrypoint_report(), 0..4))
        .prop_map(|(gang, epoch, ray, entrypoints)| GangReport { gang, epoch, ray, entrypoints });
    (generation(), vec(member_report(), 0..6), vec(gang, 0..3))
        .prop_map(|(held, members, gangs)| NodeReport { held, members, gangs })
}

/// Any message of an agent.
pub fn agent_message() -> impl Strategy<Value = AgentMessage> {
    prop_oneof![
        inventory().prop_map(|inventory| AgentMessage::Inventory(Box::new(inventory))),
        report().prop_map(AgentMessage::Report),
        (any::<u64>(), generation())
            .prop_map(|(sequence, held)| AgentMessage::Heartbeat(Heartbeat { sequence, held })),
        blob().prop_map(|csr| AgentMessage::RenewRequest(RenewRequest { csr })),
        (vec(condition(), 0..4), texts())
            .prop_map(|(conditions, blind)| AgentMessage::Health(NodeHealth { conditions, blind })),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    use HealthLevel::*;
    let level = select(vec![Info, Warning, Degraded, NoNewJobs, DrainAfterJob, Fatal]);
    let words = (text(), text(), text(), text(), text(), text());
    (words, level, any::<[bool; 2]>(), any::<u64>()).prop_map(
        |(words, level, [blocks_start, shadow], since_ms)| {
            let (rule, component, action, reason, evidence, clears) = words;
            Condition {
                rule,
                component,
                level,
                blocks_start,
                shadow,
                action,
                reason,
                evidence,
                clears,
                since_ms,
            }
        },
    )
}

fn member_assignment() -> impl Strategy<Value = MemberAssignment> {
    (member(), vec(gpu(), 0..4), any::<u32>(), any::<u64>(), ports()).prop_map(
        |(member, gpus, cpus_milli, memory_bytes, ports)| MemberAssignment {
            member,
            gpus,
            cpus_milli,
            memory_bytes,
            ports,
        },
    )
}

fn arguments() -> impl Strategy<Value = Vec<Argument>> {
    let piece = prop_oneof![text().prop_map(Piece::Text), text().prop_map(Piece::Variable)];
    vec(vec(piece, 0..3).prop_map(|pieces| Argument { pieces }), 0..4)
}

fn code_tree() -> impl Strategy<Value = CodeTree> {
    (text(), of(text()), text()).prop_map(|(tree, shared_root, user)| CodeTree {
        tree,
        shared_root,
        user,
    })
}

fn guest_job() -> impl Strategy<Value = Box<GuestJob>> {
    let what = (arguments(), text(), text(), any::<[u32; 2]>(), vec(any::<IpAddr>(), 0..3));
    let places = (of(text()), of(code_tree()), of(text()), of(text()), texts(), pairs());
    let env = (pairs(), texts());
    (what, places, env, any::<u64>()).prop_map(|(what, places, (env, secret_names), grace_ms)| {
        let (argv, job_name, project, [nnodes, gpus_per_node], addresses) = what;
        let (workdir, code, job_directory, checkpoint_directory, directories, config_files) =
            places;
        Box::new(GuestJob {
            argv,
            job_name,
            project,
            nnodes,
            gpus_per_node,
            addresses,
            env,
            secret_names,
            workdir,
            code,
            job_directory,
            checkpoint_directory,
            directories,
            config_files,
            grace_ms,
        })
    })
}

fn guest() -> impl Strategy<Value = GuestAssignment> {
    let job = NAME.prop_map(|text| JobId::new(text).expect("a valid name"));
    let order = prop_oneof![
        guest_job().prop_map(GuestOrder::Prepare),
        guest_job().prop_map(GuestOrder::Run),
        Just(GuestOrder::Watch),
        Just(GuestOrder::Stop),
        of(text()).prop_map(|log_directory| GuestOrder::Sweep { log_directory }),
    ];
    (text(), job, any::<u32>(), vec(any::<u32>(), 0..3), order).prop_map(
        |(operation, job, attempt, ranks, order)| GuestAssignment {
            operation,
            job,
            attempt,
            ranks,
            order,
        },
    )
}

fn assignment() -> impl Strategy<Value = Assignment> {
    let entrypoint = (text(), arguments(), member())
        .prop_map(|(operation, argv, driver)| Entrypoint { operation, argv, driver });
    let job = NAME.prop_map(|text| JobId::new(text).expect("a valid name"));
    let launcher = prop_oneof![Just(Launcher::Ray), Just(Launcher::Command)];
    let what = (job, any::<u32>(), text(), text(), launcher);
    let shape = (any::<[u32; 2]>(), vec(any::<IpAddr>(), 0..4), any::<IpAddr>(), ports());
    let entrypoints = (vec(entrypoint, 0..3), vec(guest(), 0..3));
    let parts = (vec(member_assignment(), 0..3), entrypoints, arguments(), (pairs(), texts()));
    let places = (of(text()), of(code_tree()), of(text()), of(text()), texts(), pairs());
    let on_disconnect = prop_oneof![
        Just(OnDisconnect::Keep),
        any::<u64>().prop_map(|after_ms| OnDisconnect::Fence { after_ms }),
        any::<u64>().prop_map(|after_ms| OnDisconnect::StopAfter { after_ms }),
    ];
    let limits = (texts(), of(any::<u64>()), of(any::<u32>()), any::<[bool; 2]>());
    let rest = (any::<[u64; 2]>(), on_disconnect, text(), of(any::<(u32, u32)>()), limits);
    (what, shape, parts, places, rest).prop_map(|(what, shape, parts, places, rest)| {
        let (job, attempt, job_name, project, launcher) = what;
        let ([nnodes, gpus_per_node], addresses, head_address, head_ports) = shape;
        let (members, (entrypoints, guests), argv, (env, secret_names)) = parts;
        let (workdir, code, job_directory, checkpoint_directory, directories, config_files) =
            places;
        let (times, on_disconnect, auth_token, run_as, limits) = rest;
        let (log_files, log_bytes, checkpoint_keep, [checkpoint_may_go, checkpoint_copy]) = limits;
        let [grace_ms, start_timeout_ms] = times;
        Assignment {
            job,
            attempt,
            job_name,
            project,
            launcher,
            nnodes,
            gpus_per_node,
            addresses,
            head_address,
            head_ports,
            members,
            entrypoints,
            guests,
            argv,
            env,
            secret_names,
            workdir,
            code,
            job_directory,
            checkpoint_directory,
            checkpoint_keep,
            checkpoint_may_go,
            checkpoint_copy,
            directories,
            config_files,
            grace_ms,
            start_timeout_ms,
            on_disconnect,
            auth_token: Secret(auth_token),
            run_as,
            log_files,
            log_bytes,
        }
    })
}

/// Any message of the coordinator.
pub fn coordinator_message() -> impl Strategy<Value = CoordinatorMessage> {
    let order = prop_oneof![
        assignment().prop_map(|assignment| Order::Run(Box::new(assignment))),
        any::<bool>().prop_map(|keep_scene| Order::Stop { keep_scene }),
    ];
    let desired_gang = (gang(), epoch(), order)
        .prop_map(|(gang, epoch, order)| Box::new(DesiredGang { gang, epoch, order }));
    prop_oneof![
        (generation(), any::<u32>()).prop_map(|(generation, count)| {
            CoordinatorMessage::DesiredHeader(DesiredHeader { generation, count })
        }),
        desired_gang.prop_map(CoordinatorMessage::DesiredGang),
        (any::<u64>(), any::<u64>()).prop_map(|(sequence, wall_ms)| {
            CoordinatorMessage::HeartbeatAck(HeartbeatAck { sequence, wall_ms })
        }),
        (key(), text(), any::<u64>()).prop_map(|(key, file, offset)| {
            CoordinatorMessage::LogAck(LogAck { key, file, offset })
        }),
        (blob(), blob())
            .prop_map(|(certificate, ca)| CoordinatorMessage::Renewed(Renewed { certificate, ca })),
        vec((text(), text(), any::<u64>()), 0..4).prop_map(|cleared| {
            let conditions = cleared
                .into_iter()
                .map(|(rule, component, since_ms)| ClearedCondition { rule, component, since_ms })
                .collect();
            CoordinatorMessage::HealthCleared(HealthCleared { conditions })
        }),
    ]
}

/// Any reading of a node.
pub fn sample() -> impl Strategy<Value = NodeSample> {
    let numbers = (any::<u64>(), any::<u32>(), any::<u32>());
    (numbers, host(), vec(gpu_sample(), 0..9), vec(port(), 0..9), vec(collector(), 0..9)).prop_map(
        |((wall_ms, dropped, interval_ms), host, gpus, ports, collectors)| NodeSample {
            wall_ms,
            dropped,
            interval_ms,
            host,
            gpus,
            ports,
            collectors,
        },
    )
}

fn host() -> impl Strategy<Value = HostSample> {
    (floats::<6>(), larges::<11>(), of(any::<i64>())).prop_map(|(floats, large, signed)| {
        HostSample {
            cpu_busy_pct: floats[0],
            memory_used_bytes: large[0],
            memory_total_bytes: large[1],
            load1: floats[1],
            shm_free_bytes: large[2],
            cpu_pressure_pct: floats[2],
            memory_pressure_pct: floats[3],
            io_pressure_pct: floats[4],
            oom_kills: large[3],
            pids: large[4],
            network_received_bytes: large[5],
            network_sent_bytes: large[6],
            state_free_bytes: large[7],
            temp_free_bytes: large[8],
            shared_free_bytes: large[9],
            clock_offset_ms: signed,
            agent_memory_bytes: large[10],
            agent_cpu_pct: floats[5],
        }
    })
}

fn gpu_sample() -> impl Strategy<Value = GpuSample> {
    let own = (gpu(), any::<bool>(), any::<u32>());
    (own, floats::<9>(), larges::<12>(), array::uniform6(of(any::<u32>()))).prop_map(
        |((uuid, lost, xids), floats, large, small)| GpuSample {
            uuid,
            lost,
            utilization_pct: floats[0],
            memory_utilization_pct: floats[1],
            memory_used_bytes: large[0],
            memory_total_bytes: large[1],
            temperature_c: floats[2],
            memory_temperature_c: floats[3],
            power_w: floats[4],
            power_limit_w: floats[5],
            energy_mj: large[2],
            sm_clock_mhz: small[0],
            memory_clock_mhz: small[1],
            clock_reasons: large[3],
            sm_active: floats[6],
            tensor_active: floats[7],
            dram_active: floats[8],
            pcie_received_bytes_per_s: large[4],
            pcie_sent_bytes_per_s: large[5],
            nvlink_received_bytes_per_s: large[6],
            nvlink_sent_bytes_per_s: large[7],
            nvlinks_down: small[2],
            nvlink_errors: large[8],
            ecc_corrected: large[9],
            ecc_uncorrected: large[10],
            pcie_replays: small[3],
            last_xid: large[11],
            processes: small[4],
            foreign_processes: small[5],
            xids,
        },
    )
}

fn port() -> impl Strategy<Value = PortSample> {
    let small = (of(any::<bool>()), of(any::<u8>()), of(any::<u8>()));
    (text(), any::<u32>(), small, larges::<6>()).prop_map(
        |(device, port, (ethernet, state, physical_state), large)| PortSample {
            device,
            port,
            ethernet,
            state,
            physical_state,
            rate_bytes_per_s: large[0],
            received_bytes: large[1],
            sent_bytes: large[2],
            errors: large[3],
            link_downed: large[4],
            congestion: large[5],
        },
    )
}

fn collector() -> impl Strategy<Value = CollectorSample> {
    (text(), any::<bool>(), any::<u32>(), of(any::<u32>())).prop_map(
        |(name, success, duration_us, age_ms)| CollectorSample {
            name,
            success,
            duration_us,
            age_ms,
        },
    )
}

fn floats<const N: usize>() -> impl Strategy<Value = [Option<f32>; N]> {
    array::UniformArrayStrategy::new(of(float()))
}

fn larges<const N: usize>() -> impl Strategy<Value = [Option<u64>; N]> {
    array::UniformArrayStrategy::new(of(any::<u64>()))
}

/// Any piece of a log.
pub fn log_chunk() -> impl Strategy<Value = LogChunk> {
    (key(), text(), any::<u64>(), blob(), any::<u64>()).prop_map(
        |(key, file, offset, bytes, read_ms)| LogChunk { key, file, offset, bytes, read_ms },
    )
}

/// Any question to an agent.
pub fn request() -> impl Strategy<Value = AgentRequest> {
    let subject = prop_oneof![
        Just(RaySubject::Nodes),
        Just(RaySubject::Actors),
        Just(RaySubject::PlacementGroups),
    ];
    let ray_state = (gang(), epoch(), subject, of(text()), any::<u32>()).prop_map(
        |(gang, epoch, subject, state, limit)| {
            AgentRequest::RayState(RayStateRequest { gang, epoch, subject, state, limit })
        },
    );
    prop_oneof![
        ray_state,
        Just(AgentRequest::NodeMetrics),
        key().prop_map(|key| AgentRequest::RayMetrics { key }),
        key().prop_map(|key| AgentRequest::Stacks { key }),
        key().prop_map(|key| AgentRequest::Scene { key }),
        text().prop_map(|directory| AgentRequest::Checkpoints { directory }),
        prop_oneof![
            any::<u32>().prop_map(|code| Fault::Xid { code }),
            Just(Fault::Link),
            Just(Fault::Kill),
            Just(Fault::Heal),
        ]
        .prop_map(AgentRequest::Inject),
        (text(), any::<u32>(), text()).prop_map(|(directory, attempt, text)| {
            AgentRequest::WriteReport { directory, attempt, text }
        }),
        (key(), any::<bool>()).prop_map(|(key, hung)| AgentRequest::KeepScene { key, hung }),
    ]
}

/// Any beginning of an answer.
pub fn answer_head() -> impl Strategy<Value = AnswerHead> {
    let reason = prop_oneof![
        Just(FailureReason::Unknown),
        Just(FailureReason::NotHere),
        Just(FailureReason::NoAnswer),
        Just(FailureReason::TooLarge),
    ];
    prop_oneof![
        any::<u32>().prop_map(|length| AnswerHead::Body { length }),
        (reason, text())
            .prop_map(|(reason, text)| AnswerHead::Failed(RequestFailure { reason, text })),
    ]
}

/// Any part of an answer.
pub fn answer_piece() -> impl Strategy<Value = AnswerPiece> {
    blob().prop_map(|bytes| AnswerPiece { bytes })
}

/// Any question for code.
pub fn code_request() -> impl Strategy<Value = CodeRequest> {
    let job = NAME.prop_map(|text| JobId::new(text).expect("a valid name"));
    (job, text()).prop_map(|(job, tree)| CodeRequest { job, tree })
}

/// Any part of an answer with code.
pub fn code_part() -> impl Strategy<Value = CodePart> {
    prop_oneof![
        blob().prop_map(|bytes| CodePart::Bytes { bytes }),
        text().prop_map(|reason| CodePart::Refused { reason }),
    ]
}
