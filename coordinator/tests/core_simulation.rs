//! Seeded random histories: faults in any order, every invariant after every step, then healing.

mod support;

use std::sync::Arc;

use gangline_common::time::wall_text;
use gangline_coordinator::core::controls::Control;
use gangline_coordinator::core::effect::{Answer, Write};
use gangline_coordinator::core::event::EntrypointFact;
use gangline_coordinator::core::gang::{EndHow, Phase};
use gangline_coordinator::core::job::{Job, JobState, Launcher};
use gangline_coordinator::core::maintenance::Maintenance;
use gangline_simulation::campaign;
use gangline_simulation::world::{Length, Settings};
use support::{Fleet, ended};

/// A small generator (xorshift), so that a seed is the whole story.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

const NAMES: [&str; 4] = ["a", "b", "c", "h"];

/// What happened in a history, so that one that tests nothing shows.
#[derive(Default)]
struct Tally {
    deleted: u32,
    guests: Guests,
    controls: Controls,
}

/// What became of jobs that somebody controlled or that waited for something.
#[derive(Default)]
struct Controls {
    requeued: u32,
    waited_too_long: u32,
    failed_with_another: u32,
    waited_for_a_success: u32,
}

impl Controls {
    fn of(fleet: &Fleet) -> Self {
        let count = |text: &str| {
            let has = |job: &&Arc<Job>| job.history.iter().any(|entry| entry.text.contains(text));
            u32::try_from(fleet.core.jobs().filter(has).count()).unwrap()
        };
        Controls {
            requeued: count("requeued by alice"),
            waited_too_long: count("queue timeout"),
            failed_with_another: count("which it was to run after"),
            waited_for_a_success: count("has succeeded"),
        }
    }
}

#[derive(Default)]
struct Guests {
    submitted: u32,
    ran: u32,
}

fn history(seed: u64, events: u32) -> Tally {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut fleet = Fleet::new();
    for name in NAMES {
        fleet.add_node(name, if name == "h" { 0 } else { 4 }, name == "h");
    }
    let mut jobs: Vec<String> = Vec::new();
    let (mut submitted, mut deleted) = (0, 0);
    let mut guests = Guests::default();
    // Half of the histories begin with a cluster that stands.
    if seed.is_multiple_of(2) {
        let spec = "{kind: cluster, name: c, resources: {nnodes: 2, gpus_per_node: 3}}";
        fleet.submit("c0", spec);
        fleet.settle();
        jobs.push("c0".to_owned());
    }
    for _ in 0..events {
        let name = NAMES[random.below(4) as usize];
        match random.below(16) {
            0 if jobs.len() < 60 && random.below(4) > 0 => {
                submitted += 1;
                let id = format!("j{submitted}");
                let nodes = 1 + random.below(3);
                let gpus = random.below(5);
                let launcher = ["ray", "command"][random.below(2) as usize];
                if random.below(5) == 0 {
                    let idle = ["", ", idle_stop: 20s"][random.below(2) as usize];
                    let spec = format!(
                        "{{kind: cluster, name: c, resources: {{nnodes: {nodes}, \
                         gpus_per_node: {gpus}}}{idle}}}"
                    );
                    fleet.submit(&id, &spec);
                    jobs.push(id);
                    continue;
                }
                if random.below(2) == 0 {
                    let spec = format!(
                        "{{name: x, cluster: c, resources: {{nnodes: 1, \
                         gpus_per_node: {}}}, command: [x]}}",
                        gpus.min(2)
                    );
                    if matches!(fleet.submit(&id, &spec), Answer::Submitted { .. }) {
                        jobs.push(id);
                        guests.submitted += 1;
                        // Undisturbed now and then, or few would ever run.
                        if random.below(2) == 0 {
                            fleet.settle();
                        }
                    }
                    continue;
                }
                let limit = ["", ", timeout: 5s"][random.below(2) as usize];
                let queue = queue_of(&fleet, &jobs, &mut random);
                fleet.submit(
                    &id,
                    &format!(
                        "{{name: x, resources: {{nnodes: {nodes}, gpus_per_node: {gpus}}}, \
                         launcher: {{type: {launcher}}}, command: [x]{limit}{queue}}}"
                    ),
                );
                jobs.push(id);
                // Undisturbed now and then, as above.
                if let Some(other) = queue.strip_prefix(", queue: {after: [")
                    && random.below(2) == 0
                {
                    fleet.settle();
                    fleet.exit_ranks(other.trim_end_matches("]}"), 0);
                }
            }
            0 => {
                let wanted = match random.below(4) {
                    0 => Maintenance::Cordon { why: "test".into() },
                    1 => Maintenance::Drain { why: "test".into(), deadline_ms: None },
                    2 => Maintenance::Drain { why: "test".into(), deadline_ms: Some(3_000) },
                    _ => Maintenance::Resume,
                };
                fleet.maintain(name, wanted);
            }
            1 if !jobs.is_empty() && random.below(4) == 0 => {
                let index = random.below(jobs.len() as u64) as usize;
                let id = jobs[index].clone();
                if random.below(3) > 0 {
                    fleet.stop(&id);
                } else if matches!(fleet.delete(&id), Answer::Deleted { .. }) {
                    jobs.remove(index);
                    deleted += 1;
                }
            }
            1 if !jobs.is_empty() => control_one(&mut fleet, &jobs, name, &mut random),
            2..=5 => fleet.deliver(name),
            6 | 7 => fleet.agents.get_mut(name).unwrap().run_processes(),
            8 | 9 => fleet.report(name),
            10 => end_one(&mut fleet, name, &mut random),
            11 => fleet.disconnect(name),
            12 => {
                if fleet.session(name).is_none() {
                    fleet.connect(name);
                }
            }
            13 => fleet.heartbeat(name),
            14 => {
                let ms = random.below(5_000);
                fleet.wait_ms(ms);
            }
            _ => entrypoints_move(&mut fleet, &jobs, &mut random),
        }
    }
    let ran = |id: &&String| {
        let job = fleet.job(id);
        job.cluster.is_some() && job.started.is_some()
    };
    guests.ran = jobs.iter().filter(ran).count() as u32;
    let controls = Controls::of(&fleet);
    heal(&mut fleet, &jobs, seed);
    Tally { deleted, guests, controls }
}

/// What a job waits for: nothing, its release, a time, or a job that has not ended.
fn queue_of(fleet: &Fleet, jobs: &[String], random: &mut Random) -> String {
    let field = match random.below(8) {
        0 => "hold: true".to_owned(),
        1 => "max_wait: 10s".to_owned(),
        2 => {
            let at = fleet.now.wall_ms + random.below(30_000);
            format!("not_before: '{}', max_wait: 10s", wall_text(at))
        }
        3..=5 => {
            let fits = |id: &&String| {
                let job = fleet.job(id);
                !job.is_cluster() && !job.state.is_terminal()
            };
            // One that runs may succeed; few others ever do.
            let runs = |id: &&String| {
                let job = fleet.job(id);
                job.request.launcher == Launcher::Command
                    && matches!(job.state, JobState::Starting | JobState::Running)
            };
            let other = jobs.iter().filter(fits).find(runs).or(jobs.iter().rfind(fits));
            match other {
                Some(id) => format!("after: [{id}]"),
                None => return String::new(),
            }
        }
        _ => return String::new(),
    };
    format!(", queue: {{{field}}}")
}

/// Somebody holds, releases, requeues or changes a job; not all of them can be.
fn control_one(fleet: &mut Fleet, jobs: &[String], name: &str, random: &mut Random) {
    let Some(id) = jobs.get(random.below(jobs.len() as u64) as usize) else { return };
    let nodes = [Vec::new(), vec![name.to_owned()]];
    let control = match random.below(6) {
        0 => Control::Hold { why: "test".into() },
        1 | 2 => Control::Release,
        3 => Control::Requeue {
            why: String::new(),
            attempt: None,
            exclude_nodes: nodes[usize::from(random.below(4) == 0)].clone(),
        },
        4 => Control::SetPriority { priority: random.below(76) as u8 },
        _ => Control::Extend { timeout_ms: 5_000 + random.below(10_000) },
    };
    fleet.control(id, control);
}

fn end_one(fleet: &mut Fleet, name: &str, random: &mut Random) {
    let agent = fleet.agents.get_mut(name).unwrap();
    let running = agent.members.iter_mut().find(|(_, phase)| phase.holds_resources());
    if let Some((_, phase)) = running {
        let how = match random.below(4) {
            0 => EndHow::Exited { code: 1 },
            1 => EndHow::Signalled { signal: 9 },
            2 if *phase == Phase::Starting => {
                EndHow::Refused { reason: "busy".into(), busy_port: Some(20_001) }
            }
            _ => EndHow::Exited { code: 0 },
        };
        *phase = ended(how, false);
    }
}

fn entrypoints_move(fleet: &mut Fleet, jobs: &[String], random: &mut Random) {
    // Those that start more often than others: their facts are of use.
    let starting: Vec<&String> =
        jobs.iter().filter(|id| fleet.state(id) == JobState::Starting).collect();
    let some = match starting.is_empty() || random.below(3) == 0 {
        true => jobs.get(random.below(jobs.len().max(1) as u64) as usize),
        false => starting.get(random.below(starting.len() as u64) as usize).copied(),
    };
    if let Some(id) = some {
        let job = fleet.job(id);
        let operation = job.operation(job.attempts);
        let fact = match random.below(3) {
            0 => EntrypointFact::Running,
            1 => EntrypointFact::Succeeded,
            _ => EntrypointFact::Failed { cause: "exit 1".into() },
        };
        for agent in fleet.agents.values_mut() {
            agent.entrypoints.entry(operation.clone()).or_insert(fact.clone());
        }
    }
}

/// I18-I20: with faults gone and every job stopped, every job ends and nothing runs.
fn heal(fleet: &mut Fleet, jobs: &[String], seed: u64) {
    for name in NAMES {
        if fleet.session(name).is_none() {
            fleet.connect(name);
        }
    }
    for name in NAMES {
        fleet.maintain(name, Maintenance::Resume);
    }
    for id in jobs {
        fleet.stop(id);
    }
    for _ in 0..5 {
        fleet.settle();
        fleet.wait_ms(1_000);
        for name in NAMES {
            fleet.heartbeat(name);
        }
    }
    for id in jobs {
        let state: JobState = fleet.state(id);
        assert!(state.is_terminal(), "seed {seed}: {id} is {state:?}");
    }
    for (name, agent) in &fleet.agents {
        assert!(agent.members.is_empty(), "seed {seed}: {name} still has {:?}", agent.members);
        let left = &agent.guest_processes;
        assert!(left.is_empty(), "seed {seed}: {name} still has processes of {left:?}");
    }
}

#[test]
fn random_histories_keep_every_invariant() {
    let seeds = std::env::var("GANGLINE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let tallies: Vec<Tally> = (1..=seeds).map(|seed| history(seed, 400)).collect();
    let deleted: u32 = tallies.iter().map(|tally| tally.deleted).sum();
    let guests: u32 = tallies.iter().map(|tally| tally.guests.submitted).sum();
    let ran: u32 = tallies.iter().map(|tally| tally.guests.ran).sum();
    // Few seeds on purpose may have none.
    assert!(deleted > 0 || seeds < 60, "the histories delete no job");
    assert!(ran > 0 || seeds < 60, "no job ran on a standing cluster");
    let sum = |of: fn(&Controls) -> u32| tallies.iter().map(|t| of(&t.controls)).sum::<u32>();
    let controls = [
        ("requeued", sum(|c| c.requeued)),
        ("waited too long", sum(|c| c.waited_too_long)),
        ("failed with another", sum(|c| c.failed_with_another)),
        ("waited for a success", sum(|c| c.waited_for_a_success)),
    ];
    for (what, jobs) in controls {
        assert!(jobs > 0 || seeds < 60, "no job {what}");
    }
    eprintln!(
        "{seeds} histories: {deleted} jobs deleted, {guests} submitted to clusters, {ran} ran there; {controls:?}"
    );
}

/// I14 with the fleet's simulation: every record goes through the codec, and a start makes the same
/// core of it. Its jobs have no spec, from which a record of a job is read: theirs are in the test
/// above.
#[test]
fn a_fleets_records_come_back_as_they_were() {
    let settings = |seed| Settings {
        seed,
        length: Length::Events(3_000),
        nodes: (3, 6),
        codec: &|write| match write {
            Write::Job(_) => write.clone(),
            _ => support::through_the_codec(write),
        },
        deep_every: 200,
        wall_jumps: true,
        reboots: true,
        driver_bug: None,
        shown_from: None,
    };
    match campaign::run(1..=20, 2, settings, || {}, |_| {}) {
        Ok(summary) => eprintln!("{summary}"),
        Err(broken) => {
            campaign::show(settings(broken.seed), &broken);
            panic!("seed {}: {}", broken.seed, broken.what);
        }
    }
}
