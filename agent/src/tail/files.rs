//! The files that a job's spec names, through a helper (`remote`). Whoever reads of them never waits
//! for a file system: what is not here yet is asked for and comes later.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::follow::{Bytes, Entry, Seen};
use super::member::lock;
use super::place::Place;
use super::remote::{Following, Link, Looked};
use crate::supervisor::Nursery;
use crate::supervisor::process::{self, ProcessId};

/// Names of these streams begin so; see [`Place::name`].
pub const PREFIX: &str = "file-";
/// Pauses between two looks: short while files grow.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Between two looks for further files.
const SEARCH_EVERY: Duration = Duration::from_secs(2);
/// A search may take this part of the time.
const PAUSE_PER_SEARCH: u32 = 20;
/// After a helper that failed.
const RETRY: Duration = Duration::from_secs(10);
/// Once the member has ended, files that cannot be looked at for so long are given up: those that its
/// spec names, and those that it does not.
pub const NAMED_PATIENCE: Duration = Duration::from_secs(60);
pub const OTHER_PATIENCE: Duration = Duration::from_secs(10);
/// The latter are looked for later.
pub const OTHER_DELAY: Duration = Duration::from_secs(2);
/// Reads that wait at a time; further ones are asked for again.
const MAX_WANTED: usize = 16;

/// What is to be followed.
#[derive(Debug, Clone)]
pub struct FilesScope {
    pub place: Place,
    pub run_as: Option<(u32, u32)>,
    pub nursery: Arc<Nursery>,
    /// The first look comes so late, or with the member's end: its start need not share its node's CPUs
    /// with a helper.
    pub delay: Duration,
    /// How long the end of the member waits for files that cannot be looked at.
    pub patience: Duration,
}

pub(super) struct Files {
    scope: FilesScope,
    /// What an earlier agent left, and then what the newest look said.
    entries: Mutex<Vec<Entry>>,
    seen: Mutex<Vec<Seen>>,
    reads: Mutex<Reads>,
    wake: Notify,
    ended: AtomicBool,
    settled: AtomicBool,
    given_up: AtomicBool,
}

#[derive(Default)]
struct Reads {
    /// Stream, offset and most bytes of what is asked for.
    wanted: BTreeMap<String, (u64, usize)>,
    ready: BTreeMap<String, (u64, Bytes)>,
}

impl Files {
    pub fn new(scope: FilesScope, entries: Vec<Entry>) -> Self {
        Files {
            scope,
            entries: Mutex::new(entries),
            seen: Mutex::default(),
            reads: Mutex::default(),
            wake: Notify::new(),
            ended: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        }
    }

    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.seen).clone()
    }

    /// What is here of a stream from `offset` on; what is not is asked for.
    pub fn read(&self, name: &str, offset: u64, limit: usize) -> Bytes {
        if self.given_up.load(Ordering::Acquire) {
            return Bytes::Gone;
        }
        let mut reads = lock(&self.reads);
        if let Some((at, bytes)) = reads.ready.remove(name)
            && at == offset
        {
            return bytes;
        }
        if reads.wanted.len() < MAX_WANTED {
            reads.wanted.insert(name.to_owned(), (offset, limit));
            self.wake.notify_one();
        }
        Bytes::Some(Vec::new())
    }

    /// The member has ended: one more look, and nothing is added any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Every stream is known to its end, or given up.
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    fn give_up(&self) {
        // The order matters: who sees that it is settled sees that it is given up.
        self.given_up.store(true, Ordering::Release);
        for seen in lock(&self.seen).iter_mut() {
            seen.ended = true;
        }
        self.settled.store(true, Ordering::Release);
    }

    /// Looks and reads until it is dropped. `take` is told of every look, `acknowledged` what need not
    /// be read again, and `arrived` of bytes that were asked for.
    pub async fn watch(
        &self,
        take: impl Fn(&Looked),
        acknowledged: impl Fn() -> BTreeMap<String, u64>,
        problem: impl Fn(&str),
        arrived: impl Fn(),
    ) {
        let mut link: Option<Link> = None;
        let mut hanging: Option<ProcessId> = None;
        let mut ended_at: Option<Instant> = None;
        let mut said = false;
        let mut rhythm = Rhythm::default();
        tokio::select! {
            () = tokio::time::sleep(self.scope.delay) => {}
            () = self.wake.notified() => {}
        }
        loop {
            let ended = self.ended.load(Ordering::Acquire);
            if ended && ended_at.is_none() {
                ended_at = Some(Instant::now());
            }
            let outcome = self.one_round(&mut link, &mut hanging, &mut rhythm, &acknowledged).await;
            let pause = match outcome {
                Ok(Some(looked)) => {
                    if let Some(entries) = &looked.entries {
                        lock(&self.entries).clone_from(entries);
                    }
                    take(&looked);
                    *lock(&self.seen) = looked.seen;
                    self.settled.fetch_or(ended, Ordering::AcqRel);
                    arrived();
                    rhythm.pause
                }
                Ok(None) => {
                    arrived();
                    rhythm.pause
                }
                Err(error) => {
                    if !std::mem::replace(&mut said, true) {
                        problem(&format!("files of the job cannot be followed: {error}"));
                    }
                    hanging = link.take().and_then(Link::give_up).or(hanging);
                    RETRY
                }
            };
            if link.is_some() {
                ended_at = ended_at.map(|_| Instant::now());
            } else if ended_at.is_some_and(|at| at.elapsed() >= self.scope.patience) {
                problem("files of the job are not read to their end: their file system hangs");
                self.give_up();
                arrived();
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wake.notified(), if link.is_some() => {}
            }
        }
    }

    /// Reads what was asked for, and looks if it is time. Returns what a look found.
    async fn one_round(
        &self,
        link: &mut Option<Link>,
        hanging: &mut Option<ProcessId>,
        rhythm: &mut Rhythm,
        acknowledged: &impl Fn() -> BTreeMap<String, u64>,
    ) -> io::Result<Option<Looked>> {
        let link = match link {
            Some(link) => link,
            None => {
                // Never a second helper beside one that hangs.
                if hanging.is_some_and(process::lives) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let entries = lock(&self.entries).clone();
                let FilesScope { place, run_as, nursery, .. } = &self.scope;
                let following = Following { place: place.clone(), entries };
                *rhythm = Rhythm::default();
                link.insert(Link::start(nursery, *run_as, following).await?)
            }
        };
        let wanted = std::mem::take(&mut lock(&self.reads).wanted);
        for (name, (offset, limit)) in wanted {
            let bytes = link.read(&name, offset, limit).await?;
            // Nothing to read: a later look says more.
            if bytes != Bytes::Some(Vec::new()) {
                lock(&self.reads).ready.insert(name, (offset, bytes));
            }
        }
        // Others may write there still, and nobody would end what they begin.
        if self.is_settled() {
            return Ok(None);
        }
        let last = self.ended.load(Ordering::Acquire);
        if !last && !rhythm.is_due() {
            return Ok(None);
        }
        let all = rhythm.is_search_due();
        let began = Instant::now();
        let looked = link.look(all, last, acknowledged()).await?;
        rhythm.looked(all, looked.news.grown, began.elapsed());
        Ok(Some(looked))
    }
}

/// When to look, and when to look for further files.
struct Rhythm {
    pause: Duration,
    looked: Option<Instant>,
    searched: Option<Instant>,
    search_every: Duration,
}

impl Default for Rhythm {
    fn default() -> Self {
        let (pause, search_every) = (SHORTEST_PAUSE, SEARCH_EVERY);
        Rhythm { pause, looked: None, searched: None, search_every }
    }
}

impl Rhythm {
    fn is_due(&self) -> bool {
        self.looked.is_none_or(|at| at.elapsed() >= self.pause)
    }

    fn is_search_due(&self) -> bool {
        self.searched.is_none_or(|at| at.elapsed() >= self.search_every)
    }

    fn looked(&mut self, all: bool, grown: bool, took: Duration) {
        self.pause =
            if grown { SHORTEST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) }.max(took);
        self.looked = Some(Instant::now());
        if all {
            self.searched = self.looked;
            self.search_every = SEARCH_EVERY.max(took * PAUSE_PER_SEARCH);
        }
    }
}
