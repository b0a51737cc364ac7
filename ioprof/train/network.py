"""What the network between the ranks delivers, over torch's process group: messages between two of
them, and all-reduces of all.

    python -m ioprof.train.network CONFIG PID     one rank of `ioprof probe --network`, started as
                                                  those of the built-in job are

The bandwidth of an all-reduce of L bytes over p ranks that takes t seconds is 2L(p-1)/p / t: the
bytes that each rank has to send and to receive over its own link in the best algorithm (Patarasuk
and Yuan, J. Parallel Distrib. Comput. 69, 2009).
"""

import os
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist

from ioprof.clock import monotonic_ns
from ioprof.format.dataset import write_json_atomically
from ioprof.instrument import manual
from ioprof.process import die_with_parent
from ioprof.train.config import JobConfig, network_path
from ioprof.train.rendezvous import join

SIZES: Final = (1 << 16, 1 << 20, 1 << 24)
"""Bytes of a message or an all-reduce."""
_SECONDS: Final = 0.5
"""Per size and operation, once one has been made to warm up."""
_MOST_REPEATS: Final = 50


def measure_network(
    config: JobConfig, rank: int, local_rank: int, sizes: tuple[int, ...] = SIZES
) -> dict[str, Any]:
    """Messages between rank 0 and the last, and all-reduces of these sizes. All ranks call it, and
    have the same result.
    """
    device = torch.device("cuda", local_rank) if config.device == "cuda" else torch.device("cpu")
    ranks, messages, reduced = config.ranks, [], []
    with manual.unrecorded_collectives():
        latency_s = _repeated(partial(_round_trip, 4, rank, ranks, device), device) / 2
        for size in sizes:
            messages.append(
                (size, _repeated(partial(_round_trip, size, rank, ranks, device), device) / 2)
            )
            tensor = torch.zeros(max(1, size // 4), device=device)
            reduced.append((size, _repeated(partial(dist.all_reduce, tensor), device)))
    share = 2 * (config.ranks - 1) / config.ranks
    return {
        "ranks": config.ranks,
        "backend": str(dist.get_backend()),
        "latency_s": latency_s,
        "messages": [
            {"bytes": size, "seconds": took_s, "bytes_per_s": size / took_s}
            for size, took_s in messages
        ],
        "all_reduces": [
            {"bytes": size, "seconds": took_s, "bytes_per_s": share * size / took_s}
            for size, took_s in reduced
        ],
    }


def _round_trip(size: int, rank: int, ranks: int, device: torch.device) -> None:
    """A message from rank 0 to the last rank, and one back; other ranks do nothing."""
    tensor = torch.zeros(max(1, size // 4), device=device)
    if rank == 0:
        dist.send(tensor, ranks - 1)
        dist.recv(tensor, ranks - 1)
    elif rank == ranks - 1:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)


def _repeated(operation: Any, device: torch.device) -> float:
    """Seconds of an operation: the median of as many as fit the time, each as long as the slowest
    rank took. The first warms up.
    """
    times = [_timed(operation, device) for _ in range(2)]
    for _ in range(min(_MOST_REPEATS, int(_SECONDS / times[-1]))):
        times.append(_timed(operation, device))
    return median(times[1:])


def _timed(operation: Any, device: torch.device) -> float:
    dist.barrier()
    start_ns = monotonic_ns()
    operation()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    slowest = torch.tensor([monotonic_ns() - start_ns], device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return max(1, int(slowest[0])) / 1e9


def main() -> int:
    """Run the rank that the environment names."""
    config = JobConfig.load(Path(sys.argv[1]))
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    die_with_parent(parent=int(sys.argv[2]))
    join(config, rank, os.environ)
    found = measure_network(config, rank, local_rank)
    if rank == config.first_rank:
        write_json_atomically(network_path(config.spool), found)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main())
