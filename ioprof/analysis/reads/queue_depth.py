"""How many reads were in progress at a time. By Little's law the mean is their rate times the mean
time of one.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ioprof.analysis.charge.duration_classes import LEAST_NS, NUM_CLASSES, quantiles_ns
from ioprof.analysis.reads.storage_bound import (
    WAITED_NS,
    WINDOW_NS,
    Quartiles,
    StorageBound,
    spread,
    storage_bound,
)
from ioprof.format.run_record import QueueDepth, sentence

_NUM_SHOWN: Final = 60
_MOST_WINDOWS: Final = 4096
_LEAST_READS: Final = 100
_LEAST_BUSY: Final = 0.5


class DepthOverTime:
    """Reads of an interval of time, added up as they come."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self._start_ns, self._end_ns = start_ns, max(end_ns, start_ns + 1)
        self._window_ns = max(WINDOW_NS, (self._end_ns - start_ns) // _MOST_WINDOWS + 1)
        self._windows = np.arange(start_ns, self._end_ns + 1, self._window_ns, dtype=np.int64)
        """Edges of those of full length; the rest of the time is left out."""
        self._edges = np.linspace(start_ns, self._end_ns, _NUM_SHOWN + 1).astype(np.int64)
        self._open_ns = np.zeros(_NUM_SHOWN + 1)
        """Summed over reads, up to each edge."""
        self._bytes, self._reads = (
            np.zeros(len(self._windows) - 1),
            np.zeros(len(self._windows) - 1),
        )
        self._classes = np.zeros(NUM_CLASSES, np.int64)
        """Reads that waited, by their duration."""
        self._size_classes = np.zeros(NUM_CLASSES, np.int64)
        """The same by their bytes, in classes of the same widths."""
        self._sums = [0, 0, 0]
        """Reads, bytes, nanoseconds."""
        self._readers: set[tuple[int, int]] = set()

    def add(
        self,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        sizes: NDArray[np.int64],
        pids: NDArray[np.int64],
        tids: NDArray[np.int64],
    ) -> None:
        """Add reads from storage; `pids` and `tids` say who made them."""
        chosen = np.flatnonzero((ends > self._start_ns) & (starts < self._end_ns))
        starts, ends, sizes, pids, tids = (
            column[chosen] for column in (starts, ends, sizes, pids, tids)
        )
        took = ends - starts
        self._open_ns += _elapsed(starts, self._edges) - _elapsed(ends, self._edges)
        num_bytes, number = spread(self._windows, starts, ends, sizes, np.ones(len(starts)))
        self._bytes += num_bytes
        self._reads += number
        has_waited = took >= WAITED_NS
        self._classes += _counts(took[has_waited])
        self._size_classes += _counts(sizes[has_waited])
        self._sums = [
            so_far + int(more)
            for so_far, more in zip(self._sums, (len(starts), sizes.sum(), took.sum()), strict=True)
        ]
        is_first = np.append(True, (np.diff(pids) != 0) | (np.diff(tids) != 0))[: len(pids)]
        self._readers |= set(zip(pids[is_first].tolist(), tids[is_first].tolist(), strict=True))

    def found(self) -> QueueDepth | None:
        """What that shows; None: of too few reads."""
        number, num_bytes, took_ns = self._sums
        if number < _LEAST_READS:
            return None
        seconds = (self._end_ns - self._start_ns) / 1e9
        depths = np.diff(self._open_ns) / np.maximum(np.diff(self._edges), 1)
        bound, why = self._bound(depths)
        return QueueDepth(
            # Rounded, since the last digits depend on the order in which parts are added up.
            mean=round(
                float(self._open_ns[-1] - self._open_ns[0]) / (self._end_ns - self._start_ns), 6
            ),
            most=round(float(depths.max()), 3),
            over_time=tuple(round(float(depth), 3) for depth in depths),
            reads_per_s=number / seconds,
            bytes_per_s=num_bytes / seconds,
            latency_s=took_ns / number / 1e9,
            readers=len(self._readers),
            bound=bound,
            why=why,
        )

    def _bound(self, depths: NDArray[np.float64]) -> StorageBound:
        busy = float((depths >= _LEAST_BUSY).mean())
        number = int(self._classes.sum())
        if busy < _LEAST_BUSY or number < _LEAST_READS:
            return StorageBound(None, sentence("storage_idle", busy_ratio=busy))
        return storage_bound(
            _quartiles(self._classes), _quartiles(self._size_classes), self._reads, self._bytes
        )


def _counts(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many there are of each class."""
    return np.bincount(
        np.searchsorted(LEAST_NS, np.maximum(values, 1), side="right") - 1, minlength=NUM_CLASSES
    )


def _quartiles(counts: NDArray[np.int64]) -> Quartiles:
    return Quartiles(*quantiles_ns(np.arange(NUM_CLASSES), counts, (0.25, 0.5, 0.75)))


def _elapsed(instants: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each edge, the time since each of these instants that lies before it; summed."""
    place = np.searchsorted(edges, instants, side="left")
    counts, sums = (
        np.bincount(place, weights, len(edges) + 1).cumsum()[:-1]
        for weights in (None, instants - edges[0])
    )
    found: NDArray[np.float64] = counts * (edges - edges[0]).astype(np.float64) - sums
    return found
