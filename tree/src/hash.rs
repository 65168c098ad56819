//! Names of chunks and trees.

use std::fmt;

use data_encoding::HEXLOWER;

/// What the text form begins with.
const PREFIX: &str = "blake3:";

/// The BLAKE3 of some bytes, by which they are named.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The name of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Hash {
        Hash(*blake3::hash(bytes).as_bytes())
    }

    /// Reads 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Hash> {
        HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok().map(Hash)
    }

    /// 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        HEXLOWER.encode(&self.0)
    }

    /// Reads `blake3:` and 64 digits: how a job spec names a tree.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Hash> {
        text.strip_prefix(PREFIX).and_then(Hash::from_hex)
    }

    /// Whether a text is meant to be one, and no place of somebody's files.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(PREFIX)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_from_their_text() {
        let hash = Hash::of(b"code");
        assert_eq!(Hash::from_text(&hash.to_string()), Some(hash));
        assert_eq!(Hash::from_hex(&hash.hex()), Some(hash));
        let upper = hash.to_string().to_uppercase();
        let short = hash.to_string()[..70].to_owned();
        for wrong in ["", "blake3:", "blake3:00", "sha256:00", ".", &upper, &short, &hash.hex()] {
            assert_eq!(Hash::from_text(wrong), None, "{wrong}");
        }
    }
}
