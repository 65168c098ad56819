//! InfiniBand and RoCE: the devices that the kernel shows against the device files that programs open, and
//! what jobs here are told of them.

use std::collections::BTreeSet;
use std::path::Path;

use super::{DoctorLine, Level, storage};
use crate::collectors::host::{Roots, word};
use crate::collectors::rdma::RdmaCollector;
use crate::collectors::slot::Collector;
use crate::network;

/// Most devices and ports that are listed; a node of today has nine.
const MAX_LISTED: usize = 32;

/// What was found.
pub(super) struct Fabric {
    ports: Vec<Port>,
    devices: usize,
    files: usize,
}

struct Port {
    name: String,
    active: bool,
    text: String,
}

/// Looks at `/sys/class/infiniband` and `/dev/infiniband`.
pub(super) fn look(roots: &Roots) -> Fabric {
    let class = roots.sys.join("class/infiniband");
    let devices = names(&class);
    let ports = devices
        .iter()
        .flat_map(|device| {
            let ports = class.join(device).join("ports");
            let numbers = names(&ports).into_iter();
            numbers.map(move |number| port(&ports.join(&number), format!("{device}/{number}")))
        })
        .take(MAX_LISTED)
        .collect();
    let files = names(&roots.dev.join("infiniband"));
    Fabric {
        ports,
        devices: devices.len(),
        files: files.iter().filter(|name| name.starts_with("uverbs")).count(),
    }
}

/// The entries of a directory, sorted; none if it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .take(MAX_LISTED)
        .collect();
    names.sort();
    names
}

fn port(directory: &Path, name: String) -> Port {
    let read = |file: &str| word(&directory.join(file));
    // "4: ACTIVE"
    let state = read("state").and_then(|state| Some(state.split_once(':')?.1.trim().to_owned()));
    let parts = [state.clone(), read("rate"), read("link_layer")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    Port {
        active: state.as_deref() == Some("ACTIVE"),
        text: format!("{name} {}", parts.join(" ")),
        name,
    }
}

impl Fabric {
    /// Whether the kernel shows any device.
    pub(super) fn present(&self) -> bool {
        self.devices > 0
    }

    /// The line of the report.
    pub(super) fn line(&self) -> DoctorLine {
        const CHECK: &str = "InfiniBand";
        let listed: Vec<&str> = self.ports.iter().map(|port| port.text.as_str()).collect();
        let text = format!("{} device files; {}", self.files, listed.join(", "));
        if !self.present() && self.files == 0 {
            return DoctorLine::new(
                CHECK,
                Level::Blind,
                "no device is visible: there is none, or it was not given to this container",
            );
        }
        if !self.present() {
            let text =
                format!("{} device files, but no device in /sys/class/infiniband", self.files);
            return DoctorLine::new(CHECK, Level::Warning, text).advise(
                "the devices belong to another network namespace: give them to the container",
            );
        }
        if self.files < self.devices {
            let text = format!("{} devices, {text}", self.devices);
            return DoctorLine::new(CHECK, Level::Warning, text)
                .advise("give the container /dev/infiniband/uverbs*: NCCL falls back to sockets for devices without one");
        }
        let idle = self.ports.iter().filter(|port| !port.active);
        let idle: Vec<&str> = idle.map(|port| port.name.as_str()).collect();
        if !idle.is_empty() {
            return DoctorLine::new(CHECK, Level::Warning, text).advise(format!(
                "not active: {}; check cables and the subnet manager",
                idle.join(", ")
            ));
        }
        DoctorLine::new(CHECK, Level::Ok, text)
    }
}

/// What NCCL of jobs here is told, unless image or job says otherwise; no line on a node without devices.
/// A sick adapter may answer late.
pub(super) async fn proposed(roots: &Roots, exclude: &BTreeSet<String>) -> Option<DoctorLine> {
    const CHECK: &str = "NCCL network";
    let (class, mut collector) = (roots.sys.join("class/infiniband"), RdmaCollector::new(roots));
    let rdma = match storage::look(&class, storage::PATIENCE, move |_| collector.read()).await {
        Ok(Ok(rdma)) if rdma.devices.is_empty() => return None,
        Ok(Ok(rdma)) => rdma,
        Ok(Err(error)) => return Some(DoctorLine::new(CHECK, Level::Warning, error.to_string())),
        Err(_) => {
            let text = format!("{} did not answer within {:?}", class.display(), storage::PATIENCE);
            return Some(DoctorLine::new(CHECK, Level::Warning, text));
        }
    };
    let variables = network::variables(&rdma, exclude);
    if variables.is_empty() {
        let line =
            DoctorLine::new(CHECK, Level::Warning, "no port that a job here could use: sockets");
        return Some(line.advise("see the line InfiniBand, and rdma_exclude in the configuration"));
    }
    let text: Vec<String> =
        variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    Some(DoctorLine::new(CHECK, Level::Ok, text.join(" ")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{look, proposed};
    use crate::collectors::fixture::{Tree, roots};
    use crate::doctor::Level;

    fn device(tree: Tree, name: &str, state: &str) -> Tree {
        let port = format!("sys/class/infiniband/{name}/ports/1");
        tree.file(&format!("{port}/state"), state)
            .file(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n")
            .file(&format!("{port}/link_layer"), "InfiniBand\n")
    }

    #[test]
    fn nothing_visible_is_blind() {
        let fabric = look(&roots(&Tree::new()));
        assert!(!fabric.present());
        assert_eq!(fabric.line().level, Level::Blind);
    }

    #[test]
    fn devices_need_their_files_and_active_ports() {
        let tree = device(Tree::new(), "mlx5_0", "4: ACTIVE\n");
        assert_eq!(look(&roots(&tree)).line().level, Level::Warning, "no device file");
        let tree = tree.file("dev/infiniband/uverbs0", "").file("dev/infiniband/rdma_cm", "");
        let line = look(&roots(&tree)).line();
        assert_eq!(line.level, Level::Ok);
        assert_eq!(line.text, "1 device files; mlx5_0/1 ACTIVE 400 Gb/sec (4X NDR) InfiniBand");
        let tree = device(tree, "mlx5_1", "1: DOWN\n").file("dev/infiniband/uverbs1", "");
        let line = look(&roots(&tree)).line();
        assert_eq!(line.level, Level::Warning);
        assert!(line.advice.is_some_and(|advice| advice.contains("mlx5_1/1")));
    }

    #[tokio::test]
    async fn what_jobs_are_told_is_shown() {
        let none = BTreeSet::new();
        assert!(proposed(&roots(&Tree::new()), &none).await.is_none());
        let tree = device(Tree::new(), "mlx5_0", "4: ACTIVE\n");
        let line = proposed(&roots(&tree), &none).await.expect("a line");
        assert_eq!(
            (line.level, line.text.as_str()),
            (Level::Warning, "no port that a job here could use: sockets")
        );
        let tree = device(tree, "mlx5_1", "4: ACTIVE\n").file("dev/infiniband/uverbs0", "");
        let line = proposed(&roots(&tree), &none).await.expect("a line");
        assert_eq!((line.level, line.text.as_str()), (Level::Ok, "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"));
        let line = proposed(&roots(&tree), &["mlx5_0".to_owned()].into()).await.expect("a line");
        assert_eq!(line.text, "NCCL_IB_HCA==mlx5_1:1");
    }

    #[test]
    fn files_without_a_device_are_told() {
        let tree = Tree::new().file("dev/infiniband/uverbs0", "");
        assert_eq!(look(&roots(&tree)).line().level, Level::Warning);
    }
}
