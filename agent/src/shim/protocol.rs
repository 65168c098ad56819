//! What the agent and a shim say to each other over the shim's socket.
//!
//! A shim outlives the agent that started it, so it may meet a newer agent: an agent speaks every
//! version in [`SPOKEN`]. A shim speaks one version and answers anything else with `Unsupported`.
//!
//! ```text
//! frame   = version u8 | kind u8 | length u16 | payload          (big endian)
//! agent   -> 0x01 Status       (empty)                            first frame of a connection
//!            0x02 Stop         grace_ms u64                       0 kills at once
//!            0x03 Contact      boot_ms u64                        since version 2
//! shim    -> 0x81 Started      pid u32 | start time u64           answer to Status
//!            0x82 Ended        exit record, JSON                  the last frame
//!            0x83 Unsupported  lowest u8 | highest u8             then the shim hangs up
//! ```

use std::ops::RangeInclusive;

use super::record::ExitRecord;
use crate::supervisor::process::ProcessId;

/// Version that this build's shim speaks.
pub const VERSION: u8 = 2;
/// Versions that this build's agent speaks: the current one and the one before.
pub const SPOKEN: RangeInclusive<u8> = VERSION - 1..=VERSION;
/// Largest payload of a request, in bytes.
pub const REQUEST_BYTES: usize = 64;
/// Largest payload of a push, in bytes.
pub const PUSH_BYTES: usize = 32 << 10;

const HEADER_BYTES: usize = 4;
const STATUS: u8 = 0x01;
const STOP: u8 = 0x02;
const CONTACT: u8 = 0x03;
/// The first version with Contact. A shim of an earlier one never stops its member by itself.
const CONTACT_SINCE: u8 = 2;
const STARTED: u8 = 0x81;
const ENDED: u8 = 0x82;
const UNSUPPORTED: u8 = 0x83;

/// The other side does not speak this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("version {0} is not spoken here")]
    Version(u8),
    #[error("frame of unknown kind {0:#04x}")]
    Kind(u8),
    #[error("frame of {0} bytes is too long")]
    TooLong(usize),
    #[error("frame of kind {0:#04x} has a malformed payload")]
    Payload(u8),
}

/// What the agent asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Status,
    /// SIGTERM, then SIGKILL after `grace_ms`. A later Stop can only make the end come earlier.
    Stop {
        grace_ms: u64,
    },
    /// The newest heartbeat that the coordinator acknowledged was sent at this time of the boot
    /// clock.
    Contact {
        boot_ms: u64,
    },
}

/// What the shim says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Push {
    Started(ProcessId),
    Ended(ExitRecord),
    Unsupported { lowest: u8, highest: u8 },
}

impl Request {
    /// The request in one of [`SPOKEN`]; `None` when that version does not have it.
    pub fn encode(&self, version: u8) -> Option<Vec<u8>> {
        match self {
            Request::Status => Some(frame(version, STATUS, &[])),
            Request::Stop { grace_ms } => Some(frame(version, STOP, &grace_ms.to_be_bytes())),
            Request::Contact { .. } if version < CONTACT_SINCE => None,
            Request::Contact { boot_ms } => Some(frame(version, CONTACT, &boot_ms.to_be_bytes())),
        }
    }

    /// Takes one whole request off the front of `buffer`; `None` when it is not complete yet.
    pub fn take(buffer: &mut Vec<u8>) -> Result<Option<Self>, ProtocolError> {
        let taken = take_frame(buffer, REQUEST_BYTES, VERSION..=VERSION)?;
        let Some((kind, payload)) = taken else { return Ok(None) };
        let number = || match <[u8; 8]>::try_from(payload.as_slice()) {
            Ok(bytes) => Ok(u64::from_be_bytes(bytes)),
            Err(_) => Err(ProtocolError::Payload(kind)),
        };
        match kind {
            STATUS if payload.is_empty() => Ok(Some(Request::Status)),
            STATUS => Err(ProtocolError::Payload(STATUS)),
            STOP => Ok(Some(Request::Stop { grace_ms: number()? })),
            CONTACT => Ok(Some(Request::Contact { boot_ms: number()? })),
            other => Err(ProtocolError::Kind(other)),
        }
    }
}

impl Push {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Push::Started(id) => {
                let mut payload = id.pid.to_be_bytes().to_vec();
                payload.extend(id.start_time.to_be_bytes());
                frame(VERSION, STARTED, &payload)
            }
            Push::Ended(record) => frame(VERSION, ENDED, &record.to_json()),
            Push::Unsupported { lowest, highest } => {
                frame(VERSION, UNSUPPORTED, &[*lowest, *highest])
            }
        }
    }

    /// Takes one whole push off the front of `buffer`; `None` when it is not complete yet.
    pub fn take(buffer: &mut Vec<u8>) -> Result<Option<Self>, ProtocolError> {
        let Some((kind, payload)) = take_frame(buffer, PUSH_BYTES, SPOKEN)? else {
            return Ok(None);
        };
        let malformed = || ProtocolError::Payload(kind);
        let push = match kind {
            STARTED => {
                let (pid, start_time) = payload.split_at_checked(4).ok_or_else(malformed)?;
                let pid = u32::from_be_bytes(pid.try_into().map_err(|_| malformed())?);
                let start_time = start_time.try_into().map_err(|_| malformed())?;
                Push::Started(ProcessId { pid, start_time: u64::from_be_bytes(start_time) })
            }
            ENDED => Push::Ended(ExitRecord::from_json(&payload).map_err(|_| malformed())?),
            UNSUPPORTED => match payload.as_slice() {
                &[lowest, highest] => Push::Unsupported { lowest, highest },
                _ => return Err(malformed()),
            },
            other => return Err(ProtocolError::Kind(other)),
        };
        Ok(Some(push))
    }
}

fn frame(version: u8, kind: u8, payload: &[u8]) -> Vec<u8> {
    debug_assert!(payload.len() <= PUSH_BYTES);
    // Records are bounded well below the limit, so that nothing is ever cut here.
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let mut bytes = vec![version, kind];
    bytes.extend(length.to_be_bytes());
    bytes.extend(payload.iter().take(usize::from(length)));
    bytes
}

fn take_frame(
    buffer: &mut Vec<u8>,
    limit: usize,
    versions: RangeInclusive<u8>,
) -> Result<Option<(u8, Vec<u8>)>, ProtocolError> {
    if let Some(&version) = buffer.first()
        && !versions.contains(&version)
    {
        return Err(ProtocolError::Version(version));
    }
    let Some(&[_, kind, high, low]) = buffer.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > limit {
        return Err(ProtocolError::TooLong(length));
    }
    if buffer.len() < HEADER_BYTES + length {
        return Ok(None);
    }
    let payload = buffer.drain(..HEADER_BYTES + length).skip(HEADER_BYTES).collect();
    Ok(Some((kind, payload)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::record::How;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn ended(fenced: bool) -> ExitRecord {
        let survivors = vec![ProcessId { pid: 4711, start_time: 987_654 }];
        ExitRecord { how: How::Exited { code: 3 }, asked: true, fenced, swept: 2, survivors }
    }

    /// What an agent says to a shim of an earlier build, and what that one says.
    #[test]
    fn golden_bytes_of_version_1() {
        let request = |request: Request| request.encode(1).map(|bytes| hex(&bytes));
        assert_eq!(request(Request::Status).as_deref(), Some("01010000"));
        let stop = request(Request::Stop { grace_ms: 30_000 });
        assert_eq!(stop.as_deref(), Some("010200080000000000007530"));
        assert_eq!(request(Request::Contact { boot_ms: 1 }), None, "it has no deadline");
        let id = ProcessId { pid: 4711, start_time: 987_654 };
        let started = b"\x01\x81\0\x0c\0\0\x12\x67\0\0\0\0\0\x0f\x12\x06";
        assert_eq!(Push::take(&mut started.to_vec()), Ok(Some(Push::Started(id))));
        let unsupported = Push::Unsupported { lowest: 1, highest: 1 };
        assert_eq!(Push::take(&mut b"\x01\x83\0\x02\x01\x01".to_vec()), Ok(Some(unsupported)));
        let json = br#"{"version":1,"how":{"exited":{"code":3}},"asked":true,"swept":2,"survivors":[{"pid":4711,"start_time":987654}]}"#;
        let mut bytes = vec![1, 0x82, 0, json.len() as u8];
        bytes.extend(json);
        assert_eq!(Push::take(&mut bytes), Ok(Some(Push::Ended(ended(false)))));
    }

    #[test]
    fn golden_bytes_of_version_2() {
        let request = |request: Request| request.encode(2).map(|bytes| hex(&bytes));
        assert_eq!(request(Request::Status).as_deref(), Some("02010000"));
        let stop = request(Request::Stop { grace_ms: 30_000 });
        assert_eq!(stop.as_deref(), Some("020200080000000000007530"));
        let contact = request(Request::Contact { boot_ms: 30_000 });
        assert_eq!(contact.as_deref(), Some("020300080000000000007530"));
        let id = ProcessId { pid: 4711, start_time: 987_654 };
        assert_eq!(hex(&Push::Started(id).encode()), "0281000c0000126700000000000f1206");
        assert_eq!(hex(&Push::Unsupported { lowest: 1, highest: 2 }.encode()), "028300020102");
        let record = ended(true);
        let json = br#"{"version":1,"how":{"exited":{"code":3}},"asked":true,"fenced":true,"swept":2,"survivors":[{"pid":4711,"start_time":987654}]}"#;
        let mut expected = vec![2, 0x82, 0, json.len() as u8];
        expected.extend(json);
        assert_eq!(Push::Ended(record).encode(), expected);
    }

    #[test]
    fn frames_arrive_in_any_pieces() {
        let pushes = [
            Push::Started(ProcessId { pid: 1, start_time: u64::MAX }),
            Push::Ended(ExitRecord::failed("no such file".to_owned())),
            Push::Unsupported { lowest: 3, highest: 4 },
        ];
        let bytes: Vec<u8> = pushes.iter().flat_map(Push::encode).collect();
        let (mut buffer, mut seen) = (Vec::new(), Vec::new());
        for byte in bytes {
            buffer.push(byte);
            seen.extend(Push::take(&mut buffer).unwrap());
        }
        assert_eq!(seen, pushes);
        assert!(buffer.is_empty());
    }

    #[test]
    fn foreign_bytes_are_errors() {
        let take = |bytes: &[u8]| Request::take(&mut bytes.to_vec());
        assert_eq!(take(&[1]), Err(ProtocolError::Version(1)), "a shim speaks one version");
        assert_eq!(take(&[3]), Err(ProtocolError::Version(3)));
        assert_eq!(take(&[2, 9, 0, 0]), Err(ProtocolError::Kind(9)));
        assert_eq!(take(&[2, 2, 255, 255]), Err(ProtocolError::TooLong(65535)));
        assert_eq!(take(&[2, 2, 0, 1, 0]), Err(ProtocolError::Payload(2)));
        assert_eq!(take(&[2, 3, 0, 0]), Err(ProtocolError::Payload(3)));
        assert_eq!(take(&[2, 1, 0]), Ok(None));
        assert_eq!(Push::take(&mut vec![2, 0x82, 0, 1, b'{']), Err(ProtocolError::Payload(0x82)));
        assert_eq!(Push::take(&mut vec![3]), Err(ProtocolError::Version(3)));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Request::take(&mut bytes.clone());
            let _ = Push::take(&mut bytes.clone());
        }
    }
}
