"""The index of the layouts `raw` and `indexed`: where each record lies, 24 bytes for each, so that
any is one read.

SPLIT.index    per record: offset u64, length u32, label i32, file u32, zero u32; little-endian
SPLIT.names    per record: its file name, and a line feed
SPLIT.bin      of `raw`: the records, one after the other
SPLIT.files    of `indexed`: JSON with `kind` (how a record's bytes hold its image), and `files`: path, size and time of
               modification (ns) of each file; in the index `file` is a place in this list
"""  # noqa: E501

import io
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ioprof.errors import DatasetError
from ioprof.format.dataset import Dataset
from ioprof.format.listed_files import read_files

ENTRY: Final = np.dtype(
    [("offset", "<u8"), ("length", "<u4"), ("label", "<i4"), ("file", "<u4"), ("zero", "<u4")]
)
_NAMES_PER_PLACE: Final = 64
_BLOCK_BYTES: Final = 1 << 18
_LINE_FEED: Final = ord("\n")
_LARGEST_OFFSET: Final = 1 << 62
_AGAIN: Final = "convert the dataset again"

Entries = NDArray[np.void]
"""Records of `ENTRY`."""


class RecordIndex:
    """The index of a dataset of the layout `raw` or `indexed`; raises `DatasetError` where it is
    damaged.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset, self._path = dataset, dataset.index_path
        try:
            size = self._path.stat().st_size if self._path.is_file() else -1
        except OSError as error:
            raise self._unreadable(self._path, error) from None
        if size != dataset.records * ENTRY.itemsize:
            raise DatasetError(
                f"{self._path}: not the index of {dataset.records} records ({size} bytes); {_AGAIN}"
            )

    @cached_property
    def entries(self) -> Entries:
        """Of all records, in order."""
        return self.part(0, self._dataset.records)

    def part(self, start: int, stop: int) -> Entries:
        """The entries of records `start` to `stop`; raises `DatasetError`."""
        try:
            found = np.fromfile(self._path, ENTRY, stop - start, offset=start * ENTRY.itemsize)
        except OSError as error:
            raise self._unreadable(self._path, error) from None
        if len(found) != stop - start:
            raise DatasetError(f"{self._path}: was cut short while it was read; {_AGAIN}")
        self._check(found, start)
        return found

    @cached_property
    def files(self) -> Sequence[str]:
        """The files that hold the records."""
        if self._dataset.layout == "raw":
            return [str(self._dataset.data_bin_path)]
        return [stamp.path for stamp in read_files(self._dataset.files_path)[1]]

    @cached_property
    def kind(self) -> str:
        """How a record's bytes hold its image, a key of `foreign.values.VALUES`."""
        return "file" if self._dataset.layout == "raw" else read_files(self._dataset.files_path)[0]

    def names(self, start: int, stop: int) -> list[str]:
        """The file names of records `start` to `stop`; raises `DatasetError`."""
        path, first = self._dataset.names_path, start // _NAMES_PER_PLACE
        places = self._name_places[first : -(-stop // _NAMES_PER_PLACE) + 1]
        try:
            with path.open("rb", buffering=0) as stream:
                text = os.pread(
                    stream.fileno(), int(places[-1] - places[0]), int(places[0])
                ).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(path, error) from None
        names = text.split("\n")[start - first * _NAMES_PER_PLACE : stop - first * _NAMES_PER_PLACE]
        if len(names) != stop - start:
            raise DatasetError(f"{path}: was cut short while it was read; {_AGAIN}")
        return names

    @cached_property
    def _name_places(self) -> "NDArray[np.int64]":
        """Where every `_NAMES_PER_PLACE`th name begins, and the end of the last one: of a million
        names not all are held.
        """
        path, records = self._dataset.names_path, self._dataset.records
        places, count, end, size = [0], 0, 0, 0
        try:
            with path.open("rb", buffering=0) if path.is_file() else io.BytesIO() as stream:
                while block := stream.read(_BLOCK_BYTES):
                    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _LINE_FEED) + size + 1
                    # of the names that end here, the first after which a place is kept
                    first = -(count + 1) % _NAMES_PER_PLACE
                    places += ends[first::_NAMES_PER_PLACE].tolist()
                    count, end, size = (
                        count + len(ends),
                        int(ends[-1]) if len(ends) else end,
                        size + len(block),
                    )
        except OSError as error:
            raise self._unreadable(path, error) from None
        if count != records or end != size:
            raise DatasetError(f"{path}: not the names of {records} records; {_AGAIN}")
        return np.array([*places, end] if records % _NAMES_PER_PLACE else places, np.int64)

    def _check(self, entries: Entries, start: int) -> None:
        path = self._path
        for column, limit in (
            ("label", len(self._dataset.classes)),
            ("file", len(self.files)),
            ("offset", _LARGEST_OFFSET),
        ):
            wrong = np.flatnonzero((entries[column] < 0) | (entries[column] >= limit))
            if len(wrong):
                what = f"record {start + wrong[0]} has the {column} {entries[column][wrong[0]]}"
                raise DatasetError(f"{path}: {what}; {_AGAIN}")
        if self._dataset.layout == "raw" and len(entries):
            size = Path(self.files[0]).stat().st_size if Path(self.files[0]).is_file() else -1
            end = int((entries["offset"] + entries["length"]).max())
            if end > size:
                raise DatasetError(
                    f"{self.files[0]}: missing or cut short ({size} bytes, the index needs {end});"
                    f" {_AGAIN}"
                )

    def _unreadable(self, path: Path, error: OSError | UnicodeDecodeError) -> DatasetError:
        return DatasetError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); {_AGAIN}"
        )
