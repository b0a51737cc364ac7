"""Requests of HTTP, by the server that they were sent to: an object store, a hub, a web server.

A `request` span lasts from the call that sent it to the one that received the end of its response;
what its thread waited for is reads of source `socket`, of the same file. The rest of it is the
client's own work: decryption, copies, parsing, Python.
"""

import re
from typing import Final

import numpy as np
import polars as pl

from ioprof.format.run_record import ObjectStore, SlowRead, StoreBound
from ioprof.format.schema import ENDED_EARLY, FAILED, NEW_CONNECTION
from ioprof.format.trace import Trace

_ORIGIN: Final = re.compile(r"^[a-z]+://[^/]*")
_COLUMNS: Final = (
    "start_ns", "end_ns", "host", "rank", "pid", "tid", "step", "batch", "bytes", "file", "offset",
    "name",
)  # fmt: skip
_SENT: Final = r"^P"
"""Methods whose `bytes` were sent: PUT, POST, PATCH."""
_MOST_OF_TIME: Final = 0.5
"""Part of the requests' time from which on what takes it is what bounds them."""
_STALL: Final = 10.0
"""How much longer than the median a request takes that stalled: a client that repeats a request
after ten medians repeats no ordinary one."""
_SLOW_FIRST_BYTE_S: Final = 0.2
"""The upper end of what Amazon's guide to the performance of S3 gives for small objects: 100 to
200 ms. A server that takes longer is slow."""
_SMALL_BYTES: Final = 1e6
"""Objects that are smaller are transferred in less time than the first byte takes, at the rate of
one connection to S3 (some 80 MB/s) and 15 ms."""

Requests = pl.DataFrame
"""Columns of `_COLUMNS`, `path method origin status is_new is_whole is_upload took_s first_byte_s
is_retry`."""


def requests(trace: Trace) -> Requests:
    """All requests, in the order in which they began."""
    if trace.sums.filter(pl.col("kind") == "request").is_empty():
        found = pl.DataFrame(schema=dict.fromkeys(_COLUMNS, pl.Int64) | {"name": pl.String})
    else:
        found = trace.found(
            lambda spans: spans.filter(pl.col("kind") == "request").select(_COLUMNS)
        )
    name = pl.col("name").cast(pl.String)
    paths = trace.files.select("file", pl.col("path").cast(pl.String)).unique("file")
    found = found.with_columns(name, pl.col("file").cast(pl.Int64)).join(
        paths.with_columns(pl.col("file").cast(pl.Int64)), on="file", how="left"
    )
    found = found.with_columns(
        method=name.str.extract(r"^(\w+)"),
        origin=pl.col("path").str.extract(f"({_ORIGIN.pattern})"),
        status=name.str.extract(r"^\w+ (\d+)").cast(pl.Int64),
        is_new=name.str.ends_with(NEW_CONNECTION),
        is_whole=~(name.str.contains(ENDED_EARLY) | name.str.contains(FAILED)),
        is_upload=name.str.contains(_SENT),
        took_s=(pl.col("end_ns") - pl.col("start_ns")) / 1e9,
        first_byte_s=pl.col("offset") / 1e9,
    ).sort("start_ns", "pid", "tid")
    parts = found.partition_by("host", "pid", "tid", maintain_order=True)
    none = found.head(0).with_columns(is_retry=pl.lit(value=False))
    return pl.concat([none, *map(_tried, parts)]).sort("start_ns", "pid", "tid")


def _tried(part: Requests) -> Requests:
    """The requests of one thread, with those marked that repeat one which failed: the same object,
    in the next request that it makes, or one of as many next as it has in progress at a time.

    The same object in a later epoch is no retry. One that an event loop repeats after a pause, in
    which it makes others, is not recognised.
    """
    starts, ends = part["start_ns"].to_numpy(), np.sort(part["end_ns"].to_numpy())
    place = np.arange(len(part))
    at_a_time = int((place + 1 - np.searchsorted(ends, starts, side="right")).max())
    status = pl.col("status")
    has_failed = ~pl.col("is_whole") | status.is_in([408, 429]) | (status >= 500)
    last = pl.col("failed").shift(1) & (pl.col("place") - pl.col("place").shift(1) <= at_a_time)
    numbered = part.with_columns(
        place=pl.Series(place), failed=has_failed.fill_null(value=True)
    ).with_columns(is_retry=last.over("file", "method").fill_null(value=False))
    return numbered.select(*part.columns, "is_retry")


def object_stores(trace: Trace, found: Requests | None = None) -> tuple[ObjectStore, ...]:
    """What each server was asked for and how it answered, the one with most time first. `found` is
    `requests(trace)`.
    """
    found = requests(trace) if found is None else found
    if found.is_empty():
        return ()
    waited = _waited_s(trace)
    steps = len(trace.rows(pl.col("rank").is_not_null(), kinds=["step"]))
    stores = [
        _store(str(origin), part, waited.get(str(origin), 0.0), steps)
        for (origin,), part in found.drop_nulls("origin").group_by("origin", maintain_order=True)
    ]
    return tuple(sorted(stores, key=lambda store: (-store.took_s, store.origin)))


def _waited_s(trace: Trace) -> dict[str, float]:
    """By origin, the time in which threads waited for its responses, summed over them."""
    files = trace.files.filter(pl.col("path").cast(pl.String).str.contains(_ORIGIN.pattern))
    origins = files.select(
        "file", origin=pl.col("path").cast(pl.String).str.extract(f"({_ORIGIN.pattern})")
    )
    reads = trace.found(
        lambda spans: spans.filter(
            pl.col("kind") == "read", pl.col("file").is_in(files["file"].implode())
        ).select("file", took_ns=pl.col("end_ns") - pl.col("start_ns"))
    )
    sums = reads.join(origins, on="file").group_by("origin").agg(pl.col("took_ns").sum())
    return {str(origin): int(took_ns) / 1e9 for origin, took_ns in sums.iter_rows()}


def _store(origin: str, part: Requests, waited_s: float, steps: int) -> ObjectStore:
    is_error = ~pl.col("is_whole") | (pl.col("status") >= 400)
    downloads = part.filter(~pl.col("is_upload"))
    answered = downloads.filter(pl.col("is_whole"), pl.col("status") < 400)
    busy_s, count = _busy_s(downloads), len(downloads)
    received, transferred_s = int(downloads["bytes"].sum()), float(answered["took_s"].sum())
    first = downloads["first_byte_s"].drop_nulls().sort()
    return ObjectStore(
        origin=origin,
        requests=len(part),
        bytes=received,
        bytes_sent=int(part.filter("is_upload")["bytes"].sum()),
        connections=int(part["is_new"].sum()),
        retries=int(part["is_retry"].sum()),
        errors=len(part.filter(is_error)),
        took_s=float(downloads["took_s"].sum()),
        busy_s=busy_s,
        waited_s=min(waited_s, busy_s),
        first_byte_p50_s=_quantile(first, 0.50),
        first_byte_p95_s=_quantile(first, 0.95),
        bytes_per_s=received / transferred_s if received and transferred_s else None,
        bound=_bound(downloads, busy_s, waited_s, received / count if count else 0.0),
        per_batch=_per_batch(downloads, steps),
    )


def _per_batch(part: Requests, steps: int) -> float | None:
    """How many requests make a batch, mean; of threads without batches, those for each step."""
    of_batch = part.filter(pl.col("batch").is_not_null())
    batches = of_batch.n_unique(["host", "rank", "batch"])
    if batches:
        return len(of_batch) / batches
    return len(part) / steps if steps else None


def _quantile(ordered: pl.Series, ratio: float) -> float | None:
    return float(ordered[round(ratio * (len(ordered) - 1))]) if len(ordered) else None


def _busy_s(part: Requests) -> float:
    """Time in which threads had requests in progress: an event loop has several at a time."""
    thread, start, end = ["host", "pid", "tid"], pl.col("start_ns"), pl.col("end_ns")
    until = end.cum_max().shift(1).over(thread, order_by="start_ns").fill_null(0)
    alone = pl.max_horizontal(end - pl.max_horizontal(start, until), 0)
    return int(part.select(alone.sum()).item() or 0) / 1e9


def _bound(part: Requests, busy_s: float, waited_s: float, mean_bytes: float) -> StoreBound | None:
    """What takes most of the time of the requests of one server."""
    took_s = float(part["took_s"].sum())
    if not took_s:
        return None
    median_s = _quantile(part["took_s"].sort(), 0.5) or 0.0
    stalled = part.filter(pl.col("took_s") > _STALL * median_s)
    if float(stalled["took_s"].sum()) >= _MOST_OF_TIME * took_s:
        return StoreBound.STALLS
    if waited_s < (1 - _MOST_OF_TIME) * busy_s:
        return StoreBound.CLIENT
    first_s = float(part["first_byte_s"].fill_null(0.0).sum())
    if first_s < _MOST_OF_TIME * took_s:
        return StoreBound.RATE
    typical_s = _quantile(part["first_byte_s"].drop_nulls().sort(), 0.5) or 0.0
    if typical_s > _SLOW_FIRST_BYTE_S or mean_bytes >= _SMALL_BYTES:
        return StoreBound.LATENCY
    return StoreBound.SMALL


def slowest_of(found: Requests, most: int) -> Requests:
    """The requests that took longest, of those that made batches, if any did."""
    of_batch = found.filter(pl.col("batch").is_not_null())
    slow = of_batch if len(of_batch) else found
    return slow.sort("took_s", "start_ns", descending=[True, False]).head(most)


def slow_reads(trace: Trace, slow: Requests) -> tuple[SlowRead, ...]:
    """A few requests as entries of the table of slowest reads."""
    return tuple(
        SlowRead(
            path=row["path"],
            seconds=row["took_s"],
            bytes=row["bytes"],
            source="socket",
            rank=row["rank"],
            step=row["step"],
            batch=row["batch"],
            offset=offset,
            start_ns=row["start_ns"],
        )
        for row, offset in zip(slow.iter_rows(named=True), _offsets(trace, slow), strict=True)
    )


def _offsets(trace: Trace, slow: Requests) -> list[int | None]:
    """Where in its object each of a few requests began to read, by its reads."""
    files = slow["file"].implode()
    thread = ("host", "pid", "tid")
    reads = trace.found(
        lambda spans: spans.filter(
            pl.col("kind") == "read", pl.col("file").is_in(files), pl.col("offset") >= 0
        ).select(*thread, "file", "start_ns", "offset")
    )
    found = (
        reads.filter(
            *(pl.col(name).eq_missing(pl.lit(row[name])) for name in thread),
            pl.col("file") == row["file"],
            pl.col("start_ns").is_between(row["start_ns"], row["end_ns"]),
        )["offset"]
        for row in slow.iter_rows(named=True)
    )
    return [int(offsets.to_numpy().min()) if len(offsets) else None for offsets in found]
