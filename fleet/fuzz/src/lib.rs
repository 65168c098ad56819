//! Every decoder of bytes from outside, fed with mutations of good input.
//!
//! A decoder must answer or refuse: it never panics, never takes long, never holds more memory than
//! its bound says, and what it takes must be written and read again without a change. `targets` has
//! the decoders, `mutate` makes inputs, `run` feeds and judges. docs/soak.md lists all decoders.
//!
//! There is no feedback from coverage, so that a stable toolchain is enough. Instead the targets begin
//! with the golden bytes, which reach every branch of good input; checksums are made right again
//! after a mutation, and inputs that were taken are mutated further.

#[path = "../../../common/tests/hostile_wire/allocations.rs"]
pub mod allocations;
#[path = "../../../common/fuzz/fuzz_targets/decode_all.rs"]
mod decode_all;
#[path = "../../../common/tests/goldens/mod.rs"]
#[allow(dead_code, reason = "the tests of the wire use the rest")]
mod goldens;
pub mod mutate;
#[path = "../../../coordinator/tests/records/mod.rs"]
mod records;
pub mod run;
pub mod targets;

/// A directory for files of targets, in memory where there is such a place: many are written, and
/// some are made durable each time.
///
/// # Errors
/// It cannot be made.
pub fn scratch() -> std::io::Result<tempfile::TempDir> {
    match tempfile::tempdir_in("/dev/shm") {
        Ok(directory) => Ok(directory),
        Err(_) => tempfile::tempdir(),
    }
}
