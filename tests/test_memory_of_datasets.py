"""What the main process holds of a dataset grows by some bytes per record, whatever the number of
records."""

import gc
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_datasets import made
from PIL import Image

from ioprof.converters import LayoutOptions, plan_verification, run_relayout
from ioprof.converters.job.length_quantiles import length_quantiles, numbers_at
from ioprof.converters.layouts.stored_records import Piece, Pieces
from ioprof.errors import DatasetError
from ioprof.format.dataset import Dataset, quantiles_of
from ioprof.format.record_index import RecordIndex
from ioprof.jobs.dataset_multiple import multiple_of
from ioprof.loaders.scaling import Scale
from ioprof.reporter import SILENT

RECORDS: Final = (3600, 6600)
LARGEST_BYTES_PER_RECORD: Final = 16
"""Of a number in an array it is 4 or 8, of an object 50 or more. Peaks of two runs differ by some
kilobytes, which is 2 to 4 per record."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    """Two datasets of the layout `raw`, of which one has nearly twice the records."""
    root = tmp_path_factory.mktemp("datasets")
    image = root / "image.JPEG"
    Image.new("RGB", (8, 8)).save(image)
    for records in RECORDS:
        for number in range(records):
            folder = root / str(records) / f"n{number % 3:08d}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:06d}.JPEG").hardlink_to(image)
    return [made(root / str(records), root / f"raw{records}", layout="raw") for records in RECORDS]


def relayout(dataset: Dataset, place: Path) -> Any:
    return run_relayout(dataset.path, place, LayoutOptions(layout="raw", workers=1))


def verify(dataset: Dataset, _: Path) -> Any:
    found = plan_verification(dataset.path, workers=1).run()
    assert found.is_good
    return found


def scale(dataset: Dataset, _: Path) -> Any:
    return multiple_of(dataset, Scale.parse("2x"), SILENT)


@pytest.mark.parametrize("work", [relayout, verify, scale])
def test_memory_per_record_is_that_of_a_number_in_an_array(
    datasets: list[Dataset],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[Dataset, Path], Any],
) -> None:
    """By the peak of what Python and NumPy allocate, of two sizes; workers=1 does all in this
    process."""
    # less than the names of the smaller one
    monkeypatch.setattr("ioprof.format.record_index._BLOCK_BYTES", 1024)
    monkeypatch.setattr("ioprof.converters.job.journal._BLOCK_ENTRIES", 16)
    threshold = gc.get_threshold()
    gc.set_threshold(10)  # otherwise the peak has garbage that the next collection frees
    peaks = []
    small, large = datasets
    for number, dataset in enumerate([small, small, large, small, large]):  # the first loads code
        tracemalloc.start()
        work(dataset, tmp_path / str(number))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        Path(f"{dataset.path}-2x", "dataset.json").unlink(missing_ok=True)  # made again by the next
        for path in Path(f"{dataset.path}-2x").glob("*"):
            path.unlink()
        if Path(f"{dataset.path}-2x").exists():
            Path(f"{dataset.path}-2x").rmdir()
    gc.set_threshold(*threshold)
    # What else goes on in the process adds some kilobytes to any of them.
    smaller, larger = max(peaks[1], peaks[3]), min(peaks[2], peaks[4])
    assert (larger - smaller) / (RECORDS[1] - RECORDS[0]) < LARGEST_BYTES_PER_RECORD


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=6), st.integers(0, 200))
def test_pieces_are_those_of_a_list(ranges: list[tuple[int, int]], skipped: int) -> None:
    """In order, each record once; from a record on as well."""
    pieces, expected, first = Pieces(), list[Piece](), 0
    for records, size in ranges:
        pieces.add(Piece("", 0, first, first + records), size)
        starts = range(first, first + records, size)
        expected += [Piece("", 0, start, min(start + size, first + records)) for start in starts]
        first += records
    assert (expected, len(expected)) == (list(pieces), len(pieces))
    assert expected[-3:] == pieces[-3:]
    with pytest.raises(IndexError):
        pieces[len(pieces)]
    left = [number for piece in pieces.after(skipped) for number in range(piece.start, piece.stop)]
    assert list(range(min(skipped, first), first)) == left


@pytest.mark.parametrize("records", [1, 63, 64, 65, 500])
@pytest.mark.parametrize("block", [1, 7, 1 << 18])
def test_names_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int, block: int
) -> None:
    """Any range of them, whatever the blocks in which the file is looked through; a name too few or
    too many is an error."""
    monkeypatch.setattr("ioprof.format.record_index._BLOCK_BYTES", block)
    images = tmp_path / "tree" / "n00000000"
    images.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "image.JPEG")
    for number in range(records):
        (images / f"{'x' * (number % 5)}{number}.JPEG").hardlink_to(tmp_path / "image.JPEG")
    dataset = made(tmp_path / "tree", tmp_path / "data", layout="raw")
    names = dataset.names_path.read_text().splitlines()
    chance = np.random.default_rng(0)
    index = RecordIndex(dataset)
    for _ in range(50):
        start, stop = sorted(chance.choice(records + 1, 2, replace=False).tolist())
        assert names[start:stop] == index.names(start, stop)
        assert index.entries[start:stop].tobytes() == index.part(start, stop).tobytes()
    for text in (
        "\n".join(names),
        "".join(f"{name}\n" for name in [*names, "y"]),
        "".join(f"{name}\n" for name in names[1:]),
    ):
        dataset.names_path.write_text(text)
        with pytest.raises(DatasetError, match=f"not the names of {records} records"):
            RecordIndex(dataset).names(0, 1)


@given(st.lists(st.integers(1, 2**32 - 1), min_size=1, max_size=50))
def test_quantiles_of_an_array_are_those_of_a_list(lengths: list[int]) -> None:
    """Though they are found in the array itself."""
    assert quantiles_of(lengths) == quantiles_of(array("I", lengths))


@given(
    st.lists(
        st.integers(1, 2**32 - 1) | st.integers(1, 9) | st.integers(5000, 9000),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 7),
)
def test_quantiles_of_lengths_that_are_read_in_parts_are_those_of_a_list(
    lengths: list[int], size: int
) -> None:
    """To the last bit, also where two lengths are interpolated, of any lengths and any parts."""

    def parts() -> Iterator[Any]:
        for start in range(0, len(lengths), size):
            yield np.array(lengths[start : start + size], np.int64)

    assert quantiles_of(lengths) == length_quantiles(parts, len(lengths), sum(lengths))
    assert sorted(lengths) == numbers_at(parts, range(len(lengths)))
