//! The waiting jobs: by their place, and in lines of jobs that are alike to the queue.
//!
//! A pass looks at lines, not at jobs: what keeps the first of a line from starting keeps the others
//! from it too. Derived from the jobs' records, but for what is remembered while a job waits.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use gangline_common::ids::JobId;

use super::forecast::Estimate;
use super::job::{Job, JobRequest, JobState, Place};
use super::overtaking::Overtaken;

/// A line while it has members.
pub(super) type LineId = u32;
/// What a gang needs of the fleet, while a line needs it.
pub(super) type ShapeId = u32;

/// A job in the queue, and what is remembered of it for as long as it could start.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub job: Arc<Job>,
    pub overtaken: Overtaken,
    /// When its nodes were first supposed to be free, on the boot clock: later gangs that take longer
    /// than was supposed delay it no further.
    pub promised_ms: Option<u64>,
    /// Gangs were sent back for it: what those leave is kept for it.
    pub is_claimant: bool,
    /// Why it waits, for readers.
    pub why: Option<Arc<str>>,
}

/// Jobs that are alike in everything that decides who starts, except since when they wait.
#[derive(Debug)]
pub(super) struct Line {
    pub shape: ShapeId,
    /// How long each of them is going to run, once that was looked up.
    pub estimate: Option<Option<Estimate>>,
    /// In the order of submission.
    pub members: BTreeMap<u64, Waiting>,
    /// What every member was told, if all were told the same.
    told: Option<Arc<str>>,
}

impl Line {
    pub fn first(&self) -> Option<&Arc<Job>> {
        self.members.first_key_value().map(|(_, waiting)| &waiting.job)
    }

    /// The member behind the one of this number.
    pub fn next(&self, sequence: u64) -> Option<&Waiting> {
        self.members.range(sequence + 1..).next().map(|(_, waiting)| waiting)
    }
}

/// Where a job is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spot {
    /// It may not start yet, whatever is free.
    Aside,
    /// It waits for a part of a standing cluster.
    Guest,
    Line(LineId),
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    order: BTreeMap<Place, JobId>,
    spots: BTreeMap<JobId, (Place, Spot)>,
    aside: BTreeMap<u64, Waiting>,
    guests: BTreeMap<u64, Waiting>,
    lines: BTreeMap<LineId, Line>,
    by_likeness: BTreeMap<Likeness, LineId>,
    /// With the number of lines that have it.
    shapes: BTreeMap<Shape, (ShapeId, u32)>,
    next_line: LineId,
    next_shape: ShapeId,
}

impl Queue {
    /// Takes note of a job as it is now, whether it waits or not. Readers have the reason of its record
    /// then, until the next pass.
    pub fn set(&mut self, job: &Arc<Job>) {
        let before = self.remove(&job.id);
        if job.state != JobState::Pending {
            return;
        }
        let before = before.filter(|_| job.eligible.is_some());
        let waiting = Waiting {
            job: job.clone(),
            overtaken: before.as_ref().map_or_else(Overtaken::default, |before| before.overtaken),
            promised_ms: before.as_ref().and_then(|before| before.promised_ms),
            is_claimant: before.as_ref().is_some_and(|before| before.is_claimant),
            why: None,
        };
        let spot = match (&job.cluster, &job.eligible) {
            (Some(_), _) => Spot::Guest,
            (None, None) => Spot::Aside,
            (None, Some(_)) => Spot::Line(self.line_for(job)),
        };
        match spot {
            Spot::Aside => self.aside.insert(job.sequence, waiting),
            Spot::Guest => self.guests.insert(job.sequence, waiting),
            Spot::Line(id) => self.lines.get_mut(&id).and_then(|line| {
                line.told = None;
                line.members.insert(job.sequence, waiting)
            }),
        };
        self.order.insert(job.place(), job.id.clone());
        self.spots.insert(job.id.clone(), (job.place(), spot));
    }

    pub fn remove(&mut self, id: &JobId) -> Option<Waiting> {
        let (place, spot) = self.spots.remove(id)?;
        self.order.remove(&place);
        let line = match spot {
            Spot::Aside => return self.aside.remove(&place.sequence),
            Spot::Guest => return self.guests.remove(&place.sequence),
            Spot::Line(line) => line,
        };
        let members = &mut self.lines.get_mut(&line)?.members;
        let waiting = members.remove(&place.sequence)?;
        if members.is_empty() {
            self.lines.remove(&line);
            self.by_likeness.remove(&Likeness(waiting.job.clone()));
            let shape = Shape(waiting.job.request.clone());
            if let Some((_, lines)) = self.shapes.get_mut(&shape) {
                *lines -= 1;
                if *lines == 0 {
                    self.shapes.remove(&shape);
                }
            }
        }
        Some(waiting)
    }

    fn line_for(&mut self, job: &Arc<Job>) -> LineId {
        let likeness = Likeness(job.clone());
        if let Some(line) = self.by_likeness.get(&likeness) {
            return *line;
        }
        let shape = self.shapes.entry(Shape(job.request.clone())).or_insert_with(|| {
            self.next_shape = self.next_shape.wrapping_add(1);
            (self.next_shape, 0)
        });
        shape.1 += 1;
        let (members, told) = (BTreeMap::new(), None);
        let line = Line { shape: shape.0, estimate: None, members, told };
        self.next_line = self.next_line.wrapping_add(1);
        self.lines.insert(self.next_line, line);
        self.by_likeness.insert(likeness, self.next_line);
        self.next_line
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// All waiting jobs, by priority and then in the order of submission.
    pub fn ids(&self) -> impl Iterator<Item = &JobId> {
        self.order.values()
    }

    pub fn waiting(&self, id: &JobId) -> Option<&Waiting> {
        let (place, spot) = self.spots.get(id)?;
        match spot {
            Spot::Aside => self.aside.get(&place.sequence),
            Spot::Guest => self.guests.get(&place.sequence),
            Spot::Line(line) => self.lines.get(line)?.members.get(&place.sequence),
        }
    }

    pub fn waiting_mut(&mut self, id: &JobId) -> Option<&mut Waiting> {
        let (place, spot) = self.spots.get(id)?;
        match spot {
            Spot::Aside => self.aside.get_mut(&place.sequence),
            Spot::Guest => self.guests.get_mut(&place.sequence),
            Spot::Line(line) => self.lines.get_mut(line)?.members.get_mut(&place.sequence),
        }
    }

    /// Jobs that may not start, whatever is free; guests are not among them.
    pub fn aside(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.aside.values().map(|waiting| &waiting.job)
    }

    /// Jobs that wait for a part of a standing cluster.
    pub fn guests(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.guests.values().map(|waiting| &waiting.job)
    }

    pub fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.get(&id)
    }

    pub fn line_of(&self, id: &JobId) -> Option<LineId> {
        match self.spots.get(id)? {
            (_, Spot::Line(line)) => Some(*line),
            (_, Spot::Aside | Spot::Guest) => None,
        }
    }

    /// What waits for nodes, by likeness.
    pub fn lines(&self) -> impl Iterator<Item = (LineId, &Line)> {
        self.lines.iter().map(|(id, line)| (*id, line))
    }

    pub fn lines_mut(&mut self) -> impl Iterator<Item = &mut Line> {
        self.lines.values_mut()
    }

    pub fn set_estimate(&mut self, id: LineId, estimate: Option<Estimate>) {
        if let Some(line) = self.lines.get_mut(&id) {
            line.estimate = Some(estimate);
        }
    }

    /// Remembers why a job waits; whether that is new.
    pub fn tell(&mut self, id: &JobId, reason: &Arc<str>) -> bool {
        if let Some((_, Spot::Line(line))) = self.spots.get(id)
            && let Some(line) = self.lines.get_mut(line)
        {
            line.told = None;
        }
        self.waiting_mut(id).is_some_and(|waiting| waiting.hears(reason))
    }

    /// Remembers why the jobs of a line wait, but those that `knows` something of its own; the ones
    /// to whom it is new.
    pub fn tell_line(
        &mut self,
        id: LineId,
        reason: &Arc<str>,
        knows: impl Fn(&JobId) -> bool,
    ) -> Vec<JobId> {
        let Some(line) = self.lines.get_mut(&id) else { return Vec::new() };
        if line.told.as_ref() == Some(reason) {
            return Vec::new();
        }
        let (mut all, mut told) = (true, Vec::new());
        for waiting in line.members.values_mut() {
            if knows(&waiting.job.id) {
                all = false;
            } else if waiting.hears(reason) {
                told.push(waiting.job.id.clone());
            }
        }
        line.told = all.then(|| reason.clone());
        told
    }
}

impl Waiting {
    fn hears(&mut self, reason: &Arc<str>) -> bool {
        let is_new = self.why.as_ref() != Some(reason);
        if is_new {
            self.why = Some(reason.clone());
        }
        is_new
    }
}

/// A job, compared by what makes jobs of one line.
#[derive(Debug)]
struct Likeness(Arc<Job>);

impl Likeness {
    fn key(&self) -> (&str, &str, &str, u8, Option<u64>, ShapeKey<'_>) {
        let (job, request) = (&self.0, &self.0.request);
        let (priority, timeout_ms) = (request.priority, request.timeout_ms);
        (&job.project, &job.user, &request.name, priority, timeout_ms, shape_key(request))
    }
}

/// A request, compared by what its gang needs of the fleet.
#[derive(Debug)]
struct Shape(Arc<JobRequest>);

type ShapeKey<'a> = (
    (u32, u32, u32, Option<u32>, Option<u64>, Option<bool>, Option<super::topology::Topology>),
    &'a [String],
    &'a BTreeMap<String, String>,
    &'a [String],
    &'a [String],
    super::job::Launcher,
);

fn shape_key(request: &JobRequest) -> ShapeKey<'_> {
    (
        (
            request.nnodes,
            request.nnodes_max,
            request.gpus_per_node,
            request.cpus_milli,
            request.memory_bytes,
            request.exclusive,
            request.topology,
        ),
        &request.pools,
        &request.node_labels,
        &request.gpu_models,
        &request.exclude_nodes,
        request.launcher,
    )
}

impl Ord for Likeness {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Ord for Shape {
    fn cmp(&self, other: &Self) -> Ordering {
        shape_key(&self.0).cmp(&shape_key(&other.0))
    }
}

impl PartialOrd for Likeness {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialOrd for Shape {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Likeness {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Likeness {}
impl Eq for Shape {}
