"""Joins spans from different recorders: the batch that a read belongs to, and page faults that were
recorded twice.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import empty_table

_Array = npt.NDArray[Any]
Helpers = dict[tuple[str, int], tuple[int, frozenset[int]]]
"""By host and process of a consumer of batches, the one thread that fetches in it, and the threads
that read for that one."""
_MADE_FOR_BATCH: Final = ("open", "read", "fault", "request")
"""Kinds that get the batch of the fetch in which they began."""
_from_peer: Final = pl.col("source").is_in(["socket", "pipe"]).fill_null(value=False)
MOST_ELSEWHERE: Final = 0.05
"""Part of the time in which a thread reads that may lie between fetches, if it is one that reads
for them."""


class HelperIndex:
    """Finds the threads of a training process that read for the thread which makes and takes its
    batches, such as those of pyarrow's pools: between the first fetch and the last, at least 95 %
    of the time in which they read lies in fetches.

    A thread that makes batches ahead, for another one that takes them, fetches nearly all the time,
    so nothing follows from that. The reads of a process are added in any number of parts; all spans
    are on the clock of its host.
    """

    def __init__(self, tables: Iterable[pl.DataFrame]) -> None:
        spans = _structure(tables)
        waiting = spans.filter(pl.col("kind") == "wait").select("host", "pid", "tid").unique()
        fetching = spans.filter(
            pl.col("kind") == "fetch", pl.col("batch").is_not_null(), pl.col("tid").is_not_null()
        )
        own = fetching.join(waiting, on=["host", "pid"], how="semi")
        takes = {(str(host), pid, tid) for host, pid, tid in waiting.iter_rows()}
        self._found: dict[tuple[str, int], _OneFetcher] = {}
        for (host, pid), part in (
            own.sort("start_ns").partition_by("host", "pid", as_dict=True).items()
        ):
            fetcher = int(part["tid"][0])
            if part["tid"].n_unique() == 1 and (str(host), pid, fetcher) in takes:
                known = {
                    tid for of_host, of_pid, tid in takes if (of_host, of_pid) == (str(host), pid)
                }
                until = np.maximum.accumulate(part["end_ns"].to_numpy())
                self._found[str(host), pid] = _OneFetcher(
                    fetcher, known, part["start_ns"].to_numpy(), until
                )

    def may_have(self, host: str, pid: int, tids: Iterable[int]) -> bool:
        """Whether one of these threads of a process may be a helper."""
        fetcher = self._found.get((host, pid))
        return fetcher is not None and not fetcher.known.issuperset(tids)

    def add(self, spans: pl.DataFrame) -> None:
        """Add reads and page faults; other spans are ignored, and those that have a batch or whose
        bytes another process sent.
        """
        is_read = (
            pl.col("kind").is_in(["read", "fault"])
            & pl.col("batch").is_null()
            & pl.col("tid").is_not_null()
        )
        reads = spans.filter(is_read & ~_from_peer).select(
            pl.col("host").cast(pl.String), "pid", "tid", "start_ns", "end_ns"
        )
        for (host, pid), part in reads.partition_by("host", "pid", as_dict=True).items():
            self.add_reads(
                host, pid, *(part[name].to_numpy() for name in ("tid", "start_ns", "end_ns"))
            )

    def add_reads(self, host: str, pid: int, tids: _Array, starts: _Array, ends: _Array) -> None:
        """Add reads of one process that have no batch, and whose bytes no other process sent."""
        if (fetcher := self._found.get((host, pid))) is not None:
            for tid in set(np.unique(tids).tolist()) - fetcher.known:
                fetcher.add(tid, starts[tids == tid], ends[tids == tid])

    def found(self) -> Helpers:
        """By process; without those that have none."""
        threads = {
            process: (fetcher.tid, frozenset(fetcher.helpers()))
            for process, fetcher in self._found.items()
        }
        return {process: found for process, found in threads.items() if found[1]}


@dataclass
class _OneFetcher:
    """A thread that makes the batches of its own process, and what others read meanwhile."""

    tid: int
    known: set[int]
    """It, and others that take batches."""
    since: _Array
    until: _Array
    """When its fetches began, and when all that had begun had ended."""
    took: dict[int, list[int]] = field(default_factory=dict)
    """By thread, the nanoseconds that its reads took which began in fetches, and between them; a
    read counts as one at least."""

    def add(self, tid: int, starts: _Array, ends: _Array) -> None:
        place = np.searchsorted(self.since, starts, side="right") - 1
        is_near = (place >= 0) & (starts <= self.until[-1])
        is_inside = is_near & (starts <= self.until[np.maximum(place, 0)])
        took = np.maximum(ends - starts, 1)
        sums = self.took.setdefault(tid, [0, 0])
        sums[0] += int(took[is_inside].sum())
        sums[1] += int(took[is_near & ~is_inside].sum())

    def helpers(self) -> Iterator[int]:
        yield from (
            tid
            for tid, (inside, between) in self.took.items()
            if inside and between <= MOST_ELSEWHERE * (inside + between)
        )


class FetchIndex:
    """The `fetch` spans of all workers, to assign batches to reads of one process at a time, as
    `assign_batches` does.

    `tables` and the spans are on the clocks of their hosts. `helpers` is what `HelperIndex` found.
    """

    def __init__(self, tables: Iterable[pl.DataFrame], helpers: Helpers | None = None) -> None:
        spans, self._helpers = _structure(tables), helpers or {}
        fetching = spans.filter(
            pl.col("kind") == "fetch", pl.col("batch").is_not_null(), pl.col("tid").is_not_null()
        )
        known = fetching.select(
            "host", "pid", _worker_id(spans, fetching), "start_ns", "end_ns", "batch"
        ).sort("start_ns")
        self._workers: dict[tuple[str, int], dict[int, tuple[_Array, _Array, _Array]]] = {}
        for (host, pid, worker), part in known.partition_by(
            "host", "pid", "worker", as_dict=True
        ).items():
            if pid is not None:
                times = (
                    part["start_ns"].to_numpy(),
                    part["end_ns"].to_numpy(),
                    part["batch"].to_numpy(),
                )
                self._workers.setdefault((host, pid), {})[worker] = times

    def assign(self, spans: pl.DataFrame) -> pl.DataFrame:
        """Spans of one process, whose reads that have no batch get that of their fetch."""
        process = spans.select(pl.col("host").cast(pl.String), "pid").row(0)
        workers = self._workers.get(process, {})
        orphan = (pl.col("kind").is_in(_MADE_FOR_BATCH) & pl.col("batch").is_null()).alias("orphan")
        rows: _Array = np.flatnonzero(spans.select(orphan)["orphan"].to_numpy() & bool(workers))
        if not len(rows):
            return spans
        starts, tids = (
            spans["start_ns"].to_numpy()[rows],
            spans["tid"].fill_null(-1).to_numpy()[rows],
        )
        if process in self._helpers:
            fetcher, helpers = self._helpers[process]
            is_sent = spans.select(_from_peer)["source"].to_numpy()[rows]
            tids = np.where(np.isin(tids, list(helpers)) & ~is_sent, fetcher, tids)
        batches = np.full(len(spans), -1, np.int64)
        for worker, (since, until, batch) in workers.items():
            mine = np.arange(len(rows)) if worker == 0 else np.flatnonzero(tids == worker)
            place = np.searchsorted(since, starts[mine], side="right") - 1
            mine, place = mine[place >= 0], place[place >= 0]
            is_inside = starts[mine] <= until[place]
            batches[rows[mine[is_inside]]] = batch[place[is_inside]]
        found = pl.Series("batch", batches)
        return spans.with_columns(batch=pl.coalesce("batch", found.set(found < 0, None)))


def assign_batches(spans: pl.DataFrame, helpers: Helpers | None = None) -> pl.DataFrame:
    """Set the batch of reads that have none to that of the `fetch` during which their worker
    started them.

    A worker is a thread, or a whole process if only one of its threads fetches and it consumes no
    batches. `helpers` is what `HelperIndex` found; None: these spans are all that there are, and
    show it.
    """
    if helpers is None:
        index = HelperIndex([spans])
        index.add(spans)
        helpers = index.found()
    fetching = spans.filter(
        pl.col("kind") == "fetch", pl.col("batch").is_not_null(), pl.col("tid").is_not_null()
    )
    orphan = pl.col("kind").is_in(_MADE_FOR_BATCH) & pl.col("batch").is_null()
    if fetching.is_empty() or spans.filter(orphan).is_empty():
        return spans
    worker = ["host", "pid", "worker"]
    worker_id, of_helpers = _worker_id(spans, fetching), _for_others(helpers)
    fetches = fetching.select(
        *worker[:2], worker_id, "start_ns", until="end_ns", fetched="batch"
    ).sort("start_ns")
    orphans = (
        spans.with_columns(of_helpers)
        .select("kind", "batch", *worker[:2], worker_id, "start_ns")
        .with_row_index("row")
        .filter(orphan)
        .sort("start_ns")
    )
    joined = orphans.join_asof(
        fetches, on="start_ns", by=worker, strategy="backward", check_sortedness=False
    )
    found = joined.filter(pl.col("start_ns") <= pl.col("until"))
    return spans.with_columns(spans["batch"].scatter(found["row"], found["fetched"]))


def _structure(tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(
        [
            empty_table(SPAN_COLUMNS),
            *(table.filter(pl.col("kind").is_in(["fetch", "wait"])) for table in tables),
        ]
    )


def _for_others(helpers: Helpers) -> pl.Expr:
    """The thread that a span counts for: of a helper that which fetches."""
    tid = pl.col("tid")
    for (host, pid), (fetcher, threads) in helpers.items():
        is_helper = (
            (pl.col("host").cast(pl.String) == host)
            & (pl.col("pid") == pid)
            & pl.col("tid").is_in(sorted(threads))
        )
        tid = pl.when(is_helper & ~_from_peer).then(pl.lit(fetcher, pl.Int32)).otherwise(tid)
    return tid.alias("tid")


def _worker_id(spans: pl.DataFrame, fetching: pl.DataFrame) -> pl.Expr:
    """The thread id, or 0 in processes all of whose threads are one worker."""
    consumers = spans.filter(pl.col("kind") == "wait").select("host", "pid").unique()
    threads = (
        fetching.group_by("host", "pid").agg(pl.col("tid").n_unique()).filter(pl.col("tid") == 1)
    )
    pooled = threads.join(consumers, on=["host", "pid"], how="anti").select(
        pl.struct(pl.col("host").cast(pl.String), "pid")
    )
    process = pl.struct(pl.col("host").cast(pl.String), "pid")
    return (
        pl.when(process.is_in(pooled.to_series().implode()))
        .then(0)
        .otherwise(pl.col("tid").fill_null(-1))
        .alias("worker")
    )


def join_faults(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans without the page faults from the kernel that ended during a `fault` span which the
    same thread recorded itself.

    Such a span of unknown source, in which the thread was switched out and fetched nothing, waited
    for storage if the kernel recorded a fault in it that slept: for a page that another thread was
    fetching, whose span has the bytes. One byte stands for the wait; the rest was in memory.
    """
    thread = ["host", "pid", "tid"]
    own = (
        spans.with_row_index("own")
        .filter(pl.col("kind") == "fault", pl.col("batch").is_not_null())
        .select("own", *thread, "start_ns", until="end_ns")
    )
    by_kernel = (pl.col("kind") == "fault") & pl.col("batch").is_null()
    if own.is_empty() or spans.filter(by_kernel).is_empty():
        return spans
    kernel_faults = (
        spans.select("kind", "batch", *thread, began="start_ns", end_ns="end_ns")
        .with_row_index("row")
        .filter(by_kernel)
        .sort("end_ns")
    )
    found = kernel_faults.join_asof(
        # of spans that begin at the same time, one of length 0 is a part of the other
        own.sort("start_ns", "until"),
        left_on="end_ns",
        right_on="start_ns",
        by=thread,
        strategy="backward",
        check_sortedness=False,
    ).filter(pl.col("end_ns") <= pl.col("until"))
    slept = found.filter(pl.col("began") < pl.col("end_ns"))["own"].implode()
    numbered = spans.with_row_index("row")
    left = numbered.filter(~pl.col("row").is_in(found["row"].implode()))
    waited = pl.col("row").is_in(slept) & (pl.col("source") == "unknown")
    rest = left.filter(waited, pl.col("bytes") > 1).with_columns(
        pl.lit("page_cache").cast(spans.schema["source"]).alias("source"),
        start_ns="end_ns",
        bytes=pl.col("bytes") - 1,
    )
    left = left.with_columns(
        pl.when(waited)
        .then(pl.lit("storage"))
        .otherwise("source")
        .cast(spans.schema["source"])
        .alias("source"),
        pl.when(waited).then(pl.min_horizontal("bytes", 1)).otherwise("bytes").alias("bytes"),
    )
    return pl.concat([left, rest]).drop("row")
