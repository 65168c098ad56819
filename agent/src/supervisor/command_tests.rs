//! Tests of `command`: what is run, and what is refused.

use std::process::Command;

use gangline_common::ids::{GangId, MemberId, PortBlock};
use gangline_common::wire::v1::Refusal;
use proptest::prelude::*;

use super::command::{HostFacts, Places, build, shell_line};
use super::files::Operation;
use super::{MemberPlan, SupervisorConfig, fixtures};
use crate::shim::record::{Launch, StopSignal};

fn places() -> Places {
    Places {
        temp: "/tmp/gangline/g-1-1.1-0".into(),
        token: "/spool/auth_token".into(),
        code: "/tmp/gangline/g-1-1.1-0.code".into(),
    }
}

fn host() -> HostFacts {
    HostFacts { shm_available: Some(64 << 30), ..HostFacts::default() }
}

fn built((plan, config): (MemberPlan, SupervisorConfig)) -> Result<Launch, Refusal> {
    build(&plan, &config, &host(), &places())
}

fn refused((plan, config): (MemberPlan, SupervisorConfig)) -> String {
    match built((plan, config)) {
        Err(Refusal::Impossible { reason }) => reason,
        Err(other) => panic!("{other:?}"),
        Ok(launch) => panic!("accepted: {:?}", launch.argv),
    }
}

#[test]
fn golden_head() {
    let launch = built(fixtures::ray_plan(MemberId::Head)).unwrap();
    let expected = "/venv/bin/ray start --block --disable-usage-stats \
        --node-ip-address=127.0.0.3 --temp-dir=/tmp/gangline/g-1-1.1-0 \
        --object-store-memory=268435456 --memory=805306368 \
        --min-worker-port=20024 --max-worker-port=20255 \
        --labels=gangline-gang=g-1,gangline-epoch=1.1,gangline-member=head \
        --node-manager-port=20002 --object-manager-port=20003 \
        --dashboard-agent-listen-port=20004 --dashboard-agent-grpc-port=20005 \
        --runtime-env-agent-port=20006 --metrics-export-port=20007 \
        --port=20000 --dashboard-port=20001 --ray-client-server-port=20010 \
        --head --no-monitor --include-dashboard=true --dashboard-host=127.0.0.1 \
        --num-cpus=0 --num-gpus=0";
    assert_eq!(launch.argv, expected.split_ascii_whitespace().collect::<Vec<_>>());
    assert_eq!(launch.stop_signal, StopSignal::Process);
    assert_eq!(launch.operations, [], "a head's node need not have the shared root");
    assert_eq!(launch.cwd, places().temp);
}

#[test]
fn golden_worker() {
    let launch = built(fixtures::ray_plan(MemberId::Rank(1))).unwrap();
    let expected = "/venv/bin/ray start --block --disable-usage-stats \
        --node-ip-address=127.0.0.3 --temp-dir=/tmp/gangline/g-1-1.1-0 \
        --object-store-memory=9663676416 --memory=22548578304 \
        --min-worker-port=20536 --max-worker-port=20767 \
        --labels=gangline-gang=g-1,gangline-epoch=1.1,gangline-member=1 \
        --node-manager-port=20514 --object-manager-port=20515 \
        --dashboard-agent-listen-port=20516 --dashboard-agent-grpc-port=20517 \
        --runtime-env-agent-port=20518 --metrics-export-port=20519 \
        --address=127.0.0.2:20000 --num-cpus=22 --num-gpus=2 \
        --resources={\"gangline_rank_1\":1}";
    let mut argv = launch.argv.clone();
    // The exact split of the memory is checked below.
    argv[6] = "--object-store-memory=9663676416".to_owned();
    argv[7] = "--memory=22548578304".to_owned();
    assert_eq!(argv, expected.split_ascii_whitespace().collect::<Vec<_>>());
    let number =
        |index: usize| -> u64 { launch.argv[index].split_once('=').unwrap().1.parse().unwrap() };
    assert_eq!(number(6) + number(7), 32 << 30);
    assert_eq!(number(6), (32u64 << 30) / 10 * 3);
    assert_eq!(launch.cwd.to_str(), Some("/work dir"));
}

#[test]
fn a_small_shm_bounds_the_object_store() {
    let store = |shm: Option<u64>| {
        let (plan, config) = fixtures::ray_plan(MemberId::Rank(0));
        let host = HostFacts { shm_available: shm, ..HostFacts::default() };
        let launch = build(&plan, &config, &host, &places()).unwrap();
        let slow = launch.env.iter().any(|(key, _)| key == "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE");
        (launch.argv[6].clone(), slow)
    };
    assert_eq!(store(Some(1 << 30)), ("--object-store-memory=858993456".to_owned(), false));
    assert_eq!(store(Some(64 << 20)), ("--object-store-memory=78643200".to_owned(), true));
    assert_eq!(store(None), ("--object-store-memory=78643200".to_owned(), true));
}

#[test]
fn rank_0_writes_the_config_and_every_rank_makes_the_directories() {
    let launch = built(fixtures::command_plan(0)).unwrap();
    let directory = |path: &str| Operation::MakeDirectory { path: path.into() };
    let expected = [
        directory("/shared/jobs/job-1/config"),
        directory("/shared/jobs/job-1/logs"),
        directory("/shared/jobs/job-1/checkpoints"),
        directory("/shared/jobs/job-1/checkpoints"),
        Operation::WriteNew {
            path: "/shared/jobs/job-1/config/job.yaml".into(),
            text: "run: x".to_owned(),
        },
    ];
    assert_eq!(launch.operations, expected);
    assert_eq!(launch.argv, ["sh", "-c", "echo $(id)"], "argv is taken literally");
    assert_eq!(launch.stop_signal, StopSignal::Group);
    assert_eq!(built(fixtures::command_plan(1)).unwrap().operations, expected[..4]);
}

#[test]
fn what_cannot_work_is_refused() {
    let changed = |change: fn(&mut MemberPlan)| {
        let (mut plan, config) = fixtures::command_plan(0);
        change(&mut plan);
        refused((plan, config))
    };
    fn assignment(plan: &mut MemberPlan) -> &mut gangline_common::wire::v1::Assignment {
        std::sync::Arc::make_mut(&mut plan.assignment)
    }
    assert!(changed(|p| assignment(p).argv.clear()).contains("no program"));
    assert!(changed(|p| assignment(p).argv.push("a\0b".into())).contains("NUL"));
    assert!(changed(|p| assignment(p).env.push(("A=B".into(), "c".into()))).contains("A=B"));
    for name in ["../job.yaml", "/etc/passwd", "a/../../b", "", "."] {
        let (mut plan, config) = fixtures::command_plan(0);
        assignment(&mut plan).config_files = vec![(name.to_owned(), String::new())];
        assert!(refused((plan, config)).contains("name of a file"), "{name}");
    }
    assert!(changed(|p| p.member.ports = PortBlock { base: 65_500, size: 256 }).contains("block"));
    assert!(changed(|p| p.member.ports.size = 3).contains("block"));
    assert!(changed(|p| p.key.member = MemberId::Head).contains("no head"));

    let (mut plan, config) = fixtures::ray_plan(MemberId::Rank(0));
    plan.key.gang = GangId::new("-x").unwrap();
    assert!(refused((plan, config)).contains("label"));
    let (mut plan, config) = fixtures::ray_plan(MemberId::Rank(0));
    plan.member.ports.size = 24;
    assert!(refused((plan, config)).contains("workers"));
    let (plan, config) = fixtures::ray_plan(MemberId::Rank(0));
    let long = Places { temp: format!("/tmp/{}", "x".repeat(36)).into(), ..places() };
    assert!(matches!(
        build(&plan, &config, &host(), &long),
        Err(Refusal::Impossible { reason }) if reason.contains("40 characters")
    ));
}

fn through_shell(argv: &[String]) -> Vec<String> {
    let mut quoted = vec!["printf".to_owned(), "%s\\0".to_owned()];
    quoted.extend_from_slice(argv);
    let output = Command::new("sh").arg("-c").arg(shell_line(&quoted).unwrap()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn shell_characters_stay_literal() {
    let argv = [
        "$(id)",
        "`id`",
        "a b",
        "'",
        "\"",
        "\\",
        "line\nbreak",
        "",
        "ünï…",
        "*",
        "~",
        "a;b",
        "--x={\"y\":1}",
        "!x",
        "#",
        "&&",
        "-",
    ];
    let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
    assert_eq!(through_shell(&argv), argv);
    assert!(shell_line(&["a\0b".to_owned()]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_argv_survives_the_shell(argv in prop::collection::vec("[^\0]{0,12}", 1..6)) {
        prop_assert_eq!(through_shell(&argv), argv);
    }
}
