//! Which of the GPUs that NVML shows this agent may use, by `NVIDIA_VISIBLE_DEVICES` and
//! `CUDA_VISIBLE_DEVICES`. NVML itself knows neither.

use super::GpuIdentity;

/// The GPUs that both variables allow, in NVML's order. `None` means that the variable is not set.
///
/// `nvidia_visible` (`NVIDIA_VISIBLE_DEVICES`) is a request to the container runtime:
/// - unset, empty, `all`: no limit. `void` too: the runtime's CDI mode sets it in containers whose GPUs were
///   given in another way. A path, as the runtime's volume-mount strategy sets it: no limit.
/// - `none`: no GPU.
/// - UUIDs and UUID prefixes: these GPUs.
/// - indices: they count the GPUs of the host. Where the list is as long as what NVML shows or longer, the
///   runtime has applied it already and NVML has counted the rest anew from 0, so it is no further limit. Where
///   NVML shows more (a privileged container), they are NVML's indices.
///
/// `cuda_visible` (`CUDA_VISIBLE_DEVICES`) is read as CUDA reads it: a list of indices, UUIDs or unique UUID
/// prefixes that ends at the first entry that matches nothing (`0,-1,1` is GPU 0). Empty: no GPU. `all` is
/// accepted as no limit.
#[must_use]
pub fn usable(
    gpus: &[GpuIdentity],
    nvidia_visible: Option<&str>,
    cuda_visible: Option<&str>,
) -> Vec<GpuIdentity> {
    let allowed = |gpu: &&GpuIdentity| {
        runtime_allows(gpus, nvidia_visible, gpu) && cuda_allows(gpus, cuda_visible, gpu)
    };
    gpus.iter().filter(allowed).cloned().collect()
}

fn runtime_allows(gpus: &[GpuIdentity], variable: Option<&str>, gpu: &GpuIdentity) -> bool {
    let Some(list) = variable.map(str::trim) else {
        return true;
    };
    if matches!(list, "" | "all" | "void") || list.starts_with('/') {
        return true;
    }
    if list == "none" {
        return false;
    }
    let entries = || list.split(',').map(str::trim).filter(|e| !e.is_empty());
    let only_indices = entries().all(|entry| entry.parse::<u32>().is_ok());
    if only_indices && entries().count() >= gpus.len() {
        return true;
    }
    entries().any(|entry| find(gpus, entry).is_some_and(|found| found.uuid == gpu.uuid))
}

fn cuda_allows(gpus: &[GpuIdentity], variable: Option<&str>, gpu: &GpuIdentity) -> bool {
    let Some(list) = variable.map(str::trim) else {
        return true;
    };
    if list == "all" {
        return true;
    }
    list.split(',').map_while(|entry| find(gpus, entry.trim())).any(|found| found.uuid == gpu.uuid)
}

/// The GPU that an entry names: by index, or by a UUID prefix that fits exactly one GPU.
fn find<'a>(gpus: &'a [GpuIdentity], entry: &str) -> Option<&'a GpuIdentity> {
    if let Ok(index) = entry.parse::<u32>() {
        return gpus.iter().find(|gpu| gpu.index == index);
    }
    if let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == entry) {
        return Some(gpu);
    }
    // Prefixes have the "GPU-" in front; alone it fits every GPU and thus names none.
    let mut fitting =
        gpus.iter().filter(|gpu| entry.starts_with("GPU-") && gpu.uuid.starts_with(entry));
    let first = fitting.next()?;
    fitting.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::usable;
    use crate::collectors::nvml::GpuIdentity;

    fn gpus() -> Vec<GpuIdentity> {
        ["GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"]
            .iter()
            .zip(0..)
            .map(|(uuid, index)| GpuIdentity {
                index,
                uuid: (*uuid).to_owned(),
                name: "NVIDIA H100".to_owned(),
                memory_bytes: 80 << 30,
                pci_bus_id: None,
                minor: Some(index),
            })
            .collect()
    }

    fn check(nvidia: Option<&str>, cuda: Option<&str>, expected: &[u32]) {
        let indices: Vec<u32> = usable(&gpus(), nvidia, cuda).iter().map(|gpu| gpu.index).collect();
        assert_eq!(indices, expected, "NVIDIA={nvidia:?} CUDA={cuda:?}");
    }

    #[test]
    fn without_variables_every_gpu_is_usable() {
        check(None, None, &[0, 1, 2, 3]);
    }

    #[test]
    fn words_of_the_container_runtime() {
        for no_limit in ["all", "void", "", " ", "/var/run/nvidia-container-devices"] {
            check(Some(no_limit), None, &[0, 1, 2, 3]);
        }
        check(Some("none"), None, &[]);
    }

    #[test]
    fn the_container_runtime_lists_uuids_prefixes_and_indices() {
        check(Some("GPU-bb33,GPU-aa11"), None, &[0, 2]);
        check(Some("GPU-cc"), None, &[3]);
        check(Some("GPU-aa"), None, &[]);
        check(Some("GPU-"), None, &[]);
        check(Some("1, 3"), None, &[1, 3]);
        check(Some("GPU-unknown"), None, &[]);
        // A foreign entry hides nothing else in the runtime's list.
        check(Some("GPU-unknown,2"), None, &[2]);
    }

    #[test]
    fn host_indices_that_the_runtime_has_applied_are_no_further_limit() {
        check(Some("4,5,6,7"), None, &[0, 1, 2, 3]);
        let one = &gpus()[..1];
        assert_eq!(usable(one, Some("7"), None), one);
    }

    #[test]
    fn cuda_lists_end_at_the_first_entry_that_matches_nothing() {
        check(None, Some("2,0"), &[0, 2]);
        check(None, Some("0,-1,1"), &[0]);
        check(None, Some("GPU-bb, 1"), &[1, 2]);
        check(None, Some("GPU-aa,1"), &[]);
        check(None, Some("9"), &[]);
        for nothing in ["", "-1", "none", "void", "NoDevFiles"] {
            check(None, Some(nothing), &[]);
        }
        check(None, Some("all"), &[0, 1, 2, 3]);
    }

    #[test]
    fn both_variables_limit_together() {
        check(Some("GPU-aa11,GPU-bb33"), Some("2,3"), &[2]);
        check(Some("none"), Some("0"), &[]);
    }

    #[test]
    fn a_uuid_that_is_a_prefix_of_another_names_itself() {
        let mut gpus = gpus();
        gpus[1].uuid = "GPU-aa11b".to_owned();
        let found = usable(&gpus, None, Some("GPU-aa11"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].uuid, "GPU-aa11");
    }
}
