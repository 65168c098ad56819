//! What the store knows of secrets: hashes, owners, uses. Never a secret itself.

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
    pub created: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Member,
    Admin,
}

/// Who asks: made from a token, never from a field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub user: String,
    pub project: String,
    pub role: Role,
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
