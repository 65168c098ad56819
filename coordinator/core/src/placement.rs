//! Placement: a small problem in, an all-or-nothing answer or a reason per node out.
//!
//! First the checks (`mismatch`, `closed`, `taken`), then the ranking: fewest free GPUs first, so that
//! empty nodes stay empty, and among equals nodes that lie close together; after all that, nodes that
//! nothing is held against (`reputation`). A gang lies in one pool. The reasons come from the same
//! checks, so they cannot disagree with the decision.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use gangline_common::ids::{GpuId, MemberId, NodeId, PortBlock};

use super::capacity::{Capacity, Group, Kind, Slot, SlotIndex};
use super::constraints::{Unlike, is_exclusive, label, nobody_has, shared, unlike};
use super::job::{JobRequest, Launcher};
use super::node::NetworkKey;
use super::topology::{Topology, labels};

/// Ports of a block that have a fixed meaning; the rest are Ray's worker ports.
pub const FIXED_PORTS: u32 = 24;
/// Smallest block.
pub const MINIMUM_PORTS: u32 = 256;
/// What a Ray head costs: memory in bytes. It does no compute.
pub const HEAD_MEMORY_BYTES: u64 = 1 << 30;
const CPU_JOB_CPUS_MILLI: u32 = 1000;
const CPU_JOB_MEMORY_BYTES: u64 = 2 << 30;
/// Nodes that a reason names; it counts the others.
const SHOWN: usize = 8;

/// Port blocks that must not be leased although no gang has them, and where to look next.
#[derive(Debug, Clone, Default)]
pub struct Leases {
    /// Quarantined, or leased a moment ago.
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
    /// Whether no other gang may have a rank on the node.
    pub exclusive: bool,
    pub ports: PortBlock,
}

/// What a placement may use beyond what is free.
pub struct Room<'a> {
    /// GPUs that the job's project may still take in a pool.
    pub gpus_in_pool: &'a dyn Fn(&str) -> u32,
    /// Nodes that are kept for somebody else.
    pub is_kept: &'a dyn Fn(&Slot) -> bool,
}

/// The nodes of a gang, in the order of its ranks.
#[derive(Debug)]
pub struct Fit<'a> {
    pub nodes: Vec<&'a Slot>,
}

/// Why a gang finds no place now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// Nodes that would do, in the pool that has most of them.
    pub fitting: u32,
    /// What else stands in the way, as people read it.
    pub because: Option<String>,
}

/// The nodes for all members of `request`, in one pool; with fewer than it wants, if it may have
/// fewer.
pub fn fit<'a>(
    request: &JobRequest,
    capacity: &'a Capacity,
    room: &Room<'_>,
) -> Result<Fit<'a>, Shortage> {
    let mut groups: BTreeMap<&str, Vec<(&Kind, &Group)>> = BTreeMap::new();
    for (kind, group) in capacity.groups() {
        if mismatch(request, kind).is_none() {
            groups.entry(&kind.pool).or_default().push((kind, group));
        }
    }
    let mut best: Option<((usize, usize), Vec<&Slot>)> = None;
    let mut shortage = Shortage { fitting: 0, because: None };
    for (pool, groups) in groups {
        let allowed = (room.gpus_in_pool)(pool);
        // An elastic gang has what there is and what its project may have, up to its most.
        let most = allowed.checked_div(request.gpus_per_node).unwrap_or(u32::MAX);
        let wanted = request.nnodes_max.min(most).max(request.nnodes) as usize;
        let search = Search { request, capacity, room, groups, wanted };
        let found = search.find();
        let count = found.len() as u32;
        shortage.fitting = shortage.fitting.max(count);
        if count < request.nnodes {
            continue;
        }
        let gpus = u64::from(count) * u64::from(request.gpus_per_node);
        if gpus > u64::from(allowed) {
            shortage.because =
                Some(format!("its project may use {allowed} more GPUs in pool {pool}"));
            continue;
        }
        let free: usize = found.iter().map(|slot| slot.free_gpus.len()).sum();
        let rank = (usize::MAX - found.len(), free);
        if best.as_ref().is_none_or(|(least, _)| rank < *least) {
            best = Some((rank, found));
        }
    }
    match best {
        Some((_, nodes)) => Ok(Fit { nodes }),
        None => Err(shortage),
    }
}

/// The search for a gang's nodes in one pool.
struct Search<'a, 'b> {
    request: &'b JobRequest,
    capacity: &'a Capacity,
    room: &'b Room<'b>,
    /// Nodes of the kinds that would do.
    groups: Vec<(&'a Kind, &'a Group)>,
    /// Nodes that the gang takes if there are so many.
    wanted: usize,
}

impl<'a> Search<'a, '_> {
    /// As many nodes as the gang wants, or as there are.
    fn find(&self) -> Vec<&'a Slot> {
        let wanted = self.wanted;
        let mut found: Vec<&Slot> = Vec::new();
        let levels: BTreeSet<u32> =
            self.groups.iter().flat_map(|(_, group)| group.open.keys().copied()).collect();
        for free in levels.range(self.request.gpus_per_node..) {
            let missing = wanted - found.len();
            let more = self.level(*free, missing, &found);
            found.extend(more);
            if found.len() >= wanted {
                break;
            }
        }
        found
    }

    /// At most `missing` nodes with exactly `free` GPUs free: any choice among them leaves the same
    /// numbers behind, so that keeping the gang together costs nothing.
    fn level(&self, free: u32, missing: usize, found: &[&Slot]) -> Vec<&'a Slot> {
        if self.wanted == 1 || self.groups.len() == 1 {
            return self.first(free, missing);
        }
        let fitting: Vec<Alike<'a>> = self
            .groups
            .iter()
            .map(|(kind, group)| Alike {
                kind,
                slots: self.open(group, free).take(missing).collect(),
            })
            .filter(|alike| !alike.slots.is_empty())
            .collect();
        together(fitting, missing, found, self.request.topology)
    }

    /// Those with the least against them, by name. Of most slots only the key is looked at.
    fn first(&self, free: u32, missing: usize) -> Vec<&'a Slot> {
        let mut nodes: Vec<_> = self
            .groups
            .iter()
            .map(|(_, group)| group.open.get(&free).into_iter().flatten())
            .collect();
        let mut next: BinaryHeap<_> = (nodes.iter_mut().enumerate())
            .filter_map(|(number, nodes)| Some(Reverse((nodes.next()?, number))))
            .collect();
        let mut found = Vec::new();
        while found.len() < missing {
            let Some(Reverse(((_, _, index), number))) = next.pop() else { break };
            let following = nodes.get_mut(number).and_then(Iterator::next);
            next.extend(following.map(|key| Reverse((key, number))));
            found.extend(self.capacity.at(*index).filter(|slot| self.is_open_for(slot)));
        }
        found
    }

    fn open(&self, group: &'a Group, free: u32) -> impl Iterator<Item = &'a Slot> {
        let nodes = group.open.get(&free).into_iter().flatten();
        nodes
            .filter_map(|(_, _, index)| self.capacity.at(*index))
            .filter(|slot| self.is_open_for(slot))
    }

    fn is_open_for(&self, slot: &Slot) -> bool {
        !(self.room.is_kept)(slot)
            && !self.request.excludes(&slot.name)
            && taken(self.request, slot).is_none()
    }
}

/// Nodes of one kind.
struct Alike<'a> {
    kind: &'a Kind,
    slots: Vec<&'a Slot>,
}

/// At most `missing` of these nodes, that lie close together, and to those that were found before.
fn together<'a>(
    fitting: Vec<Alike<'a>>,
    missing: usize,
    found: &[&Slot],
    wanted: Option<Topology>,
) -> Vec<&'a Slot> {
    let total: usize = fitting.iter().map(|alike| alike.slots.len()).sum();
    if total <= missing {
        let mut all: Vec<&Slot> = fitting.into_iter().flat_map(|alike| alike.slots).collect();
        all.sort_by(|a, b| (a.lateness, &a.name).cmp(&(b.lateness, &b.name)));
        return all;
    }
    let mut rest = fitting;
    for key in labels(wanted) {
        let mut domains: BTreeMap<&str, usize> = BTreeMap::new();
        for alike in &rest {
            if let Some(domain) = label(alike.kind, key) {
                *domains.entry(domain).or_default() += alike.slots.len();
            }
        }
        let mut near: BTreeMap<&str, usize> = BTreeMap::new();
        for domain in found.iter().filter_map(|slot| label(&slot.kind, key)) {
            *near.entry(domain).or_default() += 1;
        }
        let near = |name: &str| near.get(name).copied().unwrap_or_default();
        let large_enough = domains.into_iter().filter(|(_, count)| *count >= missing);
        // Nearest to what was found; then the one that is used up most.
        let best = large_enough.min_by_key(|(name, count)| (usize::MAX - near(name), *count));
        if let Some((best, _)) = best {
            rest.retain(|alike| label(alike.kind, key) == Some(best));
            break;
        }
    }
    // Without one domain that holds all: the largest first, so that there are few. Of a kind the slots
    // are in order already.
    rest.sort_by(|a, b| (b.slots.len(), a.kind).cmp(&(a.slots.len(), b.kind)));
    rest.into_iter().flat_map(|alike| alike.slots).take(missing).collect()
}

/// The shares of a gang on the nodes that were found for it, with a port block each.
///
/// Errors: what is missing, as people read it; then nothing is leased.
pub fn shares(
    request: &JobRequest,
    fit: &Fit<'_>,
    capacity: &Capacity,
    leases: &mut Leases,
) -> Result<Vec<Share>, String> {
    let mut trial = leases.clone();
    let mut shares = Vec::with_capacity(fit.nodes.len() + 1);
    for (rank, slot) in fit.nodes.iter().enumerate() {
        let amount = Amount::of(request, &slot.kind);
        let gpus = slot.free_gpus.iter().take(request.gpus_per_node as usize);
        shares.push(Share {
            member: MemberId::Rank(rank as u32),
            node: slot.node.clone(),
            address: slot.address,
            gpus: gpus.cloned().collect(),
            cpus_milli: amount.cpus_milli,
            memory_bytes: amount.memory_bytes,
            exclusive: is_exclusive(request, &slot.kind),
            ports: lease(&mut trial, capacity, slot)?,
        });
    }
    if request.launcher == Launcher::Ray {
        shares.push(place_head(capacity, fit.nodes.first().copied(), &mut trial)?);
    }
    *leases = trial;
    Ok(shares)
}

/// Nodes of each pool that would hold a member of `request` if they were open and free.
pub(super) fn would_do<'a>(
    request: &JobRequest,
    capacity: &'a Capacity,
) -> BTreeMap<&'a str, usize> {
    let mut fitting: BTreeMap<&str, usize> = BTreeMap::new();
    for (kind, group) in capacity.groups() {
        if mismatch(request, kind).is_some() {
            continue;
        }
        let excluded = |(name, _): &&(Arc<str>, SlotIndex)| request.excludes(name);
        let left_out = match request.exclude_nodes.is_empty() {
            true => 0,
            false => group.all.iter().filter(excluded).count(),
        };
        *fitting.entry(&kind.pool).or_default() += group.all.len() - left_out;
    }
    fitting
}

/// Why the fleet could not hold `request` even if all of its nodes were open and free; `None` when it
/// could. Such a job waits for nodes that have not joined, not for others to end.
pub fn out_of_reach(request: &JobRequest, capacity: &Capacity) -> Option<String> {
    let most = would_do(request, capacity).into_values().max().unwrap_or_default();
    if most >= request.nnodes as usize {
        return None;
    }
    let pools: Vec<&str> = capacity.pools().collect();
    let (all, total) = (capacity.slots().filter(|slot| !slot.revoked), capacity.count());
    let why = match nobody_has(request, capacity) {
        _ if total == 0 => "no node has joined yet".to_owned(),
        _ if !pools.iter().any(|pool| request.may_use(pool)) => {
            let wanted = request.pools.join(" or ");
            format!("no node is in pool {wanted}; there are: {}", pools.join(", "))
        }
        Some(why) => why,
        None => {
            let unfit = all.filter_map(|slot| Some((&*slot.name, never(request, slot)?)));
            format!("{most} of {total} would do if they were free{}", listed(unfit, total - most))
        }
    };
    Some(format!("waits for nodes that the fleet does not have: needs {}; {why}", wanted(request)))
}

/// "waits for 2 nodes with 4 GPUs each: 1 of 3 fit now (b: lost; c: 2 of 8 GPUs free)".
pub fn waits_for(
    request: &JobRequest,
    shortage: &Shortage,
    capacity: &Capacity,
    room: &Room<'_>,
) -> String {
    let (all, total) = (capacity.slots().filter(|slot| !slot.revoked), capacity.count());
    let unfit = all.filter_map(|slot| Some((&*slot.name, unfit(request, slot, room)?)));
    let fitting = shortage.fitting as usize;
    let because = shortage.because.iter().map(|because| format!("; {because}"));
    format!(
        "waits for {}: {fitting} of {total} fit now{}{}",
        wanted(request),
        listed(unfit, total - fitting),
        because.collect::<String>()
    )
}

/// What one member takes of one node.
pub struct Amount {
    pub cpus_milli: u32,
    pub memory_bytes: u64,
}

impl Amount {
    /// The request's own numbers; else the GPU share of the node; else the CPU job's default.
    pub fn of(request: &JobRequest, kind: &Kind) -> Amount {
        let gpus = u64::from(request.gpus_per_node);
        let total = u64::from(kind.gpus);
        let share = |whole: u64, without_gpu: u64| match (gpus, total) {
            (0, _) | (_, 0) => without_gpu,
            (gpus, total) => whole.saturating_mul(gpus) / total,
        };
        let cpus = share(kind.cpus_milli.into(), CPU_JOB_CPUS_MILLI.into());
        Amount {
            cpus_milli: request.cpus_milli.unwrap_or(u32::try_from(cpus).unwrap_or(u32::MAX)),
            memory_bytes: request
                .memory_bytes
                .unwrap_or_else(|| share(kind.memory_bytes, CPU_JOB_MEMORY_BYTES)),
        }
    }
}

/// The first check that a node fails now, as people read it.
pub fn unfit(request: &JobRequest, slot: &Slot, room: &Room<'_>) -> Option<String> {
    never(request, slot)
        .or_else(|| slot.closed.clone())
        .or_else(|| taken(request, slot))
        .or_else(|| (room.is_kept)(slot).then(|| "kept for an earlier job".to_owned()))
}

/// The first check that a node fails even when it is free.
pub(super) fn never(request: &JobRequest, slot: &Slot) -> Option<String> {
    let excluded = request.excludes(&slot.name);
    mismatch(request, &slot.kind)
        .map(|mismatch| mismatch.to_string())
        .or_else(|| excluded.then(|| "excluded by the job".to_owned()))
}

/// What a node is, whoever uses it, that does not do. Put into words only for people: a search asks it
/// of every kind.
#[derive(Debug, Clone, Copy)]
pub(super) enum Mismatch<'a> {
    HeadsOnly,
    Pool(&'a str),
    Label(Unlike<'a>),
    Models(&'a [String]),
    Gpus(u32),
    CpusMilli(u32),
    MemoryBytes(u64),
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::HeadsOnly => f.write_str("only for Ray heads"),
            Mismatch::Pool(pool) => write!(f, "in pool {pool}"),
            Mismatch::Label(unlike) => unlike.fmt(f),
            Mismatch::Models(models) => write!(f, "has {}", models.join(", ")),
            Mismatch::Gpus(gpus) => write!(f, "has {gpus} GPUs"),
            Mismatch::CpusMilli(milli) => write!(f, "has {:.1} CPUs", f64::from(*milli) / 1000.0),
            Mismatch::MemoryBytes(bytes) => write!(f, "has {} MiB of memory", bytes >> 20),
        }
    }
}

/// The checks of what a node is, whoever uses it.
pub(super) fn mismatch<'a>(request: &'a JobRequest, kind: &'a Kind) -> Option<Mismatch<'a>> {
    if !kind.worker_role {
        return Some(Mismatch::HeadsOnly);
    }
    if !request.may_use(&kind.pool) {
        return Some(Mismatch::Pool(&kind.pool));
    }
    if let Some(unlike) = unlike(request, kind) {
        return Some(Mismatch::Label(unlike));
    }
    let of_model = |have: &String| request.gpu_models.iter().any(|want| is_model(want, have));
    if !request.gpu_models.is_empty() && !kind.gpu_models.iter().all(of_model) {
        return Some(Mismatch::Models(&kind.gpu_models));
    }
    if request.gpus_per_node > kind.gpus {
        return Some(Mismatch::Gpus(kind.gpus));
    }
    let amount = Amount::of(request, kind);
    if amount.cpus_milli > kind.cpus_milli {
        return Some(Mismatch::CpusMilli(kind.cpus_milli));
    }
    if amount.memory_bytes > kind.memory_bytes {
        return Some(Mismatch::MemoryBytes(kind.memory_bytes));
    }
    None
}

/// The checks of what others have left of a node.
pub(super) fn taken(request: &JobRequest, slot: &Slot) -> Option<String> {
    let free = slot.free_gpus.len();
    if (request.gpus_per_node as usize) > free {
        return Some(format!("{free} of {} GPUs free", slot.kind.gpus));
    }
    let amount = Amount::of(request, &slot.kind);
    if amount.cpus_milli > slot.free_cpus_milli {
        return Some(format!(
            "{:.1} CPUs free of {:.1}",
            f64::from(slot.free_cpus_milli) / 1000.0,
            f64::from(slot.kind.cpus_milli) / 1000.0
        ));
    }
    if amount.memory_bytes > slot.free_memory_bytes {
        return Some(format!("{} MiB of memory free", slot.free_memory_bytes >> 20));
    }
    shared(request, slot)
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
    capacity: &Capacity,
    beside: Option<&Slot>,
    leases: &mut Leases,
) -> Result<Share, String> {
    let mut roomy =
        capacity.head_nodes().filter(|slot| slot.free_memory_bytes >= HEAD_MEMORY_BYTES);
    let chosen = roomy.next().or(beside).ok_or_else(|| "no node for the Ray head".to_owned())?;
    Ok(Share {
        member: MemberId::Head,
        node: chosen.node.clone(),
        address: chosen.address,
        gpus: Vec::new(),
        cpus_milli: 0,
        memory_bytes: HEAD_MEMORY_BYTES,
        exclusive: false,
        ports: lease(leases, capacity, chosen)?,
    })
}

/// Leases the next free block of the node's network namespace, going round its range.
fn lease(leases: &mut Leases, capacity: &Capacity, slot: &Slot) -> Result<PortBlock, String> {
    let wanted = (FIXED_PORTS + 2 * slot.kind.cpus_milli.div_ceil(1000) + 64).max(MINIMUM_PORTS);
    let full = || format!("no free port block of {wanted} ports on {}", slot.name);
    let size = u16::try_from(wanted).map_err(|_| full())?;
    let low = u32::from(slot.range.base);
    let high = slot.range.end();
    let taken = leases.taken.entry(slot.network.clone()).or_default();
    let next = leases.next.entry(slot.network.clone()).or_insert(low);
    let start = if (low..high).contains(next) { *next } else { low };
    let bases = (start..high).step_by(wanted as usize).chain((low..start).step_by(wanted as usize));
    for base in bases {
        let Ok(base) = u16::try_from(base) else { continue };
        let block = PortBlock { base, size };
        let mut used = capacity.blocks_in(&slot.network).chain(taken.iter().copied());
        if block.end() <= high && !used.any(|other| other.overlaps(&block)) {
            taken.push(block);
            *next = block.end();
            return Ok(block);
        }
    }
    Err(full())
}

/// "2 nodes with 4 GPUs each in pool a".
pub fn wanted(request: &JobRequest) -> String {
    let nodes = if request.nnodes_max == 1 { "node" } else { "nodes" };
    let gpus = match request.gpus_per_node {
        0 => String::new(),
        gpus => format!(" with {gpus} GPUs each"),
    };
    let place = match request.pools.is_empty() {
        true => String::new(),
        false => format!(" in pool {}", request.pools.join(" or ")),
    };
    let asked: Vec<String> =
        request.node_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let labels = match asked.is_empty() {
        true => String::new(),
        false => format!(" and {}", asked.join(" ")),
    };
    let number = match request.nnodes_max > request.nnodes {
        true => format!("{} to {}", request.nnodes, request.nnodes_max),
        false => request.nnodes.to_string(),
    };
    format!("{number} {nodes}{gpus}{place}{labels}")
}

/// " (b: lost; c: 2 of 8 GPUs free; and 3 more)", or nothing; `count` of them in all.
fn listed<'a>(unfit: impl Iterator<Item = (&'a str, String)>, count: usize) -> String {
    let mut reasons: Vec<String> =
        unfit.take(SHOWN).map(|(name, reason)| format!("{name}: {reason}")).collect();
    if count > reasons.len() && reasons.len() == SHOWN {
        reasons.push(format!("and {} more", count - SHOWN));
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
