"""Spans as a job makes them: what is recorded, what raises, and what happens when nothing is
recorded."""

import inspect
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from captures import WRITERS, recorded, trace_of, writing
from repository import ROOT

from ioprof import _native as native_module
from ioprof.errors import CaptureError
from ioprof.format.schema import KINDS, SOURCES
from ioprof.instrument import recorder, ring
from ioprof.instrument import span as api
from ioprof.instrument.span import PAGE_CACHE, STORAGE, UNKNOWN, emit, intern, span

writers = pytest.mark.parametrize("writer", WRITERS)

FIELDS = {"step": 1, "batch": 2, "bytes": 3, "file": 0, "offset": 5, "stream": 6, "source": STORAGE}


def rows(spool: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Those columns of all spans, in the order in which they ended."""
    return trace_of(spool).spans.sort("end_ns", maintain_order=True).select(columns).rows()


@writers
def test_a_span_covers_its_block(writer: str, tmp_path: Path) -> None:
    """It starts after the with statement was reached and before the block, and ends after the
    block, on CLOCK_MONOTONIC."""
    with recorded(tmp_path, WRITERS[writer]):
        before = time.monotonic_ns()
        with span("decode"):
            first = time.monotonic_ns()
            last = time.monotonic_ns()
        after = time.monotonic_ns()
    trace = trace_of(tmp_path)
    zero = trace.run.clocks.zero_monotonic_ns
    ((start, end),) = trace.spans.select("start_ns", "end_ns").rows()
    assert before <= zero + start <= first
    assert last <= zero + end <= after


@writers
def test_every_kind_is_recorded_as_itself(writer: str, tmp_path: Path) -> None:
    """Each of schema.KINDS, whether the string is the interned one or another that is equal."""
    with recorded(tmp_path, WRITERS[writer]):
        for kind in KINDS:
            with span(kind):
                pass
            with span("".join(list(kind))):
                pass
    assert [(kind, None) for kind in KINDS for _ in range(2)] == rows(tmp_path, "kind", "name")


@writers
def test_any_other_string_is_a_users_span(writer: str, tmp_path: Path) -> None:
    """Its kind is `user` and its name the string, followed by the name that was given, if any."""
    with recorded(tmp_path, WRITERS[writer]):
        for call in (
            ("tokenize",),
            ("tokenize", "shard 3"),
            ("",),
            ("Données",),
            ("user", "named"),
        ):
            with span(*call):
                pass
        emit("tokenize", 2**61, 2**61)
    names = ["tokenize", "tokenize shard 3", "", "Données", "named", "tokenize"]
    assert [("user", name) for name in names] == rows(tmp_path, "kind", "name")


@writers
@pytest.mark.parametrize("way", ["keywords", "attributes", "emit"])
def test_what_is_given_is_recorded(writer: str, way: str, tmp_path: Path) -> None:
    """Fields come out as they went in, given at the call, set inside the block, or given to
    emit."""
    with recorded(tmp_path, WRITERS[writer]):
        assert 0 == intern("/data")
        if way == "emit":
            emit("read", 10, 20, "named", **FIELDS)
        else:
            with span(
                "read", **(FIELDS | {"name": "named"} if way == "keywords" else {})
            ) as current:
                for name, value in (
                    (FIELDS | {"name": "named"}).items() if way == "attributes" else ()
                ):
                    setattr(current, name, value)
    expected = ("read", "named", "storage", 1, 2, 3, 5, 6, os.getpid())
    assert [expected] == rows(
        tmp_path, "kind", "name", "source", "step", "batch", "bytes", "offset", "stream", "pid"
    )
    assert ["/data"] == trace_of(tmp_path).files["path"].to_list()


@writers
def test_what_is_not_given_is_null(writer: str, tmp_path: Path) -> None:
    """-1, the default, means that a field does not apply."""
    with recorded(tmp_path, WRITERS[writer]), span("wait"):
        pass
    columns = ("rank", "stream", "step", "batch", "bytes", "file", "offset", "source", "name")
    assert [(None,) * len(columns)] == rows(tmp_path, *columns)


@writers
def test_attributes_can_be_read(writer: str, tmp_path: Path) -> None:
    """Inside the block a span says what it will record."""
    with recorded(tmp_path, WRITERS[writer]), span("read", "first", **FIELDS) as current:
        assert FIELDS == {name: getattr(current, name) for name in FIELDS}
        assert "first" == current.name
        current.name = None
        current.bytes += 10
        assert (None, 13) == (current.name, current.bytes)
    assert [(None, 13)] == rows(tmp_path, "name", "bytes")


def fail_inside(kind: str) -> None:
    """Raise in a span that an ExitStack closes."""
    with ExitStack() as stack:
        stack.enter_context(span(kind))
        raise KeyError


@writers
def test_an_exception_ends_the_span_and_goes_on(writer: str, tmp_path: Path) -> None:
    """The block's failure is the job's business; its time is recorded."""
    with recorded(tmp_path, WRITERS[writer]):
        with pytest.raises(KeyError, match="mine"), span("decode"):
            raise KeyError("mine")
        with pytest.raises(KeyError):
            fail_inside("transform")
    assert [("decode",), ("transform",)] == rows(tmp_path, "kind")


@writers
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: span(5), TypeError),
        (lambda: span("read", 5), TypeError),
        (lambda: span(), TypeError),
        (lambda: span("read", "a", "b"), TypeError),
        (lambda: span("read", "a", name="b"), TypeError),
        (lambda: span("read", size=1), TypeError),
        (lambda: span("read", bytes="1"), TypeError),
        (lambda: span("read", bytes=None), TypeError),
        (lambda: span("read", bytes=1.5), TypeError),
        (lambda: span("read", bytes=2**63), ValueError),
        (lambda: span("read", step=2**31), ValueError),
        (lambda: span("read", stream=2**15), ValueError),
        (lambda: span("read", source=6), ValueError),
        (lambda: setattr(span("read"), "bytes", 2**63), ValueError),
        (lambda: setattr(span("read"), "bytes", "x"), TypeError),
        (lambda: setattr(span("read"), "name", 5), TypeError),
        (lambda: setattr(span("read"), "size", 5), AttributeError),
        (lambda: emit("read", 2, 1), ValueError),
        (lambda: emit("read", "1", 2), TypeError),
        (lambda: emit("read", 1), TypeError),
        (lambda: intern(5), TypeError),
    ],
)
def test_invalid_calls_raise(
    writer: str, call: Any, error: type[Exception], tmp_path: Path
) -> None:
    """An invalid call raises at once, and records nothing."""
    with recorded(tmp_path, WRITERS[writer]), pytest.raises(error):
        call()
    assert [] == rows(tmp_path, "kind")


@pytest.mark.parametrize("functions", [api, ring], ids=["extension", "python"])
def test_without_a_recording_nothing_happens(functions: Any) -> None:
    """span gives one shared object that takes any attribute and forgets it; intern gives -1; emit
    does nothing."""
    current = functions.span("read", "named", bytes=5)
    assert current is functions.span("anything")
    with current as inside:
        inside.bytes = 5
        inside.bytes += 5
        inside.name = "named"
        assert current is inside
    assert {name: 0 if name == "source" else -1 for name in FIELDS} == {
        name: getattr(current, name) for name in FIELDS
    }
    assert current.name is None
    assert -1 == functions.intern("/data")
    functions.emit("read", 1, 2)
    with pytest.raises(ValueError, match="before it starts"):
        functions.emit("read", 2, 1)
    with pytest.raises(KeyError), functions.span("read"):
        raise KeyError
    with ExitStack() as stack:
        assert current is stack.enter_context(functions.span("read"))


@writers
def test_a_span_belongs_to_the_recording_it_began_in(writer: str, tmp_path: Path) -> None:
    """One that is still open when the recording ends is in no file, not even in that of the next
    recording."""
    with ExitStack() as stack:
        with recorded(tmp_path, WRITERS[writer]):
            stack.enter_context(span("step", "old"))
        with recorded(tmp_path, WRITERS[writer]):
            with span("decode", "new"):
                pass
            stack.pop_all().close()
    assert [("decode", "new")] == rows(tmp_path, "kind", "name")


@writers
def test_a_span_that_never_began_is_not_recorded(writer: str, tmp_path: Path) -> None:
    """span() alone records nothing; only its block does. The same object can be entered again."""
    with recorded(tmp_path, WRITERS[writer]):
        span("read").__exit__(None, None, None)
        again = span("decode")
        for batch in range(2):
            with again:
                again.batch = batch
    assert [("decode", 0), ("decode", 1)] == rows(tmp_path, "kind", "batch")


@writers
def test_paths_are_interned_by_their_text(writer: str, tmp_path: Path) -> None:
    """str, bytes and PathLike of one path are one number; another path is another."""
    with recorded(tmp_path, WRITERS[writer]):
        assert [0, 0, 0, 1] == [
            intern("/a/é"),
            intern(os.fsencode("/a/é")),
            intern(Path("/a/é")),
            intern("/b"),
        ]


@writers
def test_unspeakable_names_are_escaped(writer: str, tmp_path: Path) -> None:
    """A str that no encoding can hold, such as half a surrogate pair, becomes an escape rather than
    an error."""
    with recorded(tmp_path, WRITERS[writer]), span("decode", "\ud800"):
        pass
    assert [("\\ud800",)] == rows(tmp_path, "name")


def test_sources_are_those_of_the_schema() -> None:
    """The numbers for source= are one more than the places in schema.SOURCES."""
    assert ("storage", "page_cache", "unknown") == SOURCES[:3]
    assert (1, 2, 3) == (STORAGE, PAGE_CACHE, UNKNOWN)


def test_both_writers_have_the_same_signatures() -> None:
    """help() shows the same parameters, whichever is installed."""
    for name in ("span", "emit", "intern"):
        expected, found = (
            inspect.signature(getattr(module, name)) for module in (ring, native_module)
        )
        assert [(each.name, each.kind, each.default) for each in expected.parameters.values()] == [
            (each.name, each.kind, each.default) for each in found.parameters.values()
        ]


# ----------------------------------------------------------------------------------- start and stop


@writers
def test_start_and_stop(writer: str, tmp_path: Path) -> None:
    """Recording is on between start and stop; stop may come twice."""
    assert not recorder.is_recording()
    with recorded(tmp_path, WRITERS[writer]):
        assert recorder.is_recording()
        assert WRITERS[writer] == recorder.uses_native()
        recorder.stop()
    assert not recorder.is_recording()
    assert 0 == recorder.lost()


@writers
def test_what_cannot_be_started_says_what_to_do(writer: str, tmp_path: Path) -> None:
    """Twice, into no folder, as an unknown role: one line each, and no file is left."""
    with (
        recorded(tmp_path, WRITERS[writer]),
        pytest.raises(CaptureError, match=r"recorded already.*stop\(\)"),
    ):
        recorder.start(tmp_path)
    with writing(WRITERS[writer]):
        with pytest.raises(
            CaptureError, match=r"No such file or directory.*give a writable folder"
        ):
            recorder.start(tmp_path / "missing")
        with pytest.raises(CaptureError, match="rank, worker, other"):
            recorder.start(tmp_path, role="manager")
    assert 1 == len(list(tmp_path.iterdir()))


def test_the_cost_of_a_span_is_measured_in_passing(tmp_path: Path) -> None:
    """A positive number, with and without a recording, which goes on undisturbed and gains nothing
    from the measurement."""
    assert 0 < recorder.cost_per_span_ns() < 1e6
    with recorded(tmp_path):
        with span("step"):
            assert 0 < recorder.cost_per_span_ns() < 1e6
        with span("decode"):
            pass
    assert [("step",), ("decode",)] == rows(tmp_path, "kind")


@pytest.mark.job
def test_the_functions_cost_no_library() -> None:
    """The API is imported in every process of a job: it loads nothing beyond a handful of small
    standard modules."""
    code = (
        "import sys; before = set(sys.modules); import ioprof.instrument.span;"
        " print(*(set(sys.modules) - before))"
    )
    command = [sys.executable, "-S", "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    outside = [name for name in loaded.stdout.split() if not name.startswith("ioprof")]
    assert not {"numpy", "dataclasses", "inspect", "multiprocessing"} & set(outside), outside
