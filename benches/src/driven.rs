//! The coordinator's own driver with a store on the disk and a made-up fleet: everything between a
//! session or a request and the disk, and nothing of the network.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use gangline_common::ids::{MemberKey, NodeId};
use gangline_common::time::Timestamp;
use gangline_common::wire::v1::Order;
use gangline_coordinator::core::effect::Answer;
use gangline_coordinator::core::event::{Event, Report, Submission};
use gangline_coordinator::driver::{self, Driver};
use gangline_coordinator::meters::Meters;
use gangline_coordinator::outbox::{Orders, Outbox};
use gangline_coordinator::secrets::Sealer;
use gangline_coordinator::store::Store;
use tokio::sync::watch;

use crate::script::{POOL, Script, ended};

/// How often it is looked whether all gangs are over, and for how long at most.
const POLL: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Driven {
    pub driver: Driver,
    pub script: Script,
    sessions: Vec<(NodeId, u64, watch::Receiver<Orders>)>,
}

impl Driven {
    /// A driver of a new store in `directory`, and `nodes` nodes. Needs the async runtime.
    pub async fn start(directory: &Path, nodes: usize) -> anyhow::Result<Self> {
        let store = Store::open(&directory.join("driven.redb"), false, "bench")?;
        let outbox = Outbox::new(Sealer::open(&directory.join("secrets.key"), &[])?);
        let driver = driver::start(store, outbox.clone(), Meters::new()?)?;
        let mut script = Script::new()?;
        let mut sessions = Vec::new();
        for number in 0..nodes {
            let arrival = script.arrival(number, POOL, Timestamp::now())?;
            sessions.push((arrival.node, arrival.session, outbox.open(arrival.session)));
            for event in arrival.events {
                driver.handle.tell(event).await?;
            }
        }
        Ok(Driven { driver, script, sessions })
    }

    /// Submits a gang; the answer comes when it is durable.
    pub async fn submit(driver: &driver::DriverHandle, wish: Submission) -> anyhow::Result<()> {
        let submission = Box::new(wish);
        match driver.ask(|request| Event::Submit { request, submission }).await? {
            Answer::Submitted { .. } => Ok(()),
            other => bail!("a submission was answered with {other:?}"),
        }
    }

    /// Gangs that have a place now.
    pub fn placed(&self) -> usize {
        let nodes = self.driver.board.nodes();
        let mut gangs: Vec<_> =
            nodes.iter().flat_map(|node| node.gangs.iter().map(|gang| gang.id.clone())).collect();
        gangs.sort();
        gangs.dedup();
        gangs.len()
    }

    /// Every member of every gang ends: the nodes are free again.
    pub async fn end_all(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            for (node, session, orders) in &mut self.sessions {
                let orders = orders.borrow_and_update().clone();
                let Some(desired) = orders.desired else { continue };
                let mut members = Vec::new();
                for gang in &desired.gangs {
                    let Order::Run(assignment) = &gang.order else { continue };
                    for member in &assignment.members {
                        let member = member.member;
                        let key = MemberKey { gang: gang.gang.clone(), epoch: gang.epoch, member };
                        members.push((key, ended()));
                    }
                }
                let held = desired.header.generation;
                let report = Report { held, members, ..Report::default() };
                let (node, session) = (node.clone(), *session);
                self.driver.handle.tell(Event::Reported { node, session, report }).await?;
            }
            if self.placed() == 0 {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < until, "{} gangs do not end", self.placed());
            tokio::time::sleep(POLL).await;
        }
    }
}
