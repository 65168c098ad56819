//! The profiling counters (GPM): two samples, and what happened between them. The stand-in gives what the state
//! file says at the time of the second one.

use std::ptr::null;

use nvml_wrapper_sys::bindings::*;

use nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH;
use nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT;
use nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED;

use crate::call::{answer, check, handle, index, put};
use crate::sim;
use crate::state::Gpm;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlGpmQueryDeviceSupport(
    device: nvmlDevice_t,
    support: *mut nvmlGpmSupport_t,
) -> nvmlReturn_t {
    answer(|| {
        check(support)?;
        // SAFETY: not null; the caller fills in the version, as the header demands.
        if unsafe { (*support).version } != NVML_GPM_SUPPORT_VERSION {
            return Err(VERSION_MISMATCH);
        }
        let supported = sim::view_gpu(index(device)?, |_, gpu| Ok(gpu.gpm.is_some()))?;
        // SAFETY: as above.
        unsafe { (*support).isSupportedDevice = u32::from(supported) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlGpmSampleAlloc(sample: *mut nvmlGpmSample_t) -> nvmlReturn_t {
    // SAFETY: the contract of the header.
    unsafe { put(sample, || sim::create_sample().map(handle)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) -> nvmlReturn_t {
    answer(|| sim::free_sample(index(sample)?))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlGpmSampleGet(
    device: nvmlDevice_t,
    sample: nvmlGpmSample_t,
) -> nvmlReturn_t {
    answer(|| {
        let gpu = index(device)?;
        sim::view_gpu(gpu, |_, gpu| gpu.gpm.map(|_| ()).ok_or(NOT_SUPPORTED))?;
        sim::take_sample(index(sample)?, gpu)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn nvmlGpmMetricsGet(
    request: *mut nvmlGpmMetricsGet_t,
) -> nvmlReturn_t {
    answer(|| {
        check(request)?;
        // SAFETY: not null, and valid by the contract of the header.
        let request = unsafe { &mut *request };
        if request.version != NVML_GPM_METRICS_GET_VERSION {
            return Err(VERSION_MISMATCH);
        }
        let gpu = sim::sampled(index(request.sample1)?, index(request.sample2)?)?;
        let gpm = sim::view_gpu(gpu, |_, gpu| gpu.gpm.ok_or(NOT_SUPPORTED))?;
        let count = usize::try_from(request.numMetrics).map_err(|_| INVALID_ARGUMENT)?;
        let metrics = request.metrics.get_mut(..count).ok_or(INVALID_ARGUMENT)?;
        for metric in metrics {
            let value = value_of(&gpm, metric.metricId);
            metric.value = value.unwrap_or_default();
            metric.nvmlReturn = match value {
                Some(_) => nvmlReturn_enum_NVML_SUCCESS,
                None => NOT_SUPPORTED,
            };
            // Names and units are for people; a null pointer is none.
            metric.metricInfo.shortName = null::<std::ffi::c_char>().cast_mut();
            metric.metricInfo.longName = null::<std::ffi::c_char>().cast_mut();
            metric.metricInfo.unit = null::<std::ffi::c_char>().cast_mut();
        }
        Ok(())
    })
}

fn value_of(gpm: &Gpm, metric: nvmlGpmMetricId_t) -> Option<f64> {
    Some(match metric {
        nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL => gpm.graphics,
        nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL => gpm.sm,
        nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY => gpm.sm_occupancy,
        nvmlGpmMetricId_t_NVML_GPM_METRIC_ANY_TENSOR_UTIL => gpm.tensor,
        nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL => gpm.dram,
        nvmlGpmMetricId_t_NVML_GPM_METRIC_FP64_UTIL => gpm.fp64,
        nvmlGpmMetricId_t_NVML_GPM_METRIC_FP32_UTIL => gpm.fp32,
        nvmlGpmMetricId_t_NVML_GPM_METRIC_FP16_UTIL => gpm.fp16,
        nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_RX_PER_SEC => gpm.pcie_received,
        nvmlGpmMetricId_t_NVML_GPM_METRIC_PCIE_TX_PER_SEC => gpm.pcie_sent,
        nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC => gpm.nvlink_received,
        nvmlGpmMetricId_t_NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC => gpm.nvlink_sent,
        _ => return None,
    })
}
