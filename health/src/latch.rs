//! Hysteresis: how readings of one rule on one part become a condition, and how it ends.
//!
//! Two bad readings in a row raise (or worsen) it, an event does at once. Below fatal, good readings
//! for ten minutes end it, and milder ones for ten minutes ease it; a silence of five minutes among
//! them begins the ten minutes anew. What is kept is ended by an operator, or by good readings after
//! a reboot (or, below fatal, after a reset of the GPU). An absent reading does nothing.

use crate::clock::At;
use crate::rule::{Action, Clearing, Level, MINUTE_MS, Row, Rule};
use crate::text;

/// Longest evidence, in characters.
pub const MAX_EVIDENCE: usize = 240;
/// Longest reason, in characters.
pub const MAX_REASON: usize = 160;
/// Most reasons of one condition that are told apart.
const MAX_REASONS: usize = 8;
/// Between two bad readings of a time that must be bad as a whole.
const MAX_GAP_MS: u64 = 30_000;
/// Between two good readings of one calm.
const MAX_SILENCE_MS: u64 = 5 * MINUTE_MS;
/// So many good readings after a reboot are a passed check.
const PASSES: u8 = 2;

/// One bad reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    pub level: Level,
    pub action: Action,
    pub reason: String,
    pub evidence: String,
    /// The part is only coming up.
    pub initializing: bool,
}

impl Bad {
    /// With the action of the rule.
    pub fn new(
        rule: Rule,
        level: Level,
        reason: impl Into<String>,
        evidence: impl Into<String>,
    ) -> Self {
        let (reason, evidence) = (reason.into(), evidence.into());
        Bad { level, action: rule.row().action, reason, evidence, initializing: false }
    }

    pub fn action(self, action: Action) -> Self {
        Bad { action, ..self }
    }

    pub(crate) fn cleaned(self) -> Self {
        let reason = text::clean(&self.reason, MAX_REASON);
        Bad { reason, evidence: text::clean(&self.evidence, MAX_EVIDENCE), ..self }
    }
}

/// A condition as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raised {
    pub bad: Bad,
    pub since: At,
    pub seen: At,
    /// Whether the machine (or, below fatal, the GPU) was started anew since.
    pub started_anew: bool,
    /// The reasons that it has had, each once, and no more than the first few: another one is news, and
    /// what changes back and forth is not.
    pub reasons: Vec<String>,
}

impl Raised {
    pub fn new(bad: Bad, since: At, seen: At) -> Self {
        let reasons = vec![bad.reason.clone()];
        Raised { bad, since, seen, started_anew: false, reasons }
    }

    /// It has had these reasons too.
    pub fn had(&mut self, reasons: &[String]) {
        for reason in reasons {
            if self.reasons.len() < MAX_REASONS && !self.reasons.contains(reason) {
                self.reasons.push(text::clean(reason, MAX_REASON));
            }
        }
    }

    /// The condition has these words now.
    fn say(&mut self, bad: Bad) {
        self.bad = bad.cleaned();
        let reason = self.bad.reason.clone();
        self.had(&[reason]);
    }
}

/// Bad readings that do not yet count.
#[derive(Debug, Clone, Copy)]
struct Rising {
    reads: u8,
    since: u64,
    last: u64,
    level: Level,
}

/// Readings better than the condition.
#[derive(Debug, Clone, Copy)]
struct Calm {
    since: u64,
    last: u64,
    /// The worst of them; `None`: all good.
    worst: Option<Level>,
}

/// One rule on one part.
#[derive(Debug, Clone, Default)]
pub struct Latch {
    pub raised: Option<Raised>,
    rising: Option<Rising>,
    calm: Option<Calm>,
    passes: u8,
    /// When it was last read, and when it was last found absent.
    pub read: Option<u64>,
    pub absent: Option<u64>,
}

impl Latch {
    /// A condition from before a restart of the agent.
    pub fn restored(raised: Raised) -> Self {
        Latch { read: Some(raised.seen.ms), raised: Some(raised), ..Latch::default() }
    }

    fn level(&self) -> Option<Level> {
        self.raised.as_ref().map(|raised| raised.bad.level)
    }

    /// One reading: `None` is good.
    pub fn judge(&mut self, row: &Row, bad: Option<Bad>, at: At) {
        self.read = Some(at.ms);
        let Some(bad) = bad else { return self.good(row, at) };
        let current = self.level();
        if let Some(raised) = &mut self.raised {
            raised.seen = at;
        }
        if Some(bad.level) > current {
            self.calm = None;
            self.rise(row, bad, at);
        } else {
            self.rising = None;
            if Some(bad.level) == current {
                self.calm = None;
                self.refresh(bad, at);
            } else {
                self.ease(row, Some(bad), at);
            }
        }
    }

    fn rise(&mut self, row: &Row, bad: Bad, at: At) {
        let now = Rising { reads: 0, since: at.ms, last: at.ms, level: bad.level };
        // What must be so for a while is not known to have been so in a silence.
        let goes_on = |r: &Rising| row.bad_for_ms == 0 || at.since(r.last) <= MAX_GAP_MS;
        let mut rising = self.rising.filter(goes_on).unwrap_or(now);
        rising.last = at.ms;
        rising.reads = rising.reads.saturating_add(1);
        rising.level = rising.level.min(bad.level);
        if rising.reads < row.bad_reads || at.since(rising.since) < row.bad_for_ms {
            self.rising = Some(rising);
            return;
        }
        // The milder of two readings is sure; the worse one needs another.
        let worse = bad.level > rising.level;
        let sure = Bad { level: rising.level, ..bad };
        self.rising = worse.then_some(Rising { reads: 1, ..now });
        self.raise(sure, at);
    }

    /// Something that happened: no second reading is needed.
    pub fn event(&mut self, bad: Bad, at: At) {
        self.read = Some(at.ms);
        let current = self.level();
        // A milder event says nothing about the worse one, and does not keep it alive.
        if Some(bad.level) > current {
            self.calm = None;
            self.raise(bad, at);
        } else if Some(bad.level) == current {
            self.calm = None;
            self.refresh(bad, at);
        }
    }

    fn raise(&mut self, bad: Bad, at: At) {
        self.passes = 0;
        match &mut self.raised {
            Some(raised) => {
                raised.seen = at;
                raised.started_anew = false;
                raised.say(bad);
            }
            None => self.raised = Some(Raised::new(bad.cleaned(), at, at)),
        }
    }

    /// Seen again at the same level: the newest words, the most severe action.
    fn refresh(&mut self, bad: Bad, at: At) {
        self.passes = 0;
        if let Some(raised) = &mut self.raised {
            raised.seen = at;
            raised.started_anew = false;
            let action = raised.bad.action.max(bad.action);
            raised.say(bad.action(action));
        }
    }

    fn good(&mut self, row: &Row, at: At) {
        self.rising = None;
        let Some(raised) = &self.raised else { return };
        if row.keeps(raised.bad.level) {
            if raised.started_anew {
                self.passes = self.passes.saturating_add(1);
                if self.passes >= PASSES {
                    self.end();
                }
            }
            return;
        }
        self.ease(row, None, at);
    }

    /// A reading better than the condition.
    fn ease(&mut self, row: &Row, bad: Option<Bad>, at: At) {
        let (Some(level), Clearing::Calm(needed)) = (self.level(), row.clearing) else { return };
        if row.keeps(level) {
            return;
        }
        let now = bad.as_ref().map(|bad| bad.level);
        let begun = Calm { since: at.ms, last: at.ms, worst: now };
        let calm = self.calm.filter(|calm| at.since(calm.last) <= MAX_SILENCE_MS);
        let mut calm = calm.unwrap_or(begun);
        calm.last = at.ms;
        calm.worst = calm.worst.max(now);
        if at.since(calm.since) < needed {
            self.calm = Some(calm);
            return;
        }
        match (bad, calm.worst) {
            (Some(bad), Some(worst)) => {
                self.calm = None;
                self.raise(Bad { level: worst, ..bad }, at);
            }
            (None, None) => self.end(),
            // Good now, with milder readings on the way: the level eases, and the calm begins anew.
            (None, Some(worst)) => {
                self.calm = Some(begun);
                if let Some(raised) = &mut self.raised {
                    raised.bad.level = worst;
                }
            }
            (Some(_), None) => self.calm = Some(calm),
        }
    }

    fn end(&mut self) {
        self.raised = None;
        self.calm = None;
        self.passes = 0;
    }

    /// Ends it whatever it is: an operator's word. Whether there was anything.
    pub fn clear(&mut self) -> bool {
        let was = self.raised.is_some();
        self.rising = None;
        self.end();
        was
    }

    /// The machine was started anew; or the GPU was, which says nothing about a fatal condition.
    pub fn started_anew(&mut self, machine: bool) {
        if let Some(raised) = &mut self.raised
            && (machine || raised.bad.level < Level::Fatal)
        {
            raised.started_anew = true;
            self.passes = 0;
        }
    }

    /// Whether the condition has run out: it did not happen again. One that good readings end stays
    /// for as long as there are none: a source that is silent says nothing good.
    pub fn is_over(&self, row: &Row, at: At) -> bool {
        let Some(raised) = &self.raised else { return false };
        match row.clearing {
            _ if raised.bad.level == Level::Fatal => false,
            Clearing::Expires(after) => at.since(raised.seen.ms) >= after,
            // A worn cable does not heal by being unplugged.
            Clearing::Kept | Clearing::Calm(_) => false,
        }
    }

    /// Whether a person or a reboot must end the condition that stands.
    pub fn is_kept(&self, row: &Row) -> bool {
        self.level().is_some_and(|level| row.keeps(level))
    }

    /// Whether bad readings that do not count yet would, with one more, make a condition of `level`
    /// or worse.
    pub fn may_become(&self, level: Level) -> bool {
        self.rising.is_some_and(|rising| rising.level >= level)
    }
}

#[cfg(test)]
mod tests;
