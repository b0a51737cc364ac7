"""Generates perf files for tests record by record; files of the recorder come from real jobs."""

import struct
from typing import Any

import numpy as np

from ioprof.format import perf

PAGE = 4096


def header(**fields: Any) -> bytes:
    """The header of a file; `fields` replace the defaults."""
    usual = {
        "magic": perf.MAGIC,
        "version": perf.VERSION,
        "header_bytes": perf.HEADER_BYTES,
        "page_bytes": PAGE,
        "closed": 1,
    }
    record = np.zeros(1, perf.HEADER_DTYPE)
    for name, value in ({"host": b"node1", "pid": 1, "cpus": 2} | usual | fields).items():
        record[name] = value
    return record.tobytes().ljust(perf.HEADER_BYTES, b"\0")


def record(kind: int, misc: int, body: bytes) -> bytes:
    """One record with its header."""
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


def _trailer(time: int, pid: int, tid: int | None) -> bytes:
    return struct.pack("<IIQ", pid, pid if tid is None else tid, time)


def _text(data: bytes) -> bytes:
    return data + bytes(8 - len(data) % 8)


def sample(time: int, address: int, pid: int = 10, tid: int | None = None) -> bytes:
    """A major fault."""
    return record(perf.SAMPLE, 2, _trailer(time, pid, tid) + struct.pack("<Q", address))


def minor(time: int, address: int, pid: int = 10, tid: int | None = None) -> bytes:
    """A minor fault."""
    return record(
        perf.SAMPLE,
        2,
        struct.pack("<Q", 0x400000) + _trailer(time, pid, tid) + struct.pack("<Q", address),
    )


def switch(time: int, how: str, pid: int = 10, tid: int | None = None) -> bytes:
    """A context switch: a thread is switched in, out (voluntarily) or preempted."""
    misc = {"in": 0, "out": perf.SWITCH_OUT, "preempted": perf.SWITCH_OUT | perf.SWITCH_PREEMPTED}[
        how
    ]
    return record(perf.SWITCH, misc, _trailer(time, pid, tid))


def mapping(time: int, address: int, length: int, offset: int, path: bytes, pid: int = 10) -> bytes:
    """A new mapping."""
    body = struct.pack("<IIQQQ", pid, pid, address, length, offset) + bytes(32) + _text(path)
    return record(perf.MMAP2, 0, body + _trailer(time, pid, None))


def fork(time: int, pid: int, parent: int = 10, tid: int | None = None) -> bytes:
    """A new process, or a thread where `pid` is the parent."""
    body = struct.pack("<IIIIQ", pid, parent, pid if tid is None else tid, parent, time)
    return record(perf.FORK, 0, body + _trailer(time, parent, None))


def ended(time: int, pid: int, tid: int | None = None) -> bytes:
    """The end of a thread."""
    tid = pid if tid is None else tid
    return record(
        perf.EXIT, 0, struct.pack("<IIIIQ", pid, 1, tid, 1, time) + _trailer(time, pid, tid)
    )


def named(
    time: int, name: bytes, pid: int = 10, executed: bool = True, tid: int | None = None
) -> bytes:
    """A new name, by default from an execve."""
    body = struct.pack("<II", pid, pid if tid is None else tid) + _text(name)
    return record(perf.COMM, perf.COMM_EXEC if executed else 0, body + _trailer(time, pid, None))
