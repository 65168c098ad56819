//! The nodes as they change: a stream of their samples and of their states.
//!
//! Every event is written once, into batches that all watchers share. A watcher that does not keep up
//! loses batches and is told how many events it lost; one that takes nothing is dropped.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use gangline_common::ids::{GpuId, NodeId};
use gangline_common::time::{Timestamp, wall_text};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use tokio::sync::{broadcast, watch};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Action, Caller, Object, authorize};
use super::error::{ApiError, Problem};
use super::follow::{Gone, Outlet};
use super::nodes::{check_pool, find_node};
use super::streams::{PING, RETRY};
use super::view::NodeFacts;
use super::{App, Params, Shared, header_text};
use crate::board::Board;
use crate::ingest::telemetry::{GPU, HOST, History, Record, Series, Update};

/// Samples that come this close together are sent together.
const GATHER: Duration = Duration::from_millis(10);
/// Changes of states that come this close together are looked at together.
const STATES_GATHER: Duration = Duration::from_millis(250);
/// Without watchers nothing is written; so long after the last one has gone.
const LINGER: Duration = Duration::from_secs(1);
/// Samples of one batch, and batches that a watcher may be behind before it loses the oldest: some
/// 30 MB of nodes with eight GPUs, for all watchers together.
const BATCH: usize = 256;
const BATCHES: usize = 64;
/// Bytes after which the answer to a new watcher is sent in pieces.
const PIECE: usize = 256 << 10;

/// Readings by the name of their series; absent ones are null.
pub(super) struct Readings<'a>(pub &'static [Series], pub &'a [Option<f64>]);

impl Serialize for Readings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (series, value) in self.0.iter().zip(self.1) {
            map.serialize_entry(series.name, &value.map(Number))?;
        }
        map.end()
    }
}

/// A number with at most three decimals, and with none where it has none.
#[derive(Clone, Copy, Debug)]
pub struct Number(pub f64);

/// Whole numbers up to here are exact.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rounded = (self.0 * 1000.0).round() / 1000.0;
        if rounded.fract() == 0.0 && rounded.abs() < EXACT {
            return serializer.serialize_i64(rounded as i64);
        }
        serializer.serialize_f64(rounded)
    }
}

/// Data of the event `sample`. Its id, as `Last-Event-ID`, brings what came after it.
#[derive(Serialize, ToSchema)]
pub(super) struct SampleEvent<'a> {
    /// The node's id.
    #[schema(value_type = String)]
    node: &'a str,
    #[schema(value_type = String)]
    name: &'a str,
    /// By the node's clock; by the coordinator's where the node's is wrong.
    time: String,
    /// Samples of this node that its agent did not send since the one before.
    dropped: u32,
    /// By name: cpu_busy_pct, memory_used_bytes, load1, network_bytes_per_s, rdma_bytes_per_s.
    #[schema(value_type = std::collections::BTreeMap<String, Option<f64>>)]
    host: Readings<'a>,
    gpus: Vec<GpuEvent<'a>>,
}

/// One GPU in the event `sample`.
#[derive(Serialize, ToSchema)]
pub(super) struct GpuEvent<'a> {
    #[schema(value_type = String)]
    uuid: &'a str,
    /// By name: utilization_pct, memory_used_bytes, temperature_c, power_w, sm_clock_mhz, sm_active,
    /// tensor_active, nvlink_bytes_per_s.
    #[serde(flatten)]
    #[schema(value_type = std::collections::BTreeMap<String, Option<f64>>)]
    readings: Readings<'a>,
}

/// Data of the event `node`: what a node is now. First of every node, then of each that changed.
#[derive(Serialize, ToSchema, PartialEq, Clone)]
pub(super) struct NodeEvent {
    /// The node's id.
    node: String,
    name: String,
    /// As in the list of nodes.
    state: &'static str,
    /// healthy, degraded or unhealthy.
    health: &'static str,
    pool: Option<String>,
    gpus_total: Option<usize>,
    gpus_in_use: usize,
}

/// Data of the event `dropped`: what this client has missed.
#[derive(Serialize, ToSchema)]
pub(super) struct DroppedEvent {
    /// Null when nobody knows.
    events: Option<u64>,
}

/// Query of the stream.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchParams {
    /// Id or name of the only node that matters.
    node: Option<String>,
    /// Pool whose nodes matter.
    pool: Option<String>,
}

/// The nodes as they change: events `node` and `sample`, of all nodes at once and then whenever there
/// is a new one, and `dropped` when the client was too slow for some.
#[utoipa::path(get, path = "/api/v1/nodes/stream",
    params(WatchParams,
        ("Last-Event-ID" = Option<String>, Header, description = "Id of the last event that came")),
    responses((status = 200, body = SampleEvent, content_type = "text/event-stream"),
        (status = 404, response = Problem), (status = 503, response = Problem)))]
pub(super) async fn watch_nodes(
    State(shared): App,
    Caller(principal): Caller,
    Params(params): Params<WatchParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    authorize(&principal, Action::ReadNodes, &Object::Fleet)?;
    if let Some(pool) = &params.pool {
        check_pool(&shared.api.board, pool)?;
    }
    if let Some(node) = &params.node {
        find_node(&shared, node)?;
    }
    let last = header_text(&headers, "last-event-id")?.map(str::to_owned);
    let slot = shared.watchers.take(&principal.user)?;
    let (outlet, receiver) = Outlet::new(slot);
    let bytes = stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|bytes: Bytes| (Ok::<_, Infallible>(bytes), receiver))
    });
    tokio::spawn(async move {
        // It ends when the client has gone, which is not an error.
        let _gone = Watcher { shared, outlet, params }.run(last).await;
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(bytes)).into_response())
}

/// Events as they go over the wire.
#[derive(Default)]
struct Page {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

/// One event of a page.
struct Place {
    range: Range<usize>,
    /// Of a sample; 0 for a state.
    number: u64,
    node: Arc<NodeEvent>,
}

impl Page {
    /// `id` is empty for an event that cannot be resumed from.
    fn event(&mut self, name: &str, id: &str, data: &impl Serialize) -> Range<usize> {
        let began = self.bytes.len();
        self.bytes.extend_from_slice(b"event: ");
        self.bytes.extend_from_slice(name.as_bytes());
        if !id.is_empty() {
            self.bytes.extend_from_slice(b"\nid: ");
            self.bytes.extend_from_slice(id.as_bytes());
        }
        self.bytes.extend_from_slice(b"\ndata: ");
        if let Err(error) = serde_json::to_writer(&mut self.bytes, data) {
            tracing::error!(%error, name, "an event cannot be written as JSON");
            self.bytes.truncate(began);
            return began..began;
        }
        self.bytes.extend_from_slice(b"\n\n");
        began..self.bytes.len()
    }

    fn sample(&mut self, instance: u64, node: &Arc<NodeEvent>, sample: &Sample<'_>) {
        let gpus = sample.gpus.iter();
        let data = SampleEvent {
            node: &node.node,
            name: &node.name,
            time: wall_text(sample.time_ms),
            dropped: sample.dropped,
            host: Readings(&HOST, sample.host),
            gpus: gpus
                .map(|(uuid, values)| GpuEvent { uuid: &uuid.0, readings: Readings(&GPU, values) })
                .collect(),
        };
        let range = self.event("sample", &format!("{instance}-{}", sample.number), &data);
        self.places.push(Place { range, number: sample.number, node: node.clone() });
    }

    fn state(&mut self, node: &Arc<NodeEvent>) {
        let range = self.event("node", "", &**node);
        self.places.push(Place { range, number: 0, node: node.clone() });
    }
}

/// What an event says of a sample, whether it is new or from a ring.
struct Sample<'a> {
    number: u64,
    time_ms: u64,
    dropped: u32,
    host: &'a [Option<f64>],
    gpus: Vec<(&'a GpuId, &'a [Option<f64>])>,
}

impl<'a> Sample<'a> {
    fn new(update: &'a Update) -> Self {
        let names = update.sample.gpus.iter().map(|gpu| &gpu.uuid);
        let values = update.reading.gpus.iter().map(|values| values.as_slice());
        Sample {
            number: update.number,
            time_ms: update.time_ms,
            dropped: update.dropped,
            host: &update.reading.host,
            gpus: names.zip(values).collect(),
        }
    }

    fn old(history: &'a History, record: &'a Record) -> Self {
        let values = record.gpus.iter().map(|values| values.as_slice());
        Sample {
            number: record.number,
            time_ms: record.time_ms,
            dropped: record.dropped,
            host: &record.host,
            gpus: history.gpus.iter().zip(values).collect(),
        }
    }
}

/// What became new at about the same time.
struct Batch {
    bytes: Bytes,
    places: Vec<Place>,
    /// Events of all batches up to the end of this one.
    total: u64,
}

type States = HashMap<NodeId, Arc<NodeEvent>>;

fn states(board: &Board) -> States {
    let one = |snapshot: &crate::board::NodeSnapshot| {
        let now = Timestamp::default();
        let facts = NodeFacts { snapshot, sample: None, counts: None, sees: &|_| false, now };
        let (state, gpus_in_use) = facts.word();
        let node = &snapshot.node;
        let event = NodeEvent {
            node: node.id.to_string(),
            name: node.name.clone(),
            state,
            health: node.health_word(),
            pool: node.pool().map(str::to_owned),
            gpus_total: node.inventory.as_ref().map(|inventory| inventory.gpus.len()),
            gpus_in_use,
        };
        (node.id.clone(), Arc::new(event))
    };
    board.nodes().iter().map(one).collect()
}

/// A node that the board does not know yet.
fn unknown(node: &NodeId) -> Arc<NodeEvent> {
    Arc::new(NodeEvent {
        node: node.to_string(),
        name: node.to_string(),
        state: "unknown",
        health: "healthy",
        pool: None,
        gpus_total: None,
        gpus_in_use: 0,
    })
}

/// Writes events while somebody watches.
pub(super) struct Live {
    batches: broadcast::Sender<Arc<Batch>>,
    writing: Mutex<bool>,
    /// Events of all batches so far, those that were lost among them.
    total: AtomicU64,
}

impl Default for Live {
    fn default() -> Self {
        Live {
            batches: broadcast::Sender::new(BATCHES),
            writing: Mutex::new(false),
            total: AtomicU64::new(0),
        }
    }
}

impl Live {
    /// Every batch from now on, and the count of events before them.
    fn subscribe(&self, shared: &Arc<Shared>) -> (broadcast::Receiver<Arc<Batch>>, u64) {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *writing, true) {
            // Before looking, as the watchers do.
            let updates = shared.api.telemetry.subscribe();
            let changes = shared.api.board.changes();
            let states = states(&shared.api.board);
            let writer = Writer { shared: shared.clone(), states };
            tokio::spawn(writer.run(updates, changes));
        }
        let batches = self.batches.subscribe();
        (batches, self.total.load(Ordering::Acquire))
    }

    /// Whether nobody watches any more; then the writer must end.
    fn rests(&self) -> bool {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        *writing = self.batches.receiver_count() > 0;
        !*writing
    }
}

struct Writer {
    shared: Arc<Shared>,
    states: States,
}

impl Writer {
    async fn run(
        mut self,
        mut updates: broadcast::Receiver<Arc<Update>>,
        mut board: watch::Receiver<u64>,
    ) {
        let mut states_due: Option<tokio::time::Instant> = None;
        let mut linger = tokio::time::interval(LINGER);
        loop {
            let due = states_due.unwrap_or_else(|| tokio::time::Instant::now() + LINGER);
            tokio::select! {
                update = updates.recv() => match update {
                    Ok(update) => {
                        if updates.len() < BATCH {
                            tokio::time::sleep(GATHER).await;
                        }
                        self.write(update, &mut updates);
                    }
                    Err(broadcast::error::RecvError::Lagged(lost)) => self.lose(lost),
                    Err(broadcast::error::RecvError::Closed) => return,
                },
                changed = board.changed(), if states_due.is_none() => {
                    if changed.is_err() {
                        return;
                    }
                    states_due = Some(tokio::time::Instant::now() + STATES_GATHER);
                }
                () = tokio::time::sleep_until(due), if states_due.is_some() => {
                    states_due = None;
                    self.write_states();
                }
                _ = linger.tick() => {
                    if self.shared.live.rests() {
                        return;
                    }
                }
            }
        }
    }

    fn write(&mut self, first: Arc<Update>, updates: &mut broadcast::Receiver<Arc<Update>>) {
        let instance = self.shared.api.started.wall_ms;
        let mut page = Page::default();
        let mut lost = 0;
        let mut next = Some(first);
        while let Some(update) = next.take() {
            let node = self.states.entry(update.node.clone());
            let node = node.or_insert_with(|| unknown(&update.node)).clone();
            page.sample(instance, &node, &Sample::new(&update));
            while page.places.len() < BATCH && next.is_none() {
                match updates.try_recv() {
                    Ok(update) => next = Some(update),
                    Err(broadcast::error::TryRecvError::Lagged(more)) => lost += more,
                    Err(_) => break,
                }
            }
        }
        self.send(page);
        self.lose(lost);
    }

    /// Counts events that no batch holds, so that every watcher is told with the next one.
    fn lose(&self, events: u64) {
        self.shared.live.total.fetch_add(events, Ordering::AcqRel);
    }

    fn write_states(&mut self) {
        let new = states(&self.shared.api.board);
        let mut page = Page::default();
        let old = std::mem::replace(&mut self.states, new);
        for (id, state) in &self.states {
            if old.get(id).is_none_or(|old| **old != **state) {
                page.state(state);
            }
        }
        if !page.places.is_empty() {
            self.send(page);
        }
    }

    fn send(&mut self, page: Page) {
        let live = &self.shared.live;
        let events = page.places.len() as u64;
        let total = live.total.fetch_add(events, Ordering::AcqRel) + events;
        let batch = Batch { bytes: page.bytes.into(), places: page.places, total };
        // Nobody watches: the writer is about to end.
        let _ = live.batches.send(Arc::new(batch));
    }
}

struct Watcher {
    shared: Arc<Shared>,
    outlet: Outlet<Bytes>,
    params: WatchParams,
}

impl Watcher {
    async fn run(self, last: Option<String>) -> Result<(), Gone> {
        // Subscribed before looking: what comes meanwhile is in the batches.
        let (mut batches, mut total) = self.shared.live.subscribe(&self.shared);
        let known = self.begin(last.as_deref()).await?;
        loop {
            let received = tokio::select! {
                received = tokio::time::timeout(PING, batches.recv()) => received,
                () = self.outlet.closed() => return Err(Gone),
            };
            let batch = match received {
                Ok(Ok(batch)) => batch,
                // The gap in the count of events says how many were lost.
                Ok(Err(broadcast::error::RecvError::Lagged(_))) => continue,
                Ok(Err(broadcast::error::RecvError::Closed)) => return Ok(()),
                Err(_) => {
                    self.outlet.send(Bytes::from_static(b": ping\n\n")).await?;
                    continue;
                }
            };
            let before = batch.total - batch.places.len() as u64;
            let lost = before.saturating_sub(total);
            total = total.max(batch.total);
            if lost > 0 {
                self.tell_dropped(Some(lost)).await?;
            }
            self.forward(&batch, known).await?;
        }
    }

    /// States, and the samples that the client has missed or the newest of each node. Gives the
    /// number of the last sample that needs not be sent again.
    async fn begin(&self, last: Option<&str>) -> Result<u64, Gone> {
        let states = states(&self.shared.api.board);
        let telemetry = &self.shared.api.telemetry;
        let instance = self.shared.api.started.wall_ms;
        let resume = last.and_then(|last| {
            let (of, number) = last.trim().split_once('-')?;
            (of.parse() == Ok(instance)).then(|| number.parse::<u64>().ok()).flatten()
        });
        let (missed, known) = telemetry.missed(resume);
        let found: usize = missed.iter().map(|(_, history)| history.records.len()).sum();
        let lost = match (last, resume) {
            (None, _) => Some(0),
            // An id of another life of the coordinator.
            (Some(_), None) => None,
            (Some(_), Some(number)) => {
                Some(known.saturating_sub(number).saturating_sub(found as u64))
            }
        };
        if lost != Some(0) {
            self.tell_dropped(lost).await?;
        }
        let mut page = Page::default();
        page.bytes.extend_from_slice(format!("retry: {}\n\n", RETRY.as_millis()).as_bytes());
        let mut sorted: Vec<_> = states.values().filter(|node| self.wants(node)).collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        for node in sorted {
            page.state(node);
            page = self.send_full(page).await?;
        }
        let mut samples = Vec::with_capacity(found);
        for (id, history) in &missed {
            let node = states.get(id).cloned().unwrap_or_else(|| unknown(id));
            if self.wants(&node) {
                let records = history.records.iter();
                samples.extend(records.map(|record| (node.clone(), Sample::old(history, record))));
            }
        }
        samples.sort_by_key(|(_, sample)| sample.number);
        for (node, sample) in &samples {
            page.sample(instance, node, sample);
            page = self.send_full(page).await?;
        }
        self.outlet.send(page.bytes.into()).await?;
        Ok(known)
    }

    /// Sends a page that has grown large; gives an empty one then.
    async fn send_full(&self, page: Page) -> Result<Page, Gone> {
        if page.bytes.len() < PIECE {
            return Ok(page);
        }
        self.outlet.send(page.bytes.into()).await?;
        Ok(Page::default())
    }

    fn wants(&self, node: &NodeEvent) -> bool {
        let WatchParams { node: wanted, pool } = &self.params;
        wanted.as_ref().is_none_or(|wanted| *wanted == node.name || *wanted == node.node)
            && pool.as_ref().is_none_or(|pool| Some(pool) == node.pool.as_ref())
    }

    /// The events of a batch that the client wants and has not had.
    async fn forward(&self, batch: &Batch, known: u64) -> Result<(), Gone> {
        let fits =
            |place: &Place| (place.number == 0 || place.number > known) && self.wants(&place.node);
        if batch.places.iter().all(fits) {
            return self.outlet.send(batch.bytes.clone()).await;
        }
        let mut bytes = Vec::new();
        for place in batch.places.iter().filter(|place| fits(place)) {
            bytes.extend_from_slice(batch.bytes.get(place.range.clone()).unwrap_or_default());
        }
        if bytes.is_empty() { Ok(()) } else { self.outlet.send(bytes.into()).await }
    }

    async fn tell_dropped(&self, events: Option<u64>) -> Result<(), Gone> {
        let mut page = Page::default();
        page.event("dropped", "", &DroppedEvent { events });
        self.outlet.send(page.bytes.into()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [(83.0, "83"), (12.399_999_6, "12.4"), (0.0005, "0.001"), (-1.5, "-1.5")];
        for (number, text) in cases {
            assert_eq!(serde_json::to_string(&Number(number)).unwrap(), text);
        }
        assert_eq!(serde_json::to_string(&Number(8.5e10)).unwrap(), "85000000000");
        assert_eq!(serde_json::to_string(&Number(f64::NAN)).unwrap(), "null");
    }

    #[test]
    fn an_event_is_three_lines() {
        let node = unknown(&NodeId::new("n-1").unwrap());
        let mut page = Page::default();
        page.state(&node);
        let gpu = GpuId("GPU-1".to_owned());
        let values = [Some(50.0), None];
        let gpus = vec![(&gpu, values.as_slice())];
        let sample = Sample { number: 7, time_ms: 1000, dropped: 2, host: &[Some(0.5)], gpus };
        page.sample(99, &node, &sample);
        let text = String::from_utf8(page.bytes).unwrap();
        assert_eq!(
            text,
            "event: node\ndata: {\"node\":\"n-1\",\"name\":\"n-1\",\"state\":\"unknown\",\
             \"health\":\"healthy\",\"pool\":null,\"gpus_total\":null,\"gpus_in_use\":0}\n\n\
             event: sample\nid: 99-7\ndata: {\"node\":\"n-1\",\"name\":\"n-1\",\
             \"time\":\"1970-01-01T00:00:01.000Z\",\"dropped\":2,\
             \"host\":{\"cpu_busy_pct\":0.5},\"gpus\":[{\"uuid\":\"GPU-1\",\
             \"utilization_pct\":50,\"memory_used_bytes\":null}]}\n\n"
        );
        assert_eq!(&text[page.places[1].range.clone()], &text[page.places[0].range.end..]);
    }
}
