//! Feeding one target after another, and judging each input.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gangline_simulation::random::Random;
use rustix::time::{ClockId, clock_gettime};

use crate::allocations::counted;
use crate::mutate::mutate;
use crate::targets::{Target, Verdict};

/// Longest processor time for one input.
const SLOW: Duration = Duration::from_secs(1);
/// After this long on the wall an input counts as one that never ends.
const HANGS: Duration = Duration::from_secs(30);
/// Taken inputs that are mutated further, for each target.
const KEPT: usize = 256;
/// Bytes of a bad input that are shown.
const SHOWN: usize = 4096;

/// What feeding one target came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub inputs: u64,
    pub taken: u64,
    /// Most memory at one time, in bytes.
    pub peak: usize,
    /// Most processor time for one input.
    pub slowest: Duration,
}

/// An input that a decoder may not treat so.
#[derive(Debug)]
pub struct Bad {
    pub target: &'static str,
    pub what: String,
    pub input: Vec<u8>,
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.input.get(..SHOWN).unwrap_or(&self.input);
        let text = shown.escape_ascii();
        write!(f, "{}: {}; {} bytes: {text}", self.target, self.what, self.input.len())
    }
}

/// When a run of one target is over.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    Inputs(u64),
    Passed(Duration),
}

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Panics of decoders are told by [`feed`], once, instead of at once on stderr.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        PANIC.with_borrow_mut(|text| *text = info.to_string());
    }));
}

/// Feeds `target` with its seeds, then with mutations; the same seed makes the same inputs.
///
/// # Errors
/// The first input that was treated as none may be.
pub fn feed(target: &mut Target, seed: u64, until: Until) -> Result<Tally, Box<Bad>> {
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    let mut pool = target.seeds.clone();
    for input in target.seeds.clone() {
        if !one(target, &input, &mut tally)? {
            let what = "a seed is refused".to_owned();
            return Err(Box::new(Bad { target: target.name, what, input }));
        }
    }
    let begun = Instant::now();
    let goes_on = |tally: &Tally| match until {
        Until::Inputs(count) => tally.inputs < count,
        Until::Passed(time) => begun.elapsed() < time,
    };
    while goes_on(&tally) {
        let empty = Vec::new();
        let seed = random.pick(&pool).unwrap_or(&empty);
        let other = random.pick(&pool).unwrap_or(&empty);
        let input = mutate(seed, other, target.words, target.limit, &mut random);
        if one(target, &input, &mut tally)? && random.one_in(8) {
            if pool.len() < target.seeds.len() + KEPT {
                pool.push(input);
            } else {
                // The goldens stay.
                let place = random.below(KEPT as u64) as usize + target.seeds.len();
                pool.splice(place..=place, [input]);
            }
        }
    }
    Ok(tally)
}

/// Since when the input is under way, in milliseconds of the process's life; 0 between inputs.
static UNDER_WAY: AtomicU64 = AtomicU64::new(0);

/// Ends the process when an input takes too long: nothing else can be done about it.
pub fn watch() {
    let begun = Instant::now();
    std::thread::spawn(move || {
        let (mut seen, mut since) = (0, begun);
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let number = UNDER_WAY.load(Ordering::Relaxed);
            if number != seen {
                (seen, since) = (number, Instant::now());
            } else if number % 2 == 1 && since.elapsed() > HANGS {
                eprintln!("an input has not been decoded within {HANGS:?}");
                std::process::exit(1);
            }
        }
    });
}

fn one(target: &mut Target, input: &[u8], tally: &mut Tally) -> Result<bool, Box<Bad>> {
    let bad =
        |what: String| Err(Box::new(Bad { target: target.name, what, input: input.to_vec() }));
    let begun = processor_time();
    // Odd while an input is under way.
    UNDER_WAY.fetch_add(1, Ordering::Relaxed);
    let feed = &mut target.feed;
    let (verdict, allocated) = counted(|| catch_unwind(AssertUnwindSafe(|| feed(input))));
    UNDER_WAY.fetch_add(1, Ordering::Relaxed);
    let took = processor_time().saturating_sub(begun);
    tally.inputs += 1;
    tally.peak = tally.peak.max(allocated.peak);
    tally.slowest = tally.slowest.max(took);
    let bound = target.memory.bound(input.len());
    if allocated.peak > bound {
        return bad(format!("{} bytes at one time, at most {bound}", allocated.peak));
    }
    if took > SLOW {
        return bad(format!("it took {took:?}"));
    }
    match verdict {
        Err(_) => bad(PANIC.with_borrow(|text| format!("it panicked: {text}"))),
        Ok(Verdict::Broken(what)) => bad(what),
        Ok(Verdict::Refused) => Ok(false),
        Ok(Verdict::Taken) => {
            tally.taken += 1;
            Ok(true)
        }
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::Memory;

    fn with(feed: impl FnMut(&[u8]) -> Verdict + 'static) -> Result<Tally, Box<Bad>> {
        let mut target = Target {
            name: "planted",
            seeds: vec![b"good".to_vec()],
            words: &[b"bad"],
            limit: 100,
            memory: Memory { fixed: 10_000, per_byte: 10 },
            feed: Box::new(feed),
        };
        super::feed(&mut target, 1, Until::Inputs(20_000))
    }

    /// Each way in which a decoder can be wrong, behind a word that has to be found first.
    #[test]
    fn planted_faults_are_found() {
        quiet_panics();
        let tally = with(|_| Verdict::Taken).unwrap();
        assert_eq!((tally.inputs, tally.taken), (20_000, 20_000));
        let what = |fault: fn()| {
            let found = with(move |input| {
                if input.windows(3).any(|word| word == b"bad") {
                    fault();
                }
                Verdict::Taken
            });
            found.unwrap_err().what
        };
        assert!(what(|| panic!("planted")).contains("planted"));
        let memory = what(|| drop(std::hint::black_box(vec![1_u8; 20_000])));
        assert!(memory.contains("bytes at one time"), "{memory}");
        let slow = what(|| {
            let begun = processor_time();
            while processor_time() < begun + SLOW {}
        });
        assert!(slow.contains("it took"), "{slow}");
        let broken = with(|input| match input.starts_with(b"bad") {
            true => Verdict::Broken("changed".to_owned()),
            false => Verdict::Taken,
        });
        assert_eq!(broken.unwrap_err().what, "changed");
        assert_eq!(with(|_| Verdict::Refused).unwrap_err().what, "a seed is refused");
    }
}
