//! Errors of the HTTP API: RFC 9457 problems with stable codes, what to do, and no secrets.

use std::sync::Arc;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use gangline_common::ids::short_suffix;
use gangline_common::random::{self, NoRandom};
use gangline_spec::{SpecError, SpecErrors};
use serde::Serialize;
use utoipa::{ToResponse, ToSchema};

use crate::driver::DriverGone;

/// One kind of error: its stable code, its title, and its status.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub code: &'static str,
    pub title: &'static str,
    pub status: StatusCode,
}

macro_rules! kinds {
    ($($name:ident = $code:literal, $status:ident, $title:literal;)+) => {
        $(pub const $name: Kind =
            Kind { code: $code, title: $title, status: StatusCode::$status };)+
    };
}

// A code never changes its meaning. Those of the job spec (E01xx) are of the spec crate.
kinds! {
    BAD_PARAMETER = "E0300", BAD_REQUEST, "A parameter of the request is not valid";
    UNAUTHENTICATED = "E0301", UNAUTHORIZED, "Not logged in";
    FORBIDDEN = "E0302", FORBIDDEN, "Not allowed";
    TOKEN_IN_QUERY = "E0303", BAD_REQUEST, "A token in the address is refused";
    TOO_MANY_FAILURES = "E0304", TOO_MANY_REQUESTS, "Too many failed logins";
    BAD_HOST = "E0305", BAD_REQUEST, "The Host header is not accepted";
    NO_SUCH_JOB = "E0306", NOT_FOUND, "No such job";
    NO_SUCH_NODE = "E0307", NOT_FOUND, "No such node";
    AMBIGUOUS = "E0308", CONFLICT, "More than one job fits";
    TOO_LARGE = "E0309", PAYLOAD_TOO_LARGE, "The request is too large";
    KEY_REUSED = "E0310", UNPROCESSABLE_ENTITY, "The idempotency key came with another request";
    JOB_EXISTS = "E0311", CONFLICT, "The job id is taken";
    CHECKPOINT_IN_USE = "E0312", CONFLICT, "The checkpoint directory is in use";
    FULL = "E0313", SERVICE_UNAVAILABLE, "The queue is full";
    ALREADY_ENDED = "E0314", CONFLICT, "The job has already ended";
    TOO_MANY_STREAMS = "E0315", SERVICE_UNAVAILABLE, "Too many streams";
    SHUTTING_DOWN = "E0316", SERVICE_UNAVAILABLE, "The coordinator is shutting down";
    NO_SUCH_TOKEN = "E0322", NOT_FOUND, "No such token";
    LAST_ADMIN = "E0323", CONFLICT, "The last administrator's token";
    TOKEN_NAME_TAKEN = "E0325", CONFLICT, "The name is another token's";
    HTTPS_ONLY = "E0324", BAD_REQUEST, "This address is served with https";
    NO_SUCH_ROUTE = "E0317", NOT_FOUND, "No such address";
    BAD_METHOD = "E0318", METHOD_NOT_ALLOWED, "This address does not take that method";
    BAD_MEDIA_TYPE = "E0319", UNSUPPORTED_MEDIA_TYPE, "The body is of a type that is not read";
    BAD_BODY = "E0320", UNPROCESSABLE_ENTITY, "The body is not valid";
    SLOW_BODY = "E0321", REQUEST_TIMEOUT, "The body did not arrive in time";
    NOT_ENDED = "E0340", CONFLICT, "The job has not ended";
    NOT_BUILT = "E0341", BAD_REQUEST, "Not available yet";
    STORE_FULL = "E0342", INSUFFICIENT_STORAGE, "No room for more";
    NO_SUCH_SECRET = "E0343", NOT_FOUND, "No such secret";
    SECRET_IN_USE = "E0344", CONFLICT, "A job needs the secret";
    NO_SUCH_CLUSTER = "E0345", NOT_FOUND, "No such cluster";
    CLUSTER_TOO_SMALL = "E0346", UNPROCESSABLE_ENTITY, "The cluster is too small";
    HAS_JOBS = "E0347", CONFLICT, "Jobs belong to the cluster";
    PRIORITY_TOO_HIGH = "E0348", FORBIDDEN, "The priority is too high";
    NO_SUCH_POOL = "E0370", NOT_FOUND, "No such pool";
    POOL_IN_USE = "E0371", CONFLICT, "The pool is in use";
    NOT_MOVED_HERE = "E0372", CONFLICT, "The node was not moved to this pool";
    NO_SUCH_CODE = "E0350", NOT_FOUND, "No such code";
    CODE_INCOMPLETE = "E0351", CONFLICT, "Parts of the code are missing";
    BAD_CODE = "E0352", UNPROCESSABLE_ENTITY, "The code cannot be used";
    NOT_RUNNING = "E0360", CONFLICT, "The job is not running";
    NO_RAY = "E0361", CONFLICT, "The job has no Ray cluster";
    AGENT_AWAY = "E0362", SERVICE_UNAVAILABLE, "The node's agent is not connected";
    AGENT_TOO_OLD = "E0363", NOT_IMPLEMENTED, "The node's agent is too old";
    TOO_MANY_QUESTIONS = "E0364", SERVICE_UNAVAILABLE, "Too many questions to one node";
    RAY_NOT_UP = "E0365", CONFLICT, "The Ray cluster is not up";
    RAY_SILENT = "E0366", BAD_GATEWAY, "Ray did not answer";
    NO_METRICS = "E0356", SERVICE_UNAVAILABLE, "The metrics could not be read";
    NO_SUCH_RAY_MEMBER = "E0357", NOT_FOUND, "No such member of a Ray cluster";
    NO_SCENE = "E0358", NOT_FOUND, "Nothing was kept";
    AGENT_SILENT = "E0359", BAD_GATEWAY, "The node's agent did not answer well";
    RATE_LIMITED = "E0367", TOO_MANY_REQUESTS, "Too many requests";
    NODE_IN_CONTACT = "E0368", CONFLICT, "The node is not lost";
    NOTHING_HELD = "E0369", CONFLICT, "The node holds nothing";
    NOT_WAITING = "E0380", CONFLICT, "The job is not in the queue";
    ENDING = "E0381", CONFLICT, "The job is being stopped";
    BAD_TIME_LIMIT = "E0382", CONFLICT, "The time limit cannot be changed so";
    BAD_QUOTA = "E0390", UNPROCESSABLE_ENTITY, "The quota contradicts itself or others";
    QUOTA_BELOW_USE = "E0391", CONFLICT, "The project uses more than the quota";
    NO_SUCH_WEBHOOK = "E0392", NOT_FOUND, "No such webhook";
    LOGS_REMOVED = "E0393", GONE, "The logs were removed";
    TOO_MANY_SEARCHES = "E0394", SERVICE_UNAVAILABLE, "Too many searches";
    NO_SUCH_NODE_TEST = "E0395", NOT_FOUND, "No such check of the network";
    NOT_SIMULATED = "E0396", CONFLICT, "That fault cannot be injected there";
    INTERNAL = "E0399", INTERNAL_SERVER_ERROR, "The coordinator failed";
}

/// `application/problem+json`.
#[derive(Debug, Serialize, ToResponse, ToSchema)]
#[response(description = "What went wrong", content_type = "application/problem+json")]
pub struct Problem {
    /// `/errors/` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: &'static str,
    pub status: u16,
    /// What is wrong with this request.
    pub detail: String,
    /// Stable: `E0312`.
    pub code: &'static str,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The single problems of a job spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ProblemItem>,
    /// When waiting helps, so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// The name of an internal error in the coordinator's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// One problem of a job spec.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProblemItem {
    pub code: &'static str,
    /// JSON pointer (RFC 6901) of the value.
    pub pointer: String,
    pub detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// From 1; absent when the value is not in the text.
    pub line: Option<u32>,
    /// In characters, from 1; absent as `line`.
    pub column: Option<u32>,
}

impl From<SpecError> for ProblemItem {
    fn from(error: SpecError) -> Self {
        ProblemItem {
            code: error.code,
            pointer: error.pointer,
            detail: error.message,
            hint: error.hint,
            line: error.line,
            column: error.column,
        }
    }
}

/// What a handler fails with.
#[derive(Debug)]
pub struct ApiError(Box<Problem>);

impl ApiError {
    /// An error of a kind, with what is wrong with this request.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        ApiError(Box::new(Problem {
            kind: format!("/errors/{}", kind.code),
            title: kind.title,
            status: kind.status.as_u16(),
            detail: detail.into(),
            code: kind.code,
            hint: None,
            errors: Vec::new(),
            retry_after_s: None,
            request_id: None,
        }))
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds after how many seconds another try makes sense.
    #[must_use]
    pub fn retry_after_s(mut self, seconds: u64) -> Self {
        self.0.retry_after_s = Some(seconds);
        self
    }

    /// A failure of the coordinator: the cause goes to its log under an id, the id to the caller.
    pub fn internal(what: &str, cause: &dyn std::fmt::Display) -> Self {
        let id = request_id();
        tracing::error!(request_id = %id, %cause, "{what}");
        let mut error = ApiError::new(INTERNAL, "the request failed inside the coordinator")
            .hint(format!("look for {id} in the coordinator's log"));
        error.0.request_id = Some(id);
        error
    }

    /// The problems of a job spec.
    pub fn spec(errors: SpecErrors) -> Self {
        let code = errors.errors.first().map_or(BAD_BODY.code, |error| error.code);
        let count = errors.errors.len() + errors.omitted;
        let detail = match errors.errors.first() {
            Some(first) if count == 1 => first.message.clone(),
            Some(first) => format!("{} (and {} more)", first.message, count - 1),
            None => "the job spec is not valid".to_owned(),
        };
        let kind = Kind { code, title: "The job spec is not valid", ..BAD_BODY };
        let mut error = ApiError::new(kind, detail);
        error.0.hint = errors.errors.first().and_then(|first| first.hint.clone());
        error.0.errors = errors.errors.into_iter().map(ProblemItem::from).collect();
        error
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl From<DriverGone> for ApiError {
    fn from(gone: DriverGone) -> Self {
        ApiError::new(SHUTTING_DOWN, gone.to_string())
            .hint("running jobs go on; ask again when it is back")
            .retry_after_s(5)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        let retry = self.0.retry_after_s;
        let mut response = (status, Json(&*self.0)).into_response();
        // The other dialect says the same in its own form.
        response.extensions_mut().insert(Arc::<Problem>::from(self.0));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = retry {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<NoRandom> for ApiError {
    fn from(error: NoRandom) -> Self {
        ApiError::internal("a request needs random bits", &error)
    }
}

/// A name for one failed request; not a secret.
fn request_id() -> String {
    let number = random::number();
    number.map_or_else(|_| "r-unnamed".to_owned(), |number| format!("r-{}", short_suffix(number)))
}

/// "No such job" and "not yours" are this one answer.
pub(super) fn no_such_job() -> ApiError {
    ApiError::new(NO_SUCH_JOB, "there is no such job")
        .hint("`gangline ps -a` lists your jobs; a job is named by its id, its name or `@last`")
}

/// Names the pools that there are, as many as fit in a sentence.
pub(super) fn no_such_pool(pool: &str, known: &[String]) -> ApiError {
    ApiError::new(NO_SUCH_POOL, format!("there is no pool {}", quoted(pool)))
        .hint(pools_there_are(known))
}

/// "there are: a, b; an operator declares another with ...".
pub(super) fn pools_there_are(known: &[String]) -> String {
    const SHOWN: usize = 20;
    let more = match known.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown: Vec<&str> = known.iter().take(SHOWN).map(String::as_str).collect();
    let there_are = match shown.is_empty() {
        true => "there are none yet".to_owned(),
        false => format!("there are: {}{more}", shown.join(", ")),
    };
    format!("{there_are}; an operator makes one with `gangline pool set NAME --description TEXT`")
}

pub fn no_such_webhook() -> ApiError {
    ApiError::new(NO_SUCH_WEBHOOK, "no webhook has this name")
        .hint("`gangline webhook ls` lists them; `--fleet` those of the fleet")
}

pub(super) fn no_such_node() -> ApiError {
    ApiError::new(NO_SUCH_NODE, "there is no such node")
        .hint("`gangline node ls` lists the nodes; a node is named by its id or its name")
}

/// A piece of a caller's text for a message: shortened, in back quotes, nothing that drives a
/// terminal.
pub(super) fn quoted(text: &str) -> String {
    format!("`{}`", cleaned(text))
}

/// As [`quoted`], without quotes.
pub(super) fn cleaned(text: &str) -> String {
    text.chars().take(80).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
