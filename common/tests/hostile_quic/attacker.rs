//! A client that does everything by hand: it shakes hands as far as it likes and sends the frames
//! that it likes. It never acknowledges anything, which a server must bear.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use gangline_common::tls::SERVER_NAME;
use rustls::Side;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{ClientConnection, KeyChange, Keys, Secrets, Version};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use crate::packet::{self, Addressing, DATAGRAM, Form, Frame, Received};
use crate::random::Random;

/// Every attacker calls itself so: a server tells its peers apart by its own ids.
pub const SOURCE: &[u8] = b"attacker";

/// How long a server may take to answer; more than it ever needs.
const ANSWER: Duration = Duration::from_secs(2);
/// Handshake bytes in one packet.
const PIECE: usize = 1000;

/// How far a server went with a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It closed the connection with this number and text.
    Closed(u64, String),
    /// It went on: a Handshake packet came.
    WentOn,
    Silence,
}

pub struct Attacker {
    socket: UdpSocket,
    tls: ClientConnection,
    to: Addressing,
    initial: Keys,
    handshake: Option<Keys>,
    one_rtt: Option<Keys>,
    /// What the next generation of 1-RTT keys is made of.
    next: Option<Secrets>,
    /// Of the next packet; one count for all spaces is as good as three.
    number: u32,
    /// Packets up to the last that the server has acknowledged.
    acknowledged: u64,
    /// CRYPTO bytes that TLS has had, of the Initial and of the Handshake packets.
    taken: [u64; 2],
    /// What TLS says once it has seen the server's certificate.
    last_flight: Vec<u8>,
    went_on: bool,
    closed: Option<(u64, String)>,
}

/// RFC 9001, 5.2: whoever sees the first Initial can make these.
fn initial_keys(destination: &[u8]) -> Keys {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite());
    suite.expect("ring has QUIC").keys(destination, Side::Client, Version::V1)
}

impl Attacker {
    /// A client whose address the server has validated: it has drawn the Retry packet and answers
    /// with its token (RFC 9000, 8.1.2). `parameters` are the transport parameters of its hello.
    pub async fn validated(
        server: SocketAddr,
        config: &Arc<rustls::ClientConfig>,
        parameters: Vec<u8>,
        random: &mut Random,
    ) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        socket.connect(server).await.expect("an address");
        let name = SERVER_NAME.try_into().expect("a name");
        let tls = ClientConnection::new(config.clone(), Version::V1, name, parameters);
        // At least 8 unpredictable bytes (7.2).
        let destination = random.bytes(8);
        let initial = initial_keys(&destination);
        let to =
            Addressing { destination, source: SOURCE.to_vec(), token: Vec::new(), phase: false };
        let mut attacker = Attacker {
            socket,
            tls: tls.expect("TLS 1.3"),
            to,
            initial,
            handshake: None,
            one_rtt: None,
            next: None,
            number: 0,
            acknowledged: 0,
            taken: [0, 0],
            last_flight: Vec::new(),
            went_on: false,
            closed: None,
        };
        for _ in 0..5 {
            attacker.send(Form::Initial, &packet::PING).await;
            for packet in attacker.receive(Instant::now() + ANSWER).await.unwrap_or_default() {
                if packet.form == Form::Retry {
                    attacker.to.destination = packet.source;
                    attacker.to.token = packet.token;
                    // The keys follow the id, the packet numbers go on (17.2.5.3).
                    attacker.initial = initial_keys(&attacker.to.destination);
                    return attacker;
                }
            }
        }
        panic!("no Retry came");
    }

    /// Sends the ClientHello in `pieces` Initial packets, or more where it is too long for them.
    pub async fn say_hello(&mut self, pieces: usize) {
        let mut hello = Vec::new();
        assert!(self.tls.write_hs(&mut hello).is_none(), "no keys yet");
        let size = hello.len().div_ceil(pieces).min(PIECE);
        self.send_crypto(Form::Initial, &hello, size).await;
    }

    async fn send_crypto(&mut self, form: Form, bytes: &[u8], size: usize) {
        for (index, piece) in bytes.chunks(size).enumerate() {
            let mut frame = Vec::new();
            packet::put_crypto(&mut frame, (index * size) as u64, piece);
            self.send(form, &frame).await;
        }
    }

    /// Sends one packet with these frames.
    pub async fn send(&mut self, form: Form, frames: &[u8]) {
        let keys = match form {
            Form::Initial => Some(&self.initial),
            Form::Handshake => self.handshake.as_ref(),
            Form::OneRtt | Form::Retry => self.one_rtt.as_ref(),
        };
        let keys = keys.expect("keys for such a packet");
        let datagram = packet::seal(form, &self.to, self.number, &keys.local, frames);
        assert!(datagram.len() <= DATAGRAM, "{} bytes", datagram.len());
        self.number += 1;
        // A server that is gone shows in what follows: the tests ask for its answers.
        let _ = self.socket.send(&datagram).await;
    }

    /// The packets of the next datagram; `None` when none comes before the deadline.
    async fn receive(&mut self, deadline: Instant) -> Option<Vec<Received>> {
        let mut datagram = [0; 2048];
        let length = timeout_at(deadline, self.socket.recv(&mut datagram)).await.ok()?.ok()?;
        Some(packet::split(&datagram[..length], SOURCE.len()))
    }

    fn open(&mut self, packet: &Received) -> Option<Vec<u8>> {
        let keys = match packet.form {
            Form::Initial => Some(&self.initial),
            Form::Handshake => self.handshake.as_ref(),
            Form::OneRtt => self.one_rtt.as_ref(),
            Form::Retry => None,
        };
        let remote = &keys?.remote;
        let payload = packet.open(&*remote.header, &*remote.packet);
        if payload.is_some() || packet.form != Form::OneRtt {
            return payload;
        }
        // Perhaps the server has updated its keys: then the client does so too (RFC 9001, 6.1).
        let mut secrets = self.next.clone()?;
        let next = secrets.next_packet_keys();
        let payload = packet.open(&*remote.header, &*next.remote)?;
        let keys = self.one_rtt.as_mut()?;
        (keys.local.packet, keys.remote.packet) = (next.local, next.remote);
        self.next = Some(secrets);
        self.to.phase = !self.to.phase;
        Some(payload)
    }

    /// Reads packets: keys and whatever else follows from them is noted.
    fn take_in(&mut self, packets: Vec<Received>) {
        for packet in packets {
            let form = packet.form;
            let source = packet.source.clone();
            let Some(payload) = self.open(&packet) else { continue };
            for frame in packet::frames(&payload) {
                match frame {
                    Frame::Ack { largest } => {
                        self.acknowledged = self.acknowledged.max(largest + 1);
                    }
                    Frame::Close { code, reason } => self.closed = Some((code, reason)),
                    Frame::Crypto { offset, data } if form != Form::OneRtt => {
                        self.went_on |= form == Form::Handshake;
                        // From now on the server is called by its own id (7.2).
                        self.to.destination.clone_from(&source);
                        self.take_in_crypto(usize::from(form == Form::Handshake), offset, &data);
                    }
                    Frame::Crypto { .. } => {}
                }
            }
        }
    }

    fn take_in_crypto(&mut self, level: usize, offset: u64, data: &[u8]) {
        // Anything else is a repetition, or comes again because it is not acknowledged.
        if offset != self.taken[level] {
            return;
        }
        self.taken[level] += data.len() as u64;
        self.tls.read_hs(data).expect("an honest server");
        loop {
            let mut said = Vec::new();
            match self.tls.write_hs(&mut said) {
                Some(KeyChange::Handshake { keys }) => self.handshake = Some(keys),
                Some(KeyChange::OneRtt { keys, next }) => {
                    self.one_rtt = Some(keys);
                    self.next = Some(next);
                    self.last_flight = said;
                }
                None => return,
            }
        }
    }

    async fn take_in_until(&mut self, deadline: Instant, enough: impl Fn(&Self) -> bool) {
        while !enough(self) {
            let Some(packets) = self.receive(deadline).await else { return };
            self.take_in(packets);
        }
    }

    /// How far the server goes, as soon as that is known.
    pub async fn outcome(&mut self) -> Outcome {
        self.take_in_until(Instant::now() + ANSWER, |it| it.closed.is_some() || it.went_on).await;
        match (&self.closed, self.went_on) {
            (Some((code, reason)), _) => Outcome::Closed(*code, reason.clone()),
            (None, true) => Outcome::WentOn,
            (None, false) => Outcome::Silence,
        }
    }

    /// Waits until the server has taken the packets of this form, or has closed the connection:
    /// then with which number and text.
    pub async fn settled(&mut self, form: Form) -> Option<(u64, String)> {
        for _ in 0..4 {
            let all = u64::from(self.number);
            let enough = |it: &Self| it.closed.is_some() || it.acknowledged == all;
            self.take_in_until(Instant::now() + ANSWER / 4, enough).await;
            if enough(self) {
                return self.closed.clone();
            }
            // The last packet may be lost, or its acknowledgement.
            self.send(form, &packet::PING).await;
        }
        panic!("{form:?} packets up to {} are not acknowledged: {}", self.number, self.acknowledged)
    }

    /// Goes on with the handshake to its end; false when the server does not.
    pub async fn finish(&mut self) -> bool {
        self.take_in_until(Instant::now() + ANSWER, |it| it.one_rtt.is_some()).await;
        if self.one_rtt.is_none() {
            return false;
        }
        let flight = std::mem::take(&mut self.last_flight);
        self.send_crypto(Form::Handshake, &flight, PIECE).await;
        true
    }
}
