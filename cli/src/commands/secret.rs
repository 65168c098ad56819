//! Secrets of a project: set, list, delete. Nothing prints a value.

use std::fs::File;
use std::path::Path;

use serde_json::Value;

use super::{check_selector, hidden, items, or_dash};
use crate::client::Client;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;

/// Largest value, in bytes.
const MAX_VALUE: usize = 64 * 1024;

type Query<'a> = Vec<(&'a str, String)>;

fn query(project: Option<String>) -> Query<'static> {
    project.map(|project| ("project", project)).into_iter().collect()
}

/// Set a secret to what a file, stdin or the user at the terminal says.
pub(super) async fn set(
    client: &Client,
    name: &str,
    from_file: Option<&Path>,
    project: Option<String>,
    screen: &Screen,
) -> Result<u8, CliError> {
    check_selector("name of a secret", name)?;
    let wanted = hidden::Wanted { thing: "value", most: MAX_VALUE, code: code::VALUE };
    let text = match from_file {
        Some(path) => {
            let cannot = |error| CliError::io(format!("cannot read {}", path.display()), &error);
            hidden::read_from(File::open(path).map_err(cannot)?, &wanted)?
        }
        None => hidden::read(&wanted, screen)?,
    };
    let value = without_end_of_line(&text);
    if value.is_empty() {
        return Err(CliError::new(exit::INVALID, code::VALUE, "there is no value")
            .hint("give it with --from-file FILE, or on stdin"));
    }
    let media_type = "text/plain; charset=utf-8";
    client.put(&["secrets", name], &query(project), media_type, value.to_owned()).await?;
    screen.hint(&format!(
        "{} is set; jobs with `secrets: [{0}]` get it when they start",
        clean(name)
    ));
    Ok(exit::OK)
}

/// List the names of secrets.
pub(super) async fn list(
    client: &Client,
    project: Option<String>,
    screen: &Screen,
) -> Result<u8, CliError> {
    let answer = client.get(&["secrets"], &query(project)).await?;
    let secrets = items(&answer, "secrets");
    let text = |secret: &Value, key: &str| {
        secret.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => secrets.iter().try_for_each(|secret| screen.json(secret))?,
        Format::Name => {
            secrets.iter().try_for_each(|secret| screen.line(&clean(&text(secret, "name"))))?;
        }
        Format::Table | Format::Wide => {
            let mut table = Table::new(&["NAME", "SET BY", "SET"], screen.width());
            for secret in secrets {
                let set = crate::durations::local(&text(secret, "set"));
                let set_by = or_dash(Some(text(secret, "set_by")));
                table.row(vec![text(secret, "name"), set_by, or_dash(Some(set))]);
            }
            screen.print(&table.take())?;
        }
    }
    Ok(exit::OK)
}

/// Delete a secret.
pub(super) async fn delete(
    client: &Client,
    name: &str,
    project: Option<String>,
    screen: &Screen,
) -> Result<u8, CliError> {
    check_selector("name of a secret", name)?;
    client.delete(&["secrets", name], &query(project)).await?;
    screen.hint(&format!("{} is deleted", clean(name)));
    Ok(exit::OK)
}

/// Editors and `echo` end a file with a line end, which no key has.
fn without_end_of_line(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_end_of_line_goes() {
        for (text, value) in
            [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a ", " a "), ("\n", "")]
        {
            assert_eq!(without_end_of_line(text), value, "{text:?}");
        }
    }
}
