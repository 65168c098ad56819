//! Rules about one RDMA port, and about the ports as a set.
//!
//! State and counters are latched apart: a link that is up again says nothing about what it counted.

use crate::clock::At;
use crate::latch::Bad;
use crate::part::Part;
use crate::reading::{Counter, PhysicalState, Port, PortState, Ports};
use crate::rule::{Level, MINUTE_MS, Rule};
use crate::series::{Series, Step};
use crate::text;

/// A port that was down for so long and came back has had an outage.
const OUTAGE_MS: u64 = 25_000;
const DROP_MS: u64 = 4 * MINUTE_MS;
const FLAPS: usize = 3;
/// So many others must be up before a port is compared with them.
const LEAST_UP: usize = 3;
/// A kind with a longer name, in bytes, has no siblings.
const MAX_KIND: usize = 80;
const FLAP_HOURS: u64 = 12;
/// A lost link and an NCCL error within so long belong together.
pub const TOGETHER_MS: u64 = 5 * MINUTE_MS;
const SYMBOLS_PER_SECOND: f64 = 10.0;
const SYMBOLS_PER_HOUR: u64 = 120;
const RETRAININGS_PER_MINUTE: u64 = 5;
const RECEIVE_MINUTES: usize = 3;
const TIMEOUTS: u64 = 2;
const TIMEOUT_MINUTES: u64 = 10;
const DISCARDS_PER_SECOND: f64 = 100.0;
const SLOW_RESTARTS_PER_SECOND: f64 = 10.0;

/// Counters of which any growth is bad.
const BROKEN: [Counter; 3] =
    [Counter::RnrNakRetryErr, Counter::ExcessiveBufferOverrun, Counter::LocalLinkIntegrity];
const RECEIVE: [Counter; 2] = [Counter::RcvErrors, Counter::RcvRemotePhysical];
const LOSS: [Counter; 4] = [
    Counter::OutOfSequence,
    Counter::PacketSeqErr,
    Counter::ImpliedNakSeqErr,
    Counter::DuplicateRequest,
];
const REQUESTS: [Counter; 2] = [Counter::ReqCqeError, Counter::RespCqeError];

/// What a port was like at a reading.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    pub kind: String,
    up: bool,
    rate_gbps: Option<f64>,
}

/// The other ports of a kind that a node has for its GPUs. Nearly all of them are up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Siblings {
    others: usize,
    up: usize,
    /// The rate that nearly all of those have that are up.
    rate_gbps: Option<f64>,
}

impl Siblings {
    /// `None` where nothing follows from what the others are like. A port without a cable looks like one
    /// with a bad one, and healthy nodes have such: spare ports, second ports of storage adapters. So
    /// there must be as many of the kind as GPUs (or a multiple, or a whole part), and of them at least
    /// three others that are up, and three in four.
    pub fn of<'a>(others: impl Iterator<Item = &'a Look>, gpus: usize) -> Option<Self> {
        let others: Vec<&Look> = others.collect();
        let ports = others.len() + 1;
        let are_for_gpus = gpus > 0 && (ports.is_multiple_of(gpus) || gpus.is_multiple_of(ports));
        let up: Vec<&&Look> = others.iter().filter(|look| look.up).collect();
        if !are_for_gpus || up.len() < LEAST_UP || up.len() * 4 < ports * 3 {
            return None;
        }
        let mut rates: Vec<f64> = up.iter().filter_map(|look| look.rate_gbps).collect();
        rates.sort_by(f64::total_cmp);
        let rate_gbps = rates.get(rates.len() / 4).copied().filter(|_| rates.len() >= LEAST_UP);
        Some(Siblings { others: others.len(), up: up.len(), rate_gbps })
    }
}

/// One reading of a port; `nccl` is when a gang here last failed with an NCCL error.
pub fn on_port(
    part: &mut Part,
    port: &Port,
    siblings: Option<Siblings>,
    nccl: Option<u64>,
    at: At,
) {
    state(part, port, siblings, at);
    let steps = Steps::new(part, port, at);
    link_downed(part, &steps, nccl, at);
    broken(part, &steps, at);
    symbols(part, &steps, at);
    let retraining = steps.of(Counter::LinkErrorRecovery).map(|step| {
        let sum = part.retrainings.add(step, at);
        (sum > RETRAININGS_PER_MINUTE).then(|| {
            let evidence = format!("{sum} link_error_recovery within a minute");
            Bad::new(
                Rule::PortRetraining,
                Level::Degraded,
                "the link trains again and again",
                evidence,
            )
        })
    });
    part.check(Rule::PortRetraining, retraining, at);
    receive(part, &steps, at);
    let discards = (Rule::PortDiscards, Level::Warning, "the port drops what it should send");
    per_second(part, &steps, Counter::XmitDiscards, DISCARDS_PER_SECOND, discards, at);
    let slow = (Rule::PortSlowRestart, Level::Degraded, "RoCE slows down and starts over");
    per_second(part, &steps, Counter::RoceSlowRestart, SLOW_RESTARTS_PER_SECOND, slow, at);
    timeouts(part, &steps, port.in_use, at);
    loss(part, &steps, at);
    requests(part, &steps, at);
    unreadable(part, port);
}

/// What every counter did since the reading before.
struct Steps(Vec<(Counter, Option<Step>)>);

impl Steps {
    fn new(part: &mut Part, port: &Port, at: At) -> Self {
        let step = |counter: &Counter| {
            let value = port.counters.get(counter).copied();
            (*counter, part.step(Series::Port(*counter), value, at))
        };
        Steps(Counter::ALL.iter().map(step).collect())
    }

    fn of(&self, counter: Counter) -> Option<Step> {
        self.0.iter().find(|(c, _)| *c == counter).and_then(|(_, step)| *step)
    }

    /// Those that grew, `None` when none of them could be read.
    fn grown(&self, counters: &[Counter]) -> Option<Vec<(Counter, u64)>> {
        let steps = counters.iter().filter_map(|c| self.of(*c).map(|step| (*c, step.by())));
        let mut known = false;
        let grown = steps.inspect(|_| known = true).filter(|(_, by)| *by > 0).collect();
        known.then_some(grown)
    }
}

fn listed(grown: &[(Counter, u64)]) -> String {
    let words: Vec<String> = grown.iter().map(|(c, by)| format!("{} +{by}", c.file())).collect();
    words.join(", ")
}

fn state(part: &mut Part, port: &Port, siblings: Option<Siblings>, at: At) {
    let up = match (port.state, port.physical) {
        (None, None) => None,
        (state, physical) => Some(
            matches!(state, None | Some(PortState::Active))
                && matches!(physical, None | Some(PhysicalState::LinkUp)),
        ),
    };
    if let (Some(kind), Some(up)) = (&port.kind, up)
        && kind.len() <= MAX_KIND
    {
        let kind = kind.clone();
        part.look = Some(Look { kind, up, rate_gbps: port.rate_gbps.filter(|r| r.is_finite()) });
    }
    if up == Some(true) {
        // What an operator did not mind is over.
        let rates = port.rate_gbps.zip(siblings.and_then(|siblings| siblings.rate_gbps));
        part.facts.stands_apart &= rates.is_none_or(|(rate, others)| rate < others);
    }
    let siblings = siblings.filter(|_| !part.facts.stands_apart);
    if up == Some(true) && !std::mem::replace(&mut part.facts.was_active, true) {
        // The first time is not the end of an outage.
        part.facts.down_since = port.expected.and(part.facts.down_since);
    }
    // A port that nobody expects and that never was up has no cable, and needs none, unless nearly all
    // of its kind have one.
    let wanted = match port.expected {
        Some(expected) => expected,
        None => part.facts.was_active || is_missed(part, port, up, siblings, at),
    };
    let Some(up) = up.filter(|_| wanted) else {
        // That there is nothing to compare it with any more does not make it well.
        let is_well = up.filter(|up| *up || !part.stands(Rule::PortState));
        let known = is_well.map(|_| None);
        part.check(Rule::PortState, known.clone(), at);
        part.check(Rule::PortDrop, known, at);
        return;
    };
    let below = |full: Option<f64>| port.rate_gbps.zip(full).filter(|(rate, full)| rate < full);
    let slower_than_it_was =
        below(port.expected_rate_gbps).zip(Some("the port is slower than it can be"));
    let slower_than_others = below(siblings.and_then(|siblings| siblings.rate_gbps))
        .zip(Some("the port is slower than its siblings"));
    let bad = if up {
        slower_than_it_was.or(slower_than_others).map(|((rate, full), reason)| {
            let evidence = format!("{rate} of {full} Gb/s");
            Bad::new(Rule::PortState, Level::Degraded, reason, evidence)
        })
    } else {
        let never = !part.facts.was_active && port.expected.is_none();
        let reason = match port.physical {
            _ if never => "the port was never up, and its siblings are",
            Some(PhysicalState::Polling) => "the port is down: cable or switch side",
            Some(PhysicalState::Disabled) => "the port is down: switched off by somebody",
            _ => "the port is down",
        };
        let word = |seen: Option<String>| seen.unwrap_or("not read".to_owned());
        let state = word(port.state.map(|state| format!("{state:?}")));
        let physical = word(port.physical.map(|state| format!("{state:?}")));
        let others = siblings.filter(|_| never).map_or(String::new(), |siblings| {
            format!("; {} of {} others of its kind are up", siblings.up, siblings.others)
        });
        let evidence = format!("state {state}, physical state {physical}{others}");
        Some(Bad::new(Rule::PortState, Level::Degraded, reason, evidence))
    };
    part.check(Rule::PortState, Some(bad), at);
    outage(part, up, at);
}

/// Whether a port that was never up has been down for so long that it is not merely coming up, beside
/// siblings that are up. Disabled is somebody's decision.
fn is_missed(
    part: &mut Part,
    port: &Port,
    up: Option<bool>,
    siblings: Option<Siblings>,
    at: At,
) -> bool {
    let is_odd = siblings.is_some() && port.physical != Some(PhysicalState::Disabled);
    if up != Some(false) || !is_odd {
        part.facts.down_since = part.facts.down_since.filter(|_| up.is_none());
        return false;
    }
    at.since(*part.facts.down_since.get_or_insert(at.ms)) > DROP_MS
}

/// How long it has been down, and how often it came back.
fn outage(part: &mut Part, up: bool, at: At) {
    if up {
        if part.facts.down_since.take().is_some_and(|since| at.since(since) >= OUTAGE_MS) {
            part.outages.push(at);
            flaps(part, at);
        }
        part.check(Rule::PortDrop, Some(None), at);
        return;
    }
    let since = *part.facts.down_since.get_or_insert(at.ms);
    let down = at.since(since);
    let drop = (down > DROP_MS).then(|| {
        let evidence = format!("down for {} s", down / 1000);
        Bad::new(Rule::PortDrop, Level::Degraded, "the port stays down", evidence)
    });
    part.check(Rule::PortDrop, Some(drop), at);
}

fn flaps(part: &mut Part, at: At) {
    let outages = part.outages.count(FLAP_HOURS, at);
    let downs = part.link_downs.count(FLAP_HOURS, at);
    if outages.max(downs) >= FLAPS {
        let evidence =
            format!("{downs} times link_downed, {outages} outages in {FLAP_HOURS} hours");
        let bad = Bad::new(Rule::PortFlap, Level::NoNewJobs, "the link comes and goes", evidence);
        part.event(Rule::PortFlap, bad, at);
    }
}

fn link_downed(part: &mut Part, steps: &Steps, nccl: Option<u64>, at: At) {
    let Some(step) = steps.of(Counter::LinkDowned) else {
        return part.check(Rule::PortLinkDowned, None, at);
    };
    let by = step.by();
    if by == 0 {
        part.pass(Rule::PortFlap, at);
        part.pass(Rule::PortLostInGang, at);
        return part.check(Rule::PortLinkDowned, Some(None), at);
    }
    let bad = Bad::new(
        Rule::PortLinkDowned,
        Level::Degraded,
        "the link was lost",
        format!("link_downed +{by}"),
    );
    part.event(Rule::PortLinkDowned, bad, at);
    for _ in 0..by.min(FLAPS as u64) {
        part.link_downs.push(at);
    }
    flaps(part, at);
    if nccl.is_some_and(|then| at.since(then) <= TOGETHER_MS) {
        lost_in_gang(part, at);
    }
}

/// A gang here failed with an NCCL error: was this link lost shortly before?
pub fn on_nccl_error(part: &mut Part, at: At) {
    if part.link_downs.at.back().is_some_and(|then| at.since(*then) <= TOGETHER_MS) {
        lost_in_gang(part, at);
    }
}

fn lost_in_gang(part: &mut Part, at: At) {
    let reason = "the link was lost while a gang failed with an NCCL error";
    let evidence = "link_downed grew within 5 minutes of the error";
    let bad = Bad::new(Rule::PortLostInGang, Level::NoNewJobs, reason, evidence);
    part.event(Rule::PortLostInGang, bad, at);
}

fn broken(part: &mut Part, steps: &Steps, at: At) {
    match steps.grown(&BROKEN) {
        Some(grown) if !grown.is_empty() => {
            let reason = "the port loses what must not be lost";
            let bad = Bad::new(Rule::PortBroken, Level::Fatal, reason, listed(&grown));
            part.event(Rule::PortBroken, bad, at);
        }
        known => part.check(Rule::PortBroken, known.map(|_| None), at),
    }
}

fn symbols(part: &mut Part, steps: &Steps, at: At) {
    let series = Series::Port(Counter::SymbolError);
    let verdict = steps.of(Counter::SymbolError).map(|step| {
        let hour = part.count(series, step, at).sum(60, at);
        let rate = part.per_second(series).unwrap_or(0.0);
        let level = if hour > SYMBOLS_PER_HOUR {
            Level::Fatal
        } else if rate > SYMBOLS_PER_SECOND {
            Level::Degraded
        } else {
            return None;
        };
        let evidence = format!("{rate:.1} symbol errors per second, {hour} in the last hour");
        Some(Bad::new(Rule::PortSymbols, level, "the link has bit errors", evidence))
    });
    part.check(Rule::PortSymbols, verdict, at);
}

fn receive(part: &mut Part, steps: &Steps, at: At) {
    let verdict = steps.grown(&RECEIVE).map(|grown| {
        let by = grown.iter().fold(0_u64, |sum, (_, by)| sum.saturating_add(*by));
        let minutes = part.count(Series::Receive, Step::Grew { by, ms: 0 }, at);
        let (busy, sum) = (minutes.busy(10, at), minutes.sum(10, at));
        (busy >= RECEIVE_MINUTES).then(|| {
            let evidence =
                format!("{sum} in {busy} of the last 10 minutes; now {}", listed(&grown));
            Bad::new(Rule::PortReceive, Level::Degraded, "the port receives bad packets", evidence)
        })
    });
    part.check(Rule::PortReceive, verdict, at);
}

/// A counter that may grow so fast and no faster.
fn per_second(
    part: &mut Part,
    steps: &Steps,
    counter: Counter,
    most: f64,
    (rule, level, reason): (Rule, Level, &str),
    at: At,
) {
    if steps.of(counter).is_none() {
        return part.check(rule, None, at);
    }
    let Some(rate) = part.per_second(Series::Port(counter)) else { return part.touch(rule) };
    let bad = (rate > most).then(|| {
        let evidence = format!("{rate:.0} {} per second", counter.file());
        Bad::new(rule, level, reason, evidence)
    });
    part.check(rule, Some(bad), at);
}

fn timeouts(part: &mut Part, steps: &Steps, in_use: Option<bool>, at: At) {
    let Some(step) = steps.of(Counter::LocalAckTimeout) else {
        return part.check(Rule::PortTimeouts, None, at);
    };
    let by = step.by();
    let habit = part.habits.entry(Counter::LocalAckTimeout).or_default();
    let unusual = habit.add(by, at).filter(|minute| minute.is_unusual());
    if let Some(minute) = unusual {
        let evidence = format!("{} in a minute, usually {:.1}", minute.sum, minute.usual);
        let reason = "far more time-outs than usual";
        let bad = Bad::new(Rule::PortTimeouts, Level::Degraded, reason, evidence);
        return part.event(Rule::PortTimeouts, bad, at);
    }
    if by > 0 && in_use == Some(true) {
        let minutes = part.count(Series::Port(Counter::LocalAckTimeout), step, at);
        let sum = minutes.sum(TIMEOUT_MINUTES, at);
        // A single one is a peer that ended, or nothing.
        if sum < TIMEOUTS {
            return part.touch(Rule::PortTimeouts);
        }
        let evidence = format!("{sum} local_ack_timeout_err in {TIMEOUT_MINUTES} minutes");
        let bad =
            Bad::new(Rule::PortTimeouts, Level::Warning, "time-outs while a gang trains", evidence);
        return part.event(Rule::PortTimeouts, bad, at);
    }
    // Time-outs outside training (peers that end) are neither good nor bad.
    part.check(Rule::PortTimeouts, (by == 0).then_some(None), at);
}

fn loss(part: &mut Part, steps: &Steps, at: At) {
    let (mut known, mut whole, mut unusual) = (false, false, Vec::new());
    for counter in LOSS {
        let Some(step) = steps.of(counter) else { continue };
        known = true;
        if let Some(minute) = part.habits.entry(counter).or_default().add(step.by(), at) {
            whole = true;
            if minute.is_unusual() {
                unusual.push(format!(
                    "{} {} (usually {:.1})",
                    counter.file(),
                    minute.sum,
                    minute.usual
                ));
            }
        }
    }
    if !known {
        return part.check(Rule::PortLoss, None, at);
    }
    // One verdict per whole minute; meanwhile nothing new is known.
    part.touch(Rule::PortLoss);
    if whole {
        let reason = "far more lost or reordered packets than usual";
        let evidence = || format!("in a minute: {}", unusual.join(", "));
        let bad = (!unusual.is_empty())
            .then(|| Bad::new(Rule::PortLoss, Level::Warning, reason, evidence()));
        part.check(Rule::PortLoss, Some(bad), at);
    }
}

fn requests(part: &mut Part, steps: &Steps, at: At) {
    match steps.grown(&REQUESTS) {
        Some(grown) if !grown.is_empty() => {
            let bad = Bad::new(
                Rule::PortRequests,
                Level::Warning,
                "work requests failed",
                listed(&grown),
            );
            part.event(Rule::PortRequests, bad, at);
        }
        known => part.check(Rule::PortRequests, known.map(|_| None), at),
    }
}

/// Files that cannot be read are said, and nothing else.
fn unreadable(part: &mut Part, port: &Port) {
    if port.unreadable.is_empty() {
        part.blind.remove(&Rule::PortState);
        return;
    }
    const SHOWN: usize = 4;
    let names: Vec<&str> = port.unreadable.iter().take(SHOWN).map(String::as_str).collect();
    let why = format!("{} files cannot be read: {}", port.unreadable.len(), names.join(" "));
    part.blind.insert(Rule::PortState, text::clean(&why, crate::latch::MAX_REASON));
}

/// The ports as a set: how many, and their character devices.
pub fn on_ports(part: &mut Part, ports: &Ports, at: At) {
    let count = ports.present.as_ref().zip(ports.registered).map(|(present, registered)| {
        let there = present.len();
        (there < registered as usize).then(|| {
            let names: Vec<String> =
                present.iter().map(|(device, port)| format!("{device}/{port}")).collect();
            let evidence = format!("{there} of {registered}: {}", names.join(" "));
            Bad::new(Rule::PortCount, Level::Degraded, "RDMA ports are missing", evidence)
        })
    });
    part.check(Rule::PortCount, count, at);

    let devices = ports.present.as_ref().map(|present| {
        let devices: std::collections::BTreeSet<&str> =
            present.iter().map(|(device, _)| device.as_str()).collect();
        u32::try_from(devices.len()).unwrap_or(u32::MAX)
    });
    if let Some(umad) = ports.umad {
        part.facts.most_umad = part.facts.most_umad.max(umad);
    }
    let most_umad = part.facts.most_umad;
    let uverbs = ports.uverbs.zip(devices).map(|(there, needed)| {
        let few = needed.saturating_sub(there);
        part.facts.few_uverbs = few;
        part.facts.spared_uverbs = part.facts.spared_uverbs.min(few);
        few > part.facts.spared_uverbs
    });
    let umad = ports.umad.map(|there| there < most_umad);
    let bad = match (uverbs, umad) {
        (None, None) => None,
        (uverbs, umad) => Some(uverbs == Some(true) || umad == Some(true)),
    };
    let verdict = bad.map(|bad| {
        let shown = |count: Option<u32>| count.map_or("not read".to_owned(), |n| n.to_string());
        bad.then(|| {
            let evidence = format!(
                "{} RDMA devices, uverbs {}, umad {} (were {most_umad})",
                shown(devices),
                shown(ports.uverbs),
                shown(ports.umad),
            );
            let reason = "RDMA character devices are missing";
            Bad::new(Rule::RdmaDevices, Level::Degraded, reason, evidence)
        })
    });
    part.check(Rule::RdmaDevices, verdict, at);
}
