"""The interface of what a probe reads: whole files, or ranges of large ones. Each piece is read
cold, once per level.
"""

import mmap
import os
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from ioprof.errors import CommandError
from ioprof.storage.probe.outcomes import Numbers, Pieces
from ioprof.storage.residency import Residency

PIECE_BYTES: Final = max(4096, mmap.PAGESIZE)
"""Places start at multiples of it, so that no two share a page; for O_DIRECT their lengths are
multiples too."""


@dataclass(frozen=True)
class Limits:
    """The limits of a level."""

    bytes: int
    deadline_ns: int
    """End of the eviction; files that are not evicted by then are not read."""


@dataclass(frozen=True)
class ColdPieces:
    """Pieces after eviction, with the residency of their files as evidence."""

    pieces: Pieces
    before: Residency | None
    """Residency after the eviction; None for opens: the state of the dentry cache cannot be
    queried."""
    cut_by: str | None = None
    """The limit, `time` or `bytes`, because of which pieces were left out; None: these are all."""


class ReadTargets(Protocol):
    """What a probe reads. There may be no pieces where the limits are too small for one record per
    client.
    """

    paths: list[str]

    def prepare(self) -> None:
        """Called once before the first level, outside of the time budget."""

    def random(self, direct: bool, limits: Limits) -> ColdPieces:
        """Records in random order, each once."""

    def sequential(self, direct: bool, clients: int, limits: Limits) -> ColdPieces:
        """For each client its own part, in order."""

    def opens(self, shares: int) -> ColdPieces | None:
        """One of `shares` equal shares of files that have not been opened before; None where there
        are too few.
        """

    def close(self) -> None:
        """Close all open files."""


class Cycle:
    """Cycles through the numbers from 0 to `size` - 1."""

    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0

    def next(self, count: int) -> Numbers:
        """The next `count` numbers."""
        numbers = (self.at + np.arange(count)) % self.size
        self.at += count
        return numbers


def round_up_to_pages(lengths: Numbers) -> Numbers:
    """The lengths, rounded up to whole pages."""
    return -(-lengths // PIECE_BYTES) * PIECE_BYTES


def regular_size(path: str) -> int:
    """Size of a regular file; raises `CommandError` for anything else."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror})", exit_code=1) from None
    if not stat.S_ISREG(status.st_mode):
        raise CommandError(f"{path}: not a regular file; name another", exit_code=1)
    return status.st_size


def merge_residency(parts: Iterable[Residency]) -> Residency:
    """The residency of all files together."""
    found = list(parts)
    methods: Counter[str] = Counter()
    for part in found:
        methods.update(part.methods)
    sums = {
        name: sum(getattr(part, name) for part in found)
        for name in ("files", "bytes", "resident_bytes", "unknown_files")
    }
    return Residency(
        **sums,
        methods=dict(methods),
        reason=next((part.reason for part in found if part.reason), None),
    )
