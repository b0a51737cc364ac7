"""What a job wrote as checkpoints: by the sizes of their files, where these are known."""

import io
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hooked import of_kind, recorded, run
from timeline import timeline
from told import summarise
from torch.distributed import checkpoint

from ioprof.analysis.charge.checkpoints import Saved, saved
from ioprof.format.trace import Trace
from ioprof.instrument.hooks.pytorch.checkpoints import _bytes_written as bytes_written


class Hostile:
    """A target of the job's own, of which nothing can be asked."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_the_size_is_that_of_the_file(tmp_path: Path) -> None:
    """By its path in any form, or by the open file, whose end may not have been written yet."""
    path = tmp_path / "model.pt"
    path.write_bytes(bytes(1234))
    for target in (path, str(path)):
        assert 1234 == bytes_written((None, target), {}) == bytes_written((None,), {"f": target})
    assert 1234 == bytes_written((None,), {"filename": str(path)})
    with open(path, "wb") as file:
        file.write(bytes(77))
        assert 77 == bytes_written((None, file), {})


def test_what_is_no_file_has_no_size(tmp_path: Path) -> None:
    """A folder without files of a checkpoint; memory; what the job made itself."""
    for target in (tmp_path, tmp_path / "missing", io.BytesIO(bytes(10)), Hostile(), None, 3):
        assert -1 == bytes_written((None, target), {})
    assert -1 == bytes_written((), {})


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_size_in_a_folder_is_that_of_the_files_of_this_rank(tmp_path: Path) -> None:
    """As torch.distributed.checkpoint writes them, to a path or by a writer with one; those of
    other ranks are theirs."""
    state = {"weight": torch.zeros(1000)}
    checkpoint.save(state, checkpoint_id=tmp_path / "a", no_dist=True)
    written = (tmp_path / "a" / "__0_0.distcp").stat().st_size
    assert written > 4000
    (tmp_path / "a" / "__0_1.distcp").write_bytes(bytes(10))
    (tmp_path / "a" / "__1_0.distcp").write_bytes(bytes(100))
    writer = checkpoint.FileSystemWriter(tmp_path / "a")
    for arguments, named in (
        ((state,), {"checkpoint_id": tmp_path / "a"}),
        ((state,), {"storage_writer": writer}),
        ((state, writer), {}),
    ):
        assert written + 10 == bytes_written(arguments, named)


NESTED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from lightning.pytorch.trainer.trainer import Trainer
from safetensors import torch as tensors
Trainer(tensors.save_model).save_checkpoint(torch.nn.Linear(100, 100), sys.argv[1] + "/model")
Trainer(lambda model, path: torch.distributed.checkpoint.async_save(
    model.state_dict(), checkpoint_id=path, no_dist=True,
).result()).save_checkpoint(torch.nn.Linear(100, 100), sys.argv[1] + "/folder")
"""
TRAINER = """
import torch.distributed.checkpoint
class Trainer:
    def __init__(self, save):
        self.save = save
    def save_checkpoint(self, model, path):
        return self.save(model, path)
"""
"""As a library of training has it."""


@pytest.mark.job(every=4)
def test_what_a_save_has_others_save_is_a_part_of_it(tmp_path: Path) -> None:
    """A file counts once, through however many functions it is saved; and what a library saves
    asynchronously goes on in the background."""
    pytest.importorskip("safetensors", reason="needs safetensors")
    folder = tmp_path / "lightning/pytorch/trainer"
    folder.mkdir(parents=True)
    for package in (folder, *folder.parents[:2]):
        (package / "__init__.py").touch()
    (folder / "trainer.py").write_text(TRAINER)
    run(["-W", "ignore", "-c", NESTED, tmp_path], tmp_path / "spool")
    saves = of_kind(recorded(tmp_path / "spool"), "checkpoint").with_columns(
        name=pl.col("name").cast(str)
    )
    background, in_thread = "async save in the background", pl.col("tid") == pl.col("pid")
    followed = saves.filter(in_thread | (pl.col("name") == background))
    assert [background, "save", "save"] == sorted(followed["name"])
    assert (tmp_path / "model").stat().st_size == saves["bytes"][0]


def test_ranks_write_parts() -> None:
    """Each of them has its own size and rate; the folder is that in which files were opened
    meanwhile, and not where code is."""
    trace = timeline("""
        step r0                         00000 11111
        checkpoint r0 100B name=save    ..### ...##
        open main r0 file=1             ..#.. ...#.
        open main r0 file=2             .#... ....#
        step r1                         00000 11111
        checkpoint r1 100B name=save    ..### ..###
    """)
    paths = ["/job/a.py", "/ckpt/run/part", "/job/b.py"]
    files = pl.DataFrame(
        {"file": range(3), "path": paths}, schema_overrides={"file": trace.files.schema["file"]}
    )
    files = (
        trace.files.clear()
        .join(files, how="full", on=["file", "path"], coalesce=True)
        .select(trace.files.columns)
    )
    found = saved(Trace(trace.run, trace.spans, files))
    assert found == Saved(4, 400, pytest.approx(110e-9), 2, "/ckpt/run")
    assert (2, 2, 100, pytest.approx(400 / 110e-9), "/ckpt/run") == tuple(found.facts.values())


def test_their_rate_is_told() -> None:
    """Of those whose size is known; what loads is none, nor is one without a size."""
    drawing = """
        step                        00000 11111 22222
        checkpoint 100B name=save   ..### .....  ..###
        checkpoint name=save        ..... ..###  .....
        checkpoint 50B name=load    ##... .....  .....
    """
    found = saved(timeline(drawing))
    assert found == Saved(2, 200, pytest.approx(60e-9))
    advice = [each.action for each in summarise(timeline(drawing)).verdict.findings]
    assert any("2 checkpoints of 0.0 MB, at 3,333.3 MB/s" in action for action in advice)
    assert saved(timeline("step 000111222")) is None
