//! A job's log as it grows, over a WebSocket: text frames with the log as it was written, and a
//! Close frame when the job has ended and its log is complete. Ray's clients take a Close for the
//! end of the job, so whatever else ends a tail drops the connection without one.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::address::Address;
use super::find_job;
use crate::api::App;
use crate::api::auth::{Action, Caller};
use crate::api::error::{ApiError, BAD_PARAMETER};
use crate::api::follow::{Carrier, Follower, Gone, LogEnd, Outlet, Piece, Resume, STALLED};
use crate::api::logs::Wanted;

/// How often a quiet tail shows that it lives, so that no proxy takes it for dead.
const PING: Duration = Duration::from_secs(20);
/// A client that does not answer a Close is left after this.
const GOODBYE: Duration = Duration::from_secs(5);
/// Largest message from a client, which has nothing to say.
const MAX_INCOMING: usize = 4 << 10;

/// The Ray driver's log or rank 0's output, from its beginning and through every attempt.
pub(super) async fn tail_log(
    State(shared): App,
    Caller(principal): Caller,
    address: Address,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let snapshot = find_job(&shared.api.board, &principal, Action::ReadJobs, address.id())?;
    let upgrade = upgrade.map_err(|error| {
        ApiError::new(
            BAD_PARAMETER,
            format!("this address speaks WebSocket: {}", error.body_text()),
        )
        .hint("ask for .../logs to get the log as one answer")
    })?;
    let slot = shared.slots.take(&principal.user)?;
    let (outlet, frames) = Outlet::new(slot);
    let job = (snapshot.job.id.clone(), Wanted::default());
    let follower = Follower::new(shared, job, Resume::default(), Frames, outlet);
    let upgrade = upgrade.max_message_size(MAX_INCOMING).max_frame_size(MAX_INCOMING);
    Ok(upgrade.on_upgrade(async move |socket| {
        let following = tokio::spawn(follower.run());
        carry(socket, frames, Pace { ping: PING, stalled: STALLED }).await;
        // It holds the slot, and may be waiting for a change.
        following.abort();
    }))
}

/// What goes to the client.
enum Frame {
    Text(String),
    /// The log is complete; with a last line for people, or none.
    End(Option<&'static str>),
}

/// A followed log as frames.
struct Frames;

impl Carrier for Frames {
    type Message = Frame;

    fn piece(&self, piece: Piece) -> Result<Frame, Gone> {
        Ok(Frame::Text(piece.text))
    }

    fn end(&self, end: LogEnd) -> Result<Frame, Gone> {
        let incomplete = "\n[gangline] a node could not deliver the rest of this log\n";
        Ok(Frame::End((!end.complete).then_some(incomplete)))
    }
}

/// How long a tail may be quiet, and how long its client.
#[derive(Clone, Copy)]
struct Pace {
    ping: Duration,
    stalled: Duration,
}

/// Moves frames to the client until the log or the client ends.
async fn carry(mut socket: WebSocket, mut frames: mpsc::Receiver<Frame>, pace: Pace) {
    let mut pings = interval_at(Instant::now() + pace.ping, pace.ping);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let sent = tokio::select! {
            frame = frames.recv() => match frame {
                Some(Frame::Text(text)) => send(&mut socket, Message::text(text), pace).await,
                Some(Frame::End(last)) => {
                    close(socket, last, pace).await;
                    return;
                }
                // The log cannot be read, or the job was deleted: no Close.
                None => return,
            },
            _ = pings.tick() => send(&mut socket, Message::Ping(Default::default()), pace).await,
            incoming = socket.recv() => match incoming {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                // Pongs; anything else has no meaning here.
                Some(Ok(_)) => Ok(()),
            },
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Sends and flushes. A client that takes nothing for too long is dropped.
async fn send(socket: &mut WebSocket, message: Message, pace: Pace) -> Result<(), Gone> {
    timeout(pace.stalled, socket.send(message)).await.map_err(|_| Gone)?.map_err(|_| Gone)
}

async fn close(mut socket: WebSocket, last: Option<&'static str>, pace: Pace) {
    if let Some(line) = last
        && send(&mut socket, Message::text(line), pace).await.is_err()
    {
        return;
    }
    let normal = CloseFrame { code: close_code::NORMAL, reason: "the job has ended".into() };
    if send(&mut socket, Message::Close(Some(normal)), pace).await.is_err() {
        return;
    }
    // The client answers with its own Close; a connection that is cut before would look broken.
    let answered = async { while let Some(Ok(_)) = socket.recv().await {} };
    if timeout(GOODBYE, answered).await.is_err() {
        tracing::debug!("a client did not answer the end of its tail");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::routing::get;
    use futures_util::StreamExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
    use tokio_tungstenite::tungstenite::{Error, Message as Received};
    use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

    use super::*;

    /// A client of a tail that carries what is sent here.
    async fn connected(
        pace: Pace,
    ) -> (mpsc::Sender<Frame>, WebSocketStream<MaybeTlsStream<TcpStream>>) {
        let (sender, frames) = mpsc::channel(1);
        let frames = Arc::new(Mutex::new(Some(frames)));
        let serve = async move |upgrade: WebSocketUpgrade| {
            let frames = frames.lock().unwrap().take().unwrap();
            upgrade.on_upgrade(move |socket| carry(socket, frames, pace))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/", listener.local_addr().unwrap());
        let router = Router::new().route("/", get(serve));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (sender, connect_async(url).await.unwrap().0)
    }

    const QUICK: Pace = Pace { ping: Duration::from_millis(20), stalled: Duration::from_secs(9) };

    #[tokio::test]
    async fn a_quiet_tail_pings_and_an_ended_one_says_so() {
        let (sender, mut client) = connected(QUICK).await;
        for _ in 0..3 {
            assert!(matches!(client.next().await, Some(Ok(Received::Ping(_)))));
        }
        sender.send(Frame::Text("step:1".to_owned())).await.ok().unwrap();
        sender.send(Frame::End(Some("cut off"))).await.ok().unwrap();
        let mut texts = Vec::new();
        loop {
            match client.next().await.unwrap().unwrap() {
                Received::Text(text) => texts.push(text.to_string()),
                Received::Close(frame) => {
                    assert_eq!(frame.unwrap().code, CloseCode::Normal);
                    break;
                }
                _ => {}
            }
        }
        assert_eq!(texts, ["step:1", "cut off"]);
    }

    #[tokio::test]
    async fn what_is_not_the_end_of_the_job_has_no_close() {
        let (sender, mut client) = connected(QUICK).await;
        drop(sender);
        loop {
            match client.next().await {
                Some(Ok(Received::Ping(_))) => {}
                Some(Err(Error::Protocol(_) | Error::Io(_))) => break,
                other => panic!("the client takes this for the end: {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_dropped() {
        let pace = Pace { ping: PING, stalled: Duration::from_millis(200) };
        let (sender, client) = connected(pace).await;
        let megabyte = "x".repeat(1 << 20);
        let filling = async { while sender.send(Frame::Text(megabyte.clone())).await.is_ok() {} };
        timeout(Duration::from_secs(20), filling).await.unwrap();
        drop(client);
    }
}
