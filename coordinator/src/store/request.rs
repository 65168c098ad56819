//! A job's request comes back from its stored spec: the spec is the record of truth.

use crate::core::job::JobRequest;
use crate::paths::ResolvedPaths;
use crate::request::{Owner, job_request};

/// Parses the stored canonical spec. The directories were resolved at submit and stay as they were.
pub fn restore(
    spec_json: &str,
    owner: Owner<'_>,
    submit_command: String,
    paths: ResolvedPaths,
) -> Result<JobRequest, String> {
    let spec = gangline_spec::parse(spec_json).map_err(|e| e.to_string())?;
    Ok(job_request(&spec, owner, paths, submit_command))
}
