//! What a condition is about: the node, a GPU, a port, a mount, a collector.

use std::fmt;
use std::str::FromStr;

use gangline_common::ids::GpuId;

use crate::text;

/// Longest name of a part, in characters; a longer one is cut.
const MAX_NAME: usize = 96;

/// One part of a node. The order is the order of lists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The node as a whole.
    Node,
    Gpu(GpuId),
    /// An NVSwitch, by its PCI address.
    Switch(String),
    /// An RDMA port: `mlx5_0`, 1.
    Port {
        device: String,
        port: u32,
    },
    /// A file system, by the path that it is known by.
    Mount(String),
    /// A source of readings, by name.
    Collector(String),
}

impl Component {
    pub fn gpu(uuid: &GpuId) -> Self {
        Component::Gpu(GpuId(name(&uuid.0)))
    }

    pub fn switch(address: &str) -> Self {
        Component::Switch(name(address))
    }

    pub fn port(device: &str, port: u32) -> Self {
        Component::Port { device: name(device), port }
    }

    pub fn mount(path: &str) -> Self {
        Component::Mount(name(path))
    }

    pub fn collector(name: &str) -> Self {
        Component::Collector(self::name(name))
    }
}

/// Clean, bounded, and never empty.
fn name(text: &str) -> String {
    if text.is_empty() { "?".to_owned() } else { text::clean(text, MAX_NAME) }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Component::Node => f.write_str("node"),
            Component::Gpu(uuid) => write!(f, "gpu:{uuid}"),
            Component::Switch(address) => write!(f, "switch:{address}"),
            Component::Port { device, port } => write!(f, "port:{device}/{port}"),
            Component::Mount(path) => write!(f, "mount:{path}"),
            Component::Collector(name) => write!(f, "collector:{name}"),
        }
    }
}

/// The text names no part of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownComponent;

impl fmt::Display for UnknownComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected node, gpu:UUID, switch:PCI, port:DEVICE/N, mount:PATH or collector:NAME",
        )
    }
}

impl std::error::Error for UnknownComponent {}

impl FromStr for Component {
    type Err = UnknownComponent;

    /// Reads what `Display` wrote.
    fn from_str(shown: &str) -> Result<Self, UnknownComponent> {
        if shown == "node" {
            return Ok(Component::Node);
        }
        let (kind, name) = shown.split_once(':').ok_or(UnknownComponent)?;
        if name.is_empty() {
            return Err(UnknownComponent);
        }
        match kind {
            "gpu" => Ok(Component::gpu(&GpuId(name.to_owned()))),
            "switch" => Ok(Component::switch(name)),
            "mount" => Ok(Component::mount(name)),
            "collector" => Ok(Component::collector(name)),
            "port" => {
                let (device, port) = name.rsplit_once('/').ok_or(UnknownComponent)?;
                Ok(Component::port(device, port.parse().map_err(|_| UnknownComponent)?))
            }
            _ => Err(UnknownComponent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_and_read_again() {
        let all = [
            Component::Node,
            Component::gpu(&GpuId("GPU-1".to_owned())),
            Component::switch("0000:05:00.0"),
            Component::port("mlx5_0", 1),
            Component::mount("/nfs/a:b"),
            Component::collector("nvml"),
        ];
        for component in all {
            assert_eq!(component.to_string().parse(), Ok(component));
        }
        for bad in ["", "gpu:", "port:mlx5_0", "port:mlx5_0/x", "disk:sda"] {
            assert_eq!(bad.parse::<Component>(), Err(UnknownComponent), "{bad}");
        }
    }

    #[test]
    fn names_are_cleaned_and_bounded() {
        let Component::Mount(name) =
            Component::mount(&format!("/a\u{1b}[31m{}", "x".repeat(9_000)))
        else {
            panic!("not a mount")
        };
        assert!(name.chars().count() <= MAX_NAME && !name.contains('\u{1b}'), "{name}");
    }
}
