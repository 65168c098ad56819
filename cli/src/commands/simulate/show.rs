//! The figures of replays, as a table and as JSON.

use gangline_simulate::{Replay, Report};
use serde_json::Value;

use crate::durations::short;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::table::Table;

/// The columns that every table has, and those of wide ones behind them.
const USUAL: usize = 16;
static COLUMNS: [&str; 20] = [
    "REPLAY",
    "JOBS",
    "UNFINISHED",
    "MAKESPAN",
    "GPU%",
    "WAIT",
    "P50",
    "P90",
    "P99",
    "MAX",
    "JCT",
    "P50",
    "P90",
    "P99",
    "PREEMPTED",
    "LOST GPUh",
    "GPU% ARRIVALS",
    "FRAGMENTED",
    "QUEUE",
    "EVENTS/S",
];

/// Prints one report as an object, several as an array, or all as one table.
pub(super) fn reports(replays: &[Replay], screen: &Screen) -> Result<(), CliError> {
    let objects = replays.iter().map(|replay| object(&replay.report));
    match screen.format() {
        Format::Json | Format::Jsonl => json(objects.collect::<Result<_, _>>()?, screen)?,
        Format::Name => {
            replays.iter().try_for_each(|replay| screen.line(&replay.report.policy))?;
        }
        Format::Table | Format::Wide => {
            let mut table = table(screen);
            for Replay { report, .. } in replays {
                table.row(row(report.policy.clone(), report, screen));
            }
            screen.print(&table.take())?;
        }
    }
    if let Some(first) = replays.first() {
        screen.hint(&summary(&first.report));
    }
    replays.iter().for_each(|replay| unfinished(&replay.report.policy, &replay.report, screen));
    Ok(())
}

/// One object alone, several as an array; one a line for `jsonl`.
pub(super) fn json(mut objects: Vec<Value>, screen: &Screen) -> Result<(), CliError> {
    if screen.format() == Format::Jsonl {
        return objects.iter().try_for_each(|object| screen.json(object));
    }
    match objects.len() {
        1 => screen.json(&objects.remove(0)),
        _ => screen.json(&Value::Array(objects)),
    }
}

pub(super) fn object(report: &Report) -> Result<Value, CliError> {
    serde_json::to_value(report).map_err(|error| {
        CliError::new(exit::ERROR, code::INTERNAL, "cannot write the report").why(error.to_string())
    })
}

pub(super) fn table(screen: &Screen) -> Table {
    let (usual, _) = COLUMNS.split_at(USUAL);
    Table::new(if screen.is_wide() { &COLUMNS } else { usual }, screen.width())
}

pub(super) fn row(first: String, report: &Report, screen: &Screen) -> Vec<String> {
    let mut cells = vec![
        first,
        report.jobs.to_string(),
        report.unfinished.to_string(),
        time(report.makespan_s),
        percent(report.gpu_utilisation),
    ];
    let times = [
        report.wait_mean_s,
        report.wait_p50_s,
        report.wait_p90_s,
        report.wait_p99_s,
        report.wait_max_s,
        report.jct_mean_s,
        report.jct_p50_s,
        report.jct_p90_s,
        report.jct_p99_s,
    ];
    cells.extend(times.map(time));
    cells.extend([report.preemptions.to_string(), format!("{:.1}", report.gpu_hours_lost)]);
    if screen.is_wide() {
        cells.extend([
            percent(report.gpu_utilisation_arrivals),
            percent(report.fragmentation),
            report.queue_max.to_string(),
            format!("{:.0}", report.events_per_s),
        ]);
    }
    cells
}

pub(super) fn time(seconds: f64) -> String {
    short(seconds.round() as u64)
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

/// "52 nodes, 416 GPUs · jobs arrive over 108d21h · load 0.90".
pub(super) fn summary(report: &Report) -> String {
    let load = report.load.map_or(String::new(), |load| format!(" · load {load:.2}"));
    let left_out = match report.without_gpus {
        0 => String::new(),
        jobs => format!(" · {jobs} jobs without GPUs left out"),
    };
    format!(
        "{} nodes, {} GPUs · jobs arrive over {}{load}{left_out}",
        report.nodes,
        report.gpus,
        time(report.arrivals_s)
    )
}

/// Names the jobs that did not come to their end.
pub(super) fn unfinished(case: &str, report: &Report, screen: &Screen) {
    if report.unfinished == 0 {
        return;
    }
    let named: Vec<String> = report
        .unfinished_jobs
        .iter()
        .map(|job| format!("{} ({} GPUs): {}", job.job, job.gpus, job.reason))
        .collect();
    let more = match report.unfinished - named.len() {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let count = report.unfinished;
    screen.warn(&format!("{case}: {count} unfinished: {}{more}", named.join("; ")));
}
