//! The arguments of `stack` and `bundle`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

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
