//! What is done with fuzzed bytes: every way in which a peer's bytes become a message.
//!
//! Shared by the fuzz target and by `tests/hostile_wire.rs`, so that it also runs without a fuzzer.

use gangline_common::wire::WireError;
use gangline_common::wire::frame::{Frame, HEADER_LENGTH, Kind, REGISTRY, parse_header};
use gangline_common::wire::packed::PackedLogChunk;
use gangline_common::wire::request::{AgentRequest, AnswerHead, AnswerPiece};
use gangline_common::wire::tlv::{Handshake, Hello, JoinGrant, JoinRequest, Refuse, Welcome};
use gangline_common::wire::v1::{
    AgentMessage, CodePart, CodeRequest, CoordinatorMessage, LogChunk, NodeSample,
};

/// Reads `bytes` as a stream of frames, and then as the body of every kind. Returns how many
/// messages were accepted. Panics when a decoder does, or when an accepted message does not
/// survive being encoded and decoded again.
pub fn decode_all(bytes: &[u8]) -> usize {
    let mut accepted = 0;
    if let Some((header, _)) = bytes.split_first_chunk::<HEADER_LENGTH>() {
        // `split_first` and the transport share this check; both must say the same.
        assert_eq!(parse_header(*header).is_err(), Frame::split_first(bytes).is_err());
    }
    let mut stream = bytes;
    while let Ok(Some((frame, rest))) = Frame::split_first(stream) {
        assert!(rest.len() < stream.len());
        accepted += decode_frame(&frame);
        stream = rest;
    }
    for (kind, ..) in REGISTRY {
        if let Ok(frame) = Frame::new(*kind, bytes.to_vec()) {
            accepted += decode_frame(&frame);
        }
    }
    accepted
}

/// Gives a frame to every decoder; at most the one of its kind may accept it.
fn decode_frame(frame: &Frame) -> usize {
    let accepted: usize = [
        again(frame, Hello::from_frame, Hello::to_frame),
        again(frame, Welcome::from_frame, Welcome::to_frame),
        again(frame, Refuse::from_frame, Refuse::to_frame),
        again(frame, JoinRequest::from_frame, JoinRequest::to_frame),
        again(frame, JoinGrant::from_frame, JoinGrant::to_frame),
        again(frame, AgentMessage::from_frame, AgentMessage::to_frame),
        again(frame, CoordinatorMessage::from_frame, CoordinatorMessage::to_frame),
        again(frame, NodeSample::from_frame, NodeSample::to_frame),
        again(frame, LogChunk::from_frame, LogChunk::to_frame),
        again(frame, PackedLogChunk::from_frame, PackedLogChunk::to_frame),
        again(frame, AgentRequest::from_frame, AgentRequest::to_frame),
        again(frame, AnswerHead::from_frame, AnswerHead::to_frame),
        again(frame, AnswerPiece::from_frame, AnswerPiece::to_frame),
        again(frame, CodeRequest::from_frame, CodeRequest::to_frame),
        again(frame, CodePart::from_frame, CodePart::to_frame),
    ]
    .into_iter()
    .map(usize::from)
    .sum();
    assert!(accepted <= 1, "{accepted} decoders accept one {} frame", frame.kind.name());
    accepted
}

/// Decodes; what is accepted is encoded, decoded and encoded once more, and must not change.
/// Bytes are compared, not values, because a NaN is not equal to itself.
fn again<T>(
    frame: &Frame,
    decode: impl Fn(&Frame) -> Result<T, WireError>,
    encode: impl Fn(&T) -> Result<Frame, WireError>,
) -> bool {
    let Ok(message) = decode(frame) else { return false };
    let first: Frame = encode(&message).expect("an accepted message encodes");
    let kind: Kind = first.kind;
    assert_eq!(kind, frame.kind);
    assert!(first.body.len() <= frame.body.len(), "the shortest form is the one that we send");
    let second = decode(&first).and_then(|message| encode(&message));
    assert_eq!(second.as_ref(), Ok(&first));
    true
}
