"""What clients are told to read, and what they found: the rows that both the C reader and its Python twin fill in."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

PLACE: Final = np.dtype([("target", "<i8"), ("offset", "<i8"), ("length", "<i8")])
"""One place to read: the number of its file among the targets, and which of its bytes."""

OUTCOME: Final = np.dtype(
    [
        ("start_ns", "<i8"),  # 0: never begun
        ("opened_ns", "<i8"),  # after open and fstat; start_ns where nothing is opened
        ("begin_ns", "<i8"),  # of the read; later than opened_ns by the question about the cache
        ("end_ns", "<i8"),
        ("bytes", "<i8"),  # read, or -errno
        ("device_bytes", "<i8"),  # that the kernel charged to this thread meanwhile
        ("cached_bytes", "<i8"),  # of the place's pages that were in the page cache before; -1: cannot be asked
        ("waits", "<i4"),  # how often the thread gave up the processor while it read
        ("client", "<i4"),
    ]
)
"""What became of one place, in the place's own row; `struct outcome` in native/probe.c."""

Places = npt.NDArray[np.void]
Outcomes = npt.NDArray[np.void]
Numbers = npt.NDArray[np.int64]


class Kind(IntEnum):
    """How a place is read; the numbers are those of native/probe.c."""

    RANGES = 0
    """By pread from a file that is open already."""
    FILES = 1
    """By open, fstat, read, close, as a loader of single files does."""
    OPENS = 2
    """Not at all: open, fstat, close."""


class Ending(IntEnum):
    """Why the first client stopped; the numbers are those of native/probe.c."""

    STOPPED = 1
    TIME = 2
    BYTES = 3
    PLACES = 4
    """All places were read."""


@dataclass(frozen=True)
class Pieces:
    """What the clients of one level read."""

    kind: Kind
    targets: tuple[bytes, ...] | tuple[int, ...]
    """Paths of FILES and OPENS, descriptors of RANGES."""
    places: Places
    in_order: bool = False
    """Each client goes through a part of its own, in order; else all take the next place from one list."""
    direct: bool = False
    """O_DIRECT: the descriptors were opened with it, or the files are to be."""


@dataclass(frozen=True)
class Visit:
    """What clients did with `Pieces`."""

    outcomes: Outcomes
    """Of the places that were begun."""
    start_ns: int
    """When all clients were let go."""
    idle_ns: int
    """When the first of them had nothing left to do: from `start_ns` to here all were at work."""
    ending: Ending
    clients: int

    @property
    def read(self) -> Outcomes:
        """The outcomes without those that failed."""
        return self.outcomes[self.outcomes["bytes"] >= 0]

    @property
    def failed(self) -> Numbers:
        """The errno of each place that could not be read."""
        errors: Numbers = -self.outcomes["bytes"][self.outcomes["bytes"] < 0]
        return errors


def places_of(targets: Any, offsets: Any, lengths: Any) -> Places:
    """Rows of PLACE from three columns, each an array or one number for all."""
    columns = np.broadcast_arrays(targets, offsets, lengths)
    places = np.zeros(len(columns[0]), PLACE)
    for name, column in zip(("target", "offset", "length"), columns, strict=True):
        places[name] = column
    return places
