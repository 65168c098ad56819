//! Histories of small fleets, as they are: records are not encoded here.

use gangline_simulation::campaign;
use gangline_simulation::world::{Length, Settings};

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

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn seeds() {
    if let Some(seed) = number("GANGLINE_SEED") {
        if let Some(step) = number("GANGLINE_STEP") {
            let shown = Settings { shown_from: Some(step), ..settings(seed) };
            drop(campaign::one(shown));
            return;
        }
        if let Err(broken) = campaign::one(settings(seed)) {
            campaign::show(settings(seed), &broken);
            panic!("seed {seed} broke");
        }
        return;
    }
    let seeds = number("GANGLINE_SEEDS").unwrap_or(20);
    match campaign::run(1..=seeds, 2, settings, || {}, |_| {}) {
        Ok(summary) => eprintln!(
            "{} seeds, {} steps, {} s simulated, {:.1?}\n{}",
            summary.seeds,
            summary.steps,
            summary.simulated_ms / 1000,
            summary.took,
            summary.tally
        ),
        Err(broken) => {
            campaign::show(settings(broken.seed), &broken);
            panic!("seed {} broke", broken.seed);
        }
    }
}
