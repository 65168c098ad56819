//! Small disks, for tests that fill them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A small disk in a directory, until this is dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Takes over the files that are in the directory.
    pub fn below(directory: &Path, mib: u32) -> anyhow::Result<SmallDisk> {
        let aside = directory.with_extension("aside");
        std::fs::rename(directory, &aside)?;
        std::fs::create_dir(directory)?;
        let size = format!("size={mib}m,mode=700");
        done(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "disk"]).arg(directory))?;
        let disk = SmallDisk(directory.to_owned());
        done(Command::new("cp").arg("-a").arg(aside.join(".")).arg(directory))?;
        std::fs::remove_dir_all(aside)?;
        Ok(disk)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = done(Command::new("umount").arg("--lazy").arg(&self.0)) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

fn done(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status()?;
    anyhow::ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
