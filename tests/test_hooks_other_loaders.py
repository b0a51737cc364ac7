"""Loaders that are not torch's DataLoader, under the hooks: they do what they did, and waits lead
to the work for their batch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hooked import finish, job_has, of_kind, recorded, run, start
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import PROGRAMS

from ioprof.format.schema import COLLECTED_AT, TASK_ARGUMENTS
from ioprof.ingest.counters import read_counters
from ioprof.instrument.hooks.own_batches import _num_samples as num_samples

pytestmark = pytest.mark.job

PROGRAM = PROGRAMS / "other_loaders.py"
STEPS = 22
NEEDS = {"stateful": "torchdata", "stateful_alone": "torchdata", "dali_dynamic": "nvidia.dali"}
LOADERS = {
    "sampler": "torch DataLoader",
    "stateful": "torchdata StatefulDataLoader",
    "stateful_alone": "torchdata StatefulDataLoader",
    "spdl": "SPDL pipeline",
    "spdl_stages": "SPDL pipeline",
    "spdl_process": "SPDL pipeline",
    "dali_dynamic": "DALI dynamic mode",
    "processes": "multiprocessing Pool",
    "processes_unordered": "multiprocessing Pool",
    "processes_asked": "multiprocessing Pool",
    "pool": None,
    "threads": None,
    "own": None,
}
"""What the run says of each, None: nothing."""


@pytest.mark.job(every=4)
@pytest.mark.parametrize("name", LOADERS)
def test_waits_lead_to_the_work_for_their_batch(name: str, images: Path, tmp_path: Path) -> None:
    """Batches, order, loss and random numbers are those of the job alone; at least 99 % of the time
    of the waits has a `fetch`."""
    needs = NEEDS.get(name, "spdl" if name.startswith("spdl") else "torch")
    if not job_has(needs):
        pytest.skip(f"{needs} is not installed")
    with start(["-W", "ignore", PROGRAM, name, images, STEPS, 3], None) as beside:
        hooked = run(["-W", "ignore", PROGRAM, name, images, STEPS, 3], tmp_path / "spool")
        assert finish(beside) == hooked
    trace = recorded(tmp_path / "spool")
    assert LOADERS[name] == trace.run.config.loader
    assert STEPS == len(of_kind(trace, "step"))
    waits = of_kind(trace, "wait").filter(
        ~pl.col("name").cast(str).is_in(["start", "end"]).fill_null(False)
    )
    fetches = of_kind(trace, "fetch")
    if name == "dali_dynamic":
        assert waits["batch"].null_count() == 0 == len(fetches)
        return
    length = pl.col("end_ns") - pl.col("start_ns")
    tied = waits.filter(pl.col("batch").is_in(fetches["batch"].drop_nulls().implode()))
    assert tied.select(length.sum()).item() >= 0.99 * waits.select(length.sum()).item() > 0
    assert {("rank", 0)} == {
        (process.role, process.rank)
        for process in trace.run.processes
        if process.pid in set(waits["pid"])
    }
    if name == "sampler":
        chosen = of_kind(trace, "sampler")
        assert STEPS * 4 * 20_000_000 <= chosen.select(length.sum()).item()
        assert set(waits["batch"]) <= set(chosen["batch"])


TASKS = """
import sys, numpy as np, torch
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import Pool
def part(table, number):
    return table[number : number + 8]
table, model = np.ones((100_000, 16), np.float32), torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
with ProcessPoolExecutor(1) as executor, Pool(1) as pool:
    for number in range(12):
        if sys.argv[1] == "executor":
            rows = executor.submit(part, table, number).result()
        else:
            rows = pool.apply_async(part, iter((table, number))).get()  # is read once
        model(torch.from_numpy(rows)).mean().backward()
        optimizer.step()
"""


@pytest.mark.job(every=2)
@pytest.mark.parametrize("how", ["executor", "pool"])
def test_what_each_task_is_given_is_a_part_of_it(how: str, tmp_path: Path) -> None:
    """A table that is pickled for each task has a span with its size."""
    run(["-W", "ignore", "-c", TASKS, how], tmp_path / "spool")
    found = of_kind(recorded(tmp_path / "spool"), "decode")
    found = found.filter(pl.col("name").cast(str) == TASK_ARGUMENTS, pl.col("batch") >= 0)
    assert len(found) >= 8
    assert found["bytes"].min() > 6_400_000


OWN = f"""
import json, sys, torch, ioprof
sys.path.insert(0, {str(PROGRAMS)!r})
from descent import Descent
from torch.utils.data import DataLoader
model = torch.nn.Linear(1, 1)
optimizer = Descent(model.parameters(), 0.01)
def train(batches):
    for batch in batches:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
data = [torch.ones(1) * number for number in range(12)]
wrapped = ioprof.batches(data)
train(wrapped)
train(wrapped)                                                    # once more, as an epoch
train(ioprof.batches(DataLoader(data, 4)))                        # a loader that is known
train(ioprof.batches(batch * 2 for batch in DataLoader(data, 4)))   # one that uses such a loader
train(ioprof.batches(ioprof.batches(data)))
iterator = ioprof.batches(iter(data))
print(len(wrapped), wrapped.index, float(next(iterator)), float(next(iterator)), len(list(iterator)), wrapped is data)
try:
    next(wrapped)
except TypeError as error:
    print(error)
"""  # noqa: E501


@pytest.mark.job(every=4)
def test_own_batches(tmp_path: Path) -> None:
    """Each batch that is taken has one wait, also where a known loader makes it; not recorded, the
    iterable itself is returned."""
    with start(["-c", OWN], None) as beside:
        hooked = run(["-c", OWN], tmp_path / "spool").splitlines()[-2:]
        alone = finish(beside).splitlines()[-2:]
    assert alone[0].endswith("0.0 1.0 10 True")
    assert hooked[0].endswith("0.0 1.0 10 False")
    assert alone[1] == hooked[1] == "'list' object is not an iterator"
    trace = recorded(tmp_path / "spool")
    waits = of_kind(trace, "wait").drop_nulls("batch")
    assert 12 + 12 + 3 + 3 + 12 + 12 == len(waits) == waits["batch"].n_unique()
    assert set(waits["batch"]) == set(of_kind(trace, "fetch")["batch"])


class Hostile(list[Any]):
    """A batch of the job's own, of which nothing can be asked."""

    def __len__(self) -> int:
        raise RuntimeError


def test_a_batch_of_any_kind_has_samples_or_none() -> None:
    """The first dimension that its arrays share; what a class of the job raises is none of it."""
    assert 8 == num_samples({"a": np.ones((8, 2)), "b": np.ones(8)})
    assert -1 == num_samples(Hostile()) == num_samples([np.ones(3), np.ones(3)])


COLLECT = """
import gc, json, sys, time
took = []
def follow(phase, info):
    took.append(time.monotonic_ns())
gc.disable()
kept = [[number] for number in range(1_000_000)]
gc.callbacks.append(follow)
gc.collect()
for _ in range(50):
    gc.collect(0)
gc.callbacks.remove(follow)
print(json.dumps([ended - begun for begun, ended in zip(took[::2], took[1::2])]))
"""


@on_a_quiet_machine
def test_garbage_collections(tmp_path: Path) -> None:
    """Long ones are spans, as long as the program says; short ones are summed."""
    took = json.loads(run(["-c", COLLECT], tmp_path / "spool").splitlines()[-1])
    trace = recorded(tmp_path / "spool")
    found = of_kind(trace, "gc").with_columns(took=pl.col("end_ns") - pl.col("start_ns"))
    longest = found.sort("took")[-1]
    assert str(longest["name"].item()).startswith(COLLECTED_AT + "<string>:")
    with comparing_times():
        assert took[0] - 20_000_000 <= longest["took"].item() <= took[0] + 20_000_000
    counters = read_counters(tmp_path / "spool").table
    number = counters.filter(pl.col("name") == "process.gc_short_collections")["value"].max()
    assert sum(time_ns < 1_000_000 for time_ns in took) <= number + len(found)
    assert counters.filter(pl.col("name") == "process.gc_short_time")["value"].max() > 0


QUEUES = """
import queue, sys, threading
from ioprof.instrument.hooks.libraries.queues import MAX_ITEMS
others = queue.Queue()
items = [object() for number in range(2 * MAX_ITEMS)]  # all at once: one that is gone leaves its identity to a later one
def produce():
    for item in items:
        others.put(item)
threading.Thread(target=produce).start()
for _ in range(2 * MAX_ITEMS):
    others.get()
print(vars(others)["_ioprof_items"])
"""  # noqa: E501


def test_queues_that_have_nothing_to_do_with_the_loop(tmp_path: Path) -> None:
    """They are forgotten, and leave no span."""
    assert "None" == run(["-c", QUEUES], tmp_path / "spool").splitlines()[-1]
    assert set() == {*recorded(tmp_path / "spool").spans["kind"].cast(str).unique()} - {"gc"}


UNKNOWN = {
    "torchdata.stateful_dataloader.worker": "",
    "spdl.pipeline._pipeline": "",
    "torch.utils.data.dataloader": "",
    "torch.utils.data._utils.worker": (
        "class _ResumeIteration: pass\ndef _worker_loop(kind, data_queue, index_queue): pass\n"
    ),
    "torch.utils.data._utils.fetch": "class _BaseDatasetFetcher: pass\n",
    "torch.optim.optimizer": "class Optimizer: pass\n",
    "torch.autograd": "",
    "torch.nn.modules.module": "class Module: pass\n",
    "torch.nn.parallel.distributed": "",
    "torch.distributed.distributed_c10d": "def init_process_group(): pass\n",
    "torch.distributed.checkpoint.state_dict_saver": "def save_it(): pass\n",
}
"""Modules of libraries, and what is in them instead of what their hooks need."""


@pytest.mark.parametrize("module", UNKNOWN)
def test_an_unknown_version_is_left_alone(module: str, tmp_path: Path) -> None:
    """A library without what its hook needs: the job goes on, and the recording says so."""
    *packages, last = module.split(".")
    folder = tmp_path.joinpath(*packages)
    folder.mkdir(parents=True)
    for parent in (folder, *folder.parents[: len(packages) - 1]):
        (parent / "__init__.py").touch()
    (folder / f"{last}.py").write_text(f"{UNKNOWN[module]}VALUE = 7\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {module} as m; print(m.VALUE)"
    )
    assert "7" == run(["-c", program], tmp_path / "spool").splitlines()[-1]
    facts: list[dict[str, Any]] = [
        json.loads(line)
        for path in (tmp_path / "spool").glob("facts-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert {module} == {fact["unobserved"] for fact in facts if "unobserved" in fact}
    assert "UnknownVersionError" in facts[0]["why"]
