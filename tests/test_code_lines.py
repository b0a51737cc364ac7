"""Which lines of code the analysis names by stack samples, in run folders, exports and whole
jobs."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import polars as pl
import pytest
from jobs import report_of
from preload import needs_library
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import EXAMPLES, PROGRAMS
from timeline import block, timeline, with_blocks
from told import summarise

from ioprof.analysis.answer.evidence import Evidence
from ioprof.analysis.cpu.callers import Callers
from ioprof.analysis.cpu.code_lines import functions
from ioprof.analysis.cpu.frames import place_of
from ioprof.analysis.cpu.stacks import unexplained
from ioprof.analysis.reads.demand import Fetched
from ioprof.analysis.totals import code_of_causes, totals
from ioprof.errors import RunError
from ioprof.format.run_record import CodeShare, Doubt, RunRecord
from ioprof.format.schema import STACK_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.ingest.merging import merge_parts
from ioprof.interchange.speedscope import document, write_speedscope
from ioprof.report.run import Run
from ioprof.stacks.library import is_built

needs_stacks = pytest.mark.skipif(
    not is_built(), reason="the library that reads stacks is not built: no C compiler"
)


def with_stacks(
    trace: Trace,
    samples: Sequence[tuple[int, int, int, str]],
    threads: Sequence[tuple[int, int, str]] = (),
) -> Trace:
    """The trace with samples of (tick, rank, pid, stack), and with those of (tick, tid, stack) of
    other threads of rank 0."""
    host = trace.spans["host"][0]
    rows = [
        (10 * tick + 5, host, rank, pid, pid, "rank", stack) for tick, rank, pid, stack in samples
    ]
    rows += [(10 * tick + 5, host, 0, 100, tid, "rank", stack) for tick, tid, stack in threads]
    table = pl.DataFrame(rows, schema=table_schema(STACK_COLUMNS), orient="row")
    return Trace(trace.run, trace.spans, trace.files, trace.counters, table)


def lines_of(trace: Trace) -> tuple[CodeShare, ...]:
    """The lines of code of a run."""
    found = totals(trace)
    return unexplained(trace, found.charged, found.samples)


def drawn() -> Trace:
    """One step: it waits for a worker that reads, transforms and does something else, computes, and
    does something else itself."""
    trace = timeline("""
    step            00000000000000
    wait            00000000......
    fetch w0        0000000.......
    read w0         ##............
    transform w0    ....##........
    compute main    ........000...
    """)
    return with_stacks(
        trace,
        [
            (1, 0, 101, "/job/data.py:1:read"),
            (2, 0, 101, "/job/data.py:2:Data.__getitem__"),
            (3, 0, 101, "/job/data.py:2:Data.__getitem__"),
            (4, 0, 101, "/job/data.py:4:flip\n/usr/lib/python3.12/random.py:5:random"),
            (6, 0, 101, "/job/data.py:6:Data.__getitem__"),
            (7, 0, 101, "/job/data.py:7:late"),
            (3, 0, 100, "/job/train.py:3:main"),
            (9, 0, 100, "/job/train.py:9:main"),
            (11, 0, 100, "/job/train.py:11:main\n/env/lib/python3.12/site-packages/lib/f.py:2:f1"),
            (12, 0, 100, "/job/train.py:11:main\n/env/lib/python3.12/site-packages/lib/f.py:2:f1"),
            (13, 0, 100, "/job/train.py:13:main"),
        ],
    )


def test_samples_take_no_memory_for_their_texts() -> None:
    """What is kept of each sample while a run is analysed does not grow with the text of its stack,
    which is some 2 KB."""
    long = "\n".join(f"/job/{'deep/' * 20}{number}.py:{number}:call" for number in range(20))
    samples = [
        (tick, 0, pid, f"{long}\n{end}")
        for tick, pid, end in ((11, 100, "/job/train.py:9:main"), (3, 101, "/job/data.py:2:get"))
    ]
    found = totals(with_stacks(drawn(), samples * 500))
    assert (1000, 500) == (len(found.samples), len(found.unnamed_samples))
    assert found.samples.estimated_size() + found.unnamed_samples.estimated_size() < 50 * 1500


def test_samples_count_where_a_step_waited_for_their_thread() -> None:
    """Of the worker in `loader` and `transform`, of the rank in `host`; not what spans explain, nor
    what nobody waited for."""
    trace = drawn()
    found = {
        (share.cause, share.file, share.line): (share.samples, round(share.seconds * 1e8))
        for share in lines_of(trace)
    }
    assert {
        ("host", "/job/train.py", 11): (2, 2),
        ("host", "/job/train.py", 13): (1, 1),
        ("loader", "/job/data.py", 2): (2, 2),
        ("loader", "/job/data.py", 6): (1, 1),
        ("transform", "/job/data.py", 4): (1, 2),
    } == found


def test_of_each_line_it_is_known_how_much_of_it_is_waiting() -> None:
    """By the blocks of its own thread; of a host without blocks it is not known."""
    trace, elsewhere = drawn(), {**block(3, 4, 101, None), "host": "node2"}
    blocks = [block(3, 4, 101, None), block(6, 7, 102, 101), block(11, 14, 100, None)]
    waits = {line.line: line.waits for line in lines_of(with_blocks(trace, *blocks))}
    assert {2: 0.5, 6: 0.0, 4: 0.0, 11: 1.0, 13: 1.0} == waits
    for unknown in (trace, with_blocks(trace, elsewhere)):
        assert {None} == {line.waits for line in lines_of(unknown)}
    two = lines_of(with_blocks(trace, *blocks))[:2]
    both = functions([line.replace(function="main", file="train.py") for line in two])
    assert [(3, 1.0)] == [(line.samples, line.waits) for line in both]


@pytest.mark.parametrize(
    ("shares", "named"),
    [((3, 3, 3), ("encode", 0, 9)), ((6, 2, 1), ("normalize", 1, 6)), ((1, 1, 1), None)],
    ids=["of several functions", "mostly of one", "too few samples"],
)
def test_a_function_counts_with_what_it_calls(
    shares: tuple[int, int, int], named: tuple[str, int, int] | None
) -> None:
    """Below the loop, which calls the model too, where none of its functions has most of it."""
    count = sum(shares)
    trace = timeline(
        f"step {'0' * 2 * count}\ncompute main {'0' * count}{'.' * count}",
        config={"device": "cpu"},
    )
    loop = "/job/train.py:9:<module>\n/job/train.py:7:train"
    functions_of = [
        f"/job/text.py:{number}:{name}"
        for number, (name, part) in enumerate(
            zip(("normalize", "split", "lookup"), shares, strict=True), 1
        )
        for _ in range(part)
    ]
    samples = [(tick, 0, 100, f"{loop}\n/job/train.py:8:forward") for tick in range(count)]
    samples += [
        (count + tick, 0, 100, f"{loop}\n/job/text.py:20:batch\n/job/text.py:9:encode\n{function}")
        for tick, function in enumerate(functions_of)
    ]
    found = Run.of(with_stacks(trace, samples)).summary
    assert {"encode (/job/text.py)"} == {
        each.group for each in found.unexplained if each.cause == "host"
    }
    line = Evidence(
        found.run,
        found.steps,
        found.storage,
        found.demand,
        {},
        Fetched(),
        {},
        {},
        code=found.unexplained,
    ).largest_line("host")
    assert named == (line and (line.function, line.line, line.samples))


def test_a_function_that_a_worker_runs_is_no_part_of_it() -> None:
    """What a dataset's function calls may cost less; that function is all of a worker's work."""
    ended = [f"/job/data.py:{number}:{name}" for number, name in ((1, "seek"), (2, "parse"))]
    stacks = pl.DataFrame(
        {"cause": ["loader"] * 2, "stack": [f"/job/data.py:9:Data.__getitem__\n{x}" for x in ended]}
    )
    callers = Callers(stacks)
    assert ["seek (/job/data.py)", "parse (/job/data.py)", None] == [
        callers.group_of("loader", stack)
        for stack in (*stacks["stack"], "/job/data.py:9:Data.__getitem__")
    ]


def test_samples_of_decoding_collating_and_sampling_have_lines() -> None:
    """Of the thread that does it: a worker, or the rank's own for its sampler and for what it
    decodes outside of a wait."""
    trace = timeline("""
    step            0000000000000000
    wait            00000000........
    sampler main    ##..............
    fetch w0        0000000.........
    decode w0       ##..##..........
    collate w0      ......#.........
    decode main     ..........##....
    compute main    ........00......
    """)
    samples = [
        (0, 0, 100, "/job/train.py:1:main\n/job/train.py:2:Sampler.__iter__"),
        (0, 0, 101, "/job/data.py:1:Data.__getitem__"),
        (4, 0, 101, "/job/data.py:4:Data.__getitem__"),
        (4, 0, 100, "/job/train.py:4:main"),
        (6, 0, 101, "/job/data.py:6:collate"),
        (10, 0, 100, "/job/train.py:10:main"),
    ]
    trace = with_stacks(trace, samples)
    found = {(share.cause, share.line) for share in lines_of(trace)}
    assert {("loader", 2), ("decode", 4), ("collate", 6), ("decode", 10)} == found


def test_a_checkpoint_has_the_line_that_saves() -> None:
    """The rank's own code, and not the library that it calls; the advice names it too."""
    trace = timeline(
        "step 0000000000\ncheckpoint main name=save ..######..\ncompute main 00........",
        config={"device": "cpu"},
    )
    saved = (
        "/job/train.py:66:save\n/env/lib/python3.12/site-packages/torch/serialization.py:1002:save"
    )
    found = Run.of(with_stacks(trace, [(tick, 0, 100, saved) for tick in range(2, 8)])).summary
    assert [("checkpoint", 66, 6, 6)] == [
        (line.cause, line.line, line.samples, round(line.seconds * 1e8, 6))
        for line in found.unexplained
    ]
    assert "60.0% on save (/job/train.py:66 in save)" in found.verdict.text
    assert (
        "60.0% of the steps' time at /job/train.py:66 in save" in found.verdict.findings[0].action
    )


def awaited_threads(threads: Sequence[tuple[int, int, str]]) -> Trace:
    """The loop waits for what threads 0 and 1 read and decode, without a fetch, and decodes
    something itself."""
    trace = timeline("""
    step            00000000000000000000
    wait            00000000000.........
    decode t0       ####..##............
    decode t1       ..#####.............
    read t1         .......####.........
    decode main     ...........##.......
    compute main    .............0000000
    """)
    main = [
        (tick, 0, 100, "/job/train.py:86:next\n/usr/lib/python3.12/threading.py:327:Condition.wait")
        for tick in range(11)
    ]
    return with_stacks(
        trace,
        [*main, (11, 0, 100, "/job/train.py:90:main"), (12, 0, 100, "/job/train.py:90:main")],
        threads,
    )


def test_time_of_threads_has_the_lines_of_these_threads() -> None:
    """While they do that work, and not at other times; the rank's own thread has the line of what
    it does itself."""
    trace = awaited_threads([
        *((tick, 50_100, f"/job/data.py:{36 if tick < 8 else 75}:read") for tick in range(11)),
        *((tick, 50_101, f"/job/data.py:{42 if tick < 7 else 60}:read") for tick in range(11)),
        *((tick, 50_102, "/job/metrics.py:1:count") for tick in range(11)),
    ])  # fmt: skip
    found = {
        (line.cause, line.file, line.line): (line.samples, round(line.seconds * 1e8, 6))
        for line in lines_of(trace)
    }
    # Of the 7 ticks of decoding by threads, at which none of them reads, each has 5 samples; 2
    # ticks are of the loop itself.
    assert {
        ("decode", "/job/data.py", 36): (5, 3.5),
        ("decode", "/job/data.py", 42): (5, 3.5),
        ("decode", "/job/train.py", 90): (2, 2),
    } == found


def test_time_of_threads_without_samples_has_no_line() -> None:
    """The line at which the loop waits is none of decoding; what the loop decodes itself keeps its
    own time."""
    found = {
        (line.cause, line.line): round(line.seconds * 1e8, 6)
        for line in lines_of(awaited_threads([]))
    }
    assert {("decode", 90): 2} == found


def test_an_idle_worker_is_not_in_the_loop_that_started_it() -> None:
    """A forked child has the frames of its parent, too, which it does not run."""
    child = "/job/train.py:7:main\n/usr/lib/python3.12/multiprocessing/process.py:314:BaseProcess._bootstrap"  # noqa: E501
    assert not place_of(
        f"{child}\n/usr/lib/python3.12/selectors.py:415:_PollLikeSelector.select"
    ).is_own
    assert place_of(f"{child}\n/job/data.py:3:Data.__getitem__").line == 3


def test_a_wait_for_what_nobody_followed_is_not_called_python() -> None:
    """A line that waits for another process takes the time, and what that process did is not
    known."""
    trace = timeline("step 0000000000\ncompute main ........00")
    connection = "/usr/lib/python3.12/multiprocessing/connection.py:430:Connection._recv"
    for called, is_wait in (
        (connection, True),
        ("/env/lib/python3.12/site-packages/numpy/a.py:2:sort", False),
    ):
        samples = [(tick, 0, 100, f"/job/train.py:3:main\n{called}") for tick in range(8)]
        verdict = Run.of(with_stacks(trace, samples)).summary.verdict
        assert "host" == verdict.bound_by
        assert is_wait == (Doubt.UNNAMED in verdict.doubts)
        assert is_wait == (verdict.findings[0].code == "waiting_line")
        assert "/job/train.py:3 in main" == verdict.findings[0].facts["line"]


def test_the_time_of_a_cause_is_that_of_its_lines() -> None:
    """The lines of a cause sum to its seconds, and have its share of the steps."""
    trace = drawn()
    run = Run.of(trace)
    for cause in ("host", "loader", "transform"):
        lines = [share for share in run.summary.unexplained if share.cause == cause]
        charged = next(entry for entry in run.summary.steps.causes if entry.cause == cause)
        assert charged.seconds == pytest.approx(sum(share.seconds for share in lines))
        assert charged.share == pytest.approx(sum(share.share or 0 for share in lines))


def test_the_line_whose_objects_are_collected_is_named() -> None:
    """It is what the collections come from, wherever their time is charged."""
    trace = timeline("""
    step    00000000001111111111222222222233333333334444444444
    gc      .######....######....######....######....######...
    """)
    stacks = [f"/job/train.py:{1 + tick % 10 // 6}:main" for tick in range(50)]
    samples = [(tick, 0, 100, stack) for tick, stack in enumerate(stacks)]
    (first, *_) = summarise(with_stacks(trace, samples)).verdict.findings
    assert "gc" == first.code
    assert "/job/train.py:1 in main" == first.facts["line"]


def test_busy_workers_are_looked_at_where_nobody_waits_for_them() -> None:
    """Batches are long on their way while the next one is made: the line that makes them is named,
    with its part of that work."""
    trace = timeline("""
    step            00000000001111111111222222222233333333334444444444
    wait            000000000.111111111.222222222.333333333.444444444.
    compute main    .........0.........1.........2.........3.........4
    fetch w0        1111111111222222222233333333334444444444..........
    collate w0      .........1.........2.........3.........4..........
    """)
    own, collated = "/job/data.py:2:Data.__getitem__", "/job/data.py:9:collate"
    samples = [
        (
            tick,
            0,
            101,
            collated if tick % 10 == 9 else own if tick % 5 else "/job/data.py:1:Data.__getitem__",
        )
        for tick in range(40)
    ]
    found = Run.of(with_stacks(trace, samples)).summary

    lines = {
        line.line: round(line.seconds * 1e8)
        for line in found.unexplained
        if line.cause == "workers"
    }
    assert {1: 8, 2: 28} == lines
    assert "loader" == found.verdict.bound_by
    assert "70.0% of the workers' time at /job/data.py:2" in found.verdict.text
    assert not found.verdict.doubts


def test_a_function_is_named_where_none_of_its_lines_is_enough() -> None:
    """Four lines of one function take a quarter each: the function is named, with the time of all
    of them."""
    trace = timeline("""
    step            00000000000000000000
    compute main    ................0000
    """)
    samples = [(tick, 0, 100, f"/job/train.py:{2 + tick % 4}:main") for tick in range(16)]
    found = Run.of(with_stacks(trace, samples)).summary
    assert {2: 4, 3: 4, 4: 4, 5: 4} == {line.line: line.samples for line in found.unexplained}
    assert "80.0% at /job/train.py in main" in found.verdict.text
    assert "Do less at /job/train.py in main" in found.verdict.findings[0].action


def test_without_samples_nothing_is_named() -> None:
    """A run without stacks has no line of code, and says nothing of them."""
    trace = timeline("""
    step            0000
    wait            00..
    """)
    assert () == Run.of(trace).summary.unexplained


@pytest.mark.parametrize(
    ("stack", "place", "library"),
    [
        ("/a/train.py:3:main", "/a/train.py:3", None),
        ("/a/train.py:3:main\n<ioprof>/instrument/hooks/steps.py:9:f", "/a/train.py:3", None),
        (
            "/a/train.py:3:main\n/v/lib/python3.11/logging/__init__.py:1:info",
            "/a/train.py:3",
            "info (logging/__init__.py)",
        ),
        (
            "/a/train.py:3:main\n/usr/lib/python3/dist-packages/numpy/x.py:1:f\n/a/own.py:7:g",
            "/a/own.py:7",
            None,
        ),
        (
            "/a/train.py:3:main\n/v/lib/python3.11/site-packages/np/x.py:1:f",
            "/a/train.py:3",
            "f (np/x.py)",
        ),
        (
            "/a/train.py:3:main\n<frozen importlib._bootstrap>:1:_load",
            "/a/train.py:3",
            "_load (<frozen importlib._bootstrap>)",
        ),
        (
            "/v/lib/python3.11/site-packages/a/b.py:4:f",
            "/v/lib/python3.11/site-packages/a/b.py:4",
            None,
        ),
        (
            "/v/bin/yolo:8:<module>\n/v/lib/python3.11/site-packages/u/t.py:9:train\n"
            "/v/lib/python3.11/site-packages/torch/x.py:1:f",
            "/v/lib/python3.11/site-packages/u/t.py:9",
            "f (torch/x.py)",
        ),
        (
            "/v/bin/tool:8:<module>\n/v/lib/python3.11/site-packages/u/t.py:9:run\n/a/own.py:7:g",
            "/a/own.py:7",
            None,
        ),
        (
            "/v/bin/yolo:8:<module>\n/v/lib/python3.11/site-packages/u/t.py:9:train\n"
            "/v/lib/python3.11/multiprocessing/process.py:3:BaseProcess._bootstrap\n"
            "/v/lib/python3.11/site-packages/u/data.py:5:get",
            "/v/lib/python3.11/site-packages/u/data.py:5",
            None,
        ),
        ("<ioprof>/train/job.py:4:f", "<ioprof>/train/job.py:4", None),
        ("C:d/odd:name.py:4:f", "C:d/odd:name.py:4", None),
    ],
)
def test_the_innermost_own_frame_is_named(stack: str, place: str, library: str | None) -> None:
    """Your own code: no installed package, no standard library, no ioprof; what it calls there is
    named beside it."""
    found = place_of(stack)
    assert (place, library) == (f"{found.file}:{found.line}", found.library)


_CALL = "/v/lib/python3.11/site-packages/torch/nn/modules/module.py:9:Module._call_impl"


@pytest.mark.parametrize(
    ("outside", "line"),
    [
        ("/job/t.py:1:main\n/job/t.py:4:tell", 4),
        ("/job/t.py:1:main\n/v/lib/python3.11/site-packages/lib/trainer.py:5:evaluate", 8),
    ],
    ids=["own", "library"],
)
def test_a_model_that_is_called_for_something_else_is_at_its_caller(
    outside: str, line: int
) -> None:
    """Of a validation or a generation, where the user's own code calls the model."""
    stack = (
        f"{outside}\n{_CALL}\n/job/model.py:7:Net.forward\n{_CALL}\n/job/model.py:8:Block.forward"
    )
    assert (8, line) == (place_of(stack).line, place_of(stack, calls_model=True).line)


# -------------------------------------------------------------------------- run folders and exports


def test_samples_survive_saving_and_merging(tmp_path: Path) -> None:
    """A run folder has the samples, one without them has no file, and parts of a run keep theirs on
    the common clock."""
    trace = drawn()
    trace.save(tmp_path / "run")
    assert trace.stacks.equals(Trace.load(tmp_path / "run").stacks)
    parts = [
        Trace(RunRecord.of({"clocks": {"zero_monotonic_ns": 1000 * rank}}), spans, stacks=stacks)
        for rank in (0, 1)
        for spans, stacks in [
            (
                table.with_columns(rank=pl.lit(rank, pl.Int32), pid=pl.col("pid") + 1000 * rank)
                for table in (trace.spans, trace.stacks)
            )
        ]
    ]
    merged = merge_parts(parts, "both")
    assert [5 + 10, 1000 + 5 + 10] == merged.stacks.filter(
        pl.col("stack").cast(pl.String).str.contains(":read")
    )["time_ns"].to_list()
    Trace(trace.run, trace.spans).save(tmp_path / "run")
    assert not (tmp_path / "run" / "stacks.parquet").exists()
    assert Trace.load(tmp_path / "run").stacks.is_empty()


SPEEDSCOPE = {
    "type": "object",
    "required": ["$schema", "shared", "profiles"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "name": {"type": "string"},
        "exporter": {"type": "string"},
        "activeProfileIndex": {"type": "integer"},
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {
                "frames": {
                    "items": {
                        "required": ["name"],
                        "properties": {"file": {"type": "string"}, "line": {"type": "integer"}},
                    }
                }
            },
        },
        "profiles": {
            "items": {
                "required": [
                    "type",
                    "name",
                    "unit",
                    "startValue",
                    "endValue",
                    "samples",
                    "weights",
                ],
                "properties": {
                    "type": {"const": "sampled"},
                    "unit": {"const": "nanoseconds"},
                    "samples": {
                        "items": {"type": "array", "items": {"type": "integer", "minimum": 0}}
                    },
                    "weights": {"items": {"type": "number", "minimum": 0}},
                },
            }
        },
    },
}
"""What speedscope's schema requires of a sampled profile."""


def test_samples_are_exported_to_speedscope(tmp_path: Path) -> None:
    """First what the steps waited for, then one profile per thread, its samples outermost first,
    with weights that sum to its time."""
    charged = totals(drawn())
    found = document(drawn(), "run", code_of_causes(charged))
    jsonschema.validate(found, SPEEDSCOPE)
    assert ["what the steps waited for", "rank 0 on node1", "rank 0 on node1"] == [
        profile["name"] for profile in found["profiles"]
    ]
    assert found["activeProfileIndex"] == 0
    first = found["profiles"].pop(0)
    taken: Counter[str] = Counter()
    for sample, weight in zip(first["samples"], first["weights"], strict=True):
        taken[found["shared"]["frames"][sample[0]]["name"]] += weight
    named = unexplained(drawn(), charged.charged, charged.samples)
    assert taken == {
        cause: sum(round(line.seconds * 1e9) for line in named if line.cause == cause)
        for cause in {line.cause for line in named if line.share is not None}
    }
    for profile in found["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
    names = [
        [found["shared"]["frames"][number]["name"] for number in sample]
        for sample in found["profiles"][0]["samples"]
    ]
    assert ["main", "f1"] in names
    empty = Trace(RunRecord(), timeline("step 0").spans)
    with pytest.raises(RunError, match="ioprof record --stacks"):
        write_speedscope(empty, tmp_path / "file", "run", code_of_causes(totals(empty)))


# --------------------------------------------------------------------------------------- whole jobs


@needs_library
@needs_stacks
@pytest.mark.parametrize(
    ("place", "cause", "workers"), [("calls", "host", 0), ("transform", "transform", 1)]
)
@on_a_quiet_machine
def test_lines_of_a_job_take_the_time_of_its_stopwatch(
    place: str, cause: str, workers: int, tmp_path: Path
) -> None:
    """Nine tenths of the time without a span are named by file and line, and it is the time of the
    job's own stopwatch."""
    if (
        place == "transform"
        and find_spec("torchvision") is None
        and not (EXAMPLES / "torchvision").exists()
    ):
        pytest.skip("torchvision is not installed; .ci/run puts it beside the packages")
    file = PROGRAMS / "own_code.py"
    words = [sys.executable, str(PROGRAMS / "run_example.py"), str(file), place, "60", str(workers)]
    ended = subprocess.run(
        [sys.executable, "-m", "ioprof", "record", "--out", str(tmp_path / "run"), "--", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
    )
    assert 0 == ended.returncode, ended.stderr
    run, own = Run.load(tmp_path / "run"), json.loads(ended.stdout)
    shares = [share for share in run.summary.unexplained if share.cause == cause]
    total_s = run.summary.steps.per_rank[0].seconds(cause) or 0.0
    named_s = sum(share.seconds for share in shares if share.file == str(file))
    with comparing_times():
        assert named_s >= 0.9 * total_s, shares
    if place == "transform":
        # Not always on the first screen, which more workers may fill.
        assert f"own_code.py:{shares[0].line}" in report_of(tmp_path / "run")
    else:  # of three lines that take a third each, or of the function of two of them
        own_lines = (PROGRAMS / "own_code.py").read_text().splitlines()
        call, called = (
            next(place for place, text in enumerate(own_lines, 1) if text.endswith(end))
            for end in ("# calls", "# one")
        )
        lines = "|".join(map(str, (called, call - 1, call)))
        assert re.search(
            rf"own_code\.py(:({lines}))? in (main|one)", " ".join(ended.stderr.split())
        )
    recorded = run.trace.run.capture.stacks
    assert recorded is not None
    with comparing_times():
        if place in own["took_s"]:
            assert own["took_s"][place] == pytest.approx(named_s, rel=0.15)
        assert (recorded.samples or 0) > 20
        assert (recorded.cpu_s or 0) < 0.004 * (recorded.wall_s or 0) + 0.06


@pytest.mark.job
@needs_library
@needs_stacks
def test_stacks_can_be_switched_off(tmp_path: Path) -> None:
    """`--no-stacks` samples nothing, and the run says why."""
    words = [sys.executable, "-c", "print(1)"]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "ioprof",
            "record",
            "--quiet",
            "--no-stacks",
            "--out",
            str(tmp_path / "run"),
            "--",
            *words,
        ],
        check=True,
    )
    run = Trace.load(tmp_path / "run")
    assert run.stacks.is_empty()
    assert run.run.capture.stacks is not None
    assert "switched off by --no-stacks" == run.run.capture.stacks.reason


# ----------------------------------------------------------------------- computation without a span


@pytest.mark.parametrize(
    ("device", "library", "bound"),
    [
        ("cpu", "torch/nn/functional.py:9:cross_entropy", "compute"),
        ("cpu", "torch/_tensor.py:9:Tensor.__iter__", "host"),
        ("cpu", None, "host"),
        ("cuda", "torch/nn/functional.py:9:cross_entropy", "host"),
    ],
)
def test_a_line_that_computes_on_the_cpu_is_no_reason_for_host(
    device: str, library: str | None, bound: str
) -> None:
    """A loss that is a function is; Python of the loop's own is not, nor is the host's part of a
    computation on a GPU."""
    trace = timeline("step 0000000000\ncompute main 0000000...", config={"device": device})
    called = f"\n/env/lib/python3.12/site-packages/{library}" if library else ""
    trace = with_stacks(
        trace, [(7 + tick // 4, 0, 100, f"/job/train.py:9:main{called}") for tick in range(12)]
    )
    found = Run.of(trace).summary.verdict
    assert bound == found.bound_by
    assert "train.py:9" in found.text
    assert ("torch/nn/functional.py" in found.text) == (bound == "compute")
    if bound == "compute":
        assert not any(advice.code == "line" for advice in found.findings)
