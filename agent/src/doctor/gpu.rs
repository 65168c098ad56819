//! GPUs: found against expected, versions, usable ones, and whether Xid events reach this process.

use std::collections::BTreeSet;

use super::{DoctorLine, Level, Subject};
use crate::collectors::accelerator::{
    Accelerator, AcceleratorError, DriverFacts, GpuIdentity, GpuProcess, GpuSample,
};
use crate::collectors::nvml::usable;

/// Compute processes that NVML shows.
pub(super) enum Processes {
    /// There is no GPU to ask.
    NoGpu,
    /// NVML lists no processes for at least one GPU, or does not answer.
    Unreadable,
    /// Pids of all GPUs.
    Seen(BTreeSet<u32>),
}

/// What NVML told.
pub(super) struct Findings {
    outcome: Result<Option<Open>, AcceleratorError>,
    pub(super) processes: Processes,
}

struct Open {
    driver: DriverFacts,
    gpus: Vec<GpuIdentity>,
    lost: Vec<String>,
}

/// Asks NVML.
pub(super) async fn look(subject: &Subject<'_>) -> Findings {
    let accelerator = match subject.accelerator {
        Ok(Some(accelerator)) => accelerator,
        Ok(None) => return Findings::without(Ok(None), Processes::NoGpu),
        Err(error) => {
            return Findings::without(Err(error.clone()), Processes::Unreadable);
        }
    };
    match ask(accelerator).await {
        Ok((open, samples)) => Findings { processes: processes(&samples), outcome: Ok(Some(open)) },
        Err(error) => Findings::without(Err(error), Processes::Unreadable),
    }
}

impl Findings {
    fn without(outcome: Result<Option<Open>, AcceleratorError>, processes: Processes) -> Self {
        Self { outcome, processes }
    }
}

async fn ask(accelerator: &dyn Accelerator) -> Result<(Open, Vec<GpuSample>), AcceleratorError> {
    let driver = accelerator.driver().await?;
    let gpus = accelerator.identity().await?;
    let samples = accelerator.sample().await?;
    let lost = samples.iter().filter(|sample| sample.lost);
    let open = Open { driver, gpus, lost: lost.map(|sample| sample.uuid.clone()).collect() };
    Ok((open, samples))
}

fn processes(samples: &[GpuSample]) -> Processes {
    if samples.is_empty() {
        return Processes::NoGpu;
    }
    let lists: Option<Vec<&Vec<GpuProcess>>> =
        samples.iter().map(|s| s.processes.as_ref()).collect();
    match lists {
        Some(lists) => {
            Processes::Seen(lists.into_iter().flatten().map(|process| process.pid).collect())
        }
        None => Processes::Unreadable,
    }
}

/// The lines about GPUs.
pub(super) fn lines(subject: &Subject<'_>, findings: &Findings) -> Vec<DoctorLine> {
    let open = match &findings.outcome {
        Ok(Some(open)) => open,
        Ok(None) => return vec![no_library(subject)],
        Err(error) => {
            let line = DoctorLine::new("GPUs", Level::Error, error.to_string());
            return vec![line.advise(
                "check that the NVIDIA driver works: nvidia-smi in this container must answer",
            )];
        }
    };
    let mut lines = vec![found(open, subject.expected_gpus)];
    lines.extend(limited(subject, &open.gpus));
    if !open.gpus.is_empty() {
        lines.push(xid_events(open));
    }
    lines
}

fn no_library(subject: &Subject<'_>) -> DoctorLine {
    let files = device_files(subject);
    let expected = subject.expected_gpus.unwrap_or(0);
    if files == 0 && expected == 0 {
        return DoctorLine::new("GPUs", Level::Ok, "no NVML library: a CPU node");
    }
    let text =
        format!("no NVML library, but {files} GPU device files and {expected} GPUs expected");
    DoctorLine::new("GPUs", Level::Error, text).advise(
        "start the container with the NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )
}

/// Files `/dev/nvidia<number>`.
fn device_files(subject: &Subject<'_>) -> usize {
    let Ok(entries) = std::fs::read_dir(&subject.roots.dev) else {
        return 0;
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter(|name| {
            let number = name.strip_prefix("nvidia").unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
        .count()
}

fn found(open: &Open, expected: Option<u32>) -> DoctorLine {
    let known = u32::try_from(open.gpus.len()).unwrap_or(u32::MAX);
    let or_unknown = |version: &Option<String>| version.clone().unwrap_or("unknown".to_owned());
    let names: BTreeSet<&str> = open.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    let cuda =
        open.driver.cuda.map_or("unknown".to_owned(), |(major, minor)| format!("{major}.{minor}"));
    let text = format!(
        "{known} found ({names}); driver {}, NVML {}, CUDA up to {cuda}",
        or_unknown(&open.driver.driver),
        or_unknown(&open.driver.library),
    );
    if !open.lost.is_empty() {
        let text = format!("{text}; lost: {}", open.lost.join(", "));
        return DoctorLine::new("GPUs", Level::Error, text)
            .advise("a lost GPU needs a reset or a reboot of the host");
    }
    if open.driver.device_count.is_some_and(|count| count > known) {
        let counted = open.driver.device_count.unwrap_or(known);
        let text = format!("{text}; NVML counts {counted}, the others do not answer");
        return DoctorLine::new("GPUs", Level::Error, text)
            .advise("see the kernel log of the host for Xid errors of the silent GPUs");
    }
    match expected {
        Some(expected) if expected != known => {
            DoctorLine::new("GPUs", Level::Error, format!("{text}; expected {expected}"))
                .advise("compare the container's GPU request with the agent's configuration")
        }
        Some(_) | None => DoctorLine::new("GPUs", Level::Ok, text),
    }
}

/// A line when the environment limits the GPUs further.
fn limited(subject: &Subject<'_>, gpus: &[GpuIdentity]) -> Option<DoctorLine> {
    let (nvidia, cuda) = (subject.nvidia_visible.as_deref(), subject.cuda_visible.as_deref());
    let left = usable(gpus, nvidia, cuda).len();
    if left == gpus.len() {
        return None;
    }
    let text = format!(
        "{left} of {} by NVIDIA_VISIBLE_DEVICES={} CUDA_VISIBLE_DEVICES={}",
        gpus.len(),
        nvidia.unwrap_or("(unset)"),
        cuda.unwrap_or("(unset)"),
    );
    let level = if left == 0 { Level::Warning } else { Level::Ok };
    Some(DoctorLine::new("usable GPUs", level, text))
}

fn xid_events(open: &Open) -> DoctorLine {
    let (sources, gpus) = (open.driver.xid_sources, open.gpus.len());
    if usize::try_from(sources).is_ok_and(|sources| sources >= gpus) {
        return DoctorLine::new("Xid events", Level::Ok, "NVML reports those of all GPUs");
    }
    let text = format!("NVML reports those of {sources} of {gpus} GPUs");
    DoctorLine::new("Xid events", Level::Blind, text)
        .advise("without them the kernel log is the only source of GPU errors")
}

#[cfg(test)]
mod tests {
    use super::{Open, Processes, found, processes, xid_events};
    use crate::collectors::accelerator::{DriverFacts, GpuIdentity, GpuProcess, GpuSample, Owner};
    use crate::doctor::Level;

    fn open(counted: u32) -> Open {
        Open {
            driver: DriverFacts {
                driver: Some("570.124.06".to_owned()),
                device_count: Some(counted),
                xid_sources: 1,
                ..DriverFacts::default()
            },
            gpus: vec![GpuIdentity {
                index: 0,
                uuid: "GPU-a".to_owned(),
                name: "NVIDIA H20".to_owned(),
                memory_bytes: 96 << 30,
                pci_bus_id: None,
                minor: None,
            }],
            lost: Vec::new(),
        }
    }

    #[test]
    fn found_counted_and_expected_must_agree() {
        assert_eq!(found(&open(1), None).level, Level::Ok);
        assert_eq!(found(&open(1), Some(1)).level, Level::Ok);
        assert_eq!(found(&open(1), Some(8)).level, Level::Error);
        assert_eq!(found(&open(2), None).level, Level::Error);
        let mut lost = open(1);
        lost.lost.push("GPU-a".to_owned());
        let line = found(&lost, Some(1));
        assert_eq!(line.level, Level::Error);
        assert!(line.text.contains("lost: GPU-a"), "{}", line.text);
    }

    #[test]
    fn missing_xid_events_are_blind() {
        assert_eq!(xid_events(&open(1)).level, Level::Ok);
        let mut deaf = open(1);
        deaf.driver.xid_sources = 0;
        assert_eq!(xid_events(&deaf).level, Level::Blind);
    }

    #[test]
    fn one_gpu_without_a_process_list_makes_the_lists_unreadable() {
        let process = |pid| GpuProcess { pid, used_bytes: None, owner: Owner::Unknown };
        let with = |pids: Option<Vec<u32>>| GpuSample {
            processes: pids.map(|pids| pids.into_iter().map(process).collect()),
            ..GpuSample::default()
        };
        let both = [with(Some(vec![3])), with(Some(vec![3, 4]))];
        assert!(matches!(processes(&both), Processes::Seen(pids) if pids.len() == 2));
        let one = [with(Some(vec![3])), with(None)];
        assert!(matches!(processes(&one), Processes::Unreadable));
        assert!(matches!(processes(&[]), Processes::NoGpu));
    }
}
