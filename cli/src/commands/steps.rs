//! `metrics --step`: what a training says of itself, step by step.

use serde_json::Value;

use super::metrics::{CHART, LEAST_CHART};
use crate::args::Metrics;
use crate::client::Client;
use crate::errors::{CliError, code, exit};
use crate::output::{Format, Screen};
use crate::sparkline::sparkline;
use crate::table::Table;
use crate::terminal::clean;
use crate::view::{self, Job, JobSeries};

/// Columns that everything but the chart and the name takes.
const BESIDE: usize = 44;
/// Names that an error gives as examples.
const NAMED: usize = 12;

/// Show the steps and metrics of a job's training.
pub(super) async fn run(
    client: &Client,
    args: &Metrics,
    job: &Job,
    screen: &Screen,
) -> Result<u8, CliError> {
    let answer = client.get(&["jobs", &job.id, "series"], &[]).await?;
    let series: JobSeries = view::read_series(&answer)?;
    check_names(&series, &args.names)?;
    if args.csv {
        screen.plain(&csv(&series, &args.names))?;
        return Ok(exit::OK);
    }
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(&only(answer, &series, &args.names))?,
        Format::Name => {
            for name in chosen(&series, &args.names) {
                screen.line(&clean(name))?;
            }
        }
        Format::Table | Format::Wide => show(job, &series, &args.names, screen)?,
    }
    Ok(exit::OK)
}

/// Refuses a name that no metric has or begins with. Before the first step nobody knows better.
fn check_names(series: &JobSeries, names: &[String]) -> Result<(), CliError> {
    let unknown =
        |wanted: &&String| !series.values.keys().any(|name| name.starts_with(wanted.as_str()));
    let Some(unknown) = names.iter().find(unknown).filter(|_| series.progress.is_some()) else {
        return Ok(());
    };
    let mut there: Vec<&str> = series.values.keys().take(NAMED).map(String::as_str).collect();
    if series.values.len() > NAMED {
        there.push("and more");
    }
    let hint = match there.is_empty() {
        true => "its log says steps, and no metrics".to_owned(),
        false => format!("there are: {}", there.join(", ")),
    };
    let what = format!("no metric has the name {}, or begins so", clean(unknown));
    Err(CliError::new(exit::USAGE, code::USAGE, what).hint(hint))
}

/// The metrics that are wanted: all, or those whose names are or begin with one of `names`.
fn chosen<'a>(series: &'a JobSeries, names: &'a [String]) -> impl Iterator<Item = &'a String> {
    series.values.keys().filter(move |name| {
        names.is_empty() || names.iter().any(|wanted| name.starts_with(wanted.as_str()))
    })
}

fn only(mut answer: Value, series: &JobSeries, names: &[String]) -> Value {
    let kept: Vec<&String> = chosen(series, names).collect();
    if let Some(values) = answer.get_mut("values").and_then(Value::as_object_mut) {
        values.retain(|name, _| kept.contains(&name));
    }
    answer
}

fn show(job: &Job, series: &JobSeries, names: &[String], screen: &Screen) -> Result<(), CliError> {
    let mut parts = vec![format!("{}  {}  {}", job.id, job.name, job.state)];
    parts.extend(series.attempt.map(|attempt| format!("attempt {attempt}")));
    let Some(progress) = &series.progress else {
        screen.line(&clean(&parts.join(" · ")))?;
        screen.hint("its log says no steps; verl, Hugging Face and `step N/M loss X` are read");
        return Ok(());
    };
    parts.push(format!("step {}", progress.steps()));
    parts.extend(progress.pace());
    screen.line(&clean(&parts.join(" · ")))?;
    let longest = chosen(series, names).map(|name| name.len()).max().unwrap_or_default();
    let width = screen.width().map_or(CHART, |width| width.saturating_sub(BESIDE + longest));
    let width = width.clamp(LEAST_CHART, CHART);
    let mut table = Table::new(&["METRIC", "NOW", "LOW", "HIGH", "CHART"], None);
    for name in chosen(series, names) {
        let values = series.values.get(name).map(Vec::as_slice).unwrap_or_default();
        let known: Vec<f64> = values.iter().flatten().copied().collect();
        let Some(now) = known.last() else { continue };
        let low = known.iter().copied().fold(f64::INFINITY, f64::min);
        let high = known.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        table.row(vec![
            clean(name),
            number(*now),
            number(low),
            number(high),
            curve(values, width, low, high),
        ]);
    }
    screen.print(&table.take())?;
    if series.every > 1 {
        screen.hint(&format!("one step in {} is kept", series.every));
    }
    if series.too_many_names {
        screen.hint("the training says more metrics than are kept");
    }
    Ok(())
}

/// A chart from the lowest value to the highest, which may be below 0.
pub(super) fn curve(values: &[Option<f64>], width: usize, low: f64, high: f64) -> String {
    let lifted: Vec<Option<f64>> = values.iter().map(|value| value.map(|v| v - low)).collect();
    sparkline(&lifted, width, high - low)
}

/// Four digits: `0.0121`, `1893`, `1.2e-6`.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if !(1e-3..1e6).contains(&size) {
        format!("{value:.2e}")
    } else {
        // Between -3 and 5.
        let before = size.log10().floor() as i32;
        let decimals = usize::try_from((3 - before).clamp(0, 6)).unwrap_or(0);
        let text = format!("{value:.decimals$}");
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        }
    }
}

/// Every value: a line for each step, a column for each metric.
fn csv(series: &JobSeries, names: &[String]) -> String {
    let names: Vec<&String> = chosen(series, names).collect();
    let mut out = "step,attempt,time_ms".to_owned();
    for name in &names {
        // Names have no quotes and no line ends; what a server sends anyway is left out.
        out.push_str(&format!(",{}", clean(name).replace([',', '"'], "")));
    }
    out.push('\n');
    for (row, step) in series.steps.iter().enumerate() {
        let attempt = series.attempts.get(row).map(ToString::to_string).unwrap_or_default();
        let time = series.time_ms.get(row).copied().flatten();
        let time = time.map(|ms| ms.to_string()).unwrap_or_default();
        out.push_str(&format!("{step},{attempt},{time}"));
        for name in &names {
            let value = series.values.get(*name).and_then(|values| *values.get(row)?);
            out.push_str(&value.map_or_else(|| ",".to_owned(), |value| format!(",{value}")));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_have_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.0121, "0.0121"),
            (0.412_345, "0.4123"),
            (1893.23, "1893"),
            (12.5, "12.5"),
            (-3.0, "-3"),
            (1.2e-6, "1.20e-6"),
            (2.5e7, "2.50e7"),
            (10.0, "10"),
            (100_000.0, "100000"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn names_that_no_metric_has_are_refused() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let mut series: JobSeries = serde_json::from_value(json!({
            "progress": {"step": 2}, "values": {"actor/loss": [0.5], "actor/lr": [1.0]},
        }))
        .unwrap();
        for known in [&[][..], &["actor"], &["actor/lr", "actor/lo"]] {
            assert!(check_names(&series, &names(known)).is_ok(), "{known:?}");
        }
        let error = check_names(&series, &names(&["actor", "critic"])).unwrap_err();
        assert_eq!(error.exit(), exit::USAGE);
        assert!(error.to_text().contains("there are: actor/loss, actor/lr"), "{}", error.to_text());
        series.progress = None;
        assert!(check_names(&series, &names(&["critic"])).is_ok());
    }

    #[test]
    fn values_that_are_not_there_are_empty() {
        let series: JobSeries = serde_json::from_value(json!({
            "steps": [1, 2], "attempts": [1, 2], "time_ms": [null, 5],
            "values": {"a/loss": [0.5, null], "a/lr": [1e-6, 2.0], "b": [1.0, 2.0]},
        }))
        .unwrap();
        let expected = "step,attempt,time_ms,a/loss,a/lr\n1,1,,0.5,0.000001\n2,2,5,,2\n";
        assert_eq!(csv(&series, &["a/".to_owned()]), expected);
        assert_eq!(chosen(&series, &[]).count(), 3);
        assert_eq!(curve(&[Some(-1.0), Some(1.0)], 10, -1.0, 1.0), "▁█");
    }
}
