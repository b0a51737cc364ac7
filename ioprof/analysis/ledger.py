"""What the whole job's time went to, from the start of its command to its end: start-up, steps, and
what lies between and after.

An instant of a rank's part of the job belongs to the first of `PHASES` that covers it:

    checkpoint      the training thread saved or loaded a checkpoint; but for loads before the first
                    wait or step
    validation      from the first batch of a validation to its end, with the forward passes between
    first batch     from the first wait for a batch to the end of it, starting the workers included
    fast-forward    from there to the end of the last of the batches that were received before the
                    first step and with which nothing was done, as a job does that goes on
    epoch start     later waits for workers to start, and to learn that a loader has no more batches
    steps           training steps, as far as they are none of the above
    process group   `init_process_group`, which waits for all ranks
    imports         the outermost imports of 10 ms or more
    loading weights before the first wait or step, the thread of the steps loaded a checkpoint, or
                    decoded or read a file of weights, page faults of mapped files included
    interpreter     from the start of the process to the start of recording in it
    restart         from the last step of an attempt to the first wait or step of the next one, in a
                    job whose ranks were started again
    start-up        the rank's process before its first wait or step: own code, models, indices of
                    datasets
    end             the rank's process after its last step
    launch          before the rank's process was started: launcher, shell
    exit            after the rank's process last recorded anything
    between         none of these: between two steps
"""

from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.charge.validation import validations
from ioprof.analysis.intervals import (
    EMPTY,
    Intervals,
    charge,
    clip,
    pack,
    total,
    union,
    union_all,
)
from ioprof.analysis.loader_use import discarded
from ioprof.analysis.loaders import batches
from ioprof.analysis.selection import first_and_last, intervals
from ioprof.format.run_record import CommandTimes, Ledger, LoadedWeights, Phase, ProcessRecord
from ioprof.format.span_parts import FIRST_NS, Where
from ioprof.format.trace import Trace

PHASES: Final = (
    "checkpoint",
    "validation",
    "first batch",
    "fast-forward",
    "epoch start",
    "steps",
    "restart",
    "process group",
    "imports",
    "loading weights",
    "interpreter",
    "start-up",
    "end",
    "launch",
    "exit",
    "between",
)
"""In the order of precedence."""
SHOWN: Final = (
    "launch",
    "interpreter",
    "imports",
    "process group",
    "loading weights",
    "start-up",
    "first batch",
    "fast-forward",
    "steps",
    "epoch start",
    "validation",
    "checkpoint",
    "between",
    "restart",
    "end",
    "exit",
)
"""In the order in which reports show them: about that of time."""

TO_FIRST_STEP: Final = SHOWN[: SHOWN.index("steps")]
"""Those before the first step, which a job that starts again has again."""
_KINDS: Final = ("wait", "step", "checkpoint", "validate", "phase")
_WEIGHTS: Final = r"\.(safetensors|pt|pth|ckpt|bin|distcp|gguf|h5|msgpack)$"
"""Ends of the names of files of weights. Samples are stored so too; those are not read before the
first wait for a batch."""
_LOADERS: Final = r"^(torch\.load|safetensors\..*)$"
"""Names of `decode` spans of functions that load such files."""


def phases(trace: Trace, loads: pl.DataFrame | None = None) -> pl.DataFrame:
    """One row per rank: `rank`, `wall_ns`, and `<phase>_ns` for each of `PHASES`, which sum to
    `wall_ns` exactly. `loads`: what `loads_of_weights` finds, if known.
    """
    spans = trace.rows(pl.col("rank").is_not_null(), kinds=_KINDS)
    loads = loads_of_weights(trace) if loads is None else loads
    skipped = discarded(trace, batches(trace))
    ranks = sorted(spans.filter(pl.col("kind").is_in(["wait", "step"]))["rank"].unique().to_list())
    known: dict[int | None, list[ProcessRecord]] = {}
    for process in trace.run.processes:
        if process.role == "rank":
            known.setdefault(process.rank, []).append(process)
    of_rank = spans.partition_by("rank", as_dict=True)  # once: a job may have thousands of ranks
    rows = [
        (
            rank,
            *_phases_of(
                trace.run.times,
                of_rank[(rank,)],
                known.get(rank, []),
                *(table.filter(pl.col("rank") == rank) for table in (loads, skipped)),
            ),
        )
        for rank in ranks
    ]
    columns = ("rank", "wall_ns", *(f"{phase}_ns" for phase in PHASES))
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.Int64), orient="row")


def ledger(trace: Trace) -> Ledger:
    """The mean over all ranks. Without ranks there is none."""
    loads = loads_of_weights(trace)
    table = phases(trace, loads)
    wall_ns = int(table["wall_ns"].sum())
    if not wall_ns:
        return Ledger()
    found = [(phase, int(table[f"{phase}_ns"].sum())) for phase in SHOWN]
    entries = tuple(
        Phase(phase, spent_ns / len(table) / 1e9, spent_ns / wall_ns)
        for phase, spent_ns in found
        if spent_ns
    )
    return Ledger(
        wall_ns / len(table) / 1e9,
        trace.run.times is not None,
        entries,
        _imports(trace),
        _weights(loads),
    )


def loads_of_weights(trace: Trace) -> pl.DataFrame:
    """What reads or decodes weights, before the first wait or step of each rank, in the thread of
    its steps: spans, with `path`.
    """
    first = trace.rows(pl.col("rank").is_not_null(), kinds=["wait", "step"])
    first = first.group_by("rank", "host", "pid", "tid").agg(until_ns=pl.col("start_ns").min())
    path = pl.col("path")
    is_weights = path.str.contains(_WEIGHTS) & ~path.str.contains("/(site|dist)-packages/")
    paths = trace.files.filter(is_weights).select("file", "path")
    name = pl.col("name").cast(pl.String)
    loads = name.str.contains(_LOADERS) & (pl.col("kind") == "decode")
    reads = pl.col("kind").is_in(["read", "fault"]) & pl.col("file").is_in(paths["file"].implode())
    last_ns = int(first["until_ns"].max() or 0)  # type: ignore[arg-type]  # of a column of int64
    found = trace.found(
        lambda part: part.filter(
            pl.col("rank").is_not_null(),
            pl.col("start_ns") < last_ns,
            (loads | reads).fill_null(value=False),
        ),
        Where(frozenset(first["rank"].to_list()), FIRST_NS, last_ns),
    )
    thread = ["rank", "host", "pid", "tid"]
    found = found.join(first, on=thread, nulls_equal=True).filter(
        pl.col("start_ns") < pl.col("until_ns")
    )
    return found.join(paths, on="file", how="left")


def _weights(loads: pl.DataFrame) -> LoadedWeights | None:
    """What was read of files of weights, by all ranks; None: nothing, as far as is known."""
    reads = loads.filter(pl.col("path").is_not_null())
    if reads.is_empty():
        return None
    by_file = reads.group_by("path").agg(pl.col("bytes").sum()).sort("bytes", "path")
    mapped = reads.filter(pl.col("kind") == "fault")
    took_ns = sum(
        total(intervals(part)) for part in reads.partition_by("rank", "host", "pid", "tid")
    )
    ranks = reads["rank"].n_unique()
    return LoadedWeights(
        file=str(by_file["path"][-1]),
        files=len(by_file),
        bytes=int(reads["bytes"].fill_null(0).sum()),
        mapped_bytes=int(mapped["bytes"].fill_null(0).sum()),
        reading_s=took_ns / 1e9 / ranks,
        ranks=ranks,
    )


def _phases_of(
    times: CommandTimes | None,
    spans: pl.DataFrame,
    known: list[ProcessRecord],
    loads: pl.DataFrame,
    skipped: pl.DataFrame,
) -> tuple[int, ...]:
    """The wall time of a rank's part of the job, and its phases in the order of `PHASES`, in ns."""
    first_ns, last_ns = _lifetime(known, spans)
    begin_ns = times.start_ns if times and times.start_ns is not None else first_ns
    end_ns = max(begin_ns, times.end_ns) if times and times.end_ns is not None else last_ns
    attempts = _attempts(known)
    own = _of_training_threads(spans, attempts)
    steps = intervals(own.filter(pl.col("kind") == "step"))
    waits = own.filter(pl.col("kind") == "wait").sort("start_ns", "end_ns")
    first_batch, epochs = (
        _first_batch(waits),
        waits.filter(pl.col("name").cast(pl.String).is_in(["start", "end"]).fill_null(False)),
    )
    active = union(np.concatenate([steps, intervals(waits)]))
    before, after = (int(active[0, 0]), int(active[-1, 1])) if len(active) else (last_ns, last_ns)
    if len(first_batch) and len(steps):
        before = int(min(first_batch[-1, 0], steps[:, 0].min()))
    named = own.filter(pl.col("kind") == "phase").with_columns(pl.col("name").cast(pl.String))
    checkpoints = own.filter(pl.col("kind") == "checkpoint")
    loaded = checkpoints.filter(pl.col("name").cast(pl.String).str.starts_with("load"))
    at_start = clip(np.concatenate([intervals(loaded), intervals(loads)]), first_ns, before)
    first_step_ns = int(steps[:, 1].min()) if len(steps) else last_ns
    skipped = skipped.filter(pl.col("end_ns") < first_step_ns)
    is_first_load = (pl.col("name").cast(pl.String).str.starts_with("load")) & (
        pl.col("start_ns") < before
    )
    classes: dict[str, Intervals] = {
        "checkpoint": intervals(checkpoints.filter(~is_first_load.fill_null(value=False))),
        "validation": validations(own),
        "first batch": first_batch,
        "fast-forward": _from_to(skipped),
        "epoch start": intervals(epochs),
        "steps": steps,
        "restart": _restarts(attempts, own),
        "process group": intervals(named.filter(pl.col("name") == "process group")),
        "imports": intervals(named.filter(pl.col("name").str.starts_with("import "))),
        "loading weights": union(at_start),
        "interpreter": intervals(named.filter(pl.col("name") == "interpreter")),
        "start-up": _single(first_ns, before),
        "end": _single(after, last_ns),
        "launch": _single(begin_ns, first_ns),
        "exit": _single(last_ns, end_ns),
    }
    spent = charge(_single(begin_ns, end_ns), [classes[phase] for phase in PHASES[:-1]])
    return end_ns - begin_ns, *(int(each) for each in spent[0])


def _lifetime(known: list[ProcessRecord], spans: pl.DataFrame) -> tuple[int, int]:
    """From the first to the last thing that a rank's process recorded."""
    times = [
        time_ns
        for process in known
        for time_ns in (process.first_ns, process.last_ns)
        if time_ns is not None
    ]
    times += first_and_last(spans)
    return min(times), max(times)


def _attempts(known: list[ProcessRecord]) -> dict[int, set[int]]:
    """The processes of each attempt of a rank, in order; one, if it was not started again."""
    found: dict[int, set[int]] = {}
    for process in known:
        if process.pid is not None:
            found.setdefault(process.attempt, set()).add(process.pid)
    return dict(sorted(found.items()))


def _of_training_threads(spans: pl.DataFrame, attempts: dict[int, set[int]]) -> pl.DataFrame:
    """The spans of the thread that trains, of each attempt of a rank."""
    if len(attempts) < 2:
        return _of_training_thread(spans)
    parts = (spans.filter(pl.col("pid").is_in(list(pids))) for pids in attempts.values())
    return pl.concat([_of_training_thread(part) for part in parts])


def _restarts(attempts: dict[int, set[int]], own: pl.DataFrame) -> Intervals:
    """From the last wait or step of each attempt but the last to the first one of the next."""
    if len(attempts) < 2:
        return EMPTY
    active = own.filter(pl.col("kind").is_in(["wait", "step"]))
    bounds = []
    for pids in attempts.values():
        times = active.filter(pl.col("pid").is_in(list(pids)))
        if len(times):
            bounds.append(first_and_last(times))
    gaps = [(before[1], after[0]) for before, after in pairwise(bounds)]
    return union_all([_single(*gap) for gap in gaps]) if gaps else EMPTY


def _of_training_thread(spans: pl.DataFrame) -> pl.DataFrame:
    """The spans of the thread that makes most steps, or else most waits, of the rank."""
    for kind in ("step", "wait"):
        threads = (
            spans.filter(pl.col("kind") == kind)
            .group_by("host", "pid", "tid")
            .len()
            .sort("len", "tid", descending=True)
        )
        if len(threads):
            return spans.join(
                threads.head(1), on=["host", "pid", "tid"], how="semi", nulls_equal=True
            )
    return spans


def _first_batch(waits: pl.DataFrame) -> Intervals:
    """The waits up to the first one that ended with a batch."""
    with_batch = waits.filter(pl.col("batch").is_not_null())
    if not len(with_batch):
        return EMPTY
    return union(intervals(waits.filter(pl.col("end_ns") <= int(with_batch["end_ns"][0]))))


def _imports(trace: Trace) -> tuple[Phase, ...]:
    """The longest imports of ranks: means over ranks, at most three."""
    name = pl.col("name").cast(pl.String)
    spans = trace.rows(
        name.str.starts_with("import "), pl.col("rank").is_not_null(), kinds=["phase"]
    )
    took = spans.group_by(module=name.str.strip_prefix("import ")).agg(
        ns=(pl.col("end_ns") - pl.col("start_ns")).sum()
    )
    longest = took.sort("ns", "module", descending=True).head(3)
    return tuple(
        Phase(module, took_ns / len(trace.ranks) / 1e9, None) for module, took_ns in longest.rows()
    )


def _from_to(spans: pl.DataFrame) -> Intervals:
    """From the start of the first of them to the end of the last."""
    if spans.is_empty():
        return EMPTY
    times = intervals(spans)
    return _single(int(times[:, 0].min()), int(times[:, 1].max()))


def _single(start_ns: int, end_ns: int) -> Intervals:
    return pack(np.array([start_ns]), np.array([max(start_ns, end_ns)]))
