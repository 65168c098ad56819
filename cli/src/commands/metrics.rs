//! `metrics`: what a job did with its GPUs in the last hour, as charts of one line. What its training
//! says of itself is in `steps`.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::node::watts;
use super::{bytes, find_job};
use crate::args::Metrics;
use crate::client::Client;
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::sparkline::{mean, sparkline};
use crate::table::Table;
use crate::terminal::clean;
use crate::top::draw::rate;
use crate::view::{self, GpuSeries, Job, JobMetrics, NodeSeries};

/// Characters of a chart: so many, or what the terminal has left.
pub(super) const CHART: usize = 60;
pub(super) const LEAST_CHART: usize = 10;
/// Columns that everything but the chart takes.
const BESIDE: usize = 62;

/// How readings of several GPUs or nodes become one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Together {
    Mean,
    Sum,
}

/// A line of the answer.
struct Line {
    label: &'static str,
    series: &'static str,
    together: Together,
    text: fn(f64) -> String,
    /// The top of the chart; the largest value when there is none.
    top: Option<f64>,
}

fn percent(value: f64) -> String {
    format!("{value:.0}%")
}

fn of_one(value: f64) -> String {
    format!("{:.0}%", value * 100.0)
}

fn size(value: f64) -> String {
    bytes(value as u64)
}

fn celsius(value: f64) -> String {
    format!("{value:.0}°C")
}

const GPU_LINES: [Line; 7] = [
    Line {
        label: "GPU busy",
        series: "utilization_pct",
        together: Together::Mean,
        text: percent,
        top: Some(100.0),
    },
    Line {
        label: "SM active",
        series: "sm_active",
        together: Together::Mean,
        text: of_one,
        top: Some(1.0),
    },
    Line {
        label: "tensor active",
        series: "tensor_active",
        together: Together::Mean,
        text: of_one,
        top: Some(1.0),
    },
    Line {
        label: "GPU memory",
        series: "memory_used_bytes",
        together: Together::Sum,
        text: size,
        top: None,
    },
    Line { label: "power", series: "power_w", together: Together::Sum, text: watts, top: None },
    Line {
        label: "temperature",
        series: "temperature_c",
        together: Together::Mean,
        text: celsius,
        top: Some(100.0),
    },
    Line {
        label: "NVLink",
        series: "nvlink_bytes_per_s",
        together: Together::Sum,
        text: rate,
        top: None,
    },
];

const HOST_LINES: [Line; 3] = [
    Line {
        label: "host CPU",
        series: "cpu_busy_pct",
        together: Together::Mean,
        text: percent,
        top: Some(100.0),
    },
    Line {
        label: "network",
        series: "network_bytes_per_s",
        together: Together::Sum,
        text: rate,
        top: None,
    },
    Line {
        label: "RDMA",
        series: "rdma_bytes_per_s",
        together: Together::Sum,
        text: rate,
        top: None,
    },
];

/// Show the readings of a job's GPUs.
pub(super) async fn run(client: &Client, args: &Metrics, screen: &Screen) -> Result<u8, CliError> {
    let (_, job) = find_job(client, &args.job).await?;
    if args.step {
        return super::steps::run(client, args, &job, screen).await;
    }
    let answer = client.get(&["jobs", &job.id, "metrics"], &query(args.since)).await?;
    let metrics: JobMetrics = view::read_series(&answer)?;
    match screen.format() {
        Format::Json | Format::Jsonl => screen.json(&answer)?,
        Format::Name => screen.line(&job.id)?,
        Format::Table | Format::Wide => show(&job, &metrics, screen)?,
    }
    Ok(exit::OK)
}

fn query(since: Duration) -> Vec<(&'static str, String)> {
    let now = Timestamp::now().as_millisecond();
    let ago = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    let since_ms = now.saturating_sub(ago).max(0);
    vec![("since", since_ms.to_string())]
}

fn show(job: &Job, metrics: &JobMetrics, screen: &Screen) -> Result<(), CliError> {
    let gpus: Vec<&GpuSeries> = metrics.members.iter().flat_map(|member| &member.gpus).collect();
    let attempt = metrics.attempt.map(|n| format!(" · attempt {n}")).unwrap_or_default();
    let step = metrics.step_s.max(1);
    screen.line(&format!(
        "{}  {}  {}{attempt} · {} node(s), {} GPU(s) · one value is {step} s",
        job.id,
        job.name,
        job.state,
        metrics.members.len(),
        gpus.len(),
    ))?;
    if metrics.members.iter().all(|member| member.time_ms.is_empty()) {
        screen.hint(if metrics.attempt.is_none() {
            "the job has not run yet"
        } else {
            "no readings of the asked time; they are kept for an hour"
        });
        return Ok(());
    }
    let width = screen.width().map_or(CHART, |width| width.saturating_sub(BESIDE));
    let width = width.clamp(LEAST_CHART, CHART);
    let mut table = Table::new(&["READING", "NOW", "MEAN", "LOW", "HIGH", "CHART"], None);
    for line in &GPU_LINES {
        let of_gpu = metrics.members.iter().flat_map(|member| {
            member.gpus.iter().map(move |gpu| (member, gpu.series.get(line.series)))
        });
        add(&mut table, line, &merged(of_gpu, step, line.together), width);
    }
    for line in &HOST_LINES {
        let of_node = nodes_once(&metrics.members).map(|node| (node, node.host.get(line.series)));
        add(&mut table, line, &merged(of_node, step, line.together), width);
    }
    screen.print(&table.take())?;
    let each = each_gpu(metrics, width);
    screen.print(&each.section("GPU busy"))?;
    if metrics.shared {
        screen.hint("the job runs on a standing cluster: these are the readings of all its GPUs");
    }
    Ok(())
}

/// Two ranks on one node have one host.
fn nodes_once(members: &[NodeSeries]) -> impl Iterator<Item = &NodeSeries> {
    let first = |(at, member): &(usize, &NodeSeries)| {
        !members.iter().take(*at).any(|before| before.name == member.name)
    };
    members.iter().enumerate().filter(first).map(|(_, member)| member)
}

/// One value for each step, whichever clock each node has.
fn merged<'a>(
    series: impl Iterator<Item = (&'a NodeSeries, Option<&'a Vec<Option<f64>>>)>,
    step_s: u64,
    together: Together,
) -> Vec<Option<f64>> {
    let mut steps: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for (node, values) in series {
        for (time, value) in node.time_ms.iter().zip(values.into_iter().flatten()) {
            let at = steps.entry(time / (step_s * 1000)).or_default();
            at.extend(value);
        }
    }
    let Some((first, last)) = steps.keys().next().copied().zip(steps.keys().last().copied()) else {
        return Vec::new();
    };
    // An hour of seconds at most; a server that says otherwise is not followed.
    (first..=last.min(first + 3600))
        .map(|step| {
            let values = steps.get(&step)?;
            let mean = mean(values.iter().copied())?;
            Some(if together == Together::Sum { mean * values.len() as f64 } else { mean })
        })
        .collect()
}

fn add(table: &mut Table, line: &Line, values: &[Option<f64>], width: usize) {
    let known: Vec<f64> = values.iter().flatten().copied().collect();
    let Some(now) = known.last() else { return };
    let low = known.iter().copied().fold(f64::INFINITY, f64::min);
    let high = known.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mean = mean(known.iter().copied()).unwrap_or_default();
    let text = line.text;
    let chart = sparkline(values, width, line.top.unwrap_or(high));
    table.row(vec![line.label.to_owned(), text(*now), text(mean), text(low), text(high), chart]);
}

/// A line for each GPU: who lags behind is seen here.
fn each_gpu(metrics: &JobMetrics, width: usize) -> Table {
    let mut table = Table::new(&["NODE", "RANK", "GPU", "NOW", "MEAN", "CHART"], None);
    for member in &metrics.members {
        for gpu in &member.gpus {
            let values = gpu.series.get("utilization_pct").map(Vec::as_slice).unwrap_or_default();
            let known: Vec<f64> = values.iter().flatten().copied().collect();
            let text = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
            let rank = member.member.as_ref().map(ToString::to_string);
            table.row(vec![
                clean(&member.name),
                super::or_dash(rank),
                clean(&gpu.uuid),
                text(known.last().copied()),
                text(mean(known.iter().copied())),
                sparkline(values, width, 100.0),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn nodes_with_other_clocks_are_merged_by_step() {
        let node = |value: Value| -> NodeSeries { serde_json::from_value(value).unwrap() };
        let a = node(json!({"name": "a", "time_ms": [10_400, 11_400, 13_400],
            "host": {"x": [1.0, 2.0, null]}}));
        let b = node(json!({"name": "b", "time_ms": [10_900, 11_900], "host": {"x": [3.0, 4.0]}}));
        let all = [a, b];
        let of = || all.iter().map(|node| (node, node.host.get("x")));
        assert_eq!(merged(of(), 1, Together::Sum), [Some(4.0), Some(6.0), None, None]);
        assert_eq!(merged(of(), 1, Together::Mean), [Some(2.0), Some(3.0), None, None]);
        assert_eq!(merged(std::iter::empty(), 1, Together::Mean), []);
        assert_eq!(nodes_once(&[all[0].clone(), all[0].clone(), all[1].clone()]).count(), 2);
    }
}
