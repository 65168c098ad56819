//! Builds the three programs and the stand-in NVML library, by one cargo call.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Where the built things are.
#[derive(Debug, Clone)]
pub struct Binaries {
    pub coordinator: PathBuf,
    pub agent: PathBuf,
    pub cli: PathBuf,
    pub nvml_sim: PathBuf,
    /// The cargo target directory, which also holds the Ray environment.
    pub target: PathBuf,
}

/// Variables that cargo sets for the program that it runs.
const OF_THE_PACKAGE: [&str; 5] =
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];

/// The workspace's root directory.
pub fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Builds what is not fresh, in the profile of the running program; once per process. `quiet` hides
/// cargo's progress. Dropping the future ends the build.
pub async fn binaries(quiet: bool) -> anyhow::Result<Binaries> {
    static BUILT: OnceCell<Binaries> = OnceCell::const_new();
    BUILT.get_or_try_init(|| build(quiet)).await.cloned()
}

async fn build(quiet: bool) -> anyhow::Result<Binaries> {
    let here = std::env::current_exe().context("own path")?;
    // target/<profile>/[deps/]program
    let profile_directory = here
        .ancestors()
        .skip(1)
        .find(|path| path.file_name().is_some_and(|name| name != "deps"))
        .context("the program does not run from a cargo target directory")?
        .to_owned();
    let target = profile_directory.parent().context("target directory")?.to_owned();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace())
        .args(["build", "--bins", "--lib"])
        .args(["-p", "gangline-coordinator", "-p", "gangline-agent", "-p", "gangline"])
        .args(["-p", "gangline-nvml-sim", "--target-dir"])
        .arg(&target)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if quiet {
        cargo.arg("--quiet");
    }
    // What the outer cargo says of this package would make build scripts run again, each time.
    for (name, _) in std::env::vars_os() {
        let outer = name
            .to_str()
            .is_some_and(|name| OF_THE_PACKAGE.iter().any(|prefix| name.starts_with(prefix)));
        if outer {
            cargo.env_remove(name);
        }
    }
    if profile_directory.file_name().is_some_and(|name| name == "release") {
        cargo.arg("--release");
    }
    let status = cargo.status().await.context("cargo is needed to build the programs")?;
    if !status.success() {
        bail!("the programs do not build; run `cargo build` to see why");
    }
    let binaries = Binaries {
        coordinator: profile_directory.join("gangline-coordinator"),
        agent: profile_directory.join("gangline-agent"),
        cli: profile_directory.join("gangline"),
        nvml_sim: profile_directory.join("libgangline_nvml_sim.so"),
        target,
    };
    for path in [&binaries.coordinator, &binaries.agent, &binaries.cli, &binaries.nvml_sim] {
        if !path.exists() {
            bail!("{} was not built", path.display());
        }
    }
    Ok(binaries)
}
