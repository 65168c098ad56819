//! The samples of the last two minutes, kept for the scene of a failure.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use gangline_common::ids::GpuId;
use gangline_common::time::wall_text;
use gangline_common::wire::v1::{GpuSample, NodeSample, PortSample};

use crate::telemetry::{Newest, Numbered};

/// Samples that are kept: two minutes at one a second.
const SAMPLES: usize = 120;
/// Most rows of one text: with many GPUs and ports, older samples are left out evenly.
const ROWS: usize = 1200;

/// The newest samples; cheap to clone.
#[derive(Clone, Default)]
pub struct History {
    samples: Arc<Mutex<VecDeque<Arc<Numbered>>>>,
}

impl History {
    /// Follows the samples until there are no more.
    pub async fn follow(self, mut newest: Newest) {
        loop {
            let sample = newest.borrow_and_update().clone();
            if let Some(sample) = sample {
                let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
                if samples.len() >= SAMPLES {
                    samples.pop_front();
                }
                samples.push_back(sample);
            }
            if newest.changed().await.is_err() {
                return;
            }
        }
    }

    /// A table of these GPUs and of every RDMA port, oldest row first.
    pub fn table(&self, gpus: &BTreeSet<GpuId>) -> String {
        let samples: Vec<_> = {
            let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples.iter().cloned().collect()
        };
        let of = |numbered: &Arc<Numbered>| rows(&numbered.sample, gpus);
        let per_sample = samples.last().map_or(0, |last| of(last).len());
        let step = (samples.len() * per_sample).div_ceil(ROWS).max(1);
        // Counted from the newest, which is always among them.
        let chosen = samples.iter().rev().step_by(step).collect::<Vec<_>>();
        let lines: Vec<String> = chosen.into_iter().rev().flat_map(of).collect();
        if lines.is_empty() {
            return "no sample yet".to_owned();
        }
        lines.concat()
    }
}

fn rows(sample: &NodeSample, gpus: &BTreeSet<GpuId>) -> Vec<String> {
    let time = wall_text(sample.wall_ms);
    let gpus = sample.gpus.iter().filter(|gpu| gpus.contains(&gpu.uuid)).map(gpu_row);
    let ports = sample.ports.iter().map(port_row);
    let host = &sample.host;
    let mut rows = vec![row(
        "host",
        &[
            ("cpu_pct", shown(host.cpu_busy_pct)),
            ("memory", shown(host.memory_used_bytes)),
            ("oom_kills", shown(host.oom_kills)),
            ("io_pressure_pct", shown(host.io_pressure_pct)),
        ],
    )];
    rows.extend(gpus.chain(ports));
    rows.iter().map(|row| format!("{time} {row}\n")).collect()
}

fn gpu_row(gpu: &GpuSample) -> String {
    let lost = gpu.lost.then(|| "yes".to_owned());
    row(
        &gpu.uuid.0,
        &[
            ("lost", lost),
            ("util_pct", shown(gpu.utilization_pct)),
            ("memory", shown(gpu.memory_used_bytes)),
            ("power_w", shown(gpu.power_w)),
            ("temp_c", shown(gpu.temperature_c)),
            ("sm_mhz", shown(gpu.sm_clock_mhz)),
            ("sm_active", shown(gpu.sm_active)),
            ("tensor_active", shown(gpu.tensor_active)),
            ("ecc_uncorrected", shown(gpu.ecc_uncorrected)),
            ("nvlinks_down", shown(gpu.nvlinks_down)),
            ("xid", shown(gpu.last_xid)),
        ],
    )
}

fn port_row(port: &PortSample) -> String {
    row(
        &format!("{}/{}", port.device, port.port),
        &[
            ("state", shown(port.state)),
            ("received", shown(port.received_bytes)),
            ("sent", shown(port.sent_bytes)),
            ("errors", shown(port.errors)),
            ("link_downed", shown(port.link_downed)),
            ("congestion", shown(port.congestion)),
        ],
    )
}

fn shown(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

/// `name key=value ...`, of what was read.
fn row(name: &str, cells: &[(&str, Option<String>)]) -> String {
    let mut text = name.to_owned();
    for (key, value) in cells {
        if let Some(value) = value {
            let _ = write!(text, " {key}={value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use gangline_common::wire::v1::HostSample;
    use tokio::sync::watch;

    use super::*;

    fn sample(number: u64) -> Arc<Numbered> {
        let gpu = |uuid: &str| GpuSample {
            power_w: Some(number as f32),
            ..GpuSample::unread(GpuId(uuid.to_owned()))
        };
        let port = PortSample {
            device: "mlx5_0".to_owned(),
            port: 1,
            errors: Some(3),
            ..Default::default()
        };
        let sample = NodeSample {
            wall_ms: number * 1000,
            dropped: 0,
            interval_ms: 1000,
            host: HostSample { cpu_busy_pct: Some(5.0), ..HostSample::default() },
            gpus: vec![gpu("GPU-a"), gpu("GPU-b")],
            ports: vec![port],
            collectors: Vec::new(),
        };
        Arc::new(Numbered { number, sample })
    }

    #[tokio::test]
    async fn two_minutes_are_kept_and_only_the_members_gpus_shown() {
        let history = History::default();
        let wanted = BTreeSet::from([GpuId("GPU-b".to_owned())]);
        assert_eq!(history.table(&wanted), "no sample yet");
        let (sender, newest) = watch::channel(None);
        let task = tokio::spawn(history.clone().follow(newest));
        for number in 1..=130 {
            sender.send_replace(Some(sample(number)));
            let seen = |history: &History| {
                history.samples.lock().unwrap().back().is_some_and(|last| last.number == number)
            };
            while !seen(&history) {
                tokio::task::yield_now().await;
            }
        }
        let table = history.table(&wanted);
        assert_eq!(table.lines().count(), 3 * SAMPLES);
        assert!(table.starts_with("1970-01-01T00:00:11.000Z host cpu_pct=5\n"), "{table}");
        assert!(table.contains("1970-01-01T00:02:10.000Z GPU-b power_w=130\n"));
        assert!(table.ends_with("1970-01-01T00:02:10.000Z mlx5_0/1 errors=3\n"));
        assert!(!table.contains("GPU-a"));
        drop(sender);
        task.await.unwrap();
    }
}
