"""Sums over reads: by source, size and time, by file, by epoch, and of small calls.

They are added up part by part in arrays, by C (native/read_sums.c), which runs beside the thread
that reads the next part.
"""

from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ioprof import _read_sums
from ioprof.analysis.charge.duration_classes import LEAST_NS, NUM_CLASSES
from ioprof.format.schema import SOURCES

SIZE_STEP: Final = 4
"""A class of sizes has up to so many times its least size."""
PAGE_BYTES: Final = 4096
NO_OFFSET: Final = -1

IS_READ: Final = 1
"""Of `flags`: a read or a fault, which is counted."""
IS_OPEN: Final = 2
IS_CALL: Final = 4
"""A read that is no page fault."""

_NUM_SIZES: Final = 32
_ACCESSES, _BYTES, _TOOK, _LONGEST = range(4)
_PLACE_OF_LONGEST, _OPENS, _OPEN_TOOK, _END = range(4, 8)
_UNKNOWN_END: Final = np.iinfo(np.int64).max
_BITS_OF_BATCH: Final = 40
_MOST_BATCH: Final = 1 << _BITS_OF_BATCH
_MOST_RANK: Final = 1 << (62 - _BITS_OF_BATCH)


class ReadSums:
    """The sums; `epochs` has `rank`, `batch` and `epoch` of batches, each once, and `files` the ids
    of files.
    """

    columns: Final = {
        "start_ns": pl.col("start_ns"),
        "end_ns": pl.col("end_ns"),
        "size": pl.col("bytes").cast(pl.Int64).fill_null(0),
        "file_id": pl.col("file").cast(pl.Int64).fill_null(-1),
        "place": pl.col("offset").cast(pl.Int64).fill_null(NO_OFFSET),
        "rank_id": pl.col("rank").cast(pl.Int64).fill_null(-1),
        "batch_id": pl.col("batch").cast(pl.Int64).fill_null(-1),
        "source_code": pl.col("source")
        .cast(pl.Enum(SOURCES), strict=False)
        .fill_null("unknown")
        .to_physical(),
    }
    """What it needs of spans."""

    def __init__(self, files: pl.Series, epochs: pl.DataFrame) -> None:
        self._files = files.drop_nulls().unique().sort().to_numpy()
        self._is_dense = not len(self._files) or (
            int(self._files[0]) == 0 and int(self._files[-1]) == len(self._files) - 1
        )
        known = epochs.filter(
            pl.col("rank").is_between(0, _MOST_RANK - 1),
            pl.col("batch").is_between(0, _MOST_BATCH - 1),
        )
        numbered = known.select(
            key=pl.col("rank").cast(pl.Int64) * _MOST_BATCH + pl.col("batch"), epoch=pl.col("epoch")
        ).sort("key")
        self._numbers = np.unique(numbered["epoch"].to_numpy()).astype(np.int64)
        self._keys = numbered["key"].to_numpy()
        self._epochs = np.searchsorted(self._numbers, numbered["epoch"].to_numpy()).astype(np.int64)
        self._groups = np.zeros((len(SOURCES), _NUM_SIZES, NUM_CLASSES, 4), np.int64)
        self._of_files = np.zeros((len(self._files), 8), np.int64)
        self._small = np.zeros((2, 3), np.int64)
        self._of_epochs = np.zeros((len(self._numbers), len(SOURCES), 2), np.int64)

    def add(self, part: pl.DataFrame, flags: NDArray[np.uint8]) -> None:
        """Add spans with these `columns`; `flags` says what each counts as."""
        columns = [part[name].to_numpy() for name in self.columns]
        if not self._is_dense:
            columns[3] = self._places_of(columns[3])
        sums = self._groups, self._of_files, self._small, self._of_epochs
        tables = LEAST_NS, self._keys, self._epochs
        arguments: list[Any] = [
            *map(np.ascontiguousarray, columns),
            flags,
            *tables,
            *sums,
            len(SOURCES),
            len(self._numbers),
        ]
        _read_sums.add_reads(*arguments)

    def groups(self) -> pl.DataFrame:
        """Columns `source size_class time_class accesses bytes took_ns max_ns`, in the order of the
        first three.
        """
        source, size, time = np.nonzero(self._groups[..., _ACCESSES])
        found = pl.DataFrame(
            {"source": source, "size_class": size, "time_class": time}
        ).with_columns(_SOURCE)
        sums = {
            name: self._groups[source, size, time, place] for name, place in _NAMES_OF_GROUP.items()
        }
        return found.with_columns(
            **{name: pl.Series(values) for name, values in sums.items()}
        ).sort("source", "size_class", "time_class")

    def files(self) -> pl.DataFrame:
        """Of each file that was read: `file`, `accesses`, `bytes`, `took_ns`, `max_ns`,
        `max_offset`, `opens`, `open_ns`, `end`.

        No byte from `end` on was read; null: not known.
        """
        places = np.flatnonzero(self._of_files[:, _ACCESSES])
        found = self._of_files[places]
        offset, end = pl.Series(found[:, _PLACE_OF_LONGEST]), pl.Series(found[:, _END])
        return pl.DataFrame(
            {
                "file": self._files[places],
                **{name: found[:, place] for name, place in _NAMES_OF_FILE.items()},
            }
        ).with_columns(
            max_offset=offset.set(offset == NO_OFFSET, None), end=end.set(end == _UNKNOWN_END, None)
        )

    def small(self) -> pl.DataFrame:
        """Calls of up to 8 KiB, the buffer that Python's `open` uses by default, by whether they
        asked for less than a page: `below_page accesses bytes took_ns`.
        """
        names = ("accesses", "bytes", "took_ns")
        return pl.DataFrame(
            {
                "below_page": [False, True],
                **{name: self._small[:, place] for place, name in enumerate(names)},
            }
        )

    def epochs(self) -> pl.DataFrame:
        """Columns `epoch source accesses bytes` of reads for batches of an epoch."""
        epoch, source = np.nonzero(self._of_epochs[..., _ACCESSES])
        found = pl.DataFrame({"epoch": self._numbers[epoch], "source": source}).with_columns(
            _SOURCE
        )
        sums = {
            name: self._of_epochs[epoch, source, place]
            for place, name in enumerate(("accesses", "bytes"))
        }
        return found.with_columns(**{name: pl.Series(values) for name, values in sums.items()})

    def _places_of(self, files: NDArray[np.int64]) -> NDArray[np.int64]:
        place = np.searchsorted(self._files, files)
        return np.where(np.append(self._files, -1)[place] == files, place, -1)


_NAMES_OF_GROUP: Final = {
    "accesses": _ACCESSES,
    "bytes": _BYTES,
    "took_ns": _TOOK,
    "max_ns": _LONGEST,
}
_NAMES_OF_FILE: Final = {**_NAMES_OF_GROUP, "opens": _OPENS, "open_ns": _OPEN_TOOK}


_SOURCE: Final = pl.col("source").replace_strict(dict(enumerate(SOURCES)), return_dtype=pl.String)
