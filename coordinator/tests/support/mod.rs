//! A fleet in one thread: the real core, model agents, a network that loses and delays, a clock.
//!
//! Everything that the core writes goes through the record codec into a second, replayed core,
//! and every invariant is checked after every step.

#![allow(dead_code, reason = "each test file uses its own part")]

mod intervals;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use gangline_common::ids::{
    Epoch, GangId, Generation, GpuId, JobId, MemberId, MemberKey, NodeId, PortBlock,
};
use gangline_common::time::Timestamp;
use gangline_coordinator::core::Core;
use gangline_coordinator::core::accounts::{Reading, Spent};
use gangline_coordinator::core::controls::Control;
use gangline_coordinator::core::credential::{JoinTokenRecord, Principal, Role};
use gangline_coordinator::core::effect::{
    Answer, Desired, DesiredGuest, Effects, Examine, Push, Write,
};
use gangline_coordinator::core::event::{
    CheckpointWord, EntrypointFact, Event, GangFacts, GuestFact, GuestWord, Join, Report,
    SavedWord, Submission, UsageWord,
};
use gangline_coordinator::core::gang::{End, EndHow, Phase};
use gangline_coordinator::core::health::ClearedCondition;
use gangline_coordinator::core::invariants::{Watermarks, violations};
use gangline_coordinator::core::job::{GuestPhase, Job, JobState, Launcher, RayFacts};
use gangline_coordinator::core::maintenance::Maintenance;
use gangline_coordinator::core::node::{Gpu, Inventory, Node, Reachability, Session};
use gangline_coordinator::core::node_test::NodeTest;
use gangline_coordinator::core::notices::Notice;
use gangline_coordinator::core::pools::PoolChange;
use gangline_coordinator::core::projects::{ProjectChange, Quota};
use gangline_coordinator::core::recovery::{Again, Verdict};
use gangline_coordinator::paths::{Asker, PathRules, resolve_paths};
use gangline_coordinator::request::{Owner, job_request};
use gangline_coordinator::store::record;
use intervals::Intervals;

/// A node's agent, as far as the core can tell it from a real one.
#[derive(Default)]
pub struct ModelAgent {
    pub id: Option<NodeId>,
    pub inventory: Option<Inventory>,
    pub session: Option<u64>,
    pub held: Generation,
    pub members: BTreeMap<MemberKey, Phase>,
    pub gpus: BTreeMap<MemberKey, Vec<GpuId>>,
    launchers: BTreeMap<GangId, (Launcher, bool, String)>,
    highest: BTreeMap<GangId, Epoch>,
    /// The newest push that has not arrived yet.
    pub in_flight: Option<Push>,
    pub entrypoints: BTreeMap<String, EntrypointFact>,
    /// What Ray says to the agent of a head that runs.
    pub ray: RayFacts,
    /// Guests of standing clusters, as the newest push has them.
    guests: BTreeMap<GangId, (Vec<DesiredGuest>, Vec<MemberId>)>,
    /// Operations of guests that have processes here.
    pub guest_processes: BTreeSet<String>,
    words: BTreeMap<(MemberKey, String), GuestFact>,
}

pub struct Fleet {
    pub core: Core,
    pub replayed: Core,
    pub now: Timestamp,
    pub agents: BTreeMap<String, ModelAgent>,
    pub answers: Vec<Answer>,
    /// What agents were told of conditions that an operator has ended, newest last.
    pub cleared: Vec<BTreeSet<ClearedCondition>>,
    /// What is found out about every attempt that fails; `None` when nobody looks.
    pub verdict: Option<Verdict>,
    /// The attempts that were to be looked into.
    pub examined: Vec<(String, u32)>,
    /// The record of a check that the next submission carries.
    pub node_test: Option<Box<NodeTest>>,
    next: u64,
    marks: Watermarks,
    intervals: Intervals,
    /// Every line of the books so far.
    pub books: Vec<Spent>,
    pub notices: Vec<Notice>,
}

/// What somebody who looked into an attempt could have found.
pub fn verdict(again: Again) -> Verdict {
    Verdict {
        again,
        category: "ray_runtime".to_owned(),
        sub_code: "node_dead".to_owned(),
        node: None,
        progressed: false,
        summary: "a raylet died".to_owned(),
        done: String::new(),
    }
}

pub fn alice() -> Principal {
    Principal { user: "alice".into(), project: "rl".into(), role: Role::Member, from: None }
}

impl Fleet {
    pub fn new() -> Fleet {
        let now = Timestamp { boot_ms: 1_000_000, wall_ms: 1_800_000_000_000 };
        Fleet {
            core: Core::new(1, now),
            replayed: Core::new(1, now),
            now,
            agents: BTreeMap::new(),
            answers: Vec::new(),
            cleared: Vec::new(),
            verdict: Some(verdict(Again::Never)),
            examined: Vec::new(),
            node_test: None,
            next: 1,
            marks: Watermarks::default(),
            intervals: Intervals::default(),
            books: Vec::new(),
            notices: Vec::new(),
        }
    }

    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// One event, then every check.
    pub fn step(&mut self, event: Event) {
        let mut out = Effects::default();
        let shown = format!("{event:?}");
        self.core.step(event, self.now, &mut out);
        let lines = self.books.len();
        for write in &out.writes {
            self.replayed.restore(through_the_codec(write));
            match write {
                Write::Spent(spent) => self.books.push(spent.clone()),
                Write::Notice(notice) => self.notices.push(notice.clone()),
                _ => {}
            }
        }
        self.intervals.look(&self.core, &self.books[lines..], self.now);
        assert_eq!(stored(&self.core), stored(&self.replayed), "replay differs after {shown}");
        assert_eq!(violations(&self.core), Vec::<String>::new(), "after {shown}");
        let marks = Watermarks::of(&self.core);
        assert_eq!(self.marks.violations(&marks), Vec::<String>::new(), "after {shown}");
        self.marks = marks;
        self.answers.extend(out.replies.into_iter().map(|(_, answer)| answer));
        self.cleared.extend(out.clears.into_iter().map(|clear| clear.conditions));
        for push in out.pushes {
            for agent in self.agents.values_mut() {
                if agent.id.as_ref() == Some(&push.node) && agent.session == Some(push.session) {
                    agent.in_flight = Some(push.clone());
                }
            }
        }
        for close in out.closes {
            for agent in self.agents.values_mut() {
                if agent.session == Some(close.session) {
                    agent.session = None;
                }
            }
        }
        for Examine { job, attempt } in out.examine {
            self.examined.push((job.to_string(), attempt));
            if let Some(verdict) = self.verdict.clone() {
                self.step(Event::Examined { job, attempt, verdict: Box::new(verdict) });
            }
        }
    }

    pub fn wait_ms(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
        self.step(Event::Tick);
    }

    /// A node with this many GPUs joins, connects and shows its inventory.
    pub fn add_node(&mut self, name: &str, gpus: u32, head: bool) {
        self.add_node_with(name, inventory(name, gpus, head));
    }

    pub fn add_node_with(&mut self, name: &str, inventory: Inventory) {
        self.add_node_bound(name, inventory, None);
    }

    /// As [`Fleet::add_node_with`], by a join token of a pool.
    pub fn add_node_bound(&mut self, name: &str, inventory: Inventory, pool: Option<&str>) {
        self.join(name, name, pool);
        self.agents.get_mut(name).unwrap().inventory = Some(inventory);
        self.connect(name);
    }

    /// A node joins that wishes for a name.
    pub fn join(&mut self, name: &str, wished: &str, pool: Option<&str>) {
        let number = self.number();
        let id = NodeId::new(format!("n-{name}")).unwrap();
        let certificate = [number as u8; 32];
        let token = JoinTokenRecord {
            id: format!("t{number}"),
            secret_sha256: [7; 32],
            uses_left: 1,
            expires_wall_ms: self.now.wall_ms + 3_600_000,
            pool: pool.map(str::to_owned),
            created_by: "admin".into(),
            created: self.now,
        };
        self.step(Event::CreateJoinToken { request: number, record: token, actor: alice() });
        let join = Join {
            token_id: format!("t{number}"),
            secret_sha256: [7; 32],
            node: id.clone(),
            node_name: wished.to_owned(),
            certificate,
        };
        self.step(Event::Join { request: number, join });
        let agent = ModelAgent { id: Some(id), ..ModelAgent::default() };
        self.agents.insert(name.to_owned(), agent);
    }

    /// A new session, which begins with the inventory.
    pub fn connect(&mut self, name: &str) {
        self.open_session(name);
        let Some((node, session)) = self.session(name) else { return };
        let inventory = Box::new(self.agents[name].inventory.clone().unwrap());
        self.step(Event::Inventory { node, session, inventory, name: name.to_owned() });
    }

    pub fn open_session(&mut self, name: &str) {
        let number = self.number();
        let id = self.agents[name].id.clone().unwrap();
        let certificate = *self.node(name).certificates.last().unwrap();
        self.agents.get_mut(name).unwrap().session = Some(number);
        let session = Session {
            number,
            instance: format!("instance-{name}"),
            certificate,
            certificate_ends: i64::MAX,
            remote: "127.0.0.1:1".into(),
            introduced: false,
            pushed_ms: None,
        };
        self.step(Event::Connected { request: number, node: id, session });
    }

    pub fn disconnect(&mut self, name: &str) {
        if let Some((node, session)) = self.session(name) {
            let agent = self.agents.get_mut(name).unwrap();
            agent.session = None;
            agent.in_flight = None;
            self.step(Event::Disconnected { node, session });
        }
    }

    pub fn session(&self, name: &str) -> Option<(NodeId, u64)> {
        let agent = &self.agents[name];
        Some((agent.id.clone()?, agent.session?))
    }

    pub fn node(&self, name: &str) -> Arc<Node> {
        let id = self.agents[name].id.clone().unwrap();
        self.core.nodes().find(|node| node.id == id).unwrap().clone()
    }

    pub fn job(&self, id: &str) -> Arc<Job> {
        let mut job = self.core.jobs().find(|job| job.id.as_str() == id).unwrap().clone();
        // As readers see it.
        if let Some(why) = self.core.why(&job.id) {
            Arc::make_mut(&mut job).reason = why.as_ref().to_owned();
        }
        job
    }

    pub fn state(&self, id: &str) -> JobState {
        self.job(id).state
    }

    /// Submits a spec written as YAML; returns the answer.
    pub fn submit(&mut self, id: &str, spec: &str) -> Answer {
        self.submit_with_key(id, spec, None)
    }

    /// As [`Fleet::submit`], by somebody of another project.
    pub fn submit_as(&mut self, project: &str, id: &str, spec: &str) -> Answer {
        let principal = Principal { project: project.to_owned(), ..alice() };
        self.submit_by(principal, id, spec, None)
    }

    /// As [`Fleet::submit`], with an idempotency key and the hash of the body.
    pub fn submit_with_key(
        &mut self,
        id: &str,
        spec: &str,
        idempotency: Option<(String, [u8; 32])>,
    ) -> Answer {
        self.submit_by(alice(), id, spec, idempotency)
    }

    fn submit_by(
        &mut self,
        principal: Principal,
        id: &str,
        spec: &str,
        idempotency: Option<(String, [u8; 32])>,
    ) -> Answer {
        let number = self.number();
        let spec = gangline_spec::parse(spec).unwrap();
        let job = JobId::new(id).unwrap();
        let rules = PathRules { shared_root: Some("/nfs".into()), extra_roots: Vec::new() };
        let asker = Asker {
            job: &job,
            user: "alice",
            project: "rl",
            is_admin: false,
            project_of: &|_| None,
        };
        let paths = resolve_paths(&spec, &asker, &rules).unwrap();
        let owner = Owner { job: &job, project: "rl" };
        let request = Arc::new(job_request(&spec, owner, paths, "gangline submit".into()));
        // As the API reads them, without its rights.
        let find = |text: &String| {
            let id = JobId::new(text.trim_start_matches("job:")).unwrap();
            (self.core.jobs().any(|job| job.id == id) || id == job).then_some(id)
        };
        let after = spec.queue.after.iter().map(find).collect();
        let submission = Submission {
            job,
            gang: GangId::new(format!("g-{number}")).unwrap(),
            token_seed: [number as u8; 32],
            principal,
            idempotency,
            request,
            after,
            node_test: self.node_test.take(),
        };
        self.step(Event::Submit { request: number, submission: Box::new(submission) });
        self.answers.last().cloned().unwrap()
    }

    pub fn maintain(&mut self, name: &str, wanted: Maintenance) {
        let request = self.number();
        let node = self.agents[name].id.clone().unwrap();
        self.step(Event::MaintainNode { request, node, wanted, actor: alice() });
    }

    /// Labels that an operator gives, or takes back (`None`).
    pub fn label(&mut self, name: &str, labels: &[(&str, Option<&str>)]) -> Answer {
        let request = self.number();
        let node = self.agents[name].id.clone().unwrap();
        let owned =
            |(key, value): &(&str, Option<&str>)| (key.to_string(), value.map(str::to_owned));
        let labels = labels.iter().map(owned).collect();
        self.step(Event::LabelNode { request, node, labels, actor: alice() });
        self.answers.last().cloned().unwrap()
    }

    /// An operator declares a pool.
    pub fn declare_pool(&mut self, pool: &str) -> Answer {
        self.set_pool(pool, Some("declared"), &[], &[])
    }

    pub fn set_pool(
        &mut self,
        pool: &str,
        description: Option<&str>,
        add: &[&str],
        remove: &[&str],
    ) -> Answer {
        let request = self.number();
        let ids = |names: &[&str]| {
            names.iter().map(|name| self.agents[*name].id.clone().unwrap()).collect()
        };
        let description = description.map(str::to_owned);
        let change = PoolChange { description, add: ids(add), remove: ids(remove) };
        let pool = pool.to_owned();
        self.step(Event::SetPool { request, pool, change, actor: alice() });
        self.answers.last().cloned().unwrap()
    }

    pub fn delete_pool(&mut self, pool: &str) -> Answer {
        let request = self.number();
        let pool = pool.to_owned();
        self.step(Event::DeletePool { request, pool, actor: alice() });
        self.answers.last().cloned().unwrap()
    }

    pub fn force_release(&mut self, name: &str, reason: &str) -> Answer {
        let request = self.number();
        let (node, reason) = (self.agents[name].id.clone().unwrap(), reason.to_owned());
        self.step(Event::ForceRelease { request, node, reason, actor: alice() });
        self.answers.last().cloned().unwrap()
    }

    /// Time in which only these nodes are in contact; what they are told is done at once.
    pub fn live(&mut self, names: &[&str], seconds: u32) {
        for _ in 0..seconds {
            for name in names {
                self.heartbeat(name);
                self.deliver(name);
                self.agents.get_mut(*name).unwrap().run_processes();
                self.report(name);
            }
            self.wait_ms(1_000);
        }
    }

    pub fn set_max_priority(&mut self, project: &str, max_priority: u8) {
        let change = ProjectChange { max_priority: Some(max_priority), ..Default::default() };
        self.change_project(project, change);
    }

    /// Guaranteed and maximum GPUs of a project in a pool.
    pub fn set_quota(&mut self, project: &str, pool: &str, quota: Quota) -> Answer {
        let quotas = [(pool.to_owned(), Some(quota))].into();
        self.change_project(project, ProjectChange { quotas, ..Default::default() })
    }

    pub fn change_project(&mut self, project: &str, change: ProjectChange) -> Answer {
        let (request, name) = (self.number(), project.to_owned());
        let change = Box::new(change);
        self.step(Event::SetProject { request, name, change, actor: alice() });
        self.answers.last().cloned().unwrap()
    }

    pub fn stop(&mut self, id: &str) -> Answer {
        let number = self.number();
        let job = JobId::new(id).unwrap();
        let reason = "enough".to_owned();
        self.step(Event::StopJob { request: number, job, actor: alice(), reason });
        self.answers.last().cloned().unwrap()
    }

    pub fn control(&mut self, id: &str, control: Control) -> Answer {
        self.control_by(alice(), id, control)
    }

    pub fn control_by(&mut self, actor: Principal, id: &str, control: Control) -> Answer {
        let request = self.number();
        let job = JobId::new(id).unwrap();
        self.step(Event::ControlJob { request, job, control, actor });
        self.answers.last().cloned().unwrap()
    }

    pub fn delete(&mut self, id: &str) -> Answer {
        let number = self.number();
        self.step(Event::DeleteJob {
            request: number,
            job: JobId::new(id).unwrap(),
            actor: alice(),
        });
        self.answers.last().cloned().unwrap()
    }

    /// The newest push arrives and the agent acts on it.
    pub fn deliver(&mut self, name: &str) {
        let agent = self.agents.get_mut(name).unwrap();
        if let Some(push) = agent.in_flight.take() {
            agent.accept(push);
        }
    }

    /// The agent says everything it knows.
    pub fn report(&mut self, name: &str) {
        let Some((node, session)) = self.session(name) else { return };
        let report = self.agents[name].report();
        self.step(Event::Reported { node, session, report });
    }

    pub fn heartbeat(&mut self, name: &str) {
        let Some((node, session)) = self.session(name) else { return };
        let held = Some(self.agents[name].held);
        self.step(Event::Heard { node, session, held });
    }

    /// A sample of the node has come.
    pub fn sample(&mut self, name: &str) {
        let Some((node, session)) = self.session(name) else { return };
        self.step(Event::Heard { node, session, held: None });
    }

    /// Time in which every node gives signs of life.
    pub fn beat(&mut self, seconds: u32) {
        let names: Vec<String> = self.agents.keys().cloned().collect();
        for _ in 0..seconds {
            names.iter().for_each(|name| self.heartbeat(name));
            self.wait_ms(1_000);
        }
    }

    /// Delivers and reports until nothing moves, with every process starting at once.
    pub fn settle(&mut self) {
        let names: Vec<String> = self.agents.keys().cloned().collect();
        for _ in 0..8 {
            for name in &names {
                self.deliver(name);
                self.agents.get_mut(name).unwrap().run_processes();
                self.report(name);
            }
        }
    }

    /// Ends the process of every rank of a job with this code, as far as it runs.
    /// The agent of a member of the job reports a training checkpoint of this age.
    pub fn checkpoint(&mut self, id: &str, member: MemberId, name: &str, age_ms: u64) {
        let gang = self.job(id).gang.clone();
        let holder = self.agents.iter().find_map(|(node, agent)| {
            // The newest epoch is the last.
            let mut keys = agent.members.keys().rev();
            let key = keys.find(|key| key.gang == gang && key.member == member)?;
            Some((node.clone(), key.clone()))
        });
        let (node, key) = holder.expect("the member is somewhere");
        let mut report = self.agents[&node].report();
        report.checkpoints.push(CheckpointWord { key, name: name.to_owned(), age_ms });
        let (node, session) = self.session(&node).expect("it is connected");
        self.step(Event::Reported { node, session, report });
    }

    /// The agent of rank 0 reports what there is of training checkpoints.
    pub fn saved(&mut self, id: &str, of: impl FnOnce(MemberKey) -> SavedWord) {
        let gang = self.job(id).gang.clone();
        let holder = self.agents.iter().find_map(|(node, agent)| {
            let mut keys = agent.members.keys().rev();
            let key = keys.find(|key| key.gang == gang && key.member == MemberId::Rank(0))?;
            Some((node.clone(), key.clone()))
        });
        let (node, key) = holder.expect("the member is somewhere");
        let mut report = self.agents[&node].report();
        report.saved.push(of(key));
        let (node, session) = self.session(&node).expect("it is connected");
        self.step(Event::Reported { node, session, report });
    }

    /// The agent of every member of the job that runs reports what it has measured so far: GPU-ms.
    pub fn measure(&mut self, id: &str, measured_ms: u64, busy_ms: u64) {
        let gang = self.job(id).gang.clone();
        let names: Vec<String> = self.agents.keys().cloned().collect();
        for name in names {
            let mut report = self.agents[&name].report();
            let running = |key: &&MemberKey| {
                key.gang == gang
                    && matches!(self.agents[&name].members[*key], Phase::Running { .. })
            };
            let members = self.agents[&name].members.keys().filter(running);
            let reading = Reading { measured_ms, busy_ms };
            report.usage = members.map(|key| UsageWord { key: key.clone(), reading }).collect();
            let Some((node, session)) = self.session(&name) else { continue };
            self.step(Event::Reported { node, session, report });
        }
    }

    /// The coordinator starts anew from what it has stored; every session is gone.
    pub fn restart(&mut self) {
        let mut restored = Core::new(1, self.now);
        let again = stored(&self.replayed)
            .into_iter()
            .chain(self.replayed.join_tokens().cloned().map(Write::JoinToken));
        for mut write in again.collect::<Vec<_>>() {
            write.begin_again(self.now, false);
            restored.restore(write);
        }
        self.core = restored;
        self.replayed = Core::new(1, self.now);
        for write in stored(&self.core) {
            self.replayed.restore(write);
        }
        self.marks = Watermarks::of(&self.core);
    }

    /// The kinds of notices so far that are about an object.
    pub fn told_of(&self, object: &str) -> Vec<&str> {
        let about = self.notices.iter().filter(|notice| notice.object == object);
        about.map(|notice| notice.kind.as_str()).collect()
    }

    pub fn exit_ranks(&mut self, id: &str, code: i32) {
        let gang = self.job(id).gang.clone();
        for agent in self.agents.values_mut() {
            for (key, phase) in &mut agent.members {
                if key.gang == gang && matches!(phase, Phase::Running { .. }) {
                    *phase = ended(EndHow::Exited { code }, false);
                }
            }
        }
        self.settle();
    }
}

pub fn ended(how: EndHow, asked: bool) -> Phase {
    Phase::Ended(End { how, asked, last_output: String::new(), logs_complete: true })
}

impl ModelAgent {
    fn accept(&mut self, push: Push) {
        assert!(push.generation >= self.held, "an older generation was pushed");
        self.held = push.generation;
        self.guests.clear();
        let mut listed = BTreeSet::new();
        for desired in &push.gangs {
            match desired {
                Desired::Run { job, gang, guests, .. } => {
                    let mine = gang.members_on(&push.node).map(|(member, _)| member).collect();
                    self.guests.insert(gang.id.clone(), (guests.clone(), mine));
                    listed.insert(gang.id.clone());
                    let highest = self.highest.entry(gang.id.clone()).or_insert(gang.epoch);
                    assert!(gang.epoch >= *highest, "I3: an older epoch was pushed");
                    *highest = gang.epoch;
                    let has_head = gang.members.contains_key(&MemberId::Head);
                    let first = if has_head { MemberId::Head } else { MemberId::Rank(0) };
                    let speaks = gang.members[&first].node == push.node;
                    let operation = job.operation(gang.attempt);
                    self.launchers
                        .insert(gang.id.clone(), (job.request.launcher, speaks, operation));
                    for (member, share) in gang.members_on(&push.node) {
                        let key = MemberKey { gang: gang.id.clone(), epoch: gang.epoch, member };
                        if !self.members.contains_key(&key) {
                            self.check_gpus(&key, &share.gpus);
                            self.members.insert(key.clone(), Phase::Starting);
                            self.gpus.insert(key, share.gpus.clone());
                        }
                    }
                }
                Desired::Stop { gang, epoch, .. } => {
                    listed.insert(gang.clone());
                    for (key, phase) in &mut self.members {
                        if key.gang == *gang && key.epoch <= *epoch && phase.holds_resources() {
                            *phase = ended(EndHow::Signalled { signal: 15 }, true);
                        }
                    }
                }
            }
        }
        self.members.retain(|key, phase| listed.contains(&key.gang) || phase.holds_resources());
        self.serve_guests();
    }

    /// Carries out what the newest push says about guests.
    fn serve_guests(&mut self) {
        let mut listed = BTreeSet::new();
        for (gang, (guests, mine)) in &self.guests {
            for DesiredGuest { job, attempt, .. } in guests {
                let operation = job.operation(attempt.number);
                let guest = attempt.guest.as_ref().unwrap();
                listed.insert(operation.clone());
                for member in mine {
                    let key =
                        MemberKey { gang: gang.clone(), epoch: attempt.epoch, member: *member };
                    let has_share = guest.shares.iter().any(|s| MemberId::Rank(s.rank) == *member);
                    let word = match guest.phase {
                        GuestPhase::Preparing if has_share => Some(GuestFact::Prepared),
                        GuestPhase::Running if has_share || *member == MemberId::Head => {
                            self.guest_processes.insert(operation.clone());
                            None
                        }
                        GuestPhase::Stopping if *member == MemberId::Head => {
                            let fact = EntrypointFact::Failed { cause: "STOPPED".into() };
                            self.entrypoints.entry(operation.clone()).or_insert(fact);
                            None
                        }
                        GuestPhase::Sweeping => {
                            self.guest_processes.remove(&operation);
                            Some(GuestFact::Swept { log_bytes: has_share.then_some(7) })
                        }
                        _ => None,
                    };
                    if let Some(word) = word {
                        self.words.insert((key, operation.clone()), word);
                    }
                }
            }
        }
        self.words.retain(|(_, operation), _| listed.contains(operation));
        // The end of a cluster ends everything below it.
        let clusters: BTreeSet<&GangId> = self
            .members
            .iter()
            .filter(|(_, phase)| phase.holds_resources())
            .map(|(key, _)| &key.gang)
            .collect();
        if self.guests.keys().all(|gang| !clusters.contains(gang)) {
            self.guest_processes.clear();
        }
    }

    /// I1, judged from the process table and not from the coordinator's books.
    fn check_gpus(&self, key: &MemberKey, wanted: &[GpuId]) {
        for (other, phase) in &self.members {
            if phase.holds_resources() {
                let both = self.gpus[other].iter().find(|gpu| wanted.contains(gpu));
                assert_eq!(both, None, "I1: {key} was given a GPU that {other} holds");
                assert!(
                    other.gang != key.gang || other.epoch == key.epoch,
                    "I4: {key} started while {other} lives"
                );
            }
        }
    }

    pub fn run_processes(&mut self) {
        for phase in self.members.values_mut() {
            if *phase == Phase::Starting {
                *phase = Phase::Running { pid: 4711 };
            }
        }
    }

    fn report(&self) -> Report {
        let mut gangs = Vec::new();
        for (gang, (launcher, speaks, operation)) in &self.launchers {
            let mut mine = self.members.iter().filter(|(key, _)| key.gang == *gang);
            let Some((key, phase)) = mine.next() else { continue };
            if *launcher == Launcher::Ray && *speaks {
                let running = matches!(phase, Phase::Running { .. });
                let guests = self.guests.get(gang).into_iter().flat_map(|(guests, _)| guests);
                let operations = guests
                    .map(|guest| guest.job.operation(guest.attempt.number))
                    .chain([operation.clone()]);
                let facts = operations.filter_map(|operation| {
                    let fact = self.entrypoints.get(&operation)?.clone();
                    Some((operation, fact))
                });
                gangs.push(GangFacts {
                    gang: gang.clone(),
                    epoch: key.epoch,
                    ready: running,
                    ray: running.then(|| self.ray.clone()),
                    entrypoints: facts.collect(),
                });
            }
        }
        let members = self.members.iter().map(|(key, phase)| (key.clone(), phase.clone()));
        let running =
            |key: &MemberKey| matches!(self.members.get(key), Some(Phase::Running { .. }));
        let words = self.words.iter().filter(|((key, _), _)| running(key));
        let guests = words.map(|((key, operation), fact)| GuestWord {
            key: key.clone(),
            operation: operation.clone(),
            fact: fact.clone(),
        });
        let (members, guests) = (members.collect(), guests.collect());
        Report {
            held: self.held,
            members,
            gangs,
            guests,
            checkpoints: Vec::new(),
            saved: Vec::new(),
            usage: Vec::new(),
        }
    }
}

pub fn inventory(name: &str, gpus: u32, head: bool) -> Inventory {
    Inventory {
        hostname: name.to_owned(),
        agent_version: "test".into(),
        head_role: head,
        worker_role: !head,
        pool: "default".into(),
        labels: Vec::new(),
        address: IpAddr::from([10, 0, 0, 1]),
        boot_id: "boot".into(),
        // All nodes share one port space: the hardest case.
        network_namespace: 1,
        container_start_ms: 1,
        gpus: (0..gpus)
            .map(|index| Gpu {
                uuid: GpuId(format!("GPU-{name}-{index}")),
                index,
                name: "H100".into(),
                memory_bytes: 80 << 30,
            })
            .collect(),
        cpus_milli: 16_000,
        memory_bytes: 64 << 30,
        shm_bytes: 8 << 30,
        pids_limit: None,
        ports: PortBlock { base: 20_000, size: 12_768 },
        versions: Vec::new(),
        doctor: Vec::new(),
    }
}

pub fn through_the_codec(write: &Write) -> Write {
    let (table, bytes) = match write {
        Write::Job(job) => ("jobs", record::encode_job(job)),
        Write::Attempt(attempt) => ("attempts", record::encode_attempt(attempt)),
        Write::Gang(gang) => ("gangs", record::encode_gang(gang)),
        Write::Node(node) => ("nodes", record::encode_node(node)),
        Write::JoinToken(token) => ("join_tokens", record::encode_join_token(token)),
        Write::ApiToken(token) => ("api_tokens", record::encode_api_token(token)),
        Write::Secret(secret) => ("secrets", record::encode_secret(secret)),
        Write::Project(project) => ("projects", record::encode_project(project)),
        Write::Usage(usage) => ("usage", record::encode_usage(usage)),
        Write::Pool(pool) => ("pools", record::encode_pool(pool)),
        Write::Idempotency(entry) => ("idempotency", record::encode_idempotency(entry)),
        Write::Account(account) => ("accounts", record::encode_account(account)),
        Write::NodeTest(test) => ("node_tests", record::encode_node_test(test)),
        Write::RuleTrial(trial) => ("rule_trials", record::encode_rule_trial(trial)),
        Write::Webhook(webhook) => ("webhooks", record::encode_webhook(webhook)),
        Write::Delivery(delivery) => ("deliveries", record::encode_delivery(delivery)),
        Write::Audit(_)
        | Write::Notice(_)
        | Write::Spent(_)
        | Write::Vacancy(_)
        | Write::ForgetNodeTest { .. }
        | Write::ForgetRuleTrial { .. }
        | Write::ForgetAccount { .. }
        | Write::ForgetWebhook { .. }
        | Write::ForgetDelivery { .. }
        | Write::ForgetIdempotency { .. }
        | Write::ForgetJoinToken { .. }
        | Write::ForgetApiToken { .. }
        | Write::ForgetSecret { .. }
        | Write::ForgetPool { .. }
        | Write::ForgetAttempt { .. }
        | Write::ForgetGang { .. }
        | Write::ForgetJob { .. } => return write.clone(),
    };
    record::decode(table, &bytes.unwrap()).unwrap()
}

/// The stored part of a core, in one order.
pub fn stored(core: &Core) -> Vec<Write> {
    let jobs = core.jobs().cloned().map(Write::Job);
    let attempts = core.attempts().cloned().map(Write::Attempt);
    let gangs = core.gangs().cloned().map(Write::Gang);
    let nodes = core.nodes().map(|node| {
        let mut node = Node::clone(node);
        node.reachability = Reachability::Suspect;
        node.session = None;
        node.health = Default::default();
        node.last_word_ms = 0;
        node.held = None;
        node.unknown.clear();
        // Short silences are remembered in memory only; they reach the record with the next write.
        node.history.retain(|entry| !matches!(entry.state.as_str(), "reachable" | "suspect"));
        Write::Node(Arc::new(node))
    });
    let secrets = core.secrets().cloned().map(Write::Secret);
    let projects = core.projects().cloned().map(Write::Project);
    let usage = core.usage().cloned().map(Write::Usage);
    let projects = projects.chain(usage).chain(core.accounts().cloned().map(Write::Account));
    let pools = core.pools().cloned().map(Write::Pool);
    let jobs = jobs.chain(attempts).chain(gangs);
    let tests = core.node_tests().cloned().map(Write::NodeTest);
    let tests = tests.chain(core.rule_trials().cloned().map(Write::RuleTrial));
    jobs.chain(nodes).chain(secrets).chain(projects).chain(pools).chain(tests).collect()
}
