//! Inputs from good ones: bits, bytes, lengths, pieces.

use gangline_simulation::random::Random;

/// Most changes of one input.
const MOST_CHANGES: u64 = 6;
/// Longest piece that is copied, left out or repeated, in bytes.
const PIECE: u64 = 64;
/// Numbers at which arithmetic goes wrong.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x10_0001,
    0x7fff_ffff,
    0xffff_fffe,
    0xffff_ffff,
    i64::MAX as u64,
    u64::MAX,
];

/// Another input, made of `seed`: at most `limit` bytes long.
pub fn mutate(
    seed: &[u8],
    other: &[u8],
    words: &[&[u8]],
    limit: usize,
    random: &mut Random,
) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..random.between(1, MOST_CHANGES) {
        change(&mut bytes, other, words, random);
    }
    bytes.truncate(limit);
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], words: &[&[u8]], random: &mut Random) {
    let at = place(bytes.len(), random);
    match random.below(12) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            let new = random.below(256) as u8;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = new;
            }
        }
        2 => bytes.truncate(at),
        3 => remove(bytes, at, random),
        4 => {
            let piece = piece(bytes, random);
            insert(bytes, at, &piece);
        }
        // Many of the same: the densest input is the one that grows most in memory.
        5 => {
            let piece = piece(bytes, random);
            let times = random.between(1, 200) as usize;
            insert(bytes, at, &piece.repeat(times));
        }
        6 => {
            let piece = piece(other, random);
            insert(bytes, at, &piece);
        }
        7 => {
            let tail = other.get(place(other.len(), random)..).unwrap_or_default().to_vec();
            bytes.truncate(at);
            bytes.extend(tail);
        }
        8 => overwrite(bytes, at, &number(random)),
        9 => {
            let number = number(random);
            insert(bytes, at, &number);
        }
        10 => {
            let word = random.pick(words).copied().unwrap_or_default();
            insert(bytes, at, word);
        }
        _ => {
            let word = random.pick(words).copied().unwrap_or_default().to_vec();
            overwrite(bytes, at, &word);
        }
    }
}

/// A position, the end included; the beginning and the end more often than by chance.
fn place(length: usize, random: &mut Random) -> usize {
    match random.below(10) {
        0 => 0,
        1 => length,
        _ => random.below(length as u64 + 1) as usize,
    }
}

fn piece(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let from = place(bytes.len(), random);
    let length = random.between(1, PIECE) as usize;
    bytes.iter().skip(from).take(length).copied().collect()
}

fn remove(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let length = random.between(1, PIECE) as usize;
    let end = bytes.len().min(at + length);
    bytes.drain(at..end);
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    bytes.splice(at..at, piece.iter().copied());
}

fn overwrite(bytes: &mut [u8], at: usize, piece: &[u8]) {
    for (byte, new) in bytes.iter_mut().skip(at).zip(piece) {
        *byte = *new;
    }
}

/// A number as one of the formats writes it: both byte orders, bincode's length prefix, digits.
fn number(random: &mut Random) -> Vec<u8> {
    let near = random.below(3).wrapping_sub(1);
    let number = random.pick(&NUMBERS).copied().unwrap_or_default().wrapping_add(near);
    match random.below(9) {
        0 => (number as u16).to_be_bytes().to_vec(),
        1 => (number as u16).to_le_bytes().to_vec(),
        2 => (number as u32).to_be_bytes().to_vec(),
        3 => (number as u32).to_le_bytes().to_vec(),
        4 => number.to_be_bytes().to_vec(),
        5 => number.to_le_bytes().to_vec(),
        6 => [&[0xfc][..], &(number as u32).to_le_bytes()].concat(),
        7 => [&[0xfd][..], &number.to_le_bytes()].concat(),
        _ => number.to_string().into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs_within_the_limit() {
        let inputs = |seed: u64| {
            let mut random = Random::new(seed);
            let make = |_| mutate(b"some good input", b"another", &[b"word"], 100, &mut random);
            (0..2000).map(make).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        assert!(inputs(1).iter().all(|input| input.len() <= 100));
        assert!(inputs(1).iter().any(|input| input.len() == 100));
    }
}
