//! The two contracts that one server speaks, told apart by the path: our own, whose errors are
//! problems (RFC 9457), and Ray's Jobs API, whose errors are plain text.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::Problem;

/// Whose contract a route belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Ours,
    Ray,
}

/// What may stand before the routes of the Ray dialect: the address that a user gives to a Ray
/// client, which keeps it, so that it can say what the client has no option for.
pub const PREFIXES: [&str; 6] = [
    "",
    "/profile/{profile}",
    "/pool/{pool}",
    "/pool/{pool}/profile/{profile}",
    "/on/{cluster}",
    "/on/{cluster}/profile/{profile}",
];

impl Dialect {
    /// The dialect of a path, whether or not something is served there.
    pub fn of(path: &str) -> Dialect {
        let place = ["/pool/", "/on/"].iter().find(|prefix| path.starts_with(**prefix));
        let rest = place.map_or(path, |prefix| after_prefix(path, prefix));
        let rest = after_prefix(rest, "/profile/");
        let ours = rest == "/api/v1" || rest.starts_with("/api/v1/");
        if rest.starts_with("/api/") && !ours { Dialect::Ray } else { Dialect::Ours }
    }
}

/// The path after a prefix and its one parameter; the path itself without the prefix.
fn after_prefix<'a>(path: &'a str, prefix: &str) -> &'a str {
    let parameter = path.strip_prefix(prefix);
    let end = parameter.and_then(|rest| rest.find('/').map(|end| rest.split_at(end).1));
    end.unwrap_or(path)
}

/// Puts what failed into the form of the dialect that was asked in.
pub(super) async fn answer(request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<Arc<Problem>>() {
        Some(problem) if dialect == Dialect::Ray => plain(response, &problem),
        Some(_) | None => response,
    }
}

/// The problem as text: what is wrong, what to do, and every further problem of a spec.
fn plain(problem_json: Response, problem: &Problem) -> Response {
    let mut sentences = Vec::new();
    match problem.errors.as_slice() {
        [] | [_] => sentences.push((&problem.detail, &problem.hint)),
        several => sentences.extend(several.iter().map(|item| (&item.detail, &item.hint))),
    }
    let mut text = String::new();
    for (what, hint) in sentences {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(what);
        if let Some(hint) = hint {
            text.push_str("; ");
            text.push_str(hint);
        }
    }
    if let Some(id) = &problem.request_id {
        text.push_str(&format!(" ({id})"));
    }
    // Ray knows one status for "this cannot be": its clients tell 400, 401, 403 and 404 apart.
    let status = match problem_json.status() {
        StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        other => other,
    };
    let mut response = (status, text).into_response();
    for name in [header::RETRY_AFTER, header::WWW_AUTHENTICATE, header::ALLOW] {
        if let Some(value) = problem_json.headers().get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_its_dialect() {
        for ray in [
            "/api/version",
            "/api/jobs/",
            "/api/jobs",
            "/api/unknown",
            "/profile/4x8/api/jobs/",
            "/pool/h100-a/api/jobs/x/logs/tail",
            "/pool/h100-a/profile/4x8/api/version",
            "/on/rl-dev/api/jobs/",
            "/on/rl-dev/profile/1x4/api/jobs/",
        ] {
            assert_eq!(Dialect::of(ray), Dialect::Ray, "{ray}");
        }
        for ours in [
            "/",
            "/healthz",
            "/api",
            "/api/v1",
            "/api/v1/jobs",
            "/profile/4x8/api/v1/jobs",
            "/profile/api/jobs/",
            "/profile/4x8/pool/a/api/jobs/",
            "/on/a/pool/b/api/jobs/",
        ] {
            assert_eq!(Dialect::of(ours), Dialect::Ours, "{ours}");
        }
    }
}
