"""Reads in the trace of Darshan's module DXT_POSIX, as columns of numbers.

They are found by a scanner in C, where ioprof was installed with a compiler, block by block of the decompressed data; and else by
NumPy, with the same result, in all data at once.
"""

import os
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

try:
    from ioprof import _scan as _native
except ImportError:  # ioprof was installed without a C compiler
    _native = None  # type: ignore[assignment]

Numbers = npt.NDArray[np.int64]

COLUMNS: Final = ("start_ns", "end_ns", "bytes", "offset")
_NO_RANK: Final = np.iinfo(np.int64).min
_RECORD: Final = 104  # bytes of a file's record: id, rank, shared, host name, writes, reads


@dataclass(frozen=True)
class TracedFile:
    """A record: the reads of a file by one rank."""

    number: int
    """Darshan's, of 64 bits."""
    rank: int | None
    host: bytes
    num_reads: int


@dataclass(frozen=True)
class Reads:
    """The reads of a log that have possible times and sizes."""

    columns: dict[str, Numbers]
    """Of all files, one after the other. An offset of -1: not known."""
    files: list[TracedFile]
    """Those that were read."""
    num_writes: int
    num_impossible: int
    is_damaged: bool
    """Whether a record is not complete: it and what follows it are left out."""


@dataclass(frozen=True)
class Layout:
    """How the records are written."""

    byte_order: str
    """As in `struct`."""
    has_threads: bool
    """Whether each call has the number of its thread."""


def reads_in(blocks: Iterable[bytes], layout: Layout, start_ns: int, scans: bool = True) -> Reads:
    """The reads in the data of the module, with `start_ns` added to their times. Without `scans` by NumPy."""
    if not scans or not _native:
        return _reads_by_numpy(b"".join(blocks), layout, start_ns)
    seed = int.from_bytes(os.urandom(8), "little")
    is_swapped = layout.byte_order != ("<" if sys.byteorder == "little" else ">")
    scanner = _native.DarshanScanner(seed, start_ns, layout.has_threads, is_swapped)
    for block in blocks:
        scanner.scan(block)
    (cells, num_reads), rows, hosts, num_writes, num_impossible, is_damaged = scanner.tables()
    files = [
        TracedFile(number & (1 << 64) - 1, None if rank == _NO_RANK else rank, hosts[host], count)
        for number, rank, host, count in np.frombuffer(rows, np.int64).reshape(-1, 4).tolist()
    ]
    columns = np.frombuffer(memoryview(cells), np.int64).reshape(len(COLUMNS), -1)[:, :num_reads]
    return Reads(dict(zip(COLUMNS, columns, strict=True)), files, num_writes, num_impossible, is_damaged)


def _reads_by_numpy(data: bytes, layout: Layout, start_ns: int) -> Reads:
    order = layout.byte_order
    fields = [("offset", "i8"), ("length", "i8"), ("start", "f8"), ("end", "f8"), ("thread", "u8")][: 4 + layout.has_threads]
    dtype = np.dtype([(name, order + kind) for name, kind in fields])
    found: list[dict[str, Numbers]] = [{name: np.empty(0, np.int64) for name in COLUMNS}]
    files = []
    num_writes = num_impossible = place = 0
    is_damaged = False
    while place + _RECORD <= len(data):
        number, rank = struct.unpack_from(f"{order}Qq", data, place)
        host = data[place + 24 : place + 88].split(b"\0")[0]
        writes, reads = struct.unpack_from(f"{order}2q", data, place + 88)
        place += _RECORD
        is_damaged = writes < 0 or reads < 0 or (writes + reads) * dtype.itemsize > len(data) - place
        if is_damaged:
            break
        columns = _possible(np.frombuffer(data, dtype, writes + reads, place)[writes:], start_ns)
        place += (writes + reads) * dtype.itemsize
        num_writes += writes
        if reads:
            files.append(TracedFile(number, rank if 0 <= rank < 1 << 31 else None, host, len(columns["bytes"])))
            found.append(columns)
            num_impossible += reads - len(columns["bytes"])
    joined = {name: np.concatenate([each[name] for each in found]) for name in COLUMNS}
    return Reads(joined, files, num_writes, num_impossible, is_damaged)


def _possible(calls: npt.NDArray[Any], start_ns: int) -> dict[str, Numbers]:
    begin, end, length, offset = (calls[name] for name in ("start", "end", "length", "offset"))
    # A comparison with NaN is false.
    possible = (begin >= 0) & (end >= begin) & (end < 1e9) & (length >= 0) & (offset >= -1)
    values = (np.rint(begin[possible] * 1e9), np.rint(end[possible] * 1e9), length[possible], offset[possible])
    columns = dict(zip(COLUMNS, (each.astype(np.int64) for each in values), strict=True))
    for name in ("start_ns", "end_ns"):
        columns[name] += start_ns
    return columns
