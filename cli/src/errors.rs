//! Errors for a person and for a program: what happened, why, what to do, a code, and the exit
//! code of the process.

use std::fmt;

use serde_json::{Value, json};

use gangline_spec::SpecErrors;

/// Exit codes of the process.
pub mod exit {
    /// All went well.
    pub const OK: u8 = 0;
    /// An error without a code of its own.
    pub const ERROR: u8 = 1;
    /// Wrong usage of the command line.
    pub const USAGE: u8 = 2;
    /// Not logged in, or forbidden.
    pub const DENIED: u8 = 4;
    /// The spec or the configuration is invalid.
    pub const INVALID: u8 = 5;
    /// The coordinator is not reachable.
    pub const UNREACHABLE: u8 = 6;
    /// It exists already, or changed meanwhile.
    pub const CONFLICT: u8 = 7;
    /// The job can never run on this cluster.
    pub const IMPOSSIBLE: u8 = 9;
    /// `plan --exit-code`: valid, and would wait.
    pub const WOULD_QUEUE: u8 = 8;
    /// The job ended FAILED or TIMEOUT.
    pub const JOB_FAILED: u8 = 100;
    /// The job has not ended.
    pub const JOB_NOT_FINISHED: u8 = 101;
    /// There is no such job.
    pub const JOB_NOT_FOUND: u8 = 102;
    /// The job ended CANCELLED.
    pub const JOB_CANCELLED: u8 = 103;
    /// Ctrl-C while attached; the job goes on.
    pub const INTERRUPTED: u8 = 130;
}

/// Codes of the errors that this program finds itself. Those of specs (E01xx) come from the spec
/// crate, those of the API from the coordinator.
pub mod code {
    /// The coordinator does not answer.
    pub const UNREACHABLE: &str = "E0901";
    /// The coordinator's answer is not what its contract says.
    pub const BAD_ANSWER: &str = "E0902";
    /// The configuration cannot be used.
    pub const CONFIG: &str = "E0903";
    /// The address cannot be used.
    pub const ADDRESS: &str = "E0904";
    /// A file or stream cannot be read or written.
    pub const IO: &str = "E0905";
    /// Wrong usage of the command line.
    pub const USAGE: &str = "E0906";
    /// A question that nobody can answer here.
    pub const UNANSWERED: &str = "E0907";
    /// The token cannot be sent.
    pub const TOKEN: &str = "E0908";
    /// A fault of this program or of its machine.
    pub const INTERNAL: &str = "E0909";
    /// The coordinator refused without a code of its own.
    pub const REFUSED: &str = "E0910";
    /// The audit log is not what was written.
    pub const BROKEN_AUDIT: &str = "E0911";
    /// The coordinator's CA is not the expected one.
    pub const WRONG_CA: &str = "E0912";
    /// The value of a secret cannot be used.
    pub const VALUE: &str = "E0913";
    /// The code of a job cannot be sent.
    pub const CODE: &str = "E0914";
    /// The trace cannot be replayed.
    pub const TRACE: &str = "E0915";
    /// A check of the network has no result.
    pub const NO_RESULT: &str = "E0916";
}

/// Why a command failed. Small, so that it travels cheaply in results.
#[derive(Debug)]
pub struct CliError(Box<Details>);

#[derive(Debug)]
struct Details {
    exit: u8,
    code: String,
    what: String,
    why: Option<String>,
    hint: Option<String>,
    status: Option<u16>,
    /// `errors` of the JSON form.
    items: Vec<Value>,
    /// The text form of a spec's problems, with frames; replaces `what` on a terminal.
    frames: Option<String>,
    broken_pipe: bool,
    /// The request may not have arrived, or its answer was lost.
    transport: bool,
}

impl CliError {
    /// An error with the exit code `exit`, the stable `code`, and what happened.
    pub fn new(exit: u8, code: &str, what: impl Into<String>) -> Self {
        Self(Box::new(Details {
            exit,
            code: code.to_owned(),
            what: what.into(),
            why: None,
            hint: None,
            status: None,
            items: Vec::new(),
            frames: None,
            broken_pipe: false,
            transport: false,
        }))
    }

    /// Reading or writing something on this machine failed.
    pub fn io(what: impl Into<String>, error: &std::io::Error) -> Self {
        let mut new = Self::new(exit::ERROR, code::IO, what).why(error.to_string());
        new.0.broken_pipe = error.kind() == std::io::ErrorKind::BrokenPipe;
        new
    }

    /// The spec is invalid; `source` is the text of `file_name`.
    pub fn spec(errors: &SpecErrors, file_name: &str, source: &str) -> Self {
        Self::problems(errors, file_name, source, format!("{file_name} is not a valid spec"))
    }

    /// The problems of `file_name`, whose text is `source`; `what` says what comes of them.
    pub fn problems(errors: &SpecErrors, file_name: &str, source: &str, what: String) -> Self {
        let first = errors.errors.first().map_or("E0103", |error| error.code);
        let mut new = Self::new(exit::INVALID, first, what);
        new.0.items = errors
            .errors
            .iter()
            .map(|error| {
                json!({
                    "code": error.code, "pointer": error.pointer, "detail": error.message,
                    "hint": error.hint, "line": error.line, "column": error.column,
                })
            })
            .collect();
        new.0.frames = Some(errors.render(file_name, source));
        new
    }

    /// Adds why it happened.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.0.why = Some(why.into());
        self
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Marks an error of the connection: the same request may work a moment later.
    #[must_use]
    pub fn transport(mut self) -> Self {
        self.0.transport = true;
        self
    }

    /// Replaces the exit code, for a command in which the error means something special.
    #[must_use]
    pub fn with_exit(mut self, exit: u8) -> Self {
        self.0.exit = exit;
        self
    }

    /// Adds the HTTP status and the single problems of the coordinator's answer.
    #[must_use]
    pub fn answer(mut self, status: u16, items: Vec<Value>) -> Self {
        self.0.status = Some(status);
        self.0.items = items;
        self
    }

    /// Adds the single problems: `pointer` says where, `detail` what.
    #[must_use]
    pub fn items(mut self, items: Vec<Value>) -> Self {
        self.0.items = items;
        self
    }

    /// The exit code of the process.
    pub fn exit(&self) -> u8 {
        self.0.exit
    }

    /// The HTTP status, when the coordinator answered.
    pub fn status(&self) -> Option<u16> {
        self.0.status
    }

    /// The reader of stdout went away.
    pub fn is_broken_pipe(&self) -> bool {
        self.0.broken_pipe
    }

    /// The same request may work a moment later.
    pub fn is_transport(&self) -> bool {
        self.0.transport
    }

    /// The form for programs: `{"error":{…}}`.
    pub fn to_json(&self) -> Value {
        let details = &self.0;
        let mut error = json!({
            "code": details.code, "title": details.what, "exit_code": details.exit,
        });
        if let Some(map) = error.as_object_mut() {
            let mut put = |key: &str, value: Option<Value>| {
                if let Some(value) = value {
                    map.insert(key.to_owned(), value);
                }
            };
            put("detail", details.why.clone().map(Value::from));
            put("hint", details.hint.clone().map(Value::from));
            put("status", details.status.map(Value::from));
            put("errors", (!details.items.is_empty()).then(|| details.items.clone().into()));
        }
        json!({ "error": error })
    }

    /// The form for people, without control sequences and without a line end at the end.
    pub fn to_text(&self) -> String {
        let details = &self.0;
        if let Some(frames) = &details.frames {
            return format!("{}\n{}", frames.trim_end(), details.what);
        }
        let mut out = format!("error[{}]: {}", details.code, details.what);
        for (label, text) in [("why ", &details.why), ("hint", &details.hint)] {
            if let Some(text) = text {
                out.push_str(&format!("\n  {label}  {text}"));
            }
        }
        for item in &details.items {
            let text = |key: &str| item.get(key).and_then(Value::as_str).unwrap_or_default();
            out.push_str(&format!("\n  {}: {}", text("pointer"), text("detail")));
        }
        out
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.what)
    }
}

impl std::error::Error for CliError {}
