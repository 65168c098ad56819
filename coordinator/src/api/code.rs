//! The code of jobs: what is missing of a tree, its chunks, its list, or an archive as a whole.

use std::path::PathBuf;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, BodyDataStream};
use axum::extract::State;
use axum::http::StatusCode;
use futures_util::StreamExt;
use gangline_tree::{Hash, MAX_MANIFEST_BYTES, Tree, batch};
use serde::{Deserialize, Serialize};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{
    ApiError, BAD_BODY, BAD_CODE, BAD_PARAMETER, CODE_INCOMPLETE, NO_SUCH_CODE, Problem, SLOW_BODY,
    STORE_FULL, TOO_LARGE, TOO_MANY_STREAMS, quoted,
};
use super::tokens::check_word;
use super::{App, Params, Selector, Shared};
use crate::core::credential::Principal;
use crate::packages::MAX_PACKAGE_BYTES;
use crate::trees::TreesError;

/// A client that sends nothing for this long is left.
const IDLE: Duration = Duration::from_secs(30);

/// Query of every request about code.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CodeParams {
    /// For administrators; the caller's own project when absent.
    project: Option<String>,
}

/// A tree of code.
#[derive(Serialize, ToSchema)]
pub(super) struct TreeView {
    /// `blake3:` and 64 hexadecimal digits: what `code.snapshot` of a job takes.
    tree: String,
    files: usize,
    bytes: u64,
}

impl TreeView {
    fn of(tree: &Tree, name: Hash) -> TreeView {
        TreeView { tree: name.to_string(), files: tree.entries().len(), bytes: tree.bytes() }
    }
}

/// What has to be uploaded of a tree.
#[derive(Serialize, ToSchema)]
pub(super) struct MissingChunks {
    /// BLAKE3 in hexadecimal, each once, in the order of first use.
    missing: Vec<String>,
}

/// What became of uploaded chunks.
#[derive(Serialize, ToSchema)]
pub(super) struct AddedChunks {
    stored: usize,
    /// Were there already.
    known: usize,
}

/// Says which chunks of a tree the project does not have.
#[utoipa::path(post, path = "/api/v1/code/missing", params(CodeParams),
    request_body(content_type = "application/octet-stream",
        description = "The list of the tree's files, at most 16 MiB"),
    responses((status = 200, body = MissingChunks), (status = 403, response = Problem),
        (status = 503, response = Problem)))]
pub(super) async fn missing_chunks(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<CodeParams>,
    body: Body,
) -> Result<Json<MissingChunks>, ApiError> {
    let project = project(&principal, Action::WritePackage, params)?;
    let trees = shared.api.trees.clone();
    let _permit = trees.permit().map_err(refused)?;
    let list = read_upload(body, MAX_MANIFEST_BYTES).await?;
    let missing = on_disk(move || {
        let tree = Tree::from_bytes(&list)?;
        Ok(trees.missing(&project, &tree).iter().map(Hash::hex).collect())
    });
    Ok(Json(MissingChunks { missing: missing.await? }))
}

/// Stores chunks; they are durable when this answers.
#[utoipa::path(put, path = "/api/v1/code/chunks", params(CodeParams),
    request_body(content_type = "application/octet-stream",
        description = "Per chunk its length as 4 bytes, big endian, then its bytes; at most 8 MiB"),
    responses((status = 200, body = AddedChunks), (status = 403, response = Problem),
        (status = 503, response = Problem), (status = 507, response = Problem)))]
pub(super) async fn put_chunks(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<CodeParams>,
    body: Body,
) -> Result<Json<AddedChunks>, ApiError> {
    let project = project(&principal, Action::WritePackage, params)?;
    room_for_more(&shared)?;
    let trees = shared.api.trees.clone();
    let permit = trees.permit().map_err(refused)?;
    let body = read_upload(body, batch::MAX_BATCH_BYTES).await?;
    let added = on_disk(move || {
        let _permit = permit;
        trees.add_batch(&project, &body)
    });
    let added = added.await?;
    Ok(Json(AddedChunks { stored: added.stored, known: added.known }))
}

/// Keeps a tree whose chunks are all there. It is durable when this answers, and never changes.
#[utoipa::path(put, path = "/api/v1/code/trees/{tree}",
    params(CodeParams, ("tree" = String, Path, description = "`blake3:` and 64 digits")),
    request_body(content_type = "application/octet-stream",
        description = "The list of the tree's files, at most 16 MiB"),
    responses((status = 201, body = TreeView), (status = 200, body = TreeView),
        (status = 403, response = Problem), (status = 409, response = Problem),
        (status = 503, response = Problem), (status = 507, response = Problem)))]
pub(super) async fn put_tree(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<CodeParams>,
    Selector(tree): Selector,
    body: Body,
) -> Result<(StatusCode, Json<TreeView>), ApiError> {
    let project = project(&principal, Action::WritePackage, params)?;
    let name = name(&tree)?;
    let trees = shared.api.trees.clone();
    let permit = trees.permit().map_err(refused)?;
    let list = read_upload(body, MAX_MANIFEST_BYTES).await?;
    let added = on_disk(move || {
        let _permit = permit;
        trees.add_tree(&project, name, &list)
    });
    let (tree, new) = added.await?;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(TreeView::of(&tree, name))))
}

/// A tree of the project.
#[utoipa::path(get, path = "/api/v1/code/trees/{tree}",
    params(CodeParams, ("tree" = String, Path, description = "`blake3:` and 64 digits")),
    responses((status = 200, body = TreeView), (status = 404, response = Problem)))]
pub(super) async fn get_tree(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<CodeParams>,
    Selector(tree): Selector,
) -> Result<Json<TreeView>, ApiError> {
    let project = project(&principal, Action::ReadPackages, params)?;
    let name = name(&tree)?;
    let trees = shared.api.trees.clone();
    let list = on_disk(move || trees.list(&project, name)).await?;
    let list = list.ok_or_else(|| no_such_code(name))?;
    let tree = Tree::from_bytes(&list).map_err(|error| refused(error.into()))?;
    Ok(Json(TreeView::of(&tree, name)))
}

/// Makes a tree of a zip archive, with every check of its entries. Nothing of it is executed.
#[utoipa::path(post, path = "/api/v1/code/zip", params(CodeParams),
    request_body(content_type = "application/zip",
        description = "The archive, at most 512 MiB"),
    responses((status = 201, body = TreeView), (status = 403, response = Problem),
        (status = 503, response = Problem), (status = 507, response = Problem)))]
pub(super) async fn post_zip(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<CodeParams>,
    body: Body,
) -> Result<(StatusCode, Json<TreeView>), ApiError> {
    let project = project(&principal, Action::WritePackage, params)?;
    room_for_more(&shared)?;
    let trees = shared.api.trees.clone();
    let permit = trees.permit().map_err(refused)?;
    let unfinished = Unfinished(trees.unfinished().map_err(refused)?);
    let disk = |error: std::io::Error| refused(error.into());
    let mut options = File::options();
    let new = options.write(true).create_new(true).read(true).mode(0o600);
    let mut file = new.open(&unfinished.0).await.map_err(disk)?;
    let mut body = body.into_data_stream();
    let mut taken = 0u64;
    while let Some(part) = next_part(&mut body).await? {
        taken = taken.saturating_add(part.len() as u64);
        if taken > MAX_PACKAGE_BYTES {
            drain(&mut body).await;
            return Err(too_large(MAX_PACKAGE_BYTES));
        }
        file.write_all(&part).await.map_err(disk)?;
    }
    file.flush().await.map_err(disk)?;
    let file = file.into_std().await;
    let tree = on_disk(move || {
        let _permit = permit;
        let _unfinished = unfinished;
        trees.import_zip(&project, &file)
    });
    let tree = tree.await?;
    Ok((StatusCode::CREATED, Json(TreeView::of(&tree, tree.name()))))
}

/// Makes a tree of an archive that is in a file already.
pub(super) async fn import_file(
    shared: &Shared,
    project: &str,
    path: PathBuf,
) -> Result<Hash, ApiError> {
    let trees = shared.api.trees.clone();
    let permit = trees.permit().map_err(refused)?;
    let project = project.to_owned();
    let tree = on_disk(move || {
        let _permit = permit;
        trees.import_zip(&project, &std::fs::File::open(path)?)
    });
    Ok(tree.await?.name())
}

/// "No such code" and "not yours" are this one answer (A38).
pub(super) fn no_such_code(tree: Hash) -> ApiError {
    ApiError::new(NO_SUCH_CODE, format!("there is no code {tree} in this project"))
        .hint("submit with `gangline submit`, which uploads the code first")
}

/// The project that the caller means, when it is theirs to work in.
fn project(principal: &Principal, action: Action, params: CodeParams) -> Result<String, ApiError> {
    let project = params.project.unwrap_or_else(|| principal.project.clone());
    authorize(principal, action, &Object::Project(&project))?;
    check_word(BAD_PARAMETER, "project", &project)?;
    Ok(project)
}

fn name(text: &str) -> Result<Hash, ApiError> {
    Hash::from_text(text).ok_or_else(|| {
        ApiError::new(BAD_PARAMETER, format!("{} is not the name of a tree", quoted(text)))
            .hint("write `blake3:` and 64 lower-case hexadecimal digits")
    })
}

/// What the disk has no room for is refused while there is still some for the jobs that run.
pub(in crate::api) fn room_for_more(shared: &Shared) -> Result<(), ApiError> {
    shared.api.space.check().map_err(|error| {
        ApiError::new(STORE_FULL, error.to_string())
            .hint("ask an operator to make room; then it is taken without a restart")
    })
}

/// Does what waits for the disk, or computes for long, where it holds nobody up.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TreesError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(refused),
        Err(error) => Err(ApiError::internal("storing code", &error)),
    }
}

fn refused(error: TreesError) -> ApiError {
    let text = error.to_string();
    match error {
        TreesError::Busy => ApiError::new(TOO_MANY_STREAMS, text)
            .hint("try again in a few seconds")
            .retry_after_s(2),
        TreesError::Full { .. } => ApiError::new(STORE_FULL, text)
            .hint("an operator has to make room in the coordinator's state directory"),
        TreesError::Missing(_) => {
            ApiError::new(CODE_INCOMPLETE, text).hint("POST /api/v1/code/missing says which")
        }
        TreesError::Tree(_)
        | TreesError::Lies { .. }
        | TreesError::Size(_)
        | TreesError::Zip(_) => {
            ApiError::new(BAD_CODE, text).hint("nothing of it was kept; make it anew and send that")
        }
        TreesError::Damaged(_) | TreesError::Random(_) | TreesError::Disk(_) => {
            ApiError::internal("storing code", &text)
        }
    }
}

fn too_large(limit: u64) -> ApiError {
    ApiError::new(TOO_LARGE, format!("the body is over {limit} bytes"))
        .hint("leave data out of the code, and put it where all nodes see it")
}

/// The whole body, at most `limit` bytes, however long it takes while it moves.
async fn read_upload(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut body = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(part) = next_part(&mut body).await? {
        if bytes.len().saturating_add(part.len()) > limit {
            drain(&mut body).await;
            return Err(too_large(limit as u64));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

async fn next_part(body: &mut BodyDataStream) -> Result<Option<axum::body::Bytes>, ApiError> {
    let next = timeout(IDLE, body.next()).await.map_err(|_| {
        let seconds = IDLE.as_secs();
        ApiError::new(SLOW_BODY, format!("nothing of the body came for {seconds} s"))
    })?;
    next.transpose().map_err(|_| ApiError::new(BAD_BODY, "the body was cut off"))
}

/// A body that is too large is still taken from the wire up to here, so that the answer arrives.
const DRAIN_BYTES: u64 = 16 << 20;

async fn drain(body: &mut BodyDataStream) {
    let mut taken = 0u64;
    while let Ok(Some(Ok(part))) = timeout(IDLE, body.next()).await {
        taken = taken.saturating_add(part.len() as u64);
        if taken > DRAIN_BYTES {
            return;
        }
    }
}

/// A file that goes when its work is done.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%error, "an uploaded archive is left until the next start");
            }
            Ok(()) | Err(_) => {}
        }
    }
}
