//! The HTTP client of the coordinator: requests, safe repeats, and errors in the user's words.

use std::path::Path;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::Value;
use tokio::time::Instant;

use crate::config::{DEFAULT_ADDRESS, Settings};
use crate::errors::{CliError, code, exit};
use crate::output::Screen;
use crate::pauses::jittered;

/// Time for a connection to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for sending a body of some MiB, or an archive, over a slow line.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(900);
/// Longest silence of a stream: the coordinator sends a ping every 15 s.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(45);
/// Largest answer that is held in memory, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Largest piece of a log in one answer, in bytes.
const MAX_LOG_PAGE_BYTES: usize = 16 * 1024 * 1024;

/// A POST is repeated at most this often.
const MAX_REPEATS: u32 = 5;
/// All tries of a POST together take at most this long.
const REPEAT_WITHIN: Duration = Duration::from_secs(15);
/// Time for one try of a POST that can be repeated.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);
/// First wait before a repeat; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// Longest wait before a read that came too often is sent once more.
const MAX_ASKED_WAIT: Duration = Duration::from_secs(5);

/// The problem code with which a coordinator says that a job can never run on its cluster.
const CAN_NEVER_RUN: &str = "E0330";
/// The one with which it says that a job is not there, or not the caller's to see.
const NO_SUCH_JOB: &str = "E0306";
/// Problem codes with which a coordinator that works well turns a request away for a moment, or
/// tells that a node of a job does not answer.
const BUSY: [&str; 5] = ["E0313", "E0315", "E0362", "E0364", "E0366"];

/// Where the JSON Schema of a spec is served: outside of the API, as editors load it.
const SCHEMA: [&str; 2] = ["schema", "job.v1.json"];

/// The address of the JSON Schema of a spec at a coordinator.
pub fn schema_address(coordinator: &Url) -> Url {
    below(coordinator, &SCHEMA)
}

fn below(base: &Url, path: &[&str]) -> Url {
    let mut url = base.clone();
    // Only a URL that cannot have a path refuses segments, and `config` lets none of those in.
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(path);
    }
    url
}

/// Whether a POST may be sent again when its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The coordinator knows the key, or doing it twice is the same as once.
    Safe,
    /// Twice would make two.
    Never,
}

/// A POST.
#[derive(Debug)]
pub struct Post<'a> {
    /// Segments of the path below `/api/v1`.
    pub path: &'a [&'a str],
    /// Query parameters.
    pub query: &'a [(&'a str, String)],
    /// JSON text.
    pub body: String,
    /// The value of `X-Gangline-Command`, already encoded.
    pub command: Option<String>,
    /// Whether it may be sent again.
    pub repeat: Repeat,
}

/// A piece of a log.
#[derive(Debug)]
pub struct LogPage {
    /// The bytes from the asked offset on.
    pub bytes: Vec<u8>,
    /// Where the next piece begins.
    pub next_offset: u64,
    /// Bytes of the log so far.
    pub total_bytes: u64,
}

/// A connection to one coordinator; cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    /// The same without a limit on silence: an answer comes when all has been sent and done.
    uploads: reqwest::Client,
    base: Url,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// A client for the coordinator of `settings`; connects with the first request.
    ///
    /// # Errors
    /// A token that is no header value.
    pub fn new(settings: &Settings) -> Result<Self, CliError> {
        let authorization = settings.token.as_deref().map(bearer).transpose()?;
        let roots = settings.ca.as_deref().map(certificates).transpose()?.unwrap_or_default();
        let plain = || {
            reqwest::Client::builder()
                .user_agent(concat!("gangline/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT)
                // A proxy or a redirect would carry the token to somebody else.
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .http1_only()
                // The coordinator's own CA and no other, or none for plain HTTP.
                .tls_certs_only(roots.clone())
        };
        let cannot = |error: reqwest::Error| {
            CliError::new(exit::ERROR, code::INTERNAL, "cannot set up the HTTP client")
                .why(innermost(&error))
        };
        let http = plain().read_timeout(SILENCE_TIMEOUT).build().map_err(cannot)?;
        let uploads = plain().build().map_err(cannot)?;
        Ok(Self { http, uploads, base: settings.address.clone(), authorization })
    }

    /// The coordinator's address, for messages.
    pub fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// The host of the coordinator's address.
    pub fn host(&self) -> &str {
        self.base.host_str().unwrap_or_default()
    }

    /// GET a JSON answer.
    ///
    /// # Errors
    /// No connection, a refusal, or an answer that is no JSON.
    pub async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Value, CliError> {
        let request = self.request(Method::GET, path, query).timeout(ANSWER_TIMEOUT);
        let response = self.read(request.header(ACCEPT, "application/json")).await?;
        self.read_json(response).await
    }

    /// The JSON Schema of a spec with the names of the fleet.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn job_schema(&self) -> Result<Value, CliError> {
        let request = self.authorized(self.http.get(schema_address(&self.base)));
        let response = self.send(request.timeout(ANSWER_TIMEOUT)).await?;
        self.read_json(response).await
    }

    /// DELETE; the answer has no body.
    ///
    /// # Errors
    /// No connection, or a refusal.
    pub async fn delete(&self, path: &[&str], query: &[(&str, String)]) -> Result<(), CliError> {
        let request = self.request(Method::DELETE, path, query).timeout(ANSWER_TIMEOUT);
        self.send(request).await.map(drop)
    }

    /// PUT a text; the answer has no body.
    ///
    /// # Errors
    /// No connection, or a refusal.
    pub async fn put(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        media_type: &'static str,
        text: String,
    ) -> Result<(), CliError> {
        let request = self.request(Method::PUT, path, query).timeout(ANSWER_TIMEOUT);
        let request = request.header(CONTENT_TYPE, media_type).body(text);
        self.send(request).await.map(drop)
    }

    /// PUT a JSON text; the answer is JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn put_json(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        body: String,
    ) -> Result<Value, CliError> {
        let request = self.request(Method::PUT, path, query).timeout(ANSWER_TIMEOUT);
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        let response = self.send(request.header(ACCEPT, "application/json")).await?;
        self.read_json(response).await
    }

    /// PATCH a JSON text; the answer is JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn patch(&self, path: &[&str], body: String) -> Result<Value, CliError> {
        let request = self.request(Method::PATCH, path, &[]).timeout(ANSWER_TIMEOUT);
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        let response = self.send(request.header(ACCEPT, "application/json")).await?;
        self.read_json(response).await
    }

    /// Sends bytes; the answer is JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn send_bytes(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Vec<u8>,
    ) -> Result<Value, CliError> {
        let request = self.upload(method, path, query);
        let request = request.header(CONTENT_TYPE, "application/octet-stream").body(body);
        let response = self.send(request.header(ACCEPT, "application/json")).await?;
        self.read_json(response).await
    }

    /// POSTs a file as it is; the answer is JSON.
    ///
    /// # Errors
    /// As [`Client::get`]; or the file cannot be read.
    pub async fn post_file(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        file: &Path,
    ) -> Result<Value, CliError> {
        let cannot = |error| CliError::io(format!("cannot read {}", file.display()), &error);
        let file = tokio::fs::File::open(file).await.map_err(cannot)?;
        let request = self.upload(Method::POST, path, query);
        let request = request.header(CONTENT_TYPE, "application/zip").body(file);
        let response = self.send(request.header(ACCEPT, "application/json")).await?;
        self.read_json(response).await
    }

    /// POST, and send it again with the same key when the connection failed and
    /// [`Repeat::Safe`] allows it: at most [`MAX_REPEATS`] times within [`REPEAT_WITHIN`].
    ///
    /// # Errors
    /// As [`Client::get`], of the last try.
    pub async fn post(&self, post: &Post<'_>, screen: &Screen) -> Result<Value, CliError> {
        let key = idempotency_key()?;
        let deadline = Instant::now() + REPEAT_WITHIN;
        let mut wait = FIRST_WAIT;
        for repeat in 1..=MAX_REPEATS {
            let left = deadline.saturating_duration_since(Instant::now());
            let error = match self.post_once(post, &key, TRY_TIMEOUT.min(left)).await {
                Err(error) if error.is_transport() && post.repeat == Repeat::Safe => error,
                done => return done,
            };
            let pause = jittered(wait);
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            screen.hint(&format!("no answer ({error}); trying again ({repeat} of {MAX_REPEATS})"));
            tokio::time::sleep(pause).await;
            wait *= 2;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        self.post_once(post, &key, TRY_TIMEOUT.min(left)).await
    }

    async fn post_once(
        &self,
        post: &Post<'_>,
        key: &str,
        timeout: Duration,
    ) -> Result<Value, CliError> {
        let timeout = if post.repeat == Repeat::Safe { timeout } else { ANSWER_TIMEOUT };
        let mut request = self
            .request(Method::POST, post.path, post.query)
            .timeout(timeout)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", key)
            .body(post.body.clone());
        if let Some(command) = &post.command {
            request = request.header("x-gangline-command", command);
        }
        let response = self.send(request).await?;
        self.read_json(response).await
    }

    /// Open a stream of server-sent events.
    ///
    /// # Errors
    /// No connection, or a refusal.
    pub async fn stream(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<Response, CliError> {
        let request = self.request(Method::GET, path, query);
        self.read(request.header(ACCEPT, "text/event-stream")).await
    }

    /// GET a piece of a log.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn log_page(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<LogPage, CliError> {
        let request = self.request(Method::GET, path, query).timeout(ANSWER_TIMEOUT);
        let response = self.read(request).await?;
        let next_offset = number(response.headers(), "x-gangline-next-offset");
        let total_bytes = number(response.headers(), "x-gangline-total-bytes");
        let (Some(next_offset), Some(total_bytes)) = (next_offset, total_bytes) else {
            return Err(self.bad_answer("a log came without its offsets"));
        };
        let bytes = self.read_body(response, MAX_LOG_PAGE_BYTES).await?;
        Ok(LogPage { bytes, next_offset, total_bytes })
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, String)]) -> RequestBuilder {
        self.request_by(&self.http, method, path, query)
    }

    fn upload(&self, method: Method, path: &[&str], query: &[(&str, String)]) -> RequestBuilder {
        self.request_by(&self.uploads, method, path, query).timeout(UPLOAD_TIMEOUT)
    }

    fn request_by(
        &self,
        http: &reqwest::Client,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
    ) -> RequestBuilder {
        let url = below(&self.base, &[&["api", "v1"], path].concat());
        self.authorized(http.request(method, url).query(query))
    }

    fn authorized(&self, mut request: RequestBuilder) -> RequestBuilder {
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request
    }

    /// Sends a request that changes nothing; once more when the coordinator asks for a short wait.
    async fn read(&self, request: RequestBuilder) -> Result<Response, CliError> {
        let again = request.try_clone();
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        match (again, asked_wait(&response)) {
            (Some(again), Some(wait)) => {
                tokio::time::sleep(wait).await;
                self.send(again).await
            }
            _ => self.accept(response).await,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, CliError> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        self.accept(response).await
    }

    /// The answer, or the refusal that it is.
    async fn accept(&self, response: Response) -> Result<Response, CliError> {
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        // A refusal whose text is lost is still a refusal.
        let body = self.read_body(response, MAX_ANSWER_BYTES).await.unwrap_or_default();
        Err(self.refused(status, &body))
    }

    async fn read_json(&self, response: Response) -> Result<Value, CliError> {
        let body = self.read_body(response, MAX_ANSWER_BYTES).await?;
        serde_json::from_slice(&body)
            .map_err(|error| self.bad_answer("the answer is no JSON").why(error.to_string()))
    }

    async fn read_body(&self, mut response: Response, most: usize) -> Result<Vec<u8>, CliError> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.unreachable(&e))? {
            if body.len() + chunk.len() > most {
                return Err(self.bad_answer("the answer is too large"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The error of a connection that failed.
    pub fn unreachable(&self, error: &reqwest::Error) -> CliError {
        let why = if error.is_timeout() { "timed out".to_owned() } else { innermost(error) };
        let what = format!("cannot reach the coordinator at {}", self.address());
        let hint = if self.address() == DEFAULT_ADDRESS {
            "is there one on this machine? To use another one: gangline login https://HOST:PORT"
        } else {
            "is it running, and is the address right? gangline login ADDRESS sets it, --address or \
             GANGLINE_ADDRESS for one command"
        };
        CliError::new(exit::UNREACHABLE, code::UNREACHABLE, what).why(why).hint(hint).transport()
    }

    fn bad_answer(&self, what: &str) -> CliError {
        CliError::new(exit::ERROR, code::BAD_ANSWER, what).hint(self.doubt())
    }

    fn doubt(&self) -> String {
        format!("is {} the address of a coordinator of Gangline?", self.address())
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> CliError {
        let problem: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |key: &str| problem.get(key).and_then(Value::as_str);
        let items = problem.get("errors").and_then(Value::as_array).cloned().unwrap_or_default();
        let code = text("code").unwrap_or(code::REFUSED);
        let exit = match status.as_u16() {
            _ if code == CAN_NEVER_RUN => exit::IMPOSSIBLE,
            _ if code == NO_SUCH_JOB => exit::JOB_NOT_FOUND,
            _ if code.starts_with("E01") || !items.is_empty() => exit::INVALID,
            401 | 403 => exit::DENIED,
            409 | 412 => exit::CONFLICT,
            502..=504 if !BUSY.contains(&code) => exit::UNREACHABLE,
            _ => exit::ERROR,
        };
        let title = text("title")
            .map_or_else(|| format!("the coordinator answered {status}"), str::to_owned);
        let mut error = CliError::new(exit, code, title).answer(status.as_u16(), items);
        if let Some(detail) = text("detail") {
            error = error.why(detail);
        }
        let login = "give a token with --token-file or GANGLINE_TOKEN; gangline whoami tells whose";
        match text("hint") {
            Some(hint) => error = error.hint(hint),
            None if exit == exit::DENIED => error = error.hint(login),
            None if code == code::REFUSED => error = error.hint(self.doubt()),
            None => {}
        }
        if matches!(status.as_u16(), 502..=504) { error.transport() } else { error }
    }
}

/// How long a coordinator that is asked too often wants to be left alone, if that is worth waiting.
fn asked_wait(response: &Response) -> Option<Duration> {
    let wait = Duration::from_secs(number(response.headers(), "retry-after")?);
    (response.status() == StatusCode::TOO_MANY_REQUESTS && wait <= MAX_ASKED_WAIT).then_some(wait)
}

/// The certificates of a PEM file.
fn certificates(path: &Path) -> Result<Vec<reqwest::Certificate>, CliError> {
    let wrong = |why: String| {
        CliError::new(exit::INVALID, code::CONFIG, format!("cannot use the CA {}", path.display()))
            .why(why)
            .hint("gangline login fetches it again")
    };
    let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let all = reqwest::Certificate::from_pem_bundle(&pem).map_err(|e| wrong(innermost(&e)))?;
    if all.is_empty() {
        return Err(wrong("there is no certificate in it".to_owned()));
    }
    Ok(all)
}

fn bearer(token: &str) -> Result<HeaderValue, CliError> {
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value =
        value.ok().filter(|_| token.bytes().all(|b| b.is_ascii_graphic())).ok_or_else(|| {
            CliError::new(exit::INVALID, code::TOKEN, "the token has characters that no token has")
                .hint("check the token file or GANGLINE_TOKEN")
        })?;
    value.set_sensitive(true);
    Ok(value)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// The cause behind the causes: "connection refused" instead of the library's words.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// 128 random bits in hexadecimal.
fn idempotency_key() -> Result<String, CliError> {
    let mut bits = [0; 16];
    SystemRandom::new().fill(&mut bits).map_err(|_| {
        CliError::new(exit::ERROR, code::INTERNAL, "the system gives no random numbers")
    })?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_128_bits_and_differ() {
        let keys = [idempotency_key().unwrap(), idempotency_key().unwrap()];
        assert!(keys.iter().all(|k| k.len() == 32 && k.bytes().all(|b| b.is_ascii_hexdigit())));
        assert_ne!(keys[0], keys[1]);
    }

    #[test]
    fn tokens_must_fit_a_header() {
        assert!(bearer("gla_x-1").is_ok_and(|value| value.is_sensitive()));
        for bad in ["a b", "a\nb", "é"] {
            assert_eq!(bearer(bad).unwrap_err().exit(), exit::INVALID, "{bad:?}");
        }
    }
}
