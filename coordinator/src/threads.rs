//! The threads that serve the agents' connections, apart from those of the API.
//!
//! A frame of an agent wakes the socket's task, then the connection's, then the session's. Where several
//! threads share these, each wake may go to another thread, and at a thousand frames a second most of
//! the work is waking threads. So there are few: one for every four CPUs.

use std::io;
use std::num::NonZero;

use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};

/// One takes the samples of ten thousand agents; logs and code of many nodes need more.
const CPUS_PER_THREAD: usize = 4;
const MOST: usize = 8;

/// The threads; they end when this value is dropped.
pub struct AgentThreads {
    handle: Handle,
    /// Taken by the drop, and by nothing else.
    runtime: Option<Runtime>,
}

impl AgentThreads {
    /// Starts as many as suit this machine.
    ///
    /// # Errors
    /// No threads can be had.
    pub fn start() -> io::Result<AgentThreads> {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads((cpus / CPUS_PER_THREAD).clamp(1, MOST)).thread_name("agents");
        let runtime = builder.enable_all().build()?;
        Ok(AgentThreads { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// What is made while the guard lives has its tasks on these threads.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }
}

impl Drop for AgentThreads {
    fn drop(&mut self) {
        // Dropped like any other value, a runtime waits for its threads, which no async code may do. Logs
        // that are being written are cut off: what was not acknowledged, agents send again.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
