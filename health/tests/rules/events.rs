//! Row 3: Xids and SXids.

use gangline_common::ids::JobId;
use gangline_health::reading::{KernelClass, KernelLine, RecoveryAction, Sxid, Xid};
use gangline_health::xid::{Tier, tier};
use gangline_health::{Action, Component, Level, Reading, Rule};

use crate::support::{DAY, HOUR, Node, gpu, gpu_id, gpu_part, xid};

fn with_job(code: u32, job: &str) -> Reading {
    let job = Some(JobId::new(job).unwrap());
    Reading::Xid(Xid { gpu: Some(gpu_id(0)), code, text: None, job })
}

fn with_text(code: u32, text: &str) -> Reading {
    Reading::Xid(Xid { gpu: Some(gpu_id(0)), code, text: Some(text.to_owned()), job: None })
}

#[test]
fn every_fatal_xid_is_fatal_at_once_and_stays() {
    for code in (0..200).filter(|code| tier(*code).0 == Tier::Fatal) {
        let mut node = Node::new();
        node.see(&xid(2, code));
        let condition = node.condition(Rule::XidFatal).unwrap();
        assert_eq!((condition.level, &condition.component), (Level::Fatal, &gpu_part(2)));
        assert!(condition.reason.starts_with(&format!("Xid {code}: ")), "{}", condition.reason);
        node.gpu_for(HOUR, &gpu(2));
        assert_eq!(node.levels(), [(Rule::XidFatal, Level::Fatal)].into(), "Xid {code}");
    }
}

#[test]
fn xids_of_the_acceptance_list() {
    for (code, rule, level, action) in [
        (79, Rule::XidFatal, Level::Fatal, Action::RebootSystem),
        (48, Rule::XidFatal, Level::Fatal, Action::RebootSystem),
        (63, Rule::XidInfo, Level::Info, Action::Ignore),
        (64, Rule::XidFatal, Level::Fatal, Action::HardwareInspection),
        (94, Rule::XidWatch, Level::DrainAfterJob, Action::RebootSystem),
        (119, Rule::XidFatal, Level::Fatal, Action::RebootSystem),
    ] {
        let mut node = Node::new();
        node.see(&xid(0, code));
        let conditions = node.conditions();
        assert_eq!(conditions.len(), 1, "Xid {code}");
        let seen = (conditions[0].rule, conditions[0].level, conditions[0].suggested_action);
        assert_eq!(seen, (rule, level, action), "Xid {code}");
    }
}

#[test]
fn an_operator_ends_a_fatal_xid_and_the_next_one_is_a_new_condition() {
    let mut node = Node::new();
    node.see(&xid(0, 79));
    assert!(!node.clear(Rule::XidFatal, &gpu_part(1)));
    assert!(node.clear(Rule::XidFatal, &gpu_part(0)));
    assert!(!node.clear(Rule::XidFatal, &gpu_part(0)));
    assert_eq!(node.conditions(), []);
    node.now += 100;
    node.see(&xid(0, 79));
    assert_eq!(node.condition(Rule::XidFatal).unwrap().for_ms, 0);
}

#[test]
fn an_order_to_end_a_condition_does_not_end_a_newer_one() {
    let mut node = Node::new();
    node.see(&xid(0, 79));
    let old = node.condition(Rule::XidFatal).unwrap();
    node.now += 5;
    node.see(&xid(0, 79));
    let seen_again = node.condition(Rule::XidFatal).unwrap();
    assert!(seen_again.says_the_same(&old) && seen_again != old);
    let end = |node: &mut Node| {
        let now = node.time();
        node.engine.clear_one(Rule::XidFatal, &gpu_part(0), old.since_wall_ms, now)
    };
    assert!(end(&mut node));
    node.now += 1;
    node.see(&xid(0, 79));
    assert!(!end(&mut node));
    let new = node.condition(Rule::XidFatal).unwrap();
    assert!(!new.says_the_same(&old));
}

#[test]
fn another_fatal_finding_on_the_same_gpu_is_news_and_the_same_again_is_not() {
    let mut node = Node::new();
    node.see(&xid(0, 48));
    let first = node.condition(Rule::XidFatal).unwrap();
    node.now += 1;
    node.see(&xid(0, 79));
    let second = node.condition(Rule::XidFatal).unwrap();
    assert!(second.reason.starts_with("Xid 79: "), "{}", second.reason);
    assert!(!second.says_the_same(&first));
    assert_eq!(second.since_wall_ms, first.since_wall_ms, "it is still the same condition");
    // Back and forth is no news, but the newest words are shown.
    for code in [48, 79, 48] {
        node.now += 1;
        node.see(&xid(0, code));
        let again = node.condition(Rule::XidFatal).unwrap();
        assert!(again.reason.starts_with(&format!("Xid {code}: ")), "{}", again.reason);
        assert!(again.says_the_same(&second));
    }
    // Nor is there any end of it when everything is found at once.
    let mut said = 0;
    let mut before = second;
    for code in (0..200).filter(|code| tier(*code).0 == Tier::Fatal).cycle().take(1_000) {
        node.see(&xid(0, code));
        let now = node.condition(Rule::XidFatal).unwrap();
        said += usize::from(!now.says_the_same(&before));
        before = now;
    }
    assert_eq!(said, 6);
    node.restart(10);
    assert!(node.condition(Rule::XidFatal).unwrap().says_the_same(&before));
}

#[test]
fn another_application_xid_and_another_line_of_the_kernel_are_news() {
    let line = |class| Reading::Kernel(KernelLine { class, text: "seen".to_owned() });
    for (first, second, rule) in [
        (xid(0, 31), xid(0, 13), Rule::XidApp),
        (line(KernelClass::SoftLockup), line(KernelClass::IoError), Rule::Kernel),
    ] {
        let mut node = Node::new();
        node.see(&first);
        let before = node.condition(rule).unwrap();
        node.see(&first);
        assert!(node.condition(rule).unwrap().says_the_same(&before));
        node.see(&second);
        assert!(!node.condition(rule).unwrap().says_the_same(&before));
    }
}

#[test]
fn an_application_xid_leaves_the_node_alone_until_three_jobs_met_it() {
    let mut node = Node::new();
    for _ in 0..50 {
        node.see(&with_job(31, "a"));
        node.see(&with_job(31, "b"));
        node.see(&with_job(13, "c"));
        node.see(&xid(0, 31));
        node.now += 60;
    }
    assert_eq!(node.levels(), [(Rule::XidApp, Level::Info)].into());
    node.see(&with_job(31, "d"));
    let condition = node.condition(Rule::XidRepeated).unwrap();
    assert_eq!(condition.level, Level::Degraded);
    assert_eq!(condition.reason, "Xid 31 in 3 jobs within a day");
    assert_eq!(condition.evidence, "a, b, d");
    node.gpu_for(DAY - 10, &gpu(0));
    assert_eq!(node.level(Rule::XidRepeated), Some(Level::Degraded));
    node.gpu_for(20, &gpu(0));
    assert_eq!(node.conditions(), []);
}

#[test]
fn three_jobs_on_three_days_are_not_repeated() {
    let mut node = Node::new();
    for job in ["a", "b", "c", "d", "e"] {
        node.see(&with_job(13, job));
        node.see_for(13 * HOUR, &Reading::ClockOffset(0));
    }
    assert_eq!(node.level(Rule::XidRepeated), None);
}

#[test]
fn xid_45_follows_whatever_ends_a_job_and_never_counts() {
    let mut node = Node::new();
    for job in 0..100 {
        node.see(&with_job(45, &format!("job-{job}")));
        node.now += 60;
    }
    assert_eq!(node.levels(), [(Rule::XidApp, Level::Info)].into());
}

#[test]
fn nvlink5_is_decided_by_its_severity_word() {
    for (text, rule, level) in [
        ("NETIR_LINK_DOWN Link Fatal link 3", Rule::XidFatal, Level::Fatal),
        ("RLW_REMAP Fatal", Rule::XidFatal, Level::Fatal),
        ("RLW_REMAP Nonfatal XC1 i0", Rule::XidInfo, Level::Info),
        ("no word", Rule::XidNvlink, Level::Warning),
    ] {
        for code in 144..=150 {
            let mut node = Node::new();
            node.see(&with_text(code, text));
            assert_eq!(node.levels(), [(rule, level)].into(), "Xid {code} {text}");
        }
    }
    let mut node = Node::new();
    node.see(&xid(0, 149));
    assert_eq!(node.levels(), [(Rule::XidNvlink, Level::Warning)].into());
}

#[test]
fn xid_154_is_the_recovery_action_and_nvml_eases_it() {
    let verdict = |to: &str| {
        with_text(154, &format!("GPU recovery action changed from 0x0 (None) to 0x1 ({to})"))
    };
    for (to, level) in [
        ("GPU Reset Required", Level::Fatal),
        ("Node Reboot Required", Level::Fatal),
        ("Drain and Reset", Level::DrainAfterJob),
        ("Drain P2P", Level::DrainAfterJob),
    ] {
        let mut node = Node::new();
        node.see(&verdict(to));
        assert_eq!(node.levels(), [(Rule::RecoveryAction, level)].into(), "{to}");
    }
    let mut node = Node::new();
    node.see(&verdict("Drain and Reset"));
    let mut healthy = gpu(0);
    healthy.recovery_action = Some(RecoveryAction::None);
    node.gpu_for(11 * 60, &healthy);
    assert_eq!(node.conditions(), []);
    node.see(&verdict("None"));
    assert_eq!(node.levels(), [(Rule::XidInfo, Level::Info)].into());
}

#[test]
fn unknown_and_unused_codes_are_told_with_a_note() {
    for (code, note) in
        [(9_999, "not in the catalogue"), (0, "not in the catalogue"), (2, "unused")]
    {
        let mut node = Node::new();
        node.see(&xid(0, code));
        let condition = node.condition(Rule::XidInfo).unwrap();
        assert_eq!(condition.reason, format!("Xid {code}: {note}"));
        assert_eq!(condition.level, Level::Info);
    }
}

#[test]
fn an_xid_of_an_unknown_gpu_is_the_nodes() {
    let mut node = Node::new();
    node.see(&Reading::Xid(Xid { gpu: None, code: 79, text: None, job: None }));
    assert_eq!(node.condition(Rule::XidFatal).unwrap().component, Component::Node);
}

#[test]
fn an_sxid_says_itself_whether_it_is_fatal() {
    for (fatal, level) in [(true, Level::Fatal), (false, Level::Info)] {
        let mut node = Node::new();
        let switch = "0000:05:00.0".to_owned();
        node.see(&Reading::Sxid(Sxid { switch, code: 12_028, fatal }));
        let condition = node.condition(Rule::Sxid).unwrap();
        assert_eq!(
            (condition.level, condition.component),
            (level, Component::switch("0000:05:00.0"))
        );
        // What is fatal does not run out.
        node.see_for(2 * DAY, &Reading::ClockOffset(0));
        assert_eq!(node.level(Rule::Sxid), fatal.then_some(Level::Fatal));
    }
}

#[test]
fn xid_94_drains_until_the_gpu_was_reset() {
    let mut node = Node::new();
    let used = gangline_health::reading::Gpu { ecc_dram_uncorrected: Some(4), ..gpu(0) };
    node.gpu_for(5, &used);
    node.see(&xid(0, 94));
    node.gpu_for(DAY, &used);
    assert_eq!(node.levels(), [(Rule::XidWatch, Level::DrainAfterJob)].into());
    node.gpu_for(5, &gpu(0));
    assert_eq!(node.conditions(), []);
}
