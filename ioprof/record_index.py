"""The index of the layouts `raw` and `indexed`: where each record lies, 24 bytes for each, so that any is one read.

SPLIT.index    per record: offset u64, length u32, label i32, file u32, zero u32; little-endian
SPLIT.names    per record: its file name, and a line feed
SPLIT.bin      of `raw`: the records, one after the other
SPLIT.files    of `indexed`: JSON with `kind` (how a record's bytes hold its image), and `files`: path, size and time of
               modification (ns) of each file; in the index `file` is a place in this list
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ioprof.dataset import Dataset
from ioprof.errors import DatasetError
from ioprof.listed_files import read_files

ENTRY: Final = np.dtype([("offset", "<u8"), ("length", "<u4"), ("label", "<i4"), ("file", "<u4"), ("zero", "<u4")])
_LARGEST_OFFSET: Final = 1 << 62
_AGAIN: Final = "convert the dataset again"

Entries = NDArray[np.void]
"""Records of `ENTRY`."""


class RecordIndex:
    """The index of a dataset of the layout `raw` or `indexed`; raises `DatasetError` where it is damaged."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        path = dataset.index_path
        try:
            size = path.stat().st_size if path.is_file() else -1
            if size != dataset.records * ENTRY.itemsize:
                raise DatasetError(f"{path}: not the index of {dataset.records} records ({size} bytes); {_AGAIN}")
            self.entries: Entries = np.fromfile(path, ENTRY)
        except OSError as error:
            raise DatasetError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from None
        self._check()

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

    def names(self) -> list[str]:
        """The file names of all records, in order; raises `DatasetError`."""
        path = self._dataset.names_path
        try:
            lines = path.read_bytes().decode().split("\n") if path.is_file() else []
        except (OSError, UnicodeDecodeError) as error:
            raise DatasetError(f"{path}: cannot be read ({error}); {_AGAIN}") from None
        if len(lines) != self._dataset.records + 1 or lines.pop():
            raise DatasetError(f"{path}: not the names of {self._dataset.records} records; {_AGAIN}")
        return lines

    def _check(self) -> None:
        entries, path = self.entries, self._dataset.index_path
        for column, limit in (("label", len(self._dataset.classes)), ("file", len(self.files)), ("offset", _LARGEST_OFFSET)):
            wrong = np.flatnonzero((entries[column] < 0) | (entries[column] >= limit))
            if len(wrong):
                raise DatasetError(f"{path}: record {wrong[0]} has the {column} {entries[column][wrong[0]]}; {_AGAIN}")
        if self._dataset.layout == "raw":
            size = Path(self.files[0]).stat().st_size if Path(self.files[0]).is_file() else -1
            ends = entries["offset"] + entries["length"]
            if int(ends.max()) > size:
                raise DatasetError(
                    f"{self.files[0]}: missing or cut short ({size} bytes, the index needs {int(ends.max())}); {_AGAIN}"
                )
