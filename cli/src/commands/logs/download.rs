//! Copies of a job's log files in a directory.

use std::io::Write;
use std::path::Path;

use serde_json::Value;

use super::lines::chosen;
use crate::args::Logs;
use crate::client::Client;
use crate::commands::find_job;
use crate::errors::{CliError, code, exit};
use crate::output::Screen;
use crate::terminal::clean;

/// Bytes asked for at once.
const PAGE_BYTES: u64 = 4 * 1024 * 1024;

/// Write the chosen files of an attempt into `directory`, each under its member's and its own name.
pub(super) async fn run(
    client: &Client,
    selector: &str,
    args: &Logs,
    directory: &Path,
    screen: &Screen,
) -> Result<u8, CliError> {
    let (_, job) = find_job(client, selector).await?;
    let attempt = args.attempt.map(|attempt| ("attempt", attempt.to_string()));
    let query: Vec<_> = attempt.clone().into_iter().collect();
    let list = client.get(&["jobs", &job.id, "logs", "files"], &query).await?;
    let files = list.get("files").and_then(Value::as_array).cloned().unwrap_or_default();
    let files = chosen(&files, args)?;
    // The list is of one attempt; another one may begin meanwhile.
    let attempt = list.get("attempt").and_then(Value::as_u64).map(|number| number.to_string());
    let cannot = |error: std::io::Error, path: &Path| {
        CliError::io(format!("cannot write {}", path.display()), &error)
    };
    std::fs::create_dir_all(directory).map_err(|error| cannot(error, directory))?;
    let mut bytes = 0;
    for file in &files {
        let text = |key: &str| file.get(key).and_then(Value::as_str).unwrap_or_default();
        let (member, name) = (text("member"), text("file"));
        if !is_plain(member) || !is_plain(name) {
            return Err(CliError::new(exit::ERROR, code::BAD_ANSWER, "a file has a strange name")
                .why(clean(name)));
        }
        let mut query = vec![("file", name.to_owned())];
        query.extend(attempt.clone().map(|attempt| ("attempt", attempt)));
        if !name.starts_with("driver-") {
            query.push(("rank", member.to_owned()));
        }
        let path = directory.join(format!("{member}-{name}.log"));
        let part = directory.join(format!("{member}-{name}.log.part"));
        let mut out = std::fs::File::create(&part).map_err(|error| cannot(error, &part))?;
        let mut at = 0;
        loop {
            let mut query = query.clone();
            query.extend([("offset", at.to_string()), ("limit", PAGE_BYTES.to_string())]);
            let page = client.log_page(&["jobs", &job.id, "logs"], &query).await?;
            out.write_all(&page.bytes).map_err(|error| cannot(error, &part))?;
            at += u64::try_from(page.bytes.len()).unwrap_or(0);
            if page.bytes.is_empty() || at >= page.total_bytes {
                break;
            }
        }
        std::fs::rename(&part, &path).map_err(|error| cannot(error, &path))?;
        bytes += at;
        screen.line(&path.display().to_string())?;
    }
    screen.hint(&format!("{} files, {bytes} bytes", files.len()));
    Ok(exit::OK)
}

fn is_plain(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    !name.is_empty() && name.bytes().all(plain)
}
