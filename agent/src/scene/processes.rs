//! The processes of a member, as a table.

use std::fmt::Write;
use std::fs;

use gangline_common::redact::Redactor;

use super::{Failure, environment};
use crate::supervisor::process::{self, ProcessId};

/// Most processes of a table.
const MAX_PROCESSES: usize = 512;
/// Longest command line that is shown, in characters.
const COMMAND_CHARS: usize = 400;

/// The processes below a root and the root itself, by their pids.
pub fn below(root: ProcessId) -> Vec<u32> {
    let mut pids: Vec<u32> =
        process::living_descendants(root.pid).iter().map(|id| id.pid).collect();
    if process::lives(root) {
        pids.push(root.pid);
    }
    pids.sort_unstable();
    pids.truncate(MAX_PROCESSES);
    pids
}

/// A line for every process.
pub fn table(root: ProcessId, redactor: &Redactor) -> Result<String, Failure> {
    let mut text = String::from("    PID    PPID S   CPU_S  RSS_MIB THREADS WCHAN COMMAND\n");
    let pids = below(root);
    if pids.is_empty() {
        return Err("none of its processes is left".to_owned());
    }
    for pid in pids {
        let Some(row) = row(pid) else { continue };
        let _ = writeln!(text, "{row} {} {}", wchan(pid), command(pid, redactor));
    }
    Ok(text)
}

/// The command line of a process, or its name in brackets when it has none.
pub fn command(pid: u32, redactor: &Redactor) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let word = |bytes: &[u8]| environment::without_variables(&String::from_utf8_lossy(bytes));
    let words: Vec<String> = line.split(|&byte| byte == 0).map(word).collect();
    let line = redactor.clean(words.join(" ").trim_end());
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.is_empty() {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        return format!("[{}]", name.trim_end());
    }
    line.chars().take(COMMAND_CHARS).collect()
}

/// Where in the kernel a process or thread waits.
pub fn wchan(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/wchan")) {
        Ok(name) if !name.is_empty() && name != "0" => name,
        _ => "-".to_owned(),
    }
}

fn row(pid: u32) -> Option<String> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let after = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = String::from_utf8_lossy(stat.get(after + 1..)?).into_owned();
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let cpu_s = (number(11)? + number(12)?) / ticks;
    let rss_mib = number(21)?.saturating_mul(rustix::param::page_size() as u64) >> 20;
    let (state, parent, threads) = (fields.first()?, number(1)?, number(17)?);
    Some(format!("{pid:>7} {parent:>7} {state} {cpu_s:>7} {rss_mib:>8} {threads:>7}"))
}
