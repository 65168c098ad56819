//! Reading one device: what is remembered of it, and its files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, pread};

use super::{
    Counter, Gid, LinkLayer, MAX_COUNTERS, MAX_GIDS, MAX_PORTS, MAX_UNREADABLE, Port, PortState,
    RdmaDevice,
};
use crate::collectors::host::word;

/// How often names, identities and addresses are read.
const SLOW: Duration = Duration::from_secs(60);
/// Bits per second of one Gb/s, as bytes.
const GIGABIT_BYTES: f64 = 1e9 / 8.0;

/// The names in a directory.
pub(super) fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = std::fs::read_dir(directory)?;
    let name = |entry: io::Result<std::fs::DirEntry>| match entry {
        Ok(entry) => entry.file_name().into_string().ok().map(Ok),
        Err(error) => Some(Err(error)),
    };
    entries.filter_map(name).collect()
}

/// What is remembered of one device.
pub(super) struct Device {
    path: PathBuf,
    slow: Option<(Instant, RdmaDevice)>,
    ports: BTreeMap<u32, PortMemory>,
}

struct PortMemory {
    path: PathBuf,
    directories: Vec<Directory>,
    listed: Option<Instant>,
    gids: Vec<Gid>,
    /// Every counter that was ever read, of those that are listed.
    known: BTreeMap<String, Counter>,
}

/// A directory of counters.
struct Directory {
    opened: File,
    /// What it was when its files were listed.
    was: Stamp,
    files: Vec<CounterFile>,
}

/// Links and time of change of a directory. They differ when something in a directory of plain files, as
/// tests and benches make them, was replaced. Sysfs needs none of it: a kept file of a device that is gone
/// says so (ENODEV).
type Stamp = (u64, i64, i64);

struct CounterFile {
    name: String,
    /// Opening and closing costs more than reading; sysfs makes the text anew for each read from
    /// the beginning. `None` where too many are open.
    kept: Option<OwnedFd>,
}

impl Device {
    pub(super) fn new(path: PathBuf) -> Self {
        Device { path, slow: None, ports: BTreeMap::new() }
    }

    /// Files that are kept open.
    pub(super) fn kept(&self) -> usize {
        self.ports.values().map(PortMemory::kept).sum()
    }

    /// Reads everything; `room` is how many more files may be kept open.
    pub(super) fn read(&mut self, room: &mut usize) -> RdmaDevice {
        let kept = self.slow.take().filter(|(at, _)| at.elapsed() < SLOW);
        let (at, slow) = kept.unwrap_or_else(|| (Instant::now(), identity(&self.path)));
        let mut device = slow.clone();
        self.slow = Some((at, slow));
        let numbers = match names(&self.path.join("ports")) {
            Ok(names) => names,
            Err(error) => {
                // What is known of its counters stays: it may be readable again the next time.
                device.problem = Some(format!("ports: {error}"));
                return device;
            }
        };
        let mut numbers: Vec<u32> = numbers.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        numbers.truncate(MAX_PORTS);
        self.ports.retain(|number, _| numbers.contains(number));
        let path = &self.path;
        device.ports = numbers
            .into_iter()
            .map(|number| {
                let new = || PortMemory::new(path.join("ports").join(number.to_string()));
                let port = self.ports.entry(number).or_insert_with(new);
                Port { number, ..port.read(room) }
            })
            .collect();
        device
    }
}

fn identity(path: &Path) -> RdmaDevice {
    let target = std::fs::read_link(path.join("device")).ok();
    let bus = target.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    RdmaDevice {
        board_id: word(&path.join("board_id")),
        firmware: word(&path.join("fw_ver")),
        hca_type: word(&path.join("hca_type")),
        node_guid: word(&path.join("node_guid")),
        // `domain:bus:device.function`; a virtual device has another parent.
        pci_address: bus.filter(|name| name.matches(':').count() == 2).map(str::to_owned),
        ..RdmaDevice::default()
    }
}

impl PortMemory {
    fn new(path: PathBuf) -> Self {
        PortMemory {
            path,
            directories: Vec::new(),
            listed: None,
            gids: Vec::new(),
            known: BTreeMap::new(),
        }
    }

    fn kept(&self) -> usize {
        let files = self.directories.iter().flat_map(|directory| &directory.files);
        files.filter(|file| file.kept.is_some()).count()
    }

    fn read(&mut self, room: &mut usize) -> Port {
        let old = self.listed.is_none_or(|at| at.elapsed() >= SLOW);
        let (counters, unreadable) = match (!old).then(|| self.numbers()) {
            Some(Numbers { moved: false, read, unreadable }) => (read, unreadable),
            // The names are old, or files are no longer where they were.
            _ => {
                self.list(room);
                let Numbers { read, unreadable, .. } = self.numbers();
                (read, unreadable)
            }
        };
        let counters = self.take_in(counters);
        let at = |name: &str| word(&self.path.join(name));
        Port {
            number: 0,
            link_layer: at("link_layer").as_deref().and_then(link_layer),
            state: at("state").as_deref().and_then(port_state),
            physical_state: at("phys_state").as_deref().and_then(port_state),
            rate_bytes_per_s: at("rate").as_deref().and_then(rate),
            counters,
            unreadable_count: u32::try_from(unreadable.len()).unwrap_or(u32::MAX),
            unreadable: unreadable.into_iter().take(MAX_UNREADABLE).collect(),
            gids: self.gids.clone(),
        }
    }

    /// Finds the files and the addresses anew.
    fn list(&mut self, room: &mut usize) {
        self.listed = Some(Instant::now());
        *room += self.kept();
        self.directories.clear();
        let mut most = MAX_COUNTERS;
        for kind in ["counters", "hw_counters"] {
            let path = self.path.join(kind);
            let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
            let Ok(opened) = openat(CWD, &path, flags, Mode::empty()).map(File::from) else {
                continue;
            };
            // Before the files are listed, so that it differs when one is replaced meanwhile.
            let (Ok(was), Ok(mut names)) = (stamp(&opened), names(&path)) else { continue };
            names.sort();
            names.truncate(most);
            most -= names.len();
            let file = |name: String| {
                let kept = if *room > 0 { open(&opened, &name).ok() } else { None };
                *room -= usize::from(kept.is_some());
                CounterFile { name, kept }
            };
            let files = names.into_iter().map(file).collect();
            self.directories.push(Directory { opened, was, files });
        }
        let files = self.directories.iter().flat_map(|directory| &directory.files);
        let listed: BTreeSet<&str> = files.map(|file| file.name.as_str()).collect();
        self.known.retain(|name, _| listed.contains(name.as_str()));
        self.gids = gids(&self.path);
    }

    fn numbers(&self) -> Numbers {
        let mut numbers = Numbers::default();
        for directory in &self.directories {
            numbers.moved |= !stamp(&directory.opened).is_ok_and(|now| now == directory.was);
            for file in &directory.files {
                match file.number(&directory.opened) {
                    Ok(Some(value)) => numbers.read.push((file.name.clone(), value)),
                    // The port does not count this.
                    Ok(None) => {}
                    Err(Errno::NOENT | Errno::NODEV) => numbers.moved = true,
                    Err(_) => numbers.unreadable.push(file.name.clone()),
                }
            }
        }
        numbers
    }

    /// Compares each with its last value, however long ago that was read.
    fn take_in(&mut self, read: Vec<(String, u64)>) -> BTreeMap<String, Counter> {
        let mut counters = BTreeMap::new();
        for (name, value) in read {
            let counter = match self.known.get(&name) {
                Some(before) => before.then(value),
                None => Counter { value, grown: 0, step: 0 },
            };
            self.known.insert(name.clone(), counter);
            counters.insert(name, counter);
        }
        counters
    }
}

impl Counter {
    /// The next reading of the same counter.
    pub(super) fn then(self, value: u64) -> Self {
        let step = value.checked_sub(self.value).unwrap_or(value);
        Counter { value, grown: self.grown.saturating_add(step), step }
    }
}

/// One pass over the counters.
#[derive(Default)]
struct Numbers {
    read: Vec<(String, u64)>,
    unreadable: Vec<String>,
    /// A file is not there any more, or not the one that was listed.
    moved: bool,
}

impl CounterFile {
    /// Its number; `None` where it says that there is none.
    fn number(&self, directory: &File) -> Result<Option<u64>, Errno> {
        match &self.kept {
            Some(file) => number(file),
            None => number(open(directory, &self.name)?),
        }
    }
}

fn stamp(directory: &File) -> io::Result<Stamp> {
    let found = directory.metadata()?;
    Ok((found.nlink(), found.mtime(), found.mtime_nsec()))
}

fn open(directory: &File, name: &str) -> Result<OwnedFd, Errno> {
    openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn number(file: impl AsFd) -> Result<Option<u64>, Errno> {
    let mut buffer = [0; 64];
    let length = pread(file, &mut buffer, 0)?;
    let text = buffer.get(..length).and_then(|text| std::str::from_utf8(text).ok());
    match text.map(str::trim) {
        // What a port without such a counter says.
        Some("-") => Ok(None),
        Some(text) if text.starts_with("N/A") => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| Errno::INVAL),
        None => Err(Errno::INVAL),
    }
}

/// A line such as `4: ACTIVE`.
fn port_state(line: &str) -> Option<PortState> {
    let (number, name) = line.split_once(':')?;
    let name = name.trim();
    let plain = !name.is_empty() && name.len() <= 32 && !name.contains(char::is_control);
    let number = number.trim().parse().ok()?;
    plain.then(|| PortState { number, name: name.to_owned() })
}

/// A line such as `400 Gb/sec (4X NDR)`.
fn rate(line: &str) -> Option<u64> {
    let (gigabits, _) = line.split_once(" Gb/sec")?;
    let gigabits: f64 = gigabits.trim().parse().ok()?;
    (gigabits.is_finite() && gigabits >= 0.0).then_some((gigabits * GIGABIT_BYTES) as u64)
}

fn link_layer(word: &str) -> Option<LinkLayer> {
    match word {
        "InfiniBand" => Some(LinkLayer::InfiniBand),
        "Ethernet" => Some(LinkLayer::Ethernet),
        _ => None,
    }
}

/// The addresses of a port. An entry that is not in use is all zeros, and its kind cannot be read.
fn gids(port: &Path) -> Vec<Gid> {
    let entry = |index: u32| {
        let name = index.to_string();
        let gid = word(&port.join("gids").join(&name))?;
        let used = gid.chars().any(|digit| digit != '0' && digit != ':');
        (used && gid.len() <= 64).then(|| Gid {
            index,
            gid,
            kind: word(&port.join("gid_attrs/types").join(&name)),
            interface: word(&port.join("gid_attrs/ndevs").join(&name)),
        })
    };
    (0..MAX_GIDS).filter_map(entry).collect()
}
