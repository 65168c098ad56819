//! Limits of the cgroups that this process is in, v1 and v2. A limit set on any group between this process and
//! the mount point holds, so the tightest one is what counts.
//!
//! A container without a cgroup namespace reads paths in `/proc/self/cgroup` that exist only on the host,
//! while its own group is mounted as the root: paths that lead nowhere fall back to the mount point.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::{Roots, text, word};

/// v1 writes "no limit" of memory as the largest multiple of the page size; anything from here on is no limit.
const V1_UNLIMITED: u64 = 1 << 60;

/// Which cgroup interface is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// One hierarchy per controller. A `unified` hierarchy without controllers may lie beside them.
    V1,
    /// The unified hierarchy.
    V2,
}

/// A limit that can be seen. One that cannot be seen is `None` where this type is optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The kernel says that there is none.
    Unlimited,
    /// In the unit of what is limited: bytes, processes.
    At(u64),
}

/// A CPU quota and the group that sets it.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuQuota {
    /// In CPUs: 2.5 is two and a half CPUs' time.
    pub cpus: f64,
    /// Directory of the group.
    pub directory: PathBuf,
}

/// A memory limit and the group that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// In bytes.
    pub limit: Limit,
    directory: PathBuf,
    version: CgroupVersion,
}

impl MemoryLimit {
    /// Bytes in use in the group without the page cache that the kernel would drop first.
    #[must_use]
    pub fn used(&self) -> Option<u64> {
        let (current, key) = match self.version {
            CgroupVersion::V1 => ("memory.usage_in_bytes", "total_inactive_file"),
            CgroupVersion::V2 => ("memory.current", "inactive_file"),
        };
        let current: u64 = word(&self.directory.join(current))?.parse().ok()?;
        let stat = text(&self.directory.join("memory.stat"));
        let cache = stat.as_deref().and_then(|stat| value_of(stat, key));
        Some(current.saturating_sub(cache.unwrap_or(0)))
    }
}

/// What is mounted at `root`, the `/sys/fs/cgroup` of this container.
#[must_use]
pub fn version(root: &Path) -> Option<CgroupVersion> {
    if root.join("cgroup.controllers").exists() {
        return Some(CgroupVersion::V2);
    }
    let v1 = ["memory", "cpu", "pids"].iter();
    v1.map(|controller| root.join(controller))
        .any(|directory| directory.is_dir())
        .then_some(CgroupVersion::V1)
}

/// The tightest CPU quota. `None`: no quota, or none that can be seen.
#[must_use]
pub fn cpu_quota(roots: &Roots) -> Option<CpuQuota> {
    let (version, groups) = groups(roots, "cpu")?;
    let quotas = groups.into_iter().filter_map(|directory| {
        let cpus = match version {
            CgroupVersion::V2 => parse_cpu_max(&text(&directory.join("cpu.max"))?)?,
            CgroupVersion::V1 => {
                let number = |file: &str| word(&directory.join(file))?.parse::<i64>().ok();
                quota(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)?
            }
        };
        Some(CpuQuota { cpus, directory })
    });
    quotas.min_by(|one, other| one.cpus.total_cmp(&other.cpus))
}

/// CPU time used so far in the group of a quota. On v1 its accounting may be a controller of its own.
#[must_use]
pub fn cpu_used(directory: &Path, roots: &Roots) -> Option<Duration> {
    if let Some(stat) = text(&directory.join("cpu.stat"))
        && let Some(micros) = value_of(&stat, "usage_usec")
    {
        return Some(Duration::from_micros(micros));
    }
    let beside = directory.join("cpuacct.usage");
    let own = || {
        let group = directory.strip_prefix(roots.cgroup.join("cpu")).ok()?;
        Some(roots.cgroup.join("cpuacct").join(group).join("cpuacct.usage"))
    };
    let nanos = word(&beside).or_else(|| word(&own()?))?;
    nanos.parse().ok().map(Duration::from_nanos)
}

/// The tightest memory limit. `None`: cannot be seen.
#[must_use]
pub fn memory_limit(roots: &Roots) -> Option<MemoryLimit> {
    let (version, groups) = groups(roots, "memory")?;
    let file = match version {
        CgroupVersion::V1 => "memory.limit_in_bytes",
        CgroupVersion::V2 => "memory.max",
    };
    tightest(groups, file).map(|(limit, directory)| MemoryLimit { limit, directory, version })
}

/// The tightest limit of processes and threads. `None`: cannot be seen.
#[must_use]
pub fn pids_limit(roots: &Roots) -> Option<Limit> {
    let (_, groups) = groups(roots, "pids")?;
    tightest(groups, "pids.max").map(|(limit, _)| limit)
}

/// Processes and threads in the group with the tightest limit of them, and that limit.
#[must_use]
pub fn pids(roots: &Roots) -> Option<(u64, Limit)> {
    let (_, groups) = groups(roots, "pids")?;
    let (limit, directory) = tightest(groups, "pids.max")?;
    Some((word(&directory.join("pids.current"))?.parse().ok()?, limit))
}

/// Processes of the group with the tightest memory limit that the kernel has killed for want of memory.
#[must_use]
pub fn oom_kills(roots: &Roots) -> Option<u64> {
    let limited = memory_limit(roots)?;
    let file = match limited.version {
        CgroupVersion::V1 => "memory.oom_control",
        CgroupVersion::V2 => "memory.events",
    };
    value_of(&text(&limited.directory.join(file))?, "oom_kill")
}

/// The directory of this process's own group in the unified hierarchy, if that has controllers.
#[must_use]
pub(super) fn own_v2(roots: &Roots) -> Option<PathBuf> {
    (version(&roots.cgroup)? == CgroupVersion::V2).then(|| own_group(roots))?
}

/// The directory of this process's own group in the hierarchy that can stop processes: the unified one.
#[must_use]
pub fn own_group(roots: &Roots) -> Option<PathBuf> {
    let root = match version(&roots.cgroup)? {
        CgroupVersion::V2 => roots.cgroup.clone(),
        CgroupVersion::V1 => roots.cgroup.join("unified"),
    };
    let membership = text(&roots.proc.join("self/cgroup")).unwrap_or_default();
    let path = path_of(&membership, "").unwrap_or_default();
    chain(&root, path).into_iter().next()
}

/// The groups of this process for a controller, from its own up to the mount point.
fn groups(roots: &Roots, controller: &str) -> Option<(CgroupVersion, Vec<PathBuf>)> {
    let version = version(&roots.cgroup)?;
    let membership = text(&roots.proc.join("self/cgroup")).unwrap_or_default();
    let (root, named) = match version {
        CgroupVersion::V2 => (roots.cgroup.clone(), ""),
        CgroupVersion::V1 => (roots.cgroup.join(controller), controller),
    };
    let path = path_of(&membership, named).unwrap_or_default();
    Some((version, chain(&root, path)))
}

/// The path in a line `id:controllers:path`; the unified hierarchy has no controllers in its line.
fn path_of<'a>(membership: &'a str, controller: &str) -> Option<&'a str> {
    membership.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|held| held == controller).then_some(path)
    })
}

/// The existing directories from `root/path` up to `root`. A path that leaves the root is not followed.
fn chain(root: &Path, path: &str) -> Vec<PathBuf> {
    let relative = Path::new(path.trim_start_matches('/'));
    let inside = relative.components().all(|part| matches!(part, Component::Normal(_)));
    let own = if inside { root.join(relative) } else { root.to_owned() };
    own.ancestors()
        .take_while(|directory| directory.starts_with(root))
        .filter(|directory| directory.is_dir())
        .map(Path::to_owned)
        .collect()
}

/// The smallest limit in the file `name` of the groups, with its group.
fn tightest(groups: Vec<PathBuf>, name: &str) -> Option<(Limit, PathBuf)> {
    groups
        .into_iter()
        .filter_map(|directory| Some((parse_limit(&word(&directory.join(name))?)?, directory)))
        .min_by_key(|(limit, _)| match limit {
            Limit::At(number) => *number,
            Limit::Unlimited => u64::MAX,
        })
}

fn parse_limit(word: &str) -> Option<Limit> {
    if word == "max" {
        return Some(Limit::Unlimited);
    }
    let number: u64 = word.parse().ok()?;
    Some(if number >= V1_UNLIMITED { Limit::Unlimited } else { Limit::At(number) })
}

/// `cpu.max` of v2: quota or `max`, and the period.
fn parse_cpu_max(text: &str) -> Option<f64> {
    let (quota_us, period_us) = text.trim().split_once(' ')?;
    quota(quota_us.parse().ok()?, period_us.parse().ok()?)
}

/// Quota over period in CPUs; v1 writes "no quota" as -1.
fn quota(quota_us: i64, period_us: i64) -> Option<f64> {
    (quota_us > 0 && period_us > 0).then_some(quota_us as f64 / period_us as f64)
}

/// The number behind `key` in lines of `key number`.
fn value_of(stat: &str, key: &str) -> Option<u64> {
    stat.lines().find_map(|line| {
        let (held, number) = line.split_once(' ')?;
        (held == key).then(|| number.trim().parse().ok())?
    })
}
