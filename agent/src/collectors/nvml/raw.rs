//! NVML's functions that `nvml-wrapper` has no call for.

use std::ffi::c_uint;

use nvml_wrapper::error::{NvmlError as WrapperError, nvml_sym, nvml_try};
use nvml_wrapper::struct_wrappers::device::FieldValueSample;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED, NVML_GPU_FABRIC_STATE_IN_PROGRESS,
    NVML_GPU_FABRIC_STATE_NOT_STARTED, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED,
    nvmlEccSramErrorStatus_t, nvmlFieldValue_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
    nvmlGridLicensableFeatures_t,
    nvmlGridLicenseFeatureCode_t_NVML_GRID_LICENSE_FEATURE_CODE_VGPU as VGPU,
    nvmlMarginTemperature_t, nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
};

use crate::collectors::accelerator::{Fabric, FabricState, RemappedRows};

/// `NVML_STRUCT_VERSION`: the size of the struct, and its number in the top byte.
fn version_of<T>(number: c_uint) -> c_uint {
    c_uint::try_from(size_of::<T>()).unwrap_or_default() | (number << 24)
}

pub(super) fn remapped_rows(
    nvml: &Nvml,
    device: &Device<'_>,
) -> Result<RemappedRows, WrapperError> {
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle is of this library, and every pointer is one to a number that outlives the call.
    unsafe {
        let call = nvml_sym(nvml.lib().nvmlDeviceGetRemappedRows.as_ref())?;
        nvml_try(call(
            device.handle(),
            &raw mut corrected,
            &raw mut uncorrected,
            &raw mut pending,
            &raw mut failed,
        ))?;
    }
    Ok(RemappedRows { corrected, uncorrected, pending: pending != 0, failed: failed != 0 })
}

/// The driver's verdict about the uncorrected errors of SRAM.
pub(super) fn sram_threshold_exceeded(
    nvml: &Nvml,
    device: &Device<'_>,
) -> Result<bool, WrapperError> {
    // SAFETY: all zeros is a value of this struct of numbers; it outlives the call and says its version.
    unsafe {
        let mut status: nvmlEccSramErrorStatus_t = std::mem::zeroed();
        status.version = version_of::<nvmlEccSramErrorStatus_t>(1);
        let call = nvml_sym(nvml.lib().nvmlDeviceGetSramEccErrorStatus.as_ref())?;
        nvml_try(call(device.handle(), &raw mut status))?;
        Ok(status.bThresholdExceeded != 0)
    }
}

/// Degrees Celsius up to the next slowdown.
pub(super) fn margin_temperature(nvml: &Nvml, device: &Device<'_>) -> Result<i32, WrapperError> {
    let mut margin = nvmlMarginTemperature_t {
        version: version_of::<nvmlMarginTemperature_t>(1),
        marginTemperature: 0,
    };
    // SAFETY: the struct outlives the call and says its version.
    unsafe {
        let call = nvml_sym(nvml.lib().nvmlDeviceGetMarginTemperature.as_ref())?;
        nvml_try(call(device.handle(), &raw mut margin))?;
    }
    Ok(margin.marginTemperature)
}

/// `Ok(None)` for a GPU without a fabric.
pub(super) fn fabric(nvml: &Nvml, device: &Device<'_>) -> Result<Option<Fabric>, WrapperError> {
    // SAFETY: all zeros is a value of this struct of numbers; it outlives the calls and says its version. The
    // older version of it has the same fields but the last.
    let info = unsafe {
        let mut info: nvmlGpuFabricInfo_v3_t = std::mem::zeroed();
        info.version = version_of::<nvmlGpuFabricInfo_v3_t>(3);
        let call = nvml_sym(nvml.lib().nvmlDeviceGetGpuFabricInfoV.as_ref())?;
        let code = call(device.handle(), &raw mut info);
        if code == nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH {
            info.version = version_of::<nvmlGpuFabricInfo_v2_t>(2);
            nvml_try(call(device.handle(), &raw mut info))?;
        } else {
            nvml_try(code)?;
        }
        info
    };
    let state = match u32::from(info.state) {
        NVML_GPU_FABRIC_STATE_NOT_SUPPORTED => return Ok(None),
        NVML_GPU_FABRIC_STATE_NOT_STARTED => FabricState::NotStarted,
        NVML_GPU_FABRIC_STATE_IN_PROGRESS => FabricState::InProgress,
        NVML_GPU_FABRIC_STATE_COMPLETED => FabricState::Completed,
        _ => FabricState::Other(info.state),
    };
    Ok(Some(Fabric { state, status: info.status }))
}

/// Fields of parts of a GPU, as pairs of the field and the part, e.g. the number of a link. The wrapper asks for
/// whole GPUs only; and it translates the fields whose numbers differ between drivers, which this does not.
pub(super) fn fields_of_parts<const N: usize>(
    nvml: &Nvml,
    device: &Device<'_>,
    fields: [(u32, u32); N],
) -> Result<[Result<FieldValueSample, WrapperError>; N], WrapperError> {
    let count = i32::try_from(N).map_err(|_| WrapperError::InvalidArg)?;
    // SAFETY: all zeros is a value of this struct of numbers; there are as many as the call is told of, and they
    // outlive it.
    let values = unsafe {
        let mut values = fields.map(|(field, part)| {
            let mut value: nvmlFieldValue_t = std::mem::zeroed();
            (value.fieldId, value.scopeId) = (field, part);
            value
        });
        let call = nvml_sym(nvml.lib().nvmlDeviceGetFieldValues.as_ref())?;
        nvml_try(call(device.handle(), count, values.as_mut_ptr()))?;
        values
    };
    Ok(values.map(FieldValueSample::try_from))
}

/// Whether a virtual GPU has its license: `false` for a physical GPU, which needs none, and `Ok(None)` where
/// other features want licenses.
pub(super) fn vgpu_licensed(
    nvml: &Nvml,
    device: &Device<'_>,
) -> Result<Option<bool>, WrapperError> {
    // SAFETY: all zeros is a value of this struct of numbers; it outlives the call.
    let features = unsafe {
        let mut features: nvmlGridLicensableFeatures_t = std::mem::zeroed();
        let call = nvml_sym(nvml.lib().nvmlDeviceGetGridLicensableFeatures_v4.as_ref())?;
        nvml_try(call(device.handle(), &raw mut features))?;
        features
    };
    if features.isGridLicenseSupported == 0 {
        return Ok(Some(false));
    }
    let count = usize::try_from(features.licensableFeaturesCount).unwrap_or(usize::MAX);
    let mut listed = features.gridLicensableFeatures.iter().take(count);
    let vgpu = listed.find(|feature| feature.featureCode == VGPU);
    Ok(vgpu.map(|feature| feature.featureState > 0))
}
