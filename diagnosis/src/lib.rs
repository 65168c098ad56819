//! Why a job failed: from the logs of its ranks and from what is known for certain, the first cause,
//! what followed from it, and what to do. Pure: no I/O, no clock, no chance.
//!
//! ```text
//!  Source (bytes)          lines                 scan                         verdict
//!   head, tail   --->  cleaned, with   --->  findings: rules that    --->   one Diagnosis:
//!                      rank and time         fit, tracebacks                root before consequence,
//!  Fact (certain)  ------------------------------------------------->      the earliest root
//! ```
//!
//! The rules are data (`rules.toml`, embedded). Expressions are matched in linear time, and of each
//! source no more than [`HEAD_BYTES`] and [`TAIL_BYTES`] are looked at.

mod answer;
mod clock;
mod facts;
mod handled;
mod lines;
mod needles;
mod page;
mod pattern;
mod prefix;
mod progress;
mod quoted;
mod rules;
mod scan;
mod source;
pub mod stacks;
mod taxonomy;
mod traceback;
mod verdict;

pub use answer::{Consequence, Diagnosis, Evidence};
pub use facts::{Fact, FactKind, StopReason};
pub use page::page;
pub use rules::{Rule, Rules, RulesError};
pub use source::{HEAD_BYTES, MAX_SOURCES, Source, TAIL_BYTES, share};
pub use taxonomy::{Action, Category, Rank};
pub use verdict::{Case, NO_FAILURE, UNRECOGNISED};
