//! Versions of what a gang should have alike on all of its nodes.

use std::collections::BTreeMap;

/// By name: `kernel`, `driver`, `nvml`, `cuda`, `nccl`, `ofed`, `python`, `ray`. One that is not found is not in it.
pub type Versions = BTreeMap<String, String>;
