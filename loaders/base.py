"""What all loaders share: their options, a batch, and the two contracts (a reader of records, a loader of batches)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LoaderOptions:
    """How the batches of one rank are made."""

    batch_size: int
    """Samples per batch and rank."""
    num_batches: int
    """How many batches the loader yields; it goes on into further epochs as needed."""
    rank: int = 0
    num_ranks: int = 1
    workers: int = 2
    """Worker processes of this rank; 0: the batches are made where they are used."""
    prefetch: int = 2
    """Batches that each worker may have under way or ready."""
    seed: int = 0
    crop: int = 224
    """Side of the square that the random crop is resized to, in pixels."""
    spool: Path | None = None
    """Where worker processes record to; None: they do not."""

    @property
    def largest_batch(self) -> tuple[int, int, int, int]:
        """Shape of the largest batch there can be: an epoch's last may have one sample more (see `order.batch_bounds`)."""
        return self.batch_size + 1, 3, self.crop, self.crop


class Batch(NamedTuple):
    """One batch of one rank."""

    number: int
    """Counts from 0 over all epochs: the identity of the batch from its first read to the step that used it."""
    images: "Tensor"
    """uint8, (samples, 3, crop, crop), RGB."""
    labels: "Tensor"
    """int64, (samples,)."""
    ready_ns: int
    """Monotonic time at which the batch was complete in the process that made it."""


class Record(NamedTuple):
    """One stored sample."""

    data: bytes | bytearray
    shape: tuple[int, int, int] | None
    """(height, width, 3) of raw RGB bytes; None: an encoded image."""
    label: int


class Records(Protocol):
    """Reads the records of a dataset by their index. Made in the parent, opened in each process at first use."""

    def check(self) -> None:
        """Raise `DatasetError` if the data is not what the manifest says, as far as that can be seen without reading it."""

    def read(self, index: int, batch: int) -> Record:
        """Record `index`, its reads recorded under `batch`; `DatasetError` names the file or key if it cannot be had."""

    def name(self, index: int) -> str:
        """What to call record `index` in an error."""


class Loader(Protocol):
    """Yields `num_batches` batches and records the wait for each."""

    def __iter__(self) -> Iterator[Batch]:
        """The batches of this rank, in order."""

    def lost_worker(self) -> str | None:
        """Which worker process died, and how; None if none did. To be asked when anything failed: the error itself rarely says."""
