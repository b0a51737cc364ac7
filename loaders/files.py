"""Records of a `files` dataset: one file per image."""

from functools import cached_property

from ioprof.dataset import Dataset, read_index
from ioprof.errors import DatasetError
from ioprof.loaders.base import Record
from ioprof.record.reads import read_file


class FileRecords:
    """Reads each record with open, fstat, read, close."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def check(self) -> None:
        """Raise `DatasetError` if the index is damaged or its first file is missing."""
        path = self._dataset.path / self.name(0)
        if not path.is_file():
            raise DatasetError(f"{path}: missing, though the dataset lists it; convert the dataset again")

    def read(self, index: int, batch: int) -> Record:
        """Record `index`; `DatasetError` names the file if it cannot be read."""
        path = f"{self._dataset.path}/{self._index[0][index]}"
        try:
            data = read_file(path, batch=batch)
        except OSError as error:
            raise DatasetError(f"{path}: cannot be read ({error.strerror})") from None
        return Record(data, self._shape, self._index[1][index])

    def name(self, index: int) -> str:
        """Path of record `index`, relative to the dataset."""
        return self._index[0][index]

    @cached_property
    def _index(self) -> tuple[list[str], list[int]]:
        return read_index(self._dataset)

    @cached_property
    def _shape(self) -> tuple[int, int, int] | None:
        image = self._dataset.image
        return (image.size, image.size, 3) if image.encoding == "raw" and image.size else None
