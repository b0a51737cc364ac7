"""What every layout is given (a target, then records in order) and what it must be able to do."""

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

from ioprof.dataset import ImageFormat


@dataclass(frozen=True)
class Target:
    """What a layout writes to."""

    folder: Path
    split: str
    image: ImageFormat
    wnids: tuple[str, ...]
    """Of all classes, in the order of their labels."""
    images: int = 0
    """How many images the source has, good or bad: the shards of `lmdb` are equal parts of them."""
    shards: int | None = None
    """Of `lmdb`; null: one environment, named after the split."""
    shard_bytes: int | None = None
    """Of `webdataset`."""
    labels: str | None = None
    """Of `files`: which further lists of labels to write."""
    final: Path | None = None
    """Where the dataset will lie, for lists that hold absolute paths; null: where it is written."""


class Record(NamedTuple):
    """One sample as every layout stores it."""

    number: int
    """Its place in the order of the dataset."""
    wnid: str
    name: str
    """Of its file, unique within its class."""
    label: int
    data: bytes | memoryview
    """Of `files`: empty where the file has been written already."""
    place: int | None = None
    """Its image's place in the order of the source, in which bad images count too; null: the same as `number`."""


class Layout(Protocol):
    """A writer of records, used as a context manager; leaving it without `finish` leaves what was written as it is.

    With `start` it goes on in a folder in which at most that many records were written before it was killed. It finds out how many
    of them are there whole, from the first on, and drops the rest.
    """

    def __init__(self, target: Target, start: int = 0) -> None: ...

    @property
    def shards(self) -> int | None:
        """For the manifest, when all is written."""

    def durable(self) -> int:
        """How many records are there for certain: just after it was opened, the number of the next one to add."""

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError when it cannot."""

    def finish(self) -> None:
        """All records have been added: bring them to the file system."""

    def __enter__(self) -> "Layout": ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it, or raise OSError: a disk that fills up takes a part and refuses the next."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])
