//! A real Prometheus in front of a real fleet: it finds everything by service discovery with a
//! viewer's token, reads it, and has every name that the dashboards ask for.
//!
//! Needs the programs `prometheus` and `promtool`; says so where they are not there. With
//! `GANGLINE_LOOK_S=60` in the environment it waits for a minute, so that one can look at its pages.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{RAY, SHORT, TestResult, built, ray_python, runs};
use anyhow::{Context, bail, ensure};
use gangline_fleet::api::Api;
use gangline_fleet::build::{Binaries, workspace};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::process::Process;
use gangline_fleet::slots;
use serde_json::{Value, json};

/// How long Prometheus may take until it has seen what there is.
const SEEN: Duration = Duration::from_secs(60);
/// What a stock dashboard of GPUs (Grafana 12239) reads.
const DASHBOARD_12239: [&str; 6] = [
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
];

/// Whether the programs are there; says so when they are not.
fn has_prometheus() -> bool {
    let there = ["prometheus", "promtool"].iter().all(|program| runs(program, &["--version"]));
    if !there {
        eprintln!("skipped: no `prometheus` and `promtool` (the Debian package is `prometheus`)");
    }
    there
}

fn monitoring() -> PathBuf {
    workspace().join("packaging/monitoring")
}

fn text_of(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&both).into_owned()
}

#[test]
fn the_alert_rules_are_valid_and_each_fires() -> TestResult {
    if !has_prometheus() {
        return Ok(());
    }
    for (words, file) in [(["check", "rules"], "rules.yml"), (["test", "rules"], "rules.test.yml")]
    {
        let mut command = Command::new("promtool");
        let output = command.args(words).arg(file).current_dir(monitoring()).output()?;
        ensure!(output.status.success(), "{words:?}: {}", text_of(&output));
    }
    // None is without a case that fires it.
    let rules = std::fs::read_to_string(monitoring().join("rules.yml"))?;
    let cases = std::fs::read_to_string(monitoring().join("rules.test.yml"))?;
    let alerts: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    ensure!(alerts.len() >= 6, "{alerts:?}");
    for alert in alerts {
        let mut of_alert = cases.split("- alertname: ").filter(|case| case.starts_with(alert));
        ensure!(of_alert.any(|case| case.contains("exp_labels")), "{alert} is never fired");
    }
    Ok(())
}

/// Names of metrics in the panels of a dashboard and in its variables.
fn names_in(dashboard: &str) -> anyhow::Result<BTreeSet<String>> {
    let board: Value = serde_json::from_str(dashboard)?;
    let panels = board["panels"].as_array().context("panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut names = BTreeSet::new();
    for target in targets {
        names.extend(names_of(target["expr"].as_str().context("expr")?));
    }
    let variables = board["templating"]["list"].as_array().into_iter().flatten();
    names.extend(variables.filter_map(|one| one["query"].as_str()).flat_map(names_of));
    Ok(names)
}

/// Names of metrics in an expression.
fn names_of(expression: &str) -> impl Iterator<Item = String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expression.split(move |c| !is_part(c));
    words.filter(|word| is_metric(word)).map(str::to_owned)
}

fn is_metric(word: &str) -> bool {
    const PREFIXES: [&str; 5] = ["gangline_", "DCGM_", "node_", "process_", "ray_"];
    word == "up" || PREFIXES.iter().any(|prefix| word.starts_with(prefix))
}

#[test]
fn names_are_found_in_expressions() -> TestResult {
    let board = r#"{"panels": [{"targets": [{"expr":
        "sum by (node) (rate(node_load1{node=\"x\"}[5m])) / up > bool gangline_jobs"}]}, {}],
        "templating": {"list": [{"query": "prometheus"},
        {"query": "label_values(gangline_node_up{pool=\"a\"}, node)"}]}}"#;
    let expected = ["gangline_jobs", "gangline_node_up", "node_load1", "up"];
    assert_eq!(names_in(board)?.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    Ok(())
}

/// A tree as of `/sys/class` with one port of an InfiniBand card.
fn fake_class(directory: &Path) -> anyhow::Result<PathBuf> {
    let class = directory.join("class");
    let device = class.join("infiniband/mlx5_0");
    let port = device.join("ports/1");
    std::fs::create_dir_all(port.join("counters"))?;
    std::fs::create_dir_all(port.join("hw_counters"))?;
    let files = [
        ("board_id", "MT_0000000838"),
        ("fw_ver", "28.39.1002"),
        ("hca_type", "MT4129"),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/phys_state", "5: LinkUp"),
        ("ports/1/rate", "400 Gb/sec (4X NDR)"),
        ("ports/1/link_layer", "InfiniBand"),
        ("ports/1/counters/port_rcv_data", "250000"),
        ("ports/1/counters/port_xmit_data", "500000"),
        ("ports/1/counters/symbol_error", "0"),
        ("ports/1/counters/link_downed", "2"),
        ("ports/1/hw_counters/out_of_sequence", "7"),
    ];
    for (name, text) in files {
        std::fs::write(device.join(name), format!("{text}\n"))?;
    }
    Ok(class)
}

/// A program that runs the agent where `/sys/class` is that tree, in a mount namespace of its own.
fn agent_with_infiniband(binaries: &Binaries, directory: &Path) -> anyhow::Result<Option<PathBuf>> {
    let class = fake_class(directory)?;
    let script = directory.join("agent");
    let text = format!(
        "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind \"$0\" /sys/class && exec \"$@\"' \
         '{}' '{}' \"$@\"\n",
        class.display(),
        binaries.agent.display(),
    );
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    let tried = Command::new(&script).arg("--version").output()?;
    if tried.status.success() {
        return Ok(Some(script));
    }
    eprintln!("no mount namespace here, so no InfiniBand port: {}", text_of(&tried));
    Ok(None)
}

/// A Prometheus; it ends with this value.
struct Prometheus {
    api: Api,
    process: Process,
    log: PathBuf,
}

impl Prometheus {
    async fn start(directory: &Path) -> anyhow::Result<Prometheus> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", directory.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let log = directory.join("prometheus.log");
        let process = Process::start("prometheus", &mut command, &log)?;
        let api = Api::new(format!("http://127.0.0.1:{port}"), String::new())?;
        Ok(Prometheus { api, process, log })
    }

    /// The samples of an instant query: labels and value.
    async fn query(&self, query: &str) -> anyhow::Result<Vec<(BTreeMap<String, String>, f64)>> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.api.get(&format!("/api/v1/query?query={encoded}")).await?;
        let result = answer["data"]["result"].as_array().context("result")?;
        let sample = |entry: &Value| {
            let labels = serde_json::from_value(entry["metric"].clone())?;
            let value = entry["value"][1].as_str().context("value")?.parse()?;
            anyhow::Ok((labels, value))
        };
        result.iter().map(sample).collect()
    }

    /// Asks until `fits` is content with the answer.
    async fn until(
        &self,
        query: &str,
        fits: impl Fn(&[(BTreeMap<String, String>, f64)]) -> bool,
    ) -> anyhow::Result<Vec<(BTreeMap<String, String>, f64)>> {
        let until = Instant::now() + SEEN;
        loop {
            // It needs a moment to start.
            let answer = self.query(query).await;
            match &answer {
                Ok(samples) if fits(samples) => return answer,
                _ if Instant::now() >= until => {
                    let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                    bail!("{query} stays {answer:?}\n{log}");
                }
                _ => tokio::time::sleep(Duration::from_millis(300)).await,
            }
        }
    }

    async fn names(&self) -> anyhow::Result<BTreeSet<String>> {
        let answer = self.api.get("/api/v1/label/__name__/values").await?;
        Ok(serde_json::from_value(answer["data"].clone())?)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
    }
}

fn gangline(fleet: &Fleet, words: &[&str]) -> anyhow::Result<String> {
    let output = fleet.cli().args(words).env_clear().output()?;
    ensure!(output.status.success(), "{words:?}: {}", text_of(&output));
    Ok(String::from_utf8(output.stdout)?)
}

/// Writes the configuration as docs/monitoring.md says, with shorter intervals.
fn configure(fleet: &Fleet, directory: &Path) -> anyhow::Result<()> {
    let create =
        ["token", "create", "--user", "prometheus", "--project", "default", "--role", "viewer"];
    let token = directory.join("token");
    std::fs::write(&token, gangline(fleet, &create)?.trim())?;
    let rules = directory.join("rules.yml");
    gangline(fleet, &["export", "prometheus-rules", "--out", &rules.to_string_lossy()])?;
    let token = token.to_string_lossy().into_owned();
    let scrape = gangline(fleet, &["export", "scrape-config", "--credentials-file", &token])?;
    let scrape =
        scrape.replace("interval: 15s", "interval: 1s").replace("timeout: 10s", "timeout: 1s");
    let text = format!("rule_files: [rules.yml]\n{scrape}");
    std::fs::write(directory.join("prometheus.yml"), text)?;
    let mut check = Command::new("promtool");
    check.args(["check", "config"]).arg(directory.join("prometheus.yml"));
    let output = check.output()?;
    ensure!(output.status.success(), "{}", text_of(&output));
    Ok(())
}

/// promtool reads every page; it may only dislike names that are not ours.
async fn check_page(api: &Api, path: &str) -> TestResult {
    let answer = api.send(reqwest::Method::GET, path, &[], None).await?;
    ensure!(answer.status().is_success(), "{path}: {}", answer.status());
    let page = answer.bytes().await?;
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().context("stdin")?;
    std::io::Write::write_all(&mut stdin, &page)?;
    drop(stdin);
    let output = child.wait_with_output()?;
    let said = text_of(&output);
    // 3 is for names that promtool would choose otherwise.
    ensure!(matches!(output.status.code(), Some(0 | 3)), "{path}: {said}");
    let ours: Vec<&str> = said.lines().filter(|line| line.starts_with("gangline_")).collect();
    ensure!(ours.is_empty(), "{path}: {ours:?}");
    Ok(())
}

/// A Ray job on both workers that writes a line every second.
const SPEC: &str = "name: train\nresources: {nnodes: 2, gpus_per_node: 1}\nrun: |\n  exec python -u \
                    - <<'EOF'\n  import time, ray\n  ray.init()\n  for step in range(600):\n    \
                    print(\"step\", step)\n    time.sleep(1)\n  EOF\n";

#[tokio::test]
async fn a_real_prometheus_reads_a_fleet() -> TestResult {
    if !has_prometheus() {
        return Ok(());
    }
    let binaries = built().await?;
    let python = ray_python(&binaries).await?;
    let directory = tempfile::Builder::new().prefix("gl-prom-").tempdir()?;
    let infiniband = agent_with_infiniband(&binaries, directory.path())?;
    let agent = infiniband.clone().unwrap_or(binaries.agent.clone());
    let options = FleetOptions { python: Some(python), ..FleetOptions::default() };
    let mut fleet = Fleet::start(Binaries { agent, ..binaries }, options).await?;
    fleet.add_agent(AgentOptions::head("head")).await?;
    for name in ["a", "b"] {
        fleet.add_agent(AgentOptions::worker(name, 4)).await?;
    }
    let _slot = slots::heavy().await?;
    let api = fleet.api()?;
    let job = api.submit(SPEC).await?;
    api.wait_job(&job, &["RUNNING"], RAY).await?;
    // The queue has metrics while a job waits, conditions where something is wrong with a node, and
    // webhooks where there is one.
    let waiting = api.submit(&SPEC.replace("gpus_per_node: 1", "gpus_per_node: 4")).await?;
    fleet.add_agent(AgentOptions::worker("sick", 1)).await?;
    api.wait_node("sick", &["ready"], SHORT).await?;
    let inject = json!({ "fault": "xid=79" }).to_string();
    let (status, answer) = api.post("/api/v1/nodes/sick/inject", &[], &inject).await?;
    ensure!(status == 200, "{answer}");
    let hook = json!({ "url": "http://127.0.0.1:9/", "events": ["node.released"] }).to_string();
    let (status, answer) = api.put("/api/v1/webhooks/ops?fleet=true", &hook).await?;
    ensure!(status == 200, "{answer}");

    configure(&fleet, directory.path())?;
    let prometheus = Prometheus::start(directory.path()).await?;
    // The coordinator, four nodes, and the head and two ranks of the Ray cluster.
    let up = |job: &str, count: usize| {
        let query = format!("up{{job=\"{job}\"}}");
        let prometheus = &prometheus;
        async move {
            prometheus
                .until(&query, |found| {
                    found.len() == count && found.iter().all(|(_, value)| *value == 1.0)
                })
                .await
        }
    };
    up("gangline", 1).await?;
    let nodes = up("gangline-node", 4).await?;
    let instances: BTreeSet<&str> = nodes.iter().map(|(labels, _)| &*labels["instance"]).collect();
    assert_eq!(instances, ["a", "b", "head", "sick"].into());
    let ray = up("ray", 3).await?;
    assert!(ray.iter().all(|(labels, _)| labels["ray_io_cluster"] == job), "{ray:?}");

    // The GPUs of the job carry its id and no others do; the stock dashboard has its six families.
    for name in DASHBOARD_12239 {
        let all = prometheus.until(name, |found| found.len() == 9).await?;
        assert!(all.iter().all(|(labels, _)| labels.contains_key("gpu")), "{all:?}");
        let of_job = all.iter().filter(|(labels, _)| labels.get("hpc_job") == Some(&job));
        let places: BTreeSet<&str> = of_job.map(|(labels, _)| &*labels["instance"]).collect();
        assert_eq!(places, ["a", "b"].into(), "{name}");
        assert_eq!(all.iter().filter(|(labels, _)| labels.contains_key("hpc_job")).count(), 2);
    }

    // Every name that a dashboard asks for, in panels and variables; those with a rate need a second scrape.
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    for name in ["cluster.json", "job.json", "node.json"] {
        let path = monitoring().join("dashboards").join(name);
        wanted.extend(names_in(&std::fs::read_to_string(path)?)?);
    }
    wanted.extend(DASHBOARD_12239.map(str::to_owned));
    // And every name that an alert asks for: without it that alert never fires.
    let rules = prometheus.api.get("/api/v1/rules").await?;
    let rules = rules["data"]["groups"][0]["rules"].as_array().context("rules")?.clone();
    for rule in &rules {
        wanted.extend(names_of(rule["query"].as_str().context("query")?));
    }
    if infiniband.is_none() {
        wanted.retain(|name| !name.starts_with("node_infiniband_"));
    }
    ensure!(wanted.len() > 20, "{wanted:?}");
    let until = Instant::now() + SEEN;
    loop {
        let names = prometheus.names().await?;
        let missing: Vec<&String> = wanted.iter().filter(|name| !names.contains(*name)).collect();
        if missing.is_empty() {
            println!("{} names are scraped, {} of them are asked for", names.len(), wanted.len());
            break;
        }
        ensure!(Instant::now() < until, "never scraped: {missing:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // Ray's own come through as Ray writes them.
    let ray_query = "count(ray_node_mem_total)";
    prometheus.until(ray_query, |found| found.iter().any(|(_, count)| *count >= 3.0)).await?;

    check_page(&api, "/metrics").await?;
    check_page(&api, "/api/v1/nodes/a/metrics").await?;
    check_page(&api, "/api/v1/federate").await?;
    let rules = prometheus.api.get("/api/v1/rules").await?;
    let rules = rules["data"]["groups"][0]["rules"].as_array().context("rules")?.clone();
    assert!(rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");

    if let Some(seconds) = std::env::var("GANGLINE_LOOK_S").ok().and_then(|s| s.parse().ok()) {
        println!("look at {}", prometheus.api.base);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    // A node that is gone cannot be scraped, and the others can.
    fleet.kill_agent("b")?;
    let gone = |found: &[(BTreeMap<String, String>, f64)]| found.iter().any(|(_, v)| *v == 0.0);
    prometheus.until("up{job=\"gangline-node\",instance=\"b\"}", gone).await?;
    prometheus.until("gangline_node_up{node=\"b\"}", gone).await?;
    let others = prometheus.query("up{job=\"gangline-node\",instance!=\"b\"}").await?;
    assert!(others.len() == 3 && others.iter().all(|(_, value)| *value == 1.0), "{others:?}");
    fleet.start_agent("b")?;
    prometheus
        .until("up{job=\"gangline-node\",instance=\"b\"}", |found| {
            found.iter().any(|(_, value)| *value == 1.0)
        })
        .await?;
    api.stop(&waiting).await?;
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], RAY).await?;
    drop(prometheus);
    fleet.assert_clean().await
}
