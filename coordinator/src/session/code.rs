//! Code for agents: one stream per question, answered with a whole tree.
//!
//! An agent gets the code of jobs that are assigned to its node and no other; who it is says its
//! certificate, never the question (A18, A38).

use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::MemberId;
use gangline_common::tls::AgentCertificate;
use gangline_common::transport::{
    Connection, FrameReceiver, FrameSender, StreamKind, TransportError,
};
use gangline_common::wire::v1::{CODE_PART_BYTES, CodePart, CodeRequest};
use gangline_tree::{Hash, Tree};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::core::job::GuestShare;
use crate::server::Server;
use crate::trees::{Trees, TreesError};

/// Questions that one session answers at a time.
const STREAMS: usize = 2;
/// A question must come within this, and the agent must take each part of the answer within it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pieces that are read ahead of a slow agent; each has at most a chunk.
const READ_AHEAD: usize = 4;

/// Answers every question of a session until the connection ends.
pub async fn serve_all(
    server: &Arc<Server>,
    connection: &Connection,
    agent: &AgentCertificate,
) -> Result<(), TransportError> {
    let slots = Arc::new(Semaphore::new(STREAMS));
    loop {
        let (kind, sender, receiver) = connection.accept_bi().await?;
        let Ok(slot) = slots.clone().acquire_owned().await else { return Ok(()) };
        if kind != StreamKind::Code {
            tracing::warn!(node = %agent.node, ?kind, "not a stream for here");
            continue;
        }
        let (server, agent) = (server.clone(), agent.clone());
        tokio::spawn(async move {
            if let Err(error) = serve(&server, &agent, sender, receiver).await {
                tracing::info!(node = %agent.node, %error, "a stream of code ended early");
            }
            drop(slot);
        });
    }
}

async fn serve(
    server: &Server,
    agent: &AgentCertificate,
    mut sender: FrameSender,
    mut receiver: FrameReceiver,
) -> Result<(), TransportError> {
    let question = timeout(PATIENCE, receiver.receive()).await;
    let Some(frame) = question.map_err(|_| TransportError::Deadline)?? else { return Ok(()) };
    let request = CodeRequest::from_frame(&frame)?;
    let Some((project, tree)) = allowed(server, agent, &request) else {
        tracing::warn!(node = %agent.node, job = %request.job, "code that is not for this node");
        let reason = "this node runs no job with that code".to_owned();
        return refuse(sender, reason).await;
    };
    let (pieces, mut ready) = mpsc::channel::<Vec<u8>>(READ_AHEAD);
    let trees = server.parts.trees.clone();
    // Closed by nobody.
    let Ok(thread) = server.code_reads.clone().acquire_owned().await else { return Ok(()) };
    // Ends with the stream: its next piece finds nobody to take it.
    let reading = tokio::task::spawn_blocking(move || {
        let _thread = thread;
        read(&trees, &project, tree, &pieces)
    });
    while let Some(piece) = ready.recv().await {
        for part in piece.chunks(CODE_PART_BYTES) {
            let frame = CodePart::Bytes { bytes: part.to_vec() }.to_frame()?;
            let sent = timeout(PATIENCE, sender.send(&frame)).await;
            sent.map_err(|_| TransportError::Deadline)??;
        }
    }
    match reading.await {
        Ok(Ok(())) => {
            sender.finish().await;
            Ok(())
        }
        Ok(Err(error)) => {
            tracing::error!(%error, %tree, "code cannot be read");
            refuse(sender, format!("the coordinator cannot read the code: {error}")).await
        }
        Err(error) => {
            tracing::error!(%error, %tree, "reading code failed");
            refuse(sender, "the coordinator failed to read the code".to_owned()).await
        }
    }
}

async fn refuse(mut sender: FrameSender, reason: String) -> Result<(), TransportError> {
    sender.send(&CodePart::Refused { reason }.to_frame()?).await?;
    sender.finish().await;
    Ok(())
}

/// Project and name of the code, when the job has it and a live gang of it has a member there.
fn allowed(
    server: &Server,
    agent: &AgentCertificate,
    request: &CodeRequest,
) -> Option<(String, Hash)> {
    let snapshot = server.parts.board.job(&request.job)?;
    let of_job = snapshot.job.request.tree.as_ref() == Some(&request.tree);
    let gang = snapshot.gang.filter(|gang| gang.is_live())?;
    // A job on a standing cluster has a part of it, for as long as it runs.
    let guest = snapshot.attempts.last().and_then(|attempt| attempt.guest.as_ref());
    let mine = |member: &MemberId| match (&snapshot.job.cluster, guest) {
        (None, _) => true,
        (Some(_), Some(guest)) => {
            let has = |share: &GuestShare| *member == MemberId::Rank(share.rank);
            guest.is_live() && guest.shares.iter().any(has)
        }
        (Some(_), None) => false,
    };
    let mut members = gang.members.iter();
    let here = members.any(|(id, member)| member.node == agent.node && mine(id));
    let tree = Hash::from_text(&request.tree)?;
    (of_job && here).then(|| (snapshot.job.project.clone(), tree))
}

/// Reads the tree piece by piece, as far ahead as somebody takes the pieces.
fn read(
    trees: &Trees,
    project: &str,
    name: Hash,
    pieces: &mpsc::Sender<Vec<u8>>,
) -> Result<(), TreesError> {
    let Some(list) = trees.list(project, name)? else { return Err(TreesError::Missing(1)) };
    let tree = Tree::from_bytes(&list)?;
    // A list has at most some MiB.
    let mut first = (list.len() as u32).to_be_bytes().to_vec();
    first.extend_from_slice(&list);
    let mut small = Vec::new();
    if pieces.blocking_send(first).is_err() {
        return Ok(());
    }
    for chunk in tree.chunks() {
        // Many small files go together.
        small.extend(trees.chunk(project, &chunk)?);
        if small.len() >= CODE_PART_BYTES
            && pieces.blocking_send(std::mem::take(&mut small)).is_err()
        {
            return Ok(());
        }
    }
    // An error means that nobody waits any more.
    let _ = pieces.blocking_send(small);
    Ok(())
}
