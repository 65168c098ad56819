//! From readings to what is said, what survives a restart, and what is answered before a start.

use std::time::Duration;

use gangline_common::ids::GpuId;
use gangline_common::wire::v1::ClearedCondition;
use gangline_health::rule::Check;

use super::*;
use crate::collectors::Readings;
use crate::collectors::accelerator::GpuSample;
use crate::collectors::host::HostSample;
use crate::collectors::rdma::RdmaReading;
use crate::collectors::shared::{CanaryOutcome, SharedReading};
use crate::collectors::slot::{Latest, Outcome, Plan, Slot};
use crate::collectors::storage::{Room, StorageReading};
use crate::collectors::tasks::TasksReading;
use crate::collectors::versions::Versions;

/// A node of which readings are made by hand.
struct Node {
    readings: watch::Sender<Option<Arc<Readings>>>,
    xids: mpsc::Sender<XidEvent>,
    visible: watch::Sender<BTreeSet<GpuId>>,
    _holders: watch::Sender<Holders>,
    cleared: watch::Sender<HealthCleared>,
    said: watch::Receiver<Option<Arc<NodeHealth>>>,
    gate: Gate,
    number: u64,
    /// Whether there is a temp root.
    temp_root: bool,
    /// What became of the try of the shared root, if there is one.
    shared: Option<CanaryOutcome>,
    gpus: Slot<Vec<GpuSample>>,
    slots: Slots,
    task: tokio::task::JoinHandle<()>,
}

struct Slots {
    rdma: Slot<RdmaReading>,
    host: Slot<HostSample>,
    storage: Slot<StorageReading>,
    shared: Slot<SharedReading>,
    tasks: Slot<TasksReading>,
    versions: Slot<Versions>,
}

fn slot<T>(name: &'static str) -> Slot<T> {
    let second = Duration::from_secs(1);
    Slot::new(Plan { name, interval: second, timeout: second })
}

fn read<T>(slot: &Slot<T>, value: T) -> Latest<T> {
    slot.begin();
    slot.end(Ok(value));
    slot.latest()
}

fn gpu(uuid: &str) -> GpuSample {
    GpuSample { uuid: uuid.to_owned(), ..GpuSample::default() }
}

fn id(uuid: &str) -> GpuId {
    GpuId(uuid.to_owned())
}

fn rules(boot: &str) -> Config {
    Config { boot_id: Some(boot.to_owned()), ..Config::default() }
}

impl Node {
    fn start(state_dir: &Path, boot: &str) -> Node {
        let (said, said_receiver) = watch::channel(None);
        let (watching, gate) = Watch::new(state_dir, rules(boot), said);
        let (readings, readings_receiver) = watch::channel(None);
        let (xids, xid_receiver) = mpsc::channel(4);
        let both = BTreeSet::from([id("a"), id("b")]);
        let (visible, visible_receiver) = watch::channel(both);
        let (holders, holders_receiver) = watch::channel(Holders::new());
        let (cleared, cleared_receiver) = watch::channel(HealthCleared::default());
        let sources = Sources {
            readings: readings_receiver,
            xids: Some(xid_receiver),
            visible: visible_receiver,
            accelerators: Arc::new(Ok(None)),
            identities: Vec::new(),
            holders: holders_receiver,
            gangs: watch::channel(BTreeSet::new()).1,
            nccl: watch::channel(None).1,
            cleared: cleared_receiver,
        };
        Node {
            readings,
            xids,
            visible,
            _holders: holders,
            cleared,
            said: said_receiver,
            gate,
            number: 0,
            temp_root: false,
            shared: None,
            gpus: slot("gpu"),
            slots: Slots {
                rdma: slot("rdma"),
                host: slot("host"),
                storage: slot("storage"),
                shared: slot("shared"),
                tasks: slot("tasks"),
                versions: slot("versions"),
            },
            task: tokio::spawn(watching.run(sources)),
        }
    }

    /// One round in which everything but the GPUs is well.
    fn round(&mut self, gpus: Latest<Vec<GpuSample>>) {
        self.number += 1;
        let room = Room {
            path: "/state".into(),
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            total_inodes: 0,
            free_inodes: 0,
            read_only: false,
        };
        let host = HostSample {
            mem_available_bytes: Some(1 << 34),
            mem_total_bytes: Some(1 << 35),
            pids: Some(10),
            pids_limit: Some(1000),
            open_files: Some(10),
            open_files_limit: Some(1000),
            ..HostSample::default()
        };
        let readings = Readings {
            number: self.number,
            at: Timestamp::now(),
            gpus: Some(gpus),
            rdma: read(&self.slots.rdma, RdmaReading::default()),
            host: read(&self.slots.host, host),
            storage: read(
                &self.slots.storage,
                StorageReading { state: Some(room.clone()), temp: self.temp_root.then_some(room) },
            ),
            shared: self
                .shared
                .clone()
                .map(|outcome| read(&self.slots.shared, SharedReading { outcome, room: None })),
            tasks: read(&self.slots.tasks, TasksReading::default()),
            kernel: None,
            versions: read(&self.slots.versions, Versions::default()),
            clock: None,
            dropped: 0,
            lag_ms: 0,
            interval_ms: 1000,
        };
        self.readings.send_replace(Some(Arc::new(readings)));
    }

    fn read_gpus(&mut self, gpus: Vec<GpuSample>) {
        let latest = read(&self.gpus, gpus);
        self.round(latest);
    }

    /// What is said once the rule stands, or no longer does.
    async fn says(&mut self, rule: &str, stands: bool) -> NodeHealth {
        let found = self.said.wait_for(|said| {
            let conditions = said.iter().flat_map(|health| &health.conditions);
            said.is_some() && conditions.into_iter().any(|c| c.rule == rule) == stands
        });
        let found = tokio::time::timeout(Duration::from_secs(10), found).await;
        NodeHealth::clone(found.unwrap().unwrap().as_ref().unwrap())
    }

    async fn end(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

fn only(health: &NodeHealth, rule: &str) -> v1::Condition {
    let mut found = health.conditions.iter().filter(|condition| condition.rule == rule);
    let condition = found.next().unwrap().clone();
    assert!(found.next().is_none());
    condition
}

fn clears(condition: &v1::Condition) -> HealthCleared {
    let (rule, component) = (condition.rule.clone(), condition.component.clone());
    let cleared = ClearedCondition { rule, component, since_ms: condition.since_ms };
    HealthCleared { conditions: vec![cleared] }
}

#[tokio::test]
async fn an_xid_79_is_said_at_once_survives_a_restart_and_ends_by_an_operator() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path(), "boot");
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    node.says("xid-fatal", false).await;
    let event = XidEvent { sequence: 1, at: Timestamp::now(), uuid: "a".to_owned(), xid: Some(79) };
    node.xids.send(event).await.unwrap();
    let fatal = only(&node.says("xid-fatal", true).await, "xid-fatal");
    assert_eq!((fatal.component.as_str(), fatal.level), ("gpu:a", HealthLevel::Fatal));
    assert_eq!(fatal.action, "REBOOT_SYSTEM");
    node.end().await;

    // Another agent, the same boot: it stands, and began when it began.
    let mut node = Node::start(directory.path(), "boot");
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    let again = only(&node.says("xid-fatal", true).await, "xid-fatal");
    assert_eq!(again.since_ms, fatal.since_ms);
    // Another time is another condition: this ends nothing.
    let mut other = clears(&again);
    other.conditions[0].since_ms += 1;
    node.cleared.send_replace(other);
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    node.says("xid-fatal", true).await;
    node.cleared.send_replace(clears(&again));
    node.says("xid-fatal", false).await;
    node.end().await;
}

#[tokio::test]
async fn a_gpu_that_is_missing_after_a_restart_is_missed_until_an_operator_takes_it_as_gone() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path(), "boot");
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    node.says("gpu-set", false).await;
    node.end().await;

    let mut node = Node::start(directory.path(), "boot");
    node.visible.send_replace(BTreeSet::from([id("a")]));
    for _ in 0..3 {
        node.read_gpus(vec![gpu("a")]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let missing = only(&node.says("gpu-set", true).await, "gpu-set");
    assert!(missing.evidence.contains('b') && missing.blocks_start, "{missing:?}");
    let refused = node.gate.check(&[id("a")]).await.unwrap_err();
    assert!(refused.contains("1 of 2 GPUs missing"), "{refused}");
    node.cleared.send_replace(clears(&missing));
    node.says("gpu-set", false).await;
    node.read_gpus(vec![gpu("a")]);
    assert_eq!(node.gate.check(&[id("a")]).await, Ok(()));
    node.end().await;
}

#[tokio::test]
async fn a_start_asks_only_of_the_gpus_that_it_gets() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path(), "boot");
    let lost = GpuSample { lost: true, ..gpu("b") };
    for _ in 0..3 {
        node.read_gpus(vec![gpu("a"), lost.clone()]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let handle = only(&node.says("gpu-handle", true).await, "gpu-handle");
    assert_eq!((handle.component.as_str(), handle.blocks_start), ("gpu:b", true));
    assert_eq!(node.gate.check(&[id("a")]).await, Ok(()));
    let refused = node.gate.check(&[id("a"), id("b")]).await.unwrap_err();
    assert!(refused.contains("gpu:b"), "{refused}");
    node.end().await;
}

#[tokio::test]
async fn before_the_first_readings_a_start_waits_and_then_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path(), "boot");
    let gate = node.gate.clone();
    let waiting = tokio::spawn(async move { gate.check(&[]).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    assert_eq!(waiting.await.unwrap(), Ok(()));
    node.end().await;
}

#[tokio::test]
async fn a_start_has_a_shared_root_in_doubt_tried_again_and_one_that_is_well_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path(), "boot");
    node.shared = Some(CanaryOutcome::Ok { took_ms: 1 });
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    node.says("gpu-set", false).await;
    assert_eq!(node.gate.check(&[]).await, Ok(()));
    let asked = node.gate.try_shared();
    let moment = Duration::from_millis(50);
    assert!(
        tokio::time::timeout(moment, asked.notified()).await.is_err(),
        "no I/O for a healthy one"
    );

    let (step, reason) = ("write".to_owned(), "No space left on device".to_owned());
    node.shared = Some(CanaryOutcome::Failed { step, reason });
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    let gate = node.gate.clone();
    let waiting = tokio::spawn(async move {
        // Until the watch has taken in what was read.
        while gate.look(&[]).is_ok_and(|stale| stale.is_empty()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        gate.check(&[]).await
    });
    tokio::time::timeout(Duration::from_secs(10), asked.notified()).await.unwrap();
    node.shared = Some(CanaryOutcome::Ok { took_ms: 1 });
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    assert_eq!(waiting.await.unwrap(), Ok(()));
    node.end().await;
}

#[tokio::test]
async fn what_was_said_of_a_shared_root_ends_when_there_is_none_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path(), "boot");
    let (step, reason) = ("write".to_owned(), "No space left on device".to_owned());
    node.shared = Some(CanaryOutcome::Failed { step, reason });
    for _ in 0..3 {
        node.read_gpus(vec![gpu("a"), gpu("b")]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    node.says("shared-root", true).await;
    node.end().await;
    let mut node = Node::start(directory.path(), "boot");
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    node.says("shared-root", false).await;
    node.end().await;
}

#[tokio::test]
async fn a_temp_root_that_was_there_and_is_gone_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path(), "boot");
    node.temp_root = true;
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    node.says("gpu-set", false).await;
    node.temp_root = false;
    for _ in 0..2 {
        node.read_gpus(vec![gpu("a"), gpu("b")]);
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
    // Young enough: but only the absent reading of the temp root is.
    let check = lock(&node.gate.judge).engine.start_check(Timestamp::now(), 1_200);
    assert!(check.stale.iter().all(|stale| stale.check != Check::LocalDisk), "{:?}", check.stale);
    node.end().await;
}

#[tokio::test]
async fn a_call_into_the_driver_that_hangs_degrades_the_collector_and_heals_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut node = Node::start(directory.path(), "boot");
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    node.says("collector", false).await;
    // The first call is given up after its time, and the next are refused at once.
    node.gpus.begin();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for _ in 0..2 {
        node.gpus.end(Err(Outcome::Hung));
        let hung = node.gpus.latest();
        node.round(hung);
        node.gpus.begin();
    }
    let hangs = only(&node.says("collector", true).await, "collector");
    assert_eq!(hangs.component, "collector:gpu");
    assert_eq!(hangs.level, HealthLevel::Degraded);
    assert_ne!(hangs.evidence, "for 0 s");
    node.end().await;
}

#[tokio::test]
async fn a_damaged_file_begins_anew() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(FILE), b"{\"engine\": 7").unwrap();
    let mut node = Node::start(directory.path(), "boot");
    node.read_gpus(vec![gpu("a"), gpu("b")]);
    assert_eq!(node.says("gpu-set", false).await.conditions, vec![]);
    node.end().await;
}
