//! `login` and `logout`: which coordinator, which CA, which token; kept for the next commands.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item, Table, value};

use super::{access, confirm, hidden};
use crate::args::{Globals, Login, Logout};
use crate::client::Client;
use crate::config::{self, Options, Settings};
use crate::errors::{CliError, code, exit};
use crate::output::Screen;
use crate::trust::{self, Authority};

/// Longest token that is read, in bytes.
const MAX_TOKEN_BYTES: usize = 4096;

/// Ask the coordinator whose the token is, and keep address, CA and token under a name.
pub(super) async fn login(
    globals: &Globals,
    login: &Login,
    screen: &Screen,
) -> Result<u8, CliError> {
    let env = |name: &str| std::env::var(name).ok();
    let address = login.address.clone().or_else(|| globals.address.clone());
    let options = Options { address, ..globals.connection() };
    // Without a CA nothing is asked of a stranger: see below.
    let mut settings = config::resolve_unchecked(&options, env)?;
    let file = config::file_path(&env).ok_or_else(|| {
        CliError::new(exit::ERROR, code::CONFIG, "there is no place for a configuration file")
            .hint("set HOME or GANGLINE_CONFIG")
    })?;
    let home = file.parent().unwrap_or(Path::new(".")).to_owned();
    let context = login.context.as_str();
    check_context(context)?;

    let mut authority = None;
    let encrypted = settings.address.scheme() == "https";
    if login.pin.is_some() && !encrypted {
        let what = format!("{} is not https, so --pin has nothing to compare", shown(&settings));
        return Err(CliError::new(exit::USAGE, code::USAGE, what)
            .hint("write https://, or leave --pin out on the coordinator's own machine"));
    }
    // A pin is compared even where a CA is known from an earlier login.
    if encrypted && (settings.ca.is_none() || login.pin.is_some()) {
        let found = trust::shown_by(&settings.address)?;
        trust_it(&found, login, shown(&settings))?;
        authority = Some(found);
    }
    let ca_path = home.join(format!("ca-{context}.pem"));
    if let Some(authority) = &authority {
        write_private(&ca_path, authority.to_pem().as_bytes())?;
        settings.ca = Some(ca_path);
    }
    // The token of an earlier login is not the one that is meant now.
    let by_environment = env("GANGLINE_TOKEN").is_some_and(|token| !token.is_empty());
    if globals.token.is_none() && globals.token_file.is_none() && !by_environment {
        settings.token = Some(read_token(screen)?);
    }
    let client = Client::new(&settings)?;
    // An unknown token must not replace one that works.
    access::whoami(&client, screen).await?;

    let token_path = home.join(format!("token-{context}"));
    write_private(&token_path, settings.token.as_deref().unwrap_or_default().as_bytes())?;
    remember(&file, context, &settings, &token_path)?;
    screen.hint(&format!("logged in; kept as context `{context}` in {}", file.display()));
    Ok(exit::OK)
}

/// Forget the token of a context.
pub(super) fn logout(logout: &Logout, screen: &Screen) -> Result<u8, CliError> {
    let env = |name: &str| std::env::var(name).ok();
    let context = logout.context.as_str();
    check_context(context)?;
    let nothing = || {
        CliError::new(exit::ERROR, code::CONFIG, format!("not logged in: no context `{context}`"))
            .hint("gangline login makes one")
    };
    let file = config::file_path(&env).filter(|file| file.exists()).ok_or_else(nothing)?;
    let mut document = read_document(&file)?;
    let contexts = document.get_mut("contexts").and_then(Item::as_table_like_mut);
    let entry = contexts.and_then(|all| all.get_mut(context)).and_then(Item::as_table_like_mut);
    let entry = entry.ok_or_else(nothing)?;
    let token_file = entry.remove("token_file");
    entry.remove("token");
    let own = file.parent().unwrap_or(Path::new(".")).join(format!("token-{context}"));
    // A file that somebody else keeps stays.
    if token_file.as_ref().and_then(Item::as_str).map(Path::new) == Some(own.as_path()) {
        match std::fs::remove_file(&own) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(CliError::io(format!("cannot remove {}", own.display()), &error));
            }
            _ => {}
        }
    }
    write_private(&file, document.to_string().as_bytes())?;
    screen.hint(&format!(
        "the token of context `{context}` is forgotten; it still works for others who have it"
    ));
    Ok(exit::OK)
}

fn shown(settings: &Settings) -> &str {
    settings.address.as_str().trim_end_matches('/')
}

/// Either the user has the fingerprint from somewhere else, or says yes to what is shown.
fn trust_it(found: &Authority, login: &Login, address: &str) -> Result<(), CliError> {
    let fingerprint = found.fingerprint();
    match &login.pin {
        Some(pin) if found.is(pin) => Ok(()),
        Some(_) => {
            let what = format!("{address} shows another CA than the one of --pin");
            Err(CliError::new(exit::DENIED, code::WRONG_CA, what)
                .why(format!("its fingerprint is {fingerprint}"))
                .hint("somebody may be in between: nothing was sent; ask an administrator"))
        }
        None => {
            let question = format!(
                "{address} shows a CA with the fingerprint\n  {fingerprint}\nIs it the one that \
                 your administrator gave you? Trust it?"
            );
            confirm(&question, login.yes)
        }
    }
}

/// The token, from a terminal without showing it, or from what is piped in.
fn read_token(screen: &Screen) -> Result<String, CliError> {
    let what = hidden::Wanted { thing: "token", most: MAX_TOKEN_BYTES, code: code::TOKEN };
    let text = hidden::read(&what, screen)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(CliError::new(exit::INVALID, code::TOKEN, "there is no token")
            .hint("give it with --token-file FILE, or on stdin"));
    }
    Ok(token.to_owned())
}

fn check_context(name: &str) -> Result<(), CliError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !name.is_empty() && name.len() <= 63 && name.chars().all(plain) {
        return Ok(());
    }
    Err(CliError::new(exit::INVALID, code::CONFIG, "the name of a context is not usable")
        .hint("use 1 to 63 characters of A-Z a-z 0-9 - _"))
}

/// Writes the context into the file, and selects it; what else stands there stays as it is.
fn remember(file: &Path, context: &str, settings: &Settings, token: &Path) -> Result<(), CliError> {
    let mut document = read_document(file)?;
    document["context"] = value(context);
    let contexts = document.entry("contexts").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let wrong = || {
        let what = format!("`contexts` of {} is no table", file.display());
        CliError::new(exit::INVALID, code::CONFIG, what)
    };
    let contexts = contexts.as_table_like_mut().ok_or_else(wrong)?;
    let mut entry = Table::new();
    entry["address"] = value(settings.address.as_str());
    entry["token_file"] = value(text(token)?);
    if let Some(ca) = &settings.ca {
        let ca = std::path::absolute(ca).map_err(|error| CliError::io("--ca", &error))?;
        entry["ca"] = value(text(&ca)?);
    }
    contexts.insert(context, Item::Table(entry));
    write_private(file, document.to_string().as_bytes())
}

fn text(path: &Path) -> Result<&str, CliError> {
    path.to_str().ok_or_else(|| {
        let what = format!("the name of {} is not valid UTF-8", path.display());
        CliError::new(exit::INVALID, code::CONFIG, what)
    })
}

fn read_document(file: &Path) -> Result<DocumentMut, CliError> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            return Err(CliError::io(format!("cannot read {}", file.display()), &error));
        }
    };
    text.parse().map_err(|error: toml_edit::TomlError| {
        let what = format!("{} is not a valid configuration", file.display());
        CliError::new(exit::INVALID, code::CONFIG, what).why(error.to_string())
    })
}

/// Replaces a file that only its owner can read, as a whole.
fn write_private(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let write = || -> std::io::Result<()> {
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let unfinished = PathBuf::from(name);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)
    };
    write().map_err(|error| CliError::io(format!("cannot write {}", path.display()), &error))
}
