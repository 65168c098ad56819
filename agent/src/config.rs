//! Configuration: defaults, then a TOML file, then flags. Read once, into types that cannot be
//! wrong; everything that is wrong is reported at once, with what to do about it.
//!
//! `packaging/agent.toml` is the reference; a test compares it with `Config::default()`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use gangline_common::ids::PortBlock;
use gangline_common::wire::v1::NodeRole;
use gangline_health::Rule;
use toml::Value;

use crate::metrics::{self, HostMetrics};

/// The documented defaults.
pub const DEFAULT_FILE: &str = include_str!("../../packaging/agent.toml");
/// Port of a coordinator whose address names none.
pub const DEFAULT_PORT: u16 = 8265;
/// Longest temp root, in bytes: Ray's sockets below it must stay under the kernel's 107.
const TEMP_ROOT_BYTES: usize = 40;
/// Fewest ports that make one block.
const MIN_PORTS: u32 = 256;
/// Most labels, and most variables for Ray.
const MAX_PAIRS: usize = 64;

/// What the agent was told about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub coordinator: Option<CoordinatorAddress>,
    pub state_dir: PathBuf,
    pub temp_root: PathBuf,
    pub name: Option<String>,
    pub roles: Vec<NodeRole>,
    pub pool: Option<String>,
    pub node_address: Option<IpAddr>,
    pub python: PathBuf,
    pub nvml_library: Option<PathBuf>,
    pub ports: PortBlock,
    pub shared_root: Option<PathBuf>,
    pub sys_root: PathBuf,
    pub object_store_bytes: Option<u64>,
    /// Where encrypted copies of training checkpoints go.
    pub checkpoint_copies: Option<PathBuf>,
    /// File with the key of these copies.
    pub checkpoint_copy_key: Option<PathBuf>,
    pub checkpoint_copy_bytes_per_s: u64,
    pub on_sigterm: OnSigterm,
    pub metrics: metrics::Options,
    /// Health rules that are shown and never acted on, beside those that are on trial by themselves.
    pub health_trial: BTreeSet<Rule>,
    /// Health rules that act although they are on trial by themselves.
    pub health_trusted: BTreeSet<Rule>,
    /// RDMA devices of management and storage: no health rule applies, and ranks do not use them.
    pub rdma_exclude: BTreeSet<String>,
    pub labels: BTreeMap<String, String>,
    pub ray_env: BTreeMap<String, String>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            coordinator: None,
            state_dir: "/var/lib/gangline/agent".into(),
            temp_root: "/tmp/gangline".into(),
            name: None,
            roles: vec![NodeRole::Worker],
            pool: None,
            node_address: None,
            python: "python3".into(),
            nvml_library: None,
            ports: PortBlock { base: 20000, size: 12768 },
            shared_root: None,
            sys_root: "/sys".into(),
            object_store_bytes: None,
            checkpoint_copies: None,
            checkpoint_copy_key: None,
            checkpoint_copy_bytes_per_s: 200_000_000,
            on_sigterm: OnSigterm::Auto,
            metrics: metrics::Options::default(),
            health_trial: BTreeSet::new(),
            health_trusted: BTreeSet::new(),
            rdma_exclude: BTreeSet::new(),
            labels: BTreeMap::new(),
            ray_env: BTreeMap::new(),
        }
    }
}

/// What SIGTERM means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSigterm {
    /// `Stop` as process 1, else `Leave`.
    Auto,
    Leave,
    Stop,
}

/// Host name or address, and UDP port, of the coordinator; resolved at each dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoordinatorAddress {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for CoordinatorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl CoordinatorAddress {
    /// Reads `HOST`, `HOST:PORT` or `[V6]:PORT`, with or without `quic://`.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("quic://").unwrap_or(text).trim_end_matches('/');
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (host, port.strip_prefix(':'))
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let port = port.map_or(Some(DEFAULT_PORT), |port| port.parse().ok())?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        let ok = port != 0 && (1..=253).contains(&host.len()) && host.chars().all(plain);
        ok.then(|| CoordinatorAddress { host: host.to_owned(), port })
    }
}

/// Everything that is wrong, one line each.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the configuration cannot be used:\n  {}", .0.join("\n  "))]
pub struct ConfigErrors(pub Vec<String>);

impl Config {
    /// Reads `file` when there is one; keys in `flags` go before it.
    pub fn load(file: Option<&Path>, flags: toml::Table) -> Result<Config, ConfigErrors> {
        let mut reader = Reader::default();
        if let Some(path) = file {
            reader.add_file(path)?;
        }
        reader.add(flags, Source::Flag);
        reader.config()
    }
}

// ---------------------------------------------------------------- reading

#[derive(Debug, Clone)]
enum Source {
    File(PathBuf),
    Flag,
}

/// Takes values out of tables one key at a time and collects what is wrong.
#[derive(Default)]
struct Reader {
    values: BTreeMap<String, (Value, Source)>,
    wrong: Vec<String>,
    /// Keys that were asked for: all that exist.
    known: Vec<&'static str>,
}

impl Reader {
    fn add_file(&mut self, path: &Path) -> Result<(), ConfigErrors> {
        let unreadable = |reason: String| {
            ConfigErrors(vec![format!(
                "{}: {reason}; packaging/agent.toml shows the form",
                path.display()
            )])
        };
        let text = std::fs::read_to_string(path).map_err(|e| unreadable(e.to_string()))?;
        let table = text.parse::<toml::Table>().map_err(|e| unreadable(e.to_string()))?;
        self.add(table, Source::File(path.to_owned()));
        Ok(())
    }

    fn add(&mut self, table: toml::Table, source: Source) {
        for (key, value) in table {
            match (self.values.get_mut(&key), value) {
                // Pairs of both places count; of equal names the later.
                (Some((Value::Table(before), _)), Value::Table(after)) => before.extend(after),
                (_, value) => {
                    self.values.insert(key, (value, source.clone()));
                }
            }
        }
    }

    fn config(mut self) -> Result<Config, ConfigErrors> {
        let default = Config::default();
        let config = Config {
            coordinator: self.text("coordinator", "write HOST:PORT", |text| {
                CoordinatorAddress::parse(text).ok_or("is not the address of a coordinator")
            }),
            state_dir: self.directory("state_dir").unwrap_or(default.state_dir),
            temp_root: self.temp_root().unwrap_or(default.temp_root),
            name: self.name("name"),
            roles: self.roles().unwrap_or(default.roles),
            pool: self.name("pool"),
            node_address: self.node_address(),
            python: self.path("python").unwrap_or(default.python),
            nvml_library: self.path("nvml_library"),
            ports: self
                .text("ports", "write FIRST-LAST, such as 20000-32767", parse_ports)
                .unwrap_or(default.ports),
            shared_root: self.directory("shared_root"),
            sys_root: self.directory("sys_root").unwrap_or(default.sys_root),
            object_store_bytes: self.bytes("object_store_bytes"),
            checkpoint_copies: self.directory("checkpoint_copies"),
            checkpoint_copy_key: self.directory("checkpoint_copy_key"),
            checkpoint_copy_bytes_per_s: self
                .bytes("checkpoint_copy_bytes_per_s")
                .unwrap_or(default.checkpoint_copy_bytes_per_s),
            on_sigterm: self
                .text("on_sigterm", "write \"auto\", \"leave\" or \"stop\"", |text| match text {
                    "auto" => Ok(OnSigterm::Auto),
                    "leave" => Ok(OnSigterm::Leave),
                    "stop" => Ok(OnSigterm::Stop),
                    _ => Err("is not a choice"),
                })
                .unwrap_or(default.on_sigterm),
            metrics: metrics::Options {
                extended: self.choice("metrics_extended").unwrap_or(default.metrics.extended),
                compat_hostname_label: self
                    .choice("metrics_compat_hostname_label")
                    .unwrap_or(default.metrics.compat_hostname_label),
                host: self.metrics_host().unwrap_or(default.metrics.host),
            },
            health_trial: self.rules("health_trial").unwrap_or(default.health_trial),
            health_trusted: self.rules("health_trusted").unwrap_or(default.health_trusted),
            rdma_exclude: self
                .words("rdma_exclude", "write names of devices, such as \"mlx5_0\"", |word| {
                    is_word(word, "._-").then(|| word.to_owned())
                })
                .unwrap_or(default.rdma_exclude),
            labels: self.pairs(
                "labels",
                "a name of 1 to 64 characters of A-Z a-z 0-9 . _ - /",
                |name| is_word(name, "._-/"),
            ),
            ray_env: self.pairs("ray_env", "a name that begins with RAY_", |name| {
                name.starts_with("RAY_") && is_word(name, "_")
            }),
        };
        for rule in config.health_trial.intersection(&config.health_trusted) {
            self.wrong.push(format!(
                "health_trial and health_trusted both name \"{rule}\": leave it out of one of them"
            ));
        }
        self.refuse_unknown();
        if self.wrong.is_empty() { Ok(config) } else { Err(ConfigErrors(self.wrong)) }
    }

    fn take(&mut self, key: &'static str) -> Option<(Value, Source)> {
        self.known.push(key);
        self.values.remove(key)
    }

    /// Notes that `key` is wrong: what, and what to do.
    fn refuse(&mut self, key: &str, source: &Source, what: &str, advice: &str) {
        let place = match source {
            Source::Flag => flag_name(key),
            Source::File(path) => format!("{}: {key}", path.display()),
        };
        self.wrong.push(format!("{place} {what}: {advice}"));
    }

    fn text<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        advice: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let (value, source) = self.take(key)?;
        let Value::String(text) = value else {
            self.refuse(key, &source, &format!("= {value} is not a text"), advice);
            return None;
        };
        match parse(&text) {
            Ok(parsed) => Some(parsed),
            Err(why) => {
                self.refuse(key, &source, &format!("= {text:?} {why}"), advice);
                None
            }
        }
    }

    fn path(&mut self, key: &'static str) -> Option<PathBuf> {
        self.text(key, "write a path", |text| match text.is_empty() || text.contains('\0') {
            true => Err("is not a path"),
            false => Ok(PathBuf::from(text)),
        })
    }

    fn directory(&mut self, key: &'static str) -> Option<PathBuf> {
        self.text(key, "write an absolute path without `..`", absolute)
    }

    fn temp_root(&mut self) -> Option<PathBuf> {
        self.text("temp_root", "write a short absolute path, such as /tmp/gangline", |text| {
            match text.len() > TEMP_ROOT_BYTES {
                true => Err("is longer than 40 characters, and Ray's socket names below it too"),
                false => absolute(text),
            }
        })
    }

    fn name(&mut self, key: &'static str) -> Option<String> {
        self.text(key, "write 1 to 64 characters of A-Z a-z 0-9 . _ -", |text| {
            is_word(text, "._-").then(|| text.to_owned()).ok_or("is not a name")
        })
    }

    fn node_address(&mut self) -> Option<IpAddr> {
        self.text("node_address", "write an address that the other nodes reach", |text| match text
            .parse::<IpAddr>(
        ) {
            Ok(ip) if ip.is_unspecified() || ip.is_multicast() => {
                Err("is not the address of one node")
            }
            Ok(ip) => Ok(ip),
            Err(_) => Err("is not an IP address"),
        })
    }

    fn roles(&mut self) -> Option<Vec<NodeRole>> {
        const ADVICE: &str = "write \"worker\", \"head\", or both";
        let (value, source) = self.take("roles")?;
        let mut roles = Vec::new();
        let words = value.as_array().cloned().unwrap_or_default();
        if words.is_empty() {
            self.refuse("roles", &source, &format!("= {value} is not a list of roles"), ADVICE);
        }
        for word in words {
            match word.as_str() {
                Some("worker") => roles.push(NodeRole::Worker),
                Some("head") => roles.push(NodeRole::Head),
                _ => self.refuse("roles", &source, &format!("= {word} is not a role"), ADVICE),
            }
        }
        roles.sort();
        roles.dedup();
        Some(roles)
    }

    /// A list of words that `known` knows; an empty one is one.
    fn words<T: Ord>(
        &mut self,
        key: &'static str,
        advice: &str,
        known: impl Fn(&str) -> Option<T>,
    ) -> Option<BTreeSet<T>> {
        let (value, source) = self.take(key)?;
        let Some(words) = value.as_array() else {
            self.refuse(key, &source, &format!("= {value} is not a list"), advice);
            return None;
        };
        let mut found = BTreeSet::new();
        for word in words {
            match word.as_str().and_then(&known) {
                Some(word) => drop(found.insert(word)),
                None => self.refuse(key, &source, &format!("= {word} is not known"), advice),
            }
        }
        Some(found)
    }

    fn rules(&mut self, key: &'static str) -> Option<BTreeSet<Rule>> {
        let advice = "write names of rules, as `gangline node health` has them";
        self.words(key, advice, Rule::from_id)
    }

    fn choice(&mut self, key: &'static str) -> Option<bool> {
        let (value, source) = self.take(key)?;
        let choice = value.as_bool();
        if choice.is_none() {
            self.refuse(key, &source, &format!("= {value} is not a choice"), "write true or false");
        }
        choice
    }

    fn metrics_host(&mut self) -> Option<HostMetrics> {
        self.text("metrics_host", "write \"auto\", \"on\" or \"off\"", |text| match text {
            "auto" => Ok(HostMetrics::Auto),
            "on" => Ok(HostMetrics::On),
            "off" => Ok(HostMetrics::Off),
            _ => Err("is not a choice"),
        })
    }

    fn bytes(&mut self, key: &'static str) -> Option<u64> {
        let (value, source) = self.take(key)?;
        let bytes = value.as_integer().and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
        if bytes.is_none() {
            let what = format!("= {value} is not a number of bytes");
            self.refuse(key, &source, &what, "write a whole number over 0");
        }
        bytes
    }

    fn pairs(
        &mut self,
        key: &'static str,
        rule: &str,
        good_name: impl Fn(&str) -> bool,
    ) -> BTreeMap<String, String> {
        let Some((value, source)) = self.take(key) else { return BTreeMap::new() };
        let Value::Table(table) = value else {
            self.refuse(key, &source, "is not a table", "write one NAME = \"VALUE\" a line");
            return BTreeMap::new();
        };
        if table.len() > MAX_PAIRS {
            let what = format!("has {} entries", table.len());
            self.refuse(key, &source, &what, &format!("at most {MAX_PAIRS} are allowed"));
        }
        let mut pairs = BTreeMap::new();
        for (name, value) in table {
            match value {
                Value::String(text)
                    if good_name(&name)
                        && text.len() <= 256
                        && !text.chars().any(char::is_control) =>
                {
                    pairs.insert(name, text);
                }
                value => {
                    let what = format!("has {name:?} = {value}");
                    let advice = format!("write {rule}, and a text of up to 256 characters");
                    self.refuse(key, &source, &what, &advice);
                }
            }
        }
        pairs
    }

    fn refuse_unknown(&mut self) {
        for (key, (_, source)) in std::mem::take(&mut self.values) {
            let advice = format!("the keys are {}", self.known.join(", "));
            self.refuse(&key, &source, "is not a key", &advice);
        }
    }
}

/// The flag that sets a key, for messages.
fn flag_name(key: &str) -> String {
    match key {
        "coordinator" => "--join or --coordinator".to_owned(),
        "roles" => "--role".to_owned(),
        "labels" => "--label".to_owned(),
        other => format!("--{}", other.replace('_', "-")),
    }
}

fn absolute(text: &str) -> Result<PathBuf, &'static str> {
    let clean =
        text.starts_with('/') && !text.contains('\0') && !text.split('/').any(|part| part == "..");
    clean.then(|| PathBuf::from(text)).ok_or("is not a plain absolute path")
}

fn is_word(text: &str, also: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
}

fn parse_ports(text: &str) -> Result<PortBlock, &'static str> {
    let range = text.split_once('-').and_then(|(first, last)| {
        Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?))
    });
    let (first, last) = range.ok_or("is not a range of ports")?;
    let count = (u32::from(last) + 1).saturating_sub(u32::from(first));
    if first < 1024 {
        return Err("has ports below 1024, which are not for programs of users");
    }
    match u16::try_from(count) {
        Ok(size) if count >= MIN_PORTS => Ok(PortBlock { base: first, size }),
        _ => Err("has fewer than 256 ports, which is less than one member needs"),
    }
}

#[cfg(test)]
mod tests;
