//! Members with real processes: they start, end, are swept, and survive a restart of the agent.

mod supervisor_bench;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use gangline_agent::collectors::shared::{CanaryOutcome, SharedCollector};
use gangline_agent::shim::SOCKET_FILE;
use gangline_agent::shim::protocol::{Request, VERSION};
use gangline_agent::supervisor::process::{self, ProcessId};
use gangline_agent::supervisor::{LogSource, Nursery, SupervisorError};
use gangline_common::ids::MemberKey;
use gangline_common::time::Timestamp;
use gangline_common::wire::scene::{Occasion, SCENE_FILE, Scene};
use gangline_common::wire::v1::{EndedHow, MemberState, Refusal};
use rustix::process::{Signal, Uid};
use rustix::thread::set_thread_res_uid;
use tokio::sync::watch;

use supervisor_bench::{Bench, assignment, command, marked, read, until};

const MINUTE: Duration = Duration::from_secs(60);

/// Ignores SIGTERM in four ways: itself, a child in a session of its own, a daemon after a double
/// fork, and a daemon that has wiped its environment.
const STUBBORN: &str = r#"
trap '' TERM
setsid sh -c 'trap "" TERM; while :; do sleep 1000; done' &
(setsid sh -c '(trap "" TERM; exec sleep 1001) &' &)
(env -i setsid sh -c 'trap "" TERM; while :; do sleep 1002; done' &)
sleep 0.2
echo ready
while :; do sleep 1003; done
"#;

fn failed(how: &EndedHow) -> &str {
    match how {
        EndedHow::Failed { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_runs_and_ends() {
    let mut bench = Bench::new();
    let job = bench.root.path().join("shared/jobs/job-1");
    let mut plan = command(["sh", "-c", "cat \"$CONFIG\"; echo to stderr >&2; exit 3"]);
    let changed = assignment(&mut plan);
    changed.job_directory = Some(job.to_str().unwrap().to_owned());
    changed.config_files = vec![("job.yaml".to_owned(), "run: it\n".to_owned())];
    let config = job.join("config/job.yaml");
    changed.env.push(("CONFIG".to_owned(), config.to_str().unwrap().to_owned()));
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    assert!(bench.running(&key).await > 1);
    let ended = bench.ended(&key).await;
    assert_eq!(ended.how, EndedHow::Exited { code: 3 });
    assert_eq!(ended.last_output, "run: it\nto stderr");
    assert_eq!((ended.asked, ended.swept, ended.logs_complete), (false, 0, false));
    let output = bench.spool(&key).join("output.log");
    let expected = LogSource { file: "output".to_owned(), path: output.clone(), complete: true };
    let logs = bench.supervisor.log_files(&key);
    assert_eq!(logs.first(), Some(&expected));
    let names: Vec<&str> = logs.iter().map(|log| log.file.as_str()).collect();
    assert_eq!(names, ["output", SCENE_FILE]);
    assert_eq!(output.metadata().unwrap().mode() & 0o777, 0o600);
    assert_eq!(config.metadata().unwrap().mode() & 0o777, 0o644);
    bench.release(&key).await.unwrap();
    assert_eq!(bench.supervisor.log_files(&key), []);
    let copy = job.join("logs/attempt-1/rank-0.log");
    until(|| copy.exists()).await;
    assert_eq!(read(&copy), "run: it\nto stderr\n");
    let released = bench.config.state_dir.join("released");
    until(|| released.read_dir().unwrap().count() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_arrive_literally() {
    let mut bench = Bench::new();
    let words = ["$(id)", "`id`", "a  b", "'\"\\", "new\nline", "*", ""];
    let plan = command([
        "printf", "[%s]", words[0], words[1], words[2], words[3], words[4], words[5], words[6],
    ]);
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    assert_eq!(bench.ended(&key).await.how, EndedHow::Exited { code: 0 });
    assert_eq!(bench.output(&key), words.map(|word| format!("[{word}]")).concat());
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_leaves_nothing_behind() {
    let mut bench = Bench::new();
    let plan = command(["sh", "-c", STUBBORN]);
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    let main = bench.running(&key).await;
    bench.output_has(&key, "ready").await;
    let below = process::living_descendants(bench.shim(&key).pid);
    assert!(below.len() >= 7, "{below:?}");
    assert!(matches!(bench.release(&key).await, Err(SupervisorError::NotEnded(_))));

    bench.supervisor.stop(&key, Duration::from_millis(300), false);
    let state = bench.state(&key, |state| Some(state.clone())).await;
    assert_eq!(state, MemberState::Stopping);
    let ended = bench.ended(&key).await;
    assert_eq!(ended.how, EndedHow::Signalled { signal: 9 });
    assert!(ended.asked && ended.swept >= 4, "{ended:?}");
    assert!(process::stat(main).is_none(), "the main process was not reaped");
    assert!(!below.iter().any(|&id| process::lives(id)), "descendants are left");
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn daemons_go_when_the_main_process_ends() {
    let mut bench = Bench::new();
    let plan = command(["sh", "-c", "(env -i setsid sleep 1000 &); sleep 0.2; exit 0"]);
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    let ended = bench.ended(&key).await;
    assert_eq!((ended.how, ended.swept), (EndedHow::Exited { code: 0 }, 1));
    assert!(!ended.asked);
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_may_end_by_itself_within_its_grace() {
    let mut bench = Bench::new();
    let script = "trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let plan = command(["sh", "-c", script]);
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    bench.output_has(&key, "ready").await;
    bench.supervisor.stop(&key, MINUTE * 60, false);
    let ended = bench.ended(&key).await;
    assert_eq!((ended.how, ended.asked), (EndedHow::Exited { code: 7 }, true));
    assert!(ended.last_output.ends_with("saved"));
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_stop_without_grace_kills_at_once() {
    let mut bench = Bench::new();
    let plan = command(["sh", "-c", STUBBORN]);
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    bench.output_has(&key, "ready").await;
    bench.supervisor.stop(&key, MINUTE * 60, false);
    bench.state(&key, |state| (*state == MemberState::Stopping).then_some(())).await;
    bench.supervisor.stop(&key, Duration::ZERO, false);
    assert_eq!(bench.ended(&key).await.how, EndedHow::Signalled { signal: 9 });
    bench.release(&key).await.unwrap();
}

/// What was kept of a member.
fn scene(bench: &Bench, key: &MemberKey) -> Scene {
    let logs = bench.supervisor.log_files(key);
    let kept = logs.into_iter().find(|log| log.file == SCENE_FILE).unwrap();
    assert!(kept.complete);
    serde_json::from_slice(&std::fs::read(kept.path).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn how_things_stood_is_kept_before_the_first_signal() {
    let mut bench = Bench::new();
    let script = "trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let plan = command(["sh", "-c", script]);
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    bench.output_has(&key, "ready").await;
    bench.supervisor.stop(&key, MINUTE * 60, true);
    let ended = bench.ended(&key).await;
    assert_eq!((ended.how, ended.asked), (EndedHow::Exited { code: 7 }, true));
    let scene = scene(&bench, &key);
    assert_eq!((scene.occasion, scene.mark), (Occasion::Stopping, key.mark()));
    let text = |name: &str| &scene.parts.iter().find(|part| part.name == name).unwrap().text;
    assert!(text("processes").contains("trap 'echo saved"), "{}", text("processes"));
    assert_eq!(text("logs"), "== output ==\nready\n");
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_does_not_wait_until_things_are_taken_down() {
    let mut bench = Bench::new();
    let plan = command(["sh", "-c", STUBBORN]);
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    bench.output_has(&key, "ready").await;
    bench.supervisor.stop(&key, MINUTE * 60, true);
    bench.supervisor.stop(&key, Duration::ZERO, false);
    assert_eq!(bench.ended(&key).await.how, EndedHow::Signalled { signal: 9 });
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_member_that_ends_by_itself_its_last_words_are_kept() {
    let mut bench = Bench::new();
    let plan = command(["sh", "-c", "echo no such file; exit 3"]);
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    assert_eq!(bench.ended(&key).await.how, EndedHow::Exited { code: 3 });
    let scene = scene(&bench, &key);
    assert_eq!((scene.occasion, scene.stacks), (Occasion::Ended, Vec::new()));
    let logs = scene.parts.iter().find(|part| part.name == "logs").unwrap();
    assert_eq!(logs.text, "== output ==\nno such file\n");
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_agent_disturbs_nothing() {
    let mut bench = Bench::new();
    let script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let plan = command(["sh", "-c", script]);
    let key = plan.key.clone();
    bench.supervisor.start(plan.clone());
    let main = bench.running(&key).await;
    bench.output_has(&key, "ready").await;
    let before = process::stat(main).unwrap().id;

    bench.restart();
    bench.supervisor.adopt(plan.clone());
    assert_eq!(bench.running(&key).await, main);
    assert_eq!(process::stat(main).unwrap().id, before);

    // An order to start what runs already is no reason to start it twice.
    bench.restart();
    bench.supervisor.start(plan);
    assert_eq!(bench.running(&key).await, main);
    bench.supervisor.stop(&key, MINUTE, false);
    let ended = bench.ended(&key).await;
    assert_eq!((ended.how, ended.asked), (EndedHow::Exited { code: 5 }, true));
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_nobody_saw_is_found() {
    let mut bench = Bench::new();
    let gate = bench.root.path().join("gate");
    let script =
        format!("while [ ! -e {} ]; do sleep 0.02; done; echo done; exit 4", gate.display());
    let plan = command(["sh", "-c", &script]);
    let key = plan.key.clone();
    bench.supervisor.start(plan.clone());
    bench.running(&key).await;
    let shim = bench.shim(&key);
    bench.restart();
    std::fs::write(&gate, "").unwrap();
    until(|| !process::lives(shim)).await;
    bench.supervisor.adopt(plan);
    let ended = bench.ended(&key).await;
    assert_eq!(ended.how, EndedHow::Exited { code: 4 });
    assert_eq!(ended.last_output, "done");
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_of_a_dead_shim_are_found_and_killed() {
    let mut bench = Bench::new();
    let plan = command(["sh", "-c", STUBBORN]);
    let key = plan.key.clone();
    bench.supervisor.start(plan.clone());
    bench.output_has(&key, "ready").await;
    let shim = bench.shim(&key);
    let below: Vec<ProcessId> = process::living_descendants(shim.pid);
    let stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    bench.restart();
    assert!(process::send(shim, Signal::KILL).unwrap());
    until(|| !process::lives(shim)).await;
    assert!(marked(&key).len() >= 2, "there must be something to find");

    bench.supervisor.adopt(plan);
    let ended = bench.ended(&key).await;
    assert!(failed(&ended.how).contains("the shim vanished"), "{ended:?}");
    assert!(ended.swept >= 3, "{ended:?}");
    assert!(!below.iter().any(|&id| process::lives(id)), "descendants are left");
    let stranger_id = process::stat(stranger.id()).unwrap().id;
    assert!(process::lives(stranger_id), "somebody else's process was killed");
    assert!(process::send(stranger_id, Signal::KILL).unwrap());
    let mut stranger = stranger;
    stranger.wait().unwrap();
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_dies_under_a_running_agent_is_an_end_too() {
    let mut bench = Bench::new();
    let plan = command(["sh", "-c", STUBBORN]);
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    bench.output_has(&key, "ready").await;
    assert!(process::send(bench.shim(&key), Signal::KILL).unwrap());
    let ended = bench.ended(&key).await;
    assert!(failed(&ended.how).contains("the shim vanished"), "{ended:?}");
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_nursery_is_replaced_and_its_members_go_on() {
    let mut bench = Bench::new();
    let first = command(["sh", "-c", "echo ready; sleep 1000"]);
    let first_key = first.key.clone();
    bench.supervisor.start(first);
    bench.output_has(&first_key, "ready").await;
    let shim = bench.shim(&first_key);
    assert!(marked(&first_key).contains(&shim), "a shim has its member's mark as well");
    let nursery = process::stat(process::stat(shim.pid).unwrap().parent).unwrap().id;
    assert_ne!(nursery.pid, std::process::id());
    assert!(process::send(nursery, Signal::KILL).unwrap());
    until(|| !process::lives(nursery)).await;

    let second = command(["sh", "-c", "exit 5"]);
    let second_key = second.key.clone();
    bench.supervisor.start(second);
    assert_eq!(bench.ended(&second_key).await.how, EndedHow::Exited { code: 5 });
    bench.release(&second_key).await.unwrap();
    assert!(process::lives(shim));
    bench.supervisor.stop(&first_key, Duration::ZERO, false);
    assert!(bench.ended(&first_key).await.asked);
    bench.release(&first_key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_never_started_is_reported_as_such() {
    let mut bench = Bench::new();
    let plan = command(["true"]);
    let key = plan.key.clone();
    bench.supervisor.adopt(plan);
    let ended = bench.ended(&key).await;
    assert!(failed(&ended.how).contains("was not started"), "{ended:?}");
    assert_eq!(ended.swept, 0);
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_port_refuses_the_member() {
    let mut bench = Bench::new();
    let plan = command(["true"]);
    let key = plan.key.clone();
    let port = plan.member.ports.base + 7;
    let _owner = TcpListener::bind(("127.0.0.1", port)).unwrap();
    bench.supervisor.start(plan);
    let refusal = bench
        .state(&key, |state| match state {
            MemberState::Refused(refusal) => Some(refusal.clone()),
            _ => None,
        })
        .await;
    assert_eq!(refusal, Refusal::PortBusy { port });
    assert!(!bench.spool(&key).exists() && !bench.temp(&key).exists());
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_started_says_why() {
    let mut missing_program = command(["/no/such/program"]);
    let mut missing_directory = command(["true"]);
    assignment(&mut missing_directory).workdir = Some("/no/such/place".to_owned());
    let mut taken = command(["true"]);
    let mut bench = Bench::new();
    let job = bench.root.path().join("job");
    std::fs::create_dir_all(job.join("config")).unwrap();
    std::fs::write(job.join("config/job.yaml"), "of another job").unwrap();
    let changed = assignment(&mut taken);
    changed.job_directory = Some(job.to_str().unwrap().to_owned());
    changed.config_files = vec![("job.yaml".to_owned(), "run: it".to_owned())];
    for (plan, n, reason) in [
        (&mut missing_program, 1, "`/no/such/program` cannot be started: No such file"),
        (&mut missing_directory, 2, "the working directory /no/such/place: No such file"),
        (&mut taken, 3, "is not overwritten"),
    ] {
        plan.key.epoch.n = n;
        let key = plan.key.clone();
        bench.supervisor.start(plan.clone());
        let ended = bench.ended(&key).await;
        assert!(failed(&ended.how).contains(reason), "{ended:?}");
        bench.release(&key).await.unwrap();
    }
    assert_eq!(read(&job.join("config/job.yaml")), "of another job");
}

#[tokio::test(flavor = "multi_thread")]
async fn file_operations_that_hang_are_given_up() {
    let mut bench = Bench::new();
    let job = bench.root.path().join("job");
    std::fs::create_dir_all(job.join("config")).unwrap();
    // Reading a pipe that nobody writes blocks, as a share does whose server is away.
    let fifo = job.join("config/job.yaml");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let mut plan = command(["true"]);
    let changed = assignment(&mut plan);
    changed.job_directory = Some(job.to_str().unwrap().to_owned());
    changed.config_files = vec![("job.yaml".to_owned(), "run: it".to_owned())];
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    let ended = bench.ended(&key).await;
    let reason = failed(&ended.how);
    assert!(reason.contains("shared root") && reason.contains(job.to_str().unwrap()), "{reason}");
    // The logs of this job are copied to the same place, which must not hold up the release.
    bench.release(&key).await.unwrap();
    let released = bench.config.state_dir.join("released");
    until(|| released.read_dir().unwrap().count() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_directory_may_have_a_long_name() {
    let mut bench = Bench::with(|config| {
        config.state_dir = config.state_dir.join("x".repeat(120)).join("y".repeat(120));
    });
    let plan = command(["sleep", "1000"]);
    let key = plan.key.clone();
    bench.supervisor.start(plan.clone());
    let main = bench.running(&key).await;
    bench.restart();
    bench.supervisor.adopt(plan);
    assert_eq!(bench.running(&key).await, main);
    bench.supervisor.stop(&key, Duration::ZERO, false);
    bench.ended(&key).await;
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_can_be_another_user() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let mut bench = Bench::new();
    let root = bench.root.path();
    std::fs::set_permissions(root, PermissionsExt::from_mode(0o755)).unwrap();
    let shared = root.join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::os::unix::fs::chown(&shared, Some(54_321), Some(54_321)).unwrap();
    let job = shared.join("job");
    let mut plan = command(["sh", "-c", "id -u; id -g; id -G; pwd; cat \"$PWD/auth_token\""]);
    let changed = assignment(&mut plan);
    changed.run_as = Some((54_321, 54_321));
    changed.job_directory = Some(job.to_str().unwrap().to_owned());
    changed.config_files = vec![("job.yaml".to_owned(), "run: it".to_owned())];
    changed.auth_token = gangline_common::wire::v1::Secret("sesame".to_owned());
    let key = plan.key.clone();
    let temp = bench.temp(&key);
    bench.supervisor.start(plan);
    let ended = bench.ended(&key).await;
    assert_eq!(ended.how, EndedHow::Exited { code: 0 }, "{ended:?}");
    let said = format!("54321\n54321\n54321\n{}", temp.display());
    assert_eq!(ended.last_output, format!("{said}\n[secret]"), "the token is not said");
    assert_eq!(read(&bench.spool(&key).join("output.log")), format!("{said}\nsesame"));
    assert_eq!(job.join("config/job.yaml").metadata().unwrap().uid(), 54_321);
    bench.release(&key).await.unwrap();
    let copy = job.join("logs/attempt-1/rank-0.log");
    until(|| copy.exists()).await;
    assert_eq!(copy.metadata().unwrap().uid(), 54_321);
}

/// With one user for all it could: `docs/security.md` says so.
#[tokio::test(flavor = "multi_thread")]
async fn a40_a_job_of_another_user_signals_neither_the_agent_nor_another_gang() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let mut bench = Bench::new();
    std::fs::set_permissions(bench.root.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let victim = command(["sleep", "1000"]);
    let other = victim.key.clone();
    bench.supervisor.start(victim);
    let main = bench.running(&other).await;
    let (agent, shim) = (std::process::id(), bench.shim(&other).pid);
    let script = format!(
        "for pid in {agent} {shim} {main}; do LC_ALL=C kill -KILL $pid || echo refused; done 2>&1"
    );
    let mut attack = command(["sh", "-c", &script]);
    assignment(&mut attack).run_as = Some((54_321, 54_321));
    let key = attack.key.clone();
    bench.supervisor.start(attack);
    let ended = bench.ended(&key).await;
    assert_eq!(ended.last_output.matches("refused").count(), 3, "{ended:?}");
    assert_eq!(ended.last_output.matches("not permitted").count(), 3, "{ended:?}");
    bench.release(&key).await.unwrap();
    assert!(process::stat(main).is_some() && process::lives(bench.shim(&other)));
    bench.supervisor.stop(&other, Duration::ZERO, false);
    bench.ended(&other).await;
    bench.release(&other).await.unwrap();
}

/// Who connects counts, not the mode of the socket: here every door on the way to it is open.
#[tokio::test(flavor = "multi_thread")]
async fn a41_another_user_gives_a_shim_no_orders() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let mut bench = Bench::new();
    let plan = command(["sleep", "1000"]);
    let key = plan.key.clone();
    bench.supervisor.start(plan);
    let main = bench.running(&key).await;
    let socket = bench.spool(&key).join(SOCKET_FILE);
    let inside = socket.ancestors().take_while(|path| path.starts_with(bench.root.path()));
    for path in inside {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let heard = |uid: u32, request: Request| {
        let socket = socket.clone();
        let asking = std::thread::spawn(move || {
            // The credentials of this thread alone.
            let uid = Uid::from_raw(uid);
            set_thread_res_uid(uid, uid, uid).unwrap();
            let mut stream = UnixStream::connect(socket).unwrap();
            stream.set_read_timeout(Some(MINUTE)).unwrap();
            // A shim that hangs up at once lets nothing be written.
            let _ = stream.write_all(&request.encode(VERSION).unwrap());
            stream.read(&mut [0; 64]).unwrap_or(0) > 0
        });
        asking.join().unwrap()
    };
    assert!(!heard(54_321, Request::Status), "a stranger hears nothing");
    assert!(!heard(54_321, Request::Stop { grace_ms: 0 }));
    assert!(heard(0, Request::Status), "the shim is well");
    assert!(process::stat(main).is_some(), "a stranger has stopped the member");
    bench.supervisor.stop(&key, Duration::ZERO, false);
    bench.ended(&key).await;
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn training_checkpoints_of_this_incarnation_are_seen_and_seen_again_after_a_restart() {
    let mut bench = Bench::new();
    let directory = bench.root.path().join("checkpoints");
    let before = directory.join("step-1");
    std::fs::create_dir_all(&before).unwrap();
    let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    let times = std::fs::FileTimes::new().set_modified(hour_ago);
    std::fs::File::open(&before).unwrap().set_times(times).unwrap();
    let mut plan = command([
        "sh",
        "-c",
        "mkdir $GANGLINE_CKPT_DIR/step-2; while :; do sleep 0.1; [ -e $GANGLINE_CKPT_DIR/go ] && \
         mkdir -p $GANGLINE_CKPT_DIR/step-3; done",
    ]);
    assignment(&mut plan).checkpoint_directory = Some(directory.to_str().unwrap().to_owned());
    let (key, started_ms) = (plan.key.clone(), Timestamp::now().boot_ms);
    bench.supervisor.start(plan.clone());
    let second = bench.checkpoint().await;
    assert_eq!(second.name, "step-2");
    assert!((started_ms..=Timestamp::now().boot_ms).contains(&second.made_ms), "{second:?}");
    std::fs::write(directory.join("go"), "").unwrap();
    // The file to go by is an entry as good as any other, until there is a newer one.
    let mut third = bench.checkpoint().await;
    while third.name != "step-3" {
        third = bench.checkpoint().await;
    }
    assert!(third.made_ms >= second.made_ms, "{third:?}");

    bench.restart();
    bench.supervisor.adopt(plan);
    let again = bench.checkpoint().await;
    assert_eq!(again.name, "step-3");
    bench.supervisor.stop(&key, Duration::ZERO, false);
    bench.ended(&key).await;
    bench.release(&key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shared_root_is_tried_by_a_child_that_nobody_waits_for() {
    let directory = tempfile::tempdir().unwrap();
    let nursery = Arc::new(Nursery::new(env!("CARGO_BIN_EXE_gangline-agent").into()));
    let (_root, known) = watch::channel(None);
    let collector =
        |timeout| SharedCollector::new(Arc::clone(&nursery), known.clone(), "n1", timeout);

    let good = collector(MINUTE).read(directory.path()).await.unwrap();
    assert!(matches!(good.outcome, CanaryOutcome::Ok { .. }), "{good:?}");
    assert!(good.room.is_some_and(|room| room.total_bytes > 0));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let gone = collector(MINUTE).read(&directory.path().join("gone")).await.unwrap();
    assert!(matches!(gone.outcome, CanaryOutcome::Failed { .. }), "{gone:?}");

    // No time at all: a child is too slow unless this thread is slower still. It is killed, and the next
    // one is tried when it has ended.
    let mut hasty = collector(Duration::ZERO);
    let mut late = 0;
    for _ in 0..1000 {
        let reading = hasty.read(directory.path()).await.unwrap();
        if matches!(reading.outcome, CanaryOutcome::TimedOut { .. }) {
            assert_eq!(reading.room, None);
            late += 1;
        }
        if late == 3 {
            return;
        }
    }
    panic!("{late} of 1000 tries were too slow");
}
