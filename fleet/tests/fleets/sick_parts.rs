//! From what a driver and a kernel say to a condition of the node, on a real agent: each GPU of one node
//! falls sick in another way, and so does each RDMA port of another, in a tree of its own that looks like
//! the kernel's.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{TestResult, built};
use anyhow::{Context, ensure};
use gangline_fleet::api::Api;
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use serde_json::Value;

/// What changes slowly is read every ten seconds, and most of it counts when it was read twice.
const PATIENCE: Duration = Duration::from_secs(90);

/// How the GPU is when it is well and when it is sick, as the stand-in's state file says it; the rule that
/// finds it, and how bad that is.
const GPUS: [(&str, &str, &str, &str); 7] = [
    (
        "ecc = {volatile = {sram_uncorrected = 0}}",
        "ecc = {volatile = {sram_uncorrected = 1}}",
        "ecc-sram",
        "fatal",
    ),
    (
        "ecc = {volatile = {dram_uncorrected = 0}}",
        "ecc = {volatile = {dram_uncorrected = 2}}",
        "ecc-dram",
        "drain-after-job",
    ),
    ("rows = {pending = false}", "rows = {pending = true}", "remap-pending", "drain-after-job"),
    ("rows = {failed = false}", "rows = {failed = true}", "remap-failure", "fatal"),
    (
        "fabric = {state = 3}\nlink = [{active = true}, {active = true}]",
        "fabric = {state = 3}\nlink = [{active = true}, {active = false}]",
        "nvlink-down",
        "fatal",
    ),
    ("temperature_margin_c = 40", "temperature_margin_c = 3", "gpu-temperature", "warning"),
    ("broken = false", "broken = true", "gpu-handle", "degraded"),
];

/// Writes the state of the node's GPUs in one step.
fn write_gpus(fleet: &Fleet, plain: &str, sick: bool) -> TestResult {
    let mut kinds = GPUS.iter().map(|(well, ill, ..)| if sick { ill } else { well });
    let mut text = String::new();
    for (index, part) in plain.split("[[gpu]]\n").enumerate() {
        if index > 0 {
            let state = kinds.next().context("more GPUs than kinds")?;
            text.push_str(&format!("[[gpu]]\n{state}\n"));
        }
        text.push_str(part);
    }
    let file = fleet.gpu_file("w0");
    let next = file.with_extension("next");
    std::fs::write(&next, text)?;
    Ok(std::fs::rename(&next, &file)?)
}

/// Waits until all of these stand: rule, a part of the component's name, level, a part of what is said.
async fn until_all(api: &Api, node: &str, wanted: &[(&str, &str, &str, &str)]) -> TestResult {
    let began = Instant::now();
    loop {
        let page = api.get(&format!("/api/v1/nodes/{node}")).await?;
        let stands = |(rule, component, level, said): &&(&str, &str, &str, &str)| {
            page["conditions"].as_array().into_iter().flatten().any(|condition| {
                let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
                text("rule") == *rule
                    && text("component").contains(component)
                    && text("level") == *level
                    && condition.to_string().contains(said)
            })
        };
        let missing: Vec<_> = wanted.iter().filter(|one| !stands(one)).collect();
        if missing.is_empty() {
            println!("{} conditions of {node} after {:?}", wanted.len(), began.elapsed());
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "{missing:?} on {node}: {:#}", page["conditions"]);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The files of one port that is up.
fn make_port(sys: &Path, device: &str) -> TestResult {
    let base = sys.join("class/infiniband").join(device);
    let files = [
        ("board_id", "MT_0000000838\n"),
        ("hca_type", "MT4129\n"),
        ("ports/1/link_layer", "InfiniBand\n"),
        ("ports/1/state", "4: ACTIVE\n"),
        ("ports/1/phys_state", "5: LinkUp\n"),
        ("ports/1/rate", "400 Gb/sec (4X NDR)\n"),
        ("ports/1/counters/port_rcv_data", "1000\n"),
        ("ports/1/counters/symbol_error", "7\n"),
        ("ports/1/counters/link_downed", "1\n"),
        ("ports/1/hw_counters/rnr_nak_retry_err", "0\n"),
    ];
    for (name, text) in files {
        let path = base.join(name);
        std::fs::create_dir_all(path.parent().context("a parent")?)?;
        std::fs::write(path, text)?;
    }
    Ok(())
}

/// An agent whose node has RDMA ports; returns the directory that it takes for `/sys`.
async fn node_with_ports(fleet: &mut Fleet, name: &str, ports: u32) -> anyhow::Result<PathBuf> {
    let sys = fleet.path("sys");
    for device in 0..ports {
        make_port(&sys, &format!("mlx5_{device}"))?;
    }
    let config = fleet.path("agent.toml");
    std::fs::write(&config, format!("sys_root = {sys:?}\n"))?;
    let extra = vec!["--config".to_owned(), config.display().to_string()];
    fleet.add_agent(AgentOptions { extra, ..AgentOptions::worker(name, 0) }).await?;
    Ok(sys)
}

fn rules_of(page: &Value) -> Vec<&str> {
    let conditions = page["conditions"].as_array().into_iter().flatten();
    conditions.filter_map(|condition| condition["rule"].as_str()).collect()
}

#[tokio::test]
async fn every_kind_of_sick_part_becomes_its_condition() -> TestResult {
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    fleet.add_agent(AgentOptions::worker("w0", GPUS.len() as u32)).await?;
    let sys = node_with_ports(&mut fleet, "w1", 6).await?;
    let api = fleet.api()?;

    let plain = std::fs::read_to_string(fleet.gpu_file("w0"))?;
    write_gpus(&fleet, &plain, false)?;
    // Both kinds of reading have been there once.
    tokio::time::sleep(Duration::from_secs(15)).await;
    for node in ["w0", "w1"] {
        let page = api.get(&format!("/api/v1/nodes/{node}")).await?;
        let known = ["gpu", "ecc", "remap", "nvlink", "port"];
        let of_parts = |rule: &&str| known.iter().any(|kind| rule.starts_with(kind));
        let found: Vec<&str> = rules_of(&page).into_iter().filter(of_parts).collect();
        ensure!(found.is_empty(), "{node} is well: {found:?}");
    }

    write_gpus(&fleet, &plain, true)?;
    let port = |device: u32, file: &str| -> PathBuf {
        sys.join(format!("class/infiniband/mlx5_{device}/ports/1")).join(file)
    };
    std::fs::write(port(0, "state"), "1: DOWN\n")?;
    std::fs::write(port(0, "phys_state"), "2: Polling\n")?;
    std::fs::write(port(1, "rate"), "200 Gb/sec (4X HDR)\n")?;
    std::fs::write(port(2, "hw_counters/rnr_nak_retry_err"), "3\n")?;
    std::fs::write(port(4, "counters/link_downed"), "2\n")?;
    for step in 1..=8_u32 {
        std::fs::write(port(3, "counters/symbol_error"), format!("{}\n", 7 + 500 * step))?;
        // Each time it is down and up again counts once.
        std::fs::write(port(5, "counters/link_downed"), format!("{}\n", 1 + step))?;
        tokio::time::sleep(Duration::from_millis(1_200)).await;
    }
    let ports = [
        ("port-state", "mlx5_0/1", "degraded", "cable or switch side"),
        ("port-state", "mlx5_1/1", "degraded", "200 of 400 Gb/s"),
        ("port-broken", "mlx5_2/1", "fatal", "rnr_nak_retry_err"),
        ("port-symbol-errors", "mlx5_3/1", "fatal", ""),
        ("port-link-downed", "mlx5_4/1", "degraded", ""),
        ("port-flap", "mlx5_5/1", "no-new-jobs", ""),
    ];
    until_all(&api, "w1", &ports).await?;
    let uuids: Vec<String> = (0..GPUS.len()).map(|index| format!("w0-{index}")).collect();
    let gpus: Vec<_> = GPUS
        .iter()
        .zip(&uuids)
        .map(|((_, _, rule, level), uuid)| (*rule, uuid.as_str(), *level, ""))
        .collect();
    until_all(&api, "w0", &gpus).await?;

    // Well again, and an operator has seen to it.
    write_gpus(&fleet, &plain, false)?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    api.post("/api/v1/nodes/w0/resume", &[], "{}").await?;
    let began = Instant::now();
    loop {
        let page = api.get("/api/v1/nodes/w0").await?;
        let left: Vec<&str> = rules_of(&page)
            .into_iter()
            .filter(|rule| GPUS.iter().any(|(_, _, known, _)| known == rule))
            .collect();
        if left.is_empty() && page["cordon"].is_null() {
            break;
        }
        ensure!(began.elapsed() < PATIENCE, "{left:?}: {}", page["cordon"]);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    fleet.assert_clean().await
}

/// A driver that was exchanged under its library is said as soon as an agent starts, also of a node that
/// has never shown a GPU.
#[tokio::test]
async fn a_library_of_another_version_than_the_driver_is_said_at_the_start() -> TestResult {
    let binaries = built().await?;
    let library = binaries.nvml_sim.display().to_string();
    let mut fleet = Fleet::start(binaries, FleetOptions::default()).await?;
    let extra = vec!["--nvml-library".to_owned(), library];
    fleet.add_agent(AgentOptions { extra, ..AgentOptions::worker("w0", 0) }).await?;
    fleet.stop_agent("w0")?;
    std::fs::write(fleet.gpu_file("w0"), "version_mismatch = true\n")?;
    fleet.start_agent("w0")?;
    let api = fleet.api()?;
    until_all(&api, "w0", &[("gpu-library", "node", "fatal", "driver and library")]).await?;
    let page = api.get("/api/v1/nodes/w0").await?;
    ensure!(page["cordon"]["by"] == "health", "{page}");
    fleet.assert_clean().await
}

/// A link that goes down while NCCL of a gang there loses its network keeps new gangs away; the same line
/// without it says nothing of the node.
#[tokio::test]
async fn a_link_that_is_lost_under_a_gang_keeps_others_away() -> TestResult {
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    let sys = node_with_ports(&mut fleet, "w0", 2).await?;
    let api = fleet.api()?;
    let spec = "name: train\nlauncher: {type: command}\nresources: {cpus_per_node: 1}\nrun: |\n  \
                echo 'w0:7:9 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with \
                status=12 opcode=0 len=0 vendor err 129'\n  sleep 600\n";
    let job = api.submit(spec).await?;
    let began = Instant::now();
    while !api.logs(&job, "").await?.contains("Got completion") {
        ensure!(began.elapsed() < PATIENCE, "the line never came");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let calm = api.get("/api/v1/nodes/w0").await?;
    ensure!(!rules_of(&calm).iter().any(|rule| rule.starts_with("port")), "{calm}");
    let file = sys.join("class/infiniband/mlx5_1/ports/1/counters/link_downed");
    std::fs::write(file, "2\n")?;
    until_all(&api, "w0", &[("port-lost-in-gang", "mlx5_1/1", "no-new-jobs", "")]).await?;
    let page = api.get("/api/v1/nodes/w0").await?;
    ensure!(page["state"] == "cordoned", "{page}");
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], PATIENCE).await?;
    fleet.assert_clean().await
}
