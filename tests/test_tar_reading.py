"""Reading tars record by record: what the writer wrote, from any record on, and nothing of what it
did not."""

import io
import random
import shutil
import tarfile
from pathlib import Path

import polars as pl
import pytest
from hooked import recorded, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_datasets import made, records
from preload import LIBRARY, captured, needs_library, reads_of, run_python
from strategies import examples

from ioprof.errors import DatasetError
from ioprof.format.dataset import Dataset
from ioprof.loaders import check_loader, make_loader, open_records
from ioprof.loaders.base import LoaderOptions
from ioprof.loaders.tar_reading import BLOCK, CHUNK_BYTES, TarReader, first_number


@pytest.fixture(scope="module")
def dataset(small_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The small tree as tars of 64 KiB; for reading only."""
    return made(
        small_tree,
        tmp_path_factory.mktemp("tars") / "data",
        layout="webdataset",
        shard_bytes=1 << 16,
    )


def captured_reads(folder: Path, program: str, path: Path) -> tuple[str, pl.DataFrame]:
    """What a program with a `TarReader` printed, and the reads of its tar, in their order."""
    spool = folder / "spool"
    text = run_python(
        spool, f"import sys\nfrom ioprof.loaders.tar_reading import TarReader\n{program}", path
    )
    return text, reads_of(captured(spool), path).sort("start_ns")


def shard_of(path: Path) -> range:
    """By tarfile's reading of it."""
    with tarfile.open(path) as tar:
        numbers = [int(name.partition(".")[0]) for name in tar.getnames()]
    return range(numbers[0], numbers[-1] + 1)


def read(path: Path, shard: range, numbers: range) -> list[tuple[int, bytes, int]]:
    reader = TarReader(str(path), shard, numbers)
    found = []
    while not reader.is_done:
        number, image, label = reader.next()
        found.append((number, image, int(label)))
    return found


def test_any_part_of_a_shard_is_read(dataset):
    """From whatever record to whatever other: the bytes and labels that are there."""
    expected = [(number, image, label) for number, (_, label, image) in enumerate(records(dataset))]
    for path in dataset.shard_paths():
        shard = shard_of(path)
        assert shard.start == first_number(str(path))
        for start in shard:
            for stop in (start + 1, shard.stop):
                assert expected[start:stop] == read(path, shard, range(start, stop))


def write_tar(path: Path, sizes: list[int], first: int = 0) -> list[bytes]:
    """A shard of images of these sizes, by Python's own tarfile; returns the images."""
    source = random.Random(0)
    images = [source.randbytes(size) for size in sizes]
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, image in enumerate(images, start=first):
            for suffix, content in (("jpg", image), ("cls", b"7"), ("json", b"{}")):
                member = tarfile.TarInfo(f"{number:08d}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return images


@settings(max_examples=examples(25))
@given(
    st.lists(st.integers(0, 3 * BLOCK) | st.just(CHUNK_BYTES + 1), min_size=1, max_size=12),
    st.data(),
)
def test_records_of_any_size_are_read_and_found(tmp_path_factory, sizes, data):
    """Empty ones, those that fill blocks exactly, and those larger than one read; from any record
    on."""
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    images = write_tar(path, sizes, first=100)
    start = data.draw(st.integers(0, len(sizes) - 1))
    shard = range(100, 100 + len(sizes))
    assert [(100 + place, images[place], 7) for place in range(start, len(sizes))] == read(
        path, shard, shard[start:]
    )


@pytest.mark.job
@needs_library
def test_a_record_in_the_middle_is_found_by_a_few_reads(tmp_path):
    """Of 2,000 records the 1,777th takes less than a hundredth of the reads that walking there
    would take."""
    path = tmp_path / "a.tar"
    images = write_tar(path, [random.Random(number).randrange(500, 9000) for number in range(2000)])
    program = "print(TarReader(sys.argv[1], range(2000), range(1777, 1778)).next()[1].hex())"
    text, reads = captured_reads(tmp_path, program, path)
    assert images[1777].hex() == text.strip()
    assert reads["offset"].n_unique() < 1777 * 3 / 100


@pytest.mark.job
@needs_library
def test_a_shard_is_read_once_from_one_end_to_the_other(tmp_path):
    """Reads of one mebibyte that follow one another without gap or overlap, until the last record
    is there."""
    path = tmp_path / "a.tar"
    write_tar(path, [50_000] * 100)
    program = """
reader = TarReader(sys.argv[1], range(100), range(100))
while not reader.is_done:
    reader.next()
"""
    spans = captured_reads(tmp_path, program, path)[1].select("offset", "bytes").rows()
    place = 0
    for offset, size in spans:
        assert offset == place or size == 0
        place += size
    assert 100 * 50_000 < place <= path.stat().st_size
    assert len([size for _, size in spans if size]) < 2 * path.stat().st_size / CHUNK_BYTES


def refusal(path: Path, shard: range) -> str:
    """What is said on the way through all of it; nothing, if nothing is."""
    try:
        read(path, shard, shard)
        read(path, shard, shard[-1:])
    except DatasetError as error:
        return str(error)
    return ""


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_tar_is_refused_or_read(dataset, tmp_path, data):
    """Whatever a few bytes of the headers become, or wherever it is cut: records, or one of our
    errors in one line."""
    source = dataset.shard_paths()[0]
    content = bytearray(source.read_bytes())
    headers = [
        place
        for place in range(0, len(content), BLOCK)
        if content[place + 257 : place + 262] == b"ustar"
    ]
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.sampled_from(headers)) + data.draw(st.integers(0, BLOCK - 1))
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "a.tar"
    path.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    said = refusal(path, shard_of(source))
    assert not said or (said.startswith(str(path)) and len(said.splitlines()) == 1)


def test_damage_is_named(dataset, tmp_path):
    """A missing shard, one that begins with another record, a label that is none: refused with the
    shard's name."""
    copy = Dataset.load(shutil.copytree(dataset.path, tmp_path / "data"))
    first, second = copy.shard_paths()[:2]
    options = LoaderOptions(4, 9, workers=0)
    content = second.read_bytes()
    shutil.copyfile(first, second)
    with pytest.raises(
        DatasetError, match=r"train-00000\d\.tar: begins with record 0, which cannot be"
    ):
        check_loader("webdataset", copy, options)
    second.unlink()
    with pytest.raises(DatasetError, match=r"train-000001\.tar: cannot be read"):
        check_loader("webdataset", copy, options)
    labels = content.index(b".cls\0")
    second.write_bytes(content[: labels - 8 + BLOCK] + b"x" + content[labels - 8 + BLOCK + 1 :])
    check_loader("webdataset", copy, options)
    with pytest.raises(DatasetError, match=r"train-000001\.tar record .*: its label is 'x"):
        list(make_loader("webdataset", copy, options))


@pytest.mark.job(every=4)
@needs_library
def test_reads_are_recorded_under_the_batch_that_waited_for_them(dataset, tmp_path):
    """Every byte of the tars once per epoch, and each read for a batch of the job."""
    program = """
import sys
from pathlib import Path
from ioprof.format.dataset import Dataset
from ioprof.loaders import make_loader
from ioprof.loaders.base import LoaderOptions
list(make_loader("webdataset", Dataset.load(Path(sys.argv[1])), LoaderOptions(5, 8, workers=0, crop=16, shuffle_buffer=4)))
"""  # noqa: E501
    run(["-c", program, dataset.path], tmp_path / "spool", LD_PRELOAD=str(LIBRARY))
    trace = recorded(tmp_path / "spool")
    spans = trace.spans
    reads = spans.join(trace.files, on="file").filter(
        pl.col("kind") == "read", pl.col("path").str.ends_with(".tar")
    )
    of_batches = reads.filter(reads["batch"].is_not_null())
    assert set(of_batches["batch"]) <= set(range(8))
    assert (
        dataset.bytes
        < of_batches["bytes"].sum()
        <= sum(path.stat().st_size for path in dataset.shard_paths())
    )
    # where each shard begins
    assert BLOCK * len(dataset.shard_paths()) == reads["bytes"].sum() - of_batches["bytes"].sum()
    assert {"fetch", "decode", "transform", "collate", "wait", "deliver"} <= set(spans["kind"])


def test_a_record_can_be_read(dataset):
    """By its index, whatever was read before."""
    opened = open_records("webdataset", dataset)
    expected = records(dataset)
    for index in (30, 0, 17, 35):
        found = opened.read(index)
        assert expected[index][1:] == (found.label, bytes(found.data))
