//! The coordinator's configuration: a TOML file, then flags. `packaging/coordinator.toml` is the
//! reference; a test compares it with `Config::default()`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The documented defaults.
pub const DEFAULT_FILE: &str = include_str!("../../packaging/coordinator.toml");

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub state_dir: PathBuf,
    /// HTTP API: https for everybody, plain HTTP for this machine.
    pub http: SocketAddr,
    /// Further names and addresses of this coordinator, for the certificate of the API.
    pub tls_names: Vec<String>,
    /// Certificate chain and key of the API as PEM files, instead of one of the own CA.
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// QUIC (UDP) for agents.
    pub quic: SocketAddr,
    /// Root of all artefacts as the nodes see it; never read or written here.
    pub shared_root: Option<String>,
    /// Further directories below which jobs may keep training checkpoints.
    pub extra_roots: Vec<String>,
    /// Life of an agent's certificate, in seconds.
    pub agent_certificate_lifetime_s: u64,
    /// How often agents send a heartbeat, in milliseconds; about, because it rides with a sample.
    pub heartbeat_ms: u32,
    /// Time between two copies of the store into `state_dir`/backups, in seconds; 0 makes none.
    pub backup_interval_s: u64,
    /// How many of them are kept.
    pub backup_keep: u32,
    /// Free MiB on the disk of `state_dir` below which new jobs and uploads are refused and logs wait.
    pub reserve_mib: u64,
    /// How long the logs of an attempt are kept after its end, in days; 0 is for ever.
    pub logs_keep_days: u32,
    /// The same for an attempt that failed.
    pub logs_keep_failed_days: u32,
    /// GiB of all logs on disk above which the oldest of attempts that have ended are removed; 0 is no
    /// limit.
    pub logs_max_gib: u32,
    /// Requests to the API that one token may make a second, and at once after a pause; a rate of 0
    /// is no limit.
    pub request_rate: u32,
    pub request_burst: u32,
    /// The same for submitted jobs.
    pub submit_rate: u32,
    pub submit_burst: u32,
}

/// How often something may be done: so often a second, and so often at once after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// 0 is no limit.
    pub per_s: u32,
    pub burst: u32,
}

/// What one token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimits {
    pub requests: Rate,
    pub submits: Rate,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            state_dir: "/var/lib/gangline/coordinator".into(),
            http: SocketAddr::from(([127, 0, 0, 1], 8265)),
            tls_names: Vec::new(),
            tls_certificate: None,
            tls_key: None,
            quic: SocketAddr::from(([0, 0, 0, 0], 8265)),
            shared_root: None,
            extra_roots: Vec::new(),
            agent_certificate_lifetime_s: 30 * 24 * 3600,
            heartbeat_ms: 1000,
            backup_interval_s: 24 * 3600,
            backup_keep: 7,
            reserve_mib: 256,
            logs_keep_days: 30,
            logs_keep_failed_days: 90,
            logs_max_gib: 100,
            request_rate: 100,
            request_burst: 500,
            submit_rate: 20,
            submit_burst: 200,
        }
    }
}

/// Everything that is wrong with a configuration, one sentence each.
#[derive(Debug, thiserror::Error)]
#[error("the configuration is not usable:\n  {}", .0.join("\n  "))]
pub struct ConfigErrors(pub Vec<String>);

impl Config {
    /// Reads `path`; without one, the defaults.
    pub fn load(path: Option<&Path>) -> Result<Config, ConfigErrors> {
        let Some(path) = path else { return Ok(Config::default()) };
        let wrong = |text: String| ConfigErrors(vec![format!("{}: {text}", path.display())]);
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        toml::from_str(&text).map_err(|e| wrong(e.to_string()))
    }

    /// Checks all values after the flags have been applied.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut wrong = Vec::new();
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            wrong.push("tls_certificate and tls_key: give both or none".to_owned());
        }
        for name in self.tls_names.iter().filter(|name| !is_host_name(name)) {
            wrong.push(format!("tls_names: {name:?} is neither a host name nor an address"));
        }
        let roots = self.shared_root.iter().chain(&self.extra_roots);
        for root in roots.filter(|root| !is_clean_absolute(root)) {
            wrong.push(format!("root {root:?}: must be an absolute path without `..`"));
        }
        if self.agent_certificate_lifetime_s < 30 {
            wrong.push("agent_certificate_lifetime_s: at least 30".to_owned());
        }
        if !(100..=10_000).contains(&self.heartbeat_ms) {
            wrong.push("heartbeat_ms: between 100 and 10000".to_owned());
        }
        if (1..60).contains(&self.backup_interval_s) {
            wrong.push("backup_interval_s: at least 60, or 0 for none".to_owned());
        }
        if !(1..=1000).contains(&self.backup_keep) {
            wrong.push("backup_keep: between 1 and 1000".to_owned());
        }
        if (1..self.logs_keep_days).contains(&self.logs_keep_failed_days)
            || (self.logs_keep_days == 0 && self.logs_keep_failed_days > 0)
        {
            let longer = "logs_keep_failed_days: at least logs_keep_days, or 0 for ever";
            wrong.push(longer.to_owned());
        }
        for (name, rate) in
            [("request", self.rate_limits().requests), ("submit", self.rate_limits().submits)]
        {
            if rate.per_s > 0 && rate.burst == 0 {
                wrong.push(format!("{name}_burst: at least 1; {name}_rate = 0 is no limit"));
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(ConfigErrors(wrong)) }
    }
}

impl Config {
    pub fn store(&self) -> PathBuf {
        self.state_dir.join("store.redb")
    }

    /// The highest era that this state directory has had, as text.
    pub fn era(&self) -> PathBuf {
        self.state_dir.join("era")
    }

    pub fn backups(&self) -> PathBuf {
        self.state_dir.join("backups")
    }

    pub fn ca(&self) -> PathBuf {
        self.state_dir.join("ca")
    }

    pub fn secrets_key(&self) -> PathBuf {
        self.state_dir.join("secrets.key")
    }

    /// What one token may do.
    pub fn rate_limits(&self) -> RateLimits {
        RateLimits {
            requests: Rate { per_s: self.request_rate, burst: self.request_burst },
            submits: Rate { per_s: self.submit_rate, burst: self.submit_burst },
        }
    }
}

fn is_host_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '*');
    let host = !name.is_empty() && name.len() <= 253 && name.chars().all(plain);
    host || name.parse::<std::net::IpAddr>().is_ok()
}

fn is_clean_absolute(path: &str) -> bool {
    path.starts_with('/') && !path.split('/').any(|part| part == "..") && !path.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packaged_file_says_the_defaults() {
        let packaged: Config = toml::from_str(DEFAULT_FILE).unwrap();
        assert_eq!(packaged, Config::default());
        packaged.validate().unwrap();
    }

    #[test]
    fn every_bad_value_is_named() {
        let config = Config {
            tls_key: Some("/key.pem".into()),
            tls_names: vec!["a b".to_owned()],
            shared_root: Some("/nfs/../etc".to_owned()),
            heartbeat_ms: 1,
            agent_certificate_lifetime_s: 1,
            submit_burst: 0,
            backup_interval_s: 5,
            backup_keep: 0,
            logs_keep_days: 0,
            ..Config::default()
        };
        let errors = config.validate().unwrap_err().0;
        assert_eq!(errors.len(), 9, "{errors:?}");
    }

    #[test]
    fn unknown_keys_are_refused() {
        assert!(toml::from_str::<Config>("state_dirr = \"/x\"").is_err());
    }
}
