//! Putting the agent together and running it until it is told to end.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gangline_common::join_token::JoinToken;
use gangline_common::random;
use gangline_common::wire::v1::HealthCleared;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::code::Code;
use crate::collectors::accelerator::{self, AcceleratorError, Accelerators, opened};
use crate::collectors::host::Roots;
use crate::collectors::nvml::DEFAULT_TIMEOUT;
use crate::collectors::shared::{self, SharedCollector};
use crate::collectors::{NewestReadings, nvswitch};
use crate::config::{Config, CoordinatorAddress, OnSigterm};
use crate::driver::{self, Driver, Input, MAILBOX, Outlook};
use crate::durable::private_directory;
use crate::holders::Holders;
use crate::inventory::{DoctorSubject, Standing, Surveyor};
use crate::join::{self, IdentityError, JoinError, StoredIdentity};
use crate::ledger::{Content, Ledger, LedgerError};
use crate::link::{self, Link, LinkError, LinkStatus, SILENCE};
use crate::lock::{LockError, StateLock};
use crate::metrics::NodePage;
use crate::scene::history::History;
use crate::supervisor::checkpoints::copy::CopyPlace;
use crate::supervisor::{Supervisor, SupervisorConfig};
use crate::tail::TailPlan;
use crate::tail::member::Tails;
use crate::telemetry::{LastSent, Sources};
use crate::{health, reaper, route, status, telemetry};

/// How long the link goes on after the last member has ended: its report and the last lines of
/// its logs are on their way.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long saying goodbye to the coordinator may take.
const GOODBYE: Duration = Duration::from_millis(300);

/// Why the agent ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot use the state directory {}: {source}", path.display())]
    StateDir { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(
        "this node has not joined: give --join quic://HOST:8265 and --token-file FILE, with a \
         token of `gangline node token`"
    )]
    NotJoined,
    #[error(
        "no address of this node: the route to {coordinator} cannot be looked up ({reason}); give \
         --node-address"
    )]
    NodeAddress { coordinator: String, reason: String },
    #[error("cannot catch signals: {0}")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Random(#[from] random::NoRandom),
    #[error("cannot find the program of the agent itself: {0}")]
    OwnProgram(#[source] io::Error),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("a part of the agent has failed: {0}")]
    Failed(String),
}

/// Runs the agent. `token` is needed for the first start only. Returns after SIGTERM or SIGINT,
/// or when it cannot go on.
pub async fn run(config: Config, token: Option<JoinToken>) -> Result<(), RunError> {
    let mut signals = Signals::catch()?;
    private_directory(&config.state_dir)
        .map_err(|source| RunError::StateDir { path: config.state_dir.clone(), source })?;
    let _lock = StateLock::take(&config.state_dir)?;
    // Before anything else: with a damaged ledger it is not known what runs here.
    let (ledger, content) = Ledger::open(&config.state_dir)?;
    let identity = tokio::select! {
        identity = identity(&config, token) => identity?,
        () = signals.recv() => return Ok(()),
    };
    reaper::become_subreaper();
    let address = node_address(&config, &identity.coordinator).await?;
    let agent = Agent::start(&config, identity, ledger, content, address).await?;
    agent.until_end(&config, signals).await
}

/// The stored identity, or that of a first join.
async fn identity(config: &Config, token: Option<JoinToken>) -> Result<StoredIdentity, RunError> {
    if let Some(mut stored) = StoredIdentity::load(&config.state_dir)? {
        if token.is_some() {
            tracing::info!(node = %stored.node, "joined before; the token is not used");
        }
        if let Some(given) = &config.coordinator {
            stored.coordinator = given.clone();
        }
        return Ok(stored);
    }
    let (Some(coordinator), Some(token)) = (&config.coordinator, token) else {
        return Err(RunError::NotJoined);
    };
    let name = node_name(config);
    let identity = join::join(coordinator, &token, &name, &config.state_dir).await?;
    tracing::info!(node = %identity.node, %coordinator, "joined");
    Ok(identity)
}

fn node_name(config: &Config) -> String {
    let hostname = || crate::collectors::host::facts(&Roots::default()).hostname;
    config.name.clone().or_else(hostname).unwrap_or_else(|| "unnamed".to_owned())
}

async fn node_address(
    config: &Config,
    coordinator: &CoordinatorAddress,
) -> Result<IpAddr, RunError> {
    let found = match config.node_address {
        Some(given) => given,
        None => routed_address(coordinator).await.map_err(|e| RunError::NodeAddress {
            coordinator: coordinator.to_string(),
            reason: e.to_string(),
        })?,
    };
    let address = route::for_ray(found);
    if address != found {
        tracing::info!(%found, %address, "Ray replaces this loopback address; using another one");
    }
    Ok(address)
}

async fn routed_address(coordinator: &CoordinatorAddress) -> io::Result<IpAddr> {
    let host = (coordinator.host.as_str(), coordinator.port);
    let remote = tokio::net::lookup_host(host)
        .await?
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its name has no address"))?;
    route::local_address(remote)
}

/// A program named without `/`, looked up in PATH; as it is when it is not there.
pub fn resolve_program(program: &Path) -> PathBuf {
    if program.components().count() > 1 || program.is_absolute() {
        return program.to_owned();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| program.to_owned())
}

/// Judges what is read, for as long as it runs. What the accelerators say by themselves is added to `sources`.
async fn judge(health: health::Watch, mut sources: health::Sources) {
    let accelerators = Arc::clone(&sources.accelerators);
    if let Some(accelerator) = opened(&accelerators) {
        // Without them only lines of the kernel's log cannot be told by GPU.
        sources.identities = accelerator.identity().await.unwrap_or_default();
        sources.xids = accelerator.events();
    }
    health.run(sources).await;
}

/// Opens what the node has, as configured. Waits at most for its time-out.
pub async fn open_accelerators(config: &Config) -> Accelerators {
    let library = config.nvml_library.clone();
    let opening = move || accelerator::open(library, &Roots::default().dev, DEFAULT_TIMEOUT);
    let opened = match tokio::task::spawn_blocking(opening).await {
        Ok(opened) => opened,
        Err(error) => Err(AcceleratorError::Failed(error.to_string())),
    };
    match &opened {
        Ok(Some(_)) => {}
        Ok(None) => tracing::info!("no NVML library: a node without GPUs"),
        Err(error) => tracing::error!(%error, "the GPUs cannot be used; the node shows none"),
    }
    Arc::new(opened)
}

/// The running parts.
struct Agent {
    inputs: mpsc::Sender<Input>,
    driver: tokio::task::JoinHandle<()>,
    link: tokio::task::JoinHandle<LinkError>,
    ending: CancellationToken,
    /// Collectors and the reaper: none of them ends by itself, and all end with this value.
    _others: JoinSet<()>,
}

impl Agent {
    async fn start(
        config: &Config,
        identity: StoredIdentity,
        ledger: Ledger,
        content: Content,
        address: IpAddr,
    ) -> Result<Self, RunError> {
        let (inputs, input_receiver) = mpsc::channel(MAILBOX);
        let (event_sender, events) = mpsc::channel(MAILBOX);
        let held = content.durable.held;
        let (outlook, outlook_receiver) = watch::channel(Outlook { held, ..Outlook::default() });
        let (tail, tail_receiver) = watch::channel(TailPlan::default());
        let (link_status, link_status_receiver) = watch::channel(LinkStatus::default());
        let watched_link = link_status_receiver.clone();
        let place = Place { address, interface: route::interface(address, Path::new("/proc")) };
        let (connection, connection_receiver) = watch::channel(None);
        let (contact, contact_time) = watch::channel(None);
        let (health, health_receiver) = watch::channel(None);
        let (cleared, cleared_receiver) = watch::channel(HealthCleared::default());
        let (holders, holders_receiver) = watch::channel(Holders::new());
        let (gangs, gangs_receiver) = watch::channel(BTreeSet::new());
        let rules = gangline_health::Config {
            boot_id: gangline_common::time::boot_id(),
            shadow: config.health_trial.clone(),
            trusted: config.health_trusted.clone(),
            excluded_devices: config.rdma_exclude.clone(),
            nvswitch: nvswitch::is_on_bus(&Roots::default()),
        };
        let (health, gate) = health::Watch::new(&config.state_dir, rules, health);
        let try_shared = gate.try_shared();
        let (whole, readings) = watch::channel(None);
        let history = History::default();
        let supervised = supervisor_config(config, &place, readings.clone())?;
        let tails = Tails::default();
        let supervisor = Supervisor::new(supervised, event_sender)
            .with_code(Code::new(connection_receiver))
            .with_contact(contact_time.clone())
            .with_tails(tails.clone())
            .with_history(history.clone())
            .with_gate(gate);
        let (ray, scenes) = (supervisor.ray_clusters(), supervisor.scenes());
        let (newest, samples) = watch::channel(None);
        let (nursery, shared_root) = (supervisor.nursery(), supervisor.shared_root());
        // The configuration knows it before the first assignment does.
        let shared_root = match &config.shared_root {
            Some(given) => watch::channel(Some(given.clone())).1,
            None => shared_root,
        };
        let driver = Driver::new(
            ledger,
            supervisor,
            driver::Channels {
                inputs: input_receiver,
                events,
                outlook,
                tail,
                link: link_status_receiver,
                contact: contact_time,
                holders,
                gangs,
                samples: samples.clone(),
                status: status::path(&config.state_dir),
            },
        );
        let driver = tokio::spawn(driver.run(content));

        let mut others = JoinSet::new();
        others.spawn(reaper::run());
        others.spawn(history.follow(samples.clone()));
        let accelerators = open_accelerators(config).await;
        let subject = DoctorSubject::of(config, resolve_program(&config.python));
        let roots = subject.roots.clone();
        let standing = standing(config, &place);
        let (surveyor, survey) =
            Surveyor::begin(standing, Arc::clone(&accelerators), subject).await;
        others.spawn(surveyor.run());
        let (clock, clock_receiver) = watch::channel(None);
        let last_sent = Arc::new(LastSent::default());
        let node = identity.node.as_str();
        let shared =
            SharedCollector::new(Arc::clone(&nursery), shared_root.clone(), node, shared::TIMEOUT)
                .on_demand(try_shared);
        let visible = survey.visible.clone();
        let sources = Sources {
            accelerators: Arc::clone(&accelerators),
            visible: survey.visible,
            roots,
            state_dir: config.state_dir.clone(),
            temp_root: config.temp_root.clone(),
            shared: Some(shared),
            shared_root,
            inventory: survey.inventory.clone(),
            clock: clock_receiver,
            link: watched_link,
            last_sent: Arc::clone(&last_sent),
        };
        others.spawn(telemetry::collect(sources, newest, whole));

        let (held, inventory) = (holders_receiver.clone(), survey.inventory.clone());
        let page = NodePage::new(readings.clone(), inventory, held, config.metrics);
        let sources = health::Sources {
            readings,
            xids: None,
            visible,
            accelerators,
            identities: Vec::new(),
            holders: holders_receiver,
            gangs: gangs_receiver,
            nccl: tails.nccl.subscribe(),
            cleared: cleared_receiver,
        };
        others.spawn(judge(health, sources));
        let ending = CancellationToken::new();
        let instance = format!("{:016x}", random::number()?);
        let channels = link::Channels {
            driver: inputs.clone(),
            outlook: outlook_receiver,
            inventory: survey.inventory,
            samples,
            health: health_receiver,
            cleared,
            tail: tail_receiver,
            tails,
            ray,
            page,
            scenes,
            nursery: Arc::clone(&nursery),
            status: link_status,
            contact,
            clock,
            last_sent,
            connection,
            ending: ending.clone(),
        };
        let link = Link::new(identity, config.state_dir.clone(), instance, SILENCE, channels);
        let link = tokio::spawn(link.run());
        Ok(Agent { inputs, driver, link, ending, _others: others })
    }

    async fn until_end(mut self, config: &Config, mut signals: Signals) -> Result<(), RunError> {
        let failed = |error: tokio::task::JoinError| RunError::Failed(error.to_string());
        tokio::select! {
            () = signals.recv() => {}
            link = &mut self.link => return Err(link.map_err(failed)?.into()),
            driver = &mut self.driver => {
                driver.map_err(failed)?;
                return Err(RunError::Failed("the driver has ended".to_owned()));
            }
        }
        if stops_members(config.on_sigterm) {
            self.stop_members(&mut signals).await;
        } else {
            tracing::info!("ending; members run on for the next agent");
        }
        self.ending.cancel();
        // A coordinator that hears no goodbye notices by itself.
        let _ = tokio::time::timeout(GOODBYE, &mut self.link).await;
        Ok(())
    }

    async fn stop_members(&self, signals: &mut Signals) {
        tracing::info!("stopping every member, then ending; a second signal ends at once");
        let (idle, ended) = oneshot::channel();
        if self.inputs.send(Input::Shutdown { idle }).await.is_err() {
            return;
        }
        tokio::select! {
            // An error means that the driver failed, which the next agent sees in the ledger.
            _ = ended => tokio::time::sleep(LAST_WORDS).await,
            () = signals.recv() => tracing::warn!("ending before every member has ended"),
        }
    }
}

/// Where this node is in the network.
struct Place {
    address: IpAddr,
    interface: Option<String>,
}

fn supervisor_config(
    config: &Config,
    place: &Place,
    readings: NewestReadings,
) -> Result<SupervisorConfig, RunError> {
    Ok(SupervisorConfig {
        state_dir: config.state_dir.clone(),
        temp_root: config.temp_root.clone(),
        agent_binary: std::env::current_exe().map_err(RunError::OwnProgram)?,
        python: resolve_program(&config.python),
        node_address: place.address,
        interface: place.interface.clone(),
        ray_env: pairs(&config.ray_env),
        readings,
        rdma_exclude: config.rdma_exclude.clone(),
        object_store_bytes: config.object_store_bytes,
        copies: copies(config),
    })
}

fn copies(config: &Config) -> Option<CopyPlace> {
    Some(CopyPlace {
        directory: config.checkpoint_copies.clone()?,
        key_file: config.checkpoint_copy_key.clone()?,
        bytes_per_s: config.checkpoint_copy_bytes_per_s,
        turn: Arc::new(Semaphore::new(1)),
    })
}

fn standing(config: &Config, place: &Place) -> Standing {
    Standing {
        name: node_name(config),
        roles: config.roles.clone(),
        pool: config.pool.clone(),
        labels: pairs(&config.labels),
        address: place.address,
        interface: place.interface.clone(),
        ports: config.ports,
    }
}

fn pairs(map: &BTreeMap<String, String>) -> Vec<(String, String)> {
    map.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Process 1 takes its container with it, so members cannot outlive it.
fn stops_members(choice: OnSigterm) -> bool {
    match choice {
        OnSigterm::Stop => true,
        OnSigterm::Leave => false,
        OnSigterm::Auto => std::process::id() == 1,
    }
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn catch() -> Result<Self, RunError> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate()).map_err(RunError::Signals)?,
            interrupt: signal(SignalKind::interrupt()).map_err(RunError::Signals)?,
        })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
