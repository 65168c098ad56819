//! Hosts that are not there: network and PID namespaces joined by a bridge.
//!
//! Made with `ip`, used through `nsenter` and `unshare`, removed on drop. Needs root.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};

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
}

/// Whether namespaces can be made here, and if not, what is missing.
pub fn available() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("network namespaces need root".to_owned());
    }
    for tool in ["ip", "iptables", "nsenter", "unshare"] {
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
        let host = Host { namespace: Arc::new(namespace.clone()), address: address.into() };
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
    /// `program` as PID 1 of a PID namespace in this host's network; it dies with its starter.
    pub fn command(&self, program: &Path) -> Command {
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
