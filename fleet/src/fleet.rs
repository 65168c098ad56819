//! A fleet: one coordinator and some agents as separate processes, in one directory.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::api::Api;
use crate::build::Binaries;
use crate::hosts::Host;
use crate::process::{Found, Process, find, listening_ports, sweep};
use crate::slots::{self, Slot};

/// Environment variable of every process below a fleet: how its drop finds them. Not a `GANGLINE_`
/// one: agents keep those from their members.
const FLEET_VARIABLE: &str = "FLEET_UNDER_TEST";

pub struct Fleet {
    pub binaries: Binaries,
    options: FleetOptions,
    directory: TempDir,
    http: SocketAddr,
    quic: SocketAddr,
    coordinator: Option<Process>,
    agents: Vec<Agent>,
    /// Ports of all agents: they share one network namespace, so the coordinator keeps them apart.
    ports: (u16, u16),
    _ports: Slot,
}

/// What a fleet is like; the default is a coordinator on loopback and no Ray.
#[derive(Clone, Default)]
pub struct FleetOptions {
    /// Interpreter with Ray; without it only command gangs run.
    pub python: Option<PathBuf>,
    /// Address that agents reach the coordinator at; loopback when absent.
    pub address: Option<IpAddr>,
    /// Directory of the artefacts; below the fleet's own directory when absent.
    pub shared_root: Option<PathBuf>,
    /// The nodes share nothing.
    pub without_shared_root: bool,
    /// Lines of the coordinator's configuration file.
    pub coordinator_config: String,
    /// `GANGLINE_LOG` of every program; this process's own when absent.
    pub log: Option<String>,
    /// A directory that comes first in the agents' PATH.
    pub programs: Option<PathBuf>,
}

struct Agent {
    options: AgentOptions,
    process: Option<Process>,
}

/// How to start one agent.
#[derive(Clone, Default)]
pub struct AgentOptions {
    pub name: String,
    pub head: bool,
    pub gpus: u32,
    pub host: Option<Host>,
    /// Directory of the cgroup that it runs in; that of this process when absent.
    pub group: Option<PathBuf>,
    pub extra: Vec<String>,
}

impl AgentOptions {
    pub fn head(name: &str) -> Self {
        AgentOptions { name: name.to_owned(), head: true, ..Self::default() }
    }

    pub fn worker(name: &str, gpus: u32) -> Self {
        AgentOptions { name: name.to_owned(), gpus, ..Self::default() }
    }

    pub fn on(mut self, host: &Host) -> Self {
        self.host = Some(host.clone());
        self
    }
}

impl Fleet {
    /// Starts a coordinator.
    pub async fn start(binaries: Binaries, options: FleetOptions) -> anyhow::Result<Fleet> {
        let directory = tempfile::Builder::new().prefix("gl-").tempdir()?;
        let address = options.address.unwrap_or(IpAddr::from([127, 0, 0, 1]));
        let (slot, ports) = slots::ports().await?;
        let mut fleet = Fleet {
            ports,
            _ports: slot,
            binaries,
            options,
            http: SocketAddr::from(([127, 0, 0, 1], free_tcp_port()?)),
            quic: SocketAddr::new(address, free_udp_port(address)?),
            coordinator: None,
            agents: Vec::new(),
            directory,
        };
        std::fs::create_dir_all(fleet.shared_root())?;
        std::fs::write(fleet.path("coordinator.toml"), &fleet.options.coordinator_config)?;
        fleet.start_coordinator().await?;
        Ok(fleet)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn shared_root(&self) -> PathBuf {
        self.options.shared_root.clone().unwrap_or_else(|| self.path("shared"))
    }

    pub fn state_dir(&self) -> PathBuf {
        self.path("coordinator")
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.http)
    }

    pub fn quic(&self) -> SocketAddr {
        self.quic
    }

    pub fn admin_token_file(&self) -> PathBuf {
        self.state_dir().join("admin.token")
    }

    pub fn api(&self) -> anyhow::Result<Api> {
        let token = std::fs::read_to_string(self.admin_token_file()).context("admin token")?;
        Api::new(self.url(), token)
    }

    /// The command that `start_coordinator` runs.
    pub fn coordinator_command(&self) -> Command {
        let mut command = Command::new(&self.binaries.coordinator);
        command
            .args(["serve", "--config"])
            .arg(self.path("coordinator.toml"))
            .arg("--state-dir")
            .arg(self.state_dir())
            .args(["--http", &self.http.to_string(), "--quic", &self.quic.to_string()])
            .env(FLEET_VARIABLE, self.directory.path());
        if !self.options.without_shared_root {
            command.arg("--shared-root").arg(self.shared_root());
        }
        if let Some(level) = &self.options.log {
            command.env("GANGLINE_LOG", level);
        }
        command
    }

    /// Starts the coordinator (again) and waits until it answers.
    pub async fn start_coordinator(&mut self) -> anyhow::Result<()> {
        let log = self.path("coordinator.log");
        let mut process = Process::start("coordinator", &mut self.coordinator_command(), &log)?;
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let answer = match self.api() {
                Ok(api) => api.get("/api/v1/whoami").await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(_) => break,
                Err(error) if Instant::now() >= until => {
                    bail!("the coordinator does not answer: {error}\n{}", tail(&log));
                }
                Err(_) => {}
            }
            if let Some(status) = process.wait(Duration::ZERO)? {
                bail!("the coordinator ended with {status}\n{}", tail(&log));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.coordinator = Some(process);
        Ok(())
    }

    pub fn coordinator_id(&self) -> Option<u32> {
        self.coordinator.as_ref().map(Process::id)
    }

    /// Name and pid of the coordinator and of every agent that runs.
    pub fn processes(&self) -> anyhow::Result<Vec<(String, u32)>> {
        let coordinator = self.coordinator_id().context("no coordinator runs")?;
        let agents = self.agents.iter().filter_map(|agent| agent.process.as_ref());
        let agents = agents.map(|process| (process.name.clone(), process.id()));
        Ok([("coordinator".to_owned(), coordinator)].into_iter().chain(agents).collect())
    }

    /// SIGKILL.
    pub fn kill_coordinator(&mut self) -> anyhow::Result<()> {
        self.coordinator.take().context("no coordinator runs")?.kill()
    }

    pub fn stop_coordinator(&mut self) -> anyhow::Result<()> {
        let mut process = self.coordinator.take().context("no coordinator runs")?;
        process.terminate(Duration::from_secs(10))?;
        Ok(())
    }

    /// A join token, through the API as an operator makes it.
    pub async fn join_token(&self, uses: u32, ttl_s: u64) -> anyhow::Result<String> {
        let body = format!("{{\"kind\":\"join\",\"uses\":{uses},\"ttl_s\":{ttl_s}}}");
        let headers = [("content-type", "application/json")];
        let (status, answer) = self.api()?.post("/api/v1/tokens", &headers, &body).await?;
        match (status, answer["token"].as_str()) {
            (201, Some(token)) => Ok(token.to_owned()),
            _ => bail!("join token: {status}: {answer}"),
        }
    }

    /// Joins and starts an agent, and waits until its node is ready.
    pub async fn add_agent(&mut self, options: AgentOptions) -> anyhow::Result<()> {
        let token = self.join_token(1, 600).await?;
        std::fs::write(self.path(&format!("{}.token", options.name)), token)?;
        self.write_gpus(&options.name, options.gpus)?;
        let name = options.name.clone();
        self.agents.push(Agent { options, process: None });
        self.start_agent(&name)?;
        let patience = Duration::from_secs(20);
        // A job that waited for it may have taken it already.
        let ready = self.api()?.wait_node(&name, &["ready", "mixed"], patience).await;
        ready.with_context(|| format!("agent {name}\n{}", self.agent_log(&name)))?;
        Ok(())
    }

    /// The state file of an agent's stand-in NVML; a test may change it while it runs.
    pub fn gpu_file(&self, agent: &str) -> PathBuf {
        self.path(&format!("{agent}.gpus.toml"))
    }

    /// Gives the stand-in NVML of an agent this many GPUs.
    pub fn write_gpus(&self, agent: &str, count: u32) -> anyhow::Result<()> {
        let mut text = String::from("driver_version = \"580.95.05\"\n");
        let fleet = self.directory.path().file_name().unwrap_or_default().to_string_lossy();
        for index in 0..count {
            text.push_str(&format!(
                "\n[[gpu]]\nuuid = \"GPU-{fleet}-{agent}-{index}\"\nname = \"NVIDIA H100 80GB \
                 HBM3\"\nmemory_total_mib = 81559\nmemory_used_mib = 4\ngpu_util = {}\nmem_util = 3\n\
                 temperature_c = {}\npower_w = 71.5\nsm_clock_mhz = 1980\nmem_clock_mhz = 2619\n\
                 clock_reasons = 1\n[gpu.gpm]\ntensor = 12.5\n",
                index * 7,
                30 + index,
            ));
        }
        std::fs::write(self.gpu_file(agent), text)?;
        Ok(())
    }

    fn agent(&mut self, name: &str) -> anyhow::Result<&mut Agent> {
        self.agents
            .iter_mut()
            .find(|agent| agent.options.name == name)
            .with_context(|| format!("no agent {name}"))
    }

    /// `gangline` as the administrator of this fleet.
    pub fn cli(&self) -> Command {
        let mut command = Command::new(&self.binaries.cli);
        command.args(["--address", &self.url(), "--token-file"]).arg(self.admin_token_file());
        command
    }

    /// The command of an agent, for tests that start one by hand.
    pub fn agent_command(&self, options: &AgentOptions) -> Command {
        let name = &options.name;
        let ports = self.ports;
        let mut command = match (&options.host, &options.group) {
            (Some(host), _) => host.command(&self.binaries.agent),
            (None, Some(group)) => {
                let mut command = Command::new("sh");
                command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]);
                command.arg(group).arg(&self.binaries.agent);
                command
            }
            (None, None) => Command::new(&self.binaries.agent),
        };
        command
            .args(["run", "--name", name, "--join", &format!("quic://{}", self.quic)])
            .arg("--token-file")
            .arg(self.path(&format!("{name}.token")))
            .arg("--state-dir")
            .arg(self.path(&format!("agent-{name}")))
            .arg("--temp-root")
            .arg(self.temp_root())
            .args(["--ports", &format!("{}-{}", ports.0, ports.1)])
            .args(["--role", if options.head { "head" } else { "worker" }])
            .args(&options.extra)
            .env("GANGLINE_NVML_SIM", self.gpu_file(name))
            .env(FLEET_VARIABLE, self.directory.path());
        if let Some(level) = &self.options.log {
            command.env("GANGLINE_LOG", level);
        }
        if let Some(first) = &self.options.programs {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let all = [first.clone()].into_iter().chain(std::env::split_paths(&path));
            // Only a directory with a colon in its name cannot be joined.
            command.env("PATH", std::env::join_paths(all).unwrap_or(path));
        }
        if options.gpus > 0 {
            command.arg("--nvml-library").arg(&self.binaries.nvml_sim);
        }
        if let Some(python) = &self.options.python {
            command.arg("--python").arg(python);
        }
        command
    }

    /// Short, because Ray puts sockets below it.
    pub fn temp_root(&self) -> PathBuf {
        self.path("t")
    }

    pub fn start_agent(&mut self, name: &str) -> anyhow::Result<()> {
        let log = self.path(&format!("agent-{name}.log"));
        let options = self.agent(name)?.options.clone();
        let mut command = self.agent_command(&options);
        let process = Process::start(name, &mut command, &log)?;
        let has_booted = options.host.as_ref().is_some_and(Host::has_booted);
        self.agent(name)?.process = Some(if has_booted { process.within() } else { process });
        Ok(())
    }

    /// SIGKILL.
    pub fn kill_agent(&mut self, name: &str) -> anyhow::Result<()> {
        self.agent(name)?.process.take().context("the agent does not run")?.kill()
    }

    /// SIGTERM, and waits.
    pub fn stop_agent(&mut self, name: &str) -> anyhow::Result<()> {
        let mut process = self.agent(name)?.process.take().context("the agent does not run")?;
        process.terminate(Duration::from_secs(40))?;
        Ok(())
    }

    pub fn agent_log(&self, name: &str) -> String {
        tail(&self.path(&format!("agent-{name}.log")))
    }

    pub fn coordinator_log(&self) -> String {
        tail(&self.path("coordinator.log"))
    }

    /// Processes of this fleet's gangs that live now.
    pub fn gang_processes(&self) -> Vec<Found> {
        let directory = self.directory.path().to_string_lossy().into_owned();
        let mut found = find(FLEET_VARIABLE, &directory, Some(&self.temp_root()));
        found.retain(|process| process.mark.is_some() || process.command.starts_with("ray"));
        found
    }

    /// Nothing of any gang is left: no process, no temp dir, no bound port of the blocks.
    pub async fn assert_clean(&self) -> anyhow::Result<()> {
        let until = Instant::now() + Duration::from_secs(15);
        loop {
            let left = self.leftovers();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                bail!("left behind:\n  {}", left.join("\n  "));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn leftovers(&self) -> Vec<String> {
        let mut left: Vec<String> = self
            .gang_processes()
            .into_iter()
            .map(|p| format!("process {} ({:?}): {}", p.pid, p.mark, p.command))
            .collect();
        for port in listening_ports() {
            if (self.ports.0..=self.ports.1).contains(&port) {
                left.push(format!("port {port}"));
            }
        }
        for entry in std::fs::read_dir(self.temp_root()).into_iter().flatten().flatten() {
            left.push(format!("temp dir {}", entry.path().display()));
        }
        for agent in &self.agents {
            let members = self.path(&format!("agent-{}", agent.options.name)).join("members");
            for entry in std::fs::read_dir(members).into_iter().flatten().flatten() {
                left.push(format!("spool {}", entry.path().display()));
            }
        }
        left
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            if let Some(mut process) = agent.process.take() {
                // What cannot be killed here is found by the sweep.
                let _ = process.kill();
            }
        }
        if let Some(mut coordinator) = self.coordinator.take() {
            let _ = coordinator.kill();
        }
        let directory = self.directory.path().to_string_lossy().into_owned();
        sweep(FLEET_VARIABLE, &directory, Some(self.directory.path()));
        if std::env::var_os("GANGLINE_KEEP").is_some() || std::thread::panicking() {
            eprintln!("--- coordinator.log\n{}", self.coordinator_log());
            for agent in &self.agents {
                let name = &agent.options.name;
                eprintln!("--- agent {name}\n{}", self.agent_log(name));
            }
        }
        if std::env::var_os("GANGLINE_KEEP").is_some() {
            self.directory.disable_cleanup(true);
            eprintln!("kept {}", self.directory.path().display());
        }
    }
}

/// A TCP port of loopback that nobody used a moment ago.
fn free_tcp_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn free_udp_port(address: IpAddr) -> anyhow::Result<u16> {
    Ok(UdpSocket::bind((address, 0))?.local_addr()?.port())
}

fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines.split_at(lines.len().saturating_sub(40)).1.join("\n")
}
