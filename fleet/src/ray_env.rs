//! Private Python environments with a pinned Ray, each made once below the target directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use tokio::process::Command;

/// An environment and what is in it.
pub struct Environment {
    /// Of its directory.
    name: &'static str,
    /// What is installed, in the form of pip's requirements file; a change makes the environment
    /// anew.
    requirements: &'static str,
    /// For the one who waits for it.
    about: &'static str,
}

/// For everything but the run below.
pub const RAY: Environment = Environment {
    name: "ray-env",
    requirements: "ray[default]==2.60.0\nnumpy",
    about: "Ray 2.60.0 (about 400 MB, half a minute or more)",
};

/// For a training run with verl itself. Every version is pinned: left to itself, pip tries
/// versions for many minutes.
pub const VERL: Environment = Environment {
    name: "verl-env",
    requirements: include_str!("../../examples/verl_sft/requirements.txt"),
    about: "verl 0.9.1 with torch (about 6 GB, three minutes or more)",
};

/// For jobs that tell real experiment trackers their metrics.
pub const TRACKERS: Environment = Environment {
    name: "trackers-env",
    requirements: include_str!("../tests/trackers/requirements.txt"),
    about: "Ray, wandb, MLflow and tensorboardX (about 1.2 GB, a minute or more)",
};

/// For the stacks of processes: `py-spy`, which is no part of the environment of a job.
pub const PY_SPY: Environment = Environment {
    name: "py-spy-env",
    requirements: "py-spy==0.4.3",
    about: "py-spy (3 MB, some seconds)",
};

/// Returns the interpreter of the environment with Ray, after making that if need be. `say` is
/// told what is going on.
pub async fn python(target: &Path, say: &(dyn Fn(&str) + Sync)) -> anyhow::Result<PathBuf> {
    RAY.python(target, say).await
}

impl Environment {
    /// Returns the environment's interpreter, after making the environment if need be.
    pub async fn python(
        &self,
        target: &Path,
        say: &(dyn Fn(&str) + Sync),
    ) -> anyhow::Result<PathBuf> {
        let directory = target.join(self.name);
        let python = directory.join("bin/python");
        std::fs::create_dir_all(target)?;
        // Tests run in parallel: the first makes it, the others wait.
        let lock = format!("{}.lock", self.name);
        let lock = File::create(target.join(&lock)).context(lock)?;
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        // Its programs name their interpreter by its path: an environment that was moved starts none.
        let wanted = format!("# in {}\n{}", directory.display(), self.requirements);
        let stamp = directory.join("requirements.txt");
        let installed = std::fs::read_to_string(&stamp);
        if installed.is_ok_and(|have| have == wanted) && python.exists() {
            return Ok(python);
        }
        let system = system_python().await?;
        say("making a private Python environment");
        let mut venv = Command::new(&system);
        venv.args(["-m", "venv", "--clear"]).arg(&directory);
        run(&mut venv).await.context(
            "cannot make a Python environment: the venv module is needed (Debian: apt-get \
             install python3-venv)",
        )?;
        say(&format!("installing {} into it", self.about));
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        let requirements = directory.join("wanted.txt");
        std::fs::write(&requirements, wanted)?;
        pip.arg("-r").arg(&requirements);
        let unreachable = format!("cannot install {}: is the package index reachable?", self.about);
        run(&mut pip).await.context(unreachable)?;
        std::fs::rename(&requirements, &stamp)?;
        Ok(python)
    }
}

/// The newest Python of the system that has wheels of this Ray: 3.10 to 3.14.
async fn system_python() -> anyhow::Result<PathBuf> {
    let check = "import sys; sys.exit(0 if (3, 10) <= sys.version_info[:2] <= (3, 14) else 1)";
    for name in ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10"] {
        let mut command = Command::new(name);
        command.args(["-c", check]).stdin(Stdio::null()).stderr(Stdio::null());
        if command.status().await.is_ok_and(|status| status.success()) {
            return Ok(name.into());
        }
    }
    bail!(
        "Python 3.10 to 3.14 is needed for Ray and was not found in PATH (Debian: apt-get install \
         python3 python3-venv)"
    )
}

async fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<&str> = text.lines().rev().take(5).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    bail!("{}", tail.join("\n"))
}
