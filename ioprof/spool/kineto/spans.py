"""From the text of events to spans: integer times on the monotonic clock, kinds, steps, and what cannot be is left out."""

import json
from collections import Counter
from typing import Final, cast

import numpy as np
import polars as pl

from ioprof.schema import SPAN_COLUMNS
from ioprof.spool.kineto.events import Events
from ioprof.spool.kineto.window import Window
from ioprof.spool.values import LATEST_NS
from ioprof.trace import table_schema

PAGEABLE: Final = "pageable"
"""Name of a copy from or to memory that is not page-locked: the driver stages it, so it overlaps with nothing."""
EARLY_NS: Final = 1_000
"""A span that begins earlier than this before its launch is a record that Kineto spoilt (pytorch issue 192021)."""
OUTSIDE_NS: Final = 1_000_000
"""How far a span may reach beyond its window: the host's clock sets its ends, and Kineto's is a line through two readings."""

_UNIX_NS: Final = 10**18  # 2001: earlier times are relative to a base
_NAME_CHARS: Final = 200
_STREAMS: Final = 1 << 16  # of a device
_COLLECTIVE: Final = r"(?i)^(?:void )?(?:nccl|rccl)(?:Symk?Dev|Dev)?Kernel_?([A-Za-z]*)"
_IS_COLLECTIVE: Final = (
    r"(?i)^(?:void )?(?:(?:nccl|rccl)\w*Kernel|.*(?:one_shot_|two_shot_|multimem_)all_?reduce|.*cross_device_reduce_)"
)
_WHOLE_JOB: Final = ("0", "default_pg")
"""What torch calls the process group of all ranks."""
_ELEMENT_BYTES: Final = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Int": 4, "Long": 8, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
}  # fmt: skip


def wall_spans(events: Events, window: Window) -> pl.DataFrame:
    """The device's records with integer times of the wall clock, each with the time of its launch if that was recorded."""
    base_ns = window.base_ns or 0
    launched = events.launches.drop_nulls().unique("correlation", keep="first").rename({"ts": "launch_ns", "name": "call"})
    found = events.of_device
    kernels = launched.filter(pl.col("call").cast(pl.String).str.contains("LaunchKernel"))
    window.unrecorded_launches = len(kernels.join(found, on="correlation", how="anti"))
    kept = found.filter(pl.col("ts") + base_ns < LATEST_NS, pl.col("dur") < LATEST_NS)
    window.damage["an event with impossible times"] += len(found) - len(kept)
    if len(kept) and int(cast(int, kept["ts"].max())) + base_ns < _UNIX_NS:
        window.damage["it does not say what its times count from"] += 1
        kept = kept.clear()
    timed = kept.join(launched.drop("call"), on="correlation", how="left", maintain_order="left")
    return timed.with_columns(pl.col("launch_ns") + base_ns, wall_ns=pl.col("ts") + base_ns, dur_ns=pl.col("dur")).drop("ts", "dur")


def spans_of(wall: pl.DataFrame, window: Window) -> pl.DataFrame:
    """The table of spans, in order of their start, of what `wall_spans` found."""
    timed = wall.with_columns(start_ns=_monotonic("wall_ns", window), launch_ns=_monotonic("launch_ns", window))
    stepped = timed.with_columns(_step(timed.select(pl.col("launch_ns").fill_null(pl.col("start_ns"))).to_series(), window.marks))
    sound = _without_spoilt(_numbered(_with_kinds(stepped)), window)
    columns = {
        # A few hundred nanoseconds of skew between the clocks of host and device must not put an effect before its cause.
        "start_ns": pl.max_horizontal("start_ns", "launch_ns"),
        "end_ns": pl.max_horizontal(pl.col("start_ns") + pl.col("dur_ns"), "launch_ns"),
        "kind": pl.col("kind"),
        "host": pl.lit(window.host),
        "rank": pl.lit(window.rank),
        "pid": pl.lit(window.pid),
        "stream": _stream(),
        "step": pl.col("step"),
        "bytes": pl.col("bytes"),
        "name": pl.col("label"),
    }
    schema = table_schema(SPAN_COLUMNS)
    return sound.select(columns.get(name, pl.lit(None)).cast(dtype).alias(name) for name, dtype in schema.items()).sort("start_ns")


def _monotonic(name: str, window: Window) -> pl.Expr:
    """Wall time as monotonic time.

    Where the wall clock was set within the window, Kineto's line through its two readings bends all times alike, and a line
    through ours straightens them.
    """
    first, last = window.anchors[0], window.anchors[-1]
    moved_ns = window.clock_moved_ns
    if not moved_ns or last.wall_ns <= first.wall_ns:
        return pl.col(name) - min(window.anchors, key=lambda anchor: anchor.uncertainty_ns).offset_ns
    since = pl.col(name) - first.wall_ns
    bent = (since.cast(pl.Float64) * (moved_ns / (last.wall_ns - first.wall_ns))).round().cast(pl.Int64)
    return pl.col(name) - first.offset_ns - bent


def _step(times: pl.Series, marks: list[tuple[int, int]]) -> pl.Series:
    """The step that was under way; null outside the steps that the window knows."""
    ends = np.array([at for _, at in marks], np.int64)
    steps = pl.Series("step", [None, *(step for step, _ in marks[1:]), None], dtype=pl.Int64)
    return steps.gather(np.searchsorted(ends, times.to_numpy(), side="left"))


# ------------------------------------------------------------------------------------------------ kinds and names


def _with_kinds(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans with `kind`, `label` and `bytes`."""
    names = spans.select(pl.col("name").unique()).with_columns(
        plain=pl.col("name").cast(pl.String).map_elements(_unescaped, return_dtype=pl.String()).str.slice(0, 4 * _NAME_CHARS)
    )
    named = spans.join(names, on="name", how="left", maintain_order="left")
    cat, plain = pl.col("cat").cast(pl.String).str.to_lowercase().str.strip_prefix("gpu_"), pl.col("plain")
    way = plain.str.extract(r"(?i)^Memcpy\s+(\w+)")
    source, target = plain.str.extract(r"\(([\w ]+?)\s*->"), plain.str.extract(r"->\s*([\w ]+)\)")
    kind = (
        pl.when((cat == "memcpy") & way.is_in(["HtoD", "HtoA"])).then(pl.lit("h2d"))
        .when((cat == "memcpy") & way.is_in(["DtoH", "AtoH"])).then(pl.lit("d2h"))
        .when((cat == "kernel") & plain.str.contains(_IS_COLLECTIVE)).then(pl.lit("comm"))
        .otherwise(pl.lit("kernel"))
    )  # fmt: skip
    label = (
        pl.when(pl.col("kind") == "h2d").then(source.str.to_lowercase())
        .when(pl.col("kind") == "d2h").then(target.str.to_lowercase())
        .when(pl.col("kind") == "comm").then(_collective())
        .when(cat == "memset").then(pl.lit("Memset"))
        .when(cat == "memcpy").then(pl.format("Memcpy {}", way))
        .otherwise(plain.str.slice(0, _NAME_CHARS))
    )  # fmt: skip
    size = pl.when(pl.col("kind") == "comm").then(_message_bytes()).otherwise(pl.col("bytes"))
    return named.with_columns(kind=kind).with_columns(label=label, bytes=size)


def _collective() -> pl.Expr:
    """What the collective is called by its kernel, or by torch; the same on every rank of its group, and in no other group."""
    of_kernel = pl.col("plain").str.extract(_COLLECTIVE).replace("", None)
    name, group = pl.coalesce(of_kernel, pl.col("collective").cast(pl.String), pl.lit("AllReduce")), pl.col("group").cast(pl.String)
    of_all = group.is_null() | group.is_in(_WHOLE_JOB)
    return pl.when(of_all).then(name).otherwise(pl.format("{} in group {}", name, group))


def _message_bytes() -> pl.Expr:
    return pl.col("elements") * pl.col("dtype").cast(pl.String).replace_strict(_ELEMENT_BYTES, default=None, return_dtype=pl.Int64)


def _numbered(spans: pl.DataFrame) -> pl.DataFrame:
    """Collectives numbered within their step, as they were launched, before any is left out: a rank's third is every rank's."""
    exchange = pl.col("kind") == "comm"
    comm = spans.filter(exchange).sort(pl.col("launch_ns").fill_null(pl.col("start_ns")), maintain_order=True)
    return pl.concat([
        spans.filter(~exchange),
        comm.with_columns(label=pl.format("{} {}", "label", pl.int_range(pl.len()).over("step", "label"))),
    ])  # fmt: skip


def _without_spoilt(spans: pl.DataFrame, window: Window) -> pl.DataFrame:
    """What lies neither before its launch nor outside the window; the rest is counted."""
    early = (pl.col("launch_ns") - pl.col("start_ns") > EARLY_NS).fill_null(False)
    outside = ~pl.col("start_ns").is_between(0, LATEST_NS)
    if window.start_ns is not None:
        outside |= pl.col("start_ns") < window.start_ns - OUTSIDE_NS
    if window.end_ns is not None:
        outside |= pl.col("start_ns") + pl.col("dur_ns") > window.end_ns + OUTSIDE_NS
    kept = spans.filter(~early)
    found = kept.filter(~outside)
    window.left_out += Counter({"began before its launch": len(spans) - len(kept), "outside of its window": len(kept) - len(found)})
    return found


def _stream() -> pl.Expr:
    """CUDA's number of the stream; null where it has no room."""
    device, stream = pl.col("device"), pl.col("stream")
    fits = device.is_between(0, (1 << 14) - 1) & stream.is_between(0, _STREAMS - 1)
    return pl.when(fits).then(device * _STREAMS + stream)


def _unescaped(name: str) -> str:
    """A JSON string's content, which some versions of torch wrote without care."""
    if "\\" not in name:
        return name
    try:
        return str(json.loads(f'"{name}"', strict=False))
    except ValueError:
        return name
