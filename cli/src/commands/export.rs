//! `gangline export`: what Prometheus and Grafana need, as files. The files are in this program.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde_json::json;

use crate::args::ExportCommand;
use crate::config::Settings;
use crate::errors::{CliError, code, exit};
use crate::output::Screen;

/// Dashboards by the names of their files.
const DASHBOARDS: [(&str, &str); 3] = [
    ("cluster.json", include_str!("../../../packaging/monitoring/dashboards/cluster.json")),
    ("job.json", include_str!("../../../packaging/monitoring/dashboards/job.json")),
    ("node.json", include_str!("../../../packaging/monitoring/dashboards/node.json")),
];
const RULES: &str = include_str!("../../../packaging/monitoring/rules.yml");
const SCRAPE: &str = include_str!("../../../packaging/monitoring/scrape.yml");

/// Writes what is asked for. `settings` says which coordinator is meant.
pub(super) fn run(
    command: &ExportCommand,
    settings: impl FnOnce() -> Result<Settings, CliError>,
    screen: &Screen,
) -> Result<u8, CliError> {
    match command {
        ExportCommand::Grafana { out, force } => dashboards(out, *force, screen),
        ExportCommand::PrometheusRules { out, force } => one(RULES, out.as_deref(), *force, screen),
        ExportCommand::ScrapeConfig { credentials_file, ca_file, out, force } => {
            let address = settings()?.address;
            let text = scrape_config(
                address.scheme(),
                address.as_str().trim_end_matches('/'),
                credentials_file,
                ca_file,
            );
            one(&text, out.as_deref(), *force, screen)
        }
    }
}

fn dashboards(directory: &Path, force: bool, screen: &Screen) -> Result<u8, CliError> {
    std::fs::create_dir_all(directory).map_err(|error| {
        CliError::io(format!("cannot make the directory {}", directory.display()), &error)
    })?;
    let files: Vec<_> =
        DASHBOARDS.map(|(name, text)| (directory.join(name), text)).into_iter().collect();
    for (path, text) in &files {
        write(path, text, force)?;
    }
    let paths: Vec<String> = files.iter().map(|(path, _)| path.display().to_string()).collect();
    wrote(&paths, screen)
}

fn one(text: &str, out: Option<&Path>, force: bool, screen: &Screen) -> Result<u8, CliError> {
    let Some(path) = out else {
        screen.plain(text)?;
        return Ok(exit::OK);
    };
    write(path, text, force)?;
    wrote(&[path.display().to_string()], screen)
}

fn wrote(paths: &[String], screen: &Screen) -> Result<u8, CliError> {
    if screen.is_json() {
        screen.json(&json!({ "files": paths }))?;
    } else {
        for path in paths {
            screen.line(path)?;
        }
    }
    Ok(exit::OK)
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), CliError> {
    let failed = |error: &std::io::Error| {
        let what = format!("cannot write {}", path.display());
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            return CliError::new(exit::CONFLICT, code::IO, what)
                .why("it exists, and may have changes of yours")
                .hint("say --force to overwrite it, or name another place with --out");
        }
        CliError::io(what, error)
    };
    let mut options = File::options();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    let mut file = options.open(path).map_err(|error| failed(&error))?;
    file.write_all(text.as_bytes()).map_err(|error| failed(&error))
}

/// The scrape configuration; for plain http without the part about TLS.
fn scrape_config(scheme: &str, address: &str, credentials_file: &str, ca_file: &str) -> String {
    let mut text = String::new();
    let mut lines = SCRAPE.lines();
    while let Some(line) = lines.next() {
        if scheme == "http" && line.trim() == "tls_config:" {
            // With the one line below it.
            lines.next();
            continue;
        }
        text += line;
        text.push('\n');
    }
    // A text of JSON is one of YAML.
    let quoted = |path: &str| json!(path).to_string();
    text.replace("@SCHEME@", scheme)
        .replace("@ADDRESS@", address)
        .replace("@CREDENTIALS_FILE@", &quoted(credentials_file))
        .replace("@CA_FILE@", &quoted(ca_file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_fits_the_address() {
        let plain = scrape_config("http", "http://127.0.0.1:8265", "/t", "/ca");
        assert!(plain.contains("url: http://127.0.0.1:8265/api/v1/prometheus/sd\n"), "{plain}");
        assert!(!plain.contains("tls_config") && !plain.contains("ca_file"), "{plain}");
        let tls = scrape_config("https", "https://c:8265", "/a \"b\"", "/ca: x");
        assert_eq!(tls.matches("ca_file: \"/ca: x\"\n").count(), 2, "{tls}");
        assert_eq!(tls.matches("credentials_file: \"/a \\\"b\\\"\"\n").count(), 2, "{tls}");
        assert!(tls.contains("    scheme: https\n") && !tls.contains('@'), "{tls}");
    }

    #[test]
    fn dashboards_are_json_with_names_of_their_own() {
        let mut seen = std::collections::BTreeSet::new();
        for (name, text) in DASHBOARDS {
            let board: serde_json::Value = serde_json::from_str(text).unwrap();
            assert!(seen.insert(board["uid"].as_str().unwrap().to_owned()), "{name}");
            let panels = board["panels"].as_array().unwrap();
            assert!(panels.len() >= 8, "{name}");
            let mut ids: Vec<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
            ids.dedup();
            assert_eq!(ids.len(), panels.len(), "{name}");
        }
    }
}
