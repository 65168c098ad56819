//! RDMA devices and their ports, InfiniBand and RoCE, from `/sys/class/infiniband`.
//!
//! A device that cannot be read is told of by its own entry and holds up none of the others. Files are read each
//! time and stay open; names, identities and addresses every minute, and as soon as a file is no longer where it was.

mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::host::Roots;
use super::slot::{CollectError, Collector};
use read::Device;

/// Most devices, ports of one, and counters of one, that are read.
const MAX_DEVICES: usize = 64;
const MAX_PORTS: usize = 16;
const MAX_COUNTERS: usize = 192;
/// Entries of the GID table that are looked at.
const MAX_GIDS: u32 = 64;
/// Most names of files that are told of when they cannot be read.
const MAX_UNREADABLE: usize = 8;
/// Most files that are kept open from one reading to the next, and the part of those that this
/// process may open: one in four. Eight ports of mlx5 have some 400.
const MAX_KEPT: usize = 1024;
const SHARE_KEPT: u64 = 4;

/// Reads all devices. Counters are compared with the reading before, so it remembers them.
pub struct RdmaCollector {
    class: PathBuf,
    characters: PathBuf,
    devices: BTreeMap<String, Device>,
    most_kept: usize,
}

impl RdmaCollector {
    /// A collector that has read nothing yet.
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        RdmaCollector {
            class: roots.sys.join("class/infiniband"),
            characters: roots.dev.join("infiniband"),
            devices: BTreeMap::new(),
            most_kept: most_kept(),
        }
    }
}

/// How many files may be kept open.
fn most_kept() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = limit.map_or(u64::MAX, |limit| limit / SHARE_KEPT);
    usize::try_from(share).unwrap_or(usize::MAX).min(MAX_KEPT)
}

impl Collector for RdmaCollector {
    type Reading = RdmaReading;

    /// A node without the directory has no devices.
    fn read(&mut self) -> Result<RdmaReading, CollectError> {
        let mut names = match read::names(&self.class) {
            Ok(names) => names,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            // The devices may all be there: nothing is said of them.
            Err(error) => return Err(CollectError(format!("{}: {error}", self.class.display()))),
        };
        names.sort();
        let left_out = names.len().saturating_sub(MAX_DEVICES);
        names.truncate(MAX_DEVICES);
        self.devices.retain(|name, _| names.contains(name));
        let kept: usize = self.devices.values().map(Device::kept).sum();
        let mut room = self.most_kept.saturating_sub(kept);
        let devices = names.into_iter().map(|name| {
            let path = self.class.join(&name);
            let device = self.devices.entry(name.clone()).or_insert_with(|| Device::new(path));
            RdmaDevice { name, ..device.read(&mut room) }
        });
        let devices = devices.collect();
        let character_devices = read::names(&self.characters).ok().map(|mut names| {
            names.sort();
            names
        });
        let left_out = u32::try_from(left_out).unwrap_or(u32::MAX);
        Ok(RdmaReading { devices, character_devices, left_out })
    }
}

/// Everything below `/sys/class/infiniband`, and the character devices that go with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RdmaReading {
    /// By name.
    pub devices: Vec<RdmaDevice>,
    /// Names in `/dev/infiniband`, e.g. `uverbs0`, `umad0`, `rdma_cm`; `None` when it cannot be listed.
    pub character_devices: Option<Vec<String>>,
    /// Devices beyond the bound on their number; they were not read.
    pub left_out: u32,
}

/// One device, e.g. `mlx5_0`. A value that could not be read is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RdmaDevice {
    pub name: String,
    pub board_id: Option<String>,
    pub firmware: Option<String>,
    pub hca_type: Option<String>,
    pub node_guid: Option<String>,
    /// PCI address, when the device is one of the bus.
    pub pci_address: Option<String>,
    pub ports: Vec<Port>,
    /// Why the device as a whole could not be read; its ports may still be there.
    pub problem: Option<String>,
}

/// One port. A value that could not be read is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Port {
    pub number: u32,
    pub link_layer: Option<LinkLayer>,
    pub state: Option<PortState>,
    pub physical_state: Option<PortState>,
    /// Of the link as it runs now.
    pub rate_bytes_per_s: Option<u64>,
    /// Files of `counters` and `hw_counters` by their names, as the kernel gives them: `port_rcv_data` and
    /// `port_xmit_data` count words of four bytes.
    pub counters: BTreeMap<String, Counter>,
    /// Files that are there and could not be read as a number, at most 8 of them, for the log.
    pub unreadable: Vec<String>,
    /// Number of files that are there and could not be read.
    pub unreadable_count: u32,
    /// Addresses in use, by index.
    pub gids: Vec<Gid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LinkLayer {
    InfiniBand,
    Ethernet,
}

/// A line such as `4: ACTIVE`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortState {
    pub number: u8,
    pub name: String,
}

/// A counter as the kernel gives it, and what it grew by since this agent began to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counter {
    pub value: u64,
    /// Sum of the steps between readings. A step back (driver reload, overflow of a counter that sticks) is a
    /// new beginning: what it shows then has been counted since, and it is added.
    pub grown: u64,
    /// The newest of these steps; 0 in the first reading.
    pub step: u64,
}

/// One entry of the GID table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gid {
    pub index: u32,
    pub gid: String,
    /// `IB/RoCE v1` or `RoCE v2`.
    pub kind: Option<String>,
    /// Network interface, for RoCE.
    pub interface: Option<String>,
}
