"""What all loaders share: their options, a batch, and the two contracts (a backend that is named, a
loader of batches).
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple, Protocol

from ioprof.options import Option

if TYPE_CHECKING:
    from torch import Tensor

    from ioprof.format.dataset import Dataset

_PANEL: Final = "Loader"

LMDB_READS: Final = ("mmap", "pread")
"""How the `lmdb` loader gets at a value: through the memory map, as LMDB does; or by one read of
its bytes."""
READAHEADS: Final = ("auto", "on", "off")
"""Whether the kernel reads ahead where a memory map of an LMDB is touched; `auto`: as
`lmdb_readahead.choose` finds better."""

REGION, FULL, PILLOW = "roi", "full", "pillow"
DECODES: Final = (REGION, FULL, PILLOW)
"""What is decoded of a JPEG: the crop alone; or all of it, by the same library; or all of it, by
Pillow."""
FAIL, QUARANTINE, ACCEPT = "fail", "quarantine", "accept"
ON_CORRUPT: Final = (FAIL, QUARANTINE, ACCEPT)
"""What happens with an image that cannot be decoded or of which libjpeg warns: an error; it is left
out; or the latter is used."""


@dataclass(frozen=True, kw_only=True)
class LoadingOptions:
    """Options of `ioprof run` that every loader of the job is given."""

    workers: Annotated[
        int,
        Option(
            "Loader processes per rank (of threads: threads); 0: the rank itself.", _PANEL, least=0
        ),
    ] = 2
    seed: Annotated[
        int, Option("Seed of the order of the samples and of their crops.", _PANEL, least=0)
    ] = 0
    lmdb_read: Annotated[
        str,
        Option(
            "How --loader lmdb and raw read: mmap (memory-mapped) or pread (system calls).",
            _PANEL,
            choices=LMDB_READS,
        ),
    ] = LMDB_READS[0]
    lmdb_readahead: Annotated[
        str,
        Option(
            "Readahead in the memory map of an LMDB: on, off, or auto (by size, memory, device).",
            _PANEL,
            choices=READAHEADS,
        ),
    ] = READAHEADS[0]
    decode: Annotated[
        str,
        Option(
            "JPEG decoding: roi (only the crop), full (the whole image), or pillow (the whole"
            " image, by Pillow).",
            _PANEL,
            choices=DECODES,
        ),
    ] = REGION
    on_corrupt: Annotated[
        str,
        Option(
            "Corrupt images: fail, quarantine (leave them out), or accept (as Pillow does).",
            _PANEL,
            choices=ON_CORRUPT,
        ),
    ] = FAIL


@dataclass(frozen=True)
class LoaderOptions(LoadingOptions):
    """How the batches of one rank are made."""

    batch_size: int
    """Samples per batch and rank."""
    num_batches: int
    """The loader ends before this batch; it goes on into further epochs as needed."""
    rank: int = 0
    num_ranks: int = 1
    _: KW_ONLY
    prefetch: int = 2
    """Batches that each worker may have under way or ready."""
    crop: int = 224
    """Side of the square that the random crop is resized to, in pixels."""
    first_batch: int = 0
    """The first batch to yield: a job that goes on gets the very batches that it would have got."""
    shuffle_buffer: int = 1000
    """Samples held back to be shuffled where the data is read in the order in which it lies: by
    `webdataset`, and by `dali`."""
    device_id: int | None = None
    """Number of the GPU that `dali` may decode on, and then leaves its batches on; None: it works
    on the CPU."""

    sample_shape: tuple[int, ...] | None = None
    """Of the bytes of a sample, where it is no image of `crop` pixels: of the null loader's samples
    alone."""
    evaluates: bool = False
    """The batches are to evaluate a model: the centre of each image, instead of a random crop."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the bytes of a sample."""
        return self.sample_shape or (3, self.crop, self.crop)

    @property
    def largest_batch(self) -> tuple[int, ...]:
        """Shape of the largest batch there can be: an epoch's last may have one sample more (see
        `order.batch_bounds`).
        """
        return self.batch_size + 1, *self.shape


class Batch(NamedTuple):
    """One batch of one rank."""

    number: int
    """Counts from 0 over all epochs: the identity of the batch from its first read to the step that
    used it."""
    images: "Tensor"
    """uint8, (samples, 3, crop, crop), RGB."""
    labels: "Tensor"
    """int64, (samples,)."""
    left_out: tuple[str, ...] = ()
    """Of each image that was left out as corrupt: its name, and why."""


@dataclass(frozen=True)
class LoadingFacts:
    """How a loader turned out to work, for run.json."""

    decoder: str | None = None
    """Library that decodes JPEGs; None: Pillow, or no loader of ours decodes."""
    lmdb_readahead: bool | None = None
    """Whether the kernel reads ahead in the memory map; None: there is none."""
    lmdb_readahead_reason: str | None = None
    """One of `lmdb_readahead.REASONS`."""


class Record(NamedTuple):
    """One stored sample."""

    data: bytes | bytearray | memoryview
    shape: tuple[int, int, int] | None
    """(height, width, 3) of raw RGB bytes; None: an encoded image."""
    label: int


class Loader(Protocol):
    """Yields batches `first_batch` to `num_batches`."""

    def __iter__(self) -> Iterator[Batch]:
        """The batches of this rank, in order."""

    def facts(self) -> LoadingFacts:
        """How it works, once it has begun."""

    def lost_worker(self) -> str | None:
        """Which worker process died, and how; None if none did. Call it after any error, which
        rarely contains that itself.
        """


class Backend(Protocol):
    """What a line of `LOADERS` names. Light to make and to check: neither imports torch, or reads
    more than it must.
    """

    layouts: ClassVar[tuple[str, ...]]
    """The layouts that it reads; none: it needs no dataset."""

    def __init__(self, dataset: "Dataset | None", options: LoaderOptions) -> None: ...

    def check(self) -> None:
        """Raise what a job with this loader would end with, as far as that can be seen without
        reading the data.
        """

    def loader(self) -> Loader:
        """The batches of one rank; imports torch."""
