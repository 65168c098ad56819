//! One source against the rules: what fits, where, and whether the job went on after it.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Stamp;
use crate::handled::{deals_with, is_error, is_handled, known};
use crate::lines::{self, Line};
use crate::prefix::Level;
use crate::progress::{Progress, is_step, is_success};
use crate::quoted::{Blocks, Place, is_quote};
use crate::rules::{Rule, Rules, Strength};
use crate::source::Source;
use crate::taxonomy::Rank;
use crate::traceback::{Part, Relation, Tracebacks};

/// Most findings of one rule that are kept of one source: the first ones, and the last.
const MAX_OF_RULE: usize = 32;
/// Lines of its writer after an error in which it may say that it has dealt with it.
const LINES_TO_DEAL_WITH: usize = 3;
/// Steps after a finding that show that the job lived on. Other ranks make a few before they notice.
const STEPS_THAT_PROVE_LIFE: u64 = 5;
/// The same after a weak finding.
const STEPS_AFTER_A_WEAK_ONE: u64 = 3;
/// The same where the log ends with steps, and nothing more was found among or after them.
const STEPS_AT_THE_END: u64 = 2;
const STEPS_AT_THE_END_AFTER_A_WEAK_ONE: u64 = 1;

/// A line that fits a rule.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// Number of the rule.
    pub(crate) rule: usize,
    pub(crate) strength: Strength,
    pub(crate) root: bool,
    /// The end of the process at the other side looks like this as well.
    pub(crate) of_peer: bool,
    /// Place in the source.
    pub(crate) order: u64,
    pub(crate) number: Option<u64>,
    pub(crate) shown: String,
    /// The last time that the source gave up to here; of a line with another clock, none.
    pub(crate) stamp: Option<Stamp>,
    /// That is the line's own.
    pub(crate) is_stamped: bool,
    /// When the line was read from the program, in milliseconds since 1970; and when the line was that gave
    /// the time.
    pub(crate) read_ms: Option<i64>,
    pub(crate) stamp_read_ms: Option<i64>,
    pub(crate) rank: Option<u32>,
    /// The job went on, so this did not end it.
    pub(crate) survived: bool,
}

/// What one source shows.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// In the order of the source.
    pub(crate) found: Vec<Finding>,
    /// How often each rule fitted.
    pub(crate) times: BTreeMap<usize, u64>,
    /// How far times of an unknown zone were ahead of the reading of their lines, at most: what is read
    /// late makes that less.
    pub(crate) lead_ms: Option<i64>,
}

/// Reads `source`.
pub(crate) fn scan(source: &Source<'_>, rules: &Rules) -> Findings {
    let mut scan = Scan { rules, source_rank: source.rank, ..Scan::new(rules) };
    lines::read(source, |line| scan.line(line));
    scan.finish()
}

/// A finding, with the state of the job at its time.
#[derive(Debug)]
struct Noted {
    finding: Finding,
    steps: u64,
    successes: u64,
    /// Another exception of the same chain says it better, or its writer has dealt with it.
    superseded: bool,
}

struct Scan<'a> {
    rules: &'a Rules,
    source_rank: Option<u32>,
    order: u64,
    stamp: Option<Stamp>,
    stamp_read_ms: Option<i64>,
    lead_ms: Option<i64>,
    steps: u64,
    successes: u64,
    progress: Progress,
    /// Place of the last step.
    last_step_at: u64,
    /// Place of the last exception, known or not.
    last_exception_at: u64,
    tracebacks: Tracebacks,
    blocks: Blocks,
    /// Findings inside a block whose end has not been seen.
    waiting: Vec<Noted>,
    noted: Vec<Noted>,
    kept: BTreeMap<usize, usize>,
    times: BTreeMap<usize, u64>,
    /// Rules that found something that a later line may clear.
    clearable: BTreeSet<usize>,
    /// By writer: the orders of the lines of its last exceptions.
    exceptions: BTreeMap<String, u64>,
    /// By writer: the order of the line of its last finding, and lines of it since then.
    reported: BTreeMap<String, (u64, usize)>,
}

impl<'a> Scan<'a> {
    fn new(rules: &'a Rules) -> Self {
        Scan {
            rules,
            source_rank: None,
            order: 0,
            stamp: None,
            stamp_read_ms: None,
            lead_ms: None,
            steps: 0,
            successes: 0,
            progress: Progress::default(),
            last_step_at: 0,
            last_exception_at: 0,
            tracebacks: Tracebacks::default(),
            blocks: Blocks::default(),
            waiting: Vec::new(),
            noted: Vec::new(),
            kept: BTreeMap::new(),
            times: BTreeMap::new(),
            clearable: BTreeSet::new(),
            exceptions: BTreeMap::new(),
            reported: BTreeMap::new(),
        }
    }

    fn line(&mut self, line: &Line<'_>) {
        self.order += 1;
        if let Some(stamp) = line.stamp {
            (self.stamp, self.stamp_read_ms) = (Some(stamp), line.read_ms);
            let local = line.read_ms.filter(|_| stamp.is_local());
            self.lead_ms = local.and_then(|read_ms| stamp.lead_ms(read_ms)).max(self.lead_ms);
        }
        let place = self.blocks.next(line.text);
        match place {
            Place::Closes => {
                self.waiting.clear();
                return;
            }
            Place::GivenUp => self.accept_waiting(),
            Place::Inside | Place::Outside => {}
        }
        let writer = line.writer.map_or_else(|| format!("{:?}", line.rank), str::to_owned);
        let (frames, relation, exception) = match self.tracebacks.next(&writer, line.text) {
            Part::Inner => return,
            Part::Exception { frames, relation } => (frames, relation, true),
            Part::None => (String::new(), None, false),
        };
        if line.text.trim().is_empty() || is_quote(line.text) {
            return;
        }
        if (exception || is_error(line.text)) && !is_handled(line.text) {
            self.last_exception_at = self.order;
        }
        self.clear(line.text);
        let fitting = self.fitting(line, &frames, exception);
        let lasting = fitting.iter().any(|noted| self.is_lasting(noted.finding.rule));
        let ahead = if lasting || !fitting.is_empty() { 0 } else { self.progress.next(line.text) };
        if ahead > 0 {
            self.steps += ahead;
            self.last_step_at = self.order;
        }
        if fitting.is_empty() && is_success(line.text) {
            self.successes += 1;
        }
        self.deal_with(&writer, line, !fitting.is_empty());
        let fitting = if exception { self.chain(&writer, relation, fitting) } else { fitting };
        for noted in fitting {
            match place {
                Place::Inside => self.waiting.push(noted),
                Place::Outside | Place::Closes | Place::GivenUp => self.note(noted),
            }
        }
    }

    /// What the line shows.
    fn fitting(&self, line: &Line<'_>, frames: &str, exception: bool) -> Vec<Noted> {
        let info = line.level == Some(Level::Info) || line.text.contains("NCCL INFO");
        let warning = line.level == Some(Level::Warning);
        let mut out = Vec::new();
        let handled = is_handled(line.text) && !is_step(line.text);
        let raised = exception || line.level == Some(Level::Error) || is_error(line.text);
        let text = if exception { line.text.trim_start() } else { line.text };
        for index in self.rules.fitting(&known(text), frames) {
            let Some(rule) = self.rules.rule(index) else { continue };
            if rule.raised && !raised {
                continue;
            }
            if handled && rule.strength < Strength::Hard {
                continue;
            }
            if info && !rule.any_level && rule.strength < Strength::Hard {
                continue;
            }
            if warning && rule.strength <= Strength::Generic && !rule.any_level {
                continue;
            }
            out.push(Noted {
                finding: Finding {
                    rule: index,
                    strength: rule.strength,
                    root: self.rules.rank(rule) == Rank::Root,
                    of_peer: rule.of_peer,
                    order: self.order,
                    number: line.number,
                    shown: line.shown(),
                    // The kernel's times since its start say nothing of the time of day.
                    stamp: self.stamp.filter(|_| !line.is_uptime),
                    is_stamped: line.stamp.is_some(),
                    read_ms: line.read_ms.filter(|_| !line.is_uptime),
                    stamp_read_ms: self.stamp_read_ms,
                    rank: line.rank.or(self.source_rank),
                    survived: false,
                },
                steps: self.steps,
                successes: self.successes,
                superseded: false,
            });
        }
        // Of the rules that fit one line those that say most speak.
        let alone = |rule: &Rule| !rule.shadow && rule.at_least == 1;
        let decides = |noted: &Noted| self.rules.rule(noted.finding.rule).is_some_and(alone);
        let most = out.iter().filter(|noted| decides(noted)).map(|n| n.finding.strength).max();
        out.retain(|noted| !decides(noted) || Some(noted.finding.strength) == most);
        out
    }

    fn is_lasting(&self, rule: usize) -> bool {
        self.rules.rule(rule).is_some_and(|rule| rule.lasting)
    }

    /// Of two exceptions of a chain the one that says more stands; of two that say as little, the
    /// cause, or the one that came while the other was handled.
    fn chain(&mut self, writer: &str, relation: Option<Relation>, new: Vec<Noted>) -> Vec<Noted> {
        let before = self.exceptions.insert(writer.to_owned(), self.order);
        if self.exceptions.len() > MAX_OF_RULE * 8 {
            self.exceptions.clear();
        }
        let (Some(relation), Some(before)) = (relation, before) else { return new };
        let strongest = |list: &mut dyn Iterator<Item = &Noted>| {
            list.filter(|noted| !noted.superseded).map(|noted| noted.finding.strength).max()
        };
        let old = strongest(&mut self.noted.iter().filter(|noted| noted.finding.order == before));
        let newer = strongest(&mut new.iter());
        let (Some(old), Some(newer)) = (old, newer) else { return new };
        let new_wins = match relation {
            Relation::WhileHandling => newer > old || (newer == old && old <= Strength::Generic),
            Relation::CausedBy => newer > old,
        };
        if new_wins {
            for noted in self.noted.iter_mut().rev() {
                if noted.finding.order == before {
                    noted.superseded = true;
                } else if noted.finding.order < before {
                    break;
                }
            }
            return new;
        }
        new.into_iter().map(|noted| Noted { superseded: true, ..noted }).collect()
    }

    /// What a writer has reported is over when it says so right after it.
    fn deal_with(&mut self, writer: &str, line: &Line<'_>, is_report: bool) {
        if is_report {
            if self.reported.len() > MAX_OF_RULE * 8 {
                self.reported.clear();
            }
            self.reported.insert(writer.to_owned(), (self.order, 0));
            return;
        }
        let Some((order, lines)) = self.reported.get_mut(writer) else { return };
        *lines += 1;
        let order = *order;
        if *lines > LINES_TO_DEAL_WITH || line.level == Some(Level::Error) {
            self.reported.remove(writer);
        } else if deals_with(line.text) {
            self.reported.remove(writer);
            let rules = self.rules;
            let hard = |rule| rules.rule(rule).is_some_and(|r| r.strength == Strength::Hard);
            let of_it = |noted: &&mut Noted| noted.finding.order == order;
            for noted in self.noted.iter_mut().filter(of_it) {
                noted.superseded |= !hard(noted.finding.rule);
            }
        }
    }

    /// Forgets what the line says is over.
    fn clear(&mut self, text: &str) {
        if self.clearable.is_empty() {
            return;
        }
        let rules = self.rules;
        let over: Vec<usize> =
            self.clearable.iter().copied().filter(|rule| rules.is_cleared(*rule, text)).collect();
        for rule in over {
            self.clearable.remove(&rule);
            self.kept.remove(&rule);
            self.noted.retain(|noted| noted.finding.rule != rule);
        }
    }

    fn accept_waiting(&mut self) {
        for noted in std::mem::take(&mut self.waiting) {
            self.note(noted);
        }
    }

    fn note(&mut self, noted: Noted) {
        let rule = noted.finding.rule;
        *self.times.entry(rule).or_default() += 1;
        if self.rules.can_be_cleared(rule) {
            self.clearable.insert(rule);
        }
        let kept = self.kept.entry(rule).or_default();
        if *kept < MAX_OF_RULE {
            *kept += 1;
            self.noted.push(noted);
            return;
        }
        // The last of many is kept too: the first may have been survived, and the last not.
        if let Some(at) = self.noted.iter().rposition(|other| other.finding.rule == rule) {
            self.noted.remove(at);
            self.noted.push(noted);
        }
    }

    fn finish(mut self) -> Findings {
        // A block without an end was none.
        self.accept_waiting();
        let (steps, successes) = (self.steps, self.successes);
        let last_step_at = self.last_step_at;
        let ends_well = self.last_exception_at < last_step_at
            && self.noted.iter().all(|noted| noted.finding.order < last_step_at);
        let rules = self.rules;
        let found = self.noted.into_iter().filter(|noted| !noted.superseded).map(|noted| {
            let lasting = rules.rule(noted.finding.rule).is_some_and(|rule| rule.lasting);
            let weak = noted.finding.strength < Strength::Specific;
            let proof = match (ends_well, weak) {
                (false, false) => STEPS_THAT_PROVE_LIFE,
                (false, true) => STEPS_AFTER_A_WEAK_ONE,
                (true, false) => STEPS_AT_THE_END,
                (true, true) => STEPS_AT_THE_END_AFTER_A_WEAK_ONE,
            };
            let went_on = steps - noted.steps >= proof || successes > noted.successes;
            let hard = noted.finding.strength == Strength::Hard;
            Finding { survived: went_on && !lasting && !hard, ..noted.finding }
        });
        let mut found: Vec<Finding> = found.collect();
        found.sort_by_key(|finding| (finding.order, finding.rule));
        Findings { found, times: self.times, lead_ms: self.lead_ms }
    }
}
