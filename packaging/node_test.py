"""The check of the network between nodes that `gangline node test` runs: one process on each node, or
one for each GPU with NCCL. Rank 0 prints the result as one line of JSON behind MARK; whoever cannot go
on prints why behind the same mark, and ends with a code other than 0.

Needs Python 3.8 and PyTorch, and what Gangline gives to every rank of a command gang: MASTER_ADDR,
MASTER_PORT, GANGLINE_NNODES, GANGLINE_NODE_RANK, GANGLINE_GPUS_PER_NODE.
"""

import datetime
import json
import os
import sys
import time

MARK = "gangline-node-test: "
# Bytes of one transfer, how often it is done, and how often before that to warm up.
BYTES = int(os.environ.get("NODE_TEST_BYTES", str(64 << 20)))
REPEAT, WARM_UP = 5, 2
# The smallest message tells of the latency.
SMALL_REPEAT = 50
# Rounds in which every node is paired with another one: all pairs of up to 16 nodes.
ROUNDS = 16
TIMEOUT = datetime.timedelta(seconds=120)


def say(**what):
    print(MARK + json.dumps(what), flush=True)


def fail(why):
    say(failed=why)
    sys.stdout.flush()
    os._exit(1)


def rounds(nodes):
    """Pairs of nodes, in rounds in which no node is in two pairs: a round-robin tournament."""
    ring = list(range(nodes)) + ([None] if nodes % 2 else [])
    for _ in range(min(len(ring) - 1, ROUNDS)):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]))
        yield [tuple(sorted(pair)) for pair in pairs if None not in pair]
        ring.insert(1, ring.pop())


def timed(work, repeat, settle):
    """Seconds that `work` takes, by the fastest of `repeat`."""
    for _ in range(WARM_UP):
        work()
    settle()
    best = None
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        settle()
        took = time.perf_counter() - began
        best = took if best is None else min(best, took)
    return max(best, 1e-9)


def measure(dist, torch, group, members, device, settle):
    """Bus bandwidth and latency of an all-reduce in a group: 2 (n - 1) / n of the bytes cross the
    slowest link, whatever the algorithm."""
    large = torch.ones(BYTES // 4, dtype=torch.float32, device=device)
    small = torch.ones(2, dtype=torch.float32, device=device)
    took = timed(lambda: dist.all_reduce(large, group=group), REPEAT, settle)
    latency = timed(lambda: dist.all_reduce(small, group=group), SMALL_REPEAT, settle)
    crossed = BYTES * 2 * (members - 1) / members
    return {"bytes_per_s": int(crossed / took), "latency_ns": int(latency * 1e9)}


def run(node, nodes, local, per_node, backend):
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        fail("PyTorch is needed (%s): %s" % (sys.executable, error))
    device = "cpu"
    settle = lambda: None
    if backend == "nccl":
        if not torch.cuda.is_available() or torch.cuda.device_count() < per_node:
            fail(
                "NCCL needs a PyTorch that sees the GPUs: torch %s of %s sees %d of %d; "
                "--backend gloo measures without them"
                % (torch.__version__, sys.executable, torch.cuda.device_count(), per_node)
            )
        torch.cuda.set_device(local)
        device = "cuda:%d" % local
        settle = torch.cuda.synchronize
    rank, world = node * per_node + local, nodes * per_node
    step = "the meeting of %d ranks" % world
    try:
        dist.init_process_group(backend, rank=rank, world_size=world, timeout=TIMEOUT)
        step = "the all-reduce over all nodes"
        together = measure(dist, torch, dist.group.WORLD, world, device, settle)
        found = []
        ranks_of = lambda one: range(one * per_node, (one + 1) * per_node)
        for pairs in rounds(nodes):
            own = None
            for pair in pairs:
                # Everybody makes every group, in the same order.
                ranks = [each for one in pair for each in ranks_of(one)]
                group = dist.new_group(ranks, timeout=TIMEOUT)
                if node in pair:
                    own = (pair, group, len(ranks))
            if own:
                pair, group, members = own
                step = "the pair of ranks %d and %d" % pair
                rate = measure(dist, torch, group, members, device, settle)
                if rank == pair[0] * per_node:
                    found.append({"a": pair[0], "b": pair[1], **rate})
            dist.barrier()
        step = "collecting the results"
        everything = [None] * world
        dist.all_gather_object(everything, found)
    except Exception as error:  # Whatever the library raises is the result.
        fail("%s failed on rank %d: %s" % (step, node, " ".join(str(error).split())[:400]))
    if rank != 0:
        return
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if backend == "nccl":
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    pairs = [pair for part in everything for pair in part]
    say(
        backend=backend,
        versions=versions,
        message_bytes=BYTES,
        all_reduce=together,
        pairs=sorted(pairs, key=lambda pair: (pair["a"], pair["b"])),
    )


def main():
    node = int(os.environ["GANGLINE_NODE_RANK"])
    nodes = int(os.environ["GANGLINE_NNODES"])
    backend = os.environ.get("NODE_TEST_BACKEND", "gloo")
    if nodes < 2:
        fail("two nodes are needed, and there is one")
    per_node = 1
    if backend == "nccl":
        per_node = max(1, int(os.environ.get("GANGLINE_GPUS_PER_NODE", "1")))
    # Before anything touches a GPU: a process with a CUDA context cannot be forked.
    children = []
    for local in range(1, per_node):
        child = os.fork()
        if child == 0:
            run(node, nodes, local, per_node, backend)
            os._exit(0)
        children.append(child)
    run(node, nodes, 0, per_node, backend)
    for child in children:
        _, status = os.waitpid(child, 0)
        if status != 0:
            sys.exit(1)


if __name__ == "__main__":
    main()
