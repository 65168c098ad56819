//! `watch`: how a training goes, live: a screen of its own on a terminal, a line for each change
//! elsewhere.

use std::io::IsTerminal;

use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::attached::{detached, or_ctrl_c, result_of};
use super::top::{Input, Keys, Raw};
use super::{find_job, steps};
use crate::args::Show;
use crate::client::Client;
use crate::durations::local;
use crate::errors::{CliError, exit};
use crate::output::Screen;
use crate::terminal::clean;
use crate::view::Job;
use crate::watch::draw::draw;
use crate::watch::feed::{self, Feed};
use crate::watch::state::{Action, Look, News, State};

/// Watch a job: until `q` on a terminal, elsewhere until it has ended.
pub(super) async fn run(client: &Client, args: &Show, screen: &Screen) -> Result<u8, CliError> {
    let (_, job) = find_job(client, &args.job).await?;
    let (choose, metric) = watch::channel(None);
    let (sender, news) = mpsc::channel(feed::WAITING);
    let feed = Feed::default().run(client, &job.id, metric, sender);
    if screen.is_terminal() && std::io::stdin().is_terminal() && !screen.is_json() {
        return full_screen(feed, news, &choose, screen).await;
    }
    let printed = async {
        tokio::pin!(feed);
        let (mut news, mut lines) = (news, Lines::default());
        loop {
            let one = tokio::select! {
                biased;
                Some(one) = news.recv() => one,
                refusal = &mut feed => return refusal.map(|()| exit::JOB_NOT_FINISHED),
            };
            match one {
                News::Lost(why) => screen.hint(&format!("{why}; the job goes on, trying again")),
                News::Look(look) => {
                    lines.print(&look, screen)?;
                    if look.job.is_over() {
                        return Ok(result_of(&look.job, false));
                    }
                }
            }
        }
    };
    let done = or_ctrl_c(printed).await?;
    Ok(done.unwrap_or_else(|| detached(std::slice::from_ref(&job.id), screen)))
}

/// What was printed before.
#[derive(Default)]
struct Lines {
    /// State, step and whether it has stalled.
    said: Option<(String, Option<u64>, bool)>,
    /// Changes of the job.
    events: usize,
}

impl Lines {
    fn print(&mut self, look: &Look, screen: &Screen) -> Result<(), CliError> {
        let job = &look.job;
        // A history that was cut at its beginning is one of many changes; then none is repeated.
        for event in job.history.iter().skip(self.events) {
            let text = format!("{}  {}  {}", local(&event.time), event.state, event.text);
            if screen.is_json() {
                screen.json_line(&json!({"event": {"time": event.time, "state": event.state,
                    "actor": event.actor, "text": event.text}}))?;
            } else {
                screen.line(&clean(&text))?;
            }
        }
        self.events = job.history.len();
        let step = job.progress.as_ref().map(|progress| progress.step);
        let now = (job.state.clone(), step, job.stalled.is_some());
        if self.said.as_ref() == Some(&now) {
            return Ok(());
        }
        self.said = Some(now);
        let newest = newest(look);
        if screen.is_json() {
            return screen.json_line(&line_of(job, newest));
        }
        let mut parts = vec![job.state.clone()];
        if let Some(progress) = &job.progress {
            parts.push(format!("step {}", progress.steps()));
            parts.extend(newest.map(|(name, value)| format!("{name} {}", steps::number(value))));
            parts.extend(progress.pace());
        }
        parts.extend(job.stalled.iter().map(|since| format!("stalled since {}", local(since))));
        screen.line(&clean(&parts.join(" · ")))
    }
}

/// The metric that is shown first, and its newest value.
fn newest(look: &Look) -> Option<(&str, f64)> {
    let series = look.series.as_ref()?;
    let (name, values) = series.values.iter().next()?;
    Some((name, values.iter().flatten().last().copied()?))
}

fn line_of(job: &Job, newest: Option<(&str, f64)>) -> Value {
    let progress = job.progress.as_ref().map(|progress| {
        json!({"step": progress.step, "total": progress.total, "step_time_s": progress.step_time_s,
            "last_step_age_s": progress.last_step_age_s, "eta_s": progress.eta_s})
    });
    let metric = newest.map(|(name, value)| json!({"name": name, "value": value}));
    json!({"job": job.id, "state": job.state, "progress": progress, "metric": metric,
        "stalled": job.stalled})
}

async fn full_screen(
    feed: impl Future<Output = Result<(), CliError>>,
    mut news: mpsc::Receiver<News>,
    choose: &watch::Sender<Option<String>>,
    screen: &Screen,
) -> Result<u8, CliError> {
    tokio::pin!(feed);
    let mut state = State::default();
    let on = |kind| signal(kind).map_err(|error| CliError::io("cannot wait for signals", &error));
    let (mut terminate, mut hangup) = (on(SignalKind::terminate())?, on(SignalKind::hangup())?);
    let mut terminal = Raw::take()?;
    let mut keys = Keys::read();
    let code = |state: &State| match state.job.is_over() {
        true => result_of(&state.job, false),
        false => exit::JOB_NOT_FINISHED,
    };
    loop {
        let drawn = terminal.0.draw(|frame| draw(frame, &state));
        drawn.map_err(|error| CliError::io("cannot draw", &error))?;
        tokio::select! {
            biased;
            key = keys.events.recv() => match key {
                None | Some(Input::Closed) => return Ok(code(&state)),
                Some(Input::Resized) => {}
                Some(Input::Key(key)) => match state.press(key) {
                    Action::Quit => return Ok(code(&state)),
                    Action::Interrupt if !state.job.is_over() => {
                        drop(terminal);
                        return Ok(detached(std::slice::from_ref(&state.job.id), screen));
                    }
                    Action::Interrupt => return Ok(code(&state)),
                    Action::Metric(name) => {
                        choose.send_replace(Some(name));
                    }
                    Action::Nothing => {}
                },
            },
            _ = terminate.recv() => return Ok(code(&state)),
            _ = hangup.recv() => return Ok(code(&state)),
            Some(one) = news.recv() => state.take(one),
            refusal = &mut feed => {
                drop(terminal);
                return refusal.map(|()| code(&state));
            }
        }
    }
}
