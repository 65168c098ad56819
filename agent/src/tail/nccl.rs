//! Lines of logs that say that NCCL has lost its network. Alone they say nothing of a node: the health
//! rules ask for them where a link was lost at the same time.

use std::sync::LazyLock;

use gangline_common::ids::GangId;
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

/// The gang that wrote such a line last.
#[derive(Debug, Clone)]
pub struct NcclErrors(watch::Sender<Option<GangId>>);

impl Default for NcclErrors {
    fn default() -> Self {
        NcclErrors(watch::channel(None).0)
    }
}

impl NcclErrors {
    /// Told once for each chunk of a log with such a line; only the newest counts.
    pub fn subscribe(&self) -> watch::Receiver<Option<GangId>> {
        self.0.subscribe()
    }

    /// Looks at a piece of a gang's log. A line that two pieces share is not seen.
    pub(super) fn look(&self, gang: &GangId, bytes: &[u8]) {
        if is_there(bytes) {
            self.0.send_replace(Some(gang.clone()));
        }
    }
}

fn is_there(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    for _ in 0..LINES {
        let Some(at) = NAME.find(rest).into_iter().chain(CODE.find(rest)).min() else {
            return false;
        };
        let (before, from) = rest.split_at(at);
        let begin = memchr::memrchr(b'\n', before).map_or(0, |end| end + 1);
        let end = at + memchr::memchr(b'\n', from).unwrap_or(from.len());
        let line = rest.get(begin.max(at.saturating_sub(LINE))..end.min(at + LINE));
        if line.is_some_and(|line| SIGNS.iter().any(|sign| sign.find(line).is_some())) {
            return true;
        }
        rest = rest.get(end..).unwrap_or_default();
    }
    false
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
