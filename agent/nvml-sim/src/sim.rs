//! The simulated driver behind the C interface: who initialised it, which GPUs it has shown, who waits for
//! events. One instance per process, behind one lock that is never held while a call hangs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH as VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED as RESET_REQUIRED,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_t,
};

use crate::state::{Gpu, STATE_FILE_VARIABLE, Source, State};

/// How often a hanging or waiting call looks at the state file.
const POLL: Duration = Duration::from_millis(20);

/// Most event sets at a time.
const MAX_EVENT_SETS: usize = 1024;

/// Most profiling samples at a time: who frees none of them is to be noticed.
const MAX_SAMPLES: usize = 1024;

static SIM: Mutex<Sim> = Mutex::new(Sim::new());

/// The simulated driver.
pub struct Sim {
    /// `nvmlInit` calls without their `nvmlShutdown`.
    inits: u32,
    source: Source,
    /// UUIDs in the order in which they were first seen: the index and the handle of a GPU. A GPU that leaves
    /// the file keeps its place, as a lost GPU does in a running driver.
    known: Vec<String>,
    sets: BTreeMap<usize, EventSet>,
    next_set: usize,
    /// Profiling samples, with the GPU that each was taken of.
    samples: BTreeMap<usize, Option<usize>>,
    next_sample: usize,
}

/// One event set: for each registered GPU the (code, serial) delivered last.
type EventSet = BTreeMap<usize, Option<(u64, u64)>>;

/// An event that a set delivers: GPU index and Xid.
pub struct XidEvent {
    pub gpu: usize,
    pub xid: u64,
}

impl Sim {
    const fn new() -> Self {
        Self {
            inits: 0,
            source: Source::new(),
            known: Vec::new(),
            sets: BTreeMap::new(),
            next_set: 1,
            samples: BTreeMap::new(),
            next_sample: 1,
        }
    }

    /// Brings `known` up to date with the state file and returns the state.
    fn refresh(&mut self, path: Option<&Path>) -> Result<&State, nvmlReturn_t> {
        let path = path.ok_or(DRIVER_NOT_LOADED)?;
        let state = self.source.current(path).map_err(|_broken| DRIVER_NOT_LOADED)?;
        if state.version_mismatch {
            return Err(VERSION_MISMATCH);
        }
        for gpu in &state.gpus {
            if !self.known.contains(&gpu.uuid) {
                self.known.push(gpu.uuid.clone());
            }
        }
        Ok(state)
    }

    fn initialise(&mut self, path: Option<&Path>) -> Result<bool, nvmlReturn_t> {
        if self.inits == 0 {
            self.known.clear();
        }
        if self.refresh(path)?.hang {
            return Ok(false);
        }
        self.inits = self.inits.saturating_add(1);
        Ok(true)
    }

    fn shut_down(&mut self) -> Result<(), nvmlReturn_t> {
        self.inits = self.inits.checked_sub(1).ok_or(UNINITIALIZED)?;
        if self.inits == 0 {
            self.sets.clear();
            self.samples.clear();
        }
        Ok(())
    }

    /// The event due for `set`, if any. Marks it as delivered.
    fn take_event(
        &mut self,
        set: usize,
        path: Option<&Path>,
    ) -> Result<Option<XidEvent>, nvmlReturn_t> {
        self.refresh(path)?;
        let Self { source, known, sets, .. } = self;
        let state =
            source.current(path.ok_or(DRIVER_NOT_LOADED)?).map_err(|_broken| DRIVER_NOT_LOADED)?;
        let set = sets.get_mut(&set).ok_or(INVALID_ARGUMENT)?;
        let mut lost = false;
        for (&index, delivered) in set.iter_mut() {
            let gpu = known.get(index).and_then(|uuid| state.gpu(uuid));
            let Some((_, gpu)) = gpu else {
                lost = true;
                continue;
            };
            lost |= gpu.lost;
            let raised = gpu.xid.map(|xid| (xid, gpu.xid_serial));
            let fresh = raised.filter(|_| raised != *delivered);
            *delivered = raised;
            if let Some((xid, _)) = fresh {
                return Ok(Some(XidEvent { gpu: index, xid }));
            }
        }
        // An Xid 79 comes from a GPU that is already lost, so events go first.
        if lost { Err(GPU_IS_LOST) } else { Ok(None) }
    }
}

fn lock() -> MutexGuard<'static, Sim> {
    SIM.lock().unwrap_or_else(PoisonError::into_inner)
}

fn state_file() -> Option<PathBuf> {
    std::env::var_os(STATE_FILE_VARIABLE).map(PathBuf::from)
}

/// `nvmlInit`: counts one more user, once the state file can be read and does not hang.
///
/// # Errors
/// `DRIVER_NOT_LOADED` when there is no usable state file, `LIB_RM_VERSION_MISMATCH` when that says so.
pub fn initialise() -> Result<(), nvmlReturn_t> {
    let path = state_file();
    while !lock().initialise(path.as_deref())? {
        sleep(POLL);
    }
    Ok(())
}

/// `nvmlShutdown`: counts one user less; the last one frees all event sets.
///
/// # Errors
/// `UNINITIALIZED` without a matching [`initialise`].
pub fn shut_down() -> Result<(), nvmlReturn_t> {
    lock().shut_down()
}

/// Runs `read` on the current state and the known UUIDs, after any hang is over.
///
/// # Errors
/// `UNINITIALIZED`, `DRIVER_NOT_LOADED` for an unusable state file, and what `read` answers.
pub fn view<T>(
    read: impl FnOnce(&State, &[String]) -> Result<T, nvmlReturn_t>,
) -> Result<T, nvmlReturn_t> {
    let path = state_file();
    loop {
        let mut sim = lock();
        if sim.inits == 0 {
            return Err(UNINITIALIZED);
        }
        if !sim.refresh(path.as_deref())?.hang {
            let known = sim.known.clone();
            return read(sim.refresh(path.as_deref())?, &known);
        }
        drop(sim);
        sleep(POLL);
    }
}

/// Runs `read` on one GPU, with its position in the state file.
///
/// # Errors
/// As [`view`], `INVALID_ARGUMENT` for an index never shown, `GPU_IS_LOST` for a GPU that is marked as lost or
/// no longer in the file, `RESET_REQUIRED` and `UNKNOWN` for one that is marked so.
pub fn view_gpu<T>(
    index: usize,
    read: impl FnOnce(usize, &Gpu) -> Result<T, nvmlReturn_t>,
) -> Result<T, nvmlReturn_t> {
    await_gpu(index)?;
    view(|state, known| {
        let uuid = known.get(index).ok_or(INVALID_ARGUMENT)?;
        let (position, gpu) = state.gpu(uuid).ok_or(GPU_IS_LOST)?;
        if gpu.lost {
            return Err(GPU_IS_LOST);
        }
        if gpu.reset_required {
            return Err(RESET_REQUIRED);
        }
        if gpu.broken {
            return Err(UNKNOWN);
        }
        read(position, gpu)
    })
}

/// Blocks for as long as the state file says that calls on this GPU do.
fn await_gpu(index: usize) -> Result<(), nvmlReturn_t> {
    while view(|state, known| {
        let gpu = known.get(index).and_then(|uuid| state.gpu(uuid));
        Ok(gpu.is_some_and(|(_, gpu)| gpu.hang))
    })? {
        sleep(POLL);
    }
    Ok(())
}

/// The index of the GPU with this UUID.
///
/// # Errors
/// As [`view`], `NOT_FOUND` for an unknown UUID, `GPU_IS_LOST` for a lost GPU.
pub fn index_of(uuid: &str) -> Result<usize, nvmlReturn_t> {
    let index = view(|_, known| known.iter().position(|held| held == uuid).ok_or(NOT_FOUND))?;
    view_gpu(index, |_, _| Ok(index))
}

/// Makes an event set and returns its number.
///
/// # Errors
/// As [`view`]; `INSUFFICIENT_RESOURCES` when too many sets exist.
pub fn create_set() -> Result<usize, nvmlReturn_t> {
    view(|_, _| Ok(()))?;
    let mut sim = lock();
    if sim.sets.len() >= MAX_EVENT_SETS {
        return Err(INSUFFICIENT_RESOURCES);
    }
    let number = sim.next_set;
    sim.next_set = number.checked_add(1).ok_or(INSUFFICIENT_RESOURCES)?;
    sim.sets.insert(number, EventSet::new());
    Ok(number)
}

/// Registers a GPU for Xid events with a set.
///
/// # Errors
/// As [`view_gpu`]; `INVALID_ARGUMENT` for a set that does not exist.
pub fn register(set: usize, gpu: usize) -> Result<(), nvmlReturn_t> {
    view_gpu(gpu, |_, _| Ok(()))?;
    let mut sim = lock();
    let set = sim.sets.get_mut(&set).ok_or(INVALID_ARGUMENT)?;
    set.entry(gpu).or_insert(None);
    Ok(())
}

/// Waits for the next Xid event of a set.
///
/// # Errors
/// `TIMEOUT` when none comes, `GPU_IS_LOST` when a registered GPU is lost and has no event left,
/// `INVALID_ARGUMENT` for a set that does not exist (or was freed during the wait), and those of [`view`].
pub fn wait(set: usize, timeout: Duration) -> Result<XidEvent, nvmlReturn_t> {
    let path = state_file();
    let start = Instant::now();
    loop {
        view(|_, _| Ok(()))?;
        if let Some(event) = lock().take_event(set, path.as_deref())? {
            return Ok(event);
        }
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(TIMEOUT);
        }
        sleep(left.min(POLL));
    }
}

/// Frees an event set.
///
/// # Errors
/// `INVALID_ARGUMENT` for a set that does not exist.
pub fn free_set(set: usize) -> Result<(), nvmlReturn_t> {
    match lock().sets.remove(&set) {
        Some(_) => Ok(()),
        None => Err(INVALID_ARGUMENT),
    }
}

/// Makes an empty profiling sample and returns its number.
///
/// # Errors
/// As [`view`]; `INSUFFICIENT_RESOURCES` when too many exist.
pub fn create_sample() -> Result<usize, nvmlReturn_t> {
    view(|_, _| Ok(()))?;
    let mut sim = lock();
    if sim.samples.len() >= MAX_SAMPLES {
        return Err(INSUFFICIENT_RESOURCES);
    }
    let number = sim.next_sample;
    sim.next_sample = number.checked_add(1).ok_or(INSUFFICIENT_RESOURCES)?;
    sim.samples.insert(number, None);
    Ok(number)
}

/// Takes a sample of a GPU.
///
/// # Errors
/// `INVALID_ARGUMENT` for a sample that does not exist.
pub fn take_sample(sample: usize, gpu: usize) -> Result<(), nvmlReturn_t> {
    let mut sim = lock();
    *sim.samples.get_mut(&sample).ok_or(INVALID_ARGUMENT)? = Some(gpu);
    Ok(())
}

/// The GPU that both samples were taken of.
///
/// # Errors
/// `INVALID_ARGUMENT` when there is no such GPU, or no such sample.
pub fn sampled(first: usize, second: usize) -> Result<usize, nvmlReturn_t> {
    let sim = lock();
    let of = |sample| sim.samples.get(&sample).copied().flatten();
    let gpu = of(second).ok_or(INVALID_ARGUMENT)?;
    if of(first) == Some(gpu) { Ok(gpu) } else { Err(INVALID_ARGUMENT) }
}

/// Frees a profiling sample.
///
/// # Errors
/// `INVALID_ARGUMENT` for one that does not exist.
pub fn free_sample(sample: usize) -> Result<(), nvmlReturn_t> {
    match lock().samples.remove(&sample) {
        Some(_) => Ok(()),
        None => Err(INVALID_ARGUMENT),
    }
}
