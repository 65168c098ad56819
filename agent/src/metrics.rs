//! The page of metrics of this node, made of the newest readings at the moment of a scrape.
//!
//! GPUs have the names and labels of NVIDIA's DCGM exporter, InfiniBand and the host those of
//! node_exporter, so that stock dashboards work unchanged. What could not be read is left out.

mod gpu;
mod host;
mod infiniband;
mod mounts;
mod node;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gangline_common::exposition::{Kind, Page};
use gangline_common::time::Timestamp;
use gangline_common::wire::request::{FailureReason, RequestFailure};
use gangline_common::wire::v1::NodeInventory;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::collectors::host::Roots;
use crate::collectors::storage::room;
use crate::collectors::{NewestReadings, Readings};
use crate::holders::Holders;
use gpu::LinksTold;
use node::{Kernel, Told};

/// Where node_exporter listens unless it is told otherwise.
const NODE_EXPORTER_PORT: u16 = 9100;
/// How long it is waited for one that listens.
const PROBE: Duration = Duration::from_millis(200);

/// Who gives the families of node_exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostMetrics {
    /// The agent, unless a node_exporter listens on its port.
    #[default]
    Auto,
    /// The agent.
    On,
    /// Somebody else.
    Off,
}

/// What the page has besides the standard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// The GPU families that dcgm-exporter has switched off too.
    pub extended: bool,
    /// The label `Hostname`, as dcgm-exporter wrote it until 2026, beside `hostname`.
    pub compat_hostname_label: bool,
    pub host: HostMetrics,
}

/// What a page is made of.
struct Facts<'a> {
    readings: &'a Readings,
    inventory: &'a NodeInventory,
    holders: &'a Holders,
    /// What NVLinks told on pages before.
    links: &'a LinksTold,
    /// What the kernel's files say; nothing where the families of node_exporter are not wanted.
    kernel: &'a Kernel,
    options: Options,
    /// Whether the families of node_exporter are wanted.
    with_host: bool,
}

/// The page of this node; cheap to clone.
#[derive(Clone)]
pub struct NodePage {
    readings: NewestReadings,
    inventory: watch::Receiver<Arc<NodeInventory>>,
    holders: watch::Receiver<Holders>,
    options: Options,
    /// `/proc`.
    proc: Arc<Path>,
    told: Arc<Told>,
    links: Arc<LinksTold>,
}

impl NodePage {
    pub fn new(
        readings: NewestReadings,
        inventory: watch::Receiver<Arc<NodeInventory>>,
        holders: watch::Receiver<Holders>,
        options: Options,
    ) -> Self {
        let proc = Roots::default().proc.into();
        let (told, links) = Default::default();
        NodePage { readings, inventory, holders, options, proc, told, links }
    }

    /// The page as text.
    ///
    /// # Errors
    /// Before the first reading.
    pub async fn text(&self) -> Result<Vec<u8>, RequestFailure> {
        let with_host = match self.options.host {
            HostMetrics::On => true,
            HostMetrics::Off => false,
            HostMetrics::Auto => !node_exporter_listens().await,
        };
        let kernel = if with_host { self.kernel().await } else { Kernel::default() };
        let readings = self.readings.borrow().clone().ok_or_else(|| RequestFailure {
            reason: FailureReason::NotHere,
            text: "nothing has been read yet".to_owned(),
        })?;
        let inventory = self.inventory.borrow().clone();
        let holders = self.holders.borrow().clone();
        let facts = Facts {
            readings: &readings,
            inventory: &inventory,
            holders: &holders,
            links: &self.links,
            kernel: &kernel,
            options: self.options,
            with_host,
        };
        let text = page(&facts).text().map_err(|error| RequestFailure {
            reason: FailureReason::NoAnswer,
            text: format!("the page cannot be written: {error}"),
        })?;
        Ok(text.into_bytes())
    }

    /// What the kernel's files say now; nothing if their reader is lost.
    async fn kernel(&self) -> Kernel {
        let (proc, told) = (Arc::clone(&self.proc), Arc::clone(&self.told));
        let reading = move || {
            let mut kernel = Kernel::read(&proc, Timestamp::now(), &told);
            kernel.root = room(Path::new("/")).ok();
            kernel
        };
        tokio::task::spawn_blocking(reading).await.unwrap_or_default()
    }
}

async fn node_exporter_listens() -> bool {
    let dialling = TcpStream::connect((Ipv4Addr::LOCALHOST, NODE_EXPORTER_PORT));
    matches!(tokio::time::timeout(PROBE, dialling).await, Ok(Ok(_)))
}

fn page(facts: &Facts<'_>) -> Page {
    let mut page = Page::default();
    gpu::add(&mut page, facts);
    if facts.with_host {
        infiniband::add(&mut page, facts);
        host::add(&mut page, facts);
        node::add(&mut page, facts.kernel, &facts.inventory.name);
    }
    host::add_own(&mut page, facts);
    add_agent(&mut page, facts);
    page
}

/// What only the agent knows: its collectors, its samples, its clock.
fn add_agent(page: &mut Page, facts: &Facts<'_>) {
    let readings = facts.readings;
    let collectors = readings.collectors();
    let mut success = page.family(
        "gangline_collector_success",
        "Whether the last reading of the collector succeeded and none is overdue (0 or 1).",
        Kind::Gauge,
    );
    for status in &collectors {
        success.add(&[("collector", status.name)], f64::from(status.success()));
    }
    let mut duration = page.family(
        "gangline_collector_duration_seconds",
        "How long the last reading of the collector took.",
        Kind::Gauge,
    );
    for status in &collectors {
        duration.add(&[("collector", status.name)], status.duration.as_secs_f64());
    }
    page.family(
        "gangline_dropped_samples_total",
        "Samples that were not sent because a newer one came, since the agent started.",
        Kind::Counter,
    )
    .add(&[], readings.dropped as f64);
    page.family(
        "gangline_clock_offset_seconds",
        "What the node's clock is ahead of the coordinator's.",
        Kind::Gauge,
    )
    .add(&[], readings.clock.map(|clock| clock.ahead_ms as f64 / 1000.0));
}
