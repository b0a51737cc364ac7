"""Named parts of causes: which files, peers, ranks, spans and stages their time went to."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.charge.gpu_windows import PAGEABLE
from ioprof.analysis.charge.training_process import for_main_thread, in_main_thread, main_threads
from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    overlaps,
    pack,
    pieces_within,
    subtract,
    total,
    union,
    union_all,
)
from ioprof.analysis.reads.flushes import FLUSHES, OF_CHECKPOINT, is_flush, of_checkpoints
from ioprof.analysis.reads.lineage import fetchers
from ioprof.analysis.reads.pipes import sent_files
from ioprof.analysis.selection import (
    COPIES,
    READS,
    WORKER,
    Activity,
    from_peer,
    intervals,
    of_kind,
    of_work,
    on_stream,
    with_worker,
)
from ioprof.format.trace import Trace

NUM_DETAILS: Final = 5
"""Parts that are named."""
_LEAST_RATIO: Final = 0.5
"""Share of a cause below which its five largest files are too few to name: their folders are
named."""
_OF_FILES: Final = ("storage", "page_cache")
WORKER_START: Final = "start of workers"
EPOCH_END: Final = "end of epoch"
SAMPLER: Final = "sampler"
WORKER_GC: Final = "garbage collection in workers"
BEFORE_FORWARD: Final = "Python before the forward pass"
AFTER_COMPUTE: Final = "Python after the computation of a step"
PLACES: Final = (BEFORE_FORWARD, AFTER_COMPUTE)
"""Parts of `host` by where in a step they are: no names of what it was."""
_WAIT_NAMES: Final = {"start": WORKER_START, "end": EPOCH_END}
"""What a wait is called that is for no batch, by the name of its span."""
_SPAN_NAMES: Final = {"sampler": SAMPLER, "gc": WORKER_GC}
LAUNCHES: Final = "waiting for kernel launches"
TO_DEVICE: Final = "host to device"
TO_HOST: Final = "device to host"
FROM_PAGEABLE: Final = ", pageable memory"
"""The end of the name of copies from or to memory that is not page-locked."""
OPTIMIZER: Final = "optimizer"
LOSS: Final = "loss"
"""What is computed between the forward and the backward pass, and is no module."""
FORWARD: Final = "forward pass"
_PASSES: Final = {
    "forward": FORWARD,
    "loss": LOSS,
    "backward": "backward pass",
    "optimizer": OPTIMIZER,
}
"""What computations on the CPU are called, by the names of their spans, see `hooks/compute.py`."""


def starting(spans: pl.DataFrame) -> pl.DataFrame:
    """The parts of one rank's waits in which the worker that was to make the batch had not begun to
    make its first one.
    """
    fetches = of_kind(with_worker(of_kind(spans, "wait", "step", "fetch")), "fetch")
    fetches = fetches.filter(~pl.col("worker").is_in(main_threads(spans).implode()))
    first = fetches.group_by("worker").agg(until=pl.col("start_ns").min())
    worker = pl.col("pid").cast(pl.Int64) * 2**32 + pl.col("thread")
    waits = (
        fetchers(spans)
        .with_columns(worker=worker)
        .join(first, on="worker")
        .filter(pl.col("start_ns") < pl.col("until"))
    )
    return waits.select(
        "start_ns", end_ns=pl.min_horizontal("end_ns", "until"), name=pl.lit(WORKER_START)
    )


def with_directions(copies: pl.DataFrame) -> pl.DataFrame:
    """Copies, named by their direction and by whether the host's memory was pageable. Those to the
    device have no name where it is not known from what memory they came, as with an emulated one.
    """
    memory = pl.col("name").cast(pl.String)
    way = (
        pl.when(pl.col("kind") == "d2h")
        .then(pl.lit(TO_HOST))
        .when(memory.is_not_null())
        .then(pl.lit(TO_DEVICE))
    )
    end = pl.when(memory == PAGEABLE).then(pl.lit(FROM_PAGEABLE)).otherwise(pl.lit(""))
    return copies.with_columns(name=way + end)


def host_places(spans: pl.DataFrame) -> dict[str, Intervals]:
    """Where in the steps of one rank its main thread was outside of waits and computations on the
    CPU, by `PLACES`.

    `spans` are its waits and computations. Empty where it computes on a device, of which the host's
    time says nothing.
    """
    mine = spans.filter(in_main_thread(spans), pl.col("kind") != "step")
    is_wait, gives_batch = (
        pl.col("kind") == "wait",
        (pl.col("kind") == "wait") & pl.col("batch").is_not_null(),
    )
    waits, batches, computed = (
        union(intervals(mine.filter(which))) for which in (is_wait, gives_batch, ~is_wait)
    )
    if (
        not len(waits)
        or not len(computed)
        or not spans.filter(on_stream, pl.col("kind") != "step").is_empty()
    ):
        return {}
    busy = union_all([waits, computed])
    gaps = pack(busy[:-1, 1], busy[1:, 0])
    is_before = np.isin(gaps[:, 0], batches[:, 1]) & np.isin(gaps[:, 1], computed[:, 0])
    is_after = np.isin(gaps[:, 0], computed[:, 1]) & np.isin(gaps[:, 1], waits[:, 0])
    return {BEFORE_FORWARD: gaps[is_before], AFTER_COMPUTE: gaps[is_after & ~is_before]}


class Details:
    """Nanoseconds of named parts, summed over ranks as they are added."""

    def __init__(self) -> None:
        self._named: dict[str, dict[str, int]] = {}
        self._files: dict[str, dict[int, int]] = {cause: {} for cause in _OF_FILES}
        self.explained_ns: dict[str, int] = {}
        """Time of causes that the names of spans cover."""

    def add(
        self, spans: pl.DataFrame, exclusive: Sequence[Activity], activities: Sequence[Activity]
    ) -> None:
        """The parts of one rank. `exclusive`: what each cause was charged with; `activities`: all
        that was going on.
        """
        spans, by_main = with_worker(spans), in_main_thread(spans)
        fetches_itself = not of_kind(spans, "fetch").filter(by_main).is_empty()
        for activity in exclusive:
            if activity.cause in _OF_FILES and len(activity.times):
                # While it waits, the main thread receives batches of its workers, unless it fetches
                # them itself.
                waited = pl.lit(value=True) if fetches_itself else ~by_main | ~from_peer
                reads = of_kind(spans, *READS).select(
                    "start_ns", "end_ns", "kind", "source", "file", "pid", "tid", WORKER
                )
                which = for_main_thread(spans) if activity.origin == "main" else waited
                self._add_files(activity, of_work(reads, activity.cause).filter(which))
        host, loader, checkpoints, collections, validation, computed = (
            union_all([activity.times for activity in exclusive if activity.cause == cause])
            for cause in ("host", "loader", "checkpoint", "gc", "validation", "compute")
        )
        passes = of_kind(spans, "compute").filter(~on_stream)
        passes = passes.with_columns(
            name=pl.col("name").cast(pl.String).replace_strict(_PASSES, default=None)
        )
        self._add_spans("compute", computed, passes)
        users = of_kind(spans, "user")
        flushes = of_checkpoints(of_kind(spans, "checkpoint", "user").filter(by_main))
        users = users.with_columns(
            name=pl.when(is_flush).then(pl.lit(FLUSHES)).otherwise(pl.col("name").cast(pl.String))
        )
        self._add_spans("host", host, users.filter(by_main))
        waits = of_kind(spans, "wait").with_columns(
            name=pl.col("name").cast(pl.String).replace_strict(_WAIT_NAMES, default=None)
        )
        named = of_kind(spans, *_SPAN_NAMES)
        named = named.with_columns(
            name=pl.col("kind").cast(pl.String).replace_strict(_SPAN_NAMES, return_dtype=pl.String)
        )
        columns = ["start_ns", "end_ns", "name"]
        if len(loader):
            # also while an epoch begins
            choosing = union(intervals(of_kind(spans, "sampler").filter(by_main)))
            waits = _outside(
                pl.concat([waits.select(columns), starting(spans).select(columns)]), choosing
            )
            waits = pl.concat([waits, *(part.select(columns) for part in (named, users))])
        self._add_spans("loader", loader, waits)
        for cause in ("decode", "transform"):
            charged = union_all(
                [activity.times for activity in exclusive if activity.cause == cause]
            )
            self._add_spans(cause, charged, of_kind(spans, cause))
        self._add_spans("checkpoint", checkpoints, of_kind(spans, "checkpoint").filter(by_main))
        self._add_spans("checkpoint", checkpoints, flushes.with_columns(name=pl.lit(OF_CHECKPOINT)))
        self._add_spans("gc", collections, of_kind(spans, "gc").filter(by_main))
        self._add_validation(validation, activities)
        copied = union_all(
            [EMPTY, *(activity.times for activity in exclusive if activity.cause == "h2d")]
        )
        self._add_spans("h2d", copied, with_directions(of_kind(spans, *COPIES)))

    def add_named(
        self, cause: str, name: str, took_ns: int, explained_ns: int | None = None
    ) -> None:
        """Time of a part of a cause that is known by other means than spans. `explained_ns`: what
        of it no span names; else all.
        """
        self._add(cause, name, took_ns)
        if explained_ns := took_ns if explained_ns is None else explained_ns:
            self.explained_ns[cause] = self.explained_ns.get(cause, 0) + explained_ns

    def add_places(self, host: Intervals, places: Mapping[str, Intervals]) -> None:
        """The parts of `host` at these places of the steps."""
        for name, times in places.items():
            self._add("host", name, total(overlaps(times, host)))

    def add_stragglers(
        self,
        waits_ns: Mapping[int, Mapping[str, int]],
        messages_ns: Mapping[int, Mapping[str, int]],
        *,
        in_pipeline: bool,
    ) -> None:
        """What `straggler_waits` found, in all and of waits for messages alone, which are the
        bubbles of a pipeline.
        """
        waiting = "bubble, " if in_pipeline else "message of "
        for rank, causes in waits_ns.items():
            for cause, waited_ns in causes.items():
                what, of_message_ns = (
                    f"rank {rank}: {cause.replace('_', ' ')}",
                    messages_ns.get(rank, {}).get(cause, 0),
                )
                self._add("straggler", f"{waiting}{what}", of_message_ns)
                self._add("straggler", what, waited_ns - of_message_ns)

    def named_ns(self, cause: str, names: Collection[str]) -> int:
        """Time of these named parts of a cause."""
        return sum(self._named.get(cause, {}).get(name, 0) for name in names)

    def of_cause(self, cause: str, charged_ns: int, trace: Trace) -> list[tuple[str, int]]:
        """The largest parts of a cause and their nanoseconds. Of files that are many and small
        their folders.
        """
        named = self._named.get(cause, {})
        if cause in _OF_FILES:
            named = self._file_names(cause, charged_ns, trace)
        return sorted(
            ((name, ns) for name, ns in named.items() if ns), key=lambda part: (-part[1], part[0])
        )[:NUM_DETAILS]

    def _add(self, cause: str, name: str, took_ns: int) -> None:
        if took_ns:
            of_cause = self._named.setdefault(cause, {})
            of_cause[name] = of_cause.get(name, 0) + took_ns

    def _add_spans(self, cause: str, charged: Intervals, spans: pl.DataFrame) -> None:
        """Spans by their names, where the cause was charged."""
        spans = spans.filter(pl.col("name").is_not_null())
        if not len(charged) or spans.is_empty():
            return
        for (name,), part in spans.group_by("name"):
            self._add(cause, str(name), total(overlaps(intervals(part), charged)))
        if explained_ns := total(overlaps(intervals(spans), charged)):
            self.explained_ns[cause] = self.explained_ns.get(cause, 0) + explained_ns

    def _add_files(self, activity: Activity, reads: pl.DataFrame) -> None:
        reads = reads.filter(pl.col("file").is_not_null())
        place, pieces = pieces_within(intervals(reads), activity.times)
        found = pl.DataFrame(
            {
                "file": reads["file"].to_numpy()[place],
                "start_ns": pieces[:, 0],
                "end_ns": pieces[:, 1],
            }
        )
        sums = self._files[activity.cause]
        so_far = pl.col("end_ns").cum_max().shift().over("file").fill_null(pl.col("start_ns"))
        added = (pl.col("end_ns") - pl.max_horizontal("start_ns", so_far)).clip(lower_bound=0)
        of_file = (
            found.sort("file", "start_ns")
            .with_columns(added_ns=added)
            .group_by("file")
            .agg(pl.col("added_ns").sum())
        )
        for file, took_ns in of_file.iter_rows():
            sums[file] = sums.get(file, 0) + took_ns

    def _add_validation(self, validation: Intervals, activities: Sequence[Activity]) -> None:
        if not len(validation):
            return
        so_far = validation
        for activity in activities:
            if activity.cause != "validation":
                inside = union(overlaps(activity.times, so_far))
                self._add("validation", activity.cause.replace("_", " "), total(inside))
                so_far = subtract(so_far, inside)
        self._add("validation", "host", total(so_far))

    def _file_names(self, cause: str, charged_ns: int, trace: Trace) -> dict[str, int]:
        sums = self._files[cause]
        paths = dict(
            trace.files.filter(pl.col("file").is_in(list(sums)), pl.col("path").is_not_null())
            .select("file", "path")
            .iter_rows()
        )
        paths |= {file: path for file, path in sent_files(trace).items() if file in sums}
        named: dict[str, int] = {}
        for file, took_ns in sums.items():
            if file in paths:
                named[paths[file]] = named.get(paths[file], 0) + took_ns
        largest = sorted(named.values(), reverse=True)[:NUM_DETAILS]
        if len(named) <= NUM_DETAILS or sum(largest) >= _LEAST_RATIO * charged_ns:
            return named
        folders: dict[str, int] = {}
        for path, took_ns in named.items():
            name = path[: path.rfind("/") + 1] or path  # a folder, also of a URL
            folders[name] = min(folders.get(name, 0) + took_ns, charged_ns)
        return folders


def _outside(spans: pl.DataFrame, times: Intervals) -> pl.DataFrame:
    """The parts of spans with a name that lie outside of these times; parts of one name are
    united.
    """
    named = spans.filter(pl.col("name").is_not_null())
    parts = [named.clear()]
    for (name,), of_name in named.group_by("name"):
        left = subtract(union(intervals(of_name)), times)
        parts.append(
            pl.DataFrame({"start_ns": left[:, 0], "end_ns": left[:, 1]}).with_columns(
                name=pl.lit(str(name))
            )
        )
    return pl.concat(parts)
