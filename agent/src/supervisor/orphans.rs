//! Finds and kills what is left of a member whose shim cannot do it any more.
//!
//! No single mark finds every process of a Ray cluster: some wipe their environment by setting
//! their title, plain children have no file of the temp dir open. Together the two find all.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gangline_common::ids::{MARK_VARIABLE, MemberKey};
use rustix::process::Signal;

use super::process::{self, ProcessId};

/// Rounds in a row that must find nothing: a process that is just executing a new program shows no
/// environment for a moment.
const CLEAN_ROUNDS: u32 = 2;
/// After this long, what is left counts as unkillable and is only looked at now and then.
const STUBBORN: Duration = Duration::from_secs(60);

/// One sweep, in rounds.
pub struct Sweep {
    mark: String,
    temp: PathBuf,
    /// Processes that the shim could not kill: known by name, whatever they look like.
    survivors: Vec<ProcessId>,
    killed: BTreeSet<ProcessId>,
    /// Rounds in a row that found nothing.
    clean: u32,
    since: Instant,
}

impl Sweep {
    pub fn new(key: &MemberKey, temp: &Path, survivors: &[ProcessId]) -> Self {
        // `/proc` shows real paths.
        let temp = temp.canonicalize().unwrap_or_else(|_| temp.to_owned());
        let survivors = survivors.to_vec();
        let (killed, clean) = (BTreeSet::new(), 0);
        Sweep { mark: key.mark(), temp, survivors, killed, clean, since: Instant::now() }
    }

    /// Kills everything that is found; true when nothing is left for sure. Blocks while `/proc` is
    /// read.
    pub fn round(&mut self) -> bool {
        let mut found = process::with_environment(MARK_VARIABLE, &self.mark);
        found.extend(process::with_open_files_below(&self.temp));
        found.extend(self.survivors.iter().copied().filter(|&id| process::lives(id)));
        for &id in &found {
            match process::send(id, Signal::KILL) {
                Ok(true) => {
                    self.killed.insert(id);
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(mark = self.mark, pid = id.pid, %error, "a process cannot be killed");
                }
            }
        }
        self.clean = if found.is_empty() { self.clean + 1 } else { 0 };
        self.clean >= CLEAN_ROUNDS
    }

    /// Processes that were killed so far.
    pub fn killed(&self) -> u32 {
        u32::try_from(self.killed.len()).unwrap_or(u32::MAX)
    }

    pub fn is_stubborn(&self) -> bool {
        self.since.elapsed() >= STUBBORN
    }

    /// Pause before the next round.
    pub fn pause(&self) -> Duration {
        if self.is_stubborn() { Duration::from_secs(2) } else { Duration::from_millis(20) }
    }
}
