//! The room that the file system of a checkpoint directory has: whether the next training checkpoints
//! fit, and the disk guard that removes the oldest ones when the next one does not.

use std::io;
use std::path::Path;

use gangline_common::wire::checkpoint::ListedCheckpoint;
use serde::{Deserialize, Serialize};

use super::{
    Entry, REMOVALS, fewest, list, newest, remove_checkpoint, retain, step_of, surplus, sweep,
};

/// Room for fewer further training checkpoints than this is little.
const LOW_FITS: u64 = 3;
/// The next one is as large as the largest of so many of the newest.
const SIZES: usize = 3;
/// This part of a file system stays free, and never more than so many bytes.
const FLOOR_PART: u64 = 50;
const FLOOR_BYTES: u64 = 16 << 30;

/// What a short look finds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    pub newest: Option<Entry>,
    /// Of the file system; absent where it does not say.
    pub free_bytes: Option<u64>,
}

/// The newest training checkpoint and the free space. Blocks for as long as the file system does.
///
/// # Errors
/// The directory cannot be read; that there is none is no error.
pub fn look(directory: &Path) -> io::Result<Look> {
    let newest = newest(directory)?;
    Ok(Look { newest, free_bytes: space(directory).map(|(free, _)| free) })
}

/// What a look at everything finds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// The newest one that is complete.
    pub newest: Option<Complete>,
    /// All that are complete.
    pub count: u32,
    pub bytes: u64,
    /// The newest one of all is not known to be complete.
    pub is_open: bool,
    /// Absent where the file system does not say.
    pub room: Option<Room>,
    /// What was removed because only so many are to stay.
    pub surplus: Vec<String>,
    /// What was removed to make room.
    pub for_room: Vec<String>,
    /// Why not everything was removed that should have been.
    pub problem: Option<String>,
}

/// A training checkpoint that is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complete {
    pub name: String,
    pub step: Option<u64>,
    pub bytes: u64,
    /// By the clock of its file system, in milliseconds since 1970.
    pub changed_ms: u64,
}

/// What a file system has, and what a training checkpoint takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Of the next one; 0 before the first is complete.
    pub next_bytes: u64,
}

impl Room {
    fn of(directory: &Path, list: &[ListedCheckpoint]) -> Option<Room> {
        let (free_bytes, total_bytes) = space(directory)?;
        let complete = list.iter().filter(|entry| entry.complete).take(SIZES);
        let next_bytes = complete.map(|entry| entry.bytes).max().unwrap_or(0);
        Some(Room { free_bytes, total_bytes, next_bytes })
    }

    fn floor(&self) -> u64 {
        (self.total_bytes / FLOOR_PART).min(FLOOR_BYTES)
    }

    /// Whether there is room for only few more. What was low stays so until there is clearly more.
    pub fn is_low(&self, was_low: bool) -> bool {
        let enough = self.floor().saturating_add(self.next_bytes.saturating_mul(LOW_FITS));
        self.free_bytes < if was_low { enough.saturating_add(enough / 4) } else { enough }
    }

    /// The next one does not fit.
    fn lacks(&self) -> bool {
        self.free_bytes < self.floor().saturating_add(self.next_bytes)
    }
}

/// Free and total bytes of the file system, for those who are not root.
fn space(directory: &Path) -> Option<(u64, u64)> {
    let stat = rustix::fs::statvfs(directory).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Some((bytes(stat.f_bavail), bytes(stat.f_blocks)))
}

/// Looks at everything in the directory, after removing all but `keep`, and with `make_room` the oldest
/// ones as long as the next one does not fit. What is being copied stays. Blocks for as long as the file
/// system does.
///
/// # Errors
/// The directory cannot be read. What cannot be removed is told in the answer.
pub fn survey(
    directory: &Path,
    keep: Option<u32>,
    make_room: bool,
    copying: Option<&str>,
    now_ms: u64,
) -> io::Result<Survey> {
    if !directory.exists() {
        return Ok(Survey::default());
    }
    let mut survey = Survey::default();
    if (keep.is_some() || make_room)
        && let Err(error) = sweep(directory)
    {
        survey.problem = Some(error.to_string());
    }
    if let Some(keep) = keep
        && let Err(error) = retain(directory, keep, copying, now_ms, &mut survey.surplus)
    {
        survey.problem = Some(error.to_string());
    }
    let mut listed = list(directory, now_ms)?;
    let mut room = Room::of(directory, &listed);
    if let (true, Some(room)) = (make_room, &mut room) {
        let mut gone = Vec::new();
        if let Err(error) = free_up(directory, &listed, room, copying, &mut gone) {
            survey.problem = Some(error.to_string());
        }
        listed.retain(|entry| !gone.contains(&entry.name));
        survey.for_room = gone;
    }
    let complete = || listed.iter().filter(|entry| entry.complete);
    let newest = complete().find(|entry| entry.newest).or_else(|| complete().next());
    survey.newest = newest.map(|entry| Complete {
        name: entry.name.clone(),
        step: step_of(&entry.name),
        bytes: entry.bytes,
        changed_ms: entry.changed_ms,
    });
    survey.count = u32::try_from(complete().count()).unwrap_or(u32::MAX);
    survey.bytes = complete().fold(0, |sum, entry| sum.saturating_add(entry.bytes));
    survey.is_open = listed.iter().any(|entry| entry.newest && !entry.complete);
    survey.room = room;
    Ok(survey)
}

/// Removes the oldest ones while the next one does not fit, and counts what they took as free at once:
/// some file systems give it back only later, and more than is needed must not go.
fn free_up(
    directory: &Path,
    list: &[ListedCheckpoint],
    room: &mut Room,
    copying: Option<&str>,
    gone: &mut Vec<String>,
) -> io::Result<()> {
    if !room.lacks() {
        return Ok(());
    }
    let mut names = surplus(list, fewest(directory)?);
    names.retain(|name| Some(name.as_str()) != copying);
    for name in names.iter().take(REMOVALS) {
        if !room.lacks() {
            break;
        }
        if remove_checkpoint(directory, name, gone)? {
            let bytes =
                list.iter().find(|entry| entry.name == *name).map_or(0, |entry| entry.bytes);
            room.free_bytes = room.free_bytes.saturating_add(bytes);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::REMOVED;
    use super::*;
    use std::fs;

    const MIB: u64 = 1 << 20;
    const HOUR_MS: u64 = 3_600_000;

    fn now_ms() -> u64 {
        gangline_common::time::Timestamp::now().wall_ms
    }

    fn room(free: u64, next: u64) -> Room {
        Room { free_bytes: free * MIB, total_bytes: 1000 * MIB, next_bytes: next * MIB }
    }

    /// Five of 3 bytes each, of which a file says which one is the newest.
    fn checkpoints() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for step in 1..=5 {
            let directory = root.path().join(format!("global_step_{step}"));
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("model.pt"), "xyz").unwrap();
        }
        fs::write(root.path().join("latest_checkpointed_iteration.txt"), "4").unwrap();
        fs::create_dir(root.path().join("final")).unwrap();
        root
    }

    #[test]
    fn little_room_is_told_before_there_is_none() {
        // 2 % of 1000 MiB stay free.
        for (free, next, low, lacks) in [
            (1000, 0, false, false),
            (19, 0, true, true),
            (320, 100, false, false),
            (319, 100, true, false),
            (120, 100, true, false),
            (119, 100, true, true),
            (0, u64::MAX / MIB, true, true),
        ] {
            let room = room(free, next);
            assert_eq!((room.is_low(false), room.lacks()), (low, lacks), "{free} {next}");
        }
        // What was low is not well at once.
        assert!(room(399, 100).is_low(true) && !room(400, 100).is_low(true));
        // A large file system need not keep a fiftieth of itself.
        let large = Room { free_bytes: 17 << 30, total_bytes: 1 << 50, next_bytes: 0 };
        assert!(!large.is_low(false));
    }

    #[test]
    fn the_oldest_go_until_the_next_one_fits_and_never_the_newest() {
        let root = checkpoints();
        let listed = list(root.path(), now_ms()).unwrap();
        // Two must go; the third is over the floor again.
        let mut little = Room { free_bytes: 0, total_bytes: 0, next_bytes: 5 };
        let mut gone = Vec::new();
        free_up(root.path(), &listed, &mut little, None, &mut gone).unwrap();
        assert_eq!((gone, little.free_bytes), (names(&[1, 2]), 6));
        // However little there is, the newest complete one stays, and what is on its way, and what is
        // no step.
        let mut none = Room { free_bytes: 0, total_bytes: 0, next_bytes: 1 << 60 };
        let listed = list(root.path(), now_ms()).unwrap();
        let mut gone = Vec::new();
        free_up(root.path(), &listed, &mut none, None, &mut gone).unwrap();
        assert_eq!(gone, names(&[3]));
        let mut left: Vec<String> = fs::read_dir(root.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let stays =
            ["final", "global_step_4", "global_step_5", "latest_checkpointed_iteration.txt"];
        assert_eq!(left, stays);
    }

    fn names(steps: &[u32]) -> Vec<String> {
        steps.iter().map(|step| format!("global_step_{step}")).collect()
    }

    #[test]
    fn without_a_word_of_the_framework_two_stay() {
        let root = checkpoints();
        fs::remove_file(root.path().join("latest_checkpointed_iteration.txt")).unwrap();
        fs::remove_dir(root.path().join("final")).unwrap();
        let mut none = Room { free_bytes: 0, total_bytes: 0, next_bytes: 1 << 60 };
        // Just written: nobody knows whether the newest one is complete.
        let fresh = list(root.path(), now_ms()).unwrap();
        let mut gone = Vec::new();
        free_up(root.path(), &fresh, &mut none, None, &mut gone).unwrap();
        assert!(gone.is_empty(), "{gone:?}");
        let settled = list(root.path(), now_ms() + HOUR_MS).unwrap();
        free_up(root.path(), &settled, &mut none, None, &mut gone).unwrap();
        assert_eq!(gone.len(), 3, "{gone:?}");
    }

    #[test]
    fn what_is_being_copied_stays() {
        let root = checkpoints();
        let copying = Some("global_step_1");
        let listed = list(root.path(), now_ms()).unwrap();
        let mut little = Room { free_bytes: 0, total_bytes: 0, next_bytes: 3 };
        let mut gone = Vec::new();
        free_up(root.path(), &listed, &mut little, copying, &mut gone).unwrap();
        assert_eq!(gone, names(&[2]));
        let found = survey(root.path(), Some(1), false, copying, now_ms()).unwrap();
        assert_eq!(found.surplus, names(&[3]));
        assert!(root.path().join("global_step_1/model.pt").exists());
        let found = survey(root.path(), Some(1), false, None, now_ms()).unwrap();
        assert_eq!(found.surplus, names(&[1]));
    }

    #[test]
    fn what_a_removal_left_goes_with_the_next_one() {
        let root = checkpoints();
        let left = root.path().join(format!("{REMOVED}global_step_0"));
        for (keep, make_room, stays) in
            [(None, false, true), (None, true, false), (Some(9), false, false)]
        {
            fs::create_dir_all(left.join("actor")).unwrap();
            survey(root.path(), keep, make_room, None, now_ms()).unwrap();
            assert_eq!(left.exists(), stays, "{keep:?} {make_room}");
        }
    }

    #[test]
    fn a_survey_says_what_there_is() {
        let root = checkpoints();
        let found = survey(root.path(), None, false, None, now_ms()).unwrap();
        let newest = found.newest.clone().unwrap();
        assert_eq!(
            (newest.name.as_str(), newest.step, newest.bytes),
            ("global_step_4", Some(4), 3)
        );
        assert!(!found.is_open && found.surplus.is_empty() && found.problem.is_none(), "{found:?}");
        assert!(
            found.count >= 4 && found.room.is_some_and(|room| room.next_bytes == 3),
            "{found:?}"
        );
        let found = survey(root.path(), Some(2), false, None, now_ms()).unwrap();
        assert_eq!(found.surplus, names(&[1, 2]));
        // With all the room of the world nothing goes.
        let found = survey(root.path(), None, true, None, now_ms()).unwrap();
        assert!(found.for_room.is_empty(), "{found:?}");
        let nowhere = survey(&root.path().join("nowhere"), Some(1), true, None, now_ms()).unwrap();
        assert_eq!(nowhere, Survey::default());
        assert_eq!(look(&root.path().join("nowhere")).unwrap().newest, None);
        assert!(look(root.path()).unwrap().free_bytes.is_some());
    }
}
