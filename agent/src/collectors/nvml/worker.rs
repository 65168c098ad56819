//! The thread that makes all NVML calls: loads the library, answers one request after the other, and shuts
//! NVML down when the collector is dropped.

use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use gangline_common::time::Timestamp;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper::{Device, EventSet, Nvml};
use tokio::sync::{mpsc, oneshot};

use crate::collectors::slot::cpu_of_thread;

use super::events::{self, Seen, Source};
use super::read::{self, Memory};
use super::{Busy, DriverFacts, GpuIdentity, GpuSample, LIBRARY_NAMES, NvmlError, XidEvent};

/// Most GPUs that one node is believed to have; what lies beyond is ignored.
const MAX_GPUS: u32 = 256;

/// Most GPUs of which pairs are asked about: their number grows with the square.
const PEERS: usize = 32;

/// GPUs that may wait to be listened to.
const NEW_SOURCES: usize = MAX_GPUS as usize;

/// Where to send the answer to a request.
type Reply<T> = oneshot::Sender<Result<T, NvmlError>>;

/// What callers ask of the thread.
pub(super) enum Request {
    Identity(Reply<Vec<GpuIdentity>>),
    /// With the time of the question.
    Sample(Timestamp, Reply<Vec<GpuSample>>),
    Driver(Reply<DriverFacts>),
}

/// How the start went.
pub(super) enum Startup {
    Ready,
    NoLibrary,
    Failed(NvmlError),
}

/// Body of the thread. `busy` covers everything that calls into the library for a request.
pub(super) fn run(
    library: Option<PathBuf>,
    started: &SyncSender<Startup>,
    queue: &Receiver<Request>,
    busy: &Busy,
    events: &mpsc::Sender<XidEvent>,
) {
    busy.begin();
    let nvml = load(library);
    busy.end(Duration::ZERO);
    let (outcome, nvml) = match nvml {
        Ok(Some(nvml)) => (Startup::Ready, Some(nvml)),
        Ok(None) => (Startup::NoLibrary, None),
        Err(error) => (Startup::Failed(error), None),
    };
    // Nobody listens any more when the start took too long; then the queue is closed too and the loop ends.
    let _ = started.send(outcome);
    let Some(nvml) = nvml else { return };
    let seen = Seen::default();
    // The listener ends when `sources` is dropped, and NVML is shut down after both.
    thread::scope(|scope| {
        let (sources, new) = sync_channel(NEW_SOURCES);
        let seen = &seen;
        let listener = thread::Builder::new().name("nvml-events".to_owned());
        if let Err(error) = listener.spawn_scoped(scope, move || events::run(&new, events, seen)) {
            tracing::error!(%error, "Xid errors of the GPUs will not be seen");
        }
        let mut gpus = Gpus { nvml: &nvml, slots: Vec::new(), sources, seen };
        while let Ok(request) = queue.recv() {
            busy.begin();
            let before = cpu_of_thread();
            // A request that panics is left without an answer, and the next one is served.
            let answered = catch_unwind(AssertUnwindSafe(|| gpus.answer(request)));
            busy.end(cpu_of_thread().saturating_sub(before));
            if answered.is_err() {
                tracing::error!("a reading of NVML has panicked");
            }
        }
    });
}

/// Loads the library and initialises NVML. `Ok(None)`: none of the usual names exists.
fn load(library: Option<PathBuf>) -> Result<Option<Nvml>, NvmlError> {
    if let Some(path) = library {
        return open(path.as_os_str());
    }
    for name in LIBRARY_NAMES {
        match open(OsStr::new(name)) {
            Err(NvmlError::Library { reason, .. }) if is_absence(&reason, name) => {}
            other => return other,
        }
    }
    Ok(None)
}

fn open(library: &OsStr) -> Result<Option<Nvml>, NvmlError> {
    match Nvml::builder().lib_path(library).init() {
        Ok(nvml) => Ok(Some(nvml)),
        Err(WrapperError::LibloadingError(error)) => Err(NvmlError::Library {
            library: library.to_string_lossy().into_owned(),
            reason: error.to_string(),
        }),
        Err(WrapperError::DriverNotLoaded) => Err(NvmlError::NoDriver),
        Err(WrapperError::LibRmVersionMismatch) => Err(NvmlError::VersionMismatch),
        Err(error) => Err(NvmlError::Init(error.to_string())),
    }
}

/// Whether the dynamic loader speaks of the library itself as absent, and not of something that it needs.
/// The loader has no error codes; glibc and musl both use this text.
fn is_absence(reason: &str, library: &str) -> bool {
    reason.contains(library) && reason.contains("No such file or directory")
}

/// The GPUs by NVML index, with what has been learnt about them.
struct Gpus<'nvml> {
    nvml: &'nvml Nvml,
    slots: Vec<Slot<'nvml>>,
    /// GPUs that report their Xid errors.
    sources: SyncSender<Source<'nvml>>,
    seen: &'nvml Seen,
}

/// One index. The identity is asked for until it is known.
struct Slot<'nvml> {
    identity: Option<GpuIdentity>,
    /// It reports its Xid errors.
    heard: bool,
    memory: Memory<'nvml>,
}

impl<'nvml> Gpus<'nvml> {
    fn answer(&mut self, request: Request) {
        // A caller that has given up drops its end: its answer has no taker and is not worked out.
        match request {
            Request::Identity(reply) if !reply.is_closed() => {
                let _ = reply.send(self.identity());
            }
            Request::Sample(now, reply) if !reply.is_closed() => {
                let _ = reply.send(self.sample(now));
            }
            Request::Driver(reply) if !reply.is_closed() => {
                let _ = reply.send(Ok(self.driver()));
            }
            Request::Identity(_) | Request::Sample(..) | Request::Driver(_) => {}
        }
    }

    /// Makes room for new GPUs and asks for the identities that are still unknown.
    fn refresh(&mut self) -> Result<(), NvmlError> {
        let count = self
            .nvml
            .device_count()
            .map_err(|error| NvmlError::Call { call: "counting GPUs", reason: error.to_string() })?
            .min(MAX_GPUS);
        for index in 0..count {
            let position = index as usize;
            if self.slots.len() <= position {
                self.slots.push(Slot { identity: None, heard: false, memory: Memory::new() });
            }
            let Some(slot) = self.slots.get_mut(position) else {
                continue;
            };
            if slot.identity.is_some() {
                continue;
            }
            let Ok(device) = self.nvml.device_by_index(index) else {
                continue;
            };
            slot.identity = identify(&device, index);
            if let Some(gpu) = &slot.identity
                && let Some(events) = listen(self.nvml, &device)
            {
                let source = Source { uuid: gpu.uuid.clone(), events };
                slot.heard = self.sources.try_send(source).is_ok();
            }
        }
        Ok(())
    }

    fn identity(&mut self) -> Result<Vec<GpuIdentity>, NvmlError> {
        self.refresh()?;
        let known = self.slots.iter().filter_map(|slot| slot.identity.clone());
        Ok(known.collect())
    }

    fn sample(&mut self, now: Timestamp) -> Result<Vec<GpuSample>, NvmlError> {
        self.refresh()?;
        let (nvml, seen) = (self.nvml, self.seen);
        let indices = self.slots.iter().filter_map(|slot| Some(slot.identity.as_ref()?.index));
        let indices: Vec<u32> = indices.take(PEERS).collect();
        let known = self.slots.iter_mut().filter_map(|slot| {
            let gpu = slot.identity.as_ref()?;
            let asks = indices.contains(&gpu.index);
            let others = indices.iter().copied().filter(|index| asks && *index != gpu.index);
            let sample = read::sample(nvml, gpu.index, &gpu.uuid, others, &mut slot.memory, now);
            let xids = seen.of(&gpu.uuid, now.boot_ms);
            Some(GpuSample {
                xids: xids.by_code.into_iter().collect(),
                recent_xids: xids.recent.into_iter().collect(),
                last_xid: xids.last,
                hears_xids: slot.heard,
                ..sample
            })
        });
        Ok(known.collect())
    }

    fn driver(&mut self) -> DriverFacts {
        // The facts are wanted most when the driver is sick, so a failed refresh only leaves counts as they are.
        let counted = self.refresh().is_ok();
        let sources = self.slots.iter().filter(|slot| slot.heard).count();
        DriverFacts {
            driver: self.nvml.sys_driver_version().ok(),
            library: self.nvml.sys_nvml_version().ok(),
            cuda: self.nvml.sys_cuda_driver_version().ok().and_then(cuda_version),
            device_count: self.nvml.device_count().ok().filter(|_| counted),
            xid_sources: u32::try_from(sources).unwrap_or(MAX_GPUS),
        }
    }
}

/// CUDA packs its version as major x 1000 + minor x 10.
fn cuda_version(packed: i32) -> Option<(u32, u32)> {
    let packed = u32::try_from(packed).ok().filter(|packed| *packed > 0)?;
    Some((packed / 1000, packed % 1000 / 10))
}

/// `None` unless uuid, name and memory can all be read: half an identity is no identity.
fn identify(device: &Device<'_>, index: u32) -> Option<GpuIdentity> {
    Some(GpuIdentity {
        index,
        uuid: device.uuid().ok()?,
        name: device.name().ok()?,
        memory_bytes: device.memory_info().ok()?.total,
        pci_bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
        minor: device.minor_number().ok(),
    })
}

/// An event set of its own for each GPU: registering frees the set on failure, and one GPU that cannot report
/// Xids must not silence the others.
fn listen<'nvml>(nvml: &'nvml Nvml, device: &Device<'nvml>) -> Option<EventSet<'nvml>> {
    let set = nvml.create_event_set().ok()?;
    device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()
}

#[cfg(test)]
mod tests {
    use super::{cuda_version, is_absence};

    #[test]
    fn cuda_versions_are_unpacked() {
        assert_eq!(cuda_version(12_080), Some((12, 8)));
        assert_eq!(cuda_version(13_000), Some((13, 0)));
        assert_eq!(cuda_version(0), None);
        assert_eq!(cuda_version(-1), None);
    }

    #[test]
    fn only_the_absence_of_the_library_itself_makes_a_cpu_node() {
        let absent = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory";
        let needs = "libc.so.7: cannot open shared object file: No such file or directory";
        let broken = "/usr/lib/libnvidia-ml.so.1: file too short";
        assert!(is_absence(absent, "libnvidia-ml.so.1"));
        assert!(!is_absence(needs, "libnvidia-ml.so.1"));
        assert!(!is_absence(broken, "libnvidia-ml.so.1"));
    }
}
