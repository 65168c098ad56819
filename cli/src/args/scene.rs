//! The arguments of `stack`, `bundle` and `checkpoint`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// `gangline stack`.
#[derive(Debug, ClapArgs)]
pub struct Stack {
    /// Id, unique prefix, name or @last
    pub job: String,
    /// Only this rank, or head
    #[arg(long, value_name = "N")]
    pub rank: Option<String>,
    /// Ray's own services as well
    #[arg(long)]
    pub all: bool,
}

/// `gangline bundle`.
#[derive(Debug, ClapArgs)]
pub struct Bundle {
    /// Id, unique prefix, name or @last
    pub job: String,
    /// Only this attempt [default: the newest three]
    #[arg(long, value_name = "N")]
    pub attempt: Option<u64>,
    /// The file to write [default: JOB.tar.gz]
    #[arg(short = 'f', long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `gangline checkpoint`.
#[derive(Debug, ClapArgs)]
pub struct Checkpoint {
    /// What to do.
    #[command(subcommand)]
    pub command: CheckpointCommand,
}

/// The commands of `gangline checkpoint`.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// List the training checkpoints in a job's directory, with sizes, ages and whether they are complete
    Ls {
        /// Id, unique prefix, name or @last
        job: String,
    },
}
