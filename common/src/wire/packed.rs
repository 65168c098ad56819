//! Pieces of logs with compressed bytes, from minor version 5 on. Logs of trainings shrink to a tenth,
//! and it is encryption that limits how fast they are shipped.
//!
//! Each piece stands for itself, so that a stream may begin anew anywhere. Its sender is not believed:
//! unpacking never writes more than a piece of a log may have.

use std::io;

use serde::{Deserialize, Serialize};

use super::frame::{Frame, Kind};
use super::v1::{LOG_CHUNK_BYTES, LogChunk, framed_one};
use super::{WireError, codec};
use crate::ids::MemberKey;

/// First minor version in which these are understood.
pub const MINOR_WITH_PACKED_LOGS: u32 = 5;
/// Fewer bytes than this are sent as they are: a packet has room for them anyway.
pub const LEAST_PACKED: usize = 1024;
/// The fastest level that is not "fast": it costs as little on logs, and packs better.
const LEVEL: i32 = 1;

/// A [`LogChunk`] as one frame of Zstandard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedLogChunk {
    pub key: MemberKey,
    pub file: String,
    pub offset: u64,
    /// Plain bytes, at most [`LOG_CHUNK_BYTES`].
    pub length: u32,
    #[serde(with = "codec::bytes")]
    pub packed: Vec<u8>,
    /// When the agent read the bytes, by its wall clock.
    pub read_ms: u64,
}

framed_one!(PackedLogChunk, PackedLogChunk);

impl PackedLogChunk {
    /// The piece as it was.
    ///
    /// # Errors
    /// The bytes are no frame of Zstandard, or not as many as is said.
    pub fn unpack(self, unpacker: &mut Unpacker) -> Result<LogChunk, WireError> {
        let malformed = |reason: String| WireError::Malformed { kind: "PackedLogChunk", reason };
        let PackedLogChunk { key, file, offset, length, packed, read_ms } = self;
        let length = length as usize;
        if length > LOG_CHUNK_BYTES {
            return Err(malformed(format!("{length} bytes are more than a piece of a log has")));
        }
        let bytes = unpacker.0.decompress(&packed, length);
        let bytes = bytes.map_err(|error| malformed(error.to_string()))?;
        if bytes.len() != length {
            return Err(malformed(format!("{} bytes instead of {length}", bytes.len())));
        }
        Ok(LogChunk { key, file, offset, bytes, read_ms })
    }
}

/// Packs pieces, one after the other. It has some hundred KiB of tables.
pub struct Packer(zstd::bulk::Compressor<'static>);

impl Packer {
    /// # Errors
    /// There is no memory for it.
    pub fn new() -> io::Result<Packer> {
        zstd::bulk::Compressor::new(LEVEL).map(Packer)
    }

    /// The frame of a piece: packed, unless that would gain next to nothing.
    ///
    /// # Errors
    /// The piece is larger than one may be.
    pub fn frame(&mut self, chunk: LogChunk) -> Result<Frame, WireError> {
        let most = chunk.bytes.len() / 8 * 7;
        let packed = match chunk.bytes.len() {
            LEAST_PACKED..=LOG_CHUNK_BYTES => self.0.compress(&chunk.bytes).ok(),
            _ => None,
        };
        let Some(packed) = packed.filter(|packed| packed.len() <= most) else {
            return chunk.to_frame();
        };
        let LogChunk { key, file, offset, bytes, read_ms } = chunk;
        // It is within the range above.
        let length = bytes.len() as u32;
        PackedLogChunk { key, file, offset, length, packed, read_ms }.to_frame()
    }
}

/// Unpacks pieces, one after the other.
pub struct Unpacker(zstd::bulk::Decompressor<'static>);

impl Unpacker {
    /// # Errors
    /// There is no memory for it.
    pub fn new() -> io::Result<Unpacker> {
        zstd::bulk::Decompressor::new().map(Unpacker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(bytes: Vec<u8>) -> LogChunk {
        let key = "g-a:1.1:0".parse().unwrap();
        LogChunk { key, file: "output".to_owned(), offset: 7, bytes, read_ms: 9 }
    }

    fn text(bytes: usize) -> Vec<u8> {
        let lines = (0_u64..).flat_map(|step| {
            format!("step:{step} - actor/pg_loss:{}\n", step * 7919 % 10_007).into_bytes()
        });
        lines.take(bytes).collect()
    }

    fn packed(bytes: Vec<u8>) -> PackedLogChunk {
        let frame = Packer::new().unwrap().frame(chunk(bytes)).unwrap();
        PackedLogChunk::from_frame(&frame).unwrap()
    }

    fn refused(packed: PackedLogChunk) -> String {
        match packed.unpack(&mut Unpacker::new().unwrap()) {
            Err(WireError::Malformed { kind: "PackedLogChunk", reason }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn text_is_packed_and_comes_back_as_it_was() {
        let (mut packer, mut unpacker) = (Packer::new().unwrap(), Unpacker::new().unwrap());
        for bytes in [LEAST_PACKED, 70_000, LOG_CHUNK_BYTES] {
            let whole = chunk(text(bytes));
            let frame = packer.frame(whole.clone()).unwrap();
            assert!(frame.body.len() < bytes * 6 / 10, "{} of {bytes}", frame.body.len());
            let packed = PackedLogChunk::from_frame(&frame).unwrap();
            assert_eq!(packed.unpack(&mut unpacker).unwrap(), whole);
        }
    }

    #[test]
    fn what_gains_nothing_goes_as_it_is() {
        let mut packer = Packer::new().unwrap();
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        for bytes in [vec![], text(LEAST_PACKED - 1), noise.take(LOG_CHUNK_BYTES).collect()] {
            let whole = chunk(bytes);
            let frame = packer.frame(whole.clone()).unwrap();
            assert_eq!(LogChunk::from_frame(&frame).unwrap(), whole);
        }
    }

    /// A sender that lies about the length gets no memory for it, and nothing of what it sent counts.
    #[test]
    fn a_length_that_is_not_true_is_refused() {
        let honest = packed(vec![0; LOG_CHUNK_BYTES]);
        assert!(honest.packed.len() < 100, "a bomb: {} bytes", honest.packed.len());
        let with = |length| refused(PackedLogChunk { length, ..honest.clone() });
        let true_length = LOG_CHUNK_BYTES as u32;
        assert!(with(true_length + 1).contains("more than a piece"), "{}", with(true_length + 1));
        with(true_length - 1);
        with(0);
        let short = PackedLogChunk { length: 70_001, ..packed(text(70_000)) };
        assert_eq!(refused(short), "70000 bytes instead of 70001");
    }

    #[test]
    fn bytes_that_are_not_zstandard_are_refused() {
        let honest = packed(text(70_000));
        let mut cut = honest.clone();
        cut.packed.truncate(honest.packed.len() / 2);
        refused(cut);
        for garbage in [vec![], b"not packed".to_vec(), vec![0xff; 200]] {
            refused(PackedLogChunk { packed: garbage, ..honest.clone() });
        }
    }
}
