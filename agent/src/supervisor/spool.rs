//! One member's directories: its spool in the state dir and its temp dir.
//!
//! The spool holds what must survive a restart of the agent; the temp dir belongs to Ray, is as
//! short as Ray needs it, and goes as soon as the member has ended. Everything here blocks.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use gangline_common::ids::MemberKey;
use gangline_common::redact::Redactor;
use gangline_common::wire::scene::{HUNG_SCENE_FILE, SCENE_FILE};

use super::command::Places;
use super::files::{LogCopy, open_regular};
use super::process::ProcessId;
use super::{MemberPlan, SupervisorConfig};
use crate::code;
use crate::shim::record::{ExitRecord, Launch, RecordError};
use crate::shim::{EXIT_FILE, LAUNCH_FILE, OUTPUT_FILE, PID_FILE};
use crate::tail::place::session_directory;

/// The scene of the member, once there is one.
const SCENE: &str = "scene.json";
const HUNG_SCENE: &str = "scene-hung.json";
const TOKEN_FILE: &str = "auth_token";
/// Most logs of Ray drivers that are kept per member.
const MAX_DRIVER_LOGS: usize = 128;
/// How much of the end of an output is searched for its last lines.
const TAIL_BYTES: u64 = 64 << 10;
/// Bounds of what a report carries of an output.
const LAST_LINES: usize = 20;
const LAST_BYTES: usize = 4 << 10;

#[derive(Debug, Clone)]
pub struct Spool {
    pub directory: PathBuf,
    pub places: Places,
}

impl Spool {
    pub fn of(plan: &MemberPlan, config: &SupervisorConfig) -> Self {
        Self::locate(&plan.key, config, plan.assignment.run_as.is_some())
    }

    /// Where a member's directories are, whether they exist or not.
    pub fn locate(key: &MemberKey, config: &SupervisorConfig, other_user: bool) -> Self {
        let name = key.directory_name();
        let directory = config.state_dir.join("members").join(&name);
        let temp = config.temp_root.join(&name);
        // Another user cannot look into the state dir, so its token lies in the temp dir.
        let token = if other_user { &temp } else { &directory }.join(TOKEN_FILE);
        let code = config.temp_root.join(format!("{name}.code"));
        Spool { directory, places: Places { temp, token, code } }
    }

    pub fn exists(&self) -> bool {
        self.directory.join(LAUNCH_FILE).exists()
    }

    /// Makes both directories and writes what the shim and Ray read.
    pub fn create(&self, plan: &MemberPlan, launch: &Launch) -> io::Result<()> {
        remove_tree(&self.places.temp)?;
        remove_tree(&self.directory)?;
        if let Some(parent) = self.directory.parent() {
            private_directory().recursive(true).create(parent)?;
        }
        private_directory().create(&self.directory)?;
        self.create_temp(plan.assignment.run_as)?;
        if !plan.assignment.auth_token.0.is_empty() {
            write_private(&self.places.token, plan.assignment.auth_token.0.as_bytes())?;
            own(&self.places.token, plan.assignment.run_as)?;
        }
        write_private(&self.directory.join(LAUNCH_FILE), &launch.to_json()?)
    }

    /// Makes the directory for code that only this member has.
    pub fn create_code(&self, run_as: Option<(u32, u32)>) -> io::Result<()> {
        self.create_temp_root()?;
        remove_tree(&self.places.code)?;
        private_directory().create(&self.places.code)?;
        own(&self.places.code, run_as)
    }

    /// Makes the parent of every temp dir.
    fn create_temp_root(&self) -> io::Result<()> {
        if let Some(root) = self.places.temp.parent() {
            // Others may pass through, to a directory of their own, but not look around.
            DirBuilder::new().recursive(true).mode(0o711).create(root)?;
            let found = fs::symlink_metadata(root)?;
            let ours = found.uid() == rustix::process::geteuid().as_raw();
            // In a world-writable /tmp, somebody else may have made the root first.
            if !found.is_dir() || !ours || found.mode() & 0o022 != 0 {
                let problem = format!("{} is not a private directory of ours", root.display());
                return Err(io::Error::new(ErrorKind::PermissionDenied, problem));
            }
        }
        Ok(())
    }

    fn create_temp(&self, run_as: Option<(u32, u32)>) -> io::Result<()> {
        self.create_temp_root()?;
        let temp = &self.places.temp;
        private_directory().create(temp)?;
        own(temp, run_as)
    }

    pub fn exit_record(&self) -> Option<ExitRecord> {
        let bytes = fs::read(self.directory.join(EXIT_FILE)).ok()?;
        ExitRecord::from_json(&bytes)
            .inspect_err(
                |error| tracing::warn!(spool = %self.directory.display(), %error, "exit record"),
            )
            .ok()
    }

    /// The shim, as it named itself when it started.
    pub fn shim(&self) -> Option<ProcessId> {
        let text = fs::read_to_string(self.directory.join(PID_FILE)).ok()?;
        let (pid, start_time) = text.strip_suffix('\n')?.split_once(' ')?;
        Some(ProcessId { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? })
    }

    pub fn output(&self) -> PathBuf {
        self.directory.join(OUTPUT_FILE)
    }

    pub fn scene(&self) -> PathBuf {
        self.directory.join(SCENE)
    }

    /// How it stood when it hung.
    pub fn hung_scene(&self) -> PathBuf {
        self.directory.join(HUNG_SCENE)
    }

    /// Where Ray's services log while the member runs.
    pub fn ray_logs(&self) -> Option<PathBuf> {
        Some(self.session_directory()?.join("logs"))
    }

    /// Logs of Ray drivers: in Ray's temp dir while the member runs, in the spool afterwards.
    /// Pairs of log file name (`driver-<operation>`) and path, in the order of names.
    pub fn driver_logs(&self) -> Vec<(String, PathBuf)> {
        let mut logs = logs_in(&self.directory, "driver-");
        if let Some(session) = self.session_directory() {
            for (name, path) in logs_in(&session.join("logs"), "job-driver-") {
                // Once in the spool, the copy there is the complete one.
                if !logs.iter().any(|(kept, _)| *kept == name) {
                    logs.push((name, path));
                }
            }
        }
        logs.sort();
        logs.truncate(MAX_DRIVER_LOGS);
        logs
    }

    /// The log of one Ray driver that ran on this member.
    pub fn driver_log(&self, operation: &str) -> Option<PathBuf> {
        let path =
            self.session_directory()?.join("logs").join(format!("job-driver-{operation}.log"));
        open_regular(&path).ok().map(|_| path)
    }

    /// Removes the oldest logs of Ray drivers but `most`, those of the operations in `kept` apart: on
    /// a standing cluster they would pile up.
    pub fn prune_driver_logs(&self, kept: &[String], most: usize) {
        let Some(session) = self.session_directory() else { return };
        let Ok(entries) = fs::read_dir(session.join("logs")) else { return };
        let mut old: Vec<(std::time::SystemTime, PathBuf)> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let operation = name.to_str()?.strip_prefix("job-driver-")?.strip_suffix(".log")?;
                if kept.iter().any(|kept| kept == operation) {
                    return None;
                }
                Some((entry.metadata().ok()?.modified().ok()?, entry.path()))
            })
            .collect();
        old.sort();
        old.truncate(old.len().saturating_sub(most));
        for (_, path) in old {
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "an old driver log stays");
            }
        }
    }

    fn session_directory(&self) -> Option<PathBuf> {
        session_directory(&self.places.temp)
    }

    /// Name of Ray's session, by which the head's API is known to be our own.
    pub fn session_name(&self) -> Option<String> {
        self.session_directory()?.file_name()?.to_str().map(str::to_owned)
    }

    /// Moves the logs of Ray drivers into the spool. The writer must be gone.
    pub fn keep_driver_logs(&self) -> io::Result<()> {
        for (name, path) in self.driver_logs() {
            let kept = self.directory.join(format!("{name}.log"));
            if path == kept {
                continue;
            }
            // The name is only taken over when the whole content is there.
            let unfinished = self.directory.join(".driver.new");
            io::copy(&mut open_regular(&path)?, &mut create_private(&unfinished)?)?;
            fs::rename(&unfinished, &kept)?;
        }
        Ok(())
    }

    /// Removes the temp dir, and code that only this member had.
    pub fn remove_temp(&self) -> io::Result<()> {
        remove_tree(&self.places.code)?;
        remove_tree(&self.places.temp)
    }

    /// Removes every trace of the member.
    pub fn remove(&self) -> io::Result<()> {
        self.remove_temp()?;
        remove_tree(&self.directory)
    }

    /// The end of the output, for the cause: at most 20 lines and 4 KiB, without secrets. A line in
    /// which Ray says which of its processes died comes first when it is older than that.
    pub fn last_output(&self, secrets: &Redactor) -> String {
        let tail = match read_tail(&self.output()) {
            Ok(tail) => String::from_utf8_lossy(&tail).into_owned(),
            Err(_) => return String::new(), // nothing was ever started
        };
        last_lines(&secrets.clean(&without_colours(&tail)))
    }
}

/// Where the logs of a released spool go: it is asked when the assignment is long gone.
pub fn log_copy(directory: &Path) -> Result<Option<LogCopy>, RecordError> {
    let bytes = fs::read(directory.join(LAUNCH_FILE)).map_err(serde_json::Error::io)?;
    Ok(Launch::from_json(&bytes)?.log_copy)
}

/// Every log in a spool, by log file name.
pub fn spooled_logs(directory: &Path) -> Vec<(String, PathBuf)> {
    let mut logs = vec![("output".to_owned(), directory.join(OUTPUT_FILE))];
    logs.extend(logs_in(directory, "driver-"));
    logs.push((SCENE_FILE.to_owned(), directory.join(SCENE)));
    logs.push((HUNG_SCENE_FILE.to_owned(), directory.join(HUNG_SCENE)));
    logs
}

fn logs_in(directory: &Path, prefix: &str) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut logs: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let operation = name.to_str()?.strip_prefix(prefix)?.strip_suffix(".log")?;
            let plain = entry.file_type().is_ok_and(|kind| kind.is_file());
            (plain && !operation.is_empty()).then(|| (format!("driver-{operation}"), entry.path()))
        })
        .take(MAX_DRIVER_LOGS)
        .collect();
    logs.sort();
    logs
}

fn read_tail(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail)?;
    Ok(tail)
}

/// Drops terminal sequences (`ESC [ ... letter`), which Ray writes even into a file.
fn without_colours(text: &str) -> String {
    let mut pieces = text.split("\u{1b}[");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find(|c: char| matches!(c, '@'..='~'));
        plain.push_str(end.and_then(|end| piece.get(end + 1..)).unwrap_or_default());
    }
    plain
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(LAST_LINES);
    let (earlier, last) = lines.split_at(from);
    let reason = earlier.iter().rev().find(|line| line.contains("[exit code="));
    let mut kept: Vec<&str> = reason.into_iter().map(|line| line.trim()).collect();
    kept.extend(last);
    let joined = kept.join("\n");
    let mut start = joined.len().saturating_sub(LAST_BYTES);
    while !joined.is_char_boundary(start) {
        start += 1;
    }
    joined.get(start..).unwrap_or_default().to_owned()
}

fn private_directory() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_private(path)?.write_all(bytes)
}

fn own(path: &Path, run_as: Option<(u32, u32)>) -> io::Result<()> {
    match run_as {
        Some((uid, gid)) => chown(path, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

fn remove_tree(path: &Path) -> io::Result<()> {
    // The code of a job has directories that are not even for their owner to write into.
    match code::remove_tree(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_kept_in_front_of_the_last_lines() {
        let noise: Vec<String> = (0..40).map(|n| format!("line {n}")).collect();
        let text = format!(
            "Some Ray subprocesses exited unexpectedly:\n  raylet [exit code=-9]\n{}\n",
            noise.join("\n")
        );
        let kept = last_lines(&text);
        assert!(kept.starts_with("raylet [exit code=-9]\nline 20\n"), "{kept}");
        assert!(kept.ends_with("line 39"));
        assert_eq!(last_lines("a\nb\n"), "a\nb");
        assert_eq!(last_lines(""), "");
    }

    #[test]
    fn colours_are_dropped() {
        let coloured = "a \u{1b}[31m\u{1b}[1mraylet\u{1b}[22m\u{1b}[0m [exit code=-9]\u{1b}[0m\n";
        assert_eq!(without_colours(coloured), "a raylet [exit code=-9]\n");
        assert_eq!(without_colours("cut \u{1b}[3"), "cut ");
        assert_eq!(without_colours("ü\u{1b}[mü"), "üü");
    }

    #[test]
    fn a_report_is_bounded_in_bytes() {
        let kept = last_lines(&"ü".repeat(40_000));
        assert_eq!(kept.len(), LAST_BYTES);
        assert!(kept.chars().all(|c| c == 'ü'));
    }

    #[test]
    fn driver_logs_move_from_the_session_into_the_spool() {
        let root = tempfile::tempdir().unwrap();
        let (directory, temp) = (root.path().join("spool"), root.path().join("temp"));
        let session = temp.join("session_1");
        fs::create_dir_all(session.join("logs")).unwrap();
        fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink(&session, temp.join("session_latest")).unwrap();
        fs::write(session.join("logs/job-driver-j-1.log"), "step 1\n").unwrap();
        fs::write(session.join("logs/raylet.out"), "noise").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", session.join("logs/job-driver-x.log")).unwrap();
        let code = root.path().join("code");
        let places = Places { temp, token: directory.join(TOKEN_FILE), code };
        let spool = Spool { directory: directory.clone(), places };

        let name = "driver-j-1".to_owned();
        let running = spool.driver_logs();
        assert_eq!(running, [(name.clone(), session.join("logs/job-driver-j-1.log"))]);
        assert_eq!(spool.session_name().as_deref(), Some("session_1"));
        spool.keep_driver_logs().unwrap();
        spool.keep_driver_logs().unwrap();
        spool.remove_temp().unwrap();
        assert_eq!(spool.driver_logs(), [(name, directory.join("driver-j-1.log"))]);
        assert_eq!(fs::read_to_string(directory.join("driver-j-1.log")).unwrap(), "step 1\n");
    }

    #[test]
    fn a_link_out_of_the_temp_dir_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = root.path().join("other");
        fs::create_dir_all(elsewhere.join("logs")).unwrap();
        fs::write(elsewhere.join("logs/job-driver-a.log"), "secret").unwrap();
        let temp = root.path().join("temp");
        fs::create_dir(&temp).unwrap();
        std::os::unix::fs::symlink(&elsewhere, temp.join("session_latest")).unwrap();
        let code = root.path().join("code");
        let places = Places { temp, token: root.path().join(TOKEN_FILE), code };
        let spool = Spool { directory: root.path().join("spool"), places };
        assert_eq!(spool.driver_logs(), []);
        assert_eq!(spool.session_name(), None);
    }
}
