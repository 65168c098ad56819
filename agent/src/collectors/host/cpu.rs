//! CPUs: which ones this process may use, and how busy they were between two readings.

use std::path::Path;
use std::time::{Duration, Instant};

use super::text;

/// Most CPUs that a mask is believed to hold: eight times the largest machine of today.
const MAX_CPUS: usize = 8192;

/// The numbers of the CPUs in the scheduler's mask of this process, ascending.
pub(super) fn allowed_cpus(proc: &Path) -> Option<Vec<u32>> {
    let status = text(&proc.join("self/status"))?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    parse_cpu_list(list)
}

/// Parses a list such as `0-3,8,10-11`. `None` for anything else, and for an empty list.
fn parse_cpu_list(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        let length = usize::try_from(last.checked_sub(first)?).ok()?;
        if length >= MAX_CPUS || cpus.len() >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// CPU time that a cgroup had used at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct CgroupCpu {
    pub(super) used: Duration,
    pub(super) at: Instant,
}

impl CgroupCpu {
    /// Share of `cpus` CPUs used since `last`, in percent; `None` when no time has passed or the counter went
    /// back. May be a little above 100: a quota lets a cgroup run over within one of its periods.
    pub(super) fn busy_pct_since(self, last: Self, cpus: f64) -> Option<f32> {
        let wall = self.at.checked_duration_since(last.at)?.as_secs_f64();
        let used = self.used.checked_sub(last.used)?.as_secs_f64();
        let share = used / (wall * cpus);
        share.is_finite().then_some((share * 100.0) as f32)
    }
}

/// The mean of the busy shares of the CPUs in `mask`, each given with its name (`cpu7`). A container's view of
/// `/proc/stat` may be renumbered; where no name fits the mask, all CPUs that are shown count.
pub(super) fn share_of_allowed<'a>(
    usage: impl Iterator<Item = (&'a str, f32)> + Clone,
    mask: Option<&[u32]>,
) -> Option<f32> {
    let in_mask = |name: &str| {
        let number = name.strip_prefix("cpu").and_then(|n| n.parse().ok());
        number
            .is_some_and(|number: u32| mask.is_some_and(|mask| mask.binary_search(&number).is_ok()))
    };
    let allowed = usage.clone().filter(|(name, _)| in_mask(name));
    mean(allowed.map(|(_, share)| share)).or_else(|| mean(usage.map(|(_, share)| share)))
}

fn mean(shares: impl Iterator<Item = f32>) -> Option<f32> {
    let (mut sum, mut count) = (0.0_f64, 0_u32);
    for share in shares {
        sum += f64::from(share);
        count += 1;
    }
    (count > 0 && sum.is_finite()).then(|| (sum / f64::from(count)) as f32)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{CgroupCpu, parse_cpu_list, share_of_allowed};

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpu_list("\t0-2,8,10-11\n"), Some(vec![0, 1, 2, 8, 10, 11]));
        assert_eq!(parse_cpu_list("3"), Some(vec![3]));
        for wrong in ["", "a", "3-1", "0-4294967295", "1,,2", "-"] {
            assert_eq!(parse_cpu_list(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_share_of_a_quota_is_used_time_over_wall_time() {
        let start = Instant::now();
        let at = |seconds: u64, used: u64| CgroupCpu {
            used: Duration::from_millis(used),
            at: start + Duration::from_secs(seconds),
        };
        assert_eq!(at(2, 5000).busy_pct_since(at(0, 1000), 4.0), Some(50.0));
        assert_eq!(at(1, 7).busy_pct_since(at(0, 7), 4.0), Some(0.0));
        assert_eq!(at(0, 9).busy_pct_since(at(0, 7), 4.0), None, "no time");
        assert_eq!(at(1, 6).busy_pct_since(at(0, 7), 4.0), None, "backwards");
    }

    #[test]
    fn only_cpus_in_the_mask_count() {
        let usage = [("cpu0", 100.0), ("cpu1", 20.0), ("cpu2", 40.0)];
        let share = |mask| share_of_allowed(usage.into_iter(), mask);
        assert_eq!(share(Some(&[1, 2])), Some(30.0));
        assert_eq!(share(Some(&[0])), Some(100.0));
        // Renumbered CPUs, and no mask at all.
        assert_eq!(share(Some(&[64])), share(None));
        assert_eq!(share_of_allowed([].into_iter(), Some(&[0])), None);
    }
}
