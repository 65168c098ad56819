//! Which fault comes next, from a seed.

use std::time::Duration;

use gangline_simulation::random::Random;

use crate::recovery::Fault;

/// Longest moment from the training checkpoint to the fault, in milliseconds.
const MOMENT_MS: u64 = 2000;
/// For how long a killed agent or coordinator is away, in milliseconds.
const AWAY_MS: (u64, u64) = (200, 3000);
/// For how long a node is cut off, in milliseconds: Ray takes it for dead after 35 s.
const CUT_MS: (u64, u64) = (2000, 12_000);

/// What is done to a training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Worker,
    Raylet,
    RayHead,
    Xid,
    Agent,
    Coordinator,
    /// All packets to and from a node are dropped for a while.
    Cut,
}

impl Kind {
    /// How often each kind comes in twenty.
    pub const DECK: [(Kind, usize); 7] = [
        (Kind::Worker, 4),
        (Kind::Raylet, 3),
        (Kind::RayHead, 2),
        (Kind::Xid, 3),
        (Kind::Agent, 3),
        (Kind::Coordinator, 2),
        (Kind::Cut, 3),
    ];

    pub fn word(self) -> &'static str {
        match self {
            Kind::Agent => "agent killed",
            Kind::Coordinator => "coordinator killed",
            Kind::Cut => "node cut off",
            Kind::Worker => Fault::WorkerKilled.name(),
            Kind::Raylet => Fault::RayletKilled.name(),
            Kind::RayHead => Fault::HeadKilled.name(),
            Kind::Xid => Fault::Xid.name(),
        }
    }

    /// The fault, when it ends an attempt for certain.
    pub fn fatal(self) -> Option<Fault> {
        match self {
            Kind::Worker => Some(Fault::WorkerKilled),
            Kind::Raylet => Some(Fault::RayletKilled),
            Kind::RayHead => Some(Fault::HeadKilled),
            Kind::Xid => Some(Fault::Xid),
            Kind::Agent | Kind::Coordinator | Kind::Cut => None,
        }
    }
}

/// A fault as it is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// Counted from 1.
    pub number: u32,
    pub kind: Kind,
    /// The rank that it is about.
    pub rank: u32,
    /// From the training checkpoint to the fault.
    pub moment: Duration,
    /// How long what is taken away stays away.
    pub away: Duration,
}

/// The faults of one soak: a deck of cards that is shuffled again when all are drawn.
#[derive(Debug)]
pub struct Plan {
    random: Random,
    deck: Vec<(Kind, usize)>,
    cards: Vec<Kind>,
    drawn: u32,
    faults: u32,
    ranks: u32,
}

impl Plan {
    /// `faults` of them, each about one of `ranks` ranks.
    pub fn new(seed: u64, deck: Vec<(Kind, usize)>, faults: u32, ranks: u32) -> Plan {
        Plan { random: Random::new(seed), deck, cards: Vec::new(), drawn: 0, faults, ranks }
    }

    /// The next fault; none when there were enough.
    pub fn draw(&mut self) -> Option<Order> {
        if self.drawn >= self.faults {
            return None;
        }
        if self.cards.is_empty() {
            let deck = self.deck.iter();
            self.cards = deck.flat_map(|(kind, count)| vec![*kind; *count]).collect();
        }
        let card = self.random.below(self.cards.len() as u64);
        let card = usize::try_from(card).ok().filter(|card| *card < self.cards.len())?;
        let kind = self.cards.swap_remove(card);
        let (low, high) = if kind == Kind::Cut { CUT_MS } else { AWAY_MS };
        self.drawn += 1;
        Some(Order {
            number: self.drawn,
            kind,
            rank: u32::try_from(self.random.below(u64::from(self.ranks))).ok()?,
            moment: Duration::from_millis(self.random.below(MOMENT_MS)),
            away: Duration::from_millis(self.random.between(low, high)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_the_whole_plan_and_every_kind_comes() {
        let drawn = |seed| -> Vec<_> {
            let mut plan = Plan::new(seed, Kind::DECK.to_vec(), 30, 2);
            std::iter::from_fn(|| plan.draw()).map(|o| (o.kind, o.rank, o.moment)).collect()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        assert_eq!(drawn(1).len(), 30);
        for (kind, count) in Kind::DECK {
            let first = &drawn(1)[..20];
            assert_eq!(first.iter().filter(|(known, ..)| *known == kind).count(), count);
        }
    }
}
