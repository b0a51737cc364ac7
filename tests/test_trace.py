"""Trace: what is loaded is what was saved or an error that names the file; parts merge into the
whole they came from."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from rich.console import Console
from strategies import examples, traces
from timeline import pid, timeline
from told import summarise

from ioprof.analysis.charge.blame import blame
from ioprof.errors import RunError
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import COUNTER_COLUMNS, FILE_COLUMNS, RUN_SCHEMA
from ioprof.format.trace import Trace, table_schema
from ioprof.report.texts.picture import step_picture
from ioprof.report.texts.text import summary_text

DRAWING = """
    step            0000000000 1111111111
    wait            .000...... .1........
    fetch w0        0000111111 1.........
    read w0         ##........ ..........
    read w0 cache   ......###. ..........
    decode w0       ..##.....# ..........
    compute         ....000000 ..11111111
    step r1         0000000000 1111111111
    wait r1         .000...... .1........
    comm r1         ........## ........##
"""
RUN = {
    "name": "night",
    "status": "complete",
    "command": "ioprof run data",
    "started": "2026-02-11T09:12:44Z",
    "failures": [],
    "config": {
        "ranks": 2,
        "workers": 1,
        "batch_size": 4,
        "loader": "files",
        "device": "emulated:a100",
    },
    "device": {"name": "a100", "basis": "emulated", "samples_per_s": 919.5},
    "dataset": {
        "name": "imagenet",
        "layout": "files",
        "bytes": 1000,
        "image": {"transform": "original"},
    },
    "hosts": [{"name": "node1", "cpus": 8, "memory_bytes": 1 << 34, "others_cpu_ratio": 0.01}],
    "versions": {"ioprof": "1"},
    "environment": {},
    "clocks": {
        "method": "one host",
        "uncertainty_ns": 0,
        "zero_monotonic_ns": 5,
        "anchors": [{"host": "node1"}],
    },
    "processes": [
        {
            "host": "node1",
            "pid": pid(0, 0),
            "role": "worker",
            "rank": 0,
            "worker": 0,
            "closed": True,
            "lost": 0,
            "spans": 4,
            "first_ns": 0,
            "last_ns": 50,
        },
        {
            "host": "node1",
            "pid": pid(1),
            "role": "rank",
            "rank": 1,
            "worker": None,
            "closed": False,
            "lost": 2,
        },
    ],
    "capture": {
        "native": True,
        "reads": True,
        "reads_by": "our loaders",
        "ns_per_span": 200.0,
        "damaged": [{"file": "a"}],
        "bytes_by_kernel": [{"pid": pid(0, 0), "bytes": 100}],
    },
}
"""All that a reader looks at in run.json."""

# ------------------------------------------------------------------------------------------ loading


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder; tests replace its run.json."""
    folder = tmp_path_factory.mktemp("run")
    trace = timeline(DRAWING)
    Trace(RunRecord.of(RUN), trace.spans).save(folder)
    return folder


def everything_said(trace: Trace) -> str:
    """All that is computed from a run's facts."""
    summary = summarise(trace)
    console = Console(width=100, record=True, quiet=True)
    console.print(summary_text(summary))
    return summary.to_json() + console.export_text() + step_picture(trace, blame(trace))


def test_what_is_loaded_is_what_was_saved(folder: Path, tmp_path: Path) -> None:
    """Facts and tables, and a summary that is the same."""
    trace = Trace(RunRecord.of(RUN), timeline(DRAWING).spans)
    trace.save(tmp_path)
    loaded = Trace.load(tmp_path)
    assert {"schema": RUN_SCHEMA, **RUN} == loaded.run.to_dict()
    assert_frame_equal(trace.spans, loaded.spans)
    assert summarise(trace).to_json() == summarise(loaded).to_json()


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value within a value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [way for key, entry in inner for way in ((*above, key), *places(entry, (*above, key)))]


KEYS = sorted({way[-1] for way in places(RUN) if isinstance(way[-1], str)})
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**31)
    | st.floats()
    | st.text(st.characters(), max_size=9)
)
any_json = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def put(way: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The facts of the run with another value at one place."""
    run: dict[str, Any] = json.loads(json.dumps({"schema": RUN_SCHEMA, **RUN}))
    inner: Any = run
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    return run


def check_that_facts_work_or_are_refused(folder: Path, document: str) -> None:
    """Either everything can be said of the run, or one line names the file."""
    (folder / "run.json").write_text(document)
    refused = ""
    try:
        assert everything_said(Trace.load(folder))
    except RunError as error:
        refused = str(error)
    assert not refused or refused.startswith(f"{folder / 'run.json'}: ")
    assert len(refused.splitlines()) < 2


@settings(max_examples=examples(120))
@given(
    st.sampled_from(places(RUN)) | st.sampled_from(["schema", *RUN]).map(lambda key: (key,)),
    any_json,
)
@example(("hosts",), 3)
@example(("clocks",), None)
@example(("processes",), {"pid": 1})
@example(("processes",), [{"pid": "x", "worker": "y"}])
@example(("processes", 0, "pid"), 2**63)
@example(("capture", "bytes_by_kernel", 0, "pid"), 2**62)
@example(("config", "ranks"), 10**15)
@example(("config", "batch_size"), 10**400)
@example(("device", "samples_per_s"), 1e308)
@example(("hosts", 0, "others_cpu_ratio"), float("nan"))
@example(("failures",), 7)
def test_any_value_anywhere_works_or_is_refused(
    folder: Path, way: tuple[Any, ...], value: Any
) -> None:
    """A run.json that somebody else wrote, or changed: no value of any key leads to another error
    than RunError."""
    check_that_facts_work_or_are_refused(folder, json.dumps(put(way, value)))


@given(any_json)
def test_any_document_is_refused(folder: Path, document: Any) -> None:
    """JSON that does not say it is a run is none: a list, a number, an object of another
    program."""
    (folder / "run.json").write_text(json.dumps(document))
    with pytest.raises(RunError, match=r"run\.json: "):
        Trace.load(folder)


@pytest.mark.parametrize("depth", [60, 700, 50_000])
def test_a_deeply_nested_document_is_refused(folder: Path, depth: int) -> None:
    """However deep: it is neither followed to its end nor passed on to what would be."""
    nested = "[" * depth + "]" * depth
    (folder / "run.json").write_text(f'{{"schema": "{RUN_SCHEMA}", "command": {nested}}}')
    with pytest.raises(RunError, match=r"run\.json: "):
        Trace.load(folder)


@pytest.mark.parametrize(
    ("way", "value", "said"),
    [
        (("hosts",), 3, "hosts is 3, not a list"),
        (("clocks",), [1], "clocks is [1], not an object"),
        (
            ("config", "ranks"),
            "two",
            'config.ranks is "two", not a whole number from 0 to 1,048,576',
        ),
        (("hosts",), [{"cpus": 1}, "node2"], 'hosts[1] is "node2", not an object'),
        (("processes", 1, "pid"), True, "processes[1].pid is true, not a whole number"),
        (("name",), ["x" * 99], f'name is ["{"x" * 37}…, not a text'),
    ],
)
def test_a_value_of_the_wrong_type_is_named(
    folder: Path, way: tuple[Any, ...], value: Any, said: str
) -> None:
    """File, key, what it is, what it should be, and what to do."""
    (folder / "run.json").write_text(json.dumps(put(way, value)))
    with pytest.raises(RunError) as refused:
        Trace.load(folder)
    assert f"{folder / 'run.json'}: {said}; " in str(refused.value)
    assert "ioprof run --out" in str(refused.value)


@pytest.mark.parametrize("key", sorted(RUN))
def test_what_was_not_recorded_is_no_error(folder: Path, key: str) -> None:
    """A key that is null or missing is a fact that is not known."""
    for run in (
        put((key,), None),
        {name: value for name, value in {"schema": RUN_SCHEMA, **RUN}.items() if name != key},
    ):
        (folder / "run.json").write_text(json.dumps(run))
        assert everything_said(Trace.load(folder))


# ------------------------------------------------------------------------------------------ merging


@st.composite
def runs(draw: st.DrawFn) -> Trace:
    """A job of two or three ranks whose spans name files, with counters and facts."""
    trace = draw(traces(max_ranks=3).filter(lambda trace: len(trace.ranks) > 1))
    numbers = draw(
        st.lists(
            st.none() | st.integers(0, 4), min_size=len(trace.spans), max_size=len(trace.spans)
        )
    )
    spans = trace.spans.with_columns(
        file=pl.Series(numbers, dtype=pl.Int64), host=pl.lit("node1", trace.spans.schema["host"])
    )
    files = [
        {"file": number, "path": f"/data/{number}", "size_bytes": 100 + number}
        for number in range(5)
    ]
    counters = [
        {"time_ns": rank, "host": "node1", "rank": rank, "pid": pid(rank), "name": "rss"}
        for rank in trace.ranks
    ]
    processes = [
        {"host": "node1", "pid": pid(rank), "rank": rank, "role": "rank"} for rank in trace.ranks
    ]
    facts = RunRecord.of({**RUN, "config": trace.run.config.to_dict(), "processes": processes})
    tables = (
        pl.DataFrame(rows, schema=table_schema(columns))
        for rows, columns in ((files, FILE_COLUMNS), (counters, COUNTER_COLUMNS))
    )
    return Trace(facts, spans, *tables)


def part(whole: Trace, ranks: list[int], order: list[int]) -> Trace:
    """What a collector of these ranks alone would have: their processes, and the files that they
    used, numbered its own way."""
    mine = pl.col("rank").is_in(ranks)
    spans = whole.spans.filter(mine)
    used = [number for number in order if number in spans["file"].to_list()]
    numbers = {number: 7 + place for place, number in enumerate(used)}
    renumbered = pl.col("file").replace_strict(numbers, default=None, return_dtype=pl.Int64)
    processes = tuple(process for process in whole.run.processes if process.rank in ranks)
    return Trace(
        whole.run.replace(processes=processes),
        spans.with_columns(renumbered),
        whole.files.filter(pl.col("file").is_in(used)).with_columns(renumbered),
        whole.counters.filter(mine),
    )


def unordered(trace: Trace) -> tuple[Any, ...]:
    """What a trace says, whatever the order of its rows and entries and the numbers of its
    files."""
    paths = trace.files.select("file", "path")
    spans = trace.spans.join(paths, on="file", how="left").drop("file")
    used = trace.files.filter(
        pl.col("file").is_in(trace.spans["file"].drop_nulls().implode())
    ).drop("file")
    tables = [sorted(table.rows(), key=repr) for table in (spans, used, trace.counters)]
    return *tables, settled(trace.run.to_dict())


def settled(value: Any) -> Any:
    """Lists sorted, on every level."""
    if isinstance(value, dict):
        return {key: settled(value[key]) for key in sorted(value)}
    return sorted(map(settled, value), key=repr) if isinstance(value, list) else value


@st.composite
def halves(draw: st.DrawFn) -> tuple[Trace, list[Trace]]:
    """A run, and the same run in two parts of its ranks."""
    whole = draw(runs())
    first = draw(st.sets(st.sampled_from(whole.ranks), min_size=1, max_size=len(whole.ranks) - 1))
    orders = st.permutations(range(5))
    return whole, [
        part(whole, [rank for rank in whole.ranks if (rank in first) is chosen], draw(orders))
        for chosen in (True, False)
    ]


@settings(max_examples=examples(25))
@given(halves())
def test_the_halves_of_a_run_merge_into_the_whole(found: tuple[Trace, list[Trace]]) -> None:
    """Spans, files, counters and facts; each span still names its path, whatever number that had in
    its half."""
    whole, parts = found
    merged = Trace.merge(parts)
    assert unordered(whole) == unordered(merged)
    assert len(merged.files) == merged.files["path"].n_unique() == merged.files["file"].n_unique()
    assert summarise(whole).to_json() == summarise(merged).to_json()


@settings(max_examples=examples(40))
@given(halves())
def test_selected_ranks_merge_into_the_whole(found: tuple[Trace, list[Trace]]) -> None:
    """`merge` undoes `select`, though each selection keeps all facts and files, down to the numbers
    of the files."""
    whole, _ = found
    selected = [whole.select(rank=rank) for rank in whole.ranks]
    merged = Trace.merge([Trace(entry.run, entry.spans, entry.files) for entry in selected])
    assert_frame_equal(whole.spans, merged.spans, check_row_order=False)
    assert_frame_equal(whole.files, merged.files)
    assert whole.run == merged.run


@settings(max_examples=examples(40))
@given(halves(), st.randoms())
def test_the_order_of_the_parts_does_not_matter(
    found: tuple[Trace, list[Trace]], random: Any
) -> None:
    """Also where the parts know different things of the run: each of them is kept, and the worse
    status holds."""
    parts = [
        Trace(
            RunRecord.of({**entry.run.to_dict(), **told}), entry.spans, entry.files, entry.counters
        )
        for entry, told in zip(
            found[1],
            [
                {
                    "status": "failed",
                    "failures": [{"rank": 0, "what": "x"}],
                    "clocks": {"uncertainty_ns": 5, "anchors": [{"host": "node7"}]},
                    "capture": {
                        "reads": True,
                        "unobserved": [{"unobserved": "x"}],
                        "gpu": {"windows": [{"rank": 0}], "notes": [{"pid": 7}]},
                    },
                },
                {
                    "hosts": [{"name": "node2", "cpus": 4}],
                    "capture": {
                        "reads": False,
                        "ns_per_span": 300,
                        "damaged": [{"file": "b"}],
                        "gpu": {"windows": [{"rank": 1}]},
                    },
                },
            ],
            strict=True,
        )
    ]
    one, other = Trace.merge(parts), Trace.merge(parts[::-1])
    assert unordered(one) == unordered(other)
    assert ("failed", ["x"]) == (one.run.status, [failure.what for failure in one.run.failures])
    assert {"node1", "node2"} == {host.name for host in one.run.hosts}
    capture = one.run.capture
    assert (False, 300, ["x"]) == (
        capture.reads,
        capture.ns_per_span,
        [hook.unobserved for hook in capture.unobserved],
    )
    assert capture.gpu is not None
    assert ({0, 1}, [7]) == (
        {window.rank for window in capture.gpu.windows},
        [note.pid for note in capture.gpu.notes],
    )
    assert 5 == one.run.clocks.uncertainty_ns


@settings(max_examples=examples(40))
@given(runs())
def test_one_part_is_the_whole(whole: Trace) -> None:
    """A merge of one trace is that trace."""
    merged = Trace.merge([whole])
    assert whole.run == merged.run
    for name in ("spans", "files", "counters"):
        assert_frame_equal(getattr(whole, name), getattr(merged, name))


def test_parts_from_disk_merge(tmp_path: Path) -> None:
    """Hosts and names that each file numbers its own way come out as what they are; the merged
    trace can be saved."""
    for rank, host in enumerate(("node1", "node2")):
        spans = timeline(f"step r{rank} 00").spans
        trace = Trace(
            RunRecord.of(RUN),
            spans.with_columns(
                host=pl.lit(host, spans.schema["host"]),
                name=pl.lit(f"of {host}", spans.schema["name"]),
            ),
        )
        trace.save(tmp_path / host)
    Trace.merge([Trace.load(tmp_path / host) for host in ("node2", "node1")]).save(
        tmp_path / "both"
    )
    rows = Trace.load(tmp_path / "both").spans.select("rank", "host", "name").rows()
    assert [(0, "node1", "of node1"), (1, "node2", "of node2")] == sorted(rows)


def test_what_two_parts_know_of_a_file_is_one_row() -> None:
    """A null in one part is filled from the other."""
    rows = (
        {"file": 3, "path": "/a", "size_bytes": 9},
        {"file": 0, "path": "/a", "file_system": "lustre"},
    )
    parts = [
        Trace(
            RunRecord(),
            timeline(f"read r{rank} ##").spans.with_columns(file=pl.lit(row["file"])),
            pl.DataFrame([row], table_schema(FILE_COLUMNS)),
        )
        for rank, row in enumerate(rows)
    ]
    merged = Trace.merge(parts)
    assert [("/a", 9, "lustre")] == merged.files.select("path", "size_bytes", "file_system").rows()
    assert merged.files["file"].to_list() == merged.spans["file"].unique().to_list()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "day"),
        ("started", "2026-02-12T00:00:00Z"),
        ("config", {"ranks": 3}),
        ("dataset", None),
        ("clocks", {"zero_monotonic_ns": 6}),
    ],
)
def test_parts_of_different_runs_are_refused(key: str, value: Any) -> None:
    """Their times and their steps have nothing to do with each other; the error names what
    differs."""
    parts = [
        Trace(RunRecord.of({**RUN, **told}), timeline(f"step r{rank} 00").spans)
        for rank, told in enumerate(({}, {key: value}))
    ]
    with pytest.raises(RunError, match=key):
        Trace.merge(parts)


def test_a_process_in_two_parts_is_refused() -> None:
    """Its time would be counted twice."""
    trace = timeline(DRAWING)
    with pytest.raises(RunError, match=f"process {pid(0)} .* two"):
        Trace.merge([trace, trace.select(rank=0, kind="step")])


def test_nothing_cannot_be_merged() -> None:
    """An error that says how a merge is called."""
    with pytest.raises(RunError, match=r"Trace\.load"):
        Trace.merge([])
