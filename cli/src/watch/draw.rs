//! How the screen of `watch` looks. Everything that others wrote is cleaned on its way in.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph};

use super::state::State;
use crate::commands::node::watts;
use crate::commands::{bytes, steps};
use crate::durations::local;
use crate::sparkline::sparkline;
use crate::terminal::clean;
use crate::view::GpuSeries;

const KEYS: &str = "m, up, down another metric · q quit (the job goes on)";
const OVER: &str = "the job has ended · m, up, down another metric · q quit";
/// GPU rows at most; the rest is counted.
const GPUS: usize = 8;
/// Columns of a GPU row beside its chart.
const BESIDE: usize = 48;

/// Draws everything that `state` knows.
pub fn draw(frame: &mut Frame, state: &State) {
    let gpus = gpu_lines(state, usize::from(frame.area().width));
    let gpu_rows = u16::try_from(gpus.len() + 1).unwrap_or(u16::MAX);
    let rows = [
        Constraint::Length(2),
        Constraint::Min(6),
        Constraint::Length(gpu_rows),
        Constraint::Percentage(40),
        Constraint::Length(1),
    ];
    let [head, curve, readings, below, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Paragraph::new(header(state)), head);
    chart(frame, curve, state);
    frame.render_widget(Paragraph::new(gpus).block(Block::new().title("GPUs".bold())), readings);
    let halves = [Constraint::Percentage(65), Constraint::Percentage(35)];
    let [log, events] = Layout::horizontal(halves).areas(below);
    tail(frame, log, "log", state.log.iter().cloned().collect());
    let of_job = state.job.history.iter();
    let events_of = |line: &crate::view::Transition| {
        let time = local(&line.time);
        // The day is seldom asked for, and there is little room.
        let clock = time.get(11..19).unwrap_or(&time);
        format!("{clock} {} {}", clean(&line.state), clean(&line.text))
    };
    tail(frame, events, "events", of_job.map(events_of).collect());
    frame.render_widget(Paragraph::new(footer(state)), foot);
}

fn header(state: &State) -> Vec<Line<'static>> {
    let job = &state.job;
    let attempt = job.attempts.filter(|number| *number > 0);
    let mut first = vec![clean(&job.id), clean(&job.name), clean(&job.state)];
    first.extend(attempt.map(|number| format!("attempt {number}")));
    let second = match (&job.stalled, &job.progress) {
        (Some(since), _) => Line::from(format!("stalled since {}", local(since))).fg(Color::Red),
        (None, Some(progress)) => {
            let slow = job.stragglers.iter();
            let slow = slow.map(|slow| format!("rank {} on {} is slow", slow.rank, slow.node));
            let parts = std::iter::once(format!("step {}", progress.steps()));
            let parts = parts.chain(progress.pace()).chain(slow.map(|text| clean(&text)));
            Line::from(parts.collect::<Vec<_>>().join(" · "))
        }
        (None, None) => Line::from(clean(&job.reason)).dim(),
    };
    vec![Line::from(first.join("  ")).bold(), second]
}

fn footer(state: &State) -> Line<'static> {
    match &state.lost {
        Some(why) => Line::from(format!("{}; trying again", clean(why))).fg(Color::Red),
        None if state.job.is_over() => Line::from(OVER).fg(Color::Yellow),
        None => Line::from(KEYS).dim(),
    }
}

fn chart(frame: &mut Frame, area: Rect, state: &State) {
    let points = state.curve();
    let name = state.metric.as_deref().map(clean).unwrap_or_default();
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let low = points.iter().map(of).fold(f64::INFINITY, f64::min);
        let high = points.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
        (low, if high > low { high } else { low + 1.0 })
    };
    let Some((_, newest)) = points.last() else {
        let what = if state.job.progress.is_some() { "no values yet" } else { "no step yet" };
        frame.render_widget(Paragraph::new(what).block(Block::new().title(name.bold())), area);
        return;
    };
    let ((left, right), (low, high)) = (bounds(|point| point.0), bounds(|point| point.1));
    let data = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(Style::new().fg(Color::Cyan))
        .data(&points);
    let x =
        Axis::default().bounds([left, right]).labels([format!("{left:.0}"), format!("{right:.0}")]);
    let y = Axis::default().bounds([low, high]).labels([steps::number(low), steps::number(high)]);
    let title = format!("{name}  {}", steps::number(*newest));
    let chart = Chart::new(vec![data]).x_axis(x).y_axis(y).block(Block::new().title(title.bold()));
    frame.render_widget(chart, area);
}

/// A line for each GPU.
fn gpu_lines(state: &State, width: usize) -> Vec<Line<'static>> {
    let all = state.metrics.members.iter().flat_map(|member| {
        let rank = member.member.as_ref().map(ToString::to_string).unwrap_or_default();
        member.gpus.iter().map(move |gpu| (clean(&member.name), rank.clone(), gpu))
    });
    let newest = |gpu: &GpuSeries, name: &str| {
        gpu.series.get(name).and_then(|values| values.iter().flatten().last().copied())
    };
    let line = |(node, rank, gpu): (String, String, &GpuSeries)| {
        let dash = || "-".to_owned();
        let busy = newest(gpu, "utilization_pct").map_or_else(dash, |busy| format!("{busy:.0}%"));
        let memory = newest(gpu, "memory_used_bytes").map_or_else(dash, |b| bytes(b as u64));
        let power = newest(gpu, "power_w").map_or_else(dash, watts);
        let values = gpu.series.get("utilization_pct").map(Vec::as_slice).unwrap_or_default();
        let chart = sparkline(values, width.saturating_sub(BESIDE), 100.0);
        Line::from(format!("{node:<20} {rank:>4} {busy:>5} {memory:>9} {power:>6} {chart}"))
    };
    let mut lines: Vec<Line<'static>> = all.clone().take(GPUS).map(line).collect();
    let more = all.count().saturating_sub(GPUS);
    if more > 0 {
        lines.push(Line::from(format!("and {more} more; gangline metrics shows all")).dim());
    }
    if lines.is_empty() {
        lines.push(Line::from("no readings").dim());
    }
    lines
}

/// The last lines that fit.
fn tail(frame: &mut Frame, area: Rect, title: &'static str, lines: Vec<String>) {
    let room = usize::from(area.height).saturating_sub(1);
    let from = lines.len().saturating_sub(room);
    let shown: Vec<Line<'static>> = lines.into_iter().skip(from).map(Line::from).collect();
    frame.render_widget(Paragraph::new(shown).block(Block::new().title(title.bold())), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::drawn;
    use crate::watch::state::tests::watched;

    fn shown(state: &State, width: u16, height: u16) -> String {
        drawn(width, height, |frame| draw(frame, state))
    }

    #[test]
    fn a_training_that_has_stalled() {
        let mut state = watched();
        let text = shown(&state, 120, 24);
        for part in [
            "j-1  ppo  RUNNING  attempt 2",
            "stalled since 2099-01-01",
            "critic/score/mean  2",
            "gpu-1                   0   90%   2.0 GiB   690W",
            "step:4 - critic/score/mean:2",
            "no step after 4",
            "q quit",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        state.job.stalled = None;
        let text = shown(&state, 120, 24);
        assert!(text.contains("step 4/10 · 44 s a step · the last 4m10s ago"), "{text}");
    }

    #[test]
    fn any_size_and_nothing_known() {
        for (width, height) in [(1, 1), (5, 3), (20, 6), (200, 60)] {
            shown(&watched(), width, height);
            shown(&State::default(), width, height);
        }
    }
}
