"""Ids of files and names that are common to all processes of a run."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ioprof.format.schema import FILE_COLUMNS, SPAN_COLUMNS
from ioprof.format.trace import empty_table, table_schema
from ioprof.ingest.untrusted_values import texts

_Array = npt.NDArray[Any]


@dataclass
class Numbering:
    """File ids and name ids of a run. The same path bytes in two processes are one file."""

    files: dict[bytes, int] = field(default_factory=dict)
    names: dict[bytes, int] = field(default_factory=dict)
    _name_series: pl.Series = field(default_factory=lambda: pl.Series([], dtype=pl.Categorical()))

    def file(self, path: bytes) -> int:
        """The id of a file; a new path gets the next id."""
        return self.files.setdefault(path, len(self.files))

    def name_series(self) -> pl.Series:
        """The names, in the order of their ids."""
        if len(self._name_series) != len(self.names):
            self._name_series = texts(self.names).cast(table_schema(SPAN_COLUMNS)["name"])
        return self._name_series

    def files_table(self) -> pl.DataFrame:
        """The files that spans refer to, in the order of their ids."""
        known = {"file": list(self.files.values()), "path": texts(self.files)}
        missing = {name: None for name in FILE_COLUMNS if name not in known}
        return (
            pl.DataFrame({**known, **missing}, schema=table_schema(FILE_COLUMNS))
            if self.files
            else empty_table(FILE_COLUMNS)
        )


class StringIds:
    """Which string ids of one process its spans use, and what their ids are in the run."""

    def __init__(self) -> None:
        self.limit = 0
        """Greater ids than this are damage: so many strings do not fit into the file."""
        self._uses: _Array = np.zeros(0, np.int64)  # by id
        self._num_large = 0
        self._table: _Array = np.full(1, -1, np.int64)

    def count(self, numbers: _Array) -> None:
        """Count the uses of these ids; -1 is none."""
        found = numbers[numbers >= 0]
        if not len(found):
            return
        large = found > self.limit
        if large.any():  # only a damaged file has such ids
            self._num_large += int(np.count_nonzero(large))
            found = found[~large]
        uses = np.bincount(found, minlength=len(self._uses))
        uses[: len(self._uses)] += self._uses
        self._uses = uses

    def number(self, strings: dict[int, bytes], known: dict[bytes, int]) -> int:
        """Give the used strings their ids in the run; new ones are added to `known`. Returns how
        many uses are of no string.
        """
        self._table = np.full(len(self._uses) + 1, -1, np.int64)
        missing = self._num_large
        for number in np.flatnonzero(self._uses).tolist():
            if number in strings:
                self._table[number] = known.setdefault(strings[number], len(known))
            else:
                missing += int(self._uses[number])
        return missing

    def map(self, numbers: _Array) -> _Array:
        """Ids of the run for these ids of the process. -1: no string."""
        last = len(self._table) - 1
        # as uint32, -1 is the largest value
        places: _Array = np.minimum(numbers.astype(np.uint32, copy=False), last)
        ids: _Array = self._table[places]
        return ids
