//! Counters over time: what grew since the last reading, how much in the last minutes, how much is
//! usual. A counter that goes backwards was reset: it begins anew, and nothing is said to have grown.

use std::collections::VecDeque;

use crate::clock::At;
use crate::reading::Counter;
use crate::rule::{HOUR_MS, MINUTE_MS};

/// The longest that minutes are remembered.
pub const MINUTES: u64 = 60;
/// Most events of one kind that are remembered.
pub const MAX_EVENTS: usize = 64;
/// Shortest time that a rate is made of.
const MIN_RATE_MS: u64 = 500;
/// Minutes that are learnt from before anything counts as unusual.
const LEARN_MINUTES: u32 = 30;
/// How much one minute moves what is usual.
const LEARN_WEIGHT: f64 = 1.0 / 60.0;

/// One counter of one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    EccSram,
    EccDram,
    Replays,
    Slowdown,
    LinkCrc(u8),
    LinkErrors(u8),
    Port(Counter),
    /// `port_rcv_errors` and its remote sibling together.
    Receive,
}

impl Series {
    /// Its name in what is saved.
    pub fn name(self) -> String {
        match self {
            Series::EccSram => "ecc-sram".to_owned(),
            Series::EccDram => "ecc-dram".to_owned(),
            Series::Replays => "replays".to_owned(),
            Series::Slowdown => "slowdown".to_owned(),
            Series::LinkCrc(link) => format!("crc:{link}"),
            Series::LinkErrors(link) => format!("link:{link}"),
            Series::Port(counter) => counter.file().to_owned(),
            Series::Receive => "receive".to_owned(),
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "ecc-sram" => return Some(Series::EccSram),
            "ecc-dram" => return Some(Series::EccDram),
            "replays" => return Some(Series::Replays),
            "slowdown" => return Some(Series::Slowdown),
            "receive" => return Some(Series::Receive),
            _ => {}
        }
        if let Some(link) = name.strip_prefix("crc:") {
            return link.parse().ok().map(Series::LinkCrc);
        }
        if let Some(link) = name.strip_prefix("link:") {
            return link.parse().ok().map(Series::LinkErrors);
        }
        Counter::from_file(name).map(Series::Port)
    }
}

/// What a reading of a counter says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// The first one: nothing to compare with.
    First,
    /// Smaller than before: it was reset.
    Reset,
    Grew {
        by: u64,
        /// Milliseconds since the reading before.
        ms: u64,
    },
}

impl Step {
    /// How much it grew, 0 when that is not known.
    pub fn by(self) -> u64 {
        match self {
            Step::Grew { by, .. } => by,
            Step::First | Step::Reset => 0,
        }
    }
}

/// A counter's last value, and its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Baseline {
    pub value: u64,
    pub at: u64,
    /// Where the rate is counted from.
    mark: (u64, u64),
}

impl Baseline {
    pub fn new(value: u64, at: u64) -> Self {
        Baseline { value, at, mark: (value, at) }
    }

    pub fn step(&mut self, value: u64, at: At) -> Step {
        let (before, ms) = (self.value, at.since(self.at));
        self.value = value;
        self.at = at.ms;
        match value.checked_sub(before) {
            Some(by) => Step::Grew { by, ms },
            None => {
                self.mark = (value, at.ms);
                Step::Reset
            }
        }
    }

    /// Growth per second since it was last asked; `None` when that is too short ago.
    pub fn per_second(&mut self) -> Option<f64> {
        let (value, at) = self.mark;
        let ms = self.at.saturating_sub(at);
        if ms < MIN_RATE_MS {
            return None;
        }
        self.mark = (self.value, self.at);
        Some(self.value.saturating_sub(value) as f64 * 1000.0 / ms as f64)
    }
}

/// Sums of the last minutes, those with none left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Minutes {
    /// (minute, sum), growing.
    pub sums: VecDeque<(u64, u64)>,
}

impl Minutes {
    /// Counts what grew in the last `ms`. Of a time longer than the memory only its share counts.
    pub fn add(&mut self, by: u64, ms: u64, at: At) {
        let span = MINUTES * MINUTE_MS;
        let by = if ms > span {
            u64::try_from(u128::from(by) * u128::from(span) / u128::from(ms)).unwrap_or(u64::MAX)
        } else {
            by
        };
        let minute = at.ms / MINUTE_MS;
        while self.sums.front().is_some_and(|(first, _)| first + MINUTES <= minute) {
            self.sums.pop_front();
        }
        if by == 0 {
            return;
        }
        match self.sums.back_mut() {
            Some((last, sum)) if *last >= minute => *sum = sum.saturating_add(by),
            _ => self.sums.push_back((minute, by)),
        }
    }

    /// The sum over the last `minutes`, this one included.
    pub fn sum(&self, minutes: u64, at: At) -> u64 {
        self.last(minutes, at).fold(0, |sum, (_, by)| sum.saturating_add(*by))
    }

    /// In how many of the last `minutes`, this one included, anything was counted.
    pub fn busy(&self, minutes: u64, at: At) -> usize {
        self.last(minutes, at).count()
    }

    fn last(&self, minutes: u64, at: At) -> impl Iterator<Item = &(u64, u64)> {
        let minute = at.ms / MINUTE_MS;
        self.sums.iter().filter(move |(then, _)| then + minutes > minute)
    }
}

/// What grew in the last minute, to the reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastMinute {
    /// (when, by how much), growing.
    grown: VecDeque<(u64, u64)>,
}

impl LastMinute {
    /// Counts a step, and gives the sum of the last 60 s. Of a step that took longer only its share counts.
    pub fn add(&mut self, step: Step, at: At) -> u64 {
        self.grown.retain(|(then, _)| at.since(*then) < MINUTE_MS);
        if let Step::Grew { by, ms } = step
            && by > 0
        {
            let share = u128::from(by) * u128::from(MINUTE_MS) / u128::from(ms.max(MINUTE_MS));
            let share = u64::try_from(share).unwrap_or(u64::MAX);
            // Readings come once a second; of hasty ones the newest are taken together.
            let is_full = self.grown.len() >= MAX_EVENTS;
            match self.grown.back_mut().filter(|_| is_full) {
                Some((then, sum)) => (*then, *sum) = (at.ms, sum.saturating_add(share)),
                None => self.grown.push_back((at.ms, share)),
            }
        }
        self.grown.iter().fold(0, |sum, (_, by)| sum.saturating_add(*by))
    }
}

/// What is usual for a counter, per minute.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Habit {
    minute: u64,
    sum: u64,
    pub usual: f64,
    pub learnt: u32,
}

/// One whole minute of a counter beside what was usual before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MinuteBeside {
    pub sum: u64,
    pub usual: f64,
}

impl MinuteBeside {
    /// Ten times what is usual, and not a handful.
    pub fn is_unusual(self) -> bool {
        const FEW: u64 = 60;
        self.sum >= FEW && self.sum as f64 >= 10.0 * self.usual
    }
}

impl Habit {
    /// From what `usual_thousandths` gave.
    pub fn restored(usual_thousandths: u64, learnt: u32) -> Self {
        Habit { usual: usual_thousandths as f64 / 1000.0, learnt, ..Habit::default() }
    }

    /// What is usual, in thousandths per minute: a whole number, which any file keeps exactly.
    pub fn usual_thousandths(&self) -> u64 {
        (self.usual * 1000.0).round() as u64
    }

    /// Counts, and gives the minute before when this reading is the first of a new one and enough was
    /// learnt. An unusual minute is not learnt from.
    pub fn add(&mut self, by: u64, at: At) -> Option<MinuteBeside> {
        let minute = at.ms / MINUTE_MS;
        let mut whole = None;
        if minute != self.minute {
            // What came before the first reading is nobody's minute.
            if self.minute != 0 {
                let beside = MinuteBeside { sum: self.sum, usual: self.usual };
                let known = self.learnt >= LEARN_MINUTES;
                if !(known && beside.is_unusual()) {
                    let weight = LEARN_WEIGHT.max(1.0 / f64::from(self.learnt.saturating_add(1)));
                    self.usual += (self.sum as f64 - self.usual) * weight;
                    self.learnt = self.learnt.saturating_add(1);
                }
                whole = known.then_some(beside);
            }
            self.minute = minute;
            self.sum = 0;
        }
        self.sum = self.sum.saturating_add(by);
        whole
    }
}

/// Times of events, the oldest forgotten first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Events {
    pub at: VecDeque<u64>,
}

impl Events {
    pub fn push(&mut self, at: At) {
        if self.at.len() >= MAX_EVENTS {
            self.at.pop_front();
        }
        self.at.push_back(at.ms);
    }

    /// How many of the last `hours`.
    pub fn count(&self, hours: u64, at: At) -> usize {
        self.at.iter().filter(|then| at.since(**then) < hours * HOUR_MS).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> At {
        At { ms, wall_ms: 0 }
    }

    #[test]
    fn names_are_read_again() {
        let all = [Series::EccSram, Series::LinkCrc(17), Series::LinkErrors(0), Series::Receive];
        let ports = Counter::ALL.iter().map(|counter| Series::Port(*counter));
        for series in all.into_iter().chain(ports) {
            assert_eq!(Series::from_name(&series.name()), Some(series));
        }
        assert_eq!(Series::from_name("crc:999"), None);
    }

    #[test]
    fn a_counter_that_goes_backwards_is_a_reset() {
        let mut counter = Baseline::new(100, 0);
        assert_eq!(counter.step(103, at(1_000)), Step::Grew { by: 3, ms: 1_000 });
        assert_eq!(counter.per_second(), Some(3.0));
        assert_eq!(counter.step(2, at(2_000)), Step::Reset);
        assert_eq!(counter.step(4, at(3_000)), Step::Grew { by: 2, ms: 1_000 });
        assert_eq!(counter.per_second(), Some(2.0));
        // Two readings at one instant make no rate.
        assert_eq!(counter.step(u64::MAX, at(3_000)).by(), u64::MAX - 4);
        assert_eq!(counter.per_second(), None);
    }

    #[test]
    fn minutes_are_bounded_and_share_out_a_long_silence() {
        let mut minutes = Minutes::default();
        minutes.add(600, 5 * HOUR_MS, at(10 * HOUR_MS));
        assert_eq!(minutes.sum(60, at(10 * HOUR_MS)), 120);
        for minute in 0..500 {
            minutes.add(1, 1, at(11 * HOUR_MS + minute * MINUTE_MS));
        }
        assert_eq!(minutes.sums.len(), 60);
        let now = at(11 * HOUR_MS + 499 * MINUTE_MS);
        assert_eq!((minutes.sum(10, now), minutes.busy(10, now)), (10, 10));
        assert_eq!(minutes.busy(10, at(now.ms + 9 * MINUTE_MS)), 1);
    }

    #[test]
    fn the_last_minute_slides_and_is_bounded() {
        let mut minute = LastMinute::default();
        let grew = |by| Step::Grew { by, ms: 1_000 };
        assert_eq!(minute.add(Step::First, at(0)), 0);
        assert_eq!(minute.add(grew(4), at(58_000)), 4);
        assert_eq!(minute.add(grew(3), at(62_000)), 7);
        assert_eq!(minute.add(grew(0), at(117_999)), 7);
        assert_eq!(minute.add(grew(0), at(118_000)), 3);
        assert_eq!(minute.add(Step::Reset, at(122_000)), 0);
        // An hour of silence, of which a minute counts.
        assert_eq!(minute.add(Step::Grew { by: 120, ms: HOUR_MS }, at(2 * HOUR_MS)), 2);
        for hasty in 0..1_000 {
            minute.add(grew(1), at(3 * HOUR_MS + hasty));
        }
        assert_eq!(minute.add(grew(u64::MAX), at(3 * HOUR_MS + 1_000)), u64::MAX);
        assert_eq!(minute.grown.len(), MAX_EVENTS);
    }

    #[test]
    fn what_is_usual_is_learnt_before_anything_is_unusual() {
        let mut habit = Habit::default();
        let mut unusual = Vec::new();
        for minute in 1..200_u64 {
            let by = if (100..103).contains(&minute) { 5_000 } else { 30 + minute % 3 };
            if let Some(whole) = habit.add(by, at(minute * MINUTE_MS))
                && whole.is_unusual()
            {
                unusual.push(minute);
            }
        }
        assert_eq!(unusual, [101, 102, 103]);
        assert!((30.0..32.0).contains(&habit.usual), "{}", habit.usual);
    }
}
