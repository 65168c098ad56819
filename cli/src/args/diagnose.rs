//! `gangline diagnose`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// `gangline diagnose`.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Asks no coordinator. Of each log the first 256 KB and the last 2 MB are looked at, less of \
                  each when there are many. docs/diagnosis.md says what the categories mean."
)]
pub struct Diagnose {
    /// Logs of one failure: one file, or one for each rank; - is stdin
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Also show what rules on probation would say
    #[arg(long)]
    pub shadow: bool,
}
