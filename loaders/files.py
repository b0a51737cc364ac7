"""Records of a `files` dataset: one file per image."""

from functools import cached_property
from typing import ClassVar

from ioprof.errors import DatasetError
from ioprof.format.dataset import read_index
from ioprof.loaders.base import Record
from ioprof.loaders.file_reading import read_file
from ioprof.loaders.records import Records


class FileRecords(Records):
    """Reads each record with open, fstat, read, close."""

    layouts: ClassVar[tuple[str, ...]] = ("files",)

    def check(self) -> None:
        """Raise `DatasetError` if the index is damaged or its first file is missing."""
        path = self.dataset.path / self.name(0)
        if not path.is_file():
            raise DatasetError(
                f"{path}: missing, though the dataset lists it; convert the dataset again"
            )

    def read(self, index: int) -> Record:
        """Record `index`; `DatasetError` names the file if it cannot be read."""
        path = f"{self.dataset.path}/{self._index[0][index]}"
        try:
            data = read_file(path)
        except OSError as error:
            raise DatasetError(f"{path}: cannot be read ({error.strerror})") from None
        return Record(data, self.raw_shape, self._index[1][index])

    def name(self, index: int) -> str:
        """Path of record `index`, relative to the dataset."""
        return self._index[0][index]

    @cached_property
    def _index(self) -> tuple[list[str], list[int]]:
        return read_index(self.dataset)
