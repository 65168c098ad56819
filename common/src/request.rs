//! Requests of the coordinator to an agent: one stream for each, one question, one bounded answer.
//!
//! Both sides keep to the same bounds: the agent's transport lets `REQUESTS` streams be open at a
//! time, and neither side stays with one for longer than `REQUEST_TIMEOUT`.

use std::future::Future;
use std::time::Duration;

use crate::transport::{
    Connection, FrameReceiver, FrameSender, StreamKind, TransportError, UnknownRequest,
};
use crate::wire::WireError;
use crate::wire::request::{AgentRequest, AnswerHead, AnswerPiece, FailureReason, RequestFailure};

/// Largest body of an answer, in bytes.
pub const MAX_ANSWER: usize = 4 << 20;
/// A request and its whole answer take at most this long.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a body in one frame: leaves room for the rest of the frame.
const PIECE_BYTES: usize = 192 << 10;
/// Longest text of a failure, in characters.
const MAX_TEXT: usize = 600;

/// A request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("protocol: {0}")]
    Wire(#[from] WireError),
    #[error("protocol: {0}")]
    Protocol(&'static str),
    #[error("{}", .0.text)]
    Failed(RequestFailure),
    #[error("not done within {} s", REQUEST_TIMEOUT.as_secs())]
    Timeout,
}

/// Asks the agent at the other end, and reads its whole answer.
pub async fn ask(connection: &Connection, request: &AgentRequest) -> Result<Vec<u8>, RequestError> {
    let asking = async {
        let (mut sender, mut receiver) = connection.open_bi(StreamKind::Request).await?;
        sender.send(&request.to_frame()?).await?;
        read_answer(&mut receiver).await
    };
    tokio::time::timeout(REQUEST_TIMEOUT, asking).await.map_err(|_| RequestError::Timeout)?
}

async fn read_answer(receiver: &mut FrameReceiver) -> Result<Vec<u8>, RequestError> {
    let head = receiver.receive().await?.ok_or(RequestError::Protocol("no answer"))?;
    let length = match AnswerHead::from_frame(&head)? {
        AnswerHead::Body { length } => length as usize,
        AnswerHead::Failed(failure) => return Err(RequestError::Failed(failure)),
    };
    if length > MAX_ANSWER {
        return Err(RequestError::Protocol("an answer over the limit"));
    }
    // Grows with what really comes.
    let mut answer = Vec::new();
    while let Some(frame) = receiver.receive().await? {
        let piece = AnswerPiece::from_frame(&frame)?;
        if piece.bytes.is_empty() || piece.bytes.len() > length - answer.len() {
            return Err(RequestError::Protocol("an answer that is not as long as it says"));
        }
        answer.extend_from_slice(&piece.bytes);
    }
    // A sender that was dropped in the middle looks like one that has ended.
    if answer.len() != length {
        return Err(RequestError::Protocol("an answer that was cut off"));
    }
    Ok(answer)
}

/// Takes one request from its stream and sends what `handle` makes of it. A question that does not
/// decode is answered too: it may be one of a newer coordinator.
pub async fn answer<F>(
    stream: UnknownRequest,
    handle: impl FnOnce(AgentRequest) -> F,
) -> Result<(), RequestError>
where
    F: Future<Output = Result<Vec<u8>, RequestFailure>>,
{
    let answering = async {
        let (mut sender, mut receiver) = stream.identify().await?;
        let frame = receiver.receive().await?.ok_or(RequestError::Protocol("no question"))?;
        let result = match AgentRequest::from_frame(&frame) {
            Ok(request) => handle(request).await,
            Err(error) => Err(RequestFailure {
                reason: FailureReason::Unknown,
                text: format!("this agent does not know the question: {error}"),
            }),
        };
        send_answer(&mut sender, within_limit(result)).await?;
        sender.finish().await;
        Ok(())
    };
    tokio::time::timeout(REQUEST_TIMEOUT, answering).await.map_err(|_| RequestError::Timeout)?
}

fn within_limit(result: Result<Vec<u8>, RequestFailure>) -> Result<Vec<u8>, RequestFailure> {
    match result {
        Ok(body) if body.len() > MAX_ANSWER => Err(RequestFailure {
            reason: FailureReason::TooLarge,
            text: format!("the answer has {} bytes, more than {MAX_ANSWER}", body.len()),
        }),
        Ok(body) => Ok(body),
        Err(RequestFailure { reason, text }) => {
            Err(RequestFailure { reason, text: text.chars().take(MAX_TEXT).collect() })
        }
    }
}

async fn send_answer(
    sender: &mut FrameSender,
    result: Result<Vec<u8>, RequestFailure>,
) -> Result<(), RequestError> {
    let body = match result {
        Ok(body) => body,
        Err(failure) => {
            sender.send(&AnswerHead::Failed(failure).to_frame()?).await?;
            return Ok(());
        }
    };
    // `within_limit` keeps every body far below this.
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    sender.send(&AnswerHead::Body { length }.to_frame()?).await?;
    for bytes in body.chunks(PIECE_BYTES) {
        sender.send(&AnswerPiece { bytes: bytes.to_vec() }.to_frame()?).await?;
    }
    Ok(())
}
