"""Reads the collective files (`*.nccl`) of a spool folder, which the NCCL profiler plugin writes:
the operations of a process.

`native/COLLECTIVES.md` specifies the bytes. A file may be truncated or damaged; what is valid is
kept, the rest is counted.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.files import open_regular_file
from ioprof.format.collective_format import (
    COLLECTIVE_VERSION,
    COPY_ENGINE_FLAG,
    FUNCTIONS,
    GRAPH_FLAG,
    HAS_GPU_TIME,
    MAGIC,
    NO_PEER,
    NUM_COMMUNICATORS,
    RECORD_KINDS,
    SUFFIX,
)
from ioprof.format.layout import (
    COLLECTIVE_HEADER_DTYPE,
    COLLECTIVE_RECORD_DTYPE,
    COMMUNICATOR_DTYPE,
)
from ioprof.ingest.clocks.gpu_timer import host_times
from ioprof.ingest.untrusted_values import LATEST_NS, text

_HALF: Final = 1 << 55
_MOST_DELAY_NS: Final = 50_000_000
"""Within which the host knows of half of all kernels: more shows that a timer has another unit, or
was set."""
_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Communicator:
    """A communicator of NCCL, as one process knows it."""

    hash: int
    rank: int
    """-1: not known."""
    ranks: int
    """0: not known."""
    closed_ns: int
    """0: it was not."""


@dataclass
class CollectiveFile:
    """One file; times are CLOCK_MONOTONIC of its host."""

    path: Path
    host: str = ""
    pid: int = 0
    api: int = 0
    lost: int = 0
    untracked: int = 0
    communicators: list[Communicator] = field(default_factory=list)
    operations: pl.DataFrame = field(default_factory=pl.DataFrame)
    """A row per operation, ordered by number:
    `enqueue_ns start_ns end_ns bytes function communicator peer flags
    times`. `end_ns` is null if it had not ended, both are if it had not begun. Empty: no file that
    this version reads."""
    last_ns: int = 0
    """Time of the last record."""
    damage: Counter[str] = field(default_factory=Counter)


def read_collective_files(folder: Path) -> list[CollectiveFile]:
    """All files of a spool folder. Never raises for invalid contents."""
    return [_read(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]


def _read(path: Path) -> CollectiveFile:
    found = CollectiveFile(path)
    try:
        with open_regular_file(path) as file:
            data = np.memmap(file, np.uint8, "r")
    except (OSError, ValueError) as error:  # ValueError: it is empty
        found.damage[f"cannot be read: {getattr(error, 'strerror', None) or error}"] += 1
        return found
    if len(data) < COLLECTIVE_HEADER_DTYPE.itemsize or bytes(data[: len(MAGIC)]) != MAGIC:
        found.damage["not a collective file"] += 1
        return found
    header = np.frombuffer(data, COLLECTIVE_HEADER_DTYPE, 1)[0]
    sizes = [
        int(header[name])
        for name in ("version", "record_bytes", "communicator_bytes", "num_communicators")
    ]
    own = [
        COLLECTIVE_VERSION,
        COLLECTIVE_RECORD_DTYPE.itemsize,
        COMMUNICATOR_DTYPE.itemsize,
        NUM_COMMUNICATORS,
    ]
    table_end = COLLECTIVE_HEADER_DTYPE.itemsize + NUM_COMMUNICATORS * COMMUNICATOR_DTYPE.itemsize
    if (
        sizes != own
        or not 0 <= int(header["base_ns"]) < LATEST_NS
        or table_end > int(header["first_record"])
    ):
        found.damage["of another version, or its header is damaged"] += 1
        return found
    found.host, found.pid, found.api = (
        text(bytes(header["host"])),
        int(header["pid"]),
        int(header["api"]),
    )
    found.lost, found.untracked = int(header["lost"]), int(header["untracked"])
    if len(data) < int(header["first_record"]):
        found.damage["truncated"] += 1
        return found
    table = np.frombuffer(
        data, COMMUNICATOR_DTYPE, NUM_COMMUNICATORS, COLLECTIVE_HEADER_DTYPE.itemsize
    )
    num_open = min(int(header["communicators"]), NUM_COMMUNICATORS)
    found.communicators = [
        Communicator(
            int(row["hash"]), int(row["rank"]), max(0, int(row["ranks"])), int(row["closed_ns"])
        )
        for row in table[:num_open]
    ]
    claimed = min(
        int(header["records"]),
        (len(data) - int(header["first_record"])) // COLLECTIVE_RECORD_DTYPE.itemsize,
    )
    _add_operations(
        found,
        np.frombuffer(data, COLLECTIVE_RECORD_DTYPE, claimed, int(header["first_record"])),
        int(header["base_ns"]),
    )
    return found


# --------------------------------------------------------------------------------------- operations


def _add_operations(found: CollectiveFile, records: _Array, base_ns: int) -> None:
    """Set `operations` and `last_ns` from the records."""
    kinds = records["time_high"] >> 24
    known = (kinds > 0) & (kinds < len(RECORD_KINDS))
    found.damage["records of an unknown kind"] += int((kinds >= len(RECORD_KINDS)).sum())
    records, kinds = records[known], kinds[known]
    columns = {
        "operation": records["operation"],
        "kind": kinds.astype(np.uint8),
        "time": _signed(records["time_low"], records["time_high"]),
        "value": _signed(records["value_low"], records["value_high"]),
        "detail": (records["value_high"] >> 24).astype(np.uint8),
    }
    table = pl.DataFrame(columns)
    labels = _labels(_of_kind(table, "label"), len(found.communicators))
    found.damage["labels of no communicator"] += len(_of_kind(table, "label")) - len(labels)
    enqueued = (
        _of_kind(table, "enqueue")
        .group_by("operation")
        .agg(enqueue_ns=pl.col("time").first(), bytes=pl.col("value").first())
    )
    timed = _with_host_times(table, labels, _has_several_gpus(found.communicators), found.damage)
    starts, stops = _of_kind(timed, "start"), _of_kind(timed, "stop")
    kernels = starts.group_by("operation").agg(
        kernel_start=pl.coalesce(pl.col("host_ns").min(), pl.col("time").min()),
        by_gpu=pl.col("host_ns").is_not_null().any(),
    )
    ends = stops.group_by("operation").agg(
        kernel_end=pl.coalesce(pl.col("host_ns").max(), pl.col("time").max())
    )
    first = (
        _of_kind(table, "first_transfer")
        .group_by("operation")
        .agg(network_start=pl.col("time").min())
    )
    last = (
        _of_kind(table, "last_transfer").group_by("operation").agg(network_end=pl.col("time").max())
    )
    joined = labels.join(enqueued, on="operation", how="inner")
    for part in (kernels, ends, first, last):
        joined = joined.join(part, on="operation", how="left")
    times = (
        pl.when(pl.col("kernel_start").is_not_null())
        .then(pl.when("by_gpu").then(pl.lit("gpu")).otherwise(pl.lit("kernel")))
        .when(pl.col("network_start").is_not_null())
        .then(pl.lit("network"))
        .otherwise(pl.lit("none"))
    )
    start = pl.coalesce("kernel_start", "network_start")
    end = (
        pl.when(pl.col("kernel_start").is_not_null())
        .then("kernel_end")
        .when(start.is_not_null())
        .then("network_end")
    )
    found.operations = joined.sort("operation").select(
        enqueue_ns=pl.col("enqueue_ns") + base_ns,
        start_ns=start + base_ns,
        end_ns=pl.max_horizontal(pl.when(end.is_not_null()).then(start), end) + base_ns,
        bytes=pl.when(pl.col("bytes") >= 0).then("bytes"),
        function="function",
        communicator="communicator",
        peer="peer",
        flags="flags",
        times=times,
    )
    host_kinds = [RECORD_KINDS.index(kind) for kind in RECORD_KINDS[2:]]
    latest = table.filter(pl.col("kind").is_in(host_kinds))["time"].max()
    found.last_ns = base_ns + cast(int, latest) if latest is not None else 0


def _signed(low: _Array, high: _Array) -> _Array:
    """Numbers of 56 bits; bits 24 to 31 of `high` do not belong to them."""
    value = (high & 0xFFFFFF).astype(np.int64) << 32 | low.astype(np.int64)
    signed: _Array = np.where(value >= _HALF, value - 2 * _HALF, value)
    return signed


def _of_kind(table: pl.DataFrame, kind: str) -> pl.DataFrame:
    return table.filter(pl.col("kind") == RECORD_KINDS.index(kind))


def _labels(records: pl.DataFrame, num_communicators: int) -> pl.DataFrame:
    value = pl.col("value")
    peer = (value // (1 << 16)) % (1 << 24)
    labels = records.unique("operation", keep="first", maintain_order=True).select(
        "operation",
        communicator=value % (1 << 16),
        peer=pl.when(peer != NO_PEER).then(peer),
        flags=(value // (1 << 48)) % (1 << 7),
        function=pl.col("detail"),
    )
    return labels.filter(
        pl.col("communicator") < num_communicators, pl.col("function") < len(FUNCTIONS)
    )


def _has_several_gpus(communicators: list[Communicator]) -> bool:
    """Whether the process has several ranks in one communicator, and so several GPUs, each with a
    timer of its own.
    """
    hashes = Counter(each.hash for each in communicators if each.hash and not each.closed_ns)
    return any(count > 1 for count in hashes.values())


def _with_host_times(
    table: pl.DataFrame, labels: pl.DataFrame, several_gpus: bool, damage: Counter[str]
) -> pl.DataFrame:
    """The starts and stops of kernels with `host_ns`: the time of the GPU's timer on the clock of
    the host; null: there is none.
    """
    kernels = [RECORD_KINDS.index(kind) for kind in ("start", "stop")]
    rows = table.filter(pl.col("kind").is_in(kernels)).join(
        labels.select(
            "operation", timer=pl.col("communicator") if several_gpus else pl.lit(0, pl.Int64)
        ),
        on="operation",
        how="inner",
    )
    has_time = (rows["detail"] & HAS_GPU_TIME).cast(pl.Boolean)
    gpu, host = rows["value"].to_numpy(), rows["time"].to_numpy()
    converted = np.zeros(len(rows), np.int64)
    for timer in rows["timer"].unique().to_list():
        chosen = ((rows["timer"] == timer) & has_time).to_numpy()
        if not chosen.any():
            continue
        converted[chosen] = host_times(gpu[chosen], (gpu[chosen], host[chosen]))
        if np.median(host[chosen] - converted[chosen]) > _MOST_DELAY_NS:
            damage[
                "the timer of the GPU does not count nanoseconds; times of its kernels are those at"
                " which the host saw them"
            ] += 1
            has_time &= ~pl.Series(chosen)
    return rows.with_columns(host_ns=pl.Series(converted).set(~has_time, None))


def is_captured() -> pl.Expr:
    """Operations that a CUDA graph launched."""
    return pl.col("flags") & GRAPH_FLAG > 0


def is_by_copy_engine() -> pl.Expr:
    """Operations without a kernel, of which NCCL reports only the enqueue."""
    return pl.col("flags") & COPY_ENGINE_FLAG > 0
