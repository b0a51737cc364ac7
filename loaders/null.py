"""The loader that reads nothing: one random batch again and again. Its rate is the upper bound of
every other loader's.
"""

from collections.abc import Iterator
from typing import ClassVar

from ioprof.format.dataset import Dataset
from ioprof.instrument.manual import wait_for_batch
from ioprof.loaders.base import Batch, LoaderOptions, LoadingFacts


class NullBackend:
    """Needs nothing."""

    layouts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None:
        self._options = options

    def check(self) -> None:
        """Nothing can be wrong."""

    def loader(self) -> "NullLoader":
        """The same batch under a new number each time."""
        return NullLoader(self._options)


class NullLoader:
    """Yields the same batch under a new number each time."""

    def __init__(self, options: LoaderOptions) -> None:
        import torch

        self._options = options

        source = torch.Generator().manual_seed(options.seed * 1_000_003 + options.rank)
        self._images = torch.randint(
            0, 256, (options.batch_size, *options.shape), dtype=torch.uint8, generator=source
        )
        self._labels = torch.zeros(options.batch_size, dtype=torch.int64)

    def facts(self) -> LoadingFacts:
        """Nothing is decoded."""
        return LoadingFacts()

    def lost_worker(self) -> str | None:
        """None: there are no workers."""
        return None

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self._options.first_batch, self._options.num_batches):
            with wait_for_batch(number):
                batch = Batch(number, self._images, self._labels)
            yield batch
