"""Reads the records of a dataset of any layout in pieces: to verify, merge and replicate datasets.

A piece is the unit of work of one process: some records of a `files` index or of an LMDB
environment, or a whole tar.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, overload

import lmdb

from ioprof.converters.layouts import webdataset_layout
from ioprof.errors import DatasetError
from ioprof.foreign import tensorprotos
from ioprof.foreign.parquet_rows import ParquetRows
from ioprof.foreign.values import VALUES
from ioprof.format.dataset import (
    INDEXED_LAYOUTS,
    Dataset,
    is_plain_name,
    open_environment,
    read_index,
)
from ioprof.format.record_index import RecordIndex

_PIECE_RECORDS: Final = 32
_MAX_MAPPED_BYTES: Final = 1 << 22
"""Of images; small ones are mapped with as many pages of others around them, which the kernel maps
with each fault."""
_AGAIN: Final = "convert the dataset again"


class StoredRecord(NamedTuple):
    """One record read from the dataset."""

    name: str
    """File name, without the class folder."""
    label: int
    data: bytes


class Piece(NamedTuple):
    """A contiguous range of records within one shard."""

    shard: str
    """Path of the environment or the tar; empty for `files`."""
    first: int
    """Number of the shard's first record in the dataset; 0 for `files`."""
    start: int
    """Number, in the dataset, of the first record to read."""
    stop: int
    """Number after the last record to read."""


class Pieces(Sequence[Piece]):
    """Pieces in order, each made when it is asked for: a million records have tens of thousands."""

    def __init__(self) -> None:
        self._ranges: list[tuple[Piece, int]] = []
        """Ranges of records, and the size of the pieces that each is divided into."""
        self._ends: list[int] = []

    def add(self, records: Piece, size: int) -> None:
        """Add a range of records, in pieces of at most `size`."""
        if records.stop > records.start:
            self._ranges.append((records, size))
            self._ends.append(len(self) + -(-(records.stop - records.start) // size))

    def after(self, record: int) -> "Pieces":
        """The pieces without the records before the number `record`."""
        found = Pieces()
        for records, size in self._ranges:
            found.add(records._replace(start=max(records.start, record)), size)
        return found

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, number: int) -> Piece: ...
    @overload
    def __getitem__(self, number: slice) -> list[Piece]: ...
    def __getitem__(self, number: int | slice) -> Piece | list[Piece]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        number %= len(self)
        place = bisect_right(self._ends, number)
        records, size = self._ranges[place]
        start = records.start + (number - (self._ends[place - 1] if place else 0)) * size
        return records._replace(start=start, stop=min(start + size, records.stop))


class StoredRecords:
    """The records of a dataset. Can be pickled; raises `DatasetError`, which names file or key, for
    damaged data.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._environments: dict[str, lmdb.Environment] = {}
        self._shard: tuple[str, ParquetRows] | None = None
        self._mapped_bytes = 0

    def __getstate__(self) -> dict[str, object]:
        return {"_dataset": self._dataset, "_environments": {}, "_shard": None, "_mapped_bytes": 0}

    def pieces(self, size: int = _PIECE_RECORDS) -> Pieces:
        """All pieces in order, of at most `size` records where the layout allows random access; a
        tar is one piece.

        Raises `DatasetError` where there are more or fewer records than the manifest says.
        """
        layout, found = self._dataset.layout, Pieces()
        if layout in ("files", *INDEXED_LAYOUTS):
            found.add(Piece("", 0, 0, self._dataset.records), size)
            return found
        first = 0
        for shard in map(str, self._dataset.shard_paths()):
            if layout == "lmdb":
                end = first + int(self._environment(shard).stat()["entries"])
                found.add(Piece(shard, first, first, end), size)
            elif layout == "parquet":
                end = first
                for rows in self._parquet(shard).group_sizes:  # a row group is read as a whole
                    found.add(Piece(shard, first, end, end + rows), max(rows, 1))
                    end += rows
            else:
                end = first + sum(1 for _ in webdataset_layout.read_samples(Path(shard)))
                found.add(Piece(shard, first, first, end), max(end - first, 1))
            first = end
        if first != self._dataset.records:
            raise DatasetError(
                f"{self._dataset.path}: holds {first} records, the manifest says"
                f" {self._dataset.records}; {_AGAIN}"
            )
        return found

    def read(self, piece: Piece) -> Iterator[StoredRecord]:
        """The records of a piece, in order."""
        return READERS[self._dataset.layout](self, piece)

    def close(self) -> None:
        """Close all environments."""
        while self._environments:
            self._environments.popitem()[1].close()

    def read_files(self, piece: Piece) -> Iterator[StoredRecord]:
        """The records of a piece of a `files` dataset."""
        paths, labels = self._index
        for path, label in zip(
            paths[piece.start : piece.stop], labels[piece.start : piece.stop], strict=True
        ):
            try:
                with open(self._dataset.path / path, "rb", buffering=0) as stream:
                    data = stream.readall()
            except OSError as error:
                raise DatasetError(
                    f"{self._dataset.path / path}: cannot be read ({error.strerror}); {_AGAIN}"
                ) from None
            yield StoredRecord(path.rpartition("/")[2], label, data)

    def read_lmdb(self, piece: Piece) -> Iterator[StoredRecord]:
        """The records of a piece of an `lmdb` dataset."""
        try:
            yield from self._entries(piece)
        except lmdb.Error as error:  # where a page is damaged
            raise DatasetError(f"{piece.shard}: {error}; {_AGAIN}") from None
        # pages that were read stay mapped, and count as this process's memory
        if self._mapped_bytes > _MAX_MAPPED_BYTES:
            self.close()
            self._mapped_bytes = 0

    def _entries(self, piece: Piece) -> Iterator[StoredRecord]:
        with (
            self._environment(piece.shard).begin(buffers=True) as transaction,
            transaction.cursor() as cursor,
        ):
            found = cursor.set_range(b"%08d_" % piece.start)
            for number in range(piece.start, piece.stop):
                where = f"{piece.shard} key {number:08d}_*"
                key = bytes(cursor.key()).decode(errors="replace") if found else ""
                if not key.startswith(f"{number:08d}_"):
                    raise DatasetError(f"{where}: missing; {_AGAIN}")
                try:
                    image, _, label = tensorprotos.decode(cursor.value())
                except DatasetError as error:
                    raise DatasetError(f"{where}: {error}") from None
                yield StoredRecord(key[9:], label, bytes(image))
                self._mapped_bytes += len(image)
                found = cursor.next()

    def read_webdataset(self, piece: Piece) -> Iterator[StoredRecord]:
        """The records of a piece of a `webdataset` dataset."""
        try:
            stream = open(piece.shard, "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise DatasetError(
                f"{piece.shard}: cannot be read ({error.strerror}); {_AGAIN}"
            ) from None
        with stream:
            for sample in islice(
                webdataset_layout.read_samples(Path(piece.shard)),
                piece.start - piece.first,
                piece.stop - piece.first,
            ):
                data = os.pread(stream.fileno(), sample.size, sample.offset)
                yield StoredRecord(sample.name, sample.label, data)

    def read_parquet(self, piece: Piece) -> Iterator[StoredRecord]:
        """The records of a piece of a `parquet` dataset."""
        first, file = piece.first, self._parquet(piece.shard)
        for group, rows in enumerate(file.group_sizes):
            if piece.start < first + rows and first < piece.stop:
                for name, label, data in file.group(group)[
                    max(0, piece.start - first) : piece.stop - first
                ]:
                    if not is_plain_name(name):
                        raise DatasetError(
                            f"{piece.shard}: the name {name[:80]!r} cannot be used; {_AGAIN}"
                        )
                    yield StoredRecord(name, label, data)
            first += rows

    def read_indexed(self, piece: Piece) -> Iterator[StoredRecord]:
        """The records of a piece of a `raw` or `indexed` dataset; images are taken out of the
        records of other programs.
        """
        index = self._packed
        names, entries = index.names(piece.start, piece.stop), index.part(piece.start, piece.stop)
        for number, name, entry in zip(range(piece.start, piece.stop), names, entries, strict=True):
            path, length = index.files[int(entry["file"])], int(entry["length"])
            try:
                with open(path, "rb", buffering=0) as stream:
                    data = os.pread(stream.fileno(), length, int(entry["offset"]))
            except OSError as error:
                raise DatasetError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from None
            if len(data) < length:
                raise DatasetError(f"{path}: cut short within record {number}; {_AGAIN}")
            try:
                image, _ = VALUES[index.kind](data)
            except DatasetError as error:
                raise DatasetError(f"{path}: record {number}: {error}") from None
            yield StoredRecord(name, int(entry["label"]), bytes(image))

    @cached_property
    def _packed(self) -> RecordIndex:
        return RecordIndex(self._dataset)

    def _parquet(self, shard: str) -> ParquetRows:
        if self._shard is None or self._shard[0] != shard:
            self._shard = shard, ParquetRows(shard)
        return self._shard[1]

    @cached_property
    def _index(self) -> tuple[list[str], list[int]]:
        return read_index(self._dataset)

    def _environment(self, shard: str) -> lmdb.Environment:
        if shard not in self._environments:
            self._environments[shard] = open_environment(Path(shard))
        return self._environments[shard]


READERS: Final[dict[str, Callable[[StoredRecords, Piece], Iterator[StoredRecord]]]] = {
    "files": StoredRecords.read_files,
    "lmdb": StoredRecords.read_lmdb,
    "webdataset": StoredRecords.read_webdataset,
    "parquet": StoredRecords.read_parquet,
    "raw": StoredRecords.read_indexed,
    "indexed": StoredRecords.read_indexed,
}
