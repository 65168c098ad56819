//! The server that is attacked, and what shows that it has come to no harm.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use gangline_common::tls::{agent_config, join_config, key_pin, server_config};
use gangline_common::transport::{Connection, Endpoint, Incoming, ResetKey, StreamKind};
use gangline_common::wire::frame::{Frame, Kind};

use crate::attacker::Attacker;
use crate::certificates::Authority;
use crate::parameters;
use crate::random::Random;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Runs a test by itself, with all that it leaves behind: memory and panics belong to the whole
/// process.
pub fn alone(test: impl Future<Output = ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().expect("a runtime").block_on(test);
}

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Counts panics from now on, also those of tasks that nobody waits for.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, SeqCst);
            report(info);
        }));
    });
}

#[derive(Default)]
struct Counts {
    let_in: AtomicUsize,
    refused: AtomicUsize,
}

/// A coordinator's end that accepts everybody, as the coordinator does, and sends frames back.
pub struct Server {
    authority: Authority,
    pub address: SocketAddr,
    counts: Arc<Counts>,
    panics: usize,
}

impl Server {
    pub fn new() -> Self {
        count_panics();
        let authority = Authority::new();
        let config = server_config(&authority.server(), &authority.certificate());
        let config = config.expect("a configuration");
        let endpoint = Endpoint::server(LOOPBACK, config, &ResetKey::derive(b"test"));
        let endpoint = endpoint.expect("a free port");
        let address = endpoint.local_address().expect("a bound address");
        let counts = Arc::<Counts>::default();
        let counting = counts.clone();
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(serve(incoming, counting.clone()));
            }
        });
        Server { authority, address, counts, panics: PANICS.load(SeqCst) }
    }

    /// What a client without a certificate shakes hands with.
    pub fn joiner(&self) -> Arc<rustls::ClientConfig> {
        let pin = key_pin(&self.authority.certificate()).expect("a pin");
        Arc::new(join_config(pin).expect("a configuration"))
    }

    pub fn agent(&self) -> rustls::ClientConfig {
        let identity = self.authority.agent("n-1");
        agent_config(&identity, &self.authority.certificate()).expect("a configuration")
    }

    /// Handshakes that were done, and limits raised where there was a certificate.
    pub fn let_in(&self) -> usize {
        self.counts.let_in.load(SeqCst)
    }

    pub fn refused(&self) -> usize {
        self.counts.refused.load(SeqCst)
    }

    /// An attacker who is through with the handshake.
    pub async fn established(
        &self,
        config: &Arc<rustls::ClientConfig>,
        random: &mut Random,
    ) -> Attacker {
        let before = self.let_in();
        let mut attacker = self.hello(config, parameters::ordinary_client(), 1, random).await;
        assert!(attacker.finish().await, "no handshake");
        until("it is let in", || self.let_in() > before).await;
        attacker
    }

    /// An attacker whose address is validated and who has sent its hello in so many packets.
    pub async fn hello(
        &self,
        config: &Arc<rustls::ClientConfig>,
        parameters: Vec<u8>,
        pieces: usize,
        random: &mut Random,
    ) -> Attacker {
        let mut attacker = Attacker::validated(self.address, config, parameters, random).await;
        attacker.say_hello(pieces).await;
        attacker
    }

    /// The server is as it was: an honest agent gets its frame back, and nothing has panicked.
    pub async fn serves_an_honest_agent(&self) {
        let endpoint = Endpoint::client(LOOPBACK, self.agent()).expect("a free port");
        let connection = endpoint.dial(self.address).await.expect("the agent is let in");
        let (mut sender, mut receiver) =
            connection.open_bi(StreamKind::Control).await.expect("a stream");
        let frame = Frame::new(Kind::Heartbeat, vec![7; 64]).expect("a small body");
        sender.send(&frame).await.expect("sent");
        let answer = tokio::time::timeout(Duration::from_secs(5), receiver.receive()).await;
        assert_eq!(answer.expect("an answer").expect("a frame"), Some(frame));
        assert_eq!(PANICS.load(SeqCst), self.panics, "something has panicked");
    }
}

async fn serve(incoming: Incoming, counts: Arc<Counts>) {
    let Ok(connection) = incoming.accept().await else {
        counts.refused.fetch_add(1, SeqCst);
        return;
    };
    if connection.peer_certificate().is_some() {
        connection.raise_limits();
    }
    counts.let_in.fetch_add(1, SeqCst);
    let ours = connection.clone();
    tokio::join!(echo(connection), read_data(ours));
}

async fn echo(connection: Connection) {
    while let Ok((_, mut sender, mut receiver)) = connection.accept_bi().await {
        while let Ok(Some(frame)) = receiver.receive().await {
            if sender.send(&frame).await.is_err() {
                break;
            }
        }
    }
}

async fn read_data(connection: Connection) {
    while let Ok(stream) = connection.accept_uni().await {
        tokio::spawn(async move {
            if let Ok((_, mut receiver)) = stream.identify().await {
                while let Ok(Some(_)) = receiver.receive().await {}
            }
        });
    }
}

/// Waits at most 15 s.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..7500 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("waited in vain until {what}");
}
