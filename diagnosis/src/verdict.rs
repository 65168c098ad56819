//! From everything that was found to one answer: root before consequence, facts before text, the
//! earliest root over all ranks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use regex::Regex;

use crate::answer::{Consequence, Diagnosis, Evidence};
use crate::clock::{Context, zone_of};
use crate::facts::{Fact, FactKind, StopReason, Weight};
use crate::pattern::Pattern;
use crate::rules::{Rule, Rules, Strength};
use crate::scan::{Finding, scan};
use crate::source::{MAX_SOURCES, Source};
use crate::taxonomy::{Action, Category};

/// Most lines of evidence of one answer.
const MAX_EVIDENCE: usize = 5;
/// Most other findings that one answer lists.
const MAX_CONSEQUENCES: usize = 12;
/// A fact or a word of the kernel this long after an error may still be its cause, in milliseconds:
/// programs see what broke before the driver has written it down.
const LATE_MS: i64 = 60_000;

/// A line may have been written so long before it was read, in milliseconds.
const READ_LATE_MS: i64 = 1_000;

/// The sub-code of an answer when nothing has failed.
pub const NO_FAILURE: &str = "no_failure_found";
/// The sub-code of an answer when something has failed that no rule knows.
pub const UNRECOGNISED: &str = "unrecognised";

/// A failure that is being looked into: sources and facts are added, in any order, then it is
/// concluded.
#[derive(Debug)]
pub struct Case<'a> {
    rules: &'a Rules,
    sources: usize,
    clues: Vec<Clue>,
    times: BTreeMap<usize, u64>,
    facts: Vec<Fact>,
}

/// A finding with where it is from.
#[derive(Clone, Debug)]
struct Clue {
    finding: Finding,
    file: String,
    node: Option<String>,
    clock_ahead_ms: i64,
    /// See [`crate::scan::Findings`].
    lead_ms: Option<i64>,
    certain: bool,
    /// On the coordinator's clock, once all is known.
    at_ms: Option<i64>,
}

impl Clue {
    /// The time that its line gives; without one, the last time that its source gave before, or when the
    /// line was read where that was with a later piece of the log.
    fn time(&self, context: Context) -> Option<i64> {
        let finding = &self.finding;
        let zone_ms = self.lead_ms.map(|lead| zone_of(lead.saturating_sub(self.clock_ahead_ms)));
        let given = finding.stamp.map(|stamp| {
            let zone_ms = zone_ms.filter(|_| stamp.is_local()).unwrap_or_default();
            let ahead_ms = zone_ms.saturating_add(self.clock_ahead_ms);
            match finding.stamp_read_ms {
                // Nothing is written after it was read.
                Some(read_ms) => stamp
                    .near(read_ms.saturating_add(ahead_ms))
                    .saturating_sub(ahead_ms)
                    .min(read_ms),
                None => stamp.resolve(context).saturating_sub(ahead_ms),
            }
        });
        match finding.read_ms {
            Some(read_ms) if !finding.is_stamped && finding.stamp_read_ms != Some(read_ms) => {
                given.max(Some(read_ms.saturating_sub(READ_LATE_MS)))
            }
            _ => given,
        }
    }
}

impl<'a> Case<'a> {
    /// A case without evidence.
    pub fn new(rules: &'a Rules) -> Self {
        Case { rules, sources: 0, clues: Vec::new(), times: BTreeMap::new(), facts: Vec::new() }
    }

    /// Looks at a log. After [`MAX_SOURCES`] of them the rest is not looked at.
    pub fn read(&mut self, source: &Source<'_>) {
        if self.sources >= MAX_SOURCES {
            return;
        }
        self.sources += 1;
        let findings = scan(source, self.rules);
        for (rule, times) in findings.times {
            *self.times.entry(rule).or_default() += times;
        }
        self.clues.extend(findings.found.into_iter().map(|finding| Clue {
            finding,
            file: source.name.to_owned(),
            node: source.node.map(str::to_owned),
            clock_ahead_ms: source.clock_ahead_ms,
            lead_ms: findings.lead_ms,
            certain: false,
            at_ms: None,
        }));
    }

    /// Adds a fact.
    pub fn fact(&mut self, fact: Fact) {
        self.facts.push(fact);
    }

    /// The answer.
    pub fn conclude(mut self) -> Diagnosis {
        self.take_times();
        self.take_facts();
        self.clues.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
        let teardown = Teardown::of(&self.facts);
        let counts = |clue: &&Clue| self.counts(clue);
        let live: Vec<&Clue> =
            self.clues.iter().filter(counts).filter(|clue| !teardown.covers(clue)).collect();
        let decided: Vec<&Clue> =
            live.iter().copied().filter(|clue| !self.is_shadow(clue)).collect();
        match first_cause(&decided) {
            Some(cause) if !teardown.outside || cause.finding.root => {
                self.answer(cause, &decided, &live)
            }
            _ if teardown.outside => self.stopped(),
            Some(cause) => self.answer(cause, &decided, &live),
            None => self.nothing(&live),
        }
    }

    fn rule(&self, clue: &Clue) -> Option<&'a Rule> {
        self.rules.rule(clue.finding.rule)
    }

    fn is_shadow(&self, clue: &Clue) -> bool {
        self.rule(clue).is_some_and(|rule| rule.shadow)
    }

    /// Whether a finding says anything: enough lines fit, and the job did not go on after it.
    fn counts(&self, clue: &Clue) -> bool {
        let times = self.times.get(&clue.finding.rule).copied().unwrap_or_default();
        !clue.finding.survived && self.rule(clue).is_some_and(|rule| times >= rule.at_least)
    }

    fn take_times(&mut self) {
        let stamps = self.clues.iter().filter_map(|clue| clue.finding.stamp);
        let context = Context::of(stamps);
        for clue in &mut self.clues {
            clue.at_ms = clue.time(context);
        }
    }

    fn take_facts(&mut self) {
        let rules = self.rules;
        for (order, fact) in (0..).zip(&self.facts) {
            let Some((text, weight)) = fact.line() else { continue };
            for index in rules.fitting(&text, "") {
                let Some(rule) = rules.rule(index) else { continue };
                *self.times.entry(index).or_default() += rule.at_least;
                let certain = weight == Weight::Certain;
                self.clues.push(Clue {
                    finding: Finding {
                        rule: index,
                        strength: if certain { Strength::Hard } else { rule.strength },
                        root: rules.rank(rule) == crate::taxonomy::Rank::Root,
                        of_peer: rule.of_peer,
                        order,
                        number: None,
                        shown: text.clone(),
                        stamp: None,
                        is_stamped: false,
                        read_ms: None,
                        stamp_read_ms: None,
                        rank: fact.rank,
                        survived: false,
                    },
                    file: "facts".to_owned(),
                    node: fact.node.clone(),
                    clock_ahead_ms: 0,
                    lead_ms: None,
                    certain,
                    at_ms: fact.at_ms,
                });
            }
        }
    }

    fn answer(&self, cause: &Clue, decided: &[&Clue], live: &[&Clue]) -> Diagnosis {
        let Some(rule) = self.rule(cause) else { return self.nothing(live) };
        let action = self.rules.action(rule);
        let same = |clue: &&&Clue| {
            self.rule(clue).is_some_and(|other| other.category == rule.category)
                && evidence(clue) != evidence(cause)
        };
        let mut lines = vec![evidence(cause)];
        for clue in decided.iter().filter(same) {
            let line = evidence(clue);
            if lines.len() < MAX_EVIDENCE && !lines.contains(&line) {
                lines.push(line);
            }
        }
        let is_other = |clue: &&Clue| {
            clue.finding.rule != cause.finding.rule && evidence(clue) != evidence(cause)
        };
        let others = decided.iter().copied().filter(is_other);
        Diagnosis {
            category: rule.category,
            sub_code: rule.sub_code.clone(),
            retry: action.retries(),
            action,
            confidence: confidence(cause, decided, |clue| {
                self.rule(clue).map(|rule| rule.category)
            }),
            certain: cause.certain,
            rank: rank_of(cause),
            node: cause.node.clone(),
            gpu: gpu_of(&cause.finding.shown),
            evidence: lines,
            advice: self.rules.advice(rule).to_owned(),
            rule: Some(rule.id.clone()),
            rules_version: self.rules.version(),
            consequences: self.grouped(others),
            shadow: self.shadows(live),
        }
    }

    /// Stopped from outside, and nothing had failed before.
    fn stopped(&self) -> Diagnosis {
        let defaults = self.rules.defaults(Category::Preempted);
        Diagnosis {
            category: Category::Preempted,
            sub_code: "stopped".to_owned(),
            retry: true,
            action: Action::Resume,
            confidence: 0.95,
            certain: true,
            evidence: vec![Evidence {
                file: "facts".to_owned(),
                line: None,
                text: "stopped from outside by gangline".to_owned(),
            }],
            advice: defaults.map(|defaults| defaults.advice.clone()).unwrap_or_default(),
            ..self.nothing(&[])
        }
    }

    fn nothing(&self, live: &[&Clue]) -> Diagnosis {
        let failed = self.facts.iter().any(|fact| {
            matches!(fact.kind, FactKind::Exit { code } if code != 0)
                || matches!(fact.kind, FactKind::Signal { .. })
        });
        let advice = if failed {
            "The processes failed and their logs do not say why: look at the log of the rank that \
             ended first."
        } else {
            "No failure found in these logs. If the job failed, give the logs of its other ranks \
             and of the node too."
        };
        Diagnosis {
            category: Category::Unknown,
            sub_code: if failed { UNRECOGNISED } else { NO_FAILURE }.to_owned(),
            retry: false,
            action: Action::Watch,
            confidence: if failed { 0.2 } else { 0.1 },
            certain: false,
            rank: None,
            node: None,
            gpu: None,
            evidence: Vec::new(),
            advice: advice.to_owned(),
            rule: None,
            rules_version: self.rules.version(),
            consequences: Vec::new(),
            shadow: self.shadows(live),
        }
    }

    fn shadows(&self, live: &[&Clue]) -> Vec<Consequence> {
        self.grouped(live.iter().copied().filter(|clue| self.is_shadow(clue)))
    }

    /// One entry for each rule, in the order of the clues.
    fn grouped<'b>(&self, clues: impl Iterator<Item = &'b Clue>) -> Vec<Consequence> {
        let mut out: Vec<Consequence> = Vec::new();
        for clue in clues {
            let Some(rule) = self.rule(clue) else { continue };
            if out.len() >= MAX_CONSEQUENCES || out.iter().any(|other| other.rule == rule.id) {
                continue;
            }
            out.push(Consequence {
                category: rule.category,
                sub_code: rule.sub_code.clone(),
                rule: rule.id.clone(),
                times: self.times.get(&clue.finding.rule).copied().unwrap_or_default(),
                evidence: evidence(clue),
            });
        }
        out
    }
}

/// What the agent stopped: later errors of it are not causes.
#[derive(Debug, Default)]
struct Teardown {
    stops: Vec<(Option<i64>, Option<String>, Option<u32>)>,
    outside: bool,
}

impl Teardown {
    fn of(facts: &[Fact]) -> Teardown {
        let mut teardown = Teardown::default();
        for fact in facts {
            if let FactKind::Stopped(reason) = fact.kind {
                teardown.outside |= reason == StopReason::FromOutside;
                teardown.stops.push((fact.at_ms, fact.node.clone(), fact.rank));
            }
        }
        teardown
    }

    fn covers(&self, clue: &Clue) -> bool {
        !clue.certain
            && self.stops.iter().any(|(at, node, rank)| {
                node.as_ref().is_none_or(|node| clue.node.as_ref() == Some(node))
                    && rank.is_none_or(|rank| clue.finding.rank == Some(rank))
                    && at.zip(clue.at_ms).is_some_and(|(at, clue)| clue >= at)
            })
    }
}

/// The order in which clues are listed, which is that of time; the names break ties, so that the
/// order in which sources were given does not matter.
#[allow(clippy::type_complexity)]
fn sort_key(
    clue: &Clue,
) -> (bool, Option<i64>, Reverse<Strength>, Option<u32>, &str, Option<&str>, u64, usize) {
    (
        clue.at_ms.is_none(),
        clue.at_ms,
        Reverse(clue.finding.strength),
        clue.finding.rank,
        &clue.file,
        clue.node.as_deref(),
        clue.finding.order,
        clue.finding.rule,
    )
}

/// The first of `clues`: within a source its order decides, between sources the time.
fn earliest<'a>(clues: impl Iterator<Item = &'a Clue>) -> Option<&'a Clue> {
    let mut of_source: BTreeMap<(&str, Option<&str>, Option<u32>), &Clue> = BTreeMap::new();
    for clue in clues {
        // A source without a rank of its own holds many; its order still is the order of writing.
        let key = (clue.file.as_str(), clue.node.as_deref(), None);
        let in_source =
            |clue: &Clue| (clue.finding.order, Reverse(clue.finding.strength), clue.finding.rule);
        let best = of_source.entry(key).or_insert(clue);
        if in_source(clue) < in_source(best) {
            *best = clue;
        }
    }
    of_source.into_values().min_by(|a, b| sort_key(a).cmp(&sort_key(b)))
}

/// Whether `late` may have caused `early`, although it is not before it.
fn may_precede(late: &Clue, early: &Clue) -> bool {
    late.at_ms.zip(early.at_ms).is_none_or(|(late, early)| late <= early.saturating_add(LATE_MS))
}

/// The clue that the answer stands on.
fn first_cause<'a>(clues: &[&'a Clue]) -> Option<&'a Clue> {
    let roots = |least: Strength| {
        clues
            .iter()
            .copied()
            .filter(move |clue| clue.finding.root && clue.finding.strength >= least)
    };
    let certain = || roots(Strength::Hint).filter(|clue| clue.certain);
    let Some(first) = earliest(roots(Strength::Specific)) else {
        return earliest(certain())
            .or_else(|| earliest(roots(Strength::Broad)))
            .or_else(|| weak(clues));
    };
    let first = behind_a_peer(clues, first).unwrap_or(first);
    let hard = roots(Strength::Hard).filter(|clue| may_precede(clue, first));
    earliest(certain().filter(|clue| may_precede(clue, first)))
        .or_else(|| earliest(hard))
        .or(Some(first))
}

/// What may have ended the process at the other side of a connection, when that is all that `first` shows:
/// a clear root also when it was written down a little later, an unclear one when it was there before.
fn behind_a_peer<'a>(clues: &[&'a Clue], first: &Clue) -> Option<&'a Clue> {
    if !first.finding.of_peer {
        return None;
    }
    let others = || clues.iter().copied().filter(|clue| clue.finding.root && !clue.finding.of_peer);
    let clear = |clue: &&Clue| clue.finding.strength >= Strength::Specific;
    let before = |clue: &&Clue| match clue.file == first.file && clue.node == first.node {
        true => clue.finding.order < first.finding.order,
        false => clue.at_ms.zip(first.at_ms).is_some_and(|(at, first)| at < first),
    };
    earliest(others().filter(clear).filter(|clue| may_precede(clue, first)))
        .or_else(|| earliest(others().filter(|clue| is_telling(clue)).filter(before)))
}

/// Without a clear root: the first of what is left. Lost connections say least, so anything else is
/// better at any time.
fn weak<'a>(clues: &[&'a Clue]) -> Option<&'a Clue> {
    let telling = clues.iter().copied().filter(|clue| clue.finding.root || is_telling(clue));
    earliest(telling).or_else(|| earliest(clues.iter().copied()))
}

fn is_telling(clue: &Clue) -> bool {
    clue.finding.strength > Strength::Hint
}

fn evidence(clue: &Clue) -> Evidence {
    Evidence {
        file: clue.file.clone(),
        line: clue.finding.number,
        text: clue.finding.shown.clone(),
    }
}

fn confidence(cause: &Clue, clues: &[&Clue], category: impl Fn(&Clue) -> Option<Category>) -> f64 {
    let base = match (cause.certain, cause.finding.root, cause.finding.strength) {
        (true, _, _) => 0.99,
        (_, true, Strength::Hard) => 0.97,
        (_, true, Strength::Specific) => 0.92,
        (_, true, Strength::Broad) => 0.75,
        (_, true, Strength::Generic) => 0.6,
        (_, true, Strength::Hint) => 0.45,
        (_, false, Strength::Specific | Strength::Hard) => 0.6,
        (_, false, _) => 0.4,
    };
    let rivals = clues.iter().filter(|clue| {
        clue.finding.root
            && clue.finding.strength >= cause.finding.strength
            && category(clue) != category(cause)
    });
    if rivals.count() > 0 { base - 0.1 } else { base }
}

static RANK: Pattern =
    Pattern::new(|| Regex::new(r"(?i)\[?\brank[ :=]?\s?(?P<n>[0-9]{1,5})\b").ok());

static GPU: Pattern = Pattern::new(|| {
    Regex::new(r"(?i)(?:PCI:|GPU |GPU at PCI:)(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9])?)|(?:\bGPU[ :=#]?|\bcuda:|\bdevice: )(?P<index>[0-9]{1,2})\b").ok()
});

fn rank_of(clue: &Clue) -> Option<u32> {
    let named = || RANK.captures(&clue.finding.shown)?.name("n")?.as_str().parse().ok();
    clue.finding.rank.or_else(named)
}

fn gpu_of(text: &str) -> Option<String> {
    let found = GPU.captures(text)?;
    found.name("pci").or_else(|| found.name("index")).map(|name| name.as_str().to_owned())
}
