//! Whether the ranks of an ended job have run as often as its end says. Pure, but for [`read`].
//!
//! Each rank writes a line when it starts: of how many ranks it is one. A shell makes the file first
//! and writes then, so one that a stop kills in between leaves a file without a line: it has not started.

use std::io;
use std::path::Path;

use super::history::End;

/// Most ranks of a job of a soak.
pub const MOST_RANKS: usize = 2;

/// The lines that each rank has written, one for each of its starts.
pub type Lines = [Vec<String>; MOST_RANKS];

/// What the ranks of a job have written into its checkpoint directory.
///
/// # Errors
/// A file is there and cannot be read.
pub fn read(directory: &Path) -> io::Result<Lines> {
    let mut ranks = Lines::default();
    for (rank, lines) in ranks.iter_mut().enumerate() {
        match std::fs::read_to_string(directory.join(rank.to_string())) {
            Ok(text) => *lines = text.lines().map(str::to_owned).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ranks)
}

/// What a job may have ended of.
#[derive(Debug, Clone, Copy, Default)]
pub struct Excuse {
    /// A client may have stopped it.
    pub stopped: bool,
    /// An agent was killed when it had written down that it begins a member, and before it had: nothing has
    /// run, and it says so. There are no retries yet.
    pub unstarted: bool,
}

/// What is wrong with the runs of a job that ended so.
///
/// All ranks of a job that succeeded have started once. A stop may come before any start, but no rank
/// of a stopped job has started twice: a soak breaks nothing that a second attempt is for. Whatever
/// else ends a job is wrong by itself.
pub fn wrong(end: End, excuse: Excuse, ranks: &Lines) -> Option<String> {
    match end {
        End::Succeeded => {}
        End::Cancelled if excuse.stopped => {}
        End::Failed if excuse.unstarted => {}
        End::Cancelled => return Some("it is cancelled, and nobody stopped it".to_owned()),
        End::Failed | End::Timeout => return Some(format!("it ended as {end:?}")),
    }
    let doubled = ranks.iter().enumerate().find(|(_, lines)| lines.len() > 1);
    if let Some((rank, lines)) = doubled {
        return Some(format!("rank {rank} has started {} times: {lines:?}", lines.len()));
    }
    let started: Vec<(usize, &String)> =
        ranks.iter().enumerate().filter_map(|(rank, lines)| Some((rank, lines.first()?))).collect();
    let wanted = match started.first() {
        Some((rank, line)) => match line.parse::<usize>() {
            Ok(wanted @ 1..=MOST_RANKS) => wanted,
            _ => return Some(format!("rank {rank} is one of {line:?}")),
        },
        None if end == End::Succeeded => return Some("it succeeded, and nothing ran".to_owned()),
        None => return None,
    };
    let other = |(rank, line): &&(usize, &String)| **line != wanted.to_string() || *rank >= wanted;
    if let Some((rank, line)) = started.iter().find(other) {
        return Some(format!("rank {rank} is one of {line:?}, another rank one of {wanted}"));
    }
    if end == End::Succeeded && started.len() != wanted {
        return Some(format!("it succeeded, and {} of {wanted} ranks have started", started.len()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(first: &[&str], second: &[&str]) -> Lines {
        [first, second].map(|lines| lines.iter().map(|line| (*line).to_owned()).collect())
    }

    fn text(end: End, stopped: bool, first: &[&str], second: &[&str]) -> String {
        let excuse = Excuse { stopped, unstarted: false };
        wrong(end, excuse, &ranks(first, second)).unwrap_or_default()
    }

    #[test]
    fn ranks_that_ran_as_the_end_says_pass() {
        for (end, first, second) in [
            (End::Succeeded, ["1"].as_slice(), [].as_slice()),
            (End::Succeeded, &["2"], &["2"]),
            // A stop before, between and after the starts.
            (End::Cancelled, &[], &[]),
            (End::Cancelled, &[], &["2"]),
            (End::Cancelled, &["2"], &[]),
            (End::Cancelled, &["2"], &["2"]),
            (End::Cancelled, &["1"], &[]),
        ] {
            assert_eq!(text(end, true, first, second), "", "{end:?} {first:?} {second:?}");
        }
    }

    #[test]
    fn a_rank_that_ran_twice_is_found_whatever_the_end() {
        for end in [End::Succeeded, End::Cancelled] {
            assert!(text(end, true, &["2", "2"], &["2"]).contains("rank 0 has started 2 times"));
            assert!(text(end, true, &[], &["2", "2"]).contains("rank 1 has started 2 times"));
        }
    }

    #[test]
    fn a_success_in_which_a_rank_did_not_run_is_found() {
        assert!(text(End::Succeeded, true, &[], &[]).contains("nothing ran"));
        assert!(text(End::Succeeded, true, &["2"], &[]).contains("1 of 2 ranks"));
        assert!(text(End::Succeeded, false, &[], &["2"]).contains("1 of 2 ranks"));
    }

    #[test]
    fn ranks_that_nobody_asked_for_are_found() {
        assert!(text(End::Succeeded, true, &["1"], &["1"]).contains("rank 1 is one of"));
        assert!(text(End::Cancelled, true, &["2"], &["1"]).contains("rank 1 is one of"));
        assert!(text(End::Cancelled, true, &["3"], &[]).contains("one of \"3\""));
        assert!(text(End::Succeeded, true, &[""], &[]).contains("one of \"\""));
    }

    #[test]
    fn an_end_without_a_reason_is_found() {
        assert!(text(End::Cancelled, false, &[], &[]).contains("nobody stopped it"));
        assert!(text(End::Failed, true, &["1"], &[]).contains("Failed"));
        assert!(text(End::Timeout, true, &["1"], &[]).contains("Timeout"));
    }

    #[test]
    fn a_rank_that_was_not_started_excuses_a_failure_and_nothing_else() {
        let excuse = Excuse { stopped: false, unstarted: true };
        let text = |end, first: &[&str]| wrong(end, excuse, &ranks(first, &[])).unwrap_or_default();
        assert_eq!(text(End::Failed, &["2"]), "");
        assert!(text(End::Failed, &["2", "2"]).contains("rank 0 has started 2 times"));
        assert!(text(End::Cancelled, &[]).contains("nobody stopped it"));
        assert!(text(End::Succeeded, &["2"]).contains("1 of 2 ranks"));
    }

    #[test]
    fn a_file_without_a_line_is_no_start() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("0"), "2\n").unwrap();
        std::fs::write(directory.path().join("1"), "").unwrap();
        assert_eq!(read(directory.path()).unwrap(), ranks(&["2"], &[]));
        assert_eq!(read(&directory.path().join("none")).unwrap(), ranks(&[], &[]));
        std::fs::remove_file(directory.path().join("1")).unwrap();
        std::fs::create_dir(directory.path().join("1")).unwrap();
        assert!(read(directory.path()).is_err());
    }
}
