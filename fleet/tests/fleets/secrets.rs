//! A secret reaches the job's environment and nothing else (A46): every place that might show it is
//! searched for its value, with every program at debug level. The agents' own ledgers and spools hold
//! what they must run, are private files, and are not searched.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::support::{RAY, SHORT, TestResult, built, ray_python};
use anyhow::Context;
use gangline_common::tls::sha256;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};

const FIRST: &str = "canary-one-7d1f 'quoted' $HOME\nand a second line";
const SECOND: &str = "canary-two-a93c";
/// What stands in every value.
const CANARIES: [&str; 2] = ["canary-one-7d1f", "canary-two-a93c"];

/// Prints the hash of the secret, waits for a file, and prints it again.
fn spec(name: &str, wait_for: &Path) -> String {
    let script = r#"
import hashlib, os, sys, time
told = lambda: print(hashlib.sha256(os.environ["API_KEY"].encode()).hexdigest(), flush=True)
told()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
told()
"#;
    serde_json::json!({
        "name": name,
        "resources": {"nnodes": 2},
        "launcher": {"type": "command"},
        "command": ["python3", "-c", script, wait_for],
        "secrets": ["API_KEY"],
    })
    .to_string()
}

fn hash(text: &str) -> String {
    data_encoding::HEXLOWER.encode(&sha256(text.as_bytes()))
}

/// The command line as an administrator.
fn gangline(fleet: &Fleet, words: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let output = fleet.cli().args(words).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}

fn set(fleet: &Fleet, value: &str) -> TestResult {
    let file = fleet.path("value");
    std::fs::write(&file, format!("{value}\n"))?;
    let from_file = file.to_str().context("path")?;
    let (code, text) = gangline(fleet, &["secret", "set", "API_KEY", "--from-file", from_file])?;
    anyhow::ensure!(code == Some(0), "{text}");
    assert_clean_text("secret set", text.as_bytes());
    std::fs::remove_file(&file)?;
    Ok(())
}

fn holds(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

fn assert_clean_text(place: &str, bytes: &[u8]) {
    for canary in CANARIES {
        assert!(!holds(bytes, canary), "{canary} in {place}");
    }
}

/// Searches every file below `place`; the names of those with `word`.
fn search(place: &Path, word: &str, found: &mut Vec<String>) -> TestResult {
    if !place.is_dir() {
        // A socket has no contents; what goes through it is answers to whoever owns the store.
        if std::fs::symlink_metadata(place)?.file_type().is_socket() {
            return Ok(());
        }
        let bytes = std::fs::read(place).with_context(|| place.display().to_string())?;
        assert_clean_text(&place.display().to_string(), &bytes);
        if holds(&bytes, word) {
            found.push(place.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        return Ok(());
    }
    for entry in std::fs::read_dir(place)? {
        search(&entry?.path(), word, found)?;
    }
    Ok(())
}

#[tokio::test]
async fn a46_a_secret_is_in_the_jobs_environment_and_nowhere_else() -> TestResult {
    let options = FleetOptions { log: Some("debug".to_owned()), ..FleetOptions::default() };
    let mut fleet = Fleet::start(built().await?, options).await?;
    for name in ["a", "b"] {
        fleet.add_agent(AgentOptions::worker(name, 0)).await?;
    }
    let api = fleet.api()?;
    let go = fleet.path("go");
    let headers = [("content-type", "application/json")];
    let (status, problem) = api.post("/api/v1/jobs", &headers, &spec("early", &go)).await?;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (422, &"/secrets/0".into()));

    set(&fleet, FIRST)?;
    let first = api.submit(&spec("first", &go)).await?;
    api.wait_job(&first, &["RUNNING"], SHORT).await?;
    // While it runs: it cannot lose its secret, and a new value disturbs neither it nor its agents.
    let (code, refused) = gangline(&fleet, &["secret", "rm", "API_KEY"])?;
    assert!(code == Some(7) && refused.contains("E0344"), "{refused}");
    set(&fleet, SECOND)?;
    // The coordinator comes back with its key, and agents and it still agree on what must run.
    fleet.kill_coordinator()?;
    fleet.start_coordinator().await?;
    let second = api.submit(&spec("second", &go)).await?;
    api.wait_job(&second, &["RUNNING"], SHORT).await?;
    assert_eq!(api.state(&first).await?, "RUNNING");
    std::fs::write(&go, "")?;
    for (job, value) in [(&first, FIRST), (&second, SECOND)] {
        api.wait_job(job, &["SUCCEEDED"], SHORT).await?;
        for rank in 0..2 {
            let log = api.logs(job, &format!("rank={rank}")).await?;
            assert_eq!(log, format!("{0}\n{0}\n", hash(value)), "rank {rank} of {job}");
        }
    }
    fleet.assert_clean().await?;

    for words in [
        &["show", &first, "--json"][..],
        &["ps", "-a", "--json"],
        &["logs", &first],
        &["secret", "ls", "--json"],
        &["audit", "-n", "1000", "-o", "jsonl"],
    ] {
        let (code, text) = gangline(&fleet, words)?;
        assert_eq!(code, Some(0), "{text}");
        assert_clean_text(&format!("{words:?}"), text.as_bytes());
    }
    for path in ["/api/jobs/", &format!("/api/jobs/{first}"), "/api/v1/nodes", "/api/v1/secrets"] {
        assert_clean_text(path, api.get(path).await?.to_string().as_bytes());
    }
    let (_, audit) = gangline(&fleet, &["audit", "-n", "1000", "-o", "jsonl"])?;
    assert_eq!(audit.matches("\"secret.set\"").count(), 2, "{audit}");

    search_files(&fleet, &hash(FIRST))
}

/// Searches the files of coordinator and job, and the logs of all programs. The places are the right
/// ones: they hold the name, or the hash that the job printed.
fn search_files(fleet: &Fleet, printed: &str) -> TestResult {
    let mut named = Vec::new();
    search(&fleet.state_dir(), "API_KEY", &mut named)?;
    assert!(named.contains(&"store.redb".to_owned()), "{named:?}");
    let mut named = Vec::new();
    search(&fleet.shared_root(), "API_KEY", &mut named)?;
    assert!(named.contains(&"spec.json".to_owned()), "{named:?}");
    let mut logged = Vec::new();
    search(&fleet.shared_root(), printed, &mut logged)?;
    assert!(!logged.is_empty(), "the job's own logs");
    for log in ["coordinator.log", "agent-a.log", "agent-b.log"] {
        let mut debug = Vec::new();
        search(&fleet.path(log), "DEBUG", &mut debug)?;
        assert_eq!(debug, [log]);
    }
    Ok(())
}

#[tokio::test]
async fn a46_a_secret_reaches_a_ray_job_and_its_tasks() -> TestResult {
    let binaries = built().await?;
    let python = Some(ray_python(&binaries).await?);
    let log = Some("debug".to_owned());
    let options = FleetOptions { python, log, ..FleetOptions::default() };
    let mut fleet = Fleet::start(binaries, options).await?;
    fleet.add_agent(AgentOptions::head("a")).await?;
    fleet.add_agent(AgentOptions::worker("b", 1)).await?;
    set(&fleet, SECOND)?;
    let script = r#"exec python - <<'END'
import hashlib, os, ray
told = lambda: hashlib.sha256(os.environ["API_KEY"].encode()).hexdigest()
print("driver", told())
ray.init()
print("task", ray.get(ray.remote(told).remote()))
END
"#;
    let spec = serde_json::json!({
        "resources": {"gpus_per_node": 1}, "run": script, "secrets": ["API_KEY"],
    });
    let api = fleet.api()?;
    let job = api.submit(&spec.to_string()).await?;
    api.wait_job(&job, &["SUCCEEDED"], RAY).await?;
    let log = api.logs(&job, "").await?;
    for line in ["driver", "task"] {
        assert!(log.contains(&format!("{line} {}", hash(SECOND))), "{line}: {log}");
    }
    assert_clean_text("the log", log.as_bytes());
    for path in ["/api/jobs/", &format!("/api/v1/jobs/{job}")] {
        assert_clean_text(path, api.get(path).await?.to_string().as_bytes());
    }
    fleet.assert_clean().await?;
    search_files(&fleet, &hash(SECOND))
}

#[tokio::test]
async fn without_its_key_a_store_with_secrets_is_not_served() -> TestResult {
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    set(&fleet, FIRST)?;
    fleet.stop_coordinator()?;
    let (key, away) = (fleet.state_dir().join("secrets.key"), fleet.path("away"));
    std::fs::rename(&key, &away)?;
    let refused = fleet.coordinator_command().output()?;
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(78), "{text}");
    assert!(text.contains("secrets.key is missing") && text.contains("backup"), "{text}");
    assert!(!key.exists(), "no new key");
    std::fs::rename(&away, &key)?;
    fleet.start_coordinator().await
}
