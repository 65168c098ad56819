//! Hosts that are not there: network and PID namespaces joined by a bridge.
//!
//! Made with `ip`, used through `nsenter` and `unshare`, removed on drop. Needs root.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};

use crate::process;

/// Makes the names of this process's networks differ.
static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// A bridge with hosts on it; the coordinator runs on the bridge's own address.
pub struct Network {
    bridge: String,
    subnet: u8,
    hosts: Vec<Host>,
}

/// One namespace pair.
#[derive(Clone)]
pub struct Host {
    namespace: Arc<String>,
    pub address: IpAddr,
    /// What has booted; without it each program has a PID namespace of its own.
    init: Option<Arc<Init>>,
}

/// The first process of a PID namespace, which does nothing but collect orphans. The namespace
/// and all that runs in it end with it.
struct Init(Child);

impl Drop for Init {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether namespaces can be made here, and if not, what is missing.
pub fn available() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("network namespaces need root".to_owned());
    }
    for tool in ["ip", "iptables", "nsenter", "setpriv", "unshare"] {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {tool}")])
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !found {
            return Err(format!("`{tool}` is missing (Debian: iproute2, iptables, util-linux)"));
        }
    }
    Ok(())
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {program}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}", arguments.join(" "), text.trim());
    }
    Ok(())
}

impl Network {
    /// A bridge at 10.231.N.1 with this many hosts at 10.231.N.11, .12, ...
    pub fn create(hosts: u8) -> anyhow::Result<Network> {
        // The tests of one program run side by side.
        let number = NETWORKS.fetch_add(97, Ordering::Relaxed);
        let subnet = (std::process::id().wrapping_add(number) % 250) as u8;
        let bridge = format!("glb{subnet}");
        let mut network = Network { bridge: bridge.clone(), subnet, hosts: Vec::new() };
        run("ip", &["link", "add", &bridge, "type", "bridge"])?;
        run("ip", &["addr", "add", &format!("10.231.{subnet}.1/24"), "dev", &bridge])?;
        run("ip", &["link", "set", &bridge, "up"])?;
        for number in 0..hosts {
            let host = network.add_host(number)?;
            network.hosts.push(host);
        }
        Ok(network)
    }

    fn add_host(&self, number: u8) -> anyhow::Result<Host> {
        let subnet = self.subnet;
        let namespace = format!("gl{subnet}h{number}");
        let (outer, inner) = (format!("glo{subnet}-{number}"), format!("gli{subnet}-{number}"));
        let address = Ipv4Addr::new(10, 231, subnet, 11 + number);
        run("ip", &["netns", "add", &namespace])?;
        let host =
            Host { namespace: Arc::new(namespace.clone()), address: address.into(), init: None };
        run("ip", &["link", "add", &outer, "type", "veth", "peer", "name", &inner])?;
        run("ip", &["link", "set", &outer, "master", &self.bridge, "up"])?;
        run("ip", &["link", "set", &inner, "netns", &namespace])?;
        let inside = |arguments: &[&str]| {
            let mut all = vec!["-n", namespace.as_str()];
            all.extend_from_slice(arguments);
            run("ip", &all)
        };
        inside(&["addr", "add", &format!("{address}/24"), "dev", &inner])?;
        inside(&["link", "set", &inner, "up"])?;
        inside(&["link", "set", "lo", "up"])?;
        inside(&["route", "add", "default", "via", &format!("10.231.{subnet}.1")])?;
        Ok(host)
    }

    /// The coordinator's side of the bridge.
    pub fn address(&self) -> IpAddr {
        Ipv4Addr::new(10, 231, self.subnet, 1).into()
    }

    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &self.hosts {
            if let Err(error) = run("ip", &["netns", "del", &host.namespace]) {
                eprintln!("network cleanup: {error}");
            }
        }
        if let Err(error) = run("ip", &["link", "del", &self.bridge]) {
            eprintln!("network cleanup: {error}");
        }
    }
}

impl Host {
    /// The same host with a PID namespace that lasts: of a program that dies here, what it has
    /// started lives on.
    pub fn boot(&self) -> anyhow::Result<Host> {
        // Of ignored children no zombies are left.
        let script = "echo up; exec env --ignore-signal=CHLD sleep infinity";
        let mut init = self
            .own_pids(Path::new("sh"))
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a namespace")?;
        let output = init.stdout.take();
        // From here on it ends with its owner.
        let init = Init(init);
        let mut up = [0; 3];
        output.context("output")?.read_exact(&mut up).context("a namespace does not come up")?;
        Ok(Host { init: Some(Arc::new(init)), ..self.clone() })
    }

    /// Power off: nothing that ran here lives, and nobody is told. It does not boot again.
    pub fn halt(&self) -> anyhow::Result<()> {
        self.cut()?;
        let init = self.init.as_ref().context("the host has not booted")?;
        process::kill(init.0.id())
    }

    pub fn has_booted(&self) -> bool {
        self.init.is_some()
    }

    /// `program` in this host's network; it dies with its starter. As PID 1 of a PID namespace, or, on
    /// a host that has booted, as one more process of that.
    pub fn command(&self, program: &Path) -> Command {
        let Some(init) = &self.init else { return self.own_pids(program) };
        let namespaces = format!("/proc/{}/ns", init.0.id());
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.namespace))
            .arg(format!("--mount={namespaces}/mnt"))
            .arg(format!("--pid={namespaces}/pid_for_children"))
            // `nsenter` stays outside as the parent.
            .args(["setpriv", "--pdeathsig", "KILL"])
            .arg(program);
        command
    }

    fn own_pids(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.namespace))
            .args(["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"])
            .arg(program);
        command
    }

    /// Drops UDP of this port in both directions: the agent is cut off, Ray is not.
    pub fn cut_udp(&self, port: u16) -> anyhow::Result<()> {
        self.udp_rules("-A", port)
    }

    pub fn heal_udp(&self, port: u16) -> anyhow::Result<()> {
        self.udp_rules("-D", port)
    }

    /// Drops everything in both directions: the node is cut off from everybody.
    pub fn cut(&self) -> anyhow::Result<()> {
        self.rules("-A")
    }

    pub fn heal(&self) -> anyhow::Result<()> {
        self.rules("-D")
    }

    fn rules(&self, action: &str) -> anyhow::Result<()> {
        let net = format!("--net=/run/netns/{}", self.namespace);
        for (chain, side) in [("OUTPUT", "-o"), ("INPUT", "-i")] {
            // Its own processes still reach each other.
            let rule = ["iptables", action, chain, "!", side, "lo", "-j", "DROP"];
            let mut arguments = vec![net.as_str()];
            arguments.extend_from_slice(&rule);
            run("nsenter", &arguments)?;
        }
        Ok(())
    }

    fn udp_rules(&self, action: &str, port: u16) -> anyhow::Result<()> {
        let net = format!("--net=/run/netns/{}", self.namespace);
        let port = port.to_string();
        for (chain, side) in [("OUTPUT", "--dport"), ("INPUT", "--sport")] {
            let rule = ["iptables", action, chain, "-p", "udp", side, &port, "-j", "DROP"];
            let mut arguments = vec![net.as_str()];
            arguments.extend_from_slice(&rule);
            run("nsenter", &arguments)?;
        }
        Ok(())
    }
}
