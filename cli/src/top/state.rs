//! What the screen of `top` knows and shows. Pure: keys and news go in, the next page comes out.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::Deserialize;

use crate::sparkline::mean;
use crate::terminal::clean;
use crate::view::{GpuSample, HostSample, Job, Node, NodeSeries};

/// Readings of one GPU that are kept for its chart: two minutes.
pub const TRAIL: usize = 120;
/// Longest text that nodes are searched for.
const MAX_SEARCH: usize = 64;
/// Lines that a page key moves by.
const PAGE: isize = 20;

/// What a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Enter,
    Back,
    Tab,
    Erase,
    Char(char),
    Interrupt,
}

/// What the program has to do after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Quit,
    /// Fetch the last two minutes of this node, by id.
    Load(String),
}

/// What comes from the coordinator.
#[derive(Debug)]
pub enum News {
    /// All nodes and all live jobs.
    All(Vec<Node>, Vec<Job>),
    Sample(Box<Sample>),
    /// The past of one node.
    Past(String, NodeSeries),
    /// The connection is lost, and why.
    Lost(String),
    /// It is there again.
    Connected,
    /// So many events were lost on the way.
    Dropped(Option<u64>),
}

/// The event `sample` of the stream of nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// The node's id.
    pub node: String,
    pub dropped: u64,
    pub host: HostSample,
    pub gpus: Vec<GpuSample>,
}

/// A page of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Page {
    Nodes,
    Jobs,
    /// By id.
    Node(String),
    /// Node by id, GPU by UUID.
    Gpu(String, String),
}

/// Columns that nodes and jobs are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Name,
    State,
    Busy,
    Memory,
    Temperature,
    Power,
}

const SORTS: [Sort; 6] =
    [Sort::Name, Sort::State, Sort::Busy, Sort::Memory, Sort::Temperature, Sort::Power];

impl Sort {
    pub fn word(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::State => "state",
            Sort::Busy => "GPU%",
            Sort::Memory => "memory",
            Sort::Temperature => "temperature",
            Sort::Power => "power",
        }
    }
}

/// Readings of several GPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    pub gpus: usize,
    pub busy_pct: Option<f64>,
    /// Used share of memory, 0 to 1.
    pub memory: Option<f64>,
    pub hottest_c: Option<f64>,
    pub power_w: Option<f64>,
}

impl Load {
    pub fn of<'a>(samples: impl Iterator<Item = &'a GpuSample> + Clone) -> Self {
        let sum = |values: &mut dyn Iterator<Item = f64>| values.reduce(|a, b| a + b);
        let used = sum(&mut samples.clone().filter_map(|s| Some(s.memory_used_bytes? as f64)));
        let total = sum(&mut samples.clone().filter_map(|s| Some(s.memory_total_bytes? as f64)));
        Load {
            gpus: samples.clone().count(),
            busy_pct: mean(samples.clone().filter_map(|s| s.utilization_pct)),
            memory: used.zip(total).filter(|(_, total)| *total > 0.0).map(|(u, t)| u / t),
            hottest_c: samples.clone().filter_map(|s| s.temperature_c).reduce(f64::max),
            power_w: sum(&mut samples.filter_map(|s| s.power_w)),
        }
    }
}

/// What one job uses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobRow {
    pub id: String,
    pub name: String,
    pub user: String,
    pub nodes: usize,
    pub load: Load,
}

/// The newest readings of one GPU, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trail {
    pub busy: VecDeque<Option<f64>>,
    pub memory: VecDeque<Option<f64>>,
    pub power: VecDeque<Option<f64>>,
    pub temperature: VecDeque<Option<f64>>,
}

impl Trail {
    fn push(&mut self, gpu: &GpuSample) {
        let memory = gpu.memory_used_bytes.map(|bytes| bytes as f64);
        for (trail, value) in [
            (&mut self.busy, gpu.utilization_pct),
            (&mut self.memory, memory),
            (&mut self.power, gpu.power_w),
            (&mut self.temperature, gpu.temperature_c),
        ] {
            if trail.len() >= TRAIL {
                trail.pop_front();
            }
            trail.push_back(value);
        }
    }
}

/// Everything.
#[derive(Debug)]
pub struct State {
    nodes: Vec<Node>,
    /// Where a node is in `nodes`, by id.
    places: HashMap<String, usize>,
    /// By id.
    jobs: BTreeMap<String, Job>,
    /// The last page is shown; the first is never left.
    pages: Vec<Page>,
    /// Selected line of each page.
    selected: Vec<usize>,
    pub sort: Sort,
    pub reversed: bool,
    pub pool: Option<String>,
    pub user: Option<String>,
    /// Only the nodes of this job.
    pub job: Option<String>,
    pub search: String,
    pub searching: bool,
    /// Why there is no connection.
    pub lost: Option<String>,
    /// Events that never came.
    pub missed: u64,
    /// Of the GPUs of the node whose page was opened last, by UUID.
    trails: BTreeMap<String, Trail>,
    trailed: String,
    pub help: bool,
}

impl State {
    /// `pool` and `user` limit what is shown from the beginning.
    pub fn new(pool: Option<String>, user: Option<String>) -> Self {
        State {
            nodes: Vec::new(),
            places: HashMap::new(),
            jobs: BTreeMap::new(),
            pages: vec![Page::Nodes],
            selected: vec![0],
            sort: Sort::Name,
            reversed: false,
            pool,
            user,
            job: None,
            search: String::new(),
            searching: false,
            lost: None,
            missed: 0,
            trails: BTreeMap::new(),
            trailed: String::new(),
            help: false,
        }
    }

    pub fn page(&self) -> &Page {
        self.pages.last().unwrap_or(&Page::Nodes)
    }

    pub fn selected(&self) -> usize {
        self.selected.last().copied().unwrap_or(0)
    }

    pub fn take(&mut self, news: News) {
        match news {
            News::All(nodes, jobs) => self.replace(nodes, jobs),
            News::Sample(sample) => self.sample(&sample),
            News::Past(node, series) => self.past(&node, &series),
            News::Lost(why) => self.lost = Some(clean(&why)),
            News::Connected => self.lost = None,
            News::Dropped(events) => self.missed += events.unwrap_or(1),
        }
    }

    fn replace(&mut self, mut nodes: Vec<Node>, jobs: Vec<Job>) {
        for node in &mut nodes {
            // Rates are only in samples; a list has none.
            if let Some(old) = self.places.get(&node.id).and_then(|at| self.nodes.get(*at)) {
                node.host = old.host.clone().or(node.host.take());
                for gpu in &mut node.gpus {
                    let known = old.gpus.iter().find(|known| known.uuid == gpu.uuid);
                    gpu.sample = known.and_then(|known| known.sample.clone()).or(gpu.sample.take());
                }
            }
        }
        let places = nodes.iter().enumerate().map(|(at, node)| (node.id.clone(), at));
        self.places = places.collect();
        self.nodes = nodes;
        self.jobs = jobs.into_iter().map(|job| (job.id.clone(), job)).collect();
        self.hold_selection();
    }

    fn sample(&mut self, sample: &Sample) {
        let place = self.places.get(&sample.node);
        let Some(node) = place.and_then(|at| self.nodes.get_mut(*at)) else { return };
        node.last_word_ms_ago = Some(0);
        node.host = Some(sample.host.clone());
        for gpu in &mut node.gpus {
            let Some(new) = sample.gpus.iter().find(|new| new.uuid == gpu.uuid) else {
                gpu.sample = None;
                continue;
            };
            let mut new = new.clone();
            // A constant that is in no sample of a stream.
            let old = gpu.sample.take();
            new.memory_total_bytes = new
                .memory_total_bytes
                .or(old.as_ref().and_then(|old| old.memory_total_bytes))
                .or(gpu.memory_bytes);
            new.power_limit_w = new.power_limit_w.or(old.and_then(|old| old.power_limit_w));
            if self.trailed == sample.node {
                self.trails.entry(gpu.uuid.clone()).or_default().push(&new);
            }
            gpu.sample = Some(new);
        }
    }

    fn past(&mut self, node: &str, series: &NodeSeries) {
        if self.trailed != node {
            return;
        }
        for gpu in &series.gpus {
            let of = |name: &str| {
                let values = gpu.series.get(name).map(Vec::as_slice).unwrap_or_default();
                let skipped = values.len().saturating_sub(TRAIL);
                values.iter().skip(skipped).copied().collect()
            };
            let trail = Trail {
                busy: of("utilization_pct"),
                memory: of("memory_used_bytes"),
                power: of("power_w"),
                temperature: of("temperature_c"),
            };
            self.trails.insert(gpu.uuid.clone(), trail);
        }
    }

    /// A second has passed.
    pub fn tick(&mut self) {
        for node in &mut self.nodes {
            node.last_word_ms_ago = node.last_word_ms_ago.map(|age| age + 1000);
        }
    }

    /// Every node that is there, shown or not.
    pub fn all_nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn node(&self, id: &str) -> Option<&Node> {
        self.places.get(id).and_then(|at| self.nodes.get(*at))
    }

    pub fn trail(&self, uuid: &str) -> Option<&Trail> {
        self.trails.get(uuid)
    }

    /// The jobs on a node with their users: `j-7f3k2 (alice)`.
    pub fn who(&self, node: &Node) -> String {
        let of = |job: &String| match self.jobs.get(job) {
            Some(known) if !known.user.is_empty() => format!("{job} ({})", known.user),
            _ => job.clone(),
        };
        node.jobs.iter().map(of).collect::<Vec<_>>().join(", ")
    }

    pub fn job_of(&self, id: &str) -> Option<&Job> {
        self.jobs.get(id)
    }

    /// The nodes that are shown, in their order.
    pub fn nodes(&self) -> Vec<&Node> {
        let of_user = |job: &String| {
            self.user.is_none() || self.jobs.get(job).map(|job| &job.user) == self.user.as_ref()
        };
        let shown = |node: &&Node| self.pool.is_none() || node.pool == self.pool;
        let mut nodes: Vec<&Node> = self
            .nodes
            .iter()
            .filter(shown)
            .filter(|node| self.user.is_none() || node.jobs.iter().any(of_user))
            .filter(|node| self.job.as_ref().is_none_or(|job| node.jobs.contains(job)))
            .filter(|node| {
                node.name.contains(&self.search) || self.who(node).contains(&self.search)
            })
            .collect();
        let load = |node: &Node| Load::of(node.gpus.iter().filter_map(|gpu| gpu.sample.as_ref()));
        nodes.sort_by(|a, b| {
            let order = match self.sort {
                Sort::Name => Ordering::Equal,
                Sort::State => a.state.cmp(&b.state),
                by => descending(&load(a), &load(b), by),
            };
            order.then_with(|| a.name.cmp(&b.name))
        });
        if self.reversed {
            nodes.reverse();
        }
        nodes
    }

    /// The jobs that have GPUs or nodes, in their order. Those of other projects are one line.
    pub fn job_rows(&self) -> Vec<JobRow> {
        #[derive(Default)]
        struct Uses<'a> {
            nodes: usize,
            samples: Vec<&'a GpuSample>,
            gpus: usize,
        }
        let mut uses: BTreeMap<&str, Uses> = BTreeMap::new();
        let in_pool = |node: &&Node| self.pool.is_none() || node.pool == self.pool;
        for node in self.nodes.iter().filter(in_pool) {
            for job in &node.jobs {
                uses.entry(job).or_default().nodes += 1;
            }
            for gpu in node.gpus.iter().filter(|gpu| gpu.in_use == Some(true)) {
                let of_job = uses.entry(gpu.job.as_deref().unwrap_or_default()).or_default();
                of_job.gpus += 1;
                of_job.samples.extend(&gpu.sample);
            }
        }
        let mut rows: Vec<JobRow> = uses
            .into_iter()
            .map(|(id, uses)| {
                let job = self.jobs.get(id);
                let load = Load { gpus: uses.gpus, ..Load::of(uses.samples.into_iter()) };
                JobRow {
                    id: id.to_owned(),
                    name: job.map(|job| job.name.clone()).unwrap_or_default(),
                    user: job.map(|job| job.user.clone()).unwrap_or_default(),
                    nodes: uses.nodes,
                    load,
                }
            })
            .filter(|row| self.user.as_ref().is_none_or(|user| *user == row.user))
            .filter(|row| [&row.id, &row.name, &row.user].iter().any(|t| t.contains(&self.search)))
            .collect();
        rows.sort_by(|a, b| {
            let order = match self.sort {
                Sort::Name | Sort::State => Ordering::Equal,
                by => descending(&a.load, &b.load, by),
            };
            order.then_with(|| a.id.cmp(&b.id))
        });
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Lines that can be selected on this page.
    fn lines(&self) -> usize {
        match self.page() {
            Page::Nodes => self.nodes().len(),
            Page::Jobs => self.job_rows().len(),
            Page::Node(id) => self.node(id).map_or(0, |node| node.gpus.len()),
            Page::Gpu(..) => 0,
        }
    }

    fn hold_selection(&mut self) {
        let last = self.lines().saturating_sub(1);
        if let Some(selected) = self.selected.last_mut() {
            *selected = (*selected).min(last);
        }
    }

    fn go_to(&mut self, line: isize) {
        if let Some(selected) = self.selected.last_mut() {
            *selected = usize::try_from(line.max(0)).unwrap_or(0);
        }
        self.hold_selection();
    }

    pub fn press(&mut self, key: Key) -> Action {
        if key == Key::Interrupt {
            return Action::Quit;
        }
        if self.searching {
            self.type_search(key);
            return Action::Nothing;
        }
        if std::mem::take(&mut self.help) {
            return Action::Nothing;
        }
        let here = isize::try_from(self.selected()).unwrap_or(isize::MAX - PAGE);
        match key {
            Key::Up | Key::Char('k') => self.go_to(here - 1),
            Key::Down | Key::Char('j') => self.go_to(here + 1),
            Key::PageUp => self.go_to(here - PAGE),
            Key::PageDown => self.go_to(here + PAGE),
            Key::First | Key::Char('g') => self.go_to(0),
            Key::Last | Key::Char('G') => self.go_to(isize::MAX),
            Key::Enter | Key::Char('l') => return self.enter(),
            Key::Back | Key::Char('h') => self.back(),
            Key::Tab => self.turn(),
            Key::Char('q') => return Action::Quit,
            Key::Char('s') => self.next_sort(),
            Key::Char('r') => self.reversed = !self.reversed,
            Key::Char('p') => self.next_pool(),
            Key::Char('/') => self.searching = true,
            Key::Char('?') => self.help = true,
            Key::Erase | Key::Interrupt | Key::Char(_) => {}
        }
        self.hold_selection();
        Action::Nothing
    }

    fn type_search(&mut self, key: Key) {
        match key {
            Key::Enter => self.searching = false,
            Key::Back => {
                self.searching = false;
                self.search.clear();
            }
            Key::Erase => {
                self.search.pop();
            }
            Key::Char(c) if self.search.chars().count() < MAX_SEARCH => self.search.push(c),
            _ => {}
        }
        self.hold_selection();
    }

    fn enter(&mut self) -> Action {
        let line = self.selected();
        match self.page().clone() {
            Page::Nodes => {
                let Some(id) = self.nodes().get(line).map(|node| node.id.clone()) else {
                    return Action::Nothing;
                };
                self.open(Page::Node(id.clone()));
                if self.trailed != id {
                    self.trails.clear();
                    self.trailed.clone_from(&id);
                }
                Action::Load(id)
            }
            Page::Jobs => {
                let chosen = self.job_rows().get(line).map(|row| row.id.clone());
                if let Some(id) = chosen.filter(|id| !id.is_empty()) {
                    self.job = Some(id);
                    self.turn();
                }
                Action::Nothing
            }
            Page::Node(id) => {
                let gpu = self.node(&id).and_then(|node| node.gpus.get(line));
                if let Some(uuid) = gpu.map(|gpu| gpu.uuid.clone()) {
                    self.open(Page::Gpu(id, uuid));
                }
                Action::Nothing
            }
            Page::Gpu(..) => Action::Nothing,
        }
    }

    fn open(&mut self, page: Page) {
        self.pages.push(page);
        self.selected.push(0);
    }

    /// Up one page; on the first one the filters go.
    fn back(&mut self) {
        if self.pages.len() > 1 {
            self.pages.pop();
            self.selected.pop();
        } else if self.job.take().is_none() {
            self.search.clear();
        }
    }

    fn turn(&mut self) {
        let next = match self.page() {
            Page::Nodes => Page::Jobs,
            Page::Jobs => Page::Nodes,
            Page::Node(_) | Page::Gpu(..) => return,
        };
        self.pages = vec![next];
        self.selected = vec![0];
    }

    fn next_sort(&mut self) {
        let here = SORTS.iter().position(|sort| *sort == self.sort).unwrap_or(0);
        self.sort = SORTS.get((here + 1) % SORTS.len()).copied().unwrap_or(Sort::Name);
    }

    fn next_pool(&mut self) {
        let mut pools: Vec<&String> = self.nodes.iter().filter_map(|n| n.pool.as_ref()).collect();
        pools.sort();
        pools.dedup();
        self.pool = match &self.pool {
            None => pools.first().map(|pool| (*pool).clone()),
            Some(now) => pools.iter().find(|pool| **pool > now).map(|pool| (*pool).clone()),
        };
    }
}

/// The largest first; what has none comes last.
fn descending(a: &Load, b: &Load, by: Sort) -> Ordering {
    let value = |load: &Load| match by {
        Sort::Name | Sort::State => None,
        Sort::Busy => load.busy_pct,
        Sort::Memory => load.memory,
        Sort::Temperature => load.hottest_c,
        Sort::Power => load.power_w,
    };
    let order = |load: &Load| value(load).unwrap_or(f64::NEG_INFINITY);
    order(b).total_cmp(&order(a))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(name: &str, pool: &str, job: Option<&str>, busy: &[f64]) -> Node {
        let gpu = |(index, busy): (usize, &f64)| {
            json!({
                "uuid": format!("GPU-{name}-{index}"), "index": index, "name": "H100",
                "memory_bytes": 85_899_345_920_u64, "in_use": job.is_some(), "job": job,
                "sample": {
                    "uuid": format!("GPU-{name}-{index}"), "utilization_pct": busy,
                    "memory_used_bytes": 42_949_672_960_u64, "memory_total_bytes": 85_899_345_920_u64,
                    "temperature_c": 60, "power_w": 300.0 + busy,
                },
            })
        };
        let gpus: Vec<Value> = busy.iter().enumerate().map(gpu).collect();
        let jobs: Vec<&str> = job.into_iter().collect();
        crate::view::read(&json!({
            "id": format!("n-{name}"), "name": name, "state": if job.is_some() { "busy" } else { "ready" },
            "pool": pool, "gpus": gpus, "gpus_total": busy.len(),
            "gpus_in_use": if job.is_some() { busy.len() } else { 0 }, "jobs": jobs,
            "last_word_ms_ago": 400,
        }))
        .unwrap()
    }

    fn job(id: &str, name: &str, user: &str) -> Job {
        crate::view::read(&json!({"id": id, "name": name, "user": user})).unwrap()
    }

    /// Three nodes in two pools, two jobs of two users.
    pub fn fleet() -> State {
        let mut state = State::new(None, None);
        let nodes = vec![
            node("gpu-1", "hot", Some("j-1"), &[90.0, 80.0]),
            node("gpu-2", "hot", Some("j-2"), &[20.0, 10.0]),
            node("gpu-3", "cold", None, &[0.0]),
        ];
        let jobs = vec![job("j-1", "grpo", "alice"), job("j-2", "eval", "bo")];
        state.take(News::All(nodes, jobs));
        state
    }

    fn names(state: &State) -> Vec<&str> {
        state.nodes().iter().map(|node| node.name.as_str()).collect()
    }

    fn press(state: &mut State, keys: &str) -> Action {
        keys.chars().map(|c| state.press(Key::Char(c))).last().unwrap_or(Action::Nothing)
    }

    #[test]
    fn from_the_cluster_to_a_gpu_and_back() {
        let mut state = fleet();
        state.press(Key::Down);
        assert_eq!(state.press(Key::Enter), Action::Load("n-gpu-2".to_owned()));
        state.press(Key::Last);
        assert_eq!(state.press(Key::Enter), Action::Nothing);
        let gpu = Page::Gpu("n-gpu-2".to_owned(), "GPU-gpu-2-1".to_owned());
        assert_eq!(state.page(), &gpu);
        state.press(Key::Back);
        assert_eq!((state.page(), state.selected()), (&Page::Node("n-gpu-2".to_owned()), 1));
        state.press(Key::Back);
        assert_eq!((state.page(), state.selected()), (&Page::Nodes, 1));
        state.press(Key::Back);
        assert_eq!(state.page(), &Page::Nodes);
        assert_eq!(press(&mut state, "q"), Action::Quit);
        assert_eq!(state.press(Key::Interrupt), Action::Quit);
    }

    #[test]
    fn the_selection_stays_inside() {
        let mut state = fleet();
        state.press(Key::PageDown);
        assert_eq!(state.selected(), 2);
        state.take(News::All(vec![node("gpu-1", "hot", None, &[])], Vec::new()));
        assert_eq!(state.selected(), 0);
        state.press(Key::Up);
        assert_eq!(state.selected(), 0);
        state.take(News::All(Vec::new(), Vec::new()));
        assert_eq!(state.press(Key::Enter), Action::Nothing);
    }

    #[test]
    fn nodes_are_sorted_and_filtered() {
        let mut state = fleet();
        press(&mut state, "ss");
        assert_eq!((state.sort, names(&state)), (Sort::Busy, vec!["gpu-1", "gpu-2", "gpu-3"]));
        press(&mut state, "r");
        assert_eq!(names(&state), ["gpu-3", "gpu-2", "gpu-1"]);
        press(&mut state, "p");
        assert_eq!((state.pool.as_deref(), names(&state)), (Some("cold"), vec!["gpu-3"]));
        press(&mut state, "p");
        assert_eq!(names(&state), ["gpu-2", "gpu-1"]);
        press(&mut state, "p");
        assert_eq!(state.pool, None);
        press(&mut state, "/alicq");
        assert_eq!(names(&state), [""; 0]);
        state.press(Key::Erase);
        state.press(Key::Enter);
        assert_eq!(names(&state), ["gpu-1"]);
        state.press(Key::Back);
        assert_eq!(state.nodes().len(), 3);
        let mut mine = State::new(None, Some("bo".to_owned()));
        mine.take(News::All(
            vec![node("a", "hot", Some("j-2"), &[1.0]), node("b", "hot", None, &[])],
            vec![job("j-2", "eval", "bo")],
        ));
        assert_eq!(names(&mine), ["a"]);
    }

    #[test]
    fn jobs_show_who_uses_what_and_lead_to_their_nodes() {
        let mut state = fleet();
        state.press(Key::Tab);
        let rows = state.job_rows();
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (rows[0].id.as_str(), rows[0].user.as_str(), rows[0].nodes),
            ("j-1", "alice", 1)
        );
        assert_eq!((rows[0].load.gpus, rows[0].load.busy_pct), (2, Some(85.0)));
        assert_eq!((rows[0].load.memory, rows[0].load.power_w), (Some(0.5), Some(770.0)));
        state.press(Key::Down);
        state.press(Key::Enter);
        assert_eq!((state.page(), names(&state)), (&Page::Nodes, vec!["gpu-2"]));
        state.press(Key::Back);
        assert_eq!(state.nodes().len(), 3);
    }

    #[test]
    fn samples_move_the_readings() {
        let mut state = fleet();
        state.press(Key::Enter);
        let past: NodeSeries = serde_json::from_value(json!({
            "gpus": [{"uuid": "GPU-gpu-1-0", "series": {"utilization_pct": [1, null, 3]}}],
        }))
        .unwrap();
        state.take(News::Past("n-gpu-1".to_owned(), past));
        for busy in 0..200 {
            let sample: Sample = serde_json::from_value(json!({
                "node": "n-gpu-1", "host": {"cpu_busy_pct": 7, "network_bytes_per_s": null},
                "gpus": [{"uuid": "GPU-gpu-1-0", "utilization_pct": busy, "power_w": 1.5}],
            }))
            .unwrap();
            state.take(News::Sample(Box::new(sample)));
            if busy == 0 {
                let trail = &state.trail("GPU-gpu-1-0").unwrap().busy;
                assert_eq!(*trail, [Some(1.0), None, Some(3.0), Some(0.0)]);
            }
        }
        let node = state.node("n-gpu-1").unwrap();
        let first = node.gpus[0].sample.as_ref().unwrap();
        assert_eq!((first.utilization_pct, first.power_w), (Some(199.0), Some(1.5)));
        assert_eq!(first.memory_total_bytes, Some(85_899_345_920), "kept from the list");
        assert!(node.gpus[1].sample.is_none(), "what is not told is not known");
        assert_eq!(state.trail("GPU-gpu-1-0").unwrap().busy.len(), TRAIL);
        state.tick();
        assert_eq!(state.node("n-gpu-1").unwrap().last_word_ms_ago, Some(1000));
    }

    #[test]
    fn what_is_lost_is_said_until_it_is_back() {
        let mut state = fleet();
        state.take(News::Lost("cannot reach \u{1b}[31mit".to_owned()));
        assert_eq!(state.lost.as_deref(), Some("cannot reach it"));
        state.take(News::Connected);
        state.take(News::Dropped(Some(5)));
        assert_eq!((&state.lost, state.missed), (&None, 5));
    }
}
