//! Lines of the kernel's log that say something about the health of this node, where `/dev/kmsg` may be read.
//!
//! Reading begins at the end of the log: what was said before the agent began is of the past.

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
    /// "fallen off the bus", which newer drivers print without a code.
    GpuLost,
    IoError,
}

/// Follows the log.
pub struct KernelCollector {
    log: File,
    lines: VecDeque<KernelLine>,
    matched: u64,
    overwritten: u64,
    next: Option<u64>,
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
        Some(KernelCollector { log, lines, matched: 0, overwritten: 0, next: None })
    }

    fn take_in(&mut self, records: &str) {
        // Further lines of a record begin with a blank: they repeat in parts what it is about.
        for record in records.lines().filter(|line| !line.starts_with(' ')) {
            let Some((sequence, at_us, text)) = parse_record(record) else { continue };
            let missed = self.next.map_or(0, |next| sequence.saturating_sub(next));
            self.overwritten = self.overwritten.saturating_add(missed);
            self.next = Some(sequence.saturating_add(1));
            let Some(class) = classify(text) else { continue };
            self.matched += 1;
            if self.lines.len() >= LINES {
                self.lines.pop_front();
            }
            let text = clean(text);
            self.lines.push_back(KernelLine { sequence, at_us, class, text });
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

/// A record such as `6,339,5140900,-;text`: priority, number, microseconds, flags.
pub(crate) fn parse_record(record: &str) -> Option<(u64, u64, &str)> {
    let (head, text) = record.split_once(';')?;
    let mut fields = head.split(',');
    let (_priority, sequence, at_us) = (fields.next()?, fields.next()?, fields.next()?);
    Some((sequence.parse().ok()?, at_us.parse().ok()?, text))
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
        Some(KernelClass::GpuLost)
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
    } else if has("Buffer I/O error") || has("I/O error, dev ") {
        Some(KernelClass::IoError)
    } else {
        None
    }
}

fn after<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    text.split_once(part).map(|(_, rest)| rest)
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
            ("NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.", Some(KernelClass::GpuLost)),
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

    #[test]
    fn a_container_without_the_log_has_no_collector() {
        assert!(KernelCollector::open(&roots(&Tree::new())).is_none());
    }
}
