//! The program: flags, start, signals, exit codes.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use gangline_common::time::Timestamp;
use gangline_coordinator::api::listener;
use gangline_coordinator::check::{self, Level};
use gangline_coordinator::commands;
use gangline_coordinator::config::{Config, ConfigErrors};
use gangline_coordinator::coordinator::Coordinator;
use gangline_coordinator::secrets::SecretError;
use gangline_coordinator::store::StoreError;
use tokio::signal::unix::{SignalKind, signal};

/// What one thread decides, another one commits and frees: the system's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit codes that service managers look at.
const EXIT_CONFIG: u8 = 5;
/// The store failed while running: start me again.
const EXIT_STORE_FAILED: u8 = 74;
/// The store, or the key of its secrets, was refused at open: do not start me again.
const EXIT_STORE_REFUSED: u8 = 78;

#[derive(Parser)]
#[command(name = "gangline-coordinator", version, about = "Coordinator of gangs of GPU containers")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve agents (QUIC) and people (HTTP).
    Serve(Serve),
    /// Look whether a coordinator could serve: one line for each thing that it stands on.
    ///
    /// Changes nothing, and reads the whole store; a coordinator that serves may go on. The exit code
    /// is 0 when nothing is bad, 1 when something is, 5 when the configuration is not usable.
    Check(Check),
    /// Copy the store into a file, also while a coordinator serves.
    ///
    /// The copy is consistent and is read again as a whole before it gets its name. It holds jobs,
    /// nodes, tokens' hashes, sealed secrets and the audit log; not ca/, secrets.key, logs and code.
    Backup(Backup),
    /// Make a copy the store again; no coordinator may serve.
    ///
    /// The copy is checked as a whole before anything is touched, and the replaced store is kept
    /// beside the new one. What runs on the nodes runs on: gangs that the copy does not know are shown
    /// as unknown, and every node is cordoned until somebody resumes it.
    Restore(Restore),
}

/// Which coordinator is meant.
#[derive(clap::Args)]
struct Place {
    /// TOML file; see packaging/coordinator.toml for every key.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Directory of the store, the CA and the logs.
    #[arg(long)]
    state_dir: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Addresses {
    /// Address of the HTTP API: https, and plain HTTP for this machine.
    #[arg(long)]
    http: Option<SocketAddr>,
    /// UDP address for agents.
    #[arg(long)]
    quic: Option<SocketAddr>,
}

#[derive(clap::Args)]
struct Serve {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    addresses: Addresses,
    /// Root of all artefacts, as the nodes see it.
    #[arg(long)]
    shared_root: Option<String>,
    /// Print what a first user needs: URL, token file, how to join.
    #[arg(long)]
    dev: bool,
}

#[derive(clap::Args)]
struct Check {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    addresses: Addresses,
    /// How to print it.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Table,
    Json,
}

#[derive(clap::Args)]
struct Backup {
    #[command(flatten)]
    place: Place,
    /// File to make; an existing one is never overwritten.
    destination: PathBuf,
}

#[derive(clap::Args)]
struct Restore {
    #[command(flatten)]
    place: Place,
    /// A file that `backup` made, one of STATE_DIR/backups, or a store that was replaced before.
    source: PathBuf,
    /// Lowest era of the restored store. Only for when the state directory was lost and had been
    /// restored since the copy was made: the agents remember that era, so name the one after it.
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    era: u32,
}

fn main() -> ExitCode {
    gangline_common::logging::init();
    let done = match Arguments::parse().command {
        Command::Serve(serve) => run(serve),
        Command::Check(arguments) => check(&arguments),
        Command::Backup(Backup { place, destination }) => place
            .validated()
            .and_then(|config| commands::back_up(&config, &destination))
            .map(|text| print(&text)),
        Command::Restore(Restore { place, source, era }) => place
            .validated()
            .and_then(|config| commands::restore_from(&config, &source, era))
            .map(|text| print(&text)),
    };
    done.unwrap_or_else(|error| {
        eprintln!("gangline-coordinator: {error:#}");
        exit_code(&error)
    })
}

fn print(text: &str) -> ExitCode {
    // A reader that has gone away needs no word.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<ConfigErrors>().is_some() {
        return ExitCode::from(EXIT_CONFIG);
    }
    if error.downcast_ref::<SecretError>().is_some() {
        return ExitCode::from(EXIT_STORE_REFUSED);
    }
    match error.downcast_ref::<StoreError>() {
        Some(StoreError::Failed { .. } | StoreError::Panicked) => ExitCode::from(EXIT_STORE_FAILED),
        Some(
            StoreError::Refused { .. }
            | StoreError::Taken { .. }
            | StoreError::Newer { .. }
            | StoreError::Corrupt { .. },
        ) => ExitCode::from(EXIT_STORE_REFUSED),
        None => ExitCode::FAILURE,
    }
}

impl Place {
    fn load(&self) -> Result<Config, ConfigErrors> {
        let mut config = Config::load(self.config.as_deref())?;
        if let Some(state_dir) = &self.state_dir {
            config.state_dir.clone_from(state_dir);
        }
        Ok(config)
    }

    fn validated(&self) -> anyhow::Result<Config> {
        let config = self.load()?;
        config.validate()?;
        Ok(config)
    }

    /// These flags again, as a shell reads them.
    fn flags(&self) -> String {
        let flag = |name: &str, path: &Option<PathBuf>| {
            let path = path.as_ref()?.display().to_string();
            Some(format!("{name} {} ", shlex::try_quote(&path).ok()?))
        };
        let flags = [flag("--config", &self.config), flag("--state-dir", &self.state_dir)];
        flags.into_iter().flatten().collect()
    }
}

impl Addresses {
    fn apply(&self, config: &mut Config) {
        config.http = self.http.unwrap_or(config.http);
        config.quic = self.quic.unwrap_or(config.quic);
    }
}

fn check(arguments: &Check) -> anyhow::Result<ExitCode> {
    let lines = arguments.place.load().and_then(|mut config| {
        arguments.addresses.apply(&mut config);
        config.validate()?;
        let certificate = listener::configured(&config);
        Ok(check::run(&config, certificate, Timestamp::now()))
    });
    let (lines, code) = match lines {
        Ok(lines) => {
            let bad = lines.iter().any(|line| line.level == Level::Bad);
            (lines, if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
        Err(errors) => (check::of_config(&errors), ExitCode::from(EXIT_CONFIG)),
    };
    print(&match arguments.output {
        Output::Table => check::table(&lines),
        Output::Json => serde_json::to_string_pretty(&lines)? + "\n",
    });
    Ok(code)
}

fn run(serve: Serve) -> anyhow::Result<ExitCode> {
    let mut config = serve.place.load()?;
    serve.addresses.apply(&mut config);
    if serve.shared_root.is_some() {
        config.shared_root = serve.shared_root;
    }
    config.validate()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve_until_signal(&config, serve.dev));
    let refused = served.as_ref().err().and_then(|error| error.downcast_ref::<StoreError>());
    let advice = match refused {
        Some(StoreError::Refused { .. } | StoreError::Corrupt { .. }) => {
            commands::advice(&config, &serve.place.flags())
        }
        _ => None,
    };
    served.map(|()| ExitCode::SUCCESS).or_else(|error| match advice {
        Some(advice) => {
            eprintln!("gangline-coordinator: {error:#}\n{advice}");
            Ok(exit_code(&error))
        }
        None => Err(error),
    })
}

async fn serve_until_signal(config: &Config, dev: bool) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("signal handler")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signal handler")?;
    let mut coordinator = Coordinator::start(config).await?;
    let ca = &coordinator.ca_fingerprint;
    tracing::info!(http = %coordinator.http, quic = %coordinator.quic, ca, "serving");
    if dev {
        print_first_steps(&coordinator);
    }
    tell_service_manager(&[sd_notify::NotifyState::Ready]);
    let mut watchdog = tokio::time::interval(Duration::from_secs(10));
    loop {
        tokio::select! {
            result = coordinator.ended() => {
                result?;
                return Ok(());
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = watchdog.tick() => tell_service_manager(&[sd_notify::NotifyState::Watchdog]),
        }
    }
    tell_service_manager(&[sd_notify::NotifyState::Stopping]);
    coordinator.shut_down().await;
    Ok(())
}

fn print_first_steps(coordinator: &Coordinator) {
    println!("HTTP API    http://{}", coordinator.http);
    println!("admin token {}", coordinator.admin_token.display());
    println!("CA          {}", coordinator.ca_fingerprint);
    println!("users:");
    println!("  gangline login https://HOST:{} --pin {{CA}}", coordinator.http.port());
    println!("make a join token:");
    println!(
        "  gangline --address http://{} --token-file {} node token > join.token",
        coordinator.http,
        coordinator.admin_token.display()
    );
    println!("on every node:");
    println!(
        "  gangline-agent run --join quic://HOST:{} --token-file join.token",
        coordinator.quic.port()
    );
}

fn tell_service_manager(states: &[sd_notify::NotifyState<'_>]) {
    // Without a service manager this does nothing.
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "service manager");
    }
}
