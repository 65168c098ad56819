//! The code of jobs on this node: makes sure that a tree is where a job expects it.
//!
//! A tree is fetched once, and anew when it is found changed before a member uses it. The agent
//! itself only passes bytes on: from a stream of the coordinator to a helper process, which checks
//! and writes them (`layout`) and compares what is there (`picture`), because file operations below
//! the shared root may hang and are done as the job's user.

mod layout;
mod picture;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::JobId;
use gangline_common::transport::{Connection, StreamKind, TransportError};
use gangline_common::wire::WireError;
use gangline_common::wire::v1::{CodePart, CodeRequest, CodeTree};
use gangline_tree::Hash;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::supervisor::Nursery;
pub use layout::helper_main;
use layout::{CHANGED, DONE, Order, SEND, THERE};
pub use picture::remove_tree;

/// Pause before a fetch that was cut off begins anew.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Longest answer of the helper, in bytes.
const ANSWER_BYTES: u64 = 4 << 10;
/// Where trees lie below a shared root, before and after the user's name.
const USERS: &str = "users";
const CODE: &str = "code";

/// Why a tree is not there.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    #[error("`{0}` is not the name of a tree")]
    Name(String),
    #[error("`{0}` is not the name of a user")]
    User(String),
    #[error("{0}")]
    Refused(String),
    #[error("it cannot be written: {0}")]
    Layout(String),
    #[error("the file helper: {0}")]
    Helper(#[from] std::io::Error),
    /// Tried again.
    #[error("the connection to the coordinator failed: {0}")]
    Transport(#[from] TransportError),
    #[error("the coordinator's answer: {0}")]
    Wire(#[from] WireError),
    #[error("it was not complete after {} s{}", .0.as_secs(), .1)]
    Late(Duration, String),
}

/// Where the trees of one user, or of one member, lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shelf {
    /// There already.
    root: PathBuf,
    /// Directories below it, which are made, and followed only as directories.
    below: Vec<String>,
}

impl Shelf {
    /// The shelf of a job's code; `own` is a directory for this member alone.
    pub fn of(code: &CodeTree, own: &Path) -> Shelf {
        match &code.shared_root {
            Some(root) => Shelf {
                root: root.into(),
                below: vec![USERS.to_owned(), code.user.clone(), CODE.to_owned()],
            },
            None => Shelf { root: own.to_owned(), below: Vec::new() },
        }
    }

    fn path(&self) -> PathBuf {
        self.below.iter().fold(self.root.clone(), |path, name| path.join(name))
    }
}

/// The directory of a tree; `None` for a name that is none.
pub fn directory(code: &CodeTree, own: &Path) -> Option<PathBuf> {
    let tree = Hash::from_text(&code.tree)?;
    Some(Shelf::of(code, own).path().join(tree.hex()))
}

/// Gets trees from the coordinator, over whatever connection there is.
#[derive(Clone)]
pub struct Code {
    connection: watch::Receiver<Option<Connection>>,
}

/// What is needed of a job to have its code.
pub struct Wish<'a> {
    pub job: &'a JobId,
    pub code: &'a CodeTree,
    /// See [`Shelf::of`].
    pub own: &'a Path,
    pub run_as: Option<(u32, u32)>,
    /// The whole of it may take this long.
    pub patience: Duration,
}

impl Code {
    /// `connection` is the link's present one.
    pub fn new(connection: watch::Receiver<Option<Connection>>) -> Code {
        Code { connection }
    }

    /// Without a coordinator: only trees that are there can be had.
    pub fn offline() -> Code {
        Code { connection: watch::channel(None).1 }
    }

    /// Makes sure that the tree is in its directory, which is the answer. Of several nodes that share
    /// the directory one fetches, the others wait for it.
    pub async fn ensure(
        &self,
        nursery: &Arc<Nursery>,
        wish: &Wish<'_>,
    ) -> Result<PathBuf, CodeError> {
        let Wish { code, own, .. } = wish;
        let name = || CodeError::Name(code.tree.clone());
        let tree = Hash::from_text(&code.tree).ok_or_else(name)?;
        let shelf = Shelf::of(code, own);
        if !shelf.below.iter().all(|name| is_plain(name)) {
            return Err(CodeError::User(code.user.clone()));
        }
        let order = Order {
            run_as: wish.run_as,
            root: shelf.root.clone(),
            below: shelf.below.clone(),
            tree: tree.hex(),
        };
        let directory = shelf.path().join(tree.hex());
        let deadline = Instant::now() + wish.patience;
        let mut last = String::new();
        loop {
            let fetched = self.fetch(nursery, &order, wish);
            match tokio::time::timeout_at(deadline, fetched).await {
                Ok(Ok(())) => return Ok(directory),
                Ok(Err(error @ (CodeError::Transport(_) | CodeError::Late(..)))) => {
                    tracing::info!(job = %wish.job, %error, "code is fetched anew");
                    last = format!(" ({error})");
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(CodeError::Late(wish.patience, last)),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// One try: a helper, and when it has to write, a stream to copy from.
    async fn fetch(
        &self,
        nursery: &Arc<Nursery>,
        order: &Order,
        wish: &Wish<'_>,
    ) -> Result<(), CodeError> {
        let (answers, mut input) = start_helper(nursery).await?.into_split();
        // With this future the socket goes, and the helper with it.
        let mut answers = BufReader::new(answers.take(ANSWER_BYTES));
        let mut line = serde_json::to_vec(order).map_err(std::io::Error::from)?;
        line.push(b'\n');
        input.write_all(&line).await?;
        match answer(&mut answers).await?.as_str() {
            THERE => return Ok(()),
            SEND => {}
            said => match said.strip_prefix(CHANGED) {
                Some(how) => tracing::warn!(
                    job = %wish.job,
                    tree = wish.code.tree,
                    how,
                    "the code that lies here is not used: it is put aside, and fetched anew"
                ),
                None => return Err(CodeError::Layout(said.to_owned())),
            },
        }
        let began = std::time::Instant::now();
        let passed = self.pass(&mut input, wish).await;
        if let Err(error) = passed
            && !matches!(error, CodeError::Helper(_))
        {
            return Err(error);
        }
        // Why it takes no more it says itself.
        drop(input);
        match answer(&mut answers).await?.as_str() {
            DONE => {
                tracing::info!(job = %wish.job, tree = wish.code.tree, took = ?began.elapsed(), "code fetched");
                Ok(())
            }
            error => Err(CodeError::Layout(error.to_owned())),
        }
    }

    /// Passes the coordinator's answer on to the helper.
    async fn pass(&self, input: &mut OwnedWriteHalf, wish: &Wish<'_>) -> Result<(), CodeError> {
        let connection = self.connected().await;
        let (mut sender, mut receiver) = connection.open_bi(StreamKind::Code).await?;
        let (job, tree) = (wish.job.clone(), wish.code.tree.clone());
        sender.send(&CodeRequest { job, tree }.to_frame()?).await?;
        while let Some(frame) = receiver.receive().await? {
            match CodePart::from_frame(&frame)? {
                CodePart::Bytes { bytes } => input.write_all(&bytes).await?,
                CodePart::Refused { reason } => return Err(CodeError::Refused(reason)),
            }
        }
        input.shutdown().await?;
        Ok(())
    }

    /// The present connection, as soon as there is one.
    async fn connected(&self) -> Connection {
        let mut connection = self.connection.clone();
        loop {
            if let Some(connection) = connection.borrow_and_update().clone() {
                return connection;
            }
            if connection.changed().await.is_err() {
                // The link has ended for good; who waits has a deadline.
                std::future::pending::<()>().await;
            }
        }
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

async fn start_helper(nursery: &Arc<Nursery>) -> Result<UnixStream, CodeError> {
    let (ours, theirs) = UnixStream::pair()?;
    let nursery = Arc::clone(nursery);
    let birth = tokio::task::spawn_blocking(move || {
        let theirs = theirs.into_std()?;
        theirs.set_nonblocking(false)?;
        nursery.code_helper(theirs)
    });
    birth.await.map_err(std::io::Error::other)??;
    Ok(ours)
}

type Answers = BufReader<tokio::io::Take<OwnedReadHalf>>;

async fn answer(answers: &mut Answers) -> Result<String, CodeError> {
    let mut line = String::new();
    answers.read_line(&mut line).await?;
    match line.trim_end() {
        "" => Err(CodeError::Layout("the file helper ended without an answer".to_owned())),
        line => Ok(line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_its_place_below_the_shared_root_or_of_its_own() {
        let tree = Hash::of(b"x");
        let mut code = CodeTree {
            tree: tree.to_string(),
            shared_root: Some("/nfs".to_owned()),
            user: "alice".to_owned(),
        };
        let own = Path::new("/tmp/g/m.code");
        let at = |code: &CodeTree| directory(code, own).unwrap();
        assert_eq!(at(&code), Path::new("/nfs/users/alice/code").join(tree.hex()));
        code.shared_root = None;
        assert_eq!(at(&code), own.join(tree.hex()));
        code.tree = "blake3:../x".to_owned();
        assert_eq!(directory(&code, own), None);
    }

    #[tokio::test]
    async fn a29_a_user_whose_name_is_a_path_gets_nothing() {
        let nursery = Arc::new(Nursery::new("/nonexistent".into()));
        for user in ["..", "a/b", "", "."] {
            let code = CodeTree {
                tree: Hash::of(b"x").to_string(),
                shared_root: Some("/nfs".to_owned()),
                user: user.to_owned(),
            };
            let job = JobId::new("j-1").unwrap();
            let patience = Duration::from_secs(1);
            let own = Path::new("/x/y");
            let wish = Wish { job: &job, code: &code, own, run_as: None, patience };
            let error = Code::offline().ensure(&nursery, &wish).await.unwrap_err();
            assert!(matches!(error, CodeError::User(_)), "{error}");
        }
    }
}
