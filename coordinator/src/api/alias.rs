//! Paths of the platform's first design, which answer as the routes that took their place.

use axum::http::Uri;
use axum::http::uri::PathAndQuery;

/// The old paths, each with the one that answers it. A router cannot have a suffix after a
/// parameter, so requests are turned over before they reach it.
pub const OLD_PATHS: [(&str, &str); 3] = [
    ("/v1/jobs", "/api/v1/jobs"),
    ("/v1/jobs/{id}", "/api/v1/jobs/{id}"),
    ("/v1/jobs/{id}:stop", "/api/v1/jobs/{id}/stop"),
];

/// Where a request for an old path goes; `None` for every other path.
pub fn resolve(uri: &Uri) -> Option<Uri> {
    let rest = uri.path().strip_prefix("/v1/jobs")?;
    let (id, verb) = match rest.strip_suffix(":stop") {
        Some(id) => (id, "/stop"),
        None => (rest, ""),
    };
    // Only what the first design had: nothing new appears under the old name.
    let one = |id: &str| id.strip_prefix('/').is_some_and(|id| !id.is_empty() && !id.contains('/'));
    if !(rest.is_empty() || one(id)) {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = PathAndQuery::try_from(format!("/api/v1/jobs{id}{verb}{query}")).ok()?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_designs_paths_are_known() {
        let known = |path: &str| resolve(&path.parse().unwrap()).map(|uri| uri.to_string());
        for (old, new) in [
            ("/v1/jobs", "/api/v1/jobs"),
            ("/v1/jobs?state=RUNNING", "/api/v1/jobs?state=RUNNING"),
            ("/v1/jobs/j-1", "/api/v1/jobs/j-1"),
            ("/v1/jobs/j-1:stop", "/api/v1/jobs/j-1/stop"),
            ("http://localhost:1/v1/jobs/j-1:stop", "http://localhost:1/api/v1/jobs/j-1/stop"),
        ] {
            assert_eq!(known(old).as_deref(), Some(new), "{old}");
        }
        for (old, new) in OLD_PATHS {
            let (old, new) = (old.replace("{id}", "j-1"), new.replace("{id}", "j-1"));
            assert_eq!(known(&old), Some(new));
        }
        for other in [
            "/",
            "/v1",
            "/v1/jobsx",
            "/v1/jobs:stop",
            "/v1/jobs/",
            "/v1/jobs/:stop",
            "/v1/jobs/a/b",
            "/v1/jobs/a/stop",
            "/v1/nodes",
        ] {
            assert_eq!(known(other), None, "{other}");
        }
    }
}
