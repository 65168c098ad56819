//! GPUs through NVML. The library is opened at run time; a node without it is a CPU node.
//!
//! A call into a sick driver may never return, so all calls are made by one thread (`worker`) and callers wait
//! for it with a time-out. While a call is overdue the collector is `hung`: it answers at once with an error
//! and hands the thread nothing more. If the call returns after all, the collector works again by itself.

mod events;
mod raw;
mod read;
mod traffic;
mod visible;
mod window;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gangline_common::time::Timestamp;
use tokio::sync::{mpsc, oneshot};

use super::accelerator::{Accelerator, AcceleratorError, Answer, EVENTS, Kind};
pub use super::accelerator::{DriverFacts, GpuIdentity, GpuSample, XidEvent};
pub use visible::usable;

use worker::{Request, Startup};

/// How long a caller waits for the NVML thread unless the configuration says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);

/// Names that the library goes by, in the order in which they are tried.
const LIBRARY_NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// Requests that may wait for the NVML thread. One caller each of sampling, identity, versions and doctor.
const QUEUE: usize = 4;

/// Why NVML did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// The library exists but cannot be loaded, or the configured one does not exist.
    #[error("cannot load {library}: {reason}")]
    Library {
        /// Name or path of the library.
        library: String,
        /// What the dynamic loader says.
        reason: String,
    },
    /// The library is there and the driver does not work.
    #[error("NVML does not start: {0}")]
    Init(String),
    /// The library is there and no driver is, as in an image of CUDA on a node without GPUs.
    #[error("NVML does not start: the driver is not loaded")]
    NoDriver,
    /// The driver was exchanged under the library, or the other way round.
    #[error("NVML does not start: driver and library are of different versions")]
    VersionMismatch,
    /// A call failed as a whole. The failure of one reading is `None` in the sample instead.
    #[error("{call}: {reason}")]
    Call {
        /// What was asked.
        call: &'static str,
        /// NVML's answer.
        reason: String,
    },
    /// The NVML thread did not answer in time.
    #[error("NVML did not answer within {0:?}")]
    TimedOut(Duration),
    /// An earlier call is overdue; nothing was asked.
    #[error("NVML hangs: a call has been under way for {0:?}")]
    Hung(Duration),
    /// More callers than the collector was made for; nothing was asked.
    #[error("too many requests wait for NVML")]
    Busy,
    /// The NVML thread has ended or could not be started.
    #[error("the NVML thread is gone: {0}")]
    Stopped(String),
}

impl From<NvmlError> for AcceleratorError {
    fn from(error: NvmlError) -> Self {
        let text = error.to_string();
        match error {
            NvmlError::NoDriver => AcceleratorError::NoDriver(text),
            NvmlError::VersionMismatch => AcceleratorError::VersionMismatch(text),
            NvmlError::TimedOut(_) | NvmlError::Hung(_) => AcceleratorError::Hung(text),
            NvmlError::Library { .. }
            | NvmlError::Init(_)
            | NvmlError::Call { .. }
            | NvmlError::Busy
            | NvmlError::Stopped(_) => AcceleratorError::Failed(text),
        }
    }
}

/// When the call that is under way began (`None` between calls), and the CPU time of all of them.
#[derive(Default)]
struct Busy(Mutex<(Option<Instant>, Duration)>);

impl Busy {
    fn begin(&self) {
        self.lock().0 = Some(Instant::now());
    }

    /// `spent` is the CPU time of the call.
    fn end(&self, spent: Duration) {
        let mut state = self.lock();
        state.0 = None;
        state.1 = state.1.saturating_add(spent);
    }

    fn elapsed(&self) -> Option<Duration> {
        self.lock().0.map(|since| since.elapsed())
    }

    fn spent(&self) -> Duration {
        self.lock().1
    }

    fn lock(&self) -> MutexGuard<'_, (Option<Instant>, Duration)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The GPUs of this node. Dropping it ends the NVML thread, unless a call hangs: then the thread stays until
/// the call returns.
pub struct NvmlCollector {
    requests: SyncSender<Request>,
    busy: Arc<Busy>,
    timeout: Duration,
    /// Until somebody takes it.
    events: Mutex<Option<mpsc::Receiver<XidEvent>>>,
}

impl NvmlCollector {
    /// Opens NVML. `library` names the shared object to load; `None` tries the usual names, and `Ok(None)`
    /// says that none of them exists, as on a CPU node. Blocks the caller for at most `timeout`, which is also
    /// the time-out of every later request.
    ///
    /// # Errors
    /// [`NvmlError::Library`], also for a `library` that was named and does not exist; [`NvmlError::Init`],
    /// [`NvmlError::NoDriver`] and [`NvmlError::VersionMismatch`];
    /// [`NvmlError::TimedOut`]; [`NvmlError::Stopped`].
    pub fn open(library: Option<PathBuf>, timeout: Duration) -> Result<Option<Self>, NvmlError> {
        let (requests, queue) = sync_channel(QUEUE);
        let (sender, receiver) = mpsc::channel(EVENTS);
        let (started, start) = sync_channel(1);
        let busy = Arc::new(Busy::default());
        let shared = Arc::clone(&busy);
        thread::Builder::new()
            .name("nvml".to_owned())
            .spawn(move || worker::run(library, &started, &queue, &shared, &sender))
            .map_err(|error| NvmlError::Stopped(error.to_string()))?;
        match start.recv_timeout(timeout) {
            Ok(Startup::Ready) => {
                let events = Mutex::new(Some(receiver));
                Ok(Some(Self { requests, busy, timeout, events }))
            }
            Ok(Startup::NoLibrary) => Ok(None),
            Ok(Startup::Failed(error)) => Err(error),
            Err(RecvTimeoutError::Timeout) => Err(NvmlError::TimedOut(timeout)),
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }

    /// Whether a call is overdue.
    #[must_use]
    pub fn hung(&self) -> bool {
        self.overdue().is_some()
    }

    /// The GPUs that NVML has named since the collector was opened, by index. A GPU that is lost later stays
    /// in the list; its samples say so. One that never answered is missing: compare with
    /// [`DriverFacts::device_count`].
    ///
    /// # Errors
    /// Every [`NvmlError`] but `Library` and `Init`.
    pub async fn identity(&self) -> Result<Vec<GpuIdentity>, NvmlError> {
        self.ask(Request::Identity).await
    }

    /// One sample of each GPU in [`identity`](Self::identity).
    ///
    /// # Errors
    /// Every [`NvmlError`] but `Library` and `Init`; `Call` when the driver as a whole does not answer.
    pub async fn sample(&self) -> Result<Vec<GpuSample>, NvmlError> {
        self.sample_at(Timestamp::now()).await
    }

    /// As [`sample`](Self::sample) at a time of the caller's, by which is decided what is read again.
    ///
    /// # Errors
    /// Those of `sample`.
    pub async fn sample_at(&self, now: Timestamp) -> Result<Vec<GpuSample>, NvmlError> {
        self.ask(|reply| Request::Sample(now, reply)).await
    }

    /// Versions and counts of the driver.
    ///
    /// # Errors
    /// Every [`NvmlError`] but `Library`, `Init` and `Call`.
    pub async fn driver(&self) -> Result<DriverFacts, NvmlError> {
        self.ask(Request::Driver).await
    }

    fn overdue(&self) -> Option<Duration> {
        self.busy.elapsed().filter(|spent| *spent >= self.timeout)
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, NvmlError>>) -> Request,
    ) -> Result<T, NvmlError> {
        if let Some(spent) = self.overdue() {
            return Err(NvmlError::Hung(spent));
        }
        let (reply, answer) = oneshot::channel();
        self.requests.try_send(request(reply)).map_err(|error| match error {
            TrySendError::Full(_) => NvmlError::Busy,
            TrySendError::Disconnected(_) => gone(),
        })?;
        match tokio::time::timeout(self.timeout, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_dropped)) => Err(gone()),
            Err(_elapsed) => Err(NvmlError::TimedOut(self.timeout)),
        }
    }
}

/// NVIDIA's accelerators, before it is known whether there are any.
pub struct Nvidia {
    /// As for [`NvmlCollector::open`].
    pub library: Option<PathBuf>,
}

impl Kind for Nvidia {
    fn open(&self, timeout: Duration) -> Result<Option<Box<dyn Accelerator>>, AcceleratorError> {
        let opened = NvmlCollector::open(self.library.clone(), timeout)?;
        Ok(opened.map(|nvidia| Box::new(nvidia) as Box<dyn Accelerator>))
    }

    fn has_devices(&self, dev: &Path) -> bool {
        dev.join("nvidiactl").exists()
    }
}

impl Accelerator for NvmlCollector {
    fn kind(&self) -> &'static str {
        "nvidia"
    }

    fn identity(&self) -> Answer<'_, Vec<GpuIdentity>> {
        Box::pin(async { Ok(NvmlCollector::identity(self).await?) })
    }

    fn sample(&self) -> Answer<'_, Vec<GpuSample>> {
        Box::pin(async { Ok(NvmlCollector::sample(self).await?) })
    }

    fn driver(&self) -> Answer<'_, DriverFacts> {
        Box::pin(async { Ok(NvmlCollector::driver(self).await?) })
    }

    fn usable(&self, gpus: &[GpuIdentity]) -> Vec<GpuIdentity> {
        let value = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let (nvidia, cuda) = (value("NVIDIA_VISIBLE_DEVICES"), value("CUDA_VISIBLE_DEVICES"));
        usable(gpus, nvidia.as_deref(), cuda.as_deref())
    }

    fn cpu_spent(&self) -> Duration {
        self.busy.spent()
    }

    fn events(&self) -> Option<mpsc::Receiver<XidEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn gone() -> NvmlError {
    NvmlError::Stopped("it ended without an answer".to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{DEFAULT_TIMEOUT, NvmlCollector, NvmlError};

    #[test]
    fn a_named_library_that_is_missing_is_an_error_and_not_a_cpu_node() {
        let missing = PathBuf::from("/nonexistent/libnvidia-ml.so.1");
        match NvmlCollector::open(Some(missing), DEFAULT_TIMEOUT) {
            Err(NvmlError::Library { library, .. }) => {
                assert_eq!(library, "/nonexistent/libnvidia-ml.so.1");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened a library that does not exist"),
        }
    }
}
