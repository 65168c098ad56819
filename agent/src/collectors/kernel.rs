//! Lines of the kernel's log that say something about the health of this node, where `/dev/kmsg` may be read.

use serde::Serialize;

/// Most lines that are kept for their reader.
pub const LINES: usize = 256;

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
