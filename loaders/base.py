"""What all loaders share: their options, a batch, and the two contracts (a backend that is named, a loader of batches)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol

from ioprof.dataset import Dataset

if TYPE_CHECKING:
    from torch import Tensor

LMDB_READS: Final = ("mmap", "pread")
"""How the `lmdb` loader gets at a value: through the memory map, as LMDB does; or by one read of its bytes."""


@dataclass(frozen=True)
class LoaderOptions:
    """How the batches of one rank are made."""

    batch_size: int
    """Samples per batch and rank."""
    num_batches: int
    """The loader ends before this batch; it goes on into further epochs as needed."""
    rank: int = 0
    num_ranks: int = 1
    workers: int = 2
    """Worker processes of this rank (of `dali`: its threads); 0: the batches are made where they are used."""
    prefetch: int = 2
    """Batches that each worker may have under way or ready."""
    seed: int = 0
    crop: int = 224
    """Side of the square that the random crop is resized to, in pixels."""
    spool: Path | None = None
    """Where worker processes record to; None: they do not."""
    first_batch: int = 0
    """The first batch to yield: a job that goes on gets the very batches that it would have got."""
    shuffle_buffer: int = 1000
    """Samples held back to be shuffled where the data is read in the order in which it lies: by `webdataset`, and by `dali`."""
    lmdb_read: str = LMDB_READS[0]
    """One of `LMDB_READS`."""
    device_id: int | None = None
    """Number of the GPU that `dali` may decode on, and then leaves its batches on; None: it works on the CPU."""

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
    """Monotonic time at which the batch was complete where it was made."""


class Record(NamedTuple):
    """One stored sample."""

    data: bytes | bytearray | memoryview
    shape: tuple[int, int, int] | None
    """(height, width, 3) of raw RGB bytes; None: an encoded image."""
    label: int


class Loader(Protocol):
    """Yields batches `first_batch` to `num_batches` and records the wait for each."""

    def __iter__(self) -> Iterator[Batch]:
        """The batches of this rank, in order."""

    def lost_worker(self) -> str | None:
        """Which worker process died, and how; None if none did. To be asked when anything failed: the error itself rarely says."""


class Backend(Protocol):
    """What a line of `LOADERS` names. Light to make and to check: neither imports torch, or reads more than it must."""

    layouts: ClassVar[tuple[str, ...]]
    """The layouts that it reads; none: it needs no dataset."""

    def __init__(self, dataset: Dataset | None, options: LoaderOptions) -> None: ...

    def check(self) -> None:
        """Raise what a job with this loader would end with, as far as that can be seen without reading the data."""

    def loader(self) -> Loader:
        """The batches of one rank; imports torch."""
