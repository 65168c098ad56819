//! Dumps of NCCL's flight recorder, which PyTorch writes where the job's environment says.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use gangline_common::redact::Redactor;

use super::Failure;
use crate::supervisor::files::open_regular;

/// The variable of PyTorch: how the names of the files begin.
const VARIABLE: &str = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE";
/// Most files, and the size up to which one is kept whole, in bytes.
const FILES: usize = 16;
const FILE_BYTES: u64 = 128 << 10;
/// Entries of the directory that are looked at.
const ENTRIES: usize = 10_000;

/// Where the job has its dumps written.
pub fn prefix(environment: &[(String, String)]) -> Option<PathBuf> {
    let (_, value) = environment.iter().rev().find(|(name, _)| name == VARIABLE)?;
    (!value.is_empty()).then(|| PathBuf::from(value))
}

/// Name and size of every dump, and the content of those that are small, in base64.
pub fn read(prefix: &Path, redactor: &Redactor) -> Result<String, Failure> {
    let (Some(directory), Some(name)) = (prefix.parent(), prefix.file_name()) else {
        return Err(format!("{} names no file", prefix.display()));
    };
    let entries = std::fs::read_dir(directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?
        .flatten()
        .take(ENTRIES);
    let ours =
        |found: &std::ffi::OsStr| found.as_encoded_bytes().starts_with(name.as_encoded_bytes());
    let mut paths: Vec<PathBuf> =
        entries.filter(|entry| ours(&entry.file_name())).map(|entry| entry.path()).collect();
    paths.sort();
    let mut text = String::new();
    for path in paths.iter().take(FILES) {
        let shown = path.display();
        let Ok(file) = open_regular(path) else { continue };
        let length = file.metadata().map(|metadata| metadata.len()).unwrap_or_default();
        let _ = writeln!(text, "== {shown}: {length} bytes ==");
        let mut bytes = Vec::new();
        if length > FILE_BYTES {
            let _ = writeln!(text, "(too large to be kept here)");
        } else if file.take(FILE_BYTES).read_to_end(&mut bytes).is_ok() {
            let _ = writeln!(text, "{}", BASE64.encode(&redactor.clean_bytes(&bytes)));
        }
    }
    if text.is_empty() {
        Err(format!("no file begins with {}", prefix.display()))
    } else {
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_are_kept_without_secrets() {
        let root = tempfile::tempdir().unwrap();
        let prefix = root.path().join("trace_rank_");
        std::fs::write(root.path().join("trace_rank_3"), b"\x80pickle canary-value-81").unwrap();
        std::fs::write(root.path().join("other"), b"no").unwrap();
        let redactor = Redactor::new(["canary-value-81"]).unwrap();
        let text = read(&prefix, &redactor).unwrap();
        let body = BASE64.decode(text.lines().nth(1).unwrap().as_bytes()).unwrap();
        assert_eq!(body, b"\x80pickle [secret]");
        assert_eq!(text.lines().count(), 2);
        assert!(read(&root.path().join("none_"), &redactor).is_err());
    }
}
