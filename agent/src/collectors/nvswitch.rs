//! Whether the GPUs of this machine are joined by NVSwitch, by what is on the PCI bus. GPUs of before 2022 do not
//! tell of a fabric, and drivers of before 2023 do not either.

use super::host::{Roots, word};

const VENDOR: &str = "0x10de";
/// A bridge of no other kind; NVIDIA makes no other such device.
const CLASS: &str = "0x0680";
/// Most devices of the bus that are looked at.
const MAX_DEVICES: usize = 4096;

/// Looks once: what is on the bus stays there. `false` where the bus cannot be seen.
#[must_use]
pub fn is_on_bus(roots: &Roots) -> bool {
    let Ok(devices) = std::fs::read_dir(roots.sys.join("bus/pci/devices")) else { return false };
    devices.take(MAX_DEVICES).filter_map(Result::ok).any(|device| {
        let fact = |name: &str| word(&device.path().join(name)).unwrap_or_default();
        fact("class").starts_with(CLASS) && fact("vendor") == VENDOR
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Tree, roots};
    use super::*;

    #[test]
    fn a_bridge_of_nvidia_is_a_switch_and_a_gpu_or_another_bridge_is_not() {
        let gpu = ("0x030200", "0x10de");
        for (other, found) in
            [(gpu, false), (("0x068000", "0x8086"), false), (("0x068000", "0x10de"), true)]
        {
            let mut tree = Tree::new();
            for (address, (class, vendor)) in [("0000:07:00.0", gpu), ("0000:05:00.0", other)] {
                let base = format!("sys/bus/pci/devices/{address}");
                tree = tree
                    .file(&format!("{base}/class"), &format!("{class}\n"))
                    .file(&format!("{base}/vendor"), &format!("{vendor}\n"));
            }
            assert_eq!(is_on_bus(&roots(&tree)), found, "{other:?}");
        }
        assert!(!is_on_bus(&roots(&Tree::new())));
    }
}
