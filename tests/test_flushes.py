"""Waits until what was written is on storage: each call is a span, and those that follow a
checkpoint are part of it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from preload import captured, needs_library, run_python
from timeline import timeline
from told import summarise

from ioprof.analysis.reads.flushes import of_checkpoints
from ioprof.format.run_record import PartCode
from ioprof.format.schema import FLUSH, KINDS, OPEN_TO_WRITE, WRITE
from ioprof.format.trace import Trace

FLUSH_ALL = """
import json, mmap, os, sys, time
took = []
def call(name, function, *arguments):
    began = time.perf_counter()
    function(*arguments)
    took.append((name, time.perf_counter() - began))
path = os.path.abspath("new")
with open(path, "w+b", buffering=0) as file:
    for number in range(8):
        file.write(os.urandom(1 << 20))
        call(f"fsync of {path}", os.fsync, file.fileno())
        file.write(os.urandom(1 << 20))
        call(f"fdatasync of {path}", os.fdatasync, file.fileno())
    with mmap.mmap(file.fileno(), 0) as mapped:
        mapped[: 1 << 20] = os.urandom(1 << 20)
        call("msync", mapped.flush)
    file.write(os.urandom(1 << 20))
    call("sync", os.sync)
folder = os.open(".", os.O_RDONLY)
call(f"fsync of {os.path.realpath('.')}", os.fsync, folder)
json.dump(took, open("took", "w"))
"""
SHORTEST_S = 1e-4


@pytest.mark.job
@needs_library
def test_calls_that_wait_for_storage_are_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by its name and its file, and as long as the program's stopwatch says; short ones are
    only counted."""
    monkeypatch.chdir(tmp_path)
    run_python(tmp_path / "spool", FLUSH_ALL)
    took: list[tuple[str, float]] = json.loads(Path("took").read_text())
    spans = captured(tmp_path / "spool").spans.filter(pl.col("kind") == "user").sort("start_ns")
    writes = spans.filter(pl.col("name").cast(pl.String) == WRITE)
    assert {1 << 20} == set(writes["bytes"])
    assert 17 == len(writes)
    opened = spans.filter(pl.col("name").cast(pl.String) == OPEN_TO_WRITE)
    assert 2 == len(opened)  # what has contents is emptied, and the last line's
    spans = spans.join(pl.concat([writes, opened]), on="start_ns", how="anti")

    found = [
        (name.removeprefix(FLUSH), (end_ns - start_ns) / 1e9)
        for name, start_ns, end_ns in spans.select(
            pl.col("name").cast(pl.String), "start_ns", "end_ns"
        ).iter_rows()
    ]
    assert all(name.startswith(FLUSH) for name in spans["name"].cast(pl.String))
    long = Counter(name for name, seconds in took if seconds >= 2 * SHORTEST_S)
    assert long <= Counter(name for name, _ in found) <= Counter(name for name, _ in took)
    found_s, took_s = (sum(seconds for _, seconds in calls) for calls in (found, took))
    assert 0.8 * took_s - len(took) * 2 * SHORTEST_S <= found_s <= took_s


def span(kind: str, name: str, start_ms: float, end_ms: float) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "start_ns": int(start_ms * 1e6),
        "end_ns": int(end_ms * 1e6),
    }


def test_what_opens_a_checkpoint_and_what_follows_it_belong_to_it() -> None:
    """One after the other, and what follows from the end of what was before; not what comes earlier
    or later, nor what is beside a `load`."""
    fsync = f"{FLUSH}fsync of /x/weights.new"
    rows = [
        span("user", fsync, 0, 5),
        span("user", OPEN_TO_WRITE, 90, 95),
        span("user", OPEN_TO_WRITE, 98, 98.8),
        span("user", OPEN_TO_WRITE, 99, 99.9),
        span("checkpoint", "save", 100, 200),
        span("user", OPEN_TO_WRITE, 110, 120),
        span("user", fsync, 201, 250),
        span("user", f"{FLUSH}fsync of /x", 270, 280),
        span("user", "own span", 281, 290),
        span("user", f"{FLUSH}fsync of /x/losses.csv", 400, 410),
        span("user", f"{FLUSH}fsync of /x/losses.csv", 411, 420),
        span("user", OPEN_TO_WRITE, 498, 499.9),
        span("checkpoint", "load", 500, 600),
        span("user", fsync, 601, 650),
        span("checkpoint", "save", 700, 800),
    ]
    schema = {
        "kind": pl.Enum(KINDS),
        "name": pl.Categorical,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
    }
    found = of_checkpoints(pl.DataFrame(rows, schema))
    assert [(98, 98.8), (99, 99.9), (200, 250), (250, 280)] == [
        (row[0] / 1e6, row[1] / 1e6) for row in found.select("start_ns", "end_ns").iter_rows()
    ]
    assert of_checkpoints(pl.DataFrame(rows[:1], schema)).is_empty()


def test_flushes_of_workers_are_named_and_have_an_advice() -> None:
    """As of a scratch file for each sample, whatever the names of the files."""
    trace = timeline("""
    step      0000000000 1111111111 2222222222 3333333333 4444444444 5555555555
    wait      00000000.. 11111111.. 22222222.. 33333333.. 44444444.. 55555555..
    fetch w0  00000000.. 11111111.. 22222222.. 33333333.. 44444444.. 55555555..
    user w0   .####..... .####..... .####..... .####..... .####..... .####.....
    compute   ........## ........## ........## ........## ........## ........##
    """)
    names = pl.Series([f"{FLUSH}fsync of /scratch/{number}" for number in range(len(trace.spans))])
    is_user = pl.col("kind") == "user"
    named = pl.when(is_user).then(names).otherwise(pl.col("name").cast(pl.String))
    spans = trace.spans.with_columns(name=named.cast(trace.spans.schema["name"]))
    summary = summarise(Trace(trace.run, spans))
    loader = next(entry for entry in summary.steps.causes if entry.cause == "loader")
    assert (PartCode.FLUSHES, 0.4) == (
        loader.details[0].code,
        pytest.approx(loader.details[0].share),
    )
    assert "flush_samples" in {each.code for each in summary.verdict.findings}
