//! The transport: encrypted connections with streams of frames. Only this file and `tls` know
//! that it is QUIC.
//!
//! Every stream begins with one stream-kind byte. Limits are those of section 9 of the design's
//! reliability page: small before a peer is authenticated, raised afterwards.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{IdleTimeout, VarInt};
use ring::hmac;
use rustix::net::sockopt;
use rustls::pki_types::CertificateDer;

use self::connection_ids::MarkedIds;
use crate::random;
use crate::tls::SERVER_NAME;
use crate::wire::WireError;
use crate::wire::frame::{Frame, HEADER_LENGTH, parse_header};

mod connection_ids;

/// A message that was begun must be complete within this time (attack A9).
const STREAM_DEADLINE: Duration = Duration::from_secs(30);
/// A connection without any packet for this long is gone.
const IDLE_TIMEOUT_MS: u32 = 30_000;
/// Agents keep NAT bindings and the idle timer alive with this.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// An address must answer within this when dialled.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Packets that wait to be read: of the coordinator those of all its agents, which a pause of some
/// milliseconds must not lose; of an agent the code that is sent to it.
pub const SERVER_BUFFER_BYTES: usize = 8 << 20;
const CLIENT_BUFFER_BYTES: usize = 2 << 20;

/// Requests that an agent lets its coordinator have open at a time.
pub const REQUESTS: u32 = 8;

/// Least time between two resets: a restart resets a thousand agents within a second, and a flood
/// of foreign packets is not answered in kind.
const RESET_INTERVAL: Duration = Duration::from_millis(1);

/// What a stream is for: its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamKind {
    /// Bidirectional, opened by an agent: handshake, then control messages.
    Control = 1,
    /// Bidirectional, opened by an agent without a certificate.
    Join = 2,
    /// Unidirectional, agent to coordinator: samples.
    Telemetry = 3,
    /// Unidirectional, agent to coordinator: log chunks of one gang.
    Log = 4,
    /// Bidirectional, opened by the coordinator: one request, then its answer.
    Request = 5,
    /// Bidirectional, opened by an agent: asks for the code of one job.
    Code = 6,
}

impl StreamKind {
    fn from_byte(byte: u8) -> Result<Self, TransportError> {
        use StreamKind::*;
        [Control, Join, Telemetry, Log, Request, Code]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
            .ok_or(TransportError::StreamKind(byte))
    }

    /// Largest body on a stream of this kind, in bytes, whatever the kind of the frame: who joins
    /// is not known yet, and has no use for more than a handshake.
    fn largest_body(self) -> u32 {
        match self {
            StreamKind::Join => 64 << 10,
            StreamKind::Control
            | StreamKind::Telemetry
            | StreamKind::Log
            | StreamKind::Request
            | StreamKind::Code => u32::MAX,
        }
    }
}

/// Numbers that a close carries, so that the other side can say why.
pub mod close {
    pub const DONE: u32 = 0;
    pub const PROTOCOL: u32 = 1;
    pub const REVOKED: u32 = 2;
    pub const EXPIRED: u32 = 3;
    pub const SUPERSEDED: u32 = 4;
    pub const OVERFLOW: u32 = 5;
    pub const REFUSED: u32 = 6;
    pub const SHUTDOWN: u32 = 7;
}

/// The transport failed, or the peer broke its rules.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("cannot bind {address}: {source}")]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error("TLS: {0}")]
    Tls(String),
    #[error("cannot dial {address}: {reason}")]
    Dial { address: SocketAddr, reason: String },
    #[error("connection closed: {0}")]
    Closed(String),
    #[error("stream: {0}")]
    Stream(String),
    #[error("a stream of kind {0:#04x} is unknown or not allowed here")]
    StreamKind(u8),
    #[error("a message took longer than {} s to arrive", STREAM_DEADLINE.as_secs())]
    Deadline,
    #[error(transparent)]
    Wire(#[from] WireError),
}

fn transport_config(bidi: u32, uni: u32) -> quinn::TransportConfig {
    let mut config = quinn::TransportConfig::default();
    config
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_TIMEOUT_MS))))
        .max_concurrent_bidi_streams(VarInt::from_u32(bidi))
        .max_concurrent_uni_streams(VarInt::from_u32(uni))
        .stream_receive_window(VarInt::from_u32(1 << 20))
        .receive_window(VarInt::from_u32(8 << 20))
        .send_window(8 << 20)
        .datagram_receive_buffer_size(None);
    config
}

/// Lets a server that was started again tell its peers at once that it has forgotten their
/// connections: the tokens by which they know such a reset are derived from it. Secret, and the
/// same over restarts.
#[derive(Clone, Copy)]
pub struct ResetKey([u8; 32]);

impl ResetKey {
    /// Derives the key from a secret that the server keeps.
    pub fn derive(secret: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let tag = hmac::sign(&key, b"gangline stateless reset");
        let mut bytes = [0; 32];
        bytes.copy_from_slice(tag.as_ref());
        ResetKey(bytes)
    }

    fn endpoint_config(&self) -> Result<quinn::EndpointConfig, random::NoRandom> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        // Only ids that carry this server's mark are answered with a reset.
        let ids = MarkedIds::new(hmac::sign(&key, b"connection ids").as_ref(), random::bytes()?);
        let mut config = quinn::EndpointConfig::new(Arc::new(key));
        config.cid_generator(move || Box::new(ids.clone())).min_reset_interval(RESET_INTERVAL);
        Ok(config)
    }
}

/// Binds a socket that can hold `wanted` bytes of packets that nobody has read yet, and gives how many
/// it can: without a right to them, it gets what the host allows to all (`net.core.rmem_max`).
fn bind(address: SocketAddr, wanted: usize) -> std::io::Result<(UdpSocket, usize)> {
    let socket = UdpSocket::bind(address)?;
    // The kernel counts twice what it was asked for: half is for its own records.
    let has = || Ok::<_, std::io::Error>(sockopt::socket_recv_buffer_size(&socket)? / 2);
    if has()? < wanted && sockopt::set_socket_recv_buffer_size_force(&socket, wanted).is_err() {
        // What it comes to is asked for below.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, wanted);
    }
    let got = has()?;
    Ok((socket, got))
}

fn client_config(tls: rustls::ClientConfig) -> Result<quinn::ClientConfig, TransportError> {
    let crypto = QuicClientConfig::try_from(tls).map_err(|e| TransportError::Tls(e.to_string()))?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    let mut transport = transport_config(REQUESTS, 0);
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// A bound UDP socket that accepts or dials connections.
#[derive(Clone)]
pub struct Endpoint {
    inner: quinn::Endpoint,
    client: Option<quinn::ClientConfig>,
    receive_buffer: usize,
}

impl Endpoint {
    /// The coordinator's end. Peers have one bidirectional stream until `raise_limits`. Must be
    /// called inside a tokio runtime.
    pub fn server(
        address: SocketAddr,
        tls: rustls::ServerConfig,
        reset: &ResetKey,
    ) -> Result<Self, TransportError> {
        let crypto =
            QuicServerConfig::try_from(tls).map_err(|e| TransportError::Tls(e.to_string()))?;
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        config
            .transport_config(Arc::new(transport_config(1, 0)))
            .migration(false)
            .max_incoming(1024)
            .incoming_buffer_size(64 << 10)
            .incoming_buffer_size_total(8 << 20);
        let runtime = Arc::new(quinn::TokioRuntime);
        let own = reset.endpoint_config().map_err(|e| TransportError::Tls(e.to_string()))?;
        let failed = |source| TransportError::Bind { address, source };
        let (socket, receive_buffer) = bind(address, SERVER_BUFFER_BYTES).map_err(failed)?;
        let inner = quinn::Endpoint::new(own, Some(config), socket, runtime).map_err(failed)?;
        Ok(Endpoint { inner, client: None, receive_buffer })
    }

    /// An agent's end: dials only.
    pub fn client(address: SocketAddr, tls: rustls::ClientConfig) -> Result<Self, TransportError> {
        let client = Some(client_config(tls)?);
        let own = quinn::EndpointConfig::default();
        let runtime = Arc::new(quinn::TokioRuntime);
        let failed = |source| TransportError::Bind { address, source };
        let (socket, receive_buffer) = bind(address, CLIENT_BUFFER_BYTES).map_err(failed)?;
        let inner = quinn::Endpoint::new(own, None, socket, runtime).map_err(failed)?;
        Ok(Endpoint { inner, client, receive_buffer })
    }

    /// The same socket for another identity: thousands of simulated agents share one, as each has
    /// megabytes of buffers. Closing one endpoint closes the connections of all.
    pub fn with_identity(&self, tls: rustls::ClientConfig) -> Result<Self, TransportError> {
        Ok(Endpoint { client: Some(client_config(tls)?), ..self.clone() })
    }

    pub fn local_address(&self) -> Option<SocketAddr> {
        self.inner.local_addr().ok()
    }

    /// Bytes of packets that the socket holds until they are read; more are lost and sent again.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// Dials and completes the handshake, within 10 s.
    pub async fn dial(&self, address: SocketAddr) -> Result<Connection, TransportError> {
        let failed = |reason: String| TransportError::Dial { address, reason };
        let config = self.client.clone().ok_or_else(|| failed("not a client".to_owned()))?;
        let connecting = self
            .inner
            .connect_with(config, address, SERVER_NAME)
            .map_err(|e| failed(e.to_string()))?;
        match tokio::time::timeout(DIAL_TIMEOUT, connecting).await {
            Ok(Ok(inner)) => Ok(Connection { inner }),
            Ok(Err(e)) => Err(failed(e.to_string())),
            Err(_) => Err(failed(format!("no answer within {} s", DIAL_TIMEOUT.as_secs()))),
        }
    }

    /// The next connection attempt; `None` once the endpoint is closed. An address that is not
    /// validated gets a Retry first, so spoofed addresses cost nothing (attack A6).
    pub async fn accept(&self) -> Option<Incoming> {
        loop {
            let incoming = self.inner.accept().await?;
            if incoming.remote_address_validated() {
                return Some(Incoming { inner: incoming });
            }
            // Fails only when the address was validated meanwhile; the peer then tries again.
            let _ = incoming.retry();
        }
    }

    /// Closes every connection and waits until the peers have been told, at most a second.
    pub async fn close(&self, code: u32, reason: &str) {
        self.inner.close(VarInt::from_u32(code), reason.as_bytes());
        let _ = tokio::time::timeout(Duration::from_secs(1), self.inner.wait_idle()).await;
    }
}

/// A connection attempt whose handshake has not been done.
pub struct Incoming {
    inner: quinn::Incoming,
}

impl Incoming {
    pub fn remote_address(&self) -> SocketAddr {
        self.inner.remote_address()
    }

    pub fn refuse(self) {
        self.inner.refuse();
    }

    /// Completes the handshake, within 10 s.
    pub async fn accept(self) -> Result<Connection, TransportError> {
        let closed = |reason: String| TransportError::Closed(reason);
        let connecting = self.inner.accept().map_err(|e| closed(e.to_string()))?;
        match tokio::time::timeout(DIAL_TIMEOUT, connecting).await {
            Ok(Ok(inner)) => Ok(Connection { inner }),
            Ok(Err(e)) => Err(closed(e.to_string())),
            Err(_) => Err(closed("handshake not completed in time".to_owned())),
        }
    }
}

/// One encrypted connection.
#[derive(Clone)]
pub struct Connection {
    inner: quinn::Connection,
}

impl Connection {
    pub fn remote_address(&self) -> SocketAddr {
        self.inner.remote_address()
    }

    /// The peer's certificate, verified by the handshake; `None` when it showed none.
    pub fn peer_certificate(&self) -> Option<CertificateDer<'static>> {
        let identity = self.inner.peer_identity()?;
        let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        chain.first().cloned()
    }

    /// Lets an authenticated agent open its streams: 16 bidirectional, 64 unidirectional.
    pub fn raise_limits(&self) {
        self.inner.set_max_concurrent_bi_streams(VarInt::from_u32(16));
        self.inner.set_max_concurrent_uni_streams(VarInt::from_u32(64));
    }

    pub async fn open_bi(
        &self,
        kind: StreamKind,
    ) -> Result<(FrameSender, FrameReceiver), TransportError> {
        let (send, receive) = self.inner.open_bi().await.map_err(stream_error)?;
        let mut sender = FrameSender { inner: send };
        sender.write(&[kind as u8]).await?;
        Ok((sender, FrameReceiver::new(receive, kind)))
    }

    pub async fn open_uni(&self, kind: StreamKind) -> Result<FrameSender, TransportError> {
        let mut sender = FrameSender { inner: self.inner.open_uni().await.map_err(stream_error)? };
        sender.write(&[kind as u8]).await?;
        Ok(sender)
    }

    pub async fn accept_bi(
        &self,
    ) -> Result<(StreamKind, FrameSender, FrameReceiver), TransportError> {
        let (send, mut receive) = self.inner.accept_bi().await.map_err(stream_error)?;
        let kind = read_kind(&mut receive).await?;
        Ok((kind, FrameSender { inner: send }, FrameReceiver::new(receive, kind)))
    }

    /// The next stream that the coordinator opens for a request, before its kind is known, as
    /// with `accept_uni`.
    pub async fn accept_request(&self) -> Result<UnknownRequest, TransportError> {
        let (send, receive) = self.inner.accept_bi().await.map_err(stream_error)?;
        Ok(UnknownRequest { send, receive })
    }

    /// The next unidirectional stream, before its kind is known: a slow peer must not hold up
    /// the streams behind it, so the kind is read by `UnknownStream::identify`.
    pub async fn accept_uni(&self) -> Result<UnknownStream, TransportError> {
        let inner = self.inner.accept_uni().await.map_err(stream_error)?;
        Ok(UnknownStream { inner })
    }

    /// Closes at once; unsent data is dropped.
    pub fn close(&self, code: u32, reason: &str) {
        self.inner.close(VarInt::from_u32(code), reason.as_bytes());
    }

    /// The smoothed time that a packet takes to the peer and back.
    pub fn round_trip(&self) -> Duration {
        self.inner.rtt()
    }

    /// Waits until the connection is closed. Returns the code that the peer gave, and a text.
    pub async fn closed(&self) -> (Option<u32>, String) {
        match self.inner.closed().await {
            quinn::ConnectionError::ApplicationClosed(close) => (
                u32::try_from(close.error_code.into_inner()).ok(),
                String::from_utf8_lossy(&close.reason).into_owned(),
            ),
            other => (None, other.to_string()),
        }
    }
}

/// A unidirectional stream whose kind has not been read.
pub struct UnknownStream {
    inner: quinn::RecvStream,
}

impl UnknownStream {
    pub async fn identify(mut self) -> Result<(StreamKind, FrameReceiver), TransportError> {
        let kind = read_kind(&mut self.inner).await?;
        Ok((kind, FrameReceiver::new(self.inner, kind)))
    }
}

/// A bidirectional stream that should be a request.
pub struct UnknownRequest {
    send: quinn::SendStream,
    receive: quinn::RecvStream,
}

impl UnknownRequest {
    /// Errors when it is of another kind.
    pub async fn identify(mut self) -> Result<(FrameSender, FrameReceiver), TransportError> {
        let kind = read_kind(&mut self.receive).await?;
        if kind != StreamKind::Request {
            // Stopping a stream that has ended already changes nothing.
            let _ = self.receive.stop(VarInt::from_u32(close::PROTOCOL));
            return Err(TransportError::StreamKind(kind as u8));
        }
        Ok((FrameSender { inner: self.send }, FrameReceiver::new(self.receive, kind)))
    }
}

fn stream_error(error: quinn::ConnectionError) -> TransportError {
    TransportError::Closed(error.to_string())
}

async fn read_kind(stream: &mut quinn::RecvStream) -> Result<StreamKind, TransportError> {
    let mut byte = [0];
    match tokio::time::timeout(STREAM_DEADLINE, stream.read_exact(&mut byte)).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => return Err(TransportError::Stream(e.to_string())),
        Err(_) => return Err(TransportError::Deadline),
    }
    let [byte] = byte;
    let kind = StreamKind::from_byte(byte);
    if kind.is_err() {
        // Stopping a stream that has ended already changes nothing.
        let _ = stream.stop(VarInt::from_u32(close::PROTOCOL));
    }
    kind
}

/// The sending half of a stream.
pub struct FrameSender {
    inner: quinn::SendStream,
}

impl FrameSender {
    /// Sends a frame; waits while the peer's window is full.
    pub async fn send(&mut self, frame: &Frame) -> Result<(), TransportError> {
        self.write(&frame.to_bytes()).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        self.inner.write_all(bytes).await.map_err(|e| TransportError::Stream(e.to_string()))
    }

    /// Ends the stream and waits until the peer has it all, at most 5 s.
    pub async fn finish(mut self) {
        if self.inner.finish().is_ok() {
            let _ = tokio::time::timeout(Duration::from_secs(5), self.inner.stopped()).await;
        }
    }
}

/// The receiving half of a stream.
pub struct FrameReceiver {
    inner: quinn::RecvStream,
    largest_body: u32,
}

impl FrameReceiver {
    fn new(inner: quinn::RecvStream, kind: StreamKind) -> Self {
        FrameReceiver { inner, largest_body: kind.largest_body() }
    }

    /// The next frame; `None` when the peer has ended the stream between two frames. The wait for
    /// a first byte is unbounded, the wait for the rest is not. Not cancel safe: dropping the
    /// future in the middle loses bytes.
    pub async fn receive(&mut self) -> Result<Option<Frame>, TransportError> {
        let mut header = [0; HEADER_LENGTH];
        let first = match self.inner.read(&mut header).await {
            Ok(Some(count)) => count,
            Ok(None) => return Ok(None),
            Err(e) => return Err(TransportError::Stream(e.to_string())),
        };
        tokio::time::timeout(STREAM_DEADLINE, self.rest(header, first))
            .await
            .map_err(|_| TransportError::Deadline)?
            .map(Some)
    }

    async fn rest(
        &mut self,
        mut header: [u8; HEADER_LENGTH],
        have: usize,
    ) -> Result<Frame, TransportError> {
        let cut = |e: quinn::ReadExactError| TransportError::Stream(e.to_string());
        self.inner.read_exact(header.split_at_mut(have).1).await.map_err(cut)?;
        let (kind, length) = parse_header(header)?;
        if length > self.largest_body {
            let (kind, length) = (kind.name(), length.into());
            return Err(WireError::Limit { kind, length, limit: self.largest_body }.into());
        }
        let mut body = vec![0; length as usize];
        self.inner.read_exact(&mut body).await.map_err(cut)?;
        Ok(Frame { kind, body })
    }

    /// Tells the peer that nothing more is read.
    pub fn stop(mut self, code: u32) {
        // Fails only when the stream has ended already.
        let _ = self.inner.stop(VarInt::from_u32(code));
    }
}
