//! What clients asked and what they were told, with the times of both: the input of the check.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gangline_common::ids::Epoch;

/// A job id or an idempotency key. Shared, because lists repeat them thousands of times.
pub type Id = Arc<str>;

/// A state of a job, as the API shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Pending,
    Starting,
    Running,
    Stopping,
    Ended(End),
}

/// A terminal state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Succeeded,
    Failed,
    Cancelled,
    Timeout,
}

impl State {
    /// The state of this word; `None` for one that no job of a soak can have.
    pub fn of(word: &str) -> Option<State> {
        Some(match word {
            "PENDING" => State::Pending,
            "STARTING" => State::Starting,
            "RUNNING" => State::Running,
            "STOPPING" => State::Stopping,
            "SUCCEEDED" => State::Ended(End::Succeeded),
            "FAILED" => State::Ended(End::Failed),
            "CANCELLED" => State::Ended(End::Cancelled),
            "TIMEOUT" => State::Ended(End::Timeout),
            _ => return None,
        })
    }

    pub fn end(self) -> Option<End> {
        match self {
            State::Ended(end) => Some(end),
            State::Pending | State::Starting | State::Running | State::Stopping => None,
        }
    }
}

/// A job as one answer showed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub state: State,
    pub attempts: u32,
    /// Of the newest attempt; only the answer about one job has it.
    pub epoch: Option<Epoch>,
}

/// A row of a list. Every job of a soak is named by its idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub key: Id,
    pub job: Id,
    pub seen: Seen,
}

/// What a client asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Submit {
        key: Id,
    },
    Stop {
        job: Id,
    },
    Get {
        job: Id,
    },
    /// All jobs.
    List,
}

/// What it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// `made`: by this very request (201), not by an earlier one with the same key (200).
    Submitted {
        job: Id,
        made: bool,
    },
    /// `cancels`: the answer says that the stop is why the job ends.
    Stopped {
        cancels: bool,
        seen: Seen,
    },
    /// A stop of a job that has ended.
    AlreadyEnded,
    Job(Seen),
    Rows(Vec<Row>),
    /// There is no such job.
    Missing,
    /// For certain nothing has happened.
    Failed,
    /// No answer: it may have happened, may happen later, or never.
    Unknown,
}

/// One request of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    pub action: Action,
    pub answer: Answer,
    /// On the clock of the history. The effect, if any, lies between the two; that of an unknown
    /// answer anywhere after the first.
    pub invoked: Duration,
    pub completed: Duration,
}

/// The history that all clients write, with its one monotonic clock.
pub struct Recorder {
    started: Instant,
    operations: Mutex<Vec<Operation>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder { started: Instant::now(), operations: Mutex::default() }
    }
}

impl Recorder {
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Notes an operation that was invoked at `invoked` and has completed now.
    pub fn note(&self, action: Action, answer: Answer, invoked: Duration) {
        let operation = Operation { action, answer, invoked, completed: self.now() };
        self.lock().push(operation);
    }

    /// Everything that was noted since the last call.
    pub fn take(&self) -> Vec<Operation> {
        std::mem::take(&mut *self.lock())
    }

    // A push is whole or did not happen.
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Operation>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
