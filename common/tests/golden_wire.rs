//! The wire is what these literal bytes say. A difference here is a change of the protocol: old
//! and new builds would no longer understand each other.

mod goldens;

use std::collections::BTreeSet;
use std::fmt::Write;

use gangline_common::ids::MemberId;
use gangline_common::wire::frame::{Frame, Kind, REGISTRY};
use gangline_common::wire::request::{AgentRequest, AnswerHead, FailureReason, Fault, RaySubject};
use gangline_common::wire::tlv::{self, Handshake, Hello, JoinGrant, JoinRequest, Refuse, Welcome};
use gangline_common::wire::v1::*;
use gangline_common::wire::{ALPN, MINOR, MINOR_OLDEST, WireError};
use goldens::{Golden, Message};

/// Both byte strings around the first difference, for the failure message.
fn difference(golden: &[u8], now: &[u8]) -> String {
    let at = golden.iter().zip(now).take_while(|(a, b)| a == b).count();
    let window = |bytes: &[u8]| {
        let end = bytes.len().min(at + 16);
        data_encoding::HEXLOWER.encode(bytes.get(at..end).unwrap_or_default())
    };
    let mut text = String::new();
    let _ = writeln!(text, "first difference at byte {at} of the frame");
    let _ = writeln!(text, "  golden: .. {} ({} bytes)", window(golden), golden.len());
    let _ = writeln!(text, "  now:    .. {} ({} bytes)", window(now), now.len());
    let _ = writeln!(text, "  whole:  {}", data_encoding::HEXLOWER.encode(now));
    text
}

fn check(golden: &Golden) {
    let name = golden.name;
    let wire = golden.wire();
    let frame = golden.message.to_frame().unwrap_or_else(|e| panic!("{name} encodes: {e}"));
    let now = frame.to_bytes();
    assert!(now == wire, "encoding {name}: {}", difference(&wire, &now));

    let (frame, rest) = Frame::split_first(&wire)
        .unwrap_or_else(|e| panic!("{name} is a frame: {e}"))
        .unwrap_or_else(|| panic!("{name} is a whole frame"));
    assert!(rest.is_empty(), "{name} is one frame");
    assert_eq!(frame.kind, golden.kind, "{name}");
    let decoded = Message::from_frame(&frame).unwrap_or_else(|e| panic!("{name} decodes: {e}"));
    assert_eq!(decoded, golden.message, "{name}");
}

fn check_kinds(kinds: &[Kind]) {
    let chosen: Vec<Golden> =
        goldens::all().into_iter().filter(|golden| kinds.contains(&golden.kind)).collect();
    assert!(!chosen.is_empty());
    chosen.iter().for_each(check);
}

#[test]
fn handshake_goldens() {
    check_kinds(&[Kind::Hello, Kind::Welcome, Kind::Refuse]);
}

#[test]
fn join_goldens() {
    check_kinds(&[Kind::JoinRequest, Kind::JoinGrant]);
}

#[test]
fn inventory_goldens() {
    check_kinds(&[Kind::Inventory]);
}

#[test]
fn report_goldens() {
    check_kinds(&[Kind::Report]);
}

#[test]
fn heartbeat_and_renewal_goldens() {
    check_kinds(&[Kind::Heartbeat, Kind::HeartbeatAck, Kind::RenewRequest, Kind::Renewed]);
}

#[test]
fn health_goldens() {
    check_kinds(&[Kind::Health, Kind::HealthCleared]);
}

#[test]
fn desired_goldens() {
    check_kinds(&[Kind::DesiredHeader, Kind::DesiredGang]);
}

#[test]
fn log_goldens() {
    check_kinds(&[Kind::LogChunk, Kind::PackedLogChunk, Kind::LogAck]);
}

#[test]
fn code_goldens() {
    check_kinds(&[Kind::CodeRequest, Kind::CodePart]);
}

#[test]
fn sample_goldens() {
    check_kinds(&[Kind::Sample]);
}

#[test]
fn request_goldens() {
    check_kinds(&[Kind::Request, Kind::AnswerHead, Kind::AnswerPiece]);
}

#[test]
fn every_kind_has_a_golden() {
    let goldens = goldens::all();
    for (kind, name, _) in REGISTRY {
        assert!(goldens.iter().any(|golden| golden.kind == *kind), "no golden for {name}");
    }
    goldens.iter().for_each(check);
}

/// The registry itself is part of the wire: numbers, names and limits.
#[test]
fn registry_is_as_written_down() {
    const KIB: u32 = 1024;
    let written = [
        (0x01, "Hello", 64 * KIB),
        (0x02, "Welcome", 64 * KIB),
        (0x03, "Refuse", 64 * KIB),
        (0x04, "JoinRequest", 64 * KIB),
        (0x05, "JoinGrant", 64 * KIB),
        (0x10, "Inventory", 256 * KIB),
        (0x11, "Report", 1024 * KIB),
        (0x12, "Heartbeat", 256),
        (0x13, "RenewRequest", 64 * KIB),
        (0x14, "Health", 512 * KIB),
        (0x20, "DesiredHeader", 256),
        (0x21, "DesiredGang", 1024 * KIB),
        (0x22, "HeartbeatAck", 256),
        (0x23, "LogAck", 1024),
        (0x24, "Renewed", 64 * KIB),
        (0x25, "HealthCleared", 128 * KIB),
        (0x30, "Sample", 256 * KIB),
        (0x31, "LogChunk", 256 * KIB),
        (0x32, "PackedLogChunk", 256 * KIB),
        (0x40, "Request", 4 * KIB),
        (0x41, "AnswerHead", 4 * KIB),
        (0x42, "AnswerPiece", 256 * KIB),
        (0x50, "CodeRequest", 1024),
        (0x51, "CodePart", 256 * KIB),
    ];
    let now: Vec<(u8, &str, u32)> =
        REGISTRY.iter().map(|(kind, name, limit)| (*kind as u8, *name, *limit)).collect();
    assert_eq!(now, written);
}

#[test]
fn versions_are_as_written_down() {
    assert_eq!(ALPN, b"gangline/1");
    assert_eq!((MINOR, MINOR_OLDEST), (6, 4));
    let codes = [
        tlv::REFUSE_VERSION,
        tlv::REFUSE_TOKEN,
        tlv::REFUSE_REVOKED,
        tlv::REFUSE_CLONE,
        tlv::REFUSE_BUSY,
        tlv::REFUSE_PROTOCOL,
    ];
    assert_eq!(codes, [1, 2, 3, 4, 5, 6]);
}

/// Names of the variants that the goldens use. The matches have no wildcard: a new variant does
/// not compile until it is named here, and the test below fails until a golden uses it.
#[derive(Default)]
struct Variants(BTreeSet<&'static str>);

impl Variants {
    fn see(&mut self, name: &'static str) {
        self.0.insert(name);
    }

    fn member(&mut self, member: MemberId) {
        self.see(match member {
            MemberId::Head => "MemberId::Head",
            MemberId::Rank(_) => "MemberId::Rank",
        });
    }

    fn agent(&mut self, message: &AgentMessage) {
        match message {
            AgentMessage::Inventory(inventory) => self.inventory(inventory),
            AgentMessage::Report(report) => self.report(report),
            AgentMessage::Heartbeat(_) | AgentMessage::RenewRequest(_) => {}
            AgentMessage::Health(health) => {
                for condition in &health.conditions {
                    self.see(match condition.level {
                        HealthLevel::Info => "HealthLevel::Info",
                        HealthLevel::Warning => "HealthLevel::Warning",
                        HealthLevel::Degraded => "HealthLevel::Degraded",
                        HealthLevel::NoNewJobs => "HealthLevel::NoNewJobs",
                        HealthLevel::DrainAfterJob => "HealthLevel::DrainAfterJob",
                        HealthLevel::Fatal => "HealthLevel::Fatal",
                    });
                }
            }
        }
    }

    fn inventory(&mut self, inventory: &NodeInventory) {
        for role in &inventory.roles {
            self.see(match role {
                NodeRole::Head => "NodeRole::Head",
                NodeRole::Worker => "NodeRole::Worker",
            });
        }
        for line in &inventory.doctor {
            self.see(match line.level {
                DoctorLevel::Ok => "DoctorLevel::Ok",
                DoctorLevel::Warning => "DoctorLevel::Warning",
                DoctorLevel::Blind => "DoctorLevel::Blind",
                DoctorLevel::Error => "DoctorLevel::Error",
            });
        }
    }

    fn report(&mut self, report: &NodeReport) {
        for MemberReport { key, state, guests, checkpoint: _, saved: _, usage: _ } in
            &report.members
        {
            for guest in guests {
                self.see(match guest.state {
                    GuestState::Prepared => "GuestState::Prepared",
                    GuestState::Failed { .. } => "GuestState::Failed",
                    GuestState::Swept { .. } => "GuestState::Swept",
                });
            }
            self.member(key.member);
            self.see(match state {
                MemberState::Starting => "MemberState::Starting",
                MemberState::Running { .. } => "MemberState::Running",
                MemberState::Stopping => "MemberState::Stopping",
                MemberState::Ended(Ended { how, .. }) => match how {
                    EndedHow::Exited { .. } => "EndedHow::Exited",
                    EndedHow::Signalled { .. } => "EndedHow::Signalled",
                    EndedHow::Failed { .. } => "EndedHow::Failed",
                },
                MemberState::Refused(refusal) => match refusal {
                    Refusal::PortBusy { .. } => "Refusal::PortBusy",
                    Refusal::GpuHeld { .. } => "Refusal::GpuHeld",
                    Refusal::StaleEpoch { .. } => "Refusal::StaleEpoch",
                    Refusal::Impossible { .. } => "Refusal::Impossible",
                    Refusal::Unfit { .. } => "Refusal::Unfit",
                },
            });
        }
        for entrypoint in report.gangs.iter().flat_map(|gang| &gang.entrypoints) {
            self.see(match entrypoint.state {
                EntrypointState::Waiting => "EntrypointState::Waiting",
                EntrypointState::Running { .. } => "EntrypointState::Running",
                EntrypointState::Succeeded { .. } => "EntrypointState::Succeeded",
                EntrypointState::Failed { .. } => "EntrypointState::Failed",
            });
        }
    }

    fn request(&mut self, request: &AgentRequest) {
        self.see(match request {
            AgentRequest::RayState(state) => match state.subject {
                RaySubject::Nodes => "RaySubject::Nodes",
                RaySubject::Actors => "RaySubject::Actors",
                RaySubject::PlacementGroups => "RaySubject::PlacementGroups",
            },
            AgentRequest::NodeMetrics => "AgentRequest::NodeMetrics",
            AgentRequest::RayMetrics { .. } => "AgentRequest::RayMetrics",
            AgentRequest::Stacks { .. } => "AgentRequest::Stacks",
            AgentRequest::Scene { .. } => "AgentRequest::Scene",
            AgentRequest::Checkpoints { .. } => "AgentRequest::Checkpoints",
            AgentRequest::Inject(fault) => match fault {
                Fault::Xid { .. } => "Fault::Xid",
                Fault::Link => "Fault::Link",
                Fault::Kill => "Fault::Kill",
                Fault::Heal => "Fault::Heal",
            },
            AgentRequest::KeepScene { .. } => "AgentRequest::KeepScene",
            AgentRequest::WriteReport { .. } => "AgentRequest::WriteReport",
        });
    }

    fn answer(&mut self, head: &AnswerHead) {
        self.see(match head {
            AnswerHead::Body { .. } => "AnswerHead::Body",
            AnswerHead::Failed(failure) => match failure.reason {
                FailureReason::Unknown => "FailureReason::Unknown",
                FailureReason::NotHere => "FailureReason::NotHere",
                FailureReason::NoAnswer => "FailureReason::NoAnswer",
                FailureReason::TooLarge => "FailureReason::TooLarge",
            },
        });
    }

    fn coordinator(&mut self, message: &CoordinatorMessage) {
        match message {
            CoordinatorMessage::DesiredGang(desired) => match &desired.order {
                Order::Run(assignment) => {
                    self.see("Order::Run");
                    self.see(match assignment.launcher {
                        Launcher::Ray => "Launcher::Ray",
                        Launcher::Command => "Launcher::Command",
                    });
                    for guest in &assignment.guests {
                        self.see(match guest.order {
                            GuestOrder::Prepare(_) => "GuestOrder::Prepare",
                            GuestOrder::Run(_) => "GuestOrder::Run",
                            GuestOrder::Watch => "GuestOrder::Watch",
                            GuestOrder::Stop => "GuestOrder::Stop",
                            GuestOrder::Sweep { .. } => "GuestOrder::Sweep",
                        });
                    }
                }
                Order::Stop { .. } => self.see("Order::Stop"),
            },
            CoordinatorMessage::DesiredHeader(_)
            | CoordinatorMessage::HeartbeatAck(_)
            | CoordinatorMessage::LogAck(_)
            | CoordinatorMessage::Renewed(_)
            | CoordinatorMessage::HealthCleared(_) => {}
        }
    }
}

#[test]
fn every_variant_is_in_a_golden() {
    let mut seen = Variants::default();
    for golden in goldens::all() {
        match &golden.message {
            Message::Agent(message) => seen.agent(message),
            Message::Coordinator(message) => seen.coordinator(message),
            Message::CodePart(part) => seen.see(match part {
                CodePart::Bytes { .. } => "CodePart::Bytes",
                CodePart::Refused { .. } => "CodePart::Refused",
            }),
            Message::Hello(_)
            | Message::Welcome(_)
            | Message::Refuse(_)
            | Message::JoinRequest(_)
            | Message::JoinGrant(_)
            | Message::Sample(_)
            | Message::Log(_)
            | Message::PackedLog(_)
            | Message::AnswerPiece(_)
            | Message::CodeRequest(_) => {}
            Message::Request(request) => seen.request(request),
            Message::AnswerHead(head) => seen.answer(head),
        }
    }
    let expected = [
        "AgentRequest::Checkpoints",
        "AgentRequest::KeepScene",
        "AgentRequest::NodeMetrics",
        "AgentRequest::RayMetrics",
        "AgentRequest::Scene",
        "AgentRequest::Stacks",
        "AgentRequest::WriteReport",
        "AnswerHead::Body",
        "CodePart::Bytes",
        "CodePart::Refused",
        "DoctorLevel::Blind",
        "DoctorLevel::Error",
        "DoctorLevel::Ok",
        "DoctorLevel::Warning",
        "EndedHow::Exited",
        "EndedHow::Failed",
        "EndedHow::Signalled",
        "EntrypointState::Failed",
        "EntrypointState::Running",
        "EntrypointState::Succeeded",
        "EntrypointState::Waiting",
        "FailureReason::NoAnswer",
        "FailureReason::NotHere",
        "FailureReason::TooLarge",
        "FailureReason::Unknown",
        "Fault::Heal",
        "Fault::Kill",
        "Fault::Link",
        "Fault::Xid",
        "GuestOrder::Prepare",
        "GuestOrder::Run",
        "GuestOrder::Stop",
        "GuestOrder::Sweep",
        "GuestOrder::Watch",
        "GuestState::Failed",
        "GuestState::Prepared",
        "GuestState::Swept",
        "HealthLevel::Degraded",
        "HealthLevel::DrainAfterJob",
        "HealthLevel::Fatal",
        "HealthLevel::Info",
        "HealthLevel::NoNewJobs",
        "HealthLevel::Warning",
        "Launcher::Command",
        "Launcher::Ray",
        "MemberId::Head",
        "MemberId::Rank",
        "MemberState::Running",
        "MemberState::Starting",
        "MemberState::Stopping",
        "NodeRole::Head",
        "NodeRole::Worker",
        "Order::Run",
        "Order::Stop",
        "RaySubject::Actors",
        "RaySubject::Nodes",
        "RaySubject::PlacementGroups",
        "Refusal::GpuHeld",
        "Refusal::Impossible",
        "Refusal::PortBusy",
        "Refusal::StaleEpoch",
        "Refusal::Unfit",
    ];
    let seen: Vec<&str> = seen.0.into_iter().collect();
    assert_eq!(seen, expected);
}

/// Puts a field that no version knows before, between and after the fields of a handshake body.
fn with_unknown_fields(body: &[u8]) -> Vec<u8> {
    let unknown = [0xfe, 0x01, 0, 0, 0, 3, b'n', b'e', b'w'];
    let empty = [0xfe, 0x02, 0, 0, 0, 0];
    let first_length = u32::from_be_bytes([body[2], body[3], body[4], body[5]]) as usize;
    let (first, rest) = body.split_at(6 + first_length);
    [&unknown[..], first, &empty, rest, &unknown].concat()
}

#[test]
fn unknown_handshake_tags_are_skipped() {
    fn check<T: Handshake + PartialEq + std::fmt::Debug>(value: &T) {
        let body = with_unknown_fields(&value.to_body());
        assert_eq!(T::from_body(&body).as_ref(), Ok(value));
    }
    check::<Hello>(&goldens::values::hello());
    check::<Welcome>(&goldens::values::welcome());
    check::<Refuse>(&goldens::values::refuse());
    check::<JoinRequest>(&goldens::values::join_request());
    check::<JoinGrant>(&goldens::values::join_grant());
}

#[test]
fn handshake_fields_may_come_in_any_order() {
    let body = goldens::values::refuse().to_body();
    let (code, text) = body.split_at(10);
    assert_eq!(Refuse::from_body(&[text, code].concat()), Ok(goldens::values::refuse()));
}

#[test]
fn a_missing_handshake_field_is_an_error() {
    let body = goldens::values::hello().to_body();
    // The first field of Hello is ten bytes: tag, length, number.
    assert_eq!(
        Hello::from_body(&body[10..]),
        Err(WireError::Handshake("a required field is missing"))
    );
}
