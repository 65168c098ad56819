//! Packages of code: whether one is there, and uploading it.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::State;
use axum::http::StatusCode;
use futures_util::StreamExt;
use tokio::time::timeout;

use super::address::Address;
use crate::api::App;
use crate::api::auth::{Action, Caller, Object, authorize};
use crate::api::code::room_for_more;
use crate::api::error::{
    ApiError, BAD_BODY, BAD_PARAMETER, JOB_EXISTS, SLOW_BODY, STORE_FULL, TOO_LARGE,
    TOO_MANY_STREAMS, quoted,
};
use crate::api::logs::blocking;
use crate::packages::{MAX_PACKAGE_BYTES, PackageError, PackageName, Packages};

/// A client that sends nothing for this long is left.
const IDLE: Duration = Duration::from_secs(30);
/// A package that is refused is still taken from the wire up to here, so that the answer arrives.
const DRAIN_BYTES: u64 = 2 * MAX_PACKAGE_BYTES;

/// 200 when the caller's project has the package, 404 when it must be uploaded.
pub(super) async fn find_package(
    State(shared): App,
    Caller(principal): Caller,
    address: Address,
) -> Result<StatusCode, ApiError> {
    authorize(&principal, Action::ReadPackages, &Object::Fleet)?;
    let (packages, name) = (shared.api.packages.clone(), name(&address)?);
    let find = move || packages.find(&principal.project, &name);
    let found = blocking("looking for a package", find).await?;
    Ok(if found.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND })
}

/// Stores a package; durable when this answers.
pub(super) async fn put_package(
    State(shared): App,
    Caller(principal): Caller,
    address: Address,
    body: Body,
) -> Result<StatusCode, ApiError> {
    authorize(&principal, Action::WritePackage, &Object::Fleet)?;
    let name = name(&address)?;
    room_for_more(&shared)?;
    let mut body = body.into_data_stream();
    let mut taken = 0;
    match store(&shared.api.packages, &principal.project, &name, &mut body, &mut taken).await {
        Ok(()) => Ok(StatusCode::OK),
        Err(error) => {
            drain(&mut body, taken).await;
            Err(error)
        }
    }
}

fn name(address: &Address) -> Result<PackageName, ApiError> {
    let (protocol, name) = (address.parameter("protocol"), address.parameter("package"));
    PackageName::new(protocol, name).ok_or_else(|| {
        let shown = quoted(&format!("{protocol}/{name}"));
        ApiError::new(BAD_PARAMETER, format!("{shown} is not a package"))
            .hint(format!("the protocol is gcs, and a name has {}", PackageName::RULE))
    })
}

/// Takes the body into a file of this name. `taken` counts bytes from the wire.
async fn store(
    packages: &Packages,
    project: &str,
    name: &PackageName,
    body: &mut BodyDataStream,
    taken: &mut u64,
) -> Result<(), ApiError> {
    let mut upload = packages.upload().await.map_err(refused)?;
    loop {
        let next = timeout(IDLE, body.next()).await.map_err(|_| {
            let seconds = IDLE.as_secs();
            ApiError::new(SLOW_BODY, format!("nothing of the package came for {seconds} s"))
        })?;
        let Some(chunk) = next else { break };
        let chunk = chunk.map_err(|_| ApiError::new(BAD_BODY, "the package was cut off"))?;
        *taken = taken.saturating_add(chunk.len() as u64);
        upload.write(&chunk).await.map_err(refused)?;
    }
    packages.keep(upload, project, name).await.map_err(refused)
}

/// A client that is still sending would not read the answer.
async fn drain(body: &mut BodyDataStream, mut taken: u64) {
    while let Ok(Some(Ok(chunk))) = timeout(IDLE, body.next()).await {
        taken = taken.saturating_add(chunk.len() as u64);
        if taken > DRAIN_BYTES {
            return;
        }
    }
}

fn refused(error: PackageError) -> ApiError {
    match &error {
        PackageError::Busy => ApiError::new(TOO_MANY_STREAMS, error.to_string())
            .hint("try again in a minute")
            .retry_after_s(60),
        PackageError::TooLarge => ApiError::new(TOO_LARGE, error.to_string())
            .hint("leave data out of it (`excludes`), and put it where all nodes see it"),
        PackageError::Full { .. } => ApiError::new(STORE_FULL, error.to_string())
            .hint("an operator has to delete some from the coordinator's state directory"),
        PackageError::Different => ApiError::new(JOB_EXISTS, error.to_string())
            .hint("change the code by a byte: the client then gives it another name"),
        PackageError::Random(_) | PackageError::Disk(_) => {
            ApiError::internal("storing a package", &error)
        }
    }
}
