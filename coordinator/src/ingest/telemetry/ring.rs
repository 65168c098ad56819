//! The samples of one node: two minutes of every sample, an hour of averages of ten seconds, and the
//! newest one whole.

use std::ops::Range;

use gangline_common::ids::GpuId;
use gangline_common::wire::WireError;
use gangline_common::wire::frame::{Frame, Kind};

use super::series::{
    self, GPU, GPU_BYTES, GpuReading, HOST, HOST_BYTES, HostReading, Totals, pack, unpack,
};

/// Samples kept as they came: two minutes at 1 Hz.
pub const FINE: usize = 120;
/// Averages kept: an hour.
pub const COARSE: usize = 360;
/// What one average is of.
pub const COARSE_MS: u64 = 10_000;
/// GPUs of a node whose readings are kept. More are only in the newest sample.
const MAX_GPUS: usize = 64;
/// Records that a ring grows by: its memory is what it holds, and little more.
const GROWTH: usize = 24;

/// Readings of one moment or of ten seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Counts all samples of all nodes that were kept; 0 for an average.
    pub number: u64,
    /// Wall clock.
    pub time_ms: u64,
    /// Samples that were lost before this one, or among those that this is the average of.
    pub dropped: u32,
    pub host: HostReading,
    /// In the order of [`Node::gpus`].
    pub gpus: Vec<GpuReading>,
}

/// Number and time of a packed record, 48 bits each, and its losses.
const WORD_BYTES: usize = 6;
const HEAD_BYTES: usize = 2 * WORD_BYTES + 2;

/// Packed records of one length, oldest first.
#[derive(Debug, Default)]
struct Ring {
    /// Bytes of one record.
    stride: usize,
    bytes: Vec<u8>,
    /// Index of the oldest record; 0 until the ring is full.
    first: usize,
}

impl Ring {
    fn len(&self) -> usize {
        self.bytes.len().checked_div(self.stride).unwrap_or(0)
    }

    /// Takes the place of the oldest when there are `most`.
    fn push(&mut self, record: &[u8], most: usize) {
        if self.len() < most {
            if self.bytes.capacity() < self.bytes.len() + record.len() {
                let more = GROWTH.min(most - self.len());
                self.bytes.reserve_exact(more * self.stride);
            }
            self.bytes.extend_from_slice(record);
            return;
        }
        let at = self.first * self.stride;
        if let Some(place) = self.bytes.get_mut(at..at + self.stride) {
            place.copy_from_slice(record);
        }
        self.first = (self.first + 1) % most;
    }

    /// Oldest first.
    fn records(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        let (new, old) = self.bytes.split_at((self.first * self.stride).min(self.bytes.len()));
        // A stride of 0 has no bytes.
        let stride = self.stride.max(1);
        old.chunks_exact(stride).chain(new.chunks_exact(stride))
    }
}

/// The average of ten seconds, as it comes together.
#[derive(Debug, Default)]
struct Building {
    /// Number of the ten seconds since the epoch.
    bucket: u64,
    dropped: u32,
    host: [Mean; HOST.len()],
    gpus: Vec<[Mean; GPU.len()]>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.sum += value;
            self.count += 1;
        }
    }

    fn value(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// Everything that is kept of one node.
#[derive(Debug, Default)]
pub struct Node {
    /// The newest sample as it came. Decoded, it is twice as large and in dozens of places on the heap,
    /// none of them in a cache when the next one replaces it; and hardly anybody asks for it.
    newest: Vec<u8>,
    /// Of the newest; `None` before the first.
    pub totals: Option<Totals>,
    /// When the newest one that is in a ring came.
    pub received_ms: u64,
    gpus: Vec<GpuId>,
    fine: Ring,
    coarse: Ring,
    building: Option<Box<Building>>,
    pub counts: Counts,
}

/// What became of the samples of one node since the coordinator began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub received: u64,
    /// Not sent, by the agent's own count.
    pub dropped: u64,
    /// Came sooner after the one before than any agent sends, and are in no ring.
    pub hasty: u64,
    /// Carried a time that is not now: kept with the time at which they came.
    pub untimely: u64,
}

impl Node {
    /// Keeps the frame of the newest sample, in the memory of the one before if that suits.
    pub fn replace_newest(&mut self, frame: &Frame) {
        self.newest.clear();
        if self.newest.capacity() / 2 > frame.body.len() {
            self.newest = Vec::new();
        }
        self.newest.reserve_exact(frame.body.len());
        self.newest.extend_from_slice(&frame.body);
    }

    /// That of the newest sample; an error before the first.
    pub fn newest(&self) -> Result<Frame, WireError> {
        Frame::new(Kind::Sample, self.newest.clone())
    }

    /// GPUs in the order of the readings.
    pub fn gpus(&self) -> &[GpuId] {
        &self.gpus
    }

    /// Keeps a reading. `number` is larger than every one before.
    pub fn push(
        &mut self,
        number: u64,
        time_ms: u64,
        dropped: u32,
        host: HostReading,
        gpus: &[(&GpuId, &GpuReading)],
    ) {
        // The same GPUs in the same order, nearly always.
        let values =
            if self.fine.stride > 0 && self.gpus.iter().eq(gpus.iter().map(|(uuid, _)| *uuid)) {
                gpus.iter().map(|(_, reading)| **reading).collect()
            } else {
                self.make_room_for(gpus);
                let mut values = vec![[None; GPU.len()]; self.gpus.len()];
                for (uuid, reading) in gpus {
                    let slot = self.gpus.iter().position(|known| known == *uuid);
                    if let Some(place) = slot.and_then(|slot| values.get_mut(slot)) {
                        *place = **reading;
                    }
                }
                values
            };
        let record = Record { number, time_ms, dropped, host, gpus: values };
        self.fine.push(&packed(&record), FINE);
        self.average(&record);
    }

    fn average(&mut self, record: &Record) {
        let bucket = record.time_ms / COARSE_MS;
        if self.building.as_ref().is_some_and(|building| building.bucket != bucket) {
            self.close_average();
        }
        let building = self.building.get_or_insert_default();
        building.bucket = bucket;
        building.dropped = building.dropped.saturating_add(record.dropped);
        building.gpus.resize(record.gpus.len(), Default::default());
        for (mean, value) in building.host.iter_mut().zip(record.host) {
            mean.add(value);
        }
        for (means, values) in building.gpus.iter_mut().zip(&record.gpus) {
            for (mean, value) in means.iter_mut().zip(values) {
                mean.add(*value);
            }
        }
    }

    fn close_average(&mut self) {
        if let Some(building) = self.building.take() {
            self.coarse.push(&packed(&building.record()), COARSE);
        }
    }

    /// A GPU that was not seen before makes the records longer. When there are too many, the rings
    /// begin anew with those that are there now.
    fn make_room_for(&mut self, seen: &[(&GpuId, &GpuReading)]) {
        let seen: Vec<&GpuId> = seen.iter().map(|(uuid, _)| *uuid).take(MAX_GPUS).collect();
        let new: Vec<GpuId> =
            seen.iter().filter(|uuid| !self.gpus.contains(uuid)).map(|u| (*u).clone()).collect();
        if new.is_empty() && self.fine.stride > 0 {
            return;
        }
        if self.gpus.len() + new.len() > MAX_GPUS {
            self.gpus = seen.into_iter().cloned().collect();
            (self.fine, self.coarse, self.building) = Default::default();
        } else {
            self.gpus.extend(new);
        }
        self.gpus.shrink_to_fit();
        let stride = HEAD_BYTES + HOST_BYTES + GPU_BYTES * self.gpus.len();
        for (ring, most) in [(&mut self.fine, FINE), (&mut self.coarse, COARSE)] {
            let mut longer = Ring { stride, ..Ring::default() };
            for old in ring.records() {
                let mut record = unpacked(old);
                record.gpus.resize(self.gpus.len(), [None; GPU.len()]);
                longer.push(&packed(&record), most);
            }
            *ring = longer;
        }
    }

    /// Every sample of the last two minutes from `since_ms` on, oldest first.
    pub fn fine(&self, since_ms: u64) -> Vec<Record> {
        since(&self.fine, since_ms)
    }

    /// Samples with a larger number than `number`, oldest first.
    pub fn after(&self, number: u64) -> Vec<Record> {
        let newer = self.fine.records().rev().take_while(|record| number_of(record) > number);
        let mut newer: Vec<Record> = newer.map(unpacked).collect();
        newer.reverse();
        newer
    }

    /// The newest sample that is in the ring.
    pub fn newest_record(&self) -> Option<Record> {
        self.fine.records().next_back().map(unpacked)
    }

    /// Averages of ten seconds from `since_ms` on, oldest first, that of the present ones too.
    pub fn coarse(&self, since_ms: u64) -> Vec<Record> {
        let mut records = since(&self.coarse, since_ms);
        let building = self.building.as_ref().map(|building| building.record());
        records.extend(building.filter(|record| record.time_ms >= since_ms));
        records
    }

    /// Bytes that the rings take, without the newest sample.
    #[cfg(test)]
    pub fn ring_bytes(&self) -> usize {
        let names: usize = self.gpus.iter().map(|uuid| size_of::<GpuId>() + uuid.0.len()).sum();
        let building = size_of::<Building>() + self.gpus.len() * size_of::<[Mean; GPU.len()]>();
        size_of::<Self>()
            + self.fine.bytes.capacity()
            + self.coarse.bytes.capacity()
            + names
            + building
    }
}

impl Building {
    fn record(&self) -> Record {
        Record {
            number: 0,
            time_ms: self.bucket * COARSE_MS,
            dropped: self.dropped,
            host: self.host.map(Mean::value),
            gpus: self.gpus.iter().map(|means| means.map(Mean::value)).collect(),
        }
    }
}

fn since(ring: &Ring, since_ms: u64) -> Vec<Record> {
    ring.records().filter(|record| time_of(record) >= since_ms).map(unpacked).collect()
}

fn packed(record: &Record) -> Vec<u8> {
    let length = HEAD_BYTES + HOST_BYTES + GPU_BYTES * record.gpus.len();
    let mut bytes = Vec::with_capacity(length);
    for word in [record.number, record.time_ms] {
        bytes.extend(word.to_le_bytes().into_iter().take(WORD_BYTES));
    }
    bytes.extend(u16::try_from(record.dropped).unwrap_or(u16::MAX).to_le_bytes());
    pack(&HOST, &record.host, &mut bytes);
    record.gpus.iter().for_each(|values| pack(&GPU, values, &mut bytes));
    bytes
}

/// The little-endian number in the bytes `range`.
fn word(bytes: &[u8], range: Range<usize>) -> u64 {
    let bytes = bytes.get(range).unwrap_or_default();
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn number_of(bytes: &[u8]) -> u64 {
    word(bytes, 0..WORD_BYTES)
}

fn time_of(bytes: &[u8]) -> u64 {
    word(bytes, WORD_BYTES..2 * WORD_BYTES)
}

fn unpacked(bytes: &[u8]) -> Record {
    let values = bytes.get(HEAD_BYTES..).unwrap_or_default();
    let mut host = HostReading::default();
    unpack(&HOST, values, &mut host);
    let gpus = values.get(HOST_BYTES..).unwrap_or_default().chunks_exact(GPU_BYTES);
    let gpus = gpus.map(|bytes| {
        let mut values = GpuReading::default();
        series::unpack(&GPU, bytes, &mut values);
        values
    });
    Record {
        number: number_of(bytes),
        time_ms: time_of(bytes),
        dropped: word(bytes, 2 * WORD_BYTES..HEAD_BYTES) as u32,
        host,
        gpus: gpus.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gangline_common::wire::v1::{GpuSample, NodeSample};

    fn push(node: &mut Node, number: u64, time_ms: u64, dropped: u32, gpus: &[(&str, f64)]) {
        let gpu = |(uuid, busy): &(&str, f64)| {
            let mut values = GpuReading::default();
            values[0] = Some(*busy);
            (GpuId((*uuid).to_owned()), values)
        };
        let gpus: Vec<(GpuId, GpuReading)> = gpus.iter().map(gpu).collect();
        let gpus: Vec<_> = gpus.iter().map(|(uuid, values)| (uuid, values)).collect();
        node.push(number, time_ms, dropped, HostReading::default(), &gpus);
    }

    #[test]
    fn two_minutes_and_an_hour_are_kept() {
        let mut node = Node::default();
        for second in 0..5000_u64 {
            let busy = (second % 100) as f64;
            push(&mut node, second + 1, second * 1000, 0, &[("GPU-a", busy)]);
        }
        let fine = node.fine(0);
        assert_eq!(fine.len(), FINE);
        assert_eq!((fine[0].number, fine[0].time_ms), (4881, 4_880_000));
        assert_eq!((fine[119].number, fine[119].gpus[0][0]), (5000, Some(99.0)));
        assert_eq!(node.fine(4_990_000).len(), 10);
        let coarse = node.coarse(0);
        assert_eq!(coarse.len(), COARSE + 1);
        assert_eq!(coarse[COARSE].time_ms, 4_990_000);
        // The mean of 90 to 99.
        assert_eq!(coarse[COARSE].gpus[0][0], Some(94.5));
        assert_eq!(coarse[0].time_ms, 4_990_000 - 3_600_000);
        let after: Vec<u64> = node.after(4997).iter().map(|record| record.number).collect();
        assert_eq!(after, [4998, 4999, 5000]);
    }

    #[test]
    fn a_gpu_may_come_and_go() {
        let mut node = Node::default();
        push(&mut node, 1, 1000, 2, &[("GPU-a", 1.0)]);
        push(&mut node, 2, 2000, 0, &[("GPU-b", 2.0), ("GPU-a", 3.0)]);
        push(&mut node, 3, 3000, 0, &[]);
        let of = |slot: usize| -> Vec<Option<f64>> {
            node.fine(0).iter().map(|record| record.gpus[slot][0]).collect()
        };
        assert_eq!(
            node.gpus().iter().map(|gpu| gpu.0.as_str()).collect::<Vec<_>>(),
            ["GPU-a", "GPU-b"]
        );
        assert_eq!(of(0), [Some(1.0), Some(3.0), None]);
        assert_eq!(of(1), [None, Some(2.0), None]);
        assert_eq!(node.coarse(0)[0].dropped, 2);
        assert_eq!(node.coarse(0)[0].gpus[0][0], Some(2.0));
    }

    #[test]
    fn new_names_for_ever_do_not_grow_it() {
        let mut node = Node::default();
        for number in 1..2000_u64 {
            let uuid = format!("GPU-{number}");
            push(&mut node, number, number * 1000, 0, &[(&uuid, 1.0)]);
            assert!(node.gpus().len() <= MAX_GPUS);
        }
        let many: Vec<String> = (0..500).map(|n| format!("X-{n}")).collect();
        let many: Vec<(&str, f64)> = many.iter().map(|uuid| (uuid.as_str(), 1.0)).collect();
        push(&mut node, 2000, 0, 0, &many);
        assert_eq!(node.gpus().len(), MAX_GPUS);
    }

    #[test]
    fn the_newest_sample_comes_back_and_its_memory_follows_its_size() {
        let sample = |interval_ms, text: &str| NodeSample {
            interval_ms,
            gpus: vec![GpuSample::unread(GpuId(text.to_owned()))],
            ..NodeSample::default()
        };
        let mut node = Node::default();
        assert!(node.newest().is_err());
        for sample in [sample(1000, "a"), sample(2000, &"a".repeat(10_000)), sample(3000, "b")] {
            node.replace_newest(&sample.to_frame().unwrap());
            assert_eq!(NodeSample::from_frame(&node.newest().unwrap()).unwrap(), sample);
            assert!(node.newest.capacity() <= 2 * node.newest.len() + 1);
        }
    }

    /// The goal is 10,000 nodes with 8 GPUs in less than 1 GiB, connections and all.
    #[test]
    fn an_hour_of_a_node_with_eight_gpus_is_small() {
        let mut node = Node::default();
        let uuids: Vec<String> =
            (0..8).map(|n| format!("GPU-aaaaaaaa-bbbb-cccc-dddd-00000000000{n}")).collect();
        let gpus: Vec<(&str, f64)> = uuids.iter().map(|uuid| (uuid.as_str(), 50.0)).collect();
        for second in 0..4000_u64 {
            push(&mut node, second + 1, second * 1000, 0, &gpus);
        }
        assert!(node.ring_bytes() < 64 << 10, "{}", node.ring_bytes());
    }
}
