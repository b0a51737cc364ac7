"""Named parts of causes: which files, peers, ranks, spans and stages their time went to."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.charge.gpu_windows import PAGEABLE as PAGEABLE_MEMORY
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
from ioprof.analysis.reads.flushes import is_flush, of_checkpoints
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
from ioprof.format.run_record import PartCode
from ioprof.format.schema import CAUSES, COLLECTED_AT, COMPILATION, CORE_WAIT, FLUSH, OPEN_TO_WRITE
from ioprof.format.trace import Trace

NUM_DETAILS: Final = 5
"""Parts that are named."""
_LEAST_RATIO: Final = 0.5
"""Share of a cause below which its five largest files are too few to name: their folders are
named."""
_OF_FILES: Final = ("storage", "page_cache")
PLACES: Final = (PartCode.BEFORE_FORWARD, PartCode.AFTER_COMPUTE)
"""Parts of `host` by where in a step they are: no names of what it was."""
UNNAMED: Final = (*PLACES, PartCode.PROCESSES)
"""Parts of which lines of code say more: what it was, and what the other processes did."""
TO_HOST: Final = (PartCode.TO_HOST, PartCode.PAGEABLE_TO_HOST)
TO_DEVICE: Final = (PartCode.TO_DEVICE, PartCode.PAGEABLE_TO_DEVICE)
PAGEABLE: Final = (PartCode.PAGEABLE_TO_HOST, PartCode.PAGEABLE_TO_DEVICE)
"""Those from or to memory that is not page-locked."""
_WAITS: Final = {"start": PartCode.WORKER_START.value, "end": PartCode.EPOCH_END.value}
"""What a wait is that is for no batch, by the name of its span."""
_KINDS: Final = {"sampler": PartCode.SAMPLER.value, "gc": PartCode.WORKER_GC.value}
_OF_LOADER: Final = {name: PartCode(name) for name in (*_WAITS.values(), *_KINDS.values())}
_COPIES: Final = {each.value: each for each in (*TO_HOST, *TO_DEVICE)}
_PASSES: Final = {
    each.value: each
    for each in (
        PartCode.FORWARD,
        PartCode.INFERENCE,
        PartCode.LOSS,
        PartCode.BACKWARD,
        PartCode.GRADIENTS,
        PartCode.OPTIMIZER,
    )
}
"""Computations on the CPU, by the names of their spans, see `hooks/compute.py`."""
_USERS: Final = {
    FLUSH: PartCode.FLUSHES,
    COMPILATION: PartCode.COMPILATION,
    CORE_WAIT: PartCode.CORE_WAIT,
}
"""Spans of hooks that are beside the user's, by their names."""

Part = tuple[PartCode, str]
"""What a part of a cause is, and which one."""


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
        "start_ns",
        end_ns=pl.min_horizontal("end_ns", "until"),
        name=pl.lit(PartCode.WORKER_START.value),
    )


def with_directions(copies: pl.DataFrame) -> pl.DataFrame:
    """Copies, named by the codes of their direction and of whether the host's memory was pageable.
    Those to the device have no name where it is not known from what memory they came, as with an
    emulated one.
    """
    memory = pl.col("name").cast(pl.String)
    way = (
        pl.when(pl.col("kind") == "d2h")
        .then(pl.lit("to_host"))
        .when(memory.is_not_null())
        .then(pl.lit("to_device"))
    )
    start = pl.when(memory == PAGEABLE_MEMORY).then(pl.lit("pageable_")).otherwise(pl.lit(""))
    return copies.with_columns(name=start + way)


def host_places(spans: pl.DataFrame) -> dict[PartCode, Intervals]:
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
    return dict(zip(PLACES, (gaps[is_before], gaps[is_after & ~is_before]), strict=True))


class Details:
    """Nanoseconds of named parts, summed over ranks as they are added."""

    def __init__(self) -> None:
        self._named: dict[str, dict[Part, int]] = {}
        self._files: dict[str, dict[int, int]] = {cause: {} for cause in _OF_FILES}
        self._peers = set[int]()
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
        charged = {
            cause: union_all([EMPTY, *(each.times for each in exclusive if each.cause == cause)])
            for cause in CAUSES
        }
        passes = of_kind(spans, "compute").filter(~on_stream)
        passes = passes.filter(pl.col("name").cast(pl.String).is_in(list(_PASSES)))
        self._add_spans("compute", charged["compute"], passes, _PASSES)
        users = of_kind(spans, "user")
        name = pl.col("name").cast(pl.String)
        around = of_checkpoints(of_kind(spans, "checkpoint", "user").filter(by_main))
        around = around.with_columns(
            name=pl.when(name == OPEN_TO_WRITE).then(name).otherwise(pl.lit(FLUSH))
        )
        users = users.with_columns(name=pl.when(is_flush).then(pl.lit(FLUSH)).otherwise(name))
        self._add_spans("host", charged["host"], users.filter(by_main), _USERS)
        waits = of_kind(spans, "wait").with_columns(
            name=pl.col("name").cast(pl.String).replace_strict(_WAITS, default=None)
        )
        named = of_kind(spans, *_KINDS)
        named = named.with_columns(
            name=pl.col("kind").cast(pl.String).replace_strict(_KINDS, return_dtype=pl.String)
        )
        columns = ["start_ns", "end_ns", "name"]
        if len(charged["loader"]):
            # also while an epoch begins
            choosing = union(intervals(of_kind(spans, "sampler").filter(by_main)))
            waits = _outside(
                pl.concat([waits.select(columns), starting(spans).select(columns)]), choosing
            )
            waits = pl.concat([waits, *(part.select(columns) for part in (named, users))])
        self._add_spans("loader", charged["loader"], waits, _OF_LOADER | _USERS)
        self._add_spans("decode", charged["decode"], of_kind(spans, "decode"))
        self._add_spans("transform", charged["transform"], of_kind(spans, "transform"))
        self._add_spans(
            "checkpoint", charged["checkpoint"], of_kind(spans, "checkpoint").filter(by_main)
        )
        self._add_spans(
            "checkpoint",
            charged["checkpoint"],
            around,
            {FLUSH: PartCode.CHECKPOINT_FLUSH},
        )
        collected = (
            of_kind(spans, "gc").filter(by_main).with_columns(pl.col("name").cast(pl.String))
        )
        is_called = pl.col("name").str.starts_with(COLLECTED_AT)
        called = collected.filter(is_called).with_columns(
            pl.col("name").str.strip_prefix(COLLECTED_AT)
        )
        self._add_spans("gc", charged["gc"], called, default=PartCode.COLLECTED)
        self._add_spans("gc", charged["gc"], collected.filter(~is_called))
        self._add_validation(charged["validation"], activities)
        self._add_spans("h2d", charged["h2d"], with_directions(of_kind(spans, *COPIES)), _COPIES)

    def add_named(
        self, cause: str, part: Part, took_ns: int, explained_ns: int | None = None
    ) -> None:
        """Time of a part of a cause that is known by other means than spans. `explained_ns`: what
        of it no span names; else all.
        """
        self._add(cause, part, took_ns)
        if explained_ns := took_ns if explained_ns is None else explained_ns:
            self.explained_ns[cause] = self.explained_ns.get(cause, 0) + explained_ns

    def add_places(self, host: Intervals, places: Mapping[PartCode, Intervals]) -> None:
        """The parts of `host` at these places of the steps."""
        for place, times in places.items():
            self._add("host", (place, ""), total(overlaps(times, host)))

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
        waiting = PartCode.BUBBLE if in_pipeline else PartCode.MESSAGE
        for rank, causes in waits_ns.items():
            for cause, waited_ns in causes.items():
                what, of_message_ns = (
                    f"rank {rank}: {cause.replace('_', ' ')}",
                    messages_ns.get(rank, {}).get(cause, 0),
                )
                self._add("straggler", (waiting, what), of_message_ns)
                self._add("straggler", (PartCode.RANK, what), waited_ns - of_message_ns)

    def named_ns(self, cause: str, codes: Collection[PartCode]) -> int:
        """Time of these parts of a cause."""
        return sum(self._named.get(cause, {}).get((code, ""), 0) for code in codes)

    def of_cause(self, cause: str, charged_ns: int, trace: Trace) -> list[tuple[Part, int]]:
        """The largest parts of a cause and their nanoseconds. Of files that are many and small
        their folders.
        """
        named = self._named.get(cause, {})
        if cause in _OF_FILES:
            named = self._file_names(cause, charged_ns, trace)
        return sorted(
            ((part, ns) for part, ns in named.items() if ns),
            key=lambda each: (-each[1], each[0][0].label(each[0][1])),
        )[:NUM_DETAILS]

    def _add(self, cause: str, part: Part, took_ns: int) -> None:
        if took_ns:
            of_cause = self._named.setdefault(cause, {})
            of_cause[part] = of_cause.get(part, 0) + took_ns

    def _add_spans(
        self,
        cause: str,
        charged: Intervals,
        spans: pl.DataFrame,
        codes: Mapping[str, PartCode] = MappingProxyType({}),
        default: PartCode = PartCode.SPAN,
    ) -> None:
        """Spans by their names, where the cause was charged; `codes`: of those whose name is none
        of a program.
        """
        spans = spans.filter(pl.col("name").is_not_null())
        if not len(charged) or spans.is_empty():
            return
        for (name,), part in spans.group_by("name"):
            key = (codes[name], "") if name in codes else (default, str(name))
            self._add(cause, key, total(overlaps(intervals(part), charged)))
        if explained_ns := total(overlaps(intervals(spans), charged)):
            self.explained_ns[cause] = self.explained_ns.get(cause, 0) + explained_ns

    def _add_files(self, activity: Activity, reads: pl.DataFrame) -> None:
        reads = reads.filter(pl.col("file").is_not_null())
        self._peers.update(reads.filter(from_peer)["file"].unique().to_list())
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
                part = (PartCode.CAUSE, activity.cause.replace("_", " "))
                self._add("validation", part, total(inside))
                so_far = subtract(so_far, inside)
        self._add("validation", (PartCode.CAUSE, "host"), total(so_far))

    def _file_names(self, cause: str, charged_ns: int, trace: Trace) -> dict[Part, int]:
        sums = self._files[cause]
        paths = dict(
            trace.files.filter(pl.col("file").is_in(list(sums)), pl.col("path").is_not_null())
            .select("file", "path")
            .iter_rows()
        )
        sent = {file: path for file, path in sent_files(trace).items() if file in sums}
        named: dict[Part, int] = {}
        for file, took_ns in sums.items():
            if file in paths:
                code = PartCode.PEER if file in self._peers - sent.keys() else PartCode.FILE
                part = (code, str(sent.get(file, paths[file])))
                named[part] = named.get(part, 0) + took_ns
        largest = sorted(named.values(), reverse=True)[:NUM_DETAILS]
        if len(named) <= NUM_DETAILS or sum(largest) >= _LEAST_RATIO * charged_ns:
            return named
        folders: dict[Part, int] = {}
        for (code, path), took_ns in named.items():
            # a folder, also of a URL
            name = path[: path.rfind("/") + 1] or path
            part = (code if code is PartCode.PEER else PartCode.FOLDER, name)
            folders[part] = min(folders.get(part, 0) + took_ns, charged_ns)
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
