//! The join token: what a new agent needs to find the right coordinator and to be let in once.
//!
//! `gx1.<base64url SPKI SHA-256 of the CA key>.<token id>.<base64url 256-bit secret>`

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;

/// SHA-256 of a certificate's SubjectPublicKeyInfo.
pub type KeyPin = [u8; 32];

/// A parsed join token. `Debug` hides the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub pin: KeyPin,
    pub id: String,
    pub secret: [u8; 32],
}

/// Why a text is not a join token. Never contains the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a join token ({0}); make one with `gangline node token`")]
pub struct InvalidJoinToken(pub &'static str);

impl FromStr for JoinToken {
    type Err = InvalidJoinToken;

    fn from_str(text: &str) -> Result<Self, InvalidJoinToken> {
        let mut parts = text.trim().split('.');
        if parts.next() != Some("gx1") {
            return Err(InvalidJoinToken("it does not begin with `gx1.`"));
        }
        let (Some(pin), Some(id), Some(secret), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(InvalidJoinToken("it does not have four parts"));
        };
        if id.is_empty() || id.len() > 32 || !id.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(InvalidJoinToken("its id has an unexpected form"));
        }
        Ok(JoinToken {
            pin: decode_32(pin).ok_or(InvalidJoinToken("its key pin is damaged"))?,
            id: id.to_owned(),
            secret: decode_32(secret).ok_or(InvalidJoinToken("its secret is damaged"))?,
        })
    }
}

fn decode_32(text: &str) -> Option<[u8; 32]> {
    BASE64URL_NOPAD.decode(text.as_bytes()).ok().and_then(|bytes| bytes.try_into().ok())
}

impl JoinToken {
    /// The text form, secret included: shown once, at creation.
    pub fn reveal(&self) -> String {
        format!(
            "gx1.{}.{}.{}",
            BASE64URL_NOPAD.encode(&self.pin),
            self.id,
            BASE64URL_NOPAD.encode(&self.secret)
        )
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({}, secret hidden)", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let token = JoinToken { pin: [7; 32], id: "k3x9".into(), secret: [9; 32] };
        let text = token.reveal();
        assert_eq!(text.parse::<JoinToken>().unwrap(), token);
        assert!(!format!("{token:?}").contains(&text[60..]));
        for broken in ["", "gx1", "gx2.a.b.c", &text[..text.len() - 2], &format!("{text}.x")] {
            assert!(broken.parse::<JoinToken>().is_err(), "{broken}");
        }
    }
}
