//! What is refused, with a clear message, nothing started, nothing lost, memory bounded.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{SHORT, TestResult, built, command, command_fleet};
use anyhow::Context;
use gangline_common::ids::{Generation, MemberKey};
use gangline_common::tls::{self, Identity};
use gangline_common::transport::StreamKind;
use gangline_common::wire::tlv::{self, Hello};
use gangline_common::wire::v1::{
    AgentMessage, Ended, EndedHow, LogChunk, MemberReport, MemberState, NodeReport,
};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::raw_agent::{RawAgent, hello};

/// Runs a real agent with this token; returns its exit code and what it said.
fn agent_with(fleet: &Fleet, token: &str) -> anyhow::Result<(Option<i32>, String)> {
    let options = AgentOptions::worker("intruder", 0);
    std::fs::write(fleet.path("intruder.token"), token)?;
    let output =
        fleet.agent_command(&options).stdin(Stdio::null()).output().context("running the agent")?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.code(), text))
}

#[tokio::test]
async fn a15_wrong_expired_and_used_join_tokens() -> TestResult {
    let fleet = command_fleet(1).await?;
    let good = fleet.join_token(1, 600).await?;
    let mut wrong = good.clone();
    // Another secret of the same form.
    wrong.replace_range(good.len() - 10..good.len() - 4, "AAAAAA");
    let expired = fleet.join_token(1, 1).await?;
    let used = fleet.join_token(1, 600).await?;
    RawAgent::join(fleet.quic(), &used).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let mut answers = Vec::new();
    for token in [&wrong, &expired, &used] {
        let (code, text) = agent_with(&fleet, token)?;
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("wrong, expired or used up"), "{text}");
        answers.push(RawAgent::join(fleet.quic(), token).await?.err().context("refused")?);
    }
    assert!(answers.iter().all(|refuse| *refuse == answers[0]), "one answer for all: {answers:?}");
    // The good token was not spoilt by the attempts.
    RawAgent::join(fleet.quic(), &good).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    Ok(())
}

#[tokio::test]
async fn a16_a_wrong_key_pin_stops_the_agent_before_it_sends_the_token() -> TestResult {
    let fleet = command_fleet(1).await?;
    let good = fleet.join_token(1, 600).await?;
    let mut parts: Vec<&str> = good.split('.').collect();
    let foreign = data_encoding::BASE64URL_NOPAD.encode(&[42; 32]);
    parts[1] = &foreign;
    let (code, text) = agent_with(&fleet, &parts.join("."))?;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("pin"), "{text}");
    // The token is as good as before.
    RawAgent::join(fleet.quic(), &good).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    Ok(())
}

#[tokio::test]
async fn a20_a_certificate_of_another_cluster() -> TestResult {
    let fleet = command_fleet(1).await?;
    let other = command_fleet(0).await?;
    let token = other.join_token(1, 600).await?;
    let mut stranger =
        RawAgent::join(other.quic(), &token).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let token = fleet.join_token(1, 600).await?;
    let ours = RawAgent::join(fleet.quic(), &token).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    stranger.coordinator = fleet.quic();
    stranger.ca = ours.ca.clone();
    assert!(stranger.connect(&hello("x")).await.is_err(), "a foreign certificate was accepted");
    assert!(ours.connect(&hello("x")).await?.is_ok());
    Ok(())
}

#[tokio::test]
async fn a18_an_agent_that_speaks_for_another_node() -> TestResult {
    let fleet = command_fleet(1).await?;
    let api = fleet.api()?;
    let job = api.submit(&command("victim", 1, r#"["sh", "-c", "echo mine; sleep 600"]"#)).await?;
    let running = api.wait_job(&job, &["RUNNING"], SHORT).await?;
    let mark = fleet
        .gang_processes()
        .into_iter()
        .find_map(|process| process.mark)
        .context("no marked process")?;
    let key: MemberKey = mark.parse()?;
    let token = fleet.join_token(1, 600).await?;
    let liar = RawAgent::join(fleet.quic(), &token).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let mut session = liar.connect(&hello("liar")).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let ended = MemberState::Ended(Ended {
        how: EndedHow::Exited { code: 1 },
        asked: false,
        last_output: "lies".into(),
        swept: 0,
        logs_complete: true,
    });
    let report = NodeReport {
        held: Generation::default(),
        members: vec![MemberReport {
            key: key.clone(),
            state: ended,
            guests: Vec::new(),
            checkpoint: None,
            saved: None,
            usage: None,
        }],
        gangs: Vec::new(),
    };
    session.say(AgentMessage::Report(report.clone())).await?;
    let mut logs = session.connection.open_uni(StreamKind::Log).await?;
    let bytes = b"lies".to_vec();
    let chunk = LogChunk { key, file: "output".into(), offset: 5, bytes, read_ms: 0 };
    let chunk = chunk.to_frame()?;
    // The stream is refused at once, and the session goes on.
    let refused = async {
        while logs.send(&chunk).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SHORT, refused).await?;
    session.say(AgentMessage::Report(report)).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(api.state(&job).await?, "RUNNING");
    assert_eq!(api.logs(&job, "").await?, "mine\n");
    assert_eq!(api.job(&job).await?["members"], running["members"]);
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    fleet.assert_clean().await
}

#[tokio::test]
async fn f24_an_agent_of_another_protocol_version_gets_a_text() -> TestResult {
    let fleet = command_fleet(0).await?;
    let token = fleet.join_token(1, 600).await?;
    let agent = RawAgent::join(fleet.quic(), &token).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let newer = Hello { minor_oldest: 7, minor: 9, ..hello("newer") };
    let refuse = agent.connect(&newer).await?.err().context("not refused")?;
    assert_eq!(refuse.code, tlv::REFUSE_VERSION);
    assert!(refuse.text.contains("1.7 to 1.9"), "{}", refuse.text);
    // One that also speaks ours is welcome.
    let both = Hello { minor_oldest: 0, minor: 9, ..hello("both") };
    assert!(agent.connect(&both).await?.is_ok());
    Ok(())
}

#[tokio::test]
async fn a24_f40_a_second_agent_with_the_same_identity() -> TestResult {
    let fleet = command_fleet(0).await?;
    let token = fleet.join_token(1, 600).await?;
    let agent = RawAgent::join(fleet.quic(), &token).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let first = agent.connect(&hello("first")).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let clone = agent.connect(&hello("clone")).await?.err().context("not refused")?;
    assert_eq!(clone.code, tlv::REFUSE_CLONE);
    // The same process may come back over a new connection; the old one is closed.
    assert!(agent.connect(&hello("first")).await?.is_ok());
    let (code, _) = tokio::time::timeout(SHORT, first.connection.closed()).await?;
    assert_eq!(code, Some(gangline_common::transport::close::SUPERSEDED));
    Ok(())
}

/// Resident memory of a process, in KiB.
fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("VmRSS")?.parse()?)
}

#[tokio::test]
async fn a1_a7_a_4_gib_header_and_random_bytes_on_the_port() -> TestResult {
    let fleet = command_fleet(0).await?;
    let pid = fleet.coordinator_id().context("pid")?;
    let token = fleet.join_token(1, 600).await?;
    let agent = RawAgent::join(fleet.quic(), &token).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let before = resident_kib(pid)?;
    for _ in 0..20 {
        send_raw(&agent.identity, &agent.ca, fleet.quic(), &[1, 0x11, 0xff, 0xff, 0xff, 0xff])
            .await?;
    }
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let mut noise = [0u8; 1200];
    for round in 0..20_000u32 {
        for (place, byte) in noise.iter_mut().enumerate() {
            *byte = (round.wrapping_mul(2_654_435_761).wrapping_add(place as u32 * 97) >> 7) as u8;
        }
        // A full socket buffer drops it, which is as good.
        let _ = socket.send_to(&noise, fleet.quic());
    }
    let grown = resident_kib(pid)?.saturating_sub(before);
    assert!(grown < 32 << 10, "resident memory grew by {grown} KiB");
    // And the next honest agent is served.
    assert!(agent.connect(&hello("after")).await?.is_ok());
    Ok(())
}

/// Opens a bidirectional stream and sends these bytes as they are.
async fn send_raw(
    identity: &Identity,
    ca: &rustls::pki_types::CertificateDer<'static>,
    to: SocketAddr,
    bytes: &[u8],
) -> TestResult {
    let config = tls::agent_config(identity, ca)?;
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(config)?;
    let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
    let connection = endpoint.connect(to, tls::SERVER_NAME)?.await?;
    let (mut send, _receive) = connection.open_bi().await?;
    send.write_all(bytes).await?;
    let closed = tokio::time::timeout(SHORT, connection.closed()).await?;
    assert!(
        matches!(closed, quinn::ConnectionError::ApplicationClosed(_)),
        "the coordinator did not close: {closed}"
    );
    Ok(())
}

#[tokio::test]
async fn bad_specs_are_refused_with_their_place() -> TestResult {
    let fleet = command_fleet(0).await?;
    let api = fleet.api()?;
    let pid = fleet.coordinator_id().context("pid")?;
    let headers = [("content-type", "application/yaml")];
    let cases = [
        ("name: x\nresources:\n  gpu_per_node: 8\nrun: x\n", "gpus_per_node"),
        ("resources: {nnodes: 0}\nrun: x\n", "nnodes"),
        ("resources: {gpus_per_node: -1}\nrun: x\n", "gpus_per_node"),
        ("launcher: {driver: rank0}\nrun: x\n", "not built yet"),
    ];
    for (spec, said) in cases {
        let (status, answer) = api.post("/api/v1/jobs", &headers, spec).await?;
        assert_eq!(status, 422, "{answer}");
        assert!(answer.to_string().contains(said), "{answer}");
        assert!(answer["errors"][0]["line"].is_u64(), "{answer}");
    }
    let before = resident_kib(pid)?;
    let huge = format!("run: {}\n", "x".repeat(5 << 20));
    match api.post("/api/v1/jobs", &headers, &huge).await {
        Ok((status, answer)) => {
            assert_eq!(status, 413, "{answer}");
            assert!(answer.to_string().contains("1048576"), "{answer}");
        }
        // The server may close before it has read all of what it refuses.
        Err(error) => assert!(!format!("{error:#}").is_empty()),
    }
    assert!(resident_kib(pid)?.saturating_sub(before) < 16 << 10);
    assert_eq!(api.get("/api/v1/jobs").await?["jobs"].as_array().map(Vec::len), Some(0));
    Ok(())
}

/// The cause is for the operator: in the log, under the id that the caller was told.
#[tokio::test]
async fn a48_the_cause_is_in_the_log_under_the_request_id() -> TestResult {
    let fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    let api = fleet.api()?;
    std::fs::create_dir(fleet.state_dir().join("secrets.key"))?;
    let value = Some("a value nobody sees".to_owned());
    let response = api.send(reqwest::Method::PUT, "/api/v1/secrets/KEY", &[], value).await?;
    assert_eq!(response.status(), 500);
    let problem: serde_json::Value = serde_json::from_str(&response.text().await?)?;
    let id = problem["request_id"].as_str().context("no request id")?;
    let log = fleet.coordinator_log();
    let line =
        log.lines().find(|line| line.contains(id)).context("the log does not know the id")?;
    assert!(line.contains("sealing a secret") && line.contains("cause="), "{line}");
    assert!(!log.contains("a value nobody sees"), "{log}");
    Ok(())
}

#[tokio::test]
async fn f20_a_truncated_store_is_refused_and_named() -> TestResult {
    let mut fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    fleet.api()?.submit(&command("kept", 1, r#"["true"]"#)).await?;
    fleet.stop_coordinator()?;
    let store = fleet.state_dir().join("store.redb");
    let whole = std::fs::read(&store)?;
    for length in [0, whole.len() / 2, whole.len() - 4096] {
        std::fs::write(&store, &whole[..length])?;
        let output = fleet.coordinator_command().stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{length}: {text}");
        assert!(text.contains("store.redb"), "{length}: {text}");
        assert_eq!(std::fs::metadata(&store)?.len(), length as u64, "it was changed");
    }
    std::fs::write(&store, &whole)?;
    fleet.start_coordinator().await?;
    let jobs = fleet.api()?.get("/api/v1/jobs").await?;
    assert_eq!(jobs["jobs"][0]["name"], "kept");
    Ok(())
}

#[tokio::test]
async fn two_coordinators_cannot_share_a_state_directory() -> TestResult {
    let fleet = command_fleet(0).await?;
    let output = Command::new(&fleet.binaries.coordinator)
        .args(["serve", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--state-dir"])
        .arg(fleet.state_dir())
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{text}");
    assert!(text.contains("store.redb"), "{text}");
    Ok(())
}
