//! Lines of the kernel's log that say something about the health of this node, where `/dev/kmsg` may be read.
//!
//! Reading begins at the end of the log: what was said before the agent began is of the past. Only the kernel's
//! own lines count: a program that may write to the log can say there what it likes, but never as the kernel.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use serde::Serialize;

use super::host::Roots;
use super::slot::{CollectError, Collector};

/// Most lines that are kept for their reader.
pub const LINES: usize = 256;
/// Longest text that is kept of a line, in bytes.
const TEXT_BYTES: usize = 240;
/// The kernel gives one record per read, of at most this many bytes.
const RECORD_BYTES: usize = 8192;
/// Most records that are read at a time; the rest waits.
const RECORDS: usize = 4096;
/// The driver spreads some messages over lines: so many records later one still belongs to the GPU that was named.
const SPREAD: u64 = 8;

/// The newest lines. A reader takes those with a `sequence` above the last one that it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelReading {
    /// At most [`LINES`], oldest first.
    pub lines: Vec<KernelLine>,
    /// Lines that matched since the agent began.
    pub matched: u64,
    /// Records that the kernel overwrote before they were read.
    pub overwritten: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelLine {
    /// The kernel's own number of the record; only grows within a boot.
    pub sequence: u64,
    /// Microseconds of the monotonic clock since boot.
    pub at_us: u64,
    pub class: KernelClass,
    /// Without control characters, at most 240 bytes.
    pub text: String,
}

/// What a line is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum KernelClass {
    SoftLockup,
    HungTask,
    ReadOnlyRemount,
    NfsNotResponding,
    NfsOk,
    OutOfMemory,
    /// `NVRM: Xid (PCI:...)`: PCI address and code.
    Xid {
        pci_address: String,
        xid: u64,
    },
    /// `nvidia-nvswitchN: SXid (PCI:...)`.
    Sxid {
        pci_address: String,
        sxid: u64,
        fatal: bool,
    },
    /// "fallen off the bus", which newer drivers print without a code; and the PCI address, if it was said.
    GpuLost {
        pci_address: Option<String>,
    },
    IoError,
    /// An RDMA adapter lacks power or is too hot, or its slot has too little bandwidth.
    AdapterTrouble,
}

/// Follows the log.
pub struct KernelCollector {
    log: File,
    lines: VecDeque<KernelLine>,
    matched: u64,
    overwritten: u64,
    next: Option<u64>,
    /// The GPU that the driver has named last, and in which record.
    named: Option<(u64, String)>,
}

impl KernelCollector {
    /// `None` where the log cannot be read, as in most containers.
    #[must_use]
    pub fn open(roots: &Roots) -> Option<Self> {
        let mut log = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(roots.dev.join("kmsg"))
            .ok()?;
        log.seek(SeekFrom::End(0)).ok()?;
        let lines = VecDeque::new();
        Some(KernelCollector { log, lines, matched: 0, overwritten: 0, next: None, named: None })
    }

    fn take_in(&mut self, records: &str) {
        // Further lines of a record begin with a blank: they repeat in parts what it is about.
        for record in records.lines().filter(|line| !line.starts_with(' ')) {
            let Some(Record { facility, sequence, at_us, text }) = parse_record(record) else {
                continue;
            };
            let missed = self.next.map_or(0, |next| sequence.saturating_sub(next));
            self.overwritten = self.overwritten.saturating_add(missed);
            self.next = Some(sequence.saturating_add(1));
            if facility != KERNEL {
                continue;
            }
            let class = classify(text).map(|class| self.with_address(class, sequence));
            if let Some(address) = gpu_address(text) {
                self.named = Some((sequence, address));
            }
            let Some(class) = class else { continue };
            self.matched += 1;
            if self.lines.len() >= LINES {
                self.lines.pop_front();
            }
            let text = clean(text);
            self.lines.push_back(KernelLine { sequence, at_us, class, text });
        }
    }

    /// A lost GPU that the line does not name is the one that was named just before.
    fn with_address(&self, class: KernelClass, sequence: u64) -> KernelClass {
        match (class, &self.named) {
            (KernelClass::GpuLost { pci_address: None }, Some((at, address)))
                if sequence.saturating_sub(*at) <= SPREAD =>
            {
                KernelClass::GpuLost { pci_address: Some(address.clone()) }
            }
            (class, _) => class,
        }
    }
}

impl Collector for KernelCollector {
    type Reading = KernelReading;

    fn read(&mut self) -> Result<KernelReading, CollectError> {
        let mut buffer = [0; RECORD_BYTES];
        for _ in 0..RECORDS {
            match self.log.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    let record = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
                    self.take_in(&record);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The next read gives the oldest record that is left; the gap is counted by its number.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(CollectError(format!("kmsg: {error}"))),
            }
        }
        let (matched, overwritten) = (self.matched, self.overwritten);
        Ok(KernelReading { lines: self.lines.iter().cloned().collect(), matched, overwritten })
    }
}

/// The facility of the kernel's own records. What a program writes to the log gets another one from the kernel,
/// whatever it asks for.
pub(crate) const KERNEL: u64 = 0;

/// One record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) facility: u64,
    pub(crate) sequence: u64,
    /// Microseconds since boot.
    pub(crate) at_us: u64,
    pub(crate) text: &'a str,
}

/// A record such as `6,339,5140900,-;text`: facility x 8 + level, number, microseconds, flags.
pub(crate) fn parse_record(record: &str) -> Option<Record<'_>> {
    let (head, text) = record.split_once(';')?;
    let mut fields = head.split(',');
    let mut number = || fields.next()?.parse::<u64>().ok();
    let (priority, sequence, at_us) = (number()?, number()?, number()?);
    Some(Record { facility: priority >> 3, sequence, at_us, text })
}

fn classify(text: &str) -> Option<KernelClass> {
    if let Some(rest) = after(text, "NVRM: Xid (PCI:") {
        let (pci_address, code) = rest.split_once("): ")?;
        let xid = leading_number(code)?;
        return Some(KernelClass::Xid { pci_address: address(pci_address)?, xid });
    }
    if let Some(rest) = after(text, "SXid (PCI:") {
        let (pci_address, code) = rest.split_once("): ")?;
        let sxid = leading_number(code)?;
        let fatal = code.contains(", Fatal");
        return Some(KernelClass::Sxid { pci_address: address(pci_address)?, sxid, fatal });
    }
    let has = |part: &str| text.contains(part);
    if has("fallen off the bus") {
        Some(KernelClass::GpuLost { pci_address: gpu_address(text) })
    } else if has("BUG: soft lockup") {
        Some(KernelClass::SoftLockup)
    } else if has("blocked for more than") {
        Some(KernelClass::HungTask)
    } else if has("emounting filesystem read-only") {
        Some(KernelClass::ReadOnlyRemount)
    } else if has("nfs: server") && has("not responding") {
        Some(KernelClass::NfsNotResponding)
    } else if has("nfs: server") && text.trim_end().ends_with("OK") {
        Some(KernelClass::NfsOk)
    } else if has("ut of memory: Killed process") {
        Some(KernelClass::OutOfMemory)
    } else if has("Buffer I/O error")
        || has("I/O error, dev ")
        || has("nvme") && has(" timeout, ")
        || has("md/raid") && has("Disk failure")
    {
        Some(KernelClass::IoError)
    } else if has("insufficient power on the PCIe slot")
        || has("Port module event") && has("High Temperature")
        || has("mlx5_core") && has("available PCIe bandwidth, limited by")
    {
        Some(KernelClass::AdapterTrouble)
    } else {
        None
    }
}

fn after<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    text.split_once(part).map(|(_, rest)| rest)
}

/// The PCI address of the GPU that a line of NVIDIA's driver is about.
fn gpu_address(text: &str) -> Option<String> {
    after(text, "NVRM: ")?.split(|c: char| c.is_whitespace() || c == '\\').find_map(pci_word)
}

/// `0000:1b:00`, `0000:1b:00.0` and `PCI:0000:1b:00:` of a text.
fn pci_word(word: &str) -> Option<String> {
    // Before the address, and in brackets, NVIDIA's lines have words that end in a colon too.
    let word = word.rsplit_once("PCI:").map_or(word, |(_, rest)| rest);
    let word = word.trim_end_matches([':', ',', ')']);
    let hex = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_hexdigit());
    match word.split(':').collect::<Vec<_>>().as_slice() {
        [domain, bus, device]
            if (4..=8).contains(&domain.len())
                && bus.len() == 2
                && [*domain, *bus].into_iter().all(hex)
                && device.split('.').count() <= 2
                && device.split('.').all(hex) =>
        {
            address(word)
        }
        _ => None,
    }
}

fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

fn address(text: &str) -> Option<String> {
    let plain = text.chars().all(|c| c.is_ascii_hexdigit() || c == ':' || c == '.');
    (plain && text.len() <= 32).then(|| text.to_owned())
}

fn clean(text: &str) -> String {
    let mut clean: String = text.chars().filter(|c| !c.is_control()).collect();
    clean.truncate(clean.floor_char_boundary(TEXT_BYTES));
    clean
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::collectors::fixture::{Tree, roots};

    #[test]
    fn lines_are_told_apart() {
        let pci = |text: &str| text.to_owned();
        let lost = |address: Option<&str>| {
            Some(KernelClass::GpuLost { pci_address: address.map(str::to_owned) })
        };
        let cases = [
            (
                "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                Some(KernelClass::Xid { pci_address: pci("0000:1b:00"), xid: 79 }),
            ),
            (
                "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
                Some(KernelClass::Sxid {
                    pci_address: pci("0000:05:00.0"),
                    sxid: 12_028,
                    fatal: false,
                }),
            ),
            (
                "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
                Some(KernelClass::Sxid {
                    pci_address: pci("0000:05:00.0"),
                    sxid: 20_034,
                    fatal: true,
                }),
            ),
            ("NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.", lost(Some("0000:1b:00.0"))),
            (
                "NVRM: The NVIDIA GPU 0000:1b:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system \
                 has\\x0aNVRM: fallen off the bus and is not responding to commands.",
                lost(Some("0000:1b:00.0")),
            ),
            ("NVRM: fallen off the bus and is not responding to commands.", lost(None)),
            (
                "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 2): Detected insufficient power on the PCIe slot (27W).",
                Some(KernelClass::AdapterTrouble),
            ),
            (
                "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
                Some(KernelClass::AdapterTrouble),
            ),
            (
                "mlx5_core 0000:5c:00.0: 126.024 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x8 link",
                Some(KernelClass::AdapterTrouble),
            ),
            ("mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged", None),
            ("nvme nvme0: I/O 12 QID 4 timeout, aborting", Some(KernelClass::IoError)),
            ("md/raid1:md0: Disk failure on sda1, disabling device.", Some(KernelClass::IoError)),
            (
                "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:77]",
                Some(KernelClass::SoftLockup),
            ),
            (
                "INFO: task ray::W:77 blocked for more than 120 seconds.",
                Some(KernelClass::HungTask),
            ),
            ("EXT4-fs (sda1): Remounting filesystem read-only", Some(KernelClass::ReadOnlyRemount)),
            (
                "nfs: server 10.0.0.9 not responding, still trying",
                Some(KernelClass::NfsNotResponding),
            ),
            ("nfs: server 10.0.0.9 OK", Some(KernelClass::NfsOk)),
            (
                "Memory cgroup out of memory: Killed process 77 (ray::W) total-vm:1kB",
                Some(KernelClass::OutOfMemory),
            ),
            ("Out of memory: Killed process 77 (ray::W)", Some(KernelClass::OutOfMemory)),
            ("blk_update_request: I/O error, dev nvme0n1, sector 7", Some(KernelClass::IoError)),
            ("NVRM: Xid (PCI:0000:1b:00): many", None),
            ("NVRM: Xid (PCI:../../x): 79", None),
            ("usb 1-1: new high-speed USB device", None),
        ];
        for (text, class) in cases {
            assert_eq!(classify(text), class, "{text}");
        }
    }

    #[test]
    fn only_what_is_said_from_now_on_counts_and_gaps_are_counted() {
        let xid = "NVRM: Xid (PCI:0000:1b:00): 31, pid=7";
        let tree = Tree::new().file("dev/kmsg", &format!("4,7,100,-;{xid}\n"));
        let mut collector = KernelCollector::open(&roots(&tree)).expect("a readable log");
        assert_eq!(collector.read(), Ok(KernelReading::default()), "said before");
        let mut log = OpenOptions::new().append(true).open(tree.path("dev/kmsg")).expect("log");
        write!(log, "6,8,200,-;usb\n4,9,300,-;{xid}\x1b[31m\n SUBSYSTEM=pci\ngarbage\n")
            .expect("written");
        let reading = collector.read().expect("reading");
        assert_eq!((reading.matched, reading.overwritten, reading.lines.len()), (1, 0, 1));
        let line = &reading.lines[0];
        assert_eq!((line.sequence, line.at_us), (9, 300));
        assert!(!line.text.contains('\x1b'), "{:?}", line.text);
        // Nothing new: the same line, which its reader knows by its number.
        assert_eq!(collector.read().expect("reading").lines, reading.lines);

        writeln!(log, "4,13,400,-;{xid}").expect("written");
        let reading = collector.read().expect("reading");
        assert_eq!((reading.matched, reading.overwritten), (2, 3));
        // The kernel gives whole records; this file does up to the size of the buffer.
        for sequence in 14..14 + LINES * 2 {
            writeln!(log, "4,{sequence},500,-;{xid}").expect("written");
            collector.read().expect("reading");
        }
        let reading = collector.read().expect("reading");
        assert_eq!(reading.lines.len(), LINES);
        assert_eq!(reading.matched, 2 + 2 * LINES as u64);
    }

    /// A collector whose log gets these records, as (facility x 8 + level, text), and what it makes of them.
    fn classes(records: &[(u64, &str)]) -> Vec<KernelClass> {
        let tree = Tree::new().file("dev/kmsg", "");
        let mut collector = KernelCollector::open(&roots(&tree)).expect("a readable log");
        let mut log = OpenOptions::new().append(true).open(tree.path("dev/kmsg")).expect("log");
        for (number, (priority, text)) in records.iter().enumerate() {
            writeln!(log, "{priority},{number},100,-;{text}").expect("written");
        }
        let lines = collector.read().expect("reading").lines;
        lines.into_iter().map(|line| line.class).collect()
    }

    #[test]
    fn a45_what_a_program_writes_to_the_kernels_log_is_not_the_kernels() {
        let xid = "NVRM: Xid (PCI:0000:1b:00): 79, pid=7, GPU has fallen off the bus.";
        // Of a user's program, of a daemon, and as the kernel marks what names no facility.
        assert_eq!(classes(&[(8 + 3, xid), (24 + 2, xid), (12, xid)]), []);
        assert_eq!(classes(&[(3, xid)]).len(), 1);
        // Nor does it name the GPU that the kernel speaks of next.
        let lost = "NVRM: fallen off the bus and is not responding to commands.";
        let forged = classes(&[(12, "NVRM: The NVIDIA GPU 0000:1b:00.0"), (3, lost)]);
        assert_eq!(forged, [KernelClass::GpuLost { pci_address: None }]);
    }

    #[test]
    fn a_lost_gpu_is_the_one_that_was_named_a_few_lines_before() {
        let named = "NVRM: The NVIDIA GPU 0000:1b:00.0";
        let lost = "NVRM: fallen off the bus and is not responding to commands.";
        let of = |address: Option<&str>| KernelClass::GpuLost {
            pci_address: address.map(str::to_owned),
        };
        let told = classes(&[(3, named), (3, "NVRM: (PCI ID: 10de:2330) installed"), (3, lost)]);
        assert_eq!(told, [of(Some("0000:1b:00.0"))]);
        let mut late = vec![(3, named)];
        late.extend([(6, "usb 1-1: new"); SPREAD as usize]);
        late.push((3, lost));
        assert_eq!(classes(&late), [of(None)]);
    }

    #[test]
    fn a_container_without_the_log_has_no_collector() {
        assert!(KernelCollector::open(&roots(&Tree::new())).is_none());
    }
}
