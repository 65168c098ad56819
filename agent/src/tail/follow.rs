//! Following the files of one place: which there are, how long each is, and its bytes.
//!
//! What one file is from its first byte on is a *stream*, whose bytes never change once they were
//! read: a file that is renamed keeps its stream, one that is emptied ends it and goes on in a new
//! one, and one that is removed is read to its end, for it stays open. So a byte of a stream is known
//! by its offset, and nothing is ever read into the wrong place. Everything here blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::fingerprint::{Fingerprint, read_up_to};
use super::place::{Listed, Place};

/// Files of one place that are open at a time.
pub const OPEN_LIMIT: usize = 128;
/// Streams of one place over its whole life.
pub const STREAM_LIMIT: usize = 1024;
/// A removed file that was read to its end is closed when it has not grown for this long.
const REMOVED_QUIET: Duration = Duration::from_secs(10);
/// One that was not written for this long makes room for another one.
const IDLE: Duration = Duration::from_secs(30);
/// So many of the bytes that were given out last are compared at the next look.
const ANCHOR_BYTES: usize = 64;
/// Most bytes of one file, and of all, that are copied when a place is given up.
const KEEP_FILE_BYTES: u64 = 64 << 20;
const KEEP_BYTES: u64 = 256 << 20;

/// What is known of a stream over restarts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    pub path: PathBuf,
    pub print: Fingerprint,
    /// Where in the file the stream begins.
    pub start: u64,
    /// The file was replaced by one of the keeper's (see [`Follower::keep`]), which has the stream
    /// from this offset on.
    pub kept: Option<u64>,
    /// Its length, once no byte will be added.
    pub end: Option<u64>,
}

struct Stream {
    entry: Entry,
    /// Closed when it was read to its end and others needed the room, or is not found again.
    file: Option<File>,
    /// Bytes of the stream, as far as was seen.
    length: u64,
    /// One past the last byte that was given out.
    given: u64,
    /// The last bytes that were given out, and where in the file they are.
    anchor: (u64, Vec<u8>),
    /// Size and time of change at the last look.
    seen: (u64, i64, i64),
    grown: Instant,
}

/// A stream as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub name: String,
    pub length: u64,
    /// No byte will be added.
    pub ended: bool,
}

/// What [`Follower::read`] gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bytes {
    /// At most as many as were asked for; none: ask again after the next look.
    Some(Vec<u8>),
    /// What the stream had from there on cannot be read any more.
    Gone,
}

/// What a look found, apart from the streams themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct News {
    /// Some stream is longer, or there is a new one.
    pub grown: bool,
    /// The entries differ from what they were before.
    pub entries: bool,
    /// Files that nothing is read of, because there are too many.
    pub left_out: usize,
    /// A directory has more entries than a look considers.
    pub capped: bool,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// The streams of one place.
pub struct Follower {
    place: Place,
    /// Only files of this user are followed.
    owner: Option<u32>,
    /// Where [`Follower::keep`] keeps.
    keeper: PathBuf,
    streams: Vec<Stream>,
}

impl Follower {
    /// `entries` are those that an earlier one of this place left.
    pub fn new(place: Place, owner: Option<u32>, keeper: PathBuf, entries: Vec<Entry>) -> Self {
        let entries = entries.into_iter().take(STREAM_LIMIT);
        let streams = entries.map(|entry| Stream::again(entry, &keeper)).collect();
        Follower { place, owner, keeper, streams }
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.streams.iter().map(|stream| stream.entry.clone()).collect()
    }

    pub fn seen(&self) -> Vec<Seen> {
        let seen = |stream: &Stream| Seen {
            name: stream.entry.name.clone(),
            length: stream.length,
            ended: stream.entry.end.is_some(),
        };
        self.streams.iter().map(seen).collect()
    }

    /// Looks at every open file, and with `all` for further ones too. `acknowledged` tells how much
    /// of a stream need not be read again.
    pub fn look(&mut self, all: bool, acknowledged: &BTreeMap<String, u64>) -> io::Result<News> {
        let mut news = News::default();
        let now = Instant::now();
        let mut emptied = Vec::new();
        for (index, stream) in self.streams.iter_mut().enumerate() {
            match stream.look(now, acknowledged, &mut news) {
                Ok(Fate::Emptied) => emptied.push(index),
                Ok(Fate::Same) => {}
                Err(error) => {
                    tracing::debug!(path = %stream.entry.path.display(), %error, "a look")
                }
            }
        }
        if !all && emptied.is_empty() {
            return Ok(news);
        }
        let listing = self.place.list()?;
        news.capped = listing.capped;
        for index in emptied {
            self.continue_in_new_stream(index, &listing.files, &mut news)?;
        }
        self.find(&listing.files, acknowledged, &mut news)?;
        if !listing.capped {
            self.miss(&listing.files, acknowledged, &mut news);
        }
        Ok(news)
    }

    /// Ends the stream of a file that was emptied. What was copied away just before is read from the
    /// copy; what is written into the file from now on is a stream of its own.
    fn continue_in_new_stream(
        &mut self,
        index: usize,
        listed: &[Listed],
        news: &mut News,
    ) -> io::Result<()> {
        let known: BTreeSet<u64> = self.streams.iter().map(|s| s.entry.print.inode).collect();
        let Some(stream) = self.streams.get(index) else { return Ok(()) };
        let Some(file) = stream.file.as_ref().map(File::try_clone).transpose()? else {
            return Ok(());
        };
        let path = stream.entry.path.clone();
        let copy = stream.copy_of(&self.place, listed, &known);
        let print = Fingerprint::of(&file)?;
        // A writer that does not append goes on at its old offset, behind a hole.
        let start = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap_or(0);
        let name = self.free_name(&path);
        let Some(stream) = self.streams.get_mut(index) else { return Ok(()) };
        let shown = path.display();
        match copy {
            Some((path, file)) => {
                news.notes.push(format!(
                    "{shown} was emptied; {} has what it was, and {name} has what follows",
                    path.display()
                ));
                stream.entry.path = path;
                stream.entry.print = Fingerprint::of(&file)?;
                stream.attach(file)?;
            }
            None => {
                let lost = stream.length.saturating_sub(stream.given);
                news.notes.push(format!(
                    "{shown} was emptied before {lost} bytes of it were read; {name} has what follows"
                ));
                stream.file = None;
            }
        }
        stream.entry.end = Some(stream.length);
        news.entries = true;
        let full = self.streams.len() >= STREAM_LIMIT;
        if let Some(name) = Some(name).filter(|_| !full) {
            let entry = Entry { name, path, print, start, kept: None, end: None };
            self.add(entry, file, news)?;
        }
        Ok(())
    }

    fn add(&mut self, entry: Entry, file: File, news: &mut News) -> io::Result<()> {
        let mut stream = Stream::closed(entry);
        stream.attach(file)?;
        self.streams.push(stream);
        (news.grown, news.entries) = (true, true);
        Ok(())
    }

    /// Finds files again that were renamed, opens those that have grown since they were closed, and
    /// takes up new ones.
    fn find(
        &mut self,
        listed: &[Listed],
        acknowledged: &BTreeMap<String, u64>,
        news: &mut News,
    ) -> io::Result<()> {
        let mut fresh = Vec::new();
        let mut by_inode: BTreeMap<u64, usize> = BTreeMap::new();
        for (index, stream) in self.streams.iter().enumerate() {
            // Later streams of the same file come later.
            by_inode.insert(stream.entry.print.inode, index);
        }
        for found in listed {
            let at = by_inode.get(&found.inode).and_then(|&index| self.streams.get_mut(index));
            let known = match at {
                Some(stream) => stream.meet(&self.place, found, acknowledged, news)?,
                None => false,
            };
            if !known && let Some(class) = found.class {
                // An empty file is none yet; one that cannot be looked at was removed.
                let Ok(metadata) = fs::symlink_metadata(&found.path) else { continue };
                let fits = self.owner.is_none_or(|owner| owner == metadata.uid());
                let new = self.place.takes(metadata.mtime());
                if metadata.len() > 0 && metadata.is_file() && fits && new {
                    let newest_first = std::cmp::Reverse((metadata.mtime(), metadata.mtime_nsec()));
                    fresh.push((class, newest_first, &found.path));
                }
            }
        }
        fresh.sort();
        for (index, (_, _, path)) in fresh.iter().enumerate() {
            let left = fresh.len() - index;
            if self.streams.len() >= STREAM_LIMIT || !self.make_room(acknowledged) {
                news.left_out = left;
                break;
            }
            let file = match self.place.open(path) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    let shown = path.display();
                    tracing::debug!(path = %shown, %error, "a log cannot be opened");
                    news.left_out += 1;
                    continue;
                }
            };
            if self.owner.is_some_and(|owner| file.metadata().is_ok_and(|m| m.uid() != owner)) {
                continue;
            }
            let name = self.free_name(path);
            let print = Fingerprint::of(&file)?;
            let path = PathBuf::from(path);
            let entry = Entry { name, path, print, start: 0, kept: None, end: None };
            self.add(entry, file, news)?;
        }
        Ok(())
    }

    /// Whether one more file may be opened, perhaps after one that is idle was closed.
    fn make_room(&mut self, acknowledged: &BTreeMap<String, u64>) -> bool {
        let open = self.streams.iter().filter(|stream| stream.file.is_some()).count();
        if open < OPEN_LIMIT {
            return true;
        }
        let idle = |stream: &&mut Stream| {
            stream.file.is_some()
                && stream.grown.elapsed() > IDLE
                && stream.is_acknowledged(acknowledged)
        };
        let oldest = self.streams.iter_mut().filter(idle).min_by_key(|stream| stream.grown);
        oldest.map(|stream| stream.file = None).is_some()
    }

    /// Ends streams whose file is neither open nor there any more.
    fn miss(&mut self, listed: &[Listed], acknowledged: &BTreeMap<String, u64>, news: &mut News) {
        let there: BTreeSet<u64> = listed.iter().map(|found| found.inode).collect();
        for stream in &mut self.streams {
            let missing = stream.file.is_none()
                && stream.entry.end.is_none()
                && !there.contains(&stream.entry.print.inode);
            if missing {
                // Of one that went while nobody looked, nobody knows how long it was.
                let known = stream.is_acknowledged(acknowledged) && stream.length > 0;
                let length = if known { stream.length } else { u64::MAX };
                stream.end(length, news);
            }
        }
    }

    fn free_name(&self, path: &Path) -> String {
        let name = self.place.name(path);
        let taken = |name: &str| self.streams.iter().any(|stream| stream.entry.name == name);
        if !taken(&name) {
            return name;
        }
        let numbered = (2..).map(|number: u32| format!("{name}-{number}"));
        // There are fewer streams than numbers.
        numbered.into_iter().find(|name| !taken(name)).unwrap_or(name)
    }

    /// At most `limit` bytes of a stream from `offset` on.
    pub fn read(&mut self, name: &str, offset: u64, limit: usize) -> io::Result<Bytes> {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.entry.name == name) else {
            return Ok(Bytes::Gone);
        };
        stream.read(offset, limit)
    }

    /// Looks a last time: nothing writes there any more. Every stream has an end then, also when the
    /// look failed.
    pub fn finish(&mut self, acknowledged: &BTreeMap<String, u64>) -> io::Result<News> {
        let looked = self.look(true, acknowledged);
        let mut news = News::default();
        if let Ok(found) = &looked {
            news = found.clone();
        }
        for stream in self.streams.iter_mut().filter(|stream| stream.entry.end.is_none()) {
            let found = stream.file.is_some() || stream.length > 0;
            stream.end(if found { stream.length } else { u64::MAX }, &mut news);
        }
        looked.map(|_| news)
    }

    /// Looks a last time and keeps what was not acknowledged yet elsewhere, for the place will be
    /// removed. Nothing writes there any more.
    /// What could not be kept does not hold up the rest: with the news comes the first error.
    pub fn keep(&mut self, acknowledged: &BTreeMap<String, u64>) -> (News, Option<io::Error>) {
        let (news, mut problem) = match self.finish(acknowledged) {
            Ok(news) => (news, None),
            Err(error) => (News::default(), Some(error)),
        };
        let mut room = KEEP_BYTES;
        for stream in &mut self.streams {
            let from = acknowledged.get(&stream.entry.name).copied().unwrap_or(0);
            if stream.entry.kept.is_none() && stream.file.is_some() && from < stream.length {
                let kept = fs::create_dir_all(&self.keeper)
                    .and_then(|()| stream.keep(&self.keeper, from, &mut room).map(|_| ()));
                if let Err(error) = kept {
                    problem.get_or_insert(error);
                }
                stream.entry.end = Some(stream.length);
            }
        }
        (News { entries: true, grown: true, ..news }, problem)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Same,
    Emptied,
}

impl Stream {
    fn closed(entry: Entry) -> Self {
        let length = entry.end.unwrap_or_default();
        let (anchor, seen) = ((0, Vec::new()), (0, 0, 0));
        Stream { entry, file: None, length, given: 0, anchor, seen, grown: Instant::now() }
    }

    /// One of an earlier follower. Its file is opened when it is found again; a kept one is at its
    /// place.
    fn again(entry: Entry, keeper: &Path) -> Self {
        let mut stream = Stream::closed(entry);
        if stream.entry.kept.is_some() {
            match open_kept(&keeper.join(&stream.entry.name)) {
                Ok(file) => stream.file = Some(file),
                Err(error) => {
                    tracing::warn!(name = stream.entry.name, %error, "a kept log is gone");
                }
            }
        }
        stream
    }

    fn attach(&mut self, file: File) -> io::Result<()> {
        let metadata = file.metadata()?;
        self.length = metadata.len().saturating_sub(self.entry.start);
        self.seen = facts(&metadata);
        self.grown = Instant::now();
        self.file = Some(file);
        Ok(())
    }

    /// Whether the file still has what was seen and given out of it.
    fn is_same(&self, file: &File) -> io::Result<bool> {
        let (at, bytes) = &self.anchor;
        Ok(self.entry.print.heads(file)? && read_up_to(file, *at, bytes.len())? == *bytes)
    }

    /// Whether a file that has the inode and the beginning of this one, of which none was open in
    /// between, is it: many logs begin with the same line.
    fn may_be(&self, path: &Path) -> bool {
        let stem = |path: &Path| {
            let name = path.file_name()?.to_str()?;
            Some(name.split('.').next().unwrap_or(name).to_owned())
        };
        self.entry.print.is_telling() || stem(path) == stem(&self.entry.path)
    }

    fn is_acknowledged(&self, acknowledged: &BTreeMap<String, u64>) -> bool {
        acknowledged.get(&self.entry.name).copied().unwrap_or(0) >= self.length
    }

    fn end(&mut self, length: u64, news: &mut News) {
        self.length = length;
        self.entry.end = Some(length);
        news.entries = true;
        news.grown = true;
    }

    /// One look at an open file.
    fn look(
        &mut self,
        now: Instant,
        acknowledged: &BTreeMap<String, u64>,
        news: &mut News,
    ) -> io::Result<Fate> {
        if self.entry.end.is_some() {
            if self.is_acknowledged(acknowledged) {
                self.file = None;
            }
            return Ok(Fate::Same);
        }
        let Some(file) = &self.file else { return Ok(Fate::Same) };
        let metadata = file.metadata()?;
        let facts = facts(&metadata);
        if facts != self.seen {
            let shorter = metadata.len().saturating_sub(self.entry.start) < self.length;
            if shorter || !self.is_same(file)? {
                return Ok(Fate::Emptied);
            }
            self.seen = facts;
            news.entries |= self.entry.print.grow(file)?;
            let length = metadata.len().saturating_sub(self.entry.start);
            if length > self.length {
                (self.length, self.grown) = (length, now);
                news.grown = true;
            }
        }
        let quiet = now.duration_since(self.grown) > REMOVED_QUIET;
        if metadata.nlink() == 0 && quiet && self.is_acknowledged(acknowledged) {
            self.file = None;
            self.end(self.length, news);
        }
        Ok(Fate::Same)
    }

    /// A look at a listed file with the inode of this stream. Says whether it is the same file.
    fn meet(
        &mut self,
        place: &Place,
        found: &Listed,
        acknowledged: &BTreeMap<String, u64>,
        news: &mut News,
    ) -> io::Result<bool> {
        let same = self.file.is_some() || self.entry.kept.is_some();
        if self.entry.end.is_some() && !same {
            // Another file that got the inode, or the same one, of which nothing is wanted any more.
            let Ok(file) = place.open(&found.path) else { return Ok(true) };
            return Ok(self.may_be(&found.path) && self.entry.print.heads(&file)?);
        }
        if !same {
            let Ok(metadata) = fs::symlink_metadata(&found.path) else { return Ok(true) };
            let length = metadata.len().saturating_sub(self.entry.start);
            let acknowledged = acknowledged.get(&self.entry.name).copied().unwrap_or(0);
            if length == self.length && length > 0 {
                return Ok(true);
            }
            let Ok(file) = place.open(&found.path) else { return Ok(true) };
            let metadata = file.metadata()?;
            let ours = self.entry.print.is_inode_of(&metadata)
                && metadata.len().saturating_sub(self.entry.start) >= acknowledged.max(self.length)
                && self.may_be(&found.path)
                && self.entry.print.heads(&file)?;
            if !ours {
                // While nobody looked, the file went and its inode came back.
                let known = self.length > 0 && acknowledged >= self.length;
                let length = if known { self.length } else { u64::MAX };
                self.end(length, news);
                return Ok(false);
            }
            self.attach(file)?;
            news.grown = true;
        }
        if self.entry.kept.is_none() && self.entry.path != found.path {
            self.entry.path.clone_from(&found.path);
            news.entries = true;
        }
        Ok(true)
    }

    /// A file beside this one, named after it, that has all that this one had.
    fn copy_of(
        &self,
        place: &Place,
        listed: &[Listed],
        known: &BTreeSet<u64>,
    ) -> Option<(PathBuf, File)> {
        let own = self.entry.path.file_name()?.as_encoded_bytes();
        let beside = listed.iter().filter(|found| {
            let name = found.path.file_name().map(|name| name.as_encoded_bytes());
            found.path.parent() == self.entry.path.parent()
                && name.is_some_and(|name| name.len() > own.len() && name.starts_with(own))
                && !known.contains(&found.inode)
        });
        beside.into_iter().find_map(|found| {
            let file = place.open(&found.path).ok()?;
            let whole = file.metadata().ok()?.len() >= self.length + self.entry.start;
            (whole && self.entry.print.heads(&file).ok()?).then(|| (found.path.clone(), file))
        })
    }

    fn read(&mut self, offset: u64, limit: usize) -> io::Result<Bytes> {
        if offset >= self.length {
            return Ok(Bytes::Some(Vec::new()));
        }
        let base = self.entry.kept.unwrap_or(0);
        let (Some(file), Some(within)) = (&self.file, offset.checked_sub(base)) else {
            // One that is not found yet may still be.
            let lost = self.entry.end.is_some();
            return Ok(if lost { Bytes::Gone } else { Bytes::Some(Vec::new()) });
        };
        let wanted = usize::try_from(self.length - offset).unwrap_or(usize::MAX).min(limit);
        let bytes = read_up_to(file, within.saturating_add(self.entry.start), wanted)?;
        // Emptied and written anew since the last look: these are bytes of another stream.
        let is_same = self.is_same(file)?;
        if self.entry.end.is_some() && (!is_same || bytes.is_empty()) {
            // Nobody looks at it again.
            return Ok(Bytes::Gone);
        }
        if !is_same {
            return Ok(Bytes::Some(Vec::new()));
        }
        self.given = self.given.max(offset + bytes.len() as u64);
        let last = bytes.len().saturating_sub(ANCHOR_BYTES);
        let at = within.saturating_add(self.entry.start).saturating_add(last as u64);
        self.anchor = (at, bytes.get(last..).unwrap_or_default().to_vec());
        Ok(Bytes::Some(bytes))
    }

    /// Keeps the stream from `from` on in `directory`: as a link where that is possible, else as a
    /// copy, of which the oldest part is left out when it is long.
    fn keep(&mut self, directory: &Path, from: u64, room: &mut u64) -> io::Result<()> {
        let kept = directory.join(&self.entry.name);
        let _ = fs::remove_file(&kept); // of an earlier try
        let linked = fs::hard_link(&self.entry.path, &kept).is_ok()
            && fs::symlink_metadata(&kept).is_ok_and(|m| self.entry.print.is_inode_of(&m));
        if linked {
            self.file = Some(open_kept(&kept)?);
            self.entry.kept = Some(0);
            return Ok(());
        }
        let _ = fs::remove_file(&kept);
        let Some(source) = &self.file else { return Ok(()) };
        // What was given out is kept as it was: the coordinator may have it, or ask for it again.
        let cut = self.given.max(from);
        let most = KEEP_FILE_BYTES.min(*room);
        let resume = cut.max(self.length.saturating_sub(most));
        let mut target = OpenOptions::new();
        let mut target = target.write(true).create_new(true).mode(0o600).open(&kept)?;
        let mut length = from + self.copy(source, &mut target, from..cut)?;
        if resume > cut {
            let left_out = resume - cut;
            let text = mark(&format!("{left_out} bytes are left out here"));
            target.write_all(text.as_bytes())?;
            length += text.len() as u64;
        }
        length += self.copy(source, &mut target, resume..self.length)?;
        *room = room.saturating_sub(length - from);
        let file = open_kept(&kept)?;
        self.entry.print = Fingerprint::of(&file)?;
        (self.entry.kept, self.entry.start) = (Some(from), 0);
        (self.length, self.file) = (length, Some(file));
        self.anchor = (0, Vec::new());
        Ok(())
    }

    fn copy(
        &self,
        source: &File,
        target: &mut File,
        range: std::ops::Range<u64>,
    ) -> io::Result<u64> {
        let mut at = range.start;
        while at < range.end {
            let wanted = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(1 << 20);
            let bytes = read_up_to(source, at.saturating_add(self.entry.start), wanted)?;
            if bytes.is_empty() {
                break;
            }
            target.write_all(&bytes)?;
            at += bytes.len() as u64;
        }
        Ok(at - range.start)
    }
}

/// A line of our own in the place of something that is not there.
pub fn mark(what: &str) -> String {
    format!("\n[gangline] {what}\n")
}

fn open_kept(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// What changes whenever a file does.
fn facts(metadata: &Metadata) -> (u64, i64, i64) {
    (metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}
