"""The picture of a step: a drawn timeline comes out as it was drawn."""

import polars as pl
import pytest
from timeline import pid, timeline

from ioprof.analysis.charge.blame import blame
from ioprof.format.schema import SOURCES
from ioprof.format.trace import Trace
from ioprof.report.lanes import LEAVES, MAIN_KINDS, READS
from ioprof.report.texts.picture import MARKS, step_picture

JOB = """
    step            00000000000000000000 11111111111111111111 22222222222222222222
    wait            0000................ 1111................ 222222..............
    fetch w0        0000................ 1111................ 222222222...........
    read w0         ##.................. ##.................. ##..................
    read w0 cache   ..#................. ..#................. ..#.................
    decode w0       ...#................ ...#................ ....####............
    h2d             ....0............... ....1............... ......2.............
    compute         .....000000000000000 .....111111111111111 .......2222222222222
"""


def lanes(picture: str) -> dict[str, str]:
    """Lane names and what is drawn behind them."""
    body = picture.split("\n\n")[0].splitlines()
    margin = body[1].index("|")
    return {line[:margin].strip(): line[margin:] for line in body[2:]}


def picture_of(ticks, **run):
    trace = timeline(JOB, processes=[{"pid": pid(0, 0), "worker": 0}], **run)
    margin = len("compute (emulated)" if run else "worker 0") + 2
    return step_picture(trace, blame(trace), warmup=1, width=margin + ticks)


def test_a_picture_shows_what_was_drawn():
    """At one character per tick each character is the kind, or the source of the read, that filled
    its tick."""
    assert {
        "worker 0": "SSp-dddd-",
        "wait": "......",
        "copies": "      =",
        "compute": "       #############",
    } == lanes(picture_of(20))


def test_a_coarse_picture_shows_what_took_most_of_each_part():
    """With fewer characters than ticks each character shows what took most of its part of the
    time."""
    assert {"worker 0": "Sd-", "wait": "..", "copies": " =", "compute": " ####"} == lanes(
        picture_of(5)
    )


@pytest.mark.parametrize("kind", ["read", "fault"])
def test_a_read_without_a_source_is_drawn_as_unknown(kind):
    """A recording need not say where bytes came from: the picture says that too."""
    trace = timeline(JOB.replace("read", kind), processes=[{"pid": pid(0, 0), "worker": 0}])
    without = Trace(
        trace.run, trace.spans.with_columns(source=pl.lit(None, trace.spans.schema["source"]))
    )

    assert (
        "???-dddd-" == lanes(step_picture(without, blame(without), warmup=1, width=30))["worker 0"]
    )


@pytest.mark.parametrize("kind", sorted({"fetch", *LEAVES, *MAIN_KINDS} - {*READS}))
def test_every_kind_that_has_a_lane_has_a_mark(kind):
    """Whatever the lanes show can be drawn, by a mark that the legend explains; reads wear their
    source's."""
    own = "" if kind in MAIN_KINDS else "w0"
    drawn = step_picture(
        trace := timeline(f"step {'0' * 20}\n{kind} {own} {'#' * 20}"), blame(trace)
    )

    assert MARKS[kind][0] * 20 in drawn
    assert " ".join(MARKS[kind]) in drawn


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_of_a_read_has_a_mark(source: str) -> None:
    """Also what came from another process."""
    word = {"page_cache": "cache"}.get(source, source)
    drawn = step_picture(
        trace := timeline(f"step {'0' * 20}\nread w0 {word} {'#' * 20}"), blame(trace)
    )

    assert MARKS[source][0] * 20 in drawn
    assert " ".join(MARKS[source]) in drawn


def test_an_emulated_device_is_called_so():
    """Copies, compute and exchange of an emulated device say so; workers and waits are real."""
    drawn = lanes(picture_of(40, device={"basis": "emulated", "name": "a100"}))

    assert {"worker 0", "wait", "copies (emulated)", "compute (emulated)"} == set(drawn)


def test_the_legend_explains_what_is_drawn_and_nothing_else():
    """Every mark in the picture is in the legend."""
    legend = picture_of(90).split("\n\n")[1]

    words = set(legend.replace("\n", "   ").split("   "))
    assert {"S read from storage", "p read from page cache", "d decode", "# compute"} <= words
    assert "exchange" not in legend


def test_a_run_without_steps_has_no_picture():
    """Nothing to draw is an empty text."""
    trace = timeline("decode w0  ####")

    assert "" == step_picture(trace, blame(trace))
