"""A second implementation of the rules of blame: one instant at a time, in plain Python, from the
specification and not from the code under test."""

from collections import Counter
from functools import cached_property
from typing import Any

from ioprof.format.schema import CAUSES
from ioprof.format.trace import Trace

Row = dict[str, Any]
Key = tuple[int, str]
"""Step and name of a collective."""

READS = ("open", "read", "fault")
OWN = ("gc", "storage", "page_cache", "decode", "transform", "collate", "loader")
LEAVES = ("storage", "page_cache", "decode", "transform", "collate", "delivery", "loader")


def leaf(row: Row) -> str:
    """The cause of a wait by the kind of span of the worker."""
    if row["kind"] in READS:
        return "page_cache" if row["source"] == "page_cache" else "storage"
    return "loader" if row["kind"] == "sampler" else str(row["kind"])


def open_at(rows: list[Row], instant: int) -> list[Row]:
    """The spans that cover an instant."""
    return [row for row in rows if row["start_ns"] <= instant < row["end_ns"]]


class Oracle:
    """Answers for one trace."""

    def __init__(self, trace: Trace, unmeasured: set[str]) -> None:
        self.rows = list(trace.spans.iter_rows(named=True))
        self.unmeasured = unmeasured
        self._by_kind: dict[tuple[str, int | None], list[Row]] = {}
        for row in self.rows:
            for rank in (None, row["rank"]):
                self._by_kind.setdefault((row["kind"], rank), []).append(row)

    def blame(self) -> dict[tuple[int, int], Counter[str]]:
        """(rank, step) to nanoseconds by cause."""
        return {
            key: Counter(self.cause(key[0], at) for at in range(*window))
            for key, window in self._steps.items()
        }

    def straggler_wait_ns(self) -> dict[int, dict[str, int]]:
        """Late rank to cause to nanoseconds that others waited for it. An instant of two steps of a
        rank counts once."""
        found: dict[int, Counter[str]] = {}
        shared: Counter[tuple[int, int, Key]] = Counter()
        for rank, at in {
            (rank, at) for (rank, _), window in self._steps.items() for at in range(*window)
        }:
            if self._charge(rank, at) == "peers":
                key, late = self._waits_for(rank, at)
                if self._charge(late, at) != "peers" and self._excess(rank, late, key) is not None:
                    shared[rank, late, key] += 1
                else:
                    late = self._first_cause(rank, at)
                    found.setdefault(late, Counter())[self.cause(late, at)] += 1
        for (rank, late, key), waited in shared.items():
            more = self._excess(rank, late, key) or {}
            total, before, reached = sum(more.values()), 0, 0
            # of fractions of nanoseconds those of the earlier causes are rounded first
            for cause in CAUSES:
                reached += more.get(cause, 0)
                until = round(waited * (reached / total))
                found.setdefault(late, Counter())[cause] += until - before
                before = until
        return {
            late: {cause: ns for cause, ns in causes.items() if ns}
            for late, causes in found.items()
        }

    def _excess(self, rank: int, late: int, key: Key) -> dict[str, int] | None:
        """By cause how much longer the late rank needed since both left their last meeting, where
        it needed longer."""
        met = self._meeting(rank, late, key)
        if met is None:
            return None
        more: Counter[str] = Counter()
        for sign, who in ((1, late), (-1, rank)):
            left = self._leaving(who, met)
            more["exchange"] += sign * left
            for at in range(left, self._arrival(who, key)):
                more[self.cause(who, at)] += sign
        assert sum(more.values()) == self._arrival(late, key) - self._arrival(rank, key)
        return {cause: ns for cause, ns in more.items() if ns > 0}

    def _meeting(self, rank: int, late: int, key: Key) -> Key | None:
        """The last collective that both had left before either arrived at this one, in which both
        were together and stopped."""
        met = []
        for other in {(row["step"], row["name"]) for row in self._of("comm", rank)} & {
            (row["step"], row["name"]) for row in self._of("comm", late)
        }:
            left = [self._leaving(who, other) for who in (rank, late)]
            together = min(left) >= max(self._arrival(who, other) for who in (rank, late))
            before = max(left) <= min(self._arrival(who, key) for who in (rank, late))
            if together and before and all(self._stops(who, other) for who in (rank, late)):
                met.append((max(left), min(left), other))
        return max(met)[-1] if met else None

    def _stops(self, rank: int, key: Key) -> bool:
        left = self._leaving(rank, key)
        return left <= self._arrival(rank, key) or self._charge(rank, left - 1) in (
            "transfer",
            "peers",
        )

    def _arrival(self, rank: int, key: Key) -> int:
        return min(
            row["start_ns"] for row in self._of("comm", rank) if (row["step"], row["name"]) == key
        )

    def _leaving(self, rank: int, key: Key) -> int:
        return max(
            row["end_ns"] for row in self._of("comm", rank) if (row["step"], row["name"]) == key
        )

    def _first_cause(self, rank: int, instant: int) -> int:
        """Follow late ranks that wait themselves to one that does not; if there is none, the rank
        that `rank` waits for."""
        passed, late = {rank}, self._waits_for(rank, instant)[1]
        while late not in passed and self._charge(late, instant) == "peers":
            passed.add(late)
            late = self._waits_for(late, instant)[1]
        return late if late not in passed else self._waits_for(rank, instant)[1]

    def cause(self, rank: int, instant: int) -> str:
        """The cause that an instant is charged to."""
        found = self._charge(rank, instant)
        return {"transfer": "exchange", "peers": "straggler"}.get(found, found)

    def _charge(self, rank: int, instant: int) -> str:
        """The first rule that applies."""
        main = [
            row for row in open_at(self.rows, instant) if row["rank"] == rank and self._is_main(row)
        ]
        checkpoint = any(row["kind"] == "checkpoint" for row in main)
        waits = open_at(self._of("wait", rank), instant)
        if self._validates(rank, instant) and not checkpoint:
            return "validation"
        computes = open_at(self._of("compute", rank) + self._of("kernel", rank), instant)
        if any(row["stream"] is not None for row in computes):
            return "compute"
        if checkpoint:
            return "checkpoint"
        own = self._own(main, bool(waits or open_at(self._of("comm", rank), instant)))
        if computes:
            return own if own not in (None, "loader") else "compute"
        exchanges = [
            instant >= max(self._arrivals(row).values())
            for row in open_at(self._of("comm", rank), instant)
        ]
        if any(exchanges):
            return "transfer"
        if open_at(self._of("h2d", rank) + self._of("d2h", rank), instant):
            return "h2d"
        if own is not None:
            return own
        if waits:
            return min((self.wait_leaf(row, instant) for row in waits), key=LEAVES.index)
        return "peers" if exchanges else "host"

    def _validates(self, rank: int, instant: int) -> bool:
        """Whether a batch to validate on was waited for, or had been, and neither another wait nor
        a step's end came since."""
        waits = self._of("wait", rank)
        if open_at(
            self._of("validate", rank) + [row for row in waits if row["name"] == "validate"],
            instant,
        ):
            return True
        mine = [row for row in waits if self._is_main(row) and row["start_ns"] < row["end_ns"]]
        if open_at(mine, instant):
            return False
        before = max((row["end_ns"] for row in mine if row["end_ns"] <= instant), default=None)
        after = min((row["start_ns"] for row in mine if row["start_ns"] > instant), default=None)
        if (
            before is None
            or after is None
            or any(before <= end <= after for _, end in self._of_rank(rank))
        ):
            return False
        return any(row["name"] == "validate" and row["end_ns"] == before for row in mine)

    def _of_rank(self, rank: int) -> list[tuple[int, int]]:
        return [window for (other, _), window in self._steps.items() if other == rank]

    def _is_main(self, row: Row) -> bool:
        return (row["rank"], row["tid"]) in self._main_threads

    @cached_property
    def _main_threads(self) -> set[tuple[int, int]]:
        return {(step["rank"], step["tid"]) for step in self._of("step")}

    def _own(self, main: list[Row], elsewhere: bool) -> str | None:
        """What the main thread does itself."""
        found = [
            leaf(row) for row in main if not (elsewhere and row["source"] in ("socket", "pipe"))
        ]
        return min(
            (cause for cause in found if cause in OWN and cause not in self.unmeasured),
            key=OWN.index,
            default=None,
        )

    def wait_leaf(self, wait: Row, instant: int) -> str:
        """Why the batch of this wait was not ready at this instant."""
        found = self._wait_leaf(wait, instant)
        return "loader" if found in self.unmeasured else found

    def _wait_leaf(self, wait: Row, instant: int) -> str:
        fetches = [row for row in self._of("fetch", wait["rank"]) if row["batch"] == wait["batch"]]
        if not fetches:
            return self._threads_leaf(wait, instant)
        ready: dict[int, int] = {}
        for row in fetches:
            ready[row["pid"]] = max(ready.get(row["pid"], 0), row["end_ns"])
        process = min(ready, key=lambda pid: (ready[pid], pid))
        if instant >= ready[process]:
            return "delivery"
        busy = [
            row
            for row in open_at(self.rows, instant)
            if row["tid"] == process and row["rank"] == wait["rank"]
        ]
        leaves = [
            found for found in map(leaf, busy) if found in LEAVES and found not in self.unmeasured
        ]
        return min(leaves, key=LEAVES.index, default="loader")

    def _threads_leaf(self, wait: Row, instant: int) -> str:
        """What other threads of the rank's process did, if they have no batch."""
        rank = wait["rank"]
        consumers = [row for kind in ("wait", "step") for row in self._of(kind, rank)]
        processes, threads = (
            {row["pid"] for row in consumers},
            {row["tid"] for row in (*consumers, *self._of("fetch", rank))},
        )
        by_processes = any(row["pid"] not in processes for row in self._of("fetch", rank))
        busy = [
            row
            for row in open_at(self.rows, instant)
            if row["rank"] == rank
            and row["pid"] in processes
            and row["tid"] not in threads
            and row["batch"] is None
            and row["kind"] in (*READS, "decode", "transform", "collate")
            and not (by_processes and row["source"] in ("socket", "pipe"))
        ]
        leaves = [found for found in map(leaf, busy) if found not in self.unmeasured]
        return min(leaves, key=LEAVES.index, default="loader")

    @cached_property
    def _steps(self) -> dict[tuple[int, int], tuple[int, int]]:
        windows: dict[tuple[int, int], tuple[int, int]] = {}
        for row in self._of("step"):
            key = row["rank"], row["step"]
            start, end = windows.get(key, (row["start_ns"], row["end_ns"]))
            windows[key] = min(start, row["start_ns"]), max(end, row["end_ns"])
        for rank in {rank for rank, _ in windows}:
            last = max(end for (other, _), (_, end) in windows.items() if other == rank)
            until = self._end_of_epoch(rank, last)
            for key, (start, end) in windows.items():
                if key[0] == rank and end == last:
                    windows[key] = start, until
        return windows

    def _end_of_epoch(self, rank: int, last: int) -> int:
        """The end of the last validation or checkpoint after a rank's last step."""
        waits = [row for row in self._of("wait", rank) if self._is_main(row)]
        mine = [row for row in waits if last < row["end_ns"] and row["start_ns"] < row["end_ns"]]
        validates = [row for row in mine if row["name"] == "validate"]
        found = [*validates]
        for kind in ("validate", "checkpoint"):
            found += [row for row in self._of(kind, rank) if self._is_main(row)]
        ends = [last, *(row["end_ns"] for row in found)]
        for row in validates:  # and what follows up to the next wait
            later = [other["start_ns"] for other in mine if other["start_ns"] >= row["end_ns"]]
            busy = open_at(mine, row["end_ns"])
            ends += [] if busy else [min(later)] if later else []
        return max(ends)

    def _arrivals(self, row: Row) -> dict[int, int]:
        """When each rank arrived at the collective that a span is part of."""
        arrived: dict[int, int] = {}
        for other in self._of("comm"):
            if (other["step"], other["name"]) == (row["step"], row["name"]):
                arrived[other["rank"]] = min(
                    arrived.get(other["rank"], other["start_ns"]), other["start_ns"]
                )
        return arrived

    def _waits_for(self, rank: int, instant: int) -> tuple[Key, int]:
        """The collective in which a rank waits if it arrived first, and for whom: the last to
        arrive (of several the lowest)."""
        waits = []
        for row in self._of("comm", rank):
            arrived = self._arrivals(row)
            last = max(arrived.values())
            if arrived[rank] <= instant < last:
                late = min(other for other, at in arrived.items() if at == last)
                waits.append((arrived[rank], late, last, (row["step"], row["name"])))
        _, late, _, key = min(waits)
        return key, late

    def _of(self, kind: str, rank: int | None = None) -> list[Row]:
        return self._by_kind.get((kind, rank), [])
