//! The code of jobs: lists, bodies of chunks, zip archives, packs.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use gangline_coordinator::trees::Trees;
use gangline_tree::{ChunkRef, Entry, Hash, Kind, Tree, batch};

use super::{Memory, Target, Verdict, again, taken};

/// A batch of chunks, the largest chunk twice, and deflate's window.
const CHUNKS: usize = 16 << 20;
/// Inputs after which what was stored goes.
const FORGET_AFTER: u32 = 200;

pub fn targets(scratch: &Path) -> anyhow::Result<Vec<Target>> {
    let chunk = ChunkRef { hash: Hash::of(b"print(1)\n"), bytes: 9 };
    let file = |path: &str, executable, count| Entry {
        path: path.to_owned(),
        kind: Kind::File { executable, chunks: vec![chunk; count] },
    };
    let link = Kind::Symlink { target: "a.py".to_owned() };
    let link = Entry { path: "b/link".to_owned(), kind: link };
    let tree = Tree::new(vec![file("a.py", false, 1), file("b/run", true, 3), link])?;
    let lists = Target {
        name: "list of a tree",
        seeds: vec![tree.to_bytes(), Tree::new(Vec::new())?.to_bytes()],
        words: &[b"f\0\x01", b"l\0\x01", b"\xff\xff\xff\xff", b"../", b"/", b"\0\0\0\0"],
        limit: 32 << 10,
        memory: Memory { fixed: 16 << 10, per_byte: 64 },
        feed: Box::new(|input| match Tree::from_bytes(input) {
            Err(_) => Verdict::Refused,
            Ok(tree) => again(&tree, Tree::from_bytes(&tree.to_bytes())),
        }),
    };
    let mut body = Vec::new();
    for chunk in [&b"one"[..], b"two", &[7; 500]] {
        anyhow::ensure!(batch::push(&mut body, chunk), "the batch is full");
    }
    let batches = Target {
        name: "body of chunks",
        seeds: vec![body],
        words: &[b"\0\0\0\x01", b"\0\x10\0\0", b"\0\x10\0\x01", b"\xff\xff\xff\xff"],
        limit: 32 << 10,
        memory: Memory { fixed: 16 << 10, per_byte: 64 },
        feed: Box::new(|input| match batch::chunks(input) {
            Err(_) => Verdict::Refused,
            Ok(chunks) => {
                let mut body = Vec::new();
                if !chunks.iter().all(|chunk| batch::push(&mut body, chunk)) {
                    return Verdict::Broken("what came apart cannot be put together".to_owned());
                }
                again(&chunks, batch::chunks(&body))
            }
        }),
    };
    Ok(vec![lists, batches, archives(&scratch.join("archives"))?, packs(&scratch.join("packs"))?])
}

// ---------------------------------------------------------------- archives

fn archives(root: &Path) -> anyhow::Result<Target> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&[b'x'; 5000])?;
    let packed = encoder.finish()?;
    let deflated = ("pkg/data", 0o100_644, 8, packed.as_slice(), &[b'x'; 5000][..]);
    let plain = ("a.py", 0o100_755, 0, &b"print(1)\n"[..], &b"print(1)\n"[..]);
    let link = ("link", 0o120_777, 0, &b"a.py"[..], &b"a.py"[..]);
    let directory = ("pkg/", 0o040_755, 0, &b""[..], &b""[..]);
    let seeds = vec![archive(&[plain]), archive(&[directory, deflated, plain, link]), archive(&[])];
    let root = root.to_owned();
    let mut trees = Trees::open(root.clone())?;
    let mut inputs = 0;
    Ok(Target {
        name: "zip archive",
        seeds,
        words: &[
            b"PK\x01\x02",
            b"PK\x03\x04",
            b"PK\x05\x06",
            b"../",
            b"\xff\xff\xff\xff",
            b"\x08\0",
        ],
        limit: 32 << 10,
        memory: Memory { fixed: CHUNKS, per_byte: 128 },
        feed: Box::new(move |input| {
            inputs += 1;
            let mut made = || -> std::io::Result<(Trees, File)> {
                if inputs % FORGET_AFTER == 0 {
                    std::fs::remove_dir_all(&root)?;
                    trees = Trees::open(root.clone())?;
                }
                let mut file = tempfile::tempfile_in(&root)?;
                file.write_all(input)?;
                Ok((trees.clone(), file))
            };
            let (trees, file) = match made() {
                Ok(made) => made,
                Err(error) => return Verdict::Broken(error.to_string()),
            };
            match trees.import_zip("p", &file) {
                Err(_) => Verdict::Refused,
                Ok(tree) => again(&tree, Tree::from_bytes(&tree.to_bytes())),
            }
        }),
    })
}

/// Name, mode, method, packed and unpacked content.
type Zipped<'a> = (&'a str, u32, u16, &'a [u8], &'a [u8]);

fn archive(entries: &[Zipped]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    let shorts = |numbers: &[u16]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    };
    let longs = |numbers: &[u32]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    };
    for (name, mode, method, packed, unpacked) in entries {
        let sizes = longs(&[crc32fast::hash(unpacked), packed.len() as u32, unpacked.len() as u32]);
        let offset = out.len() as u32;
        let name_bytes = name.len() as u16;
        out.extend([b"PK\x03\x04", &shorts(&[20, 0, *method, 0, 0])[..], &sizes].concat());
        out.extend([&shorts(&[name_bytes, 0])[..], name.as_bytes(), packed].concat());
        let first = shorts(&[3 << 8 | 20, 20, 0, *method, 0, 0]);
        directory.extend([b"PK\x01\x02", &first[..], &sizes].concat());
        directory.extend(shorts(&[name_bytes, 0, 0, 0, 0]));
        directory.extend(longs(&[mode << 16, offset]));
        directory.extend(name.as_bytes());
    }
    let (from, bytes) = (out.len() as u32, directory.len() as u32);
    let count = entries.len() as u16;
    out.extend(directory);
    out.extend([b"PK\x05\x06", &shorts(&[0, 0, count, count])[..]].concat());
    out.extend(longs(&[bytes, from]));
    out.extend(shorts(&[0]));
    out
}

// ---------------------------------------------------------------- packs

fn packs(root: &Path) -> anyhow::Result<Target> {
    let pack = |chunks: &[&[u8]]| {
        let mut pack = b"gangline pack 1\n".to_vec();
        pack.extend((chunks.len() as u32).to_be_bytes());
        for chunk in chunks {
            pack.extend(Hash::of(chunk).0);
            pack.extend((chunk.len() as u32).to_be_bytes());
        }
        pack.extend(chunks.concat());
        pack
    };
    let project: String = "00".repeat(32);
    let directory: PathBuf = root.join("projects").join(project).join("packs");
    std::fs::create_dir_all(&directory)?;
    let root = root.to_owned();
    Ok(Target {
        name: "pack of chunks",
        seeds: vec![pack(&[b"one", b"two"]), pack(&[])],
        words: &[b"\0\0\0\x01", b"\0\x20\0\0", b"\0\x20\0\x01", b"\xff\xff\xff\xff"],
        limit: 32 << 10,
        // The table of the longest pack is set aside before it is read.
        memory: Memory { fixed: (2 << 20) * 36 + (1 << 20), per_byte: 16 },
        feed: Box::new(move |input| {
            let written = std::fs::write(directory.join("1.pack"), input);
            // A broken one is left aside; whoever needs its chunks sends them again.
            match written.map(|()| Trees::open(root.clone())) {
                Ok(Ok(trees)) => taken(&trees.permit()),
                Ok(Err(error)) | Err(error) => Verdict::Broken(error.to_string()),
            }
        }),
    })
}
