//! Pools: named sets of nodes that jobs ask for. A node is in exactly one. A pool is there as soon as
//! a node or a join token names it, or an operator has declared it.

use std::collections::BTreeSet;
use std::sync::Arc;

use gangline_common::ids::NodeId;
use gangline_common::time::Timestamp;

use super::Core;
use super::credential::Principal;
use super::effect::{Answer, Effects, Rejected, Write};
use super::event::RequestId;
use super::node::Node;
use super::nodes::note;

/// Declared pools; one more is refused.
pub const POOL_LIMIT: usize = 1024;

/// A pool that an operator has declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRecord {
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    pub set_by: String,
    pub set: Timestamp,
}

/// What an operator changes about a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolChange {
    /// Declares the pool, when there is none of this name yet.
    pub description: Option<String>,
    /// Nodes that move here, whatever their join tokens and agents say. What runs there runs on.
    pub add: Vec<NodeId>,
    /// Nodes that were moved here and go back to where their join tokens and agents put them.
    pub remove: Vec<NodeId>,
}

impl Core {
    /// The pools that there are. A node that was revoked is in none.
    pub(super) fn known_pools(&self) -> BTreeSet<&str> {
        let nodes = self.nodes.values().filter(|node| !node.revoked);
        let of_nodes = nodes.filter_map(|node| node.pool());
        let of_tokens = self.join_tokens.values().filter(|token| token.uses_left > 0);
        let of_tokens = of_tokens.filter_map(|token| token.pool.as_deref());
        let declared = self.pools.keys().map(String::as_str);
        of_nodes.chain(of_tokens).chain(declared).collect()
    }

    /// Refuses a name that no pool has. Before there is any pool nobody can know better.
    pub(super) fn check_pools<'a>(
        &self,
        named: impl IntoIterator<Item = &'a String>,
    ) -> Result<(), Rejected> {
        let mut named = named.into_iter().peekable();
        if named.peek().is_none() {
            return Ok(());
        }
        let known = self.known_pools();
        match named.find(|pool| !known.contains(pool.as_str())) {
            Some(pool) if !known.is_empty() => {
                let known = known.into_iter().map(str::to_owned).collect();
                Err(Rejected::NoSuchPool { pool: pool.clone(), known })
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn on_set_pool(
        &mut self,
        request: RequestId,
        pool: String,
        change: PoolChange,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if let Err(rejected) = self.check_pool_change(&pool, &change) {
            return Core::reject(request, rejected, out);
        }
        if let Some(description) = change.description {
            let detail = format!("description: {description}");
            self.audit(actor, "pool.set", format!("pool {pool}"), &detail, now, out);
            let set_by = actor.user.clone();
            self.put(
                Write::Pool(PoolRecord { name: pool.clone(), description, set_by, set: now }),
                out,
            );
        }
        for id in &change.remove {
            self.move_node(id, None, actor, now, out);
        }
        for id in &change.add {
            self.move_node(id, Some(&pool), actor, now, out);
        }
        self.ask_for_scheduling();
        out.replies.push((request, Answer::Done));
    }

    fn check_pool_change(&self, pool: &str, change: &PoolChange) -> Result<(), Rejected> {
        let known = self.known_pools();
        if change.description.is_none() && !known.contains(pool) {
            let known = known.into_iter().map(str::to_owned).collect();
            return Err(Rejected::NoSuchPool { pool: pool.to_owned(), known });
        }
        let declares = change.description.is_some() && !self.pools.contains_key(pool);
        if declares && self.pools.len() >= POOL_LIMIT {
            return Err(Rejected::TooManyPools { limit: POOL_LIMIT });
        }
        for id in change.add.iter().chain(&change.remove) {
            if !self.nodes.contains_key(id) {
                return Err(Rejected::NoSuchNode);
            }
        }
        for id in &change.remove {
            let Some(node) = self.nodes.get(id) else { continue };
            if node.set_pool.as_deref() != Some(pool) {
                return Err(Rejected::NotMovedHere { node: node.name.clone() });
            }
        }
        Ok(())
    }

    /// Only later placements see it: what runs there runs on.
    fn move_node(
        &mut self,
        id: &NodeId,
        pool: Option<&str>,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get(id) else { return };
        if node.set_pool.as_deref() == pool {
            return;
        }
        let mut node = Node::clone(node);
        let from = node.pool().unwrap_or("none").to_owned();
        node.set_pool = pool.map(str::to_owned);
        let detail = format!("from pool {from} to {}", node.pool().unwrap_or("none"));
        note(&mut node, now, "moved", &actor.user, detail.clone());
        self.audit(actor, "node.move", format!("node {}", node.name), &detail, now, out);
        self.put(Write::Node(Arc::new(node)), out);
    }

    /// Takes a declaration back. A pool that something names stays.
    pub(super) fn on_delete_pool(
        &mut self,
        request: RequestId,
        pool: String,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let in_it = |node: &&Arc<Node>| !node.revoked && node.pool() == Some(pool.as_str());
        let nodes = self.nodes.values().filter(in_it).map(|node| node.name.clone());
        let nodes: Vec<String> = nodes.collect();
        let live = self.live_jobs.iter().filter_map(|id| self.jobs.get(id));
        let jobs = live.filter(|job| job.request.pools.contains(&pool)).count();
        if !nodes.is_empty() || jobs > 0 {
            return Core::reject(request, Rejected::PoolInUse { nodes, jobs }, out);
        }
        if !self.pools.contains_key(&pool) {
            let known = self.known_pools().into_iter().map(str::to_owned).collect();
            return Core::reject(request, Rejected::NoSuchPool { pool, known }, out);
        }
        self.audit(actor, "pool.delete", format!("pool {pool}"), "", now, out);
        self.put(Write::ForgetPool { name: pool }, out);
        out.replies.push((request, Answer::Done));
    }
}
