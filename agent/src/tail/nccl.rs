//! Lines of logs that say that NCCL has lost its network. Alone they say nothing of a node: the health
//! rules ask for them where a link was lost at the same time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use gangline_common::ids::GangId;
use gangline_common::time::Timestamp;
use memchr::memmem::Finder;
use tokio::sync::watch;

/// Lines of one chunk that are looked at, and how much of each, in bytes.
const LINES: usize = 64;
const LINE: usize = 4096;

static NAME: LazyLock<Finder> = LazyLock::new(|| Finder::new("NCCL"));
static CODE: LazyLock<Finder> = LazyLock::new(|| Finder::new("nccl"));
/// What NCCL and PyTorch write when the other side, or the way to it, is gone.
static SIGNS: LazyLock<[Finder; 9]> = LazyLock::new(|| {
    [
        "Got completion from peer",
        "NET/IB : Got async",
        "Connection closed by remote peer",
        "Call to ibv_",
        "socketProgress",
        "ncclRemoteError",
        "ncclSystemError",
        "unhandled system error",
        "collective operation timeout",
    ]
    .map(Finder::new)
});

/// After such a line nothing is looked at for so long, in milliseconds.
const PAUSE_MS: u64 = 1_000;

/// The gang that wrote such a line last.
#[derive(Debug, Clone)]
pub struct NcclErrors {
    newest: watch::Sender<Option<GangId>>,
    /// When that was, on the boot clock; 0 before the first.
    at_ms: Arc<AtomicU64>,
}

impl Default for NcclErrors {
    fn default() -> Self {
        NcclErrors { newest: watch::channel(None).0, at_ms: Arc::default() }
    }
}

impl NcclErrors {
    /// Told at most once in [`PAUSE_MS`]; only the newest counts.
    pub fn subscribe(&self) -> watch::Receiver<Option<GangId>> {
        self.newest.subscribe()
    }

    /// Looks at a piece of a gang's log. A line that two pieces share is not seen.
    pub(super) fn look(&self, gang: &GangId, bytes: &[u8]) {
        let now_ms = Timestamp::now().boot_ms;
        let last_ms = self.at_ms.load(Ordering::Relaxed);
        if (last_ms == 0 || now_ms.saturating_sub(last_ms) >= PAUSE_MS) && is_there(bytes) {
            self.at_ms.store(now_ms, Ordering::Relaxed);
            self.newest.send_replace(Some(gang.clone()));
        }
    }
}

fn is_there(bytes: &[u8]) -> bool {
    let names =
        |finder: &Finder<'_>| finder.find_iter(bytes).take(LINES).any(|at| is_lost(bytes, at));
    names(&NAME) || names(&CODE)
}

/// Whether the line around a place says that the network is lost.
fn is_lost(bytes: &[u8], at: usize) -> bool {
    let (before, from) = bytes.split_at(at);
    let before = before.get(before.len().saturating_sub(LINE)..).unwrap_or_default();
    let from = from.get(..LINE.min(from.len())).unwrap_or_default();
    let begin = memchr::memrchr(b'\n', before).map_or(0, |end| end + 1);
    let end = memchr::memchr(b'\n', from).unwrap_or(from.len());
    let line = bytes.get(at - (before.len() - begin)..at + end).unwrap_or_default();
    SIGNS.iter().any(|sign| sign.find(line).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_networks_are_told_from_everything_else_that_nccl_says() {
        for lost in [
            "n0:71:88 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<4791> with status=12",
            "x\n[rank3]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, \
             unhandled system error (run with NCCL_DEBUG=INFO for details)\ny",
            "ncclRemoteError: A call failed possibly due to a network error",
            "[E ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout",
        ] {
            assert!(is_there(lost.as_bytes()), "{lost}");
        }
        let calm = "n0:71:88 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\nCall to ibv_reg_mr went well\n\
                    NCCL version 2.27.5+cuda12.9\nncclSuccess\n";
        assert!(!is_there(calm.repeat(1000).as_bytes()));
        assert!(!is_there(b""));
        // Bounded work: what comes after many lines of NCCL waits for the next piece.
        let late = "NCCL INFO\n".repeat(LINES) + "NCCL WARN Got completion from peer";
        assert!(!is_there(late.as_bytes()));
    }
}
