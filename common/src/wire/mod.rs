//! Everything the two programs ever say to each other.
//!
//! `frame` cuts a byte stream into length-delimited units under one registry of kinds and limits;
//! `tlv` holds the handshake, which never changes; `v1` holds the messages of protocol 1, `request`
//! those of request streams, `packed` compressed pieces of logs, `ray_state` what such an answer says of Ray;
//! `codec` is the only wire file that names bincode.

pub mod checkpoint;
pub mod codec;
pub mod frame;
pub mod packed;
pub mod ray_state;
pub mod request;
pub mod scene;
pub mod tlv;
pub mod v1;

/// ALPN protocol name: the major version of the protocol.
pub const ALPN: &[u8] = b"gangline/1";
/// Newest minor version that this build speaks.
pub const MINOR: u32 = 6;
/// Oldest minor version that this build still speaks.
pub const MINOR_OLDEST: u32 = 4;
/// First minor version in which a sample is a word of its node, as a heartbeat is.
pub const MINOR_WITH_WORDS_IN_SAMPLES: u32 = 6;

/// Why bytes from a peer are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("LIMIT: a {kind} frame of {length} bytes is over its limit of {limit}")]
    Limit { kind: &'static str, length: u64, limit: u32 },
    #[error("unknown frame kind {0:#04x}")]
    UnknownKind(u8),
    #[error("a {0} frame is not allowed here")]
    Unexpected(&'static str),
    #[error("a {kind} frame has an empty body")]
    Empty { kind: &'static str },
    #[error("a {kind} body does not decode: {reason}")]
    Malformed { kind: &'static str, reason: String },
    #[error("a {kind} body has {extra} bytes after its end")]
    Trailing { kind: &'static str, extra: usize },
    #[error("handshake: {0}")]
    Handshake(&'static str),
}
