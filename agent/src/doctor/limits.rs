//! Limits on what a gang may use: cgroup, memory, pids, CPUs, `/dev/shm`, ulimits and ports.

use rustix::fs::Access;
use rustix::process::{Resource, getrlimit};

use super::{DoctorLine, Level, size};
use crate::collectors::host::cgroup::{CgroupVersion, Limit, own_group};
use crate::collectors::host::{HostFacts, Roots};
use crate::collectors::storage::Room;

/// A Ray head takes about 600 processes and threads and each worker a few dozen.
const FEW_PIDS: u64 = 4096;

/// Below this `/dev/shm` holds no object store worth the name; a container gets 64 MiB by default.
const SMALL_SHM: u64 = 1 << 30;

/// Ray opens several descriptors per worker and peer.
const FEW_FILES: u64 = 65_536;

/// The cgroup interface, and whether a gang can be put into a group of its own.
pub(super) fn cgroup(roots: &Roots, version: Option<CgroupVersion>) -> DoctorLine {
    const CHECK: &str = "cgroup";
    const SWEEP: &str = "gangs are stopped by their marks and the subreaper instead";
    match version {
        None => {
            DoctorLine::new(CHECK, Level::Blind, "no cgroup file system is mounted").advise(SWEEP)
        }
        Some(CgroupVersion::V1) => {
            DoctorLine::new(CHECK, Level::Warning, "v1: there is no cgroup.kill").advise(SWEEP)
        }
        Some(CgroupVersion::V2) => {
            let Some(group) = own_group(roots) else {
                return DoctorLine::new(CHECK, Level::Blind, "v2; the own group cannot be found")
                    .advise(SWEEP);
            };
            let writable = rustix::fs::access(&group, Access::WRITE_OK).is_ok();
            let kill = group.join("cgroup.kill").exists();
            let text = format!(
                "v2, {}, {} cgroup.kill",
                if writable { "writable" } else { "read-only" },
                if kill { "with" } else { "without" },
            );
            if writable && kill {
                DoctorLine::new(CHECK, Level::Ok, text)
            } else {
                DoctorLine::new(CHECK, Level::Warning, text).advise(SWEEP)
            }
        }
    }
}

/// Memory and processes.
pub(super) fn memory_and_pids(facts: &HostFacts) -> Vec<DoctorLine> {
    vec![memory(facts), pids(facts.pids_limit)]
}

fn memory(facts: &HostFacts) -> DoctorLine {
    const CHECK: &str = "memory";
    match (facts.memory_bytes, facts.memory_limit) {
        (None, _) => {
            DoctorLine::new(CHECK, Level::Blind, "neither a limit nor /proc/meminfo can be read")
        }
        (Some(bytes), Some(Limit::At(_))) => {
            let host = facts.memory_host_bytes.map_or("unknown".to_owned(), size);
            let text = format!("{} by cgroup limit, host {host}", size(bytes));
            DoctorLine::new(CHECK, Level::Ok, text)
        }
        (Some(bytes), Some(Limit::Unlimited)) => {
            DoctorLine::new(CHECK, Level::Ok, format!("{}, no limit below the host", size(bytes)))
        }
        (Some(bytes), None) => {
            let text =
                format!("{} on the host; a limit of the container cannot be seen", size(bytes));
            DoctorLine::new(CHECK, Level::Blind, text).advise(
                "state the node's memory in the agent's configuration if the platform limits it",
            )
        }
    }
}

fn pids(limit: Option<Limit>) -> DoctorLine {
    const CHECK: &str = "pids";
    match limit {
        None => DoctorLine::new(CHECK, Level::Blind, "a limit of processes cannot be seen"),
        Some(Limit::Unlimited) => DoctorLine::new(CHECK, Level::Ok, "no limit of processes"),
        Some(Limit::At(limit)) if limit < FEW_PIDS => DoctorLine::new(
            CHECK,
            Level::Warning,
            format!("limit of {limit} processes and threads"),
        )
        .advise(format!(
            "raise the container's pids limit to {FEW_PIDS} or more: Ray starts hundreds of threads"
        )),
        Some(Limit::At(limit)) => {
            DoctorLine::new(CHECK, Level::Ok, format!("limit of {limit} processes and threads"))
        }
    }
}

/// CPUs by mask and quota.
pub(super) fn cpus(facts: &HostFacts) -> DoctorLine {
    let Some(cpus) = facts.cpus else {
        return DoctorLine::new("CPUs", Level::Blind, "neither the mask nor a quota can be read");
    };
    let quota = facts.cpu_quota.map_or("none".to_owned(), |quota| format!("{quota:.2}"));
    let mask = facts.cpus_in_mask.map_or("unknown".to_owned(), |mask| mask.to_string());
    DoctorLine::new("CPUs", Level::Ok, format!("{cpus} usable: {mask} in the mask, quota {quota}"))
}

/// Size of `/dev/shm`, where Ray has its object store and NCCL its buffers.
pub(super) fn shm(facts: &HostFacts, found: &std::io::Result<Room>) -> DoctorLine {
    const CHECK: &str = "/dev/shm";
    let room = match found {
        Ok(room) => room,
        Err(error) => {
            return DoctorLine::new(CHECK, Level::Error, error.to_string())
                .advise("mount a tmpfs at /dev/shm, a third of the memory or more");
        }
    };
    let text = format!("{}, {} free", size(room.total_bytes), size(room.free_bytes));
    let wanted = facts.memory_bytes.map_or(SMALL_SHM, |memory| SMALL_SHM.max(memory / 10));
    if room.total_bytes < wanted {
        let advice = format!(
            "raise it to {} or more (docker --shm-size, an emptyDir of medium Memory): object store and NCCL need it",
            size(wanted)
        );
        return DoctorLine::new(CHECK, Level::Warning, text).advise(advice);
    }
    DoctorLine::new(CHECK, Level::Ok, text)
}

/// `memlock` and `nofile` of this process, which its gangs inherit.
pub(super) fn ulimits(fabric: bool) -> Vec<DoctorLine> {
    let memlock_limit = getrlimit(Resource::Memlock);
    let files = getrlimit(Resource::Nofile);
    vec![memlock(memlock_limit.current, fabric), nofile(files.current, files.maximum)]
}

/// RDMA pins its buffers. `None` is unlimited.
fn memlock(limit: Option<u64>, fabric: bool) -> DoctorLine {
    const CHECK: &str = "ulimit memlock";
    match limit {
        None => DoctorLine::new(CHECK, Level::Ok, "unlimited"),
        Some(limit) if fabric => DoctorLine::new(
            CHECK,
            Level::Warning,
            format!("{} KiB, and there are RDMA devices", limit / 1024),
        )
        .advise("set memlock to unlimited: NCCL over InfiniBand cannot pin its buffers"),
        Some(limit) => DoctorLine::new(
            CHECK,
            Level::Ok,
            format!("{} KiB; no RDMA device needs more", limit / 1024),
        ),
    }
}

fn nofile(soft: Option<u64>, hard: Option<u64>) -> DoctorLine {
    const CHECK: &str = "ulimit nofile";
    let word = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let text = format!("{} (at most {})", word(soft), word(hard));
    if soft.is_none_or(|soft| soft >= FEW_FILES) {
        return DoctorLine::new(CHECK, Level::Ok, text);
    }
    DoctorLine::new(CHECK, Level::Warning, text).advise(format!(
        "raise nofile to {FEW_FILES} or more: Ray opens descriptors per worker and per node"
    ))
}

/// The ports for gangs against those that the kernel gives to outgoing connections.
pub(super) fn ports(range: (u16, u16), local: Option<(u16, u16)>) -> DoctorLine {
    const CHECK: &str = "ports";
    let (first, last) = range;
    if first > last {
        return DoctorLine::new(CHECK, Level::Error, format!("the range {first}-{last} is empty"))
            .advise("correct the port range in the coordinator's configuration");
    }
    let Some((low, high)) = local else {
        let text = format!("{first}-{last}; ip_local_port_range cannot be read");
        return DoctorLine::new(CHECK, Level::Blind, text);
    };
    let text = format!("{first}-{last}, outgoing connections take {low}-{high}");
    if first > high || last < low {
        return DoctorLine::new(CHECK, Level::Ok, text);
    }
    DoctorLine::new(CHECK, Level::Warning, format!("{text}: they overlap"))
        .advise("move net.ipv4.ip_local_port_range or the port range: any connection may take a port of a gang")
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::{cgroup, cpus, memlock, memory, nofile, pids, ports, shm};
    use crate::collectors::fixture::{Tree, roots};
    use crate::collectors::host::{CgroupVersion, HostFacts, Limit};
    use crate::collectors::storage::Room;
    use crate::doctor::Level;

    #[test]
    fn only_a_writable_v2_group_with_kill_is_ok() {
        let tree =
            Tree::new().file("proc/self/cgroup", "0::/\n").file("cgroup/cgroup.controllers", "");
        let line = cgroup(&roots(&tree), Some(CgroupVersion::V2));
        assert_eq!(
            (line.level, line.text.as_str()),
            (Level::Warning, "v2, writable, without cgroup.kill")
        );
        let tree = tree.file("cgroup/cgroup.kill", "");
        assert_eq!(cgroup(&roots(&tree), Some(CgroupVersion::V2)).level, Level::Ok);
        assert_eq!(cgroup(&roots(&tree), Some(CgroupVersion::V1)).level, Level::Warning);
        assert_eq!(cgroup(&roots(&tree), None).level, Level::Blind);
    }

    #[test]
    fn limits_that_cannot_be_seen_are_blind() {
        let mut facts = HostFacts { memory_bytes: Some(8 << 30), ..HostFacts::default() };
        assert_eq!(memory(&facts).level, Level::Blind);
        facts.memory_limit = Some(Limit::Unlimited);
        assert_eq!(memory(&facts).level, Level::Ok);
        assert_eq!(memory(&HostFacts::default()).level, Level::Blind);
        assert_eq!(pids(None).level, Level::Blind);
        assert_eq!(pids(Some(Limit::At(1024))).level, Level::Warning);
        assert_eq!(pids(Some(Limit::At(32_768))).level, Level::Ok);
        assert_eq!(cpus(&HostFacts::default()).level, Level::Blind);
    }

    #[test]
    fn shm_is_measured_against_memory() {
        let facts = HostFacts { memory_bytes: Some(100 << 30), ..HostFacts::default() };
        let room = |bytes| Ok(Room { total_bytes: bytes, free_bytes: bytes, ..Room::default() });
        let of = |gib: u64| room(gib << 30);
        assert_eq!(shm(&facts, &of(9)).level, Level::Warning);
        assert_eq!(shm(&facts, &of(10)).level, Level::Ok);
        let docker = room(64 << 20);
        assert_eq!(shm(&HostFacts::default(), &docker).level, Level::Warning);
        let absent = Err(Error::from(ErrorKind::NotFound));
        assert_eq!(shm(&facts, &absent).level, Level::Error);
    }

    #[test]
    fn memlock_matters_where_there_is_rdma() {
        assert_eq!(memlock(Some(8 << 20), true).level, Level::Warning);
        assert_eq!(memlock(Some(8 << 20), false).level, Level::Ok);
        assert_eq!(memlock(None, true).level, Level::Ok);
        assert_eq!(nofile(Some(1024), Some(524_288)).level, Level::Warning);
        assert_eq!(nofile(None, None).level, Level::Ok);
    }

    #[test]
    fn port_ranges_must_be_apart() {
        let local = Some((32_768, 60_999));
        assert_eq!(ports((20_000, 32_767), local).level, Level::Ok);
        assert_eq!(ports((20_000, 32_768), local).level, Level::Warning);
        assert_eq!(ports((60_999, 61_100), local).level, Level::Warning);
        assert_eq!(ports((61_000, 65_535), local).level, Level::Ok);
        assert_eq!(ports((20_000, 32_767), None).level, Level::Blind);
        assert_eq!(ports((2, 1), local).level, Level::Error);
    }
}
