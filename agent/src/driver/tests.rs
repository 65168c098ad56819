//! The driver with a supervisor that only writes down what it is told.

use std::sync::Mutex;

use gangline_common::wire::v1::{EndedHow, Order};
use tokio::task::JoinHandle;

use super::*;
use crate::sample::{assignment, epoch, gang, generation};

/// What the supervisor was told, with the ledger's generation on disk at that moment.
type Told = Arc<Mutex<Vec<(String, Generation)>>>;

struct Fake {
    told: Told,
    state_dir: PathBuf,
}

impl Fake {
    fn note(&self, what: String) {
        let (_, content) = Ledger::open(&self.state_dir).unwrap();
        self.told.lock().unwrap().push((what, content.durable.held));
    }
}

impl Members for Fake {
    fn start(&mut self, plan: MemberPlan) {
        self.note(format!("start {} on {}", plan.key, plan.member.gpus[0]));
    }

    fn adopt(&mut self, plan: MemberPlan) {
        self.note(format!("adopt {}", plan.key));
    }

    fn update(&mut self, key: &MemberKey, assignment: Arc<Assignment>) {
        self.note(format!("update {key} {}", assignment.guests.len()));
    }

    fn stop(&mut self, key: &MemberKey, grace: Duration, keep_scene: bool) {
        let scene = if keep_scene { " after its scene" } else { "" };
        self.note(format!("stop {key} {}{scene}", grace.as_secs()));
    }

    async fn release(&mut self, key: &MemberKey) -> Result<(), SupervisorError> {
        self.note(format!("release {key}"));
        Ok(())
    }

    fn log_files(&self, key: &MemberKey) -> Vec<LogSource> {
        let path = self.state_dir.join(key.directory_name());
        vec![LogSource { file: "output".to_owned(), path, complete: false }]
    }
}

/// A driver that runs, and everything around it.
struct Harness {
    told: Told,
    inputs: mpsc::Sender<Input>,
    events: mpsc::Sender<SupervisorEvent>,
    outlook: watch::Receiver<Outlook>,
    tail: watch::Receiver<TailPlan>,
    holders: watch::Receiver<Holders>,
    gangs: watch::Receiver<BTreeSet<GangId>>,
    _link: watch::Sender<LinkStatus>,
    task: JoinHandle<()>,
}

impl Harness {
    fn start(state_dir: &std::path::Path) -> Harness {
        let (ledger, content) = Ledger::open(state_dir).unwrap();
        let told = Told::default();
        let (inputs, input_receiver) = mpsc::channel(MAILBOX);
        let (events, event_receiver) = mpsc::channel(MAILBOX);
        let (outlook, outlook_receiver) = watch::channel(Outlook::default());
        let (tail, tail_receiver) = watch::channel(TailPlan::default());
        let (link, link_receiver) = watch::channel(LinkStatus::default());
        let (holders, held) = watch::channel(Holders::new());
        let (gangs, present) = watch::channel(BTreeSet::new());
        let fake = Fake { told: told.clone(), state_dir: state_dir.to_owned() };
        let channels = Channels {
            inputs: input_receiver,
            events: event_receiver,
            outlook,
            tail,
            link: link_receiver,
            contact: watch::channel(None).1,
            holders,
            gangs,
            samples: watch::channel(None).1,
            status: crate::status::path(state_dir),
        };
        let task = tokio::spawn(Driver::new(ledger, fake, channels).run(content));
        Harness {
            told,
            inputs,
            events,
            outlook: outlook_receiver,
            tail: tail_receiver,
            holders: held,
            gangs: present,
            _link: link,
            task,
        }
    }

    async fn desires(&self, n: u64, gangs: Vec<DesiredGang>) -> Result<(), String> {
        let (reply, answer) = oneshot::channel();
        let input = Input::Desired { session_ms: 0, generation: generation(n), gangs, reply };
        self.inputs.send(input).await.unwrap();
        answer.await.unwrap()
    }

    async fn member(&self, key: &MemberKey, state: MemberState) {
        let event = SupervisorEvent::MemberChanged { key: key.clone(), state };
        self.events.send(event).await.unwrap();
    }

    /// Waits until the report satisfies `wanted`.
    async fn reports(&mut self, wanted: impl Fn(&NodeReport) -> bool) -> Arc<NodeReport> {
        let good = |outlook: &Outlook| outlook.report.as_ref().is_some_and(|r| wanted(r));
        self.outlook.wait_for(good).await.unwrap().report.clone().unwrap()
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().iter().map(|(what, _)| what.clone()).collect()
    }
}

fn key(name: &str) -> MemberKey {
    let member = gangline_common::ids::MemberId::Rank(0);
    MemberKey { gang: gang(name), epoch: epoch(1), member }
}

fn run(name: &str) -> DesiredGang {
    let order = Order::Run(Box::new(assignment(name)));
    DesiredGang { gang: gang(name), epoch: epoch(1), order }
}

fn stop(name: &str) -> DesiredGang {
    DesiredGang { gang: gang(name), epoch: epoch(1), order: Order::Stop { keep_scene: false } }
}

fn ended() -> MemberState {
    MemberState::Ended(Ended {
        how: EndedHow::Exited { code: 3 },
        asked: false,
        last_output: "the last line".to_owned(),
        swept: 2,
        logs_complete: false,
    })
}

#[tokio::test]
async fn the_ledger_comes_before_the_start_and_the_report_tells_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = Harness::start(directory.path());
    harness.desires(4, vec![run("g")]).await.unwrap();
    harness.reports(|report| report.held == generation(4)).await;
    let told = harness.told.lock().unwrap().clone();
    assert_eq!(told, [("start g:1.1:0 on GPU-g".to_owned(), generation(4))]);

    harness.member(&key("g"), MemberState::Running { pid: 7 }).await;
    let running = |report: &NodeReport| report.members[0].state == MemberState::Running { pid: 7 };
    harness.reports(running).await;
    assert!(!harness.tail.borrow().members[&key("g")].ended);
    let held: Vec<String> =
        harness.holders.borrow().iter().map(|(gpu, by)| format!("{gpu} {:?}", by.job)).collect();
    assert_eq!(held, ["GPU-g Some(JobId(\"job-g\"))"]);
    assert_eq!(*harness.gangs.borrow(), BTreeSet::from([gang("g")]));

    harness.desires(5, vec![stop("g")]).await.unwrap();
    harness.member(&key("g"), ended()).await;
    let report =
        harness.reports(|report| matches!(report.members[0].state, MemberState::Ended(_))).await;
    let MemberState::Ended(end) = &report.members[0].state else { panic!("not ended") };
    assert!(end.asked && end.swept == 2 && end.last_output == "the last line");
    assert_eq!(end.how, EndedHow::Exited { code: 3 });
    assert!(harness.tail.borrow().members[&key("g")].ended);
    assert!(harness.holders.borrow().is_empty() && harness.gangs.borrow().is_empty());

    harness.inputs.send(Input::LogsComplete(key("g"))).await.unwrap();
    let complete = |report: &NodeReport| match &report.members[0].state {
        MemberState::Ended(end) => end.logs_complete,
        _ => false,
    };
    harness.reports(complete).await;
    harness.desires(6, vec![]).await.unwrap();
    harness.reports(|report| report.members.is_empty()).await;
    assert_eq!(harness.told()[1..], ["stop g:1.1:0 9", "release g:1.1:0"]);
    assert!(harness.tail.borrow().members.is_empty());
}

#[tokio::test]
async fn a_broken_rule_is_answered_and_leaves_no_trace() {
    let directory = tempfile::tempdir().unwrap();
    let harness = Harness::start(directory.path());
    harness.desires(1, vec![run("g")]).await.unwrap();
    let rule = harness.desires(1, vec![run("other")]).await.unwrap_err();
    assert!(rule.contains("two contents"), "{rule}");
    let (_, content) = Ledger::open(directory.path()).unwrap();
    assert_eq!(content.assignments.len(), 1);
}

#[tokio::test]
async fn the_next_agent_adopts_and_reports_only_when_it_knows() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = Harness::start(directory.path());
    first.desires(1, vec![run("g")]).await.unwrap();
    first.reports(|report| report.members.len() == 1).await;
    drop(first.inputs);
    first.task.await.unwrap();

    let mut second = Harness::start(directory.path());
    second.outlook.wait_for(|outlook| outlook.held == generation(1)).await.unwrap();
    assert_eq!(second.outlook.borrow().report, None);
    second.member(&key("g"), MemberState::Running { pid: 7 }).await;
    let report = second.reports(|_| true).await;
    assert_eq!(report.members[0].state, MemberState::Running { pid: 7 });
    assert_eq!(second.told(), ["adopt g:1.1:0"]);
}

#[tokio::test]
async fn a_shutdown_is_answered_when_the_last_member_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = Harness::start(directory.path());
    harness.desires(1, vec![run("g")]).await.unwrap();
    harness.member(&key("g"), MemberState::Running { pid: 7 }).await;
    let (idle, mut answer) = oneshot::channel();
    harness.inputs.send(Input::Shutdown { idle }).await.unwrap();
    harness.reports(|report| report.members[0].state == MemberState::Stopping).await;
    assert!(answer.try_recv().is_err());
    harness.member(&key("g"), ended()).await;
    answer.await.unwrap();
    // The end can still be reported.
    harness.reports(|report| matches!(report.members[0].state, MemberState::Ended(_))).await;
    assert_eq!(harness.told(), ["start g:1.1:0 on GPU-g", "stop g:1.1:0 9"]);
}

#[tokio::test]
async fn what_ray_says_is_reported_while_the_gang_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = Harness::start(directory.path());
    harness.desires(1, vec![run("g")]).await.unwrap();
    let report = GangReport { gang: gang("g"), epoch: epoch(1), ray: None, entrypoints: vec![] };
    let stray = GangReport { gang: gang("stray"), ..report.clone() };
    for report in [stray, report.clone()] {
        harness.events.send(SupervisorEvent::GangChanged { report }).await.unwrap();
    }
    let reported = harness.reports(|node| !node.gangs.is_empty()).await;
    assert_eq!(reported.gangs, [report]);
}

#[tokio::test]
async fn a_training_checkpoint_is_reported_and_grows_older_until_the_report_is_sent() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = Harness::start(directory.path());
    harness.desires(1, vec![run("g")]).await.unwrap();
    let made_ms = Timestamp::now().boot_ms.saturating_sub(5_000);
    let checkpoint = TrainingCheckpoint { name: "step-2".to_owned(), made_ms };
    for key in [key("stray"), key("g")] {
        let checkpoint = checkpoint.clone();
        let event = SupervisorEvent::CheckpointMade { key, checkpoint };
        harness.events.send(event).await.unwrap();
    }
    let report = harness.reports(|node| node.members[0].checkpoint.is_some()).await;
    assert_eq!((report.members.len(), report.members[0].key.clone()), (1, key("g")));
    // A session that begins an hour later.
    let later = Timestamp { boot_ms: made_ms + 3_600_000, wall_ms: 0 };
    let sent = harness.outlook.borrow().report_at(later).unwrap();
    let sent = sent.members[0].checkpoint.clone().unwrap();
    assert_eq!((sent.name.as_str(), sent.age_ms), ("step-2", 3_600_000));
}

/// A directory in place of the ledger's new file makes every write fail.
#[tokio::test]
async fn nothing_is_started_while_the_ledger_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = Harness::start(directory.path());
    harness.reports(|_| true).await;
    let obstacle = directory.path().join("ledger/state.new");
    std::fs::create_dir(&obstacle).unwrap();
    let (reply, mut answer) = oneshot::channel();
    let input =
        Input::Desired { session_ms: 0, generation: generation(1), gangs: vec![run("g")], reply };
    harness.inputs.send(input).await.unwrap();
    // The mailbox is empty again once the driver has taken the state.
    while harness.inputs.capacity() < MAILBOX {
        tokio::task::yield_now().await;
    }
    assert!(harness.told().is_empty() && answer.try_recv().is_err());
    std::fs::remove_dir(&obstacle).unwrap();
    answer.await.unwrap().unwrap();
    harness.reports(|report| report.members.len() == 1).await;
    assert_eq!(harness.told().len(), 1);
}
