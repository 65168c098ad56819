//! What the store knows of secrets: hashes, owners, uses. Never a secret itself.

use std::net::IpAddr;

use gangline_common::time::Timestamp;

/// A join token, by its public id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinTokenRecord {
    pub id: String,
    pub secret_sha256: [u8; 32],
    pub uses_left: u32,
    pub expires_wall_ms: u64,
    pub pool: Option<String>,
    pub created_by: String,
    pub created: Timestamp,
}

/// A token of the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiTokenRecord {
    pub name: String,
    /// SHA-256 of the whole token text, which holds 256 random bits.
    pub sha256: [u8; 32],
    pub user: String,
    pub project: String,
    pub role: Role,
    /// From then on nobody is let in with it; absent for a token that stays.
    pub expires_wall_ms: Option<u64>,
    pub created: Timestamp,
}

/// What a token may do; `api::auth::authorize` holds the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Looks at its project.
    Viewer,
    /// Works in its project.
    Member,
    /// Keeps the nodes and anybody's jobs going.
    Operator,
    /// Everything.
    Admin,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Viewer, Role::Member, Role::Operator, Role::Admin];

    pub fn word(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Member => "member",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

/// Who asks: made from a token, never from a field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub user: String,
    pub project: String,
    pub role: Role,
    /// Where the request came from; absent outside of a request.
    pub from: Option<IpAddr>,
}

/// The answer to a POST is remembered this long.
pub const IDEMPOTENCY_MS: u64 = 24 * 3_600_000;

/// A remembered POST: (user, key) -> what it was and what it made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyRecord {
    pub user: String,
    pub key: String,
    pub body_sha256: [u8; 32],
    /// The job that the request made.
    pub made: String,
    pub created: Timestamp,
}
