"""The destination of a job: it is replaced by rename, completely or not at all, and only if ioprof
made it."""

import errno
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from made_datasets import folder_bytes, made

from ioprof.converters import ConvertOptions, convert
from ioprof.converters.job import dataset_writer
from ioprof.converters.job.destination import put_in_place, renameat2, termination_as_interrupt
from ioprof.errors import CommandError
from ioprof.format.dataset import Dataset


@pytest.fixture(params=[False, True], ids=["renameat2", "two renames"])
def rename(request):
    """The kernel's call, and its failure on a file system without it."""
    return _no_renameat2 if request.param else renameat2


def _no_renameat2(old: Path, new: Path, flags: int) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def test_what_appears_meanwhile_is_left_alone(small_tree, tmp_path, monkeypatch, rename):
    """Another job's dataset, or with --force a user's folder: nothing of the work is left; an empty
    folder is filled."""
    destination = tmp_path / "dataset"
    monkeypatch.setattr(dataset_writer, "put_in_place", partial(put_in_place, rename=rename))
    other = made(small_tree, tmp_path / "other").path
    cases = {
        "a dataset": (other, False),
        "thesis": (small_tree, True),
        "forced": (small_tree, False),
    }
    for content, force in cases.values():
        options = ConvertOptions(workers=1, force=force)
        with pytest.raises(
            CommandError, match=r"appeared during.*finished work is kept"
        ) as refusal:
            convert(
                small_tree,
                destination,
                options,
                lambda _, content=content: _copy(content, destination),
            )
        assert 1 == refusal.value.exit_code
        assert folder_bytes(content) == folder_bytes(destination)
        shutil.rmtree(destination)
        shutil.rmtree(tmp_path / ".dataset.partial")
    assert ["other"] == [path.name for path in tmp_path.iterdir()]
    convert(
        small_tree,
        destination,
        ConvertOptions(workers=1),
        lambda _: destination.mkdir(exist_ok=True),
    )
    assert 36 == Dataset.load(destination).records


@pytest.mark.parametrize("content", ["a dataset", "thesis", "forced"])
def test_only_what_ioprof_made_is_replaced_at_the_last_moment(
    small_tree, tmp_path, rename, content
):
    """With either rename: what is at the destination by then stays unless ioprof made it and
    --force is given."""
    new = made(small_tree, tmp_path / "new", layout="lmdb").path
    other = made(small_tree, tmp_path / "other").path if content != "thesis" else small_tree
    _copy(other, tmp_path / "dataset")
    force = content != "a dataset"
    if content == "forced":
        put_in_place(new, tmp_path / "dataset", force, rename)
        assert "lmdb" == Dataset.load(tmp_path / "dataset").layout
        assert folder_bytes(other) == folder_bytes(new)
        return
    before = folder_bytes(new)
    with pytest.raises(CommandError, match="appeared during the conversion"):
        put_in_place(new, tmp_path / "dataset", force, rename)
    assert before == folder_bytes(new)
    assert folder_bytes(other) == folder_bytes(tmp_path / "dataset")


def _copy(content: Path, destination: Path) -> None:
    shutil.copytree(content, destination, dirs_exist_ok=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_exchange_is_deferred(small_tree, tmp_path, rename, number):
    """Before and after each rename: the new dataset is at the destination, and the old one at the
    other place, both complete."""
    destination = tmp_path / "dataset"
    made(small_tree, destination)
    new = made(small_tree, tmp_path / "new", layout="lmdb").path

    def interrupted(old: Path, target: Path, flags: int) -> None:
        signal.raise_signal(number)
        try:
            rename(old, target, flags)
        finally:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        put_in_place(new, destination, force=True, rename=interrupted)
    assert ("lmdb", "files") == (Dataset.load(destination).layout, Dataset.load(new).layout)
    assert ["dataset", "new"] == sorted(path.name for path in tmp_path.iterdir())
    assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_exchange_ends_a_job_well(
    small_tree, tmp_path, monkeypatch, rename, number
):
    """Before and after each rename: the new dataset is at its destination, the old one is removed,
    and nothing else is left."""
    destination = tmp_path / "dataset"
    made(small_tree, destination)

    def interrupted(old: Path, target: Path, flags: int) -> None:
        signal.raise_signal(number)
        try:
            rename(old, target, flags)
        finally:
            signal.raise_signal(number)

    monkeypatch.setattr(dataset_writer, "put_in_place", partial(put_in_place, rename=interrupted))
    with pytest.raises(KeyboardInterrupt):
        made(small_tree, destination, layout="lmdb", force=True)
    assert "lmdb" == Dataset.load(destination).layout
    assert ["dataset"] == [path.name for path in tmp_path.iterdir()]
    assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"schema": "other/1"}', '{"schema": ["ioprof.format.dataset/1"]}']
)
def test_a_file_of_the_same_name_makes_no_folder_ours(small_tree, tmp_path, text):
    """Many programs write a dataset.json: only one with our schema may be replaced."""
    (tmp_path / "other").mkdir()
    for name in ("dataset.json", "synthetic.json"):
        (tmp_path / "other" / name).write_text(text)
    with pytest.raises(CommandError, match="ioprof did not make it"):
        made(small_tree, tmp_path / "other", force=True)


@pytest.mark.system
def test_a_mount_point_is_refused(small_tree, small_disk):
    """It cannot be renamed over: a folder inside it is what to type."""
    disk = small_disk(1 << 20)
    with pytest.raises(CommandError, match=f"is a mount point.*{disk}/dataset"):
        made(small_tree, disk)
