"""Records of a shared folder, written to a copy on this node as they are read: the first epoch
fills it, the next ones read it.

The copy is an incomplete dataset, which `prepare` begins; what completes or removes it is
`ioprof.jobs.filling`:

    COPY/dataset/...     the same files as the dataset's; those that hold many records at their full
                         length, and empty at first
    COPY/flags/...       a byte for each record of `files`, for each block of an environment or a
                         tar: 1 once it is there, whole

What is flagged was written before, so a process that is killed leaves nothing that looks whole and
is not. Two that read the same at the same time write the same bytes. A write that fails ends the
filling of that process, not the job: it reads on from the shared folder. Reads are whole blocks,
which costs up to two blocks more than was requested.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ioprof.errors import DatasetError
from ioprof.format.dataset import Dataset
from ioprof.instrument.manual import current_batch
from ioprof.instrument.span import intern, span
from ioprof.loaders.base import LoaderOptions, Record
from ioprof.loaders.file_reading import FileRanges, read_file
from ioprof.loaders.files import FileRecords
from ioprof.loaders.lmdb_pages import LmdbPages
from ioprof.loaders.lmdb_records import LmdbRecords
from ioprof.loaders.records import Records
from ioprof.loaders.tar_reading import TarReader
from ioprof.loaders.tar_shards import TarRecords

BLOCK_BYTES: Final = 4096

Flags = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FillingOptions(LoaderOptions):
    """Those of a loader that fills a copy."""

    local_copy: Path = Path()
    """The folder of the copy."""


def filling(name: str, dataset: Dataset | None, options: LoaderOptions) -> Records:
    """The records of `dataset` for the loader `name`, read from and written to the copy that the
    options name.
    """
    return FILLING[name](dataset, options)


def prepare(copy: Path, dataset: Dataset, files: Sequence[tuple[str, str]]) -> None:
    """Make the empty copy; `files` are the dataset's, each as its path and its place below
    `dataset`. Raises OSError.
    """
    for _, target in files:
        (copy / "dataset" / target).parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(copy / "flags", ignore_errors=True)  # of a job that was killed
    (copy / "flags").mkdir()
    if dataset.layout == "files":
        _make_flags(copy / "flags" / "0", dataset.records)
        return
    for number, (source, target) in enumerate(files):
        size = Path(source).stat().st_size
        with open(copy / "dataset" / target, "xb") as stream:
            stream.truncate(size)
        _make_flags(copy / "flags" / str(number), -(-size // BLOCK_BYTES))


def flags_of(copy: Path, number: int = 0) -> Flags:
    """What of the copy is there: of all records of `files`, of file `number` of another layout."""
    return np.memmap(copy / "flags" / str(number), np.uint8, "r+")


def missing_ranges(flags: Flags, size: int) -> Iterator[tuple[int, int]]:
    """Start and length of each run of bytes of a file that is not there yet."""
    edges = np.flatnonzero(np.diff(np.concatenate(([1], flags, [1])).astype(np.int8)))
    for first, last in edges.reshape(-1, 2).tolist():
        yield first * BLOCK_BYTES, min(last * BLOCK_BYTES, size) - first * BLOCK_BYTES


def _make_flags(path: Path, count: int) -> None:
    # They are mapped: to set one in a hole of the file would be SIGBUS once the disk is full.
    with open(path, "xb") as stream:
        os.posix_fallocate(stream.fileno(), 0, max(1, count))
        stream.truncate(count)


# -------------------------------------------------------------------------------- a file per record


class FillingFiles(FileRecords):
    """Of `files`: a record's file is written under another name, and renamed."""

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        super().__init__(dataset, options)
        self._copy = _copy_of(options)
        self._is_filling = True

    def read(self, index: int) -> Record:
        """Record `index`, from the copy where it is there."""
        local = f"{self._copy}/dataset/{self.name(index)}"
        if self._flags[index]:
            with suppress(FileNotFoundError):
                return Record(self._data(local), self.raw_shape, self._index[1][index])
        record = super().read(index)
        if self._is_filling:
            self._is_filling = _written(
                lambda: self._write(local, index, record.data), local, len(record.data)
            )
        return record

    def _data(self, path: str) -> bytearray:
        try:
            return read_file(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DatasetError(f"{path}: cannot be read ({error.strerror})") from None

    def _write(self, path: str, index: int, data: Any) -> None:
        half_made = f"{path}.{os.getpid()}"
        try:
            with open(half_made, "wb", buffering=0) as stream:
                _write_all(stream.fileno(), data, 0)
            os.replace(half_made, path)
        except OSError:
            with suppress(OSError):
                Path(half_made).unlink()
            raise
        self._flags[index] = 1

    def __getstate__(self) -> dict[str, Any]:
        # a process maps them itself
        return {key: value for key, value in self.__dict__.items() if key != "_flags"}

    @cached_property
    def _flags(self) -> Flags:
        return flags_of(self._copy)


# ---------------------------------------------------------------------------- files of many records


class FilledRanges(FileRanges):
    """A shared file and its copy, as one file that stays open, for the process that opened it."""

    def __init__(self, shared: FileRanges, local: Path, flags: Flags) -> None:
        self._descriptor = -1
        self._shared, self._name, self._flags = shared, str(local), flags
        self._local = FileRanges(str(local))
        self._target = os.open(local, os.O_WRONLY | os.O_CLOEXEC)
        self.size = shared.size

    def close(self) -> None:
        """Close both."""
        target, self._target = self._target, -1
        if target >= 0:
            os.close(target)
            self._local.close()
            self._shared.close()

    def read_into(self, data: memoryview, offset: int) -> int:
        """Fill `data` from `offset`, from the copy if all of it is there; else from the shared
        file, and then it is.
        """
        first, last = offset // BLOCK_BYTES, -(-min(offset + len(data), self.size) // BLOCK_BYTES)
        if first >= last or self._flags[first:last].all():
            return self._local.read_into(data, offset)
        start = first * BLOCK_BYTES
        blocks = memoryview(bytearray(min(last * BLOCK_BYTES, self.size) - start))
        found = blocks[: self._shared.read_into(blocks, start)]
        wanted = found[offset - start : offset - start + len(data)]
        data[: len(wanted)] = wanted
        if (
            self._target >= 0
            and len(found) == len(blocks)
            and not _written(lambda: self._fill(first, last, found), self._name, len(found))
        ):
            os.close(self._target)
            self._target = -1
        return len(wanted)

    def _fill(self, first: int, last: int, blocks: memoryview) -> None:
        _write_all(self._target, blocks, first * BLOCK_BYTES)
        self._flags[first:last] = 1


class _Filled:
    """What a reader takes for its file is that file and its copy."""

    _of_copy: tuple[Path, Flags]

    @property
    def _file(self) -> FileRanges:
        return self._with_copy

    @_file.setter
    def _file(self, shared: FileRanges) -> None:
        self._with_copy = FilledRanges(shared, *self._of_copy)


class _FilledPages(_Filled, LmdbPages):
    def __init__(self, path: str, first: int, entries: int, of_copy: tuple[Path, Flags]) -> None:
        self._of_copy = of_copy
        super().__init__(path, first, entries)


class _FilledTar(_Filled, TarReader):
    def __init__(
        self, path: str, shard: range, numbers: range, of_copy: tuple[Path, Flags]
    ) -> None:
        self._of_copy = of_copy
        super().__init__(path, shard, numbers)


class FillingLmdb(LmdbRecords):
    """Of `lmdb`: values are read from their places in the file, with every `lmdb_read`."""

    def _opened(self, shard: int) -> LmdbPages:
        path = self._folders[shard] / "data.mdb"
        first, end = (
            ([0, *self._ends][shard], self._ends[shard])
            if self._ends
            else (0, self.dataset.records)
        )
        return _FilledPages(
            str(path), first, end - first, _of_copy(self.options, self.dataset, path, shard)
        )


class FillingTars(TarRecords):
    """Of `webdataset`."""

    def _reader(self, numbers: range) -> TarReader:
        shard = self._shard_of(numbers.start)
        path = self._paths[shard]
        of_copy = _of_copy(self.options, self.dataset, path, shard)
        return _FilledTar(str(path), self._order.shards[shard], numbers, of_copy)


FILLING: Final[dict[str, type[Records]]] = {
    "files": FillingFiles,
    "lmdb": FillingLmdb,
    "webdataset": FillingTars,
}
"""Name of a loader that can fill a copy, and its backend that does."""


def _of_copy(
    options: LoaderOptions, dataset: Dataset, path: Path, number: int
) -> tuple[Path, Flags]:
    copy = _copy_of(options)
    return copy / "dataset" / path.relative_to(dataset.path), flags_of(copy, number)


def _copy_of(options: LoaderOptions) -> Path:
    assert isinstance(options, FillingOptions)
    return options.local_copy


def _written(write: Callable[[], None], path: str, size: int) -> bool:
    """Whether that could be written; recorded as a `stage` span."""
    with span("stage", file=intern(path), batch=current_batch(), bytes=size):
        try:
            write()
        except OSError:
            return False
    return True


def _write_all(descriptor: int, data: Any, place: int) -> None:
    left = memoryview(data)
    while left:
        count = os.pwrite(descriptor, left, place)
        left, place = left[count:], place + count
