//! The program: which command, which flags, which exit code.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use gangline_agent::config::{Config, ConfigErrors};
use gangline_agent::inventory::DoctorSubject;
use gangline_agent::join::JoinError;
use gangline_agent::ledger::LedgerError;
use gangline_agent::link::LinkError;
use gangline_agent::run::{RunError, open_accelerators, resolve_program, run};
use gangline_agent::{doctor, shim, status, supervisor};
use gangline_common::join_token::JoinToken;
use toml::Value;

/// The join token was refused: starting again with it changes nothing.
const EXIT_REFUSED: u8 = 3;
/// The identity was revoked.
const EXIT_REVOKED: u8 = 4;
/// The configuration cannot be used.
const EXIT_CONFIG: u8 = 5;
/// The ledger is damaged: a person has to look.
const EXIT_LEDGER: u8 = 78;
/// Threads that serve async work: the agent waits far more than it computes.
const WORKER_THREADS: usize = 4;

#[derive(Parser)]
#[command(name = "gangline-agent", version, about = "Agent of a GPU container")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the agent; joins first if the node has not joined yet.
    Run(Box<Run>),
    /// Show what the agent of this node does.
    Status(StatusArguments),
    /// Examine the node: what works, what does not, what cannot be seen.
    Doctor(Doctor),
    /// Make a training checkpoint of its encrypted copy again.
    RestoreCopy(RestoreCopy),
    /// The process that members' shims are forked from.
    #[command(hide = true)]
    Nursery,
    /// File operations that may hang.
    #[command(hide = true)]
    Helper,
}

#[derive(clap::Args)]
struct Run {
    #[command(flatten)]
    settings: Settings,
    /// Coordinator to join: quic://HOST:8265.
    #[arg(long, value_name = "URL", conflicts_with = "coordinator")]
    join: Option<String>,
    /// Coordinator, if it has moved since the join: HOST:PORT.
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// File with the join token, or - for stdin; may be removed after the join.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Name of the node [default: its host name].
    #[arg(long)]
    name: Option<String>,
    /// What the node may be used for: worker, head; may be repeated [default: worker].
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// Pool that the node belongs to.
    #[arg(long)]
    pool: Option<String>,
    /// A word about the node that jobs can ask for; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Address that other members of a gang reach this node by.
    #[arg(long, value_name = "IP")]
    node_address: Option<String>,
}

/// What `run` and `doctor` share.
#[derive(clap::Args)]
struct Settings {
    /// TOML file; packaging/agent.toml shows every key.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Identity, ledger and spools [default: /var/lib/gangline/agent].
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,
    /// Temporary directories of Ray [default: /tmp/gangline].
    #[arg(long, value_name = "DIR")]
    temp_root: Option<String>,
    /// Interpreter with Ray beside it [default: python3].
    #[arg(long, value_name = "FILE")]
    python: Option<String>,
    /// NVML library [default: the usual names].
    #[arg(long, value_name = "PATH")]
    nvml_library: Option<String>,
    /// Ports that may be leased to gangs [default: 20000-32767].
    #[arg(long, value_name = "FIRST-LAST")]
    ports: Option<String>,
    /// Root of all artefacts: the doctor checks it, and the agent tries it again and again.
    #[arg(long, value_name = "DIR")]
    shared_root: Option<String>,
}

#[derive(clap::Args)]
struct StatusArguments {
    /// State directory of the agent.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/gangline/agent")]
    state_dir: PathBuf,
    /// Say nothing; exit with 0 when connected, with 1 when not.
    #[arg(long)]
    exit_code: bool,
}

#[derive(clap::Args)]
struct Doctor {
    #[command(flatten)]
    settings: Settings,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct RestoreCopy {
    /// File with the key: checkpoint_copy_key of the agent that made the copy.
    #[arg(long, value_name = "FILE")]
    key_file: PathBuf,
    /// The copy, such as /backup/gangline/j-7f3k2/global_step_40.glcopy.
    copy: PathBuf,
    /// Directory that the checkpoint appears in, under its own name.
    into: PathBuf,
}

fn main() -> ExitCode {
    // The nursery and a helper have one thread and no runtime: what follows starts both.
    let mut words = std::env::args_os().skip(1);
    match (words.next(), words.next(), words.next()) {
        (Some(word), None, None) if word == OsStr::new("nursery") => return shim::nursery::main(),
        (Some(word), None, None) if word == OsStr::new("helper") => {
            return supervisor::files::helper_main();
        }
        _ => {}
    }
    let outcome = match Arguments::parse().command {
        Command::Run(arguments) => run_agent(*arguments),
        Command::Status(arguments) => show_status(&arguments),
        Command::Doctor(arguments) => examine(&arguments),
        Command::RestoreCopy(arguments) => restore_copy(&arguments),
        // Only reached with more words than they take.
        Command::Nursery => return shim::nursery::main(),
        Command::Helper => return supervisor::files::helper_main(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gangline-agent: {error:#}");
            exit_code(&error)
        }
    }
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<ConfigErrors>().is_some() {
        return ExitCode::from(EXIT_CONFIG);
    }
    match error.downcast_ref::<RunError>() {
        Some(RunError::Join(JoinError::Refused(_))) => ExitCode::from(EXIT_REFUSED),
        Some(RunError::Link(LinkError::Revoked(_))) => ExitCode::from(EXIT_REVOKED),
        Some(RunError::Ledger(LedgerError::Damaged { .. })) => ExitCode::from(EXIT_LEDGER),
        _ => ExitCode::FAILURE,
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(WORKER_THREADS).enable_all().build().context("async runtime")
}

fn run_agent(arguments: Run) -> anyhow::Result<ExitCode> {
    gangline_common::logging::init();
    let config = run_config(&arguments)?;
    let token = arguments.token_file.as_deref().map(|path| token(path, &config)).transpose()?;
    let runtime = runtime()?;
    let outcome = runtime.block_on(run(config, token.flatten()));
    // Threads that hang in a file system or a driver must not hold up the end.
    runtime.shutdown_background();
    outcome?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the token. A file that is gone after the join is no error.
fn token(path: &Path, config: &Config) -> anyhow::Result<Option<JoinToken>> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(4096).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(4096).read_to_string(&mut text))
    };
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && has_joined(config) => {
            return Ok(None);
        }
        Err(error) => {
            return Err(error).with_context(|| format!("--token-file {}", path.display()));
        }
    }
    if text.trim().is_empty() && has_joined(config) {
        return Ok(None);
    }
    text.parse().map(Some).with_context(|| format!("--token-file {}", path.display()))
}

fn has_joined(config: &Config) -> bool {
    config.state_dir.join("identity").exists()
}

fn show_status(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let now = gangline_common::time::Timestamp::now().wall_ms;
    let finding = status::read(&arguments.state_dir, now)
        .with_context(|| format!("status below {}", arguments.state_dir.display()))?;
    if !arguments.exit_code {
        print!("{}", finding.text());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(if finding.is_connected() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn restore_copy(arguments: &RestoreCopy) -> anyhow::Result<ExitCode> {
    let RestoreCopy { key_file, copy, into } = arguments;
    let name = supervisor::checkpoints::copy::restore(copy, key_file, into)
        .with_context(|| format!("{} was not restored", copy.display()))?;
    println!("{}", into.join(name).display());
    Ok(ExitCode::SUCCESS)
}

fn examine(arguments: &Doctor) -> anyhow::Result<ExitCode> {
    let config =
        Config::load(arguments.settings.config.as_deref(), settings_flags(&arguments.settings))?;
    let runtime = runtime()?;
    let lines = runtime.block_on(async {
        let subject = DoctorSubject::of(&config, resolve_program(&config.python));
        let accelerators = open_accelerators(&config).await;
        subject.examine(&accelerators).await
    });
    runtime.shutdown_background();
    match arguments.json {
        true => println!("{}", doctor::render_json(&lines)?),
        false => print!("{}", doctor::render(&lines)),
    }
    Ok(match doctor::worst(&lines) {
        doctor::Level::Error => ExitCode::FAILURE,
        doctor::Level::Ok | doctor::Level::Blind | doctor::Level::Warning => ExitCode::SUCCESS,
    })
}

// ---------------------------------------------------------------- flags as keys of the file

fn put(table: &mut toml::Table, key: &str, value: Option<&String>) {
    if let Some(value) = value {
        table.insert(key.to_owned(), Value::String(value.clone()));
    }
}

/// As `put`, for paths: on a command line they may be relative to the current directory.
fn put_path(table: &mut toml::Table, key: &str, value: Option<&String>) {
    let absolute = value.map(|path| match std::path::absolute(path) {
        Ok(absolute) => absolute.to_string_lossy().into_owned(),
        // The check of the configuration says what is wrong with it.
        Err(_) => path.clone(),
    });
    put(table, key, absolute.as_ref());
}

fn settings_flags(settings: &Settings) -> toml::Table {
    let mut table = toml::Table::new();
    put_path(&mut table, "state_dir", settings.state_dir.as_ref());
    put_path(&mut table, "temp_root", settings.temp_root.as_ref());
    put_path(&mut table, "shared_root", settings.shared_root.as_ref());
    put_path(&mut table, "nvml_library", settings.nvml_library.as_ref());
    match &settings.python {
        Some(path) if path.contains('/') => put_path(&mut table, "python", Some(path)),
        name => put(&mut table, "python", name.as_ref()),
    }
    put(&mut table, "ports", settings.ports.as_ref());
    table
}

/// The configuration of `run`, with everything that is wrong in flags and file.
fn run_config(run: &Run) -> Result<Config, ConfigErrors> {
    let mut table = settings_flags(&run.settings);
    put(&mut table, "coordinator", run.join.as_ref().or(run.coordinator.as_ref()));
    put(&mut table, "name", run.name.as_ref());
    put(&mut table, "pool", run.pool.as_ref());
    put(&mut table, "node_address", run.node_address.as_ref());
    if !run.roles.is_empty() {
        let roles = run.roles.iter().cloned().map(Value::String).collect();
        table.insert("roles".to_owned(), Value::Array(roles));
    }
    let mut labels = toml::Table::new();
    let mut wrong = Vec::new();
    for label in &run.labels {
        match label.split_once('=') {
            Some((name, value)) => {
                labels.insert(name.to_owned(), Value::String(value.to_owned()));
            }
            None => wrong.push(format!("--label {label:?} has no value: write KEY=VALUE")),
        }
    }
    if !labels.is_empty() {
        table.insert("labels".to_owned(), Value::Table(labels));
    }
    let config = Config::load(run.settings.config.as_deref(), table);
    match config {
        Ok(config) if wrong.is_empty() => Ok(config),
        Ok(_) => Err(ConfigErrors(wrong)),
        Err(ConfigErrors(more)) => {
            wrong.extend(more);
            Err(ConfigErrors(wrong))
        }
    }
}
