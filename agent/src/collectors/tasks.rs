//! Tasks that are stuck, and those that ended and are waited for by nobody.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::host::Roots;
use super::slot::{CollectError, Collector};
use crate::supervisor::process::{self, ProcessId};

/// A task that was in state D in every reading for so long is stuck.
const BLOCKED: Duration = Duration::from_secs(120);
/// Most stuck tasks that are named.
const MAX_BLOCKED: usize = 16;
/// Most processes in state D that are remembered.
const MAX_WAITING: usize = 4096;

/// What `/proc` shows of the processes of this PID namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TasksReading {
    pub processes: u32,
    pub zombies: u32,
    /// Without a break in state D for two minutes or more: seen so in every reading. At most 16.
    pub blocked: Vec<BlockedTask>,
    /// Number of them.
    pub blocked_count: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BlockedTask {
    pub pid: u32,
    /// The kernel's name of it, at most 15 characters.
    pub name: String,
    pub for_s: u64,
}

/// Looks through all processes, and remembers since when one has been in state D.
pub struct TasksCollector {
    proc: PathBuf,
    waiting: HashMap<ProcessId, Instant>,
}

impl TasksCollector {
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        TasksCollector { proc: roots.proc.clone(), waiting: HashMap::new() }
    }

    fn read_at(&mut self, now: Instant) -> Result<TasksReading, CollectError> {
        let failed = |error| CollectError(format!("{}: {error}", self.proc.display()));
        let entries = std::fs::read_dir(&self.proc).map_err(failed)?;
        let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let mut reading = TasksReading::default();
        let mut waiting = HashMap::new();
        for pid in pids {
            // One that has ended since is not there any more.
            let Ok(text) = std::fs::read(self.proc.join(format!("{pid}/stat"))) else { continue };
            let Some(stat) = process::parse_stat(pid, &text) else { continue };
            reading.processes += 1;
            match stat.state {
                b'Z' => reading.zombies += 1,
                b'D' if waiting.len() < MAX_WAITING => {
                    let since = self.waiting.get(&stat.id).copied().unwrap_or(now);
                    waiting.insert(stat.id, since);
                    let spent = now.duration_since(since);
                    if spent >= BLOCKED {
                        reading.blocked_count += 1;
                        let name = name(&text);
                        reading.blocked.push(BlockedTask { pid, name, for_s: spent.as_secs() });
                    }
                }
                _ => {}
            }
        }
        self.waiting = waiting;
        reading.blocked.sort_by_key(|task| (std::cmp::Reverse(task.for_s), task.pid));
        reading.blocked.truncate(MAX_BLOCKED);
        Ok(reading)
    }
}

impl Collector for TasksCollector {
    type Reading = TasksReading;

    fn read(&mut self) -> Result<TasksReading, CollectError> {
        self.read_at(Instant::now())
    }
}

/// Field 2 of `stat`, without control characters.
fn name(stat: &[u8]) -> String {
    let text = String::from_utf8_lossy(stat);
    let inside = text.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
    let name = inside.map(|(name, _)| name).unwrap_or_default();
    name.chars().filter(|c| !c.is_control()).take(15).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::fixture::{Tree, roots};

    fn process(tree: Tree, pid: u32, name: &str, state: char, start: u32) -> Tree {
        let rest = format!("1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {start} 9 9");
        tree.file(&format!("proc/{pid}/stat"), &format!("{pid} ({name}) {state} {rest}\n"))
    }

    #[test]
    fn a_task_is_stuck_when_it_waited_in_every_reading_for_two_minutes() {
        let tree = process(Tree::new(), 7, "nfs (a) b", 'D', 70);
        let tree = process(tree, 8, "python3", 'D', 80);
        let tree = process(tree, 9, "sh", 'Z', 90);
        let mut tree = process(tree, 10, "sleep", 'S', 100).file("proc/uptime", "1.0 1.0");
        let mut collector = TasksCollector::new(&roots(&tree));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = collector.read_at(at(0)).expect("reading");
        assert_eq!((first.processes, first.zombies, first.blocked_count), (4, 1, 0));

        // The second one has run in between; of the first nothing has changed.
        tree = process(tree, 8, "python3", 'R', 80);
        collector.read_at(at(60)).expect("reading");
        tree = process(tree, 8, "python3", 'D', 80);
        let later = collector.read_at(at(125)).expect("reading");
        let stuck = BlockedTask { pid: 7, name: "nfs (a) b".to_owned(), for_s: 125 };
        assert_eq!((later.blocked_count, &later.blocked[..]), (1, &[stuck][..]));

        // The same pid, another process.
        let _tree = process(tree, 7, "nfs", 'D', 71);
        assert_eq!(collector.read_at(at(150)).expect("reading").blocked_count, 0);
    }

    #[test]
    fn the_real_processes_can_be_read() {
        let reading = TasksCollector::new(&Roots::default()).read().expect("reading");
        assert!(reading.processes >= 1);
    }
}
