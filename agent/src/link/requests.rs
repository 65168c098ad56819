//! Questions of the coordinator, past the driver: each on a stream of its own, a few at a time.

use std::sync::Arc;

use gangline_common::request::answer;
use gangline_common::transport::{Connection, REQUESTS, TransportError};
use gangline_common::wire::request::AgentRequest;
use tokio::task::JoinSet;

use super::Channels;
use crate::simulated;
use crate::supervisor::scene::Wanted;
use crate::supervisor::{checkpoints, report};

/// Answers until the connection ends; what is being answered then ends with it.
pub(super) async fn serve(connection: &Connection, channels: &Channels) -> TransportError {
    let mut answers = JoinSet::new();
    loop {
        while answers.len() >= REQUESTS as usize {
            // A panic in one answer is a defect of that answer alone.
            let _ = answers.join_next().await;
        }
        while answers.try_join_next().is_some() {}
        let stream = match connection.accept_request().await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        let (ray, page) = (channels.ray.clone(), channels.page.clone());
        let gpus = channels.inventory.borrow().gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let (scenes, nursery) = (channels.scenes.clone(), Arc::clone(&channels.nursery));
        answers.spawn(async move {
            let handle = |request| async move {
                match request {
                    AgentRequest::RayState(request) => ray.answer(&request).await,
                    AgentRequest::NodeMetrics => page.text().await,
                    AgentRequest::RayMetrics { key } => ray.exports.page(&key).await,
                    AgentRequest::Inject(fault) => simulated::inject(fault, gpus).await,
                    AgentRequest::Stacks { key } => scenes.answer(&key, Wanted::Stacks).await,
                    AgentRequest::Scene { key } => scenes.answer(&key, Wanted::All).await,
                    AgentRequest::WriteReport { directory, attempt, text } => {
                        report::write(&nursery, &directory, attempt, text).await
                    }
                    AgentRequest::KeepScene { key, hung } => {
                        let wanted = if hung { Wanted::KeptHung } else { Wanted::KeptFailed };
                        scenes.answer(&key, wanted).await
                    }
                    AgentRequest::Checkpoints { directory } => {
                        checkpoints::answer(&nursery, &directory).await
                    }
                }
            };
            if let Err(error) = answer(stream, handle).await {
                tracing::info!(%error, "a question of the coordinator was not answered");
            }
        });
    }
}
