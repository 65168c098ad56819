//! What the real-process tests share.
#![allow(dead_code, unused_imports, reason = "each test file uses its own part")]

pub mod disk;
pub mod endpoint;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use gangline_fleet::build::{Binaries, binaries};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
pub use gangline_fleet::training::{logged_steps, once, ray_python, steps, training, wait_steps};
use gangline_fleet::{hosts, training};

pub type TestResult = anyhow::Result<()>;

pub const SHORT: Duration = Duration::from_secs(30);
/// Ray starts in seconds on a quiet machine; this machine may not be quiet.
pub const RAY: Duration = Duration::from_secs(180);

pub async fn built() -> anyhow::Result<Binaries> {
    binaries(true).await
}

/// A coordinator and this many workers without GPUs, for command gangs.
pub async fn command_fleet(workers: u32) -> anyhow::Result<Fleet> {
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    for number in 0..workers {
        fleet.add_agent(AgentOptions::worker(&format!("w{number}"), 0)).await?;
    }
    Ok(fleet)
}

/// A coordinator, a head node without GPU and two workers with four GPUs each.
pub async fn ray_fleet() -> anyhow::Result<Fleet> {
    training::ray_fleet(built().await?).await
}

/// Writes a program that can be run.
pub fn write_program(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Whether a program is there and ends well with these words.
pub fn runs(program: &str, words: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Most memory that a process has had at any time, in KiB.
pub fn peak_kib(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    Ok(peak.split_whitespace().next().context("VmHWM")?.parse()?)
}

/// Whether hosts in namespaces can be made here; says so where they cannot.
pub fn has_namespaces() -> bool {
    let missing = hosts::available().err();
    if let Some(missing) = &missing {
        eprintln!("skipped: {missing}");
    }
    missing.is_none()
}

/// A command gang; `command` is a JSON array.
pub fn command(name: &str, nnodes: u32, command: &str) -> String {
    format!(
        "name: {name}\nresources: {{nnodes: {nnodes}}}\nlauncher: {{type: command}}\ncommand: \
         {command}\n"
    )
}
