//! One value and its literal bytes for every message; shared by the golden and the hostile tests.

pub mod bytes;
pub mod values;

use gangline_common::wire::WireError;
use gangline_common::wire::frame::{Frame, Kind};
use gangline_common::wire::packed::PackedLogChunk;
use gangline_common::wire::request::{AgentRequest, AnswerHead, AnswerPiece, FailureReason, Fault};
use gangline_common::wire::tlv::{Handshake, Hello, JoinGrant, JoinRequest, Refuse, Welcome};
use gangline_common::wire::v1::{
    AgentMessage, CodePart, CodeRequest, CoordinatorMessage, LogChunk, NodeSample,
};

/// Any message of the wire.
#[allow(clippy::large_enum_variant, reason = "a table of a few dozen values")]
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    Hello(Hello),
    Welcome(Welcome),
    Refuse(Refuse),
    JoinRequest(JoinRequest),
    JoinGrant(JoinGrant),
    Agent(AgentMessage),
    Coordinator(CoordinatorMessage),
    Sample(NodeSample),
    Log(LogChunk),
    PackedLog(PackedLogChunk),
    Request(AgentRequest),
    AnswerHead(AnswerHead),
    AnswerPiece(AnswerPiece),
    CodeRequest(CodeRequest),
    CodePart(CodePart),
}

impl Message {
    pub fn to_frame(&self) -> Result<Frame, WireError> {
        match self {
            Message::Hello(message) => message.to_frame(),
            Message::Welcome(message) => message.to_frame(),
            Message::Refuse(message) => message.to_frame(),
            Message::JoinRequest(message) => message.to_frame(),
            Message::JoinGrant(message) => message.to_frame(),
            Message::Agent(message) => message.to_frame(),
            Message::Coordinator(message) => message.to_frame(),
            Message::Sample(message) => message.to_frame(),
            Message::Log(message) => message.to_frame(),
            Message::PackedLog(message) => message.to_frame(),
            Message::Request(message) => message.to_frame(),
            Message::AnswerHead(message) => message.to_frame(),
            Message::AnswerPiece(message) => message.to_frame(),
            Message::CodeRequest(message) => message.to_frame(),
            Message::CodePart(message) => message.to_frame(),
        }
    }

    /// Decodes a frame with the decoder of its kind.
    pub fn from_frame(frame: &Frame) -> Result<Self, WireError> {
        match frame.kind {
            Kind::Hello => Hello::from_frame(frame).map(Message::Hello),
            Kind::Welcome => Welcome::from_frame(frame).map(Message::Welcome),
            Kind::Refuse => Refuse::from_frame(frame).map(Message::Refuse),
            Kind::JoinRequest => JoinRequest::from_frame(frame).map(Message::JoinRequest),
            Kind::JoinGrant => JoinGrant::from_frame(frame).map(Message::JoinGrant),
            Kind::Inventory
            | Kind::Report
            | Kind::Heartbeat
            | Kind::RenewRequest
            | Kind::Health => AgentMessage::from_frame(frame).map(Message::Agent),
            Kind::DesiredHeader
            | Kind::DesiredGang
            | Kind::HeartbeatAck
            | Kind::LogAck
            | Kind::Renewed
            | Kind::HealthCleared => {
                CoordinatorMessage::from_frame(frame).map(Message::Coordinator)
            }
            Kind::Sample => NodeSample::from_frame(frame).map(Message::Sample),
            Kind::LogChunk => LogChunk::from_frame(frame).map(Message::Log),
            Kind::PackedLogChunk => PackedLogChunk::from_frame(frame).map(Message::PackedLog),
            Kind::Request => AgentRequest::from_frame(frame).map(Message::Request),
            Kind::AnswerHead => AnswerHead::from_frame(frame).map(Message::AnswerHead),
            Kind::AnswerPiece => AnswerPiece::from_frame(frame).map(Message::AnswerPiece),
            Kind::CodeRequest => CodeRequest::from_frame(frame).map(Message::CodeRequest),
            Kind::CodePart => CodePart::from_frame(frame).map(Message::CodePart),
        }
    }
}

/// A message and what it looks like on the wire.
pub struct Golden {
    /// Name of the constant in `bytes`.
    pub name: &'static str,
    pub kind: Kind,
    pub hex: &'static str,
    pub message: Message,
}

impl Golden {
    /// The literal bytes of the whole frame.
    pub fn wire(&self) -> Vec<u8> {
        unhex(self.name, self.hex)
    }
}

/// Reads hex digits; blanks do not count, and a `;` begins a comment up to the end of its line.
fn unhex(name: &str, text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .lines()
        .flat_map(|line| line.split(';').next().unwrap_or_default().bytes())
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    data_encoding::HEXLOWER
        .decode(&digits)
        .unwrap_or_else(|e| panic!("golden {name} is not hex: {e}"))
}

/// Every golden.
pub fn all() -> Vec<Golden> {
    macro_rules! goldens {
        ($($name:ident: $kind:ident = $message:expr;)+) => {
            vec![$(Golden {
                name: stringify!($name),
                kind: Kind::$kind,
                hex: bytes::$name,
                message: $message,
            }),+]
        };
    }
    goldens! {
        HELLO: Hello = Message::Hello(values::hello());
        WELCOME: Welcome = Message::Welcome(values::welcome());
        REFUSE: Refuse = Message::Refuse(values::refuse());
        JOIN_REQUEST: JoinRequest = Message::JoinRequest(values::join_request());
        JOIN_GRANT: JoinGrant = Message::JoinGrant(values::join_grant());
        INVENTORY_FULL: Inventory = Message::Agent(values::inventory_full());
        INVENTORY_BARE: Inventory = Message::Agent(values::inventory_bare());
        REPORT: Report = Message::Agent(values::report());
        HEARTBEAT: Heartbeat = Message::Agent(values::heartbeat());
        RENEW_REQUEST: RenewRequest = Message::Agent(values::renew_request());
        HEALTH: Health = Message::Agent(values::health());
        DESIRED_HEADER: DesiredHeader = Message::Coordinator(values::desired_header());
        DESIRED_GANG_RAY: DesiredGang = Message::Coordinator(values::desired_gang_ray());
        DESIRED_GANG_COMMAND: DesiredGang = Message::Coordinator(values::desired_gang_command());
        DESIRED_GANG_STOP: DesiredGang = Message::Coordinator(values::desired_gang_stop());
        HEARTBEAT_ACK: HeartbeatAck = Message::Coordinator(values::heartbeat_ack());
        LOG_ACK: LogAck = Message::Coordinator(values::log_ack());
        RENEWED: Renewed = Message::Coordinator(values::renewed());
        HEALTH_CLEARED: HealthCleared = Message::Coordinator(values::health_cleared());
        SAMPLE_FULL: Sample = Message::Sample(values::sample_full());
        SAMPLE_BLIND: Sample = Message::Sample(values::sample_blind());
        LOG_CHUNK: LogChunk = Message::Log(values::log_chunk());
        PACKED_LOG_CHUNK: PackedLogChunk = Message::PackedLog(values::packed_log_chunk());
        REQUEST_NODES: Request = Message::Request(values::request_nodes());
        REQUEST_ACTORS: Request = Message::Request(values::request_actors());
        REQUEST_GROUPS: Request = Message::Request(values::request_groups());
        REQUEST_NODE_METRICS: Request = Message::Request(values::request_node_metrics());
        REQUEST_RAY_METRICS: Request = Message::Request(values::request_ray_metrics());
        REQUEST_STACKS: Request = Message::Request(values::request_stacks());
        REQUEST_SCENE: Request = Message::Request(values::request_scene());
        REQUEST_CHECKPOINTS: Request = Message::Request(values::request_checkpoints());
        REQUEST_XID: Request = Message::Request(values::request_inject(Fault::Xid { code: 79 }));
        REQUEST_LINK: Request = Message::Request(values::request_inject(Fault::Link));
        REQUEST_KILL: Request = Message::Request(values::request_inject(Fault::Kill));
        REQUEST_HEAL: Request = Message::Request(values::request_inject(Fault::Heal));
        REQUEST_KEEP_SCENE: Request = Message::Request(values::request_keep_scene());
        REQUEST_WRITE_REPORT: Request = Message::Request(values::request_write_report());
        ANSWER_BODY: AnswerHead = Message::AnswerHead(values::answer_body());
        ANSWER_UNKNOWN: AnswerHead = Message::AnswerHead(values::failed(FailureReason::Unknown, "new"));
        ANSWER_NOT_HERE: AnswerHead = Message::AnswerHead(values::failed(FailureReason::NotHere, ""));
        ANSWER_SILENT: AnswerHead = Message::AnswerHead(values::failed(FailureReason::NoAnswer, ""));
        ANSWER_TOO_LARGE: AnswerHead = Message::AnswerHead(values::failed(FailureReason::TooLarge, ""));
        ANSWER_PIECE: AnswerPiece = Message::AnswerPiece(values::answer_piece());
        CODE_REQUEST: CodeRequest = Message::CodeRequest(values::code_request());
        CODE_PART_BYTES: CodePart = Message::CodePart(values::code_part_bytes());
        CODE_PART_REFUSED: CodePart = Message::CodePart(values::code_part_refused());
    }
}
