//! What an agent reads: the shim's socket and files, the nursery's socket, its own ledger, identity,
//! status and configuration.

use std::path::Path;
use std::time::Duration;

use gangline_agent::config::{Config, CoordinatorAddress};
use gangline_agent::join::StoredIdentity;
use gangline_agent::ledger::{Ledger, LedgerError};
use gangline_agent::shim::nursery::{Kind, Request as Birth};
use gangline_agent::shim::protocol::{Push, Request, SPOKEN};
use gangline_agent::shim::record::{ExitRecord, Launch};
use gangline_agent::status;
use gangline_agent::supervisor::process::ProcessId;
use gangline_common::ids::{Epoch, GangId, Generation, GpuId, MemberId, MemberKey, NodeId};
use gangline_common::tls;
use gangline_common::wire::codec;
use gangline_common::wire::frame::{HEADER_LENGTH, Kind as FrameKind};
use gangline_common::wire::v1::Refusal;
use gangline_coordinator::ca::Ca;

use super::{Memory, Target, Verdict, again, bytes_of, taken};
use crate::goldens;

/// Of a buffer of at most 32 KiB, and a record of at most 64 survivors.
const SOCKET: Memory = Memory { fixed: 128 << 10, per_byte: 64 };
const JSON: Memory = Memory { fixed: 64 << 10, per_byte: 64 };
/// What is parsed as TOML is held as a tree with positions.
const TOML: Memory = Memory { fixed: 512 << 10, per_byte: 1024 };

pub fn targets(scratch: &Path) -> anyhow::Result<Vec<Target>> {
    let mut targets = vec![requests(), pushes(), launch()?, exit(), births()];
    targets.push(ledger(&scratch.join("ledger"))?);
    targets.extend(files(scratch)?);
    Ok(targets)
}

fn requests() -> Target {
    let good =
        [Request::Status, Request::Stop { grace_ms: 30_000 }, Request::Contact { boot_ms: 9 }];
    Target {
        name: "shim requests",
        seeds: good.iter().filter_map(|request| request.encode(*SPOKEN.end())).collect(),
        words: &[b"\x02\x01\0\0", b"\x02\x02\0\x08", b"\x01", b"\xff\xff"],
        limit: 512,
        memory: SOCKET,
        feed: Box::new(|input| {
            let mut buffer = input.to_vec();
            let mut verdict = Verdict::Refused;
            while let Ok(Some(request)) = Request::take(&mut buffer) {
                let Some(mut bytes) = request.encode(*SPOKEN.end()) else {
                    return Verdict::Broken(format!("{request:?} cannot be written"));
                };
                verdict = again(&Some(request), Request::take(&mut bytes));
                if let Verdict::Broken(_) = verdict {
                    return verdict;
                }
            }
            verdict
        }),
    }
}

fn pushes() -> Target {
    let id = ProcessId { pid: 4711, start_time: 987_654 };
    let good = [
        Push::Started(id),
        Push::Ended(ExitRecord::failed("no such file".to_owned())),
        Push::Unsupported { lowest: 1, highest: 2 },
    ];
    Target {
        name: "shim pushes",
        seeds: good.iter().map(Push::encode).collect(),
        words: &[b"\x02\x82\0", b"\x01", b"\"survivors\":[", b"{\"pid\":1,\"start_time\":2},"],
        limit: 40 << 10,
        memory: SOCKET,
        feed: Box::new(|input| {
            let mut buffer = input.to_vec();
            let mut verdict = Verdict::Refused;
            while let Ok(Some(push)) = Push::take(&mut buffer) {
                verdict = again(&Some(push.clone()), Push::take(&mut push.encode()));
                if let Verdict::Broken(_) = verdict {
                    return verdict;
                }
            }
            verdict
        }),
    }
}

fn launch() -> anyhow::Result<Target> {
    let env = vec![("PATH".to_owned(), "/usr/bin".to_owned())];
    let launch = Launch::new(vec!["sleep".to_owned(), "1".to_owned()], env, "/tmp".into());
    Ok(Target {
        name: "shim launch file",
        seeds: vec![launch.to_json()?],
        words: &[b"\"fence\":{", b"null", b"[[[[", b"\\u0000", b"1e999"],
        limit: 32 << 10,
        memory: JSON,
        feed: Box::new(|input| match Launch::from_json(input) {
            Err(_) => Verdict::Refused,
            // It has no form for people: it holds secrets.
            Ok(launch) => match launch.to_json().map(|bytes| Launch::from_json(&bytes)) {
                Ok(Ok(second)) if second == launch => Verdict::Taken,
                _ => Verdict::Broken("it is another one when it is written and read".to_owned()),
            },
        }),
    })
}

fn exit() -> Target {
    let signalled = br#"{"version":1,"how":{"signalled":{"signal":9}},"asked":true,"fenced":true,"swept":2,"survivors":[{"pid":7,"start_time":9}]}"#;
    Target {
        name: "shim exit file",
        seeds: vec![ExitRecord::failed("why".to_owned()).to_json(), signalled.to_vec()],
        words: &[b"{\"pid\":1,\"start_time\":2},", b"\"exited\":{\"code\":", b"-2147483649"],
        limit: 32 << 10,
        memory: JSON,
        feed: Box::new(|input| match ExitRecord::from_json(input) {
            Err(_) => Verdict::Refused,
            // More survivors than are kept are cut when it is written.
            Ok(mut record) => {
                record.survivors.truncate(gangline_agent::shim::record::MAX_SURVIVORS);
                again(&record, ExitRecord::from_json(&record.to_json()))
            }
        }),
    }
}

fn births() -> Target {
    let birth = |kind| Birth { kind, mark: "g-1:1.3:2".to_owned(), directory: "/spool/1".into() };
    Target {
        name: "nursery requests",
        seeds: [Kind::Shim, Kind::Helper, Kind::CodeHelper].map(|k| birth(k).encode()).to_vec(),
        words: &[b"\0", b"s", b"h"],
        limit: 8 << 10,
        memory: SOCKET,
        feed: Box::new(|input| match Birth::decode(input) {
            None => Verdict::Refused,
            Some(birth) => {
                again(&Some(&birth), Ok::<_, ()>(Birth::decode(&birth.encode()).as_ref()))
            }
        }),
    }
}

// ---------------------------------------------------------------- the ledger

/// One slot of the file, in bytes: the smallest.
const SLOT: usize = 64 << 10;
const ROW_HEAD: usize = 5;

/// The mutations are of the rows; the file around them is right.
fn ledger(state_dir: &Path) -> anyhow::Result<Target> {
    let gang = GangId::new("g-1")?;
    let epoch = Epoch { era: 1, n: 3 };
    let held = Generation { era: 1, n: 7 };
    let key = MemberKey { gang: gang.clone(), epoch, member: MemberId::Rank(0) };
    let gpus = vec![GpuId("GPU-1".to_owned())];
    let refused = (key, gpus, 30_000_u64, Some(Refusal::StaleEpoch { highest: epoch }));
    let mut rows = row(1, &codec::encode("row", &held)?);
    rows.extend(row(2, &codec::encode("row", &(gang, epoch, true, held))?));
    rows.extend(row(3, &codec::encode("row", &refused)?));
    let mut seeds = vec![rows];
    for golden in goldens::all() {
        if golden.kind == FrameKind::DesiredGang {
            let body = golden.wire().split_off(HEADER_LENGTH);
            seeds.push([row(4, &body), row(5, &body)].concat());
        }
    }
    let state_dir = state_dir.to_owned();
    std::fs::create_dir_all(state_dir.join("ledger"))?;
    Ok(Target {
        name: "agent's ledger, rows",
        seeds,
        words: &[
            b"\x01\0\0\0\x02",
            b"\x05\0\0\0\0",
            b"\xfd\0\0\0\0\0\0\0\x80",
            b"\xff\xff\xff\xff",
        ],
        limit: SLOT - 28,
        // The file and the content of a slot, and two lists within each other as on the wire.
        memory: Memory { fixed: (2 << 20) + 8 * SLOT, per_byte: 256 },
        feed: Box::new(move |input| {
            let path = state_dir.join("ledger/state");
            if std::fs::write(&path, file(input)).is_err() {
                return Verdict::Broken("the file cannot be written".to_owned());
            }
            // What was read is written, and what that left is written once more: rows that could not
            // have been written together are brought together by the first time.
            let Ok((ledger, first)) = Ledger::open(&state_dir) else { return Verdict::Refused };
            match ledger.write(&first.durable, &first.assignments) {
                Ok(()) => {}
                Err(LedgerError::MissingAssignment { .. }) => return Verdict::Taken,
                Err(error) => return Verdict::Broken(error.to_string()),
            }
            let written = Ledger::open(&state_dir).and_then(|(ledger, second)| {
                ledger.write(&second.durable, &second.assignments)?;
                Ok((second, Ledger::open(&state_dir)?.1))
            });
            match written {
                Ok((second, third)) => again(&second, Ok::<_, ()>(third)),
                Err(error) => Verdict::Broken(error.to_string()),
            }
        }),
    })
}

fn row(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(ROW_HEAD + body.len());
    row.push(tag);
    row.extend((body.len() as u32).to_be_bytes());
    row.extend(body);
    row
}

/// A ledger with these rows in its first slot.
fn file(rows: &[u8]) -> Vec<u8> {
    let sequence = 1_u64.to_be_bytes();
    let checked = [&sequence, &(SLOT as u64).to_be_bytes(), rows].concat();
    let checksum = crc32fast::hash(&checked).to_be_bytes();
    let length = (rows.len() as u64).to_be_bytes();
    let mut file = [b"GLEDGER2", &sequence[..], &length, &checksum, rows].concat();
    file.resize(2 * SLOT, 0);
    file
}

// ---------------------------------------------------------------- files

fn files(scratch: &Path) -> anyhow::Result<Vec<Target>> {
    let damaged = scratch.join("damaged");
    std::fs::create_dir_all(damaged.join("ledger"))?;
    let slots = Target {
        name: "agent's ledger, slots",
        seeds: vec![file(b""), file(&row(1, &codec::encode("row", &Generation { era: 1, n: 7 })?))],
        words: &[b"GLEDGER2", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\0\0\0\0\0\0\0\x01"],
        limit: 2 * SLOT,
        memory: Memory { fixed: 1 << 20, per_byte: 8 },
        feed: Box::new(move |input| match std::fs::write(damaged.join("ledger/state"), input) {
            Ok(()) => taken(&Ledger::open(&damaged)),
            Err(error) => Verdict::Broken(error.to_string()),
        }),
    };
    let path = scratch.join("agent.toml");
    let config = Target {
        name: "agent's configuration",
        seeds: bytes_of(&[include_str!("../../../../packaging/agent.toml"), "name = \"a\"\n"]),
        words: &[b"= 1e400", b"[[", b"\"\"\"", b"ports = \"", b"-65536", b"\xef\xbb\xbf"],
        limit: 16 << 10,
        memory: TOML,
        feed: Box::new(move |input| match std::fs::write(&path, input) {
            Ok(()) => taken(&Config::load(Some(&path), toml::Table::new())),
            Err(error) => Verdict::Broken(error.to_string()),
        }),
    };
    let of_status = scratch.join("status");
    std::fs::create_dir_all(&of_status)?;
    let status = Target {
        name: "agent's status file",
        seeds: bytes_of(&[
            r#"{"pid":1,"connected":true,"coordinator":"quic://a:1","node":"n-1","problem":null,"generation":"1.2","members":[]}"#,
        ]),
        words: &[b"{\"", b"null", b"1e99", b"[[["],
        limit: 16 << 10,
        memory: JSON,
        feed: Box::new(move |input| match std::fs::write(of_status.join("status.json"), input) {
            Ok(()) => taken(&status::read(&of_status, 5)),
            Err(error) => Verdict::Broken(error.to_string()),
        }),
    };
    let of_identity = scratch.join("agent");
    let good = good_identity(scratch, &of_identity)?;
    let identity = Target {
        name: "agent's identity file",
        seeds: vec![good],
        words: &[
            b"\"version\":1",
            b"{",
            b"}",
            b"\"key_pkcs8\":\"AAAA\"",
            b"\"node\":\"n-1\",",
            b"quic://a:1",
        ],
        limit: 16 << 10,
        memory: JSON,
        feed: Box::new(move |input| {
            match std::fs::write(of_identity.join("identity/identity.json"), input) {
                Ok(()) => taken(&StoredIdentity::load(&of_identity)),
                Err(error) => Verdict::Broken(error.to_string()),
            }
        }),
    };
    Ok(vec![slots, config, status, identity])
}

/// A file that an agent has written; its keys differ from run to run.
fn good_identity(scratch: &Path, state_dir: &Path) -> anyhow::Result<Vec<u8>> {
    let ca = Ca::open(&scratch.join("ca"), Duration::from_secs(3600))?;
    let node = NodeId::new("n-1")?;
    let (key_pkcs8, request) = tls::key_and_request()?;
    let certificate = ca.sign_agent(&request, &node)?;
    let stored = StoredIdentity {
        node,
        coordinator: CoordinatorAddress { host: "a".to_owned(), port: 1 },
        issued_wall_ms: 1,
        expires_wall_ms: 2,
        identity: tls::Identity { chain: vec![certificate.into()], key_pkcs8 },
        ca: ca.certificate().clone(),
    };
    stored.store(state_dir)?;
    Ok(std::fs::read(state_dir.join("identity/identity.json"))?)
}
