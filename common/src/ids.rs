//! Names and numbers of things: the one leaf that wire, core, record and view types share.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A text is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {what}: {rule}")]
pub struct InvalidId {
    pub what: &'static str,
    pub text: String,
    pub rule: &'static str,
}

const NAME_RULE: &str = "1 to 64 characters of A-Z a-z 0-9 _ -";

fn check_name(what: &'static str, text: &str) -> Result<(), InvalidId> {
    let ok = (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if ok {
        return Ok(());
    }
    let shown: String = text.chars().take(80).collect();
    Err(InvalidId { what, text: shown, rule: NAME_RULE })
}

/// Defines a newtype over text of `[A-Za-z0-9_-]{1,64}`; decoding checks it again.
macro_rules! name_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks and wraps `text`.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
                let text = text.into();
                check_name($what, &text)?;
                Ok(Self(text))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_id!(
    /// A job; chosen by the client or generated. Also the submission id.
    JobId, "job id"
);
name_id!(
    /// A gang; minted by the coordinator.
    GangId, "gang id"
);
name_id!(
    /// A node; minted by the coordinator at join, carried by the agent's certificate.
    NodeId, "node id"
);

/// UUID of a GPU as NVML spells it (`GPU-...`). Unique over the whole fleet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuId(pub String);

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One node's share of a gang: the Ray head, or a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MemberId {
    Head,
    Rank(u32),
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberId::Head => f.write_str("head"),
            MemberId::Rank(rank) => write!(f, "{rank}"),
        }
    }
}

impl FromStr for MemberId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        if text == "head" {
            return Ok(MemberId::Head);
        }
        text.parse().map(MemberId::Rank).map_err(|_| InvalidId {
            what: "member id",
            text: text.to_owned(),
            rule: "`head` or a rank number",
        })
    }
}

/// Number of a gang's incarnation: the fencing token. Compares as (era, n), so a store that was
/// restored from a backup never speaks with an old number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch {
    pub era: u32,
    pub n: u32,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.era, self.n)
    }
}

impl FromStr for Epoch {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId { what: "epoch", text: text.to_owned(), rule: "`ERA.N`" };
        let (era, n) = text.split_once('.').ok_or_else(invalid)?;
        Ok(Epoch { era: era.parse().map_err(|_| invalid())?, n: n.parse().map_err(|_| invalid())? })
    }
}

/// Number of a node's whole desired state; only grows. Compares as (era, n).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
pub struct Generation {
    pub era: u32,
    pub n: u64,
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.era, self.n)
    }
}

/// One member of one incarnation of a gang: the key of processes, ports, directories and logs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemberKey {
    pub gang: GangId,
    pub epoch: Epoch,
    pub member: MemberId,
}

impl MemberKey {
    /// Value of `GANGLINE_MARK`, which every process of the member inherits.
    pub fn mark(&self) -> String {
        format!("{}:{}:{}", self.gang, self.epoch, self.member)
    }

    /// Name of the member's directories; short, because Ray puts sockets below them.
    pub fn directory_name(&self) -> String {
        format!("{}-{}-{}", self.gang, self.epoch, self.member)
    }
}

impl fmt::Display for MemberKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.mark())
    }
}

impl FromStr for MemberKey {
    type Err = InvalidId;
    /// Parses a mark.
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let mut parts = text.splitn(3, ':');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(gang), Some(epoch), Some(member)) => Ok(MemberKey {
                gang: gang.parse()?,
                epoch: epoch.parse()?,
                member: member.parse()?,
            }),
            _ => {
                Err(InvalidId { what: "mark", text: text.to_owned(), rule: "`GANG:EPOCH:MEMBER`" })
            }
        }
    }
}

/// Environment variable that marks every process of a member.
pub const MARK_VARIABLE: &str = "GANGLINE_MARK";
/// Environment variable that marks every process below an entrypoint (`JOB:ATTEMPT`).
pub const ATTEMPT_MARK_VARIABLE: &str = "GANGLINE_ATTEMPT_MARK";

/// A half-open range of TCP ports leased to one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortBlock {
    pub base: u16,
    pub size: u16,
}

impl PortBlock {
    /// First port after the block; `u32` because a block may end at 65535.
    pub fn end(&self) -> u32 {
        u32::from(self.base) + u32::from(self.size)
    }

    pub fn overlaps(&self, other: &PortBlock) -> bool {
        u32::from(self.base) < other.end() && u32::from(other.base) < self.end()
    }
}

/// Turns random bits into a short id suffix that people can read and type.
pub fn short_suffix(random: u64) -> String {
    // No vowels, no 0/1/l/o: nothing that reads as a word or as another character.
    const ALPHABET: &[u8; 28] = b"23456789bcdfghjkmnpqrstvwxyz";
    let mut rest = random;
    (0..8)
        .map(|_| {
            let index = (rest % 28) as usize;
            rest /= 28;
            char::from(ALPHABET[index])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_round_trip() {
        let key = MemberKey {
            gang: GangId::new("g-7f3k2").unwrap(),
            epoch: Epoch { era: 1, n: 3 },
            member: MemberId::Rank(2),
        };
        assert_eq!(key.mark(), "g-7f3k2:1.3:2");
        assert_eq!(key.mark().parse::<MemberKey>().unwrap(), key);
        assert_eq!(key.directory_name(), "g-7f3k2-1.3-2");
    }

    #[test]
    fn names_are_checked() {
        assert!(JobId::new("../../x").is_err());
        assert!(JobId::new("").is_err());
        assert!(JobId::new("x".repeat(65)).is_err());
        assert!(JobId::new("a\u{1b}[31m").is_err());
        assert!(JobId::new("raysubmit_Ab-1").is_ok());
    }

    #[test]
    fn era_outranks_number() {
        assert!(Epoch { era: 2, n: 1 } > Epoch { era: 1, n: 9 });
        assert!(Generation { era: 2, n: 0 } > Generation { era: 1, n: 99 });
    }

    #[test]
    fn port_blocks_overlap_only_when_they_share_a_port() {
        let block = |base, size| PortBlock { base, size };
        assert!(!block(20000, 256).overlaps(&block(20256, 256)));
        assert!(block(20000, 257).overlaps(&block(20256, 256)));
        assert_eq!(block(65280, 256).end(), 65536);
    }
}
