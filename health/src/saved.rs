//! What survives a restart of the agent: conditions, counters, histories. It is read back with care:
//! it comes from a file, maybe of another version.

use std::collections::{BTreeMap, VecDeque};

use gangline_common::ids::JobId;
use serde::{Deserialize, Serialize};

use crate::clock::At;
use crate::component::Component;
use crate::latch::{Bad, Latch, Raised};
use crate::part::{Facts, MAX_APP_XIDS, MAX_SERIES, Part};
use crate::reading::Counter;
use crate::rule::{Action, Level, Rule};
use crate::series::{Baseline, Events, Habit, MAX_EVENTS, MINUTES, Minutes, Series};
use crate::{MAX_PARTS, text};

/// Longest boot id that is kept.
const MAX_BOOT_ID: usize = 64;

/// How often the clock of the readings was not to be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Oddities {
    /// Readings whose clock lay before that of the reading before.
    pub went_back: u64,
    /// Readings whose clock lay more than an hour after that of the reading before.
    pub leapt: u64,
}

/// What of the clock is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SavedClock {
    pub ms: u64,
    pub boot_ms: u64,
    pub wall_ms: u64,
}

/// The engine between two runs of the agent. `Default` is an agent that never ran.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved {
    pub(crate) boot_id: Option<String>,
    pub(crate) clock: SavedClock,
    pub(crate) oddities: Oddities,
    nccl: Option<u64>,
    parts: Vec<SavedPart>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedPart {
    component: String,
    seen: u64,
    conditions: Vec<SavedCondition>,
    /// Name, value, when. Of ports, "counters" were what had grown since the agent began: as values of the
    /// counters themselves they would look like errors.
    #[serde(rename = "values")]
    counters: Vec<(String, u64, u64)>,
    minutes: Vec<(String, Vec<(u64, u64)>)>,
    /// Name, usual per minute in thousandths, minutes learnt.
    habits: Vec<(String, u64, u32)>,
    app_xids: Vec<(u32, String, u64)>,
    link_downs: Vec<u64>,
    outages: Vec<u64>,
    was_active: bool,
    stands_apart: bool,
    down_since: Option<u64>,
    most_links: u32,
    most_umad: u32,
    spared_uverbs: u32,
    missing_since: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedCondition {
    rule: String,
    level: String,
    action: String,
    reason: String,
    evidence: String,
    initializing: bool,
    since: (u64, u64),
    seen: (u64, u64),
    started_anew: bool,
    reasons: Vec<String>,
}

impl Saved {
    pub(crate) fn new(
        boot_id: Option<&str>,
        clock: SavedClock,
        oddities: Oddities,
        nccl: Option<u64>,
        parts: &BTreeMap<Component, Part>,
    ) -> Self {
        let boot_id = boot_id.map(|id| text::clean(id, MAX_BOOT_ID));
        let parts = parts.iter().map(|(component, part)| save(component, part)).collect();
        Saved { boot_id, clock, oddities, nccl, parts }
    }

    /// The parts, as far as they are understood. What a newer version has added is left out.
    pub(crate) fn parts(&self) -> BTreeMap<Component, Part> {
        let mut parts = BTreeMap::new();
        for saved in self.parts.iter().take(MAX_PARTS) {
            if let Ok(component) = saved.component.parse() {
                parts.insert(component, restore(saved, self.clock.ms));
            }
        }
        parts
    }

    pub(crate) fn nccl(&self) -> Option<u64> {
        self.nccl.map(|ms| ms.min(self.clock.ms))
    }
}

fn save(component: &Component, part: &Part) -> SavedPart {
    let conditions = part.latches.iter().filter_map(|(rule, latch)| {
        let raised = latch.raised.as_ref()?;
        Some(SavedCondition {
            rule: rule.id().to_owned(),
            level: raised.bad.level.word().to_owned(),
            action: raised.bad.action.word().to_owned(),
            reason: raised.bad.reason.clone(),
            evidence: raised.bad.evidence.clone(),
            initializing: raised.bad.initializing,
            since: (raised.since.ms, raised.since.wall_ms),
            seen: (raised.seen.ms, raised.seen.wall_ms),
            started_anew: raised.started_anew,
            reasons: raised.reasons.clone(),
        })
    });
    let minutes = part.minutes.iter().filter(|(_, minutes)| !minutes.sums.is_empty());
    SavedPart {
        component: component.to_string(),
        seen: part.seen,
        conditions: conditions.collect(),
        counters: part.series.iter().map(|(s, b)| (s.name(), b.value, b.at)).collect(),
        minutes: minutes.map(|(s, m)| (s.name(), m.sums.iter().copied().collect())).collect(),
        habits: part
            .habits
            .iter()
            .map(|(c, h)| (c.file().to_owned(), h.usual_thousandths(), h.learnt))
            .collect(),
        app_xids: part.app_xids.iter().map(|(c, j, at)| (*c, j.as_str().to_owned(), *at)).collect(),
        link_downs: part.link_downs.at.iter().copied().collect(),
        outages: part.outages.at.iter().copied().collect(),
        was_active: part.facts.was_active,
        stands_apart: part.facts.stands_apart,
        down_since: part.facts.down_since,
        most_links: part.facts.most_links,
        most_umad: part.facts.most_umad,
        spared_uverbs: part.facts.spared_uverbs,
        missing_since: part.facts.missing_since,
    }
}

/// `now` is when it was saved: nothing in it can be later.
fn restore(saved: &SavedPart, now: u64) -> Part {
    let mut part = Part { seen: saved.seen.min(now), ..Part::default() };
    for condition in saved.conditions.iter().take(Rule::ALL.len()) {
        if let Some((rule, raised)) = restore_condition(condition, now) {
            part.latches.insert(rule, Latch::restored(raised));
        }
    }
    for (name, value, at) in saved.counters.iter().take(MAX_SERIES) {
        if let Some(series) = Series::from_name(name) {
            part.series.insert(series, Baseline::new(*value, (*at).min(now)));
        }
    }
    for (name, sums) in saved.minutes.iter().take(MAX_SERIES) {
        if let Some(series) = Series::from_name(name) {
            let minute = now / crate::rule::MINUTE_MS;
            let mut sums: Vec<(u64, u64)> = sums
                .iter()
                .copied()
                .filter(|(then, _)| *then <= minute)
                .take(MINUTES as usize)
                .collect();
            sums.sort_unstable();
            sums.dedup_by_key(|(minute, _)| *minute);
            part.minutes.insert(series, Minutes { sums: sums.into() });
        }
    }
    for (name, usual, learnt) in saved.habits.iter().take(MAX_SERIES) {
        if let Some(counter) = Counter::from_file(name) {
            part.habits.insert(counter, Habit::restored(*usual, *learnt));
        }
    }
    for (code, job, at) in saved.app_xids.iter().take(MAX_APP_XIDS) {
        if let Ok(job) = JobId::new(job.as_str()) {
            part.app_xids.push_back((*code, job, (*at).min(now)));
        }
    }
    part.link_downs = events(&saved.link_downs, now);
    part.outages = events(&saved.outages, now);
    part.facts = Facts {
        was_active: saved.was_active,
        stands_apart: saved.stands_apart,
        down_since: saved.down_since.map(|ms| ms.min(now)),
        most_links: saved.most_links,
        links_were_up: false,
        links_looked: None,
        most_umad: saved.most_umad,
        few_uverbs: 0,
        spared_uverbs: saved.spared_uverbs,
        missing_since: saved.missing_since.map(|ms| ms.min(now)),
    };
    part
}

fn events(saved: &[u64], now: u64) -> Events {
    let at: VecDeque<u64> = saved.iter().take(MAX_EVENTS).map(|ms| (*ms).min(now)).collect();
    Events { at }
}

fn restore_condition(saved: &SavedCondition, now: u64) -> Option<(Rule, Raised)> {
    let rule = Rule::from_id(&saved.rule)?;
    let level = Level::from_word(&saved.level)?;
    let action = Action::from_word(&saved.action).unwrap_or(rule.row().action);
    let at = |(ms, wall_ms): (u64, u64)| At { ms: ms.min(now), wall_ms };
    let bad = Bad::new(rule, level, saved.reason.as_str(), saved.evidence.as_str()).action(action);
    let bad = Bad { initializing: saved.initializing, ..bad }.cleaned();
    let (since, seen) = (at(saved.since), at(saved.seen));
    let mut raised = Raised { started_anew: saved.started_anew, ..Raised::new(bad, since, seen) };
    raised.had(&saved.reasons);
    Some((rule, raised))
}
