//! Clients that keep a queue busy: they submit, stop, look at and list command gangs, and note what
//! they asked and were told.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use gangline_simulation::random::Random;
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::history::{Action, Answer, Id, Operation, Recorder, Row, Seen, State};
use crate::api::Api;

/// What a stop of a job that has ended is answered with.
const ALREADY_ENDED: &str = "E0314";
/// What begins the reason of a job that a client stopped.
const STOPPED_BY: &str = "stopped by ";
/// Rows of a page of a list.
const PAGE: usize = 1000;
/// Longest pause of a client between two requests, in milliseconds.
const PAUSE_MS: u64 = 150;
/// Pause before a submit at a kill is made again.
const AGAIN: Duration = Duration::from_millis(50);
/// Ended jobs that clients still look at.
const REMEMBERED: usize = 64;

/// What the clients shall do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Busy,
    /// Nothing new: only submits without an answer are asked again, and then nothing.
    Quiet,
}

/// How much the clients want.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub seed: u64,
    /// Clients at the same time.
    pub clients: u64,
    /// Jobs that have not ended; no client submits while there are more.
    pub backlog: usize,
}

/// What all clients share.
struct Shared {
    api: Api,
    recorder: Recorder,
    backlog: usize,
    jobs: Mutex<Jobs>,
}

/// Jobs of which a client was told.
#[derive(Default)]
struct Jobs {
    live: BTreeSet<Id>,
    /// The newest of those that have ended.
    ended: Vec<Id>,
}

/// Running clients.
pub struct Clients {
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
    idle: watch::Receiver<u64>,
    count: u64,
    tasks: JoinSet<anyhow::Result<()>>,
    /// Submits that were made at the moment of a kill, and how many there were.
    rushing: JoinSet<anyhow::Result<()>>,
    rushed: u64,
}

impl Clients {
    /// Starts them; they are busy at once.
    pub fn start(api: Api, load: Load) -> Clients {
        let recorder = Recorder::default();
        let shared = Shared { api, recorder, backlog: load.backlog, jobs: Mutex::default() };
        let shared = Arc::new(shared);
        let (phase, phases) = watch::channel(Phase::Busy);
        let (idle_sender, idle) = watch::channel(0);
        let mut tasks = JoinSet::new();
        for number in 0..load.clients {
            let client = Client {
                shared: shared.clone(),
                random: Random::new(load.seed.wrapping_mul(1000) + number),
                number,
                submitted: 0,
                unanswered: None,
            };
            tasks.spawn(client.run(phases.clone(), idle_sender.clone()));
        }
        let rushing = JoinSet::new();
        Clients { shared, phase, idle, count: load.clients, tasks, rushing, rushed: 0 }
    }

    /// Submits so many jobs at this moment; each is asked for again until it is answered.
    pub fn rush(&mut self, count: u64) {
        for _ in 0..count {
            self.rushed += 1;
            let mut client = Client {
                shared: self.shared.clone(),
                random: Random::new(self.rushed),
                number: self.count,
                submitted: self.rushed,
                unanswered: None,
            };
            self.rushing.spawn(async move {
                let (key, spec) = client.new_job();
                client.submit(key, spec).await?;
                while let Some((key, spec)) = client.unanswered.take() {
                    tokio::time::sleep(AGAIN).await;
                    client.submit(key, spec).await?;
                }
                Ok(())
            });
        }
    }

    /// Jobs that were acknowledged and are not known to have ended.
    pub fn live(&self) -> Vec<Id> {
        self.shared.lock().live.iter().cloned().collect()
    }

    /// Looks at one job; says whether it is known to have ended.
    pub async fn look(&self, job: &Id) -> anyhow::Result<bool> {
        self.shared.get(job).await?;
        Ok(!self.shared.lock().live.contains(job))
    }

    /// Lists all jobs, and says how many there are; `None` without an answer.
    pub async fn list(&self) -> anyhow::Result<Option<usize>> {
        self.shared.list().await
    }

    /// No client asks for anything new; returns when every submit has had its answer.
    ///
    /// # Errors
    /// A client was told what no client may be told, or `patience` was too short.
    pub async fn quiet(&mut self, patience: Duration) -> anyhow::Result<()> {
        let rushing = async {
            while let Some(ended) = self.rushing.join_next().await {
                ended??;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(patience, rushing).await.context("a submit is never answered")??;
        self.phase.send_replace(Phase::Quiet);
        let count = self.count;
        let all_idle = self.idle.wait_for(|idle| *idle == count);
        tokio::select! {
            waited = tokio::time::timeout(patience, all_idle) => {
                waited.context("a client is never answered")?.context("the clients have ended")?;
            }
            ended = self.tasks.join_next() => return Err(why(ended)),
        }
        Ok(())
    }

    pub fn busy(&self) {
        self.phase.send_replace(Phase::Busy);
    }

    /// An error when a client has ended, which it does only because of what it was told.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            ended => Err(why(ended)),
        }
    }

    /// What was noted since the last call.
    pub fn history(&self) -> Vec<Operation> {
        self.shared.recorder.take()
    }
}

type Ended = Option<Result<anyhow::Result<()>, tokio::task::JoinError>>;

fn why(ended: Ended) -> anyhow::Error {
    match ended {
        Some(Ok(Err(error))) => error,
        Some(Err(error)) => error.into(),
        Some(Ok(Ok(()))) | None => anyhow::anyhow!("the clients have ended"),
    }
}

struct Client {
    shared: Arc<Shared>,
    random: Random,
    number: u64,
    submitted: u64,
    /// The key, and the spec, of a submit that had no answer.
    unanswered: Option<(Id, String)>,
}

impl Client {
    async fn run(
        mut self,
        mut phases: watch::Receiver<Phase>,
        idle: watch::Sender<u64>,
    ) -> anyhow::Result<()> {
        loop {
            let phase = *phases.borrow_and_update();
            if phase == Phase::Quiet && self.unanswered.is_none() {
                idle.send_modify(|count| *count += 1);
                // An error means that nobody wants anything any more.
                if phases.wait_for(|phase| *phase == Phase::Busy).await.is_err() {
                    return Ok(());
                }
                idle.send_modify(|count| *count -= 1);
                continue;
            }
            self.step().await?;
            tokio::time::sleep(Duration::from_millis(self.random.between(10, PAUSE_MS))).await;
        }
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        if let Some((key, spec)) = self.unanswered.take() {
            return self.submit(key, spec).await;
        }
        let (live, job) = {
            let jobs = self.shared.lock();
            let live: Vec<&Id> = jobs.live.iter().collect();
            let one = self.random.pick(&live).map(|id| Id::clone(id));
            let old = self.random.pick(&jobs.ended).cloned();
            // Now and then one that has ended: its state is never another one again.
            let job = if self.random.one_in(8) { old.or(one) } else { one };
            (live.len(), job)
        };
        match (self.random.below(100), job) {
            (12..60, _) if live < self.shared.backlog => {
                self.submitted += 1;
                let (key, spec) = self.new_job();
                self.submit(key, spec).await
            }
            (0..2, _) | (_, None) => self.shared.list().await.map(drop),
            (2..12, Some(job)) => self.shared.stop(&job).await,
            (_, Some(job)) => self.shared.get(&job).await,
        }
    }

    /// The newest job's key, which is its name, and its spec: one or two ranks, each of which notes that
    /// it has started, and of how many it is one, and does nothing for a while. It is not tried again: a
    /// rank that starts twice is what is looked for.
    fn new_job(&mut self) -> (Id, String) {
        let key = format!("c{}-{}", self.number, self.submitted);
        let nnodes = self.random.between(1, 2);
        let tenths = self.random.between(1, 4);
        let spec = format!(
            "name: {key}\nresources: {{nnodes: {nnodes}}}\nlauncher: {{type: command}}\nretry: {{max: 0}}\n\
             run: |\n  echo $NNODES >> $GANGLINE_CKPT_DIR/$NODE_RANK\n  sleep 0.{tenths}\n"
        );
        (key.into(), spec)
    }

    async fn submit(&mut self, key: Id, spec: String) -> anyhow::Result<()> {
        let action = Action::Submit { key: key.clone() };
        let invoked = self.shared.recorder.now();
        let headers = [("content-type", "application/yaml"), ("idempotency-key", &*key)];
        let told = self.shared.post("/api/v1/jobs", &headers, &spec).await;
        let answer = match &told {
            Told::Nothing => Answer::Unknown,
            Told::NotAsked => Answer::Failed,
            Told::This(status @ (200 | 201), document) => {
                let job: Id = text(document, "/job/id")?.into();
                self.shared.lock().live.insert(job.clone());
                Answer::Submitted { job, made: *status == 201 }
            }
            Told::This(status, document) => bail!("submit of {key}: {status}: {document}"),
        };
        if let Answer::Unknown | Answer::Failed = answer {
            self.unanswered = Some((key, spec));
        }
        self.shared.recorder.note(action, answer, invoked);
        Ok(())
    }
}

/// What came back.
enum Told {
    This(u16, Value),
    /// The request did not reach anybody.
    NotAsked,
    Nothing,
}

impl Told {
    async fn of(sent: reqwest::Result<Response>) -> Told {
        match sent {
            Err(error) if error.is_connect() => Told::NotAsked,
            Err(_) => Told::Nothing,
            // It could not say; whether it did is not known.
            Ok(response) if response.status().is_server_error() => Told::Nothing,
            Ok(response) => {
                let status = response.status().as_u16();
                match response.json().await {
                    Ok(document) => Told::This(status, document),
                    Err(_) => Told::Nothing,
                }
            }
        }
    }

    /// For requests that only read.
    fn unanswered(&self) -> Option<Answer> {
        match self {
            Told::This(..) => None,
            Told::NotAsked => Some(Answer::Failed),
            Told::Nothing => Some(Answer::Unknown),
        }
    }
}

impl Shared {
    async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Told {
        Told::of(self.api.send(Method::POST, path, headers, Some(body.to_owned())).await).await
    }

    async fn ask(&self, path: &str) -> Told {
        Told::of(self.api.send(Method::GET, path, &[], None).await).await
    }

    async fn get(&self, job: &Id) -> anyhow::Result<()> {
        let invoked = self.recorder.now();
        let told = self.ask(&format!("/api/v1/jobs/{job}")).await;
        let answer = match told {
            Told::This(200, document) => {
                let seen = seen(&document)?;
                self.saw(job, &seen);
                Answer::Job(seen)
            }
            Told::This(404, _) => Answer::Missing,
            Told::This(status, document) => bail!("get of {job}: {status}: {document}"),
            other => other.unanswered().unwrap_or(Answer::Unknown),
        };
        self.recorder.note(Action::Get { job: job.clone() }, answer, invoked);
        Ok(())
    }

    async fn stop(&self, job: &Id) -> anyhow::Result<()> {
        let invoked = self.recorder.now();
        let headers = [("content-type", "application/json")];
        let told = self.post(&format!("/api/v1/jobs/{job}/stop"), &headers, "{}").await;
        let answer = match told {
            Told::This(202, document) => {
                let document = document.get("job").context("no job")?;
                let seen = seen(document)?;
                self.saw(job, &seen);
                let cancels = text(document, "/reason")?.starts_with(STOPPED_BY);
                Answer::Stopped { cancels, seen }
            }
            Told::This(409, document) if document["code"] == ALREADY_ENDED => Answer::AlreadyEnded,
            Told::This(404, _) => Answer::Missing,
            Told::This(status, document) => bail!("stop of {job}: {status}: {document}"),
            other => other.unanswered().unwrap_or(Answer::Unknown),
        };
        self.recorder.note(Action::Stop { job: job.clone() }, answer, invoked);
        Ok(())
    }

    /// Every page; `None` when one has no answer.
    async fn list(&self) -> anyhow::Result<Option<usize>> {
        let invoked = self.recorder.now();
        let (mut rows, mut token) = (Vec::new(), String::new());
        let answer = loop {
            match self.ask(&format!("/api/v1/jobs?page_size={PAGE}{token}")).await {
                Told::This(200, page) => {
                    for document in page["jobs"].as_array().context("no jobs")? {
                        let job: Id = text(document, "/id")?.into();
                        let seen = seen(document)?;
                        self.saw(&job, &seen);
                        rows.push(Row { key: text(document, "/name")?.into(), job, seen });
                    }
                    match page["next_page_token"].as_str() {
                        Some(next) => token = format!("&page_token={next}"),
                        None => break Answer::Rows(rows),
                    }
                }
                Told::This(status, document) => bail!("list: {status}: {document}"),
                other => break other.unanswered().unwrap_or(Answer::Unknown),
            }
        };
        let count = match &answer {
            Answer::Rows(rows) => Some(rows.len()),
            _ => None,
        };
        self.recorder.note(Action::List, answer, invoked);
        Ok(count)
    }

    fn saw(&self, job: &Id, seen: &Seen) {
        if seen.state.end().is_none() {
            return;
        }
        let mut jobs = self.lock();
        if jobs.live.remove(job) {
            if jobs.ended.len() >= REMEMBERED {
                jobs.ended.remove(0);
            }
            jobs.ended.push(job.clone());
        }
    }

    // Both collections are whole after every statement.
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn text<'a>(document: &'a Value, pointer: &str) -> anyhow::Result<&'a str> {
    let found = document.pointer(pointer).and_then(Value::as_str);
    found.with_context(|| format!("no {pointer} in {document}"))
}

/// A job of the API.
fn seen(document: &Value) -> anyhow::Result<Seen> {
    let word = text(document, "/state")?;
    let state = State::of(word).with_context(|| format!("no job of a soak can be {word}"))?;
    let attempts = document["attempts"].as_u64().and_then(|number| u32::try_from(number).ok());
    let attempts = attempts.context("no attempts")?;
    let newest = document["attempt_list"].as_array().and_then(|list| list.last());
    let epoch = newest.and_then(|attempt| attempt["epoch"].as_str());
    let epoch = epoch.map(str::parse).transpose()?;
    Ok(Seen { state, attempts, epoch })
}
