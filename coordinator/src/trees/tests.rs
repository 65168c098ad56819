//! The store against liars, and archives of every kind that must not be taken.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use gangline_tree::{Entry, Kind};

use super::*;

fn open(directory: &tempfile::TempDir) -> Trees {
    Trees::open(directory.path().join("code")).unwrap()
}

/// A tree of small files, and the body that uploads their chunks.
fn tree(files: &[(&str, &str)]) -> (Tree, Vec<u8>) {
    let mut body = Vec::new();
    let entry = |(path, text): &(&str, &str)| {
        assert!(batch::push(&mut body, text.as_bytes()));
        let chunk = ChunkRef { hash: Hash::of(text.as_bytes()), bytes: text.len() as u32 };
        let kind = Kind::File { executable: false, chunks: vec![chunk] };
        Entry { path: (*path).to_owned(), kind }
    };
    let entries = files.iter().map(entry).collect();
    (Tree::new(entries).unwrap(), body)
}

#[test]
fn what_was_stored_is_there_after_a_restart_and_only_in_its_project() {
    let directory = tempfile::tempdir().unwrap();
    let trees = open(&directory);
    let (tree, body) = tree(&[("a.py", "print(1)"), ("b.py", "print(2)"), ("c.py", "print(1)")]);
    let list = tree.to_bytes();
    assert_eq!(trees.missing("rlhf", &tree).len(), 2);
    let early = trees.add_tree("rlhf", tree.name(), &list).unwrap_err();
    assert!(matches!(early, TreesError::Missing(2)), "{early}");
    assert_eq!(trees.add_batch("rlhf", &body).unwrap(), Added { stored: 2, known: 1 });
    assert_eq!(trees.add_batch("rlhf", &body).unwrap(), Added { stored: 0, known: 3 });
    assert!(trees.add_tree("rlhf", tree.name(), &list).unwrap().1);
    assert!(!trees.add_tree("rlhf", tree.name(), &list).unwrap().1);
    // What one project holds is of no use to another, and not to be seen there (A38).
    assert_eq!(trees.missing("vision", &tree).len(), 2);
    assert!(!trees.has("vision", tree.name()));
    std::fs::write(trees.unfinished().unwrap(), "cut off").unwrap();

    let again = open(&directory);
    assert_eq!(again.list("rlhf", tree.name()).unwrap(), Some(list.clone()));
    assert_eq!(again.list("vision", tree.name()).unwrap(), None);
    for chunk in tree.distinct_chunks() {
        let bytes = again.chunk("rlhf", &chunk).unwrap();
        assert_eq!(Hash::of(&bytes), chunk.hash);
        assert!(matches!(again.chunk("vision", &chunk), Err(TreesError::Missing(1))));
    }
    assert_eq!(again.missing("rlhf", &tree), []);
    let unfinished = directory.path().join("code/unfinished");
    assert_eq!(std::fs::read_dir(unfinished).unwrap().count(), 0);
}

#[test]
fn a36_every_hash_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let trees = open(&directory);
    let (honest, body) = tree(&[("a.py", "print(1)")]);
    let (other, _) = tree(&[("a.py", "print(2)")]);
    trees.add_batch("rlhf", &body).unwrap();
    let lie = trees.add_tree("rlhf", other.name(), &honest.to_bytes()).unwrap_err();
    assert!(matches!(lie, TreesError::Lies { .. }), "{lie}");
    // A chunk is what its content hashes to, whatever it was sent for.
    assert_eq!(trees.missing("rlhf", &other).len(), 1);
    let chunk = honest.distinct_chunks()[0];
    let longer = Kind::File { executable: false, chunks: vec![ChunkRef { bytes: 9, ..chunk }] };
    let longer = Tree::new(vec![Entry { path: "a".to_owned(), kind: longer }]).unwrap();
    let lie = trees.add_tree("rlhf", longer.name(), &longer.to_bytes()).unwrap_err();
    assert!(matches!(lie, TreesError::Size(_)), "{lie}");
    let garbage = b"not a list".to_vec();
    let refused = trees.add_tree("rlhf", Hash::of(&garbage), &garbage).unwrap_err();
    assert!(matches!(refused, TreesError::Tree(_)), "{refused}");
}

#[test]
fn damage_on_disk_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let trees = open(&directory);
    let (tree, body) = tree(&[("a.py", "print(1)"), ("b.py", "print(2)")]);
    trees.add_batch("rlhf", &body).unwrap();
    let (_, project) = trees.directory("rlhf");
    let packs = entries(&project.join("packs")).unwrap();
    let [(_, pack)] = packs.as_slice() else { panic!("{packs:?}") };
    let mut bytes = std::fs::read(pack).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(pack, &bytes).unwrap();
    let [good, bad] = tree.distinct_chunks()[..] else { panic!("two chunks") };
    assert!(trees.chunk("rlhf", &good).is_ok());
    assert!(matches!(trees.chunk("rlhf", &bad), Err(TreesError::Damaged(_))));
    // A pack that is cut off is left aside; its chunks are asked for again.
    bytes.pop();
    std::fs::write(pack, &bytes).unwrap();
    assert_eq!(open(&directory).missing("rlhf", &tree).len(), 2);
}

#[test]
fn uploads_are_few() {
    let directory = tempfile::tempdir().unwrap();
    let trees = open(&directory);
    let permits: Vec<_> = (0..MAX_UPLOADS).map(|_| trees.permit().unwrap()).collect();
    assert!(matches!(trees.permit(), Err(TreesError::Busy)));
    drop(permits);
    assert!(trees.permit().is_ok());
}

// ---------------------------------------------------------------- archives

/// An entry of an archive, with everything that can be a lie in a field of its own.
#[derive(Clone)]
struct Zipped {
    name: Vec<u8>,
    local_name: Option<Vec<u8>>,
    mode: u32,
    flags: u16,
    method: u16,
    packed: Vec<u8>,
    crc: u32,
    unpacked: u32,
    offset: Option<u32>,
}

fn stored(name: &str, mode: u32, content: &[u8]) -> Zipped {
    Zipped {
        name: name.as_bytes().to_vec(),
        local_name: None,
        mode,
        flags: 0,
        method: 0,
        packed: content.to_vec(),
        crc: crc32fast::hash(content),
        unpacked: content.len() as u32,
        offset: None,
    }
}

fn plain(name: &str) -> Zipped {
    stored(name, 0o100_644, b"print(1)\n")
}

fn deflated(name: &str, content: &[u8]) -> Zipped {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content).unwrap();
    let packed = encoder.finish().unwrap();
    Zipped { method: 8, packed, ..stored(name, 0o100_644, content) }
}

fn archive(entries: &[Zipped]) -> Vec<u8> {
    fn u16s(out: &mut Vec<u8>, numbers: &[u16]) {
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    }
    fn u32s(out: &mut Vec<u8>, numbers: &[u32]) {
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    }
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let offset = entry.offset.unwrap_or(out.len() as u32);
        let sizes = [entry.crc, entry.packed.len() as u32, entry.unpacked];
        let name = entry.local_name.as_ref().unwrap_or(&entry.name);
        out.extend_from_slice(b"PK\x03\x04");
        u16s(&mut out, &[20, entry.flags, entry.method, 0, 0]);
        u32s(&mut out, &sizes);
        u16s(&mut out, &[name.len() as u16, 0]);
        out.extend_from_slice(name);
        out.extend_from_slice(&entry.packed);
        directory.extend_from_slice(b"PK\x01\x02");
        u16s(&mut directory, &[3 << 8 | 20, 20, entry.flags, entry.method, 0, 0]);
        u32s(&mut directory, &sizes);
        u16s(&mut directory, &[entry.name.len() as u16, 0, 0, 0, 0]);
        u32s(&mut directory, &[entry.mode << 16, offset]);
        directory.extend_from_slice(&entry.name);
    }
    let (from, bytes) = (out.len() as u32, directory.len() as u32);
    out.extend_from_slice(&directory);
    out.extend_from_slice(b"PK\x05\x06");
    u16s(&mut out, &[0, 0, entries.len() as u16, entries.len() as u16]);
    u32s(&mut out, &[bytes, from]);
    u16s(&mut out, &[0]);
    out
}

fn import(trees: &Trees, bytes: &[u8]) -> Result<Tree, TreesError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    trees.import_zip("rlhf", &file)
}

#[test]
fn an_archive_becomes_a_tree() {
    let directory = tempfile::tempdir().unwrap();
    let trees = open(&directory);
    let long: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.wrapping_mul(n).to_le_bytes()).collect();
    let entries = [
        stored("pkg/", 0o040_755, b""),
        deflated("pkg/data.bin", &long),
        deflated("pkg/empty", b""),
        stored("run.sh", 0o100_755, b"#!/bin/sh\n"),
        stored("latest", 0o120_777, b"pkg/data.bin"),
        // A program that knows no modes.
        stored("a.py", 0, b"print(1)\n"),
    ];
    let tree = import(&trees, &archive(&entries)).unwrap();
    let paths: Vec<_> = tree.entries().iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["a.py", "latest", "pkg/data.bin", "pkg/empty", "run.sh"]);
    let executable = |entry: &Entry| matches!(entry.kind, Kind::File { executable: true, .. });
    assert_eq!(tree.entries().iter().filter(|entry| executable(entry)).count(), 1);
    let link = Kind::Symlink { target: "pkg/data.bin".to_owned() };
    assert_eq!(tree.entries()[1].kind, link);
    let Kind::File { chunks, .. } = &tree.entries()[2].kind else { panic!("a file") };
    let read = |chunk| trees.chunk("rlhf", chunk).unwrap();
    assert_eq!(chunks.iter().flat_map(read).collect::<Vec<u8>>(), long);
    assert!(trees.has("rlhf", tree.name()));
    // The same archive again is the same tree.
    assert_eq!(import(&trees, &archive(&entries)).unwrap().name(), tree.name());
}

#[test]
fn a35_hostile_archives_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let trees = open(&directory);
    let target = |target: &str| stored("l", 0o120_777, target.as_bytes());
    let lie = |change: fn(&mut Zipped)| {
        let mut entry = deflated("a.py", b"print(1)\n");
        change(&mut entry);
        vec![entry]
    };
    // Holds the whole record of another entry as its content.
    let around = stored("a", 0o100_644, &archive(&[plain("b")])[..40]);
    let cases: Vec<(&str, Vec<Zipped>)> = vec![
        ("leads out", vec![plain("../x")]),
        ("leads out", vec![plain("a/../../x")]),
        ("is absolute", vec![plain("/etc/passwd")]),
        ("separator", vec![plain("..\\x")]),
        ("control character", vec![plain("a\nb")]),
        ("no path", vec![plain("")]),
        ("leads out of the tree", vec![stored("../", 0o040_755, b""), plain("a")]),
        ("plain relative path", vec![target("/etc/passwd")]),
        ("leads out", vec![target("../x")]),
        ("too long", vec![target(&"x".repeat(5000))]),
        ("below something", vec![target("d"), plain("l/x")]),
        ("below something", vec![plain("a"), plain("a/b")]),
        ("there twice", vec![plain("a"), plain("a")]),
        ("there twice", vec![plain("a"), stored("a/", 0o040_755, b"")]),
        ("setuid", vec![stored("a", 0o104_755, b"x")]),
        ("setuid", vec![stored("a", 0o102_755, b"x")]),
        ("no file", vec![stored("dev", 0o020_644, b"")]),
        ("no file", vec![stored("disk", 0o060_644, b"")]),
        ("no file", vec![stored("pipe", 0o010_644, b"")]),
        ("no file", vec![stored("a/", 0o100_644, b"")]),
        ("directory with content", vec![stored("a/", 0o040_755, b"x")]),
        ("encrypted", lie(|entry| entry.flags = 1)),
        ("not read", lie(|entry| entry.method = 14)),
        ("not UTF-8", lie(|entry| entry.name = b"\xff".to_vec())),
        ("something else", lie(|entry| entry.local_name = Some(b"b.py".to_vec()))),
        ("not what the archive says", lie(|entry| entry.crc ^= 1)),
        ("not what the archive says", lie(|entry| entry.unpacked += 1)),
        ("not what the archive says", lie(|entry| entry.unpacked -= 1)),
        ("does not unpack", lie(|entry| entry.packed = vec![0xff; 20])),
        ("outside of the archive", lie(|entry| entry.offset = Some(1 << 30))),
        ("64-bit form", lie(|entry| entry.unpacked = u32::MAX)),
        ("unpacks to", lie(|entry| entry.unpacked = 3 << 30)),
        ("share their content", vec![around, Zipped { offset: Some(31), ..plain("b") }]),
    ];
    for (expected, entries) in cases {
        let shown = String::from_utf8_lossy(&entries[0].name).into_owned();
        let error = import(&trees, &archive(&entries)).unwrap_err();
        assert!(matches!(error, TreesError::Zip(_)), "{shown}: {error}");
        assert!(error.to_string().contains(expected), "{shown}: {error}");
    }
    assert!(std::fs::read_dir(directory.path()).unwrap().count() == 1, "nothing outside");
}

#[test]
fn a35_bombs_and_cut_archives_are_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let trees = open(&directory);
    // 128 MiB of zeros in about 128 KiB, honestly declared.
    let bomb = archive(&[deflated("zeros", &vec![0; 128 << 20])]);
    assert!(bomb.len() < 256 << 10);
    let error = import(&trees, &bomb).unwrap_err();
    assert!(matches!(error, TreesError::Zip(ZipProblem::Bomb { .. })), "{error}");
    // The same, declared as little: it is unpacked no further than that.
    let mut small = deflated("zeros", &vec![0; 8 << 20]);
    small.unpacked = 10;
    let error = import(&trees, &archive(&[small])).unwrap_err();
    assert!(error.to_string().contains("not what the archive says"), "{error}");

    let many: Vec<Zipped> = (0..60_001).map(|n| stored(&n.to_string(), 0, b"")).collect();
    let error = import(&trees, &archive(&many)).unwrap_err();
    assert!(matches!(error, TreesError::Zip(ZipProblem::TooManyEntries)), "{error}");

    let good = archive(&[plain("a"), plain("b")]);
    for end in 0..good.len() {
        let error = import(&trees, &good[..end]).unwrap_err();
        assert!(matches!(error, TreesError::Zip(_)), "cut at {end}: {error}");
    }
    // Any changed byte is refused or changes nothing but names and content.
    for at in 0..good.len() {
        let mut changed = good.clone();
        changed[at] ^= 0x55;
        if let Err(error) = import(&trees, &changed) {
            assert!(matches!(error, TreesError::Zip(_)), "changed at {at}: {error}");
        }
    }
    let mut behind = good.clone();
    behind.push(0);
    assert!(import(&trees, &behind).is_err(), "something behind its end");
    for foreign in [&b""[..], b"PK", b"\x1f\x8b\x08 a tar would go here", &[0; 70_000]] {
        let error = import(&trees, foreign).unwrap_err();
        assert!(matches!(error, TreesError::Zip(ZipProblem::NotZip(_))), "{error}");
    }
    import(&trees, &good).unwrap();
}
