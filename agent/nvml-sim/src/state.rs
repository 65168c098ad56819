//! The state file of the simulated GPUs: its TOML form, its checks, and reading it again when it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Deserialize;

/// Name of the environment variable that holds the path of the state file.
pub const STATE_FILE_VARIABLE: &str = "GANGLINE_NVML_SIM";

/// Longest state file that is read, in bytes. A file for 64 GPUs needs about 32 KiB.
const MAX_STATE_BYTES: u64 = 1 << 20;

/// Most GPUs in one state file.
const MAX_GPUS: usize = 256;

/// `NVML_NVLINK_MAX_LINKS`.
const MAX_LINKS: usize = 18;

/// `NVML_GRID_LICENSE_FEATURE_MAX_COUNT`.
const MAX_LICENSES: usize = 3;

/// Longest uuid and name, in bytes: the buffers of the C interface hold 96 with the closing NUL.
const MAX_TEXT_BYTES: usize = 64;

/// The whole state file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    #[serde(default = "default_driver_version")]
    pub driver_version: String,
    #[serde(default = "default_nvml_version")]
    pub nvml_version: String,
    /// Major x 1000 + minor x 10.
    #[serde(default = "default_cuda_version")]
    pub cuda_version: i32,
    /// Every call blocks for as long as this is true.
    #[serde(default)]
    pub hang: bool,
    /// The library answers that the driver is of another version.
    #[serde(default)]
    pub version_mismatch: bool,
    #[serde(default, rename = "gpu")]
    pub gpus: Vec<Gpu>,
}

/// One simulated GPU. A reading that is `None` is answered with "not supported".
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    pub uuid: String,
    pub name: String,
    pub memory_total_mib: u64,
    pub memory_used_mib: u64,
    /// Percent.
    pub gpu_util: Option<u32>,
    /// Percent.
    pub mem_util: Option<u32>,
    pub temperature_c: Option<u32>,
    pub power_w: Option<f64>,
    pub power_limit_w: Option<f64>,
    pub sm_clock_mhz: Option<u32>,
    pub mem_clock_mhz: Option<u32>,
    pub pci_bus_id: Option<String>,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    #[serde(default)]
    pub pids: Vec<u32>,
    /// The GPU has fallen off the bus.
    #[serde(default)]
    pub lost: bool,
    /// Every call on this GPU answers that it needs a reset.
    #[serde(default)]
    pub reset_required: bool,
    /// Every call on this GPU fails in a way that the library has no name for.
    #[serde(default)]
    pub broken: bool,
    /// Every call on this GPU blocks for as long as this is true.
    #[serde(default)]
    pub hang: bool,
    #[serde(default)]
    pub memory_reserved_mib: u64,
    /// Percent.
    pub encoder_util: Option<u32>,
    /// Percent.
    pub decoder_util: Option<u32>,
    pub memory_temperature_c: Option<u32>,
    pub temperature_margin_c: Option<i32>,
    pub energy_mj: Option<u64>,
    /// Bits of `nvmlClocksEventReasons`.
    pub clock_reasons: Option<u64>,
    pub persistence: Option<bool>,
    /// Number of `nvmlDeviceGpuRecoveryAction`.
    pub recovery_action: Option<u32>,
    pub pcie: Option<Pcie>,
    pub violations: Option<Violations>,
    pub ecc: Option<Ecc>,
    pub rows: Option<Rows>,
    pub fabric: Option<Fabric>,
    pub gpm: Option<Gpm>,
    #[serde(default, rename = "link")]
    pub links: Vec<Link>,
    /// Features that want a license; a physical GPU has none, and an empty list says that.
    pub licenses: Option<Vec<License>>,
    /// `nvmlGpuP2PStatus_t` of NVLink, by the uuid of the other GPU.
    #[serde(default)]
    pub p2p: BTreeMap<String, u32>,
    /// Code of the critical error to raise.
    pub xid: Option<u64>,
    /// Changed in order to raise the same code again.
    #[serde(default)]
    pub xid_serial: u64,
}

/// The link to the host.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    pub replays: u32,
    pub generation: u32,
    pub width: u32,
    pub max_generation: u32,
    pub max_width: u32,
}

/// Time for which clocks were held down, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Violations {
    pub power_ns: u64,
    pub thermal_ns: u64,
    pub sync_boost_ns: u64,
    pub board_limit_ns: u64,
    pub low_utilization_ns: u64,
    pub reliability_ns: u64,
}

/// Memory errors: since the driver was loaded, and over the life of the GPU.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ecc {
    pub volatile: EccCounts,
    pub aggregate: EccCounts,
    pub sram_threshold_exceeded: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EccCounts {
    pub sram_corrected: u64,
    pub sram_uncorrected: u64,
    pub dram_corrected: u64,
    pub dram_uncorrected: u64,
}

/// Remapped rows.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rows {
    pub corrected: u32,
    pub uncorrected: u32,
    pub pending: bool,
    pub failed: bool,
}

/// Registration with the NVSwitch fabric: `nvmlGpuFabricState_t`, and the return code of it.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fabric {
    pub state: u8,
    pub status: u32,
}

/// Profiling counters: shares in percent, rates in MiB per second, as `nvml.h` has them.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gpm {
    pub graphics: f64,
    pub sm: f64,
    pub sm_occupancy: f64,
    pub tensor: f64,
    pub dram: f64,
    pub fp64: f64,
    pub fp32: f64,
    pub fp16: f64,
    pub pcie_received: f64,
    pub pcie_sent: f64,
    pub nvlink_received: f64,
    pub nvlink_sent: f64,
}

/// One NVLink.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub active: bool,
    #[serde(default)]
    pub replays: u64,
    #[serde(default)]
    pub recoveries: u64,
    #[serde(default)]
    pub crc_flit: u64,
    #[serde(default)]
    pub crc_data: u64,
    /// Data without headers since the driver was loaded, in KiB; a link without these counters is `None`.
    pub sent_kib: Option<u64>,
    pub received_kib: Option<u64>,
}

/// A feature that wants a license: `nvmlGridLicenseFeatureCode_t`, and what is not 0 once it is licensed.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct License {
    pub feature: u32,
    #[serde(default)]
    pub state: u32,
}

/// The parts of a PCI address `domain:bus:device.function`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
}

fn default_driver_version() -> String {
    "570.124.06".to_owned()
}

fn default_nvml_version() -> String {
    "12.570.124.06".to_owned()
}

fn default_cuda_version() -> i32 {
    12_080
}

/// Why a state file cannot be used. The text goes to nobody but a person with a debugger or a failing test:
/// the C interface only has error codes.
#[derive(Debug)]
pub struct Broken(pub String);

impl State {
    /// Parses and checks a state file.
    ///
    /// # Errors
    /// Anything that is not exactly a valid state file.
    pub fn parse(text: &str) -> Result<Self, Broken> {
        let state: Self = toml::from_str(text).map_err(|error| Broken(error.to_string()))?;
        if state.gpus.len() > MAX_GPUS {
            return Err(Broken(format!("more than {MAX_GPUS} GPUs")));
        }
        let mut seen = BTreeSet::new();
        for gpu in &state.gpus {
            gpu.check()?;
            if !seen.insert(gpu.uuid.as_str()) {
                return Err(Broken(format!("uuid {} appears twice", gpu.uuid)));
            }
        }
        for version in [&state.driver_version, &state.nvml_version] {
            check_text("version", version)?;
        }
        Ok(state)
    }

    /// The GPU with this UUID, with its position in the file.
    #[must_use]
    pub fn gpu(&self, uuid: &str) -> Option<(usize, &Gpu)> {
        self.gpus.iter().enumerate().find(|(_, gpu)| gpu.uuid == uuid)
    }
}

impl Gpu {
    fn check(&self) -> Result<(), Broken> {
        check_text("uuid", &self.uuid)?;
        check_text("name", &self.name)?;
        let taken = self.memory_used_mib.checked_add(self.memory_reserved_mib);
        if taken.is_none_or(|taken| taken > self.memory_total_mib) {
            return Err(Broken(format!("{}: more memory used than there is", self.uuid)));
        }
        // The C interface counts bytes and milliwatts.
        if self.memory_total_mib > u64::MAX >> 20 {
            return Err(Broken(format!("{}: too much memory", self.uuid)));
        }
        for watts in [self.power_w, self.power_limit_w].into_iter().flatten() {
            if !(0.0..=1e6).contains(&watts) {
                return Err(Broken(format!("{}: power {watts} W", self.uuid)));
            }
        }
        if self.links.len() > MAX_LINKS {
            return Err(Broken(format!("{}: more than {MAX_LINKS} links", self.uuid)));
        }
        if self.licenses.as_ref().is_some_and(|licenses| licenses.len() > MAX_LICENSES) {
            return Err(Broken(format!("{}: more than {MAX_LICENSES} licenses", self.uuid)));
        }
        if let Some(id) = &self.pci_bus_id
            && parse_pci_address(id).is_none()
        {
            return Err(Broken(format!("{}: pci_bus_id {id}", self.uuid)));
        }
        Ok(())
    }
}

fn check_text(what: &str, text: &str) -> Result<(), Broken> {
    if text.is_empty() || text.len() > MAX_TEXT_BYTES || text.chars().any(char::is_control) {
        return Err(Broken(format!("{what} {text:?}")));
    }
    Ok(())
}

/// Parses `domain:bus:device.function`, all hexadecimal.
#[must_use]
pub fn parse_pci_address(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    u8::from_str_radix(function, 8).ok()?;
    // 16 bytes of the legacy form and 32 of the new one hold at most these.
    if domain.len() > 8 || bus.len() > 2 || device.len() > 2 || function.len() != 1 {
        return None;
    }
    Some(PciAddress {
        domain: u32::from_str_radix(domain, 16).ok()?,
        bus: u32::from_str_radix(bus, 16).ok()?,
        device: u32::from_str_radix(device, 16).ok()?,
    })
}

/// What tells one version of the file from another. `ctime` is in it because a test may write two files of
/// the same length within one tick of the file system's clock and get the inode of the first one back.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    modified: (i64, i64),
    changed: (i64, i64),
    bytes: u64,
    inode: u64,
}

impl Fingerprint {
    fn of(metadata: &Metadata) -> Self {
        Self {
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            bytes: metadata.len(),
            inode: metadata.ino(),
        }
    }
}

/// The state file as last read.
#[derive(Default)]
pub struct Source {
    read: Option<(Fingerprint, Result<State, Broken>)>,
}

impl Source {
    /// A source that has read nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { read: None }
    }

    /// The current state, read again if the file is another one than last time.
    ///
    /// # Errors
    /// The file is absent, unreadable, too long or not a valid state file.
    pub fn current(&mut self, path: &Path) -> Result<&State, Broken> {
        let metadata = std::fs::metadata(path).map_err(|error| {
            self.read = None;
            Broken(error.to_string())
        })?;
        let seen = Fingerprint::of(&metadata);
        if self.read.as_ref().is_none_or(|(held, _)| *held != seen) {
            self.read = Some(read(path)?);
        }
        match &self.read {
            Some((_, Ok(state))) => Ok(state),
            Some((_, Err(Broken(reason)))) => Err(Broken(reason.clone())),
            None => Err(Broken("never read".to_owned())),
        }
    }
}

/// Reads the file and takes the fingerprint from the open file, so that both belong together.
fn read(path: &Path) -> Result<(Fingerprint, Result<State, Broken>), Broken> {
    let io = |error: std::io::Error| Broken(error.to_string());
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let seen = Fingerprint::of(&metadata);
    if metadata.len() > MAX_STATE_BYTES {
        return Ok((seen, Err(Broken(format!("{} bytes", metadata.len())))));
    }
    let mut text = String::new();
    let parsed = match file.take(MAX_STATE_BYTES).read_to_string(&mut text) {
        Ok(_) => State::parse(&text),
        Err(error) => Err(io(error)),
    };
    Ok((seen, parsed))
}

#[cfg(test)]
mod tests {
    use super::{PciAddress, State, parse_pci_address};

    const GPU: &str = "[[gpu]]\nuuid = \"GPU-a\"\nname = \"N\"\nmemory_total_mib = 8\n";

    #[test]
    fn the_shipped_example_is_a_valid_state_file() {
        let state = State::parse(include_str!("../example.toml")).expect("valid example");
        assert_eq!(state.gpus.len(), 2);
        assert_eq!(state.gpus[0].pids, [4242, 4243]);
        assert_eq!(state.gpus[1].xid, None);
        assert!(!state.gpus[1].lost);
        assert_eq!(state.gpus[0].links.len(), 2);
        assert_eq!(state.gpus[0].p2p.get(&state.gpus[1].uuid), Some(&0));
        assert!(state.gpus[0].licenses.as_ref().is_some_and(Vec::is_empty));
        assert!(state.gpus[0].gpm.is_some() && state.gpus[1].gpm.is_none());
    }

    #[test]
    fn a_wrong_file_is_broken_as_a_whole() {
        for text in [
            "gpu_count = 3".to_owned(),
            GPU.to_owned(),
            format!("{GPU}memory_used_mib = 9"),
            format!("{GPU}memory_used_mib = 1\n{GPU}memory_used_mib = 1"),
            format!("{GPU}memory_used_mib = 1\npower_w = -1.0"),
            format!("{GPU}memory_used_mib = 1\npci_bus_id = \"17\""),
            format!("{GPU}memory_used_mib = 1\nmemory_util = 3"),
            format!("{GPU}memory_used_mib = 1\nmemory_reserved_mib = 8"),
            format!("{GPU}memory_used_mib = 1\n{}", "[[gpu.link]]\nactive = true\n".repeat(19)),
            format!("{GPU}memory_used_mib = 1\n{}", "[[gpu.licenses]]\nfeature = 1\n".repeat(4)),
            "[[gpu]".to_owned(),
        ] {
            assert!(State::parse(&text).is_err(), "accepted: {text}");
        }
        assert!(State::parse(&format!("{GPU}memory_used_mib = 8")).is_ok());
    }

    #[test]
    fn pci_addresses_are_hexadecimal_and_complete() {
        assert_eq!(
            parse_pci_address("00000000:1B:00.0"),
            Some(PciAddress { domain: 0, bus: 0x1b, device: 0 })
        );
        for text in ["", "0:1B:0", "0:1B:00.9", "123456789:00:00.0", "0:1BC:0.0"] {
            assert_eq!(parse_pci_address(text), None, "{text}");
        }
    }
}
