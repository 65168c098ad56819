//! Attack A5: tags, bools, texts and ids that do not exist.

use gangline_common::ids::MemberId;
use gangline_common::wire::WireError;
use gangline_common::wire::request::*;
use gangline_common::wire::tlv::{Handshake, Refuse};
use gangline_common::wire::v1::*;

use crate::goldens::{self, Message};
use crate::{body_of, decode, golden, is_handshake};

/// Where `part` begins in `bytes`; it must be there exactly once.
fn position(bytes: &[u8], part: &[u8]) -> usize {
    let mut found = bytes.windows(part.len()).enumerate().filter(|(_, window)| *window == part);
    let (at, _) = found.next().expect("the part is there");
    assert!(found.next().is_none(), "the part is there once");
    at
}

/// `first` and `second` differ in one enum, option or bool, whose tag is therefore the first byte
/// in which their bodies differ. Every tag from `variants` on must be refused.
fn assert_unknown_tags_refused(first: &Message, second: &Message, variants: u8) {
    let frame = first.to_frame().expect("it encodes");
    let other = second.to_frame().expect("it encodes");
    let at = frame.body.iter().zip(&other.body).take_while(|(a, b)| a == b).count();
    assert!(frame.body[at] < variants && other.body[at] < variants, "the tag is at {at}");
    for tag in variants..=u8::MAX {
        let mut body = frame.body.clone();
        body[at] = tag;
        let result = decode(frame.kind, &body);
        assert!(matches!(result, Err(WireError::Malformed { .. })), "tag {tag}: {result:?}");
    }
}

fn report_with(change: impl FnOnce(&mut NodeReport)) -> Message {
    let AgentMessage::Report(mut report) = goldens::values::report() else {
        panic!("the golden is a report");
    };
    change(&mut report);
    Message::Agent(AgentMessage::Report(report))
}

fn state(state: MemberState) -> Message {
    report_with(|report| report.members[0].state = state)
}

fn refused(refusal: Refusal) -> Message {
    state(MemberState::Refused(refusal))
}

fn ended(how: EndedHow) -> Message {
    let rest = (false, String::new(), 0, false);
    let (asked, last_output, swept, logs_complete) = rest;
    state(MemberState::Ended(Ended { how, asked, last_output, swept, logs_complete }))
}

fn inventory_with(change: impl FnOnce(&mut NodeInventory)) -> Message {
    let AgentMessage::Inventory(mut inventory) = goldens::values::inventory_full() else {
        panic!("the golden is an inventory");
    };
    change(&mut inventory);
    Message::Agent(AgentMessage::Inventory(inventory))
}

fn run_with(change: impl FnOnce(&mut Assignment)) -> Message {
    let CoordinatorMessage::DesiredGang(mut gang) = goldens::values::desired_gang_ray() else {
        panic!("the golden is a gang");
    };
    let Order::Run(assignment) = &mut gang.order else { panic!("it runs") };
    change(assignment);
    Message::Coordinator(CoordinatorMessage::DesiredGang(gang))
}

#[test]
fn a5_unknown_tags_of_a_report_are_refused() {
    let member = |member| report_with(|report| report.members[0].key.member = member);
    assert_unknown_tags_refused(&member(MemberId::Head), &member(MemberId::Rank(0)), 2);
    assert_unknown_tags_refused(&state(MemberState::Starting), &state(MemberState::Stopping), 5);
    assert_unknown_tags_refused(
        &ended(EndedHow::Exited { code: 0 }),
        &ended(EndedHow::Signalled { signal: 0 }),
        3,
    );
    assert_unknown_tags_refused(
        &refused(Refusal::PortBusy { port: 1 }),
        &refused(Refusal::Impossible { reason: "x".into() }),
        4,
    );
    let entrypoint = |state| report_with(|report| report.gangs[0].entrypoints[0].state = state);
    assert_unknown_tags_refused(
        &entrypoint(EntrypointState::Waiting),
        &entrypoint(EntrypointState::Running { driver: None }),
        4,
    );
}

#[test]
fn a5_unknown_tags_of_an_inventory_are_refused() {
    let role = |role| inventory_with(|inventory| inventory.roles[0] = role);
    assert_unknown_tags_refused(&role(NodeRole::Head), &role(NodeRole::Worker), 2);
    let level = |level| inventory_with(|inventory| inventory.doctor[0].level = level);
    assert_unknown_tags_refused(&level(DoctorLevel::Ok), &level(DoctorLevel::Error), 4);
    let address = |text: &str| {
        let address = text.parse().expect("an address");
        inventory_with(|inventory| inventory.address = address)
    };
    assert_unknown_tags_refused(&address("127.0.0.1"), &address("::1"), 2);
}

#[test]
fn a5_unknown_tags_of_a_gang_are_refused() {
    let launcher = |launcher| run_with(|assignment| assignment.launcher = launcher);
    assert_unknown_tags_refused(&launcher(Launcher::Ray), &launcher(Launcher::Command), 2);
    let policy = |policy| run_with(|assignment| assignment.on_disconnect = policy);
    let fence = policy(OnDisconnect::Fence { after_ms: 7 });
    assert_unknown_tags_refused(&fence, &policy(OnDisconnect::StopAfter { after_ms: 7 }), 3);
    let run = Message::Coordinator(goldens::values::desired_gang_ray());
    let mut stop = goldens::values::desired_gang_ray();
    if let CoordinatorMessage::DesiredGang(gang) = &mut stop {
        gang.order = Order::Stop { keep_scene: false };
    }
    assert_unknown_tags_refused(&run, &Message::Coordinator(stop), 2);
}

#[test]
fn a5_unknown_tags_of_requests_and_answers_are_refused() {
    let subject = |subject| {
        let mut request = goldens::values::request_nodes();
        if let AgentRequest::RayState(state) = &mut request {
            state.subject = subject;
        }
        Message::Request(request)
    };
    assert_unknown_tags_refused(&subject(RaySubject::Nodes), &subject(RaySubject::Actors), 3);
    let failed = |reason| Message::AnswerHead(goldens::values::failed(reason, "x"));
    let (first, second) = (failed(FailureReason::Unknown), failed(FailureReason::TooLarge));
    assert_unknown_tags_refused(&first, &second, 4);
    let body = Message::AnswerHead(goldens::values::answer_body());
    assert_unknown_tags_refused(&body, &first, 2);
}

#[test]
fn a5_invalid_bools_and_options_are_refused() {
    let ready = |ready| {
        report_with(|report| {
            report.gangs[0].ray.as_mut().expect("a cluster").ready = ready;
        })
    };
    assert_unknown_tags_refused(&ready(true), &ready(false), 2);
    let pool = |pool| inventory_with(|inventory| inventory.pool = pool);
    assert_unknown_tags_refused(&pool(None), &pool(Some(String::new())), 2);
    let run_as = |run_as| run_with(|assignment| assignment.run_as = run_as);
    assert_unknown_tags_refused(&run_as(None), &run_as(Some((1, 1))), 2);
    let reading = |load1| {
        let mut sample = goldens::values::sample_full();
        sample.host.load1 = load1;
        Message::Sample(sample)
    };
    assert_unknown_tags_refused(&reading(None), &reading(Some(1.0)), 2);
}

#[test]
fn a5_invalid_utf8_is_refused() {
    let texts = [
        ("HELLO", "0.1.0"),
        ("WELCOME", "n-4bq7"),
        ("REFUSE", "already here"),
        ("JOIN_REQUEST", "gpu-01"),
        ("JOIN_GRANT", "n-4bq7"),
        ("INVENTORY_FULL", "gpu-01.lab"),
        ("INVENTORY_FULL", "zone"),
        ("REPORT", "no shim record"),
        ("REPORT", "session_1"),
        ("DESIRED_GANG_RAY", "GANGLINE_NNODES"),
        ("DESIRED_GANG_RAY", "t0ken"),
        ("DESIRED_GANG_STOP", "g-7f3k2"),
        ("LOG_ACK", "driver.log"),
        ("SAMPLE_FULL", "GPU-aa"),
        ("LOG_CHUNK", "rank.out"),
        ("REQUEST_ACTORS", "ALIVE"),
        ("ANSWER_UNKNOWN", "new"),
    ];
    for (name, text) in texts {
        let golden = golden(name);
        let mut body = body_of(&golden);
        let at = position(&body, text.as_bytes());
        // A lone continuation byte, an overlong form and a byte that never occurs.
        for byte in [0x80, 0xc0, 0xff] {
            body[at] = byte;
            match decode(golden.kind, &body) {
                Err(WireError::Malformed { .. }) => assert!(!is_handshake(golden.kind)),
                Err(WireError::Handshake(why)) => assert_eq!(why, "a text is not UTF-8"),
                other => panic!("{name} `{text}`: {other:?}"),
            }
        }
    }
}

/// A short text as the codec writes it: its length, then its bytes.
fn prefixed(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("a short text");
    [&[length], text.as_bytes()].concat()
}

#[test]
fn a5_invalid_ids_are_refused_at_decode() {
    let ids = [
        ("REPORT", "g-old", "gang id"),
        ("REPORT", "g-two", "gang id"),
        ("DESIRED_GANG_STOP", "g-7f3k2", "gang id"),
        ("DESIRED_GANG_COMMAND", "j-cmd", "job id"),
        ("LOG_ACK", "g-7f3k2", "gang id"),
        ("LOG_CHUNK", "g-7f3k2", "gang id"),
        ("REQUEST_NODES", "g-7f3k2", "gang id"),
    ];
    let long = "x".repeat(65);
    let hostile =
        ["../../x", "/etc", "", ".", "a b", "a\0b", "a\u{1b}[31m", "gäng", "a:b", long.as_str()];
    for (name, id, what) in ids {
        let golden = golden(name);
        let body = body_of(&golden);
        let at = position(&body, &prefixed(id));
        let (before, after) = (&body[..at], &body[at + prefixed(id).len()..]);
        let with = |id: &str| decode(golden.kind, &[before, &prefixed(id), after].concat());
        assert!(with("g-Other_1").is_ok(), "{name}: a valid id is accepted in this place");
        for id in hostile {
            match with(id) {
                Err(WireError::Malformed { reason, .. }) => {
                    assert!(reason.contains(what), "{name} `{id}`: {reason}");
                }
                other => panic!("{name} `{id}`: {other:?}"),
            }
        }
    }
}

#[test]
fn a5_a_handshake_number_has_four_bytes() {
    for value in [&[][..], &[1], &[0, 0, 1], &[0, 0, 0, 0, 1]] {
        let field = [&[0, 1, 0, 0, 0, value.len() as u8], value].concat();
        let body = [&field[..], &[0, 2, 0, 0, 0, 1, b'x']].concat();
        assert_eq!(
            Refuse::from_body(&body),
            Err(WireError::Handshake("a number is not four bytes"))
        );
    }
}
