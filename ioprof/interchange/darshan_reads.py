"""Reads in the trace of Darshan's module DXT_POSIX, as columns of numbers.

They are found by a scanner in C (native/scan/darshan.c), block by block of the decompressed data.
"""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ioprof import _scan

Numbers = npt.NDArray[np.int64]

COLUMNS: Final = ("start_ns", "end_ns", "bytes", "offset")
_NO_RANK: Final = np.iinfo(np.int64).min


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


def reads_in(blocks: Iterable[bytes], layout: Layout, start_ns: int) -> Reads:
    """The reads in the data of the module, with `start_ns` added to their times."""
    seed = int.from_bytes(os.urandom(8), "little")
    is_swapped = layout.byte_order != ("<" if sys.byteorder == "little" else ">")
    scanner = _scan.DarshanScanner(seed, start_ns, layout.has_threads, is_swapped)
    for block in blocks:
        scanner.scan(block)
    (cells, num_reads), rows, hosts, num_writes, num_impossible, is_damaged = scanner.tables()
    files = [
        TracedFile(number & (1 << 64) - 1, None if rank == _NO_RANK else rank, hosts[host], count)
        for number, rank, host, count in np.frombuffer(rows, np.int64).reshape(-1, 4).tolist()
    ]
    columns = np.frombuffer(memoryview(cells), np.int64).reshape(len(COLUMNS), -1)[:, :num_reads]
    return Reads(
        dict(zip(COLUMNS, columns, strict=True)), files, num_writes, num_impossible, is_damaged
    )
