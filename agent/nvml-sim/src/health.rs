//! The functions that tell how a GPU fares: errors of its memory and links, what holds its clocks down, its bus,
//! its fabric, its peers, what its links carry, and what the driver wants done about it.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_MEMORY_TEMP,
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
};
use nvml_wrapper_sys::bindings::*;

use nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH;
use nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT;
use nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED;

use crate::call::{answer, check, index, put, put_reading};
use crate::sim;
use crate::state::{EccCounts, Gpu, Link, Pcie};

/// Most fields in one call.
const MAX_FIELDS: usize = 64;

/// Defines functions that write one reading.
macro_rules! readings {
    ($($name:ident: $type:ty = $read:expr;)+) => {
        $(#[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            device: nvmlDevice_t,
            out: *mut $type,
        ) -> nvmlReturn_t {
            // SAFETY: the contract of the header.
            unsafe { put_reading(device, out, $read) }
        })+
    };
}

fn pcie(gpu: &Gpu, read: impl FnOnce(Pcie) -> c_uint) -> Option<c_uint> {
    gpu.pcie.map(read)
}

readings! {
    nvmlDeviceGetTotalEnergyConsumption: c_ulonglong = |gpu| gpu.energy_mj;
    nvmlDeviceGetCurrentClocksThrottleReasons: c_ulonglong = |gpu| gpu.clock_reasons;
    nvmlDeviceGetCurrentClocksEventReasons: c_ulonglong = |gpu| gpu.clock_reasons;
    nvmlDeviceGetPersistenceMode: nvmlEnableState_t = |gpu| gpu.persistence.map(enabled);
    nvmlDeviceGetPcieReplayCounter: c_uint = |gpu| pcie(gpu, |pcie| pcie.replays);
    nvmlDeviceGetCurrPcieLinkGeneration: c_uint = |gpu| pcie(gpu, |pcie| pcie.generation);
    nvmlDeviceGetCurrPcieLinkWidth: c_uint = |gpu| pcie(gpu, |pcie| pcie.width);
    nvmlDeviceGetMaxPcieLinkGeneration: c_uint = |gpu| pcie(gpu, |pcie| pcie.max_generation);
    nvmlDeviceGetMaxPcieLinkWidth: c_uint = |gpu| pcie(gpu, |pcie| pcie.max_width);
    // GPUs with remapped rows retire no pages.
    nvmlDeviceGetRetiredPagesPendingStatus: nvmlEnableState_t = |_| None;
}

fn enabled(is: bool) -> nvmlEnableState_t {
    if is {
        nvmlEnableState_enum_NVML_FEATURE_ENABLED
    } else {
        nvmlEnableState_enum_NVML_FEATURE_DISABLED
    }
}

/// How often utilisation of the encoders is measured, in microseconds.
const SAMPLING_US: c_uint = 167_000;

/// Writes a share and its sampling period.
///
/// # Safety
/// Both pointers are null or valid for a write.
unsafe fn put_utilisation(
    device: nvmlDevice_t,
    utilisation: *mut c_uint,
    period_us: *mut c_uint,
    read: impl FnOnce(&Gpu) -> Option<u32>,
) -> nvmlReturn_t {
    answer(|| {
        check(utilisation)?;
        check(period_us)?;
        let share = sim::view_gpu(index(device)?, |_, gpu| read(gpu).ok_or(NOT_SUPPORTED))?;
        // SAFETY: not null, and valid by the contract of this function.
        unsafe {
            utilisation.write(share);
            period_us.write(SAMPLING_US);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetEncoderUtilization(
    device: nvmlDevice_t,
    utilisation: *mut c_uint,
    period_us: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put_utilisation(device, utilisation, period_us, |gpu| gpu.encoder_util) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetDecoderUtilization(
    device: nvmlDevice_t,
    utilisation: *mut c_uint,
    period_us: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put_utilisation(device, utilisation, period_us, |gpu| gpu.decoder_util) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetViolationStatus(
    device: nvmlDevice_t,
    policy: nvmlPerfPolicyType_t,
    time: *mut nvmlViolationTime_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put_reading(device, time, |gpu| {
            let held = gpu.violations?;
            let violation_ns = match policy {
                nvmlPerfPolicyType_enum_NVML_PERF_POLICY_POWER => held.power_ns,
                nvmlPerfPolicyType_enum_NVML_PERF_POLICY_THERMAL => held.thermal_ns,
                nvmlPerfPolicyType_enum_NVML_PERF_POLICY_SYNC_BOOST => held.sync_boost_ns,
                nvmlPerfPolicyType_enum_NVML_PERF_POLICY_BOARD_LIMIT => held.board_limit_ns,
                nvmlPerfPolicyType_enum_NVML_PERF_POLICY_LOW_UTILIZATION => held.low_utilization_ns,
                nvmlPerfPolicyType_enum_NVML_PERF_POLICY_RELIABILITY => held.reliability_ns,
                _ => return None,
            };
            Some(nvmlViolationTime_t { referenceTime: 0, violationTime: violation_ns })
        })
    }
}

fn counts(gpu: &Gpu, counter: nvmlEccCounterType_t) -> Option<EccCounts> {
    let ecc = gpu.ecc?;
    match counter {
        nvmlEccCounterType_enum_NVML_VOLATILE_ECC => Some(ecc.volatile),
        nvmlEccCounterType_enum_NVML_AGGREGATE_ECC => Some(ecc.aggregate),
        _ => None,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    error: nvmlMemoryErrorType_t,
    counter: nvmlEccCounterType_t,
    count: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put_reading(device, count, |gpu| {
            let counts = counts(gpu, counter)?;
            Some(match error {
                nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED => {
                    counts.sram_corrected.saturating_add(counts.dram_corrected)
                }
                _ => counts.sram_uncorrected.saturating_add(counts.dram_uncorrected),
            })
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetMemoryErrorCounter(
    device: nvmlDevice_t,
    error: nvmlMemoryErrorType_t,
    counter: nvmlEccCounterType_t,
    location: nvmlMemoryLocation_t,
    count: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put_reading(device, count, |gpu| {
            let counts = counts(gpu, counter)?;
            let corrected = error == nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED;
            match (location, corrected) {
                (nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM, true) => {
                    Some(counts.sram_corrected)
                }
                (nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM, false) => {
                    Some(counts.sram_uncorrected)
                }
                (nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DRAM, true) => {
                    Some(counts.dram_corrected)
                }
                (nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DRAM, false) => {
                    Some(counts.dram_uncorrected)
                }
                _ => None,
            }
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetSramEccErrorStatus(
    device: nvmlDevice_t,
    status: *mut nvmlEccSramErrorStatus_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header; the version comes first.
    let version = match unsafe { checked_version(status.cast(), size_of_val_of(status), &[1]) } {
        Ok((version, _)) => version,
        Err(code) => return code,
    };
    // SAFETY: the contract of the header.
    unsafe {
        put_reading(device, status, |gpu| {
            let ecc = gpu.ecc?;
            Some(nvmlEccSramErrorStatus_t {
                version,
                aggregateUncParity: ecc.aggregate.sram_uncorrected,
                aggregateUncSecDed: 0,
                aggregateCor: ecc.aggregate.sram_corrected,
                volatileUncParity: ecc.volatile.sram_uncorrected,
                volatileUncSecDed: 0,
                volatileCor: ecc.volatile.sram_corrected,
                aggregateUncBucketL2: ecc.aggregate.sram_uncorrected,
                aggregateUncBucketSm: 0,
                aggregateUncBucketPcie: 0,
                aggregateUncBucketMcu: 0,
                aggregateUncBucketOther: 0,
                bThresholdExceeded: c_uint::from(ecc.sram_threshold_exceeded),
            })
        })
    }
}

fn size_of_val_of<T>(_: *const T) -> usize {
    size_of::<T>()
}

/// Reads the version that a caller puts at the begin of a struct (`NVML_STRUCT_VERSION`: the size, and the number
/// in the top byte) and checks that it is one of `numbers`, of at most `size` bytes.
///
/// # Safety
/// `version` is null or valid for a read.
unsafe fn checked_version(
    version: *const c_uint,
    size: usize,
    numbers: &[c_uint],
) -> Result<(c_uint, c_uint), nvmlReturn_t> {
    check(version)?;
    // SAFETY: not null, and valid by the contract of this function.
    let version = unsafe { version.read() };
    let number = version >> 24;
    let bytes = usize::try_from(version & 0x00ff_ffff).unwrap_or(usize::MAX);
    if numbers.contains(&number) && bytes <= size && bytes > size_of::<c_uint>() {
        Ok((version, number))
    } else {
        Err(VERSION_MISMATCH)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetMarginTemperature(
    device: nvmlDevice_t,
    margin: *mut nvmlMarginTemperature_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header; the version comes first.
    let version = match unsafe { checked_version(margin.cast(), size_of_val_of(margin), &[1]) } {
        Ok((version, _)) => version,
        Err(code) => return code,
    };
    // SAFETY: the contract of the header.
    unsafe {
        put_reading(device, margin, |gpu| {
            let celsius: c_int = gpu.temperature_margin_c?;
            Some(nvmlMarginTemperature_t { version, marginTemperature: celsius })
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(
    device: nvmlDevice_t,
    info: *mut nvmlGpuFabricInfoV_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header; the version comes first.
    let checked = unsafe { checked_version(info.cast(), size_of_val_of(info), &[2, 3]) };
    let (version, number) = match checked {
        Ok(checked) => checked,
        Err(code) => return code,
    };
    answer(|| {
        let fabric = sim::view_gpu(index(device)?, |_, gpu| Ok(gpu.fabric.unwrap_or_default()))?;
        // SAFETY: not null by the check above; a caller of version 2 has a struct without the last field, which
        // is then not touched.
        unsafe {
            (&raw mut (*info).version).write(version);
            (&raw mut (*info).clusterUuid).write([0; 16]);
            (&raw mut (*info).status).write(fabric.status);
            (&raw mut (*info).cliqueId).write(0);
            (&raw mut (*info).state).write(fabric.state);
            (&raw mut (*info).healthMask).write(0);
            if number >= 3 {
                (&raw mut (*info).healthSummary).write(0);
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> nvmlReturn_t {
    answer(|| {
        for pointer in [corrected, uncorrected, pending, failed] {
            check(pointer)?;
        }
        let rows = sim::view_gpu(index(device)?, |_, gpu| gpu.rows.ok_or(NOT_SUPPORTED))?;
        // SAFETY: none is null, and all are valid by the contract of the header.
        unsafe {
            corrected.write(rows.corrected);
            uncorrected.write(rows.uncorrected);
            pending.write(c_uint::from(rows.pending));
            failed.write(c_uint::from(rows.failed));
        }
        Ok(())
    })
}

/// GPUs with remapped rows retire no pages.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetRetiredPages_v2(
    device: nvmlDevice_t,
    _cause: nvmlPageRetirementCause_t,
    count: *mut c_uint,
    _addresses: *mut c_ulonglong,
    _timestamps: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put_reading(device, count, |_| None) }
}

fn link_of(gpu: &Gpu, number: c_uint) -> Result<Link, nvmlReturn_t> {
    if gpu.links.is_empty() {
        return Err(NOT_SUPPORTED);
    }
    let number = usize::try_from(number).map_err(|_| INVALID_ARGUMENT)?;
    gpu.links.get(number).copied().ok_or(INVALID_ARGUMENT)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    device: nvmlDevice_t,
    number: c_uint,
    active: *mut nvmlEnableState_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put(active, || {
            sim::view_gpu(index(device)?, |_, gpu| Ok(enabled(link_of(gpu, number)?.active)))
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetNvLinkErrorCounter(
    device: nvmlDevice_t,
    number: c_uint,
    counter: nvmlNvLinkErrorCounter_t,
    value: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put(value, || {
            let link = sim::view_gpu(index(device)?, |_, gpu| link_of(gpu, number))?;
            match counter {
                nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_REPLAY => Ok(link.replays),
                nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_RECOVERY => Ok(link.recoveries),
                nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_FLIT => Ok(link.crc_flit),
                nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_DATA => Ok(link.crc_data),
                _ => Err(INVALID_ARGUMENT),
            }
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> nvmlReturn_t {
    answer(|| {
        check(values)?;
        let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
        if count == 0 || count > MAX_FIELDS {
            return Err(INVALID_ARGUMENT);
        }
        sim::view_gpu(index(device)?, |_, gpu| {
            for position in 0..count {
                // SAFETY: not null; the caller has `count` of them, each with its field set.
                field(gpu, unsafe { &mut *values.add(position) });
            }
            Ok(())
        })
    })
}

/// Answers one field.
fn field(gpu: &Gpu, value: &mut nvmlFieldValue_t) {
    let small = |reading: Option<u32>| {
        let kind = nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
        (kind, reading.map(|uiVal| nvmlValue_t { uiVal }))
    };
    let large = |reading: Option<u64>| {
        let kind = nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        (kind, reading.map(|ullVal| nvmlValue_t { ullVal }))
    };
    let (kind, reading) = match value.fieldId {
        NVML_FI_DEV_MEMORY_TEMP => small(gpu.memory_temperature_c),
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => small(gpu.recovery_action),
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX => {
            large(carried(gpu, value.scopeId, |link| link.sent_kib))
        }
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX => {
            large(carried(gpu, value.scopeId, |link| link.received_kib))
        }
        _ => small(None),
    };
    value.valueType = kind;
    value.value = reading.unwrap_or(nvmlValue_t { ullVal: 0 });
    value.nvmlReturn = match reading {
        Some(_) => nvmlReturn_enum_NVML_SUCCESS,
        None => NOT_SUPPORTED,
    };
}

/// What one link has carried, or all of them together: that is what the largest number asks for.
fn carried(gpu: &Gpu, scope: c_uint, of: impl Fn(&Link) -> Option<u64>) -> Option<u64> {
    if scope == c_uint::MAX {
        return gpu.links.iter().filter_map(of).reduce(u64::saturating_add);
    }
    of(gpu.links.get(usize::try_from(scope).ok()?)?)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetGridLicensableFeatures_v4(
    device: nvmlDevice_t,
    features: *mut nvmlGridLicensableFeatures_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put_reading(device, features, |gpu| {
            let licenses = gpu.licenses.as_ref()?;
            // SAFETY: all zeros is a value of this struct of numbers.
            let mut all: nvmlGridLicensableFeatures_t = std::mem::zeroed();
            all.isGridLicenseSupported = c_int::from(!licenses.is_empty());
            all.licensableFeaturesCount = c_uint::try_from(licenses.len()).ok()?;
            for (entry, license) in all.gridLicensableFeatures.iter_mut().zip(licenses) {
                entry.featureCode = license.feature;
                entry.featureState = license.state;
            }
            Some(all)
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    device: nvmlDevice_t,
    peer: nvmlDevice_t,
    capability: nvmlGpuP2PCapsIndex_t,
    status: *mut nvmlGpuP2PStatus_t,
) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe {
        put(status, || {
            if capability != nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK {
                return Err(NOT_SUPPORTED);
            }
            let peer = sim::view_gpu(index(peer)?, |_, gpu| Ok(gpu.uuid.clone()))?;
            sim::view_gpu(index(device)?, |_, gpu| gpu.p2p.get(&peer).copied().ok_or(NOT_SUPPORTED))
        })
    }
}
