//! `logs`: pieces, the end of a long log, and following through lost connections.

use std::io::{BufRead, BufReader, Read};

use serde_json::{Value, json};

use crate::answers::{end_event, ended, log_event, log_page, running, unexpected};
use crate::server::{Asked, Play, Server, command, finish, json as answer, run};

const STREAM: &str = "GET /api/v1/jobs/j-7f3k2/logs/stream";

/// A server with a job, its log as pages, and `stream` for whoever follows it.
fn serving(
    log: Vec<u8>,
    end: &'static str,
    stream: impl Fn(&Asked, usize) -> Play + Send + Sync + 'static,
) -> Server {
    Server::start(move |asked, number| match asked.line().as_str() {
        "GET /api/v1/jobs/j-7f3k2" if number == 0 => answer(200, &running()),
        "GET /api/v1/jobs/j-7f3k2" => answer(200, &ended(end, "", None)),
        "GET /api/v1/jobs/j-7f3k2/logs" => log_page(&log, &asked.query),
        STREAM => stream(asked, number),
        _ => unexpected(),
    })
}

fn paged(log: &[u8]) -> Server {
    serving(log.to_vec(), "SUCCEEDED", |_, _| unexpected())
}

#[test]
fn a_log_is_printed_without_control_sequences() {
    let log = "\u{1b}[31mred\u{1b}[0m\n 10%\r 50%\r100%\nlast\u{1b}]0;canary\u{7} line".as_bytes();
    let server = paged(log);
    let ended = run(&server, &["logs", "j-7f3k2"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "red\n100%\nlast line\n"));
    assert_eq!(ended.stderr, "── j-7f3k2 · RUNNING · log of the Ray driver on gpu-0203 ──\n");
    assert_eq!(server.asked()[1].query["attempt"], "1", "one attempt for all pieces");
    let raw = run(&paged(log), &["logs", "--raw", "j-7f3k2"]);
    assert_eq!(raw.stdout.as_bytes(), log);
}

#[test]
fn a_large_log_comes_in_pieces_and_loses_nothing() {
    // Characters of three bytes, so that the pieces are cut within them.
    let log = "训练".repeat(200_000);
    let server = paged(log.as_bytes());
    let ended = run(&server, &["logs", "j-7f3k2", "--tail", "all"]);
    assert_eq!(ended.stdout.len(), log.len() + 1);
    assert_eq!(ended.stdout.trim_end(), log);
    let pages = server.asked_for("GET /api/v1/jobs/j-7f3k2/logs");
    assert!(
        pages.len() > 4
            && pages.iter().all(|page| page.query["limit"].parse::<u64>().unwrap() <= 262_144)
    );
    let lines =
        run(&paged(log.as_bytes()), &["logs", "j-7f3k2", "--tail", "all", "-o", "jsonl"]).stdout;
    let mut text = String::new();
    for line in lines.lines() {
        let piece: Value = serde_json::from_str(line).unwrap();
        assert_eq!(piece["offset"], text.len());
        text.push_str(piece["text"].as_str().unwrap());
    }
    assert_eq!(text, log);
}

#[test]
fn the_end_of_a_log_is_found_from_behind() {
    let log: String = (0..50_000).map(|number| format!("line {number}\n")).collect();
    let server = paged(log.as_bytes());
    let ended = run(&server, &["logs", "j-7f3k2", "--tail", "2"]);
    assert_eq!(ended.stdout, "line 49998\nline 49999\n");
    assert!(ended.stderr.contains("--tail all"), "{}", ended.stderr);
    let read: u64 = server
        .asked_for("GET /api/v1/jobs/j-7f3k2/logs")
        .iter()
        .map(|page| page.query["limit"].parse::<u64>().unwrap())
        .sum();
    assert!(read < 70_000, "{read} bytes of {} were asked for", log.len());
    let ended = run(&paged(log.as_bytes()), &["logs", "j-7f3k2"]);
    assert_eq!(ended.stdout.lines().count(), 1000);
    assert!(ended.stdout.starts_with("line 49000\n"));
    // Fewer lines than asked for, one without its end, and none at all.
    assert_eq!(run(&paged(b"a\nb"), &["logs", "j-7f3k2", "--tail", "9"]).stdout, "a\nb\n");
    assert_eq!(run(&paged(b"a\nb"), &["logs", "j-7f3k2", "--tail", "1"]).stdout, "b\n");
    assert_eq!(run(&paged(b"a\nb"), &["logs", "j-7f3k2", "--tail", "0"]).stdout, "");
    let ended = run(&paged(b""), &["logs", "j-7f3k2"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, ""));
    assert!(ended.stderr.contains("nothing yet"), "{}", ended.stderr);
}

#[test]
fn rank_and_attempt_are_passed_on() {
    let server = paged(b"x\n");
    run(&server, &["logs", "j-7f3k2", "--rank", "head", "--attempt", "4"]);
    let query = &server.asked()[1].query;
    assert_eq!((query["rank"].as_str(), query["attempt"].as_str()), ("head", "4"));
    assert_eq!(run(&server, &["logs", "j-7f3k2", "--rank", "first"]).code, 2);
}

#[test]
fn following_survives_lost_connections() {
    let text = "one\ntwo\nthree\nvier é\nfive\n";
    let server = serving(Vec::new(), "SUCCEEDED", move |asked, number| {
        let since: usize = asked.query["since"].parse().unwrap();
        match number {
            // Cut in the middle of an event: the half one must not be printed.
            0 => Play::Events(format!(
                "{}event: log\nid: 8\ndata: {{\"attempt\":1,",
                log_event(1, 0, &text[..4])
            )),
            1 => Play::Nothing,
            2 => crate::server::problem(503, "E0315", "Too many streams"),
            // A server that does not go on where it was asked to: first before, then behind.
            3 => Play::Events(log_event(1, 0, &text[..8])),
            4 => Play::Events(log_event(1, 8, &text[8..14])),
            5 => Play::Events(format!(": ping\n\n{}", log_event(1, since, &text[since..14]))),
            _ => Play::Events(format!(
                "{}{}",
                log_event(1, since, &text[since..]),
                end_event("SUCCEEDED")
            )),
        }
    });
    let ended = run(&server, &["logs", "-f", "j-7f3k2", "--tail", "all"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, text));
    assert!(ended.stderr.contains("the job goes on, trying again"), "{}", ended.stderr);
    let since: Vec<String> =
        server.asked_for(STREAM).iter().map(|asked| asked.query["since"].clone()).collect();
    assert_eq!(since, ["0", "4", "4", "4", "4", "4", "14"]);
    let attempts: Vec<_> = server
        .asked_for(STREAM)
        .iter()
        .map(|asked| asked.query.get("since_attempt").cloned())
        .collect();
    assert_eq!((&attempts[0], attempts[6].as_deref()), (&None, Some("1")));
}

#[test]
fn following_survives_a_restart_of_the_coordinator() {
    let mut first = serving(Vec::new(), "FAILED", |_, _| Play::Events(log_event(1, 0, "one\n")));
    let address = format!("http://{}", first.address);
    let child = command(&address, &["logs", "-f", "j-7f3k2", "--tail", "all"]).spawn().unwrap();
    let mut child = child;
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "one\n");
    let port = first.address;
    first.stop();
    let second = Server::start_at(port, |asked, _| match asked.line().as_str() {
        STREAM => Play::Events(format!("{}{}", log_event(1, 4, "two\n"), end_event("FAILED"))),
        _ => answer(200, &ended("FAILED", "exit code 1", None)),
    });
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "two\n");
    assert_eq!(child.wait().unwrap().code(), Some(100));
    let asked = second.asked_for(STREAM);
    assert_eq!((asked.len(), asked[0].query["since"].as_str()), (1, "4"));
}

#[test]
fn a_new_attempt_begins_at_its_own_start() {
    let server = serving(Vec::new(), "SUCCEEDED", |_, number| match number {
        0 => {
            Play::Events(format!("{}{}", log_event(1, 0, "first try"), log_event(2, 0, "again\n")))
        }
        _ => Play::Events(format!("{}{}", log_event(2, 6, "done\n"), end_event("SUCCEEDED"))),
    });
    let ended = run(&server, &["logs", "-f", "j-7f3k2", "--tail", "all"]);
    assert_eq!(ended.stdout, "first try\nagain\ndone\n");
    assert!(ended.stderr.contains("── j-7f3k2 attempt 2 ──"), "{}", ended.stderr);
    let last = &server.asked_for(STREAM)[1].query;
    assert_eq!((last["since"].as_str(), last["since_attempt"].as_str()), ("6", "2"));
}

#[test]
fn a_gap_that_stays_is_told_and_not_waited_for() {
    let server = serving(Vec::new(), "SUCCEEDED", |_, _| {
        Play::Events(format!("{}{}", log_event(1, 10, "late\n"), end_event("SUCCEEDED")))
    });
    let ended = run(&server, &["logs", "-f", "j-7f3k2", "--tail", "all"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "late\n"));
    assert!(ended.stderr.contains("goes on at byte 10 instead of 0"), "{}", ended.stderr);
}

#[test]
fn following_begins_with_the_last_lines() {
    let log = b"a\nb\nc\n";
    let server = serving(log.to_vec(), "CANCELLED", |asked, _| {
        assert_eq!(
            (asked.query["since"].as_str(), asked.query["since_attempt"].as_str()),
            ("4", "1")
        );
        Play::Events(format!("{}{}", log_event(1, 4, "c\nd\n"), end_event("CANCELLED")))
    });
    let ended = run(&server, &["logs", "-f", "j-7f3k2", "--tail", "1"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (103, "c\nd\n"));
}

#[test]
fn one_attempt_has_a_result_of_its_own() {
    let server = Server::start(|asked, _| match asked.line().as_str() {
        STREAM => {
            assert_eq!(asked.query["attempt"], "1");
            assert_eq!(asked.query.get("since_attempt"), None);
            Play::Events(format!("{}{}", log_event(1, 0, "x\n"), end_event("FAILED")))
        }
        _ => {
            let mut job = running();
            job["attempt_list"][0]["outcome"] = "FAILED".into();
            answer(200, &job)
        }
    });
    let ended = run(&server, &["logs", "-f", "j-7f3k2", "--attempt", "1", "--tail", "all"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (100, "x\n"));
}

#[test]
fn ctrl_c_detaches() {
    let server = serving(Vec::new(), "SUCCEEDED", |_, _| {
        Play::EventsThenSilence(log_event(1, 0, "one\nhalf a line"))
    });
    let address = format!("http://{}", server.address);
    let mut child = command(&address, &["logs", "-f", "j-7f3k2", "--tail", "all"]).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "one\n");
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "half a line\n", "what was held back is shown");
    child.stdout = Some(reader.into_inner());
    let ended = finish(child);
    assert_eq!(ended.code, 130);
    let sentence = "detached; job goes on: gangline stop j-7f3k2 to stop it\n";
    assert!(ended.stderr.ends_with(sentence), "{}", ended.stderr);
}

#[test]
fn a_missing_end_is_told() {
    let server = serving(Vec::new(), "FAILED", |_, _| {
        let data = json!({"state": "FAILED", "reason": "", "attempt": 1, "complete": false});
        Play::Events(format!("{}event: end\ndata: {data}\n\n", log_event(1, 0, "x\n")))
    });
    let ended = run(&server, &["logs", "-f", "j-7f3k2", "--tail", "all"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (100, "x\n"));
    assert!(ended.stderr.contains("the end of the log of j-7f3k2 is missing"), "{}", ended.stderr);
}

const LINES: &str = "GET /api/v1/jobs/j-7f3k2/logs/lines";

fn line(member: &str, file: &str, offset: u64, text: &str) -> Value {
    let next = offset + text.len() as u64 + 1;
    json!({
        "time_ms": 946_782_131_000_u64, "member": member, "node": "gpu-0203", "file": file,
        "offset": offset, "next": next, "text": text, "hit": true, "cut": false,
    })
}

fn line_page(lines: &[Value], cursor: &str, more: bool, complete: bool) -> Play {
    let page = json!({
        "attempt": 1, "lines": lines, "cursor": cursor, "more": more, "complete": complete,
        "scanned_bytes": 1, "unreadable": [],
    });
    answer(200, &page)
}

#[test]
fn all_members_are_merged_with_time_and_rank() {
    let server = Server::start(|asked, number| match (asked.line().as_str(), number) {
        ("GET /api/v1/jobs/j-7f3k2", _) => answer(200, &running()),
        (LINES, 0) => {
            let first = [
                line("0", "driver-j-7f3k2-1", 0, "step:83\u{1b}[2J"),
                line("2", "output", 0, "saved"),
            ];
            line_page(&first, "1*0.a.1", true, false)
        }
        (LINES, _) => {
            assert_eq!(asked.query["cursor"], "1*0.a.1");
            line_page(&[line("1", "worker-7-ab-err", 0, "warn")], "1*0.a.2", false, false)
        }
        _ => unexpected(),
    });
    let ended = run(&server, &["logs", "j-7f3k2", "--all"]);
    let expected = "01-02 03:02:11 driver step:83\n01-02 03:02:11 n2     saved\n\
                    01-02 03:02:11 n1/worker-7-ab-err warn\n";
    assert_eq!((ended.code, ended.stdout.as_str()), (0, expected));
    assert_eq!(ended.stderr, "── j-7f3k2 · RUNNING · all members by time ──\n");
    let query = &server.asked_for(LINES)[0].query;
    assert_eq!((query["all"].as_str(), query["tail"].as_str()), ("true", "1000"));
}

#[test]
fn hits_come_with_their_surroundings_and_no_tail() {
    let server = Server::start(|asked, _| match asked.line().as_str() {
        LINES => {
            let hits = [
                line("0", "output", 0, "before"),
                line("0", "output", 7, "error"),
                line("0", "output", 90, "error"),
            ];
            line_page(&hits, "1", false, true)
        }
        _ => answer(200, &running()),
    });
    let flags = ["logs", "j-7f3k2", "--grep", "err.*", "-C", "1", "--errors", "--since", "10m"];
    let ended = run(&server, &flags);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "before\nerror\n--\nerror\n"));
    let query = &server.asked_for(LINES)[0].query;
    for (key, value) in [("grep", "err.*"), ("context", "1"), ("errors", "true")] {
        assert_eq!(query[key], value);
    }
    assert!(query.contains_key("since_ms") && !query.contains_key("tail"));
    let lines = run(&server, &["logs", "j-7f3k2", "--errors", "-o", "jsonl"]).stdout;
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!((&first["text"], &first["hit"]), (&json!("before"), &json!(true)));
}

#[test]
fn merged_lines_are_followed_over_lost_connections_to_the_end() {
    let server = Server::start(|asked, number| match (asked.line().as_str(), number) {
        ("GET /api/v1/jobs/j-7f3k2", 0) => answer(200, &running()),
        ("GET /api/v1/jobs/j-7f3k2", _) => answer(200, &ended("FAILED", "exit code 1", None)),
        (LINES, 0) => line_page(&[line("0", "output", 0, "one")], "1*0.output.4", false, false),
        (LINES, 1) => Play::Nothing,
        (LINES, _) => {
            assert_eq!(asked.query["cursor"], "1*0.output.4");
            line_page(&[line("1", "output", 0, "two")], "1*0.output.4*1.output.4", false, true)
        }
        _ => unexpected(),
    });
    let ended = run(&server, &["logs", "-f", "--all", "j-7f3k2"]);
    assert_eq!(ended.code, 100, "{}", ended.stderr);
    assert!(ended.stdout.ends_with("n0     one\n01-02 03:02:11 n1     two\n"), "{}", ended.stdout);
    assert!(ended.stderr.contains("trying again"), "{}", ended.stderr);
}

#[test]
fn the_logs_of_a_project_are_searched() {
    let server = Server::start(|asked, number| {
        let mut hit = line("0", "output", 0, "NCCL error");
        hit["job"] = json!("j-7f3k2");
        let cursor = if number == 0 { json!("5.1") } else { Value::Null };
        assert_eq!(asked.query.contains_key("cursor"), number > 0);
        let gone = if number == 0 { json!(["j-old"]) } else { json!([]) };
        answer(200, &json!({"lines": [hit], "cursor": cursor, "incomplete": gone}))
    });
    let ended = run(&server, &["logs", "--search", "NCCL", "--project", "rlhf"]);
    let expected = "01-02 03:02:11 j-7f3k2 n0 NCCL error\n".repeat(2);
    assert_eq!((ended.code, ended.stdout), (0, expected));
    assert!(ended.stderr.contains("not all logs of j-old are there"), "{}", ended.stderr);
    let query = &server.asked()[0].query;
    assert_eq!((query["grep"].as_str(), query["project"].as_str()), ("NCCL", "rlhf"));
    for bad in [&["logs"][..], &["logs", "j-1", "--search", "x"], &["logs", "--project", "x"]] {
        assert_eq!(run(&server, bad).code, 2, "{bad:?}");
    }
}

#[test]
fn files_are_listed_and_downloaded() {
    let content = b"one\ntwo \xff\x1b[31m\n".repeat(400_000);
    let log = content.clone();
    let server = Server::start(move |asked, _| match asked.line().as_str() {
        "GET /api/v1/jobs/j-7f3k2/logs/files" => {
            let file = |member: &str, file: &str| {
                json!({
                    "member": member, "node": "gpu-0203", "file": file, "bytes": log.len(),
                    "compressed": false, "complete": true,
                    "first": "2099-01-02T03:04:05Z", "newest": null,
                })
            };
            let files = [file("0", "driver-j-7f3k2-1"), file("1", "output")];
            answer(200, &json!({"job": "j-7f3k2", "attempt": 2, "files": files}))
        }
        "GET /api/v1/jobs/j-7f3k2/logs" => log_page(&log, &asked.query),
        _ => answer(200, &running()),
    });
    let ended = run(&server, &["logs", "j-7f3k2", "--files", "--rank", "1"]);
    let expected = "MEMBER  NODE      FILE    BYTES    FIRST                       NEWEST\n\
                    1       gpu-0203  output  6000000  2099-01-02 03:04:05 +00:00  -\n";
    assert_eq!(ended.stdout, expected);
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("a/b");
    let to = target.to_str().unwrap();
    for wrong in [&["--file", "nosuch"][..], &["--file", "nosuch*"], &["--node", "gpu-9"]] {
        for what in [&["--files"][..], &["--download", to]] {
            let refused = run(&server, &[&["logs", "j-7f3k2"], what, wrong].concat());
            assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{what:?} {wrong:?}");
        }
    }
    assert!(!target.exists(), "nothing is made for what is not there");
    let ended = run(&server, &["logs", "j-7f3k2", "--download", to]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for name in ["0-driver-j-7f3k2-1.log", "1-output.log"] {
        assert!(std::fs::read(target.join(name)).unwrap() == content, "{name}");
    }
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 2);
    let pages = server.asked_for("GET /api/v1/jobs/j-7f3k2/logs");
    assert!(pages.iter().all(|page| page.query["attempt"] == "2"));
    assert_eq!(pages.iter().filter(|page| page.query.contains_key("rank")).count(), 2);
}
