//! The body codec of protocol 1, and the one wire file that names bincode.
//!
//! Layout: bincode 2 "standard" (little endian, variable-length integers). It is not
//! self-describing, so the golden bytes in `tests/golden_wire.rs` are its specification.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::WireError;

/// No message allocates more than this while it is decoded, whatever its length prefixes say.
const DECODE_LIMIT: usize = 1 << 20;

/// Encodes a message body. Fails only for types that serde itself refuses.
pub fn encode<T: Serialize>(kind: &'static str, value: &T) -> Result<Vec<u8>, WireError> {
    bincode::serde::encode_to_vec(value, bincode::config::standard())
        .map_err(|e| WireError::Malformed { kind, reason: e.to_string() })
}

/// Decodes a body exactly: a limit on what is claimed, and no bytes left over.
pub fn decode<T: DeserializeOwned>(kind: &'static str, bytes: &[u8]) -> Result<T, WireError> {
    let config = bincode::config::standard().with_limit::<DECODE_LIMIT>();
    let (value, used) = bincode::serde::decode_from_slice(bytes, config)
        .map_err(|e| WireError::Malformed { kind, reason: e.to_string() })?;
    match bytes.len() - used {
        0 => Ok(value),
        extra => Err(WireError::Trailing { kind, extra }),
    }
}
