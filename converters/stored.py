"""Reading back the records of a dataset, whatever its layout, piece by piece: for checks, and to merge parts.

A piece is what one process reads at a time: some records of a `files` index or of an LMDB environment, or a whole tar.
"""

import os
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import lmdb

from ioprof import tensorprotos
from ioprof.converters import shards
from ioprof.dataset import Dataset, open_environment, read_index
from ioprof.errors import DatasetError

_PIECE_RECORDS: Final = 32
_AGAIN: Final = "convert the dataset again"


class Stored(NamedTuple):
    """One record as it was read back."""

    name: str
    """Of its file, without its class."""
    label: int
    data: bytes


class Piece(NamedTuple):
    """What one process reads at a time."""

    shard: str
    """The environment or the tar; empty for `files`."""
    first: int
    """Number of the shard's first record in the dataset; 0 for `files`."""
    start: int
    """Number of the first record to read, in the dataset."""
    stop: int
    """After the last one."""


class StoredRecords:
    """The records of a dataset. Can be pickled; raises `DatasetError`, which names the place, for whatever is damaged."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._environments: dict[str, lmdb.Environment] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_dataset": self._dataset, "_environments": {}}

    def pieces(self, size: int = _PIECE_RECORDS) -> Iterator[Piece]:
        """All pieces in the order of their records, of at most `size` records where the layout can be entered anywhere."""
        layout = self._dataset.layout
        if layout == "files":
            yield from _cut("", 0, self._dataset.records, size)
            return
        first = 0
        for shard in map(str, self._dataset.shard_paths()):
            entries = self._entries(shard) if layout == "lmdb" else sum(1 for _ in shards.samples(Path(shard)))
            yield from _cut(shard, first, entries, size if layout == "lmdb" else max(entries, 1))
            first += entries
        if first != self._dataset.records:
            raise DatasetError(f"{self._dataset.path}: holds {first} records, the manifest says {self._dataset.records}; {_AGAIN}")

    def read(self, piece: Piece) -> Iterator[Stored]:
        """The records of a piece, in order."""
        return READERS[self._dataset.layout](self, piece)

    def close(self) -> None:
        """Close what is open."""
        while self._environments:
            self._environments.popitem()[1].close()

    def read_files(self, piece: Piece) -> Iterator[Stored]:
        """Of a `files` dataset."""
        paths, labels = self._index
        for path, label in zip(paths[piece.start : piece.stop], labels[piece.start : piece.stop], strict=True):
            try:
                with open(self._dataset.path / path, "rb", buffering=0) as stream:
                    data = stream.readall()
            except OSError as error:
                raise DatasetError(f"{self._dataset.path / path}: cannot be read ({error.strerror}); {_AGAIN}") from None
            yield Stored(path.rpartition("/")[2], label, data)

    def read_lmdb(self, piece: Piece) -> Iterator[Stored]:
        """Of an `lmdb` dataset."""
        with self._environment(piece.shard).begin(buffers=True) as transaction, transaction.cursor() as cursor:
            found = cursor.set_range(b"%08d_" % piece.start)
            for number in range(piece.start, piece.stop):
                where = f"{piece.shard} key {number:08d}_*"
                key = bytes(cursor.key()).decode(errors="replace") if found else ""
                if not key.startswith(f"{number:08d}_"):
                    raise DatasetError(f"{where}: missing, though the manifest counts it; {_AGAIN}")
                try:
                    image, _, label = tensorprotos.decode(cursor.value())
                except DatasetError as error:
                    raise DatasetError(f"{where}: {error}") from None
                yield Stored(key[9:], label, bytes(image))
                found = cursor.next()

    def read_webdataset(self, piece: Piece) -> Iterator[Stored]:
        """Of a `webdataset` dataset."""
        with _open_tar(piece.shard) as stream:
            for sample in islice(shards.samples(Path(piece.shard)), piece.start - piece.first, piece.stop - piece.first):
                data = os.pread(stream.fileno(), sample.size, sample.offset)
                yield Stored(sample.name, sample.label, data)

    @cached_property
    def _index(self) -> tuple[list[str], list[int]]:
        return read_index(self._dataset)

    def _environment(self, shard: str) -> lmdb.Environment:
        if shard not in self._environments:
            self._environments[shard] = open_environment(Path(shard))
        return self._environments[shard]

    def _entries(self, shard: str) -> int:
        return int(self._environment(shard).stat()["entries"])


def _open_tar(shard: str) -> BinaryIO:
    try:
        return open(shard, "rb", buffering=0)
    except OSError as error:
        raise DatasetError(f"{shard}: cannot be read ({error.strerror}); {_AGAIN}") from None


def _cut(shard: str, first: int, entries: int, size: int) -> Iterator[Piece]:
    for start in range(first, first + entries, size):
        yield Piece(shard, first, start, min(start + size, first + entries))


READERS: Final[dict[str, Callable[[StoredRecords, Piece], Iterator[Stored]]]] = {
    "files": StoredRecords.read_files,
    "lmdb": StoredRecords.read_lmdb,
    "webdataset": StoredRecords.read_webdataset,
}
