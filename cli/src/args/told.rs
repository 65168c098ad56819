//! The arguments of `webhook`, `events` and `usage`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use crate::durations;

/// `gangline webhook`.
#[derive(Debug, ClapArgs)]
pub struct Webhook {
    /// What to do.
    #[command(subcommand)]
    pub command: WebhookCommand,
}

/// Whose webhooks are meant.
#[derive(Clone, Debug, ClapArgs)]
pub struct Scope {
    /// Project, for administrators [default: your own]
    #[arg(long, conflicts_with = "fleet")]
    pub project: Option<String>,
    /// Those that are told of every project and of the nodes, for administrators
    #[arg(long)]
    pub fleet: bool,
}

/// The commands of `gangline webhook`.
#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// List webhooks and how far each was told; never their addresses and keys
    Ls {
        /// Whose.
        #[command(flatten)]
        scope: Scope,
    },
    /// Set a webhook, or replace it. Its address comes from a file, from stdin, or typed unseen
    Add {
        /// Name, for people
        name: String,
        /// File with the address: some addresses are secrets
        #[arg(long, value_name = "FILE")]
        url_file: Option<PathBuf>,
        /// What it understands: generic, alertmanager, slack, feishu, dingtalk or wecom
        #[arg(long, default_value = "generic")]
        kind: String,
        /// File with the key that bodies are signed with [default: one is made and shown once]
        #[arg(long, value_name = "FILE")]
        key_file: Option<PathBuf>,
        /// Kinds of events, such as job.failed or node.*, separated by commas [default: all]
        #[arg(long, value_delimiter = ',', value_name = "KINDS")]
        events: Vec<String>,
        /// Whose.
        #[command(flatten)]
        scope: Scope,
    },
    /// Delete a webhook
    Rm {
        /// Name of the webhook
        name: String,
        /// Whose.
        #[command(flatten)]
        scope: Scope,
    },
    /// Make an event that only this webhook is told of; `ls` and `dead` show what came of it
    Test {
        /// Name of the webhook
        name: String,
        /// Whose.
        #[command(flatten)]
        scope: Scope,
    },
    /// List the events that a webhook could not be told of
    Dead {
        /// Name of the webhook
        name: String,
        /// Whose.
        #[command(flatten)]
        scope: Scope,
    },
}

/// `gangline events`.
#[derive(Debug, ClapArgs)]
pub struct Events {
    /// Oldest first, and then what happens as it happens
    #[arg(short, long)]
    pub follow: bool,
    /// How many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub count: u16,
    /// Only of this kind, such as job.failed, or of kinds that begin so, such as node.*
    #[arg(long)]
    pub kind: Option<String>,
    /// Only about this job
    #[arg(long, value_name = "JOB", conflicts_with = "node")]
    pub job: Option<String>,
    /// Only about this node, by id or name
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
}

/// `gangline usage`.
#[derive(Debug, ClapArgs)]
pub struct Usage {
    /// What a row is
    #[arg(long, default_value = "project")]
    pub by: By,
    /// How far back, such as 24h or 30d
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = durations::parse)]
    pub since: Duration,
    /// Only of this project
    #[arg(long)]
    pub project: Option<String>,
    /// Print GPU-seconds as comma-separated values, with a line of titles
    #[arg(long, conflicts_with_all = ["output", "json"])]
    pub csv: bool,
}

/// What a row of `gangline usage` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    User,
    Project,
    Pool,
    Job,
}

impl By {
    /// As the API has it.
    pub fn word(self) -> &'static str {
        match self {
            By::User => "user",
            By::Project => "project",
            By::Pool => "pool",
            By::Job => "job",
        }
    }
}
