"""What a machine that went down has left of a half-made dataset: not all that a process wrote may have come to the disk."""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ioprof.converters.journal import Recorded, entries
from ioprof.converters.layouts import LAYOUTS, Target
from ioprof.converters.pool import ordered_map
from ioprof.converters.stored import Piece, Stored, StoredRecords
from ioprof.dataset import Dataset
from ioprof.errors import CommandError, IoprofError


class Suspect(NamedTuple):
    """A dataset whose journal may say more than is there."""

    dataset: Dataset
    """As the journal describes it."""
    target: Target
    journal: Path


def num_readable(suspect: Suspect, is_finished: bool) -> int:
    """How many records, from the first on, are what the journal says.

    They are read by a process of their own, since a damaged environment can kill the one that reads it.
    """
    with contextlib.suppress(CommandError):
        return next(ordered_map(_num_finished if is_finished else _num_begun, [suspect], 2))
    return 0


def _num_begun(suspect: Suspect) -> int:
    dataset = suspect.dataset
    with contextlib.suppress(IoprofError, OSError):
        with LAYOUTS[dataset.layout](suspect.target, start=dataset.records) as layout:  # cuts off what is not whole
            there = layout.durable()
        return _num_as_told(replace(dataset, records=there), suspect.journal)
    return 0


def _num_finished(suspect: Suspect) -> int:
    return _num_as_told(suspect.dataset, suspect.journal)


def _num_as_told(dataset: Dataset, journal: Path) -> int:
    told = (entry for entry in entries(journal) if isinstance(entry, Recorded))
    found = 0
    with contextlib.suppress(IoprofError, OSError), contextlib.closing(StoredRecords(dataset)) as stored:
        for record in _records(stored, dataset):
            if (record.label, len(record.data), hashlib.sha256(record.data).digest()) != next(told, None):
                break
            found += 1
    return found


def _records(stored: StoredRecords, dataset: Dataset) -> Iterator[Stored]:
    if dataset.layout == "webdataset":  # the last tar may have no end
        pieces = [Piece(str(shard), 0, 0, dataset.records) for shard in sorted(dataset.data_path.glob("*.tar"))]
    else:
        pieces = list(stored.pieces())
    for piece in pieces:
        yield from stored.read(piece)
