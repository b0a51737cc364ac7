"""What a profiler of GPUs recorded of one process, as spans: its steps, marked or found, waits for
batches, and what its devices did.
"""

from collections.abc import Callable
from typing import Final

import polars as pl

from ioprof.format.run_record import StepsBy
from ioprof.ingest.kineto import Window
from ioprof.ingest.kineto.foreign import OPTIMIZER_RANGE, WAIT_RANGE
from ioprof.ingest.kineto.spans import spans_of
from ioprof.interchange.imported import Imported
from ioprof.interchange.job_steps import JobSteps, steps_of_kernels, steps_of_ranges

_BY_LOOP: Final = f"{WAIT_RANGE}#_SingleProcessDataLoaderIter"
"""Waits for batches that the loop makes itself: a DataLoader with num_workers=0."""
_MOST_TID: Final = 1 << 22  # PID_MAX_LIMIT of Linux


def of_process(
    window: Window,
    wall: pl.DataFrame,
    ranges: pl.DataFrame,
    profiler: str,
    device: str | None,
    waits_for_device: Callable[[], pl.DataFrame] | None = None,
    *,
    may_have_device: bool = False,
) -> Imported:
    """The spans of one process. `ranges` has `name start_ns end_ns pid tid`, and `step` of those
    that mark a step; `waits_for_device` gives spans once the steps are known. `may_have_device`:
    whether a device may have worked of which nothing is in the files.
    """
    has_device = may_have_device or bool(len(wall))
    ranges = _of_main_thread(ranges)
    starts = pl.col("name").str.starts_with
    waits = ranges.filter(pl.col("step").is_null(), starts(WAIT_RANGE))
    marked = _apart(ranges.drop_nulls("step"))
    found: JobSteps | None = None
    steps = marked.select("step", "start_ns", "end_ns")
    if steps.is_empty():
        optimizer = ranges.filter(pl.col("step").is_null(), starts(OPTIMIZER_RANGE))
        found = steps_of_ranges(optimizer, waits) or steps_of_kernels(wall)
        steps = steps if found is None else found.table
    launched = wall.drop_nulls("launch_ns")["wall_ns"].min() or wall["wall_ns"].min()
    launched_ns = launched if isinstance(launched, int) else None
    if found is not None and found.by is StepsBy.PERIOD:
        # steps of the device's own time, whatever launched its work
        wall = wall.with_columns(launch_ns=pl.lit(None, pl.Int64))
    tid = _set_loop(window, ranges)
    if len(steps):
        ends = steps.select("step", "end_ns").rows()
        window.marks = [(ends[0][0] - 1, int(steps["start_ns"][0])), *ends]
    who = {
        "host": pl.lit(window.host or None, pl.String),
        "rank": pl.lit(window.rank, pl.Int32),
        "pid": pl.lit(window.pid, pl.Int32),
    }
    of_host = pl.concat(
        [steps.with_columns(kind=pl.lit("step")), *_of_batches(waits, steps)], how="diagonal"
    ).with_columns(**who, tid=pl.lit(tid, pl.Int32))
    texts = pl.col("kind", "source", "name").cast(pl.String)
    device_spans = [spans_of(wall, window)]
    if waits_for_device is not None:
        device_spans.append(waits_for_device())
    of_device = pl.concat(device_spans).with_columns(texts, **who)
    spans = pl.concat([of_host, of_device], how="diagonal_relaxed").sort("start_ns")
    facts = window.facts()
    if wall.is_empty():  # of what was launched nothing is in the file
        facts = facts.replace(first_step=None, last_step=None)
    if len(spans):
        first_ns, last_ns = int(spans["start_ns"].min()), int(spans["end_ns"].max())  # type: ignore[arg-type]
        facts = facts.replace(start_ns=first_ns, end_ns=last_ns, launched_ns=launched_ns)
    by_loop = len(waits) and bool(waits["name"].str.starts_with(_BY_LOOP).all())
    return Imported(
        path=window.path,
        spans=spans,
        damage=window.damage,
        windows=(facts,) if has_device else (),
        profiler=profiler,
        loader="torch DataLoader" if len(waits) else None,
        workers=0 if by_loop else None,
        device=(device or "GPU") if has_device else None,
        steps_by=found.by if found else None,
        period_kernels=found.num_kernels if found else None,
    )


def _of_main_thread(ranges: pl.DataFrame) -> pl.DataFrame:
    """The ranges of the thread that has most of those that mark steps, or else of all: it is that
    of the training loop.
    """
    if ranges.is_empty():
        return ranges
    busiest = (
        ranges.group_by("pid", "tid")
        .agg(pl.col("step").count().alias("steps"), pl.len(), pl.col("start_ns").min())
        .sort("steps", "len", "start_ns", descending=[True, True, False])
        .head(1)
    )
    return ranges.join(
        busiest.select("pid", "tid"), on=["pid", "tid"], nulls_equal=True, maintain_order="left"
    )


def _apart(steps: pl.DataFrame) -> pl.DataFrame:
    """Steps in order, of which each ends at the latest when the next begins."""
    ordered = steps.sort("start_ns").unique("step", keep="first", maintain_order=True)
    return ordered.with_columns(
        end_ns=pl.min_horizontal("end_ns", pl.col("start_ns").shift(-1).fill_null(1 << 62))
    ).filter(pl.col("end_ns") > pl.col("start_ns"))


def _set_loop(window: Window, ranges: pl.DataFrame) -> int | None:
    """Tell the window the process and thread of its loop, and return that thread.

    Files of torch 1.8 have the lower half of `pthread_self()` in place of a thread id. Such a
    thread gets a number that no thread of Linux has.
    """
    if ranges.is_empty():
        return None
    pid, raw = ranges["pid"][0], ranges["tid"][0]
    window.pid = pid if pid is not None and 0 <= pid < 1 << 31 else window.pid
    tid = raw if raw is None or 0 <= raw <= _MOST_TID else _MOST_TID + 1
    window.loop_tid = tid
    if raw is not None and tid != raw:
        window.threads = {abs(raw): tid}
    return tid


def _of_batches(waits: pl.DataFrame, steps: pl.DataFrame) -> list[pl.DataFrame]:
    """Waits for batches, in the step in which they began and at most until its end; and the making
    of batches, where the loop makes them itself.
    """
    if waits.is_empty():
        return []
    ordered = (
        waits.sort("start_ns").with_row_index("batch").with_columns(pl.col("batch").cast(pl.Int64))
    )
    if len(steps):
        inside = ordered.join_asof(
            steps.select("step", start_ns="start_ns", until_ns="end_ns").sort("start_ns"),
            on="start_ns",
            suffix="_in",
        ).with_columns(
            step=pl.when(pl.col("start_ns") < pl.col("until_ns")).then(pl.col("step_in"))
        )
        until = pl.when(pl.col("step").is_not_null()).then(pl.col("until_ns")).otherwise("end_ns")
        ordered = inside.with_columns(end_ns=pl.min_horizontal("end_ns", until))
    by_loop = pl.col("name").str.starts_with(_BY_LOOP)
    columns = ("step", "start_ns", "end_ns", "batch")
    made = ordered.filter(by_loop).select(*columns, kind=pl.lit("fetch"))
    awaited = ordered.with_columns(batch=pl.when(by_loop).then(pl.col("batch")))
    return [awaited.select(*columns, kind=pl.lit("wait")), made]
