//! What every node has and what of it is free, kept up to date node by node.
//!
//! Placement asks "which open nodes of this kind have at least so many free GPUs" thousands of times
//! a second; this index answers without looking at every node. It is derived: a node that changed
//! is marked, and looked at again before the next question.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use gangline_common::ids::{GpuId, MemberId, NodeId, PortBlock};

use super::Core;
use super::misfits::is_news;
use super::node::{Inventory, NetworkKey, Node, Reachability};
use super::reputation::Lateness;

/// What requests can ask of a node, whoever uses it. Nodes of one kind are interchangeable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    pub pool: String,
    /// Models of its GPUs as NVML names them, each once.
    pub gpu_models: Vec<String>,
    pub gpus: u32,
    pub cpus_milli: u32,
    pub memory_bytes: u64,
    pub worker_role: bool,
    pub labels: Vec<(String, String)>,
}

/// A node's number here, for as long as the core lives.
pub(super) type SlotIndex = usize;

/// One node as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub index: SlotIndex,
    pub node: NodeId,
    pub name: Arc<str>,
    pub kind: Arc<Kind>,
    /// Why no gang may come here now, if so.
    pub closed: Option<String>,
    pub revoked: bool,
    pub head_role: bool,
    /// Of nodes that would do equally well, those with less go first.
    pub lateness: Lateness,
    pub address: IpAddr,
    pub free_gpus: Vec<GpuId>,
    /// Held by gangs.
    pub used_gpus: u32,
    pub free_cpus_milli: u32,
    pub free_memory_bytes: u64,
    /// Ray heads here.
    pub heads: u32,
    /// Gangs with a rank here.
    pub gangs: u32,
    /// One of them has the node to itself.
    pub held_whole: bool,
    pub network: NetworkKey,
    /// The range that blocks are leased from, and the blocks in use.
    pub range: PortBlock,
    pub blocks: Vec<PortBlock>,
}

/// What a node said at the last look about which GPUs it has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Claim {
    joined_ms: u64,
    lost: bool,
    gpus: Vec<GpuId>,
}

/// Nodes of one kind.
#[derive(Debug, Default)]
pub struct Group {
    /// All that are not revoked, by name.
    pub all: BTreeSet<(Arc<str>, SlotIndex)>,
    /// Open ones by their number of free GPUs, those that are to be taken last behind the others.
    pub open: BTreeMap<u32, BTreeSet<(Lateness, Arc<str>, SlotIndex)>>,
}

#[derive(Debug, Default)]
pub struct Capacity {
    /// By index; empty where a node has no inventory yet.
    slots: Vec<Option<Slot>>,
    indexes: BTreeMap<NodeId, SlotIndex>,
    groups: BTreeMap<Arc<Kind>, Group>,
    /// The pools that have nodes, with the number of groups in each.
    pools: BTreeMap<String, usize>,
    by_name: BTreeSet<(Arc<str>, SlotIndex)>,
    /// Open nodes that take Ray heads: those with the fewest first.
    heads: BTreeSet<(u32, Arc<str>, SlotIndex)>,
    networks: BTreeMap<NetworkKey, BTreeSet<SlotIndex>>,
    /// Nodes that report a GPU, in the order of joining. More than one means a clone or a node that
    /// came back under another name.
    claims: BTreeMap<GpuId, BTreeSet<(u64, NodeId)>>,
    claimed_by: BTreeMap<NodeId, Claim>,
    changed: BTreeSet<NodeId>,
}

impl Capacity {
    /// The node must be looked at again.
    pub fn mark(&mut self, node: &NodeId) {
        if !self.changed.contains(node) {
            self.changed.insert(node.clone());
        }
    }

    /// Whether no node is marked.
    pub fn is_fresh(&self) -> bool {
        self.changed.is_empty()
    }

    pub fn slot(&self, node: &NodeId) -> Option<&Slot> {
        self.at(*self.indexes.get(node)?)
    }

    pub fn at(&self, index: SlotIndex) -> Option<&Slot> {
        self.slots.get(index)?.as_ref()
    }

    /// One more than the highest index.
    pub fn indexes(&self) -> usize {
        self.slots.len()
    }

    /// In the order of their names.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.by_name.iter().filter_map(|(_, index)| self.at(*index))
    }

    /// Nodes that are not revoked.
    pub fn count(&self) -> usize {
        self.groups.values().map(|group| group.all.len()).sum()
    }

    pub fn groups(&self) -> impl Iterator<Item = (&Arc<Kind>, &Group)> {
        self.groups.iter()
    }

    /// The pools that have nodes, in order.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        self.pools.keys().map(String::as_str)
    }

    /// The open node for one more Ray head: the one that has fewest.
    pub fn head_nodes(&self) -> impl Iterator<Item = &Slot> {
        self.heads.iter().filter_map(|(_, _, index)| self.at(*index))
    }

    /// Blocks in use in one network namespace.
    pub fn blocks_in<'a>(&'a self, network: &NetworkKey) -> impl Iterator<Item = PortBlock> + 'a {
        let nodes = self.networks.get(network).into_iter().flatten();
        nodes.filter_map(|index| self.at(*index)).flat_map(|slot| slot.blocks.iter().copied())
    }

    /// Whether the indexes have a node where its slot says.
    fn has_in_place(&self, slot: &Slot) -> bool {
        let Slot { index, name, revoked, closed, .. } = slot;
        let group = self.groups.get(&slot.kind);
        let open = group.and_then(|group| group.open.get(&(slot.free_gpus.len() as u32)));
        let key = (slot.lateness, name.clone(), *index);
        let is_listed = group.is_some_and(|group| group.all.contains(&(name.clone(), *index)));
        let is_open = open.is_some_and(|open| open.contains(&key));
        let is_head = self.heads.contains(&(slot.heads, name.clone(), *index));
        let near = self.networks.get(&slot.network);
        is_listed != *revoked
            && is_open == (!revoked && closed.is_none())
            && is_head == (slot.head_role && closed.is_none())
            && near.is_some_and(|near| near.contains(index))
    }

    /// That some index has more places than there are slots for.
    fn left_behind(&self) -> Option<String> {
        let slots = || self.slots.iter().flatten();
        let open = || slots().filter(|slot| slot.closed.is_none());
        let groups = || self.groups.values();
        let counts = [
            ("all", groups().map(|group| group.all.len()).sum()),
            ("open", groups().flat_map(|group| group.open.values()).map(BTreeSet::len).sum()),
            ("heads", self.heads.len()),
            ("networks", self.networks.values().map(BTreeSet::len).sum::<usize>()),
            ("names", self.by_name.len()),
        ];
        let expected = [
            slots().filter(|slot| !slot.revoked).count(),
            open().filter(|slot| !slot.revoked).count(),
            open().filter(|slot| slot.head_role).count(),
            slots().count(),
            slots().count(),
        ];
        let wrong = counts.into_iter().zip(expected).find(|((_, count), slots)| count != slots);
        wrong.map(|((index, count), slots)| {
            format!("capacity: {index} has {count} of {slots} nodes")
        })
    }

    fn remove(&mut self, node: &NodeId) -> Option<Slot> {
        let index = self.indexes.get(node).copied()?;
        let slot = self.slots.get_mut(index)?.take()?;
        let key = (slot.name.clone(), slot.index);
        self.by_name.remove(&key);
        self.heads.remove(&(slot.heads, slot.name.clone(), slot.index));
        if let Some(nodes) = self.networks.get_mut(&slot.network) {
            nodes.remove(&slot.index);
            if nodes.is_empty() {
                self.networks.remove(&slot.network);
            }
        }
        if let Some(group) = self.groups.get_mut(&slot.kind) {
            group.all.remove(&key);
            let free = slot.free_gpus.len() as u32;
            if let Some(open) = group.open.get_mut(&free) {
                open.remove(&(slot.lateness, key.0, slot.index));
                if open.is_empty() {
                    group.open.remove(&free);
                }
            }
            if group.all.is_empty() && group.open.is_empty() {
                self.groups.remove(&slot.kind);
                match self.pools.get_mut(&slot.kind.pool) {
                    Some(groups) if *groups > 1 => *groups -= 1,
                    _ => drop(self.pools.remove(&slot.kind.pool)),
                }
            }
        }
        Some(slot)
    }

    fn insert(&mut self, slot: Slot) {
        let index = slot.index;
        let key = (slot.name.clone(), index);
        self.by_name.insert(key.clone());
        self.networks.entry(slot.network.clone()).or_default().insert(index);
        if slot.closed.is_none() && slot.head_role {
            self.heads.insert((slot.heads, slot.name.clone(), index));
        }
        if !slot.revoked {
            let group = self.groups.entry(slot.kind.clone()).or_insert_with(|| {
                *self.pools.entry(slot.kind.pool.clone()).or_default() += 1;
                Group::default()
            });
            group.all.insert(key.clone());
            if slot.closed.is_none() {
                let open = group.open.entry(slot.free_gpus.len() as u32).or_default();
                open.insert((slot.lateness, key.0, index));
            }
        }
        if let Some(place) = self.slots.get_mut(index) {
            *place = Some(slot);
        }
    }

    fn index_of(&mut self, node: &NodeId) -> SlotIndex {
        if let Some(index) = self.indexes.get(node) {
            return *index;
        }
        let index = self.slots.len();
        self.slots.push(None);
        self.indexes.insert(node.clone(), index);
        index
    }

    /// Takes note of the GPUs that a node reports, and marks who reports one of them too.
    fn note_claim(&mut self, node: &NodeId, new: Option<Claim>) {
        let old = match new.clone() {
            Some(new) => self.claimed_by.insert(node.clone(), new),
            None => self.claimed_by.remove(node),
        };
        if old == new {
            return;
        }
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        for gpu in &old.gpus {
            self.mark_claimants(gpu);
            if let Some(claims) = self.claims.get_mut(gpu) {
                claims.remove(&(old.joined_ms, node.clone()));
                if claims.is_empty() {
                    self.claims.remove(gpu);
                }
            }
        }
        for gpu in &new.gpus {
            let claims = self.claims.entry(gpu.clone()).or_default();
            claims.insert((new.joined_ms, node.clone()));
            self.mark_claimants(gpu);
        }
    }

    /// Those who report a GPU that somebody else reports too.
    fn mark_claimants(&mut self, gpu: &GpuId) {
        let claims = self.claims.get(gpu).filter(|claims| claims.len() > 1);
        self.changed.extend(claims.into_iter().flatten().map(|(_, node)| node.clone()));
    }
}

impl Core {
    /// Looks again at every node that was marked.
    pub(super) fn refresh_capacity(&mut self) {
        if self.capacity.changed.is_empty() {
            return;
        }
        for id in self.capacity.changed.clone() {
            let claim = self.nodes.get(&id).and_then(|node| {
                let inventory = node.inventory.as_ref()?;
                Some(Claim {
                    joined_ms: node.joined.wall_ms,
                    lost: node.reachability == Reachability::Lost,
                    gpus: inventory.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
                })
            });
            self.capacity.note_claim(&id, claim);
        }
        let mut freed = BTreeSet::new();
        for id in std::mem::take(&mut self.capacity.changed) {
            let old = self.capacity.remove(&id);
            let Some(node) = self.nodes.get(&id).cloned() else { continue };
            let Some(inventory) = &node.inventory else { continue };
            let index = self.capacity.index_of(&id);
            let slot = self.look_at(&node, inventory, index);
            if is_news(old.as_ref(), &slot) {
                // Where it was, it is missed.
                freed.extend(old.map(|old| old.kind.pool.clone()));
                freed.insert(slot.kind.pool.clone());
            }
            self.capacity.insert(slot);
        }
        self.misfits.forget_pools(&freed);
    }

    /// For the invariants: nodes that are not in these indexes as a new look at them finds them.
    pub(super) fn drifted_capacity(&self) -> Vec<String> {
        if !self.capacity.is_fresh() {
            return Vec::new();
        }
        let drifted = self.nodes.values().filter_map(|node| {
            let known = self.capacity.slot(&node.id);
            let index = known.map(|slot| slot.index).unwrap_or_default();
            let inventory = node.inventory.as_ref();
            let found = inventory.map(|inventory| self.look_at(node, inventory, index));
            if known == found.as_ref() && known.is_none_or(|slot| self.capacity.has_in_place(slot))
            {
                return None;
            }
            Some(format!("capacity: {} is kept as {known:?}, and is {found:?}", node.name))
        });
        drifted.chain(self.capacity.left_behind()).collect()
    }

    fn look_at(&self, node: &Node, inventory: &Inventory, index: SlotIndex) -> Slot {
        let mut used: BTreeSet<&GpuId> = BTreeSet::new();
        let (mut cpus, mut memory, mut heads) = (0u32, 0u64, 0u32);
        let (mut gangs, mut held_whole) = (0u32, false);
        let mut blocks = Vec::new();
        for gang in self.on_node.get(&node.id).into_iter().flatten() {
            let Some(gang) = self.gangs.get(gang) else { continue };
            let mut has_rank = false;
            for (id, member) in gang.members_on(&node.id) {
                if member.holds() {
                    has_rank |= id != MemberId::Head;
                    held_whole |= member.exclusive;
                    used.extend(&member.gpus);
                    cpus = cpus.saturating_add(member.cpus_milli);
                    memory = memory.saturating_add(member.memory_bytes);
                    heads += u32::from(id == MemberId::Head);
                    blocks.push(member.ports);
                }
            }
            gangs += u32::from(has_rank);
        }
        let withheld = node.withheld();
        let free_gpus = inventory
            .gpus
            .iter()
            .map(|gpu| &gpu.uuid)
            .filter(|gpu| !used.contains(gpu) && !withheld.contains(gpu))
            .filter(|gpu| self.may_offer(node, gpu))
            .cloned()
            .collect();
        let kind = Kind {
            pool: node.pool().unwrap_or_default().to_owned(),
            gpu_models: models(inventory),
            gpus: inventory.gpus.len() as u32,
            cpus_milli: inventory.cpus_milli,
            memory_bytes: inventory.memory_bytes,
            worker_role: inventory.worker_role,
            labels: node.labels().into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        };
        let kind = match self.capacity.groups.get_key_value(&kind) {
            Some((known, _)) => known.clone(),
            None => Arc::new(kind),
        };
        Slot {
            index,
            node: node.id.clone(),
            name: Arc::from(node.name.as_str()),
            kind,
            closed: closed_reason(node).or_else(|| self.refused_text(&node.id)),
            revoked: node.revoked,
            head_role: inventory.head_role,
            lateness: self.lateness(node),
            address: inventory.address,
            free_gpus,
            used_gpus: used.len() as u32,
            free_cpus_milli: inventory.cpus_milli.saturating_sub(cpus),
            free_memory_bytes: inventory.memory_bytes.saturating_sub(memory),
            heads,
            gangs,
            held_whole,
            network: inventory.network(),
            range: inventory.ports,
            blocks,
        }
    }

    /// A GPU that several nodes report is offered by the first of them that is not lost, and by
    /// nobody while a gang on another one may hold it.
    fn may_offer(&self, node: &Node, gpu: &GpuId) -> bool {
        let Some(claims) = self.capacity.claims.get(gpu).filter(|claims| claims.len() > 1) else {
            return true;
        };
        let others = || claims.iter().map(|(_, id)| id).filter(|id| **id != node.id);
        let held = |other: &NodeId| {
            let gangs = self.on_node.get(other).into_iter().flatten();
            gangs.filter_map(|id| self.gangs.get(id)).any(|gang| {
                gang.members_on(other)
                    .any(|(_, m)| m.phase.holds_resources() && m.gpus.contains(gpu))
            })
        };
        if others().any(held) {
            return false;
        }
        let lost = |id: &NodeId| {
            self.nodes.get(id).is_none_or(|node| node.reachability == Reachability::Lost)
        };
        let first = claims.iter().map(|(_, id)| id).find(|id| !lost(id));
        first.is_none_or(|first| *first == node.id)
    }

    /// The share of a gang on these nodes may have changed.
    pub(super) fn mark_nodes(&mut self, nodes: &[NodeId]) {
        for node in nodes {
            self.capacity.mark(node);
            let Some(claim) = self.capacity.claimed_by.get(node) else { continue };
            for gpu in claim.gpus.clone() {
                self.capacity.mark_claimants(&gpu);
            }
        }
    }
}

fn models(inventory: &Inventory) -> Vec<String> {
    let names: BTreeSet<&String> = inventory.gpus.iter().map(|gpu| &gpu.name).collect();
    names.into_iter().cloned().collect()
}

/// Why a node takes no new member, in the order in which people look.
fn closed_reason(node: &Node) -> Option<String> {
    if node.is_open() {
        return None;
    }
    Some(match (&node.reachability, &node.cordon, &node.drain) {
        _ if node.revoked => "revoked".to_owned(),
        (Reachability::Lost, _, _) => "lost".to_owned(),
        (Reachability::Suspect, _, _) => "suspect".to_owned(),
        (Reachability::Reachable, Some(cordon), _) => {
            format!("cordoned by {}: {}", cordon.by, cordon.why)
        }
        (Reachability::Reachable, None, Some(drain)) => {
            format!("drained by {}: {}", drain.by, drain.why)
        }
        (Reachability::Reachable, None, None) => {
            let unfit = || Some(format!("unfit: {}", node.unfit()?.sentence()));
            node.unknown_text().or_else(unfit).unwrap_or_else(|| "not online".to_owned())
        }
    })
}
