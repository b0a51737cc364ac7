"""Small traces of a training job, as other profilers write them: Kineto's files of several versions
and vendors, and databases of Nsight Systems.

A step takes 100 ms: 35 ms of waiting for a batch, 1 ms of launching, 60 ms of kernels, and 4 ms of
the optimizer's call."""

import json
import sqlite3
from pathlib import Path
from typing import Any, Final

MS, US = 1_000_000, 1_000
STEP_MS: Final = 100.0
KERNELS: Final = ("conv", "norm", "conv", "norm", "loss", "adam")
EPOCH_US: Final = 1.7e15


def ranges(
    number: int,
    marks: bool = True,
    loader: bool = True,
    optimizer: bool = True,
    workers: bool = True,
) -> list[tuple[str, float, float]]:
    """What the loop does in a step: name, begin and end in milliseconds."""
    at, found = number * STEP_MS, []
    kind = "_MultiProcessing" if workers else "_SingleProcess"
    if marks:
        found.append((f"ProfilerStep#{number}", at, at + STEP_MS))
    if loader:
        found.append((f"enumerate(DataLoader)#{kind}DataLoaderIter.__next__", at, at + 35))
    if optimizer:
        found.append(("Optimizer.step#AdamW.step", at + 96, at + 100))
    return found


def kernels(number: int) -> list[tuple[str, float, float]]:
    """What the device does in a step: name, begin and end in milliseconds."""
    at = number * STEP_MS + 36
    return [(name, at + 10 * place, at + 10 * place + 10) for place, name in enumerate(KERNELS)]


def kineto_events(
    steps: int = 20, tid: Any = 100, stream: Any = 7, vendor: str = "cuda", **kinds: bool
) -> list[dict[str, Any]]:
    """What the host did first, then what the device did, as Kineto orders it."""
    of_host, of_device, correlation = [], [], 0
    for number in range(steps):
        for name, begin, end in ranges(number, **kinds):
            of_host.append(_event("user_annotation", name, begin, end, 100, tid))
        for name, begin, end in kernels(number):
            correlation += 1
            args = {"correlation": correlation}
            of_host.append(
                _event("cuda_runtime", f"{vendor}LaunchKernel", begin - 0.5, begin, 100, tid, args)
            )
            of_device.append(_event("kernel", name, begin, end, 0, stream, args))
    return of_host + of_device


def _event(
    category: str,
    name: str,
    begin: float,
    end: float,
    pid: int,
    tid: Any,
    args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    times = {"ts": EPOCH_US + begin * 1e3, "dur": round((end - begin) * 1e3, 3)}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        **times,
        "args": args or {},
    }


def kineto_text(events: list[dict[str, Any]], device: str | None = "NVIDIA H100") -> str:
    """A file of these events."""
    devices = {"deviceProperties": [{"id": 0, "name": device}]} if device else {}
    return json.dumps({"schemaVersion": 1, **devices, "traceEvents": events})


def write_nsys(path: Path, steps: int = 20, **kinds: bool) -> Path:
    """The same job as a database of `nsys export --type sqlite`, of two processes."""
    with sqlite3.connect(path) as database:
        database.executescript("""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
            INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100');
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, globalTid INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
                streamId INTEGER, globalPid INTEGER, shortName INTEGER);
        """)
        names = sorted(set(KERNELS))
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names, 1))
        for pid in (100, 101):
            for number in range(steps):
                for name, begin, end in ranges(number, **kinds):
                    database.execute(
                        "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?)",
                        (round(begin * MS), round(end * MS), f"{name}, op_id = 7", pid << 24 | pid),
                    )
                for name, begin, end in kernels(number):
                    database.execute(
                        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, ?, ?)",
                        (round(begin * MS), round(end * MS), pid << 24, names.index(name) + 1),
                    )
    return path
