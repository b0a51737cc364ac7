"""Checks a partial dataset after a crash of the machine: not everything that a process wrote need
have reached the disk.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ioprof.converters.job.journal import RecordEntry, read_entries
from ioprof.converters.job.worker_pool import ordered_map
from ioprof.converters.layouts.parquet_layout import complete_shards
from ioprof.converters.layouts.registry import LAYOUTS, Target
from ioprof.converters.layouts.stored_records import Piece, StoredRecord, StoredRecords
from ioprof.errors import CommandError, IoprofError
from ioprof.format.dataset import Dataset


class UncheckedDataset(NamedTuple):
    """A partial dataset whose journal may list more than is on the disk."""

    dataset: Dataset
    """The dataset as the journal describes it."""
    target: Target
    journal: Path


def count_valid_records(unchecked: UncheckedDataset, is_finished: bool) -> int:
    """Number of records, counted from the first, that match the journal. With `is_finished` all of
    them have been written.

    A separate process reads them, since reading a damaged LMDB environment can crash the process.
    """
    with contextlib.suppress(CommandError):
        return next(
            ordered_map(_count_valid if is_finished else _truncate_and_count_valid, [unchecked], 2)
        )
    return 0


def _truncate_and_count_valid(unchecked: UncheckedDataset) -> int:
    dataset = unchecked.dataset
    with contextlib.suppress(IoprofError, OSError):
        # drops incomplete records
        with LAYOUTS[dataset.layout](unchecked.target, start=dataset.records) as layout:
            records = layout.num_durable()
        return _count_valid(unchecked._replace(dataset=replace(dataset, records=records)))
    return 0


def _count_valid(unchecked: UncheckedDataset) -> int:
    expected = (
        entry for entry in read_entries(unchecked.journal) if isinstance(entry, RecordEntry)
    )
    count = 0
    with (
        contextlib.suppress(IoprofError, OSError),
        contextlib.closing(StoredRecords(unchecked.dataset)) as stored,
    ):
        for record in _read_all(stored, unchecked.dataset):
            if (record.label, len(record.data), hashlib.sha256(record.data).digest()) != next(
                expected, None
            ):
                break
            count += 1
    return count


def _read_all(stored: StoredRecords, dataset: Dataset) -> Iterator[StoredRecord]:
    if dataset.layout == "parquet":
        pieces = [
            Piece(str(shard), 0, 0, dataset.records)
            for shard in complete_shards(dataset.path, dataset.split)
        ]
    elif dataset.layout == "webdataset":  # the last tar may have no end-of-archive mark
        pieces = [
            Piece(str(shard), 0, 0, dataset.records)
            for shard in sorted(dataset.data_path.glob("*.tar"))
        ]
    else:
        pieces = list(stored.pieces())
    for piece in pieces:
        yield from stored.read(piece)
