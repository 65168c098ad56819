//! An agent made of the protocol alone: says what a real one never would.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use gangline_common::tls::{Identity, agent_config, join_config, key_and_request};
use gangline_common::transport::{
    Connection, Endpoint, FrameReceiver, FrameSender, StreamKind, TransportError,
};
use gangline_common::wire::frame::Kind;
use gangline_common::wire::tlv::{Handshake, Hello, JoinGrant, JoinRequest, Refuse, Welcome};
use gangline_common::wire::v1::AgentMessage;
use gangline_common::wire::{MINOR, MINOR_OLDEST};
use rustls::pki_types::CertificateDer;

#[derive(Clone)]
pub struct RawAgent {
    pub node: String,
    pub identity: Identity,
    pub ca: CertificateDer<'static>,
    pub coordinator: SocketAddr,
}

pub struct RawSession {
    pub connection: Connection,
    pub control: FrameSender,
    pub incoming: FrameReceiver,
    /// Dropping it would end the connection.
    pub endpoint: Endpoint,
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}

impl RawAgent {
    /// Joins with a token; `Err` holds the coordinator's refusal.
    pub async fn join(
        coordinator: SocketAddr,
        token: &str,
    ) -> anyhow::Result<Result<RawAgent, Refuse>> {
        let token: gangline_common::join_token::JoinToken = token.parse()?;
        let endpoint = Endpoint::client(any_port(), join_config(token.pin)?)?;
        let connection = endpoint.dial(coordinator).await?;
        let (mut sender, mut receiver) = connection.open_bi(StreamKind::Join).await?;
        let (key_pkcs8, csr) = key_and_request()?;
        let request = JoinRequest {
            token_id: token.id,
            token_secret: token.secret.to_vec(),
            csr,
            node_name: "raw".into(),
            build: "test".into(),
        };
        sender.send(&request.to_frame()?).await?;
        let frame = receiver.receive().await?.context("no answer to the join")?;
        if frame.kind == Kind::Refuse {
            return Ok(Err(Refuse::from_frame(&frame)?));
        }
        let grant = JoinGrant::from_frame(&frame)?;
        Ok(Ok(RawAgent {
            node: grant.node,
            identity: Identity { chain: vec![grant.certificate.into()], key_pkcs8 },
            ca: grant.ca.into(),
            coordinator,
        }))
    }

    /// Connects and says Hello; `Err` holds the refusal.
    pub async fn connect(&self, hello: &Hello) -> anyhow::Result<Result<RawSession, Refuse>> {
        self.connect_over(&self.socket()?, hello).await
    }

    /// A socket over which this agent and others can connect.
    pub fn socket(&self) -> anyhow::Result<Endpoint> {
        Ok(Endpoint::client(any_port(), agent_config(&self.identity, &self.ca)?)?)
    }

    /// The same over a socket that may be another agent's, too.
    pub async fn connect_over(
        &self,
        socket: &Endpoint,
        hello: &Hello,
    ) -> anyhow::Result<Result<RawSession, Refuse>> {
        let endpoint = socket.with_identity(agent_config(&self.identity, &self.ca)?)?;
        let connection = endpoint.dial(self.coordinator).await?;
        let (mut control, mut incoming) = connection.open_bi(StreamKind::Control).await?;
        control.send(&hello.to_frame()?).await?;
        let frame = incoming.receive().await?.context("no answer to Hello")?;
        match frame.kind {
            Kind::Welcome => {
                Welcome::from_frame(&frame)?;
                Ok(Ok(RawSession { connection, control, incoming, endpoint }))
            }
            Kind::Refuse => Ok(Err(Refuse::from_frame(&frame)?)),
            other => bail!("{other:?} in answer to Hello"),
        }
    }
}

pub fn hello(instance: &str) -> Hello {
    Hello {
        minor_oldest: MINOR_OLDEST,
        minor: MINOR,
        build: "raw".into(),
        instance: instance.to_owned(),
    }
}

impl RawSession {
    pub async fn say(&mut self, message: AgentMessage) -> Result<(), TransportError> {
        self.control.send(&message.to_frame()?).await
    }
}
