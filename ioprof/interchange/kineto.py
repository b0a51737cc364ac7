"""Traces of torch.profiler (Kineto), of any job: kernels, copies, collectives, steps, and waits of
DataLoaders.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from ioprof.errors import CommandError
from ioprof.format.run_record import GpuWindow, StepsBy
from ioprof.ingest.kineto import ForeignTrace, read_foreign
from ioprof.ingest.kineto.events import CUT, CUT_STREAM
from ioprof.ingest.kineto.foreign import STEP_RANGE
from ioprof.ingest.kineto.spans import steps_at
from ioprof.ingest.kineto.waits import wait_spans, wall_waits
from ioprof.interchange.gpu_process import of_process
from ioprof.interchange.imported import Imported

_WHOLE: Final = 0.99
"""Part of a step's launches whose kernels must be in a file that is cut. Those of a CUDA graph that
is captured have none."""
CLOCK: Final = "the wall clock of each host, as torch.profiler wrote it"


def read_kineto(paths: Sequence[Path]) -> list[Imported]:
    """The files, one per rank. `CommandError` where a file is no Kineto trace, or two are of the
    same rank.
    """
    traces = [read_foreign(path) for path in paths]
    known = [trace.window.rank for trace in traces]
    if len(traces) == 1 or len({rank for rank in known if rank is not None}) == len(traces):
        ranks = [0 if rank is None else rank for rank in known]
    elif set(known) == {None}:
        ranks = list(range(len(traces)))  # in the order in which they were named
    else:
        same = next((rank for rank in known if known.count(rank) > 1), None)
        raise CommandError(
            f"{paths[known.index(same)]}: another file is of the same rank ({same}); name one file"
            " of each rank"
        )
    found = [_imported(trace, rank) for trace, rank in zip(traces, ranks, strict=True)]
    size = max((trace.world_size or 0 for trace in traces), default=0)
    if size > len(traces):
        found[0].damage[
            f"{len(traces)} of the {size} ranks of the job were imported; waiting for others is"
            " part of exchange"
        ] += 1
    return found


def _imported(trace: ForeignTrace, rank: int) -> Imported:
    window = trace.window
    window.rank = rank
    is_cut = bool(window.damage[CUT] or window.damage[CUT_STREAM])
    numbers = pl.col("name").str.extract(rf"^{STEP_RANGE}(\d{{1,15}})$").cast(pl.Int64)
    found = of_process(
        window,
        trace.wall,
        trace.ranges.with_columns(step=numbers),
        "torch.profiler",
        trace.device,
        lambda: wait_spans(wall_waits(trace.tables, window), window),
        may_have_device=bool(len(trace.tables.launches) or is_cut),
    )
    if found.spans.is_empty():
        what = next(
            (what for what, count in window.damage.items() if count),
            "no kernel, copy, step or wait is in it",
        )
        raise CommandError(f"{window.path}: not a trace that can be imported: {what}")
    if is_cut and len(trace.wall) and found.steps_by is not StepsBy.PERIOD:
        facts = tuple(_with_whole_steps(each, trace) for each in found.windows)
        found = replace(found, windows=facts)
    return found


def _with_whole_steps(facts: GpuWindow, trace: ForeignTrace) -> GpuWindow:
    """The window without the steps at its end whose work on the device is not all in the file: the
    files begin with what the host did.
    """
    base_ns, window = trace.window.base_ns or 0, trace.window
    done = trace.tables.of_device.select("correlation").drop_nulls()
    calls = trace.tables.launches.filter(
        pl.col("name").cast(pl.String).str.contains("LaunchKernel")
    ).drop_nulls(["ts", "correlation"])
    known = calls.select(
        steps_at(calls["ts"] + base_ns, window.marks),
        has=pl.col("correlation").is_in(done["correlation"].implode()),
    )
    whole = dict(known.group_by("step").agg(pl.col("has").mean()).rows())
    last_ns = int((trace.wall["wall_ns"] + trace.wall["dur_ns"]).max() or 0)  # type: ignore[arg-type]
    last = None
    for step, end_ns in window.marks[1:]:
        if whole.get(step, 1.0) < _WHOLE or end_ns > last_ns:
            break
        last = step
    return facts.replace(last_step=last, first_step=None if last is None else facts.first_step)
