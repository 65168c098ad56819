//! Logs of many members through real agents and our command: in the order of time, as they come,
//! searched, listed and copied.

use crate::support::{SHORT, TestResult, command, command_fleet};
use anyhow::Context;

#[tokio::test]
async fn the_lines_of_all_ranks_are_merged_searched_and_copied() -> TestResult {
    let fleet = command_fleet(2).await?;
    let api = fleet.api()?;
    // Ranks write in turn, half a second apart: each waits for a file that the other one makes.
    let script = r#"["sh", "-c", "cd $GANGLINE_CKPT_DIR; await() { while [ ! -e $1 ]; do sleep 0.05; done; }; pass() { sleep 0.5; touch $1; }; [ $NODE_RANK = 0 ] || await a; printf ' 10%%\\r100%%\\n'; echo first of $NODE_RANK; if [ $NODE_RANK = 0 ]; then pass a; await b; else pass b; await c; fi; echo RuntimeError: of $NODE_RANK; [ $NODE_RANK = 1 ] || pass c"]"#;
    let job = api.submit(&command("turns", 2, script)).await?;
    let cli = |words: &[&str]| -> anyhow::Result<String> {
        let output = fleet.cli().args(words).output()?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(output.status.success(), "{words:?}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    };
    // Until the end, from before the beginning.
    let followed = cli(&["logs", "-f", "--all", &job])?;
    let told = |text: &str| -> anyhow::Result<Vec<String>> {
        let line = |line: &str| {
            let words = line.split_once(' ').context("no time")?.1;
            let (whose, text) = words.split_once(' ').context("no rank")?;
            Ok(format!("{whose} {}", text.trim()))
        };
        text.lines().map(line).collect()
    };
    let expected = [
        "n0 100%",
        "n0 first of 0",
        "n1 100%",
        "n1 first of 1",
        "n0 RuntimeError: of 0",
        "n1 RuntimeError: of 1",
    ];
    assert_eq!(told(&followed)?, expected);
    api.wait_job(&job, &["SUCCEEDED"], SHORT).await?;
    assert_eq!(told(&cli(&["logs", "--all", &job])?)?, expected);
    assert_eq!(told(&cli(&["logs", "--all", "--tail", "2", &job])?)?, expected[4..]);
    assert_eq!(told(&cli(&["logs", "--all", "--errors", &job])?)?, expected[4..]);
    assert_eq!(
        cli(&["logs", "--grep", "^first", "-C", "1", &job])?,
        "100%\nfirst of 0\nRuntimeError: of 0\n"
    );
    let found = cli(&["logs", "--search", "RuntimeError: of 1"])?;
    assert!(found.contains(&job) && found.lines().count() == 1, "{found}");
    let files = cli(&["logs", "--files", "--rank", "1", "-o", "name", &job])?;
    assert!(files.lines().any(|file| file == "output"), "{files}");
    let copies = fleet.path("copies");
    cli(&["logs", "--download", copies.to_str().context("path")?, &job])?;
    let copy = std::fs::read_to_string(copies.join("1-output.log"))?;
    assert_eq!(copy, " 10%\r100%\nfirst of 1\nRuntimeError: of 1\n");
    // What is read is what was shipped, with times that agree with the clock.
    let path = format!("/api/v1/jobs/{job}/logs/lines?all=true");
    let page = api.get(&path).await?;
    let times: Vec<u64> = page["lines"]
        .as_array()
        .context("lines")?
        .iter()
        .filter_map(|l| l["time_ms"].as_u64())
        .collect();
    assert!(times.len() == 6 && times.is_sorted(), "{times:?}");
    assert!(times[4] - times[0] >= 500, "two pauses are between them: {times:?}");
    fleet.assert_clean().await
}
