//! Training checkpoints of a real job: what is listed of them, and that only so many stay.

mod support;

use serde_json::Value;
use support::{SHORT, TestResult, command_fleet};

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
    let fleet = command_fleet(1).await?;
    let api = fleet.api()?;
    let spec = serde_json::json!({
        "launcher": {"type": "command"},
        "command": ["python3", "-c", SCRIPT],
        "checkpoint": {"keep": 2},
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
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}
