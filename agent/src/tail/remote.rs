//! A follower in a process of its own: for files of the job, which are read as the job's user and may
//! lie on a file system that hangs. The agent asks it over a socket, one command at a time, and can
//! give it up at any time.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::follow::{Bytes, Entry, Follower, News, Seen};
use super::place::Place;
use crate::supervisor::Nursery;
use crate::supervisor::files::{Request, Task};
use crate::supervisor::process::{self, ProcessId};

/// Longest command, and longest answer but for the bytes of a file.
const LINE_BYTES: u64 = 4 << 20;
/// Longest time that a command may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the helper follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Following {
    pub place: Place,
    pub entries: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Command {
    /// `last`: nothing will be written any more.
    Look {
        all: bool,
        last: bool,
        acknowledged: BTreeMap<String, u64>,
    },
    Read {
        name: String,
        offset: u64,
        limit: usize,
    },
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Looked(Looked),
    /// So many bytes follow.
    Bytes(usize),
    Gone,
    Failed(String),
}

/// What a look of the helper found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Looked {
    pub news: News,
    pub seen: Vec<Seen>,
    /// The entries, when they have changed.
    pub entries: Option<Vec<Entry>>,
}

/// The life of the helper: carries out commands from stdin until there are none.
pub fn serve(Following { place, entries }: Following) -> io::Result<()> {
    // Nothing is kept elsewhere: the files stay where they are.
    let mut follower = Follower::new(place, None, PathBuf::new(), entries);
    let (mut commands, mut answers) = (io::stdin().lock(), io::stdout().lock());
    loop {
        let mut line = Vec::new();
        if commands.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let command = serde_json::from_slice(&line).map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        let answer = match command {
            Command::Look { all, last, acknowledged } => {
                let looked = match last {
                    true => follower.finish(&acknowledged),
                    false => follower.look(all, &acknowledged),
                };
                looked.map(|news| {
                    let entries = news.entries.then(|| follower.entries());
                    Answer::Looked(Looked { seen: follower.seen(), entries, news })
                })
            }
            Command::Read { name, offset, limit } => {
                follower.read(&name, offset, limit).map(|read| match read {
                    Bytes::Gone => Answer::Gone,
                    Bytes::Some(read) => {
                        bytes = read;
                        Answer::Bytes(bytes.len())
                    }
                })
            }
        };
        let answer = answer.unwrap_or_else(|error| Answer::Failed(error.to_string()));
        let mut line = serde_json::to_vec(&answer).map_err(io::Error::other)?;
        line.push(b'\n');
        answers.write_all(&line)?;
        answers.write_all(&bytes)?;
        answers.flush()?;
    }
}

/// The agent's end of a helper.
pub struct Link {
    stream: BufReader<UnixStream>,
    process: Option<ProcessId>,
}

impl Link {
    /// Starts a helper that follows as the user `run_as`.
    pub async fn start(
        nursery: &Arc<Nursery>,
        run_as: Option<(u32, u32)>,
        following: Following,
    ) -> io::Result<Link> {
        let request = Request { run_as, task: Task::Follow(following) };
        let mut line = serde_json::to_vec(&request).map_err(io::Error::other)?;
        line.push(b'\n');
        let (ours, theirs) = UnixStream::pair()?;
        let nursery = Arc::clone(nursery);
        let birth = tokio::task::spawn_blocking(move || {
            let theirs = theirs.into_std()?;
            theirs.set_nonblocking(false)?;
            nursery.helper(theirs)
        });
        let process = birth.await.map_err(io::Error::other)??;
        let mut link = Link { stream: BufReader::new(ours), process };
        link.stream.write_all(&line).await?;
        Ok(link)
    }

    pub async fn look(
        &mut self,
        all: bool,
        last: bool,
        acknowledged: BTreeMap<String, u64>,
    ) -> io::Result<Looked> {
        match self.ask(&Command::Look { all, last, acknowledged }).await? {
            (Answer::Looked(looked), _) => Ok(looked),
            (Answer::Failed(problem), _) => Err(io::Error::other(problem)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    pub async fn read(&mut self, name: &str, offset: u64, limit: usize) -> io::Result<Bytes> {
        match self.ask(&Command::Read { name: name.to_owned(), offset, limit }).await? {
            (Answer::Bytes(_), bytes) => Ok(Bytes::Some(bytes)),
            (Answer::Gone, _) => Ok(Bytes::Gone),
            (Answer::Failed(problem), _) => Err(io::Error::other(problem)),
            (Answer::Looked(_), _) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// After an error the link is of no use any more.
    async fn ask(&mut self, command: &Command) -> io::Result<(Answer, Vec<u8>)> {
        tokio::time::timeout(PATIENCE, self.exchange(command)).await.map_err(|_| {
            let text = format!("no answer within {} s from the file system", PATIENCE.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, text)
        })?
    }

    async fn exchange(&mut self, command: &Command) -> io::Result<(Answer, Vec<u8>)> {
        let mut line = serde_json::to_vec(command).map_err(io::Error::other)?;
        line.push(b'\n');
        self.stream.write_all(&line).await?;
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(LINE_BYTES);
        if limited.read_until(b'\n', &mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let answer = serde_json::from_slice(&line).map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        if let Answer::Bytes(count) = answer {
            bytes.resize(count.min(LINE_BYTES as usize), 0);
            self.stream.read_exact(&mut bytes).await?;
        }
        Ok((answer, bytes))
    }

    /// Ends the helper, which may take as long as a file system hangs.
    pub fn give_up(self) -> Option<ProcessId> {
        let process = self.process?;
        if let Err(error) = process::send(process, Signal::KILL) {
            tracing::debug!(%error, "a helper cannot be killed");
        }
        Some(process)
    }
}
