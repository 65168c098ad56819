//! Hysteresis, reading by reading.

use super::*;
use crate::rule::{CALM_MS, DAY_MS};

/// A rule that good readings end.
const CALM: Rule = Rule::HostMemory;
/// One that can be fatal and less.
const LEVELS: Rule = Rule::PortSymbols;

const fn at(seconds: u64) -> At {
    At { ms: seconds * 1000, wall_ms: seconds * 1000 }
}

fn bad(rule: Rule, level: Level) -> Bad {
    Bad::new(rule, level, format!("{level}"), "")
}

fn read(latch: &mut Latch, rule: Rule, level: Option<Level>, second: u64) {
    latch.judge(rule.row(), level.map(|level| bad(rule, level)), at(second));
}

fn level(latch: &Latch) -> Option<Level> {
    latch.raised.as_ref().map(|raised| raised.bad.level)
}

#[test]
fn two_bad_readings_in_a_row_and_not_one() {
    let mut latch = Latch::default();
    for second in 0..100 {
        let level = (second % 2 == 0).then_some(Level::Degraded);
        read(&mut latch, CALM, level, second);
    }
    assert_eq!(level(&latch), None);
    read(&mut latch, CALM, Some(Level::Degraded), 200);
    assert!(latch.may_become(Level::Degraded));
    assert!(!latch.may_become(Level::Fatal));
    read(&mut latch, CALM, Some(Level::Degraded), 201);
    assert_eq!(level(&latch), Some(Level::Degraded));
    assert!(!latch.may_become(Level::Info));
}

#[test]
fn ten_minutes_of_good_readings_end_it_and_one_bad_one_begins_them_anew() {
    let mut latch = Latch::default();
    read(&mut latch, CALM, Some(Level::Degraded), 0);
    read(&mut latch, CALM, Some(Level::Degraded), 1);
    for second in 2..500 {
        read(&mut latch, CALM, None, second);
    }
    read(&mut latch, CALM, Some(Level::Degraded), 500);
    for second in 501..=1_100 {
        read(&mut latch, CALM, None, second);
    }
    assert_eq!(level(&latch), Some(Level::Degraded));
    read(&mut latch, CALM, None, 1_101);
    assert_eq!(level(&latch), None);
}

#[test]
fn silence_is_not_good() {
    let mut latch = Latch::default();
    read(&mut latch, CALM, Some(Level::Degraded), 0);
    read(&mut latch, CALM, Some(Level::Degraded), 1);
    read(&mut latch, CALM, None, 2);
    // Good again after an hour of nothing: the ten minutes begin here.
    read(&mut latch, CALM, None, 3_600);
    read(&mut latch, CALM, None, 3_600 + 299);
    assert_eq!(level(&latch), Some(Level::Degraded));
    read(&mut latch, CALM, None, 3_600 + 500);
    read(&mut latch, CALM, None, 3_600 + 600);
    assert_eq!(level(&latch), None);
}

#[test]
fn it_worsens_by_two_readings_and_eases_by_ten_minutes() {
    let mut latch = Latch::default();
    let rule = Rule::SharedFull;
    read(&mut latch, rule, Some(Level::Warning), 0);
    read(&mut latch, rule, Some(Level::NoNewJobs), 1);
    assert_eq!(level(&latch), Some(Level::Warning), "the milder of two is sure");
    read(&mut latch, rule, Some(Level::NoNewJobs), 2);
    assert_eq!(level(&latch), Some(Level::NoNewJobs));
    for second in 3..603 {
        read(&mut latch, rule, Some(Level::Warning), second);
    }
    assert_eq!(level(&latch), Some(Level::NoNewJobs));
    read(&mut latch, rule, Some(Level::Warning), 603);
    assert_eq!(level(&latch), Some(Level::Warning));
    let since = latch.raised.as_ref().map(|raised| raised.since);
    assert_eq!(since, Some(at(1)), "it is still the same condition");
    for second in 604..=1_204 {
        read(&mut latch, rule, None, second);
    }
    assert_eq!(level(&latch), None);
}

#[test]
fn good_with_milder_readings_among_them_eases_to_the_milder() {
    let mut latch = Latch::default();
    let rule = Rule::SharedFull;
    for second in 0..2 {
        read(&mut latch, rule, Some(Level::NoNewJobs), second);
    }
    for second in 2..=602 {
        read(&mut latch, rule, (second == 300).then_some(Level::Warning), second);
    }
    assert_eq!(level(&latch), Some(Level::Warning));
    for second in 603..1_202 {
        read(&mut latch, rule, None, second);
    }
    assert_eq!(level(&latch), Some(Level::Warning));
    read(&mut latch, rule, None, 1_202);
    assert_eq!(level(&latch), None);
}

#[test]
fn fatal_does_not_ease_and_ends_only_after_a_boot_with_good_readings() {
    let mut latch = Latch::default();
    for second in 0..2 {
        read(&mut latch, LEVELS, Some(Level::Fatal), second);
    }
    for second in 2..20_000 {
        let milder = (second % 3 == 0).then_some(Level::Degraded);
        read(&mut latch, LEVELS, milder, second);
    }
    assert_eq!(level(&latch), Some(Level::Fatal));
    // Reset of the GPU: not enough for what is fatal.
    latch.started_anew(false);
    for second in 20_000..20_010 {
        read(&mut latch, LEVELS, None, second);
    }
    assert_eq!(level(&latch), Some(Level::Fatal));
    // A boot, and it is seen again: it stays.
    latch.started_anew(true);
    read(&mut latch, LEVELS, Some(Level::Fatal), 20_020);
    for second in 20_021..20_100 {
        read(&mut latch, LEVELS, None, second);
    }
    assert_eq!(level(&latch), Some(Level::Fatal));
    latch.started_anew(true);
    read(&mut latch, LEVELS, None, 20_200);
    assert_eq!(level(&latch), Some(Level::Fatal));
    read(&mut latch, LEVELS, None, 20_201);
    assert_eq!(level(&latch), None);
}

#[test]
fn an_event_counts_at_once_and_runs_out() {
    let rule = Rule::Kernel;
    let mut latch = Latch::default();
    latch.event(bad(rule, Level::Degraded), at(0));
    assert_eq!(level(&latch), Some(Level::Degraded));
    // A milder one does not keep it alive.
    latch.event(bad(rule, Level::Info), at(3_000));
    assert_eq!(level(&latch), Some(Level::Degraded));
    assert!(!latch.is_over(rule.row(), at(3_599)));
    assert!(latch.is_over(rule.row(), at(3_600)));
}

#[test]
fn what_nobody_reads_is_not_over() {
    let day = DAY_MS / 1000;
    let mut latch = Latch::default();
    read(&mut latch, CALM, Some(Level::Degraded), 0);
    read(&mut latch, CALM, Some(Level::Degraded), 1);
    assert!(!latch.is_over(CALM.row(), at(30 * day)));
    let mut kept = Latch::default();
    kept.event(bad(Rule::PortFlap, Level::NoNewJobs), at(0));
    assert!(!kept.is_over(Rule::PortFlap.row(), at(30 * day)));
}

#[test]
fn a_rule_can_ask_for_a_time_besides_two_readings() {
    let mut latch = Latch::default();
    for second in 0..5 {
        read(&mut latch, Rule::Foreign, Some(Level::NoNewJobs), second);
        assert_eq!(level(&latch), None, "{second}");
    }
    read(&mut latch, Rule::Foreign, Some(Level::NoNewJobs), 5);
    assert_eq!(level(&latch), Some(Level::NoNewJobs));
    for second in 6..=66 {
        read(&mut latch, Rule::Foreign, None, second);
    }
    assert_eq!(level(&latch), None);
    assert_eq!(CALM_MS, 600_000);
}

#[test]
fn words_are_cleaned_and_bounded() {
    let mut latch = Latch::default();
    let long = "\u{1b}[31m".repeat(500);
    latch.event(Bad::new(Rule::Kernel, Level::Degraded, long.clone(), long), at(0));
    let bad = latch.raised.expect("an event raises").bad;
    assert_eq!(bad.reason.chars().count(), MAX_REASON);
    assert_eq!(bad.evidence.chars().count(), MAX_EVIDENCE);
    assert!(!bad.evidence.contains('\u{1b}'));
}
