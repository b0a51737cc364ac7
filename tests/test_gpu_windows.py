"""What is said of a job whose GPU was recorded in windows: what lies outside of them is not known,
and is not called waiting."""

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from faults.agreement import printed
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples, traces
from timeline import TICK_NS, charged, pid, timeline
from told import summarise

from ioprof.analysis.charge.blame import blame
from ioprof.analysis.reads.demand import demand
from ioprof.analysis.totals import totals
from ioprof.format.schema import CAUSES, SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.report.page.stalls import named_cause
from ioprof.report.run import Run
from ioprof.report.texts.brief import brief_text
from ioprof.report.views import longest_steps

DRAWING = """
    step            00000 11111 22222 33333
    wait            0.... 1.... 2.... 3....
    h2d             ..... .1... .2... .....
    kernel          ..... ..11. ..222 .....
"""


def gpu(*windows: tuple[int, int, int, int], **other: Any) -> dict[str, Any]:
    """`capture` of run.json with windows of rank 0: first and last whole step, start and end in
    characters."""
    found = [
        {
            "rank": 0,
            "first_step": first,
            "last_step": last,
            "start_ns": start * TICK_NS,
            "end_ns": end * TICK_NS,
            **other,
        }
        for first, last, start, end in windows
    ]
    return {
        "gpu": {
            "windows": found,
            "notes": [{"host": "node1", "pid": 100, "reasons": {"CUPTI was taken": 2}}],
        }
    }


def test_kernels_are_compute_wherever_they_come_from() -> None:
    """A run that has nothing but Kineto's records is charged as one with spans of its own."""
    kineto, own = timeline(DRAWING), timeline(DRAWING.replace("kernel ", "compute"))
    assert blame(own).rows() == blame(kineto).rows()
    assert {"loader": 1, "h2d": 1, "compute": 3} == {
        cause: ticks for cause, ticks in charged(blame(kineto))[0, 2].items() if ticks
    }


@settings(max_examples=examples(60), deadline=None)
@given(trace=traces(), data=st.data())
def test_waits_for_the_device_change_no_cause(trace: Trace, data: st.DataObject) -> None:
    """Spans of kind `sync` say what the host did; what a step waited for is what the device did
    meanwhile."""
    last_ns = max([60, *trace.spans["end_ns"].to_list()])
    rows = []
    for _ in range(data.draw(st.integers(1, 4))):
        start_ns = data.draw(st.integers(0, last_ns - 1))
        rank = data.draw(st.sampled_from(trace.ranks or [0]))
        tid = data.draw(st.sampled_from([pid(rank), pid(rank) + 7, None]))
        end_ns = data.draw(st.integers(start_ns, last_ns))
        rows.append(
            {
                "start_ns": start_ns,
                "end_ns": end_ns,
                "kind": "sync",
                "rank": rank,
                "pid": pid(rank),
                "tid": tid,
                "step": 0,
            }
        )
    waits = pl.DataFrame(
        [{**dict.fromkeys(SPAN_COLUMNS), **row} for row in rows], schema=table_schema(SPAN_COLUMNS)
    )
    host = trace.spans["host"].drop_nulls().unique().to_list()
    waits = waits.with_columns(host=pl.lit(host[0] if host else None, trace.spans.schema["host"]))
    with_waits = replace(
        trace, spans=pl.concat([trace.spans, waits]).sort("start_ns", maintain_order=True)
    )
    assert blame(trace).rows() == blame(with_waits).rows()
    without, found = summarise(trace), summarise(with_waits)
    assert without.steps == found.steps
    assert without.verdict == found.verdict
    assert without.overlap == found.overlap


def test_steps_outside_of_the_windows_are_charged_to_nothing() -> None:
    """Their rows are null; the others sum to their wall time as ever."""
    trace = timeline(DRAWING, capture=gpu((1, 2, 5, 15)))
    table = blame(trace)
    assert [None, 50, 50, None] == table["host_ns"].is_not_null().replace_strict(
        {True: 50, False: None}
    ).to_list()
    causes = (
        table.select(pl.sum_horizontal(*(f"{cause}_ns" for cause in CAUSES)))
        .to_series()
        .filter(table["host_ns"].is_not_null())
    )
    assert [5 * TICK_NS, 5 * TICK_NS] == causes.to_list()
    everywhere = blame(timeline(DRAWING))
    assert (
        everywhere.filter(pl.col("step").is_in([1, 2])).rows()
        == table.filter(pl.col("step").is_in([1, 2])).rows()
    )


def test_a_summary_speaks_of_the_steps_that_were_recorded() -> None:
    """Shares are of their time and sum to 1; steps and rates are those of all; what is not known is
    said."""
    found = summarise(
        timeline(
            DRAWING,
            capture=gpu(
                (1, 2, 5, 15), left_out={"began before its launch": 3}, unrecorded_launches=4
            ),
        )
    )
    shares = {entry.cause: entry.share for entry in found.steps.causes if entry.share}
    assert {"compute": 0.5, "h2d": 0.2, "host": 0.1, "loader": 0.2} == pytest.approx(shares)
    assert (4, 2) == (found.steps.count, found.steps.per_rank[0].steps)
    said = "; ".join(found.capture.not_seen)
    for words in (
        "recorded in 2 of 4 steps",
        "3 records of the GPU",
        "4 launches",
        "process 100: CUPTI was taken (2 times)",
    ):
        assert words in said


def test_a_window_without_a_whole_step_gives_no_causes() -> None:
    """Null with the reason, never 0."""
    found = summarise(timeline(DRAWING, capture=gpu((3, 2, 7, 9))))
    assert {None} == {entry.share for entry in found.steps.causes}
    assert all("GPU was recorded" in str(entry.reason) for entry in found.steps.causes)
    assert (4, None) == (found.steps.count, found.verdict.bound_by)


def test_overlap_looks_at_the_windows_alone() -> None:
    """A read outside of them was hidden or not, nobody knows."""
    drawing = DRAWING + "    read w0         ##### ..##. ##... #####\n"
    whole, inside = (
        totals(timeline(drawing, **more)).overlaps["storage"]
        for more in ({}, {"capture": gpu((1, 2, 5, 15))})
    )
    assert ((14 * TICK_NS, 2 * TICK_NS), (4 * TICK_NS, 2 * TICK_NS)) == tuple(
        (round((each.total_s or 0) * 1e9), round((each.hidden_s or 0) * 1e9))
        for each in (whole, inside)
    )


def test_the_devices_own_rate_is_that_of_the_recorded_steps() -> None:
    """Compute of two steps makes two batches, however many steps the job made."""
    fetches = (
        "    fetch w0        0.... 1.... 2.... 3....\n    read w0 10B     #.... #.... #.... #....\n"
    )
    found = demand(timeline(DRAWING + fetches, capture=gpu((1, 2, 5, 15))), least_reads=1)
    assert 2 / (5 * TICK_NS / 1e9) == pytest.approx(found.at_samples_per_s)
    assert 10 * 2 / (5 * TICK_NS / 1e9) == pytest.approx(found.bytes_per_s)


def test_what_the_windows_cost_is_part_of_the_overhead() -> None:
    """The job was held up by them, and its steps took longer in them."""
    processes = [
        {"host": "node1", "pid": 100, "rank": 0, "role": "rank", "first_ns": 0, "last_ns": 1_000}
    ]
    capture = {"ns_per_span": 1.0, **gpu((0, 1, 0, 10), cost_ns=100)}
    found = summarise(timeline(DRAWING, capture=capture, processes=processes)).capture
    without = summarise(
        timeline(DRAWING, capture={"ns_per_span": 1.0}, processes=processes)
    ).capture
    assert 0.1 == pytest.approx((found.overhead_ratio or 0) - (without.overhead_ratio or 0))
    slow = timeline(
        "step " + "".join(str(step) * (3 if step < 5 else 2) for step in range(10)),
        capture=gpu((0, 4, 0, 15)),
    )
    assert any("50% longer" in sentence for sentence in summarise(slow).capture.not_seen)


def test_pageable_copies_are_named() -> None:
    """With their share, and in the advice when copies are what the job waits for."""
    drawing = """
        step                       0000000000 1111111111
        h2d 300B name=pageable     00000000.. 11111111..
        h2d 100B name=pinned       00........ 11........
        kernel                     ........00 ........11
    """
    found = summarise(timeline(drawing))
    (copies,) = (entry for entry in found.steps.causes if entry.cause == "h2d")
    assert str(copies.reason).startswith("75% of the bytes came from pageable memory")
    assert "h2d" == found.verdict.bound_by
    assert any("pin_memory=True" in advice.action for advice in found.verdict.findings)
    assert (
        None
        is next(
            e
            for e in summarise(timeline(drawing.replace("pageable", "pinned"))).steps.causes
            if e.cause == "h2d"
        ).reason
    )


def test_what_was_queued_before_a_validation_is_computation() -> None:
    """A loop that runs ahead begins to validate while the device still computes earlier steps."""
    queued = timeline("step 000011111112222\nvalidate ....1111.......\nkernel .0000011.1....2")
    assert {"compute": 3, "validation": 2, "host": 2} == {
        cause: ticks for cause, ticks in charged(blame(queued))[0, 1].items() if ticks
    }
    waited = timeline("step 000011111112222\nvalidate ....1111.......\nkernel .000..11.1....2")
    assert {"compute": 1, "validation": 4, "host": 2} == {
        cause: ticks for cause, ticks in charged(blame(waited))[0, 1].items() if ticks
    }


def test_nothing_is_said_of_a_step_that_was_not_recorded() -> None:
    """The step in which a window ended is not the slowest of the job: ioprof itself delayed it."""
    drawing = "step 000111222222222333344445555\nkernel .00.11................."
    run = Run.of(timeline(drawing, capture=gpu((0, 1, 0, 6))))
    longest = longest_steps(run.steps, 9)
    assert [3, 4, 5, 0, 1] == sorted(longest["step"], key=lambda step: (step < 3, step))
    assert [None] * 3 == longest.filter(pl.col("step") > 2)["cause"].to_list()
    assert [-1] * 4 == named_cause(run.steps)["cause"].to_list()[2:]
    text = printed(brief_text(run.summary, run.steps))
    assert "step 3 of rank 0" in text
    assert "GPU not recorded" in text


@pytest.mark.parametrize(
    ("waited", "words"),
    [(2, "but the loop runs for 80% of it beside the device"), (8, ""), (None, "")],
)
def test_a_loop_that_bounds_a_faster_device_is_named(waited: int | None, words: str) -> None:
    """Where it waits for its device for little of the time; unless that is not known."""
    bars = "".join(str(step) * 10 for step in range(6))
    ticks = None if waited is None else 6 * waited * TICK_NS
    found = summarise(
        timeline(f"step {bars}\nkernel {bars}", capture=gpu((0, 5, 0, 60), loop_waited_ns=ticks))
    )
    assert "compute" == found.verdict.bound_by
    (advice,) = (each.action for each in found.verdict.findings)
    assert words in advice
    assert bool(words) == ("beside the device" in advice)


def test_a_loop_that_takes_longer_than_its_gpu_sets_the_demand() -> None:
    """No storage makes such a loop faster than it is; an emulated device's rate stays its own."""
    fetches = (
        "    fetch w0        0.... 1.... 2.... 3....\n    read w0 10B     #.... #.... #.... #....\n"
    )
    window = gpu((1, 2, 5, 15))
    tick_s, shared = TICK_NS / 1e9, {"capture": window}
    by_device = demand(
        timeline(DRAWING + fetches, **shared),
        least_reads=1,
        computed_ns=5 * TICK_NS,
        consumer_s=2 * tick_s,
    )
    by_loop = demand(
        timeline(DRAWING + fetches, **shared),
        least_reads=1,
        computed_ns=5 * TICK_NS,
        consumer_s=4 * tick_s,
    )
    assert (2 / (5 * tick_s), False) == (
        pytest.approx(by_device.at_samples_per_s),
        by_device.by_loop,
    )
    assert (1 / (4 * tick_s), True) == (pytest.approx(by_loop.at_samples_per_s), by_loop.by_loop)
    assert by_loop.bytes_per_s == pytest.approx(10 / (4 * tick_s))
    on_cpu = timeline(DRAWING + fetches, config={"device": "cpu"}, **shared)
    assert not demand(on_cpu, least_reads=1, computed_ns=5 * TICK_NS, consumer_s=4 * tick_s).by_loop
