//! Transitions of nodes: join, connect, words of life, silence.

use std::collections::BTreeSet;
use std::sync::Arc;

use gangline_common::ids::{Generation, NodeId};
use gangline_common::time::Timestamp;

use super::audit::Actor;
use super::credential::Principal;
use super::effect::{Answer, Close, CloseReason, Effects, Rejected, Seen, Write};
use super::event::{Join, RequestId};
use super::job::{Transition, remember};
use super::node::{
    CERTIFICATE_LIMIT, Inventory, Lifecycle, Node, Reachability, SUSPECT_AFTER_MS, Session,
};
use super::notices::About;
use super::{Core, PUSH_AGAIN_MS};

impl Core {
    /// Uses a join token and makes the node, in one transaction.
    pub(super) fn on_join(
        &mut self,
        request: RequestId,
        join: Join,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(token) = self.join_tokens.get(&join.token_id).cloned() else {
            return Core::reject(request, Rejected::BadJoinToken, out);
        };
        let good = token.secret_sha256 == join.secret_sha256
            && token.uses_left > 0
            && now.wall_ms < token.expires_wall_ms;
        if !good {
            return Core::reject(request, Rejected::BadJoinToken, out);
        }
        let mut used = token.clone();
        used.uses_left -= 1;
        self.put(Write::JoinToken(used), out);
        let name = self.free_name(&join.node_name);
        let mut node = Node {
            id: join.node.clone(),
            name: name.clone(),
            joined: now,
            bound_pool: token.pool,
            set_pool: None,
            set_labels: Default::default(),
            lifecycle: Lifecycle::Pending,
            cordon: None,
            drain: None,
            revoked: false,
            certificates: vec![join.certificate],
            generation: Generation { era: self.era, n: 0 },
            inventory: None,
            history: Vec::new(),
            stops: Default::default(),
            reachability: Reachability::Suspect,
            session: None,
            health: Default::default(),
            cleared: Default::default(),
            doubt: None,
            last_word_ms: now.boot_ms,
            held: None,
            unknown: Default::default(),
        };
        note(&mut node, now, "pending", &token.created_by, format!("joined by token {}", token.id));
        let actor = format!("join token {}", token.id);
        let actor = Actor { name: &actor, from: None };
        self.audit(actor, "node.join", format!("node {}", join.node), &name, now, out);
        self.tell("node.joined", About::Node(&node), &format!("as {name}"), now, out);
        self.put(Write::Node(Arc::new(node)), out);
        out.replies.push((request, Answer::Joined { name }));
    }

    /// A node name that no other node has: `gpu-1`, then `gpu-1-2`.
    fn free_name(&self, wished: &str) -> String {
        // One look at all of them: containers of one image may all wish for the same.
        let names = self.nodes.values().map(|node| node.name.as_str());
        let taken: BTreeSet<&str> = names.filter(|name| name.starts_with(wished)).collect();
        let mut name = wished.to_owned();
        let mut number = 2;
        while taken.contains(name.as_str()) {
            name = format!("{wished}-{number}");
            number += 1;
        }
        name
    }

    pub(super) fn on_renewed(
        &mut self,
        request: RequestId,
        id: &NodeId,
        certificate: [u8; 32],
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get(id) else {
            return Core::reject(request, Rejected::NoSuchNode, out);
        };
        if node.revoked {
            return Core::reject(request, Rejected::Revoked, out);
        }
        let mut node = Node::clone(node);
        if node.certificates.len() >= CERTIFICATE_LIMIT {
            node.certificates.remove(0);
        }
        node.certificates.push(certificate);
        self.put(Write::Node(Arc::new(node)), out);
        out.replies.push((request, Answer::Done));
    }

    pub(super) fn on_revoke(
        &mut self,
        request: RequestId,
        id: &NodeId,
        actor: &Principal,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get(id) else {
            return Core::reject(request, Rejected::NoSuchNode, out);
        };
        let mut node = Node::clone(node);
        node.revoked = true;
        note(&mut node, now, "revoked", &actor.user, "certificates revoked".to_owned());
        self.audit(actor, "node.revoke", format!("node {id}"), &node.name, now, out);
        self.tell("node.revoked", About::Node(&node), &format!("by {}", actor.user), now, out);
        self.put(Write::Node(Arc::new(node)), out);
        self.close_session(id, CloseReason::Revoked, out);
        out.replies.push((request, Answer::Done));
    }

    pub(super) fn on_connected(
        &mut self,
        request: RequestId,
        id: &NodeId,
        session: Session,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get(id) else {
            return Core::reject(request, Rejected::NoSuchNode, out);
        };
        if node.revoked || !node.certificates.contains(&session.certificate) {
            return Core::reject(request, Rejected::Revoked, out);
        }
        if let Some(old) = &node.session
            && old.instance != session.instance
            && now.boot_ms.saturating_sub(node.last_word_ms) < SUSPECT_AFTER_MS
        {
            let remote = old.remote.clone();
            return Core::reject(request, Rejected::Clone { remote }, out);
        }
        self.close_session(id, CloseReason::Superseded, out);
        if let Some(node) = self.nodes.get_mut(id) {
            let node = Arc::make_mut(node);
            node.session = Some(session);
            node.last_word_ms = now.boot_ms;
            self.capacity.mark(id);
        }
        self.set_reachability(id, Reachability::Reachable, now, out);
        // A store that was restored numbers anew, above everything that the agent may hold.
        if self.nodes.get(id).is_some_and(|node| node.generation.era < self.era) {
            self.touch_nodes(std::slice::from_ref(id), out);
        }
        self.push_later(id);
        out.replies.push((request, Answer::Connected));
    }

    fn close_session(&mut self, id: &NodeId, reason: CloseReason, out: &mut Effects) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if let Some(session) = Arc::make_mut(node).session.take() {
            self.capacity.mark(id);
            out.closes.push(Close { node: id.clone(), session: session.number, reason });
            out.saw(Seen::Node(node.clone()));
        }
    }

    pub(super) fn on_disconnected(&mut self, id: &NodeId, session: u64, out: &mut Effects) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if node.session.as_ref().is_some_and(|s| s.number == session) {
            // Not a failure: only silence counts, and it is measured from the last word.
            Arc::make_mut(node).session = None;
            self.capacity.mark(id);
            out.saw(Seen::Node(node.clone()));
        }
    }

    pub(super) fn on_inventory(
        &mut self,
        id: &NodeId,
        session: u64,
        inventory: Inventory,
        name: &str,
        now: Timestamp,
        out: &mut Effects,
    ) {
        if !self.word_from(id, session, now, out) {
            return;
        }
        self.introduce(id);
        let Some(node) = self.nodes.get(id) else { return };
        let is_another = node.inventory.as_ref().is_some_and(|old| inventory.is_after(old));
        let new_name = if name.is_empty() || node.name.starts_with(name) {
            node.name.clone()
        } else {
            self.free_name(name)
        };
        let first = node.lifecycle == Lifecycle::Pending;
        if !first && node.inventory.as_deref() == Some(&inventory) && node.name == new_name {
            return;
        }
        let mut node = Node::clone(node);
        node.name = new_name;
        if first {
            node.lifecycle = Lifecycle::Online;
            let text = format!("{} GPUs, agent {}", inventory.gpus.len(), inventory.agent_version);
            note(&mut node, now, "online", "gangline", text);
        }
        node.inventory = Some(Arc::new(inventory));
        self.put(Write::Node(Arc::new(node)), out);
        if is_another {
            let why = "its node came back as a new container or after a boot";
            self.give_up_node(id, why, "gangline", now, out);
        }
        self.ask_for_scheduling();
    }

    /// From its inventory on a session is told what is to run: a node that came back as another
    /// incarnation must not be told to go on with what the one before had.
    fn introduce(&mut self, id: &NodeId) {
        let Some(node) = self.nodes.get_mut(id).filter(|node| !node.is_introduced()) else {
            return;
        };
        if let Some(session) = &mut Arc::make_mut(node).session {
            session.introduced = true;
        }
        self.capacity.mark(id);
        self.push_later(id);
        self.ask_for_scheduling();
    }

    pub(super) fn on_heard(
        &mut self,
        id: &NodeId,
        session: u64,
        held: Option<Generation>,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let is_word = self.word_from(id, session, now, out);
        if let Some(held) = held.filter(|_| is_word) {
            self.note_held(id, held, now, out);
        }
    }

    /// A word from a node's current session: the lease begins anew. False when it is not its
    /// session any more, or when its certificate has ended.
    pub(super) fn word_from(
        &mut self,
        id: &NodeId,
        session: u64,
        now: Timestamp,
        out: &mut Effects,
    ) -> bool {
        let Some(node) = self.nodes.get_mut(id) else { return false };
        let Some(current) = node.session.as_ref().filter(|s| s.number == session) else {
            return false;
        };
        let wall_s = i64::try_from(now.wall_ms / 1000).unwrap_or(i64::MAX);
        if wall_s > current.certificate_ends {
            self.close_session(id, CloseReason::CertificateExpired, out);
            return false;
        }
        let node = Arc::make_mut(node);
        node.last_word_ms = now.boot_ms;
        out.saw(Seen::Word { node: id.clone(), last_word_ms: now.boot_ms, held: node.held });
        // Ten thousand words a second: what is as it was is not looked up again.
        if node.reachability != Reachability::Reachable {
            self.set_reachability(id, Reachability::Reachable, now, out);
        }
        true
    }

    /// For a fleet that lives in virtual time, in which nobody is ever silent: every connected node
    /// has just given word, without an event for each. Changes nothing that is stored.
    pub fn hear_from_all(&mut self, now: Timestamp) {
        for node in self.nodes.values_mut().filter(|node| node.session.is_some()) {
            Arc::make_mut(node).last_word_ms = now.boot_ms;
        }
    }

    /// Level-triggered: an agent that holds another generation is told again.
    pub(super) fn note_held(
        &mut self,
        id: &NodeId,
        held: Generation,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let node = Arc::make_mut(node);
        if node.held.replace(held) != Some(held) {
            let last_word_ms = node.last_word_ms;
            out.saw(Seen::Word { node: id.clone(), last_word_ms, held: Some(held) });
        }
        let behind = held != node.generation;
        let pushed = node.session.as_ref().and_then(|session| session.pushed_ms);
        let waited = pushed.is_none_or(|ms| now.boot_ms.saturating_sub(ms) >= PUSH_AGAIN_MS);
        if behind && waited {
            self.push_later(id);
        }
    }

    pub(super) fn expire_leases(&mut self, now: Timestamp, out: &mut Effects) {
        let changed: Vec<(NodeId, Reachability)> = self
            .nodes
            .values()
            .map(|node| (node, node.reachability_at(now.boot_ms, self.started_ms)))
            .filter(|(node, reachability)| node.reachability != *reachability)
            .map(|(node, reachability)| (node.id.clone(), reachability))
            .collect();
        for (id, reachability) in changed {
            self.set_reachability(&id, reachability, now, out);
        }
    }

    fn set_reachability(
        &mut self,
        id: &NodeId,
        reachability: Reachability,
        now: Timestamp,
        out: &mut Effects,
    ) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if node.reachability == reachability {
            return;
        }
        self.capacity.mark(id);
        let silent_s = now.boot_ms.saturating_sub(node.last_word_ms) / 1000;
        let node = Arc::make_mut(node);
        let before = node.reachability;
        node.reachability = reachability;
        let (word, text) = match reachability {
            Reachability::Reachable => ("reachable", "in contact".to_owned()),
            Reachability::Suspect => ("suspect", format!("no word for {silent_s} s")),
            Reachability::Lost => {
                ("lost", format!("no word for {silent_s} s; what runs there runs on"))
            }
        };
        note(node, now, word, "gangline", text);
        let node = self.nodes.get(id).cloned();
        if let Some(node) = node {
            // Loss is worth a record; a short silence is not.
            if reachability == Reachability::Lost || before == Reachability::Lost {
                self.put(Write::Node(node.clone()), out);
                match reachability {
                    Reachability::Lost => self.tell_of_loss(&node, now, out),
                    Reachability::Reachable | Reachability::Suspect => {
                        self.tell("node.back", About::Node(&node), "in contact", now, out);
                    }
                }
            } else {
                out.saw(Seen::Node(node));
            }
        }
        self.ask_for_scheduling();
    }
}

pub(super) fn note(node: &mut Node, now: Timestamp, state: &str, actor: &str, text: String) {
    remember(
        &mut node.history,
        Transition { wall_ms: now.wall_ms, state: state.to_owned(), actor: actor.to_owned(), text },
    );
}
