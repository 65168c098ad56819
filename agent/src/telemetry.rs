//! Readings of everything, once a second: whole for the health rules and the metrics page, and as a sample on a
//! stream of its own. Newest wins: a coordinator that does not keep up misses samples and is told how many.
//!
//! Each collector reads on its own (`collectors::slot`); here the newest of all of them is put together. Nothing
//! that hangs or fails is waited for.

mod pace;
mod sample;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gangline_common::ids::GpuId;
use gangline_common::time::Timestamp;
use gangline_common::transport::{Connection, StreamKind, TransportError};
use gangline_common::wire::v1;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use self::pace::{Pacer, Round};
use crate::collectors::accelerator::{Accelerator, Accelerators, GpuSample, opened};
use crate::collectors::host::{HostCollector, HostSample, Roots};
use crate::collectors::kernel::{KernelCollector, KernelReading};
use crate::collectors::rdma::{RdmaCollector, RdmaReading};
use crate::collectors::shared::{self, SharedCollector, SharedReading};
use crate::collectors::slot::{Outcome, Pace, Plan, Slot, on_thread, until_next};
use crate::collectors::storage::{StorageCollector, StorageReading};
use crate::collectors::tasks::{TasksCollector, TasksReading};
use crate::collectors::versions::{Versions, VersionsCollector};
use crate::collectors::{ClockOffset, Readings};
use crate::link::LinkStatus;

/// Readings are put together so long after they began: most are complete by then, and not a second old.
const OFFSET: Duration = Duration::from_millis(150);
/// Wait before a stream that was refused or cut is opened again.
const REOPEN: Duration = Duration::from_secs(5);

const fn plan(name: &'static str, interval_s: u64, timeout_s: u64) -> Plan {
    let (interval, timeout) = (Duration::from_secs(interval_s), Duration::from_secs(timeout_s));
    Plan { name, interval, timeout }
}

// NVML's own time-out is 15 seconds.
const GPU: Plan = plan("gpu", 1, 15);
const RDMA: Plan = plan("rdma", 1, 10);
const HOST: Plan = plan("host", 1, 10);
const STORAGE: Plan = plan("storage", 5, 10);
const TASKS: Plan = plan("tasks", 30, 30);
const KERNEL: Plan = plan("kernel", 1, 10);
const VERSIONS: Plan = plan("versions", 60, 10);

/// A sample and its number: gaps between numbers are samples that were not sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbered {
    pub number: u64,
    pub sample: v1::NodeSample,
}

/// The newest sample; `None` before the first.
pub type Newest = watch::Receiver<Option<Arc<Numbered>>>;

/// GPUs whose samples count: those in the inventory.
pub type Visible = watch::Receiver<BTreeSet<GpuId>>;

/// What readings are taken of, and what they are told.
pub struct Sources {
    pub accelerators: Accelerators,
    pub visible: Visible,
    pub roots: Roots,
    pub state_dir: PathBuf,
    pub temp_root: PathBuf,
    /// `None` where nothing can be asked of a helper.
    pub shared: Option<SharedCollector>,
    /// Where the shared root is, when that is known.
    pub shared_root: watch::Receiver<Option<PathBuf>>,
    pub inventory: watch::Receiver<Arc<v1::NodeInventory>>,
    pub clock: watch::Receiver<Option<ClockOffset>>,
    pub link: watch::Receiver<LinkStatus>,
    pub last_sent: Arc<LastSent>,
}

/// Where every collector leaves its readings.
struct Slots {
    gpus: Option<Arc<Slot<Vec<GpuSample>>>>,
    rdma: Arc<Slot<RdmaReading>>,
    host: Arc<Slot<HostSample>>,
    storage: Arc<Slot<StorageReading>>,
    shared: Arc<Slot<SharedReading>>,
    tasks: Arc<Slot<TasksReading>>,
    kernel: Option<Arc<Slot<KernelReading>>>,
    versions: Arc<Slot<Versions>>,
}

/// Takes readings until it is dropped.
pub async fn collect(
    mut sources: Sources,
    newest: watch::Sender<Option<Arc<Numbered>>>,
    readings: watch::Sender<Option<Arc<Readings>>>,
) {
    let pace = Arc::new(Pace::default());
    let epoch = Instant::now();
    let slots = Slots::begin(&sources, &pace, epoch);
    let accelerators = Arc::clone(&sources.accelerators);
    let accelerator = opened(&accelerators);
    let gpus = read_gpus(accelerator, slots.gpus.clone(), sources.visible.clone(), epoch);
    let (collector, slot) = (sources.shared.take(), Arc::clone(&slots.shared));
    let shared = async {
        if let Some(collector) = collector {
            collector.run(slot).await;
        }
    };
    let putting = put_together(&sources, &slots, accelerator, &pace, epoch, newest, readings);
    tokio::join!(gpus, shared, putting);
}

impl Slots {
    fn begin(sources: &Sources, pace: &Arc<Pace>, epoch: Instant) -> Self {
        fn slot<T>(plan: Plan, pace: &Arc<Pace>) -> Arc<Slot<T>> {
            Arc::new(Slot::paced(plan, Arc::clone(pace)))
        }
        let (roots, epoch) = (&sources.roots, epoch.into_std());
        let slots = Slots {
            gpus: opened(&sources.accelerators).map(|_| slot(GPU, pace)),
            rdma: slot(RDMA, pace),
            host: slot(HOST, pace),
            storage: slot(STORAGE, pace),
            shared: slot(shared::PLAN, pace),
            tasks: slot(TASKS, pace),
            kernel: None,
            versions: slot(VERSIONS, pace),
        };
        on_thread(RdmaCollector::new(roots), &slots.rdma, epoch);
        on_thread(HostCollector::new(roots.clone()), &slots.host, epoch);
        let storage = StorageCollector::new(sources.state_dir.clone(), sources.temp_root.clone());
        on_thread(storage, &slots.storage, epoch);
        on_thread(TasksCollector::new(roots), &slots.tasks, epoch);
        on_thread(VersionsCollector(sources.inventory.clone()), &slots.versions, epoch);
        let kernel = KernelCollector::open(roots).map(|collector| {
            let slot = slot(KERNEL, pace);
            on_thread(collector, &slot, epoch);
            slot
        });
        Slots { kernel, ..slots }
    }

    fn cpu_spent(&self) -> Duration {
        self.rdma.cpu_spent()
            + self.host.cpu_spent()
            + self.storage.cpu_spent()
            + self.tasks.cpu_spent()
            + self.kernel.as_ref().map(|slot| slot.cpu_spent()).unwrap_or_default()
    }
}

async fn put_together(
    sources: &Sources,
    slots: &Slots,
    accelerator: Option<&dyn Accelerator>,
    pace: &Pace,
    epoch: Instant,
    newest: watch::Sender<Option<Arc<Numbered>>>,
    readings: watch::Sender<Option<Arc<Readings>>>,
) {
    let mut pacer = Pacer::new();
    let mut due = epoch + OFFSET;
    let (mut spent_before, mut before) = (Duration::ZERO, epoch);
    for number in 1.. {
        tokio::time::sleep_until(due).await;
        let now = Instant::now();
        let lag = now.duration_since(due);
        let spent = slots.cpu_spent() + accelerator.map(|a| a.cpu_spent()).unwrap_or_default();
        let behind = sources.link.borrow().connected && sources.last_sent.is_before(number);
        let (spent_now, wall) = (spent.saturating_sub(spent_before), now - before);
        if pacer.note(Round { spent: spent_now, wall, behind }) {
            let interval_ms = pacer.interval_ms();
            tracing::info!(interval_ms, behind, spent = ?spent_now, "readings change their pace");
            pace.set(interval_ms);
        }
        (spent_before, before) = (spent, now);
        let taken = Readings {
            number,
            at: Timestamp::now(),
            gpus: slots.gpus.as_ref().map(|slot| slot.latest()),
            rdma: slots.rdma.latest(),
            host: slots.host.latest(),
            storage: slots.storage.latest(),
            shared: sources.shared_root.borrow().is_some().then(|| slots.shared.latest()),
            tasks: slots.tasks.latest(),
            kernel: slots.kernel.as_ref().map(|slot| slot.latest()),
            versions: slots.versions.latest(),
            clock: *sources.clock.borrow(),
            dropped: sources.last_sent.dropped(),
            interval_ms: pacer.interval_ms(),
            lag_ms: u64::try_from(lag.as_millis()).unwrap_or(u64::MAX),
        };
        let sample = sample::of(&taken);
        readings.send_replace(Some(Arc::new(taken)));
        newest.send_replace(Some(Arc::new(Numbered { number, sample })));
        // What was missed is not made up for.
        let interval = Duration::from_millis(pacer.interval_ms().into());
        let since = Instant::now().duration_since(epoch).saturating_sub(OFFSET);
        due = epoch + OFFSET + since + until_next(since, interval);
    }
}

/// Reads the GPUs; without any it never ends either.
async fn read_gpus(
    accelerator: Option<&dyn Accelerator>,
    slot: Option<Arc<Slot<Vec<GpuSample>>>>,
    visible: Visible,
    epoch: Instant,
) {
    let (Some(accelerator), Some(slot)) = (accelerator, slot) else { return };
    loop {
        slot.begin();
        let reading = accelerator.sample().await.map_err(Outcome::from);
        let visible = visible.borrow().clone();
        slot.end(reading.map(|mut all| {
            all.retain(|sample| visible.contains(&GpuId(sample.uuid.clone())));
            all
        }));
        let elapsed = Instant::now().duration_since(epoch);
        tokio::time::sleep(until_next(elapsed, slot.interval())).await;
    }
}

/// Number of the last sample that was sent, over all sessions, and how many were not.
#[derive(Debug, Default)]
pub struct LastSent {
    number: AtomicU64,
    dropped: AtomicU64,
}

impl LastSent {
    /// The sample as it goes out: with the count of those that did not.
    fn with_dropped(&self, numbered: &Numbered) -> v1::NodeSample {
        let dropped = u32::try_from(self.gap(numbered)).unwrap_or(u32::MAX);
        v1::NodeSample { dropped, ..numbered.sample.clone() }
    }

    fn sent(&self, numbered: &Numbered) {
        self.dropped.fetch_add(self.gap(numbered), Ordering::Relaxed);
        self.number.store(numbered.number, Ordering::Relaxed);
    }

    fn gap(&self, numbered: &Numbered) -> u64 {
        numbered.number.saturating_sub(self.number.load(Ordering::Relaxed) + 1)
    }

    /// Whether the sample before `number` has not been sent yet.
    fn is_before(&self, number: u64) -> bool {
        self.number.load(Ordering::Relaxed) + 1 < number
    }

    /// Samples that were passed over.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Sends the newest sample whenever the stream takes one, and tells `sampled` that it did; runs until it is
/// dropped.
pub async fn ship(
    connection: &Connection,
    mut newest: Newest,
    last_sent: &LastSent,
    sampled: &Notify,
) {
    loop {
        let shipped = ship_on_one_stream(connection, &mut newest, last_sent, sampled).await;
        let Err(error) = shipped else {
            // No sample will ever come again.
            return std::future::pending().await;
        };
        tracing::info!(%error, "sample stream ended; it is opened again");
        tokio::time::sleep(REOPEN).await;
    }
}

async fn ship_on_one_stream(
    connection: &Connection,
    newest: &mut Newest,
    last_sent: &LastSent,
    sampled: &Notify,
) -> Result<(), TransportError> {
    let mut stream = connection.open_uni(StreamKind::Telemetry).await?;
    while newest.changed().await.is_ok() {
        let Some(numbered) = newest.borrow_and_update().clone() else { continue };
        stream.send(&last_sent.with_dropped(&numbered).to_frame()?).await?;
        last_sent.sent(&numbered);
        sampled.notify_one();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::host::HostFacts;
    use crate::inventory::{Findings, Standing, inventory};

    fn numbered(number: u64) -> Numbered {
        Numbered { number, sample: v1::NodeSample { wall_ms: 7, ..v1::NodeSample::default() } }
    }

    #[test]
    fn what_was_not_sent_is_counted() {
        let last = LastSent::default();
        assert_eq!(last.with_dropped(&numbered(1)).dropped, 0);
        assert!(!last.is_before(1));
        last.sent(&numbered(1));
        assert_eq!(last.with_dropped(&numbered(2)).dropped, 0);
        assert!(!last.is_before(2) && last.is_before(3));
        assert_eq!(last.with_dropped(&numbered(9)).dropped, 7);
        assert_eq!(last.with_dropped(&numbered(u64::MAX)).dropped, u32::MAX);
        last.sent(&numbered(9));
        assert_eq!(last.dropped(), 7);
    }

    fn sources(state_dir: PathBuf) -> Sources {
        let standing = Standing {
            name: "node".into(),
            roles: vec![],
            pool: None,
            labels: vec![],
            address: [10, 0, 0, 1].into(),
            interface: None,
            ports: gangline_common::ids::PortBlock { base: 20000, size: 512 },
        };
        let known = inventory(&standing, &HostFacts::default(), &Findings::default());
        Sources {
            accelerators: Arc::new(Ok(None)),
            visible: watch::channel(BTreeSet::new()).1,
            roots: Roots::default(),
            temp_root: state_dir.join("temp"),
            state_dir,
            shared: None,
            shared_root: watch::channel(None).1,
            inventory: watch::channel(Arc::new(known)).1,
            clock: watch::channel(Some(ClockOffset { ahead_ms: -3, uncertain_ms: 1 })).1,
            link: watch::channel(LinkStatus::default()).1,
            last_sent: Arc::default(),
        }
    }

    #[tokio::test]
    async fn a_node_without_gpus_has_samples_of_its_host() {
        let directory = tempfile::tempdir().unwrap();
        let (sender, mut newest) = watch::channel(None);
        let (whole, readings) = watch::channel(None);
        let collecting = collect(sources(directory.path().to_owned()), sender, whole);
        let complete = |numbered: &Option<Arc<Numbered>>| {
            numbered.as_ref().is_some_and(|numbered| {
                let host = numbered.sample.host;
                host.memory_total_bytes.is_some() && host.state_free_bytes.is_some()
            })
        };
        tokio::select! {
            () = collecting => panic!("sampling ended"),
            found = newest.wait_for(complete) => drop(found.unwrap()),
        }
        let sample = newest.borrow().clone().unwrap().sample.clone();
        assert!(sample.host.memory_total_bytes.is_some_and(|bytes| bytes > 0));
        assert!(sample.host.agent_memory_bytes.is_some_and(|bytes| bytes > 0));
        assert_eq!((sample.host.clock_offset_ms, sample.interval_ms), (Some(-3), 1000));
        assert!(sample.gpus.is_empty());
        let names: Vec<&str> = sample.collectors.iter().map(|c| c.name.as_str()).collect();
        for name in ["rdma", "host", "storage", "tasks", "versions"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(!names.contains(&"gpu") && !names.contains(&"shared"), "{names:?}");
        let readings = readings.borrow().clone().unwrap();
        assert!(readings.host.fresh().is_some_and(|host| host.agent.open_files.is_some()));
        assert!(readings.gpus.is_none() && readings.shared.is_none());
    }
}
