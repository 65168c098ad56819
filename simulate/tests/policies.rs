//! The bar of the default policy: far below strict order on the mean, at no lower use of the GPUs, and
//! nobody waits much longer. docs/simulation.md has the table of all policies.

use gangline_simulate::{Fleet, Policy, Report, Settings, Workload, generate, replay, trace};

#[test]
fn on_the_first_virtual_cluster() {
    compare_on("muri_philly_vc_trace1.csv.gz", &[16, 24, 32]);
}

#[test]
fn on_the_second_virtual_cluster() {
    compare_on("muri_philly_vc_trace2.csv.gz", &[32, 48]);
}

#[test]
fn on_all_of_philly() {
    compare_on("philly_jobs.csv.gz", &[52]);
}

/// On fleets of so many nodes with eight GPUs.
fn compare_on(name: &str, fleets: &[usize]) {
    let Some(data) = std::env::var_os("GANGLINE_DATA") else {
        println!("GANGLINE_DATA is not set: a generated workload stands for {name}");
        return compare("generated", generate::generate(1, 3_000), 16);
    };
    for nodes in fleets {
        let path = std::path::Path::new(&data).join("traces").join(name);
        let workload = trace::read(name, std::fs::File::open(path).unwrap()).unwrap();
        compare(name, workload, *nodes);
    }
}

fn compare(name: &str, mut workload: Workload, nodes: usize) {
    let fleet = Fleet::uniform(nodes, 8).unwrap();
    workload.set_load(&fleet, 0.9).unwrap();
    let run = |policy| -> Report {
        let settings = Settings { policy, checkpoint_every_ms: 1_800_000 };
        replay(&workload, &fleet, settings, |_| {}).unwrap().report
    };
    let (default, fifo) = (run(Policy::Default), run(Policy::Fifo));
    let figures = |report: &Report| {
        let (mean, longest) = (report.jct_mean_s / 3_600.0, report.wait_max_s / 3_600.0);
        format!("mean {mean:.1} h, longest wait {longest:.1} h, {:.4}", report.gpu_utilisation)
    };
    let what = format!("{name}, {nodes} nodes: {}; fifo: {}", figures(&default), figures(&fifo));
    println!("{what}");
    assert_eq!((default.unfinished, fifo.unfinished), (0, 0), "{what}");
    assert!(default.jct_mean_s <= 0.7 * fifo.jct_mean_s, "{what}");
    assert!(default.gpu_utilisation >= fifo.gpu_utilisation, "{what}");
    assert!(default.wait_max_s <= 1.5 * fifo.wait_max_s, "{what}");
}
