//! A thousand histories of small fleets; nothing may break, and everything must have happened.
//!
//! `GANGLINE_HISTORIES` is the number of seeds. `GANGLINE_SEED` runs one seed, and shows what
//! happened before it broke; with `GANGLINE_STEP` it shows everything from that step on.

use gangline_simulation::campaign;
use gangline_simulation::world::{Length, Settings};

/// Seeds when nobody says how many.
const SEEDS: u64 = 100;

/// What must have happened at least so often in a hundred histories.
const LEAST: [(&str, u64); 75] = [
    ("agent started with members in its ledger", 500),
    ("agent's driver took a batch", 50),
    ("agent: a live member's assignment changed", 200),
    ("batch of several events", 1_000),
    ("coordinator started again", 300),
    ("entrypoint started", 300),
    ("fault: agent frozen", 100),
    ("fault: agent killed after a write of its ledger", 20),
    ("fault: agent killed amid its effects", 20),
    ("fault: agent killed while it wrote its ledger", 20),
    ("fault: agent killed", 100),
    ("fault: coordinator away for minutes", 5),
    ("fault: coordinator killed after a commit, before anybody was told", 50),
    ("fault: coordinator killed before a commit", 50),
    ("fault: coordinator killed", 100),
    ("fault: coordinator's machine started again", 20),
    ("fault: disk of an agent full", 100),
    ("fault: files of a member cannot be removed", 50),
    ("fault: guest cannot be prepared", 1),
    ("fault: link cut towards the agent", 100),
    ("fault: link cut towards the coordinator", 100),
    ("fault: link cut", 200),
    ("fault: member cannot be started", 5),
    ("fault: node started again", 100),
    ("fault: partition of the fleet", 50),
    ("fault: port of a block bound by a stranger", 50),
    ("fault: power cut", 20),
    ("fault: process cannot be killed", 20),
    ("fault: rank crashed", 50),
    ("fault: Ray head crashed", 20),
    ("fault: second agent with one identity", 100),
    ("fault: slow link", 100),
    ("fault: store restored from an older copy", 10),
    ("fault: wall clock set", 100),
    ("gang placed by its labels", 100),
    ("gang placed in a pool that it asked for", 300),
    ("gang placed without a node that it leaves out", 50),
    ("gang started above its least", 100),
    ("guest swept from a member", 100),
    ("guest's entrypoint started", 100),
    ("job failed in the queue", 100),
    ("job failed with what it was to run after", 200),
    ("job gave back what was lent", 30),
    ("job made room for a higher priority", 100),
    ("job preempted by a drain", 20),
    ("job started after another", 30),
    ("job started at its time", 80),
    ("job that had saved its work made room", 20),
    ("job with a minimum made room", 10),
    ("job: back to PENDING", 100),
    ("job: CANCELLED", 500),
    ("job: FAILED", 200),
    ("job: HELD", 20),
    ("job: SUCCEEDED", 200),
    ("job: TIMEOUT", 50),
    ("member adopted", 100),
    ("member of a lost node given up: fence", 3),
    ("member of a lost node given up: stop_after", 50),
    ("member stopped itself: fence", 15),
    ("member stopped itself: stop_after", 80),
    ("node: lost", 100),
    ("operator: node labelled", 1_000),
    ("operator: release by force", 200),
    ("process ignores SIGTERM", 50),
    ("process started on a node of its own", 500),
    ("raylet ended without its head", 40),
    ("sample in place of a heartbeat", 10_000),
    ("training checkpoint reported", 3_000),
    ("user: dependency refused", 300),
    ("user: hold", 500),
    ("user: priority set", 300),
    ("user: release", 500),
    ("user: request made again", 300),
    ("user: requeue", 500),
    ("user: time limit extended", 300),
];

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

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn no_history_breaks_an_invariant() {
    if let Some(seed) = number("GANGLINE_SEED") {
        let shown_from = number("GANGLINE_STEP");
        if let Err(broken) = campaign::one(Settings { shown_from, ..settings(seed) }) {
            campaign::show(settings(seed), &broken);
            panic!("seed {seed} broke: {}", broken.what);
        }
        return;
    }
    let seeds = number("GANGLINE_HISTORIES").unwrap_or(SEEDS);
    match campaign::run(1..=seeds, 2, settings, || {}, |_| {}) {
        Ok(summary) => {
            eprintln!("{summary}");
            let least = LEAST.map(|(what, least)| (what, least * seeds / 100));
            assert_eq!(summary.tally.missing(&least), Vec::<String>::new());
        }
        Err(broken) => {
            campaign::show(settings(broken.seed), &broken);
            panic!("GANGLINE_SEED={} shows it: {}", broken.seed, broken.what);
        }
    }
}

/// I15: a wall clock that is set changes no decision. Durations over a start of the coordinator's
/// machine have nothing but that clock, so there is none here.
#[test]
fn a_history_is_the_same_whatever_wall_clocks_say() {
    let mut jumps = 0;
    for seed in 1..=20 {
        let settings = Settings { reboots: false, ..settings(seed) };
        let one = campaign::one(settings).unwrap_or_else(|broken| panic!("{broken:?}"));
        let quiet = Settings { wall_jumps: false, ..settings };
        let other = campaign::one(quiet).unwrap_or_else(|broken| panic!("{broken:?}"));
        jumps += one.tally.of("fault: wall clock set");
        assert_eq!(other.tally.of("fault: wall clock set"), 0);
        assert_eq!((one.decisions, one.steps), (other.decisions, other.steps), "seed {seed}");
    }
    assert!(jumps > 20, "{jumps} jumps of a clock");
}
