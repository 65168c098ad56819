//! Reading traces: what they may look like, and what is said of broken ones.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use gangline_simulate::trace::{self, Problem, TraceError};
use gangline_simulate::workload::{Demand, Workload};
use gangline_simulate::{Fleet, Policy, Settings, generate, replay};

fn read(text: &str) -> Result<Workload, TraceError> {
    trace::read("t.csv", text.as_bytes())
}

fn problems(text: &str) -> Vec<Problem> {
    read(text).expect_err("a problem").problems
}

#[test]
fn columns_are_found_by_name() {
    let plain = read("submit_s,duration_s,num_gpus\n5,60,8\n1.5,2e2,1\n").unwrap();
    let milliseconds = "\u{feff}Model, num_gpu ,duration_ms,submit_ms\r\n\
                        \"a, \"\"b\",8,60000,5000\r\n\r\nc,1.0,200000,1500\r\n";
    let milliseconds = read(milliseconds).unwrap();
    let times = |workload: &Workload| -> Vec<(u64, u64, Demand)> {
        workload.jobs.iter().map(|job| (job.submit_ms, job.duration_ms, job.demand)).collect()
    };
    // Sorted, and the first arrival is the beginning.
    let expected = vec![(0, 200_000, Demand::Gpus(1)), (3_500, 60_000, Demand::Gpus(8))];
    assert_eq!(times(&plain), expected);
    assert_eq!(times(&milliseconds), expected);
    assert_eq!(plain.label(&plain.jobs[0]), "line 3");
}

#[test]
fn projects_and_users_are_groups() {
    let trace = "vc,user,submit_s,duration_s,num_gpus\n\
                 red,ann,0,1,1\nblue,,1,1,1\nred,ann,2,1,1\n,bo,3,1,1\n";
    let workload = read(trace).unwrap();
    let of = |at: usize| {
        let group = &workload.groups[workload.jobs[at].group as usize];
        (group.project.as_str(), group.user.as_str())
    };
    assert_eq!([of(0), of(1), of(2)], [("red", "ann"), ("blue", "trace"), ("red", "ann")]);
    assert_eq!(of(3), (trace::DEFAULT_PROJECT, "bo"));
    assert_eq!(workload.groups.len(), 3);
}

#[test]
fn gzip_is_known_by_its_first_bytes() {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(b"submit_s,duration_s,num_gpus\n0,60,8\n").unwrap();
    let packed = packed.finish().unwrap();
    assert_eq!(trace::read("t.csv", &packed[..]).unwrap().jobs.len(), 1);
    let cut = trace::read("t.csv", &packed[..packed.len() - 9]).unwrap_err();
    assert!(cut.to_string().contains("cannot be read"), "{cut}");
}

#[test]
fn jobs_without_gpus_are_counted_and_left_out() {
    let workload = read("submit_s,duration_s,num_gpus\n0,60,0\n5,60,1\n").unwrap();
    assert_eq!((workload.jobs.len(), workload.without_gpus), (1, 1));
    let none = problems("submit_s,duration_s,num_gpus\n0,60,0\n");
    assert!(none[0].what.contains("none of its 1 jobs"), "{none:?}");
}

#[test]
fn a_header_that_does_not_do_says_what_is_missing() {
    let two_units = "submit_s,submit_ms,duration_s,num_gpus\n";
    let cases = [
        ("", "the file", "the file is empty"),
        ("submit_s,num_gpus\n", "line 1", "no column duration_s or duration_ms"),
        ("submit_s,duration_s,num_gpus\n", "the file", "there is no job in it"),
        (two_units, "line 1", "a column submit_s and a column submit_ms"),
        ("submit_s,duration_s,num_gpus,num_gpus\n", "line 1", "two columns num_gpus"),
        ("a,b\n\"c\n", "line 1", "no column submit_s or submit_ms"),
        ("a,\"b\n", "line 1", "a quote is not closed"),
    ];
    for (text, place, what) in cases {
        let found = problems(text);
        assert_eq!((found[0].place().as_str(), found[0].what.as_str()), (place, what), "{text:?}");
    }
    let tabs = problems("submit_s\tduration_s\tnum_gpus\n");
    assert!(tabs[0].fix.contains("separated by commas"), "{tabs:?}");
}

#[test]
fn a_broken_line_says_line_column_what_and_how() {
    let cases = [
        ("1,x,1", "line 2, column duration_s", "`x` is not a number"),
        ("1,,1", "line 2, column duration_s", "it is empty"),
        ("-1,1,1", "line 2, column submit_s", "-1 is negative"),
        ("1,NaN,1", "line 2, column duration_s", "`NaN` is not a finite number"),
        ("inf,1,1", "line 2, column submit_s", "`inf` is not a finite number"),
        ("1,1,0.5", "line 2, column num_gpus", "0.5 is not a whole number"),
        ("1,1,99999999", "line 2, column num_gpus", "99999999 is too much"),
        ("1700000000000,1,1", "line 2, column submit_s", "1700000000000 is too much"),
        ("1,1e12,1", "line 2, column duration_s", "1e12 is too much"),
        ("1,1", "line 2", "2 fields, but the header has 3"),
        ("1,1,1,1", "line 2", "4 fields, but the header has 3"),
        ("1,\"1,1", "line 2", "a quote is not closed"),
    ];
    for (line, place, what) in cases {
        let found = problems(&format!("submit_s,duration_s,num_gpus\n{line}\n"));
        assert_eq!(found[0].place(), place, "{line}");
        assert_eq!(found[0].what, what, "{line}");
        assert!(!found[0].fix.is_empty(), "{line}");
    }
    // The unit may be wrong without any single number being absurd.
    let apart = problems("submit_s,duration_s,num_gpus\n0,1,1\n4000000000,1,1\n");
    assert!(apart[0].what.contains("days after the first one"), "{apart:?}");
    assert_eq!(apart[0].line, Some(3));
}

#[test]
fn several_problems_are_told_at_once_but_not_all_of_a_thousand() {
    let mut text = String::from("submit_s,duration_s,num_gpus\n");
    text.push_str("1,x,y\n");
    let two = read(&text).unwrap_err();
    assert_eq!((two.problems.len(), two.more), (2, false));
    text.push_str(&"1,x,1\n".repeat(1_000));
    let many = read(&text).unwrap_err();
    assert_eq!((many.problems.len(), many.more), (10, true));
    let lines: Vec<Option<u64>> = many.problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines[..3], [Some(2), Some(2), Some(3)]);
}

#[test]
fn what_is_no_text_is_refused_in_bounds() {
    let noise: Vec<u8> = (0..60_000u32).map(|n| (n * 7 % 251) as u8 | 0x80).collect();
    let error = trace::read("t.csv", &noise[..]).unwrap_err();
    assert!(error.to_string().contains("line 1: the line is not UTF-8"), "{error}");
    let long = format!("submit_s,duration_s,num_gpus\n{}\n", "9".repeat(100_000));
    assert!(problems(&long)[0].what.contains("longer than 64 KiB"));
}

/// The first thousand jobs of each public trace; docs/simulation.md has a table of all of them.
#[test]
fn public_traces_run_in_strict_order() {
    const TRACES: [(&str, usize); 3] = [
        ("philly_jobs.csv.gz", 82_247),
        ("muri_philly_vc_trace1.csv.gz", 1_494),
        ("muri_philly_vc_trace2.csv.gz", 5_755),
    ];
    let Some(data) = std::env::var_os("GANGLINE_DATA") else {
        println!("GANGLINE_DATA is not set: a generated workload stands for the public traces");
        return check(generate::generate(1, 1_000));
    };
    for (name, jobs) in TRACES {
        let path = std::path::Path::new(&data).join("traces").join(name);
        let file = std::fs::File::open(&path).unwrap();
        let mut workload = trace::read(name, file).unwrap();
        assert_eq!((workload.jobs.len(), workload.without_gpus), (jobs, 0), "{name}");
        workload.jobs.truncate(1_000);
        check(workload);
    }
}

fn check(mut workload: Workload) {
    let fleet = Fleet::uniform(16, 8).unwrap();
    workload.set_load(&fleet, 0.7).unwrap();
    let settings = Settings { policy: Policy::Fifo, checkpoint_every_ms: 0 };
    let report = replay(&workload, &fleet, settings, |_| {}).unwrap().report;
    assert_eq!((report.finished, report.unfinished), (workload.jobs.len(), 0));
    assert_eq!(report.load, Some(0.7));
    let hours = workload.offered(&fleet) as f64 / 3_600_000.0;
    assert!((report.gpu_hours - hours).abs() < 0.01, "{report:?}");
}
