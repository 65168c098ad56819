//! The fleet for one fault, and what of its surroundings the fault is about.

use anyhow::{Context, ensure};
use serde_json::Value;

use super::Fault;
use super::limits::{LimitedGroup, SmallDisk};
use super::watch::node_of;
use crate::build::Binaries;
use crate::fleet::{AgentOptions, Fleet, FleetOptions};
use crate::hosts;
use crate::training::{Hosted, ray_python};

/// GPUs of each node, which a training takes whole.
const GPUS: u32 = 2;
/// One more than a training needs.
const WORKERS: [&str; 3] = ["a", "b", "c"];
/// What a node may have when memory is short, in bytes: Ray's own processes need a third of it.
const MEMORY: u64 = 1536 << 20;
/// What the nodes share when space is short.
const DISK_MIB: u32 = 32;

/// A head node and three workers.
pub enum Stage {
    Plain {
        // Dropped first: its processes are in what follows.
        fleet: Box<Fleet>,
        _groups: Vec<LimitedGroup>,
        disk: Option<SmallDisk>,
    },
    Hosted(Box<Hosted>),
}

impl Stage {
    /// What the fault needs.
    ///
    /// # Errors
    /// Also when this machine cannot give it: [`Stage::missing`] says so beforehand.
    pub async fn new(fault: Fault, binaries: Binaries) -> anyhow::Result<Stage> {
        if fault == Fault::NodeLost {
            let workers = u8::try_from(WORKERS.len())?;
            return Ok(Stage::Hosted(Box::new(Hosted::ray_fleet(binaries, workers, GPUS).await?)));
        }
        let disk = (fault == Fault::FullDisk).then(|| SmallDisk::mount(DISK_MIB)).transpose()?;
        let options = FleetOptions {
            python: Some(ray_python(&binaries).await?),
            shared_root: disk.as_ref().map(|disk| disk.path().to_owned()),
            ..FleetOptions::default()
        };
        let mut fleet = Box::new(Fleet::start(binaries, options).await?);
        let mut groups = Vec::new();
        fleet.add_agent(AgentOptions::head("head")).await?;
        for name in WORKERS {
            let mut agent = AgentOptions::worker(name, GPUS);
            if fault == Fault::OutOfMemory {
                let group = LimitedGroup::of_memory(MEMORY)?;
                agent.group = Some(group.directory().to_owned());
                groups.push(group);
            }
            fleet.add_agent(agent).await?;
        }
        Ok(Stage::Plain { fleet, _groups: groups, disk })
    }

    /// What this machine lacks for a fault.
    pub fn missing(fault: Fault) -> Option<String> {
        match fault {
            Fault::NodeLost => hosts::available().err(),
            Fault::FullDisk => SmallDisk::mount(DISK_MIB).err().map(|error| format!("{error:#}")),
            Fault::OutOfMemory => {
                LimitedGroup::of_memory(MEMORY).err().map(|error| format!("{error:#}"))
            }
            _ => None,
        }
    }

    pub fn fleet(&self) -> &Fleet {
        match self {
            Stage::Plain { fleet, .. } => fleet,
            Stage::Hosted(hosted) => &hosted.fleet,
        }
    }

    /// Nothing of any gang is left; of a node that is gone, the files are.
    pub async fn assert_clean(&self) -> anyhow::Result<()> {
        match self {
            Stage::Plain { fleet, .. } => fleet.assert_clean().await,
            Stage::Hosted(hosted) => {
                let left = hosted.fleet.gang_processes();
                ensure!(left.is_empty(), "left behind: {left:?}");
                Ok(())
            }
        }
    }

    /// Does what [`Fault::inject`] cannot do from within the fleet.
    pub(super) fn inject(&self, fault: Fault, page: &Value, rank: u32) -> anyhow::Result<()> {
        match (self, fault) {
            (Stage::Hosted(hosted), Fault::NodeLost) => {
                hosted.host(&node_of(page, &rank.to_string())?)?.halt()
            }
            (Stage::Plain { disk, .. }, Fault::FullDisk) => {
                disk.as_ref().context("no small disk")?.fill()
            }
            _ => Ok(()),
        }
    }

    /// Once the attempt has failed: a person has made room.
    pub(super) fn give_back(&self) -> anyhow::Result<()> {
        match self {
            Stage::Plain { disk: Some(disk), .. } => disk.empty(),
            _ => Ok(()),
        }
    }
}
