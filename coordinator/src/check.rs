//! `gangline-coordinator check`: whether a coordinator could serve, or how the one that serves is,
//! one line for each thing that it stands on. It changes nothing.

use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use gangline_common::time::{Timestamp, wall_text};
use gangline_common::tls::validity;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;

use crate::backups;
use crate::ca::Ca;
use crate::config::{Config, ConfigErrors};
use crate::control::{Checked, Client};
use crate::secrets::Sealer;
use crate::store::backup::sealed;
use crate::store::{Inspection, StoreError, inspect};

const DAY_S: i64 = 24 * 3600;
/// Certificates that end sooner are worth a word (F39).
const CERTIFICATE_WARNING_S: i64 = 30 * DAY_S;
/// With less than this the coordinator cannot be expected to go on.
const DISK_LEAST_BYTES: u64 = 64 << 20;
const DISK_WARNING_BYTES: u64 = 1 << 30;
/// Clocks of one fleet may differ by this.
const CLOCK_SLACK_MS: u64 = 5_000;
/// 2025-01-01: no coordinator is older.
const BEGINNING_MS: u64 = 1_735_689_600_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    Warn,
    Bad,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    pub check: &'static str,
    pub level: Level,
    pub text: String,
    /// What to do, unless it is well.
    pub advice: Option<String>,
}

impl Line {
    fn ok(check: &'static str, text: impl Into<String>) -> Line {
        Line { check, level: Level::Ok, text: text.into(), advice: None }
    }

    fn warn(check: &'static str, text: impl Into<String>, advice: impl Into<String>) -> Line {
        Line { check, level: Level::Warn, text: text.into(), advice: Some(advice.into()) }
    }

    fn bad(check: &'static str, text: impl Into<String>, advice: impl Into<String>) -> Line {
        Line { check, level: Level::Bad, text: text.into(), advice: Some(advice.into()) }
    }
}

/// Every check of a configuration that is valid. Reads the whole store. `certificate` is whether
/// the API could serve its configured certificate.
pub fn run(config: &Config, certificate: anyhow::Result<()>, now: Timestamp) -> Vec<Line> {
    let mut lines = vec![Line::ok("config", format!("state in {}", config.state_dir.display()))];
    lines.push(directory(config));
    let serving = Client::connect(&config.state_dir);
    let serves = matches!(&serving, Ok(Some(_)));
    lines.push(authority(config, now));
    lines.push(api_certificate(config, certificate, now));
    let (mut found, checked, inspection) = store(config, serving);
    lines.append(&mut found);
    lines.push(secrets(config, inspection.as_ref(), checked.as_ref()));
    lines.push(copies(config, now));
    lines.push(disk(config));
    lines.push(http_port(config, serves));
    lines.push(quic_port(config, serves));
    lines.push(clock(now, checked.as_ref()));
    lines
}

/// The one line of a configuration that is not usable.
pub fn of_config(errors: &ConfigErrors) -> Vec<Line> {
    let text = errors.0.join("; ");
    vec![Line::bad("config", text, "packaging/coordinator.toml describes every key")]
}

/// The lines for people.
pub fn table(lines: &[Line]) -> String {
    let mut text = String::new();
    for Line { check, level, text: what, advice } in lines {
        let level = match level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Bad => "bad",
        };
        text += &format!("{level:<5} {check:<12} {what}\n");
        if let Some(advice) = advice {
            text += &format!("{:18} {advice}\n", "");
        }
    }
    text
}

fn directory(config: &Config) -> Line {
    const CHECK: &str = "directory";
    let path = config.state_dir.display();
    let facts = match std::fs::metadata(&config.state_dir) {
        Ok(facts) if facts.is_dir() => facts,
        Ok(_) => return Line::bad(CHECK, format!("{path} is not a directory"), "set state_dir"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let text = format!("{path} is not there; `serve` makes it");
            return Line::warn(CHECK, text, "is this the state_dir that the coordinator has?");
        }
        Err(error) => {
            return Line::bad(
                CHECK,
                format!("{path}: {error}"),
                "run this as the coordinator's user",
            );
        }
    };
    let mine = rustix::process::geteuid();
    if !mine.is_root() && facts.uid() != mine.as_raw() {
        let text = format!("{path} belongs to user {}", facts.uid());
        return Line::bad(CHECK, text, "run this as the coordinator's user");
    }
    let mode = facts.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let text = format!("{path} is open to others (mode {mode:o})");
        return Line::warn(CHECK, text, format!("chmod 700 {path}"));
    }
    Line::ok(CHECK, format!("{path}, mode {mode:o}"))
}

fn authority(config: &Config, now: Timestamp) -> Line {
    const CHECK: &str = "ca";
    let directory = config.ca();
    if !Ca::exists(&directory) {
        let text = format!("{} has no key; `serve` makes a new CA", directory.display());
        if config.store().exists() {
            return Line::bad(
                CHECK,
                text,
                "put ca/ back: with a new CA every agent must join again",
            );
        }
        return Line::ok(CHECK, text);
    }
    let ca = match Ca::open(&directory, std::time::Duration::ZERO) {
        Ok(ca) => ca,
        Err(error) => return Line::bad(CHECK, format!("{error:#}"), "put ca/ back from a copy"),
    };
    if !ca.is_consistent() {
        let text = format!("{}: key and certificate do not belong together", directory.display());
        return Line::bad(CHECK, text, "put ca/ back from a copy");
    }
    let key = directory.join("ca.key");
    let mode = std::fs::metadata(&key).map_or(0, |facts| facts.permissions().mode() & 0o777);
    if mode & 0o077 != 0 {
        let text = format!("{} can be read by others (mode {mode:o})", key.display());
        return Line::bad(CHECK, text, format!("chmod 600 {}", key.display()));
    }
    expiry(CHECK, "the CA", ca.certificate(), now, "every agent must join a new CA then")
}

fn api_certificate(config: &Config, usable: anyhow::Result<()>, now: Timestamp) -> Line {
    const CHECK: &str = "certificate";
    let Some(path) = &config.tls_certificate else {
        return Line::ok(CHECK, "of the coordinator's own CA, made anew at every start");
    };
    let chain: Result<Vec<CertificateDer<'_>>, _> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match (usable, chain.as_deref()) {
        (Ok(()), Ok([first, ..])) => {
            let name = path.display().to_string();
            expiry(CHECK, &name, first, now, "renew it and restart the coordinator")
        }
        (Err(error), _) => {
            Line::bad(CHECK, format!("{error:#}"), "look at tls_certificate and tls_key")
        }
        (Ok(()), _) => {
            let text = format!("{} holds no certificate", path.display());
            Line::bad(CHECK, text, "look at tls_certificate")
        }
    }
}

fn expiry(
    check: &'static str,
    name: &str,
    certificate: &CertificateDer<'_>,
    now: Timestamp,
    advice: &str,
) -> Line {
    let (begins, ends) = match validity(certificate) {
        Ok(times) => times,
        Err(error) => return Line::bad(check, format!("{name}: {error}"), advice),
    };
    let now_s = i64::try_from(now.wall_ms / 1000).unwrap_or(i64::MAX);
    let day = |seconds: i64| {
        let text = wall_text(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000));
        text.split('T').next().unwrap_or_default().to_owned()
    };
    if now_s < begins {
        let text = format!("{name} is valid from {} on only", day(begins));
        return Line::bad(check, text, "look at this machine's clock");
    }
    let left = ends.saturating_sub(now_s);
    let days = left / DAY_S;
    match left {
        ..=0 => Line::bad(check, format!("{name} has expired on {}", day(ends)), advice),
        1..CERTIFICATE_WARNING_S => {
            Line::warn(check, format!("{name} expires on {}, in {days} days", day(ends)), advice)
        }
        _ => Line::ok(check, format!("{name} is valid until {}", day(ends))),
    }
}

/// The store and its audit log.
fn store(
    config: &Config,
    serving: std::io::Result<Option<Client>>,
) -> (Vec<Line>, Option<Checked>, Option<Inspection>) {
    const CHECK: &str = "store";
    let path = config.store();
    let shown = path.display();
    let one = |line| (vec![line], None, None);
    let serving = match serving {
        Ok(serving) => serving,
        Err(error) => {
            let text = format!("the coordinator that serves cannot be asked: {error}");
            return one(Line::bad(CHECK, text, "run this as the coordinator's user, or as root"));
        }
    };
    let advice = "gangline-coordinator restore BACKUP; the newest good one is named below";
    let (checked, inspection, how) = match serving {
        Some(client) => (client.check(), None, "in use by the coordinator that serves"),
        None if !path.exists() && Ca::exists(&config.ca()) => {
            let text = format!("{shown} is missing although this coordinator has a CA");
            return one(Line::bad(CHECK, text, advice));
        }
        None if !path.exists() => {
            return one(Line::ok(CHECK, format!("{shown} is not there; `serve` makes it")));
        }
        None => match inspect(&path) {
            Ok(inspection) => {
                let checked = Checked::of(&inspection.reader());
                (checked, Some(inspection), "not in use")
            }
            Err(StoreError::Taken { .. }) => {
                let text = format!("another process has {shown} open and does not answer");
                let advice = "is it a coordinator that is just starting?";
                return one(Line::warn(CHECK, text, advice));
            }
            Err(error) => return one(Line::bad(CHECK, error.to_string(), advice)),
        },
    };
    let checked = match checked {
        Ok(checked) => checked,
        Err(reason) => return one(Line::bad(CHECK, reason, advice)),
    };
    let records: u64 = checked.rows.values().sum();
    let jobs = checked.rows.get("jobs").copied().unwrap_or(0);
    let text = format!("{jobs} jobs, {records} records, era {}; {how}", checked.era);
    let store = match &inspection {
        Some(old) if old.layout < crate::store::STORE_VERSION => {
            let text = format!("{text}; layout {}", old.layout);
            Line::warn(CHECK, text, "the next start migrates it and keeps a copy beside it")
        }
        _ => Line::ok(CHECK, text),
    };
    let audit = match &checked.audit_broken {
        None => Line::ok("audit", "the chain of entries holds"),
        Some(broken) => Line::bad("audit", broken, "an entry was changed, removed or inserted"),
    };
    (vec![store, audit], Some(checked), inspection)
}

fn secrets(config: &Config, store: Option<&Inspection>, checked: Option<&Checked>) -> Line {
    const CHECK: &str = "secrets";
    let advice = "put secrets.key back: without it the values are lost";
    let count = checked.map_or(0, |checked| sealed(&checked.rows));
    let stored = match store.map(Inspection::secrets) {
        Some(Ok(stored)) => stored,
        Some(Err(error)) => return Line::bad(CHECK, error.to_string(), advice),
        // The coordinator that serves has opened all of them.
        None => Vec::new(),
    };
    match Sealer::open(&config.secrets_key(), &stored) {
        Ok(_) if count > 0 && !config.secrets_key().exists() => {
            let text = format!("{} is missing", config.secrets_key().display());
            Line::bad(CHECK, text, advice)
        }
        Ok(_) => Line::ok(CHECK, format!("{count} sealed values, of secrets and webhooks")),
        Err(error) => Line::bad(CHECK, error.to_string(), advice),
    }
}

fn copies(config: &Config, now: Timestamp) -> Line {
    const CHECK: &str = "backups";
    let directory = config.backups();
    let count = match backups::list(&directory) {
        Ok(found) => found.len(),
        Err(error) => {
            let text = format!("{}: {error}", directory.display());
            return Line::bad(CHECK, text, "no copy can be made or found there");
        }
    };
    let Some((path, newest)) = backups::newest_good(&directory) else {
        let text = format!("no good copy among {count} in {}", directory.display());
        let advice = match config.backup_interval_s {
            0 => "backup_interval_s is 0: does something else call `backup`?",
            _ => "the coordinator makes one while it serves; its log says why it does not",
        };
        return Line::warn(CHECK, text, advice);
    };
    let text = format!("{count} copies; {} has {}", path.display(), newest.sentence());
    let age_s = now.wall_ms.saturating_sub(newest.header.wall_ms) / 1000;
    if config.backup_interval_s > 0 && age_s > 2 * config.backup_interval_s {
        return Line::warn(CHECK, text, "it is old: has the coordinator served since?");
    }
    Line::ok(CHECK, text)
}

fn disk(config: &Config) -> Line {
    const CHECK: &str = "disk";
    let path = config.state_dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let facts = match rustix::fs::statvfs(path) {
        Ok(facts) => facts,
        Err(error) => {
            return Line::warn(CHECK, format!("{}: {error}", path.display()), "look at it with df");
        }
    };
    let free = facts.f_bavail.saturating_mul(facts.f_frsize);
    let store = std::fs::metadata(config.store()).map_or(0, |facts| facts.len());
    let text = format!("{} MiB free at {}", free >> 20, path.display());
    let advice = "make room: a coordinator that cannot write ends";
    // A copy and a migration need the store's size again.
    let wanted = DISK_WARNING_BYTES.max(store.saturating_mul(2));
    match free {
        ..DISK_LEAST_BYTES => Line::bad(CHECK, text, advice),
        free if free < wanted => Line::warn(CHECK, text, advice),
        _ => Line::ok(CHECK, text),
    }
}

/// It may have been told another address than this configuration does.
const NOT_TRIED: &str = "not tried: a coordinator serves from this directory";

fn http_port(config: &Config, serves: bool) -> Line {
    const CHECK: &str = "http";
    let address = config.http;
    if serves {
        return Line::ok(CHECK, format!("{address}, {NOT_TRIED}"));
    }
    match TcpListener::bind(address) {
        Ok(_) => Line::ok(CHECK, format!("{address} is free")),
        Err(e) => {
            Line::bad(CHECK, format!("{address}: {e}"), "set http, or end what listens there")
        }
    }
}

fn quic_port(config: &Config, serves: bool) -> Line {
    const CHECK: &str = "quic";
    let address = config.quic;
    if serves {
        return Line::ok(CHECK, format!("{address}, {NOT_TRIED}"));
    }
    match UdpSocket::bind(address) {
        Ok(_) => Line::ok(CHECK, format!("{address} is free")),
        Err(e) => Line::bad(CHECK, format!("{address}: {e}"), "set quic, or end what uses it"),
    }
}

fn clock(now: Timestamp, checked: Option<&Checked>) -> Line {
    const CHECK: &str = "clock";
    let text = wall_text(now.wall_ms);
    let advice = "set the clock (NTP): certificates and expiries go by it";
    if now.wall_ms < BEGINNING_MS {
        return Line::bad(CHECK, text, advice);
    }
    match checked.and_then(|checked| checked.newest_wall_ms) {
        Some(newest) if newest > now.wall_ms + CLOCK_SLACK_MS => {
            let text =
                format!("{text} is before the newest entry of the store, {}", wall_text(newest));
            Line::bad(CHECK, text, advice)
        }
        _ => Line::ok(CHECK, text),
    }
}
