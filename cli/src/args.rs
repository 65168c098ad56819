//! The commands and options, as clap reads them.

mod diagnose;
mod export;
mod node_test;
mod scene;
mod simulate;
mod told;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use gangline_spec::{Moment, Priority};

use crate::config::Options;
use crate::durations;
use crate::output::{Format, parse_format};
use crate::trust::{self, Pin};
pub use diagnose::Diagnose;
pub use export::{Export, ExportCommand};
pub use node_test::{Backend, NodeTest};
pub use scene::{Bundle, Checkpoint, CheckpointCommand, Stack};
pub use simulate::{QuotaWish, Simulate};
pub use told::{By, Events, Scope, Usage, Webhook, WebhookCommand};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "gangline",
    version,
    about = "Run jobs on gangs of GPU nodes",
    after_help = "A JOB is an id, the unique beginning of an id, a name (the newest job of that \
                  name), @last, or - for a list on stdin.\n\
                  Exit codes: 0 ok, 1 error, 2 usage, 4 not allowed, 5 spec or config invalid, \
                  6 coordinator not reachable, 7 conflict, 9 can never run; of a job: 0 SUCCEEDED, \
                  100 FAILED, 101 not finished, 102 not found, 103 CANCELLED; 130 Ctrl-C.",
    infer_subcommands = false,
    disable_help_subcommand = true
)]
pub struct Args {
    /// Options of every command.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Coordinator [env: GANGLINE_ADDRESS] [default: http://127.0.0.1:8265]
    #[arg(long, global = true, value_name = "URL")]
    pub address: Option<String>,
    /// API token; better a file or the environment, as others can see arguments [env: GANGLINE_TOKEN]
    #[arg(long, global = true, value_name = "TOKEN", conflicts_with = "token_file")]
    pub token: Option<String>,
    /// File that holds the API token
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// CA of an https coordinator, a PEM file; `gangline login` keeps it [env: GANGLINE_CA]
    #[arg(long, global = true, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Form of the data: table, wide, json, jsonl, name
    #[arg(
        short,
        long,
        global = true,
        value_name = "FORMAT",
        env = "GANGLINE_OUTPUT",
        hide_env_values = true,
        value_parser = parse_output,
        default_value = "table"
    )]
    pub output: Output,
    /// The same as -o json
    #[arg(long, global = true)]
    pub json: bool,
    /// Colours: auto, always, never; auto heeds NO_COLOR and CLICOLOR_FORCE
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub color: ColorWhen,
    /// No hints and no progress
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

impl Globals {
    /// What they say about the connection.
    pub fn connection(&self) -> Options {
        Options {
            address: self.address.clone(),
            token: self.token.clone(),
            token_file: self.token_file.clone(),
            ca: self.ca.clone(),
        }
    }

    /// The form of the data.
    pub fn format(&self) -> Format {
        match self.output {
            _ if self.json => Format::Json,
            Output::Format(format) => format,
            Output::Yaml => Format::Table,
        }
    }
}

/// What `-o` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A form that every command has.
    Format(Format),
    /// YAML, which only `plan` has.
    Yaml,
}

fn parse_output(text: &str) -> Result<Output, String> {
    match text {
        "yaml" => Ok(Output::Yaml),
        other => parse_format(other).map(Output::Format),
    }
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Submit a job: a spec file, a script, or a command
    Submit(Submit),
    /// Submit the spec of a job again, perhaps with changes
    Clone(CloneJob),
    /// Run one command on N nodes with its output here, without a spec
    Run(Run),
    /// List jobs
    Ps(Ps),
    /// Show everything about a job
    Show(Show),
    /// Compare the specs of two jobs
    Diff(Diff),
    /// Watch a training: its curve, its GPUs, its log and events; a screen on a terminal
    Watch(Show),
    /// Print, follow, search or download the logs of a job, or search those of all jobs
    Logs(Logs),
    /// Show what the Ray cluster of a running job says of itself
    Ray(Ray),
    /// Stop jobs
    Stop(Stop),
    /// Hold jobs that wait: they do not start until they are released
    Hold(Hold),
    /// Release jobs that are held, or that are kept up after their failure
    Release(Jobs),
    /// Stop jobs politely and send them back to their place in the queue
    Requeue(Requeue),
    /// Give jobs another priority
    SetPriority(SetPriority),
    /// Give jobs a longer time limit
    Extend(Extend),
    /// Wait until jobs have ended
    Wait(Wait),
    /// Nodes, and join tokens for new ones
    Node(Node),
    /// Pools: named sets of nodes that jobs ask for
    Pool(Pool),
    /// What a job did with its GPUs in the last hour, as charts of one line
    Metrics(Metrics),
    /// What nodes and GPUs do now, and who uses them: a screen on a terminal
    Top(Top),
    /// API tokens of users
    Token(Token),
    /// Standing Ray clusters, which many jobs share
    Cluster(Cluster),
    /// Projects, and what their jobs may ask for
    Project(Project),
    /// Secrets of your project, which jobs get as environment
    Secret(Secret),
    /// Who is told of events: webhooks
    Webhook(Webhook),
    /// What has happened to jobs and nodes
    Events(Events),
    /// GPU-hours, and what became of them
    Usage(Usage),
    /// Who did what: the audit log
    Audit(Audit),
    /// Keep address, CA and token of a coordinator for the next commands
    Login(Login),
    /// Forget the token
    Logout(Logout),
    /// Check a spec without asking the coordinator
    Validate(Validate),
    /// What would become of a job: now, later or never, and why. With -o yaml: what its spec means
    Plan(Plan),
    /// Why a job waits, where it stands in the queue, when it will start and what would help
    Explain {
        /// Id, unique prefix, name or @last
        job: String,
    },
    /// Why a job failed: the first cause over all of its ranks, and what was done about it
    Why {
        /// Id, unique prefix, name or @last
        job: String,
        /// Of this attempt; the newest that failed when absent
        #[arg(long)]
        attempt: Option<u32>,
    },
    /// The waiting jobs in their order
    Queue {
        /// Only of jobs that may run in this pool
        #[arg(long)]
        pool: Option<String>,
    },
    /// Why a job failed, from its logs alone
    Diagnose(Diagnose),
    /// Where the processes of a running job stand, rank by rank, and which rank is elsewhere
    Stack(Stack),
    /// Everything about a job in one file, without secrets: spec, events, ends of logs, scenes, nodes
    Bundle(Bundle),
    /// Training checkpoints of a job
    Checkpoint(Checkpoint),
    /// What if: replay a trace or the past with another fleet or policy
    Simulate(Simulate),
    /// Write a commented spec to begin with
    Init(Init),
    /// Templates of jobs
    Template(Template),
    /// JSON Schemas for editors
    Schema(Schema),
    /// Dashboards, alert rules and scrape configuration, as files
    Export(Export),
    /// Print who the token belongs to
    Whoami,
    /// Print the version
    Version,
}

/// What a submission may put over its spec.
#[derive(Debug, Default, ClapArgs)]
pub struct SpecOptions {
    /// Name of the job
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Number of nodes; 2..4 starts with at least 2
    #[arg(long, value_name = "N", value_parser = parse_nnodes)]
    pub nnodes: Option<String>,
    /// GPUs on each node
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// Pool to run in; with commas, any of these
    #[arg(long, value_name = "POOL")]
    pub pool: Option<String>,
    /// Priority in the queue: low, normal, high, urgent, or 0 to 100
    #[arg(long, value_name = "PRIORITY", value_parser = parse_priority)]
    pub priority: Option<u8>,
    /// Do not start before somebody releases it
    #[arg(long)]
    pub hold: bool,
    /// Job that must have SUCCEEDED before this one starts (repeatable)
    #[arg(long, value_name = "JOB")]
    pub after: Vec<String>,
    /// Do not start before, such as 2026-12-01T22:00:00+08:00 or now+2h
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub not_before: Option<Moment>,
    /// Fail when it could not start within this time, such as 90m or 7d
    #[arg(long, value_name = "TIME", value_parser = durations::parse)]
    pub max_wait: Option<Duration>,
    /// Standing cluster to run on, in place of a gang of the job's own
    #[arg(long, value_name = "CLUSTER")]
    pub on: Option<String>,
    /// Environment of the job; K alone takes the value of this shell (repeatable)
    #[arg(long, value_name = "K[=V]")]
    pub env: Vec<String>,
    /// Any field of the spec, such as resources.nnodes=8 (repeatable)
    #[arg(long, value_name = "PATH=VALUE", value_parser = parse_override)]
    pub set: Vec<(String, String)>,
    /// Id of the job; the same id and spec again are the same job
    #[arg(long, value_name = "SUBMISSION_ID")]
    pub id: Option<String>,
    /// Wait for the end, and exit with the job's own exit code
    #[arg(long)]
    pub propagate: bool,
}

/// The spec says which numbers there can be.
fn parse_nnodes(text: &str) -> Result<String, String> {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let range = text.split_once("..").or_else(|| text.split_once(':'));
    let good = range.map_or(digits(text), |(least, most)| digits(least) && digits(most));
    good.then(|| text.to_owned()).ok_or_else(|| "write it as 4, or as 2..4".to_owned())
}

/// A time with its offset, or from now.
fn parse_moment(text: &str) -> Result<Moment, String> {
    let from_now = text.strip_prefix("now+").and_then(gangline_spec::parse_duration);
    let from_now = from_now.map(|time| {
        let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
        // Whole seconds, as a person would write it; durations end after a year.
        Moment { wall_ms: (now / 1000 + time.as_secs()) * 1000 }
    });
    from_now.or_else(|| Moment::parse(text)).ok_or_else(|| {
        "write it with its offset, 2026-12-01T22:00:00+08:00, or as now+2h".to_owned()
    })
}

fn parse_override(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(path, value)| (path.to_owned(), value.to_owned()))
        .ok_or_else(|| "write it as resources.nnodes=8".to_owned())
}

/// `gangline submit`.
#[derive(Debug, ClapArgs)]
pub struct Submit {
    /// Spec file, or a script with #GANGLINE or #SBATCH lines; - is stdin
    #[arg(required_unless_present = "command")]
    pub spec: Option<PathBuf>,
    /// Command of the job, in place of the spec's entrypoint
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
    /// Show the log until the job has ended, and exit with its code
    #[arg(short, long)]
    pub follow: bool,
    /// Wait until the job has ended, and exit with its code
    #[arg(long)]
    pub wait: bool,
    /// Check the spec here and print what would be sent; sends nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Overrides.
    #[command(flatten)]
    pub options: SpecOptions,
}

/// `gangline project`.
#[derive(Debug, ClapArgs)]
pub struct Project {
    /// What to do.
    #[command(subcommand)]
    pub command: ProjectCommand,
}

/// The commands of `gangline project`.
#[derive(Debug, Subcommand)]
pub enum ProjectCommand {
    /// List your project; all of them for operators
    Ls,
    /// Decide what the jobs of a project may ask for and use; for administrators
    Set(ProjectSettings),
}

/// Arguments of `gangline project set`.
#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("decision").required(true).multiple(true)
    .args(["max_priority", "pool", "no_quota", "idle_warn", "idle_reclaim"]))]
pub struct ProjectSettings {
    /// Name of the project
    pub project: String,
    /// Highest priority: low, normal, high, urgent, or 0 to 100
    #[arg(long, value_name = "PRIORITY", value_parser = parse_priority)]
    pub max_priority: Option<u8>,
    /// Pool of the quota
    #[arg(long)]
    pub pool: Option<String>,
    /// GPUs that the project gets back from others as soon as it has jobs for them
    #[arg(long, value_name = "GPUS", requires = "pool", default_value_t = 0)]
    pub guaranteed: u32,
    /// GPUs that its jobs hold together at most; no limit without it
    #[arg(long, value_name = "GPUS", requires = "pool")]
    pub max_gpus: Option<u32>,
    /// End the quota in this pool
    #[arg(long, value_name = "POOL", conflicts_with = "pool")]
    pub no_quota: Option<String>,
    /// Event about jobs whose GPUs are idle for so long [default: 30m]
    #[arg(long, value_name = "DURATION", value_parser = durations::parse)]
    pub idle_warn: Option<Duration>,
    /// Stop jobs whose GPUs are idle for so long; with --idle-warn alone none are stopped
    #[arg(long, value_name = "DURATION", value_parser = durations::parse)]
    pub idle_reclaim: Option<Duration>,
}

fn parse_priority(text: &str) -> Result<u8, String> {
    let number = || text.parse().ok().filter(|number| *number <= Priority::HIGHEST.0);
    let word = Priority::from_word(text).map(|priority| priority.0);
    word.or_else(number).ok_or_else(|| "use low, normal, high, urgent, or 0 to 100".to_owned())
}

/// `gangline cluster`.
#[derive(Debug, ClapArgs)]
pub struct Cluster {
    /// What to do.
    #[command(subcommand)]
    pub command: ClusterCommand,
}

/// The commands of `gangline cluster`.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// List clusters; `gangline submit` with `kind: cluster` starts one
    Ls {
        /// Also those that have ended
        #[arg(short, long)]
        all: bool,
    },
    /// Show a cluster
    Show {
        /// Cluster
        cluster: String,
    },
    /// Stop a cluster, and with it the jobs that run on it
    Stop {
        /// Cluster
        cluster: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Print the address for `ray job submit --address`
    Address {
        /// Cluster
        cluster: String,
    },
}

/// `gangline clone`.
#[derive(Debug, ClapArgs)]
pub struct CloneJob {
    /// Job whose spec is submitted again
    pub job: String,
    /// Show the log until the job has ended, and exit with its code
    #[arg(short, long)]
    pub follow: bool,
    /// Wait until the job has ended, and exit with its code
    #[arg(long)]
    pub wait: bool,
    /// Overrides.
    #[command(flatten)]
    pub options: SpecOptions,
}

/// `gangline diff`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Exit codes: 0 the specs are equal, 1 they differ (or another error), \
                        102 a job is not found.")]
pub struct Diff {
    /// Job on the left (-)
    #[arg(value_name = "JOB1")]
    pub left: String,
    /// Job on the right (+)
    #[arg(value_name = "JOB2")]
    pub right: String,
}

/// `gangline run`.
#[derive(Debug, ClapArgs)]
pub struct Run {
    /// The command: it runs on every node, without a shell
    #[arg(last = true, value_name = "CMD", required = true)]
    pub command: Vec<String>,
    /// Overrides.
    #[command(flatten)]
    pub options: SpecOptions,
}

/// `gangline ps`.
#[derive(Debug, ClapArgs)]
pub struct Ps {
    /// Also jobs that have ended
    #[arg(short, long)]
    pub all: bool,
    /// Only jobs in this state, such as RUNNING
    #[arg(short, long, value_name = "STATE", value_parser = parse_state)]
    pub state: Option<String>,
    /// Go on: redraw on a terminal, else print changed jobs as JSON lines
    #[arg(short, long)]
    pub watch: bool,
}

fn parse_state(text: &str) -> Result<String, String> {
    let state = text.to_ascii_uppercase();
    if crate::view::STATES.contains(&state.as_str()) {
        return Ok(state);
    }
    Err(format!("use one of {}", crate::view::STATES.join(", ")))
}

/// `gangline show`.
#[derive(Debug, ClapArgs)]
pub struct Show {
    /// Job
    pub job: String,
}

/// `gangline logs`.
#[derive(Debug, ClapArgs)]
pub struct Logs {
    /// Job
    #[arg(required_unless_present = "search", conflicts_with_all = ["search", "project"])]
    pub job: Option<String>,
    /// Go on until the job has ended, and exit with its code
    #[arg(short, long)]
    pub follow: bool,
    /// Output of this member: a rank, or head [default: the Ray driver's log, else rank 0]
    #[arg(long, value_name = "RANK", value_parser = parse_rank)]
    pub rank: Option<String>,
    /// Output of the members on this node
    #[arg(long, value_name = "NODE", conflicts_with = "rank")]
    pub node: Option<String>,
    /// Output of all members, in the order of time
    #[arg(long)]
    pub all: bool,
    /// A file of the member, as --files names it; NAME* for all whose names begin so
    #[arg(long, value_name = "NAME")]
    pub file: Option<String>,
    /// List the files
    #[arg(long)]
    pub files: bool,
    /// Attempt [default: the last one]
    #[arg(long, value_name = "N")]
    pub attempt: Option<u32>,
    /// Lines to begin with, from the end, or all [default: 1000, and all with --since or a search]
    #[arg(long, value_name = "N", default_value = "1000", hide_default_value = true,
        value_parser = parse_tail)]
    pub tail: Tail,
    /// Nothing that is older, such as 10m
    #[arg(long, value_name = "TIME", value_parser = durations::parse)]
    pub since: Option<Duration>,
    /// Only lines that this expression fits
    #[arg(long, value_name = "RE")]
    pub grep: Option<String>,
    /// Only lines that look like errors
    #[arg(long)]
    pub errors: bool,
    /// Lines before and after each hit of a search
    #[arg(short = 'C', long, value_name = "N", default_value = "0", hide_default_value = true)]
    pub context: u8,
    /// Write the files into this directory, as they are
    #[arg(long, value_name = "DIR", conflicts_with_all = ["follow", "grep", "errors", "since"])]
    pub download: Option<PathBuf>,
    /// Search the logs of all jobs of the project
    #[arg(long, value_name = "RE",
        conflicts_with_all = ["follow", "grep", "rank", "node", "all", "file", "files", "attempt", "download"])]
    pub search: Option<String>,
    /// Another project than your own to search
    #[arg(long, requires = "search")]
    pub project: Option<String>,
    /// Bytes as they are: control sequences reach the terminal, progress bars are not folded
    #[arg(long)]
    pub raw: bool,
}

/// How many lines from the end to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The whole log.
    All,
    /// This many lines.
    Lines(u64),
}

fn parse_tail(text: &str) -> Result<Tail, String> {
    match text {
        "all" => Ok(Tail::All),
        number => number.parse().map(Tail::Lines).map_err(|_| "give a number, or all".to_owned()),
    }
}

fn parse_rank(text: &str) -> Result<String, String> {
    if text == "head" || text.parse::<u32>().is_ok() {
        return Ok(text.to_owned());
    }
    Err("give the number of a rank, or head".to_owned())
}

/// `gangline ray`.
#[derive(Debug, ClapArgs)]
pub struct Ray {
    /// What to show.
    #[command(subcommand)]
    pub command: RayCommand,
}

/// The commands of `gangline ray`.
#[derive(Debug, Subcommand)]
pub enum RayCommand {
    /// Nodes, dead ones too
    Nodes(RayList),
    /// Actors, dead ones too
    Actors(RayList),
    /// Placement groups
    Pgs(RayList),
}

/// One list of `gangline ray`.
#[derive(Debug, ClapArgs)]
pub struct RayList {
    /// Job
    pub job: String,
    /// Only what is in this state, in Ray's word, such as ALIVE or PENDING
    #[arg(short, long, value_name = "STATE")]
    pub state: Option<String>,
    /// Most entries
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub count: u16,
}

/// `gangline stop`.
#[derive(Debug, ClapArgs)]
pub struct Stop {
    /// Jobs
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Why; kept with the job
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Also stop jobs of others without a question
    #[arg(short, long)]
    pub yes: bool,
}

/// Jobs, and nothing else.
#[derive(Debug, ClapArgs)]
pub struct Jobs {
    /// Jobs
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
}

/// `gangline hold`.
#[derive(Debug, ClapArgs)]
pub struct Hold {
    /// Jobs
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Why; kept with the job
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// `gangline requeue`.
#[derive(Debug, ClapArgs)]
pub struct Requeue {
    /// Jobs
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Node, by id or name, that the jobs leave out from now on (repeatable)
    #[arg(long, value_name = "NODE")]
    pub exclude_node: Vec<String>,
    /// Why; kept with the job
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Also requeue jobs of others without a question
    #[arg(short, long)]
    pub yes: bool,
}

/// `gangline set-priority`.
#[derive(Debug, ClapArgs)]
pub struct SetPriority {
    /// Jobs
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
    /// low, normal, high, urgent, or 0 to 100; the higher goes first
    #[arg(value_name = "PRIORITY", value_parser = parse_priority)]
    pub priority: u8,
}

/// `gangline extend`.
#[derive(Debug, ClapArgs)]
pub struct Extend {
    /// Jobs
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
    /// How much longer they may run, such as 90m or 2h
    #[arg(long, value_name = "TIME", value_parser = durations::parse)]
    pub by: Duration,
}

/// `gangline wait`.
#[derive(Debug, ClapArgs)]
pub struct Wait {
    /// Jobs
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Give up after this time, such as 90s or 2h, with exit code 101
    #[arg(long, value_name = "TIME", value_parser = durations::parse)]
    pub timeout: Option<Duration>,
}

/// `gangline node`.
#[derive(Debug, ClapArgs)]
pub struct Node {
    /// What to do.
    #[command(subcommand)]
    pub command: NodeCommand,
}

/// The commands of `gangline node`.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List nodes
    Ls {
        /// Only the nodes of this pool
        #[arg(long, value_name = "POOL")]
        pool: Option<String>,
        /// Again every second until Ctrl-C: in place on a terminal, elsewhere JSON lines of what is new
        #[arg(short, long)]
        watch: bool,
    },
    /// What ails nodes: rule, component, since when, and what to do
    Health {
        /// Id or name of a node; without it all nodes
        node: Option<String>,
        /// Rules on trial instead: what they have found, and what came of it
        #[arg(long, conflicts_with = "node")]
        trials: bool,
    },
    /// Show everything about a node
    Show {
        /// Id or name of the node
        node: String,
    },
    /// Make a join token for new agents
    Token {
        /// How many agents may join with it
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        uses: u32,
        /// How long it is good for
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = durations::parse)]
        ttl: Duration,
        /// Pool that the new nodes belong to
        #[arg(long, value_name = "POOL")]
        pool: Option<String>,
    },
    /// Let no new job come to a node; what runs there runs on
    Cordon {
        /// Id or name of the node
        node: String,
        /// Why; shown to everybody who waits
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Take a node out of use: no new job, and after the deadline what runs there is requeued
    Drain {
        /// Id or name of the node
        node: String,
        /// Why; shown to everybody who waits
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Time after which what still runs there goes back to the queue [default: never]
        #[arg(long, value_name = "TIME", value_parser = durations::parse)]
        deadline: Option<Duration>,
        /// The same as a deadline of 0s
        #[arg(long, conflicts_with = "deadline")]
        stop_jobs: bool,
    },
    /// Give labels to a node, which jobs can ask for; KEY- takes one back
    Label {
        /// Id or name of the node
        node: String,
        /// KEY=VALUE goes before the agent's label of that key; KEY- lets the agent's show again
        #[arg(required = true, value_name = "KEY=VALUE|KEY-", value_parser = parse_label)]
        labels: Vec<LabelChange>,
    },
    /// Take a node back into use after a cordon or a drain
    Resume {
        /// Id or name of the node
        node: String,
    },
    /// Give up what a lost node holds, when nothing of it can run any more
    ForceRelease {
        /// Id or name of the node
        node: String,
        /// How you know it; kept in the audit log
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Do it without a question
        #[arg(short, long)]
        yes: bool,
    },
    /// Measure the network between nodes by a job on them, and name those that are slow
    Test(NodeTest),
    /// Take a node's identity away: its agent cannot come back
    Revoke {
        /// Id or name of the node
        node: String,
        /// Do it without a question
        #[arg(short, long)]
        yes: bool,
    },
}

/// A label that is given, or taken back (`None`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelChange {
    pub key: String,
    pub value: Option<String>,
}

fn parse_label(text: &str) -> Result<LabelChange, String> {
    let change = match text.split_once('=') {
        Some((key, value)) => Some((key, Some(value.to_owned()))),
        None => text.strip_suffix('-').map(|key| (key, None)),
    };
    match change {
        Some((key, value)) if !key.is_empty() => Ok(LabelChange { key: key.to_owned(), value }),
        _ => Err("write KEY=VALUE to give a label, KEY- to take it back".to_owned()),
    }
}

/// `gangline pool`.
#[derive(Debug, ClapArgs)]
pub struct Pool {
    /// What to do.
    #[command(subcommand)]
    pub command: PoolCommand,
}

/// The commands of `gangline pool`.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// List pools: nodes, GPUs, and who waits
    Ls,
    /// Show a pool and its nodes
    Show {
        /// Name of the pool
        pool: String,
    },
    /// Make or describe a pool, and move nodes; for operators
    Set {
        /// Name of the pool
        pool: String,
        /// What it is, for people; makes the pool when there is none of this name
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Node that moves here; what runs there runs on (repeatable)
        #[arg(long, value_name = "NODE")]
        add: Vec<String>,
        /// Node that was moved here and goes back to the pool of its token or agent (repeatable)
        #[arg(long, value_name = "NODE")]
        remove: Vec<String>,
    },
    /// Delete a pool that no node is in and no live job names; for operators
    Rm {
        /// Name of the pool
        pool: String,
    },
}

/// `gangline top`.
#[derive(Debug, ClapArgs)]
pub struct Top {
    /// Print once and end, as where there is no terminal
    #[arg(long)]
    pub once: bool,
    /// Only the nodes of this pool
    #[arg(long, value_name = "POOL")]
    pub pool: Option<String>,
    /// Only the nodes and jobs of this user
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
}

/// `gangline metrics`.
#[derive(Debug, ClapArgs)]
pub struct Metrics {
    /// Job; see gangline --help for what names one
    pub job: String,
    /// How far back, at most an hour; up to 2m every sample is shown
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = durations::parse)]
    pub since: Duration,
    /// What the training says of itself, by step, instead of what its GPUs do
    #[arg(long, conflicts_with = "since")]
    pub step: bool,
    /// With --step: every value, as comma-separated values
    #[arg(long, requires = "step")]
    pub csv: bool,
    /// With --step: only metrics of these names, or with names that begin so
    #[arg(value_name = "NAME", requires = "step")]
    pub names: Vec<String>,
}

/// `gangline token`.
#[derive(Debug, ClapArgs)]
pub struct Token {
    /// What to do.
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// The commands of `gangline token`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make an API token
    Create {
        /// User that it speaks for
        #[arg(long)]
        user: String,
        /// Project that it works in
        #[arg(long)]
        project: String,
        /// Role of the user: viewer, member, operator or admin
        #[arg(long, default_value = "member")]
        role: String,
        /// How long it lets anybody in, such as 30d [default: for ever]
        #[arg(long, value_name = "DURATION", value_parser = durations::parse)]
        ttl: Option<Duration>,
        /// Name of the token, for people [default: the user]
        #[arg(long)]
        name: Option<String>,
    },
    /// List API tokens and join tokens; never what they consist of
    Ls,
    /// Delete a token: from then on nobody is let in with it
    Rm {
        /// Name of an API token, or id of a join token
        name: String,
    },
}

/// `gangline secret`.
#[derive(Debug, ClapArgs)]
pub struct Secret {
    /// What to do.
    #[command(subcommand)]
    pub command: SecretCommand,
}

/// The commands of `gangline secret`.
#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Set a secret, or replace its value: from a file, from stdin, or typed unseen
    Set {
        /// Name: that of the variable which jobs find it in
        name: String,
        /// File with the value; one end of line at its end does not count
        #[arg(long, value_name = "FILE")]
        from_file: Option<PathBuf>,
        /// Project, for administrators [default: your own]
        #[arg(long)]
        project: Option<String>,
    },
    /// List secrets; never their values
    Ls {
        /// Project, for administrators [default: your own]
        #[arg(long)]
        project: Option<String>,
    },
    /// Delete a secret that no waiting or running job names
    Rm {
        /// Name of the secret
        name: String,
        /// Project, for administrators [default: your own]
        #[arg(long)]
        project: Option<String>,
    },
}

/// `gangline login`.
#[derive(Debug, ClapArgs)]
pub struct Login {
    /// Coordinator, such as https://gangline.lan:8265 [default: as --address]
    #[arg(value_name = "ADDRESS")]
    pub address: Option<String>,
    /// SHA-256 fingerprint of the coordinator's CA, from your administrator
    #[arg(long, value_name = "SHA256", conflicts_with = "ca", value_parser = trust::parse_pin)]
    pub pin: Option<Pin>,
    /// Name to keep it under
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub context: String,
    /// Trust the CA that is shown without a question
    #[arg(short, long)]
    pub yes: bool,
}

/// `gangline logout`.
#[derive(Debug, ClapArgs)]
pub struct Logout {
    /// Name that it was kept under
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub context: String,
}

/// `gangline audit`.
#[derive(Debug, ClapArgs)]
pub struct Audit {
    /// What to do; without it the newest entries are shown.
    #[command(subcommand)]
    pub command: Option<AuditCommand>,
    /// Number of entries, 1 to 1000
    #[arg(short = 'n', long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub count: u16,
}

/// The commands of `gangline audit`.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Follow the chain of the whole log; exit code 1 when it is broken
    Verify,
}

/// `gangline validate`.
#[derive(Debug, ClapArgs)]
pub struct Validate {
    /// Spec file, or a script with #GANGLINE or #SBATCH lines; - is stdin
    pub spec: PathBuf,
}

/// `gangline plan`.
#[derive(Debug, ClapArgs)]
pub struct Plan {
    /// Spec file, or a script with #GANGLINE or #SBATCH lines; - is stdin
    pub spec: PathBuf,
    /// End with 8 when the job would wait
    #[arg(long)]
    pub exit_code: bool,
    /// Overrides.
    #[command(flatten)]
    pub options: SpecOptions,
}

/// `gangline init`.
#[derive(Debug, ClapArgs)]
pub struct Init {
    /// Template, such as verl/grpo [default: a script]
    pub template: Option<String>,
    /// Make it of a Slurm batch script and its #SBATCH lines; - is stdin
    #[arg(long, value_name = "SCRIPT", conflicts_with_all = ["template", "from_sky"])]
    pub from_slurm: Option<PathBuf>,
    /// Make it of a SkyPilot task; - is stdin
    #[arg(long, value_name = "TASK", conflicts_with = "template")]
    pub from_sky: Option<PathBuf>,
    /// File to write; - is stdout
    #[arg(long, value_name = "FILE", default_value = "job.yaml")]
    pub file: PathBuf,
}

/// `gangline template`.
#[derive(Debug, ClapArgs)]
pub struct Template {
    /// What to do.
    #[command(subcommand)]
    pub command: TemplateCommand,
}

/// The commands of `gangline template`.
#[derive(Debug, Subcommand)]
pub enum TemplateCommand {
    /// List templates
    Ls,
    /// Print a template: its params, and the arguments that it gives
    Show {
        /// Name, such as verl/grpo
        template: String,
    },
}

/// `gangline schema`.
#[derive(Debug, ClapArgs)]
pub struct Schema {
    /// What to do.
    #[command(subcommand)]
    pub command: SchemaCommand,
}

/// The commands of `gangline schema`.
#[derive(Debug, Subcommand)]
pub enum SchemaCommand {
    /// Print the JSON Schema of a job spec
    Job,
}
