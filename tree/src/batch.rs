//! Many chunks in one body: per chunk its length as a big-endian u32, then its bytes.

use crate::chunker::MAX_CHUNK_BYTES;
use crate::rules::TreeError;

/// Most bytes of one body, lengths and all.
pub const MAX_BATCH_BYTES: usize = 8 << 20;

/// Puts one more chunk behind the others; false, and nothing is put, when it has no room.
#[must_use]
pub fn push(batch: &mut Vec<u8>, chunk: &[u8]) -> bool {
    if batch.len() + 4 + chunk.len() > MAX_BATCH_BYTES {
        return false;
    }
    // A chunk has at most a MiB.
    batch.extend_from_slice(&(chunk.len() as u32).to_be_bytes());
    batch.extend_from_slice(chunk);
    true
}

/// The chunks of a body that anybody may have sent.
///
/// # Errors
/// A length is wrong, or the body is cut off.
pub fn chunks(mut batch: &[u8]) -> Result<Vec<&[u8]>, TreeError> {
    let mut out = Vec::new();
    while let Some((length, rest)) = batch.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        if length == 0 || length > MAX_CHUNK_BYTES {
            return Err(TreeError::Malformed("a chunk has 1 byte to 1 MiB"));
        }
        let cut = rest.split_at_checked(length);
        let (chunk, rest) = cut.ok_or(TreeError::Malformed("the last chunk is cut off"))?;
        out.push(chunk);
        batch = rest;
    }
    if !batch.is_empty() {
        return Err(TreeError::Malformed("the last length is cut off"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_comes_apart_as_it_was_put_together() {
        let mut batch = Vec::new();
        let largest = vec![7; MAX_CHUNK_BYTES];
        assert!(push(&mut batch, b"one") && push(&mut batch, &largest));
        assert_eq!(chunks(&batch).unwrap(), [b"one".as_slice(), &largest]);
        while push(&mut batch, &largest) {}
        assert!(batch.len() <= MAX_BATCH_BYTES && batch.len() > MAX_BATCH_BYTES - (2 << 20));
        for broken in [&b"\0\0\0"[..], b"\0\0\0\0", b"\0\0\0\x02a", b"\xff\xff\xff\xffaaaa"] {
            assert!(chunks(broken).is_err(), "{broken:?}");
        }
        assert_eq!(chunks(b"").unwrap(), [b""; 0]);
    }
}
