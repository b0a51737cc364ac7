"""Converts events to spans: integer times on the monotonic clock, kinds and steps. Events with
impossible times are dropped.
"""

import json
from collections import Counter
from typing import Final, cast

import numpy as np
import polars as pl

from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import table_schema
from ioprof.ingest.kineto.events import Tables
from ioprof.ingest.kineto.window import Window
from ioprof.ingest.untrusted_values import LATEST_NS, valid_text

PAGEABLE: Final = "pageable"
"""Name of a copy from or to memory that is not page-locked. The driver stages such a copy, so it
does not overlap with compute."""
EARLY_NS: Final = 1_000
"""A span that starts earlier than this before its launch is corrupted by Kineto (pytorch issue
192021)."""
OUTSIDE_NS: Final = 1_000_000
"""Maximum distance of a span beyond its window. The window uses the clock of the host; Kineto
interpolates between two readings."""
IMPOSSIBLE: Final = "an event with impossible times"
WALL_NS: Final = 10**18
"""The year 2001: earlier times are relative to a base."""
_NAME_CHARS: Final = 200
_STREAMS: Final = 1 << 16  # of a device
_COLLECTIVE: Final = r"(?i)^(?:void )?(?:nccl|rccl)(?:Symk?Dev|Dev)?Kernel_?([A-Za-z]*)"
_IS_COLLECTIVE: Final = (
    r"(?i)^(?:void"
    r" )?(?:(?:nccl|rccl)\w*Kernel|.*(?:one_shot_|two_shot_|multimem_)all_?reduce|.*cross_device_reduce_)"  # noqa: E501
)
_WAYS: Final = {
    "1": "HtoD",
    "2": "DtoH",
    "3": "DtoD",
    "CopyHostToDevice": "HtoD",
    "CopyDeviceToHost": "DtoH",
    "CopyDeviceToDevice": "DtoD",
}
"""Directions as Kineto wrote them of GPUs of AMD: numbers of `hipMemcpyKind`, and operations of
roctracer."""
_MEMORY: Final = ("pageable", "pinned", "device", "array", "managed", "host")
"""Kinds of memory in the names of copies. Those of AMD may have addresses instead."""
_WHOLE_JOB: Final = ("0", "default_pg")
"""Names of the process group of all ranks in torch."""
_ELEMENT_BYTES: Final = {
    "Float": 4,
    "Double": 8,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Long": 8,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
}


def wall_spans(events: Tables, window: Window) -> pl.DataFrame:
    """Device activities with wall clock times in nanoseconds, and the time of their launch if it
    was recorded.
    """
    base_ns = window.base_ns or 0
    calls = events.launches.drop_nulls(["at", "name", "ts", "correlation"]).unique(
        "correlation", keep="first"
    )
    launched = calls.select("correlation", launch_ns="ts", call="name")
    found = events.of_device
    kernels = launched.filter(pl.col("call").cast(pl.String).str.contains("LaunchKernel"))
    window.unrecorded_launches = len(kernels.join(found, on="correlation", how="anti"))
    kept = found.filter(pl.col("ts") + base_ns < LATEST_NS, pl.col("dur") < LATEST_NS)
    window.damage[IMPOSSIBLE] += len(found) - len(kept)
    if len(kept) and int(cast(int, kept["ts"].max())) + base_ns < WALL_NS:
        window.damage["the base of its times is unknown"] += 1
        kept = kept.clear()
    timed = kept.join(launched.drop("call"), on="correlation", how="left", maintain_order="left")
    return timed.with_columns(
        pl.col("launch_ns") + base_ns, wall_ns=pl.col("ts") + base_ns, dur_ns=pl.col("dur")
    ).drop("ts", "dur")


def spans_of(wall: pl.DataFrame, window: Window) -> pl.DataFrame:
    """The span table of the activities from `wall_spans`, ordered by start."""
    timed = wall.with_columns(
        start_ns=monotonic("wall_ns", window), launch_ns=monotonic("launch_ns", window)
    )
    launched = timed.select(pl.col("launch_ns").fill_null(pl.col("start_ns"))).to_series()
    stepped = timed.with_columns(steps_at(launched, window.marks))
    valid = _drop_impossible(_number_collectives(_add_kinds(stepped)), window)
    device, stream = pl.col("device"), pl.col("stream")
    # else the combined number has no room: null
    fits = device.is_between(0, (1 << 14) - 1) & stream.is_between(0, _STREAMS - 1)
    columns = {
        # The clocks of host and device differ by a few hundred nanoseconds; a span must not start
        # before its launch.
        "start_ns": pl.max_horizontal("start_ns", "launch_ns"),
        "end_ns": pl.max_horizontal(pl.col("start_ns") + pl.col("dur_ns"), "launch_ns"),
        "kind": pl.col("kind"),
        "host": pl.lit(window.host),
        "rank": pl.lit(window.rank),
        "pid": pl.lit(window.pid),
        "stream": pl.when(fits).then(device * _STREAMS + stream),
        "step": pl.col("step"),
        "bytes": pl.col("bytes"),
        "name": pl.col("label"),
    }
    schema = table_schema(SPAN_COLUMNS)
    return valid.select(
        columns.get(name, pl.lit(None)).cast(dtype).alias(name) for name, dtype in schema.items()
    ).sort("start_ns")


def monotonic(name: str, window: Window) -> pl.Expr:
    """Convert wall clock times to monotonic times.

    If the wall clock was set during the window, Kineto's interpolation between its two readings
    distorts all times linearly, and an interpolation between our readings reverts that.
    """
    first, last = window.anchors[0], window.anchors[-1]
    moved_ns = window.clock_moved_ns
    if not moved_ns or last.wall_ns <= first.wall_ns:
        return (
            pl.col(name) - min(window.anchors, key=lambda anchor: anchor.uncertainty_ns).offset_ns
        )
    since = pl.col(name) - first.wall_ns
    distortion = (
        (since.cast(pl.Float64) * (moved_ns / (last.wall_ns - first.wall_ns)))
        .round()
        .cast(pl.Int64)
    )
    return pl.col(name) - first.offset_ns - distortion


def steps_at(times: pl.Series, marks: list[tuple[int, int]]) -> pl.Series:
    """The step in progress at each time; null outside the steps of the window."""
    ends = np.array([at for _, at in marks], np.int64)
    steps = pl.Series("step", [None, *(step for step, _ in marks[1:]), None], dtype=pl.Int64)
    return steps.gather(np.searchsorted(ends, times.to_numpy(), side="left"))


# ---------------------------------------------------------------------------------- kinds and names


def _add_kinds(spans: pl.DataFrame) -> pl.DataFrame:
    """Add `kind`, `label` and `bytes`."""
    names = spans.select(pl.col("name").unique()).with_columns(
        plain=pl.col("name")
        .cast(pl.String)
        .map_elements(_unescape, return_dtype=pl.String())
        .str.slice(0, 4 * _NAME_CHARS)
    )
    named = spans.join(names, on="name", how="left", maintain_order="left")
    cat, plain = (
        pl.col("cat").cast(pl.String).str.to_lowercase().str.strip_prefix("gpu_"),
        pl.col("plain"),
    )
    way = plain.str.extract(r"(?i)^(?:Memcpy\s+)?(\w+)").replace(_WAYS)
    source, target = (
        pl.when(memory.is_in(_MEMORY)).then(memory).otherwise(pl.lit("unknown"))
        for memory in (
            plain.str.extract(r"\(([\w ]+?)\s*->").str.to_lowercase(),
            plain.str.extract(r"->\s*([\w ]+)\)").str.to_lowercase(),
        )
    )
    kind = (
        pl.when((cat == "memcpy") & way.is_in(["HtoD", "HtoA"])).then(pl.lit("h2d"))
        .when((cat == "memcpy") & way.is_in(["DtoH", "AtoH"])).then(pl.lit("d2h"))
        .when((cat == "kernel") & plain.str.contains(_IS_COLLECTIVE)).then(pl.lit("comm"))
        .otherwise(pl.lit("kernel"))
    )  # fmt: skip
    label = (
        pl.when(pl.col("kind") == "h2d").then(source)
        .when(pl.col("kind") == "d2h").then(target)
        .when(pl.col("kind") == "comm").then(_collective_name())
        .when(cat == "memset").then(pl.lit("Memset"))
        .when(cat == "memcpy").then(pl.format("Memcpy {}", way))
        .otherwise(plain.str.slice(0, _NAME_CHARS))
    )  # fmt: skip
    element_bytes = (
        pl.col("dtype")
        .cast(pl.String)
        .replace_strict(_ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    )
    size = (
        pl.when(pl.col("kind") == "comm")
        .then(pl.col("elements") * element_bytes)
        .otherwise(pl.col("bytes"))
    )
    return named.with_columns(kind=kind).with_columns(label=label, bytes=size)


def _collective_name() -> pl.Expr:
    """Name of a collective from its kernel or from torch: equal on all ranks of a group and
    different in other groups.
    """
    of_kernel = pl.col("plain").str.extract(_COLLECTIVE).replace("", None)
    name, group = (
        pl.coalesce(of_kernel, pl.col("collective").cast(pl.String), pl.lit("AllReduce")),
        pl.col("group").cast(pl.String),
    )
    of_all = group.is_null() | group.is_in(_WHOLE_JOB)
    return pl.when(of_all).then(name).otherwise(pl.format("{} in group {}", name, group))


def _number_collectives(spans: pl.DataFrame) -> pl.DataFrame:
    """Number collectives within their step in the order of launch, before any is dropped, so that
    numbers agree across ranks.
    """
    exchange = pl.col("kind") == "comm"
    comm = spans.filter(exchange).sort(
        pl.col("launch_ns").fill_null(pl.col("start_ns")), maintain_order=True
    )
    return pl.concat(
        [
            spans.filter(~exchange),
            comm.with_columns(
                label=pl.format("{} {}", "label", pl.int_range(pl.len()).over("step", "label"))
            ),
        ]
    )


def _drop_impossible(spans: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Drop and count spans that start before their launch or lie outside the window."""
    early = (pl.col("launch_ns") - pl.col("start_ns") > EARLY_NS).fill_null(False)
    outside = ~pl.col("start_ns").is_between(0, LATEST_NS)
    if window.start_ns is not None:
        outside |= pl.col("start_ns") < window.start_ns - OUTSIDE_NS
    if window.end_ns is not None:
        outside |= pl.col("start_ns") + pl.col("dur_ns") > window.end_ns + OUTSIDE_NS
    kept = spans.filter(~early)
    found = kept.filter(~outside)
    window.left_out += Counter(
        {
            "began before its launch": len(spans) - len(kept),
            "outside of its window": len(kept) - len(found),
        }
    )
    return found


def _unescape(name: str) -> str:
    """The content of a JSON string. Some versions of torch did not escape it correctly; then the
    text itself.
    """
    if "\\" not in name:
        return name
    try:
        return valid_text(str(json.loads(f'"{name}"', strict=False)))
    except ValueError:
        return name
