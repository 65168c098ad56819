//! The rules together with what they are fed from: what the node has told that it has, and what was handed to them
//! already. No I/O and no clock: the same readings at the same times lead to the same conditions.

use std::collections::BTreeSet;

use gangline_common::ids::{GangId, GpuId};
use gangline_common::time::Timestamp;
use gangline_common::wire::v1::HealthCleared;
use gangline_health::reading::Xid;
use gangline_health::{Blind, Component, Condition, Config, Engine, Reading, Rule, Saved};
use serde::{Deserialize, Serialize};

use super::readings::{Registered, SHARED_ROOT, Translator};
use crate::collectors::Readings;
use crate::collectors::accelerator::{AcceleratorError, GpuIdentity, XidEvent};
use crate::holders::Holders;

/// What survives the agent.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    engine: Saved,
    registered: Registered,
}

/// What the agent knows beside what it reads.
#[derive(Debug, Clone, Copy)]
pub struct Beside<'a> {
    /// GPUs in the inventory.
    pub visible: &'a BTreeSet<GpuId>,
    pub holders: &'a Holders,
    /// Gangs with a member here that may have a process, with GPUs or without.
    pub gangs: &'a BTreeSet<GangId>,
}

/// Judges one node.
pub struct Judge {
    pub(super) engine: Engine,
    translator: Translator,
    registered: Registered,
    /// RDMA devices that no rule applies to.
    excluded: BTreeSet<String>,
    /// Readings were taken in since the agent began.
    pub(super) began: bool,
    pub(super) has_shared_root: bool,
}

impl Judge {
    /// Goes on from what an earlier agent has kept.
    #[must_use]
    pub fn new(config: Config, kept: Kept, now: Timestamp) -> Self {
        Judge {
            excluded: config.excluded_devices.clone(),
            engine: Engine::new(config, &kept.engine, now),
            translator: Translator::default(),
            registered: kept.registered,
            began: false,
            has_shared_root: false,
        }
    }

    /// What the node has, as it is known from here on.
    #[must_use]
    pub fn registered(&self) -> &Registered {
        &self.registered
    }

    /// What must be written down to go on from here.
    #[must_use]
    pub fn kept(&self) -> Kept {
        Kept { engine: self.engine.saved(), registered: self.registered.clone() }
    }

    /// What is known of the accelerators from the start: where they are on the bus, or why they cannot be used.
    pub fn learn(&mut self, found: Result<&[GpuIdentity], &AcceleratorError>) {
        match found {
            Ok(gpus) => self.translator.learn_addresses(gpus),
            Err(problem) => self.translator.learn_problem(problem),
        }
    }

    /// Takes in what is new. `now` is from after `beside` was looked at.
    pub fn on_readings(&mut self, readings: &Readings, beside: Beside<'_>, now: Timestamp) {
        self.registered.add(beside.visible);
        if let Some(rdma) = &readings.rdma.value {
            self.registered.add_ports(rdma, &self.excluded);
        }
        self.has_shared_root = readings.shared.is_some();
        if !std::mem::replace(&mut self.began, true) && !self.has_shared_root {
            // One of an earlier configuration, or of a gang that has gone: it may never be read again, and a
            // gang that brings it has it looked at.
            self.engine.forget(&Component::mount(SHARED_ROOT));
        }
        let known = self.registered.gpus.iter().map(String::as_str);
        self.translator
            .check_addresses(known.chain(beside.visible.iter().map(|gpu| gpu.0.as_str())));
        for reading in self.translator.take(readings, beside, &self.registered, now) {
            if !self.is_of_another(&reading, beside.visible) {
                self.engine.observe(&reading, now);
            }
        }
    }

    /// An Xid of a GPU that this node never had: the driver and the kernel's log tell of the whole machine,
    /// on which there may be other containers.
    fn is_of_another(&self, reading: &Reading, visible: &BTreeSet<GpuId>) -> bool {
        let Reading::Xid(Xid { gpu: Some(gpu), .. }) = reading else { return false };
        !visible.contains(gpu) && !self.registered.gpus.contains(&gpu.0)
    }

    /// An error that the driver reported by itself.
    pub fn on_xid(&mut self, event: &XidEvent, beside: Beside<'_>, now: Timestamp) {
        let reading = Translator::xid(event, beside.holders);
        if !self.is_of_another(&reading, beside.visible) {
            self.engine.observe(&reading, now);
        }
    }

    /// NCCL of a gang here has lost its network.
    pub fn on_nccl_error(&mut self, gang: GangId, now: Timestamp) {
        self.engine.observe(&Reading::NcclError(gang), now);
    }

    /// An operator has put the node back into use.
    pub fn on_cleared(
        &mut self,
        cleared: &HealthCleared,
        visible: &BTreeSet<GpuId>,
        now: Timestamp,
    ) {
        for wanted in &cleared.conditions {
            let known = Rule::from_id(&wanted.rule).zip(wanted.component.parse::<Component>().ok());
            let Some((rule, component)) = known else { continue };
            if !self.engine.clear_one(rule, &component, wanted.since_ms, now) {
                continue;
            }
            tracing::info!(
                rule = wanted.rule,
                component = wanted.component,
                "ended by an operator"
            );
            match rule {
                // What is there now is what the node has from now on.
                Rule::GpuSet => {
                    self.registered.gpus = visible.iter().map(|gpu| gpu.0.clone()).collect();
                }
                Rule::PortCount => self.registered.ports = 0,
                // Nor is it slower than it can be any more.
                Rule::PortState => {
                    let port = wanted.component.split_once(':').map(|(_, port)| port.to_owned());
                    port.and_then(|port| self.registered.rates.remove(&port));
                }
                _ => {}
            }
        }
    }

    /// Everything that stands.
    #[must_use]
    pub fn conditions(&self, now: Timestamp) -> Vec<Condition> {
        self.engine.conditions(now)
    }

    /// What cannot be seen from here.
    #[must_use]
    pub fn blind(&self, now: Timestamp) -> Vec<Blind> {
        self.engine.blind(now)
    }
}
