"""The loaders: what goes wrong in a worker reaches the rank as one line that names what it was
about."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from captures import PROGRAMS
from made_datasets import made

from ioprof.errors import DatasetError, IoprofError, LoaderError
from ioprof.format.dataset import Dataset
from ioprof.loaders import make_loader
from ioprof.loaders.base import Loader, LoaderOptions
from ioprof.loaders.file_reading import LARGEST_FILE
from ioprof.loaders.records import Records

WORKERS = [0, 1]
"""In the rank itself, and in a process of its own."""


@pytest.fixture(scope="module")
def datasets(small_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """The small tree in each layout; for reading only."""
    root = tmp_path_factory.mktemp("datasets")
    return {layout: made(small_tree, root / layout, layout=layout) for layout in ("files", "lmdb")}


@pytest.fixture
def files(datasets: dict[str, Dataset], tmp_path: Path) -> Dataset:
    """A copy of the `files` dataset, to be spoiled."""
    return Dataset.load(shutil.copytree(datasets["files"].path, tmp_path / "files"))


def loader_of(dataset: Dataset, **options: Any) -> Loader:
    """A loader of one epoch in one batch."""
    return make_loader(
        dataset.layout,
        dataset,
        LoaderOptions(**{"batch_size": dataset.records, "num_batches": 1, **options}),
    )


def failure(loader: Loader) -> tuple[type[IoprofError], str]:
    """How loading ends: the kind of error, and its one short line."""
    try:  # pytest.raises would keep the traceback, and with it the workers
        list(loader)
    except IoprofError as error:
        kind, said = type(error), str(error)
    else:
        pytest.fail("every batch was made")
    assert len(said.splitlines()) == 1, said
    assert len(said) < 500, said
    assert "Traceback" not in said
    return kind, said


def images_of(dataset: Dataset) -> list[Path]:
    return sorted(dataset.path.rglob("*.JPEG"))


@pytest.mark.job
@pytest.mark.parametrize("layout", ["files", "lmdb"])
def test_workers_change_no_batch(datasets: dict[str, Dataset], layout: str) -> None:
    """The same images and labels, however many processes make them, and a batch for each number."""
    options = {"batch_size": 5, "num_batches": 10}
    alone, together = (
        list(loader_of(datasets[layout], workers=workers, **options)) for workers in (0, 2)
    )
    assert list(range(10)) == [batch.number for batch in together]
    assert all((one.images == two.images).all() for one, two in zip(alone, together, strict=True))
    assert all((one.labels == two.labels).all() for one, two in zip(alone, together, strict=True))


@pytest.mark.job
@pytest.mark.parametrize("workers", WORKERS)
def test_a_bad_image_is_named(files: Dataset, workers: int) -> None:
    """Its file and how much of it there is."""
    images_of(files)[7].write_bytes(b"no image")
    kind, said = failure(loader_of(files, workers=workers))
    assert kind is DatasetError
    assert f"{images_of(files)[7].name}: image of 8 bytes cannot be decoded" in said


@pytest.mark.job
@pytest.mark.timeout(60)  # a FIFO without a writer would be waited for, for ever
@pytest.mark.parametrize("workers", WORKERS)
def test_a_fifo_among_the_images_is_named(files: Dataset, workers: int) -> None:
    """It is refused at once, not waited for."""
    victim = images_of(files)[3]
    victim.unlink()
    os.mkfifo(victim)
    assert (
        f"{victim}: cannot be read (not a regular file)"
        == failure(loader_of(files, workers=workers))[1]
    )


@pytest.mark.timeout(60)
def test_a_fifo_in_place_of_an_environment_is_named(
    datasets: dict[str, Dataset], tmp_path: Path
) -> None:
    """The same for the file of an LMDB dataset, before a job is started."""
    dataset = Dataset.load(shutil.copytree(datasets["lmdb"].path, tmp_path / "lmdb"))
    victim = dataset.data_path / "data.mdb"
    victim.unlink()
    os.mkfifo(victim)
    assert f"{victim}: not a regular file" in failure(loader_of(dataset, workers=0))[1]


@pytest.mark.job
@pytest.mark.parametrize("workers", WORKERS)
def test_a_huge_file_is_no_image(files: Dataset, workers: int) -> None:
    """Refused with its name and size before memory is taken for it."""
    os.truncate(images_of(files)[5], 5 * LARGEST_FILE)
    _, said = failure(loader_of(files, workers=workers))
    assert images_of(files)[5].name in said
    assert "5,368,709,120 bytes" in said


@contextmanager
def memory_for(more_bytes: int) -> Iterator[None]:
    """So little address space is left to this process and to the workers that it starts."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.job
@pytest.mark.parametrize("workers", WORKERS)
def test_too_little_memory_for_a_record_names_it(files: Dataset, workers: int) -> None:
    """The record, and what needs less memory."""
    list(loader_of(files, workers=0))  # so that what is loaded late is loaded
    os.truncate(images_of(files)[5], 900 << 20)
    with memory_for(700 << 20):
        kind, said = failure(loader_of(files, workers=workers))
    assert kind is LoaderError
    assert images_of(files)[5].name in said
    assert "--workers" in said


class OddError(Exception):
    """What no library is known to raise."""


class OddRecords(Records):
    """Records that fail as nobody foresaw, with much to say about it."""

    def check(self) -> None:
        pass

    def read(self, index: int) -> Any:
        raise OddError("strange\n" + "words " * 1000)

    def name(self, index: int) -> str:
        return "an odd record"


@pytest.mark.job
@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_that_nobody_foresaw_is_one_line(files: Dataset, workers: int) -> None:
    """Its record, its type and its first line; torch would send the traceback."""
    from ioprof.loaders.torch_loader import TorchLoader

    options = LoaderOptions(1, 1, workers=workers)
    loader = TorchLoader(OddRecords(files, options), options)
    assert (LoaderError, "an odd record: cannot be read (OddError: strange)") == failure(loader)


def program(dataset: Dataset, num_batches: int) -> list[str]:
    """The command line that loads batches in a process of its own."""
    return [sys.executable, str(PROGRAMS / "load_batches.py"), str(dataset.path), str(num_batches)]


@pytest.fixture(params=["1M", "4k"], ids=["room for workers only", "room for nothing"])
def small_shared_memory(request: pytest.FixtureRequest) -> list[str]:
    """The beginning of a command line whose program finds a small /dev/shm, one page of it taken;
    needs root."""
    taken = f"mount -t tmpfs -o size={request.param} none /dev/shm && echo > /dev/shm/taken"
    command = ["unshare", "--mount", "sh", "-c", f'{taken} && exec "$@"', "sh"]
    if os.geteuid() != 0 or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("a small /dev/shm needs root and a mount namespace")
    return command


@pytest.mark.system(every=4)
def test_shared_memory_that_is_full_says_what_to_do(
    datasets: dict[str, Dataset], small_shared_memory: list[str]
) -> None:
    """Whether a batch finds no room on its way to the rank, or not even the workers' locks do: what
    it was, and what to type."""
    ended = subprocess.run(
        [*small_shared_memory, *program(datasets["files"], 1)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    [said] = ended.stdout.splitlines()
    assert said.startswith(
        (
            "LoaderError: /dev/shm: 0.0 MB free, no loader worker",
            "LoaderError: /dev/shm: 1.0 MB free, a batch",
        )
    )
    assert "No space left on device" in said
    assert {"--workers", "--batch-size", "--shm-size=16g)"} <= set(said.replace(",", " ").split())


@pytest.mark.job(every=4)
def test_a_file_cut_short_under_a_worker_is_a_bus_error_with_its_causes(
    datasets: dict[str, Dataset], tmp_path: Path
) -> None:
    """A page that is no longer there kills the worker, and nobody can say which mapping it was:
    both are named."""
    dataset = Dataset.load(shutil.copytree(datasets["lmdb"].path, tmp_path / "lmdb"))
    with subprocess.Popen(
        program(dataset, 5000), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "36 samples\n" == process.stdout.readline()
        os.truncate(dataset.data_path / "data.mdb", 0)
        out, err = process.communicate(timeout=120)
    said = out.splitlines()[-1]
    assert "killed by SIGBUS" in said, err
    assert "/dev/shm is full, or a dataset file was cut short" in said
