//! Critical errors of the GPUs, on a thread of their own: a call for readings that hangs does not delay them.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gangline_common::time::Timestamp;
use nvml_wrapper::EventSet;
use nvml_wrapper::enums::event::XidError;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::XidEvent;
use super::window::XidWindow;

/// How often every GPU is asked. Each has an event set of its own, so that one that is lost (and then answers
/// at once, with an error) does not keep the others waiting.
const PACE: Duration = Duration::from_millis(500);
/// Most codes that are counted of one GPU; the catalogue has 173.
const CODES: usize = 256;

/// A GPU that reports its errors.
pub(super) struct Source<'nvml> {
    pub(super) uuid: String,
    pub(super) events: EventSet<'nvml>,
}

/// What was seen so far, by uuid.
#[derive(Default)]
pub(super) struct Seen(Mutex<BTreeMap<String, (Counts, XidWindow)>>);

#[derive(Clone, Default)]
pub(super) struct Counts {
    pub(super) by_code: BTreeMap<u64, u32>,
    /// Of what is still within the window.
    pub(super) recent: BTreeMap<u64, u32>,
    pub(super) last: Option<u64>,
}

impl Seen {
    pub(super) fn of(&self, uuid: &str, now_ms: u64) -> Counts {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((counts, window)) = seen.get_mut(uuid) else { return Counts::default() };
        let mut counts = counts.clone();
        for code in window.newest(now_ms) {
            *counts.recent.entry(code).or_default() += 1;
        }
        counts
    }

    fn count(&self, event: &XidEvent) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (counts, window) = seen.entry(event.uuid.clone()).or_default();
        let code = event.xid.unwrap_or(0);
        window.add(event.at.boot_ms, code);
        if counts.by_code.len() < CODES || counts.by_code.contains_key(&code) {
            let count = counts.by_code.entry(code).or_default();
            *count = count.saturating_add(1);
        }
        counts.last = Some(code);
    }
}

/// Body of the thread: ends when the other end of `sources` is gone.
pub(super) fn run(sources: &Receiver<Source<'_>>, out: &mpsc::Sender<XidEvent>, seen: &Seen) {
    let mut known = Vec::new();
    let mut sequence = 0;
    let mut waiting: Option<XidEvent> = None;
    loop {
        match sources.recv_timeout(PACE) {
            Ok(source) => known.push(source),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        waiting = waiting.and_then(|event| offer(event, out));
        for source in &known {
            // What is not taken waits in the driver: the reader is behind, and nothing is lost.
            while waiting.is_none()
                && let Some(xid) = next(source)
            {
                sequence += 1;
                let (uuid, at) = (source.uuid.clone(), Timestamp::now());
                let event = XidEvent { sequence, at, uuid, xid };
                tracing::warn!(gpu = event.uuid, ?xid, sequence, "the driver reports an Xid error");
                seen.count(&event);
                waiting = offer(event, out);
            }
        }
    }
}

/// The next code of a GPU. A time-out, a lost GPU and every other error all mean that there is none now.
fn next(source: &Source<'_>) -> Option<Option<u64>> {
    let event = source.events.wait(0).ok()?;
    Some(match event.event_data {
        Some(XidError::Value(code)) => Some(code),
        Some(XidError::Unknown) | None => None,
    })
}

/// Gives the event back when the reader has no room for it. Without a reader it has been counted and logged.
fn offer(event: XidEvent, out: &mpsc::Sender<XidEvent>) -> Option<XidEvent> {
    match out.try_send(event) {
        Ok(()) | Err(TrySendError::Closed(_)) => None,
        Err(TrySendError::Full(event)) => Some(event),
    }
}
