//! How the screen of `top` looks. Everything that others wrote is cleaned on its way in.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};

use super::state::{JobRow, Load, Page, State, Trail};
use crate::commands::{bytes, node};
use crate::sparkline::sparkline;
use crate::terminal::clean;
use crate::view::{Gpu, Node};

/// Width of a bar, in characters.
const BAR: usize = 10;
/// Temperature from which on it is marked.
const HOT_C: f64 = 85.0;

const KEYS: &str = "arrows move · enter in · esc back · tab nodes/jobs · s sort · r reverse · p pool · / search · ? help · q quit";

const HELP: &[&str] = &[
    "up down, j k       select a line        pgup pgdn, home end, g G",
    "enter, right, l    node, then GPU       on a job: its nodes",
    "esc, left, h       back; on the first page the filters go",
    "tab                nodes or jobs: who uses what",
    "s, r               next column to sort by, reverse",
    "p                  next pool, then all of them",
    "/                  search in names of nodes, jobs and users",
    "q, Ctrl-C          quit",
];

/// Draws everything that `state` shows.
pub fn draw(frame: &mut Frame, state: &State) {
    let rows = [Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Paragraph::new(header(state)), head);
    match state.page() {
        Page::Nodes => nodes(frame, body, state),
        Page::Jobs => jobs(frame, body, state),
        Page::Node(id) => one_node(frame, body, state, id),
        Page::Gpu(id, uuid) => one_gpu(frame, body, state, id, uuid),
    }
    frame.render_widget(Paragraph::new(footer(state)), foot);
    if state.help {
        help(frame, body);
    }
}

/// What the whole fleet does, and what limits the page.
fn header(state: &State) -> Vec<Line<'static>> {
    let all = state.all_nodes();
    let samples = all.iter().flat_map(|node| &node.gpus).filter_map(|gpu| gpu.sample.as_ref());
    let load = Load::of(samples);
    let mut first = node::summary(all);
    if let Some(busy) = load.busy_pct {
        first.push_str(&format!(", mean {busy:.0} % busy"));
    }
    if let Some(power) = load.power_w {
        first.push_str(&format!(", {}", node::watts(power)));
    }
    let mut limits = vec![format!("sorted by {}", state.sort.word())];
    if state.reversed {
        limits.push("reversed".to_owned());
    }
    let named = [("pool", &state.pool), ("user", &state.user), ("job", &state.job)];
    for (what, value) in named {
        limits.extend(value.as_ref().map(|value| format!("{what} {}", clean(value))));
    }
    if !state.search.is_empty() {
        limits.push(format!("with `{}`", clean(&state.search)));
    }
    vec![Line::from(first).bold(), Line::from(limits.join(" · ")).dim()]
}

fn footer(state: &State) -> Line<'static> {
    if state.searching {
        return Line::from(format!("/{}▏", clean(&state.search)));
    }
    if let Some(lost) = &state.lost {
        return Line::from(format!("{lost}; trying again")).fg(Color::Red);
    }
    if state.missed > 0 {
        let missed = format!("{} events came too fast for this screen · {KEYS}", state.missed);
        return Line::from(missed).fg(Color::Yellow);
    }
    Line::from(KEYS).dim()
}

fn help(frame: &mut Frame, area: Rect) {
    let width = u16::try_from(HELP.iter().map(|line| line.len()).max().unwrap_or(0) + 4);
    let height = u16::try_from(HELP.len() + 2);
    let (width, height) = (width.unwrap_or(u16::MAX), height.unwrap_or(u16::MAX));
    let area = Rect {
        x: area.x + area.width.saturating_sub(width) / 2,
        y: area.y + area.height.saturating_sub(height) / 2,
        width: width.min(area.width),
        height: height.min(area.height),
    };
    let lines: Vec<Line> = HELP.iter().map(|line| Line::from(format!(" {line}"))).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), area);
}

fn table(
    frame: &mut Frame,
    area: Rect,
    titles: &[&'static str],
    rows: Vec<Row<'_>>,
    widths: &[Constraint],
    selected: usize,
) {
    let titles = Row::new(titles.iter().map(|title| Cell::from(*title))).dim();
    let table = Table::new(rows, widths.iter().copied())
        .header(titles)
        .column_spacing(2)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut at = TableState::default().with_selected(Some(selected));
    frame.render_stateful_widget(table, area, &mut at);
}

/// A width that fits the longest of `texts`, and `title`.
fn fit<'a>(title: &str, texts: impl Iterator<Item = &'a str>) -> Constraint {
    let longest = texts.map(crate::table::width).max().unwrap_or(0);
    let width = longest.max(crate::table::width(title)).min(40);
    Constraint::Length(u16::try_from(width).unwrap_or(40))
}

fn nodes(frame: &mut Frame, area: Rect, state: &State) {
    let shown = state.nodes();
    let rows = shown.iter().map(|node| node_row(state, node)).collect();
    let titles = [
        "NODE",
        "STATE",
        "POOL",
        "GPUS",
        "USED",
        "BUSY",
        "MEM",
        "TEMP",
        "POWER",
        "NET",
        "LAST",
        "JOBS (USERS)",
    ];
    let pools = shown.iter().filter_map(|node| node.pool.as_deref());
    let widths = [
        fit("NODE", shown.iter().map(|node| node.name.as_str())),
        fit("STATE", shown.iter().map(|node| node.state.as_str())),
        fit("POOL", pools),
        Constraint::Length(4),
        Constraint::Length(4),
        Constraint::Length(BAR as u16 + 5),
        Constraint::Length(4),
        Constraint::Length(4),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Min(10),
    ];
    table(frame, area, &titles, rows, &widths, state.selected());
}

fn node_row<'a>(state: &State, node: &Node) -> Row<'a> {
    let load = Load::of(node.gpus.iter().filter_map(|gpu| gpu.sample.as_ref()));
    let host = node.host.as_ref();
    let rates = host.and_then(|host| {
        let rdma = host.rdma_bytes_per_s;
        rdma.into_iter().chain(host.network_bytes_per_s).reduce(|a, b| a + b)
    });
    let why = node::reason(node);
    let who = state.who(node);
    let last = if why.is_empty() { who } else { format!("{who}  {why}").trim().to_owned() };
    let number = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |n| n.to_string());
    Row::new([
        Cell::from(clean(&node.name)),
        Cell::from(state_span(&node.state)),
        Cell::from(clean(node.pool.as_deref().unwrap_or("-"))),
        Cell::from(number(node.gpus_total)),
        Cell::from(number(node.gpus_in_use)),
        Cell::from(bar_line(load.busy_pct)),
        Cell::from(share(load.memory)),
        Cell::from(degrees(load.hottest_c)),
        Cell::from(load.power_w.map_or_else(|| "-".to_owned(), node::watts)),
        Cell::from(rates.map_or_else(|| "-".to_owned(), rate)),
        Cell::from(node::last_word(node)),
        Cell::from(clean(&last)),
    ])
}

fn jobs(frame: &mut Frame, area: Rect, state: &State) {
    let shown = state.job_rows();
    let rows = shown.iter().map(job_row).collect();
    let titles = ["JOB", "NAME", "USER", "NODES", "GPUS", "BUSY", "MEM", "TEMP", "POWER"];
    let widths = [
        fit("JOB", shown.iter().map(|row| row.id.as_str()).chain(["(others)"])),
        fit("NAME", shown.iter().map(|row| row.name.as_str())),
        fit("USER", shown.iter().map(|row| row.user.as_str())),
        Constraint::Length(5),
        Constraint::Length(4),
        Constraint::Length(BAR as u16 + 5),
        Constraint::Length(4),
        Constraint::Length(4),
        Constraint::Length(6),
    ];
    table(frame, area, &titles, rows, &widths, state.selected());
}

fn job_row<'a>(row: &JobRow) -> Row<'a> {
    // What is not this user's to see is in use all the same.
    let hidden = row.id.is_empty();
    let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { clean(text) };
    Row::new([
        Cell::from(if hidden { "(others)".to_owned() } else { clean(&row.id) }),
        Cell::from(dash(&row.name)),
        Cell::from(dash(&row.user)),
        Cell::from(if hidden { "-".to_owned() } else { row.nodes.to_string() }),
        Cell::from(row.load.gpus.to_string()),
        Cell::from(bar_line(row.load.busy_pct)),
        Cell::from(share(row.load.memory)),
        Cell::from(degrees(row.load.hottest_c)),
        Cell::from(row.load.power_w.map_or_else(|| "-".to_owned(), node::watts)),
    ])
}

fn one_node(frame: &mut Frame, area: Rect, state: &State, id: &str) {
    let Some(node) = state.node(id) else {
        frame.render_widget(Paragraph::new("This node is gone; esc goes back."), area);
        return;
    };
    let mut lines = vec![Line::from(vec![
        Span::from(clean(&node.name)).bold(),
        Span::from("  "),
        state_span(&node.state),
        Span::from(format!(
            "  {}  last word {} ago",
            clean(&node::reason(node)),
            node::last_word(node)
        )),
    ])];
    lines.extend(node.host.as_ref().map(|host| Line::from(node::host_line(host))));
    for condition in &node.conditions {
        lines.push(Line::from(clean(&node::condition_line(condition))).fg(Color::Yellow));
    }
    let about = u16::try_from(lines.len() + 1).unwrap_or(2);
    let [top, rest] = Layout::vertical([Constraint::Length(about), Constraint::Min(1)]).areas(area);
    frame.render_widget(Paragraph::new(lines), top);
    let rows = node.gpus.iter().map(|gpu| gpu_row(state, gpu)).collect();
    let titles =
        ["GPU", "MODEL", "BUSY", "MEMORY", "TEMP", "POWER", "SM", "TENSOR", "NVLINK", "JOB"];
    let widths = [
        Constraint::Length(3),
        fit("MODEL", node.gpus.iter().map(|gpu| gpu.name.as_str())),
        Constraint::Length(BAR as u16 + 5),
        Constraint::Length(21),
        Constraint::Length(4),
        Constraint::Length(6),
        Constraint::Length(4),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Min(8),
    ];
    table(frame, rest, &titles, rows, &widths, state.selected());
}

/// Who has a GPU: the job and its user, "in use", or nothing.
fn owner(state: &State, gpu: &Gpu) -> String {
    match &gpu.job {
        Some(job) => match state.job_of(job) {
            Some(known) => format!("{} ({})", clean(job), clean(&known.user)),
            None => clean(job),
        },
        None if gpu.in_use == Some(true) => "in use".to_owned(),
        None => "-".to_owned(),
    }
}

fn gpu_row<'a>(state: &State, gpu: &Gpu) -> Row<'a> {
    let sample = gpu.sample.as_ref();
    let of =
        |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{:.0}%", v * 100.0));
    Row::new([
        Cell::from(gpu.index.map_or_else(|| "-".to_owned(), |index| index.to_string())),
        Cell::from(clean(&gpu.name)),
        Cell::from(bar_line(sample.and_then(|s| s.utilization_pct))),
        Cell::from(memory(gpu)),
        Cell::from(degrees(sample.and_then(|s| s.temperature_c))),
        Cell::from(sample.and_then(|s| s.power_w).map_or_else(|| "-".to_owned(), node::watts)),
        Cell::from(of(sample.and_then(|s| s.sm_active))),
        Cell::from(of(sample.and_then(|s| s.tensor_active))),
        Cell::from(sample.and_then(|s| s.nvlink_bytes_per_s).map_or_else(|| "-".to_owned(), rate)),
        Cell::from(owner(state, gpu)),
    ])
}

fn memory(gpu: &Gpu) -> String {
    let sample = gpu.sample.as_ref();
    let used = sample.and_then(|sample| sample.memory_used_bytes);
    let total = sample.and_then(|sample| sample.memory_total_bytes).or(gpu.memory_bytes);
    let text = |size: Option<u64>| size.map_or_else(|| "-".to_owned(), bytes);
    format!("{} of {}", text(used), text(total))
}

fn one_gpu(frame: &mut Frame, area: Rect, state: &State, id: &str, uuid: &str) {
    let node = state.node(id);
    let Some(gpu) = node.and_then(|node| node.gpus.iter().find(|gpu| gpu.uuid == uuid)) else {
        frame.render_widget(Paragraph::new("This GPU is gone; esc goes back."), area);
        return;
    };
    let sample = gpu.sample.as_ref();
    let name = node.map(|node| clean(&node.name)).unwrap_or_default();
    let index = gpu.index.map_or_else(|| "-".to_owned(), |index| index.to_string());
    let mut lines = vec![
        Line::from(format!("{name}  GPU {index}  {}  {}", clean(&gpu.name), clean(uuid))).bold(),
        Line::from(format!("used by {}", owner(state, gpu))),
        Line::from(""),
    ];
    let width = usize::from(area.width).saturating_sub(34);
    let empty = Trail::default();
    let trail = state.trail(uuid).unwrap_or(&empty);
    let total = sample.and_then(|s| s.memory_total_bytes).or(gpu.memory_bytes);
    let limit = sample.and_then(|s| s.power_limit_w);
    let of = |values: &VecDeque<Option<f64>>, top: Option<f64>| {
        let values: Vec<Option<f64>> = values.iter().copied().collect();
        let highest = values.iter().flatten().copied().fold(1.0, f64::max);
        sparkline(&values, width, top.unwrap_or(highest))
    };
    let dash = || "-".to_owned();
    let charts = [
        (
            "busy",
            share(sample.and_then(|s| s.utilization_pct).map(|b| b / 100.0)),
            of(&trail.busy, Some(100.0)),
        ),
        ("memory", memory(gpu), of(&trail.memory, total.map(|total| total as f64))),
        (
            "power",
            sample.and_then(|s| s.power_w).map_or_else(dash, node::watts),
            of(&trail.power, limit),
        ),
        (
            "temperature",
            degrees(sample.and_then(|s| s.temperature_c)).to_string(),
            of(&trail.temperature, Some(100.0)),
        ),
    ];
    for (what, now, chart) in charts {
        lines.push(Line::from(format!("{what:<11} {now:<21} {chart}")));
    }
    if let Some(clock) = sample.and_then(|s| s.sm_clock_mhz) {
        lines.push(Line::from(format!("{:<11} {clock:.0} MHz", "SM clock")));
    }
    lines.push(Line::from("").dim());
    lines.push(Line::from("the last two minutes").dim());
    frame.render_widget(Paragraph::new(lines), area);
}

/// `██████▌    58%`.
fn bar_line(percent: Option<f64>) -> Line<'static> {
    let Some(percent) = percent else { return Line::from("-") };
    let eighths = (percent.clamp(0.0, 100.0) / 100.0 * (BAR * 8) as f64).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    bar.push_str(part.get(eighths % 8).copied().unwrap_or_default());
    let pad = BAR.saturating_sub(crate::table::width(&bar));
    let color = if percent >= 50.0 { Color::Green } else { Color::Cyan };
    let number = Span::from(format!("{:pad$} {percent:3.0}%", ""));
    Line::from(vec![Span::from(bar).fg(color), number])
}

fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0))
}

fn degrees(celsius: Option<f64>) -> Span<'static> {
    match celsius {
        None => Span::from("-"),
        Some(celsius) if celsius >= HOT_C => Span::from(format!("{celsius:.0}")).fg(Color::Red),
        Some(celsius) => Span::from(format!("{celsius:.0}")),
    }
}

/// `1.5 GB/s`, as links are sold.
pub fn rate(bytes_per_s: f64) -> String {
    let (mut value, mut unit) = (bytes_per_s, "B/s");
    for larger in ["kB/s", "MB/s", "GB/s", "TB/s"] {
        if value < 1000.0 {
            break;
        }
        (value, unit) = (value / 1000.0, larger);
    }
    if value < 10.0 && unit != "B/s" {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

fn state_span(state: &str) -> Span<'static> {
    let color = match state {
        "ready" => Color::Green,
        "busy" | "mixed" => Color::Cyan,
        "suspect" | "draining" | "drained" | "cordoned" => Color::Yellow,
        "lost" | "revoked" => Color::Red,
        _ => return Span::from(clean(state)),
    };
    Span::from(clean(state)).fg(color)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::drawn;
    use crate::top::state::tests::fleet;
    use crate::top::state::{Key, News, Sample};

    /// What a terminal of this size shows.
    fn shown(state: &State, width: u16, height: u16) -> String {
        drawn(width, height, |frame| draw(frame, state))
    }

    #[test]
    fn the_cluster() {
        insta::assert_snapshot!(shown(&fleet(), 130, 7));
    }

    #[test]
    fn who_uses_what() {
        let mut state = fleet();
        state.press(Key::Tab);
        insta::assert_snapshot!(shown(&state, 100, 6));
    }

    #[test]
    fn a_node_and_a_gpu() {
        let mut state = fleet();
        state.press(Key::Enter);
        let sample: Sample = serde_json::from_value(serde_json::json!({
            "node": "n-gpu-1",
            "host": {"cpu_busy_pct": 12.5, "load1": 3.5, "memory_used_bytes": 1_u64 << 36,
                "network_bytes_per_s": 1_500_000, "rdma_bytes_per_s": 48_000_000_000_u64},
            "gpus": [
                {"uuid": "GPU-gpu-1-0", "utilization_pct": 97, "memory_used_bytes": 75_u64 << 30,
                 "temperature_c": 88, "power_w": 690.5, "sm_clock_mhz": 1980, "sm_active": 0.91,
                 "tensor_active": 0.47, "nvlink_bytes_per_s": 210_000_000_000_u64},
                {"uuid": "GPU-gpu-1-1", "utilization_pct": 3},
            ],
        }))
        .unwrap();
        for _ in 0..30 {
            state.take(News::Sample(Box::new(sample.clone())));
        }
        insta::assert_snapshot!("node", shown(&state, 130, 9));
        state.press(Key::Enter);
        insta::assert_snapshot!("gpu", shown(&state, 90, 12));
    }

    #[test]
    fn a_small_terminal_loses_columns_and_no_more() {
        let mut state = fleet();
        state.take(News::Lost("cannot reach the coordinator".to_owned()));
        for (width, height) in [(1, 1), (3, 2), (20, 4), (40, 3)] {
            shown(&state, width, height);
        }
        state.press(Key::Char('?'));
        for (width, height) in [(1, 1), (10, 5), (200, 50)] {
            shown(&state, width, height);
        }
        let text = shown(&state, 60, 12);
        assert!(text.contains("keys") && text.contains("trying again"), "{text}");
    }

    #[test]
    fn names_cannot_drive_the_terminal() {
        let mut state = State::new(None, None);
        let bad = "x\u{1b}[2J\u{9b}31my\u{202e}\nz";
        let node = crate::view::read(&serde_json::json!({
            "id": "n", "name": bad, "state": bad, "pool": bad, "jobs": [bad],
            "cordon": {"by": bad, "why": bad},
            "gpus": [{"uuid": "GPU", "name": bad, "job": bad}],
            "conditions": [{"rule": bad, "component": bad, "reason": bad}],
        }));
        state.take(News::All(vec![node.unwrap()], Vec::new()));
        for _ in 0..3 {
            let text = shown(&state, 120, 12);
            let bad = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
            assert!(!text.contains(bad), "{text:?}");
            state.press(Key::Enter);
        }
    }

    #[test]
    fn rates_have_the_units_of_links() {
        let cases = [(0.0, "0 B/s"), (999.0, "999 B/s"), (1500.0, "1.5 kB/s"), (4.8e10, "48 GB/s")];
        for (value, text) in cases {
            assert_eq!(rate(value), text);
        }
    }
}
