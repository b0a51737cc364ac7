"""Records of `raw` and `indexed` datasets: an index says where each lies, so any is one read of its
bytes, or a part of a map.

`raw` is the upper bound of what a layout can bring: no tree, no headers, no search. `indexed` is
data of other programs, read where it is.
"""

import mmap
import os
from collections import OrderedDict
from functools import cached_property
from typing import ClassVar, Final

from ioprof.errors import DatasetError
from ioprof.foreign.values import VALUES
from ioprof.format.listed_files import Stamp, read_files
from ioprof.format.record_index import RecordIndex
from ioprof.instrument.mapped import fault_in
from ioprof.instrument.span import intern
from ioprof.loaders.base import LMDB_READS, Record
from ioprof.loaders.file_reading import FileRanges
from ioprof.loaders.records import Records

_OPEN_FILES: Final = 128
"""More are closed again: a dataset may have more files than a process may open."""


class RawRecords(Records):
    """Reads records of one packed file, by its memory map or by reads."""

    layouts: ClassVar[tuple[str, ...]] = ("raw",)
    _map: "tuple[int, memoryview] | None" = None
    _open: "tuple[int, OrderedDict[int, FileRanges]] | None" = None

    def check(self) -> None:
        """Raise `DatasetError` if the index is damaged or a file is missing or too short."""
        _ = self._index.entries

    def read(self, index: int) -> Record:
        """Record `index`; `DatasetError` names the file if it cannot be read."""
        entry = self._index.entries[index]
        file, offset, length = int(entry["file"]), int(entry["offset"]), int(entry["length"])
        try:
            data = (
                self._mapped(offset, length)
                if self._is_mapped
                else self._file(file).read(offset, length)
            )
        except OSError as error:
            raise DatasetError(f"{self.name(index)}: cannot be read ({error.strerror})") from None
        if len(data) < length:
            raise DatasetError(f"{self.name(index)}: cut short ({len(data)} of {length} bytes)")
        return Record(data, self.raw_shape, int(entry["label"]))

    def name(self, index: int) -> str:
        """The file and the place of record `index`."""
        entry = self._index.entries[index]
        return (
            f"{self._index.files[int(entry['file'])]} record {index:08d} at byte"
            f" {int(entry['offset'])}"
        )

    @property
    def _is_mapped(self) -> bool:
        return self.options.lmdb_read == LMDB_READS[0]

    def _mapped(self, offset: int, length: int) -> bytes:
        # The pages are copied at once, so that their faults are not taken for decoding.
        if self._map is None or self._map[0] != os.getpid():
            with open(self._index.files[0], "rb") as stream:
                content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            content.madvise(mmap.MADV_RANDOM)
            self._map = os.getpid(), memoryview(content)
        view = self._map[1]
        return fault_in(
            lambda: view[offset : offset + length], file=intern(self._index.files[0])
        ).data

    def _file(self, number: int) -> FileRanges:
        # Descriptors are not shared with the process that this one was forked from.
        if self._open is None or self._open[0] != os.getpid():
            self._open = os.getpid(), OrderedDict()
        files = self._open[1]
        if number not in files:
            if len(files) >= _OPEN_FILES:
                files.popitem(last=False)[1].close()
            files[number] = FileRanges(self._index.files[number])
        files.move_to_end(number)
        return files[number]

    @cached_property
    def _index(self) -> RecordIndex:
        return RecordIndex(self.dataset)


class IndexedRecords(RawRecords):
    """Reads records of other programs' files, and finds the image in them."""

    layouts: ClassVar[tuple[str, ...]] = ("indexed",)

    def check(self) -> None:
        """Raise `DatasetError` if the index is damaged, or a file is not what it was when it was
        listed.
        """
        super().check()
        for stamp in read_files(self.dataset.files_path)[1]:
            try:
                is_same = Stamp.of(stamp.path) == stamp
            except OSError as error:
                raise DatasetError(
                    f"{stamp.path}: cannot be read ({error.strerror}), though it was listed"
                ) from None
            if not is_same:
                raise DatasetError(
                    f"{stamp.path}: has changed since it was listed; start the command again, and"
                    " it is listed anew"
                )

    def read(self, index: int) -> Record:
        """Record `index`; `DatasetError` names the file if it cannot be read or is damaged."""
        record = super().read(index)
        if self._index.kind == "file":
            return record
        try:
            data, shape = VALUES[self._index.kind](bytes(record.data))
        except DatasetError as error:
            raise DatasetError(f"{self.name(index)}: {error}") from None
        return Record(data, shape, record.label)

    @property
    def _is_mapped(self) -> bool:
        return False
