//! Logs of many files over HTTP: lists, lines in the order of time, searches, and what was removed.

mod fixture;

use std::time::Duration;

use axum::http::Method;
use fixture::{ALICE, BOB, CAROL, DAVE, Fixture, SPEC, ended};
use gangline_common::ids::{MemberId, MemberKey, NodeId};
use gangline_common::time::{Timestamp, wall_text};
use gangline_common::wire::v1::{HostSample, LogChunk, NodeSample};
use gangline_coordinator::core::gang::{EndHow, Phase};
use gangline_coordinator::core::job::JobState;
use gangline_coordinator::ingest::logs::{Fate, Policy};
use serde_json::{Value, json};

/// A job of two ranks that runs.
struct Scene {
    fixture: Fixture,
    job: String,
    ranks: [MemberKey; 2],
    nodes: [fixture::Node; 2],
    /// When the first line was read.
    begin_ms: u64,
}

impl Scene {
    async fn start() -> Scene {
        Scene::of(&SPEC.replace("nnodes: 1", "nnodes: 2")).await
    }

    async fn of(spec: &str) -> Scene {
        let fixture = Fixture::start().await;
        let job = fixture.submit(ALICE, spec).await;
        let nodes = [fixture.node("gpu-1").await, fixture.node("gpu-2").await];
        let first = fixture.place(&job, 1).await;
        let second = MemberKey { member: MemberId::Rank(1), ..first.clone() };
        let begin_ms = Timestamp::now().wall_ms - 4000;
        Scene { fixture, job, ranks: [first, second], nodes, begin_ms }
    }

    /// As if the agent had read it so long after the beginning.
    fn write(&self, rank: usize, file: &str, after_ms: u64, text: &[u8]) {
        let key = self.ranks[rank].clone();
        let files = self.fixture.logs.files(&key.gang, key.epoch);
        let there = files.iter().find(|(m, name, _)| *m == key.member && name == file);
        let offset = there.map_or(0, |(_, _, length)| *length);
        let (file, bytes, read_ms) = (file.to_owned(), text.to_vec(), self.begin_ms + after_ms);
        let chunk = LogChunk { key, file, offset, bytes, read_ms };
        self.fixture.logs.write_batch(vec![chunk]).unwrap();
    }

    async fn lines(&self, query: &str) -> Value {
        self.fixture.get(&format!("/api/v1/jobs/{}/logs/lines?{query}", self.job), ALICE).await
    }

    async fn texts(&self, query: &str) -> Vec<String> {
        texts(&self.lines(query).await)
    }

    async fn end(&self) {
        let view = self.fixture.get(&format!("/api/v1/jobs/{}", self.job), ALICE).await;
        let on = |rank: usize| {
            let name = &view["members"][rank]["node"];
            self.nodes.iter().find(|node| name == node.name()).unwrap()
        };
        let [first, second] = &self.ranks;
        on(1).report(vec![(second.clone(), Phase::Running { pid: 8 })], Vec::new()).await;
        on(0).report_running(first).await;
        on(0).report(vec![(first.clone(), ended(EndHow::Exited { code: 0 }))], Vec::new()).await;
        on(1).report_success(second).await;
    }
}

fn texts(page: &Value) -> Vec<String> {
    let lines = page["lines"].as_array().unwrap();
    let text = |line: &Value| {
        format!("{} {}", line["member"].as_str().unwrap(), line["text"].as_str().unwrap())
    };
    lines.iter().map(text).collect()
}

#[tokio::test]
async fn lines_of_all_ranks_come_in_the_order_of_time() {
    let scene = Scene::start().await;
    scene.write(0, "output", 0, b"begin\n");
    scene.write(1, "output", 500, b"begin too\n");
    scene.write(0, "output", 1000, b"step 1\nerror: bad\nhalf");
    scene.write(1, "worker-7-ab-err", 1500, b"RuntimeError: NCCL\n");
    scene.write(1, "raylet-out", 1700, b"of ray\n");
    let all = ["0 begin", "1 begin too", "0 step 1", "0 error: bad", "1 RuntimeError: NCCL"];
    assert_eq!(scene.texts("all=true").await, all);
    assert_eq!(scene.texts("").await, ["0 begin", "0 step 1", "0 error: bad"]);
    assert_eq!(scene.texts("rank=1").await, ["1 begin too"]);
    assert_eq!(scene.texts("all=true&rank=1").await, ["1 begin too", "1 RuntimeError: NCCL"]);
    assert_eq!(scene.texts("file=raylet*").await, ["1 of ray"]);
    assert_eq!(scene.texts("file=*").await.len(), 6);
    assert_eq!(scene.texts("all=true&tail=2").await, all[3..]);
    let since = format!("all=true&since_ms={}", scene.begin_ms + 1300);
    assert_eq!(scene.texts(&since).await, all[4..]);
    let until = format!("all=true&until_ms={}", scene.begin_ms + 600);
    assert_eq!(scene.texts(&until).await, all[..2]);
    assert_eq!(scene.texts("all=true&errors=true").await, all[3..]);
    assert_eq!(
        scene.texts("all=true&grep=^step&context=1").await,
        ["0 begin", "0 step 1", "0 error: bad"]
    );
    let view = scene.fixture.get(&format!("/api/v1/jobs/{}", scene.job), ALICE).await;
    let node = view["members"][1]["node"].as_str().unwrap();
    let on_node = scene.texts(&format!("node={node}")).await;
    assert_eq!(on_node, ["1 begin too", "1 RuntimeError: NCCL"]);

    // Page by page, with what comes meanwhile.
    let mut page = scene.lines("all=true&limit=2").await;
    assert_eq!((texts(&page), &page["more"]), (vec![all[0].into(), all[1].into()], &json!(true)));
    assert_eq!(page["lines"][0]["time_ms"], scene.begin_ms);
    scene.write(0, "output", 2000, b" line\n");
    scene.end().await;
    let mut rest = Vec::new();
    while page["complete"] != true {
        let cursor = page["cursor"].as_str().unwrap().to_owned();
        page = scene.lines(&format!("all=true&limit=2&cursor={cursor}")).await;
        rest.extend(texts(&page));
    }
    // The last line began before that of rank 1 was written.
    assert_eq!(rest, [&all[2..4], &["0 half line"], &all[4..]].concat());
}

#[tokio::test]
async fn who_waits_for_lines_gets_them_when_they_come() {
    let scene = Scene::start().await;
    scene.write(0, "output", 0, b"one\n");
    let first = scene.lines("all=true&wait_s=20").await;
    let query = format!("all=true&wait_s=20&cursor={}", first["cursor"].as_str().unwrap());
    let write = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        let mut changes = scene.fixture.logs.changes();
        changes.mark_unchanged();
        scene.write(1, "output", 400, b"two\n");
        scene.end().await;
    };
    let (next, ()) = tokio::join!(scene.texts(&query), write);
    assert_eq!(next, ["1 two"]);
}

#[tokio::test]
async fn the_files_of_an_attempt_are_listed() {
    let scene = Scene::start().await;
    scene.write(0, "output", 0, b"begin\n");
    scene.write(0, "output", 3000, b"more\n");
    scene.write(1, "driver-x", 0, b"");
    let path = format!("/api/v1/jobs/{}/logs/files", scene.job);
    let list = scene.fixture.get(&path, CAROL).await;
    assert_eq!((&list["attempt"], list["files"].as_array().unwrap().len()), (&json!(1), 1));
    let file = &list["files"][0];
    assert_eq!(
        (&file["member"], &file["file"], &file["bytes"]),
        (&json!("0"), &json!("output"), &json!(11))
    );
    assert_eq!((&file["compressed"], &file["complete"]), (&json!(false), &json!(false)));
    assert!(file["first"].as_str() < file["newest"].as_str(), "{file}");
    let raw = format!("/api/v1/jobs/{}/logs?since_ms={}", scene.job, scene.begin_ms + 1000);
    let raw = scene.fixture.request(Method::GET, &raw, ALICE).send().await.unwrap();
    assert_eq!(raw.headers()["x-gangline-next-offset"], "11");
    assert_eq!(raw.text().await.unwrap(), "more\n");
    for list in ["files", "lines"] {
        let path = format!("/api/v1/jobs/{}/logs/{list}", scene.job);
        assert_eq!(scene.fixture.problem(Method::GET, &path, BOB).await["code"], "E0306");
    }
}

#[tokio::test]
async fn queries_that_cannot_be_meant_are_refused() {
    let scene = Scene::start().await;
    scene.write(0, "output", 0, b"begin\n");
    let long = format!("grep={}", "x".repeat(1001));
    for query in [
        "grep=(",
        "grep=a{9999}{9999}",
        &long,
        "context=51",
        "limit=0",
        "tail=5&errors=true",
        "rank=7",
        "node=gpu-9",
        "file=../x",
        "attempt=2",
        "cursor=x",
        "unknown=1",
    ] {
        let path = format!("/api/v1/jobs/{}/logs/lines?{query}", scene.job);
        let problem = scene.fixture.problem(Method::GET, &path, ALICE).await;
        assert_eq!(problem["code"], "E0300", "{query}: {problem}");
    }
}

#[tokio::test]
async fn what_is_named_wrongly_is_refused_and_not_taken_for_nothing() {
    let scene = Scene::start().await;
    scene.write(0, "output", 0, b"text\n");
    let job = &scene.job;
    let wrong = [
        (format!("/api/v1/jobs/{job}/logs?attempt=9"), "E0300"),
        (format!("/api/v1/jobs/{job}/logs/lines?attempt=9"), "E0300"),
        ("/api/v1/nodes?pool=nosuch".to_owned(), "E0370"),
        ("/api/v1/nodes?pol=default".to_owned(), "E0300"),
        ("/api/v1/nodes/stream?pool=nosuch".to_owned(), "E0370"),
        ("/api/v1/queue?pool=nosuch".to_owned(), "E0370"),
        ("/api/v1/nodes/stream?node=nosuch".to_owned(), "E0307"),
        ("/api/v1/events?object=job%20nosuch".to_owned(), "E0306"),
        ("/api/v1/events?object=node%20nosuch".to_owned(), "E0307"),
        ("/api/v1/events?kind=job.faild".to_owned(), "E0300"),
    ];
    for (path, code) in wrong {
        let problem = scene.fixture.problem(Method::GET, &path, ALICE).await;
        assert_eq!(problem["code"], code, "{path}: {problem}");
    }
    // A file may come as long as the attempt runs.
    for (path, follows) in [("logs", ""), ("logs/lines", "&tail=5")] {
        let path = format!("/api/v1/jobs/{job}/{path}?file=nosuch{follows}");
        let answer = scene.fixture.request(Method::GET, &path, ALICE).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
    }
    scene.end().await;
    for path in ["logs", "logs/lines"] {
        let path = format!("/api/v1/jobs/{job}/{path}?file=nosuch");
        let problem = scene.fixture.problem(Method::GET, &path, ALICE).await;
        assert_eq!(problem["code"], "E0300", "{path}: {problem}");
    }
    // A name or the beginning of an id is as good as the id.
    let name = scene.fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await["name"].clone();
    let of = async |selector: &str| {
        let path = format!("/api/v1/events?object=job%20{selector}");
        scene.fixture.get(&path, ALICE).await["events"].as_array().map(Vec::len)
    };
    let all = of(job).await;
    assert!(all.is_some_and(|events| events > 0), "{all:?}");
    assert_eq!((of(name.as_str().unwrap()).await, of(&job[..6]).await), (all, all));
}

#[tokio::test]
async fn noise_and_lies_in_a_log_stay_harmless() {
    let scene = Scene::start().await;
    scene.write(0, "output", 0, &vec![0; 300_000]);
    scene.write(0, "output", 10, b"\n 10%\r 55%\r100%\r\n\xff\x1b[31m ok\n");
    let page = scene.lines("").await;
    // The escape is for the client to take out; the noise is gone.
    assert_eq!(texts(&page), ["0 100%", "0 \u{fffd}\u{1b}[31m ok"]);
    assert_eq!(scene.texts("grep=55").await, ["0  55%"]);
    let raw = scene.lines("raw=true&grep=55").await;
    assert_eq!(raw["lines"][0]["text"], " 10%\r 55%\r100%");
    // An index of times that lies costs the times, no line.
    let key = &scene.ranks[0];
    let times = format!("logs/{}/{}/0/output.times", key.gang, key.epoch);
    std::fs::write(scene.fixture.path().join(times), vec![0xee; 28 * 200]).unwrap();
    let page = scene.lines(&format!("since_ms={}", u64::MAX)).await;
    assert_eq!(
        (page["lines"].as_array().unwrap().len(), &page["lines"][0]["time_ms"]),
        (2, &Value::Null)
    );
}

#[tokio::test]
async fn a_search_goes_over_the_jobs_of_a_project() {
    let scene = Scene::start().await;
    let fixture = &scene.fixture;
    scene.write(0, "output", 0, b"begin\nNCCL error 5\n");
    scene.write(1, "output", 0, b"begin\nNCCL error 6\n");
    let _more = [fixture.node("gpu-3").await, fixture.node("gpu-4").await];
    let other = fixture.submit(BOB, SPEC).await;
    let member = fixture.place(&other, 1).await;
    fixture.write_log(&member, "output", b"NCCL error of bob\n");
    let later = fixture.submit(ALICE, SPEC).await;
    let member = fixture.place(&later, 1).await;
    fixture.write_log(&member, "output", b"NCCL error 7\nfine\n");

    let found = async |query: &str, token: &str| {
        let (mut cursor, mut found) = (String::new(), Vec::new());
        loop {
            let path = format!("/api/v1/logs/search?grep=NCCL&{query}{cursor}");
            let page = fixture.get(&path, token).await;
            for line in page["lines"].as_array().unwrap() {
                found.push((
                    line["job"].as_str().unwrap().to_owned(),
                    line["text"].as_str().unwrap().to_owned(),
                ));
            }
            match page["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return found,
            }
        }
    };
    let line = |job: &str, text: &str| (job.to_owned(), text.to_owned());
    let of_alice = [
        line(&later, "NCCL error 7"),
        line(&scene.job, "NCCL error 5"),
        line(&scene.job, "NCCL error 6"),
    ];
    assert_eq!(found("", ALICE).await, of_alice);
    assert_eq!(found("limit=1", CAROL).await, of_alice);
    assert_eq!(found(&format!("job={}", scene.job), ALICE).await, of_alice[1..]);
    assert_eq!(found("", BOB).await, [line(&other, "NCCL error of bob")]);
    assert_eq!(found("project=rlhf", DAVE).await, of_alice);
    assert_eq!(found("", DAVE).await, []);
    let search = |query: &str| format!("/api/v1/logs/search?{query}");
    let refused = fixture.problem(Method::GET, &search("grep=x&project=rlhf"), BOB).await;
    assert_eq!(refused["status"], 403);
    for query in ["", "grep=(", "grep=x&limit=0", "grep=x&cursor=1"] {
        let problem = fixture.problem(Method::GET, &search(query), ALICE).await;
        assert_eq!(problem["code"], "E0300", "{query}");
    }
}

#[tokio::test]
async fn what_was_removed_or_compressed_is_said_or_read_all_the_same() {
    let scene = Scene::start().await;
    let text = b"step: one line of many\n".repeat(5000);
    scene.write(0, "output", 0, &text);
    scene.end().await;
    let policy = Policy { keep_ms: 30_000, keep_failed_ms: 0, max_bytes: 0 };
    let now = Timestamp::now().wall_ms;
    let sweep = |age_ms| {
        let fate = Some(Fate::Ended { at_ms: now - age_ms, failed: false });
        scene.fixture.logs.sweep(|_, _| fate, policy, now, || true).unwrap()
    };
    assert_eq!(sweep(10).packed, 0, "it may be read just now");
    let policy_later = Policy { keep_ms: 0, ..policy };
    let fate = Some(Fate::Ended { at_ms: now - 700_000, failed: false });
    let swept = scene.fixture.logs.sweep(|_, _| fate, policy_later, now, || true).unwrap();
    assert_eq!(swept.packed, 1);
    let page = scene.lines("tail=3").await;
    assert_eq!((page["lines"].as_array().unwrap().len(), &page["complete"]), (3, &json!(true)));
    assert_eq!(scene.texts("grep=nothing").await.len(), 0);
    let path = format!("/api/v1/jobs/{}/logs?offset=23&limit=22", scene.job);
    let raw = scene.fixture.request(Method::GET, &path, ALICE).send().await.unwrap();
    assert_eq!(raw.text().await.unwrap(), "step: one line of many");

    assert_eq!(sweep(31_000).removed, 1);
    for path in ["logs", "logs/lines", "logs/files"] {
        let path = format!("/api/v1/jobs/{}/{path}", scene.job);
        let problem = scene.fixture.problem(Method::GET, &path, ALICE).await;
        assert_eq!((&problem["status"], &problem["code"]), (&json!(410), &json!("E0393")));
        assert!(problem["detail"].as_str().unwrap().contains("older than 30 s"), "{problem}");
    }
    let page = scene.fixture.get("/api/v1/logs/search?grep=step", ALICE).await;
    assert_eq!((&page["incomplete"], &page["cursor"]), (&json!([scene.job]), &Value::Null));
}

/// Rank 1 has failed first, although the clock of its node is five minutes ahead; and its line is at
/// the end of a log of which the middle is not looked at.
#[tokio::test]
async fn the_first_cause_is_found_though_clocks_differ_and_its_line_has_its_number() {
    let spec = SPEC.replace("nnodes: 1", "nnodes: 2") + "retry: {max: 0}\n";
    let scene = Scene::of(&spec).await;
    let ahead_ms = 300_000;
    let host = HostSample { clock_offset_ms: Some(ahead_ms), ..HostSample::default() };
    let sample = NodeSample { wall_ms: Timestamp::now().wall_ms, host, ..NodeSample::default() };
    let view = scene.fixture.get(&format!("/api/v1/jobs/{}", scene.job), ALICE).await;
    let second = view["members"][1]["node"].as_str().unwrap();
    let id = NodeId::new(format!("n-{second}")).unwrap();
    scene
        .fixture
        .telemetry
        .record(&id, &sample.to_frame().unwrap(), Timestamp::now().wall_ms)
        .unwrap();

    let begin = scene.begin_ms;
    let later = format!("{} ERROR KeyError: 'answer'\n", wall_text(begin + 2000));
    scene.write(0, "output", 2100, later.as_bytes());
    let lines = 200_000;
    scene.write(1, "output", 0, &b"one of many lines\n".repeat(lines));
    let shown = wall_text(begin + 1000 + ahead_ms as u64);
    let first = format!("{shown} ERROR OSError: [Errno 28] No space left on device\n");
    scene.write(1, "output", 1100, first.as_bytes());
    // Rank 0 ends by itself, and what is left is stopped.
    let on = |rank: usize| {
        let name = &view["members"][rank]["node"];
        scene.nodes.iter().find(|node| name == node.name()).unwrap()
    };
    let [one, other] = &scene.ranks;
    let end = ended(EndHow::Exited { code: 1 });
    on(0).report(vec![(one.clone(), end.clone())], Vec::new()).await;
    on(1).report(vec![(other.clone(), end)], Vec::new()).await;
    let over = on(0).until(one, JobState::is_terminal);
    tokio::time::timeout(Duration::from_secs(20), over).await.unwrap();

    let path = format!("/api/v1/jobs/{}/why", scene.job);
    let why = scene.fixture.get(&path, ALICE).await;
    let found = &why["diagnosis"];
    assert_eq!((&found["category"], &found["rank"]), (&json!("storage"), &json!(1)), "{why}");
    assert_eq!(found["evidence"][0]["line"], lines + 1, "{why}");
}
