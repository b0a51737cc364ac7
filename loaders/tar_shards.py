"""Records of a `webdataset` dataset: tars that are read from one end to the other, in large reads,
each by one worker.

Random access is what a tar is not for: it has no index, and to make one takes a read for every
record.
"""

from functools import cached_property
from pathlib import Path
from typing import ClassVar, Final

from ioprof.errors import DatasetError
from ioprof.loaders.streams import StreamOrder, StreamRecords
from ioprof.loaders.tar_reading import TarReader, first_number

_AGAIN: Final = "convert the dataset again"


class TarRecords(StreamRecords):
    """Reads the tars of a dataset."""

    layouts: ClassVar[tuple[str, ...]] = ("webdataset",)

    def check(self) -> None:
        """Raise `DatasetError` if a shard is missing or begins otherwise than it should, or the
        last lacks the last record.
        """
        self.read(self.dataset.records - 1)

    def name(self, index: int) -> str:
        """The tar and the key of record `index`."""
        return f"{self._path(index)} record {index:08d}"

    def _reader(self, numbers: range) -> TarReader:
        return TarReader(
            self._path(numbers.start), self._order.shards[self._shard_of(numbers.start)], numbers
        )

    def _path(self, index: int) -> str:
        return str(self._paths[self._shard_of(index)])

    @cached_property
    def _paths(self) -> list[Path]:
        return self.dataset.shard_paths()

    @cached_property
    def _order(self) -> StreamOrder:
        starts = [first_number(str(path)) for path in self._paths]
        shards = [
            range(start, end)
            for start, end in zip(starts, [*starts[1:], self.dataset.records], strict=True)
        ]
        if starts[0] != 0 or not all(shards):
            wrong = next((place for place, shard in enumerate(shards) if not shard), 0)
            raise DatasetError(
                f"{self._paths[wrong]}: begins with record {starts[wrong]}, which cannot be;"
                f" {_AGAIN}"
            )
        return StreamOrder(shards, self.options)
