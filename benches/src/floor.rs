//! What the hardware and the libraries below allow: the floors that figures stand beside.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use gangline_common::ids::NodeId;
use gangline_common::tls::{Identity, agent_config, key_and_request, server_config};
use gangline_common::transport::{
    Connection, Endpoint, FrameReceiver, FrameSender, ResetKey, StreamKind, close,
};
use gangline_common::wire::frame::{Frame, HEADER_LENGTH, Kind};
use gangline_coordinator::ca::Ca;
use redb::{Database, Durability, TableDefinition};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Bytes of a raw write, and blocks of the file that they go round in.
const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;
/// Keys that the plain store goes round in, and bytes of each of its records.
const KEYS: u64 = 4096;
const RECORD: usize = 512;
const TABLE: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("floor");

/// Tables with keys of text, as the coordinator's store has them.
const TABLES: [TableDefinition<'static, &'static str, &'static [u8]>; 5] = [
    TableDefinition::new("text-0"),
    TableDefinition::new("text-1"),
    TableDefinition::new("text-2"),
    TableDefinition::new("text-3"),
    TableDefinition::new("text-4"),
];

/// Write and fdatasync of 4 KiB into a file whose blocks are there already.
pub struct RawDisk {
    file: File,
    next: u64,
}

impl RawDisk {
    pub fn create(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join("raw");
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        for block in 0..BLOCKS {
            file.write_all_at(&[1; BLOCK], block * BLOCK as u64)?;
        }
        file.sync_all()?;
        Ok(RawDisk { file, next: 0 })
    }

    pub fn write(&mut self) -> std::io::Result<()> {
        self.next = (self.next + 1) % BLOCKS;
        self.file.write_all_at(&[self.next as u8; BLOCK], self.next * BLOCK as u64)?;
        self.file.sync_data()
    }
}

/// redb alone: two-phase commits of plain records, in a file that does not grow.
pub struct PlainRedb {
    database: Database,
    next: u64,
    /// Key of the last record that was appended.
    end: u64,
}

impl PlainRedb {
    pub fn create(directory: &Path) -> anyhow::Result<Self> {
        let database = Database::create(directory.join("plain.redb"))?;
        let mut plain = PlainRedb { database, next: 0, end: KEYS };
        plain.commit(KEYS)?;
        Ok(plain)
    }

    /// Writes as many records of 512 B in one transaction.
    pub fn commit(&mut self, records: u64) -> anyhow::Result<()> {
        let first = self.next;
        self.next = (first + records) % KEYS;
        let keys = (first..first + records).map(|key| key % KEYS);
        self.write(keys.map(|key| (key, [key as u8; RECORD])))
    }

    /// Adds these records in one transaction, behind all that are there.
    pub fn append<'a>(&mut self, records: impl Iterator<Item = &'a [u8]>) -> anyhow::Result<()> {
        let first = self.end;
        let mut end = first;
        self.write(records.map(|record| {
            end += 1;
            (end, record)
        }))?;
        self.end = end;
        Ok(())
    }

    /// Writes records into the tables that their keys name by number, in one transaction.
    pub fn put(&self, rows: &BTreeMap<(usize, String), &[u8]>) -> anyhow::Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        transaction.set_two_phase_commit(true);
        for (number, table) in TABLES.into_iter().enumerate() {
            let mut table = transaction.open_table(table)?;
            let of_table = (number, String::new())..(number + 1, String::new());
            for ((_, key), record) in rows.range(of_table) {
                table.insert(key.as_str(), *record)?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn write(&self, records: impl Iterator<Item = (u64, impl AsRef<[u8]>)>) -> anyhow::Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        transaction.set_two_phase_commit(true);
        let mut table = transaction.open_table(TABLE)?;
        for (key, record) in records {
            table.insert(key, record.as_ref())?;
        }
        drop(table);
        Ok(transaction.commit()?)
    }
}

/// Configurations of a server and of an agent that knows it, by an authority in `directory`.
fn both_ends(directory: &Path) -> anyhow::Result<(rustls::ServerConfig, rustls::ClientConfig)> {
    let ca = Ca::open(directory, Duration::from_secs(3600))?;
    let server = server_config(&ca.server_identity()?, ca.certificate())?;
    let (key_pkcs8, request) = key_and_request()?;
    let certificate = ca.sign_agent(&request, &NodeId::new("n-bench")?)?;
    let identity = Identity { chain: vec![certificate.into()], key_pkcs8 };
    Ok((server, agent_config(&identity, ca.certificate())?))
}

/// A peer in a thread of its own that sends every frame back, over the transport of the daemons.
pub struct Echo {
    endpoint: Endpoint,
    connection: Connection,
    sender: FrameSender,
    receiver: FrameReceiver,
    frame: Frame,
    peer: JoinHandle<anyhow::Result<()>>,
}

impl Echo {
    /// `bytes` is the length of the frames, header and body.
    pub async fn start(directory: &Path, bytes: usize) -> anyhow::Result<Self> {
        let (server, client) = both_ends(directory)?;

        let (tell, told) = tokio::sync::oneshot::channel();
        let peer = std::thread::spawn(move || echo_peer(server, tell));
        let address = told.await.context("the echo did not start")?;
        let endpoint = Endpoint::client(LOOPBACK, client)?;
        let connection = endpoint.dial(address).await?;
        let (sender, receiver) = connection.open_bi(StreamKind::Control).await?;
        let body = vec![7; bytes.saturating_sub(HEADER_LENGTH)];
        let frame = Frame::new(Kind::Report, body)?;
        Ok(Echo { endpoint, connection, sender, receiver, frame, peer })
    }

    pub async fn round_trip(&mut self) -> anyhow::Result<()> {
        self.sender.send(&self.frame).await?;
        self.receiver.receive().await?.context("the echo has ended")?;
        Ok(())
    }

    pub async fn stop(self) -> anyhow::Result<()> {
        self.connection.close(close::DONE, "");
        self.endpoint.close(close::DONE, "").await;
        match self.peer.join() {
            Ok(result) => result,
            Err(_) => anyhow::bail!("the echo has panicked"),
        }
    }
}

fn echo_peer(
    tls: rustls::ServerConfig,
    tell: tokio::sync::oneshot::Sender<SocketAddr>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let endpoint = Endpoint::server(LOOPBACK, tls, &ResetKey::derive(b"bench"))?;
        let address = endpoint.local_address().context("no address")?;
        if tell.send(address).is_err() {
            return Ok(());
        }
        let connection = endpoint.accept().await.context("no connection")?.accept().await?;
        let (_, mut sender, mut receiver) = connection.accept_bi().await?;
        // An error is the close of the other side, which is how this ends.
        while let Ok(Some(frame)) = receiver.receive().await {
            if sender.send(&frame).await.is_err() {
                break;
            }
        }
        Ok(())
    })
}

/// A peer in a thread of its own that takes frames and does nothing with them, and connections to it.
pub struct Sink {
    endpoint: Endpoint,
    connections: Vec<Connection>,
    taken: Arc<Taken>,
}

/// What the sink has done so far.
#[derive(Default)]
struct Taken {
    frames: AtomicU64,
    /// Processor time of its thread, as it saw it last.
    cpu_ns: AtomicU64,
}

/// How often the sink looks at its processor time.
const LOOK: Duration = Duration::from_millis(20);

impl Sink {
    /// `connections` are open when this returns; see [`Sink::streams`].
    pub async fn start(directory: &Path, connections: usize) -> anyhow::Result<Self> {
        let (server, client) = both_ends(directory)?;
        let (tell, told) = tokio::sync::oneshot::channel();
        let taken = Arc::new(Taken::default());
        let of_thread = taken.clone();
        std::thread::spawn(move || {
            if let Err(error) = sink_peer(server, tell, of_thread) {
                eprintln!("the sink has ended: {error:#}");
            }
        });
        let address = told.await.context("the sink did not start")?;
        let endpoint = Endpoint::client(LOOPBACK, client)?;
        let mut open = Vec::with_capacity(connections);
        for _ in 0..connections {
            open.push(endpoint.dial(address).await?);
        }
        Ok(Sink { endpoint, connections: open, taken })
    }

    /// One stream on each connection.
    pub async fn streams(&self) -> anyhow::Result<Vec<FrameSender>> {
        let mut streams = Vec::with_capacity(self.connections.len());
        for connection in &self.connections {
            streams.push(connection.open_uni(StreamKind::Telemetry).await?);
        }
        Ok(streams)
    }

    /// Frames taken, and processor time in nanoseconds.
    pub fn taken(&self) -> (u64, u64) {
        (self.taken.frames.load(Ordering::Relaxed), self.taken.cpu_ns.load(Ordering::Relaxed))
    }

    pub async fn stop(self) {
        self.connections.iter().for_each(|connection| connection.close(close::DONE, ""));
        self.endpoint.close(close::DONE, "").await;
    }
}

fn sink_peer(
    tls: rustls::ServerConfig,
    tell: tokio::sync::oneshot::Sender<SocketAddr>,
    taken: Arc<Taken>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let endpoint = Endpoint::server(LOOPBACK, tls, &ResetKey::derive(b"bench"))?;
        let address = endpoint.local_address().context("no address")?;
        if tell.send(address).is_err() {
            return Ok(());
        }
        let clock = taken.clone();
        tokio::spawn(async move {
            loop {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                let ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
                clock.cpu_ns.store(ns, Ordering::Relaxed);
                tokio::time::sleep(LOOK).await;
            }
        });
        while let Some(incoming) = endpoint.accept().await {
            let taken = taken.clone();
            tokio::spawn(async move {
                // An error is the close of the other side, which is how this ends.
                let Ok(connection) = incoming.accept().await else { return };
                connection.raise_limits();
                let Ok(stream) = connection.accept_uni().await else { return };
                let Ok((_, mut stream)) = stream.identify().await else { return };
                while let Ok(Some(_)) = stream.receive().await {
                    taken.frames.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Ok(())
    })
}

/// Starts one `stamp` as plainly as a process can be started.
pub fn spawn_stamp(program: &Path, pipe: &Path, tag: &str) -> std::io::Result<Child> {
    Command::new(program)
        .arg(pipe)
        .arg(tag)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
}
