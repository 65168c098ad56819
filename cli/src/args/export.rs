//! `gangline export`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// `gangline export`.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "docs/monitoring.md has the whole way from nothing to dashboards and alerts."
)]
pub struct Export {
    /// What to write.
    #[command(subcommand)]
    pub command: ExportCommand,
}

/// The commands of `gangline export`.
#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// Dashboards for Grafana: cluster.json, job.json and node.json
    Grafana {
        /// Directory to write them to; it is made when it is not there
        #[arg(long, value_name = "DIR", default_value = ".")]
        out: PathBuf,
        /// Overwrite files that are there
        #[arg(long)]
        force: bool,
    },
    /// Alert rules for Prometheus
    PrometheusRules {
        /// File to write; stdout when absent
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Overwrite a file that is there
        #[arg(long)]
        force: bool,
    },
    /// Scrape configuration for Prometheus, for the coordinator that this command would speak to
    ScrapeConfig {
        /// Where Prometheus finds a token of the role viewer
        #[arg(long, value_name = "PATH", default_value = "/etc/prometheus/gangline.token")]
        credentials_file: String,
        /// Where Prometheus finds the CA of the coordinator; not used with an http address
        #[arg(long, value_name = "PATH", default_value = "/etc/prometheus/gangline-ca.pem")]
        ca_file: String,
        /// File to write; stdout when absent
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Overwrite a file that is there
        #[arg(long)]
        force: bool,
    },
}
