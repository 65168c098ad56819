//! Plans that the unit tests of this module share.

use std::net::IpAddr;
use std::sync::Arc;

use gangline_common::ids::{Epoch, GangId, GpuId, JobId, MemberId, MemberKey, PortBlock};
use gangline_common::wire::v1::{
    Assignment, Entrypoint, Launcher, MemberAssignment, OnDisconnect, Secret,
};

use super::{MemberPlan, SupervisorConfig};

fn address(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, last])
}

fn config() -> SupervisorConfig {
    SupervisorConfig {
        state_dir: "/var/lib/gangline/agent".into(),
        temp_root: "/tmp/gangline".into(),
        agent_binary: "/usr/bin/gangline-agent".into(),
        python: "/venv/bin/python".into(),
        node_address: address(3),
        interface: Some("eth0".to_owned()),
        rdma_exclude: Default::default(),
        readings: tokio::sync::watch::channel(None).1,
        ray_env: vec![("RAY_health_check_period_ms".to_owned(), "500".to_owned())],
        object_store_bytes: None,
        copies: None,
    }
}

fn plan(launcher: Launcher, member: MemberId) -> MemberPlan {
    let block = |index: u16| PortBlock { base: 20_000 + 256 * index, size: 256 };
    let first_rank = u16::from(launcher == Launcher::Ray);
    let (ports, gpus, memory_bytes) = match member {
        MemberId::Head => (block(0), Vec::new(), 1 << 30),
        MemberId::Rank(rank) => (
            block(first_rank + rank as u16),
            vec![GpuId("GPU-a".to_owned()), GpuId("GPU-b".to_owned())],
            32 << 30,
        ),
    };
    let assignment = Assignment {
        job: JobId::new("job-1").unwrap(),
        attempt: 2,
        job_name: "sft".to_owned(),
        project: "nlp".to_owned(),
        launcher,
        nnodes: 2,
        gpus_per_node: 2,
        addresses: vec![address(2), address(3)],
        head_address: address(2),
        head_ports: block(0),
        members: Vec::new(),
        entrypoints: vec![Entrypoint {
            operation: "job-1-2".to_owned(),
            argv: vec!["python".into(), "train.py".into()],
            driver: MemberId::Rank(0),
        }],
        guests: Vec::new(),
        argv: ["sh", "-c", "echo $(id)"].map(Into::into).to_vec(),
        env: vec![("LD_PRELOAD".to_owned(), "/opt/hook.so".to_owned())],
        secret_names: Vec::new(),
        workdir: Some("/work dir".to_owned()),
        code: None,
        job_directory: Some("/shared/jobs/job-1".to_owned()),
        checkpoint_directory: Some("/shared/jobs/job-1/checkpoints".to_owned()),
        checkpoint_keep: None,
        checkpoint_may_go: false,
        checkpoint_copy: false,
        directories: Vec::new(),
        config_files: vec![("job.yaml".to_owned(), "run: x".to_owned())],
        grace_ms: 30_000,
        start_timeout_ms: 300_000,
        on_disconnect: OnDisconnect::Fence { after_ms: 60_000 },
        auth_token: Secret("sesame".to_owned()),
        run_as: None,
        log_files: Vec::new(),
        log_bytes: None,
    };
    let key =
        MemberKey { gang: GangId::new("g-1").unwrap(), epoch: Epoch { era: 1, n: 1 }, member };
    let member = MemberAssignment { member, gpus, cpus_milli: 8000, memory_bytes, ports };
    MemberPlan { key, assignment: Arc::new(assignment), member }
}

pub fn command_plan(rank: u32) -> (MemberPlan, SupervisorConfig) {
    (plan(Launcher::Command, MemberId::Rank(rank)), config())
}

pub fn ray_plan(member: MemberId) -> (MemberPlan, SupervisorConfig) {
    (plan(Launcher::Ray, member), config())
}
