//! A submit of a Ray client, as a job spec of ours. What a client can ask for and is not built is
//! refused by name; nothing is ignored.

use std::collections::BTreeMap;
use std::fmt::Display;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use gangline_common::ids::JobId;
use gangline_common::random;
use gangline_spec::{
    CodeSpec, Entrypoint, JobSpec, MAX_SPEC_BYTES, Priority, Resources, SpecErrors,
};
use gangline_tree::Hash;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::address::Address;
use crate::api::auth::{Action, Caller, Object, authorize};
use crate::api::code::import_file;
use crate::api::error::{ApiError, BAD_BODY, BAD_PARAMETER, JOB_EXISTS, NOT_BUILT, quoted};
use crate::api::logs::blocking;
use crate::api::submit::{Submitted, Wish, minted, submit};
use crate::api::{App, Shared, read_body};
use crate::core::credential::Principal;
use crate::packages::PackageName;

/// Submits a job. It is durable when this answers.
pub(super) async fn submit_job(
    State(shared): App,
    Caller(principal): Caller,
    address: Address,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = read_body(body, MAX_SPEC_BYTES).await?;
    let request: SubmitRequest = serde_json::from_slice(&body)
        .map_err(|error| ApiError::new(BAD_BODY, format!("the request is not valid: {error}")))?;
    let id = job_id(&request)?;
    let (mut spec, package) = job_spec(request, &address)?;
    if let Some(package) = package {
        let tree = unpacked(&shared, &principal, &spec, &package).await?;
        spec.code = Some(CodeSpec::of_tree(tree.to_string(), None));
    }
    let wish = Wish {
        spec,
        source: String::new(),
        id,
        idempotency: None,
        command: String::new(),
        node_test: None,
    };
    match submit(&shared, &principal, wish).await? {
        Submitted::Made { job, .. } => {
            Ok(Json(json!({ "job_id": job.as_str(), "submission_id": job.as_str() })))
        }
        Submitted::Exists { job, .. } => {
            let detail = format!("a job with the submission id {job} exists already");
            Err(ApiError::new(JOB_EXISTS, detail).hint("leave the id out, or choose another one"))
        }
    }
}

/// The tree of a package that the caller uploaded, for the project of the job.
async fn unpacked(
    shared: &Shared,
    principal: &Principal,
    spec: &JobSpec,
    package: &PackageName,
) -> Result<Hash, ApiError> {
    let project = spec.project.as_ref().unwrap_or(&principal.project);
    authorize(principal, Action::SubmitJob, &Object::Project(project))?;
    let (packages, owner, name) =
        (shared.api.packages.clone(), principal.project.clone(), package.clone());
    let found = blocking("looking for a package", move || packages.find(&owner, &name)).await?;
    let Some(path) = found else {
        return Err(ApiError::new(BAD_PARAMETER, "runtime_env.working_dir has not been uploaded")
            .hint("name a directory with --working-dir: the client then uploads it"));
    };
    import_file(shared, project, path).await
}

/// What a client sends, without what is null.
#[derive(Debug, Deserialize)]
struct SubmitRequest {
    entrypoint: String,
    submission_id: Option<String>,
    /// The old name of `submission_id`.
    job_id: Option<String>,
    runtime_env: Option<Map<String, Value>>,
    metadata: Option<BTreeMap<String, String>>,
    entrypoint_num_cpus: Option<f64>,
    entrypoint_num_gpus: Option<f64>,
    entrypoint_memory: Option<u64>,
    /// Everything else.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// The id that the client chose, or one in the form of Ray's own.
fn job_id(request: &SubmitRequest) -> Result<JobId, ApiError> {
    let chosen = request.submission_id.as_ref().or(request.job_id.as_ref());
    let Some(chosen) = chosen.filter(|id| !id.is_empty()) else {
        return minted(JobId::new(format!("raysubmit_{}", random_word()?)));
    };
    JobId::new(chosen.as_str()).map_err(|error| {
        ApiError::new(BAD_PARAMETER, format!("{} cannot be a submission id", quoted(chosen)))
            .hint(error.rule)
    })
}

/// 16 letters and digits.
fn random_word() -> Result<String, ApiError> {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let random: [u8; 16] = random::bytes()?;
    // Not quite even, which is of no matter for a name.
    let letters = random.iter().map(|byte| LETTERS.get(usize::from(*byte) % LETTERS.len()));
    Ok(letters.flatten().map(|letter| char::from(*letter)).collect())
}

/// The spec of a request that came to this address, and the package that is its working directory.
fn job_spec(
    request: SubmitRequest,
    address: &Address,
) -> Result<(JobSpec, Option<PackageName>), ApiError> {
    refuse_others(&request.others)?;
    let metadata = request.metadata.clone().unwrap_or_default();
    refuse_unknown_keys(&metadata)?;
    let resources = resources(&request, &metadata, address)?;
    let mut spec = JobSpec::for_command(Vec::new());
    spec.entrypoint = Entrypoint::Script(request.entrypoint);
    spec.name = metadata.get(NAME).cloned();
    spec.project = metadata.get(PROJECT).cloned();
    spec.resources = resources;
    if let Some(text) = metadata.get(PRIORITY) {
        spec.queue.priority = priority(text)?;
    }
    spec.cluster = address.cluster.clone();
    let (env, package) = runtime_env(request.runtime_env.unwrap_or_default())?;
    spec.env = env;
    spec.labels = metadata;
    spec.validate().map_err(|errors| ApiError::spec(in_rays_words(errors)))?;
    Ok((spec, package))
}

/// Names the fields of the request instead of those of the spec that is made of it.
fn in_rays_words(mut errors: SpecErrors) -> SpecErrors {
    const FIELDS: [(&str, &str); 4] = [
        ("/run", "entrypoint"),
        ("/env", "runtime_env.env_vars"),
        ("/labels", "metadata"),
        ("/resources", "size of the gang"),
    ];
    for error in &mut errors.errors {
        if let Some((_, field)) = FIELDS.iter().find(|(at, _)| error.pointer.starts_with(at)) {
            error.message = format!("{field}: {}", error.message);
        }
    }
    errors
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(true) => false,
    }
}

fn not_built(what: &str, instead: &str) -> ApiError {
    ApiError::new(NOT_BUILT, format!("{what} is not available yet")).hint(instead)
}

fn refuse_others(others: &BTreeMap<String, Value>) -> Result<(), ApiError> {
    let Some((name, _)) = others.iter().find(|(_, value)| !says_nothing(value)) else {
        return Ok(());
    };
    Err(match name.as_str() {
        "entrypoint_resources" | "entrypoint_label_selector" => not_built(
            name,
            "leave it out: the entrypoint runs beside rank 0, on a node of the job's own gang",
        ),
        _ => not_built(&format!("the field {} of a submit", quoted(name)), "leave it out"),
    })
}

/// Keys of the metadata with a meaning. All of the metadata is kept as the job's labels.
const NNODES: &str = "gangline.nnodes";
const GPUS_PER_NODE: &str = "gangline.gpus_per_node";
const POOL: &str = "gangline.pool";
const PRIORITY: &str = "gangline.priority";
const NAME: &str = "gangline.name";
const PROJECT: &str = "gangline.project";
const KEYS: [&str; 6] = [NNODES, GPUS_PER_NODE, POOL, PRIORITY, NAME, PROJECT];

fn refuse_unknown_keys(metadata: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let ours =
        metadata.keys().find(|key| key.starts_with("gangline.") && !KEYS.contains(&key.as_str()));
    match ours {
        None => Ok(()),
        Some(key) => Err(ApiError::new(
            BAD_PARAMETER,
            format!("the metadata key {} means nothing", quoted(key)),
        )
        .hint(format!("use one of {}", KEYS.join(", ")))),
    }
}

/// The size of the gang: from the address, the metadata, or the resources of the entrypoint, which
/// must not contradict each other. Without any, one node without GPUs.
fn resources(
    request: &SubmitRequest,
    metadata: &BTreeMap<String, String>,
    address: &Address,
) -> Result<Resources, ApiError> {
    let profile = address.profile;
    let nnodes = agreed(
        "the number of nodes",
        [
            ("the address", profile.map(|profile| profile.nnodes)),
            ("the metadata", number(metadata, NNODES)?),
        ],
    )?;
    let gpus_per_node = agreed(
        "the number of GPUs of a node",
        [
            ("the address", profile.map(|profile| profile.gpus_per_node)),
            ("the metadata", number(metadata, GPUS_PER_NODE)?),
            ("entrypoint_num_gpus", whole_gpus(request.entrypoint_num_gpus)?),
        ],
    )?;
    let pool = agreed(
        "the pool",
        [("the address", address.pool.clone()), ("the metadata", metadata.get(POOL).cloned())],
    )?;
    let gpus_per_node = gpus_per_node.unwrap_or(0);
    let cpus_per_node = request.entrypoint_num_cpus.filter(|cpus| *cpus != 0.0);
    let memory_per_node = request.entrypoint_memory.filter(|bytes| *bytes > 0);
    if gpus_per_node > 0 && (cpus_per_node.is_some() || memory_per_node.is_some()) {
        return Err(not_built(
            "reserving CPUs or memory for the entrypoint of a job with GPUs",
            "leave out entrypoint_num_cpus and entrypoint_memory: each node gives the share of its \
             CPUs and memory that goes with its GPUs",
        ));
    }
    let nnodes = nnodes.unwrap_or(1);
    Ok(Resources {
        nnodes,
        gpus_per_node,
        cpus_per_node,
        memory_per_node,
        pools: pool.into_iter().collect(),
        ..Resources::default()
    })
}

/// The one value of several places that may say it.
fn agreed<T: PartialEq + Display, const N: usize>(
    what: &str,
    said: [(&str, Option<T>); N],
) -> Result<Option<T>, ApiError> {
    let mut known: Option<(&str, T)> = None;
    for (place, value) in said {
        let Some(value) = value else { continue };
        match &known {
            None => known = Some((place, value)),
            Some((_, other)) if *other == value => {}
            Some((first, other)) => {
                let (other, value) = (quoted(&other.to_string()), quoted(&value.to_string()));
                let detail = format!("{what} is {other} in {first} and {value} in {place}");
                return Err(ApiError::new(BAD_PARAMETER, detail).hint("say it once"));
            }
        }
    }
    Ok(known.map(|(_, value)| value))
}

fn number(metadata: &BTreeMap<String, String>, key: &str) -> Result<Option<u32>, ApiError> {
    let Some(text) = metadata.get(key) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        let detail = format!("the metadata {key} is {}", quoted(text));
        ApiError::new(BAD_PARAMETER, detail).hint("write a whole number, as a string")
    })
}

/// A word or a number, as in a spec.
fn priority(text: &str) -> Result<Priority, ApiError> {
    let number = || text.parse().ok().map(Priority);
    Priority::from_word(text).or_else(number).ok_or_else(|| {
        let detail = format!("the metadata {PRIORITY} is {}", quoted(text));
        ApiError::new(BAD_PARAMETER, detail).hint("use low, normal, high, urgent, or 0 to 100")
    })
}

/// Ray shares GPUs by fractions; a gang has whole ones.
fn whole_gpus(gpus: Option<f64>) -> Result<Option<u32>, ApiError> {
    let Some(gpus) = gpus.filter(|gpus| *gpus != 0.0) else { return Ok(None) };
    if !(0.0..=f64::from(u32::MAX)).contains(&gpus) {
        return Err(ApiError::new(BAD_PARAMETER, format!("entrypoint_num_gpus is {gpus}")));
    }
    Ok(Some(gpus.ceil() as u32))
}

type Variables = BTreeMap<String, Option<String>>;

/// The variables and the working directory of a runtime environment: no other part is built.
fn runtime_env(
    mut runtime_env: Map<String, Value>,
) -> Result<(Variables, Option<PackageName>), ApiError> {
    let mut env = BTreeMap::new();
    let working_dir = runtime_env.remove("working_dir").filter(|value| !says_nothing(value));
    let package = working_dir.as_ref().map(package).transpose()?;
    if package.is_some() {
        // The client has left these out of what it uploaded.
        runtime_env.remove("excludes");
    }
    // Ray's client says of which build it is, beside packages that are to be installed.
    runtime_env.remove("_ray_commit");
    for (part, value) in runtime_env {
        if says_nothing(&value) {
            continue;
        }
        if part != "env_vars" {
            return Err(not_built(&format!("runtime_env.{part}"), instead_of(&part)));
        }
        let Value::Object(variables) = value else {
            return Err(ApiError::new(BAD_PARAMETER, "runtime_env.env_vars is not an object"));
        };
        for (name, value) in variables {
            let Value::String(value) = value else {
                let detail = format!("the value of runtime_env.env_vars.{name} is not a string");
                return Err(ApiError::new(BAD_PARAMETER, detail));
            };
            env.insert(name, Some(value));
        }
    }
    Ok((env, package))
}

/// A package by its address, as the client names what it uploaded.
fn package(working_dir: &Value) -> Result<PackageName, ApiError> {
    let name = working_dir.as_str().and_then(|address| address.split_once("://"));
    let name = name.and_then(|(protocol, name)| PackageName::new(protocol, name));
    name.filter(PackageName::is_zip).ok_or_else(|| {
        let shown = quoted(&working_dir.to_string());
        not_built(&format!("the runtime_env.working_dir {shown}"), instead_of("working_dir"))
    })
}

/// What to do without a part of a runtime environment.
fn instead_of(part: &str) -> &'static str {
    match part {
        "working_dir" | "excludes" => "name a directory, which the client uploads",
        "py_modules" | "java_jars" => {
            "put the modules where all nodes see them, and name their directory in \
             runtime_env.env_vars.PYTHONPATH"
        }
        "pip" | "uv" | "conda" | "py_executable" => {
            "install the packages into the image of the nodes, or activate an environment on a \
             shared path at the beginning of the entrypoint"
        }
        "container" | "image_uri" => "use nodes of a pool that runs this image",
        _ => "leave it out, or set what it does in the program itself",
    }
}
