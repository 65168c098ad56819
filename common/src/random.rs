//! Random bits from the system, for ids and secrets. Never called by a core.

use ring::rand::{SecureRandom, SystemRandom};

/// The system gave no random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random numbers")]
pub struct NoRandom;

/// `N` random bytes, fit for secrets.
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandom> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandom)?;
    Ok(bytes)
}

/// 64 random bits.
pub fn number() -> Result<u64, NoRandom> {
    bytes().map(u64::from_le_bytes)
}
