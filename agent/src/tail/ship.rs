//! Shipping logs: one stream per incarnation of a gang, and on it chunks of its members' files
//! from the acknowledged offset on. Only a few chunks are in memory per stream ([`AHEAD`] and two more); a
//! slow coordinator simply makes the tail stop reading. What is over a member's budget is cut, and its last line says
//! so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_common::ids::{Epoch, GangId, MemberKey};
use gangline_common::time::Timestamp;
use gangline_common::transport::{Connection, FrameSender, StreamKind, TransportError};
use gangline_common::wire::packed::{LEAST_PACKED, Packer};
use gangline_common::wire::scene::is_scene;
use gangline_common::wire::v1::{LOG_CHUNK_BYTES, LogChunk};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::follow::{Bytes, Seen};
use super::member::{Cut, MemberTail, NOTES, Tails};
use super::{Acks, TailPlan};
use crate::driver::Input;
use crate::supervisor::LogSource;

/// How often files are looked at for new bytes.
const POLL: Duration = Duration::from_millis(100);
/// How often followed streams are gone through although nothing is said to have changed.
const FOLLOWED_POLL: Duration = Duration::from_secs(1);
/// Chunks that are read and packed ahead of the one that is sent.
const AHEAD: usize = 4;
/// Chunks of one file that are sent before others have their turn, and how long that may take.
const TURN: u32 = 64;
const TURN_TIME: Duration = Duration::from_millis(100);
/// Wait before a stream that was refused or cut is opened again.
const REOPEN: Duration = Duration::from_secs(5);

/// Ships the logs of everything in `plan` over one connection, compressed if the coordinator understands
/// that; runs until it is dropped.
pub async fn ship_all(
    connection: &Connection,
    pack: bool,
    mut plan: watch::Receiver<TailPlan>,
    acks: &Acks,
    tails: &Tails,
    driver: &mpsc::Sender<Input>,
) {
    // Dropped with this future, which ends every stream of the session.
    let mut shippers = JoinSet::new();
    let mut running: BTreeSet<(GangId, Epoch)> = BTreeSet::new();
    loop {
        let incarnations = plan.borrow_and_update().incarnations();
        for incarnation in incarnations {
            if running.insert(incarnation.clone()) {
                let shipper = Shipper {
                    gang: incarnation.0,
                    epoch: incarnation.1,
                    plan: plan.clone(),
                    acks: acks.clone(),
                    tails: tails.clone(),
                    driver: driver.clone(),
                    pack,
                    packer: None,
                    cursors: BTreeMap::new(),
                };
                shippers.spawn(shipper.run(connection.clone()));
            }
        }
        tokio::select! {
            changed = plan.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
            }
            Some(ended) = shippers.join_next() => match ended {
                Ok(incarnation) => {
                    running.remove(&incarnation);
                }
                Err(error) => tracing::error!(%error, "a log shipper failed"),
            },
        }
    }
}

/// Where the shipping of one file stands.
#[derive(Debug, Default)]
struct Cursor {
    /// First byte that was not sent on this stream.
    sent: u64,
    /// The file became shorter than what was sent: nothing more is read of it.
    truncated: bool,
    /// An error was logged; it is not repeated on every poll.
    complained: bool,
    /// What the followers were told.
    acknowledged: u64,
}

/// Ships the members of one incarnation.
struct Shipper {
    gang: GangId,
    epoch: Epoch,
    plan: watch::Receiver<TailPlan>,
    acks: Acks,
    tails: Tails,
    driver: mpsc::Sender<Input>,
    pack: bool,
    /// Kept only while there is more to be shipped.
    packer: Option<Packer>,
    cursors: BTreeMap<(MemberKey, String), Cursor>,
}

/// Where the bytes of one log come from.
enum Origin<'a> {
    /// A file that is written by one process and by nobody else touched.
    File(LogSource),
    Followed(&'a MemberTail, Seen),
}

impl Origin<'_> {
    fn file(&self) -> &str {
        match self {
            Origin::File(source) => &source.file,
            Origin::Followed(_, seen) => &seen.name,
        }
    }

    /// Bytes from `offset` on, at most one chunk, and how much is left to be read.
    async fn read(&self, offset: u64) -> io::Result<(Bytes, State)> {
        match self {
            Origin::File(source) => {
                let look = match read_at(source.path.clone(), offset).await? {
                    Some(look) => look,
                    // It may just have been moved: the plan says where to, sooner or later.
                    None if !source.complete => {
                        let state = State { length: offset, complete: false };
                        return Ok((Bytes::Some(Vec::new()), state));
                    }
                    None => Look::default(),
                };
                let gone = look.length < offset;
                let bytes = if gone { Bytes::Gone } else { Bytes::Some(look.bytes) };
                Ok((bytes, State { length: look.length, complete: source.complete }))
            }
            Origin::Followed(tail, seen) => {
                let state = State { length: seen.length, complete: seen.ended };
                if offset >= seen.length {
                    return Ok((Bytes::Some(Vec::new()), state));
                }
                Ok((tail.read(&seen.name, offset, LOG_CHUNK_BYTES).await?, state))
            }
        }
    }
}

/// One log, when its turn comes.
struct Log<'a> {
    key: &'a MemberKey,
    tail: Option<&'a MemberTail>,
    origin: Origin<'a>,
    /// Bytes of the member's budget that are used.
    used: u64,
}

/// What a turn came to.
enum Shipped {
    /// So many bytes were sent, and there may be more.
    Bytes(u64),
    Nothing {
        /// It is complete, and acknowledged to its end.
        complete: bool,
    },
}

/// What is known of a log at a look.
struct State {
    length: u64,
    /// No byte will be added.
    complete: bool,
}

/// One look at one file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Look {
    length: u64,
    bytes: Vec<u8>,
}

impl Shipper {
    async fn run(mut self, connection: Connection) -> (GangId, Epoch) {
        while let Err(error) = self.ship(&connection).await {
            let (gang, epoch) = (&self.gang, self.epoch);
            tracing::info!(%gang, %epoch, %error, "log stream ended; it is opened again");
            tokio::time::sleep(REOPEN).await;
            // What was sent and not acknowledged may be lost.
            self.cursors.clear();
        }
        (self.gang, self.epoch)
    }

    /// Ships until the plan no longer has the incarnation.
    async fn ship(&mut self, connection: &Connection) -> Result<(), TransportError> {
        let mut stream: Option<FrameSender> = None;
        let mut acknowledged = self.acks.subscribe();
        let mut grown = self.tails.subscribe();
        // There may be many followed streams: they are gone through when something has changed.
        let mut changed = true;
        let mut begins = true;
        let mut gone_through = Instant::now();
        loop {
            let all = std::mem::take(&mut changed) || gone_through.elapsed() >= FOLLOWED_POLL;
            if all {
                gone_through = Instant::now();
            }
            let members = self.plan.borrow_and_update().of(&self.gang, self.epoch);
            if members.is_empty() {
                if let Some(stream) = stream {
                    stream.finish().await;
                }
                return Ok(());
            }
            let mut more = false;
            if std::mem::take(&mut begins) {
                // What the coordinator has counts towards a member's budget before anything is read.
                for (key, _) in &members {
                    for (file, offset) in self.acks.of(key) {
                        let cursor = self.cursors.entry((key.clone(), file)).or_default();
                        cursor.sent = cursor.sent.max(offset);
                    }
                }
            }
            for (key, member) in members {
                let tail = self.tails.get(&key);
                // Asked before the streams are: none is added afterwards.
                let settled = tail.as_ref().is_none_or(|tail| tail.is_settled());
                let mut complete = member.ended && settled && all;
                let mut used = self.used(&key);
                let mut origins: Vec<Origin> =
                    member.sources.into_iter().map(Origin::File).collect();
                if let Some(tail) = &tail {
                    let path = tail.notes();
                    let notes = LogSource { file: NOTES.to_owned(), path, complete: settled };
                    origins.push(Origin::File(notes));
                    let seen = if all { tail.seen() } else { Vec::new() };
                    origins.extend(seen.into_iter().map(|seen| Origin::Followed(tail, seen)));
                }
                for origin in origins {
                    let log = Log { key: &key, tail: tail.as_deref(), origin, used };
                    match self.ship_one(connection, &mut stream, log).await? {
                        Shipped::Bytes(count) => {
                            (more, complete) = (true, false);
                            used = used.saturating_add(count);
                        }
                        Shipped::Nothing { complete: done } => complete &= done,
                    }
                }
                if complete && self.driver.send(Input::LogsComplete(key)).await.is_err() {
                    return Ok(());
                }
            }
            if more {
                changed = all;
                continue;
            }
            self.packer = None;
            changed = tokio::select! {
                () = tokio::time::sleep(POLL) => false,
                _ = self.plan.changed() => true,
                _ = acknowledged.changed() => true,
                _ = grown.changed() => true,
            }
        }
    }

    /// Sends at most one chunk of a log.
    async fn ship_one(
        &mut self,
        connection: &Connection,
        stream: &mut Option<FrameSender>,
        Log { key, tail, origin, used }: Log<'_>,
    ) -> Result<Shipped, TransportError> {
        let file = origin.file().to_owned();
        let acknowledged = self.acks.offset(key, &file);
        let at = (key.clone(), file.clone());
        let cursor = self.cursors.entry(at.clone()).or_default();
        cursor.sent = cursor.sent.max(acknowledged);
        if cursor.truncated {
            return Ok(Shipped::Nothing { complete: true });
        }
        let offset = cursor.sent;
        if let Some(tail) = tail.filter(|_| cursor.acknowledged != acknowledged) {
            cursor.acknowledged = acknowledged;
            tail.acknowledge(&file, acknowledged);
        }
        let cut = tail.and_then(|tail| tail.cut_of(&file));
        let rest = cut.as_ref().and_then(|cut| cut_from(cut, offset));
        let (mut bytes, complete) = match rest {
            Some(rest) => (rest, cut.as_ref().is_some_and(|cut| acknowledged >= cut.end())),
            None => match origin.read(offset).await {
                Ok((Bytes::Some(bytes), state)) => {
                    (bytes, state.complete && acknowledged >= state.length)
                }
                Ok((Bytes::Gone, state)) => {
                    let complete = self.lose(key, tail, &origin, state).await;
                    return Ok(Shipped::Nothing { complete });
                }
                Err(error) => {
                    if !std::mem::replace(&mut cursor.complained, true) {
                        tracing::warn!(%key, file, %error, "cannot read a log; it is tried again");
                    }
                    return Ok(Shipped::Nothing { complete: false });
                }
            },
        };
        if bytes.is_empty() {
            return Ok(Shipped::Nothing { complete });
        }
        // These are bounded, and say most when there is much.
        let is_free = is_scene(&file) || file == NOTES;
        if is_free {
            // Nothing of them is cut.
        } else if let Some(tail) = tail.filter(|_| cut.is_none()) {
            let budget = share(tail.budget(), &origin);
            let room = budget.saturating_sub(used);
            if (bytes.len() as u64) > room {
                if offset == 0 {
                    // Of a log that would begin here nothing is kept, nor is it said in each.
                    return Ok(Shipped::Nothing { complete: true });
                }
                let why = format!("the rest is left out: the logs here are over {budget} bytes");
                tail.cut(&file, offset, &why).await;
                return Ok(Shipped::Bytes(0));
            }
        } else if let Some(cut) = cut.as_ref().filter(|cut| offset < cut.at) {
            bytes.truncate(usize::try_from(cut.at - offset).unwrap_or(usize::MAX));
        }
        let count = bytes.len() as u64;
        cursor.sent += count;
        let stream = match stream {
            Some(stream) => stream,
            None => stream.insert(connection.open_uni(StreamKind::Log).await?),
        };
        let read_ms = Timestamp::now().wall_ms;
        let chunk = LogChunk { key: key.clone(), file, offset, bytes, read_ms };
        if count < LEAST_PACKED as u64 {
            self.tails.nccl.look(&chunk.key.gang, &chunk.bytes);
            stream.send(&chunk.to_frame()?).await?;
            return Ok(Shipped::Bytes(count));
        }
        // A file of which there is more than a chunk is read ahead, within the member's budget.
        let ahead = match &origin {
            Origin::File(source) if count == LOG_CHUNK_BYTES as u64 && cut.is_none() => {
                let room = match tail.filter(|_| !is_free) {
                    Some(tail) => share(tail.budget(), &origin).saturating_sub(used + count),
                    None => u64::MAX,
                };
                Some((source.path.clone(), room))
            }
            _ => None,
        };
        let more = self.send_on(stream, chunk, ahead).await?;
        if let Some(cursor) = self.cursors.get_mut(&at) {
            cursor.sent += more;
        }
        Ok(Shipped::Bytes(count + more))
    }

    /// Sends a chunk, and what follows it in a file as far as there is room for it. Returns the bytes of
    /// the latter.
    async fn send_on(
        &mut self,
        stream: &mut FrameSender,
        chunk: LogChunk,
        ahead: Option<(PathBuf, u64)>,
    ) -> Result<u64, TransportError> {
        let (pack, packer, nccl) = (self.pack, self.packer.take(), self.tails.nccl.clone());
        let first = chunk.bytes.len() as u64;
        let (frames, mut ready) = mpsc::channel(AHEAD);
        // One thread reads and packs while this task sends; it ends when nobody takes its frames.
        let reading = tokio::task::spawn_blocking(move || {
            let mut packer = match (pack, packer) {
                (true, None) => Some(Packer::new().map_err(|error| not_packed(&error))?),
                (_, packer) => packer,
            };
            let mut next = Some(chunk);
            let (mut left, mut turns) = (ahead, TURN);
            while let Some(chunk) = next.take() {
                nccl.look(&chunk.key.gang, &chunk.bytes);
                let LogChunk { key, file, .. } = &chunk;
                let (key, file) = (key.clone(), file.clone());
                let (offset, count) = (chunk.offset, chunk.bytes.len() as u64);
                let frame = match &mut packer {
                    Some(packer) => packer.frame(chunk)?,
                    None => chunk.to_frame()?,
                };
                if frames.blocking_send((frame, count)).is_err() {
                    break;
                }
                turns -= 1;
                if let Some((path, room)) = left.as_mut().filter(|_| turns > 0) {
                    next = follow(path, key, file, offset + count, room);
                }
            }
            Ok::<_, TransportError>(packer)
        });
        let mut sent = 0;
        let began = Instant::now();
        while let Some((frame, count)) = ready.recv().await {
            stream.send(&frame).await?;
            sent += count;
            if began.elapsed() >= TURN_TIME {
                break;
            }
        }
        drop(ready);
        let failed = |error: tokio::task::JoinError| not_packed(&error);
        self.packer = reading.await.map_err(failed)??;
        Ok(sent.saturating_sub(first))
    }

    /// Bytes of a member's logs up to where their shipping stands.
    fn used(&self, key: &MemberKey) -> u64 {
        let from = (key.clone(), String::new());
        let own = self.cursors.range(from..).take_while(|((of, _), _)| of == key);
        own.map(|(_, cursor)| cursor.sent).fold(0, u64::saturating_add)
    }

    /// Ends a log of which further bytes cannot be read any more. Returns whether nothing is left to
    /// be done for it.
    async fn lose(
        &mut self,
        key: &MemberKey,
        tail: Option<&MemberTail>,
        origin: &Origin<'_>,
        state: State,
    ) -> bool {
        let file = origin.file().to_owned();
        let cursor = self.cursors.entry((key.clone(), file.clone())).or_default();
        let (length, sent) = (state.length, cursor.sent);
        match tail {
            // Nothing of it was ever read: there is no log to say it in.
            Some(tail) if sent > 0 && matches!(origin, Origin::Followed(..)) => {
                tail.cut(&file, sent, "what followed cannot be read any more").await;
                false
            }
            _ => {
                tracing::warn!(%key, file, length, sent, "a log became shorter; it ends here");
                cursor.truncated = true;
                state.complete
            }
        }
    }
}

fn not_packed(error: &dyn std::error::Error) -> TransportError {
    TransportError::Stream(format!("reading ahead: {error}"))
}

/// The chunk of a file from `offset` on, if it is within `room`, which it takes its bytes from. Whatever
/// else there is about the file is seen at its next turn.
fn follow(
    path: &Path,
    key: MemberKey,
    file: String,
    offset: u64,
    room: &mut u64,
) -> Option<LogChunk> {
    let bytes = read_at_blocking(path, offset).ok()??.bytes;
    *room = room.checked_sub(bytes.len() as u64).filter(|_| !bytes.is_empty())?;
    Some(LogChunk { key, file, offset, bytes, read_ms: Timestamp::now().wall_ms })
}

/// What a stream that was cut has from `offset` on, if that is behind the cut.
fn cut_from(cut: &Cut, offset: u64) -> Option<Vec<u8>> {
    let within = usize::try_from(offset.checked_sub(cut.at)?).unwrap_or(usize::MAX);
    Some(cut.line.as_bytes().get(within..).unwrap_or_default().to_vec())
}

/// How much of a member's budget may be used when a log of this origin is read: what its own process
/// and its Ray driver say comes first.
fn share(budget: u64, origin: &Origin<'_>) -> u64 {
    match origin {
        Origin::File(_) => budget,
        Origin::Followed(..) => budget / 4 * 3,
    }
}

/// Length of a file, and up to one chunk of it from `offset` on; `None` when it is not there (any more).
async fn read_at(path: PathBuf, offset: u64) -> io::Result<Option<Look>> {
    tokio::task::spawn_blocking(move || read_at_blocking(&path, offset))
        .await
        .map_err(io::Error::other)?
}

fn read_at_blocking(path: &Path, offset: u64) -> io::Result<Option<Look>> {
    let empty = |length| Look { length, bytes: Vec::new() };
    let file = match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() <= offset => return Ok(Some(empty(metadata.len()))),
        Ok(_) => File::open(path)?,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let length = file.metadata()?.len();
    let wanted = length.saturating_sub(offset).min(LOG_CHUNK_BYTES as u64) as usize;
    let mut bytes = vec![0; wanted];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(filled);
    Ok(Some(Look { length, bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_stream_ends_in_its_line() {
        let cut = Cut { at: 10, line: "\n[x]\n".to_owned() };
        assert_eq!(cut_from(&cut, 9), None);
        assert_eq!(cut_from(&cut, 10), Some(b"\n[x]\n".to_vec()));
        assert_eq!(cut_from(&cut, 13), Some(b"]\n".to_vec()));
        // Nothing follows, also where a coordinator has more than it was sent.
        for offset in [cut.end(), cut.end() + 7] {
            assert_eq!(cut_from(&cut, offset), Some(vec![]));
        }
    }

    #[test]
    fn a_look_is_one_chunk_at_most() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        assert_eq!(read_at_blocking(&path, 0).unwrap(), None);
        let content: Vec<u8> = (0..LOG_CHUNK_BYTES + 5).map(|n| n as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let length = content.len() as u64;
        let first = read_at_blocking(&path, 0).unwrap();
        assert_eq!(first, Some(Look { length, bytes: content[..LOG_CHUNK_BYTES].to_vec() }));
        let rest = read_at_blocking(&path, LOG_CHUNK_BYTES as u64).unwrap();
        assert_eq!(rest.unwrap().bytes, content[LOG_CHUNK_BYTES..]);
        for beyond in [length, length + 9] {
            let empty = Look { length, bytes: vec![] };
            assert_eq!(read_at_blocking(&path, beyond).unwrap(), Some(empty));
        }
        assert!(read_at_blocking(directory.path(), 0).is_err());
    }
}
