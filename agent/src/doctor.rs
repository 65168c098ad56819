//! The visibility report: what works on this node, what does not, and what cannot be seen from here. A thing
//! that a container hides is `Blind`, never `Ok`.
//!
//! Looks at directories run in a thread of their own with a time-out, because a dead network file system
//! blocks whoever touches it. Such a thread cannot be ended; it stays until the file system answers, and while
//! it does, the same directory is not looked at again.

mod fabric;
mod gpu;
mod kernel;
mod limits;
mod runtime;
mod storage;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::collectors::accelerator::{Accelerator, AcceleratorError};
use crate::collectors::host::{self, Roots};
use crate::collectors::storage::room;

/// Longest text or advice of a line, in characters: error texts of other programs may be long.
const MAX_TEXT: usize = 400;

/// How a check came out, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Seen, and as it should be.
    Ok,
    /// Cannot be seen from here.
    Blind,
    /// Works, with a loss or a risk.
    Warning,
    /// Gangs will fail here.
    Error,
}

impl Level {
    /// The word in both renderings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Blind => "blind",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorLine {
    /// Short name of the check, the same on every node.
    pub check: String,
    /// How it came out.
    pub level: Level,
    /// What was found.
    pub text: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl DoctorLine {
    /// A line without advice. Control characters in the text become spaces: it may quote another program.
    #[must_use]
    pub fn new(check: &str, level: Level, text: impl AsRef<str>) -> Self {
        Self { check: check.to_owned(), level, text: plain(text.as_ref()), advice: None }
    }

    /// The line with advice.
    #[must_use]
    pub fn advise(mut self, advice: impl AsRef<str>) -> Self {
        self.advice = Some(plain(advice.as_ref()));
        self
    }
}

fn plain(text: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    text.trim().chars().take(MAX_TEXT).map(printable).collect()
}

/// What to examine.
pub struct Subject<'a> {
    /// The GPUs, as they could be opened: none on a CPU node.
    pub accelerator: Result<Option<&'a dyn Accelerator>, &'a AcceleratorError>,
    /// GPUs that the configuration promises, if it does.
    pub expected_gpus: Option<u32>,
    /// Value of `NVIDIA_VISIBLE_DEVICES`.
    pub nvidia_visible: Option<String>,
    /// Value of `CUDA_VISIBLE_DEVICES`.
    pub cuda_visible: Option<String>,
    /// RDMA devices that jobs are not to use.
    pub rdma_exclude: BTreeSet<String>,
    /// Where the kernel's files are.
    pub roots: Roots,
    /// The agent's state directory.
    pub state_dir: PathBuf,
    /// Where gangs have their temporary directories.
    pub temp_root: PathBuf,
    /// The shared file system, if one is configured.
    pub shared_root: Option<PathBuf>,
    /// The interpreter that Ray runs in, if one is configured.
    pub python: Option<PathBuf>,
    /// First and last port from which blocks are leased.
    pub port_range: (u16, u16),
}

/// Examines the node. Takes up to 15 s per NVML request, 20 s for Python and 5 s per directory that hangs.
pub async fn examine(subject: &Subject<'_>) -> Vec<DoctorLine> {
    let facts = host::facts(&subject.roots);
    let interpreter = runtime::probe(subject.python.as_deref()).await;
    let gpus = gpu::look(subject).await;
    let fabric = fabric::look(&subject.roots);

    let mut lines = gpu::lines(subject, &gpus);
    lines.push(kernel::log(&subject.roots));
    lines.push(kernel::pid_namespace(&subject.roots, &gpus.processes));
    lines.push(limits::cgroup(&subject.roots, facts.cgroup));
    lines.extend(limits::memory_and_pids(&facts));
    lines.push(limits::cpus(&facts));
    lines.push(limits::shm(&facts, &room(&subject.roots.dev.join("shm"))));
    lines.extend(limits::ulimits(fabric.present()));
    lines.push(limits::ports(subject.port_range, facts.ip_local_port_range));
    lines.extend(storage::local(&subject.state_dir, &subject.temp_root).await);
    lines.push(storage::shared(subject.shared_root.as_deref()).await);
    lines.push(fabric.line());
    lines.extend(fabric::proposed(&subject.roots, &subject.rdma_exclude).await);
    lines.extend(interpreter.lines());
    lines.push(kernel::versions(&facts, interpreter.libc().await));
    lines.push(kernel::capabilities(&subject.roots));
    lines.push(kernel::subreaper());
    lines.push(kernel::clock(&subject.roots, jiff::Timestamp::now()));
    lines
}

/// The worst level of a report; `Ok` for an empty one.
#[must_use]
pub fn worst(lines: &[DoctorLine]) -> Level {
    let levels = lines.iter().map(|line| line.level);
    levels.max().unwrap_or(Level::Ok)
}

/// The report as a table for a terminal, one check per line with its advice below it.
#[must_use]
pub fn render(lines: &[DoctorLine]) -> String {
    let widths = lines.iter().map(|line| line.check.chars().count());
    let width = widths.max().unwrap_or(0);
    let mut out = String::new();
    for line in lines {
        let level = line.level.as_str();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{level:<8} {:<width$}  {}", line.check, line.text);
        if let Some(advice) = &line.advice {
            let _ = writeln!(out, "{:<8} {:<width$}  -> {advice}", "", "");
        }
    }
    out
}

/// The report as JSON: an array of lines.
///
/// # Errors
/// Those of the JSON writer.
pub fn render_json(lines: &[DoctorLine]) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(lines)
}

/// Bytes for people: the two largest units at most.
fn size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    if bytes >= GIB {
        let tenths = (u128::from(bytes) * 10 / u128::from(GIB)) as f64;
        format!("{:.1} GiB", tenths / 10.0)
    } else {
        format!("{} MiB", bytes / MIB)
    }
}

#[cfg(test)]
mod tests {
    use super::{DoctorLine, Level, render, render_json, size, worst};

    fn report() -> Vec<DoctorLine> {
        vec![
            DoctorLine::new("GPUs", Level::Ok, "2 found"),
            DoctorLine::new("kernel log", Level::Blind, "not\nreadable").advise("grant CAP_SYSLOG"),
        ]
    }

    #[test]
    fn the_table_keeps_columns_and_puts_advice_below() {
        let indent = " ".repeat(21);
        let expected = format!(
            "ok       GPUs        2 found\n\
             blind    kernel log  not readable\n\
             {indent}-> grant CAP_SYSLOG\n"
        );
        assert_eq!(render(&report()), expected);
        assert_eq!(render(&[]), "");
    }

    #[test]
    fn json_reads_back_as_the_same_report() {
        let json = render_json(&report()).expect("JSON");
        assert!(json.contains("\"level\": \"blind\""), "{json}");
        let back: Vec<DoctorLine> = serde_json::from_str(&json).expect("same form");
        assert_eq!(back, report());
    }

    #[test]
    fn blind_is_worse_than_ok_and_better_than_a_warning() {
        assert_eq!(worst(&report()), Level::Blind);
        assert_eq!(worst(&[]), Level::Ok);
        assert!(Level::Blind < Level::Warning && Level::Warning < Level::Error);
    }

    #[test]
    fn sizes_are_cut_and_not_rounded_up() {
        assert_eq!(size(64 << 20), "64 MiB");
        assert_eq!(size((1 << 30) - 1), "1023 MiB");
        assert_eq!(size(3 << 29), "1.5 GiB");
        assert_eq!(size(80 << 30), "80.0 GiB");
    }
}
