//! Two people with the real command line: they log in over https, and neither sees what the other
//! does.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;
use gangline_common::tls::sha256;
use gangline_fleet::fleet::{AgentOptions, Fleet};
use support::{TestResult, command_fleet};

/// Somebody with a home directory and a token.
struct Person {
    home: tempfile::TempDir,
    cli: PathBuf,
}

/// What a run of the command line came to.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Person {
    fn new(fleet: &Fleet, token: &str) -> anyhow::Result<Person> {
        let home = tempfile::tempdir()?;
        std::fs::write(home.path().join("token"), token)?;
        Ok(Person { home, cli: fleet.binaries.cli.clone() })
    }

    fn says(&self, words: &[&str]) -> anyhow::Result<Ended> {
        self.says_with(words, &[])
    }

    fn says_with(&self, words: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Ended> {
        let output = Command::new(&self.cli)
            .args(words)
            .env_clear()
            .envs(env.iter().copied())
            .env("HOME", self.home.path())
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .output()
            .context("running gangline")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ended {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        })
    }

    fn config(&self) -> PathBuf {
        self.home.path().join(".config/gangline")
    }
}

fn administrator(fleet: &Fleet, words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(&fleet.binaries.cli)
        .args(["--address", &fleet.url(), "--token-file"])
        .arg(fleet.admin_token_file())
        .args(words)
        .output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The fingerprint of the coordinator's CA, as an administrator would read it from the file.
fn fingerprint(fleet: &Fleet) -> anyhow::Result<String> {
    let pem = std::fs::read_to_string(fleet.state_dir().join("ca/ca.pem"))?;
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = data_encoding::BASE64.decode(body.as_bytes())?;
    Ok(data_encoding::HEXUPPER.encode(&sha256(&der)))
}

#[tokio::test(flavor = "multi_thread")]
async fn people_log_in_over_https_and_are_kept_apart() -> TestResult {
    let mut fleet = command_fleet(0).await?;
    fleet.add_agent(AgentOptions::worker("w", 0)).await?;
    let create = |user: &str, project: &str| {
        administrator(&fleet, &["token", "create", "--user", user, "--project", project, "-q"])
    };
    let alice = Person::new(&fleet, &create("alice", "rlhf")?)?;
    let bob = Person::new(&fleet, &create("bob", "vision")?)?;
    let port = fleet.url().rsplit(':').next().context("port")?.to_owned();
    let address = format!("https://localhost:{port}");
    let pin = fingerprint(&fleet)?;

    // A wrong pin, and nobody to ask: nothing is sent and nothing kept.
    let wrong = pin.replace(['0', '1', '2'], "F");
    let refused = alice.says(&["login", &address, "--pin", &wrong, "--token-file", "token"])?;
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("E0912"), "{refused:?}");
    let unasked = alice.says(&["login", &address, "--token-file", "token"])?;
    assert_eq!(unasked.code, Some(1), "{unasked:?}");
    assert!(!alice.config().exists());
    let unknown = alice.says(&["--address", &address, "--token-file", "token", "whoami"])?;
    assert_eq!(unknown.code, Some(5), "{unknown:?}");
    assert!(unknown.stderr.contains("gangline login"), "{unknown:?}");

    let login = alice.says(&["login", &address, "--pin", &pin, "--token-file", "token"])?;
    assert_eq!(
        (login.code, login.stdout.as_str()),
        (Some(0), "alice, project rlhf, role member\n")
    );
    let token = std::fs::read_to_string(alice.home.path().join("token"))?;
    for file in alice.config().read_dir()? {
        let file = file?;
        assert_eq!(file.metadata()?.permissions().mode() & 0o777, 0o600, "{:?}", file.path());
        let holds_token = std::fs::read_to_string(file.path())?.contains(token.trim());
        assert_eq!(holds_token, file.file_name() == "token-default", "{:?}", file.path());
    }
    let token = std::fs::read_to_string(bob.home.path().join("token"))?;
    let login = bob.says_with(&["login", &address, "--yes"], &[("GANGLINE_TOKEN", &token)])?;
    assert_eq!(login.code, Some(0), "{login:?}");

    let script = "echo hello from $GANGLINE_PROJECT";
    let ran = alice.says(&["run", "--name", "hello", "--", "sh", "-c", script])?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("hello from rlhf"), "{ran:?}");
    let job = alice.says(&["ps", "-a", "-o", "name"])?.stdout.trim().to_owned();
    assert!(job.starts_with("j-"), "{job}");

    assert_eq!(bob.says(&["ps", "-a", "-o", "name"])?.stdout, "");
    for words in [["show", &job], ["logs", &job], ["stop", &job], ["show", "hello"]] {
        let hidden = bob.says(&words)?;
        assert_ne!(hidden.code, Some(0), "{words:?}");
        assert!(hidden.stderr.contains("E0306"), "{hidden:?}");
        assert!(!hidden.stderr.contains("rlhf") && !hidden.stdout.contains("rlhf"), "{hidden:?}");
    }
    assert_eq!(bob.says(&["token", "ls"])?.code, Some(4));
    assert_eq!(bob.says(&["audit"])?.code, Some(4));
    let told = administrator(&fleet, &["audit", "-o", "jsonl"])?;
    assert!(told.contains("\"action\":\"job.submit\"") && told.contains("\"actor\":\"alice\""));
    let verdict = administrator(&fleet, &["audit", "verify"])?;
    assert!(verdict.starts_with("intact: "), "{verdict}");

    assert_eq!(alice.says(&["logout"])?.code, Some(0));
    assert_eq!(alice.says(&["whoami"])?.code, Some(4));
    assert!(!alice.config().join("token-default").exists());
    // The administrator takes the token away, and it is over at once.
    administrator(&fleet, &["token", "rm", "bob"])?;
    assert_eq!(bob.says(&["whoami"])?.code, Some(4));
    fleet.assert_clean().await?;
    Ok(())
}
