"""What there is to read, and in what pieces: whole files, or ranges of large ones. Each piece is read cold, and once in a level."""

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
"""Places begin at multiples of it, so that no two share a page; of O_DIRECT their lengths are multiples, too, for the sectors."""


@dataclass(frozen=True)
class Limits:
    """What a level may take."""

    bytes: int
    deadline_ns: int
    """By when its files must be evicted; fewer of them are read otherwise."""


@dataclass(frozen=True)
class Cold:
    """Pieces, and how far it is proven that nothing of their files was in the page cache."""

    pieces: Pieces
    before: Residency | None
    """After the eviction; null of opens: no program may ask what the kernel keeps of a name."""
    cut_by: str | None = None
    """Which limit, `time` or `bytes`, left out more pieces that there were; null: these are all."""


class Material(Protocol):
    """What there is to read. The pieces may be none where the limits do not suffice for a record of each client."""

    paths: list[str]

    def prepare(self) -> None:
        """What is done once, outside of the budget of time."""

    def random(self, direct: bool, limits: Limits) -> Cold:
        """Records in an order of chance, no two the same."""

    def sequential(self, direct: bool, clients: int, limits: Limits) -> Cold:
        """For each client a part of its own, in order."""

    def opens(self, shares: int) -> Cold | None:
        """One of so many shares of files, none of which this material has opened before; null where there are too few."""

    def close(self) -> None:
        """Close what is open."""


class Circle:
    """Goes round through the numbers from 0 on."""

    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0

    def next(self, count: int) -> Numbers:
        """The next `count` numbers."""
        numbers = (self.at + np.arange(count)) % self.size
        self.at += count
        return numbers


def page_ends(lengths: Numbers) -> Numbers:
    """The lengths, made up to whole pages."""
    return -(-lengths // PIECE_BYTES) * PIECE_BYTES


def regular_size(path: str) -> int:
    """Bytes of a file; raises `CommandError` unless it is a regular one that may be read."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror})", exit_code=1) from None
    if not stat.S_ISREG(status.st_mode):
        raise CommandError(f"{path}: not a regular file, and so not read", exit_code=1)
    return status.st_size


def together(parts: Iterable[Residency]) -> Residency:
    """Of all their files."""
    found = list(parts)
    methods: Counter[str] = Counter()
    for part in found:
        methods.update(part.methods)
    sums = {name: sum(getattr(part, name) for part in found) for name in ("files", "bytes", "resident_bytes", "unknown_files")}
    return Residency(**sums, methods=dict(methods), reason=next((part.reason for part in found if part.reason), None))
