"""Stored recordings: what is read is what was stored, and thinning leaves what happened from the
first step on."""

from pathlib import Path

import numpy as np
import pytest
import stored
from captures import chunk, header_bytes, record, string, trace_of
from hypothesis import given
from hypothesis import strategies as st
from repository import ROOT

from ioprof.format.schema import KINDS
from ioprof.format.stack_format import CODE_RECORD, SAMPLES_RECORD, STACK_RECORD

SECOND_NS = 1_000_000_000


def span(kind: str, start_ns: int, end_ns: int, file: int = -1) -> bytes:
    return record(kind=KINDS.index(kind) + 1, start_ns=start_ns, end_ns=end_ns, file=file)


def ring(*slots: bytes) -> bytes:
    return header_bytes(chunks=1) + chunk(*slots)


TIMES = st.lists(st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 61)), max_size=20)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives are written instead."""
    monkeypatch.setattr(stored, "RECORDINGS", tmp_path)
    return tmp_path


def test_what_is_read_is_what_was_stored(elsewhere: Path) -> None:
    """Of several recordings with several kinds of files."""
    recordings = {
        name: {
            "a.ring": ring(string(0, b"/data"), span("read", 5, 9, 0), span("open", 7, 7)),
            "b.json": b"{}",
            "c": b"\0",
        }
        for name in ("one", "two")
    }
    stored.write_archive("subject", recordings)
    assert (["one", "two"], ["subject"]) == (stored.names("subject"), stored.subjects())
    assert recordings == {name: stored.recording("subject", name) for name in recordings}


@given(TIMES)
def test_times_are_the_same_after_differences(times: list[tuple[int, int]]) -> None:
    """Whatever they are, and a capture file that is cut off or is none keeps its bytes."""
    whole = ring(
        string(0, b"/data" * 20), *(span("read", start, start + took, 0) for start, took in times)
    )
    for content in (whole, whole[:5000], b"", b"none"):
        assert content == stored._with_times(stored._with_differences(content))


@pytest.mark.parametrize("kind", ["read", "open"])
def test_thinning_leaves_out_short_accesses_before_the_first_step(
    kind: str, tmp_path: Path
) -> None:
    """And their strings; long ones, and those of the second before the step, stay as they are."""
    step = 10 * SECOND_NS
    kept = [
        span(kind, 0, stored.SHORT_NS, 1),  # long
        span("user", 1, 2),
        span(kind, step - SECOND_NS + 1, step - SECOND_NS + 2, 1),
        span("step", step, step + 1),
        span(kind, step, step + 1, 2),
    ]
    strings = [string(0, b"/short"), string(1, b"/long" * 30), string(2, b"/late")]
    whole = ring(strings[0], span(kind, 1, 2, 0), *strings[1:], span(kind, 2, 3, 0), *kept)
    assert {"a.ring": ring(*strings[1:], *kept)} == stored.thinned({"a.ring": whole})
    (tmp_path / "a.ring").write_bytes(stored.thinned({"a.ring": whole})["a.ring"])
    assert {"/long" * 30, "/late"} == set(trace_of(tmp_path).files["path"])


def test_without_a_step_nothing_is_thinned() -> None:
    files = {"a.ring": ring(string(0, b"/data"), span("read", 1, 2, 0))}
    assert files == stored.thinned(files)


def test_of_the_samples_before_the_first_step_a_tenth_stays() -> None:
    """With their stacks and codes; all later ones stay."""
    step = 10 * SECOND_NS
    samples = np.array(
        [(time, 0, time % 2) for time in (*range(100), *range(step, step + 20))], stored._SAMPLES
    )
    code = [np.array([number, 1, 1, 1, 1, 1], "<u4").tobytes() + b"ab" for number in range(3)]
    stacks = [np.array([number, number, 0], "<u4").tobytes() for number in range(3)]
    records = (
        [(CODE_RECORD, each) for each in code]
        + [(STACK_RECORD, each) for each in stacks]
        + [(SAMPLES_RECORD, samples.tobytes())]
    )
    data = b"".join(
        np.array([kind, len(content)], "<u4").tobytes() + content for kind, content in records
    )
    found = stored.thinned({"a.ring": ring(span("step", step, step + 1)), "stacks-a-1.bin": data})[
        "stacks-a-1.bin"
    ]
    left = list(stored._stack_records(found))
    assert [*range(0, 100, 10), *range(step, step + 20)] == np.frombuffer(
        left[-1][1], stored._SAMPLES
    )["time_ns"].tolist()
    assert [code[0], code[1], stacks[0], stacks[1]] == [content for _, content in left[:-1]]


def test_paths_of_the_machine_are_replaced() -> None:
    """By names of the same length, so that no file changes its structure."""
    content = f"{ROOT}/tests".encode()
    assert len(content) == len(stored.neutral(content))
    assert str(ROOT).encode() not in stored.neutral(content)
