"""The bins of the page's overview: the same with and without the C library, and nothing is written outside of its buffers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiling import sanitized
from repository import NATIVE, PROGRAMS

from ioprof.analysis.run import Run
from ioprof.report.page import overview as module
from ioprof.report.page.overview import Overview, overview
from ioprof.report.page.tracks import tracks_of

DATA = Path(__file__).parent / "data"


def overview_of(run: Run, is_fine: bool) -> Overview:
    """The overview of the first three quarters of a run, so that some spans reach beyond it."""
    table = tracks_of(run.trace, run.steps).table
    return overview(run.trace, table[: len(table) - 2], int((run.trace.last_ns or 1) * 3 // 4), is_fine)


@pytest.mark.skipif(module.native is None, reason="ioprof was installed without a C compiler")
@pytest.mark.parametrize("is_fine", [True, False])
@pytest.mark.parametrize("folder", ["demo/files", "demo/lmdb", "runs/torch-script"])
def test_the_library_finds_what_numpy_finds(folder: str, is_fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some spans have no lane, lie beyond the end, or reach over several bins."""
    run = Run.load(DATA / folder)
    by_library = overview_of(run, is_fine)
    monkeypatch.setattr(module, "native", None)
    by_numpy = overview_of(run, is_fine)
    assert by_numpy.durations.sum() > 0
    for name in ("busy_ns", "source_bytes"):
        np.testing.assert_allclose(getattr(by_library, name), getattr(by_numpy, name), rtol=1e-12)
    assert np.array_equal(by_library.longest, by_numpy.longest)
    assert np.array_equal(by_library.durations, by_numpy.durations)


@pytest.mark.skipif(module.native is None, reason="ioprof was installed without a C compiler")
@pytest.mark.parametrize(("start", "end", "pair", "source"), [(0, 10, 1, 0), (-1, 10, 0, 0), (10, 9, 0, 0), (0, 10, 0, 2)], ids=str)
def test_numbers_that_have_no_place_are_refused(start: int, end: int, pair: int, source: int) -> None:
    """One pair, two sources and four bins."""
    assert module.native is not None
    one = [np.array([value], np.int64) for value in (start, end, pair, 5, 0, source)]
    starts, ends, pairs, moved, classes, sources = one
    busy, longest = np.zeros((1, 4)), np.zeros((1, 4), np.uint8)
    durations, source_bytes = np.zeros((1, 512)), np.zeros((2, 4))
    with pytest.raises(ValueError, match="do not fit"):
        module.native.add_spans(
            starts, ends, pairs, np.array([7], np.uint8), moved, classes, sources, busy, longest, durations, source_bytes, 2.5
        )
    assert not any(buffer.any() for buffer in (busy, longest, durations, source_bytes))


def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """No access outside of a buffer and no undefined behaviour, also of numbers that have no place."""
    built, variables = sanitized("_bins", [str(NATIVE / "bins.c")], tmp_path)
    command = [sys.executable, str(PROGRAMS / "sanitized_bins.py"), str(built), "2000"]
    ended = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert (0, "done\n") == (ended.returncode, ended.stdout), ended.stderr[-3000:]
