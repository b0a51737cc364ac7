"""What the files of other profilers hold, as a run: spans, files and processes on one clock."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof import clock
from ioprof.errors import CommandError
from ioprof.format.run_record import (
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
    StepsBy,
)
from ioprof.format.schema import FILE_COLUMNS, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.ingest.untrusted_values import LATEST_NS, damage_facts, masked_series

Numbers = npt.NDArray[np.int64]
Value = TypeVar("Value")

MOST_FILES: Final = 10_000
"""Files of one import."""
MOST_SPANS: Final = 200_000_000


@dataclass
class Imported:
    """The contents of one file. Times are nanoseconds of any one clock that all files of an import
    share.
    """

    path: Path
    spans: pl.DataFrame
    """Columns of `Trace.spans`, any of which may be missing, and `path` instead of `file`. Texts
    may be strings; those that are categories already need no conversion, which would take a quarter
    of the import of a log of Darshan."""
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
    workers: int | None = None
    """Of that loader, if it is known."""
    device: str | None = None
    """The accelerator; null: it did nothing, or its profiler does not record it."""
    steps_by: StepsBy | None = None
    """By what its steps were found; null: they were marked."""
    period_kernels: int | None = None


def to_trace(files: Sequence[Imported], name: str, command: str, clock_method: str) -> Trace:
    """One run of all files. `CommandError` where none of them has a span."""
    rows = sum(len(file.spans) for file in files)
    if not rows:
        first = files[0]
        reasons = "; ".join(what for what, count in first.damage.items() if count)
        raise CommandError(f"{first.path}: nothing to import{f' ({reasons})' if reasons else ''}")
    if rows > MOST_SPANS:
        raise CommandError(
            f"{files[0].path}: {rows:,} events, more than {MOST_SPANS:,}; import a part of the"
            " files"
        )
    tables = [_complete(file.spans) for file in files]
    table = tables[0] if len(tables) == 1 else pl.concat(tables, rechunk=True)
    kept = _in_time(table)
    if kept.is_empty():
        raise CommandError(f"{files[0].path}: no event has possible times")
    if len(kept) < len(table):
        files[0].damage["an event with impossible times was left out"] += len(table) - len(kept)
    zero_ns = int(kept["start_ns"].min())  # type: ignore[arg-type]
    paths, numbers = _numbered(kept["path"])
    changed = {
        "file": numbers,
        "name": _masked_names(kept["name"]),
        **{name: kept[name] - zero_ns for name in ("start_ns", "end_ns")},
    }
    spans = pl.DataFrame({name: changed.get(name, kept[name]) for name in SPAN_COLUMNS})
    facts = {name: _nulls(dtype, len(paths)) for name, dtype in table_schema(FILE_COLUMNS).items()}
    known = pl.DataFrame(
        {**facts, "file": pl.Series(range(len(paths)), dtype=pl.Int64), "path": paths}
    )
    return Trace(_run(files, spans, zero_ns, name, command, clock_method), spans, known)


def _masked_names(names: pl.Series) -> pl.Series:
    """The names of spans, with secrets masked. Few are different, so the rows are only gone through
    where one changes.
    """
    known = names.unique().drop_nulls().cast(pl.String)
    masked = masked_series(known)
    return (
        names
        if masked.equals(known)
        else names.cast(pl.String).replace(known, masked).cast(names.dtype)
    )


def _nulls(dtype: pl.DataType, rows: int) -> pl.Series:
    return pl.Series([None], dtype=dtype).new_from_index(0, rows)


def _complete(spans: pl.DataFrame) -> pl.DataFrame:
    """With all columns. Column by column: a query of polars takes 0.1 ms even of few rows, and an
    import had 23 of them.
    """
    columns = {}
    for name, dtype in (table_schema(SPAN_COLUMNS) | {"path": pl.Categorical()}).items():
        column = spans[name] if name in spans.columns else _nulls(dtype, len(spans))
        columns[name] = (
            column
            if column.dtype == dtype
            else column.cast(dtype, strict=isinstance(dtype, pl.Enum))
        )
    return pl.DataFrame(columns)


def _in_time(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans with possible times."""
    starts, ends = spans["start_ns"], spans["end_ns"]
    if len(spans) and not starts.null_count() and not ends.null_count():
        first, last = starts.to_numpy(), ends.to_numpy()
        if first.min() >= 0 and last.max() < LATEST_NS and (first <= last).all():
            return spans
    return spans.filter(
        starts.is_between(0, LATEST_NS - 1) & ends.is_between(starts, LATEST_NS - 1)
    )


def _run_starts(columns: Sequence[pl.Series]) -> Numbers:
    """The first rows of all runs of rows with the same values."""
    is_first = np.ones(len(columns[0]), bool)
    is_first[1:] = False
    for column in columns:
        if column.null_count() == len(column):
            continue
        codes = column.to_physical()
        if codes.null_count():
            is_null = codes.is_null().to_numpy()
            is_first[1:] |= is_null[1:] != is_null[:-1]
            codes = codes.fill_null(0)
        values = codes.to_numpy()
        is_first[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(is_first)


def _numbered(paths: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The different paths in the order of their first use, and the number of each row's."""
    codes = paths.to_physical()
    highest = codes.max()
    if highest is None:
        return pl.Series([], dtype=pl.String), _nulls(pl.Int64(), len(paths))
    no_path = int(highest) + 1  # type: ignore[arg-type]
    values = (codes.fill_null(no_path) if codes.null_count() else codes).to_numpy()
    starts = _run_starts([paths])
    run_of = np.full(no_path + 1, len(starts))
    # of a code that is there twice the last assignment counts
    run_of[values[starts][::-1]] = np.arange(len(starts))[::-1]
    used = np.flatnonzero(run_of[:no_path] < len(starts))
    used = used[np.argsort(run_of[used])]
    number_of = np.zeros(no_path + 1, np.int64)
    number_of[used] = np.arange(len(used))
    numbers = pl.Series(number_of[values])
    different = masked_series(paths[starts[run_of[used]]].cast(pl.String))
    return different, numbers.set(paths.is_null(), None) if paths.null_count() else numbers


def _run(
    files: Sequence[Imported],
    spans: pl.DataFrame,
    zero_ns: int,
    name: str,
    command: str,
    clock_method: str,
) -> RunRecord:
    runs = _process_runs(spans)
    processes = _processes(runs, files)
    hosts = list(dict.fromkeys(process.host for process in processes if process.host))
    ranks = runs["rank"].drop_nulls().unique()
    # Nothing is known of how far the clocks of several hosts are apart.
    ties = tuple(ClockTie(clock=host, to=hosts[0], method=clock_method) for host in hosts[1:])
    windows = tuple(
        window.replace(
            start_ns=(window.start_ns or 0) - zero_ns,
            end_ns=(window.end_ns or 0) - zero_ns,
            launched_ns=None if window.launched_ns is None else window.launched_ns - zero_ns,
        )
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
            workers=len(workers) or _first(file.workers for file in files),
            loader=_first(file.loader for file in files),
            device=_first(file.device for file in files),
        ),
        capture=CaptureRecord(
            reads=has_reads,
            reads_by=files[0].profiler if has_reads else None,
            cost_reason=Reason.COST_OF_OTHER_PROFILER,
            imported_from=files[0].profiler,
            steps_by=_first(file.steps_by for file in files),
            period_kernels=_first(file.period_kernels for file in files),
            reads_reason=(
                None if has_reads else "the profiler of the imported files does not record reads"
            ),
            gpu=GpuCapture(windows=windows) if windows else None,
            damaged=tuple(
                each for file in files for each in damage_facts(file.path.name, file.damage)
            ),
        ),
        processes=processes,
    )


def _first(values: Iterable[Value | None]) -> Value | None:
    return next((value for value in values if value is not None), None)


def _process_runs(spans: pl.DataFrame) -> pl.DataFrame:
    """Runs of spans of one process, which are fewer than the spans: `rows`, and the extent of their
    times.
    """
    starts = _run_starts([spans[name] for name in ("host", "pid", "rank")])
    of_runs = pl.DataFrame([spans[name] for name in ("host", "pid", "rank")])[starts]
    rows = pl.Series("rows", np.diff(starts, append=len(spans)))
    first_ns = pl.Series("first_ns", np.minimum.reduceat(spans["start_ns"].to_numpy(), starts))
    last_ns = pl.Series("last_ns", np.maximum.reduceat(spans["end_ns"].to_numpy(), starts))
    return pl.DataFrame([*of_runs.get_columns(), rows, first_ns, last_ns])


def _processes(runs: pl.DataFrame, files: Sequence[Imported]) -> tuple[ProcessRecord, ...]:
    workers = {key: worker for file in files for key, worker in file.worker_of.items()}
    found = runs.group_by("host", "pid", maintain_order=True).agg(
        pl.col("rank").drop_nulls().first(),
        pl.col("rows").sum(),
        pl.col("first_ns").min(),
        pl.col("last_ns").max(),
    )
    return tuple(
        ProcessRecord(
            host=host,
            pid=pid,
            rank=rank,
            worker=workers.get((host, pid)),
            closed=True,
            spans=rows,
            first_ns=first,
            last_ns=last,
            role="worker" if (host, pid) in workers else "other" if rank is None else "rank",
        )
        for host, pid, rank, rows, first, last in found.rows()
    )
