//! The program: flags, start, signals, exit codes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use gangline_coordinator::config::{Config, ConfigErrors};
use gangline_coordinator::coordinator::Coordinator;
use gangline_coordinator::secrets::SecretError;
use gangline_coordinator::store::StoreError;
use tokio::signal::unix::{SignalKind, signal};

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
}

#[derive(clap::Args)]
struct Serve {
    /// TOML file; see packaging/coordinator.toml for every key.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Directory of the store, the CA and the logs.
    #[arg(long)]
    state_dir: Option<PathBuf>,
    /// Address of the HTTP API: https, and plain HTTP for this machine.
    #[arg(long)]
    http: Option<SocketAddr>,
    /// UDP address for agents.
    #[arg(long)]
    quic: Option<SocketAddr>,
    /// Root of all artefacts, as the nodes see it.
    #[arg(long)]
    shared_root: Option<String>,
    /// Print what a first user needs: URL, token file, how to join.
    #[arg(long)]
    dev: bool,
}

fn main() -> ExitCode {
    gangline_common::logging::init();
    let Command::Serve(serve) = Arguments::parse().command;
    match run(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gangline-coordinator: {error:#}");
            exit_code(&error)
        }
    }
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<ConfigErrors>().is_some() {
        return ExitCode::from(EXIT_CONFIG);
    }
    if error.downcast_ref::<SecretError>().is_some() {
        return ExitCode::from(EXIT_STORE_REFUSED);
    }
    match error.downcast_ref::<StoreError>() {
        Some(StoreError::Failed { .. }) => ExitCode::from(EXIT_STORE_FAILED),
        Some(
            StoreError::Refused { .. }
            | StoreError::Taken { .. }
            | StoreError::Newer { .. }
            | StoreError::Corrupt { .. },
        ) => ExitCode::from(EXIT_STORE_REFUSED),
        None => ExitCode::FAILURE,
    }
}

fn run(serve: Serve) -> anyhow::Result<()> {
    let mut config = Config::load(serve.config.as_deref())?;
    if let Some(state_dir) = serve.state_dir {
        config.state_dir = state_dir;
    }
    if let Some(http) = serve.http {
        config.http = http;
    }
    if let Some(quic) = serve.quic {
        config.quic = quic;
    }
    if serve.shared_root.is_some() {
        config.shared_root = serve.shared_root;
    }
    config.validate()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve_until_signal(&config, serve.dev))
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
