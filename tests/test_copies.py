"""Copies in both directions: what is said of each, and what to change."""

from typing import Any

import polars as pl
import pytest
from timeline import TICK_NS, details, pid, timeline
from told import summarise

from ioprof.analysis.charge.blame import blame
from ioprof.analysis.charge.copies import copied_per_step
from ioprof.format.run_record import Summary
from ioprof.format.schema import STACK_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.report.texts.statements import statements

RESULTS = """
    step                       000000000000 111111111111
    kernel                     00.......... 11..........
    d2h 9000000B name=pageable ..00000000.. ..11111111..
    h2d 1000B name=pinned      0........... 1...........
"""
BATCHES = """
    step                       000000000000 111111111111
    kernel                     00.......... 11..........
    h2d 9000000B name=pageable ..00000000.. ..11111111..
    d2h 1000B name=pinned      0........... 1...........
"""
BOTH = """
    step                       000000000000 111111111111
    kernel                     00.......... 11..........
    h2d 5000000B name=pageable ..0000...... ..1111......
    d2h 6000000B name=pinned   ......00000. ......11111.
"""


def advice(summary: Summary) -> list[str]:
    """What to change, in words, where copies are the bound."""
    assert "h2d" == summary.verdict.bound_by
    return [each.action for each in summary.verdict.findings if each.cause == "h2d"]


def test_results_are_copied_to_the_host() -> None:
    """What is advised for batches does not help: neither smaller samples, nor pinned memory of the
    loader."""
    found = summarise(timeline(RESULTS))
    assert (
        "66.7% went to copies from the device to the host (9.0 MB a step, to pageable memory)"
        in found.verdict.text
    )
    less, pinned = advice(found)
    assert less.startswith(
        "Copy results to the host less often, or reduce them on the device first"
    )
    assert pinned.startswith("Copy results into page-locked memory that is kept")
    assert not [text for text in (less, pinned) if "uint8" in text or "DataLoader" in text]
    assert "9.0 MB from the device" in less


def test_batches_are_copied_to_the_device() -> None:
    """From pageable memory."""
    found = summarise(timeline(BATCHES, config={"loader": "torch DataLoader"}))
    assert (
        "66.7% went to copies from the host to the device (9.0 MB a step, from pageable memory)"
        in found.verdict.text
    )
    pinned, fewer = advice(found)
    assert "pin" in pinned
    assert "uint8" in fewer


def test_both_directions_are_advised_on() -> None:
    """The longer one first; memory of the loader only for its own direction."""
    found = summarise(timeline(BOTH, config={"loader": "torch DataLoader"}))
    assert "from the device to the host (6.0 MB a step)" in found.verdict.text
    first, *others = advice(found)
    assert first.startswith("Copy results to the host less often")
    assert any("pin" in text for text in others)
    assert not any(text.startswith("Copy results into page-locked") for text in others)


def test_advice_brings_no_more_than_its_direction() -> None:
    """The part of the cause that results are."""
    found = summarise(timeline(BOTH)).verdict.findings[0]
    assert ("h2d", pytest.approx(5 / 9)) == (found.cause, found.part)


def test_details_tell_directions_and_memory() -> None:
    """Where no compute hides them; of an emulated device nothing, whose copies do not say what
    memory they came from."""
    assert {
        "h2d": [("device to host", 10 * TICK_NS), ("host to device, pageable memory", 8 * TICK_NS)],
    } == details(timeline(BOTH), "h2d")
    own = timeline(
        "step 0000\ncompute 00..\nh2d 9B ..00", device={"basis": "emulated", "samples_per_s": 100.0}
    )
    assert {"h2d": []} == details(own, "h2d")
    assert "went to copies between host and device" in summarise(own).verdict.text


def test_bytes_of_a_step() -> None:
    """Of the recorded steps of all ranks; a copy is of the step in which it begins."""
    drawing = """
        step   r0          0000 1111 2222
        h2d    r0 300B     0... 1... ....
        d2h    r0 100B     ...# #... ....
        step   r1          0000 1111 ....
        h2d    r1 300B     0... .... ....
        h2d    r1 500B     .... .... .#..
    """
    trace = timeline(drawing)
    assert {"h2d": 3 * 300 / 5, "d2h": 100 / 5} == copied_per_step(trace, blame(trace))
    first = blame(trace).filter(pl.col("step") == 0)
    assert {"h2d": 2 * 300 / 2, "d2h": 100 / 2} == copied_per_step(trace, first)
    assert {} == copied_per_step(trace, first.clear())


def test_overlap_tells_the_directions() -> None:
    """In the report too."""
    drawing = """
        step    0000000000
        kernel  0000......
        h2d     ..0000....
        d2h     ......0000
    """
    [said] = [
        line.text for line in statements(summarise(timeline(drawing))) if line.label == "overlap"
    ]
    assert "copies to the device 50.0% of 40.0 ns, copies to the host 0.0% of 40.0 ns" in said


def with_samples(trace: Trace, stacks: dict[int, str]) -> Trace:
    """The trace, with a sample of the main thread of rank 0 at each of these characters of its
    drawing."""
    rows: list[dict[str, Any]] = [
        {
            "time_ns": at * TICK_NS + 1,
            "host": "node1",
            "rank": 0,
            "pid": pid(0),
            "tid": pid(0),
            "role": "rank",
            "stack": stack,
        }
        for at, stack in stacks.items()
    ]
    return Trace(
        trace.run,
        trace.spans,
        trace.files,
        stacks=pl.DataFrame(rows, schema=table_schema(STACK_COLUMNS)),
    )


def test_the_line_that_copies_is_named() -> None:
    """Where the loop waits for the copy, as it does with pageable memory; samples at other times
    are of other causes."""
    copying = dict.fromkeys((*range(2, 10), *range(14, 22)), "/job/train.py:7:log")
    computing = dict.fromkeys((0, 1, 10, 11, 12, 13), "/job/train.py:3:main")
    found = summarise(with_samples(timeline(RESULTS), {**copying, **computing}))
    lines = [line for line in found.unexplained if line.cause == "h2d"]
    assert [("/job/train.py", 7, 16)] == [(line.file, line.line, line.samples) for line in lines]
    assert lines[0].seconds == pytest.approx(16 * TICK_NS / 1e9)
    assert "66.7% at /job/train.py:7 in log" in found.verdict.text
    assert "at /job/train.py:7 in log" in advice(found)[0]


def test_copies_that_do_not_block_have_no_line() -> None:
    """The loop goes on while they run, so what its thread does then is not what copies."""
    trace = timeline(RESULTS.replace("pageable", "pinned  "))
    found = summarise(with_samples(trace, dict.fromkeys(range(2, 10), "/job/train.py:7:log")))
    assert not [line for line in found.unexplained if line.cause == "h2d"]
