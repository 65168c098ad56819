//! Bytes that no honest peer sends. Tests are named after the rows of the attack table: A1 sizes,
//! A2 wrong ends, A3 length prefixes, A4 nesting, A5 values that do not exist.

mod goldens;

#[path = "hostile_wire/allocations.rs"]
mod allocations;
#[path = "../fuzz/fuzz_targets/decode_all.rs"]
mod decode_all;
#[path = "hostile_wire/generated.rs"]
mod generated;
#[path = "hostile_wire/no_such_value.rs"]
mod no_such_value;

use allocations::counted;
use decode_all::decode_all;
use gangline_common::wire::WireError;
use gangline_common::wire::frame::{Frame, HEADER_LENGTH, Kind, REGISTRY, parse_header};
use gangline_common::wire::packed::{PackedLogChunk, Packer, Unpacker};
use gangline_common::wire::request::{AgentRequest, AnswerHead, AnswerPiece};
use gangline_common::wire::tlv::{Handshake, Hello, JoinGrant, JoinRequest, Refuse, Welcome};
use gangline_common::wire::v1::*;
use goldens::{Golden, Message};
use proptest::prelude::*;

const MIB: usize = 1 << 20;

fn header(kind: Kind, length: u32) -> [u8; HEADER_LENGTH] {
    let [a, b, c, d] = length.to_be_bytes();
    [kind as u8, a, b, c, d]
}

fn decode(kind: Kind, body: &[u8]) -> Result<Message, WireError> {
    Message::from_frame(&Frame { kind, body: body.to_vec() })
}

fn body_of(golden: &Golden) -> Vec<u8> {
    golden.wire().split_off(HEADER_LENGTH)
}

/// Is a body of this kind tag, length, value?
fn is_handshake(kind: Kind) -> bool {
    (kind as u8) < 0x10
}

fn golden(name: &str) -> Golden {
    goldens::all().into_iter().find(|golden| golden.name == name).expect("a golden")
}

// ---------------------------------------------------------------- A1: sizes

#[test]
fn a1_largest_length_is_refused_before_anything_is_allocated() {
    for (kind, name, limit) in REGISTRY {
        let mut bytes = header(*kind, u32::MAX).to_vec();
        bytes.extend_from_slice(&[0; 64]);
        let expected = WireError::Limit { kind: name, length: u32::MAX.into(), limit: *limit };
        let (results, allocated) =
            counted(|| (parse_header(header(*kind, u32::MAX)), Frame::split_first(&bytes)));
        assert_eq!(results.0, Err(expected.clone()));
        assert_eq!(results.1, Err(expected.clone()));
        assert_eq!(allocated.total, 0, "{name}");
        assert!(expected.to_string().starts_with("LIMIT: "));
    }
}

#[test]
fn a1_each_kind_takes_its_limit_and_not_a_byte_more() {
    for (kind, name, limit) in REGISTRY {
        assert_eq!(parse_header(header(*kind, *limit)), Ok((*kind, *limit)));
        let length = u64::from(*limit) + 1;
        let over = WireError::Limit { kind: name, length, limit: *limit };
        assert_eq!(parse_header(header(*kind, limit + 1)), Err(over.clone()));
        assert_eq!(Frame::new(*kind, vec![0; *limit as usize + 1]), Err(over));

        let frame = Frame::new(*kind, vec![0; *limit as usize]).expect("a body at the limit");
        let wire = frame.to_bytes();
        assert_eq!(Frame::split_first(&wire), Ok(Some((frame, &[][..]))));
    }
}

/// Grows a text or a list of bytes of a message; `None` when the message has a fixed form.
fn padded(message: &Message, by: usize) -> Option<Message> {
    let mut message = message.clone();
    let text = "x".repeat(by);
    match &mut message {
        Message::JoinRequest(request) => request.csr.resize(request.csr.len() + by, 7),
        Message::JoinGrant(grant) => grant.certificate.resize(grant.certificate.len() + by, 7),
        Message::Agent(AgentMessage::Inventory(inventory)) => inventory.hostname += &text,
        Message::Agent(AgentMessage::Report(report)) => {
            let ended = report.members.iter_mut().find_map(|member| match &mut member.state {
                MemberState::Ended(ended) => Some(ended),
                _ => None,
            })?;
            ended.last_output += &text;
        }
        Message::Agent(AgentMessage::RenewRequest(request)) => {
            request.csr.resize(request.csr.len() + by, 7);
        }
        Message::Agent(AgentMessage::Health(health)) => health.blind.first_mut()?.push_str(&text),
        Message::Coordinator(CoordinatorMessage::HealthCleared(cleared)) => {
            cleared.conditions.first_mut()?.rule += &text;
        }
        Message::Coordinator(CoordinatorMessage::DesiredGang(gang)) => match &mut gang.order {
            Order::Run(assignment) => assignment.job_name += &text,
            Order::Stop { .. } => return None,
        },
        Message::Coordinator(CoordinatorMessage::LogAck(ack)) => ack.file += &text,
        Message::Coordinator(CoordinatorMessage::Renewed(renewed)) => {
            renewed.certificate.resize(renewed.certificate.len() + by, 7);
        }
        Message::Sample(sample) => sample.gpus.first_mut()?.uuid.0 += &text,
        Message::Log(chunk) => chunk.bytes.resize(chunk.bytes.len() + by, 7),
        Message::PackedLog(chunk) => chunk.packed.resize(chunk.packed.len() + by, 7),
        Message::Request(AgentRequest::RayState(request)) => *request.state.as_mut()? += &text,
        Message::Request(AgentRequest::Checkpoints { directory }) => *directory += &text,
        Message::Request(AgentRequest::WriteReport { text: report, .. }) => *report += &text,
        Message::Request(
            AgentRequest::NodeMetrics
            | AgentRequest::RayMetrics { .. }
            | AgentRequest::Stacks { .. }
            | AgentRequest::Scene { .. }
            | AgentRequest::Inject(_)
            | AgentRequest::KeepScene { .. },
        ) => return None,
        Message::AnswerHead(AnswerHead::Failed(failure)) => failure.text += &text,
        Message::AnswerPiece(piece) => piece.bytes.resize(piece.bytes.len() + by, 7),
        Message::CodeRequest(request) => request.tree += &text,
        Message::CodePart(CodePart::Bytes { bytes }) => bytes.resize(bytes.len() + by, 7),
        Message::CodePart(CodePart::Refused { reason }) => *reason += &text,
        Message::Hello(_)
        | Message::Welcome(_)
        | Message::Refuse(_)
        | Message::AnswerHead(AnswerHead::Body { .. })
        | Message::Agent(AgentMessage::Heartbeat(_))
        | Message::Coordinator(
            CoordinatorMessage::DesiredHeader(_) | CoordinatorMessage::HeartbeatAck(_),
        ) => return None,
    }
    Some(message)
}

/// The limit of a frame is the only limit on a long text or a long list of bytes.
#[test]
fn a1_a_message_that_fills_its_frame_still_decodes() {
    let mut filled = Vec::new();
    for golden in goldens::all() {
        let limit = golden.kind.limit() as usize;
        // A first try far from the limit finds out what the growing length prefixes add.
        let Some(near) = padded(&golden.message, limit - 2 * body_of(&golden).len()) else {
            continue;
        };
        let near_length = near.to_frame().expect("it is below the limit").body.len();
        let full = padded(&near, limit - near_length).expect("it grows");
        let frame = full.to_frame().expect("it is at the limit");
        assert_eq!(frame.body.len(), limit, "{}", golden.name);
        let decoded = Message::from_frame(&frame);
        assert!(decoded.as_ref() == Ok(&full), "{}: {:?}", golden.name, decoded.err());
        let over = padded(&full, 1).expect("it grows").to_frame();
        assert!(matches!(over, Err(WireError::Limit { .. })), "{}", golden.name);
        filled.push(golden.kind);
    }
    filled.dedup();
    assert_eq!(filled.len(), 18, "kinds with something that grows");
}

// ---------------------------------------------------------------- A2: wrong ends

#[test]
fn a2_length_zero_is_refused() {
    for (kind, name, _) in REGISTRY {
        let empty = WireError::Empty { kind: name };
        assert_eq!(parse_header(header(*kind, 0)), Err(empty.clone()));
        assert_eq!(Frame::split_first(&header(*kind, 0)), Err(empty.clone()));
        assert_eq!(Frame::new(*kind, Vec::new()), Err(empty));
        assert!(decode(*kind, &[]).is_err(), "{name}");
    }
}

#[test]
fn a2_unknown_kind_is_refused() {
    let known: Vec<u8> = REGISTRY.iter().map(|(kind, ..)| *kind as u8).collect();
    for byte in (0..=u8::MAX).filter(|byte| !known.contains(byte)) {
        assert_eq!(parse_header([byte, 0, 0, 0, 1]), Err(WireError::UnknownKind(byte)));
        assert_eq!(Frame::split_first(&[byte, 0, 0, 0, 1, 0]), Err(WireError::UnknownKind(byte)));
    }
}

#[test]
fn a2_truncated_frame_waits_for_more() {
    for golden in goldens::all() {
        let wire = golden.wire();
        for length in 0..wire.len() {
            assert_eq!(Frame::split_first(&wire[..length]), Ok(None), "{} {length}", golden.name);
        }
    }
}

#[test]
fn a2_truncated_body_is_an_error() {
    for golden in goldens::all() {
        let body = body_of(&golden);
        for length in 0..body.len() {
            let result = decode(golden.kind, &body[..length]);
            assert!(result.is_err(), "{} cut to {length}", golden.name);
        }
    }
}

#[test]
fn a2_trailing_bytes_are_an_error() {
    for golden in goldens::all() {
        for extra in [1, 5, 200] {
            let body = [body_of(&golden), vec![0; extra]].concat();
            match decode(golden.kind, &body) {
                Err(WireError::Trailing { kind, extra: reported }) => {
                    assert_eq!((kind, reported), (golden.kind.name(), extra));
                }
                // Zeros after a handshake are fields with tag 0 and no value, except a rest.
                Err(WireError::Handshake(reason)) => {
                    assert!(is_handshake(golden.kind));
                    assert_eq!(reason, "a field is cut off");
                }
                other => panic!("{} + {extra}: {other:?}", golden.name),
            }
        }
    }
}

#[test]
fn a2_bytes_after_a_frame_are_the_next_frame() {
    let wires: Vec<Vec<u8>> = goldens::all().iter().map(Golden::wire).collect();
    let stream = wires.concat();
    let mut rest = stream.as_slice();
    for golden in goldens::all() {
        let (frame, after) = Frame::split_first(rest).expect("a frame").expect("a whole one");
        assert_eq!(Message::from_frame(&frame).as_ref(), Ok(&golden.message));
        rest = after;
    }
    assert!(rest.is_empty());
}

#[test]
fn a2_a_frame_of_the_other_direction_is_refused() {
    fn kinds<T>(decode: impl Fn(&Frame) -> Result<T, WireError>) -> Vec<Kind> {
        let mut accepted = Vec::new();
        for golden in goldens::all() {
            let frame = Frame { kind: golden.kind, body: body_of(&golden) };
            match decode(&frame) {
                Ok(_) => accepted.push(golden.kind),
                Err(error) => assert_eq!(error, WireError::Unexpected(golden.kind.name())),
            }
        }
        accepted.dedup();
        accepted
    }
    assert_eq!(kinds(Hello::from_frame), [Kind::Hello]);
    assert_eq!(kinds(Welcome::from_frame), [Kind::Welcome]);
    assert_eq!(kinds(Refuse::from_frame), [Kind::Refuse]);
    assert_eq!(kinds(JoinRequest::from_frame), [Kind::JoinRequest]);
    assert_eq!(kinds(JoinGrant::from_frame), [Kind::JoinGrant]);
    let of_agents =
        [Kind::Inventory, Kind::Report, Kind::Heartbeat, Kind::RenewRequest, Kind::Health];
    assert_eq!(kinds(AgentMessage::from_frame), of_agents);
    let of_the_coordinator = [
        Kind::DesiredHeader,
        Kind::DesiredGang,
        Kind::HeartbeatAck,
        Kind::LogAck,
        Kind::Renewed,
        Kind::HealthCleared,
    ];
    assert_eq!(kinds(CoordinatorMessage::from_frame), of_the_coordinator);
    assert_eq!(kinds(NodeSample::from_frame), [Kind::Sample]);
    assert_eq!(kinds(LogChunk::from_frame), [Kind::LogChunk]);
    assert_eq!(kinds(PackedLogChunk::from_frame), [Kind::PackedLogChunk]);
    assert_eq!(kinds(AgentRequest::from_frame), [Kind::Request]);
    assert_eq!(kinds(AnswerHead::from_frame), [Kind::AnswerHead]);
    assert_eq!(kinds(AnswerPiece::from_frame), [Kind::AnswerPiece]);
    assert_eq!(kinds(CodeRequest::from_frame), [Kind::CodeRequest]);
    assert_eq!(kinds(CodePart::from_frame), [Kind::CodePart]);
}

// ---------------------------------------------------------------- A3: length prefixes

/// 2^63 as the codec writes it.
const HUGE: [u8; 9] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0x80];

/// A list reserves at most this before its first element is decoded, whatever its prefix says.
const RESERVED_BY_A_LIST: usize = MIB;
/// The deepest list: entrypoints of a gang of a report, arguments of an entrypoint of a gang.
const LISTS_DEEP: usize = 2;

#[test]
fn a3_huge_prefix_of_a_text_is_refused_without_allocation() {
    let texts: [(Kind, Vec<u8>); 6] = [
        (Kind::Inventory, HUGE.to_vec()),
        (Kind::DesiredGang, HUGE.to_vec()),
        (Kind::LogAck, HUGE.to_vec()),
        // wall_ms, dropped, five absent readings, one GPU, its UUID
        (Kind::Sample, [&[0, 0, 0, 0, 0, 0, 0, 1], &HUGE[..]].concat()),
        (Kind::Request, [&[0], &HUGE[..]].concat()),
        (Kind::AnswerHead, [&[1, 0], &HUGE[..]].concat()),
    ];
    for (kind, body) in texts {
        let (result, allocated) = counted(|| decode(kind, &body));
        assert!(matches!(result, Err(WireError::Malformed { .. })), "{kind:?}: {result:?}");
        assert!(allocated.total < 4096, "{kind:?}: {allocated:?}");
    }
}

#[test]
fn a3_huge_prefix_of_bytes_is_refused_without_allocation() {
    let chunk = body_of(&golden("LOG_CHUNK"));
    let at = chunk.len() - 19;
    let packed = body_of(&golden("PACKED_LOG_CHUNK"));
    let packed_at = packed.len() - 28;
    let bytes: [(Kind, Vec<u8>); 6] = [
        (Kind::RenewRequest, HUGE.to_vec()),
        (Kind::AnswerPiece, HUGE.to_vec()),
        (Kind::Renewed, [&[1, 0x30], &HUGE[..]].concat()),
        (Kind::LogChunk, [&chunk[..at], &HUGE].concat()),
        (Kind::PackedLogChunk, [&packed[..packed_at], &HUGE].concat()),
        (Kind::CodePart, [&[0], &HUGE[..]].concat()),
    ];
    assert_eq!(chunk[at], 9, "the prefix of the chunk's bytes");
    assert_eq!(packed[packed_at], 18, "the prefix of the packed bytes");
    for (kind, body) in bytes {
        let (result, allocated) = counted(|| decode(kind, &body));
        assert!(matches!(result, Err(WireError::Malformed { .. })), "{kind:?}: {result:?}");
        assert!(allocated.total < 4096, "{kind:?}: {allocated:?}");
    }
}

/// The number is put over every byte of every golden, and so over every length prefix.
#[test]
fn a3_huge_prefix_anywhere_is_bounded() {
    for golden in goldens::all() {
        let body = body_of(&golden);
        for at in 0..body.len() {
            let hostile = [&body[..at], &HUGE, &body[at + 1..]].concat();
            let (result, allocated) = counted(|| decode(golden.kind, &hostile));
            let bound = LISTS_DEEP * RESERVED_BY_A_LIST + 64 * 1024;
            assert!(allocated.peak < bound, "{} at {at}: {allocated:?} {result:?}", golden.name);
        }
    }
}

#[test]
fn a3_handshake_lengths_are_not_trusted() {
    for golden in goldens::all().iter().filter(|golden| is_handshake(golden.kind)) {
        let mut body = body_of(golden);
        body[2..6].copy_from_slice(&u32::MAX.to_be_bytes());
        let (result, allocated) = counted(|| decode(golden.kind, &body));
        assert_eq!(result, Err(WireError::Handshake("a field is cut off")));
        assert!(allocated.total < 4096, "{}: {allocated:?}", golden.name);
    }
    let fields = |count| [[0, 9, 0, 0, 0, 0]].repeat(count).concat();
    assert_eq!(decode(Kind::Hello, &fields(65)), Err(WireError::Handshake("more than 64 fields")));
    assert_eq!(
        decode(Kind::Hello, &fields(64)),
        Err(WireError::Handshake("a required field is missing"))
    );
    let long = Refuse { code: 1, text: "x".repeat(1025) };
    assert_eq!(
        Refuse::from_body(&long.to_body()),
        Err(WireError::Handshake("a text is over 1024 bytes"))
    );
}

/// The smallest elements make the largest message in memory: two bytes for a whole entrypoint.
#[test]
fn a3_the_densest_report_is_bounded_in_memory() {
    let element = [0, 0];
    let limit = Kind::Report.limit() as usize;
    let before = [0, 0, 0, 1, 1, b'g', 1, 1, 0];
    let mut most = 0;
    for count in [1_000, 50_000, 100_000, 150_000, 200_000, (limit - 14) / 2] {
        let prefix = [&[0xfc][..], &(count as u32).to_le_bytes()].concat();
        let body = [&before[..], &prefix, &element.repeat(count)].concat();
        assert!(body.len() <= limit);
        let (result, allocated) = counted(|| decode(Kind::Report, &body).map(drop));
        if count == 1_000 {
            assert_eq!(result, Ok(()), "the form of the body is right");
        }
        most = most.max(allocated.peak);
    }
    assert!(most < 64 * MIB, "{most} bytes for one report");
}

// ---------------------------------------------------------------- A4: nesting

/// No type of the wire contains itself, so no body can nest deeper than the types do. Every kind
/// is given a mebibyte of each byte that could open a level, on a stack too small for recursion.
#[test]
fn a4_nesting_bombs_neither_panic_nor_overflow() {
    let bombs = std::thread::Builder::new().stack_size(256 << 10).spawn(|| {
        let mut refused = 0;
        for byte in [0x00, 0x01, 0x02, 0x03, 0x04, 0x30, 0x7f, 0xfa, 0xfb, 0xfc, 0xfd, 0xff] {
            let body = vec![byte; MIB];
            for (kind, name, _) in REGISTRY {
                assert!(decode(*kind, &body).is_err(), "{name} of {byte:#04x}");
                refused += 1;
            }
        }
        refused
    });
    let refused = bombs.expect("a thread").join().expect("no panic");
    assert_eq!(refused, 12 * REGISTRY.len());
}

// ---------------------------------------------------------------- any bytes

/// A small deterministic generator (splitmix64): the corpus is the same in every run.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

const NUMBERS: [&[u8]; 8] = [
    &[0],
    &[1],
    &[0xff],
    &[0xfb, 0xff, 0xff],
    &[0xfc, 0, 0, 0x10, 0],
    &[0xfc, 0xff, 0xff, 0xff, 0xff],
    &HUGE,
    &[0xfe, 0, 0],
];

/// Changes `bytes` in one to four places.
fn mutate(seeded: &mut Seeded, mut bytes: Vec<u8>, other: &[u8]) -> Vec<u8> {
    for _ in 0..=seeded.below(4) {
        let at = seeded.below(bytes.len());
        let to = at + seeded.below(bytes.len() - at);
        match seeded.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << seeded.below(8),
            1 if !bytes.is_empty() => bytes[at] = seeded.next() as u8,
            2 => drop(bytes.drain(at..to)),
            3 => {
                let part = bytes[at..to].to_vec();
                drop(bytes.splice(at..at, part));
            }
            4 => {
                let number = NUMBERS[seeded.below(NUMBERS.len())];
                drop(bytes.splice(at..bytes.len().min(at + 1), number.iter().copied()));
            }
            _ => {
                let from = seeded.below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes
}

/// The fuzz target without a fuzzer: 20,000 inputs, every second one with the right header.
#[test]
fn mutated_goldens_never_panic() {
    let goldens = goldens::all();
    let mut seeded = Seeded(0x6761_6e67);
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..20_000 {
        let golden = &goldens[seeded.below(goldens.len())];
        let other = goldens[seeded.below(goldens.len())].wire();
        let input = if round % 2 == 0 {
            mutate(&mut seeded, golden.wire(), &other)
        } else {
            let body = mutate(&mut seeded, body_of(golden), &other);
            [&header(golden.kind, body.len() as u32)[..], &body].concat()
        };
        match decode_all(&input) {
            0 => refused += 1,
            _ => accepted += 1,
        }
    }
    // Both ways through the decoders were taken, so the inputs are neither noise nor harmless.
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

fn round_trip(message: &Message) -> Result<(), TestCaseError> {
    let frame = message.to_frame().expect("generated messages are below the limits");
    let wire = frame.to_bytes();
    let (split, rest) = Frame::split_first(&wire).expect("a frame").expect("a whole one");
    prop_assert!(rest.is_empty());
    prop_assert_eq!(&split, &frame);
    let decoded = Message::from_frame(&split);
    prop_assert_eq!(decoded.as_ref(), Ok(message));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        decode_all(&bytes);
    }

    #[test]
    fn arbitrary_bodies_never_panic(
        row in 0..REGISTRY.len(),
        body in proptest::collection::vec(prop_oneof![0u8..4, any::<u8>()], 1..256),
    ) {
        let (kind, ..) = REGISTRY[row];
        decode_all(&Frame { kind, body }.to_bytes());
    }

    #[test]
    fn arbitrary_headers_never_panic(header in any::<[u8; HEADER_LENGTH]>()) {
        let parsed = parse_header(header);
        if let Ok((kind, length)) = parsed {
            prop_assert!((1..=kind.limit()).contains(&length));
        }
        prop_assert_eq!(Frame::split_first(&header).is_ok(), parsed.is_ok());
    }

    #[test]
    fn agent_messages_round_trip(message in generated::agent_message()) {
        round_trip(&Message::Agent(message))?;
    }

    #[test]
    fn coordinator_messages_round_trip(message in generated::coordinator_message()) {
        round_trip(&Message::Coordinator(message))?;
    }

    #[test]
    fn samples_round_trip(sample in generated::sample()) {
        round_trip(&Message::Sample(sample))?;
    }

    #[test]
    fn log_chunks_round_trip(chunk in generated::log_chunk()) {
        round_trip(&Message::Log(chunk))?;
    }

    #[test]
    fn packed_logs_round_trip(chunk in generated::log_chunk(), times in 1_usize..500) {
        let bytes = chunk.bytes.repeat(times);
        prop_assume!(bytes.len() <= LOG_CHUNK_BYTES);
        let chunk = LogChunk { bytes, ..chunk };
        let frame = Packer::new().unwrap().frame(chunk.clone()).unwrap();
        let came = match frame.kind {
            Kind::LogChunk => LogChunk::from_frame(&frame).unwrap(),
            _ => {
                let packed = PackedLogChunk::from_frame(&frame).unwrap();
                round_trip(&Message::PackedLog(packed.clone()))?;
                packed.unpack(&mut Unpacker::new().unwrap()).unwrap()
            }
        };
        prop_assert_eq!(came, chunk);
    }

    #[test]
    fn requests_round_trip(request in generated::request()) {
        round_trip(&Message::Request(request))?;
    }

    #[test]
    fn answers_round_trip(head in generated::answer_head(), piece in generated::answer_piece()) {
        round_trip(&Message::AnswerHead(head))?;
        round_trip(&Message::AnswerPiece(piece))?;
    }

    #[test]
    fn code_round_trips(request in generated::code_request(), part in generated::code_part()) {
        round_trip(&Message::CodeRequest(request))?;
        round_trip(&Message::CodePart(part))?;
    }
}
