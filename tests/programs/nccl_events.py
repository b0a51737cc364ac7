"""One process that calls the profiler plugin as NCCL does.

Arguments: LIBRARY (of nccl_calls.c), VERSION of the interface, SCENARIO.

A scenario prints what it knows, as JSON.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

TIMER_NS: Final = 1_700_000_000_000_000_000
calls: Any = None
version = 0


def load(library: str) -> bool:
    """Load the calls, and by them the plugin."""
    global calls
    calls = ctypes.CDLL(library)
    for name in ("nccl_open", "nccl_enqueue", "nccl_enqueue_copies", "nccl_replay"):
        getattr(calls, name).restype = ctypes.c_void_p
    return bool(calls.nccl_load(os.environ["NCCL_PROFILER_PLUGIN"].encode(), version))


def open_communicator(
    hash_: int = 0xABC, name: bytes = b"group", ranks: int = 4, rank: int = 3
) -> Any:
    return ctypes.c_void_p(calls.nccl_open(ctypes.c_uint64(hash_), name, ranks, rank))


def enqueue(
    communicator: Any,
    function: str = "AllReduce",
    count: int = 10,
    datatype: str = "ncclFloat32",
    **more: Any,
) -> Any:
    words = function.encode(), ctypes.c_size_t(count), datatype.encode()
    kept.append(words)  # the plugin and its caller keep pointers
    numbers = (
        more.get("peer", -1),
        ctypes.c_uint64(more.get("sequence", 0)),
        int(more.get("captured", False)),
    )
    return ctypes.c_void_p(calls.nccl_enqueue(communicator, *words, *numbers))


kept: list[Any] = []


def timer() -> Any:
    return ctypes.c_uint64(TIMER_NS + time.monotonic_ns())


def run(operation: Any, channels: int = 2) -> None:
    """The kernel, or the transfers, of an operation."""
    for channel in range(channels):
        calls.nccl_start_channel(operation, channel, timer())
    if version < 3:
        calls.nccl_start_proxy(operation, os.getpid())
        calls.nccl_send(operation)
        time.sleep(0.002)
        calls.nccl_receive(operation)
    time.sleep(0.002)
    for channel in range(channels):
        calls.nccl_stop_channel(operation, channel, timer())
    if version < 3:
        calls.nccl_stop_proxy(operation)


def one_of_each() -> Any:
    """Every function once, with another type each."""
    communicator = open_communicator()
    kinds = [
        ("Broadcast", "ncclInt8", 1),
        ("Reduce", "Unknown", 1),
        ("AllGather", "ncclInt32", 4),
        ("ReduceScatter", "ncclFloat16", 2),
        ("AllReduce", "ncclBfloat16", 2),
        ("Send", "ncclFloat64", 8),
        ("Recv", "ncclFloat32", 4),
    ]
    for number, (function, datatype, _) in enumerate(kinds):
        run(enqueue(communicator, function, 100 + number, datatype, peer=1, sequence=number))
    calls.nccl_close(communicator)
    return [[function, (100 + number) * size] for number, (function, _, size) in enumerate(kinds)]


def many_communicators() -> Any:
    """More than the table has."""
    opened = [open_communicator(0x100 + number) for number in range(300)]
    for communicator in opened:
        run(enqueue(communicator), 1)
    for communicator in reversed(opened):
        calls.nccl_close(communicator)
    return len(opened)


def out_of_order() -> Any:
    """Operations of two communicators overlap; channels begin late, and end in another order than
    they began."""
    first, second = open_communicator(1), open_communicator(2)
    one, two = enqueue(first), enqueue(second)
    calls.nccl_start_channel(two, 0, timer())
    calls.nccl_start_channel(one, 0, timer())
    calls.nccl_stop_channel(two, 0, timer())
    calls.nccl_close(second)
    early = timer()
    calls.nccl_stop_channel(one, 0, timer())
    calls.nccl_start_channel(one, 1, early)  # all that began had ended
    late = timer()
    calls.nccl_stop_channel(one, 1, late)
    calls.nccl_close(first)
    return late.value - TIMER_NS


def aborted() -> Any:
    """A communicator is destroyed while one operation has begun and another has not. Events of both
    follow."""
    communicator, other = open_communicator(1), open_communicator(2)
    begun, waiting = enqueue(communicator), enqueue(communicator)
    calls.nccl_start_channel(begun, 0, timer())
    if version < 3:
        calls.nccl_start_proxy(begun, os.getpid())
        calls.nccl_send(begun)
    calls.nccl_close(ctypes.c_void_p(communicator.value))
    return [bool(calls.nccl_is_known(begun)), bool(calls.nccl_is_known(waiting)), other is not None]


def killed() -> Any:
    """By SIGKILL, within an operation."""
    communicator = open_communicator()
    run(enqueue(communicator))
    operation = enqueue(communicator)
    calls.nccl_start_channel(operation, 0, timer())
    if version < 3:
        calls.nccl_start_proxy(operation, os.getpid())
        calls.nccl_send(operation)
    os.kill(os.getpid(), signal.SIGKILL)


def forked() -> Any:
    """The child goes on with the parent's communicator, and makes one of its own."""
    communicator = open_communicator(1)
    run(enqueue(communicator))
    child = os.fork()
    if child == 0:
        run(enqueue(communicator))
        own = open_communicator(2)
        run(enqueue(own))
        run(enqueue(own))
        os._exit(0)
    os.waitpid(child, 0)
    run(enqueue(communicator))
    return child


def unloaded() -> Any:
    """The last communicator is destroyed, the plugin unloaded, and loaded again."""
    for number in range(3):
        communicator = open_communicator(number + 1)
        run(enqueue(communicator))
        calls.nccl_close(communicator)
        calls.nccl_unload()
        calls.nccl_load(os.environ["NCCL_PROFILER_PLUGIN"].encode(), version)
    return None


def of_another_process() -> Any:
    """A proxy thread reports an operation of another process (PXN), whose handle means nothing
    here."""
    communicator = open_communicator()
    operation = enqueue(communicator)
    calls.nccl_start_proxy(operation, os.getppid())
    calls.nccl_send(operation)
    calls.nccl_receive(operation)
    calls.nccl_stop_proxy(operation)
    return None


def too_many() -> Any:
    """20,000 operations that have begun and not ended."""
    communicator = open_communicator()
    for _ in range(20_000):
        calls.nccl_start_channel(enqueue(communicator), 0, timer())
    return None


def graph() -> Any:
    """A captured operation runs three times."""
    communicator = open_communicator()
    captured = enqueue(communicator, captured=True)
    for _ in range(3):
        time.sleep(0.01)
        run(ctypes.c_void_p(calls.nccl_replay(captured)))
    return None


def copies() -> Any:
    """A collective by copy engines."""
    communicator = open_communicator()
    calls.nccl_enqueue_copies(communicator, b"AllGather", ctypes.c_size_t(7), b"ncclFloat32")
    return None


def large() -> Any:
    """More records than a window has."""
    communicator = open_communicator()
    for _ in range(40_000):
        operation = enqueue(communicator)
        calls.nccl_start_channel(operation, 0, timer())
        calls.nccl_stop_channel(operation, 0, timer())
        calls.nccl_free(operation)
        kept.clear()
    return 40_000


def point_to_point() -> Any:
    """One send or receive. Further arguments: function, own rank, that of the peer."""
    communicator = open_communicator(rank=int(sys.argv[5]))
    run(enqueue(communicator, sys.argv[4], peer=int(sys.argv[6])))


def ticks() -> Any:
    """A GPU whose timer counts at 100 MHz: 30 kernels of 10 ms."""
    communicator = open_communicator()
    for _ in range(30):
        operation = enqueue(communicator)
        calls.nccl_start_channel(operation, 0, ctypes.c_uint64(time.monotonic_ns() // 10))
        time.sleep(0.01)
        calls.nccl_stop_channel(operation, 0, ctypes.c_uint64(time.monotonic_ns() // 10))
    return None


def mask() -> Any:
    """What the plugin asks for."""
    open_communicator()
    return calls.nccl_mask()


SCENARIOS: Final[dict[str, Callable[[], Any]]] = {
    each.__name__: each
    for each in (
        one_of_each,
        many_communicators,
        out_of_order,
        aborted,
        killed,
        forked,
        unloaded,
        of_another_process,
        too_many,
        graph,
        copies,
        large,
        point_to_point,
        ticks,
        mask,
    )
}

if __name__ == "__main__":
    version = int(sys.argv[2])
    assert load(sys.argv[1])
    print(json.dumps(SCENARIOS[sys.argv[3]]()))
