//! The commands beside `serve`: backup, restore, check. They work on the state directory of this
//! machine, through the coordinator that serves it when there is one.

use std::io;
use std::path::Path;

use anyhow::{Context, bail};
use gangline_common::time::{Timestamp, wall_text};

use crate::backups;
use crate::ca::Ca;
use crate::config::Config;
use crate::control::Client;
use crate::store::backup::{Destination, Summary};
use crate::store::restore::{Request, restore};
use crate::store::{StoreError, inspect};

/// Copies the store to `destination`, which must not exist.
///
/// # Errors
/// Why there is no copy; then nothing is at `destination`.
pub fn back_up(config: &Config, destination: &Path) -> anyhow::Result<String> {
    let mut copy = Destination::new(destination)?;
    match Client::connect(&config.state_dir).context("asking the coordinator that serves")? {
        Some(client) => {
            let mut bytes = client.backup().context("asking the coordinator that serves")?;
            io::copy(&mut bytes, copy.file()).context("the copy broke off")?;
        }
        None => {
            let store = match inspect(&config.store()) {
                Err(StoreError::Taken { path }) => bail!(
                    "store {}: another process has it open, but it does not answer on its control \
                     socket. Is this the state directory of another machine?",
                    path.display()
                ),
                inspected => inspected?,
            };
            let out = io::BufWriter::new(copy.file());
            store.reader().back_up(Timestamp::now().wall_ms, out)?;
        }
    }
    let summary = copy.publish().with_context(|| {
        format!("the copy is not good, and {} was not made", destination.display())
    })?;
    Ok(format!("{}: {}\n", destination.display(), summary.sentence()))
}

/// Makes the copy at `source` the store, under an era of at least `least_era`, when nobody serves.
///
/// # Errors
/// Why not; the store is then what it was.
pub fn restore_from(config: &Config, source: &Path, least_era: u32) -> anyhow::Result<String> {
    if Client::connect(&config.state_dir).context("the control socket")?.is_some() {
        bail!(
            "a coordinator serves {}. Stop it first; nothing was changed",
            config.state_dir.display()
        );
    }
    let done = restore(Request {
        source,
        store: &config.store(),
        era_file: &config.era(),
        least_era,
        now: Timestamp::now(),
    })?;
    let mut text = format!("restored: {}\n", done.copy.sentence());
    if let Some(replaced) = &done.replaced {
        text += &format!("the replaced store is kept as {}\n", replaced.display());
    }
    text += &format!(
        "era {}: what runs on the nodes runs on. {} node(s) are cordoned until you resume them\n",
        done.era, done.nodes
    );
    if done.waiting > 0 {
        text += &format!(
            "{} job(s) wait in this copy and are held. They may have run since {}: release those that \
             have not\n",
            done.waiting,
            wall_text(done.copy.header.wall_ms)
        );
    }
    if done.running > 0 {
        text += &format!(
            "{} job(s) ran when it was made. Those that have ended since end as FAILED, because \
             their result is not known\n",
            done.running
        );
    }
    if !Ca::exists(&config.ca()) {
        text += &format!(
            "warning: {} has no key. Put the directory back before you serve, or every agent must \
             join again\n",
            config.ca().display()
        );
    }
    let sealed = done.copy.sealed();
    if sealed > 0 && !config.secrets_key().exists() {
        text += &format!(
            "warning: {} is missing; the copy holds {sealed} secret(s) and addresses of webhooks that only it opens\n",
            config.secrets_key().display()
        );
    }
    Ok(text)
}

/// What to do about a store that was refused: the newest copy that is good, and the command.
/// `flags` are those of `serve` that name the configuration.
pub fn advice(config: &Config, flags: &str) -> Option<String> {
    let (path, summary): (_, Summary) = backups::newest_good(&config.backups())?;
    let path = path.display().to_string();
    let path = shlex::try_quote(&path).ok()?;
    Some(format!(
        "the newest good backup has {}. To go back to it:\n  \
         gangline-coordinator restore {flags}{path}",
        summary.sentence()
    ))
}
