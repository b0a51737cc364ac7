"""Input and output of the clients: the places to read, and the rows that both the C and the Python
reader fill in.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

PLACE: Final = np.dtype([("target", "<i8"), ("offset", "<i8"), ("length", "<i8")])
"""One place to read: index of its file among the targets, offset and length."""

OUTCOME: Final = np.dtype(
    [
        ("start_ns", "<i8"),  # 0: not started
        ("opened_ns", "<i8"),  # after open and fstat; start_ns where nothing is opened
        ("begin_ns", "<i8"),  # begin of the read; later than opened_ns by the cachestat call
        ("end_ns", "<i8"),
        ("bytes", "<i8"),  # bytes read, or -errno
        ("device_bytes", "<i8"),  # bytes that the kernel charged to this thread meanwhile
        # bytes of the place's pages in the page cache before; -1: cachestat not permitted
        (
            "cached_bytes",
            "<i8",
        ),
        ("waits", "<i4"),  # voluntary context switches during the read
        ("client", "<i4"),
    ]
)
"""The outcome of one place, in the row of the same index; `struct outcome` in native/probe.c."""

Places = npt.NDArray[np.void]
Outcomes = npt.NDArray[np.void]
Numbers = npt.NDArray[np.int64]


class Kind(IntEnum):
    """How a place is read; the numbers are those of native/probe.c."""

    RANGES = 0
    """By pread from an open file."""
    FILES = 1
    """By open, fstat, read, close, as a loader of single files does."""
    OPENS = 2
    """Without a read: open, fstat, close."""


class Ending(IntEnum):
    """Why the first client stopped; the numbers are those of native/probe.c."""

    STOPPED = 1
    TIME = 2
    BYTES = 3
    PLACES = 4
    """All places were read."""


@dataclass(frozen=True)
class Pieces:
    """The input of one level's clients."""

    kind: Kind
    targets: tuple[bytes, ...] | tuple[int, ...]
    """Paths of FILES and OPENS, descriptors of RANGES."""
    places: Places
    in_order: bool = False
    """Each client reads its own part in order; otherwise all take the next place from one list."""
    direct: bool = False
    """O_DIRECT: the descriptors were opened with it, or the files will be."""


@dataclass(frozen=True)
class ClientRun:
    """The output of one level's clients."""

    outcomes: Outcomes
    """Rows of the places that were started."""
    start_ns: int
    """Start of all clients."""
    idle_ns: int
    """When the first client finished: from `start_ns` to here all were active."""
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
