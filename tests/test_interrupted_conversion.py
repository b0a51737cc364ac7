"""An interrupted conversion leaves no dataset, but its finished work, and the same conversion
resumes from there."""

import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import jpeg
from made_datasets import folder_bytes, made, records, tree

from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate, plan_conversion
from ioprof.converters.job import dataset_writer
from ioprof.converters.job.dataset_writer import Tally
from ioprof.converters.job.journal import (
    Journal,
    QuarantineEntry,
    RecordEntry,
    journal_progress,
    read_entries,
)
from ioprof.converters.layouts.record_file_writer import RecordFileWriter
from ioprof.converters.manifests import SYNTHETIC_SCHEMA
from ioprof.errors import CommandError, DatasetError
from ioprof.format.dataset import Dataset, RecordDigest

NOISE = {f"n{number % 3:02}/{number}.JPEG": jpeg(seed=number) for number in range(800)}
MORE: dict[str, dict[str, Any]] = {
    "webdataset": {"layout": "webdataset", "shard_bytes": 1 << 18},
    "parquet": {"layout": "parquet", "shard_bytes": 1 << 16},
    "shards": {"layout": "lmdb", "shards": 3},
    "two workers": {"layout": "files", "image": "rgb256", "workers": 2},
}
OPTIONS = ConvertOptions(layout="lmdb", image="rgb256", workers=2)
"""Of the program."""

PROGRAM = Path(__file__).parent / "programs" / "convert_and_wait.py"


@contextlib.contextmanager
def half_way(source: Path, destination: Path) -> Iterator[subprocess.Popen[str]]:
    """A conversion that has written its first records and waits."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(PROGRAM), str(source), str(destination)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n", process.communicate()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.job
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_keeps_what_is_done(small_tree, tmp_path, number):
    """Ctrl-C, and what a batch system sends before it kills: no dataset is there, no worker lives,
    and nothing is printed."""
    with half_way(small_tree, tmp_path / "dataset") as process:
        children = psutil.Process(process.pid).children()
        process.send_signal(number)
        _, errors = process.communicate()
    assert (130, "") == (process.returncode, errors)
    assert [".dataset.partial"] == [path.name for path in tmp_path.iterdir()]
    assert [] == psutil.wait_procs(children, timeout=10)[1]
    assert plan_conversion(small_tree, tmp_path / "dataset", OPTIONS).done() > 0


@pytest.mark.job(every=4)
def test_a_kill_leaves_no_dataset(small_tree, tmp_path):
    """SIGKILL leaves a hidden folder without a manifest; the workers exit; the same conversion
    resumes from there."""
    with half_way(small_tree, tmp_path / "dataset") as process:
        children = psutil.Process(process.pid).children()
        process.kill()
    assert [] == psutil.wait_procs(children, timeout=10)[1]
    (left,) = tmp_path.iterdir()
    with pytest.raises(DatasetError):
        Dataset.load(left)
    steps: list[int] = []
    dataset = convert(small_tree, tmp_path / "dataset", OPTIONS, steps.append)
    assert 36 == sum(steps)
    assert 1 < len(steps)
    assert ["dataset"] == [path.name for path in tmp_path.iterdir()]
    undisturbed = convert(small_tree, tmp_path / "undisturbed" / "dataset", OPTIONS)
    assert records(undisturbed) == records(dataset)
    assert undisturbed.manifest() == dataset.manifest()


@pytest.mark.job
def test_another_conversion_does_not_go_on_from_there(small_tree, tmp_path):
    """Nor does it remove finished work without --force; the message names what differs."""
    with half_way(small_tree, tmp_path / "dataset") as process:
        process.kill()
    with pytest.raises(CommandError, match=r"differs in image, layout\); .*--force or: rm -r"):
        made(small_tree, tmp_path / "dataset")
    assert "files" == made(small_tree, tmp_path / "dataset", force=True).layout
    assert ["dataset"] == [path.name for path in tmp_path.iterdir()]


def test_what_became_bad_meanwhile_leaves_no_file(tmp_path):
    """A worker wrote the file of an image and was killed before it could tell; then the image is
    damaged."""
    source = tree(
        tmp_path / "source", {f"n01/{number}.JPEG": jpeg(seed=number) for number in range(30)}
    )
    options = ConvertOptions(workers=1, on_error="quarantine")

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "dataset", options, stop)
    folder = tmp_path / ".dataset.partial" / "dataset" / "train" / "n01"
    victim = next(
        path for path in sorted((source / "n01").iterdir()) if not (folder / path.name).exists()
    )
    shutil.copy(victim, folder / victim.name)
    victim.write_bytes(b"")
    dataset = convert(source, tmp_path / "dataset", options)
    assert [f"n01/{victim.name}"] == [entry["name"] for entry in dataset.quarantined]
    assert sorted(name for name, _, _ in records(dataset)) == sorted(
        path.name for path in dataset.data_path.glob("*/*")
    )


def test_a_file_that_is_written_again_is_never_empty(tmp_path, monkeypatch):
    """So a process that outlives its job by a moment cannot tear what the next one has finished;
    what was longer gets cut."""
    files, path = RecordFileWriter(tmp_path), tmp_path / "a"
    write = os.write

    def checked(descriptor: int, data: bytes) -> int:
        assert (tmp_path / "a").stat().st_size >= size
        return write(descriptor, data[:5])

    for before in (b"0123456789", b"01234", b"0123456789abc"):
        path.write_bytes(before)
        size = len(before)
        monkeypatch.setattr(os, "write", checked)
        files.write("a", b"0123456789")
        monkeypatch.undo()
        assert b"0123456789" == path.read_bytes()


@pytest.mark.job
def test_two_of_the_same_do_not_work_at_once(small_tree, tmp_path):
    """The second is refused, with the host and the process of the first; which is not disturbed."""
    with half_way(small_tree, tmp_path / "dataset") as process:
        with pytest.raises(CommandError, match=f"another process works on it .*{process.pid}"):
            convert(small_tree, tmp_path / "dataset", OPTIONS)
        _, errors = process.communicate()
    assert (0, "") == (process.returncode, errors)
    assert 36 == Dataset.load(tmp_path / "dataset").records


@pytest.mark.job
def test_a_killed_worker_is_an_error_and_not_a_hang(tmp_path):
    """As when the kernel runs out of memory: one line, exit code 1, and what is done is kept."""
    # More images than the workers can have done before they are killed: those in flight are
    # bounded.
    source = tree(tmp_path / "source", {f"n01/{number}.JPEG": jpeg() for number in range(200)})
    with half_way(source, tmp_path / "dataset") as process:
        for child in psutil.Process(process.pid).children():
            if "resource_tracker" not in " ".join(child.cmdline()):
                child.kill()
        _, errors = process.communicate()
    assert 1 == process.returncode
    assert 1 == len(errors.splitlines())
    assert (
        "died (signal 9); out of memory, most likely: use fewer --workers; finished work is kept"
        in errors
    )
    assert 200 == convert(source, tmp_path / "dataset", OPTIONS).records


@pytest.mark.job(every=4)
@pytest.mark.parametrize(
    "layout", ["files", "lmdb", "webdataset", "shards", "two workers", "raw", "parquet"]
)
def test_killed_at_any_instant_it_ends_with_the_same_digest(tmp_path, layout):
    """Random instants, the same command after each; `IOPROF_KILLS` of them per layout, with the
    real images where there are some.

    Files and tars are the same to the byte; an LMDB's records are, while its pages may lie
    elsewhere.
    """
    source = Path(os.environ.get("IOPROF_IMAGENET_SAMPLE") or tree(tmp_path / "source", NOISE))
    options = {"workers": 1, **MORE.get(layout, {"layout": layout})}
    (tmp_path / "work").mkdir()
    words = [
        source,
        tmp_path / "work",
        os.environ.get("IOPROF_KILLS", "3"),
        "0",
        json.dumps(options),
    ]
    command = [sys.executable, str(PROGRAM.with_name("killed_conversions.py")), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["killed"] >= 3
    assert [] == result["wrong"]


INSTANTS = ["write_json_atomically", "put_in_place", "sync_file_system"]


@pytest.mark.job
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("instant", INSTANTS)
@pytest.mark.parametrize("force", [False, True])
def test_killed_at_the_end_it_ends_with_the_same_dataset(
    small_tree, tmp_path, monkeypatch, instant, after, force
):
    """Before and after each of the last acts, with and without an old dataset in the place: the
    same command ends well."""
    destination = tmp_path / "dataset"
    if force:
        made(small_tree, destination, layout="webdataset")
    expected = made(small_tree, tmp_path / "other" / "dataset", image="rgb256")
    act = getattr(dataset_writer, instant)

    def killed(*arguments: Any) -> None:
        if after:
            act(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    process = os.fork()
    if not process:
        setattr(dataset_writer, instant, killed)
        with contextlib.suppress(BaseException):
            made(small_tree, destination, image="rgb256", force=force)
        os._exit(3)
    assert -signal.SIGKILL == os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert (
        expected.manifest() == made(small_tree, destination, image="rgb256", force=force).manifest()
    )
    assert folder_bytes(expected.path) == folder_bytes(destination)
    assert ["dataset", "other"] == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.job(every=4)
@pytest.mark.parametrize("layout", ["files", "lmdb", "webdataset", "raw"])
def test_what_a_crash_of_the_machine_lost_is_made_again(tmp_path, layout):
    """After another boot all records are read back, and converted again from the first damaged one
    on."""
    source = tree(tmp_path / "source", NOISE)
    options = ConvertOptions(layout=layout, workers=1)
    expected = convert(source, tmp_path / "undisturbed" / "dataset", options)

    def stop(_: int) -> None:
        if plan_conversion(source, tmp_path / "dataset", options).done() > 600:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "dataset", options, stop)
    (tmp_path / ".dataset.partial" / "boot").write_text("another")
    data = tmp_path / ".dataset.partial" / "dataset"
    victim = {
        "files": "train/n01/*.JPEG",
        "lmdb": "train/data.mdb",
        "webdataset": "train/*.tar",
        "raw": "train.bin",
    }[layout]
    path = sorted(data.glob(victim))[0]
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(4096) + content[middle + 4096 :])
    found = convert(source, tmp_path / "dataset", options)
    assert expected.manifest() == found.manifest()
    assert records(expected) == records(found)


def test_a_journal_is_believed_as_far_as_it_is_whole(tmp_path):
    """Any bytes: the entries up to the first invalid one count."""
    path = tmp_path / "journal"
    expected = [
        RecordEntry(0, 10, b"\1" * 32),
        QuarantineEntry("n01/ü.JPEG", "empty file"),
        RecordEntry(7, 20, b"\2" * 32),
    ]
    with Journal(path, 0) as journal:
        journal.append(expected)
    whole = path.read_bytes()
    assert expected == list(read_entries(path))
    negative, too_long = (struct.pack("<qq32s", *numbers, b"") for numbers in ((-2, 1), (0, 2**40)))
    no_text = QuarantineEntry("a", "b").encode()
    for rest in (
        whole[:20],
        bytes(96),
        negative,
        too_long,
        no_text[:48],
        no_text[:50] + bytes(46),
        b"\xff" * 48,
        whole[:-1],
    ):
        path.write_bytes(whole + rest + (whole if not len(rest) % 48 else b""))
        assert expected == list(read_entries(path))[:3]
        assert (3, 2, len(whole)) == journal_progress(path) or rest == whole[:-1]
        before = path.read_bytes()
        assert (2, 1) == journal_progress(path, 1)[:2]
        assert expected[:2] == [*Tally.of(path, 1).quarantined, expected[0]][::-1]
        assert before == path.read_bytes()  # reading it changes nothing
        with Journal(path, journal_progress(path, 1).end) as journal:
            journal.append([expected[2]])
        assert whole == path.read_bytes()


@given(st.lists(st.booleans(), max_size=400), st.integers(0, 500))
def test_a_journal_tells_what_was_appended(tmp_path_factory, good, stop):
    """For any order of records and bad images: up to the entry before a record, one by one and
    counted."""
    path = tmp_path_factory.mktemp("journal") / "journal"
    expected = [
        RecordEntry(number, number + 1, bytes([number % 256]) * 32)
        if is_good
        else QuarantineEntry(f"n01/{number}", "x" * number)
        for number, is_good in enumerate(good)
    ]
    with Journal(path, 0) as journal:
        journal.append(expected[:100])
        journal.append(expected[100:])
    assert expected == list(read_entries(path))
    places = [place for place, is_good in enumerate(good) if is_good]
    first = expected[: places[stop]] if stop < len(places) else expected
    tally = Tally.of(path, stop)
    assert (
        (len(first), min(stop, len(places)))
        == journal_progress(path, stop)[:2]
        == (tally.images, tally.records)
    )
    digest = RecordDigest()
    for entry in first:
        if isinstance(entry, RecordEntry):
            digest.add_hashed(*entry)
    assert (digest.text(), [entry for entry in first if isinstance(entry, QuarantineEntry)]) == (
        tally.digest.text(),
        tally.quarantined,
    )
    assert (
        sum(len(entry.encode()) for entry in first) == journal_progress(path, stop).end == tally.end
    )


# --------------------------------------------------------------------------------------- full disks


@pytest.mark.system
@pytest.mark.parametrize(
    ("layout", "workers"), [("files", 1), ("files", 2), ("lmdb", 1), ("webdataset", 2), ("raw", 1)]
)
def test_a_disk_that_fills_up_is_one_line(small_tree, small_disk, layout, workers):
    """Exit code 1; what another program wrote is still there; with free space the same conversion
    resumes, with the same result."""
    disk = small_disk(24 << 20, files=100)
    chance = random.Random(layout)
    room = chance.randrange(1 << 18, 1 << 21)

    def fill(_: int) -> None:
        free = shutil.disk_usage(disk).free
        with open(disk / "other", "ab") as stream:
            stream.write(bytes(max(0, free - room)))

    options = ConvertOptions(layout=layout, image="rgb256", encoding="raw", workers=workers)
    with pytest.raises(
        CommandError,
        match=r"cannot be written.*No space left on device.*finished work is kept: the same",
    ) as refusal:
        convert(small_tree, disk / "new" / "dataset", options, fill)
    assert 1 == refusal.value.exit_code
    assert not (disk / "new" / "dataset").exists()
    (disk / "other").unlink()
    assert plan_conversion(small_tree, disk / "new" / "dataset", options).done() > 0
    dataset = convert(small_tree, disk / "new" / "dataset", options)
    assert ["dataset"] == [path.name for path in (disk / "new").iterdir()]
    assert (
        convert(small_tree, disk.parent / "undisturbed" / "dataset", options).manifest()
        == dataset.manifest()
    )


@pytest.mark.system
def test_space_is_looked_at_first(small_tree, small_disk):
    """What is needed and what there is, in bytes or in files, before anything is written."""
    disk = small_disk(24 << 20, files=100)
    source = tree(disk.parent / "source", {f"n01/{number}.JPEG": jpeg() for number in range(130)})
    with pytest.raises(CommandError, match=r"needs about 0\.027 GB.*has 0\.025 GB free"):
        made(source, disk / "dataset", layout="lmdb", image="rgb256", encoding="raw")
    with pytest.raises(CommandError, match=r"needs 130 files.*inodes for.*--layout lmdb"):
        made(source, disk / "dataset")
    with pytest.raises(CommandError, match="needs about"):
        generate(disk / "images", GenerateOptions(images=1000))
    assert [] == list(disk.iterdir())
    assert 130 == made(source, disk / "dataset", layout="lmdb").records


# ---------------------------------------------------------------------------- what was there before


def test_force_replaces_a_dataset_when_the_new_one_is_whole(small_tree, tmp_path):
    """A conversion that fails leaves the old dataset as it was; one that does not leaves only the
    new one."""
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
        made(small_tree, tmp_path / "empty", limit=3)


def test_the_source_is_never_the_destination(tmp_path):
    """Nor inside the one to be replaced, nor a class folder next to the others."""
    source = tree(tmp_path / "all" / "source", {"n01/a.JPEG": jpeg()})
    for destination in (source, source.parent):
        (destination / "synthetic.json").write_text(json.dumps({"schema": SYNTHETIC_SCHEMA}))
        with pytest.raises(CommandError, match=r"holds the source|which ioprof did not write"):
            made(source, destination, force=True)
    with pytest.raises(CommandError, match="would be a class folder"):
        made(source, source / "dataset")
    assert (source / "n01" / "a.JPEG").is_file()


def test_a_source_reached_by_links_is_never_replaced(small_tree, tmp_path):
    """Class folders, images or a tar in the dataset to be replaced; and no dataset is made inside
    its source."""
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
    """A source that is moved away ends the job, for both values of --on-error."""
    source = tmp_path / "source"
    shutil.copytree(small_tree, source)
    options = ConvertOptions(workers=1, on_error=on_error)
    with pytest.raises(
        CommandError, match=r"cannot be read \(No such file.*finished work is kept"
    ) as refusal:
        convert(
            source,
            tmp_path / "dataset",
            options,
            lambda _: source.exists() and source.rename(tmp_path / "moved"),
        )
    assert 1 == refusal.value.exit_code
    (tmp_path / "moved").rename(source)
    assert 36 == convert(source, tmp_path / "dataset", options).records


def test_too_little_memory_is_one_line(tmp_path):
    """In a generation as in a conversion."""

    def full(_: int) -> None:
        raise MemoryError

    with pytest.raises(CommandError, match=r"out of memory.*nothing was left behind"):
        generate(tmp_path / "images", GenerateOptions(images=2, workers=1), full)
    assert [] == list(tmp_path.iterdir())
