//! The basics of the host under the names of node_exporter, as this container sees them: memory and
//! pressure are the container's where it has limits of its own.

use std::borrow::Cow;
use std::collections::BTreeMap;

use gangline_common::exposition::{Kind, Page};

use super::Facts;
use crate::collectors::host::{HostSample, Interface, Pressure};
use crate::collectors::storage::Room;

type HostValue = fn(&HostSample) -> Option<f64>;

fn whole(number: Option<u64>) -> Option<f64> {
    number.map(|number| number as f64)
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn some(pressure: Option<Pressure>) -> Option<f64> {
    pressure.map(|pressure| seconds(pressure.some_total_us))
}

fn full(pressure: Option<Pressure>) -> Option<f64> {
    pressure.and_then(|pressure| pressure.full_total_us).map(seconds)
}

/// Families with one value for the node.
pub(super) const VALUES: &[(&str, &str, Kind, HostValue)] = &[
    ("node_load1", "1m load average.", Kind::Gauge, |h| h.load1.map(f64::from)),
    ("node_memory_MemTotal_bytes", "Memory that can be used.", Kind::Gauge, |h| {
        whole(h.mem_total_bytes)
    }),
    ("node_memory_MemAvailable_bytes", "Memory that is available.", Kind::Gauge, |h| {
        whole(h.mem_available_bytes)
    }),
    ("node_filefd_allocated", "File descriptors that are open.", Kind::Gauge, |h| {
        whole(h.open_files)
    }),
    ("node_filefd_maximum", "File descriptors that can be open.", Kind::Gauge, |h| {
        whole(h.open_files_limit)
    }),
    ("node_processes_pids", "Processes and threads that there are.", Kind::Gauge, |h| {
        whole(h.pids)
    }),
    (
        "node_processes_max_processes",
        "Processes and threads that there may be.",
        Kind::Gauge,
        |h| whole(h.pids_limit),
    ),
    (
        "node_pressure_cpu_waiting_seconds_total",
        "Total time in seconds that processes have waited for CPU time.",
        Kind::Counter,
        |h| some(h.cpu_pressure),
    ),
    (
        "node_pressure_memory_waiting_seconds_total",
        "Total time in seconds that processes have waited for memory.",
        Kind::Counter,
        |h| some(h.memory_pressure),
    ),
    (
        "node_pressure_memory_stalled_seconds_total",
        "Total time in seconds that no process could make progress due to memory congestion.",
        Kind::Counter,
        |h| full(h.memory_pressure),
    ),
    (
        "node_pressure_io_waiting_seconds_total",
        "Total time in seconds that processes have waited due to IO congestion.",
        Kind::Counter,
        |h| some(h.io_pressure),
    ),
    (
        "node_pressure_io_stalled_seconds_total",
        "Total time in seconds that no process could make progress due to IO congestion.",
        Kind::Counter,
        |h| full(h.io_pressure),
    ),
    ("node_vmstat_oom_kill", "Tasks that were killed for want of memory.", Kind::Counter, |h| {
        whole(h.oom_kills)
    }),
];

/// Families that node_exporter does not have.
const OWN: &[(&str, &str, Kind, HostValue)] = &[
    ("gangline_cpu_busy_ratio", "How busy the CPUs of this container are.", Kind::Gauge, |h| {
        h.cpu_busy_pct.map(|percent| f64::from(percent) / 100.0)
    }),
    ("process_resident_memory_bytes", "Resident memory of the agent.", Kind::Gauge, |h| {
        whole(h.agent.memory_bytes)
    }),
    ("process_open_fds", "File descriptors that the agent has open.", Kind::Gauge, |h| {
        whole(h.agent.open_files)
    }),
    ("process_max_fds", "File descriptors that the agent may open.", Kind::Gauge, |h| {
        whole(h.agent.open_files_limit)
    }),
];

type InterfaceValue = fn(&Interface) -> u64;

/// Families with one value for each network interface.
pub(super) const INTERFACES: &[(&str, InterfaceValue)] = &[
    ("node_network_receive_bytes_total", |i| i.received_bytes),
    ("node_network_receive_errs_total", |i| i.received_errors),
    ("node_network_receive_drop_total", |i| i.received_drops),
    ("node_network_transmit_bytes_total", |i| i.sent_bytes),
    ("node_network_transmit_errs_total", |i| i.sent_errors),
    ("node_network_transmit_drop_total", |i| i.sent_drops),
];

type RoomValue = fn(&Room) -> f64;

/// Families with one value for each file system.
pub(super) const FILE_SYSTEMS: &[(&str, &str, RoomValue)] = &[
    ("node_filesystem_size_bytes", "Size of the file system in bytes.", |r| r.total_bytes as f64),
    ("node_filesystem_avail_bytes", "Space that non-root users can use in bytes.", |r| {
        r.free_bytes as f64
    }),
    ("node_filesystem_files", "Inodes of the file system.", |r| r.total_inodes as f64),
    ("node_filesystem_files_free", "Inodes that are free.", |r| r.free_inodes as f64),
    ("node_filesystem_readonly", "Whether the file system is read-only.", |r| {
        f64::from(r.read_only)
    }),
];

/// Adds what only the agent tells of its host and of itself.
pub(super) fn add_own(page: &mut Page, facts: &Facts<'_>) {
    let Some(host) = facts.readings.host.fresh() else { return };
    for (name, help, kind, read) in OWN {
        page.family(name, help, *kind).add(&[], read(host));
    }
}

/// Adds what was read of the host.
pub(super) fn add(page: &mut Page, facts: &Facts<'_>) {
    let readings = facts.readings;
    if let Some(host) = readings.host.fresh() {
        for (name, help, kind, read) in VALUES {
            page.family(name, help, *kind).add(&[], read(host));
        }
        for (name, read) in INTERFACES {
            let what = name.trim_start_matches("node_network_").trim_end_matches("_total");
            let help = format!("Network device statistic {what}.");
            let mut out = page.family(name, &help, Kind::Counter);
            for interface in &host.interfaces {
                out.add(&[("device", &interface.name)], read(interface) as f64);
            }
        }
    }
    add_rooms(page, facts);
}

/// The file systems that the agent looks at, and `/`: each once, by the mount that it is.
fn add_rooms(page: &mut Page, facts: &Facts<'_>) {
    let readings = facts.readings;
    let storage = readings.storage.fresh();
    let local = storage.into_iter().flat_map(|storage| [&storage.state, &storage.temp]);
    let shared = readings.shared.as_ref().and_then(|shared| shared.fresh());
    let rooms = [&facts.kernel.root].into_iter().chain(local);
    let rooms = rooms.chain(shared.map(|shared| &shared.room)).flatten();
    let mut by_mount: BTreeMap<Cow<'_, str>, (&str, &str, &Room)> = BTreeMap::new();
    for room in rooms {
        let mount = facts.kernel.mounts.of(&room.path);
        let (point, device, kind) = match mount {
            Some(mount) => (&mount.point, mount.device.as_str(), mount.kind.as_str()),
            None => (&room.path, "", ""),
        };
        by_mount.entry(point.to_string_lossy()).or_insert((device, kind, room));
    }
    for (name, help, read) in FILE_SYSTEMS {
        let mut out = page.family(name, help, Kind::Gauge);
        for (point, (device, kind, room)) in &by_mount {
            let labels = [("device", *device), ("fstype", *kind), ("mountpoint", point)];
            out.add(&labels, read(room));
        }
    }
}
