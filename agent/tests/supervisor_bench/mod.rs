//! A supervisor with directories of its own, for tests with real processes.

// Each test program uses its own part of it.
#![allow(dead_code)]

use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use gangline_agent::supervisor::process::{self, ProcessId};
use gangline_agent::supervisor::{
    MemberPlan, Supervisor, SupervisorConfig, SupervisorError, SupervisorEvent, TrainingCheckpoint,
};
use gangline_common::ids::{Epoch, GangId, JobId, MARK_VARIABLE, MemberId, MemberKey, PortBlock};
use gangline_common::wire::v1::{
    Assignment, Ended, Launcher, MemberAssignment, MemberState, OnDisconnect, Secret,
};
use rustix::process::Signal;
use tokio::sync::mpsc;

/// Guards against a test that would hang; nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A block that no other test of this or of another process uses at the same time.
pub fn block() -> PortBlock {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let process = (std::process::id() % 12) as u16;
        let index = NEXT.fetch_add(1, Ordering::Relaxed) % 48;
        let base = 20_000 + (1024 * process + 256 * index) % (48 * 256);
        if (base..base + 256).all(|port| TcpListener::bind(("0.0.0.0", port)).is_ok()) {
            return PortBlock { base, size: 256 };
        }
    }
}

pub struct Bench {
    pub root: tempfile::TempDir,
    pub config: SupervisorConfig,
    pub supervisor: Supervisor,
    events: mpsc::Receiver<SupervisorEvent>,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut SupervisorConfig)) -> Self {
        let root = tempfile::Builder::new().prefix("gl").tempdir().unwrap();
        let mut config = SupervisorConfig {
            state_dir: root.path().join("state"),
            temp_root: root.path().join("t"),
            agent_binary: env!("CARGO_BIN_EXE_gangline-agent").into(),
            python: "/usr/bin/python3".into(),
            node_address: IpAddr::from([127, 0, 0, 1]),
            interface: None,
            rdma_exclude: Default::default(),
            readings: tokio::sync::watch::channel(None).1,
            ray_env: Vec::new(),
            object_store_bytes: None,
            copies: None,
        };
        change(&mut config);
        let (sender, events) = mpsc::channel(64);
        let supervisor = Supervisor::new(config.clone(), sender);
        Bench { root, config, supervisor, events }
    }

    /// What a restart of the agent does to the supervisor.
    pub fn restart(&mut self) {
        let (sender, events) = mpsc::channel(64);
        self.supervisor = Supervisor::new(self.config.clone(), sender);
        self.events = events;
    }

    pub async fn event(&mut self) -> SupervisorEvent {
        let event = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        event.expect("no event in time").expect("the supervisor has gone")
    }

    /// The next change of a member that `wanted` accepts; others are skipped.
    pub async fn state<T>(
        &mut self,
        key: &MemberKey,
        wanted: impl Fn(&MemberState) -> Option<T>,
    ) -> T {
        loop {
            match self.event().await {
                SupervisorEvent::MemberChanged { key: changed, state } if changed == *key => {
                    if let Some(found) = wanted(&state) {
                        return found;
                    }
                    assert!(!is_final(&state), "{key} came to its end: {state:?}");
                }
                SupervisorEvent::MemberChanged { .. } => {}
                SupervisorEvent::GangChanged { .. }
                | SupervisorEvent::GuestChanged { .. }
                | SupervisorEvent::CheckpointMade { .. }
                | SupervisorEvent::SavedChanged { .. } => {}
            }
        }
    }

    /// The next training checkpoint that is seen; changes of members are skipped.
    pub async fn checkpoint(&mut self) -> TrainingCheckpoint {
        loop {
            if let SupervisorEvent::CheckpointMade { checkpoint, .. } = self.event().await {
                return checkpoint;
            }
        }
    }

    pub async fn running(&mut self, key: &MemberKey) -> u32 {
        self.state(key, |state| match state {
            MemberState::Running { pid } => Some(*pid),
            _ => None,
        })
        .await
    }

    pub async fn ended(&mut self, key: &MemberKey) -> Ended {
        self.state(key, |state| match state {
            MemberState::Ended(ended) => Some(ended.clone()),
            _ => None,
        })
        .await
    }

    pub fn spool(&self, key: &MemberKey) -> PathBuf {
        self.config.state_dir.join("members").join(key.directory_name())
    }

    pub fn temp(&self, key: &MemberKey) -> PathBuf {
        self.config.temp_root.join(key.directory_name())
    }

    pub fn shim(&self, key: &MemberKey) -> ProcessId {
        let text = std::fs::read_to_string(self.spool(key).join("shim.pid")).unwrap();
        let (pid, start_time) = text.trim().split_once(' ').unwrap();
        ProcessId { pid: pid.parse().unwrap(), start_time: start_time.parse().unwrap() }
    }

    pub fn output(&self, key: &MemberKey) -> String {
        std::fs::read_to_string(self.spool(key).join("output.log")).unwrap_or_default()
    }

    pub async fn output_has(&self, key: &MemberKey, text: &str) {
        until(|| self.output(key).contains(text)).await;
    }

    /// Releases the member and checks that no trace of it is left.
    pub async fn release(&mut self, key: &MemberKey) -> Result<(), SupervisorError> {
        self.supervisor.release(key).await?;
        assert!(!self.spool(key).exists(), "the spool is left");
        assert!(!self.temp(key).exists(), "the temp dir is left");
        assert_eq!(marked(key), [], "processes are left");
        Ok(())
    }
}

impl Drop for Bench {
    /// A test that fails must not leave its members behind; after one that passed nothing is left.
    fn drop(&mut self) {
        let holders = process::with_open_files_below(self.root.path());
        let below = holders.iter().flat_map(|id| process::living_descendants(id.pid));
        for id in holders.iter().copied().chain(below.collect::<Vec<_>>()) {
            // Gone already, or about to be.
            let _ = process::send(id, Signal::KILL);
        }
    }
}

fn is_final(state: &MemberState) -> bool {
    matches!(state, MemberState::Ended(_) | MemberState::Refused(_))
}

/// Living processes with the mark of this member.
pub fn marked(key: &MemberKey) -> Vec<ProcessId> {
    process::with_environment(MARK_VARIABLE, &key.mark()).into_iter().collect()
}

pub async fn until(mut true_now: impl FnMut() -> bool) {
    let polled = async {
        while !true_now() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, polled).await.expect("it never came true");
}

/// A gang that no other test has.
fn mint() -> MemberKey {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let gang = format!("t{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let epoch = Epoch { era: 1, n: 1 };
    MemberKey { gang: GangId::new(gang).unwrap(), epoch, member: MemberId::Rank(0) }
}

/// A gang of one command rank.
pub fn command<const N: usize>(argv: [&str; N]) -> MemberPlan {
    let block = block();
    let address = IpAddr::from([127, 0, 0, 1]);
    let assignment = Assignment {
        job: JobId::new("job-1").unwrap(),
        attempt: 1,
        job_name: "test".to_owned(),
        project: "tests".to_owned(),
        launcher: Launcher::Command,
        nnodes: 1,
        gpus_per_node: 0,
        addresses: vec![address],
        head_address: address,
        head_ports: block,
        members: Vec::new(),
        entrypoints: Vec::new(),
        guests: Vec::new(),
        argv: argv.map(Into::into).to_vec(),
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
        grace_ms: 30_000,
        start_timeout_ms: 120_000,
        on_disconnect: OnDisconnect::Keep,
        auth_token: Secret(String::new()),
        run_as: None,
        log_files: Vec::new(),
        log_bytes: None,
    };
    let member = MemberAssignment {
        member: MemberId::Rank(0),
        gpus: Vec::new(),
        cpus_milli: 1000,
        memory_bytes: 1 << 30,
        ports: block,
    };
    MemberPlan { key: mint(), assignment: Arc::new(assignment), member }
}

pub fn assignment(plan: &mut MemberPlan) -> &mut Assignment {
    Arc::make_mut(&mut plan.assignment)
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
