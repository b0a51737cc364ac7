"""Trace: what is loaded is what was saved, or an error that names the file."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from rich.console import Console
from strategies import examples
from timeline import pid, timeline
from told import summarise

from ioprof.analysis.charge.blame import blame
from ioprof.errors import RunError
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import RUN_SCHEMA
from ioprof.format.trace import Trace
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
