//! A workload from a seed: for tests and for trying the command without a trace. Shaped after public
//! traces of training clusters: most jobs small and short, a few large and long.

use crate::workload::{Demand, Group, Groups, Job, Workload};

/// GPUs and how many of a hundred jobs want so many.
const SIZES: [(u32, u32); 6] = [(1, 60), (2, 10), (4, 10), (8, 14), (16, 4), (32, 2)];
/// Mean time between two arrivals.
const MEAN_GAP_MS: f64 = 120_000.0;
/// Median length of a job, and how far lengths spread (of the logarithm).
const MEDIAN_MS: f64 = 20.0 * 60_000.0;
const SPREAD: f64 = 1.8;
const LONGEST_MS: f64 = 30.0 * 86_400_000.0;
const PROJECTS: [&str; 3] = ["vision", "speech", "rlhf"];

/// `count` jobs; the same seed gives the same jobs.
pub fn generate(seed: u64, count: usize) -> Workload {
    let mut chance = Chance(seed);
    let mut workload = Workload::default();
    let mut groups = Groups::default();
    let mut at = 0.0;
    for number in 0..count {
        at -= MEAN_GAP_MS * (1.0 - chance.fraction()).ln();
        let length = MEDIAN_MS * (SPREAD * chance.normal()).exp();
        let project = PROJECTS.get(chance.below(PROJECTS.len() as u64) as usize);
        let group = groups.number(Group {
            project: project.copied().unwrap_or_default().to_owned(),
            user: "generator".to_owned(),
            priority: crate::fleet::PRIORITY,
            ..Group::default()
        });
        workload.jobs.push(Job {
            submit_ms: at.round() as u64,
            duration_ms: length.clamp(1000.0, LONGEST_MS).round() as u64,
            demand: Demand::Gpus(size(chance.below(100) as u32)),
            group,
            origin: number as u32 + 1,
        });
    }
    workload.groups = groups.into_list();
    workload.settle();
    workload
}

fn size(mut of_a_hundred: u32) -> u32 {
    for (gpus, share) in SIZES {
        if of_a_hundred < share {
            return gpus;
        }
        of_a_hundred -= share;
    }
    1
}

/// The generator SplitMix64: enough for a workload, the same everywhere.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, and without, 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// The bell curve, by the method of Box and Muller.
    fn normal(&mut self) -> f64 {
        let (a, b) = (1.0 - self.fraction(), self.fraction());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_workload() {
        let one = generate(7, 500);
        assert_eq!(one, generate(7, 500));
        assert_ne!(one, generate(8, 500));
        assert_eq!(one.jobs.len(), 500);
        assert!(one.jobs.is_sorted_by_key(|job| job.submit_ms));
    }
}
