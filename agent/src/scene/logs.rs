//! The ends of logs.

use std::fmt::Write;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gangline_common::redact::{END_BYTES, Redactor};

use crate::supervisor::files::open_regular;

/// Most files of Ray's that are read: those that were written last.
const RAY_FILES: usize = 24;
/// Entries of Ray's directory that are looked at.
const RAY_ENTRIES: usize = 4000;
/// Most bytes of all of them together.
const ALL_BYTES: usize = 240 << 10;

/// The last lines of each log: first the member's own, then what Ray's services wrote last.
pub fn tails(files: &[(String, PathBuf)], ray: Option<&Path>, redactor: &Redactor) -> String {
    let mut text = String::new();
    let ray = ray.map(newest_of).unwrap_or_default();
    for (name, path) in files.iter().chain(&ray) {
        let tail = match tail(path, redactor) {
            Ok(tail) if tail.is_empty() => continue,
            Ok(tail) => tail,
            Err(error) => format!("(it cannot be read: {error})\n"),
        };
        if text.len() + tail.len() > ALL_BYTES {
            let _ = writeln!(text, "== {name} ==\n(left out: there is too much)");
            continue;
        }
        let _ = write!(text, "== {name} ==\n{tail}");
    }
    text
}

fn newest_of(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(RAY_ENTRIES);
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let metadata = entry.metadata().ok()?;
            let counts = metadata.is_file() && metadata.len() > 0 && is_shown(&name);
            counts.then(|| (metadata.modified().ok(), name, entry.path()))
        })
        .collect();
    found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    found.truncate(RAY_FILES);
    found.into_iter().map(|(_, name, path)| (format!("ray/{name}"), path)).collect()
}

/// Logs of Ray drivers are among the member's own; that of `runtime_env_agent` prints the variables
/// of jobs with their values.
fn is_shown(name: &str) -> bool {
    !["job-driver-", "runtime_env_agent"].iter().any(|start| name.starts_with(start))
}

fn tail(path: &Path, redactor: &Redactor) -> std::io::Result<String> {
    let mut file = open_regular(path)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(END_BYTES as u64);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(END_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(redactor.last_lines(&bytes, from == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_without_secrets_or_halves_of_them() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("output.log");
        let secret = "canary-value-81";
        let mut text = format!("{secret} ").repeat(6000);
        text.push('\n');
        for n in 0..300 {
            text.push_str(&format!("line {n} {secret}\r"));
        }
        fs::write(&path, &text).unwrap();
        let redactor = Redactor::new([secret]).unwrap();
        let tail = tail(&path, &redactor).unwrap();
        assert_eq!(tail.lines().count(), 200);
        assert!(tail.starts_with("line 100 [secret]\n") && tail.ends_with("line 299 [secret]\n"));
        let one_line = root.path().join("one");
        fs::write(&one_line, secret.repeat(9000)).unwrap();
        assert_eq!(
            super::tail(&one_line, &redactor).unwrap(),
            "(its last line has over 65536 bytes)\n"
        );
    }

    #[test]
    fn what_ray_wrote_last_comes_after_the_members_own() {
        let root = tempfile::tempdir().unwrap();
        let (own, ray) = (root.path().join("output.log"), root.path().join("logs"));
        fs::create_dir(&ray).unwrap();
        fs::write(&own, "mine\n").unwrap();
        fs::write(ray.join("raylet.err"), "dead\n").unwrap();
        fs::write(ray.join("empty"), "").unwrap();
        fs::write(ray.join("job-driver-x.log"), "again\n").unwrap();
        fs::write(ray.join("runtime_env_agent.log"), "DBX: value-of-dbx-77\n").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", ray.join("link.log")).unwrap();
        let redactor = Redactor::new([]).unwrap();
        let text = tails(&[("output".to_owned(), own)], Some(&ray), &redactor);
        assert_eq!(text, "== output ==\nmine\n== ray/raylet.err ==\ndead\n");
    }
}
