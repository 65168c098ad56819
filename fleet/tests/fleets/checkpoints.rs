//! Training checkpoints of a real job: what is listed and told of them, and that only so many stay, and
//! fewer where there is no room.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::disk::SmallDisk;
use crate::support::{SHORT, TestResult, built};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use serde_json::Value;

/// Writes checkpoints as verl does, the file that names the newest one last, then waits.
const SCRIPT: &str = r#"
import os, time
root = os.environ["GANGLINE_CKPT_DIR"]
os.makedirs(f"{root}/best")
for step in range(10, 70, 10):
    os.makedirs(f"{root}/global_step_{step}/actor")
    with open(f"{root}/global_step_{step}/actor/model.pt", "wb") as file:
        file.write(b"x" * 1000 * step)
    with open(f"{root}/latest_checkpointed_iteration.txt", "w") as file:
        file.write(str(step))
os.makedirs(f"{root}/global_step_70")
print("saved", flush=True)
time.sleep(600)
"#;

#[tokio::test]
async fn only_so_many_checkpoints_stay_and_they_are_listed() -> TestResult {
    let copies = tempfile::tempdir()?;
    let fleet = fleet_with_copies(copies.path()).await?;
    let api = fleet.api()?;
    let spec = serde_json::json!({
        "launcher": {"type": "command"},
        "command": ["python3", "-c", SCRIPT],
        "checkpoint": {"keep": 2, "encrypted_copy": true},
    });
    let job = api.submit(&spec.to_string()).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    let list = async || -> anyhow::Result<Vec<Value>> {
        let answer = api.get(&format!("/api/v1/jobs/{job}/checkpoints")).await?;
        Ok(answer["checkpoints"].as_array().cloned().unwrap_or_default())
    };
    let names = |list: &[Value]| -> Vec<String> {
        let mut names: Vec<String> =
            list.iter().map(|item| item["name"].as_str().unwrap_or_default().to_owned()).collect();
        names.sort();
        names
    };
    // Something else than a step stays; the step after the newest complete one is on its way.
    let stay = ["best", "global_step_50", "global_step_60", "global_step_70"];
    let mut listed = Vec::new();
    for _ in 0..600 {
        listed = list().await?;
        if names(&listed) == stay {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(names(&listed), stay, "{}", fleet.agent_log("w0"));
    let find = |name: &str| listed.iter().find(|item| item["name"] == name);
    let newest = find("global_step_60").cloned().unwrap_or_default();
    assert_eq!((&newest["newest"], &newest["complete"]), (&true.into(), &true.into()));
    assert_eq!((&newest["bytes"], &newest["files"]), (&60_000.into(), &1.into()));
    let output = fleet.cli().args(["checkpoint", "ls", &job]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("global_step_60")).unwrap_or_default();
    assert!(line.contains("58.6 KiB") && line.ends_with("<- newest"), "{text}");
    // The job's own page has the newest complete one.
    let newest = until(&fleet, &job, |saved| saved["newest"]["step"] == 60).await?;
    assert_eq!(newest["newest"]["bytes"], 60_000, "{newest}");
    let output = fleet.cli().args(["show", &job]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("complete     global_step_60 (step 60, 58.6 KiB), "), "{text}");
    let copied = until(&fleet, &job, |saved| saved["copied"] == "global_step_60").await?;
    assert_eq!(copied["copy_problem"], Value::Null);
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    restored(copies.path(), &job).await?;
    little_room(&fleet).await?;
    fleet.assert_clean().await
}

/// An agent that copies training checkpoints into this directory, under a key beside them.
async fn fleet_with_copies(directory: &Path) -> anyhow::Result<Fleet> {
    let (config, key) = (directory.join("agent.toml"), directory.join("key"));
    std::fs::write(&key, "c0".repeat(32))?;
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
    let copies = directory.join("copies");
    let text = format!("checkpoint_copies = {copies:?}\ncheckpoint_copy_key = {key:?}\n");
    std::fs::write(&config, text)?;
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    let extra = vec!["--config".to_owned(), config.display().to_string()];
    fleet.add_agent(AgentOptions { extra, ..AgentOptions::worker("w0", 0) }).await?;
    Ok(fleet)
}

/// The copy is a checkpoint again for whoever has the key, and nothing when it was cut.
async fn restored(copies: &Path, job: &str) -> TestResult {
    let copy = copies.join("copies").join(job).join("global_step_60.glcopy");
    let again = copies.join("again");
    std::fs::create_dir(&again)?;
    let agent = built().await?.agent;
    let restore = |copy: &Path| {
        let mut command = Command::new(&agent);
        command.args(["restore-copy", "--key-file"]).arg(copies.join("key"));
        command.arg(copy).arg(&again).output()
    };
    let cut = copies.join("cut");
    let whole = std::fs::read(&copy)?;
    std::fs::write(&cut, whole.get(..whole.len() - 1).unwrap_or_default())?;
    let output = restore(&cut)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("the copy is damaged"), "{said}");
    assert_eq!(std::fs::read_dir(&again)?.count(), 0);
    let output = restore(&copy)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let model = std::fs::read(again.join("global_step_60/actor/model.pt"))?;
    assert!(model == b"x".repeat(60_000));
    Ok(())
}

/// What the coordinator says of the training checkpoints of a job, once it is so.
async fn until(fleet: &Fleet, job: &str, is_so: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
    let mut view = Value::Null;
    for _ in 0..600 {
        view = fleet.api()?.job(job).await?;
        if is_so(&view["saved"]) {
            return Ok(view["saved"].clone());
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    anyhow::bail!("{view}\n{}", fleet.agent_log("w0"))
}

/// Fills a disk of 64 MiB with training checkpoints of 12 MiB but for a rest of 4.
const FILLS: &str = r#"
import os, time
root = os.environ["GANGLINE_CKPT_DIR"]
for step in range(10, 60, 10):
    os.makedirs(f"{root}/global_step_{step}")
    with open(f"{root}/global_step_{step}/model.pt", "wb") as file:
        file.write(b"x" * (12 << 20))
    with open(f"{root}/latest_checkpointed_iteration.txt", "w") as file:
        file.write(str(step))
time.sleep(600)
"#;

/// Where the next training checkpoint does not fit, a person is told, and then the oldest goes.
async fn little_room(fleet: &Fleet) -> TestResult {
    let api = fleet.api()?;
    let directory = fleet.shared_root().join("projects/default/little");
    std::fs::create_dir_all(&directory)?;
    let _disk = SmallDisk::below(&directory, 64)?;
    let spec = serde_json::json!({
        "launcher": {"type": "command"},
        "command": ["python3", "-c", FILLS],
        "checkpoint": {"dir": directory.to_str(), "keep": 9},
    });
    let job = api.submit(&spec.to_string()).await?;
    let saved = until(fleet, &job, |saved| saved["removed"] == 1).await?;
    assert_eq!((&saved["is_low"], &saved["count"]), (&true.into(), &4.into()), "{saved}");
    assert_eq!(saved["newest"]["step"], 50, "{saved}");
    assert!(!directory.join("global_step_10").exists());
    assert!(directory.join("global_step_20/model.pt").exists());
    let events = api.get(&format!("/api/v1/events?object=job%20{job}")).await?;
    let kinds: Vec<&str> = events["events"]
        .as_array()
        .into_iter()
        .flatten()
        .rev()
        .filter_map(|event| event["kind"].as_str())
        .collect();
    assert_eq!(kinds, ["job.running", "job.disk_low", "job.checkpoints_removed"], "{events}");
    let output = fleet.cli().args(["show", &job]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("disk low     ") && text.contains("1 old removed to make room"),
        "{text}"
    );
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    Ok(())
}
