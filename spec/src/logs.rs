//! The field `logs`: which further files are the job's logs, and how much of all is kept.

use std::ops::RangeInclusive;

use crate::checks::{MAX_PATH_BYTES, check_form, check_range, check_text};
use crate::error::{Code, Problems};
use crate::reader::Reader;
use crate::tree::join;
use crate::units;

/// Most patterns of one job.
const MAX_PATTERNS: usize = 32;
const MAX_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 50;
const PATTERN_FORM: &str = "a path below `workdir` or the job's directory without `..`, such as \
                            `outputs/**/*.log`; `*` and `?` stand for a part of one name, `**` \
                            for any directories";

/// What is kept as the job's logs beside its output and those of Ray.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logs {
    /// Patterns of further files, below the job's working directory or its directory.
    pub files: Vec<String>,
    /// Most bytes of all its logs; `None` for the default of the nodes.
    pub max_bytes: Option<u64>,
}

impl Logs {
    pub(crate) fn read(section: &Reader<'_>, out: &mut Problems) -> Self {
        let files = section.get("files").and_then(|cell| cell.texts(out)).unwrap_or_default();
        Logs { files, max_bytes: section.get("max_bytes").and_then(|cell| cell.size(out)) }
    }

    pub(crate) fn check(&self, guest: bool, out: &mut Problems) {
        if guest && *self != Logs::default() {
            let message =
                "a job on a cluster has the log of its Ray driver, and the cluster the rest";
            let hint = "leave it out, or leave out `cluster` for a gang of its own".to_owned();
            out.key(Code::CONFLICT, "/logs", message, Some(hint));
        }
        if self.files.len() > MAX_PATTERNS {
            let message =
                format!("`logs.files` has {} items; at most {MAX_PATTERNS}", self.files.len());
            out.value(Code::TOO_LARGE, "/logs/files", message, None);
        }
        for (index, pattern) in self.files.iter().enumerate() {
            let pointer = join("/logs/files", &index.to_string());
            check_text(&pointer, pattern, MAX_PATH_BYTES, out);
            let mut parts = pattern.split('/');
            let good = parts.all(|part| !part.is_empty() && part != ".." && part != ".");
            check_form(&pointer, pattern, good, PATTERN_FORM, out);
        }
        if let Some(bytes) = &self.max_bytes {
            check_range("/logs/max_bytes", bytes, &MAX_BYTES, |b| units::write_size(*b), out);
        }
    }
}
