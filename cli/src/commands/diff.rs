//! `diff`: what differs between the specs of two jobs.

use serde_json::json;

use super::spec_of;
use crate::args::Diff;
use crate::client::Client;
use crate::diff::{Mark, unified};
use crate::errors::{CliError, exit};
use crate::output::Screen;
use crate::terminal::clean;
use clap::builder::styling::{AnsiColor, Style};

/// Print the differences, nothing when there is none. The exit code says whether there are any.
pub(super) async fn run(client: &Client, args: &Diff, screen: &Screen) -> Result<u8, CliError> {
    let (left, left_spec) = spec_of(client, &args.left).await?;
    let (right, right_spec) = spec_of(client, &args.right).await?;
    let [left_text, right_text] = [&left_spec, &right_spec].map(gangline_spec::yaml);
    let lines = unified([&left, &right], &left_text, &right_text);
    if screen.is_json() {
        let text: String = lines.iter().map(|(_, line)| format!("{line}\n")).collect();
        screen.json(&json!({ "jobs": [left, right], "equal": lines.is_empty(), "diff": text }))?;
    } else {
        screen.print(&lines.iter().map(shown).collect::<String>())?;
    }
    if lines.is_empty() {
        screen.hint(&format!("the specs of {left} and {right} are equal"));
        return Ok(exit::OK);
    }
    Ok(exit::ERROR)
}

fn shown((mark, line): &(Mark, String)) -> String {
    let style = match mark {
        Mark::Head => AnsiColor::Cyan.on_default(),
        Mark::Same => Style::new(),
        Mark::Removed => AnsiColor::Red.on_default(),
        Mark::Added => AnsiColor::Green.on_default(),
    };
    format!("{style}{}{style:#}\n", clean(line))
}
