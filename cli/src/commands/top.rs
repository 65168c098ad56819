//! `top`: what nodes and GPUs do now, and who uses them: a screen of its own on a terminal, a plain
//! snapshot elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::node::{fetch, summary, table, watch, watts};
use super::{bytes, count, items, or_dash};
use crate::args::Top;
use crate::client::Client;
use crate::errors::{CliError, exit};
use crate::output::{Format, Screen};
use crate::table::Table;
use crate::top::draw::draw;
use crate::top::feed;
use crate::top::state::{Action, Key, News, State};
use crate::view::Node;

/// The screen is drawn no more often than this, however much is new.
const FRAME: Duration = Duration::from_millis(50);
/// How often the reader of keys looks whether it is still wanted.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// Keys that wait.
const KEYS: usize = 64;
/// News that are taken between two looks at the keys.
const AT_ONCE: usize = 1024;

/// Show nodes and GPUs: on a terminal until `q`; elsewhere once, or as JSON lines until Ctrl-C.
pub(super) async fn run(client: &Client, args: &Top, screen: &Screen) -> Result<u8, CliError> {
    let can_draw = screen.is_terminal() && std::io::stdin().is_terminal() && !screen.is_json();
    if can_draw && !args.once && screen.format() != Format::Name {
        return full_screen(client, args).await;
    }
    if screen.is_json() && !args.once {
        return watch(client, args.pool.as_deref(), screen).await;
    }
    let (answer, nodes) = fetch(client, args.pool.as_deref()).await?;
    let mut state = State::new(args.pool.clone(), args.user.clone());
    let jobs = match &args.user {
        Some(_) => feed::live_jobs(client).await?,
        None => Vec::new(),
    };
    state.take(News::All(nodes, jobs));
    let nodes: Vec<Node> = state.nodes().into_iter().cloned().collect();
    once(&answer, &nodes, screen)?;
    Ok(exit::OK)
}

fn once(answer: &Value, nodes: &[Node], screen: &Screen) -> Result<(), CliError> {
    let shown = |value: &&Value| {
        let id = value.get("id").and_then(Value::as_str);
        nodes.iter().any(|node| Some(node.id.as_str()) == id)
    };
    match screen.format() {
        Format::Json => {
            let list: Vec<&Value> = items(answer, "nodes").iter().filter(shown).collect();
            screen.json(&serde_json::json!({ "nodes": list }))
        }
        Format::Jsonl => {
            let mut list = items(answer, "nodes").iter().filter(shown);
            list.try_for_each(|node| screen.json_line(node))
        }
        Format::Name => nodes.iter().try_for_each(|node| screen.line(&node.name)),
        Format::Table | Format::Wide => screen.print(&text(nodes, screen)),
    }
}

fn text(nodes: &[Node], screen: &Screen) -> String {
    let mut out = format!("{}\n\n{}", summary(nodes), table(nodes, screen).take());
    if nodes.iter().any(|node| !node.gpus.is_empty()) {
        out.push_str(&format!("\n{}", gpu_table(nodes).take()));
    }
    out
}

/// The terminal as the screen has it; as it was before, once this is gone.
pub(super) struct Raw(pub(super) DefaultTerminal);

impl Raw {
    /// Takes the terminal. A panic gives it back before its message.
    pub(super) fn take() -> Result<Self, CliError> {
        // NO_COLOR is heeded below; `--color never` is ours.
        if anstream::AutoStream::choice(&std::io::stdout()) == anstream::ColorChoice::Never {
            ratatui::crossterm::style::force_color_output(false);
        }
        let error = |error| CliError::io("cannot take the terminal", &error);
        ratatui::try_init().map(Raw).map_err(error)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

async fn full_screen(client: &Client, args: &Top) -> Result<u8, CliError> {
    // A coordinator that cannot be asked is an error like any other, on a terminal as it was.
    fetch(client, args.pool.as_deref()).await?;
    let (sender, mut news) = mpsc::channel(feed::WAITING);
    let feed = feed::run(client, args.pool.as_deref(), sender);
    tokio::pin!(feed);
    let mut state = State::new(args.pool.clone(), args.user.clone());
    let on = |kind| signal(kind).map_err(|error| CliError::io("cannot wait for signals", &error));
    let (mut terminate, mut hangup) = (on(SignalKind::terminate())?, on(SignalKind::hangup())?);
    let mut terminal = Raw::take()?;
    let mut keys = Keys::read();
    let mut frames = tokio::time::interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    let mut changed = true;
    loop {
        tokio::select! {
            biased;
            key = keys.events.recv() => match key {
                None | Some(Input::Closed) => return Ok(exit::OK),
                Some(Input::Resized) => changed = true,
                Some(Input::Key(key)) => {
                    match state.press(key) {
                        Action::Quit => return Ok(exit::OK),
                        Action::Load(id) => {
                            // Without its past the chart begins now.
                            if let Ok(past) = feed::past(client, &id).await {
                                state.take(past);
                            }
                        }
                        Action::Nothing => {}
                    }
                    changed = true;
                }
            },
            _ = terminate.recv() => return Ok(exit::OK),
            _ = hangup.recv() => return Ok(exit::OK),
            _ = frames.tick() => {
                if std::mem::take(&mut changed) {
                    let drawn = terminal.0.draw(|frame| draw(frame, &state));
                    drawn.map_err(|error| CliError::io("cannot draw", &error))?;
                }
            }
            _ = seconds.tick() => {
                state.tick();
                changed = true;
            }
            Some(one) = news.recv() => {
                state.take(one);
                for _ in 0..AT_ONCE {
                    let Ok(one) = news.try_recv() else { break };
                    state.take(one);
                }
                changed = true;
            }
            refusal = &mut feed => {
                drop(terminal);
                return refusal.map(|()| exit::OK);
            }
        }
    }
}

/// What the terminal says.
pub(super) enum Input {
    Key(Key),
    Resized,
    /// There is no terminal any more.
    Closed,
}

/// The keys, read by a thread that ends with this.
pub(super) struct Keys {
    pub(super) events: mpsc::Receiver<Input>,
    wanted: Arc<AtomicBool>,
}

impl Keys {
    pub(super) fn read() -> Self {
        let (sender, events) = mpsc::channel(KEYS);
        let wanted = Arc::new(AtomicBool::new(true));
        let still = wanted.clone();
        std::thread::spawn(move || {
            while still.load(Ordering::Relaxed) {
                let input = match event::poll(KEY_WAIT) {
                    Ok(false) => continue,
                    Ok(true) => event::read().map_or(Some(Input::Closed), input),
                    Err(_) => Some(Input::Closed),
                };
                let Some(input) = input else { continue };
                let last = matches!(input, Input::Closed);
                if sender.blocking_send(input).is_err() || last {
                    return;
                }
            }
        });
        Keys { events, wanted }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.wanted.store(false, Ordering::Relaxed);
    }
}

fn input(event: Event) -> Option<Input> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => key_of(key).map(Input::Key),
        Event::Resize(..) => Some(Input::Resized),
        _ => None,
    }
}

fn key_of(key: KeyEvent) -> Option<Key> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Key::Interrupt);
    }
    Some(match key.code {
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::First,
        KeyCode::End => Key::Last,
        KeyCode::Enter | KeyCode::Right => Key::Enter,
        KeyCode::Esc | KeyCode::Left => Key::Back,
        KeyCode::Tab => Key::Tab,
        KeyCode::Backspace => Key::Erase,
        KeyCode::Char(c) => Key::Char(c),
        _ => return None,
    })
}

/// One row for each GPU of `nodes`.
pub(super) fn gpu_table(nodes: &[Node]) -> Table {
    let titles = &["NODE", "GPU", "MODEL", "BUSY%", "MEMORY", "TEMP", "POWER", "JOB", "UUID"];
    let mut table = Table::new(titles, None);
    for node in nodes {
        for gpu in &node.gpus {
            let sample = gpu.sample.as_ref();
            let total = sample.and_then(|sample| sample.memory_total_bytes).or(gpu.memory_bytes);
            let used = sample.and_then(|sample| sample.memory_used_bytes);
            let memory = match (used, total) {
                (Some(used), Some(total)) => Some(format!("{} of {}", bytes(used), bytes(total))),
                (None, Some(total)) => Some(format!("- of {}", bytes(total))),
                (used, None) => used.map(bytes),
            };
            // A job of another project is not named, but the GPU is in use.
            let hidden = gpu.in_use.filter(|used| *used).map(|_| "in use".to_owned());
            table.row(vec![
                node.name.clone(),
                count(gpu.index),
                or_dash(Some(gpu.name.clone())),
                or_dash(sample.and_then(|s| s.utilization_pct).map(|busy| format!("{busy:.0}"))),
                or_dash(memory),
                or_dash(sample.and_then(|s| s.temperature_c).map(|t| format!("{t:.0}"))),
                or_dash(sample.and_then(|s| s.power_w).map(watts)),
                or_dash(gpu.job.clone().or(hidden)),
                or_dash(Some(gpu.uuid.clone())),
            ]);
        }
    }
    table
}
