//! Fuzz target: arbitrary bytes from a peer, given to the frame splitter and to every decoder.

#![no_main]

mod decode_all;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    decode_all::decode_all(bytes);
});
