//! Puts the parts together: store, driver, QUIC server, HTTP API.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use gangline_common::ids::NodeId;
use gangline_common::join_token::KeyPin;
use gangline_common::random;
use gangline_common::time::Timestamp;
use gangline_common::tls::{server_config, sha256};
use gangline_common::transport::{Endpoint, SERVER_BUFFER_BYTES, close};
use gangline_diagnosis::Rules;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::agents::Agents;
use crate::api::{self, ApiState, listener};
use crate::backups::{self, Schedule};
use crate::board::Board;
use crate::ca::{Ca, write_new};
use crate::config::Config;
use crate::control;
use crate::core::credential::{ApiTokenRecord, Principal, Role};
use crate::core::effect::Answer;
use crate::core::event::Event;
use crate::driver::{self, DriverHandle};
use crate::examine::Examiner;
use crate::ingest::logs::Logs;
use crate::ingest::telemetry::Telemetry;
use crate::meters::Meters;
use crate::node_tests;
use crate::outbox::Outbox;
use crate::packages::Packages;
use crate::paths::PathRules;
use crate::retention;
use crate::secrets::Sealer;
use crate::server::{Parts, Server};
use crate::space::Space;
use crate::store::{Store, StoreError};
use crate::threads::AgentThreads;
use crate::training::{self, Trainings};
use crate::trees::Trees;
use crate::webhooks;

/// How long a start waits for another process that has the store open, and how often it looks.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// How often the samples of nodes that are gone are looked for.
const SAMPLES_CHECK: Duration = Duration::from_secs(60);

/// A coordinator that serves.
pub struct Coordinator {
    pub http: SocketAddr,
    pub quic: SocketAddr,
    pub pin: KeyPin,
    /// SHA-256 of the CA's certificate, as `openssl x509 -fingerprint -sha256` writes it.
    pub ca_fingerprint: String,
    /// Where the first admin token is.
    pub admin_token: PathBuf,
    endpoint: Endpoint,
    /// What serves the endpoint's connections; it ends with this value.
    _threads: AgentThreads,
    /// Ends with the store's error, or when the driver has no callers left.
    driver_ended: oneshot::Receiver<Result<(), StoreError>>,
}

impl Coordinator {
    /// Opens everything and begins to serve. Must run inside a tokio runtime.
    pub async fn start(config: &Config) -> anyhow::Result<Coordinator> {
        prepare_directory(config)?;
        let ca_directory = config.ca();
        let expected = Ca::exists(&ca_directory);
        let cluster = gangline_common::ids::short_suffix(random::number()?);
        let store = open_store(&config.store(), expected, &cluster).await?;
        let life = Duration::from_secs(config.agent_certificate_lifetime_s);
        let ca = Ca::open(&ca_directory, life)?;
        let (era, cluster) = (store.meta.era, store.meta.cluster.clone());
        let sealer = Sealer::open(&config.secrets_key(), &store.secrets()?)?;
        let outbox = Outbox::new(sealer.clone());
        let audit = store.audit_log();
        let reader = store.reader();
        let (notices, books, vacancies) = (reader.notices(), reader.books(), reader.vacancies());
        let meters = Meters::new()?;
        let driver = driver::start(store, outbox.clone(), meters.clone())?;
        let admin_token = config.state_dir.join("admin.token");
        ensure_admin(&driver.handle, &admin_token).await?;

        let space = Space::watch(&config.state_dir, config.reserve_mib)?;
        let logs = Logs::new(config.state_dir.join("logs")).within(space.clone());
        let telemetry = Telemetry::default();
        let agents = Agents::default();
        let pin = ca.pin()?;
        let ca_fingerprint = fingerprint_text(ca.certificate().as_ref());
        let tls = server_config(&ca.server_identity()?, ca.certificate())?;
        let https = listener::tls_config(config, &ca)?;
        let threads = AgentThreads::start().context("the threads that serve agents")?;
        let endpoint = {
            // Its connections live on the threads on which it is made.
            let _agents = threads.enter();
            Endpoint::server(config.quic, tls, &ca.reset_key())?
        };
        let (has, wants) = (endpoint.receive_buffer(), SERVER_BUFFER_BYTES);
        if has < wants {
            // Enough for a small fleet: no warning.
            tracing::info!(
                has,
                wants,
                "a small receive buffer for agents' packets: for hundreds of \
                nodes, raise net.core.rmem_max of this host to what is wanted"
            );
        }
        let quic = endpoint.local_address().context("QUIC address")?;
        let code = config.state_dir.join("code");
        let trees = Trees::open(code).context("the directory of code")?;
        let server = Server::new(Parts {
            driver: driver.handle.clone(),
            board: driver.board.clone(),
            outbox,
            agents: agents.clone(),
            telemetry: telemetry.clone(),
            logs: logs.clone(),
            trees: trees.clone(),
            ca,
            era,
            heartbeat_ms: config.heartbeat_ms,
        });
        threads.spawn(server.accept_all(endpoint.clone()));

        let socket = TcpListener::bind(config.http)
            .await
            .with_context(|| format!("binding the HTTP address {}", config.http))?;
        let http_address = socket.local_addr()?;
        let started = Timestamp::now();
        let trainings = Trainings::new(logs.clone(), started);
        let troubles = webhooks::Troubles::default();
        let telling = webhooks::Parts {
            driver: driver.handle.clone(),
            board: driver.board.clone(),
            notices: notices.clone(),
            sealer: sealer.clone(),
            cluster: cluster.clone(),
            pace: webhooks::Pace::default(),
            troubles: troubles.clone(),
            trainings: trainings.clone(),
        };
        tokio::spawn(webhooks::run(telling));
        let rules = Rules::built_in().context("the rules of the diagnosis")?;
        let known = (driver.board.clone(), sealer.clone());
        let examiner =
            Examiner::new(known, logs.clone(), rules, trainings.clone(), telemetry.clone())
                .with_reports(agents.clone());
        tokio::spawn(examiner.clone().run(driver.examine, driver.handle.clone()));
        let (driven, board) = (driver.handle.clone(), driver.board.clone());
        tokio::spawn(node_tests::run(driven, board, logs.clone()));
        tokio::spawn(training::run(training::Parts {
            driver: driver.handle.clone(),
            board: driver.board.clone(),
            logs: logs.clone(),
            telemetry: telemetry.clone(),
            trainings: trainings.clone(),
            agents: agents.clone(),
        }));
        let state = ApiState {
            troubles,
            driver: driver.handle,
            board: driver.board,
            meters,
            telemetry,
            logs,
            examiner,
            space,
            agents,
            packages: Packages::open(config.state_dir.join("packages"))
                .context("the directory of packages")?,
            trees,
            paths: PathRules {
                shared_root: config.shared_root.clone(),
                extra_roots: config.extra_roots.clone(),
            },
            limits: config.rate_limits(),
            sealer,
            ca_pin: pin,
            version: env!("CARGO_PKG_VERSION"),
            cluster,
            started,
            trainings,
            audit,
            notices,
            books,
            vacancies,
        };
        let keeping = retention::policy(config);
        tokio::spawn(retention::run(
            state.logs.clone(),
            state.board.clone(),
            state.space.clone(),
            keeping,
        ));
        tokio::spawn(forget_samples(state.telemetry.clone(), state.board.clone()));
        let router = api::router(Arc::new(state));
        tokio::spawn(listener::serve(socket, router, https));
        let driver_ended = driver.ended;
        control::serve(&config.state_dir, reader.clone()).context("the control socket")?;
        backups::start(Schedule::of(config), reader).context("the thread of backups")?;
        Ok(Coordinator {
            http: http_address,
            quic,
            pin,
            ca_fingerprint,
            admin_token,
            endpoint,
            _threads: threads,
            driver_ended,
        })
    }

    /// Waits for the end of the driver; the error of a store that failed while running.
    pub async fn ended(&mut self) -> Result<(), StoreError> {
        (&mut self.driver_ended).await.unwrap_or(Err(StoreError::Panicked))
    }

    /// Tells the agents and closes. Everything acknowledged is durable already.
    pub async fn shut_down(&self) {
        self.endpoint.close(close::SHUTDOWN, "the coordinator is shutting down").await;
    }
}

/// Opens the store; a command that looks at it has it for a moment, and a start must not fail by it.
async fn open_store(path: &Path, expected: bool, cluster: &str) -> Result<Store, StoreError> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match Store::open(path, expected, cluster) {
            Err(StoreError::Taken { .. }) if Instant::now() < until => {
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            opened => return opened,
        }
    }
}

/// The samples of nodes that are gone go with them.
async fn forget_samples(telemetry: Telemetry, board: Board) {
    let mut ticks = tokio::time::interval(SAMPLES_CHECK);
    loop {
        ticks.tick().await;
        let nodes = board.nodes();
        let known = nodes.iter().filter(|found| !found.node.revoked).map(|found| &found.node.id);
        let known: HashSet<&NodeId> = known.collect();
        telemetry.retain(|node| known.contains(node));
    }
}

fn fingerprint_text(certificate: &[u8]) -> String {
    let pairs = sha256(certificate).map(|byte| format!("{byte:02X}"));
    pairs.join(":")
}

fn prepare_directory(config: &Config) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&config.state_dir)
        .with_context(|| format!("creating the state directory {}", config.state_dir.display()))
}

/// Makes the first admin token when there is none: a file that only the owner can read.
async fn ensure_admin(driver: &DriverHandle, path: &Path) -> anyhow::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let secret: [u8; 32] = random::bytes()?;
    let token = format!("gla_{}", data_encoding::BASE64URL_NOPAD.encode(&secret));
    let record = ApiTokenRecord {
        name: "admin".to_owned(),
        sha256: sha256(token.as_bytes()),
        user: "admin".to_owned(),
        project: "default".to_owned(),
        role: Role::Admin,
        expires_wall_ms: None,
        created: Timestamp::now(),
    };
    let actor = Principal {
        user: "gangline".to_owned(),
        project: "default".to_owned(),
        role: Role::Admin,
        from: None,
    };
    let made = driver.ask(|request| Event::CreateApiToken { request, record, actor }).await?;
    anyhow::ensure!(
        made == Answer::Done,
        "no administrator's token can be made, because the store has a token `admin` of another user, \
         project or role, and {} is gone: put that file back from a backup",
        path.display()
    );
    write_new(path, token.as_bytes(), 0o600)
}
