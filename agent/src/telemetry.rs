//! Samples: one a second, from the host and the GPUs, on a stream of their own. Newest wins: a
//! coordinator that does not keep up misses samples and is told how many.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gangline_common::ids::GpuId;
use gangline_common::time::Timestamp;
use gangline_common::transport::{Connection, StreamKind, TransportError};
use gangline_common::wire::v1;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::collectors::host::{self, HostCollector, Roots};
use crate::collectors::nvml::{self, NvmlCollector};
use crate::inventory::{Nvml, opened};

/// How often a sample is taken.
const INTERVAL: Duration = Duration::from_secs(1);
const INTERVAL_MS: u32 = 1000;
/// A reading of the GPUs older than this is not sent as a new one (NVML may hang).
const GPU_READING_LIFE: Duration = Duration::from_secs(3);
/// Wait before a stream that was refused or cut is opened again.
const REOPEN: Duration = Duration::from_secs(5);

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

/// Takes samples until it is dropped. GPUs are read apart from the host, because NVML may hang.
pub async fn collect(
    nvml: Nvml,
    visible: Visible,
    roots: Roots,
    newest: watch::Sender<Option<Arc<Numbered>>>,
) {
    let (gpus, latest) = watch::channel(None);
    match opened(&nvml) {
        Some(nvml) => {
            tokio::join!(read_gpus(nvml, visible, gpus), read_host(roots, latest, newest));
        }
        None => read_host(roots, latest, newest).await,
    }
}

type GpuReading = Option<(Instant, Vec<v1::GpuSample>)>;

async fn read_host(
    roots: Roots,
    gpus: watch::Receiver<GpuReading>,
    newest: watch::Sender<Option<Arc<Numbered>>>,
) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut collector = HostCollector::new(roots);
    for number in 1.. {
        ticks.tick().await;
        // Reads small files of /proc; they may still block under load.
        let read = tokio::task::spawn_blocking(move || {
            let sample = collector.sample();
            (collector, sample)
        });
        let host = match read.await {
            Ok((back, sample)) => {
                collector = back;
                host_sample(&sample)
            }
            Err(error) => {
                tracing::error!(%error, "host sampling has ended");
                return;
            }
        };
        let gpus = match &*gpus.borrow() {
            Some((at, reading)) if at.elapsed() < GPU_READING_LIFE => reading.clone(),
            Some(_) | None => Vec::new(),
        };
        let wall_ms = Timestamp::now().wall_ms;
        let sample =
            v1::NodeSample { wall_ms, interval_ms: INTERVAL_MS, host, gpus, ..Default::default() };
        newest.send_replace(Some(Arc::new(Numbered { number, sample })));
    }
}

async fn read_gpus(nvml: &NvmlCollector, visible: Visible, latest: watch::Sender<GpuReading>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut complained = false;
    loop {
        ticks.tick().await;
        match nvml.sample().await {
            Ok(samples) => {
                complained = false;
                let visible = visible.borrow().clone();
                let seen = samples.iter().filter(|s| visible.contains(&GpuId(s.uuid.clone())));
                latest.send_replace(Some((Instant::now(), seen.map(gpu_sample).collect())));
            }
            Err(error) => {
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!(%error, "no samples of the GPUs");
                }
            }
        }
    }
}

fn host_sample(sample: &host::HostSample) -> v1::HostSample {
    v1::HostSample {
        cpu_busy_pct: sample.cpu_busy_pct,
        memory_used_bytes: sample.mem_used_bytes,
        memory_total_bytes: sample.mem_total_bytes,
        load1: sample.load1,
        shm_free_bytes: sample.shm_free_bytes,
        ..v1::HostSample::default()
    }
}

fn gpu_sample(sample: &nvml::GpuSample) -> v1::GpuSample {
    v1::GpuSample {
        lost: sample.lost,
        utilization_pct: sample.utilization_pct,
        memory_utilization_pct: sample.memory_utilization_pct,
        memory_used_bytes: sample.memory_used_bytes,
        memory_total_bytes: sample.memory_total_bytes,
        temperature_c: sample.temperature_c,
        power_w: sample.power_w,
        power_limit_w: sample.power_limit_w,
        sm_clock_mhz: sample.sm_clock_mhz,
        memory_clock_mhz: sample.mem_clock_mhz,
        processes: sample.processes.as_ref().and_then(|all| u32::try_from(all.len()).ok()),
        ..v1::GpuSample::unread(GpuId(sample.uuid.clone()))
    }
}

/// Number of the last sample that was sent, over all sessions.
#[derive(Debug, Default)]
pub struct LastSent(AtomicU64);

impl LastSent {
    /// The sample as it goes out: with the count of those that did not.
    fn with_dropped(&self, numbered: &Numbered) -> v1::NodeSample {
        let gap = numbered.number.saturating_sub(self.0.load(Ordering::Relaxed) + 1);
        let dropped = u32::try_from(gap).unwrap_or(u32::MAX);
        v1::NodeSample { dropped, ..numbered.sample.clone() }
    }

    fn sent(&self, numbered: &Numbered) {
        self.0.store(numbered.number, Ordering::Relaxed);
    }
}

/// Sends the newest sample whenever the stream takes one; runs until it is dropped.
pub async fn ship(connection: &Connection, mut newest: Newest, last_sent: &LastSent) {
    loop {
        let Err(error) = ship_on_one_stream(connection, &mut newest, last_sent).await else {
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
) -> Result<(), TransportError> {
    let mut stream = connection.open_uni(StreamKind::Telemetry).await?;
    while newest.changed().await.is_ok() {
        let Some(numbered) = newest.borrow_and_update().clone() else { continue };
        stream.send(&last_sent.with_dropped(&numbered).to_frame()?).await?;
        last_sent.sent(&numbered);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: u64) -> Numbered {
        Numbered { number, sample: v1::NodeSample { wall_ms: 7, ..v1::NodeSample::default() } }
    }

    #[test]
    fn what_was_not_sent_is_counted() {
        let last = LastSent::default();
        assert_eq!(last.with_dropped(&numbered(1)).dropped, 0);
        last.sent(&numbered(1));
        assert_eq!(last.with_dropped(&numbered(2)).dropped, 0);
        assert_eq!(last.with_dropped(&numbered(9)).dropped, 7);
        assert_eq!(last.with_dropped(&numbered(u64::MAX)).dropped, u32::MAX);
    }

    #[tokio::test]
    async fn a_node_without_gpus_has_samples_of_its_host() {
        let (sender, mut newest) = watch::channel(None);
        let (_visible, visible) = watch::channel(BTreeSet::new());
        let collecting = collect(Arc::new(Ok(None)), visible, Roots::default(), sender);
        tokio::select! {
            () = collecting => panic!("sampling ended"),
            changed = newest.changed() => changed.unwrap(),
        }
        let sample = newest.borrow().clone().unwrap();
        assert_eq!(sample.number, 1);
        assert!(sample.sample.host.memory_total_bytes.is_some_and(|bytes| bytes > 0));
        assert!(sample.sample.gpus.is_empty());
    }
}
