//! What of a member's logs is followed beside its own output and those of its Ray drivers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::MemberId;
use gangline_common::wire::v1::Launcher;

use super::births::Nursery;
use super::spool::Spool;
use super::{MemberPlan, command, files};
use crate::tail::files::{FilesScope, NAMED_PATIENCE, OTHER_DELAY, OTHER_PATIENCE};
use crate::tail::member::Scope;
use crate::tail::place::Place;

/// Parts of a job's directory that Gangline itself writes.
const OUR_PARTS: [&str; 2] = ["logs", "config"];
/// Where Hydra writes logs when a program does not say otherwise: by day and time, and of several runs by
/// their number.
const HYDRA: [&str; 2] = ["outputs/*/*/*.log", "multirun/*/*/*/*.log"];
/// Names the file that verl's file logger writes.
const METRICS_VARIABLE: &str = "VERL_FILE_LOGGER_PATH";

pub(super) fn of(plan: &MemberPlan, spool: &Spool, nursery: &Arc<Nursery>) -> Scope {
    let assignment = &plan.assignment;
    let starts_ray = assignment.launcher == Launcher::Ray;
    let mut patterns = assignment.log_files.clone();
    let roots = roots(plan, spool);
    let directory = assignment.job_directory.as_ref().map(Path::new);
    let ours = directory.map(|directory| OUR_PARTS.map(|part| directory.join(part)));
    let also: Vec<PathBuf> = metrics_file(plan, &roots).into_iter().collect();
    let has_named = !patterns.is_empty();
    let follows = has_named || !also.is_empty();
    // A directory that the spec names may be that of other jobs too.
    if assignment.workdir.is_none() {
        patterns.extend(HYDRA.map(str::to_owned));
    }
    let place = Place::Files {
        roots: roots.clone(),
        except: ours.into_iter().flatten().collect(),
        patterns,
        also,
        since_s: 0,
    };
    let files = FilesScope {
        place,
        run_as: assignment.run_as,
        nursery: Arc::clone(nursery),
        delay: if has_named { Duration::ZERO } else { OTHER_DELAY },
        patience: if has_named { NAMED_PATIENCE } else { OTHER_PATIENCE },
    };
    Scope {
        spool: spool.directory.clone(),
        ray: starts_ray.then(|| spool.places.temp.clone()),
        owner: assignment.run_as.map(|(uid, _)| uid),
        files: (follows && !roots.is_empty()).then_some(files),
        budget: assignment.log_bytes,
    }
}

/// The file of verl's metrics, where rank 0 can look for it: it lies in a directory of ours, and is read
/// for steps.
fn metrics_file(plan: &MemberPlan, roots: &[PathBuf]) -> Option<PathBuf> {
    let mut set = plan.assignment.env.iter().rev();
    let (_, path) = set.find(|(name, _)| name == METRICS_VARIABLE)?;
    let path = PathBuf::from(path);
    let inside = roots.iter().any(|root| path.starts_with(root));
    (plan.key.member == MemberId::Rank(0) && inside).then_some(path)
}

/// Where files of the job are looked for: what all nodes share is rank 0's to look at.
pub(super) fn roots(plan: &MemberPlan, spool: &Spool) -> Vec<PathBuf> {
    let MemberId::Rank(rank) = plan.key.member else { return Vec::new() };
    let shared = files::shared_root(&plan.assignment);
    let cwd = command::working_directory(plan, &spool.places);
    let directory = plan.assignment.job_directory.as_ref().map(PathBuf::from);
    let mut roots: Vec<PathBuf> = [Some(cwd), directory].into_iter().flatten().collect();
    let on_all_nodes =
        |root: &PathBuf| shared.as_ref().is_some_and(|shared| root.starts_with(shared));
    roots.retain(|root| rank == 0 || !on_all_nodes(root));
    roots.dedup();
    roots
}
