//! What every kind of accelerator tells about itself, whoever makes it. The kind is chosen at run time by the
//! driver that is found: NVIDIA's today; a CPU node has none. Names and units are those of NVML and DCGM, which
//! every dashboard knows: another kind fills in what it has, and what it lacks stays `None`.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::MemberKey;
use gangline_common::time::Timestamp;
use serde::Serialize;
use tokio::sync::mpsc;

use super::nvml::Nvidia;
use super::slot::Outcome;

/// Critical errors that wait for their reader; beyond that they wait inside the driver.
pub const EVENTS: usize = 256;

/// An answer that takes a while.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, AcceleratorError>> + Send + 'a>>;

/// The accelerators of this node as they could be opened: absent on a CPU node.
pub type Accelerators = Arc<Result<Option<Box<dyn Accelerator>>, AcceleratorError>>;

/// A kind of accelerator of which a node may have some.
pub trait Kind {
    /// Opens its library; `Ok(None)`: there is none. Blocks for at most `timeout`, which is also the time-out of
    /// every later request.
    ///
    /// # Errors
    /// The library is there and does not work.
    fn open(&self, timeout: Duration) -> Result<Option<Box<dyn Accelerator>>, AcceleratorError>;

    /// Whether its driver has made devices below `dev`.
    fn has_devices(&self, dev: &Path) -> bool;
}

/// Opens what this node has: the first kind that works. `nvml_library` names NVIDIA's, as
/// [`NvmlCollector::open`](super::nvml::NvmlCollector::open) says; `dev` is `/dev`.
///
/// # Errors
/// None works, and the library of one is there.
pub fn open(
    nvml_library: Option<PathBuf>,
    dev: &Path,
    timeout: Duration,
) -> Result<Option<Box<dyn Accelerator>>, AcceleratorError> {
    first_of(&[&Nvidia { library: nvml_library }], dev, timeout)
}

fn first_of(
    kinds: &[&dyn Kind],
    dev: &Path,
    timeout: Duration,
) -> Result<Option<Box<dyn Accelerator>>, AcceleratorError> {
    let mut problem = None;
    for kind in kinds {
        match kind.open(timeout) {
            Ok(Some(opened)) => return Ok(Some(opened)),
            Ok(None) => {}
            // Images bring libraries along that work nowhere: what this node has may be of another kind.
            Err(error @ (AcceleratorError::Hung(_) | AcceleratorError::Failed(_)))
                if !kind.has_devices(dev) =>
            {
                problem.get_or_insert(AcceleratorError::NoDriver(error.to_string()));
            }
            Err(error @ AcceleratorError::NoDriver(_)) => drop(problem.get_or_insert(error)),
            Err(error) => return Err(error),
        }
    }
    problem.map_or(Ok(None), Err)
}

/// The accelerators, unless this is a CPU node or they could not be opened.
pub fn opened(accelerators: &Accelerators) -> Option<&dyn Accelerator> {
    accelerators.as_ref().as_ref().ok().and_then(Option::as_deref)
}

/// Why there is no answer, in the driver's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceleratorError {
    /// The library is there and no driver is, as in an image of CUDA on a node without GPUs.
    #[error("{0}")]
    NoDriver(String),
    /// The driver was exchanged under the library, or the other way round.
    #[error("{0}")]
    VersionMismatch(String),
    /// No answer within the time-out, or an earlier request is overdue and nothing was asked.
    #[error("{0}")]
    Hung(String),
    #[error("{0}")]
    Failed(String),
}

impl From<AcceleratorError> for Outcome {
    fn from(error: AcceleratorError) -> Self {
        match error {
            AcceleratorError::Hung(_) => Outcome::Hung,
            error => Outcome::Failed(error.to_string()),
        }
    }
}

/// What the driver says about itself. A value that could not be read is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriverFacts {
    /// Version of the kernel driver, e.g. `570.124.06`.
    pub driver: Option<String>,
    /// Version of the library that asks it: NVML's.
    pub library: Option<String>,
    /// Newest CUDA version that the driver serves, as (major, minor).
    pub cuda: Option<(u32, u32)>,
    /// GPUs that the driver counts, whether or not they answer.
    pub device_count: Option<u32>,
    /// GPUs whose critical errors are reported here.
    pub xid_sources: u32,
}

/// One kind of accelerator, opened.
pub trait Accelerator: Send + Sync {
    /// Whose it is, e.g. `nvidia`.
    fn kind(&self) -> &'static str;

    /// What stays the same about the GPUs, by index. One that is lost later stays in the list.
    fn identity(&self) -> Answer<'_, Vec<GpuIdentity>>;

    /// One reading of each GPU. Counters and gauges are read each time, what changes slowly at least every ten
    /// seconds, processes every two; [`GpuSample::read_at`] says when. Pairs of GPUs are read every minute.
    fn sample(&self) -> Answer<'_, Vec<GpuSample>>;

    /// Versions and counts of the driver.
    fn driver(&self) -> Answer<'_, DriverFacts>;

    /// Those of `gpus` that this process may use, by what the environment says to programs of this maker.
    fn usable(&self, gpus: &[GpuIdentity]) -> Vec<GpuIdentity>;

    /// CPU time that readings have taken so far.
    fn cpu_spent(&self) -> Duration;

    /// Critical errors, each once and in order; `None` when they were taken before.
    fn events(&self) -> Option<mpsc::Receiver<XidEvent>>;
}

/// What stays the same about a GPU while it is in this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuIdentity {
    /// NVML's index in this container; not stable over a restart of the container.
    pub index: u32,
    /// `GPU-...`, unique in the world.
    pub uuid: String,
    /// Marketing name, e.g. `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Total frame buffer in bytes.
    pub memory_bytes: u64,
    /// `domain:bus:device.function` in hexadecimal.
    pub pci_bus_id: Option<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
}

/// One reading of one GPU. A value that could not be read is `None`. Counters are the driver's: they may begin
/// anew with the driver or with a reset of the GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuSample {
    /// The GPU that was read.
    pub uuid: String,
    /// NVML says that the GPU has fallen off the bus.
    pub lost: bool,
    /// NVML says that nothing works before a reset of the GPU.
    pub reset_required: bool,
    /// What NVML says when it gives no handle of the GPU for another reason.
    pub problem: Option<String>,
    /// Share of time with a kernel running, in percent.
    pub utilization_pct: Option<f32>,
    /// Share of time in which device memory was read or written, in percent.
    pub memory_utilization_pct: Option<f32>,
    /// Share of time of the video encoder and decoder, in percent.
    pub encoder_pct: Option<f32>,
    pub decoder_pct: Option<f32>,
    /// Frame buffer in use, in bytes, without the driver's reserve.
    pub memory_used_bytes: Option<u64>,
    /// Frame buffer, in bytes.
    pub memory_total_bytes: Option<u64>,
    /// What the driver keeps for itself, and what is free, in bytes.
    pub memory_reserved_bytes: Option<u64>,
    pub memory_free_bytes: Option<u64>,
    /// Core temperature in degrees Celsius.
    pub temperature_c: Option<f32>,
    /// Temperature of the memory in degrees Celsius.
    pub memory_temperature_c: Option<f32>,
    /// Degrees that are left before the GPU slows down.
    pub temperature_margin_c: Option<i32>,
    /// Power drawn, in watts.
    pub power_w: Option<f32>,
    /// Power limit that is enforced, in watts.
    pub power_limit_w: Option<f32>,
    /// Energy since the driver was loaded, in millijoules.
    pub energy_mj: Option<u64>,
    /// SM clock in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Memory clock in MHz.
    pub mem_clock_mhz: Option<u32>,
    /// Why clocks are low: bits of `nvmlClocksEventReasons`, see [`clock_reason`].
    pub clock_reasons: Option<u64>,
    /// How many readings of the last [`WINDOW_MS`] had each of those bits, from the lowest; `None` without a
    /// reading.
    pub clock_events: Option<[u16; clock_reason::BITS]>,
    /// For how long clocks were held down, by cause.
    pub violations: Violations,
    pub pcie: Pcie,
    pub ecc: Ecc,
    /// Rows of memory that were replaced; GPUs since Ampere.
    pub rows: Option<RemappedRows>,
    /// Pages of memory that are no longer used; GPUs before Ampere.
    pub retired: Option<RetiredPages>,
    /// The links that exist, by number; `None` when the GPU cannot say.
    pub links: Option<Vec<Link>>,
    /// What all links, and link 0, carried in both directions between the last two slow readings: data without
    /// headers, in MiB per second.
    pub nvlink_mib_per_s: Option<f64>,
    pub first_link_mib_per_s: Option<f64>,
    /// Which other GPUs NVLink leads to, by index; those that the driver says nothing of are missing. Shared by the
    /// samples of a minute.
    #[serde(skip)]
    pub peers: Arc<[Peer]>,
    /// What the driver wants done about this GPU.
    pub recovery: Option<RecoveryAction>,
    /// Where the GPU stands with its NVSwitch fabric; `None` where there is none.
    pub fabric: Option<Fabric>,
    /// The driver stays loaded without users.
    pub persistence: Option<bool>,
    /// A virtual GPU has its license; `false` for a physical one, which needs none.
    pub vgpu_licensed: Option<bool>,
    /// Profiling counters since the sample before; `None` in the first one and before Hopper.
    pub profile: Option<Profile>,
    /// Compute processes, as NVML names them: from inside a container these may be pids of the host.
    pub processes: Option<Vec<GpuProcess>>,
    /// Critical errors since the agent began: how often, by code. A code that the driver calls unknown is 0.
    pub xids: Vec<(u64, u32)>,
    /// Those of the last [`WINDOW_MS`].
    pub recent_xids: Vec<(u64, u32)>,
    /// The newest of them.
    pub last_xid: Option<u64>,
    /// The GPU reports its Xids here: without that nothing is known of them.
    pub hears_xids: bool,
    #[serde(skip)]
    pub read_at: ReadAt,
}

/// When the parts of a sample were read that samples repeat until they are read again, in milliseconds of the boot
/// clock. `None`: with the sample itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAt {
    /// What changes slowly: temperature margin, power limit, PCIe link, ECC by kind of memory, rows and pages,
    /// counters of the links (not their state), fabric, persistence, vGPU license, violations, encoders.
    pub slow_ms: Option<u64>,
    /// The list of processes.
    pub processes_ms: Option<u64>,
}

/// How far back counts of what happened lately reach, in milliseconds: what dcgm-exporter has by default.
pub const WINDOW_MS: u64 = 300_000;

/// Bits of [`GpuSample::clock_reasons`].
pub mod clock_reason {
    /// How many have names.
    pub const BITS: usize = 9;
    pub const GPU_IDLE: u64 = 0x1;
    pub const APPLICATION_SETTING: u64 = 0x2;
    pub const SW_POWER_CAP: u64 = 0x4;
    pub const HW_SLOWDOWN: u64 = 0x8;
    pub const SYNC_BOOST: u64 = 0x10;
    pub const SW_THERMAL: u64 = 0x20;
    pub const HW_THERMAL: u64 = 0x40;
    pub const HW_POWER_BRAKE: u64 = 0x80;
    pub const DISPLAY_SETTING: u64 = 0x100;
}

/// Time for which clocks were held down since the driver was loaded, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Violations {
    pub power_ns: Option<u64>,
    pub thermal_ns: Option<u64>,
    pub sync_boost_ns: Option<u64>,
    pub board_limit_ns: Option<u64>,
    pub low_utilization_ns: Option<u64>,
    pub reliability_ns: Option<u64>,
}

/// The link to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pcie {
    pub replays: Option<u32>,
    pub generation: Option<u32>,
    pub width: Option<u32>,
    /// The most that GPU and slot can do together.
    pub max_generation: Option<u32>,
    pub max_width: Option<u32>,
}

/// Errors of memory: since the driver was loaded, and over the life of the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ecc {
    pub volatile: EccCounts,
    pub aggregate: EccCounts,
    /// The driver's own verdict about the uncorrected errors of SRAM.
    pub sram_threshold_exceeded: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EccCounts {
    pub corrected: Option<u64>,
    pub uncorrected: Option<u64>,
    /// Shares of the two, by kind of memory.
    pub sram_corrected: Option<u64>,
    pub sram_uncorrected: Option<u64>,
    pub dram_corrected: Option<u64>,
    pub dram_uncorrected: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RemappedRows {
    pub corrected: u32,
    pub uncorrected: u32,
    /// A replacement waits for the next reset.
    pub pending: bool,
    /// A row could not be replaced.
    pub failed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RetiredPages {
    pub single_bit: Option<u32>,
    pub double_bit: Option<u32>,
    pub pending: Option<bool>,
}

/// One NVLink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Link {
    pub number: u32,
    pub active: Option<bool>,
    pub replays: Option<u64>,
    pub recoveries: Option<u64>,
    pub crc_flit: Option<u64>,
    pub crc_data: Option<u64>,
}

/// Another GPU, seen from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its index, as in [`GpuIdentity`].
    pub index: u32,
    pub nvlink: P2pStatus,
}

/// `nvmlGpuP2PStatus_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum P2pStatus {
    Ok,
    ChipsetNotSupported,
    GpuNotSupported,
    TopologyNotSupported,
    DisabledByRegKey,
    NotSupported,
    Unknown,
}

/// `nvmlDeviceGpuRecoveryAction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum RecoveryAction {
    None,
    GpuReset,
    NodeReboot,
    DrainPeers,
    DrainAndReset,
    /// A number of a newer driver.
    Other(u64),
}

/// Registration of a GPU with its NVSwitch fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fabric {
    pub state: FabricState,
    /// Return code of the registration once it is completed: 0 is success.
    pub status: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum FabricState {
    NotStarted,
    InProgress,
    Completed,
    Other(u8),
}

/// Profiling counters over the time between two samples. Shares are 0 to 1, rates bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Profile {
    pub graphics_active: Option<f32>,
    pub sm_active: Option<f32>,
    pub sm_occupancy: Option<f32>,
    pub tensor_active: Option<f32>,
    pub dram_active: Option<f32>,
    pub fp64_active: Option<f32>,
    pub fp32_active: Option<f32>,
    pub fp16_active: Option<f32>,
    pub pcie_received_bytes_per_s: Option<u64>,
    pub pcie_sent_bytes_per_s: Option<u64>,
    pub nvlink_received_bytes_per_s: Option<u64>,
    pub nvlink_sent_bytes_per_s: Option<u64>,
}

/// A process that uses a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuProcess {
    pub pid: u32,
    /// Device memory that it holds, in bytes.
    pub used_bytes: Option<u64>,
    pub owner: Owner,
}

/// Whose process it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Owner {
    /// Of a member of a gang, by the mark in its environment.
    #[serde(serialize_with = "as_mark")]
    Member(MemberKey),
    /// It lives here and carries no mark.
    Foreign { uid: Option<u32> },
    /// There is no such pid here, or its environment cannot be read or is empty: nothing is certain.
    #[default]
    Unknown,
}

fn as_mark<S: serde::Serializer>(key: &MemberKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&key.mark())
}

/// A critical error that the driver reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct XidEvent {
    /// Counts the events of this agent from 1: none is missing and none comes twice.
    pub sequence: u64,
    /// When it was taken from the driver.
    #[serde(skip)]
    pub at: Timestamp,
    /// The GPU that the error is about.
    pub uuid: String,
    /// NVIDIA's error code; `None` when the driver itself calls it unknown.
    pub xid: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind of which nodes have devices called `fake`.
    struct Fake {
        name: &'static str,
        opens: Result<bool, AcceleratorError>,
    }

    impl Kind for Fake {
        fn open(&self, _: Duration) -> Result<Option<Box<dyn Accelerator>>, AcceleratorError> {
            let opened = || Box::new(Opened(self.name)) as Box<dyn Accelerator>;
            self.opens.clone().map(|there| there.then(opened))
        }

        fn has_devices(&self, dev: &Path) -> bool {
            dev.join("fake").exists()
        }
    }

    struct Opened(&'static str);

    impl Accelerator for Opened {
        fn kind(&self) -> &'static str {
            self.0
        }

        fn identity(&self) -> Answer<'_, Vec<GpuIdentity>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn sample(&self) -> Answer<'_, Vec<GpuSample>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn driver(&self) -> Answer<'_, DriverFacts> {
            Box::pin(async { Ok(DriverFacts::default()) })
        }

        fn usable(&self, gpus: &[GpuIdentity]) -> Vec<GpuIdentity> {
            gpus.to_vec()
        }

        fn cpu_spent(&self) -> Duration {
            Duration::ZERO
        }

        fn events(&self) -> Option<mpsc::Receiver<XidEvent>> {
            None
        }
    }

    #[test]
    fn the_kind_is_the_first_that_works_here() {
        let with_devices = tempfile::tempdir().unwrap();
        std::fs::write(with_devices.path().join("fake"), "").unwrap();
        let without = tempfile::tempdir().unwrap();
        let found = |dev: &tempfile::TempDir, first, second| {
            let kind = |name, opens| Fake { name, opens };
            let (first, second) = (kind("first", first), kind("second", second));
            first_of(&[&first, &second], dev.path(), Duration::ZERO)
                .map(|opened| opened.map(|accelerator| accelerator.kind()))
        };
        let text = || "why".to_owned();
        let failed = || Err(AcceleratorError::Failed(text()));
        let no_driver = || Err(AcceleratorError::NoDriver(text()));
        let mismatch = || Err(AcceleratorError::VersionMismatch(text()));
        assert_eq!(found(&without, Ok(false), Ok(false)), Ok(None));
        assert_eq!(found(&without, Ok(true), Ok(true)), Ok(Some("first")));
        assert_eq!(found(&without, Ok(false), Ok(true)), Ok(Some("second")));
        // A library without a driver is none, in the driver's words or by its devices.
        assert_eq!(found(&with_devices, no_driver(), Ok(true)), Ok(Some("second")));
        assert_eq!(found(&without, failed(), Ok(true)), Ok(Some("second")));
        assert_eq!(found(&without, Ok(false), failed()), no_driver().map(|_| None));
        // What is here and does not work is not hidden by another kind.
        assert_eq!(found(&with_devices, failed(), Ok(true)), failed().map(|_| None));
        assert_eq!(found(&without, mismatch(), Ok(true)), mismatch().map(|_| None));
    }
}
