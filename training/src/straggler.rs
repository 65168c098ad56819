//! Which rank of a gang is slower than the others, and has been for long: a decision about given
//! readings and times. A rank is only spoken of when it stands far outside of what the others differ
//! by among themselves, in every round, and few do; what is left of a gang that falls into halves is
//! no straggler.

use std::collections::{BTreeMap, BTreeSet};

/// Fewer ranks than this do not tell which of them is odd.
const LEAST_RANKS: usize = 3;
/// One in so many may be slow at a time, and one at least.
const SHARE: usize = 8;
/// A slow rank is this many times farther from the others than they are from each other.
const APART: f64 = 4.0;
/// A step takes this many times as long.
const STEP_FACTOR: f64 = 1.25;
/// A step is longer by this, in milliseconds: looks are a second apart.
const STEP_LEAST_MS: f64 = 50.0;
/// The clock of a busy GPU is below this share of the others'.
const CLOCK_SHARE: f64 = 0.85;
/// A GPU is used by this many percent of the time less.
const UTILIZATION_POINTS: f64 = 25.0;
/// GPUs that are used less than this, in percent, are not compared.
const BUSY: f64 = 50.0;
/// Values that agree are taken to differ by this share all the same.
const SLACK: f64 = 0.01;
/// Rounds in a row that make a word, however far they are apart.
const LEAST_ROUNDS: u32 = 4;
/// Largest factor by which a rank is given more time that was no straggler any more after a word.
const MOST_PATIENCE: u64 = 8;

/// What was read of one rank of late.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RankReading {
    /// Usual time of a step in milliseconds, where the rank says steps.
    pub step_ms: Option<f64>,
    /// Mean use of its least used GPU, in percent.
    pub utilization: Option<f64>,
    /// Mean clock of its slowest GPU in MHz; only where all GPUs of the gang are of one model.
    pub clock_mhz: Option<f64>,
}

/// What tells a slow rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sign {
    StepTime,
    Clock,
    Utilization,
}

/// A rank that is slower than the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slow {
    pub rank: u32,
    pub sign: Sign,
    /// Its own, and what the others have in the middle: milliseconds, MHz or percent.
    pub value: f64,
    pub usual: f64,
    pub others: usize,
    pub since_ms: u64,
}

/// What is to be said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Word {
    Slow(Slow),
    /// It has been as fast as the others for as long as it took to say that it is not.
    Over {
        rank: u32,
    },
}

/// A rank under suspicion by one sign.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    slow: Slow,
    rounds: u32,
    /// When it was last seen to be slow.
    last_ms: u64,
    told: bool,
}

/// The watch over the ranks of one attempt. Times are milliseconds of one clock that does not jump.
#[derive(Debug, Clone)]
pub struct Stragglers {
    suspects: BTreeMap<(u32, Sign), Suspect>,
    patience: u64,
}

impl Default for Stragglers {
    fn default() -> Self {
        Stragglers { suspects: BTreeMap::new(), patience: 1 }
    }
}

impl Stragglers {
    /// Looks at one round of readings, of all ranks. A rank that has been slow in each of them for
    /// `after_ms` is spoken of once.
    pub fn round(
        &mut self,
        now_ms: u64,
        after_ms: u64,
        ranks: &BTreeMap<u32, RankReading>,
    ) -> Vec<Word> {
        let after_ms = after_ms.saturating_mul(self.patience);
        let mut words = Vec::new();
        let found = slow(ranks, now_ms);
        for slow in &found {
            let new = Suspect { slow: *slow, rounds: 0, last_ms: now_ms, told: false };
            let suspect = self.suspects.entry((slow.rank, slow.sign)).or_insert(new);
            let since_ms = suspect.slow.since_ms;
            suspect.slow = Slow { since_ms, ..*slow };
            suspect.rounds = suspect.rounds.saturating_add(1);
            suspect.last_ms = now_ms;
        }
        let seen: BTreeSet<_> = found.iter().map(|slow| (slow.rank, slow.sign)).collect();
        let mut over = Vec::new();
        self.suspects.retain(|key, suspect| {
            let is_over = now_ms.saturating_sub(suspect.last_ms) >= after_ms;
            if suspect.told && is_over {
                over.push(key.0);
            }
            // One that was not told of begins anew after any round without it.
            seen.contains(key) || (suspect.told && !is_over)
        });
        for rank in over {
            if !self.suspects.values().any(|suspect| suspect.told && suspect.slow.rank == rank) {
                words.push(Word::Over { rank });
                self.patience = self.patience.saturating_mul(2).min(MOST_PATIENCE);
            }
        }
        let told: BTreeSet<u32> = self.told().map(|slow| slow.rank).collect();
        for suspect in self.suspects.values_mut().filter(|suspect| !suspect.told) {
            let long = now_ms.saturating_sub(suspect.slow.since_ms) >= after_ms;
            if long && suspect.rounds >= LEAST_ROUNDS {
                suspect.told = true;
                // Its second sign says nothing new.
                if !told.contains(&suspect.slow.rank) {
                    words.push(Word::Slow(suspect.slow));
                }
            }
        }
        words
    }

    /// The ranks that were spoken of and are still slow, by their signs.
    pub fn told(&self) -> impl Iterator<Item = Slow> + '_ {
        self.suspects.values().filter(|suspect| suspect.told).map(|suspect| suspect.slow)
    }
}

/// Who stands out in one round. A sign that not every rank has says nothing.
fn slow(ranks: &BTreeMap<u32, RankReading>, now_ms: u64) -> Vec<Slow> {
    let mut found = Vec::new();
    if ranks.len() < LEAST_RANKS {
        return found;
    }
    let busy = ranks.values().all(|of| of.utilization.is_some_and(|used| used >= BUSY));
    for sign in [Sign::StepTime, Sign::Clock, Sign::Utilization] {
        let value = |of: &RankReading| match sign {
            Sign::StepTime => of.step_ms,
            Sign::Clock => of.clock_mhz.filter(|_| busy),
            Sign::Utilization => of.utilization,
        };
        let values: Vec<(u32, f64)> = ranks
            .iter()
            .filter_map(|(rank, of)| Some((*rank, value(of).filter(|v| v.is_finite())?)))
            .collect();
        if values.len() == ranks.len() {
            found.extend(outside(sign, &values).into_iter().map(|(rank, value, usual)| Slow {
                rank,
                sign,
                value,
                usual,
                others: values.len() - 1,
                since_ms: now_ms,
            }));
        }
    }
    found
}

/// The few that are slower than the others by `sign`, each with its value and the usual one.
fn outside(sign: Sign, values: &[(u32, f64)]) -> Vec<(u32, f64, f64)> {
    let few = (values.len() / SHARE).max(1);
    // By how much each is slower than none.
    let slower = |value: f64| if sign == Sign::StepTime { value } else { -value };
    let mut order: Vec<(u32, f64)> = values.to_vec();
    order.sort_by(|(_, a), (_, b)| slower(*a).total_cmp(&slower(*b)));
    // What the others are: all but the few slowest.
    let Some((others, last)) = order.split_at_checked(order.len().saturating_sub(few)) else {
        return Vec::new();
    };
    let (Some((_, fastest)), Some((_, slowest))) = (others.first(), others.last()) else {
        return Vec::new();
    };
    let Some((_, usual)) = others.get(others.len() / 2).copied() else { return Vec::new() };
    let spread = (fastest - slowest).abs().max(usual.abs() * SLACK);
    let stands_out = |value: f64| {
        let far = match sign {
            Sign::StepTime => {
                value >= usual * STEP_FACTOR && value - usual >= STEP_LEAST_MS && usual > 0.0
            }
            Sign::Clock => value <= usual * CLOCK_SHARE,
            Sign::Utilization => usual >= BUSY && usual - value >= UTILIZATION_POINTS,
        };
        far && (value - usual).abs() >= APART * spread
    };
    let apart = last.iter().filter(|(_, value)| stands_out(*value));
    apart.map(|(rank, value)| (*rank, *value, usual)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1000;
    const AFTER: u64 = 240 * SECOND;

    fn steps(times: &[f64]) -> BTreeMap<u32, RankReading> {
        let reading = |ms: &f64| RankReading { step_ms: Some(*ms), ..RankReading::default() };
        (0..).zip(times.iter().map(reading)).collect()
    }

    fn gpus(readings: &[(f64, f64)]) -> BTreeMap<u32, RankReading> {
        let reading = |(used, clock): &(f64, f64)| RankReading {
            step_ms: None,
            utilization: Some(*used),
            clock_mhz: Some(*clock),
        };
        (0..).zip(readings.iter().map(reading)).collect()
    }

    /// What is said at rounds of ten seconds from `from` to `to`, with its second.
    fn said(
        stragglers: &mut Stragglers,
        seconds: std::ops::Range<u64>,
        readings: &BTreeMap<u32, RankReading>,
    ) -> Vec<(u64, Word)> {
        let rounds = seconds.step_by(10);
        rounds
            .flat_map(|second| {
                let words = stragglers.round(second * SECOND, AFTER, readings);
                words.into_iter().map(move |word| (second, word))
            })
            .collect()
    }

    #[test]
    fn a_slow_rank_is_told_once_after_four_minutes_and_when_it_is_over() {
        let mut stragglers = Stragglers::default();
        let slow = steps(&[1000.0, 1010.0, 995.0, 1480.0]);
        let words = said(&mut stragglers, 0..600, &slow);
        let expected = Slow {
            rank: 3,
            sign: Sign::StepTime,
            value: 1480.0,
            usual: 1000.0,
            others: 3,
            since_ms: 0,
        };
        assert_eq!(words, [(240, Word::Slow(expected))]);
        assert_eq!(stragglers.told().map(|slow| slow.rank).collect::<Vec<_>>(), [3]);
        let even = steps(&[1000.0, 1010.0, 995.0, 1005.0]);
        assert_eq!(said(&mut stragglers, 600..1000, &even), [(830, Word::Over { rank: 3 })]);
        assert_eq!(stragglers.told().count(), 0);
        // The next time it is given twice as long.
        let words = said(&mut stragglers, 1000..1600, &slow);
        assert!(matches!(words.as_slice(), [(1480, Word::Slow(_))]), "{words:?}");
    }

    #[test]
    fn one_round_without_it_begins_anew() {
        let mut stragglers = Stragglers::default();
        let (slow, even) = (steps(&[100.0, 100.0, 100.0, 200.0]), steps(&[100.0; 4]));
        for start in (0..2000).step_by(200) {
            assert_eq!(said(&mut stragglers, start..start + 190, &slow), []);
            assert_eq!(said(&mut stragglers, start + 190..start + 200, &even), []);
        }
    }

    #[test]
    fn gpus_tell_by_their_clock_or_their_use() {
        let mut hot = vec![(99.0, 1980.0); 7];
        hot.push((98.0, 1200.0));
        let words = said(&mut Stragglers::default(), 0..300, &gpus(&hot));
        assert!(
            matches!(
                words.as_slice(),
                [(240, Word::Slow(Slow { rank: 7, sign: Sign::Clock, .. }))]
            ),
            "{words:?}"
        );
        let starved = [(95.0, 1900.0), (96.0, 1900.0), (41.0, 1900.0), (95.0, 1900.0)];
        let words = said(&mut Stragglers::default(), 0..300, &gpus(&starved));
        let expected = |slow: &Slow| slow.rank == 2 && slow.sign == Sign::Utilization;
        assert!(matches!(words.as_slice(), [(240, Word::Slow(slow))] if expected(slow)));
        // Idle GPUs save power as they like, and low use is no sign among the idle.
        let idle = [(3.0, 1980.0), (2.0, 345.0), (0.0, 1980.0), (1.0, 1980.0)];
        assert_eq!(said(&mut Stragglers::default(), 0..900, &gpus(&idle)), []);
    }

    #[test]
    fn who_cannot_be_told_apart_is_not_named() {
        for readings in [
            // Two do not tell; halves are no stragglers; the others differ as much among themselves.
            steps(&[100.0, 300.0]),
            steps(&[100.0, 100.0, 300.0, 300.0]),
            steps(&[100.0, 200.0, 300.0, 420.0]),
            steps(&[0.0, 0.0, 0.0, 40.0]),
            gpus(&[(60.0, 1900.0), (75.0, 1900.0), (90.0, 1900.0), (45.0, 1900.0)]),
        ] {
            assert_eq!(said(&mut Stragglers::default(), 0..3600, &readings), [], "{readings:?}");
        }
        // One rank whose steps nobody reads leaves nobody to compare.
        let mut some = steps(&[100.0, 100.0, 100.0, 300.0]);
        some.insert(4, RankReading::default());
        assert_eq!(said(&mut Stragglers::default(), 0..3600, &some), []);
    }

    #[test]
    fn of_many_ranks_a_few_may_be_slow() {
        let mut times = vec![1000.0; 32];
        (times[4], times[17]) = (1600.0, 1500.0);
        let words = said(&mut Stragglers::default(), 0..300, &steps(&times));
        let ranks: Vec<u32> = words
            .iter()
            .map(|(_, word)| match word {
                Word::Slow(slow) => slow.rank,
                Word::Over { rank } => *rank,
            })
            .collect();
        assert_eq!(ranks, [4, 17]);
    }

    proptest! {
        /// Ranks that differ by noise, as much as a fifth to either side, are never told of.
        #[test]
        fn noise_is_no_straggler(
            rounds in proptest::collection::vec(
                proptest::collection::vec(0.8..1.2_f64, 16), 60..120),
            usual in 20.0..60_000.0_f64,
        ) {
            let mut stragglers = Stragglers::default();
            for (round, noise) in rounds.iter().enumerate() {
                let times: Vec<f64> = noise.iter().map(|factor| factor * usual).collect();
                let words = stragglers.round(round as u64 * 10 * SECOND, AFTER, &steps(&times));
                prop_assert!(words.is_empty(), "{words:?}");
            }
        }
    }
}
