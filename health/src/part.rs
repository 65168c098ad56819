//! What the engine knows of one part of the node.

use std::collections::{BTreeMap, VecDeque};

use gangline_common::ids::JobId;

use crate::clock::At;
use crate::latch::{Bad, Latch};
use crate::port::Look;
use crate::reading::{Counter, Work};
use crate::rule::{DAY_MS, MINUTE_MS, Rule};
use crate::series::{Baseline, Events, Habit, LastMinute, Minutes, Series, Step};

/// Most counters that are followed on one part: 18 NVLinks have two each.
pub const MAX_SERIES: usize = 128;
/// Most Xids of the application tier that are remembered per GPU.
pub const MAX_APP_XIDS: usize = 64;

#[derive(Debug, Clone, Default)]
pub struct Part {
    pub latches: BTreeMap<Rule, Latch>,
    pub series: BTreeMap<Series, Baseline>,
    pub minutes: BTreeMap<Series, Minutes>,
    pub habits: BTreeMap<Counter, Habit>,
    /// Xids of the application tier: code, job, when.
    pub app_xids: VecDeque<(u32, JobId, u64)>,
    /// `link_downed`, and times that the port was down for a while and came back.
    pub link_downs: Events,
    pub outages: Events,
    pub retrainings: LastMinute,
    /// What the port was like at its last reading.
    pub look: Option<Look>,
    /// What a GPU did at its last reading, and when.
    pub work: Option<(Work, u64)>,
    pub facts: Facts,
    /// What somebody said cannot be seen, and why.
    pub blind: BTreeMap<Rule, String>,
    /// The last reading about it.
    pub seen: u64,
}

/// What was once seen, and is missed when it is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    pub was_active: bool,
    /// An operator does not mind that it differs from its siblings.
    pub stands_apart: bool,
    pub down_since: Option<u64>,
    pub most_links: u32,
    /// Since this engine began: a link was active, and when links were first looked at.
    pub links_were_up: bool,
    pub links_looked: Option<u64>,
    pub most_umad: u32,
    /// `uverbs*` that RDMA devices lack, and so many of them that an operator does not miss.
    pub few_uverbs: u32,
    pub spared_uverbs: u32,
    /// Since when a complete list has not had it.
    pub missing_since: Option<u64>,
}

impl Part {
    /// Whether the condition of a rule stands.
    pub fn stands(&self, rule: Rule) -> bool {
        self.latches.get(&rule).is_some_and(|latch| latch.raised.is_some())
    }

    /// One reading of a rule: `None` is absent, `Some(None)` good.
    pub fn check(&mut self, rule: Rule, reading: Option<Option<Bad>>, at: At) {
        let latch = self.latches.entry(rule).or_default();
        match reading {
            None => latch.absent = Some(at.ms),
            Some(bad) => {
                self.blind.remove(&rule);
                latch.judge(rule.row(), bad, at);
            }
        }
    }

    /// The rule is read here, and this reading says nothing yet: a rate needs two.
    pub fn touch(&mut self, rule: Rule) {
        self.latches.entry(rule).or_default();
    }

    pub fn event(&mut self, rule: Rule, bad: Bad, at: At) {
        self.latches.entry(rule).or_default().event(bad, at);
    }

    /// A good reading of a rule that only events raise: ends what was kept over a reboot.
    pub fn pass(&mut self, rule: Rule, at: At) {
        if let Some(latch) = self.latches.get_mut(&rule) {
            latch.judge(rule.row(), None, at);
        }
    }

    /// A counter's next value; `None` when it is absent, or there are too many.
    pub fn step(&mut self, series: Series, value: Option<u64>, at: At) -> Option<Step> {
        let value = value?;
        if let Some(baseline) = self.series.get_mut(&series) {
            return Some(baseline.step(value, at));
        }
        if self.series.len() >= MAX_SERIES {
            return None;
        }
        self.series.insert(series, Baseline::new(value, at.ms));
        Some(Step::First)
    }

    /// Growth per second of a counter that was just stepped.
    pub fn per_second(&mut self, series: Series) -> Option<f64> {
        self.series.get_mut(&series)?.per_second()
    }

    /// Counts into the minutes of `series`, and gives them.
    pub fn count(&mut self, series: Series, step: Step, at: At) -> &Minutes {
        let minutes = self.minutes.entry(series).or_default();
        if let Step::Grew { by, ms } = step {
            minutes.add(by, ms, at);
        }
        minutes
    }

    /// Whether nothing about it is worth keeping.
    pub fn has_conditions(&self) -> bool {
        self.latches.values().any(|latch| latch.raised.is_some())
    }

    /// A complete list has, or has not, this part. Whether it shall be forgotten: it has been gone for
    /// so long that it was removed or renamed, not merely unreadable.
    pub fn is_gone(&mut self, present: bool, at: At) -> bool {
        if present {
            self.facts.missing_since = None;
            return false;
        }
        let missing = at.since(*self.facts.missing_since.get_or_insert(at.ms));
        // What a person must end stays a day, so that somebody sees it.
        let kept = self.latches.iter().any(|(rule, latch)| latch.is_kept(rule.row()));
        missing >= if kept { DAY_MS } else { 10 * MINUTE_MS }
    }
}
