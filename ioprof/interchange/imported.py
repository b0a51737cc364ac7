"""What the files of other profilers hold, as a run: spans, files and processes on one clock."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from ioprof import clock
from ioprof.errors import CommandError
from ioprof.ingest.untrusted_values import LATEST_NS, damage_facts
from ioprof.run_record import (
    CaptureRecord,
    ClockRecord,
    ClockTie,
    ConfigRecord,
    GpuCapture,
    GpuWindow,
    HostRecord,
    ProcessRecord,
    Reason,
    RunRecord,
)
from ioprof.schema import FILE_COLUMNS, SPAN_COLUMNS
from ioprof.trace import Trace, table_schema

MOST_FILES: Final = 10_000
"""Files of one import."""
MOST_SPANS: Final = 200_000_000


@dataclass
class Imported:
    """The contents of one file. Times are nanoseconds of any one clock that all files of an import share."""

    path: Path
    spans: pl.DataFrame
    """Columns of `Trace.spans`, any of which may be missing, and `path` instead of `file`. Texts may be strings; those that are
    categories already need no conversion, which would take a quarter of the import of a log of Darshan."""
    worker_of: dict[tuple[str | None, int | None], int] = field(default_factory=dict)
    damage: Counter[str] = field(default_factory=Counter)
    """What is wrong with it, and what was left out: sentence to how often."""
    windows: tuple[GpuWindow, ...] = ()
    """Times in which the GPU was recorded, on the clock of the spans."""
    has_reads: bool = False
    """Whether its profiler records reads."""
    loader: str | None = None
    """The data loader that the job used, if it is known."""
    profiler: str = ""
    """What recorded it."""


def to_trace(files: Sequence[Imported], name: str, command: str, clock_method: str) -> Trace:
    """One run of all files. `CommandError` where none of them has a span."""
    rows = sum(len(file.spans) for file in files)
    if not rows:
        first = files[0]
        reasons = "; ".join(what for what, count in first.damage.items() if count)
        raise CommandError(f"{first.path}: nothing to import{f' ({reasons})' if reasons else ''}")
    if rows > MOST_SPANS:
        raise CommandError(f"{files[0].path}: {rows:,} events, more than {MOST_SPANS:,}; import a part of the files")
    table = pl.concat([_complete(file.spans) for file in files])
    in_time = pl.col("start_ns").is_between(0, LATEST_NS - 1) & pl.col("end_ns").is_between(pl.col("start_ns"), LATEST_NS - 1)
    is_in_time = table.select(in_time).to_series().fill_null(False)
    kept = table if is_in_time.all() else table.filter(is_in_time)
    if kept.is_empty():
        raise CommandError(f"{files[0].path}: no event has possible times")
    if len(kept) < len(table):
        files[0].damage["an event with impossible times was left out"] += len(table) - len(kept)
    zero_ns = int(kept["start_ns"].min())  # type: ignore[arg-type]
    paths, numbers = _numbered(kept["path"])
    moved = kept.with_columns(pl.col("start_ns", "end_ns") - zero_ns, file=numbers)
    spans = moved.select(list(SPAN_COLUMNS)).cast(pl.Schema(table_schema(SPAN_COLUMNS)))
    missing = [
        pl.lit(None).cast(dtype).alias(each) for each, dtype in table_schema(FILE_COLUMNS).items() if each not in ("file", "path")
    ]
    places = pl.Series("file", range(len(paths)), dtype=pl.Int64)
    known = pl.DataFrame([places, paths]).with_columns(missing).select(list(FILE_COLUMNS))
    return Trace(_run(files, spans, zero_ns, name, command, clock_method), spans, known)


def _complete(spans: pl.DataFrame) -> pl.DataFrame:
    schema = {**table_schema(SPAN_COLUMNS), "path": pl.Categorical()}
    known = spans.schema
    return spans.select(
        pl.lit(None, dtype).alias(name) if name not in known
        else pl.col(name) if known[name] == dtype
        else pl.col(name).cast(dtype, strict=isinstance(dtype, pl.Enum))
        for name, dtype in schema.items()
    )  # fmt: skip


def _numbered(paths: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The different paths in the order of their first use, and the number of each row's."""
    codes = paths.to_physical()
    different = paths.gather(codes.arg_unique().sort()).drop_nulls()
    used = different.to_physical()
    number_of = np.zeros((int(used.to_numpy().max()) if len(used) else 0) + 1, np.int64)
    number_of[used.to_numpy()] = np.arange(len(used))
    return different.cast(pl.String), pl.Series(number_of).gather(codes)


def _run(files: Sequence[Imported], spans: pl.DataFrame, zero_ns: int, name: str, command: str, clock_method: str) -> RunRecord:
    processes = _processes(spans, files)
    hosts = list(dict.fromkeys(process.host for process in processes if process.host))
    ranks = spans["rank"].drop_nulls().unique()
    # Nothing is known of how far the clocks of several hosts are apart.
    ties = tuple(ClockTie(clock=host, to=hosts[0], method=clock_method) for host in hosts[1:])
    windows = tuple(
        window.replace(start_ns=(window.start_ns or 0) - zero_ns, end_ns=(window.end_ns or 0) - zero_ns)
        for file in files
        for window in file.windows
    )
    has_reads = any(file.has_reads for file in files)
    workers = {process.worker for process in processes if process.worker is not None}
    return RunRecord(
        name=name,
        status="complete",
        command=command,
        started=clock.wall_text(zero_ns) if zero_ns > 10**18 else None,
        hosts=tuple(HostRecord(name=host) for host in hosts),
        clocks=ClockRecord(method=clock_method, uncertainty_ns=None if ties else 0, ties=ties),
        config=ConfigRecord(
            ranks=len(ranks) or None,
            workers=len(workers) or None,
            loader=next((file.loader for file in files if file.loader), None),
        ),
        capture=CaptureRecord(
            reads=has_reads,
            reads_by=files[0].profiler if has_reads else None,
            cost_reason=Reason.COST_OF_OTHER_PROFILER,
            imported_from=files[0].profiler,
            reads_reason=None if has_reads else "the profiler of the imported files does not record reads",
            gpu=GpuCapture(windows=windows) if windows else None,
            damaged=tuple(each for file in files for each in damage_facts(file.path.name, file.damage)),
        ),
        processes=processes,
    )


def _processes(spans: pl.DataFrame, files: Sequence[Imported]) -> tuple[ProcessRecord, ...]:
    workers = {key: worker for file in files for key, worker in file.worker_of.items()}
    found = spans.group_by("host", "pid", maintain_order=True).agg(
        pl.col("rank").drop_nulls().first(), pl.len(), pl.col("start_ns").min(), pl.col("end_ns").max()
    )
    return tuple(
        ProcessRecord(
            host=host, pid=pid, rank=rank, worker=workers.get((host, pid)), closed=True, spans=rows, first_ns=first, last_ns=last,
            role="worker" if (host, pid) in workers else "other" if rank is None else "rank",
        )
        for host, pid, rank, rows, first, last in found.rows()
    )  # fmt: skip
