//! What the node says around a member: the kernel's log and the limits of the container.

use std::fmt::Write;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use super::Failure;
use crate::collectors::host::{Roots, cgroup};
use crate::collectors::kernel::{KERNEL, parse_record};

/// How far back the kernel's log is shown.
const MINUTES: u64 = 5;
/// Most lines of it.
const LINES: usize = 300;
/// Most records that are read.
const RECORDS: usize = 1 << 16;

/// Lines of the last minutes, with their age.
pub fn kernel_log() -> Result<String, Failure> {
    let refused = |error| format!("/dev/kmsg cannot be read: {error}");
    let mut log = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(Roots::default().dev.join("kmsg"))
        .map_err(refused)?;
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_us = (clock.tv_sec as u64).saturating_mul(1_000_000) + clock.tv_nsec as u64 / 1000;
    let mut lines = Vec::new();
    let mut buffer = [0; 8192];
    for _ in 0..RECORDS {
        let length = match log.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // The next read gives the oldest record that is left.
            Err(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) =>
            {
                continue;
            }
            Err(error) => return Err(refused(error)),
        };
        let record = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        let Some(record) = record.lines().next().and_then(parse_record) else { continue };
        let age_s = now_us.saturating_sub(record.at_us) / 1_000_000;
        // What a program has written there is no evidence.
        if record.facility == KERNEL && age_s <= MINUTES * 60 {
            lines.push(format!("{age_s:>4} s ago  {}\n", record.text));
        }
    }
    let from = lines.len().saturating_sub(LINES);
    let text = lines.split_off(from).concat();
    Ok(if text.is_empty() { format!("nothing in the last {MINUTES} minutes") } else { text })
}

/// Files of the agent's own group, which every member is in or below.
pub fn cgroup() -> Result<String, Failure> {
    const FILES: [&str; 9] = [
        "memory.events",
        "memory.current",
        "memory.max",
        "memory.peak",
        "memory.pressure",
        "pids.current",
        "pids.max",
        "cpu.stat",
        "cpu.max",
    ];
    let roots = Roots::default();
    let group = cgroup::own_group(&roots).ok_or("this container has no control group to read")?;
    let mut text = String::new();
    for name in FILES {
        if let Ok(content) = fs::read_to_string(group.join(name)) {
            let _ = writeln!(text, "{name}: {}", content.trim_end().replace('\n', "\n  "));
        }
    }
    if let Some(kills) = cgroup::oom_kills(&roots) {
        let _ = writeln!(text, "killed for want of memory: {kills}");
    }
    if text.is_empty() {
        Err(format!("{} has no files of ours", group.display()))
    } else {
        Ok(text)
    }
}
