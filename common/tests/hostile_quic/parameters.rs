//! Transport parameters (RFC 9000, 18) as a client may send them, and in every way as it may not.

use crate::attacker::SOURCE;
use crate::packet::put_varint;
use crate::random::Random;

const ORIGINAL_DESTINATION: u64 = 0x00;
const STATELESS_RESET_TOKEN: u64 = 0x02;
const MAX_UDP_PAYLOAD_SIZE: u64 = 0x03;
const MAX_STREAMS_BIDI: u64 = 0x08;
const MAX_STREAMS_UNI: u64 = 0x09;
const ACK_DELAY_EXPONENT: u64 = 0x0a;
const MAX_ACK_DELAY: u64 = 0x0b;
const DISABLE_ACTIVE_MIGRATION: u64 = 0x0c;
const PREFERRED_ADDRESS: u64 = 0x0d;
const ACTIVE_CONNECTION_ID_LIMIT: u64 = 0x0e;
/// The only one that every client must send: without it, and with another value, no handshake.
const INITIAL_SOURCE: u64 = 0x0f;
const RETRY_SOURCE: u64 = 0x10;
/// RFC 9221.
const MAX_DATAGRAM_FRAME_SIZE: u64 = 0x20;
/// RFC 9287.
const GREASE_QUIC_BIT: u64 = 0x2ab2;
/// The ACK frequency draft.
const MIN_ACK_DELAY: u64 = 0xff04_de1b;
/// Nobody's: of the form 31 N + 27 (18.1).
const RESERVED: u64 = 31 * 1000 + 27;

const LARGEST: u64 = (1 << 62) - 1;

type Parameter = (u64, Vec<u8>);

fn number(id: u64, value: u64) -> Parameter {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, value);
    (id, bytes)
}

/// Appends a parameter whose length field says `length`.
fn put(out: &mut Vec<u8>, (id, value): &Parameter, length: u64) {
    put_varint(out, *id);
    put_varint(out, length);
    out.extend_from_slice(value);
}

fn encode(parameters: &[Parameter]) -> Vec<u8> {
    let mut out = Vec::new();
    for parameter in parameters {
        put(&mut out, parameter, parameter.1.len() as u64);
    }
    out
}

/// What an ordinary client says. The source id comes last: whatever is cut off breaks it.
fn ordinary() -> Vec<Parameter> {
    vec![
        number(0x01, 30_000),
        number(MAX_UDP_PAYLOAD_SIZE, 1472),
        number(0x04, 1 << 20),
        number(0x05, 1 << 16),
        number(0x06, 1 << 16),
        number(0x07, 1 << 16),
        number(MAX_STREAMS_BIDI, 16),
        number(MAX_STREAMS_UNI, 16),
        number(ACK_DELAY_EXPONENT, 3),
        number(MAX_ACK_DELAY, 25),
        (DISABLE_ACTIVE_MIGRATION, Vec::new()),
        number(ACTIVE_CONNECTION_ID_LIMIT, 4),
        number(MAX_DATAGRAM_FRAME_SIZE, 1200),
        (INITIAL_SOURCE, SOURCE.to_vec()),
    ]
}

pub fn ordinary_client() -> Vec<u8> {
    encode(&ordinary())
}

/// The ordinary parameters, with these in place of those with the same id, at the end.
fn with(parameters: &[Parameter]) -> Vec<u8> {
    let mut list = ordinary();
    list.retain(|(id, _)| parameters.iter().all(|(other, _)| id != other));
    list.extend_from_slice(parameters);
    encode(&list)
}

/// Parameters that a server must take, however odd.
pub fn well_formed() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("ordinary", ordinary_client()),
        ("the least", encode(&[(INITIAL_SOURCE, SOURCE.to_vec())])),
        ("one that nobody knows", with(&[(RESERVED, vec![7; 40])])),
        ("the largest windows", with(&[number(0x01, LARGEST), number(0x04, LARGEST)])),
        ("the largest counts", with(&[number(MAX_STREAMS_BIDI, 1 << 60), number(0x07, LARGEST)])),
        ("a greased bit", with(&[(GREASE_QUIC_BIT, Vec::new())])),
    ]
}

/// Parameters that no server may take, each with a name.
pub fn malformed(random: &mut Random) -> Vec<(String, Vec<u8>)> {
    let mut all = cut();
    all.extend(doubled());
    all.extend(lying_lengths());
    all.extend(without_a_value());
    all.extend(out_of_range());
    all.extend(of_servers());
    all.extend(wrong_sources());
    all.extend(noise(random));
    all
}

fn cut() -> Vec<(String, Vec<u8>)> {
    let whole = encode(&ordinary());
    let mut all: Vec<_> = (0..whole.len())
        .map(|length| (format!("cut to {length} bytes"), whole[..length].to_vec()))
        .collect();
    // One more parameter that ends within its id, its length or its value.
    let tails: [&[u8]; 9] = [
        &[0x01],
        &[0x40],
        &[0x80, 0, 0],
        &[0xc0, 0, 0, 0, 0, 0, 0],
        &[0x20, 0x40],
        &[0x20, 0x80, 0, 0],
        &[0x20, 0x01],
        &[0x1b, 0x02, 0],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    ];
    let least = encode(&[(INITIAL_SOURCE, SOURCE.to_vec())]);
    all.extend(tails.map(|tail| (format!("ends with {tail:02x?}"), [&least, tail].concat())));
    all
}

fn doubled() -> Vec<(String, Vec<u8>)> {
    let whole = encode(&ordinary());
    ordinary()
        .into_iter()
        .map(|again| (format!("{:#x} twice", again.0), [whole.clone(), encode(&[again])].concat()))
        .collect()
}

fn lying_lengths() -> Vec<(String, Vec<u8>)> {
    let list = ordinary();
    let whole = encode(&list).len() as u64;
    let mut all = Vec::new();
    for (at, parameter) in list.iter().enumerate() {
        let length = parameter.1.len() as u64;
        let lies = [length + 1, length + whole, 0x3fff, 0x3fff_ffff, LARGEST];
        for lie in lies.into_iter().chain(length.checked_sub(1)) {
            let mut bytes = encode(&list[..at]);
            put(&mut bytes, parameter, lie);
            bytes.extend(encode(&list[at + 1..]));
            all.push((format!("{:#x} of {length} bytes says {lie}", parameter.0), bytes));
        }
    }
    all
}

/// A parameter of no length at the very end: whoever reads its value reads past everything.
fn without_a_value() -> Vec<(String, Vec<u8>)> {
    let ids = (0x00..=0x10).chain([MAX_DATAGRAM_FRAME_SIZE, MIN_ACK_DELAY]);
    ids.filter(|id| *id != DISABLE_ACTIVE_MIGRATION)
        .map(|id| (format!("{id:#x} without a value"), with(&[(id, Vec::new())])))
        .collect()
}

/// Values that RFC 9000, 18.2 forbids, and flags with a value.
fn out_of_range() -> Vec<(String, Vec<u8>)> {
    let numbers = [
        (MAX_UDP_PAYLOAD_SIZE, vec![0, 1199]),
        (MAX_STREAMS_BIDI, vec![(1 << 60) + 1, LARGEST]),
        (MAX_STREAMS_UNI, vec![(1 << 60) + 1, LARGEST]),
        (ACK_DELAY_EXPONENT, vec![21, 63, 255, LARGEST]),
        (MAX_ACK_DELAY, vec![1 << 14, LARGEST]),
        (ACTIVE_CONNECTION_ID_LIMIT, vec![0, 1]),
        (MIN_ACK_DELAY, vec![25_001, LARGEST]),
    ];
    let mut all = Vec::new();
    for (id, values) in numbers {
        for value in values {
            all.push((format!("{id:#x} is {value}"), with(&[number(id, value)])));
        }
    }
    for flag in [DISABLE_ACTIVE_MIGRATION, GREASE_QUIC_BIT] {
        for length in [1, 8, 200] {
            let value = vec![0; length];
            all.push((format!("{flag:#x} of {length} bytes"), with(&[(flag, value)])));
        }
    }
    let long = with(&[(MAX_DATAGRAM_FRAME_SIZE, vec![0xff; 9])]);
    all.push(("a number of nine bytes".to_owned(), long));
    all
}

/// An IPv4 and an IPv6 address with ports, a connection id behind its length, a reset token.
fn preferred_address(id_length: u8, id: &[u8]) -> Vec<u8> {
    let addresses = [&[127, 0, 0, 1, 0x1f, 0x90][..], &[0; 18]].concat();
    [&addresses, &[id_length][..], id, &[7; 16]].concat()
}

/// What only servers may send, well made and not.
fn of_servers() -> Vec<(String, Vec<u8>)> {
    let mut values = vec![
        (ORIGINAL_DESTINATION, SOURCE.to_vec()),
        (ORIGINAL_DESTINATION, vec![7; 21]),
        (RETRY_SOURCE, SOURCE.to_vec()),
        (RETRY_SOURCE, vec![7; 255]),
        (STATELESS_RESET_TOKEN, vec![7; 16]),
        (STATELESS_RESET_TOKEN, vec![7; 15]),
        (STATELESS_RESET_TOKEN, vec![7; 17]),
        (PREFERRED_ADDRESS, preferred_address(8, SOURCE)),
        (PREFERRED_ADDRESS, preferred_address(0, &[])),
        (PREFERRED_ADDRESS, preferred_address(21, &[7; 21])),
        (PREFERRED_ADDRESS, preferred_address(255, SOURCE)),
    ];
    let whole = preferred_address(8, SOURCE);
    for length in 1..whole.len() {
        values.push((PREFERRED_ADDRESS, whole[..length].to_vec()));
    }
    let name = |(id, value): &Parameter| format!("{id:#x} of {} bytes, a server's", value.len());
    values.into_iter().map(|value| (name(&value), with(&[value]))).collect()
}

fn wrong_sources() -> Vec<(String, Vec<u8>)> {
    let mut list = ordinary();
    list.retain(|(id, _)| *id != INITIAL_SOURCE);
    let mut all = vec![("no source id".to_owned(), encode(&list))];
    let others: [&[u8]; 6] = [b"another1", b"attacke", b"attackers", &[7; 20], &[7; 21], &[7; 255]];
    for other in others {
        let name = format!("a source id of {} bytes", other.len());
        all.push((name, with(&[(INITIAL_SOURCE, other.to_vec())])));
    }
    all
}

/// Random bytes, and well-made parameters of random numbers; too many to fit one packet at last.
fn noise(random: &mut Random) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for index in 0..48 {
        let length = random.below(300) as usize;
        all.push((format!("noise {index}"), random.bytes(length)));
    }
    for index in 0..48 {
        let count = random.below(12) + 1;
        let mut list = Vec::new();
        for _ in 0..count {
            let id = if random.below(2) == 0 { random.below(0x21) } else { random.next() >> 2 };
            let length = random.below(20) as usize;
            // A client may not leave this out, and here it does.
            if id != INITIAL_SOURCE {
                list.push((id, random.bytes(length)));
            }
        }
        all.push((format!("random parameters {index}"), encode(&list)));
    }
    for length in [3000, 6000] {
        all.push((format!("{length} bytes of nobody's"), encode(&[(RESERVED, vec![7; length])])));
    }
    all
}
