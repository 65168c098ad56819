//! The store on a real file: what was committed comes back, and a file that cannot be trusted is
//! refused by name and left as it was. Never an empty start, never silently another state.

mod records;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gangline_coordinator::core::audit::AuditEntry;
use gangline_coordinator::core::effect::Write;
use gangline_coordinator::core::job::Job;
use gangline_coordinator::store::{Meta, STORE_VERSION, Store, StoreError, inspect, record};
use records::{Value, values};
use redb::backends::FileBackend;
use redb::{Database, ReadableTable, StorageBackend, TableDefinition};
use tempfile::TempDir;

type Table = TableDefinition<'static, &'static str, &'static [u8]>;
const META: Table = TableDefinition::new("meta");
const JOBS: Table = TableDefinition::new("jobs");
const SECRETS: Table = TableDefinition::new("secrets");
const WEBHOOKS: Table = TableDefinition::new("webhooks");
const AUDIT: Table = TableDefinition::new("audit");

/// The header of redb's format: magic number, flags, page geometry, two commit slots.
const HEADER: usize = 320;
/// The byte of flags; its lowest bit names the slot of the newest commit.
const FLAGS: usize = 9;
const NEWEST: u8 = 1;
const PAGE: usize = 4096;

struct Place {
    // Held for its end: it removes the directory.
    _directory: TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Place {
        Place::of(tempfile::tempdir().unwrap())
    }

    fn of(directory: TempDir) -> Place {
        let path = directory.path().join("store.redb");
        Place { _directory: directory, path }
    }

    /// A file with these bytes; in memory where that can be, for the tests that make thousands.
    fn with(bytes: &[u8]) -> Place {
        let place =
            Place::of(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());
        std::fs::write(&place.path, bytes).unwrap();
        place
    }

    fn open(&self) -> Result<Store, StoreError> {
        Store::open(&self.path, true, "other")
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }

    /// The reason for which the file is not opened. It must name the file and leave it alone.
    fn refusal(&self) -> String {
        let before = self.bytes();
        let error = self.open().err().expect("a refusal");
        self.check_refusal(&error, &before)
    }

    fn check_refusal(&self, error: &StoreError, before: &[u8]) -> String {
        let (path, reason) = match error {
            StoreError::Refused { path, reason } | StoreError::Corrupt { path, reason, .. } => {
                (path, reason)
            }
            StoreError::Taken { path } | StoreError::Newer { path, .. } => {
                (path, &error.to_string())
            }
            StoreError::Failed { .. } | StoreError::Panicked => {
                panic!("an open failed as a commit: {error}")
            }
        };
        assert_eq!(path, &self.path);
        assert!(error.to_string().contains(&*self.path.to_string_lossy()), "{error}");
        assert!(self.bytes() == before, "the refused file was changed: {error}");
        assert_eq!(neighbours(&self.path), ["store.redb"]);
        reason.clone()
    }
}

/// The files in the directory of `path`.
fn neighbours(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
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

/// The same rows, each once, in any order.
fn same(loaded: &[Write], expected: &[Write]) -> bool {
    loaded.len() == expected.len() && expected.iter().all(|write| loaded.contains(write))
}

/// A store with a history: many commits, rows replaced, and a last commit that changes some.
struct Sample {
    clean: Vec<u8>,
    /// The file as a kill leaves it.
    crashed: Vec<u8>,
    rows: Vec<Write>,
    /// The rows before the last commit.
    earlier: Vec<Write>,
}

fn sample() -> Sample {
    let place = Place::new();
    let mut store = Store::open(&place.path, false, "c").unwrap();
    store.commit(&goldens()).unwrap();
    for round in 0..3 {
        for number in 0..8 {
            store.commit(&[job(number, &format!("round {round}"))]).unwrap();
        }
    }
    let earlier = store.load().unwrap();
    store.commit(&[job(3, "the newest word"), job(8, "new")]).unwrap();
    let rows = store.load().unwrap();
    let crashed = place.bytes();
    drop(store);
    Sample { clean: place.bytes(), crashed, rows, earlier }
}

#[test]
fn what_was_committed_is_loaded() {
    let place = Place::new();
    let mut store = Store::open(&place.path, false, "c7kq9x2m").unwrap();
    assert!(store.load().unwrap().is_empty());
    let mut expected = goldens();
    store.commit(&expected).unwrap();
    assert!(same(&store.load().unwrap(), &expected));

    expected.retain(|write| match write {
        Write::JoinToken(token) => token.id != "k3x9",
        other => !matches!(other, Write::Idempotency(_)),
    });
    expected.push(job(1, "new"));
    store
        .commit(&[
            job(1, "old"),
            Write::ForgetJoinToken { id: "k3x9".to_owned() },
            Write::ForgetIdempotency { user: "alice".to_owned(), key: "retry-1".to_owned() },
            job(1, "new"),
        ])
        .unwrap();
    assert!(same(&store.load().unwrap(), &expected));
    let meta = store.meta.clone();
    assert_eq!((meta.era, meta.cluster.as_str()), (1, "c7kq9x2m"));
    drop(store);

    let store = place.open().unwrap();
    assert!(same(&store.load().unwrap(), &expected));
    assert_eq!(store.meta, meta);
}

#[test]
fn a_forgotten_job_is_not_loaded() {
    let place = Place::new();
    let mut store = Store::open(&place.path, false, "c").unwrap();
    let rows = goldens();
    store.commit(&rows).unwrap();
    let forget = |write: &Write| match write {
        Write::Job(job) => Some(Write::ForgetJob { id: job.id.clone() }),
        Write::Attempt(attempt) => {
            Some(Write::ForgetAttempt { job: attempt.job.clone(), number: attempt.number })
        }
        Write::Gang(gang) => Some(Write::ForgetGang { id: gang.id.clone() }),
        _ => None,
    };
    let forgotten: Vec<Write> = rows.iter().filter_map(forget).collect();
    assert!(forgotten.len() >= 3, "the goldens have jobs, attempts and gangs");
    let expected: Vec<Write> = rows.into_iter().filter(|row| forget(row).is_none()).collect();
    store.commit(&forgotten).unwrap();
    drop(store);
    assert!(same(&place.open().unwrap().load().unwrap(), &expected));
}

#[test]
fn the_header_record_is_kept() {
    let place = Place::new();
    let mut store = Store::open(&place.path, false, "c").unwrap();
    store.meta = values::meta();
    store.write_meta().unwrap();
    drop(store);
    assert_eq!(place.open().unwrap().meta, values::meta());
}

#[test]
fn a_new_store_is_its_owners_and_has_no_unfinished_neighbour() {
    let place = Place::new();
    // What a start that was killed leaves behind is no obstacle.
    std::fs::write(place.path.with_extension("new"), b"half a store").unwrap();
    let store = Store::open(&place.path, false, "c").unwrap();
    let mode = std::fs::metadata(&place.path).unwrap().permissions().mode();
    assert_eq!(neighbours(&place.path), ["store.redb"]);
    drop(store);
    place.open().unwrap();

    let place = Place::new();
    drop(Store::open(&place.path, false, "c").unwrap());
    assert_eq!(std::fs::metadata(&place.path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(mode & 0o111, 0);
}

#[test]
fn a_missing_file_is_a_loss_when_there_was_one() {
    let place = Place::new();
    let error = place.open().err().unwrap();
    assert!(matches!(&error, StoreError::Refused { path, .. } if *path == place.path));
    assert!(error.to_string().contains("missing although this coordinator has a CA"), "{error}");
    assert!(neighbours(&place.path).is_empty());
}

#[test]
fn a_second_open_is_refused_and_the_first_goes_on() {
    let place = Place::new();
    let mut store = Store::open(&place.path, false, "c").unwrap();
    store.commit(&goldens()).unwrap();
    assert!(place.refusal().contains("another process has it open"));
    store.commit(&[job(1, "still here")]).unwrap();
    drop(store);
    assert_eq!(place.open().unwrap().load().unwrap().len(), goldens().len() + 1);
}

#[test]
fn a_file_that_is_no_store_is_refused() {
    let random: Vec<u8> =
        (0..100_000_u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    for bytes in [random.as_slice(), b"a text", &[0; 65_536]] {
        let reason = Place::with(bytes).refusal();
        assert!(reason.contains("Not a redb database"), "{reason}");
    }
}

#[test]
fn a_database_of_another_program_is_refused() {
    let place = Place::new();
    drop(Database::create(&place.path).unwrap());
    assert_eq!(place.refusal(), "it is not a store of a coordinator");
    put(&place.path, META, "other", b"x");
    assert_eq!(place.refusal(), "it has no header record");
}

/// Puts a row into a file as another program, or a bug, would.
fn put(path: &Path, table: Table, key: &str, value: &[u8]) {
    let database = Database::create(path).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(table).unwrap().insert(key, value).unwrap();
    write.commit().unwrap();
}

/// A header record.
fn header(version: u32, meta: &Meta) -> Vec<u8> {
    record::encode_meta(&values::layout(version), meta)
}

/// Made before there were secrets: there are none, and then there is one.
#[test]
fn a_store_without_a_table_of_secrets_is_read() {
    let place = Place::with(&sample().clean);
    {
        let database = Database::open(&place.path).unwrap();
        let change = database.begin_write().unwrap();
        assert!(change.delete_table(SECRETS).unwrap());
        assert!(change.delete_table(WEBHOOKS).unwrap());
        change.commit().unwrap();
    }
    let mut store = place.open().unwrap();
    assert!(store.secrets().unwrap().is_empty());
    let rows = store.load().unwrap().len();
    let secret = Arc::new(values::secret());
    store.commit(&[Write::Secret(secret.clone())]).unwrap();
    assert_eq!(store.secrets().unwrap(), [secret]);
    assert_eq!(store.load().unwrap().len(), rows + 1);
}

#[test]
fn a_store_of_another_version_is_refused() {
    let place = Place::with(&sample().clean);
    let meta = Meta { era: 7, ..values::meta() };
    put(&place.path, META, "meta", &header(0, &meta));
    let reason = place.refusal();
    assert!(reason.contains("there was never a layout 0"), "{reason}");
    // F23: a newer one names itself, the build that wrote it, and what to do.
    for version in [STORE_VERSION + 1, u32::MAX] {
        put(&place.path, META, "meta", &header(version, &meta));
        let reason = place.refusal();
        for part in [&format!("has layout {version}, written by gangline-coordinator"), "backup"] {
            assert!(reason.contains(part), "{reason}");
        }
    }
    // Also when its header record has a layout that this build has never seen.
    let mut newer = header(STORE_VERSION + 1, &meta);
    newer[0] = 9;
    put(&place.path, META, "meta", &newer);
    assert!(matches!(place.open(), Err(StoreError::Newer { found: 3, .. })));
    newer = header(STORE_VERSION, &meta);
    newer[0] = 9;
    put(&place.path, META, "meta", &newer);
    assert_eq!(place.refusal(), "record layout 9 is not known to this build");
    put(&place.path, META, "meta", &header(STORE_VERSION, &meta));
    assert_eq!(place.open().unwrap().meta, meta);
}

/// F23: brought up to this layout, with the old file beside it.
#[test]
fn a_store_of_the_first_layout_is_migrated_with_a_copy_beside_it() {
    let sample = sample();
    let place = Place::with(&sample.clean);
    put(&place.path, META, "meta", &records::unhex(records::bytes::META_V1));
    let before = place.bytes();
    let store = place.open().unwrap();
    assert_eq!(store.meta, values::meta());
    assert!(same(&store.load().unwrap(), &sample.rows));
    drop(store);
    let mut files = neighbours(&place.path);
    files.sort();
    assert_eq!(files, ["store.redb", "store.redb.layout-1"]);
    let copy = place.path.with_file_name("store.redb.layout-1");
    assert!(std::fs::read(&copy).unwrap() == before, "the copy is the old file");
    assert_eq!(inspect(&place.path).map(|i| i.layout).ok(), Some(STORE_VERSION));
    // Once only.
    std::fs::remove_file(&copy).unwrap();
    assert_eq!(place.open().unwrap().meta, values::meta());
    assert!(!copy.exists());
}

/// No copy, no migration: the file stays what the older build can read.
#[test]
fn a_store_that_cannot_be_copied_is_not_migrated() {
    let place = Place::with(&sample().clean);
    put(&place.path, META, "meta", &records::unhex(records::bytes::META_V1));
    std::fs::create_dir(place.path.with_extension("copy")).unwrap();
    let before = place.bytes();
    let error = place.open().err().unwrap().to_string();
    assert!(error.contains("no copy of it can be made"), "{error}");
    assert!(place.bytes() == before);
}

#[test]
fn a_damaged_record_is_named() {
    let place = Place::with(&sample().clean);
    let mut bytes = record::encode_job(&values::job_waiting()).unwrap();
    bytes[20] ^= 1;
    put(&place.path, JOBS, "j-1", &bytes);
    let before = place.bytes();
    let error = place.open().err().unwrap();
    let reason = place.check_refusal(&error, &before);
    assert_eq!(reason, "its checksum is wrong");
    let shown = error.to_string();
    assert!(shown.contains("jobs/j-1 is damaged") && shown.contains("backup"), "{shown}");
}

#[test]
fn a_killed_store_opens_with_everything_acknowledged() {
    let sample = sample();
    let place = Place::with(&sample.crashed);
    let mut store = place.open().unwrap();
    assert!(same(&store.load().unwrap(), &sample.rows));
    // And again, when the process is killed after the repair and one more commit.
    store.commit(&[job(9, "after the repair")]).unwrap();
    let twice = Place::with(&place.bytes());
    let mut expected = sample.rows;
    expected.push(job(9, "after the repair"));
    assert!(same(&twice.open().unwrap().load().unwrap(), &expected));
}

#[test]
fn a_truncated_store_is_refused() {
    let sample = sample();
    for image in [&sample.clean, &sample.crashed] {
        let len = image.len();
        assert!(len > 3 * PAGE);
        for cut in [0, 1, 100, HEADER, PAGE, len / 2] {
            let reason = Place::with(&image[..cut]).refusal();
            assert!(cut != 0 || reason == "the file is empty (truncated)", "{reason}");
        }
        // The last pages may be ones that nothing uses yet.
        for cut in (0..len).step_by(PAGE).skip(1).chain([len - 1]) {
            refused_or_same(&image[..cut], &sample.rows, &format!("cut to {cut}"));
        }
    }
}

/// Either a refusal, or exactly these rows. Says which.
fn refused_or_same(image: &[u8], rows: &[Write], what: &str) -> bool {
    let place = Place::with(image);
    match place.open().and_then(|store| store.load()) {
        Ok(loaded) => {
            assert!(same(&loaded, rows), "{what}: silently another state");
            false
        }
        Err(error) => {
            place.check_refusal(&error, image);
            true
        }
    }
}

/// Changes one byte after the other; the number of refusals.
fn flip(image: &[u8], rows: &[Write], changes: impl Iterator<Item = (usize, u8)>) -> usize {
    let mut refused = 0;
    for (at, mask) in changes {
        let mut image = image.to_vec();
        image[at] ^= mask;
        let what = format!("byte {at} changed by {mask:#x}");
        refused += usize::from(refused_or_same(&image, rows, &what));
    }
    refused
}

/// Changes of the header: one bit of every byte, and every bit of the flags but the one that
/// looks like something else; see the last test.
fn header_changes() -> impl Iterator<Item = (usize, u8)> {
    let every = (0..HEADER).map(|at| (at, 1 << (at % 8)));
    let flags = (0..8).map(|bit| (FLAGS, 1 << bit));
    every.filter(|(at, _)| *at != FLAGS).chain(flags.filter(|change| *change != (FLAGS, NEWEST)))
}

/// Changes of the pages that hold something, with a step that meets every offset of a page.
fn body(image: &[u8]) -> impl Iterator<Item = (usize, u8)> {
    let filled = |at: &usize| image[at / PAGE * PAGE..][..PAGE].iter().any(|byte| *byte != 0);
    (HEADER..image.len()).step_by(173).filter(filled).map(|at| (at, 0xff))
}

#[test]
fn flipped_bits_in_the_header_are_never_another_state() {
    let sample = sample();
    for image in [&sample.clean, &sample.crashed] {
        let refused = flip(image, &sample.rows, header_changes());
        // The magic number, the page size and one of the slots at least.
        assert!(refused > 128, "{refused}");
    }
}

#[test]
fn flipped_bytes_in_a_clean_store_are_never_another_state() {
    let sample = sample();
    let refused = flip(&sample.clean, &sample.rows, body(&sample.clean));
    assert!(refused > 50, "{refused}");
}

#[test]
fn flipped_bytes_in_a_killed_store_are_never_another_state() {
    let sample = sample();
    let refused = flip(&sample.crashed, &sample.rows, body(&sample.crashed));
    assert!(refused > 50, "{refused}");
}

/// After a kill, the flipped bit that names the newest commit looks exactly like a kill during
/// that commit. The state is then the one before it, whole; never a mixture.
#[test]
fn the_flipped_bit_of_the_newest_commit_gives_the_commit_before() {
    let sample = sample();
    let flipped = |image: &[u8]| {
        let mut image = image.to_vec();
        image[FLAGS] ^= NEWEST;
        Place::with(&image).open().and_then(|store| store.load())
    };
    assert!(same(&flipped(&sample.crashed).unwrap(), &sample.earlier));
    // A clean close commits once more without a change of the rows: nothing can be lost.
    let clean = flipped(&sample.clean);
    assert!(clean.is_err() || same(&clean.unwrap(), &sample.rows));
}

#[test]
fn a47_the_audit_log_survives_and_shows_an_edit() {
    let place = Place::new();
    let mut store = Store::open(&place.path, false, "test").unwrap();
    let entry = |number: u64| AuditEntry { wall_ms: number, ..values::audit().entry };
    assert_eq!(store.audit_log().verify().0.sequence, 0);
    store.commit(&(1..=2000).map(entry).map(Write::Audit).collect::<Vec<_>>()).unwrap();
    drop(store);

    let mut store = place.open().unwrap();
    assert_eq!(store.load().unwrap(), [], "the log is not loaded");
    store.commit(&(2001..=2500).map(entry).map(Write::Audit).collect::<Vec<_>>()).unwrap();
    let log = store.audit_log();
    let (head, broken) = log.verify();
    assert_eq!((head.sequence, broken), (2500, None));
    let page = log.page(1001, 3).unwrap();
    assert_eq!(page.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [1000, 999, 998]);
    assert_eq!(log.page(u64::MAX, 5000).unwrap().len(), 2500);
    assert_eq!(log.page(1, 10).unwrap(), []);
    assert_eq!(log.page(u64::MAX, 1).unwrap()[0].hash(), head.hash);
    drop((store, log));

    // Somebody changes one entry in the file, with a right checksum.
    let database = Database::open(&place.path).unwrap();
    let change = database.begin_write().unwrap();
    {
        let mut table = change.open_table(AUDIT).unwrap();
        let key = format!("{:020}", 1201);
        let mut chained = record::decode_audit(table.get(&*key).unwrap().unwrap().value()).unwrap();
        chained.entry.actor = "mallory".to_owned();
        table.insert(&*key, &*record::encode_audit(&chained).unwrap()).unwrap();
    }
    change.commit().unwrap();
    drop(database);
    let (head, broken) = place.open().unwrap().audit_log().verify();
    assert_eq!(head.sequence, 1201);
    assert!(broken.as_ref().unwrap().starts_with("entry 1202: "), "{broken:?}");
}

/// A file that counts what is read from it, in bytes.
#[derive(Debug)]
struct Counted(FileBackend, Arc<AtomicU64>);

impl StorageBackend for Counted {
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.1.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.0.read(offset, out)
    }

    fn set_len(&self, length: u64) -> std::io::Result<()> {
        self.0.set_len(length)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> std::io::Result<()> {
        self.0.close()
    }
}

/// What does not fit into its cache is read again, however much memory the machine has.
#[test]
fn a_store_holds_a_bounded_part_of_its_file() {
    const CACHE: u64 = 64 << 20;
    let place = Place::with(&[]);
    std::fs::remove_file(&place.path).unwrap();
    let mut store = Store::open(&place.path, false, "c").unwrap();
    let detail = "x".repeat(1_000_000);
    for _ in 0..12 {
        let entry = AuditEntry { detail: detail.clone(), ..values::audit().entry };
        store.commit(&vec![Write::Audit(entry); 8]).unwrap();
    }
    drop(store);
    let read = Arc::new(AtomicU64::new(0));
    let storage = || {
        let file = std::fs::File::options().read(true).write(true).open(&place.path).unwrap();
        FileBackend::new(file).map(|file| Counted(file, read.clone()))
    };
    let store = Store::open_on(&place.path, storage, |_| Ok(())).unwrap();
    let log = store.audit_log();
    assert_eq!((log.verify().0.sequence, log.verify().1), (96, None));
    // Both times from the beginning: at most the cache's size is still there.
    read.store(0, Ordering::Relaxed);
    assert_eq!(log.verify().0.sequence, 96);
    let again = read.load(Ordering::Relaxed);
    assert!(again >= 96_000_000 - CACHE, "{again} bytes were read again");
}
