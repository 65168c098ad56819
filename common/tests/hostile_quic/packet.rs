//! QUIC version 1 packets, built and read by hand: no honest implementation sends what the tests
//! here send. Sections are those of RFC 9000 unless another RFC is named.

use rustls::quic::{DirectionalKeys, HeaderProtectionKey, PacketKey};

/// Least size of a datagram with an Initial packet (14.1).
pub const DATAGRAM: usize = 1200;
/// Bytes of a packet number as `seal` writes it; the header protection's sample begins this far
/// behind the beginning of the number, however long that is (RFC 9001, 5.4.2).
const NUMBER: usize = 4;
/// Integrity tag at the end of a Retry packet (RFC 9001, 5.8).
const RETRY_TAG: usize = 16;
const VERSION: [u8; 4] = [0, 0, 0, 1];

// ---------------------------------------------------------------- integers and frames

/// Appends a variable-length integer in its shortest form (16).
pub fn put_varint(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let (mark, length) = match value {
        0..=0x3f => (0x00, 1),
        0x40..=0x3fff => (0x40, 2),
        0x4000..=0x3fff_ffff => (0x80, 4),
        _ => (0xc0, 8),
    };
    assert!(value < 1 << 62, "no such integer: {value:#x}");
    out.extend_from_slice(&bytes[8 - length..]);
    let first = out.len() - length;
    out[first] |= mark;
}

/// Reads from a packet of the peer; `None` at its end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    fn varint(&mut self) -> Option<u64> {
        let first = self.byte()?;
        let rest = self.bytes((1 << (first >> 6)) - 1)?;
        Some(rest.iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Bytes behind their length, which is one byte for connection ids (17.2).
    fn id(&mut self) -> Option<Vec<u8>> {
        let length = self.byte()?;
        Some(self.bytes(length.into())?.to_vec())
    }
}

/// PING (19.2): harmless, and answered.
pub const PING: [u8; 1] = [0x01];

/// Appends a CRYPTO frame (19.6).
pub fn put_crypto(out: &mut Vec<u8>, offset: u64, data: &[u8]) {
    out.push(0x06);
    put_varint(out, offset);
    put_varint(out, data.len() as u64);
    out.extend_from_slice(data);
}

/// Appends a STREAM frame that has an offset and a length and does not end the stream (19.8).
pub fn put_stream(out: &mut Vec<u8>, id: u64, offset: u64, data: &[u8]) {
    out.push(0x08 | 0x04 | 0x02);
    put_varint(out, id);
    put_varint(out, offset);
    put_varint(out, data.len() as u64);
    out.extend_from_slice(data);
}

/// The frames of a server that matter here.
pub enum Frame {
    /// The largest packet number that is acknowledged (19.3).
    Ack {
        largest: u64,
    },
    Crypto {
        offset: u64,
        data: Vec<u8>,
    },
    /// CONNECTION_CLOSE, of the transport or of the application (19.19).
    Close {
        code: u64,
        reason: String,
    },
}

/// The frames of an opened packet, without those that do not matter, up to the first that a server
/// has no reason to send here.
pub fn frames(payload: &[u8]) -> Vec<Frame> {
    let mut reader = Reader(payload);
    std::iter::from_fn(|| frame(&mut reader)).collect()
}

fn frame(reader: &mut Reader<'_>) -> Option<Frame> {
    loop {
        match reader.varint()? {
            // PADDING, PING, HANDSHAKE_DONE (19.20).
            0x00 | 0x01 | 0x1e => {}
            // MAX_DATA, MAX_STREAMS (19.9, 19.11).
            0x10 | 0x12 | 0x13 => {
                reader.varint()?;
            }
            // NEW_CONNECTION_ID (19.15): number, ids that are retired, id, reset token.
            0x18 => {
                reader.varint()?;
                reader.varint()?;
                reader.id()?;
                reader.bytes(16)?;
            }
            // ACK (19.3): largest, delay, count of ranges, first range, ranges, ECN counts.
            kind @ (0x02 | 0x03) => {
                let largest = reader.varint()?;
                reader.varint()?;
                let ranges = reader.varint()?;
                let counts = if kind == 0x03 { 3 } else { 0 };
                for _ in 0..1 + 2 * ranges + counts {
                    reader.varint()?;
                }
                return Some(Frame::Ack { largest });
            }
            0x06 => {
                let offset = reader.varint()?;
                let length = reader.varint()?;
                let data = reader.bytes(usize::try_from(length).ok()?)?.to_vec();
                return Some(Frame::Crypto { offset, data });
            }
            kind @ (0x1c | 0x1d) => {
                let code = reader.varint()?;
                if kind == 0x1c {
                    // The type of the frame that was wrong.
                    reader.varint()?;
                }
                let length = reader.varint()?;
                let reason = reader.bytes(usize::try_from(length).ok()?)?;
                return Some(Frame::Close {
                    code,
                    reason: String::from_utf8_lossy(reason).into_owned(),
                });
            }
            _ => return None,
        }
    }
}

// ---------------------------------------------------------------- packets to the server

/// Connection ids and the token of the packets of one client.
pub struct Addressing {
    pub destination: Vec<u8>,
    pub source: Vec<u8>,
    /// Of the Retry packet; empty before it.
    pub token: Vec<u8>,
    /// Key phase: which generation of the 1-RTT keys, odd or even (17.3.1).
    pub phase: bool,
}

/// What a packet is (17.2.2, 17.2.4, 17.2.5, 17.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Initial,
    Handshake,
    /// From a server only.
    Retry,
    OneRtt,
}

/// One protected packet, which is one datagram: an Initial is padded to the least size.
pub fn seal(
    form: Form,
    to: &Addressing,
    number: u32,
    keys: &DirectionalKeys,
    frames: &[u8],
) -> Vec<u8> {
    let tag = keys.packet.tag_len();
    let mut payload = frames.to_vec();
    // Fixed bit, and in the two lowest bits the length of the packet number less one (17.2).
    let (type_bits, long) = match form {
        Form::Initial => (0xc0, true),
        Form::Handshake => (0xe0, true),
        Form::OneRtt => (0x40 | u8::from(to.phase) << 2, false),
        Form::Retry => unreachable!("a client sends no Retry"),
    };
    let mut packet = vec![type_bits | (NUMBER as u8 - 1)];
    if long {
        packet.extend(VERSION);
        for id in [&to.destination, &to.source] {
            packet.push(id.len() as u8);
            packet.extend_from_slice(id);
        }
        if form == Form::Initial {
            put_varint(&mut packet, to.token.len() as u64);
            packet.extend_from_slice(&to.token);
            // PADDING frames are zeros (19.1); the length below takes two bytes.
            let overhead = packet.len() + 2 + NUMBER + tag;
            payload.resize(payload.len().max(DATAGRAM - overhead), 0);
        }
        let length = (NUMBER + payload.len() + tag) as u16;
        packet.extend((0x4000 | length).to_be_bytes());
    } else {
        packet.extend_from_slice(&to.destination);
    }
    let at = packet.len();
    packet.extend(number.to_be_bytes());
    // Packet protection (RFC 9001, 5.3): the header up to the number is authenticated with it.
    let tag = keys.packet.encrypt_in_place(number.into(), &packet, &mut payload).expect("sealed");
    packet.extend_from_slice(&payload);
    packet.extend_from_slice(tag.as_ref());
    // Header protection (RFC 9001, 5.4): a mask from a sample of the sealed payload.
    let (header, sealed) = packet.split_at_mut(at + NUMBER);
    let (first, header) = header.split_first_mut().expect("a first byte");
    keys.header
        .encrypt_in_place(&sealed[..keys.header.sample_len()], first, &mut header[at - 1..])
        .expect("a sample");
    packet
}

// ---------------------------------------------------------------- packets of the server

/// One packet of a server, still protected.
pub struct Received {
    pub form: Form,
    /// The server's connection id; empty in a short header.
    pub source: Vec<u8>,
    /// Of a Retry packet.
    pub token: Vec<u8>,
    bytes: Vec<u8>,
    /// Where the packet number begins.
    number_at: usize,
}

/// The packets that share a datagram (12.2). `id_length` is that of the client's own ids, which a
/// short header does not tell.
pub fn split(mut datagram: &[u8], id_length: usize) -> Vec<Received> {
    let mut packets = Vec::new();
    while let Some((packet, rest)) = split_first(datagram, id_length) {
        packets.push(packet);
        datagram = rest;
    }
    packets
}

fn split_first(datagram: &[u8], id_length: usize) -> Option<(Received, &[u8])> {
    let mut reader = Reader(datagram);
    let first = reader.byte()?;
    let short = || Received {
        form: Form::OneRtt,
        source: Vec::new(),
        token: Vec::new(),
        bytes: datagram.to_vec(),
        number_at: 1 + id_length,
    };
    if first & 0x80 == 0 {
        return Some((short(), &[]));
    }
    if reader.bytes(4)? != VERSION {
        return None;
    }
    let (_destination, source) = (reader.id()?, reader.id()?);
    let form = match first & 0x30 {
        0x00 => Form::Initial,
        0x20 => Form::Handshake,
        0x30 => Form::Retry,
        _ => return None,
    };
    if form == Form::Retry {
        // Everything before the integrity tag is the token (17.2.5).
        let token = reader.0[..reader.0.len().checked_sub(RETRY_TAG)?].to_vec();
        return Some((Received { form, source, token, bytes: Vec::new(), number_at: 0 }, &[]));
    }
    if form == Form::Initial {
        let length = reader.varint()?;
        reader.bytes(usize::try_from(length).ok()?)?;
    }
    let length = usize::try_from(reader.varint()?).ok()?;
    let number_at = datagram.len() - reader.0.len();
    let (bytes, rest) = datagram.split_at_checked(number_at + length)?;
    let packet = Received { form, source, token: Vec::new(), bytes: bytes.to_vec(), number_at };
    Some((packet, rest))
}

impl Received {
    /// Takes the protection off (RFC 9001, 5.3 and 5.4). `None` when these are not its keys. The
    /// number is taken as it is written: nothing here goes on long enough for it to be shortened
    /// (17.1).
    pub fn open(&self, header: &dyn HeaderProtectionKey, key: &dyn PacketKey) -> Option<Vec<u8>> {
        let at = self.number_at;
        let mut packet = self.bytes.clone();
        let (start, sealed) = packet.split_at_mut_checked(at + NUMBER)?;
        let sample = sealed.get(..header.sample_len())?;
        let (first, start) = start.split_first_mut()?;
        header.decrypt_in_place(sample, first, &mut start[at - 1..]).ok()?;
        let length = usize::from(*first & 0x03) + 1;
        let number =
            packet[at..at + length].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let (start, sealed) = packet.split_at_mut(at + length);
        key.decrypt_in_place(number, start, sealed).ok().map(<[u8]>::to_vec)
    }
}
