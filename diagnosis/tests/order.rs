//! Many ranks: the first cause is found in any order of the files, with clocks that differ, below
//! a cascade; facts beat text; what was stopped by us is no cause.

use gangline_diagnosis::{
    Action, Case, Category, Diagnosis, Fact, FactKind, Rules, Source, StopReason,
};

/// One rank: its log, and how far its node's clock is ahead.
struct RankLog {
    name: String,
    node: String,
    rank: u32,
    ahead_ms: i64,
    text: String,
}

/// A time as the clock of a node shows it.
fn at(second: f64, ahead_ms: i64) -> String {
    #[allow(clippy::cast_possible_truncation)]
    let ms = 36_000_000 + (second * 1000.0) as i64 + ahead_ms;
    let (h, m, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("2026-03-01 {h:02}:{m:02}:{s:02},{:03}", ms % 1000)
}

/// Rank 5 fails with `root`; the others see lost connections and time-outs earlier by their clocks.
fn cascade(root: &str) -> Vec<RankLog> {
    (0..8)
        .map(|rank: u32| {
            let ahead_ms = i64::from(rank % 5) * 1000 - 2000;
            let mut text = String::new();
            for step in 0..20 {
                let time = at(f64::from(step), ahead_ms);
                text.push_str(&format!("{time} INFO step {step} loss 1.{step:02}\n"));
            }
            if rank == 5 {
                text.push_str(&format!("{} ERROR {root}\n", at(20.0, ahead_ms)));
            } else {
                let lost = at(20.4, ahead_ms);
                text.push_str(&format!(
                    "{lost} ERROR NCCL WARN Net : Connection closed by remote peer node-5<4021>\n\
                     {} ERROR [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, \
                     OpType=ALLREDUCE) ran for 600061 milliseconds before timing out.\n\
                     {} ERROR ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing\n",
                    at(21.0, ahead_ms),
                    at(21.5, ahead_ms),
                ));
            }
            RankLog {
                name: format!("rank-{rank}.log"),
                node: format!("node-{rank}"),
                rank,
                ahead_ms,
                text,
            }
        })
        .collect()
}

fn conclude(rules: &Rules, logs: &[&RankLog], facts: &[Fact]) -> Diagnosis {
    let mut case = Case::new(rules);
    for log in logs {
        let source = Source::whole(&log.name, log.text.as_bytes());
        case.read(&source.of_rank(Some(log.rank)).on_node(&log.node, log.ahead_ms));
    }
    for fact in facts {
        case.fact(fact.clone());
    }
    case.conclude()
}

fn fact(second: f64, kind: FactKind) -> Fact {
    let midnight = 1_772_323_200_000;
    #[allow(clippy::cast_possible_truncation)]
    let at_ms = midnight + 36_000_000 + (second * 1000.0) as i64;
    Fact { at_ms: Some(at_ms), node: Some("node-3".to_owned()), rank: Some(3), kind }
}

#[test]
fn every_root_is_found_below_a_cascade_in_any_order() {
    let rules = Rules::built_in().unwrap();
    let mut broken = Vec::new();
    let roots = rules.all().iter().filter(|rule| {
        let consequence = rule.rank == Some(gangline_diagnosis::Rank::Consequence);
        let weak = matches!(
            rule.category,
            Category::CollectiveHang
                | Category::RayRuntime
                | Category::RendezvousPort
                | Category::RolloutEngine
        );
        let plain = rule.frames.is_none() && rule.at_least == 1 && !rule.example.contains('\n');
        plain && !rule.shadow && !consequence && (!weak || rule.rank.is_some())
    });
    let mut seen = 0;
    for rule in roots {
        seen += 1;
        let logs = cascade(&rule.example);
        let order: Vec<&RankLog> = logs.iter().collect();
        let first = conclude(&rules, &order, &[]);
        if first.category != rule.category || first.rank != Some(5) {
            broken.push(format!("{}: {:?} rank {:?}", rule.id, first.rule, first.rank));
        }
        for turn in [3, 5, 7] {
            let shuffled: Vec<&RankLog> = (0..8).map(|i| &logs[(i * turn + turn) % 8]).collect();
            assert_eq!(conclude(&rules, &shuffled, &[]), first, "{}", rule.id);
        }
    }
    assert!(seen > 60, "{seen} roots");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn of_two_roots_the_earlier_wins_once_clocks_are_corrected() {
    let rules = Rules::built_in().unwrap();
    // Rank 2 failed first, though its clock is ahead by two seconds.
    let one = |rank: u32, second: f64, ahead_ms: i64, error: &str| RankLog {
        name: format!("rank-{rank}.log"),
        node: format!("node-{rank}"),
        rank,
        ahead_ms,
        text: format!("{} ERROR {error}\n", at(second, ahead_ms)),
    };
    let full = one(2, 10.0, 2000, "OSError: [Errno 28] No space left on device");
    let later =
        one(7, 11.0, -900, "RuntimeError: CUDA error: an illegal memory access was encountered");
    for logs in [[&full, &later], [&later, &full]] {
        let answer = conclude(&rules, &logs, &[]);
        assert_eq!((answer.category, answer.rank), (Category::Storage, Some(2)));
        assert_eq!(answer.consequences.len(), 1);
    }
}

#[test]
fn a_lost_peer_is_explained_by_what_ended_it_but_not_by_what_came_long_after() {
    let rules = Rules::built_in().unwrap();
    let one = |rank: u32, second: f64, error: &str| RankLog {
        name: format!("rank-{rank}.log"),
        node: format!("node-{rank}"),
        rank,
        ahead_ms: 0,
        text: format!("{} ERROR {error}\n", at(second, 0)),
    };
    let lost =
        "NET/IB : Got completion from peer 10.0.0.1<1> with status=12 opcode=129 vendor err 129";
    let lost = one(1, 100.0, lost);
    let full = "OSError: [Errno 28] No space left on device";
    let category = |other: &RankLog| conclude(&rules, &[&lost, other], &[]).category;
    // What is clear may have been written down a little later than the loss was noticed.
    assert_eq!(category(&one(2, 90.0, full)), Category::Storage);
    assert_eq!(category(&one(2, 103.0, full)), Category::Storage);
    assert_eq!(category(&one(2, 400.0, full)), Category::NetworkFabric);
    // What is not clear must have been there before.
    let text = |second| one(2, second, "KeyError: 'answer'");
    assert_eq!(category(&text(99.0)), Category::UserCode);
    assert_eq!(category(&text(101.0)), Category::NetworkFabric);
}

#[test]
fn a_line_of_the_kernel_takes_no_time_from_the_lines_after_it() {
    let rules = Rules::built_in().unwrap();
    let full = "[ 1911.220145] Out of memory: Killed process 4121 (python3)";
    let one = |rank: u32, text: String| RankLog {
        name: format!("rank-{rank}.log"),
        node: format!("node-{rank}"),
        rank,
        ahead_ms: 0,
        text,
    };
    let early = format!("{} step 3\n[ 1911.1] nfs: ok\nKeyError: 'answer'\n", at(10.0, 0));
    let early = one(1, early);
    let late = one(2, format!("{} ERROR TypeError: 'int' object\n", at(20.0, 0)));
    for logs in [[&early, &late], [&late, &early]] {
        assert_eq!(conclude(&rules, &logs, &[]).rank, Some(1));
    }
    // And has none itself.
    let kernel = one(3, format!("{} step 3\n{full}\n", at(10.0, 0)));
    assert_eq!(conclude(&rules, &[&kernel], &[]).category, Category::HostResources);
}

#[test]
fn a_consequence_alone_is_given_with_low_confidence() {
    let rules = Rules::built_in().unwrap();
    let logs = cascade("");
    let order: Vec<&RankLog> = logs.iter().filter(|log| log.rank != 5).collect();
    let answer = conclude(&rules, &order, &[]);
    assert_eq!(answer.category, Category::CollectiveHang);
    assert!(answer.confidence < 0.7, "{}", answer.confidence);
}

#[test]
fn facts_beat_text() {
    let rules = Rules::built_in().unwrap();
    let logs = cascade("RuntimeError: CUDA error: unspecified launch failure");
    let order: Vec<&RankLog> = logs.iter().collect();
    let text = conclude(&rules, &order, &[]);
    assert_eq!((text.category, text.certain), (Category::GpuKernelFault, false));
    let xid = FactKind::Xid { code: 79, gpu: Some("0000:9b:00".to_owned()) };
    for (kind, category, action) in [
        (xid, Category::GpuHardware, Action::RetryElsewhereCordon),
        (FactKind::OomKills(1), Category::HostResources, Action::FixConfig),
        (
            FactKind::DiskFull { path: "/ckpts".to_owned() },
            Category::Storage,
            Action::FreeSpaceThenRetry,
        ),
        (FactKind::NodeLost, Category::RayRuntime, Action::RetryElsewhere),
        (
            FactKind::LinkDown { device: "mlx5_3".to_owned() },
            Category::NetworkFabric,
            Action::CheckNetworkRetry,
        ),
    ] {
        // A little late: the program saw it before it was written down.
        let answer = conclude(&rules, &order, &[fact(21.0, kind.clone())]);
        assert_eq!((answer.category, answer.action), (category, action), "{kind:?}");
        assert!(answer.certain && answer.confidence > 0.8);
        assert_eq!((answer.rank, answer.node.as_deref()), (Some(3), Some("node-3")));
        assert!(answer.consequences.iter().any(|other| other.category == Category::GpuKernelFault));
    }
    let gpu = conclude(
        &rules,
        &[],
        &[fact(1.0, FactKind::Xid { code: 79, gpu: Some("0000:9b:00".to_owned()) })],
    );
    assert_eq!(gpu.gpu.as_deref(), Some("0000:9b:00"));
    // Long after the first error it is something else.
    let answer = conclude(&rules, &order, &[fact(400.0, FactKind::OomKills(1))]);
    assert_eq!(answer.category, Category::GpuKernelFault);
}

#[test]
fn a_signal_says_what_text_cannot() {
    let rules = Rules::built_in().unwrap();
    let killed = fact(20.0, FactKind::Signal { signal: 9 });
    let answer = conclude(&rules, &[], &[killed]);
    assert_eq!((answer.category, answer.certain), (Category::HostResources, false));
    let alone = conclude(&rules, &[], &[fact(20.0, FactKind::Exit { code: 1 })]);
    assert_eq!((alone.category, alone.sub_code.as_str()), (Category::Unknown, "unrecognised"));
}

#[test]
fn what_we_stopped_is_no_cause() {
    let rules = Rules::built_in().unwrap();
    let logs = cascade("RuntimeError: CUDA error: unspecified launch failure");
    let order: Vec<&RankLog> = logs.iter().collect();
    let all = |second: f64, reason| Fact {
        node: None,
        rank: None,
        ..fact(second, FactKind::Stopped(reason))
    };
    // Stopped before anything was written: all of it is teardown.
    let answer = conclude(&rules, &order, &[all(19.5, StopReason::FromOutside)]);
    assert_eq!((answer.category, answer.action), (Category::Preempted, Action::Resume));
    assert!(answer.retry && answer.certain);
    // Stopped because something had failed: that stays the cause.
    let answer = conclude(&rules, &order, &[all(20.2, StopReason::AfterFailure)]);
    assert_eq!((answer.category, answer.rank), (Category::GpuKernelFault, Some(5)));
    assert!(answer.consequences.is_empty());
}

#[test]
fn no_text_is_ever_certain() {
    let rules = Rules::built_in().unwrap();
    for rule in rules.all() {
        let mut case = Case::new(&rules);
        case.read(&Source::whole("log", rule.example.as_bytes()));
        assert!(!case.conclude().certain, "{}", rule.id);
    }
}

/// Ten o'clock and `second` seconds, by the coordinator's clock.
fn ten(second: f64) -> i64 {
    fact(second, FactKind::NodeLost).at_ms.unwrap()
}

#[test]
fn a_line_without_a_time_has_that_of_its_reading() {
    let rules = Rules::built_in().unwrap();
    let log = |rank: u32, text: String| RankLog {
        name: format!("rank-{rank}.log"),
        node: format!("node-{rank}"),
        rank,
        ahead_ms: 0,
        text,
    };
    let illegal = "RuntimeError: CUDA error: an illegal memory access was encountered";
    // One that is long past its last time of its own fails before or after another.
    let bare = |second: f64| {
        let text =
            format!("{} INFO ready\nOSError: [Errno 28] No space left on device\n", at(1.0, 0));
        let second_line = text.find('\n').unwrap() + 1;
        (log(1, text), [(0, ten(1.0)), (second_line, ten(second))])
    };
    let stamped = |zone_ms: i64| log(2, format!("{} ERROR {illegal}\n", at(500.0, zone_ms)));
    let answer = |first: &(RankLog, [(usize, i64); 2]), second: &RankLog| {
        let mut case = Case::new(&rules);
        for (log, times) in [(&first.0, first.1.as_slice()), (second, &[(0, ten(500.1))])] {
            let source =
                Source { read_times: times, ..Source::whole(&log.name, log.text.as_bytes()) };
            case.read(&source.of_rank(Some(log.rank)).on_node(&log.node, log.ahead_ms));
        }
        case.conclude().rank
    };
    let hour = 3_600_000;
    for zone_ms in [0, 8 * hour, -7 * hour, 5 * hour + hour / 2] {
        // The times of the other are of a zone that no line names.
        assert_eq!(answer(&bare(400.0), &stamped(zone_ms)), Some(1), "{zone_ms}");
        assert_eq!(answer(&bare(510.0), &stamped(zone_ms)), Some(2), "{zone_ms}");
    }
}

/// Times of which parts are missing belong to the time of their reading.
#[test]
fn times_without_a_year_or_a_day_are_those_near_their_reading() {
    let rules = Rules::built_in().unwrap();
    let full = "OSError: [Errno 28] No space left on device";
    let illegal = "CUDA error: an illegal memory access was encountered";
    let answer = |times: [&str; 2], read: [f64; 2]| {
        let texts = [format!("INFO ready\n{full}\n"), format!("{} {illegal}\n", times[1])];
        let texts = [texts[0].replacen("INFO", times[0], 1), texts[1].clone()];
        let second_line = texts[0].find('\n').unwrap() + 1;
        let of_first = [(0, ten(1.0)), (second_line, ten(read[0]))];
        let of_second = [(0, ten(read[1]))];
        let mut case = Case::new(&rules);
        for (rank, text, times) in
            [(1, &texts[0], of_first.as_slice()), (2, &texts[1], of_second.as_slice())]
        {
            let name = format!("rank-{rank}.log");
            let source = Source { read_times: times, ..Source::whole(&name, text.as_bytes()) };
            case.read(&source.of_rank(Some(rank)));
        }
        case.conclude().rank
    };
    // Month and day; nothing but the time of day; with a zone that nobody names.
    for [early, late] in [
        ["INFO 03-01 10:00:01", "E0301 10:08:20.000271 12 file.cpp:9]"],
        ["[10:00:01.000]", "[10:08:20.000] ERROR"],
        ["[18:00:01.000]", "[18:08:20.000] ERROR"],
        ["[03:00:01.000]", "[03:08:20.000] ERROR"],
    ] {
        assert_eq!(answer([early, late], [400.0, 500.1]), Some(1), "{early}");
        assert_eq!(answer([early, late], [510.0, 500.1]), Some(2), "{early}");
    }
}

/// A log that was read late, and a line about another time, say nothing of the zone.
#[test]
fn a_log_that_is_read_late_keeps_its_times() {
    let rules = Rules::built_in().unwrap();
    let lines = |second: f64, last: &str| {
        format!("{} INFO step 1\n2025-11-02 04:00:00 is when it was saved\n{last}\n", at(second, 0))
    };
    let full = "OSError: [Errno 28] No space left on device";
    let illegal = "RuntimeError: CUDA error: an illegal memory access was encountered";
    // The node was cut off: its log came nine minutes later.
    let cut_off = lines(100.0, &format!("{} ERROR {full}", at(120.0, 0)));
    let other = lines(100.0, &format!("{} ERROR {illegal}", at(125.0, 0)));
    let mut case = Case::new(&rules);
    let late = [(0, ten(660.0))];
    let soon = [(0, ten(125.1))];
    for (rank, text, times) in [(1, &cut_off, &late), (2, &other, &soon)] {
        let name = format!("rank-{rank}.log");
        let source = Source { read_times: times, ..Source::whole(&name, text.as_bytes()) };
        case.read(&source.of_rank(Some(rank)));
    }
    assert_eq!(case.conclude().rank, Some(1));
}
