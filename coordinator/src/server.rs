//! The QUIC server: accepts connections, lets new agents join, hands certified ones to sessions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gangline_common::ids::{NodeId, short_suffix};
use gangline_common::random;
use gangline_common::tls::{agent_certificate, sha256};
use gangline_common::transport::{Connection, Endpoint, Incoming, StreamKind, close};
use gangline_common::wire::tlv::{
    Handshake, JoinGrant, JoinRequest, REFUSE_BUSY, REFUSE_PROTOCOL, REFUSE_TOKEN,
};
use tokio::sync::Semaphore;

use crate::agents::Agents;
use crate::board::Board;
use crate::ca::Ca;
use crate::core::effect::Answer;
use crate::core::event::{Event, Join};
use crate::driver::DriverHandle;
use crate::ingest::logs::Logs;
use crate::ingest::telemetry::Telemetry;
use crate::outbox::Outbox;
use crate::session;
use crate::trees::Trees;

/// Connections without a certificate at a time; more are refused (A6, A7).
const JOINING: usize = 64;
/// Connections with one certificate's identity at a time (A8).
const PER_IDENTITY: u32 = 4;
/// Codes that are read for agents at a time: each holds a thread until its agent has it all, and the
/// log store needs threads as well.
const CODE_READS: usize = 128;
/// A wrong token is answered after this (A15).
const WRONG_TOKEN_DELAY: Duration = Duration::from_secs(1);
/// A join must be complete within this.
const JOIN_TIMEOUT: Duration = Duration::from_secs(15);

/// What sessions and joins work with.
pub struct Parts {
    pub driver: DriverHandle,
    pub board: Board,
    pub outbox: Outbox,
    pub agents: Agents,
    pub telemetry: Telemetry,
    pub logs: Logs,
    pub trees: Trees,
    pub ca: Ca,
    pub era: u32,
    pub heartbeat_ms: u32,
}

/// Accepts agents.
pub struct Server {
    pub parts: Parts,
    pub build: &'static str,
    sessions: AtomicU64,
    per_identity: Mutex<HashMap<NodeId, u32>>,
    joining: Arc<Semaphore>,
    pub code_reads: Arc<Semaphore>,
}

impl Server {
    pub fn new(parts: Parts) -> Arc<Server> {
        Arc::new(Server {
            parts,
            build: env!("CARGO_PKG_VERSION"),
            sessions: AtomicU64::new(1),
            per_identity: Mutex::default(),
            joining: Arc::new(Semaphore::new(JOINING)),
            code_reads: Arc::new(Semaphore::new(CODE_READS)),
        })
    }

    pub fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// Accepts until the endpoint is closed.
    pub async fn accept_all(self: Arc<Self>, endpoint: Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(self.clone().connect(incoming));
        }
    }

    async fn connect(self: Arc<Self>, incoming: Incoming) {
        let remote = incoming.remote_address();
        let connection = match incoming.accept().await {
            Ok(connection) => connection,
            Err(error) => {
                tracing::info!(%remote, %error, "handshake failed");
                return;
            }
        };
        let Some(certificate) = connection.peer_certificate() else {
            let Ok(_slot) = self.joining.clone().try_acquire_owned() else {
                connection.close(close::REFUSED, "too many agents are joining; try again");
                return;
            };
            let joined = tokio::time::timeout(JOIN_TIMEOUT, self.join(&connection)).await;
            if joined.is_err() {
                tracing::info!(%remote, "join not completed in time");
            }
            connection.close(close::DONE, "");
            return;
        };
        match agent_certificate(&certificate) {
            Ok(agent) => {
                let node = agent.node.clone();
                if !self.enter(&node) {
                    connection.close(close::REFUSED, "too many connections of this identity");
                    return;
                }
                session::run(self.clone(), connection, agent).await;
                self.leave(&node);
            }
            Err(error) => {
                tracing::warn!(%remote, %error, "certificate refused");
                connection.close(close::REFUSED, "not an agent's certificate");
            }
        }
    }

    fn enter(&self, node: &NodeId) -> bool {
        let mut counts = self.per_identity.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(node.clone()).or_insert(0);
        if *count >= PER_IDENTITY {
            return false;
        }
        *count += 1;
        true
    }

    fn leave(&self, node: &NodeId) {
        let mut counts = self.per_identity.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                counts.remove(node);
            }
        }
    }

    /// Token and request in, certificate out. Every wrong token gets the same late answer.
    async fn join(&self, connection: &Connection) {
        let remote = connection.remote_address();
        let (sender, mut receiver) = match connection.accept_bi().await {
            Ok((StreamKind::Join, sender, receiver)) => (sender, receiver),
            Ok((_, sender, _)) => {
                let text = "without a certificate only joining is possible";
                return session::refuse(sender, REFUSE_PROTOCOL, text).await;
            }
            Err(_) => return,
        };
        let request = match receiver.receive().await {
            Ok(Some(frame)) => JoinRequest::from_frame(&frame),
            _ => return,
        };
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                return session::refuse(sender, REFUSE_PROTOCOL, &error.to_string()).await;
            }
        };
        match self.grant(&request).await {
            Ok(grant) => {
                tracing::info!(%remote, node = grant.node, token = request.token_id, "joined");
                let mut sender = sender;
                if let Ok(frame) = grant.to_frame()
                    && sender.send(&frame).await.is_ok()
                {
                    sender.finish().await;
                }
            }
            Err((code, text)) => {
                tracing::warn!(%remote, token = request.token_id, text, "join refused");
                tokio::time::sleep(WRONG_TOKEN_DELAY).await;
                session::refuse(sender, code, &text).await;
            }
        }
    }

    async fn grant(&self, request: &JoinRequest) -> Result<JoinGrant, (u32, String)> {
        let busy = |text: String| (REFUSE_BUSY, text);
        let random = random::number().map_err(|_| busy("no random numbers".to_owned()))?;
        let node =
            NodeId::new(format!("n-{}", short_suffix(random))).map_err(|e| busy(e.to_string()))?;
        let certificate = self
            .parts
            .ca
            .sign_agent(&request.csr, &node)
            .map_err(|e| (REFUSE_PROTOCOL, format!("certificate request: {e}")))?;
        let join = Join {
            token_id: request.token_id.clone(),
            secret_sha256: sha256(&request.token_secret),
            node: node.clone(),
            node_name: node_name(&request.node_name),
            certificate: sha256(&certificate),
        };
        // The certificate leaves only after its fingerprint and the token's use are durable.
        let answer = self.parts.driver.ask(|request| Event::Join { request, join }).await;
        match answer {
            Ok(Answer::Joined { .. }) => Ok(JoinGrant {
                node: node.to_string(),
                certificate,
                ca: self.parts.ca.certificate().to_vec(),
            }),
            Ok(_) => Err((
                REFUSE_TOKEN,
                "this join token is not valid here: wrong, expired or used up; make a new one \
                 with `gangline node token`"
                    .to_owned(),
            )),
            Err(gone) => Err(busy(gone.to_string())),
        }
    }
}

/// A wished name, reduced to what names may hold.
fn node_name(wished: &str) -> String {
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = wished.chars().filter(allowed).take(63).collect();
    if name.is_empty() { "node".to_owned() } else { name }
}
