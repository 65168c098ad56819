//! Faults for the GPUs of a node that has only simulated ones: an operator may see how the fleet takes a
//! sick node without making one sick.
//!
//! A node is taken as simulated when the state file of the stand-in NVML names every GPU that the driver
//! names; the driver names no GPU that is lost. No real GPU is in such a file, so nothing can be done to
//! one.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gangline_common::ids::GpuId;
use gangline_common::wire::request::{FailureReason, Fault, RequestFailure};
use toml::{Table, Value};

/// Where the stand-in NVML looks for its state file.
const STATE_FILE: &str = "GANGLINE_NVML_SIM";
/// Longest state file that is read, in bytes: the stand-in reads none that is longer.
const MAX_BYTES: u64 = 1 << 20;
/// One change at a time.
static CHANGING: Mutex<()> = Mutex::new(());

/// Makes the first simulated GPU of this node fail as asked, or all of them be well again. The answer
/// says what was done.
///
/// # Errors
/// The node has real GPUs or none, or its state file cannot be changed.
pub async fn inject(fault: Fault, gpus: BTreeSet<GpuId>) -> Result<Vec<u8>, RequestFailure> {
    let file = std::env::var_os(STATE_FILE).map(PathBuf::from);
    let done = tokio::task::spawn_blocking(move || {
        let file = file.ok_or_else(|| not_here("it does not run on the stand-in NVML"))?;
        change(&file, fault, &gpus)
    });
    let done = done.await.map_err(|error| no_answer(&error))?;
    done.map(String::into_bytes)
}

fn not_here(why: &str) -> RequestFailure {
    let text = format!("only simulated GPUs can be made to fail: {why}");
    RequestFailure { reason: FailureReason::NotHere, text }
}

fn no_answer(why: &dyn std::fmt::Display) -> RequestFailure {
    let text = format!("the state of the simulated GPUs cannot be changed: {why}");
    RequestFailure { reason: FailureReason::NoAnswer, text }
}

fn change(file: &Path, fault: Fault, gpus: &BTreeSet<GpuId>) -> Result<String, RequestFailure> {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(|error| no_answer(&error))?;
    opened.take(MAX_BYTES).read_to_string(&mut text).map_err(|error| no_answer(&error))?;
    let mut state: Table = text.parse().map_err(|error| no_answer(&error))?;
    let simulated: BTreeSet<GpuId> = gpus_of(&mut state).filter_map(|gpu| uuid_of(gpu)).collect();
    // Once the last one is lost the driver names none.
    let may_be_none = fault == Fault::Heal;
    if simulated.is_empty() || !gpus.is_subset(&simulated) || (gpus.is_empty() && !may_be_none) {
        return Err(not_here("its driver names other GPUs than the state file of the stand-in"));
    }
    let done = edit(&mut state, fault)?;
    // In one step: the stand-in must never read half of it.
    let next = file.with_extension("next");
    std::fs::write(&next, state.to_string()).map_err(|error| no_answer(&error))?;
    std::fs::rename(&next, file).map_err(|error| no_answer(&error))?;
    tracing::warn!(?fault, done, "a fault was injected");
    Ok(done)
}

fn gpus_of(state: &mut Table) -> impl Iterator<Item = &mut Table> {
    let list = state.get_mut("gpu").and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_table_mut)
}

fn links_of(gpu: &mut Table) -> impl Iterator<Item = &mut Table> {
    let list = gpu.get_mut("link").and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_table_mut)
}

fn uuid_of(gpu: &Table) -> Option<GpuId> {
    Some(GpuId(gpu.get("uuid")?.as_str()?.to_owned()))
}

fn edit(state: &mut Table, fault: Fault) -> Result<String, RequestFailure> {
    if fault == Fault::Heal {
        for gpu in gpus_of(state) {
            gpu.remove("xid");
            gpu.remove("lost");
            links_of(gpu).for_each(|link| drop(link.insert("active".to_owned(), true.into())));
        }
        return Ok("its simulated GPUs are well again".to_owned());
    }
    let Some(gpu) = gpus_of(state).next() else { return Err(not_here("there is none")) };
    let name = uuid_of(gpu).map(|uuid| uuid.to_string()).unwrap_or_default();
    match fault {
        Fault::Xid { code } => {
            let serial = gpu.get("xid_serial").and_then(Value::as_integer).unwrap_or(0);
            gpu.insert("xid".to_owned(), i64::from(code).into());
            gpu.insert("xid_serial".to_owned(), serial.saturating_add(1).into());
            Ok(format!("{name} raises Xid {code}"))
        }
        Fault::Link => {
            let mut active = links_of(gpu).filter(|link| link.get("active") == Some(&true.into()));
            let link =
                active.next().ok_or_else(|| not_here("its first one has no active NVLink"))?;
            link.insert("active".to_owned(), false.into());
            Ok(format!("an NVLink of {name} is down"))
        }
        Fault::Kill => {
            gpu.insert("lost".to_owned(), true.into());
            Ok(format!("{name} is lost"))
        }
        Fault::Heal => Ok(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str = "driver_version = \"580\"\n[[gpu]]\nuuid = \"GPU-a\"\nxid_serial = 4\n\
                         [[gpu.link]]\nactive = true\n[[gpu]]\nuuid = \"GPU-b\"\n";

    fn gpus(names: &[&str]) -> BTreeSet<GpuId> {
        names.iter().map(|name| GpuId((*name).to_owned())).collect()
    }

    #[test]
    fn a_fault_is_in_the_file_of_the_stand_in_and_heals() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("gpus.toml");
        std::fs::write(&file, STATE).unwrap();
        let change = |fault| change(&file, fault, &gpus(&["GPU-a", "GPU-b"])).unwrap();
        let now = || std::fs::read_to_string(&file).unwrap();
        assert_eq!(change(Fault::Xid { code: 79 }), "GPU-a raises Xid 79");
        assert!(now().contains("xid = 79") && now().contains("xid_serial = 5"), "{}", now());
        change(Fault::Link);
        assert!(now().contains("active = false"), "{}", now());
        change(Fault::Kill);
        assert!(now().contains("lost = true"), "{}", now());
        change(Fault::Heal);
        for gone in ["xid = ", "lost", "active = false"] {
            assert!(!now().contains(gone), "{gone} in {}", now());
        }
    }

    #[test]
    fn a_gpu_that_the_driver_has_lost_heals() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("gpus.toml");
        for left in [gpus(&["GPU-b"]), gpus(&[])] {
            std::fs::write(&file, STATE).unwrap();
            change(&file, Fault::Kill, &gpus(&["GPU-a", "GPU-b"])).unwrap();
            change(&file, Fault::Heal, &left).unwrap();
            let now = std::fs::read_to_string(&file).unwrap();
            assert!(!now.contains("lost"), "{left:?}: {now}");
        }
        let other = gpus(&["GPU-b", "GPU-real"]);
        assert!(change(&file, Fault::Heal, &other).is_err());
    }

    #[test]
    fn changes_at_the_same_time_are_all_made() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("gpus.toml");
        std::fs::write(&file, STATE).unwrap();
        let change = || change(&file, Fault::Xid { code: 79 }, &gpus(&["GPU-a", "GPU-b"])).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(change);
            }
        });
        let now = std::fs::read_to_string(&file).unwrap();
        assert!(now.contains("xid_serial = 12"), "{now}");
    }

    #[test]
    fn real_gpus_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("gpus.toml");
        std::fs::write(&file, STATE).unwrap();
        for real in [gpus(&["GPU-real"]), gpus(&["GPU-a", "GPU-real"]), gpus(&[])] {
            let refused = change(&file, Fault::Kill, &real).unwrap_err();
            assert_eq!(refused.reason, FailureReason::NotHere);
        }
        std::fs::write(&file, "driver_version = \"580\"\n").unwrap();
        assert!(change(&file, Fault::Kill, &gpus(&[])).is_err());
        let no_links = "[[gpu]]\nuuid = \"GPU-b\"\n";
        std::fs::write(&file, no_links).unwrap();
        let refused = change(&file, Fault::Link, &gpus(&["GPU-b"])).unwrap_err();
        assert!(refused.text.contains("no active NVLink"), "{}", refused.text);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), no_links);
    }
}
