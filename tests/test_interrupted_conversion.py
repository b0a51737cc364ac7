"""A conversion that does not come to its end leaves no dataset, and, if it is given the chance, nothing at all."""

import contextlib
import errno
import json
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

from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate, leftovers
from ioprof.converters import destination as destination_module
from ioprof.converters.destination import SYNTHETIC_SCHEMA
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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
        assert [] == leftovers(tmp_path / "dataset")  # it is at work
        process.kill()
    assert [] == psutil.wait_procs(children, timeout=10)[1]
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".dataset.partial-")
    assert [left] == leftovers(tmp_path / "dataset")
    assert [] == leftovers(tmp_path / "data")
    with pytest.raises(DatasetError):
        Dataset.load(left)
    assert made(small_tree, tmp_path / "dataset") == Dataset.load(tmp_path / "dataset")


def test_a_killed_worker_is_an_error_and_not_a_hang(tmp_path):
    """As when the kernel runs out of memory: one line, exit code 1, nothing left."""
    # More images than the workers can have done before they are killed: those in flight are bounded.
    source = tree(tmp_path / "source", {f"n01/{number}.JPEG": jpeg() for number in range(200)})
    with half_way(source, tmp_path / "dataset") as process:
        for child in psutil.Process(process.pid).children():
            if "resource_tracker" not in " ".join(child.cmdline()):
                child.kill()
        _, errors = process.communicate()
    assert 1 == process.returncode
    assert 1 == len(errors.splitlines())
    assert "died (signal 9); out of memory, most likely: use fewer --workers" in errors
    assert [source] == list(tmp_path.iterdir())


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
        (destination / "synthetic.json").write_text(json.dumps({"schema": SYNTHETIC_SCHEMA}))
        with pytest.raises(CommandError, match="holds the source"):
            made(source, destination, force=True)
    with pytest.raises(CommandError, match="would be a class folder"):
        made(source, source / "dataset")
    assert (source / "n01" / "a.JPEG").is_file()


def test_what_appears_meanwhile_is_left_alone(small_tree, tmp_path, in_steps):
    """Another job's dataset, or with --force a user's folder: nothing of the work is left; an empty folder is filled."""
    destination = tmp_path / "dataset"
    other = made(small_tree, tmp_path / "other").path
    cases = {"a dataset": (other, False), "thesis": (small_tree, True), "forced": (small_tree, False)}
    for content, force in cases.values():
        options = ConvertOptions(workers=1, force=force)
        with pytest.raises(CommandError, match=r"appeared while.*nothing else was left behind") as refusal:
            convert(small_tree, destination, options, lambda _, content=content: _copy(content, destination))
        assert 1 == refusal.value.exit_code
        assert folder_bytes(content) == folder_bytes(destination)
        shutil.rmtree(destination)
    assert ["other"] == [path.name for path in tmp_path.iterdir()]
    convert(small_tree, destination, ConvertOptions(workers=1), lambda _: destination.mkdir(exist_ok=True))
    assert 36 == Dataset.load(destination).records


@pytest.fixture(params=[False, True], ids=["renameat2", "in steps"])
def in_steps(request, monkeypatch):
    """With the kernel's call, and on a file system that has none."""
    if request.param:
        monkeypatch.setattr(destination_module, "_renameat2", _no_renameat2)
    return request.param


def _no_renameat2(old: Path, new: Path, flags: int) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _copy(content: Path, destination: Path) -> None:
    shutil.copytree(content, destination, dirs_exist_ok=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_exchange_waits(small_tree, tmp_path, monkeypatch, in_steps, number):
    """Whichever rename it meets: the new dataset is in its place, the old one is gone, and nothing else is there."""
    destination = tmp_path / "dataset"
    made(small_tree, destination)
    exchange = destination_module._exchange

    def interrupted(partial: Path, place: Path) -> None:
        signal.raise_signal(number)
        exchange(partial, place)
        signal.raise_signal(number)

    monkeypatch.setattr(destination_module, "_exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made(small_tree, destination, layout="lmdb", force=True)
    assert "lmdb" == Dataset.load(destination).layout
    assert ["dataset"] == [path.name for path in tmp_path.iterdir()]
    assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "other/1"}', '{"schema": ["ioprof.dataset/1"]}'])
def test_a_file_of_the_same_name_makes_no_folder_ours(small_tree, tmp_path, text):
    """Many programs write a dataset.json: only one with our schema may be replaced."""
    (tmp_path / "other").mkdir()
    for name in ("dataset.json", "synthetic.json"):
        (tmp_path / "other" / name).write_text(text)
    with pytest.raises(CommandError, match="ioprof did not make it"):
        made(small_tree, tmp_path / "other", force=True)


def test_a_mount_point_is_refused(small_tree, small_disk):
    """It cannot be renamed over: a folder inside it is what to type."""
    with pytest.raises(CommandError, match=f"is a mount point.*{small_disk}/dataset"):
        made(small_tree, small_disk)


def test_a_source_reached_by_links_is_never_replaced(small_tree, tmp_path):
    """Class folders, images or a tar that lie in the dataset to be replaced; and no dataset is made within its source."""
    destination = made(small_tree, tmp_path / "dataset").path
    (tmp_path / "folders").mkdir()
    (tmp_path / "folders" / "n01").symlink_to(destination / "train" / "n01440764")
    (tmp_path / "images" / "n01").mkdir(parents=True)
    (tmp_path / "images" / "n01" / "a.JPEG").symlink_to(next(destination.glob("train/*/*.JPEG")))
    for name in ("folders", "images"):
        with pytest.raises(CommandError, match="holds the source"):
            made(tmp_path / name, destination, force=True)
    with pytest.raises(CommandError, match="lies in the source"):
        made(small_tree, small_tree / "n01440764" / "dataset")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(CommandError, match="loop"):
        made(loop, tmp_path / "new")
    assert 36 == Dataset.load(destination).records


@pytest.mark.parametrize("on_error", ["fail", "quarantine"])
def test_a_failing_storage_is_no_bad_image(small_tree, tmp_path, on_error):
    """A source that is moved away ends the job, whatever is done with bad images."""
    source = tmp_path / "source"
    shutil.copytree(small_tree, source)
    options = ConvertOptions(workers=1, on_error=on_error)
    with pytest.raises(CommandError, match=r"cannot be read \(No such file.*nothing was left behind") as refusal:
        convert(source, tmp_path / "dataset", options, lambda _: source.exists() and source.rename(tmp_path / "moved"))
    assert 1 == refusal.value.exit_code
    assert ["moved"] == [path.name for path in tmp_path.iterdir()]


def test_too_little_memory_is_one_line(tmp_path):
    """In a generation as in a conversion."""

    def full(_: int) -> None:
        raise MemoryError

    with pytest.raises(CommandError, match=r"out of memory.*nothing was left behind"):
        generate(tmp_path / "images", GenerateOptions(images=2, workers=1), full)
    assert [] == list(tmp_path.iterdir())
