//! Each planted bug is found, and the seed that finds it passes without the bug.

use gangline_simulation::campaign;
use gangline_simulation::planted::{BUGS, Bug};
use gangline_simulation::world::{Length, Settings};

/// Most seeds that are tried for one bug; `cargo soak` tries more. Which seed finds a bug changes with
/// every change of the cores, so none is written down.
const SEEDS: u64 = 500;

fn settings(seed: u64) -> Settings<'static> {
    Settings {
        seed,
        length: Length::Events(10_000),
        nodes: (3, 8),
        codec: &|write| write.clone(),
        deep_every: 16,
        wall_jumps: true,
        reboots: true,
        driver_bug: None,
        shown_from: None,
    }
}

#[test]
fn every_planted_bug_is_found_and_nothing_without_one() {
    let mut missed = Vec::new();
    for (name, bug) in BUGS {
        let with = |seed| Settings { driver_bug: bug.of_driver(), ..settings(seed) };
        Bug::plant(Some(bug));
        let found = (1..=SEEDS).find_map(|seed| campaign::one(with(seed)).err());
        Bug::plant(None);
        let Some(broken) = found else {
            missed.push(name);
            continue;
        };
        let (seed, step) = (broken.seed, broken.step);
        eprintln!("{name}: seed {seed}, event {step}: {:.160}", broken.what);
        if let Err(broken) = campaign::one(settings(seed)) {
            campaign::show(settings(seed), &broken);
            panic!("seed {seed} breaks without a bug: {}", broken.what);
        }
    }
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
