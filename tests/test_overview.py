"""The bins of the page's overview: those of a span at a time in Python, and nothing is written
outside of their buffers."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compiling import sanitized
from hypothesis import given
from hypothesis import strategies as st
from repository import NATIVE, PROGRAMS
from timeline import timeline

from ioprof import _bins
from ioprof.report.page import overview as module
from ioprof.report.page.classes import CLASSES
from ioprof.report.page.overview import Overview, overview
from ioprof.report.page.tracks import tracks_of
from ioprof.report.run import Run

DATA = Path(__file__).parent / "data"


def add_spans(
    starts: Any,
    ends: Any,
    moved: Any,
    processes: Any,
    kinds: Any,
    sources: Any,
    known: Any,
    pairs: Any,
    least_ns: Any,
    classes: Any,
    sources_of_class: Any,
    busy_ns: Any,
    longest: Any,
    durations: Any,
    source_bytes: Any,
    num_kinds: int,
    num_sources: int,
    bin_ns: float,
    end_ns: int,
    /,
) -> None:
    """As `ioprof._bins.add_spans`, a span at a time."""
    place_of = {process: place for place, process in enumerate(known.tolist())}
    rows = zip(
        *(column.tolist() for column in (starts, ends, moved, processes, kinds, sources)),
        strict=True,
    )
    for start, end, size, process, kind, source in rows:
        pair = pairs[place_of.get(process, -1), kind, source]
        if pair < 0:
            continue
        begin, until = min(max(start, 0), end_ns), min(max(end, start, 0), end_ns)
        code = int(np.searchsorted(least_ns, until - begin, side="right")) + 1
        durations[classes[pair], code] += 1
        first = min(int(begin / bin_ns), busy_ns.shape[1] - 1)
        last = min(max(int(np.ceil(until / bin_ns)) - 1, first), busy_ns.shape[1] - 1)
        for place in range(first, last + 1):
            covered = max(min(until, (place + 1) * bin_ns) - max(begin, place * bin_ns), 0)
            busy_ns[pair, place] += covered
            longest[pair, place] = max(longest[pair, place], code)
            if sources_of_class[pair] >= 0 and size > 0:
                share = 1.0 if first == last else covered / (until - begin)
                source_bytes[sources_of_class[pair], place] += size * share


def overview_of(run: Run, is_fine: bool) -> Overview:
    """The overview of the first three quarters of a run, so that some spans reach beyond it."""
    table = tracks_of(run.trace, run.steps).table
    return overview(
        run.trace, table[: len(table) - 2], int((run.trace.last_ns or 1) * 3 // 4), is_fine
    )


@pytest.mark.parametrize("is_fine", [True, False])
@pytest.mark.parametrize("folder", ["demo/files", "demo/lmdb", "runs/torch-script"])
def test_bins_are_those_of_a_span_at_a_time(
    folder: str, is_fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some spans have no lane, lie beyond the end, or reach over several bins."""
    run = Run.load(DATA / folder)
    by_library = overview_of(run, is_fine)
    monkeypatch.setattr(module, "_bins", SimpleNamespace(add_spans=add_spans))
    one_by_one = overview_of(run, is_fine)
    assert one_by_one.durations.sum() > 0
    for name in ("busy_ns", "source_bytes"):
        np.testing.assert_allclose(getattr(by_library, name), getattr(one_by_one, name), rtol=1e-12)
    assert np.array_equal(by_library.longest, one_by_one.longest)
    assert np.array_equal(by_library.durations, one_by_one.durations)


def test_waits_for_the_device_are_in_the_lane_of_the_loop() -> None:
    """Beside its waits for batches, in another colour."""
    trace = timeline("""
        step    0000000000
        wait    00........
        kernel  ..000000..
        sync    ....0000..
    """)
    run = Run.of(trace)
    found = tracks_of(run.trace, run.steps)
    lanes = dict(found.table.select("kind", "track").rows())
    assert lanes["wait"] == lanes["sync"] != lanes["kernel"]
    names = {CLASSES[number].name for number in found.table.filter(kind="sync")["class"]}
    assert {"waiting for the device"} == names


@pytest.mark.parametrize(
    ("kind", "source", "pair", "end_ns"),
    [(1, 0, 0, 10), (0, 1, 0, 10), (0, 0, 1, 10), (0, 0, 0, -1)],
    ids=str,
)
def test_numbers_that_have_no_place_are_refused(
    kind: int, source: int, pair: int, end_ns: int
) -> None:
    """One process, kind, source and pair; two sources of bytes and four bins."""
    start, moved, process, classes, sources = (
        np.array([value], np.int64) for value in (0, 5, 7, 0, 0)
    )
    codes = [np.array([value], np.uint8) for value in (kind, source)]
    busy, longest = np.zeros((1, 4)), np.zeros((1, 4), np.uint8)
    durations, source_bytes = np.zeros((1, 512)), np.zeros((2, 4))
    tables = process, np.array([pair, -1]), np.array([100]), classes, sources
    with pytest.raises(ValueError, match="do not fit"):
        _bins.add_spans(
            start,
            start + 10,
            moved,
            process,
            *codes,
            *tables,
            busy,
            longest,
            durations,
            source_bytes,
            1,
            1,
            2.5,
            end_ns,
        )
    assert not any(buffer.any() for buffer in (busy, longest, durations, source_bytes))


@given(st.integers(0, 2**62))
def test_the_code_of_a_duration_is_its_logarithm(duration_ns: int) -> None:
    """Eight for each factor of two, from 100 ns on; a byte."""
    expected = min(int(8 * np.log2(max(duration_ns / 100, 1.0))) + 1, 254)
    assert np.searchsorted(module._LEAST_NS, duration_ns, side="right") + 1 == expected


@pytest.mark.job(every=4)
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """No access outside of a buffer and no undefined behaviour, also of numbers that have no
    place."""
    built, variables = sanitized("_bins", [str(NATIVE / "bins.c")], tmp_path)
    command = [sys.executable, str(PROGRAMS / "sanitized_bins.py"), str(built), "2000"]
    ended = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert (0, "done\n") == (ended.returncode, ended.stdout), ended.stderr[-3000:]
