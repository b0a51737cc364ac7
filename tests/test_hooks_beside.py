"""What a training process does beside its loop, or in it, under the hooks: losses, threads, and
tasks of processes."""

import json
from pathlib import Path

import polars as pl
import pytest
from hooked import of_kind, recorded, run
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import PROGRAMS

from ioprof.format.trace import Trace

pytestmark = pytest.mark.job

MILLISECOND = 1_000_000
OBSERVED = 4
"""Steps after which it is known whether a loss is computed by torch."""


def beside_training(what: str, steps: int, folder: Path) -> Trace:
    """The recording of a small job, whose hooks all found what they observe."""
    run(["-W", "ignore", PROGRAMS / "beside_training.py", what, steps], folder / "spool")
    return recorded(folder / "spool")


def between_passes(trace: Trace) -> list[int]:
    """Nanoseconds from each forward pass, with the loss, to its backward pass, but for the steps
    that the hooks look at."""
    computed = of_kind(trace, "compute").filter(pl.col("step") > OBSERVED)
    parts = [
        computed.filter(pl.col("name").cast(pl.String).is_in(names))
        for names in (["forward", "loss"], ["backward"])
    ]
    ends, starts = (
        part.group_by("step", maintain_order=True).agg(pl.max("end_ns"), pl.min("start_ns"))
        for part in parts
    )
    return (starts["start_ns"] - ends["end_ns"]).to_list()


@on_a_quiet_machine
@pytest.mark.parametrize(
    ("what", "computes"),
    [("loss", True), ("operators", True), ("metric", False), ("search", False)],
)
def test_losses_that_are_no_modules(what: str, computes: bool, tmp_path: Path) -> None:
    """Methods and operators of tensors that a gradient is wanted of are a loss; Python is none, nor
    is a search."""
    found = between_passes(beside_training(what, OBSERVED + 6, tmp_path))
    assert len(found) >= 5
    with comparing_times():
        assert all((time_ns < MILLISECOND) is computes for time_ns in found), found


@pytest.mark.job(every=4)
def test_names_of_threads(tmp_path: Path) -> None:
    """Of all threads that were started, by the kernel's numbers."""
    beside_training("lock", 3, tmp_path)
    facts = [
        json.loads(line)
        for path in (tmp_path / "spool").glob("facts-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    names = [fact["thread_names"] for fact in facts if "thread_names" in fact]
    assert [["metrics"]] == [list(of_process.values()) for of_process in names]


@on_a_quiet_machine
@pytest.mark.parametrize(("place", "name"), [("tasks", "pool"), ("futures", "future")])
def test_batches_of_processes(place: str, name: str, tmp_path: Path) -> None:
    """Waits for the results of pools and executors lead to the tasks that made them."""
    run(["-W", "ignore", PROGRAMS / "own_code.py", place, 12, 2], tmp_path / "spool")
    trace = recorded(tmp_path / "spool")
    waits = of_kind(trace, "wait").filter(pl.col("name").cast(pl.String) == name)
    tied = waits.filter(
        pl.col("batch").is_in(of_kind(trace, "fetch")["batch"].drop_nulls().implode())
    )
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    with comparing_times():
        assert tied.select(length).item() >= 0.9 * waits.select(length).item() > 0


@pytest.mark.job(every=4)
@pytest.mark.parametrize(
    "what", ["pool", "executor", "pool_arrays", "map_arrays", "executor_arrays"]
)
def test_processes_that_make_no_batches(what: str, tmp_path: Path) -> None:
    """A metric of each step has no wait and no fetch."""
    trace = beside_training(what, 12, tmp_path)
    assert 0 == len(of_kind(trace, "fetch")) == len(of_kind(trace, "wait").drop_nulls("name"))
