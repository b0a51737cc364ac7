"""Pools of threads and of joblib that feed a training loop: its waits for their tasks, against its
own stopwatch."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs import ioprof
from repository import PROGRAMS

from ioprof.analysis.selection import of_kind
from ioprof.instrument.hooks.libraries.process_pools import product_of_job
from ioprof.report.run import Run

STEPS = 60


def test_a_job_of_another_backend_is_of_no_pool() -> None:
    """joblib hands out futures of Dask, for example, which have no number."""
    assert product_of_job(SimpleNamespace(), 0) is None


@pytest.mark.job(every=4)
@pytest.mark.parametrize(
    "kind", ["threads", "batches", "pool", "loky", "generator", "gather", "awaited"]
)
def test_waits_are_those_of_the_stopwatch_and_know_their_tasks(
    images: Path, tmp_path: Path, kind: str
) -> None:
    """Those after the first step. Each has the number of a batch, and a task made that. Of batches
    that were there before, too. What an event loop does until it waits is its own work."""
    if kind in ("loky", "generator") and importlib.util.find_spec("joblib") is None:
        pytest.skip("joblib is not installed (pip install 'ioprof[libraries]')")
    command = (sys.executable, PROGRAMS / "feed_by_pool.py", kind, images, STEPS, 2)
    done = ioprof("record", "--quiet", "--out", tmp_path / "run", "--", *command, cwd=tmp_path)
    assert 0 == done.code, done.err
    waited_s, steps_s = map(float, done.out.split())
    trace = Run.load(tmp_path / "run").trace
    assert () == trace.run.capture.unobserved
    waits, fetches = of_kind(trace.spans, "wait"), of_kind(trace.spans, "fetch")
    found_s = int((waits["end_ns"] - waits["start_ns"]).sum()) / 1e9
    error = 0.15 if kind in ("gather", "awaited") else 0.05
    assert abs(found_s - waited_s) <= error * steps_s, (found_s, waited_s, steps_s)
    assert {*waits["batch"]} <= {*fetches["batch"]}
    assert (4 if kind == "threads" else 1) * STEPS * 0.9 <= fetches["batch"].n_unique()
    assert STEPS * 0.9 <= waits["batch"].n_unique()
