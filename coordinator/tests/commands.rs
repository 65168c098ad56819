//! The program itself: `check`, `backup` and `restore` beside `serve` and without it, the exit codes,
//! and what a refused store says. `TRYCMD=overwrite` writes the help texts in `tests/cmd` anew.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gangline_coordinator::control::SOCKET;
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_gangline-coordinator");

#[test]
fn help_texts() {
    trycmd::TestCases::new()
        .default_bin_path(Path::new(PROGRAM))
        .env("NO_COLOR", "1")
        .case("tests/cmd/*.trycmd");
}

struct Place {
    directory: TempDir,
    serving: Option<Child>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Place {
    fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap(), serving: None };
        let config = "http = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n";
        std::fs::write(place.path("it's.toml"), config).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn state(&self, name: &str) -> PathBuf {
        // A name that a shell would break, and longer than the kernel takes for a socket.
        self.path(&format!("state dir {}", "x".repeat(90))).join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg(arguments[0]).arg("--config").arg(self.path("it's.toml"));
        command.arg("--state-dir").arg(self.state("")).args(&arguments[1..]);
        command.env("GANGLINE_LOG", "warn");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Starts `serve` and waits until local commands are answered.
    fn serve(&mut self) {
        let mut command = self.command(&["serve"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while self.run(&["check", "-o", "json"]).stdout.is_empty() || !self.is_served() {
            assert!(child.try_wait().unwrap().is_none(), "{:?}", child.wait_with_output());
            assert!(Instant::now() < until, "not served");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.serving = Some(child);
    }

    fn is_served(&self) -> bool {
        self.line("store").1.contains("in use by the coordinator that serves")
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.serving.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Level, text and advice of a line of `check`.
    fn line(&self, name: &str) -> (String, String, String) {
        let output = self.run(&["check", "-o", "json"]);
        let lines: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let line = lines.iter().find(|line| line["check"] == name);
        let line = line.unwrap_or_else(|| panic!("no line {name}: {lines:?}"));
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        (text("level"), text("text"), text("advice"))
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_copy_beside_serve_and_without_it() {
    let mut place = Place::new();
    place.serve();
    let copy = place.path("copy").display().to_string();
    let made = place.run(&["backup", &copy]);
    assert!(made.status.success(), "{made:?}");
    assert!(stdout(&made).starts_with(&format!("{copy}: 0 jobs, ")), "{made:?}");
    let mode = std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "it holds the hashes of tokens");

    let again = place.run(&["backup", &copy]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("never overwrites"), "{again:?}");

    let refused = place.run(&["restore", &copy]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("Stop it first"), "{refused:?}");

    place.stop();
    // The socket of a process that was killed is no obstacle.
    assert!(place.state(SOCKET).exists());
    let later = place.path("later").display().to_string();
    let made = place.run(&["backup", &later]);
    assert!(made.status.success(), "{made:?}");
    let restored = place.run(&["restore", &copy]);
    assert!(restored.status.success(), "{restored:?}");
    assert!(stdout(&restored).contains("era 2: what runs on the nodes runs on"), "{restored:?}");
    place.serve();
    assert!(place.line("store").1.contains("era 2"), "{:?}", place.line("store"));

    let nothing = place.run(&["restore", &place.path("nothing").display().to_string()]);
    assert_eq!(nothing.status.code(), Some(1));
}

#[test]
fn check_says_one_line_for_each_thing() {
    let mut place = Place::new();
    place.serve();
    let served = place.run(&["check"]);
    assert_eq!(served.status.code(), Some(0), "{served:?}");
    let text = stdout(&served);
    for name in [
        "config",
        "directory",
        "ca",
        "certificate",
        "store",
        "audit",
        "secrets",
        "backups",
        "disk",
        "http",
        "quic",
        "clock",
    ] {
        let lines = text.lines().filter(|line| line.split_whitespace().nth(1) == Some(name));
        assert_eq!(lines.count(), 1, "{name}: {text}");
    }
    place.stop();
    let files = |place: &Place| {
        let file = |name: &str| std::fs::read(place.state(name)).unwrap();
        (file("store.redb"), file("ca/ca.pem"))
    };
    let before = files(&place);
    assert_eq!(place.run(&["check"]).status.code(), Some(0));
    assert!(files(&place) == before, "a check changed something");

    // A port that somebody has, a CA that others can read, a directory that is open.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = place.run(&["check", "--http", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains(&format!("bad   http         {address}: ")), "{output:?}");

    let chmod = |name: &str, mode: u32| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(place.state(name), mode).unwrap();
    };
    chmod("ca/ca.key", 0o644);
    chmod("", 0o755);
    assert_eq!(place.line("directory").0, "warn");
    let (level, text, advice) = place.line("ca");
    assert!(level == "bad" && text.contains("mode 644"), "{text}");
    assert!(advice.contains("chmod 600"), "{advice}");
    chmod("ca/ca.key", 0o600);
    // A key of another CA.
    let mut other = Place::new();
    other.serve();
    std::fs::copy(other.state("ca/ca.key"), place.state("ca/ca.key")).unwrap();
    let (level, text, _) = place.line("ca");
    assert!(level == "bad" && text.contains("do not belong together"), "{text}");
}

#[test]
fn check_of_a_bad_configuration_is_exit_code_5() {
    let place = Place::new();
    std::fs::write(place.path("it's.toml"), "heartbeat_ms = 1\nbackup_keep = 0\n").unwrap();
    let output = place.run(&["check"]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let text = stdout(&output);
    assert!(text.starts_with("bad   config       heartbeat_ms: "), "{text}");
    assert!(text.contains("backup_keep: "), "{text}");
    let json = place.run(&["check", "-o", "json"]);
    assert_eq!(json.status.code(), Some(5));
    let lines: Vec<Value> = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((lines.len(), &lines[0]["level"]), (1, &Value::from("bad")));
}

/// F20: the store is damaged. The message names it and the newest good copy, and the command that
/// it shows works as it stands.
#[test]
fn f20_a_refused_store_offers_the_newest_good_copy() {
    let mut place = Place::new();
    place.serve();
    let copies = place.state("backups");
    std::fs::create_dir(&copies).unwrap();
    for name in ["store-20260101T000000Z.backup", "store-20260102T000000Z.backup"] {
        let made = place.run(&["backup", &copies.join(name).display().to_string()]);
        assert!(made.status.success(), "{made:?}");
    }
    place.stop();
    std::fs::write(copies.join("store-20260103T000000Z.backup"), b"GLSTORE\x01 damaged").unwrap();
    let store = place.state("store.redb");
    let whole = std::fs::read(&store).unwrap();
    std::fs::write(&store, &whole[..whole.len() / 2]).unwrap();

    let (level, text, _) = place.line("store");
    assert!(level == "bad" && text.contains("store.redb"), "{text}");
    let refused = place.run(&["serve"]);
    assert_eq!(refused.status.code(), Some(78));
    let text = stderr(&refused);
    assert!(text.contains(&store.display().to_string()), "{text}");
    let command = text.lines().last().unwrap().trim();
    assert!(command.starts_with("gangline-coordinator restore --config "), "{text}");
    assert!(command.contains("store-20260102T000000Z.backup"), "{text}");

    let path = format!(
        "{}:{}",
        Path::new(PROGRAM).parent().unwrap().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let restored = Command::new("sh").args(["-c", command]).env("PATH", path).output().unwrap();
    assert!(restored.status.success(), "{restored:?}");
    place.serve();
    assert!(place.line("store").1.contains("era 2"));

    // The same when it is not there at all.
    place.stop();
    std::fs::remove_file(&store).unwrap();
    let missing = place.run(&["serve"]);
    assert_eq!(missing.status.code(), Some(78));
    let text = stderr(&missing);
    assert!(text.contains("missing although this coordinator has a CA"), "{text}");
    assert!(text.contains("gangline-coordinator restore "), "{text}");
    assert!(!store.exists(), "it never starts empty");
}

/// A request that is none, and a client that goes away, disturb nobody.
#[test]
fn the_control_socket_bears_strangers() {
    let mut place = Place::new();
    place.serve();
    let mode = std::fs::metadata(place.state(SOCKET)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    // The path is too long for the kernel; a short one leads there.
    let short = place.path("s");
    std::os::unix::fs::symlink(place.state(""), &short).unwrap();
    let connect = || UnixStream::connect(short.join(SOCKET)).unwrap();
    use std::io::{Read, Write};
    drop(connect());
    let mut stranger = connect();
    stranger.write_all(b"format the disk\n").unwrap();
    let mut answer = String::new();
    stranger.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("knows no request"), "{answer}");
    // A line without an end is read up to a limit only.
    let mut endless = connect();
    let sent = endless.write_all(&vec![b'x'; 1 << 20]);
    assert!(sent.is_ok() || sent.unwrap_err().kind() == ErrorKind::BrokenPipe);
    drop(endless);
    assert!(place.is_served());
}
