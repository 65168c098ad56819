//! Shipping logs: one stream per incarnation of a gang, and on it chunks of its members' files
//! from the acknowledged offset on. At most one chunk is in memory per stream; a slow coordinator
//! simply makes the tail stop reading.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_common::ids::{Epoch, GangId, MemberKey};
use gangline_common::time::Timestamp;
use gangline_common::transport::{Connection, FrameSender, StreamKind, TransportError};
use gangline_common::wire::v1::{LOG_CHUNK_BYTES, LogChunk};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::{Acks, TailPlan};
use crate::driver::Input;
use crate::supervisor::LogSource;

/// How often files are looked at for new bytes.
const POLL: Duration = Duration::from_millis(100);
/// Wait before a stream that was refused or cut is opened again.
const REOPEN: Duration = Duration::from_secs(5);

/// Ships the logs of everything in `plan` over one connection; runs until it is dropped.
pub async fn ship_all(
    connection: &Connection,
    mut plan: watch::Receiver<TailPlan>,
    acks: &Acks,
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
                    driver: driver.clone(),
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
}

/// Ships the members of one incarnation.
struct Shipper {
    gang: GangId,
    epoch: Epoch,
    plan: watch::Receiver<TailPlan>,
    acks: Acks,
    driver: mpsc::Sender<Input>,
    cursors: BTreeMap<(MemberKey, String), Cursor>,
}

/// One look at one file.
#[derive(Debug, PartialEq, Eq)]
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
        loop {
            let members = self.plan.borrow_and_update().of(&self.gang, self.epoch);
            if members.is_empty() {
                if let Some(stream) = stream {
                    stream.finish().await;
                }
                return Ok(());
            }
            let mut more = false;
            for (key, member) in members {
                let mut complete = member.ended;
                for source in &member.sources {
                    let (sent, done) =
                        self.ship_source(connection, &mut stream, &key, source).await?;
                    more |= sent;
                    complete &= done;
                }
                if complete && self.driver.send(Input::LogsComplete(key)).await.is_err() {
                    return Ok(());
                }
            }
            if more {
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                _ = self.plan.changed() => {}
                _ = acknowledged.changed() => {}
            }
        }
    }

    /// Sends at most one chunk of a file. Returns whether it sent one, and whether the file is
    /// complete and acknowledged to its end.
    async fn ship_source(
        &mut self,
        connection: &Connection,
        stream: &mut Option<FrameSender>,
        key: &MemberKey,
        source: &LogSource,
    ) -> Result<(bool, bool), TransportError> {
        let acknowledged = self.acks.offset(key, &source.file);
        let cursor = self.cursors.entry((key.clone(), source.file.clone())).or_default();
        cursor.sent = cursor.sent.max(acknowledged);
        if cursor.truncated {
            return Ok((false, source.complete));
        }
        let look = match read_at(source.path.clone(), cursor.sent).await {
            Ok(look) => look,
            Err(error) => {
                if !std::mem::replace(&mut cursor.complained, true) {
                    let path = source.path.display();
                    tracing::warn!(%key, %path, %error, "cannot read a log; it is tried again");
                }
                return Ok((false, false));
            }
        };
        if look.length < cursor.sent {
            let (length, sent) = (look.length, cursor.sent);
            let path = source.path.display();
            tracing::warn!(%key, %path, length, sent, "a log became shorter; it ends here");
            cursor.truncated = true;
            return Ok((false, source.complete));
        }
        if look.bytes.is_empty() {
            return Ok((false, source.complete && acknowledged >= look.length));
        }
        let offset = cursor.sent;
        cursor.sent += look.bytes.len() as u64;
        let (key, file) = (key.clone(), source.file.clone());
        let read_ms = Timestamp::now().wall_ms;
        let chunk = LogChunk { key, file, offset, bytes: look.bytes, read_ms };
        let frame = chunk.to_frame()?;
        if stream.is_none() {
            *stream = Some(connection.open_uni(StreamKind::Log).await?);
        }
        if let Some(stream) = stream {
            stream.send(&frame).await?;
        }
        Ok((true, false))
    }
}

/// Length of a file, and up to one chunk of it from `offset` on. A file that is not there (any
/// more) has no bytes.
async fn read_at(path: PathBuf, offset: u64) -> io::Result<Look> {
    tokio::task::spawn_blocking(move || read_at_blocking(&path, offset))
        .await
        .map_err(io::Error::other)?
}

fn read_at_blocking(path: &Path, offset: u64) -> io::Result<Look> {
    let empty = |length| Look { length, bytes: Vec::new() };
    let file = match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() <= offset => return Ok(empty(metadata.len())),
        Ok(_) => File::open(path)?,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(empty(0)),
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
    Ok(Look { length, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_one_chunk_at_most() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        assert_eq!(read_at_blocking(&path, 0).unwrap(), Look { length: 0, bytes: vec![] });
        let content: Vec<u8> = (0..LOG_CHUNK_BYTES + 5).map(|n| n as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let length = content.len() as u64;
        let first = read_at_blocking(&path, 0).unwrap();
        assert_eq!(first, Look { length, bytes: content[..LOG_CHUNK_BYTES].to_vec() });
        let rest = read_at_blocking(&path, LOG_CHUNK_BYTES as u64).unwrap();
        assert_eq!(rest.bytes, content[LOG_CHUNK_BYTES..]);
        for beyond in [length, length + 9] {
            assert_eq!(read_at_blocking(&path, beyond).unwrap(), Look { length, bytes: vec![] });
        }
        assert!(read_at_blocking(directory.path(), 0).is_err());
    }
}
