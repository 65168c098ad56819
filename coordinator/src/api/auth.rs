//! Who asks and what they may: tokens to principals, and the one rule of what a role allows.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use gangline_common::time::Timestamp;
use gangline_common::tls::sha256;

use super::dialect::Dialect;
use super::error::{
    ApiError, BAD_HOST, FORBIDDEN, TOKEN_IN_QUERY, TOO_MANY_FAILURES, UNAUTHENTICATED, no_such_job,
};
use super::listener::Transport;
use super::rates::Rates;
use crate::board::Board;
use crate::core::credential::{ApiTokenRecord, Principal, Role};
use crate::core::job::Job;

/// What a request wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    WhoAmI,
    ReadJobs,
    SubmitJob,
    StopJob,
    /// Hold, release, requeue, change the priority, extend the time limit.
    ControlJob,
    DeleteJob,
    ReadPackages,
    WritePackage,
    ReadNodes,
    /// Metrics of the fleet: every job's id, name, owner and use of GPUs, and what Ray exports.
    ReadMetrics,
    RevokeNode,
    /// Cordon, drain, resume, label.
    MaintainNode,
    /// Declare and delete pools, move nodes.
    ManagePools,
    ReadProjects,
    ManageProjects,
    ManageTokens,
    /// Set, delete and list, never read.
    ManageSecrets,
    /// Those of one project.
    ManageWebhooks,
    /// Those that are told of everything.
    ManageFleetWebhooks,
    ReadAudit,
}

/// What the action is done to.
#[derive(Debug, Clone, Copy)]
pub enum Object<'a> {
    /// Not known yet: may this role do it to anything at all?
    Any,
    /// The fleet as a whole, or one node of it.
    Fleet,
    /// A project that a job or a secret is to belong to.
    Project(&'a str),
    Job(&'a Job),
}

/// Why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The caller may know that.
    Forbidden,
    /// The same, because the project is another one than the caller's.
    Foreign,
    /// The caller must not learn that the object exists.
    Hidden,
}

/// The one rule. What is not listed is denied.
///
/// # Errors
/// Why not.
pub fn authorize(principal: &Principal, action: Action, object: &Object<'_>) -> Result<(), Denied> {
    use Action::*;
    let role = principal.role;
    if role == Role::Admin {
        return Ok(());
    }
    // What a role may do to anything at all.
    let able = match action {
        WhoAmI | ReadJobs | ReadNodes | ReadMetrics | ReadPackages | ReadProjects => true,
        SubmitJob | StopJob | ControlJob | DeleteJob | WritePackage | ManageSecrets
        | ManageWebhooks => role >= Role::Member,
        ReadAudit | MaintainNode | ManagePools => role >= Role::Operator,
        RevokeNode | ManageTokens | ManageProjects | ManageFleetWebhooks => false,
    };
    let everybodys = role >= Role::Operator && matches!(action, ReadJobs | StopJob | ControlJob);
    match object {
        // Nothing is said of what the role cannot see.
        Object::Job(job) if job.project != principal.project && !everybodys => Err(Denied::Hidden),
        Object::Project(project) if *project != principal.project => Err(Denied::Foreign),
        Object::Any | Object::Fleet | Object::Project(_) | Object::Job(_) if able => Ok(()),
        Object::Any | Object::Fleet | Object::Project(_) | Object::Job(_) => Err(Denied::Forbidden),
    }
}

/// Whether a caller may know of a job.
pub(super) fn sees(principal: &Principal, job: &Job) -> bool {
    authorize(principal, Action::ReadJobs, &Object::Job(job)).is_ok()
}

/// Whether a caller may see the values of a job's variables (A46): its submitter, or an
/// administrator.
pub(super) fn sees_values(principal: &Principal, job: &Job) -> bool {
    job.user == principal.user || principal.role == Role::Admin
}

/// Stands for a value that is none of the caller's business.
pub(super) const HIDDEN: &str = "***";

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Forbidden => ApiError::new(FORBIDDEN, "your role does not allow this")
                .hint("ask an administrator; `gangline whoami` shows your role and project"),
            Denied::Foreign => ApiError::new(FORBIDDEN, "your token is of another project")
                .hint("leave the project out, or use a token of it; `gangline whoami` shows yours"),
            Denied::Hidden => no_such_job(),
        }
    }
}

/// What a route asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anybody.
    Open,
    /// Anybody; a token whose role may do this gets to see more.
    Offers(Action),
    /// A token whose role may do this to something.
    Needs(Action),
}

/// What the check of a request needs; one per route.
#[derive(Clone)]
pub(super) struct Gate {
    pub board: Board,
    pub failures: Arc<FailedLogins>,
    pub rates: Arc<Rates>,
    pub access: Access,
    pub dialect: Dialect,
}

/// Stands before every route: nobody passes without the token that its access asks for.
pub(super) async fn admit(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let asked = match gate.access {
        Access::Needs(action) => Some(action),
        // A token that is wrong is refused: with less than expected nobody would notice.
        Access::Offers(action) => bearer(request.headers()).map(|_| action),
        Access::Open => None,
    };
    if let Some(action) = asked {
        let address = address(&request);
        let (principal, token) = match identify(&gate, request.headers(), address) {
            Ok(identified) => identified,
            Err(error) => return error.into_response(),
        };
        let submits = action == Action::SubmitJob;
        // Scrapes are as many as there are nodes, and have bounds of their own.
        if action != Action::ReadMetrics
            && let Err(error) = gate.rates.take(&token, &principal.user, submits, Instant::now())
        {
            return error.into_response();
        }
        if let Err(denied) = authorize(&principal, action, &Object::Any) {
            return ApiError::from(denied).into_response();
        }
        request.extensions_mut().insert(Caller(principal));
    }
    next.run(request).await
}

/// The principal of a request's token, and the token's SHA-256.
fn identify(
    gate: &Gate,
    headers: &HeaderMap,
    address: IpAddr,
) -> Result<(Principal, [u8; 32]), ApiError> {
    let token = match gate.dialect {
        Dialect::Ours => bearer(headers),
        Dialect::Ray => bearer(headers).or_else(|| cookie(headers)),
    };
    let Some(token) = token else {
        return Err(ApiError::new(UNAUTHENTICATED, "this address needs a token")
            .hint("send `Authorization: Bearer <token>`; an administrator makes tokens"));
    };
    let hash = sha256(token.as_bytes());
    if let Some(token) = gate.board.token(&hash) {
        if token.expires_wall_ms.is_some_and(|expires| Timestamp::now().wall_ms >= expires) {
            let detail = format!("the token `{}` has expired", token.name);
            return Err(ApiError::new(UNAUTHENTICATED, detail)
                .hint("ask an administrator for a new one, then `gangline login`"));
        }
        let ApiTokenRecord { user, project, role, .. } = token;
        return Ok((Principal { user, project, role, from: Some(address) }, hash));
    }
    // A right token is never locked out: whoever guesses must not be able to shut others out.
    if gate.failures.note(address, Instant::now()) {
        return Err(ApiError::new(TOO_MANY_FAILURES, "too many unknown tokens from your address")
            .hint("wait a minute, then use a valid token")
            .retry_after_s(FAILURE_WINDOW.as_secs()));
    }
    // Ray's clients say "no token was found" for 401 and "the token is invalid" for 403.
    let kind = match gate.dialect {
        Dialect::Ours => UNAUTHENTICATED,
        Dialect::Ray => FORBIDDEN,
    };
    Err(ApiError::new(kind, "the token is not known")
        .hint("check the token; an administrator makes tokens"))
}

/// Where Ray's clients may put a token that they send as a cookie.
const TOKEN_COOKIE: &str = "ray-authentication-token";

/// The token of Ray's cookie. Not from a browser: it would add the cookie to what another web page
/// asks of us (A50), and it always names that page in `Origin` or `Sec-Fetch-Site`.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
        return None;
    }
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|text| text.split(';')).filter_map(|c| c.split_once('='));
    let (_, token) = pairs.find(|(name, _)| name.trim() == TOKEN_COOKIE)?;
    let token = token.trim().trim_matches('"');
    (!token.is_empty()).then_some(token)
}

/// The text after `Bearer`, from `Authorization` or else from the header that Ray's clients send.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value =
        headers.get(header::AUTHORIZATION).or_else(|| headers.get("x-ray-authorization"))?;
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The peer's address; without one all callers count together.
fn address(request: &Request) -> IpAddr {
    let info = request.extensions().get::<ConnectInfo<SocketAddr>>();
    info.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(address)| address.ip())
}

/// The principal that [`admit`] found: the only way for a handler to know who asks.
#[derive(Debug, Clone)]
pub struct Caller(pub Principal);

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Caller>().cloned();
        caller.ok_or_else(|| ApiError::new(UNAUTHENTICATED, "this address needs a token"))
    }
}

/// Failed logins in this time count together.
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// Failed logins of one address in one window that are answered as such.
const FAILURE_LIMIT: u32 = 10;
/// Addresses that are remembered; the oldest is forgotten.
const ADDRESS_LIMIT: usize = 1024;

/// Unknown tokens by address.
#[derive(Debug, Default)]
pub(super) struct FailedLogins {
    windows: Mutex<BTreeMap<IpAddr, Window>>,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    began: Instant,
    count: u32,
}

impl FailedLogins {
    /// Counts one failure; true when the address has had too many.
    fn note(&self, address: IpAddr, now: Instant) -> bool {
        // The map is whole after every statement, so a poisoned lock can be used.
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.retain(|_, window| now.duration_since(window.began) < FAILURE_WINDOW);
        if windows.len() >= ADDRESS_LIMIT && !windows.contains_key(&address) {
            let oldest = windows.iter().min_by_key(|(_, window)| window.began);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                windows.remove(&oldest);
            }
        }
        let window = windows.entry(address).or_insert(Window { began: now, count: 0 });
        window.count = window.count.saturating_add(1);
        if window.count == FAILURE_LIMIT + 1 {
            tracing::warn!(%address, "too many unknown tokens; answering 429 for a minute");
        }
        window.count > FAILURE_LIMIT
    }
}

/// Query keys that would carry a secret.
const SECRET_KEYS: [&str; 5] = ["token", "access_token", "api_token", "authorization", "bearer"];

/// Refuses what must not reach any route: a foreign Host, a token in the address (A21, A50).
pub(super) async fn check_address(request: Request, next: Next) -> Response {
    // A page that points a name of its own here has no certificate for that name.
    let encrypted = request.extensions().get::<Transport>() == Some(&Transport::Tls);
    if !encrypted && !is_local(request.headers(), request.uri().host()) {
        return ApiError::new(BAD_HOST, "plain HTTP is answered for this machine only")
            .hint("use http://localhost or http://127.0.0.1 with the coordinator's port")
            .into_response();
    }
    let query = request.uri().query().unwrap_or("");
    let secret = query.split('&').any(|pair| {
        let key = decoded(pair.split('=').next().unwrap_or(""));
        SECRET_KEYS.iter().any(|secret| key.eq_ignore_ascii_case(secret))
    });
    if secret {
        return ApiError::new(
            TOKEN_IN_QUERY,
            "a token in the address ends up in logs and histories",
        )
        .hint("send `Authorization: Bearer <token>`, and replace the token that was exposed")
        .into_response();
    }
    next.run(request).await
}

/// Whether every name that the request was sent to is a loopback one: a web page that points its
/// own name at 127.0.0.1 is not let in.
fn is_local(headers: &HeaderMap, in_address: Option<&str>) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let named = host.to_str().is_ok_and(is_loopback_name);
    named && in_address.is_none_or(is_loopback_name)
}

/// `localhost`, `127.x.y.z` or `[::1]`, with or without a port.
fn is_loopback_name(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, "")) => (name, None),
        Some((name, rest)) => (name, rest.strip_prefix(':').or(Some("not a port"))),
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let port_ok = port.is_none_or(|port| port.parse::<u16>().is_ok());
    let local = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    port_ok && local
}

/// Percent-decoded text; a malformed escape stays as it is, invalid UTF-8 is replaced.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
        match (first, tail) {
            (b'%', [high, low, after @ ..]) if hex(*high).is_some() && hex(*low).is_some() => {
                bytes.push(hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0));
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a22_failures_are_counted_per_address_and_forgotten() {
        let failures = FailedLogins::default();
        let (one, other) = ("127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap());
        let now = Instant::now();
        assert!((0..10).all(|_| !failures.note(one, now)));
        assert!(failures.note(one, now));
        assert!(!failures.note(other, now));
        assert!(!failures.note(one, now + FAILURE_WINDOW));
        for n in 0..5000u32 {
            failures.note(IpAddr::V4(Ipv4Addr::from_bits(n)), now + FAILURE_WINDOW);
        }
        assert!(failures.windows.lock().unwrap().len() <= ADDRESS_LIMIT);
    }

    #[test]
    fn a50_only_loopback_names_are_answered() {
        for host in
            ["localhost", "LOCALHOST:8265", "127.0.0.1:8265", "127.1.2.3", "[::1]", "[::1]:1"]
        {
            assert!(is_loopback_name(host), "{host}");
        }
        let foreign = [
            "",
            "example.com",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "10.0.0.1:8265",
            "[::2]",
            "[::1]x",
            "localhost:x",
            "localhost:99999",
            "127.0.0.1:80:80",
            "::1",
        ];
        for host in foreign {
            assert!(!is_loopback_name(host), "{host}");
        }
    }

    #[test]
    fn percent_escapes_are_read() {
        assert_eq!(decoded("a%20b%C3%A9%zz%"), "a b\u{e9}%zz%");
    }

    #[test]
    fn roles_are_denied_by_default() {
        let member =
            Principal { user: "u".into(), project: "p".into(), role: Role::Member, from: None };
        let own = Object::Project("p");
        assert_eq!(authorize(&member, Action::SubmitJob, &own), Ok(()));
        let other = Object::Project("q");
        assert_eq!(authorize(&member, Action::SubmitJob, &other), Err(Denied::Foreign));
        for action in [Action::RevokeNode, Action::ManageTokens] {
            for object in [Object::Any, Object::Fleet, own] {
                assert_eq!(authorize(&member, action, &object), Err(Denied::Forbidden));
            }
        }
        let admin = Principal { role: Role::Admin, ..member };
        assert_eq!(authorize(&admin, Action::RevokeNode, &Object::Fleet), Ok(()));
    }
}
