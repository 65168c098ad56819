//! A coordinator for tests: real transport and TLS, and a person at every decision.

use std::collections::VecDeque;
use std::net::SocketAddr;

use gangline_common::ids::NodeId;
use gangline_common::join_token::JoinToken;
use gangline_common::tls::{self, AGENT_URI_PREFIX, Fingerprint, Identity, SERVER_NAME};
use gangline_common::transport::{
    Connection, Endpoint, FrameReceiver, FrameSender, ResetKey, StreamKind, TransportError,
};
use gangline_common::wire::MINOR;
use gangline_common::wire::frame::Kind;
use gangline_common::wire::packed::{PackedLogChunk, Unpacker};
use gangline_common::wire::tlv::{Handshake, Hello, JoinGrant, JoinRequest, Refuse, Welcome};
use gangline_common::wire::v1::{
    AgentMessage, CoordinatorMessage, DesiredGang, DesiredHeader, LogChunk,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
    SanType,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};

use crate::config::CoordinatorAddress;
use crate::join::StoredIdentity;
use crate::sample::generation;

pub const NODE: &str = "n-test";

pub struct TestCoordinator {
    endpoint: Endpoint,
    issuer: Issuer<'static, KeyPair>,
    ca: CertificateDer<'static>,
}

impl TestCoordinator {
    pub fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let ca = params.self_signed(&key).unwrap().der().clone();
        let issuer = Issuer::new(params, key);

        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).unwrap();
        let server = params.signed_by(&key, &issuer).unwrap();
        let chain = vec![server.der().clone(), ca.clone()];
        let identity = Identity { chain, key_pkcs8: key.serialize_der() };
        let tls = tls::server_config(&identity, &ca).unwrap();
        let endpoint = Endpoint::server(
            SocketAddr::from(([127, 0, 0, 1], 0)),
            tls,
            &ResetKey::derive(b"test"),
        )
        .unwrap();
        TestCoordinator { endpoint, issuer, ca }
    }

    pub fn address(&self) -> CoordinatorAddress {
        let port = self.endpoint.local_address().unwrap().port();
        CoordinatorAddress { host: "127.0.0.1".to_owned(), port }
    }

    pub fn token(&self) -> JoinToken {
        JoinToken { pin: tls::key_pin(&self.ca).unwrap(), id: "k1".into(), secret: [7; 32] }
    }

    pub fn sign(&self, csr: &[u8], node: &str) -> Vec<u8> {
        let csr = CertificateSigningRequestDer::from(csr);
        let request = CertificateSigningRequestParams::from_der(&csr).unwrap();
        let mut params = CertificateParams::default();
        let uri = format!("{AGENT_URI_PREFIX}{node}");
        params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into().unwrap())];
        params.signed_by(&request.public_key, &self.issuer).unwrap().der().to_vec()
    }

    pub fn ca(&self) -> Vec<u8> {
        self.ca.to_vec()
    }

    pub fn grant(&self, request: &JoinRequest) -> JoinGrant {
        let certificate = self.sign(&request.csr, NODE);
        JoinGrant { node: NODE.to_owned(), certificate, ca: self.ca() }
    }

    /// An agent that has joined long ago and whose certificate lives long.
    pub fn joined(&self) -> StoredIdentity {
        let (key_pkcs8, csr) = tls::key_and_request().unwrap();
        let certificate = CertificateDer::from(self.sign(&csr, NODE));
        StoredIdentity {
            node: NodeId::new(NODE).unwrap(),
            coordinator: self.address(),
            issued_wall_ms: gangline_common::time::Timestamp::now().wall_ms,
            expires_wall_ms: u64::MAX,
            identity: Identity { chain: vec![certificate], key_pkcs8 },
            ca: self.ca.clone(),
        }
    }

    /// The outcome of the next handshake.
    pub async fn handshake(&self) -> Result<Connection, TransportError> {
        self.endpoint.accept().await.unwrap().accept().await
    }

    /// The next join: what is asked, and where the answer goes.
    pub async fn joining(&self) -> (JoinRequest, FrameSender, Connection) {
        let connection = self.handshake().await.unwrap();
        let (kind, sender, mut receiver) = connection.accept_bi().await.unwrap();
        assert_eq!(kind, StreamKind::Join);
        let frame = receiver.receive().await.unwrap().unwrap();
        (JoinRequest::from_frame(&frame).unwrap(), sender, connection)
    }

    /// The next session, up to its Hello.
    pub async fn greeted(&self) -> TestSession {
        let connection = self.handshake().await.unwrap();
        connection.raise_limits();
        let certificate = connection.peer_certificate().unwrap();
        let agent = tls::agent_certificate(&certificate).unwrap();
        assert_eq!(agent.node.as_str(), NODE);
        let (kind, sender, mut receiver) = connection.accept_bi().await.unwrap();
        assert_eq!(kind, StreamKind::Control);
        let hello = Hello::from_frame(&receiver.receive().await.unwrap().unwrap()).unwrap();
        TestSession {
            connection,
            sender,
            receiver,
            hello,
            fingerprint: agent.fingerprint,
            waiting: VecDeque::new(),
        }
    }

    /// The next session, welcomed.
    pub async fn session(&self) -> TestSession {
        self.session_with(MINOR, 50).await
    }

    /// The next session, welcomed in this minor version and asked for this pace of heartbeats.
    pub async fn session_with(&self, minor: u32, heartbeat_ms: u32) -> TestSession {
        let mut session = self.greeted().await;
        let welcome = Welcome {
            minor,
            build: "test".to_owned(),
            node: NODE.to_owned(),
            era: 1,
            heartbeat_ms,
        };
        session.sender.send(&welcome.to_frame().unwrap()).await.unwrap();
        session
    }
}

pub struct TestSession {
    pub connection: Connection,
    sender: FrameSender,
    receiver: FrameReceiver,
    pub hello: Hello,
    pub fingerprint: Fingerprint,
    /// Messages that were read while another one was waited for.
    waiting: VecDeque<AgentMessage>,
}

impl TestSession {
    pub async fn send(&mut self, message: CoordinatorMessage) {
        self.sender.send(&message.to_frame().unwrap()).await.unwrap();
    }

    pub async fn refuse(mut self, code: u32, text: &str) {
        let refuse = Refuse { code, text: text.to_owned() };
        self.sender.send(&refuse.to_frame().unwrap()).await.unwrap();
        self.sender.finish().await;
    }

    pub async fn desire(&mut self, n: u64, gangs: Vec<DesiredGang>) {
        let header = DesiredHeader { generation: generation(n), count: gangs.len() as u32 };
        self.send(CoordinatorMessage::DesiredHeader(header)).await;
        for gang in gangs {
            self.send(CoordinatorMessage::DesiredGang(Box::new(gang))).await;
        }
    }

    /// The next message, whatever it is.
    pub async fn next(&mut self) -> AgentMessage {
        if let Some(message) = self.waiting.pop_front() {
            return message;
        }
        AgentMessage::from_frame(&self.receiver.receive().await.unwrap().unwrap()).unwrap()
    }

    /// The next message that `pick` takes; others wait for their turn.
    pub async fn find<T>(&mut self, pick: impl Fn(&AgentMessage) -> Option<T>) -> T {
        let mut passed = VecDeque::new();
        let found = loop {
            let message = self.next().await;
            match pick(&message) {
                Some(found) => break found,
                None => passed.push_back(message),
            }
        };
        passed.append(&mut self.waiting);
        self.waiting = passed;
        found
    }

    /// The next stream of logs.
    pub async fn log_stream(&self) -> FrameReceiver {
        loop {
            let stream = self.connection.accept_uni().await.unwrap();
            let (kind, receiver) = stream.identify().await.unwrap();
            if kind == StreamKind::Log {
                return receiver;
            }
        }
    }
}

/// The next piece of a log, and whether it came packed.
pub async fn next_piece(stream: &mut FrameReceiver) -> (LogChunk, bool) {
    let frame = stream.receive().await.unwrap().unwrap();
    match frame.kind {
        Kind::PackedLogChunk => {
            let packed = PackedLogChunk::from_frame(&frame).unwrap();
            (packed.unpack(&mut Unpacker::new().unwrap()).unwrap(), true)
        }
        _ => (LogChunk::from_frame(&frame).unwrap(), false),
    }
}

pub async fn next_chunk(stream: &mut FrameReceiver) -> LogChunk {
    next_piece(stream).await.0
}
