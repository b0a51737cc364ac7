"""A copy that workers fill while they read: every record is that of the bare loader, and what is
flagged is there whole."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_datasets import FORMS, made

from ioprof.loaders import open_records
from ioprof.loaders.filling import (
    BLOCK_BYTES,
    FillingOptions,
    filling,
    flags_of,
    missing_ranges,
    prepare,
)

LOADERS = {
    "files": "files",
    "lmdb": "lmdb",
    "lmdb in shards": "lmdb",
    "webdataset": "webdataset",
    "raw": "files",
}


@pytest.fixture(scope="module")
def datasets(small_tree, tmp_path_factory):
    """36 records in each form; for reading only."""
    folder = tmp_path_factory.mktemp("shared")
    return {
        form: made(small_tree, folder / form.replace(" ", "-"), **options)
        for form, options in FORMS.items()
    }


@pytest.fixture(params=LOADERS)
def form(request):
    return request.param


def reader(dataset, form, copy_folder, **more):
    """The records of the dataset for one process, through the copy."""
    options = FillingOptions(
        batch_size=4, num_batches=dataset.records // 4, workers=0, local_copy=copy_folder, **more
    )
    return filling(LOADERS[form], dataset, options)


def all_records(records):
    found = {}
    for request in records.requests():
        found |= dict(zip(request.indices, map(content, records.of_batch(request)), strict=True))
    return found


def content(record):
    return bytes(record.data), record.shape, record.label


def begun(dataset, folder):
    root = f"{dataset.path}/"
    prepare(folder, dataset, [(path, path.removeprefix(root)) for path in dataset.data_files()])
    return folder


def test_what_is_read_while_filling_is_what_is_there(datasets, form, tmp_path):
    """Law: each record, its first time and every time after, is that of the bare loader."""
    dataset = datasets[form]
    bare = {
        index: content(open_records(LOADERS[form], dataset).read(index))
        for index in range(dataset.records)
    }
    copy_folder = begun(dataset, tmp_path / "copy")

    assert bare == all_records(reader(dataset, form, copy_folder))
    assert bare == all_records(reader(dataset, form, copy_folder))


def test_the_second_epoch_reads_the_copy_alone(small_tree, form, tmp_path):
    """With the shared records gone after the first epoch, the next ones are complete; only how a
    file begins is asked again."""
    dataset = made(small_tree, tmp_path / "shared", **FORMS[form])
    copy_folder = begun(dataset, tmp_path / "copy")
    first = all_records(reader(dataset, form, copy_folder))
    for path in dataset.data_files()[1 if dataset.layout == "files" else 0 :]:
        head = Path(path).read_bytes()[: 2 * BLOCK_BYTES if dataset.layout != "files" else 0]
        Path(path).write_bytes(head + bytes(os.stat(path).st_size - len(head)))

    assert first == all_records(reader(dataset, form, copy_folder))


def test_what_is_flagged_is_there_whole(datasets, form, tmp_path):
    """Law: at every instant, each flagged record or block of the copy has the bytes of the
    original, and no copy is a dataset."""
    dataset = datasets[form]
    copy_folder = begun(dataset, tmp_path / "copy")
    records = reader(dataset, form, copy_folder)
    for request in records.requests():
        for _ in records.of_batch(request):
            check_flagged(dataset, copy_folder)
    assert not (copy_folder / "dataset" / "dataset.json").exists()


def check_flagged(dataset, copy_folder):
    files = dataset.data_files()
    if dataset.layout == "files":
        for path, there in zip(files[1:], flags_of(copy_folder), strict=True):
            target = copy_folder / "dataset" / os.path.relpath(path, dataset.path)
            assert not there or Path(path).read_bytes() == target.read_bytes()
        return
    for number, path in enumerate(files):
        original = Path(path).read_bytes()
        copied = (copy_folder / "dataset" / os.path.relpath(path, dataset.path)).read_bytes()
        for block in np.flatnonzero(flags_of(copy_folder, number)).tolist():
            place = slice(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)
            assert original[place] == copied[place]


@pytest.mark.system
def test_a_full_disk_ends_the_filling_and_not_the_job(datasets, form, tmp_path, small_disk):
    """The copy has room for a part: every record is read all the same, and what is flagged is
    whole."""
    dataset = datasets[form]
    disk = small_disk(80_000)
    try:
        copy_folder = begun(dataset, disk / "copy")
    except OSError:
        pytest.skip("not even the flags fit")
    bare = {
        index: content(open_records(LOADERS[form], dataset).read(index))
        for index in range(dataset.records)
    }

    assert bare == all_records(reader(dataset, form, copy_folder))
    assert bare == all_records(reader(dataset, form, copy_folder))
    check_flagged(dataset, copy_folder)
    assert [] == [
        path
        for path in (copy_folder / "dataset").rglob("*")
        if path.suffix.removeprefix(".").isdigit()
    ]


@given(st.lists(st.booleans(), max_size=30), st.integers(1, BLOCK_BYTES))
def test_what_is_missing_is_what_is_not_flagged(there, last):
    """Law: the ranges cover exactly the blocks that are not flagged, in order, to the file's end
    and not beyond."""
    size = max(0, (len(there) - 1) * BLOCK_BYTES + last) if there else 0
    ranges = list(missing_ranges(np.array(there, np.uint8), size))
    covered = {
        place // BLOCK_BYTES
        for start, length in ranges
        for place in range(start, start + length, BLOCK_BYTES)
    }
    assert {number for number, is_there in enumerate(there) if not is_there} == covered
    assert all(0 < length and start + length <= size for start, length in ranges)
    assert ranges == sorted(ranges)


def test_a_killed_job_s_flags_are_not_taken_over(datasets, tmp_path):
    """Who begins anew begins with nothing: flags of a killed job may be of another source."""
    dataset = datasets["lmdb"]
    copy_folder = begun(dataset, tmp_path / "copy")
    all_records(reader(dataset, "lmdb", copy_folder))
    shutil.rmtree(copy_folder / "dataset")
    begun(dataset, copy_folder)
    assert 0 == int(flags_of(copy_folder).sum())
