//! What a fault runs out of: memory of a cgroup, space of a file system.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};

/// Makes the names of this process's groups differ.
static GROUPS: AtomicU32 = AtomicU32::new(0);
/// Tries to remove a group whose last process has just been killed, and the time between them.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// A cgroup with a limit; removed on drop, when nothing may run in it any more.
pub struct LimitedGroup(PathBuf);

impl LimitedGroup {
    /// One that may have so many bytes of memory.
    ///
    /// # Errors
    /// Why none can be made here.
    pub fn of_memory(bytes: u64) -> anyhow::Result<LimitedGroup> {
        LimitedGroup::create("memory", LIMIT_V1, "memory.max", bytes)
    }

    /// One that may have so many processes and threads.
    ///
    /// # Errors
    /// Why none can be made here.
    pub fn of_pids(most: u64) -> anyhow::Result<LimitedGroup> {
        LimitedGroup::create("pids", "pids.max", "pids.max", most)
    }

    fn create(controller: &str, v1: &str, v2: &str, most: u64) -> anyhow::Result<LimitedGroup> {
        let root = Path::new("/sys/fs/cgroup");
        let membership = std::fs::read_to_string("/proc/self/cgroup")?;
        let own = |controllers: &str| {
            let mut lines = membership.lines().filter_map(|line| line.split_once(':'));
            let path = lines.find_map(|(_, rest)| rest.strip_prefix(controllers));
            path.map(|path| path.trim_start_matches([':', '/']).to_owned())
        };
        let is_v2 = root.join("cgroup.controllers").exists();
        let (parent, limit) = match is_v2 {
            true => (root.join(own(":").unwrap_or_default()), v2),
            false => {
                let own = own(&format!("{controller}:")).unwrap_or_default();
                (root.join(controller).join(own), v1)
            }
        };
        if is_v2 {
            // Refused where the group has processes of its own.
            let enabled =
                std::fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
            enabled.with_context(|| format!("no {controller} controller below the own cgroup"))?;
        }
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let group = parent.join(format!("gangline-fleet-{}-{number}", std::process::id()));
        std::fs::create_dir(&group).context("no cgroup can be made")?;
        let group = LimitedGroup(group);
        let set = std::fs::write(group.0.join(limit), most.to_string());
        set.with_context(|| format!("no {controller} controller"))?;
        Ok(group)
    }

    pub fn directory(&self) -> &Path {
        &self.0
    }
}

const LIMIT_V1: &str = "memory.limit_in_bytes";

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            match std::fs::remove_dir(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(PAUSE);
                }
                Ok(()) => return,
                Err(error) => return eprintln!("{}: {error}", self.0.display()),
            }
        }
        eprintln!("{} is still in use", self.0.display());
    }
}

/// A file system in memory, unmounted on drop.
pub struct SmallDisk {
    directory: tempfile::TempDir,
}

impl SmallDisk {
    /// # Errors
    /// Only root may mount.
    pub fn mount(mebibytes: u32) -> anyhow::Result<SmallDisk> {
        let directory = tempfile::Builder::new().prefix("gl-disk-").tempdir()?;
        let size = format!("size={mebibytes}m");
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(directory.path()))?;
        Ok(SmallDisk { directory })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    /// Leaves no room.
    pub fn fill(&self) -> anyhow::Result<()> {
        let file = std::fs::File::create(self.ballast())?;
        match io::copy(&mut io::repeat(b'x'), &mut &file) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
            other => anyhow::bail!("the disk has no end: {other:?}"),
        }
    }

    /// Gives the room back.
    pub fn empty(&self) -> anyhow::Result<()> {
        match std::fs::remove_file(self.ballast()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg("--lazy").arg(self.path())) {
            eprintln!("{error}");
        }
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(())
}
