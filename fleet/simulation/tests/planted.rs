//! Each planted bug is found by a seed, and the same seed passes without it. With `GANGLINE_HUNT`
//! the seeds are searched for anew.

use gangline_simulation::campaign;
use gangline_simulation::planted::{BUGS, Bug};
use gangline_simulation::world::{Length, Settings};

/// The first seed that finds each bug, in the order of [`BUGS`].
const FOUND_BY: [u64; BUGS.len()] = [0; BUGS.len()];
/// A bug that no seed up to this finds is one that the simulation does not see.
const SEEDS: u64 = 2_000;

fn settings(seed: u64) -> Settings<'static> {
    Settings {
        seed,
        length: Length::Events(10_000),
        nodes: (3, 8),
        codec: &|write| write.clone(),
        deep_every: 64,
        wall_jumps: true,
        reboots: true,
        driver_bug: None,
        shown_from: None,
    }
}

fn with(bug: Bug, seed: u64) -> Settings<'static> {
    Settings { driver_bug: bug.of_driver(), ..settings(seed) }
}

#[test]
fn every_planted_bug_is_found_by_its_seed() {
    if std::env::var_os("GANGLINE_HUNT").is_some() {
        return hunt();
    }
    for ((name, bug), seed) in BUGS.into_iter().zip(FOUND_BY) {
        Bug::plant(Some(bug));
        let found = campaign::one(with(bug, seed));
        Bug::plant(None);
        let broken = found.expect_err(name);
        eprintln!("{name}: seed {seed}, step {}: {}", broken.step, broken.what);
        if let Err(broken) = campaign::one(settings(seed)) {
            campaign::show(settings(seed), &broken);
            panic!("seed {seed} breaks without a bug: {}", broken.what);
        }
    }
}

fn hunt() {
    let mut missed = Vec::new();
    for (name, bug) in BUGS {
        Bug::plant(Some(bug));
        let found = (1..=SEEDS).find_map(|seed| campaign::one(with(bug, seed)).err());
        match found {
            Some(broken) => {
                eprintln!("{name}: seed {}, step {}: {}", broken.seed, broken.step, broken.what);
            }
            None => missed.push(name),
        }
    }
    Bug::plant(None);
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
