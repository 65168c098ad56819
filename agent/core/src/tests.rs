//! Scenarios of the core, told as a story of one node.

use std::time::Duration;

use gangline_common::ids::{Epoch, GangId, Generation, GpuId, MemberId, MemberKey};
use gangline_common::time::Timestamp;

use super::assignment::{
    DesiredSet, Digest, GangOrder, MemberOrder, Order, Phase, Refusal, RunOrder,
};
use super::effect::{Effect, Effects};
use super::event::{Event, MemberChange};
use super::reconcile::STOP_REPEAT_MS;
use super::{Core, MAX_GANGS, MAX_MEMBERS, MAX_SEEN};

const GRACE: Duration = Duration::from_secs(30);

pub(super) fn epoch(n: u32) -> Epoch {
    Epoch { era: 1, n }
}

pub(super) fn generation(n: u64) -> Generation {
    Generation { era: 1, n }
}

pub(super) fn key(gang: &str, n: u32) -> MemberKey {
    MemberKey { gang: GangId::new(gang).unwrap(), epoch: epoch(n), member: MemberId::Rank(0) }
}

/// One rank on the named GPUs.
pub(super) fn run(gang: &str, n: u32, gpus: &[&str]) -> GangOrder {
    let gpus = gpus.iter().map(|gpu| GpuId((*gpu).to_owned())).collect();
    let members = vec![MemberOrder { member: MemberId::Rank(0), gpus }];
    let order = Order::Run(RunOrder {
        members,
        grace: GRACE,
        contact_within: None,
        digest: Digest([0; 32]),
    });
    GangOrder { gang: GangId::new(gang).unwrap(), epoch: epoch(n), order }
}

/// The same with another content of its assignment.
fn with_content(mut order: GangOrder, content: u8) -> GangOrder {
    if let Order::Run(run) = &mut order.order {
        run.digest = Digest([content; 32]);
    }
    order
}

pub(super) fn stop(gang: &str, n: u32) -> GangOrder {
    GangOrder { gang: GangId::new(gang).unwrap(), epoch: epoch(n), order: Order::Stop }
}

/// A node whose events are written in the words of the outside.
struct Node {
    core: Core,
    now: Timestamp,
}

impl Node {
    /// An agent that starts for the first time.
    fn new() -> Self {
        let mut node = Node { core: Core::new(), now: Timestamp::default() };
        assert_eq!(node.on(Event::Restored(Default::default())).list, [Effect::ReportChanged]);
        node
    }

    fn on(&mut self, event: Event) -> Effects {
        self.now = self.now.plus_ms(1000);
        let mut effects = Effects::default();
        self.core.step(event, self.now, &mut effects);
        effects
    }

    fn desires(&mut self, n: u64, gangs: Vec<GangOrder>) -> Effects {
        self.on(Event::Desired(DesiredSet { generation: generation(n), gangs }))
    }

    fn member(&mut self, key: MemberKey, change: MemberChange) -> Effects {
        self.on(Event::MemberChanged { key, change })
    }

    fn runs(&mut self, key: MemberKey) -> Effects {
        self.member(key, MemberChange::Running { pid: 42 })
    }

    fn ends(&mut self, key: MemberKey) -> Effects {
        self.member(key, MemberChange::Ended)
    }

    /// The agent process dies and starts again with what its ledger last got.
    fn restarts(&mut self) -> Effects {
        let ledger = self.core.durable();
        self.core = Core::new();
        self.on(Event::Restored(ledger))
    }

    fn phase(&self, key: &MemberKey) -> Option<Phase> {
        self.core.member(key).map(|member| member.phase.clone())
    }
}

#[track_caller]
fn assert_starts(effects: &Effects, key: &MemberKey) {
    assert!(effects.list.contains(&Effect::Start(key.clone())), "{effects:?}");
    let ledger = effects.ledger.as_ref().expect("a start needs its ledger write");
    assert!(ledger.members.contains_key(key), "the ledger does not name {key}");
}

#[track_caller]
fn assert_stops(effects: &Effects, key: &MemberKey) {
    let stop = Effect::Stop { key: key.clone(), grace: GRACE };
    assert!(effects.list.contains(&stop), "{effects:?}");
}

#[track_caller]
fn assert_touches_no_process(effects: &Effects) {
    for effect in &effects.list {
        assert!(
            !matches!(effect, Effect::Start(_) | Effect::Stop { .. } | Effect::Adopt(_)),
            "{effect:?}"
        );
    }
}

#[track_caller]
fn assert_protocol_error(effects: &Effects, word: &str) {
    let [Effect::ProtocolError(text)] = effects.list.as_slice() else {
        panic!("not a lone protocol error: {effects:?}");
    };
    assert!(text.contains(word), "{text}");
    assert_eq!(effects.ledger, None);
}

#[test]
fn a_gang_runs_is_stopped_and_is_forgotten() {
    let mut node = Node::new();
    let member = key("g", 1);
    assert_starts(&node.desires(1, vec![run("g", 1, &["a"])]), &member);
    assert_eq!(node.runs(member.clone()).list, [Effect::ReportChanged]);
    assert_stops(&node.desires(2, vec![stop("g", 1)]), &member);
    assert_eq!(node.phase(&member), Some(Phase::Stopping));

    node.ends(member.clone());
    let Some(Phase::Ended(end)) = node.phase(&member) else { panic!("still there") };
    assert!(end.asked && end.ran && !end.logs_complete);
    // The order is confirmed and gone, but the logs are only here: the files stay.
    assert_touches_no_process(&node.desires(3, vec![]));
    assert!(node.core.member(&member).is_some());
    let effects = node.on(Event::LogsComplete(member.clone()));
    assert_eq!(effects.list, [Effect::Release(member.clone()), Effect::ReportChanged]);
    let effects = node.on(Event::Released(member.clone()));
    assert!(effects.ledger.is_some_and(|ledger| ledger.members.is_empty()));
    assert_eq!(node.phase(&member), None);
}

#[test]
fn absence_is_never_a_stop() {
    let mut node = Node::new();
    node.desires(1, vec![run("g", 1, &["a"])]);
    node.runs(key("g", 1));
    // A coordinator with an empty store and a higher era.
    let set = DesiredSet { generation: Generation { era: 9, n: 0 }, gangs: vec![] };
    assert_touches_no_process(&node.on(Event::Desired(set)));
    assert_touches_no_process(&node.on(Event::Tick));
    assert_eq!(node.phase(&key("g", 1)), Some(Phase::Running { pid: 42 }));
    // It still holds its GPU.
    let set = DesiredSet {
        generation: Generation { era: 9, n: 1 },
        gangs: vec![run("other", 1, &["a"])],
    };
    assert_touches_no_process(&node.on(Event::Desired(set)));
    let held = Refusal::GpuHeld { gpu: GpuId("a".into()), by: key("g", 1) };
    assert_eq!(node.phase(&key("other", 1)), Some(Phase::Refused(held)));
}

#[test]
fn an_older_generation_is_answered_with_a_report_only() {
    let mut node = Node::new();
    node.desires(5, vec![run("g", 1, &["a"])]);
    let effects = node.desires(4, vec![stop("g", 1)]);
    assert_eq!(effects.list, [Effect::ReportChanged]);
    assert_eq!(effects.ledger, None);
    assert_eq!(node.core.held(), generation(5));
}

#[test]
fn one_generation_has_one_content() {
    let mut node = Node::new();
    node.desires(5, vec![run("g", 1, &["a"])]);
    assert!(node.desires(5, vec![run("g", 1, &["a"])]).is_empty());
    assert_protocol_error(&node.desires(5, vec![stop("g", 1)]), "two contents");
    assert_protocol_error(&node.desires(5, vec![]), "two contents");
    assert_eq!(node.phase(&key("g", 1)), Some(Phase::Starting));
}

#[test]
fn a_malformed_set_changes_nothing() {
    let mut node = Node::new();
    let twice = vec![run("g", 1, &["a"]), stop("g", 1)];
    assert_protocol_error(&node.desires(1, twice), "listed twice");
    let many = (0..=MAX_GANGS).map(|n| stop(&format!("g{n}"), 1)).collect();
    assert_protocol_error(&node.desires(1, many), "limit");

    let with_members = |members: Vec<MemberOrder>| {
        let order = Order::Run(RunOrder {
            members,
            grace: GRACE,
            contact_within: None,
            digest: Digest([0; 32]),
        });
        vec![GangOrder { order, ..stop("g", 1) }]
    };
    let rank = |n| MemberOrder { member: MemberId::Rank(n), gpus: vec![] };
    assert_protocol_error(&node.desires(1, with_members(vec![])), "0 members");
    let crowd = (0..=MAX_MEMBERS as u32).map(rank).collect();
    assert_protocol_error(&node.desires(1, with_members(crowd)), "65 members");
    assert_protocol_error(&node.desires(1, with_members(vec![rank(0), rank(0)])), "twice");
    assert_eq!(node.core.held(), Generation::default());
}

#[test]
fn members_of_an_incarnation_never_change() {
    let mut node = Node::new();
    node.desires(1, vec![run("g", 1, &["a"])]);
    assert_protocol_error(&node.desires(2, vec![run("g", 1, &["b"])]), "changed within epoch");
}

#[test]
fn a_lower_epoch_is_refused_with_the_highest() {
    let mut node = Node::new();
    node.desires(1, vec![run("g", 3, &["a"])]);
    node.runs(key("g", 3));
    let effects = node.desires(2, vec![run("g", 2, &["a"])]);
    assert_touches_no_process(&effects);
    let stale = Refusal::StaleEpoch { highest: epoch(3) };
    assert_eq!(node.phase(&key("g", 2)), Some(Phase::Refused(stale)));
    assert_eq!(node.phase(&key("g", 3)), Some(Phase::Running { pid: 42 }));
}

#[test]
fn a_higher_epoch_starts_only_after_the_lower_one_is_gone() {
    let mut node = Node::new();
    node.desires(1, vec![run("g", 1, &["a"])]);
    node.runs(key("g", 1));
    let effects = node.desires(2, vec![run("g", 2, &["b"])]);
    assert_stops(&effects, &key("g", 1));
    assert!(!effects.list.contains(&Effect::Start(key("g", 2))), "{effects:?}");
    assert_starts(&node.ends(key("g", 1)), &key("g", 2));
}

#[test]
fn a_gpu_that_is_coming_free_is_waited_for() {
    let mut node = Node::new();
    node.desires(1, vec![run("first", 1, &["a", "b"])]);
    node.runs(key("first", 1));
    node.desires(2, vec![stop("first", 1), run("second", 1, &["b", "c"])]);
    assert_eq!(node.phase(&key("second", 1)), Some(Phase::Waiting));
    assert_starts(&node.ends(key("first", 1)), &key("second", 1));
}

#[test]
fn two_gangs_of_one_set_do_not_share_a_gpu() {
    let mut node = Node::new();
    let effects = node.desires(1, vec![run("g1", 1, &["a"]), run("g2", 1, &["a"])]);
    assert_starts(&effects, &key("g1", 1));
    let held = Refusal::GpuHeld { gpu: GpuId("a".into()), by: key("g1", 1) };
    assert_eq!(node.phase(&key("g2", 1)), Some(Phase::Refused(held)));
}

#[test]
fn a_stop_of_a_stranger_is_remembered() {
    let mut node = Node::new();
    let effects = node.desires(1, vec![stop("g", 4)]);
    assert_touches_no_process(&effects);
    assert_eq!(node.core.members().count(), 0);
    // A run of the stopped epoch, or of one before, comes too late.
    node.desires(2, vec![run("g", 4, &["a"])]);
    assert!(matches!(node.phase(&key("g", 4)), Some(Phase::Refused(Refusal::Impossible { .. }))));
    node.desires(3, vec![run("g", 3, &["a"])]);
    let stale = Refusal::StaleEpoch { highest: epoch(4) };
    assert_eq!(node.phase(&key("g", 3)), Some(Phase::Refused(stale)));
    assert_starts(&node.desires(4, vec![run("g", 5, &["a"])]), &key("g", 5));
}

#[test]
fn what_has_ended_is_never_started_again() {
    let mut node = Node::new();
    node.desires(1, vec![run("g", 1, &["a"])]);
    node.runs(key("g", 1));
    node.ends(key("g", 1));
    assert_touches_no_process(&node.desires(2, vec![run("g", 1, &["a"]), stop("x", 1)]));
    // Nor when it was forgotten in between, nor after a restart.
    node.desires(3, vec![]);
    node.on(Event::LogsComplete(key("g", 1)));
    node.on(Event::Released(key("g", 1)));
    assert_touches_no_process(&node.restarts());
    assert_touches_no_process(&node.desires(4, vec![run("g", 1, &["a"])]));
    assert!(matches!(node.phase(&key("g", 1)), Some(Phase::Refused(_))));
}

#[test]
fn a_member_that_waits_is_called_off_without_a_process() {
    let mut node = Node::new();
    node.desires(1, vec![run("first", 1, &["a"])]);
    node.runs(key("first", 1));
    node.desires(2, vec![stop("first", 1), run("second", 1, &["a"])]);
    let effects = node.desires(3, vec![stop("first", 1), stop("second", 1)]);
    assert_touches_no_process(&effects);
    let Some(Phase::Ended(end)) = node.phase(&key("second", 1)) else { panic!("not ended") };
    assert!(end.asked && !end.ran);
}

#[test]
fn a_restart_adopts_and_reports_only_the_whole_truth() {
    let mut node = Node::new();
    node.desires(1, vec![run("g1", 1, &["a"]), run("g2", 1, &["b"])]);
    node.runs(key("g1", 1));
    let effects = node.restarts();
    assert_eq!(effects.list, [Effect::Adopt(key("g1", 1)), Effect::Adopt(key("g2", 1))]);
    assert!(!node.core.is_report_ready());
    assert_eq!(node.runs(key("g1", 1)).list, []);
    // A new state that comes meanwhile does not start a second holder of a GPU.
    assert_touches_no_process(&node.desires(2, vec![stop("g2", 1), run("g3", 1, &["b"])]));
    assert_eq!(node.phase(&key("g3", 1)), Some(Phase::Waiting));
    let effects = node.runs(key("g2", 1));
    assert_stops(&effects, &key("g2", 1));
    assert!(effects.list.contains(&Effect::ReportChanged));
    assert_starts(&node.ends(key("g2", 1)), &key("g3", 1));
}

#[test]
fn a_member_that_ended_during_the_restart_after_a_stop_was_asked_to() {
    let mut node = Node::new();
    node.desires(1, vec![run("g", 1, &["a"])]);
    node.runs(key("g", 1));
    node.desires(2, vec![stop("g", 1)]);
    node.restarts();
    node.ends(key("g", 1));
    assert!(matches!(node.phase(&key("g", 1)), Some(Phase::Ended(end)) if end.asked));
}

#[test]
fn a_restart_keeps_refusals_and_members_that_wait() {
    let mut node = Node::new();
    node.desires(1, vec![run("g", 1, &["a"]), run("late", 1, &["a"])]);
    node.member(key("g", 1), MemberChange::Refused(Refusal::PortBusy { port: 20000 }));
    let refused = Some(Phase::Refused(Refusal::PortBusy { port: 20000 }));
    assert_touches_no_process(&node.restarts());
    assert_eq!(node.phase(&key("g", 1)), refused);
}

#[test]
fn a_stop_without_effect_is_repeated() {
    let mut node = Node::new();
    node.desires(1, vec![run("g", 1, &["a"])]);
    node.runs(key("g", 1));
    assert_stops(&node.desires(2, vec![stop("g", 1)]), &key("g", 1));
    assert_touches_no_process(&node.on(Event::Tick));
    node.now = node.now.plus_ms(STOP_REPEAT_MS);
    assert_stops(&node.on(Event::Tick), &key("g", 1));
    // Late word that it runs does not take the stop back.
    node.runs(key("g", 1));
    assert_eq!(node.phase(&key("g", 1)), Some(Phase::Stopping));
}

#[test]
fn files_that_could_not_be_removed_are_tried_again() {
    let mut node = Node::new();
    node.desires(1, vec![run("g", 1, &["a"])]);
    node.member(key("g", 1), MemberChange::Refused(Refusal::PortBusy { port: 20000 }));
    let release = Effect::Release(key("g", 1));
    assert!(node.desires(2, vec![]).list.contains(&release));
    assert_eq!(node.on(Event::ReleaseFailed(key("g", 1))).list, []);
    assert_eq!(node.on(Event::Tick).list, []);
    node.now = node.now.plus_ms(super::RELEASE_RETRY_MS);
    assert_eq!(node.on(Event::Tick).list, [release]);
}

#[test]
fn shutdown_stops_everything_and_starts_nothing() {
    let mut node = Node::new();
    node.desires(1, vec![run("g", 1, &["a"])]);
    node.runs(key("g", 1));
    assert_stops(&node.on(Event::Shutdown), &key("g", 1));
    assert!(!node.core.is_idle());
    assert_touches_no_process(&node.desires(2, vec![run("g", 1, &["a"]), run("h", 1, &["b"])]));
    node.ends(key("g", 1));
    assert!(node.core.is_idle());
    let Some(Phase::Ended(end)) = node.phase(&key("g", 1)) else { panic!("not ended") };
    assert!(end.taken_along && !end.asked, "the coordinator did not ask for it");
}

#[test]
fn stray_news_is_a_warning() {
    let mut node = Node::new();
    for effects in [
        node.runs(key("nobody", 1)),
        node.on(Event::GangChanged { gang: GangId::new("nobody").unwrap(), epoch: epoch(1) }),
    ] {
        assert!(matches!(effects.list.as_slice(), [Effect::Warn(_)]), "{effects:?}");
    }
    node.desires(1, vec![run("g", 1, &["a"])]);
    node.runs(key("g", 1));
    // Neither of these may drop a member that runs.
    assert!(node.on(Event::Released(key("g", 1))).is_empty());
    assert!(node.on(Event::LogsComplete(key("g", 1))).is_empty());
    assert_eq!(node.phase(&key("g", 1)), Some(Phase::Running { pid: 42 }));
}

#[test]
fn memory_of_old_gangs_is_bounded_and_keeps_the_newest() {
    let mut node = Node::new();
    for n in 0..=(MAX_SEEN / MAX_GANGS) as u64 {
        let gangs = (0..MAX_GANGS).map(|gang| stop(&format!("g{n}-{gang}"), 7)).collect();
        node.desires(n + 1, gangs);
    }
    assert_eq!(node.core.seen.len(), MAX_SEEN);
    assert!(!node.core.seen.contains_key(&GangId::new("g0-0").unwrap()));
    assert!(node.core.seen.contains_key(&GangId::new("g4-1023").unwrap()));
}

#[test]
fn members_that_run_are_told_what_is_new() {
    let mut node = Node::new();
    let (a, b) = (key("a", 1), key("b", 1));
    let orders = |content| vec![with_content(run("a", 1, &["x"]), content), run("b", 1, &["y"])];
    let first = node.desires(1, orders(1));
    assert_starts(&first, &a);
    assert!(!first.list.contains(&Effect::Update(a.clone())), "it starts with the newest");
    node.runs(a.clone());
    node.runs(b.clone());
    let second = node.desires(2, orders(2));
    assert_touches_no_process(&second);
    assert!(second.list.contains(&Effect::Update(a.clone())), "{second:?}");
    assert!(!second.list.contains(&Effect::Update(b)), "nothing is new for b: {second:?}");
    let same = node.desires(3, orders(2));
    assert!(!same.list.contains(&Effect::Update(a.clone())), "{same:?}");
    node.ends(a.clone());
    let ended = node.desires(4, orders(3));
    assert!(!ended.list.contains(&Effect::Update(a)), "it has ended: {ended:?}");
}

/// The same gang, which stops by itself half a minute after the last contact.
fn cut_off_after_30_s(mut order: GangOrder) -> GangOrder {
    if let Order::Run(run) = &mut order.order {
        run.contact_within = Some(Duration::from_secs(30));
    }
    order
}

#[test]
fn a_gang_that_stops_without_contact_starts_only_with_it() {
    let mut node = Node::new();
    let wanted = || vec![cut_off_after_30_s(run("g", 1, &["a"]))];
    assert_touches_no_process(&node.desires(1, wanted()));
    let boot_ms = node.now.boot_ms;
    assert_starts(&node.on(Event::Contact { session_ms: 0, boot_ms }), &key("g", 1));
}

#[test]
fn a_start_that_comes_too_late_waits_for_contact() {
    let mut node = Node::new();
    node.on(Event::Contact { session_ms: 0, boot_ms: 0 });
    node.desires(1, vec![run("other", 1, &["a"])]);
    node.runs(key("other", 1));
    node.desires(2, vec![stop("other", 1), cut_off_after_30_s(run("g", 1, &["a"]))]);
    node.now = node.now.plus_ms(30_000);
    // The GPU comes free, but the last contact is too long ago by now.
    assert_touches_no_process(&node.ends(key("other", 1)));
    let boot_ms = node.now.boot_ms;
    assert_starts(&node.on(Event::Contact { session_ms: 0, boot_ms }), &key("g", 1));
}

/// The coordinator has given up what waited here, and says so in the next session.
#[test]
fn what_waited_while_there_was_no_contact_waits_for_the_next_desired_state() {
    let wanted = || vec![cut_off_after_30_s(run("g", 1, &["a"]))];
    let in_the_next_session = || {
        let mut node = Node::new();
        node.on(Event::Session { began_ms: 0 });
        node.on(Event::Contact { session_ms: 0, boot_ms: 0 });
        node.now = node.now.plus_ms(200_000);
        // The disk was full, say: only now is it looked at what came in time.
        assert_touches_no_process(&node.desires(1, wanted()));
        let boot_ms = node.now.boot_ms;
        assert_touches_no_process(&node.on(Event::Contact { session_ms: boot_ms, boot_ms }));
        assert_touches_no_process(&node.on(Event::Session { began_ms: boot_ms }));
        node
    };
    assert_touches_no_process(&in_the_next_session().desires(2, vec![stop("g", 1)]));
    assert_starts(&in_the_next_session().desires(1, wanted()), &key("g", 1));
}

#[test]
fn after_a_restart_nothing_starts_before_the_coordinator_has_spoken() {
    let mut node = Node::new();
    node.desires(1, vec![cut_off_after_30_s(run("g", 1, &["a"]))]);
    let effects = node.restarts();
    assert_touches_no_process(&effects);
    let boot_ms = node.now.boot_ms;
    // In contact, but what the ledger says may be long over.
    assert_touches_no_process(&node.on(Event::Contact { session_ms: 0, boot_ms }));
    assert_starts(&node.desires(1, vec![cut_off_after_30_s(run("g", 1, &["a"]))]), &key("g", 1));
}

/// The machine may have started again with the agent: then the coordinator counts as ended what the
/// ledger says, and a start from it would be beside what comes next.
#[test]
fn a_member_that_waited_over_a_restart_waits_for_the_coordinator() {
    let mut node = Node::new();
    node.desires(1, vec![run("old", 1, &["a"])]);
    node.runs(key("old", 1));
    let wanted = || vec![stop("old", 1), run("g", 1, &["a"])];
    node.desires(2, wanted());
    node.restarts();
    assert_touches_no_process(&node.ends(key("old", 1)));
    assert_touches_no_process(&node.on(Event::Tick));
    assert_starts(&node.desires(2, wanted()), &key("g", 1));
}
