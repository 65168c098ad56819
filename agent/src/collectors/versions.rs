//! Versions of what a gang should have alike on all of its nodes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use gangline_common::wire::v1::NodeInventory;
use tokio::sync::watch;

use super::host::word;
use super::slot::{CollectError, Collector};

/// By name: `kernel`, `driver`, `nvml`, `cuda`, `nccl`, `ofed`, `python`, `ray`. One that is not found is not in it.
pub type Versions = BTreeMap<String, String>;

/// Gives the versions of the newest inventory.
pub struct VersionsCollector(pub watch::Receiver<Arc<NodeInventory>>);

impl Collector for VersionsCollector {
    type Reading = Versions;

    fn read(&mut self) -> Result<Versions, CollectError> {
        Ok(self.0.borrow().versions.iter().cloned().collect())
    }
}

/// Directories with NCCL, below the root.
const LIBRARIES: [&str; 6] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/local/lib",
    "usr/local/cuda/lib64",
    "usr/local/nccl/lib",
];

/// NCCL as the image has it, by the name of its file. The one that comes inside of PyTorch's package has no
/// version in its name and is not found.
#[must_use]
pub fn nccl(root: &Path) -> Option<String> {
    let files = LIBRARIES.iter().filter_map(|path| std::fs::read_dir(root.join(path)).ok());
    files.flatten().flatten().find_map(|entry| {
        let name = entry.file_name();
        let version = name.to_str()?.strip_prefix("libnccl.so.")?;
        let parts: Vec<&str> = version.split('.').collect();
        let numbers = parts.iter().all(|part| part.parse::<u32>().is_ok());
        (parts.len() >= 3 && numbers).then(|| version.to_owned())
    })
}

/// NVIDIA's (Mellanox') driver package. The kernel's own driver has no version apart from the kernel's.
#[must_use]
pub fn ofed(sys: &Path) -> Option<String> {
    word(&sys.join("module/mlx5_core/version")).filter(|version| version.len() <= 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::fixture::Tree;

    #[test]
    fn versions_are_found_by_their_files() {
        let tree = Tree::new()
            .file("usr/lib/x86_64-linux-gnu/libnccl.so.2", "")
            .file("usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5", "")
            .file("sys/module/mlx5_core/version", "23.10-2.1.3\n");
        assert_eq!(nccl(&tree.path("")).as_deref(), Some("2.21.5"));
        assert_eq!(ofed(&tree.path("sys")).as_deref(), Some("23.10-2.1.3"));
        assert_eq!((nccl(&tree.path("none")), ofed(&tree.path("none"))), (None, None));
    }
}
