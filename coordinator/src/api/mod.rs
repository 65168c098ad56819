//! The HTTP API: one table of routes, one gate before each of them, and the OpenAPI document that
//! is generated from the same handlers. The contract of our own dialect is
//! `coordinator/openapi.json`; that of the Ray dialect is what Ray's clients do.

mod alias;
mod audit;
pub mod auth;
mod checkpoints;
mod code;
mod controls;
pub mod dialect;
pub mod error;
mod events;
mod explain;
mod faults;
mod follow;
mod jobs;
pub mod listener;
mod live;
mod logs;
mod metrics;
mod node_tests;
mod nodes;
mod places;
mod pools;
mod projects;
mod rates;
mod ray;
mod ray_state;
mod rule_trials;
mod samples;
mod scenes;
mod schema;
mod secrets;
mod series;
mod streams;
mod submit;
mod tokens;
mod usage;
mod view;
mod webhooks;
mod why;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use axum::{Json, Router};
use futures_util::StreamExt;
use gangline_common::join_token::KeyPin;
use gangline_common::time::{Timestamp, wall_text};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use utoipa::openapi::path::PathItem;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{OpenApi, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use crate::agents::Agents;
use crate::board::Board;
use crate::config::RateLimits;
use crate::core::credential::Principal;
use crate::core::event::Event;
use crate::core::node::Reachability;
use crate::driver::DriverHandle;
use crate::examine::Examiner;
use crate::ingest::logs::Logs;
use crate::ingest::telemetry::Telemetry;
use crate::meters::Meters;
use crate::packages::Packages;
use crate::paths::PathRules;
use crate::secrets::Sealer;
use crate::space::Space;
use crate::store::{AuditLog, Books, NoticeLog, VacancyLog};
use crate::training::Trainings;
use crate::trees::Trees;
use crate::webhooks::Troubles;
pub use alias::OLD_PATHS;
use auth::{Access, Action, Caller, FailedLogins, Gate, Object, authorize};
use dialect::{Dialect, PREFIXES};
use error::{
    ApiError, BAD_BODY, BAD_METHOD, BAD_PARAMETER, NO_SUCH_ROUTE, SLOW_BODY, TOO_LARGE, quoted,
};
use rates::Rates;

/// What the API serves from.
pub struct ApiState {
    pub driver: DriverHandle,
    pub board: Board,
    pub meters: Meters,
    pub telemetry: Telemetry,
    pub logs: Logs,
    /// Who finds out why attempts failed.
    pub examiner: Examiner,
    pub space: Space,
    /// Whom questions about running jobs go to.
    pub agents: Agents,
    pub packages: Packages,
    pub trees: Trees,
    pub paths: PathRules,
    /// What one token may do.
    pub limits: RateLimits,
    /// Seals the values of secrets.
    pub sealer: Sealer,
    /// Pin of the CA's key, for join tokens.
    pub ca_pin: KeyPin,
    pub version: &'static str,
    /// Name of the cluster.
    pub cluster: String,
    /// When this process began to serve.
    pub started: Timestamp,
    pub audit: AuditLog,
    pub notices: NoticeLog,
    pub books: Books,
    pub vacancies: VacancyLog,
    pub trainings: Trainings,
    /// Webhooks that cannot be told.
    pub troubles: Troubles,
}

/// What handlers share.
struct Shared {
    api: Arc<ApiState>,
    /// The OpenAPI document.
    document: String,
    /// Followed logs.
    slots: follow::Slots,
    /// Those who watch nodes.
    watchers: follow::Slots,
    /// Reads of many lines at a time.
    scans: Arc<Semaphore>,
    live: Arc<live::Live>,
}

type App = State<Arc<Shared>>;

/// One line of the route table.
struct Route {
    access: Access,
    handler: Handler,
}

enum Handler {
    /// Method and path stand at the handler, with what the OpenAPI document says of it.
    Ours(UtoipaMethodRouter<Arc<Shared>>),
    /// A route of Ray's Jobs API, also behind every address prefix.
    Ray { method: Method, path: &'static str, methods: MethodRouter<Arc<Shared>> },
}

/// Every route of the API. The router, its gates, the OpenAPI document and the tests are made from
/// this table.
fn table() -> Vec<Route> {
    use Action::*;
    let open = |handler| Route { access: Access::Open, handler: Handler::Ours(handler) };
    let needs = |action, handler| {
        let access = Access::Needs(action);
        Route { access, handler: Handler::Ours(handler) }
    };
    let mut table = vec![
        open(routes!(healthz)),
        open(routes!(readyz)),
        open(routes!(openapi)),
        Route {
            access: Access::Offers(ReadNodes),
            handler: Handler::Ours(routes!(schema::job_schema)),
        },
        needs(WhoAmI, routes!(whoami)),
        needs(SubmitJob, routes!(submit::submit_job)),
        needs(ReadJobs, routes!(jobs::list_jobs)),
        needs(ReadJobs, routes!(jobs::get_job)),
        needs(StopJob, routes!(jobs::stop_job)),
        needs(ControlJob, routes!(controls::hold_job)),
        needs(ControlJob, routes!(controls::release_job)),
        needs(ControlJob, routes!(controls::requeue_job)),
        needs(ControlJob, routes!(controls::set_priority)),
        needs(ControlJob, routes!(controls::extend_job)),
        needs(ReadJobs, routes!(explain::explain_job)),
        needs(ReadJobs, routes!(why::why)),
        needs(SubmitJob, routes!(explain::plan_job)),
        needs(ReadJobs, routes!(explain::list_queue)),
        needs(ReadJobs, routes!(logs::get_logs)),
        needs(ReadJobs, routes!(logs::list_files)),
        needs(ReadJobs, routes!(logs::get_lines)),
        needs(ReadJobs, routes!(logs::search_logs)),
        needs(ReadJobs, routes!(streams::follow_logs)),
        needs(ReadJobs, routes!(scenes::get_scene)),
        needs(ReadJobs, routes!(scenes::get_stacks)),
        needs(ReadJobs, routes!(scenes::get_excerpts)),
        needs(ReadJobs, routes!(checkpoints::get_checkpoints)),
        needs(ReadJobs, routes!(ray_state::ray_nodes)),
        needs(ReadJobs, routes!(ray_state::ray_actors)),
        needs(ReadJobs, routes!(ray_state::ray_placement_groups)),
        needs(WritePackage, routes!(code::missing_chunks)),
        needs(WritePackage, routes!(code::put_chunks)),
        needs(WritePackage, routes!(code::put_tree)),
        needs(ReadPackages, routes!(code::get_tree)),
        needs(WritePackage, routes!(code::post_zip)),
        needs(ReadNodes, routes!(nodes::list_nodes)),
        needs(ReadNodes, routes!(live::watch_nodes)),
        needs(ReadNodes, routes!(nodes::get_node)),
        needs(ReadMetrics, routes!(metrics::own_metrics)),
        needs(ReadMetrics, routes!(metrics::node_metrics)),
        needs(ReadMetrics, routes!(metrics::ray_metrics)),
        needs(ReadMetrics, routes!(metrics::federate)),
        needs(ReadMetrics, routes!(metrics::discover)),
        needs(ReadNodes, routes!(samples::node_samples)),
        needs(ReadJobs, routes!(samples::job_metrics)),
        needs(ReadJobs, routes!(series::job_series)),
        needs(MaintainNode, routes!(nodes::patch_node)),
        needs(MaintainNode, routes!(node_tests::begin_node_test)),
        needs(ReadNodes, routes!(node_tests::list_node_tests)),
        needs(ReadNodes, routes!(node_tests::get_node_test)),
        needs(ReadNodes, routes!(rule_trials::list_rule_trials)),
        needs(RevokeNode, routes!(nodes::revoke_node)),
        needs(MaintainNode, routes!(nodes::cordon_node)),
        needs(MaintainNode, routes!(nodes::drain_node)),
        needs(MaintainNode, routes!(nodes::resume_node)),
        needs(MaintainNode, routes!(faults::inject_fault)),
        needs(ReadNodes, routes!(pools::list_pools)),
        needs(ReadNodes, routes!(pools::get_pool)),
        needs(ManagePools, routes!(pools::patch_pool, pools::delete_pool)),
        needs(MaintainNode, routes!(nodes::force_release_node)),
        needs(ReadProjects, routes!(projects::list_projects)),
        needs(ManageProjects, routes!(projects::set_project)),
        needs(ManageTokens, routes!(tokens::create_token, tokens::list_tokens)),
        needs(ManageTokens, routes!(tokens::delete_token)),
        needs(ManageSecrets, routes!(secrets::list_secrets)),
        needs(ManageSecrets, routes!(secrets::set_secret, secrets::delete_secret)),
        needs(ManageWebhooks, routes!(webhooks::list_webhooks)),
        needs(ManageWebhooks, routes!(webhooks::set_webhook, webhooks::delete_webhook)),
        needs(ManageWebhooks, routes!(webhooks::test_webhook)),
        needs(ManageWebhooks, routes!(webhooks::dead_letters)),
        needs(ReadNodes, routes!(events::list_events)),
        needs(ReadNodes, routes!(events::watch_events)),
        needs(ReadProjects, routes!(usage::get_usage)),
        needs(ReadAudit, routes!(audit::list_audit)),
        needs(ReadAudit, routes!(audit::verify_audit)),
    ];
    table.extend(ray::routes().into_iter().map(|(action, method, path, methods)| {
        let handler = Handler::Ray { method, path, methods };
        Route { access: Access::Needs(action), handler }
    }));
    table
}

/// Entries of one page of a list, unless asked otherwise, and at most.
const PAGE_SIZE: usize = 100;
const MAX_PAGE_SIZE: usize = 1000;

/// The size of the page that a caller asks for.
fn page_size(asked: Option<usize>) -> Result<usize, ApiError> {
    let size = asked.unwrap_or(PAGE_SIZE);
    if (1..=MAX_PAGE_SIZE).contains(&size) {
        return Ok(size);
    }
    Err(ApiError::new(BAD_PARAMETER, format!("page_size is {size}"))
        .hint(format!("use 1 to {MAX_PAGE_SIZE}")))
}

/// What a route is called, and whom it serves.
#[derive(Debug, Clone)]
pub struct RouteFacts {
    pub dialect: Dialect,
    pub method: Method,
    /// With its parameters in braces.
    pub path: String,
    pub access: Access,
}

/// The facts of every route.
pub fn route_list() -> Vec<RouteFacts> {
    let mut list = Vec::new();
    for Route { access, handler } in table() {
        match handler {
            Handler::Ours((_, paths, _)) => {
                for (path, item) in paths.paths {
                    let methods = [
                        (item.get, Method::GET),
                        (item.post, Method::POST),
                        (item.put, Method::PUT),
                        (item.patch, Method::PATCH),
                        (item.delete, Method::DELETE),
                    ];
                    let used = methods.into_iter().filter(|(operation, _)| operation.is_some());
                    list.extend(used.map(|(_, method)| {
                        let (dialect, path) = (Dialect::Ours, path.clone());
                        RouteFacts { dialect, method, path, access }
                    }));
                }
            }
            Handler::Ray { method, path, .. } => {
                list.extend(PREFIXES.map(|prefix| RouteFacts {
                    dialect: Dialect::Ray,
                    method: method.clone(),
                    path: format!("{prefix}{path}"),
                    access,
                }));
            }
        }
    }
    list
}

/// The whole API.
pub fn router(state: Arc<ApiState>) -> Router {
    let failures = Arc::new(FailedLogins::default());
    let rates = Arc::new(Rates::new(state.limits));
    let mut router = OpenApiRouter::new();
    let mut ray_router = Router::new();
    for Route { access, handler } in table() {
        let gate = |dialect| {
            let (board, failures, rates) = (state.board.clone(), failures.clone(), rates.clone());
            from_fn_with_state(Gate { board, failures, rates, access, dialect }, auth::admit)
        };
        match handler {
            Handler::Ours((schemas, paths, methods)) => {
                let methods = methods.route_layer(gate(Dialect::Ours));
                router = router.routes((schemas, paths, methods));
            }
            Handler::Ray { path, methods, .. } => {
                let methods = methods.route_layer(gate(Dialect::Ray));
                for prefix in PREFIXES {
                    ray_router = ray_router.route(&format!("{prefix}{path}"), methods.clone());
                }
            }
        }
    }
    let shared = Arc::new(Shared {
        api: state,
        document: document(),
        slots: follow::Slots::default(),
        watchers: follow::Slots::default(),
        scans: Arc::new(Semaphore::new(logs::MAX_SCANS)),
        live: Arc::default(),
    });
    let (router, _) = router.split_for_parts();
    router
        .merge(ray_router)
        .fallback(no_such_route)
        .method_not_allowed_fallback(bad_method)
        .layer(from_fn(auth::check_address))
        .layer(from_fn(dialect::answer))
        .layer(from_fn(trace))
        .with_state(shared)
}

/// The OpenAPI document of this build, as JSON text.
pub fn document() -> String {
    let mut router = OpenApiRouter::with_openapi(Document::openapi());
    for route in table() {
        if let Handler::Ours(handler) = route.handler {
            router = router.routes(handler);
        }
    }
    let mut document = router.into_openapi();
    document.paths.paths.values_mut().for_each(add_common_problems);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    // The document is made of plain maps and strings, which always become JSON.
    document.to_pretty_json().unwrap_or_default()
}

/// What every route can answer besides its own: the gate's refusals, and a parameter that is wrong.
fn add_common_problems(path: &mut PathItem) {
    let operations =
        [&mut path.get, &mut path.post, &mut path.put, &mut path.patch, &mut path.delete];
    for operation in operations.into_iter().flatten() {
        let nobody = SecurityRequirement::default();
        let of_all = operation.security.as_ref();
        let is_open = of_all.is_some_and(|all| all.iter().all(|one| *one == nobody));
        let refusals: &[&str] = if is_open { &["400"] } else { &["400", "401", "403", "429"] };
        let of_body: &[&str] =
            if operation.request_body.is_some() { &["408", "413", "422"] } else { &[] };
        for status in refusals.iter().chain(of_body) {
            let problem = || RefOr::Ref(Ref::from_response_name("Problem"));
            operation.responses.responses.entry((*status).to_owned()).or_insert_with(problem);
        }
    }
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Gangline", description = "Jobs on gangs of GPU nodes"),
    components(responses(error::Problem), schemas(error::Problem)),
    security(("bearer" = []))
)]
struct Document;

/// One line per request at debug level; never the query, which may hold what a log must not.
async fn trace(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let began = Instant::now();
    let response = next.run(request).await;
    let status = response.status().as_u16();
    tracing::debug!(%method, path, status, ms = began.elapsed().as_millis(), "http");
    response
}

async fn no_such_route(uri: Uri) -> ApiError {
    ApiError::new(NO_SUCH_ROUTE, format!("nothing is served at {}", quoted(uri.path())))
        .hint("the addresses are listed in /api/v1/openapi.json")
}

async fn bad_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(BAD_METHOD, format!("{} does not take {method}", quoted(uri.path())))
        .hint("the addresses are listed in /api/v1/openapi.json")
}

/// Answer of `GET /healthz`.
#[derive(Serialize, ToSchema)]
struct Health {
    /// `ok`.
    status: &'static str,
}

#[utoipa::path(get, path = "/healthz", responses((status = 200, body = Health)), security(()))]
async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Answer of `GET /readyz`.
#[derive(Serialize, ToSchema)]
struct Readiness {
    /// `ready`, or `stopping` with status 503.
    status: &'static str,
    version: &'static str,
    cluster: String,
    /// Since when this process serves.
    started: String,
    nodes: usize,
    nodes_reachable: usize,
}

/// A driver that takes no event for this long is not ready.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The store is open and decisions are made.
#[utoipa::path(get, path = "/readyz",
    responses((status = 200, body = Readiness), (status = 503, body = Readiness)), security(()))]
async fn readyz(State(shared): App) -> (StatusCode, Json<Readiness>) {
    let api = &shared.api;
    let tick = tokio::time::timeout(DRIVER_TIMEOUT, api.driver.tell(Event::Tick)).await;
    let alive = matches!(tick, Ok(Ok(())));
    let nodes = api.board.nodes();
    let reachable = nodes.iter().filter(|n| n.node.reachability == Reachability::Reachable);
    let (code, status) = match alive {
        true => (StatusCode::OK, "ready"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
    };
    let readiness = Readiness {
        status,
        version: api.version,
        cluster: api.cluster.clone(),
        started: wall_text(api.started.wall_ms),
        nodes: nodes.len(),
        nodes_reachable: reachable.count(),
    };
    (code, Json(readiness))
}

/// This document.
#[utoipa::path(get, path = "/api/v1/openapi.json",
    responses((status = 200, content_type = "application/json")), security(()))]
async fn openapi(State(shared): App) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], shared.document.clone())
}

/// Answer of `GET /api/v1/whoami`.
#[derive(Serialize, ToSchema)]
struct WhoAmI {
    user: String,
    project: String,
    /// `viewer`, `member`, `operator` or `admin`.
    role: &'static str,
}

/// Whom the token stands for.
#[utoipa::path(get, path = "/api/v1/whoami",
    responses((status = 200, body = WhoAmI), (status = 401, response = error::Problem)))]
async fn whoami(Caller(principal): Caller) -> Result<Json<WhoAmI>, ApiError> {
    authorize(&principal, Action::WhoAmI, &Object::Fleet)?;
    let Principal { user, project, role, .. } = principal;
    Ok(Json(WhoAmI { user, project, role: role.word() }))
}

/// The query of a request; an unknown or malformed parameter is a problem of the API.
struct Params<T>(T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query.map(|Query(value)| Params(value)).map_err(|error| {
            ApiError::new(BAD_PARAMETER, error.body_text())
                .hint("the parameters are listed in /api/v1/openapi.json")
        })
    }
}

/// The one parameter of a path: what the caller calls the object.
struct Selector(String);

impl<S: Send + Sync> FromRequestParts<S> for Selector {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(text)| Selector(text))
            .map_err(|error| ApiError::new(BAD_PARAMETER, error.body_text()))
    }
}

/// A body that is too large is still taken from the wire up to here, so that the answer arrives.
const DRAIN_BYTES: usize = 16 << 20;
/// A body must be complete within this.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The whole body, at most `limit` bytes; never holds more.
async fn read_body(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let reading = async {
        let mut chunks = body.into_data_stream();
        let (mut bytes, mut seen) = (Vec::new(), 0usize);
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| ApiError::new(BAD_BODY, "the body was cut off"))?;
            seen = seen.saturating_add(chunk.len());
            if seen <= limit {
                bytes.extend_from_slice(&chunk);
            } else {
                bytes = Vec::new();
            }
            if seen > DRAIN_BYTES {
                break;
            }
        }
        if seen > limit {
            return Err(ApiError::new(TOO_LARGE, format!("the body is over {limit} bytes"))
                .hint("keep the spec small: put data and code into files and name their paths"));
        }
        Ok(bytes)
    };
    tokio::time::timeout(BODY_TIMEOUT, reading).await.unwrap_or_else(|_| {
        let seconds = BODY_TIMEOUT.as_secs();
        Err(ApiError::new(SLOW_BODY, format!("the body was not complete after {seconds} s")))
    })
}

/// Largest JSON body of a small request, in bytes.
const SMALL_BODY: usize = 64 << 10;

/// A small JSON body; `None` when it is empty.
async fn read_json<T: DeserializeOwned>(body: Body) -> Result<Option<T>, ApiError> {
    let bytes = read_body(body, SMALL_BODY).await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|error| ApiError::new(BAD_BODY, error.to_string()))
}

/// The text of a header; `None` without one.
fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = value.to_str().map_err(|_| {
        ApiError::new(BAD_PARAMETER, format!("the header {name} is not plain ASCII"))
    })?;
    Ok(Some(text))
}
