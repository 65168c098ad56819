//! Values for tests of several modules.

use gangline_common::ids::{Epoch, GangId, Generation, GpuId, JobId, MemberId, PortBlock};
use gangline_common::wire::v1::{Assignment, Launcher, MemberAssignment, OnDisconnect, Secret};

pub fn gang(name: &str) -> GangId {
    GangId::new(name).unwrap()
}

pub fn epoch(n: u32) -> Epoch {
    Epoch { era: 1, n }
}

pub fn generation(n: u64) -> Generation {
    Generation { era: 1, n }
}

/// One rank with one GPU that runs a command.
pub fn assignment(name: &str) -> Assignment {
    let ports = PortBlock { base: 20000, size: 256 };
    Assignment {
        job: JobId::new(format!("job-{name}")).unwrap(),
        attempt: 1,
        job_name: name.to_owned(),
        project: "default".to_owned(),
        launcher: Launcher::Command,
        nnodes: 1,
        gpus_per_node: 1,
        addresses: vec![[127, 0, 0, 2].into()],
        head_address: [127, 0, 0, 2].into(),
        head_ports: ports,
        members: vec![MemberAssignment {
            member: MemberId::Rank(0),
            gpus: vec![GpuId(format!("GPU-{name}"))],
            cpus_milli: 1000,
            memory_bytes: 1 << 30,
            ports,
        }],
        entrypoints: vec![],
        guests: Vec::new(),
        argv: vec!["true".into()],
        env: vec![],
        secret_names: Vec::new(),
        workdir: None,
        code: None,
        job_directory: None,
        checkpoint_directory: None,
        checkpoint_keep: None,
        checkpoint_may_go: false,
        checkpoint_copy: false,
        directories: Vec::new(),
        config_files: vec![],
        grace_ms: 9000,
        start_timeout_ms: 60_000,
        on_disconnect: OnDisconnect::Keep,
        auth_token: Secret("token".to_owned()),
        run_as: None,
        log_files: Vec::new(),
        log_bytes: None,
    }
}
