//! The transport over real loopback QUIC: streams of frames, and who is let in. Tests of attacks
//! are named after their rows in the attack table.

#[path = "transport/certificates.rs"]
mod certificates;
mod goldens;

use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use certificates::{Authority, agent_params, expired, self_signed, server_params};
use gangline_common::tls::{
    self, Identity, SERVER_NAME, agent_certificate, agent_config, join_config, key_pin,
    server_config,
};
use gangline_common::transport::{
    Connection, Endpoint, FrameReceiver, FrameSender, ResetKey, StreamKind, TransportError, close,
};
use gangline_common::wire::WireError;
use gangline_common::wire::frame::{Frame, Kind};
use goldens::{Golden, Message};
use quinn::crypto::rustls::QuicClientConfig;
use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A coordinator's end that listens, and the address to dial.
struct Site {
    endpoint: Endpoint,
    address: SocketAddr,
}

impl Site {
    fn new(authority: &Authority) -> Self {
        let config = server_config(&authority.server(), &authority.certificate());
        Site::with(config.expect("a configuration"))
    }

    fn with(config: rustls::ServerConfig) -> Self {
        Self::at(LOOPBACK, config, b"test")
    }

    fn at(address: SocketAddr, config: rustls::ServerConfig, secret: &[u8]) -> Self {
        let reset = ResetKey::derive(secret);
        let endpoint = Endpoint::server(address, config, &reset).expect("a free port");
        let address = endpoint.local_address().expect("a bound address");
        Site { endpoint, address }
    }

    /// The next connection, with its handshake done.
    async fn accept(&self) -> Result<Connection, TransportError> {
        self.endpoint.accept().await.expect("the endpoint is open").accept().await
    }

    /// Dials, and returns both ends of the attempt: the client's, the server's.
    async fn dial(
        &self,
        client: &Endpoint,
    ) -> (Result<Connection, TransportError>, Result<Connection, TransportError>) {
        tokio::join!(client.dial(self.address), self.accept())
    }
}

fn client(config: Result<rustls::ClientConfig, tls::TlsError>) -> Endpoint {
    Endpoint::client(LOOPBACK, config.expect("a configuration")).expect("a free port")
}

fn agent(identity: &Identity, authority: &Authority) -> Endpoint {
    client(agent_config(identity, &authority.certificate()))
}

/// Both ends of the connection of an honest agent.
async fn connected(authority: &Authority, site: &Site) -> (Connection, Connection) {
    let endpoint = agent(&authority.agent("n-1"), authority);
    let (ours, theirs) = site.dial(&endpoint).await;
    (ours.expect("the agent is let in"), theirs.expect("the handshake is done"))
}

fn heartbeat() -> Frame {
    goldens::values::heartbeat().to_frame().expect("it encodes")
}

/// Polls once; true while the future is not ready.
async fn is_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// Sends a frame and returns what arrives.
async fn exchange(
    sender: &mut FrameSender,
    receiver: &mut FrameReceiver,
    frame: &Frame,
) -> Result<Frame, TransportError> {
    let (sent, received) = tokio::join!(sender.send(frame), receiver.receive());
    sent?;
    Ok(received?.expect("the stream has not ended"))
}

/// Sends the message of a golden: its literal bytes must arrive.
async fn exchange_golden(sender: &mut FrameSender, receiver: &mut FrameReceiver, golden: &Golden) {
    let frame = golden.message.to_frame().expect("it encodes");
    let received = exchange(sender, receiver, &frame).await.expect("a frame");
    assert_eq!(received.to_bytes(), golden.wire(), "{}", golden.name);
    assert_eq!(Message::from_frame(&received).as_ref(), Ok(&golden.message), "{}", golden.name);
}

// ---------------------------------------------------------------- streams

#[tokio::test]
async fn frames_round_trip_over_a_control_stream() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    let (ours, theirs) = connected(&authority, &site).await;
    let (opened, accepted) = tokio::join!(ours.open_bi(StreamKind::Control), theirs.accept_bi());
    let (mut to_coordinator, mut from_coordinator) = opened.expect("a stream");
    let (kind, mut to_agent, mut from_agent) = accepted.expect("a stream");
    assert_eq!(kind, StreamKind::Control);
    for golden in goldens::all() {
        exchange_golden(&mut to_coordinator, &mut from_agent, &golden).await;
        exchange_golden(&mut to_agent, &mut from_coordinator, &golden).await;
    }
    let largest = Frame::new(Kind::Report, vec![7; Kind::Report.limit() as usize]);
    let largest = largest.expect("a body at the limit");
    let received = exchange(&mut to_coordinator, &mut from_agent, &largest).await;
    assert!(received.is_ok_and(|frame| frame == largest));

    let (_, end) = tokio::join!(to_coordinator.finish(), from_agent.receive());
    assert_eq!(end.expect("a clean end"), None);
}

#[tokio::test]
async fn authenticated_agent_opens_data_streams_once_its_limits_are_raised() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    let (ours, theirs) = connected(&authority, &site).await;
    theirs.raise_limits();
    let data = [(StreamKind::Telemetry, Kind::Sample), (StreamKind::Log, Kind::LogChunk)];
    for (stream, kind) in data {
        let (opened, accepted) = tokio::join!(ours.open_uni(stream), theirs.accept_uni());
        let mut sender = opened.expect("a stream");
        let unknown = accepted.expect("a stream");
        let (identified, mut receiver) = unknown.identify().await.expect("a known kind");
        assert_eq!(identified, stream);
        let goldens = goldens::all();
        for golden in goldens.iter().filter(|golden| golden.kind == kind) {
            exchange_golden(&mut sender, &mut receiver, golden).await;
        }
    }
}

/// The limits before a peer is known: one bidirectional stream, no other. That nothing else is
/// missing is shown by the same two attempts, which go on as soon as the limits are raised.
#[tokio::test]
async fn unauthenticated_peer_has_one_stream() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    let pin = key_pin(&authority.certificate()).expect("a pin");
    let (ours, theirs) = site.dial(&client(join_config(pin))).await;
    let (ours, theirs) = (ours.expect("let in"), theirs.expect("let in"));
    assert_eq!(theirs.peer_certificate(), None);

    let (opened, accepted) = tokio::join!(ours.open_bi(StreamKind::Join), theirs.accept_bi());
    let (mut to_coordinator, _from_coordinator) = opened.expect("the one stream");
    let (kind, _to_agent, mut from_agent) = accepted.expect("the one stream");
    assert_eq!(kind, StreamKind::Join);

    let mut second = pin!(ours.open_bi(StreamKind::Join));
    let mut data = pin!(ours.open_uni(StreamKind::Log));
    assert!(is_pending(second.as_mut()).await);
    assert!(is_pending(data.as_mut()).await);
    let received = exchange(&mut to_coordinator, &mut from_agent, &heartbeat()).await;
    assert!(received.is_ok_and(|frame| frame == heartbeat()));
    assert!(is_pending(second.as_mut()).await);
    assert!(is_pending(data.as_mut()).await);

    theirs.raise_limits();
    assert!(second.await.is_ok());
    assert!(data.await.is_ok());
}

#[tokio::test]
async fn a_close_carries_its_code_and_reason() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    let (ours, theirs) = connected(&authority, &site).await;
    theirs.close(close::REVOKED, "certificate revoked");
    assert_eq!(ours.closed().await, (Some(close::REVOKED), "certificate revoked".to_owned()));
    assert!(matches!(ours.open_bi(StreamKind::Control).await, Err(TransportError::Closed(_))));
}

/// What a client learns of its connection when the server has died without a word and another one,
/// which derives its resets from `secret`, answers at the same address.
async fn after_a_crash(secret: &'static [u8]) -> Option<String> {
    let authority = Authority::new();
    let config =
        || server_config(&authority.server(), &authority.certificate()).expect("a configuration");
    let doomed = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (first, early) = (config(), &authority);
    let site = doomed.spawn(async move { Site::with(first) }).await.unwrap();
    let (address, endpoint) = (site.address, agent(&early.agent("n-1"), early));
    let accepted = doomed.spawn(async move { (site.accept().await, site) });
    let ours = endpoint.dial(address).await.expect("the agent is let in");
    let held = accepted.await.unwrap();
    // What serves the connection stops between two instructions, and the socket goes with it.
    tokio::task::spawn_blocking(|| doomed.shutdown_timeout(Duration::from_secs(5))).await.unwrap();
    drop(held);
    let again = (0..200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        drop(std::net::UdpSocket::bind(address).ok()?);
        Some(Site::at(address, config(), secret))
    });
    let _again = again.expect("the address is free again");
    let speak = async {
        // Whatever is sent next is answered with the reset.
        let _ = ours.open_bi(StreamKind::Control).await;
        ours.closed().await.1
    };
    tokio::time::timeout(Duration::from_secs(3), speak).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_started_again_says_so_at_once() {
    let text = after_a_crash(b"test").await.expect("no reset came");
    assert!(text.contains("reset"), "{text}");
    assert_eq!(after_a_crash(b"another server's").await, None, "anybody can reset a connection");
}

#[tokio::test]
async fn a_coordinator_endpoint_does_not_dial() {
    let site = Site::new(&Authority::new());
    let result = site.endpoint.dial(site.address).await;
    assert!(matches!(result, Err(TransportError::Dial { .. })));
}

// ---------------------------------------------------------------- A1, A2: bytes on a stream

/// An agent that writes what it likes: the transport's own sender cannot send such bytes.
struct RawAgent {
    endpoint: quinn::Endpoint,
    config: quinn::ClientConfig,
}

impl RawAgent {
    fn new(tls: rustls::ClientConfig) -> Self {
        let crypto = QuicClientConfig::try_from(tls).expect("TLS 1.3");
        RawAgent {
            endpoint: quinn::Endpoint::client(LOOPBACK).expect("a free port"),
            config: quinn::ClientConfig::new(Arc::new(crypto)),
        }
    }

    fn honest(authority: &Authority) -> Self {
        let config = agent_config(&authority.agent("n-1"), &authority.certificate());
        RawAgent::new(config.expect("a configuration"))
    }

    fn connecting(&self, site: &Site) -> quinn::Connecting {
        self.endpoint
            .connect_with(self.config.clone(), site.address, SERVER_NAME)
            .expect("a valid name")
    }

    async fn connected(&self, site: &Site) -> (quinn::Connection, Connection) {
        let (ours, theirs) = tokio::join!(self.connecting(site), site.accept());
        (ours.expect("let in"), theirs.expect("the handshake is done"))
    }
}

/// Each of these goes wrong on a stream of its own; an honest stream goes on beside it.
#[tokio::test]
async fn a1_a2_a_broken_stream_breaks_only_itself() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    let raw = RawAgent::honest(&authority);
    let (ours, theirs) = raw.connected(&site).await;
    theirs.raise_limits();
    let (mut honest, _answers) = ours.open_bi().await.expect("a stream");
    honest.write_all(&[StreamKind::Control as u8]).await.expect("written");
    let (_, _to_agent, mut control) = theirs.accept_bi().await.expect("a stream");

    type Expected = fn(&TransportError) -> bool;
    let broken: [(&[u8], Expected); 6] = [
        (&[0x31, 0xff, 0xff, 0xff, 0xff], |error| {
            let (kind, length, limit) = ("LogChunk", u32::MAX.into(), Kind::LogChunk.limit());
            let expected = WireError::Limit { kind, length, limit };
            matches!(error, TransportError::Wire(error) if *error == expected)
        }),
        (&[0x31, 0, 0, 0, 0], |error| {
            matches!(error, TransportError::Wire(WireError::Empty { kind: "LogChunk" }))
        }),
        (&[0x77, 0, 0, 0, 1, 0], |error| {
            matches!(error, TransportError::Wire(WireError::UnknownKind(0x77)))
        }),
        (&[0x31, 0], |error| matches!(error, TransportError::Stream(_))),
        (&[0x31, 0, 0, 0, 9], |error| matches!(error, TransportError::Stream(_))),
        (&[0x31, 0, 0, 0, 9, 1, 2], |error| matches!(error, TransportError::Stream(_))),
    ];
    for (bytes, expected) in broken {
        let mut stream = ours.open_uni().await.expect("a stream");
        stream.write_all(&[&[StreamKind::Log as u8], bytes].concat()).await.expect("written");
        stream.finish().expect("finished");
        let unknown = theirs.accept_uni().await.expect("a stream");
        let (_, mut receiver) = unknown.identify().await.expect("a log stream");
        let error = receiver.receive().await.expect_err("a broken frame");
        assert!(expected(&error), "{bytes:02x?}: {error:?}");

        honest.write_all(&heartbeat().to_bytes()).await.expect("written");
        let received = control.receive().await.expect("the other stream goes on");
        assert_eq!(received, Some(heartbeat()));
    }
}

/// Before a peer is known, frames are limited to 64 KiB, also those whose kind may be larger.
#[tokio::test]
async fn a1_a_joining_peer_sends_no_large_frames() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    let pin = key_pin(&authority.certificate()).expect("a pin");
    let raw = RawAgent::new(join_config(pin).expect("a configuration"));
    let (ours, theirs) = raw.connected(&site).await;
    let (mut stream, _answers) = ours.open_bi().await.expect("the one stream");
    let allowed = Frame::new(Kind::JoinRequest, vec![7; 64 << 10]).expect("a body at the limit");
    let over = [Kind::Report as u8, 0, 1, 0, 1];
    let bytes = [&[StreamKind::Join as u8], &allowed.to_bytes()[..], &over].concat();
    let (written, accepted) = tokio::join!(stream.write_all(&bytes), async {
        let (_, _to_agent, mut receiver) = theirs.accept_bi().await.expect("the one stream");
        (receiver.receive().await, receiver.receive().await)
    });
    written.expect("written");
    let (first, second) = accepted;
    assert!(first.is_ok_and(|frame| frame == Some(allowed)));
    let expected = WireError::Limit { kind: "Report", length: (64 << 10) + 1, limit: 64 << 10 };
    assert!(matches!(second, Err(TransportError::Wire(error)) if error == expected));
}

#[tokio::test]
async fn a2_an_unknown_stream_kind_breaks_only_its_stream() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    let raw = RawAgent::honest(&authority);
    let (ours, theirs) = raw.connected(&site).await;
    theirs.raise_limits();
    for byte in [0, 7, 0xff] {
        let mut stream = ours.open_uni().await.expect("a stream");
        stream.write_all(&[byte]).await.expect("written");
        let unknown = theirs.accept_uni().await.expect("a stream");
        let error = unknown.identify().await.err().expect("no such kind");
        assert!(matches!(error, TransportError::StreamKind(kind) if kind == byte), "{error:?}");
        // The peer is told to stop, with the number for a broken protocol.
        let stopped = stream.stopped().await.expect("the connection goes on");
        assert_eq!(stopped, Some(quinn::VarInt::from_u32(close::PROTOCOL)));
    }
    let mut stream = ours.open_uni().await.expect("a stream");
    stream.finish().expect("finished");
    let unknown = theirs.accept_uni().await.expect("a stream");
    assert!(matches!(unknown.identify().await.err(), Some(TransportError::Stream(_))));
}

// ---------------------------------------------------------------- A13: early data

#[test]
fn a13_no_configuration_allows_early_data() {
    let authority = Authority::new();
    let ca = authority.certificate();
    let server = server_config(&authority.server(), &ca).expect("a configuration");
    assert_eq!(server.max_early_data_size, 0);
    let agent = agent_config(&authority.agent("n-1"), &ca).expect("a configuration");
    assert!(!agent.enable_early_data);
    let join = join_config(key_pin(&ca).expect("a pin")).expect("a configuration");
    assert!(!join.enable_early_data);
}

/// Connects twice with a client that wants to send early data; true when it may.
async fn second_connection_may_send_early(authority: &Authority, site: &Site) -> bool {
    let mut config =
        agent_config(&authority.agent("n-1"), &authority.certificate()).expect("a configuration");
    config.enable_early_data = true;
    let raw = RawAgent::new(config);
    let (ours, theirs) = raw.connected(site).await;
    // The session ticket comes after the handshake and before this answer.
    let (mut send, mut receive) = ours.open_bi().await.expect("a stream");
    send.write_all(&[StreamKind::Control as u8]).await.expect("written");
    let (_, mut to_agent, _from_agent) = theirs.accept_bi().await.expect("a stream");
    to_agent.send(&heartbeat()).await.expect("sent");
    let mut answer = vec![0; heartbeat().to_bytes().len()];
    receive.read_exact(&mut answer).await.expect("an answer");
    raw.connecting(site).into_0rtt().is_ok()
}

#[tokio::test]
async fn a13_a_client_that_wants_early_data_does_not_get_it() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    assert!(!second_connection_may_send_early(&authority, &site).await);

    // A server that allows it shows that the client really tries.
    let mut config =
        server_config(&authority.server(), &authority.certificate()).expect("a configuration");
    config.max_early_data_size = u32::MAX;
    config.send_tls13_tickets = 2;
    config.session_storage = rustls::server::ServerSessionMemoryCache::new(16);
    assert!(second_connection_may_send_early(&authority, &Site::with(config)).await);
}

// ---------------------------------------------------------------- A14: ALPN

#[tokio::test]
async fn a14_a_client_of_another_protocol_is_refused() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    for protocols in [vec![b"gangline/0".to_vec()], vec![b"h3".to_vec()], Vec::new()] {
        let mut config = agent_config(&authority.agent("n-1"), &authority.certificate())
            .expect("a configuration");
        config.alpn_protocols = protocols.clone();
        let (ours, theirs) = site.dial(&client(Ok(config))).await;
        let reason = ours.err().expect("refused").to_string();
        assert!(reason.contains("error 120"), "{protocols:?}: {reason}");
        assert!(theirs.is_err(), "{protocols:?}");
    }
}

#[tokio::test]
async fn a14_a_server_of_another_protocol_is_refused() {
    let authority = Authority::new();
    for protocols in [vec![b"gangline/0".to_vec()], Vec::new()] {
        let mut config =
            server_config(&authority.server(), &authority.certificate()).expect("a configuration");
        config.alpn_protocols = protocols.clone();
        let site = Site::with(config);
        let (ours, theirs) = site.dial(&agent(&authority.agent("n-1"), &authority)).await;
        assert!(ours.is_err(), "{protocols:?}");
        assert!(theirs.is_err(), "{protocols:?}");
    }
}

// ---------------------------------------------------------------- A16: the pin

#[tokio::test]
async fn a16_a_wrong_pin_stops_the_client_before_it_sends_anything() {
    let authority = Authority::new();
    let pin = key_pin(&authority.certificate()).expect("a pin");
    let impostor = Authority::new();
    let site = Site::new(&impostor);
    let (ours, theirs) = site.dial(&client(join_config(pin))).await;
    let reason = ours.err().expect("the client stops").to_string();
    assert!(reason.contains("not the one pinned in the join token"), "{reason}");
    // Without a finished handshake there is no stream, and so nothing that carries a token.
    assert!(theirs.is_err());
}

/// The CA's certificate is public: showing it does not make an impostor a coordinator.
#[tokio::test]
async fn a16_a_pinned_certificate_in_a_foreign_chain_does_not_help() {
    let authority = Authority::new();
    let ca = authority.certificate();
    let pin = key_pin(&ca).expect("a pin");
    let impostor = Authority::new();
    let mut foreign = impostor.server();
    foreign.chain = vec![foreign.chain[0].clone(), ca.clone()];
    let mut both = impostor.server();
    both.chain.push(ca.clone());
    let chains = [
        ("signed by another CA", foreign),
        ("with both CAs", both),
        ("self-signed", {
            let mut identity = self_signed(server_params());
            identity.chain.push(ca.clone());
            identity
        }),
        ("of an agent", authority.agent("n-1")),
        ("expired", authority.sign(expired(server_params()))),
        ("without the CA", {
            let mut identity = authority.server();
            identity.chain.truncate(1);
            identity
        }),
    ];
    for (what, identity) in chains {
        let site = Site::with(server_config(&identity, &ca).expect("a configuration"));
        let (ours, theirs) = site.dial(&client(join_config(pin))).await;
        assert!(ours.is_err(), "a chain {what}");
        assert!(theirs.is_err(), "a chain {what}");
    }
}

#[tokio::test]
async fn a16_the_right_pin_lets_the_client_in() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    let pin = key_pin(&authority.certificate()).expect("a pin");
    let (ours, theirs) = site.dial(&client(join_config(pin))).await;
    assert!(ours.is_ok());
    assert!(theirs.is_ok_and(|connection| connection.peer_certificate().is_none()));
}

// ---------------------------------------------------------------- A20: identity

#[tokio::test]
async fn a20_the_peer_certificate_names_the_node() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    let identity = authority.agent("n-4bq7");
    let (ours, theirs) = site.dial(&agent(&identity, &authority)).await;
    let (ours, theirs) = (ours.expect("let in"), theirs.expect("let in"));
    let shown = theirs.peer_certificate().expect("a certificate");
    assert_eq!(shown, identity.chain[0]);
    let read = agent_certificate(&shown).expect("an agent's certificate");
    assert_eq!(read.node.as_str(), "n-4bq7");
    assert_eq!(read.fingerprint, tls::fingerprint(&identity.chain[0]));
    assert!(read.not_before < read.not_after);
    // The other way round, the agent sees the coordinator's.
    assert!(ours.peer_certificate().is_some());
}

#[tokio::test]
async fn a20_a_dishonest_client_certificate_fails_the_handshake() {
    let authority = Authority::new();
    let site = Site::new(&authority);
    let mut server_only = agent_params(&["n-1"]);
    server_only.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let mut issuer = agent_params(&["n-1"]);
    issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let mut foreign = Authority::new().agent("n-1");
    foreign.chain = vec![foreign.chain[0].clone(), authority.certificate()];
    let dishonest = [
        // Every test CA has the same name: what differs is the key.
        ("BadSignature", Authority::new().agent("n-1")),
        ("BadSignature", foreign),
        ("UnknownIssuer", self_signed(agent_params(&["n-1"]))),
        ("CaUsedAsEndEntity", authority.sign(issuer)),
        ("extended key usage", authority.sign(server_only)),
        ("expired", authority.sign(expired(agent_params(&["n-1"])))),
        ("extended key usage", authority.server()),
    ];
    for (why, identity) in dishonest {
        let (ours, theirs) = site.dial(&agent(&identity, &authority)).await;
        let reason = theirs.err().expect("the coordinator refuses").to_string();
        assert!(reason.contains("certificate") && reason.contains(why), "{why}: {reason}");
        // In TLS 1.3 the client is done first, and hears of the refusal afterwards.
        if let Ok(ours) = ours {
            let (code, _) = ours.closed().await;
            assert_eq!(code, None, "closed by the handshake, not by the application");
        }
    }
}

#[tokio::test]
async fn a20_an_agent_refuses_a_dishonest_coordinator() {
    let authority = Authority::new();
    let ca = authority.certificate();
    let mut other_name = server_params();
    other_name.subject_alt_names =
        vec![rcgen::SanType::DnsName("other.gangline".try_into().expect("an ASCII text"))];
    let dishonest = [
        ("of another CA", Authority::new().server()),
        ("self-signed", self_signed(server_params())),
        ("of an agent", authority.agent("n-1")),
        ("of another name", authority.sign(other_name)),
        ("expired", authority.sign(expired(server_params()))),
    ];
    for (what, identity) in dishonest {
        let site = Site::with(server_config(&identity, &ca).expect("a configuration"));
        let (ours, theirs) = site.dial(&agent(&authority.agent("n-1"), &authority)).await;
        let reason = ours.err().expect("the agent refuses").to_string();
        assert!(reason.contains("certificate"), "{what}: {reason}");
        assert!(theirs.is_err(), "{what}");
    }
}

/// A second guard behind the handshake: what a certificate may say about its node.
#[test]
fn a20_a_certificate_that_is_not_an_agents_names_no_node() {
    let authority = Authority::new();
    let named = |nodes: &[&str]| authority.sign(agent_params(nodes)).chain[0].clone();
    assert_eq!(agent_certificate(&named(&["n-1"])).expect("one node").node.as_str(), "n-1");

    let mut issuer = agent_params(&["n-1"]);
    issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let refused = [
        ("CA", authority.sign(issuer).chain[0].clone()),
        ("CA", authority.certificate()),
        ("exactly one", authority.server().chain[0].clone()),
        ("exactly one", named(&[])),
        ("exactly one", named(&["n-1", "n-2"])),
        ("exactly one", named(&["n-1", "n-1"])),
        ("node id", named(&["../../x"])),
        ("node id", named(&[""])),
        ("node id", named(&["n-1", "a b"])),
    ];
    for (why, certificate) in refused {
        let reason = agent_certificate(&certificate).expect_err(why).to_string();
        assert!(reason.contains(why), "{why}: {reason}");
    }
    for length in [0, 1, 40] {
        let cut = named(&["n-1"]).as_ref()[..length].to_vec();
        assert!(agent_certificate(&cut.into()).is_err(), "cut to {length}");
    }
}
