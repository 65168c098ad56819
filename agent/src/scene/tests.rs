//! Scenes of real processes.

use std::process::{Child, Command};

use super::*;
use crate::supervisor::process;

const CANARY: &str = "canary-value-81";

/// A root with one process below it, whose command line has the canary.
fn family() -> (Child, ProcessId) {
    let script = format!("sleep 60 & : {CANARY}; wait");
    let mut shell = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let root = process::stat(shell.id()).unwrap().id;
    while process::living_descendants(root.pid).is_empty() {
        assert!(shell.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    (shell, root)
}

fn end(mut shell: Child, root: ProcessId) {
    for id in process::living_descendants(root.pid) {
        process::send(id, rustix::process::Signal::KILL).unwrap();
    }
    let _ = shell.kill();
    shell.wait().unwrap();
}

#[test]
fn a_scene_has_every_part_and_no_secret() {
    let (shell, root) = family();
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output.log");
    std::fs::write(&output, format!("step 1\nkey is {CANARY}\n")).unwrap();
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let subject = Subject {
        shim: Some(root),
        environment: vec![
            variable("PATH", "/bin"),
            variable("MINE", CANARY),
            variable("ALSO", &format!("--key={CANARY}")),
            variable("DBX", "value-of-dbx-77"),
        ],
        secrets: vec![CANARY.to_owned()],
        secret_names: vec!["MINE".to_owned()],
        spec_names: vec!["DBX".to_owned()],
        logs: vec![("output".to_owned(), output)],
        ..Subject::default()
    };
    assert!(!format!("{subject:?}").contains(CANARY));
    let scene = take(&subject).unwrap();
    end(shell, root);
    let names: Vec<&str> = scene.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["stacks", "processes", "kernel", "cgroup", "environment", "logs"]);
    let text = |name: &str| {
        let part = scene.parts.iter().find(|part| part.name == name).unwrap();
        (part.ok, part.text.as_str())
    };
    let (ok, processes) = text("processes");
    assert!(ok && processes.contains("[secret]; wait") && processes.contains("sleep 60"));
    assert_eq!(processes.lines().count(), 3, "{processes}");
    let variables = "ALSO=--key=[secret]\nDBX=***\nMINE=[secret]\nPATH=/bin\n";
    assert_eq!(text("environment"), (true, variables));
    assert_eq!(text("logs"), (true, "== output ==\nstep 1\nkey is [secret]\n"));
    // Neither is Python: the kernel says where their threads are.
    assert!(text("stacks").1.contains("py-spy is not there"));
    let [sleep] = &scene.stacks[..] else { panic!("{:?}", scene.stacks) };
    assert_eq!((sleep.source.as_str(), sleep.ok, sleep.of_job), ("kernel", true, false));
    assert!(
        sleep.text.starts_with("Thread ") && sleep.text.contains("\"sleep\""),
        "{}",
        sleep.text
    );
    let json = serde_json::to_string(&scene).unwrap();
    assert!(!json.contains(CANARY) && !json.contains("value-of-dbx-77"));
}

#[test]
fn a_py_spy_that_fails_or_hangs_is_said_and_does_not_hold_up_the_rest() {
    use std::os::unix::fs::PermissionsExt;
    let (shell, root) = family();
    let directory = tempfile::tempdir().unwrap();
    let python = directory.path().join("python3");
    std::fs::copy("/bin/sleep", &python).unwrap();
    let mut fake = Command::new(&python).arg("60").spawn().unwrap();
    let id = process::stat(fake.id()).unwrap().id;
    let py_spy = directory.path().join("py-spy");
    let said = |script: &str, patience: Duration| {
        std::fs::write(&py_spy, script).unwrap();
        std::fs::set_permissions(&py_spy, std::fs::Permissions::from_mode(0o755)).unwrap();
        let until = Instant::now() + patience;
        stacks::one_for_test(id.pid, &py_spy, until)
    };
    let long = Duration::from_secs(60);
    let refused =
        said("#!/bin/sh\necho 'Error: Permission denied (os error 13)' >&2; exit 1", long);
    assert!(!refused.ok && refused.text.contains("needs the same user and CAP_SYS_PTRACE"));
    assert!(refused.text.contains("Thread "), "the kernel's word is there: {}", refused.text);
    let hung = said("#!/bin/sh\nexec sleep 60", Duration::from_millis(50));
    assert!(hung.text.starts_with("py-spy: it took too long"), "{}", hung.text);
    let flag = directory.path().join("failed-once");
    let script =
        format!("#!/bin/sh\n[ -e {0} ] || {{ : > {0}; exit 1; }}\necho ok", flag.display());
    let second = said(&script, long);
    assert_eq!((second.ok, second.text.as_str()), (true, "ok\n"));
    let good = said("#!/bin/sh\necho \"Process $3\"", long);
    assert_eq!((good.ok, good.text), (true, format!("Process {}\n", id.pid)));
    fake.kill().unwrap();
    fake.wait().unwrap();
    end(shell, root);
}

#[test]
fn scenes_have_bounds() {
    let text = |size: usize| "\"x\u{1b}[1m\n".repeat(size / 4);
    let part = |name: &str| Part { name: name.to_owned(), text: text(4 << 20), ..Part::default() };
    let stack = ProcessStack { text: text(1 << 20), ..ProcessStack::default() };
    let mut scene = Scene {
        parts: (0..20).map(|n| part(&n.to_string())).collect(),
        stacks: vec![stack; 64],
        ..Scene::default()
    };
    bound(&mut scene);
    let json = serde_json::to_vec(&scene).unwrap();
    assert!(json.len() <= MAX_SCENE, "{}", json.len());
    assert!(scene.stacks.iter().all(|stack| stack.text.len() <= stacks::TEXT_BYTES));
    assert!(scene.parts[0].text.starts_with("[cut]\n"), "the first part has its end");
    assert_eq!(scene.parts[19].text, "");
    assert!(!json.contains(&0x1b));
}

#[test]
fn nccl_is_asked_where_the_environment_says_it_answers() {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let asked = [lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()];
        stream
            .write_all(format!("OK\nJob summary: rank 3 is missing {CANARY}\n").as_bytes())
            .unwrap();
        asked
    });
    let variable = |value: &str| vec![(ras::VARIABLE.to_owned(), value.to_owned())];
    let (shell, root) = family();
    let subject = Subject {
        shim: Some(root),
        environment: variable(&address),
        secrets: vec![CANARY.to_owned()],
        ..Subject::default()
    };
    let scene = take(&subject).unwrap();
    assert_eq!(answering.join().unwrap(), ["timeout 1", "verbose status"]);
    let part = scene.parts.iter().find(|part| part.name == "nccl ras").unwrap();
    let said = "OK\nJob summary: rank 3 is missing [secret]\n";
    assert_eq!((part.ok, part.text.as_str()), (true, said));
    // Nobody listens there any more; and nobody else's machine is asked.
    assert!(take(&subject).unwrap().parts.iter().all(|part| part.name != "nccl ras"));
    for other in ["192.0.2.1:28028", "localhost", ""] {
        assert!(ras::connect(&variable(other)).is_none(), "{other}");
    }
    end(shell, root);
}
