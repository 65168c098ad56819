//! What peers send: frames of both directions and both forms, tokens, names, certificates.

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::Duration;

use gangline_common::ids::{Epoch, GangId, JobId, MemberId, MemberKey, NodeId};
use gangline_common::join_token::JoinToken;
use gangline_common::tls;
use gangline_common::wire::packed::{PackedLogChunk, Packer, Unpacker};
use gangline_common::wire::v1::{LOG_CHUNK_BYTES, LogChunk};
use gangline_coordinator::ca::Ca;

use super::{Memory, Target, Verdict, again, bytes_of, of_text, taken};
use crate::decode_all::decode_all;
use crate::goldens;

pub fn targets() -> anyhow::Result<Vec<Target>> {
    let frames = Target {
        name: "wire frames, all kinds",
        seeds: goldens::all().iter().map(goldens::Golden::wire).collect(),
        words: &[b"\xfc\xff\xff\xff\x7f", b"\xfd\0\0\0\0\0\0\0\x80", b"\xfb\xff\xff", b"\0\x01"],
        limit: 64 << 10,
        // Two lists within each other reserve a MiB each; elements are larger than their bytes.
        memory: Memory { fixed: (2 << 20) + (64 << 10), per_byte: 256 },
        feed: Box::new(|input| match decode_all(input) {
            0 => Verdict::Refused,
            _ => Verdict::Taken,
        }),
    };
    let packed = packed_logs()?;
    let token = Target {
        name: "join token",
        seeds: vec![JoinToken { pin: [7; 32], id: "k3x9".into(), secret: [9; 32] }.reveal().into()],
        words: &[b"gx1.", b"."],
        limit: 512,
        memory: SMALL,
        feed: of_text(|text| match text.parse::<JoinToken>() {
            Ok(token) => again(&token, token.reveal().parse()),
            Err(_) => Verdict::Refused,
        }),
    };
    let names = Target {
        name: "ids, epochs, marks",
        seeds: bytes_of(&["g-7f3k2:1.3:2", "g-7f3k2:1.3:head", "j-7f3k2", "1.3", "head", "7"]),
        words: &[b":", b".", b"head", b"4294967295"],
        limit: 512,
        memory: SMALL,
        feed: of_text(|text| {
            let all = [
                name::<MemberKey>(text),
                name::<GangId>(text),
                name::<JobId>(text),
                name::<NodeId>(text),
                name::<Epoch>(text),
                name::<MemberId>(text),
            ];
            let worst = all.iter().find(|one| matches!(one, Verdict::Broken(_)));
            let best = || all.iter().find(|one| **one == Verdict::Taken);
            worst.or_else(best).cloned().unwrap_or(Verdict::Refused)
        }),
    };
    let [certificate, request] = certificates()?;
    Ok(vec![frames, packed, token, names, certificate, request])
}

const SMALL: Memory = Memory { fixed: 8 << 10, per_byte: 16 };

fn name<T: FromStr + Display + PartialEq + Debug>(text: &str) -> Verdict
where
    T::Err: Debug,
{
    match text.parse::<T>() {
        Ok(name) => again(&name, name.to_string().parse()),
        Err(_) => Verdict::Refused,
    }
}

/// Keys differ from run to run, and so do these inputs.
fn certificates() -> anyhow::Result<[Target; 2]> {
    let directory = tempfile::tempdir()?;
    let ca = Ca::open(directory.path(), Duration::from_secs(3600))?;
    let node = NodeId::new("n-1")?;
    let (_, request) = tls::key_and_request()?;
    let certificate = ca.sign_agent(&request, &node)?;
    const MEMORY: Memory = Memory { fixed: 256 << 10, per_byte: 64 };
    let of_agent = Target {
        name: "certificate",
        seeds: vec![certificate],
        words: &[b"\x30\x82", b"\x04\x84\xff\xff\xff\xff", b"\x06\x03\x55"],
        limit: 8 << 10,
        memory: MEMORY,
        feed: Box::new(|input| {
            let certificate = input.to_vec().into();
            let _ = tls::key_pin(&certificate);
            let _ = tls::validity(&certificate);
            taken(&tls::agent_certificate(&certificate))
        }),
    };
    let requests = Target {
        name: "certificate request",
        seeds: vec![request],
        words: &[b"\x30\x82", b"\x04\x84\xff\xff\xff\xff", b"\x06\x03\x55"],
        limit: 8 << 10,
        memory: MEMORY,
        feed: Box::new(move |input| taken(&ca.sign_agent(input, &node))),
    };
    Ok([of_agent, requests])
}

/// What is inside a piece of a log, with any claim of its length.
fn packed_logs() -> anyhow::Result<Target> {
    let mut packer = Packer::new()?;
    let key: MemberKey = "g-a:1.1:0".parse()?;
    let piece = |bytes: Vec<u8>| LogChunk {
        key: key.clone(),
        file: "output".to_owned(),
        offset: 0,
        bytes,
        read_ms: 0,
    };
    let lines: Vec<u8> = (0..4000).flat_map(|step| format!("step:{step}\n").into_bytes()).collect();
    let mut seeds = Vec::new();
    for bytes in [vec![0; LOG_CHUNK_BYTES], lines] {
        let PackedLogChunk { length, packed, .. } =
            PackedLogChunk::from_frame(&packer.frame(piece(bytes))?)?;
        seeds.push([&length.to_le_bytes()[..], &packed].concat());
    }
    let empty = piece(Vec::new());
    Ok(Target {
        name: "packed pieces of logs",
        seeds,
        words: &[b"\x28\xb5\x2f\xfd", b"\0\0\x03\0", b"\xff\xff\xff\xff"],
        limit: 64 << 10,
        memory: Memory { fixed: LOG_CHUNK_BYTES + (16 << 10), per_byte: 4 },
        feed: Box::new(move |input| {
            let Some((length, packed)) = input.split_first_chunk::<4>() else {
                return Verdict::Refused;
            };
            let length = u32::from_le_bytes(*length);
            let LogChunk { key, file, offset, read_ms, .. } = empty.clone();
            let packed = packed.to_vec();
            let claimed = PackedLogChunk { key, file, offset, length, packed, read_ms };
            let Ok(mut unpacker) = Unpacker::new() else {
                return Verdict::Broken("no memory".to_owned());
            };
            match claimed.unpack(&mut unpacker) {
                Ok(chunk) if chunk.bytes.len() == length as usize => Verdict::Taken,
                Ok(chunk) => Verdict::Broken(format!("{} of {length} bytes", chunk.bytes.len())),
                Err(_) => Verdict::Refused,
            }
        }),
    })
}
