//! Which files of an attempt a caller means, and where they are.

use gangline_common::ids::{MemberId, MemberKey};
use gangline_common::wire::scene::is_scene;

use super::cursor::MAX_FILES;
use super::{Source, Wanted, check_written, rest, source};
use crate::api::error::{ApiError, BAD_PARAMETER, quoted};
use crate::board::{Board, JobSnapshot};
use crate::core::job::{Attempt, Job};
use crate::ingest::logs::{Logs, Stored};

/// Logs of Ray's own programs, which `all` leaves out: they are for those who look for a fault of Ray.
const OF_RAY: [&str; 4] = ["raylet", "gcs_server", "dashboard", "runtime_env"];

/// Whose files, in the words of a request.
#[derive(Debug, Default, Clone)]
pub(super) struct Choice {
    pub member: Option<MemberId>,
    /// Id or name.
    pub node: Option<String>,
    /// A name, or the beginning of names before a `*`.
    pub file: Option<String>,
    pub all: bool,
}

/// A file of an attempt.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: MemberKey,
    pub stored: Stored,
    /// Name of the node; `None` when the member has gone on to another one since.
    pub node: Option<String>,
    /// Nothing more comes to it.
    pub ended: bool,
}

/// Every file of an attempt of a job, in order. Blocking.
pub(super) fn entries(
    board: &Board,
    logs: &Logs,
    snapshot: &JobSnapshot,
    attempt: &Attempt,
) -> Vec<Entry> {
    let job = &snapshot.job;
    let gang = snapshot.gang.clone().filter(|gang| gang.id == attempt.gang);
    let gang = gang.or_else(|| board.gang(&attempt.gang));
    let gang = gang.as_deref();
    let own = source(job, attempt, &Wanted::default());
    let entry = |stored: Stored| {
        let member = stored.member;
        let placed = gang.filter(|gang| gang.epoch == attempt.epoch);
        let placed = placed.and_then(|gang| gang.members.get(&member));
        let node = placed.map(|member| {
            let found = board.node(member.node.as_str());
            found.map_or_else(|| member.node.to_string(), |found| found.node.name.clone())
        });
        let wanted = Wanted {
            member: Some(member).filter(|_| attempt.guest.is_none()),
            attempt: Some(attempt.number),
            file: None,
        };
        let ended = rest(board, job, attempt, snapshot.gang.as_deref(), &wanted);
        let ended = ended.complete_at(stored.bytes).is_some();
        let key = MemberKey { gang: attempt.gang.clone(), epoch: attempt.epoch, member };
        Entry { key, stored, node, ended }
    };
    let stored = logs.stored(&attempt.gang, attempt.epoch).into_iter();
    let all = stored.filter(|stored| !is_scene(&stored.file)).map(entry);
    // On a cluster a job has one file; the others are the cluster's and its other jobs'.
    let visible = |entry: &Entry| attempt.guest.is_none() || is(entry, &own);
    all.filter(visible).collect()
}

fn is(entry: &Entry, source: &Source) -> bool {
    entry.key == source.key && entry.stored.file == source.file
}

impl Choice {
    /// Keeps the entries that are meant.
    ///
    /// # Errors
    /// There are too many for one read.
    pub fn of(
        &self,
        snapshot: &JobSnapshot,
        attempt: &Attempt,
        mut entries: Vec<Entry>,
    ) -> Result<Vec<Entry>, ApiError> {
        let default = Wanted { member: self.member, attempt: None, file: None };
        let default = source(&snapshot.job, attempt, &default);
        entries.retain(|entry| {
            let of_member = self.member.is_none_or(|member| entry.key.member == member);
            let on_node = self.node.as_ref().is_none_or(|node| entry.node.as_ref() == Some(node));
            let named = match &self.file {
                Some(file) => fits(file, &entry.stored.file),
                None if self.all || self.node.is_some() => !is_of_ray(&entry.stored.file),
                None => is(entry, &default),
            };
            of_member && on_node && named
        });
        if entries.len() > MAX_FILES {
            let detail = format!("{} files fit; one read takes {MAX_FILES}", entries.len());
            return Err(ApiError::new(BAD_PARAMETER, detail).hint("name a rank, a node or a file"));
        }
        Ok(entries)
    }

    /// Checks that a member that is meant has written the file, when one is named in full.
    ///
    /// # Errors
    /// None has.
    pub fn check_file(
        &self,
        job: &Job,
        attempt: &Attempt,
        entries: &[Entry],
    ) -> Result<(), ApiError> {
        let Some(file) = self.file.as_ref().filter(|file| !file.ends_with('*')) else {
            return Ok(());
        };
        let of_member =
            |entry: &&Entry| self.member.is_none_or(|member| entry.key.member == member);
        if entries.iter().filter(of_member).any(|entry| entry.stored.file == *file) {
            return Ok(());
        }
        check_written(job, attempt, file)
    }

    /// Checks that the node is one of the attempt's.
    ///
    /// # Errors
    /// It is not.
    pub fn check_node(&self, entries: &[Entry]) -> Result<(), ApiError> {
        let Some(node) = &self.node else { return Ok(()) };
        if entries.is_empty() || entries.iter().any(|entry| entry.node.as_ref() == Some(node)) {
            return Ok(());
        }
        Err(ApiError::new(
            BAD_PARAMETER,
            format!("no member of this attempt is on {}", quoted(node)),
        )
        .hint("`gangline show JOB` names its nodes; an older attempt may have had others"))
    }
}

fn fits(wanted: &str, file: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(beginning) => file.starts_with(beginning),
        None => file == wanted,
    }
}

fn is_of_ray(file: &str) -> bool {
    OF_RAY.iter().any(|name| file.starts_with(name))
}
