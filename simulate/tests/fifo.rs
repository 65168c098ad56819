//! Replays against a reference that shares no code with the core: an event list and a counter.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gangline_simulate::workload::{Demand, Workload};
use gangline_simulate::{Fleet, Policy, ProjectQuota, Replay, Settings, generate, replay};
use proptest::prelude::*;

fn replay_with(workload: &Workload, fleet: &Fleet, policy: Policy) -> Replay {
    let settings = Settings { policy, checkpoint_every_ms: 1_800_000 };
    replay(workload, fleet, settings, |_| {}).expect("a replay")
}

/// When each job starts, strictly in order, on nodes of one GPU: only their number counts.
fn reference(workload: &Workload, gpus: u64) -> Vec<u64> {
    let mut free = gpus;
    let mut ends: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let mut now = 0;
    let mut starts = Vec::new();
    for job in &workload.jobs {
        let wanted = match job.demand {
            Demand::Gpus(gpus) => u64::from(gpus),
            Demand::Gang { nnodes, gpus_per_node } => u64::from(nnodes * gpus_per_node),
        };
        now = now.max(job.submit_ms);
        while ends.peek().is_some_and(|Reverse((at, _))| *at <= now) || free < wanted {
            let Some(Reverse((at, gpus))) = ends.pop() else { break };
            now = now.max(at);
            free += gpus;
        }
        free -= wanted;
        ends.push(Reverse((now + job.duration_ms, wanted)));
        starts.push(now);
    }
    starts
}

#[test]
fn strict_order_starts_every_job_when_the_reference_does() {
    for seed in 0..20 {
        let mut workload = generate::generate(seed, 300);
        let fleet = Fleet::uniform(40, 1).expect("a fleet");
        workload.set_load(&fleet, 0.5 + 0.1 * (seed % 8) as f64).expect("a load");
        let replayed = replay_with(&workload, &fleet, Policy::Fifo);
        let expected = reference(&workload, fleet.gpus());
        let starts: Vec<u64> =
            replayed.times.iter().map(|times| times.start_ms.expect("a start")).collect();
        assert_eq!(starts, expected, "seed {seed}");
        for (job, times) in workload.jobs.iter().zip(&replayed.times) {
            assert_eq!(times.end_ms, times.start_ms.map(|start| start + job.duration_ms));
        }
    }
}

#[test]
fn gpu_time_is_conserved() {
    let fleet = Fleet::uniform(6, 8).expect("a fleet");
    for policy in Policy::ALL {
        let mut workload = generate::generate(3, 400);
        workload.set_load(&fleet, 0.8).expect("a load");
        let report = replay_with(&workload, &fleet, policy).report;
        assert_eq!((report.jobs, report.unfinished), (400, 0), "{policy:?}");
        let offered = workload.offered(&fleet) as f64 / 3_600_000.0;
        assert!((report.gpu_hours - report.gpu_hours_lost - offered).abs() < 0.01, "{report:?}");
        let capacity = report.makespan_s / 3600.0 * report.gpus as f64;
        assert!((report.gpu_utilisation - report.gpu_hours / capacity).abs() < 1e-5, "{report:?}");
    }
}

#[test]
fn a_replay_has_one_outcome() {
    let fleet = Fleet::uniform(5, 8).expect("a fleet");
    let mut workload = generate::generate(11, 200);
    workload.set_load(&fleet, 0.9).expect("a load");
    for policy in Policy::ALL {
        let once = replay_with(&workload, &fleet, policy);
        assert_eq!(once.times, replay_with(&workload, &fleet, policy).times, "{policy:?}");
    }
}

#[test]
fn a_job_larger_than_the_fleet_is_unfinished_and_named_and_stops_nobody() {
    let text = "submit_s,duration_s,num_gpus\n0,100,4\n5,100,64\n10,100,4\n";
    let workload = gangline_simulate::trace::read("t.csv", text.as_bytes()).expect("a trace");
    let fleet = Fleet::uniform(2, 4).expect("a fleet");
    for policy in Policy::ALL {
        let replayed = replay_with(&workload, &fleet, policy);
        let report = replayed.report;
        assert_eq!((report.finished, report.unfinished), (2, 1), "{policy:?}");
        assert_eq!(report.unfinished_jobs[0].job, "line 3");
        assert_eq!(report.unfinished_jobs[0].gpus, 64);
        assert!(report.unfinished_jobs[0].reason.contains("16"), "{report:?}");
        assert_eq!(replayed.times[2].start_ms, Some(10_000), "{policy:?}");
    }
}

#[test]
fn figures_of_a_replay_that_can_be_worked_out_by_hand() {
    // Two nodes of two GPUs; in strict order every job waits for the one before it.
    let text = "submit_s,duration_s,num_gpus\n0,100,4\n10,50,2\n20,50,4\n20,0,1\n";
    let workload = gangline_simulate::trace::read("t.csv", text.as_bytes()).expect("a trace");
    let fleet = Fleet::uniform(2, 2).expect("a fleet");
    let report = replay_with(&workload, &fleet, Policy::Fifo).report;
    // Starts: 0, 100, 150, 200; ends: 100, 150, 200, 200.
    assert_eq!(report.makespan_s, 200.0);
    assert_eq!(report.wait_max_s, 180.0);
    assert_eq!(report.wait_mean_s, (0.0 + 90.0 + 130.0 + 180.0) / 4.0);
    assert_eq!(report.jct_mean_s, (100.0 + 140.0 + 180.0 + 180.0) / 4.0);
    assert_eq!(report.jct_p50_s, 140.0);
    assert_eq!(report.gpu_utilisation, (400.0 + 100.0 + 200.0) / 800.0);
    assert_eq!(report.gpu_utilisation_arrivals, 1.0);
    assert_eq!(report.load, Some((700.0_f64 / 80.0 * 1e6).round() / 1e6));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever fits the fleet ends, and no GPU works for two.
    #[test]
    fn every_job_that_fits_ends(
        jobs in prop::collection::vec((0u64..5_000, 0u64..2_000, 1u32..20), 1..60),
        nodes in 1usize..5,
        gpus in 1u32..6,
    ) {
        let mut text = String::from("submit_s,duration_s,num_gpus\n");
        for (submit, duration, gpus) in &jobs {
            text.push_str(&format!("{submit},{duration},{gpus}\n"));
        }
        let workload = gangline_simulate::trace::read("t", text.as_bytes()).expect("a trace");
        let fleet = Fleet::uniform(nodes, gpus).expect("a fleet");
        let fits = |job: &&gangline_simulate::Job| {
            let (nnodes, gpus) = job.demand.shape(fleet.node_gpus());
            fleet.holds(nnodes, gpus)
        };
        let fitting = workload.jobs.iter().filter(fits).count();
        for policy in Policy::ALL {
            let report = replay_with(&workload, &fleet, policy).report;
            prop_assert_eq!(report.finished, fitting);
            prop_assert_eq!(report.unfinished, workload.jobs.len() - fitting);
            prop_assert!(report.gpu_utilisation <= 1.0 && report.gpu_utilisation_arrivals <= 1.0);
            let used = report.gpu_hours - report.gpu_hours_lost;
            prop_assert!((used - workload.offered(&fleet) as f64 / 3_600_000.0).abs() < 0.01);
        }
    }
}

#[test]
fn the_job_whose_work_is_safe_in_a_training_checkpoint_is_sent_back() {
    // The first borrower has made a training checkpoint 50 s before the owner comes; the second one has
    // run for 350 s and made none.
    let text = "submit_s,duration_s,num_gpus,project\n\
                0,4000,4,lent\n1500,4000,4,lent\n1850,100,4,own\n";
    let workload = gangline_simulate::trace::read("t.csv", text.as_bytes()).expect("a trace");
    let quota = ProjectQuota {
        project: "own".to_owned(),
        pool: "default".to_owned(),
        guaranteed: 4,
        maximum: None,
    };
    let fleet = Fleet::uniform(2, 4).expect("a fleet").with_quotas(vec![quota]).expect("quotas");
    let replayed = replay_with(&workload, &fleet, Policy::Default);
    let report = replayed.report;
    assert_eq!((report.preemptions, report.unfinished), (1, 0));
    assert!((report.gpu_hours_lost - 50.0 * 4.0 / 3600.0).abs() < 1e-3, "{report:?}");
    let ends: Vec<Option<u64>> = replayed.times.iter().map(|times| times.end_ms).collect();
    // It goes on when the owner's GPUs are free again, from what it had saved.
    assert_eq!(ends, [Some(1_950_000 + 2_200_000), Some(5_500_000), Some(1_950_000)]);
}
