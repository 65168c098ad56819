//! The body codec of protocol 1, and the one wire file that names bincode.
//!
//! Layout: bincode 2 "standard" (little endian, variable-length integers). It is not
//! self-describing, so the golden bytes in `tests/golden_wire.rs` are its specification.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::WireError;

/// Most bytes that a message may claim while it is decoded; a text that claims more is refused
/// before it is allocated. Twice the largest frame, because bincode counts a length prefix as
/// eight bytes and a tag as four, however few they take on the wire. A list of anything but
/// bytes reserves at most 1 MiB (serde's own bound) before its first element is decoded.
const DECODE_LIMIT: usize = 2 << 20;

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

/// For `#[serde(with = "codec::bytes")]`: a `Vec<u8>` in one piece. The layout is that of any
/// list, but the length prefix is checked before it is allocated, and the bytes are copied at once.
pub mod bytes {
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_byte_buf(Bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }

        fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
            Ok(bytes)
        }
    }
}
