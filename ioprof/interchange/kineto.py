"""Traces of torch.profiler (Kineto), of any job: kernels, copies, collectives, steps, and waits of
DataLoaders.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from ioprof.errors import CommandError
from ioprof.ingest.kineto import ForeignTrace, read_foreign
from ioprof.interchange.imported import Imported

CLOCK: Final = "the wall clock of each host, as torch.profiler wrote it"
_STEP: Final = r"^ProfilerStep#(\d{1,15})$"


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
    window, ranges = trace.window, trace.ranges
    if not len(window.spans) and not len(ranges):
        what = next(
            (what for what, count in window.damage.items() if count),
            "no kernel, copy, step or wait is in it",
        )
        raise CommandError(f"{window.path}: not a trace that can be imported: {what}")
    host, pid = window.host or None, window.pid
    of_host = ranges.select(
        "start_ns",
        "end_ns",
        pl.when(pl.col("name").str.contains(_STEP))
        .then(pl.lit("step"))
        .otherwise(pl.lit("wait"))
        .alias("kind"),
        host=pl.lit(host, pl.String),
        rank=pl.lit(rank, pl.Int32),
        pid=_small("pid"),
        tid=_small("tid"),
        step=pl.col("name").str.extract(_STEP).cast(pl.Int64),
    )
    steps = of_host.filter(pl.col("kind") == "step")
    if len(steps):
        waits = (
            of_host.filter(pl.col("kind") == "wait")
            .drop("step")
            .sort("start_ns")
            .join_asof(
                steps.select("step", start_ns="start_ns", until_ns="end_ns").sort("start_ns"),
                on="start_ns",
            )
        )
        waits = waits.with_columns(
            step=pl.when(pl.col("start_ns") < pl.col("until_ns")).then(pl.col("step"))
        ).drop("until_ns")
        of_host = pl.concat([steps, waits.select(steps.columns)])
    texts = pl.col("kind", "source", "name").cast(pl.String)
    of_device = window.spans.with_columns(
        texts, host=pl.lit(host, pl.String), rank=pl.lit(rank, pl.Int32), pid=pl.lit(pid, pl.Int32)
    )
    spans = pl.concat([of_host, of_device], how="diagonal")
    first_ns, last_ns = int(spans["start_ns"].min()), int(spans["end_ns"].max())  # type: ignore[arg-type]
    facts = window.facts().replace(rank=rank, start_ns=first_ns, end_ns=last_ns)
    has_waits = bool((of_host["kind"] == "wait").any())
    return Imported(
        path=window.path,
        spans=spans,
        damage=window.damage,
        windows=(facts,) if len(window.spans) else (),
        profiler="torch.profiler",
        loader="torch DataLoader" if has_waits else None,
    )


def _small(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Int32, strict=False)
