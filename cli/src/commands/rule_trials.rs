//! `node health --trials`: health rules on trial.

use super::{items, or_dash};
use crate::client::Client;
use crate::durations::local;
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::terminal::clean;
use crate::view::{self, RuleTrial};

/// What rules on trial have found, and how often they were right.
pub(super) async fn list(client: &Client, screen: &Screen) -> Result<u8, CliError> {
    let answer = client.get(&["rule-trials"], &[]).await?;
    let values = items(&answer, "trials");
    let trials: Vec<RuleTrial> = values.iter().map(view::read).collect::<Result<_, _>>()?;
    match screen.format() {
        Format::Json => screen.json(&answer)?,
        Format::Jsonl => values.iter().try_for_each(|value| screen.json_line(value))?,
        Format::Name => trials.iter().try_for_each(|trial| screen.line(&clean(&trial.rule)))?,
        Format::Table | Format::Wide => {
            screen.print(&tallies(&trials, screen).take())?;
            if trials.iter().any(|trial| !trial.findings.is_empty()) {
                screen.line("")?;
                screen.print(&findings(&trials, screen).take())?;
            }
            screen.hint(match trials.is_empty() {
                true => "no rule on trial has found anything",
                false => {
                    "a rule whose PRECISION convinces you may act: health_trusted of the agents"
                }
            });
        }
    }
    Ok(exit::OK)
}

fn tallies(trials: &[RuleTrial], screen: &Screen) -> Table {
    let titles = &["RULE", "FOUND", "CONFIRMED", "REFUTED", "UNTOLD", "PRECISION"];
    let mut table = Table::new(titles, screen.width());
    for trial in trials {
        let precision = trial.precision.map(|share| format!("{:.0} %", share * 100.0));
        let mut row = vec![trial.rule.clone()];
        let counts = [trial.found, trial.confirmed, trial.refuted, trial.untold];
        row.extend(counts.map(|count| count.to_string()));
        row.push(or_dash(precision));
        table.row(row);
    }
    table
}

/// Those of the last day.
fn findings(trials: &[RuleTrial], screen: &Screen) -> Table {
    let titles = &["NODE", "RULE", "COMPONENT", "SINCE", "OUTCOME", "WHY"];
    let mut table = Table::new(titles, screen.width()).cut_last();
    for trial in trials {
        for finding in &trial.findings {
            table.row(vec![
                finding.node.clone().unwrap_or_else(|| finding.node_id.clone()),
                trial.rule.clone(),
                finding.component.clone(),
                or_dash(finding.since.as_deref().map(local)),
                finding.outcome.clone(),
                or_dash(finding.why.clone()),
            ]);
        }
    }
    table
}
