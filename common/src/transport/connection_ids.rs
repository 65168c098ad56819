//! The ids by which a server knows its connections: 64 bits that no other one has, and a mark that
//! tells the server's own ids from foreign ones, over restarts too.
//!
//! The library's generator has 24 random bits: among the ids of a thousand connections one dial in
//! about two thousand meets one that is taken, and hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use ring::hmac;

/// Bytes of the id proper, and of its mark.
const HALF: usize = 8;

/// Makes connection ids; see the top of this file.
#[derive(Clone)]
pub struct MarkedIds {
    /// For the marks; the same after a restart.
    mark: hmac::Key,
    /// For the ids: new in each process, so that no restarted server repeats one.
    seed: hmac::Key,
    made: Arc<AtomicU64>,
}

impl MarkedIds {
    /// `secret` is the same after a restart, `seed` is not.
    pub fn new(secret: &[u8], seed: [u8; 32]) -> Self {
        let mark = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let seed = hmac::Key::new(hmac::HMAC_SHA256, &seed);
        MarkedIds { mark, seed, made: Arc::default() }
    }

    fn mark_of(&self, id: &[u8]) -> [u8; HALF] {
        first(&hmac::sign(&self.mark, id))
    }
}

fn first(tag: &hmac::Tag) -> [u8; HALF] {
    let mut half = [0; HALF];
    for (to, from) in half.iter_mut().zip(tag.as_ref()) {
        *to = *from;
    }
    half
}

impl ConnectionIdGenerator for MarkedIds {
    fn generate_cid(&mut self) -> ConnectionId {
        // Numbers do not repeat, and without the seed nobody tells which come from one connection.
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let id = first(&hmac::sign(&self.seed, &number.to_le_bytes()));
        ConnectionId::new(&[id, self.mark_of(&id)].concat())
    }

    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        match cid.split_at_checked(HALF) {
            Some((id, mark)) if mark == self.mark_of(id) => Ok(()),
            Some(_) | None => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        2 * HALF
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_do_not_repeat_and_are_known_after_a_restart() {
        let mut before = MarkedIds::new(b"secret", [1; 32]);
        let after = MarkedIds::new(b"secret", [2; 32]);
        let stranger = MarkedIds::new(b"other", [1; 32]);
        let mut twin = before.clone();
        let ids: Vec<ConnectionId> = (0..50_000)
            .map(|n| if n % 2 == 0 { before.generate_cid() } else { twin.generate_cid() })
            .collect();
        // Of 50,000 ids with 24 random bits some 75 would be taken already.
        assert_eq!(ids.iter().map(|id| id.to_vec()).collect::<BTreeSet<_>>().len(), ids.len());
        for id in ids.iter().take(100) {
            assert_eq!(id.len(), before.cid_len());
            assert!(after.validate(id).is_ok() && stranger.validate(id).is_err());
        }
        assert!(after.validate(&ConnectionId::new(&[7; 5])).is_err(), "a short one");
    }
}
