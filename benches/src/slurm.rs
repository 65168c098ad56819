//! Slurm as a peer: a controller and a few nodes on this machine, in namespaces of their own (network, host
//! name, processes), so that they meet nobody and end together.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Until the nodes are idle, and until a job has ended.
const START: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(60);
const TOOLS: [&str; 8] =
    ["slurmctld", "slurmd", "srun", "sbatch", "sinfo", "munged", "unshare", "ip"];

/// Whether Slurm can be started here, and if not, what is missing.
pub fn available() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("it needs root for its namespaces".to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |tool: &&str| std::env::split_paths(&path).any(|place| place.join(tool).exists());
    match TOOLS.iter().find(|tool| !found(tool)) {
        Some(tool) => Err(format!(
            "`{tool}` is missing (Debian: slurmctld, slurmd, slurm-client, munge, iproute2)"
        )),
        None => Ok(()),
    }
}

/// A cluster that runs; its processes end with it.
pub struct Slurm {
    /// First process of the namespace: with it all others go.
    world: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    directory: TempDir,
}

impl Slurm {
    /// Starts a cluster of `nodes` nodes and waits until all are idle.
    ///
    /// # Errors
    /// They do not become idle; what the daemons said is in the error.
    pub async fn start(nodes: usize) -> anyhow::Result<Slurm> {
        let directory = tempfile::Builder::new().prefix("slurm-").tempdir()?;
        let place = directory.path();
        std::fs::create_dir(place.join("state"))?;
        std::fs::write(place.join("slurm.conf"), configuration(place, nodes))?;
        std::fs::write(place.join("world.sh"), world(place, nodes))?;
        let mut world = Command::new("unshare")
            .args(["--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "bash"])
            .arg(place.join("world.sh"))
            .env("SLURM_CONF", place.join("slurm.conf"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(place.join("world.err"))?)
            .kill_on_drop(true)
            .spawn()
            .context("unshare")?;
        let orders = world.stdin.take().context("no input")?;
        let answers = BufReader::new(world.stdout.take().context("no output")?).lines();
        let mut slurm = Slurm { world, orders, answers, directory };
        if let Err(error) = slurm.answer("ready", START).await {
            let mut said = String::new();
            for name in ["world.err", "slurmctld.log", "n1.log"] {
                let text = std::fs::read_to_string(slurm.directory.path().join(name));
                said.push_str(&format!("\n--- {name}\n{}", text.unwrap_or_default()));
            }
            return Err(error.context(format!("Slurm does not start{said}")));
        }
        Ok(slurm)
    }

    /// Runs a command on every node with `srun`; `ended` says when that has ended.
    pub async fn srun(&mut self, command: &str) -> anyhow::Result<()> {
        self.order(&format!("srun {command}\n")).await
    }

    /// The same as a batch job with `sbatch`; `ended` says when that has answered.
    pub async fn sbatch(&mut self, command: &str) -> anyhow::Result<()> {
        self.order(&format!("sbatch {command}\n")).await
    }

    async fn order(&mut self, line: &str) -> anyhow::Result<()> {
        Ok(self.orders.write_all(line.as_bytes()).await?)
    }

    /// Waits until what was ordered has ended.
    ///
    /// # Errors
    /// It failed, or takes more than a minute.
    pub async fn ended(&mut self) -> anyhow::Result<()> {
        self.answer("ended 0", PATIENCE).await
    }

    async fn answer(&mut self, wanted: &str, patience: Duration) -> anyhow::Result<()> {
        let line = tokio::time::timeout(patience, self.answers.next_line())
            .await
            .with_context(|| format!("no {wanted:?} came"))??;
        match line {
            Some(line) if line == wanted => Ok(()),
            other => bail!("{other:?} came instead of {wanted:?}"),
        }
    }

    /// Ends every process of it.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.world.kill().await?;
        Ok(())
    }
}

fn configuration(place: &Path, nodes: usize) -> String {
    let place = place.display();
    let mut text = format!(
        "ClusterName=bench\nSlurmctldHost=localhost(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
         AuthType=auth/munge\nAuthInfo=socket={place}/munge.socket\nCredType=cred/munge\n\
         StateSaveLocation={place}/state\nSlurmdSpoolDir={place}/spool-%n\n\
         SlurmctldPidFile={place}/slurmctld.pid\nSlurmdPidFile={place}/%n.pid\n\
         SlurmctldLogFile={place}/slurmctld.log\nSlurmdLogFile={place}/%n.log\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\n\
         MpiDefault=none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
         SlurmdParameters=config_overrides\nReturnToService=2\n"
    );
    for node in 1..=nodes {
        let port = 17_000 + node;
        text.push_str(&format!(
            "NodeName=n{node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4\n"
        ));
    }
    text.push_str(&format!("PartitionName=all Nodes=n[1-{nodes}] Default=YES State=UP\n"));
    text
}

/// The shell that is the first process: it starts the daemons and then runs what it is told, as a user's
/// shell would. Slurm asks for the address of its host's name, which only an address that is not the
/// loopback's gives.
fn world(place: &Path, nodes: usize) -> String {
    let place = place.display();
    format!(
        "cd '{place}' || exit 1\n\
         hostname localhost && ip link set lo up && ip addr add 10.231.250.1/32 dev lo || exit 1\n\
         head -c 1024 /dev/urandom >munge.key && chmod 400 munge.key\n\
         munged --foreground --force --key-file='{place}/munge.key' \
         --socket='{place}/munge.socket' --pid-file='{place}/munged.pid' \
         --log-file='{place}/munged.log' --seed-file='{place}/munged.seed' </dev/null >&2 2>&1 &\n\
         while ! [ -S munge.socket ]; do sleep 0.05; done\n\
         slurmctld -D </dev/null >/dev/null 2>&1 &\n\
         for number in $(seq {nodes}); do slurmd -D -N \"n$number\" </dev/null >/dev/null 2>&1 & \
         done\n\
         until [ \"$(sinfo -h -t idle -o %D 2>/dev/null)\" = {nodes} ]; do sleep 0.1; done\n\
         echo ready\n\
         while read -r how what; do\n\
         if [ \"$how\" = srun ]; then srun -Q -N{nodes} $what </dev/null >/dev/null\n\
         else sbatch -Q -N{nodes} -o /dev/null --wrap \"srun $what\" </dev/null >/dev/null; fi\n\
         echo \"ended $?\"\n\
         done\n"
    )
}
