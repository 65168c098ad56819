//! What is known for certain and needs no log: words of the kernel, the driver and the agent.
//!
//! A fact is put into one fixed line and meets the same rules as the lines of a log. What the rules
//! find in it is stronger than any text.

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// When, in milliseconds since 1970 on the coordinator's clock; `None` when that is not known.
    pub at_ms: Option<i64>,
    /// Node that it is about.
    pub node: Option<String>,
    /// Rank that it is about.
    pub rank: Option<u32>,
    pub kind: FactKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactKind {
    /// The driver reported an Xid.
    Xid { code: u16, gpu: Option<String> },
    /// The kernel killed processes of the job's cgroup for their memory.
    OomKills(u64),
    /// A file system of the job was full.
    DiskFull { path: String },
    /// The node has a condition that only hardware or a reboot ends: the name of its rule, and what was
    /// seen.
    Sick { rule: String, gpu: Option<String>, said: String },
    /// A link of the fabric went down.
    LinkDown { device: String },
    /// The node was lost: its agent is gone.
    NodeLost,
    /// A process ended by itself.
    Exit { code: i32 },
    /// A process was ended by a signal that nobody here sent.
    Signal { signal: i32 },
    /// The agent stopped the processes of the node or rank, or all of them.
    Stopped(StopReason),
}

/// Why the agent stopped something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Another part of the gang had failed.
    AfterFailure,
    /// Room was made for another job, a time limit came, a person or a drain asked for it.
    FromOutside,
}

/// How much the evidence of a fact weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// The kernel, the driver or the agent saw it.
    Certain,
    /// It is as strong as the rule says: an exit code fits many causes.
    AsRuled,
}

impl Fact {
    /// The fact as a line that rules can fit; `None` for what is no failure.
    pub(crate) fn line(&self) -> Option<(String, Weight)> {
        let certain = |text: String| Some((text, Weight::Certain));
        match &self.kind {
            FactKind::Xid { code, gpu } => {
                certain(format!("NVRM: Xid (PCI:{}): {code},", gpu.as_deref().unwrap_or("?")))
            }
            FactKind::OomKills(times) => certain(format!("memory.events: oom_kill {times}")),
            FactKind::DiskFull { path } => certain(format!("{path}: No space left on device")),
            FactKind::Sick { rule, gpu, said } => {
                let gpu = gpu.as_ref().map(|gpu| format!(" of GPU {gpu}")).unwrap_or_default();
                certain(format!("gangline: condition {rule}{gpu}: {said}"))
            }
            FactKind::LinkDown { device } => certain(format!("gangline: link down: {device}")),
            FactKind::NodeLost => certain("gangline: node lost".to_owned()),
            FactKind::Exit { code: 0 } | FactKind::Stopped(_) => None,
            FactKind::Exit { code } => Some((format!("exit code: {code}"), Weight::AsRuled)),
            FactKind::Signal { signal } => {
                Some((format!("exit code: {}", 128 + signal), Weight::AsRuled))
            }
        }
    }
}
