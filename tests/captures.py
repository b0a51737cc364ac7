"""Capture files for tests: recorded for real, or put together byte by byte."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from repository import PROGRAMS

from ioprof.layout import CHUNK_HEADER_DTYPE, FILE_HEADER_DTYPE, RECORD_DTYPE
from ioprof.record import recorder
from ioprof.schema import CHUNK_BYTES, CHUNK_HEADER_BYTES, FORMAT_VERSION, HEADER_BYTES, MAGIC
from ioprof.spool import read_spool
from ioprof.trace import Trace

WRITERS: Final = {"native": True, "twin": False}
SLOTS: Final = (CHUNK_BYTES - CHUNK_HEADER_BYTES) // RECORD_DTYPE.itemsize


@contextmanager
def recorded(spool: Path, native: bool, **facts: Any) -> Iterator[None]:
    """Record the block into `spool`."""
    recorder.start(spool, native=native, **facts)
    try:
        yield
    finally:
        recorder.stop()


def run_program(name: str, *arguments: object) -> str:
    """What a program of `tests/programs` prints; it must end well."""
    command = [sys.executable, str(PROGRAMS / name), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    return ended.stdout


def trace_of(spool: Path) -> Trace:
    """What was recorded into `spool`; none of it may be damaged."""
    trace = read_spool(spool, {})
    assert [] == trace.run["capture"]["damaged"], trace.run["capture"]["damaged"]
    return trace


def header_bytes(**changes: Any) -> bytes:
    """The first 4096 bytes of a capture file of process 7 on host `a`, of which some fields are changed."""
    header = np.zeros(1, FILE_HEADER_DTYPE)
    fields = {
        "magic": MAGIC,
        "version": FORMAT_VERSION,
        "record_bytes": RECORD_DTYPE.itemsize,
        "chunk_bytes": CHUNK_BYTES,
        "header_bytes": HEADER_BYTES,
        "pid": 7,
        "rank": -1,
        "worker": -1,
        "closed": 1,
        "host": b"a",
    }
    for name, value in (fields | changes).items():
        header[name] = value
    return header.tobytes().ljust(HEADER_BYTES, b"\0")


def record(**fields: int) -> bytes:
    """One slot; what is not given does not apply."""
    slot = np.zeros(1, RECORD_DTYPE)
    for name in ("bytes", "offset", "batch", "step", "file", "name", "stream"):
        slot[name] = -1
    for name, value in fields.items():
        slot[name] = value
    return slot.tobytes()


def string(number: int, text: bytes) -> bytes:
    """The slots of a string."""
    return record(file=number, bytes=len(text)) + text + bytes(-len(text) % RECORD_DTYPE.itemsize)


def chunk(*slots: bytes, tid: int = 70, count: int | None = None, sequence: int = 0, **fields: int) -> bytes:
    """A chunk with those slots; `count` lies about their number, `fields` are others of its header."""
    body = b"".join(slots)
    header = np.zeros(1, CHUNK_HEADER_DTYPE)
    header["tid"] = tid
    header["state"] = (len(body) // RECORD_DTYPE.itemsize if count is None else count) | sequence << 32
    for name, value in fields.items():
        header[name] = value
    return (header.tobytes() + body).ljust(CHUNK_BYTES, b"\0")
