//! I14, F21, F22: the store on a disk that fails after every I/O. Reopening gives the last
//! acknowledged state or a later one, or reports corruption; also when recovery crashes in turn.
//!
//! A workload is recorded once, I/O by I/O. What a crash after the k-th leaves is then put together
//! from the record: all of it, or what was synced and any part of the rest, torn between sectors.
//! `GANGLINE_STORE_WORKLOADS` sets the number of workloads (200), `GANGLINE_STORE_SEED` the first.

mod disk;
mod records;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use disk::{Chance, Disk, Failure, Io};
use gangline_coordinator::core::effect::Write;
use gangline_coordinator::core::job::Job;
use gangline_coordinator::core::node::Node;
use gangline_coordinator::core::projects::ProjectRecord;
use gangline_coordinator::store::{Store, StoreError};
use records::values;
use redb::Database;

/// Batches of one workload.
const BATCHES: u64 = 3;

/// What the store must hold: rows by table and key, and the number of audit entries.
#[derive(Clone, Default, PartialEq, Debug)]
struct Model {
    rows: BTreeMap<String, Write>,
    audit: u64,
}

impl Model {
    fn take(&mut self, write: &Write) {
        let (key, row) = match write {
            Write::Job(job) => (format!("job {}", job.id), Some(write)),
            Write::Node(node) => (format!("node {}", node.id), Some(write)),
            Write::Project(project) => (format!("project {}", project.name), Some(write)),
            Write::Gang(gang) => (format!("gang {}", gang.id), Some(write)),
            Write::ForgetJob { id } => (format!("job {id}"), None),
            Write::Audit(_) => {
                self.audit += 1;
                return;
            }
            other => panic!("no workload has {other:?}"),
        };
        match row {
            Some(row) => self.rows.insert(key, row.clone()),
            None => self.rows.remove(&key),
        };
    }

    fn of(store: &Store) -> Model {
        let mut model = Model::default();
        store.load().unwrap().iter().for_each(|write| model.take(write));
        let (head, broken) = store.audit_log().verify();
        assert_eq!(broken, None);
        model.audit = head.sequence;
        model
    }
}

fn write(chance: &mut Chance) -> Write {
    let number = chance.below(6);
    // Long texts make the file grow; most are short.
    let length = if chance.below(24) == 0 { 60_000 } else { 1 + chance.below(600) };
    let reason: String = (0..length).map(|_| char::from(b'a' + chance.below(26) as u8)).collect();
    let id = format!("j-{number}").parse().unwrap();
    // Few jobs: most of the time of a debug build goes into parsing their specs.
    match chance.below(16) {
        0 => Write::Job(Arc::new(Job { id, reason, ..values::job_stopping() })),
        1 | 2 => Write::ForgetJob { id },
        3..9 => {
            let id = format!("n-{number}").parse().unwrap();
            Write::Node(Arc::new(Node { id, name: reason, ..values::node_full() }))
        }
        9 => Write::Gang(Arc::new(values::gang_every_phase())),
        10..13 => {
            Write::Project(ProjectRecord { name: format!("p-{number}"), ..values::project() })
        }
        _ => Write::Audit(values::audit().entry),
    }
}

fn batch(chance: &mut Chance) -> Vec<Write> {
    (0..1 + chance.below(4)).map(|_| write(chance)).collect()
}

/// Batches that were committed one after the other, and every I/O of them.
struct Workload {
    /// The disk before the first.
    before: Vec<u8>,
    log: Vec<Io>,
    /// The states from the first to the last, and the number of I/Os at which each was acknowledged.
    states: Vec<(Model, usize)>,
}

fn open(disk: &Disk) -> Result<Store, StoreError> {
    Store::open_on(Path::new("store"), || Ok(disk.clone()), |_| Ok(()))
}

/// A disk with a store that has a short history, as a kill leaves it or closed cleanly.
fn history(chance: &mut Chance) -> Vec<u8> {
    let disk = Disk::new(Vec::new());
    let database = Database::builder().create_with_backend(disk.clone()).unwrap();
    let mut store = Store::create_on(Path::new("store"), database, values::meta()).unwrap();
    for _ in 0..chance.below(3) {
        store.commit(&batch(chance)).unwrap();
    }
    let killed = disk.bytes();
    drop(store);
    if chance.below(2) == 0 { killed } else { disk.bytes() }
}

fn workload(seed: u64) -> Workload {
    let chance = &mut Chance::new(seed);
    let before = history(chance);
    let disk = Disk::new(before.clone());
    let mut store = open(&disk).unwrap();
    let mut states = vec![(Model::of(&store), 0)];
    for _ in 0..BATCHES {
        let writes = batch(chance);
        store.commit(&writes).unwrap();
        let mut model = states.last().unwrap().0.clone();
        writes.iter().for_each(|write| model.take(write));
        states.push((model, disk.log().len()));
    }
    // The clean close is part of it.
    drop(store);
    Workload { before, log: disk.log(), states }
}

impl Workload {
    /// Whether a state may be found after `done` I/Os: 0 for the last acknowledged one, 1 for the one
    /// that was being made.
    fn place(&self, done: usize, found: &Model) -> Option<usize> {
        let newest = self.states.iter().rposition(|(_, at)| *at <= done).unwrap();
        self.states.iter().skip(newest).take(2).position(|(model, _)| model == found)
    }
}

/// What was tried, over all workloads.
#[derive(Default)]
struct Tally {
    crashes: AtomicU64,
    double_crashes: AtomicU64,
    errors: AtomicU64,
    /// A state after the acknowledged one.
    later: AtomicU64,
    reported: AtomicU64,
}

impl Tally {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Reopens, and compares with the model.
    fn check(&self, workload: &Workload, done: usize, disk: &Disk, what: &str) -> Option<Store> {
        let image = disk.bytes();
        match open(disk) {
            Ok(store) => {
                match workload.place(done, &Model::of(&store)) {
                    Some(0) => {}
                    Some(_) => Tally::add(&self.later),
                    None => panic!("{what}: another state than was committed"),
                }
                Some(store)
            }
            Err(StoreError::Refused { .. } | StoreError::Corrupt { .. }) => {
                assert!(disk.bytes() == image, "{what}: a refused store was changed");
                Tally::add(&self.reported);
                None
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

/// Every crash of one workload.
fn crash_everywhere(seed: u64, tally: &Tally) {
    let workload = workload(seed);
    let chance = &mut Chance::new(!seed);
    for done in 0..=workload.log.len() {
        // After a sync nothing is left to lose, and before it is what was there already.
        let synced = done > 0 && matches!(workload.log[done - 1], Io::Sync);
        let lossy = !synced && chance.below(3) > 0;
        let image = match lossy {
            true => disk::lossy(&workload.before, &workload.log[..done], chance),
            false => disk::whole(&workload.before, &workload.log[..done]),
        };
        let what = format!("seed {seed}, crash after I/O {done}, lossy {lossy}");
        let disk = Disk::new(image.clone());
        Tally::add(&tally.crashes);
        let Some(mut store) = tally.check(&workload, done, &disk, &what) else { continue };
        if chance.below(4) == 0 {
            // It goes on from there, and another crash right after loses nothing.
            store.commit(&[Write::Audit(values::audit().entry)]).unwrap();
            let expected = Model::of(&store);
            let again = open(&Disk::new(disk.bytes())).unwrap();
            assert_eq!(Model::of(&again), expected, "{what}: the commit after the recovery");
            continue;
        }
        let recovery = disk.log();
        if recovery.is_empty() {
            continue;
        }
        // F22: the recovery crashes, too.
        let done_again = chance.below(recovery.len() as u64 + 1) as usize;
        let part = &recovery[..done_again];
        let second = match chance.below(2) {
            0 => disk::whole(&image, part),
            _ => disk::lossy(&image, part, chance),
        };
        Tally::add(&tally.double_crashes);
        let what = format!("{what}, recovery crashed after I/O {done_again}");
        tally.check(&workload, done, &Disk::new(second), &what);
    }
}

/// The same batches on a disk that answers one I/O, or every one from there on, with an error.
fn fail_everywhere(seed: u64, tally: &Tally) {
    let whole = workload(seed);
    for at in 0..whole.log.len() {
        for failure in [Failure::Once(at), Failure::From(at)] {
            let what = format!("seed {seed}, {failure:?}");
            let chance = &mut Chance::new(seed);
            let disk = Disk::new(history(chance));
            disk.fail(failure);
            Tally::add(&tally.errors);
            if let Ok(mut store) = open(&disk) {
                for _ in 0..BATCHES {
                    match store.commit(&batch(chance)) {
                        Ok(()) => {}
                        Err(StoreError::Failed { .. }) => break,
                        Err(error) => panic!("{what}: a commit failed as {error}"),
                    }
                }
            }
            disk.fail(Failure::Never);
            // The process has ended: what it wrote on its way out is on the disk.
            tally.check(&whole, at, &Disk::new(disk.bytes()), &what);
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs `run` for seeds on two threads: as many as the smallest machine has cores.
fn for_each_seed(count: u64, run: impl Fn(u64) + Sync) {
    let first = number("GANGLINE_STORE_SEED", 1);
    let next = AtomicU64::new(first);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    run(seed);
                }
            });
        }
    });
}

#[test]
fn f21_f22_a_crash_after_any_io_loses_nothing_acknowledged() {
    let workloads = number("GANGLINE_STORE_WORKLOADS", 200);
    let tally = Tally::default();
    for_each_seed(workloads, |seed| crash_everywhere(seed, &tally));
    let Tally { crashes, double_crashes, later, reported, .. } = tally;
    let reported = reported.into_inner();
    println!(
        "{workloads} workloads: {crashes:?} crashes, {double_crashes:?} more during recovery; \
         {later:?} found a later state, {reported} were reported as corrupt"
    );
    assert!(crashes.into_inner() > 10 * workloads && double_crashes.into_inner() > workloads);
    assert!(later.into_inner() > 0, "no crash fell into a commit");
    // redb promises to survive crashes: a report would be right, but a surprise.
    assert_eq!(reported, 0);
}

#[test]
fn f19_an_error_of_any_io_ends_the_store_and_loses_nothing_acknowledged() {
    let workloads = number("GANGLINE_STORE_WORKLOADS", 200) / 10;
    let tally = Tally::default();
    for_each_seed(workloads, |seed| fail_everywhere(seed, &tally));
    let Tally { errors, later, reported, .. } = tally;
    println!(
        "{workloads} workloads: {errors:?} errors; {later:?} found a later state, {reported:?} were \
         reported as corrupt"
    );
    assert!(errors.into_inner() > 10 * workloads);
}

/// What these tests rest on: a disk that loses what it had synced is found out.
#[test]
fn a_disk_that_lies_about_a_sync_is_noticed() {
    let mut noticed = 0;
    for seed in 1..=20 {
        let workload = workload(seed);
        let [.., (before, from), (last, acknowledged)] = &*workload.states else { panic!("short") };
        let image = disk::whole(&workload.before, &workload.log[..*from]);
        let found = Model::of(&open(&Disk::new(image)).unwrap());
        assert_eq!(workload.place(*from, &found), Some(0));
        let missed = workload.place(*acknowledged, &found).is_some();
        // A batch may have changed nothing.
        assert!(!missed || before == last, "seed {seed}");
        noticed += usize::from(!missed);
    }
    assert!(noticed > 15, "{noticed}");
}
