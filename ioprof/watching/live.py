"""Sums of a job that goes on: steps, what they waited for, bytes by source, what workers did, the
slowest reads.

Causes are charged as in `ioprof.analysis.charge.blame`, to what the worker of a batch did while the
rank waited for it, but less precisely: waiting for other ranks is part of `exchange`, GPU kernels
are known after the job only, threads without batches are `loader`, and a batch that was made is
`delivery`, whatever keeps it from being sent.
"""

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    overlaps,
    pack,
    partition,
    subtract,
    total,
    union,
    union_all,
)
from ioprof.format.schema import KINDS, SOURCES
from ioprof.ingest.untrusted_values import text
from ioprof.masking import masked_text
from ioprof.watching.spool import News, Who

_Array = npt.NDArray[Any]

_KIND: Final = {kind: place for place, kind in enumerate(KINDS, 1)}
_SOURCE: Final = {source: place for place, source in enumerate(SOURCES, 1)}
_READS: Final = (_KIND["open"], _KIND["read"], _KIND["fault"])
_STAGES: Final = ("storage", "page_cache", "decode", "transform", "collate")
"""What a worker does for a batch; where two are recorded at once the first counts."""
_OWN: Final = {
    "validation": ("validate",),
    "compute": ("compute", "kernel"),
    "checkpoint": ("checkpoint",),
    "exchange": ("comm",),
    "h2d": ("h2d", "d2h"),
    "gc": ("gc",),
}
"""Causes that are spans of the rank itself."""
_ORDER: Final = (
    "validation",
    "compute",
    "checkpoint",
    "h2d",
    *_STAGES,
    "delivery",
    "loader",
    "exchange",
    "gc",
)
"""An instant is charged to the first. In the report `exchange` is before the stages, but without
waiting for other ranks."""
_KEPT_NS: Final = 120_000_000_000
"""Work for batches is forgotten so long after it."""
_MOST_FETCHES: Final = 4096
_NUM_SLOWEST: Final = 10
_MOST_UNKNOWN: Final = 1_000_000
"""Records of processes whose rank is not known yet that are kept until it is."""
LATENCY_BOUNDS_S: Final = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper bounds of the classes of read latency."""


@dataclass
class RankSums:
    """Sums of one rank and its workers."""

    host: str
    steps: int = 0
    step_ns: int = 0
    samples: int = 0
    """Of batches that were made; 0: the loader does not say how many samples a batch has."""
    batches: int = 0
    """Batches that the rank received."""
    wait_ns: int = 0
    cause_ns: Counter[str] = field(default_factory=Counter)
    """Of `steps`, by cause."""
    reads: Counter[str] = field(default_factory=Counter)
    """By source, of all processes of the rank."""
    bytes: Counter[str] = field(default_factory=Counter)
    read_ns: Counter[str] = field(default_factory=Counter)
    latencies: _Array = field(default_factory=lambda: np.zeros(len(LATENCY_BOUNDS_S) + 1, np.int64))
    """Reads from storage by latency: up to each of `LATENCY_BOUNDS_S`, and above the last."""


@dataclass
class WorkerSums:
    """Sums of one worker, or of a rank that makes its batches itself."""

    who: Who
    fetch_ns: int = 0
    batches: int = 0
    stage_ns: Counter[str] = field(default_factory=Counter)
    """Within its fetches, by stage; what is left is Python."""
    first_ns: int = 0
    last_ns: int = 0
    fetched: list[tuple[tuple[str, int], Intervals]] = field(default_factory=list)
    """Process and times of fetches whose stages are not in `stage_ns` yet."""


class SlowRead(NamedTuple):
    """One of the slowest reads."""

    took_ns: int
    path: str
    source: str
    bytes: int


class _Work:
    """What one process did lately: intervals by stage, and its fetches."""

    def __init__(self) -> None:
        self._stages: dict[str, deque[Intervals]] = {stage: deque() for stage in _STAGES}

    def add(self, stage: str, times: Intervals) -> None:
        if len(times):
            self._stages[stage].append(times)

    def within(self, stage: str, windows: Intervals) -> Intervals:
        """The intervals of the stage that lie in the windows, which are a normal set."""
        if not len(windows):
            return EMPTY
        first, last = windows[0, 0], windows[-1, 1]
        near = [
            times
            for times in self._stages[stage]
            if times[:, 1].max() > first and times[:, 0].min() < last
        ]
        return union(overlaps(union_all(near), windows)) if near else EMPTY

    def forget(self, before_ns: int) -> None:
        for kept in self._stages.values():
            while kept and kept[0][:, 1].max() < before_ns:
                kept.popleft()


class Live:
    """All sums of a job."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankSums] = {}
        self.workers: dict[tuple[str, int, int], WorkerSums] = {}
        """By host, rank, and number of the worker, -1: the rank itself. Each epoch may have a new
        process of that number."""
        self.slowest: list[SlowRead] = []
        self.spans = 0
        self.skipped = 0
        """Slots that were not read, since they were written faster than the limit."""
        self._unknown: dict[tuple[str, int], list[News]] = {}
        self._num_unknown = 0
        self._heap: list[tuple[int, int, SlowRead]] = []
        self._work: dict[tuple[str, int], _Work] = {}
        self._own: dict[int, dict[str, list[Intervals]]] = {}
        self._steps: dict[int, list[tuple[int, int, int]]] = {}
        self._waits: dict[int, list[tuple[int, int, int]]] = {}
        self._fetches: dict[int, dict[int, tuple[tuple[str, int], int]]] = {}

    def add(self, news: News) -> None:
        """Add what one process recorded."""
        self.spans += len(news.records)
        self.skipped += news.skipped
        key = (news.who.host, news.who.pid)
        if news.who.rank is None:
            self._num_unknown += len(news.records)
            if self._num_unknown <= _MOST_UNKNOWN:
                self._unknown.setdefault(key, []).append(news)
            return
        for earlier in self._unknown.pop(key, ()):
            self._num_unknown -= len(earlier.records)
            self._add(replace(earlier, who=news.who))
        self._add(news)

    def _add(self, news: News) -> None:
        records, who = news.records, news.who
        assert who.rank is not None
        sums = self.ranks.setdefault(who.rank, RankSums(who.host))
        if who.worker is None:
            sums.host = who.host
        times = pack(records["start_ns"].astype(np.int64), records["end_ns"].astype(np.int64))
        self._add_reads(sums, news, times)
        self._add_work(sums, news, times)
        own = self._own.setdefault(who.rank, {})
        for cause, kinds in _OWN.items():
            mask = np.isin(records["kind"], [_KIND[kind] for kind in kinds])
            if mask.any():
                own.setdefault(cause, []).append(times[mask])
        for kind, kept, number in (("step", self._steps, "step"), ("wait", self._waits, "batch")):
            mask = records["kind"] == _KIND[kind]
            rows = zip(times[mask].tolist(), records[number][mask].tolist(), strict=True)
            kept.setdefault(who.rank, []).extend((start, end, each) for (start, end), each in rows)

    def settle(self, until_ns: int) -> None:
        """Charge the steps that ended before `until_ns`, when all that was recorded by then has
        been added.
        """
        for rank, steps in self._steps.items():
            done = [step for step in steps if step[1] <= until_ns and step[2] >= 0]
            if done:
                self._steps[rank] = [step for step in steps if step[1] > until_ns]
                self._charge(rank, done)
        for sums in self.workers.values():
            fetched, sums.fetched = sums.fetched, []
            for key, rows in fetched:
                is_past = rows[:, 1] <= until_ns  # of others the reads may not have been added yet
                if is_past.any():
                    self._add_stages(sums, self._work[key], rows[is_past])
                if not is_past.all():
                    sums.fetched.append((key, rows[~is_past]))
        for work in self._work.values():
            work.forget(until_ns - _KEPT_NS)

    def _add_reads(self, sums: RankSums, news: News, times: Intervals) -> None:
        records = news.records
        is_read = (
            (records["kind"] == _KIND["read"])
            & (records["source"] > 0)
            & (records["source"] <= len(SOURCES))
        )
        taken = times[:, 1] - times[:, 0]
        for source, place in _SOURCE.items():
            mask = is_read & (records["source"] == place)
            if mask.any():
                sums.reads[source] += int(mask.sum())
                sums.bytes[source] += int(np.maximum(records["bytes"][mask], 0).sum())
                sums.read_ns[source] += int(taken[mask].sum())
        from_storage = is_read & np.isin(
            records["source"], [_SOURCE["storage"], _SOURCE["unknown"]]
        )
        bounds = np.array(LATENCY_BOUNDS_S) * 1e9
        sums.latencies += np.bincount(
            np.searchsorted(bounds, taken[from_storage]), minlength=len(bounds) + 1
        )
        least = self._heap[0][0] if len(self._heap) >= _NUM_SLOWEST else 0
        slow = np.flatnonzero(is_read & (taken > least))
        for place in slow[np.argsort(-taken[slow], kind="stable")][:_NUM_SLOWEST].tolist():
            record = records[place]
            path = masked_text(text(news.strings.get(int(record["file"]), b"?")))
            found = SlowRead(
                int(taken[place]),
                path,
                SOURCES[int(record["source"]) - 1],
                int(record["bytes"]),
            )
            heapq.heappush(self._heap, (found.took_ns, -int(record["start_ns"]), found))
            if len(self._heap) > _NUM_SLOWEST:
                heapq.heappop(self._heap)
        if len(slow):
            self.slowest = [found for *_, found in sorted(self._heap, reverse=True)]

    def _add_work(self, sums: RankSums, news: News, times: Intervals) -> None:
        records, who = news.records, news.who
        key = (who.host, who.pid)
        work = self._work.setdefault(key, _Work())
        is_cached = records["source"] == _SOURCE["page_cache"]
        is_read = np.isin(records["kind"], _READS)
        work.add("storage", times[is_read & ~is_cached])
        work.add("page_cache", times[is_read & is_cached])
        for stage in _STAGES[2:]:
            work.add(stage, times[records["kind"] == _KIND[stage]])
        is_fetch = (records["kind"] == _KIND["fetch"]) & (records["batch"] >= 0)
        if not is_fetch.any():
            return
        fetches = self._fetches.setdefault(who.rank or 0, {})
        for batch, end in zip(
            records["batch"][is_fetch].tolist(), times[is_fetch][:, 1].tolist(), strict=True
        ):
            fetches[batch] = (key, end)
        while len(fetches) > _MOST_FETCHES:
            del fetches[next(iter(fetches))]
        sums.samples += int(np.maximum(records["offset"][is_fetch], 0).sum())
        place = who.host, who.rank or 0, -1 if who.worker is None else who.worker
        worker = self.workers.setdefault(
            place, WorkerSums(who, first_ns=int(times[is_fetch][0, 0]))
        )
        worker.fetched.append((key, times[is_fetch]))

    def _add_stages(self, sums: WorkerSums, work: _Work, rows: Intervals) -> None:
        """What a process did in its latest fetches; now that all its files have been read."""
        fetched = union(rows)
        sums.batches += len(rows)
        sums.fetch_ns += total(fetched)
        sums.last_ns = max(sums.last_ns, int(fetched[-1, 1]))
        *stages, _ = partition(fetched, [work.within(stage, fetched) for stage in _STAGES])
        for stage, times in zip(_STAGES, stages, strict=True):
            sums.stage_ns[stage] += total(times)

    def _charge(self, rank: int, steps: list[tuple[int, int, int]]) -> None:
        sums = self.ranks[rank]
        table = np.array(sorted(steps), np.int64)
        windows = union(table[:, :2])
        last_ns = int(windows[-1, 1])
        waits = [wait for wait in self._waits.get(rank, ()) if wait[0] < last_ns]
        self._waits[rank] = [wait for wait in self._waits.get(rank, ()) if wait[0] >= last_ns]
        waited = self._waited(rank, waits)
        own = {cause: union_all(times) for cause, times in self._own.get(rank, {}).items()}
        self._own[rank] = {
            cause: [times[times[:, 1] > last_ns]]
            for cause, times in own.items()
            if (times[:, 1] > last_ns).any()
        }
        named = [cause for cause in _ORDER if cause in own or cause in waited]
        *charged, host = partition(
            windows, [own[cause] if cause in own else waited[cause] for cause in named]
        )
        for cause, times in zip(named, charged, strict=True):
            sums.cause_ns[cause] += total(times)
        sums.cause_ns["host"] += total(host)
        sums.steps += len(table)
        sums.step_ns += total(windows)
        sums.batches += sum(batch >= 0 for *_, batch in waits)
        sums.wait_ns += sum(end - start for start, end, _ in waits)

    def _waited(self, rank: int, waits: list[tuple[int, int, int]]) -> dict[str, Intervals]:
        """When the rank waited, by what for: the worker of the batch until it was made, then its
        delivery.
        """
        fetches = self._fetches.get(rank, {})
        of_process: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for start, end, batch in waits:
            if (found := fetches.get(batch)) is not None:
                of_process.setdefault(found[0], []).append(
                    (start, min(max(found[1], start), end), end)
                )
        delivered = np.array(
            [times[1:] for of_one in of_process.values() for times in of_one], np.int64
        ).reshape(-1, 2)
        parts: dict[str, list[Intervals]] = {stage: [] for stage in _STAGES}
        for key, of_one in of_process.items():
            inside = union(np.array(of_one, np.int64)[:, :2])
            for stage in _STAGES:
                parts[stage].append(self._work[key].within(stage, inside))
        found_times = {stage: union_all(times) for stage, times in parts.items() if times}
        found_times["delivery"] = union(delivered)
        whole = union(np.array([(start, end) for start, end, _ in waits], np.int64).reshape(-1, 2))
        found_times["loader"] = subtract(whole, union_all(list(found_times.values())))
        return found_times
