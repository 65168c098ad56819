//! What of a member's logs is followed beside its own output and those of its Ray drivers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gangline_common::ids::MemberId;
use gangline_common::wire::v1::Launcher;

use super::births::Nursery;
use super::spool::Spool;
use super::{MemberPlan, command, files};
use crate::tail::files::FilesScope;
use crate::tail::member::Scope;
use crate::tail::place::Place;

/// Parts of a job's directory that Gangline itself writes.
const OUR_PARTS: [&str; 2] = ["logs", "config"];

pub(super) fn of(plan: &MemberPlan, spool: &Spool, nursery: &Arc<Nursery>) -> Scope {
    let assignment = &plan.assignment;
    let starts_ray = assignment.launcher == Launcher::Ray;
    let patterns = assignment.log_files.clone();
    let roots = roots(plan, spool);
    let directory = assignment.job_directory.as_ref().map(Path::new);
    let ours = directory.map(|directory| OUR_PARTS.map(|part| directory.join(part)));
    let place = Place::Files {
        roots: roots.clone(),
        except: ours.into_iter().flatten().collect(),
        patterns: patterns.clone(),
        since_s: 0,
    };
    let files = FilesScope { place, run_as: assignment.run_as, nursery: Arc::clone(nursery) };
    Scope {
        spool: spool.directory.clone(),
        ray: starts_ray.then(|| spool.places.temp.clone()),
        owner: assignment.run_as.map(|(uid, _)| uid),
        files: (!patterns.is_empty() && !roots.is_empty()).then_some(files),
        budget: assignment.log_bytes,
    }
}

/// Where files of the job are looked for: what all nodes share is rank 0's to look at.
fn roots(plan: &MemberPlan, spool: &Spool) -> Vec<PathBuf> {
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
