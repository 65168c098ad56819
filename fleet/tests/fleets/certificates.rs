//! Certificates that live for a minute: renewal, expiry, revocation of a live connection.

use std::time::{Duration, Instant};

use crate::support::{SHORT, TestResult, built, command};
use gangline_fleet::fleet::{AgentOptions, Fleet, FleetOptions};
use gangline_fleet::raw_agent::{RawAgent, hello};

#[tokio::test]
async fn a_60_second_certificate_is_renewed_while_a_gang_runs() -> TestResult {
    let options = FleetOptions {
        coordinator_config: "agent_certificate_lifetime_s = 60\n".to_owned(),
        ..FleetOptions::default()
    };
    let mut fleet = Fleet::start(built().await?, options).await?;
    fleet.add_agent(AgentOptions::worker("w0", 0)).await?;
    let api = fleet.api()?;
    let job = api.submit(&command("long", 1, r#"["sleep", "80"]"#)).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    // An agent that does not renew is cut off when its certificate ends.
    let token = fleet.join_token(1, 600).await?;
    let lazy = RawAgent::join(fleet.quic(), &token).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let joined = Instant::now();
    let mut session = lazy.connect(&hello("lazy")).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let cut = tokio::spawn(async move {
        let beat = gangline_common::wire::v1::Heartbeat {
            sequence: 1,
            held: gangline_common::ids::Generation::default(),
        };
        while session.say(gangline_common::wire::v1::AgentMessage::Heartbeat(beat)).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        session.connection.closed().await.0
    });
    let done = api.wait_job(&job, &["SUCCEEDED"], Duration::from_secs(120)).await?;
    assert_eq!(done["attempts"], 1);
    let node = api.get("/api/v1/nodes/w0").await?;
    assert_eq!(node["reachability"], "reachable", "{node}");
    let code = tokio::time::timeout(SHORT, cut).await??;
    assert_eq!(code, Some(gangline_common::transport::close::EXPIRED));
    assert!(joined.elapsed() > Duration::from_secs(55));
    let log = std::fs::read_to_string(fleet.path("agent-w0.log"))?;
    assert!(log.contains("renew"), "{log}");
    fleet.assert_clean().await
}

#[tokio::test]
async fn a19_a_revoked_certificate_is_cut_at_once() -> TestResult {
    let fleet = Fleet::start(built().await?, FleetOptions::default()).await?;
    let token = fleet.join_token(1, 600).await?;
    let agent = RawAgent::join(fleet.quic(), &token).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let session = agent.connect(&hello("x")).await?.map_err(|r| anyhow::anyhow!(r.text))?;
    let path = format!("/api/v1/nodes/{}/revoke", agent.node);
    let headers = [("content-type", "application/json")];
    let (status, answer) = fleet.api()?.post(&path, &headers, "{}").await?;
    assert!((200..300).contains(&status), "{status}: {answer}");
    let closed = tokio::time::timeout(Duration::from_secs(5), session.connection.closed()).await?;
    assert_eq!(closed.0, Some(gangline_common::transport::close::REVOKED));
    let refuse = agent.connect(&hello("y")).await?.err();
    let code = refuse.map(|refuse| refuse.code);
    assert_eq!(code, Some(gangline_common::wire::tlv::REFUSE_REVOKED));
    Ok(())
}
