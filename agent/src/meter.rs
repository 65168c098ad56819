//! How long the GPUs of each member were measured, and for how long of that they were busy: counts
//! that only grow, for as long as this agent runs.

use std::collections::BTreeMap;

use gangline_common::ids::{GpuId, MemberKey};
use gangline_common::wire::v1::{NodeSample, UsageReport};

/// A GPU is busy from this SM activity on, in percent, or from this utilization where that is all
/// that can be read.
const BUSY_PCT: f64 = 10.0;
/// What one reading says is true for at most this long, in milliseconds: readings may come every 10 s.
const READING_MS: u64 = 15_000;
/// How often counts are reported while nothing else is, in milliseconds.
const REPORT_MS: u64 = 60_000;

#[derive(Debug, Default)]
pub struct Meter {
    counts: BTreeMap<MemberKey, UsageReport>,
    /// When each GPU was read last, on the boot clock in milliseconds.
    read_ms: BTreeMap<GpuId, u64>,
    /// Number of the newest sample that counts.
    number: u64,
    reported_ms: u64,
    has_news: bool,
}

impl Meter {
    /// Counts a sample once. `owners` are the members that run, by GPU.
    pub fn take(
        &mut self,
        number: u64,
        sample: &NodeSample,
        owners: &BTreeMap<&GpuId, &MemberKey>,
        now_ms: u64,
    ) {
        if number <= self.number {
            return;
        }
        self.number = number;
        self.read_ms.retain(|gpu, _| sample.gpus.iter().any(|sample| sample.uuid == *gpu));
        for gpu in &sample.gpus {
            let sm_active_pct = gpu.sm_active.map(|share| share * 100.0);
            let Some(utilization) = sm_active_pct.or(gpu.utilization_pct) else {
                self.read_ms.remove(&gpu.uuid);
                continue;
            };
            let before = self.read_ms.insert(gpu.uuid.clone(), now_ms);
            let (Some(before), Some(owner)) = (before, owners.get(&gpu.uuid)) else { continue };
            let ms = now_ms.saturating_sub(before).min(READING_MS);
            let none = UsageReport { measured_ms: 0, busy_ms: 0 };
            let count = self.counts.entry((*owner).clone()).or_insert(none);
            count.measured_ms = count.measured_ms.saturating_add(ms);
            if f64::from(utilization) >= BUSY_PCT {
                count.busy_ms = count.busy_ms.saturating_add(ms);
            }
            self.has_news = true;
        }
    }

    pub fn counts(&self) -> &BTreeMap<MemberKey, UsageReport> {
        &self.counts
    }

    /// Forgets members that nobody asks for any more.
    pub fn retain(&mut self, is_needed: impl Fn(&MemberKey) -> bool) {
        self.counts.retain(|key, _| is_needed(key));
    }

    /// Whether there are counts that should be reported by now.
    pub fn is_due(&self, now_ms: u64) -> bool {
        self.has_news && now_ms.saturating_sub(self.reported_ms) >= REPORT_MS
    }

    pub fn reported(&mut self, now_ms: u64) {
        self.reported_ms = now_ms;
        self.has_news = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{epoch, gang};
    use gangline_common::ids::MemberId;
    use gangline_common::wire::v1::GpuSample;

    fn sample(utilization: &[Option<u8>]) -> NodeSample {
        let gpu = |(index, utilization): (usize, &Option<u8>)| GpuSample {
            utilization_pct: utilization.map(Into::into),
            ..GpuSample::unread(GpuId(format!("GPU-{index}")))
        };
        let gpus = utilization.iter().enumerate().map(gpu).collect();
        NodeSample { gpus, ..NodeSample::default() }
    }

    #[test]
    fn only_readings_of_owned_gpus_count_and_each_sample_once() {
        let gpus: Vec<GpuId> = (0..3).map(|n| GpuId(format!("GPU-{n}"))).collect();
        let key = MemberKey { gang: gang("g"), epoch: epoch(1), member: MemberId::Rank(0) };
        let owners = BTreeMap::from([(&gpus[0], &key), (&gpus[1], &key)]);
        let mut meter = Meter::default();
        meter.take(1, &sample(&[Some(90), Some(9), Some(99)]), &owners, 1_000);
        assert!(meter.counts().is_empty() && !meter.is_due(REPORT_MS));
        meter.take(2, &sample(&[Some(90), Some(9), Some(99)]), &owners, 2_000);
        meter.take(2, &sample(&[Some(90), Some(9), Some(99)]), &owners, 2_500);
        assert_eq!(meter.counts()[&key], UsageReport { measured_ms: 2_000, busy_ms: 1_000 });
        // Without a reading nothing is known, also of the time until the next one.
        meter.take(4, &sample(&[None, Some(10), None]), &owners, 3_000);
        meter.take(5, &sample(&[Some(90), Some(0), None]), &owners, 4_000);
        assert_eq!(meter.counts()[&key], UsageReport { measured_ms: 4_000, busy_ms: 2_000 });
        // A long silence is no reading.
        meter.take(6, &sample(&[Some(90)]), &owners, 104_000);
        assert_eq!(meter.counts()[&key].measured_ms, 4_000 + READING_MS);
        assert!(meter.is_due(REPORT_MS));
        meter.reported(104_000);
        assert!(!meter.is_due(1_000_000));
        meter.retain(|_| false);
        assert!(meter.counts().is_empty());
    }
}
