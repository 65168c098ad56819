//! Ten thousand watchers at one address: they get their share of streams and of connections, and nobody
//! else notices.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use reqwest::Method;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{SHORT, TestResult, command_fleet};

const CLIENTS: u64 = 10_000;
/// Descriptors that are left to the other tests of this process.
const LEFT: u64 = 5_000;
/// Everybody else comes from 127.0.0.1.
const CROWD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Streams of one user, and connections of one address, as the coordinator has them.
const STREAMS: usize = 64;
const CONNECTIONS: usize = 1024;
/// How often somebody else asks while the crowd comes.
const EVERY: u64 = 500;

/// As many clients as this process may have descriptors for.
fn clients() -> anyhow::Result<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = CLIENTS + LEFT;
    if current.is_some_and(|current| current < wanted) {
        let most = maximum.map_or(wanted, |maximum| maximum.min(wanted));
        setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum })?;
    }
    let may = getrlimit(Resource::Nofile).current.unwrap_or(wanted);
    Ok(CLIENTS.min(may.saturating_sub(LEFT)))
}

/// The status of the answer; `None` when the connection ended without one.
async fn status(client: &mut TcpStream) -> anyhow::Result<Option<u16>> {
    let mut head = [0; 12];
    let read = tokio::time::timeout(SHORT, client.read_exact(&mut head)).await;
    if read.context("neither an answer nor an end")?.is_err() {
        return Ok(None);
    }
    let status = std::str::from_utf8(&head)?.rsplit(' ').next().context("a status")?;
    Ok(Some(status.parse()?))
}

#[tokio::test]
async fn ten_thousand_watchers_at_one_address_leave_room_for_everybody_else() -> TestResult {
    let fleet = command_fleet(1).await?;
    let api = fleet.api()?;
    let spec = "name: ticks\nlauncher: {type: command}\nresources: {cpus_per_node: 1}\n\
                run: while true; do echo tick; sleep 0.2; done\n";
    let job = api.submit(spec).await?;
    api.wait_job(&job, &["RUNNING"], SHORT).await?;
    let wish = json!({
        "kind": "api", "name": "crowd", "user": "crowd", "project": "default", "role": "viewer",
    });
    let headers = [("content-type", "application/json")];
    let (code, made) = api.post("/api/v1/tokens", &headers, &wish.to_string()).await?;
    ensure!(code == 201, "{made}");
    let token = made["token"].as_str().context("a token")?;
    let request = format!(
        "GET /api/v1/nodes/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    let address = fleet.url().trim_start_matches("http://").parse()?;

    let count = clients()?;
    let mut crowd = Vec::new();
    let mut slowest = Duration::ZERO;
    let mut closed = 0;
    for number in 0..count {
        let socket = TcpSocket::new_v4()?;
        socket.bind((CROWD, 0).into())?;
        let mut client = tokio::time::timeout(SHORT, socket.connect(address)).await??;
        // One that is closed at once may take no request.
        match client.write_all(request.as_bytes()).await {
            Ok(()) => crowd.push(client),
            Err(_) => closed += 1,
        }
        if number % EVERY == 0 {
            let asked = Instant::now();
            let asking = api.send(Method::GET, "/api/v1/nodes", &[], None);
            let response = tokio::time::timeout(SHORT, asking).await??;
            ensure!(response.status() == 200, "{}", response.status());
            slowest = slowest.max(asked.elapsed());
        }
    }
    let (mut streams, mut refused) = (0, 0);
    for client in &mut crowd {
        match status(client).await? {
            Some(200) => streams += 1,
            Some(429 | 503) => refused += 1,
            Some(other) => anyhow::bail!("somebody was answered {other}"),
            None => closed += 1,
        }
    }
    println!(
        "{count} clients: {streams} streams, {refused} refused, {closed} closed; the slowest answer \
         to somebody else came after {slowest:?}"
    );
    ensure!(streams == STREAMS, "{streams} streams");
    // Who is refused keeps no connection: nearly everybody gets that far.
    ensure!(refused >= CONNECTIONS, "{refused} refused, {closed} closed");

    // And now so many that ask for nothing, and stay.
    let mut silent = Vec::new();
    for _ in 0..2 * CONNECTIONS {
        let socket = TcpSocket::new_v4()?;
        socket.bind((CROWD, 0).into())?;
        silent.push(tokio::time::timeout(SHORT, socket.connect(address)).await??);
    }
    let until = Instant::now() + SHORT;
    while !fleet.coordinator_log().contains("too many connections") {
        ensure!(Instant::now() < until, "it is not said");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // Somebody else watches, reads logs and stops the job; the node was never away.
    let mut watched = api.send(Method::GET, "/api/v1/nodes/stream?node=w0", &[], None).await?;
    ensure!(watched.status() == 200, "{}", watched.status());
    let mut seen = String::new();
    let until = Instant::now() + SHORT;
    while !seen.contains("event: sample") {
        ensure!(Instant::now() < until, "no sample came: {seen}");
        let chunk = tokio::time::timeout(SHORT, watched.chunk()).await??;
        seen.push_str(std::str::from_utf8(&chunk.context("the stream has ended")?)?);
    }
    ensure!(api.logs(&job, "").await?.contains("tick"), "no log");
    let away = api.get("/api/v1/events?kind=node.lost").await?;
    ensure!(away["events"].as_array().is_some_and(Vec::is_empty), "{away}");
    api.stop(&job).await?;
    api.wait_job(&job, &["CANCELLED"], SHORT).await?;
    drop((crowd, silent));
    fleet.assert_clean().await
}
