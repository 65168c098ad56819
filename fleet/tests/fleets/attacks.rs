//! Attacks on the QUIC port of a real coordinator, by their numbers: A6, A8, A9, A12.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{SHORT, TestResult, command_fleet};
use anyhow::Context;
use gangline_common::ids::Generation;
use gangline_common::tls::{self, agent_config};
use gangline_common::transport::close;
use gangline_common::wire::tlv::Handshake;
use gangline_common::wire::v1::{AgentMessage, Heartbeat};
use gangline_fleet::fleet::Fleet;
use gangline_fleet::raw_agent::{RawAgent, hello};
use quinn::VarInt;

async fn joined(fleet: &Fleet) -> anyhow::Result<RawAgent> {
    let token = fleet.join_token(1, 600).await?;
    RawAgent::join(fleet.quic(), &token).await?.map_err(|refuse| anyhow::anyhow!(refuse.text))
}

/// A bare QUIC connection with the agent's certificate and this receive window per stream.
async fn dial(
    agent: &RawAgent,
    window: u32,
) -> anyhow::Result<(quinn::Endpoint, quinn::Connection)> {
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(agent_config(
        &agent.identity,
        &agent.ca,
    )?)?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    let mut transport = quinn::TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(window))
        .keep_alive_interval(Some(Duration::from_secs(2)));
    config.transport_config(Arc::new(transport));
    let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    endpoint.set_default_client_config(config);
    let connection = endpoint.connect(agent.coordinator, tls::SERVER_NAME)?.await?;
    Ok((endpoint, connection))
}

/// A first packet from an address that was never validated costs a Retry and nothing else.
#[tokio::test]
async fn a6_an_unvalidated_address_gets_a_retry() -> TestResult {
    let fleet = command_fleet(0).await?;
    let agent = joined(&fleet).await?;
    // A relay that passes on the first packet of a client and keeps the first answer.
    let relay = UdpSocket::bind("127.0.0.1:0")?;
    relay.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut through = agent.clone();
    through.coordinator = relay.local_addr()?;
    let coordinator = fleet.quic();
    let client = tokio::spawn(async move { dial(&through, 1 << 20).await.map(drop) });
    let (sent, answer) = tokio::task::spawn_blocking(move || -> anyhow::Result<_> {
        let mut buffer = [0; 2048];
        let (length, _) = relay.recv_from(&mut buffer)?;
        let outside = UdpSocket::bind("127.0.0.1:0")?;
        outside.set_read_timeout(Some(Duration::from_secs(5)))?;
        outside.send_to(buffer.get(..length).context("packet")?, coordinator)?;
        let (answered, _) = outside.recv_from(&mut buffer)?;
        Ok((length, buffer.get(..answered).context("answer")?.to_vec()))
    })
    .await??;
    client.abort();
    let first = answer.first().copied().context("an empty answer")?;
    assert_eq!(first & 0xf0, 0xf0, "a Retry packet");
    assert!(answer.len() <= 3 * sent, "{} bytes for {sent}", answer.len());
    Ok(())
}

/// Four connections of one identity, not five.
#[tokio::test]
async fn a8_many_connections_with_one_certificate() -> TestResult {
    let fleet = command_fleet(0).await?;
    let agent = joined(&fleet).await?;
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(dial(&agent, 1 << 20).await?);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for _ in 0..20 {
        let (_endpoint, connection) = dial(&agent, 1 << 20).await?;
        let closed = tokio::time::timeout(SHORT, connection.closed()).await?;
        let quinn::ConnectionError::ApplicationClosed(reason) = closed else {
            anyhow::bail!("not refused: {closed}");
        };
        assert_eq!(reason.error_code, VarInt::from_u32(close::REFUSED));
    }
    Ok(())
}

/// Streams that were begun and never go on are dropped after their deadline; the session lives.
#[tokio::test]
async fn a9_streams_that_never_finish() -> TestResult {
    let fleet = command_fleet(0).await?;
    let agent = joined(&fleet).await?;
    let (_endpoint, connection) = dial(&agent, 1 << 20).await?;
    let (mut control, _incoming) = connection.open_bi().await?;
    control.write_all(&[1]).await?;
    control.write_all(&hello("slow").to_frame()?.to_bytes()).await?;
    let beat = Heartbeat { sequence: 1, held: Generation::default() };
    let beat = AgentMessage::Heartbeat(beat).to_frame()?.to_bytes();
    let mut hanging = Vec::new();
    for _ in 0..64 {
        let mut stream = connection.open_uni().await?;
        // Telemetry, and the first byte of a header.
        stream.write_all(&[3, 0x30]).await?;
        hanging.push(stream);
    }
    for _ in 0..40 {
        control.write_all(&beat).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for stream in &mut hanging {
        let stopped = tokio::time::timeout(Duration::from_secs(1), stream.stopped()).await;
        assert!(stopped.is_ok(), "a hanging stream is still held");
    }
    let node = fleet.api()?.get(&format!("/api/v1/nodes/{}", agent.node)).await?;
    assert_eq!(node["reachability"], "reachable", "{node}");
    Ok(())
}

/// F35: a peer that sends and never reads loses its session; nothing queues up for it.
#[tokio::test]
async fn a12_a_peer_that_does_not_read() -> TestResult {
    let fleet = command_fleet(0).await?;
    let agent = joined(&fleet).await?;
    // A window of 512 bytes is full after some sixty answers.
    let (_endpoint, connection) = dial(&agent, 512).await?;
    let (mut control, _unread) = connection.open_bi().await?;
    control.write_all(&[1]).await?;
    control.write_all(&hello("deaf").to_frame()?.to_bytes()).await?;
    let talking = tokio::spawn(async move {
        for sequence in 0..100_000 {
            let beat = Heartbeat { sequence, held: Generation::default() };
            let frame = AgentMessage::Heartbeat(beat).to_frame()?;
            if control.write_all(&frame.to_bytes()).await.is_err() {
                return Ok(());
            }
        }
        anyhow::bail!("the coordinator took everything")
    });
    let closed = tokio::time::timeout(SHORT, connection.closed()).await?;
    talking.await??;
    let quinn::ConnectionError::ApplicationClosed(reason) = closed else {
        anyhow::bail!("not closed by the coordinator: {closed}");
    };
    assert_eq!(reason.error_code, VarInt::from_u32(close::OVERFLOW));
    Ok(())
}
