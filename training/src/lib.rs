//! What a training says of itself: steps and metrics from its log lines, its pace, and whether it has
//! stalled. Pure: no I/O, no clock, no chance.
//!
//! ```text
//!  bytes of a log ---> Feed ---> Reading (step, total, values) ---> Series   (rows by step, bounded)
//!                                                             \--> Pace     (learned step time)
//!  lines, steps, GPU readings, contact ---> Watch::judge ---> stalled, hung, resumed
//!  step times and GPU readings by rank ---> Stragglers::round ---> who is slower than the others
//! ```
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod events;
mod feed;
mod gpus;
mod pace;
mod protobuf;
mod reading;
mod runs;
mod series;
mod stall;
mod straggler;

pub use events::{MAX_RECORD_BYTES, Scanned, scan};
pub use feed::{Feed, MAX_LINE_BYTES};
pub use gpus::{Gpu, Pattern, pattern};
pub use pace::Pace;
pub use reading::{MAX_NAME_BYTES, MAX_VALUES, Reading, Source, read};
pub use runs::scan_run;
pub use series::{Limits, Row, Series};
pub use stall::{Policy, Quiet, Signs, Verdict, Watch};
pub use straggler::{RankReading, Sign, Slow, Stragglers, Word};
