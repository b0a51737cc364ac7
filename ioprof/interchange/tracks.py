"""The spans of a run as viewers draw them: processes, tracks on which spans nest, and arrows
between spans.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.format.run_record import ProcessRecord
from ioprof.format.schema import KINDS
from ioprof.format.trace import Trace
from ioprof.interchange.stacks import IS_HOLDER, PYTHON, slices

_Array = npt.NDArray[Any]

CATEGORIES: Final = (*KINDS, PYTHON)
"""Of slices: the kinds of spans, and sampled functions."""

_STREAMS: Final = 1 << 16
_STREAM_NAMES: Final = {0: "compute", 1: "copy", 2: "exchange"}
"""Streams of a device that no GPU's trace describes."""
_NAME_CHARS: Final = 200
_PATH_CHARS: Final = 4400
_OF_CHAINS: Final = 1 << 48
"""Arrows from here on are those of `_chains`."""
_UNUSED_IDS: Final = 1 << 22
"""Above the ids that Linux gives to processes (PID_MAX_LIMIT)."""


@dataclass(frozen=True)
class Process:
    """A process of the run."""

    number: int
    """Its pid, or another number where processes of two hosts have the same one."""
    name: str
    order: int
    """Place among the processes: ranks and their workers first."""


@dataclass(frozen=True)
class Track:
    """Spans of one thread or stream, of which any two are apart or one is within the other."""

    number: int
    """Unique in the run."""
    name: str
    process: Process
    spans: pl.DataFrame
    """Ordered by start, and of equal starts the longer one first. Columns of `Trace.spans`, whose
    kinds are among `CATEGORIES`; `label`, what a viewer writes on it; `begins` and `ends`, the
    numbers of the arrows that begin and end at its end (null: none)."""


class Tracks:
    """The processes and tracks of a run, one process in memory at a time."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._known = {(record.host, record.pid): record for record in trace.run.processes}
        self._next_track = _UNUSED_IDS
        self._used: set[int] = set()
        self.zero_ns = min(0, *_starts(trace))
        """The earliest time, or 0: viewers have no times before 0."""
        self.num_flows = 0
        """Arrows from a read to its batch so far."""
        self._chains = _chains(trace)
        self.processes = dict(self._numbered())
        """By host and pid."""

    def _numbered(self) -> Iterator[tuple[tuple[str | None, int | None], Process]]:
        keys = ["host", "pid"]
        found = self._trace.sums.select(*keys, "rank").group_by(keys).agg(pl.col("rank").min())
        hosts = found["host"].cast(pl.String)
        rows = list(
            zip(hosts.to_list(), found["pid"].to_list(), found["rank"].to_list(), strict=True)
        )
        several = len(set(hosts)) > 1
        order = sorted(rows, key=lambda row: self._order(*row))
        for place, (host, pid, rank) in enumerate(order):
            number = (
                pid
                if pid is not None and pid > 0 and pid not in self._used
                else _UNUSED_IDS + place
            )
            self._used.add(number)
            yield (host, pid), Process(number, self._name(host, pid, rank, several), place)

    def _order(self, host: str | None, pid: int | None, rank: int | None) -> tuple[Any, ...]:
        record = self._known.get((host, pid), ProcessRecord())
        roles = {"rank": 0, "worker": 1}
        return (
            rank is None,
            rank or 0,
            roles.get(record.role or "", 2),
            record.worker or 0,
            host or "",
            pid or 0,
        )

    def _name(self, host: str | None, pid: int | None, rank: int | None, several: bool) -> str:
        record = self._known.get((host, pid), ProcessRecord())
        parts = [] if rank is None else [f"rank {rank}"]
        if record.role == "worker":
            parts.append("worker" if record.worker is None else f"worker {record.worker}")
        elif record.role == "other" and rank is None:
            parts.append("process")
        name = " ".join(parts) or "process"
        return harmless(
            f"{name}"
            f" ({pid if pid is not None else 'no pid'}{f' on {host}' if several and host else ''})"
        )

    def __iter__(self) -> Iterator[Track]:
        for (host, pid), process in self.processes.items():
            is_its = pl.col("host").cast(pl.String).eq_missing(pl.lit(host)) & pl.col(
                "pid"
            ).eq_missing(pl.lit(pid))
            spans = self._trace.found(lambda part, its=is_its: part.filter(its))  # type: ignore[misc]
            spans = self._with_flows(self._labelled(spans))
            yield from self._of_process(process, spans)
            yield from self._of_stacks(process, self._trace.stacks.filter(is_its), spans)

    def _of_stacks(
        self, process: Process, stacks: pl.DataFrame, spans: pl.DataFrame
    ) -> Iterator[Track]:
        """A track of each thread whose stack was sampled, with a slice for each function."""
        schema = {**spans.schema, "kind": pl.Enum(CATEGORIES)}
        for (tid, is_holder), samples in stacks.sort("time_ns").group_by(
            "tid", IS_HOLDER, maintain_order=True
        ):
            moved = [(pl.col(name) - self.zero_ns) for name in ("start_ns", "end_ns")]
            found = slices(samples).with_columns(*moved, kind=pl.lit(PYTHON))
            found = found.with_columns(
                pl.col("label").map_elements(harmless, return_dtype=pl.String),
                *(pl.lit(None).alias(name) for name in schema if name not in found.columns),
            )
            name = f"{_track_name(None, tid)}: Python" + (" with the lock" if is_holder else "")
            columns = [pl.col(name).cast(kind) for name, kind in schema.items()]
            yield Track(self._number(None), name, process, found.select(columns))

    def _labelled(self, spans: pl.DataFrame) -> pl.DataFrame:
        names = spans["name"].cast(pl.String)
        safe = {name: harmless(name) for name in names.drop_nulls().unique()}
        label = names.replace_strict(safe, default=None, return_dtype=pl.String).fill_null(
            spans["kind"].cast(pl.String)
        )
        moved = [(pl.col(name) - self.zero_ns) for name in ("start_ns", "end_ns")]
        return spans.with_columns(*moved, label=label)

    def _with_flows(self, spans: pl.DataFrame) -> pl.DataFrame:
        """Add the arrows: from the reads of a batch that this process made to its fetch, on to the
        wait, and to the step.
        """
        places = spans.select("kind", "rank", "batch", "end_ns").with_row_index("place")
        made = (
            places.filter(kind="fetch").drop_nulls().unique(["rank", "batch"], maintain_order=True)
        )
        reads = (
            places.filter(kind="read")
            .drop_nulls("batch")
            .join(made, on=["rank", "batch"], suffix="_of_fetch", maintain_order="left")
        )
        reads = reads.filter(pl.col("end_ns") <= pl.col("end_ns_of_fetch")).with_columns(
            arrow=pl.int_range(1, pl.len() + 1) + self.num_flows
        )
        self.num_flows += len(reads)
        ends = [reads.select(place="place_of_fetch", arrow="arrow")]
        begins = [reads.select("place", "arrow")]
        for kind, key, incoming, outgoing in (
            ("fetch", "batch", None, "to_wait"),
            ("wait", "batch", "to_wait", "to_step"),
            ("step", "step", "to_step", None),
        ):
            firsts = (
                spans.select("kind", "rank", key)
                .with_row_index("place")
                .filter(kind=kind)
                .unique(["rank", key], maintain_order=True)
            )
            found = firsts.join(self._chains, on=["rank", key], maintain_order="left")
            ends += [found.select("place", arrow=incoming)] if incoming else []
            begins += [found.select("place", arrow=outgoing)] if outgoing else []
        return (
            spans.with_row_index("place")
            .join(_by_place(begins, "begins"), on="place", how="left", maintain_order="left")
            .join(_by_place(ends, "ends"), on="place", how="left", maintain_order="left")
            .drop("place")
        )

    def _of_process(self, process: Process, spans: pl.DataFrame) -> Iterator[Track]:
        keys = ["stream", "tid"]
        placed = spans.with_columns(
            stream=pl.when(pl.col("stream") >= 0).then(pl.col("stream"))
        ).with_columns(tid=pl.when(pl.col("stream").is_null()).then(pl.col("tid")))
        for (stream, tid), group in placed.group_by(keys, maintain_order=True):
            taken = pl.col("end_ns") - pl.col("start_ns")
            group = group.sort(pl.col("start_ns"), -taken, maintain_order=True)
            lanes = _lanes(group["start_ns"].to_list(), group["end_ns"].to_list())
            for lane in range(int(lanes.max(initial=0)) + 1):
                own = group.filter(pl.Series(lanes == lane)) if lanes.any() else group
                name = _track_name(stream, tid) + (f" ({lane + 1})" if lane else "")
                yield Track(self._number(tid if not lane else None), name, process, own)

    def _number(self, tid: Any) -> int:
        if isinstance(tid, int) and tid > 0 and -tid not in self._used:
            self._used.add(-tid)
            return tid
        self._next_track += 1
        return self._next_track

    def paths(self) -> dict[int, str]:
        """Path by number of the file."""
        files = self._trace.files.select("file", "path").drop_nulls()
        return {number: harmless(path, _PATH_CHARS) for number, path in files.rows()}


def harmless(text: str, most: int = _NAME_CHARS) -> str:
    """A name without characters that could control a terminal or break a line, cut if it is very
    long.
    """
    if not text.isprintable():
        text = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
        )
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _starts(trace: Trace) -> list[int]:
    extents = [
        part["start_ns"][0]
        for part in trace.in_parts(lambda part: part.select(pl.col("start_ns").min()))
    ]
    return [start for start in extents if start is not None] or [0]


def _track_name(stream: Any, tid: Any) -> str:
    if stream is not None:
        device, own = divmod(int(stream), _STREAMS)
        return (
            f"device stream: {_STREAM_NAMES[own]}"
            if not device and own in _STREAM_NAMES
            else f"GPU {device} stream {own}"
        )
    return "spans of no thread" if tid is None else f"thread {tid}"


def _lanes(starts: list[int], ends: list[int]) -> _Array:
    """For each span, ordered as in `Track.spans`, the first of several lanes in which it nests."""
    stacks: list[list[int]] = [[]]
    """Of each lane the ends of the spans that are open."""
    found = np.zeros(len(starts), np.int32)
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for stack in stacks:
            while stack and stack[-1] <= start:
                stack.pop()
        lane = next(
            (lane for lane, stack in enumerate(stacks) if not stack or stack[-1] >= end),
            len(stacks),
        )
        if lane == len(stacks):
            stacks.append([])
        stacks[lane].append(end)
        found[place] = lane
    return found


def _by_place(arrows: list[pl.DataFrame], name: str) -> pl.DataFrame:
    """A list of arrows for each span that has some."""
    return pl.concat(arrows).group_by("place", maintain_order=True).agg(pl.col("arrow").alias(name))


def _chains(trace: Trace) -> pl.DataFrame:
    """The batches that were made and waited for, by `rank` and `batch`, with the `step` that used
    each, and the numbers of two arrows: from its fetch to its wait, and on to the step.
    """
    spans = trace.structure.select("kind", "rank", "batch", "step").drop_nulls("rank")
    waits = (
        spans.filter(pl.col("kind") == "wait")
        .drop_nulls()
        .unique(["rank", "batch"], maintain_order=True)
    )
    fetches = (
        spans.filter(pl.col("kind") == "fetch").drop_nulls("batch").select("rank", "batch").unique()
    )
    made = waits.drop("kind").join(fetches, on=["rank", "batch"], how="semi", maintain_order="left")
    number = _OF_CHAINS + 2 * pl.int_range(pl.len(), dtype=pl.Int64)
    return made.with_columns(to_wait=number, to_step=number + 1)
