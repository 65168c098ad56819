//! One session: handshake, control stream both ways, samples and logs beside it.

use std::time::Duration;

use gangline_common::ids::Generation;
use gangline_common::time::Timestamp;
use gangline_common::tls;
use gangline_common::transport::{
    Connection, FrameReceiver, FrameSender, StreamKind, TransportError,
};
use gangline_common::wire::frame::{Frame, Kind};
use gangline_common::wire::packed::MINOR_WITH_PACKED_LOGS;
use gangline_common::wire::tlv::{Handshake, Hello, Refuse, Welcome};
use gangline_common::wire::v1::{
    AgentMessage, CoordinatorMessage, DesiredGang, DesiredHeader, Heartbeat, MemberState,
    NodeHealth, NodeInventory, NodeReport, RenewRequest, Renewed,
};
use gangline_common::wire::{MINOR, MINOR_OLDEST, MINOR_WITH_WORDS_IN_SAMPLES, WireError};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::beats::Beats;
use super::contact::clock_offset;
use super::{Link, SessionError, requests};
use crate::core::MAX_GANGS;
use crate::driver::Input;
use crate::join::{IdentityError, StoredIdentity};
use crate::tail::ship::ship_all;
use crate::telemetry;

/// The coordinator answers Hello within this.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// The first change is reported at once, those right after it together.
const REPORT_PAUSE: Duration = Duration::from_millis(1);
/// How often it is checked whether a new certificate is due.
const RENEWAL_CHECK: Duration = Duration::from_secs(1);
/// Log offsets come before the first desired state. A coordinator that finds its state held sends
/// none; then logs flow after this (a chunk that is sent twice changes nothing).
const OFFSETS_WAIT: Duration = Duration::from_secs(3);
/// Frames of one desired state may have this many bytes together.
const DESIRED_BYTES: usize = 64 << 20;
/// The reason of a close arrives at about the same time as the end of the streams.
const REASON_WAIT: Duration = Duration::from_millis(200);
/// Bounds of the pace that a coordinator may ask for.
const HEARTBEAT_FLOOR: Duration = Duration::from_millis(50);
const HEARTBEAT_CEILING: Duration = Duration::from_secs(10);

/// What the reader tells the other parts of the session.
struct Heard {
    /// When a heartbeat was last answered.
    answered: watch::Sender<Instant>,
    renewed: watch::Sender<Option<Renewed>>,
    /// A complete desired state has been accepted.
    settled: watch::Sender<bool>,
}

/// The other ends of `Heard`.
struct Hearing {
    answered: watch::Receiver<Instant>,
    renewed: watch::Receiver<Option<Renewed>>,
    settled: watch::Receiver<bool>,
}

impl Link {
    /// Serves the connection until it ends. `Ok` is a new identity to go on with.
    pub(super) async fn serve(
        &self,
        connection: &Connection,
    ) -> Result<StoredIdentity, SessionError> {
        let (mut sender, mut receiver) = connection.open_bi(StreamKind::Control).await?;
        let welcome = self.greet(&mut sender, &mut receiver).await?;
        let (node, build) = (&welcome.node, &welcome.build);
        tracing::info!(node, build, era = welcome.era, "connected");
        self.show(true, None);
        // The coordinator says anew what it has; it may be less than before.
        self.acks.clear();
        self.channels.connection.send_replace(Some(connection.clone()));

        let pace = Duration::from_millis(welcome.heartbeat_ms.into())
            .clamp(HEARTBEAT_FLOOR, HEARTBEAT_CEILING);
        let words_in_samples = welcome.minor >= MINOR_WITH_WORDS_IN_SAMPLES;
        let beats = Beats::new(pace, words_in_samples, Instant::now());
        let (heard, hearing) = hearing();
        let sampled = Notify::new();
        tokio::select! {
            // What is shipped comes before the control stream: a heartbeat rides with its sample.
            biased;
            result = self.ship(connection, welcome.minor, hearing.settled, &sampled) => result,
            result = self.read_control(&mut receiver, &heard) => result,
            result = self.write_control(&mut sender, beats, hearing.renewed, &sampled) => result,
            result = watch_silence(hearing.answered, self.silence.max(pace * 3)) => result,
            error = requests::serve(connection, &self.channels) => Err(error.into()),
        }
    }

    async fn greet(
        &self,
        sender: &mut FrameSender,
        receiver: &mut FrameReceiver,
    ) -> Result<Welcome, SessionError> {
        let hello = Hello {
            minor_oldest: MINOR_OLDEST,
            minor: MINOR,
            build: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.instance.clone(),
        };
        let sent_ms = Timestamp::now().boot_ms;
        sender.send(&hello.to_frame()?).await?;
        let frame = tokio::time::timeout(WELCOME_TIMEOUT, receiver.receive())
            .await
            .map_err(|_| TransportError::Deadline)??
            .ok_or_else(|| TransportError::Closed("no answer to Hello".to_owned()))?;
        if frame.kind == Kind::Refuse {
            return Err(SessionError::Refused(Refuse::from_frame(&frame)?));
        }
        let welcome = Welcome::from_frame(&frame)?;
        if welcome.node != self.identity.node.as_str() {
            let text = format!("welcome for {}, but this is {}", welcome.node, self.identity.node);
            return Err(SessionError::Protocol(text));
        }
        self.contact.greeted(sent_ms);
        Ok(welcome)
    }

    // ------------------------------------------------------------ coordinator -> agent

    async fn read_control(
        &self,
        receiver: &mut FrameReceiver,
        heard: &Heard,
    ) -> Result<StoredIdentity, SessionError> {
        let mut desired = Incoming::default();
        while let Some(frame) = receiver.receive().await? {
            let length = frame.body.len();
            let complete = match CoordinatorMessage::from_frame(&frame)? {
                CoordinatorMessage::DesiredHeader(header) => desired.begin(header)?,
                CoordinatorMessage::DesiredGang(gang) => desired.add(*gang, length)?,
                CoordinatorMessage::HeartbeatAck(ack) => {
                    if let Some(sent_ms) = self.contact.answered(ack.sequence) {
                        let offset = clock_offset(sent_ms, Timestamp::now(), ack.wall_ms);
                        self.channels.clock.send_replace(Some(offset));
                    }
                    heard.answered.send_replace(Instant::now());
                    None
                }
                CoordinatorMessage::LogAck(ack) => {
                    self.acks.note(ack);
                    None
                }
                CoordinatorMessage::HealthCleared(cleared) => {
                    self.channels.cleared.send_replace(cleared);
                    None
                }
                CoordinatorMessage::Renewed(renewed) => {
                    heard.renewed.send_replace(Some(renewed));
                    None
                }
            };
            if let Some((generation, gangs)) = complete {
                self.deliver(generation, gangs).await?;
                heard.settled.send_replace(true);
            }
        }
        Err(TransportError::Closed("the control stream has ended".to_owned()).into())
    }

    /// Hands a complete desired state over and waits until it is durable or refused.
    async fn deliver(
        &self,
        generation: Generation,
        gangs: Vec<DesiredGang>,
    ) -> Result<(), SessionError> {
        let (reply, answer) = oneshot::channel();
        let session_ms = self.contact.session_ms();
        let input = Input::Desired { session_ms, generation, gangs, reply };
        self.channels.driver.send(input).await.map_err(|_| SessionError::DriverGone)?;
        let accepted = answer.await.map_err(|_| SessionError::DriverGone)?;
        accepted.map_err(SessionError::Protocol)
    }

    // ------------------------------------------------------------ agent -> coordinator

    async fn write_control(
        &self,
        sender: &mut FrameSender,
        mut beats: Beats,
        mut renewed: watch::Receiver<Option<Renewed>>,
        sampled: &Notify,
    ) -> Result<StoredIdentity, SessionError> {
        let mut inventory = self.channels.inventory.clone();
        let mut outlook = self.channels.outlook.clone();
        let mut health = self.channels.health.clone();
        // A session begins with everything, changed or not.
        inventory.mark_changed();
        health.mark_changed();
        outlook.mark_changed();
        let mut renewal_checks = tokio::time::interval(RENEWAL_CHECK);
        let mut renewal = Renewal::default();
        let mut sequence = 0;
        let mut last_report: Option<Instant> = None;
        let mut report_due: Option<Instant> = None;
        loop {
            tokio::select! {
                biased;
                changed = inventory.changed() => {
                    changed.map_err(|_| SessionError::DriverGone)?;
                    let newest = NodeInventory::clone(&inventory.borrow_and_update());
                    let message = AgentMessage::Inventory(Box::new(newest));
                    sender.send(&message.to_frame()?).await?;
                }
                // Before a report: what refuses a start is known before the refusal is.
                changed = health.changed() => {
                    changed.map_err(|_| SessionError::DriverGone)?;
                    let newest = health.borrow_and_update().clone();
                    if let Some(health) = newest {
                        let message = AgentMessage::Health(NodeHealth::clone(&health));
                        sender.send(&message.to_frame()?).await?;
                    }
                }
                changed = outlook.changed(), if report_due.is_none() => {
                    changed.map_err(|_| SessionError::DriverGone)?;
                    let earliest = last_report.map(|last| last + REPORT_PAUSE);
                    report_due = Some(earliest.unwrap_or_else(Instant::now));
                }
                () = until_maybe(report_due) => {
                    report_due = None;
                    let report = outlook.borrow_and_update().report_at(Timestamp::now());
                    if let Some(report) = report {
                        sender.send(&report_frame(report)?).await?;
                        last_report = Some(Instant::now());
                    }
                }
                () = beats.next(sampled) => {
                    sequence += 1;
                    let held = outlook.borrow().held;
                    let beat = AgentMessage::Heartbeat(Heartbeat { sequence, held });
                    self.contact.sent(sequence, Timestamp::now().boot_ms);
                    sender.send(&beat.to_frame()?).await?;
                }
                _ = renewal_checks.tick() => {
                    if let Some(request) = renewal.check(&self.identity)? {
                        tracing::info!("asking for a new certificate");
                        sender.send(&AgentMessage::RenewRequest(request).to_frame()?).await?;
                    }
                }
                changed = renewed.changed() => {
                    changed.map_err(|_| SessionError::DriverGone)?;
                    let answer = renewed.borrow_and_update().clone();
                    if let Some(answer) = answer {
                        return self.store_renewed(renewal, answer).await;
                    }
                }
            }
        }
    }

    async fn store_renewed(
        &self,
        renewal: Renewal,
        answer: Renewed,
    ) -> Result<StoredIdentity, SessionError> {
        let Some((key, _)) = renewal.key_and_request else {
            return Err(SessionError::Protocol("a certificate that was not asked for".to_owned()));
        };
        let identity = self.identity.renewed(answer, key, Timestamp::now().wall_ms)?;
        let (stored, state_dir) = (identity.clone(), self.state_dir.clone());
        let written = tokio::task::spawn_blocking(move || stored.store(&state_dir)).await;
        match written {
            Ok(result) => result?,
            Err(error) => return Err(SessionError::Protocol(error.to_string())),
        }
        Ok(identity)
    }

    /// Ships samples at once, logs as soon as their offsets are known.
    async fn ship(
        &self,
        connection: &Connection,
        minor: u32,
        mut settled: watch::Receiver<bool>,
        sampled: &Notify,
    ) -> Result<StoredIdentity, SessionError> {
        let logs = async {
            // A time-out is as good: see `OFFSETS_WAIT`.
            let _ = tokio::time::timeout(OFFSETS_WAIT, settled.wait_for(|settled| *settled)).await;
            let super::Channels { tail, tails, driver, .. } = &self.channels;
            let pack = minor >= MINOR_WITH_PACKED_LOGS;
            ship_all(connection, pack, tail.clone(), &self.acks, tails, driver).await;
        };
        let (newest, last_sent) = (self.channels.samples.clone(), &self.channels.last_sent);
        let samples = telemetry::ship(connection, newest, last_sent, sampled);
        tokio::join!(logs, samples);
        Err(SessionError::DriverGone)
    }
}

fn hearing() -> (Heard, Hearing) {
    let (answered, answered_in) = watch::channel(Instant::now());
    let (renewed, renewed_in) = watch::channel(None);
    let (settled, settled_in) = watch::channel(false);
    let heard = Heard { answered, renewed, settled };
    (heard, Hearing { answered: answered_in, renewed: renewed_in, settled: settled_in })
}

/// Waits for a moment. A sleep is ready a tick late: the first heartbeat would come before the first report.
pub(super) async fn until(due: Instant) {
    if due > Instant::now() {
        tokio::time::sleep_until(due).await;
    }
}

async fn until_maybe(due: Option<Instant>) {
    match due {
        Some(due) => until(due).await,
        None => std::future::pending().await,
    }
}

/// Ends the session when heartbeats stay unanswered.
async fn watch_silence(
    answered: watch::Receiver<Instant>,
    limit: Duration,
) -> Result<StoredIdentity, SessionError> {
    loop {
        let last = *answered.borrow();
        if last.elapsed() >= limit {
            return Err(SessionError::Silent(limit));
        }
        tokio::time::sleep_until(last + limit).await;
    }
}

/// A report within the limit of its frame: the last lines of outputs are the first to go.
fn report_frame(report: NodeReport) -> Result<Frame, WireError> {
    let message = AgentMessage::Report(report);
    match (message.to_frame(), message) {
        (Err(WireError::Limit { length, .. }), AgentMessage::Report(mut short)) => {
            tracing::warn!(length, "a report is too long; it goes without last lines of outputs");
            for member in &mut short.members {
                if let MemberState::Ended(ended) = &mut member.state {
                    ended.last_output.clear();
                }
            }
            AgentMessage::Report(short).to_frame()
        }
        (other, _) => other,
    }
}

/// Why the connection ended, as the coordinator put it, or else `error`.
pub(super) async fn reason(connection: &Connection, error: TransportError) -> SessionError {
    match tokio::time::timeout(REASON_WAIT, connection.closed()).await {
        Ok((Some(code), text)) => SessionError::Closed { code, text },
        Ok((None, _)) | Err(_) => SessionError::Transport(error),
    }
}

/// Asks for a new certificate when one is due, and again when no answer came.
#[derive(Default)]
struct Renewal {
    /// The new key and the request for it; the same for every try of a session.
    key_and_request: Option<(Vec<u8>, Vec<u8>)>,
    asked: Option<Instant>,
}

impl Renewal {
    fn check(&mut self, identity: &StoredIdentity) -> Result<Option<RenewRequest>, SessionError> {
        let now = Timestamp::now().wall_ms;
        if now < identity.renew_wall_ms() {
            return Ok(None);
        }
        // Several tries fit into the last third of any life.
        let life = identity.expires_wall_ms.saturating_sub(identity.issued_wall_ms);
        let pause = Duration::from_millis(life / 30)
            .clamp(Duration::from_secs(1), Duration::from_secs(600));
        if self.asked.is_some_and(|asked| asked.elapsed() < pause) {
            return Ok(None);
        }
        let pair = match self.key_and_request.take() {
            Some(pair) => pair,
            None => tls::key_and_request().map_err(IdentityError::from)?,
        };
        self.asked = Some(Instant::now());
        let (_, csr) = self.key_and_request.insert(pair);
        Ok(Some(RenewRequest { csr: csr.clone() }))
    }
}

/// Collects the frames of one desired state.
#[derive(Default)]
struct Incoming {
    header: Option<DesiredHeader>,
    gangs: Vec<DesiredGang>,
    bytes: usize,
}

type Complete = Option<(Generation, Vec<DesiredGang>)>;

impl Incoming {
    fn begin(&mut self, header: DesiredHeader) -> Result<Complete, SessionError> {
        if self.header.is_some() {
            let text = "a desired state began before the one before it was complete";
            return Err(SessionError::Protocol(text.to_owned()));
        }
        if header.count as usize > MAX_GANGS {
            let text = format!("a desired state of {} gangs is over the limit", header.count);
            return Err(SessionError::Protocol(text));
        }
        self.header = Some(header);
        Ok(self.complete())
    }

    fn add(&mut self, gang: DesiredGang, length: usize) -> Result<Complete, SessionError> {
        self.bytes += length;
        if self.header.is_none() || self.bytes > DESIRED_BYTES {
            let text = match self.header {
                None => "a gang without the header of a desired state",
                Some(_) => "a desired state of over 64 MiB",
            };
            return Err(SessionError::Protocol(text.to_owned()));
        }
        self.gangs.push(gang);
        Ok(self.complete())
    }

    fn complete(&mut self) -> Complete {
        let header = self.header.filter(|header| header.count as usize == self.gangs.len())?;
        self.header = None;
        self.bytes = 0;
        Some((header.generation, std::mem::take(&mut self.gangs)))
    }
}
