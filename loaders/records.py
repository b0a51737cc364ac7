"""Backends that read one record at a time: batches are then made of them by torch's DataLoader, or
rather by our workers in it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar

from ioprof.format.dataset import Dataset
from ioprof.loaders.base import Loader, LoaderOptions, LoadingFacts, Record
from ioprof.loaders.order import BatchRequest, batch_requests


class Records(ABC):
    """Reads the records of a dataset by their index. Made in the parent, opened in each process at
    first use.
    """

    layouts: ClassVar[tuple[str, ...]]

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        assert dataset is not None
        self.dataset, self.options = dataset, options

    @abstractmethod
    def check(self) -> None:
        """Raise `DatasetError` if the data is not what the manifest says, as far as that can be
        seen without reading it.
        """

    @abstractmethod
    def read(self, index: int) -> Record:
        """Record `index`, whatever was read before it; `DatasetError` names the file or key if it
        cannot be read.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call record `index` in an error."""

    def requests(self) -> Iterator[BatchRequest]:
        """The batches of this rank, in order."""
        return batch_requests(self.dataset.records, self.options)

    def of_batch(self, request: BatchRequest) -> Iterator[Record]:
        """The records of a batch, in order; a process asks for batches in the order of `requests`.
        Raises as `read` does.
        """
        return map(self.read, request.indices)

    def facts(self) -> LoadingFacts:
        """How records are read and decoded; decides what is to be decided, for the processes that
        it is handed to.
        """
        from ioprof.loaders.images import Decoding

        decoder = Decoding.of(self.options).decoder
        return LoadingFacts(decoder=None if self.raw_shape or decoder is None else decoder.name)

    def loader(self) -> Loader:
        """The batches of one rank; imports torch."""
        from ioprof.loaders.torch_loader import TorchLoader

        return TorchLoader(self, self.options)

    @cached_property
    def raw_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of every record, if they are raw."""
        image = self.dataset.image
        return (image.size, image.size, 3) if image.encoding == "raw" and image.size else None
