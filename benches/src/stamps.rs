//! The reading end of the stamps that `stamp` processes leave. A pipe wakes its reader, so that
//! waiting takes nothing from what is measured.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::{OpenOptions, Receiver};

/// A stamp that has not come by then never will.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was written before arrives within this.
const REST: Duration = Duration::from_millis(20);

/// Nanoseconds of the clock that all processes of a machine share.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A named pipe that stamps come through.
pub struct Stamps {
    path: PathBuf,
    lines: BufReader<Receiver>,
}

impl Stamps {
    /// Makes the pipe; needs the async runtime.
    pub fn create(path: PathBuf) -> anyhow::Result<Self> {
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .with_context(|| format!("making the pipe {}", path.display()))?;
        // Open for writing as well: a pipe without writers would say that it has ended.
        let pipe = OpenOptions::new().read_write(true).open_receiver(&path)?;
        Ok(Stamps { path, lines: BufReader::new(pipe) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Drops stamps that are there already.
    pub async fn drop_rest(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        while let Ok(read) = tokio::time::timeout(REST, self.lines.read_line(&mut line)).await {
            read?;
            line.clear();
        }
        Ok(())
    }

    /// The next `count` times with this tag, in the order of their arrival.
    pub async fn wait(&mut self, tag: &str, count: usize) -> anyhow::Result<Vec<u64>> {
        let mut times = Vec::with_capacity(count);
        while times.len() < count {
            let mut line = String::new();
            tokio::time::timeout(PATIENCE, self.lines.read_line(&mut line))
                .await
                .with_context(|| format!("{} of {count} stamps of {tag} came", times.len()))??;
            match line.trim_end().split_once(' ') {
                Some((found, time)) if found == tag => times.push(time.parse()?),
                _ => bail!("the stamp {line:?} came while {tag} was awaited"),
            }
        }
        Ok(times)
    }
}
