//! How long logs are kept, and in which form: those of attempts that have ended are compressed, and
//! removed by age and by the size of all. What was removed leaves a note, `<gang>/<epoch>.removed`,
//! so that a reader is told instead of finding nothing.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gangline_common::ids::{Epoch, GangId};
use serde::{Deserialize, Serialize};

use super::{Logs, compressed, create, packed};

/// Attempts that ended just now may be read and may get their last lines: they wait so long, in
/// milliseconds.
const SETTLE_MS: u64 = 600_000;
/// A file that would save less than a few blocks of the disk is left as it is.
const LEAST_BYTES: u64 = 16 << 10;
/// Plain bytes that one pass compresses at most.
const PASS_BYTES: u64 = 16 << 30;
/// Bytes of a note that are read.
const NOTE_BYTES: u64 = 4096;

/// How long logs are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Milliseconds after the end of an attempt; 0 is for ever.
    pub keep_ms: u64,
    /// The same for one that failed.
    pub keep_failed_ms: u64,
    /// Bytes of all logs on disk; 0 is no limit. Logs of attempts that have not ended count, and
    /// are never removed.
    pub max_bytes: u64,
}

/// What became of the attempt that wrote some logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// More may come.
    Live,
    Ended {
        at_ms: u64,
        failed: bool,
    },
}

/// Logs that are not there any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    pub at_ms: u64,
    /// Such as `older than 30 days`.
    pub why: String,
    /// Plain bytes and compressed ones together, as they were on disk.
    pub bytes: u64,
}

/// What one pass did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// Files that were compressed, and bytes that this gave back.
    pub packed: u64,
    pub saved_bytes: u64,
    /// Incarnations that were removed, and their bytes.
    pub removed: u64,
    pub removed_bytes: u64,
    /// On disk afterwards.
    pub bytes: u64,
}

/// Logs of one incarnation of a gang.
struct Kept {
    gang: GangId,
    epoch: Epoch,
    fate: Fate,
    bytes: u64,
}

impl Logs {
    /// What became of logs that were removed. Blocking.
    pub fn removed(&self, gang: &GangId, epoch: Epoch) -> Option<Removed> {
        let path = self.note(gang, epoch);
        let metadata = fs::metadata(&path).ok()?;
        let unread = Removed { at_ms: 0, why: "for its age or size".to_owned(), bytes: 0 };
        if metadata.len() > NOTE_BYTES {
            return Some(unread);
        }
        let text = fs::read(&path).ok()?;
        Some(serde_json::from_slice(&text).unwrap_or(unread))
    }

    fn note(&self, gang: &GangId, epoch: Epoch) -> PathBuf {
        self.root.join(gang.as_str()).join(format!("{epoch}.removed"))
    }

    /// One pass over all logs. `fate` says what became of an incarnation; one that nobody knows, as
    /// after the restore of an older store, counts as failed when it was last written. Nothing is
    /// compressed without `room` for a second copy of a file. Blocking.
    ///
    /// # Errors
    /// The directory of all logs cannot be read. What fails for one incarnation is logged and left for
    /// the next pass.
    pub fn sweep(
        &self,
        fate: impl Fn(&GangId, Epoch) -> Option<Fate>,
        policy: Policy,
        now_ms: u64,
        room: impl Fn() -> bool,
    ) -> io::Result<Swept> {
        let mut swept = Swept::default();
        let mut kept = self.incarnations(fate, now_ms)?;
        let age = |kept: &Kept| match kept.fate {
            Fate::Live => None,
            Fate::Ended { at_ms, failed } => Some((now_ms.saturating_sub(at_ms), failed)),
        };
        kept.retain(|kept| {
            let Some((age, failed)) = age(kept) else { return true };
            let most = if failed { policy.keep_failed_ms } else { policy.keep_ms };
            let old = most > 0 && age > most;
            !(old && self.forget(kept, format!("older than {}", days(most)), now_ms, &mut swept))
        });
        let mut left = PASS_BYTES;
        for kept in &mut kept {
            if age(kept).is_some_and(|(age, _)| age > SETTLE_MS) {
                self.pack_all(kept, &mut left, &room, &mut swept);
            }
        }
        swept.bytes = kept.iter().map(|kept| kept.bytes).sum();
        if policy.max_bytes > 0 && swept.bytes > policy.max_bytes {
            // Those that did not fail first, and of these the oldest.
            kept.retain(|kept| kept.fate != Fate::Live);
            kept.sort_by_key(|kept| age(kept).map(|(age, failed)| (failed, u64::MAX - age)));
            for kept in &kept {
                if swept.bytes <= policy.max_bytes {
                    break;
                }
                let why = format!("all logs together were over {} GiB", policy.max_bytes >> 30);
                if self.forget(kept, why, now_ms, &mut swept) {
                    swept.bytes = swept.bytes.saturating_sub(kept.bytes);
                }
            }
            if swept.bytes > policy.max_bytes {
                let (bytes, most) = (swept.bytes, policy.max_bytes);
                tracing::warn!(bytes, most, "the logs of live jobs alone are more than is kept");
            }
        }
        Ok(swept)
    }

    fn incarnations(
        &self,
        fate: impl Fn(&GangId, Epoch) -> Option<Fate>,
        now_ms: u64,
    ) -> io::Result<Vec<Kept>> {
        let gangs = match fs::read_dir(&*self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            gangs => gangs?,
        };
        let mut all = Vec::new();
        for gang in gangs.flatten() {
            let name = gang.file_name();
            let Some(id) = name.to_str().and_then(|text| text.parse::<GangId>().ok()) else {
                continue;
            };
            for entry in fs::read_dir(gang.path()).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let Some(epoch) = name.to_str().and_then(|text| text.parse::<Epoch>().ok()) else {
                    continue;
                };
                let Some((bytes, newest_ms)) = measure(&entry.path()) else { continue };
                // It may have begun since somebody looked what there is.
                let unknown = match now_ms.saturating_sub(newest_ms) < SETTLE_MS {
                    true => Fate::Live,
                    false => Fate::Ended { at_ms: newest_ms, failed: true },
                };
                let fate = fate(&id, epoch).unwrap_or(unknown);
                all.push(Kept { gang: id.clone(), epoch, fate, bytes });
            }
        }
        Ok(all)
    }

    /// Removes the logs of an incarnation and leaves a note. Whether they are gone.
    fn forget(&self, kept: &Kept, why: String, now_ms: u64, swept: &mut Swept) -> bool {
        let (gang, epoch) = (&kept.gang, kept.epoch);
        let removed = Removed { at_ms: now_ms, why, bytes: kept.bytes };
        let directory = self.directory(gang, epoch);
        // The note first: a crash in between leaves some files, which the next pass removes.
        let result = serde_json::to_vec(&removed).map_err(io::Error::other).and_then(|note| {
            fs::write(self.note(gang, epoch), note)?;
            // What was found out from the logs is small, and stays.
            for member in members(&directory) {
                fs::remove_dir_all(member)?;
            }
            Ok(())
        });
        match result {
            Ok(()) => {
                self.lock().retain(|path, _| !path.starts_with(&directory));
                swept.removed += 1;
                swept.removed_bytes += kept.bytes;
                tracing::info!(%gang, %epoch, bytes = kept.bytes, why = removed.why, "logs removed");
                true
            }
            Err(error) => {
                tracing::warn!(%gang, %epoch, %error, "cannot remove old logs");
                false
            }
        }
    }

    fn pack_all(
        &self,
        kept: &mut Kept,
        left: &mut u64,
        room: &impl Fn() -> bool,
        swept: &mut Swept,
    ) {
        for (member, file, bytes) in self.files(&kept.gang, kept.epoch) {
            if bytes < LEAST_BYTES || bytes > *left || !room() {
                continue;
            }
            let (gang, epoch) = (kept.gang.clone(), kept.epoch);
            let path = self.path(&gangline_common::ids::MemberKey { gang, epoch, member }, &file);
            if !path.exists() {
                continue;
            }
            *left -= bytes;
            match self.pack(&path) {
                Ok(Some((plain, packed))) => {
                    let saved = plain.saturating_sub(packed);
                    swept.packed += 1;
                    swept.saved_bytes += saved;
                    kept.bytes = kept.bytes.saturating_sub(saved);
                }
                Ok(None) => {}
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(%path, %error, "cannot compress a log; it stays as it is");
                }
            }
        }
    }

    /// Compresses a file unless somebody writes to it. Returns its plain and compressed bytes.
    pub(super) fn pack(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        let length = self.durable_length(path);
        let new = path.with_extension("gz-new");
        let (plain, packed) = packed::pack(File::open(path)?, &new).inspect_err(|_| {
            // What is left of it is written over by the next try.
            let _ = fs::remove_file(&new);
        })?;
        let mut known = self.lock();
        let quiet = known.get(path).is_none_or(|known| known.writers == 0 && known.length == plain);
        if !quiet || plain != length {
            drop(known);
            fs::remove_file(&new)?;
            return Ok(None);
        }
        fs::rename(&new, compressed(path))?;
        sync_directory(path)?;
        fs::remove_file(path)?;
        known.remove(path);
        Ok(Some((plain, packed)))
    }

    /// Makes a compressed file a plain one again, to write to it. The caller sees to it that only one
    /// does so at a time.
    pub(super) fn unpack(&self, path: &Path) -> io::Result<()> {
        let mut source = packed::Packed::open(&compressed(path))?;
        let new = path.with_extension("log-new");
        let mut target = create(&new)?;
        let mut at = 0;
        while at < source.length() {
            let piece = source.read_at(at, 1 << 20)?;
            io::Write::write_all(&mut target, &piece)?;
            at += piece.len() as u64;
        }
        target.sync_all()?;
        fs::rename(&new, path)?;
        sync_directory(path)?;
        fs::remove_file(compressed(path))
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// The directories of the members of an incarnation.
fn members(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}

/// Bytes of the logs of all members, and when the newest was written, in milliseconds since 1970; `None`
/// without any.
fn measure(directory: &Path) -> Option<(u64, u64)> {
    let (mut bytes, mut newest) = (0, 0);
    let members = members(directory);
    if members.is_empty() {
        return None;
    }
    for file in members.iter().flat_map(|m| fs::read_dir(m).into_iter().flatten().flatten()) {
        let Ok(metadata) = file.metadata() else { continue };
        let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let since = written.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        bytes += metadata.len();
        newest = newest.max(since.as_millis() as u64);
    }
    Some((bytes, newest))
}

fn days(ms: u64) -> String {
    match ms / 86_400_000 {
        0 => format!("{} s", ms / 1000),
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    }
}

#[cfg(test)]
mod tests {
    use gangline_common::ids::MemberKey;
    use gangline_common::wire::v1::LogChunk;

    use super::*;

    const DAY: u64 = 86_400_000;
    const POLICY: Policy = Policy { keep_ms: 30 * DAY, keep_failed_ms: 90 * DAY, max_bytes: 0 };

    struct Scene {
        directory: tempfile::TempDir,
        logs: Logs,
    }

    impl Scene {
        fn new() -> Scene {
            let directory = tempfile::tempdir().unwrap();
            let logs = Logs::new(directory.path().to_owned());
            Scene { directory, logs }
        }

        fn write(&self, key: &MemberKey, offset: u64, bytes: &[u8]) -> u64 {
            let (key, bytes) = (key.clone(), bytes.to_vec());
            let chunk = LogChunk { key, file: "output".into(), offset, bytes, read_ms: 0 };
            self.logs.write_batch(vec![chunk]).unwrap()[0].offset
        }

        fn sweep(&self, policy: Policy, fate: impl Fn(&str) -> Option<Fate>, room: bool) -> Swept {
            let fate = |gang: &GangId, _| fate(gang.as_str());
            self.logs.sweep(fate, policy, 100 * DAY, || room).unwrap()
        }

        fn names(&self, path: &str) -> Vec<String> {
            let entries = fs::read_dir(self.directory.path().join(path)).unwrap();
            let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
            let mut names: Vec<String> = entries.map(|e| name(e).into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    fn key(gang: &str) -> MemberKey {
        format!("{gang}:1.1:0").parse().unwrap()
    }

    fn ended(days_ago: u64, failed: bool) -> Option<Fate> {
        Some(Fate::Ended { at_ms: (100 - days_ago) * DAY, failed })
    }

    #[test]
    fn what_has_ended_is_compressed_and_reads_the_same() {
        let scene = Scene::new();
        let text = b"step 1: loss 0.5\n".repeat(50_000);
        scene.write(&key("g-a"), 0, &text);
        let live = scene.sweep(POLICY, |_| Some(Fate::Live), true);
        assert_eq!((live.packed, live.bytes > text.len() as u64), (0, true));
        assert_eq!(scene.sweep(POLICY, |_| ended(1, false), false).packed, 0, "no room");
        let swept = scene.sweep(POLICY, |_| ended(1, false), true);
        assert_eq!(swept.packed, 1);
        assert!(swept.bytes < text.len() as u64 / 10, "{swept:?}");
        assert_eq!(scene.names("g-a/1.1/0"), ["output.gz", "output.times"]);
        let logs = &scene.logs;
        assert_eq!(logs.read(&key("g-a"), "output", 17, 16).unwrap(), b"step 1: loss 0.5");
        let stored = logs.stored(&key("g-a").gang, key("g-a").epoch);
        assert_eq!((stored[0].bytes, stored[0].compressed), (text.len() as u64, true));
        assert!(stored[0].times.is_some());
        // What is resent changes nothing; what is new makes it plain again.
        assert_eq!(scene.write(&key("g-a"), 0, &text[..100]), text.len() as u64);
        assert_eq!(scene.names("g-a/1.1/0"), ["output.gz", "output.times"]);
        let length = text.len() as u64;
        assert_eq!(scene.write(&key("g-a"), length, b"last words\n"), length + 11);
        assert_eq!(scene.names("g-a/1.1/0"), ["output.log", "output.times"]);
        let all = logs.read(&key("g-a"), "output", 0, 10 << 20).unwrap();
        assert!(all.starts_with(&text) && all.ends_with(b"last words\n"));
        assert_eq!(scene.sweep(POLICY, |_| ended(1, false), true).packed, 1);
        let again = Logs::new(scene.directory.path().to_owned());
        assert_eq!(again.read(&key("g-a"), "output", 0, 10 << 20).unwrap(), all);
    }

    #[test]
    fn a_crash_between_two_forms_costs_nothing() {
        let scene = Scene::new();
        let text = b"a line of some length\n".repeat(20_000);
        scene.write(&key("g-a"), 0, &text);
        let member = scene.directory.path().join("g-a/1.1/0");
        scene.sweep(POLICY, |_| ended(1, false), true);
        fs::write(member.join("output.log"), &text).unwrap();
        fs::write(member.join("output.gz-new"), b"half").unwrap();
        let again = Logs::new(scene.directory.path().to_owned());
        assert_eq!(again.files(&key("g-a").gang, key("g-a").epoch).len(), 1);
        assert_eq!(again.read(&key("g-a"), "output", 0, 10 << 20).unwrap(), text);
        again.sweep(|_, _| ended(1, false), POLICY, 100 * DAY, || true).unwrap();
        assert_eq!(scene.names("g-a/1.1/0"), ["output.gz", "output.times"]);
    }

    #[test]
    fn old_logs_go_and_leave_a_note() {
        let scene = Scene::new();
        for gang in ["g-old", "g-failed", "g-live", "g-new"] {
            scene.write(&key(gang), 0, b"text\n");
        }
        scene.logs.put_answer(&key("g-old").gang, key("g-old").epoch, "j-old-1", b"{}").unwrap();
        let fate = |gang: &str| match gang {
            "g-old" => ended(31, false),
            "g-failed" => ended(31, true),
            "g-live" => Some(Fate::Live),
            _ => ended(1, false),
        };
        let swept = scene.sweep(POLICY, fate, true);
        assert_eq!((swept.removed, swept.packed), (1, 0));
        assert_eq!(scene.names("g-old"), ["1.1", "1.1.removed"]);
        let why = scene.logs.answer(&key("g-old").gang, key("g-old").epoch, "j-old-1").unwrap();
        assert_eq!(why.as_deref(), Some(&b"{}"[..]), "what was found out stays");
        assert_eq!(scene.sweep(POLICY, fate, true).removed, 0, "once is enough");
        let removed = scene.logs.removed(&key("g-old").gang, key("g-old").epoch).unwrap();
        assert_eq!((removed.at_ms, removed.why.as_str()), (100 * DAY, "older than 30 days"));
        assert!(scene.logs.removed(&key("g-new").gang, key("g-new").epoch).is_none());
        let later = Policy { keep_failed_ms: 20 * DAY, ..POLICY };
        assert_eq!(scene.sweep(later, fate, true).removed, 1);
        scene.logs.remove(&key("g-old").gang).unwrap();
        assert!(scene.logs.removed(&key("g-old").gang, key("g-old").epoch).is_none());
    }

    #[test]
    fn the_size_of_all_is_kept_by_the_oldest_that_did_not_fail() {
        let scene = Scene::new();
        for gang in ["g-a", "g-b", "g-failed", "g-live"] {
            scene.write(&key(gang), 0, &[b'x'; 10_000]);
        }
        let fate = |gang: &str| match gang {
            "g-a" => ended(3, false),
            "g-b" => ended(2, false),
            "g-failed" => ended(20, true),
            _ => Some(Fate::Live),
        };
        let at_most = |max_bytes| Policy { max_bytes, ..POLICY };
        assert_eq!(scene.sweep(at_most(35_000), fate, true).removed, 1);
        assert_eq!(scene.names(""), ["g-a", "g-b", "g-failed", "g-live"]);
        assert_eq!(scene.names("g-a/1.1"), [""; 0]);
        assert_eq!(scene.sweep(at_most(25_000), fate, true).removed, 1);
        assert_eq!(scene.names("g-b/1.1"), [""; 0]);
        let swept = scene.sweep(at_most(1), fate, true);
        assert_eq!((swept.removed, scene.names("g-live")), (1, vec!["1.1".to_owned()]));
        assert!(swept.bytes > 10_000);
    }

    #[test]
    fn logs_that_nobody_knows_count_from_their_last_byte() {
        let scene = Scene::new();
        scene.write(&key("g-a"), 0, b"text\n");
        let now = gangline_common::time::Timestamp::now().wall_ms;
        let sweep = |now_ms| scene.logs.sweep(|_, _| None, POLICY, now_ms, || true).unwrap();
        assert_eq!(sweep(now).removed, 0);
        assert_eq!(sweep(now + 91 * DAY).removed, 1);
    }
}
