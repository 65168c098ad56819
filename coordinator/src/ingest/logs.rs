//! Log chunks onto disk: `<root>/<gang>/<epoch>/<member>/<file>.log`, byte for byte at offsets, and
//! beside each file when its bytes were read (`times`). Files that grow no more are compressed to
//! `<file>.gz` (`packed`), and removed in the end (`keep`).
//!
//! Writing a chunk twice changes nothing, a gap is never written, and an offset is acknowledged
//! only when everything before it is on disk. So an agent may resend whatever it likes.

mod file;
mod keep;
pub mod lines;
pub mod merge;
mod packed;
mod times;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gangline_common::ids::{Epoch, GangId, MemberId, MemberKey};
use gangline_common::time::Timestamp;
use gangline_common::transport::{FrameReceiver, TransportError};
use gangline_common::wire::WireError;
use gangline_common::wire::frame::{Frame, Kind};
use gangline_common::wire::packed::{PackedLogChunk, Unpacker};
use gangline_common::wire::v1::{CoordinatorMessage, LOG_CHUNK_BYTES, LogAck, LogChunk};
use tokio::sync::{mpsc, watch};

pub use file::LogFile;
pub use keep::{Fate, Policy, Removed, Swept};
pub use times::Times;

use crate::space::Space;

/// Chunks that are written with one flush.
const BATCH: usize = 16;
/// While nobody knows how far the clock of a node is ahead, bytes that its agent says it read at another
/// time than this close to their arrival carry the time at which they came, in milliseconds.
const MAX_SKEW_MS: u64 = 5_000;
/// Where that is known, bytes may be this old when they come: a node may have been cut off for long.
const MAX_AGE_MS: u64 = 7 * 24 * 3600 * 1000;

/// A log stream had to be ended.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("log store: {0}")]
    Disk(#[from] io::Error),
    #[error("a chunk of {0}, which is not assigned to this node")]
    NotAssigned(MemberKey),
    #[error("log file name {0:?} is not allowed")]
    FileName(String),
}

#[derive(Clone)]
pub struct Logs {
    root: Arc<PathBuf>,
    /// By the path of the plain form.
    known: Arc<Mutex<HashMap<PathBuf, Known>>>,
    /// Held while a compressed file becomes a plain one again.
    unpacking: Arc<Mutex<()>>,
    changes: watch::Sender<u64>,
    space: Option<Space>,
    /// Bytes that were written since this process began.
    written: Arc<AtomicU64>,
    /// When a gang last wrote something, as far as this process knows.
    grown: Arc<Mutex<HashMap<GangId, Grown>>>,
}

/// What a gang has written since this process began.
#[derive(Debug, Clone, Copy)]
struct Grown {
    at: Timestamp,
    bytes: u64,
}

/// What is known of a file.
#[derive(Debug, Default)]
struct Known {
    /// Bytes that are on disk for good.
    length: u64,
    /// The end of its index of times; `None` until something is written.
    times: Option<times::End>,
    /// Those who write to it now; it keeps its form meanwhile.
    writers: usize,
}

/// A file of one incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub member: MemberId,
    pub file: String,
    /// Plain bytes.
    pub bytes: u64,
    pub compressed: bool,
    /// When its first and its newest bytes were read, in milliseconds since 1970; the newest may be
    /// some milliseconds older. `None` when nobody knows.
    pub times: Option<(u64, u64)>,
}

impl Logs {
    pub fn new(root: PathBuf) -> Logs {
        let changes = watch::Sender::new(0);
        Logs {
            root: Arc::new(root),
            known: Arc::default(),
            unpacking: Arc::default(),
            changes,
            space: None,
            written: Arc::default(),
            grown: Arc::default(),
        }
    }

    /// Takes nothing while the disk is nearly full.
    pub fn within(self, space: Space) -> Logs {
        Logs { space: Some(space), ..self }
    }

    fn directory(&self, gang: &GangId, epoch: Epoch) -> PathBuf {
        self.root.join(gang.as_str()).join(epoch.to_string())
    }

    fn path(&self, key: &MemberKey, file: &str) -> PathBuf {
        self.directory(&key.gang, key.epoch)
            .join(key.member.to_string())
            .join(format!("{file}.log"))
    }

    /// Bytes of a file that are on disk for good.
    fn durable_length(&self, path: &Path) -> u64 {
        if let Some(known) = self.lock().get(path) {
            return known.length;
        }
        // After a restart: whatever the file has. Its last bytes may not have been flushed before,
        // so they are flushed now, before anybody is told of them.
        let Ok(file) = File::open(path) else {
            return packed::Packed::open(&compressed(path)).map_or(0, |packed| packed.length());
        };
        let length = match (file.sync_data(), file.metadata()) {
            (Ok(()), Ok(metadata)) => metadata.len(),
            _ => 0,
        };
        let mut all = self.lock();
        let known = all.entry(path.to_owned()).or_default();
        known.length = known.length.max(length);
        known.length
    }

    /// Every file of one incarnation with its durable length, in order. Blocking.
    pub fn files(&self, gang: &GangId, epoch: Epoch) -> Vec<(MemberId, String, u64)> {
        let mut files = Vec::new();
        let members = std::fs::read_dir(self.directory(gang, epoch)).into_iter().flatten();
        for member in members.flatten() {
            let name = member.file_name();
            let Some(id) = name.to_str().and_then(|text| text.parse::<MemberId>().ok()) else {
                continue;
            };
            for entry in std::fs::read_dir(member.path()).into_iter().flatten().flatten() {
                let path = entry.path();
                let is_log = path.extension().is_some_and(|end| end == "log" || end == "gz");
                let name = path.file_stem().and_then(|stem| stem.to_str());
                if let Some(file) = name.filter(|_| is_log) {
                    let length = self.durable_length(&path.with_extension("log"));
                    files.push((id, file.to_owned(), length));
                }
            }
        }
        files.sort();
        // Both forms of a file are there after a crash between them.
        files.dedup();
        files
    }

    /// What [`Logs::files`] lists, and what else is known of each. Blocking.
    pub fn stored(&self, gang: &GangId, epoch: Epoch) -> Vec<Stored> {
        let of_file = |(member, file, bytes): (MemberId, String, u64)| {
            let key = MemberKey { gang: gang.clone(), epoch, member };
            let path = self.path(&key, &file);
            let times = Times::open(&path.with_extension("times"), bytes).ends();
            Stored { member, file, bytes, compressed: !path.exists(), times }
        };
        self.files(gang, epoch).into_iter().map(of_file).collect()
    }

    /// Opens a file for reading what is durable of it now; `None` when it does not exist. Blocking.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn open(&self, key: &MemberKey, file: &str) -> io::Result<Option<LogFile>> {
        let path = self.path(key, file);
        // Its form may change between two looks, once.
        for _ in 0..2 {
            let length = self.durable_length(&path);
            match LogFile::open_plain(&path, length) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened.map(Some),
            }
            match LogFile::open_packed(&compressed(&path)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened.map(Some),
            }
        }
        Ok(None)
    }

    /// The index of times of a file with `length` bytes. Blocking.
    pub fn times(&self, key: &MemberKey, file: &str, length: u64) -> Times {
        Times::open(&self.path(key, file).with_extension("times"), length)
    }

    /// Reads durable bytes. Blocking.
    pub fn read(
        &self,
        key: &MemberKey,
        file: &str,
        offset: u64,
        limit: usize,
    ) -> io::Result<Vec<u8>> {
        match self.open(key, file)? {
            Some(mut file) => file.read_at(offset, limit),
            None => Ok(Vec::new()),
        }
    }

    /// Keeps what was found out about an attempt beside the logs of its incarnation, which it may share
    /// with other jobs. Blocking.
    pub fn put_answer(
        &self,
        gang: &GangId,
        epoch: Epoch,
        of: &str,
        answer: &[u8],
    ) -> io::Result<()> {
        let directory = self.directory(gang, epoch);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let fresh = directory.join(format!("why-{of}.new"));
        create(&fresh)?.write_all(answer)?;
        std::fs::rename(fresh, directory.join(format!("why-{of}.json")))
    }

    /// What was found out about an attempt; `None` when nothing was. Blocking.
    pub fn answer(&self, gang: &GangId, epoch: Epoch, of: &str) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.directory(gang, epoch).join(format!("why-{of}.json"))) {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes all logs of a gang that is forgotten. Blocking.
    pub fn remove(&self, gang: &GangId) -> io::Result<()> {
        let directory = self.root.join(gang.as_str());
        match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.lock().retain(|path, _| !path.starts_with(&directory));
        self.grown().remove(gang);
        Ok(())
    }

    /// Bytes that were written since this process began.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// When a gang's log last grew, if this process saw it.
    pub fn last_growth(&self, gang: &GangId) -> Option<Timestamp> {
        self.grown().get(gang).map(|grown| grown.at)
    }

    /// Bytes that a gang has written since this process began and that can be read.
    pub fn growth(&self, gang: &GangId) -> u64 {
        self.grown().get(gang).map_or(0, |grown| grown.bytes)
    }

    // The map is whole after every statement.
    fn grown(&self) -> MutexGuard<'_, HashMap<GangId, Grown>> {
        self.grown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts up whenever a file has grown.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one log stream until it ends. `assigned` says whether this node may write that
    /// member's logs, and `ahead_ms` how far its clock is ahead; acknowledgements go to `control`.
    pub async fn receive(
        &self,
        stream: FrameReceiver,
        assigned: impl Fn(&MemberKey) -> bool,
        ahead_ms: impl Fn() -> Option<i64>,
        control: &mpsc::Sender<CoordinatorMessage>,
    ) -> Result<(), LogError> {
        let (sender, mut chunks) = mpsc::channel(BATCH);
        let reader = tokio::spawn(read_chunks(stream, sender));
        let result = self.write_chunks(&mut chunks, assigned, ahead_ms, control).await;
        if result.is_err() {
            // Dropped, a stream tells its sender that nothing more of it is read.
            reader.abort();
            return result;
        }
        drop(chunks);
        reader.await.map_err(|e| LogError::Disk(io::Error::other(e)))?
    }

    async fn write_chunks(
        &self,
        chunks: &mut mpsc::Receiver<Arrived>,
        assigned: impl Fn(&MemberKey) -> bool,
        ahead_ms: impl Fn() -> Option<i64>,
        control: &mpsc::Sender<CoordinatorMessage>,
    ) -> Result<(), LogError> {
        let mut batch = Vec::with_capacity(BATCH);
        while chunks.recv_many(&mut batch, BATCH).await > 0 {
            for chunk in &batch {
                let (key, file) = chunk.of();
                check_file_name(file)?;
                if !assigned(key) {
                    return Err(LogError::NotAssigned(key.clone()));
                }
            }
            // Nothing more is read meanwhile, and the agents' tails stop.
            if let Some(space) = &self.space {
                let bytes = batch.iter().map(Arrived::plain_bytes).fold(0, u64::saturating_add);
                space.take(bytes).await;
            }
            let this = self.clone();
            let work = std::mem::take(&mut batch);
            let (ahead_ms, now_ms) = (ahead_ms(), Timestamp::now().wall_ms);
            let written = tokio::task::spawn_blocking(move || {
                let mut chunks = unpack(work)?;
                for chunk in &mut chunks {
                    chunk.read_ms = when_read(chunk.read_ms, ahead_ms, now_ms);
                }
                Ok::<_, LogError>(this.write_batch(chunks)?)
            });
            let acks = written.await.map_err(io::Error::other)??;
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
            for ack in acks {
                // The session is gone when nobody takes it; the agent then learns it again.
                let _ = control.send(CoordinatorMessage::LogAck(ack)).await;
            }
        }
        Ok(())
    }

    /// Writes chunks in order, flushes each file once, and returns the new durable offsets. Their times
    /// are those of this clock. Blocking.
    ///
    /// # Errors
    /// The disk refuses; nothing of what failed is acknowledged.
    pub fn write_batch(&self, chunks: Vec<LogChunk>) -> io::Result<Vec<LogAck>> {
        let mut open: HashMap<PathBuf, Writing> = HashMap::new();
        let mut grown: HashMap<GangId, u64> = HashMap::new();
        for chunk in chunks {
            let path = self.path(&chunk.key, &chunk.file);
            let writing = match open.entry(path) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(free) => {
                    let writing = self.begin(free.key(), &chunk);
                    free.insert(writing)
                }
            };
            // What is there already is skipped; what would leave a gap is not written.
            let Some(skip) = writing.length.checked_sub(chunk.offset) else { continue };
            let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(chunk.bytes.len());
            let news = chunk.bytes.split_at(skip).1;
            if news.is_empty() {
                continue;
            }
            let file = match &mut writing.file {
                Some(file) => file,
                None => writing.file.insert(self.open_to_write(&writing.held.path)?),
            };
            file.write_all_at(news, writing.length)?;
            writing.due.extend(writing.times.note(writing.length, chunk.read_ms));
            writing.length += news.len() as u64;
            self.written.fetch_add(news.len() as u64, Ordering::Relaxed);
            *grown.entry(chunk.key.gang.clone()).or_default() += news.len() as u64;
        }
        let finished = open.into_values().map(Writing::finish).collect();
        // After the bytes can be read: who sees this growth finds them.
        let at = Timestamp::now();
        let mut known = self.grown();
        for (gang, bytes) in grown {
            let known = known.entry(gang).or_insert(Grown { at, bytes: 0 });
            (known.at, known.bytes) = (at, known.bytes + bytes);
        }
        finished
    }

    /// Begins to write to a file.
    fn begin(&self, path: &Path, chunk: &LogChunk) -> Writing {
        let length = self.durable_length(path);
        let held = Held { logs: self.clone(), path: path.to_owned() };
        let times = {
            let mut known = self.lock();
            let known = known.entry(path.to_owned()).or_default();
            known.writers += 1;
            known.length = known.length.max(length);
            known.times
        };
        let times = times.unwrap_or_else(|| times::End::of(&path.with_extension("times"), length));
        let ack = LogAck { key: chunk.key.clone(), file: chunk.file.clone(), offset: 0 };
        Writing { held, file: None, length, times, due: Vec::new(), ack }
    }

    fn open_to_write(&self, path: &Path) -> io::Result<File> {
        if let Some(directory) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        // Held until the plain form is there, so that nobody begins an empty one.
        let _unpacking = self.unpacking.lock().unwrap_or_else(PoisonError::into_inner);
        if !path.exists() && compressed(path).exists() {
            self.unpack(path)?;
        }
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
    }
}

/// When bytes that came at `now_ms` were read, on this clock, if a clock that is ahead by `ahead_ms` says
/// `read_ms`.
fn when_read(read_ms: u64, ahead_ms: Option<i64>, now_ms: u64) -> u64 {
    let (ahead_ms, age_ms) = match ahead_ms {
        Some(ahead_ms) => (ahead_ms, MAX_AGE_MS),
        None => (0, MAX_SKEW_MS),
    };
    let read_ms = read_ms.saturating_add_signed(ahead_ms.saturating_neg());
    let believed = now_ms.saturating_sub(age_ms)..=now_ms.saturating_add(MAX_SKEW_MS);
    if believed.contains(&read_ms) { read_ms } else { now_ms }
}

/// A file that keeps its form while this is there.
struct Held {
    logs: Logs,
    path: PathBuf,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(known) = self.logs.lock().get_mut(&self.path) {
            known.writers = known.writers.saturating_sub(1);
        }
    }
}

/// A file that is written to.
struct Writing {
    held: Held,
    /// `None` while nothing new has come.
    file: Option<File>,
    length: u64,
    times: times::End,
    /// Records for the index of times.
    due: Vec<times::Pending>,
    ack: LogAck,
}

impl Writing {
    /// Flushes what was written; from then on it counts.
    fn finish(self) -> io::Result<LogAck> {
        let Writing { held, file, length, times, due, mut ack } = self;
        if let Some(file) = file {
            file.sync_data()?;
            // The bytes are there even if the index stays behind; its end is looked for again.
            let times = match times::write(&held.path.with_extension("times"), &due) {
                Ok(()) => Some(times),
                Err(error) => {
                    tracing::warn!(path = %held.path.display(), %error, "no times of a log");
                    None
                }
            };
            // A stream that was cut may finish behind the one that came after it.
            if let Some(known) = held.logs.lock().get_mut(&held.path)
                && known.length <= length
            {
                (known.length, known.times) = (length, times);
            }
        }
        ack.offset = length;
        Ok(ack)
    }
}

/// Path of the compressed form.
fn compressed(path: &Path) -> PathBuf {
    path.with_extension("gz")
}

/// A new file that only the owner can read; one that is there is emptied.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Names come from agents: a file of a member is a plain name, nothing else.
fn check_file_name(name: &str) -> Result<(), LogError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if (1..=100).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(LogError::FileName(name.chars().take(100).collect()))
}

/// A chunk in the form in which it came.
enum Arrived {
    Plain(LogChunk),
    Packed(PackedLogChunk),
}

impl Arrived {
    fn from_frame(frame: &Frame) -> Result<Arrived, WireError> {
        match frame.kind {
            Kind::PackedLogChunk => PackedLogChunk::from_frame(frame).map(Arrived::Packed),
            _ => LogChunk::from_frame(frame).map(Arrived::Plain),
        }
    }

    /// As many as it claims, if it came packed.
    fn plain_bytes(&self) -> u64 {
        match self {
            Arrived::Plain(chunk) => chunk.bytes.len() as u64,
            Arrived::Packed(chunk) => u64::from(chunk.length).min(LOG_CHUNK_BYTES as u64),
        }
    }

    /// The member and the file that it is of.
    fn of(&self) -> (&MemberKey, &str) {
        match self {
            Arrived::Plain(chunk) => (&chunk.key, &chunk.file),
            Arrived::Packed(chunk) => (&chunk.key, &chunk.file),
        }
    }
}

/// The chunks as they were read. Takes a tenth of a millisecond for a large one. Blocking.
fn unpack(arrived: Vec<Arrived>) -> Result<Vec<LogChunk>, LogError> {
    let mut unpacker = None;
    let unpacked = arrived.into_iter().map(|chunk| match chunk {
        Arrived::Plain(chunk) => Ok(chunk),
        Arrived::Packed(chunk) => {
            let unpacker = match &mut unpacker {
                Some(unpacker) => unpacker,
                None => unpacker.insert(Unpacker::new()?),
            };
            Ok(chunk.unpack(unpacker).map_err(TransportError::Wire)?)
        }
    });
    unpacked.collect()
}

async fn read_chunks(
    mut stream: FrameReceiver,
    chunks: mpsc::Sender<Arrived>,
) -> Result<(), LogError> {
    while let Some(frame) = stream.receive().await? {
        let chunk = Arrived::from_frame(&frame).map_err(TransportError::Wire)?;
        if chunks.send(chunk).await.is_err() {
            stream.stop(gangline_common::transport::close::PROTOCOL);
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gangline_common::wire::packed::Packer;

    use super::*;

    fn key() -> MemberKey {
        "g-a:1.1:0".parse().unwrap()
    }

    fn chunk(offset: u64, bytes: &[u8]) -> LogChunk {
        let read_ms = Timestamp::now().wall_ms;
        LogChunk { key: key(), file: "output".into(), offset, bytes: bytes.to_vec(), read_ms }
    }

    fn offset_after(logs: &Logs, chunks: Vec<LogChunk>) -> u64 {
        logs.write_batch(chunks).unwrap()[0].offset
    }

    #[test]
    fn repeats_change_nothing_and_gaps_are_not_written() {
        let root = tempfile::tempdir().unwrap();
        let logs = Logs::new(root.path().to_owned());
        assert_eq!(offset_after(&logs, vec![chunk(0, b"one "), chunk(4, b"two ")]), 8);
        assert_eq!(offset_after(&logs, vec![chunk(0, b"one two three")]), 13);
        assert_eq!(offset_after(&logs, vec![chunk(20, b"later")]), 13);
        assert_eq!(offset_after(&logs, vec![chunk(2, b"XX")]), 13);
        assert_eq!(logs.read(&key(), "output", 0, 100).unwrap(), b"one two three");
        assert_eq!(logs.read(&key(), "output", 8, 3).unwrap(), b"thr");
        let again = Logs::new(root.path().to_owned());
        let gang = key().gang;
        assert_eq!(
            again.files(&gang, key().epoch),
            vec![(MemberId::Rank(0), "output".to_owned(), 13)]
        );
    }

    #[tokio::test]
    async fn packed_chunks_and_plain_ones_are_one_log() {
        let root = tempfile::tempdir().unwrap();
        let logs = Logs::new(root.path().to_owned());
        let text = b"step:1 - loss:0.5\n".repeat(200);
        let frame = Packer::new().unwrap().frame(chunk(6, &text)).unwrap();
        let packed = PackedLogChunk::from_frame(&frame).unwrap();
        let (control, mut acks) = mpsc::channel(8);
        let receive = async |chunks: Vec<Arrived>| {
            let (sender, mut receiver) = mpsc::channel(BATCH);
            for chunk in chunks {
                assert!(sender.send(chunk).await.is_ok());
            }
            drop(sender);
            logs.write_chunks(&mut receiver, |_| true, || Some(0), &control).await
        };
        let before = Arrived::Plain(chunk(0, b"first\n"));
        let after = Arrived::Plain(chunk(6 + text.len() as u64, b"last\n"));
        receive(vec![before, Arrived::Packed(packed.clone()), after]).await.unwrap();
        let whole = [b"first\n", text.as_slice(), b"last\n"].concat();
        assert_eq!(logs.read(&key(), "output", 0, 1 << 20).unwrap(), whole);
        let Some(CoordinatorMessage::LogAck(ack)) = acks.recv().await else { panic!() };
        assert_eq!(ack.offset, whole.len() as u64);

        // What does not unpack ends the stream, and is not acknowledged.
        let length = packed.length - 1;
        let offset = whole.len() as u64;
        let wrong = Arrived::Packed(PackedLogChunk { offset, length, ..packed });
        let error = receive(vec![wrong]).await.unwrap_err();
        assert!(error.to_string().contains("PackedLogChunk"), "{error}");
        assert!(acks.try_recv().is_err());
        assert_eq!(logs.read(&key(), "output", offset, 9).unwrap(), b"");
    }

    #[test]
    fn times_are_of_this_clock_and_old_ones_are_believed_of_a_clock_that_is_known() {
        let now = 1_000_000_000;
        for (read, ahead, expected) in [
            // An hour ahead, an hour behind, right; cut off for ten minutes.
            (now + 3_600_000 - 40, Some(3_600_000), now - 40),
            (now - 3_600_000 - 40, Some(-3_600_000), now - 40),
            (now - 40, Some(0), now - 40),
            (now - 600_000 + 9, Some(9), now - 600_000),
            // Not measured yet.
            (now - 40, None, now - 40),
            (now + 3_600_000, None, now),
            (now - 600_000, None, now),
            // Of no time at all.
            (0, Some(5), now),
            (u64::MAX, Some(i64::MIN), now),
            (0, Some(i64::MAX), now),
        ] {
            assert_eq!(when_read(read, ahead, now), expected, "{read} {ahead:?}");
        }
    }

    #[test]
    fn the_logs_of_a_gang_go_together() {
        let root = tempfile::tempdir().unwrap();
        let logs = Logs::new(root.path().to_owned());
        let other = LogChunk { key: "g-b:1.1:0".parse().unwrap(), ..chunk(0, b"stays") };
        logs.write_batch(vec![chunk(0, b"goes"), other.clone()]).unwrap();
        logs.remove(&key().gang).unwrap();
        logs.remove(&key().gang).unwrap();
        assert!(logs.files(&key().gang, key().epoch).is_empty());
        assert_eq!(logs.read(&key(), "output", 0, 9).unwrap(), b"");
        assert_eq!(logs.read(&other.key, "output", 0, 9).unwrap(), b"stays");
    }

    #[test]
    fn file_names_are_plain() {
        for bad in ["", "../x", "a/b", "a.b", "x\0", &"y".repeat(101)] {
            assert!(check_file_name(bad).is_err(), "{bad}");
        }
        check_file_name("driver-j-abc-1").unwrap();
    }
}
