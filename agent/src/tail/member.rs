//! The tails of members: what is followed of each, beside the logs that the supervisor names, and
//! what of it is left out for good.
//!
//! Looks happen in tasks of their own, whether there is a coordinator or not, so that a file that is
//! rotated away meanwhile is open already. What must survive the agent is in the member's spool.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gangline_common::ids::MemberKey;
use gangline_common::time::{Timestamp, wall_text};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::files::{self, Files, FilesScope};
use super::follow::{Bytes, Entry, Follower, News, Seen, mark};
use super::nccl::NcclErrors;
use super::place::Place;
use super::remote::Looked;

/// What must survive the agent, in the member's spool.
const RECORD_FILE: &str = "tails.json";
/// Files that outlive the place in which they were written, in the member's spool.
const KEPT_DIRECTORY: &str = "tails";
/// What a person should know of the tails of a member; a log of its own.
const NOTES_FILE: &str = "notes.log";
/// The name of that log.
pub const NOTES: &str = "log-notes";
/// Most bytes of notes.
const NOTES_BYTES: u64 = 64 << 10;
/// Pauses between two looks: short while files grow.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Between two looks for further files.
const SEARCH_EVERY: Duration = Duration::from_millis(500);
/// A look may take this part of the time.
const PAUSE_PER_WORK: u32 = 20;
/// A file is of an earlier attempt when it was written so long before this one.
const CLOCK_SLACK_S: u64 = 5;
/// Longest time that the end of a member waits for a look at files of its job.
const LAST_LOOK: Duration = Duration::from_secs(3);
/// Most bytes of the logs of one member, where its job does not say.
const DEFAULT_BUDGET: u64 = 16 << 30;

/// Where a stream was ended for good, although its file may go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    pub at: u64,
    /// The line that stands there.
    pub line: String,
}

impl Cut {
    /// The length of the stream with its last line.
    pub fn end(&self) -> u64 {
        self.at.saturating_add(self.line.len() as u64)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    ray: Vec<Entry>,
    files: Vec<Entry>,
    /// When the member was first followed, by the wall clock in seconds.
    since_s: u64,
    cuts: BTreeMap<String, Cut>,
}

/// What is followed of one member.
#[derive(Debug, Clone)]
pub struct Scope {
    pub spool: PathBuf,
    /// Ray's temp dir, where Ray runs.
    pub ray: Option<PathBuf>,
    /// The user whose files in there are followed; any when absent.
    pub owner: Option<u32>,
    /// Files that the job's spec names.
    pub files: Option<FilesScope>,
    /// Most bytes of all its logs; the default when absent.
    pub budget: Option<u64>,
}

/// The tails of every member of this node.
#[derive(Debug, Clone)]
pub struct Tails {
    members: Arc<Mutex<BTreeMap<MemberKey, Arc<MemberTail>>>>,
    changed: watch::Sender<()>,
    pub nccl: NcclErrors,
}

impl Default for Tails {
    fn default() -> Self {
        Tails {
            members: Arc::default(),
            changed: watch::channel(()).0,
            nccl: NcclErrors::default(),
        }
    }
}

impl Tails {
    /// Begins to follow a member, or goes on where an earlier agent stopped. Must be called inside a
    /// tokio runtime.
    pub fn add(&self, key: &MemberKey, scope: Scope) -> Arc<MemberTail> {
        let mut members = lock(&self.members);
        let new = || Arc::new(MemberTail::begin(key, scope, self.changed.clone()));
        Arc::clone(members.entry(key.clone()).or_insert_with(new))
    }

    /// Stops following a member.
    pub fn remove(&self, key: &MemberKey) {
        lock(&self.members).remove(key);
    }

    pub fn get(&self, key: &MemberKey) -> Option<Arc<MemberTail>> {
        lock(&self.members).get(key).cloned()
    }

    /// Tells whenever a followed file has grown.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

/// The tails of one member.
pub struct MemberTail {
    parts: Arc<Parts>,
    /// They end with this value.
    watches: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for MemberTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemberTail").field("key", &self.parts.key).finish_non_exhaustive()
    }
}

struct Parts {
    key: MemberKey,
    scope: Scope,
    /// Used where it may block only.
    ray: Option<Mutex<Follower>>,
    /// Streams of `ray`.
    seen: Mutex<Vec<Seen>>,
    files: Option<Files>,
    record: Mutex<Record>,
    /// How much of each stream need not be read again.
    acknowledged: Mutex<BTreeMap<String, u64>>,
    /// Files that were said to be left out.
    said_left_out: Mutex<usize>,
    said_capped: AtomicBool,
    /// Every stream of `ray` is known to its end.
    settled: AtomicBool,
    changed: watch::Sender<()>,
}

/// The values in them are whole after every statement, so a panic elsewhere does not spoil them.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemberTail {
    fn begin(key: &MemberKey, mut scope: Scope, changed: watch::Sender<()>) -> Self {
        let mut record = read_record(&scope.spool).unwrap_or_else(|error| {
            tracing::warn!(%key, %error, "what is known of the logs cannot be read");
            Record::default()
        });
        let kept = scope.spool.join(KEPT_DIRECTORY);
        let follower = |temp: PathBuf| {
            Mutex::new(Follower::new(Place::Ray { temp }, scope.owner, kept, record.ray.clone()))
        };
        let ray = scope.ray.clone().map(follower);
        if record.since_s == 0 {
            record.since_s = Timestamp::now().wall_ms / 1000;
        }
        let files = scope.files.take().map(|mut files| {
            if let Place::Files { since_s, .. } = &mut files.place {
                *since_s = record.since_s.saturating_sub(CLOCK_SLACK_S);
            }
            Files::new(files, record.files.clone())
        });
        let parts = Arc::new(Parts {
            key: key.clone(),
            settled: AtomicBool::new(ray.is_none()),
            ray,
            scope,
            seen: Mutex::default(),
            files,
            record: Mutex::new(record),
            acknowledged: Mutex::default(),
            said_left_out: Mutex::new(0),
            said_capped: AtomicBool::new(false),
            changed,
        });
        let mut watches = Vec::new();
        if parts.ray.is_some() {
            watches.push(tokio::spawn(watch(Arc::clone(&parts))));
        }
        if parts.files.is_some() {
            watches.push(tokio::spawn(watch_files(Arc::clone(&parts))));
        }
        MemberTail { parts, watches }
    }

    /// The streams as they are now.
    pub fn seen(&self) -> Vec<Seen> {
        let mut seen = lock(&self.parts.seen).clone();
        seen.extend(self.parts.files.iter().flat_map(Files::seen));
        seen
    }

    /// The log of notes.
    pub fn notes(&self) -> PathBuf {
        self.parts.scope.spool.join(NOTES_FILE)
    }

    /// No stream will be added and none will grow.
    pub fn is_settled(&self) -> bool {
        self.parts.settled.load(Ordering::Acquire)
            && self.parts.files.as_ref().is_none_or(Files::is_settled)
    }

    pub fn budget(&self) -> u64 {
        self.parts.scope.budget.unwrap_or(DEFAULT_BUDGET)
    }

    pub fn acknowledge(&self, stream: &str, offset: u64) {
        let mut acknowledged = lock(&self.parts.acknowledged);
        match acknowledged.get_mut(stream) {
            Some(known) => *known = offset.max(*known),
            None if offset > 0 => drop(acknowledged.insert(stream.to_owned(), offset)),
            None => {}
        }
    }

    /// Reads at most `limit` bytes of a stream; none that would have to be waited for.
    pub async fn read(&self, stream: &str, offset: u64, limit: usize) -> io::Result<Bytes> {
        if let Some(files) = self.parts.files.as_ref().filter(|_| stream.starts_with(files::PREFIX))
        {
            return Ok(files.read(stream, offset, limit));
        }
        let (parts, stream) = (Arc::clone(&self.parts), stream.to_owned());
        let read = move || match &parts.ray {
            Some(ray) => lock(ray).read(&stream, offset, limit),
            None => Ok(Bytes::Gone),
        };
        tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
    }

    pub fn cut_of(&self, file: &str) -> Option<Cut> {
        lock(&self.parts.record).cuts.get(file).cloned()
    }

    /// Ends a stream for good at `at`, and says why in its last line.
    pub async fn cut(&self, file: &str, at: u64, why: &str) -> Cut {
        let cut = Cut { at, line: mark(why) };
        let (parts, entry) = (Arc::clone(&self.parts), (file.to_owned(), cut.clone()));
        let written = tokio::task::spawn_blocking(move || {
            parts.note(&format!("{}: {}", entry.0, entry.1.line.trim()));
            let mut record = lock(&parts.record);
            record.cuts.insert(entry.0, entry.1);
            parts.write(&record);
        });
        if let Err(error) = written.await {
            tracing::error!(%error, "a cut was not written down");
        }
        cut
    }

    /// Looks a last time, and keeps what was not acknowledged yet in the spool: Ray's temp dir will be
    /// removed. Blocks.
    pub fn keep(&self) {
        let parts = &self.parts;
        if let Some(ray) = &parts.ray {
            let mut follower = lock(ray);
            let acknowledged = lock(&parts.acknowledged).clone();
            let (news, problem) = follower.keep(&acknowledged);
            parts.take_ray(&follower, &news);
            if let Some(error) = problem {
                tracing::warn!(key = %parts.key, %error, "logs of Ray were not kept");
                parts.note(&format!("logs of Ray were not kept to their end: {error}"));
            }
        }
        parts.settled.store(true, Ordering::Release);
        if let Some(files) = &parts.files {
            files.end();
            // Some may lie in a directory that goes with the member: they are open after that look.
            let until = std::time::Instant::now() + LAST_LOOK;
            while !files.is_settled() && std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        parts.changed.send_replace(());
    }
}

impl Drop for MemberTail {
    fn drop(&mut self) {
        for watch in &self.watches {
            watch.abort();
        }
    }
}

impl Parts {
    /// Takes in what a look has found. What is new is written down before anybody reads it.
    fn take_ray(&self, follower: &Follower, news: &News) {
        if news.entries {
            let mut record = lock(&self.record);
            record.ray = follower.entries();
            self.write(&record);
        }
        *lock(&self.seen) = follower.seen();
        self.take(news);
    }

    /// The same for files of the job; others see their streams afterwards.
    fn take_files(&self, looked: &Looked) {
        if let Some(entries) = &looked.entries {
            let mut record = lock(&self.record);
            record.files.clone_from(entries);
            self.write(&record);
        }
        self.take(&looked.news);
    }

    fn take(&self, news: &News) {
        for note in &news.notes {
            self.note(note);
        }
        let mut said = lock(&self.said_left_out);
        if news.left_out >= (*said * 2).max(1) {
            *said = news.left_out;
            self.note(&format!("{} files are left out: there are too many", news.left_out));
        }
        if news.capped && !self.said_capped.swap(true, Ordering::Relaxed) {
            self.note("there are more files than are looked at: some are left out");
        }
        drop(said);
        if news.grown {
            self.changed.send_replace(());
        }
    }

    fn write(&self, record: &Record) {
        let spool = &self.scope.spool;
        let written = serde_json::to_vec(record).map_err(io::Error::other).and_then(|text| {
            let unfinished = spool.join(".tails.new");
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            file.write_all(&text)?;
            fs::rename(&unfinished, spool.join(RECORD_FILE))
        });
        if let Err(error) = written {
            // After a restart some lines may be kept twice; nothing else depends on it.
            tracing::warn!(key = %self.key, %error, "what is known of the logs was not written");
        }
    }

    fn note(&self, text: &str) {
        tracing::info!(key = %self.key, text, "logs");
        let path = self.scope.spool.join(NOTES_FILE);
        let noted = (|| {
            let mut options = OpenOptions::new();
            let mut file = options.append(true).create(true).mode(0o600).open(path)?;
            if file.metadata()?.len() >= NOTES_BYTES {
                return Ok(());
            }
            writeln!(file, "{} {text}", wall_text(Timestamp::now().wall_ms))
        })();
        if let Err(error) = noted {
            tracing::warn!(key = %self.key, %error, "a note about the logs was not written");
        }
    }
}

fn read_record(spool: &std::path::Path) -> io::Result<Record> {
    match fs::read(spool.join(RECORD_FILE)) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Record::default()),
        Err(error) => Err(error),
    }
}

/// Follows the files of the job until the member is forgotten.
async fn watch_files(parts: Arc<Parts>) {
    let Some(files) = &parts.files else { return };
    let take = |looked: &Looked| parts.take_files(looked);
    let acknowledged = || lock(&parts.acknowledged).clone();
    let arrived = || parts.changed.send_replace(());
    files.watch(take, acknowledged, |problem| parts.note(problem), arrived).await;
}

/// Looks again and again; more often while files grow, and less often when looks take long.
async fn watch(parts: Arc<Parts>) {
    let mut pause = SHORTEST_PAUSE;
    let mut searched: Option<Instant> = None;
    let mut search_every = SEARCH_EVERY;
    let mut complained = false;
    while !parts.settled.load(Ordering::Acquire) {
        let search = searched.is_none_or(|at| at.elapsed() >= search_every);
        let began = Instant::now();
        let looker = Arc::clone(&parts);
        let look = tokio::task::spawn_blocking(move || {
            let Some(ray) = &looker.ray else { return Ok(false) };
            let mut follower = lock(ray);
            if looker.settled.load(Ordering::Acquire) {
                return Ok(false);
            }
            let acknowledged = lock(&looker.acknowledged).clone();
            let news = follower.look(search, &acknowledged)?;
            looker.take_ray(&follower, &news);
            Ok(news.grown)
        });
        let grown = match look.await {
            Ok(Ok(grown)) => grown,
            Ok(Err(error)) => {
                let error: io::Error = error;
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!(key = %parts.key, %error, "cannot look for logs");
                }
                false
            }
            // The runtime is shutting down.
            Err(_) => return,
        };
        let took = began.elapsed();
        if search {
            searched = Some(Instant::now());
            search_every = SEARCH_EVERY.max(took * PAUSE_PER_WORK);
        }
        pause = if grown { SHORTEST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        tokio::time::sleep(pause.max(took)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(spool: &std::path::Path, temp: Option<PathBuf>) -> Scope {
        Scope { spool: spool.to_owned(), ray: temp, owner: None, files: None, budget: Some(1000) }
    }

    fn key() -> MemberKey {
        "g-a:1.1:0".parse().unwrap()
    }

    #[tokio::test]
    async fn a_cut_is_known_to_the_next_agent_and_noted() {
        let spool = tempfile::tempdir().unwrap();
        let tails = Tails::default();
        let tail = tails.add(&key(), scope(spool.path(), None));
        let cut = tail.cut("output", 7, "too long").await;
        assert_eq!((cut.at, cut.line.as_str()), (7, "\n[gangline] too long\n"));
        tails.remove(&key());
        let tail = tails.add(&key(), scope(spool.path(), None));
        assert_eq!(tail.cut_of("output"), Some(cut));
        assert!(tail.is_settled() && tail.seen().is_empty());
        let notes = std::fs::read_to_string(tail.notes()).unwrap();
        assert!(notes.ends_with("output: [gangline] too long\n"), "{notes}");
    }

    #[tokio::test]
    async fn logs_of_ray_are_followed_and_outlive_its_temp_dir() {
        let (root, tails) = (tempfile::tempdir().unwrap(), Tails::default());
        let (spool, temp) = (root.path().join("spool"), root.path().join("t"));
        std::fs::create_dir(&spool).unwrap();
        let tail = tails.add(&key(), scope(&spool, Some(temp.clone())));
        let mut changed = tails.subscribe();
        let logs = temp.join("session_1/logs");
        std::fs::create_dir_all(&logs).unwrap();
        std::os::unix::fs::symlink("session_1", temp.join("session_latest")).unwrap();
        std::fs::write(logs.join("raylet.out"), "one\n").unwrap();
        changed.changed().await.unwrap();
        assert_eq!(tail.read("raylet-out", 0, 100).await.unwrap(), Bytes::Some(b"one\n".to_vec()));
        tail.acknowledge("raylet-out", 2);
        std::fs::write(logs.join("worker-a-b-7.err"), "last words\n").unwrap();
        assert!(!tail.is_settled());
        let kept = Arc::clone(&tail);
        tokio::task::spawn_blocking(move || kept.keep()).await.unwrap();
        std::fs::remove_dir_all(&temp).unwrap();
        drop(tail);
        tails.remove(&key());
        // The next agent finds the member ended.
        let tail = tails.add(&key(), scope(&spool, Some(temp)));
        let again = Arc::clone(&tail);
        tokio::task::spawn_blocking(move || again.keep()).await.unwrap();
        assert!(tail.is_settled());
        let rest = tail.read("raylet-out", 2, 100).await.unwrap();
        assert_eq!(rest, Bytes::Some(b"e\n".to_vec()));
        let name =
            tail.seen().into_iter().map(|seen| seen.name).find(|name| name.contains("worker"));
        let last = tail.read(&name.unwrap(), 0, 100).await.unwrap();
        assert_eq!(last, Bytes::Some(b"last words\n".to_vec()));
    }
}
