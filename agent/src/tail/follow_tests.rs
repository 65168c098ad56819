//! What is read of files that are rotated, emptied, removed and moved while they are followed.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::follow::{Bytes, Entry, Follower, News, OPEN_LIMIT};
use super::place::Place;

/// A follower with a coordinator that takes everything.
struct Tail {
    follower: Follower,
    streams: BTreeMap<String, Vec<u8>>,
    acknowledged: BTreeMap<String, u64>,
}

impl Tail {
    fn new(root: &Path, entries: Vec<Entry>) -> Tail {
        let place = Place::Files {
            roots: vec![root.join("in")],
            patterns: vec!["**/*.log*".to_owned()],
            also: Vec::new(),
            except: Vec::new(),
            since_s: 0,
        };
        let follower = Follower::new(place, None, root.join("kept"), entries);
        Tail { follower, streams: BTreeMap::new(), acknowledged: BTreeMap::new() }
    }

    /// The agent starts again; what was read stays read.
    fn restart(self, root: &Path) -> Tail {
        let entries = serde_json::to_string(&self.follower.entries()).unwrap();
        let next = Tail::new(root, serde_json::from_str(&entries).unwrap());
        Tail { streams: self.streams, acknowledged: self.acknowledged, ..next }
    }

    fn look(&mut self) -> News {
        self.follower.look(true, &self.acknowledged).unwrap()
    }

    fn read_all(&mut self) {
        for seen in self.follower.seen() {
            let stream = self.streams.entry(seen.name.clone()).or_default();
            loop {
                match self.follower.read(&seen.name, stream.len() as u64, 1000).unwrap() {
                    Bytes::Some(bytes) if !bytes.is_empty() => stream.extend(bytes),
                    Bytes::Some(_) => break,
                    Bytes::Gone => {
                        stream.extend(b"<gone>");
                        break;
                    }
                }
            }
            self.acknowledged.insert(seen.name, stream.len() as u64);
        }
    }

    fn pump(&mut self) -> News {
        let news = self.look();
        self.read_all();
        news
    }

    /// Contents of all streams in the order in which they began; none is empty.
    fn contents(&self) -> Vec<String> {
        let entries = self.follower.entries().into_iter();
        let text = |entry: Entry| {
            let bytes = self.streams.get(&entry.name).cloned().unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        entries.map(text).filter(|text| !text.is_empty()).collect()
    }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("in")).unwrap();
    let path = root.path().join("in/train.log");
    (root, path)
}

fn append(path: &Path, text: impl AsRef<[u8]>) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text.as_ref()).unwrap();
}

#[test]
fn a_file_is_found_as_it_appears_and_read_as_it_grows() {
    let (root, path) = place();
    let mut tail = Tail::new(root.path(), vec![]);
    tail.pump();
    fs::write(&path, "").unwrap();
    tail.pump();
    assert!(tail.follower.seen().is_empty(), "an empty file is none yet");
    append(&path, "one\ntw");
    assert!(tail.pump().grown);
    append(&path, "o\n\0\0\0");
    append(&path, "x".repeat(100_000));
    assert!(tail.pump().grown);
    assert!(!tail.pump().grown);
    let whole = format!("one\ntwo\n\0\0\0{}", "x".repeat(100_000));
    assert_eq!(tail.contents(), [whole]);
    assert_eq!(tail.follower.entries()[0].name, tail.follower.seen()[0].name);
}

#[test]
fn a_renamed_file_keeps_its_stream() {
    let (root, path) = place();
    for restarted in [false, true] {
        let _ = fs::remove_file(root.path().join("in/train.log.1"));
        fs::write(&path, "old 1\n").unwrap();
        let mut tail = Tail::new(root.path(), vec![]);
        tail.pump();
        append(&path, "old 2\n");
        let rotated = root.path().join("in/train.log.1");
        fs::rename(&path, &rotated).unwrap();
        fs::write(&path, "new 1\n").unwrap();
        if restarted {
            tail = tail.restart(root.path());
        }
        append(&rotated, "old 3\n");
        tail.pump();
        append(&path, "new 2\n");
        tail.pump();
        assert_eq!(tail.contents(), ["old 1\nold 2\nold 3\n", "new 1\nnew 2\n"], "{restarted}");
        let names: Vec<String> = tail.follower.entries().into_iter().map(|e| e.name).collect();
        assert_eq!(names[1], format!("{}-2", names[0]));
    }
}

#[test]
fn a_copied_and_emptied_file_is_read_once() {
    for writer_appends in [true, false] {
        let (root, path) = place();
        let mut writer = OpenOptions::new();
        let mut writer =
            writer.append(writer_appends).write(true).create(true).open(&path).unwrap();
        writer.write_all(b"line 1\n").unwrap();
        let mut tail = Tail::new(root.path(), vec![]);
        tail.pump();
        writer.write_all(b"line 2, not read before\n").unwrap();
        fs::copy(&path, root.path().join("in/train.log.1")).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        writer.write_all(b"line 3\n").unwrap();
        tail.pump();
        writer.write_all(b"line 4\n").unwrap();
        tail.pump();
        let contents = tail.contents();
        assert_eq!(contents[0], "line 1\nline 2, not read before\n");
        // Behind the hole of a writer that does not append, as far as the file system has holes.
        assert_eq!(contents[1].trim_start_matches('\0'), "line 3\nline 4\n");
        assert_eq!(contents.len(), 2);
        assert_eq!(tail.restart(root.path()).pump().left_out, 0);
    }
}

#[test]
fn a_file_that_is_emptied_and_written_anew_is_another_stream() {
    let (root, path) = place();
    append(&path, "first\n".repeat(10));
    let mut tail = Tail::new(root.path(), vec![]);
    tail.pump();
    append(&path, "never read\n");
    tail.look();
    // Longer than before, so that its length tells nothing.
    fs::write(&path, "second\n".repeat(100)).unwrap();
    tail.pump();
    assert_eq!(
        tail.contents(),
        [format!("{}<gone>", "first\n".repeat(10)), "second\n".repeat(100)]
    );
    // The same beginning again: what was read last tells.
    let (header, long) = ("header\n".repeat(300), "a\n".repeat(1000));
    fs::write(&path, format!("{header}{long}")).unwrap();
    tail.pump();
    fs::write(&path, format!("{header}{}", "b\n".repeat(2000))).unwrap();
    tail.pump();
    assert_eq!(
        tail.contents()[2..],
        [format!("{header}{long}"), format!("{header}{}", "b\n".repeat(2000))]
    );
}

#[test]
fn a_removed_file_is_read_to_its_end() {
    let (root, path) = place();
    let mut writer = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    writer.write_all(b"seen\n").unwrap();
    let mut tail = Tail::new(root.path(), vec![]);
    tail.look();
    fs::remove_file(&path).unwrap();
    writer.write_all(b"after\n").unwrap();
    fs::write(&path, "another\n").unwrap();
    tail.pump();
    assert_eq!(tail.contents(), ["seen\nafter\n", "another\n"]);
}

#[test]
fn what_went_while_nobody_looked_is_said() {
    let (root, path) = place();
    fs::write(&path, "line\n").unwrap();
    let mut tail = Tail::new(root.path(), vec![]);
    tail.pump();
    let tail_again = |tail: Tail| {
        let mut tail = tail.restart(root.path());
        tail.pump();
        tail
    };
    tail = tail_again(tail);
    assert_eq!(tail.contents(), ["line\n"]);
    fs::remove_file(&path).unwrap();
    tail = tail_again(tail);
    assert_eq!(tail.contents(), ["line\n<gone>"]);
    tail = tail_again(tail);
    assert_eq!(tail.contents().len(), 1);
}

#[test]
fn positions_hold_over_restarts() {
    let (root, path) = place();
    let mut tail = Tail::new(root.path(), vec![]);
    let mut whole = String::new();
    for n in 0..30 {
        let line = format!("line {n}\n");
        append(&path, &line);
        whole.push_str(&line);
        // Sometimes nothing is read before the agent ends.
        if n % 3 != 0 {
            tail.pump();
        } else {
            tail.look();
        }
        tail = tail.restart(root.path());
    }
    tail.pump();
    assert_eq!(tail.contents(), [whole]);
}

#[test]
fn what_is_kept_is_read_after_the_place_has_gone() {
    let (root, path) = place();
    let removed = root.path().join("in/removed.log");
    fs::write(&removed, "removed\n").unwrap();
    fs::write(&path, "one\n").unwrap();
    let mut tail = Tail::new(root.path(), vec![]);
    tail.pump();
    append(&path, "two\n");
    append(&removed, "end\n");
    fs::remove_file(&removed).unwrap();
    // Written last of all, by a process that nobody had seen.
    fs::write(root.path().join("in/last.log"), "last\n").unwrap();
    assert!(tail.follower.keep(&tail.acknowledged).1.is_none());
    fs::remove_dir_all(root.path().join("in")).unwrap();
    tail = tail.restart(root.path());
    tail.pump();
    let mut contents = tail.contents();
    contents.sort();
    assert_eq!(contents, ["last\n", "one\ntwo\n", "removed\nend\n"]);
    assert!(tail.follower.seen().iter().all(|seen| seen.ended));
}

#[test]
fn many_files_are_a_few_and_a_word() {
    let (root, _) = place();
    for n in 0..OPEN_LIMIT + 20 {
        fs::write(root.path().join(format!("in/{n}.log")), format!("{n}\n")).unwrap();
    }
    let mut tail = Tail::new(root.path(), vec![]);
    let news = tail.pump();
    assert_eq!(news.left_out, 20);
    assert_eq!(tail.contents().len(), OPEN_LIMIT);
    assert_eq!(tail.pump().left_out, 20);
}
