//! One connection of one agent: handshake, control stream, data streams, code, until it closes.

mod code;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use gangline_common::ids::{MemberKey, NodeId};
use gangline_common::time::Timestamp;
use gangline_common::tls::AgentCertificate;
use gangline_common::transport::{
    Connection, FrameReceiver, FrameSender, StreamKind, TransportError, UnknownStream, close,
};
use gangline_common::wire::tlv::{
    self, Handshake, Hello, REFUSE_BUSY, REFUSE_CLONE, REFUSE_REVOKED, REFUSE_VERSION, Refuse,
    Welcome,
};
use gangline_common::wire::v1::{
    AgentMessage, CoordinatorMessage, HealthCleared, HeartbeatAck, LogAck, RenewRequest, Renewed,
};
use gangline_common::wire::{MINOR, MINOR_OLDEST};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::convert;
use crate::core::effect::{Answer, CloseReason, Rejected};
use crate::core::event::Event;
use crate::core::node::Session;
use crate::driver::DriverGone;
use crate::outbox::{DesiredState, Orders};
use crate::server::{Parts, Server};

/// Control messages that wait for a slow agent; one more closes the session (F35).
const CONTROL_QUEUE: usize = 256;
/// Data streams that one session reads at a time.
const DATA_STREAMS: usize = 64;
/// An agent must say Hello within this.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("protocol: {0}")]
    Wire(#[from] gangline_common::wire::WireError),
    #[error("refused: {0}")]
    Refused(String),
    #[error("closed: {0:?}")]
    Closed(CloseReason),
    #[error("the agent does not read its control stream")]
    Overflow,
    #[error(transparent)]
    Shutdown(#[from] DriverGone),
    #[error("certificate: {0}")]
    Certificate(String),
}

impl SessionError {
    /// The close code and text that the agent gets.
    fn close(&self) -> (u32, String) {
        let code = match self {
            SessionError::Transport(_) | SessionError::Wire(_) => close::PROTOCOL,
            SessionError::Refused(_) | SessionError::Certificate(_) => close::REFUSED,
            SessionError::Closed(CloseReason::Revoked) => close::REVOKED,
            SessionError::Closed(CloseReason::CertificateExpired) => close::EXPIRED,
            SessionError::Closed(CloseReason::Superseded) => close::SUPERSEDED,
            SessionError::Overflow => close::OVERFLOW,
            SessionError::Shutdown(_) => close::SHUTDOWN,
        };
        (code, self.to_string())
    }
}

/// Runs a session of a certified agent to its end.
pub async fn run(server: Arc<Server>, connection: Connection, agent: AgentCertificate) {
    let number = server.next_session();
    let orders = server.parts.outbox.open(number);
    let node = agent.node.clone();
    let result = serve(&server, &connection, agent, number, orders).await;
    let (code, text) = match &result {
        Ok(()) => (close::DONE, String::new()),
        Err(error) => {
            tracing::info!(%node, session = number, %error, "session ended");
            error.close()
        }
    };
    connection.close(code, &text);
    server.parts.outbox.forget(number);
    // Fails only at shutdown, when sessions mean nothing any more.
    let _ = server.parts.driver.tell(Event::Disconnected { node, session: number }).await;
}

async fn serve(
    server: &Arc<Server>,
    connection: &Connection,
    agent: AgentCertificate,
    number: u64,
    orders: watch::Receiver<Orders>,
) -> Result<(), SessionError> {
    connection.raise_limits();
    let accepted = tokio::time::timeout(HELLO_TIMEOUT, connection.accept_bi())
        .await
        .map_err(|_| TransportError::Deadline)??;
    let (StreamKind::Control, mut sender, mut receiver) = accepted else {
        return Err(SessionError::Refused("the first stream must be the control stream".into()));
    };
    let hello = tokio::time::timeout(HELLO_TIMEOUT, receiver.receive())
        .await
        .map_err(|_| TransportError::Deadline)??
        .ok_or_else(|| SessionError::Refused("no Hello".to_owned()))?;
    let hello = Hello::from_frame(&hello)?;
    let minor = match greet(server, connection, &agent, number, &hello).await? {
        Ok(minor) => minor,
        Err(refuse) => {
            sender.send(&refuse.to_frame()?).await?;
            sender.finish().await;
            return Err(SessionError::Refused(refuse.text));
        }
    };
    let welcome = Welcome {
        minor,
        build: server.build.to_owned(),
        node: agent.node.to_string(),
        era: server.parts.era,
        heartbeat_ms: server.parts.heartbeat_ms,
    };
    sender.send(&welcome.to_frame()?).await?;
    tracing::info!(node = %agent.node, session = number, build = hello.build, "agent connected");

    let node = agent.node.clone();
    let _entered = server.parts.agents.enter(node, number, connection);
    let (control, outgoing) = mpsc::channel(CONTROL_QUEUE);
    let known = known_logs(server, &agent.node).await;
    tokio::select! {
        result = write_control(&mut sender, outgoing, orders, known) => result,
        result = read_control(server, &mut receiver, &agent, number, &control) => result,
        result = accept_data(server, connection, &agent, number, &control) => result,
        result = code::serve_all(server, connection, &agent) => result.map_err(SessionError::from),
    }
}

/// The newest minor version that both speak.
fn common_minor(ours: RangeInclusive<u32>, theirs: RangeInclusive<u32>) -> Option<u32> {
    let newest = *ours.end().min(theirs.end());
    (ours.contains(&newest) && theirs.contains(&newest)).then_some(newest)
}

/// Versions, then the core's word on identity. Gives the minor version; `Err` inside is a refusal
/// to send.
async fn greet(
    server: &Server,
    connection: &Connection,
    agent: &AgentCertificate,
    number: u64,
    hello: &Hello,
) -> Result<Result<u32, Refuse>, SessionError> {
    let theirs = hello.minor_oldest..=hello.minor;
    let Some(minor) = common_minor(MINOR_OLDEST..=MINOR, theirs) else {
        let text = format!(
            "the agent speaks protocol 1.{} to 1.{}, this coordinator 1.{MINOR_OLDEST} to \
             1.{MINOR}: upgrade the older of the two",
            hello.minor_oldest, hello.minor
        );
        return Ok(Err(Refuse { code: REFUSE_VERSION, text }));
    };
    let session = Session {
        number,
        instance: hello.instance.clone(),
        certificate: agent.fingerprint,
        certificate_ends: agent.not_after,
        remote: connection.remote_address().to_string(),
        introduced: false,
        pushed_ms: None,
    };
    let node = agent.node.clone();
    let answer =
        server.parts.driver.ask(|request| Event::Connected { request, node, session }).await?;
    let refuse = match answer {
        Answer::Rejected(Rejected::Clone { remote }) => Refuse {
            code: REFUSE_CLONE,
            text: format!("another agent with this identity is connected from {remote}"),
        },
        Answer::Rejected(Rejected::NoSuchNode | Rejected::Revoked) => Refuse {
            code: REFUSE_REVOKED,
            text: "this identity is revoked or unknown; join again with a new token".to_owned(),
        },
        Answer::Rejected(other) => {
            Refuse { code: REFUSE_BUSY, text: format!("not accepted now: {other:?}") }
        }
        _ => return Ok(Ok(minor)),
    };
    tracing::warn!(node = %agent.node, text = refuse.text, "agent refused");
    Ok(Err(refuse))
}

/// What is on disk of this node's logs, so that the agent goes on where it was.
async fn known_logs(server: &Server, node: &NodeId) -> Vec<LogAck> {
    let snapshot = server.parts.board.node(node.as_str());
    let Some(snapshot) = snapshot.filter(|snapshot| !snapshot.gangs.is_empty()) else {
        return Vec::new();
    };
    let (logs, node) = (server.parts.logs.clone(), node.clone());
    // May wait for the disk.
    let look = tokio::task::spawn_blocking(move || {
        let mut acks = Vec::new();
        for gang in &snapshot.gangs {
            for (member, file, offset) in logs.files(&gang.id, gang.epoch) {
                if gang.members.get(&member).is_some_and(|m| m.node == node) {
                    let key = MemberKey { gang: gang.id.clone(), epoch: gang.epoch, member };
                    acks.push(LogAck { key, file, offset });
                }
            }
        }
        acks
    });
    // It fails only when it panics or the threads end; then the agent sends more than is new.
    look.await.unwrap_or_default()
}

async fn write_control(
    sender: &mut FrameSender,
    mut outgoing: mpsc::Receiver<CoordinatorMessage>,
    mut orders: watch::Receiver<Orders>,
    known: Vec<LogAck>,
) -> Result<(), SessionError> {
    // Offsets before the first desired state: the agent starts shipping after it.
    for ack in known {
        sender.send(&CoordinatorMessage::LogAck(ack).to_frame()?).await?;
    }
    let mut sent: Option<Arc<DesiredState>> = None;
    let mut told: Option<Arc<HealthCleared>> = None;
    // A push may have been made between Connected and here.
    orders.mark_changed();
    loop {
        tokio::select! {
            changed = orders.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let Orders { desired, cleared, close } = orders.borrow_and_update().clone();
                if let Some(reason) = close {
                    return Err(SessionError::Closed(reason));
                }
                if let Some(desired) = desired
                    && sent.as_ref().is_none_or(|old| !Arc::ptr_eq(old, &desired))
                {
                    send_desired(sender, &desired).await?;
                    sent = Some(desired);
                }
                if let Some(cleared) = cleared
                    && told.as_ref().is_none_or(|old| !Arc::ptr_eq(old, &cleared))
                {
                    let message = CoordinatorMessage::HealthCleared(HealthCleared::clone(&cleared));
                    sender.send(&message.to_frame()?).await?;
                    told = Some(cleared);
                }
            }
            message = outgoing.recv() => match message {
                Some(message) => sender.send(&message.to_frame()?).await?,
                None => return Ok(()),
            },
        }
    }
}

async fn send_desired(
    sender: &mut FrameSender,
    desired: &DesiredState,
) -> Result<(), SessionError> {
    sender.send(&CoordinatorMessage::DesiredHeader(desired.header).to_frame()?).await?;
    for gang in &desired.gangs {
        let message = CoordinatorMessage::DesiredGang(Box::new(gang.clone()));
        sender.send(&message.to_frame()?).await?;
    }
    Ok(())
}

async fn read_control(
    server: &Arc<Server>,
    receiver: &mut FrameReceiver,
    agent: &AgentCertificate,
    session: u64,
    control: &mpsc::Sender<CoordinatorMessage>,
) -> Result<(), SessionError> {
    // What the agent has said last that it holds.
    let mut told = None;
    while let Some(frame) = receiver.receive().await? {
        let node = agent.node.clone();
        match AgentMessage::from_frame(&frame)? {
            AgentMessage::Heartbeat(beat) => {
                let heard = Event::Heard { node, session, held: Some(beat.held) };
                // What it says for the first time keeps its place behind the reports before it.
                if told.replace(beat.held) == Some(beat.held) {
                    server.parts.driver.tell_soon(heard).await?;
                } else {
                    server.parts.driver.tell(heard).await?;
                }
                let ack =
                    HeartbeatAck { sequence: beat.sequence, wall_ms: Timestamp::now().wall_ms };
                queue(control, CoordinatorMessage::HeartbeatAck(ack))?;
            }
            AgentMessage::Report(report) => {
                told = Some(report.held);
                let report = convert::report(report);
                server.parts.driver.tell(Event::Reported { node, session, report }).await?;
            }
            AgentMessage::Inventory(wire) => {
                let name = wire.name.clone();
                let inventory = Box::new(convert::inventory(*wire));
                server
                    .parts
                    .driver
                    .tell(Event::Inventory { node, session, inventory, name })
                    .await?;
            }
            AgentMessage::Health(health) => {
                let health = Box::new(convert::health(health));
                server.parts.driver.tell(Event::Diagnosed { node, session, health }).await?;
            }
            AgentMessage::RenewRequest(request) => {
                let renewed = renew(server, agent, request).await?;
                queue(control, CoordinatorMessage::Renewed(renewed))?;
            }
        }
    }
    Ok(())
}

/// Control is bounded: an agent that does not read loses its session, nobody else is held up.
fn queue(
    control: &mpsc::Sender<CoordinatorMessage>,
    message: CoordinatorMessage,
) -> Result<(), SessionError> {
    control.try_send(message).map_err(|_| SessionError::Overflow)
}

async fn renew(
    server: &Server,
    agent: &AgentCertificate,
    request: RenewRequest,
) -> Result<Renewed, SessionError> {
    let wrong = |e: anyhow::Error| SessionError::Certificate(e.to_string());
    let certificate = server.parts.ca.sign_agent(&request.csr, &agent.node).map_err(wrong)?;
    let fingerprint = gangline_common::tls::sha256(&certificate);
    let node = agent.node.clone();
    let answer = server
        .parts
        .driver
        .ask(|request| Event::Renewed { request, node, certificate: fingerprint })
        .await?;
    match answer {
        Answer::Rejected(_) => Err(SessionError::Closed(CloseReason::Revoked)),
        _ => Ok(Renewed { certificate, ca: server.parts.ca.certificate().to_vec() }),
    }
}

async fn accept_data(
    server: &Arc<Server>,
    connection: &Connection,
    agent: &AgentCertificate,
    session: u64,
    control: &mpsc::Sender<CoordinatorMessage>,
) -> Result<(), SessionError> {
    let slots = Arc::new(Semaphore::new(DATA_STREAMS));
    loop {
        let stream = connection.accept_uni().await?;
        let Ok(slot) = slots.clone().acquire_owned().await else { return Ok(()) };
        let (server, agent, control) = (server.clone(), agent.clone(), control.clone());
        tokio::spawn(async move {
            if let Err(error) = receive_data(&server, &agent, session, stream, &control).await {
                // The end of a connection ends its streams; only a broken rule is worth a line.
                if !matches!(error, DataError::Gone) {
                    tracing::warn!(node = %agent.node, %error, "data stream ended");
                }
            }
            drop(slot);
        });
    }
}

#[derive(Debug, thiserror::Error)]
enum DataError {
    #[error("gone")]
    Gone,
    #[error("{0}")]
    Broken(String),
}

async fn receive_data(
    server: &Server,
    agent: &AgentCertificate,
    session: u64,
    stream: UnknownStream,
    control: &mpsc::Sender<CoordinatorMessage>,
) -> Result<(), DataError> {
    let of_transport = |error: TransportError| match error {
        TransportError::Closed(_) | TransportError::Stream(_) => DataError::Gone,
        other => DataError::Broken(other.to_string()),
    };
    match stream.identify().await.map_err(of_transport)? {
        (StreamKind::Telemetry, mut stream) => {
            let Parts { telemetry, driver, .. } = &server.parts;
            while telemetry.receive(&agent.node, &mut stream).await.map_err(of_transport)? {
                // A sample is a word of its node; what the node holds is said by heartbeats.
                let heard = Event::Heard { node: agent.node.clone(), session, held: None };
                driver.tell_soon(heard).await.map_err(|_| DataError::Gone)?;
            }
            Ok(())
        }
        (StreamKind::Log, stream) => {
            // Identity comes from the certificate: only members placed on this node (A18).
            let assigned = |key: &MemberKey| {
                server.parts.board.gang(&key.gang).is_some_and(|gang| {
                    gang.epoch == key.epoch
                        && gang.members.get(&key.member).is_some_and(|m| m.node == agent.node)
                })
            };
            let ahead_ms = || server.parts.telemetry.clock_ahead_ms(&agent.node);
            let result = server.parts.logs.receive(stream, assigned, ahead_ms, control).await;
            result.map_err(|error| match error {
                crate::ingest::logs::LogError::Transport(error) => of_transport(error),
                other => DataError::Broken(other.to_string()),
            })
        }
        (kind, _) => Err(DataError::Broken(format!("{kind:?} is not a data stream"))),
    }
}

/// Sends a refusal on a stream that is not a session yet.
pub async fn refuse(mut sender: FrameSender, code: u32, text: &str) {
    let refuse = tlv::Refuse { code, text: text.to_owned() };
    if let Ok(frame) = refuse.to_frame() {
        // The peer may have gone; there is nothing else to tell it.
        let _ = sender.send(&frame).await;
        sender.finish().await;
    }
}
