"""What the figures show, without drawing: nothing is lost by thinning, the lanes are right, the
colours can be told apart."""

import itertools
import re
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_runs import sample
from repository import ROOT
from sample_run import steps_frame, trace_of
from strategies import examples
from timeline import timeline

from ioprof.analysis.charge.blame import blame
from ioprof.format.schema import CAUSES
from ioprof.report import lanes, palette, views
from ioprof.report.page.classes import CLASSES
from ioprof.report.page.tracks import placed, tracks_of


@st.composite
def blame_tables(draw: st.DrawFn) -> pl.DataFrame:
    """Tables of blame: some ranks, some steps, causes that add up to the step."""
    rows = []
    for rank in range(draw(st.integers(1, 6))):
        now = 0
        for step in range(draw(st.integers(1, 12))):
            charges = draw(
                st.lists(st.integers(0, 10**9), min_size=len(CAUSES), max_size=len(CAUSES))
            )
            keys = {f"{cause}_ns": charge for cause, charge in zip(CAUSES, charges, strict=True)}
            rows.append(
                {"rank": rank, "step": step, "start_ns": now, "end_ns": now + sum(charges), **keys}
            )
            now += sum(charges)
    return steps_frame(rows)


@settings(max_examples=examples(40))
@given(blame_tables())
def test_seconds_by_cause_add_up_to_the_wall_time(steps: pl.DataFrame) -> None:
    table = views.seconds_by_cause(steps)
    walls = steps.group_by("rank").agg(views.wall_ns().sum())
    expected = {row[0]: row[1] / 1e9 for row in walls.iter_rows()}
    found = {
        row[0]: row[1]
        for row in table.drop_nulls("rank")
        .group_by("rank")
        .agg(pl.col("seconds").sum())
        .iter_rows()
    }
    assert found == pytest.approx(expected)
    assert table.filter(pl.col("rank").is_null())["seconds"].sum() == pytest.approx(
        sum(expected.values())
    )


@settings(max_examples=examples(40))
@given(blame_tables(), st.integers(1, 20))
def test_thinning_steps_never_hides_the_longest(steps: pl.DataFrame, limit: int) -> None:
    table = views.step_rows(steps, limit)
    whole = views.step_rows(steps, 10**6)
    assert len(table) <= limit
    assert table["wall_ns"].max() == whole["wall_ns"].max()
    assert table["of"].sum() == steps["step"].n_unique()
    causes = table.select(pl.sum_horizontal([f"{cause}_ns" for cause in CAUSES]))
    assert causes.to_series().to_list() == table["wall_ns"].to_list()


@settings(max_examples=examples(40))
@given(blame_tables(), st.integers(1, 20))
def test_thinning_rates_never_hides_the_slowest_step(steps: pl.DataFrame, limit: int) -> None:
    table = views.rates(steps, 32, limit)
    for rank in views.chosen_ranks(steps):
        walls = (
            steps.filter(pl.col("rank") == rank, views.wall_ns() > 0)
            .select(views.wall_ns())
            .to_series()
        )
        if len(walls):
            mine = table.filter(pl.col("rank") == rank)
            assert len(mine) <= limit
            assert mine["lowest"].min() == pytest.approx(32e9 / walls.max())
            assert (mine["lowest"] <= mine["rate"] * (1 + 1e-9)).all()


@settings(max_examples=examples(40))
@given(blame_tables(), st.integers(2, 4))
def test_the_slowest_and_the_fastest_rank_are_always_shown(steps: pl.DataFrame, limit: int) -> None:
    pace, shown = views.ranks_by_pace(steps), views.chosen_ranks(steps, limit)
    assert {pace[0], pace[-1]} <= set(shown)
    assert len(shown) == min(limit, len(pace))
    assert (views.thinning_of_ranks(steps, shown) is None) == (len(shown) == len(pace))


def test_the_longest_step_is_shown_with_the_rank_that_held_it_up_and_why() -> None:
    longest = views.longest_steps(sample().steps, 1).row(0, named=True)
    assert (longest["step"], longest["rank"], longest["cause"]) == (37, 1, "storage")


def test_the_stretch_around_the_longest_step_has_its_neighbours() -> None:
    start_ns, end_ns = views.around_longest(sample().steps, warmup=3)
    stalled = sample().steps.filter(pl.col("step") == 37).row(0, named=True)
    assert start_ns < stalled["start_ns"] < stalled["end_ns"] < end_ns


def span(kind: str, start: int, end: int, pid: int = 11, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "start_ns": start, "end_ns": end, "rank": 0, "pid": pid, **more}


WHOLE = lanes.Window(0, 1000)
PROCESSES = {
    "processes": [
        {"pid": 11, "rank": 0, "worker": 0, "role": "worker"},
        {"pid": 10, "rank": 0, "worker": -1, "role": "rank"},
    ]
}


def test_what_threads_of_a_rank_make_has_a_lane_of_its_own() -> None:
    """In the pictures and in the page: what its main thread decodes and what another one does at
    that time are not mixed."""
    trace = timeline("""
    step            0000000000
    decode main     ##........
    decode t0       .#####....
    read t1         ..##......
    decode w0       ....##....
    compute main    ......0000
    """)
    view = lanes.timeline_of(trace, WHOLE, [0])
    shown = {
        (view.lanes[row["lane"]].name, row["kind"], row["start_ns"]) for row in view.bars.to_dicts()
    }
    names = {100: "main process", 101: "process 101"}
    threads = [(lanes.THREADS, "decode", 10), (lanes.THREADS, "read", 20), ("reads", "read", 20)]
    assert {
        ("main process", "decode", 0),
        ("main process", "decode", 40),
        ("compute", "compute", 60),
        *threads,
    } == shown

    found = tracks_of(trace, blame(trace))
    rows = {
        (found.tracks[row["track"]].name, row["kind"], row["pid"]) for row in found.table.to_dicts()
    }
    made = {(lanes.THREADS, "decode", 100), (lanes.THREADS, "read", 100)} | {
        (name, "decode", pid) for pid, name in names.items()
    }
    assert made == {row for row in rows if row[1] in lanes.LEAVES}
    spans = trace.spans.with_columns(by_thread=lanes.by_thread(trace)).filter(
        pl.col("kind").is_in(lanes.LEAVES)
    )
    assert len(spans) == placed(spans.lazy(), found.table).collect().height


def test_lanes_from_top_to_bottom() -> None:
    trace = trace_of(
        PROCESSES,
        [
            span("fetch", 0, 50, batch=3),
            span("read", 10, 30, file=0, source="storage", bytes=7),
            span("open", 8, 9, file=0, source="page_cache"),
            span("decode", 30, 40),
            span("wait", 20, 60, pid=10),
            span("h2d", 60, 70, pid=10, stream=1),
            span("compute", 70, 90, pid=10, stream=0),
            span("comm", 90, 95, pid=10, stream=2),
            span("step", 20, 95, pid=10, step=3),
            span("user", 0, 95, pid=10),
        ],
        [{"file": 0, "path": "/data/a.JPEG"}],
    )
    view = lanes.timeline_of(trace, WHOLE, [0])
    assert [lane.name for lane in view.lanes] == [
        "reads",
        "worker 0",
        "wait",
        "copies",
        "compute",
        "exchange",
    ]
    shown = [
        (view.lanes[row["lane"]].name, row["kind"], row["start_ns"], row["path"])
        for row in view.bars.to_dicts()
    ]
    assert sorted(shown, key=str) == sorted(
        [
            ("reads", "read", 10, "/data/a.JPEG"),
            ("worker 0", "fetch", 0, None),
            ("worker 0", "read", 10, "/data/a.JPEG"),
            ("worker 0", "decode", 30, None),
            ("worker 0", "open", 8, "/data/a.JPEG"),
            ("wait", "wait", 20, None),
            ("copies", "h2d", 60, None),
            ("compute", "compute", 70, None),
            ("exchange", "comm", 90, None),
        ],
        key=str,
    )
    assert view.boundaries.rows() == [(0, 3, 20)]
    assert view.notes == ()
    assert dict(view.bars.select("kind", "source").unique().rows())["open"] is None


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=80),
    st.integers(1, 60),
)
def test_joining_short_spans_loses_no_time_and_keeps_the_longest(
    gaps: list[tuple[int, int]], limit: int
) -> None:
    ends = list(itertools.accumulate(gap + took for gap, took in gaps))
    spans = [span("decode", end - took, end) for end, (_, took) in zip(ends, gaps, strict=True)]
    window = lanes.Window(0, ends[-1])
    view = lanes.timeline_of(trace_of(PROCESSES, spans, []), window, [0], limit)
    assert len(view.bars) <= limit
    assert bool(view.notes) == (len(spans) > limit)
    if len(view.notes) < 2:
        assert view.bars["busy_ns"].sum() == sum(took for _, took in gaps)
        assert view.bars["count"].sum() == len(spans)
    assert (view.bars["end_ns"] - view.bars["start_ns"]).max() >= max(took for _, took in gaps)


def test_latency_bins_count_every_read_once() -> None:
    bins = views.latency_bins(sample().trace)
    assert bins["reads"].sum() == sample().summary.storage.accesses
    assert set(bins["source"]) == {"storage", "page_cache", "unknown"}


# ------------------------------------------------------------------------------------------ colours

_LMS = np.array(
    [
        [0.31399022, 0.63951294, 0.04649755],
        [0.15537241, 0.75789446, 0.08670142],
        [0.01775239, 0.10944209, 0.87256922],
    ]
)
_MISSING_CONE = {
    "normal": np.eye(3),
    "protanopia": np.array([[0, 1.05118294, -0.05116099], [0, 1, 0], [0, 0, 1]]),
    "deuteranopia": np.array([[1, 0, 0], [0.9513092, 0, 0.04866992], [0, 0, 1]]),
    "tritanopia": np.array([[1, 0, 0], [0, 1, 0], [-0.86744736, 1.86727089, 0]]),
}


def _seen(colour: str, vision: str) -> np.ndarray:
    """The colour in CIELAB as that vision sees it (Viénot, Brettel and Mollon 1999, on
    Hunt-Pointer-Estevez cones)."""
    encoded = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.linalg.inv(_LMS) @ _MISSING_CONE[vision] @ _LMS @ linear, 0, 1)
    xyz = (
        np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        @ linear
        / [0.9505, 1, 1.089]
    )
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("vision", _MISSING_CONE)
@pytest.mark.parametrize("dark", [False, True])
def test_neighbours_in_a_stacked_bar_are_told_apart_with_any_colour_vision(
    vision: str, dark: bool
) -> None:
    colours = [
        palette.DARK.get(colour, colour) if dark else colour
        for colour in palette.CAUSE_COLOURS.values()
    ]
    for one, other in itertools.pairwise(colours):
        assert np.linalg.norm(_seen(one, vision) - _seen(other, vision)) > 15


@pytest.mark.parametrize(
    ("vision", "least"), [(v, 20 if v == "normal" else 7) for v in _MISSING_CONE]
)
@pytest.mark.parametrize("dark", [False, True])
def test_no_two_colours_of_the_timeline_are_alike(vision: str, least: int, dark: bool) -> None:
    """Those of causes and of spans; for spans that share one on purpose it is the same."""
    colours = {*palette.CAUSE_COLOURS.values(), *(entry.light for entry in CLASSES)}
    shown = [palette.DARK[colour] if dark else colour for colour in sorted(colours)]
    for one, other in itertools.combinations(shown, 2):
        distance = np.linalg.norm(_seen(one, vision) - _seen(other, vision))
        assert distance > least, (one, other)


@pytest.mark.parametrize("dark", [False, True])
def test_names_of_functions_can_be_read_on_their_colours(dark: bool) -> None:
    """With the contrast of 4.5:1 that WCAG 2.2 asks of text (1.4.3): in black, and in white on a
    dark page."""
    ink = "#ffffff" if dark else "#12161b"
    for shades in palette.CODE_COLOURS:
        low, high = sorted(_luminance(each) + 0.05 for each in (shades[int(dark)], ink))
        assert high / low >= 4.5, shades


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    encoded = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return float(
        np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
        @ [0.2126, 0.7152, 0.0722]
    )


@pytest.mark.parametrize("dark", [False, True])
def test_every_colour_of_a_chart_has_a_contrast_of_3_to_1(dark: bool) -> None:
    """To the page, its cards, and the lanes of the timeline, as WCAG 2.2 asks of parts of graphics
    (1.4.11)."""
    styles = "".join(
        (ROOT / "ioprof" / "report" / name).read_text()
        for name in ("page.css", "page/timeline.css")
    )
    found = re.findall(r"--(page|card|lane): (#[0-9a-f]{6})", styles)
    grounds = {
        name: [colour for key, colour in found if key == name][int(dark)]
        for name in ("page", "card", "lane")
    }
    used = {
        *palette.CAUSE_COLOURS.values(),
        *palette.SOURCE_COLOURS.values(),
        *(entry.light for entry in CLASSES),
    }
    assert len(used) > 17
    for colour in used:
        for name, ground in grounds.items():
            low, high = sorted(
                _luminance(each) + 0.05
                for each in (palette.DARK.get(colour, colour) if dark else colour, ground)
            )
            assert high / low >= 3, (colour, name)


def test_every_cause_has_a_colour_of_its_own() -> None:
    assert list(palette.CAUSE_COLOURS) == list(CAUSES)
    assert len(set(palette.CAUSE_COLOURS.values())) == len(CAUSES)
