//! A stand-in for `libnvidia-ml.so.1`: the C functions that the agent calls through `nvml-wrapper`, answered
//! from a TOML file (see `example.toml`) instead of a driver. Machines without a GPU run the production path
//! with it.
//!
//! Every function checks its pointers for null before it does anything, and none lets a panic cross into C.
//! What remains is the contract of the NVML header: a non-null pointer is valid for what is read or written
//! through it, and a buffer is as long as its length argument says.
#![allow(
    non_snake_case,
    non_upper_case_globals,
    reason = "the names of the C interface are not ours to choose"
)]

mod call;
mod health;
mod profile;
mod sim;
mod state;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::time::Duration;

use nvml_wrapper_sys::bindings::*;

use crate::call::{answer, check, handle, index, put, put_reading, put_text};

use nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE;
use nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT;
use nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED;

const MIB: u64 = 1 << 20;

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    answer(sim::initialise)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    answer(sim::initialise)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    answer(sim::shut_down)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    let text = match result {
        nvmlReturn_enum_NVML_SUCCESS => c"Success",
        nvmlReturn_enum_NVML_ERROR_UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        nvmlReturn_enum_NVML_ERROR_NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => c"Driver Not Loaded",
        nvmlReturn_enum_NVML_ERROR_TIMEOUT => c"Timeout",
        nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => c"GPU is lost",
        nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED => c"GPU requires reset",
        nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES => c"Insufficient Resources",
        nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH => c"Argument Version Mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(
    version: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put_text(version, length, || sim::view(|state, _| Ok(state.driver_version.clone()))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(
    version: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put_text(version, length, || sim::view(|state, _| Ok(state.nvml_version.clone()))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put(version, || sim::view(|state, _| Ok(state.cuda_version))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put(version, || sim::view(|state, _| Ok(state.cuda_version))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put(count, || {
            sim::view(|_, known| Ok(c_uint::try_from(known.len()).unwrap_or(c_uint::MAX)))
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    number: c_uint,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put(device, || {
            let number = usize::try_from(number).map_err(|_| INVALID_ARGUMENT)?;
            sim::view_gpu(number, |_, _| Ok(handle(number)))
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header; `uuid` is a C string when it is not null.
    unsafe {
        put(device, || {
            check(uuid)?;
            let uuid = CStr::from_ptr(uuid).to_str().map_err(|_| INVALID_ARGUMENT)?;
            sim::index_of(uuid).map(handle)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    uuid: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put_text(uuid, length, || sim::view_gpu(index(device)?, |_, gpu| Ok(gpu.uuid.clone())))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    name: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put_text(name, length, || sim::view_gpu(index(device)?, |_, gpu| Ok(gpu.name.clone())))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetIndex(device: nvmlDevice_t, number: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put(number, || {
            let held = index(device)?;
            sim::view_gpu(held, |_, _| c_uint::try_from(held).map_err(|_| INVALID_ARGUMENT))
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMinorNumber(
    device: nvmlDevice_t,
    minor: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put(minor, || {
            sim::view_gpu(index(device)?, |position, gpu| {
                let position = c_uint::try_from(position).map_err(|_| NOT_SUPPORTED)?;
                Ok(gpu.minor.unwrap_or(position))
            })
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(
    device: nvmlDevice_t,
    pci: *mut nvmlPciInfo_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put_reading(device, pci, |gpu| {
            let address = state::parse_pci_address(gpu.pci_bus_id.as_ref()?)?;
            let state::PciAddress { domain, bus, device } = address;
            Some(nvmlPciInfo_t {
                busIdLegacy: c_text(&format!("{:04X}:{bus:02X}:{device:02X}.0", domain & 0xffff)),
                domain,
                bus,
                device,
                pciDeviceId: 0,
                pciSubSystemId: 0,
                busId: c_text(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
            })
        })
    }
}

/// `text` in a zero-filled array that keeps at least one closing NUL.
fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    let room = N.saturating_sub(1);
    for (slot, byte) in out.iter_mut().take(room).zip(text.bytes()) {
        *slot = c_char::from_ne_bytes([byte]);
    }
    out
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put_reading(device, memory, |gpu| {
            Some(nvmlMemory_t {
                total: gpu.memory_total_mib * MIB,
                free: (gpu.memory_total_mib - gpu.memory_used_mib) * MIB,
                used: gpu.memory_used_mib * MIB,
            })
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    if memory.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null; the caller fills in the version before the call, as the header demands.
    let version = unsafe { (*memory).version };
    // NVML_STRUCT_VERSION of the header: the size of the struct, and the version in the top byte.
    let expected = c_uint::try_from(size_of::<nvmlMemory_v2_t>()).map(|size| size | (2 << 24));
    if expected != Ok(version) {
        return nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    // SAFETY: the contract of the header.
    unsafe {
        put_reading(device, memory, |gpu| {
            Some(nvmlMemory_v2_t {
                version,
                total: gpu.memory_total_mib * MIB,
                reserved: gpu.memory_reserved_mib * MIB,
                free: (gpu.memory_total_mib - gpu.memory_used_mib - gpu.memory_reserved_mib) * MIB,
                used: gpu.memory_used_mib * MIB,
            })
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    utilization: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put_reading(device, utilization, |gpu| {
            Some(nvmlUtilization_t { gpu: gpu.gpu_util?, memory: gpu.mem_util? })
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    sensor: nvmlTemperatureSensors_t,
    celsius: *mut c_uint,
) -> nvmlReturn_t {
    if sensor != nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the contract of the header.
    unsafe { put_reading(device, celsius, |gpu| gpu.temperature_c) }
}

/// Watts to the milliwatts of the interface. The state file is checked to be within 0 to 1e6 W.
fn milliwatts(watts: f64) -> c_uint {
    (watts * 1000.0).round() as c_uint
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPowerUsage(
    device: nvmlDevice_t,
    power: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put_reading(device, power, |gpu| gpu.power_w.map(milliwatts)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(
    device: nvmlDevice_t,
    limit: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put_reading(device, limit, |gpu| gpu.power_limit_w.map(milliwatts)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPowerManagementLimit(
    device: nvmlDevice_t,
    limit: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put_reading(device, limit, |gpu| gpu.power_limit_w.map(milliwatts)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetClockInfo(
    device: nvmlDevice_t,
    clock: nvmlClockType_t,
    megahertz: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put_reading(device, megahertz, |gpu| match clock {
            nvmlClockType_enum_NVML_CLOCK_GRAPHICS | nvmlClockType_enum_NVML_CLOCK_SM => {
                gpu.sm_clock_mhz
            }
            nvmlClockType_enum_NVML_CLOCK_MEM => gpu.mem_clock_mhz,
            _ => None,
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    processes: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    answer(|| {
        check(count)?;
        let (pids, used) = sim::view_gpu(index(device)?, |_, gpu| {
            Ok((gpu.pids.clone(), gpu.memory_used_mib * MIB))
        })?;
        let found = c_uint::try_from(pids.len()).map_err(|_| INSUFFICIENT_SIZE)?;
        // SAFETY: not null; the caller states the room there is and learns how many there are.
        let room = unsafe { count.replace(found) };
        if found == 0 {
            return Ok(());
        }
        if processes.is_null() || room < found {
            return Err(INSUFFICIENT_SIZE);
        }
        for (position, pid) in pids.into_iter().enumerate() {
            let process = nvmlProcessInfo_t {
                pid,
                usedGpuMemory: used / u64::from(found),
                gpuInstanceId: c_uint::MAX,
                computeInstanceId: c_uint::MAX,
            };
            // SAFETY: `position` is below `found`, and the caller has room for at least that many.
            unsafe { processes.add(position).write(process) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: nvmlDevice_t,
    types: *mut u64,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put_reading(device, types, |_| Some(u64::from(nvmlEventTypeXidCriticalError))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put(set, || sim::create_set().map(handle)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    types: u64,
    set: nvmlEventSet_t,
) -> nvmlReturn_t {
    answer(|| {
        if types != u64::from(nvmlEventTypeXidCriticalError) {
            return Err(NOT_SUPPORTED);
        }
        sim::register(index(set)?, index(device)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put(data, || {
            let event = sim::wait(index(set)?, Duration::from_millis(u64::from(timeout_ms)))?;
            Ok(nvmlEventData_t {
                device: handle(event.gpu),
                eventType: u64::from(nvmlEventTypeXidCriticalError),
                eventData: event.xid,
                gpuInstanceId: c_uint::MAX,
                computeInstanceId: c_uint::MAX,
            })
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    answer(|| sim::free_set(index(set)?))
}
