"""Two ranks that call the profiler plugin as NCCL does, with a timeline that they measure
themselves.

Arguments: LIBRARY (of nccl_calls.c), VERSION of the interface, STEPS, MILLISECONDS by which rank 1
is late; `compute`: the device computes, and that is recorded; `own`: the job records its
collectives too. Prints per rank and step: arrival, arrival of the last rank, end of the transfer;
CLOCK_MONOTONIC in ns.
"""

import ctypes
import json
import multiprocessing
import os
import sys
import time
from typing import Any

from ioprof.instrument import manual
from ioprof.instrument.span import emit

COMPUTE_S, TRANSFER_S, ELEMENTS, CHANNELS = 0.02, 0.02, 1 << 20, 2
TIMER_OFFSET_NS = 1_700_000_000_000_000_000


def timer(ns: int) -> ctypes.c_uint64:
    """A time of the GPU, whose timer is 20 ppm fast."""
    return ctypes.c_uint64(TIMER_OFFSET_NS + ns + ns // 50_000)


class Nccl:
    """Calls the plugin that the environment names."""

    def __init__(self, library: str, version: int, rank: int, ranks: int) -> None:
        self.calls = ctypes.CDLL(library)
        self.calls.nccl_open.restype = self.calls.nccl_enqueue.restype = ctypes.c_void_p
        self.is_loaded = bool(
            self.calls.nccl_load(os.environ["NCCL_PROFILER_PLUGIN"].encode(), version)
        )
        self.version = version
        self.communicator = ctypes.c_void_p(
            self.calls.nccl_open(ctypes.c_uint64(0xFEED), b"world", ranks, rank)
        )

    def enqueue(self, sequence: int) -> Any:
        return ctypes.c_void_p(
            self.calls.nccl_enqueue(
                self.communicator,
                b"AllReduce",
                ctypes.c_size_t(ELEMENTS),
                b"ncclFloat32",
                0,
                ctypes.c_uint64(sequence),
                0,
            )
        )

    def begin(self, operation: Any, at_ns: int) -> None:
        for channel in range(CHANNELS):
            self.calls.nccl_start_channel(operation, channel, timer(at_ns))
        if self.version < 3:
            self.calls.nccl_start_proxy(operation, os.getpid())
            self.calls.nccl_send(operation)

    def end(self, operation: Any, at_ns: int) -> None:
        if self.version < 3:
            self.calls.nccl_receive(operation)
            self.calls.nccl_stop_proxy(operation)
        for channel in range(CHANNELS):
            self.calls.nccl_stop_channel(operation, channel, timer(at_ns))
        self.calls.nccl_free(operation)


def step(
    nccl: Nccl, rank: int, number: int, late_s: float, together: Any, with_compute: bool
) -> list[int]:
    """One step: computation, on rank 1 a delay by Python, and the exchange."""
    start_ns = time.monotonic_ns()
    time.sleep(COMPUTE_S)
    if with_compute:
        emit("compute", start_ns, time.monotonic_ns(), step=number, stream=0)
    if rank == 1:
        time.sleep(late_s)
    operation = nccl.enqueue(number)
    arrived_ns = time.monotonic_ns()
    nccl.begin(operation, arrived_ns)
    together.wait()
    complete_ns = time.monotonic_ns()
    time.sleep(TRANSFER_S)
    ended_ns = time.monotonic_ns()
    nccl.end(operation, ended_ns)
    if "own" in sys.argv:
        emit("comm", arrived_ns, ended_ns, "bucket 0", step=number, stream=2)
    manual.end_step()
    return [rank, number, arrived_ns, complete_ns, ended_ns]


def train(
    rank: int,
    library: str,
    version: int,
    steps: int,
    late_s: float,
    with_compute: bool,
    together: Any,
) -> None:
    """One rank."""
    nccl = Nccl(library, version, rank, 2)
    assert nccl.is_loaded
    manual.start_rank()
    together.wait()
    manual.begin_steps()
    rows = [step(nccl, rank, number, late_s, together, with_compute) for number in range(steps)]
    nccl.calls.nccl_close(nccl.communicator)
    # at once: the other rank writes too
    sys.stdout.write("".join(f"{json.dumps(row)}\n" for row in rows))
    sys.stdout.flush()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    arguments = (
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        float(sys.argv[4]) / 1e3,
        "compute" in sys.argv[5:],
        barrier,
    )
    ranks = []
    for number in range(2):
        os.environ |= {"RANK": str(number), "WORLD_SIZE": "2"}
        ranks.append(context.Process(target=train, args=(number, *arguments)))
        ranks[-1].start()
    for each in ranks:
        each.join()
    sys.exit(max(each.exitcode or 0 for each in ranks))
