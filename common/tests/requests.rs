//! Requests of a coordinator to an agent over real loopback QUIC: whole answers, and peers that
//! keep to no bound.

#[allow(dead_code, reason = "the tests of the transport use the rest")]
#[path = "transport/certificates.rs"]
mod certificates;

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use certificates::Authority;
use gangline_common::ids::{Epoch, GangId};
use gangline_common::request::{MAX_ANSWER, REQUEST_TIMEOUT, RequestError, answer, ask};
use gangline_common::tls::{agent_config, server_config};
use gangline_common::transport::{
    Connection, Endpoint, FrameSender, REQUESTS, ResetKey, StreamKind, TransportError,
};
use gangline_common::wire::frame::{Frame, Kind};
use gangline_common::wire::request::*;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The two ends of an agent's session.
struct Ends {
    agent: Connection,
    coordinator: Connection,
    _endpoints: [Endpoint; 2],
}

async fn ends() -> Ends {
    let authority = Authority::new();
    let tls = server_config(&authority.server(), &authority.certificate()).expect("a config");
    let server = Endpoint::server(LOOPBACK, tls, &ResetKey::derive(b"test")).expect("a port");
    let address = server.local_address().expect("an address");
    let tls = agent_config(&authority.agent("n-1"), &authority.certificate()).expect("a config");
    let client = Endpoint::client(LOOPBACK, tls).expect("a port");
    let accepting = async { server.accept().await.expect("an attempt").accept().await };
    let (agent, coordinator) = tokio::join!(client.dial(address), accepting);
    let (agent, coordinator) = (agent.expect("dialled"), coordinator.expect("accepted"));
    Ends { agent, coordinator, _endpoints: [server, client] }
}

fn question() -> AgentRequest {
    let gang = GangId::new("g-1").expect("a gang id");
    let (epoch, subject) = (Epoch { era: 1, n: 1 }, RaySubject::Actors);
    AgentRequest::RayState(RayStateRequest { gang, epoch, subject, state: None, limit: 7 })
}

type Result<T> = std::result::Result<T, RequestError>;

/// Asks an agent that answers with `result`.
async fn asked(
    ends: &Ends,
    result: std::result::Result<Vec<u8>, RequestFailure>,
) -> Result<Vec<u8>> {
    let answering = async {
        let stream = ends.agent.accept_request().await?;
        answer(stream, |request| async move {
            assert_eq!(request, question());
            result
        })
        .await
    };
    let question = question();
    let (asked, answered) = tokio::join!(ask(&ends.coordinator, &question), answering);
    answered.expect("the answer is sent");
    asked
}

/// Asks an agent that does with the stream what `misbehave` does.
async fn asked_of<F: Future<Output = ()>>(
    ends: &Ends,
    misbehave: impl FnOnce(FrameSender) -> F,
) -> Result<Vec<u8>> {
    let answering = async {
        let stream = ends.agent.accept_request().await.expect("a stream");
        let (sender, mut receiver) = stream.identify().await.expect("a request");
        receiver.receive().await.expect("a frame");
        misbehave(sender).await;
    };
    let question = question();
    tokio::join!(ask(&ends.coordinator, &question), answering).0
}

async fn send(sender: &mut FrameSender, frame: std::result::Result<Frame, impl std::fmt::Debug>) {
    // The other side may have stopped listening, which is what is tested.
    let _ = sender.send(&frame.expect("it encodes")).await;
}

fn body(length: usize) -> AnswerHead {
    AnswerHead::Body { length: length as u32 }
}

fn piece(length: usize) -> AnswerPiece {
    AnswerPiece { bytes: vec![7; length] }
}

#[tokio::test]
async fn a_question_gets_its_whole_answer() {
    let ends = ends().await;
    for length in [0, 1, 192 << 10, (192 << 10) + 1, MAX_ANSWER] {
        let body: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        assert_eq!(asked(&ends, Ok(body.clone())).await.expect("an answer"), body, "{length}");
    }
}

#[tokio::test]
async fn a_failure_says_why() {
    let ends = ends().await;
    let failure =
        |text: &str| RequestFailure { reason: FailureReason::NotHere, text: text.to_owned() };
    match asked(&ends, Err(failure("no such gang"))).await {
        Err(RequestError::Failed(told)) => assert_eq!(told, failure("no such gang")),
        other => panic!("{other:?}"),
    }
    match asked(&ends, Err(failure(&"é".repeat(5000)))).await {
        Err(RequestError::Failed(told)) => assert_eq!(told, failure(&"é".repeat(600))),
        other => panic!("{other:?}"),
    }
    match asked(&ends, Ok(vec![0; MAX_ANSWER + 1])).await {
        Err(RequestError::Failed(told)) => assert_eq!(told.reason, FailureReason::TooLarge),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_question_of_a_newer_coordinator_is_answered_with_unknown() {
    let ends = ends().await;
    let (opened, accepted) =
        tokio::join!(ends.coordinator.open_bi(StreamKind::Request), ends.agent.accept_request());
    let (mut sender, mut receiver) = opened.expect("a stream");
    let frame = Frame::new(Kind::Request, vec![0x63, 1, 2]).expect("a frame");
    let accepted = accepted.expect("a stream");
    let answering = answer(accepted, |_| async { panic!("it has no meaning here") });
    let asking = async {
        sender.send(&frame).await.expect("it is sent");
        receiver.receive().await.expect("a frame").expect("an answer")
    };
    let (answered, head) = tokio::join!(answering, asking);
    answered.expect("the refusal is sent");
    let AnswerHead::Failed(failure) = AnswerHead::from_frame(&head).expect("a head") else {
        panic!("{head:?}")
    };
    assert_eq!(failure.reason, FailureReason::Unknown);
}

#[tokio::test]
async fn an_answer_that_lies_about_its_length_is_refused() {
    let ends = ends().await;
    let lies: [(usize, &[usize]); 6] = [
        (MAX_ANSWER + 1, &[10]),
        (u32::MAX as usize, &[10]),
        (10, &[11]),
        (10, &[5, 5, 1]),
        (10, &[9]),
        (10, &[0, 10]),
    ];
    for (length, pieces) in lies {
        let told = asked_of(&ends, |mut sender| async move {
            send(&mut sender, body(length).to_frame()).await;
            for length in pieces {
                send(&mut sender, piece(*length).to_frame()).await;
            }
        });
        let told = told.await;
        assert!(matches!(told, Err(RequestError::Protocol(_))), "{length} {pieces:?}: {told:?}");
    }
    // An agent that drops the stream in the middle is no better.
    let told = asked_of(&ends, |mut sender| async move {
        send(&mut sender, body(10).to_frame()).await;
    });
    assert!(matches!(told.await, Err(RequestError::Protocol(_))));
    let told = asked_of(&ends, |_| async {}).await;
    assert!(matches!(told, Err(RequestError::Protocol(_))), "{told:?}");
    assert_eq!(asked(&ends, Ok(vec![1])).await.expect("the next one is fine"), [1]);
}

#[tokio::test]
async fn a_frame_that_is_no_answer_is_refused() {
    let ends = ends().await;
    let told = asked_of(&ends, |mut sender| async move {
        send(&mut sender, question().to_frame()).await;
    });
    assert!(matches!(told.await, Err(RequestError::Wire(_))));
    let told = asked_of(&ends, |mut sender| async move {
        send(&mut sender, body(10).to_frame()).await;
        send(&mut sender, body(10).to_frame()).await;
    });
    assert!(matches!(told.await, Err(RequestError::Wire(_))));
}

#[tokio::test]
async fn a_stream_of_another_kind_is_no_request() {
    let ends = ends().await;
    for kind in [StreamKind::Control, StreamKind::Join, StreamKind::Log] {
        let (opened, accepted) =
            tokio::join!(ends.coordinator.open_bi(kind), ends.agent.accept_request());
        let _opened = opened.expect("a stream");
        let answered =
            answer(accepted.expect("a stream"), |_| async { panic!("no request") }).await;
        let wrong = RequestError::Transport(TransportError::StreamKind(kind as u8));
        assert_eq!(answered.expect_err("refused").to_string(), wrong.to_string());
    }
    assert_eq!(asked(&ends, Ok(vec![1])).await.expect("the next one is fine"), [1]);
}

/// The agent's own bound: the ninth stream is not even opened. One that never ends is given up by
/// both sides, and makes room.
#[tokio::test]
async fn a9_requests_are_bounded_in_number_and_in_time() {
    let ends = ends().await;
    let began = Instant::now();
    let mut stuck = tokio::task::JoinSet::new();
    for _ in 0..REQUESTS {
        let coordinator = ends.coordinator.clone();
        stuck.spawn(async move { ask(&coordinator, &question()).await.map(drop) });
        let stream = ends.agent.accept_request().await.expect("a stream");
        stuck.spawn(answer(stream, |_| std::future::pending()));
    }
    let ninth = ends.coordinator.open_bi(StreamKind::Request);
    tokio::pin!(ninth);
    let early = std::future::poll_fn(|context| {
        std::task::Poll::Ready(ninth.as_mut().poll(context).is_ready())
    });
    assert!(!early.await, "a ninth request was let in");
    let mut outcomes = 0;
    while let Some(outcome) = stuck.join_next().await {
        let outcome = outcome.expect("no panic");
        // Whoever is the first to give up ends the stream of the other.
        assert!(outcome.is_err(), "{outcome:?}");
        outcomes += 1;
    }
    assert_eq!(outcomes, 2 * REQUESTS);
    assert!(began.elapsed() >= REQUEST_TIMEOUT);
    let (mut sender, _receiver) = ninth.await.expect("there is room again");
    sender.send(&question().to_frame().expect("it encodes")).await.expect("it is sent");
}
