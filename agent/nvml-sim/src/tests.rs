//! Tests of the C functions that need no state file.

use std::ptr::null_mut;

use crate::health::*;
use crate::profile::*;
use crate::*;

#[test]
fn null_pointers_are_refused_and_not_followed() {
    let device = handle(0);
    // SAFETY: null pointers are what the functions promise to refuse.
    let codes = unsafe {
        [
            nvmlSystemGetDriverVersion(null_mut(), 80),
            nvmlSystemGetNVMLVersion(null_mut(), 80),
            nvmlSystemGetCudaDriverVersion_v2(null_mut()),
            nvmlDeviceGetCount_v2(null_mut()),
            nvmlDeviceGetHandleByIndex_v2(0, null_mut()),
            nvmlDeviceGetHandleByUUID(null_mut(), null_mut()),
            nvmlDeviceGetUUID(device, null_mut(), 96),
            nvmlDeviceGetName(device, null_mut(), 96),
            nvmlDeviceGetPciInfo_v3(device, null_mut()),
            nvmlDeviceGetMemoryInfo(device, null_mut()),
            nvmlDeviceGetMemoryInfo_v2(device, null_mut()),
            nvmlDeviceGetUtilizationRates(device, null_mut()),
            nvmlDeviceGetTemperature(device, 0, null_mut()),
            nvmlDeviceGetPowerUsage(device, null_mut()),
            nvmlDeviceGetClockInfo(device, 1, null_mut()),
            nvmlDeviceGetComputeRunningProcesses_v3(device, null_mut(), null_mut()),
            nvmlEventSetCreate(null_mut()),
            nvmlEventSetWait_v2(handle(0), null_mut(), 0),
            nvmlEventSetFree(null_mut()),
            nvmlDeviceRegisterEvents(null_mut(), 8, handle(0)),
            nvmlDeviceGetTotalEccErrors(device, 0, 0, null_mut()),
            nvmlDeviceGetRemappedRows(device, null_mut(), null_mut(), null_mut(), null_mut()),
            nvmlDeviceGetFieldValues(device, 1, null_mut()),
            nvmlDeviceGetGridLicensableFeatures_v4(device, null_mut()),
            nvmlDeviceGetP2PStatus(device, device, 2, null_mut()),
            nvmlDeviceGetGpuFabricInfoV(device, null_mut()),
            nvmlDeviceGetSramEccErrorStatus(device, null_mut()),
            nvmlDeviceGetMarginTemperature(device, null_mut()),
            nvmlDeviceGetRetiredPages_v2(device, 0, null_mut(), null_mut(), null_mut()),
            nvmlGpmQueryDeviceSupport(device, null_mut()),
            nvmlGpmSampleAlloc(null_mut()),
            nvmlGpmSampleFree(null_mut()),
            nvmlGpmMetricsGet(null_mut()),
        ]
    };
    assert_eq!(codes, [INVALID_ARGUMENT; 33]);
}

#[test]
fn nothing_works_before_initialisation() {
    let mut count = 7;
    // SAFETY: `count` outlives the calls.
    unsafe {
        assert_eq!(nvmlDeviceGetCount_v2(&raw mut count), nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
        assert_eq!(nvmlShutdown(), nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
    }
    assert_eq!(count, 7, "a failed call writes nothing");
}

#[test]
fn text_that_does_not_fit_is_not_cut() {
    let mut buffer = [1; 4];
    // SAFETY: the buffer is as long as stated.
    let code = unsafe { put_text(buffer.as_mut_ptr(), 4, || Ok("four".to_owned())) };
    assert_eq!((code, buffer), (INSUFFICIENT_SIZE, [1; 4]));
    // SAFETY: as above.
    let code = unsafe { put_text(buffer.as_mut_ptr(), 4, || Ok("one".to_owned())) };
    assert_eq!(code, nvmlReturn_enum_NVML_SUCCESS);
    assert_eq!(buffer.map(|byte| byte.to_ne_bytes()[0]), *b"one\0");
}

#[test]
fn a_panic_becomes_an_error_code() {
    let code = answer(|| panic!("in a callback"));
    assert_eq!(code, nvmlReturn_enum_NVML_ERROR_UNKNOWN);
}
