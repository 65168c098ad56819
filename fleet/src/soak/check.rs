//! Whether a history could have come from one copy of the queue that never forgets: the check of
//! linearizability. Pure.
//!
//! Every job is a register of its own. Its value only grows: through the phases of an attempt, on to
//! the next attempt, to one terminal state. For such a register the rule of pairs is complete: a
//! history is linearizable exactly when no operation that began after another one had completed saw
//! less than that one. (Put each read at the latest beginning of a read that saw less, or at its own;
//! that lies within its interval because of the rule.) So no search is needed.
//!
//! Jobs come to be by submits: a key is bound to one job once, in or after the interval of a submit
//! whose answer is not a certain failure, and is never unbound. A stop that was acknowledged puts a
//! floor under what later reads may see.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use gangline_common::ids::Epoch;

use super::history::{Action, Answer, End, Id, Operation, Seen, State};

/// What a history shows that must not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// An acknowledged job is not there.
    Lost,
    /// One key made two jobs, or one job belongs to two keys.
    Doubled,
    /// A key's job was made twice, or answered from before it was made.
    MadeTwice,
    /// A job that nobody submitted.
    Invented,
    /// Something was seen and later something earlier.
    WentBack,
    /// A terminal state changed.
    EndChanged,
    /// The epoch of the newest attempt went back.
    EpochWentBack,
    /// After an acknowledged stop the job was seen as if nobody had stopped it.
    StopForgotten,
    /// A job whose stop was acknowledged as the cause of its end ended otherwise.
    StopUndone,
    /// A job was stopped that nobody stopped, or one that had ended.
    StopInvented,
}

/// A broken rule, and what of the history shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

/// Checks a history in pieces: between two of them no operation may be under way, other than submits
/// without an answer.
#[derive(Debug, Default)]
pub struct Checker {
    keys: BTreeMap<Id, Key>,
    jobs: HashMap<Id, Job>,
    /// How many operations were looked at, rows of lists among them.
    pub looked_at: u64,
}

/// What is known of a key.
#[derive(Debug, Default)]
struct Key {
    job: Option<Id>,
    /// When submits were invoked that may have made the job.
    tries: Vec<Duration>,
    made: bool,
}

/// What is known of a job.
#[derive(Debug)]
struct Job {
    key: Option<Id>,
    /// When it was first known that it exists: later lists must have it.
    known: Duration,
    /// What completed reads saw at least.
    floor: Place,
    epoch: Option<Epoch>,
    /// The terminal state, and the attempts that it came with.
    end: Option<(End, u32)>,
    /// A completed read or refusal says that it has ended.
    ended: bool,
    /// When a stop was first invoked that may have happened.
    stop_invoked: Option<Duration>,
    /// When a stop was first acknowledged.
    stopped: bool,
    cancels: bool,
}

/// A point in the life of a job: the attempts that have begun to run, and a phase.
type Place = (u32, u8);

/// The least and the greatest place that a read can stand for.
///
/// A gang that is rolled back while it starts takes its attempt back with it: STARTING of attempt
/// n + 1 and PENDING after attempt n take turns until one of them runs, so they are one place, and
/// STOPPING with n attempts is the end of attempt n or such a rollback.
fn places(seen: &Seen) -> (Place, Place) {
    let n = seen.attempts;
    match seen.state {
        State::Running => ((n, 1), (n, 1)),
        State::Stopping => ((n, 2), (n, 3)),
        State::Pending => ((n, 3), (n, 3)),
        State::Starting => ((n.saturating_sub(1), 3), (n.saturating_sub(1), 3)),
        State::Ended(_) => ((n, 4), (n, 4)),
    }
}

impl Checker {
    /// Looks at the next piece of the history; returns what is wrong with it.
    pub fn add(&mut self, operations: &[Operation]) -> Vec<Violation> {
        let mut wrong = Vec::new();
        self.bind_keys(operations, &mut wrong);
        for operation in operations {
            if let (Action::Stop { job }, Answer::Stopped { .. } | Answer::Unknown) =
                (&operation.action, &operation.answer)
            {
                let job = self.job(job, operation.completed);
                let first =
                    job.stop_invoked.map_or(operation.invoked, |t| t.min(operation.invoked));
                job.stop_invoked = Some(first);
            }
        }
        // Beginnings and ends in the order of time; at one moment beginnings come first, so that
        // operations that touch are taken for concurrent.
        let mut moments: Vec<(Duration, bool, usize)> = Vec::with_capacity(2 * operations.len());
        for (index, operation) in operations.iter().enumerate() {
            moments.push((operation.invoked, false, index));
            moments.push((operation.completed, true, index));
        }
        moments.sort_unstable();
        let mut floors: HashMap<usize, Floors> = HashMap::new();
        for (_, ends, index) in moments {
            let Some(operation) = operations.get(index) else { continue };
            if !ends {
                floors.insert(index, self.floors(operation));
            } else if let Some(floors) = floors.remove(&index) {
                self.complete(operation, &floors, &mut wrong);
            }
        }
        wrong
    }

    /// The job of every key that is known to have one, with its last state.
    pub fn jobs(&self) -> impl Iterator<Item = (&Id, &Id)> {
        self.keys.iter().filter_map(|(key, known)| Some((key, known.job.as_ref()?)))
    }

    /// Whether anybody may have stopped it.
    pub fn may_be_stopped(&self, job: &str) -> bool {
        self.jobs.get(job).is_some_and(|job| job.stop_invoked.is_some())
    }

    fn job(&mut self, id: &Id, at: Duration) -> &mut Job {
        self.jobs.entry(id.clone()).or_insert_with(|| Job {
            key: None,
            known: at,
            floor: (0, 0),
            epoch: None,
            end: None,
            ended: false,
            stop_invoked: None,
            stopped: false,
            cancels: false,
        })
    }

    /// Which key has which job, from all answers of the piece.
    fn bind_keys(&mut self, operations: &[Operation], wrong: &mut Vec<Violation>) {
        for operation in operations {
            if let (Action::Submit { key }, false) =
                (&operation.action, operation.answer == Answer::Failed)
            {
                self.keys.entry(key.clone()).or_default().tries.push(operation.invoked);
            }
        }
        for operation in operations {
            self.looked_at += 1;
            let Operation { action, answer, completed, .. } = operation;
            match (action, answer) {
                (Action::Submit { key }, Answer::Submitted { job, made }) => {
                    self.bind(key, job, *completed, wrong);
                    let known = self.keys.entry(key.clone()).or_default();
                    if *made && known.made {
                        let text = format!("two submits of {key} were told that they made {job}");
                        wrong.push(Violation { rule: Rule::MadeTwice, text });
                    }
                    known.made |= made;
                    // Its own try, and the one that made the job before it was answered.
                    let tries = known.tries.iter().filter(|invoked| *invoked < completed).count();
                    if !made && tries < 2 {
                        let text = format!("{key} was told of {job} as made before, by nobody");
                        wrong.push(Violation { rule: Rule::MadeTwice, text });
                    }
                }
                (Action::List, Answer::Rows(rows)) => {
                    self.looked_at += rows.len() as u64;
                    for row in rows {
                        let asked = self.keys.get(&row.key).is_some_and(|key| {
                            key.tries.iter().any(|invoked| invoked <= completed)
                        });
                        if !asked {
                            let text =
                                format!("{} of {}, which nobody submitted", row.job, row.key);
                            wrong.push(Violation { rule: Rule::Invented, text });
                        }
                        self.bind(&row.key, &row.job, *completed, wrong);
                    }
                }
                _ => {}
            }
        }
    }

    fn bind(&mut self, key: &Id, job: &Id, at: Duration, wrong: &mut Vec<Violation>) {
        let known = self.keys.entry(key.clone()).or_default();
        let first = known.job.get_or_insert_with(|| job.clone());
        if first != job {
            let text = format!("{key} made {first} and {job}");
            wrong.push(Violation { rule: Rule::Doubled, text });
        }
        let entry = self.job(job, at);
        entry.known = entry.known.min(at);
        match &entry.key {
            Some(other) if other != key => {
                let text = format!("{job} belongs to {other} and to {key}");
                wrong.push(Violation { rule: Rule::Doubled, text });
            }
            _ => entry.key = Some(key.clone()),
        }
    }

    /// What an operation that begins now may not see less than.
    fn floors(&self, operation: &Operation) -> Floors {
        match &operation.action {
            Action::Get { job } | Action::Stop { job } => Floors::One(self.floor(job)),
            Action::List => {
                Floors::All(self.jobs.keys().map(|id| (id.clone(), self.floor(id))).collect())
            }
            Action::Submit { .. } => Floors::None,
        }
    }

    fn floor(&self, id: &Id) -> Floor {
        self.jobs.get(id).map_or_else(Floor::default, |job| Floor {
            place: job.floor,
            epoch: job.epoch,
            ended: job.ended,
            stopped: job.stopped,
        })
    }

    fn complete(&mut self, operation: &Operation, floors: &Floors, wrong: &mut Vec<Violation>) {
        let at = operation.completed;
        match (&operation.action, &operation.answer) {
            (Action::Get { job }, Answer::Job(seen)) => {
                self.read(job, seen, floors.of(job), at, wrong);
            }
            (Action::Stop { job }, Answer::Stopped { cancels, seen }) => {
                let floor = floors.of(job);
                if floor.ended {
                    let text = format!("{job} had ended when it was stopped");
                    wrong.push(Violation { rule: Rule::StopInvented, text });
                }
                // What the answer shows comes after the stop.
                let after = Floor { stopped: true, ..floor };
                let known = self.job(job, at);
                known.cancels |= cancels;
                self.read(job, seen, after, at, wrong);
                self.job(job, at).stopped = true;
            }
            (Action::Stop { job }, Answer::AlreadyEnded) => self.job(job, at).ended = true,
            (Action::Get { job } | Action::Stop { job }, Answer::Missing) => {
                let known = self.jobs.get(job).is_some_and(|job| job.known <= operation.invoked);
                if known {
                    let text = format!("{job} was acknowledged and is not there");
                    wrong.push(Violation { rule: Rule::Lost, text });
                }
            }
            (Action::List, Answer::Rows(rows)) => {
                let mut listed = BTreeSet::new();
                for row in rows {
                    if !listed.insert(row.job.clone()) {
                        let text = format!("{} is twice in one list", row.job);
                        wrong.push(Violation { rule: Rule::Doubled, text });
                    }
                    self.read(&row.job, &row.seen, floors.of(&row.job), at, wrong);
                }
                let mut missing: Vec<&Id> = self
                    .jobs
                    .iter()
                    .filter(|(id, job)| job.known <= operation.invoked && !listed.contains(*id))
                    .map(|(id, _)| id)
                    .collect();
                missing.sort();
                wrong.extend(missing.into_iter().map(|job| Violation {
                    rule: Rule::Lost,
                    text: format!("{job} was acknowledged and is not in a later list"),
                }));
            }
            _ => {}
        }
    }

    fn read(
        &mut self,
        id: &Id,
        seen: &Seen,
        floor: Floor,
        at: Duration,
        wrong: &mut Vec<Violation>,
    ) {
        let mut note = |rule, text: String| wrong.push(Violation { rule, text });
        let job = self.job(id, at);
        let (least, greatest) = places(seen);
        if greatest < floor.place || (floor.ended && seen.state.end().is_none()) {
            note(Rule::WentBack, format!("{id} was seen at {:?}, later as {seen:?}", floor.place));
        }
        if seen.epoch < floor.epoch && seen.epoch.is_some() {
            let text = format!("{id} had epoch {:?}, later {:?}", floor.epoch, seen.epoch);
            note(Rule::EpochWentBack, text);
        }
        let waits_or_runs = matches!(seen.state, State::Pending | State::Starting | State::Running);
        if floor.stopped && waits_or_runs {
            note(Rule::StopForgotten, format!("{id} was stopped, and was seen later as {seen:?}"));
        }
        job.floor = job.floor.max(least);
        job.epoch = job.epoch.max(seen.epoch);
        if let Some(end) = seen.state.end() {
            let before = *job.end.get_or_insert((end, seen.attempts));
            if before != (end, seen.attempts) {
                note(Rule::EndChanged, format!("{id} ended as {before:?} and as {seen:?}"));
            }
            if end == End::Cancelled && job.stop_invoked.is_none_or(|invoked| invoked > at) {
                note(Rule::StopInvented, format!("{id} is cancelled, and nobody stopped it"));
            }
            job.ended = true;
        }
        // Reads at the same time agree about the end as well.
        let Some((end, attempts)) = job.end else { return };
        if job.floor > (attempts, 4) {
            let floor = job.floor;
            note(
                Rule::EndChanged,
                format!("{id} ended as {:?}, and went on to {floor:?}", job.end),
            );
        }
        if job.cancels && end != End::Cancelled {
            note(Rule::StopUndone, format!("{id} was stopped and ended as {end:?}"));
        }
    }
}

/// What a read may not see less than.
#[derive(Debug, Clone, Copy, Default)]
struct Floor {
    place: Place,
    epoch: Option<Epoch>,
    ended: bool,
    stopped: bool,
}

/// The floors of the jobs that an operation reads.
#[derive(Debug)]
enum Floors {
    None,
    One(Floor),
    All(HashMap<Id, Floor>),
}

impl Floors {
    fn of(&self, job: &Id) -> Floor {
        match self {
            Floors::None => Floor::default(),
            Floors::One(floor) => *floor,
            Floors::All(floors) => floors.get(job).copied().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests;
