//! Two people with the real command line: they log in over https, and neither sees what the other
//! does.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::{TestResult, command_fleet};
use anyhow::Context;
use gangline_common::tls::sha256;
use gangline_fleet::fleet::{AgentOptions, Fleet};

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
    let output = fleet.cli().args(words).output()?;
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

/// The first steps of a user as the user guide has them, with the mistakes on the way: each one is
/// told what to do.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_steps_and_what_each_mistake_is_told() -> TestResult {
    let fleet = command_fleet(1).await?;
    let words = ["token", "create", "--user", "alice", "--project", "rlhf", "-q"];
    let alice = Person::new(&fleet, &administrator(&fleet, &words)?)?;
    std::fs::write(alice.home.path().join("wrong"), "gla_wrong")?;
    let port = fleet.url().rsplit(':').next().context("port")?.to_owned();
    let (address, plain) = (format!("https://localhost:{port}"), fleet.url());
    let pin = fingerprint(&fleet)?;
    let other_pin = pin.replace(['0', '1', '2'], "F");
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let nobody = format!("https://{silent}");
    let mistake = |words: &[&str], code: i32, hints: &[&str]| -> TestResult {
        let ended = alice.says(words)?;
        assert_eq!(ended.code, Some(code), "{words:?}: {ended:?}");
        for hint in hints {
            assert!(ended.stderr.contains(hint), "{words:?} does not say {hint}: {ended:?}");
        }
        Ok(())
    };

    let token = ["--token-file", "token"];
    let login = |address, rest: [&'static str; 2]| -> Vec<&str> {
        ["login", address, "--pin", pin.as_str()].into_iter().chain(rest).collect()
    };
    mistake(&["login", "localhost:8265"], 5, &["is not an address", "https://HOST:PORT"])?;
    mistake(&login(&nobody, token), 6, &["Connection refused", "is the address right"])?;
    mistake(&login(&plain, token), 2, &["nothing to compare", "write https://"])?;
    let short = ["login", &address, "--pin", "3F:A1", "--token-file", "token"];
    mistake(&short, 2, &["64 hexadecimal digits"])?;
    let other = ["login", &address, "--pin", &other_pin, "--token-file", "token"];
    mistake(&other, 4, &["another CA", "nothing was sent; ask an administrator"])?;
    let no_file = ["--token-file", "none"];
    mistake(
        &login(&address, no_file),
        5,
        &["cannot read the token file none", "--token-file names"],
    )?;
    let wrong_token = ["--token-file", "wrong"];
    mistake(
        &login(&address, wrong_token),
        4,
        &["the token is not known", "an administrator makes"],
    )?;
    assert_eq!(alice.says(&login(&address, token))?.code, Some(0));
    // A pin is compared again where a CA is known.
    mistake(&other, 4, &["another CA"])?;

    assert_eq!(alice.says(&["init"])?.code, Some(0));
    let schema = format!("# $schema: {address}/schema/job.v1.json\n");
    let spec = alice.home.path().join("job.yaml");
    assert!(std::fs::read_to_string(&spec)?.contains(&schema));
    let own = "name: first\nresources: {nnodes: 1}\nlauncher: {type: command}\nrun: echo it runs\n";
    std::fs::write(&spec, own)?;
    mistake(&["submit", "jop.yaml"], 1, &["cannot read the spec jop.yaml", "give a spec file"])?;
    let typo = ["submit", "job.yaml", "--set", "gpu_per_node=8"];
    mistake(&typo, 5, &["unknown field", "did you mean `resources.gpus_per_node`?"])?;
    let foreign = ["submit", "job.yaml", "--set", "project=vision"];
    mistake(&foreign, 4, &["your token is of another project", "`gangline whoami` shows yours"])?;
    mistake(&["token", "create", "--user", "bob"], 2, &["--project <PROJECT>"])?;
    let pool = ["submit", "job.yaml", "--pool", "h1oo"];
    mistake(&pool, 5, &["there is no pool `h1oo`", "there are: default"])?;
    // This is no error: nodes may still join. It says what is missing, and stops nobody.
    let waits = "PENDING  waits for nodes that the fleet does not have: needs 1 node";
    let why = "0 of 1 would do if they were free (w0: has 0 GPUs)";
    let waiting = alice.says(&["submit", "job.yaml", "--gpus", "40"])?;
    assert_eq!(waiting.code, Some(0), "{waiting:?}");
    assert!(waiting.stdout.contains(waits) && waiting.stdout.contains(why), "{waiting:?}");
    mistake(&["logs", "no-such-job"], 102, &["`gangline ps -a` lists your jobs"])?;

    let ran = alice.says(&["submit", "job.yaml", "-f"])?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("it runs"), "{ran:?}");
    let script = "#!/usr/bin/env bash\n#GANGLINE launcher.type: command\n#GANGLINE env.WHO: me\n\
                  set -o pipefail\necho \"$WHO runs it in bash ${BASH_VERSION%%.*}\"\n";
    std::fs::write(alice.home.path().join("train.sh"), script)?;
    let ran = alice.says(&["submit", "train.sh", "-f"])?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("me runs it in bash "), "{ran:?}");
    fleet.assert_clean().await
}
