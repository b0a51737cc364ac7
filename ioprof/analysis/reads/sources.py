"""What was read, where the bytes came from, and how long one read took."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof.analysis.reads.requests import object_stores, requests, slow_reads, slowest_of
from ioprof.analysis.selection import first_and_last, look
from ioprof.format.run_record import ReceivedFiles, SlowRead, Storage
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, empty_table

_Id = tuple[str | None, int | None]
"""Host and process."""

_NUM_SLOWEST: Final = 10
MOST_UNSURE: Final = 0.05
"""Of the bytes that made batches, those of which it is not known whether they did, up to which the
demand is known."""
CODE: Final = re.compile(
    r"\.(py|pyc|so(\.[\d.]+)?)$|^/(proc|sys|dev)/|/ioprof-[^/]+/batches-|/torchinductor_[^/]+/|/\.triton/"
)
"""Files that a program, or its recording, reads for itself."""
INSTALLED: Final = re.compile(
    r"/lib(64)?/python3[^/]*/|/(site|dist)-packages/|^/(etc|s?bin|lib(32|64)?)/"
    r"|^/usr/(local/)?(s?bin|lib(32|64|exec)?|include|share|src|cuda[^/]*)/"
)
"""Files of the Python installation and of the system; those that a package has for its examples may
be data."""
METADATA: Final = re.compile(r"/[^/]+\.(dist|egg)-info/")
"""What installed packages are, as `importlib.metadata` reads it."""
_PROGRAMS: Final = f"{CODE.pattern}|{METADATA.pattern}"
"""Files of which a slow read is an import, and tells nothing of the data."""
_MOST_HELD: Final = 4_000_000
"""Times of accesses that are kept, 8 bytes each, so that they are read once."""
_SLOW_COLUMNS: Final = ("path", "bytes", "source", "rank", "step", "batch", "offset", "start_ns")
_TIES: Final = ("start_ns", "rank", "pid", "tid", "file", "bytes", "source", "batch", "step")
"""By which reads that took equally long are ordered."""
_OF_SLOWEST: Final = ("end_ns", "offset", *_TIES)

is_access: Final = pl.col("kind").is_in(["read", "fault"]) & (pl.col("bytes") != 0).fill_null(True)
"""Spans that moved bytes. A read that returned none found the end of a file, or nothing in the page
cache."""

_took_ns: Final = pl.col("end_ns") - pl.col("start_ns")
"""0: not timed, see `Storage.untimed`."""

is_received: Final = pl.col("source").is_in(["socket", "pipe"]).fill_null(False)
"""Spans whose bytes another process sent. What a program such as `cat` read from storage for them
is recorded there."""


class ReadTimes:
    """How long the reads that `storage` counts took, part by part."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._is_counted = trace, counted_reads(trace)
        self.columns = {name: pl.col(name) for name in _OF_SLOWEST} | {
            "is_counted": self._is_counted
        }
        self._counts = np.zeros(_NUM_CLASSES, np.int64)
        """Reads by `_class_of`."""
        self._held: list[NDArray[np.int64]] = []
        self._num_held = 0
        is_program = pl.col("path").cast(pl.String).str.contains(_PROGRAMS)
        self._programs = trace.files.filter(is_program)["file"].implode()
        self._slowest = empty_table(SPAN_COLUMNS).select(*_OF_SLOWEST, took_ns=_took_ns)

    def add(self, part: pl.DataFrame) -> None:
        """Look at the next part of the spans."""
        is_counted = part["is_counted"].to_numpy()
        data = part.filter("is_counted", ~pl.col("file").is_in(self._programs).fill_null(False))
        took = (part["end_ns"].to_numpy() - part["start_ns"].to_numpy())[is_counted]
        took = took[took > 0]
        self._counts += np.bincount(_class_of(took), minlength=len(self._counts))
        if self._num_held <= _MOST_HELD:
            self._held.append(took)
            self._num_held += len(took)
        of_data = data.select(took_ns=_took_ns).filter(pl.col("took_ns") > 0)["took_ns"].to_numpy()
        if not len(of_data):
            return
        least_ns = (
            np.partition(of_data, -_NUM_SLOWEST)[-_NUM_SLOWEST]
            if len(of_data) > _NUM_SLOWEST
            else of_data.min()
        )
        if len(self._slowest) == _NUM_SLOWEST:
            least_ns = max(least_ns, self._slowest["took_ns"][-1])
        slow = data.filter(_took_ns >= max(least_ns, 1)).select(*_OF_SLOWEST, took_ns=_took_ns)
        if len(slow):
            descending = [True, *(False for _ in _TIES)]
            found = pl.concat([self._slowest, slow], how="vertical_relaxed")
            found = found.sort("took_ns", *_TIES, descending=descending, nulls_last=True)
            self._slowest = found.head(_NUM_SLOWEST)

    @property
    def num_timed(self) -> int:
        """The reads whose time is known."""
        return int(self._counts.sum())

    def at(self, places: Sequence[int]) -> list[int]:
        """How many nanoseconds the read at each of these places took, in the order of that; 0 is
        the fastest that was timed.

        Times are counted in classes of 0.4 % first; then those are sorted that are in the class of
        a place. Also tried: to group by the time itself, which took 4 s of CPU time for 2.3 million
        accesses instead of 1 s.
        """
        before = np.cumsum(self._counts) - self._counts
        classes = np.searchsorted(before + self._counts, places, side="right")
        wanted = np.zeros(len(self._counts), bool)
        wanted[classes] = True
        held = self._held
        if self._num_held > _MOST_HELD:
            parts = self._trace.in_parts(
                lambda spans: spans.filter(self._is_counted, _took_ns > 0).select(took_ns=_took_ns)
            )
            held = [
                took[wanted[_class_of(took)]]
                for took in (part["took_ns"].to_numpy() for part in parts)
            ]
        within = [took[wanted[_class_of(took)]] for took in held]
        ordered = np.sort(np.concatenate(within))
        skipped = np.cumsum(np.where(wanted, 0, self._counts))[classes]
        return [int(took_ns) for took_ns in ordered[np.array(places) - skipped]]

    def slowest(self) -> tuple[SlowRead, ...]:
        """The slowest ones, the slowest first."""
        slow = _with_step(self._trace, _with_batch(self._trace, self._slowest.with_row_index()))
        paths = self._trace.files.select("file", "path").unique("file")
        slow = slow.join(paths, on="file", how="left", maintain_order="left")
        return tuple(
            # not divided by polars: its quotient differs in the last digit, depending on the order
            # of rows
            SlowRead(seconds=row["took_ns"] / 1e9, **{key: row[key] for key in _SLOW_COLUMNS})
            for row in slow.iter_rows(named=True)
        )


def storage(
    trace: Trace, times: ReadTimes | None = None, unsure: "ThreadReads | None" = None
) -> Storage:
    """Accesses, bytes by source, percentiles of one read's time, and the slowest reads, over all
    processes of the run.

    `times`, if given, has looked at all spans; `unsure` is `thread_reads(trace)`, and is made here
    if it is not given.

    Only those that made batches, if any did: reads of Python's libraries by a hundred processes say
    nothing of the dataset. Programs that a worker reads through a pipe make batches, too; what
    comes through the pipe is counted apart.
    """
    moved = trace.sums.filter(pl.col("kind").is_in(["read", "fault"]), pl.col("moved"))
    received, every = _bytes_by_source(moved.filter(is_received)), moved.filter(~is_received)
    from_socket, from_pipe = received.get("socket", 0), received.get("pipe", 0)
    sends = _sends_to_a_batch(trace)
    of_batch = every.filter(pl.col("in_batch") | sends)
    others = every.filter(~(pl.col("in_batch") | sends)) if len(of_batch) else every.clear()
    unsure = (unsure or thread_reads(trace)) if len(of_batch) else ThreadReads()
    counted = of_batch if len(of_batch) else every
    number, made = int(counted["spans"].sum()), requests(trace)
    stores = object_stores(trace, made)
    slow = slow_reads(trace, _with_step(trace, slowest_of(made, _NUM_SLOWEST))) if stores else ()
    if not number:
        return Storage(
            0,
            0,
            0,
            0,
            0,
            None,
            None,
            None,
            slow,
            bytes_socket=from_socket,
            bytes_pipe=from_pipe,
            received=_received_files(trace),
            stores=stores,
        )
    by_source = _bytes_by_source(counted)
    if times is None:
        look(trace, times := ReadTimes(trace))
    places = [round(ratio * (times.num_timed - 1)) for ratio in (0.50, 0.95, 0.99)]
    p50, p95, p99 = (
        (took_ns / 1e9 for took_ns in times.at(places)) if times.num_timed else (None, None, None)
    )
    slowest = sorted((*times.slowest(), *slow), key=lambda read: -read.seconds)
    return Storage(
        accesses=number,
        bytes=sum(by_source.values()),
        bytes_from_storage=by_source.get("storage", 0),
        bytes_from_cache=by_source.get("page_cache", 0),
        bytes_unknown=by_source.get("unknown", 0),
        read_p50_s=p50,
        read_p95_s=p95,
        read_p99_s=p99,
        slowest=tuple(slowest[:_NUM_SLOWEST]),
        other_accesses=int(others["spans"].sum()) - unsure.accesses,
        other_bytes=int(others["bytes"].sum()) - unsure.bytes,
        thread_accesses=unsure.accesses,
        thread_bytes=unsure.bytes,
        bytes_socket=from_socket,
        bytes_pipe=from_pipe,
        received=_received_files(trace),
        untimed=number - times.num_timed,
        stores=stores,
    )


@dataclass(frozen=True)
class ThreadReads:
    """Reads of which it is not known whether they made batches."""

    accesses: int = 0
    bytes: int = 0

    def may_change(self, counted: int) -> bool:
        """Whether they are many beside so many bytes that made batches."""
        return self.bytes > MOST_UNSURE * counted


def thread_reads(trace: Trace) -> ThreadReads:
    """What threads of training processes read during the steps, other than the main thread and
    those that make or take batches, where no batch is known for it. It may be data that the loop
    takes from them without a loader, or be for one of several batches that are made at once; or for
    something else. Code of programs is left out.
    """
    thread = ["host", "pid", "tid"]
    steps = trace.rows(kinds=["step"])
    known = trace.rows(kinds=["step", "wait", "fetch"]).select(thread).unique()
    reads = trace.sums.filter(
        pl.col("kind").is_in(["read", "fault"]), pl.col("moved"), ~pl.col("in_batch"), ~is_received
    )
    theirs = (
        reads.join(steps.select("host", "pid").unique(), on=["host", "pid"], how="semi")
        .select(thread)
        .unique()
    )
    theirs = theirs.join(known, on=thread, how="anti").drop_nulls()
    if theirs.is_empty():
        return ThreadReads()
    first_ns, last_ns = first_and_last(steps)
    code = trace.files.filter(pl.col("path").str.contains(CODE.pattern).fill_null(value=False))[
        "file"
    ].implode()
    is_near = pl.col("start_ns").is_between(first_ns, last_ns) & ~pl.col("file").is_in(
        code
    ).fill_null(value=False)
    is_unsure = (
        is_access
        & ~is_received
        & pl.col("batch").is_null()
        & is_near
        & pl.col("tid").is_in(theirs["tid"].implode())
    )
    found = trace.found(lambda spans: spans.filter(is_unsure).select(*thread, "bytes"))
    found = found.join(theirs, on=thread, how="semi")
    return ThreadReads(len(found), int(found["bytes"].sum()))


def counted_reads(trace: Trace) -> pl.Expr:
    """The reads that `storage` counts: those that made batches, if any did."""
    moved = trace.sums.filter(pl.col("kind").is_in(["read", "fault"]), pl.col("moved"))
    sends = _sends_to_a_batch(trace)
    made_batches = not moved.filter(~is_received, pl.col("in_batch") | sends).is_empty()
    of_batch = pl.col("batch").is_not_null() | sends if made_batches else pl.lit(value=True)
    return is_access & ~is_received & of_batch


def _class_of(took_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of a class that holds times of about the same length: the exponent and 8 bits of
    the significand of a float64.
    """
    bits: NDArray[np.int64] = np.maximum(took_ns, 1).astype(np.float64).view(np.int64)
    return (bits >> 44) - (1023 << 8)


_NUM_CLASSES: Final = int(_class_of(np.array([np.iinfo(np.int64).max]))[0]) + 1


def _sends_to_a_batch(trace: Trace) -> pl.Expr:
    """Spans of programs such as `cat` that a process which received a batch through a pipe started,
    directly or by a shell.
    """
    is_read = pl.col("kind").is_in(["read", "fault"]) & pl.col("moved")
    through_pipe = trace.sums.filter(is_read, pl.col("source") == "pipe", pl.col("in_batch"))
    receivers = {*through_pipe.select(pl.col("host").cast(pl.String), "pid").unique().iter_rows()}
    parents = {
        (process.host, process.pid): (process.host, process.parent_pid)
        for process in trace.run.processes
    }
    senders = [
        {"host": process.host, "pid": process.pid}
        for process in trace.run.processes
        if process.role == "other"
        and receivers
        and not receivers.isdisjoint(_ancestors((process.host, process.pid), parents))
    ]
    if not senders:
        return pl.lit(value=False)
    process = pl.struct(pl.col("host").cast(pl.String), pl.col("pid").cast(pl.Int64))
    return process.is_in(
        pl.Series(senders, dtype=pl.Struct({"host": pl.String, "pid": pl.Int64})).implode()
    )


def _ancestors(process: _Id, parents: Mapping[_Id, _Id]) -> set[_Id]:
    found: set[_Id] = set()
    while (parent := parents.get(process)) is not None and parent not in found:
        found.add(parent)
        process = parent
    return found


def _received_files(trace: Trace) -> tuple[ReceivedFiles, ...]:
    """Downloads: an `open` span of source `socket` names the peer from which its process received
    the file's bytes.
    """
    if trace.sums.filter(pl.col("kind") == "open", pl.col("source") == "socket").is_empty():
        return ()
    spans = trace.scan()
    written = trace.rows(
        pl.col("source") == "socket", pl.col("file").is_not_null(), kinds=["open"]
    ).lazy()
    read = (
        spans.filter(is_access & ~is_received)
        .select("file", read_ns="end_ns")
        .group_by("file")
        .agg(pl.col("read_ns").max())
    )
    found = (
        written.join(read, on="file").filter(pl.col("read_ns") > pl.col("start_ns")).unique("file")
    )
    by_peer = found.group_by("name", "host", "pid").agg(pl.len(), pl.col("bytes").sum())
    rows = (
        by_peer.select("name", "host", "pid", "len", "bytes")
        .sort(-pl.col("bytes"), "name", "pid")
        .collect(engine="streaming" if trace.is_stored else "auto")
        .iter_rows()
    )
    return tuple(ReceivedFiles(*row) for row in rows)


def _bytes_by_source(sums: pl.DataFrame) -> dict[str, int]:
    sums = sums.group_by(pl.col("source").fill_null("unknown")).agg(pl.col("bytes").sum())
    return {source: int(count) for source, count in sums.iter_rows()}


def _with_batch(trace: Trace, reads: pl.DataFrame) -> pl.DataFrame:
    """Reads that have no batch of their own get that which their thread, or the worker that they
    are a thread of, was fetching.
    """
    spans = trace.rows(
        pl.col("rank").is_in(reads["rank"].unique().implode()), kinds=["wait", "fetch"]
    )
    consumers = spans.filter(pl.col("kind") == "wait").select("pid").unique()["pid"]
    fetches = spans.filter(pl.col("kind") == "fetch").select(
        "rank", "pid", "tid", "batch", "start_ns", "end_ns"
    )
    found = reads.join(fetches, on=["rank", "pid"], suffix="_fetch").filter(
        pl.col("start_ns_fetch") <= pl.col("start_ns"),
        pl.col("end_ns") <= pl.col("end_ns_fetch"),
        (pl.col("tid") == pl.col("tid_fetch")) | ~pl.col("pid").is_in(consumers.implode()),
    )
    reads = reads.join(
        found.group_by("index").agg(pl.col("batch_fetch").min()),
        on="index",
        how="left",
        maintain_order="left",
    )
    return reads.with_columns(batch=pl.coalesce("batch", "batch_fetch"))


def _with_step(trace: Trace, reads: pl.DataFrame) -> pl.DataFrame:
    """Reads that have no step of their own get that which waited for their batch."""
    waits = trace.rows(pl.col("batch").is_in(reads["batch"].unique().implode()), kinds=["wait"])
    steps = waits.group_by("rank", "batch").agg(step_wait=pl.col("step").min())
    reads = reads.join(steps, on=["rank", "batch"], how="left", maintain_order="left")
    return reads.with_columns(step=pl.coalesce("step", "step_wait"))
