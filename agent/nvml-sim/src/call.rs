//! How every C function answers: null checks, panics kept on this side, values written through pointers, and
//! handles in the shape of pointers.

use std::ffi::{c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::without_provenance_mut;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
    nvmlReturn_t,
};

use crate::sim;
use crate::state::Gpu;

/// What a call does: nothing more to say, or an error code.
pub type Answer = Result<(), nvmlReturn_t>;

/// Turns an answer into a return code, and a panic into `NVML_ERROR_UNKNOWN`.
pub fn answer(call: impl FnOnce() -> Answer) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_panic) => UNKNOWN,
    }
}

/// Refuses a null pointer.
pub fn check<T>(pointer: *const T) -> Answer {
    if pointer.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    Ok(())
}

/// Writes the value that `read` gives to `out`.
///
/// # Safety
/// `out` is null or valid for a write of `T`.
pub unsafe fn put<T>(out: *mut T, read: impl FnOnce() -> Result<T, nvmlReturn_t>) -> nvmlReturn_t {
    answer(|| {
        check(out)?;
        let value = read()?;
        // SAFETY: not null, and valid by the contract of this function.
        unsafe { out.write(value) };
        Ok(())
    })
}

/// Writes the text that `read` gives, with its closing NUL, to a buffer of `length` bytes.
///
/// # Safety
/// `out` is null or valid for writes of `length` bytes.
pub unsafe fn put_text(
    out: *mut c_char,
    length: c_uint,
    read: impl FnOnce() -> Result<String, nvmlReturn_t>,
) -> nvmlReturn_t {
    answer(|| {
        check(out)?;
        let text = read()?;
        if text.len() >= usize::try_from(length).unwrap_or(0) {
            return Err(INSUFFICIENT_SIZE);
        }
        // SAFETY: the text and its NUL fit into `length` bytes, checked above.
        unsafe {
            out.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
            out.add(text.len()).write(0);
        }
        Ok(())
    })
}

/// Device handles and event sets are numbers from 1 in the shape of pointers; nothing is ever read through
/// them.
pub fn handle<T>(index: usize) -> *mut T {
    without_provenance_mut(index.saturating_add(1))
}

pub fn index<T>(handle: *mut T) -> Result<usize, nvmlReturn_t> {
    handle.addr().checked_sub(1).ok_or(INVALID_ARGUMENT)
}

/// Writes one reading of one GPU to `out`.
///
/// # Safety
/// `out` is null or valid for a write of `T`.
pub unsafe fn put_reading<T>(
    device: nvmlDevice_t,
    out: *mut T,
    read: impl FnOnce(&Gpu) -> Option<T>,
) -> nvmlReturn_t {
    // SAFETY: handed on.
    unsafe { put(out, || sim::view_gpu(index(device)?, |_, gpu| read(gpu).ok_or(NOT_SUPPORTED))) }
}
