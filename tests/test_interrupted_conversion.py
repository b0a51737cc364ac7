"""A conversion that does not come to its end leaves no dataset, and, if it is given the chance, nothing at all."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from images import jpeg
from made_datasets import folder_bytes, made, tree

from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate
from ioprof.dataset import Dataset
from ioprof.errors import CommandError, DatasetError

PROGRAM = Path(__file__).parent / "programs" / "convert_and_wait.py"


@contextlib.contextmanager
def half_way(source: Path, destination: Path) -> Iterator[subprocess.Popen[str]]:
    """A conversion that has written its first records and waits."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(PROGRAM), str(source), str(destination)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n", process.communicate()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_removes_what_was_begun(small_tree, tmp_path, number):
    """Ctrl-C, and what a batch system sends before it kills: no file is left, no worker lives, and nothing is printed."""
    with half_way(small_tree, tmp_path / "dataset") as process:
        children = psutil.Process(process.pid).children()
        process.send_signal(number)
        _, errors = process.communicate()
    assert (130, "") == (process.returncode, errors)
    assert [] == list(tmp_path.iterdir())
    assert [] == psutil.wait_procs(children, timeout=10)[1]


def test_a_kill_leaves_no_dataset(small_tree, tmp_path):
    """SIGKILL leaves a hidden folder without a manifest; the workers end by themselves; the next conversion is not hindered."""
    with half_way(small_tree, tmp_path / "dataset") as process:
        children = psutil.Process(process.pid).children()
        process.kill()
    assert [] == psutil.wait_procs(children, timeout=10)[1]
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".dataset.partial-")
    with pytest.raises(DatasetError):
        Dataset.load(left)
    assert made(small_tree, tmp_path / "dataset") == Dataset.load(tmp_path / "dataset")


def test_a_killed_worker_is_an_error_and_not_a_hang(small_tree, tmp_path):
    """As when the kernel runs out of memory: one line, exit code 1, nothing left."""
    with half_way(small_tree, tmp_path / "dataset") as process:
        for child in psutil.Process(process.pid).children():
            if "resource_tracker" not in " ".join(child.cmdline()):
                child.kill()
        _, errors = process.communicate()
    assert 1 == process.returncode
    assert 1 == len(errors.splitlines())
    assert "died (signal 9); out of memory, most likely: use fewer --workers" in errors
    assert [] == list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ full disks


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 24 MB and 100 files."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("a small file system needs root and mount")
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m,nr_inodes=100", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("layout", ["files", "lmdb"])
def test_a_disk_that_fills_up_is_one_line(small_tree, small_disk, layout):
    """Exit code 1; what was begun is gone, and what another program wrote is still there."""

    def fill(_: int) -> None:
        free = shutil.disk_usage(small_disk).free
        with open(small_disk / "other", "ab") as stream:
            stream.write(bytes(max(0, free - (1 << 16))))

    options = ConvertOptions(layout=layout, image="rgb256", encoding="raw", workers=1)
    with pytest.raises(CommandError, match=r"cannot be written.*No space left on device.*nothing was left behind") as refusal:
        convert(small_tree, small_disk / "new" / "dataset", options, fill)
    assert 1 == refusal.value.exit_code
    assert ["other"] == [path.name for path in small_disk.iterdir()]


def test_space_is_looked_at_first(small_tree, small_disk):
    """What is needed and what there is, in bytes or in files, before anything is written."""
    source = tree(small_disk.parent / "source", {f"n01/{number}.JPEG": jpeg() for number in range(130)})
    with pytest.raises(CommandError, match=r"needs about 0\.027 GB.*has 0\.025 GB free"):
        made(source, small_disk / "dataset", layout="lmdb", image="rgb256", encoding="raw")
    with pytest.raises(CommandError, match=r"needs 130 files.*inodes for.*--layout lmdb"):
        made(source, small_disk / "dataset")
    with pytest.raises(CommandError, match="needs about"):
        generate(small_disk / "images", GenerateOptions(images=1000))
    assert [] == list(small_disk.iterdir())
    assert 130 == made(source, small_disk / "dataset", layout="lmdb").records


# ------------------------------------------------------------------------------------------------ what was there before


def test_force_replaces_a_dataset_when_the_new_one_is_whole(small_tree, tmp_path):
    """A conversion that fails leaves the old dataset as it was; one that does not leaves only the new one."""
    destination = tmp_path / "dataset"
    made(small_tree, destination)
    before = folder_bytes(destination)
    bad = tree(tmp_path / "bad", {"n01/a.JPEG": b""})
    with pytest.raises(CommandError):
        made(bad, destination, force=True)
    assert before == folder_bytes(destination)
    assert "lmdb" == made(small_tree, destination, layout="lmdb", force=True).layout
    assert ["bad", "dataset"] == sorted(path.name for path in tmp_path.iterdir())
    assert ["data.mdb", "dataset.json"] == sorted(path.name for path in destination.rglob("*.*"))


def test_what_ioprof_did_not_make_is_never_replaced(small_tree, tmp_path):
    """Not even with --force; an empty folder may be filled, a dataset only with --force."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("42")
    (tmp_path / "file").write_text("42")
    for name in ("thesis", "file"):
        with pytest.raises(CommandError, match="ioprof did not make it"):
            made(small_tree, tmp_path / name, force=True)
    assert "42" == (tmp_path / "thesis" / "chapter.tex").read_text()
    (tmp_path / "empty").mkdir()
    made(small_tree, tmp_path / "empty")
    with pytest.raises(CommandError, match="replace it with --force"):
        made(small_tree, tmp_path / "empty")


def test_the_source_is_never_the_destination(tmp_path):
    """Nor within the one that is to be replaced, nor a class folder beside the others."""
    source = tree(tmp_path / "all" / "source", {"n01/a.JPEG": jpeg()})
    for destination in (source, source.parent):
        (destination / "synthetic.json").write_text("{}")
        with pytest.raises(CommandError, match="holds the source"):
            made(source, destination, force=True)
    with pytest.raises(CommandError, match="would be a class folder"):
        made(source, source / "dataset")
    assert (source / "n01" / "a.JPEG").is_file()
