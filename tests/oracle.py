"""The rules of blame, written once more: instant by instant, in plain Python, from DESIGN and not from the code under test."""

from collections import Counter
from typing import Any

from ioprof.trace import Trace

Row = dict[str, Any]

READS = ("open", "read", "fault")
LEAVES = ("storage", "page_cache", "decode", "transform", "collate", "delivery", "loader")


def leaf(row: Row) -> str:
    """What a span of a worker is called when somebody waits for it."""
    if row["kind"] in READS:
        return "page_cache" if row["source"] == "page_cache" else "storage"
    return str(row["kind"])


def open_at(rows: list[Row], instant: int) -> list[Row]:
    """The spans that cover an instant."""
    return [row for row in rows if row["start_ns"] <= instant < row["end_ns"]]


class Oracle:
    """Answers for one trace."""

    def __init__(self, trace: Trace, unmeasured: set[str]) -> None:
        self.rows = list(trace.spans.iter_rows(named=True))
        self.unmeasured = unmeasured

    def blame(self) -> dict[tuple[int, int], Counter[str]]:
        """(rank, step) to nanoseconds by cause."""
        return {key: Counter(self.cause(key[0], at) for at in range(*window)) for key, window in self._steps().items()}

    def behind_peers(self) -> dict[int, dict[str, int]]:
        """Late rank to what it did to nanoseconds that others waited for it."""
        found: dict[int, Counter[str]] = {}
        for rank, at in {(rank, at) for (rank, _), window in self._steps().items() for at in range(*window)}:
            if self._charge(rank, at) == "peers":
                late = self._late_rank(rank, at)
                found.setdefault(late, Counter())[self.cause(late, at)] += 1
        return {late: dict(causes) for late, causes in found.items()}

    def cause(self, rank: int, instant: int) -> str:
        """What an instant is charged to."""
        found = self._charge(rank, instant)
        return "communication" if found in ("transfer", "peers") else found

    def _charge(self, rank: int, instant: int) -> str:
        """The first that holds."""
        if open_at(self._of("compute", rank) + self._of("kernel", rank), instant):
            return "compute"
        exchanges = [instant >= max(self._arrivals(row).values()) for row in open_at(self._of("comm", rank), instant)]
        if any(exchanges):
            return "transfer"
        if open_at(self._of("h2d", rank) + self._of("d2h", rank), instant):
            return "h2d"
        waits = [self.wait_leaf(row, instant) for row in open_at(self._of("wait", rank), instant)]
        if waits:
            return min(waits, key=LEAVES.index)
        return "peers" if exchanges else "host"

    def wait_leaf(self, wait: Row, instant: int) -> str:
        """Why the batch of this wait was not there at this instant."""
        found = self._wait_leaf(wait, instant)
        return "loader" if found in self.unmeasured else found

    def _wait_leaf(self, wait: Row, instant: int) -> str:
        fetches = [row for row in self._of("fetch", wait["rank"]) if row["batch"] == wait["batch"]]
        if not fetches:
            return "loader"
        ready: dict[int, int] = {}
        for row in fetches:
            ready[row["pid"]] = max(ready.get(row["pid"], 0), row["end_ns"])
        process = min(ready, key=lambda pid: (ready[pid], pid))
        if instant >= ready[process]:
            return "delivery"
        busy = [row for row in open_at(self.rows, instant) if row["tid"] == process and row["rank"] == wait["rank"]]
        leaves = [found for found in map(leaf, busy) if found in LEAVES and found not in self.unmeasured]
        return min(leaves, key=LEAVES.index, default="loader")

    def _steps(self) -> dict[tuple[int, int], tuple[int, int]]:
        windows: dict[tuple[int, int], tuple[int, int]] = {}
        for row in self._of("step"):
            key = row["rank"], row["step"]
            start, end = windows.get(key, (row["start_ns"], row["end_ns"]))
            windows[key] = min(start, row["start_ns"]), max(end, row["end_ns"])
        return windows

    def _arrivals(self, row: Row) -> dict[int, int]:
        """When each rank arrived at the collective that a span is part of."""
        arrived: dict[int, int] = {}
        for other in self._of("comm"):
            if (other["step"], other["name"]) == (row["step"], row["name"]):
                arrived[other["rank"]] = min(arrived.get(other["rank"], other["start_ns"]), other["start_ns"])
        return arrived

    def _late_rank(self, rank: int, instant: int) -> int:
        """Whom a rank waits for: the last to arrive (of several the lowest) where the rank itself arrived first."""
        waits = []
        for row in self._of("comm", rank):
            arrived = self._arrivals(row)
            last = max(arrived.values())
            if arrived[rank] <= instant < last:
                waits.append((arrived[rank], min(other for other, at in arrived.items() if at == last)))
        return min(waits)[1]

    def _of(self, kind: str, rank: int | None = None) -> list[Row]:
        return [row for row in self.rows if row["kind"] == kind and rank in (None, row["rank"])]
