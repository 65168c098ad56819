//! The routes of code, by a client that is not ours.

mod fixture;

use fixture::*;
use gangline_tree::{ChunkRef, Entry, Hash, Kind, Tree, batch};
use reqwest::Method;
use serde_json::{Value, json};

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

async fn send(
    fixture: &Fixture,
    method: Method,
    path: &str,
    token: &str,
    body: Vec<u8>,
) -> (u16, Value) {
    let response = fixture.request(method, path, token).body(body).send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

fn at(tree: &Tree) -> String {
    format!("/api/v1/code/trees/{}", tree.name())
}

async fn upload(fixture: &Fixture, token: &str, tree: &Tree, chunks: Vec<u8>) {
    let (status, _) = send(fixture, Method::PUT, "/api/v1/code/chunks", token, chunks).await;
    assert_eq!(status, 200);
    let (status, _) = send(fixture, Method::PUT, &at(tree), token, tree.to_bytes()).await;
    assert_eq!(status, 201);
}

fn spec(tree: &Tree) -> String {
    json!({"name": "x", "command": ["true"], "code": {"snapshot": tree.name().to_string()}})
        .to_string()
}

#[tokio::test]
async fn code_is_uploaded_once_and_a_job_names_it() {
    let fixture = Fixture::start().await;
    let (tree, chunks) = tree(&[("train.py", "print(1)"), ("data/a.txt", "1 2 3")]);
    let (status, refused) =
        send(&fixture, Method::POST, "/api/v1/jobs", ALICE, spec(&tree).into()).await;
    assert_eq!((status, &refused["code"]), (404, &json!("E0350")), "{refused}");
    let list = tree.to_bytes();
    let missing = "/api/v1/code/missing";
    let (_, answer) = send(&fixture, Method::POST, missing, ALICE, list.clone()).await;
    assert_eq!(answer["missing"].as_array().unwrap().len(), 2);
    let (status, early) = send(&fixture, Method::PUT, &at(&tree), ALICE, list.clone()).await;
    assert_eq!((status, &early["code"]), (409, &json!("E0351")));
    upload(&fixture, ALICE, &tree, chunks.clone()).await;
    let (_, answer) = send(&fixture, Method::POST, missing, ALICE, list.clone()).await;
    assert_eq!(answer["missing"], json!([]));
    let (_, again) = send(&fixture, Method::PUT, "/api/v1/code/chunks", ALICE, chunks).await;
    assert_eq!(again, json!({"stored": 0, "known": 2}));
    let (status, view) = send(&fixture, Method::PUT, &at(&tree), ALICE, list).await;
    let expected = json!({"tree": tree.name().to_string(), "files": 2, "bytes": 13});
    assert_eq!((status, &view), (200, &expected));
    assert_eq!(fixture.get(&at(&tree), ALICE).await, expected);

    let job = fixture.submit(ALICE, &spec(&tree)).await;
    let job = fixture.get(&format!("/api/v1/jobs/{job}"), ALICE).await;
    assert_eq!(job["spec"]["code"], json!({"snapshot": tree.name().to_string()}));
}

#[tokio::test]
async fn a36_an_upload_whose_hash_lies_is_refused() {
    let fixture = Fixture::start().await;
    let (honest, chunks) = tree(&[("a.py", "print(1)")]);
    let (other, _) = tree(&[("a.py", "print(2)")]);
    upload(&fixture, ALICE, &honest, chunks).await;
    let (status, refused) =
        send(&fixture, Method::PUT, &at(&other), ALICE, honest.to_bytes()).await;
    assert_eq!((status, &refused["code"]), (422, &json!("E0352")), "{refused}");
    // Content under another's name cannot be uploaded at all: it is named by what it is.
    let (status, _) = send(&fixture, Method::PUT, &at(&other), ALICE, other.to_bytes()).await;
    assert_eq!(status, 409);
    let hostile = b"gangline tree 1\nl\0\x01l\0\x05/etc/".to_vec();
    let name = format!("/api/v1/code/trees/{}", Hash::of(&hostile));
    let (status, refused) = send(&fixture, Method::PUT, &name, ALICE, hostile).await;
    assert_eq!(status, 422, "{refused}");
    let (status, _) = send(&fixture, Method::PUT, "/api/v1/code/chunks", ALICE, vec![0; 5]).await;
    assert_eq!(status, 422);
    let (status, _) =
        send(&fixture, Method::PUT, "/api/v1/code/chunks", ALICE, vec![0; 9 << 20]).await;
    assert_eq!(status, 413);
    for name in ["blake3:00", "..%2f..%2fetc", &honest.name().hex()] {
        let (status, _) =
            send(&fixture, Method::GET, &format!("/api/v1/code/trees/{name}"), ALICE, vec![]).await;
        assert_eq!(status, 400, "{name}");
    }
}

/// BOB is of another project, CAROL is a viewer of Alice's.
#[tokio::test]
async fn a38_code_of_another_project_is_not_there() {
    let fixture = Fixture::start().await;
    let (tree, chunks) = tree(&[("a.py", "secret = 1")]);
    upload(&fixture, ALICE, &tree, chunks).await;
    let unknown = Tree::new(Vec::new()).unwrap();
    for name in [&tree, &unknown] {
        let (status, said) = send(&fixture, Method::GET, &at(name), BOB, vec![]).await;
        assert_eq!((status, &said["code"]), (404, &json!("E0350")));
        let (status, said) =
            send(&fixture, Method::POST, "/api/v1/jobs", BOB, spec(name).into()).await;
        assert_eq!((status, &said["code"]), (404, &json!("E0350")));
    }
    // That the chunks are there is not told either.
    let missing = "/api/v1/code/missing";
    let (_, answer) = send(&fixture, Method::POST, missing, BOB, tree.to_bytes()).await;
    assert_eq!(answer["missing"].as_array().unwrap().len(), 1);
    let (status, _) = send(&fixture, Method::PUT, &at(&tree), BOB, tree.to_bytes()).await;
    assert_eq!(status, 409);
    let theirs = format!("{}?project=rlhf", at(&tree));
    let (status, _) = send(&fixture, Method::GET, &theirs, BOB, vec![]).await;
    assert_eq!(status, 403);
    assert_eq!(fixture.get(&theirs, ADMIN).await["files"], 1);
    assert_eq!(fixture.get(&at(&tree), CAROL).await["files"], 1);
    let (status, _) = send(&fixture, Method::PUT, &at(&tree), CAROL, tree.to_bytes()).await;
    assert_eq!(status, 403, "a viewer uploads nothing");
}

#[tokio::test]
async fn a35_a_hostile_archive_is_refused_by_name() {
    let fixture = Fixture::start().await;
    let zip = "/api/v1/code/zip";
    let (status, said) = send(&fixture, Method::POST, zip, ALICE, b"no archive".to_vec()).await;
    assert_eq!((status, &said["code"]), (422, &json!("E0352")), "{said}");
    // One stored entry; names of one length, so that nothing else changes.
    let archive = |name: &str| -> Vec<u8> {
        let record = |sig: &[u8], before: &[u8], after: &[u8]| {
            let mut out = [sig, before, &[20, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
            out.extend_from_slice(&0u32.to_le_bytes());
            out.extend_from_slice(&[0; 8]);
            out.extend_from_slice(&(name.len() as u16).to_le_bytes());
            out.extend_from_slice(after);
            out.extend_from_slice(name.as_bytes());
            out
        };
        let local = record(b"PK\x03\x04", &[], &[0; 2]);
        let central = record(b"PK\x01\x02", &[20, 3], &[0; 16]);
        let mut out = [local.as_slice(), &central, b"PK\x05\x06\0\0\0\0\x01\0\x01\0"].concat();
        out.extend_from_slice(&(central.len() as u32).to_le_bytes());
        out.extend_from_slice(&(local.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out
    };
    let (status, view) = send(&fixture, Method::POST, zip, ALICE, archive("pkg/a.py")).await;
    assert_eq!((status, &view["files"]), (201, &json!(1)), "{view}");
    for name in ["../../a.", "/etc/a.p", "pkg/..py/../..", "a\u{1b}[2J.py"] {
        let (status, said) = send(&fixture, Method::POST, zip, ALICE, archive(name)).await;
        assert_eq!((status, &said["code"]), (422, &json!("E0352")), "{name:?}: {said}");
    }
    let unfinished = fixture.directory.path().join("code/unfinished");
    assert_eq!(std::fs::read_dir(unfinished).unwrap().count(), 0);
}
