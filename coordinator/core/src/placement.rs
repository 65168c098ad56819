//! Placement: a small problem in, an all-or-nothing answer or a reason per node out.
//!
//! First the checks (`unfit`), then the ranking (fewest free GPUs first, so that empty nodes stay
//! empty). The reasons come from the same checks, so they cannot disagree with the decision.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use gangline_common::ids::{GpuId, MemberId, NodeId, PortBlock};

use super::job::{JobRequest, Launcher};
use super::node::NetworkKey;

/// Ports of a block that have a fixed meaning; the rest are Ray's worker ports.
pub const FIXED_PORTS: u32 = 24;
/// Smallest block.
pub const MINIMUM_PORTS: u32 = 256;
/// What a Ray head costs: memory in bytes. It does no compute.
pub const HEAD_MEMORY_BYTES: u64 = 1 << 30;
const CPU_JOB_CPUS_MILLI: u32 = 1000;
const CPU_JOB_MEMORY_BYTES: u64 = 2 << 30;

/// A node as the solver sees it.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub node: NodeId,
    pub name: String,
    /// Why no gang may come here now, if so.
    pub closed: Option<String>,
    pub pool: String,
    pub head_role: bool,
    pub worker_role: bool,
    pub address: IpAddr,
    pub free_gpus: Vec<GpuId>,
    pub total_gpus: u32,
    /// Models of its GPUs as NVML names them, each once.
    pub gpu_models: Vec<String>,
    pub free_cpus_milli: u32,
    pub total_cpus_milli: u32,
    pub free_memory_bytes: u64,
    pub total_memory_bytes: u64,
    pub heads: u32,
    pub network: NetworkKey,
    pub ports: PortBlock,
}

/// Port blocks that are leased or quarantined, per network namespace, and where to look next.
#[derive(Debug, Clone, Default)]
pub struct Leases {
    pub taken: BTreeMap<NetworkKey, Vec<PortBlock>>,
    pub next: BTreeMap<NetworkKey, u32>,
}

/// One member's share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub member: MemberId,
    pub node: NodeId,
    pub address: IpAddr,
    pub gpus: Vec<GpuId>,
    pub cpus_milli: u32,
    pub memory_bytes: u64,
    pub ports: PortBlock,
}

/// Places all members of `request`, or says why each node does not do.
pub fn place(
    request: &JobRequest,
    candidates: &[Candidate],
    leases: &mut Leases,
) -> Result<Vec<Share>, String> {
    let mut fit: Vec<(&Candidate, Amount)> = Vec::new();
    let mut unfit_reasons: Vec<(&str, String)> = Vec::new();
    for candidate in candidates {
        let amount = Amount::of(request, candidate);
        match unfit(request, candidate, &amount) {
            None => fit.push((candidate, amount)),
            Some(reason) => unfit_reasons.push((&candidate.name, reason)),
        }
    }
    let wanted = request.nnodes as usize;
    if fit.len() < wanted {
        return Err(explain(request, fit.len(), &unfit_reasons));
    }
    fit.sort_by(|(a, _), (b, _)| (a.free_gpus.len(), &a.name).cmp(&(b.free_gpus.len(), &b.name)));
    fit.truncate(wanted);

    let mut trial = leases.clone();
    let mut shares = Vec::with_capacity(wanted + 1);
    for (rank, (candidate, amount)) in fit.iter().enumerate() {
        let gpus = candidate.free_gpus.iter().take(request.gpus_per_node as usize);
        shares.push(Share {
            member: MemberId::Rank(rank as u32),
            node: candidate.node.clone(),
            address: candidate.address,
            gpus: gpus.cloned().collect(),
            cpus_milli: amount.cpus_milli,
            memory_bytes: amount.memory_bytes,
            ports: lease(&mut trial, candidate)?,
        });
    }
    if request.launcher == Launcher::Ray {
        let beside = fit.first().map(|(candidate, _)| *candidate);
        shares.push(place_head(candidates, beside, &mut trial)?);
    }
    *leases = trial;
    Ok(shares)
}

/// Why these nodes could not hold `request` even if all of them were open and free; `None` when they
/// could. Such a job waits for nodes that have not joined, not for others to end.
pub fn out_of_reach(request: &JobRequest, nodes: &[Candidate]) -> Option<String> {
    let mut unfit_reasons: Vec<(&str, String)> = Vec::new();
    for node in nodes {
        let reason = mismatch(request, node, &Amount::of(request, node));
        unfit_reasons.extend(reason.map(|reason| (node.name.as_str(), reason)));
    }
    let fitting = nodes.len() - unfit_reasons.len();
    if fitting >= request.nnodes as usize {
        return None;
    }
    let pools: BTreeSet<&str> = nodes.iter().map(|node| node.pool.as_str()).collect();
    let why = match &request.pool {
        _ if nodes.is_empty() => "no node has joined yet".to_owned(),
        Some(pool) if !pools.contains(pool.as_str()) => {
            let pools: Vec<&str> = pools.into_iter().collect();
            format!("no node is in pool {pool}; there are: {}", pools.join(", "))
        }
        _ => format!(
            "{fitting} of {} would do if they were free{}",
            nodes.len(),
            listed(&unfit_reasons)
        ),
    };
    Some(format!("waits for nodes that the fleet does not have: needs {}; {why}", wanted(request)))
}

/// What one member takes of one node.
struct Amount {
    cpus_milli: u32,
    memory_bytes: u64,
}

impl Amount {
    /// The request's own numbers; else the GPU share of the node; else the CPU job's default.
    fn of(request: &JobRequest, candidate: &Candidate) -> Amount {
        let gpus = u64::from(request.gpus_per_node);
        let total = u64::from(candidate.total_gpus);
        let share = |whole: u64, without_gpu: u64| match (gpus, total) {
            (0, _) | (_, 0) => without_gpu,
            (gpus, total) => whole.saturating_mul(gpus) / total,
        };
        let cpus = share(candidate.total_cpus_milli.into(), CPU_JOB_CPUS_MILLI.into());
        Amount {
            cpus_milli: request.cpus_milli.unwrap_or(u32::try_from(cpus).unwrap_or(u32::MAX)),
            memory_bytes: request
                .memory_bytes
                .unwrap_or_else(|| share(candidate.total_memory_bytes, CPU_JOB_MEMORY_BYTES)),
        }
    }
}

/// The first check that a node fails, as people read it.
fn unfit(request: &JobRequest, candidate: &Candidate, amount: &Amount) -> Option<String> {
    mismatch(request, candidate, amount)
        .or_else(|| candidate.closed.clone())
        .or_else(|| taken(request, candidate, amount))
}

/// The checks of what a node is, whoever uses it.
fn mismatch(request: &JobRequest, candidate: &Candidate, amount: &Amount) -> Option<String> {
    if !candidate.worker_role {
        return Some("only for Ray heads".to_owned());
    }
    if let Some(pool) = &request.pool
        && *pool != candidate.pool
    {
        return Some(format!("in pool {}", candidate.pool));
    }
    if request.exclude_nodes.contains(&candidate.name) {
        return Some("excluded by the job".to_owned());
    }
    let of_model = |have: &String| request.gpu_models.iter().any(|want| is_model(want, have));
    if !request.gpu_models.is_empty() && !candidate.gpu_models.iter().all(of_model) {
        return Some(format!("has {}", candidate.gpu_models.join(", ")));
    }
    if request.gpus_per_node > candidate.total_gpus {
        return Some(format!("has {} GPUs", candidate.total_gpus));
    }
    if amount.cpus_milli > candidate.total_cpus_milli {
        return Some(format!("has {:.1} CPUs", f64::from(candidate.total_cpus_milli) / 1000.0));
    }
    if amount.memory_bytes > candidate.total_memory_bytes {
        return Some(format!("has {} MiB of memory", candidate.total_memory_bytes >> 20));
    }
    None
}

/// The checks of what others have left of a node.
fn taken(request: &JobRequest, candidate: &Candidate, amount: &Amount) -> Option<String> {
    let free = candidate.free_gpus.len();
    if (request.gpus_per_node as usize) > free {
        return Some(format!("{free} of {} GPUs free", candidate.total_gpus));
    }
    if amount.cpus_milli > candidate.free_cpus_milli {
        return Some(format!(
            "{:.1} CPUs free of {:.1}",
            f64::from(candidate.free_cpus_milli) / 1000.0,
            f64::from(candidate.total_cpus_milli) / 1000.0
        ));
    }
    if amount.memory_bytes > candidate.free_memory_bytes {
        return Some(format!("{} MiB of memory free", candidate.free_memory_bytes >> 20));
    }
    None
}

/// Whether `H100` means `NVIDIA H100 80GB HBM3`: the whole name, or a word of it.
fn is_model(want: &str, have: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
        words.map(str::to_ascii_lowercase).collect()
    };
    let (want, have) = (words(want), words(have));
    !want.is_empty() && have.windows(want.len()).any(|window| window == want)
}

/// A Ray head goes to the node with the role that has the fewest heads, else beside rank 0.
fn place_head(
    candidates: &[Candidate],
    beside: Option<&Candidate>,
    leases: &mut Leases,
) -> Result<Share, String> {
    let chosen = candidates
        .iter()
        .filter(|c| c.head_role && c.closed.is_none() && c.free_memory_bytes >= HEAD_MEMORY_BYTES)
        .min_by_key(|c| (c.heads, c.name.clone()))
        .or(beside)
        .ok_or_else(|| "no node for the Ray head".to_owned())?;
    Ok(Share {
        member: MemberId::Head,
        node: chosen.node.clone(),
        address: chosen.address,
        gpus: Vec::new(),
        cpus_milli: 0,
        memory_bytes: HEAD_MEMORY_BYTES,
        ports: lease(leases, chosen)?,
    })
}

/// Leases the next free block of the node's network namespace, going round its range.
fn lease(leases: &mut Leases, candidate: &Candidate) -> Result<PortBlock, String> {
    let wanted =
        (FIXED_PORTS + 2 * candidate.total_cpus_milli.div_ceil(1000) + 64).max(MINIMUM_PORTS);
    let full = || format!("no free port block of {wanted} ports on {}", candidate.name);
    let size = u16::try_from(wanted).map_err(|_| full())?;
    let low = u32::from(candidate.ports.base);
    let high = candidate.ports.end();
    let taken = leases.taken.entry(candidate.network.clone()).or_default();
    let next = leases.next.entry(candidate.network.clone()).or_insert(low);
    let start = if (low..high).contains(next) { *next } else { low };
    let bases = (start..high).step_by(wanted as usize).chain((low..start).step_by(wanted as usize));
    for base in bases {
        let Ok(base) = u16::try_from(base) else { continue };
        let block = PortBlock { base, size };
        if block.end() <= high && !taken.iter().any(|other| other.overlaps(&block)) {
            taken.push(block);
            *next = block.end();
            return Ok(block);
        }
    }
    Err(full())
}

/// "waits for 2 nodes with 4 GPUs each: 1 of 3 fit now (b: lost; c: 2 of 8 GPUs free)".
fn explain(request: &JobRequest, fitting: usize, unfit: &[(&str, String)]) -> String {
    let total = fitting + unfit.len();
    format!("waits for {}: {fitting} of {total} fit now{}", wanted(request), listed(unfit))
}

/// "2 nodes with 4 GPUs each in pool a".
fn wanted(request: &JobRequest) -> String {
    let nodes = if request.nnodes == 1 { "node" } else { "nodes" };
    let gpus = match request.gpus_per_node {
        0 => String::new(),
        gpus => format!(" with {gpus} GPUs each"),
    };
    let place = request.pool.as_ref().map_or(String::new(), |pool| format!(" in pool {pool}"));
    format!("{} {nodes}{gpus}{place}", request.nnodes)
}

/// " (b: lost; c: 2 of 8 GPUs free; and 3 more)", or nothing.
fn listed(unfit: &[(&str, String)]) -> String {
    const SHOWN: usize = 8;
    let mut reasons: Vec<String> =
        unfit.iter().take(SHOWN).map(|(name, reason)| format!("{name}: {reason}")).collect();
    if unfit.len() > SHOWN {
        reasons.push(format!("and {} more", unfit.len() - SHOWN));
    }
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::is_model;

    #[test]
    fn a_model_is_a_word_of_the_name() {
        let have = "NVIDIA H100 80GB HBM3";
        for want in ["H100", "h100", "H100 80GB", "NVIDIA H100 80GB HBM3", "nvidia-h100"] {
            assert!(is_model(want, have), "{want}");
        }
        for want in ["H10", "H1000", "A100", "", "-", "80GB H100"] {
            assert!(!is_model(want, have), "{want}");
        }
    }
}
