//! Sources of facts about this node and of its counters. Each collector reads one source and says `None` for
//! what that source does not tell.

pub mod host;
pub mod nvml;

#[cfg(test)]
pub(crate) mod fixture;
