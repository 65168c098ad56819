//! What `gangline watch` knows of its job, and what keys do.

use std::collections::VecDeque;

use crate::top::state::Key;
use crate::view::{Job, JobMetrics, JobSeries};

/// Lines of the log that are kept.
const LINES: usize = 500;
/// Longest part of a line that is kept, in characters.
const WIDEST: usize = 1000;
/// Metrics that people look at first, by the end of their names.
const FIRST: [&str; 6] =
    ["critic/score/mean", "reward/mean", "reward", "train/loss", "loss", "pg_loss"];

/// One look at the job.
#[derive(Clone, Debug, Default)]
pub struct Look {
    pub job: Job,
    /// With the values of one metric, when the steps are news.
    pub series: Option<JobSeries>,
    pub metrics: Option<JobMetrics>,
    /// What the log has got since the look before, cleaned, without line ends at its end.
    pub log: Vec<String>,
}

/// What the screen is told.
#[derive(Debug)]
pub enum News {
    Look(Box<Look>),
    /// The coordinator cannot be asked; it is tried again.
    Lost(String),
}

/// What the program has to do after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Quit,
    Interrupt,
    /// Another metric is to be fetched.
    Metric(String),
}

/// Everything that is shown.
#[derive(Debug, Default)]
pub struct State {
    pub job: Job,
    pub series: JobSeries,
    pub metrics: JobMetrics,
    pub log: VecDeque<String>,
    /// The metric of the curve.
    pub metric: Option<String>,
    pub lost: Option<String>,
}

impl State {
    pub fn take(&mut self, news: News) {
        let look = match news {
            News::Lost(why) => {
                self.lost = Some(why);
                return;
            }
            News::Look(look) => *look,
        };
        self.lost = None;
        self.job = look.job;
        if let Some(series) = look.series {
            self.metric = self.metric.take().or_else(|| first(&series.names));
            self.series = series;
        }
        self.metrics = look.metrics.unwrap_or_default();
        self.log.extend(look.log.into_iter().map(|line| line.chars().take(WIDEST).collect()));
        let over = self.log.len().saturating_sub(LINES);
        self.log.drain(..over);
    }

    pub fn press(&mut self, key: Key) -> Action {
        match key {
            Key::Interrupt => Action::Interrupt,
            Key::Char('q') | Key::Back => Action::Quit,
            Key::Char('m') | Key::Tab | Key::Down | Key::Char('j') => self.turn(1),
            Key::Up | Key::Char('k') => self.turn(self.series.names.len().saturating_sub(1)),
            _ => Action::Nothing,
        }
    }

    /// Goes on by so many metrics.
    fn turn(&mut self, by: usize) -> Action {
        let names = &self.series.names;
        let at = names.iter().position(|name| Some(name) == self.metric.as_ref());
        let next = at.map_or(0, |at| (at + by) % names.len().max(1));
        let Some(name) = names.get(next).cloned() else { return Action::Nothing };
        self.metric = Some(name.clone());
        Action::Metric(name)
    }

    /// The points of the curve.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let values = self.metric.as_ref().and_then(|name| self.series.values.get(name));
        let points = self.series.steps.iter().zip(values.into_iter().flatten());
        points.filter_map(|(step, value)| Some((*step as f64, (*value)?))).collect()
    }
}

/// The metric that is shown first.
pub fn first(names: &[String]) -> Option<String> {
    let by_end = |end: &&str| names.iter().find(|name| name.ends_with(*end));
    FIRST.iter().find_map(by_end).or_else(|| names.first()).cloned()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::view;
    use serde_json::json;

    /// A training of two GPUs that has stalled.
    pub fn watched() -> State {
        let job = json!({"id": "j-1", "name": "ppo", "state": "RUNNING", "attempts": 2,
            "stalled": "2099-01-01T00:00:00Z",
            "progress": {"step": 4, "total": 10, "step_time_s": 44.42, "last_step_age_s": 250, "eta_s": 266},
            "history": [{"time": "2099-01-01T00:00:00Z", "state": "RUNNING", "actor": "gangline", "text": "no step after 4"}]});
        let series = json!({"names": ["actor/pg_loss", "critic/score/mean"], "steps": [1, 2, 3, 4],
            "values": {"critic/score/mean": [0.0, null, 1.0, 2.0]}});
        let metrics = json!({"members": [{"name": "gpu-1", "member": "0", "time_ms": [1, 2],
            "gpus": [{"uuid": "GPU-1", "series": {"utilization_pct": [10.0, 90.0], "power_w": [300.0, 690.0],
                "memory_used_bytes": [1 << 30, 1_u64 << 31]}}]}]});
        let look = Look {
            job: view::read(&job).unwrap(),
            series: Some(view::read_series(&series).unwrap()),
            metrics: Some(view::read_series(&metrics).unwrap()),
            log: vec!["step:4 - critic/score/mean:2".to_owned()],
        };
        let mut state = State::default();
        state.take(News::Look(Box::new(look)));
        state
    }

    #[test]
    fn the_reward_comes_first_and_keys_go_through_the_metrics() {
        let mut state = watched();
        assert_eq!(state.metric.as_deref(), Some("critic/score/mean"));
        assert_eq!(state.curve(), [(1.0, 0.0), (3.0, 1.0), (4.0, 2.0)]);
        assert_eq!(state.press(Key::Tab), Action::Metric("actor/pg_loss".to_owned()));
        assert_eq!(state.curve(), [], "its values are on their way");
        assert_eq!(state.press(Key::Up), Action::Metric("critic/score/mean".to_owned()));
        assert_eq!(state.press(Key::Char('q')), Action::Quit);
        assert_eq!(State::default().press(Key::Tab), Action::Nothing);
    }

    #[test]
    fn the_log_is_bounded() {
        let mut state = watched();
        for _ in 0..3 {
            let log = vec!["x".repeat(5000); LINES];
            state.take(News::Look(Box::new(Look { log, ..Look::default() })));
        }
        assert_eq!(state.log.len(), LINES);
        assert!(state.log.iter().all(|line| line.len() == WIDEST));
    }
}
