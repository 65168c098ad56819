//! Copies of a store: what is copied comes back, a copy that is not whole is never taken, and a
//! restored store disturbs nothing that runs (F46).

mod records;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gangline_common::time::Timestamp;
use gangline_coordinator::backups::{self, Schedule};
use gangline_coordinator::core::audit::AuditEntry;
use gangline_coordinator::core::effect::Write;
use gangline_coordinator::core::job::{Job, JobState};
use gangline_coordinator::core::node::Node;
use gangline_coordinator::store::backup::{
    BackupError, Destination, Header, Reader, Summary, Writer, verify,
};
use gangline_coordinator::store::restore::{Request, RestoreError, Restored, restore};
use gangline_coordinator::store::{STORE_VERSION, Store, record};
use records::{Value, values};
use tempfile::TempDir;

const NOW: Timestamp = Timestamp { boot_ms: 5_000, wall_ms: 1_800_000_500_000 };

struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn store(&self) -> PathBuf {
        self.path("store.redb")
    }

    /// A store with every kind of record and a log.
    fn filled(&self) -> Store {
        let mut store = Store::open(&self.store(), false, "c7kq9x2m").unwrap();
        store.commit(&goldens()).unwrap();
        let entry = |number: u64| AuditEntry { wall_ms: number, ..values::audit().entry };
        store.commit(&(1..=40).map(entry).map(Write::Audit).collect::<Vec<_>>()).unwrap();
        store
    }

    fn back_up(&self, store: &Store, name: &str) -> Summary {
        let mut copy = Destination::new(&self.path(name)).unwrap();
        store.reader().back_up(1_800_000_000_000, copy.file()).unwrap();
        copy.publish().unwrap()
    }

    fn restore(&self, name: &str) -> Result<Restored, RestoreError> {
        self.restore_as(name, 0)
    }

    fn restore_as(&self, name: &str, least_era: u32) -> Result<Restored, RestoreError> {
        restore(Request {
            source: &self.path(name),
            store: &self.store(),
            era_file: &self.path("era"),
            least_era,
            now: NOW,
        })
    }

    fn reopened(&self) -> Store {
        Store::open(&self.store(), true, "other").unwrap()
    }

    fn files(&self) -> Vec<String> {
        files(self.directory.path())
    }
}

fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn goldens() -> Vec<Write> {
    let row = |value| match value {
        Value::Row(_, write) => Some(write),
        Value::Meta(..)
        | Value::Audit(_)
        | Value::Notice(_)
        | Value::Spent(_)
        | Value::Vacancy(_) => None,
    };
    records::all().into_iter().filter_map(|golden| row(golden.value)).collect()
}

fn job(number: usize, reason: &str) -> Write {
    let id = format!("j-{number:04}").parse().unwrap();
    Write::Job(Arc::new(Job { id, reason: reason.to_owned(), ..values::job_stopping() }))
}

fn is_node(write: &Write) -> bool {
    matches!(write, Write::Node(_))
}

/// A job that nobody held.
fn is_free_to_start(write: &Write) -> bool {
    matches!(write, Write::Job(job) if job.state == JobState::Pending && job.hold.is_none())
}

fn reason(error: BackupError) -> String {
    match error {
        BackupError::Damaged { reason, .. } => reason,
        other => other.to_string(),
    }
}

#[test]
fn what_is_copied_comes_back() {
    let place = Place::new();
    let store = place.filled();
    let rows = store.load().unwrap();
    let head = store.audit_log().verify().0;
    let summary = place.back_up(&store, "copy");
    assert_eq!(summary.rows, rows.len() as u64 + 40);
    assert_eq!(summary.header.rows["audit"], 40);
    assert_eq!(summary.bytes, std::fs::metadata(place.path("copy")).unwrap().len());
    assert_eq!(summary.header.era, 1);
    drop(store);
    std::fs::remove_file(place.store()).unwrap();

    let restored = place.restore("copy").unwrap();
    // The goldens are of era 3, whatever the header says.
    assert_eq!((restored.era, restored.replaced), (4, None));
    let store = place.reopened();
    assert_eq!((store.meta.era, store.meta.cluster.as_str()), (4, "c7kq9x2m"));
    // All of it, but for the nodes and what could start.
    let found = store.load().unwrap();
    assert_eq!(found.len(), rows.len());
    for write in rows.iter().filter(|write| !is_node(write) && !is_free_to_start(write)) {
        assert!(found.contains(write), "{write:?}");
    }
    let (now, broken) = store.audit_log().verify();
    assert_eq!((now.sequence, broken), (head.sequence + 1, None));
    let newest = store.audit_log().page(u64::MAX, 1).unwrap().remove(0);
    assert_eq!(newest.entry.action, "store.restore");
    assert_eq!(newest.previous, head.hash);
}

/// F46: generations are newer than what the agents hold, nothing new comes, no drain ends anything.
#[test]
fn f46_restored_nodes_wait_for_an_operator() {
    let place = Place::new();
    let store = place.filled();
    let before: Vec<Write> = store.load().unwrap().into_iter().filter(is_node).collect();
    place.back_up(&store, "copy");
    drop(store);
    let restored = place.restore("copy").unwrap();
    assert_eq!(restored.nodes, before.len());
    assert_eq!((restored.waiting, restored.running), (2, 1), "as many of each as the goldens have");
    let found = place.reopened().load().unwrap();
    assert!(!found.iter().any(is_free_to_start), "it may have run since");
    let held = found.iter().filter_map(|write| match write {
        Write::Job(job) => job.hold.as_ref().filter(|hold| hold.by == "gangline").map(|_| job),
        _ => None,
    });
    let held: Vec<&Arc<Job>> = held.collect();
    assert!(!held.is_empty());
    for job in held {
        assert!(
            job.eligible.is_none() && job.reason.contains("restored from a copy of 2027-01-15T")
        );
    }
    let nodes: Vec<&Arc<Node>> = found
        .iter()
        .filter_map(|write| match write {
            Write::Node(node) => Some(node),
            _ => None,
        })
        .collect();
    assert!(nodes.len() >= 2);
    for node in nodes {
        let Some(Write::Node(old)) = before
            .iter()
            .find(|write| matches!(write, Write::Node(before) if before.id == node.id))
        else {
            panic!("{} is new", node.id)
        };
        assert_eq!((node.generation.era, node.generation.n), (restored.era, old.generation.n));
        assert!(node.generation > old.generation);
        let cordon = node.cordon.as_ref().unwrap();
        match &old.cordon {
            Some(kept) => assert_eq!(cordon, kept),
            None => {
                assert!(cordon.why.contains("restored from a copy of 2027-01-15T"), "{cordon:?}")
            }
        }
        assert!(node.drain.as_ref().is_none_or(|drain| drain.deadline_ms.is_none()));
        assert_eq!(node.drain.is_some(), old.drain.is_some());
    }
}

#[test]
fn the_replaced_store_is_kept_and_every_restore_has_an_era_of_its_own() {
    let place = Place::new();
    let mut store = place.filled();
    place.back_up(&store, "copy");
    store.commit(&[job(1, "after the copy")]).unwrap();
    drop(store);
    let restored = place.restore("copy").unwrap();
    let kept = restored.replaced.unwrap();
    assert_eq!(kept, place.path("store.redb.replaced-1800000500"));
    let old = Store::open(&kept, true, "other").unwrap();
    assert!(old.load().unwrap().contains(&job(1, "after the copy")));
    assert!(!place.reopened().load().unwrap().contains(&job(1, "after the copy")));
    std::fs::remove_file(&kept).unwrap();

    // The same old copy again: the era of the store that it replaces counts.
    assert_eq!(place.restore("copy").unwrap().era, 5);
    std::fs::remove_file(&kept).unwrap();
    // Also when that cannot be read any more.
    std::fs::write(place.store(), b"not a store").unwrap();
    assert_eq!(place.restore("copy").unwrap().era, 6);
    assert_eq!(std::fs::read(&kept).unwrap(), b"not a store");
    assert_eq!(place.files(), ["copy", "era", "store.redb", "store.redb.replaced-1800000500"]);
    // A second restore within one second would lose the name of the kept one: it is refused.
    let error = place.restore("copy").unwrap_err();
    assert!(matches!(error, RestoreError::NotMade { .. }), "{error}");
    assert_eq!(place.reopened().meta.era, 6);
    assert_eq!(place.files(), ["copy", "era", "store.redb", "store.redb.replaced-1800000500"]);
    // All of it was lost, and somebody remembers.
    for file in ["era", "store.redb", "store.redb.replaced-1800000500"] {
        std::fs::remove_file(place.path(file)).unwrap();
    }
    assert_eq!(place.restore_as("copy", 9).unwrap().era, 9);
}

/// The way back: what an earlier restore has replaced is taken as it is.
#[test]
fn a_store_file_can_be_restored_too() {
    let place = Place::new();
    let mut store = place.filled();
    place.back_up(&store, "copy");
    store.commit(&[job(1, "after the copy")]).unwrap();
    drop(store);
    let kept = place.restore("copy").unwrap().replaced.unwrap();
    std::fs::rename(&kept, place.path("kept")).unwrap();
    let back = place.restore("kept").unwrap();
    assert_eq!(back.era, 5);
    assert!(place.reopened().load().unwrap().contains(&job(1, "after the copy")));
    let kept = back.replaced.unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(place.files(), ["copy", "era", "kept", "store.redb", &kept]);
    // But not one that somebody serves.
    let serving = Store::open(&place.path("kept"), true, "other").unwrap();
    let error = place.restore("kept").unwrap_err().to_string();
    assert!(error.contains("another process has it open"), "{error}");
    drop(serving);
    let error = place.restore("store.redb").unwrap_err().to_string();
    assert!(error.contains("it is the store itself"), "{error}");
}

#[test]
fn a_store_in_use_is_not_replaced() {
    let place = Place::new();
    let mut store = place.filled();
    place.back_up(&store, "copy");
    let error = place.restore("copy").unwrap_err();
    assert!(matches!(error, RestoreError::Serving { .. }), "{error}");
    store.commit(&[job(1, "goes on")]).unwrap();
    drop(store);
    assert_eq!(place.files(), ["copy", "store.redb"]);
    assert_eq!(place.reopened().meta.era, 1);
}

#[test]
fn a_copy_of_the_first_layout_is_migrated() {
    let place = Place::new();
    let copy = std::fs::File::create(place.path("copy")).unwrap();
    let header = Header {
        store_version: 1,
        written_by: "0.1.0".to_owned(),
        era: 7,
        cluster: "old".to_owned(),
        wall_ms: 1,
        rows: [("jobs".to_owned(), 1)].into(),
    };
    let mut writer = Writer::begin(copy, header.clone()).unwrap();
    let waiting = values::job_waiting();
    writer.row("jobs", waiting.id.as_str(), &record::encode_job(&waiting).unwrap()).unwrap();
    writer.end().unwrap();
    assert_eq!(place.restore("copy").unwrap().era, 8);
    let store = place.reopened();
    assert_eq!((store.meta.era, store.meta.cluster.as_str()), (8, "old"));
    let loaded = store.load().unwrap();
    let [Write::Job(job)] = loaded.as_slice() else { panic!("{loaded:?}") };
    assert_eq!((&job.id, &job.request, job.state), (&waiting.id, &waiting.request, waiting.state));

    // A newer one is not taken, and says who made it.
    let newer = Header { store_version: STORE_VERSION + 1, written_by: "9.9".to_owned(), ..header };
    let copy = std::fs::File::create(place.path("newer")).unwrap();
    Writer::begin(copy, newer).unwrap().end().unwrap();
    let error = place.restore("newer").unwrap_err().to_string();
    assert!(error.contains("made by gangline-coordinator 9.9 with layout 3"), "{error}");
}

/// A copy of a few records, for tests that change it byte by byte.
fn small() -> Vec<u8> {
    let place = Place::new();
    let mut store = Store::open(&place.store(), false, "c").unwrap();
    let token = Write::JoinToken(values::join_token_bound());
    store.commit(&[token, Write::Audit(values::audit().entry)]).unwrap();
    let mut bytes = Vec::new();
    store.reader().back_up(1, &mut bytes).unwrap();
    bytes
}

#[test]
fn every_changed_byte_of_a_copy_shows() {
    let good = small();
    assert_eq!(verify(&*good).unwrap().rows, 2);
    for at in 0..good.len() {
        for mask in [1, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= mask;
            assert!(verify(&*bytes).is_err(), "byte {at} changed by {mask:#x}");
        }
    }
}

#[test]
fn a_copy_that_is_cut_off_or_goes_on_shows() {
    let good = small();
    for length in 0..good.len() {
        assert_eq!(reason(verify(&good[..length]).unwrap_err()), "it is cut off", "at {length}");
    }
    let longer = [&*good, &[0]].concat();
    assert_eq!(reason(verify(&*longer).unwrap_err()), "it goes on after its end");
    let text = reason(verify(&b"some other file"[..]).unwrap_err());
    assert_eq!(text, "it is not a backup of gangline-coordinator");
}

/// Whole records that were removed, repeated or swapped have right checksums of their own.
#[test]
fn records_of_a_copy_that_were_moved_show() {
    let good = small();
    let mut parts: Vec<&[u8]> = vec![&good[..8]];
    let mut at = 8;
    while at < good.len() {
        let length = u32::from_le_bytes(*good[at..].first_chunk().unwrap()) as usize;
        parts.push(&good[at..at + 8 + length]);
        at += 8 + length;
    }
    let [magic, header, first, second, end] = *parts else { panic!("{} parts", parts.len()) };
    for changed in [
        vec![magic, header, first, end],
        vec![magic, header, end],
        vec![magic, header, first, first, second, end],
        vec![magic, header, second, first, end],
        vec![magic, header, header, first, second, end],
    ] {
        assert!(verify(&*changed.concat()).is_err());
    }
    assert!(verify(&*[magic, header, first, second, end].concat()).is_ok());
}

/// The checksums are right, the record is not one: somebody made the copy by hand.
#[test]
fn a_copy_with_a_record_that_does_not_decode_is_refused() {
    let place = Place::new();
    place.filled();
    let copy = std::fs::File::create(place.path("copy")).unwrap();
    let header = Header {
        store_version: STORE_VERSION,
        written_by: "x".to_owned(),
        era: 1,
        cluster: "c".to_owned(),
        wall_ms: 1,
        rows: [("jobs".to_owned(), 1)].into(),
    };
    let mut writer = Writer::begin(copy, header).unwrap();
    writer.row("jobs", "j-1", b"not a record").unwrap();
    writer.end().unwrap();
    let before = std::fs::read(place.store()).unwrap();
    let error = place.restore("copy").unwrap_err().to_string();
    assert!(error.contains("jobs/j-1") && error.contains("Nothing was changed"), "{error}");
    assert!(std::fs::read(place.store()).unwrap() == before);
    assert_eq!(place.files(), ["copy", "store.redb"]);
}

#[test]
fn a_copy_overwrites_nothing_and_leaves_nothing_half_done() {
    let place = Place::new();
    let store = place.filled();
    std::fs::write(place.path("taken"), b"precious").unwrap();
    let error = Destination::new(&place.path("taken")).err().unwrap().to_string();
    assert!(error.contains("taken exists; a backup never overwrites"), "{error}");
    let error = Destination::new(place.directory.path()).err().unwrap().to_string();
    assert!(error.contains("is a directory"), "{error}");
    // Somebody else takes the name while the copy is made.
    let mut copy = Destination::new(&place.path("late")).unwrap();
    store.reader().back_up(1, copy.file()).unwrap();
    std::fs::write(place.path("late"), b"precious").unwrap();
    assert!(copy.publish().is_err());
    assert_eq!(std::fs::read(place.path("late")).unwrap(), b"precious");
    // What was written is not a copy.
    let mut copy = Destination::new(&place.path("bad")).unwrap();
    std::io::Write::write_all(copy.file(), b"GLSTORE\x01").unwrap();
    assert!(copy.publish().is_err());
    assert_eq!(place.files(), ["late", "store.redb", "taken"]);
}

/// A copy is of one moment, whatever is committed while it is made.
#[test]
fn a_copy_beside_commits_is_of_one_moment() {
    let place = Place::new();
    let mut store = place.filled();
    let first = |round| [job(1, &format!("round {round}")), job(2, &format!("round {round}"))];
    store.commit(&first(0)).unwrap();
    let reader = store.reader();
    let copies = std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let copy = |_| {
                let mut bytes = Vec::new();
                reader.back_up(1, &mut bytes).unwrap();
                bytes
            };
            (0..20).map(copy).collect::<Vec<_>>()
        });
        for round in 1.. {
            store.commit(&first(round)).unwrap();
            if copying.is_finished() {
                break;
            }
        }
        copying.join().unwrap()
    });
    for bytes in copies {
        let mut reader = Reader::begin(&*bytes).unwrap();
        let mut reasons = Vec::new();
        while let Some(row) = reader.next_row().unwrap() {
            if let Ok(Write::Job(job)) = record::decode(&row.table, &row.value)
                && ["j-0001", "j-0002"].contains(&job.id.as_str())
            {
                reasons.push(job.reason.clone());
            }
        }
        assert!(reasons.len() == 2 && reasons[0] == reasons[1], "{reasons:?}");
    }
}

#[test]
fn copies_are_made_when_due_and_the_oldest_go() {
    let place = Place::new();
    let store = place.filled();
    let day = 24 * 3600 * 1000;
    let directory = place.path("backups");
    let schedule = Schedule {
        directory: directory.clone(),
        interval: Some(Duration::from_millis(day)),
        keep: 2,
    };
    let at = |ms: u64| NOW.plus_ms(ms);
    let make = |ms: u64| schedule.make_if_due(&store.reader(), at(ms)).unwrap().is_some();
    assert!(make(0));
    assert!(!make(0) && !make(day - 1));
    assert!(make(day));
    // What a process that was killed has left goes; what others put there stays.
    std::fs::write(directory.join(".store-x.backup.1.part"), b"half").unwrap();
    std::fs::write(directory.join("notes.txt"), b"mine").unwrap();
    assert!(make(2 * day));
    assert_eq!(
        files(&directory),
        ["notes.txt", "store-20270116T080820Z.backup", "store-20270117T080820Z.backup"]
    );
    // The clock was wrong and is right again: the copy of the future counts for nothing.
    assert!(make(day / 2));

    // The newest good one is found behind a damaged one.
    let [newest, older] = &*backups::list(&directory).unwrap() else { panic!("two are kept") };
    std::fs::write(newest, b"GLSTORE\x01 damaged").unwrap();
    assert_eq!(&backups::newest_good(&directory).unwrap().0, older);
    assert!(backups::newest_good(&place.path("nowhere")).is_none());

    let none = Schedule { interval: None, ..schedule.clone() };
    assert!(none.make_if_due(&store.reader(), at(9 * day)).unwrap().is_none());
    // Nothing older goes when the new one cannot be made.
    std::fs::write(place.path("file"), b"").unwrap();
    let blocked = Schedule { directory: place.path("file").join("x"), ..schedule };
    assert!(blocked.make_if_due(&store.reader(), at(0)).is_err());
}

#[test]
fn a_damaged_store_is_not_looked_into() {
    let place = Place::new();
    drop(place.filled());
    let database = redb::Database::open(place.store()).unwrap();
    let change = database.begin_write().unwrap();
    {
        let jobs: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("jobs");
        change.open_table(jobs).unwrap().insert("j-1", &b"not a record"[..]).unwrap();
    }
    change.commit().unwrap();
    drop(database);
    let error = gangline_coordinator::store::inspect(&place.store()).err().unwrap().to_string();
    assert!(error.contains("jobs/j-1 is damaged"), "{error}");
    let error = place.restore("nothing").unwrap_err().to_string();
    assert!(error.contains("nothing: No such file"), "{error}");
}
