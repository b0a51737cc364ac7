"""Predictions of epochs and the figures of studies, on runs and rows whose numbers are known."""

import json
import re
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline import timeline

import ioprof
from ioprof.analysis.grid import Axis, Cell, Grid
from ioprof.analysis.study import Iteration, Study, StudyRow
from ioprof.errors import CommandError
from ioprof.format.run_record import RunRecord
from ioprof.format.trace import Trace
from ioprof.jobs.studies.grid_file import grid_names, load_grid
from ioprof.model.extrapolation.asked import Extrapolated
from ioprof.model.extrapolation.whole import asked_of, extrapolate
from ioprof.model.pipeline import Pipeline
from ioprof.model.recorded import pipeline
from ioprof.model.summary import with_gains
from ioprof.report.grid import bend_lines
from ioprof.report.run import Run
from ioprof.report.study import study_notes, study_table, write_study

TICK_NS = 10
ITERATION = Iteration(1.0, 0.1, None, 0.1, 0.5, 0.2, 0.1)


def job(lengths: list[list[int]], asked: int, before: int, after: int) -> Trace:
    """A job whose epochs have steps of these lengths, in ticks; so many ticks lie before the first
    step and after the last."""
    flat = [length for epoch in lengths for length in epoch]
    bar = "".join(f"{number:x}" * length for number, length in enumerate(flat))
    times = {"start_ns": -before * TICK_NS, "end_ns": (sum(flat) + after) * TICK_NS}
    config = {"predict_epochs": asked, "steps_per_epoch": len(lengths[0])}
    return timeline(f"step {bar}\ncompute {bar}", config=config, times=times)


@st.composite
def epochs(draw: st.DrawFn) -> list[list[int]]:
    """Two to four epochs of two or three steps; the timeline has 16 numbers."""
    per_epoch = draw(st.integers(2, 3))
    return draw(
        st.lists(
            st.lists(st.integers(1, 6), min_size=per_epoch, max_size=per_epoch),
            min_size=2,
            max_size=4,
        )
    )


@settings(max_examples=15)
@given(epochs(), st.integers(2, 90), st.integers(0, 9), st.integers(0, 9))
def test_a_prediction_is_the_sum_of_its_epochs(
    lengths: list[list[int]], asked: int, before: int, after: int
) -> None:
    """Start, end, the first epoch once, and the mean of the later ones as often as they are due."""
    found = asked_of(Run.of(job(lengths, asked, before, after)))
    assert found is not None
    first, *later = [sum(epoch) * TICK_NS for epoch in lengths]
    whole_ns = (before + after) * TICK_NS + first + (asked - 1) * sum(later) / len(later)
    assert pytest.approx(whole_ns / 1e9) == found.seconds
    assert (asked, len(lengths)) == (found.epochs, found.made)


@settings(max_examples=15)
@given(epochs(), st.integers(0, 9), st.integers(0, 9))
def test_the_epochs_that_were_made_are_predicted_exactly(
    lengths: list[list[int]], before: int, after: int
) -> None:
    """From themselves."""
    trace = job(lengths, len(lengths), before, after)
    found, times = asked_of(Run.of(trace)), trace.run.times
    assert found is not None
    assert times is not None
    assert times.end_ns is not None
    assert times.start_ns is not None
    assert pytest.approx((times.end_ns - times.start_ns) / 1e9) == found.seconds


@settings(max_examples=15)
@given(epochs(), st.integers(2, 90), st.integers(0, 9), st.integers(0, 9))
def test_the_first_epochs_predict_as_a_shorter_run(
    lengths: list[list[int]], asked: int, before: int, after: int
) -> None:
    """What came after them has no influence."""
    long, short = (Run.of(job(each, asked, before, after)) for each in (lengths, lengths[:2]))
    whole = Extrapolated(epochs=asked)
    assert extrapolate(short, whole) == extrapolate(long, whole, 2 * len(lengths[0]))
    assert extrapolate(long, whole) == extrapolate(long, whole, sum(map(len, lengths)))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, 100),
        ({"asked_bytes": None}, 100),
        # the processes took 35
        (
            {"asked_bytes": 60, "peak_bytes": 60, "page_cache_bytes": 25},
            25,
        ),
        ({"asked_bytes": 60, "peak_bytes": 40, "page_cache_bytes": 25}, 45),
        ({"asked_bytes": 60}, 60),
        ({"asked_bytes": 10, "peak_bytes": 60, "page_cache_bytes": 5}, 0),
    ],
)
def test_the_page_cache_has_what_the_limit_leaves(
    limit: dict[str, Any] | None, expected: int
) -> None:
    """Advice that a dataset fits into memory rests on it."""
    run = RunRecord.of({"hosts": [{"name": "a", "memory_bytes": 100}], "limit": limit})
    assert expected == run.page_cache_room_bytes


def study(varied: str) -> Study:
    """Two runs."""
    first = StudyRow("1", "", "emulated", 1, 9, 64, 9.0, 64.0, 1.0, ITERATION, "storage")
    scales = {
        "dataset_bytes": 10**9,
        "dataset_samples": 5000,
        "memory_limit_bytes": 2 * 10**9,
        "storage_bytes": (10**9, 0),
        "epochs": 10,
        "predicted_s": 99.0,
        "error_s": 1.0,
        "first_epoch_s": 20.0,
        "later_epoch_s": 9.0,
        "needed_bytes_per_s": 2e9,
        "needed_reads_per_s": 1e4,
        "at_samples_per_s": 1e4,
        "got_bytes_per_s": 5e7,
    }
    rows = [first if varied == "ranks" else replace(first, **scales)]
    rows.append(replace(rows[0], value="2", dataset_bytes=None if varied == "ranks" else 2 * 10**9))
    return Study("mine", "about", "a source", None, "no date", varied, "data", tuple(rows))


@pytest.mark.parametrize(
    ("varied", "figures"),
    [("ranks", ["iteration"]), ("dataset_scale", ["epochs", "rates", "iteration"])],
)
def test_the_figures_have_what_the_page_sets_in_them(
    varied: str, figures: list[str], tmp_path: Any
) -> None:
    """The script of the page sets colours of `font` and `hoverlabel`, and takes those of lines and
    marks for its legend."""
    write_study(study(varied), tmp_path)
    page = (tmp_path / "study.html").read_text()
    found = dict(
        re.findall(r'<script[^>]*id="figure-(\w+)-0"[^>]*>(.*?)</script>', page, re.DOTALL)
    )
    assert figures == list(found)
    for text in found.values():
        drawn = json.loads(text)
        assert {"font", "hoverlabel"} <= drawn["layout"].keys()
        assert all(
            trace["line" if trace["type"] == "scatter" else "marker"]["color"]
            for trace in drawn["data"]
        )


def test_a_study_of_scales_says_how_long_a_step_waits_for_other_ranks() -> None:
    """One whose own input is there waits in the exchange for ranks whose input is not."""
    names = [str(cell) for cell in study_table(study("dataset_scale")).columns[0].cells]
    waits = {
        name: place
        for place, name in enumerate(names)
        if name in ("step waits for input", "for late ranks")
    }
    values = list(study_table(study("dataset_scale")).columns[1].cells)
    assert {"step waits for input": "20.0%", "for late ranks": "50.0%"} == {
        name: values[place] for name, place in waits.items()
    }


def test_bytes_from_storage_are_those_of_their_epoch() -> None:
    """By the end of each read; what came from the page cache is none of them, nor what was read
    after the last whole epoch."""
    trace = timeline(
        """
        step              0000 1111 2222 3333 4444
        compute           0000 1111 2222 3333 4444
        read w0 100B      #=.. .#.. ..#. .... #...
        read w0 cache 7B  .... ..## .#.. ##.. ....
        """,
        config={"predict_epochs": 9, "steps_per_epoch": 2},
        times={"start_ns": 0, "end_ns": 200},
    )
    found = asked_of(Run.of(trace))
    assert found is not None
    assert (300, 100) == found.storage_bytes


def test_the_source_of_a_study_has_its_year_or_why_it_has_none() -> None:
    """In the notes under its table."""
    undated = study("ranks")
    assert study_notes(undated)[0].endswith("Source: a source (year unknown: no date).")
    assert study_notes(replace(undated, year=2017, undated=""))[0].endswith(
        "Source: a source (2017)."
    )
    assert study_notes(replace(undated, undated=""))[0].endswith("Source: a source.")


def test_the_notes_of_a_study_name_the_model_that_was_run() -> None:
    """`--model` may have replaced that of the preset."""
    made = study("ranks")
    rows = tuple(replace(row, model="small_cnn") for row in made.rows)
    assert "Model of these runs: small_cnn." in study_notes(replace(made, rows=rows))
    assert not any(note.startswith("Model") for note in study_notes(made))


# --------------------------------------------------------------------------- parts of a training


def part(steps: int, length: int, reads: str = "", **run: Any) -> Run:
    """The first steps of an epoch, all of that many ticks; `reads` are lanes of drawings."""
    bar = "".join(f"{number:x}" * length for number in range(steps))
    lanes = "\n".join(f"{words} {bar}" for words in reads.split(", ") if words)
    times = {"start_ns": -2 * TICK_NS, "end_ns": (steps * length + 3) * TICK_NS}
    return Run.of(timeline(f"step {bar}\ncompute {bar}\n{lanes}", times=times, **run))


@settings(max_examples=15)
@given(st.integers(4, 16), st.integers(1, 6), st.integers(1, 90), st.integers(1, 10**6))
def test_equal_steps_make_a_training_of_as_many_as_it_has(
    steps: int, length: int, epochs: int, records: int
) -> None:
    """With nothing read and one sample to a step, that is all there is."""
    found = extrapolate(part(steps, length), Extrapolated(epochs=epochs, records=records))
    assert pytest.approx((5 + epochs * records * length) * TICK_NS / 1e9) == found.seconds
    assert found.low_s <= found.seconds <= found.high_s
    assert pytest.approx(sum(each.seconds for each in found.parts)) == found.seconds


@pytest.mark.parametrize(
    ("source", "memory", "bounded", "asks"),
    [
        ("cache", 10**6, True, set()),
        # of what is not in memory, a recording that read from there knows nothing
        ("cache", 500, False, {"cold"}),
        ("storage", 1, True, set()),
        ("storage", 10**6, True, set()),
        ("unknown", 1, True, set()),
    ],
)
def test_later_epochs_have_what_memory_has_of_the_data(
    source: str, memory: int, bounded: bool, asks: set[str]
) -> None:
    """By the bytes of a record, as often as there are records."""
    hosts = [{"name": "node1", "memory_bytes": memory}]
    run = part(16, 4, f"fetch w0, read w0 100B {source}", hosts=hosts)
    found = extrapolate(run, Extrapolated(epochs=90, records=160))
    assert 16_000 == found.dataset_bytes
    assert bounded == (found.high_s is not None)
    assert asks == {each.what for each in found.record_next}
    assert {"storage": True, "cache": False, "unknown": None}[source] is found.is_cold


@pytest.mark.parametrize(
    ("is_large", "is_asked", "times"), [(False, False, 1), (True, True, 1), (True, False, 0)]
)
def test_a_large_run_is_replayed_for_a_prediction_only_where_it_is_asked_for(
    is_large: bool, is_asked: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And any run is made a pipeline once, for all that memory may have of its data."""
    config = {"predict_epochs": 90, "as_of": 160}
    hosts = [{"name": "node1", "memory_bytes": 10_000}]
    run = part(16, 4, "wait, fetch w0, read w0 100B storage", hosts=hosts, config=config)
    if is_large:
        monkeypatch.setattr(Trace, "num_spans", property(lambda _: 4_000_001))
    made = list[Trace]()

    def counted(trace: Trace) -> Pipeline:
        made.append(trace)
        return pipeline(trace)

    monkeypatch.setattr("ioprof.model.extrapolation.whole.pipeline", counted)
    found = with_gains(run, is_asked).summary.prediction
    assert found is not None
    assert ("predicted", times) == (found.later_basis, len(made))
    assert 0 < (found.memory_ratio or 0.0) < 1


@pytest.mark.parametrize("lengths", [[[3, 2, 4], [2, 2, 2]], [[3, 2, 4]]])
def test_what_was_not_recorded_is_not_in_a_prediction(lengths: list[list[int]]) -> None:
    """A whole training may have validations and checkpoints that its first epochs have not."""
    found = extrapolate(Run.of(job(lengths, 9, 0, 0)), Extrapolated(epochs=9))
    assert ("validation", "checkpoint") == found.not_seen


def test_epochs_of_a_part_of_the_data_need_a_word() -> None:
    """Else they are the whole ones."""
    run = Run.of(job([[3, 2, 4], [2, 2, 2]], 9, 0, 0))
    with pytest.raises(CommandError, match="--from-cut"):
        extrapolate(run, Extrapolated(records=300))
    found = extrapolate(run, Extrapolated(epochs=2, records=300, from_cut=True))
    assert (300, 6) == (found.steps_per_epoch, found.recorded_steps)


def test_what_cannot_be_said_names_what_to_record() -> None:
    """A run of a part of an epoch does not say how long one is."""
    with pytest.raises(CommandError, match="give --records"):
        extrapolate(part(8, 2), Extrapolated())


# ------------------------------------------------------------------ studies over several settings


def test_the_studies_that_come_with_ioprof_can_be_made() -> None:
    """Their files name only options that there are, and each cell has all of them."""
    simulated = {"mlperf-storage", "tsubame-io", "tsubame-scaling"}
    assert {"chainermn-scaling", "layouts", "rannc-mlp", *simulated} == {*grid_names()}
    for name in grid_names():
        grid = load_grid(name)
        assert grid is not None
        assert grid.source
        assert grid.date
        assert len({*grid.places()}) == len(grid.places()) > 5


def small_study(folder: Path, rates: tuple[float, ...]) -> Path:
    """The file of a study of storage that delivers so much."""
    values = ", ".join(f'{{ is = "{each:g}", "storage.bytes_per_s" = {each} }}' for each in rates)
    job = 'system = "nvme-node"\njob = "mlperf-unet3d"\ndevice = "h100-mlperf-storage"\nsteps = 9'
    path = folder / "mine.toml"
    path.write_text(
        f'kind = "simulate"\nquantity = "use"\nabout = "own"\n[job]\n{job}\n[[axes]]\nname ='
        f' "ranks"\nvalues = [{{ is = "1", ranks = 1 }}, {{ is = "4", ranks = 4 }}]\n[[axes]]\nname'
        f' = "storage"\nvalues = [{values}]\n'
    )
    return path


def grid_of(*rates: tuple[float, ...]) -> Grid:
    """Samples/s of 1, 2 and 4 ranks in each row; without rows' names if it is one."""
    axes = [Axis("layout", tuple("abcd"[: len(rates)]))] if len(rates) > 1 else []
    cells = [
        Cell((*row, str(ranks)), 1.0, None, None, "measured", "storage", 0.5, per_s, ranks)
        for row, row_rates in zip("abcd" if axes else ((),), rates, strict=False)
        for ranks, per_s in zip((1, 2, 4), row_rates, strict=True)
    ]
    columns = Axis("ranks", ("1", "2", "4"))
    return Grid("mine", "own", "own", "", "total_s", (*axes, columns), tuple(cells))


def test_a_row_bends_where_a_rank_falls_most_if_it_falls_at_all() -> None:
    """Not where twice as many ranks are twice as fast, or more."""
    found = list(grid_of((10, 20, 40), (10, 21, 45), (10, 19, 20)).bends())
    assert [("c",)] == [each.row for each in found]
    assert [("2", "4", 0.95, 0.5)] == [
        (each.before, each.after, each.efficiency_before, each.efficiency_after) for each in found
    ]


def test_the_line_of_a_study_with_one_axis_names_no_row() -> None:
    """It begins with where the ranks fall."""
    assert [
        "From 2 to 4 ranks the throughput per rank falls from 95.0% to 50.0% of that in the first"
        " column; storage then takes 50.0% of a step."
    ] == list(bend_lines(grid_of((10, 19, 20))))
    assert next(bend_lines(grid_of((9, 9, 9), (9, 9, 9)))).startswith("a: from 1 to 2 ranks")


def test_a_study_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """What it made before stays as it is, and more storage is never worse."""
    first = ioprof.study(str(small_study(tmp_path, (1e9, 5e9))), out=tmp_path / "made")
    more = ioprof.study(str(small_study(tmp_path, (1e9, 2e9, 5e9))), out=tmp_path / "made")
    assert isinstance(first, Grid)
    assert isinstance(more, Grid)
    assert {*first.cells} < {*more.cells}
    assert more == Grid.load(tmp_path / "made" / "study.json")
    for _, cells in more.rows():
        uses = [each.value for each in cells if each]
        assert pytest.approx(sorted(uses)) == uses
        assert all(each.low <= each.value <= each.high for each in cells if each)
    page = (tmp_path / "made" / "study.html").read_text()
    assert "Predicted by simulation" in page
    cells = json.loads((tmp_path / "made" / "study.ipynb").read_text())["cells"]
    assert ["markdown", "code", "code", "code"] == [each["cell_type"] for each in cells]
    assert not any(each.get("outputs") for each in cells)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "simulate"\naxes = [{ name = "a", values = [{ is = "1" }] }]', "no 'system'"),
        ('kind = "guess"\naxes = [{ name = "a", values = [{ is = "1" }] }]', "give kind"),
        ('axes = [{ name = "a", values = [{ ranks = 1 }] }]', "`is`"),
        ('axes = [{ name = "a", values = [{ is = "1" }] }]\nmore = 1', "more is unknown"),
    ],
)
def test_a_study_that_cannot_be_made_says_what_to_change(
    text: str, message: str, tmp_path: Path
) -> None:
    """Before anything is run."""
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(CommandError, match=message):
        ioprof.study(str(tmp_path / "mine.toml"), out=tmp_path / "made")


def cut(name: str, folder: Path, *counts: int) -> Path:
    """The file of a study of ioprof, with so many values of each axis, and few steps."""
    text = files("ioprof.jobs.studies").joinpath(f"{name}.toml").read_text()
    table = tomllib.loads(text)
    axes = "".join(
        f"[[axes]]\nname = {json.dumps(axis['name'])}\nvalues = ["
        + ", ".join(
            "{ " + ", ".join(f"{key} = {json.dumps(each)}" for key, each in value.items()) + " }"
            for value in axis["values"][:count]
        )
        + "]\n"
        for axis, count in zip(table["axes"], counts, strict=True)
    )
    path = folder / "mine.toml"
    path.write_text(re.sub(r"(?m)^steps = .*", "steps = 8", text[: text.index("[[axes]]")]) + axes)
    return path


def test_a_faster_device_needs_more_and_is_fed_less(tmp_path: Path) -> None:
    """On all devices of the study of the input of four networks; copies are hidden where they are
    shorter than the computation, and each row says what the first device needs."""
    made = ioprof.study(str(cut("tsubame-io", tmp_path, 2, 1, 4, 6)), out=tmp_path / "made")
    assert isinstance(made, Grid)
    assert {"predicted"} == {cell.basis for cell in made.cells}
    for place, cells in made.rows():
        needs = [cell.needs_bytes_per_s or 0.0 for cell in cells if cell]
        feeds = [cell.feeds or 0.0 for cell in cells if cell]
        assert sorted(needs) == needs, place
        assert sorted(feeds, reverse=True) == feeds, place
    for cell in made.cells:
        parts = {part.name: part for part in cell.parts}
        copies_s, compute_s = parts["copies"].seconds or 0.0, parts["compute"].exposed_s
        assert parts["copies"].exposed_s == pytest.approx(max(0.0, copies_s - compute_s))
    lines = [*bend_lines(made)]
    assert len(made.cells) / 6 == len(lines)
    assert all("P100 needs" in line for line in lines)
    # decoding bounds the one; the other, where the data exceed the memory, one of 12 servers
    whole = {cell.place[0]: cell.binds for cell in made.cells if cell.place[2:] == ("4x", "H200")}
    assert ["cores", "storage"] == list(whole.values())


@pytest.mark.job(every=4)
def test_a_pipeline_and_data_parallel_ranks_are_measured_beside_each_other(tmp_path: Path) -> None:
    """The study of a divided perceptron at its smallest: what a step is made of sums to it, one
    rank exchanges nothing, and no dataset is made."""
    made = ioprof.study(str(cut("rannc-mlp", tmp_path, 2, 2)), out=tmp_path / "made")
    assert isinstance(made, Grid)
    assert {"measured"} == {cell.basis for cell in made.cells}
    assert 4 == len(made.cells)
    for cell in made.cells:
        parts = {part.name: part.exposed_s for part in cell.parts}
        mean_s = Run.load(Path(cell.run)).summary.steps.mean_s
        assert mean_s == pytest.approx(sum(parts.values()))
        assert (cell.ranks > 1) == bool(parts.keys() & {"exchange", "straggler"})
        assert all(part.exposed_s <= part.seconds for part in cell.parts if part.seconds)
    for bend in made.bends():
        after = next(cell for cell in made.cells if cell.place == (*bend.row, bend.after))
        exposed_s = {part.name: part.exposed_s for part in after.parts if part.name != "compute"}
        assert exposed_s[bend.bound_by] == max(exposed_s.values())
    assert not (tmp_path / "made" / "source").exists()
    assert "what computation does not hide" in (tmp_path / "made" / "study.html").read_text()
