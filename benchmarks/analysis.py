"""Time and memory from spans on disk to the summary, for 1 M and 10 M spans. Target: 10 M in 10 s
and 2 GB on two cores.

The job is synthetic but has the structure of a real one: 8 ranks with 4 workers each, batches of 32
samples (open, read, decode, transform, and per batch fetch, collate, deliver, wait, h2d, compute,
five exchanges), reads of three sources, waits on a third of the steps. Each size runs in its own
process, which loads the run folder and computes the summary; `load` and `summary` are the median of
`--repeats`, `memory` is the maximum peak.

    python benchmarks/analysis.py
    python benchmarks/analysis.py --spans 10_000_000 --repeats 5
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from ioprof.analysis.summary import summarise
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import SOURCES, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema

RANKS: Final = 8
WORKERS: Final = 4
SAMPLES: Final = 32
BUCKETS: Final = 5
STEP_NS: Final = 40_000_000
FETCH_KINDS: Final = ("open", "read", "decode", "transform") * SAMPLES + ("collate", "fetch")
RANK_KINDS: Final = ("step", "wait", "deliver", "h2d", "compute") + ("comm",) * BUCKETS
SPANS_PER_STEP: Final = RANKS * (len(FETCH_KINDS) + len(RANK_KINDS))


def make_trace(num_spans: int) -> Trace:
    """A trace with about that many spans."""
    steps = max(4, num_spans // SPANS_PER_STEP)
    random = np.random.default_rng(0)
    tables = [
        table
        for rank in range(RANKS)
        for table in (_workers(rank, steps, random), _main(rank, steps, random))
    ]
    run = {
        "status": "complete",
        "config": {
            "ranks": RANKS,
            "workers": WORKERS,
            "batch_size": SAMPLES,
            "device": "emulated:a100",
            "loader": "files",
        },
        "device": {"basis": "emulated", "samples_per_s": 919.5},
        "hosts": [{"name": "node1", "cpus": RANKS * WORKERS}],
    }
    return Trace(RunRecord.of(run), pl.concat(tables))


def _workers(rank: int, steps: int, random: np.random.Generator) -> pl.DataFrame:
    """Each worker produces every fourth batch in about the time of four steps; some take longer, so
    that the rank waits.
    """
    leaves = len(FETCH_KINDS) - 1
    share = random.exponential(1.0, (steps, leaves))
    length = WORKERS * STEP_NS * random.choice([0.8, 0.95, 1.2], (steps, 1))
    took = (share / share.sum(axis=1, keepdims=True) * length).astype(np.int64)
    ends = np.cumsum(took, axis=1) + (np.arange(steps)[:, None] * STEP_NS)
    starts = ends - took
    starts, ends = np.column_stack((starts, starts[:, 0])), np.column_stack((ends, ends[:, -1]))
    batch = np.repeat(np.arange(steps), len(FETCH_KINDS))
    worker = 100 * (rank + 1) + 1 + batch % WORKERS
    reads = np.tile([kind == "read" for kind in FETCH_KINDS], steps)
    return _table(
        np.tile(FETCH_KINDS, steps), starts, ends, rank, worker, worker,
        batch=batch, bytes=np.where(reads, 110_000, -1), file=np.where(reads, batch % 1000, -1),
        source=np.where(reads, random.choice(SOURCES, len(reads)), ""),
    )  # fmt: skip


def _main(rank: int, steps: int, random: np.random.Generator) -> pl.DataFrame:
    """A step waits on every third batch, then copies, computes and exchanges."""
    begin = (np.arange(steps) + WORKERS) * STEP_NS
    waited = np.where(random.integers(0, 3, steps) == 0, STEP_NS // 4, 20_000)
    late = random.integers(0, STEP_NS // 20, steps)
    exchanged = waited + STEP_NS // 4
    intervals = [
        (0 * waited, STEP_NS + 0 * waited),  # in the order of RANK_KINDS
        (0 * waited, waited),
        (waited - 20_000, waited),
        (waited, waited + STEP_NS // 20),
        (waited + STEP_NS // 20, waited + STEP_NS // 2),
        *(
            (exchanged + late + STEP_NS // 20 * bucket, exchanged + STEP_NS // 20 * (bucket + 2))
            for bucket in range(BUCKETS)
        ),
    ]
    starts, ends = (
        np.stack([begin + pair[place] for pair in intervals], axis=1) for place in (0, 1)
    )
    process = np.full(starts.size, 100 * (rank + 1))
    streams = np.tile([-1, -1, -1, 1, 0] + [2] * BUCKETS, steps)
    names = np.tile([""] * 5 + [f"gradients {bucket}" for bucket in range(BUCKETS)], steps)
    step = np.repeat(np.arange(steps), len(RANK_KINDS))
    thread = process + 10_000 * (streams + 1)
    return _table(
        np.tile(RANK_KINDS, steps),
        starts,
        ends,
        rank,
        process,
        thread,
        batch=step,
        step=step,
        stream=streams,
        name=names,
    )


def _table(
    kinds: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    rank: int,
    process: np.ndarray,
    thread: np.ndarray,
    **more: np.ndarray,
) -> pl.DataFrame:
    columns = {
        "start_ns": starts.ravel(),
        "end_ns": ends.ravel(),
        "kind": kinds,
        "pid": process,
        "tid": thread,
        "rank": np.full(len(kinds), rank),
        "host": np.full(len(kinds), "node1"),
        **more,
    }
    table = pl.DataFrame(
        {
            name: pl.Series(columns[name]) if name in columns else [None] * len(kinds)
            for name in SPAN_COLUMNS
        }
    )
    numbers, words = pl.col("stream", "bytes", "file"), pl.col("source", "name")
    absent = [pl.when(numbers != -1).then(numbers), pl.when(words != "").then(words)]
    return table.with_columns(absent).cast(table_schema(SPAN_COLUMNS))


def measure(folder: Path) -> dict[str, float]:
    """Times to load and summarise in this process, and its peak memory."""
    begin = time.perf_counter()
    trace = Trace.load(folder)
    loaded = time.perf_counter()
    summary = summarise(trace)
    done = time.perf_counter()
    assert sum(entry.share or 0.0 for entry in summary.steps.causes) > 0.999
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "spans": trace.num_spans,
        "load_s": loaded - begin,
        "summary_s": done - loaded,
        "memory_bytes": peak_bytes,
    }


def _repeat(num_spans: int, repeats: int) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, __file__, "--make", folder, "--spans", str(num_spans)], check=True
        )
        command = [sys.executable, __file__, "--measure", folder]
        return [
            json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            for _ in range(repeats)
        ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        make_trace(arguments.spans[0]).save(arguments.make)
    elif arguments.measure:
        print(json.dumps(measure(arguments.measure)))
    else:
        _print_table(arguments.spans, arguments.repeats)


def _print_table(sizes: list[int], repeats: int) -> None:
    print(
        f"spans on disk to summary ({platform.machine()}, {os.cpu_count()} cores, polars"
        f" {pl.__version__}, {repeats} repeats)"
    )
    print(f"{'spans':>12}{'load':>9}{'summary':>9}{'worst sum':>11}{'memory':>10}   bar")
    for size in sizes:
        found = _repeat(size, repeats)
        load, made = (
            statistics.median(run[key] for run in found) for key in ("load_s", "summary_s")
        )
        worst, memory = (
            max(run["load_s"] + run["summary_s"] for run in found),
            max(run["memory_bytes"] for run in found),
        )
        met = "met" if load + made <= 10 and memory <= 2e9 else "MISSED"
        print(
            f"{found[0]['spans']:>12,}{load:>7.2f} s{made:>7.2f} s{worst:>9.2f}"
            f" s{memory / 1e9:>7.2f} GB   10 s, 2 GB: {met}",
            flush=True,
        )


if __name__ == "__main__":
    main()
