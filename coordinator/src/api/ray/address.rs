//! What the path of a request says: the size, pool or cluster that the user's address names, and the
//! job.

use std::collections::BTreeMap;
use std::str::FromStr;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::api::error::{ApiError, BAD_PARAMETER, quoted};

/// A size of a gang, as an address says it: `4x8` is 4 nodes with 8 GPUs each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Profile {
    pub nnodes: u32,
    pub gpus_per_node: u32,
}

impl FromStr for Profile {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<Self, ApiError> {
        let parsed = text.split_once('x').and_then(|(nnodes, gpus)| {
            let digits = |text: &str| {
                let plain = text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse::<u32>().ok().filter(|_| plain)
            };
            Some(Profile { nnodes: digits(nnodes)?, gpus_per_node: digits(gpus)? })
        });
        parsed.ok_or_else(|| {
            ApiError::new(BAD_PARAMETER, format!("{} is not a profile", quoted(text)))
                .hint("write nodes x GPUs of each: .../profile/4x8")
        })
    }
}

/// The parameters of a path of the Ray dialect.
#[derive(Debug)]
pub(super) struct Address {
    pub pool: Option<String>,
    /// Name or id of a standing cluster.
    pub cluster: Option<String>,
    pub profile: Option<Profile>,
    parameters: BTreeMap<String, String>,
}

impl Address {
    /// The job that is meant; empty on a route without one, and no job has that id.
    pub fn id(&self) -> &str {
        self.parameter("id")
    }

    /// A parameter of the route; empty when it has none of this name.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Address {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<BTreeMap<String, String>>::from_request_parts(parts, state).await;
        let Path(mut parameters) =
            path.map_err(|error| ApiError::new(BAD_PARAMETER, error.body_text()))?;
        let profile = parameters.remove("profile").map(|text| text.parse()).transpose()?;
        let (pool, cluster) = (parameters.remove("pool"), parameters.remove("cluster"));
        Ok(Address { pool, cluster, profile, parameters })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_two_numbers() {
        let profile: Profile = "4x8".parse().unwrap();
        assert_eq!(profile, Profile { nnodes: 4, gpus_per_node: 8 });
        for wrong in
            ["", "4", "x", "4x", "x8", "4x8x1", "-4x8", "+4x8", "4 x8", "4X8", "99999999999x1"]
        {
            assert!(wrong.parse::<Profile>().is_err(), "{wrong}");
        }
    }
}
