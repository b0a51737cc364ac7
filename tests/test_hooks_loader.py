"""torch's DataLoader under the hooks: it does what it did, and every batch is followed from who
made it to who got it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hooked import finish, of_kind, recorded, run, start
from repository import PROGRAMS

from ioprof.format.trace import Trace

pytestmark = pytest.mark.job


@dataclass(frozen=True)
class Compared:
    """What a program found with the hooks and without them, and what was recorded."""

    hooked: Any
    bare: Any
    trace: Trace


@pytest.fixture(scope="module", params=["fork", "spawn", "forkserver"])
def compared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp(request.param)
    program = PROGRAMS / "hooked_loaders.py"
    with start([program, folder / "bare", request.param], None) as beside:
        run([program, folder / "hooked", request.param], folder / "spool")
        finish(beside)
    hooked, bare = (json.loads((folder / name).read_text()) for name in ("hooked", "bare"))
    return Compared(hooked, bare, recorded(folder / "spool"))


@pytest.mark.job(every=4)
def test_nothing_changes_in_the_job(compared: Compared) -> None:
    """Data, order, errors, and random numbers in workers and in the consumer are the same to the
    bit with and without the hooks."""
    assert compared.bare == compared.hooked


@pytest.mark.job(every=4)
def test_every_batch_has_one_wait_and_one_fetch(compared: Compared) -> None:
    """A batch that was consumed was waited for once, and made once, under a number that no other
    has."""
    waited = of_kind(compared.trace, "wait").drop_nulls("batch")
    used = compared.trace.spans.filter(pl.col("name").cast(str).str.starts_with("use "))
    assert len(used) == len(waited) == waited["batch"].n_unique()
    made = of_kind(compared.trace, "fetch").filter(pl.col("batch").is_in(waited["batch"].implode()))
    assert sorted(waited["batch"]) == sorted(made["batch"])
    assert 0 == of_kind(compared.trace, "fetch")["batch"].null_count()


def test_the_number_leads_to_what_was_made(compared: Compared) -> None:
    """The batch that a wait names holds the item that the consumer then had: within the fetch of
    that number it was made."""
    spans = compared.trace.spans.with_columns(pl.col("name").cast(str))
    fetches = {row["batch"]: row for row in of_kind(compared.trace, "fetch").iter_rows(named=True)}
    makes = spans.filter(pl.col("name").str.starts_with("make ")).partition_by("pid", as_dict=True)
    last = -1
    for row in (
        spans.filter((pl.col("kind") == "wait") | pl.col("name").str.starts_with("use "))
        .sort("end_ns")
        .iter_rows(named=True)
    ):
        if row["kind"] == "wait":
            last = row["batch"] if row["batch"] is not None else last
            continue
        fetch = fetches[last]
        within = makes[(fetch["pid"],)].filter(
            pl.col("start_ns") >= fetch["start_ns"], pl.col("end_ns") <= fetch["end_ns"]
        )
        assert row["name"].replace("use", "make") in within["name"].to_list()


def test_workers_say_who_they_are(compared: Compared) -> None:
    """What makes batches beside the consumer is a worker with a number, of the consumer's rank; the
    consumer is rank 0."""
    spans = compared.trace.spans
    consumers = set(spans.filter(pl.col("kind") == "wait")["pid"])
    makers = set(spans.filter(pl.col("kind") == "fetch")["pid"])
    processes = {process.pid: process for process in compared.trace.run.processes}
    assert {("rank", 0, None)} == {
        tuple(getattr(processes[pid], key) for key in ("role", "rank", "worker"))
        for pid in consumers
    }
    assert {("worker", 0)} == {
        tuple(getattr(processes[pid], key) for key in ("role", "rank"))
        for pid in makers - consumers
    }
    assert all(processes[pid].worker is not None for pid in makers - consumers)


def test_collate_lies_within_its_fetch(compared: Compared) -> None:
    """Every batch that was made was collated once, within its fetch, by torch's function or the
    user's."""
    both = of_kind(compared.trace, "collate").join(
        of_kind(compared.trace, "fetch"), on=["batch", "pid"], how="full", suffix="_fetch"
    )
    assert len(both) == len(of_kind(compared.trace, "fetch")) > 0
    assert both.select(
        (pl.col("start_ns") >= pl.col("start_ns_fetch")).all()
        & (pl.col("end_ns") <= pl.col("end_ns_fetch")).all()
    ).item()


UNHASHABLE = """
import dataclasses, sys, torch
from torch.utils.data import DataLoader
@dataclasses.dataclass
class Loader(DataLoader):
    rows: list
    workers: int
    def __post_init__(self):
        DataLoader.__init__(self, self.rows, num_workers=self.workers)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters())
for workers in (0, 0, 1):
    for batch in Loader([torch.ones(1)] * 3, workers):
        model(batch).sum().backward()
        optimizer.step()
"""


def test_a_loader_need_not_be_hashable(tmp_path: Path) -> None:
    """One that is equal to another is another one; and the job goes on."""
    program = tmp_path / "program.py"
    program.write_text(UNHASHABLE)
    run([program], tmp_path / "spool")
    assert 9 == len(of_kind(recorded(tmp_path / "spool"), "wait").drop_nulls("batch"))
    facts = [
        json.loads(line)
        for path in (tmp_path / "spool").glob("facts-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    made = [fact["made_loader"] for fact in facts if "made_loader" in fact]
    assert {(0, 0), (1, 0), (2, 1)} == {(each["number"], each["workers"]) for each in made}
