"""Waiting for kernel launches: the gaps between the activities of a device that `host` has, by
their length."""

import itertools
from typing import Any, Final

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples, shifted, shuffled, traces
from timeline import TICK_NS, timeline
from told import summarise

from ioprof.analysis import selection
from ioprof.analysis.answer.details import Part
from ioprof.analysis.charge import launches
from ioprof.analysis.charge.blame import charges, exposed
from ioprof.analysis.charge.launches import LONGEST_NS, SHORTEST_NS, Launches
from ioprof.format.run_record import PartCode, Summary
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema

US: Final = 1_000
MS: Final = 1_000_000


@pytest.fixture
def short_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps of two to five characters of a drawing count."""
    monkeypatch.setattr(launches, "SHORTEST_NS", 2 * TICK_NS)
    monkeypatch.setattr(launches, "LONGEST_NS", 5 * TICK_NS)


def waited(drawing: str, **run: Any) -> tuple[int, float] | None:
    """Characters of waiting for launches, and kernels of a step."""
    found = charges(timeline(drawing, **run)).launches
    return None if found is None else (found.waited_ns // TICK_NS, found.per_step)


@pytest.mark.usefixtures("short_gaps")
def test_gaps_of_the_length_of_launches_count() -> None:
    """Not what lies between kernels that were queued, nor the job's own Python; gaps go on from one
    step to the next."""
    drawing = """
        step    000000000000000000000000 11111111
        kernel  .#..#.....#.#......#.#.. .#...#..
    """
    assert (2 + 5 + 3 + 3, 8 / 2) == waited(drawing)


@pytest.mark.usefixtures("short_gaps")
def test_only_time_of_the_host_counts() -> None:
    """A wait for a batch between two kernels is none for a launch."""
    drawing = """
        step    00000000000000
        wait    .....000......
        kernel  ...#.....#....
    """
    assert (2, 2.0) == waited(drawing)


@pytest.mark.usefixtures("short_gaps")
def test_all_streams_of_a_device_are_one() -> None:
    """A copy or an exchange between two kernels keeps it busy."""
    drawing = """
        step    00000000000000
        kernel  .#....#....#..
        h2d     ...#..........
        comm    .......##.....
    """
    assert (2 + 2, 3.0) == waited(drawing)


@pytest.mark.usefixtures("short_gaps")
def test_each_rank_has_gaps_of_its_own() -> None:
    """Waits are summed, and kernels averaged."""
    drawing = """
        step   r0  00000000
        kernel r0  .#..#..#
        step   r1  00000000
        kernel r1  ..#####.
    """
    assert (4, 2.0) == waited(drawing)


@pytest.mark.usefixtures("short_gaps")
def test_steps_that_were_not_recorded_have_no_launches() -> None:
    """Neither waits nor kernels."""
    windows = [
        {
            "rank": 0,
            "first_step": 1,
            "last_step": 1,
            "start_ns": 8 * TICK_NS,
            "end_ns": 16 * TICK_NS,
        }
    ]
    drawing = """
        step    00000000 11111111 22222222
        kernel  .#..#..# ..#..#.. ........
    """
    assert (2 + 2, 2.0) == waited(drawing, capture={"gpu": {"windows": windows}})


def test_without_kernels_nothing_is_known() -> None:
    """An emulated device, a CPU, and a device whose own events were recorded."""
    for drawing in (
        "step 0000\ncompute 0..0",
        "step 0000\ncompute main 0..0",
        "step 0000\nwait 0000",
    ):
        assert waited(drawing) is None


def of_kernels(trace: Trace) -> Trace:
    """The trace, with kernels instead of computations on a device."""
    kernel = pl.lit("kernel", dtype=trace.spans["kind"].dtype)
    is_kernel = (pl.col("kind") == "compute") & pl.col("stream").is_not_null()
    return Trace(
        trace.run,
        trace.spans.with_columns(kind=pl.when(is_kernel).then(kernel).otherwise("kind")),
        trace.files,
    )


def by_hand(trace: Trace) -> int:
    """Nanoseconds of `host` in gaps that count, instant by instant."""
    found = 0
    for rank, instants in exposed(trace, ["host"]).items():
        mine = trace.spans.filter(
            pl.col("rank") == rank,
            pl.col("stream") >= 0,
            pl.col("kind").is_in(["kernel", "compute", "h2d", "d2h", "comm"]),
        )
        busy = {
            at
            for start, end in mine.select("start_ns", "end_ns").iter_rows()
            for at in range(start, end)
        }
        if mine.filter(pl.col("kind") == "kernel").is_empty() or not busy:
            continue
        of_host = {at for start, end in instants["host"].tolist() for at in range(start, end)}
        ordered = sorted(busy)
        gaps = [
            range(before + 1, after)
            for before, after in itertools.pairwise(ordered)
            if launches.SHORTEST_NS <= after - before - 1 <= launches.LONGEST_NS
        ]
        found += sum(at in of_host for gap in gaps for at in gap)
    return found


def found_in(trace: Trace) -> tuple[Launches | None, dict[Part, int], dict[str, int]]:
    """Launches, the named part of `host`, and what has names."""
    charged = charges(trace)
    named = dict(charged.details.of_cause("host", 1, trace))
    return (
        charged.launches,
        {name: took for name, took in named.items() if name == (PartCode.LAUNCHES, "")},
        charged.details.explained_ns,
    )


@settings(max_examples=examples(15), deadline=None)
@given(traces(max_ranks=2, max_workers=1, max_steps=3), st.integers(1, 9), st.data())
def test_neither_order_nor_shift_nor_pieces_change_launches(
    trace: Trace, rows_at_once: int, data: st.DataObject
) -> None:
    """And they are what counting instants one by one finds."""
    trace = of_kernels(trace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launches, "SHORTEST_NS", 2)
        patch.setattr(launches, "LONGEST_NS", 9)
        whole = found_in(trace)
        assert whole == found_in(
            shifted(data.draw(shuffled(trace)), data.draw(st.integers(0, 10**15)))
        )
        patch.setattr(selection, "_ROWS_AT_ONCE", rows_at_once)
        assert whole == found_in(trace)
        assert whole[0] is None or by_hand(trace) == whole[0].waited_ns


# ----------------------------------------------------------------------------- what the report says


def job(gaps: list[int], kernel_ns: int = 2 * US, steps: int = 20, **run: Any) -> Summary:
    """A loop whose step launches a kernel after each of these gaps, in nanoseconds."""
    drawn = timeline("step 0\nkernel 0", **run)
    template = {
        kind: drawn.spans.filter(pl.col("kind") == kind).row(0, named=True)
        for kind in ("step", "kernel")
    }
    rows, at = [], 0
    for step in range(steps):
        began = at
        for gap in gaps:
            rows.append(
                template["kernel"]
                | {"start_ns": at + gap, "end_ns": at + gap + kernel_ns, "step": step}
            )
            at += gap + kernel_ns
        rows.append(template["step"] | {"start_ns": began, "end_ns": at, "step": step})
    return summarise(
        Trace(drawn.run, pl.DataFrame(rows, schema=table_schema(SPAN_COLUMNS)), drawn.files)
    )


def test_a_job_of_many_small_kernels_is_told_to_launch_fewer() -> None:
    """With their number and time; it is no more of `host` than the gaps."""
    found = job([40 * US] * 50)
    assert "host" == found.verdict.bound_by
    assert (
        "95.1% to waiting for kernel launches (50 kernels a step, median 2.0 µs)"
        in found.verdict.text
    )
    first = found.verdict.findings[0]
    assert first.action.startswith("Launch fewer kernels (CUDA graphs")
    for words in ("larger batches", "fused=True", "50 kernels a step"):
        assert words in first.action
    assert ("host", 1.0) == (first.cause, pytest.approx(first.part, abs=0.01))
    assert not found.verdict.doubts


@pytest.mark.parametrize(
    ("gaps", "kernel_ns"),
    [
        pytest.param([3 * MS] + [40 * US] * 20, 2 * US, id="Python of the job's own in one gap"),
        pytest.param([500 * US] + [US] * 50, US, id="a graph of kernels, which is one launch"),
        pytest.param([LONGEST_NS + 1] * 20, 2 * US, id="gaps that are too long"),
        pytest.param([SHORTEST_NS - 1] * 20, 2 * US, id="gaps between kernels that were queued"),
    ],
)
def test_other_time_of_the_host_is_not_called_launching(gaps: list[int], kernel_ns: int) -> None:
    """Neither in the verdict nor in the first advice."""
    found = job(gaps, kernel_ns)
    assert "host" == found.verdict.bound_by
    assert "launch" not in found.verdict.text + found.verdict.findings[0].action


def test_a_median_does_not_depend_on_few_long_kernels() -> None:
    """Within the 1.5 % of a class."""
    drawn = timeline("step 0\nkernel 0")
    kernel, step = (
        drawn.spans.filter(pl.col("kind") == kind).row(0, named=True) for kind in ("kernel", "step")
    )
    lengths = np.array([2 * US] * 60 + [500 * US] * 5)
    starts = np.cumsum(lengths + 10 * US)
    rows = [
        kernel | {"start_ns": int(at), "end_ns": int(at + took)}
        for at, took in zip(starts, np.append(lengths[1:], 1), strict=True)
    ]
    trace = Trace(
        drawn.run,
        pl.DataFrame(
            [*rows, step | {"start_ns": 0, "end_ns": 10 * MS}], schema=table_schema(SPAN_COLUMNS)
        ),
    )
    found = charges(trace).launches
    assert found is not None
    assert (65.0, pytest.approx(2e-6, rel=0.02)) == (found.per_step, found.median_s)
