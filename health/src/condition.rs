//! What the engine says: conditions, what cannot be seen, and the answer before a start.

use std::collections::BTreeMap;

use crate::clock::At;
use crate::component::Component;
use crate::latch::Raised;
use crate::rule::{Action, Check, Level, Rule, State};

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub rule: Rule,
    pub component: Component,
    pub level: Level,
    /// gpud's word for the part.
    pub state: State,
    /// gpud's word for what to do.
    pub suggested_action: Action,
    /// One short sentence; bounded and clean.
    pub reason: String,
    /// Numbers that were seen; bounded and clean.
    pub evidence: String,
    /// How many different reasons it has had, no more than the first few counted.
    pub reasons: usize,
    /// Wall clock when it was raised, and when it was last seen, milliseconds.
    pub since_wall_ms: u64,
    pub last_seen_wall_ms: u64,
    /// How long it has stood, milliseconds, by the engine's own time.
    pub for_ms: u64,
    /// What a person should do.
    pub advice: &'static str,
    /// What ends it.
    pub clears: &'static str,
    /// No gang may start here while it stands (on this GPU, for one of a GPU). Never in shadow.
    pub blocks_start: bool,
    /// The rule is only tried: show it, and do not act on it.
    pub shadow: bool,
}

impl Condition {
    pub(crate) fn new(
        rule: Rule,
        component: &Component,
        raised: &Raised,
        shadow: bool,
        at: At,
    ) -> Self {
        let (row, bad) = (rule.row(), &raised.bad);
        Condition {
            rule,
            component: component.clone(),
            level: bad.level,
            state: if bad.initializing { State::Initializing } else { bad.level.state() },
            suggested_action: bad.action,
            reason: bad.reason.clone(),
            evidence: bad.evidence.clone(),
            reasons: raised.reasons.len(),
            since_wall_ms: raised.since.wall_ms,
            last_seen_wall_ms: raised.seen.wall_ms,
            for_ms: at.since(raised.since.ms),
            advice: row.advice,
            clears: row.clears(bad.level),
            blocks_start: !shadow && row.forbids_start(bad.level),
            shadow,
        }
    }

    /// Whether nobody need be told: the same condition as `before`, at most seen again with other
    /// numbers, or for a reason that it had before.
    pub fn says_the_same(&self, before: &Condition) -> bool {
        let key = |c: &Condition| {
            (c.rule, c.level, c.state, c.suggested_action, c.since_wall_ms, c.shadow, c.reasons)
        };
        key(self) == key(before) && self.component == before.component
    }
}

/// Something that cannot be seen from here: it is not known to be healthy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Blind {
    pub rule: Rule,
    /// `None`: no part at all gave such a reading.
    pub component: Option<Component>,
    pub why: String,
}

/// One line for each thing that cannot be seen and why, parts taken together:
/// `fabric of gpu:GPU-0 and 7 more: not to be read here`.
pub fn blind_lines(blind: &[Blind]) -> Vec<String> {
    let mut together: BTreeMap<(Rule, &str), Vec<Option<&Component>>> = BTreeMap::new();
    for Blind { rule, component, why } in blind {
        together.entry((*rule, why.as_str())).or_default().push(component.as_ref());
    }
    let line = |((rule, why), parts): ((Rule, &str), Vec<Option<&Component>>)| {
        let more = parts.len().saturating_sub(1);
        match parts.first() {
            Some(Some(first)) if more > 0 => format!("{rule} of {first} and {more} more: {why}"),
            Some(Some(first)) => format!("{rule} of {first}: {why}"),
            _ => format!("{rule}: {why}"),
        }
    };
    together.into_iter().map(line).collect()
}

/// Whether a gang may start here now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StartCheck {
    /// Conditions that forbid it, in the order of all conditions.
    pub bad: Vec<Condition>,
    /// Readings to be made again first: too old, never made, or bad once and not yet twice.
    pub stale: Vec<Stale>,
    /// What is to be looked at before a start and cannot be seen here. It forbids nothing.
    pub blind: Vec<Blind>,
}

impl StartCheck {
    pub fn may_start(&self) -> bool {
        self.bad.is_empty() && self.stale.is_empty()
    }

    /// What must be run again, each once.
    pub fn checks(&self) -> Vec<Check> {
        let mut checks: Vec<Check> = self.stale.iter().map(|stale| stale.check).collect();
        checks.sort();
        checks.dedup();
        checks
    }
}

/// A reading that is needed before a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    pub check: Check,
    pub rule: Rule,
    /// `None`: no part at all gave such a reading.
    pub component: Option<Component>,
    /// How old it is, milliseconds; `None`: there is none.
    pub age_ms: Option<u64>,
}
