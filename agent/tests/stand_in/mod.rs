//! The stand-in for NVIDIA's library, and its state file.
//!
//! The stand-in takes its file from the environment, so each scenario runs in a process of its own: a test
//! starts its program again with the variable set and only its own name to run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use gangline_agent::collectors::nvml::{NvmlCollector, NvmlError};

const STATE_FILE: &str = "GANGLINE_NVML_SIM";
const LIBRARY: &str = "GANGLINE_TEST_NVML_LIBRARY";
pub const A: &str = "GPU-5f1c2a10-0000-4000-8000-00000000000a";
pub const B: &str = "GPU-5f1c2a10-0000-4000-8000-00000000000b";

/// Builds the stand-in with the cargo that runs this test, into the same target directory.
fn build_library() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target directory");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "-p", "gangline-nvml-sim", "--message-format=json"])
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/nvml-sim/Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "the stand-in does not build");
    let messages = String::from_utf8(output.stdout).expect("JSON lines");
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "gangline_nvml_sim")
        .find_map(|message| message["filenames"][0].as_str().map(PathBuf::from))
        .expect("cargo names the library")
}

/// The files of one scenario.
pub struct Scene {
    pub state: PathBuf,
    library: PathBuf,
}

impl Scene {
    /// In the test's first process: runs the test again with the environment that the stand-in needs, checks
    /// that it passed, and returns `None`. In the second: the scene.
    pub fn enter(test: &str) -> Option<Self> {
        if let (Some(state), Some(library)) =
            (std::env::var_os(STATE_FILE), std::env::var_os(LIBRARY))
        {
            return Some(Self { state: state.into(), library: library.into() });
        }
        let state = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{test}-{}.toml", std::process::id()));
        let output = Command::new(std::env::current_exe().expect("own path"))
            .args([test, "--exact", "--nocapture"])
            .env(STATE_FILE, &state)
            .env(LIBRARY, build_library())
            .output()
            .expect("second process");
        // The scenario may have removed it.
        let _ = std::fs::remove_file(&state);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        None
    }

    /// Replaces the state file as its documentation asks for: by renaming a finished one.
    pub fn write(&self, text: &str) {
        let mut next: OsString = self.state.clone().into();
        next.push(".next");
        std::fs::write(&next, text).expect("state file");
        std::fs::rename(&next, &self.state).expect("state file");
    }

    pub fn open(&self, timeout: Duration) -> Result<NvmlCollector, NvmlError> {
        let opened = NvmlCollector::open(Some(self.library.clone()), timeout)?;
        Ok(opened.expect("a named library is never an absent one"))
    }
}
