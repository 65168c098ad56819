//! Frames: kind (u8), length (u32, big endian), body. One registry of kinds and limits.

use super::WireError;

/// Bytes before a body.
pub const HEADER_LENGTH: usize = 5;

/// A frame kind; the number is on the wire and is never given to something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    Hello = 0x01,
    Welcome = 0x02,
    Refuse = 0x03,
    JoinRequest = 0x04,
    JoinGrant = 0x05,

    Inventory = 0x10,
    Report = 0x11,
    Heartbeat = 0x12,
    RenewRequest = 0x13,
    Health = 0x14,

    DesiredHeader = 0x20,
    DesiredGang = 0x21,
    HeartbeatAck = 0x22,
    LogAck = 0x23,
    Renewed = 0x24,
    HealthCleared = 0x25,

    Sample = 0x30,
    LogChunk = 0x31,
    PackedLogChunk = 0x32,

    Request = 0x40,
    AnswerHead = 0x41,
    AnswerPiece = 0x42,
    CodeRequest = 0x50,
    CodePart = 0x51,
}

/// Every kind with its name and the largest body that is accepted, in bytes.
pub const REGISTRY: &[(Kind, &str, u32)] = &[
    (Kind::Hello, "Hello", 64 << 10),
    (Kind::Welcome, "Welcome", 64 << 10),
    (Kind::Refuse, "Refuse", 64 << 10),
    (Kind::JoinRequest, "JoinRequest", 64 << 10),
    (Kind::JoinGrant, "JoinGrant", 64 << 10),
    (Kind::Inventory, "Inventory", 256 << 10),
    (Kind::Report, "Report", 1 << 20),
    (Kind::Heartbeat, "Heartbeat", 256),
    (Kind::RenewRequest, "RenewRequest", 64 << 10),
    (Kind::Health, "Health", 512 << 10),
    (Kind::DesiredHeader, "DesiredHeader", 256),
    (Kind::DesiredGang, "DesiredGang", 1 << 20),
    (Kind::HeartbeatAck, "HeartbeatAck", 256),
    (Kind::LogAck, "LogAck", 1024),
    (Kind::Renewed, "Renewed", 64 << 10),
    (Kind::HealthCleared, "HealthCleared", 128 << 10),
    (Kind::Sample, "Sample", 256 << 10),
    (Kind::LogChunk, "LogChunk", 256 << 10),
    (Kind::PackedLogChunk, "PackedLogChunk", 256 << 10),
    (Kind::Request, "Request", 4 << 10),
    (Kind::AnswerHead, "AnswerHead", 4 << 10),
    (Kind::AnswerPiece, "AnswerPiece", 256 << 10),
    (Kind::CodeRequest, "CodeRequest", 1024),
    (Kind::CodePart, "CodePart", 256 << 10),
];

impl Kind {
    /// The kind with this number, or `UnknownKind`.
    pub fn from_byte(byte: u8) -> Result<Kind, WireError> {
        REGISTRY
            .iter()
            .find(|(kind, ..)| *kind as u8 == byte)
            .map(|(kind, ..)| *kind)
            .ok_or(WireError::UnknownKind(byte))
    }

    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Largest accepted body, in bytes.
    pub fn limit(self) -> u32 {
        self.row().2
    }

    fn row(self) -> (Kind, &'static str, u32) {
        // The registry test shows that every kind has its row; the fallback refuses every body.
        REGISTRY.iter().copied().find(|(kind, ..)| *kind == self).unwrap_or((self, "unlisted", 0))
    }
}

/// One unit of a stream: a kind and a body within the kind's limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub body: Vec<u8>,
}

/// Reads a header: the kind and the length of the body, checked before anything is allocated.
pub fn parse_header(header: [u8; HEADER_LENGTH]) -> Result<(Kind, u32), WireError> {
    let [kind, length @ ..] = header;
    let kind = Kind::from_byte(kind)?;
    let length = u32::from_be_bytes(length);
    if length == 0 {
        return Err(WireError::Empty { kind: kind.name() });
    }
    if length > kind.limit() {
        return Err(WireError::Limit {
            kind: kind.name(),
            length: length.into(),
            limit: kind.limit(),
        });
    }
    Ok((kind, length))
}

impl Frame {
    /// Checks the body against the limit of its kind.
    pub fn new(kind: Kind, body: Vec<u8>) -> Result<Frame, WireError> {
        let length = body.len() as u64;
        if length == 0 {
            return Err(WireError::Empty { kind: kind.name() });
        }
        if length > u64::from(kind.limit()) {
            return Err(WireError::Limit { kind: kind.name(), length, limit: kind.limit() });
        }
        Ok(Frame { kind, body })
    }

    /// Header and body as they go on the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_LENGTH + self.body.len());
        bytes.push(self.kind as u8);
        // `new` and `parse_header` keep every body under its limit, which is a u32.
        bytes.extend_from_slice(&(self.body.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Splits the first whole frame off `bytes`; `None` means that more bytes are needed.
    pub fn split_first(bytes: &[u8]) -> Result<Option<(Frame, &[u8])>, WireError> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LENGTH>() else {
            return Ok(None);
        };
        let (kind, length) = parse_header(*header)?;
        match rest.split_at_checked(length as usize) {
            Some((body, rest)) => Ok(Some((Frame { kind, body: body.to_vec() }, rest))),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_has_each_kind_once() {
        let mut numbers: Vec<u8> = REGISTRY.iter().map(|(kind, ..)| *kind as u8).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), REGISTRY.len());
        for (kind, name, limit) in REGISTRY {
            assert_eq!(Kind::from_byte(*kind as u8), Ok(*kind));
            assert_eq!((kind.name(), kind.limit()), (*name, *limit));
            assert!(*limit > 0);
        }
    }
}
