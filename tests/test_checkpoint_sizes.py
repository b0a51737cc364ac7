"""What a job wrote as checkpoints: by the sizes of their files, where these are known."""

import io
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hooked import of_kind, recorded, run
from torch.distributed import checkpoint

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
